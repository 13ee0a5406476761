//! Threads that have less than the rest of the process: capabilities, system calls and namespaces are a thread's own.

use std::process::Command;

use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};

/// Runs `body` on a thread of its own.
pub(crate) fn alone<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> T {
    match std::thread::spawn(body).join() {
        Ok(outcome) => outcome,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// Leaves the calling thread these capabilities and no other.
pub(crate) fn keep_capabilities(kept: CapabilitySet) {
    let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    set_capabilities(None, sets).unwrap();
}

/// From now on the calling thread gets EPERM for `bpf()`.
pub(super) fn refuse_bpf() {
    let allow = libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: libc::SECCOMP_RET_ALLOW };
    let refuse =
        libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: libc::SECCOMP_RET_ERRNO | libc::EPERM as u32 };
    // The number of the call stands at the beginning.
    let load = libc::sock_filter { code: 0x20, jt: 0, jf: 0, k: 0 };
    let is_bpf = libc::sock_filter { code: 0x15, jt: 0, jf: 1, k: libc::SYS_bpf as u32 };
    let mut program = [load, is_bpf, refuse, allow];
    let filter = libc::sock_fprog { len: program.len() as libc::c_ushort, filter: program.as_mut_ptr() };
    // SAFETY: the kernel copies the filter, which lives until then. It is this thread's alone.
    let results = unsafe {
        [
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
            libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter),
        ]
    };
    assert_eq!(results, [0, 0], "{}", std::io::Error::last_os_error());
}

/// Gives the calling thread a network of its own, with a loopback that is set up by these commands. The error says what
/// cannot be had here.
pub(crate) fn own_network(commands: &[&str]) -> Result<(), String> {
    // SAFETY: it concerns the calling thread only, and no memory.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
        return Err(format!("a network namespace: {}", std::io::Error::last_os_error()));
    }
    for command in ["ip link set lo up"].iter().chain(commands) {
        let mut words = command.split(' ');
        let program = words.next().unwrap_or_default();
        let output =
            Command::new(program).args(words).output().map_err(|error| format!("{program}: {error}"))?;
        if !output.status.success() {
            return Err(format!("{command}: {}", String::from_utf8_lossy(&output.stderr).trim()));
        }
    }
    Ok(())
}
