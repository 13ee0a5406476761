//! What the shard tells about its channels and links. Asked for rarely; costs as much as there are.

use alloc::vec;

use super::Shard;
use super::debloating::debloat_stats;
use crate::ids::{LinkId, SubpartitionIndex, Time};
use crate::link::Link;
use crate::recv::channel::Channel;
use crate::recv::gate::Gate;
use crate::send::partition::Partition;
use crate::send::subpartition::Subpartition;
use crate::stall::{Cause, Stalls};
use crate::state::LinkState;
use crate::stats::{ChannelStats, GateStats, LinkStats, PartitionStats, Side};

impl Shard {
    /// Both ends of all channels that are here: first those of partitions, then those of gates.
    pub fn channels(&self, now: Time) -> impl Iterator<Item = ChannelStats> {
        let sending = self.partitions.table.iter().flat_map(move |(_, partition)| {
            partition
                .subpartitions
                .iter()
                .enumerate()
                .map(move |(index, subpartition)| self.sending_stats(partition, index, subpartition, now))
        });
        let receiving = self.gates.table.iter().flat_map(move |(_, gate)| {
            gate.channels
                .iter()
                .enumerate()
                .map(move |(index, channel)| self.receiving_stats(gate, index, channel))
        });
        sending.chain(receiving)
    }

    /// The pools of all partitions.
    pub fn partitions(&self, now: Time) -> impl Iterator<Item = PartitionStats> {
        self.partitions.table.iter().map(move |(_, partition)| self.partition_stats(partition, now))
    }

    /// The pools of all gates.
    pub fn gates(&self, now: Time) -> impl Iterator<Item = GateStats> {
        self.gates.table.iter().map(move |(_, gate)| gate_stats(gate, self.limits.segment_bytes, now))
    }

    /// All links but those inside this node.
    pub fn links(&self) -> impl Iterator<Item = LinkStats> {
        let linked = self.links.table.iter().filter(|(_, link)| !link.spec.is_local);
        linked.map(|(id, link)| LinkStats {
            link: LinkId(id),
            peer: link.spec.peer.clone(),
            peer_shard: link.spec.peer_shard,
            state: link.state.as_str(),
            sent_bytes_total: link.counts.sent_bytes,
            received_bytes_total: link.counts.received_bytes,
            skipped_frames_total: link.counts.skipped_frames,
            skipped_bytes_total: link.counts.skipped_bytes,
            short_writes_total: link.counts.short_writes,
            resumes_total: link.counts.resumes,
            resent_bytes_total: link.counts.resent_bytes,
            round_trip_min_ns: link.counts.round_trip_min_ns,
        })
    }

    fn sending_stats(
        &self,
        partition: &Partition,
        index: usize,
        subpartition: &Subpartition,
        now: Time,
    ) -> ChannelStats {
        let spec = &partition.spec;
        let link = subpartition.channel.map(|(link, _)| link);
        let stalls = subpartition.stalls.stalls(&self.links.path_of(subpartition, now), now);
        let now_waits = |index: usize| self.now_waits(partition, index, now);
        let shared = partition.is_shared();
        let emit = if shared { Stalls::default() } else { partition.emit.of_builder(index, &now_waits) };
        ChannelStats {
            side: Side::Send,
            exchange: spec.exchange.clone(),
            producer: spec.producer,
            producers: spec.shape.producers,
            consumer: spec.shape.consumer_at(spec.producer, SubpartitionIndex(index as u32)),
            consumers: spec.shape.consumers,
            strategy: spec.shape.strategy,
            peer: self.peer(link).map(|link| link.spec.peer.clone()),
            link,
            state: self.state_of(link).unwrap_or(subpartition.state.as_str()),
            credit: subpartition.credit(),
            backlog: subpartition.packing.backlog(),
            queued_bytes: subpartition.queued_bytes,
            buffer_bytes: bound(subpartition.buffer_bytes),
            unacked_bytes: subpartition.unacked_bytes,
            acked_bytes: subpartition.acked_bytes,
            consumed_bytes: subpartition.consumed_bytes,
            receiver_ready: 0,
            receiver_held: 0,
            bytes_total: subpartition.counts.bytes,
            buffers_total: subpartition.counts.buffers,
            records_total: subpartition.counts.records,
            send_stalled_ns: subpartition.stalls.without_credit_ns(now),
            stalls,
            is_stall_approximate: subpartition.stalls.is_approximate(),
            emit,
            limit_frames_total: subpartition.counts.limit_frames,
            backlog_frames_total: subpartition.counts.backlog_frames,
        }
    }

