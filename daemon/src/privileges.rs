//! Capabilities, given up as soon as nothing needs them any more.
//!
//! They belong to threads, and a thread gives its own to those that it starts: what is given up before the first shard
//! starts, no shard has. The thread of the log, which is there before, gives its own up.
//!
//! | capability | needed until | why not longer |
//! |---|---|---|
//! | CAP_BPF, CAP_PERFMON | the probes are attached | the kernel asks for them when programs are loaded and maps are made; what is written to a map goes by its descriptor |
//! | CAP_IPC_LOCK | the rings are made | a ring notes at its start whether its memory is charged to the user, and what it sends without a copy goes by that note |

//!
//! Where locked memory has a bound (RLIMIT_MEMLOCK) and regions may be registered (`link.zero_copy`, Linux 6.15), CAP_IPC_LOCK stays:
//! regions are registered in rings of their own, when it is worth it, and the kernel shares a registration only between rings
//! that are both charged or both not. Without a bound it goes before the first ring is made.

use rustix::io::Errno;
use rustix::thread::{
    CapabilitySet, capabilities, capability_is_in_bounding_set, remove_capability_from_bounding_set,
    set_capabilities,
};

use crate::control::snapshot::Subsystem;

/// What only loading probes needs.
pub const PROBES: &[(&str, CapabilitySet)] =
    &[("CAP_BPF", CapabilitySet::BPF), ("CAP_PERFMON", CapabilitySet::PERFMON)];

/// What only making rings needs.
pub const RINGS: &[(&str, CapabilitySet)] = &[("CAP_IPC_LOCK", CapabilitySet::IPC_LOCK)];

/// What became of the capabilities of a daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Privileges {
    /// Those that it had and gave up.
    pub given_up: Vec<&'static str>,
    /// Why some could not be given up.
    pub problem: Option<String>,
}

impl Privileges {
    /// This thread gives these up for good: nobody can give them back to it, or to a thread that it starts from now on. From
    /// the bounding set, which matters only to programs that are executed, they go where that is allowed (CAP_SETPCAP).
    pub fn give_up(&mut self, which: &[(&'static str, CapabilitySet)]) {
        let held = match capabilities(None) {
            Ok(sets) => sets.permitted,
            Err(errno) => return self.note(&errno),
        };
        for (name, capability) in which {
            if let Err(errno) = give_up_one(*capability) {
                self.note(&errno);
            } else if held.contains(*capability) {
                self.given_up.push(name);
            }
        }
    }

    fn note(&mut self, errno: &Errno) {
        self.problem = Some(format!("capset: {errno}"));
    }

    /// The line of `weir status`.
    #[must_use]
    pub fn line(&self) -> Subsystem {
        let detail = match self.given_up.as_slice() {
            [] => "no capability was held that had to be given up".to_owned(),
            names => format!("given up after the start: {}", names.join(", ")),
        };
        match &self.problem {
            None => Subsystem::ok("privileges", detail),
            Some(problem) => Subsystem::degraded(
                "privileges",
                detail,
                format!("capabilities are kept that nothing needs any more: {problem}"),
                "SystemCallFilter=capset in the unit, or a container profile that allows it",
            ),
        }
    }
}

fn give_up_one(capability: CapabilitySet) -> Result<(), Errno> {
    // First, while the right to do so may still be there.
    if capability_is_in_bounding_set(capability).unwrap_or(false) {
        match remove_capability_from_bounding_set(capability) {
            Ok(()) | Err(Errno::PERM | Errno::INVAL) => {}
            Err(errno) => return Err(errno),
        }
    }
    let mut sets = capabilities(None)?;
    sets.effective.remove(capability);
    sets.permitted.remove(capability);
    // The ambient set has nothing that is not in this one.
    sets.inheritable.remove(capability);
    set_capabilities(None, sets)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::snapshot::Health;

    #[test]
    fn a_thread_gives_up_what_it_has_and_others_keep_theirs() {
        let before = capabilities(None).unwrap();
        let (privileges, after, child) = std::thread::spawn(|| {
            let mut privileges = Privileges::default();
            privileges.give_up(PROBES);
            privileges.give_up(PROBES);
            let child = std::thread::spawn(|| capabilities(None).unwrap()).join().unwrap();
            (privileges, capabilities(None).unwrap(), child)
        })
        .join()
        .unwrap();
        let both = CapabilitySet::BPF | CapabilitySet::PERFMON;
        for sets in [after, child] {
            assert!(!sets.permitted.intersects(both) && !sets.effective.intersects(both));
            assert!(!sets.inheritable.intersects(both));
            assert_eq!(sets.permitted, before.permitted.difference(both), "and nothing else");
        }
        assert_eq!(capabilities(None).unwrap().permitted, before.permitted);
        let held = PROBES.iter().filter(|(_, one)| before.permitted.contains(*one)).map(|(name, _)| *name);
        assert_eq!(privileges, Privileges { given_up: held.collect(), problem: None });
    }

    #[test]
    fn the_line_says_what_went_and_what_could_not() {
        let mut privileges = Privileges { given_up: vec!["CAP_BPF", "CAP_IPC_LOCK"], problem: None };
        let line = privileges.line();
        assert_eq!(
            (line.state, &*line.detail),
            (Health::Ok, "given up after the start: CAP_BPF, CAP_IPC_LOCK")
        );
        privileges.problem = Some("capset: refused".to_owned());
        assert_eq!(privileges.line().state, Health::Degraded);
    }
}
