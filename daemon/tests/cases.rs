//! Cases that were reported of systems of this kind, on real daemons and with the client library: storms of aborts,
//! records longer than all the credit of a channel, and both directions full before anybody reads.
//!
//! The storm runs for ten seconds. As many rounds as one likes: `WEIR_STORM_ROUNDS=20000 cargo test --package weir
//! --test cases storm -- --nocapture`, which prints what the daemons hold before and after.

mod common;

use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use common::{
    Daemon, DaemonOptions, Guarded, PATIENCE, Usage, channels, eventually, free_address, memory_used, number,
    signal, weir,
};
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;
use weir_client::{
    Client, Error, FailureCode, Gate, GateOptions, Item, Partition, PartitionOptions, Strategy, Task,
};

/// Longer than any of these tests takes; only a hang lasts so long.
const HANG: Duration = Duration::from_secs(10 * PATIENCE.as_secs());

/// What a producer of the storm sends before it would finish: more than the pools of both ends hold.
const STORM_BYTES: usize = 1 << 20;
const STORM_RECORD_BYTES: usize = 10_000;

/// Exchanges on which consumers come and go at the same time.
const STORM_EXCHANGES: usize = 3;

/// How long the storm lasts, unless the environment asks for a number of rounds.
const STORM_TIME: Duration = Duration::from_secs(8);

/// Fewer rounds than these say nothing.
const STORM_ROUNDS_MIN: usize = 30;

/// Every so many rounds the consumer is a process of its own, and is killed.
const KILL_EVERY: usize = 25;

/// What a daemon's process may hold more than before the storm: it does not depend on the number of rounds.
const STORM_BYTES_MORE: u64 = 32 << 20;

/// Two daemons with one shard each, so that there is one link for all.
struct Nodes {
    /// Goes first.
    _watchdog: Watchdog,
    a: Daemon,
    b: Daemon,
    _directory: TempDir,
}

/// Calls of the client wait for as long as it takes. A test that hangs ends all the same: its daemons are killed, and
/// then every call fails.
struct Watchdog {
    is_over: mpsc::Sender<()>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    fn start(pids: [u32; 2], patience: Duration) -> Self {
        let (is_over, over) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            if over.recv_timeout(patience) == Err(mpsc::RecvTimeoutError::Timeout) {
                eprintln!("no end within {} s: the daemons are killed", patience.as_secs());
                pids.into_iter().for_each(|pid| signal(pid, Signal::KILL));
            }
        });
        Self { is_over, thread: Some(thread) }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        // It ends at once, and kills nobody afterwards.
        let _ = self.is_over.send(());
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl Nodes {
    /// With regions of ordinary pages, which have just the segments that were asked for.
    fn start(config: &str, patience: Duration) -> Self {
        let directory = TempDir::new().expect("a directory");
        for name in ["a.toml", "b.toml"] {
            let text = format!("{config}[memory]\nhugepages = \"off\"\n");
            std::fs::write(directory.path().join(name), text).expect("a configuration file");
        }
        let addresses = [free_address(), free_address()];
        let [a, b] = [0, 1].map(|own| {
            let (name, peer) = (["a", "b"][own], ["b", "a"][own]);
            let peers = &[(peer, addresses[1 - own].as_str())];
            let extra = &["--shards", "1"];
            let options = DaemonOptions { peers, extra, ..DaemonOptions::new(name, &addresses[own]) };
            Daemon::start(directory.path(), &options)
        });
        let watchdog = Watchdog::start([a.pid(), b.pid()], patience);
        Self { _watchdog: watchdog, a, b, _directory: directory }
    }
}

fn task(daemon: &Daemon, name: &str) -> Task {
    Client::connect(&daemon.run_dir).and_then(|client| client.task(name)).expect("a task")
}

fn forward(task: &Task, exchange: &str, options: PartitionOptions) -> Result<Partition, Error> {
    task.partition(exchange, 0, 1, 1, Strategy::Forward, options)
}

fn consumer(task: &Task, exchange: &str) -> Result<Gate, Error> {
    let options =
        GateOptions { producers: Some(1), strategy: Some(Strategy::Forward), ..GateOptions::default() };
    task.gate(exchange, 0, 1, options)
}

/// Bytes that differ from record to record and from place to place.
fn pattern(seed: usize, bytes: usize) -> Vec<u8> {
    (0..bytes)
        .map(|at| (at.wrapping_mul(31) ^ (at >> 8).wrapping_mul(7) ^ seed.wrapping_mul(101)) as u8)
        .collect()
}

