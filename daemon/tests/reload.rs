//! A configuration that is read anew by a daemon that runs: what takes effect, what waits, and what is not taken.

mod common;
#[path = "common/manager.rs"]
mod manager;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use common::{
    Daemon, DaemonOptions, Guarded, Pair, eventually, feed, free_address, lines, memory_used, recv, send,
    signal, subsystem, weir,
};
use manager::{Manager, managed};
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;
use weir_client::{Client, PartitionOptions, Strategy};

/// Regions have just the segments that were asked for.
const PLAIN: &str = "[observe]\nprobes = \"off\"\n[memory]\nhugepages = \"off\"\n";

/// The configuration of the daemon of this name.
fn file(directory: &Path, name: &str) -> PathBuf {
    directory.join(format!("{name}.toml"))
}

fn write(directory: &Path, text: &str) {
    std::fs::write(file(directory, "a"), text).expect("a configuration file");
}

/// Writes a new configuration and has it read; returns when the daemon has looked at it once more.
fn reload(daemon: &Daemon, directory: &Path, text: &str) {
    let looked = || {
        let report = configuration(daemon);
        report["reloads_total"].as_u64().zip(report["reloads_failed_total"].as_u64()).map(|(a, b)| a + b)
    };
    let before = looked();
    write(directory, text);
    signal(daemon.pid(), Signal::HUP);
    eventually("it is read", || (looked() > before).then_some(()));
}

/// Answer of the daemon on what is in effect.
fn configuration(daemon: &Daemon) -> Value {
    let socket = daemon.run_dir.join("control.sock");
    let request = "GET /v1/configuration HTTP/1.1\r\nHost: weir\r\nConnection: close\r\n\r\n";
    let answer = eventually("an answer", || {
        let mut stream = std::os::unix::net::UnixStream::connect(&socket).ok()?;
        std::io::Write::write_all(&mut stream, request.as_bytes()).ok()?;
        let mut answer = String::new();
        std::io::Read::read_to_string(&mut stream, &mut answer).ok()?;
        Some(answer)
    });
    let body = answer.split_once("\r\n\r\n").expect("a body").1;
    serde_json::from_str(body).expect("JSON")
}

fn state(daemon: &Daemon, name: &str) -> Option<(String, String, String)> {
    let line = subsystem(daemon, name)?;
    let text = |key: &str| line[key].as_str().unwrap_or_default().to_owned();
    Some((text("state"), text("reason"), text("fix")))
}

/// Bytes of the region of a partition with one consumer.
fn partition_bytes(daemon: &Daemon) -> u64 {
    let before = memory_used(daemon);
    let client = Client::connect(&daemon.run_dir).expect("attached");
    let task = client.task("t").expect("a task");
    let partition = task
        .partition("sized", 0, 1, 1, Strategy::Forward, PartitionOptions::default())
        .expect("a partition");
    let bytes = memory_used(daemon) - before;
    drop(partition);
    drop((task, client));
    eventually("it is given back", || (memory_used(daemon) == before).then_some(()));
    bytes
}

