//! Where shards are, in words: the line of `weir status`, and what `weir doctor` says before there is a daemon.

use super::{Pin, Place, is_bound};
use crate::control::snapshot::Subsystem;
use crate::memory::numa::NodeChoice;
use crate::topology::{counted, show_list};

/// Name of the line.
const NAME: &str = "placement";

/// Where one shard is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardPlace {
    /// Where it is to be.
    pub place: Place,
    /// Package of its CPU.
    pub package: Option<u32>,
    /// Core of its CPU, within the package.
    pub core_id: Option<u32>,
    /// Where its regions are made.
    pub memory: NodeChoice,
    /// Whether it was to be bound when the daemon started.
    pub was_bound: bool,
    /// Why it is not where it is to be.
    pub refused: Option<String>,
}

/// Where all shards are, and the CPUs that they have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placements {
    /// `shard.pin`.
    pub pin: Pin,
    /// CPUs that could be used when the daemon started, in ascending order.
    pub at_start: Vec<usize>,
    /// Those that can be now.
    pub allowed: Vec<usize>,
    /// The machine in a few words.
    pub machine: String,
    /// What is not known of it.
    pub doubts: Vec<String>,
    /// Whether an operator has said where memory comes from.
    pub has_own_policy: bool,
    /// Why the kernel does not take memory from the node of a shard, if it was asked and refused.
    pub policy_refused: Option<String>,
    /// In order.
    pub shards: Vec<ShardPlace>,
}

/// What gives so many shards on fewer CPUs each one of its own.
#[must_use]
pub fn crowded_fix(cpus: usize) -> String {
    format!("shards = {}, or a wider CPUAffinity= or AllowedCPUs= of the unit", cpus.max(1))
}

impl Placements {
    /// CPUs of the start that cannot be used any more.
    #[must_use]
    pub fn missing(&self) -> Vec<usize> {
        self.at_start.iter().copied().filter(|cpu| self.allowed.binary_search(cpu).is_err()).collect()
    }

    /// Why a shard roams; none if it is bound.
    #[must_use]
    pub fn why_it_roams(&self, shard: &ShardPlace) -> Option<String> {
        if let Some(refused) = &shard.refused {
            return Some(format!("the kernel does not bind it: {refused}"));
        }
        if shard.place.cpu.is_some() {
            return None;
        }
        Some(match self.pin {
            Pin::Off => "shard.pin = \"off\"".to_owned(),
            _ if self.allowed.is_empty() => "the kernel does not tell which CPUs may be used".to_owned(),
            Pin::Auto | Pin::On => format!(
                "shard.pin = \"auto\" leaves a CPU to others, and there {} for {}",
                match self.allowed.len() {
                    1 => "is 1 CPU".to_owned(),
                    number => format!("are {number} CPUs"),
                },
                counted(self.shards.len(), "shard")
            ),
        })
    }

    /// In a few words, all of it.
    #[must_use]
    pub fn describe(&self) -> String {
        let bound = self.shards.iter().filter(|shard| shard.refused.is_none());
        let cpus: Vec<usize> = bound.filter_map(|shard| shard.place.cpu).collect();
        let shards = counted(self.shards.len(), "shard");
        let allowed = show_list(&self.allowed);
        let mut text = if self.shards.is_empty() {
            "no shard".to_owned()
        } else if cpus.is_empty() {
            let verb = if self.shards.len() == 1 { "roams" } else { "roam" };
            format!("{shards} {verb} on CPUs {allowed}")
        } else {
            let list: Vec<String> = cpus.iter().map(ToString::to_string).collect();
            let (list, rest) = (list.join(", "), self.shards.len() - cpus.len());
            match rest {
                0 => format!("{shards} bound to CPUs {list} of {allowed}"),
                _ => format!("{} of {shards} bound to CPUs {list} of {allowed}, {rest} not", cpus.len()),
            }
        };
        let mut nodes: Vec<usize> =
            self.shards.iter().filter_map(|shard| usize::try_from(shard.place.node?).ok()).collect();
        nodes.sort_unstable();
        nodes.dedup();
        if nodes.len() > 1 {
            text.push_str(&format!(", on NUMA nodes {}", show_list(&nodes)));
        }
        text
    }

