//! The process whose limits count: the daemon that runs, or the one that asks.

use super::{Row, State};
use crate::attach::descriptors;
use crate::config::{Config, ProbesMode, SHARDS_MAX};
use crate::control::snapshot::Subsystem;
use crate::observe::probes::cause::Cause;
use crate::observe::sockets::SAMPLES;
use crate::root::{Root, Unread};
use crate::shard::placement::report::crowded_fix;
use crate::topology::parse_list;

/// Sockets that one shard's ring has a place for: the kernel wants more descriptors than that to be allowed.
const RING_SOCKETS: u64 = 256;

/// Locked memory that the kernel charges for a ring, where it does: queues of 256 and 1,024 entries, and the list of
/// receive buffers, rounded up.
const RING_BYTES: u64 = 64 << 10;

/// Numbers of capabilities, as the kernel has them.
mod capability {
    pub(super) const IPC_LOCK: u32 = 14;
    pub(super) const SYS_ADMIN: u32 = 21;
    pub(super) const PERFMON: u32 = 38;
    pub(super) const BPF: u32 = 39;
}

/// A resource limit; `None` is no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// What holds now.
    pub soft: Option<u64>,
    /// Up to where the process may raise it.
    pub hard: Option<u64>,
}

/// What a process may do.
#[derive(Clone, Debug)]
pub struct ProcessFacts {
    /// Its effective capabilities, a bit each.
    pub capabilities: Result<u64, Unread>,
    /// Mode of its system call filter: 0 none, 1 strict, 2 a program.
    pub seccomp: Result<u32, Unread>,
    /// Its groups, the first one included.
    pub groups: Vec<u32>,
    /// Processors that it may use.
    pub cpus: Result<Vec<usize>, Unread>,
    /// Processors that are online.
    pub cpus_online: Option<Vec<usize>>,
    /// `RLIMIT_MEMLOCK`, in bytes.
    pub memlock: Result<Limit, Unread>,
    /// `RLIMIT_NOFILE`.
    pub descriptors: Result<Limit, Unread>,
    /// `RLIMIT_FSIZE`, in bytes.
    pub file_bytes: Result<Limit, Unread>,
}

impl ProcessFacts {
    /// Reads those of a process; `self` for the one that asks.
    #[must_use]
    pub fn read(root: &Root, process: &str) -> Self {
        let path = format!("/proc/{process}/status");
        let status = root.text(&path);
        let field = |name: &str| -> Result<String, Unread> {
            let status = status.clone()?;
            let value = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            value
                .map(|value| value.trim().to_owned())
                .ok_or_else(|| Unread::malformed(&path, &format!("no {name}")))
        };
        let wrong = |text: &str| Unread::malformed(&path, text);
        let limits = format!("/proc/{process}/limits");
        let table = root.text(&limits);
        let limit = |name: &str| -> Result<Limit, Unread> {
            let table = table.clone()?;
            let line = table.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(parse_limit).ok_or_else(|| Unread::malformed(&limits, &format!("no {name}")))
        };
        let number = |text: &str| text.split_whitespace().next().and_then(|id| id.parse::<u32>().ok());
        let mut groups: Vec<u32> = field("Gid").ok().as_deref().and_then(number).into_iter().collect();
        groups.extend(
            field("Groups").unwrap_or_default().split_whitespace().filter_map(|id| id.parse::<u32>().ok()),
        );
        Self {
            capabilities: field("CapEff")
                .and_then(|text| u64::from_str_radix(&text, 16).map_err(|_| wrong(&text))),
            seccomp: field("Seccomp").and_then(|text| text.parse().map_err(|_| wrong(&text))),
            groups,
            cpus: field("Cpus_allowed_list").and_then(|text| parse_list(&text).ok_or_else(|| wrong(&text))),
            cpus_online: root.text("/sys/devices/system/cpu/online").ok().and_then(|text| parse_list(&text)),
            memlock: limit("Max locked memory"),
            descriptors: limit("Max open files"),
            file_bytes: limit("Max file size"),
        }
    }

