//! What a writer knows of its subpartitions, for those who choose among them.

use weir_flow::ids::{SubpartitionIndex, Time};
use weir_flow::selector::adaptive::{Take, TargetView};
use weir_ipc::partition_port::SubpartitionCell;
use weir_ipc::wait_cell::WaitKind;

use super::bound::Room;
use super::{Emitted, Lack, Writer};
use crate::error::Error;

impl Writer {
    /// What the daemon last said of a subpartition.
    pub(crate) fn cell(&self, subpartition: u32) -> SubpartitionCell {
        self.parts.port.cell(subpartition)
    }

    /// What adaptive selection goes by.
    pub(crate) fn view(&mut self, subpartition: u32) -> Result<TargetView, Error> {
        let is_gone = self.is_gone(subpartition)?;
        let cell = self.cell(subpartition);
        let index = SubpartitionIndex(subpartition);
        self.parts.pool.handle_sent(index, cell.sent_segments);
        // An open segment has room, and a record that does not fit into it closes it. If each had one, and no credit
        // before it is full at the receiver, none of them would ever be.
        let is_open = self.builders.get(subpartition as usize).is_some_and(|of| of.segment.is_some());
        let is_at_quota = self.parts.pool.held(index) >= self.parts.pool.spec().quota;
        let is_admitted = self.is_admitted(subpartition);
        if !is_admitted && !is_gone {
            // Left out, it is not asked before each record, which would do this.
            self.hand_over(subpartition)?;
        }
        let is_full = cell.credit == 0 && (!is_open && is_at_quota || !is_admitted);
        let unsubmitted_bytes = self.builders.get(subpartition as usize).map_or(0, |builder| {
            // Without an open segment both say that it is full.
            u64::from(builder.written - builder.submitted)
        });
        Ok(TargetView { unsubmitted_bytes, consumed_bytes: cell.consumed_bytes, is_full, is_gone })
    }

    /// When a record of so many bytes can be written, all of it. If it cannot be now, what is in the open segment is
    /// submitted, so that the segment comes back.
    pub(crate) fn take(&mut self, subpartition: u32, record_bytes: usize) -> Result<Take, Error> {
        match self.prepare(subpartition, record_bytes)? {
            Emitted::Gone => Ok(Take::Never),
            Emitted::Done(true) if self.could_finish(subpartition, record_bytes) => Ok(Take::Now),
            Emitted::Done(true) => {
                self.close(subpartition)?;
                Ok(Take::Later)
            }
            Emitted::Done(false) => Ok(Take::Later),
        }
    }

    /// Whether a record that can be begun can be finished. Begun in a subpartition that has no room for the rest it
    /// would make the producer wait for that one consumer. One that holds nothing takes any record: none could do so
    /// better.
    fn could_finish(&mut self, subpartition: u32, record_bytes: usize) -> bool {
        let frame_bytes = self.overhead + record_bytes;
        let left = self.left_for(subpartition, frame_bytes);
        let rest = frame_bytes.saturating_sub(left);
        // At most the longest record, which is a u32, in segments.
        let needed = rest.div_ceil(self.parts.segment_bytes as usize) as u32;
        let (spec, held) = (self.parts.pool.spec(), self.parts.pool.held(SubpartitionIndex(subpartition)));
        let most = spec.quota.saturating_add(spec.overdraft);
        needed <= 1
            || held == 0
            || (held + needed <= most
                && self.parts.pool.free() >= needed + self.reserved_for_others(subpartition))
    }

    /// Segments that only other subpartitions may take, since they have none.
    fn reserved_for_others(&self, subpartition: u32) -> u32 {
        let pool = &self.parts.pool;
        let others = (0..self.subpartitions()).filter(|other| *other != subpartition);
        others.filter(|other| pool.taken_by(SubpartitionIndex(*other)) == 0).count() as u32
    }

    /// Why a subpartition that has no room has none.
    pub(crate) fn lack_of(&self, subpartition: u32) -> Lack {
        if self.is_behind_rest(subpartition) {
            return Lack::Room;
        }
        let is_at_quota =
            self.parts.pool.held(SubpartitionIndex(subpartition)) >= self.parts.pool.spec().quota;
        if is_at_quota || !self.is_admitted(subpartition) { Lack::Quota } else { Lack::Segment }
    }

    /// Why not every subpartition has room, when it was found that one has none.
    pub(crate) fn lack_of_found(&self) -> Lack {
        self.lacking.map_or(Lack::Segment, |subpartition| self.lack_of(subpartition))
    }

    /// Why no subpartition has room: for want of segments if any of them could hold more.
    pub(crate) fn lack_of_all(&mut self) -> Lack {
        self.lacking = None;
        let mut there = (0..self.subpartitions()).filter(|subpartition| !self.cell(*subpartition).is_gone);
        if there.any(|subpartition| self.lack_of(subpartition) == Lack::Segment) {
            Lack::Segment
        } else {
            Lack::Quota
        }
    }

    /// The owner waits for this from `now` on: the daemon sees it, and counts it for whoever is the cause.
    pub(crate) fn begin_wait(&mut self, lack: Lack, now: Time) {
        let kind = match (lack, self.lacking) {
            (Lack::Segment, _) => WaitKind::Pool,
            (Lack::Quota, Some(subpartition)) => WaitKind::Quota(subpartition),
            (Lack::Event, Some(subpartition)) => WaitKind::Event(subpartition),
            (Lack::Quota | Lack::Turn, _) => WaitKind::Any,
            (Lack::Event | Lack::Room, _) => WaitKind::Ring,
            // Nothing is to be emitted any more.
            (Lack::End, _) => return,
        };
        self.parts.port.begin_wait(kind, now.0);
    }

    /// The owner goes on, or gives up.
    pub(crate) fn end_wait(&mut self, now: Time) {
        self.parts.port.end_wait(now.0);
    }

    /// Whether any subpartition that is below its bound has a segment open or could open one.
    pub(crate) fn is_any_available(&mut self) -> Result<bool, Error> {
        self.look()?;
        for subpartition in 0..self.subpartitions() {
            let is_open =
                self.builders.get(subpartition as usize).is_some_and(|builder| builder.segment.is_some());
            if self.is_gone(subpartition)? {
                continue;
            }
            if !self.is_admitted(subpartition) {
                self.hand_over(subpartition)?;
                continue;
            }
            self.see_sent(subpartition);
            if is_open || self.may_open(subpartition) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether a record of so many bytes can be begun now. If it has to wait for the bound, what is open is handed over: who
    /// goes by this may not emit to it before.
    pub(crate) fn has_room(&mut self, subpartition: u32, record_bytes: usize) -> bool {
        let Some(builder) = self.builders.get(subpartition as usize) else { return false };
        let left = builder.end.saturating_sub(builder.written) as usize;
        if self.overhead + record_bytes <= left {
            return true;
        }
        // An error is met by the emit.
        if self.look().is_err() {
            return false;
        }
        self.see_sent(subpartition);
        let room = self.room(subpartition, record_bytes);
        if room == Room::AtBound {
            // As above.
            let _ = self.hand_over(subpartition);
        }
        room == Room::There
    }

    /// Segments open or waiting to be sent.
    pub(crate) fn queued_segments(&mut self, subpartition: u32) -> u32 {
        self.see_sent(subpartition);
        self.parts.pool.held(SubpartitionIndex(subpartition))
    }

    /// Segments in any use.
    pub(crate) fn taken_segments(&mut self, subpartition: u32) -> u32 {
        // An error is met by the emit.
        let _ = self.look();
        self.parts.pool.taken_by(SubpartitionIndex(subpartition))
    }
}
