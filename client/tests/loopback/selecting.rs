//! Which consumer gets a record: those that keep up, those of a share, those that the application names.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use weir_client::{
    BufferTimeout, ChannelSelector, ConsumerDeath, Error, Gate, Item, Lacking, PartitionOptions, Strategy,
    Targets, Task, Tried,
};
use weir_ipc::task_cell::TaskState;

use crate::daemon::{Daemon, Settings};
use crate::{consumer, next_record, producer, read_all, record, task};

fn options() -> PartitionOptions {
    PartitionOptions {
        buffer_timeout: BufferTimeout::Off,
        first_subpartition: Some(0),
        ..PartitionOptions::default()
    }
}

/// Reads every record, and counts them by the producer that they came from.
fn count_by_producer(gate: &mut Gate) -> BTreeMap<u32, usize> {
    let mut counts = BTreeMap::new();
    loop {
        let channel = match gate.next().expect("no failure") {
            Some(Item::Record(record)) => record.channel(),
            Some(Item::Event(event)) => panic!("{event:?}; needed: a record"),
            None => return counts,
        };
        *counts.entry(gate.producer_of(channel)).or_default() += 1;
    }
}

#[test]
fn beside_a_consumer_that_sleeps_the_other_gets_everything() {
    let daemon = Daemon::start(Settings::default());
    let task = task(&daemon);
    let mut partition = producer(&task, 2, Strategy::Rebalance, options());
    let mut awake = consumer(&task, 0, 2);
    let mut asleep = consumer(&task, 1, 2);
    // Ten times of all that the partition and the sleeping consumer could hold.
    let count = 10 * (24 + 16) * 4;
    let reader = thread::spawn(move || read_all(&mut awake).len());
    for number in 0..count {
        partition.emit(&record(number, 1000)).expect("emit");
    }
    assert!(partition.is_adaptive());
    // All was emitted, and the sleeper has read nothing.
    let sender = thread::spawn(move || partition.finish().expect("finish"));
    let slept = read_all(&mut asleep).len();
    assert!(slept <= (10 + 16 + 1) * 4, "{slept} records waited for the sleeper");
    assert_eq!(slept + reader.join().expect("the reader"), count, "every record once");
    sender.join().expect("sender");
}

#[test]
fn a_long_record_is_not_begun_where_it_would_wait_for_the_sleeper() {
    // Records of two segments, of eight, and of twelve.
    for (bytes, count) in [(6_000, 200), (30_000, 40), (50_000, 20)] {
        let daemon = Daemon::start(Settings { partition_segments: 60, ..Settings::default() });
        let task = task(&daemon);
        let mut partition = producer(&task, 2, Strategy::Rebalance, options());
        let mut awake = consumer(&task, 0, 2);
        let mut asleep = consumer(&task, 1, 2);
        let reader = thread::spawn(move || read_all(&mut awake).len());
        for number in 0..count {
            partition.emit(&record(number, bytes)).expect("emit");
        }
        let sender = thread::spawn(move || partition.finish().expect("finish"));
        let slept = read_all(&mut asleep).len();
        assert!(slept * bytes <= (16 + 15) * 4096, "{slept} records waited for the sleeper");
        assert_eq!(slept + reader.join().expect("the reader"), count, "every record once");
        sender.join().expect("sender");
    }
}

#[test]
fn a_record_is_not_begun_where_it_could_not_be_finished() {
    let daemon = Daemon::start(Settings { partition_segments: 60, ..Settings::default() });
    let task = task(&daemon);
    let mut partition = producer(&task, 2, Strategy::Rebalance, options());
    daemon.hold(true);
    // Nine segments: then each consumer has room to begin another, and with the overdraft six segments for it.
    for number in 0..2 {
        assert_eq!(partition.try_emit(&record(number, 36_000)).expect("try"), Tried::Emitted);
    }
    let third = partition.try_emit(&record(2, 36_000)).expect("try");
    assert!(matches!(third, Tried::WouldBlock(_)), "{third:?}");
    // A short one has room.
    assert_eq!(partition.try_emit(&record(3, 3_000)).expect("try"), Tried::Emitted);
}