/// The next record of a gate.
fn next_record(gate: &mut Gate) -> Result<Option<Vec<u8>>, Error> {
    match gate.next()? {
        Some(Item::Record(record)) => Ok(Some(record.to_vec())),
        Some(Item::Event(event)) => panic!("no event was sent: {event:?}"),
        None => Ok(None),
    }
}

/// When a storm is over, and how far it is.
struct Storm {
    began: Instant,
    rounds_wanted: Option<usize>,
    /// Lives of producers that were told that their consumer is gone.
    rounds: AtomicUsize,
    is_over: AtomicBool,
    /// What should not have happened. The storm goes on, so that the other end is not left waiting.
    problems: Mutex<Vec<String>>,
}

fn rounds_wanted() -> Option<usize> {
    let wanted = std::env::var("WEIR_STORM_ROUNDS").ok();
    wanted.map(|text| text.parse().expect("WEIR_STORM_ROUNDS is a number"))
}

impl Storm {
    fn new() -> Self {
        Self {
            began: Instant::now(),
            rounds_wanted: rounds_wanted(),
            rounds: AtomicUsize::new(0),
            is_over: AtomicBool::new(false),
            problems: Mutex::new(Vec::new()),
        }
    }

    fn problem(&self, text: String) {
        self.problems.lock().expect("nobody panics with it").push(text);
    }

    fn goes_on(&self) -> bool {
        let rounds = self.rounds.load(Ordering::Relaxed);
        match self.rounds_wanted {
            Some(wanted) => rounds < wanted,
            None => self.began.elapsed() < STORM_TIME || rounds < STORM_ROUNDS_MIN,
        }
    }

    /// Lives of one producer, each with an incarnation of its own, until no consumer comes any more.
    fn produce(&self, daemon: &Daemon, exchange: &str) {
        let task = task(daemon, exchange);
        let record = pattern(0, STORM_RECORD_BYTES);
        while !self.is_over.load(Ordering::Relaxed) {
            let mut partition = forward(&task, exchange, PartitionOptions::default()).expect("a place");
            let outcome = (0..STORM_BYTES / STORM_RECORD_BYTES)
                .try_for_each(|_| partition.emit(&record))
                .and_then(|()| partition.finish().map(drop));
            match outcome {
                Err(Error::Failed { failure, .. }) if failure.code == FailureCode::ConsumerGone => {
                    self.rounds.fetch_add(1, Ordering::Relaxed);
                }
                outcome => self.problem(format!("{exchange} had no consumer that stayed: {outcome:?}")),
            }
        }
    }

    /// Consumers that come, take nothing, half or one record of it, and are gone.
    fn consume(&self, daemon: &Daemon, exchange: &str) {
        let (attached, pattern) = (task(daemon, exchange), pattern(0, STORM_RECORD_BYTES));
        let mut round = 0;
        while self.goes_on() {
            round += 1;
            if round % KILL_EVERY == 0 {
                kill_a_consumer(daemon, exchange);
                continue;
            }
            // Every third one is a process that ends, as far as the daemon can see; the others close their gate.
            let own = (round % 3 == 0).then(|| task(daemon, exchange));
            let mut gate = consumer(own.as_ref().unwrap_or(&attached), exchange).expect("a place");
            let wanted = match round % 4 {
                0 => 0,
                1 => STORM_BYTES / STORM_RECORD_BYTES / 2,
                // The rest is arriving.
                _ => 1,
            };
            for _ in 0..wanted {
                match next_record(&mut gate) {
                    Ok(Some(record)) if record == pattern => {}
                    // It found the life of the producer that ended with the consumer before.
                    Err(Error::Failed { failure, .. }) if is_of_the_life_before(failure.code) => break,
                    other => self.problem(format!("{exchange}, round {round}: {other:?}")),
                }
            }
            if wanted == 0 {
                // Until its whole pool is full.
                until_stands_still(daemon, exchange);
            }
        }
    }
}

fn is_of_the_life_before(code: FailureCode) -> bool {
    matches!(code, FailureCode::ConsumerGone | FailureCode::ProducerGone)
}

