//! Close: shut down, cancel, wait for the last completion, then let go of the descriptor.
//!
//! Also the end of the whole ring, which is the same for everything at once.

use std::mem;
use std::time::Duration;

use io_uring::opcode;
use rustix::net::Shutdown;

use super::Uring;
use super::fixed::{Fixed, Kernel};
use super::memory::{ReceiveMemory, Staging};
use super::queue::Operation;
use super::socket::Receiving;
use crate::io::{Completion, Ring, SocketSlot};

/// How often the end of a ring looks whether the kernel has let go.
const DRAIN_STEPS: u32 = 200;

/// The same when nothing is left but what the kernel may have to send again.
const HOLDS_DRAIN_STEPS: u32 = 20;

/// How long each look takes at most.
const DRAIN_WAIT: Duration = Duration::from_millis(10);

impl Uring {
    pub(super) fn start_close(&mut self, slot: SocketSlot) {
        let Some(socket) = self.sockets.get_mut(slot).filter(|socket| !socket.closing) else {
            return;
        };
        socket.closing = true;
        if let Some(descriptor) = &socket.descriptor {
            // Fails only for a connection that is gone already.
            let _ = rustix::net::shutdown(descriptor, Shutdown::Both);
        }
        let place = slot.index() as u16;
        let sending = socket.batch.is_some().then(|| match socket.hold {
            None => Operation::Send.user_data(place),
            Some(hold) => Operation::SendZeroCopy.numbered(hold, place),
        });
        let receiving = (socket.receiving == Receiving::Armed).then(|| Operation::Receive.user_data(place));
        if !matches!(socket.receiving, Receiving::Armed) {
            socket.receiving = Receiving::Ended;
        }
        for operation in [sending, receiving].into_iter().flatten() {
            socket.cancellations += 1;
            let entry = opcode::AsyncCancel::new(operation)
                .build()
                .user_data(Operation::CancelSocket.user_data(place));
            // SAFETY: the entry points at no memory.
            unsafe { self.queue.push(entry) };
        }
        self.starved.retain(|starved| *starved != place);
        self.finish_close(slot);
    }

    /// Ends the socket if it is closing and the kernel has no entry for it.
    pub(super) fn finish_close(&mut self, slot: SocketSlot) {
        let Some(socket) = self.sockets.get_mut(slot) else {
            return;
        };
        if socket.closing && !socket.is_busy() {
            self.sockets.remove(&self.queue, slot);
            self.ready.push_back(Completion::Closed { socket: slot });
        }
    }

    pub(super) fn handle_socket_cancelled(&mut self, place: u16) -> Option<Completion> {
        // Whether it found what it was to cancel does not matter: that has its own last completion.
        let (slot, socket) = self.sockets.at_mut(place)?;
        socket.cancellations = socket.cancellations.saturating_sub(1);
        self.finish_close(slot);
        None
    }

    /// Cancels everything and takes completions until the kernel has no entry left, or does not let go for two
    /// seconds. Returns whether it let go.
    pub(super) fn drain(&mut self) -> bool {
        for slot in self.sockets.slots() {
            self.start_close(slot);
        }
        self.watches.remove_all(&mut self.queue);
        for step in 0..DRAIN_STEPS {
            while let Some(completion) = self.next() {
                if let Completion::Received { chunk, .. } = completion {
                    self.release(chunk);
                }
            }
            if self.queue.in_flight == 0 {
                return true;
            }
            // A peer that does not answer keeps what was sent to it in the kernel for as long as its connection lives.
            if step >= HOLDS_DRAIN_STEPS && self.queue.in_flight <= self.holds.in_use() {
                return false;
            }
            if self.queue.park(Some(DRAIN_WAIT)).is_err() {
                return false;
            }
        }
        self.queue.in_flight == 0
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        if self.drain() {
            let Self { fixed, queue, registrar, .. } = self;
            fixed.forget_all(&mut Kernel { queue, registrar });
        } else {
            // The kernel may still read and write this memory, so it is never given back.
            mem::forget(mem::take(&mut self.sockets));
            mem::forget(mem::take(&mut self.holds));
            mem::forget(mem::replace(&mut self.fixed, Fixed::new(false)));
            mem::forget(mem::replace(&mut self.memory, ReceiveMemory::Staging(Staging::new(0))));
        }
    }
}