#[test]
fn strictly_in_turn_the_one_that_is_awake_starves_beside_one_that_sleeps() {
    let daemon = Daemon::start(Settings::default());
    let task = task(&daemon);
    let in_turn = PartitionOptions { adaptive: false, ..options() };
    let mut partition = producer(&task, 2, Strategy::Rebalance, in_turn);
    assert!(!partition.is_adaptive());
    let mut awake = consumer(&task, 0, 2);
    let mut asleep = consumer(&task, 1, 2);
    static EMITTED: AtomicU64 = AtomicU64::new(0);
    let sender = thread::spawn(move || {
        for number in 0..1000 {
            partition.emit(&record(number, 1000)).expect("emit");
            EMITTED.fetch_add(1, Ordering::Relaxed);
        }
        partition.finish().expect("finish")
    });
    daemon.await_task_state(0, TaskState::Hard);
    // It waits for the sleeper. What the other was given is less than twice what the sleeper can hold.
    let emitted = EMITTED.load(Ordering::Relaxed);
    assert!(emitted < 2 * (10 + 16 + 1) * 4, "{emitted} records");
    let sleeper = thread::spawn(move || read_all(&mut asleep));
    let read: Vec<Vec<u8>> = read_all(&mut awake);
    let slept = sleeper.join().expect("the sleeper");
    assert_eq!((read.len(), slept.len()), (500, 500));
    assert!((0..1000).all(|number| [&read, &slept][number % 2][number / 2] == record(number, 1000)));
    sender.join().expect("sender");
}

#[test]
fn when_all_have_stopped_whichever_goes_on_first_gets_the_next_record() {
    for first in 0..3_u32 {
        let daemon = Daemon::start(Settings::default());
        let task = task(&daemon);
        let mut partition = producer(&task, 3, Strategy::Rebalance, options());
        let mut gates: Vec<Gate> = (0..3).map(|index| consumer(&task, index, 3)).collect();
        let mut emitted = 0;
        let mut refused = 0;
        let lack = loop {
            match partition.try_emit(&record(emitted, 1000)).expect("try") {
                Tried::Emitted => (emitted, refused) = (emitted + 1, 0),
                Tried::WouldBlock(lack) => {
                    // The daemon may have something to carry, which was submitted for want of room.
                    let submitted = daemon.submissions().len();
                    if submitted == refused {
                        break lack;
                    }
                    refused = submitted;
                }
            }
        };
        assert_eq!(lack, Lacking::Segment, "the pool is smaller than three quotas");
        assert!(!partition.is_available().expect("available"));
        let sender = thread::spawn(move || {
            partition.emit(&record(emitted, 1000)).expect("emit");
            partition
        });
        daemon.await_task_state(0, TaskState::Hard);
        let mut gate = gates.remove(first as usize);
        // It reads until the producer goes on, which the others do not help it with.
        let reader = thread::spawn(move || read_all(&mut gate).len());
        let partition = sender.join().expect("the producer went on");
        let others: Vec<_> =
            gates.into_iter().map(|mut gate| thread::spawn(move || read_all(&mut gate).len())).collect();
        partition.finish().expect("finish");
        let others: usize = others.into_iter().map(|other| other.join().expect("another")).sum();
        assert_eq!(reader.join().expect("the first") + others, emitted + 1);
    }
}

#[test]
fn an_open_segment_has_room_though_its_consumer_gives_no_credit_before_it_is_full() {
    let daemon = Daemon::start(Settings { quota: 1, overdraft: 0, ..Settings::default() });
    let task = task(&daemon);
    let mut partition = producer(&task, 2, Strategy::Rebalance, options());
    daemon.hold(true);
    // Four records fit into the one segment that each may have open; nobody has come who would give credit.
    for number in 0..8 {
        assert_eq!(
            partition.try_emit(&record(number, 1000)).expect("try"),
            Tried::Emitted,
            "record {number}"
        );
    }
    assert_eq!(partition.try_emit(&record(8, 1000)).expect("try"), Tried::WouldBlock(Lacking::Quota));
}

#[test]
fn a_consumer_at_its_quota_is_told_from_an_empty_pool() {
    let daemon = Daemon::start(Settings { quota: 2, partition_segments: 60, ..Settings::default() });
    let task = task(&daemon);
    let mut partition = producer(&task, 2, Strategy::Rebalance, options());
    daemon.hold(true);
    let lack = loop {
        match partition.try_emit(&record(0, 1000)).expect("try") {
            Tried::Emitted => {}
            Tried::WouldBlock(lack) => break lack,
        }
    };
    assert_eq!(lack, Lacking::Quota);
    assert_eq!(partition.try_emit_to(1, &record(0, 1000)).expect("try"), Tried::WouldBlock(Lacking::Quota));
}

