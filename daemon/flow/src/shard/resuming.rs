//! A link whose socket is lost, and what happens when another one takes its place.
//!
//! The link stays, with its channels and their indices. On the new socket each end first says how many of the peer's
//! control frames it has ([`Message::LinkResume`]); the other sends those behind that again. The consumer's end of each
//! channel then says what it has ([`Message::Resume`]), and the producer's end takes everything behind that back into
//! its queue. So nothing is lost and nothing comes twice, wherever the old socket was cut.
//!
//! A link that gets no new socket within the grace is closed for good, on each end by its own clock. Both use the grace
//! of the end that waits less, so neither waits for one that is to come no more. Whichever end then meets the other,
//! which still waits, refuses it: that is settled between the shells before a socket gets here.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::{Notice, Shard, Transmit};
use crate::failure::{Failure, FailureCode};
use crate::ids::{ChannelIndex, LinkId, Time};
use crate::link::plan::Frame;
use crate::link::{ReceiveKey, SendKey, Serving};
use crate::state::{IndexState, LinkEvent, LinkState};
use crate::wire::{FrameType, Limit, Message, Resume, WireError};

/// Why a frame is refused on a socket that replaces another.
const FIRST: &str = "LinkResume, the first frame on a socket that replaces another";

impl Shard {
    /// The socket of a link is gone: reset, closed by the peer, or silent for too long. The link waits for another one
    /// for [`Limits::link_grace_ns`](crate::limits::Limits::link_grace_ns) after it was last heard, or for as long as the
    /// peer does if that is shorter; then it is closed for good, and [`Notice::LinkExpired`] says so. It is closed at once
    /// if one end is stopping or has no grace.
    ///
    /// A send still in flight has to be reported with [`Self::handle_sent`]: before, or the loss takes effect then. The
    /// kernel may read the memory of its slices until it has ended, and the peer may have got all of it.
    pub fn handle_link_lost(&mut self, link: LinkId, reason: &str, now: Time) {
        let own_grace_ns = self.limits.link_grace_ns;
        let Some(state) = self.links.get_mut(link) else { return };
        let has_grace = state.grace_ns(own_grace_ns) > 0;
        if state.batch.is_in_flight && state.is_open() {
            state.pending_loss.get_or_insert_with(|| reason.into());
            return;
        }
        let suspended = match state.state.on(LinkEvent::SocketLost) {
            Ok(suspended) if has_grace && state.goodbye.is_none() => suspended,
            Err(_) if state.state == LinkState::Suspended => return,
            _ => return self.handle_link_closed(link, reason, now),
        };
        state.state = suspended;
        state.lost = reason.into();
        self.undo_batch(link, now);
        self.undo_arriving(link);
        self.suspend_senders(link, now);
        if let Some(state) = self.links.get_mut(link) {
            (state.ping, state.pong) = (None, None);
            state.is_resume_due = false;
            state.resumes.clear();
            state.control_log.handle_lost();
        }
        self.notices.push_back(Notice::LinkSuspended(link));
        self.update_link_deadline();
    }

    /// The last send on a socket that was lost has ended.
    pub(super) fn finish_loss(&mut self, link: LinkId, now: Time) {
        let pending = self.links.get_mut(link).and_then(|state| state.pending_loss.take());
        if let Some(reason) = pending {
            self.handle_link_lost(link, &reason, now);
        }
    }

    /// Nothing of what was planned and not wholly sent will be finished on that socket.
    fn undo_batch(&mut self, link: LinkId, now: Time) {
        let Some(state) = self.links.get_mut(link) else { return };
        let frames = core::mem::take(&mut state.batch.frames);
        state.batch.is_first_begun = false;
        state.batch.turns.clear();
        state.batch.headers.clear();
        for planned in frames.iter().rev() {
            self.revert_frame(link, planned, now, now);
        }
    }

    /// A frame that has not arrived whole comes again from its start.
    fn undo_arriving(&mut self, link: LinkId) {
        let Some(state) = self.links.get_mut(link) else { return };
        let Some((target, header)) = state.parser.reset() else { return };
        if let Some(gate) = self.gates.get_mut(target.key.gate) {
            gate.undo_data(target.key.channel, &header);
        }
    }

