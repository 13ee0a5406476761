//! From messages to bytes.

use alloc::vec::Vec;

use super::handshake::Hello;
use super::header::{Flags, HEADER_BYTES, Header};
use super::message::{
    CHECKSUM_OPEN, Cancel, CatalogEntry, ChannelSummary, ENTRY_GATE, ENTRY_PARTITION, GateEntry, Limit,
    Message, OpenChannel, PROBES_TEXT_BYTES_MAX, PartitionEntry, ProcessTimes, Resume, SIDE_RECEIVE,
    SIDE_SEND, SOCKET_PROBED, SOCKET_SAMPLED, SOCKET_UNKNOWN, SocketSummary, Stats, TaskShares, TaskTimes,
    UNKNOWN_U16, UNKNOWN_U32,
};
use crate::exchange::{Name, Shape};
use crate::failure::{FAILURE_TEXT_BYTES_MAX, Failure};
use crate::stats::Side;
use crate::wants::GateWants;

/// Appends the frame of `message` to `out`.
///
/// The caller keeps payloads and entry counts within their bounds ([`super::EVENT_BYTES_MAX`],
/// [`super::CATALOG_ENTRIES_MAX`], [`super::TASK_TIMES_MAX`], [`super::CHANNEL_SUMMARIES_MAX`]); the peer refuses a frame
/// that is over them. The text of a failure, and that of probes, is cut to its bound.
pub fn encode(message: &Message, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(&[0; HEADER_BYTES]);
    let mut header = Header::new(message.frame_type());
    encode_fields(message, &mut header);
    encode_body(message, out);
    let body_bytes = out.len().saturating_sub(start).saturating_sub(HEADER_BYTES);
    header.length = u32::try_from(body_bytes).unwrap_or(u32::MAX);
    if let Some(place) = out.get_mut(start..).and_then(|frame| frame.first_chunk_mut::<HEADER_BYTES>()) {
        *place = header.encode();
    }
}

/// What of a message is in the header.
fn encode_fields(message: &Message, header: &mut Header) {
    match message {
        Message::Hello { confirm, .. } => header.flags = Flags::CONFIRM.when(*confirm),
        Message::OpenChannel { channel, .. }
        | Message::ChannelFailed { channel, .. }
        | Message::Limit { channel, .. }
        | Message::BufferSize { channel, .. }
        | Message::Resume { channel, .. }
        | Message::Cancel { channel, .. }
        | Message::EndAck { channel } => header.channel = *channel,
        Message::ChannelAccepted { channel, backlog, sequence, .. }
        | Message::EndOfData { channel, backlog, sequence } => {
            (header.channel, header.backlog, header.sequence) = (*channel, *backlog, *sequence);
        }
        Message::Event { channel, backlog, sequence, priority, .. } => {
            (header.channel, header.backlog, header.sequence) = (*channel, *backlog, *sequence);
            header.flags = Flags::PRIORITY.when(*priority);
        }
        Message::Backlog { channel, backlog, closed } => {
            (header.channel, header.backlog) = (*channel, *backlog);
            header.flags = Flags::CLOSED.when(*closed);
        }
        Message::HelloAck { .. }
        | Message::Ping { .. }
        | Message::Pong { .. }
        | Message::Catalog { .. }
        | Message::Stats { .. }
        | Message::Goodbye { .. }
        | Message::LinkResume { .. } => {}
    }
}

/// What of a message is behind the header.
fn encode_body(message: &Message, out: &mut Vec<u8>) {
    match message {
        Message::Hello { hello, .. } | Message::HelloAck { hello } => encode_hello(hello, out),
        Message::OpenChannel { open, .. } => encode_open(open, out),
        Message::ChannelAccepted { incarnation, .. } => put_u64(out, incarnation.0),
        Message::ChannelFailed { failure, .. } | Message::Goodbye { failure } => put_failure(out, failure),
        Message::Event { payload, .. } => out.extend_from_slice(payload),
        Message::Limit { limit, .. } => encode_limit(limit, out),
        Message::BufferSize { bytes, .. } => put_u32(out, *bytes),
        Message::Resume { resume, .. } => encode_resume(resume, out),
        Message::Cancel { cancel, .. } => encode_cancel(cancel, out),
        Message::Ping { token } | Message::Pong { token } => put_u64(out, *token),
        Message::LinkResume { control_received } => put_u64(out, *control_received),
        Message::Catalog { entries } => {
            put_count(out, entries.len());
            for entry in entries {
                encode_entry(entry, out);
            }
        }
        Message::Stats { stats } => encode_stats(stats, out),
        Message::Backlog { .. } | Message::EndOfData { .. } | Message::EndAck { .. } => {}
    }
}

