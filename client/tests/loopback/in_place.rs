//! Records that the application writes in their place come out as those that are copied there.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

use weir_client::{ConsumerDeath, Error, Item, PartitionOptions, Strategy};

use crate::daemon::{Daemon, Settings};
use crate::{consumer, next_record, pair, producer, read_all, record, task};

/// Records of these sizes, by turns written in their place and copied there.
fn check_sizes(sizes: &[usize], checksum: bool) {
    let daemon = Daemon::start(Settings::default());
    let task = task(&daemon);
    let (mut partition, mut gate) = pair(&task, PartitionOptions { checksum, ..Default::default() });
    let expected: Vec<_> =
        (0..3).flat_map(|_| sizes).enumerate().map(|(number, bytes)| record(number, *bytes)).collect();
    let sent = expected.clone();
    let sender = thread::spawn(move || {
        for (number, record) in sent.iter().enumerate() {
            if number % 4 == 3 {
                partition.emit(record).expect("emit");
            } else {
                partition.emit_with(record.len(), |place| place.copy_from_slice(record)).expect("emit");
            }
        }
        partition.finish().expect("finish");
    });
    assert_eq!(read_all(&mut gate), expected);
    sender.join().expect("sender");
}

#[test]
fn records_of_every_size_come_out_as_they_were_written() {
    let segment = Settings::default().segment_bytes as usize;
    let max = Settings::default().record_bytes_max as usize;
    let around = (segment - 10)..=(segment + 2);
    let sizes: Vec<_> = [0, 1, 64].into_iter().chain(around).chain([3 * segment, max]).collect();
    check_sizes(&sizes, false);
    check_sizes(&sizes, true);
}

/// Where in its segment something lies: regions begin at pages, and segments of these tests are pages.
fn offset_in_segment(bytes: &[u8]) -> usize {
    bytes.as_ptr().addr() % Settings::default().segment_bytes as usize
}

#[test]
fn records_that_nearly_fill_a_segment_are_neither_cut_nor_copied() {
    const PREFIX_BYTES: usize = 4;
    let segment = Settings::default().segment_bytes as usize;
    // No more than a record is begun in, with and without room for the next one's length.
    for left in [0, 3, 4, 60, 64] {
        let bytes = segment - PREFIX_BYTES - left;
        let daemon = Daemon::start(Settings::default());
        let task = task(&daemon);
        let (mut partition, mut gate) = pair(&task, PartitionOptions::default());
        let sender = thread::spawn(move || {
            // More than the pool has segments: some of them are waited for.
            for number in 0..200_u8 {
                let written = partition.emit_with(bytes, |place| {
                    assert_eq!(offset_in_segment(place), PREFIX_BYTES, "where record {number} is written");
                    place.fill(number);
                });
                written.expect("emit");
            }
            partition.finish().expect("finish");
        });
        for number in 0..200_u8 {
            let Ok(Some(Item::Record(record))) = gate.next() else { panic!("no record {number}") };
            assert_eq!(
                offset_in_segment(&record),
                PREFIX_BYTES,
                "where record {number} is read, {left} left"
            );
            assert!(record.len() == bytes && record.iter().all(|byte| *byte == number), "record {number}");
        }
        sender.join().expect("sender");
    }
}

#[test]
fn a_record_over_the_limit_is_refused_before_it_is_written() {
    let daemon = Daemon::start(Settings::default());
    let task = task(&daemon);
    let (mut partition, _gate) = pair(&task, PartitionOptions::default());
    let max = Settings::default().record_bytes_max as usize;
    for found in [max + 1, usize::MAX] {
        let refused = partition.emit_with(found, |_| panic!("asked to write")).expect_err("too large");
        assert!(matches!(refused, Error::RecordTooLarge { found: of, .. } if of == found), "{refused:?}");
    }
}

#[test]
fn nothing_is_emitted_if_the_application_panics_while_it_writes() {
    let segment = Settings::default().segment_bytes as usize;
    let daemon = Daemon::start(Settings::default());
    let task = task(&daemon);
    let (mut partition, mut gate) = pair(&task, PartitionOptions::default());
    partition.emit(b"before").expect("emit");
    for bytes in [6, segment] {
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            partition.emit_with(bytes, |place| {
                place.fill(b'!');
                panic!("no more of it");
            })
        }));
        assert!(panicked.is_err());
    }
    partition.emit_with(5, |place| place.copy_from_slice(b"after")).expect("emit");
    let sender = thread::spawn(move || partition.finish().expect("finish"));
    assert_eq!(read_all(&mut gate), [b"before".as_slice(), b"after"]);
    sender.join().expect("sender");
}

