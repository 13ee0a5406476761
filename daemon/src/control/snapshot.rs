//! What the daemon says about itself, as both ends of the control socket see it.
//!
//! `schema_version` is the first field of every answer. It grows when a field changes its meaning or goes away; a new
//! field is no new version. Units are in the names. There is no NaN: what is not known is `null` or left out.

use std::future::Future;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::bottleneck::BottleneckReport;
use super::configuration::ConfigurationReport;
use super::gates::GateRow;
use super::plan::PlanReport;
use super::shards::ShardsReport;
use super::sockets::SocketRow;
use super::stalls::{StallsReport, WaitReport};
use super::tasks::TasksReport;
use super::zero_copy::{RegisteredRow, ZeroCopyRow};
use crate::exit::Problem;
use crate::link::zero_copy::ZeroCopySetting;

/// Version of the answers' form.
pub const SCHEMA_VERSION: u32 = 1;

/// How long a shard may take to answer. A healthy one needs a few milliseconds.
pub const SHARD_ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// The beginning of a sentence on what these shards have, none of which answered: it ends in "its" or "their". `None`
/// if there are none.
pub(crate) fn unanswered(missing: &[u16]) -> Option<String> {
    let numbers: Vec<String> = missing.iter().map(ToString::to_string).collect();
    let (shards, whose) = match missing {
        [] => return None,
        [_] => ("shard", "its"),
        _ => ("shards", "their"),
    };
    Some(format!("{shards} {} did not answer within {SHARD_ANSWER_TIMEOUT:?}: {whose}", numbers.join(", ")))
}

/// What the control socket asks. Each question is answered within [`super::server::ANSWER_TIMEOUT`], or the asker is
/// told that the daemon is busy.
pub trait SnapshotSource: Clone + Send + Sync + 'static {
    /// Returns when no question will be answered any more. Who connects then is left to the next daemon, if that gets the
    /// same socket.
    fn ended(&self) -> impl Future<Output = ()> + Send {
        std::future::pending()
    }

    /// State of every subsystem.
    fn status(&self) -> impl Future<Output = Result<StatusReport, Problem>> + Send;

    /// What is in effect of the configuration, and what is not.
    fn configuration(&self) -> impl Future<Output = Result<ConfigurationReport, Problem>> + Send;

    /// Where every shard is, and what it does.
    fn shards(&self) -> impl Future<Output = Result<ShardsReport, Problem>> + Send;

    /// State of every channel of this node, both ends.
    fn channels(&self) -> impl Future<Output = Result<ChannelsReport, Problem>> + Send;

    /// Who waits at this node, for how long, and why.
    fn stalls(&self) -> impl Future<Output = Result<StallsReport, Problem>> + Send;

    /// The three above, of one moment.
    fn own(
        &self,
    ) -> impl Future<Output = Result<(StatusReport, ChannelsReport, StallsReport), Problem>> + Send {
        async { Ok((self.status().await?, self.channels().await?, self.stalls().await?)) }
    }

    /// The job graph of what is attached to this node and those that it is linked with.
    fn plan(&self) -> impl Future<Output = Result<PlanReport, Problem>> + Send;

    /// What every task of this node and those that it is linked with does.
    fn tasks(&self) -> impl Future<Output = Result<TasksReport, Problem>> + Send;

    /// What holds the pipelines of these nodes up.
    fn bottleneck(&self) -> impl Future<Output = Result<BottleneckReport, Problem>> + Send;
}

/// Answer to `GET /v1/status`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StatusReport {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// Name of the node.
    pub node: String,
    /// Version of the daemon.
    pub version: String,
    /// Process of the daemon.
    pub pid: u32,
    /// Time since it started, in whole seconds.
    pub uptime_seconds: u64,
    /// Address on which it listens for links.
    pub listen: String,
    /// Memory of all regions.
    pub memory: MemoryReport,
    /// One entry per subsystem, always all of them, in a fixed order.
    pub subsystems: Vec<Subsystem>,
    /// One entry per data link, sorted by peer and shards.
    #[serde(default)]
    pub links: Vec<LinkRow>,
    /// One entry per shard that answered, by number.
    #[serde(default)]
    pub shards: Vec<ShardRow>,
    /// Shards that did not answer within [`SHARD_ANSWER_TIMEOUT`]: their links are missing above.
    #[serde(default)]
    pub shards_missing: Vec<u16>,
    /// Capabilities that the daemon had when it started, and gave up.
    #[serde(default)]
    pub capabilities_given_up: Vec<String>,
    /// What became of each hook of the kernel probes when the daemon started; none without probes, as the line `probes` says.
    #[serde(default)]
    pub hooks: Vec<HookRow>,
    /// What holds for zero-copy sends of all links, as found when the daemon started; `null` if no shard answers.
    #[serde(default)]
    pub zero_copy: Option<ZeroCopySetting>,
}

