//! The local buffer pool of a result partition: which subpartition may take a segment.
//!
//! Run by the client that owns the partition, once per segment and never per record. Three rules:
//! - **Reserve.** Each subpartition owns one segment that nobody else can take: what is left is always enough for
//!   every subpartition that has none in any state. So a stopped consumer never starves its siblings.
//! - **Quota.** A subpartition may hold so many segments *open or queued*. At its quota it is unavailable itself;
//!   its siblings are not. Segments that left the queue (in the kernel, or sent and not acknowledged) count for
//!   the pool only.
//! - **Overdraft.** A record that is begun may take a few more, beyond the pool and beyond the quota, so that it
//!   need not wait half written. Nothing new is begun with them, except in a subpartition's reserve.
//!
//! Invariants ([`PartitionPool::check`]): free and taken segments add up; free segments are at least as many as
//! subpartitions without any.

use alloc::vec;
use alloc::vec::Vec;
use core::fmt;

use crate::ids::{SegmentIndex, SubpartitionIndex};
use crate::invariant::{Violation, ensure};

/// Sizes of a [`PartitionPool`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionPoolSpec {
    /// All segments of the region, overdraft included: at least `subpartitions` + 1 + `overdraft`.
    pub segments: u32,
    /// Subpartitions, at least 1.
    pub subpartitions: u32,
    /// Segments that a subpartition may hold open or queued, at least 1.
    pub quota: u32,
    /// Segments that only a record already begun may take.
    pub overdraft: u32,
}

/// Sizes that cannot work. The text names what was found and what is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolSpecError {
    /// There are too few segments for one per subpartition, one to move, and the overdraft.
    Segments {
        /// Segments of the region.
        found: u32,
        /// Fewest that work.
        needed: u64,
    },
    /// A number that must be at least 1 is 0.
    Zero(&'static str),
}

impl fmt::Display for PoolSpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Segments { found, needed } => {
                write!(f, "region has {found} segments; needed: at least {needed}")
            }
            Self::Zero(field) => write!(f, "{field} is 0; needed: at least 1"),
        }
    }
}

impl core::error::Error for PoolSpecError {}

/// Why a subpartition gets no segment now. An outcome, not an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unavailable {
    /// The pool has none that this subpartition may take.
    Pool,
    /// The subpartition holds as many open or queued segments as it may.
    Quota,
}

/// A returned segment that was not out. The memory is then no longer known to be ours alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccountingError {
    /// There is no such segment.
    UnknownSegment {
        /// The segment named.
        found: SegmentIndex,
        /// Segments of the region.
        segments: u32,
    },
    /// The segment is free already.
    NotTaken(SegmentIndex),
}

impl fmt::Display for AccountingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownSegment { found, segments } => {
                write!(f, "returned segment is {found}; needed: below {segments}")
            }
            Self::NotTaken(found) => write!(f, "returned segment {found} is free; needed: one that is taken"),
        }
    }
}

impl core::error::Error for AccountingError {}

/// What one subpartition has. All three are cumulative, so that numbers which arrive late or twice do no harm.
#[derive(Clone, Copy, Debug, Default)]
struct Account {
    acquired: u64,
    /// How many of those left the queue, as the daemon says.
    sent: u64,
    returned: u64,
}

impl Account {
    /// Segments in any state but free.
    const fn taken(self) -> u64 {
        self.acquired.saturating_sub(self.returned)
    }

    /// Segments open or queued. A returned segment has left the queue, whether its sending was read or not.
    fn held(self) -> u64 {
        self.acquired.saturating_sub(self.sent.max(self.returned))
    }
}

/// The local buffer pool of a result partition.
#[derive(Debug)]
pub struct PartitionPool {
    spec: PartitionPoolSpec,
    /// The most recently returned is taken first: its memory is the warmest.
    free: Vec<SegmentIndex>,
    /// By segment: who has it.
    owners: Vec<Option<SubpartitionIndex>>,
    accounts: Vec<Account>,
    /// Subpartitions that have no segment in any state.
    empty: u32,
    high_water: u32,
}

