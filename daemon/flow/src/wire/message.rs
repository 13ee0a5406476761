//! Every control frame as an owned value.

use alloc::string::String;
use alloc::vec::Vec;

use bytes::Bytes;

use super::handshake::Hello;
use super::header::FrameType;
use crate::exchange::{Name, Shape};
use crate::failure::Failure;
use crate::ids::{ChannelIndex, ConsumerIndex, Incarnation, ProducerIndex, Sequence};
use crate::stall::CAUSES;
use crate::stats::Side;
use crate::wants::GateWants;

/// Most entries of one Catalog frame. A longer catalog is sent as several frames.
pub const CATALOG_ENTRIES_MAX: usize = 256;

/// Number of a partition among the kinds of catalog entries.
pub(super) const ENTRY_PARTITION: u8 = 1;

/// Number of a gate among the kinds of catalog entries.
pub(super) const ENTRY_GATE: u8 = 2;

/// What a gate says of checksums if it leaves them to the producers.
pub(super) const CHECKSUM_OPEN: u8 = 2;

/// Most tasks of one Stats frame. More tasks are sent as several frames.
pub const TASK_TIMES_MAX: usize = 128;

/// Most ends of channels of one Stats frame. More are sent as several frames.
pub const CHANNEL_SUMMARIES_MAX: usize = 256;

/// Most bytes of what a node says of its kernel probes in a Stats frame.
pub const PROBES_TEXT_BYTES_MAX: usize = 96;

/// What stands for a number of 4 bytes that is not known.
pub(super) const UNKNOWN_U32: u32 = u32::MAX;

/// What stands for a number of 2 bytes that is not known.
pub(super) const UNKNOWN_U16: u16 = u16::MAX;

/// What a channel's end says if nothing is known of the socket of its link.
pub(super) const SOCKET_UNKNOWN: u8 = 0;

/// If kernel probes tell what it did.
pub(super) const SOCKET_PROBED: u8 = 1;

/// If it is looked at now and then.
pub(super) const SOCKET_SAMPLED: u8 = 2;

/// Number of the sending end of a channel.
pub(super) const SIDE_SEND: u8 = 1;

/// Number of its receiving end.
pub(super) const SIDE_RECEIVE: u8 = 2;

/// A frame that is not data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// First and third message of a handshake.
    Hello {
        /// Who the dialler is.
        hello: Hello,
        /// Whether this is the third message, with the dialler's code.
        confirm: bool,
    },
    /// Second message of a handshake: who the acceptor is, with its code.
    HelloAck {
        /// Who the acceptor is.
        hello: Hello,
    },
    /// A consumer asks for a subpartition.
    OpenChannel {
        /// The index that the consumer's end gives the channel on this link.
        channel: ChannelIndex,
        /// What it asks for.
        open: OpenChannel,
    },
    /// The producer's node serves the channel.
    ChannelAccepted {
        /// The channel.
        channel: ChannelIndex,
        /// Receive segments that the queue would open.
        backlog: u32,
        /// Sequence number of the first frame that will follow.
        sequence: Sequence,
        /// The partition's life.
        incarnation: Incarnation,
    },
    /// The producer's node does not serve the channel (any more).
    ChannelFailed {
        /// The channel.
        channel: ChannelIndex,
        /// Why.
        failure: Failure,
    },
    /// A message beside the data.
    Event {
        /// The channel.
        channel: ChannelIndex,
        /// Receive segments that the queue would still open.
        backlog: u32,
        /// Its position in the channel.
        sequence: Sequence,
        /// Whether it overtakes queued data.
        priority: bool,
        /// At most [`super::EVENT_BYTES_MAX`] bytes.
        payload: Bytes,
    },
    /// The backlog, when no data can say it.
    Backlog {
        /// The channel.
        channel: ChannelIndex,
        /// Receive segments that the queue would still open.
        backlog: u32,
        /// Whether the open receive segment is given up.
        closed: bool,
    },
    /// How much the sender may send, and what has arrived and was consumed.
    Limit {
        /// The channel.
        channel: ChannelIndex,
        /// The numbers, all of them absolute.
        limit: Limit,
    },
    /// How full the consumer wants buffers to be.
    BufferSize {
        /// The channel.
        channel: ChannelIndex,
        /// Bytes of a buffer, at least 1.
        bytes: u32,
    },
    /// Where a channel goes on after the socket of its link was replaced.
    Resume {
        /// The channel.
        channel: ChannelIndex,
        /// What the consumer's end has.
        resume: Resume,
    },
    /// The consumer is gone, or does not want the channel any more.
    Cancel {
        /// The channel.
        channel: ChannelIndex,
        /// Why, and how far it came.
        cancel: Cancel,
    },
    /// The producer has sent everything.
    EndOfData {
        /// The channel.
        channel: ChannelIndex,
        /// Receive segments that the queue would still open: 0 unless something is wrong.
        backlog: u32,
        /// Its position in the channel, which is its last.
        sequence: Sequence,
    },
    /// The consumer's node has everything, with the end of data.
    EndAck {
        /// The channel.
        channel: ChannelIndex,
    },
    /// Asks for a Pong.
    Ping {
        /// Anything; comes back.
        token: u64,
    },
    /// Answers a Ping.
    Pong {
        /// The token of the Ping.
        token: u64,
    },
    /// Partitions and gates of the sending node that came, changed or went since its last Catalog on this link.
    Catalog {
        /// At most [`CATALOG_ENTRIES_MAX`].
        entries: Vec<CatalogEntry>,
    },
    /// What the sending node's tasks and channels did lately.
    Stats {
        /// A part of it.
        stats: Stats,
    },
    /// The sender will close the link, at once or when the channels on it have ended.
    Goodbye {
        /// Why.
        failure: Failure,
    },
    /// What this end has of the link, first of all on a socket that replaces another.
    LinkResume {
        /// Frames that [happen once](FrameType::happens_once) which arrived since the link began.
        control_received: u64,
    },
}

