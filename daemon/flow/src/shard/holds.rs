//! What the kernel may still read of batches that it sends without a copy.
//!
//! A socket takes such a batch as it takes any other: what was taken is committed, the rest is planned anew, and the
//! next batch may go. But the kernel reads the memory until it says that it has let go of it, which may be after the
//! bytes were acknowledged, and after the link got another socket or ended. Until then each segment of the batch is
//! *held*: it counts as in the kernel, is not free, and its partition is not released.

use alloc::vec::Vec;

use super::Shard;
use crate::ids::{LinkId, PartitionId, SegmentIndex};
use crate::link::plan::Frame;

/// The segments of each batch that the kernel has not let go of, by the caller's number of it.
#[derive(Debug, Default)]
pub(super) struct Holds {
    lists: Vec<Vec<(PartitionId, SegmentIndex)>>,
}

impl Holds {
    pub(super) const NONE: Self = Self { lists: Vec::new() };

    /// One entry for each slice of each batch.
    pub(super) fn iter(&self) -> impl Iterator<Item = (PartitionId, SegmentIndex)> {
        self.lists.iter().flatten().copied()
    }
}

impl Shard {
    /// The kernel reads the batch in flight on `link` until [`Self::handle_released`] is called with the same number.
    /// Comes before the [`Self::handle_sent`] of that batch; nothing happens without one in flight.
    ///
    /// `hold` is a small number that the caller chooses, of which none may be in use at the time: there is an entry for
    /// each number up to the largest one.
    pub fn handle_held(&mut self, link: LinkId, hold: u32) {
        let Self { links, partitions, holds, .. } = self;
        let Some(state) = links.get(link).filter(|state| state.batch.is_in_flight) else { return };
        let index = hold as usize;
        if holds.lists.len() <= index {
            holds.lists.resize_with(index + 1, Vec::new);
        }
        let Some(list) = holds.lists.get_mut(index) else { return };
        // All of it, also what the socket did not take: who sends knows only that it is done with none of it.
        for planned in state.batch.frames.iter().filter(|planned| planned.slice_bytes > 0) {
            let Frame::Slice { key, slice, .. } = planned.frame else { continue };
            if let Some(partition) = partitions.get_mut(key.partition) {
                partition.memory.hold(slice.segment);
                list.push((key.partition, slice.segment));
            }
        }
    }

    /// The kernel has let go of a batch. Without effect for a number that nothing is held under.
    pub fn handle_released(&mut self, hold: u32) {
        let Some(list) = self.holds.lists.get_mut(hold as usize) else { return };
        let mut list = core::mem::take(list);
        for (id, segment) in list.drain(..) {
            if let Some(partition) = self.partitions.get_mut(id) {
                partition.memory.release(segment);
            }
            self.partitions.list(id);
            self.release_partition(id);
        }
        // Keeps its memory for the next batch of this number.
        if let Some(place) = self.holds.lists.get_mut(hold as usize) {
            *place = list;
        }
    }
}
