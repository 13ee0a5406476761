//! The same job over Weir and over what one would use in its place, in the same rounds: 64 streams of records from one process to
//! another, every word written and every word added up. And 10,000 records a second at fixed times.

use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use tempfile::TempDir;

use crate::app::{self, App};
use crate::cluster::{Cluster, program_beside_this};
use crate::peers::{Options, Part, Peer};
use crate::report::Case;

use super::latency::{
    EVERY_NS, OPEN_LOOP_BYTES, Times, microseconds, open_loop_tcp, open_loop_weir, percentiles,
};
use super::throughput::{blast, weir};
use super::{OPENING, OPENING_LOOK, Settings, WARM_UP, Window};

const MEMORY_BYTES: u64 = 1 << 30;
const STREAMS: u32 = 64;

/// Record lengths, in bytes.
const RECORD_BYTES: [usize; 3] = [32 << 10, 1 << 10, 64];

/// Bytes per write and read of the raw blasts.
const BLAST_BYTES: [usize; 2] = [32 << 10, 256 << 10];

/// Streams of the open loops.
const OPEN_LOOP_STREAMS: [u32; 2] = [1, 16];

/// Peers with an open loop.
const OPEN_LOOP_PEERS: [Peer; 2] = [Peer::ZeroMq, Peer::Tonic];

/// The program that the other libraries are built into, and which of them are.
struct Program {
    path: PathBuf,
    peers: Vec<Peer>,
    directory: TempDir,
}

impl Program {
    /// Finds it; those of `wanted` that are not there are told.
    fn find(settings: &Settings, wanted: &[Peer]) -> Result<Option<Self>, String> {
        let Ok(path) = program_beside_this("weir-peers") else {
            for peer in wanted {
                settings.notes.not_run(format!(
                    "{} (weir-peers is not built; `cargo xtask bench --scenario peers` builds it)",
                    peer.name()
                ));
            }
            return Ok(None);
        };
        let output = Command::new(&path).arg("list").output();
        let output = output.map_err(|error| format!("cannot start {}: {error}", path.display()))?;
        let listed = String::from_utf8_lossy(&output.stdout).into_owned();
        let is_there = |peer: &Peer| listed.lines().any(|line| line == peer.name());
        for peer in wanted.iter().filter(|peer| !is_there(peer)) {
            let needs = peer.needs().unwrap_or("weir-peers built anew");
            settings.notes.not_run(format!("{} (it needs {needs})", peer.name()));
        }
        let peers = wanted.iter().copied().filter(is_there).collect();
        let directory = directory().map_err(|error| format!("no directory for the peers: {error}"))?;
        Ok(Some(Self { path, peers, directory }))
    }

    fn start(
        &self,
        peer: Peer,
        part: Part,
        streams: u32,
        record_bytes: usize,
        port: Option<u16>,
    ) -> Result<App, String> {
        let directory = self.directory.path().to_owned();
        let options =
            Options { peer, part, streams, record_bytes, records_per_stream: None, port, directory };
        App::start_program(&self.path, &options)
    }

    /// One window of the bulk job. A receiver takes one connection, and its port may be one that a daemon of somebody else
    /// still dials: then it is started once more.
    fn bulk(&self, settings: &Settings, peer: Peer, record_bytes: usize) -> Result<Window, String> {
        for _ in 0..2 {
            let mut receiver = self.start(peer, Part::Receive, STREAMS, record_bytes, None)?;
            let port = Some(receiver.port()?);
            let sender = self.start(peer, Part::Send, STREAMS, record_bytes, port)?;
            // Some take longer to find each other than others.
            let began = Instant::now();
            while receiver.report()?.bytes_total() == 0 && began.elapsed() < OPENING {
                std::thread::sleep(OPENING_LOOK);
            }
            std::thread::sleep(WARM_UP);
            let pids = [sender.pid(), receiver.pid()];
            let window = super::watch(&mut receiver, &pids, settings.window)?;
            app::end(vec![sender, receiver])?;
            if window.counts.bytes_total() > 0 {
                return Ok(window);
            }
        }
        Err(format!("nothing moved over {}; its error is above", peer.name()))
    }

    /// The delays of one window of the open loop.
    fn open_loop(&self, settings: &Settings, peer: Peer, streams: u32) -> Result<Times, String> {
        let mut receiver = self.start(peer, Part::NoteTimes, streams, OPEN_LOOP_BYTES, None)?;
        let port = Some(receiver.port()?);
        let part = Part::OpenLoop { every_ns: EVERY_NS };
        let sender = self.start(peer, part, streams, OPEN_LOOP_BYTES, port)?;
        let times = super::latency::watch(settings, &mut receiver)?;
        app::end(vec![sender, receiver])?;
        Ok(times)
    }
}

/// A directory in memory, if there is one: what Aeron keeps there is its memory.
fn directory() -> std::io::Result<TempDir> {
    TempDir::new_in("/dev/shm").or_else(|_| TempDir::new())
}

/// What one round found of the bulk job.
struct Round {
    blasts: Vec<Window>,
    /// Of each record length: Weir, then the peers.
    bulk: Vec<Vec<Window>>,
}

