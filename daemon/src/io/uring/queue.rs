//! The submission and completion queues, and entering the kernel.

use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::os::fd::RawFd;
use std::ptr::NonNull;
use std::time::Duration;

use io_uring::types::{SubmitArgs, Timespec};
use io_uring::{EnterFlags, IoUring, Submitter, cqueue, squeue};

use crate::io::{Errno, RingError};

/// Longest wait that is asked of the kernel, which takes no larger one than it can count in nanoseconds.
const WAIT_MAX: Duration = Duration::from_hours(24);

/// How long to wait for completions when the kernel was too short of memory to take new entries.
const SHORTAGE_WAIT: Duration = Duration::from_millis(1);

/// What an entry does, as its completion says again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Operation {
    Send = 1,
    Receive = 2,
    Watch = 3,
    CancelSocket = 4,
    CancelWatch = 5,
    SendZeroCopy = 6,
    /// Nothing that this module started.
    Unknown = 0,
}

impl Operation {
    /// What the entry of this operation for this place carries.
    pub(super) const fn user_data(self, place: u16) -> u64 {
        (self as u64) << 56 | place as u64
    }

    /// The same for one of several operations of this kind at that place, told apart by a number.
    pub(super) const fn numbered(self, number: u32, place: u16) -> u64 {
        self.user_data(place) | (number as u64) << 16
    }

    const fn of(user_data: u64) -> (Self, u32, u16) {
        let operation = match user_data >> 56 {
            1 => Self::Send,
            2 => Self::Receive,
            3 => Self::Watch,
            4 => Self::CancelSocket,
            5 => Self::CancelWatch,
            6 => Self::SendZeroCopy,
            _ => Self::Unknown,
        };
        (operation, (user_data >> 16) as u32, user_data as u16)
    }
}

/// One completion, as the kernel wrote it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) operation: Operation,
    /// What [`Operation::numbered`] was given.
    pub(super) number: u32,
    pub(super) place: u16,
    /// Negative for an error.
    pub(super) result: i32,
    pub(super) flags: u32,
}

/// The two queues of one ring, on the thread that enabled it.
pub(super) struct Queue {
    /// Owned: from [`Box::leak`] in [`Queue::enable`] to [`Drop`]. Only shared references to it exist in between.
    ring: NonNull<IoUring>,
    /// Points into `ring`. It remembers the registered descriptor, so there is one for the whole life of the ring.
    pub(super) submitter: ManuallyDrop<Submitter<'static>>,
    /// Entries that found the submission queue full and the kernel unwilling. They go first.
    pub(super) backlog: VecDeque<squeue::Entry>,
    /// Entries handed over whose last completion has not been taken.
    pub(super) in_flight: u64,
    enters: u64,
    deferred: u64,
}

