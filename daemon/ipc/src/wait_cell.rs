//! How long a partition's client has waited for what, and what it waits for now: a cell that the client writes when a wait
//! begins and when it ends, and the daemon reads.
//!
//! It is a seqlock as a task cell is ([`crate::task_cell`]), over one cell for the partition and one for each
//! subpartition: the client makes the sequence odd, writes, and makes it even again. So a wait that ends is in the
//! totals exactly when it is no longer the one that goes on. A reader that meets an odd or a changed sequence tries a
//! few times and then reports nothing, so that a writer that dies or lies in between never holds it up.
//!
//! Times are nanoseconds of CLOCK_MONOTONIC. All numbers are claims. What is no kind, or names no subpartition, is a
//! fault; times and counts are cut by who reads them, to what the time that passed allows.

use crate::fault::IpcFault;
use crate::layout::{CHANNELS_MAX, SUBPARTITION_WAIT_CELL_BYTES, WAIT_CELL_BYTES};
use crate::primitive::{Ordering, fence};
use crate::words::{Backing, Words};

const PARTITION_WORDS: usize = WAIT_CELL_BYTES / 8;
const SUBPARTITION_WORDS: usize = SUBPARTITION_WAIT_CELL_BYTES / 8;

const SEQUENCE: usize = 0;
/// What is waited for: kind in the low half, subpartition in the high half; 0: nothing.
const OPEN: usize = 1;
const SINCE: usize = 2;
/// The subpartition of the wait that ended last, of those that have one.
const LAST: usize = 3;
/// Time and number of waits for the pool, for any, and for room in the ring.
const COMMON: usize = 4;

/// Most tries of one read.
const TRIES: u32 = if cfg!(loom) { 2 } else { 8 };

/// What a client waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WaitKind {
    /// A segment of the partition's pool.
    Pool,
    /// A segment for whichever subpartition has room first.
    Any,
    /// Room in the submit ring.
    Ring,
    /// A segment of this subpartition, which holds as many as it may.
    Quota(u32),
    /// A place for an event of this subpartition.
    Event(u32),
}

impl WaitKind {
    /// As its word says it.
    fn word(self) -> u64 {
        let (kind, subpartition) = match self {
            Self::Pool => (1, 0),
            Self::Any => (2, 0),
            Self::Ring => (3, 0),
            Self::Quota(subpartition) => (4, subpartition),
            Self::Event(subpartition) => (5, subpartition),
        };
        kind | u64::from(subpartition) << 32
    }

    /// What a word says, if anything.
    fn from_word(word: u64, subpartitions: u32) -> Result<Option<Self>, IpcFault> {
        let (kind, subpartition) = (word & 0xffff_ffff, (word >> 32) as u32);
        let found = match kind {
            0 => None,
            1 => Some(Self::Pool),
            2 => Some(Self::Any),
            3 => Some(Self::Ring),
            4 => Some(Self::Quota(subpartition)),
            5 => Some(Self::Event(subpartition)),
            _ => {
                let needed = "0 (none), 1 (pool), 2 (any), 3 (ring), 4 (quota) or 5 (event)";
                return Err(IpcFault::new("wait.kind", kind, needed));
            }
        };
        match found {
            Some(Self::Quota(_) | Self::Event(_)) => {
                IpcFault::check_below("wait.subpartition", subpartition, subpartitions)?;
            }
            _ => IpcFault::check_zero("wait.subpartition", subpartition.into())?,
        }
        Ok(found)
    }

    /// The subpartition that it is about, if it is about one.
    #[must_use]
    pub const fn subpartition(self) -> Option<u32> {
        match self {
            Self::Quota(subpartition) | Self::Event(subpartition) => Some(subpartition),
            Self::Pool | Self::Any | Self::Ring => None,
        }
    }
}

/// Waits of one kind that have ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitTotal {
    /// How long they took, in nanoseconds.
    pub ns: u64,
    /// How many they were.
    pub count: u64,
}

