//! What a daemon with this configuration would find on this machine, and what of it to change.
//!
//! Looking and judging are apart. Each part has facts, read or tried once within bounds, and a pure function from facts
//! and configuration to rows; so every rule is tested with a machine that is written down. Words that `weir status` has
//! for a cause are used here too, from the same place.
//!
//! | file | holds |
//! |---|---|
//! | this | rows, and the order in which they are shown |
//! | [`process`] | whose limits count: capabilities, seccomp, resource limits, processors |
//! | [`processors`] | cores and NUMA nodes, the cpuset, and where shards run |
//! | [`kernel`] | release, switches, type information, lockdown |
//! | [`rings`] | io_uring, feature by feature |
//! | [`memory`] | hugepages, control groups, the bound on regions |
//! | [`network`] | TCP: congestion control, buffers, accept queues |
//! | [`peers`] | name, route and MTU of each configured peer |
//! | [`places`] | the run directory, its sockets, and the addresses to listen on |

pub mod kernel;
pub mod memory;
pub mod network;
pub mod peers;
pub mod places;
pub mod process;
pub mod processors;
pub mod rings;

use serde::Serialize;

use crate::config::Config;
use crate::control::snapshot::{Health, StatusReport, Subsystem};
use crate::exit::Exit;
use crate::root::Unread;
use kernel::KernelFacts;
use memory::MemoryFacts;
use network::NetworkFacts;
use peers::PeerFacts;
use places::PlaceFacts;
use process::ProcessFacts;
use processors::ProcessorFacts;
use rings::RingFacts;

/// How a thing is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// As wanted.
    Ok,
    /// Not in use, as configured.
    Off,
    /// It could not be found out.
    Unknown,
    /// The daemon runs, with less than it could have.
    Degraded,
    /// The daemon does not start.
    Failed,
}

impl State {
    /// As the table shows it: the words of `weir status`, and two more.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "OK",
            Self::Off => "OFF",
            Self::Unknown => "UNKNOWN",
            Self::Degraded => "DEGRADED",
            Self::Failed => "FAILED",
        }
    }
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Row {
    /// What: one word, or two with a slash.
    pub name: String,
    /// How it is.
    pub state: State,
    /// What is needed.
    pub wanted: String,
    /// What there is; or why that is not known.
    pub found: String,
    /// What it costs as it is.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub effect: String,
    /// The command or the key that changes it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub fix: String,
}

impl Row {
    fn new(name: impl Into<String>, wanted: impl Into<String>, found: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            state: State::Ok,
            wanted: wanted.into(),
            found: found.into(),
            effect: String::new(),
            fix: String::new(),
        }
    }

    /// The same in this state, with what it costs and what changes it.
    fn in_state(mut self, state: State, effect: impl Into<String>, fix: impl Into<String>) -> Self {
        (self.state, self.effect, self.fix) = (state, effect.into(), fix.into());
        self
    }

    fn degraded(self, effect: impl Into<String>, fix: impl Into<String>) -> Self {
        self.in_state(State::Degraded, effect, fix)
    }

    fn failed(self, effect: impl Into<String>, fix: impl Into<String>) -> Self {
        self.in_state(State::Failed, effect, fix)
    }

    /// Not in use, for this reason.
    fn off(name: &str, wanted: &str, why: impl Into<String>) -> Self {
        Self::new(name, wanted, why).in_state(State::Off, "", "")
    }

    /// Not known, since this could not be read.
    fn unknown(name: &str, wanted: impl Into<String>, unread: &Unread) -> Self {
        Self::new(name, wanted, unread.to_string()).in_state(State::Unknown, "", unread.fix())
    }

    /// What a daemon says of its own, in its words.
    fn said(subsystem: &Subsystem, wanted: &str, effect: &str) -> Self {
        let reason = subsystem.reason.clone();
        let row = Self::new(
            subsystem.name.clone(),
            wanted,
            reason.filter(|reason| !reason.is_empty()).unwrap_or_else(|| subsystem.detail.clone()),
        );
        let fix = subsystem.fix.clone().unwrap_or_default();
        match subsystem.state {
            Health::Ok => row,
            Health::Off => row.in_state(State::Off, effect, fix),
            Health::Degraded => row.degraded(effect, fix),
        }
    }
}

