//! Daemons that die or stop, and the ones that take their place: programs go on in the same process, what was under way
//! ends with a reason, and an end that was ordered comes in bounded time.

mod common;

use std::io::Write;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use common::{
    Daemon, DaemonOptions, Guarded, PATIENCE, Source, channels, eventually, free_address, recv, send, signal,
    subsystem,
};
use rustix::process::Signal;
use tempfile::TempDir;
use weir_client::{
    Client, ConsumerDeath, Error, FailureCode, Finished, GateOptions, Item, PartitionOptions, Strategy, Task,
};

/// Records of a transfer that has to arrive whole.
const RECORDS: u64 = 2_000;

/// Two nodes that know each other, each of which can be started again as it was.
struct Nodes {
    directory: TempDir,
    addresses: [String; 2],
    daemons: [Daemon; 2],
}

const NAMES: [&str; 2] = ["a", "b"];

impl Nodes {
    fn start(config: &str) -> Self {
        let directory = TempDir::new().expect("a directory");
        let addresses = [free_address(), free_address()];
        for name in NAMES {
            std::fs::write(directory.path().join(format!("{name}.toml")), config).expect("a configuration");
        }
        let daemons = [0, 1].map(|node| Self::start_one(directory.path(), &addresses, node));
        Self { directory, addresses, daemons }
    }

    fn start_one(directory: &Path, addresses: &[String; 2], node: usize) -> Daemon {
        let peer = 1 - node;
        let peers = &[(NAMES[peer], addresses[peer].as_str())];
        Daemon::start(
            directory,
            &DaemonOptions { peers, ..DaemonOptions::new(NAMES[node], &addresses[node]) },
        )
    }

    /// Starts a node whose daemon has ended, on the same run directory and port.
    fn start_again(&mut self, node: usize) {
        self.daemons[node] = Self::start_one(self.directory.path(), &self.addresses, node);
    }

    fn client(&self, node: usize) -> Client {
        Client::connect(&self.daemons[node].run_dir).expect("attached")
    }
}

/// A record of a transfer: which transfer, which record, and bytes that follow from both. Some span segments.
fn record(transfer: u64, number: u64) -> Vec<u8> {
    let bytes = if number.is_multiple_of(97) { 40_000 } else { 20 + (number * 31 % 1500) as usize };
    let mut record = [transfer.to_le_bytes(), number.to_le_bytes()].concat();
    record.extend((0..bytes).map(|at| (transfer * 131 + number * 7 + at as u64) as u8));
    record
}

/// Repeats what an end of the daemon interrupted.
fn again<T>(mut make: impl FnMut() -> Result<T, Error>) -> T {
    loop {
        match make() {
            Ok(made) => return made,
            Err(Error::DaemonGone { .. } | Error::Detached { .. }) => {}
            Err(error) => panic!("{error:?}; needed: a handle, or that the daemon ended"),
        }
    }
}

/// Emits records of one transfer until that fails; then all of the next. The failure.
fn produce(task: &Task, transfer: u64) -> Error {
    let make = || task.partition("x", 0, 1, 1, Strategy::Rebalance, PartitionOptions::default());
    let mut partition = again(make);
    let mut number = 0;
    let failure = loop {
        match partition.emit(&record(transfer, number)) {
            Ok(()) => number += 1,
            Err(error) => break error,
        }
    };
    drop(partition);
    let mut partition = again(make);
    for number in 0..RECORDS {
        partition.emit(&record(transfer + 1, number)).expect("emitted by the second partition");
    }
    assert_eq!(partition.finish().expect("the second finishes"), Finished::default());
    failure
}

/// Reads records of one transfer until that fails, then all of the next, each in order and byte by byte. The failure.
fn consume(task: &Task, transfer: u64, flowing: &AtomicU64) -> Error {
    let mut failure = None;
    loop {
        let mut gate = again(|| task.gate("x", 0, 1, GateOptions::default()));
        let (mut of, mut number) = (None, 0);
        loop {
            match gate.next() {
                Ok(Some(Item::Record(found))) => {
                    let first = found[..8].try_into().map(u64::from_le_bytes).expect("8 bytes");
                    let of = *of.get_or_insert(first);
                    assert!(of == transfer || of == transfer + 1, "a record of transfer {of}");
                    assert!(*found == record(of, number), "record {number} of transfer {of}");
                    number += 1;
                    flowing.fetch_add(1, Ordering::Relaxed);
                }
                Ok(Some(event)) => panic!("{event:?}; needed: records"),
                Ok(None) => {
                    assert_eq!((of, number), (Some(transfer + 1), RECORDS), "the whole second transfer");
                    return failure.expect("the first transfer has failed before");
                }
                Err(error) => {
                    // A gate that met what was left of a producer which is gone has read nothing: that is no end.
                    if of.is_some() {
                        failure.get_or_insert(error);
                    }
                    break;
                }
            }
        }
    }
}

