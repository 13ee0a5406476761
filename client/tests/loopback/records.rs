//! What is emitted comes out, whole, once and in order, whatever its size.

use std::thread;

use weir_client::{Error, Item, PartitionOptions, Strategy};
use weir_flow::key_group::{default_max_parallelism, hash_bytes, key_group, subpartition_of};

use crate::daemon::{Daemon, Settings};
use crate::{consumer, next_record, pair, producer, read_all, record, task};

/// Sends records of these sizes, each several times, from one thread to another.
fn check_sizes(sizes: &[usize], checksum: bool) {
    let daemon = Daemon::start(Settings::default());
    let task = task(&daemon);
    let (mut partition, mut gate) = pair(&task, PartitionOptions { checksum, ..Default::default() });
    let expected: Vec<_> =
        (0..3).flat_map(|_| sizes).enumerate().map(|(number, bytes)| record(number, *bytes)).collect();
    let sent = expected.clone();
    let sender = thread::spawn(move || {
        for record in &sent {
            partition.emit(record).expect("emit");
        }
        partition.finish().expect("finish");
    });
    assert_eq!(read_all(&mut gate), expected);
    sender.join().expect("sender");
}

#[test]
fn records_of_every_size_come_out_as_they_went_in() {
    let segment = Settings::default().segment_bytes as usize;
    let max = Settings::default().record_bytes_max as usize;
    // With its length of 4 bytes, segment - 4 fills a segment to the last byte.
    let around = (segment - 6)..=(segment + 2);
    let sizes: Vec<_> = [0, 1, 64].into_iter().chain(around).chain([3 * segment, max]).collect();
    check_sizes(&sizes, false);
    check_sizes(&sizes, true);
    for size in sizes {
        check_sizes(&[size], false);
    }
}

#[test]
fn a_length_may_be_cut_between_two_segments() {
    let segment = Settings::default().segment_bytes as usize;
    for cut in 1..4 {
        // The first record leaves `cut` bytes of its segment, so that the second one's length is cut there.
        check_sizes(&[segment - 4 - cut, 100], false);
    }
}

#[test]
fn a_record_over_the_limit_is_refused_with_both_sizes_and_leaves_no_trace() {
    let daemon = Daemon::start(Settings::default());
    let task = task(&daemon);
    let (mut partition, mut gate) = pair(&task, PartitionOptions::default());
    let max = Settings::default().record_bytes_max as usize;
    let refused = partition.emit(&record(0, max + 1)).expect_err("too large");
    assert!(
        matches!(refused, Error::RecordTooLarge { found, max: most } if found == max + 1 && most == max),
        "{refused:?}"
    );
    assert!(refused.to_string().contains("65537") && refused.to_string().contains("65536"), "{refused}");
    assert!(matches!(partition.try_emit(&record(0, max + 1)), Err(Error::RecordTooLarge { .. })));
    partition.emit(b"after").expect("emit");
    let sender = thread::spawn(move || partition.finish().expect("finish"));
    assert_eq!(read_all(&mut gate), [b"after"]);
    sender.join().expect("sender");
}

#[test]
fn records_inside_a_slice_are_not_copied() {
    let daemon = Daemon::start(Settings::default());
    let task = task(&daemon);
    let (mut partition, mut gate) = pair(&task, PartitionOptions::default());
    for number in 0..3 {
        partition.emit(&record(number, 64)).expect("emit");
    }
    partition.flush().expect("flush");
    let mut places = Vec::new();
    while places.len() < 3 {
        let Ok(Some(Item::Record(record))) = gate.next() else { panic!("a record") };
        assert_eq!(record.channel(), 0);
        places.push(record.as_ptr() as usize);
    }
    // As they lie on the segment: 4 bytes of length between two.
    assert_eq!([places[1] - places[0], places[2] - places[1]], [68, 68]);
}

#[test]
fn rebalance_goes_round_all_consumers() {
    let daemon = Daemon::start(Settings::default());
    let task = task(&daemon);
    let options = PartitionOptions { first_subpartition: Some(1), ..Default::default() };
    let mut partition = producer(&task, 3, Strategy::Rebalance, options);
    let mut gates: Vec<_> = (0..3).map(|index| consumer(&task, index, 3)).collect();
    for number in 0..7 {
        partition.emit(&[number]).expect("emit");
    }
    partition.flush().expect("flush");
    let mut read = |consumer: usize, count| -> Vec<u8> {
        (0..count).map(|_| next_record(&mut gates[consumer])[0]).collect()
    };
    assert_eq!(read(1, 3), [0, 3, 6]);
    assert_eq!(read(2, 2), [1, 4]);
    assert_eq!(read(0, 2), [2, 5]);
}

