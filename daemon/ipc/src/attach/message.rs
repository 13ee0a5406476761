//! What client and daemon say to each other on the attach socket.
//!
//! The conversation: `Hello`, then any number of the others. A client's death is the end of its socket; so is the
//! daemon's. Strings and numbers are claims until the daemon has checked them.

use serde::{Deserialize, Serialize};

/// Code of the refusal of a request that its client has taken back.
pub const WITHDRAWN: &str = "withdrawn";

/// Code of the refusal of a [`RequestBody::Withdraw`] that comes too late: the daemon is making what was asked for.
pub const GRANTED: &str = "granted";

/// A client's request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// Chosen by the client, not 0; the answer carries it back.
    pub id: u64,
    /// What is asked.
    pub body: RequestBody,
}

/// What a client can ask.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum RequestBody {
    /// Opens the conversation. Answer: [`ResponseBody::Welcome`].
    Hello {
        /// [`super::ATTACH_VERSION`] of the client.
        version: u32,
        /// What the process calls itself in tables and logs.
        process_name: String,
    },
    /// Makes a task. Answer: [`ResponseBody::Task`].
    CreateTask {
        /// Its name.
        name: String,
    },
    /// Ends a task, whose cell may then become that of another. Its partitions and gates must have ended before.
    /// Answer: [`ResponseBody::Closed`].
    CloseTask {
        /// Its cell.
        task: u32,
    },
    /// Makes a result partition. Answer: [`ResponseBody::Partition`].
    CreatePartition(CreatePartition),
    /// Makes an input gate. Answer: [`ResponseBody::Gate`], and if the client does not say how many producers there
    /// are, only once one of them is known.
    CreateGate(CreateGate),
    /// Ends a partition: all its segments become the daemon's. Answer: [`ResponseBody::Closed`].
    ClosePartition {
        /// Its ring.
        ring: u32,
    },
    /// Ends a gate: all its slices count as given back. Answer: [`ResponseBody::Closed`].
    CloseGate {
        /// Its ring.
        ring: u32,
    },
    /// Takes an earlier request back. One that still waits to be granted is answered with [`ResponseBody::Refused`],
    /// [`WITHDRAWN`]. Answer to this: [`ResponseBody::Closed`], whatever became of that request, and behind its answer;
    /// but [`ResponseBody::Refused`], [`GRANTED`], if it is granted, is not to end, and its answer is still to come.
    Withdraw {
        /// The id of that request.
        request: u64,
        /// Whether what it has made is to end, too: the client does not wait for its answer any more.
        ends_made: bool,
    },
}

/// A result partition to be made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreatePartition {
    /// Its task: the cell of [`ResponseBody::Task`].
    pub task: u32,
    /// Name of the exchange.
    pub exchange: String,
    /// Which of its producers, from 0.
    pub producer: u32,
    /// How many producers there are.
    pub producers: u32,
    /// How many consumers there are.
    pub consumers: u32,
    /// Name of the ship strategy.
    pub strategy: String,
    /// Whether records carry a checksum.
    pub checksum: bool,
    /// Whether the partition goes on without a consumer that dies, instead of failing; `rebalance` only.
    #[serde(default)]
    pub continue_without: bool,
    /// Sizes that differ from the daemon's configuration.
    #[serde(default)]
    pub options: PartitionOptions,
}

/// An input gate to be made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreateGate {
    /// Its task: the cell of [`ResponseBody::Task`].
    pub task: u32,
    /// Name of the exchange.
    pub exchange: String,
    /// Which of its consumers, from 0.
    pub consumer: u32,
    /// How many consumers there are.
    pub consumers: u32,
    /// How many producers there are; not given, it is what they say.
    #[serde(default)]
    pub producers: Option<u32>,
    /// Name of the ship strategy; not given, it is what the producers say.
    #[serde(default)]
    pub strategy: Option<String>,
    /// Whether records carry a checksum; not given, it is what the producers say.
    #[serde(default)]
    pub checksum: Option<bool>,
    /// Sizes that differ from the daemon's configuration.
    #[serde(default)]
    pub options: GateOptions,
}

