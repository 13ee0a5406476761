//! Watch: a POLL that lasts.
//!
//! It reports changes and not states: each signal of a descriptor is reported once, although nobody reads the
//! descriptor. A signal from before the watch is reported at its start.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use io_uring::{cqueue, opcode, types};

use super::Uring;
use super::queue::{Operation, Queue};
use crate::io::{Completion, Errno, RingError, WatchId};

/// One watched descriptor, or a free place.
struct Watch {
    id: WatchId,
    /// None: the place is free.
    descriptor: Option<OwnedFd>,
    /// Whether [`Watches::remove`] was called.
    removed: bool,
    /// Whether the kernel has the entry that polls.
    armed: bool,
    /// Whether the kernel has an entry that cancels.
    cancelling: bool,
}

/// All watches of a ring.
#[derive(Default)]
pub(super) struct Watches {
    table: Vec<Watch>,
    free: Vec<u16>,
}

impl Watches {
    pub(super) fn add(
        &mut self,
        queue: &mut Queue,
        descriptor: BorrowedFd<'_>,
        id: WatchId,
    ) -> Result<(), RingError> {
        // The kernel resolves the number only when the entry is handed over; the caller may have closed it by then.
        let descriptor = descriptor
            .try_clone_to_owned()
            .map_err(|error| RingError::socket("dup of a watched descriptor", error.into()))?;
        let place = match self.free.pop() {
            Some(place) => place,
            None => u16::try_from(self.table.len())
                .map_err(|_| RingError::socket("table of watches", Errno(libc::EMFILE)))?,
        };
        let watch =
            Watch { id, descriptor: Some(descriptor), removed: false, armed: false, cancelling: false };
        match self.table.get_mut(usize::from(place)) {
            Some(free) => *free = watch,
            None => self.table.push(watch),
        }
        self.arm(queue, place);
        Ok(())
    }

    fn arm(&mut self, queue: &mut Queue, place: u16) {
        let Some(watch) = self.table.get_mut(usize::from(place)) else {
            return;
        };
        let Some(descriptor) = &watch.descriptor else {
            return;
        };
        watch.armed = true;
        let entry = opcode::PollAdd::new(types::Fd(descriptor.as_raw_fd()), libc::POLLIN as u32)
            .multi(true)
            .build()
            .user_data(Operation::Watch.user_data(place));
        // SAFETY: the entry points at no memory, and the descriptor stays open until its last completion was taken.
        unsafe { queue.push(entry) };
    }

    pub(super) fn remove(&mut self, queue: &mut Queue, id: WatchId) {
        let wanted = |watch: &Watch| watch.id == id && watch.descriptor.is_some() && !watch.removed;
        let Some((place, watch)) = self.table.iter_mut().enumerate().find(|(_, watch)| wanted(watch)) else {
            return;
        };
        let place = place as u16;
        watch.removed = true;
        watch.cancelling = true;
        let entry = opcode::AsyncCancel::new(Operation::Watch.user_data(place))
            .build()
            .user_data(Operation::CancelWatch.user_data(place));
        // SAFETY: the entry points at no memory.
        unsafe { queue.push(entry) };
    }

    /// Cancels all watches.
    pub(super) fn remove_all(&mut self, queue: &mut Queue) {
        let ids: Vec<WatchId> = self.table.iter().map(|watch| watch.id).collect();
        for id in ids {
            self.remove(queue, id);
        }
    }

    /// Frees the place if the kernel has no entry for it.
    fn finish(&mut self, place: u16) {
        if let Some(watch) = self.table.get_mut(usize::from(place))
            && watch.descriptor.is_some()
            && !watch.armed
            && !watch.cancelling
        {
            watch.descriptor = None;
            self.free.push(place);
        }
    }
}

impl Uring {
    pub(super) fn handle_watched(&mut self, place: u16, result: i32, flags: u32) -> Option<Completion> {
        let watch = self.watches.table.get_mut(usize::from(place))?;
        watch.armed = cqueue::more(flags);
        let (id, armed, removed) = (watch.id, watch.armed, watch.removed);
        if removed {
            self.watches.finish(place);
            return None;
        }
        if result < 0 {
            self.watches.finish(place);
            return Some(Completion::WatchFailed { id, errno: Errno(result.saturating_neg()) });
        }
        if !armed {
            self.counters.rearmed += 1;
            self.watches.arm(&mut self.queue, place);
        }
        Some(Completion::Watch { id })
    }

    pub(super) fn handle_watch_cancelled(&mut self, place: u16) -> Option<Completion> {
        self.watches.table.get_mut(usize::from(place))?.cancelling = false;
        self.watches.finish(place);
        None
    }
}
