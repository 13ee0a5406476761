//! One input gate: its receive segments, its channels, and what its client is still to be handed.

use alloc::collections::VecDeque;
use alloc::format;
use alloc::vec::Vec;

use bytes::Bytes;

use super::channel::{Channel, OpenSegment, Pending};
use super::debloating::Debloating;
use super::lent::Lent;
use crate::debloat::Share;
use crate::failure::{Failure, FailureCode};
use crate::ids::{ChannelIndex, Incarnation, LinkId, SegmentIndex, Sequence};
use crate::pool::gate::{GatePool, GatePoolSpec};
use crate::send::partition::fault;
use crate::shard::{ClientFault, Delivery, GateSpec};
use crate::state::{ReceiveEvent, ReceiveState, Unexpected};
use crate::wire::{Flags, Header};

/// One segment of a receive region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReceiveSegment {
    /// The channel that uses it.
    pub(crate) channel: Option<u32>,
    /// Slices may still be appended.
    pub(crate) is_open: bool,
    /// Bytes of complete frames.
    pub(crate) written: u32,
    /// Bytes that were handed to the application.
    pub(crate) handed: u32,
    /// Bytes that the application gave back.
    pub(crate) given_back: u32,
}

#[derive(Debug)]
pub(crate) struct Gate {
    pub(crate) spec: GateSpec,
    pub(crate) pool: GatePool,
    /// Why no channel can be opened, if the gate was made wrong.
    pub(crate) refusal: Option<Failure>,
    pub(crate) segments: Vec<ReceiveSegment>,
    /// Segments that no channel uses; the last one is used next, since its memory is the warmest.
    pub(crate) free: Vec<SegmentIndex>,
    pub(crate) channels: Vec<Channel>,
    /// Channels with something to hand up, in turn.
    pub(crate) rotation: VecDeque<u32>,
    pub(crate) priority_rotation: VecDeque<u32>,
    /// Channels whose limit rose; the shard tells their senders.
    pub(crate) gained: Vec<u32>,
    /// In the shard's list of gates to be looked at.
    pub(crate) is_listed: bool,
    /// In the shard's count of gates of which nothing given back may wait.
    pub(crate) is_urgent: bool,
    /// Channels whose sender told a backlog: it waits for what is given back, or soon will.
    pub(crate) backlogged: u32,
    /// A channel of it is or was read in its producer's memory.
    has_lent: bool,
    pub(crate) debloating: Option<Debloating>,
    event_window: u32,
}

impl Gate {
    pub(crate) fn new(spec: GateSpec, segment_bytes: u32, event_window: u32) -> Self {
        let channels = spec.shape.channels(spec.consumer);
        let pool_spec = GatePoolSpec { segments: spec.segments, channels, exclusive: spec.exclusive };
        let (mut pool, mut refusal) = match GatePool::new(pool_spec) {
            Ok(pool) => (pool, None),
            Err(error) => (GatePool::none(), Some(Failure::new(FailureCode::OverBudget, format!("{error}")))),
        };
        if spec.shape.segment_bytes != segment_bytes {
            let found = spec.shape.segment_bytes;
            refusal = Some(Failure::new(
                FailureCode::Mismatch,
                format!("a segment has {found} B; needed: {segment_bytes}, as on this node"),
            ));
        }
        if spec.debloat.is_some() {
            pool.set_window(Share::initial(segment_bytes).window, &mut Vec::new());
        }
        Self {
            pool,
            refusal,
            segments: (0..spec.segments).map(|_| ReceiveSegment::default()).collect(),
            free: (0..spec.segments).rev().map(SegmentIndex).collect(),
            channels: (0..channels).map(|_| Channel::new()).collect(),
            rotation: VecDeque::new(),
            priority_rotation: VecDeque::new(),
            gained: Vec::new(),
            is_listed: false,
            is_urgent: false,
            backlogged: 0,
            has_lent: false,
            debloating: spec.debloat.map(|spec| Debloating::new(spec, segment_bytes)),
            event_window,
            spec,
        }
    }

    pub(crate) fn channel(&self, channel: u32) -> Option<&Channel> {
        self.channels.get(channel as usize)
    }

    pub(crate) fn channel_mut(&mut self, channel: u32) -> Option<&mut Channel> {
        self.channels.get_mut(channel as usize)
    }

