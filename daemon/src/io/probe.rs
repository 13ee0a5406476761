//! What the kernel can do, found by doing it.
//!
//! Version numbers say little: distributions add features to old kernels, and filters take them from new ones. So
//! each level is tried on a pair of sockets, once, when the daemon starts.

use std::cell::Cell;
use std::fmt;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use io_uring::types::{self, CloneBuffersFlags, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode};

use super::uring::{RECEIVE_MEMORY, UringConfig, UringSetup};
use super::{Completion, Errno, Ring, RingError, SendBatch, SendPart};
use crate::memory::{HugepageMode, PAGE_BYTES, Scratch};

/// How much of io_uring is used. Each level has everything of the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// One receive at a time, into a buffer per socket. Linux 6.1.
    OneShot,
    /// Receives that last, into buffers that all sockets share and that are filled piece by piece. Linux 6.12.
    Incremental,
    /// Zero-copy sends of many ranges of registered memory. Linux 6.15.
    Full,
}

impl Level {
    /// All, from the lowest.
    pub const ALL: [Self; 3] = [Self::OneShot, Self::Incremental, Self::Full];

    /// Its name in status and log.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::OneShot => "oneshot",
            Self::Incremental => "incremental",
            Self::Full => "full",
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// What [`probe`] found. Displayed, it is one line for the log and the status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// The level to use.
    pub level: Level,
    /// Release of the kernel.
    pub kernel: String,
    /// Why the level is not higher. None at [`Level::Full`].
    pub lost: Option<String>,
}

impl fmt::Display for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "io_uring level {} on Linux {}", self.level, self.kernel)?;
        match &self.lost {
            None => Ok(()),
            Some(lost) => write!(f, ": {lost}"),
        }
    }
}

/// Finds the highest level that works here and is not above `limit`.
///
/// # Errors
///
/// [`super::Disposition::Fatal`] when not even [`Level::OneShot`] works, with what the operator can do.
pub fn probe(limit: Option<Level>) -> Result<Probe, RingError> {
    let limit = limit.unwrap_or(Level::Full);
    let kernel = rustix::system::uname().release().to_string_lossy().into_owned();
    let found = |level, lost| Ok(Probe { level, kernel, lost });
    let patience = Patience::default();
    patience.make(|| try_round_trip(Level::OneShot))?;
    let mut level = Level::OneShot;
    for next in [Level::Incremental, Level::Full] {
        if limit == level {
            return found(level, Some(limited(limit)));
        }
        if let Err(lost) = try_level(next, &patience) {
            return found(level, Some(lost));
        }
        level = next;
    }
    found(level, None)
}

/// What is lost where the configuration allows no more than this level.
#[must_use]
pub fn limited(limit: Level) -> String {
    format!("{limit} is the highest level that the configuration allows")
}

/// What brings back a level that is lost.
pub const LOST_FIX: &str = "a newer kernel, or io.level";

/// Tries all levels, each by itself, from the lowest to the highest. What is lost without one that does not work; of the lowest,
/// behind `"; "`, what the operator can do.
///
/// Takes some milliseconds, and up to two seconds more where too little memory may be locked.
#[must_use]
pub fn try_levels() -> Vec<(Level, Result<(), String>)> {
    let patience = Patience::default();
    Level::ALL.into_iter().map(|level| (level, try_level(level, &patience))).collect()
}

/// Tries one of them. An error is what is lost without it.
pub(super) fn try_level(level: Level, patience: &Patience) -> Result<(), String> {
    let round_trip = || patience.make(|| try_round_trip(level));
    match level {
        Level::OneShot => round_trip().map_err(|error| error.to_string()),
        Level::Incremental => round_trip().map_err(|error| {
            format!(
                "no lasting receives into shared buffers, which need {} ({error})",
                needed(error.errno, "6.12")
            )
        }),
        Level::Full => patience.repeat(try_zero_copy, |errno| Some(*errno)).map_err(|errno| {
            let needed = match errno.0 {
                libc::EFAULT => "a kernel that keeps registrations while one before them is shared".to_owned(),
                _ => needed(errno, "6.15"),
            };
            format!(
                "no zero-copy sends from registered memory, which need {needed} ({errno}): the kernel looks up the pages of \
                 each anew, and nothing else is lost"
            )
        }),
    }
}

/// How long rings that are gone are waited for, in all: those that were tried before, or by a process that has just ended, may still
/// count against the limit on locked memory. One that is too low stays too low, and that is told a little later.
#[derive(Debug)]
pub struct Patience {
    /// Pauses that are left.
    pauses: Cell<u32>,
    pause: Duration,
}

