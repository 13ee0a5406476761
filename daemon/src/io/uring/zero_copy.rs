//! Zero-copy send: one SENDMSG_ZC for a whole batch.
//!
//! It has two completions. The first says what the socket took, as that of a plain send does, and the next send may start.
//! If it has F_MORE set, whatever its result, a *notice* follows once the kernel no longer reads the memory: when the peer
//! has acknowledged all of it, or the connection has gone. A socket that was closed may live on in the kernel for that, so
//! the batch waits in a table of its own. A send that failed is different: nothing of it is in the socket, its notice comes
//! at once, and its end is told when it has come.

use io_uring::{cqueue, opcode, types};

use super::Uring;
use super::queue::Operation;
use crate::io::zero_copy::{REPORT_USAGE, USAGE_COPIED};
use crate::io::{Completion, Errno, HoldId, RingError, SendBatch, SocketSlot};

/// A batch that the kernel may read.
enum Held {
    /// It is with its socket: the first completion has not come.
    Sending,
    /// The socket took it, or a part.
    Taken(SendBatch),
    /// The send failed; the socket has the batch, and is told when the notice has come.
    Failed(Errno),
}

/// Batches of zero-copy sends, by number.
#[derive(Default)]
pub(super) struct Holds {
    table: Vec<Option<Held>>,
    free: Vec<u32>,
    /// Whether the kernel is asked whether it copied.
    is_usage_asked: bool,
}

impl Holds {
    pub(super) fn new(is_usage_asked: bool) -> Self {
        Self { is_usage_asked, ..Self::default() }
    }

    /// How many numbers are in use.
    pub(super) fn in_use(&self) -> u64 {
        self.table.len().saturating_sub(self.free.len()) as u64
    }

    fn take_number(&mut self) -> Option<u32> {
        if let Some(number) = self.free.pop() {
            self.set(number, Held::Sending);
            return Some(number);
        }
        let number = u32::try_from(self.table.len()).ok()?;
        self.table.push(Some(Held::Sending));
        Some(number)
    }

    fn set(&mut self, number: u32, held: Held) {
        if let Some(entry) = self.table.get_mut(number as usize) {
            *entry = Some(held);
        }
    }

    fn release(&mut self, number: u32) -> Option<Held> {
        let held = self.table.get_mut(number as usize)?.take()?;
        self.free.push(number);
        Some(held)
    }
}

impl Uring {
    pub(super) fn start_zero_copy(
        &mut self,
        slot: SocketSlot,
        batch: SendBatch,
    ) -> Result<(), (RingError, SendBatch)> {
        let socket = match self.sockets.get_mut(slot) {
            Some(socket) if !socket.closing && socket.batch.is_none() => socket,
            // Refused in the words of a plain send.
            _ => return self.start_send(slot, batch),
        };
        if let Err(error) = socket.message.set(&batch) {
            return Err((RingError::socket(format!("send: {error}"), Errno(libc::EINVAL)), batch));
        }
        let Some(number) = self.holds.take_number() else {
            return self.start_send(slot, batch);
        };
        let place = slot.index() as u16;
        let usage = if self.holds.is_usage_asked { REPORT_USAGE } else { 0 };
        let entry = opcode::SendMsgZc::new(types::Fixed(u32::from(place)), &raw const socket.message.header)
            .ioprio(usage)
            .flags(libc::MSG_NOSIGNAL as u32)
            .build()
            .user_data(Operation::SendZeroCopy.numbered(number, place));
        socket.batch = Some(batch);
        socket.hold = Some(number);
        // SAFETY: the message is boxed and is not touched before the batch is taken out of the socket, which happens when
        // the first completion was taken: the kernel has copied it by then. The ranges that it names lie in the batch's
        // headers and in regions that the batch keeps alive; the batch is kept until the last completion, and moving it
        // moves neither.
        unsafe { self.queue.push(entry) };
        Ok(())
    }

    pub(super) fn handle_zero_copy(
        &mut self,
        number: u32,
        place: u16,
        result: i32,
        flags: u32,
    ) -> Option<Completion> {
        if cqueue::notif(flags) {
            return self.handle_notice(number, place, result);
        }
        let (slot, socket) = self.sockets.at_mut(place).filter(|(_, socket)| socket.hold == Some(number))?;
        let outcome = match u32::try_from(result) {
            Ok(bytes) => Ok(bytes),
            Err(_) if result.saturating_neg() == libc::EINTR => Ok(0),
            Err(_) => Err(Errno(result.saturating_neg())),
        };
        match (cqueue::more(flags), outcome) {
            (false, outcome) => {
                self.holds.release(number);
                self.end_zero_copy(slot, outcome)
            }
            (true, Err(errno)) => {
                self.holds.set(number, Held::Failed(errno));
                None
            }
            (true, Ok(bytes)) => {
                socket.hold = None;
                let batch = socket.batch.take()?;
                self.holds.set(number, Held::Taken(batch));
                self.finish_close(slot);
                Some(Completion::SentHeld { socket: slot, bytes, hold: HoldId(number) })
            }
        }
    }

    /// The kernel no longer reads a batch.
    fn handle_notice(&mut self, number: u32, place: u16, result: i32) -> Option<Completion> {
        match self.holds.release(number)? {
            Held::Taken(batch) => {
                let copied = self.holds.is_usage_asked.then_some(result.cast_unsigned() & USAGE_COPIED != 0);
                Some(Completion::Released { hold: HoldId(number), copied, batch })
            }
            Held::Failed(errno) => {
                // Its socket is still there: it is busy until now.
                let (slot, _) = self.sockets.at_mut(place)?;
                self.end_zero_copy(slot, Err(errno))
            }
            Held::Sending => None,
        }
    }

    /// A send has ended, and nothing of it is with the kernel.
    fn end_zero_copy(&mut self, slot: SocketSlot, result: Result<u32, Errno>) -> Option<Completion> {
        let socket = self.sockets.get_mut(slot)?;
        socket.hold = None;
        let batch = socket.batch.take()?;
        self.finish_close(slot);
        Some(Completion::Sent { socket: slot, result, batch })
    }
}
