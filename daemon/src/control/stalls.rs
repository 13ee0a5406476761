//! Who waits, for how long, and why: the answer to `GET /v1/stalls`.
//!
//! Two kinds of wait are told. A *send stall* belongs to a channel: something is queued at the producer's end and nothing
//! of it is sent. An *emit stall* belongs to a producer: its application waits for a segment, or for a place for an
//! event. Each nanosecond of a wait has one cause, so that seconds by cause add up to the seconds of all waits.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use weir_flow::ids::{LinkId, Time};
use weir_flow::stall::{Cause, PastStalls, STALL_BUCKETS, Stall, StallLengths, Stalls};
use weir_flow::stats::{ChannelStats, PartitionStats, Side};

use super::snapshot::{LinkRow, SCHEMA_VERSION};
use crate::shard::mailbox::ShardSnapshot;

/// Answer to `GET /v1/stalls`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StallsReport {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// Name of the node.
    pub node: String,
    /// Where the buckets of lengths end: bucket i holds waits shorter than entry i and no shorter than the one before.
    /// `null` for the last, which has no end.
    pub length_bucket_ends_seconds: Vec<Option<f64>>,
    /// All send stalls of this node, and all emit stalls.
    pub node_total: Waits,
    /// One row per channel whose producer's end is on this node, sorted by exchange, producer and consumer.
    pub channels: Vec<ChannelStalls>,
    /// One row per result partition on this node, sorted by exchange and producer.
    pub partitions: Vec<PartitionStalls>,
    /// One row per data link, sorted by peer and shards: the send stalls of the channels that it carries now.
    pub links: Vec<LinkStalls>,
    /// All waits of this node since its daemon began, those of channels that have gone included; `null` while a shard does
    /// not answer, for they would be less than they were.
    #[serde(default)]
    pub past: Option<PastWaits>,
    /// Shards that did not answer in time: what they have is missing above.
    #[serde(default)]
    pub shards_missing: Vec<u16>,
}

/// All waits of a node since its daemon began, by cause, each cause that there can be.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PastWaits {
    /// Send stalls.
    pub send: BTreeMap<String, PastWait>,
    /// Emit stalls.
    pub emit: BTreeMap<String, PastWait>,
}

/// All waits of one cause.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PastWait {
    /// How long this cause held, those that go on included.
    pub seconds_total: f64,
    /// Those that have ended and in which this cause held longest, by length: see
    /// [`StallsReport::length_bucket_ends_seconds`].
    pub length_buckets: Vec<u64>,
}

impl PastWaits {
    fn of(shards: &[ShardSnapshot]) -> Self {
        let (mut send, mut emit) = (PastStalls::NONE, PastStalls::NONE);
        for shard in shards {
            send.add(&shard.past_send_stalls);
            emit.add(&shard.past_emit_stalls);
            for channel in shard.channels.iter().filter(|channel| channel.side == Side::Send) {
                send.gone.add(&channel.stalls.totals);
                emit.gone.add(&channel.emit.totals);
            }
            shard.partitions.iter().for_each(|partition| emit.gone.add(&partition.emit.totals));
        }
        let by_cause = |past: &PastStalls| -> BTreeMap<String, PastWait> {
            let of = |cause: Cause| PastWait {
                seconds_total: seconds(past.gone.ns_of(cause)),
                length_buckets: past.lengths.of(cause).buckets.to_vec(),
            };
            Cause::ALL.into_iter().map(|cause| (cause.as_str().to_owned(), of(cause))).collect()
        };
        let (mut send, emit) = (by_cause(&send), by_cause(&emit));
        // Nothing that is queued waits for a segment of the pool.
        send.remove(Cause::Pool.as_str());
        Self { send, emit }
    }
}

/// Waits of both kinds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Waits {
    /// Send stalls.
    pub send: WaitReport,
    /// Emit stalls.
    pub emit: WaitReport,
}

/// The waits of one channel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChannelStalls {
    /// Name of the exchange.
    pub exchange: String,
    /// Index of the producer.
    pub producer: u32,
    /// How many producers the exchange has.
    pub producers: u32,
    /// Index of the consumer.
    pub consumer: u32,
    /// How many consumers the exchange has.
    pub consumers: u32,
    /// Node of the consumer; empty while none has connected.
    pub peer: String,
    /// The shard of the producer.
    pub shard: u16,
    /// State of the producer's end, in words.
    pub state: String,
    /// For how much of the waits for credit it is not known how long the credit lay unread here: that counts for the
    /// consumer then.
    pub approximate: bool,
    /// Its waits. The emit stalls are those at its quota and its event window.
    #[serde(flatten)]
    pub waits: Waits,
}