    /// Segments that the sender of a channel may still open; slices that it may still name, if they are read in its memory.
    pub(crate) fn ready(&self, index: u32) -> u32 {
        let lent = self.channel(index).and_then(|channel| channel.lent.as_ref());
        lent.map_or_else(|| self.pool.ready(index), Lent::ready)
    }

    /// Segments of a channel that are open, filled or held by the application; slices, if they are read elsewhere.
    pub(crate) fn used(&self, index: u32) -> u32 {
        let lent = self.channel(index).and_then(|channel| channel.lent.as_ref());
        lent.map_or_else(|| self.pool.used(index), Lent::count)
    }

    /// A channel is asked for: it gets what it may grant at once.
    pub(crate) fn open_channel(&mut self, index: u32, is_local: bool) {
        if !is_local {
            return self.pool.open(index);
        }
        let (segments, channels) = (self.spec.segments, self.channels.len() as u32);
        self.has_lent = true;
        if let Some(channel) = self.channel_mut(index) {
            channel.lent = Some(Lent::new(segments, channels));
        }
    }

    pub(crate) fn has_pending(&self) -> bool {
        !self.rotation.is_empty() || !self.priority_rotation.is_empty()
    }

    /// Whether somebody waits, or may wait unseen, for what is given back: a sender that told a backlog; a producer on this
    /// node, whose segments come back no sooner; the measure of how fast the application is.
    pub(crate) fn wants_returns(&self) -> bool {
        self.backlogged > 0 || self.has_lent || self.debloating.is_some()
    }

    /// The producer's node serves the channel.
    pub(crate) fn accept(
        &mut self,
        index: u32,
        backlog: u32,
        sequence: Sequence,
        incarnation: Incarnation,
    ) -> Result<(), Failure> {
        let Some(channel) = self.channels.get_mut(index as usize) else { return Err(unknown_channel(index)) };
        channel.state = take_sequenced(channel, ReceiveEvent::Accepted, sequence)?;
        channel.incarnation = incarnation;
        self.take_backlog(index, backlog);
        Ok(())
    }

    /// The producer that was asked for is not there: the channel waits for it as before. Where it was to be; none if it
    /// was not asked for, or has been agreed to.
    pub(crate) fn take_request_back(&mut self, index: u32) -> Option<(LinkId, ChannelIndex)> {
        let channel = self.channels.get_mut(index as usize)?;
        let state = channel.state.on(ReceiveEvent::NotFound).ok()?;
        let at = channel.channel?;
        let is_limit_delayed = channel.is_limit_delayed;
        self.set_backlog(index, 0);
        // It never had anything: what was announced goes to whoever is asked next.
        *self.channels.get_mut(index as usize)? = Channel { state, is_limit_delayed, ..Channel::new() };
        self.pool.close(index, &mut self.gained);
        Some(at)
    }

    /// The header of a Data frame arrived. Where its payload goes; a segment is opened if the header says so.
    pub(crate) fn begin_data(
        &mut self,
        index: u32,
        header: &Header,
        segment_bytes: u32,
    ) -> Result<OpenSegment, Failure> {
        let Some(channel) = self.channels.get_mut(index as usize) else { return Err(unknown_channel(index)) };
        take_sequenced(channel, ReceiveEvent::FrameArrived, header.sequence)?;
        if header.length == 0 {
            return Err(Failure::new(FailureCode::Protocol, "Data has 0 bytes; needed: at least 1"));
        }
        if !header.flags.has(Flags::OPEN) {
            return match channel.open {
                Some(open) if open.fill + header.length <= segment_bytes => Ok(open),
                open => Err(no_room(header.length, open, segment_bytes)),
            };
        }
        if self.pool.take(index).is_err() {
            let limit = channel.opened;
            return Err(Failure::new(
                FailureCode::CreditViolation,
                format!("segment {} was opened; needed: at most {limit}, the limit granted", limit + 1),
            ));
        }
        channel.opened += 1;
        let before = channel.open.take();
        if let Some(before) = before {
            self.close_segment(before.segment);
        }
        let Some(segment) = self.free.pop() else {
            return Err(Failure::new(FailureCode::OverBudget, "the gate has no free segment"));
        };
        if let Some(state) = self.segments.get_mut(segment.0 as usize) {
            *state = ReceiveSegment { channel: Some(index), is_open: true, ..ReceiveSegment::default() };
        }
        let open = OpenSegment { segment, fill: 0 };
        if let Some(channel) = self.channels.get_mut(index as usize) {
            channel.open = Some(open);
        }
        Ok(open)
    }