impl Default for Patience {
    /// Two seconds.
    fn default() -> Self {
        Self::new(100, Duration::from_millis(20))
    }
}

impl Patience {
    /// So many pauses, of this length each.
    #[must_use]
    pub const fn new(pauses: u32, pause: Duration) -> Self {
        Self { pauses: Cell::new(pauses), pause }
    }

    /// Makes a ring or what needs one, again and again while the kernel says that there is no memory for it, and a pause is left.
    ///
    /// # Errors
    /// Those of the last attempt.
    pub fn make<T>(&self, attempt: impl Fn() -> Result<T, RingError>) -> Result<T, RingError> {
        // Memory to receive into is not locked, and hugepages are not what rings give back.
        self.repeat(attempt, |error| (error.what != RECEIVE_MEMORY).then_some(error.errno))
    }

    /// As [`Self::make`]. `answer` is what the kernel said, if what failed is of those.
    fn repeat<T, E>(
        &self,
        attempt: impl Fn() -> Result<T, E>,
        answer: impl Fn(&E) -> Option<Errno>,
    ) -> Result<T, E> {
        loop {
            let left = self.pauses.get();
            match attempt() {
                Err(error) if answer(&error) == Some(Errno(libc::ENOMEM)) && left > 0 => {
                    self.pauses.set(left - 1);
                    std::thread::sleep(self.pause);
                }
                outcome => return outcome,
            }
        }
    }
}

/// What a level needs that was refused with this number: the kernel that has it, unless it is memory.
pub(super) fn needed(errno: Errno, release: &str) -> String {
    match errno.0 {
        libc::ENOMEM => {
            "locked memory, by CAP_IPC_LOCK, LimitMEMLOCK=infinity or `ulimit -l unlimited`".to_owned()
        }
        _ => format!("Linux {release}"),
    }
}

/// By what an error says that a filter keeps io_uring from being used.
pub const FILTERED: &str = "a seccomp filter or security module forbids io_uring_setup";

/// What to do when there are no descriptors left.
const MORE_DESCRIPTORS: &str = "raise the limit on open descriptors (LimitNOFILE=, ulimit -n)";

/// Why io_uring could not be set up, and what to do about it.
pub(super) fn setup_error(errno: Errno) -> RingError {
    setup_error_at(errno, Path::new("/"))
}

pub(super) fn setup_error_at(errno: Errno, root: &Path) -> RingError {
    let switch = std::fs::read_to_string(root.join("proc/sys/kernel/io_uring_disabled"));
    let switch = switch.as_deref().map(str::trim).unwrap_or_default();
    let fix = match (errno.0, switch) {
        (libc::ENOSYS, _) => {
            "needed: a kernel with CONFIG_IO_URING, Linux 6.1 or later, and no seccomp filter that hides io_uring"
        }
        (libc::EPERM | libc::EACCES, "2") => {
            "kernel.io_uring_disabled is 2; needed: 0; run `sysctl kernel.io_uring_disabled=0`"
        }
        (libc::EPERM | libc::EACCES, "1") => {
            "kernel.io_uring_disabled is 1; needed: 0, or the daemon in kernel.io_uring_group; run `sysctl kernel.io_uring_disabled=0`"
        }
        (libc::EPERM | libc::EACCES, _) => {
            // As [`FILTERED`] has it.
            "a seccomp filter or security module forbids io_uring_setup; allow io_uring_setup, io_uring_enter and io_uring_register (SystemCallFilter= of the unit, seccomp profile of the container)"
        }
        (libc::EINVAL, _) => "needed: Linux 6.1 or later",
        (libc::ENOMEM, _) => {
            "the limit on locked memory is too low for the rings; set LimitMEMLOCK=infinity, or run `ulimit -l unlimited`"
        }
        (libc::EMFILE | libc::ENFILE, _) => MORE_DESCRIPTORS,
        _ => "this is not expected; see `dmesg`",
    };
    RingError::fatal("io_uring_setup", errno, fix)
}

