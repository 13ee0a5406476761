//! What a consumer wants on its way at most: the producer keeps to it, hands over before it waits, and never hangs.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use weir_client::{
    BufferTimeout, ChannelSelector, Error, GateOptions, Lacking, Partition, PartitionOptions, Strategy,
    Targets, Tried,
};
use weir_ipc::Submission;
use weir_ipc::task_cell::TaskState;

use crate::daemon::{Daemon, Settings};
use crate::{consumer, next_record, pair, producer, read_all, record, task};

/// A record of 100 bytes with its length.
const FRAME: usize = 104;

/// Nothing is handed over but what is full, or has to be.
fn options() -> PartitionOptions {
    PartitionOptions { buffer_timeout: BufferTimeout::Off, ..PartitionOptions::default() }
}

/// Bytes that were handed over.
fn submitted_bytes(daemon: &Daemon) -> usize {
    let bytes = |submission: &Submission| match submission {
        Submission::Data { bytes, .. } => *bytes as usize,
        _ => 0,
    };
    daemon.submissions().iter().map(bytes).sum()
}

/// Emits records of 100 bytes, numbered from `first`, until one would wait. How many, and what the next one lacks.
fn fill(partition: &mut Partition, first: usize) -> (usize, Lacking) {
    for count in 0.. {
        match partition.try_emit(&record(first + count, 100)).expect("try") {
            Tried::Emitted => {}
            Tried::WouldBlock(lacking) => return (count, lacking),
        }
    }
    unreachable!("a bound is reached")
}

#[test]
fn no_record_is_begun_beyond_the_bound_and_what_is_open_is_handed_over() {
    let daemon = Daemon::start(Settings::default());
    let task = task(&daemon);
    let (mut partition, mut gate) = pair(&task, options());
    daemon.hold(true);
    // Below a segment, of one, and of more than one.
    let mut sent = 0;
    for bound in [1_024_usize, 4_096, 10_000] {
        daemon.bound("x", 0, Some(bound as u32));
        let (count, lacking) = fill(&mut partition, sent);
        sent += count;
        // Begun below the bound, so that the last one may go over it.
        assert_eq!((sent, lacking), (bound.div_ceil(FRAME), Lacking::Quota), "bound {bound}");
        assert_eq!(submitted_bytes(&daemon), sent * FRAME, "what waits to arrive is on its way");
        assert!(!partition.is_available().expect("available"));
    }
    daemon.hold(false);
    for number in 0..sent {
        assert_eq!(next_record(&mut gate), record(number, 100));
    }
    partition.wait_available().expect("available");
    assert!(partition.try_emit(&record(sent, 100)).expect("try").is_emitted());
    let sender = thread::spawn(move || partition.finish().expect("finish"));
    assert_eq!(read_all(&mut gate), [record(sent, 100)]);
    sender.join().expect("sender");
}

#[test]
fn an_emit_waits_for_what_arrives_or_for_another_bound() {
    let daemon = Daemon::start(Settings::default());
    let task = task(&daemon);
    let (mut partition, mut gate) = pair(&task, options());
    daemon.hold(true);
    daemon.bound("x", 0, Some(1_024));
    static EMITTED: AtomicUsize = AtomicUsize::new(0);
    let sender = thread::spawn(move || {
        for number in 0..200 {
            partition.emit(&record(number, 100)).expect("emit");
            EMITTED.fetch_add(1, Ordering::Relaxed);
        }
        let waits = partition.waits();
        partition.finish().expect("finish");
        waits
    });
    daemon.await_task_state(0, TaskState::Hard);
    assert_eq!(EMITTED.load(Ordering::Relaxed), 10);
    // Nothing arrives, but the bound goes up.
    daemon.bound("x", 0, Some(2_048));
    daemon.submissions();
    while EMITTED.load(Ordering::Relaxed) < 20 {
        thread::yield_now();
    }
    daemon.await_task_state(0, TaskState::Hard);
    assert_eq!(submitted_bytes(&daemon), 20 * FRAME);
    // The bound stays, and what arrives makes room.
    daemon.hold(false);
    let expected: Vec<_> = (0..200).map(|number| record(number, 100)).collect();
    assert_eq!(read_all(&mut gate), expected);
    let waits = sender.join().expect("sender");
    assert!(waits.quota_ns > 0 && waits.segment_ns == 0, "{waits:?}");
}

