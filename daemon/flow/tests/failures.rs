//! Clients that are killed and links that are lost at any moment, with new ones coming in their place. Whatever
//! happens: `check()` holds after every step, no byte goes to the wrong place, and at the end everything is released.

mod harness;

use std::collections::BTreeMap;

use harness::{Pair, SEGMENT_BYTES, any_life, end, gate_spec, limits, link_spec, partition_spec, shape};
use proptest::prelude::*;
use weir_flow::failure::{Failure, FailureCode};
use weir_flow::ids::{GateId, PartitionId, SegmentIndex, SubpartitionIndex};
use weir_flow::shard::{Delivery, Notice, PartitionUpdate, Submission};

const PRODUCERS: u32 = 2;
const CONSUMERS: u32 = 2;
const SEGMENTS: u32 = 8;

struct Producer {
    id: PartitionId,
    /// What all its bytes are.
    mark: u8,
    free: Vec<SegmentIndex>,
    builders: Vec<Option<(SegmentIndex, u32)>>,
    is_ended: Vec<bool>,
    has_failed: bool,
}

struct Consumer {
    id: GateId,
    held: Vec<(SegmentIndex, u32)>,
    /// The mark of the producer behind each channel, once seen.
    marks: Vec<Option<u8>>,
}

struct World {
    pair: Pair,
    producers: Vec<Producer>,
    consumers: Vec<Consumer>,
    next_mark: u8,
    partitions: BTreeMap<PartitionId, bool>,
    gates: BTreeMap<GateId, bool>,
}

#[derive(Clone, Debug)]
enum Step {
    Attach { consumer: usize, producer: u32 },
    Write { producer: usize, consumer: u32, bytes: u32, close: bool },
    End { producer: usize, consumer: u32 },
    Plan { node: usize },
    Send { node: usize, bytes: usize },
    Receive { node: usize, bytes: usize },
    Poll { consumer: usize },
    GiveBack { consumer: usize, pick: usize },
    KillProducer { producer: usize },
    KillConsumer { consumer: usize },
    LoseLink { report: bool },
    Time { ns: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    let (producer, consumer, node) = (0..PRODUCERS as usize, 0..CONSUMERS as usize, 0..2_usize);
    prop_oneof![
        6 => (consumer.clone(), 0..PRODUCERS).prop_map(|(consumer, producer)| Step::Attach { consumer, producer }),
        12 => (producer.clone(), 0..CONSUMERS, 1..=SEGMENT_BYTES, any::<bool>())
            .prop_map(|(producer, consumer, bytes, close)| Step::Write { producer, consumer, bytes, close }),
        1 => (producer.clone(), 0..CONSUMERS).prop_map(|(producer, consumer)| Step::End { producer, consumer }),
        3 => node.clone().prop_map(|node| Step::Plan { node }),
        10 => (node.clone(), prop_oneof![0..100_usize, 0..20_000_usize])
            .prop_map(|(node, bytes)| Step::Send { node, bytes }),
        10 => (node, prop_oneof![0..100_usize, 0..20_000_usize])
            .prop_map(|(node, bytes)| Step::Receive { node, bytes }),
        5 => consumer.clone().prop_map(|consumer| Step::Poll { consumer }),
        5 => (consumer.clone(), any::<usize>()).prop_map(|(consumer, pick)| Step::GiveBack { consumer, pick }),
        1 => producer.prop_map(|producer| Step::KillProducer { producer }),
        1 => consumer.prop_map(|consumer| Step::KillConsumer { consumer }),
        1 => any::<bool>().prop_map(|report| Step::LoseLink { report }),
        2 => (0..2_000_000_u64).prop_map(|ns| Step::Time { ns }),
    ]
}

impl World {
    fn new() -> Self {
        let mut world = Self {
            pair: Pair::new(limits()),
            producers: Vec::new(),
            consumers: Vec::new(),
            next_mark: 1,
            partitions: BTreeMap::new(),
            gates: BTreeMap::new(),
        };
        for number in 0..PRODUCERS {
            let producer = world.new_producer(number);
            world.producers.push(producer);
        }
        for number in 0..CONSUMERS {
            let consumer = world.new_consumer(number);
            world.consumers.push(consumer);
        }
        world
    }