/// The emit stalls of one producer that belong to none of its channels alone, and its pool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PartitionStalls {
    /// Name of the exchange.
    pub exchange: String,
    /// Index of the producer.
    pub producer: u32,
    /// How many producers the exchange has.
    pub producers: u32,
    /// The shard of the producer.
    pub shard: u16,
    /// For a segment of the pool, for any channel of several, for the shard; with `broadcast` all.
    pub emit: WaitReport,
    /// What is in use of the pool, as a ratio; above 1 with overdraft.
    pub pool_usage: f64,
    /// What the fullest subpartition uses of its quota, as a ratio; above 1 with overdraft.
    pub quota_usage: f64,
}

/// The send stalls of what a link carries.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinkStalls {
    /// The link.
    #[serde(flatten)]
    pub link: LinkRow,
    /// How many channels it carries now, whose producer is here.
    pub channels: usize,
    /// Their send stalls, also those from before they came to this link.
    pub send: WaitReport,
}

/// Waits of one kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WaitReport {
    /// How long, the wait that goes on included.
    pub seconds_total: f64,
    /// How many have ended.
    pub count_total: u64,
    /// By cause; a cause of which there was nothing is left out.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub by_cause: BTreeMap<String, CauseTotal>,
    /// Those that have ended, by length: see [`StallsReport::length_bucket_ends_seconds`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub length_buckets: Vec<u64>,
    /// The one that ended last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<WaitEnded>,
    /// The longest that has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub longest: Option<WaitEnded>,
    /// The one that goes on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open: Option<WaitOpen>,
}

/// Waits of one cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CauseTotal {
    /// How long, the wait that goes on included.
    pub seconds_total: f64,
    /// How many have ended in which this cause held longest.
    pub count_total: u64,
}

/// A wait that has ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WaitEnded {
    /// How long it was.
    pub seconds: f64,
    /// The cause that held longest in it.
    pub cause: String,
    /// When it ended, in seconds since 1970 by the clock of the node.
    pub ended_unix_seconds: f64,
}

/// A wait that goes on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WaitOpen {
    /// How long it has been.
    pub seconds: f64,
    /// The cause that holds now.
    pub cause: String,
}

/// Two clocks read at one moment: that of the shards, and the calendar's.
#[derive(Clone, Copy, Debug)]
pub struct Clocks {
    /// As the shards count.
    pub at: Time,
    /// Seconds since 1970.
    pub unix_seconds: f64,
}

impl Clocks {
    /// The calendar read now, for what a shard told at `at` or a moment ago.
    #[must_use]
    pub fn now(at: Time) -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { at, unix_seconds: since.as_secs_f64() }
    }

    fn unix_seconds_of(&self, time: Time) -> f64 {
        self.unix_seconds - seconds(self.at.since_ns(time))
    }
}

/// Nanoseconds of a century still have 53 bits' worth of microseconds.
fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

impl WaitReport {
    /// What the core tells, in the units of the control socket.
    #[must_use]
    pub fn new(stalls: &Stalls, clocks: &Clocks) -> Self {
        let totals = &stalls.totals;
        let of = |cause: Cause| CauseTotal {
            seconds_total: seconds(totals.ns_of(cause)),
            count_total: totals.count_of(cause),
        };
        let by_cause = Cause::ALL
            .into_iter()
            .filter(|cause| totals.ns_of(*cause) > 0 || totals.count_of(*cause) > 0)
            .map(|cause| (cause.as_str().to_owned(), of(cause)))
            .collect();
        let ended = |stall: Stall| WaitEnded {
            seconds: seconds(stall.ns),
            cause: stall.cause.as_str().to_owned(),
            ended_unix_seconds: clocks.unix_seconds_of(stall.at),
        };
        let has_ended = totals.total_count() > 0;
        Self {
            seconds_total: seconds(totals.total_ns()),
            count_total: totals.total_count(),
            by_cause,
            length_buckets: if has_ended { stalls.lengths.buckets.to_vec() } else { Vec::new() },
            last: stalls.last.map(ended),
            longest: stalls.longest.map(ended),
            open: stalls.open.map(|(cause, since)| WaitOpen {
                seconds: seconds(clocks.at.since_ns(since)),
                cause: cause.as_str().to_owned(),
            }),
        }
    }

    /// The cause with the most time, if any.
    #[must_use]
    pub fn most(&self) -> Option<&str> {
        let longer = |a: &CauseTotal, b: &CauseTotal| a.seconds_total.total_cmp(&b.seconds_total);
        self.by_cause.iter().max_by(|(_, a), (_, b)| longer(a, b)).map(|(name, _)| name.as_str())
    }
}