impl PartitionPool {
    /// A pool whose segments are all free.
    ///
    /// # Errors
    /// [`PoolSpecError`] if the sizes cannot work.
    pub fn new(spec: PartitionPoolSpec) -> Result<Self, PoolSpecError> {
        for (field, value) in [("subpartitions", spec.subpartitions), ("quota", spec.quota)] {
            if value == 0 {
                return Err(PoolSpecError::Zero(field));
            }
        }
        let needed = u64::from(spec.subpartitions) + 1 + u64::from(spec.overdraft);
        if u64::from(spec.segments) < needed {
            return Err(PoolSpecError::Segments { found: spec.segments, needed });
        }
        let segments = usize::try_from(spec.segments).unwrap_or(usize::MAX);
        let subpartitions = usize::try_from(spec.subpartitions).unwrap_or(usize::MAX);
        Ok(Self {
            spec,
            free: (0..spec.segments).rev().map(SegmentIndex).collect(),
            owners: vec![None; segments],
            accounts: vec![Account::default(); subpartitions],
            empty: spec.subpartitions,
            high_water: 0,
        })
    }

    /// Takes a segment for `subpartition`. `begun` says that a record is already partly written, so that overdraft
    /// may be used.
    ///
    /// # Errors
    /// [`Unavailable`] says what to wait for. A subpartition that does not exist gets [`Unavailable::Pool`].
    pub fn acquire(
        &mut self,
        subpartition: SubpartitionIndex,
        begun: bool,
    ) -> Result<SegmentIndex, Unavailable> {
        self.permit(subpartition, begun)?;
        let (Some(segment), Some(account)) = (self.free.pop(), self.accounts.get_mut(index(subpartition.0)))
        else {
            return Err(Unavailable::Pool);
        };
        if account.taken() == 0 {
            self.empty -= 1;
        }
        account.acquired += 1;
        if let Some(owner) = self.owners.get_mut(index(segment.0)) {
            *owner = Some(subpartition);
        }
        self.high_water = self.high_water.max(self.taken());
        Ok(segment)
    }

    /// Whether `subpartition` could take a segment now to begin a record in.
    #[must_use]
    pub fn is_available(&self, subpartition: SubpartitionIndex) -> bool {
        self.permit(subpartition, false).is_ok()
    }

    /// The three rules.
    fn permit(&self, subpartition: SubpartitionIndex, begun: bool) -> Result<(), Unavailable> {
        let account = self.accounts.get(index(subpartition.0)).copied().ok_or(Unavailable::Pool)?;
        if account.taken() == 0 {
            // Its reserve, which the rules below left to it.
            return if self.free.is_empty() { Err(Unavailable::Pool) } else { Ok(()) };
        }
        let overdraft = if begun { self.spec.overdraft } else { 0 };
        if account.held() >= u64::from(self.spec.quota) + u64::from(overdraft) {
            return Err(Unavailable::Quota);
        }
        // What must stay: one for each subpartition without any, and the overdraft unless this may use it.
        let kept = u64::from(self.empty) + u64::from(self.spec.overdraft - overdraft);
        if u64::from(self.free()) > kept { Ok(()) } else { Err(Unavailable::Pool) }
    }

    /// Notes that so many segments of `subpartition` have left its queue since the partition began. A number that
    /// is lower than an earlier one, or that cannot be, changes nothing.
    pub fn handle_sent(&mut self, subpartition: SubpartitionIndex, sent_total: u64) {
        if let Some(account) = self.accounts.get_mut(index(subpartition.0)) {
            account.sent = account.sent.max(sent_total.min(account.acquired));
        }
    }

    /// Takes a segment back whose every byte was acknowledged and released.
    ///
    /// # Errors
    /// [`AccountingError`] if it was not out; nothing changes then.
    pub fn handle_returned(&mut self, segment: SegmentIndex) -> Result<(), AccountingError> {
        let unknown = AccountingError::UnknownSegment { found: segment, segments: self.spec.segments };
        let owner = self.owners.get_mut(index(segment.0)).ok_or(unknown)?;
        let subpartition = owner.take().ok_or(AccountingError::NotTaken(segment))?;
        if let Some(account) = self.accounts.get_mut(index(subpartition.0)) {
            account.returned += 1;
            if account.taken() == 0 {
                self.empty += 1;
            }
        }
        self.free.push(segment);
        Ok(())
    }

