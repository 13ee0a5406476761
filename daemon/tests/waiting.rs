//! What is waited for and does not come: a producer, a daemon that stands still, the next life of a producer. Each wait
//! has an end, and what it was for is not left behind.

mod common;

use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use common::{
    Daemon, DaemonOptions, Guarded, PATIENCE, Pair, eventually, feed, free_address, memory_used, send,
    signal, weir,
};
use rustix::process::Signal;
use tempfile::TempDir;
use weir_client::{
    Client, ConnectOptions, Error, Gate, GateOptions, Item, Partition, PartitionOptions, Strategy, Task,
};
use weir_ipc::layout::TASKS_MAX;

/// How long a client waits for an answer of a daemon that gives none.
const REQUEST: Duration = Duration::from_secs(1);

/// Lives of a producer, one after the other.
const LIVES: u32 = 300;

fn start(directory: &TempDir) -> Daemon {
    // It stands still for some seconds, and is not to lose its link to itself by that.
    let config = "[link]\ngrace = '2min'\n[memory]\nhugepages = 'off'\n";
    std::fs::write(directory.path().join("a.toml"), config).expect("a file");
    Daemon::start(directory.path(), &DaemonOptions::new("a", &free_address()))
}

fn forward(task: &Task, exchange: &str) -> Result<Partition, Error> {
    task.partition(exchange, 0, 1, 1, Strategy::Forward, PartitionOptions::default())
}

fn next_record(gate: &mut Gate) -> Vec<u8> {
    match gate.next() {
        Ok(Some(Item::Record(record))) => record.to_vec(),
        other => panic!("{other:?}; needed: a record"),
    }
}

/// Stops a daemon with all its threads.
fn stop(daemon: &Daemon) {
    signal(daemon.pid(), Signal::STOP);
    let tasks = format!("/proc/{}/task", daemon.pid());
    eventually("every thread stands still", || {
        let mut threads = std::fs::read_dir(&tasks).expect("its threads").flatten();
        threads
            .all(|thread| {
                let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
                stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('T'))
            })
            .then_some(())
    });
}

/// Ends a daemon that somebody waits for without end, so that the test does not.
struct Watchdog {
    /// Dropped: the wait is over.
    _over: Sender<()>,
}

impl Watchdog {
    fn of(daemon: &Daemon) -> Self {
        let (over, is_over) = mpsc::channel();
        let pid = daemon.pid();
        std::thread::spawn(move || {
            if is_over.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
                signal(pid, Signal::KILL);
            }
        });
        Self { _over: over }
    }
}

/// What is asked of a daemon that runs, by a client that waits a short time only: again, if the machine was slow. What is
/// not answered in time leaves nothing behind.
#[track_caller]
fn patiently<T>(mut ask: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
    let began = Instant::now();
    loop {
        match ask() {
            Err(Error::Unanswered { .. }) if began.elapsed() < PATIENCE => {}
            answered => return answered,
        }
    }
}

#[track_caller]
fn assert_unanswered<T: std::fmt::Debug>(result: Result<T, Error>, needed: &str) {
    match result {
        Err(Error::Unanswered { asked, waited }) => assert_eq!((asked, waited), (needed, REQUEST)),
        other => panic!("{other:?}; needed: {needed} that is not answered"),
    }
}

#[test]
fn a_daemon_that_is_stopped_ends_what_it_is_asked_for_and_takes_it_back_when_it_goes_on() {
    let directory = TempDir::new().expect("a directory");
    let mut daemon = start(&directory);
    let options = ConnectOptions { request_timeout: REQUEST, ..ConnectOptions::new(&daemon.run_dir) };
    let client = Client::connect_with(options).expect("an attachment");
    let task = patiently(|| client.task("stays")).expect("a task");
    let mut partition = patiently(|| forward(&task, "x")).expect("a partition");
    let mut gate = patiently(|| task.gate("x", 0, 1, GateOptions::default())).expect("a gate");
    partition.emit(b"before").and_then(|()| partition.flush()).expect("emit");
    assert_eq!(next_record(&mut gate), b"before");
    let _unread = patiently(|| forward(&task, "v")).expect("a partition");
    let used = memory_used(&daemon);
    let began = Instant::now();
    stop(&daemon);
    let watchdog = Watchdog::of(&daemon);
    assert_unanswered(client.task("more"), "a task");
    assert_unanswered(forward(&task, "y"), "a partition");
    let bounded = GateOptions { timeout: Some(REQUEST), ..GateOptions::default() };
    assert_unanswered(task.gate("z", 0, 1, bounded.clone()), "a gate");
    // This one is granted before it is taken back: its producer is there.
    assert_unanswered(task.gate("v", 0, 1, bounded.clone()), "a gate");
    // The command ends too: it does not even get in.
    let command = weir(["send", "--exchange", "w", "--consumers", "1"], &daemon.run_dir)
        .stdin(Stdio::null())
        .output()
        .expect("weir runs");
    assert_eq!(command.status.code(), Some(4), "{}", String::from_utf8_lossy(&command.stderr));
    assert!(began.elapsed() < PATIENCE, "that took {:?}", began.elapsed());
    drop(watchdog);
    // What was made before is as good as it was, and waits for the daemon only.
    client.check().and_then(|()| task.check()).expect("attached");
    partition.emit(b"meanwhile").and_then(|()| partition.flush()).expect("emit");
    signal(daemon.pid(), Signal::CONT);
    assert_eq!(next_record(&mut gate), b"meanwhile");
    // Of what was asked for nothing is left: not its memory, and not its place, for anybody.
    eventually("its memory is back", || (memory_used(&daemon) == used).then_some(()));
    let _watchdog = Watchdog::of(&daemon);
    // One was there before.
    let make = |_| patiently(|| client.task("more")).expect("a place for each");
    let tasks: Vec<Task> = (1..TASKS_MAX).map(make).collect();
    drop(tasks);
    let other = Client::connect(&daemon.run_dir).and_then(|client| client.task("other")).expect("a task");
    let mut next = forward(&other, "y").expect("a free place");
    next.emit(b"one").and_then(|()| next.flush()).expect("emit");
    let mut gate = patiently(|| task.gate("y", 0, 1, GateOptions::default())).expect("a gate");
    assert_eq!(next_record(&mut gate), b"one");
    let waits = patiently(|| task.gate("z", 0, 1, bounded.clone())).expect_err("no producer");
    assert!(matches!(waits, Error::Timeout { .. }), "{waits:?}");
    assert!(daemon.is_running());
}

