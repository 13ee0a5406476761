//! One subpartition: its queue, and the channel to its consumer.
//!
//! Subpartitions of a `broadcast` partition share their segments: each has the slices in its own queue, at its own place,
//! and a segment is free when the last of them has let go of it.
//!
//! A slice goes queue → planned (in a batch that the kernel has) → unacknowledged → released. Frames take their
//! sequence number when they are planned, so that a priority event can overtake what is queued. `retained` holds
//! every planned frame until it is acknowledged; the front one has number `retained_base`, those from
//! `sent_sequence` on are still in the kernel's hands. What the socket did not take is put back exactly as it was.

use alloc::collections::VecDeque;

use bytes::Bytes;

use super::memory::SendMemory;
use super::packing::Packing;
use super::segments::SegmentState;
use crate::failure::{Failure, FailureCode};
use crate::ids::{ChannelIndex, LinkId, SegmentIndex, Sequence, Time};
use crate::stall::LengthsByCause;
use crate::stall::account::{Hold, Path, SendStalls};
use crate::state::{SendEvent, SendState};
use crate::wire::{Limit, Resume};

/// A part of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slice {
    pub(crate) segment: SegmentIndex,
    pub(crate) offset: u32,
    pub(crate) bytes: u32,
    pub(crate) records: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Item {
    Slice(Slice),
    Event(Bytes),
    End,
}

/// A frame that was planned and is not acknowledged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Retained {
    Slice { slice: Slice },
    Event { payload: Bytes, priority: bool },
    End,
}

/// What a subpartition may send next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Nothing,
    Slice { bytes: u32 },
    Event,
    End,
    Backlog { closed: bool },
}

/// A slice that was planned, with what is needed to undo it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlannedSlice {
    pub(crate) slice: Slice,
    pub(crate) opens: bool,
    pub(crate) fill_before: Option<u32>,
    pub(crate) sequence: Sequence,
    pub(crate) backlog: u32,
}

/// A channel whose consumer reads the slices where they lie.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lending {
    /// Slices that the consumer may have at a time: one segment fewer than the quota, so that of a consumer that has
    /// stopped something waits here, and its wait is one for credit.
    pub(crate) most: u32,
    /// Slices that it has.
    pub(crate) count: u32,
}

/// Counts of a channel since it opened.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SendCounts {
    pub(crate) bytes: u64,
    pub(crate) buffers: u64,
    pub(crate) records: u64,
    pub(crate) limit_frames: u64,
    pub(crate) backlog_frames: u64,
}

#[derive(Debug)]
pub(crate) struct Subpartition {
    pub(crate) state: SendState,
    /// The link and the index by which both ends call the channel; none before it opens and after its end.
    pub(crate) channel: Option<(LinkId, ChannelIndex)>,
    pub(crate) queue: VecDeque<Item>,
    pub(crate) priority: VecDeque<Bytes>,
    pub(crate) retained: VecDeque<Retained>,
    pub(crate) retained_base: u64,
    /// Number of the next frame to be planned.
    pub(crate) next_sequence: u64,
    /// Frames before this are entirely in the socket.
    pub(crate) sent_sequence: u64,
    /// Frames before this are in the consumer's receive region.
    pub(crate) acked_sequence: u64,
    pub(crate) packing: Packing,
    /// Its consumer is on this node and reads its slices where they lie.
    pub(crate) lending: Option<Lending>,
    /// Bytes that the consumer wants in this queue at most; the largest number if it does not say.
    pub(crate) buffer_bytes: u32,
    /// The backlog that the receiver was told last.
    pub(crate) told_backlog: u32,
    pub(crate) event_limit: u64,
    pub(crate) events_sent: u64,
    pub(crate) events_in_flight: u32,
    pub(crate) queued_bytes: u64,
    pub(crate) unacked_bytes: u64,
    pub(crate) acked_bytes: u64,
    pub(crate) consumed_bytes: u64,
    pub(crate) counts: SendCounts,
    pub(crate) stalls: SendStalls,
    /// In the link's round of channels.
    pub(crate) is_listed: bool,
    /// In the link's list of channels with priority events.
    pub(crate) is_priority_listed: bool,
    /// Bytes that it may send in its turn.
    pub(crate) deficit: u32,
    /// The socket of its link was lost, and the receiver has not said yet where to go on.
    pub(crate) is_suspended: bool,
}