/// Runs `body` on a thread; its result is to be received with patience.
fn spawn<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> Receiver<T> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let result = body();
        // A test that has failed waits no more.
        let _ = sender.send(result);
    });
    receiver
}

#[track_caller]
fn patiently<T>(what: &str, receiver: &Receiver<T>) -> T {
    receiver.recv_timeout(PATIENCE).unwrap_or_else(|error| panic!("{what}: {error}"))
}

#[track_caller]
fn assert_code(error: &Error, code: FailureCode) {
    assert_eq!(error.failure().map(|failure| failure.code), Some(code), "{error}");
}

/// One daemon ends under load and the next takes its place at once, while one process has both ends of a transfer. How
/// it ended for producer and consumer.
fn interrupt(nodes: &mut Nodes, tasks: &[Task; 2], transfer: u64, node: usize, how: Signal) -> [Error; 2] {
    let flowing = Arc::new(AtomicU64::new(0));
    let (producer, consumer) = (tasks[0].clone(), tasks[1].clone());
    let produced = spawn(move || produce(&producer, transfer));
    let counter = Arc::clone(&flowing);
    let consumed = spawn(move || consume(&consumer, transfer, &counter));
    eventually("records flow", || (flowing.load(Ordering::Relaxed) > 500).then_some(()));
    match how {
        Signal::KILL => nodes.daemons[node].kill(),
        _ => assert_eq!(nodes.daemons[node].terminate(), Some(0)),
    }
    nodes.start_again(node);
    [patiently("the producer goes on", &produced), patiently("the consumer goes on", &consumed)]
}

#[test]
fn programs_outlive_their_daemons_in_one_process_and_transfer_byte_exact_afterwards() {
    let mut nodes = Nodes::start("");
    let tasks = [0, 1].map(|node| nodes.client(node).task("outliving").expect("a task"));
    let (a, b) = (0, 1);
    // The producer's daemon, killed: its client is told so, the consumer gets the channel's end from its own daemon.
    let [producer, consumer] = interrupt(&mut nodes, &tasks, 10, a, Signal::KILL);
    assert!(matches!(producer, Error::DaemonGone { .. }), "{producer:?}");
    assert_code(&consumer, FailureCode::LinkLost);
    // The consumer's, killed: the other way round.
    let [producer, consumer] = interrupt(&mut nodes, &tasks, 20, b, Signal::KILL);
    assert_code(&producer, FailureCode::LinkLost);
    assert!(matches!(consumer, Error::DaemonGone { .. }), "{consumer:?}");
    // The producer's once more: it had been attached to a second life.
    let [producer, _] = interrupt(&mut nodes, &tasks, 30, a, Signal::KILL);
    assert!(matches!(producer, Error::DaemonGone { .. }), "{producer:?}");
}

#[test]
fn programs_outlive_daemons_that_are_stopped_in_order() {
    let mut nodes = Nodes::start("drain_timeout = \"1s\"\n");
    let tasks = [0, 1].map(|node| nodes.client(node).task("outliving").expect("a task"));
    let stopping = |error: &Error| match error {
        Error::Detached { text, .. } => text == "the daemon is stopping",
        Error::DaemonGone { .. } => false,
        error => error.failure().is_some_and(|failure| failure.code == FailureCode::Stopping),
    };
    for (transfer, node) in [(10, 0), (20, 1)] {
        let ends = interrupt(&mut nodes, &tasks, transfer, node, Signal::TERM);
        assert!(ends.iter().all(stopping), "{ends:?}");
    }
}

