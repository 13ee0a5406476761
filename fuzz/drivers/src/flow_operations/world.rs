//! Both nodes with their clients and the link between them.

use weir_flow::exchange::{Shape, Strategy};
use weir_flow::ids::{SegmentIndex, SubpartitionIndex, Time};
use weir_flow::shard::{Notice, Submission};

use super::operation::Operation;
use crate::harness::clients::{Consumer, Producer};
use crate::harness::{Pair, any_life, limits, link_spec, shape};
use crate::{Reached, Rule};

/// Of the exchange from node 0 to node 1, and of the one back: producers, consumers.
const FORTH: (u32, u32) = (1, 2);
const BACK: (u32, u32) = (2, 1);

/// Segments of each producer, and floating ones of each consumer.
const SEGMENTS: u32 = 10;
const FLOATING: u32 = 2;

pub(super) struct World {
    pair: Pair,
    producers: Vec<Producer>,
    consumers: Vec<Consumer>,
    /// Which node believes that it has a socket.
    has_socket: [bool; 2],
    /// What the kernel of a node, whose socket is lost, has not yet said of its last send.
    late: [Option<u32>; 2],
    /// Which node gave the link up.
    is_expired: [bool; 2],
    /// Whether something happened that may fail a channel.
    is_disturbed: bool,
    /// Whether the consumers of the first exchange read the same segments.
    is_shared: bool,
    released: usize,
    reached: Reached,
    rule: Rule,
}

impl World {
    /// A world of this kind: whether its first exchange goes on without a consumer (even), and whether that exchange is a
    /// broadcast (the bit of 4).
    pub(super) fn new(kind: u8, rule: Rule) -> Self {
        let mut pair = Pair::new(limits());
        let [a, b] = &mut pair.nodes;
        let strategy = if kind & 4 == 0 { Strategy::Rebalance } else { Strategy::Broadcast };
        let forth = Shape { strategy, ..shape(FORTH.0, FORTH.1) };
        let back = shape(BACK.0, BACK.1);
        let producers = vec![
            Producer::new(0, a, "forth", 0, forth, SEGMENTS, kind.is_multiple_of(2)),
            Producer::new(1, b, "back", 0, back, SEGMENTS, false),
            Producer::new(1, b, "back", 1, back, SEGMENTS, false),
        ];
        let consumers = vec![
            Consumer::new(1, b, "forth", 0, forth, FLOATING),
            Consumer::new(1, b, "forth", 1, forth, FLOATING),
            Consumer::new(0, a, "back", 0, back, FLOATING),
        ];
        Self {
            pair,
            producers,
            consumers,
            has_socket: [true; 2],
            late: [None; 2],
            is_expired: [false; 2],
            is_disturbed: false,
            is_shared: strategy == Strategy::Broadcast,
            released: 0,
            reached: Reached::new(),
            rule,
        }
    }

    pub(super) fn apply(&mut self, operation: &Operation) {
        let Self { pair, producers, consumers, .. } = self;
        let now = pair.now;
        match *operation {
            Operation::Write { producer, consumer, bytes, close } => {
                let producer = &mut producers[producer];
                let consumer = consumer % producer.addresses;
                producer.write(&mut pair.nodes[producer.node], consumer, bytes, close, now);
            }
            Operation::Event { producer, consumer, priority } => {
                let producer = &mut producers[producer];
                let consumer = consumer % producer.addresses;
                producer.event(&mut pair.nodes[producer.node], consumer, priority, now);
            }
            Operation::End { producer, consumer } => {
                let producer = &mut producers[producer];
                let consumer = consumer % producer.addresses;
                producer.end(&mut pair.nodes[producer.node], consumer, now);
            }
            Operation::Plan { node } => {
                pair.nodes[node].plan(now);
            }
            Operation::Send { node, bytes } => self.send(node, bytes),
            Operation::Receive { node, bytes } => self.receive(node, bytes),
            Operation::Poll { consumer, count } => self.poll(consumer, count),
            Operation::GiveBack { consumer, pick, share } => {
                let consumer = &mut consumers[consumer];
                let trust = consumer.trust(producers);
                consumer.give_back(&mut pair.nodes[consumer.node], pick, share, &trust, now);
            }
            Operation::ConsumeEvent { consumer } => {
                let consumer = &mut consumers[consumer];
                consumer.consume_event(&mut pair.nodes[consumer.node], now);
            }
            Operation::Time { ns } => self.pass(ns),
            Operation::Attach { consumer, producer } => self.attach(consumer, producer),
            Operation::Lose { node } => self.lose(node),
            Operation::LoseBusy { node, bytes } => self.lose_busy(node, bytes),
            Operation::Resume => self.resume(),
            Operation::CloseLink => self.close_link("the end"),
            Operation::ClosePartition { producer } => self.close_partition(producer),
            Operation::CloseGate { consumer } => self.close_gate(consumer),
            Operation::Claim { .. } => self.claim(operation),
            Operation::Drain { node } => {
                pair.nodes[node].shard.handle_drain(now);
                self.is_disturbed = true;
                self.reached.insert("draining");
            }
        }
        self.look();
    }