impl Subpartition {
    pub(crate) fn new(segment_bytes: u32) -> Self {
        Self {
            state: SendState::Waiting,
            channel: None,
            queue: VecDeque::new(),
            priority: VecDeque::new(),
            retained: VecDeque::new(),
            retained_base: 0,
            next_sequence: 0,
            sent_sequence: 0,
            acked_sequence: 0,
            packing: Packing::new(segment_bytes),
            lending: None,
            buffer_bytes: u32::MAX,
            told_backlog: 0,
            event_limit: 0,
            events_sent: 0,
            events_in_flight: 0,
            queued_bytes: 0,
            unacked_bytes: 0,
            acked_bytes: 0,
            consumed_bytes: 0,
            counts: SendCounts::default(),
            stalls: SendStalls::default(),
            is_listed: false,
            is_priority_listed: false,
            deficit: 0,
            is_suspended: false,
        }
    }

    /// Whether it has, or may still get, something to send.
    pub(crate) const fn is_live(&self) -> bool {
        matches!(self.state, SendState::Waiting | SendState::Open | SendState::Ending)
    }

    pub(crate) const fn is_connected(&self) -> bool {
        matches!(self.state, SendState::Open | SendState::Ending)
    }

    /// Receive segments that it may open now.
    pub(crate) fn credit(&self) -> u32 {
        if !self.is_connected() || self.is_suspended {
            return 0;
        }
        let most = self.lending.map_or(u32::MAX, |lending| lending.most.saturating_sub(lending.count));
        self.packing.credit().min(most)
    }

    /// Its consumer reads the slices where they lie, with this quota. Each costs a credit of its own: there is nothing
    /// to pack them into.
    pub(crate) fn begin_lending(&mut self, quota: u32) {
        self.lending = Some(Lending { most: quota.saturating_sub(1).max(1), count: 0 });
        self.packing.set_fill(0);
        self.recount();
    }

    fn can_send(&self, bytes: u32) -> bool {
        self.lending.is_none_or(|lending| lending.count < lending.most) && self.packing.can_send(bytes)
    }

    /// Appends a slice, or lets the last one grow if they lie side by side and neither was sent.
    pub(crate) fn push_slice(&mut self, slice: Slice, memory: &mut SendMemory) {
        self.queued_bytes += u64::from(slice.bytes);
        if let Some(Item::Slice(last)) = self.queue.back_mut()
            && last.segment == slice.segment
            && last.offset + last.bytes == slice.offset
        {
            self.packing.extend(last.bytes, slice.bytes);
            last.bytes += slice.bytes;
            last.records = last.records.saturating_add(slice.records);
            return;
        }
        self.packing.push(slice.bytes);
        self.queue.push_back(Item::Slice(slice));
        memory.change(slice.segment, |state| state.queued += 1);
    }

    /// What it may send next, priority events aside.
    pub(crate) fn next(&self) -> Next {
        // Nothing may overtake a priority event that waits for its window or for the next batch.
        if self.state != SendState::Open || self.is_suspended || !self.priority.is_empty() {
            return Next::Nothing;
        }
        match self.queue.front() {
            Some(Item::Slice(slice)) if self.can_send(slice.bytes) => Next::Slice { bytes: slice.bytes },
            // Its consumer has no segments that it could grant or give up.
            Some(Item::Slice(_)) if self.lending.is_some() => Next::Nothing,
            Some(Item::Slice(_)) if self.packing.has_open() => Next::Backlog { closed: true },
            Some(Item::Slice(_)) if self.packing.backlog() > self.told_backlog => {
                Next::Backlog { closed: false }
            }
            Some(Item::Event(_)) if self.may_send_event() => Next::Event,
            Some(Item::End) if self.events_sent < self.event_limit => Next::End,
            _ => Next::Nothing,
        }
    }

    pub(crate) fn has_priority(&self) -> bool {
        self.state == SendState::Open
            && !self.is_suspended
            && !self.priority.is_empty()
            && self.may_send_event()
    }

    /// One place of the event window is always left for the end of data.
    const fn may_send_event(&self) -> bool {
        self.events_sent + 1 < self.event_limit
    }

