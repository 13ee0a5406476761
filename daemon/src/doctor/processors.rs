//! Processors: what the machine has of them, what the control group leaves, and where shards would run.

use super::process::ProcessFacts;
use super::{Row, State};
use crate::config::Config;
use crate::control::snapshot::Subsystem;
use crate::root::Root;
use crate::shard::placement::report::Placements;
use crate::shard::placement::{Pin, plan};
use crate::topology::cpuset::{CpusetFile, cpuset};
use crate::topology::{Topology, memories_allowed, show_list};

/// What there is of processors.
#[derive(Clone, Debug, Default)]
pub struct ProcessorFacts {
    /// Cores and nodes of those that the process may use.
    pub topology: Topology,
    /// NUMA nodes whose memory it may use; none where that is not known.
    pub memories: Option<Vec<u32>>,
    /// What its control group leaves, if it has a cpuset.
    pub cpuset: Option<CpusetFile>,
}

impl ProcessorFacts {
    /// Reads them for a process, by its number or `self`.
    #[must_use]
    pub fn read(root: &Root, process: &str, facts: &ProcessFacts) -> Self {
        Self {
            topology: Topology::read(root, facts.cpus.as_deref().unwrap_or_default()),
            memories: memories_allowed(root, process),
            cpuset: cpuset(root, process),
        }
    }
}

/// Judges. `said` is the line `placement` of a daemon that runs.
#[must_use]
pub fn rows(
    facts: &ProcessorFacts,
    process: &ProcessFacts,
    config: &Config,
    said: Option<&Subsystem>,
) -> Vec<Row> {
    vec![cpuset_row(facts.cpuset.as_ref()), topology(facts, process), placement(facts, process, config, said)]
}

fn cpuset_row(cpuset: Option<&CpusetFile>) -> Row {
    let found = match cpuset {
        None => "no control group with a cpuset is seen".to_owned(),
        Some(CpusetFile { cpus, file }) => format!("{}, by {}", show_list(cpus), file.display()),
    };
    Row::new("cpuset", "processors that the control group leaves", found)
}

fn topology(facts: &ProcessorFacts, process: &ProcessFacts) -> Row {
    let wanted = "cores and NUMA nodes of the processors that may be used";
    if let Err(unread) = &process.cpus {
        return Row::unknown("topology", wanted, unread);
    }
    let (found, doubts) = (facts.topology.describe(), facts.topology.doubts());
    if doubts.is_empty() {
        return Row::new("topology", wanted, found);
    }
    let effect =
        "the machine is taken for a simpler one: shards may share a core, or work on memory of another node";
    Row::new("topology", wanted, format!("{found}; {}", doubts.join("; "))).in_state(
        State::Unknown,
        effect,
        "",
    )
}

fn placement(
    facts: &ProcessorFacts,
    process: &ProcessFacts,
    config: &Config,
    said: Option<&Subsystem>,
) -> Row {
    let wanted = "shards as shard.pin says, none of them on a processor of another";
    let effect = "shards are moved between processors, or take turns on one: each such moment delays every link of a shard";
    if let Some(said) = said {
        return Row::said(said, wanted, effect);
    }
    if let Err(unread) = &process.cpus {
        return Row::unknown("placement", wanted, unread);
    }
    let pin = Pin::from(config.shard.pin);
    let shards = u16::try_from(process.shards(config)).unwrap_or(u16::MAX);
    let places = plan(&facts.topology, facts.memories.as_deref(), shards, pin);
    let expected = Placements::expected(pin, facts.topology.cpus().collect(), places);
    Row::said(&expected.line(), wanted, effect)
}

#[cfg(test)]
mod tests {
    use super::super::process::tests::{LIMITS, STATUS};
    use super::*;
    use crate::root::machine;
    use crate::topology::tests::two_sockets;