    /// What both shells do after every turn.
    fn look(&mut self) {
        self.take_notices();
        for producer in &mut self.producers {
            let at = &mut self.pair.nodes[producer.node];
            let failed = producer.take_updates(at, &mut self.reached);
            assert!(!failed || self.is_disturbed, "a partition failed, and nothing was disturbed");
        }
        self.pair.check();
    }

    fn take_notices(&mut self) {
        for node in 0..2 {
            while let Some(notice) = self.pair.nodes[node].shard.poll_notice() {
                match notice {
                    Notice::PartitionReleased(_) => self.released += 1,
                    Notice::GateReleased(gate) => {
                        self.pair.nodes[node].memory.remove(gate);
                        self.released += 1;
                    }
                    Notice::LinkTimedOut { .. } | Notice::LinkStuck { .. } => {
                        self.reached.insert("timed out");
                        self.lose(node);
                    }
                    Notice::LinkExpired(link) if link == self.pair.nodes[node].link => {
                        self.reached.insert("expired");
                        self.is_expired[node] = true;
                        self.is_disturbed = true;
                    }
                    Notice::LinkResumed(_) => {
                        let channels = self.pair.nodes[node].shard.channels(self.pair.now).count();
                        let name = if channels > 0 { "resumed with channels" } else { "resumed" };
                        self.reached.insert(name);
                    }
                    _ => {}
                }
            }
        }
    }

    fn send(&mut self, node: usize, bytes: usize) {
        if self.late[node].is_some() {
            return self.report_late(node);
        }
        let now = self.pair.now;
        let at = &mut self.pair.nodes[node];
        at.plan(now);
        let Some(mut batch) = at.in_flight.take() else { return };
        let planned = batch.len();
        batch.truncate(bytes);
        if batch.len() < planned {
            self.reached.insert("partly sent");
        }
        let said = batch.len() - usize::from(self.rule == Rule::Broken && batch.len() > 40);
        at.shard.handle_sent(at.link, said as u32, now);
        self.pair.nodes[1 - node].wire.extend(batch);
    }

    fn receive(&mut self, node: usize, bytes: usize) {
        if self.has_socket[node] {
            self.pair.receive(node, bytes);
        } else {
            self.pair.nodes[node].wire.clear();
        }
    }

    fn poll(&mut self, consumer: usize, count: usize) {
        let consumer = &mut self.consumers[consumer];
        if consumer.is_closed {
            return;
        }
        let trust = consumer.trust(&self.producers);
        let failed = consumer.poll(&mut self.pair.nodes[consumer.node], count, &trust, &mut self.reached);
        assert!(!failed || self.is_disturbed, "a channel failed, and nothing was disturbed");
    }

    fn pass(&mut self, ns: u64) {
        self.pair.now = self.pair.now.after_ns(ns);
        for node in &mut self.pair.nodes {
            node.shard.handle_timeout(self.pair.now);
        }
    }

    fn attach(&mut self, consumer: usize, producer: u32) {
        let consumer = &self.consumers[consumer];
        let node = &mut self.pair.nodes[consumer.node];
        let life = any_life(producer % consumer.producers);
        if !consumer.is_closed {
            node.shard.handle_producer(consumer.id, life, node.link, self.pair.now);
        }
    }

    fn report_late(&mut self, node: usize) {
        let at = &mut self.pair.nodes[node];
        if let Some(bytes) = self.late[node].take() {
            at.shard.handle_sent(at.link, bytes, self.pair.now);
            self.reached.insert("sent before the loss");
        }
    }

    /// The socket is gone, and the kernel has a batch of which it has not said yet how much it sent.
    fn lose_busy(&mut self, node: usize, bytes: usize) {
        let now = self.pair.now;
        let at = &mut self.pair.nodes[node];
        if self.has_socket[node]
            && let Some(mut batch) = at.in_flight.take()
        {
            batch.truncate(bytes);
            self.late[node] = Some(batch.len() as u32);
            at.shard.handle_link_lost(at.link, "reset", now);
            self.pair.nodes[1 - node].wire.extend(batch);
            self.has_socket[node] = false;
        }
    }

    fn lose(&mut self, node: usize) {
        self.report_late(node);
        self.pair.lose(node);
        self.has_socket[node] = false;
        if self.has_socket[1 - node] {
            self.reached.insert("half-open");
        }
    }

