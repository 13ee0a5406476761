//! How a producer with adaptive selection finds the consumer of a record: as the client library does it, from what it
//! last read of the daemon's numbers.

use weir_flow::ids::SubpartitionIndex;
use weir_flow::record::frame_bytes;
use weir_flow::selector::adaptive::{Take, TargetView};

use super::contents::frame;
use super::{Pending, Producer, State};
use crate::adapting::Adapting;
use crate::common::Common;
use crate::coverage::Mark;
use crate::faults::Sabotage;
use crate::model::Content;
use crate::trace;

impl Producer {
    /// Begins the next record, or the one that waits. Says whether anything changed.
    pub(super) fn begin_adapted(&mut self, common: &mut Common) -> Result<bool, String> {
        let content = match self.waiting.take() {
            Some(content) => content,
            None => {
                let bytes = self.record_bytes();
                self.next_content(bytes)
            }
        };
        let mut payload = Vec::new();
        content.write(&mut payload);
        let submitted = self.ring.len();
        let mut chosen = self.choose_adapted(&payload, common)?;
        if chosen.is_none() {
            self.look_adapted(common)?;
            chosen = self.choose_adapted(&payload, common)?;
        }
        let Some(subpartition) = chosen else {
            self.waiting = Some(content);
            self.check_left_out(&payload, common)?;
            return Ok(self.ring.len() > submitted);
        };
        let fits = self.fits(subpartition, frame_bytes(payload.len(), self.shape.checksum));
        let is_long = !fits && self.pool.held(SubpartitionIndex(subpartition as u32)) == 0;
        for key in self.channels(subpartition) {
            common.model.give_record(key, content)?;
        }
        common.coverage.hit_when(Mark::EmptyRecord, content.bytes == 0);
        common.coverage.hit_when(Mark::LongRecord, content.bytes > 2 * self.shape.segment_bytes);
        let bytes = frame(&payload, self.shape.checksum, self.record_bytes_max)?;
        self.pending = Some(Pending { subpartition, content, bytes, at: 0, is_long });
        self.left_to_send -= 1;
        trace!(common.trace, self, "begins a record of {} bytes to {subpartition}", content.bytes);
        self.write(common)?;
        common.coverage.hit_when(Mark::LongWaited, self.pending.is_some() && is_long);
        let is_blind = self.adapting.as_ref().is_some_and(Adapting::ignores_credit);
        if self.pending.is_some() && !is_long && !is_blind {
            return Err(format!(
                "{self}: {subpartition} could take a record, which waits: {}",
                self.describe()
            ));
        }
        Ok(true)
    }

    /// The consumer of a record, if one can take it now.
    fn choose_adapted(&mut self, payload: &[u8], common: &mut Common) -> Result<Option<usize>, String> {
        let Some(mut adapting) = self.adapting.take() else { return Ok(None) };
        let bytes = frame_bytes(payload.len(), self.shape.checksum);
        let mut ignores_credit = adapting.ignores_credit();
        let chosen = adapting.choose(payload, |target| {
            let answer = self.take(target as usize, bytes, common)?;
            common.coverage.hit_when(Mark::LeftOutBlocked, answer == Take::Later);
            ignores_credit |= answer == Take::Later && common.sabotage(Sabotage::IgnoreCredit);
            Ok(if answer == Take::Later && ignores_credit { Take::Now } else { answer })
        });
        if ignores_credit {
            adapting.ignore_credit();
        }
        self.adapting = Some(adapting);
        chosen.map(|chosen| chosen.map(|chosen| chosen as usize)).map_err(|text| format!("{self}: {text}"))
    }

    /// When a consumer can take a record of so many bytes, all of it. If it cannot now, what is in its open segment is
    /// handed over, so that the segment comes back.
    fn take(&mut self, subpartition: usize, bytes: usize, common: &mut Common) -> Result<Take, String> {
        if self.is_gone(subpartition, common) {
            return Ok(Take::Never);
        }
        let index = SubpartitionIndex(subpartition as u32);
        self.pool.handle_sent(index, self.cells[subpartition].sent_segments);
        // One that has nothing takes any record: no other could do so better.
        let has_nothing = self.pool.held(index) == 0 && self.pool.is_available(index);
        if self.admits(subpartition) && (self.fits(subpartition, bytes) || has_nothing) {
            return Ok(Take::Now);
        }
        self.submit(subpartition, true, common)?;
        Ok(Take::Later)
    }

