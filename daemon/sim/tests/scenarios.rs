//! Plans made by hand: what the standard seeds show by chance is shown here for certain.

use weir_flow::exchange::{Shape, Strategy};
use weir_flow::limits::Limits;
use weir_sim::faults::Faults;
use weir_sim::plan::{ConsumerPlan, ExchangePlan, Plan, ProducerPlan, Records, ShardPlan, exchange_name};
use weir_sim::rng::Rng;
use weir_sim::world::World;
use weir_sim::{Options, Sabotage};

const SEGMENT_BYTES: u32 = 4096;

/// Forward exchanges of one producer and one consumer each, all over one link.
fn forward_plan(lengths: &[Records], records: u64) -> Plan {
    let shape = Shape {
        producers: 1,
        consumers: 1,
        strategy: Strategy::Forward,
        segment_bytes: SEGMENT_BYTES,
        checksum: false,
    };
    let producer = |lengths| ProducerPlan {
        place: 0,
        attach_at: 0,
        records,
        lengths,
        events: 0,
        skips: false,
        weight: 40,
        dies_at: None,
        lies_at: None,
        spare_segments: 40,
    };
    let consumer = ConsumerPlan {
        place: 1,
        attach_at: 0,
        weight: 40,
        holds: 0,
        pause: None,
        stopped: false,
        dies_at: None,
        lies_at: None,
        ring_entries: 256,
        spare_segments: 0,
    };
    let exchanges = lengths.iter().enumerate().map(|(position, lengths)| ExchangePlan {
        name: exchange_name(position),
        shape,
        producers: vec![producer(*lengths)],
        consumers: vec![consumer.clone()],
    });
    Plan {
        limits: Limits { batch_slices_max: 4, ..Limits::new(SEGMENT_BYTES).unwrap() },
        shards: vec![ShardPlan { node: 0, index: 0 }, ShardPlan { node: 1, index: 0 }],
        exchanges: exchanges.collect(),
        faults: Faults { socket_bytes: 10_000, short_write: 300, ..Faults::none() },
        shared_links: true,
        step_ns: 1_000,
        steps: 20_000,
    }
}

fn world(plan: Plan, seed: u64) -> World {
    let options = Options { seed, steps: plan.steps, trace: false, sabotage: Sabotage::None };
    World::with_plan(plan, Rng::new(seed), options).unwrap()
}

#[test]
fn channels_with_data_and_credit_get_the_same_share_of_a_link() {
    let lengths = [Records::Long, Records::Long, Records::Mixed, Records::Mixed];
    for seed in 0..5 {
        let mut world = world(forward_plan(&lengths, u64::MAX), seed);
        for step in 0..20_000 {
            world.step(step).unwrap();
        }
        let carried: Vec<u64> = world.carried().into_values().collect();
        let (least, most) = (*carried.iter().min().unwrap(), *carried.iter().max().unwrap());
        assert!(carried.len() == 4 && least > 60_000, "seed {seed}: {carried:?}");
        assert!(least * 10 >= most * 8, "seed {seed}: {carried:?}");
    }
}

#[test]
fn a_stopped_consumer_takes_nothing_from_the_others_of_its_link() {
    let lengths = [Records::Long; 6];
    let carried = |stopped: bool| -> Vec<u64> {
        let mut plan = forward_plan(&lengths, u64::MAX);
        plan.exchanges[0].consumers[0].stopped = stopped;
        let mut world = world(plan, 7);
        for step in 0..20_000 {
            world.step(step).unwrap();
        }
        world.carried().into_values().collect()
    };
    let (running, stopped) = (carried(false), carried(true));
    let limits = Limits::default();
    let most = u64::from((limits.exclusive + limits.floating) * SEGMENT_BYTES);
    assert!(stopped[0] <= most, "the stopped one has its credit only: {stopped:?}");
    let (before, after) = (running[1..].iter().sum::<u64>(), stopped[1..].iter().sum::<u64>());
    assert!(after >= before, "all running {running:?}, one stopped {stopped:?}");
}

#[test]
fn a_stopped_consumer_delays_nobody_and_gets_everything_in_the_end() {
    for seed in 0..20 {
        let mut plan = forward_plan(&[Records::Mixed; 5], 100);
        plan.steps = 4_000;
        plan.exchanges[2].consumers[0].stopped = true;
        world(plan, seed).run().unwrap();
    }
}