    /// No channel sends before its receiver has said where to go on.
    fn suspend_senders(&mut self, link: LinkId, now: Time) {
        let Self { links, partitions, send_stalls, .. } = self;
        let Some(state) = links.get_mut(link) else { return };
        state.priority.clear();
        let _ = state.round.clear();
        let path = state.path(now);
        let keys: Vec<SendKey> = state.senders().collect();
        for key in keys {
            let Some(partition) = partitions.get_mut(key.partition) else { continue };
            let Some((subpartition, _)) = partition.split(key.subpartition) else { continue };
            subpartition.is_suspended = true;
            subpartition.is_listed = false;
            subpartition.is_priority_listed = false;
            subpartition.deficit = 0;
            subpartition.update_stall(&path, now, &mut send_stalls.lengths);
            partition.mark_changed(key.subpartition);
            partitions.list(key.partition);
        }
    }

    /// Another socket stands for a link that lost its own. False if the link does not wait for one (any more): the shell
    /// closes the socket.
    pub fn handle_link_resumed(&mut self, link: LinkId, now: Time) -> bool {
        let Some(state) = self.links.get_mut(link) else { return false };
        let Ok(resuming) = state.state.on(LinkEvent::SocketReplaced) else { return false };
        state.state = resuming;
        state.is_resume_due = true;
        state.is_timed_out = false;
        (state.last_received, state.last_ping) = (now, now);
        state.counts.resumes += 1;
        self.links.list(link);
        self.update_link_deadline();
        true
    }

    /// On a new socket the peer first says what it has, or why it has given the link up.
    ///
    /// # Errors
    /// It says something else.
    pub(super) fn check_resumed(&self, link: LinkId, found: FrameType) -> Result<(), WireError> {
        let resuming = self.links.get(link).is_some_and(|state| state.state == LinkState::Resuming);
        if resuming && !matches!(found, FrameType::LinkResume | FrameType::Goodbye) {
            return Err(WireError::Unexpected { found, needed: FIRST });
        }
        Ok(())
    }

    /// The peer said how many control frames it has.
    ///
    /// # Errors
    /// It cannot be, or it was not asked for.
    pub(super) fn handle_link_resume(&mut self, link: LinkId, received: u64) -> Result<(), WireError> {
        let found = FrameType::LinkResume;
        let Some(state) = self.links.get_mut(link) else { return Ok(()) };
        let Ok(established) = state.state.on(LinkEvent::PeerResumed) else {
            let needed = "another frame: this socket replaces none, or the peer has said what it has";
            return Err(WireError::Unexpected { found, needed });
        };
        if state.control_log.take_back(received, &mut state.control).is_err() {
            let needed = "a count between the control frames acknowledged and those sent";
            return Err(WireError::Unexpected { found, needed });
        }
        state.state = established;
        let live = state.receiving.iter().filter(|entry| entry.state == IndexState::Live);
        let live: Vec<ReceiveKey> = live.map(|entry| entry.key).collect();
        // The peer does not know the channels that are opened by what is sent again.
        let mut unknown: Vec<u32> = state
            .control
            .iter()
            .filter_map(|message| match message {
                Message::OpenChannel { channel, .. } => Some(channel.0),
                _ => None,
            })
            .collect();
        unknown.sort_unstable();
        for (index, entry) in state.receiving.iter().enumerate() {
            if entry.state != IndexState::Live {
                continue;
            }
            if unknown.binary_search(&(index as u32)).is_err() {
                state.resumes.push_back(entry.key);
                continue;
            }
            // What it was granted since it was asked for is lost with the question.
            let gate = self.gates.get_mut(entry.key.gate);
            if let Some(channel) = gate.and_then(|gate| gate.channel_mut(entry.key.channel))
                && !channel.is_limit_due
            {
                channel.is_limit_due = true;
                state.limits.push_back(entry.key);
            }
        }
        live.into_iter().for_each(|key| self.forget_told_size(key));
        self.notices.push_back(Notice::LinkResumed(link));
        self.links.list(link);
        Ok(())
    }

