//! The ring for the kernel.
//!
//! | file | holds |
//! |---|---|
//! | `setup` | making a ring, on any thread, and moving it to its own |
//! | `queue` | the submission and completion queues, entering the kernel |
//! | `socket` | the table of sockets |
//! | `memory` | buffers to receive into |
//! | `fixed` | regions that are registered, so that sends can name them |
//! | `send`, `zero_copy`, `receive`, `watch`, `close` | one operation each: how it starts and what its completion means |
//!
//! Each entry handed to the kernel carries its operation and the place in the table that it is for. The kernel
//! answers each with exactly one *last* completion. A place in a table is free only after the last completion of
//! everything that was started for it, so a completion can never meet a stranger.

mod close;
mod fixed;
mod memory;
mod queue;
mod receive;
mod send;
mod setup;
mod socket;
#[cfg(test)]
mod tests;
mod watch;
mod zero_copy;

use std::collections::VecDeque;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

pub use setup::{UringConfig, UringSetup};

use super::{Chunk, Completion, Ring, RingCounters, RingError, SendBatch, SocketSlot, WatchId};
use crate::memory::SendRegion;
use fixed::{ANSWER_WAIT, Fixed, Kernel, Registrar};
pub(super) use memory::RECEIVE_MEMORY;
use memory::ReceiveMemory;
use queue::{Operation, Queue};
use socket::Sockets;
use watch::Watches;
use zero_copy::Holds;

/// A ring of the kernel, with everything that the kernel may touch through it. Made by [`UringSetup::enable`], on
/// the thread that uses it.
///
/// Dropping it cancels what is in flight and waits until the kernel lets go of the memory.
pub struct Uring {
    /// Tells its chunks from those of other rings.
    tag: u32,
    // In this order, so that the kernel's side goes before the memory that it uses.
    queue: Queue,
    sockets: Sockets,
    holds: Holds,
    fixed: Fixed<fixed::Source>,
    registrar: Registrar,
    watches: Watches,
    memory: ReceiveMemory,
    /// Completions that no entry of the kernel stands for.
    ready: VecDeque<Completion>,
    /// Sockets that receive again once there is memory, by place. Oldest first.
    starved: VecDeque<u16>,
    counters: RingCounters,
}

impl Uring {
    fn handle_completion(&mut self, completion: queue::Entry) -> Option<Completion> {
        let queue::Entry { operation, number, place, result, flags } = completion;
        if operation != Operation::SendZeroCopy {
            self.holds.interrupt();
        }
        match operation {
            Operation::Send => self.handle_sent(place, result),
            Operation::SendZeroCopy => self.handle_zero_copy(number, place, result, flags),
            Operation::Receive => self.handle_received(place, result, flags),
            Operation::Watch => self.handle_watched(place, result, flags),
            Operation::CancelSocket => self.handle_socket_cancelled(place),
            Operation::CancelWatch => self.handle_watch_cancelled(place),
            Operation::Unknown => None,
        }
    }
}

impl Ring for Uring {
    fn add_socket(&mut self, socket: OwnedFd) -> Result<SocketSlot, RingError> {
        self.sockets.add(&mut self.queue, socket)
    }

    fn close_socket(&mut self, socket: SocketSlot) {
        self.start_close(socket);
    }

    fn send(&mut self, socket: SocketSlot, batch: SendBatch) -> Result<(), (RingError, SendBatch)> {
        self.start_send(socket, batch)
    }

    fn send_zero_copy(&mut self, socket: SocketSlot, batch: SendBatch) -> Result<(), (RingError, SendBatch)> {
        self.start_zero_copy(socket, batch)
    }

    fn forget_region(&mut self, region: &Arc<SendRegion>) {
        let Self { fixed, queue, registrar, .. } = self;
        fixed.forget(region, &mut Kernel { queue, registrar });
    }

    fn receive(&mut self, socket: SocketSlot) -> Result<(), RingError> {
        self.start_receive(socket)
    }

    fn watch(&mut self, descriptor: BorrowedFd<'_>, id: WatchId) -> Result<(), RingError> {
        self.watches.add(&mut self.queue, descriptor, id)
    }

    fn unwatch(&mut self, id: WatchId) {
        self.watches.remove(&mut self.queue, id);
    }

    fn park(&mut self, timeout: Option<Duration>) -> Result<(), RingError> {
        self.holds.interrupt();
        let timeout = if self.ready.is_empty() { timeout } else { Some(Duration::ZERO) };
        if !self.fixed.is_asking() {
            return self.queue.park(timeout);
        }
        let outcome = self.queue.park(Some(timeout.map_or(ANSWER_WAIT, |timeout| timeout.min(ANSWER_WAIT))));
        let Self { fixed, queue, registrar, .. } = self;
        fixed.take_answers(&mut Kernel { queue, registrar });
        outcome
    }

    fn next(&mut self) -> Option<Completion> {
        loop {
            if let Some(completion) = self.ready.pop_front() {
                return Some(completion);
            }
            let entry = self.queue.pop()?;
            if let Some(completion) = self.handle_completion(entry) {
                return Some(completion);
            }
        }
    }

    fn bytes(&self, chunk: &Chunk) -> &[u8] {
        if chunk.ring == self.tag { self.memory.bytes(chunk) } else { &[] }
    }

    fn release(&mut self, chunk: Chunk) {
        if chunk.ring == self.tag {
            self.handle_released(chunk);
        }
    }

    fn counters(&self) -> RingCounters {
        RingCounters {
            enters: self.queue.enters(),
            deferred: self.queue.deferred(),
            registered: self.fixed.counters(),
            ..self.counters
        }
    }
}