    /// The rest of a Data frame will not arrive: the sender sends it again, whole. If it opened its segment, that was
    /// not opened; the segment before it stays closed, since the frame will open one again.
    pub(crate) fn undo_data(&mut self, index: u32, header: &Header) {
        if !header.flags.has(Flags::OPEN) {
            return;
        }
        let Some(channel) = self.channels.get_mut(index as usize) else { return };
        let Some(open) = channel.open.take_if(|open| open.fill == 0) else { return };
        channel.opened -= 1;
        if let Some(state) = self.segments.get_mut(open.segment.0 as usize) {
            *state = ReceiveSegment::default();
        }
        self.free.push(open.segment);
        self.pool.untake(index);
    }

    /// The last byte of a Data frame arrived.
    pub(crate) fn finish_data(&mut self, index: u32, header: &Header) {
        let Some(channel) = self.channels.get_mut(index as usize) else { return };
        let Some(open) = &mut channel.open else { return };
        let OpenSegment { segment, fill } = *open;
        open.fill += header.length;
        if let Some(state) = self.segments.get_mut(segment.0 as usize) {
            state.written += header.length;
        }
        channel.next_sequence += 1;
        channel.unannounced_bytes += u64::from(header.length);
        channel.counts.bytes += u64::from(header.length);
        channel.counts.buffers += 1;
        channel.counts.records += u64::from(header.records);
        channel.push_slice(segment, fill, header.length, header.records);
        self.list_channel(index);
        self.take_backlog(index, header.backlog);
    }

    /// A slice was named that is read in the producer's memory.
    pub(crate) fn take_lent(
        &mut self,
        index: u32,
        header: &Header,
        segment: SegmentIndex,
        offset: u32,
    ) -> Result<(), Failure> {
        let Some(channel) = self.channels.get_mut(index as usize) else { return Err(unknown_channel(index)) };
        take_sequenced(channel, ReceiveEvent::FrameArrived, header.sequence)?;
        let Some(lent) = &mut channel.lent else {
            return Err(Failure::new(FailureCode::Protocol, "a slice was named; needed: its bytes"));
        };
        if !lent.take(channel.next_sequence, segment, header.length) {
            let window = lent.window();
            let text = format!("a slice was named beyond {window} that were; needed: at most these");
            return Err(Failure::new(FailureCode::CreditViolation, text));
        }
        channel.opened += 1;
        channel.next_sequence += 1;
        channel.counts.bytes += u64::from(header.length);
        channel.counts.buffers += 1;
        channel.counts.records += u64::from(header.records);
        channel.push_slice(segment, offset, header.length, header.records);
        self.list_channel(index);
        self.take_backlog(index, header.backlog);
        Ok(())
    }

    pub(crate) fn handle_event(
        &mut self,
        index: u32,
        sequence: Sequence,
        backlog: u32,
        payload: Bytes,
        priority: bool,
    ) -> Result<(), Failure> {
        let window = self.event_window;
        let Some(channel) = self.channels.get_mut(index as usize) else { return Err(unknown_channel(index)) };
        take_sequenced(channel, ReceiveEvent::FrameArrived, sequence)?;
        take_event(channel, window)?;
        if priority {
            channel.priority.push_back(payload);
            if !channel.is_priority_listed {
                channel.is_priority_listed = true;
                self.priority_rotation.push_back(index);
            }
        } else {
            channel.pending.push_back(Pending::Event(payload));
            self.list_channel(index);
        }
        self.take_backlog(index, backlog);
        Ok(())
    }

    pub(crate) fn handle_end(&mut self, index: u32, sequence: Sequence) -> Result<(), Failure> {
        let window = self.event_window;
        let Some(channel) = self.channels.get_mut(index as usize) else { return Err(unknown_channel(index)) };
        let state = take_sequenced(channel, ReceiveEvent::EndArrived, sequence)?;
        take_event(channel, window)?;
        channel.state = state;
        self.finish(index, Pending::End);
        Ok(())
    }

    pub(crate) fn handle_backlog(&mut self, index: u32, backlog: u32, closed: bool) -> Result<(), Failure> {
        let Some(channel) = self.channels.get_mut(index as usize) else { return Err(unknown_channel(index)) };
        channel.state = channel.state.on(ReceiveEvent::FrameArrived).map_err(protocol)?;
        channel.counts.backlog_frames += 1;
        if closed && let Some(open) = channel.open.take() {
            self.close_segment(open.segment);
        }
        self.take_backlog(index, backlog);
        Ok(())
    }

