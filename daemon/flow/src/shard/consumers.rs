//! The attach side of gates: what consumers' clients take and give back, and what that grants.

use alloc::format;

use super::{ClientFault, GateSpec, Notice, Shard};
use crate::failure::{Failure, FailureCode};
use crate::ids::{GateId, SegmentIndex, Time};
use crate::link::ReceiveKey;
use crate::recv::gate::Gate;
use crate::recv::grant::Urgency;
use crate::send::partition::fault;

impl Shard {
    /// A consumer attached. Its channels are opened one by one with [`Self::handle_producer`].
    pub fn handle_gate(&mut self, spec: GateSpec, _now: Time) -> GateId {
        let Self { limits, gates, .. } = self;
        let id = GateId(gates.table.insert(Gate::new(spec, limits.segment_bytes, limits.event_window)));
        gates.list(id);
        id
    }

    /// The client of a gate gave bytes of a segment back, in any order and any portions.
    ///
    /// # Errors
    /// [`ClientFault`]: it does not hold these bytes. The shell detaches the client with
    /// [`Self::handle_gate_closed`].
    pub fn handle_given_back(
        &mut self,
        gate: GateId,
        segment: SegmentIndex,
        bytes: u32,
        now: Time,
    ) -> Result<(), ClientFault> {
        let Some(state) = self.gates.get_mut(gate) else {
            return Err(fault("gate", format!("is {gate}, which is unknown")));
        };
        let channel = state.give_back(segment, bytes)?;
        self.note_given_back(gate, bytes, now);
        self.tell_limit(ReceiveKey { gate, channel }, now);
        self.tell_gained(gate, now);
        self.gates.list(gate);
        Ok(())
    }

    /// The client of a gate consumed one event of a channel.
    ///
    /// # Errors
    /// [`ClientFault`]: it holds none.
    pub fn handle_event_consumed(
        &mut self,
        gate: GateId,
        channel: u32,
        now: Time,
    ) -> Result<(), ClientFault> {
        let Some(state) = self.gates.get_mut(gate) else {
            return Err(fault("gate", format!("is {gate}, which is unknown")));
        };
        state.handle_event_consumed(channel)?;
        self.tell_limit(ReceiveKey { gate, channel }, now);
        self.gates.list(gate);
        Ok(())
    }

    /// The client of a gate closed it, or left or was detached. Producers whose channel had not ended are told, and
    /// [`Notice::GateReleased`] follows at once: nothing is written into its region any more.
    pub fn handle_gate_closed(&mut self, gate: GateId, failure: Option<Failure>, now: Time) {
        let Some(state) = self.gates.get(gate) else { return };
        let failure = failure.unwrap_or_else(|| {
            Failure::new(
                FailureCode::ConsumerGone,
                format!(
                    "consumer {} of {} left before its end of data",
                    state.spec.consumer, state.spec.exchange
                ),
            )
        });
        for channel in 0..state.channels.len() as u32 {
            self.fail_receiver(ReceiveKey { gate, channel }, failure.clone(), true, now);
        }
        self.gates.remove(gate);
        self.notices.push_back(Notice::GateReleased(gate));
    }

    /// The sender of this channel may have to hear of a new limit.
    pub(super) fn tell_limit(&mut self, key: ReceiveKey, now: Time) {
        let Self { limits, gates, links, delayed, .. } = self;
        let Some(gate) = gates.get_mut(key.gate) else { return };
        let ready = gate.ready(key.channel);
        let Some(channel) = gate.channel_mut(key.channel) else { return };
        channel.note_room(ready, limits.event_window, now);
        if channel.is_limit_due || !channel.is_connected() {
            return;
        }
        let Some((link_id, _)) = channel.channel else { return };
        match channel.urgency(ready, limits.event_window, limits.segment_bytes) {
            Urgency::Nothing => {}
            Urgency::Soon if channel.is_limit_delayed => {}
            Urgency::Soon => {
                channel.is_limit_delayed = true;
                delayed.push_back((now.after_ns(limits.limit_delay_ns), key));
            }
            Urgency::Now => {
                channel.is_limit_due = true;
                if let Some(link) = links.get_mut(link_id) {
                    link.limits.push_back(key);
                }
                links.list(link_id);
            }
        }
    }

    /// Channels of this gate gained a segment: their senders hear of it.
    pub(super) fn tell_gained(&mut self, gate: GateId, now: Time) {
        while let Some(channel) = self.gates.get_mut(gate).and_then(|state| state.gained.pop()) {
            self.tell_limit(ReceiveKey { gate, channel }, now);
        }
    }
}
