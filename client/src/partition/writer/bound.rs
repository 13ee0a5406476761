//! How a partition keeps to the bytes that its consumers want on their way at most ([`BufferBound`]).
//!
//! The bound is looked at before a record is begun, and only when the record does not fit in front of where the last look
//! has put the end of the open segment: so most records cost nothing for it. Whoever finds that a record has to wait hands
//! over what is open first, for what is not handed over never arrives, and nothing else would end the wait. A record that is
//! begun is finished as without a bound.

use weir_flow::debloat::BufferBound;

use super::{Builder, Emission, Lack, Writer, fault};
use crate::error::Error;

/// Where a record that is not begun goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Into the open segment.
    Open,
    /// Into the next one.
    Next,
    /// Nowhere, until some of what was written has arrived.
    Later,
}

/// Whether a record that is not begun can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    /// It can.
    There,
    /// Not before some of what was written has arrived.
    AtBound,
    /// Not without another segment, which is not to be had.
    NoSegment,
}

impl Builder {
    /// Bytes written, ever.
    fn written_ever(&self) -> u64 {
        self.closed_bytes + self.segment.map_or(0, |_| u64::from(self.written))
    }
}

impl Writer {
    /// The bound of a subpartition, and the bytes that were written and are not known to have arrived.
    fn bound(&self, subpartition: u32) -> (BufferBound, u64) {
        let cell = self.parts.port.cell(subpartition);
        let written = self.builders.get(subpartition as usize).map_or(0, Builder::written_ever);
        let bound = cell.buffer_bytes.map_or(BufferBound::NONE, BufferBound::new);
        (bound, written.saturating_sub(cell.acked_bytes))
    }

    /// Whether another record may be begun.
    pub(super) fn is_admitted(&self, subpartition: u32) -> bool {
        let (bound, outstanding_bytes) = self.bound(subpartition);
        bound.admits(outstanding_bytes)
    }

    /// Where a record of so many bytes, its framing included, goes that is not begun. The end of the open segment moves to
    /// where the bound wants it now.
    pub(super) fn place(&mut self, subpartition: u32, frame_bytes: usize) -> Place {
        let (bound, outstanding_bytes) = self.bound(subpartition);
        if !bound.admits(outstanding_bytes) {
            return Place::Later;
        }
        let segment_bytes = self.parts.segment_bytes;
        let Some(builder) = self.builders.get_mut(subpartition as usize) else { return Place::Next };
        if builder.segment.is_none() || !bound.appends(builder.written, frame_bytes, segment_bytes) {
            return Place::Next;
        }
        builder.end = bound.fill_end(builder.written, outstanding_bytes, segment_bytes);
        Place::Open
    }

    /// Bytes of the open segment that a record of so many bytes, its framing included, can begin in.
    pub(super) fn left_for(&mut self, subpartition: u32, frame_bytes: usize) -> usize {
        let place = self.place(subpartition, frame_bytes);
        let left = |of: &Builder| (self.parts.segment_bytes - of.written) as usize;
        self.builders.get(subpartition as usize).filter(|_| place == Place::Open).map_or(0, left)
    }

    /// Whether a record of so many bytes can be begun, as far as is known.
    pub(super) fn room(&mut self, subpartition: u32, record_bytes: usize) -> Room {
        if !self.is_admitted(subpartition) {
            return Room::AtBound;
        }
        let frame_bytes = self.overhead + record_bytes;
        if frame_bytes <= self.left_for(subpartition, frame_bytes) || self.may_open(subpartition) {
            return Room::There;
        }
        Room::NoSegment
    }

    /// How far the segment that was opened now is filled with records that fit whole.
    pub(super) fn set_first_end(&mut self, subpartition: u32) {
        let (bound, outstanding_bytes) = self.bound(subpartition);
        let segment_bytes = self.parts.segment_bytes;
        if let Some(builder) = self.builders.get_mut(subpartition as usize) {
            builder.end = bound.fill_end(0, outstanding_bytes, segment_bytes);
        }
    }

    /// Before a record is begun: what it has to wait for, if it has to. Closes the open segment if the record belongs into
    /// the next one.
    pub(super) fn keep_to_bound(
        &mut self,
        subpartition: u32,
        emission: &Emission<'_>,
    ) -> Result<Result<(), Lack>, Error> {
        // One whose consumer is gone waits for nothing.
        if !emission.is_fresh() || self.is_gone(subpartition)? {
            return Ok(Ok(()));
        }
        match self.place(subpartition, emission.remaining()) {
            Place::Open => {}
            Place::Next => {
                if self.builders.get(subpartition as usize).is_some_and(|of| of.segment.is_some()) {
                    self.close(subpartition)?;
                }
            }
            Place::Later => {
                self.hand_over(subpartition)?;
                return Ok(Err(Lack::Quota));
            }
        }
        Ok(Ok(()))
    }

    /// Hands over what is open, of a subpartition that is at its bound. Its segment stays: it is filled further when some of
    /// it has arrived, or else many small parts would use up the quota.
    pub(super) fn hand_over(&mut self, subpartition: u32) -> Result<(), Error> {
        self.lacking = Some(subpartition);
        // Returned segments and a change of the bound are told alike; an error is met here and not by who waits.
        self.look()?;
        let Some(builder) = self.builders.get(subpartition as usize) else { return Ok(()) };
        if builder.segment.is_none() || builder.written == builder.submitted {
            return Ok(());
        }
        if self.parts.port.has_room_for_part().map_err(fault)? {
            return self.submit_data(subpartition, false);
        }
        self.close(subpartition)
    }
}
