//! What waits, for what, and that it goes on.

use std::thread;

use weir_client::{BufferTimeout, Client, GateOptions, PartitionOptions, Strategy, Task};
use weir_ipc::Submission;
use weir_ipc::task_cell::TaskState;

use crate::daemon::{Daemon, Settings};
use crate::{consumer, next_record, pair, producer, read_all, record, task};

const RECORDS: usize = 2_000;

/// Segments that were submitted to their end.
fn closed_segments(daemon: &Daemon) -> usize {
    let is_last = |submission: &&Submission| matches!(submission, Submission::Data { last: true, .. });
    daemon.submissions().iter().filter(is_last).count()
}

#[test]
fn a_full_partition_blocks_emit_and_goes_on_when_its_consumer_does() {
    let daemon = Daemon::start(Settings::default());
    let task = task(&daemon);
    let (mut partition, mut gate) = pair(&task, PartitionOptions::default());
    daemon.hold(true);
    let sender = thread::spawn(move || {
        for number in 0..RECORDS {
            partition.emit(&record(number, 100)).expect("emit");
        }
        let waits = partition.waits();
        partition.finish().expect("finish");
        waits
    });
    daemon.await_task_state(0, TaskState::Hard);
    assert_eq!(closed_segments(&daemon), 10, "the quota, and no overdraft to begin records with");
    daemon.hold(false);
    let expected: Vec<_> = (0..RECORDS).map(|number| record(number, 100)).collect();
    assert_eq!(read_all(&mut gate), expected);
    let waits = sender.join().expect("sender");
    assert!(waits.quota_ns > 0, "the subpartition was at its quota: {waits:?}");
    assert_eq!(daemon.task_state(0), Some(TaskState::Busy));
}

#[test]
fn without_quota_it_is_the_pool_that_lacks() {
    let daemon = Daemon::start(Settings::default());
    let task = task(&daemon);
    let (mut partition, mut gate) = pair(&task, PartitionOptions { quota: Some(100), ..Default::default() });
    daemon.hold(true);
    let sender = thread::spawn(move || {
        for number in 0..RECORDS {
            partition.emit(&record(number, 100)).expect("emit");
        }
        let waits = partition.waits();
        partition.finish().expect("finish");
        waits
    });
    daemon.await_task_state(0, TaskState::Hard);
    daemon.hold(false);
    assert_eq!(read_all(&mut gate).len(), RECORDS);
    let waits = sender.join().expect("sender");
    assert!(waits.segment_ns > 0 && waits.quota_ns == 0, "{waits:?}");
}

#[test]
fn a_slow_consumer_holds_its_producer_and_loses_nothing() {
    let daemon = Daemon::start(Settings { gate_segments: 2, ..Default::default() });
    let task = task(&daemon);
    let (mut partition, mut gate) = pair(&task, PartitionOptions { quota: Some(1), ..Default::default() });
    let sender = thread::spawn(move || {
        for number in 0..RECORDS {
            partition.emit(&record(number, 1000)).expect("emit");
        }
        partition.finish().expect("finish");
    });
    for number in 0..RECORDS {
        assert_eq!(next_record(&mut gate), record(number, 1000));
        if number % 50 == 0 {
            thread::yield_now();
        }
    }
    assert_eq!(gate.next().expect("next"), None);
    sender.join().expect("sender");
}

#[test]
fn a_gate_that_waits_is_idle_and_busy_again_afterwards() {
    let daemon = Daemon::start(Settings::default());
    let task = task(&daemon);
    let (mut partition, mut gate) = pair(&task, PartitionOptions::default());
    let reader = thread::spawn(move || (next_record(&mut gate), gate));
    daemon.await_task_state(0, TaskState::Idle);
    partition.emit(b"one").expect("emit");
    partition.flush().expect("flush");
    let (read, _gate) = reader.join().expect("reader");
    assert_eq!(read, b"one");
    assert_eq!(daemon.task_state(0), Some(TaskState::Busy));
}