    /// Shards that a daemon of this process has: as many as it is told, else one for each of its processors.
    #[must_use]
    pub fn shards(&self, config: &Config) -> u32 {
        if config.shards > 0 {
            return config.shards;
        }
        let cpus = self.usable_cpus().unwrap_or(1);
        u32::try_from(cpus).unwrap_or(u32::MAX).clamp(1, SHARDS_MAX)
    }

    /// How many processors it may use and are online: the kernel lists those too that a machine may still get.
    fn usable_cpus(&self) -> Result<usize, &Unread> {
        let cpus = self.cpus.as_ref()?;
        Ok(match &self.cpus_online {
            Some(online) => cpus.iter().filter(|cpu| online.binary_search(cpu).is_ok()).count(),
            None => cpus.len(),
        })
    }

    fn has(&self, number: u32) -> Result<bool, &Unread> {
        let wanted = (1 << number) | (1 << capability::SYS_ADMIN);
        match number {
            // CAP_SYS_ADMIN stands in for the two that were taken from it, and for no other.
            capability::BPF | capability::PERFMON => {
                self.capabilities.as_ref().map(|held| held & wanted != 0)
            }
            _ => self.capabilities.as_ref().map(|held| held & (1 << number) != 0),
        }
    }

    /// Whether it may use io_uring where that is kept for one group.
    #[must_use]
    pub fn may_use_io_uring_of(&self, group: Option<i64>) -> bool {
        let is_admin = self.has(capability::SYS_ADMIN) == Ok(true);
        is_admin || group.is_some_and(|group| self.groups.iter().any(|own| i64::from(*own) == group))
    }
}

/// The soft and the hard value of a line of `/proc/PID/limits`, behind its name.
fn parse_limit(line: &str) -> Option<Limit> {
    let mut values = line.split_whitespace();
    let mut next = || match values.next()? {
        "unlimited" => Some(None),
        text => text.parse().ok().map(Some),
    };
    Some(Limit { soft: next()?, hard: next()? })
}

/// Judges.
#[must_use]
pub fn rows(facts: &ProcessFacts, config: &Config, probes: &Subsystem, given_up: &[String]) -> Vec<Row> {
    let mut rows = capabilities(facts, config.observe.probes, given_up);
    rows.push(seccomp(facts, probes));
    rows.push(probes_row(probes, config.observe.probes));
    rows.push(memlock(facts, facts.shards(config), given_up));
    rows.push(open_files(facts, config));
    rows.push(file_bytes(facts));
    rows.push(cpus(facts, facts.shards(config)));
    rows
}

/// A daemon that runs has given up what it needed at its start.
fn capabilities(facts: &ProcessFacts, mode: ProbesMode, given_up: &[String]) -> Vec<Row> {
    let needed = [
        ("CAP_BPF", capability::BPF, Cause::NoBpfCapability),
        ("CAP_PERFMON", capability::PERFMON, Cause::OnlyBpfCapability),
    ];
    let rows = needed.into_iter().map(|(name, number, cause)| {
        let wanted = "held, for kernel probes";
        if mode == ProbesMode::Off {
            return Row::off(name, wanted, Cause::SwitchedOff.to_string());
        }
        match facts.has(number) {
            Ok(true) => Row::new(name, wanted, "held"),
            Ok(false) if given_up.iter().any(|one| one == name) => {
                Row::new(name, wanted, "held at the start, and given up since")
            }
            Ok(false) => {
                let state = if mode == ProbesMode::Require { State::Failed } else { State::Degraded };
                Row::new(name, wanted, cause.to_string()).in_state(state, SAMPLES, cause.fix())
            }
            Err(unread) => Row::unknown(name, wanted, unread),
        }
    });
    rows.collect()
}

/// What helps where a filter refuses io_uring.
pub(super) const FILTER_FIX: &str = "SystemCallFilter=@system-service in the unit, or a container profile that allows io_uring_setup, io_uring_enter and \
     io_uring_register";

