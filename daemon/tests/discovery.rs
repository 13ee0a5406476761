//! Peers by a name, with real daemons and the resolver of the system: `localhost`, which needs no network.

mod common;

use std::net::Ipv4Addr;
use std::path::Path;

use common::{Daemon, DaemonOptions, eventually, free_port_at, recv, send, signal, subsystem};
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

fn configure(directory: &Path, node: &str, name: Option<&str>) {
    let name = name.map(|name| format!("peers_dns = \"{name}\"\npeers_dns_interval = \"200ms\"\n"));
    let text = format!("{}[observe]\nprobes = \"off\"\n", name.unwrap_or_default());
    std::fs::write(directory.join(format!("{node}.toml")), text).expect("a configuration");
}

fn state(line: &Value) -> &str {
    line["state"].as_str().unwrap_or_default()
}

#[test]
fn daemons_find_each_other_and_themselves_not_also_after_a_reload() {
    let directory = TempDir::new().expect("a directory");
    // Where localhost is.
    let (at_a, at_b) = (free_port_at(Ipv4Addr::LOCALHOST), free_port_at(Ipv4Addr::LOCALHOST));
    let named = |address: &str| address.replace("127.0.0.1", "localhost");
    configure(directory.path(), "a", None);
    let a = Daemon::start(directory.path(), &DaemonOptions::new("a", &at_a));
    configure(directory.path(), "b", Some(&named(&at_a)));
    let b = Daemon::start(directory.path(), &DaemonOptions::new("b", &at_b));
    // Where localhost has another address as well, nobody is there: only what is found counts here.
    let found = |daemon: &Daemon, expected: &str| {
        eventually(expected, || {
            let line = subsystem(daemon, "peers_dns")?;
            line["detail"].as_str()?.ends_with(expected).then_some(())
        });
    };
    let is_linked = |daemon: &Daemon, peer: &str| {
        eventually("linked", || {
            subsystem(daemon, &format!("peer/{peer}")).filter(|line| state(line) == "ok")
        });
    };
    found(&b, "; peers: a");
    is_linked(&b, "a");
    assert_eq!(subsystem(&a, "peers_dns"), None);

    configure(directory.path(), "a", Some(&named(&at_a)));
    signal(a.pid(), Signal::HUP);
    found(&a, ", this node among them; peers: none");
    configure(directory.path(), "a", Some(&named(&at_b)));
    signal(a.pid(), Signal::HUP);
    found(&a, "; peers: b");
    is_linked(&a, "b");
    let receiver = recv(&a, "x", "0/1");
    let mut sender = send(&b, "x", &["--strategy", "forward", "--consumers", "1"]);
    common::feed(&mut sender, b"one\n".to_vec()).join().expect("fed");
    assert!(sender.output().status.success());
    assert_eq!(receiver.output().stdout, b"one\n");
    // With a name no more it stays linked: the other one looks it up.
    configure(directory.path(), "a", None);
    signal(a.pid(), Signal::HUP);
    eventually("no name", || subsystem(&a, "peers_dns").is_none().then_some(()));
    is_linked(&a, "b");
}

#[test]
fn a_name_that_means_nothing_is_degraded_with_what_to_look_at() {
    let directory = TempDir::new().expect("a directory");
    configure(directory.path(), "a", Some("no-such-name.invalid:7070"));
    let a = Daemon::start(directory.path(), &DaemonOptions::new("a", "127.0.0.1:0"));
    let line =
        eventually("it is told", || subsystem(&a, "peers_dns").filter(|line| state(line) == "degraded"));
    let text = |key: &str| line[key].as_str().unwrap_or_default().to_owned();
    assert!(text("reason").starts_with("cannot resolve no-such-name.invalid:7070: "), "{line}");
    assert!(text("fix").contains("getent ahosts no-such-name.invalid"), "{line}");
}
