//! What the shard tells about its channels and links. Asked for rarely; costs as much as there are.

use super::Shard;
use crate::ids::{LinkId, SubpartitionIndex, Time};
use crate::link::Link;
use crate::recv::channel::Channel;
use crate::recv::gate::Gate;
use crate::send::partition::Partition;
use crate::send::subpartition::Subpartition;
use crate::state::LinkState;
use crate::stats::{ChannelStats, LinkStats, Side};

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

    /// All links.
    pub fn links(&self) -> impl Iterator<Item = LinkStats> {
        self.links.table.iter().map(|(id, link)| LinkStats {
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
            unacked_bytes: subpartition.unacked_bytes,
            acked_bytes: subpartition.acked_bytes,
            consumed_bytes: subpartition.consumed_bytes,
            receiver_ready: 0,
            receiver_held: 0,
            bytes_total: subpartition.counts.bytes,
            buffers_total: subpartition.counts.buffers,
            records_total: subpartition.counts.records,
            send_stalled_ns: subpartition.stalled_ns(now),
            limit_frames_total: subpartition.counts.limit_frames,
            backlog_frames_total: subpartition.counts.backlog_frames,
        }
    }

    fn receiving_stats(&self, gate: &Gate, index: usize, channel: &Channel) -> ChannelStats {
        let spec = &gate.spec;
        let link = channel.channel.map(|(link, _)| link);
        let ready = gate.pool.ready(index as u32);
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
            unacked_bytes: 0,
            acked_bytes: 0,
            consumed_bytes: 0,
            receiver_ready: ready,
            receiver_held: gate.pool.used(index as u32),
            bytes_total: channel.counts.bytes,
            buffers_total: channel.counts.buffers,
            records_total: channel.counts.records,
            send_stalled_ns: 0,
            limit_frames_total: channel.counts.limit_frames,
            backlog_frames_total: channel.counts.backlog_frames,
        }
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
