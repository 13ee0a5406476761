//! Two shards, a byte stream cut anywhere between them, sockets that take what they like, clients that hold what they
//! like. Whatever happens: `check()` holds after every step, everything arrives once and in order, and at the end
//! everything is free.

mod harness;

use std::collections::VecDeque;

use harness::{Pair, SEGMENT_BYTES, any_life, end, event, gate_spec, limits, partition_spec, shape};
use proptest::prelude::*;
use weir_flow::exchange::{Shape, Strategy as ShipStrategy};
use weir_flow::ids::{GateId, PartitionId, SegmentIndex, SubpartitionIndex, Time};
use weir_flow::shard::{Delivery, Notice, PartitionUpdate, Submission};
use weir_flow::stats::Side;

const PRODUCERS: u32 = 2;
const CONSUMERS: u32 = 3;
const SEGMENTS: u32 = 12;

/// What a channel carried: bytes are numbered, events stand between them.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Carried {
    Bytes(u64, u64),
    Event(u32),
    End,
}

/// The producer's client: one per partition. The byte at position k of a channel is a function of channel and k.
struct Producer {
    id: PartitionId,
    number: u32,
    free: Vec<SegmentIndex>,
    builders: Vec<Option<(SegmentIndex, u32)>>,
    position: Vec<u64>,
    sent: Vec<Vec<Carried>>,
    priority_sent: Vec<VecDeque<u32>>,
    events: u32,
    is_ended: Vec<bool>,
    is_finished: bool,
}

/// The consumer's client: one per gate.
struct Consumer {
    id: GateId,
    held: Vec<(SegmentIndex, u32)>,
    events: Vec<u32>,
    position: Vec<u64>,
    got: Vec<Vec<Carried>>,
    priority_got: Vec<VecDeque<u32>>,
}

struct World {
    pair: Pair,
    producers: Vec<Producer>,
    consumers: Vec<Consumer>,
    /// Addresses that a producer's client has: one per consumer, or one for all of them.
    builders: u32,
}

fn byte(producer: u32, consumer: u32, position: u64) -> u8 {
    (position.wrapping_mul(31) ^ (position >> 8) ^ u64::from(producer * 7 + consumer * 13)) as u8
}

/// Appends to a stream, joining what lies side by side.
fn note(stream: &mut Vec<Carried>, next: Carried) {
    if let (Some(Carried::Bytes(_, last)), Carried::Bytes(first, end)) = (stream.last_mut(), &next)
        && *last == *first
    {
        *last = *end;
        return;
    }
    stream.push(next);
}

#[derive(Clone, Debug)]
enum Step {
    Attach { consumer: u32, producer: u32 },
    Write { producer: u32, consumer: u32, bytes: u32, close: bool },
    Event { producer: u32, consumer: u32, priority: bool },
    End { producer: u32, consumer: u32 },
    Plan { node: usize },
    Send { node: usize, bytes: usize },
    Receive { node: usize, bytes: usize },
    Poll { consumer: u32, count: usize },
    GiveBack { consumer: u32, pick: usize, share: u32 },
    ConsumeEvent { consumer: u32 },
    Time { ns: u64 },
    Lose { node: usize },
    Resume,
}

