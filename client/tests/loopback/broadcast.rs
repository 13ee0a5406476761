//! A broadcast as its producer's client sees it: one address, one segment and one submission, however many consumers
//! there are. That each of them gets everything, the end-to-end tests show.

use weir_client::{Error, PartitionOptions, Strategy};
use weir_ipc::Submission;

use crate::daemon::{Daemon, Settings};
use crate::{producer, record, task};

#[test]
fn what_is_for_every_consumer_is_handed_over_once() {
    let daemon = Daemon::start(Settings::default());
    let task = task(&daemon);
    let mut partition = producer(&task, 3, Strategy::Broadcast, PartitionOptions::default());
    assert_eq!(partition.subpartitions(), 1);
    for number in 0..10 {
        partition.emit(&record(number, 100)).expect("emit");
    }
    partition.emit_event(b"to all", false).expect("event");
    partition.emit_keyed(b"key", &record(10, 100)).expect("emit");
    partition.flush().expect("flush");
    let (mut bytes, mut records, mut events) = (0, 0, 0);
    for submission in daemon.submissions() {
        match submission {
            Submission::Data { subpartition: 0, bytes: more, records: ended, .. } => {
                bytes += more;
                records += ended;
            }
            Submission::Event { subpartition: 0, payload, priority: false } => {
                assert_eq!(payload, b"to all");
                events += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((bytes, records, events), (11 * (4 + 100), 11, 1));
    let refused = partition.emit_to(1, b"to one");
    assert!(matches!(refused, Err(Error::NoSuchSubpartition { found: 1, count: 1 })), "{refused:?}");
}

/// The pool is one account: it is used up as with one consumer, and no consumer has a reserve of its own.
#[test]
fn the_quota_is_that_of_the_partition() {
    let daemon = Daemon::start(Settings::default());
    let task = task(&daemon);
    let mut held = Vec::new();
    for (consumers, strategy) in [(1, Strategy::Forward), (1, Strategy::Broadcast), (64, Strategy::Broadcast)]
    {
        let options = PartitionOptions { quota: Some(3), ..PartitionOptions::default() };
        let mut partition = task
            .partition(&format!("x{}", held.len()), 0, 1, consumers, strategy, options)
            .expect("a partition");
        let mut emitted = 0;
        while partition.try_emit(&record(emitted, 1000)).expect("emit").is_emitted() {
            emitted += 1;
        }
        assert!(!partition.is_available().expect("a partition"));
        held.push(emitted);
    }
    assert!(held[0] > 0 && held.iter().all(|emitted| *emitted == held[0]), "{held:?}");
}