impl Message {
    /// The type of the frame.
    #[must_use]
    pub const fn frame_type(&self) -> FrameType {
        match self {
            Self::Hello { .. } => FrameType::Hello,
            Self::HelloAck { .. } => FrameType::HelloAck,
            Self::OpenChannel { .. } => FrameType::OpenChannel,
            Self::ChannelAccepted { .. } => FrameType::ChannelAccepted,
            Self::ChannelFailed { .. } => FrameType::ChannelFailed,
            Self::Event { .. } => FrameType::Event,
            Self::Backlog { .. } => FrameType::Backlog,
            Self::Limit { .. } => FrameType::Limit,
            Self::BufferSize { .. } => FrameType::BufferSize,
            Self::Resume { .. } => FrameType::Resume,
            Self::Cancel { .. } => FrameType::Cancel,
            Self::EndOfData { .. } => FrameType::EndOfData,
            Self::EndAck { .. } => FrameType::EndAck,
            Self::Ping { .. } => FrameType::Ping,
            Self::Pong { .. } => FrameType::Pong,
            Self::Catalog { .. } => FrameType::Catalog,
            Self::Stats { .. } => FrameType::Stats,
            Self::Goodbye { .. } => FrameType::Goodbye,
            Self::LinkResume { .. } => FrameType::LinkResume,
        }
    }
}

/// What a consumer asks for, and what it believes of the exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenChannel {
    /// The exchange.
    pub exchange: Name,
    /// Which producer's partition.
    pub producer: ProducerIndex,
    /// Which consumer asks.
    pub consumer: ConsumerIndex,
    /// What the producer must have stated alike.
    pub shape: Shape,
    /// The life of the partition that is meant, or 0 for whichever there is.
    pub incarnation: Incarnation,
    /// Receive segments that may be opened from the start.
    pub limit: u64,
    /// Events that may be sent from the start.
    pub event_limit: u64,
}

/// What the receiver of a channel grants and has. Every number is absolute, so that a late or repeated frame does
/// no harm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limit {
    /// Receive segments that the sender may have opened, since the channel began.
    pub limit: u64,
    /// Sequence number expected next: every frame before it is in the consumer's receive region.
    pub ack: u64,
    /// Bytes that the application has given back, since the channel began.
    pub consumed: u64,
    /// Events that the sender may have sent, since the channel began.
    pub event_limit: u64,
    /// How long the oldest give-back in this frame has waited, in microseconds.
    pub age_us: u32,
}