/// What a node has to report of its stalls.
pub(crate) struct StallsSource<'a> {
    pub(crate) node: &'a str,
    pub(crate) shards: &'a [ShardSnapshot],
    /// As `GET /v1/status` shows them, each with the number that its shard has for it.
    pub(crate) links: Vec<(LinkId, LinkRow)>,
    pub(crate) shards_missing: Vec<u16>,
}

impl StallsSource<'_> {
    /// The answer.
    pub(crate) fn report(self) -> StallsReport {
        let (mut send, mut emit) = (Stalls::default(), Stalls::default());
        let (mut channels, mut partitions) = (Vec::new(), Vec::new());
        let at = self.shards.iter().map(|shard| shard.at).max().unwrap_or(Time(0));
        for shard in self.shards {
            let clocks = Clocks::now(shard.at);
            for channel in shard.channels.iter().filter(|channel| channel.side == Side::Send) {
                send.add(&channel.stalls);
                emit.add(&channel.emit);
                channels.push(channel_stalls(shard.shard, channel, &clocks));
            }
            for partition in &shard.partitions {
                emit.add(&partition.emit);
                partitions.push(partition_stalls(shard.shard, partition, &clocks));
            }
        }
        channels.sort_by(|a, b| {
            (&a.exchange, a.producer, a.consumer).cmp(&(&b.exchange, b.producer, b.consumer))
        });
        partitions.sort_by(|a, b| (&a.exchange, a.producer).cmp(&(&b.exchange, b.producer)));
        let clocks = Clocks::now(at);
        let node_total =
            Waits { send: WaitReport::new(&send, &clocks), emit: WaitReport::new(&emit, &clocks) };
        StallsReport {
            schema_version: SCHEMA_VERSION,
            node: self.node.to_owned(),
            length_bucket_ends_seconds: (0..STALL_BUCKETS)
                .map(|bucket| StallLengths::end_ns(bucket).map(seconds))
                .collect(),
            node_total,
            channels,
            partitions,
            links: self.links.into_iter().map(|link| link_stalls(link, self.shards)).collect(),
            past: self.shards_missing.is_empty().then(|| PastWaits::of(self.shards)),
            shards_missing: self.shards_missing,
        }
    }
}

fn channel_stalls(shard: u16, channel: &ChannelStats, clocks: &Clocks) -> ChannelStalls {
    ChannelStalls {
        exchange: channel.exchange.to_string(),
        producer: channel.producer.0,
        producers: channel.producers,
        consumer: channel.consumer.0,
        consumers: channel.consumers,
        peer: channel.peer.as_ref().map(ToString::to_string).unwrap_or_default(),
        shard,
        state: channel.state.to_owned(),
        approximate: channel.is_stall_approximate,
        waits: Waits {
            send: WaitReport::new(&channel.stalls, clocks),
            emit: WaitReport::new(&channel.emit, clocks),
        },
    }
}

fn partition_stalls(shard: u16, partition: &PartitionStats, clocks: &Clocks) -> PartitionStalls {
    PartitionStalls {
        exchange: partition.exchange.to_string(),
        producer: partition.producer.0,
        producers: partition.producers,
        shard,
        emit: WaitReport::new(&partition.emit, clocks),
        pool_usage: partition.pool_usage(),
        quota_usage: partition.quota_usage(),
    }
}

