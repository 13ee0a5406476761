//! Input and output of a shard: the only module that knows io_uring.
//!
//! A shard sees a [`Ring`]: it starts operations, parks, and takes [`Completion`]s. The ring owns everything that
//! the kernel may touch, from the moment an operation starts until its last completion: sockets, the batches that
//! are being sent and the buffers that are being received into. That rule is what makes the rest sound.
//!
//! - [`uring::Uring`] is the ring for the kernel, one file per operation; [`probe`] finds out what the kernel can do.
//! - `fake::FakeRing` is the ring for tests of the shard loop: the test decides what completes, and when.
//!
//! Nothing here blocks, but for [`Ring::park`].

#![allow(unsafe_code)] // hands addresses to the kernel and reads what the kernel wrote

pub mod accounting;
mod batch;
mod error;
#[cfg(test)]
pub mod fake;
pub mod passed;
pub mod probe;
pub(crate) mod retransmit;
#[cfg(test)]
mod tests;
pub mod uring;
pub mod zero_copy;

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use crate::memory::SendRegion;

pub use batch::{BatchError, PARTS_MAX, SendBatch, SendPart};
pub use error::{Disposition, Errno, RingError};

/// One socket of one ring, from [`Ring::add_socket`] to [`Completion::Closed`]. A stale one is refused: it does not
/// name the socket that took its place in the table, until that place has been taken 65,536 times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SocketSlot(u32);

impl SocketSlot {
    fn new(index: u16, generation: u16) -> Self {
        Self(u32::from(generation) << 16 | u32::from(index))
    }

    /// Place in the table of sockets: below the table's size, and unique among the sockets that are open.
    #[must_use]
    pub const fn index(self) -> usize {
        (self.0 & 0xffff) as usize
    }

    const fn generation(self) -> u16 {
        (self.0 >> 16) as u16
    }
}

/// A batch that the kernel still reads, from [`Completion::SentHeld`] to [`Completion::Released`]. A small number that no
/// other such batch of the ring has: there are no more of them than were ever held at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HoldId(u32);

impl HoldId {
    /// The number.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }
}

/// One watched descriptor, as the caller numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WatchId(pub u32);

/// Bytes that arrived, somewhere in the ring's memory. Read with [`Ring::bytes`]; must go back with
/// [`Ring::release`], or that part of the ring's memory is lost.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a chunk that is not released is memory that the ring has lost"]
pub struct Chunk {
    /// Which ring it belongs to.
    ring: u32,
    /// Which buffer of that ring.
    buffer: u32,
    /// Where in the buffer.
    offset: u32,
    bytes: u32,
    socket: SocketSlot,
}

impl Chunk {
    /// Length in bytes, never 0.
    #[must_use]
    pub const fn bytes(&self) -> u32 {
        self.bytes
    }
}

/// What happened. Everything about one socket comes in the order in which it happened, but for [`Completion::Released`].
#[derive(Debug)]
pub enum Completion {
    /// The send of this socket ended; another may start.
    Sent {
        /// The socket.
        socket: SocketSlot,
        /// Bytes that the socket took, possibly fewer than planned and possibly 0; or why it took none.
        result: Result<u32, Errno>,
        /// The batch, for reuse. What it refers to is no longer read by the kernel.
        batch: SendBatch,
    },
    /// The socket took a zero-copy send, and another may start. The kernel goes on reading the batch.
    SentHeld {
        /// The socket.
        socket: SocketSlot,
        /// Bytes that the socket took, possibly fewer than planned and possibly 0.
        bytes: u32,
        /// Under what the batch comes back.
        hold: HoldId,
    },
    /// The kernel has let go of the batch of a zero-copy send. It comes in no order with anything else, also after the
    /// socket was closed.
    Released {
        /// What [`Completion::SentHeld`] named.
        hold: HoldId,
        /// Whether the kernel says that it has made a copy. None where it does not tell.
        copied: Option<bool>,
        /// The batch, for reuse.
        batch: SendBatch,
    },
    /// Bytes arrived. Receiving goes on by itself.
    Received {
        /// The socket.
        socket: SocketSlot,
        /// The bytes.
        chunk: Chunk,
    },
    /// The peer sends nothing more. Receiving has ended.
    EndOfStream {
        /// The socket.
        socket: SocketSlot,
    },
    /// Receiving has ended because the connection is broken.
    ReceiveFailed {
        /// The socket.
        socket: SocketSlot,
        /// What the kernel answered.
        errno: Errno,
    },
    /// The watched descriptor was signalled at least once since the last one of these.
    Watch {
        /// Which one.
        id: WatchId,
    },
    /// The descriptor cannot be watched any longer; nothing more comes from it.
    WatchFailed {
        /// Which one.
        id: WatchId,
        /// What the kernel answered.
        errno: Errno,
    },
    /// The last word about a socket that [`Ring::close_socket`] was called for. Its descriptor is closed.
    Closed {
        /// The socket.
        socket: SocketSlot,
    },
}

