//! What goes from a shard to its clients: deliveries, returned segments, the state of subpartitions, wake-ups.

use std::mem;

use weir_flow::failure::Failure;
use weir_flow::ids::{GateId, PartitionId, Time};
use weir_flow::shard::{Delivery, PartitionUpdate, Shard};
use weir_ipc::partition_port::SubpartitionUpdate;
use weir_ipc::{Delivered, IpcFault, Returned};

use super::budget;
use super::mailbox::{AttachmentId, ToNode};
use super::rings::GateRing;
use super::run::ShardLoop;
use super::waits;
use crate::io::Ring;

impl<R: Ring> ShardLoop<R> {
    /// Publishes to every client that something happened for, and wakes those that wait. Whether more is left.
    pub(super) fn publish(&mut self, now: Time) -> bool {
        let unfinished = self.publish_gates(now);
        self.publish_partitions(now);
        self.attachments.ring_clients();
        unfinished
    }

    fn publish_gates(&mut self, now: Time) -> bool {
        let mut gates = mem::take(&mut self.lists.gates);
        self.core.take_gates(&mut gates);
        let (mut left_over, mut distrusted) = (Vec::new(), Vec::new());
        for id in gates.drain(..) {
            let Some(gate) = self.rings.gates.0.get_mut(&id).filter(|gate| gate.is_open) else { continue };
            match deliver(&mut self.core, id, gate) {
                Ok(handed) => {
                    left_over.extend(handed.is_cut_short.then_some(id));
                    if handed.slices {
                        self.returns_due = now.after_ns(self.options.limits.limit_delay_ns);
                    }
                    if handed.is_full {
                        self.lists.full_gates.insert(id);
                    } else {
                        self.lists.full_gates.remove(&id);
                    }
                }
                Err(fault) => distrusted.push((gate.key, fault)),
            }
            if gate.endpoint.client_waits() {
                self.attachments.wake(gate.key.attachment);
            }
        }
        for (key, fault) in distrusted {
            self.distrust(key.attachment, fault.to_string(), now);
        }
        let unfinished = !left_over.is_empty();
        gates.append(&mut left_over);
        self.lists.gates = gates;
        unfinished
    }

    fn publish_partitions(&mut self, now: Time) {
        let mut partitions = mem::take(&mut self.lists.partitions);
        self.core.take_partitions(&mut partitions);
        for id in partitions.drain(..) {
            if let Err((attachment, text)) = self.publish_partition(id, now) {
                self.distrust(attachment, text, now);
            }
        }
        self.lists.partitions = partitions;
    }

    fn publish_partition(&mut self, id: PartitionId, now: Time) -> Result<(), (AttachmentId, String)> {
        let Some(partition) = self.rings.partitions.get_mut(&id).filter(|partition| partition.is_open) else {
            // Its client is gone; what the core still says of it has no reader.
            while self.core.poll_update(id).is_some() {}
            return Ok(());
        };
        let attachment = partition.key.attachment;
        // Before it is told what may end its wait.
        waits::look(&mut self.core, id, partition, now).map_err(|fault| (attachment, fault.to_string()))?;
        while let Some(update) = self.core.poll_update(id) {
            let (returned, message) = match update {
                PartitionUpdate::Returned(segment) => (Returned::Segment(segment.0), None),
                PartitionUpdate::Finished => {
                    partition.is_finished = true;
                    (Returned::Finished, Some(ToNode::PartitionFinished { key: partition.key }))
                }
                PartitionUpdate::Failed(failure) => {
                    let Failure { code, text } = &failure;
                    let returned = Returned::Failed { code: *code as u16, text: text.clone() };
                    (returned, Some(ToNode::RingFailed { key: partition.key, failure }))
                }
            };
            match partition.endpoint.push_returned(&returned) {
                Ok(true) => {}
                // The ring has room for every segment of the partition.
                Ok(false) => {
                    return Err((attachment, "return ring: full; needed: room for every segment".to_owned()));
                }
                Err(fault) => return Err((attachment, fault.to_string())),
            }
            if let Some(message) = message {
                let _ = self.node.send(message);
            }
        }
        self.lists.subpartitions.clear();
        self.core.take_changed_subpartitions(id, &mut self.lists.subpartitions);
        for subpartition in &self.lists.subpartitions {
            if let Some(view) = self.core.subpartition_view(id, *subpartition) {
                let update = SubpartitionUpdate {
                    credit: view.credit,
                    sent_segments: view.sent_segments,
                    acked_bytes: view.acked_bytes,
                    consumed_bytes: view.consumed_bytes,
                    events_in_flight: view.events_in_flight,
                    is_gone: view.is_gone,
                    // The largest number is no bound.
                    buffer_bytes: (view.buffer_bytes != u32::MAX).then_some(view.buffer_bytes),
                };
                partition.endpoint.publish(subpartition.0, &update);
            }
        }
        if partition.endpoint.client_waits() {
            self.attachments.wake(attachment);
        }
        Ok(())
    }
}

/// What of a gate went to its client.
struct Handed {
    /// There were slices, which come back without an event.
    slices: bool,
    /// Its rings have no room for what is next: what comes back makes it.
    is_full: bool,
    /// The turn was the limit. What the rings have no room for waits for the client, not for the next turn.
    is_cut_short: bool,
}

/// Hands over what the core has for a gate, as far as its rings have room and the turn allows.
fn deliver(core: &mut Shard, id: GateId, gate: &mut GateRing) -> Result<Handed, IpcFault> {
    let mut handed = Handed { slices: false, is_full: false, is_cut_short: false };
    for _ in 0..budget::DELIVERIES {
        if gate.endpoint.has_priority_room()?
            && let Some(Delivery::Event { channel, payload, .. }) = core.poll_priority_delivery(id)
        {
            gate.endpoint.push_priority(channel, &payload)?;
            continue;
        }
        if !gate.endpoint.has_room()? {
            return Ok(Handed { is_full: true, ..handed });
        }
        let Some(delivery) = core.poll_delivery(id) else { return Ok(handed) };
        handed.slices |= matches!(delivery, Delivery::Data { .. });
        gate.endpoint.push(&delivered(delivery))?;
    }
    Ok(Handed { is_cut_short: true, ..handed })
}

fn delivered(delivery: Delivery) -> Delivered {
    match delivery {
        Delivery::Data { channel, segment, offset, bytes, records } => {
            Delivered::Data { channel, segment: segment.0, offset, bytes, records }
        }
        Delivery::Lent { channel, segment, offset, bytes, records } => {
            Delivered::Lent { channel, segment: segment.0, offset, bytes, records }
        }
        Delivery::Event { channel, payload, priority } => {
            Delivered::Event { channel, payload: payload.to_vec(), priority }
        }
        Delivery::End { channel } => Delivered::End { channel },
        Delivery::Failed { channel, failure } => {
            Delivered::Failed { channel, code: failure.code as u16, text: failure.text }
        }
    }
}