#[test]
fn a_consumer_waits_for_its_first_producer_as_long_as_it_is_told() {
    let pair = Pair::start();
    let ask = |wait: &str| {
        let mut command = weir(["recv", "--exchange", "x", "--wait", wait], &pair.b.run_dir);
        let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let output = Guarded::spawn(command).output();
        let text = String::from_utf8(output.stderr).expect("UTF-8");
        assert_eq!(output.status.code(), Some(1), "{text}");
        for part in ["the first producer of exchange x did not come within", "--wait"] {
            assert!(text.contains(part), "{part:?} is missing in: {text}");
        }
    };
    ask("0");
    ask("300ms");
    // Its process goes on, and its place is free all the same.
    let task = Client::connect(&pair.b.run_dir).and_then(|client| client.task("test")).expect("a task");
    for _ in 0..3 {
        let options = GateOptions { timeout: Some(Duration::from_millis(50)), ..GateOptions::default() };
        let error = task.gate("x", 0, 1, options).expect_err("no producer");
        assert!(matches!(error, Error::Timeout { .. }), "{error:?}");
    }
    assert_eq!(memory_used(&pair.b), 0);
    // One that is there is found without waiting.
    let early = Client::connect(&pair.a.run_dir).and_then(|client| client.task("early")).expect("a task");
    let partition = forward(&early, "early").expect("a partition");
    let gate = eventually("it is found as soon as the node knows of it", || {
        let options = GateOptions { timeout: Some(Duration::ZERO), ..GateOptions::default() };
        task.gate("early", 0, 1, options).ok()
    });
    drop((gate, partition));
    // In time; and one that was told nothing takes the place that the others left.
    for arguments in [&["--wait", "5min"][..], &[]] {
        let mut command = weir(["recv", "--exchange", "x"].iter().chain(arguments), &pair.b.run_dir);
        let receiver =
            Guarded::spawn(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()));
        let mut sender = send(&pair.a, "x", &["--strategy", "forward", "--consumers", "1"]);
        feed(&mut sender, b"a\nb\n".to_vec()).join().expect("the feeder");
        assert!(sender.output().status.success());
        assert_eq!(receiver.output().stdout, b"a\nb\n");
    }
}

/// A consumer that asks for the next life of its producer the moment it has read the last: its node may still know that
/// one. It gets the next one, whenever that comes, and never the reason why it cannot have the last.
#[test]
fn a_gate_made_while_its_producer_is_replaced_gets_the_next_life() {
    let pair = Pair::start();
    let task_at = |daemon: &Daemon| {
        Client::connect(&daemon.run_dir).and_then(|client| client.task("test")).expect("a task")
    };
    let (is_over, lives) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|scope| {
        // A consumer that waits without end has its daemon ended.
        scope.spawn(|| {
            let mut last = (0, Instant::now());
            while !is_over.load(Ordering::Relaxed) {
                let life = lives.load(Ordering::Relaxed);
                if life != last.0 {
                    last = (life, Instant::now());
                } else if last.1.elapsed() > PATIENCE {
                    return signal(pair.b.pid(), Signal::KILL);
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        scope.spawn(|| {
            let task = task_at(&pair.a);
            for life in 0..LIVES {
                let began = Instant::now();
                let mut partition = loop {
                    match forward(&task, "x") {
                        Ok(partition) => break partition,
                        // Its own last life may not have left its place.
                        Err(Error::Refused { code, .. }) if code == "duplicate_producer" => {}
                        Err(error) => panic!("life {life}: {error:?}"),
                    }
                    assert!(began.elapsed() < PATIENCE, "life {life}: the place does not come free");
                };
                partition.emit(&life.to_le_bytes()).expect("emit");
                if let Err(error) = partition.finish() {
                    assert!(is_over.load(Ordering::Relaxed), "life {life}: {error:?}");
                    return;
                }
            }
        });
        let over = Over { is_over: &is_over, producing: pair.a.pid() };
        let task = task_at(&pair.b);
        for life in 0..LIVES {
            let options = GateOptions { timeout: Some(PATIENCE), ..GateOptions::default() };
            let mut gate = task.gate("x", 0, 1, options).expect("the producer's node");
            assert_eq!(next_record(&mut gate), life.to_le_bytes());
            assert_eq!(gate.next().expect("the end of a life"), None);
            lives.store(life + 1, Ordering::Relaxed);
        }
        drop(over);
    });
}

/// Says that the test is over. If it has failed it ends the producer's daemon, whose client would wait for ever.
struct Over<'a> {
    is_over: &'a AtomicBool,
    producing: u32,
}

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if std::thread::panicking() {
            signal(self.producing, Signal::KILL);
        }
    }
}
