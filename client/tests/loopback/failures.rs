//! Every way to end before the end, and that no call hangs on it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use weir_client::{Client, Error, FailureCode, GateOptions, PartitionOptions, Strategy};
use weir_ipc::task_cell::TaskState;

use crate::daemon::{Daemon, Settings};
use crate::{consumer, next_record, pair, producer, read_all, record, task};

/// Longest wait for what should come at once.
const PATIENCE: Duration = Duration::from_secs(20);

#[track_caller]
fn assert_failed<T: std::fmt::Debug>(result: Result<T, Error>, channel: Option<u32>, code: FailureCode) {
    match result {
        Err(Error::Failed { channel: found, ref failure }) if found == channel && failure.code == code => {}
        other => panic!("{other:?}; needed: channel {channel:?} failed with {code}"),
    }
}

/// Fills a partition until it waits, and says how that ended.
fn emit_until_error(partition: &mut weir_client::Partition) -> Error {
    loop {
        if let Err(error) = partition.emit(&[7; 1000]) {
            return error;
        }
    }
}

#[test]
fn a_daemon_that_is_not_there_is_named_with_its_path() {
    let directory = tempfile::tempdir().expect("directory");
    let error = Client::connect(directory.path()).expect_err("no daemon");
    let text = error.to_string();
    assert!(matches!(error, Error::DaemonUnreachable { .. }) && error.is_unattached(), "{error:?}");
    assert!(text.contains("attach.sock") && text.contains("weir daemon --run-dir"), "{text}");
}

#[test]
fn a_refusal_carries_the_daemons_words_and_harms_nobody() {
    let daemon = Daemon::start(Settings::default());
    let task = task(&daemon);
    let refused = task.partition("x", 3, 2, 1, Strategy::Rebalance, PartitionOptions::default());
    match refused {
        Err(Error::Refused { code, text }) => {
            assert_eq!(
                (code.as_str(), text.as_str()),
                ("index out of range", "producer is 3; needed: less than 2")
            );
        }
        other => panic!("{other:?}; needed: a refusal"),
    }
    let (mut partition, mut gate) = pair(&task, PartitionOptions::default());
    partition.emit(b"one").expect("emit");
    assert_eq!(next_record(&mut gate), b"one");
}

#[test]
fn names_and_options_are_checked_before_anything_is_asked() {
    let daemon = Daemon::start(Settings::default());
    let task = task(&daemon);
    let options = PartitionOptions::default;
    let name = task.partition("a b", 0, 1, 1, Strategy::Forward, options());
    assert!(matches!(name, Err(Error::Name { ref found, .. }) if found == "a b"), "{name:?}");
    let first = PartitionOptions { first_subpartition: Some(2), ..options() };
    let first = task.partition("x", 0, 1, 2, Strategy::Rebalance, first);
    assert!(matches!(first, Err(Error::Option { name: "first_subpartition", .. })), "{first:?}");
    let groups = PartitionOptions { max_parallelism: Some(1), ..options() };
    let groups = task.partition("x", 0, 1, 2, Strategy::Hash, groups);
    assert!(matches!(groups, Err(Error::Option { name: "max_parallelism", .. })), "{groups:?}");
}

#[test]
fn a_failed_partition_ends_a_blocked_emit_and_every_later_call() {
    let daemon = Daemon::start(Settings::default());
    let task = task(&daemon);
    let mut partition = producer(&task, 1, Strategy::Forward, PartitionOptions::default());
    let sender = thread::spawn(move || (emit_until_error(&mut partition), partition));
    daemon.await_task_state(0, TaskState::Hard);
    daemon.fail_partition("x", FailureCode::LinkLost as u16, "the link to b broke");
    let (error, mut partition) = sender.join().expect("sender");
    assert_eq!(error.to_string(), "the partition failed: link lost: the link to b broke");
    assert_failed(Err::<(), _>(error), None, FailureCode::LinkLost);
    assert_failed(partition.emit(&[7; 10_000]), None, FailureCode::LinkLost);
    assert_failed(partition.flush(), None, FailureCode::LinkLost);
    assert_failed(partition.emit_event(b"x", false), None, FailureCode::LinkLost);
    assert_failed(partition.finish(), None, FailureCode::LinkLost);
}

#[test]
fn a_failed_channel_is_told_once_and_the_others_are_read_on() {
    let daemon = Daemon::start(Settings::default());
    let task = task(&daemon);
    let mut partitions: Vec<_> = (0..2)
        .map(|index| {
            task.partition("x", index, 2, 1, Strategy::Rebalance, PartitionOptions::default())
                .expect("partition")
        })
        .collect();
    let mut gate = consumer(&task, 0, 1);
    daemon.fail_channel("x", 1, FailureCode::LinkLost as u16, "the link to b broke");
    assert_failed(gate.next(), Some(1), FailureCode::LinkLost);
    let mut good = partitions.remove(0);
    good.emit(b"one").expect("emit");
    good.flush().expect("flush");
    assert_eq!(next_record(&mut gate), b"one");
    let sender = thread::spawn(move || good.finish().expect("finish"));
    // No good end: what the failed channel still had is missing.
    assert_failed(gate.next(), Some(1), FailureCode::LinkLost);
    assert_failed(gate.next(), Some(1), FailureCode::LinkLost);
    sender.join().expect("sender");
}