    /// What keeps it from sending what waits; none if nothing does. Credit comes before the event window, as data before
    /// a priority event that is to overtake it.
    pub(crate) fn hold(&self) -> Option<Hold> {
        let front = self.queue.front();
        if front.is_none() && self.priority.is_empty() {
            return None;
        }
        match self.state {
            SendState::Waiting => return Some(Hold::Absent),
            SendState::Open => {}
            SendState::Ending | SendState::Ended | SendState::Failed => return None,
        }
        if self.is_suspended {
            return Some(Hold::Lost);
        }
        let may_send = match front {
            Some(Item::Slice(slice)) if !self.can_send(slice.bytes) => return Some(Hold::Credit),
            _ if !self.priority.is_empty() => self.may_send_event(),
            Some(Item::Event(_)) => self.may_send_event(),
            Some(Item::End) => self.events_sent < self.event_limit,
            Some(Item::Slice(_)) | None => true,
        };
        Some(if may_send { Hold::Ready } else { Hold::Event })
    }

    /// Something changed that may open, close or turn a stall.
    #[inline]
    pub(crate) fn update_stall(&mut self, path: &Path, now: Time, all: &mut LengthsByCause) {
        let hold = self.hold();
        self.stalls.update(hold, path, now, all);
    }

    fn retain(&mut self, frame: Retained) -> Sequence {
        self.retained.push_back(frame);
        let sequence = Sequence(self.next_sequence);
        self.next_sequence += 1;
        sequence
    }

    /// Takes the first slice into a batch. Called only after [`Self::next`] said so.
    pub(crate) fn plan_slice(&mut self, memory: &mut SendMemory) -> Option<PlannedSlice> {
        let Some(Item::Slice(slice)) = self.queue.pop_front() else { return None };
        let fill_before = self.packing.fill();
        let opens = self.packing.take(slice.bytes);
        let backlog = self.packing.backlog();
        self.told_backlog = backlog;
        self.queued_bytes -= u64::from(slice.bytes);
        self.unacked_bytes += u64::from(slice.bytes);
        if let Some(lending) = &mut self.lending {
            lending.count += 1;
        }
        memory.in_kernel += 1;
        memory.change(slice.segment, |state| {
            state.queued = state.queued.saturating_sub(1);
            state.in_kernel += 1;
        });
        let sequence = self.retain(Retained::Slice { slice });
        Some(PlannedSlice { slice, opens, fill_before, sequence, backlog })
    }

    /// Takes the first event into a batch; a priority event if asked for.
    pub(crate) fn plan_event(&mut self, priority: bool) -> Option<(Bytes, Sequence)> {
        let payload = if priority {
            self.priority.pop_front()?
        } else {
            match self.queue.pop_front()? {
                Item::Event(payload) => payload,
                Item::Slice(_) | Item::End => return None,
            }
        };
        self.events_sent += 1;
        self.told_backlog = self.packing.backlog();
        let sequence = self.retain(Retained::Event { payload: payload.clone(), priority });
        Some((payload, sequence))
    }

    /// Takes the end of data into a batch.
    pub(crate) fn plan_end(&mut self) -> Option<Sequence> {
        self.state = self.state.on(SendEvent::EndPlanned).ok()?;
        self.queue.pop_front();
        self.events_sent += 1;
        Some(self.retain(Retained::End))
    }

    /// Takes a Backlog frame into a batch. The fill before it, and the backlog told before it.
    pub(crate) fn plan_backlog(&mut self, closed: bool) -> (Option<u32>, u32) {
        let before = (self.packing.fill(), self.told_backlog);
        if closed {
            self.packing.give_up();
        }
        self.told_backlog = self.packing.backlog();
        before
    }

    /// The socket took all of this slice, whatever became of the channel since.
    pub(crate) fn count_sent(&mut self, slice: &Slice) {
        self.counts.bytes += u64::from(slice.bytes);
        self.counts.buffers += 1;
        self.counts.records += u64::from(slice.records);
    }

    /// The socket took the whole frame.
    pub(crate) fn commit(&mut self, slice: Option<&Slice>, memory: &mut SendMemory) {
        self.sent_sequence += 1;
        if let Some(slice) = slice {
            memory.in_kernel = memory.in_kernel.saturating_sub(1);
            memory.change(slice.segment, |state| {
                state.in_kernel = state.in_kernel.saturating_sub(1);
                if self.lending.is_some() {
                    state.lent += 1;
                } else {
                    state.unacked += 1;
                }
            });
        }
        self.release_acked(memory);
    }