fn step() -> impl Strategy<Value = Step> {
    let (producer, consumer, node) = (0..PRODUCERS, 0..CONSUMERS, 0..2_usize);
    prop_oneof![
        3 => (consumer.clone(), producer.clone())
            .prop_map(|(consumer, producer)| Step::Attach { consumer, producer }),
        12 => (producer.clone(), consumer.clone(), 1..=SEGMENT_BYTES, any::<bool>())
            .prop_map(|(producer, consumer, bytes, close)| Step::Write { producer, consumer, bytes, close }),
        6 => (producer.clone(), consumer.clone(), 1..=300_u32)
            .prop_map(|(producer, consumer, bytes)| Step::Write { producer, consumer, bytes, close: false }),
        2 => (producer.clone(), consumer.clone(), any::<bool>())
            .prop_map(|(producer, consumer, priority)| Step::Event { producer, consumer, priority }),
        1 => (producer, consumer.clone()).prop_map(|(producer, consumer)| Step::End { producer, consumer }),
        2 => node.clone().prop_map(|node| Step::Plan { node }),
        8 => (node.clone(), prop_oneof![0..100_usize, 0..20_000_usize])
            .prop_map(|(node, bytes)| Step::Send { node, bytes }),
        10 => (node.clone(), prop_oneof![0..100_usize, 0..20_000_usize])
            .prop_map(|(node, bytes)| Step::Receive { node, bytes }),
        1 => node.prop_map(|node| Step::Lose { node }),
        1 => Just(Step::Resume),
        6 => (consumer.clone(), 1..8_usize).prop_map(|(consumer, count)| Step::Poll { consumer, count }),
        6 => (consumer.clone(), any::<usize>(), 1..=3_u32)
            .prop_map(|(consumer, pick, share)| Step::GiveBack { consumer, pick, share }),
        2 => consumer.prop_map(|consumer| Step::ConsumeEvent { consumer }),
        2 => (0..2_000_000_u64).prop_map(|ns| Step::Time { ns }),
    ]
}

impl World {
    fn new(strategy: ShipStrategy) -> Self {
        let mut pair = Pair::new(limits());
        let shape = Shape { strategy, ..shape(PRODUCERS, CONSUMERS) };
        let builders = if strategy == ShipStrategy::Broadcast { 1 } else { CONSUMERS };
        let producers = (0..PRODUCERS)
            .map(|number| Producer {
                id: pair.nodes[0].add_partition(partition_spec(shape, number, SEGMENTS), Time(0)),
                number,
                free: (0..SEGMENTS).map(SegmentIndex).collect(),
                builders: vec![None; builders as usize],
                position: vec![0; builders as usize],
                sent: vec![Vec::new(); builders as usize],
                priority_sent: vec![VecDeque::new(); builders as usize],
                events: 0,
                is_ended: vec![false; builders as usize],
                is_finished: false,
            })
            .collect();
        let consumers = (0..CONSUMERS)
            .map(|consumer| Consumer {
                id: pair.nodes[1].add_gate(gate_spec(shape, consumer, PRODUCERS * 2 + 3, 2), Time(0)),
                held: Vec::new(),
                events: Vec::new(),
                position: vec![0; PRODUCERS as usize],
                got: vec![Vec::new(); PRODUCERS as usize],
                priority_got: vec![VecDeque::new(); PRODUCERS as usize],
            })
            .collect();
        Self { pair, producers, consumers, builders }
    }

    fn apply(&mut self, step: &Step) {
        let now = self.pair.now;
        let builders = self.builders;
        let builder = |consumer: u32| consumer % builders;
        match *step {
            Step::Attach { consumer, producer } => {
                let gate = self.consumers[consumer as usize].id;
                let node = &mut self.pair.nodes[1];
                node.shard.handle_producer(gate, any_life(producer), node.link, now);
            }
            Step::Write { producer, consumer, bytes, close } => {
                self.write(producer, builder(consumer), bytes, close);
            }
            Step::Event { producer, consumer, priority } => {
                self.event(producer, builder(consumer), priority);
            }
            Step::End { producer, consumer } => self.end(producer, builder(consumer)),
            Step::Plan { node } => {
                self.pair.nodes[node].plan(now);
            }
            Step::Send { node, bytes } => {
                self.pair.send(node, bytes);
            }
            Step::Receive { node, bytes } => {
                self.pair.receive(node, bytes);
            }
            Step::Poll { consumer, count } => self.poll(consumer, count),
            Step::GiveBack { consumer, pick, share } => self.give_back(consumer, pick, share),
            Step::ConsumeEvent { consumer } => self.consume_event(consumer),
            Step::Lose { node } => self.pair.lose(node),
            Step::Resume => self.pair.resume(),
            Step::Time { ns } => {
                self.pair.now = now.after_ns(ns);
                for node in &mut self.pair.nodes {
                    node.shard.handle_timeout(self.pair.now);
                }
            }
        }
        self.take_updates();
        self.pair.check();
    }

