//! Messages between the control thread and the shards, and the mailboxes that carry them.
//!
//! A shard is told by [`ToShard`] and tells by [`ToNode`]; nothing else is shared but read-only configuration and
//! the regions, whose owners are counted. Traffic is low: one message per attachment, ring, link or transition,
//! never one per buffer. Shards tell each other one thing only, [`ToShard::Passed`]: of all channels between two of them at
//! most a batch per turn, and no more than the producers' quotas allow.
//!
//! The order of messages to one shard is kept, so [`ToShard::ConnectProducer`] finds the link that an earlier
//! [`ToShard::AddLink`] brought.

use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use tokio::sync::oneshot;
use weir_flow::exchange::Name;
use weir_flow::failure::Failure;
use weir_flow::ids::{LinkId, ProducerIndex, ProducerLife, Time};
use weir_flow::shard::{GateSpec, PartitionSpec, Transmit};
use weir_flow::stall::PastStalls;
use weir_flow::stats::{ChannelStats, GateStats, LinkStats, PartitionStats};
use weir_ipc::gate_port::GateEndpoint;
use weir_ipc::partition_port::PartitionEndpoint;
use weir_ipc::session::SessionEndpoint;

use super::stall::TurnStats;
use crate::link::zero_copy::ZeroCopyReport;
use crate::memory::{ReceiveRegion, SendRegion};
use crate::observe::sockets::SocketAccount;

/// One client process' session. Never reused while the daemon lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttachmentId(pub u64);

/// A partition or gate of an attachment, by the index of its ring pair in the session's dirty bitmap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RingKey {
    /// The attachment.
    pub attachment: AttachmentId,
    /// Index of its ring pair, below [`weir_ipc::layout::ATTACHMENT_RINGS_MAX`].
    pub ring: u32,
}

impl fmt::Display for RingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ring {} of attachment {}", self.ring, self.attachment.0)
    }
}

/// Names the data link between one shard here and one shard of a peer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkKey {
    /// The peer node; this node's own name for a loopback link.
    pub peer: Name,
    /// The shard of this node.
    pub local_shard: u16,
    /// The shard of the peer.
    pub peer_shard: u16,
    /// Whether this is the end that dialled. Only for a loopback link do both ends live on one node.
    pub dialled: bool,
}

impl fmt::Display for LinkKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { peer, local_shard, peer_shard, dialled } = self;
        let end = if *dialled { "dialled" } else { "accepted" };
        write!(f, "shard {local_shard} to shard {peer_shard} of {peer}, {end}")
    }
}