/// Sizes of a partition's pool; what is not given is the daemon's configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PartitionOptions {
    /// Exclusive segments of each subpartition.
    pub exclusive: Option<u32>,
    /// Floating segments.
    pub floating: Option<u32>,
    /// Most segments that one subpartition may hold open or queued.
    pub quota: Option<u32>,
    /// Segments beyond the pool to finish a record already begun.
    pub overdraft: Option<u32>,
    /// Segments for what is sent and not acked.
    pub retention: Option<u32>,
}

/// Sizes of a gate's pool, and what is wanted in flight; what is not given is the daemon's configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GateOptions {
    /// Exclusive segments of each channel.
    pub exclusive: Option<u32>,
    /// Floating segments.
    pub floating: Option<u32>,
    /// Whether what is in flight to the gate is kept to a time.
    pub debloat: Option<DebloatOptions>,
}

/// How a gate keeps what is in flight to it to a time; what is not given is the daemon's configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DebloatOptions {
    /// Whether it does. If not, the rest says nothing.
    pub enabled: bool,
    /// How old data may be when it is consumed, in nanoseconds.
    pub target_ns: Option<u64>,
    /// Least that is wanted in flight for the gate, in bytes.
    pub bytes_min: Option<u64>,
    /// Most that is wanted in flight for it, in bytes.
    pub bytes_max: Option<u64>,
}

/// The daemon's answer, or, with id 0, news.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Response {
    /// The request's id; 0 for what was not asked.
    pub id: u64,
    /// What is said.
    pub body: ResponseBody,
}

/// What the daemon can answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ResponseBody {
    /// Descriptors: session page, doorbell, wake-up pipe, task cells.
    Welcome {
        /// [`super::ATTACH_VERSION`] of the daemon.
        version: u32,
        /// The daemon's node.
        node: String,
        /// Bytes of a segment.
        segment_bytes: u32,
        /// Longest record, in bytes.
        record_bytes_max: u32,
        /// Longest event, in bytes.
        event_bytes_max: u32,
        /// Events of one channel that may be on their way, the end of data among them.
        event_window: u32,
        /// Bytes that the channels of one gate may hold in records that span segments.
        spanning_bytes_max: u64,
    },
    /// A task was made.
    Task {
        /// The number of its cell, by which it is named from now on.
        cell: u32,
    },
    /// A partition was made. Descriptors: rings, region.
    Partition {
        /// Its ring, by which it is named from now on.
        ring: u32,
        /// Segments of its region.
        segments: u32,
        /// Its subpartitions, as the client addresses them: with `broadcast` one, which all consumers read.
        subpartitions: u32,
        /// Most segments that one subpartition may hold open or queued.
        quota: u32,
        /// Segments beyond the pool to finish a record already begun.
        overdraft: u32,
        /// Bytes of a segment.
        segment_bytes: u32,
    },
    /// A gate was made. Descriptors: rings, region, and the socket on which regions of producers come ([`LentRegion`]).
    Gate {
        /// Its ring, by which it is named from now on.
        ring: u32,
        /// Segments of its region.
        segments: u32,
        /// Its channels.
        channels: u32,
        /// How many producers there are.
        producers: u32,
        /// How many consumers there are.
        consumers: u32,
        /// Name of the ship strategy.
        strategy: String,
        /// Bytes of a segment.
        segment_bytes: u32,
        /// Whether records carry a checksum.
        checksum: bool,
    },
    /// A partition or gate was ended.
    Closed,
    /// The request was refused and changed nothing.
    Refused {
        /// A word for programs.
        code: String,
        /// One line: what was found, what is needed.
        text: String,
    },
    /// The daemon ends the attachment; the socket closes.
    Detached {
        /// A word for programs: the name of a failure code with `_` for each space. Empty: the daemon gave none.
        #[serde(default)]
        code: String,
        /// One line: why.
        text: String,
    },
}

/// On the region socket of a gate: a producer's region to be read, with its descriptor. It comes before the first slice of
/// the channel; of several for one producer the last one holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LentRegion {
    /// Which producer of the exchange.
    pub producer: u32,
}