/// Each round: the blasts, then for each record length Weir and every peer.
pub(super) fn run(settings: &Settings) -> Result<Vec<Case>, String> {
    let Some(program) = Program::find(settings, &Peer::ALL)? else { return Ok(Vec::new()) };
    let cluster = Cluster::start(&settings.cluster(MEMORY_BYTES))?;
    let rounds = settings.every_round("peers", |round| {
        let blasts: Result<Vec<Window>, String> =
            BLAST_BYTES.into_iter().map(|bytes| blast(settings, bytes)).collect();
        let mut bulk = Vec::new();
        for record_bytes in RECORD_BYTES {
            let exchange = format!("peers-{record_bytes}-{round}");
            let mut windows = vec![weir(settings, &cluster, exchange, STREAMS, record_bytes)?];
            for peer in &program.peers {
                windows.push(program.bulk(settings, *peer, record_bytes)?);
            }
            bulk.push(windows);
        }
        Ok(Round { blasts: blasts?, bulk })
    })?;
    let mut cases = Vec::new();
    for (at, record_bytes) in RECORD_BYTES.into_iter().enumerate() {
        let of = |which: usize| -> Vec<&Window> {
            rounds.iter().filter_map(|round| round.bulk.get(at)?.get(which)).collect()
        };
        let weir = of(0);
        cases.push(bulk_case(record_bytes, "weir, two daemons between", &weir, None));
        for (which, peer) in program.peers.iter().enumerate() {
            let name = format!("{}, {}", peer.name(), peer.settings());
            cases.push(bulk_case(record_bytes, &name, &of(which + 1), Some(&weir)));
        }
        for (which, bytes) in BLAST_BYTES.into_iter().enumerate() {
            let blasts: Vec<&Window> = rounds.iter().filter_map(|round| round.blasts.get(which)).collect();
            let kib = bytes >> 10;
            let name =
                format!("raw TCP {kib} KiB, one connection of writes and reads so long, without records");
            cases.push(bulk_case(record_bytes, &name, &blasts, Some(&weir)));
        }
    }
    Ok(cases)
}

fn bulk_case(record_bytes: usize, name: &str, windows: &[&Window], weir: Option<&[&Window]>) -> Case {
    let mut case = Case::new(format!("peers: {STREAMS} streams, records of {record_bytes} B: {name}"))
        .in_group(format!("records of {record_bytes} B"));
    let of = |figure: fn(&Window) -> f64| windows.iter().map(move |window| figure(window));
    case.figure("cpu_seconds_per_gigabyte", of(Window::cpu_seconds_per_gigabyte));
    case.figure("gigabytes_per_second", of(Window::gigabytes_per_second));
    // Reads of a blast are no records.
    if !name.starts_with("raw") {
        case.figure("records_per_second", of(Window::records_per_second));
    }
    if let Some(weir) = weir {
        let over = |figure: fn(&Window) -> f64| {
            weir.iter().zip(windows).map(move |(weir, window)| figure(weir) / figure(window))
        };
        case.figure("cpu_per_gigabyte_of_weir_over_this", over(Window::cpu_seconds_per_gigabyte));
        case.figure("gigabytes_per_second_of_weir_over_this", over(Window::gigabytes_per_second));
    }
    case.figure("foreign_cores", of(|window| window.foreign_cores));
    case
}

/// Each round: for each number of streams raw TCP, Weir and the peers.
pub(super) fn run_latency(settings: &Settings) -> Result<Vec<Case>, String> {
    let Some(program) = Program::find(settings, &OPEN_LOOP_PEERS)? else { return Ok(Vec::new()) };
    let cluster = Cluster::start(&settings.cluster(MEMORY_BYTES))?;
    let rounds: Vec<Vec<Vec<Times>>> = settings.every_round("peers-latency", |round| {
        let measure = |streams: u32| {
            let exchange = format!("peers-open-{streams}-{round}");
            let mut times = vec![
                open_loop_weir(settings, &cluster, exchange, streams, 0)?,
                open_loop_tcp(settings, streams)?,
            ];
            for peer in &program.peers {
                times.push(program.open_loop(settings, *peer, streams)?);
            }
            Ok(times)
        };
        OPEN_LOOP_STREAMS.into_iter().map(measure).collect()
    })?;
    let names = ["weir, two daemons between", "raw TCP"].into_iter();
    let names: Vec<&str> = names.chain(program.peers.iter().map(|peer| peer.name())).collect();
    let mut cases = Vec::new();
    for (at, streams) in OPEN_LOOP_STREAMS.into_iter().enumerate() {
        let of =
            |which: usize| -> Vec<Times> { rounds.iter().map(|round| round[at][which].clone()).collect() };
        for (which, name) in names.iter().enumerate() {
            let weir = (which > 0).then(|| of(0));
            cases.push(open_loop_case(streams, name, &of(which), weir.as_deref()));
        }
    }
    Ok(cases)
}

fn open_loop_case(streams: u32, name: &str, times: &[Times], weir: Option<&[Times]>) -> Case {
    let streams = if streams == 1 { "1 stream".to_owned() } else { format!("{streams} streams") };
    let every_us = EVERY_NS / 1000;
    let mut case =
        Case::new(format!("peers-latency: {OPEN_LOOP_BYTES} B every {every_us} us over {streams}: {name}"))
            .in_group(streams);
    percentiles(&mut case, "delay", times);
    for (what, share) in [("p50", 0.5), ("p99", 0.99)] {
        let Some(weir) = weir else { continue };
        let ratio = microseconds(weir, share).zip(microseconds(times, share));
        case.figure(&format!("{what}_of_weir_over_this"), ratio.map(|(weir, other)| weir / other));
    }
    case
}
