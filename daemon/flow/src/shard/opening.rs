//! How channels come to be, and how links come and go.

use alloc::format;

use super::failing::{receiving_key, sending_key};
use super::{LinkSpec, Notice, Shard};
use crate::exchange::Shape;
use crate::failure::{Failure, FailureCode};
use crate::ids::{ChannelIndex, GateId, Incarnation, LinkId, ProducerLife, Sequence, Time};
use crate::link::{LINK_CHANNELS_MAX, Link, ReceiveKey, SendKey, Serving};
use crate::state::{IndexEvent, IndexState, LinkEvent, LinkState, ReceiveEvent, SendEvent, SendState};
use crate::wire::{Message, OpenChannel};

/// In OpenChannel: whichever life of the partition there is.
const ANY_INCARNATION: Incarnation = Incarnation(0);

impl Shard {
    /// A data link was established: connected and its handshake done.
    pub fn handle_link(&mut self, spec: LinkSpec, now: Time) -> LinkId {
        let mut link = Link::new(spec, &self.limits, now);
        if self.is_draining {
            link.state = link.state.on(LinkEvent::GoodbyeQueued).unwrap_or(link.state);
            link.control.push_back(goodbye());
        }
        let id = LinkId(self.links.table.insert(link));
        self.links.list(id);
        self.update_link_deadline();
        id
    }

    /// The link is over for good, with or without a socket. Its channels fail on this end. A send still in flight should have been reported with
    /// [`Self::handle_sent`] before; if it was not, the segments in it stay in the kernel's column until it is.
    pub fn handle_link_closed(&mut self, link: LinkId, reason: &str, now: Time) {
        let Some(state) = self.links.get_mut(link) else { return };
        let Ok(closed) = state.state.on(LinkEvent::Closed) else { return };
        state.state = closed;
        let failure = match state.goodbye.take() {
            Some(goodbye) => goodbye,
            None => {
                let peer = &state.spec.peer;
                Failure::new(FailureCode::LinkLost, format!("the link to node {peer} was lost: {reason}"))
            }
        };
        let (sending, receiving) =
            (core::mem::take(&mut state.sending), core::mem::take(&mut state.receiving));
        for serving in sending.into_iter().flatten() {
            if let Serving::Live(key) = serving {
                self.fail_channel(key, &failure, now);
            }
        }
        for entry in receiving {
            if entry.state == IndexState::Live {
                self.fail_receiver(entry.key, failure.clone(), false, now);
            }
        }
        self.release_link(link);
        self.update_link_deadline();
    }

    /// Forgets a closed link when the kernel has nothing of it.
    pub(super) fn release_link(&mut self, id: LinkId) {
        let Some(link) = self.links.get_mut(id) else { return };
        if link.is_open() || link.batch.is_in_flight {
            return;
        }
        let frames = core::mem::take(&mut link.batch.frames);
        self.links.table.remove(id.0);
        for planned in frames {
            self.drop_frame(&planned.frame);
        }
    }

    /// Opens a gate's channel to this life of a producer over a link. Without effect if it was opened before, also if
    /// it has failed since, or if the producer does not feed this consumer. What stands against it is delivered as the
    /// channel's failure; but that the producer has no such life when the request arrives is told by
    /// [`Notice::ProducerNotFound`], and the channel may be opened again.
    pub fn handle_producer(&mut self, gate: GateId, life: ProducerLife, link: LinkId, now: Time) {
        let ProducerLife { producer, incarnation } = life;
        let Some(state) = self.gates.get(gate) else { return };
        let Some(channel) = state.spec.shape.channel(state.spec.consumer, producer) else { return };
        let key = ReceiveKey { gate, channel };
        let Some(requested) =
            state.channel(channel).and_then(|channel| channel.state.on(ReceiveEvent::Requested).ok())
        else {
            return;
        };
        let index = match self.assign_index(key, link) {
            Ok(index) => index,
            Err(failure) => return self.fail_receiver(key, failure, false, now),
        };
        let event_window = self.limits.event_window;
        let is_local = self.links.get(link).is_some_and(|link| link.spec.is_local);
        let Some(state) = self.gates.get_mut(gate) else { return };
        state.open_channel(channel, is_local);
        let ready = state.ready(channel);
        let spec = state.spec.clone();
        let Some(channel) = state.channel_mut(channel) else { return };
        channel.state = requested;
        channel.channel = Some((link, index));
        let limit = channel.limit(ready, event_window, now);
        channel.announced = limit;
        let open = OpenChannel {
            exchange: spec.exchange,
            producer,
            consumer: spec.consumer,
            shape: spec.shape,
            incarnation,
            limit: limit.limit,
            event_limit: limit.event_limit,
        };
        if let Some(state) = self.links.get_mut(link) {
            state.control.push_back(Message::OpenChannel { channel: index, open });
        }
        self.links.list(link);
        self.gates.list(gate);
    }

