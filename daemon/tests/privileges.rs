//! Capabilities of a daemon that runs: what only its start needed is gone, from every thread, and nothing is missed.

mod common;

use std::collections::BTreeMap;
use std::io::Write;

use common::{
    Daemon, DaemonOptions, Pair, Source, channels, eventually, feed, free_address, lines, recv, send,
    subsystem, weir,
};
use serde_json::Value;
use tempfile::TempDir;

const IPC_LOCK: u64 = 1 << 14;
const PERFMON: u64 = 1 << 38;
const BPF: u64 = 1 << 39;

/// The capabilities of every thread of a process: by thread and set.
fn sets(pid: u32) -> BTreeMap<(String, String), u64> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("threads").flatten();
    let mut all = BTreeMap::new();
    for task in tasks {
        // One that has ended meanwhile has none.
        let Ok(status) = std::fs::read_to_string(task.path().join("status")) else { continue };
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let name = field("Name:").unwrap_or_default().to_owned();
        for set in ["CapPrm", "CapEff", "CapInh", "CapAmb"] {
            let bits = field(&format!("{set}:")).and_then(|bits| u64::from_str_radix(bits, 16).ok());
            all.insert(
                (format!("{name} {}", task.file_name().display()), set.to_owned()),
                bits.expect("a set"),
            );
        }
    }
    all
}

fn own_permitted() -> u64 {
    sets(std::process::id()).into_iter().find(|((_, set), _)| set == "CapPrm").expect("own").1
}

/// Regions may be registered later, and what may be locked has a bound.
fn keeps_ipc_lock(daemon: &Daemon) -> bool {
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", daemon.pid())).expect("limits");
    let limit = limits.lines().find(|line| line.starts_with("Max locked memory")).expect("a limit");
    let line = subsystem(daemon, "zero copy").expect("a line");
    let registers = !line["detail"].as_str().expect("a text").contains("no memory is registered");
    !limit.contains("unlimited") && registers
}

fn assert_given_up(daemon: &Daemon) {
    let sets = sets(daemon.pid());
    let threads = sets.keys().filter(|(_, set)| set == "CapPrm").count();
    assert!(threads >= 4, "control thread, log and two shards at least: {sets:?}");
    let gone = BPF | PERFMON | if keeps_ipc_lock(daemon) { 0 } else { IPC_LOCK };
    for (place, bits) in &sets {
        assert_eq!(bits & gone, 0, "{place:?} has {bits:016x}");
    }
}

#[test]
fn no_thread_keeps_what_only_the_start_needed() {
    let (Pair { a, b, directory: _directory }, held) = (Pair::start(), own_permitted());
    // With threads that came later: blocking ones of the resolver and of metrics, those that make regions.
    let receiver = recv(&b, "x", "0/1");
    let mut sender = send(&a, "x", &["--strategy", "forward", "--consumers", "1"]);
    sender.child.stdin.take().expect("an input").write_all(b"one\n").expect("taken");
    assert!(sender.output().status.success() && receiver.output().stdout == b"one\n");
    for daemon in [&a, &b] {
        assert_given_up(daemon);
        let names: Vec<&str> = [("CAP_BPF", BPF), ("CAP_PERFMON", PERFMON), ("CAP_IPC_LOCK", IPC_LOCK)]
            .into_iter()
            .filter(|(_, bit)| held & bit != 0 && !(*bit == IPC_LOCK && keeps_ipc_lock(daemon)))
            .map(|(name, _)| name)
            .collect();
        assert_eq!(daemon.ask("status")["capabilities_given_up"], serde_json::json!(names));
        assert_eq!(subsystem(daemon, "privileges").expect("a line")["state"], "ok");
        let probes = weir(["probes"], &daemon.run_dir).output().expect("weir runs");
        let said = String::from_utf8_lossy(&probes.stderr);
        assert!(probes.status.code() == Some(1) && said.contains("observe.probes = \"off\""), "{said}");
        let doctor = weir(["doctor", "--output", "json"], &daemon.run_dir).output().expect("weir runs");
        let report: Value = serde_json::from_slice(&doctor.stdout).expect("JSON");
        for row in report["rows"].as_array().expect("rows") {
            let is_one = row["name"].as_str().is_some_and(|name| name.starts_with("CAP_"));
            assert!(!is_one || held & BPF == 0 || row["state"] != "degraded", "{row}");
        }
    }
}

