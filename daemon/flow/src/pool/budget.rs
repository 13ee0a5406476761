//! The node's budget: one number of bytes that all regions share, and who holds how much of it.
//!
//! A region is reserved here before it is made and released after it is gone, so the sum of all regions is never
//! over the total, not for a moment. A request that does not fit is refused at once: nobody waits here, for the
//! holders may keep their regions for ever.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use crate::invariant::{Violation, ensure};

/// How many of the largest holders a refusal names.
const HOLDERS_NAMED: usize = 3;

/// One reservation. Never reused while the budget lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReservationId(u64);

/// Bytes of a node's regions, bounded by `memory.total`.
#[derive(Debug)]
pub struct NodeBudget {
    total: u64,
    used: u64,
    high_water: u64,
    next: u64,
    holders: BTreeMap<ReservationId, (String, u64)>,
}

/// A reservation that does not fit. The text names the key that sets the total and the largest holders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverBudget {
    /// Bytes asked for.
    pub needed: u64,
    /// Bytes that nobody holds.
    pub available: u64,
    /// Bytes of the whole budget.
    pub total: u64,
    /// Up to three holders with the most bytes, largest first, then by name.
    pub holders: Vec<(String, u64)>,
}

impl fmt::Display for OverBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { needed, available, total, holders } = self;
        write!(f, "{available} of {total} bytes are available; needed: {needed}; raise memory.total")?;
        for (at, (holder, bytes)) in holders.iter().enumerate() {
            let lead = if at == 0 { " or end one of the largest holders: " } else { ", " };
            write!(f, "{lead}{holder} ({bytes} bytes)")?;
        }
        Ok(())
    }
}

impl core::error::Error for OverBudget {}

impl NodeBudget {
    /// A budget of `total_bytes`, none of it used.
    #[must_use]
    pub const fn new(total_bytes: u64) -> Self {
        Self { total: total_bytes, used: 0, high_water: 0, next: 0, holders: BTreeMap::new() }
    }

    /// Reserves `bytes` for `holder`, which is a text for people.
    ///
    /// # Errors
    /// [`OverBudget`] if they are not available; nothing is reserved then.
    pub fn reserve(&mut self, holder: String, bytes: u64) -> Result<ReservationId, OverBudget> {
        let used = match self.used.checked_add(bytes) {
            Some(used) if used <= self.total => used,
            _ => return Err(self.refusal(bytes)),
        };
        self.used = used;
        self.high_water = self.high_water.max(used);
        let id = ReservationId(self.next);
        self.next += 1;
        self.holders.insert(id, (holder, bytes));
        Ok(id)
    }

    /// Gives a reservation back. Says how many bytes it had: 0 if it was released before.
    pub fn release(&mut self, id: ReservationId) -> u64 {
        let bytes = self.holders.remove(&id).map_or(0, |(_, bytes)| bytes);
        self.used = self.used.saturating_sub(bytes);
        bytes
    }

    /// Makes the whole budget this much, unless it is more already: what is reserved stays within it.
    pub const fn raise(&mut self, total_bytes: u64) {
        if total_bytes > self.total {
            self.total = total_bytes;
        }
    }

    /// Bytes reserved now.
    #[must_use]
    pub const fn used(&self) -> u64 {
        self.used
    }

    /// Bytes of the whole budget.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.total
    }

    /// Most bytes that were ever reserved at once.
    #[must_use]
    pub const fn high_water(&self) -> u64 {
        self.high_water
    }

    /// The sum of all reservations is what is counted as used, and within the total.
    ///
    /// # Errors
    /// The numbers that disagree.
    pub fn check(&self) -> Result<(), Violation> {
        let sum: u64 = self.holders.values().map(|(_, bytes)| bytes).sum();
        ensure!(
            sum == self.used,
            "budget: used is the sum of reservations",
            "{} used, {sum} reserved",
            self.used
        );
        ensure!(self.used <= self.total, "budget: within its total", "{} used of {}", self.used, self.total);
        Ok(())
    }

    fn refusal(&self, needed: u64) -> OverBudget {
        let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
        for (holder, bytes) in self.holders.values() {
            *sums.entry(holder).or_default() += bytes;
        }
        let mut holders: Vec<(String, u64)> =
            sums.into_iter().map(|(holder, bytes)| (holder.into(), bytes)).collect();
        holders.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        holders.truncate(HOLDERS_NAMED);
        OverBudget { needed, available: self.total.saturating_sub(self.used), total: self.total, holders }
    }
}
