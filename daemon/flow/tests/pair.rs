//! Two shards, a byte stream cut anywhere between them, sockets that take what they like, clients that hold what they
//! like. Whatever happens: `check()` holds after every step, everything arrives once and in order, and at the end
//! everything is free.

mod harness;

use std::collections::BTreeSet;

use harness::clients::{Consumer, Producer};
use harness::{Pair, SEGMENT_BYTES, any_life, limits, shape};
use proptest::prelude::*;
use weir_flow::debloat::DebloatSpec;
use weir_flow::exchange::{Shape, Strategy as ShipStrategy};
use weir_flow::ids::{SubpartitionIndex, Time};
use weir_flow::limits::Limits;
use weir_flow::shard::Notice;
use weir_flow::stats::Side;

const PRODUCERS: u32 = 2;
const CONSUMERS: u32 = 3;
const SEGMENTS: u32 = 12;

/// Nobody lies.
const TRUST: [bool; PRODUCERS as usize] = [true; PRODUCERS as usize];

struct World {
    pair: Pair,
    producers: Vec<Producer>,
    consumers: Vec<Consumer>,
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
        Self::wanting(strategy, [None; CONSUMERS as usize])
    }

    /// With what each consumer wants in flight, looked at once a millisecond.
    fn wanting(strategy: ShipStrategy, wants: [Option<DebloatSpec>; CONSUMERS as usize]) -> Self {
        let mut pair = Pair::new(Limits { debloat_period_ns: 1_000_000, ..limits() });
        let shape = Shape { strategy, ..shape(PRODUCERS, CONSUMERS) };
        let [a, b] = &mut pair.nodes;
        let producers = (0..PRODUCERS).map(|index| Producer::new(0, a, "x", index, shape, SEGMENTS, false));
        let producers = producers.collect();
        let consumers = (0..CONSUMERS).zip(wants);
        let consumers = consumers.map(|(index, want)| Consumer::wanting(1, b, "x", index, shape, 3, want));
        let consumers = consumers.collect();
        Self { pair, producers, consumers }
    }

    fn apply(&mut self, step: &Step) {
        let Self { pair, producers, consumers } = self;
        let now = pair.now;
        match *step {
            Step::Attach { consumer, producer } => {
                let (gate, node) = (consumers[consumer as usize].id, &mut pair.nodes[1]);
                node.shard.handle_producer(gate, any_life(producer), node.link, now);
            }
            Step::Write { producer, consumer, bytes, close } => {
                let producer = &mut producers[producer as usize];
                producer.write(&mut pair.nodes[0], consumer % producer.addresses, bytes, close, now);
            }
            Step::Event { producer, consumer, priority } => {
                let producer = &mut producers[producer as usize];
                producer.event(&mut pair.nodes[0], consumer % producer.addresses, priority, now);
            }
            Step::End { producer, consumer } => {
                let producer = &mut producers[producer as usize];
                producer.end(&mut pair.nodes[0], consumer % producer.addresses, now);
            }
            Step::Plan { node } => {
                pair.nodes[node].plan(now);
            }
            Step::Send { node, bytes } => {
                pair.send(node, bytes);
            }
            Step::Receive { node, bytes } => {
                pair.receive(node, bytes);
            }
            Step::Poll { consumer, count } => self.poll(consumer, count),
            Step::GiveBack { consumer, pick, share } => {
                consumers[consumer as usize].give_back(&mut pair.nodes[1], pick, share, &TRUST, now);
            }
            Step::ConsumeEvent { consumer } => {
                consumers[consumer as usize].consume_event(&mut pair.nodes[1], now);
            }
            Step::Lose { node } => pair.lose(node),
            Step::Resume => pair.resume(),
            Step::Time { ns } => {
                pair.now = now.after_ns(ns);
                for node in &mut pair.nodes {
                    node.shard.handle_timeout(pair.now);
                }
            }
        }
        self.take_updates();
        self.pair.check();
    }

    fn take_updates(&mut self) {
        let mut listed = Vec::new();
        self.pair.nodes[0].shard.take_partitions(&mut listed);
        for id in listed {
            let producer = self.producers.iter_mut().find(|producer| producer.id == id).unwrap();
            let failed = producer.take_updates(&mut self.pair.nodes[0], &mut BTreeSet::new());
            assert!(!failed, "partition {id} failed");
        }
    }

    fn poll(&mut self, consumer: u32, count: usize) {
        let consumer = &mut self.consumers[consumer as usize];
        let failed = consumer.poll(&mut self.pair.nodes[1], count, &TRUST, &mut BTreeSet::new());
        assert!(!failed, "a channel failed");
    }

    /// Reads and gives back everything that has come for a consumer.
    fn read_on(&mut self, consumer: u32) {
        let now = self.pair.now;
        let consumer = &mut self.consumers[consumer as usize];
        let failed = consumer.read_on(&mut self.pair.nodes[1], &TRUST, &mut BTreeSet::new(), now);
        assert!(!failed, "a channel failed");
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
            (0..CONSUMERS).for_each(|consumer| self.read_on(consumer));
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
            assert!(producer.is_finished, "a producer is not finished");
            self.consumers.iter().for_each(|consumer| producer.compare(consumer, true));
        }
    }

    fn assert_all_free(&mut self) {
        for producer in &mut self.producers {
            producer.assert_all_free();
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

fn want() -> impl Strategy<Value = Option<DebloatSpec>> {
    let most = prop_oneof![Just(0_u64), 1..10_000_u64, 10_000..100_000_u64, Just(u64::MAX)];
    let spec = (1..50_u64, 0..5_000_u64, most).prop_map(|(target_ms, bytes_min, bytes_max)| DebloatSpec {
        target_ns: target_ms * 1_000_000,
        bytes_min,
        bytes_max,
    });
    proptest::option::weighted(0.8, spec)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(250) })]

    /// The same with consumers that want less in flight than there is room for, whatever that is and however often it
    /// changes, over sockets that break: nothing is lost or left over, and no channel stays without a segment.
    #[test]
    fn less_in_flight_loses_nothing_and_stops_nobody(
        steps in proptest::collection::vec(step(), 0..400),
        wants in [want(), want(), want()],
        is_shared: bool,
    ) {
        let strategy = if is_shared { ShipStrategy::Broadcast } else { ShipStrategy::Rebalance };
        let mut world = World::wanting(strategy, wants);
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
        world.read_on(1);
        assert!(world.consumers[0].held.len() <= 5, "round {round}: two exclusive and three floating");
    }
    let segment = u64::from(SEGMENT_BYTES);
    assert_eq!(world.consumers[0].position[0], 5 * segment, "E = 2 and 3 floating");
    assert!(world.consumers[1].position[0] >= 190 * segment, "{} bytes", world.consumers[1].position[0]);
    let stats: Vec<_> = world.pair.nodes[0].shard.channels(world.pair.now).collect();
    assert_eq!((stats[0].credit, stats[0].backlog), (0, 3));
    world.finish();
}