#[test]
fn every_call_that_waits_ends_when_the_daemon_is_killed_and_what_is_read_stays() {
    let mut nodes = Nodes::start("");
    let client = nodes.client(0);
    let task = client.task("waiting").expect("a task");
    let partition = |name: &str| {
        task.partition(name, 0, 1, 1, Strategy::Forward, PartitionOptions::default()).expect("a partition")
    };
    let gate = |name: &str| task.gate(name, 0, 1, GateOptions::default()).expect("a gate");
    let (mut emitting, mut announcing, finishing) =
        (partition("emit"), partition("event"), partition("finish"));
    let (mut sending, mut reading) = (partition("read"), gate("read"));
    let emitted = record(1, 97);
    sending.emit(&emitted).and_then(|()| sending.flush()).expect("emitted");
    let (held, is_held) = mpsc::channel();
    let killed = Arc::new(Barrier::new(2));
    let kill = Arc::clone(&killed);
    let read = spawn(move || {
        match reading.next().expect("no failure").expect("no end") {
            Item::Record(found) => {
                held.send(()).expect("the test waits");
                kill.wait();
                assert!(*found == emitted, "the bytes are what they were");
            }
            event => panic!("{event:?}; needed: a record"),
        }
        reading.next().map(drop).expect_err("no more comes")
    });
    let others = task.clone();
    let ends = [
        spawn(move || {
            loop {
                if let Err(error) = emitting.emit(&[7; 1000]) {
                    return error;
                }
            }
        }),
        spawn(move || {
            loop {
                if let Err(error) = announcing.emit_event(b"event", false) {
                    return error;
                }
            }
        }),
        spawn(move || finishing.finish().expect_err("nobody takes it")),
        spawn(move || others.gate("never", 0, 1, GateOptions::default()).expect_err("no producer comes")),
    ];
    patiently("a record is held", &is_held);
    eventually("the pool of the one that emits is used up", || {
        let row = channels(&nodes.daemons[0], "emit", "send").pop()?;
        (row["queued_bytes"].as_u64()? > 200_000).then_some(())
    });
    eventually("a gate waits for its producer", || {
        nodes.daemons[0].ask("plan").to_string().contains("never").then_some(())
    });
    nodes.daemons[0].kill();
    nodes.start_again(0);
    killed.wait();
    for end in ends.iter().chain([&read]) {
        let error = patiently("a call that waited", end);
        assert!(matches!(error, Error::DaemonGone { .. }), "{error:?}");
    }
    // The handle of the client is as good as new.
    let (mut partition, mut gate) = (partition("again"), gate("again"));
    partition.emit(b"again").expect("emitted");
    let finished = spawn(move || partition.finish());
    assert!(matches!(gate.next(), Ok(Some(Item::Record(found))) if *found == *b"again"));
    assert!(matches!(gate.next(), Ok(None)));
    assert_eq!(patiently("the end", &finished).expect("finished"), Finished::default());
}

/// Asserts exit code, and that standard error holds each of `words`.
#[track_caller]
fn assert_ended(output: &Output, code: i32, words: &[&str]) {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{text}");
    for word in words {
        assert!(text.contains(word), "{word:?} is missing in: {text}");
    }
}

#[test]
fn commands_end_with_their_daemon_and_say_so() {
    let mut nodes = Nodes::start("");
    let receiver = recv(&nodes.daemons[1], "x", "0/1");
    let waiting = recv(&nodes.daemons[1], "never", "0/1");
    let mut sender = send(&nodes.daemons[1], "y", &["--strategy", "forward", "--consumers", "1"]);
    let _input = sender.child.stdin.take();
    eventually("all are attached", || {
        let status = nodes.daemons[1].ask("status").to_string();
        status.contains("\"3 of ").then_some(())
    });
    nodes.daemons[1].kill();
    nodes.start_again(1);
    for command in [receiver, waiting, sender] {
        assert_ended(&command.output(), 4, &["the daemon at", "ended"]);
    }
}

/// A sender whose consumer stands still, so that its node cannot send all it has.
struct Stuck {
    sender: Guarded,
    receiver: Guarded,
}

impl Stuck {
    fn start(nodes: &Nodes) -> Self {
        let receiver = recv(&nodes.daemons[1], "x", "0/1");
        let mut sender = send(&nodes.daemons[0], "x", &["--strategy", "forward", "--consumers", "1"]);
        drop(Source::start(&mut sender));
        eventually("records flow", || {
            let rows = channels(&nodes.daemons[1], "x", "receive");
            rows.iter().any(|row| row["bytes_total"].as_u64() > Some(0)).then_some(())
        });
        Self { sender, receiver }
    }

    /// Waits until nothing moves any more: room for some more is often found after a moment.
    fn await_backlog(nodes: &Nodes) {
        let mut last = (0, 0);
        eventually("node a cannot send all it has", || {
            let row = channels(&nodes.daemons[0], "x", "send").pop()?;
            let now = (row["bytes_total"].as_u64()?, row["queued_bytes"].as_u64()?);
            let is_still = std::mem::replace(&mut last, now) == now;
            (is_still && row["credit"].as_u64()? == 0 && now.1 > 200_000).then_some(())
        });
    }
}