#[test]
fn try_emit_says_no_instead_of_waiting_and_writes_nothing_then() {
    let daemon = Daemon::start(Settings::default());
    let task = task(&daemon);
    let (mut partition, mut gate) = pair(&task, PartitionOptions::default());
    daemon.hold(true);
    let mut sent = Vec::new();
    while partition.try_emit(&record(sent.len(), 1000)).expect("try").is_emitted() {
        sent.push(record(sent.len(), 1000));
    }
    assert!(sent.len() > 30, "10 segments of 4096 hold {}", sent.len());
    assert!(!partition.try_emit(b"x").expect("try").is_emitted());
    assert!(!partition.is_available().expect("available"));
    daemon.hold(false);
    for expected in &sent {
        assert_eq!(&next_record(&mut gate), expected);
    }
    partition.wait_available().expect("available");
    assert!(partition.try_emit(b"after").expect("try").is_emitted());
    let sender = thread::spawn(move || partition.finish().expect("finish"));
    assert_eq!(read_all(&mut gate), [b"after"]);
    sender.join().expect("sender");
}

#[test]
fn waiting_for_availability_is_backpressure_that_can_still_react() {
    let daemon = Daemon::start(Settings::default());
    let task = task(&daemon);
    let (mut partition, mut gate) = pair(&task, PartitionOptions::default());
    daemon.hold(true);
    while partition.try_emit(&[7; 1000]).expect("try").is_emitted() {}
    let waiter = thread::spawn(move || {
        partition.wait_available().expect("available");
        partition.emit(b"last").expect("emit");
        partition.finish().expect("finish");
    });
    daemon.await_task_state(0, TaskState::Soft);
    daemon.hold(false);
    assert_eq!(read_all(&mut gate).last().map(Vec::as_slice), Some(&b"last"[..]));
    waiter.join().expect("waiter");
}

#[test]
fn overdraft_finishes_a_record_that_was_begun_and_begins_none() {
    let daemon = Daemon::start(Settings::default());
    let task = task(&daemon);
    let options = PartitionOptions { quota: Some(2), overdraft: Some(5), ..Default::default() };
    let mut partition = producer(&task, 1, Strategy::Forward, options);
    daemon.hold(true);
    // 5 segments at a quota of 2.
    assert!(partition.try_emit(&[7; 5 * 4096 - 100]).expect("try").is_emitted());
    assert!(partition.try_emit(&[7; 50]).expect("what fits into the open segment").is_emitted());
    assert!(!partition.try_emit(&[7; 100]).expect("try").is_emitted());
}

#[test]
fn a_consumer_that_is_not_there_stops_its_own_subpartition_only() {
    let daemon = Daemon::start(Settings::default());
    let task = task(&daemon);
    let mut partition = producer(&task, 2, Strategy::Rebalance, PartitionOptions::default());
    let mut gate = consumer(&task, 0, 2);
    while partition.try_emit_to(1, &[7; 1000]).expect("try").is_emitted() {}
    let sender = thread::spawn(move || {
        for number in 0..RECORDS {
            partition.emit_to(0, &record(number, 1000)).expect("emit");
        }
        partition.flush().expect("flush");
        partition
    });
    for number in 0..RECORDS {
        assert_eq!(next_record(&mut gate), record(number, 1000));
    }
    let mut partition = sender.join().expect("sender");
    assert!(!partition.try_emit_to(1, &[7; 1000]).expect("try").is_emitted());
}

#[test]
fn a_gate_waits_for_its_first_producer_and_others_are_answered_meanwhile() {
    let daemon = Daemon::start(Settings::default());
    let task = task(&daemon);
    let early = task.clone();
    let reader = thread::spawn(move || {
        let mut gate = consumer(&early, 0, 1);
        assert_eq!(gate.shape().strategy, Strategy::Forward);
        read_all(&mut gate)
    });
    let other = task.partition("y", 0, 1, 1, Strategy::Forward, PartitionOptions::default()).expect("other");
    let mut partition = producer(&task, 1, Strategy::Forward, PartitionOptions::default());
    partition.emit(b"one").expect("emit");
    partition.finish().expect("finish");
    assert_eq!(reader.join().expect("reader"), [b"one"]);
    drop(other);
}

#[test]
fn finish_returns_only_when_everything_has_arrived() {
    let daemon = Daemon::start(Settings::default());
    let task = task(&daemon);
    let (mut partition, gate) = pair(&task, PartitionOptions::default());
    partition.emit(b"one").expect("emit");
    daemon.hold(true);
    let sender = thread::spawn(move || partition.finish().expect("finish"));
    daemon.await_task_state(0, TaskState::Hard);
    assert!(!sender.is_finished());
    daemon.hold(false);
    sender.join().expect("sender");
    drop(gate);
}

