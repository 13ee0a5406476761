//! A partition that goes on without consumers that die, and one that does not.

use std::thread;
use std::time::Duration;

use weir_client::{
    BufferTimeout, ConsumerDeath, Error, FailureCode, Finished, Partition, PartitionOptions, Strategy, Task,
};
use weir_ipc::Submission;
use weir_ipc::task_cell::TaskState;

use crate::daemon::{Daemon, Settings};
use crate::{consumer, read_all, record, task};

fn options() -> PartitionOptions {
    PartitionOptions {
        on_consumer_death: ConsumerDeath::ContinueWithout,
        first_subpartition: Some(0),
        buffer_timeout: BufferTimeout::Off,
        ..Default::default()
    }
}

fn partition(task: &Task, consumers: u32) -> Partition {
    task.partition("x", 0, 1, consumers, Strategy::Rebalance, options()).expect("partition")
}

/// Numbers of records that lie in what was submitted for a consumer, if each is in one slice.
fn submitted_records(daemon: &Daemon, of: u32) -> u32 {
    let data = daemon.submissions().into_iter().filter_map(|submission| match submission {
        Submission::Data { subpartition, records, .. } if subpartition == of => Some(records),
        _ => None,
    });
    data.sum()
}

#[test]
fn only_rebalance_may_go_on_without_a_consumer() {
    let daemon = Daemon::start(Settings::default());
    let task = task(&daemon);
    for strategy in [Strategy::Forward, Strategy::Hash] {
        let options =
            PartitionOptions { on_consumer_death: ConsumerDeath::ContinueWithout, ..Default::default() };
        let made = task.partition("x", 0, 2, 2, strategy, options);
        assert!(matches!(made, Err(Error::Option { name: "on_consumer_death", .. })), "{made:?}");
    }
}

#[test]
fn records_go_round_those_that_are_left_and_what_is_lost_is_counted() {
    let daemon = Daemon::start(Settings::default());
    let task = task(&daemon);
    let mut partition = partition(&task, 3);
    let mut gates = [0, 2].map(|index| consumer(&task, index, 3));
    let frame = 4 + 100;
    for number in 0..9 {
        partition.emit(&record(number, 100)).expect("emit");
    }
    partition.flush().expect("flush");
    daemon.await_submissions(3);
    // Two more for each, which are in open segments when one of three is gone; it had taken nothing.
    for number in 9..15 {
        partition.emit(&record(number, 100)).expect("emit");
    }
    daemon.lose_consumer("x", 1, 3 * frame - 1);
    for number in 15..27 {
        partition.emit(&record(number, 100)).expect("emit");
    }
    assert_eq!((partition.lost_consumers(), partition.lost_records()), (1, 5));
    let sender = thread::spawn(move || partition.finish().expect("finish"));
    let read = gates.each_mut().map(read_all);
    assert_eq!(sender.join().expect("sender"), Finished { lost_consumers: 1, lost_records: 5 });
    let before = |of: usize| (0..15).filter(move |number| number % 3 == of);
    let needed = |of: usize, after: usize| -> Vec<Vec<u8>> {
        before(of).chain((15 + after..27).step_by(2)).map(|number| record(number, 100)).collect()
    };
    assert!(read[0] == needed(0, 0), "the first gets every other record from then on");
    assert!(read[1] == needed(2, 1), "and the third the ones between");
    assert_eq!(submitted_records(&daemon, 1), 5, "what was written for the dead one, and no more");
}

#[test]
fn what_a_dead_consumer_had_taken_is_not_lost() {
    let daemon = Daemon::start(Settings::default());
    let task = task(&daemon);
    let mut partition = partition(&task, 2);
    let _gate = consumer(&task, 0, 2);
    for part in 0..3 {
        for number in 0..4 {
            partition.emit(&record(part * 4 + number, 100)).expect("emit");
        }
        partition.flush().expect("flush");
    }
    // Two records of 104 bytes in each of three parts; the second part was taken but for a byte.
    daemon.lose_consumer("x", 1, 4 * 104 - 1);
    assert_eq!((partition.lost_consumers(), partition.lost_records()), (1, 4));
}

#[test]
fn a_record_half_written_for_a_consumer_that_dies_goes_to_another_as_a_whole() {
    // Room for two segments at a time, so that the record waits in its middle.
    let settings = Settings { partition_segments: 8, quota: 1, overdraft: 1, ..Settings::default() };
    let daemon = Daemon::start(settings);
    let task = task(&daemon);
    let mut partition = partition(&task, 2);
    daemon.hold(true);
    let sender = thread::spawn(move || {
        partition.emit(&record(7, 50_000)).expect("emit");
        partition.emit(&record(8, 10)).expect("emit");
        partition.finish().expect("finish")
    });
    daemon.await_task_state(0, TaskState::Hard);
    daemon.lose_consumer("x", 0, 0);
    let mut gate = consumer(&task, 1, 2);
    daemon.hold(false);
    assert!(read_all(&mut gate) == [record(7, 50_000), record(8, 10)], "both records, each whole and once");
    assert_eq!(sender.join().expect("sender"), Finished { lost_consumers: 1, lost_records: 0 });
    assert_eq!(submitted_records(&daemon, 0), 0, "no record ended with the dead one");
}

