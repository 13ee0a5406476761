//! Futures that are dropped at every point at which they can wait: what they leave behind is nothing.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};

use weir_client::{BufferTimeout, GateOptions, Item, PartitionOptions, Strategy, Task};
use weir_ipc::Submission;
use weir_ipc::task_cell::TaskState;

use super::executor::{Count, Dropped, block_on, poll_times};
use super::{TIGHT, pair_async};
use crate::daemon::{Daemon, Settings};
use crate::{next_record, pair, producer, record, task};

const WHEN: [Dropped; 2] = [Dropped::Pending, Dropped::Woken];

/// Calls `scenario` with every number of polls after which a future is dropped, until it was done before.
fn at_every_poll(mut scenario: impl FnMut(usize, Dropped) -> bool) {
    for when in WHEN {
        let done = (0..50).find(|polls| scenario(*polls, when));
        let done = done.expect("50 polls are enough");
        assert!(done > 0, "a future that is never polled does nothing");
    }
}

/// A partition to nobody is there, and its place taken.
fn forward(task: &Task, exchange: &str) -> weir_client::Partition {
    task.partition(exchange, 0, 1, 1, Strategy::Forward, PartitionOptions::default()).expect("partition")
}

#[test]
fn a_request_that_is_dropped_leaves_nothing_at_the_daemon() {
    let daemon = Daemon::start(Settings::default());
    let task = task(&daemon);
    let client = weir_client::Client::connect(daemon.run_dir()).expect("attach");
    let had = daemon.has();
    let nothing_is_left = |what: &str| {
        // Whatever is asked later comes behind what takes the request back.
        drop(client.task("later").expect("a task"));
        drop(forward(&task, "later"));
        assert_eq!((daemon.has(), daemon.waiting_gates()), (had, vec![]), "{what}");
    };
    at_every_poll(|polls, when| {
        let made = poll_times(client.task_async("more"), polls, when).map(|made| drop(made.expect("a task")));
        nothing_is_left("a task");
        made.is_some()
    });
    at_every_poll(|polls, when| {
        let options = PartitionOptions::default();
        let asked = task.partition_async("x", 0, 1, 1, Strategy::Forward, options);
        let made = poll_times(asked, polls, when).map(|made| drop(made.expect("a partition")));
        nothing_is_left("a partition");
        made.is_some()
    });
    let known = forward(&task, "known");
    let had = daemon.has();
    at_every_poll(|polls, when| {
        let asked = task.gate_async("known", 0, 1, GateOptions::default());
        let made = poll_times(asked, polls, when).is_some_and(|made| made.is_ok());
        assert_eq!(daemon.waiting_gates(), [""; 0]);
        drop(forward(&task, "later"));
        // A gate that is dropped ends its exchange: the partition is still there for the daemon.
        assert_eq!(daemon.has(), had);
        made
    });
    drop(known);
    // With a timeout there is more to wait for: the answer, that it was taken back, and the answer once more.
    let had = daemon.has();
    let timeout = Some(std::time::Duration::from_millis(2));
    at_every_poll(|polls, when| {
        let options = GateOptions { timeout, ..GateOptions::default() };
        let ended = poll_times(task.gate_async("never", 0, 1, options), polls, when);
        drop(forward(&task, "later"));
        assert_eq!((daemon.has(), daemon.waiting_gates()), (had, vec![]));
        ended.is_some_and(|gate| gate.is_err())
    });
}