#[test]
fn one_begun_segment_of_each_sibling_is_no_deadlock_with_the_timeout_off() {
    let settings = Settings { partition_segments: 4 + 1 + 5, ..Default::default() };
    let daemon = Daemon::start(settings);
    let task = task(&daemon);
    let options = PartitionOptions { buffer_timeout: BufferTimeout::Off, ..Default::default() };
    let mut partition = producer(&task, 4, Strategy::Rebalance, options);
    let mut gate = consumer(&task, 3, 4);
    for sibling in 0..3 {
        partition.emit_to(sibling, &[7; 100]).expect("emit");
    }
    let sender = thread::spawn(move || {
        for number in 0..RECORDS {
            partition.emit_to(3, &record(number, 1000)).expect("emit");
        }
        partition.flush().expect("flush");
        partition
    });
    for number in 0..RECORDS {
        assert_eq!(next_record(&mut gate), record(number, 1000));
    }
    sender.join().expect("sender");
}

#[test]
fn try_emit_gives_up_a_segment_that_is_not_full_when_there_is_no_other() {
    let settings = Settings { partition_segments: 4 + 1 + 5, ..Default::default() };
    let daemon = Daemon::start(settings);
    let task = task(&daemon);
    let options = PartitionOptions { buffer_timeout: BufferTimeout::Off, ..Default::default() };
    let mut partition = producer(&task, 4, Strategy::Rebalance, options);
    let mut gate = consumer(&task, 3, 4);
    // One sibling has the only segment that may move, and no consumer.
    while partition.try_emit_to(0, &[7; 1000]).expect("try").is_emitted() {}
    let sender = thread::spawn(move || {
        for number in 0..RECORDS {
            while !partition.try_emit_to(3, &record(number, 1000)).expect("try").is_emitted() {
                thread::yield_now();
            }
        }
        partition.flush().expect("flush");
        partition
    });
    for number in 0..RECORDS {
        assert_eq!(next_record(&mut gate), record(number, 1000));
    }
    sender.join().expect("sender");
}

#[test]
fn a_gate_tells_of_what_it_gave_back_before_it_waits() {
    // With one segment the daemon has nothing to deliver in until it is told.
    let daemon = Daemon::start(Settings { gate_segments: 1, ..Default::default() });
    let task = task(&daemon);
    let options = PartitionOptions { buffer_timeout: BufferTimeout::EachRecord, ..Default::default() };
    let (mut partition, mut gate) = pair(&task, options);
    let sender = thread::spawn(move || {
        for number in 0..RECORDS {
            partition.emit(&record(number, 3)).expect("emit");
        }
        partition.finish().expect("finish");
    });
    for number in 0..RECORDS {
        assert_eq!(next_record(&mut gate), record(number, 3));
    }
    sender.join().expect("sender");
}

#[test]
fn a_thread_that_has_waited_hands_the_wake_ups_on() {
    let daemon = Daemon::start(Settings::default());
    let client = Client::connect(daemon.run_dir()).expect("attach");
    let [first, second] = ["first", "second"].map(|name| client.task(name).expect("task"));
    let other = task(&daemon);
    let [mut to_first, mut to_second] = ["x", "y"].map(|exchange| {
        other.partition(exchange, 0, 1, 1, Strategy::Forward, PartitionOptions::default()).expect("partition")
    });
    let read_one = |task: &Task, exchange| {
        let mut gate = task.gate(exchange, 0, 1, GateOptions::default()).expect("gate");
        thread::spawn(move || (next_record(&mut gate), gate))
    };
    // The first to wait takes the wake-ups for both.
    let first = read_one(&first, "x");
    daemon.await_task_state(0, TaskState::Idle);
    let second = read_one(&second, "y");
    daemon.await_task_state(1, TaskState::Idle);
    to_first.emit(b"one").expect("emit");
    to_first.flush().expect("flush");
    let (read, _first_gate) = first.join().expect("first");
    assert_eq!(read, b"one");
    // It waits no more, and nobody else of its client comes to wait.
    to_second.emit(b"two").expect("emit");
    to_second.flush().expect("flush");
    let (read, _second_gate) = second.join().expect("second");
    assert_eq!(read, b"two");
}