    /// The socket took nothing of the frame that was planned last: it goes back to where it was.
    ///
    /// # Errors
    /// The peer acknowledged this frame, which it cannot have seen.
    pub(crate) fn revert(
        &mut self,
        packed: Option<(bool, Option<u32>)>,
        memory: &mut SendMemory,
    ) -> Result<(), Failure> {
        let Some(frame) = self.retained.pop_back() else { return Ok(()) };
        self.next_sequence -= 1;
        if let Retained::Slice { .. } = &frame {
            let (opens, fill_before) = packed.unwrap_or((false, None));
            self.packing.revert(opens, fill_before);
            memory.in_kernel = memory.in_kernel.saturating_sub(1);
        }
        self.put_back(frame, memory, |state| state.in_kernel = state.in_kernel.saturating_sub(1));
        self.recount();
        if self.acked_sequence > self.next_sequence {
            let (ack, next) = (self.acked_sequence, self.next_sequence);
            return Err(Failure::new(
                FailureCode::Protocol,
                alloc::format!("ack is {ack}; needed: at most {next}, the frames that were sent"),
            ));
        }
        Ok(())
    }

    /// The backlog frame that was planned last did not leave.
    pub(crate) fn revert_backlog(&mut self, fill_before: Option<u32>, told_before: u32) {
        self.packing.revert(false, fill_before);
        self.told_backlog = told_before;
        self.recount();
    }

    /// The receiver said what it has: everything behind that is to be sent again, and is packed and merged as if it had
    /// never been sent. How many bytes that are.
    ///
    /// # Errors
    /// The receiver cannot have that.
    pub(crate) fn resume(&mut self, resume: &Resume, memory: &mut SendMemory) -> Result<u64, Failure> {
        let Resume { next_sequence, opened, open_fill, limit, event_limit, consumed, .. } = *resume;
        let next = next_sequence.0;
        if next < self.acked_sequence || opened > self.packing.opened() || opened > limit {
            let (acked, found) = (self.acked_sequence, self.packing.opened());
            return Err(Failure::new(
                FailureCode::Protocol,
                alloc::format!(
                    "Resume at sequence {next}, {opened} segments opened of {limit}; needed: at least {acked}, which \
                     was acknowledged, and at most {found} segments, which were opened"
                ),
            ));
        }
        self.handle_limit(&Limit { limit, ack: next, consumed, event_limit, age_us: 0 }, memory)?;
        let before = self.unacked_bytes;
        while self.next_sequence > next {
            let Some(frame) = self.retained.pop_back() else { break };
            self.next_sequence -= 1;
            self.put_back(frame, memory, |state| state.unacked = state.unacked.saturating_sub(1));
        }
        self.sent_sequence = self.next_sequence;
        self.packing.resume(opened, (open_fill > 0).then_some(open_fill));
        // What the receiver was told may be lost.
        self.told_backlog = 0;
        self.recount();
        self.is_suspended = false;
        Ok(before - self.unacked_bytes)
    }

    /// A frame goes back to the front of what waits. `leave` takes a slice out of the column that it was in.
    fn put_back(&mut self, frame: Retained, memory: &mut SendMemory, leave: impl FnOnce(&mut SegmentState)) {
        match frame {
            Retained::Slice { slice } => self.put_back_slice(slice, memory, leave),
            Retained::Event { payload, priority } => {
                self.events_sent -= 1;
                if priority {
                    self.priority.push_front(payload);
                } else {
                    self.queue.push_front(Item::Event(payload));
                }
            }
            Retained::End => {
                self.events_sent -= 1;
                self.state = self.state.on(SendEvent::EndReverted).unwrap_or(self.state);
                self.queue.push_front(Item::End);
            }
        }
    }

    fn put_back_slice(
        &mut self,
        slice: Slice,
        memory: &mut SendMemory,
        leave: impl FnOnce(&mut SegmentState),
    ) {
        self.queued_bytes += u64::from(slice.bytes);
        self.unacked_bytes -= u64::from(slice.bytes);
        if let Some(lending) = &mut self.lending {
            lending.count = lending.count.saturating_sub(1);
        }
        let merged = match self.queue.front_mut() {
            Some(Item::Slice(first))
                if first.segment == slice.segment && slice.offset + slice.bytes == first.offset =>
            {
                first.offset = slice.offset;
                first.bytes += slice.bytes;
                first.records = first.records.saturating_add(slice.records);
                true
            }
            _ => false,
        };
        if !merged {
            self.queue.push_front(Item::Slice(slice));
        }
        memory.change(slice.segment, |state| {
            leave(state);
            state.queued += u32::from(!merged);
        });
        // What the receiver was told counted on this slice being there already.
        self.told_backlog = 0;
    }