fn encode_hello(hello: &Hello, out: &mut Vec<u8>) {
    put_u16(out, hello.version);
    out.extend_from_slice(&[hello.role as u8, hello.kind as u8]);
    put_u16(out, hello.local_shard);
    put_u16(out, hello.peer_shard);
    put_u32(out, hello.segment_bytes);
    put_u32(out, hello.record_bytes_max);
    put_u64(out, hello.epoch);
    put_u16(out, hello.listen_port);
    put_u64(out, hello.link);
    put_u32(out, hello.resumes);
    put_u32(out, hello.grace_ms);
    out.extend_from_slice(&hello.nonce);
    out.extend_from_slice(&hello.mac);
    put_name(out, &hello.node);
}

fn encode_open(open: &OpenChannel, out: &mut Vec<u8>) {
    put_u32(out, open.producer.0);
    put_u32(out, open.consumer.0);
    put_shape(out, &open.shape);
    put_u64(out, open.incarnation.0);
    put_u64(out, open.limit);
    put_u64(out, open.event_limit);
    put_name(out, &open.exchange);
}

fn encode_limit(limit: &Limit, out: &mut Vec<u8>) {
    put_u64(out, limit.limit);
    put_u64(out, limit.ack);
    put_u64(out, limit.consumed);
    put_u64(out, limit.event_limit);
    put_u32(out, limit.age_us);
    put_u32(out, 0);
}

fn encode_resume(resume: &Resume, out: &mut Vec<u8>) {
    put_u64(out, resume.incarnation.0);
    put_u64(out, resume.next_sequence.0);
    put_u64(out, resume.opened);
    put_u64(out, resume.limit);
    put_u64(out, resume.event_limit);
    put_u64(out, resume.consumed);
    put_u32(out, resume.open_fill);
}

fn encode_cancel(cancel: &Cancel, out: &mut Vec<u8>) {
    put_u64(out, cancel.delivered);
    put_u64(out, cancel.consumed);
    put_failure(out, &cancel.failure);
}

fn encode_entry(entry: &CatalogEntry, out: &mut Vec<u8>) {
    match entry {
        CatalogEntry::Partition(partition) => encode_partition(partition, out),
        CatalogEntry::Gate(gate) => encode_gate(gate, out),
    }
}

fn encode_partition(partition: &PartitionEntry, out: &mut Vec<u8>) {
    out.push(ENTRY_PARTITION);
    put_u32(out, partition.producer.0);
    put_shape(out, &partition.shape);
    put_u64(out, partition.incarnation.0);
    put_u16(out, partition.shard);
    out.push(partition.state as u8);
    put_name(out, &partition.exchange);
    put_name(out, &partition.task);
}

/// What the consumer leaves open has a number that no shape has.
fn encode_gate(gate: &GateEntry, out: &mut Vec<u8>) {
    let GateWants { consumers, producers, strategy, segment_bytes, checksum } = gate.wants;
    out.push(ENTRY_GATE);
    put_u32(out, gate.consumer.0);
    put_u32(out, producers.unwrap_or(0));
    put_u32(out, consumers);
    put_u32(out, segment_bytes);
    let strategy = strategy.map_or(0, |strategy| strategy as u8);
    let checksum = checksum.map_or(CHECKSUM_OPEN, u8::from);
    out.extend_from_slice(&[strategy, checksum, gate.state as u8]);
    put_name(out, &gate.exchange);
    put_name(out, &gate.task);
}

fn encode_stats(stats: &Stats, out: &mut Vec<u8>) {
    put_u64(out, stats.read_at_ns);
    out.push(u8::from(stats.is_last));
    put_u32(out, stats.tasks_left_out);
    put_u32(out, stats.channels_left_out);
    put_count(out, stats.tasks.len());
    put_count(out, stats.channels.len());
    put_probes(out, &stats.probes);
    stats.tasks.iter().for_each(|times| encode_times(times, out));
    stats.channels.iter().for_each(|channel| encode_summary(channel, out));
}

