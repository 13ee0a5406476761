//! The same job over Weir and over what one would use in its place, in the same rounds: 64 streams of records from one process to
//! another, every word written and every word added up. And 10,000 records a second at fixed times.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::app::{self, App};
use crate::cluster::{Cluster, program_beside_this};
use crate::peers::{Options, Part, Peer};
use crate::report::Case;

use super::latency::{
    EVERY_NS, OPEN_LOOP_BYTES, Times, microseconds, open_loop_tcp, open_loop_weir, percentiles,
};
use super::throughput::{blast, weir};
use super::{OPENING_LOOK, Settings, WARM_UP, Window};

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

/// How long a process of a peer may take to answer.
const ANSWER: Duration = Duration::from_secs(20);

/// How long the streams of a peer may take to carry their first bytes.
const OPENING: Duration = Duration::from_secs(20);

/// The program that the other libraries are built into, and which of them are.
struct Program {
    path: PathBuf,
    peers: Vec<Peer>,
    directory: TempDir,
    answer: Duration,
    opening: Duration,
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
        Ok(Some(Self { path, peers, directory, answer: ANSWER, opening: OPENING }))
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
        Ok(App::start_program(&self.path, &options)?.patient_for(self.answer))
    }

    /// One window of the bulk job. A receiver takes one connection, and its port may be one that a daemon of somebody else
    /// still dials: then it is started once more.
    fn bulk(&self, settings: &Settings, peer: Peer, record_bytes: usize) -> Result<Window, String> {
        let named = |problem: String| format!("{}: {problem}", peer.name());
        for _ in 0..2 {
            if let Some(window) = self.try_bulk(settings, peer, record_bytes).map_err(named)? {
                return Ok(window);
            }
        }
        Err(named(format!("nothing moved within {} s, twice", self.opening.as_secs_f64())))
    }

    /// None if nothing moved in time.
    fn try_bulk(
        &self,
        settings: &Settings,
        peer: Peer,
        record_bytes: usize,
    ) -> Result<Option<Window>, String> {
        let mut receiver = self.start(peer, Part::Receive, STREAMS, record_bytes, None)?;
        let port = Some(receiver.port()?);
        let sender = self.start(peer, Part::Send, STREAMS, record_bytes, port)?;
        // Some take longer to find each other than others.
        let began = Instant::now();
        while receiver.report()?.bytes_total() == 0 {
            if began.elapsed() > self.opening {
                return Ok(None);
            }
            std::thread::sleep(OPENING_LOOK);
        }
        std::thread::sleep(WARM_UP);
        let pids = [sender.pid(), receiver.pid()];
        let window = super::watch(&mut receiver, &pids, settings.window)?;
        app::end(vec![sender, receiver])?;
        Ok((window.counts.bytes_total() > 0).then_some(window))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::app::tests::write_script;
    use crate::quiet::Notes;

    /// A peer that is this shell script, in which `receive` and `send` are what its processes do; `tell RECORDS BYTES` answers.
    fn program(receive: &str, send: &str) -> Program {
        let directory = TempDir::new().expect("a directory");
        let path = directory.path().join("peer");
        let script = format!(
            "cd {}\n\
             tell() {{ echo \"{{\\\"bytes\\\":[$2,0],\\\"records\\\":[$1,7],\\\"checksum\\\":0,\\\"times_ns\\\":[]}}\"; }}\n\
             case $2 in\n\
             *Receive*) echo receiver >>started; {receive} ;;\n\
             *) echo sender >>started; {send} ;;\n\
             esac\n",
            directory.path().display()
        );
        write_script(&path, &script);
        Program { path, peers: vec![Peer::Tokio], directory, answer: PATIENCE, opening: PATIENCE }
    }

    /// What the processes of the peer left in a file of its directory.
    fn left(program: &Program, name: &str) -> String {
        std::fs::read_to_string(program.directory.path().join(name)).unwrap_or_default()
    }

    fn settings() -> Settings {
        let window = Duration::from_millis(1);
        Settings { rounds: 1, window, shards: 1, congestion: None, notes: Notes::default() }
    }

    const ANSWERS: &str = "while read line; do tell 0 0; done";

    /// Longer than anything takes on a machine that is busy.
    const PATIENCE: Duration = Duration::from_secs(60);

    #[test]
    fn a_peer_that_opens_late_is_waited_for() {
        // It moves 3 records of 100 B from one answer to the next, but nothing before the 50th: so often it is asked only by one
        // who waits.
        let late = "at=0; while read line; do at=$((at + 1)); over=$((at > 50 ? at - 50 : 0)); \
                    tell $((over * 3)) $((over * 300)); done";
        let program = program(late, ANSWERS);
        let window = program.bulk(&settings(), Peer::Tokio, 100).expect("it opens");
        assert_eq!((window.counts.bytes_total(), window.counts.records_total()), (300, 3));
        assert_eq!(left(&program, "started"), "receiver\nsender\n", "once");
    }

    #[test]
    fn a_peer_that_never_opens_is_named() {
        let program = Program { opening: Duration::from_millis(20), ..program(ANSWERS, ANSWERS) };
        let problem = program.bulk(&settings(), Peer::Tokio, 100).expect_err("it does not open");
        assert_eq!(problem, "tokio: nothing moved within 0.02 s, twice");
        assert_eq!(left(&program, "started").matches("receiver").count(), 2);
    }

    #[test]
    fn a_peer_that_does_not_answer_is_named() {
        let silent = Program { answer: Duration::from_millis(20), ..program("exec sleep 1000", ANSWERS) };
        let problem = silent.bulk(&settings(), Peer::Tokio, 100).expect_err("it does not answer");
        assert_eq!(problem, "tokio: a workload process has not answered for 0.02 s");
        let problem = program("exit 0", ANSWERS).bulk(&settings(), Peer::Tokio, 100);
        let problem = problem.expect_err("it has ended");
        assert!(problem.starts_with("tokio: a workload process ended early"), "{problem}");
    }
}
