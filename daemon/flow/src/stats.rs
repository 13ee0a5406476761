//! What each channel tells about itself. Counts are cumulative since the channel opened; gauges are of this moment.

use crate::exchange::{Name, Strategy};
use crate::ids::{ConsumerIndex, LinkId, ProducerIndex};
use crate::stall::Stalls;

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
    /// Bytes that the consumer wants on their way at most, as the sending end was told, or as the receiving end wants it
    /// told; none if there is no bound.
    pub buffer_bytes: Option<u32>,
    /// Bytes that were sent and are not known to have arrived; 0 at the receiving end.
    pub unacked_bytes: u64,
    /// Bytes that are known to have arrived in the consumer's receive region; 0 at the receiving end.
    pub acked_bytes: u64,
    /// Bytes that the consumer's application gave back, as far as this end knows.
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
    /// Its send stalls, of all causes; none at the receiving end. Time without credit is here too, divided among those
    /// for whom it was missing.
    pub stalls: Stalls,
    /// Of more than a hundredth of the time without credit it is not known, or not exactly, how long the Limit that ended
    /// the wait lay in the socket: what is not known counts for the consumer.
    pub is_stall_approximate: bool,
    /// Emit stalls of the producer's client at this subpartition; none with `broadcast`, where they belong to the
    /// partition, and none at the receiving end.
    pub emit: Stalls,
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

/// The pool of one result partition at one moment, as the daemon sees it. A segment that its client has opened and of
/// which it has submitted nothing yet counts as free here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionStats {
    /// The exchange.
    pub exchange: Name,
    /// Which producer.
    pub producer: ProducerIndex,
    /// Producer parallelism.
    pub producers: u32,
    /// Consumer parallelism.
    pub consumers: u32,
    /// Ship strategy.
    pub strategy: Strategy,
    /// Segments of its region, all kinds together.
    pub segments: u32,
    /// Of them, those that only a record already begun may take.
    pub overdraft: u32,
    /// Of them, those for what is sent and not acknowledged.
    pub retention: u32,
    /// Segments that one subpartition may hold open or queued.
    pub quota: u32,
    /// Segments that the client writes.
    pub open: u32,
    /// Segments that wait to be sent.
    pub queued: u32,
    /// Segments that the kernel has.
    pub in_kernel: u32,
    /// Segments that were sent and are not acknowledged.
    pub unacked: u32,
    /// Segments that the fullest subpartition holds open or queued.
    pub held_max: u32,
    /// Bytes that wait to be sent, of all subpartitions.
    pub queued_bytes: u64,
    /// Emit stalls that belong to no single subpartition: for a segment of the pool, for whichever subpartition has room
    /// first, for room in the ring to the shard; with `broadcast` all.
    pub emit: Stalls,
}

impl PartitionStats {
    /// Segments of the pool proper: without overdraft and retention.
    #[must_use]
    pub const fn pool(&self) -> u32 {
        self.segments.saturating_sub(self.overdraft).saturating_sub(self.retention)
    }

    /// Segments in use that count for the pool: those open or queued, and of those sent what the retention does not cover.
    /// With overdraft in use it can be more than [`Self::pool`].
    #[must_use]
    pub const fn pool_used(&self) -> u32 {
        let sent = self.in_kernel.saturating_add(self.unacked).saturating_sub(self.retention);
        self.open.saturating_add(self.queued).saturating_add(sent)
    }

    /// Flink's `outPoolUsage`: what is in use of the pool, as a ratio; above 1 with overdraft, 0 for a pool of none.
    #[must_use]
    pub fn pool_usage(&self) -> f64 {
        ratio(self.pool_used(), self.pool())
    }

    /// What the fullest subpartition uses of its quota, as a ratio; above 1 with overdraft.
    #[must_use]
    pub fn quota_usage(&self) -> f64 {
        ratio(self.held_max, self.quota)
    }
}