    /// Whether so many bytes can be written for a consumer now, to the last of them. Changes nothing.
    fn fits(&self, subpartition: usize, bytes: usize) -> bool {
        let index = SubpartitionIndex(subpartition as u32);
        if !self.admits(subpartition) {
            return false;
        }
        let left = self.room_for(subpartition, bytes);
        let needed = bytes.saturating_sub(left as usize).div_ceil(self.shape.segment_bytes as usize) as u32;
        if needed <= 1 {
            return needed == 0 || self.pool.is_available(index);
        }
        // Those behind the first may come from the overdraft, and never from what others have as their reserve.
        let others = (0..self.builders.len() as u32).map(SubpartitionIndex).filter(|other| *other != index);
        let reserved = others.filter(|other| self.pool.taken_by(*other) == 0).count() as u32;
        let spec = self.pool.spec();
        self.pool.is_available(index)
            && self.pool.held(index) + needed <= spec.quota + spec.overdraft
            && self.pool.free() >= needed + reserved
    }

    /// Looks at all consumers.
    pub(super) fn look_adapted(&mut self, common: &mut Common) -> Result<(), String> {
        self.hand_over_unadmitted(common)?;
        let views: Vec<_> = (0..self.cells.len()).map(|target| self.view(target, common)).collect();
        let Some(adapting) = &mut self.adapting else { return Ok(()) };
        let looked = adapting.look(&views, common);
        looked.map_err(|text| format!("{self}: {text}"))
    }

    /// What adaptive selection goes by.
    fn view(&mut self, subpartition: usize, common: &Common) -> TargetView {
        let (index, cell) = (SubpartitionIndex(subpartition as u32), self.cells[subpartition]);
        self.pool.handle_sent(index, cell.sent_segments);
        let builder = self.builders[subpartition];
        TargetView {
            unsubmitted_bytes: builder.map_or(0, |of| u64::from(of.written - of.submitted)),
            consumed_bytes: cell.consumed_bytes,
            // With a segment open there is room, and a record that does not fit into it closes it. If only credit and
            // quota counted, one segment each would do for all to wait for ever: the open segment at the receiver
            // gives credit when it is full.
            is_full: self.is_full(subpartition),
            is_gone: self.is_gone(subpartition, common),
        }
    }

    /// A record was written to its end.
    pub(super) fn written_adapted(
        &mut self,
        subpartition: usize,
        bytes: usize,
        common: &mut Common,
    ) -> Result<(), String> {
        let Some(adapting) = &mut self.adapting else { return Ok(()) };
        let pauses = self.rng.chance(100);
        if adapting.emitted(subpartition as u32, bytes as u64, pauses, common) {
            return self.look_adapted(common);
        }
        Ok(())
    }

    /// A record of which a part was written for a consumer that is lost: all of it goes to another one.
    pub(super) fn take_elsewhere(&mut self, subpartition: usize, content: Content, common: &mut Common) {
        let Some(adapting) = &mut self.adapting else { return };
        adapting.lost(subpartition as u32);
        common.coverage.hit(Mark::TakenElsewhere);
        self.waiting = Some(content);
        self.left_to_send += 1;
    }

    /// All are left out: nobody who is not slow has room, and not everybody is slow.
    fn check_left_out(&self, payload: &[u8], common: &mut Common) -> Result<(), String> {
        let Some(adapting) = &self.adapting else { return Ok(()) };
        common.coverage.hit(Mark::AllLeftOut);
        let bytes = frame_bytes(payload.len(), self.shape.checksum);
        let there = || (0..self.cells.len()).filter(|target| !self.is_gone(*target, common));
        let able = || there().filter(|target| self.fits(*target, bytes));
        if let Some(target) = able().find(|target| !adapting.is_slow(*target as u32)) {
            return Err(format!("{self}: all are left out; {target} has room: {}", self.describe()));
        }
        let (able, there) = (able().count(), there().count());
        if able > 0 && able == there {
            return Err(format!("{self}: all are left out; all have room: {}", self.describe()));
        }
        common.coverage.hit_when(Mark::WaitedForTurn, able > 0);
        Ok(())
    }

    /// No record waits at one consumer while another one has room for it that is not slow. Only one that is too long for
    /// any room waits where it was begun.
    pub(super) fn check_waits(&self, common: &Common) -> Result<(), String> {
        let (Some(adapting), Some(pending)) = (&self.adapting, &self.pending) else { return Ok(()) };
        if pending.is_long {
            return Ok(());
        }
        let is_free = |target: &usize| {
            *target != pending.subpartition
                && !self.is_gone(*target, common)
                && !adapting.is_slow(*target as u32)
                && self.fits(*target, pending.bytes.len())
        };
        match (0..self.cells.len()).find(is_free) {
            None => Ok(()),
            Some(target) => {
                let at = pending.subpartition;
                Err(format!("{self}: waits at {at}; {target} has room: {}", self.describe()))
            }
        }
    }

    /// Whether it chooses adaptively.
    #[must_use]
    pub const fn is_adaptive(&self) -> bool {
        self.adapting.is_some()
    }

    /// Whether it has records left for which any consumer will do.
    #[must_use]
    pub fn has_records_for_any(&self) -> bool {
        let waits_long = self.pending.as_ref().is_some_and(|pending| pending.is_long);
        self.state == State::Running && !self.lied && self.left_to_send > 0 && !waits_long
    }
}
