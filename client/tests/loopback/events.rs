//! Events stay in line, unless they have priority.

use std::thread;

use weir_client::{BufferTimeout, Client, Error, Event, Item, PartitionOptions, Strategy};
use weir_ipc::task_cell::TaskState;

use crate::daemon::{Daemon, Settings};
use crate::{consumer, next_record, pair, producer, task};

fn next_event(gate: &mut weir_client::Gate) -> Event {
    match gate.next() {
        Ok(Some(Item::Event(event))) => event,
        other => panic!("{other:?}; needed: an event"),
    }
}

fn event(payload: &[u8], priority: bool) -> Event {
    Event { channel: 0, payload: payload.into(), priority }
}

#[test]
fn events_stay_behind_the_records_before_them() {
    let daemon = Daemon::start(Settings::default());
    let task = task(&daemon);
    let options = PartitionOptions { buffer_timeout: BufferTimeout::Off, ..Default::default() };
    let (mut partition, mut gate) = pair(&task, options);
    partition.emit(b"one").expect("emit");
    partition.emit_event(b"first", false).expect("event");
    partition.emit_event(b"", false).expect("event");
    partition.emit(b"two").expect("emit");
    partition.emit_event(b"third", false).expect("event");
    assert_eq!(next_record(&mut gate), b"one");
    assert_eq!(next_event(&mut gate), event(b"first", false));
    assert_eq!(next_event(&mut gate), event(b"", false));
    assert_eq!(next_record(&mut gate), b"two");
    assert_eq!(next_event(&mut gate), event(b"third", false));
}

#[test]
fn priority_events_come_before_records_that_wait() {
    let daemon = Daemon::start(Settings::default());
    let task = task(&daemon);
    let (mut partition, mut gate) = pair(&task, PartitionOptions::default());
    daemon.hold(true);
    for number in 0..3 {
        partition.emit(&[number]).expect("emit");
        partition.flush().expect("flush");
    }
    partition.emit_event(b"in line", false).expect("event");
    partition.emit_event(b"urgent", true).expect("event");
    daemon.hold(false);
    // Before any of it is read, all of it was delivered.
    daemon.await_submissions(5);
    assert_eq!(next_event(&mut gate), event(b"urgent", true));
    for number in 0..3 {
        assert_eq!(next_record(&mut gate), [number]);
    }
    assert_eq!(next_event(&mut gate), event(b"in line", false));
}

#[test]
fn an_event_goes_to_every_consumer() {
    let daemon = Daemon::start(Settings::default());
    let task = task(&daemon);
    let mut partition = producer(&task, 3, Strategy::Rebalance, PartitionOptions::default());
    partition.emit_event(b"all", false).expect("event");
    partition.emit_event_to(1, b"one", false).expect("event");
    let mut gates: Vec<_> = (0..3).map(|index| consumer(&task, index, 3)).collect();
    for gate in &mut gates {
        assert_eq!(next_event(gate), event(b"all", false));
    }
    assert_eq!(next_event(&mut gates[1]), event(b"one", false));
}

#[test]
fn an_event_over_the_limit_is_refused_with_both_sizes() {
    let daemon = Daemon::start(Settings::default());
    let task = task(&daemon);
    let mut partition = producer(&task, 1, Strategy::Forward, PartitionOptions::default());
    partition.emit_event(&[1; 1024], false).expect("at the limit");
    let refused = partition.emit_event(&[1; 1025], false);
    assert!(matches!(refused, Err(Error::EventTooLarge { found: 1025, max: 1024 })), "{refused:?}");
}

#[test]
fn events_wait_for_their_window_as_a_cause_of_its_own() {
    let daemon = Daemon::start(Settings::default());
    let task = task(&daemon);
    let (mut partition, mut gate) = pair(&task, PartitionOptions::default());
    daemon.hold(true);
    let sender = thread::spawn(move || {
        for number in 0..200_u32 {
            partition.emit_event(&number.to_le_bytes(), false).expect("event");
        }
        let waits = partition.waits();
        partition.finish().expect("finish");
        waits
    });
    daemon.await_task_state(0, TaskState::Hard);
    assert!(daemon.submissions().len() < 8, "one place of 8 is left for the end");
    daemon.hold(false);
    for number in 0..200_u32 {
        assert_eq!(next_event(&mut gate).payload, number.to_le_bytes());
    }
    assert_eq!(gate.next().expect("next"), None);
    let waits = sender.join().expect("sender");
    assert!(waits.event_ns > 0 && waits.segment_ns == 0 && waits.quota_ns == 0, "{waits:?}");
}

#[test]
fn the_event_window_is_the_daemons() {
    for event_window in [2, 5] {
        let daemon = Daemon::start(Settings { event_window, ..Settings::default() });
        let task = task(&daemon);
        let (mut partition, mut gate) = pair(&task, PartitionOptions::default());
        daemon.hold(true);
        let sender = thread::spawn(move || {
            for number in 0..20 {
                partition.emit_event(&[number], false).expect("event");
            }
            partition.finish().expect("finish");
        });
        daemon.await_task_state(0, TaskState::Hard);
        assert_eq!(daemon.submissions().len(), event_window as usize - 1, "one place is left for the end");
        daemon.hold(false);
        for number in 0..20 {
            assert_eq!(next_event(&mut gate).payload, [number]);
        }
        assert_eq!(gate.next().expect("next"), None);
        sender.join().expect("sender");
    }
    let daemon = Daemon::start(Settings { event_window: 1, ..Settings::default() });
    let refused = Client::connect(daemon.run_dir()).expect_err("no event would ever fit");
    assert!(refused.to_string().contains("event window is 1; needed: at least 2"), "{refused}");
}