    fn assign_index(&mut self, key: ReceiveKey, link: LinkId) -> Result<ChannelIndex, Failure> {
        if let Some(refusal) = self.gates.get(key.gate).and_then(|gate| gate.refusal.clone()) {
            return Err(refusal);
        }
        let Some(link) = self.links.get_mut(link).filter(|link| link.is_open()) else {
            return Err(Failure::new(FailureCode::LinkLost, "the link was closed before the channel opened"));
        };
        if link.state == LinkState::Draining {
            let text = format!("this node or node {} is stopping; no new channels", link.spec.peer);
            return Err(Failure::new(FailureCode::Stopping, text));
        }
        link.assign(key).ok_or_else(|| {
            let text = format!("the link carries {LINK_CHANNELS_MAX} channels; needed: a free channel index");
            Failure::new(FailureCode::OverBudget, text)
        })
    }

    /// A consumer asks for a subpartition.
    pub(super) fn handle_open(&mut self, link: LinkId, index: ChannelIndex, open: &OpenChannel, now: Time) {
        match self.find_subpartition(link, open) {
            Ok(key) => self.accept(link, index, key, open, now),
            Err(failure) => self.refuse(link, index, failure),
        }
    }

    pub(super) fn refuse(&mut self, link: LinkId, index: ChannelIndex, failure: Failure) {
        if let Some(state) = self.links.get_mut(link) {
            state.control.push_back(Message::ChannelFailed { channel: index, failure: failure.clone() });
        }
        self.notices.push_back(Notice::ChannelRefused { link, failure });
        self.links.list(link);
    }

    fn find_subpartition(&self, link: LinkId, open: &OpenChannel) -> Result<SendKey, Failure> {
        let OpenChannel { exchange, producer, consumer, shape, incarnation, .. } = open;
        if self.is_draining {
            return Err(Failure::new(FailureCode::Stopping, "the producer's daemon is stopping"));
        }
        let found = self.findable.get(&(exchange.clone(), *producer)).copied();
        let Some((id, partition)) = found.and_then(|id| Some((id, self.partitions.get(id)?))) else {
            let text = format!("producer {producer} of {exchange} is not attached here");
            return Err(Failure::new(FailureCode::PartitionNotFound, text));
        };
        let spec = &partition.spec;
        if *incarnation != ANY_INCARNATION && *incarnation != spec.incarnation {
            let (found, needed) = (incarnation, spec.incarnation);
            let text = format!("incarnation of producer {producer} of {exchange} is {needed}, not {found}");
            return Err(Failure::new(FailureCode::PartitionNotFound, text));
        }
        if let Some(text) = mismatch(shape, &spec.shape) {
            return Err(Failure::new(FailureCode::Mismatch, text));
        }
        let Some(subpartition) = shape.subpartition(*producer, *consumer) else {
            let text = format!("consumer {consumer} is not fed by producer {producer} of {exchange}");
            return Err(Failure::new(FailureCode::IndexOutOfRange, text));
        };
        let key = SendKey { partition: id, subpartition };
        self.check_unclaimed(link, key, open)?;
        Ok(key)
    }