#[test]
fn rescale_joins_neighbours() {
    // Producers, consumers, and for each consumer the producers that it reads from.
    let wirings: [(u32, u32, &[&[u32]]); 5] = [
        (4, 2, &[&[0, 1], &[2, 3]]),
        (2, 4, &[&[0], &[0], &[1], &[1]]),
        (5, 2, &[&[0, 1], &[2, 3, 4]]),
        (2, 5, &[&[0], &[0], &[0], &[1], &[1]]),
        (3, 3, &[&[0], &[1], &[2]]),
    ];
    for (producers, consumers, wiring) in wirings {
        let daemon = Daemon::start(Settings::default());
        let task = task(&daemon);
        let senders: Vec<_> = (0..producers)
            .map(|index| {
                let mut partition = task
                    .partition("x", index, producers, consumers, Strategy::Rescale, options())
                    .expect("partition");
                let fed: Vec<u32> =
                    (0..partition.subpartitions()).map(|of| partition.consumer_of(of)).collect();
                let expected: Vec<u32> =
                    (0..consumers).filter(|of| wiring[*of as usize].contains(&index)).collect();
                assert_eq!(fed, expected, "producer {index} of {producers} for {consumers}");
                thread::spawn(move || {
                    (0..600).for_each(|number| partition.emit(&record(number, 500)).expect("emit"));
                    partition.finish().expect("finish");
                })
            })
            .collect();
        let gates = (0..consumers).map(|index| consumer(&task, index, consumers));
        let readers: Vec<_> =
            gates.map(|mut gate| thread::spawn(move || count_by_producer(&mut gate))).collect();
        let mut of_producers = BTreeMap::new();
        for (index, reader) in readers.into_iter().enumerate() {
            let counts = reader.join().expect("a reader");
            assert!(counts.keys().eq(wiring[index]), "{counts:?} at consumer {index} of {consumers}");
            for (producer, count) in counts {
                *of_producers.entry(producer).or_insert(0) += count;
            }
        }
        assert_eq!(of_producers, (0..producers).map(|producer| (producer, 600)).collect());
        senders.into_iter().for_each(|sender| sender.join().expect("sender"));
    }
}

#[test]
fn rescale_goes_on_without_a_consumer_of_its_share_and_names_it_by_its_number() {
    let daemon = Daemon::start(Settings::default());
    let task = task(&daemon);
    let options = PartitionOptions { on_consumer_death: ConsumerDeath::ContinueWithout, ..options() };
    let mut partition =
        task.partition("x", 1, 2, 4, Strategy::Rescale, options).expect("producer 1 feeds 2 and 3");
    let mut gate = consumer(&task, 2, 4);
    // Its subpartition 1 is consumer 3.
    daemon.lose_consumer("x", 1, 0);
    (0..10).for_each(|number| partition.emit(&record(number, 10)).expect("emit"));
    match partition.emit_to(1, b"x") {
        Err(Error::Failed { channel: Some(3), failure }) => {
            assert!(failure.text.contains("consumer 3"), "{failure}");
        }
        other => panic!("{other:?}; needed: consumer 3 is gone"),
    }
    let sender = thread::spawn(move || partition.finish().expect("finish"));
    assert_eq!(read_all(&mut gate).len(), 10);
    assert_eq!(sender.join().expect("sender").lost_consumers, 1);
}

#[test]
fn a_selector_of_the_application_decides() {
    let daemon = Daemon::start(Settings::default());
    let task = task(&daemon);
    let by_key = |record: &[u8], key: Option<&[u8]>, consumers: u32| {
        u32::from(key.unwrap_or(record)[0] - b'0') % consumers
    };
    let mut partition = task.partition_with_selector("x", 0, 1, 3, by_key, options()).expect("partition");
    let mut gates = [0, 1, 2].map(|index| consumer(&task, index, 3));
    assert_eq!(gates[0].shape().strategy, Strategy::Custom);
    partition.emit(b"2 goes by itself").expect("emit");
    partition.emit_keyed(b"1", b"0 goes by its key").expect("emit");
    partition.emit_keyed(b"4", b"another of the same").expect("emit");
    assert_eq!(partition.try_emit_keyed(b"0", b"tried").expect("try"), Tried::Emitted);
    let sender = thread::spawn(move || partition.finish().expect("finish"));
    let read = gates.each_mut().map(read_all);
    assert_eq!(read[0], [b"tried"]);
    assert_eq!(read[1], [&b"0 goes by its key"[..], b"another of the same"]);
    assert_eq!(read[2], [b"2 goes by itself"]);
    sender.join().expect("sender");
}

