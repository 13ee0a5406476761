//! What the daemon knows of itself, as samples.

use std::collections::BTreeMap;

use weir_flow::stall::{CAUSES, Cause};

use super::registry::{self, Metric};
use super::series::{Counters, Told};
use super::text::{Exposition, Family, Value};
use crate::control::snapshot::{
    ChannelRow, ChannelSide, ChannelsReport, Health, LinkRow, ShardRow, StatusReport,
};
use crate::control::stalls::{StallsReport, WaitReport};
use crate::control::tasks::TasksReport;

/// What one scrape is made of, all of about one moment.
pub(crate) struct Facts {
    /// Subsystems, memory, links and shards.
    pub(crate) status: StatusReport,
    /// Both ends of all channels that are here.
    pub(crate) channels: ChannelsReport,
    /// Waits that belong to no channel, and pools.
    pub(crate) stalls: StallsReport,
    /// What tasks do, those of other nodes among them.
    pub(crate) tasks: TasksReport,
}

/// A counter of a channel that is a plain number.
type PlainCounter = (&'static Metric, fn(&ChannelRow) -> u64);

/// Waits of a channel, which count by cause.
type ChannelWaits = (&'static Metric, fn(&ChannelRow) -> Option<&WaitReport>);

/// Counters of a channel that are plain numbers, in the order of their places. The first is the one that series are given
/// by.
const PLAIN: [PlainCounter; 3] = [
    (&registry::CHANNEL_BYTES, |row| row.bytes_total),
    (&registry::CHANNEL_BUFFERS, |row| row.buffers_total),
    (&registry::CHANNEL_RECORDS, |row| row.records_total),
];

/// Waits of a channel, whose nanoseconds by cause have the places behind those.
const WAITS: [ChannelWaits; 2] = [
    (&registry::CHANNEL_SEND_STALL, |row| row.send_stalls.as_deref()),
    (&registry::CHANNEL_EMIT_STALL, |row| row.emit_stalls.as_deref()),
];

/// How many counters a channel has.
pub(super) const COUNTERS: usize = PLAIN.len() + WAITS.len() * CAUSES;

/// All counters of a channel.
pub(super) fn counters(row: &ChannelRow) -> Counters {
    let plain = PLAIN.iter().map(|(_, value)| value(row));
    let waits = WAITS.iter().flat_map(|(_, waits)| Cause::ALL.map(|cause| stalled_ns(waits(row), cause)));
    let mut counters = [0; COUNTERS];
    counters.iter_mut().zip(plain.chain(waits)).for_each(|(counter, value)| *counter = value);
    counters
}

fn stalled_ns(waits: Option<&WaitReport>, cause: Cause) -> u64 {
    let total = waits.and_then(|waits| waits.by_cause.get(cause.as_str()));
    total.map_or(0, |total| (total.seconds_total * 1e9) as u64)
}

/// A value of a channel at one moment; none at the end that does not have it.
type ChannelGauge = (&'static Metric, fn(&ChannelRow) -> Option<u64>);

const CHANNEL_GAUGES: [ChannelGauge; 5] = [
    (&registry::CHANNEL_CREDIT, |row| Some(u64::from(row.credit))),
    (&registry::CHANNEL_BACKLOG, |row| Some(u64::from(row.backlog))),
    (&registry::CHANNEL_QUEUED, |row| Some(row.queued_bytes)),
    (&registry::CHANNEL_IN_FLIGHT, |row| Some(row.in_flight_bytes)),
    (&registry::CHANNEL_UNACKED, |row| (row.side == ChannelSide::Send).then_some(row.unacked_bytes)),
];

/// Writes everything but channels.
pub(super) fn node(text: &mut Exposition, facts: &Facts) {
    let StatusReport { version, uptime_seconds, memory, subsystems, links, shards, shards_missing, .. } =
        &facts.status;
    text.family(&registry::BUILD_INFO).sample(&[version], 1_u64);
    text.family(&registry::UPTIME).sample(&[], *uptime_seconds);
    let mut family = text.family(&registry::SUBSYSTEM_DEGRADED);
    for subsystem in subsystems.iter().filter(|subsystem| subsystem.state != Health::Off) {
        family.sample(&[&subsystem.name], subsystem.state == Health::Degraded);
    }
    text.family(&registry::MEMORY_USED).sample(&[], memory.used_bytes);
    text.family(&registry::MEMORY_HIGH_WATER).sample(&[], memory.high_water_bytes);
    text.family(&registry::MEMORY_LIMIT).sample(&[], memory.total_bytes);
    text.family(&registry::SHARDS_UNANSWERED).sample(&[], shards_missing.len() as u64);
    for (metric, value) in SHARD_COLUMNS {
        let mut family = text.family(metric);
        for row in shards {
            if let Some(value) = value(row) {
                family.sample(&[&row.shard.to_string()], value);
            }
        }
    }
    for (metric, value) in LINK_COLUMNS {
        link_family(text, metric, links, |family, link, labels| {
            if let Some(value) = value(link) {
                family.sample(labels, value);
            }
        });
    }
    sockets(text, links);
    tasks(text, &facts.tasks);
    partitions(text, &facts.stalls);
    super::gates::write(text, &facts.channels.gates);
    lengths(text, &facts.stalls);
}

/// One family of links. `sample` gets the labels of each.
fn link_family(
    text: &mut Exposition,
    metric: &'static Metric,
    links: &[LinkRow],
    sample: impl Fn(&mut Family<'_>, &LinkRow, &[&str; 3]),
) {
    let mut family = text.family(metric);
    for link in links {
        let [shard, peer_shard] = [link.shard, link.peer_shard].map(|number| number.to_string());
        sample(&mut family, link, &[&link.peer, &shard, &peer_shard]);
    }
}

/// What the sockets of links tell beyond single numbers.
fn sockets(text: &mut Exposition, links: &[LinkRow]) {
    link_family(text, &registry::LINK_SOCKET_STATE, links, |family, link, [peer, shard, peer_shard]| {
        let Some(socket) = &link.socket else { return };
        for (state, seconds) in [
            ("idle", socket.idle_seconds_total),
            ("flight", socket.flight_seconds_total),
            ("held", socket.held_seconds_total),
            ("congestion_window", socket.congestion_window_seconds_total),
            ("receive_window", socket.receive_window_seconds_total),
            ("send_buffer", socket.send_buffer_seconds_total),
        ] {
            if let Some(seconds) = seconds {
                family.sample(&[peer, shard, peer_shard, state], seconds);
            }
        }
    });
    link_family(text, &registry::LINK_RESIDENCE, links, |family, link, labels| {
        let Some(socket) = &link.socket else { return };
        let Some((counts, sum)) =
            socket.residence_nanoseconds_total.as_ref().zip(socket.residence_seconds_total)
        else {
            return;
        };
        // Entry n is for less than 2^n ns. The whole list is written each time: a series must not come late.
        let bucket = |at: usize| (2_f64.powi(at as i32) / 1e9, counts.get(at).copied().unwrap_or(0));
        let buckets: Vec<(f64, u64)> = (RESIDENCE_FIRST..RESIDENCE_END).map(bucket).collect();
        let below: u64 = counts.iter().take(RESIDENCE_FIRST).sum();
        let beyond: u64 = counts.iter().skip(RESIDENCE_END).sum();
        let first = buckets.first().map_or(0, |(_, count)| count + below);
        let buckets: Vec<(f64, u64)> = buckets
            .into_iter()
            .enumerate()
            .map(|(at, (bound, count))| (bound, if at == 0 { first } else { count }))
            .collect();
        family.histogram(labels, &buckets, beyond, sum);
    });
}

/// Buckets of the residence that are written: from 2^12 ns (4 us) to 2^33 ns (8.6 s). What is below counts to the first.
const RESIDENCE_FIRST: usize = 12;
const RESIDENCE_END: usize = 34;

/// Instances of tasks on this node; those of other nodes are told by those.
fn tasks(text: &mut Exposition, report: &TasksReport) {
    let mut family = text.family(&registry::TASK_TIME);
    for task in &report.tasks {
        // Several instances may have no index, or the same: one of each replaced life that is still attached.
        let mut seconds: BTreeMap<String, [f64; 4]> = BTreeMap::new();
        for instance in task.instances.iter().filter(|instance| instance.node == report.node) {
            let index = instance.index.map(|index| index.to_string()).unwrap_or_default();
            let times = [
                instance.idle_seconds_total,
                instance.busy_seconds_total,
                instance.soft_backpressured_seconds_total,
                instance.hard_backpressured_seconds_total,
            ];
            let sums = seconds.entry(index).or_default();
            sums.iter_mut().zip(times).for_each(|(sum, time)| *sum += time);
        }
        for (index, times) in seconds {
            for (state, seconds) in
                ["idle", "busy", "soft_backpressured", "hard_backpressured"].into_iter().zip(times)
            {
                family.sample(&[&task.task, &index, state], seconds);
            }
        }
    }
}

/// Pools of partitions, and the waits that belong to no single channel.
fn partitions(text: &mut Exposition, report: &StallsReport) {
    let mut family = text.family(&registry::PARTITION_EMIT_STALL);
    for partition in &report.partitions {
        let producer = partition.producer.to_string();
        for (cause, total) in &partition.emit.by_cause {
            family.sample(&[&partition.exchange, &producer, cause], total.seconds_total);
        }
    }
    let mut family = text.family(&registry::PARTITION_POOL_USAGE);
    for partition in &report.partitions {
        family.sample(&[&partition.exchange, &partition.producer.to_string()], partition.pool_usage);
    }
}

/// Lengths of waits of the whole node by cause. Without all shards they would be less than they were, which reads as if the
/// daemon had begun anew.
fn lengths(text: &mut Exposition, report: &StallsReport) {
    let Some(past) = &report.past else { return };
    for (metric, causes) in
        [(&registry::SEND_STALL_LENGTHS, &past.send), (&registry::EMIT_STALL_LENGTHS, &past.emit)]
    {
        let mut family = text.family(metric);
        for (cause, past) in causes {
            let (buckets, beyond) = length_buckets(report, &past.length_buckets);
            family.histogram(&[cause], &buckets, beyond, past.seconds_total);
        }
    }
}

/// Every [`LENGTHS_STEP`]th bound from the first on, with what lies between; and what is beyond the last.
fn length_buckets(report: &StallsReport, counts: &[u64]) -> (Vec<(f64, u64)>, u64) {
    let (mut buckets, mut since) = (Vec::new(), 0_u64);
    for (at, (end, count)) in report.length_bucket_ends_seconds.iter().zip(counts).enumerate() {
        since = since.saturating_add(*count);
        if let Some(end) = end.filter(|_| at % LENGTHS_STEP == LENGTHS_STEP - 1) {
            buckets.push((end, std::mem::take(&mut since)));
        }
    }
    (buckets, since)
}

/// Of the bounds of lengths one in so many is written: each four times the one before, from 2 us to 34 s.
const LENGTHS_STEP: usize = 2;

/// A value of a shard; none if it is not known.
type ShardColumn = (&'static Metric, fn(&ShardRow) -> Option<Value>);

const SHARD_COLUMNS: [ShardColumn; 11] = [
    (&registry::SHARD_TURNS, |row| Some(row.turns_total.into())),
    (&registry::SHARD_LONG_TURNS, |row| Some(row.long_turns_total.into())),
    (&registry::SHARD_LONGEST_TURN, |row| Some(row.longest_turn_seconds.into())),
    (&registry::SHARD_PARKS, |row| Some(row.parks_total.into())),
    (&registry::SHARD_CPU, |row| row.cpu.map(|cpu| (cpu as u64).into())),
    (&registry::SHARD_ROAMING, |row| Some(row.is_roaming.into())),
    (&registry::SHARD_MEMORY_ELSEWHERE, |row| Some(row.memory_elsewhere_bytes.into())),
    (&registry::SHARD_REGISTERED_REGIONS, |row| Some(u64::from(row.registered.regions).into())),
    (&registry::SHARD_REGISTERED_BYTES, |row| Some(row.registered.bytes.into())),
    (&registry::SHARD_REGISTERED_SENDS, |row| Some(row.registered.sends_total.into())),
    (&registry::SHARD_REGISTERED_REFUSED, |row| Some(row.registered.refused_total.into())),
];

/// A value of a link; none if it is not known.
type LinkColumn = (&'static Metric, fn(&LinkRow) -> Option<Value>);

const LINK_COLUMNS: [LinkColumn; 18] = [
    (&registry::LINK_CONNECTED, |link| Some((link.state == "established").into())),
    (&registry::LINK_SENT, |link| Some(link.sent_bytes_total.into())),
    (&registry::LINK_RECEIVED, |link| Some(link.received_bytes_total.into())),
    (&registry::LINK_SHORT_WRITES, |link| Some(link.short_writes_total.into())),
    (&registry::LINK_RESUMES, |link| Some(link.resumes_total.into())),
    (&registry::LINK_RESENT, |link| Some(link.resent_bytes_total.into())),
    (&registry::LINK_SKIPPED, |link| Some(link.skipped_frames_total.into())),
    (&registry::LINK_ROUND_TRIP, |link| link.round_trip_min_seconds.map(Value::from)),
    (&registry::LINK_ZERO_COPY, |link| {
        Some(matches!(link.zero_copy.mode.as_str(), "zero_copy" | "probing").into())
    }),
    (&registry::LINK_ZERO_COPY_SENDS, |link| Some(link.zero_copy.sent_total.into())),
    (&registry::LINK_ZERO_COPY_COPIED, |link| Some(link.zero_copy.copied_total.into())),
    (&registry::LINK_ZERO_COPY_REFUSED, |link| Some(link.zero_copy.refused_total.into())),
    (&registry::LINK_ZERO_COPY_OUTSTANDING, |link| Some(u64::from(link.zero_copy.outstanding).into())),
    (&registry::LINK_UNWRITABLE, |link| link.socket.as_ref()?.unwritable_seconds_total.map(Value::from)),
    (&registry::LINK_SEND_QUEUE, |link| link.socket.as_ref()?.send_queue_bytes.map(Value::from)),
    (&registry::LINK_RECEIVE_QUEUE, |link| link.socket.as_ref()?.receive_queue_bytes.map(Value::from)),
    (&registry::LINK_RETRANSMITTED, |link| {
        link.socket.as_ref()?.retransmitted_segments_total.map(Value::from)
    }),
    (&registry::LINK_ZERO_WINDOWS, |link| link.socket.as_ref()?.zero_windows_total.map(Value::from)),
];

/// Writes the channels: each that has a place for itself, the others together.
pub(super) fn channels(text: &mut Exposition, told: &Told<'_>) {
    let all = || told.named.iter().chain(&told.unnamed);
    let mut family = text.family(&registry::CHANNELS);
    for side in SIDES {
        family.sample(&[side_name(side)], all().filter(|row| row.side == side).count() as u64);
    }
    text.family(&registry::CHANNELS_UNNAMED).sample(&[], told.unnamed.len() as u64);
    for (at, (metric, _)) in PLAIN.iter().enumerate() {
        let value = |counters: &Counters| counters.get(at).copied().unwrap_or_default();
        let others = told.others.map(|others| others.is_known().then(|| value(&others.counters).into()));
        let mut family = text.family(metric);
        channel_samples(&mut family, told, "", |row| Some(value(&counters(row)).into()), others);
    }
    for (nth, (metric, _)) in WAITS.iter().enumerate() {
        let mut family = text.family(metric);
        for (cause, place) in Cause::ALL.into_iter().zip(PLAIN.len() + nth * CAUSES..) {
            let seconds = |counters: &Counters| match counters.get(place) {
                None | Some(0) => None,
                Some(nanoseconds) => Some(Value::Real(*nanoseconds as f64 / 1e9)),
            };
            let others = told.others.map(|others| seconds(&others.counters));
            channel_samples(&mut family, told, cause.as_str(), |row| seconds(&counters(row)), others);
        }
    }
    for (metric, value) in CHANNEL_GAUGES {
        let others = SIDES.map(|side| {
            let rows = told.unnamed.iter().filter(|row| row.side == side);
            let has_any = told.others.get(side as usize).is_some_and(|others| others.channels > 0);
            has_any.then(|| rows.filter_map(|row| value(row)).sum::<u64>().into())
        });
        let mut family = text.family(metric);
        channel_samples(&mut family, told, "", |row| value(row).map(Value::from), others);
    }
}

/// Both sides, in the order of their numbers.
const SIDES: [ChannelSide; 2] = [ChannelSide::Send, ChannelSide::Receive];

fn side_name(side: ChannelSide) -> &'static str {
    match side {
        ChannelSide::Send => "send",
        ChannelSide::Receive => "receive",
    }
}

/// Samples of one family, for one cause if it is told by cause.
fn channel_samples(
    family: &mut Family<'_>,
    told: &Told<'_>,
    cause: &str,
    value: impl Fn(&ChannelRow) -> Option<Value>,
    others: [Option<Value>; 2],
) {
    for row in &told.named {
        let Some(value) = value(row) else { continue };
        let [producer, consumer] = [row.producer, row.consumer].map(|number| number.to_string());
        family.sample(&[&row.exchange, side_name(row.side), &producer, &consumer, &row.peer, cause], value);
    }
    for (side, value) in SIDES.into_iter().zip(others) {
        if let Some(value) = value {
            family.sample(&["other", side_name(side), "", "", "", cause], value);
        }
    }
}
