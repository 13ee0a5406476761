//! A client outlives its daemon: what was made ends with a reason, what is made next attaches anew.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use weir_client::{
    BufferTimeout, Client, ConnectOptions, Error, Gate, GateOptions, Item, Partition, PartitionOptions,
    Strategy, Task,
};

use crate::daemon::{Daemon, Settings};
use crate::{next_record, pair, read_all, record};

/// A client that waits so long for the next daemon.
fn client(daemon: &Daemon, reattach_timeout: Duration) -> Client {
    let options = ConnectOptions { reattach_timeout, ..ConnectOptions::new(daemon.run_dir()) };
    Client::connect_with(options).expect("attach")
}

#[track_caller]
fn assert_gone<T: std::fmt::Debug>(result: Result<T, Error>) {
    match result {
        Err(error @ Error::DaemonGone { .. }) => assert!(error.is_unattached()),
        other => panic!("{other:?}; needed: the daemon is gone"),
    }
}

/// Sends so many records through a pair, and reads them.
fn transfer(mut partition: Partition, mut gate: Gate, records: usize) {
    let sender = thread::spawn(move || {
        (0..records).for_each(|number| partition.emit(&record(number, 700)).expect("emit"));
        partition.finish().expect("finish");
    });
    let read = read_all(&mut gate);
    assert_eq!(read.len(), records);
    for (number, found) in read.iter().enumerate() {
        assert!(*found == record(number, 700), "record {number} is what was emitted");
    }
    sender.join().expect("sender");
}

#[test]
fn client_and_task_attach_to_the_next_daemon_and_the_old_handles_stay_ended() {
    let mut daemon = Daemon::start(Settings::default());
    let client = client(&daemon, Duration::from_secs(20));
    let task = client.task("test").expect("task");
    for life in 0..3 {
        let (mut old_partition, mut old_gate) = pair(&task, PartitionOptions::default());
        old_partition.emit(b"one").and_then(|()| old_partition.emit(b"two")).expect("emit");
        old_partition.flush().expect("flush");
        assert_eq!(next_record(&mut old_gate), b"one");
        daemon.kill();
        daemon.revive(Settings::default());
        // What had been delivered is still read, out of memory that the dead daemon made.
        assert_eq!(next_record(&mut old_gate), b"two");
        assert_gone(old_gate.next().map(drop));
        let again = if life == 0 { task.clone() } else { client.task("other").expect("a task") };
        let (partition, gate) = pair(&again, PartitionOptions::default());
        client.check().and_then(|()| task.check()).expect("attached");
        // Which says nothing of the old handles.
        assert_gone(old_partition.check());
        assert_gone(old_gate.check());
        partition.check().and_then(|()| gate.check()).expect("attached");
        transfer(partition, gate, 300);
        // And not one of the old ones speaks with the new daemon.
        assert_gone(old_gate.next().map(drop));
        assert_gone(old_partition.finish());
    }
}

#[test]
fn a_record_that_is_being_read_stays_although_its_daemon_is_gone_and_another_is_attached_to() {
    let mut daemon = Daemon::start(Settings::default());
    let client = client(&daemon, Duration::from_secs(20));
    let task = client.task("test").expect("task");
    let (mut partition, mut gate) = pair(&task, PartitionOptions::default());
    let emitted = record(1, 3000);
    partition.emit(&emitted).expect("emit");
    partition.flush().expect("flush");
    let held = match gate.next().expect("a record") {
        Some(Item::Record(record)) => record,
        other => panic!("{other:?}; needed: a record"),
    };
    daemon.kill();
    daemon.revive(Settings::default());
    let (partition, gate) = pair(&task, PartitionOptions::default());
    transfer(partition, gate, 100);
    assert!(held.bytes() == emitted, "the bytes are what they were");
}

#[test]
fn threads_that_ask_at_once_get_one_new_attachment() {
    let mut daemon = Daemon::start(Settings::default());
    let client = client(&daemon, Duration::from_secs(20));
    let tasks: Vec<Task> = (0..8).map(|_| client.task("test").expect("task")).collect();
    daemon.kill();
    let (start, made, counted) = (Barrier::new(9), Barrier::new(9), Barrier::new(9));
    let sessions = thread::scope(|scope| {
        for (index, task) in tasks.iter().enumerate() {
            let (start, made, counted) = (&start, &made, &counted);
            scope.spawn(move || {
                let (name, options) = (format!("x{index}"), PartitionOptions::default());
                start.wait();
                let mut partition =
                    task.partition(&name, 0, 1, 1, Strategy::Forward, options).expect("a partition");
                partition.emit(b"one").expect("emit");
                made.wait();
                counted.wait();
            });
        }
        start.wait();
        daemon.revive(Settings::default());
        made.wait();
        let sessions = daemon.sessions();
        counted.wait();
        sessions
    });
    assert_eq!(sessions, 1);
}

