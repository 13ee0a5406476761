//! Bounds on waiting: a producer that does not come, and a daemon that stands still. Whatever ends so leaves nothing
//! behind.

use std::thread;
use std::time::{Duration, Instant};

use weir_client::{Client, ConnectOptions, Error, GateOptions, PartitionOptions, Strategy, Task};

use crate::daemon::{Daemon, Settings};
use crate::{next_record, pair, read_all};

/// Short enough for a test to wait for its end.
const SHORT: Duration = Duration::from_millis(200);

/// Longest wait for what should come at once.
const PATIENCE: Duration = Duration::from_secs(20);

/// A client that waits no longer than that for an answer.
fn client(daemon: &Daemon) -> Client {
    let options = ConnectOptions { request_timeout: SHORT, ..ConnectOptions::new(daemon.run_dir()) };
    patiently(|| Client::connect_with(options.clone()))
}

fn gate_within(task: &Task, exchange: &str, timeout: Duration) -> Result<weir_client::Gate, Error> {
    task.gate(exchange, 0, 1, GateOptions { timeout: Some(timeout), ..GateOptions::default() })
}

fn forward(task: &Task, exchange: &str) -> Result<weir_client::Partition, Error> {
    task.partition(exchange, 0, 1, 1, Strategy::Forward, PartitionOptions::default())
}

/// What is asked of a daemon that runs, by a client that waits a short time only: again, if the machine was slow. What is
/// not answered in time leaves nothing behind.
#[track_caller]
fn patiently<T>(mut ask: impl FnMut() -> Result<T, Error>) -> T {
    let began = Instant::now();
    loop {
        match ask() {
            Err(Error::Unanswered { .. } | Error::DaemonUnreachable { .. }) if began.elapsed() < PATIENCE => {
            }
            answered => return answered.expect("an answer"),
        }
    }
}

#[track_caller]
fn assert_unanswered<T: std::fmt::Debug>(result: Result<T, Error>, needed: &str) {
    match result {
        Err(error @ Error::Unanswered { asked, waited }) => {
            assert_eq!((asked, waited), (needed, SHORT));
            assert!(!error.is_unattached(), "the attachment goes on");
            assert!(error.to_string().contains("did not answer within 200ms"), "{error}");
        }
        other => panic!("{other:?}; needed: {needed} that is not answered"),
    }
}

#[test]
fn a_gate_whose_producer_does_not_come_in_time_ends_typed_and_is_not_there() {
    let daemon = Daemon::start(Settings::default());
    let task = crate::task(&daemon);
    for timeout in [SHORT, Duration::from_nanos(1), Duration::ZERO] {
        let began = Instant::now();
        match gate_within(&task, "x", timeout) {
            Err(error @ Error::Timeout { .. }) => {
                let text = error.to_string();
                let needed = format!("the first producer of exchange x did not come within {timeout:?}");
                assert_eq!(text, needed);
                assert!(!error.is_unattached() && error.failure().is_none());
            }
            other => panic!("{other:?}; needed: a timeout"),
        }
        assert!(began.elapsed() >= timeout);
        assert_eq!(daemon.waiting_gates(), [""; 0], "withdrawn when the call returns");
        assert_eq!(daemon.has(), (1, 0));
    }
    // The place is free, the producer that comes later is read by the one who asks then.
    let mut partition = forward(&task, "x").expect("a partition");
    partition.emit(b"one").expect("emit");
    let mut gate = gate_within(&task, "x", Duration::ZERO).expect("one that is known already");
    let sender = thread::spawn(move || partition.finish().expect("finish"));
    assert_eq!(read_all(&mut gate), [b"one"]);
    sender.join().expect("sender");
}

#[test]
fn a_gate_whose_producer_comes_in_time_is_made() {
    let daemon = Daemon::start(Settings::default());
    let task = crate::task(&daemon);
    let waiting = task.clone();
    let reader = thread::spawn(move || {
        let mut gate = gate_within(&waiting, "x", PATIENCE).expect("a producer");
        read_all(&mut gate)
    });
    daemon.await_gate("x");
    let mut partition = forward(&task, "x").expect("a partition");
    partition.emit(b"one").expect("emit");
    partition.finish().expect("finish");
    assert_eq!(reader.join().expect("reader"), [b"one"]);
}

/// Producer and timeout come at the same moment, in either order: there is a gate, or nothing of it.
#[test]
fn a_producer_at_the_last_moment_is_read_or_finds_nobody() {
    let daemon = Daemon::start(Settings::default());
    let task = crate::task(&daemon);
    let (mut made, mut late) = (0, 0);
    for round in 0..60_u64 {
        let exchange = format!("x{round}");
        let timeout = Duration::from_micros(500 + 50 * (round % 20));
        let (asking, name) = (task.clone(), exchange.clone());
        let asked = thread::spawn(move || gate_within(&asking, &name, timeout));
        thread::sleep(Duration::from_micros(500 + 50 * (round / 3)));
        let mut partition = forward(&task, &exchange).expect("a partition");
        partition.emit(b"one").expect("emit");
        partition.flush().expect("flush");
        match asked.join().expect("a thread") {
            Ok(mut gate) => {
                assert_eq!(next_record(&mut gate), b"one");
                made += 1;
            }
            Err(Error::Timeout { .. }) => {
                // Whoever comes then gets it.
                partition.check().expect("attached");
                assert_eq!(next_record(&mut crate::gate_of(&task, &exchange)), b"one");
                late += 1;
            }
            Err(other) => panic!("{other:?}"),
        }
    }
    println!("{made} producers came in time, {late} too late");
    assert_eq!(daemon.waiting_gates(), [""; 0]);
}

