//! How a failure spreads, and where it stops.

use super::{ChannelKey, Notice, Shard};
use crate::failure::Failure;
use crate::ids::{LinkId, PartitionId, SubpartitionIndex, Time};
use crate::link::{ReceiveKey, SendKey};
use crate::recv::gate::Gate;
use crate::send::partition::Partition;
use crate::state::{IndexEvent, PartitionState, SendEvent, SendState};
use crate::stats::Side;
use crate::wire::{Cancel, Message};

impl Shard {
    /// The partition and all its channels fail; its consumers and its client are told. Nothing happens if it is over.
    pub(super) fn fail_partition(&mut self, id: PartitionId, failure: &Failure, now: Time) {
        let Some(partition) = self.partitions.get_mut(id) else { return };
        if !partition.fail(failure) {
            return;
        }
        self.hide_partition(id);
        let count = self.partitions.get(id).map_or(0, |partition| partition.subpartitions.len());
        for index in 0..count as u32 {
            let key = SendKey { partition: id, subpartition: SubpartitionIndex(index) };
            self.fail_subpartition(key, failure, now);
        }
        self.partitions.list(id);
    }

    /// One channel of a partition fails, by its consumer, its link, or what it sent. That fails the partition, unless its
    /// exchange goes on without a consumer: then it ends only when that was the last one.
    pub(super) fn fail_channel(&mut self, key: SendKey, failure: &Failure, now: Time) {
        let Some(partition) = self.partitions.get(key.partition) else { return };
        let others_go_on = partition.spec.continues_without_consumer()
            && partition.state == PartitionState::Running
            && partition.has_others(key.subpartition);
        if !others_go_on {
            return self.fail_partition(key.partition, failure, now);
        }
        self.fail_subpartition(key, failure, now);
        let Some(partition) = self.partitions.get_mut(key.partition) else { return };
        if partition.finish_if_ended() {
            self.hide_partition(key.partition);
        }
        self.partitions.list(key.partition);
    }

    fn fail_subpartition(&mut self, key: SendKey, failure: &Failure, now: Time) {
        let Some(partition) = self.partitions.get_mut(key.partition) else { return };
        let Some((subpartition, memory)) = partition.split(key.subpartition) else { return };
        let Ok(state) = subpartition.state.on(SendEvent::Failed) else { return };
        let path = self.links.path_of(subpartition, now);
        let channel = subpartition.channel;
        let is_ending = subpartition.state == SendState::Ending;
        subpartition.abandon(memory, false, &path, now, &mut self.send_stalls.lengths);
        subpartition.state = state;
        partition.mark_changed(key.subpartition);
        let Some((link_id, index)) = channel else { return };
        let notice = sending_key(partition, key.subpartition, link_id);
        self.notices.push_back(Notice::ChannelFailed(notice, failure.clone()));
        if let Some(link) = self.links.get_mut(link_id) {
            if link.is_open() {
                link.tell_failed(index, key, failure.clone(), is_ending);
            } else {
                link.set_serving(index, None);
            }
        }
        self.links.list(link_id);
    }

    /// Consumers no longer find the partition.
    pub(super) fn hide_partition(&mut self, id: PartitionId) {
        if let Some(partition) = self.partitions.get_mut(id)
            && partition.is_findable
        {
            partition.is_findable = false;
            let key = (partition.spec.exchange.clone(), partition.spec.producer);
            self.findable.remove(&key);
        }
    }

    /// The channel of a gate fails: its client gets the failure after what had arrived. `tell` the producer's node
    /// unless it said so itself or cannot hear it.
    pub(super) fn fail_receiver(&mut self, key: ReceiveKey, failure: Failure, tell: bool, now: Time) {
        let Some(gate) = self.gates.get_mut(key.gate) else { return };
        let Some(channel) = gate.channel(key.channel) else { return };
        let (at, delivered, consumed) = (channel.channel, channel.delivered, channel.consumed);
        if !gate.fail(key.channel, failure.clone()) {
            return;
        }
        if let Some((link_id, index)) = at {
            self.notices
                .push_back(Notice::ChannelFailed(receiving_key(gate, key.channel, link_id), failure.clone()));
            if let Some(link) = self.links.get_mut(link_id) {
                link.parser.forget(key);
                if tell && link.is_open() {
                    link.change_index(index, IndexEvent::Cancelled);
                    let cancel = Cancel { delivered, consumed, failure };
                    link.control.push_back(Message::Cancel { channel: index, cancel });
                } else {
                    link.change_index(index, IndexEvent::FailedArrived);
                }
            }
            self.links.list(link_id);
        }
        self.tell_gained(key.gate, now);
        self.gates.list(key.gate);
    }
}

/// How notices name a sending channel.
pub(super) fn sending_key(partition: &Partition, index: SubpartitionIndex, link: LinkId) -> ChannelKey {
    let spec = &partition.spec;
    ChannelKey {
        side: Side::Send,
        exchange: spec.exchange.clone(),
        producer: spec.producer,
        consumer: spec.shape.consumer_at(spec.producer, index),
        link,
    }
}

/// How notices name a receiving channel.
pub(super) fn receiving_key(gate: &Gate, channel: u32, link: LinkId) -> ChannelKey {
    let spec = &gate.spec;
    ChannelKey {
        side: Side::Receive,
        exchange: spec.exchange.clone(),
        producer: spec.shape.producer_at(spec.consumer, channel),
        consumer: spec.consumer,
        link,
    }
}