    /// The channel failed. What had arrived is still handed up, then the failure. False if it was over before.
    pub(crate) fn fail(&mut self, index: u32, failure: Failure) -> bool {
        let Some(channel) = self.channels.get_mut(index as usize) else { return false };
        let Ok(state) = channel.state.on(ReceiveEvent::Failed) else { return false };
        channel.state = state;
        self.finish(index, Pending::Failed(failure));
        true
    }

    /// Nothing more arrives: the open segment is closed, what was granted goes to others.
    fn finish(&mut self, index: u32, last: Pending) {
        let Some(channel) = self.channels.get_mut(index as usize) else { return };
        let open = channel.open.take();
        channel.channel = None;
        channel.pending.push_back(last);
        self.set_backlog(index, 0);
        self.list_channel(index);
        if let Some(open) = open {
            self.close_segment(open.segment);
        }
        self.pool.close(index, &mut self.gained);
    }

    fn take_backlog(&mut self, index: u32, backlog: u32) {
        self.set_backlog(index, backlog);
        self.pool.handle_backlog(index, backlog);
    }

    fn set_backlog(&mut self, index: u32, backlog: u32) {
        let Some(channel) = self.channels.get_mut(index as usize) else { return };
        let before = core::mem::replace(&mut channel.backlog, backlog);
        self.backlogged = self.backlogged - u32::from(before > 0) + u32::from(backlog > 0);
    }

    fn list_channel(&mut self, index: u32) {
        if let Some(channel) = self.channels.get_mut(index as usize)
            && !channel.is_listed
        {
            channel.is_listed = true;
            self.rotation.push_back(index);
        }
    }

    fn close_segment(&mut self, segment: SegmentIndex) {
        if let Some(state) = self.segments.get_mut(segment.0 as usize) {
            state.is_open = false;
        }
        self.free_if_empty(segment);
    }

    fn free_if_empty(&mut self, segment: SegmentIndex) {
        let Some(state) = self.segments.get_mut(segment.0 as usize) else { return };
        if state.is_open || state.given_back < state.written {
            return;
        }
        if let Some(channel) = state.channel.take() {
            *state = ReceiveSegment::default();
            self.free.push(segment);
            self.pool.give_back(channel, &mut self.gained);
        }
    }

    /// The application gave bytes of a segment back. The channel that they belonged to.
    pub(crate) fn give_back(&mut self, segment: SegmentIndex, bytes: u32) -> Result<u32, ClientFault> {
        let count = self.segments.len();
        let Some(state) = self.segments.get_mut(segment.0 as usize) else {
            return Err(fault("segment", format!("is {segment}; needed: below {count}")));
        };
        let held = state.handed - state.given_back;
        let Some(index) = state.channel.filter(|_| held > 0) else {
            return Err(fault("segment", format!("{segment} is not held; needed: one that was handed up")));
        };
        if bytes == 0 || bytes > held {
            return Err(fault(
                "bytes",
                format!("is {bytes} of segment {segment}; needed: 1 to {held}, the bytes held"),
            ));
        }
        state.given_back += bytes;
        if let Some(channel) = self.channels.get_mut(index as usize) {
            channel.consumed += u64::from(bytes);
        }
        self.free_if_empty(segment);
        Ok(index)
    }

    /// The application gave bytes back that it read in the memory of a channel's producer.
    pub(crate) fn give_back_lent(
        &mut self,
        index: u32,
        segment: SegmentIndex,
        bytes: u32,
    ) -> Result<(), ClientFault> {
        let channel = self.channels.get_mut(index as usize);
        let Some((lent, consumed)) =
            channel.and_then(|channel| Some((channel.lent.as_mut()?, &mut channel.consumed)))
        else {
            return Err(fault(
                "channel",
                format!("is {index}; needed: one that is read in its producer's memory"),
            ));
        };
        lent.give_back(segment, bytes)?;
        *consumed += u64::from(bytes);
        Ok(())
    }

    pub(crate) fn handle_event_consumed(&mut self, index: u32) -> Result<(), ClientFault> {
        let count = self.channels.len();
        let Some(channel) = self.channels.get_mut(index as usize) else {
            return Err(fault("channel", format!("is {index}; needed: below {count}")));
        };
        if channel.events_consumed >= channel.events_handed {
            return Err(fault("channel", format!("{index} holds no event; needed: one that was handed up")));
        }
        channel.events_consumed += 1;
        Ok(())
    }