#[test]
fn a_drain_is_over_after_its_timeout_whoever_stands_still() {
    // Client, consumer, the peer's daemon: each is stopped while node a has data for it or of it.
    for who in ["consumer", "producer and consumer", "peer"] {
        let mut nodes = Nodes::start("drain_timeout = \"1s\"\n");
        let stuck = Stuck::start(&nodes);
        signal(stuck.receiver.child.id(), Signal::STOP);
        Stuck::await_backlog(&nodes);
        if who == "producer and consumer" {
            signal(stuck.sender.child.id(), Signal::STOP);
        }
        if who == "peer" {
            signal(nodes.daemons[1].pid(), Signal::STOP);
        }
        signal(nodes.daemons[0].pid(), Signal::TERM);
        // Whoever waits longer than a few times the timeout waits for ever.
        assert_eq!(nodes.daemons[0].exit_code(), Some(0), "{who}");
        assert!(nodes.daemons[0].printed().contains("within drain_timeout"), "{who}");
        for stopped in [stuck.sender.child.id(), nodes.daemons[1].pid()] {
            signal(stopped, Signal::CONT);
        }
        assert_ended(&stuck.sender.output(), 1, &["the daemon is stopping"]);
    }
}

#[test]
fn while_a_daemon_drains_who_comes_is_told_so_and_a_second_signal_ends_it_at_once() {
    for second in [Signal::TERM, Signal::INT] {
        let mut nodes = Nodes::start("drain_timeout = \"10min\"\n");
        let stuck = Stuck::start(&nodes);
        signal(stuck.receiver.child.id(), Signal::STOP);
        Stuck::await_backlog(&nodes);
        let (attached, run_dir) = (nodes.client(0), nodes.daemons[0].run_dir.clone());
        signal(nodes.daemons[0].pid(), Signal::TERM);
        eventually("it drains", || nodes.daemons[0].printed().contains("draining").then_some(()));
        for _ in 0..20 {
            let error = Client::connect(&run_dir).map(drop).expect_err("nobody new is let in");
            assert!(
                matches!(&error, Error::Detached { text, .. } if text == "the daemon is stopping"),
                "{error:?}; the daemon printed:\n{}",
                nodes.daemons[0].printed()
            );
        }
        let late = send(&nodes.daemons[0], "y", &["--strategy", "forward", "--consumers", "1"]);
        assert_ended(&late.output(), 1, &["the daemon is stopping"]);
        attached.check().expect("who was there stays");
        assert!(nodes.daemons[0].is_running(), "it waits for its consumer");
        signal(nodes.daemons[0].pid(), second);
        assert_eq!(nodes.daemons[0].exit_code(), Some(0));
        assert!(nodes.daemons[0].printed().contains("stopping at once"));
        assert!(!run_dir.join("attach.sock").exists(), "its sockets are gone");
        eventually("who was there sees the end", || attached.check().is_err().then_some(()));
    }
}

#[test]
fn a_daemon_whose_run_directory_is_another_ones_now_says_so_and_leaves_it_alone() {
    const SAID: &str = "sockets of this daemon were removed";
    let directory = TempDir::new().expect("a directory");
    let (at_first, at_second) = (free_address(), free_address());
    let mut first = Daemon::start(directory.path(), &DaemonOptions::new("a", &at_first));
    // While commands still reach it, it tells them.
    std::fs::remove_file(first.run_dir.join("attach.sock")).expect("a socket");
    let node = subsystem(&first, "node").expect("a line");
    let reason = node["reason"].as_str().unwrap_or_default();
    assert_eq!(node["state"], "degraded", "{node}");
    assert!(reason.contains("attach.sock") && !reason.contains("control.sock"), "{node}");
    eventually("its log says so", || first.printed().contains(SAID).then_some(()));
    let log = directory.path().join("first.log");
    std::fs::rename(&first.log, &log).expect("another name");
    first.log = log;
    std::fs::remove_dir_all(&first.run_dir).expect("removed");
    let mut second = Daemon::start(directory.path(), &DaemonOptions::new("a", &at_second));
    assert_eq!(first.terminate(), Some(0));
    assert_eq!(first.printed().matches(SAID).count(), 1);
    assert_eq!(second.ask("status")["pid"], second.pid());
    Client::connect(&second.run_dir).expect("programs find the second");
    assert_eq!(second.terminate(), Some(0));
    for socket in ["attach.sock", "control.sock"] {
        assert!(!second.run_dir.join(socket).exists(), "its own sockets are gone");
    }
}

