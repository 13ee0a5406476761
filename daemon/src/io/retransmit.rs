//! How long a connection waits between two transmissions of the same bytes.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

/// `TCP_RTO_MAX_MS`, since Linux 6.15; not in every libc.
const TCP_RTO_MAX_MS: libc::c_int = 44;

/// Sets the longest wait between two transmissions, which otherwise doubles up to 120 s. The kernel takes 1 s to 120 s.
/// Whether the kernel knows the option.
///
/// # Errors
/// What the kernel answers beside: the socket is none of TCP, or the wait is out of bounds.
pub(crate) fn set_retransmit_max(socket: BorrowedFd<'_>, max: Duration) -> io::Result<bool> {
    let max_ms = libc::c_int::try_from(max.as_millis()).unwrap_or(libc::c_int::MAX);
    // SAFETY: the kernel reads the one integer that the address and the length stand for.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            TCP_RTO_MAX_MS,
            (&raw const max_ms).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if result == 0 {
        return Ok(true);
    }
    let error = io::Error::last_os_error();
    if error.raw_os_error() == Some(libc::ENOPROTOOPT) { Ok(false) } else { Err(error) }
}

/// The longest wait that is set; none if the kernel does not know the option.
#[cfg(test)]
pub(crate) fn retransmit_max(socket: BorrowedFd<'_>) -> Option<Duration> {
    let (mut max_ms, mut bytes): (libc::c_int, _) = (0, size_of::<libc::c_int>() as libc::socklen_t);
    // SAFETY: the kernel writes at most `bytes` bytes to the one integer, and the length.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            TCP_RTO_MAX_MS,
            (&raw mut max_ms).cast(),
            &raw mut bytes,
        )
    };
    (result == 0).then(|| Duration::from_millis(u64::try_from(max_ms).unwrap_or_default()))
}