#[test]
fn a_wait_that_is_dropped_is_not_announced_any_more_and_lets_its_waker_go() {
    let daemon = Daemon::start(TIGHT);
    let task = task(&daemon);
    let (mut partition, mut gate) = pair(&task, PartitionOptions::default());
    daemon.hold(true);
    while partition.try_emit(&[7; 1000]).expect("try").is_emitted() {}
    while poll_times(partition.emit_event_async(b"event", false), 1, Dropped::Pending).is_some() {}
    let mut closing = Some(forward(&task, "closing"));
    let count = Count::new();
    let waker = Waker::from(Arc::clone(&count));
    let mut context = Context::from_waker(&waker);
    // One at a time, or another would be found by the daemon in its stead.
    for round in 0..60 {
        let is_pending = match round % 6 {
            0 => pin!(gate.next_async()).poll(&mut context).is_pending(),
            1 => pin!(partition.emit_async(&[7; 1000])).poll(&mut context).is_pending(),
            2 => pin!(partition.available()).poll(&mut context).is_pending(),
            3 => pin!(partition.emit_event_async(b"event", true)).poll(&mut context).is_pending(),
            4 => pin!(task.gate_async("never", 0, 1, GateOptions::default())).poll(&mut context).is_pending(),
            _ => closing.take().is_none_or(|of| pin!(of.finish_async()).poll(&mut context).is_pending()),
        };
        assert!(is_pending);
        assert_eq!(daemon.take_announced(), 0, "in round {round}");
        // Who has woken it may be busy with that still.
        let began = std::time::Instant::now();
        while Arc::strong_count(&count) > 2 {
            assert!(began.elapsed() < std::time::Duration::from_secs(20), "a waker is left in round {round}");
            std::thread::yield_now();
        }
    }
}