#[test]
fn a_segment_that_was_opened_in_vain_is_not_handed_over() {
    let daemon = Daemon::start(Settings::default());
    let task = task(&daemon);
    for goes_on in [false, true] {
        let (mut partition, mut gate) = pair(&task, PartitionOptions::default());
        let panicked = catch_unwind(AssertUnwindSafe(|| partition.emit_with(8, |_| panic!("nothing of it"))));
        assert!(panicked.is_err());
        let sender = thread::spawn(move || {
            if goes_on {
                partition.emit_with(5, |place| place.copy_from_slice(b"after")).expect("emit");
            }
            partition.finish().expect("finish");
        });
        let expected: &[&[u8]] = if goes_on { &[b"after"] } else { &[] };
        assert_eq!(read_all(&mut gate), expected);
        sender.join().expect("sender");
    }
}

#[test]
fn a_key_goes_where_it_goes_with_a_copy() {
    let daemon = Daemon::start(Settings::default());
    let task = task(&daemon);
    let mut partition = producer(&task, 3, Strategy::Hash, PartitionOptions::default());
    assert!(matches!(partition.emit_with(1, |place| place.fill(1)), Err(Error::KeyNeeded)));
    let mut gates: Vec<_> = (0..3).map(|of| consumer(&task, of, 3)).collect();
    let keys: Vec<String> = (0..64).map(|number| format!("key {number}")).collect();
    for key in &keys {
        partition.emit_keyed(key.as_bytes(), key.as_bytes()).expect("emit");
        partition
            .emit_keyed_with(key.as_bytes(), key.len(), |place| place.copy_from_slice(key.as_bytes()))
            .expect("emit");
    }
    let sender = thread::spawn(move || partition.finish().expect("finish"));
    let found: Vec<_> = gates.iter_mut().map(read_all).collect();
    sender.join().expect("sender");
    assert_eq!(found.iter().map(Vec::len).sum::<usize>(), 2 * keys.len());
    for pair in found.iter().flat_map(|records| records.chunks(2)) {
        assert_eq!(pair.first(), pair.last(), "the two of one key follow each other at one consumer");
    }
}

#[test]
fn a_selector_of_the_application_sees_the_record_that_was_written() {
    let daemon = Daemon::start(Settings::default());
    let task = task(&daemon);
    let by_first = |record: &[u8], _key: Option<&[u8]>, _consumers: u32| u32::from(record[0]);
    let options = PartitionOptions::default();
    let mut partition = task.partition_with_selector("x", 0, 1, 2, by_first, options).expect("partition");
    let mut gates = [consumer(&task, 0, 2), consumer(&task, 1, 2)];
    for number in [1_u8, 0, 1] {
        partition.emit_with(2, |place| place.copy_from_slice(&[number, 9])).expect("emit");
    }
    partition.flush().expect("flush");
    assert_eq!(next_record(&mut gates[0]), [0, 9]);
    assert_eq!(next_record(&mut gates[1]), [1, 9]);
    assert_eq!(next_record(&mut gates[1]), [1, 9]);
}

#[test]
fn a_record_for_a_consumer_that_is_gone_goes_to_another() {
    for adaptive in [false, true] {
        let daemon = Daemon::start(Settings::default());
        let task = task(&daemon);
        let options = PartitionOptions {
            on_consumer_death: ConsumerDeath::ContinueWithout,
            adaptive,
            first_subpartition: Some(0),
            ..Default::default()
        };
        let mut partition = producer(&task, 2, Strategy::Rebalance, options);
        let mut gate = consumer(&task, 1, 2);
        daemon.lose_consumer("x", 0, 0);
        let sent: Vec<_> = (0..20).map(|number| record(number, 64)).collect();
        for record in &sent {
            partition.emit_with(record.len(), |place| place.copy_from_slice(record)).expect("emit");
        }
        let sender = thread::spawn(move || partition.finish().expect("finish"));
        assert_eq!(read_all(&mut gate), sent);
        sender.join().expect("sender");
    }
}