impl Queue {
    /// Makes this thread the one that uses the ring.
    pub(super) fn enable(ring: Box<IoUring>, backlog: usize) -> Result<Self, RingError> {
        let ring = NonNull::from(Box::leak(ring));
        // SAFETY: the allocation lives until `drop`, and from here on nobody makes a unique reference to it.
        let shared: &'static IoUring = unsafe { ring.as_ref() };
        let mut queue = Self {
            ring,
            submitter: ManuallyDrop::new(shared.submitter()),
            backlog: VecDeque::with_capacity(backlog),
            in_flight: 0,
            enters: 0,
            deferred: 0,
        };
        let fatal = |what: &'static str| {
            move |error: std::io::Error| {
                RingError::fatal(what, error.into(), "this is a defect of the daemon")
            }
        };
        queue.submitter.register_enable_rings().map_err(fatal("io_uring_register(ENABLE_RINGS)"))?;
        // Only an optimisation: the ring works without it, and the kernel has room for 16 per thread.
        let _ = queue.submitter.register_ring_fd();
        Ok(queue)
    }

    fn ring(&self) -> &IoUring {
        // SAFETY: the allocation lives until `drop`, and nobody makes a unique reference to it before.
        unsafe { self.ring.as_ref() }
    }

    /// Takes an entry, to be handed to the kernel at the next [`Queue::park`] or before.
    ///
    /// # Safety
    ///
    /// Whatever the entry points at stays valid until its last completion was taken.
    pub(super) unsafe fn push(&mut self, entry: squeue::Entry) {
        self.in_flight += 1;
        if self.backlog.is_empty() {
            // SAFETY: the caller's promise.
            if unsafe { self.try_push(&entry) } {
                return;
            }
            // Full. What is in it can go now; entries are complete by themselves.
            self.enters += 1;
            if self.submitter.submit().is_ok() {
                // SAFETY: the caller's promise.
                if unsafe { self.try_push(&entry) } {
                    return;
                }
            }
        }
        self.backlog.push_back(entry);
    }

    /// # Safety
    ///
    /// As for [`Queue::push`].
    unsafe fn try_push(&self, entry: &squeue::Entry) -> bool {
        // SAFETY: this is the only view of the submission queue, and is gone at the end of the statement. What the
        // entry points at is the caller's promise.
        unsafe { self.ring().submission_shared().push(entry) }.is_ok()
    }

    /// The next completion that is there already.
    pub(super) fn pop(&mut self) -> Option<Entry> {
        // SAFETY: this is the only view of the completion queue, and is gone at the end of the statement.
        let entry: cqueue::Entry = unsafe { self.ring().completion_shared() }.next()?;
        if !cqueue::more(entry.flags()) {
            self.in_flight = self.in_flight.saturating_sub(1);
        }
        let (operation, number, place) = Operation::of(entry.user_data());
        Some(Entry { operation, number, place, result: entry.result(), flags: entry.flags() })
    }

    /// Hands over what was pushed and waits for a completion, as [`crate::io::Ring::park`] says.
    pub(super) fn park(&mut self, timeout: Option<Duration>) -> Result<(), RingError> {
        self.drain_backlog()?;
        let wait = timeout != Some(Duration::ZERO) && self.backlog.is_empty() && !self.has_completion();
        if !wait {
            return if self.needs_enter() { self.enter(false, None).map(|_| ()) } else { Ok(()) };
        }
        let taken = self.enter(true, timeout)?;
        if !taken {
            // The kernel could not take the entries, and would say so again at once.
            let timeout = timeout.map_or(SHORTAGE_WAIT, |timeout| timeout.min(SHORTAGE_WAIT));
            return self.wait_only(timeout);
        }
        Ok(())
    }

    /// Moves waiting entries into the submission queue for as long as the kernel takes them.
    fn drain_backlog(&mut self) -> Result<(), RingError> {
        while let Some(entry) = self.backlog.front() {
            // SAFETY: whoever pushed the entry promised it.
            if unsafe { self.try_push(entry) } {
                self.backlog.pop_front();
            } else if !self.enter(false, None)? {
                break;
            }
        }
        Ok(())
    }

    fn has_completion(&self) -> bool {
        // SAFETY: this is the only view of the completion queue, and is gone at the end of the statement.
        !unsafe { self.ring().completion_shared() }.is_empty()
    }

    /// Whether the kernel has work to do that only entering it starts.
    fn needs_enter(&self) -> bool {
        // SAFETY: this is the only view of the submission queue, and is gone at the end of the function.
        let submission = unsafe { self.ring().submission_shared() };
        !submission.is_empty() || submission.taskrun() || submission.cq_overflow()
    }

    /// Enters the kernel. False if it took nothing for now.
    fn enter(&mut self, wait: bool, timeout: Option<Duration>) -> Result<bool, RingError> {
        self.enters += 1;
        let result = match (wait, timeout) {
            (false, _) => {
                // SAFETY: this is the only view of the submission queue, and is gone at the end of the statement.
                let entries = unsafe { self.ring().submission_shared() }.len();
                let entries = u32::try_from(entries).unwrap_or(u32::MAX);
                // Deferred work runs only when completions are asked for, so they are, without waiting.
                // SAFETY: the flag takes no argument, and the entries were promised when they were pushed.
                unsafe {
                    self.submitter.enter::<libc::sigset_t>(entries, 0, EnterFlags::GETEVENTS.bits(), None)
                }
            }
            (true, None) => self.submitter.submit_and_wait(1),
            (true, Some(timeout)) => {
                let timeout = Timespec::from(timeout.min(WAIT_MAX));
                self.submitter.submit_with_args(1, &SubmitArgs::new().timespec(&timeout))
            }
        };
        self.handle_entered(result)
    }

    /// Waits for a completion and hands nothing over.
    fn wait_only(&mut self, timeout: Duration) -> Result<(), RingError> {
        self.enters += 1;
        let timeout = Timespec::from(timeout);
        let arguments = SubmitArgs::new().timespec(&timeout);
        let flags = EnterFlags::GETEVENTS | EnterFlags::EXT_ARG;
        // SAFETY: with EXT_ARG the argument is a SubmitArgs, which lives until the call returns.
        let result = unsafe { self.submitter.enter(0, 1, flags.bits(), Some(&arguments)) };
        self.handle_entered(result).map(|_| ())
    }

    /// What the outcome of entering the kernel means. False if it took nothing for now.
    fn handle_entered(&mut self, result: std::io::Result<usize>) -> Result<bool, RingError> {
        let Err(error) = result else {
            return Ok(true);
        };
        let errno = Errno::from(error);
        match errno.0 {
            // The time is over, or a signal came.
            libc::ETIME | libc::EINTR => Ok(true),
            // No room for completions until some are taken, or no memory for entries.
            libc::EBUSY | libc::EAGAIN | libc::ENOMEM => {
                self.deferred += 1;
                Ok(false)
            }
            libc::EBADR => Err(RingError::fatal(
                "io_uring_enter",
                errno,
                "the kernel had no memory for a completion and dropped it; give the machine more memory",
            )),
            _ => Err(RingError::fatal("io_uring_enter", errno, "this is a defect of the daemon")),
        }
    }

    /// Puts a descriptor into the table of fixed files, or with -1 takes it out.
    pub(super) fn set_file(&self, place: u16, descriptor: RawFd) -> Result<(), Errno> {
        match self.submitter.register_files_update(u32::from(place), &[descriptor]) {
            Ok(1) => Ok(()),
            Ok(_) => Err(Errno(libc::EIO)),
            Err(error) => Err(error.into()),
        }
    }

    pub(super) const fn enters(&self) -> u64 {
        self.enters
    }

    pub(super) const fn deferred(&self) -> u64 {
        self.deferred
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // A registered descriptor would keep the ring alive until the thread ends.
        let _ = self.submitter.unregister_ring_fd();
        // SAFETY: it is not used again.
        unsafe { ManuallyDrop::drop(&mut self.submitter) };
        // SAFETY: the allocation came from a Box, and the submitter, the only thing that pointed into it, is gone.
        drop(unsafe { Box::from_raw(self.ring.as_ptr()) });
    }
}
