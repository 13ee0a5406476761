//! How a producer keeps to what its consumers want on their way at most: as the client library does it.

use weir_flow::debloat::BufferBound;
use weir_flow::ids::SubpartitionIndex;

use super::Producer;
use crate::common::Common;
use crate::coverage::Mark;
use crate::faults::Sabotage;

/// Whether a record that is not begun may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Begin {
    /// It may.
    Now,
    /// It waits; whether something was handed over meanwhile.
    Later(bool),
}

impl Producer {
    fn bound(&self, subpartition: usize) -> BufferBound {
        BufferBound::new(self.cells[subpartition].buffer_bytes)
    }

    /// Whether another record may be begun for a subpartition.
    pub(super) fn admits(&self, subpartition: usize) -> bool {
        let arrived = self.cells[subpartition].acked_bytes;
        self.bound(subpartition).admits(self.written[subpartition].saturating_sub(arrived))
    }

    /// Room in the open segment for a record of so many bytes that is not begun.
    pub(super) fn room_for(&self, subpartition: usize, bytes: usize) -> u32 {
        let size = self.shape.segment_bytes;
        let open = self.builders[subpartition].map(|of| of.written);
        let open = open.filter(|fill| self.bound(subpartition).appends(*fill, bytes, size));
        open.map_or(0, |fill| size - fill)
    }

    /// Looks at the bound before a record of so many bytes is begun. The open segment is closed if the record belongs into
    /// the next one.
    pub(super) fn look_at_bound(
        &mut self,
        subpartition: usize,
        bytes: usize,
        common: &mut Common,
    ) -> Result<Begin, String> {
        let bound = self.cells[subpartition].buffer_bytes;
        if !self.admits(subpartition) {
            common.coverage.hit(Mark::BoundWaited);
            common.coverage.hit_when(Mark::BroadcastBoundWaited, self.is_shared());
            return Ok(Begin::Later(self.hand_over_before_wait(subpartition, common)?));
        }
        let is_open = self.builders[subpartition].is_some();
        if is_open && self.room_for(subpartition, bytes) == 0 {
            common.coverage.hit(Mark::BoundClosed);
            self.submit(subpartition, true, common)?;
        }
        common.coverage.hit_when(Mark::BoundExceeded, bytes > bound as usize);
        Ok(Begin::Now)
    }

    /// What is not handed over never arrives: nobody waits for it.
    pub(super) fn hand_over_before_wait(
        &mut self,
        subpartition: usize,
        common: &mut Common,
    ) -> Result<bool, String> {
        let waiting = self.builders[subpartition].map_or(0, |of| of.written - of.submitted);
        if waiting == 0 || !self.ring_has_room() {
            return Ok(false);
        }
        // The canary keeps it back from then on, and does not flush by chance either. What else is on its way would give
        // room, unless it is nothing.
        let is_all = waiting >= self.cells[subpartition].buffer_bytes && !self.is_adaptive();
        if self.keeps_back || is_all && common.sabotage(Sabotage::KeepBack) {
            self.keeps_back = true;
            return Ok(false);
        }
        self.submit(subpartition, false, common)?;
        Ok(true)
    }

    /// What waits beside a bound is handed over, for subpartitions that adaptive selection does not ask meanwhile.
    pub(super) fn hand_over_unadmitted(&mut self, common: &mut Common) -> Result<(), String> {
        for subpartition in 0..self.builders.len() {
            if !self.admits(subpartition) && !self.is_gone(subpartition, common) {
                self.hand_over_before_wait(subpartition, common)?;
            }
        }
        Ok(())
    }

    /// Whether a consumer is blocked: it has no credit, and neither a segment nor the bound leaves room.
    pub(super) fn is_full(&self, subpartition: usize) -> bool {
        let held = self.pool.held(SubpartitionIndex(subpartition as u32));
        let is_at_quota = self.builders[subpartition].is_none() && held >= self.pool.spec().quota;
        self.cells[subpartition].credit == 0 && (is_at_quota || !self.admits(subpartition))
    }
}