/// What the receiver of a channel has when the socket of its link was replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resume {
    /// The life of the partition that the channel belongs to.
    pub incarnation: Incarnation,
    /// Sequence number expected next.
    pub next_sequence: Sequence,
    /// Receive segments opened since the channel began.
    pub opened: u64,
    /// Bytes of complete frames in the open receive segment.
    pub open_fill: u32,
    /// As in [`Limit`].
    pub limit: u64,
    /// As in [`Limit`].
    pub event_limit: u64,
    /// As in [`Limit`].
    pub consumed: u64,
}

/// Why a consumer's end gives a channel up, and how far it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cancel {
    /// Bytes that were handed to the application.
    pub delivered: u64,
    /// Bytes that the application gave back.
    pub consumed: u64,
    /// Why.
    pub failure: Failure,
}

/// How far a partition in the catalog has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum PartitionState {
    /// Its producer is attached.
    Running = 1,
    /// Its producer has finished; it can be consumed until every consumer has acked the end.
    Finished = 2,
    /// It is gone.
    Gone = 3,
}

impl PartitionState {
    /// The state with this wire number.
    #[must_use]
    pub const fn from_wire(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::Running),
            2 => Some(Self::Finished),
            3 => Some(Self::Gone),
            _ => None,
        }
    }
}

/// Whether a gate in the catalog is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum GateState {
    /// Its consumer is attached.
    Attached = 1,
    /// It is gone.
    Gone = 2,
}

impl GateState {
    /// The state with this wire number.
    #[must_use]
    pub const fn from_wire(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::Attached),
            2 => Some(Self::Gone),
            _ => None,
        }
    }
}

/// One partition or gate of the node that sends the catalog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CatalogEntry {
    /// A partition. Gates are connected to it.
    Partition(PartitionEntry),
    /// A gate. What is known of the gates of other nodes is shown, and decides nothing.
    Gate(GateEntry),
}

/// One partition of the node that sends the catalog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionEntry {
    /// The exchange.
    pub exchange: Name,
    /// Which producer.
    pub producer: ProducerIndex,
    /// What the producer stated.
    pub shape: Shape,
    /// The shard that the producer is attached to.
    pub shard: u16,
    /// The producer's life.
    pub incarnation: Incarnation,
    /// How far it has come.
    pub state: PartitionState,
    /// The task that it is an output of.
    pub task: Name,
}

/// One gate of the node that sends the catalog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GateEntry {
    /// The exchange.
    pub exchange: Name,
    /// Which consumer.
    pub consumer: ConsumerIndex,
    /// What the consumer stated, and what it has learnt from the producers.
    pub wants: GateWants,
    /// Whether it is there.
    pub state: GateState,
    /// The task that it is an input of.
    pub task: Name,
}

/// A part of what the sending node's tasks and channels did lately. One reading is as many frames as it takes, in a row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// The moment of reading, in nanoseconds of the sender's monotonic clock: the same in all frames of one reading.
    pub read_at_ns: u64,
    /// Whether this frame ends the reading.
    pub is_last: bool,
    /// Tasks of the sending node that the reading leaves out, because there are too many.
    pub tasks_left_out: u32,
    /// Ends of channels that the reading leaves out; they waited less than those that are in it.
    pub channels_left_out: u32,
    /// How the sending node looks at the sockets of its links, as one line; empty if it does not say. What is longer than
    /// [`PROBES_TEXT_BYTES_MAX`] is cut.
    pub probes: String,
    /// At most [`TASK_TIMES_MAX`].
    pub tasks: Vec<TaskTimes>,
    /// At most [`CHANNEL_SUMMARIES_MAX`].
    pub channels: Vec<ChannelSummary>,
}

/// Most milliseconds of a second.
pub const SECOND_MS: u16 = 1000;