    fn receiving_stats(&self, gate: &Gate, index: usize, channel: &Channel) -> ChannelStats {
        let spec = &gate.spec;
        let link = channel.channel.map(|(link, _)| link);
        let ready = if channel.is_connected() { gate.ready(index as u32) } else { 0 };
        ChannelStats {
            side: Side::Receive,
            exchange: spec.exchange.clone(),
            producer: spec.shape.producer_at(spec.consumer, index as u32),
            producers: spec.shape.producers,
            consumer: spec.consumer,
            consumers: spec.shape.consumers,
            strategy: spec.shape.strategy,
            peer: self.peer(link).map(|link| link.spec.peer.clone()),
            link,
            state: self.state_of(link).unwrap_or(channel.state.as_str()),
            credit: ready,
            backlog: channel.backlog,
            queued_bytes: channel.pending_bytes,
            buffer_bytes: bound(gate.buffer_bytes()),
            unacked_bytes: 0,
            acked_bytes: 0,
            consumed_bytes: channel.consumed,
            receiver_ready: ready,
            receiver_held: gate.used(index as u32),
            bytes_total: channel.counts.bytes,
            buffers_total: channel.counts.buffers,
            records_total: channel.counts.records,
            send_stalled_ns: 0,
            stalls: Stalls::default(),
            is_stall_approximate: false,
            emit: Stalls::default(),
            limit_frames_total: channel.counts.limit_frames,
            backlog_frames_total: channel.counts.backlog_frames,
        }
    }

    fn partition_stats(&self, partition: &Partition, now: Time) -> PartitionStats {
        let (spec, columns) = (&partition.spec, partition.memory.segments.columns());
        let mut held = vec![0_u32; partition.memory.builders.len()];
        for (_, state) in partition.memory.segments.iter().filter(|(_, state)| state.is_held()) {
            if let Some(count) = held.get_mut(state.owner.0 as usize) {
                *count += 1;
            }
        }
        let now_waits = |index: usize| self.now_waits(partition, index, now);
        let mut emit = partition.emit.common(&now_waits);
        if partition.is_shared() {
            emit.add(&partition.emit.of_builder(0, &now_waits));
        }
        PartitionStats {
            exchange: spec.exchange.clone(),
            producer: spec.producer,
            producers: spec.shape.producers,
            consumers: spec.shape.consumers,
            strategy: spec.shape.strategy,
            segments: spec.segments,
            overdraft: spec.pool.overdraft,
            retention: spec.pool.retention,
            quota: spec.pool.quota,
            open: columns.builder,
            queued: columns.queued,
            in_kernel: columns.in_kernel,
            unacked: columns.unacked,
            held_max: held.into_iter().max().unwrap_or(0),
            queued_bytes: partition.subpartitions.iter().map(|subpartition| subpartition.queued_bytes).sum(),
            emit,
        }
    }

    /// What a channel waits for at this moment.
    fn now_waits(&self, partition: &Partition, index: usize, now: Time) -> Option<Cause> {
        let subpartition = partition.subpartitions.get(index)?;
        subpartition.stalls.cause_now(&self.links.path_of(subpartition, now))
    }

    /// The state of a channel's link, where that says more than the channel's own.
    fn state_of(&self, link: Option<LinkId>) -> Option<&'static str> {
        let state = self.peer(link)?.state;
        matches!(state, LinkState::Suspended | LinkState::Resuming).then(|| state.as_str())
    }

    fn peer(&self, link: Option<LinkId>) -> Option<&Link> {
        link.and_then(|link| self.links.get(link))
    }
}

/// The largest number is no bound.
fn bound(bytes: u32) -> Option<u32> {
    (bytes != u32::MAX).then_some(bytes)
}

fn gate_stats(gate: &Gate, segment_bytes: u32, now: Time) -> GateStats {
    let (spec, channels) = (&gate.spec, gate.channels.len() as u32);
    let mut stats = GateStats {
        exchange: spec.exchange.clone(),
        consumer: spec.consumer,
        producers: spec.shape.producers,
        consumers: spec.shape.consumers,
        strategy: spec.shape.strategy,
        exclusive: spec.exclusive.saturating_mul(channels),
        exclusive_used: 0,
        floating: gate.pool.floating(),
        floating_used: 0,
        floating_free: gate.pool.floating_free(),
        ready: 0,
        queued_bytes: 0,
        buffered_bytes: 0,
        consumed_bytes_total: 0,
        in_flight_bytes: gate.in_flight_bytes(segment_bytes),
        debloat: debloat_stats(gate, segment_bytes, now),
    };
    for (index, channel) in (0..).zip(&gate.channels) {
        let used = gate.pool.used(index);
        stats.exclusive_used += used.min(spec.exclusive);
        stats.floating_used += used.saturating_sub(spec.exclusive);
        stats.ready += gate.pool.ready(index);
        stats.queued_bytes += channel.pending_bytes;
        stats.buffered_bytes += channel.counts.bytes.saturating_sub(channel.consumed);
        stats.consumed_bytes_total += channel.consumed;
    }
    stats
}
