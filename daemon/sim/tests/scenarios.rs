//! Plans made by hand: what the standard seeds show by chance is shown here for certain.

use weir_flow::debloat::DebloatSpec;
use weir_flow::exchange::{Shape, Strategy};
use weir_flow::limits::Limits;
use weir_sim::faults::Faults;
use weir_sim::plan::{
    ConsumerPlan, ExchangePlan, Plan, ProducerPlan, Records, ShardPlan, Slow, Timing, exchange_name,
};
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
        adaptive: false,
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
        slow: None,
        debloat: None,
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
        continue_without: false,
    });
    Plan {
        limits: Limits { batch_slices_max: 4, ..Limits::new(SEGMENT_BYTES).unwrap() },
        shards: vec![ShardPlan { node: 0, index: 0 }, ShardPlan { node: 1, index: 0 }],
        exchanges: exchanges.collect(),
        faults: Faults { socket_bytes: 10_000, short_write: 300, ..Faults::none() },
        timing: Timing::Calm,
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

/// The numbers 0 to 5 in an order that the seed decides.
fn order(seed: u64) -> Vec<u32> {
    let mut rng = Rng::new(seed);
    let mut left: Vec<u32> = (0..6).collect();
    (0..6).map(|_| left.swap_remove(rng.index(left.len()))).collect()
}

const QUOTA: u32 = 3;

/// One producer that feeds six consumers, none of which reads, from one pool that six full quotas use up, or nearly.
fn six_blocked(seed: u64) -> Plan {
    let mut plan = forward_plan(&[Records::Small], 3_000);
    let exchange = &mut plan.exchanges[0];
    exchange.shape = Shape { consumers: 6, strategy: Strategy::Rebalance, ..exchange.shape };
    exchange.consumers = vec![ConsumerPlan { stopped: true, ..exchange.consumers[0].clone() }; 6];
    // The pool has 6 + 1 + overdraft + spare segments.
    exchange.producers[0].spare_segments = 6 * QUOTA - 7 + (seed % 3) as u32;
    exchange.producers[0].skips = true;
    let overdraft = 1 + (seed % 5) as u32;
    plan.limits = Limits { exclusive: 1, floating: 1, quota: QUOTA, overdraft, ..plan.limits };
    plan
}

#[test]
fn six_channels_blocked_on_their_quota_and_on_the_pool_go_on_in_every_order() {
    let mut on_both = 0;
    for seed in 0..200 {
        let plan = six_blocked(seed);
        let overdraft = plan.limits.overdraft;
        let mut world = world(plan, seed);
        let mut step = 0;
        while step < 4_000 {
            world.step(step).unwrap();
            step += 1;
        }
        let (free, each) = world.pool(0, 0).unwrap();
        // What is kept for the end of a record that was begun does not count.
        let is_blocked = each.iter().all(|(held, available)| *held >= QUOTA && !available);
        on_both += u32::from(is_blocked && free <= overdraft);
        for consumer in order(seed) {
            let read = |world: &World| {
                let records = world.records();
                records.iter().find(|(key, _)| key.consumer == consumer).map(|(_, records)| *records)
            };
            world.release(0, consumer);
            // It gets what was queued for it, whoever is still stopped, and whatever the producer waits for.
            let (before, end) = (read(&world), step + 20_000);
            while read(&world) < before.map(|records| records + 20) {
                assert!(step < end, "seed {seed}: consumer {consumer} gets nothing: {:?}", world.pool(0, 0));
                world.step(step).unwrap();
                step += 1;
            }
        }
        world.settle_now().unwrap();
        assert_eq!(world.records().values().sum::<u64>(), 3_000, "seed {seed}");
    }
    println!("{on_both} of 200 seeds had all six at their quota and the pool used up");
    assert!(on_both >= 50, "only {on_both} of 200 seeds had all six at their quota and the pool used up");
}

#[test]
fn both_directions_full_before_either_reads_and_all_arrives() {
    for seed in 0..50 {
        let mut plan = forward_plan(&[Records::Long; 6], 60);
        for exchange in plan.exchanges.iter_mut().step_by(2) {
            exchange.producers[0].place = 1;
            exchange.consumers[0].place = 0;
        }
        plan.faults.socket_bytes = [700, 2_000, 4_096][seed as usize % 3];
        let socket_bytes = plan.faults.socket_bytes;
        let mut world = world(plan, seed);
        let mut step = 0;
        // All channels are open before the readers stop.
        while world.carried().len() < 6 || world.carried().values().any(|bytes| *bytes == 0) {
            world.step(step).unwrap();
            step += 1;
            assert!(step < 20_000, "seed {seed}: {:?}", world.carried());
        }
        world.stall_readers(true);
        let (mut before, mut full_from) = (world.waiting(), step);
        while step < full_from + 3_000 {
            world.step(step).unwrap();
            step += 1;
            if world.waiting() != before {
                (before, full_from) = (world.waiting(), step);
            }
        }
        let is_full = before.iter().flatten().all(|bytes| *bytes == socket_bytes);
        assert!(is_full, "seed {seed}: {before:?} of {socket_bytes}");
        assert_eq!(world.waiting().len(), 1, "one link carries both directions");
        world.stall_readers(false);
        world.settle_now().unwrap();
        assert_eq!(world.records().values().sum::<u64>(), 360, "seed {seed}");
    }
}

/// Records that each consumer of exchange 0 has read.
fn read_by(world: &World) -> Vec<u64> {
    world.records().into_values().collect()
}

/// Runs until nobody has read anything for some time, and says who has read how much.
fn run_until_still(world: &mut World) -> Vec<u64> {
    let (mut before, mut still_from, mut step) = (read_by(world), 0, 0);
    while step < still_from + 3_000 {
        world.step(step).unwrap();
        step += 1;
        if read_by(world) != before {
            (before, still_from) = (read_by(world), step);
        }
    }
    before
}

#[test]
fn a_stopped_consumer_of_a_broadcast_stops_it_and_the_others_lose_nothing() {
    for seed in 0..40 {
        let mut plan = forward_plan(&[Records::Long], 400);
        let exchange = &mut plan.exchanges[0];
        exchange.shape = Shape { consumers: 3, strategy: Strategy::Broadcast, ..exchange.shape };
        exchange.consumers = vec![exchange.consumers[0].clone(); 3];
        exchange.consumers[1].stopped = true;
        // Some of them behind links of their own.
        plan.shards.push(ShardPlan { node: 2, index: 0 });
        plan.exchanges[0].consumers[2].place = 1 + seed as usize % 2;
        plan.exchanges[0].producers[0].spare_segments = [0, 3, 20][seed as usize % 3];
        let mut world = world(plan, seed);
        let before = run_until_still(&mut world);
        assert_eq!(before[1], 0, "seed {seed}");
        assert!(before[0] > 0 && before[0] < 400, "seed {seed}: it waits for the stopped one: {before:?}");
        assert_eq!(before[0], before[2], "seed {seed}: the others have all that there is: {before:?}");
        let (free, each) = world.pool(0, 0).unwrap();
        assert!(each.len() == 1 && !each[0].1, "seed {seed}: one account, used up: {free} free, {each:?}");
        world.release(0, 1);
        world.settle_now().unwrap();
        assert_eq!(read_by(&world), [400; 3], "seed {seed}");
    }
}

/// One producer of long records for three consumers, of which the second reads nothing.
fn one_of_three_stopped(adaptive: bool, records: u64) -> Plan {
    let mut plan = forward_plan(&[Records::Long], records);
    let exchange = &mut plan.exchanges[0];
    exchange.shape = Shape { consumers: 3, strategy: Strategy::Rebalance, ..exchange.shape };
    exchange.consumers = vec![exchange.consumers[0].clone(); 3];
    exchange.consumers[1].stopped = true;
    exchange.producers[0].adaptive = adaptive;
    plan.limits = Limits { exclusive: 1, floating: 1, quota: QUOTA, overdraft: 2, ..plan.limits };
    plan
}

#[test]
fn beside_a_stopped_consumer_the_others_get_the_rest_with_adaptive_selection_and_next_to_nothing_in_turn() {
    const RECORDS: u64 = 200;
    for seed in 0..40 {
        let mut adaptive = world(one_of_three_stopped(true, RECORDS), seed);
        let read = run_until_still(&mut adaptive);
        // A record has half a segment or more, and the stopped one may have its quota, its overdraft and its credit.
        let bound = 2 * u64::from(QUOTA + 2 + 2);
        assert_eq!(read[1], 0, "seed {seed}");
        assert!(read[0] + read[2] >= RECORDS - bound, "seed {seed}: {read:?}");
        adaptive.release(0, 1);
        adaptive.settle_now().unwrap();
        assert_eq!(read_by(&adaptive).iter().sum::<u64>(), RECORDS, "seed {seed}");

        let mut in_turn = world(one_of_three_stopped(false, RECORDS), seed);
        let read = run_until_still(&mut in_turn);
        assert!(read[0] + read[2] <= 2 * bound, "seed {seed}: it waits for the stopped one: {read:?}");
    }
}

#[test]
fn a_consumer_that_was_left_out_has_its_share_again_once_it_reads() {
    // Between two steps there is so little time that nobody is slow, and so much that whoever stands still is.
    for step_ns in [1_000, 100_000] {
        for seed in 0..4 {
            let plan = Plan { step_ns, ..one_of_three_stopped(true, u64::MAX) };
            let mut world = world(plan, seed);
            let mut steps = 0..40_000;
            let mut run = |world: &mut World, count: usize| {
                steps.by_ref().take(count).for_each(|step| world.step(step).unwrap());
                read_by(world)
            };
            let stopped = run(&mut world, 10_000);
            // More than the turns that it had before it was left out.
            let least = 3 * u64::from(QUOTA);
            assert!(
                stopped[1] == 0 && stopped[0] + stopped[2] > least,
                "seed {seed}, {step_ns} ns: {stopped:?}"
            );
            world.release(0, 1);
            let (from, to) = (run(&mut world, 5_000), run(&mut world, 25_000));
            let gained: Vec<u64> = to.iter().zip(&from).map(|(to, from)| to - from).collect();
            assert!(4 * gained[1] >= gained.iter().sum(), "seed {seed}, {step_ns} ns: {gained:?}");
        }
    }
}

/// What one producer and one consumer, which may be slow in these steps, have in flight on average: before step 20,000,
/// before step 80,000 and before step 100,000, each time over 10,000 steps. And the bytes that they carried by then.
fn with_debloat(debloat: Option<DebloatSpec>, slow: Option<Slow>, seed: u64) -> ([u64; 3], u64) {
    const ENDS: [u64; 3] = [20_000, 80_000, 100_000];
    let mut plan = forward_plan(&[Records::Small], u64::MAX);
    plan.limits.debloat_period_ns = 20_000;
    plan.exchanges[0].consumers[0].slow = slow;
    plan.exchanges[0].consumers[0].debloat = debloat;
    let mut world = world(plan, seed);
    let mut averages = [0; 3];
    for step in 0..ENDS[2] {
        world.step(step).unwrap();
        if let Some(part) = ENDS.iter().position(|end| (end - 10_000..*end).contains(&step)) {
            averages[part] += world.in_flight();
        }
    }
    (averages.map(|sum| sum / 10_000), world.carried().into_values().sum())
}

/// A consumer that becomes slow has a tenth and less in flight of what there is room for, and one that is fast again has
/// more.
#[test]
fn a_slow_consumer_has_little_in_flight() {
    let spec = DebloatSpec { target_ns: 50_000, ..DebloatSpec::default() };
    for seed in 0..5 {
        let slow = Some(Slow { from: 20_000, to: 80_000, per_mille: 3 });
        let (without, _) = with_debloat(None, slow, seed);
        let (with, _) = with_debloat(Some(spec), slow, seed);
        println!("seed {seed}: without {without:?}, with {with:?}");
        assert!(without[1] > 50_000, "seed {seed}: the slow one fills all the room there is: {without:?}");
        assert!(with[1] * 10 <= without[1], "seed {seed}: without {without:?}, with {with:?}");
        assert!(with[2] >= with[1] * 8, "seed {seed}: fast again: without {without:?}, with {with:?}");
    }
}

/// A consumer that keeps up is not held back: it carries what it does without debloating.
#[test]
fn a_fast_consumer_is_not_held_back() {
    let spec = DebloatSpec { target_ns: 20_000_000, ..DebloatSpec::default() };
    let carried = |debloat| (0..8).map(|seed| with_debloat(debloat, None, seed).1).sum::<u64>();
    let (without, with) = (carried(None), carried(Some(spec)));
    println!("without {without}, with {with}");
    assert!(with * 100 >= without * 97, "{with} bytes with it, {without} without");
}