/// Whose limits and capabilities were looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Subject {
    /// Those of the daemon that has the run directory.
    Daemon {
        /// Its process.
        pid: u32,
    },
    /// No daemon runs there: those of the process that asks.
    Process {
        /// It.
        pid: u32,
    },
}

/// Everything that was found.
#[derive(Clone, Debug)]
pub struct Facts {
    /// Of the kernel.
    pub kernel: KernelFacts,
    /// Of io_uring.
    pub rings: RingFacts,
    /// Of the daemon's process, or of this one.
    pub process: ProcessFacts,
    /// Of the processors that it may use.
    pub processors: ProcessorFacts,
    /// Of memory.
    pub memory: MemoryFacts,
    /// Of TCP.
    pub network: NetworkFacts,
    /// Of each configured peer, in their order.
    pub peers: Vec<PeerFacts>,
    /// Of the run directory and addresses.
    pub places: PlaceFacts,
    /// How sockets would be observed, in the words of `weir status`.
    pub probes: Subsystem,
    /// What the daemon that runs says of itself; none if none answers.
    pub said: Option<StatusReport>,
}

impl Facts {
    /// The line that the running daemon has of this name.
    fn line(&self, name: &str) -> Option<&Subsystem> {
        self.said.as_ref()?.subsystems.iter().find(|subsystem| subsystem.name == name)
    }
}

impl Facts {
    /// The configuration with as many shards as the daemon has that runs.
    fn as_running(&self, config: &Config) -> Config {
        let running = self.said.as_ref().map(|said| said.shards.len() + said.shards_missing.len());
        let running = running.and_then(|shards| u32::try_from(shards).ok()).filter(|shards| *shards > 0);
        Config { shards: running.unwrap_or(config.shards), ..config.clone() }
    }
}

/// Lines of `weir status` that no row stands for.
const ONLY_SAID: [&str; 6] = ["node", "links", "zero copy", "shards", "privileges", "configuration"];

/// Judges everything, in the order in which it is shown.
#[must_use]
pub fn examine(facts: &Facts, config: &Config) -> Vec<Row> {
    let config = &facts.as_running(config);
    let mut rows = kernel::rows(&facts.kernel, &facts.process, config);
    rows.extend(rings::rows(&facts.rings));
    let given_up = facts.said.as_ref().map_or(&[][..], |said| &said.capabilities_given_up);
    let probes = facts.line("probes").unwrap_or(&facts.probes);
    let of_process = process::rows(&facts.process, config, probes, given_up).into_iter();
    // Of the process that asks, which is the one that tried io_uring.
    let has_filter = facts.process.seccomp.as_ref().is_ok_and(|mode| *mode > 0);
    let refused = rings::refused_by_filter(&facts.rings).filter(|_| has_filter && facts.said.is_none());
    rows.extend(of_process.map(|row| match refused {
        Some(why) if row.name == "seccomp" => row.failed(why, process::FILTER_FIX),
        _ => row,
    }));
    rows.extend(processors::rows(&facts.processors, &facts.process, config, facts.line("placement")));
    let (shards, level) = (facts.process.shards(config), facts.rings.level());
    rows.extend(memory::rows(&facts.memory, config, shards, level, facts.line("memory")));
    rows.extend(network::rows(&facts.network, config));
    rows.extend(peers::rows(&facts.peers, config));
    rows.extend(places::rows(&facts.places, config));
    rows.extend(said(facts, &rows));
    rows
}

/// What the daemon that runs calls DEGRADED and no row is about: what only shows at work, such as memory that may not be locked.
/// What a row says already is not said twice.
fn said(facts: &Facts, rows: &[Row]) -> Vec<Row> {
    let accounting = rows.iter().find(|row| row.name == rings::ACCOUNTING).map(|row| row.found.as_str());
    let lines = facts.said.iter().flat_map(|said| &said.subsystems);
    let lines =
        lines.filter(|line| line.state == Health::Degraded && ONLY_SAID.contains(&line.name.as_str()));
    let lines = lines.filter(|line| line.name != "zero copy" || line.reason.as_deref() != accounting);
    lines.map(|line| Row::said(line, "OK, as `weir status` has it", "see `weir status`")).collect()
}