#[test]
fn a_partition_that_is_dropped_is_a_producer_gone_after_what_had_left() {
    let daemon = Daemon::start(Settings::default());
    let task = task(&daemon);
    let (mut partition, mut gate) = pair(&task, PartitionOptions::default());
    partition.emit(b"one").expect("emit");
    partition.flush().expect("flush");
    drop(partition);
    assert_eq!(next_record(&mut gate), b"one");
    assert_failed(gate.next(), Some(0), FailureCode::ProducerGone);
}

#[test]
fn a_client_that_is_gone_is_a_producer_gone_too() {
    let daemon = Daemon::start(Settings::default());
    let (producing, consuming) = (task(&daemon), task(&daemon));
    let partition = producer(&producing, 1, Strategy::Forward, PartitionOptions::default());
    let mut gate = consumer(&consuming, 0, 1);
    drop((partition, producing));
    assert_failed(gate.next(), Some(0), FailureCode::ProducerGone);
}

#[test]
fn a_gate_that_is_dropped_fails_its_producers() {
    let daemon = Daemon::start(Settings::default());
    let task = task(&daemon);
    let (mut partition, gate) = pair(&task, PartitionOptions::default());
    drop(gate);
    let error = emit_until_error(&mut partition);
    assert_failed(Err::<(), _>(error), None, FailureCode::ConsumerGone);
}

#[test]
fn a_daemon_that_dies_ends_every_wait_with_a_typed_error() {
    let mut daemon = Daemon::start(Settings::default());
    let task = task(&daemon);
    let (mut blocked, mut gate) = pair(&task, PartitionOptions::default());
    let partition = |name| task.partition(name, 0, 1, 1, Strategy::Forward, PartitionOptions::default());
    let (finishing, mut events) = (partition("y").expect("y"), partition("z").expect("z"));
    daemon.hold(true);
    let others = task.clone();
    let waits = [
        thread::spawn(move || emit_until_error(&mut blocked)),
        thread::spawn(move || gate.next().expect_err("no record comes")),
        thread::spawn(move || finishing.finish().expect_err("no end comes")),
        thread::spawn(move || {
            loop {
                if let Err(error) = events.emit_event(b"event", false) {
                    return error;
                }
            }
        }),
        thread::spawn(move || {
            others.gate("never", 0, 1, GateOptions::default()).expect_err("no producer comes")
        }),
    ];
    daemon.await_task_state(0, TaskState::Hard);
    daemon.await_gate("never");
    daemon.kill();
    for wait in waits {
        let error = wait.join().expect("a thread that waited");
        assert!(matches!(error, Error::DaemonGone { .. }) && error.is_unattached(), "{error:?}");
    }
}

#[test]
fn a_look_at_the_attachment_waits_for_nothing_and_finds_its_end() {
    let mut daemon = Daemon::start(Settings::default());
    let client = Client::connect(daemon.run_dir()).expect("attach");
    let task = client.task("test").expect("task");
    client.check().and_then(|()| task.check()).expect("the daemon is there");
    daemon.kill();
    for _ in 0..2 {
        let error = client.check().expect_err("no daemon");
        assert!(matches!(error, Error::DaemonGone { .. }), "{error:?}");
        assert!(task.check().is_err_and(|error| error.is_unattached()));
    }
    let daemon = Daemon::start(Settings::default());
    let task = crate::task(&daemon);
    daemon.detach("submit.segment is 99; needed: less than 24");
    let error = loop {
        match task.check() {
            Ok(()) => thread::yield_now(),
            Err(error) => break error,
        }
    };
    assert!(matches!(&error, Error::Detached { text, .. } if text.contains("submit.segment")), "{error:?}");
}

#[test]
fn looks_at_the_attachment_take_no_wake_up_from_threads_that_wait() {
    let daemon = Daemon::start(Settings::default());
    let task = task(&daemon);
    let (mut partition, mut gate) = pair(&task, PartitionOptions::default());
    let ((go, goes), (taken, takes)) = (mpsc::channel(), mpsc::channel());
    let reader = thread::spawn(move || {
        while goes.recv().is_ok() {
            taken.send(gate.next().expect("no failure").is_some()).expect("the test goes on");
        }
    });
    for number in 0..200 {
        // The reader goes to sleep while another thread looks.
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    task.check().expect("the daemon is there");
                }
            });
            go.send(()).expect("the reader goes on");
            daemon.await_task_state(0, TaskState::Idle);
            is_over.store(true, Ordering::Relaxed);
        });
        // Nobody looks any more: it must be woken without that.
        partition.emit(&record(number, 100)).expect("emit");
        partition.flush().expect("flush");
        assert_eq!(takes.recv_timeout(PATIENCE), Ok(true));
    }
    drop(go);
    reader.join().expect("reader");
}

