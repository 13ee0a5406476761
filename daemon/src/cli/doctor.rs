//! `weir doctor`: what a daemon finds on this machine, and what to change.

use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;

use super::output::{self, Align, Output};
use crate::attach::run_dir::LOCK_FILE;
use crate::config::{self, Config, ProbesMode};
use crate::control::client;
use crate::control::configuration::ConfigurationReport;
use crate::control::snapshot::{SCHEMA_VERSION, StatusReport, Subsystem};
use crate::doctor::kernel::KernelFacts;
use crate::doctor::memory::MemoryFacts;
use crate::doctor::network::NetworkFacts;
use crate::doctor::places::PlaceFacts;
use crate::doctor::process::ProcessFacts;
use crate::doctor::processors::ProcessorFacts;
use crate::doctor::rings::RingFacts;
use crate::doctor::{self, Facts, Row, State, Subject, peers};
use crate::exit::{Exit, Problem};
use crate::link::options::{self, LinkOptions};
use crate::observe::probes::cause::Cause;
use crate::observe::sockets::Observer;
use crate::root::Root;

/// Look at this machine as a daemon with this configuration would: what is needed, what there is, and what to change.
///
/// Needs no daemon. If one runs on the run directory, it is looked at: its capabilities, limits and processors, and what
/// it says of its memory and probes; else what this process has, so run it as the user and with the capabilities of the
/// daemon to be.
///
/// Exit codes: 0 all is as wanted, 3 a daemon would be degraded, 1 it would not start, 78 the configuration is wrong.
#[derive(Args, Debug)]
pub(super) struct DoctorArgs {
    /// Configuration file; `conf.d/*.toml` beside it is read too. Not given: what is in effect in the daemon, if one runs on the
    /// run directory; else /etc/weir/weir.toml if it exists.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Run directory of the daemon (`run_dir`). Not given: that of the configuration.
    #[arg(long, value_name = "DIR")]
    run_dir: Option<PathBuf>,
    /// Form of the output.
    #[arg(long, value_enum, default_value_t)]
    output: Output,
}

/// The answer in JSON.
#[derive(Debug, Serialize)]
struct DoctorReport {
    schema_version: u32,
    /// Whose limits and capabilities these are.
    subject: Subject,
    /// The state of the worst row.
    state: State,
    rows: Vec<Row>,
}

pub(super) fn run(arguments: &DoctorArgs) -> Result<Exit, Problem> {
    let mut config = config::load(arguments.config.as_deref(), &[])?;
    if let Some(path) = &config.key_file {
        config::read_cluster_key(path)?;
    }
    if let Some(run_dir) = &arguments.run_dir {
        config.run_dir.clone_from(run_dir);
    }
    let said = client::get::<StatusReport>(&config.run_dir, "/v1/status").ok();
    if let Some(said) = said.as_ref().filter(|_| arguments.config.is_none()) {
        config = in_effect(&config.run_dir, said).unwrap_or(config);
    }
    let root = Root::default();
    let daemon = said.as_ref().map(|report| report.pid).or_else(|| stopped_daemon(&root, &config.run_dir));
    let facts = find(&root, &config, daemon, said);
    let rows = doctor::examine(&facts, &config);
    let state = doctor::worst(&rows);
    let subject = match daemon {
        Some(pid) => Subject::Daemon { pid },
        None => Subject::Process { pid: std::process::id() },
    };
    let report = DoctorReport { schema_version: SCHEMA_VERSION, subject, state, rows };
    match arguments.output {
        Output::Json => output::print_json(&report)?,
        Output::Table => output::print(&text(&report))?,
    }
    Ok(doctor::exit(state))
}

/// The settings of a daemon that runs, its flags among them, with the address that it listens on.
fn in_effect(run_dir: &Path, said: &StatusReport) -> Option<Config> {
    let report: ConfigurationReport = client::get(run_dir, "/v1/configuration").ok()?;
    let mut config: Config = toml::from_str(&report.effective).ok()?;
    run_dir.clone_into(&mut config.run_dir);
    if let Ok(address) = said.listen.parse() {
        config.listen = address;
    }
    Some(config)
}

/// Looks at everything.
fn find(root: &Root, config: &Config, daemon: Option<u32>, said: Option<StatusReport>) -> Facts {
    let process = daemon.map_or("self".to_owned(), |pid| pid.to_string());
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let link = LinkOptions { congestion: config.congestion().map(str::to_owned), ..LinkOptions::default() };
    let is_answered = said.is_some();
    let limits = ProcessFacts::read(root, &process);
    Facts {
        kernel: KernelFacts::read(root, release),
        rings: RingFacts::find(config, said.as_ref()),
        processors: ProcessorFacts::read(root, &process, &limits),
        process: limits,
        memory: MemoryFacts::read(root, &process),
        network: NetworkFacts::read(root, options::check(&link).map_err(|error| error.to_string())),
        peers: peers::find(config),
        places: PlaceFacts::find(config, daemon),
        probes: probes(config.observe.probes, is_answered),
        said,
    }
}

