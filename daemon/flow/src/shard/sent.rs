//! What the socket took of a batch: whole frames are done, the one begun is fixed, the rest was never planned.

use super::Shard;
use crate::failure::Failure;
use crate::ids::{LinkId, Time};
use crate::link::plan::{Frame, Planned};
use crate::link::{Link, ReceiveKey, SendKey};
use crate::send::subpartition::Slice;
use crate::state::SendState;
use crate::wire::{Limit, Message};

impl Shard {
    /// The socket took `bytes` of the batch in flight, from its start: all, some, or none. A number larger than the
    /// batch counts as all of it.
    pub fn handle_sent(&mut self, link: LinkId, bytes: u32, now: Time) {
        let Self { limits, links, .. } = self;
        let Some(state) = links.get_mut(link).filter(|state| state.batch.is_in_flight) else { return };
        state.batch.end_flight(now);
        if !state.is_open() {
            return self.release_link(link);
        }
        state.counts.sent_bytes += u64::from(bytes);
        let bounds = (limits.batch_bytes_min, limits.batch_bytes_max);
        state.batch.measure(bytes, limits.batch_window_ns, bounds, now);
        let planned_at = state.batch.in_flight_since;
        let mut frames = core::mem::take(&mut state.batch.frames);
        let was_begun = state.batch.is_first_begun;
        let (mut done, mut rest) = (0, bytes);
        for planned in &frames {
            if rest < planned.bytes() {
                break;
            }
            rest -= planned.bytes();
            done += 1;
            self.commit_frame(link, &planned.frame);
        }
        let is_begun = done < frames.len() && (rest > 0 || (was_begun && done == 0));
        let (kept, planned) = (done + usize::from(is_begun), frames.len());
        while frames.len() > kept {
            let Some(planned) = frames.pop() else { break };
            self.revert_frame(link, &planned, planned_at, now);
        }
        self.undo_turns(link, kept, planned);
        frames.drain(..done);
        if let Some(state) = self.links.get_mut(link) {
            state.batch.is_first_begun = is_begun;
            if let (true, Some(planned)) = (is_begun, frames.first_mut()) {
                state.counts.short_writes += 1;
                keep_rest(&mut state.batch.headers, planned, rest);
            }
            state.batch.frames = frames;
        }
        self.finish_loss(link, now);
        self.links.list(link);
    }

    /// All of the frame is in the socket.
    fn commit_frame(&mut self, link: LinkId, frame: &Frame) {
        match *frame {
            Frame::Control => {
                if let Some(state) = self.links.get_mut(link) {
                    let message = state.batch.control.pop_front();
                    commit_control(state, message);
                }
            }
            Frame::Ping(_)
            | Frame::Pong(_)
            | Frame::Limit { .. }
            | Frame::BufferSize { .. }
            | Frame::LinkResume
            | Frame::Resume { .. } => {}
            Frame::Slice { key, slice, .. } => self.commit_data(key, Some(&slice)),
            Frame::Event { key } | Frame::End { key } => self.commit_data(key, None),
            Frame::Backlog { key, .. } => {
                let partition = self.partitions.get_mut(key.partition);
                if let Some((subpartition, _)) =
                    partition.and_then(|partition| partition.split(key.subpartition))
                {
                    subpartition.counts.backlog_frames += 1;
                }
            }
        }
    }

    fn commit_data(&mut self, key: SendKey, slice: Option<&Slice>) {
        let Some(partition) = self.partitions.get_mut(key.partition) else { return };
        let Some((subpartition, memory)) = partition.split(key.subpartition) else { return };
        if let Some(slice) = slice {
            subpartition.count_sent(slice);
        }
        if subpartition.is_connected() {
            subpartition.commit(slice, memory);
            partition.mark_changed(key.subpartition);
        } else if let Some(slice) = slice {
            memory.drop_in_kernel(slice.segment);
        }
        self.partitions.list(key.partition);
        self.release_partition(key.partition);
    }

    /// The link is gone: the kernel has nothing of this frame any more.
    pub(super) fn drop_frame(&mut self, frame: &Frame) {
        if let Frame::Slice { key, slice, .. } = frame
            && let Some(partition) = self.partitions.get_mut(key.partition)
        {
            partition.memory.drop_in_kernel(slice.segment);
            self.partitions.list(key.partition);
            self.release_partition(key.partition);
        }
    }

    /// Nothing of the frame is in the socket: the state before it was planned comes back. Frames are put back from the
    /// last one to the first. `since` is when the send began that did not take it.
    pub(super) fn revert_frame(&mut self, link: LinkId, planned: &Planned, since: Time, now: Time) {
        match planned.frame {
            Frame::Slice { key, slice, opens, fill_before } => {
                if self.is_sending(key) {
                    self.revert_data(key, planned, Some((opens, fill_before)), (since, now));
                } else {
                    self.drop_frame(&Frame::Slice { key, slice, opens, fill_before });
                }
            }
            Frame::Event { key } | Frame::End { key } => {
                if self.is_sending(key) {
                    self.revert_data(key, planned, None, (since, now));
                } else if let (Frame::End { .. }, Some(state)) = (planned.frame, self.links.get_mut(link)) {
                    state.answer_unsent_end(key);
                }
            }
            Frame::Backlog { key, fill_before, told_before } => {
                if self.is_sending(key)
                    && let Some(partition) = self.partitions.get_mut(key.partition)
                    && let Some((subpartition, _)) = partition.split(key.subpartition)
                {
                    subpartition.revert_backlog(fill_before, told_before);
                    self.put_in_round(link, key, planned.bytes(), (now, now));
                }
            }
            Frame::Limit { key, before } => self.revert_limit(link, key, before),
            Frame::Resume { key, before } => self.revert_resume(link, key, before, now),
            Frame::BufferSize { key, before } => self.revert_size(key, before),
            Frame::Control | Frame::Ping(_) | Frame::Pong(_) | Frame::LinkResume => {
                if let Some(state) = self.links.get_mut(link) {
                    revert_message(state, &planned.frame);
                }
            }
        }
    }