    /// Both ends get a new socket; an end that has given the link up refuses, and the other gives it up, too.
    fn resume(&mut self) {
        for node in 0..2 {
            self.lose(node);
            self.pair.nodes[node].wire.clear();
        }
        self.take_notices();
        let now = self.pair.now;
        let waits = [0, 1].map(|node| {
            let node = &mut self.pair.nodes[node];
            node.shard.handle_link_resumed(node.link, now)
        });
        if waits == [true; 2] {
            self.has_socket = [true; 2];
            self.reached.insert("resumed");
        } else {
            assert!(self.is_disturbed, "a link is given up, and nothing was disturbed");
            self.close_link("the other end has given it up");
        }
    }

    fn close_link(&mut self, reason: &str) {
        self.is_disturbed = true;
        self.reached.insert("link closed");
        let now = self.pair.now;
        for ((node, late), peer) in self.pair.nodes.iter_mut().zip(&mut self.late).zip(["b", "a"]) {
            node.in_flight = None;
            node.shard.handle_sent(node.link, late.take().unwrap_or_default(), now);
            node.shard.handle_link_closed(node.link, reason, now);
            node.wire.clear();
            node.link = node.shard.handle_link(link_spec(peer), now);
        }
        (self.has_socket, self.is_expired) = ([true; 2], [false; 2]);
    }

    fn close_partition(&mut self, producer: usize) {
        let producer = &mut self.producers[producer];
        if !producer.is_closed {
            self.is_disturbed = true;
            producer.is_closed = true;
            let node = &mut self.pair.nodes[producer.node];
            node.shard.handle_partition_closed(producer.id, None, self.pair.now);
        }
    }

    fn close_gate(&mut self, consumer: usize) {
        let consumer = &mut self.consumers[consumer];
        if !consumer.is_closed {
            self.is_disturbed = true;
            consumer.is_closed = true;
            self.pair.nodes[consumer.node].shard.handle_gate_closed(consumer.id, None, self.pair.now);
        }
    }

    fn claim(&mut self, claim: &Operation) {
        let Operation::Claim { producer, subpartition, segment, offset, bytes } = *claim else { return };
        let producer = &mut self.producers[producer];
        if producer.is_closed {
            return;
        }
        self.is_disturbed = true;
        let submission = Submission::Data {
            subpartition: SubpartitionIndex(subpartition),
            segment: SegmentIndex(segment),
            offset,
            bytes,
            records: 1,
            last: true,
        };
        if producer.claim(&mut self.pair.nodes[producer.node], submission, self.pair.now) {
            self.reached.insert("client fault");
        }
    }

    /// Faults end, holds end, everything is ended. Undisturbed, everything arrives; else everybody leaves, and nothing
    /// is left.
    pub(super) fn finish(mut self) -> Reached {
        if self.has_socket != [true; 2] {
            self.resume();
            self.look();
        }
        if !self.is_disturbed {
            for consumer in 0..self.consumers.len() {
                for producer in 0..self.consumers[consumer].producers {
                    self.attach(consumer, producer);
                }
            }
            for producer in &mut self.producers {
                for consumer in 0..producer.addresses {
                    producer.end(&mut self.pair.nodes[producer.node], consumer, self.pair.now);
                }
            }
        }
        for _ in 0..if self.is_disturbed { 3 } else { 1000 } {
            self.read_on();
            if self.producers.iter().all(|producer| producer.is_finished) {
                break;
            }
        }
        self.read_on();
        for producer in &mut self.producers {
            assert!(self.is_disturbed || producer.is_finished, "the end of data is acknowledged");
            for consumer in &self.consumers {
                producer.compare(consumer, !self.is_disturbed);
            }
            if !self.is_disturbed {
                producer.assert_all_free();
            }
        }
        self.reached.insert(if self.is_disturbed { "everything left" } else { "everything arrived" });
        if self.is_shared && !self.is_disturbed {
            self.reached.insert("everything arrived from shared segments");
        }
        self.leave();
        self.reached
    }

    fn read_on(&mut self) {
        self.pair.settle();
        self.look();
        for consumer in &mut self.consumers {
            let trust = consumer.trust(&self.producers);
            let at = &mut self.pair.nodes[consumer.node];
            let failed = consumer.read_on(at, &trust, &mut self.reached, self.pair.now);
            assert!(!failed || self.is_disturbed, "a channel failed, and nothing was disturbed");
        }
        self.look();
    }

    fn leave(&mut self) {
        for producer in 0..self.producers.len() {
            self.close_partition(producer);
        }
        for consumer in 0..self.consumers.len() {
            self.close_gate(consumer);
        }
        self.pair.settle();
        self.look();
        self.close_link("the end");
        self.look();
        assert_eq!(self.released, self.producers.len() + self.consumers.len(), "every region is released");
        for node in &self.pair.nodes {
            assert_eq!(node.shard.channels(Time(0)).count(), 0, "no channel is left");
        }
    }
}