/// One hook of the kernel probes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HookRow {
    /// The event that it stands for.
    pub event: String,
    /// Whether a program is attached.
    pub is_attached: bool,
    /// Where it stands.
    pub point: Option<String>,
    /// Instructions that the verifier walked; `null` where the kernel does not tell.
    pub verified_instructions: Option<u32>,
    /// What is missing, why, and what is lost.
    pub missing: Option<String>,
}

/// One data link, over all its connections.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinkRow {
    /// Name of the node at the other end.
    pub peer: String,
    /// The shard of this node.
    pub shard: u16,
    /// The shard of the peer.
    pub peer_shard: u16,
    /// State of this end, in words: `suspended` while it waits for another connection.
    pub state: String,
    /// Bytes that its sockets took.
    pub sent_bytes_total: u64,
    /// Bytes that were read from its sockets.
    pub received_bytes_total: u64,
    /// Writes that a socket took only in part.
    pub short_writes_total: u64,
    /// Connections that took the place of a lost one.
    pub resumes_total: u64,
    /// Payload that was to be sent again over those.
    pub resent_bytes_total: u64,
    /// Frames of channels that had gone.
    pub skipped_frames_total: u64,
    /// Shortest time from a Ping to its Pong; `null` before the first.
    pub round_trip_min_seconds: Option<f64>,
    /// What its sockets waited for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket: Option<Box<SocketRow>>,
    /// Whether it sends without a copy.
    #[serde(default)]
    pub zero_copy: ZeroCopyRow,
}

/// One shard's loop, since the daemon started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ShardRow {
    /// The shard.
    pub shard: u16,
    /// Turns of its loop.
    pub turns_total: u64,
    /// Turns longer than 3 ms: the thread was kept from its CPU.
    pub long_turns_total: u64,
    /// The longest turn.
    pub longest_turn_seconds: f64,
    /// How often it slept.
    pub parks_total: u64,
    /// The regions that it has registered.
    #[serde(default)]
    pub registered: RegisteredRow,
    /// The CPU that it ran on when it was asked.
    #[serde(default)]
    pub cpu: Option<usize>,
    /// Whether it runs wherever the kernel puts it; `weir shards` has the reason.
    #[serde(default)]
    pub is_roaming: bool,
    /// Bytes of its regions that are on another NUMA node than the one that they were to be made on.
    #[serde(default)]
    pub memory_elsewhere_bytes: u64,
}

/// Memory of all regions, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryReport {
    /// In use now, with what lies behind regions.
    pub used_bytes: u64,
    /// Of that, what lies behind regions that are registered for zero-copy sends: pages for headers of frames. The bound does not
    /// refuse it; each shard has at most 256 times 32 KiB of it.
    #[serde(default)]
    pub behind_regions_bytes: u64,
    /// Most that was in use at a time.
    pub high_water_bytes: u64,
    /// The bound, `memory.total`.
    pub total_bytes: u64,
}

/// How a subsystem is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Health {
    /// It does all it can do.
    Ok,
    /// It works, with less than it could have.
    Degraded,
    /// It is not in use.
    Off,
}

impl Health {
    /// As tables show it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "OK",
            Self::Degraded => "DEGRADED",
            Self::Off => "OFF",
        }
    }
}

/// One subsystem.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subsystem {
    /// Its name: one word.
    pub name: String,
    /// How it is.
    pub state: Health,
    /// What it does, or what is lost, in a few words.
    pub detail: String,
    /// Why it is degraded or off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The key or command that would make it whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

impl Subsystem {
    /// One that does all it can do.
    #[must_use]
    pub fn ok(name: &str, detail: impl Into<String>) -> Self {
        Self { name: name.to_owned(), state: Health::Ok, detail: detail.into(), reason: None, fix: None }
    }