    fn new_producer(&mut self, number: u32) -> Producer {
        let spec = partition_spec(shape(PRODUCERS, CONSUMERS), number, SEGMENTS);
        let id = self.pair.nodes[0].add_partition(spec, self.pair.now);
        let mark = self.next_mark;
        self.next_mark = self.next_mark.wrapping_add(1).max(1);
        for segment in self.pair.nodes[0].sends.get_mut(&id).unwrap() {
            segment.fill(mark);
        }
        self.partitions.insert(id, false);
        Producer {
            id,
            mark,
            free: (0..SEGMENTS).map(SegmentIndex).collect(),
            builders: vec![None; CONSUMERS as usize],
            is_ended: vec![false; CONSUMERS as usize],
            has_failed: false,
        }
    }

    fn new_consumer(&mut self, number: u32) -> Consumer {
        let spec = gate_spec(shape(PRODUCERS, CONSUMERS), number, 2 * PRODUCERS + 2, 2);
        let id = self.pair.nodes[1].add_gate(spec, self.pair.now);
        self.gates.insert(id, false);
        Consumer { id, held: Vec::new(), marks: vec![None; PRODUCERS as usize] }
    }

    fn apply(&mut self, step: &Step) {
        let now = self.pair.now;
        match *step {
            Step::Attach { consumer, producer } => {
                let (gate, node) = (self.consumers[consumer].id, &mut self.pair.nodes[1]);
                node.shard.handle_producer(gate, any_life(producer), node.link, now);
            }
            Step::Write { producer, consumer, bytes, close } => self.write(producer, consumer, bytes, close),
            Step::End { producer, consumer } => self.end(producer, consumer),
            Step::Plan { node } => {
                self.pair.nodes[node].plan(now);
            }
            Step::Send { node, bytes } => {
                self.pair.send(node, bytes);
            }
            Step::Receive { node, bytes } => {
                self.pair.receive(node, bytes);
            }
            Step::Poll { consumer } => self.poll(consumer),
            Step::GiveBack { consumer, pick } => self.give_back(consumer, pick),
            Step::KillProducer { producer } => self.kill_producer(producer),
            Step::KillConsumer { consumer } => self.kill_consumer(consumer),
            Step::LoseLink { report } => self.lose_link(report),
            Step::Time { ns } => {
                self.pair.now = now.after_ns(ns);
                for node in &mut self.pair.nodes {
                    node.shard.handle_timeout(self.pair.now);
                }
            }
        }
        self.take_updates();
        self.take_notices();
        self.pair.check();
    }

    fn write(&mut self, number: usize, consumer: u32, bytes: u32, close: bool) {
        let (producer, index) = (&mut self.producers[number], consumer as usize);
        if producer.is_ended[index] {
            return;
        }
        let open = producer.builders[index].or_else(|| producer.free.pop().map(|segment| (segment, 0)));
        let Some((segment, fill)) = open else { return };
        let bytes = bytes.min(SEGMENT_BYTES - fill);
        let last = close || fill + bytes == SEGMENT_BYTES;
        let submission = Submission::Data {
            subpartition: SubpartitionIndex(consumer),
            segment,
            offset: fill,
            bytes,
            records: 1,
            last,
        };
        self.pair.nodes[0].shard.handle_submission(producer.id, submission, self.pair.now).unwrap();
        producer.builders[index] = (!last).then_some((segment, fill + bytes));
    }

    fn end(&mut self, number: usize, consumer: u32) {
        let (producer, index) = (&mut self.producers[number], consumer as usize);
        if producer.is_ended[index] || producer.builders[index].is_some() {
            return;
        }
        producer.is_ended[index] = true;
        self.pair.nodes[0].shard.handle_submission(producer.id, end(consumer), self.pair.now).unwrap();
    }

    fn poll(&mut self, number: usize) {
        let (consumer, node) = (&mut self.consumers[number], &mut self.pair.nodes[1]);
        while let Some(delivery) = node.shard.poll_delivery(consumer.id) {
            if let Delivery::Data { channel, segment, offset, bytes, .. } = delivery {
                let found = node.memory.read(consumer.id, segment, offset, bytes);
                let mark = *consumer.marks[channel as usize].get_or_insert(found[0]);
                assert!(found.iter().all(|byte| *byte == mark), "bytes of another producer");
                consumer.held.push((segment, bytes));
            }
        }
    }

