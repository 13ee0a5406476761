//! What a daemon holds: descriptors by kind, mappings, memory of regions.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::{Daemon, PATIENCE};

/// What a daemon holds at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Resources {
    /// Bytes that regions are charged with.
    pub(crate) memory: u64,
    /// Mappings of shared memory: regions, rings, session pages, task cells.
    pub(crate) mappings: usize,
    /// Descriptors by kind.
    pub(crate) descriptors: BTreeMap<String, usize>,
}

impl Resources {
    /// What this daemon holds now.
    pub(crate) fn of(daemon: &Daemon) -> Self {
        // Before the question, whose own connection would be among them.
        let mut descriptors = descriptors(daemon.pid());
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", daemon.pid())).expect("its mappings");
        let mappings = maps.lines().filter(|line| line.contains("/memfd:weir-")).count();
        let status = ask(&daemon.run_dir, "status");
        // Links of the node with itself are made when first needed, and stay. Each has its socket, and a duplicate to ask the
        // kernel with what that waits for.
        if let Some(sockets) = descriptors.get_mut("socket") {
            *sockets = sockets.saturating_sub(2 * links(&status));
        }
        Self { memory: status["memory"]["used_bytes"].as_u64().expect("bytes"), mappings, descriptors }
    }

    /// What it holds once nothing moves any more.
    pub(crate) fn at_rest(daemon: &Daemon) -> Self {
        let mut before = Self::of(daemon);
        loop {
            std::thread::sleep(Duration::from_millis(100));
            let now = Self::of(daemon);
            if now == before {
                return now;
            }
            before = now;
        }
    }

    /// Waits until the daemon holds no more and no less than this again. Prints how long that took.
    pub(crate) fn await_return(&self, daemon: &Daemon, what: &str) {
        let began = Instant::now();
        loop {
            let now = Self::of(daemon);
            if now == *self {
                println!("{what}: everything is back after {} ms", began.elapsed().as_millis());
                return;
            }
            assert!(began.elapsed() < PATIENCE, "{what}: it holds {now:?}, and held {self:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Returns once each shard has looked at what its clients have marked, and the daemon at what the shards found: a question
/// is answered by each shard at the begin of a turn, before it looks at its clients.
pub(crate) fn settle(daemon: &Daemon) {
    for _ in 0..3 {
        ask(&daemon.run_dir, "status");
    }
}

/// Ends of data links.
fn links(status: &Value) -> usize {
    status["links"].as_array().expect("links").len()
}

fn line<'a>(status: &'a Value, subsystem: &str) -> &'a Value {
    let lines = status["subsystems"].as_array().expect("subsystems");
    lines.iter().find(|line| line["name"] == subsystem).expect("the subsystem")
}

fn descriptors(pid: u32) -> BTreeMap<String, usize> {
    let mut kinds = BTreeMap::new();
    for entry in std::fs::read_dir(format!("/proc/{pid}/fd")).expect("its descriptors") {
        // One that is closed meanwhile is none.
        let Ok(target) = entry.and_then(|entry| std::fs::read_link(entry.path())) else { continue };
        let name = target.to_string_lossy().into_owned();
        let kind = name.trim_end_matches(|letter: char| letter.is_ascii_digit() || "[]:".contains(letter));
        *kinds.entry(kind.to_owned()).or_default() += 1;
    }
    kinds
}

/// What the daemon answers to `GET /v1/VERB`, asked by this process.
pub(crate) fn ask(run_dir: &Path, verb: &str) -> Value {
    let mut stream = UnixStream::connect(run_dir.join("control.sock")).expect("a control socket");
    write!(stream, "GET /v1/{verb} HTTP/1.1\r\nHost: weir\r\n\r\n").expect("written");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let (_, body) = answer.split_once("\r\n\r\n").expect("a body");
    serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {answer}"))
}

/// Detail of a subsystem's status.
pub(crate) fn detail(run_dir: &Path, subsystem: &str) -> String {
    line(&ask(run_dir, "status"), subsystem)["detail"].as_str().expect("a detail").to_owned()
}
