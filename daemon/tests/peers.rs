//! Hostile peers against real daemons. Whatever one does, its own link or channel ends with the reason; records that
//! flow between the same daemons beside it arrive byte for byte, and memory and descriptors come back.

mod common;
#[path = "common/healthy.rs"]
mod healthy;
#[path = "common/peer.rs"]
mod peer;
#[path = "common/proxy.rs"]
mod proxy;

#[path = "peers/consumers.rs"]
mod consumers;
#[path = "peers/links.rs"]
mod links;
#[path = "peers/producers.rs"]
mod producers;
#[path = "peers/proxied.rs"]
mod proxied;
#[path = "peers/restarts.rs"]
mod restarts;
#[path = "peers/storms.rs"]
mod storms;
#[path = "peers/strangers.rs"]
mod strangers;

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Output;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{Daemon, DaemonOptions, Guarded, Usage, eventually, free_address, recv, send, subsystem};
use healthy::Healthy;
use tempfile::TempDir;

const FORWARD: &[&str] = &["--strategy", "forward", "--consumers", "1"];

/// A peer that takes nothing is given up after a time that a test can wait for.
const BRISK: &str = "[link]\nheartbeat_interval = '200ms'\nheartbeat_timeout = '3s'\ngrace = '4s'\n";

/// No link is given up for its silence, nor one that was cut, before a test is over: for peers that answer nothing while
/// others have their turn, and for those that come back.
const PATIENT: &str = "[link]\nheartbeat_timeout = '10min'\ngrace = '20min'\n";

/// What a daemon may need more than before while it is attacked, in bytes of resident memory.
const MEMORY_MORE: u64 = 64 << 20;

/// Two honest daemons: producers on `a`, consumers on `b`, and records that flow from one to the other throughout.
struct Scene {
    a: Daemon,
    b: Daemon,
    at_a: String,
    healthy: Healthy,
    before: [Usage; 2],
    /// Goes last.
    _directory: TempDir,
}

impl Scene {
    /// `config` is that of both; `peers` those that `b` knows beside `a`.
    fn start(config: &str, peers: &[(&str, &str)]) -> Self {
        let directory = TempDir::new().expect("a directory");
        for name in ["a.toml", "b.toml"] {
            std::fs::write(directory.path().join(name), config).expect("a configuration file");
        }
        let (at_a, at_b) = (free_address(), free_address());
        // One shard: what is hostile is on the same shard as what is not.
        let extra: &[&str] = &["--shards", "1"];
        let a = Daemon::start(directory.path(), &DaemonOptions { extra, ..DaemonOptions::new("a", &at_a) });
        let mut known = vec![("a", at_a.as_str())];
        known.extend(peers);
        let options = DaemonOptions { peers: &known, extra, ..DaemonOptions::new("b", &at_b) };
        let b = Daemon::start(directory.path(), &options);
        let healthy = Healthy::start(&a, &b, "healthy");
        let before = [Usage::of(&a), Usage::of(&b)];
        Self { a, b, at_a, healthy, before, _directory: directory }
    }

    /// What must hold after each attack.
    fn end(self) {
        self.assert_memory_is_bounded();
        for (daemon, before) in [&self.a, &self.b].into_iter().zip(self.before) {
            eventually("descriptors are back", || {
                (Usage::of(daemon).descriptors <= before.descriptors).then_some(())
            });
        }
        self.healthy.finish();
    }

    fn assert_memory_is_bounded(&self) {
        for (daemon, before) in [&self.a, &self.b].into_iter().zip(self.before) {
            let now = Usage::of(daemon);
            assert!(now.resident_bytes < before.resident_bytes + MEMORY_MORE, "{before:?}, then {now:?}");
        }
    }
}

/// The end of a command that failed with each of these words.
fn assert_failed(output: &Output, words: &[&str]) {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{text}");
    for word in words {
        assert!(text.contains(word), "{word:?} is missing in: {text}");
    }
}

/// Waits until the daemon has logged a line with all of these words.
fn logged(daemon: &Daemon, words: &[&str]) {
    eventually(&format!("a line of the log has {words:?}"), || {
        let text = daemon.printed();
        text.lines().any(|line| words.iter().all(|word| line.contains(word))).then_some(())
    });
}

/// Waits until a subsystem of a daemon has this text in its reason or detail.
fn shown(daemon: &Daemon, name: &str, word: &str) {
    eventually(&format!("{name} shows {word:?}"), || {
        let entry = subsystem(daemon, name)?;
        [&entry["reason"], &entry["detail"]]
            .iter()
            .any(|text| text.as_str().is_some_and(|text| text.contains(word)))
            .then_some(())
    });
}

fn is_linked(daemon: &Daemon, peer: &str) -> bool {
    subsystem(daemon, &format!("peer/{peer}")).is_some_and(|entry| entry["state"] == "ok")
}

fn key_file(directory: &Path, name: &str, byte: u8) -> String {
    let path = directory.join(name);
    std::fs::write(&path, [byte; 32]).expect("a key");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("its mode");
    path.display().to_string()
}
