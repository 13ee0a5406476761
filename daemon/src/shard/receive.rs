//! What comes into a shard: mail, completions of the ring, submissions and give-backs of clients.

use std::mem;

use bytes::Bytes;
use weir_flow::failure::{Failure, FailureCode};
use weir_flow::ids::{GateId, PartitionId, SegmentIndex, SubpartitionIndex, Time};
use weir_flow::shard::Submission;
use weir_ipc::{Delivered, GivenBack, Returned};

use super::budget;
use super::mailbox::{AttachmentId, RingKey, ShardCounts, ShardSnapshot, ToNode, ToShard};
use super::rings::{GateRing, PartitionRing, Target};
use super::run::{Drain, ShardLoop};
use super::waits;
use crate::io::{Chunk, Completion, Ring, SocketSlot};

impl<R: Ring> ShardLoop<R> {
    /// Takes all mail that is there. `None`: the shard is to end. Else whether there was any.
    ///
    /// All of it, since completions may rest on it: a peer asks for a partition as soon as the node has announced it, and
    /// the node does that when it has mailed it. The completions of this turn were reaped when the loop parked, before
    /// this, so that whatever they can know of has been mailed by now. Those that send mail have more work with each message
    /// than this has, and cannot keep it here; other shards, moreover, wait for answers that are sent later in the turn.
    pub(super) fn take_mail(&mut self, now: Time) -> Option<bool> {
        let mut was_any = false;
        while let Some(message) = self.inbox.next() {
            if matches!(message, ToShard::Stop) {
                self.stop(now);
                return None;
            }
            self.handle_mail(message, now);
            was_any = true;
        }
        Some(was_any)
    }

    fn handle_mail(&mut self, message: ToShard, now: Time) {
        match message {
            ToShard::AddLink { key, socket, early, peer_grace } => {
                self.add_link(key, socket, &early, peer_grace, now);
            }
            ToShard::SuspendLink { key } => self.suspend_link(&key),
            ToShard::ResumeLink { key, socket } => self.resume_link(&key, socket, now),
            ToShard::CloseLink { key, reason } => {
                if let Some(link) = self.links.of_key(&key) {
                    self.close_link(link, reason, now);
                }
            }
            ToShard::AddAttachment { attachment, session } => {
                let watch = self.attachments.next_watch();
                if let Err(error) = self.ring.watch(session.doorbell_fd(), watch) {
                    self.tell(ToNode::AttachmentFault { attachment, text: format!("its doorbell: {error}") });
                }
                self.attachments.insert(attachment, session, watch);
            }
            ToShard::AddPartition { key, .. } | ToShard::AddGate { key, .. }
                if !self.attachments.contains(key.attachment) =>
            {
                // Detached by this shard before the control thread heard of it; the memory goes with the message.
                self.tell(ToNode::RingReleased { key });
            }
            ToShard::AddPartition { key, spec, endpoint, region } => {
                let builders = spec.shape.builders(spec.producer);
                let id = self.core.handle_partition(spec, now);
                self.rings.partitions.insert(id, PartitionRing::new(key, endpoint, region, builders));
                self.attachments.set_target(key, Target::Partition(id));
                self.lists.unfinished.push(key);
            }
            ToShard::AddGate { key, spec, endpoint, region } => {
                let channels = spec.shape.channels(spec.consumer);
                let id = self.core.handle_gate(spec, now);
                self.rings.gates.0.insert(id, GateRing { key, channels, endpoint, region, is_open: true });
                self.attachments.set_target(key, Target::Gate(id));
                self.lists.unfinished.push(key);
            }
            ToShard::ConnectProducer { key, life, link } => {
                let Some(Target::Gate(gate)) = self.attachments.target(key) else { return };
                let carried = self.links.of_key(&link).filter(|link| self.links.socket(*link).is_some());
                match carried {
                    Some(link) => self.core.handle_producer(gate, life, link, now),
                    // Nothing was asked for yet, so nothing is lost: the node finds another link, or the next socket.
                    None => self.tell(ToNode::NotConnected { key, producer: life.producer }),
                }
            }
            ToShard::ConnectLocal { key, life, shard } => self.connect_local(key, life, shard, now),
            ToShard::Passed { from, at, transmit } => self.take_passed(from, &transmit, at, now),
            ToShard::CloseRing { key, failure } => self.close_ring(key, failure, now),
            ToShard::DropAttachment { attachment, failure } => {
                self.drop_attachment(attachment, &failure, now)
            }
            ToShard::Snapshot { reply } => {
                // The asker may have given up waiting.
                let _ = reply.send(self.snapshot(now));
            }
            ToShard::Drain => {
                self.drain = Drain::Asked;
                self.core.handle_drain(now);
            }
            ToShard::Stop => {}
        }
    }