#[test]
fn what_a_daemon_that_stands_still_is_asked_for_ends_typed_and_is_taken_back_when_it_goes_on() {
    let daemon = Daemon::start(Settings::default());
    let client = client(&daemon);
    let task = patiently(|| client.task("stays"));
    let mut partition = patiently(|| forward(&task, "x"));
    let mut gate = patiently(|| task.gate("x", 0, 1, GateOptions::default()));
    let had = daemon.has();
    let still = daemon.pause();
    assert_unanswered(client.task("more"), "a task");
    assert_unanswered(forward(&task, "y"), "a partition");
    // Its producer would be known, and so the daemon is what it waits for.
    assert_unanswered(gate_within(&task, "x2", SHORT / 2), "a gate");
    // What was made before is not touched: it waits as it waits for its other end.
    client.check().and_then(|()| task.check()).expect("attached");
    partition.emit(b"one").and_then(|()| partition.flush()).expect("emit");
    drop(still);
    assert_eq!(next_record(&mut gate), b"one");
    // Whatever is asked next finds nothing of that, and gets what was asked for in vain.
    let mut again = patiently(|| forward(&task, "y"));
    assert_eq!(daemon.has(), (had.0, had.1 + 1));
    assert_eq!(daemon.waiting_gates(), [""; 0]);
    again.emit(b"two").and_then(|()| again.flush()).expect("emit");
    let mut gate = patiently(|| task.gate("y", 0, 1, GateOptions::default()));
    assert_eq!(next_record(&mut gate), b"two");
}

#[test]
fn threads_that_ask_a_daemon_that_stands_still_all_end_typed() {
    let daemon = Daemon::start(Settings::default());
    let client = client(&daemon);
    let task = patiently(|| client.task("stays"));
    let still = daemon.pause();
    // Fewer than the socket has room for, with what takes each back.
    thread::scope(|scope| {
        for number in 0..4 {
            let task = &task;
            scope.spawn(move || assert_unanswered(forward(task, &format!("x{number}")), "a partition"));
        }
    });
    drop(still);
    let _made = patiently(|| forward(&task, "x0"));
    assert_eq!(daemon.has(), (1, 1));
}

#[test]
fn an_attachment_whose_daemon_takes_no_message_is_over_and_the_daemon_keeps_nothing_of_it() {
    let daemon = Daemon::start(Settings::default());
    let options = || ConnectOptions { timeout: SHORT, ..ConnectOptions::new(daemon.run_dir()) };
    let client = patiently(|| Client::connect_with(options()));
    let task = client.task("test").expect("task");
    let gates: Vec<_> = (0..320)
        .map(|number| {
            let options = GateOptions {
                producers: Some(1),
                strategy: Some(Strategy::Forward),
                checksum: Some(false),
                ..GateOptions::default()
            };
            task.gate(&format!("x{number}"), 0, 1, options).expect("a gate")
        })
        .collect();
    let still = daemon.pause();
    // The socket takes some of these messages, and then none.
    let began = Instant::now();
    drop(gates);
    assert!(began.elapsed() < PATIENCE, "one wait and no more: {:?}", began.elapsed());
    let error = client.check().expect_err("an attachment that cannot give back is over");
    assert!(matches!(error, Error::DaemonUnreachable { .. }) && error.is_unattached(), "{error:?}");
    assert!(error.to_string().contains("took no message for 200ms"), "{error}");
    drop(still);
    // A new attachment, and nothing of the old one.
    let mut partition = patiently(|| forward(&task, "x"));
    let mut gate = patiently(|| task.gate("x", 0, 1, GateOptions::default()));
    partition.emit(b"one").and_then(|()| partition.flush()).expect("emit");
    assert_eq!(next_record(&mut gate), b"one");
    let began = Instant::now();
    while (daemon.sessions(), daemon.has()) != (1, (1, 2)) {
        assert!(began.elapsed() < PATIENCE, "{} sessions, {:?}", daemon.sessions(), daemon.has());
        thread::yield_now();
    }
}

#[test]
fn a_thousand_tasks_one_after_another_are_one_at_a_time_for_the_daemon() {
    let daemon = Daemon::start(Settings::default());
    let client = Client::connect(daemon.run_dir()).expect("attach");
    for number in 0..1000 {
        let task = client.task("stage").expect("a task");
        if number % 10 > 1 {
            continue;
        }
        let (mut partition, mut gate) = pair(&task, PartitionOptions::default());
        // The task is there for as long as anything of it is, whichever that is.
        drop(task);
        partition.emit(b"one").and_then(|()| partition.flush()).expect("emit");
        assert_eq!(next_record(&mut gate), b"one");
        if number % 2 == 0 {
            drop(partition)
        } else {
            drop(gate)
        }
        assert_eq!(daemon.has(), (1, 1));
    }
    client.task("last").expect("a task");
    assert_eq!(daemon.has(), (0, 0));
}
