//! What the calling thread may do with bpf().

#![allow(unsafe_code)] // a system call that no crate here has

use std::io;

use rustix::thread::{CapabilitySet, capabilities};

use super::cause::Cause;

/// A command that no kernel has: one that takes the call answers `EINVAL`.
const NO_COMMAND: libc::c_long = 0x7fff_ffff;

/// Whether this thread may load programs of the kind that the probes are.
///
/// # Errors
/// Which permission is missing.
pub(super) fn check() -> Result<(), Cause> {
    // Without an answer the kernel is asked by loading.
    let held = capabilities(None).map_or(CapabilitySet::all(), |sets| sets.effective);
    let has = |one| held.intersects(one | CapabilitySet::SYS_ADMIN);
    if !has(CapabilitySet::BPF) {
        return Err(Cause::NoBpfCapability);
    }
    if !has(CapabilitySet::PERFMON) {
        return Err(Cause::OnlyBpfCapability);
    }
    match ask() {
        Some(libc::EPERM | libc::EACCES | libc::ENOSYS) => {
            Err(Cause::CallRefused { errno: io::Error::last_os_error().to_string() })
        }
        _ => Ok(()),
    }
}

/// Asks for nothing. The error number of the answer.
fn ask() -> Option<i32> {
    let attributes = [0_u64; 16];
    // SAFETY: the kernel reads at most the attributes, whose length it is told, and knows no such command.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            NO_COMMAND,
            attributes.as_ptr(),
            size_of_val(&attributes) as libc::c_uint,
        )
    };
    if answer < 0 { io::Error::last_os_error().raw_os_error() } else { None }
}