#[test]
fn what_can_change_does_and_what_cannot_is_named_and_waits() {
    let directory = TempDir::new().expect("a directory");
    let key = directory.path().join("key");
    let set_key = |byte: u8| {
        std::fs::write(&key, [byte; 32]).expect("a key");
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).expect("its mode");
    };
    set_key(1);
    let head = format!("key_file = \"{}\"\n{PLAIN}", key.display());
    write(directory.path(), &format!("{head}total = \"64 MiB\"\n"));
    let manager = Manager::listen(directory.path());
    let mut daemon = managed(directory.path(), None);
    manager.expect("READY=1");
    let small = partition_bytes(&daemon);
    assert_eq!(state(&daemon, "configuration"), Some(("ok".into(), String::new(), String::new())));

    write(
        directory.path(),
        &format!(
            "{head}total = \"128 MiB\"\nsegment_bytes = 65536\n[pool]\nfloating = 108\n[log]\nlevel = \"debug\"\n\
             format = \"json\"\n[limits]\nattachments_max = 1\n"
        ),
    );
    set_key(2);
    signal(daemon.pid(), Signal::HUP);
    let reloading = manager.expect("RELOADING=1\nMONOTONIC_USEC=");
    assert!(reloading.rsplit_once('=').is_some_and(|(_, usec)| usec.parse::<u64>().is_ok()), "{reloading}");
    let ready = manager.expect("READY=1\nSTATUS=");
    assert!(ready.ends_with("; 3 settings wait for a restart"), "{ready}");

    assert_eq!(daemon.ask("status")["memory"]["total_bytes"], 128 << 20);
    // Regions are whole pages.
    let grown = partition_bytes(&daemon) - small;
    assert!(grown.abs_diff(100 * (32_768 + 64)) < 4096, "floating segments, of the old size: {grown} bytes");
    // The client before may be attached for a moment longer.
    let _first = eventually("the only place is free", || Client::connect(&daemon.run_dir).ok());
    let refused = Client::connect(&daemon.run_dir).expect_err("one may attach").to_string();
    assert!(refused.contains("limits.attachments_max"), "{refused}");
    for word in
        ["configuration reloaded", "DEBUG", "a setting needs a restart", "key=\"memory.segment_bytes\""]
    {
        eventually(&format!("{word} in the log"), || daemon.printed().contains(word).then_some(()));
    }

    let (state, reason, fix) = state(&daemon, "configuration").expect("a line");
    assert_eq!((state.as_str(), fix.as_str()), ("degraded", "systemctl restart weir"));
    let at = format!(
        "memory.segment_bytes is 32768 and would be 65536 ({}:7)",
        file(directory.path(), "a").display()
    );
    assert!(
        reason.contains(&at) && reason.contains("log.format is \"auto\" and would be \"json\""),
        "{reason}"
    );
    assert!(
        reason.contains("key_file is the key that it held at the start and would be another key"),
        "{reason}"
    );
    let printed = weir(["config", "print"], &daemon.run_dir).output().expect("weir runs");
    let text = String::from_utf8(printed.stdout).expect("UTF-8");
    assert_eq!(printed.status.code(), Some(3), "{text}");
    for line in ["segment_bytes = 32768", "level = \"debug\"", "format = \"auto\""] {
        assert!(text.lines().any(|found| found.split("  #").next() == Some(line)), "{line} is not in {text}");
    }
    assert!(text.contains(&format!("# waits for a restart: {at}")), "{text}");
    assert_eq!(daemon.terminate(), Some(0));
}

#[test]
fn a_wrong_one_is_not_taken_and_all_that_is_wrong_is_told() {
    let directory = TempDir::new().expect("a directory");
    let good = format!("{PLAIN}total = \"64 MiB\"\n");
    write(directory.path(), &good);
    let listen = free_address();
    let daemon = Daemon::start(directory.path(), &DaemonOptions::new("a", &listen));
    let bad = format!("{PLAIN}total = \"128 MiB\"\n[pool]\nfloatin = 9\nexclusive = 0\n");
    reload(&daemon, directory.path(), &bad);
    let path = file(directory.path(), "a");
    let (state_found, reason, fix) = state(&daemon, "configuration").expect("a line");
    assert_eq!(state_found, "degraded");
    for error in [
        format!("{}:7: unknown key; found \"pool.floatin\"", path.display()),
        format!("{}:8: bad value of pool.exclusive; found 0", path.display()),
    ] {
        assert!(reason.contains(&error), "{error} is not in {reason}");
        eventually(&format!("{error} in the log"), || daemon.printed().contains(&error).then_some(()));
    }
    assert!(reason.contains("pool.floating") && fix.contains("weir config check"), "{reason}; {fix}");
    assert_eq!(daemon.ask("status")["memory"]["total_bytes"], 64 << 20, "nothing of it is taken");
    // The command says the same of both.
    let mut command = std::process::Command::new(common::WEIR);
    let checked = command.args(["config", "check", "--config"]).arg(&path).output().expect("weir runs");
    let said = String::from_utf8(checked.stderr).expect("UTF-8");
    assert_eq!(checked.status.code(), Some(78));
    assert_eq!(said.lines().filter(|line| line.starts_with("weir: error: ")).count(), 2, "{said}");
    // Mended, it is taken.
    reload(&daemon, directory.path(), &good.replace("64", "96"));
    assert_eq!(state(&daemon, "configuration").map(|(state, ..)| state).as_deref(), Some("ok"));
    assert_eq!(daemon.ask("status")["memory"]["total_bytes"], 96 << 20);
    let report = configuration(&daemon);
    assert_eq!(
        (report["reloads_total"].as_u64(), report["reloads_failed_total"].as_u64()),
        (Some(1), Some(1))
    );
}

