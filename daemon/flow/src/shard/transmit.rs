//! What a link sends next: one batch, planned from the state of this moment.

use super::{Links, Partitions, Shard, Transmit};
use crate::ids::{LinkId, Time};
use crate::limits::Limits;
use crate::link::plan::{Frame, Planned};
use crate::link::{Link, SendKey};
use crate::send::subpartition::{Next, PlannedSlice};
use crate::stall::LengthsByCause;
use crate::state::LinkState;
use crate::wire::{EVENT_BYTES_MAX, Flags, FrameType, HEADER_BYTES, Header, Message, encode};

/// Bytes of each kind of control in one batch, so that data always has a part of it.
const CONTROL_BATCH_BYTES: u32 = 16 << 10;

/// Size of a frame's header.
const HEAD: u32 = HEADER_BYTES as u32;

impl Shard {
    /// Plans the next batch of a link into `out`, which is cleared first. False if there is nothing to send or a batch
    /// is in flight already. When true, the batch is in flight until [`Self::handle_sent`].
    pub fn poll_transmit(&mut self, link: LinkId, out: &mut Transmit, now: Time) -> bool {
        out.clear();
        let Some(state) = self.links.get_mut(link) else { return false };
        if !state.has_work() {
            return false;
        }
        plan_begun(state, out);
        if plan_control(state, out, now) {
            self.plan_resumes(link, out, CONTROL_BATCH_BYTES, now);
            self.plan_limits(link, out, now);
            self.plan_sizes(link, out, CONTROL_BATCH_BYTES);
            let Self { limits, partitions, links, send_stalls, .. } = self;
            let mut planner = Planner { limits, partitions, lengths: &mut send_stalls.lengths, now };
            planner.plan_priority(links, link, out);
            planner.plan_round(links, link, out);
        }
        let Some(state) = self.links.get_mut(link) else { return false };
        if out.bytes == 0 {
            return false;
        }
        state.batch.headers.clear();
        state.batch.headers.extend_from_slice(&out.headers);
        state.batch.begin_flight(now);
        true
    }

    /// One Limit for each channel that owes one, from its state of this moment.
    fn plan_limits(&mut self, link: LinkId, out: &mut Transmit, now: Time) {
        let Self { limits, gates, links, .. } = self;
        let Some(state) = links.get_mut(link) else { return };
        let end = out.bytes + CONTROL_BATCH_BYTES;
        while out.bytes < end {
            let Some(key) = state.limits.pop_front() else { return };
            let Some(gate) = gates.get_mut(key.gate) else { continue };
            let ready = gate.ready(key.channel);
            let Some(channel) = gate.channel_mut(key.channel) else { continue };
            channel.is_limit_due = false;
            let Some((_, index)) = channel.channel.filter(|_| channel.is_connected()) else { continue };
            let limit = channel.limit(ready, limits.event_window, now);
            let before = channel.announce(limit);
            push_message(state, out, Frame::Limit { key, before }, &Message::Limit { channel: index, limit });
        }
    }
}

/// The rest of the frame that the socket took a part of comes before anything else.
fn plan_begun(link: &Link, out: &mut Transmit) {
    let batch = &link.batch;
    let Some(planned) = batch.frames.first() else { return };
    if planned.header_bytes > 0 {
        out.headers.extend_from_slice(&batch.headers);
        out.push_header(0);
    }
    if let Frame::Slice { key, slice, .. } = &planned.frame
        && planned.slice_bytes > 0
    {
        let done = slice.bytes - planned.slice_bytes;
        out.push_slice(key.partition, slice.segment, slice.offset + done, planned.slice_bytes);
    }
}