    fn is_sending(&self, key: SendKey) -> bool {
        let partition = self.partitions.get(key.partition);
        partition
            .and_then(|partition| partition.subpartition(key.subpartition))
            .is_some_and(|subpartition| matches!(subpartition.state, SendState::Open | SendState::Ending))
    }

    fn revert_data(
        &mut self,
        key: SendKey,
        planned: &Planned,
        packed: Option<(bool, Option<u32>)>,
        (since, now): (Time, Time),
    ) {
        let Some(partition) = self.partitions.get_mut(key.partition) else { return };
        let Some((subpartition, memory)) = partition.split(key.subpartition) else { return };
        let Some((link, _)) = subpartition.channel else { return };
        let result: Result<(), Failure> = subpartition.revert(packed, memory);
        partition.mark_changed(key.subpartition);
        self.partitions.list(key.partition);
        match result {
            Ok(()) => self.put_in_round(link, key, planned.bytes(), (since, now)),
            Err(failure) => self.fail_partition(key.partition, &failure, now),
        }
    }

    /// Turns of which no frame left did not happen: their channels are first in the round, in the order of those turns
    /// and with what they had before. A turn of which some frames left goes on.
    fn undo_turns(&mut self, link: LinkId, kept: usize, planned: usize) {
        let Self { links, partitions, .. } = self;
        let Some(state) = links.get_mut(link) else { return };
        let mut end = planned;
        while let Some(turn) = state.batch.turns.pop() {
            let deficit_before = turn.deficit_before.filter(|_| turn.first_frame >= kept);
            let was_cut = end > kept;
            end = turn.first_frame;
            if deficit_before.is_none() {
                // Turns before this one happened.
                state.batch.turns.clear();
            }
            let partition = partitions.get_mut(turn.key.partition);
            let subpartition = partition.and_then(|partition| partition.split(turn.key.subpartition));
            let Some((subpartition, _)) = subpartition.filter(|(subpartition, _)| subpartition.is_listed)
            else {
                continue;
            };
            subpartition.deficit = deficit_before.unwrap_or(subpartition.deficit);
            if was_cut || deficit_before.is_some() {
                state.round.move_first(turn.key, deficit_before.is_none());
            }
        }
    }

    /// Frames of this channel were put back: it is in the round, with the bytes that they had cost.
    fn put_in_round(&mut self, link: LinkId, key: SendKey, bytes: u32, (since, now): (Time, Time)) {
        let Some(partition) = self.partitions.get_mut(key.partition) else { return };
        let Some((subpartition, _)) = partition.split(key.subpartition) else { return };
        let Some(state) = self.links.get_mut(link) else { return };
        let hold = subpartition.hold();
        let lengths = &mut self.send_stalls.lengths;
        subpartition.stalls.handle_put_back(hold, since, &state.path(now), now, lengths);
        subpartition.deficit = subpartition.deficit.saturating_add(bytes);
        if !subpartition.is_listed {
            subpartition.is_listed = true;
            state.round.push(key);
        }
        if !subpartition.is_priority_listed && subpartition.has_priority() {
            subpartition.is_priority_listed = true;
            state.priority.push_front(key);
        }
    }

    fn revert_limit(&mut self, link: LinkId, key: ReceiveKey, before: Limit) {
        let Some(gate) = self.gates.get_mut(key.gate) else { return };
        let Some(channel) = gate.channel_mut(key.channel).filter(|channel| channel.is_connected()) else {
            return;
        };
        channel.revert_announce(before);
        if !channel.is_limit_due
            && let Some(state) = self.links.get_mut(link)
        {
            channel.is_limit_due = true;
            state.limits.push_front(key);
        }
    }
}

/// The peer will have it, unless the socket is lost before: it is kept until the peer says so.
fn commit_control(link: &mut Link, message: Option<Message>) {
    if link.spec.is_local {
        return;
    }
    if let Some(message) = message.filter(|message| message.frame_type().happens_once()) {
        link.control_log.push(message);
    }
    if link.control_log.wants_ping() && link.ping.is_none() {
        link.ping = Some(0);
    }
}

fn revert_message(link: &mut Link, frame: &Frame) {
    match *frame {
        Frame::Control => {
            if let Some(message) = link.batch.control.pop_back() {
                link.control.push_front(message);
            }
        }
        Frame::Ping(token) => {
            link.control_log.revert_ping(token);
            link.ping = Some(token);
        }
        // A newer Ping may have come since; answering that one is enough.
        Frame::Pong(token) => link.pong = link.pong.or(Some(token)),
        Frame::LinkResume => link.is_resume_due = true,
        Frame::Limit { .. }
        | Frame::BufferSize { .. }
        | Frame::Resume { .. }
        | Frame::Slice { .. }
        | Frame::Event { .. }
        | Frame::End { .. }
        | Frame::Backlog { .. } => {}
    }
}

/// The socket took `taken` bytes of this frame: what is left of it is kept as it is.
fn keep_rest(headers: &mut alloc::vec::Vec<u8>, planned: &mut Planned, taken: u32) {
    let of_header = taken.min(planned.header_bytes);
    let start = (planned.header_start + of_header) as usize;
    let end = (planned.header_start + planned.header_bytes) as usize;
    headers.truncate(end);
    headers.drain(..start.min(headers.len()));
    planned.header_start = 0;
    planned.header_bytes -= of_header;
    planned.slice_bytes -= taken - of_header;
}
