//! What goes into a shard and what comes out of it.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use bytes::Bytes;

use crate::debloat::DebloatSpec;
use crate::exchange::{Name, Shape};
use crate::failure::Failure;
use crate::ids::{
    ConsumerIndex, GateId, Incarnation, LinkId, PartitionId, ProducerIndex, SegmentIndex, SubpartitionIndex,
};
use crate::stats::Side;

/// A result partition whose producer attached to this shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionSpec {
    /// The exchange it feeds.
    pub exchange: Name,
    /// Which of the exchange's producers it is; below `shape.producers`.
    pub producer: ProducerIndex,
    /// What both ends must agree on.
    pub shape: Shape,
    /// Which life of the producer this is.
    pub incarnation: Incarnation,
    /// Segments in its send region.
    pub segments: u32,
    /// What the segments are for. Not checked: the pool is run by the client.
    pub pool: PoolShares,
    /// Whether it goes on without a consumer that is lost. Only for consumers that are interchangeable: without
    /// effect for other strategies than `rebalance` and `rescale`.
    pub continue_without: bool,
}

/// How the pool of a partition is divided; see [`PartitionPool`](crate::pool::partition::PartitionPool).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolShares {
    /// Segments that one subpartition may hold open or queued.
    pub quota: u32,
    /// Segments that only a record already begun may take.
    pub overdraft: u32,
    /// Segments for what is sent and not acknowledged.
    pub retention: u32,
}

impl PartitionSpec {
    pub(crate) fn continues_without_consumer(&self) -> bool {
        self.continue_without && self.shape.strategy.has_interchangeable_consumers()
    }
}

/// An input gate whose consumer attached to this shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GateSpec {
    /// The exchange it drains.
    pub exchange: Name,
    /// Which of the exchange's consumers it is; below `shape.consumers`.
    pub consumer: ConsumerIndex,
    /// What both ends must agree on.
    pub shape: Shape,
    /// Segments in its receive region; at least `exclusive` for each channel of the shape.
    pub segments: u32,
    /// Exclusive segments of each channel; what is left over is floating.
    pub exclusive: u32,
    /// How much data it wants in flight; none: as much as there is room for.
    pub debloat: Option<DebloatSpec>,
}

/// A data link whose handshake is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkSpec {
    /// Name of the peer node.
    pub peer: Name,
    /// The peer's shard at the other end.
    pub peer_shard: u16,
    /// The peer's [`Limits::link_grace_ns`](crate::limits::Limits::link_grace_ns), as it said: if it waits less than
    /// this node for another socket, so does this node.
    pub peer_grace_ns: u64,
    /// Both ends are shards of this node, or one and the same: what is planned for it is handed to the other end with
    /// [`Shard::handle_passed`](crate::shard::Shard::handle_passed), and data is named instead of carried. Such a link has
    /// no socket that could be lost, asks for no sign of life, and is not told of among [`links`](crate::shard::Shard::links).
    pub is_local: bool,
}

/// What a producer's client hands over. All of it is a claim and checked here.
///
/// With `broadcast` there is one address, subpartition 0, and what is handed over there goes to every consumer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Submission {
    /// The next slice of a segment. Slices of a segment follow each other without gap, from offset 0.
    Data {
        /// Where it goes.
        subpartition: SubpartitionIndex,
        /// The segment that holds it.
        segment: SegmentIndex,
        /// First byte, counted from the start of the segment.
        offset: u32,
        /// Length; 0 only together with `last`, to close a segment whose bytes were handed over before.
        bytes: u32,
        /// Records that end in it.
        records: u32,
        /// No more slices of this segment will come.
        last: bool,
    },
    /// A small message in the stream of a subpartition.
    Event {
        /// Where it goes.
        subpartition: SubpartitionIndex,
        /// Its content, at most [`EVENT_BYTES_MAX`](crate::wire::EVENT_BYTES_MAX).
        payload: Bytes,
        /// Overtakes what is queued.
        priority: bool,
    },
    /// No more data and events for this subpartition.
    End {
        /// Which one.
        subpartition: SubpartitionIndex,
    },
}