#[test]
fn a_selector_that_chooses_nobody_is_an_error_and_the_partition_goes_on() {
    let daemon = Daemon::start(Settings::default());
    let task = task(&daemon);
    let by_length = |record: &[u8], _: Option<&[u8]>, _: u32| record.len() as u32;
    let mut partition = task.partition_with_selector("x", 0, 1, 2, by_length, options()).expect("partition");
    let mut gates = [0, 1].map(|index| consumer(&task, index, 2));
    for result in [partition.emit(b"22"), partition.try_emit(b"22").map(drop)] {
        let error = result.expect_err("there is no consumer 2");
        assert!(matches!(error, Error::SelectedOutOfRange { found: 2, count: 2 }), "{error:?}");
        assert_eq!(error.to_string(), "the selector chose subpartition 2; needed: 0 to 1");
    }
    partition.emit(b"1").expect("emit");
    let sender = thread::spawn(move || partition.finish().expect("finish"));
    assert_eq!(gates.each_mut().map(|gate| read_all(gate).len()), [0, 1]);
    sender.join().expect("sender");
}

/// Of the next few the one with the fewest segments in use.
struct LeastTaken {
    current: u32,
}

impl ChannelSelector for LeastTaken {
    fn select(&mut self, record: &[u8], _key: Option<&[u8]>, targets: &mut Targets<'_>) -> u32 {
        let count = targets.count();
        let next = (1..=count).map(|step| (self.current + step) % count);
        self.current = next
            .min_by_key(|target| (!targets.has_room(*target, record.len()), targets.taken_segments(*target)))
            .expect("there is one");
        self.current
    }
}

#[test]
fn a_selector_sees_who_is_behind() {
    let daemon = Daemon::start(Settings::default());
    let task = task(&daemon);
    let mut partition =
        task.partition_with_selector("x", 0, 1, 2, LeastTaken { current: 0 }, options()).expect("partition");
    let (mut awake, mut asleep) = (consumer(&task, 0, 2), consumer(&task, 1, 2));
    let sender = thread::spawn(move || {
        (0..2000).for_each(|number| partition.emit(&record(number, 1000)).expect("emit"));
        partition.finish().expect("finish")
    });
    // The sleeper can hold a quota of 10 segments of 4 records, the 16 of its gate, and one that is open.
    let few = 2000 - (10 + 16 + 1) * 4;
    (0..few).for_each(|_| drop(next_record(&mut awake)));
    let sleeper = thread::spawn(move || read_all(&mut asleep).len());
    assert_eq!(few + read_all(&mut awake).len() + sleeper.join().expect("the sleeper"), 2000);
    sender.join().expect("sender");
}

#[test]
fn what_cannot_work_is_said_before_anything_is_asked() {
    let daemon = Daemon::start(Settings::default());
    let task = task(&daemon);
    let refused = |strategy, options| match task.partition("x", 0, 1, 3, strategy, options) {
        Err(Error::Option { name, text }) => format!("{name} {text}"),
        other => panic!("{other:?}; needed: a refusal"),
    };
    let custom = refused(Strategy::Custom, options());
    assert_eq!(custom, "strategy is custom, without a selector; needed: Task::partition_with_selector");
    let salt = |salt| PartitionOptions { salt: Some(salt), ..options() };
    assert_eq!(refused(Strategy::Hash, salt(4)), "salt is 4; needed: 1 to 3, the consumers");
    assert_eq!(refused(Strategy::Hash, salt(0)), "salt is 0; needed: 1 to 3, the consumers");
    assert_eq!(refused(Strategy::Rebalance, salt(2)), "salt is given with strategy rebalance; needed: hash");
    let first = PartitionOptions { first_subpartition: Some(3), ..options() };
    assert_eq!(
        refused(Strategy::Rebalance, first),
        "first_subpartition is 3; needed: less than 3, the subpartitions"
    );
    // Its share has two of the four.
    let first = PartitionOptions { first_subpartition: Some(2), ..options() };
    let made = task.partition("x", 0, 2, 4, Strategy::Rescale, first);
    assert!(matches!(made, Err(Error::Option { name: "first_subpartition", .. })), "{made:?}");
}