    fn give_back(&mut self, number: usize, pick: usize) {
        let consumer = &mut self.consumers[number];
        if consumer.held.is_empty() {
            return;
        }
        let (segment, bytes) = consumer.held.swap_remove(pick % consumer.held.len());
        self.pair.nodes[1].shard.handle_given_back(consumer.id, segment, bytes, self.pair.now).unwrap();
    }

    fn kill_producer(&mut self, number: usize) {
        let failure = Failure::new(FailureCode::ProducerGone, "killed");
        let id = self.producers[number].id;
        self.pair.nodes[0].shard.handle_partition_closed(id, Some(failure), self.pair.now);
        self.producers[number] = self.new_producer(number as u32);
    }

    fn kill_consumer(&mut self, number: usize) {
        let failure = Failure::new(FailureCode::ConsumerGone, "killed");
        let id = self.consumers[number].id;
        self.pair.nodes[1].shard.handle_gate_closed(id, Some(failure), self.pair.now);
        self.pair.nodes[1].memory.remove(id);
        self.consumers[number] = self.new_consumer(number as u32);
    }

    fn lose_link(&mut self, report: bool) {
        let now = self.pair.now;
        for node in &mut self.pair.nodes {
            let (lost, in_flight) = (node.link, node.in_flight.take().is_some());
            if in_flight && report {
                node.shard.handle_sent(lost, 0, now);
            }
            node.shard.handle_link_closed(lost, "lost", now);
            node.shard.check().unwrap();
            if in_flight && !report {
                node.shard.handle_sent(lost, 77, now);
            }
            node.wire.clear();
            node.link = node.shard.handle_link(link_spec("peer"), now);
        }
    }

    fn take_updates(&mut self) {
        let shard = &mut self.pair.nodes[0].shard;
        for producer in &mut self.producers {
            while let Some(update) = shard.poll_update(producer.id) {
                match update {
                    PartitionUpdate::Returned(segment) => {
                        assert!(!producer.free.contains(&segment), "{segment} returned twice");
                        producer.free.push(segment);
                    }
                    PartitionUpdate::Finished => {}
                    PartitionUpdate::Failed(_) => {
                        assert!(!producer.has_failed, "told once");
                        producer.has_failed = true;
                    }
                }
            }
        }
    }

    fn take_notices(&mut self) {
        for node in &mut self.pair.nodes {
            while let Some(notice) = node.shard.poll_notice() {
                let released = match notice {
                    Notice::PartitionReleased(id) => self.partitions.insert(id, true),
                    Notice::GateReleased(id) => self.gates.insert(id, true),
                    _ => continue,
                };
                assert_eq!(released, Some(false), "released once");
            }
        }
    }

    /// A producer that failed has everything back that it closed, when the kernel has let go.
    fn finish(&mut self) {
        self.pair.settle();
        self.take_updates();
        for producer in &self.producers {
            let open = producer.builders.iter().flatten().count();
            if producer.has_failed {
                assert_eq!(producer.free.len() + open, SEGMENTS as usize, "producer {}", producer.mark);
            }
        }
        for number in 0..PRODUCERS as usize {
            self.apply(&Step::KillProducer { producer: number });
        }
        for number in 0..CONSUMERS as usize {
            self.apply(&Step::KillConsumer { consumer: number });
        }
        self.pair.settle();
        self.take_notices();
        let live = |table: Vec<bool>| table.into_iter().filter(|released| !released).count();
        assert_eq!(live(self.partitions.values().copied().collect()), PRODUCERS as usize, "the new ones");
        assert_eq!(live(self.gates.values().copied().collect()), CONSUMERS as usize, "the new ones");
        // The links carry new channels, on indices used before.
        for consumer in 0..CONSUMERS as usize {
            for producer in 0..PRODUCERS {
                self.apply(&Step::Attach { consumer, producer });
            }
        }
        self.pair.settle();
        for stats in self.pair.nodes.iter().flat_map(|node| node.shard.channels(self.pair.now)) {
            assert_eq!(stats.state, "open", "{stats:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    #[test]
    fn kills_and_lost_links_leak_nothing(steps in proptest::collection::vec(step(), 0..300)) {
        let mut world = World::new();
        for step in &steps {
            world.apply(step);
        }
        world.finish();
    }
}
