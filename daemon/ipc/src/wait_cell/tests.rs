use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;

use super::*;

const KINDS: [WaitKind; 7] = [
    WaitKind::Pool,
    WaitKind::Any,
    WaitKind::Ring,
    WaitKind::Quota(0),
    WaitKind::Quota(2),
    WaitKind::Event(0),
    WaitKind::Event(2),
];

/// The total of a kind, as the reader has it.
fn total(reader: &WaitCellReader, kind: WaitKind) -> WaitTotal {
    let waits = reader.read(kind.subpartition().unwrap_or(0)).unwrap().unwrap();
    match kind {
        WaitKind::Pool => waits.pool,
        WaitKind::Any => waits.any,
        WaitKind::Ring => waits.ring,
        WaitKind::Quota(_) => waits.quota,
        WaitKind::Event(_) => waits.event,
    }
}

#[test]
fn each_wait_goes_to_what_was_waited_for() {
    let (mut cell, reader) = private(3).unwrap();
    for (place, kind) in (1..).zip(KINDS) {
        cell.begin(kind, 1_000 * place);
        let open = reader.read(0).unwrap().unwrap().open;
        assert_eq!(open, Some((kind, 1_000 * place)));
        assert_eq!(total(&reader, kind), WaitTotal::default(), "an open wait is in no total");
        cell.begin(kind, 1_000 * place + 3);
        assert_eq!(reader.read(0).unwrap().unwrap().open, open, "it goes on");
        cell.end(1_000 * place + 10 * place);
        assert_eq!(reader.read(0).unwrap().unwrap().open, None);
        cell.end(1_000 * place + 500);
    }
    for (place, kind) in (1..).zip(KINDS) {
        assert_eq!(total(&reader, kind), WaitTotal { ns: 10 * place, count: 1 }, "{kind:?}");
    }
    assert_eq!(reader.read(0).unwrap().unwrap().last, 2);
    let untouched = reader.read(1).unwrap().unwrap();
    assert_eq!((untouched.quota, untouched.event), (WaitTotal::default(), WaitTotal::default()));
}

#[test]
fn a_wait_for_something_else_ends_the_one_before() {
    let (mut cell, reader) = private(3).unwrap();
    cell.begin(WaitKind::Quota(1), 100);
    cell.begin(WaitKind::Pool, 130);
    cell.begin(WaitKind::Event(1), 131);
    cell.end(200);
    assert_eq!(total(&reader, WaitKind::Quota(1)), WaitTotal { ns: 30, count: 1 });
    assert_eq!(total(&reader, WaitKind::Pool), WaitTotal { ns: 1, count: 1 });
    assert_eq!(total(&reader, WaitKind::Event(1)), WaitTotal { ns: 69, count: 1 });
    // A clock that is behind adds nothing.
    cell.begin(WaitKind::Pool, 300);
    cell.end(299);
    assert_eq!(total(&reader, WaitKind::Pool), WaitTotal { ns: 1, count: 2 });
}

#[test]
fn a_subpartition_that_there_is_not_is_ignored_by_the_writer_and_zero_for_the_reader() {
    let (mut cell, reader) = private(3).unwrap();
    cell.begin(WaitKind::Quota(3), 100);
    assert_eq!(reader.read(0).unwrap_err().field, "wait.subpartition");
    cell.end(200);
    assert_eq!(reader.read(3).unwrap().unwrap(), Waits::default());
    assert_eq!(reader.read(u32::MAX).unwrap().unwrap(), Waits::default());
}

/// Every hostile value of every word.
#[test]
fn a_hostile_cell_is_a_fault_or_a_claim_and_never_holds_the_reader() {
    let (cell, reader) = private(3).unwrap();
    let words = cell.cells.partition.clone();
    for (value, field, found) in [
        (6, "wait.kind", 6),
        (0xffff_ffff, "wait.kind", 0xffff_ffff),
        (4 | 3 << 32, "wait.subpartition", 3),
        (5 | 0xffff_ffff << 32, "wait.subpartition", 0xffff_ffff),
        (1 << 32, "wait.subpartition", 1),
        (1 | 1 << 32, "wait.subpartition", 1),
    ] {
        words.store(OPEN, value, Ordering::Relaxed);
        let fault = reader.read(0).unwrap_err();
        assert_eq!((fault.field, fault.found), (field, found), "{value:#x}");
    }
    words.store(OPEN, 4 | 2 << 32, Ordering::Relaxed);
    for last in [3, 1 << 32, u64::MAX] {
        words.store(LAST, last, Ordering::Relaxed);
        assert_eq!(reader.read(0).unwrap_err().field, "wait.last");
    }
    words.store(LAST, 0, Ordering::Relaxed);
    words.store(SINCE, u64::MAX, Ordering::Relaxed);
    for index in COMMON..COMMON + 6 {
        words.store(index, u64::MAX, Ordering::Relaxed);
    }
    let waits = reader.read(0).unwrap().unwrap();
    assert_eq!(waits.open, Some((WaitKind::Quota(2), u64::MAX)), "times are claims");
    assert_eq!(waits.pool, WaitTotal { ns: u64::MAX, count: u64::MAX });
    for sequence in [1, 3, u64::MAX] {
        words.store(SEQUENCE, sequence, Ordering::Relaxed);
        assert_eq!(reader.read(0), Ok(None), "a writer that stays in the middle");
        assert_eq!(reader.sequence(), sequence);
    }
}

#[test]
fn a_change_has_a_sequence_of_its_own() {
    let (mut cell, reader) = private(1).unwrap();
    let mut seen = std::collections::BTreeSet::from([reader.sequence()]);
    for round in 0..100 {
        cell.begin(WaitKind::Pool, round);
        assert!(seen.insert(reader.sequence()));
        cell.end(round + 1);
        assert!(seen.insert(reader.sequence()));
        cell.end(round + 1);
        assert!(!seen.insert(reader.sequence()), "nothing has changed");
    }
}

/// In each snapshot a wait is either the one that goes on, or in its total.
#[test]
fn no_snapshot_is_torn() {
    let rounds: u64 = if cfg!(miri) { 200 } else { 200_000 };
    let (mut cell, reader) = private(2).unwrap();
    let done = Arc::new(AtomicBool::new(false));
    let finished = Arc::clone(&done);
    let writer = thread::spawn(move || {
        for round in 0..rounds {
            // Every wait takes 10, and the next begins at once.
            let kind = if round % 2 == 0 { WaitKind::Quota(1) } else { WaitKind::Pool };
            cell.begin(kind, round * 10);
        }
        cell.end(rounds * 10);
        finished.store(true, Ordering::Release);
    });
    let (mut last, mut seen) = (0, 0_u64);
    loop {
        let end = done.load(Ordering::Acquire);
        if let Some(waits) = reader.read(1).unwrap() {
            let ended = waits.quota.count + waits.pool.count;
            assert_eq!(waits.quota.ns + waits.pool.ns, 10 * ended);
            let needed = if ended % 2 == 0 { WaitKind::Quota(1) } else { WaitKind::Pool };
            if let Some(open) = waits.open {
                assert_eq!(open, (needed, 10 * ended));
            }
            assert!(ended >= last, "no snapshot is older than the one before");
            last = ended;
            seen += 1;
        }
        if end {
            break;
        }
    }
    writer.join().unwrap();
    assert_eq!(last, rounds, "the last one is seen when the writer rests");
    assert!(seen > 0);
}
