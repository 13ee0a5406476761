//! What each channel tells about itself. Counts are cumulative since the channel opened; gauges are of this moment.

use crate::exchange::{Name, Strategy};
use crate::ids::{ConsumerIndex, LinkId, ProducerIndex};

/// Which end of a channel is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Side {
    /// The producer's end: a subpartition.
    Send,
    /// The consumer's end: a channel of a gate.
    Receive,
}

impl Side {
    /// Its name in output.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::Receive => "receive",
        }
    }
}

/// One end of one channel at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChannelStats {
    /// Which end this is.
    pub side: Side,
    /// The exchange.
    pub exchange: Name,
    /// Which producer.
    pub producer: ProducerIndex,
    /// Producer parallelism.
    pub producers: u32,
    /// Which consumer.
    pub consumer: ConsumerIndex,
    /// Consumer parallelism.
    pub consumers: u32,
    /// Ship strategy.
    pub strategy: Strategy,
    /// Name of the node at the other end; none while nobody has connected.
    pub peer: Option<Name>,
    /// The link that carries it; none while nobody has connected and after the end.
    pub link: Option<LinkId>,
    /// Name of its state.
    pub state: &'static str,
    /// Receive segments that the sender may still open (sending end), or that are granted and not opened (receiving
    /// end). The two differ by what is on the wire.
    pub credit: u32,
    /// Receive segments that the queue would still open: the sender's own count, or the last one that it told.
    pub backlog: u32,
    /// Bytes that wait: to be sent, or to be handed to the application.
    pub queued_bytes: u64,
    /// Bytes that were sent and are not known to have arrived; 0 at the receiving end.
    pub unacked_bytes: u64,
    /// Bytes that are known to have arrived in the consumer's receive region; 0 at the receiving end.
    pub acked_bytes: u64,
    /// Bytes that the consumer's application is known to have given back; 0 at the receiving end.
    pub consumed_bytes: u64,
    /// Receive segments granted and not opened; 0 at the sending end.
    pub receiver_ready: u32,
    /// Receive segments open, filled or held by the application; 0 at the sending end.
    pub receiver_held: u32,
    /// Payload bytes sent, those sent again included, or received.
    pub bytes_total: u64,
    /// Data frames sent or received.
    pub buffers_total: u64,
    /// Records sent or received, as the producer's client says.
    pub records_total: u64,
    /// Nanoseconds in which data waited for credit, the wait that is going on included; 0 at the receiving end.
    pub send_stalled_ns: u64,
    /// Limit frames received (sending end) or sent (receiving end).
    pub limit_frames_total: u64,
    /// Backlog frames sent (sending end) or received (receiving end).
    pub backlog_frames_total: u64,
}

/// One link at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkStats {
    /// Which link.
    pub link: LinkId,
    /// Name of the peer node.
    pub peer: Name,
    /// The peer's shard.
    pub peer_shard: u16,
    /// Name of its state.
    pub state: &'static str,
    /// Bytes accepted by the socket.
    pub sent_bytes_total: u64,
    /// Bytes read from the socket.
    pub received_bytes_total: u64,
    /// Frames that were skipped because their channel had gone.
    pub skipped_frames_total: u64,
    /// Bytes of those frames.
    pub skipped_bytes_total: u64,
    /// Writes that the socket took only in part.
    pub short_writes_total: u64,
    /// Sockets that took the place of a lost one.
    pub resumes_total: u64,
    /// Payload bytes that were to be sent again on them.
    pub resent_bytes_total: u64,
    /// Shortest time from a Ping to its Pong, in nanoseconds; none before the first.
    pub round_trip_min_ns: Option<u64>,
}
