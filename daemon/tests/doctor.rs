//! `weir doctor` beside real daemons: what it says is what they do, in the same words.

mod common;
#[path = "common/doctor.rs"]
mod doctor;

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use common::{Daemon, DaemonOptions, WEIR, free_address, signal, subsystem};
use doctor::Found;
use rustix::process::Signal;
use serde_json::Value;

/// What a daemon without probes and with little of everything is configured with.
fn configuration(listen: &str, more: &str) -> String {
    format!("listen = \"{listen}\"\nshards = 2\n{more}\n[observe]\nprobes = \"off\"\n")
}

/// A directory with a configuration file in it.
fn configured(listen: &str, more: &str) -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("a.toml");
    fs::write(&file, configuration(listen, more)).expect("a file");
    (directory, file)
}

#[test]
fn of_a_daemon_that_was_given_flags_it_looks_at_what_is_in_effect() {
    let directory = tempfile::tempdir().expect("a directory");
    let listen = free_address();
    let peers = [("b", "no-such-host.invalid:7070")];
    let extra = ["--memory", "64 MiB"];
    let daemon = Daemon::start(
        directory.path(),
        &DaemonOptions { peers: &peers, extra: &extra, ..DaemonOptions::new("a", &listen) },
    );
    let found = Found::of_daemon(&daemon);
    let listener = found.row("listener");
    assert_eq!(listener["state"], "ok", "{listener}");
    assert!(listener.to_string().contains(&listen), "{listener}");
    assert!(found.row("peer/b").to_string().contains("no-such-host.invalid"), "{}", found.report);
}

#[test]
fn without_a_daemon_it_says_what_would_be_and_changes_nothing() {
    let (directory, file) = configured(&free_address(), "[peers]\nb = \"127.0.0.1:7071\"");
    let run_dir = directory.path().join("run");
    let found = Found::of(&[], WEIR, &file, &run_dir);
    assert!(!run_dir.exists());
    assert_eq!(found.report["schema_version"], 1);
    assert_eq!(found.report["subject"]["kind"], "process");
    let code = match found.report["state"].as_str() {
        Some("ok") => 0,
        Some("degraded") => 3,
        other => panic!("{other:?}: {}", found.report),
    };
    assert_eq!(found.code, Some(code));
    for row in found.report["rows"].as_array().expect("rows") {
        for key in ["name", "wanted", "found"] {
            assert!(row[key].as_str().is_some_and(|text| !text.is_empty()), "{key} in {row}");
        }
        let is_fault = matches!(row["state"].as_str(), Some("degraded" | "failed"));
        assert_eq!(is_fault && row["fix"].is_string() && row["effect"].is_string(), is_fault, "{row}");
    }
    for (name, state) in [("run_dir", "ok"), ("listener", "ok"), ("peer/b", "ok"), ("CAP_BPF", "off")] {
        assert_eq!(found.row(name)["state"], state, "{}", found.row(name));
    }
    assert_eq!(found.row("io_uring/oneshot")["state"], "ok");
}

#[test]
fn of_a_daemon_that_runs_it_says_what_the_status_says() {
    let listen = free_address();
    let more = "[io]\nlevel = \"oneshot\"\n[memory]\nhugepages = \"auto\"\ntotal = \"90%\"";
    let (directory, file) = configured(&listen, more);
    let daemon = Daemon::start(directory.path(), &DaemonOptions::new("a", &listen));
    let found = Found::of(&[], WEIR, &file, &daemon.run_dir);
    let subject = &found.report["subject"];
    assert_eq!((&subject["kind"], subject["pid"].as_u64()), (&"daemon".into(), Some(daemon.pid().into())));
    for (row, name) in [
        ("memory", "memory"),
        ("probes", "probes"),
        ("budget", "budget"),
        ("io_uring/incremental", "io_uring"),
    ] {
        let row = found.row(row);
        let line = subsystem(&daemon, name).expect("the line");
        assert_eq!(row["state"], line["state"], "{row} {line}");
        if line["state"] == "degraded" {
            assert_eq!((&row["found"], &row["fix"]), (&line["reason"], &line["fix"]), "{name}");
        }
    }
    let row = found.row("zero_copy/accounting");
    let line = subsystem(&daemon, "zero copy").expect("the line");
    let line: Vec<&str> = ["detail", "reason", "fix"].iter().filter_map(|key| line[*key].as_str()).collect();
    let line = line.join("; ");
    assert!(line.contains(row["found"].as_str().expect("text")), "{row} {line}");
    if let Some(fix) = row["fix"].as_str() {
        assert!(line.contains(fix), "{row} {line}");
    }
    for name in ["listener", "attach.sock", "control.sock", "run_dir"] {
        assert_eq!(found.row(name)["state"], "ok", "{}", found.row(name));
        assert!(found.row(name)["found"].as_str().expect("text").contains("daemon"), "{}", found.row(name));
    }
    // One that is stopped does not answer, and is known by its lock.
    signal(daemon.pid(), Signal::STOP);
    let found = Found::of(&[], WEIR, &file, &daemon.run_dir);
    signal(daemon.pid(), Signal::CONT);
    assert_eq!(found.report["subject"]["pid"].as_u64(), Some(daemon.pid().into()));
    assert_eq!(found.row("listener")["state"], "ok");
}

#[test]
fn what_it_says_stops_a_daemon_does_stop_it() {
    let listen = free_address();
    let (directory, file) = configured(&listen, "");
    let _taken = std::net::TcpListener::bind(&listen).expect("the port");
    let found = Found::of(&[], WEIR, &file, &directory.path().join("run"));
    assert_eq!((found.code, &found.report["state"]), (Some(1), &"failed".into()));
    let row = found.row("listener");
    let owner = format!("process {} ", std::process::id());
    assert!(row["found"].as_str().expect("text").contains(&owner), "{row}");
    let mut daemon = Daemon::spawn(directory.path(), &DaemonOptions::new("a", &listen));
    assert_eq!(daemon.exit_code(), Some(1));
    let said = row["found"].as_str().expect("text");
    assert!(daemon.printed().contains(said), "{said:?} is not in {}", daemon.printed());
}

#[test]
fn a_wrong_configuration_is_told_as_everywhere() {
    let (directory, file) = configured("127.0.0.1:0", "[memory]\nsegment_byte = 4096");
    let mut command = Command::new(WEIR);
    command.args(["doctor", "--output", "json", "--config"]).arg(&file);
    command.arg("--run-dir").arg(directory.path().join("run"));
    let output = command.output().expect("weir runs");
    assert_eq!(output.status.code(), Some(78));
    let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(answer["error"]["exit_code"], 78);
    assert!(answer["error"]["fix"].as_str().expect("text").contains("memory.segment_bytes"), "{answer}");
}
