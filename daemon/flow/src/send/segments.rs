//! Where the segments of a send region are, as the daemon sees it.
//!
//! Each segment counts its slices by place: queued, in the kernel, lent, unacknowledged; and whether the client still
//! writes it (`builder`). In the kernel is what a batch in flight has, and what the kernel still reads after a socket took it
//! (`held`). Lent are those that a consumer of this node reads where they lie: like those that are queued, they
//! count towards the quota. It is free if and only if all of these are zero. Slices of one segment can be in several
//! places at once; for a sum over segments it counts once, in the leftmost place that is not empty. Where several
//! subpartitions share a segment, each counts the slices that it has of it.

use alloc::vec::Vec;

use crate::ids::{SegmentIndex, SubpartitionIndex};
use crate::invariant::{Violation, ensure};

/// One segment of a send region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SegmentState {
    /// Whose builder it was opened in, while it is not free: its subpartition's, or the first one, which all share.
    pub(crate) owner: SubpartitionIndex,
    /// Bytes handed over so far.
    pub(crate) fill: u32,
    /// The client may hand over more of it.
    pub(crate) is_builder: bool,
    /// Slices that wait.
    pub(crate) queued: u32,
    /// Slices in a batch that the kernel has, or begun and not finished.
    pub(crate) in_kernel: u32,
    /// Slices of batches that a socket has taken and the kernel still reads; a slice that was sent more than once counts
    /// for each time.
    pub(crate) held: u32,
    /// Slices that a consumer of this node has and did not give back.
    pub(crate) lent: u32,
    /// Slices sent and not acknowledged.
    pub(crate) unacked: u32,
    /// It was counted as having left the queue.
    pub(crate) has_left: bool,
    /// It is free, and its client was not told yet.
    pub(crate) is_returning: bool,
}

impl SegmentState {
    pub(crate) const fn is_free(&self) -> bool {
        self.is_gone_from_queue() && self.held == 0 && self.unacked == 0
    }

    /// It is open, something of it waits to be sent, or is lent: what counts towards the quota, but for what the kernel has.
    pub(crate) const fn is_held(&self) -> bool {
        self.is_builder || self.queued > 0 || self.lent > 0
    }

    /// Nothing of it waits or will wait, and nothing is lent: it no longer counts towards the quota, although the kernel may
    /// still read it.
    pub(crate) const fn is_gone_from_queue(&self) -> bool {
        !self.is_builder && self.queued == 0 && self.in_kernel == 0 && self.lent == 0
    }
}

/// All segments of a send region.
#[derive(Debug)]
pub(crate) struct Segments {
    states: Vec<SegmentState>,
}

/// A segment counts once, in the leftmost place that is not empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Columns {
    pub(crate) builder: u32,
    pub(crate) queued: u32,
    pub(crate) in_kernel: u32,
    /// Lent ones are among these.
    pub(crate) unacked: u32,
    pub(crate) free: u32,
}

impl Segments {
    pub(crate) fn new(count: u32) -> Self {
        Self { states: (0..count).map(|_| SegmentState::default()).collect() }
    }

    pub(crate) fn len(&self) -> u32 {
        self.states.len() as u32
    }

    pub(crate) fn get(&self, segment: SegmentIndex) -> Option<&SegmentState> {
        self.states.get(segment.0 as usize)
    }

    pub(crate) fn get_mut(&mut self, segment: SegmentIndex) -> Option<&mut SegmentState> {
        self.states.get_mut(segment.0 as usize)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (SegmentIndex, &SegmentState)> {
        self.states.iter().enumerate().map(|(index, state)| (SegmentIndex(index as u32), state))
    }

    pub(crate) fn columns(&self) -> Columns {
        let mut columns = Columns::default();
        for state in &self.states {
            let column = match state {
                SegmentState { is_builder: true, .. } => &mut columns.builder,
                SegmentState { queued: 1.., .. } => &mut columns.queued,
                SegmentState { in_kernel: 1.., .. } | SegmentState { held: 1.., .. } => {
                    &mut columns.in_kernel
                }
                SegmentState { lent: 1.., .. } | SegmentState { unacked: 1.., .. } => &mut columns.unacked,
                _ => &mut columns.free,
            };
            *column += 1;
        }
        columns
    }

    pub(crate) fn check(&self) -> Result<(), Violation> {
        let columns = self.columns();
        let Columns { builder, queued, in_kernel, unacked, free } = columns;
        ensure!(
            builder + queued + in_kernel + unacked + free == self.len(),
            "every segment is in one column",
            "{columns:?} of {}",
            self.len()
        );
        for (index, state) in self.iter() {
            ensure!(state.is_free() || state.fill > 0, "a segment in use has bytes", "{index}: {state:?}");
        }
        Ok(())
    }
}