    /// The next thing to hand up, in turn between channels.
    pub(crate) fn poll(&mut self) -> Option<Delivery> {
        loop {
            let index = self.rotation.pop_front()?;
            let Some(channel) = self.channels.get_mut(index as usize) else { continue };
            let pending = channel.pending.pop_front();
            channel.is_listed = !channel.pending.is_empty();
            if channel.is_listed {
                self.rotation.push_back(index);
            }
            match pending {
                Some(pending) => return Some(self.hand_up(index, pending)),
                None => continue,
            }
        }
    }

    fn hand_up(&mut self, index: u32, pending: Pending) -> Delivery {
        let channel = self.channels.get_mut(index as usize);
        match pending {
            Pending::Slice { segment, offset, bytes, records } => {
                if let Some(channel) = channel {
                    channel.pending_bytes -= u64::from(bytes);
                    channel.delivered += u64::from(bytes);
                    if let Some(lent) = &mut channel.lent {
                        lent.hand_up(segment, bytes);
                        return Delivery::Lent { channel: index, segment, offset, bytes, records };
                    }
                }
                if let Some(state) = self.segments.get_mut(segment.0 as usize) {
                    state.handed += bytes;
                }
                Delivery::Data { channel: index, segment, offset, bytes, records }
            }
            Pending::Event(payload) => {
                if let Some(channel) = channel {
                    channel.events_handed += 1;
                }
                Delivery::Event { channel: index, payload, priority: false }
            }
            Pending::End => Delivery::End { channel: index },
            Pending::Failed(failure) => Delivery::Failed { channel: index, failure },
        }
    }

    /// The next priority event to hand up.
    pub(crate) fn poll_priority(&mut self) -> Option<Delivery> {
        loop {
            let index = self.priority_rotation.pop_front()?;
            let Some(channel) = self.channels.get_mut(index as usize) else { continue };
            let payload = channel.priority.pop_front();
            channel.is_priority_listed = !channel.priority.is_empty();
            if channel.is_priority_listed {
                self.priority_rotation.push_back(index);
            }
            if let Some(payload) = payload {
                channel.events_handed += 1;
                return Some(Delivery::Event { channel: index, payload, priority: true });
            }
        }
    }

    /// Whether everything that arrived was handed up and given back.
    pub(crate) fn is_drained(&self) -> bool {
        !self.has_pending()
            && self.segments.iter().all(|state| state.given_back == state.written)
            && self.channels.iter().all(|channel| channel.lent.as_ref().is_none_or(|lent| lent.count() == 0))
            && self.channels.iter().all(|channel| channel.state != ReceiveState::Requested)
    }
}

/// Checks that the channel can take this event now and that the frame is the next one. The state after it.
fn take_sequenced(
    channel: &mut Channel,
    event: ReceiveEvent,
    sequence: Sequence,
) -> Result<ReceiveState, Failure> {
    let state = channel.state.on(event).map_err(protocol)?;
    if sequence.0 != channel.next_sequence {
        return Err(Failure::new(
            FailureCode::SequenceGap,
            format!("sequence is {sequence}; needed: {}", channel.next_sequence),
        ));
    }
    Ok(state)
}

/// Counts an event against its window.
fn take_event(channel: &mut Channel, window: u32) -> Result<(), Failure> {
    let limit = channel.events_consumed + u64::from(window);
    if channel.events_arrived >= limit {
        return Err(Failure::new(
            FailureCode::CreditViolation,
            format!(
                "event {} arrived; needed: at most {limit}, the limit granted",
                channel.events_arrived + 1
            ),
        ));
    }
    channel.events_arrived += 1;
    channel.next_sequence += 1;
    Ok(())
}

fn protocol(error: Unexpected) -> Failure {
    Failure::new(FailureCode::Protocol, format!("{error}"))
}

fn unknown_channel(index: u32) -> Failure {
    Failure::new(FailureCode::Protocol, format!("channel {index} is unknown"))
}

fn no_room(length: u32, open: Option<OpenSegment>, segment_bytes: u32) -> Failure {
    let room = open.map_or(0, |open| segment_bytes - open.fill);
    Failure::new(
        FailureCode::CreditViolation,
        format!("slice of {length} bytes without OPEN; needed: at most {room}, the room in the open segment"),
    )
}