#[test]
fn hash_sends_a_key_where_its_key_group_is_and_wants_a_key() {
    let daemon = Daemon::start(Settings::default());
    let task = task(&daemon);
    let mut partition = producer(&task, 4, Strategy::Hash, PartitionOptions::default());
    let mut gates: Vec<_> = (0..4).map(|index| consumer(&task, index, 4)).collect();
    assert!(matches!(partition.emit(b"no key"), Err(Error::KeyNeeded)));
    let groups = default_max_parallelism(4);
    let mut expected = vec![Vec::new(); 4];
    for number in 0..200_u32 {
        let key = format!("key-{number}");
        let owner = subpartition_of(key_group(hash_bytes(key.as_bytes()), groups), groups, 4);
        expected[owner as usize].push(number.to_le_bytes().to_vec());
        partition.emit_keyed(key.as_bytes(), &number.to_le_bytes()).expect("emit");
    }
    let sender = thread::spawn(move || partition.finish().expect("finish"));
    for (gate, expected) in gates.iter_mut().zip(&expected) {
        assert!(!expected.is_empty(), "200 keys reach each of 4 consumers");
        assert_eq!(&read_all(gate), expected);
    }
    sender.join().expect("sender");
}

#[test]
fn emit_to_goes_where_it_is_told_and_nowhere_else() {
    let daemon = Daemon::start(Settings::default());
    let task = task(&daemon);
    let mut partition = producer(&task, 2, Strategy::Rebalance, PartitionOptions::default());
    let (mut first, mut second) = (consumer(&task, 0, 2), consumer(&task, 1, 2));
    partition.emit_to(1, b"one").expect("emit");
    partition.emit_to(1, b"two").expect("emit");
    partition.emit_to(0, b"three").expect("emit");
    let refused = partition.emit_to(2, b"nowhere");
    assert!(matches!(refused, Err(Error::NoSuchSubpartition { found: 2, count: 2 })), "{refused:?}");
    let sender = thread::spawn(move || partition.finish().expect("finish"));
    assert_eq!(read_all(&mut first), [b"three"]);
    assert_eq!(read_all(&mut second), [b"one", b"two"]);
    sender.join().expect("sender");
}

#[test]
fn records_of_several_producers_keep_their_order_and_name_their_channel() {
    let daemon = Daemon::start(Settings::default());
    let task = task(&daemon);
    let senders: Vec<_> = (0..3_u32)
        .map(|index| {
            let mut partition = task
                .partition("x", index, 3, 1, Strategy::Rebalance, PartitionOptions::default())
                .expect("partition");
            thread::spawn(move || {
                for number in 0..5_000_u32 {
                    partition.emit(&number.to_le_bytes()).expect("emit");
                }
                partition.finish().expect("finish");
            })
        })
        .collect();
    let mut gate = consumer(&task, 0, 1);
    let mut next = [0_u32; 3];
    while let Some(item) = gate.next().expect("no failure") {
        let Item::Record(record) = item else { panic!("a record") };
        let expected = &mut next[record.channel() as usize];
        assert_eq!(*record, expected.to_le_bytes());
        *expected += 1;
    }
    assert_eq!(next, [5_000; 3]);
    senders.into_iter().for_each(|sender| sender.join().expect("sender"));
}

#[test]
fn try_next_does_not_wait() {
    let daemon = Daemon::start(Settings::default());
    let task = task(&daemon);
    let (mut partition, mut gate) = pair(&task, PartitionOptions::default());
    assert_eq!(gate.try_next().expect("try"), weir_client::Next::Pending);
    partition.emit(b"one").expect("emit");
    let sender = thread::spawn(move || partition.finish().expect("finish"));
    assert_eq!(next_record(&mut gate), b"one");
    sender.join().expect("sender");
    // The end of data is acknowledged, so it is in the ring.
    assert_eq!(gate.try_next().expect("try"), weir_client::Next::End);
    assert_eq!(gate.next().expect("next"), None);
}