fn encode_times(times: &TaskTimes, out: &mut Vec<u8>) {
    put_u64(out, times.instance);
    put_u32(out, times.index.unwrap_or(UNKNOWN_U32));
    for TaskShares { idle, busy, soft, hard } in times.windows {
        [idle, busy, soft, hard].into_iter().for_each(|share| put_u16(out, share));
    }
    times.total_ns.into_iter().for_each(|ns| put_u64(out, ns));
    let ProcessTimes { ran, waited, busy } = times.process;
    put_u32(out, ran.unwrap_or(UNKNOWN_U32));
    put_u32(out, waited.unwrap_or(UNKNOWN_U32));
    put_u32(out, busy);
    put_name(out, &times.task);
}

fn encode_summary(channel: &ChannelSummary, out: &mut Vec<u8>) {
    put_u32(out, channel.producer.0);
    put_u32(out, channel.consumer.0);
    out.push(match channel.side {
        Side::Send => SIDE_SEND,
        Side::Receive => SIDE_RECEIVE,
    });
    channel.send_stalled.into_iter().chain(channel.emit_stalled).for_each(|ms| put_u16(out, ms));
    [channel.bytes, channel.records, channel.queued_bytes]
        .into_iter()
        .for_each(|number| put_u64(out, number));
    put_u32(out, channel.backlog);
    put_u32(out, channel.credit);
    let usages = [channel.pool_usage, channel.exclusive_usage, channel.floating_usage];
    for number in usages.into_iter().chain([channel.shard_ran, channel.shard_waited]) {
        put_u16(out, number.unwrap_or(UNKNOWN_U16));
    }
    put_socket(out, channel.socket);
    put_name(out, &channel.exchange);
}

/// As much of a text as fits, with what would leave its line replaced: a peer refuses that.
fn put_probes(out: &mut Vec<u8>, text: &str) {
    let mut probes = Vec::with_capacity(PROBES_TEXT_BYTES_MAX);
    for character in text.chars() {
        let character = if character.is_control() { '?' } else { character };
        if probes.len() + character.len_utf8() > PROBES_TEXT_BYTES_MAX {
            break;
        }
        probes.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
    }
    out.push(u8::try_from(probes.len()).unwrap_or(0));
    out.extend_from_slice(&probes);
}

/// 29 bytes: where it is from, the states, and four numbers. A link of which nothing is known has no number of them.
fn put_socket(out: &mut Vec<u8>, socket: Option<SocketSummary>) {
    out.push(match socket {
        None => SOCKET_UNKNOWN,
        Some(SocketSummary { is_approximate: false, .. }) => SOCKET_PROBED,
        Some(SocketSummary { is_approximate: true, .. }) => SOCKET_SAMPLED,
    });
    let socket = socket.unwrap_or_default();
    socket.states.into_iter().for_each(|ms| put_u16(out, ms.unwrap_or(UNKNOWN_U16)));
    let SocketSummary { retransmitted, send_queue_bytes, receive_queue_bytes, residence_us, .. } = socket;
    for number in [retransmitted, send_queue_bytes, receive_queue_bytes, residence_us] {
        put_u32(out, number.unwrap_or(UNKNOWN_U32));
    }
}

/// 16 bytes: parallelism of both sides, segment size, strategy, checksum, 2 reserved.
fn put_shape(out: &mut Vec<u8>, shape: &Shape) {
    put_u32(out, shape.producers);
    put_u32(out, shape.consumers);
    put_u32(out, shape.segment_bytes);
    out.extend_from_slice(&[shape.strategy as u8, u8::from(shape.checksum), 0, 0]);
}

fn put_failure(out: &mut Vec<u8>, failure: &Failure) {
    let end = failure.text.floor_char_boundary(FAILURE_TEXT_BYTES_MAX);
    let text = failure.text.get(..end).unwrap_or("");
    put_u16(out, failure.code as u16);
    put_count(out, text.len());
    out.extend_from_slice(text.as_bytes());
}

fn put_name(out: &mut Vec<u8>, name: &Name) {
    // A name has at most 64 bytes.
    out.push(u8::try_from(name.as_str().len()).unwrap_or(u8::MAX));
    out.extend_from_slice(name.as_str().as_bytes());
}

fn put_count(out: &mut Vec<u8>, count: usize) {
    put_u16(out, u16::try_from(count).unwrap_or(u16::MAX));
}

fn put_u16(out: &mut Vec<u8>, number: u16) {
    out.extend_from_slice(&number.to_le_bytes());
}

fn put_u32(out: &mut Vec<u8>, number: u32) {
    out.extend_from_slice(&number.to_le_bytes());
}

fn put_u64(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(&number.to_le_bytes());
}