    /// A node lets one gate at a time have a place. So a claim from the node of the consumer that is there, over another of its
    /// links, comes from its successor, and has overtaken the news that it is gone: it is too early, and is made again.
    fn check_unclaimed(&self, link: LinkId, key: SendKey, open: &OpenChannel) -> Result<(), Failure> {
        let partition = self.partitions.get(key.partition);
        let subpartition = partition.and_then(|partition| partition.subpartition(key.subpartition));
        let Some(subpartition) = subpartition.filter(|sub| sub.state != SendState::Waiting) else {
            return Ok(());
        };
        let (consumer, exchange) = (open.consumer, &open.exchange);
        let taken = |text| Err(Failure::new(FailureCode::DuplicateConsumer, text));
        if subpartition.state == SendState::Failed {
            let text =
                format!("consumer {consumer} of {exchange} was lost, and its producer goes on without");
            return taken(text);
        }
        let place = subpartition.channel.filter(|_| subpartition.is_connected());
        let holder = place.and_then(|(holder, _)| Some((holder, &self.links.get(holder)?.spec.peer)));
        let Some((holder, node)) = holder else {
            return taken(format!("consumer {consumer} of {exchange} has had its data already"));
        };
        let is_of_that_node = self.links.get(link).is_some_and(|asking| asking.spec.peer == *node);
        if is_of_that_node && holder != link {
            let text =
                format!("consumer {consumer} of {exchange} follows one of node {node} that has not left");
            return Err(Failure::new(FailureCode::PartitionNotFound, text));
        }
        taken(format!("consumer {consumer} of {exchange} is attached already, on node {node}"))
    }

    fn accept(&mut self, link: LinkId, index: ChannelIndex, key: SendKey, open: &OpenChannel, now: Time) {
        let is_local = self.links.get(link).is_some_and(|link| link.spec.is_local);
        let Some(partition) = self.partitions.get_mut(key.partition) else { return };
        let (incarnation, quota) = (partition.spec.incarnation, partition.spec.pool.quota);
        let Some((subpartition, _)) = partition.split(key.subpartition) else { return };
        let Ok(state) = subpartition.state.on(SendEvent::Accepted) else { return };
        subpartition.state = state;
        subpartition.channel = Some((link, index));
        if is_local {
            subpartition.begin_lending(quota);
        }
        subpartition.packing.handle_limit(open.limit);
        subpartition.event_limit = open.event_limit;
        let backlog = subpartition.packing.backlog();
        subpartition.told_backlog = backlog;
        let sequence = Sequence(subpartition.next_sequence);
        self.notices.push_back(Notice::ChannelOpened(sending_key(partition, key.subpartition, link)));
        if let Some(state) = self.links.get_mut(link) {
            state.set_serving(index, Some(Serving::Live(key)));
            state.control.push_back(Message::ChannelAccepted {
                channel: index,
                backlog,
                sequence,
                incarnation,
            });
        }
        self.mark_changed(key);
        self.activate(key, now);
        self.links.list(link);
    }

    /// The producer's node serves a channel that a gate here asked for.
    pub(super) fn handle_accepted(
        &mut self,
        key: ReceiveKey,
        backlog: u32,
        (sequence, incarnation): (Sequence, Incarnation),
        now: Time,
    ) -> Result<(), Failure> {
        let Some(gate) = self.gates.get_mut(key.gate) else { return Ok(()) };
        gate.accept(key.channel, backlog, sequence, incarnation)?;
        if let Some((link, _)) = gate.channel(key.channel).and_then(|channel| channel.channel) {
            self.notices.push_back(Notice::ChannelOpened(receiving_key(gate, key.channel, link)));
        }
        self.tell_buffer_size(key);
        self.tell_limit(key, now);
        Ok(())
    }

    /// The producer's node has no such life of the producer: it ended while it was asked for, or it is so new that its
    /// shard does not know it. The channel is as before it was asked for. False: it was not asked for.
    pub(super) fn take_request_back(&mut self, key: ReceiveKey, now: Time) -> bool {
        let Some(gate) = self.gates.get_mut(key.gate) else { return false };
        let Some((link_id, index)) = gate.take_request_back(key.channel) else { return false };
        let producer = receiving_key(gate, key.channel, link_id).producer;
        self.notices.push_back(Notice::ProducerNotFound { gate: key.gate, producer });
        if let Some(link) = self.links.get_mut(link_id) {
            link.parser.forget(key);
            link.limits.retain(|due| *due != key);
            link.change_index(index, IndexEvent::FailedArrived);
        }
        self.tell_gained(key.gate, now);
        self.gates.list(key.gate);
        true
    }