    fn write(&mut self, number: u32, builder: u32, bytes: u32, close: bool) {
        let now = self.pair.now;
        let producer = &mut self.producers[number as usize];
        let index = builder as usize;
        if producer.is_ended[index] {
            return;
        }
        let Some((segment, fill)) =
            producer.builders[index].or_else(|| producer.free.pop().map(|segment| (segment, 0)))
        else {
            return;
        };
        let count = bytes.min(SEGMENT_BYTES - fill);
        let (first, node) = (producer.position[index], &mut self.pair.nodes[0]);
        let region = node.sends.get_mut(&producer.id).unwrap();
        for offset in 0..count {
            region[segment.0 as usize][(fill + offset) as usize] =
                byte(number, builder, first + u64::from(offset));
        }
        producer.position[index] += u64::from(count);
        if count > 0 {
            note(&mut producer.sent[index], Carried::Bytes(first, first + u64::from(count)));
        }
        let last = close || fill + count == SEGMENT_BYTES;
        let submission = Submission::Data {
            subpartition: SubpartitionIndex(builder),
            segment,
            offset: fill,
            bytes: count,
            records: u32::from(count > 0),
            last,
        };
        node.shard.handle_submission(producer.id, submission, now).unwrap();
        producer.builders[index] = (!last).then_some((segment, fill + count));
    }

    fn event(&mut self, number: u32, builder: u32, priority: bool) {
        let now = self.pair.now;
        let producer = &mut self.producers[number as usize];
        let view = self.pair.nodes[0].shard.subpartition_view(producer.id, SubpartitionIndex(builder));
        if producer.is_ended[builder as usize] || view.unwrap().events_in_flight >= 7 {
            return;
        }
        let name = producer.events;
        producer.events += 1;
        if priority {
            producer.priority_sent[builder as usize].push_back(name);
        } else {
            producer.sent[builder as usize].push(Carried::Event(name));
        }
        let event = event(builder, &name.to_string(), priority);
        self.pair.nodes[0].shard.handle_submission(producer.id, event, now).unwrap();
    }

    fn end(&mut self, number: u32, builder: u32) {
        let index = builder as usize;
        if self.producers[number as usize].is_ended[index] {
            return;
        }
        if let Some((segment, fill)) = self.producers[number as usize].builders[index].take() {
            let close = Submission::Data {
                subpartition: SubpartitionIndex(builder),
                segment,
                offset: fill,
                bytes: 0,
                records: 0,
                last: true,
            };
            let (node, now) = (&mut self.pair.nodes[0], self.pair.now);
            node.shard.handle_submission(self.producers[number as usize].id, close, now).unwrap();
        }
        let producer = &mut self.producers[number as usize];
        producer.is_ended[index] = true;
        producer.sent[index].push(Carried::End);
        self.pair.nodes[0].shard.handle_submission(producer.id, end(builder), self.pair.now).unwrap();
    }

    fn take_updates(&mut self) {
        let mut listed = Vec::new();
        self.pair.nodes[0].shard.take_partitions(&mut listed);
        for id in listed {
            let producer = self.producers.iter_mut().find(|producer| producer.id == id).unwrap();
            while let Some(update) = self.pair.nodes[0].shard.poll_update(id) {
                match update {
                    PartitionUpdate::Returned(segment) => {
                        assert!(!producer.free.contains(&segment), "{segment} came back twice");
                        producer.free.push(segment);
                    }
                    PartitionUpdate::Finished => producer.is_finished = true,
                    PartitionUpdate::Failed(failure) => panic!("partition {id} failed: {failure}"),
                }
            }
        }
    }

