//! Readings: what all tasks and channels of one node did lately, as the node tells them to its peers, and as it has them from
//! its peers.
//!
//! Of itself a node takes the times of its tasks and, once a second, the difference of what each channel counts
//! ([`ChannelWindows`]). Of a peer it has what the peer tells, collected from as many frames as it takes ([`Collector`]). Both
//! are the same [`Reading`], so that every node answers for the tasks of all that it is linked with in the same way.
//!
//! No clock and no I/O here.

use std::collections::BTreeMap;

use weir_flow::exchange::Name;
use weir_flow::ids::{ConsumerIndex, ProducerIndex};
use weir_flow::stall::CAUSES;
use weir_flow::stats::{ChannelStats, GateStats, PartitionStats, Side};
use weir_flow::wire::{
    CHANNEL_SUMMARIES_MAX, ChannelSummary, ProcessTimes, SECOND_MS, SocketSummary, Stats, TASK_TIMES_MAX,
    TaskShares, TaskTimes,
};

use super::times::Shares;

/// Most tasks of one reading; those that waited least are left out.
pub const READING_TASKS_MAX: usize = 4096;

/// Most ends of channels of one reading; those that waited least are left out.
pub const READING_CHANNELS_MAX: usize = 1024;

/// What the tasks and channels of one node did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// The moment, in nanoseconds of that node's monotonic clock.
    pub read_at_ns: u64,
    /// At most [`READING_TASKS_MAX`].
    pub tasks: Vec<TaskTimes>,
    /// At most [`READING_CHANNELS_MAX`].
    pub channels: Vec<ChannelSummary>,
    /// Tasks that are not among them.
    pub tasks_left_out: u32,
    /// Ends of channels that are not among them.
    pub channels_left_out: u32,
    /// How the node looks at the sockets of its links, as one line of bounded length; empty if it does not say.
    pub probes: String,
}

impl Reading {
    /// A reading of these. What is too much is left out, and counted.
    #[must_use]
    pub fn new(read_at_ns: u64, mut tasks: Vec<TaskTimes>, mut channels: Vec<ChannelSummary>) -> Self {
        tasks.sort_by(|a, b| (pressure(b), &a.task, a.instance).cmp(&(pressure(a), &b.task, b.instance)));
        let key = |channel: &ChannelSummary| {
            (channel.exchange.clone(), channel.side, channel.producer, channel.consumer)
        };
        channels.sort_by_cached_key(|channel| {
            let waited = (stalled(channel), channel.queued_bytes, channel.records);
            (std::cmp::Reverse(waited), key(channel))
        });
        let tasks_left_out = left_out(&mut tasks, READING_TASKS_MAX);
        let channels_left_out = left_out(&mut channels, READING_CHANNELS_MAX);
        Self { read_at_ns, tasks, channels, tasks_left_out, channels_left_out, probes: String::new() }
    }

    /// The frames that tell it, at least one.
    #[must_use]
    pub fn frames(&self) -> Vec<Stats> {
        let count = self.tasks.len().div_ceil(TASK_TIMES_MAX);
        let count = count.max(self.channels.len().div_ceil(CHANNEL_SUMMARIES_MAX)).max(1);
        let (mut tasks, mut channels) =
            (self.tasks.chunks(TASK_TIMES_MAX), self.channels.chunks(CHANNEL_SUMMARIES_MAX));
        let frame = |number: usize| Stats {
            read_at_ns: self.read_at_ns,
            is_last: number + 1 == count,
            tasks_left_out: self.tasks_left_out,
            channels_left_out: self.channels_left_out,
            probes: self.probes.clone(),
            tasks: tasks.next().unwrap_or_default().to_vec(),
            channels: channels.next().unwrap_or_default().to_vec(),
        };
        (0..count).map(frame).collect()
    }
}

/// How much an instance waited and worked in the last second.
fn pressure(times: &TaskTimes) -> (u16, u16) {
    let [second, ..] = times.windows;
    (second.soft.saturating_add(second.hard), second.busy)
}

