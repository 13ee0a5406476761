//! Descriptors that whoever started this process has passed to it: the numbers from 3 on, which `LISTEN_FDS` counts.

use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};

/// The first number, behind the three standard streams.
const FIRST: RawFd = 3;

/// Most that are taken.
const COUNT_MAX: RawFd = 64;

/// Whether they have been taken.
static IS_TAKEN: AtomicBool = AtomicBool::new(false);

/// Takes `count` descriptors from number 3 on, each `None` that is not open. They are not passed on to children. A second
/// call takes none.
///
/// Must be called before this process has opened anything: what has one of these numbers is not looked at.
pub fn take(count: u32) -> Vec<Option<OwnedFd>> {
    if IS_TAKEN.swap(true, Ordering::Relaxed) {
        return Vec::new();
    }
    let count = RawFd::try_from(count).unwrap_or(COUNT_MAX).min(COUNT_MAX);
    (FIRST..FIRST + count).map(take_one).collect()
}

fn take_one(number: RawFd) -> Option<OwnedFd> {
    // SAFETY: used for this call only, which says whether it is open.
    let looked_at = unsafe { BorrowedFd::borrow_raw(number) };
    let flags = fcntl_getfd(looked_at).ok()?;
    fcntl_setfd(looked_at, flags | FdFlags::CLOEXEC).ok()?;
    // SAFETY: it is open, and nobody else has it: it was open before this process opened anything, and no number is
    // taken twice.
    Some(unsafe { OwnedFd::from_raw_fd(number) })
}
