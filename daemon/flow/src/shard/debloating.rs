//! When gates look at what they want in flight, and how senders hear of it.
//!
//! A gate's period runs from the first byte that arrives, and on while anything moves or may still change by time alone.
//! So a gate that carries nothing costs nothing. Credit is held back by the gate's pool; how many bytes a sender is to
//! keep its queue to goes in a BufferSize frame, which like a Limit is made from the state of the moment at which it is
//! planned. The last one holds. What was told on a socket that is lost may not have arrived, so it is told again on
//! the next one.

use super::{Shard, Transmit};
use crate::ids::{GateId, LinkId, Time};
use crate::link::ReceiveKey;
use crate::link::plan::Frame;
use crate::recv::gate::Gate;
use crate::state::ReceiveState;
use crate::wire::Message;

impl Shard {
    /// So many bytes arrived at a gate.
    pub(super) fn note_arrived(&mut self, id: GateId, bytes: u32, now: Time) {
        let Some(gate) = self.gates.get_mut(id) else { return };
        let Some(state) = &mut gate.debloating else { return };
        state.core.handle_arrived(bytes.into(), now);
        state.has_moved = true;
        self.arm_debloat(id, now);
    }

    /// The client of a gate gave so many bytes back.
    pub(super) fn note_given_back(&mut self, id: GateId, bytes: u32, now: Time) {
        let Some(gate) = self.gates.get_mut(id) else { return };
        let Some(state) = &mut gate.debloating else { return };
        state.core.handle_given_back(bytes.into(), now);
        state.has_moved = true;
        self.arm_debloat(id, now);
    }

    fn arm_debloat(&mut self, id: GateId, now: Time) {
        let period_ns = self.limits.debloat_period_ns;
        let Some(gate) = self.gates.get_mut(id) else { return };
        let Some(state) = gate.debloating.as_mut().filter(|state| !state.is_armed) else { return };
        state.is_armed = true;
        self.debloats.push_back((now.after_ns(period_ns), id));
    }

    /// Ends the periods that are over. All are equally long, so that the first in the list ends first.
    pub(super) fn end_debloat_periods(&mut self, now: Time) {
        while let Some((deadline, id)) = self.debloats.front().copied() {
            if deadline > now {
                return;
            }
            self.debloats.pop_front();
            let Some(gate) = self.gates.get_mut(id) else { continue };
            let has_changed = gate.end_debloat_period(&self.limits, now);
            let goes_on = gate.has_debloat_period();
            let channels = gate.channels.len() as u32;
            if let Some(state) = &mut gate.debloating {
                state.is_armed = false;
            }
            if goes_on {
                self.arm_debloat(id, now);
            }
            if has_changed {
                self.tell_gained(id, now);
                (0..channels).for_each(|channel| self.tell_buffer_size(ReceiveKey { gate: id, channel }));
            }
        }
    }

    /// The sender of this channel may have to hear what it is to keep its queue to.
    pub(super) fn tell_buffer_size(&mut self, key: ReceiveKey) {
        let Self { gates, links, .. } = self;
        let Some(gate) = gates.get_mut(key.gate) else { return };
        let wanted = gate.buffer_bytes();
        let Some(channel) = gate.channel_mut(key.channel) else { return };
        let is_told = channel.told_buffer_bytes == Some(wanted);
        let is_governed = channel.lent.is_none() && channel.state == ReceiveState::Open;
        if is_told || channel.is_size_due || !is_governed {
            return;
        }
        let Some((link_id, _)) = channel.channel else { return };
        let Some(link) = links.get_mut(link_id) else { return };
        channel.is_size_due = true;
        link.sizes.push_back(key);
        links.list(link_id);
    }

    /// A socket of its link was lost: what the sender was told on it, it may not have got.
    pub(super) fn forget_told_size(&mut self, key: ReceiveKey) {
        let channel = self.gates.get_mut(key.gate).and_then(|gate| gate.channel_mut(key.channel));
        if let Some(channel) = channel.filter(|channel| channel.counts.size_frames > 0) {
            channel.told_buffer_bytes = None;
        }
        self.tell_buffer_size(key);
    }

    /// One BufferSize for each channel that owes one, from its state of this moment.
    pub(super) fn plan_sizes(&mut self, link: LinkId, out: &mut Transmit, bytes_max: u32) {
        let Self { gates, links, .. } = self;
        let Some(state) = links.get_mut(link) else { return };
        let end = out.bytes + bytes_max;
        while out.bytes < end {
            let Some(key) = state.sizes.pop_front() else { return };
            let Some(gate) = gates.get_mut(key.gate) else { continue };
            let bytes = gate.buffer_bytes();
            let Some(channel) = gate.channel_mut(key.channel) else { continue };
            channel.is_size_due = false;
            let Some((_, index)) = channel.channel.filter(|_| channel.state == ReceiveState::Open) else {
                continue;
            };
            let before = channel.told_buffer_bytes.replace(bytes);
            // It changed and changed back.
            if before == Some(bytes) {
                continue;
            }
            channel.counts.size_frames += 1;
            let message = Message::BufferSize { channel: index, bytes };
            super::transmit::push_message(state, out, Frame::BufferSize { key, before }, &message);
        }
    }

    /// A BufferSize that was planned did not leave.
    pub(super) fn revert_size(&mut self, key: ReceiveKey, before: Option<u32>) {
        let Some(gate) = self.gates.get_mut(key.gate) else { return };
        if let Some(channel) = gate.channel_mut(key.channel) {
            channel.told_buffer_bytes = before;
            channel.counts.size_frames = channel.counts.size_frames.saturating_sub(1);
        }
        self.tell_buffer_size(key);
    }
}

/// What a gate with debloating does now, for a report.
pub(super) fn debloat_stats(
    gate: &Gate,
    segment_bytes: u32,
    now: Time,
) -> Option<crate::stats::DebloatStats> {
    let state = gate.debloating.as_ref()?;
    let (rate, in_flight_bytes) = (state.core.rate(now), gate.in_flight_bytes(segment_bytes));
    Some(crate::stats::DebloatStats {
        target_ns: state.core.target_ns(),
        wanted_bytes: state.core.wanted(),
        bytes_per_second: rate,
        in_flight_ns: rate
            .and_then(|rate| crate::stats::time_to_consume_ns(in_flight_bytes, rate, 1_000_000_000)),
        window: (state.share.window != u32::MAX).then_some(state.share.window),
        buffer_bytes: (state.share.buffer_bytes != u32::MAX).then_some(state.share.buffer_bytes),
        changes_total: state.core.changes(),
        turns_total: state.core.turns(),
    })
}