    fn poll(&mut self, number: u32, count: usize) {
        let builder = number % self.builders;
        let node = &mut self.pair.nodes[1];
        let consumer = &mut self.consumers[number as usize];
        while let Some(delivery) = node.shard.poll_priority_delivery(consumer.id) {
            let Delivery::Event { channel, payload, priority: true } = delivery else {
                panic!("{delivery:?}")
            };
            let name = std::str::from_utf8(&payload).unwrap().parse().unwrap();
            consumer.priority_got[channel as usize].push_back(name);
            consumer.events.push(channel);
        }
        for _ in 0..count {
            let Some(delivery) = node.shard.poll_delivery(consumer.id) else { return };
            match delivery {
                Delivery::Data { channel, segment, offset, bytes, .. } => {
                    let first = consumer.position[channel as usize];
                    let found = node.memory.read(consumer.id, segment, offset, bytes);
                    for (index, found) in found.iter().enumerate() {
                        let needed = byte(channel, builder, first + index as u64);
                        assert_eq!(*found, needed, "byte {index} behind {first} of channel {channel}");
                    }
                    consumer.position[channel as usize] += u64::from(bytes);
                    let carried = Carried::Bytes(first, first + u64::from(bytes));
                    note(&mut consumer.got[channel as usize], carried);
                    consumer.held.push((segment, bytes));
                }
                Delivery::Event { channel, payload, .. } => {
                    let name = std::str::from_utf8(&payload).unwrap().parse().unwrap();
                    consumer.got[channel as usize].push(Carried::Event(name));
                    consumer.events.push(channel);
                }
                Delivery::End { channel } => consumer.got[channel as usize].push(Carried::End),
                Delivery::Failed { channel, failure } => panic!("channel {channel} failed: {failure}"),
            }
        }
    }

    fn give_back(&mut self, number: u32, pick: usize, share: u32) {
        let consumer = &mut self.consumers[number as usize];
        if consumer.held.is_empty() {
            return;
        }
        let pick = pick % consumer.held.len();
        let (segment, bytes) = consumer.held[pick];
        let part = bytes.div_ceil(share);
        self.pair.nodes[1].shard.handle_given_back(consumer.id, segment, part, self.pair.now).unwrap();
        if part == bytes {
            consumer.held.swap_remove(pick);
        } else {
            consumer.held[pick].1 -= part;
        }
    }

    fn consume_event(&mut self, number: u32) {
        let consumer = &mut self.consumers[number as usize];
        if let Some(channel) = consumer.events.pop() {
            self.pair.nodes[1].shard.handle_event_consumed(consumer.id, channel, self.pair.now).unwrap();
        }
    }

    /// Holds end, stalls end, sockets are there, everything is ended: everything must arrive.
    fn finish(&mut self) {
        self.pair.resume();
        for consumer in 0..CONSUMERS {
            for producer in 0..PRODUCERS {
                self.apply(&Step::Attach { consumer, producer });
                self.apply(&Step::End { producer, consumer });
            }
        }
        for _ in 0..2000 {
            self.pair.settle();
            self.take_updates();
            for consumer in 0..CONSUMERS {
                self.poll(consumer, usize::MAX);
                while !self.consumers[consumer as usize].held.is_empty() {
                    self.give_back(consumer, 0, 1);
                }
                while !self.consumers[consumer as usize].events.is_empty() {
                    self.consume_event(consumer);
                }
            }
            self.pair.check();
            if self.producers.iter().all(|producer| producer.is_finished) {
                break;
            }
        }
        self.pair.settle();
        for consumer in 0..CONSUMERS {
            self.poll(consumer, usize::MAX);
        }
        self.assert_all_arrived();
        self.assert_all_free();
    }

    fn assert_all_arrived(&self) {
        for producer in &self.producers {
            assert!(producer.is_finished, "producer {} is not finished", producer.number);
            for consumer in 0..CONSUMERS as usize {
                let builder = consumer % self.builders as usize;
                let (sent, got) = (&producer.sent[builder], &self.consumers[consumer].got);
                assert_eq!(got[producer.number as usize], *sent, "channel {} -> {consumer}", producer.number);
                let got = &self.consumers[consumer].priority_got[producer.number as usize];
                assert_eq!(*got, producer.priority_sent[builder]);
            }
        }
    }