/// A consumer that is a process of its own, killed while records come.
fn kill_a_consumer(daemon: &Daemon, exchange: &str) {
    // Nobody reads what it prints, so that it stops before the end.
    let (_reader, writer) = std::io::pipe().expect("a pipe");
    let mut command = weir(["recv", "--exchange", exchange, "--consumer", "0/1"], &daemon.run_dir);
    let mut receiver = Guarded::spawn(command.stdin(Stdio::null()).stdout(writer).stderr(Stdio::null()));
    let mut looks = 0;
    // It may have met the life of the producer that has just ended, and end by itself.
    while receiver.child.try_wait().expect("its state").is_none() && looks < 1000 {
        let rows = channels(daemon, exchange, "receive");
        if rows.iter().any(|row| number(row, "bytes_total") > 0) {
            break;
        }
        looks += 1;
        std::thread::sleep(Duration::from_millis(2));
    }
    receiver.child.kill().expect("it can be killed");
}

/// Until what has arrived for a consumer that reads nothing does not grow. There may be nothing, if its producer has
/// just ended.
fn until_stands_still(daemon: &Daemon, exchange: &str) {
    let arrived = || -> u64 {
        channels(daemon, exchange, "receive").iter().map(|row| number(row, "bytes_total")).sum()
    };
    let mut before = arrived();
    loop {
        let now = arrived();
        if now == before {
            return;
        }
        before = now;
    }
}

#[test]
fn a_storm_of_aborts_leaves_memory_regions_and_descriptors_as_they_were() {
    // A round takes some milliseconds.
    let patience = rounds_wanted().map_or(STORM_TIME, |rounds| Duration::from_millis(50 * rounds as u64));
    let nodes = Nodes::start("", patience + HANG);
    let daemons = [&nodes.a, &nodes.b];
    // One whole transfer: links, buffers and threads that stay are there from now on.
    transfer(&nodes, "before");
    for daemon in daemons {
        eventually("nothing is held", || (memory_used(daemon) == 0).then_some(()));
    }
    let before = daemons.map(Usage::of);
    let storm = Storm::new();
    let names: Vec<String> = (0..STORM_EXCHANGES).map(|index| format!("storm-{index}")).collect();
    std::thread::scope(|scope| {
        let producers: Vec<_> =
            names.iter().map(|name| scope.spawn(|| storm.produce(&nodes.a, name))).collect();
        let consumers: Vec<_> =
            names.iter().map(|name| scope.spawn(|| storm.consume(&nodes.b, name))).collect();
        for thread in consumers {
            thread.join().expect("a consumer of the storm");
        }
        storm.is_over.store(true, Ordering::Relaxed);
        for (thread, name) in producers.into_iter().zip(&names) {
            // Lives that still wait meet one more consumer that goes at once.
            let attached = task(&nodes.b, name);
            while !thread.is_finished() {
                drop(consumer(&attached, name).expect("a place"));
                std::thread::sleep(Duration::from_millis(20));
            }
            thread.join().expect("a producer of the storm");
        }
    });
    let problems = storm.problems.into_inner().expect("nobody panics with it");
    assert!(problems.is_empty(), "{} problems: {:?}", problems.len(), problems.first());
    let rounds = storm.rounds.into_inner();
    let seconds = storm.began.elapsed().as_secs_f64();
    for (daemon, before) in daemons.into_iter().zip(before) {
        eventually("all regions are given back", || (memory_used(daemon) == 0).then_some(()));
        eventually("no channel is left", || {
            daemon.ask("channels")["channels"].as_array().is_some_and(Vec::is_empty).then_some(())
        });
        eventually("descriptors are back", || {
            (Usage::of(daemon).descriptors <= before.descriptors).then_some(())
        });
        let after = Usage::of(daemon);
        println!("{rounds} rounds in {seconds:.1} s: {before:?}, then {after:?}");
        assert!(
            after.resident_bytes < before.resident_bytes + STORM_BYTES_MORE,
            "{before:?}, then {after:?}"
        );
    }
    transfer(&nodes, "after");
}

/// A transfer to its end over the links that there are, byte for byte.
fn transfer(nodes: &Nodes, exchange: &str) {
    let (from, to) = (task(&nodes.a, exchange), task(&nodes.b, exchange));
    std::thread::scope(|scope| {
        let producer = scope.spawn(|| {
            let mut partition = forward(&from, exchange, PartitionOptions::default()).expect("a place");
            for index in 0..200 {
                partition.emit(&pattern(index, STORM_RECORD_BYTES)).expect("room");
            }
            partition.finish().map(drop)
        });
        let mut gate = consumer(&to, exchange).expect("a place");
        for index in 0..200 {
            let record = next_record(&mut gate).expect("a healthy channel");
            assert!(
                record.as_deref() == Some(&pattern(index, STORM_RECORD_BYTES)),
                "{exchange}: record {index}"
            );
        }
        assert!(next_record(&mut gate).expect("a healthy channel").is_none());
        producer.join().expect("the producer").expect("all of it arrived");
    });
}