/// What the control thread tells a shard.
#[allow(clippy::large_enum_variant, reason = "messages are few, and a box would save nothing")]
pub enum ToShard {
    /// A data link whose handshake is done.
    AddLink {
        /// Its name.
        key: LinkKey,
        /// The connected socket, with its options set.
        socket: OwnedFd,
        /// Bytes that arrived behind the handshake.
        early: Vec<u8>,
        /// For how long the peer keeps it when it is lost: of both ends the one that waits less decides.
        peer_grace: Duration,
    },
    /// Let go of the socket of this link, which is to have another, and say [`ToNode::LinkLost`]. A link that has lost
    /// it already has said so.
    SuspendLink {
        /// Its name.
        key: LinkKey,
    },
    /// Another socket for a link that has none. For one that is over it comes too late, and is closed.
    ResumeLink {
        /// Its name.
        key: LinkKey,
        /// The connected socket, with its options set.
        socket: OwnedFd,
    },
    /// Close this link for good and fail its channels.
    CloseLink {
        /// Its name.
        key: LinkKey,
        /// What the other end and the channels are told.
        reason: String,
    },
    /// A client attached; its partitions and gates follow.
    AddAttachment {
        /// Its name.
        attachment: AttachmentId,
        /// Dirty bitmap and doorbells.
        session: SessionEndpoint,
    },
    /// A result partition of an attachment.
    AddPartition {
        /// Its name.
        key: RingKey,
        /// What the core needs to know.
        spec: PartitionSpec,
        /// Its rings.
        endpoint: PartitionEndpoint,
        /// Its memory.
        region: Arc<SendRegion>,
    },
    /// An input gate of an attachment.
    AddGate {
        /// Its name.
        key: RingKey,
        /// What the core needs to know.
        spec: GateSpec,
        /// Its rings.
        endpoint: GateEndpoint,
        /// Its memory.
        region: ReceiveRegion,
    },
    /// Open the channel from this producer to a gate.
    ConnectProducer {
        /// The gate.
        key: RingKey,
        /// The producer, and which of its lives the gate is bound to.
        life: ProducerLife,
        /// The link that leads to it. If it has broken meanwhile, the shard says [`ToNode::NotConnected`].
        link: LinkKey,
    },
    /// Open the channel from this producer, on a shard of this node, to a gate whose client has the producer's region.
    ConnectLocal {
        /// The gate.
        key: RingKey,
        /// The producer, and which of its lives the gate is bound to.
        life: ProducerLife,
        /// The shard of the producer; it may be the gate's own.
        shard: u16,
    },
    /// What another shard of this node has planned for channels whose other ends are here.
    Passed {
        /// The shard.
        from: u16,
        /// When it was planned.
        at: Time,
        /// Frames, with data named.
        transmit: Transmit,
    },
    /// The client closed a partition or gate, or the node fails it.
    CloseRing {
        /// Which.
        key: RingKey,
        /// `None`: closed in order. Else what the client and the other ends are told.
        failure: Option<Failure>,
    },
    /// The client is gone or no longer trusted: close all its rings.
    DropAttachment {
        /// Which.
        attachment: AttachmentId,
        /// What the other ends are told.
        failure: Failure,
    },
    /// Report the state of every channel.
    Snapshot {
        /// Where to.
        reply: oneshot::Sender<ShardSnapshot>,
    },
    /// Send what is queued, then say [`ToNode::Drained`].
    Drain,
    /// End the thread, telling peers and clients that the daemon stops.
    Stop,
}

/// What a shard tells the control thread.
#[derive(Debug)]
pub enum ToNode {
    /// A link has lost its socket, to the last of its operations. It lives on and may be given another.
    LinkLost {
        /// Its name.
        key: LinkKey,
        /// Why.
        reason: String,
    },
    /// A link is over, whether it had a socket or not. Comes once for each link that was added, and is the last word of
    /// it.
    LinkClosed {
        /// Its name.
        key: LinkKey,
        /// Why.
        reason: String,
        /// Whether this shard has closed its socket of its own accord, so that the other end finds it lost and does not
        /// know why.
        is_unsaid: bool,
    },
    /// Nothing refers to the memory of this ring any more: it was unmapped, its budget is free.
    RingReleased {
        /// Which.
        key: RingKey,
    },
    /// A client wrote something that cannot be true: it must be detached.
    AttachmentFault {
        /// Which.
        attachment: AttachmentId,
        /// One line: field, value found, value needed.
        text: String,
    },
    /// Every consumer's daemon has acknowledged the end of data.
    PartitionFinished {
        /// Which.
        key: RingKey,
    },
    /// A partition failed, and its client was told.
    RingFailed {
        /// Which.
        key: RingKey,
        /// Why.
        failure: Failure,
    },
    /// The link of a [`ToShard::ConnectProducer`] was gone before anything was said on it, or the life of the producer
    /// when it was asked for. The gate waits for this producer as before.
    NotConnected {
        /// The gate.
        key: RingKey,
        /// The producer.
        producer: ProducerIndex,
    },
    /// Everything queued was sent and acknowledged.
    Drained {
        /// Which shard.
        shard: u16,
    },
    /// The shard cannot go on; the daemon must end.
    ShardFailed {
        /// Which shard.
        shard: u16,
        /// Why, with the fix where there is one.
        text: String,
    },
    /// The shard's thread ended after [`ToShard::Stop`].
    Stopped {
        /// Which shard.
        shard: u16,
    },
}