    /// Takes a segment back that was opened and that nothing was written into: as if it had not been taken.
    ///
    /// # Errors
    /// [`AccountingError`] if it was not out; nothing changes then.
    pub fn handle_unused(&mut self, segment: SegmentIndex) -> Result<(), AccountingError> {
        let unknown = AccountingError::UnknownSegment { found: segment, segments: self.spec.segments };
        let owner = self.owners.get_mut(index(segment.0)).ok_or(unknown)?;
        let subpartition = owner.take().ok_or(AccountingError::NotTaken(segment))?;
        if let Some(account) = self.accounts.get_mut(index(subpartition.0)) {
            account.acquired = account.acquired.saturating_sub(1);
            account.sent = account.sent.min(account.acquired);
            if account.taken() == 0 {
                self.empty += 1;
            }
        }
        self.free.push(segment);
        Ok(())
    }

    /// Free segments, reserves and overdraft included.
    #[must_use]
    pub fn free(&self) -> u32 {
        // There are at most `segments` of them, which is a u32.
        u32::try_from(self.free.len()).unwrap_or(u32::MAX)
    }

    /// Segments in any state but free.
    #[must_use]
    pub fn taken(&self) -> u32 {
        self.spec.segments.saturating_sub(self.free())
    }

    /// Most segments that were ever taken at once.
    #[must_use]
    pub const fn high_water(&self) -> u32 {
        self.high_water
    }

    /// Segments taken beyond the pool, from the overdraft.
    #[must_use]
    pub fn overdrawn(&self) -> u32 {
        self.spec.overdraft.saturating_sub(self.free())
    }

    /// Segments that `subpartition` holds open or queued; 0 if there is no such subpartition.
    #[must_use]
    pub fn held(&self, subpartition: SubpartitionIndex) -> u32 {
        let held = self.accounts.get(index(subpartition.0)).map_or(0, |account| account.held());
        u32::try_from(held).unwrap_or(u32::MAX)
    }

    /// Segments that `subpartition` has in any state; 0 if there is no such subpartition.
    #[must_use]
    pub fn taken_by(&self, subpartition: SubpartitionIndex) -> u32 {
        let taken = self.accounts.get(index(subpartition.0)).map_or(0, |account| account.taken());
        u32::try_from(taken).unwrap_or(u32::MAX)
    }

    /// The sizes that the pool was made with.
    #[must_use]
    pub const fn spec(&self) -> PartitionPoolSpec {
        self.spec
    }

    /// Recounts everything.
    ///
    /// # Errors
    /// The rule that does not hold, with its numbers.
    pub fn check(&self) -> Result<(), Violation> {
        let mut taken = vec![0u64; self.accounts.len()];
        for owner in self.owners.iter().flatten() {
            if let Some(count) = taken.get_mut(index(owner.0)) {
                *count += 1;
            }
        }
        for (subpartition, (account, taken)) in self.accounts.iter().zip(&taken).enumerate() {
            let counted = account.taken();
            ensure!(
                counted == *taken,
                "partition pool: each taken segment has one owner",
                "subpartition {subpartition} counts {counted}, owns {taken}"
            );
            let (held, bound) = (account.held(), u64::from(self.spec.quota) + u64::from(self.spec.overdraft));
            ensure!(
                held <= bound,
                "partition pool: quota",
                "subpartition {subpartition} holds {held} of {bound}"
            );
        }
        let (free, sum) = (u64::from(self.free()), taken.iter().sum::<u64>());
        let segments = u64::from(self.spec.segments);
        ensure!(free + sum == segments, "partition pool: sums", "{free} free + {sum} taken of {segments}");
        for segment in &self.free {
            let owner = self.owners.get(index(segment.0)).copied().flatten();
            ensure!(
                owner.is_none(),
                "partition pool: free segments have no owner",
                "segment {segment} is owned"
            );
        }
        let empty = taken.iter().filter(|taken| **taken == 0).count() as u64;
        ensure!(
            empty == u64::from(self.empty),
            "partition pool: empties",
            "{empty} found, {} counted",
            self.empty
        );
        ensure!(
            free >= empty,
            "partition pool: reserve",
            "{free} free for {empty} subpartitions without any"
        );
        Ok(())
    }
}

fn index(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