fn seccomp(facts: &ProcessFacts, probes: &Subsystem) -> Row {
    let wanted = "no system call filter, or one that lets io_uring and bpf() pass";
    let refused = Cause::CallRefused { errno: String::new() };
    let is_refused = probes.reason.as_deref().is_some_and(|reason| reason.starts_with(refused.title()));
    match &facts.seccomp {
        Err(unread) => Row::unknown("seccomp", wanted, unread),
        Ok(0) => Row::new("seccomp", wanted, "none"),
        Ok(_) if is_refused => Row::new("seccomp", wanted, probes.reason.clone().unwrap_or_default())
            .degraded(SAMPLES, refused.fix()),
        Ok(1) => Row::new("seccomp", wanted, "strict mode, which leaves four system calls").failed(
            "the daemon does not start",
            "start weir without it: strict mode is for programs that only compute",
        ),
        Ok(_) => Row::new("seccomp", wanted, "a filter"),
    }
}

/// The line of `weir status`, as it is or as it would be.
fn probes_row(line: &Subsystem, mode: ProbesMode) -> Row {
    let mut row = Row::said(line, "every hook attached", SAMPLES);
    if row.state == State::Degraded {
        if mode == ProbesMode::Require {
            row.state = State::Failed;
            row.effect =
                "observe.probes = \"require\": without all hooks that it names the daemon does not start"
                    .to_owned();
        } else if line.detail != SAMPLES {
            row.effect = format!("{}; the rest is measured", line.detail);
        }
    }
    row
}

fn memlock(facts: &ProcessFacts, shards: u32, given_up: &[String]) -> Row {
    // One more for trying what io_uring can do.
    let needed = RING_BYTES * (u64::from(shards) + 1);
    let wanted = format!("CAP_IPC_LOCK, or at least {} KiB for {shards} rings", needed >> 10);
    let limit = match (facts.has(capability::IPC_LOCK), &facts.memlock) {
        (Ok(true), _) => return Row::new("RLIMIT_MEMLOCK", wanted, "no bound: CAP_IPC_LOCK is held"),
        (Ok(false), _) if given_up.iter().any(|one| one == "CAP_IPC_LOCK") => {
            return Row::new(
                "RLIMIT_MEMLOCK",
                wanted,
                "no bound: CAP_IPC_LOCK was held when the rings were made",
            );
        }
        (_, Err(unread)) => return Row::unknown("RLIMIT_MEMLOCK", wanted, unread),
        (_, Ok(limit)) => limit.soft,
    };
    let row = Row::new("RLIMIT_MEMLOCK", wanted, in_kibibytes(limit));
    if limit.is_none_or(|limit| limit >= needed) {
        return row;
    }
    row.failed(
        "the kernel charges rings to the user, and refuses them beyond it: the daemon does not start, or uses less of \
         io_uring",
        "AmbientCapabilities=CAP_IPC_LOCK or LimitMEMLOCK=infinity in the unit, or ulimit -l unlimited",
    )
}

fn open_files(facts: &ProcessFacts, config: &Config) -> Row {
    let clients = config.limits.attachments_max;
    let needed = descriptors::needed(clients);
    let wanted = format!("{needed} for {clients} clients and their links (limits.attachments_max)");
    // The daemon raises its soft limit to the hard one when it starts.
    let limit = match &facts.descriptors {
        Ok(limit) => limit.hard,
        Err(unread) => return Row::unknown("RLIMIT_NOFILE", wanted, unread),
    };
    let row =
        Row::new("RLIMIT_NOFILE", wanted, limit.map_or("unlimited".to_owned(), |limit| limit.to_string()));
    if limit.is_some_and(|limit| limit <= RING_SOCKETS) {
        let effect = format!(
            "a ring has places for {RING_SOCKETS} sockets, and the kernel refuses it: the daemon does not start"
        );
        return row.failed(effect, descriptors::TOO_FEW_FIX);
    }
    match descriptors::too_few(limit, clients) {
        Some(effect) => row.degraded(effect, descriptors::TOO_FEW_FIX),
        None => row,
    }
}

