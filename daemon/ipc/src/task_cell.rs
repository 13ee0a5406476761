//! What each task of a client is doing, and for how long it has done what: cells that the client writes and the
//! daemon reads.
//!
//! Each cell is a seqlock: the writer makes the sequence odd, writes, and makes it even again; a reader that met an
//! odd or a changed sequence has no snapshot. It tries a few times and then reports none, so that a writer that dies
//! or lies in between can never hold it up. Times are nanoseconds of CLOCK_MONOTONIC, which all processes of a
//! machine share.
//!
//! Which state a task is in is the client's business: hard before soft before idle before busy, and idle only if no
//! output waits.

use crate::fault::IpcFault;
use crate::layout::{TASK_CELL_BYTES, TASKS_MAX};
use crate::primitive::{Ordering, fence};
use crate::words::{Backing, Words};

const CELL_WORDS: usize = TASK_CELL_BYTES / 8;
const SEQUENCE: usize = 0;
const STATE: usize = 1;
const SINCE: usize = 2;
const TOTALS: usize = 3;

/// States of a task.
pub const TASK_STATES: usize = 4;

/// Most tries of one read.
const TRIES: u32 = if cfg!(loom) { 2 } else { 8 };

/// What a task is doing. The numbers are those of its cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum TaskState {
    /// It waits for input.
    Idle = 0,
    /// It works.
    Busy = 1,
    /// Its output is not available, and it can still react.
    Soft = 2,
    /// It is blocked inside an emit.
    Hard = 3,
}

impl TaskState {
    /// Every state, in the order of its numbers.
    pub const ALL: [Self; TASK_STATES] = [Self::Idle, Self::Busy, Self::Soft, Self::Hard];
}

/// One task's times, as its cell said them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskTimes {
    /// What it is doing.
    pub state: TaskState,
    /// Since when.
    pub since_ns: u64,
    /// How long it has done each, by number of the state, up to `since_ns`.
    pub total_ns: [u64; TASK_STATES],
}

impl TaskTimes {
    /// The totals at `now_ns`, with the open interval counted to its state.
    #[must_use]
    pub fn totals_at(&self, now_ns: u64) -> [u64; TASK_STATES] {
        let mut totals = self.total_ns;
        if let Some(total) = totals.get_mut(self.state as usize) {
            *total = total.saturating_add(now_ns.saturating_sub(self.since_ns));
        }
        totals
    }
}

/// The cell of `task` among `cells`.
fn cell_words(cells: &Words, task: u32) -> Option<Words> {
    if task >= TASKS_MAX {
        return None;
    }
    cells.part(task as usize * CELL_WORDS, CELL_WORDS)
}

/// `tasks` cells in memory of this process, for tests and models.
#[must_use]
pub fn private(tasks: u32) -> Option<(TaskCells, TaskCellReader)> {
    let count = CELL_WORDS * tasks as usize;
    let words = Words::new(&Backing::private(count), 0, count)?;
    Some((TaskCells { words: words.clone() }, TaskCellReader { words }))
}

/// The client's end: hands out the cells.
pub struct TaskCells {
    words: Words,
}

impl TaskCells {
    /// Starts the clock of `task`, whose number the daemon gave; it is in `state` from `now_ns` on. `None` if there
    /// is no such cell. A task is started once; another one may have had the cell before, and writes it no more.
    #[must_use]
    pub fn start(&self, task: u32, state: TaskState, now_ns: u64) -> Option<TaskCell> {
        let words = cell_words(&self.words, task)?;
        let times = TaskTimes { state, since_ns: now_ns, total_ns: [0; TASK_STATES] };
        // It goes on from where the task before has left it: a reader that began with a sequence of that one must not
        // meet the same again. Relaxed: only this process writes it, and who had the cell before has given it back.
        let sequence = words.load(SEQUENCE, Ordering::Relaxed) & !1;
        let mut cell = TaskCell { words, sequence, times };
        cell.write();
        Some(cell)
    }
}

/// One task's cell, for its client.
pub struct TaskCell {
    words: Words,
    sequence: u64,
    times: TaskTimes,
}