    /// One Resume for each channel whose sender does not know where to go on, from its state of this moment.
    pub(super) fn plan_resumes(&mut self, link: LinkId, out: &mut Transmit, bytes_max: u32, now: Time) {
        let Self { limits, gates, links, .. } = self;
        let Some(state) = links.get_mut(link) else { return };
        let end = out.bytes + bytes_max;
        while out.bytes < end {
            let Some(key) = state.resumes.pop_front() else { return };
            let Some(gate) = gates.get_mut(key.gate) else { continue };
            let ready = gate.ready(key.channel);
            let Some(channel) = gate.channel_mut(key.channel) else { continue };
            let Some((_, index)) = channel.channel.filter(|_| channel.is_connected()) else { continue };
            let limit = channel.limit(ready, limits.event_window, now);
            let resume = channel.resume(&limit);
            let is_due = channel.is_limit_due;
            let before = channel.announce(limit);
            channel.is_limit_due = is_due;
            super::transmit::push_message(
                state,
                out,
                Frame::Resume { key, before },
                &Message::Resume { channel: index, resume },
            );
        }
    }

    /// A Resume that was planned did not leave.
    pub(super) fn revert_resume(&mut self, link: LinkId, key: ReceiveKey, before: Limit, now: Time) {
        let Some(gate) = self.gates.get_mut(key.gate) else { return };
        let Some(channel) = gate.channel_mut(key.channel).filter(|channel| channel.is_connected()) else {
            return;
        };
        channel.revert_announce(before);
        if let Some(state) = self.links.get_mut(link) {
            state.resumes.push_front(key);
        }
        self.tell_limit(key, now);
    }

    /// A consumer's end says where its channel goes on.
    pub(super) fn handle_resume(
        &mut self,
        link: LinkId,
        key: SendKey,
        resume: &Resume,
        now: Time,
    ) -> Result<(), Failure> {
        let Some(partition) = self.partitions.get_mut(key.partition) else { return Ok(()) };
        let incarnation = partition.spec.incarnation;
        let Some((subpartition, memory)) = partition.split(key.subpartition) else { return Ok(()) };
        if !subpartition.is_suspended {
            return Err(Failure::new(FailureCode::Protocol, "Resume of a channel that was not interrupted"));
        }
        if resume.incarnation.0 != 0 && resume.incarnation != incarnation {
            let found = resume.incarnation;
            let text = format!("Resume of incarnation {found}; needed: {incarnation}");
            return Err(Failure::new(FailureCode::Protocol, text));
        }
        let bytes = subpartition.resume(resume, memory)?;
        if let Some(state) = self.links.get_mut(link) {
            state.counts.resent_bytes += bytes;
        }
        self.mark_changed(key);
        self.activate(key, now);
        Ok(())
    }

    /// Links whose grace is over are closed for good.
    pub(super) fn expire_links(&mut self, now: Time) {
        let own_ns = self.limits.link_grace_ns;
        let expired: Vec<LinkId> = self
            .links
            .table
            .iter()
            .filter(|(_, link)| link.state == LinkState::Suspended)
            .filter(|(_, link)| link.last_heard.after_ns(link.grace_ns(own_ns)) <= now)
            .map(|(id, _)| LinkId(id))
            .collect();
        for link in expired {
            let Some(state) = self.links.get(link) else { continue };
            let (grace_ns, peer) = (state.grace_ns(own_ns), &state.spec.peer);
            let whose = if grace_ns < own_ns { format!(" of node {peer}") } else { String::new() };
            let seconds = grace_ns as f64 / 1e9;
            let reason =
                format!("{}; it did not come back within {seconds} s (link.grace{whose})", state.lost);
            self.notices.push_back(Notice::LinkExpired(link));
            self.handle_link_closed(link, &reason, now);
        }
    }

    /// The answer to a Cancel or a Resume of a channel that failed when its end of data had been planned; an EndAck
    /// needs none.
    pub(super) fn answer_ended(&mut self, link: LinkId, frame_type: FrameType, index: ChannelIndex) {
        let Some(state) = self.links.get_mut(link) else { return };
        if !matches!(state.serving(index), Some(Serving::Failed(..))) {
            return;
        }
        match frame_type {
            FrameType::Cancel | FrameType::Resume => state.answer_failed(index),
            FrameType::EndAck => state.set_serving(index, None),
            _ => {}
        }
        self.links.list(link);
    }
}