#[test]
fn a_daemon_that_detaches_says_why() {
    let daemon = Daemon::start(Settings::default());
    let task = task(&daemon);
    let (partition, mut gate) = pair(&task, PartitionOptions::default());
    let reader = thread::spawn(move || gate.next().expect_err("no record comes"));
    daemon.await_task_state(0, TaskState::Idle);
    daemon.detach("submit.segment is 99; needed: less than 24");
    let error = reader.join().expect("reader");
    assert!(matches!(&error, Error::Detached { text, .. } if text.contains("submit.segment")), "{error:?}");
    let error = partition.finish().expect_err("detached");
    assert!(matches!(error, Error::Detached { .. }), "{error:?}");
}

#[test]
fn a_length_over_the_limit_breaks_its_channel_off_and_the_rest_is_given_back() {
    let daemon = Daemon::start(Settings::default());
    let task = task(&daemon);
    let mut first =
        task.partition("x", 0, 2, 1, Strategy::Rebalance, PartitionOptions::default()).expect("first");
    let mut second =
        task.partition("x", 1, 2, 1, Strategy::Rebalance, PartitionOptions::default()).expect("second");
    let mut gate = consumer(&task, 0, 1);
    daemon.inject("x", 0, &65_537_u32.to_le_bytes());
    assert_failed(gate.next(), Some(0), FailureCode::RecordTooLarge);
    // The broken channel must not keep its segments, or its producer and the gate would stand still.
    let senders = [
        thread::spawn(move || {
            (0..500).for_each(|_| first.emit(&[7; 1000]).expect("emit"));
            first.finish().expect("finish");
        }),
        thread::spawn(move || {
            (0..500).for_each(|number| second.emit(&record(number, 1000)).expect("emit"));
            second.finish().expect("finish");
        }),
    ];
    for number in 0..500 {
        assert_eq!(next_record(&mut gate), record(number, 1000));
    }
    assert_failed(gate.next(), Some(0), FailureCode::RecordTooLarge);
    senders.into_iter().for_each(|sender| sender.join().expect("sender"));
}

#[test]
fn a_checksum_that_does_not_match_breaks_its_channel_off() {
    let daemon = Daemon::start(Settings::default());
    let task = task(&daemon);
    let (partition, mut gate) = pair(&task, PartitionOptions { checksum: true, ..Default::default() });
    assert!(gate.shape().checksum);
    let mut bytes = 3_u32.to_le_bytes().to_vec();
    bytes.extend_from_slice(b"abc\0\0\0\0");
    daemon.inject("x", 0, &bytes);
    assert_failed(gate.next(), Some(0), FailureCode::Checksum);
    drop(partition);
}

#[test]
fn an_end_inside_a_record_is_a_failure() {
    let daemon = Daemon::start(Settings::default());
    let task = task(&daemon);
    let (partition, mut gate) = pair(&task, PartitionOptions::default());
    daemon.inject("x", 0, &[5, 0]);
    let sender = thread::spawn(move || partition.finish().expect("finish"));
    assert_failed(gate.next(), Some(0), FailureCode::Protocol);
    sender.join().expect("sender");
}

#[test]
fn a_channel_that_fails_inside_a_record_lets_those_go_on_that_wait_for_its_memory() {
    let daemon = Daemon::start(Settings::default());
    let task = task(&daemon);
    let [broken, mut good] = [0, 1].map(|index| {
        task.partition("x", index, 2, 1, Strategy::Rebalance, PartitionOptions::default()).expect("partition")
    });
    let options = GateOptions { spanning_bytes_max: Some(1), ..Default::default() };
    let mut gate = task.gate("x", 0, 1, options).expect("gate");
    let mut begun = 6_000_u32.to_le_bytes().to_vec();
    begun.resize(4_000, 7);
    daemon.inject("x", 0, &begun);
    good.emit(&record(1, 6_000)).expect("emit");
    good.flush().expect("flush");
    daemon.await_submissions(2);
    daemon.fail_channel("x", 0, FailureCode::LinkLost as u16, "the link to b broke");
    assert_failed(gate.next(), Some(0), FailureCode::LinkLost);
    assert_eq!(next_record(&mut gate), record(1, 6_000));
    drop(broken);
}

#[test]
fn a_flush_after_the_owner_left_is_harmless() {
    let daemon = Daemon::start(Settings::default());
    let task = task(&daemon);
    for _ in 0..20 {
        let mut partition = producer(
            &task,
            1,
            Strategy::Forward,
            PartitionOptions { buffer_timeout: Duration::from_micros(50).into(), ..Default::default() },
        );
        partition.emit(b"one").expect("emit");
    }
    let (mut partition, mut gate) = pair(&task, PartitionOptions::default());
    partition.emit(b"two").expect("emit");
    let sender = thread::spawn(move || partition.finish().expect("finish"));
    assert_eq!(read_all(&mut gate), [b"two"]);
    sender.join().expect("sender");
}