#[test]
fn what_lies_at_the_paths_of_the_sockets_is_told_apart() {
    let directory = TempDir::new().expect("a directory");
    let run_dir = directory.path().join("a");
    std::fs::create_dir(&run_dir).expect("a run dir");
    let (address, elsewhere) = (free_address(), directory.path().join("elsewhere"));
    std::fs::write(&elsewhere, "precious").expect("a file");
    for name in ["attach.sock", "control.sock"] {
        let path = run_dir.join(name);
        let refused = |words: &[&str]| {
            let mut daemon = Daemon::spawn(directory.path(), &DaemonOptions::new("a", &address));
            assert_eq!(daemon.exit_code(), Some(1));
            let text = daemon.printed();
            for word in words.iter().chain(&[path.display().to_string().as_str(), "--run-dir"]) {
                assert!(text.contains(word), "{word:?} is missing in: {text}");
            }
            assert!(std::fs::symlink_metadata(&path).is_ok(), "it is left alone");
        };
        std::fs::write(&path, "precious").expect("a file");
        refused(&["regular file", "remove it"]);
        std::fs::remove_file(&path).expect("removed");
        std::fs::create_dir(&path).expect("a directory");
        refused(&["is a directory"]);
        std::fs::remove_dir(&path).expect("removed");
        std::os::unix::fs::symlink(&elsewhere, &path).expect("a link");
        refused(&["symbolic link"]);
        std::fs::remove_file(&path).expect("removed");
        let listener = UnixListener::bind(&path).expect("a socket");
        refused(&["another live process listens"]);
        // Its process has ended, and left the file: that one is replaced.
        drop(listener);
    }
    assert_eq!(std::fs::read_to_string(&elsewhere).expect("still there"), "precious");
    let daemon = Daemon::start(directory.path(), &DaemonOptions::new("a", &address));
    let mut second = Daemon::spawn(directory.path(), &DaemonOptions::new("a", &free_address()));
    assert_eq!(second.exit_code(), Some(1));
    let holder = format!("pid {}", daemon.pid());
    assert!(second.printed().contains(&holder), "{}", second.printed());
    daemon.ask("status");
}

#[test]
fn a_run_dir_is_made_but_not_the_directory_that_it_lies_in() {
    let directory = TempDir::new().expect("a directory");
    let below = directory.path().join("none");
    let address = free_address();
    std::fs::write(directory.path().join("a.toml"), "").expect("a configuration");
    let config = directory.path().join("a.toml").display().to_string();
    let run_dir = below.join("a").display().to_string();
    let arguments =
        ["daemon", "--config", &config, "--node", "a", "--listen", &address, "--run-dir", &run_dir];
    let mut command = Command::new(common::WEIR);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    assert_ended(&Guarded::spawn(&mut command).output(), 1, &[&run_dir, "does not exist"]);
    assert!(!below.exists());
    std::fs::create_dir(&below).expect("a directory");
    std::fs::copy(&config, below.join("a.toml")).expect("a copy");
    Daemon::start(&below, &DaemonOptions::new("a", &address)).ask("status");
}