/// What a gate with debloating wants in flight at one moment, and what it does about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DebloatStats {
    /// How old data may be when it is consumed, in nanoseconds.
    pub target_ns: u64,
    /// Bytes wanted in flight; none before anything was measured.
    pub wanted_bytes: Option<u64>,
    /// Bytes that the application consumes in a second in which it has something to consume; none before it did.
    pub bytes_per_second: Option<u64>,
    /// How long it takes to consume [`GateStats::in_flight_bytes`], in nanoseconds; none before anything was measured, or if nothing is consumed.
    pub in_flight_ns: Option<u64>,
    /// Receive segments that each channel may be granted or use; none if that is not held back.
    pub window: Option<u32>,
    /// Bytes that each sender is to have on their way at most; none if that is not held back.
    pub buffer_bytes: Option<u32>,
    /// How often what is wanted changed.
    pub changes_total: u64,
    /// How often it changed the other way than before.
    pub turns_total: u64,
}

/// The pool of one input gate at one moment. A segment is used while it is open, filled, or held by the application; one that
/// is granted and not opened is not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GateStats {
    /// The exchange.
    pub exchange: Name,
    /// Which consumer.
    pub consumer: ConsumerIndex,
    /// Producer parallelism.
    pub producers: u32,
    /// Consumer parallelism.
    pub consumers: u32,
    /// Ship strategy.
    pub strategy: Strategy,
    /// Exclusive segments, of all channels.
    pub exclusive: u32,
    /// Of them, those used. An exclusive segment is a count, not a place: a channel uses its exclusive ones first.
    pub exclusive_used: u32,
    /// Floating segments.
    pub floating: u32,
    /// Of them, those used.
    pub floating_used: u32,
    /// Of them, those that no channel was granted.
    pub floating_free: u32,
    /// Segments that are granted and not opened.
    pub ready: u32,
    /// Bytes that wait to be handed to the application.
    pub queued_bytes: u64,
    /// Bytes that the application has not given back, those that wait included.
    pub buffered_bytes: u64,
    /// Bytes that the application gave back since the gate came.
    pub consumed_bytes_total: u64,
    /// Bytes known to be in flight: what arrived and was not given back, and what the senders told that they have queued,
    /// counted in segments as full as they are filled now. Off by up to a segment for each channel.
    pub in_flight_bytes: u64,
    /// What debloating does; none if the gate does without.
    pub debloat: Option<DebloatStats>,
}

impl GateStats {
    /// Flink's `inPoolUsage`: used segments of all, as a ratio.
    #[must_use]
    pub fn pool_usage(&self) -> f64 {
        let used = self.exclusive_used.saturating_add(self.floating_used);
        ratio(used, self.exclusive.saturating_add(self.floating))
    }

    /// Flink's `inputExclusiveBuffersUsage`: used exclusive segments of all exclusive ones, as a ratio.
    #[must_use]
    pub fn exclusive_usage(&self) -> f64 {
        ratio(self.exclusive_used, self.exclusive)
    }

    /// Flink's `inputFloatingBuffersUsage`: used floating segments of all floating ones, as a ratio.
    #[must_use]
    pub fn floating_usage(&self) -> f64 {
        ratio(self.floating_used, self.floating)
    }
}

fn ratio(part: u32, whole: u32) -> f64 {
    if whole == 0 { 0.0 } else { f64::from(part) / f64::from(whole) }
}

/// How long it takes to consume `buffered_bytes`, in nanoseconds, if it goes on as in the last `in_ns` nanoseconds, in which
/// `consumed_bytes` were consumed. 0 if nothing is buffered; none if nothing was consumed: then there is no telling.
#[must_use]
pub fn time_to_consume_ns(buffered_bytes: u64, consumed_bytes: u64, in_ns: u64) -> Option<u64> {
    if buffered_bytes == 0 {
        return Some(0);
    }
    let ns = u128::from(buffered_bytes) * u128::from(in_ns);
    let ns = ns.checked_div(u128::from(consumed_bytes)).filter(|_| in_ns > 0)?;
    Some(u64::try_from(ns).unwrap_or(u64::MAX))
}