    /// A consumer's node acknowledged the end of data, and with it everything.
    pub(super) fn handle_end_ack(&mut self, key: SendKey, now: Time) -> Result<(), Failure> {
        let Some(partition) = self.partitions.get_mut(key.partition) else { return Ok(()) };
        let Some((subpartition, memory)) = partition.split(key.subpartition) else { return Ok(()) };
        let path = self.links.path_of(subpartition, now);
        let state = subpartition.state.on(SendEvent::EndAcked);
        let state = state.map_err(|error| Failure::new(FailureCode::Protocol, format!("{error}")))?;
        let channel = subpartition.channel;
        subpartition.abandon(memory, true, &path, now, &mut self.send_stalls.lengths);
        subpartition.state = state;
        partition.mark_changed(key.subpartition);
        let is_last = partition.count_ended();
        if let Some((link_id, index)) = channel {
            let notice = sending_key(partition, key.subpartition, link_id);
            self.notices.push_back(Notice::ChannelEnded(notice));
            if let Some(link) = self.links.get_mut(link_id) {
                link.set_serving(index, None);
            }
        }
        if is_last {
            self.hide_partition(key.partition);
        }
        self.partitions.list(key.partition);
        Ok(())
    }

    /// The daemon stops: peers are told, no channel is opened any more, those that there are go on; but not over a link
    /// that has no socket now.
    pub fn handle_drain(&mut self, now: Time) {
        if core::mem::replace(&mut self.is_draining, true) {
            return;
        }
        let ids: alloc::vec::Vec<LinkId> = self.links.table.iter().map(|(id, _)| LinkId(id)).collect();
        for id in ids {
            if self.links.get(id).is_some_and(|link| is_interrupted(link.state)) {
                self.notices.push_back(Notice::LinkExpired(id));
                self.handle_link_closed(id, "this daemon stopped while the link was interrupted", now);
                continue;
            }
            if let Some(link) = self.links.get_mut(id)
                && let Ok(state) = link.state.on(LinkEvent::GoodbyeQueued)
            {
                link.state = state;
                link.control.push_back(goodbye());
            }
            self.links.list(id);
        }
    }

    /// After [`Self::handle_drain`]: whether nothing is on its way any more, in or out.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.is_draining
            && self.partitions.table.iter().all(|(_, partition)| partition.is_drained())
            && self.gates.table.iter().all(|(_, gate)| gate.is_drained())
            && self.links.table.iter().all(|(_, link)| {
                link.control.is_empty() && !link.batch.is_in_flight && !link.batch.has_begun()
            })
    }
}

const fn is_interrupted(state: LinkState) -> bool {
    matches!(state, LinkState::Suspended | LinkState::Resuming)
}

fn goodbye() -> Message {
    Message::Goodbye { failure: Failure::new(FailureCode::Stopping, "the peer's daemon is stopping") }
}

/// The first thing on which the two ends disagree, with both values.
fn mismatch(consumer: &Shape, producer: &Shape) -> Option<alloc::string::String> {
    let text = |what: &str, found: &dyn core::fmt::Display, needed: &dyn core::fmt::Display| {
        Some(format!("{what} is {found} at the consumer and {needed} at the producer; needed: the same"))
    };
    if consumer.strategy != producer.strategy {
        text("strategy", &consumer.strategy, &producer.strategy)
    } else if consumer.producers != producer.producers {
        text("producer parallelism", &consumer.producers, &producer.producers)
    } else if consumer.consumers != producer.consumers {
        text("consumer parallelism", &consumer.consumers, &producer.consumers)
    } else if consumer.segment_bytes != producer.segment_bytes {
        text("segment size", &consumer.segment_bytes, &producer.segment_bytes)
    } else if consumer.checksum != producer.checksum {
        text("checksum", &consumer.checksum, &producer.checksum)
    } else {
        None
    }
}