/// Probes go on without the capabilities that loaded them: sockets that come later are watched too.
#[test]
fn sockets_are_watched_by_a_daemon_that_could_not_load_probes_any_more() {
    let directory = TempDir::new().expect("a directory");
    for name in ["a", "b"] {
        std::fs::write(directory.path().join(format!("{name}.toml")), "").expect("a configuration");
    }
    let (first, second) = (free_address(), free_address());
    let a = Daemon::start(
        directory.path(),
        &DaemonOptions { peers: &[("b", &second)], ..DaemonOptions::new("a", &first) },
    );
    let line = subsystem(&a, "probes").expect("a line");
    if line["detail"].as_str().is_some_and(|detail| detail.contains("sampled")) {
        println!("not run here: probes without capabilities ({line})");
        return;
    }
    let b = Daemon::start(directory.path(), &DaemonOptions::new("b", &second));
    assert_given_up(&a);
    // It says itself where they stand, to whoever may ask it.
    let output = weir(["probes", "--output", "json"], &a.run_dir).output().expect("weir runs");
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let hooks = report["hooks"].as_array().expect("hooks");
    let attached =
        hooks.iter().filter(|hook| hook["is_attached"] == true && hook["point"].is_string()).count();
    let said = format!("{attached} of {} hooks attached", hooks.len());
    assert!(attached > 0 && line["detail"].as_str().expect("a text").starts_with(&said), "{line} {report}");
    let receiver = recv(&b, "x", "0/1");
    let mut sender = send(&a, "x", &["--strategy", "forward", "--consumers", "1"]);
    let source = Source::start(&mut sender);
    eventually("a channel", || (!channels(&a, "x", "send").is_empty()).then_some(()));
    let watched = eventually("a socket that is watched", || {
        let line = subsystem(&a, "probes")?;
        line["detail"].as_str().filter(|detail| !detail.contains(" 0 sockets watched"))?;
        Some(line)
    });
    assert!(!watched.to_string().contains("were not watched"), "{watched}");
    let text = source.end();
    assert!(sender.output().status.success());
    let received = receiver.output();
    assert!(received.status.success() && received.stdout == text);
}

/// A ring that was made with CAP_IPC_LOCK charges nobody for what it sends without a copy, although the daemon has the
/// capability no more and hardly anything may be locked.
#[test]
fn memory_that_is_sent_is_not_charged_after_the_capability_is_gone() {
    if own_permitted() & IPC_LOCK == 0 {
        println!("not run here: memory that is not charged (no CAP_IPC_LOCK)");
        return;
    }
    let directory = TempDir::new().expect("a directory");
    let config = "[observe]\nprobes = \"off\"\n[link]\nzero_copy = \"always\"\n[io]\nlevel = \"incremental\"\n[memory]\nhugepages = \"off\"\n";
    for name in ["a", "b"] {
        std::fs::write(directory.path().join(format!("{name}.toml")), config).expect("a configuration");
    }
    let (first, second) = (free_address(), free_address());
    let prefix = ["prlimit", "--memlock=16384:16384"];
    let a = Daemon::start(
        directory.path(),
        &DaemonOptions { peers: &[("b", &second)], prefix: &prefix, ..DaemonOptions::new("a", &first) },
    );
    let b = Daemon::start(directory.path(), &DaemonOptions::new("b", &second));
    assert_given_up(&a);
    let receiver = recv(&b, "x", "0/1");
    let mut sender = send(&a, "x", &["--strategy", "forward", "--consumers", "1"]);
    let text = lines(16 << 20);
    let feeder = feed(&mut sender, text.clone());
    feeder.join().expect("fed");
    assert!(sender.output().status.success());
    let received = receiver.output();
    assert!(received.status.success() && received.stdout == text);
    let line = subsystem(&a, "zero copy").expect("a line");
    assert_eq!(line["state"], "ok", "{line}");
    let links = a.ask("status")["links"].as_array().cloned().expect("links");
    assert!(links.iter().any(|link| link["zero_copy"]["sent_total"].as_u64() > Some(0)), "{links:?}");
    assert!(links.iter().all(|link| link["zero_copy"]["refused_total"] == 0), "{links:?}");
}
