//! File descriptors of the daemon: clients may take all but a few.
//!
//! A daemon without descriptors cannot even say so: it could accept no connection on the control socket and no link.
//! So clients are refused, with the reason, while some are left.

use std::os::fd::{AsFd, AsRawFd};

use rustix::process::{Resource, getrlimit};

/// Descriptors that clients leave to links, to the control socket, and to what is open for a moment only.
const KEPT: u64 = 64;

/// The limit, if this descriptor is among the last that it allows. The kernel gives out the least number that is free,
/// so that many are open when it gives out this one.
#[must_use]
pub fn scarce(newest: impl AsFd) -> Option<Scarce> {
    let limit = getrlimit(Resource::Nofile).current?;
    let number = u64::try_from(newest.as_fd().as_raw_fd()).unwrap_or_default();
    let kept = KEPT.min(limit / 4);
    (number >= limit - kept).then_some(Scarce { limit, kept })
}

/// So few descriptors are left that clients get none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scarce {
    limit: u64,
    kept: u64,
}

impl std::fmt::Display for Scarce {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { limit, kept } = self;
        write!(
            f,
            "the daemon has fewer than {kept} of its {limit} file descriptors left; needed: more; end some clients, or \
             raise its limit of open files (LimitNOFILE, ulimit -n)"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_descriptors_are_scarce() {
        let limit = getrlimit(Resource::Nofile).current.unwrap();
        let file = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(scarce(&file), None);
        let kept = KEPT.min(limit / 4);
        for (number, is_scarce) in [(limit - kept - 1, false), (limit - kept, true)] {
            let Ok(high) = rustix::io::fcntl_dupfd_cloexec(&file, i32::try_from(number).unwrap()) else {
                println!("not run here: a descriptor with the number {number}");
                return;
            };
            assert_eq!(scarce(&high).is_some(), is_scarce, "{number} of {limit}");
        }
    }
}