#[test]
fn every_call_knows_of_a_dead_consumer() {
    let daemon = Daemon::start(Settings::default());
    let task = task(&daemon);
    let mut partition = partition(&task, 2);
    let mut gate = consumer(&task, 0, 2);
    daemon.lose_consumer("x", 1, 0);
    // By its number there is nobody to emit to.
    for result in [
        partition.emit_to(1, b"x"),
        partition.try_emit_to(1, b"x").map(drop),
        partition.emit_event_to(1, b"x", false),
    ] {
        match result {
            Err(Error::Failed { channel: Some(1), failure }) => {
                assert_eq!(failure.code, FailureCode::ConsumerGone);
            }
            other => panic!("{other:?}; needed: consumer 1 is gone"),
        }
    }
    // For all of them means: for those that are left.
    for number in 0..4 {
        assert!(partition.try_emit(&record(number, 10)).expect("emit").is_emitted());
    }
    for _ in 0..20 {
        partition.emit_event(b"event", true).expect("an event for the other");
        loop {
            match gate.next().expect("no failure").expect("no end") {
                weir_client::Item::Event(_) => break,
                weir_client::Item::Record(_) => {}
            }
        }
    }
    partition.wait_available().expect("available");
    partition.flush().expect("flush");
    let sender = thread::spawn(move || partition.finish().expect("finish"));
    assert_eq!(read_all(&mut gate).len(), 4);
    assert_eq!(sender.join().expect("sender"), Finished { lost_consumers: 1, lost_records: 0 });
}

#[test]
fn the_flusher_lets_go_of_a_dead_consumers_segment() {
    let daemon = Daemon::start(Settings::default());
    let task = task(&daemon);
    let buffer_timeout = BufferTimeout::After(Duration::from_millis(1));
    let options = PartitionOptions { buffer_timeout, ..options() };
    let mut partition = task.partition("x", 0, 1, 2, Strategy::Rebalance, options).expect("partition");
    daemon.lose_consumer("x", 0, 0);
    partition.emit(b"one").expect("emit");
    // Consumer 0 was chosen first and was gone; the record is with consumer 1, by the flusher.
    daemon.await_submissions(1);
    assert_eq!((submitted_records(&daemon, 0), submitted_records(&daemon, 1)), (0, 1));
}

#[test]
fn a_consumer_may_die_at_any_moment() {
    let daemon = Daemon::start(Settings { partition_segments: 64, ..Settings::default() });
    let task = task(&daemon);
    for round in 0..300 {
        let name = format!("x{round}");
        let mut partition =
            task.partition(&name, 0, 1, 3, Strategy::Rebalance, options()).expect("partition");
        // Nobody takes anything: it goes on until it has used up its pool or all are gone.
        let sender = thread::spawn(move || {
            loop {
                if let Err(error) = partition.emit(&[7; 1500]) {
                    return error;
                }
            }
        });
        for consumer in 0..3 {
            for _ in 0..round * 7 % 50 {
                std::hint::spin_loop();
            }
            daemon.lose_consumer(&name, consumer, 0);
        }
        let error = sender.join().expect("sender");
        assert_eq!(error.failure().map(|failure| failure.code), Some(FailureCode::ConsumerGone), "{error:?}");
    }
}

#[test]
fn when_the_last_consumer_dies_the_partition_fails() {
    let daemon = Daemon::start(Settings::default());
    let task = task(&daemon);
    let mut partition = partition(&task, 2);
    daemon.lose_consumer("x", 0, 0);
    let sender = thread::spawn(move || {
        loop {
            if let Err(error) = partition.emit(&[7; 1000]) {
                return (error, partition.finish());
            }
        }
    });
    daemon.await_task_state(0, TaskState::Hard);
    daemon.lose_consumer("x", 1, 0);
    let (error, finished) = sender.join().expect("sender");
    for error in [Some(error), finished.err()] {
        match error {
            Some(Error::Failed { channel: None, failure }) => {
                assert_eq!(failure.code, FailureCode::ConsumerGone);
            }
            other => panic!("{other:?}; needed: no consumer is left"),
        }
    }
}

#[test]
fn by_default_a_dead_consumer_fails_the_partition() {
    let daemon = Daemon::start(Settings::default());
    let task = task(&daemon);
    let mut partition =
        task.partition("x", 0, 1, 2, Strategy::Rebalance, PartitionOptions::default()).expect("partition");
    drop(consumer(&task, 1, 2));
    let _gate = consumer(&task, 0, 2);
    loop {
        match partition.emit(&[7; 1000]) {
            Ok(()) => {}
            Err(Error::Failed { channel: None, failure }) => {
                assert_eq!(failure.code, FailureCode::ConsumerGone);
                break;
            }
            Err(error) => panic!("{error:?}; needed: a consumer is gone"),
        }
    }
    assert_eq!(partition.lost_consumers(), 0);
}