#[test]
fn peers_come_move_and_go_and_what_flows_between_others_goes_on() {
    let Pair { a, b, directory } = Pair::start();
    let names = |daemon: &Daemon| -> Vec<String> {
        let status = daemon.ask("status");
        let lines = status["subsystems"].as_array().cloned().unwrap_or_default();
        lines
            .iter()
            .filter_map(|line| line["name"].as_str()?.strip_prefix("peer/").map(str::to_owned))
            .collect()
    };
    let is_linked = |daemon: &Daemon, peer: &str| {
        eventually("linked", || {
            state(daemon, &format!("peer/{peer}")).filter(|(state, ..)| state == "ok").map(drop)
        });
    };
    is_linked(&a, "b");
    // Under way between a and b, whatever becomes of c.
    let receiver = recv(&b, "x", "0/1");
    let mut sender = send(&a, "x", &["--strategy", "forward", "--consumers", "1"]);
    let text = lines(8 << 20);

    let elsewhere = [free_address(), free_address()];
    let first = Daemon::start(directory.path(), &DaemonOptions::new("c", &elsewhere[0]));
    let base = "[observe]\nprobes = \"off\"\n";
    reload(&a, directory.path(), &format!("{base}[peers]\nc = \"{}\"\n", elsewhere[0]));
    is_linked(&a, "c");
    is_linked(&first, "a");
    let feeder = feed(&mut sender, text.clone());

    // The node moves: the old address is not dialled any more.
    drop(first);
    let second = Daemon::start(directory.path(), &DaemonOptions::new("c", &elsewhere[1]));
    reload(&a, directory.path(), &format!("{base}[peers]\nc = \"{}\"\n", elsewhere[1]));
    is_linked(&a, "c");
    is_linked(&second, "a");

    // And is named no more: nobody misses it, and it is told why.
    reload(&a, directory.path(), base);
    assert_eq!(names(&a), ["b"]);
    eventually("c is told", || {
        let (_, reason, _) = state(&second, "peer/a")?;
        reason.contains("peers of a does not name c any more").then_some(())
    });
    feeder.join().expect("fed");
    assert!(sender.output().status.success());
    let received = receiver.output();
    assert!(received.status.success() && received.stdout == text, "every byte, in order");
}

#[test]
fn a_second_daemon_finds_the_place_taken_before_it_makes_anything() {
    let directory = TempDir::new().expect("a directory");
    let listen = free_address();
    let first = Daemon::start(directory.path(), &DaemonOptions::new("a", &listen));
    // What it would load is refused; it does not come that far.
    for (arguments, expected) in [
        (
            ["--run-dir", first.run_dir.to_str().expect("UTF-8"), "--listen", "127.0.0.1:0"],
            "a daemon is running on",
        ),
        (["--run-dir", "unused", "--listen", &listen], "the port is taken"),
    ] {
        let config = directory.path().join("second.toml");
        std::fs::write(&config, "[log]\nlevel = \"debug\"\n").expect("a file");
        let mut command = std::process::Command::new(common::WEIR);
        command.current_dir(directory.path()).args(["daemon", "--node", "b", "--config"]).arg(&config);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let output = Guarded::spawn(&mut command).output();
        let said = String::from_utf8(output.stderr).expect("UTF-8");
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(expected), "{said}");
        assert!(!said.contains("kernel probes") && !said.contains("io_uring"), "{said}");
    }
}