impl WaitTotal {
    fn add(&mut self, ns: u64) {
        self.ns = self.ns.saturating_add(ns);
        self.count = self.count.saturating_add(1);
    }
}

/// What the cell of the partition says, and the one of the subpartition that was asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// The wait that goes on, and since when, in nanoseconds.
    pub open: Option<(WaitKind, u64)>,
    /// The subpartition of the wait that ended last, of those at a quota or an event window; 0 before the first.
    pub last: u32,
    /// Waits for the pool.
    pub pool: WaitTotal,
    /// Waits for any subpartition.
    pub any: WaitTotal,
    /// Waits for room in the submit ring.
    pub ring: WaitTotal,
    /// Waits at the quota of the subpartition that was asked for.
    pub quota: WaitTotal,
    /// Waits at its event window.
    pub event: WaitTotal,
}

/// Where the cells lie: that of the partition, and those of its subpartitions.
#[derive(Clone)]
struct Cells {
    partition: Words,
    subpartitions: Words,
}

impl Cells {
    fn of(&self, subpartition: u32) -> Option<Words> {
        self.subpartitions.part(subpartition as usize * SUBPARTITION_WORDS, SUBPARTITION_WORDS)
    }

    fn total(words: &Words, index: usize) -> WaitTotal {
        let word = |index| words.load(index, Ordering::Relaxed);
        WaitTotal { ns: word(index), count: word(index + 1) }
    }
}

/// The cells of a partition with so many subpartitions in memory of this process, for tests and models.
#[must_use]
pub fn private(subpartitions: u32) -> Option<(WaitCell, WaitCellReader)> {
    let count = PARTITION_WORDS + SUBPARTITION_WORDS * subpartitions as usize;
    let backing = Backing::private(count);
    let partition = Words::new(&backing, 0, PARTITION_WORDS)?;
    let cells = Words::new(&backing, PARTITION_WORDS, count - PARTITION_WORDS)?;
    Some((WaitCell::new(partition.clone(), cells.clone()), WaitCellReader::new(partition, cells)))
}

/// The client's end.
pub struct WaitCell {
    cells: Cells,
    sequence: u64,
    open: Option<(WaitKind, u64)>,
    /// Waits for the pool, for any, for room in the ring.
    common: [WaitTotal; 3],
    /// For each subpartition that was ever waited for: at its quota, at its event window.
    own: Vec<[WaitTotal; 2]>,
}

impl WaitCell {
    /// Nothing was waited for yet.
    pub(crate) fn new(partition: Words, subpartitions: Words) -> Self {
        let cells = Cells { partition, subpartitions };
        Self { cells, sequence: 0, open: None, common: [WaitTotal::default(); 3], own: Vec::new() }
    }

    /// The client waits for this from `now_ns` on. One that waited for the same goes on; one that waited for something else
    /// has ended.
    pub fn begin(&mut self, kind: WaitKind, now_ns: u64) {
        if self.open.is_some_and(|(open, _)| open == kind) {
            return;
        }
        self.change(Some(kind), now_ns);
    }

    /// The wait has ended. Without effect if there is none.
    pub fn end(&mut self, now_ns: u64) {
        if self.open.is_some() {
            self.change(None, now_ns);
        }
    }

    fn change(&mut self, kind: Option<WaitKind>, now_ns: u64) {
        let words = &self.cells.partition;
        words.store(SEQUENCE, self.sequence.wrapping_add(1), Ordering::Relaxed);
        // Pairs with the Acquire fence in `WaitCellReader::read`: who reads a word written below sees the odd
        // sequence, too.
        fence(Ordering::Release);
        if let Some((ended, since_ns)) = self.open.take() {
            self.count(ended, now_ns.saturating_sub(since_ns));
        }
        let words = &self.cells.partition;
        words.store(OPEN, kind.map_or(0, WaitKind::word), Ordering::Relaxed);
        words.store(SINCE, now_ns, Ordering::Relaxed);
        self.open = kind.map(|kind| (kind, now_ns));
        self.sequence = self.sequence.wrapping_add(2);
        // Release: pairs with the Acquire load in `WaitCellReader::read`.
        words.store(SEQUENCE, self.sequence, Ordering::Release);
    }