/// Frames of the link, and those that happen once. Whether all of them are planned: what follows may rely on them.
fn plan_control(link: &mut Link, out: &mut Transmit, now: Time) -> bool {
    if core::mem::take(&mut link.is_resume_due) {
        let control_received = link.control_log.received;
        push_message(link, out, Frame::LinkResume, &Message::LinkResume { control_received });
    }
    if link.state == LinkState::Resuming {
        return false;
    }
    if let Some(token) = link.pong.take() {
        push_message(link, out, Frame::Pong(token), &Message::Pong { token });
    }
    if link.ping.take().is_some() {
        link.last_ping = now;
        link.control_log.handle_ping(now.0, link.batch.control.len());
        push_message(link, out, Frame::Ping(now.0), &Message::Ping { token: now.0 });
    }
    let end = out.bytes + CONTROL_BATCH_BYTES;
    while out.bytes < end && link.control_log.has_room() {
        let Some(message) = link.control.pop_front() else { break };
        push_message(link, out, Frame::Control, &message);
        link.batch.control.push_back(message);
    }
    link.control.is_empty()
}

pub(super) fn push_message(link: &mut Link, out: &mut Transmit, frame: Frame, message: &Message) {
    let start = out.headers.len();
    encode(message, &mut out.headers);
    push_headers(link, out, frame, start);
}

fn push_headers(link: &mut Link, out: &mut Transmit, frame: Frame, start: usize) {
    out.push_header(start);
    link.batch.frames.push(Planned {
        frame,
        header_start: start as u32,
        header_bytes: (out.headers.len() - start) as u32,
        slice_bytes: 0,
    });
}

/// What planning data needs.
struct Planner<'a> {
    limits: &'a Limits,
    partitions: &'a mut Partitions,
    /// Gets the stalls that end.
    lengths: &'a mut LengthsByCause,
    now: Time,
}

