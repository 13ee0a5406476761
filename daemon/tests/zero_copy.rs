//! Records over links that send without a copy, from process to process: all of them arrive, memory is given back, and what
//! the kernel said is shown. On loopback it says that it copied.

mod common;

use std::io::Write;
use std::process::Stdio;

use common::{
    Daemon, DaemonOptions, Guarded, Source, channels, eventually, free_address, lines, memory_used, number,
    recv, send, subsystem, weir,
};
use serde_json::Value;
use tempfile::TempDir;

const INPUT_BYTES: u64 = 24 << 20;

/// Two daemons whose links send like this.
fn daemons(directory: &TempDir, mode: &str) -> [Daemon; 2] {
    let (first, second) = (free_address(), free_address());
    for name in ["a", "b"] {
        let config = format!("[link]\nzero_copy = \"{mode}\"\n");
        std::fs::write(directory.path().join(format!("{name}.toml")), config).expect("a configuration");
    }
    let of_a = DaemonOptions { peers: &[("b", &second)], ..DaemonOptions::new("a", &first) };
    let of_b = DaemonOptions { peers: &[("a", &first)], ..DaemonOptions::new("b", &second) };
    [Daemon::start(directory.path(), &of_a), Daemon::start(directory.path(), &of_b)]
}

/// Sends much from `a` to `b`, and until this holds of what `a` says of it. Returns how the links of `a` sent it.
fn transfer(mode: &str, is_enough: impl Fn(&Value) -> bool) -> (Vec<Value>, Value) {
    let directory = TempDir::new().expect("a directory");
    let [a, b] = daemons(&directory, mode);
    let receiver = recv(&b, "x", "0/1");
    let mut sender = send(&a, "x", &["--consumers", "1"]);
    let source = Source::start(&mut sender);
    eventually("much is sent", || {
        let rows = channels(&a, "x", "send");
        let is_much = number(rows.first()?, "bytes_total") > INPUT_BYTES;
        (is_much && is_enough(&subsystem(&a, "zero copy")?)).then_some(())
    });
    let input = source.end();
    let output = receiver.output();
    assert!(output.status.success(), "recv: {}", String::from_utf8_lossy(&output.stderr));
    assert!(sender.output().status.success());
    assert!(output.stdout == input, "{} bytes of {}", output.stdout.len(), input.len());
    for daemon in [&a, &b] {
        eventually("all memory is given back", || (memory_used(daemon) == 0).then_some(()));
    }
    let links = a.ask("status")["links"].as_array().expect("links").clone();
    (
        links.iter().map(|link| link["zero_copy"].clone()).collect(),
        subsystem(&a, "zero copy").expect("a line"),
    )
}

fn total(links: &[Value], key: &str) -> u64 {
    links.iter().map(|link| number(link, key)).sum()
}

#[test]
fn records_sent_without_a_copy_arrive_and_what_the_kernel_said_is_counted() {
    // A registration may take as long as it takes to send many batches.
    let (links, line) = transfer("always", |line| !registers(line) || registered(line).0 > 0);
    if line["state"] != "ok" {
        println!("not run here: zero-copy sends ({line})");
        return;
    }
    assert!(links.iter().all(|link| link["mode"] == "zero_copy"), "{links:?}");
    let (sent, copied) = (total(&links, "sent_total"), total(&links, "copied_total"));
    assert!(sent > 20, "{links:?}");
    assert_eq!((copied, total(&links, "outstanding")), (sent, 0), "loopback copies all of it: {links:?}");
    let detail = line["detail"].as_str().expect("a text");
    assert!(
        detail.contains(&format!("{sent} batches sent so, {copied} of them copied by the kernel; ")),
        "{detail}"
    );
    if registers(&line) {
        let (named, regions) = registered(&line);
        assert!(named < sent, "the first batches of a region name nothing: {detail}");
        assert_eq!(regions, 0, "a registration ends with its region: {detail}");
    }
}

/// Whether regions are registered at all.
fn registers(line: &Value) -> bool {
    line["state"] == "ok" && line["detail"].as_str().is_some_and(|d| !d.contains("no memory is registered"))
}

/// How many sends named registered memory, and how many regions are registered now.
fn registered(line: &Value) -> (u64, u64) {
    let detail = line["detail"].as_str().expect("a text");
    let words: Vec<&str> = detail.split([' ', ';']).collect();
    let before = |word: &str| {
        let at = words.iter().position(|found| *found == word).expect(detail);
        words[at - 1].parse().expect(detail)
    };
    (before("named"), before("regions"))
}

#[test]
fn a_client_that_dies_while_its_memory_is_registered_and_in_flight_leaves_nothing() {
    let directory = TempDir::new().expect("a directory");
    let [a, b] = daemons(&directory, "always");
    let line = subsystem(&a, "zero copy").expect("a line");
    if !registers(&line) {
        println!("not run here: zero-copy sends from registered memory ({line})");
        return;
    }
    let mut command = weir(["recv", "--exchange", "x", "--consumer", "0/1"], &b.run_dir);
    let _receiver = Guarded::spawn(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()));
    let mut sender = send(&a, "x", &["--consumers", "1"]);
    let mut stdin = sender.child.stdin.take().expect("an input");
    let feeder = std::thread::spawn(move || {
        let input = lines(1 << 20);
        // Until nobody reads it any more.
        while stdin.write_all(&input).is_ok() {}
    });
    eventually("sends name the memory of the client", || {
        let line = subsystem(&a, "zero copy").expect("a line");
        (registered(&line).0 > 20).then_some(())
    });
    sender.child.kill().expect("it can be killed");
    feeder.join().expect("the feeder");
    for daemon in [&a, &b] {
        eventually("all memory is given back", || (memory_used(daemon) == 0).then_some(()));
    }
    let line = subsystem(&a, "zero copy").expect("a line");
    assert_eq!(registered(&line).1, 0, "{line}");
}

#[test]
fn a_link_to_this_machine_copies_unless_told_otherwise() {
    let (links, line) = transfer("auto", |_| true);
    if line["state"] == "ok" {
        // A slow run sees the first probe, of four sends.
        assert!(total(&links, "sent_total") <= 8 * links.len() as u64, "{links:?}");
        assert!(links.iter().all(|link| link["mode"] != "zero_copy"), "{links:?}");
    }
    let (links, line) = transfer("never", |_| true);
    assert_eq!((total(&links, "sent_total"), &line["state"]), (0, &Value::from("off")));
}