    /// Adds a wait that has ended to its total.
    fn count(&mut self, kind: WaitKind, ns: u64) {
        let (words, index, total) = match kind {
            WaitKind::Pool | WaitKind::Any | WaitKind::Ring => {
                let place = match kind {
                    WaitKind::Pool => 0,
                    WaitKind::Any => 1,
                    _ => 2,
                };
                let Some(total) = self.common.get_mut(place) else { return };
                (self.cells.partition.clone(), COMMON + 2 * place, total)
            }
            WaitKind::Quota(subpartition) | WaitKind::Event(subpartition) => {
                let place = usize::from(matches!(kind, WaitKind::Event(_)));
                let Some(words) = self.cells.of(subpartition) else { return };
                if self.own.len() <= subpartition as usize {
                    // Less than CHANNELS_MAX: the subpartition has a cell.
                    self.own.resize(subpartition as usize + 1, [WaitTotal::default(); 2]);
                }
                self.cells.partition.store(LAST, subpartition.into(), Ordering::Relaxed);
                let own = self.own.get_mut(subpartition as usize);
                let Some(total) = own.and_then(|own| own.get_mut(place)) else { return };
                (words, 2 * place, total)
            }
        };
        total.add(ns);
        words.store(index, total.ns, Ordering::Relaxed);
        words.store(index + 1, total.count, Ordering::Relaxed);
    }
}

/// The daemon's end.
pub struct WaitCellReader {
    cells: Cells,
    count: u32,
}

impl WaitCellReader {
    pub(crate) fn new(partition: Words, subpartitions: Words) -> Self {
        // At most CHANNELS_MAX, as the layout has it.
        let count = u32::try_from(subpartitions.count() / SUBPARTITION_WORDS).unwrap_or(CHANNELS_MAX);
        Self { cells: Cells { partition, subpartitions }, count }
    }

    /// The number of the last change; odd in the middle of one. Equal to that of an earlier call: nothing has changed since.
    #[must_use]
    pub fn sequence(&self) -> u64 {
        // Relaxed: a hint, no number is read because of it.
        self.cells.partition.load(SEQUENCE, Ordering::Relaxed)
    }

    /// A consistent snapshot, with the totals of this subpartition; zeros for one out of range. `None`: the writer was in
    /// the middle of a change at every try; the last snapshot still holds.
    ///
    /// # Errors
    /// The wait that goes on is of no kind, or of a subpartition that there is not.
    pub fn read(&self, subpartition: u32) -> Result<Option<Waits>, IpcFault> {
        let words = &self.cells.partition;
        let own = self.cells.of(subpartition);
        for _ in 0..TRIES {
            // Acquire: pairs with the Release store that ends `WaitCell::change`.
            let sequence = words.load(SEQUENCE, Ordering::Acquire);
            let (open, since_ns) =
                (words.load(OPEN, Ordering::Relaxed), words.load(SINCE, Ordering::Relaxed));
            let last = words.load(LAST, Ordering::Relaxed);
            let [pool, any, ring] = [0, 1, 2].map(|place| Cells::total(words, COMMON + 2 * place));
            let [quota, event] =
                [0, 1].map(|place| own.as_ref().map(|own| Cells::total(own, 2 * place)).unwrap_or_default());
            // Pairs with the Release fence in `WaitCell::change`.
            fence(Ordering::Acquire);
            if !sequence.is_multiple_of(2) || words.load(SEQUENCE, Ordering::Relaxed) != sequence {
                continue;
            }
            let open = WaitKind::from_word(open, self.count)?.map(|kind| (kind, since_ns));
            let last = u32::try_from(last).unwrap_or(u32::MAX);
            IpcFault::check_below("wait.last", last, self.count)?;
            return Ok(Some(Waits { open, last, pool, any, ring, quota, event }));
        }
        Ok(None)
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