#[test]
fn a_bound_that_goes_is_none() {
    let daemon = Daemon::start(Settings::default());
    let task = task(&daemon);
    let (mut partition, _gate) = pair(&task, options());
    daemon.hold(true);
    daemon.bound("x", 0, Some(1_024));
    let (few, _) = fill(&mut partition, 0);
    daemon.bound("x", 0, None);
    let (more, lacking) = fill(&mut partition, few);
    assert_eq!((few, lacking), (10, Lacking::Quota));
    assert!((few + more) * FRAME > 9 * 4096, "{more} more: the quota of ten segments is what holds now");
}

#[test]
fn segments_are_filled_no_further_than_a_bound_below_a_segment() {
    let daemon = Daemon::start(Settings::default());
    let task = task(&daemon);
    let (mut partition, mut gate) = pair(&task, options());
    daemon.bound("x", 0, Some(1_500));
    let sender = thread::spawn(move || {
        for number in 0..300 {
            partition.emit(&record(number, 100)).expect("emit");
        }
        partition.finish().expect("finish");
    });
    assert_eq!(read_all(&mut gate).len(), 300);
    sender.join().expect("sender");
    for submission in daemon.submissions() {
        if let Submission::Data { offset, bytes, .. } = submission {
            assert!(offset + bytes <= 1_500, "{offset} + {bytes}");
        }
    }
}

#[test]
fn a_record_of_any_length_passes_whole() {
    let daemon = Daemon::start(Settings::default());
    let task = task(&daemon);
    let (mut partition, mut gate) = pair(&task, options());
    daemon.bound("x", 0, Some(1_024));
    let lengths = [10_usize, 60_000, 3, 1_024, 9_000, 0, 64 << 10, 1];
    let sender = thread::spawn(move || {
        for (number, bytes) in lengths.into_iter().enumerate() {
            partition.emit(&record(number, bytes)).expect("emit");
        }
        partition.finish().expect("finish");
    });
    let expected: Vec<_> =
        lengths.into_iter().enumerate().map(|(number, bytes)| record(number, bytes)).collect();
    assert_eq!(read_all(&mut gate), expected);
    sender.join().expect("sender");
}

/// Of its 17 segments 15 are written before it waits. Four of them arrive, and nobody reads: that is room for the rest of it,
/// though much more than the bound is on its way.
#[test]
fn a_record_that_waits_in_its_middle_is_finished_whatever_the_bound() {
    let daemon = Daemon::start(Settings { gate_segments: 4, ..Settings::default() });
    let task = task(&daemon);
    let (mut partition, mut gate) = pair(&task, options());
    daemon.bound("x", 0, Some(1_024));
    daemon.hold(true);
    let sender = thread::spawn(move || {
        partition.emit(&record(0, 64 << 10)).expect("emit");
        partition
    });
    daemon.await_task_state(0, TaskState::Hard);
    daemon.hold(false);
    let mut partition = sender.join().expect("sender");
    assert!(!partition.try_emit(b"another").expect("try").is_emitted(), "for the next one the bound holds");
    let sender = thread::spawn(move || partition.finish().expect("finish"));
    assert_eq!(read_all(&mut gate), [record(0, 64 << 10)]);
    sender.join().expect("sender");
}

#[test]
fn the_bound_of_one_consumer_is_nothing_to_the_others() {
    let daemon = Daemon::start(Settings::default());
    let task = task(&daemon);
    let mut partition = producer(&task, 2, Strategy::Hash, options());
    daemon.hold(true);
    daemon.bound("x", 1, Some(1_024));
    let mut count = [0_usize; 2];
    for number in 0..20 {
        for to in [0, 1] {
            let tried = partition.try_emit_to(to, &record(number, 100)).expect("try");
            count[to as usize] += usize::from(tried.is_emitted());
        }
    }
    assert_eq!(count, [20, 10]);
    assert!(!partition.is_available().expect("available"), "not every one can take a record");
}

#[test]
fn adaptive_selection_leaves_out_a_consumer_at_its_bound() {
    let daemon = Daemon::start(Settings::default());
    let task = task(&daemon);
    let first = PartitionOptions { first_subpartition: Some(0), ..options() };
    let mut partition = producer(&task, 2, Strategy::Rebalance, first);
    let (mut awake, mut asleep) = (consumer(&task, 0, 2), consumer(&task, 1, 2));
    daemon.bound("x", 1, Some(1_024));
    let reader = thread::spawn(move || read_all(&mut awake).len());
    // It reads nothing: what has arrived is no bound any more, so that its receive segments are the end of it.
    let count = 2_000;
    for number in 0..count {
        partition.emit(&record(number, 100)).expect("emit");
    }
    partition.wait_available().expect("the other one can");
    let sender = thread::spawn(move || partition.finish().expect("finish"));
    let slept = read_all(&mut asleep).len();
    assert!(slept * FRAME <= 16 * 4096 + 1_024 + FRAME, "{slept} records waited for the sleeper");
    assert_eq!(slept + reader.join().expect("the reader"), count, "every record once");
    sender.join().expect("sender");
}

