//! Real outages of a real network, under load: two daemons in two network namespaces, and the cable between them. What
//! arrives is compared byte for byte. Needs root, `nft` and `ss`.

mod common;
#[path = "common/healthy.rs"]
mod healthy;
#[path = "common/network.rs"]
mod network;

use std::os::unix::fs::PermissionsExt;
use std::process::Output;
use std::time::{Duration, Instant};

use common::{Daemon, DaemonOptions, eventually, memory_used, subsystem};
use healthy::Healthy;
use network::{ADDRESSES, Network};
use tempfile::TempDir;

/// Heartbeats short enough for a test to wait for their end; the grace is each test's own.
const BRISK: &str = "[link]\nheartbeat_interval = '200ms'\nheartbeat_timeout = '1s'\n";

/// Two daemons, a producer on `a` and a consumer on `b`, whose node dials the data link.
struct Nodes {
    a: Daemon,
    b: Daemon,
    network: Network,
    _directory: TempDir,
}

impl Nodes {
    fn start(what: &str, programs: &[&str], config: &str) -> Option<Self> {
        let network = Network::new(what, programs)?;
        let directory = TempDir::new().expect("a directory");
        let key = directory.path().join("cluster.key");
        std::fs::write(&key, [7_u8; 32]).expect("a key");
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).expect("its mode");
        let key = key.display().to_string();
        let addresses = ADDRESSES.map(|address| format!("{address}:7070"));
        let start = |own: usize| {
            let (name, peer) = (["a", "b"][own], ["b", "a"][own]);
            std::fs::write(directory.path().join(format!("{name}.toml")), config).expect("a configuration");
            let options = DaemonOptions {
                peers: &[(peer, &addresses[1 - own])],
                extra: &["--key-file", &key, "--shards", "1"],
                prefix: &["ip", "netns", "exec", &network.names[own]],
                ..DaemonOptions::new(name, &addresses[own])
            };
            Daemon::start(directory.path(), &options)
        };
        let (a, b) = (start(0), start(1));
        Some(Self { a, b, network, _directory: directory })
    }

    /// How often data links were given another socket, and how often the nodes were linked anew.
    fn reconnects(&self) -> [usize; 2] {
        ["data link has another socket", "linked with a peer"]
            .map(|text| [&self.a, &self.b].iter().map(|daemon| daemon.printed().matches(text).count()).sum())
    }
}

fn assert_link_lost(output: &Output, peer: &str) {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{text}");
    for word in ["link lost", peer, "link.grace"] {
        assert!(text.contains(word), "{word:?} is missing in: {text}");
    }
}

/// With the settings that a daemon has by itself.
#[test]
fn three_seconds_without_a_network_cost_the_time_and_nothing_else() {
    let Some(nodes) = Nodes::start("three seconds without a network", &["nft"], "") else { return };
    let healthy = Healthy::start(&nodes.a, &nodes.b, "x");
    // A machine that is slow makes it longer. Only of one that was over in time, for it to be heard as well, is it known that
    // no connection had to be made anew; nothing is lost in any.
    let [in_time, looked] = [4_800, 6_500].map(Duration::from_millis);
    let was_short = (0..6).any(|_| {
        let (before, began) = (nodes.reconnects(), Instant::now());
        nodes.network.deafen(0);
        nodes.network.deafen(1);
        std::thread::sleep(Duration::from_secs(3));
        nodes.network.heal();
        healthy.flows_on(&nodes.b);
        let was_short = began.elapsed() < in_time;
        // Any that is given up for its silence is given up by then.
        std::thread::sleep(looked.saturating_sub(began.elapsed()));
        assert!(!was_short || nodes.reconnects() == before, "a connection was made anew");
        if !was_short {
            // What it cost is not counted with the next one.
            std::thread::sleep(looked);
            for (daemon, peer) in [(&nodes.a, "peer/b"), (&nodes.b, "peer/a")] {
                let is_linked = || subsystem(daemon, peer).is_some_and(|entry| entry["state"] == "ok");
                eventually("they are linked", || is_linked().then_some(()));
            }
        }
        was_short
    });
    healthy.finish();
    if !was_short {
        println!(
            "not run here: that no connection is made anew after three seconds (each outage was longer)"
        );
    }
}

/// Both sides are deaf, or one: then one hears the other to the end, and cannot answer.
#[test]
fn an_outage_longer_than_the_grace_fails_both_ends_whoever_noticed() {
    std::thread::scope(|scope| {
        for deaf in [&[0, 1][..], &[0], &[1]] {
            scope.spawn(move || {
                let what = "an outage longer than the grace";
                // Long enough that a daemon which stands still for a moment is not given up for it.
                let config = "[link]\nheartbeat_interval = '200ms'\nheartbeat_timeout = '3s'\ngrace = '4s'\n";
                let Some(nodes) = Nodes::start(what, &["nft"], config) else { return };
                let healthy = Healthy::start(&nodes.a, &nodes.b, "x");
                deaf.iter().for_each(|side| nodes.network.deafen(*side));
                let [sender, receiver] = healthy.failed();
                assert_link_lost(&sender, "node b");
                assert_link_lost(&receiver, "node a");
                for daemon in [&nodes.a, &nodes.b] {
                    eventually("its memory is back", || (memory_used(daemon) == 0).then_some(()));
                }
                // Nothing of the old life is in the way of the new one.
                nodes.network.heal();
                Healthy::start(&nodes.a, &nodes.b, "x").finish();
            });
        }
    });
}

#[test]
fn connections_that_are_killed_are_made_anew_and_records_go_on() {
    const KILLS: usize = 10;
    let Some(nodes) = Nodes::start("connections killed under load", &["ss"], "") else { return };
    let healthy = Healthy::start(&nodes.a, &nodes.b, "x");
    for round in 0..KILLS {
        let [before, _] = nodes.reconnects();
        nodes.network.kill_connections(round % 2);
        // Each end says so.
        eventually("the link has another socket", || (nodes.reconnects()[0] >= before + 2).then_some(()));
        healthy.flows_on(&nodes.b);
    }
    healthy.finish();
}

/// `WEIR_OUTAGE_SECONDS` makes it longer, and the grace with it.
#[test]
fn a_cable_that_is_out_for_longer_than_the_heartbeat_and_shorter_than_the_grace_loses_nothing() {
    let seconds =
        std::env::var("WEIR_OUTAGE_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(3_u64);
    let config = format!("{BRISK}grace = '{}s'\n", seconds + 60);
    let Some(nodes) = Nodes::start("a cable that is out", &[], &config) else { return };
    let healthy = Healthy::start(&nodes.a, &nodes.b, "x");
    let before = nodes.reconnects();
    nodes.network.set_link(0, "down");
    std::thread::sleep(Duration::from_secs(seconds));
    nodes.network.set_link(0, "up");
    healthy.flows_on(&nodes.b);
    assert!(nodes.reconnects()[0] > before[0], "the link was given up, and went on");
    healthy.finish();
}