fn stalled(channel: &ChannelSummary) -> u32 {
    channel.send_stalled.iter().chain(&channel.emit_stalled).map(|ms| u32::from(*ms)).sum()
}

fn left_out<T>(list: &mut Vec<T>, max: usize) -> u32 {
    let over = list.len().saturating_sub(max);
    list.truncate(max);
    u32::try_from(over).unwrap_or(u32::MAX)
}

/// Puts the readings of a peer together.
#[derive(Debug, Default)]
pub struct Collector {
    growing: Option<Reading>,
}

impl Collector {
    /// Takes a frame. The reading that it ends, if it ends one; one that was begun and not ended is dropped with the first
    /// frame of the next. What is more than a reading can hold is left out, and counted.
    pub fn take(&mut self, frame: Stats) -> Option<Reading> {
        let Stats { read_at_ns, is_last, tasks_left_out, channels_left_out, probes, tasks, channels } = frame;
        let mut reading = self
            .growing
            .take()
            .filter(|reading| reading.read_at_ns == read_at_ns)
            .unwrap_or_else(|| Reading { read_at_ns, ..Reading::default() });
        reading.tasks_left_out = reading.tasks_left_out.max(tasks_left_out);
        reading.channels_left_out = reading.channels_left_out.max(channels_left_out);
        reading.probes = probes;
        reading.tasks.extend(tasks);
        reading.channels.extend(channels);
        let over = left_out(&mut reading.tasks, READING_TASKS_MAX);
        reading.tasks_left_out = reading.tasks_left_out.saturating_add(over);
        let over = left_out(&mut reading.channels, READING_CHANNELS_MAX);
        reading.channels_left_out = reading.channels_left_out.saturating_add(over);
        if is_last {
            return Some(reading);
        }
        self.growing = Some(reading);
        None
    }
}

/// One end of a channel.
type ChannelEnd = (Name, Side, ProducerIndex, ConsumerIndex);

/// What a channel end had counted.
#[derive(Clone, Copy, Debug)]
struct Counted {
    at_ns: u64,
    bytes: u64,
    records: u64,
    send_stalled_ns: [u64; CAUSES],
    emit_stalled_ns: [u64; CAUSES],
}

/// From what channels count since they began to what they did since they were asked before. Remembers as many as there were.
#[derive(Debug, Default)]
pub struct ChannelWindows {
    counted: BTreeMap<ChannelEnd, Counted>,
}

impl ChannelWindows {
    /// Takes what every channel end of the node tells, with when that was and what its shard's thread did. A channel that
    /// was not there before has no rates yet.
    pub fn take<'a>(
        &mut self,
        channels: impl Iterator<Item = (ShardMoment, &'a ChannelStats)>,
        pools: &Pools<'_>,
    ) -> Vec<ChannelSummary> {
        let before = std::mem::take(&mut self.counted);
        let mut summaries = Vec::new();
        for (moment, channel) in channels {
            let end: ChannelEnd =
                (channel.exchange.clone(), channel.side, channel.producer, channel.consumer);
            let counted = Counted::of(moment.at_ns, channel, pools);
            let mut rates = summary(channel, &counted, before.get(&end));
            (rates.shard_ran, rates.shard_waited) =
                (bounded(moment.thread.ran), bounded(moment.thread.waited));
            rates.socket = moment.socket;
            summaries.push(pools.add_usage(rates));
            self.counted.insert(end, counted);
        }
        summaries
    }
}

/// When a shard told of a channel, and what its thread and the socket of its link did in about the last second.
#[derive(Clone, Copy, Debug, Default)]
pub struct ShardMoment {
    /// Nanoseconds of the monotonic clock.
    pub at_ns: u64,
    /// What its thread did.
    pub thread: ProcessTimes,
    /// What the socket of the channel's link did, if anything is known of one.
    pub socket: Option<SocketSummary>,
}

