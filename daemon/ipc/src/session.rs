//! Both ends of what an attachment has beside its rings: [`SessionEndpoint`] in the daemon, [`SessionPort`] in the
//! client. A page with the dirty bitmap and the parked flag ([`crate::signal`]), and a doorbell each way.
//!
//! **Client to daemon: an eventfd.** The client adds to it; the daemon polls it and never reads it. **Daemon to
//! client: a pipe.** The daemon keeps the write end to itself, since whoever holds a descriptor of the same open
//! file can clear its O_NONBLOCK and so hang the other; a full pipe means that the client has been rung often enough.
//! The daemon also keeps the read end open: writing never meets a closed pipe (EPIPE, SIGPIPE), and a dead client
//! is noticed by its attach socket.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::pipe::PipeFlags;

use crate::layout::{SessionPlaces, session_places};
use crate::memory::Memory;
use crate::signal::{Marker, Park, Watcher};

/// What the daemon passes to the client.
#[derive(Debug)]
pub struct SessionFds {
    /// The session page.
    pub page: OwnedFd,
    /// The eventfd that the client writes.
    pub doorbell: OwnedFd,
    /// The read end of the pipe that the daemon writes.
    pub wakeup: OwnedFd,
}

/// The daemon's end. One thread, the shard of the attachment.
pub struct SessionEndpoint {
    watcher: Watcher,
    doorbell: OwnedFd,
    wakeup: OwnedFd,
    /// Keeps the pipe open for writing; never read.
    _wakeup_read_end: OwnedFd,
}

impl SessionEndpoint {
    /// Makes the page and the doorbells.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn create() -> io::Result<(Self, SessionFds)> {
        let places = session_places();
        let (memory, page) = Memory::create("weir-session", &places.header)?;
        let (endpoint, doorbell, wakeup) = Self::over(&memory, &places)?;
        Ok((endpoint, SessionFds { page, doorbell, wakeup }))
    }

    /// The daemon's end of this memory, and the doorbells of the client's.
    fn over(memory: &Memory, places: &SessionPlaces) -> io::Result<(Self, OwnedFd, OwnedFd)> {
        let doorbell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (read_end, write_end) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let (clients_doorbell, clients_wakeup) = (doorbell.try_clone()?, read_end.try_clone()?);
        let watcher = Watcher::new(memory.words(places.parked)?, memory.words(places.dirty)?);
        let endpoint = Self { watcher, doorbell, wakeup: write_end, _wakeup_read_end: read_end };
        Ok((endpoint, clients_doorbell, clients_wakeup))
    }

    /// Appends the rings that have news to `out`, in ascending order, and clears their marks. Rings that do not
    /// exist (any more) may be among them: skip those. A ring that is not emptied in this turn is the caller's to
    /// remember; it is not marked again.
    pub fn take_dirty(&mut self, out: &mut Vec<u32>) {
        self.watcher.take(out);
    }

    /// Says that the shard is about to sleep. `true`: a ring has news, and it must not sleep. Call
    /// [`Self::unpark`] in either case, after the sleep or instead of it.
    #[must_use]
    pub fn park(&mut self, park: Park) -> bool {
        self.watcher.park(park)
    }

    /// Says that the shard is awake: clients need not ring.
    pub fn unpark(&mut self) {
        self.watcher.unpark();
    }

    /// The eventfd to be polled while the shard sleeps. Readable since it was first rung, for ever: poll for edges
    /// (a multishot poll with EPOLLET), and never read it.
    #[must_use]
    pub fn doorbell_fd(&self) -> BorrowedFd<'_> {
        self.doorbell.as_fd()
    }

    /// Wakes whoever of the client waits. Never blocks; a full pipe already holds a wake-up.
    ///
    /// # Errors
    /// The kernel refuses for another reason.
    pub fn ring_client(&mut self) -> io::Result<()> {
        loop {
            match rustix::io::write(&self.wakeup, &[1]) {
                Ok(_) | Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// The daemon rang.
    Rung,
    /// The time passed, or a signal came: look again.
    TimedOut,
    /// The daemon is gone: it will not ring again.
    Gone,
}

/// The client's end, shared by its ports and threads.
pub struct SessionPort {
    marker: Marker,
    doorbell: OwnedFd,
    wakeup: OwnedFd,
}

impl SessionPort {
    /// Maps what the daemon passed.
    ///
    /// # Errors
    /// The page is not a session page of this version, or the kernel refuses.
    pub fn attach(fds: SessionFds) -> io::Result<Self> {
        let places = session_places();
        let memory = Memory::attach(fds.page, &places.header)?;
        Self::over(&memory, &places, fds.doorbell, fds.wakeup)
    }

    /// The client's end of this memory.
    fn over(memory: &Memory, places: &SessionPlaces, doorbell: OwnedFd, wakeup: OwnedFd) -> io::Result<Self> {
        let marker = Marker::new(memory.words(places.parked)?, memory.words(places.dirty)?);
        Ok(Self { marker, doorbell, wakeup })
    }

    /// Tells the daemon that `ring` has news, which was published before, and rings it if it sleeps. The ports call
    /// this; a client never needs to.
    pub fn mark(&self, ring: u32) {
        if self.marker.mark(ring) {
            self.ring_daemon();
        }
    }

    /// As [`Self::mark`], for news that is only what was given back: that alone does not ring a daemon that looks again
    /// soon.
    pub fn mark_returns(&self, ring: u32) {
        if self.marker.mark_returns(ring) {
            self.ring_daemon();
        }
    }

    fn ring_daemon(&self) {
        // EAGAIN: the count is at its end, after 2^64 rings. Nothing else can fail on an eventfd that is open, and
        // a daemon that is gone does not mind.
        while rustix::io::write(&self.doorbell, &1_u64.to_ne_bytes()) == Err(Errno::INTR) {}
    }

    /// Sleeps until the daemon rings, `timeout` passes (`None`: for ever) or the daemon is gone, and takes every
    /// ring so far. Announce the wait at the port and look at it again *before* this call.
    ///
    /// There is one pipe for all ports of the attachment, and a wake-up goes to whoever takes it. So at most one
    /// thread of a client may be in this call, and after it returns every other thread that waits for a port must
    /// be made to look again.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn wait(&self, timeout: Option<Duration>) -> io::Result<Wait> {
        let timeout = timeout.map(|time| Timespec {
            tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(time.subsec_nanos()),
        });
        let mut fds = [PollFd::new(&self.wakeup, PollFlags::IN)];
        match rustix::event::poll(&mut fds, timeout.as_ref()) {
            Ok(0) | Err(Errno::INTR) => return Ok(Wait::TimedOut),
            Ok(_) => {}
            Err(errno) => return Err(errno.into()),
        }
        self.drain()
    }

    /// The read end of the pipe, for a client that waits with its own poller. Readable: call [`Self::drain`].
    #[must_use]
    pub fn wakeup_fd(&self) -> BorrowedFd<'_> {
        self.wakeup.as_fd()
    }

    /// Takes every ring so far without sleeping.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn drain(&self) -> io::Result<Wait> {
        let mut rung = Wait::TimedOut;
        let mut bytes = [0_u8; 256];
        loop {
            match rustix::io::read(&self.wakeup, &mut bytes) {
                Ok(0) => return Ok(Wait::Gone),
                Ok(count) if count < bytes.len() => return Ok(Wait::Rung),
                Ok(_) => rung = Wait::Rung,
                Err(Errno::AGAIN) => return Ok(rung),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
pub(crate) mod tests;