#[test]
fn a_producer_goes_on_without_a_consumer_that_dies_and_counts_what_is_lost() {
    const READ_BY_THE_DEAD: u64 = 300;
    let nodes = Nodes::start("");
    let [sending, receiving] = [0, 1].map(|node| nodes.client(node).task("continuing").expect("a task"));
    let options =
        PartitionOptions { on_consumer_death: ConsumerDeath::ContinueWithout, ..PartitionOptions::default() };
    let mut partition = sending.partition("x", 0, 1, 3, Strategy::Rebalance, options).expect("a partition");
    let [mut dying, first, second] =
        [0, 1, 2].map(|index| receiving.gate("x", index, 3, GateOptions::default()).expect("a gate"));
    let survivors = [first, second].map(|mut gate| {
        spawn(move || {
            let mut numbers = Vec::new();
            while let Some(item) = gate.next().expect("a survivor gets its end") {
                let Item::Record(found) = item else { panic!("{item:?}; needed: a record") };
                let number = found[8..16].try_into().map(u64::from_le_bytes).expect("8 bytes");
                assert!(*found == record(1, number), "record {number}");
                numbers.push(number);
            }
            numbers
        })
    });
    let (die, is_to_die) = mpsc::channel::<()>();
    let died = spawn(move || {
        let mut numbers = Vec::new();
        while numbers.len() < READ_BY_THE_DEAD as usize {
            let Some(Item::Record(found)) = dying.next().expect("no failure") else { panic!("no end yet") };
            numbers.push(found[8..16].try_into().map(u64::from_le_bytes).expect("8 bytes"));
        }
        is_to_die.recv().expect("the test says when");
        numbers
    });
    let mut number = 0;
    eventually("some that it will not read are on their way to it", || {
        for _ in 0..200 {
            partition.emit(&record(1, number)).expect("emitted");
            number += 1;
        }
        let rows = channels(&nodes.daemons[0], "x", "send");
        let row = rows.iter().find(|row| row["consumer"] == 0)?;
        // Of one that spans segments a part may be there only.
        (row["records_total"].as_u64()? > READ_BY_THE_DEAD + 1).then_some(())
    });
    die.send(()).expect("it reads");
    let deadline = std::time::Instant::now() + PATIENCE;
    while partition.lost_consumers() == 0 {
        partition.emit(&record(1, number)).expect("emitted");
        number += 1;
        assert!(std::time::Instant::now() < deadline, "the death was not noticed");
    }
    let noticed = number;
    for _ in 0..RECORDS {
        partition.emit(&record(1, number)).expect("emitted after the death");
        number += 1;
    }
    let finished = partition.finish().expect("finished");
    let read = patiently("the reader that died", &died);
    let mut kept: Vec<u64> =
        survivors.iter().flat_map(|survivor| patiently("a survivor", survivor)).collect();
    kept.sort_unstable();
    assert!(kept.windows(2).all(|pair| pair[0] < pair[1]), "no record came twice");
    assert!(kept.iter().all(|number| !read.contains(number)), "none came to a dead one and a living one");
    assert!(
        (noticed..number).all(|number| kept.binary_search(&number).is_ok()),
        "all after the death arrive"
    );
    let given_to_the_dead = number - kept.len() as u64;
    let unread = given_to_the_dead - read.len() as u64;
    assert_eq!(finished.lost_consumers, 1);
    assert!(unread > 0, "some were on their way");
    assert!(
        (unread..=given_to_the_dead).contains(&finished.lost_records),
        "{} counted, {unread} unread of {given_to_the_dead}",
        finished.lost_records
    );
}

#[test]
fn a_command_that_goes_on_without_a_consumer_says_what_was_lost_and_needs_one_that_lives() {
    let nodes = Nodes::start("");
    let arguments = ["--consumers", "2", "--on-consumer-death", "continue"];
    let hash = send(&nodes.daemons[0], "x", &[&arguments[..], &["--strategy", "hash"]].concat());
    assert_ended(&hash.output(), 2, &["--on-consumer-death", "rebalance"]);
    for deaths in [1, 2] {
        let exchange = format!("x{deaths}");
        let mut receivers =
            vec![recv(&nodes.daemons[1], &exchange, "0/2"), recv(&nodes.daemons[1], &exchange, "1/2")];
        let mut sender = send(&nodes.daemons[0], &exchange, &arguments);
        let mut input = sender.child.stdin.take().expect("an input");
        let (stop, stopped) = mpsc::channel::<()>();
        let fed = spawn(move || {
            while stopped.try_recv() == Err(mpsc::TryRecvError::Empty) {
                if input.write_all("a record\n".repeat(1000).as_bytes()).is_err() {
                    break;
                }
            }
        });
        eventually("records flow to both", || {
            let rows = channels(&nodes.daemons[1], &exchange, "receive");
            (rows.iter().filter(|row| row["bytes_total"].as_u64() > Some(100_000)).count() == 2).then_some(())
        });
        for receiver in receivers.iter_mut().take(deaths) {
            receiver.child.kill().expect("it can be killed");
        }
        eventually("the node knows", || {
            let rows = channels(&nodes.daemons[1], &exchange, "receive");
            (rows.len() <= 2 - deaths).then_some(())
        });
        thread::sleep(Duration::from_millis(50));
        drop(stop);
        patiently("the input ends", &fed);
        if deaths == 1 {
            assert_ended(&sender.output(), 3, &["1 of 2 consumers died", "records"]);
            let survivor = receivers.remove(1).output();
            assert!(survivor.status.success());
            assert!(survivor.stdout.ends_with(b"a record\n"));
        } else {
            assert_ended(&sender.output(), 1, &["consumer gone"]);
        }
    }
}
