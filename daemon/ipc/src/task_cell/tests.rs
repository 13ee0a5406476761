use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;

use super::*;

#[test]
fn each_interval_goes_to_the_state_that_it_was_spent_in() {
    let (cells, reader) = private(TASKS_MAX).unwrap();
    let mut cell = cells.start(3, TaskState::Busy, 1000).unwrap();
    cell.enter(TaskState::Soft, 1010);
    cell.enter(TaskState::Hard, 1013);
    cell.enter(TaskState::Hard, 1020);
    cell.enter(TaskState::Idle, 1100);
    let times = reader.read(3).unwrap().unwrap();
    assert_eq!(times, TaskTimes { state: TaskState::Idle, since_ns: 1100, total_ns: [0, 10, 3, 87] });
    assert_eq!(times, cell.times());
    assert_eq!(times.totals_at(1150), [50, 10, 3, 87], "the open interval counts");
    assert_eq!(times.totals_at(1150).iter().sum::<u64>(), 150, "they add up to the time that passed");
    assert_eq!(times.totals_at(1000), [0, 10, 3, 87], "a clock that is behind adds nothing");
}

#[test]
fn cells_are_apart() {
    let (cells, reader) = private(TASKS_MAX).unwrap();
    let mut tasks: Vec<_> =
        (0..TASKS_MAX).map(|task| cells.start(task, TaskState::Busy, u64::from(task)).unwrap()).collect();
    for (task, cell) in (0_u64..).zip(&mut tasks) {
        cell.enter(TaskState::Idle, 2 * task);
    }
    for task in 0..TASKS_MAX {
        let since = u64::from(task);
        let needed = TaskTimes { state: TaskState::Idle, since_ns: 2 * since, total_ns: [0, since, 0, 0] };
        assert_eq!(reader.read(task), Ok(Some(needed)));
    }
    assert!(cells.start(TASKS_MAX, TaskState::Busy, 0).is_none());
    assert_eq!(reader.read(TASKS_MAX), Ok(None));
    assert_eq!(reader.read(u32::MAX), Ok(None));
}

#[test]
fn a_cell_that_changes_hands_begins_anew_and_never_repeats_a_sequence() {
    let (cells, reader) = private(TASKS_MAX).unwrap();
    let mut seen = std::collections::BTreeSet::new();
    for task in 0..100 {
        let mut cell = cells.start(7, TaskState::Busy, 1000 * task).unwrap();
        let fresh = TaskTimes { state: TaskState::Busy, since_ns: 1000 * task, total_ns: [0; TASK_STATES] };
        assert_eq!(reader.read(7), Ok(Some(fresh)));
        let sequence =
            |reader: &TaskCellReader| cell_words(&reader.words, 7).unwrap().load(SEQUENCE, Ordering::Relaxed);
        assert!(seen.insert(sequence(&reader)), "a reader could take the one task for the other");
        cell.enter(TaskState::Idle, 1000 * task + 10);
        assert!(seen.insert(sequence(&reader)));
    }
    // One that was left in the middle of a write, by a client that ended there.
    cells.words.part(7 * CELL_WORDS, CELL_WORDS).unwrap().store(SEQUENCE, 401, Ordering::Relaxed);
    let _cell = cells.start(7, TaskState::Soft, 5).unwrap();
    assert_eq!(reader.read(7).unwrap().unwrap().state, TaskState::Soft);
}

#[test]
fn a_task_that_was_not_started_has_no_times() {
    let (_, reader) = private(TASKS_MAX).unwrap();
    assert_eq!(reader.read(0), Ok(None));
}

/// Every hostile value of every word of a cell.
#[test]
fn a_hostile_cell_is_a_fault_or_a_claim_and_never_holds_the_reader() {
    let (cells, reader) = private(TASKS_MAX).unwrap();
    let _cell = cells.start(0, TaskState::Busy, 5).unwrap();
    for state in [4, 255, 256, 1 << 32, u64::MAX] {
        cells.words.store(STATE, state, Ordering::Relaxed);
        let needed = "0 (idle), 1 (busy), 2 (soft) or 3 (hard)";
        assert_eq!(reader.read(0), Err(IpcFault::new("task.state", state, needed)));
    }
    cells.words.store(STATE, 3, Ordering::Relaxed);
    cells.words.store(SINCE, u64::MAX, Ordering::Relaxed);
    for index in 0..TASK_STATES {
        cells.words.store(TOTALS + index, u64::MAX, Ordering::Relaxed);
    }
    let times = reader.read(0).unwrap().unwrap();
    assert_eq!(times.totals_at(7), [u64::MAX; 4], "no overflow");
    cells.words.store(SINCE, 0, Ordering::Relaxed);
    assert_eq!(reader.read(0).unwrap().unwrap().totals_at(u64::MAX), [u64::MAX; 4], "no overflow");
    for sequence in [1, 3, u64::MAX] {
        cells.words.store(SEQUENCE, sequence, Ordering::Relaxed);
        assert_eq!(
            reader.read(0),
            Ok(None),
            "a writer that stays in the middle: no snapshot, and no hanging"
        );
    }
}

/// A snapshot is one that the writer wrote: its parts never come from two.
#[test]
fn no_snapshot_is_torn() {
    let rounds = if cfg!(miri) { 200 } else { 200_000 };
    let (cells, reader) = private(TASKS_MAX).unwrap();
    let done = Arc::new(AtomicBool::new(false));
    let mut cell = cells.start(0, TaskState::Busy, 0).unwrap();
    let finished = Arc::clone(&done);
    let writer = thread::spawn(move || {
        for round in 1..=rounds {
            let state = if round % 2 == 0 { TaskState::Busy } else { TaskState::Hard };
            cell.enter(state, round * 10);
        }
        finished.store(true, Ordering::Release);
    });
    let (mut last, mut seen) = (0, 0_u64);
    loop {
        let end = done.load(Ordering::Acquire);
        if let Some(times) = reader.read(0).unwrap() {
            assert_eq!(times.total_ns.iter().sum::<u64>(), times.since_ns);
            let needed = if times.since_ns % 20 == 0 { TaskState::Busy } else { TaskState::Hard };
            assert_eq!(times.state, needed);
            assert!(times.since_ns >= last, "no snapshot is older than the one before");
            last = times.since_ns;
            seen += 1;
        }
        if end {
            break;
        }
    }
    writer.join().unwrap();
    assert_eq!(last, rounds * 10, "the last one is seen when the writer rests");
    assert!(seen > 0);
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no memfds")]
fn cells_are_shared_through_the_memfd() {
    let (reader, fd) = TaskCellReader::create().unwrap();
    let cells = TaskCells::attach(fd).unwrap();
    let mut cell = cells.start(63, TaskState::Idle, 100).unwrap();
    cell.enter(TaskState::Busy, 140);
    let needed = TaskTimes { state: TaskState::Busy, since_ns: 140, total_ns: [40, 0, 0, 0] };
    assert_eq!(reader.read(63), Ok(Some(needed)));
}