fn link_stalls((id, link): (LinkId, LinkRow), shards: &[ShardSnapshot]) -> LinkStalls {
    let (mut send, mut channels, mut at) = (Stalls::default(), 0, Time(0));
    for shard in shards.iter().filter(|shard| shard.shard == link.shard) {
        at = shard.at;
        let ours = |channel: &&ChannelStats| channel.side == Side::Send && channel.link == Some(id);
        for channel in shard.channels.iter().filter(ours) {
            send.add(&channel.stalls);
            channels += 1;
        }
    }
    LinkStalls { link, channels, send: WaitReport::new(&send, &Clocks::now(at)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stalls() -> Stalls {
        let mut stalls = Stalls::default();
        stalls.totals.add_ns(Cause::Consumer, 1_500_000_000);
        stalls.totals.add_ns(Cause::Network, 500_000_000);
        stalls.totals.add_count(Cause::Consumer, 2);
        stalls.lengths.record(1_000_000_000, 2);
        let stall = Stall { ns: 1_000_000_000, cause: Cause::Consumer, at: Time(7_000_000_000) };
        (stalls.last, stalls.longest) = (Some(stall), Some(stall));
        stalls.open = Some((Cause::Network, Time(9_500_000_000)));
        stalls
    }

    #[test]
    fn times_are_told_by_the_calendar_and_causes_add_up() {
        let clocks = Clocks { at: Time(10_000_000_000), unix_seconds: 1_000_000.0 };
        let report = WaitReport::new(&stalls(), &clocks);
        assert_eq!((report.seconds_total, report.count_total), (2.0, 2));
        assert_eq!(report.by_cause.values().map(|cause| cause.seconds_total).sum::<f64>(), 2.0);
        assert_eq!(report.by_cause.keys().collect::<Vec<_>>(), ["consumer", "network"]);
        let last = report.last.as_ref().unwrap();
        assert_eq!((last.seconds, last.ended_unix_seconds), (1.0, 999_997.0));
        assert_eq!(report.open, Some(WaitOpen { seconds: 0.5, cause: "network".to_owned() }));
        assert_eq!(report.length_buckets.iter().sum::<u64>(), 2);
        assert_eq!(report.most(), Some("consumer"));
    }

    /// A shard of which nothing is known but what it waited, with one of each kind of account.
    fn shard(number: u16) -> ShardSnapshot {
        let mut past = PastStalls::NONE;
        past.gone.add_ns(Cause::Socket, 250_000_000);
        past.gone.add_count(Cause::Socket, 1);
        past.lengths.record(Cause::Socket, 250_000_000, 1);
        past.lengths.record(Cause::Consumer, 1_000_000_000, 2);
        let channel = |side| ChannelStats {
            side,
            exchange: "words".parse().unwrap(),
            producer: weir_flow::ids::ProducerIndex(0),
            producers: 1,
            consumer: weir_flow::ids::ConsumerIndex(0),
            consumers: 1,
            strategy: weir_flow::exchange::Strategy::Forward,
            peer: None,
            link: None,
            state: "open",
            credit: 0,
            backlog: 0,
            queued_bytes: 0,
            buffer_bytes: None,
            unacked_bytes: 0,
            acked_bytes: 0,
            consumed_bytes: 0,
            receiver_ready: 0,
            receiver_held: 0,
            bytes_total: 0,
            buffers_total: 0,
            records_total: 0,
            send_stalled_ns: 0,
            stalls: stalls(),
            is_stall_approximate: false,
            emit: stalls(),
            limit_frames_total: 0,
            backlog_frames_total: 0,
        };
        ShardSnapshot {
            shard: number,
            at: Time(10_000_000_000),
            channels: vec![channel(Side::Send), channel(Side::Receive)],
            partitions: Vec::new(),
            gates: Vec::new(),
            past_send_stalls: past,
            past_emit_stalls: past,
            links: Vec::new(),
            sockets: BTreeMap::new(),
            zero_copy: Default::default(),
            counts: crate::shard::mailbox::ShardCounts::default(),
            bytes_total: 0,
            cpu: 0,
            turns: crate::shard::stall::TurnStats::default(),
            ring_level: String::new(),
        }
    }

    #[test]
    fn all_waits_of_a_node_are_those_of_its_channels_and_of_those_that_have_gone() {
        let shards = [shard(0), shard(1)];
        let report = |shards_missing| {
            StallsSource { node: "a", shards: &shards, links: Vec::new(), shards_missing }.report()
        };
        let told = report(Vec::new());
        let past = told.past.unwrap();
        for waits in [&past.send, &past.emit] {
            let seconds = |cause: &str| waits[cause].seconds_total;
            assert_eq!([seconds("consumer"), seconds("network"), seconds("socket")], [3.0, 1.0, 0.5]);
            assert_eq!(waits["consumer"].length_buckets.iter().sum::<u64>(), 4);
            assert_eq!(waits["socket"].length_buckets.iter().sum::<u64>(), 2);
            // What the channels tell themselves is in it, and what has gone beside.
            let of_channels = |cause: &str| -> f64 {
                let rows = told.channels.iter().filter_map(|row| row.waits.send.by_cause.get(cause));
                rows.map(|total| total.seconds_total).sum()
            };
            assert_eq!(seconds("consumer"), of_channels("consumer"));
            assert_eq!(seconds("socket"), of_channels("socket") + 0.5);
        }
        assert!(!past.send.contains_key("pool") && past.emit.contains_key("pool"));
        assert_eq!(past.send.len(), weir_flow::stall::CAUSES - 1, "also those that never were");
        assert_eq!(report(vec![1]).past, None, "they would be less than they were");
    }

    #[test]
    fn what_never_waited_says_so_in_few_words() {
        let clocks = Clocks { at: Time(0), unix_seconds: 0.0 };
        let report = WaitReport::new(&Stalls::default(), &clocks);
        assert_eq!(serde_json::to_string(&report).unwrap(), r#"{"seconds_total":0.0,"count_total":0}"#);
        assert_eq!(
            serde_json::from_str::<WaitReport>(r#"{"seconds_total":0.0,"count_total":0}"#).unwrap(),
            report
        );
        assert_eq!(report.most(), None);
    }
}