/// One thread cannot run or wait for more than a second in a second.
fn bounded(ms: Option<u32>) -> Option<u16> {
    ms.map(|ms| u16::try_from(ms).unwrap_or(SECOND_MS).min(SECOND_MS))
}

/// The pools of a node at one moment, by what they belong to.
#[derive(Debug, Default)]
pub struct Pools<'a> {
    partitions: BTreeMap<(&'a Name, ProducerIndex), &'a PartitionStats>,
    gates: BTreeMap<(&'a Name, ConsumerIndex), &'a GateStats>,
}

impl<'a> Pools<'a> {
    /// These.
    pub fn new(
        partitions: impl Iterator<Item = &'a PartitionStats>,
        gates: impl Iterator<Item = &'a GateStats>,
    ) -> Self {
        Self {
            partitions: partitions.map(|pool| ((&pool.exchange, pool.producer), pool)).collect(),
            gates: gates.map(|pool| ((&pool.exchange, pool.consumer), pool)).collect(),
        }
    }

    fn add_usage(&self, mut summary: ChannelSummary) -> ChannelSummary {
        match summary.side {
            Side::Send => {
                let pool = self.partitions.get(&(&summary.exchange, summary.producer));
                summary.pool_usage = pool.map(|pool| thousandths(pool.pool_usage()));
            }
            Side::Receive => {
                let pool = self.gates.get(&(&summary.exchange, summary.consumer));
                summary.pool_usage = pool.map(|pool| thousandths(pool.pool_usage()));
                summary.exclusive_usage = pool.map(|pool| thousandths(pool.exclusive_usage()));
                summary.floating_usage = pool.map(|pool| thousandths(pool.floating_usage()));
            }
        }
        summary
    }
}

/// As the wire has it. What is out of its range ends there.
fn thousandths(usage: f64) -> u16 {
    let thousandths = (usage * 1000.0).round().clamp(0.0, f64::from(u16::MAX - 1));
    // Within the range of u16 by the line above.
    thousandths as u16
}

impl Counted {
    /// The emit stalls of a producer that belong to none of its subpartitions count at each of them.
    fn of(at_ns: u64, channel: &ChannelStats, pools: &Pools<'_>) -> Self {
        let mut emit = channel.emit.totals;
        if channel.side == Side::Send
            && let Some(pool) = pools.partitions.get(&(&channel.exchange, channel.producer))
        {
            emit.add(&pool.emit.totals);
        }
        Self {
            at_ns,
            bytes: channel.bytes_total,
            records: channel.records_total,
            send_stalled_ns: channel.stalls.totals.ns,
            emit_stalled_ns: emit.ns,
        }
    }
}

fn summary(channel: &ChannelStats, now: &Counted, before: Option<&Counted>) -> ChannelSummary {
    let elapsed_ns = before.map_or(0, |before| now.at_ns.saturating_sub(before.at_ns));
    let rate = |now: u64, before: u64| {
        let per_second = u128::from(now.saturating_sub(before)) * 1_000_000_000;
        u64::try_from(per_second / u128::from(elapsed_ns.max(1))).unwrap_or(u64::MAX)
    };
    let milliseconds = |now: [u64; CAUSES], before: [u64; CAUSES]| {
        let mut shares = [0; CAUSES];
        for ((share, now), before) in shares.iter_mut().zip(now).zip(before) {
            let ms = rate(now, before) / 1_000_000;
            *share = u16::try_from(ms).map_or(SECOND_MS, |ms| ms.min(SECOND_MS));
        }
        shares
    };
    let before = before.filter(|_| elapsed_ns > 0).unwrap_or(now);
    ChannelSummary {
        exchange: channel.exchange.clone(),
        producer: channel.producer,
        consumer: channel.consumer,
        side: channel.side,
        send_stalled: milliseconds(now.send_stalled_ns, before.send_stalled_ns),
        emit_stalled: milliseconds(now.emit_stalled_ns, before.emit_stalled_ns),
        bytes: rate(now.bytes, before.bytes),
        records: rate(now.records, before.records),
        queued_bytes: channel.queued_bytes,
        backlog: channel.backlog,
        credit: channel.credit,
        pool_usage: None,
        exclusive_usage: None,
        floating_usage: None,
        shard_ran: None,
        shard_waited: None,
        socket: None,
    }
}

/// Shares as the wire has them.
#[must_use]
pub fn to_wire(shares: Option<Shares>) -> TaskShares {
    let Shares { idle, busy, soft, hard } = shares.unwrap_or_default();
    let [idle, busy, soft, hard] =
        [idle, busy, soft, hard].map(|ms| u16::try_from(ms).unwrap_or(SECOND_MS).min(SECOND_MS));
    TaskShares { idle, busy, soft, hard }
}

/// Shares as the wire had them; none of a window that is not full. What does not add up to a second is scaled to it.
#[must_use]
pub fn from_wire(shares: TaskShares) -> Option<Shares> {
    Shares::of([shares.idle, shares.busy, shares.soft, shares.hard].map(u64::from))
}

#[cfg(test)]
mod tests {
    use weir_flow::exchange::Strategy;
    use weir_flow::stall::{Cause, Stalls};

    use super::*;

    fn task(number: usize, hard: u16) -> TaskTimes {
        let second = TaskShares { idle: SECOND_MS - hard, hard, ..TaskShares::default() };
        TaskTimes {
            task: format!("t{number}").parse().unwrap(),
            instance: number as u64,
            index: Some(0),
            windows: [second, TaskShares::default(), TaskShares::default()],
            total_ns: [0; 4],
            process: ProcessTimes::default(),
        }
    }

    fn stalls(cause: Cause, ns: u64) -> Stalls {
        let mut stalls = Stalls::default();
        stalls.totals.add_ns(cause, ns);
        stalls
    }

    fn at(at_ns: u64) -> ShardMoment {
        let thread = ProcessTimes { ran: Some(120), waited: Some(u32::MAX), busy: 0 };
        let socket = SocketSummary { is_approximate: true, ..SocketSummary::default() };
        ShardMoment { at_ns, thread, socket: Some(socket) }
    }

    fn stats_of(bytes_total: u64, send_stalled_ns: u64) -> ChannelStats {
        ChannelStats {
            side: Side::Send,
            exchange: "words".parse().unwrap(),
            producer: ProducerIndex(1),
            producers: 2,
            consumer: ConsumerIndex(2),
            consumers: 3,
            strategy: Strategy::Hash,
            peer: None,
            link: None,
            state: "open",
            credit: 3,
            backlog: 4,
            queued_bytes: 5,
            buffer_bytes: None,
            unacked_bytes: 0,
            acked_bytes: 0,
            consumed_bytes: 0,
            receiver_ready: 0,
            receiver_held: 0,
            bytes_total,
            buffers_total: 0,
            records_total: bytes_total / 10,
            send_stalled_ns,
            stalls: stalls(Cause::Network, send_stalled_ns),
            is_stall_approximate: false,
            emit: Stalls::default(),
            limit_frames_total: 0,
            backlog_frames_total: 0,
        }
    }

    fn channel(consumer: u32, stalled: u16) -> ChannelSummary {
        let mut windows = ChannelWindows::default();
        let mut summary = windows.take([(at(1), &stats_of(0, 0))].into_iter(), &Pools::default()).remove(0);
        summary.consumer = ConsumerIndex(consumer);
        summary.send_stalled[0] = stalled;
        summary
    }

    #[test]
    fn a_reading_comes_back_from_its_frames_however_large_it_is() {
        let counts =
            [(0, 0), (1, 0), (TASK_TIMES_MAX, CHANNEL_SUMMARIES_MAX), (300, 1), (1, 600), (4096, 1024)];
        for (tasks, channels) in counts {
            let tasks = (0..tasks).map(|number| task(number, (number % 1000) as u16)).collect();
            let channels =
                (0..channels as u32).map(|number| channel(number, (number % 1000) as u16)).collect();
            let probes = "OFF: switched off".to_owned();
            let reading = Reading { probes, ..Reading::new(77, tasks, channels) };
            let mut collector = Collector::default();
            let frames = reading.frames();
            let count = frames.len();
            let mut told = frames.into_iter().map(|frame| collector.take(frame)).collect::<Vec<_>>();
            assert_eq!(told.pop(), Some(Some(reading)));
            assert_eq!(told, vec![None; count - 1]);
        }
    }

    #[test]
    fn those_that_waited_least_are_left_out_and_counted() {
        let tasks =
            (0..READING_TASKS_MAX + 3).map(|number| task(number, if number < 3 { 0 } else { 9 })).collect();
        let channels = (0..READING_CHANNELS_MAX as u32 + 5)
            .map(|number| channel(number, number.min(900) as u16))
            .collect();
        let reading = Reading::new(1, tasks, channels);
        assert_eq!((reading.tasks_left_out, reading.channels_left_out), (3, 5));
        assert!(reading.tasks.iter().all(|task| task.windows[0].hard == 9));
        assert!(reading.channels.iter().all(|channel| channel.send_stalled[0] >= 5));
        assert_eq!(reading.frames()[0].tasks_left_out, 3);
    }

    #[test]
    fn a_peer_that_tells_more_than_it_may_is_cut() {
        let mut collector = Collector::default();
        let frame = |is_last| Stats {
            read_at_ns: 1,
            is_last,
            tasks: (0..TASK_TIMES_MAX).map(|number| task(number, 0)).collect(),
            channels: (0..CHANNEL_SUMMARIES_MAX as u32).map(|number| channel(number, 0)).collect(),
            ..Stats::default()
        };
        for _ in 0..99 {
            assert_eq!(collector.take(frame(false)), None);
        }
        let reading = collector.take(frame(true)).unwrap();
        assert_eq!((reading.tasks.len(), reading.channels.len()), (READING_TASKS_MAX, READING_CHANNELS_MAX));
        assert_eq!(reading.tasks_left_out as usize, 100 * TASK_TIMES_MAX - READING_TASKS_MAX);
        assert_eq!(reading.channels_left_out as usize, 100 * CHANNEL_SUMMARIES_MAX - READING_CHANNELS_MAX);
    }

    #[test]
    fn a_reading_that_was_not_ended_is_dropped_with_the_next() {
        let mut collector = Collector::default();
        let frame = |read_at_ns, is_last, number| Stats {
            read_at_ns,
            is_last,
            tasks: vec![task(number, 0)],
            ..Stats::default()
        };
        assert_eq!(collector.take(frame(1, false, 1)), None);
        let reading = collector.take(frame(2, true, 2)).unwrap();
        assert_eq!(reading.tasks, [task(2, 0)]);
        assert_eq!(collector.take(frame(3, true, 3)).unwrap().tasks, [task(3, 0)]);
    }

    #[test]
    fn what_channels_count_becomes_rates() {
        let mut windows = ChannelWindows::default();
        let first = windows.take([(at(5_000_000_000), &stats_of(1000, 7))].into_iter(), &Pools::default());
        assert_eq!((first[0].bytes, first[0].records, stalled(&first[0])), (0, 0, 0), "no rates yet");
        let second =
            windows.take([(at(7_000_000_000), &stats_of(5000, 800_000_007))].into_iter(), &Pools::default());
        assert_eq!((second[0].bytes, second[0].records, stalled(&second[0])), (2000, 200, 400));
        assert_eq!((second[0].queued_bytes, second[0].backlog, second[0].credit), (5, 4, 3));
        assert_eq!((second[0].shard_ran, second[0].shard_waited), (Some(120), Some(SECOND_MS)));
        assert!(second[0].socket.is_some_and(|socket| socket.is_approximate));
        // Counts that jump or go down, and a clock that stands still.
        let third =
            windows.take([(at(8_000_000_000), &stats_of(0, u64::MAX))].into_iter(), &Pools::default());
        assert_eq!((third[0].bytes, third[0].records, stalled(&third[0])), (0, 0, 1000));
        let fourth =
            windows.take([(at(8_000_000_000), &stats_of(u64::MAX, u64::MAX))].into_iter(), &Pools::default());
        assert_eq!((fourth[0].bytes, fourth[0].records, stalled(&fourth[0])), (0, 0, 0));
        // A channel that is gone is forgotten.
        assert_eq!(windows.take(std::iter::empty(), &Pools::default()), []);
        assert!(windows.counted.is_empty());
    }

    #[test]
    fn a_producer_s_pool_counts_at_each_of_its_channels() {
        let pool = |emit_ns| PartitionStats {
            exchange: "words".parse().unwrap(),
            producer: ProducerIndex(1),
            producers: 2,
            consumers: 3,
            strategy: Strategy::Hash,
            segments: 10,
            overdraft: 0,
            retention: 0,
            quota: 5,
            open: 2,
            queued: 10,
            in_kernel: 0,
            unacked: 0,
            held_max: 5,
            queued_bytes: 0,
            emit: stalls(Cause::Pool, emit_ns),
        };
        let gate = GateStats {
            exchange: "words".parse().unwrap(),
            consumer: ConsumerIndex(2),
            producers: 2,
            consumers: 3,
            strategy: Strategy::Hash,
            exclusive: 4,
            exclusive_used: 4,
            floating: 8,
            floating_used: 2,
            floating_free: 6,
            ready: 0,
            queued_bytes: 0,
            buffered_bytes: 0,
            consumed_bytes_total: 0,
            in_flight_bytes: 0,
            debloat: None,
        };
        let mut windows = ChannelWindows::default();
        let (mut send, receive) = (stats_of(0, 0), ChannelStats { side: Side::Receive, ..stats_of(0, 0) });
        for (now, own_ns, pool_ns) in [(1_000_000_000, 0, 0), (2_000_000_000, 100_000_000, 300_000_000)] {
            send.emit = stalls(Cause::Consumer, own_ns);
            let pool = pool(pool_ns);
            let pools = Pools::new([&pool].into_iter(), [&gate].into_iter());
            let summaries = windows.take([(at(now), &send), (at(now), &receive)].into_iter(), &pools);
            let [send, receive] = summaries.as_slice() else { panic!("two ends") };
            assert_eq!(
                (send.pool_usage, send.exclusive_usage, send.floating_usage),
                (Some(1200), None, None)
            );
            let usages = (receive.pool_usage, receive.exclusive_usage, receive.floating_usage);
            assert_eq!(usages, (Some(500), Some(1000), Some(250)));
            let of = |cause: Cause| send.emit_stalled[cause.index()];
            let needed = (own_ns / 1_000_000, pool_ns / 1_000_000);
            assert_eq!((u64::from(of(Cause::Consumer)), u64::from(of(Cause::Pool))), needed);
            assert_eq!(receive.emit_stalled, [0; CAUSES]);
        }
        assert_eq!([f64::NAN, -1.0, 1e9].map(thousandths), [0, 0, u16::MAX - 1]);
    }

    #[test]
    fn shares_come_back_from_the_wire_and_lies_are_scaled() {
        let shares = Shares { idle: 1, busy: 2, soft: 3, hard: 994 };
        assert_eq!(from_wire(to_wire(Some(shares))), Some(shares));
        assert_eq!(from_wire(to_wire(None)), None);
        let lie = TaskShares { idle: 1000, busy: 1000, soft: 0, hard: 0 };
        assert_eq!(from_wire(lie), Some(Shares { idle: 500, busy: 500, soft: 0, hard: 0 }));
    }
}