/// What a consumer's client gets, in order for each channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// Bytes in a receive segment. The client gives exactly these bytes back, in any order and any portions.
    Data {
        /// Channel inside the gate: the producer index; 0 for `forward`.
        channel: u32,
        /// The segment.
        segment: SegmentIndex,
        /// First byte, counted from the start of the segment.
        offset: u32,
        /// Length, at least 1.
        bytes: u32,
        /// Records that end in it, as the producer's client says.
        records: u32,
    },
    /// Bytes in the send region of the channel's producer, which is on this node. Given back like those in a receive
    /// segment, with [`Shard::handle_lent_given_back`](crate::shard::Shard::handle_lent_given_back).
    Lent {
        /// Channel inside the gate.
        channel: u32,
        /// The segment of the producer's region.
        segment: SegmentIndex,
        /// First byte, counted from the start of the segment.
        offset: u32,
        /// Length, at least 1.
        bytes: u32,
        /// Records that end in it, as the producer's client says.
        records: u32,
    },
    /// An event. The client says when it has consumed it.
    Event {
        /// Channel inside the gate.
        channel: u32,
        /// Its content.
        payload: Bytes,
        /// It overtook data.
        priority: bool,
    },
    /// The producer has finished; nothing follows on this channel.
    End {
        /// Channel inside the gate.
        channel: u32,
    },
    /// The channel failed; nothing follows on it. All data that had arrived came before.
    Failed {
        /// Channel inside the gate.
        channel: u32,
        /// Why.
        failure: Failure,
    },
}

/// What a producer's client is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PartitionUpdate {
    /// This segment is free again.
    Returned(SegmentIndex),
    /// Every consumer's node has acknowledged the end of data.
    Finished,
    /// The partition failed. Comes once; its queued segments return.
    Failed(Failure),
}

/// What a producer's client sees of one subpartition. With `broadcast` there is one view, of subpartition 0: each
/// number is that of the consumer which is furthest behind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SubpartitionView {
    /// Receive segments that may still be opened; 0 while no consumer is there.
    pub credit: u32,
    /// Segments that left the queue for good since the start: closed by the client and sent to their last byte, with
    /// `broadcast` to every consumer.
    pub sent_segments: u64,
    /// Bytes that arrived in the consumer's receive region since the start.
    pub acked_bytes: u64,
    /// Bytes that the consumer's application gave back since the start.
    pub consumed_bytes: u64,
    /// Bytes that wait to be sent.
    pub queued_bytes: u64,
    /// Events that are queued, or sent and not acknowledged. An honest client keeps this below the event window.
    pub events_in_flight: u32,
    /// Bytes that its consumer wants on their way to it at most; the largest number if it does not say. See
    /// [`BufferBound`](crate::debloat::BufferBound) for what a client makes of it.
    pub buffer_bytes: u32,
    /// Its consumer is lost: what is handed over for it goes nowhere. The partition goes on without it, or has failed.
    pub is_gone: bool,
}

/// What a client wrote or asked cannot be true. It is detached; nobody else is touched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientFault {
    /// The field that lies.
    pub field: &'static str,
    /// Value found and value needed.
    pub text: String,
}

impl fmt::Display for ClientFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "client fault in {}: {}", self.field, self.text)
    }
}

impl core::error::Error for ClientFault {}

/// The receive regions, as the shell holds them.
pub trait ReceiveMemory {
    /// Copies `bytes` to this place. The shard has checked that the place belongs to the channel and is in bounds
    /// of the gate's segments.
    fn write(&mut self, gate: GateId, segment: SegmentIndex, offset: u32, bytes: &[u8]);
}

