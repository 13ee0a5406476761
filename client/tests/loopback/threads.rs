//! Many threads on one attachment: each wake-up reaches who waits for it.

use std::thread;

use weir_client::{BufferTimeout, Client, GateOptions, Item, PartitionOptions, Strategy};

use crate::daemon::{Daemon, Settings};
use crate::{record, task};

/// Small pools, so that everybody waits all the time.
const TIGHT: Settings = Settings {
    segment_bytes: 4096,
    record_bytes_max: 64 << 10,
    partition_segments: 12,
    quota: 2,
    overdraft: 5,
    gate_segments: 3,
    event_window: 8,
    spanning_bytes_max: 64 << 20,
};

#[test]
fn many_pairs_on_one_client() {
    let daemon = Daemon::start(TIGHT);
    let task = task(&daemon);
    let mut threads = Vec::new();
    for pair in 0..8_usize {
        let (sending, receiving, name) = (task.clone(), task.clone(), format!("pair-{pair}"));
        let mut partition = sending
            .partition(&name, 0, 1, 1, Strategy::Forward, PartitionOptions::default())
            .expect("partition");
        threads.push(thread::spawn(move || {
            for number in 0..3_000 {
                partition.emit(&record(number + pair, 200)).expect("emit");
            }
            partition.finish().expect("finish");
        }));
        threads.push(thread::spawn(move || {
            let mut gate = receiving.gate(&name, 0, 1, GateOptions::default()).expect("gate");
            let mut number = 0;
            while let Some(Item::Record(found)) = gate.next().expect("no failure") {
                assert_eq!(*found, record(number + pair, 200));
                number += 1;
            }
            assert_eq!(number, 3_000);
        }));
    }
    threads.into_iter().for_each(|thread| thread.join().expect("a thread"));
}

#[test]
fn all_to_all_over_two_clients() {
    const PRODUCERS: u32 = 3;
    const CONSUMERS: u32 = 4;
    const RECORDS: u64 = 4_000;
    let daemon = Daemon::start(Settings { partition_segments: 24, gate_segments: 8, ..TIGHT });
    let [sending, receiving] = [0, 1].map(|_| Client::connect(daemon.run_dir()).expect("attach"));
    let producers: Vec<_> = (0..PRODUCERS)
        .map(|index| {
            let options =
                PartitionOptions { buffer_timeout: BufferTimeout::Off, checksum: true, ..Default::default() };
            let mut partition = sending
                .task("sending")
                .and_then(|task| {
                    task.partition("x", index, PRODUCERS, CONSUMERS, Strategy::Rebalance, options)
                })
                .expect("partition");
            thread::spawn(move || {
                for number in 0..RECORDS {
                    let mut bytes = (u64::from(index) * RECORDS + number).to_le_bytes().to_vec();
                    bytes.resize(8 + (number as usize % 900), 7);
                    partition.emit(&bytes).expect("emit");
                }
                partition.finish().expect("finish");
            })
        })
        .collect();
    let consumers: Vec<_> = (0..CONSUMERS)
        .map(|index| {
            let task = receiving.task("receiving").expect("task");
            thread::spawn(move || {
                let mut gate = task.gate("x", index, CONSUMERS, GateOptions::default()).expect("gate");
                let mut seen = Vec::new();
                while let Some(Item::Record(record)) = gate.next().expect("no failure") {
                    seen.push(u64::from_le_bytes(*record.first_chunk().expect("8 bytes")));
                }
                seen
            })
        })
        .collect();
    producers.into_iter().for_each(|thread| thread.join().expect("a producer"));
    let mut seen: Vec<u64> =
        consumers.into_iter().flat_map(|thread| thread.join().expect("a consumer")).collect();
    seen.sort_unstable();
    assert!(seen.into_iter().eq(0..u64::from(PRODUCERS) * RECORDS), "every record once");
}

#[test]
fn a_spanning_budget_of_one_byte_lets_one_channel_at_a_time_proceed() {
    const PRODUCERS: u32 = 4;
    let daemon = Daemon::start(Settings { gate_segments: 24, ..Settings::default() });
    let task = task(&daemon);
    let producers: Vec<_> = (0..PRODUCERS)
        .map(|index| {
            let mut partition = task
                .partition("x", index, PRODUCERS, 1, Strategy::Rebalance, PartitionOptions::default())
                .expect("partition");
            thread::spawn(move || {
                for number in 0..100 {
                    // Records of one, two and three segments; every one of them is cut somewhere.
                    partition.emit(&record(number, 3_000 + number % 3 * 4096)).expect("emit");
                    if number % 10 == 0 {
                        partition.emit_event(&[number as u8], false).expect("event");
                    }
                }
                partition.finish().expect("finish");
            })
        })
        .collect();
    let options = GateOptions { spanning_bytes_max: Some(1), ..Default::default() };
    let mut gate = task.gate("x", 0, 1, options).expect("gate");
    let mut next = [0_usize; PRODUCERS as usize];
    while let Some(item) = gate.next().expect("no failure") {
        match item {
            Item::Record(found) => {
                let number = &mut next[found.channel() as usize];
                assert_eq!(*found, record(*number, 3_000 + *number % 3 * 4096));
                *number += 1;
            }
            // It stays behind the record before it, although its channel may have been put aside.
            Item::Event(event) => {
                assert_eq!(usize::from(event.payload[0]) + 1, next[event.channel as usize]);
            }
        }
    }
    assert_eq!(next, [100; PRODUCERS as usize]);
    producers.into_iter().for_each(|thread| thread.join().expect("a producer"));
}

#[test]
fn a_channel_that_had_its_spanning_record_lets_those_go_first_that_wait() {
    // The daemon's budget, and a gate's own in its place.
    for (spanning_bytes_max, own) in [(1, None), (64 << 20, Some(1))] {
        assert_eq!(channels_in_turn(spanning_bytes_max, own), [0, 1, 0, 0]);
    }
    assert_eq!(
        channels_in_turn(64 << 20, None),
        [1, 0, 0, 0],
        "with room for both, the whole one comes first"
    );
}

/// The channels of the first four records of a gate with this budget, or this one of its own, for spanning records.
fn channels_in_turn(spanning_bytes_max: u64, own: Option<u64>) -> Vec<u32> {
    let settings = Settings {
        partition_segments: 64,
        quota: 50,
        gate_segments: 128,
        spanning_bytes_max,
        ..Settings::default()
    };
    let daemon = Daemon::start(settings);
    let task = task(&daemon);
    let [mut long, mut short] = [0, 1].map(|index| {
        let options = PartitionOptions { buffer_timeout: BufferTimeout::Off, ..Default::default() };
        task.partition("x", index, 2, 1, Strategy::Rebalance, options).expect("partition")
    });
    let options = GateOptions { spanning_bytes_max: own, ..Default::default() };
    let mut gate = task.gate("x", 0, 1, options).expect("gate");
    // In the order of arrival: the first slice of a record, all of the other channel's, the rest.
    long.emit(&[7; 6000]).expect("emit");
    daemon.await_submissions(1);
    short.emit(&[8; 6000]).expect("emit");
    short.flush().expect("flush");
    daemon.await_submissions(3);
    for _ in 0..20 {
        long.emit(&[7; 6000]).expect("emit");
    }
    long.flush().expect("flush");
    let mut channels = Vec::new();
    for _ in 0..4 {
        match gate.next().expect("next") {
            Some(Item::Record(record)) => channels.push(record.channel()),
            other => panic!("{other:?}; needed: a record"),
        }
    }
    channels
}
