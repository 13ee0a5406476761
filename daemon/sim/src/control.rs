//! The control thread of every node, as one actor: it attaches clients, notices their deaths, tells gates where
//! their producers are, dials links. It reaches shards only through mailboxes, late, and in order.

use std::collections::VecDeque;

use weir_flow::failure::{Failure, FailureCode};
use weir_flow::ids::{ConsumerIndex, GateId, Incarnation, PartitionId, ProducerIndex, ProducerLife};
use weir_flow::shard::{GateSpec, LinkSpec, PartitionSpec, PoolShares};
use weir_flow::stats::Side;

use crate::checks::channel_key;
use crate::consumer;
use crate::coverage::Mark;
use crate::link::Link;
use crate::model::ChannelKey;
use crate::pipe::Sending;
use crate::producer;
use crate::tap::Position;
use crate::trace;
use crate::world::World;

/// What the control thread tells a shard. Numbers are positions in the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// A producer attached.
    AttachPartition(usize),
    /// A consumer attached.
    AttachGate(usize),
    /// This end of a link is ready.
    AddLink(usize, usize),
    /// This end of a link has another socket.
    AddSocket(usize, usize, usize),
    /// This end of a link is over for good.
    CloseLink(usize, usize, &'static str),
    /// A consumer's producer is at the other end of a link.
    Connect { consumer: usize, channel: u32, link: usize },
    /// A producer left or died.
    ClosePartition(usize),
    /// A consumer left or died.
    CloseGate(usize),
    /// The node is stopping.
    Drain,
}

/// Mailboxes of all shards, and which links exist.
#[derive(Debug, Default)]
pub(crate) struct Control {
    mailboxes: Vec<VecDeque<(u64, Message)>>,
    /// Dialling shard, accepting shard, link.
    dialled: Vec<(usize, usize, usize)>,
    closed_partitions: Vec<bool>,
    closed_gates: Vec<bool>,
}

impl Control {
    pub(crate) fn new(nodes: usize, producers: usize, consumers: usize) -> Self {
        Self {
            mailboxes: vec![VecDeque::new(); nodes],
            dialled: Vec::new(),
            closed_partitions: vec![false; producers],
            closed_gates: vec![false; consumers],
        }
    }

    /// Whether a message is there and due. Once faults have stopped, none is late.
    pub(crate) fn has_message(&self, node: usize, step: u64, healed: bool) -> bool {
        self.mailboxes[node].front().is_some_and(|(due, _)| healed || *due <= step)
    }

    pub(crate) fn next(&mut self, node: usize) -> Option<Message> {
        self.mailboxes[node].pop_front().map(|(_, message)| message)
    }

    /// The messages that a node was not told are lost with it.
    pub(crate) fn forget(&mut self, node: usize) {
        self.mailboxes[node].clear();
    }

    pub(crate) fn post(&mut self, node: usize, due: u64, message: Message) {
        self.mailboxes[node].push_back((due, message));
    }
}

impl World {
    /// What the control thread does at each step.
    pub(crate) fn control_act(&mut self) {
        let (step, healed) = (self.common.step, self.common.healed);
        for position in 0..self.producers.len() {
            self.control_producer(position, step, healed);
        }
        for position in 0..self.consumers.len() {
            self.control_consumer(position, step, healed);
        }
        self.redial();
        if healed {
            return;
        }
        let now = |steps: &[u64]| steps.iter().filter(|at| **at == step).count();
        let faults = &self.plan.faults;
        let counts = [now(&faults.links_cut), now(&faults.links_silent), now(&faults.links_garbled)];
        let drained = faults.drain.filter(|(at, _)| *at == step);
        let restarted = faults.restart.filter(|(at, _)| *at == step);
        let hits: [fn(&mut Self, usize); 3] = [Self::cut_soon, Self::silence_link, Self::garble_link];
        for (count, hit) in counts.into_iter().zip(hits) {
            for _ in 0..count {
                let working = self.working_links();
                if !working.is_empty() {
                    let link = self.common.rng.pick(&working);
                    hit(self, link);
                }
            }
        }
        if let Some((_, number)) = restarted {
            self.restart(number);
        }
        if let Some((_, number)) = drained {
            self.drain(number);
        }
    }

    /// The shards of a node are told that it is stopping.
    fn drain(&mut self, number: u16) {
        for node in 0..self.nodes.len() {
            if self.nodes[node].place.node == number {
                self.post(node, 0, Message::Drain);
            }
        }
    }

