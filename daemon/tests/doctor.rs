//! `weir doctor` beside real daemons: what it says is what they do, in the same words.

mod common;

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::{Daemon, DaemonOptions, WEIR, eventually, free_address, prefixed, signal, subsystem, weir};
use rustix::process::Signal;
use serde_json::Value;

/// A user that nobody else is here: the kernel counts locked memory by user.
const OTHER_USER: u32 = 63_211;

/// What a daemon without probes and with little of everything is configured with.
fn configuration(listen: &str, more: &str) -> String {
    format!("listen = \"{listen}\"\nshards = 2\n{more}\n[observe]\nprobes = \"off\"\n")
}

/// What `weir doctor` found, and its exit code.
struct Found {
    code: Option<i32>,
    report: Value,
}

impl Found {
    /// Asked about this configuration and run directory, by a program behind these words.
    fn of(prefix: &[&str], program: &str, config: &Path, run_dir: &Path) -> Self {
        let mut command = prefixed(prefix, program);
        command.args(["doctor", "--output", "json", "--config"]).arg(config).arg("--run-dir").arg(run_dir);
        let output = command.stdin(Stdio::null()).output().expect("weir runs");
        let report = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&output.stderr)));
        Self { code: output.status.code(), report }
    }

    fn row(&self, name: &str) -> &Value {
        let rows = self.report["rows"].as_array().expect("rows");
        rows.iter().find(|row| row["name"] == name).unwrap_or_else(|| panic!("no {name} in {}", self.report))
    }
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
    let mut command = Command::new(WEIR);
    command.args(["doctor", "--output", "json", "--run-dir"]).arg(&daemon.run_dir);
    let output = command.stdin(Stdio::null()).output().expect("weir runs");
    let found = Found {
        code: output.status.code(),
        report: serde_json::from_slice(&output.stdout).expect("a report"),
    };
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
fn a_limit_on_descriptors_is_told_before_the_daemon_meets_it() {
    let listen = free_address();
    let (directory, file) = configured(&listen, "");
    for (limit, expected, starts) in [("200", "failed", false), ("1024", "degraded", true)] {
        let prefix = ["sh", "-c", &format!("ulimit -n {limit} && exec \"$0\" \"$@\"")];
        let found = Found::of(&prefix, WEIR, &file, &directory.path().join("run"));
        let row = found.row("RLIMIT_NOFILE");
        assert_eq!((&row["state"], &row["found"]), (&expected.into(), &limit.into()), "{row}");
        assert!(row["fix"].as_str().expect("text").contains("LimitNOFILE="), "{row}");
        let options = DaemonOptions { prefix: &prefix, ..DaemonOptions::new("a", &listen) };
        if starts {
            Daemon::start(directory.path(), &options);
        } else {
            let mut daemon = Daemon::spawn(directory.path(), &options);
            assert_eq!(daemon.exit_code(), Some(1));
            assert!(daemon.printed().contains("LimitNOFILE="), "{}", daemon.printed());
        }
    }
}

#[test]
fn a_limit_on_locked_memory_is_told_before_the_daemon_meets_it() {
    let has_tool = Command::new("setpriv").arg("--version").output().is_ok();
    if !rustix::process::geteuid().is_root() || !has_tool {
        println!("not run here: a limit on locked memory (needs root and setpriv)");
        return;
    }
    let listen = free_address();
    let (directory, file) = configured(&listen, "");
    for path in [directory.path(), &file] {
        chown(path, Some(OTHER_USER), Some(OTHER_USER)).expect("root may");
    }
    // Where that user may run it.
    let program = directory.path().join("weir");
    fs::copy(WEIR, &program).expect("a copy");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("its mode");
    let program = program.to_str().expect("UTF-8");
    for (kibibytes, expected) in [(64, "failed"), (192, "ok")] {
        let run = format!(
            "ulimit -l {kibibytes} && exec setpriv --reuid={OTHER_USER} --regid={OTHER_USER} --clear-groups \
             --bounding-set=-all --inh-caps=-all \"$0\" \"$@\""
        );
        let prefix = ["sh", "-c", &run];
        let run = || Found::of(&prefix, program, &file, &directory.path().join("run"));
        let found = run();
        let row = found.row("RLIMIT_MEMLOCK");
        assert_eq!(
            (&row["state"], &row["found"]),
            (&expected.into(), &format!("{kibibytes} KiB").into()),
            "{row}"
        );
        let options = DaemonOptions { prefix: &prefix, program, ..DaemonOptions::new("a", &listen) };
        if expected == "ok" {
            // The rings of a process that has ended are charged to its user for a moment longer, and then each of the two
            // may find less than there is.
            eventually("doctor and a daemon that starts then say the same", || {
                let worst = run().row("io_uring/full")["state"].clone();
                let mut daemon = Daemon::spawn(directory.path(), &options);
                let run_dir = daemon.run_dir.clone();
                let is_up = || {
                    let said = weir(["status"], &run_dir).output();
                    said.is_ok_and(|said| matches!(said.status.code(), Some(0 | 3)))
                };
                while !is_up() {
                    if !daemon.is_running() {
                        println!("it has ended: {}", daemon.printed());
                        return None;
                    }
                }
                let line = subsystem(&daemon, "io_uring").expect("the line");
                println!("{line}, {worst}");
                (line["state"] == worst).then_some(())
            });
        } else {
            let mut daemon = Daemon::spawn(directory.path(), &options);
            assert_eq!(daemon.exit_code(), Some(1), "{}", daemon.printed());
            assert!(daemon.printed().contains("LimitMEMLOCK="), "{}", daemon.printed());
        }
    }
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
