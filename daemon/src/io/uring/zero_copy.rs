//! Zero-copy send: one SENDMSG_ZC for a whole batch.
//!
//! It has two completions. The first says what the socket took, as that of a plain send does, and the next send may start.
//! If it has F_MORE set, whatever its result, a *notice* follows once the kernel no longer reads the memory: when the peer
//! has acknowledged all of it, or the connection has gone. A socket that was closed may live on in the kernel for that, so
//! the batch waits in a table of its own. A send that failed is different: nothing of it is in the socket, its notice comes
//! at once, and its end is told when it has come.
//!
//! Of a batch that waited in the packet that was begun for another one, the kernel (since 6.10) says that it was copied, whether
//! it was or not: it takes note of what became of a packet with the first batch in it only. All of them are let go of
//! together, and the first is told of first. So one that follows directly on another of its socket that was not copied is
//! taken for one of those.

use io_uring::{cqueue, opcode, types};

use super::Uring;
use super::fixed::{Kernel, Named};
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

/// A batch, and what it has of the region that it names, if it names one.
struct Hold {
    held: Held,
    named: Option<Named>,
}

/// Batches of zero-copy sends, by number.
#[derive(Default)]
pub(super) struct Holds {
    table: Vec<Option<Hold>>,
    free: Vec<u32>,
    /// Whether the kernel is asked whether it copied.
    is_usage_asked: bool,
    /// The place of the socket that the last completion was of, if that was the notice of a batch that was not copied.
    uncopied: Option<u16>,
}

impl Holds {
    pub(super) fn new(is_usage_asked: bool) -> Self {
        Self { is_usage_asked, ..Self::default() }
    }

    /// What comes next does not follow directly on a notice.
    pub(super) fn interrupt(&mut self) {
        self.uncopied = None;
    }

    /// Whether a batch was copied of which the kernel says so or not.
    fn judge(&mut self, place: u16, is_said: bool) -> bool {
        let is_copied = is_said && self.uncopied != Some(place);
        self.uncopied = (!is_copied).then_some(place);
        is_copied
    }

    /// How many numbers are in use.
    pub(super) fn in_use(&self) -> u64 {
        self.table.len().saturating_sub(self.free.len()) as u64
    }

    fn take_number(&mut self) -> Option<u32> {
        let hold = Some(Hold { held: Held::Sending, named: None });
        if let Some(number) = self.free.pop() {
            *self.table.get_mut(number as usize)? = hold;
            return Some(number);
        }
        let number = u32::try_from(self.table.len()).ok()?;
        self.table.push(hold);
        Some(number)
    }

    fn get_mut(&mut self, number: u32) -> Option<&mut Hold> {
        self.table.get_mut(number as usize)?.as_mut()
    }

    fn release(&mut self, number: u32) -> Option<Hold> {
        let hold = self.table.get_mut(number as usize)?.take()?;
        self.free.push(number);
        Some(hold)
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
        let Self { fixed, queue, registrar, .. } = self;
        let named = fixed.name(&batch, &mut Kernel { queue, registrar });
        if let Err(error) = socket.message.set(&batch, named.map(|(_, headers)| headers)) {
            self.let_go(named.map(|(named, _)| named));
            return Err((RingError::socket(format!("send: {error}"), Errno(libc::EINVAL)), batch));
        }
        let named = named.map(|(named, _)| named);
        // There are fewer sockets than numbers, and a socket has one at a time; what is outstanding is bounded as well.
        let Some(number) = self.holds.take_number() else {
            self.let_go(named);
            return self.start_send(slot, batch);
        };
        if let Some(hold) = self.holds.get_mut(number) {
            hold.named = named;
        }
        let place = slot.index() as u16;
        let usage = if self.holds.is_usage_asked { REPORT_USAGE } else { 0 };
        let entry = opcode::SendMsgZc::new(types::Fixed(u32::from(place)), &raw const socket.message.header)
            .ioprio(usage)
            .buf_index(named.map(Named::number))
            .flags(libc::MSG_NOSIGNAL as u32)
            .build()
            .user_data(Operation::SendZeroCopy.numbered(number, place));
        socket.batch = Some(batch);
        socket.hold = Some(number);
        // SAFETY: the message is boxed and is not touched before the batch is taken out of the socket, which happens when
        // the first completion was taken: the kernel has copied it by then. The ranges that it names lie in the batch's
        // headers, or where those were copied to in the tail of a region, and in regions that the batch keeps alive; the
        // batch, and that part of the tail, are kept until the last completion, and moving the batch moves nothing of it.
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
        self.holds.interrupt();
        let (slot, socket) = self.sockets.at_mut(place).filter(|(_, socket)| socket.hold == Some(number))?;
        let outcome = match u32::try_from(result) {
            Ok(bytes) => Ok(bytes),
            Err(_) if result.saturating_neg() == libc::EINTR => Ok(0),
            Err(_) => Err(Errno(result.saturating_neg())),
        };
        match (cqueue::more(flags), outcome) {
            (false, outcome) => {
                let named = self.holds.release(number).and_then(|hold| hold.named);
                self.end_zero_copy(slot, named, outcome)
            }
            (true, Err(errno)) => {
                self.holds.get_mut(number)?.held = Held::Failed(errno);
                None
            }
            (true, Ok(bytes)) => {
                socket.hold = None;
                let batch = socket.batch.take()?;
                self.holds.get_mut(number)?.held = Held::Taken(batch);
                self.finish_close(slot);
                Some(Completion::SentHeld { socket: slot, bytes, hold: HoldId(number) })
            }
        }
    }

