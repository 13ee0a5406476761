//! What the kernel can do about zero-copy sends, found by doing it.

use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use io_uring::types::{self, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode};

use super::Errno;

/// IORING_SEND_ZC_REPORT_USAGE: the notice is to tell whether the kernel copied.
pub(super) const REPORT_USAGE: u16 = 8;

/// IORING_NOTIF_USAGE_ZC_COPIED: what it says then.
pub(super) const USAGE_COPIED: u32 = 1 << 31;

/// What the kernel can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZeroCopySupport {
    /// Send without a copy, and tell whether it made one after all. Linux 6.2.
    Measured,
    /// Only send. Linux 6.1.
    Unmeasured,
    /// Neither; holds what it answers.
    Missing(Errno),
}

/// Finds out what the kernel can do. It is tried on a Unix socket, which no zero-copy send can go through: a kernel that
/// has the operation says that there is no such socket, and one that has not that there is no such operation.
#[must_use]
pub fn support() -> ZeroCopySupport {
    match try_send(REPORT_USAGE) {
        Ok(()) => ZeroCopySupport::Measured,
        Err(_) => match try_send(0) {
            Ok(()) => ZeroCopySupport::Unmeasured,
            Err(errno) => ZeroCopySupport::Missing(errno),
        },
    }
}

fn try_send(flags: u16) -> Result<(), Errno> {
    let mut ring: IoUring =
        IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(8).map_err(Errno::from)?;
    let (near, _far) = UnixStream::pair().map_err(Errno::from)?;
    // Never freed before the kernel has let go of it: it lives as long as the process.
    static BYTES: [u8; 64] = [0; 64];
    let part = libc::iovec { iov_base: BYTES.as_ptr().cast_mut().cast(), iov_len: BYTES.len() };
    // SAFETY: all zeroes is a msghdr without name, vectors and control data.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = (&raw const part).cast_mut();
    message.msg_iovlen = 1;
    let entry = opcode::SendMsgZc::new(types::Fd(near.as_raw_fd()), &raw const message).ioprio(flags).build();
    // SAFETY: the message and its vector live until the entry was handed over, which copies them; what they name is
    // static. The kernel only reads it.
    unsafe { ring.submission().push(&entry) }.map_err(|_| Errno(libc::EBUSY))?;
    let timeout = Timespec::from(Duration::from_secs(1));
    for _ in 0..4 {
        // Fails for want of time, or of memory; the answer says it if there is one.
        let _ = ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&timeout));
        let answer = ring.completion().find(|entry| !cqueue::notif(entry.flags()));
        match answer.map(|entry| entry.result()) {
            None => {}
            Some(result) if result >= 0 || result == -libc::EOPNOTSUPP => return Ok(()),
            Some(result) => return Err(Errno(result.saturating_neg())),
        }
    }
    Err(Errno(libc::ETIME))
}
