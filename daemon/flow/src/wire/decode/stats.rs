//! Bodies of Stats frames.

use alloc::vec::Vec;

use super::Fields;
use crate::exchange::PARALLELISM_MAX;
use crate::ids::{ConsumerIndex, ProducerIndex};
use crate::stats::Side;
use crate::wire::error::WireError;
use crate::wire::message::{
    CHANNEL_SUMMARIES_MAX, ChannelSummary, ProcessTimes, SIDE_RECEIVE, SIDE_SEND, SOCKET_PROBED,
    SOCKET_SAMPLED, SOCKET_STATES, SOCKET_UNKNOWN, SocketSummary, Stats, TASK_TIMES_MAX, TASK_WINDOWS,
    TaskShares, TaskTimes, UNKNOWN_U16, UNKNOWN_U32,
};

pub(super) fn decode_stats(body: &mut Fields<'_>) -> Result<Stats, WireError> {
    let read_at_ns = body.u64("time of reading")?;
    let is_last = match body.u8("end of the reading")? {
        0 => false,
        1 => true,
        found => {
            let (field, found) = ("end of the reading", u64::from(found));
            return Err(WireError::Field { field, found, needed: "0 or 1" });
        }
    };
    let (tasks_left_out, channels_left_out) = (body.u32("tasks left out")?, body.u32("channels left out")?);
    let tasks_count = body.count("tasks", TASK_TIMES_MAX, "at most 128")?;
    let channels_count = body.count("channels", CHANNEL_SUMMARIES_MAX, "at most 256")?;
    let probes = body.probes()?;
    let mut tasks = Vec::with_capacity(tasks_count);
    for _ in 0..tasks_count {
        tasks.push(decode_times(body)?);
    }
    let mut channels = Vec::with_capacity(channels_count);
    for _ in 0..channels_count {
        channels.push(decode_summary(body)?);
    }
    Ok(Stats { read_at_ns, is_last, tasks_left_out, channels_left_out, probes, tasks, channels })
}

fn decode_times(body: &mut Fields<'_>) -> Result<TaskTimes, WireError> {
    let instance = body.u64("instance")?;
    let index = match body.u32("index")? {
        UNKNOWN_U32 => None,
        found if found < PARALLELISM_MAX => Some(found),
        found => {
            let needed = "below 4096, or 4294967295 (none)";
            return Err(WireError::Field { field: "index", found: u64::from(found), needed });
        }
    };
    let mut windows = [TaskShares::default(); TASK_WINDOWS];
    for window in &mut windows {
        *window = body.shares()?;
    }
    let mut total_ns = [0; 4];
    for ns in &mut total_ns {
        *ns = body.u64("total time")?;
    }
    let process = ProcessTimes {
        ran: body.known_u32("time on processors")?,
        waited: body.known_u32("time ready")?,
        busy: body.u32("busy time of the process")?,
    };
    Ok(TaskTimes { task: body.name("task")?, instance, index, windows, total_ns, process })
}

fn decode_summary(body: &mut Fields<'_>) -> Result<ChannelSummary, WireError> {
    let producer = ProducerIndex(body.u32("producer")?);
    let consumer = ConsumerIndex(body.u32("consumer")?);
    let side = match body.u8("side")? {
        SIDE_SEND => Side::Send,
        SIDE_RECEIVE => Side::Receive,
        found => {
            let needed = "1 (send) or 2 (receive)";
            return Err(WireError::Field { field: "side", found: u64::from(found), needed });
        }
    };
    let (send_stalled, emit_stalled) = (body.stalled("send stall")?, body.stalled("emit stall")?);
    let (bytes, records) = (body.u64("bytes per second")?, body.u64("records per second")?);
    let queued_bytes = body.u64("queued bytes")?;
    let (backlog, credit) = (body.u32("backlog")?, body.u32("credit")?);
    let mut usages = [None; 3];
    for usage in &mut usages {
        *usage = match body.u16("pool usage")? {
            UNKNOWN_U16 => None,
            found => Some(found),
        };
    }
    let [pool_usage, exclusive_usage, floating_usage] = usages;
    let (shard_ran, shard_waited) =
        (body.known_milliseconds("shard ran")?, body.known_milliseconds("shard waited")?);
    let socket = decode_socket(body)?;
    Ok(ChannelSummary {
        exchange: body.name("exchange")?,
        producer,
        consumer,
        side,
        send_stalled,
        emit_stalled,
        bytes,
        records,
        queued_bytes,
        backlog,
        credit,
        pool_usage,
        exclusive_usage,
        floating_usage,
        shard_ran,
        shard_waited,
        socket,
    })
}

/// A socket of which nothing is known has no number that is.
fn decode_socket(body: &mut Fields<'_>) -> Result<Option<SocketSummary>, WireError> {
    let source = body.u8("source of the socket")?;
    let mut states = [None; SOCKET_STATES];
    for state in &mut states {
        *state = body.known_milliseconds("state of the socket")?;
    }
    let mut numbers = [None; 4];
    for (number, field) in
        numbers.iter_mut().zip(["segments sent again", "send queue", "receive queue", "time to read"])
    {
        *number = body.known_u32(field)?;
    }
    let [retransmitted, send_queue_bytes, receive_queue_bytes, residence_us] = numbers;
    let is_approximate = match source {
        SOCKET_UNKNOWN if states.iter().all(Option::is_none) && numbers.iter().all(Option::is_none) => {
            return Ok(None);
        }
        SOCKET_PROBED => false,
        SOCKET_SAMPLED => true,
        found => {
            let needed = "1 (probes), 2 (samples), or 0 without any number";
            return Err(WireError::Field { field: "source of the socket", found: u64::from(found), needed });
        }
    };
    Ok(Some(SocketSummary {
        is_approximate,
        states,
        retransmitted,
        send_queue_bytes,
        receive_queue_bytes,
        residence_us,
    }))
}