/// The state of a shard at one moment.
#[derive(Debug)]
pub struct ShardSnapshot {
    /// Which shard.
    pub shard: u16,
    /// When that was, by the clock of all times in it.
    pub at: Time,
    /// Both ends of every channel that lives here.
    pub channels: Vec<ChannelStats>,
    /// The pool of every partition.
    pub partitions: Vec<PartitionStats>,
    /// The pool of every gate.
    pub gates: Vec<GateStats>,
    /// All send stalls since the shard began, those of channels that have gone included.
    pub past_send_stalls: PastStalls,
    /// The same of emit stalls.
    pub past_emit_stalls: PastStalls,
    /// Every data link that ends here, also one that waits for another socket.
    pub links: Vec<LinkStats>,
    /// What the sockets of each waited for.
    pub(crate) sockets: BTreeMap<LinkId, SocketAccount>,
    /// How each sends.
    pub(crate) zero_copy: ZeroCopyReport,
    /// Attachments, partitions, gates and links.
    pub counts: ShardCounts,
    /// Payload bytes moved since the start, both directions: what decides where new clients go.
    pub bytes_total: u64,
    /// The CPU that it ran on then.
    pub cpu: usize,
    /// How long turns of the loop took.
    pub turns: TurnStats,
    /// What the io_uring of this shard can do, in one line.
    pub ring_level: String,
}

/// How many of each thing a shard holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShardCounts {
    /// Client sessions.
    pub attachments: u32,
    /// Result partitions.
    pub partitions: u32,
    /// Input gates.
    pub gates: u32,
    /// Data links.
    pub links: u32,
}

/// The control thread's end of a shard's mailbox.
#[derive(Clone)]
pub struct ShardSender {
    shard: u16,
    messages: mpsc::Sender<ToShard>,
    doorbell: Arc<OwnedFd>,
}

/// The shard's end of its mailbox.
pub struct ShardInbox {
    messages: mpsc::Receiver<ToShard>,
    doorbell: Arc<OwnedFd>,
}

/// Makes the mailbox of one shard.
///
/// # Errors
/// The kernel's, when no file descriptor can be had.
pub fn mailbox(shard: u16) -> Result<(ShardSender, ShardInbox), Errno> {
    let doorbell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
    let (sender, receiver) = mpsc::channel();
    Ok((
        ShardSender { shard, messages: sender, doorbell: Arc::clone(&doorbell) },
        ShardInbox { messages: receiver, doorbell },
    ))
}

impl ShardSender {
    /// Which shard this leads to.
    #[must_use]
    pub fn shard(&self) -> u16 {
        self.shard
    }

    /// Puts a message in and wakes the shard. `false`: the shard has ended and the message was dropped.
    pub fn send(&self, message: ToShard) -> bool {
        if self.messages.send(message).is_err() {
            return false;
        }
        // The only failure is EAGAIN at a counter of 2^64 - 2, at which the shard is awake anyway.
        let _ = rustix::io::write(&self.doorbell, &1_u64.to_ne_bytes());
        true
    }
}

impl ShardInbox {
    /// The next message, if there is one.
    pub fn next(&self) -> Option<ToShard> {
        self.messages.try_recv().ok()
    }

    /// The descriptor that becomes readable when a message was put in.
    #[must_use]
    pub fn doorbell(&self) -> BorrowedFd<'_> {
        self.doorbell.as_fd()
    }

    /// Takes the doorbell's count, so that the next message rings it anew. Call before draining with [`Self::next`].
    pub fn hush(&self) {
        let mut count = [0_u8; 8];
        // EAGAIN means that it had not rung.
        let _ = rustix::io::read(&self.doorbell, &mut count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_keep_their_order_and_ring_the_doorbell() {
        let (sender, inbox) = mailbox(3).expect("a mailbox");
        assert_eq!(sender.shard(), 3);
        assert!(sender.send(ToShard::Drain));
        assert!(sender.send(ToShard::Stop));
        let mut count = [0_u8; 8];
        assert_eq!(rustix::io::read(inbox.doorbell(), &mut count), Ok(8));
        assert_eq!(u64::from_ne_bytes(count), 2);
        assert!(matches!(inbox.next(), Some(ToShard::Drain)));
        assert!(matches!(inbox.next(), Some(ToShard::Stop)));
        assert!(inbox.next().is_none());
        inbox.hush();
        drop(inbox);
        assert!(!sender.send(ToShard::Drain));
    }
}
