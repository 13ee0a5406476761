//! File descriptors of the daemon: clients may take all but a few.
//!
//! A daemon without descriptors cannot even say so: it could accept no connection on the control socket and no link.
//! So clients are refused, with the reason, while some are left; and this node dials no more while a few are left.

use std::os::fd::{AsFd, AsRawFd};

use rustix::process::{Resource, getrlimit};

/// Descriptors of one client: its socket, its process, its bitmap and two doorbells. Each partition and each gate takes one
/// more.
pub const PER_CLIENT: u64 = 5;

/// Descriptors that clients leave to links, to the control socket, and to what is open for a moment only.
pub const KEPT: u64 = 64;

/// What helps where there are too few.
pub const TOO_FEW_FIX: &str =
    "LimitNOFILE=65536 in the unit, or ulimit -Hn 65536 as root; or limits.attachments_max";

/// Descriptors that dials leave, as a part of those that clients leave: a connection that comes is worth more than one
/// that may come about.
const KEPT_BY_DIALS: u64 = 4;

/// Descriptors that so many clients and their links take.
#[must_use]
pub fn needed(attachments_max: u32) -> u64 {
    u64::from(attachments_max) * PER_CLIENT + KEPT
}

/// What comes of a limit on descriptors, if so many clients cannot attach with it.
#[must_use]
pub fn too_few(limit: Option<u64>, attachments_max: u32) -> Option<String> {
    let limit = limit.filter(|limit| *limit < needed(attachments_max))?;
    let clients = limit.saturating_sub(KEPT) / PER_CLIENT;
    Some(format!("at most {clients} clients can attach; the next are refused"))
}

/// How many the daemon may have; none if there is no limit.
#[must_use]
pub fn limit() -> Option<u64> {
    getrlimit(Resource::Nofile).current
}

/// The limit, if this descriptor is among the last that it allows. The kernel gives out the least number that is free,
/// so that many are open when it gives out this one.
#[must_use]
pub fn scarce(newest: impl AsFd) -> Option<Scarce> {
    among_the_last(newest, |kept| kept)
}

/// The same for a socket that is to dial: links use what clients leave, all but the last quarter of it.
#[must_use]
pub fn scarce_for_dials(newest: impl AsFd) -> Option<Scarce> {
    among_the_last(newest, |kept| kept / KEPT_BY_DIALS)
}

/// `part` is of those that clients leave.
fn among_the_last(newest: impl AsFd, part: impl Fn(u64) -> u64) -> Option<Scarce> {
    let limit = limit()?;
    let number = u64::try_from(newest.as_fd().as_raw_fd()).unwrap_or_default();
    let kept = part(KEPT.min(limit / 4));
    (number >= limit - kept).then_some(Scarce { limit, kept })
}

/// One `part`th of all descriptors that the daemon may have; at least one.
#[must_use]
pub fn share(part: u64) -> usize {
    let share = limit().unwrap_or(u64::MAX) / part.max(1);
    usize::try_from(share.max(1)).unwrap_or(usize::MAX)
}

/// So few descriptors are left that whoever asked gets none.
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
        let limit = limit().unwrap();
        let file = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(scarce(&file), None);
        let kept = KEPT.min(limit / 4);
        assert_eq!(scarce_for_dials(&file), None);
        let by_dials = kept / KEPT_BY_DIALS;
        for (number, clients, dials) in [
            (limit - kept - 1, false, false),
            (limit - kept, true, false),
            (limit - by_dials - 1, true, false),
            (limit - by_dials, true, true),
        ] {
            let Ok(high) = rustix::io::fcntl_dupfd_cloexec(&file, i32::try_from(number).unwrap()) else {
                println!("not run here: a descriptor with the number {number}");
                return;
            };
            let found = (scarce(&high).is_some(), scarce_for_dials(&high).is_some());
            assert_eq!(found, (clients, dials), "{number} of {limit}");
        }
    }
}