/// What a daemon would say of its probes: they are loaded, and taken out again, unless one runs that says it itself.
fn probes(mode: ProbesMode, is_said: bool) -> Subsystem {
    match mode {
        _ if is_said => Subsystem::ok("probes", ""),
        ProbesMode::Off => Observer::without(Cause::SwitchedOff).line(),
        ProbesMode::Auto | ProbesMode::Require => Observer::start(1).line(),
    }
}

/// The daemon that the lock file names, if it lives and does not answer: its lock is among those of the kernel.
fn stopped_daemon(root: &Root, run_dir: &Path) -> Option<u32> {
    let path = run_dir.join(LOCK_FILE);
    let pid: u32 = Root::at(run_dir).number(&format!("/{LOCK_FILE}")).ok()?;
    let found = rustix::fs::stat(path).ok()?;
    holds_lock(&root.text("/proc/locks").ok()?, pid, found.st_ino).then_some(pid)
}

/// Whether `/proc/locks` has a lock of this process on a file of this number. Its lines are
/// `1: FLOCK  ADVISORY  WRITE 1234 08:01:5678 0 EOF`.
fn holds_lock(locks: &str, pid: u32, file: u64) -> bool {
    let end = format!(":{file}");
    locks.lines().any(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let is_lock = fields.next() == Some("FLOCK");
        let owner = fields.nth(2).and_then(|owner| owner.parse().ok());
        is_lock && owner == Some(pid) && fields.next().is_some_and(|place| place.ends_with(&end))
    })
}

fn text(report: &DoctorReport) -> String {
    let mut text = match report.subject {
        Subject::Daemon { pid } => format!("looked at the daemon that runs, pid {pid}\n\n"),
        Subject::Process { .. } => {
            "no daemon runs there: capabilities, limits and processors are those of this process\n\n"
                .to_owned()
        }
    };
    let rows: Vec<Vec<String>> = report
        .rows
        .iter()
        .map(|row| {
            vec![row.name.clone(), row.state.as_str().to_owned(), row.found.clone(), row.wanted.clone()]
        })
        .collect();
    let head =
        [("check", Align::Left), ("state", Align::Left), ("found", Align::Left), ("wanted", Align::Left)];
    text.push_str(&output::table(&head, &rows));
    for row in report.rows.iter().filter(|row| !row.effect.is_empty() || !row.fix.is_empty()) {
        text.push_str(&format!("\n{} is {}\n", row.name, row.state.as_str()));
        for (label, part) in [("effect", &row.effect), ("fix", &row.fix)] {
            if !part.is_empty() {
                text.push_str(&format!("  {label:<6}  {part}\n"));
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, state: State, effect: &str, fix: &str) -> Row {
        Row {
            name: name.to_owned(),
            state,
            wanted: "64".to_owned(),
            found: "0".to_owned(),
            effect: effect.to_owned(),
            fix: fix.to_owned(),
        }
    }

    #[test]
    fn the_table_has_every_row_and_below_it_what_to_do() {
        let rows = vec![
            row("kernel", State::Ok, "", ""),
            row("memory", State::Degraded, "slower", "sysctl vm.nr_hugepages=64"),
        ];
        let subject = Subject::Daemon { pid: 7 };
        let report = DoctorReport { schema_version: 1, subject, state: State::Degraded, rows };
        assert_eq!(
            text(&report),
            "looked at the daemon that runs, pid 7\n\n\
             CHECK   STATE     FOUND  WANTED\n\
             kernel  OK        0      64\n\
             memory  DEGRADED  0      64\n\
             \nmemory is DEGRADED\n  effect  slower\n  fix     sysctl vm.nr_hugepages=64\n"
        );
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["schema_version"], 1);
        assert_eq!(json["subject"], serde_json::json!({"kind": "daemon", "pid": 7}));
        assert_eq!(json["state"], "degraded");
        assert_eq!(
            json["rows"][0],
            serde_json::json!({"name": "kernel", "state": "ok", "wanted": "64", "found": "0"})
        );
    }

    #[test]
    fn a_lock_is_that_of_a_process_on_a_file() {
        let locks =
            "1: POSIX  ADVISORY  WRITE 7 08:01:5678 0 EOF\n2: FLOCK  ADVISORY  WRITE 8 08:01:5678 0 EOF\n";
        assert!(holds_lock(locks, 8, 5678));
        assert!(!holds_lock(locks, 7, 5678));
        assert!(!holds_lock(locks, 8, 678));
        assert!(!holds_lock("", 8, 5678));
    }
}