/// Events since the ring was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingCounters {
    /// Times the kernel was entered.
    pub enters: u64,
    /// Times a socket had to wait for receive memory because chunks of all of it were held.
    pub receive_starved: u64,
    /// Times the kernel ended a receive or a watch that was meant to last, so that it was started again.
    pub rearmed: u64,
    /// Times the kernel was short of memory or of room for completions and asked to be called again.
    pub deferred: u64,
    /// What became of registering regions.
    pub registered: RegisteredCounters,
}

/// Regions that zero-copy sends name by a number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegisteredCounters {
    /// Those that are registered now.
    pub regions: u32,
    /// Their size, in bytes.
    pub bytes: u64,
    /// Sends that named one.
    pub sends: u64,
    /// Times that the kernel refused to register one, or a send for what it named.
    pub refused: u64,
    /// Why, the last time; 0 if it has registered one since.
    pub errno: i32,
}

/// The operations of a shard. All of them are for one thread.
pub trait Ring {
    /// Takes a connected stream socket over. Whether it blocks does not matter: operations wait in the kernel.
    ///
    /// # Errors
    ///
    /// [`Disposition::Socket`] when the table of sockets is full or the kernel refuses the descriptor. It is closed.
    fn add_socket(&mut self, socket: OwnedFd) -> Result<SocketSlot, RingError>;

    /// Shuts the socket down and cancels what it has in flight. [`Completion::Sent`] still comes for a send in
    /// flight; what arrives from now on is dropped. [`Completion::Closed`] comes last, but for [`Completion::Released`]:
    /// closing does not wait until the kernel has let go of what was sent. Repeating it has no effect.
    fn close_socket(&mut self, socket: SocketSlot);

    /// Starts to send a batch, at the next [`Ring::park`]. One per socket may be in flight.
    ///
    /// # Errors
    ///
    /// The batch comes back with [`Disposition::Retry`] while another is in flight, else with
    /// [`Disposition::Socket`]: the socket is closed or closing, or the batch is not sound ([`BatchError`]).
    fn send(&mut self, socket: SocketSlot, batch: SendBatch) -> Result<(), (RingError, SendBatch)>;

    /// As [`Ring::send`], but the kernel reads the memory of the batch where it lies, if it can, for as long as it may
    /// have to send it again. Ends in [`Completion::SentHeld`]; or in [`Completion::Sent`], when it failed or the kernel
    /// has let go of the batch already.
    ///
    /// # Errors
    ///
    /// As for [`Ring::send`].
    fn send_zero_copy(&mut self, socket: SocketSlot, batch: SendBatch) -> Result<(), (RingError, SendBatch)>;

    /// No batch that is sent from now on draws on this region. Without it a ring may keep the region in memory.
    fn forget_region(&mut self, region: &Arc<SendRegion>);

    /// Starts to receive, until the stream ends or the socket is closed. Repeating it has no effect.
    ///
    /// # Errors
    ///
    /// [`Disposition::Socket`] when the socket is closed, closing or at its end, or there is no memory for it.
    fn receive(&mut self, socket: SocketSlot) -> Result<(), RingError>;

    /// Reports each time the descriptor becomes readable, until [`Ring::unwatch`]. It is never read: an event counter
    /// that is signalled again is reported again. The ring keeps a duplicate of the descriptor.
    ///
    /// # Errors
    ///
    /// [`Disposition::Socket`] when the descriptor cannot be duplicated.
    fn watch(&mut self, descriptor: BorrowedFd<'_>, id: WatchId) -> Result<(), RingError>;

    /// Ends a watch. Nothing more is reported under this id, unless it is watched again.
    fn unwatch(&mut self, id: WatchId);

    /// Hands everything that was started to the kernel, then waits until there is a completion or `timeout` is over:
    /// None waits for ever, zero does not wait. Returns at once if a completion is there already. Ending early,
    /// without a completion, is not an error.
    ///
    /// # Errors
    ///
    /// [`Disposition::Fatal`]: the ring is of no more use.
    fn park(&mut self, timeout: Option<Duration>) -> Result<(), RingError>;

    /// The next completion that is there already.
    fn next(&mut self) -> Option<Completion>;

    /// The bytes of a chunk. Empty for a chunk of another ring.
    fn bytes(&self, chunk: &Chunk) -> &[u8];

    /// Gives the memory of a chunk back. A chunk of another ring is dropped.
    fn release(&mut self, chunk: Chunk);

    /// What happened so far.
    fn counters(&self) -> RingCounters;
}