    fn recount(&mut self) {
        let slices = self.queue.iter().filter_map(|item| match item {
            Item::Slice(slice) => Some(slice.bytes),
            Item::Event(_) | Item::End => None,
        });
        self.packing.recount(slices);
    }

    /// Takes the receiver's numbers. Older ones are without effect.
    ///
    /// # Errors
    /// The peer acknowledges what was never sent.
    pub(crate) fn handle_limit(&mut self, limit: &Limit, memory: &mut SendMemory) -> Result<(), Failure> {
        self.counts.limit_frames += 1;
        if limit.ack > self.next_sequence {
            return Err(Failure::new(
                FailureCode::Protocol,
                alloc::format!(
                    "ack is {}; needed: at most {}, the frames that were sent",
                    limit.ack,
                    self.next_sequence
                ),
            ));
        }
        self.packing.handle_limit(limit.limit);
        self.event_limit = self.event_limit.max(limit.event_limit);
        self.acked_sequence = self.acked_sequence.max(limit.ack);
        self.release_acked(memory);
        // The application cannot have given back more than was sent.
        let sent_bytes = self.acked_bytes + self.unacked_bytes;
        self.consumed_bytes = self.consumed_bytes.max(limit.consumed.min(sent_bytes));
        Ok(())
    }

    /// The receiver said how many bytes it wants in this queue. The last word holds, over outages too.
    pub(crate) fn handle_buffer_size(&mut self, bytes: u32) {
        self.buffer_bytes = bytes;
        self.packing.set_fill(bytes);
        self.recount();
    }

    fn release_acked(&mut self, memory: &mut SendMemory) {
        self.release_until(self.acked_sequence.min(self.sent_sequence), true, memory);
    }

    fn release_until(&mut self, end: u64, is_acked: bool, memory: &mut SendMemory) {
        while self.retained_base < end {
            let Some(frame) = self.retained.pop_front() else { return };
            self.retained_base += 1;
            self.release(frame, memory, is_acked);
        }
    }

    fn release(&mut self, frame: Retained, memory: &mut SendMemory, is_acked: bool) {
        match frame {
            Retained::Slice { slice } => {
                self.unacked_bytes -= u64::from(slice.bytes);
                if is_acked {
                    self.acked_bytes += u64::from(slice.bytes);
                }
                match &mut self.lending {
                    Some(lending) => {
                        lending.count = lending.count.saturating_sub(1);
                        memory.change(slice.segment, |state| state.lent = state.lent.saturating_sub(1));
                    }
                    None => {
                        memory.change(slice.segment, |state| state.unacked = state.unacked.saturating_sub(1))
                    }
                }
            }
            Retained::Event { .. } => self.events_in_flight = self.events_in_flight.saturating_sub(1),
            Retained::End => {}
        }
    }

    /// The consumer of this node that had slices of this channel is gone: all of them are back.
    pub(crate) fn take_lent_back(&mut self, memory: &mut SendMemory) {
        if self.lending.is_some() {
            self.release_until(self.sent_sequence, false, memory);
        }
    }

    /// The channel is over: nothing waits any more, and what was sent is forgotten. Slices that the kernel has are
    /// settled when it lets go of them. `is_acked` says whether the consumer's node has everything.
    ///
    /// What is lent stays lent until the partition is closed: its consumer may still be reading it.
    pub(crate) fn abandon(
        &mut self,
        memory: &mut SendMemory,
        is_acked: bool,
        path: &Path,
        now: Time,
        all: &mut LengthsByCause,
    ) {
        self.stalls.end(path, now, all);
        while let Some(item) = self.queue.pop_front() {
            if let Item::Slice(slice) = item {
                memory.change(slice.segment, |state| state.queued = state.queued.saturating_sub(1));
            }
        }
        self.priority.clear();
        while self.lending.is_none()
            && let Some(frame) = self.retained.pop_front()
        {
            if self.retained_base < self.sent_sequence {
                self.release(frame, memory, is_acked);
            } else if let Retained::Slice { slice } = &frame {
                self.unacked_bytes -= u64::from(slice.bytes);
                self.acked_bytes += if is_acked { u64::from(slice.bytes) } else { 0 };
            }
            self.retained_base += 1;
        }
        self.channel = None;
        self.is_suspended = false;
        self.events_in_flight = 0;
        self.queued_bytes = 0;
        self.packing.recount(core::iter::empty());
        self.deficit = 0;
    }
}