impl Planner<'_> {
    fn plan_priority(&mut self, links: &mut Links, id: LinkId, out: &mut Transmit) {
        let Some(link) = links.get_mut(id) else { return };
        let end = out.bytes + CONTROL_BATCH_BYTES;
        while out.bytes < end {
            let Some(key) = link.priority.pop_front() else { return };
            let Some(partition) = self.partitions.get_mut(key.partition) else { continue };
            let Some((subpartition, _)) = partition.split(key.subpartition) else { continue };
            subpartition.is_priority_listed = false;
            if !subpartition.has_priority() {
                continue;
            }
            self.push_event(link, out, key, true);
            let Some(partition) = self.partitions.get_mut(key.partition) else { continue };
            let Some((subpartition, _)) = partition.split(key.subpartition) else { continue };
            let hold = subpartition.hold();
            subpartition.stalls.handle_planned(hold, &link.path(self.now), self.now, self.lengths);
            if subpartition.has_priority() {
                subpartition.is_priority_listed = true;
                link.priority.push_back(key);
            } else if !subpartition.is_listed && subpartition.next() != Next::Nothing {
                subpartition.is_listed = true;
                link.round.push(key);
            }
            // The end of data waits for priority events.
            if !subpartition.is_listed && subpartition.next() != Next::Nothing {
                subpartition.is_listed = true;
                link.round.push(key);
            }
        }
    }

    /// Data, ordinary events, ends and backlogs: channels in turn, by bytes.
    fn plan_round(&mut self, links: &mut Links, id: LinkId, out: &mut Transmit) {
        let Some(link) = links.get_mut(id) else { return };
        // At least the largest frame, so that every turn sends something.
        let quantum = self.limits.segment_bytes.max(EVENT_BYTES_MAX) + HEAD;
        let (mut slices, mut frames) = (0, 0_u32);
        link.batch.turns.clear();
        if let Some(key) = link.round.begun() {
            link.batch.begin_turn(key, None);
        }
        while slices < self.limits.batch_slices_max {
            let Some((key, begins)) = link.round.first() else { return };
            let Some((subpartition, _)) = self
                .partitions
                .get_mut(key.partition)
                .and_then(|partition| partition.split(key.subpartition))
            else {
                link.round.drop_first();
                continue;
            };
            let next = subpartition.next();
            let bytes = match next {
                Next::Nothing => {
                    subpartition.is_listed = false;
                    subpartition.deficit = 0;
                    link.round.drop_first();
                    continue;
                }
                Next::Slice { bytes } => HEAD + bytes,
                Next::Event => HEAD + EVENT_BYTES_MAX,
                Next::End | Next::Backlog { .. } => HEAD,
            };
            if begins {
                link.batch.begin_turn(key, Some(subpartition.deficit));
                subpartition.deficit = subpartition.deficit.saturating_add(quantum).min(2 * quantum);
            }
            if subpartition.deficit < bytes {
                link.round.rotate();
                continue;
            }
            if frames > 0 && out.bytes + bytes > link.batch.bytes_max {
                return;
            }
            subpartition.deficit -= bytes;
            self.push_next(link, out, key, next);
            frames += 1;
            slices += u32::from(matches!(next, Next::Slice { .. }));
        }
    }

    fn push_next(&mut self, link: &mut Link, out: &mut Transmit, key: SendKey, next: Next) {
        match next {
            Next::Nothing => {}
            Next::Slice { .. } => self.push_slice(link, out, key),
            Next::Event => self.push_event(link, out, key, false),
            Next::End => self.push_end(link, out, key),
            Next::Backlog { closed } => self.push_backlog(link, out, key, closed),
        }
        if let Some(partition) = self.partitions.get_mut(key.partition) {
            if let Some((subpartition, _)) = partition.split(key.subpartition)
                && !matches!(next, Next::Backlog { .. })
            {
                let hold = subpartition.hold();
                subpartition.stalls.handle_planned(hold, &link.path(self.now), self.now, self.lengths);
            }
            partition.mark_changed(key.subpartition);
        }
        self.partitions.list(key.partition);
    }

    fn push_slice(&mut self, link: &mut Link, out: &mut Transmit, key: SendKey) {
        let Some(partition) = self.partitions.get_mut(key.partition) else { return };
        let Some((subpartition, memory)) = partition.split(key.subpartition) else { return };
        let Some((_, index)) = subpartition.channel else { return };
        let Some(planned) = subpartition.plan_slice(memory) else { return };
        let PlannedSlice { slice, opens, fill_before, sequence, backlog } = planned;
        let header = Header {
            length: slice.bytes,
            frame_type: FrameType::Data,
            flags: Flags::OPEN.when(opens),
            channel: index,
            backlog,
            sequence,
            records: slice.records,
        };
        let start = out.headers.len();
        out.headers.extend_from_slice(&header.encode());
        out.push_header(start);
        out.push_slice(key.partition, slice.segment, slice.offset, slice.bytes);
        link.batch.frames.push(Planned {
            frame: Frame::Slice { key, slice, opens, fill_before },
            header_start: start as u32,
            header_bytes: HEAD,
            slice_bytes: slice.bytes,
        });
    }

    fn push_event(&mut self, link: &mut Link, out: &mut Transmit, key: SendKey, priority: bool) {
        let Some(partition) = self.partitions.get_mut(key.partition) else { return };
        let Some((subpartition, _)) = partition.split(key.subpartition) else { return };
        let Some((_, channel)) = subpartition.channel else { return };
        let Some((payload, sequence)) = subpartition.plan_event(priority) else { return };
        let backlog = subpartition.packing.backlog();
        let message = Message::Event { channel, backlog, sequence, priority, payload };
        push_message(link, out, Frame::Event { key }, &message);
    }

    fn push_end(&mut self, link: &mut Link, out: &mut Transmit, key: SendKey) {
        let Some(partition) = self.partitions.get_mut(key.partition) else { return };
        let Some((subpartition, _)) = partition.split(key.subpartition) else { return };
        let Some((_, channel)) = subpartition.channel else { return };
        let Some(sequence) = subpartition.plan_end() else { return };
        let backlog = subpartition.packing.backlog();
        push_message(link, out, Frame::End { key }, &Message::EndOfData { channel, backlog, sequence });
    }

    fn push_backlog(&mut self, link: &mut Link, out: &mut Transmit, key: SendKey, closed: bool) {
        let Some(partition) = self.partitions.get_mut(key.partition) else { return };
        let Some((subpartition, _)) = partition.split(key.subpartition) else { return };
        let Some((_, channel)) = subpartition.channel else { return };
        let (fill_before, told_before) = subpartition.plan_backlog(closed);
        let backlog = subpartition.packing.backlog();
        let frame = Frame::Backlog { key, fill_before, told_before };
        push_message(link, out, frame, &Message::Backlog { channel, backlog, closed });
    }
}