fn file_bytes(facts: &ProcessFacts) -> Row {
    let wanted = "no limit: a region is a file in memory";
    match &facts.file_bytes {
        Err(unread) => Row::unknown("RLIMIT_FSIZE", wanted, unread),
        Ok(Limit { soft: None, .. }) => Row::new("RLIMIT_FSIZE", wanted, "unlimited"),
        Ok(Limit { soft, .. }) => Row::new("RLIMIT_FSIZE", wanted, in_kibibytes(*soft))
            .degraded("a larger region is refused", "LimitFSIZE=infinity, ulimit -f unlimited"),
    }
}

fn in_kibibytes(limit: Option<u64>) -> String {
    match limit {
        None => "unlimited".to_owned(),
        Some(bytes) => format!("{} KiB", bytes >> 10),
    }
}

fn cpus(facts: &ProcessFacts, shards: u32) -> Row {
    let wanted = format!("at least {shards}, one for each shard");
    let usable = match facts.usable_cpus() {
        Ok(usable) => usable,
        Err(unread) => return Row::unknown("cpus", wanted, unread),
    };
    let online =
        facts.cpus_online.as_ref().map_or(String::new(), |online| format!(" of {} online", online.len()));
    let row = Row::new("cpus", wanted, format!("{usable}{online} may be used"));
    if u64::try_from(usable).unwrap_or(u64::MAX) >= u64::from(shards) {
        return row;
    }
    row.degraded(
        "shards take turns on a processor, and each delays the links of the other",
        crowded_fix(usable),
    )
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::root::machine;

    /// A process that lacks nothing.
    pub(crate) const STATUS: &str = "Name:\tweir\nUid:\t990\t990\t990\t990\nGid:\t990\t990\t990\t990\n\
        Groups:\t100 990\nCapEff:\t000000c000004000\nSeccomp:\t2\nCpus_allowed_list:\t0-1,4\n";

    /// Its limits.
    pub(crate) const LIMITS: &str = "\
Limit                     Soft Limit           Hard Limit           Units     
Max file size             unlimited            unlimited            bytes     
Max open files            1024                 65536                files     
Max locked memory         8388608              8388608              bytes     
";

    /// What is read of a process with such files.
    pub(crate) fn process(status: &str, limits: &str) -> ProcessFacts {
        let files = [
            ("/proc/7/status", status),
            ("/proc/7/limits", limits),
            ("/sys/devices/system/cpu/online", "0-5\n"),
        ];
        let (_directory, root) = machine(&files);
        ProcessFacts::read(&root, "7")
    }

    fn probes() -> Subsystem {
        Subsystem::ok("probes", "5 of 5 hooks attached, 0 sockets watched")
    }

    fn row(name: &str, facts: &ProcessFacts, config: &Config, probes: &Subsystem) -> Row {
        rows(facts, config, probes, &[]).into_iter().find(|row| row.name == name).unwrap()
    }

    fn with_shards(shards: u32) -> Config {
        Config { shards, ..Config::default() }
    }

    #[test]
    fn a_process_that_lacks_nothing_is_fine_in_every_row() {
        let facts = process(STATUS, LIMITS);
        assert_eq!(facts.cpus, Ok(vec![0, 1, 4]));
        assert_eq!(facts.groups, [990, 100, 990]);
        for row in rows(&facts, &Config::default(), &probes(), &[]) {
            assert_eq!((row.state, &*row.effect, &*row.fix), (State::Ok, "", ""), "{row:?}");
        }
    }

    #[test]
    fn each_capability_that_is_missing_is_named_in_the_words_of_the_status() {
        for (capabilities, missing) in [
            ("0000008000000000", &["CAP_PERFMON"][..]),
            ("0000004000000000", &["CAP_BPF"]),
            ("0000000000000000", &["CAP_BPF", "CAP_PERFMON"]),
            ("0000000000200000", &[]),
        ] {
            let facts = process(&STATUS.replace("000000c000004000", capabilities), LIMITS);
            for (name, cause) in
                [("CAP_BPF", Cause::NoBpfCapability), ("CAP_PERFMON", Cause::OnlyBpfCapability)]
            {
                let row = row(name, &facts, &with_shards(1), &probes());
                if missing.contains(&name) {
                    assert_eq!((row.state, row.found), (State::Degraded, cause.to_string()));
                    assert!(row.fix.contains("AmbientCapabilities=CAP_BPF CAP_PERFMON"), "{}", row.fix);
                } else {
                    assert_eq!((row.state, &*row.found), (State::Ok, "held"), "{name} of {capabilities}");
                }
            }
        }
    }

    #[test]
    fn what_a_daemon_that_runs_has_given_up_is_not_missed() {
        let facts = process(
            &STATUS.replace("000000c000004000", "0000000000000000"),
            &LIMITS.replace("unlimited", "65536"),
        );
        let given_up = ["CAP_BPF", "CAP_PERFMON", "CAP_IPC_LOCK"].map(str::to_owned);
        for name in ["CAP_BPF", "CAP_PERFMON", "RLIMIT_MEMLOCK"] {
            let row = |given_up: &[String]| {
                let rows = rows(&facts, &Config::default(), &probes(), given_up);
                rows.into_iter().find(|row| row.name == name).unwrap()
            };
            assert_eq!(row(&given_up).state, State::Ok, "{name}");
        }
        let rows = rows(&facts, &Config::default(), &probes(), &[]);
        assert_eq!(
            rows.iter().filter(|row| row.state == State::Degraded && row.name.starts_with("CAP_")).count(),
            2
        );
    }

    #[test]
    fn whether_probes_are_wanted_decides_what_a_missing_capability_is() {
        let facts = process(&STATUS.replace("000000c000004000", "0"), LIMITS);
        for (mode, expected) in [
            (ProbesMode::Auto, State::Degraded),
            (ProbesMode::Require, State::Failed),
            (ProbesMode::Off, State::Off),
        ] {
            let mut config = with_shards(1);
            config.observe.probes = mode;
            assert_eq!(row("CAP_BPF", &facts, &config, &probes()).state, expected, "{mode:?}");
        }
    }

    #[test]
    fn probes_that_do_not_run_are_told_as_in_the_status() {
        let facts = process(STATUS, LIMITS);
        let lost =
            Subsystem::degraded("probes", "4 of 5 hooks attached", "hook missing: x", "a newer kernel");
        let found = row("probes", &facts, &Config::default(), &lost);
        assert_eq!(
            (found.state, &*found.found, &*found.effect, &*found.fix),
            (
                State::Degraded,
                "hook missing: x",
                "4 of 5 hooks attached; the rest is measured",
                "a newer kernel"
            )
        );
        let mut config = Config::default();
        config.observe.probes = ProbesMode::Require;
        assert_eq!(row("probes", &facts, &config, &lost).state, State::Failed);
    }

    #[test]
    fn a_filter_counts_when_it_refuses_something() {
        let refused = Cause::CallRefused { errno: "EPERM".to_owned() };
        let refused = Subsystem::degraded("probes", SAMPLES, refused.to_string(), refused.fix());
        let facts =
            |mode: &str| process(&STATUS.replace("Seccomp:\t2", &format!("Seccomp:\t{mode}")), LIMITS);
        for (mode, probes, expected) in [
            ("0", probes(), State::Ok),
            ("2", probes(), State::Ok),
            ("2", refused.clone(), State::Degraded),
            ("1", probes(), State::Failed),
        ] {
            let row = row("seccomp", &facts(mode), &Config::default(), &probes);
            assert_eq!(row.state, expected, "{row:?}");
        }
        let row = row("seccomp", &facts("2"), &Config::default(), &refused);
        assert!(row.fix.contains("SystemCallFilter=bpf"), "{}", row.fix);
    }

    #[test]
    fn locked_memory_is_bounded_by_the_limit_only_without_the_capability() {
        let limits = |bytes: &str| LIMITS.replace("8388608 ", bytes);
        let without = STATUS.replace("000000c000004000", "000000c000000000");
        for (status, bytes, expected) in [
            (STATUS, "65536 ", State::Ok),
            (&*without, "8388608 ", State::Ok),
            (&*without, "unlimited ", State::Ok),
            // Two rings and a trial take three times 64 KiB.
            (&*without, "196608 ", State::Ok),
            (&*without, "196607 ", State::Failed),
            (&*without, "0 ", State::Failed),
        ] {
            let row = row("RLIMIT_MEMLOCK", &process(status, &limits(bytes)), &with_shards(2), &probes());
            assert_eq!(row.state, expected, "{row:?}");
            assert_eq!(row.fix.contains("CAP_IPC_LOCK"), expected == State::Failed);
        }
    }

    #[test]
    fn the_hard_limit_on_descriptors_is_what_counts() {
        let limits = |hard: &str| LIMITS.replace("65536 ", hard);
        for (hard, expected, effect) in [
            ("unlimited ", State::Ok, ""),
            ("5184 ", State::Ok, ""),
            ("5183 ", State::Degraded, "at most 1023 clients can attach"),
            ("257 ", State::Degraded, "at most 38 clients"),
            ("256 ", State::Failed, "the daemon does not start"),
        ] {
            let row = row("RLIMIT_NOFILE", &process(STATUS, &limits(hard)), &Config::default(), &probes());
            assert_eq!(row.state, expected, "{row:?}");
            assert!(row.effect.contains(effect), "{row:?}");
        }
    }

    #[test]
    fn a_limit_on_files_is_a_limit_on_regions() {
        let limits = LIMITS.replacen("unlimited ", "1048576 ", 1);
        let row = row("RLIMIT_FSIZE", &process(STATUS, &limits), &Config::default(), &probes());
        assert_eq!((row.state, &*row.found), (State::Degraded, "1024 KiB"));
    }

    #[test]
    fn shards_want_a_processor_each_that_is_online() {
        for (allowed, shards, expected) in [
            ("0-1,4", 3, State::Ok),
            ("0-1,4", 4, State::Degraded),
            // One for each, however few there are.
            ("3", 0, State::Ok),
            // Places for processors that are not there want no shard.
            ("0-127", 0, State::Ok),
            // The last two are not online.
            ("5-7", 2, State::Degraded),
        ] {
            let status = STATUS.replace("0-1,4", allowed);
            let row = row("cpus", &process(&status, LIMITS), &with_shards(shards), &probes());
            assert_eq!(row.state, expected, "{row:?}");
            assert_eq!(row.fix.starts_with("shards = "), expected == State::Degraded);
        }
    }

    #[test]
    fn what_cannot_be_read_is_not_known_and_no_fault() {
        let facts = process("Name:\tweir\n", "nothing");
        let states: Vec<(String, State)> = rows(&facts, &Config::default(), &probes(), &[])
            .into_iter()
            .map(|row| (row.name, row.state))
            .collect();
        for (name, state) in states {
            let expected = if name == "probes" { State::Ok } else { State::Unknown };
            assert_eq!(state, expected, "{name}");
        }
    }

    #[test]
    fn this_process_is_read_as_it_is() {
        let facts = ProcessFacts::read(&Root::default(), "self");
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        assert_eq!(facts.descriptors, Ok(Limit { soft: limit.current, hard: limit.maximum }));
        assert_eq!(facts.cpus, Ok(crate::shard::placement::allowed_cpus()));
        let capabilities = rustix::thread::capabilities(None).unwrap().effective.bits();
        assert_eq!(facts.capabilities, Ok(capabilities));
    }
}
