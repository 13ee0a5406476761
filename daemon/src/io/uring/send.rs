//! Send: one SENDMSG for a whole batch, straight from the send regions.
//!
//! There is never a second one in flight on a socket, so bytes cannot overtake each other. Nothing makes the kernel
//! send all of it: after a short write the caller decides anew what comes next.

use io_uring::{opcode, types};

use super::Uring;
use super::queue::Operation;
use super::socket::Message;
use crate::io::{BatchError, Completion, Errno, RingError, SendBatch, SocketSlot};

impl Uring {
    pub(super) fn start_send(
        &mut self,
        slot: SocketSlot,
        batch: SendBatch,
    ) -> Result<(), (RingError, SendBatch)> {
        let Some(socket) = self.sockets.get_mut(slot).filter(|socket| !socket.closing) else {
            return Err((RingError::socket("send on a closed socket", Errno(libc::ENOTCONN)), batch));
        };
        if socket.batch.is_some() {
            return Err((RingError::retry("send while one is in flight", Errno(libc::EALREADY)), batch));
        }
        if let Err(error) = socket.message.set(&batch, None) {
            return Err((RingError::socket(format!("send: {error}"), Errno(libc::EINVAL)), batch));
        }
        let place = slot.index() as u16;
        let entry = opcode::SendMsg::new(types::Fixed(u32::from(place)), &raw const socket.message.header)
            .flags(libc::MSG_NOSIGNAL as u32)
            .build()
            .user_data(Operation::Send.user_data(place));
        socket.batch = Some(batch);
        // SAFETY: the message is boxed and is not touched before the batch is taken out again, which happens when
        // the last completion was taken. The ranges that it names lie in the batch's headers and in regions that the
        // batch keeps alive; moving the batch moves neither.
        unsafe { self.queue.push(entry) };
        Ok(())
    }

    pub(super) fn handle_sent(&mut self, place: u16, result: i32) -> Option<Completion> {
        let (slot, socket) = self.sockets.at_mut(place)?;
        let batch = socket.batch.take()?;
        let result = match u32::try_from(result) {
            Ok(bytes) => Ok(bytes),
            // Interrupted before the socket took anything: as a short write of 0 bytes.
            Err(_) if result.saturating_neg() == libc::EINTR => Ok(0),
            Err(_) => Err(Errno(result.saturating_neg())),
        };
        self.finish_close(slot);
        Some(Completion::Sent { socket: slot, result, batch })
    }
}

impl Message {
    /// Names the ranges of this batch, with its headers where they were copied to, if they were. Allocates only for more
    /// parts than any batch of this socket had before.
    pub(super) fn set(&mut self, batch: &SendBatch, headers: Option<*const u8>) -> Result<(), BatchError> {
        self.parts.clear();
        let parts = &mut self.parts;
        batch.for_each_range(headers, |address, bytes| {
            parts.push(libc::iovec { iov_base: address.cast_mut().cast(), iov_len: bytes as usize });
        })?;
        self.header.msg_iov = self.parts.as_mut_ptr();
        // Another integer in each C library; there are never more than the kernel takes.
        self.header.msg_iovlen = self.parts.len() as _;
        Ok(())
    }
}