    fn assert_all_free(&mut self) {
        for producer in &mut self.producers {
            producer.free.sort_unstable();
            assert_eq!(producer.free, (0..SEGMENTS).map(SegmentIndex).collect::<Vec<_>>());
            self.pair.nodes[0].shard.handle_partition_closed(producer.id, None, self.pair.now);
        }
        let held: Vec<(u32, u32)> = self.pair.nodes[1]
            .shard
            .channels(self.pair.now)
            .filter(|stats| stats.side == Side::Receive)
            .map(|stats| (stats.receiver_ready, stats.receiver_held))
            .collect();
        assert_eq!(held, vec![(0, 0); (PRODUCERS * CONSUMERS) as usize]);
        for consumer in &self.consumers {
            self.pair.nodes[1].shard.handle_gate_closed(consumer.id, None, self.pair.now);
        }
        self.pair.check();
        let released = |shard: &mut weir_flow::shard::Shard| {
            let notices = std::iter::from_fn(|| shard.poll_notice());
            notices
                .filter(|notice| matches!(notice, Notice::PartitionReleased(_) | Notice::GateReleased(_)))
                .count()
        };
        assert_eq!(released(&mut self.pair.nodes[0].shard), PRODUCERS as usize);
        assert_eq!(released(&mut self.pair.nodes[1].shard), CONSUMERS as usize);
        assert!(self.pair.nodes.iter().all(|node| node.shard.channels(Time(0)).count() == 0));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(250) })]

    #[test]
    fn everything_arrives_once_in_order_and_all_is_free(steps in proptest::collection::vec(step(), 0..400)) {
        let mut world = World::new(ShipStrategy::Rebalance);
        for step in &steps {
            world.apply(step);
        }
        world.finish();
    }

    /// The same where all consumers read the same segments: each gets everything, and each segment comes back once.
    #[test]
    fn shared_segments_reach_every_consumer_and_come_back_once(
        steps in proptest::collection::vec(step(), 0..400)
    ) {
        let mut world = World::new(ShipStrategy::Broadcast);
        for step in &steps {
            world.apply(step);
        }
        world.finish();
    }
}

/// A consumer that stops giving back stops its own channel; its sibling over the same link goes on, and the memory
/// that the stopped one ties up stays within its grants.
#[test]
fn a_stopped_consumer_stops_only_itself() {
    let mut world = World::new(ShipStrategy::Rebalance);
    for consumer in 0..CONSUMERS {
        world.apply(&Step::Attach { consumer, producer: 0 });
    }
    world.pair.settle();
    for round in 0..200 {
        for consumer in [0, 1] {
            // Consumer 0 gives nothing back; its producer stops at three segments beside those it was granted.
            let credit = world.pair.nodes[0]
                .shard
                .subpartition_view(world.producers[0].id, SubpartitionIndex(consumer))
                .unwrap();
            if credit.queued_bytes < 3 * u64::from(SEGMENT_BYTES) {
                world.apply(&Step::Write { producer: 0, consumer, bytes: SEGMENT_BYTES, close: true });
            }
        }
        world.pair.settle();
        world.take_updates();
        world.poll(0, usize::MAX);
        world.poll(1, usize::MAX);
        while !world.consumers[1].held.is_empty() {
            world.give_back(1, 0, 1);
        }
        assert!(world.consumers[0].held.len() <= 5, "round {round}: two exclusive and three floating");
    }
    let segment = u64::from(SEGMENT_BYTES);
    assert_eq!(world.consumers[0].position[0], 5 * segment, "E = 2 and 3 floating");
    assert!(world.consumers[1].position[0] >= 190 * segment, "{} bytes", world.consumers[1].position[0]);
    let stats: Vec<_> = world.pair.nodes[0].shard.channels(world.pair.now).collect();
    assert_eq!((stats[0].credit, stats[0].backlog), (0, 3));
    world.finish();
}