    /// One that works with less than it could have.
    #[must_use]
    pub fn degraded(
        name: &str,
        detail: impl Into<String>,
        reason: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self {
            name: name.to_owned(),
            state: Health::Degraded,
            detail: detail.into(),
            reason: Some(reason.into()),
            fix: Some(fix.into()),
        }
    }

    /// One that is not in use.
    #[must_use]
    pub fn off(name: &str, reason: impl Into<String>) -> Self {
        Self {
            name: name.to_owned(),
            state: Health::Off,
            detail: String::new(),
            reason: Some(reason.into()),
            fix: None,
        }
    }
}

impl StatusReport {
    /// Whether any subsystem is degraded.
    #[must_use]
    pub fn is_degraded(&self) -> bool {
        self.subsystems.iter().any(|subsystem| subsystem.state == Health::Degraded)
    }
}

/// Answer to `GET /v1/channels`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChannelsReport {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// Name of the node.
    pub node: String,
    /// One row per channel end on this node, sorted by exchange, side, producer and consumer.
    pub channels: Vec<ChannelRow>,
    /// One row per input gate on this node, sorted by exchange and consumer.
    #[serde(default)]
    pub gates: Vec<GateRow>,
    /// Shards that did not answer within [`SHARD_ANSWER_TIMEOUT`]: their channels are missing above.
    #[serde(default)]
    pub shards_missing: Vec<u16>,
}

/// Which end of a channel a row is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ChannelSide {
    /// The producer's.
    Send,
    /// The consumer's.
    Receive,
}

/// One end of one channel. What only the other end knows is 0.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChannelRow {
    /// Name of the exchange.
    pub exchange: String,
    /// Which end this is.
    pub side: ChannelSide,
    /// Index of the producer.
    pub producer: u32,
    /// How many producers the exchange has.
    pub producers: u32,
    /// Index of the consumer.
    pub consumer: u32,
    /// How many consumers the exchange has.
    pub consumers: u32,
    /// Node of the other end; empty while nobody has connected.
    pub peer: String,
    /// Ship strategy.
    pub strategy: String,
    /// The shard of this end.
    pub shard: u16,
    /// State of this end, in words.
    pub state: String,
    /// Receive segments that the sender may still open (sending end), or that are granted and not opened (receiving
    /// end). The two differ by what is on the wire.
    pub credit: u32,
    /// Receive segments that the sender's queue would still open: its own count, or the last one that it told.
    pub backlog: u32,
    /// Data that waits: to be sent, or to be handed to the application.
    pub queued_bytes: u64,
    /// Data that was sent and is not acknowledged.
    pub unacked_bytes: u64,
    /// Data that was handed to the daemon for this channel and that the consumer's application has not given back: wherever it
    /// is (sending end), or what of it has arrived (receiving end).
    #[serde(default)]
    pub in_flight_bytes: u64,
    /// How long the consumer's application takes to consume what is in flight to its gate, all channels together; `null`
    /// at the sending end, for a gate that is not debloated, and as long as nothing is measured.
    #[serde(default)]
    pub in_flight_seconds: Option<f64>,
    /// Bytes that the consumer wants on their way at most; `null` if it does not say.
    #[serde(default)]
    pub buffer_bytes: Option<u32>,
    /// Segments that the receiver granted and that are not opened.
    pub receiver_ready: u32,
    /// Segments that are open, filled or held by the application.
    pub receiver_held: u32,
    /// Data that crossed this end so far.
    pub bytes_total: u64,
    /// Data frames that crossed this end so far.
    pub buffers_total: u64,
    /// Records that crossed this end so far, as the producer counts them.
    pub records_total: u64,
    /// Time in which data waited for credit, an open interval included.
    pub send_stalled_seconds_total: f64,
    /// All waits to be sent, by cause: time without credit is a part of them, divided among those for whom it was
    /// missing. Only at the sending end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub send_stalls: Option<Box<WaitReport>>,
    /// Waits of the producer's application at the quota and the event window of this channel. Only at the sending end; with
    /// `broadcast` none, since they belong to no single channel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub emit_stalls: Option<Box<WaitReport>>,
}

/// Answer to whatever failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ErrorReport {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// Why.
    pub error: Problem,
}

impl ErrorReport {
    /// A report of this problem.
    #[must_use]
    pub fn new(error: Problem) -> Self {
        Self { schema_version: SCHEMA_VERSION, error }
    }
}