/// One batch of a link, as the shell hands it to the kernel. Made to be reused: filling it allocates nothing once
/// it has grown to its working size.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transmit {
    /// Frame headers and control frames, back to back.
    pub headers: Vec<u8>,
    /// What to send, in order.
    pub parts: Vec<Part>,
    /// Sum of all parts.
    pub bytes: u32,
}

/// A piece of a [`Transmit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// A range of [`Transmit::headers`].
    Header {
        /// First byte.
        start: u32,
        /// Length.
        bytes: u32,
    },
    /// A range of a partition's send region.
    Slice {
        /// The partition.
        partition: PartitionId,
        /// The segment.
        segment: SegmentIndex,
        /// First byte, counted from the start of the segment.
        offset: u32,
        /// Length.
        bytes: u32,
    },
}

impl Transmit {
    /// Empties it and keeps its memory.
    pub fn clear(&mut self) {
        self.headers.clear();
        self.parts.clear();
        self.bytes = 0;
    }

    /// Takes up bytes of `headers` that were just appended, from `start` on.
    pub(crate) fn push_header(&mut self, start: usize) {
        let bytes = (self.headers.len() - start) as u32;
        self.bytes += bytes;
        if let Some(Part::Header { start: first, bytes: length }) = self.parts.last_mut()
            && *first as usize + *length as usize == start
        {
            *length += bytes;
            return;
        }
        self.parts.push(Part::Header { start: start as u32, bytes });
    }

    pub(crate) fn push_slice(
        &mut self,
        partition: PartitionId,
        segment: SegmentIndex,
        offset: u32,
        bytes: u32,
    ) {
        self.bytes += bytes;
        self.parts.push(Part::Slice { partition, segment, offset, bytes });
    }
}

/// Which channel a [`Notice`] speaks of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChannelKey {
    /// Which end of it is here.
    pub side: Side,
    /// The exchange.
    pub exchange: Name,
    /// The producer.
    pub producer: ProducerIndex,
    /// The consumer.
    pub consumer: ConsumerIndex,
    /// The link that carries it.
    pub link: LinkId,
}

/// A change that the shell logs or acts upon. Never one per frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// Both ends agreed; data may flow.
    ChannelOpened(ChannelKey),
    /// The end of data was acknowledged (sending end) or arrived (receiving end).
    ChannelEnded(ChannelKey),
    /// The channel failed.
    ChannelFailed(ChannelKey, Failure),
    /// The producer's node has no such life of a producer, any more or yet: nothing was read of it, and the gate may be
    /// connected to this producer as before.
    ProducerNotFound {
        /// The gate.
        gate: GateId,
        /// The producer.
        producer: ProducerIndex,
    },
    /// A consumer asked for a channel and was refused; the partition goes on.
    ChannelRefused {
        /// The link on which it asked.
        link: LinkId,
        /// What it was told.
        failure: Failure,
    },
    /// The partition is closed, all its segments are free, and no frame refers to its memory: its region may be
    /// unmapped. Its id is unknown from now on.
    PartitionReleased(PartitionId),
    /// The gate is closed and nothing will be written into its region. Its id is unknown from now on.
    GateReleased(GateId),
    /// The peer is stopping: no new channels over this link.
    LinkGoodbye(LinkId),
    /// The socket of the link was lost; it waits for another one.
    LinkSuspended(LinkId),
    /// Both ends go on over another socket.
    LinkResumed(LinkId),
    /// No other socket came within the grace: the link is closed for good.
    LinkExpired(LinkId),
    /// Nothing was heard for too long. The shell closes the socket and reports it with
    /// [`handle_link_lost`](crate::shard::Shard::handle_link_lost).
    LinkTimedOut {
        /// The link.
        link: LinkId,
        /// How long it was silent, in nanoseconds.
        silent_ns: u64,
    },
    /// The socket took nothing for as long, although something was heard: the peer does not read. The shell does as for
    /// [`Self::LinkTimedOut`].
    LinkStuck {
        /// The link.
        link: LinkId,
        /// How long a send was in flight, in nanoseconds.
        stuck_ns: u64,
    },
}