/// The state of the whole: that of the worst row. What is off or not known is no fault.
#[must_use]
pub fn worst(rows: &[Row]) -> State {
    let worst = rows.iter().map(|row| row.state).max().unwrap_or(State::Ok);
    if worst >= State::Degraded { worst } else { State::Ok }
}

/// The exit code of that state.
#[must_use]
pub const fn exit(worst: State) -> Exit {
    match worst {
        State::Ok | State::Off | State::Unknown => Exit::Ok,
        State::Degraded => Exit::Degraded,
        State::Failed => Exit::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::snapshot::{MemoryReport, ShardRow};
    use crate::io::probe::Level;
    use crate::link::zero_copy::ZeroCopySetting;

    fn row(state: State) -> Row {
        Row::new("x", "y", "z").in_state(state, "", "")
    }

    pub(in crate::doctor) fn said(missing: Vec<u16>) -> StatusReport {
        StatusReport {
            schema_version: 1,
            node: "a".into(),
            version: "1".into(),
            pid: 7,
            uptime_seconds: 1,
            listen: String::new(),
            memory: MemoryReport::default(),
            subsystems: Vec::new(),
            links: Vec::new(),
            shards: vec![ShardRow::default()],
            shards_missing: missing,
            capabilities_given_up: Vec::new(),
            hooks: Vec::new(),
            zero_copy: None,
        }
    }

    #[test]
    fn a_daemon_that_runs_has_the_shards_that_it_says() {
        let files = [("/proc/7/status", process::tests::STATUS), ("/proc/7/limits", process::tests::LIMITS)];
        let (_directory, root) = crate::root::machine(&files);
        let config = Config::default();
        let process = ProcessFacts::read(&root, "7");
        let mut facts = Facts {
            kernel: KernelFacts::read(&root, "6.1.0".into()),
            rings: RingFacts { allowed: Level::Full, tried: Vec::new(), zero_copy: ZeroCopySetting::never() },
            processors: ProcessorFacts::read(&root, "7", &process),
            process,
            memory: MemoryFacts::read(&root, "7"),
            network: NetworkFacts::read(&root, Ok(())),
            peers: Vec::new(),
            places: PlaceFacts::find(&config, None),
            probes: Subsystem::ok("probes", ""),
            said: None,
        };
        for (said, expected) in [
            // One for each processor.
            (None, "at least 3, one for each shard"),
            (Some(said(vec![])), "at least 1, one for each shard"),
            (Some(said(vec![1])), "at least 2, one for each shard"),
        ] {
            facts.said = said;
            let rows = examine(&facts, &config);
            assert_eq!(rows.iter().find(|row| row.name == "cpus").unwrap().wanted, expected);
        }
    }

    #[test]
    fn the_worst_row_decides_and_what_is_not_known_is_no_fault() {
        for (states, expected) in [
            (&[][..], (State::Ok, Exit::Ok)),
            (&[State::Ok, State::Unknown, State::Off], (State::Ok, Exit::Ok)),
            (&[State::Degraded, State::Unknown], (State::Degraded, Exit::Degraded)),
            (&[State::Failed, State::Degraded, State::Ok], (State::Failed, Exit::Failed)),
        ] {
            let rows: Vec<Row> = states.iter().map(|state| row(*state)).collect();
            let found = worst(&rows);
            assert_eq!((found, exit(found)), expected, "{states:?}");
        }
    }

    #[test]
    fn what_a_daemon_says_keeps_its_words() {
        let said = Subsystem::degraded("memory", "0 regions", "0 hugepages are free", "sysctl x=1");
        let row = Row::said(&said, "hugepages", "slower");
        assert_eq!(
            (row.state, &*row.found, &*row.effect, &*row.fix),
            (State::Degraded, "0 hugepages are free", "slower", "sysctl x=1")
        );
        let row = Row::said(&Subsystem::ok("memory", "3 regions"), "hugepages", "slower");
        assert_eq!((row.state, &*row.found, &*row.effect), (State::Ok, "3 regions", ""));
    }
}
