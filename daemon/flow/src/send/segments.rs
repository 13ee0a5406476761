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

/// A segment that was never in use.
const UNUSED: SegmentState = SegmentState {
    owner: SubpartitionIndex(0),
    fill: 0,
    is_builder: false,
    queued: 0,
    in_kernel: 0,
    held: 0,
    lent: 0,
    unacked: 0,
    has_left: false,
    is_returning: false,
};

/// All segments of a send region.
#[derive(Debug)]
pub(crate) struct Segments {
    count: u32,
    /// Those up to the last one that was ever in use. Clients take the first that is free, so that a partition which is
    /// silent most of the time needs few of them.
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
        Self { count, states: Vec::new() }
    }

    pub(crate) const fn len(&self) -> u32 {
        self.count
    }

    pub(crate) fn get(&self, segment: SegmentIndex) -> Option<&SegmentState> {
        if segment.0 >= self.count {
            return None;
        }
        Some(self.states.get(segment.0 as usize).unwrap_or(&UNUSED))
    }

    /// A segment whose state is to change.
    pub(crate) fn get_mut(&mut self, segment: SegmentIndex) -> Option<&mut SegmentState> {
        let index = segment.0 as usize;
        if segment.0 < self.count && index >= self.states.len() {
            self.states.resize(index + 1, UNUSED);
        }
        self.states.get_mut(index)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (SegmentIndex, &SegmentState)> {
        (0..self.count).map(SegmentIndex).filter_map(|index| Some((index, self.get(index)?)))
    }

    pub(crate) fn columns(&self) -> Columns {
        let used = self.states.len() as u32;
        let mut columns = Columns { free: self.count.saturating_sub(used), ..Columns::default() };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_that_were_never_in_use_are_free_and_take_no_memory() {
        let mut segments = Segments::new(512);
        assert_eq!((segments.len(), segments.states.capacity()), (512, 0));
        assert!(segments.get(SegmentIndex(511)).is_some_and(SegmentState::is_free));
        segments.get_mut(SegmentIndex(1)).unwrap().unacked = 1;
        assert_eq!(segments.states.len(), 2);
        assert_eq!(segments.columns(), Columns { unacked: 1, free: 511, ..Columns::default() });
        assert_eq!(segments.iter().count(), 512);
        for outside in [512, u32::MAX] {
            assert!(segments.get(SegmentIndex(outside)).is_none());
            assert!(segments.get_mut(SegmentIndex(outside)).is_none());
        }
        assert_eq!(segments.states.len(), 2);
    }
}