impl TaskCell {
    /// The task is in `state` from `now_ns` on. The interval that ends is added to the total of the state that it
    /// was in. Also right if the state does not change.
    pub fn enter(&mut self, state: TaskState, now_ns: u64) {
        self.times.total_ns = self.times.totals_at(now_ns);
        self.times.state = state;
        self.times.since_ns = now_ns;
        self.write();
    }

    /// What the cell says now.
    #[must_use]
    pub fn times(&self) -> TaskTimes {
        self.times
    }

    fn write(&mut self) {
        self.words.store(SEQUENCE, self.sequence.wrapping_add(1), Ordering::Relaxed);
        // Pairs with the Acquire fence in `TaskCellReader::read`: who reads a word written below sees the odd
        // sequence, too.
        fence(Ordering::Release);
        self.words.store(STATE, self.times.state as u64, Ordering::Relaxed);
        self.words.store(SINCE, self.times.since_ns, Ordering::Relaxed);
        for (index, total) in self.times.total_ns.into_iter().enumerate() {
            self.words.store(TOTALS + index, total, Ordering::Relaxed);
        }
        self.sequence = self.sequence.wrapping_add(2);
        // Release: pairs with the Acquire load in `TaskCellReader::read`.
        self.words.store(SEQUENCE, self.sequence, Ordering::Release);
    }
}

/// The daemon's end: reads the cells.
pub struct TaskCellReader {
    words: Words,
}

impl TaskCellReader {
    /// A consistent snapshot of a task's cell. `None`: it was never started, there is no such cell, or its writer
    /// was in the middle of it at every try; the last snapshot still holds.
    ///
    /// # Errors
    /// The state is none. Times are claims: the reader of the snapshot clamps them to the time that passed.
    pub fn read(&self, task: u32) -> Result<Option<TaskTimes>, IpcFault> {
        let Some(cell) = cell_words(&self.words, task) else { return Ok(None) };
        for _ in 0..TRIES {
            // Acquire: pairs with the Release store that ends `TaskCell::write`.
            let sequence = cell.load(SEQUENCE, Ordering::Acquire);
            if sequence == 0 {
                return Ok(None);
            }
            let state = cell.load(STATE, Ordering::Relaxed);
            let since_ns = cell.load(SINCE, Ordering::Relaxed);
            let total_ns = std::array::from_fn(|index| cell.load(TOTALS + index, Ordering::Relaxed));
            // Pairs with the Release fence in `TaskCell::write`.
            fence(Ordering::Acquire);
            if sequence % 2 != 0 || cell.load(SEQUENCE, Ordering::Relaxed) != sequence {
                continue;
            }
            let Some(state) = TaskState::ALL.into_iter().find(|known| *known as u64 == state) else {
                return Err(IpcFault::new("task.state", state, "0 (idle), 1 (busy), 2 (soft) or 3 (hard)"));
            };
            return Ok(Some(TaskTimes { state, since_ns, total_ns }));
        }
        Ok(None)
    }
}

/// Making and mapping the memfd.
#[cfg(not(loom))]
mod mapping {
    use std::io;
    use std::os::fd::OwnedFd;

    use super::{TaskCellReader, TaskCells};
    use crate::layout::task_places;
    use crate::memory::Memory;

    impl TaskCellReader {
        /// Makes the cells of an attachment. The descriptor is for the client.
        ///
        /// # Errors
        /// The kernel refuses.
        pub fn create() -> io::Result<(Self, OwnedFd)> {
            let (header, cells) = task_places();
            let (memory, fd) = Memory::create("weir-tasks", &header)?;
            Ok((Self { words: memory.words(cells)? }, fd))
        }
    }

    impl TaskCells {
        /// Maps the cells that the daemon passed.
        ///
        /// # Errors
        /// The memory is not of this version, or the kernel refuses.
        pub fn attach(fd: OwnedFd) -> io::Result<Self> {
            let (header, cells) = task_places();
            Ok(Self { words: Memory::attach(fd, &header)?.words(cells)? })
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