/// Sends two batches through a ring of this level and receives them with another socket of the same ring.
fn try_round_trip(level: Level) -> Result<(), RingError> {
    let config = UringConfig {
        entries: 8,
        sockets: 2,
        buffers: 2,
        buffer_bytes: PAGE_BYTES as u32,
        hugepages: HugepageMode::Off,
        ..UringConfig::new(level)
    };
    let mut ring = UringSetup::create(&config)?.enable()?;
    let (near, far) = UnixStream::pair().map_err(|error| failed("socketpair", error.into()))?;
    let near = ring.add_socket(near.into())?;
    let far = ring.add_socket(far.into())?;
    ring.receive(far)?;
    let mut received = Vec::new();
    for round in 1..=2_u8 {
        let batch = SendBatch {
            headers: vec![round; 64],
            parts: vec![SendPart::Header { start: 0, bytes: 64 }],
            bytes: 64,
        };
        ring.send(near, batch).map_err(|(error, _)| error)?;
        let wanted = usize::from(round) * 64;
        for _ in 0..100 {
            if received.len() >= wanted {
                break;
            }
            ring.park(Some(Duration::from_millis(10)))?;
            while let Some(completion) = ring.next() {
                match completion {
                    Completion::Received { chunk, .. } => {
                        received.extend_from_slice(ring.bytes(&chunk));
                        ring.release(chunk);
                    }
                    Completion::Sent { result: Err(errno), .. } | Completion::ReceiveFailed { errno, .. } => {
                        return Err(failed("round trip over a socket pair", errno));
                    }
                    _ => {}
                }
            }
        }
    }
    let sent = [[1; 64], [2; 64]].concat();
    if received == sent { Ok(()) } else { Err(failed("round trip over a socket pair", Errno(libc::EIO))) }
}

pub(super) fn failed(what: &'static str, errno: Errno) -> RingError {
    let fix = match errno.0 {
        libc::EMFILE | libc::ENFILE => MORE_DESCRIPTORS,
        _ => "needed: Linux 6.1 or later with a working io_uring",
    };
    RingError::fatal(what, errno, fix)
}

/// The number of a registration that is tried.
const NAMED: u16 = 1;

/// Whether the kernel takes a zero-copy send whose ranges lie in registered memory. It is tried on a Unix socket,
/// for which an older kernel says that there is no such operation and a newer one that there is no such socket.
///
/// The registration is shared by another ring, as those of regions are, and named after one before it was shared as well: kernels
/// before some 6.18.y lost what stood behind a number that was shared, and answer EFAULT.
fn try_zero_copy() -> Result<(), Errno> {
    // Before the rings: on every way out they go first.
    let memory = Scratch::create(PAGE_BYTES as usize, HugepageMode::Off).map_err(Errno::from)?;
    let mut ring: IoUring =
        IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(8).map_err(Errno::from)?;
    let vector = libc::iovec { iov_base: memory.address().cast(), iov_len: memory.bytes() };
    let source: IoUring = IoUring::builder().build(1).map_err(Errno::from)?;
    // SAFETY: the memory outlives the registration, which ends with the rings, or it is never given back.
    unsafe { source.submitter().register_buffers(&[vector]) }.map_err(Errno::from)?;
    for number in [NAMED, NAMED - 1] {
        let (from, flags) = (source.as_raw_fd(), CloneBuffersFlags::DST_REPLACE);
        let shared = ring.submitter().register_buffers_clone_offset(from, 0, number.into(), 1, flags);
        shared.map_err(Errno::from)?;
    }
    let (near, far) = UnixStream::pair().map_err(Errno::from)?;
    let parts = [libc::iovec { iov_base: memory.address().cast(), iov_len: 64 }; 2];
    // SAFETY: all zeroes is a msghdr without name, vectors and control data.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = parts.as_ptr().cast_mut();
    // Another integer in each C library; there are never more than the kernel takes.
    message.msg_iovlen = parts.len() as _;
    let entry = opcode::SendMsgZc::new(types::Fd(near.as_raw_fd()), &raw const message)
        .buf_index(Some(NAMED))
        .build();
    // SAFETY: the message lives until the entry was handed over, which copies it; what it names is given up below
    // unless the kernel has let go of it.
    unsafe { ring.submission().push(&entry) }.map_err(|_| Errno(libc::EBUSY))?;
    let timeout = Timespec::from(Duration::from_secs(1));
    let mut answer = None;
    let mut let_go = false;
    for _ in 0..4 {
        let entered = ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&timeout));
        let completions = ring.completion();
        for completion in completions {
            let_go = !cqueue::more(completion.flags());
            if !cqueue::notif(completion.flags()) {
                answer = Some(completion.result());
            }
        }
        if let_go || entered.is_err() {
            break;
        }
    }
    drop(far);
    if !let_go {
        // The kernel may still read it.
        std::mem::forget(memory);
        return Err(Errno(libc::ETIME));
    }
    drop((ring, source));
    match answer {
        Some(result) if result >= 0 || result == -libc::EOPNOTSUPP => Ok(()),
        Some(result) => Err(Errno(result.saturating_neg())),
        None => Err(Errno(libc::ETIME)),
    }
}