/// The consumers that get records of each of these keys.
fn consumers_of(task: &Task, exchange: &str, salt: Option<u32>, keys: &[&str]) -> Vec<Vec<u32>> {
    const CONSUMERS: u32 = 6;
    let options = PartitionOptions { salt, ..options() };
    let mut partition =
        task.partition(exchange, 0, 1, CONSUMERS, Strategy::Hash, options).expect("partition");
    for _ in 0..200 {
        keys.iter().for_each(|key| partition.emit_keyed(key.as_bytes(), key.as_bytes()).expect("emit"));
    }
    let gates: Vec<Gate> = (0..CONSUMERS)
        .map(|index| {
            task.gate(exchange, index, CONSUMERS, weir_client::GateOptions::default()).expect("gate")
        })
        .collect();
    let sender = thread::spawn(move || partition.finish().expect("finish"));
    let read: Vec<_> = gates.into_iter().map(|mut gate| read_all(&mut gate)).collect();
    sender.join().expect("sender");
    assert_eq!(read.iter().map(Vec::len).sum::<usize>(), 200 * keys.len(), "every record once");
    let reaches = |key: &str, of: &Vec<Vec<u8>>| of.iter().any(|record| record == key.as_bytes());
    let of_key =
        |key: &&str| (0..).zip(&read).filter(|(_, of)| reaches(key, of)).map(|(index, _)| index).collect();
    keys.iter().map(of_key).collect()
}

#[test]
fn salt_spreads_a_key_over_so_many_consumers_its_own_among_them() {
    let daemon = Daemon::start(Settings::default());
    let task = task(&daemon);
    let keys = ["ada", "grace", "edsger", "barbara", "hot"];
    let own = consumers_of(&task, "plain", None, &keys);
    assert!(own.iter().all(|consumers| consumers.len() == 1), "{own:?}");
    for salt in [1, 2, 3, 4, 6] {
        let spread = consumers_of(&task, &format!("salt-{salt}"), Some(salt), &keys);
        for (own, spread) in own.iter().zip(&spread) {
            assert!(spread.len() == salt as usize && spread.contains(&own[0]), "{spread:?} with salt {salt}");
        }
    }
}

#[test]
fn a_hot_key_is_named_with_its_share() {
    let daemon = Daemon::start(Settings { partition_segments: 200, quota: 200, ..Settings::default() });
    let task = task(&daemon);
    let mut partition = producer(&task, 4, Strategy::Hash, options());
    assert_eq!(partition.heavy_keys(), []);
    let gates: Vec<Gate> = (0..4).map(|index| consumer(&task, index, 4)).collect();
    // Half of all records are of one key, a tenth of another, and the rest of a thousand.
    for number in 0..20_000_u32 {
        let key = match number % 10 {
            0 | 3 | 4 | 7 | 9 => "hot".to_owned(),
            5 => "warm".to_owned(),
            _ => format!("key-{}", number * 7 % 1000),
        };
        partition.emit_keyed(key.as_bytes(), b"").expect("emit");
    }
    let heavy = partition.heavy_keys();
    assert!(heavy.len() <= 64);
    assert_eq!((&heavy[0].key[..], heavy[0].key_bytes), (&b"hot"[..], 3));
    assert!((0.4..0.6).contains(&heavy[0].share) && heavy[0].share_min > 0.4, "{:?}", heavy[0]);
    assert_eq!(heavy[1].key, b"warm");
    assert!((0.05..0.2).contains(&heavy[1].share), "{:?}", heavy[1]);
    assert!(heavy[2].share_min < 0.05, "{:?}", heavy[2]);
    let sender = thread::spawn(move || partition.finish().expect("finish"));
    gates.into_iter().for_each(|mut gate| drop(read_all(&mut gate)));
    sender.join().expect("sender");
    let in_turn = task.partition("y", 0, 1, 2, Strategy::Rebalance, options()).expect("partition");
    assert_eq!(in_turn.heavy_keys(), [], "it goes by no key");
}