    fn control_producer(&mut self, position: usize, step: u64, healed: bool) {
        let Self { producers, common, control, .. } = self;
        let producer = &mut producers[position];
        let node = producer.plan.place;
        match producer.state {
            producer::State::Waiting if healed || producer.plan.attach_at <= step => {
                producer.state = producer::State::Attaching;
                control.post(node, step, Message::AttachPartition(position));
            }
            producer::State::Running | producer::State::Ending
                if !healed && producer.plan.dies_at.is_some_and(|at| at <= step) =>
            {
                producer.kill(common);
                let key = (producer.key.exchange, producer.key.producer);
                common.model.causes.producers_gone.insert(key);
                common.coverage.hit(Mark::ProducerDied);
                let in_kernel = self.links.iter().flat_map(|link| &link.ends).any(|end| {
                    let reads = |sending: &Sending| producer.partition.is_some_and(|id| sending.reads(id));
                    end.node == node && end.sending.as_ref().is_some_and(reads)
                });
                common.coverage.hit_when(Mark::ProducerDiedInKernel, in_kernel);
            }
            _ => {}
        }
        if producer.left && !control.closed_partitions[position] {
            control.closed_partitions[position] = true;
            let delay = self.common.rng.small(100);
            self.post(node, delay, Message::ClosePartition(position));
        }
    }

    fn control_consumer(&mut self, position: usize, step: u64, healed: bool) {
        let Self { consumers, common, control, .. } = self;
        let consumer = &mut consumers[position];
        let node = consumer.plan.place;
        match consumer.state {
            consumer::State::Waiting if healed || consumer.plan.attach_at <= step => {
                consumer.state = consumer::State::Attaching;
                control.post(node, step, Message::AttachGate(position));
            }
            consumer::State::Running if !healed && consumer.plan.dies_at.is_some_and(|at| at <= step) => {
                consumer.kill(common);
                let key = consumer.key;
                let mid_frame = self.links.iter().any(|link| link.reading_for(node, key));
                self.common.coverage.hit_when(Mark::ConsumerDiedMidFrame, mid_frame);
            }
            consumer::State::Running => self.connect_producers(position),
            _ => {}
        }
        // A client that leaves in peace closes its gate after the daemon has read what it gave back.
        let consumer = &self.consumers[position];
        let in_peace = consumer.state == consumer::State::Finished && !consumer.given.is_empty();
        if consumer.left && !in_peace && !self.control.closed_gates[position] {
            self.control.closed_gates[position] = true;
            let delay = self.common.rng.small(100);
            self.post(node, delay, Message::CloseGate(position));
        }
    }

    /// Tells a gate of producers that have come into the catalog since.
    fn connect_producers(&mut self, position: usize) {
        for channel in 0..self.consumers[position].connected.len() {
            let consumer = &self.consumers[position];
            if consumer.connected[channel] {
                continue;
            }
            let key = consumer.channel(channel as u32);
            let Some(producer) = self.producer_position(key.exchange, key.producer) else { continue };
            let producer = &self.producers[producer];
            // A catalog is late: a producer that has died may still be in it, for a while.
            let known = match producer.state {
                producer::State::Waiting | producer::State::Attaching => {
                    self.common.coverage.hit(Mark::ConsumerFirst);
                    false
                }
                producer::State::Running | producer::State::Ending => true,
                _ => !self.common.healed && self.common.rng.chance(5),
            };
            if !known {
                continue;
            }
            if producer.state == producer::State::Ending {
                self.common.coverage.hit(Mark::FinishedBeforeAttach);
            }
            let (near, far) = (consumer.plan.place, producer.plan.place);
            let link = self.link_between(near, far);
            self.consumers[position].connected[channel] = true;
            self.common.model.links.insert(key, link);
            let delay = if self.common.rng.chance(300) { self.common.rng.small(300) } else { 0 };
            self.post(near, delay, Message::Connect { consumer: position, channel: channel as u32, link });
        }
    }

    /// The link between two shards, dialled now if there is none that works.
    fn link_between(&mut self, near: usize, far: usize) -> usize {
        let shared = self.plan.shared_links;
        // What counts is what this node knows of the link: at the other end it may be over.
        let found = self.control.dialled.iter().find_map(|(from, to, link)| {
            let end = match (*from, *to) {
                ends if ends == (near, far) => 0,
                ends if shared && ends == (far, near) => 1,
                _ => return None,
            };
            (!self.links[*link].ends[end].closed).then_some(*link)
        });
        if let Some(link) = found {
            return link;
        }
        self.close_older(near, far);
        let link = self.links.len();
        self.links.push(Link::new(
            [near, far],
            self.plan.faults.socket_bytes,
            self.plan.limits.segment_bytes,
        ));
        self.control.dialled.push((near, far, link));
        trace!(self.common.trace, "control", "link {link} from {} to {}", self.nodes[near], self.nodes[far]);
        self.common.coverage.hit_when(Mark::LoopbackLink, near == far);
        self.post(near, 0, Message::AddLink(link, 0));
        let delay = self.common.rng.small(50);
        self.post(far, delay, Message::AddLink(link, 1));
        link
    }