#[test]
fn a_read_that_is_dropped_takes_nothing() {
    let daemon = Daemon::start(Settings::default());
    let task = task(&daemon);
    let options = PartitionOptions { buffer_timeout: BufferTimeout::Off, ..Default::default() };
    let (mut partition, mut gate) = pair(&task, options);
    for number in 0..40 {
        // Before there is anything, and after it was woken.
        assert!(poll_times(gate.next_async(), number % 2, Dropped::Pending).is_none());
        assert_eq!(daemon.task_state(0), Some(TaskState::Busy));
        partition.emit(&record(number, 500)).expect("emit");
        if number % 4 < 2 {
            let count = Count::new();
            let waker = Waker::from(Arc::clone(&count));
            let mut reading = pin!(gate.next_async());
            assert!(reading.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            partition.flush().expect("flush");
            // It could take it now, and is dropped.
            count.await_woken(1);
        } else {
            partition.flush().expect("flush");
        }
        assert_eq!(next_record(&mut gate), record(number, 500));
    }
}

#[test]
fn an_emit_that_is_dropped_before_it_began_wrote_nothing() {
    let daemon = Daemon::start(TIGHT);
    let task = task(&daemon);
    // Records that fit, that need one segment more, and that need as many as may be held.
    for bytes in [100, 4_000, 8_000] {
        let (mut partition, mut gate) = pair(&task, PartitionOptions::default());
        daemon.hold(true);
        let mut sent = 0;
        // At the end of a segment there is room for the beginning of one more, and none for its end.
        while poll_times(partition.emit_async(&record(sent, 1_000)), 1, Dropped::Pending).is_some() {
            sent += 1;
        }
        assert_eq!((partition.abandoned(), sent), (0, 8), "two segments of four records each");
        for polls in 0..3 {
            assert!(
                poll_times(partition.emit_async(&record(99, bytes)), polls.min(1), Dropped::Pending)
                    .is_none()
            );
            assert!(poll_times(partition.available(), polls.min(1), Dropped::Pending).is_none());
        }
        assert_eq!((partition.abandoned(), daemon.task_state(0)), (0, Some(TaskState::Busy)));
        let submitted = daemon.submissions().len();
        daemon.hold(false);
        for number in 0..sent {
            assert_eq!(next_record(&mut gate), record(number, 1_000));
        }
        // The partition is as it was: the next record is the next.
        partition.emit(b"next").and_then(|()| partition.flush()).expect("emit");
        assert_eq!(next_record(&mut gate), b"next");
        assert!(daemon.submissions().len() > submitted);
    }
}

/// Longer than everything that may be held: it is begun, and has to wait in its middle.
const LONG: usize = 5 * 4096;

#[test]
fn a_record_that_was_begun_is_finished_without_another_call() {
    for buffer_timeout in [BufferTimeout::Off, BufferTimeout::default(), BufferTimeout::EachRecord] {
        let daemon = Daemon::start(TIGHT);
        let task = task(&daemon);
        let options = PartitionOptions { buffer_timeout, checksum: true, ..Default::default() };
        let (mut partition, mut gate) = pair(&task, options);
        daemon.hold(true);
        assert!(poll_times(partition.emit_async(&record(1, LONG)), 1, Dropped::Pending).is_none());
        assert_eq!(partition.abandoned(), 1, "with {buffer_timeout:?}");
        daemon.hold(false);
        // Nobody calls the partition.
        assert_eq!(next_record(&mut gate), record(1, LONG));
        partition.emit(b"behind it").and_then(|()| partition.flush()).expect("emit");
        assert_eq!(next_record(&mut gate), b"behind it");
    }
}

#[test]
fn what_comes_after_a_record_that_was_left_in_its_middle_stays_behind_it() {
    let daemon = Daemon::start(TIGHT);
    let task = task(&daemon);
    for what in ["record", "try", "event", "finish", "dropped again"] {
        let (mut partition, mut gate) = pair(&task, PartitionOptions::default());
        daemon.hold(true);
        assert!(poll_times(partition.emit_async(&record(1, LONG)), 1, Dropped::Pending).is_none());
        assert_eq!(partition.abandoned(), 1);
        assert!(!partition.is_available().expect("no failure"));
        assert!(!partition.try_emit(b"").expect("no failure").is_emitted(), "its place is behind the rest");
        let sender = std::thread::spawn({
            let what = what.to_owned();
            move || {
                match &*what {
                    "record" => partition.emit(b"behind").expect("emit"),
                    "try" => {
                        while !partition.try_emit(b"behind").expect("try").is_emitted() {
                            std::thread::yield_now();
                        }
                    }
                    "event" => partition.emit_event(b"behind", false).expect("event"),
                    "dropped again" => {
                        let polled = poll_times(partition.emit_async(&record(2, LONG)), 1, Dropped::Pending);
                        assert!(polled.is_none() && partition.abandoned() == 1, "not begun before the rest");
                    }
                    _ => {}
                }
                partition.finish().expect("finish");
            }
        });
        if what != "try" {
            daemon.await_task_state(0, TaskState::Hard);
        }
        daemon.hold(false);
        assert_eq!(next_record(&mut gate), record(1, LONG));
        match gate.next().expect("no failure") {
            Some(Item::Record(found)) if what == "record" || what == "try" => assert_eq!(&*found, b"behind"),
            Some(Item::Event(event)) if what == "event" => assert_eq!(event.payload, b"behind"),
            None if what == "finish" || what == "dropped again" => {}
            other => panic!("{other:?} with {what}"),
        }
        sender.join().expect("sender");
    }
}

#[test]
fn a_record_in_its_middle_keeps_no_other_consumer_waiting() {
    let daemon = Daemon::start(Settings { partition_segments: 12, ..TIGHT });
    let task = task(&daemon);
    let mut partition = producer(&task, 2, Strategy::Rebalance, PartitionOptions::default());
    let mut gate = crate::consumer(&task, 0, 2);
    assert!(poll_times(partition.emit_to_async(1, &record(1, LONG)), 1, Dropped::Pending).is_none());
    assert_eq!(partition.abandoned(), 1);
    for number in 0..500 {
        block_on(partition.emit_to_async(0, &record(number, 900))).expect("emit");
        partition.flush().expect("flush");
        assert_eq!(next_record(&mut gate), record(number, 900));
    }
    // And the one that comes late gets it.
    let mut late = crate::consumer(&task, 1, 2);
    assert_eq!(next_record(&mut late), record(1, LONG));
}

#[test]
fn what_waits_for_a_flush_stays_although_the_rest_of_a_record_leaves() {
    let daemon = Daemon::start(Settings { partition_segments: 12, ..TIGHT });
    let task = task(&daemon);
    let options = PartitionOptions { buffer_timeout: BufferTimeout::Off, ..Default::default() };
    let mut partition = producer(&task, 2, Strategy::Rebalance, options);
    partition.emit_to(0, b"part").expect("emit");
    assert!(poll_times(partition.emit_to_async(1, &record(1, LONG)), 1, Dropped::Pending).is_none());
    let mut gate = crate::consumer(&task, 1, 2);
    assert_eq!(next_record(&mut gate), record(1, LONG));
    // Waits until the flusher is through.
    assert_eq!(partition.lost_records(), 0);
    let left = daemon.submissions();
    assert!(!left.iter().any(|of| matches!(of, Submission::Data { subpartition: 0, .. })), "{left:?}");
}

#[test]
fn an_event_goes_to_all_consumers_or_to_none() {
    const CONSUMERS: u32 = 3;
    let daemon = Daemon::start(Settings::default());
    let task = task(&daemon);
    let mut partition = producer(&task, CONSUMERS, Strategy::Rebalance, PartitionOptions::default());
    let mut gates: Vec<_> = (0..CONSUMERS).map(|index| crate::consumer(&task, index, CONSUMERS)).collect();
    daemon.hold(true);
    // The last of them takes no more.
    while poll_times(partition.emit_event_to_async(2, b"one", false), 1, Dropped::Pending).is_some() {}
    for priority in [false, true] {
        assert!(poll_times(partition.emit_event_async(b"all", priority), 1, Dropped::Pending).is_none());
        assert!(
            poll_times(partition.emit_event_to_async(2, b"all", priority), 1, Dropped::Pending).is_none()
        );
    }
    assert_eq!((partition.abandoned(), daemon.task_state(0)), (0, Some(TaskState::Busy)));
    daemon.hold(false);
    let finishing = std::thread::spawn(move || partition.finish().expect("finish"));
    for (index, gate) in gates.iter_mut().enumerate() {
        let mut events = 0;
        while let Some(item) = gate.next().expect("no failure") {
            assert!(matches!(&item, Item::Event(event) if event.payload == b"one"), "{item:?}");
            events += 1;
        }
        assert_eq!(events, if index == 2 { 7 } else { 0 });
    }
    finishing.join().expect("finish");
}

/// More consumers than there are places for events: while the daemon stands still, some of them have it.
#[test]
fn an_event_that_some_have_comes_to_all_and_records_stay_behind_it() {
    const CONSUMERS: u32 = 70;
    let settings = Settings { partition_segments: 200, gate_segments: 4, ..TIGHT };
    for priority in [false, true] {
        let daemon = Daemon::start(settings);
        let task = task(&daemon);
        let mut partition = producer(&task, CONSUMERS, Strategy::Rebalance, PartitionOptions::default());
        let mut gates: Vec<_> =
            (0..CONSUMERS).map(|index| crate::consumer(&task, index, CONSUMERS)).collect();
        // A segment is open for each of them, into which a record would fit.
        (0..CONSUMERS).for_each(|index| partition.emit_to(index, b"before").expect("emit"));
        let still = daemon.pause();
        assert!(poll_times(partition.emit_event_async(b"event", priority), 1, Dropped::Pending).is_none());
        assert_eq!(partition.abandoned(), 1);
        let is_emitted = partition.try_emit_to(CONSUMERS - 1, b"after").expect("try").is_emitted();
        assert_eq!(is_emitted, priority, "an ordinary event comes before the records after it");
        drop(still);
        block_on(partition.emit_to_async(CONSUMERS - 1, b"after")).expect("emit");
        partition.flush().expect("flush");
        for (index, gate) in (0..).zip(&mut gates) {
            let mut expected = vec!["before".to_owned(), "event".to_owned()];
            if index == CONSUMERS - 1 {
                expected.push("after".to_owned());
            }
            let mut found = Vec::new();
            while found.len() < expected.len() {
                match gate.next().expect("no failure") {
                    Some(Item::Record(record)) => found.push(String::from_utf8_lossy(&record).into_owned()),
                    Some(Item::Event(event)) => {
                        found.push(String::from_utf8_lossy(&event.payload).into_owned())
                    }
                    None => panic!("the partition is not finished"),
                }
            }
            if priority {
                // It may overtake what it can.
                found.sort_unstable_by_key(|what| expected.iter().position(|of| of == what));
            }
            assert_eq!(found, expected, "consumer {index}");
        }
    }
}

#[test]
fn a_priority_event_that_some_have_keeps_no_record_from_a_new_segment() {
    const CONSUMERS: u32 = 70;
    let daemon = Daemon::start(Settings { partition_segments: 200, gate_segments: 4, ..TIGHT });
    let task = task(&daemon);
    let options = PartitionOptions { adaptive: false, ..Default::default() };
    let mut partition = producer(&task, CONSUMERS, Strategy::Rebalance, options);
    let still = daemon.pause();
    assert!(poll_times(partition.emit_event_async(b"event", true), 1, Dropped::Pending).is_none());
    assert_eq!(partition.abandoned(), 1);
    // The last of them has not got it, no segment is open for it, and each record needs one of its own.
    assert!(partition.is_available().expect("no failure"), "nobody waits for what overtakes");
    for number in 0..2 {
        assert!(partition.try_emit_to(CONSUMERS - 1, &record(number, 4_000)).expect("try").is_emitted());
    }
    drop(still);
    partition.flush().expect("flush");
    let mut gate = crate::consumer(&task, CONSUMERS - 1, CONSUMERS);
    let (mut records, mut events) = (0, 0);
    while records < 2 || events < 1 {
        match gate.next().expect("no failure") {
            Some(Item::Record(found)) => {
                assert_eq!(*found, record(records, 4_000));
                records += 1;
            }
            Some(Item::Event(event)) => {
                assert_eq!(event.payload, b"event");
                events += 1;
            }
            None => panic!("the partition is not finished"),
        }
    }
}

#[test]
fn a_partition_whose_finish_is_dropped_is_gone_and_its_place_is_free() {
    let daemon = Daemon::start(Settings::default());
    let task = task(&daemon);
    let had = daemon.has();
    at_every_poll(|polls, when| {
        let (mut partition, mut gate) = pair(&task, PartitionOptions::default());
        partition.emit(b"one").expect("emit");
        let finished = poll_times(partition.finish_async(), polls, when);
        if finished.is_some() {
            assert_eq!(next_record(&mut gate), b"one");
            assert_eq!(gate.next().expect("a good end"), None);
        }
        drop(gate);
        assert_eq!(daemon.has(), had);
        finished.is_some()
    });
}

#[test]
fn a_record_whose_consumer_dies_in_its_middle_counts_as_lost() {
    let daemon = Daemon::start(Settings { partition_segments: 12, ..TIGHT });
    let task = task(&daemon);
    let options = PartitionOptions {
        on_consumer_death: weir_client::ConsumerDeath::ContinueWithout,
        buffer_timeout: BufferTimeout::Off,
        ..Default::default()
    };
    let mut partition = producer(&task, 2, Strategy::Rebalance, options);
    assert!(poll_times(partition.emit_to_async(1, &record(1, LONG)), 1, Dropped::Pending).is_none());
    daemon.lose_consumer("x", 1, 0);
    let mut gate = crate::consumer(&task, 0, 2);
    let finishing = std::thread::spawn(move || partition.finish().expect("finish"));
    assert_eq!(gate.next().expect("a good end"), None);
    let finished = finishing.join().expect("finish");
    assert_eq!((finished.lost_consumers, finished.lost_records), (1, 1));
}

#[test]
fn a_read_and_an_emit_that_are_dropped_leave_nobody_behind_who_leads() {
    let daemon = Daemon::start(TIGHT);
    let task = task(&daemon);
    // A future leads nobody, but the thread that leads for it has to stop when it is gone: a thread that waits then gets
    // its own wake-ups.
    for round in 0..200 {
        let (mut partition, mut gate) = block_on(pair_async(&task, "x", PartitionOptions::default()));
        assert!(poll_times(gate.next_async(), 1, Dropped::Pending).is_none());
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| next_record(&mut gate));
            partition.emit(&record(round, 10)).and_then(|()| partition.flush()).expect("emit");
            assert_eq!(reader.join().expect("reader"), record(round, 10));
        });
    }
}
