//! Two daemons in two network namespaces of their own, joined by a veth pair: 200 MB with each strategy, byte for byte,
//! over addresses that are not loopback, with a cluster key.

mod common;
#[path = "common/network.rs"]
mod network;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use common::{Daemon, DaemonOptions, eventually, feed, lines, memory_used, recv, send, sorted};
use network::{ADDRESSES, Network};
use tempfile::TempDir;

const INPUT_BYTES: usize = 200_000_000;

fn key_file(directory: &Path) -> String {
    let path = directory.join("cluster.key");
    std::fs::write(&path, [7_u8; 32]).expect("a key");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("its mode");
    path.display().to_string()
}

#[test]
fn two_hundred_megabytes_arrive_byte_for_byte_with_each_strategy() {
    let Some(network) = Network::new("transfers between network namespaces", &[]) else { return };
    let directory = TempDir::new().expect("a directory");
    let key = key_file(directory.path());
    let addresses = ADDRESSES.map(|address| format!("{address}:7070"));
    let start = |own: usize, peer: usize| {
        let name = ["a", "b"][own];
        let options = DaemonOptions {
            peers: &[(["a", "b"][peer], &addresses[peer])],
            extra: &["--key-file", &key],
            prefix: &["ip", "netns", "exec", &network.names[own]],
            ..DaemonOptions::new(name, &addresses[own])
        };
        Daemon::start(directory.path(), &options)
    };
    let (a, b) = (start(0, 1), start(1, 0));
    let input = lines(INPUT_BYTES);
    for (strategy, consumers, extra) in
        [("forward", 1, &[][..]), ("rebalance", 3, &[]), ("hash", 3, &["--key-field", "1"])]
    {
        let receivers: Vec<_> =
            (0..consumers).map(|j| recv(&b, strategy, &format!("{j}/{consumers}"))).collect();
        let consumers = consumers.to_string();
        let mut arguments = vec!["--strategy", strategy, "--consumers", &consumers];
        arguments.extend(extra);
        let mut sender = send(&a, strategy, &arguments);
        let feeder = feed(&mut sender, input.clone());
        let outputs: Vec<Vec<u8>> = std::thread::scope(|scope| {
            let readers: Vec<_> =
                receivers.into_iter().map(|receiver| scope.spawn(|| receiver.output())).collect();
            readers.into_iter().map(|reader| reader.join().expect("a reader").stdout).collect()
        });
        assert!(sender.output().status.success(), "{strategy}");
        feeder.join().expect("the feeder");
        let parts: Vec<&[u8]> = outputs.iter().map(Vec::as_slice).collect();
        if strategy == "forward" {
            assert!(outputs[0] == input, "forward: {} bytes of {}", outputs[0].len(), input.len());
        } else {
            assert!(sorted(&parts) == sorted(&[&input]), "{strategy}: the same records");
        }
    }
    for daemon in [&a, &b] {
        eventually("all memory is given back", || (memory_used(daemon) == 0).then_some(()));
    }
}