    /// The line of `weir status`.
    #[must_use]
    pub fn line(&self) -> Subsystem {
        let detail = self.describe();
        let (missing, allowed) = (self.missing(), show_list(&self.allowed));
        let since = match missing.is_empty() {
            true => String::new(),
            false => format!(", of {} at the start", show_list(&self.at_start)),
        };
        let give_back = format!(
            "CPUs {} back by cpuset.cpus of the control group, AllowedCPUs= of the unit, taskset, or online again: it is \
             noticed within seconds",
            show_list(&missing)
        );
        let refused = self.shards.iter().find_map(|shard| shard.refused.as_ref());
        let numbers = (0..).zip(&self.shards);
        let lost: Vec<usize> = numbers
            .filter(|(_, shard)| shard.was_bound && shard.place.cpu.is_none())
            .map(|(at, _)| at)
            .collect();
        let is_crowded = !self.allowed.is_empty() && self.shards.len() > self.allowed.len();
        let of_cpus = if is_crowded {
            let reason =
                format!("{} take turns on CPUs {allowed}{since}", counted(self.shards.len(), "shard"));
            let fix = if missing.is_empty() { crowded_fix(self.allowed.len()) } else { give_back };
            Some((reason, fix))
        } else if let Some(refused) = refused {
            let reason = format!("the kernel does not bind shards: {refused}");
            Some((reason, "SystemCallFilter=sched_setaffinity; or shard.pin = \"off\"".to_owned()))
        } else if !missing.is_empty() && !lost.is_empty() {
            let reason =
                format!("CPUs {allowed} may be used{since}: not bound any more: shard {}", show_list(&lost));
            Some((reason, give_back))
        } else {
            None
        };
        let causes = [of_cpus, self.refused_memory()];
        match causes
            .into_iter()
            .flatten()
            .reduce(|a, b| (format!("{}; {}", a.0, b.0), format!("{}; {}", a.1, b.1)))
        {
            Some((reason, fix)) => Subsystem::degraded(NAME, detail, reason, fix),
            None => Subsystem::ok(NAME, format!("{detail}{since}")),
        }
    }

    /// Why memory of a shard comes from any node, if it is not to, and what helps.
    fn refused_memory(&self) -> Option<(String, String)> {
        let refused = self.policy_refused.as_ref()?;
        let reason = format!(
            "the kernel or a filter refuses set_mempolicy ({refused}): memory comes from whatever node the kernel likes"
        );
        let fix = "SystemCallFilter=get_mempolicy set_mempolicy, or for a container a profile that allows them; and \
                   cpuset.mems with the nodes of all CPUs";
        Some((reason, fix.to_owned()))
    }