#[test]
fn a_daemon_that_does_not_come_back_is_waited_for_so_long_and_then_named() {
    let mut daemon = Daemon::start(Settings::default());
    let patience = Duration::from_millis(300);
    let client = client(&daemon, patience);
    let task = client.task("test").expect("task");
    daemon.kill();
    let began = Instant::now();
    let results: Vec<Error> = thread::scope(|scope| {
        let waits: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| task.gate("x", 0, 1, GateOptions::default()).expect_err("no daemon is there"))
            })
            .collect();
        waits.into_iter().map(|wait| wait.join().expect("a thread")).collect()
    });
    assert!(began.elapsed() >= patience, "given up after {:?}", began.elapsed());
    for error in results {
        let text = error.to_string();
        assert!(matches!(&error, Error::NotReattached { waited, .. } if *waited == patience), "{error:?}");
        assert!(error.is_unattached());
        assert!(text.contains("attach.sock") && text.contains("300ms"), "{text}");
    }
    // That is no verdict for ever.
    daemon.revive(Settings::default());
    let began = Instant::now();
    let partition = loop {
        match task.partition("x", 0, 1, 1, Strategy::Forward, PartitionOptions::default()) {
            // That client waits a short time for its daemon also now.
            Err(Error::NotReattached { .. }) if began.elapsed() < Duration::from_secs(20) => {}
            made => break made.expect("a partition"),
        }
    };
    let gate = crate::gate_of(&task, "x");
    transfer(partition, gate, 10);
}

#[test]
fn a_client_that_is_not_to_attach_again_does_not() {
    let mut daemon = Daemon::start(Settings::default());
    let client = client(&daemon, Duration::ZERO);
    let task = client.task("test").expect("task");
    daemon.kill();
    daemon.revive(Settings::default());
    assert_gone(client.task("other"));
    assert_gone(task.gate("x", 0, 1, GateOptions::default()));
    assert_eq!(daemon.sessions(), 0);
}

#[test]
fn a_client_that_was_let_go_with_a_reason_attaches_again_too() {
    let mut daemon = Daemon::start(Settings::default());
    let client = client(&daemon, Duration::from_secs(20));
    let task = client.task("test").expect("task");
    let (mut partition, mut gate) = pair(&task, PartitionOptions::default());
    partition.emit(b"one").expect("emit");
    daemon.detach("the daemon is stopping");
    let error = gate.next().map(drop).expect_err("let go");
    assert!(matches!(&error, Error::Detached { text, .. } if text == "the daemon is stopping"), "{error:?}");
    daemon.kill();
    daemon.revive(Settings::default());
    let (next_partition, next_gate) = pair(&task, PartitionOptions::default());
    transfer(next_partition, next_gate, 10);
    assert!(matches!(partition.finish(), Err(Error::Detached { .. })));
}

#[test]
fn the_flusher_serves_partitions_of_the_next_daemon() {
    let mut daemon = Daemon::start(Settings::default());
    let client = client(&daemon, Duration::from_secs(20));
    let task = client.task("test").expect("task");
    let options = || PartitionOptions {
        buffer_timeout: BufferTimeout::After(Duration::from_millis(1)),
        ..Default::default()
    };
    // One that keeps the thread alive, with records for a daemon that is gone.
    let (mut old, _old_gate) = pair(&task, options());
    old.emit(b"old").expect("emit");
    daemon.kill();
    old.emit(b"older").expect("emit");
    daemon.revive(Settings::default());
    let (mut partition, mut gate) = pair(&task, options());
    for number in 0..20 {
        partition.emit(&record(number, 50)).expect("emit");
        // Nobody but the flusher hands it over.
        assert_eq!(next_record(&mut gate), record(number, 50));
    }
}

#[test]
fn what_a_daemon_says_before_it_closes_is_heard_although_it_read_nothing_any_more() {
    let daemon = Daemon::start(Settings::default());
    // Each time the socket is closed with a request in it that nobody reads, for which the kernel says "reset".
    for _ in 0..20 {
        let task = crate::task(&daemon);
        daemon.detach_unheard("submit.segment is 99");
        let error = task.gate("never", 0, 1, GateOptions::default()).expect_err("let go");
        assert!(
            matches!(&error, Error::Detached { text, .. } if text.contains("submit.segment")),
            "{error:?}"
        );
    }
    // As a daemon that lets nobody in does it. Often, since the client may read before the socket is closed.
    for _ in 0..300 {
        daemon.refuse_unheard("the daemon is stopping");
        let error = Client::connect(daemon.run_dir()).expect_err("let nobody in");
        assert!(
            matches!(&error, Error::Detached { text, .. } if text == "the daemon is stopping"),
            "{error:?}"
        );
    }
}