    /// The kernel no longer reads a batch.
    fn handle_notice(&mut self, number: u32, place: u16, result: i32) -> Option<Completion> {
        let Hold { held, named } = self.holds.release(number)?;
        match held {
            Held::Taken(batch) => {
                self.let_go(named);
                let is_said = result.cast_unsigned() & USAGE_COPIED != 0;
                let is_copied = self.holds.judge(place, is_said);
                let copied = self.holds.is_usage_asked.then_some(is_copied);
                Some(Completion::Released { hold: HoldId(number), copied, batch })
            }
            Held::Failed(errno) => {
                // Its socket is still there: it is busy until now.
                let (slot, _) = self.sockets.at_mut(place)?;
                self.end_zero_copy(slot, named, Err(errno))
            }
            Held::Sending => None,
        }
    }

    /// A send has ended, and nothing of it is with the kernel.
    fn end_zero_copy(
        &mut self,
        slot: SocketSlot,
        named: Option<Named>,
        result: Result<u32, Errno>,
    ) -> Option<Completion> {
        let result = match named {
            Some(named) => self.judge_named(named, result),
            None => result,
        };
        let socket = self.sockets.get_mut(slot)?;
        socket.hold = None;
        let batch = socket.batch.take()?;
        self.finish_close(slot);
        Some(Completion::Sent { socket: slot, result, batch })
    }

    /// A send has ended that named its memory. If it was refused for that, it counts as a short write of 0 bytes: what was
    /// in it is planned again, and names nothing.
    fn judge_named(&mut self, named: Named, result: Result<u32, Errno>) -> Result<u32, Errno> {
        let result = match result {
            // The pages of a registration are there whatever a client does, so EFAULT is no fault of a client's.
            Err(errno) if matches!(errno.0, libc::EINVAL | libc::EFAULT) => {
                self.fixed.handle_refused(named, errno);
                Ok(0)
            }
            result => result,
        };
        self.let_go(Some(named));
        result
    }

    /// The kernel reads nothing any more of what a batch named.
    fn let_go(&mut self, named: Option<Named>) {
        let Self { fixed, queue, registrar, .. } = self;
        if let Some(named) = named {
            fixed.let_go(named, &mut Kernel { queue, registrar });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_follows_directly_on_what_was_not_copied_shared_its_packet() {
        let mut holds = Holds::new(true);
        assert!(holds.judge(1, true), "the first of all");
        assert!(holds.judge(1, true));
        for (is_said, is_copied) in
            [(false, false), (true, false), (true, false), (false, false), (true, false)]
        {
            assert_eq!(holds.judge(1, is_said), is_copied);
        }
        assert!(holds.judge(2, true), "of another socket");
        assert!(!holds.judge(1, false));
        holds.interrupt();
        assert!(holds.judge(1, true), "something else came between");
    }
}