    /// What is found on two sockets by a process that may use these processors, with these files beside.
    fn found(allowed: &str, more: &[(&str, &str)], config: &Config, said: Option<&Subsystem>) -> Vec<Row> {
        let status = STATUS.replace("0-1,4", allowed);
        let sockets = two_sockets();
        let mut files: Vec<(&str, &str)> = sockets.iter().map(|(path, text)| (&**path, &**text)).collect();
        files.extend([("/proc/7/status", &*status), ("/proc/7/limits", LIMITS)]);
        files.extend(more);
        let (_directory, root) = machine(&files);
        let process = ProcessFacts::read(&root, "7");
        rows(&ProcessorFacts::read(&root, "7", &process), &process, config, said)
    }

    fn row<'a>(rows: &'a [Row], name: &str) -> &'a Row {
        rows.iter().find(|row| row.name == name).unwrap()
    }

    #[test]
    fn machine_cpuset_and_places_are_told() {
        let groups = ("/proc/7/cgroup", "4:cpuset,cpu:/x\n0::/weir.slice/weir.service\n");
        let second = ("/sys/fs/cgroup/weir.slice/cpuset.cpus.effective", "0-1,4-5\n");
        let config = Config { shards: 2, ..Config::default() };
        let rows = found("0-1,4-5", &[groups, second], &config, None);
        assert!(rows.iter().all(|row| row.state == State::Ok), "{rows:?}");
        assert_eq!(row(&rows, "cpuset").found, "0-1,4-5, by /sys/fs/cgroup/weir.slice/cpuset.cpus.effective");
        assert_eq!(
            row(&rows, "topology").found,
            "2 packages, 4 cores, 4 processors (0-1,4-5), 2 NUMA nodes (0-1)"
        );
        assert_eq!(
            row(&rows, "placement").found,
            "2 shards bound to CPUs 0, 4 of 0-1,4-5, on NUMA nodes 0-1"
        );
        // The first version of control groups wins where its hierarchy stands first.
        let first = ("/sys/fs/cgroup/cpuset/x/cpuset.cpus", "0-1\n");
        let rows = found("0-1", &[groups, second, first], &config, None);
        assert_eq!(row(&rows, "cpuset").found, "0-1, by /sys/fs/cgroup/cpuset/x/cpuset.cpus");
        assert_eq!(
            row(&found("0-1", &[], &config, None), "cpuset").found,
            "no control group with a cpuset is seen"
        );
    }

    #[test]
    fn too_few_processors_are_told_as_by_the_row_of_processors() {
        let config = Config { shards: 3, ..Config::default() };
        let rows = found("0,8", &[], &config, None);
        let row = row(&rows, "placement");
        assert_eq!((row.state, &*row.found), (State::Degraded, "3 shards take turns on CPUs 0,8"));
        assert_eq!(row.fix, "shards = 2, or a wider CPUAffinity= or AllowedCPUs= of the unit");
        assert!(row.effect.contains("take turns"));
    }

    #[test]
    fn a_daemon_that_runs_is_believed() {
        let said = Subsystem::degraded("placement", "x", "CPUs 1 may be used", "give them back");
        let rows = found("0-1", &[], &Config::default(), Some(&said));
        let row = row(&rows, "placement");
        assert_eq!(
            (row.state, &*row.found, &*row.fix),
            (State::Degraded, "CPUs 1 may be used", "give them back")
        );
    }

    #[test]
    fn what_cannot_be_read_is_no_fault() {
        let broken = ("/sys/devices/system/cpu/cpu0/topology/thread_siblings_list", "x\n");
        let rows = found("0-1", &[broken], &Config::default(), None);
        let topology = row(&rows, "topology");
        assert_eq!(topology.state, State::Unknown);
        assert!(topology.found.contains("thread_siblings_list has \"x\""), "{topology:?}");
        for row in found("none", &[], &Config::default(), None).iter().filter(|row| row.name != "cpuset") {
            assert_eq!(row.state, State::Unknown, "{row:?}");
        }
    }
}