    /// A new link of a dialler says that its older one is over there.
    fn close_older(&mut self, near: usize, far: usize) {
        for position in 0..self.control.dialled.len() {
            let (from, to, link) = self.control.dialled[position];
            if (from, to) == (near, far) && !self.links[link].ends[1].closed {
                self.common.coverage.hit(Mark::FreshLink);
                self.post(far, 0, Message::CloseLink(link, 1, "its dialler made a new one"));
            }
        }
    }

    /// A shard reads one message of the control thread.
    pub(crate) fn control_message(&mut self, node: usize, message: Message) -> Result<(), String> {
        trace!(self.common.trace, self.nodes[node], "control {message:?}");
        match message {
            Message::AttachPartition(position) => self.attach_partition(node, position),
            Message::AttachGate(position) => self.attach_gate(node, position),
            Message::AddLink(link, end) => self.add_link(node, link, end),
            Message::AddSocket(link, end, socket) => self.add_socket(link, end, socket),
            Message::CloseLink(link, end, reason) => self.report_closed(node, link, end, reason),
            Message::Connect { consumer, channel, link } => self.connect(node, consumer, channel, link),
            Message::Drain => {
                self.common.model.causes.draining = true;
                self.common.coverage.hit(Mark::Draining);
                self.nodes[node].draining = true;
                self.nodes[node].shard.handle_drain(self.common.now);
            }
            Message::ClosePartition(position) => {
                let Self { producers, nodes, common, .. } = self;
                let producer = &mut producers[position];
                producer.ring.clear();
                let failure = (producer.state != producer::State::Finished)
                    .then(|| Failure::new(FailureCode::ProducerGone, format!("{producer} left")));
                if let Some(id) = producer.partition {
                    nodes[node].shard.handle_partition_closed(id, failure, common.now);
                }
            }
            Message::CloseGate(position) => {
                self.check_given_back(node, position)?;
                let Self { consumers, nodes, common, .. } = self;
                let consumer = &mut consumers[position];
                consumer.given.clear();
                let failure = (consumer.state != consumer::State::Finished)
                    .then(|| Failure::new(FailureCode::ConsumerGone, format!("{consumer} left")));
                if let Some(id) = consumer.gate {
                    if let Some(memory) = nodes[node].regions.get_mut(id) {
                        memory.held.clear();
                    }
                    nodes[node].shard.handle_gate_closed(id, failure, common.now);
                }
            }
        }
        Ok(())
    }

    /// When everything was given back, every segment of the gate is free.
    fn check_given_back(&self, node: usize, position: usize) -> Result<(), String> {
        let consumer = &self.consumers[position];
        if consumer.state != consumer::State::Finished {
            return Ok(());
        }
        for stats in self.nodes[node].shard.channels(self.common.now) {
            let key = channel_key(&stats)?;
            let its_own = (key.exchange, key.consumer) == (consumer.key.exchange, consumer.key.consumer);
            if its_own && stats.side == Side::Receive && stats.receiver_held > 0 {
                return Err(format!("{consumer}: gave everything back; segments are still held: {stats:?}"));
            }
        }
        Ok(())
    }

    fn attach_partition(&mut self, node: usize, position: usize) {
        let Self { producers, nodes, common, plan, .. } = self;
        let producer = &mut producers[position];
        let Some(exchange) = plan.exchanges.get(producer.key.exchange as usize) else { return };
        let spec = PartitionSpec {
            exchange: exchange.name.clone(),
            producer: ProducerIndex(producer.key.producer),
            shape: exchange.shape,
            incarnation: incarnation(position),
            segments: producer.segments(),
            pool: PoolShares::default(),
            continue_without: exchange.continue_without,
        };
        let id = nodes[node].shard.handle_partition(spec, common.now);
        producer.partition = Some(id);
        producer.state = producer::State::Running;
        nodes[node].partitions.insert(id, position);
    }

    fn attach_gate(&mut self, node: usize, position: usize) {
        let Self { consumers, nodes, common, plan, .. } = self;
        let consumer = &mut consumers[position];
        let Some(exchange) = plan.exchanges.get(consumer.key.exchange as usize) else { return };
        let spec = GateSpec {
            exchange: exchange.name.clone(),
            consumer: ConsumerIndex(consumer.key.consumer),
            shape: exchange.shape,
            segments: consumer.segments,
            exclusive: plan.limits.exclusive,
            debloat: consumer.plan.debloat,
        };
        let id = nodes[node].shard.handle_gate(spec, common.now);
        consumer.gate = Some(id);
        consumer.state = consumer::State::Running;
        nodes[node].regions.insert(id, consumer.segments, exchange.shape.segment_bytes);
        nodes[node].gates.insert(id, position);
    }