/// A look finds it at its bound, so that no record asks for it any more.
#[test]
fn what_is_open_for_a_consumer_that_is_left_out_is_handed_over() {
    let daemon = Daemon::start(Settings { quota: 60, partition_segments: 120, ..Settings::default() });
    let task = task(&daemon);
    let first = PartitionOptions { first_subpartition: Some(0), ..options() };
    let mut partition = producer(&task, 2, Strategy::Rebalance, first);
    daemon.hold(true);
    daemon.bound("x", 1, Some(1_024));
    for bytes in [100, 1_100, 60_000, 60_000, 60_000] {
        partition.emit(&record(0, bytes)).expect("emit");
    }
    let of_it = |submission: &Submission| match submission {
        Submission::Data { subpartition: 1, bytes, .. } => *bytes as usize,
        _ => 0,
    };
    assert_eq!(daemon.submissions().iter().map(of_it).sum::<usize>(), 1_104);
}

#[test]
fn all_at_their_bounds_is_a_wait_for_any_of_them() {
    let daemon = Daemon::start(Settings::default());
    let task = task(&daemon);
    let mut partition = producer(&task, 2, Strategy::Rebalance, options());
    let mut gates = [consumer(&task, 0, 2), consumer(&task, 1, 2)];
    daemon.hold(true);
    (0..2).for_each(|of| daemon.bound("x", of, Some(1_024)));
    let (count, lacking) = fill(&mut partition, 0);
    assert_eq!((count, lacking), (20, Lacking::Quota));
    assert_eq!(submitted_bytes(&daemon), 20 * FRAME, "of both, although only one was asked for last");
    assert!(!partition.is_available().expect("available"));
    let sender = thread::spawn(move || {
        for number in 20..200 {
            partition.emit(&record(number, 100)).expect("emit");
        }
        partition.finish().expect("finish");
    });
    daemon.await_task_state(0, TaskState::Hard);
    daemon.hold(false);
    let [first, second] = gates.each_mut().map(|gate| read_all(gate).len());
    assert_eq!(first + second, 200);
    sender.join().expect("sender");
}

/// Goes to the first subpartition that has room, or to the first.
struct WithRoom;

impl ChannelSelector for WithRoom {
    fn select(&mut self, record: &[u8], _: Option<&[u8]>, targets: &mut Targets<'_>) -> u32 {
        (0..targets.count()).find(|of| targets.has_room(*of, record.len())).unwrap_or(0)
    }
}

#[test]
fn a_selector_that_avoids_a_consumer_at_its_bound_leaves_nothing_behind() {
    let daemon = Daemon::start(Settings::default());
    let task = task(&daemon);
    let mut partition = task.partition_with_selector("x", 0, 1, 2, WithRoom, options()).expect("partition");
    daemon.hold(true);
    daemon.bound("x", 0, Some(1_024));
    for number in 0..30 {
        partition.emit(&record(number, 100)).expect("emit");
    }
    // The other one has 20 in its open segment.
    assert_eq!(submitted_bytes(&daemon), 10 * FRAME);
}

#[test]
fn a_partition_that_fails_at_its_bound_says_so() {
    let daemon = Daemon::start(Settings::default());
    let task = task(&daemon);
    let (mut partition, _gate) = pair(&task, options());
    daemon.hold(true);
    daemon.bound("x", 0, Some(1_024));
    let sender = thread::spawn(move || {
        loop {
            if let Err(error) = partition.emit(&record(0, 100)) {
                return error;
            }
        }
    });
    daemon.await_task_state(0, TaskState::Hard);
    daemon.fail_partition("x", 2, "the consumer left");
    daemon.submissions();
    assert!(matches!(sender.join().expect("sender"), Error::Failed { .. }));
}

#[test]
fn a_broadcast_keeps_to_the_least_that_its_consumers_want() {
    let daemon = Daemon::start(Settings::default());
    let task = task(&daemon);
    let mut partition = producer(&task, 2, Strategy::Broadcast, options());
    daemon.bound("x", 0, Some(2_048));
    assert_eq!(fill(&mut partition, 0), (20, Lacking::Quota));
    drop(task.gate("x", 0, 2, GateOptions::default()).expect("gate"));
}