    /// Closes a partition or gate. The client of a failed one is told, as its last word; not that of a partition that has
    /// finished, which may not have looked yet, as when its daemon stops.
    fn close_ring(&mut self, key: RingKey, failure: Option<Failure>, now: Time) {
        match self.attachments.target(key) {
            Some(Target::Partition(id)) => {
                if let Some(partition) =
                    self.rings.partitions.get_mut(&id).filter(|partition| partition.is_open)
                {
                    partition.is_open = false;
                    if let Some(failure) = failure.as_ref().filter(|_| !partition.is_finished) {
                        let last_word =
                            Returned::Failed { code: failure.code as u16, text: failure.text.clone() };
                        // A client whose ring is full or whose cursors lie does not hear it, to its own loss.
                        let _ = partition.endpoint.push_returned(&last_word);
                        partition.endpoint.client_waits();
                        self.attachments.wake(key.attachment);
                    }
                    self.core.handle_partition_closed(id, failure, now);
                }
            }
            Some(Target::Gate(id)) => {
                self.take_last_returns(key, id, now);
                if let Some(gate) = self.rings.gates.0.get_mut(&id).filter(|gate| gate.is_open) {
                    gate.is_open = false;
                    if let Some(failure) = &failure {
                        tell_gate(gate, failure);
                        self.attachments.wake(key.attachment);
                    }
                    self.core.handle_gate_closed(id, failure, now);
                }
            }
            None => {}
        }
    }

    /// Closes everything of a client that is gone or no longer trusted. Repeating it has no effect.
    pub(super) fn drop_attachment(&mut self, attachment: AttachmentId, failure: &Failure, now: Time) {
        let Some(dropped) = self.attachments.remove(attachment) else { return };
        self.ring.unwatch(dropped.watch);
        for (ring, target) in &dropped.targets {
            match *target {
                Target::Partition(id) => {
                    if let Some(partition) =
                        self.rings.partitions.get_mut(&id).filter(|partition| partition.is_open)
                    {
                        partition.is_open = false;
                        self.core.handle_partition_closed(id, Some(failure.clone()), now);
                    }
                }
                Target::Gate(id) => {
                    self.take_last_returns(RingKey { attachment, ring: *ring }, id, now);
                    if let Some(gate) = self.rings.gates.0.get_mut(&id).filter(|gate| gate.is_open) {
                        gate.is_open = false;
                        self.core.handle_gate_closed(id, Some(failure.clone()), now);
                    }
                }
            }
        }
    }

    fn snapshot(&mut self, now: Time) -> ShardSnapshot {
        self.look_at_all_waits(now);
        self.core.settle_stalls(now);
        let count = |length: usize| u32::try_from(length).unwrap_or(u32::MAX);
        ShardSnapshot {
            shard: self.options.shard,
            at: now,
            channels: self.core.channels(now).collect(),
            partitions: self.core.partitions(now).collect(),
            gates: self.core.gates(now).collect(),
            past_send_stalls: *self.core.past_send_stalls(),
            past_emit_stalls: *self.core.past_emit_stalls(),
            links: self.core.links().collect(),
            sockets: self.links.socket_accounts(),
            zero_copy: self.zero_copy_report(),
            counts: ShardCounts {
                attachments: count(self.attachments.len()),
                partitions: count(self.rings.partitions.len()),
                gates: count(self.rings.gates.0.len()),
                links: count(self.links.len()),
            },
            bytes_total: self.bytes_total,
            cpu: rustix::thread::sched_getcpu(),
            turns: self.stall.stats(),
            ring_level: self.options.ring_level.clone(),
        }
    }

    /// Takes completions of the ring. Whether there were any.
    pub(super) fn take_completions(&mut self, now: Time) -> bool {
        let mut received = 0;
        for taken in 0..budget::COMPLETIONS {
            if received >= budget::RECEIVED_BYTES {
                return true;
            }
            let Some(completion) = self.ring.next() else { return taken > 0 };
            match completion {
                Completion::Received { socket, chunk } => {
                    received += chunk.bytes() as usize;
                    self.handle_received(socket, chunk, now);
                }
                Completion::Sent { socket, result, batch } => self.handle_sent(socket, result, batch, now),
                Completion::SentHeld { socket, bytes, hold } => {
                    self.handle_sent_held(socket, bytes, hold, now);
                }
                Completion::Released { hold, copied, batch } => {
                    self.handle_released(hold, copied, batch, now)
                }
                Completion::EndOfStream { socket } => {
                    self.lose_socket(socket, "the peer closed it".to_owned())
                }
                Completion::ReceiveFailed { socket, errno } => self.lose_socket(socket, errno.to_string()),
                Completion::Closed { socket } => self.forget_socket(socket, now),
                Completion::Watch { .. } => self.inbox.hush(),
                Completion::WatchFailed { id, errno } => {
                    tracing::error!(shard = self.options.shard, ?id, %errno, "a doorbell cannot be watched");
                }
            }
        }
        true
    }

    fn handle_received(&mut self, socket: SocketSlot, chunk: Chunk, now: Time) {
        let bytes = self.ring.bytes(&chunk);
        self.bytes_total += bytes.len() as u64;
        let open = self.links.of_socket(socket).filter(|id| self.links.socket(*id) == Some(socket));
        let broken = open.and_then(|link| {
            let age = self.links.get(link).and_then(|link| link.watch.as_ref()?.receive_age());
            if let Some(age) = age {
                self.core.handle_receive_age(link, age);
            }
            let outcome = self.core.handle_received(link, bytes, &mut self.rings.gates, now);
            outcome.err().map(|error| (link, error))
        });
        self.ring.release(chunk);
        if let Some((link, error)) = broken {
            self.close_link(link, error.to_string(), now);
        }
    }