/// Longest record of the daemons of the next test: more than 1 MiB, and no whole number of anything.
const RECORD_BYTES_MAX: usize = (3 << 20) + 5;

/// Records of every length that is special, over a channel whose gate has two segments and no more, from a partition
/// whose pool is as small as it can be and from one of the usual size. The longest is 97 times all its credit.
#[test]
fn a_record_may_be_longer_than_all_the_credit_of_its_channel() {
    let nodes = Nodes::start(&format!("[record]\nbytes_max = {RECORD_BYTES_MAX}\n"), HANG);
    let lengths = [1, (32 << 10) - 1, 32 << 10, (32 << 10) + 1, 1 << 20, RECORD_BYTES_MAX];
    let smallest = PartitionOptions {
        exclusive: Some(1),
        floating: Some(0),
        quota: Some(1),
        overdraft: Some(0),
        retention: Some(0),
        ..PartitionOptions::default()
    };
    for (exchange, options) in [("usual", PartitionOptions::default()), ("smallest", smallest)] {
        let (from, to) = (task(&nodes.a, exchange), task(&nodes.b, exchange));
        std::thread::scope(|scope| {
            let producer = scope.spawn(|| {
                let mut partition = forward(&from, exchange, options).expect("a place");
                for (index, bytes) in lengths.into_iter().enumerate() {
                    partition.emit(&pattern(index, bytes)).expect("it is within the limit");
                    let refused =
                        partition.emit(&pattern(index, RECORD_BYTES_MAX + 1)).expect_err("too long");
                    let needed = (RECORD_BYTES_MAX + 1, RECORD_BYTES_MAX);
                    let Error::RecordTooLarge { found, max } = &refused else { panic!("{refused:?}") };
                    assert_eq!((*found, *max), needed);
                    for size in [needed.0, needed.1] {
                        assert!(refused.to_string().contains(&size.to_string()), "{size} in: {refused}");
                    }
                }
                partition.finish().map(drop)
            });
            let gate_options = GateOptions {
                producers: Some(1),
                strategy: Some(Strategy::Forward),
                exclusive: Some(2),
                floating: Some(0),
                ..GateOptions::default()
            };
            let mut gate = to.gate(exchange, 0, 1, gate_options).expect("a place");
            for (index, bytes) in lengths.into_iter().enumerate() {
                let record = next_record(&mut gate).expect("a healthy channel").expect("one more");
                assert_eq!(record.len(), bytes, "{exchange}");
                assert!(record == pattern(index, bytes), "{exchange}: a record of {bytes} bytes");
            }
            let row = channels(&nodes.b, exchange, "receive").remove(0);
            assert!(number(&row, "receiver_ready") + number(&row, "receiver_held") <= 2, "{row}");
            assert!(
                next_record(&mut gate).expect("a healthy channel").is_none(),
                "nothing of what was refused"
            );
            producer.join().expect("the producer").expect("all of it arrived");
        });
    }
}

/// Channels in each direction.
const CHANNELS: u32 = 4;

/// Records of each of them, of this length: several times what the pools of both ends hold.
const RECORDS: usize = 300;
const RECORD_BYTES: usize = 20_000;

/// Segments that may be queued in each of them, much more than the credit of a channel.
const QUOTA: u32 = 60;

const PRIORITY_EVENT: &[u8] = b"now";

/// A direction: partitions on one node, gates on the other, all over one link.
struct Direction<'a> {
    exchange: &'static str,
    from: &'a Daemon,
    partitions: Vec<Partition>,
    gates: Vec<Gate>,
    /// Records that each partition took.
    emitted: Vec<usize>,
}