/// What one instance of a task did, in milliseconds per second: the mean of a window. All 0 if the instance was not watched
/// for so long; else they add up to [`SECOND_MS`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskShares {
    /// Waiting for input.
    pub idle: u16,
    /// Working.
    pub busy: u16,
    /// Waiting for output, still able to react.
    pub soft: u16,
    /// Waiting for output, blocked.
    pub hard: u16,
}

/// Windows that each task's times are told for: 1, 10 and 60 seconds.
pub const TASK_WINDOWS: usize = 3;

/// What one instance of a task did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskTimes {
    /// The task.
    pub task: Name,
    /// Which instance: a number that no other task of the sending node has or had.
    pub instance: u64,
    /// Its index: the smallest that it has at an exchange, at those that it reads if it reads any. None while it has no
    /// partition and no gate.
    pub index: Option<u32>,
    /// The windows, the shortest first.
    pub windows: [TaskShares; TASK_WINDOWS],
    /// Nanoseconds since it began: idle, busy, soft, hard.
    pub total_ns: [u64; 4],
    /// What its process did.
    pub process: ProcessTimes,
}

/// What a process did in about the last second, in milliseconds per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessTimes {
    /// Running on processors, all its threads together. None if it is not known.
    pub ran: Option<u32>,
    /// Ready to run, and waiting for a processor. None if it is not known.
    pub waited: Option<u32>,
    /// Busy, by the cells of all its tasks together.
    pub busy: u32,
}

/// What one end of a channel did in the last second.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChannelSummary {
    /// The exchange.
    pub exchange: Name,
    /// Which producer.
    pub producer: ProducerIndex,
    /// Which consumer.
    pub consumer: ConsumerIndex,
    /// Which end.
    pub side: Side,
    /// Milliseconds per second of its send stalls, by cause in the order of [`crate::stall::Cause::ALL`]. Each at most
    /// [`SECOND_MS`]; 0 at the receiving end.
    pub send_stalled: [u16; CAUSES],
    /// The same of the emit stalls of its producer.
    pub emit_stalled: [u16; CAUSES],
    /// Payload bytes per second.
    pub bytes: u64,
    /// Records per second.
    pub records: u64,
    /// Payload that waits at this end, in bytes, now.
    pub queued_bytes: u64,
    /// Receive segments that the sender's queue would still open, now.
    pub backlog: u32,
    /// Receive segments that may still be opened, now.
    pub credit: u32,
    /// How much of the pool at this end is in use, in thousandths; more than 1000 with overdraft. None if not known.
    pub pool_usage: Option<u16>,
    /// How many of the exclusive segments of the gate, in thousandths. None if not known, and at the sending end.
    pub exclusive_usage: Option<u16>,
    /// How many of its floating segments.
    pub floating_usage: Option<u16>,
    /// Milliseconds per second that the thread of the shard at this end ran. At most [`SECOND_MS`]; none if not known.
    pub shard_ran: Option<u16>,
    /// Milliseconds per second that it was ready to run and waited for a processor.
    pub shard_waited: Option<u16>,
    /// What the socket of the link did that carries the channel. None if nothing is known of one.
    pub socket: Option<SocketSummary>,
}

/// States that the sending side of a socket can be in.
pub const SOCKET_STATES: usize = 6;

/// Their names in output, in the order of [`SocketSummary::states`].
pub const SOCKET_STATE_NAMES: [&str; SOCKET_STATES] =
    ["idle", "flight", "held", "congestion_window", "receive_window", "send_buffer"];

/// What the socket of a link did at one end in the last second. What is not known is none, never 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SocketSummary {
    /// Whether any of it comes from looking now and then, and not from kernel probes.
    pub is_approximate: bool,
    /// Milliseconds per second that its sending side was idle, in flight, held, and limited by the congestion window, the
    /// receive window and the send buffer. Each at most [`SECOND_MS`].
    pub states: [Option<u16>; SOCKET_STATES],
    /// TCP segments that were sent again, per second.
    pub retransmitted: Option<u32>,
    /// Bytes written and not acknowledged, now.
    pub send_queue_bytes: Option<u32>,
    /// Bytes that arrived and were not read, now.
    pub receive_queue_bytes: Option<u32>,
    /// Microseconds from the arrival of bytes to their being read, the mean of those read.
    pub residence_us: Option<u32>,
}
