//! Receive: a RECV that lasts, into buffers that all sockets share; or on older kernels one RECV at a time, into a
//! buffer of the socket's own.
//!
//! A lasting receive ends when the buffers are used up (ENOBUFS). It is started again only once a buffer came back,
//! since it would end at once otherwise: meanwhile bytes wait in the socket, and the peer's window closes.

use io_uring::{cqueue, opcode, types};

use super::Uring;
use super::memory::{BUFFER_GROUP, ReceiveMemory};
use super::queue::Operation;
use super::socket::Receiving;
use crate::io::{Chunk, Completion, Errno, RingError, SocketSlot};

impl Uring {
    pub(super) fn start_receive(&mut self, slot: SocketSlot) -> Result<(), RingError> {
        let Some(socket) = self.sockets.get_mut(slot).filter(|socket| !socket.closing) else {
            return Err(RingError::socket("receive on a closed socket", Errno(libc::ENOTCONN)));
        };
        match socket.receiving {
            Receiving::Off => self.arm_receive(slot),
            Receiving::Armed | Receiving::Starved | Receiving::Held => Ok(()),
            Receiving::Ended => Err(RingError::socket("receive after the end", Errno(libc::ENOTCONN))),
        }
    }

    fn arm_receive(&mut self, slot: SocketSlot) -> Result<(), RingError> {
        let Some(socket) = self.sockets.get_mut(slot) else {
            return Ok(());
        };
        let place = slot.index() as u16;
        let descriptor = types::Fixed(u32::from(place));
        let entry = match &mut self.memory {
            ReceiveMemory::Shared(_) => opcode::RecvMulti::new(descriptor, BUFFER_GROUP).build(),
            ReceiveMemory::Staging(staging) => {
                let buffer = staging
                    .take()
                    .map_err(|error| RingError::socket("memory to receive into", Errno::from(error)))?;
                socket.staging = Some(buffer);
                opcode::Recv::new(descriptor, staging.address(buffer), staging.buffer_bytes()).build()
            }
        };
        socket.receiving = Receiving::Armed;
        // SAFETY: both kinds of memory live until every last completion was taken. A staging buffer is this entry's
        // alone until then; a shared buffer is the kernel's until it says that it is done with it.
        unsafe { self.queue.push(entry.user_data(Operation::Receive.user_data(place))) };
        Ok(())
    }

    pub(super) fn handle_received(&mut self, place: u16, result: i32, flags: u32) -> Option<Completion> {
        let tag = self.tag;
        let (slot, socket) = self.sockets.at_mut(place)?;
        let more = cqueue::more(flags);
        if !more {
            socket.receiving = Receiving::Off;
        }
        let staging = if more { None } else { socket.staging.take() };
        let closing = socket.closing;
        let range = match &mut self.memory {
            ReceiveMemory::Shared(shared) => shared.handle_filled(result, flags),
            ReceiveMemory::Staging(memory) => memory.handle_filled(staging, result),
        };
        let chunk =
            range.map(|(buffer, offset, bytes)| Chunk { ring: tag, buffer, offset, bytes, socket: slot });
        if closing {
            if let Some(chunk) = chunk {
                self.handle_released(chunk);
            }
            self.finish_close(slot);
            return None;
        }
        match chunk {
            Some(chunk) => {
                let resumed = if more { Ok(()) } else { self.resume_receive(slot) };
                if let Err(error) = resumed {
                    // The bytes come first, then the reason why there are no more.
                    self.ready.push_back(Completion::ReceiveFailed { socket: slot, errno: error.errno });
                }
                Some(Completion::Received { socket: slot, chunk })
            }
            None => self.handle_receive_ended(slot, result),
        }
    }

    /// Goes on after a receive that brought bytes and was the last of its entry.
    fn resume_receive(&mut self, slot: SocketSlot) -> Result<(), RingError> {
        if let ReceiveMemory::Staging(_) = self.memory {
            if let Some(socket) = self.sockets.get_mut(slot) {
                socket.receiving = Receiving::Held;
            }
            return Ok(());
        }
        self.counters.rearmed += 1;
        self.arm_receive(slot)
    }

    fn handle_receive_ended(&mut self, slot: SocketSlot, result: i32) -> Option<Completion> {
        let resumed = match result.saturating_neg() {
            libc::ENOBUFS => {
                self.starve(slot);
                Ok(())
            }
            libc::EINTR => self.arm_receive(slot),
            0 => {
                self.end_receive(slot);
                return Some(Completion::EndOfStream { socket: slot });
            }
            errno if errno > 0 => Err(RingError::socket("receive", Errno(errno))),
            // Bytes in no buffer that the kernel was given.
            _ => Err(RingError::socket("receive", Errno(libc::EIO))),
        };
        let errno = resumed.err()?.errno;
        self.end_receive(slot);
        Some(Completion::ReceiveFailed { socket: slot, errno })
    }

    fn end_receive(&mut self, slot: SocketSlot) {
        if let Some(socket) = self.sockets.get_mut(slot) {
            socket.receiving = Receiving::Ended;
        }
    }

    /// Goes on after the buffers were used up: now, if one came back in the meantime, else when one does.
    fn starve(&mut self, slot: SocketSlot) {
        if self.memory.has_room() {
            self.counters.rearmed += 1;
            // Only staging can fail to arm, and that never runs out of buffers.
            let _ = self.arm_receive(slot);
            return;
        }
        self.counters.receive_starved += 1;
        if let Some(socket) = self.sockets.get_mut(slot) {
            socket.receiving = Receiving::Starved;
            self.starved.push_back(slot.index() as u16);
        }
    }

    pub(super) fn handle_released(&mut self, chunk: Chunk) {
        let slot = chunk.socket;
        match &mut self.memory {
            ReceiveMemory::Shared(shared) => {
                if shared.handle_released(&chunk) {
                    self.resume_starved();
                }
            }
            ReceiveMemory::Staging(staging) => {
                staging.give(chunk.buffer);
                let held = |socket: &&mut super::socket::Socket| socket.receiving == Receiving::Held;
                if self.sockets.get_mut(slot).filter(held).is_some()
                    && let Err(error) = self.arm_receive(slot)
                {
                    self.end_receive(slot);
                    self.ready.push_back(Completion::ReceiveFailed { socket: slot, errno: error.errno });
                }
            }
        }
    }

    fn resume_starved(&mut self) {
        while let Some(place) = self.starved.pop_front() {
            if let Some((slot, socket)) = self.sockets.at_mut(place)
                && socket.receiving == Receiving::Starved
            {
                self.counters.rearmed += 1;
                let _ = self.arm_receive(slot);
            }
        }
    }
}