impl<'a> Direction<'a> {
    fn open(exchange: &'static str, from: &'a Daemon, to: &'a Daemon) -> Self {
        let (producers, consumers) = (task(from, exchange), task(to, exchange));
        let partitions: Vec<Partition> = (0..CHANNELS)
            .map(|index| {
                let options = PartitionOptions {
                    floating: Some(QUOTA),
                    quota: Some(QUOTA),
                    ..PartitionOptions::default()
                };
                let made =
                    producers.partition(exchange, index, CHANNELS, CHANNELS, Strategy::Forward, options);
                made.expect("a place")
            })
            .collect();
        let gates = (0..CHANNELS)
            .map(|index| {
                let options = GateOptions {
                    producers: Some(CHANNELS),
                    strategy: Some(Strategy::Forward),
                    ..GateOptions::default()
                };
                consumers.gate(exchange, index, CHANNELS, options).expect("a place")
            })
            .collect();
        Self { exchange, from, partitions, gates, emitted: vec![0; CHANNELS as usize] }
    }

    fn record(&self, channel: usize, index: usize) -> Vec<u8> {
        pattern(channel * 1000 + index + usize::from(self.exchange == "west"), RECORD_BYTES)
    }

    /// Emits what can be emitted without a wait; whether that was anything.
    fn emit_some(&mut self) -> bool {
        let mut any = false;
        for channel in 0..CHANNELS as usize {
            while self.emitted[channel] < RECORDS {
                let record = self.record(channel, self.emitted[channel]);
                if !self.partitions[channel].try_emit(&record).expect("a healthy partition").is_emitted() {
                    break;
                }
                self.emitted[channel] += 1;
                any = true;
            }
        }
        any
    }

    /// Every producer would wait, and every channel has more to send than credit.
    fn is_full(&self) -> bool {
        let rows = channels(self.from, self.exchange, "send");
        let is_full = |row: &Value| number(row, "credit") == 0 && number(row, "backlog") > 0;
        rows.len() == CHANNELS as usize && rows.iter().all(is_full)
    }

    /// Emits the rest and reads everything, each channel on two threads.
    fn finish(self) {
        let Self { exchange, partitions, gates, emitted: before, .. } = self;
        let record = |channel: usize, index: usize| {
            pattern(channel * 1000 + index + usize::from(exchange == "west"), RECORD_BYTES)
        };
        std::thread::scope(|scope| {
            let all = partitions.into_iter().zip(gates).zip(before).enumerate();
            for (channel, ((mut partition, mut gate), emitted)) in all {
                scope.spawn(move || {
                    for index in emitted..RECORDS {
                        partition.emit(&record(channel, index)).expect("a healthy partition");
                    }
                    partition.finish().expect("all of it arrived");
                });
                scope.spawn(move || {
                    let (mut records, mut overtakes) = (0, None);
                    while let Some(item) = gate.next().expect("a healthy channel") {
                        match item {
                            Item::Record(found) => {
                                let is_it = found.bytes() == record(channel, records);
                                assert!(is_it, "{exchange}, {channel}: record {records}");
                                records += 1;
                            }
                            Item::Event(event) => {
                                assert_eq!((&event.payload[..], event.priority), (PRIORITY_EVENT, true));
                                assert!(overtakes.replace(records).is_none(), "once");
                            }
                        }
                    }
                    assert_eq!(records, RECORDS, "{exchange}, {channel}");
                    let overtakes = overtakes.expect("the event arrives");
                    assert!(
                        overtakes < emitted,
                        "it came behind {overtakes} records, {emitted} of them older"
                    );
                });
            }
        });
    }
}

/// Nobody reads until all producers of both directions wait. Then a priority event of each overtakes what is queued,
/// and everything that was emitted arrives.
#[test]
fn both_directions_may_be_full_before_anybody_reads() {
    let nodes = Nodes::start("", HANG);
    let mut east = Direction::open("east", &nodes.a, &nodes.b);
    let mut west = Direction::open("west", &nodes.b, &nodes.a);
    let began = Instant::now();
    loop {
        let any = east.emit_some() | west.emit_some();
        if !any && east.is_full() && west.is_full() {
            break;
        }
        assert!(began.elapsed() < PATIENCE, "both directions fill up");
        std::thread::sleep(Duration::from_millis(10));
    }
    for direction in [&mut east, &mut west] {
        assert!(direction.emitted.iter().all(|emitted| *emitted < RECORDS), "{:?}", direction.emitted);
        for partition in &mut direction.partitions {
            partition.emit_event(PRIORITY_EVENT, true).expect("events need no credit");
        }
    }
    std::thread::scope(|scope| {
        scope.spawn(|| east.finish());
        scope.spawn(|| west.finish());
    });
    for daemon in [&nodes.a, &nodes.b] {
        eventually("all memory is given back", || (memory_used(daemon) == 0).then_some(()));
    }
}