    fn add_link(&mut self, node: usize, link: usize, end: usize) {
        let peer = self.links[link].ends[1 - end].node;
        let spec = LinkSpec {
            peer: self.nodes[peer].node_name(),
            peer_shard: self.nodes[peer].place.index,
            peer_grace_ns: self.plan.limits.link_grace_ns,
            is_local: false,
        };
        let id = self.nodes[node].shard.handle_link(spec, self.common.now);
        let at = &mut self.links[link].ends[end];
        (at.id, at.socket, at.heard) = (Some(id), Some(0), self.common.now);
        at.closes_first = self.common.rng.chance(300);
        self.nodes[node].links.insert(id, (link, end));
    }

    fn connect(&mut self, node: usize, position: usize, channel: u32, link: usize) {
        let consumer = &self.consumers[position];
        let key = consumer.channel(channel);
        let Some(gate) = consumer.gate else { return };
        let end = self.links[link].ends.iter().find(|end| end.node == node);
        let Some(end) = end else { return };
        let Some(id) = end.id else { return };
        self.common.coverage.hit_when(Mark::OpenedSuspended, end.socket.is_none() && !end.closed);
        let Some(position) = self.producer_position(key.exchange, key.producer) else { return };
        let life = ProducerLife { producer: ProducerIndex(key.producer), incarnation: incarnation(position) };
        self.nodes[node].shard.handle_producer(gate, life, id, self.common.now);
    }

    /// A node is started anew: its clients are gone, but for those that come later.
    pub(crate) fn restart_clients(&mut self, node: usize) {
        let Self { producers, consumers, common, .. } = self;
        for producer in producers.iter_mut().filter(|producer| producer.plan.place == node) {
            producer.partition = None;
            match producer.state {
                producer::State::Waiting => {}
                producer::State::Attaching => producer.state = producer::State::Waiting,
                _ if producer.left => {}
                _ => {
                    producer.kill(common);
                    producer.ring.clear();
                    common.model.causes.producers_gone.insert((producer.key.exchange, producer.key.producer));
                }
            }
        }
        for consumer in consumers.iter_mut().filter(|consumer| consumer.plan.place == node) {
            consumer.gate = None;
            match consumer.state {
                consumer::State::Waiting => {}
                consumer::State::Attaching => consumer.state = consumer::State::Waiting,
                _ if consumer.left => consumer.given.clear(),
                _ => {
                    consumer.detach(common);
                    consumer.given.clear();
                }
            }
        }
    }

    /// The core says that nothing refers to a partition's memory any more.
    pub(crate) fn partition_released(&mut self, node: usize, id: PartitionId) -> Result<(), String> {
        let shell = &mut self.nodes[node];
        let Some(position) = shell.partitions.remove(&id) else {
            return Err(format!("{shell}: partition {id} was released; there is none"));
        };
        shell.ready_partitions.remove(&id);
        let producer = &mut self.producers[position];
        producer.partition = None;
        if !producer.left {
            return Err(format!("{producer}: its partition was released before it left"));
        }
        let reads = |sending: &Sending| sending.result.is_none() && sending.reads(id);
        let ends = self.links.iter().flat_map(|link| &link.ends);
        if ends.filter(|end| end.node == node).any(|end| end.sending.as_ref().is_some_and(reads)) {
            return Err(format!("{producer}: its memory was released while the kernel reads it"));
        }
        Ok(())
    }

    /// The core says that nothing will be written into a gate's memory any more.
    pub(crate) fn gate_released(&mut self, node: usize, id: GateId) -> Result<(), String> {
        let shell = &mut self.nodes[node];
        let Some(position) = shell.gates.remove(&id) else {
            return Err(format!("{shell}: gate {id} was released; there is none"));
        };
        shell.ready_gates.remove(&id);
        shell.regions.remove(id);
        let consumer = &mut self.consumers[position];
        consumer.gate = None;
        if consumer.left { Ok(()) } else { Err(format!("{consumer}: its gate was released before it left")) }
    }
}

fn incarnation(position: usize) -> Incarnation {
    Incarnation(position as u64 + 1)
}

impl Link {
    /// Whether the reader at this shard is inside a data frame for this consumer.
    fn reading_for(&self, node: usize, key: ChannelKey) -> bool {
        (0..2).any(|end| {
            let in_payload = self.reading(end).is_some_and(|pipe| pipe.read.position() == Position::Payload);
            let for_it = |found: ChannelKey| (found.exchange, found.consumer) == (key.exchange, key.consumer);
            self.ends[end].node == node && in_payload && self.books[1 - end].arriving().is_some_and(for_it)
        })
    }
}