    /// Takes what clients published. Whether there was any.
    pub(super) fn take_submissions(&mut self, now: Time) -> bool {
        let mut marked = mem::take(&mut self.lists.marked);
        marked.append(&mut self.lists.unfinished);
        self.attachments.take_marked(&mut marked);
        let busy = !marked.is_empty();
        for key in marked.drain(..) {
            let outcome = match self.attachments.target(key) {
                Some(Target::Partition(id)) => self.take_from_partition(key, id, now),
                Some(Target::Gate(id)) => self.take_from_gate(key, id, now),
                // A client may mark a ring that it has just closed.
                None => Ok(()),
            };
            if let Err(text) = outcome {
                self.distrust(key.attachment, text, now);
            }
        }
        self.lists.marked = marked;
        busy
    }

    fn take_from_partition(&mut self, key: RingKey, id: PartitionId, now: Time) -> Result<(), String> {
        let Some(partition) = self.rings.partitions.get_mut(&id).filter(|partition| partition.is_open) else {
            return Ok(());
        };
        // Before its submissions: what they bring begins no wait that was going on.
        waits::look(&mut self.core, id, partition, now).map_err(|fault| fault.to_string())?;
        for _ in 0..budget::RING_ENTRIES {
            let Some(entry) = partition.endpoint.pop().map_err(|fault| fault.to_string())? else {
                return Ok(());
            };
            if matches!(entry, weir_ipc::Submission::Event { .. }) {
                // Its slot is free again, for which the client may wait.
                self.lists.partitions.push(id);
            }
            self.core.handle_submission(id, submission(entry), now).map_err(|fault| fault.to_string())?;
        }
        self.lists.unfinished.push(key);
        Ok(())
    }

    /// Before a gate is closed: what its client gave back counts as consumed, also if that has rung nobody. A lie in it has no
    /// consequence any more.
    fn take_last_returns(&mut self, key: RingKey, id: GateId, now: Time) {
        let _ = self.take_from_gate(key, id, now);
    }

    fn take_from_gate(&mut self, key: RingKey, id: GateId, now: Time) -> Result<(), String> {
        let Some(gate) = self.rings.gates.0.get_mut(&id).filter(|gate| gate.is_open) else { return Ok(()) };
        // What the client gave back made room in its rings: what did not fit before may be delivered now.
        self.lists.gates.push(id);
        for _ in 0..budget::RING_ENTRIES {
            let Some(entry) = gate.endpoint.pop().map_err(|fault| fault.to_string())? else { return Ok(()) };
            match entry {
                GivenBack::Data { segment, bytes } => {
                    self.core.handle_given_back(id, SegmentIndex(segment), bytes, now)
                }
                GivenBack::Lent { channel, segment, bytes } => {
                    self.core.handle_lent_given_back(id, channel, SegmentIndex(segment), bytes, now)
                }
                GivenBack::Event { channel } => self.core.handle_event_consumed(id, channel, now),
            }
            .map_err(|fault| fault.to_string())?;
        }
        self.lists.unfinished.push(key);
        Ok(())
    }

    /// Detaches a client that wrote something that cannot be true.
    pub(super) fn distrust(&mut self, attachment: AttachmentId, text: String, now: Time) {
        tracing::warn!(shard = self.options.shard, ?attachment, text, "client detached");
        self.drop_attachment(attachment, &Failure::new(FailureCode::ClientFault, text.as_str()), now);
        self.tell(ToNode::AttachmentFault { attachment, text });
    }
}

/// Tells the client of a gate that it failed, as the last word on each of its channels: a client may read on after the
/// failure of one.
fn tell_gate(gate: &mut GateRing, failure: &Failure) {
    for channel in 0..gate.channels {
        let last_word = Delivered::Failed { channel, code: failure.code as u16, text: failure.text.clone() };
        // A client that never reads, or whose cursors lie, does not hear it, to its own loss.
        let _ = gate.endpoint.push(&last_word);
    }
    gate.endpoint.client_waits();
}

fn submission(entry: weir_ipc::Submission) -> Submission {
    match entry {
        weir_ipc::Submission::Data { subpartition, segment, offset, bytes, records, last } => {
            Submission::Data {
                subpartition: SubpartitionIndex(subpartition),
                segment: SegmentIndex(segment),
                offset,
                bytes,
                records,
                last,
            }
        }
        weir_ipc::Submission::Event { subpartition, payload, priority } => Submission::Event {
            subpartition: SubpartitionIndex(subpartition),
            payload: Bytes::from(payload),
            priority,
        },
        weir_ipc::Submission::End { subpartition } => {
            Submission::End { subpartition: SubpartitionIndex(subpartition) }
        }
    }
}