    /// What a daemon with these settings would have, as far as it is known before it is started.
    #[must_use]
    pub fn expected(pin: Pin, allowed: Vec<usize>, places: Vec<Place>) -> Self {
        let was_bound = u16::try_from(places.len()).is_ok_and(|shards| is_bound(pin, shards, allowed.len()));
        let shard = |place| ShardPlace {
            place,
            package: None,
            core_id: None,
            memory: NodeChoice::Preferred(None),
            was_bound,
            refused: None,
        };
        Self {
            pin,
            at_start: allowed.clone(),
            allowed,
            shards: places.into_iter().map(shard).collect(),
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::snapshot::Health;

    fn placements(pin: Pin, at_start: &[usize], allowed: &[usize], cpus: &[Option<usize>]) -> Placements {
        let places = cpus.iter().map(|cpu| Place { cpu: *cpu, ..Place::default() }).collect();
        let mut placements = Placements::expected(pin, allowed.to_vec(), places);
        placements.at_start = at_start.to_vec();
        let was_bound = is_bound(pin, cpus.len() as u16, at_start.len());
        placements.shards.iter_mut().for_each(|shard| shard.was_bound = was_bound);
        placements
    }

    #[test]
    fn the_line_says_where_shards_are_and_what_was_lost() {
        let (auto, on) = (Pin::Auto, Pin::On);
        for (told, state, detail, reason) in [
            (
                placements(auto, &[0, 1, 2], &[0, 1, 2], &[Some(0), Some(1)]),
                Health::Ok,
                "2 shards bound to CPUs 0, 1 of 0-2",
                "",
            ),
            (placements(auto, &[0, 1], &[0, 1], &[None, None]), Health::Ok, "2 shards roam on CPUs 0-1", ""),
            // Others in their place.
            (
                placements(auto, &[0, 1, 2], &[1, 2], &[Some(1)]),
                Health::Ok,
                "1 shard bound to CPUs 1 of 1-2, of 0-2 at the start",
                "",
            ),
            (
                placements(auto, &[0, 1, 2], &[1, 2], &[None, None]),
                Health::Degraded,
                "2 shards roam on CPUs 1-2",
                "CPUs 1-2 may be used, of 0-2 at the start: not bound any more: shard 0-1",
            ),
            (
                placements(on, &[0, 1], &[1], &[Some(1), Some(1)]),
                Health::Degraded,
                "2 shards bound to CPUs 1, 1 of 1",
                "2 shards take turns on CPUs 1, of 0-1 at the start",
            ),
            (
                placements(auto, &[3], &[3], &[None, None]),
                Health::Degraded,
                "2 shards roam on CPUs 3",
                "2 shards take turns on CPUs 3",
            ),
            // More than it began with.
            (
                placements(auto, &[3], &[0, 1, 3], &[Some(0)]),
                Health::Ok,
                "1 shard bound to CPUs 0 of 0-1,3",
                "",
            ),
        ] {
            let line = told.line();
            assert_eq!(
                (line.state, &*line.detail, &*line.reason.unwrap_or_default()),
                (state, detail, reason)
            );
            let fix = line.fix.unwrap_or_default();
            let expected = match (state, told.missing().is_empty()) {
                (Health::Degraded, true) => "shards = 1, or a wider",
                (Health::Degraded, false) => "CPUs 0 back by cpuset.cpus",
                _ => "",
            };
            assert!(fix.starts_with(expected) && fix.is_empty() == expected.is_empty(), "{fix}");
        }
    }

    #[test]
    fn a_shard_that_roams_says_why_and_one_that_is_refused_is_degraded() {
        let why =
            |placements: &Placements| placements.why_it_roams(&placements.shards[0]).unwrap_or_default();
        let mut bound = placements(Pin::On, &[0, 1], &[0, 1], &[Some(0)]);
        assert_eq!(why(&bound), "");
        bound.shards[0].refused = Some("Operation not permitted".to_owned());
        assert_eq!(why(&bound), "the kernel does not bind it: Operation not permitted");
        assert_eq!((bound.line().state, &*bound.describe()), (Health::Degraded, "1 shard roams on CPUs 0-1"));
        let mut half = placements(Pin::On, &[0, 1], &[0, 1], &[Some(0), Some(1)]);
        half.shards[0].refused.clone_from(&bound.shards[0].refused);
        assert_eq!(half.describe(), "1 of 2 shards bound to CPUs 1 of 0-1, 1 not");
        assert!(bound.line().fix.unwrap().contains("SystemCallFilter=sched_setaffinity"));
        assert_eq!(why(&placements(Pin::Off, &[0], &[0], &[None])), "shard.pin = \"off\"");
        assert_eq!(
            why(&placements(Pin::Auto, &[0, 1], &[0, 1], &[None, None])),
            "shard.pin = \"auto\" leaves a CPU to others, and there are 2 CPUs for 2 shards"
        );
        assert_eq!(
            why(&placements(Pin::On, &[], &[], &[None])),
            "the kernel does not tell which CPUs may be used"
        );
    }

    #[test]
    fn memory_that_may_not_be_taken_from_a_node_is_a_cause_of_its_own_beside_others() {
        let mut told = placements(Pin::On, &[0, 1], &[0, 1], &[Some(0), Some(1)]);
        told.policy_refused = Some("Operation not permitted".to_owned());
        let line = told.line();
        assert_eq!((line.state, &*line.detail), (Health::Degraded, "2 shards bound to CPUs 0, 1 of 0-1"));
        let (reason, fix) = (line.reason.unwrap(), line.fix.unwrap());
        assert!(reason.contains("refuses set_mempolicy (Operation not permitted)"), "{reason}");
        assert!(fix.contains("set_mempolicy"), "{fix}");
        told.allowed = vec![0];
        let line = told.line();
        let (both, fixes) = (line.reason.unwrap(), line.fix.unwrap());
        assert!(both.starts_with("2 shards take turns") && both.ends_with(&reason), "{both}");
        assert!(fixes.starts_with("CPUs 1 back") && fixes.ends_with(&fix), "{fixes}");
    }

    #[test]
    fn several_nodes_are_named() {
        let mut told = placements(Pin::On, &[0, 4], &[0, 4], &[Some(0), Some(4)]);
        told.shards[0].place.node = Some(0);
        assert_eq!(told.describe(), "2 shards bound to CPUs 0, 4 of 0,4");
        told.shards[1].place.node = Some(1);
        assert_eq!(told.describe(), "2 shards bound to CPUs 0, 4 of 0,4, on NUMA nodes 0-1");
    }
}
