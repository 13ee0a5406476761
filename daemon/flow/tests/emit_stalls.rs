//! Emit stalls: what a producer's client waits for, from claims that are believed as far as time allows. And the pools
//! whose segments it waits for.

mod harness;

use harness::{Lone, data, partition_spec, shape};
use proptest::prelude::*;
use weir_flow::exchange::{Shape, Strategy as ShipStrategy};
use weir_flow::ids::{PartitionId, SubpartitionIndex, Time};
use weir_flow::shard::PoolShares;
use weir_flow::stall::emit::{EmitClaims, WaitCount, WaitKind};
use weir_flow::stall::{Cause, Stalls};
use weir_flow::stats::{GateStats, PartitionStats, time_to_consume_ns};

const KIB: u32 = 1024;

/// A producer with this many consumers, of which the first ones are connected with no credit.
fn producer(shape: Shape, connected: u32) -> (Lone, PartitionId) {
    let mut lone = Lone::new();
    let pool = PoolShares { quota: 4, overdraft: 2, retention: 3 };
    let spec = weir_flow::shard::PartitionSpec { pool, ..partition_spec(shape, 0, 16) };
    let partition = lone.shard.handle_partition(spec, lone.now);
    for consumer in 0..connected {
        lone.open_channel(consumer, shape, 0, consumer, 0);
    }
    lone.frames();
    (lone, partition)
}

fn claims(kind: WaitKind, since: u64) -> EmitClaims {
    EmitClaims { open: Some((kind, Time(since))), ..EmitClaims::default() }
}

fn look(lone: &mut Lone, partition: PartitionId, builder: u32, claims: &EmitClaims) {
    lone.shard.handle_emit_claims(partition, SubpartitionIndex(builder), claims, lone.now);
    lone.check();
}

fn quota(builder: u32) -> WaitKind {
    WaitKind::Quota(SubpartitionIndex(builder))
}

fn at(lone: &mut Lone, ns: u64) {
    lone.now = Time(ns);
}

fn times(stalls: &Stalls) -> Vec<(&'static str, u64)> {
    let all = Cause::ALL.into_iter().map(|cause| (cause.as_str(), stalls.totals.ns_of(cause)));
    all.filter(|(_, ns)| *ns > 0).collect()
}

fn of_channel(lone: &Lone, channel: usize) -> Stalls {
    lone.shard.channels(lone.now).nth(channel).unwrap().emit
}

fn common(lone: &Lone) -> Stalls {
    lone.shard.partitions(lone.now).next().unwrap().emit
}

#[test]
fn a_wait_at_the_quota_is_what_its_channel_waits_for() {
    let (mut lone, partition) = producer(shape(1, 2), 2);
    lone.submit(partition, data(0, 0, 0, 4 * KIB, true));
    lone.submit(partition, data(1, 1, 0, 4 * KIB, true));
    lone.frames();
    look(&mut lone, partition, 0, &EmitClaims::default());
    at(&mut lone, 1_000);
    look(&mut lone, partition, 0, &claims(quota(0), 200));
    assert_eq!(times(&of_channel(&lone, 0)), [("consumer", 800)]);
    assert_eq!(of_channel(&lone, 0).open, Some((Cause::Consumer, Time(200))));
    assert_eq!(lone.shard.waiting_builder(partition), Some(SubpartitionIndex(0)));
    // The link is lost: from here on it is the network, for both.
    lone.shard.handle_link_lost(lone.link, "reset", lone.now);
    assert_eq!(of_channel(&lone, 0).open, Some((Cause::Network, Time(200))), "as of this moment");
    at(&mut lone, 5_000);
    let ended = WaitCount { ns: 4_800, count: 1 };
    look(&mut lone, partition, 0, &EmitClaims { quota: ended, ..EmitClaims::default() });
    let found = of_channel(&lone, 0);
    assert_eq!(times(&found), [("consumer", 800), ("network", 4_000)]);
    assert_eq!((found.totals.count_of(Cause::Network), found.totals.total_count(), found.open), (1, 1, None));
    assert_eq!((found.last.unwrap().ns, found.longest.unwrap().cause), (4_800, Cause::Network));
    assert_eq!((times(&of_channel(&lone, 1)), times(&common(&lone))), (vec![], vec![]));

    // The shard has it under that cause, also when the partition has gone.
    let past = |lone: &Lone| *lone.shard.past_emit_stalls();
    let lengths = |lone: &Lone| past(lone).lengths.of(Cause::Network);
    assert_eq!((lengths(&lone).buckets[3], lengths(&lone).total_count()), (1, 1), "4,096 to 8,191 ns");
    assert_eq!(past(&lone).gone.total_ns(), 0);
    lone.shard.handle_partition_closed(partition, None, lone.now);
    lone.frames();
    lone.check();
    assert!(lone.shard.channels(lone.now).next().is_none());
    let gone = past(&lone).gone;
    assert_eq!((gone.ns_of(Cause::Consumer), gone.ns_of(Cause::Network)), (800, 4_000));
    assert_eq!((gone.count_of(Cause::Network), lengths(&lone).total_count()), (1, 1));
}

/// Time at the quota in which the channel waited for nothing is the shard's: it had not told the client.
#[test]
fn a_wait_for_a_channel_that_waits_for_nothing_is_the_shards() {
    let (mut lone, partition) = producer(shape(1, 1), 1);
    at(&mut lone, 500);
    look(&mut lone, partition, 0, &claims(quota(0), 0));
    assert_eq!(times(&of_channel(&lone, 0)), [("shard", 500)]);
}

#[test]
fn other_waits_have_causes_of_their_own() {
    let (mut lone, partition) = producer(shape(1, 1), 1);
    lone.submit(partition, data(0, 0, 0, 4 * KIB, true));
    lone.frames();
    at(&mut lone, 100);
    look(&mut lone, partition, 0, &claims(WaitKind::Pool, 0));
    let pool = WaitCount { ns: 100, count: 1 };
    at(&mut lone, 150);
    look(&mut lone, partition, 0, &EmitClaims { pool, ..claims(WaitKind::Ring, 100) });
    assert_eq!(common(&lone).open, Some((Cause::Shard, Time(100))));
    let ring = WaitCount { ns: 50, count: 1 };
    at(&mut lone, 170);
    let event = WaitKind::Event(SubpartitionIndex(0));
    look(&mut lone, partition, 0, &EmitClaims { pool, ring, ..claims(event, 150) });
    assert_eq!(times(&common(&lone)), [("shard", 50), ("pool", 100)]);
    assert_eq!((times(&of_channel(&lone, 0)), common(&lone).totals.total_count()), (vec![("event", 20)], 2));
}

/// A wait for any of several goes by the one with the least queued: it will have room first.
#[test]
fn a_wait_for_any_goes_by_the_channel_that_will_have_room_first() {
    let (mut lone, partition) = producer(shape(1, 2), 1);
    for segment in 0..3 {
        lone.submit(partition, data(1, segment, 0, 4 * KIB, true));
    }
    lone.submit(partition, data(0, 3, 0, 4 * KIB, true));
    lone.frames();
    at(&mut lone, 10);
    look(&mut lone, partition, 0, &claims(WaitKind::Any, 10));
    // Channel 0 has the least. Its socket is lost; channel 1 has no consumer yet.
    lone.shard.handle_link_lost(lone.link, "reset", lone.now);
    at(&mut lone, 110);
    look(&mut lone, partition, 0, &claims(WaitKind::Any, 10));
    assert_eq!(times(&common(&lone)), [("network", 100)]);
    // The other way round.
    let (mut lone, partition) = producer(shape(1, 2), 1);
    for segment in 0..3 {
        lone.submit(partition, data(0, segment, 0, 4 * KIB, true));
    }
    lone.submit(partition, data(1, 3, 0, 4 * KIB, true));
    lone.frames();
    at(&mut lone, 10);
    look(&mut lone, partition, 0, &claims(WaitKind::Any, 10));
    lone.shard.handle_link_lost(lone.link, "reset", lone.now);
    at(&mut lone, 110);
    look(&mut lone, partition, 0, &claims(WaitKind::Any, 10));
    assert_eq!(times(&common(&lone)), [("consumer", 100)]);
}

/// With `broadcast` the wait goes by the consumer that is furthest behind, and belongs to the partition.
#[test]
fn a_broadcast_waits_for_the_consumer_that_is_furthest_behind() {
    let shape = Shape { strategy: ShipStrategy::Broadcast, ..shape(1, 2) };
    let (mut lone, partition) = producer(shape, 2);
    lone.submit(partition, data(0, 0, 0, 4 * KIB, true));
    lone.grant(0, 1, 0);
    lone.frames();
    lone.grant(0, 1, 1);
    lone.submit(partition, data(0, 1, 0, 4 * KIB, true));
    lone.grant(0, 2, 1);
    lone.frames();
    // Consumer 0 has everything; consumer 1 has no credit.
    at(&mut lone, 10);
    look(&mut lone, partition, 0, &claims(quota(0), 10));
    at(&mut lone, 110);
    look(&mut lone, partition, 0, &claims(quota(0), 10));
    assert_eq!(times(&common(&lone)), [("consumer", 100)]);
    assert_eq!(common(&lone).open, Some((Cause::Consumer, Time(10))));
    assert_eq!(times(&of_channel(&lone, 0)), []);
}

/// A client whose clock is read a little later than the shard's loses nothing; it is counted when the time has passed.
#[test]
fn what_is_ahead_of_the_clock_is_counted_later() {
    let (mut lone, partition) = producer(shape(1, 1), 1);
    at(&mut lone, 100);
    let pool = WaitCount { ns: 130, count: 1 };
    look(&mut lone, partition, 0, &EmitClaims { pool, ..EmitClaims::default() });
    assert_eq!(times(&common(&lone)), [("pool", 100)]);
    at(&mut lone, 200);
    look(&mut lone, partition, 0, &EmitClaims { pool, ..EmitClaims::default() });
    assert_eq!(times(&common(&lone)), [("pool", 130)]);
    // A wait that begins in the future has not begun.
    look(&mut lone, partition, 0, &EmitClaims { pool, ..claims(WaitKind::Pool, 900) });
    at(&mut lone, 300);
    look(&mut lone, partition, 0, &EmitClaims { pool, ..claims(WaitKind::Pool, 900) });
    assert_eq!(times(&common(&lone)), [("pool", 130)]);
}

#[test]
fn a_client_that_lies_is_cut_to_the_time_that_passed() {
    let (mut lone, partition) = producer(shape(1, 1), 1);
    let most = WaitCount { ns: u64::MAX, count: u64::MAX };
    let open = Some((WaitKind::Pool, Time(0)));
    let lie = EmitClaims { open, pool: most, any: most, ring: most, quota: most, event: most };
    at(&mut lone, 1_000_000);
    look(&mut lone, partition, 0, &lie);
    let sum = |lone: &Lone| common(lone).totals.total_ns() + of_channel(lone, 0).totals.total_ns();
    assert_eq!(sum(&lone), 1_000_000);
    assert!(common(&lone).totals.total_count() <= 3 * 2_001, "{:?}", common(&lone).totals.count);
    // Less than before, and the same lie again: no more than the time in between.
    at(&mut lone, 1_000_100);
    look(&mut lone, partition, 0, &EmitClaims::default());
    assert_eq!(sum(&lone), 1_000_000);
    at(&mut lone, 1_000_150);
    look(&mut lone, partition, 0, &lie);
    assert!(sum(&lone) <= 1_000_150);
    // All at once what it has not waited before.
    let (mut honest, its) = producer(shape(1, 1), 1);
    at(&mut honest, 1_000_000);
    look(&mut honest, its, 0, &EmitClaims::default());
    at(&mut honest, 1_000_100);
    look(
        &mut honest,
        its,
        0,
        &EmitClaims { pool: WaitCount { ns: 900_000, count: 1 }, ..EmitClaims::default() },
    );
    assert_eq!(sum(&honest), 100);
    // A builder that there is not, and a partition that there is not.
    look(&mut lone, partition, 7, &lie);
    look(&mut lone, PartitionId(9), 0, &lie);
}

fn count() -> impl Strategy<Value = WaitCount> {
    let ns = prop_oneof![Just(0), 0..5_000_u64, any::<u64>()];
    (ns, prop_oneof![0..10_u64, any::<u64>()]).prop_map(|(ns, count)| WaitCount { ns, count })
}

fn any_claims() -> impl Strategy<Value = EmitClaims> {
    let kind = prop_oneof![
        Just(WaitKind::Pool),
        Just(WaitKind::Any),
        Just(WaitKind::Ring),
        (0..3_u32).prop_map(quota),
        (0..3_u32).prop_map(|builder| WaitKind::Event(SubpartitionIndex(builder))),
    ];
    let open = proptest::option::of((kind, prop_oneof![0..10_000_u64, any::<u64>()]));
    (open, count(), count(), count(), count(), count()).prop_map(|(open, pool, any, ring, quota, event)| {
        let open = open.map(|(kind, since)| (kind, Time(since)));
        EmitClaims { open, pool, any, ring, quota, event }
    })
}

proptest! {
    /// Whatever a client claims: no more time than has passed, and none is ever taken back.
    #[test]
    fn no_claim_makes_more_time_than_has_passed(
        steps in proptest::collection::vec((0..2_000_u64, 0..3_u32, any_claims()), 1..60),
    ) {
        let (mut lone, partition) = producer(shape(1, 2), 1);
        lone.submit(partition, data(0, 0, 0, 4 * KIB, true));
        lone.frames();
        let mut before = 0;
        for (ns, builder, claims) in steps {
            lone.now = lone.now.after_ns(ns);
            look(&mut lone, partition, builder, &claims);
            let stalls = [of_channel(&lone, 0), of_channel(&lone, 1), common(&lone)];
            let sum: u64 = stalls.iter().map(|stalls| stalls.totals.total_ns()).sum();
            prop_assert!(sum <= lone.now.0, "{} of {}", sum, lone.now);
            prop_assert!(sum >= before);
            before = sum;
            for stalls in stalls {
                prop_assert_eq!(stalls.totals.total_count(), stalls.lengths.total_count());
                prop_assert!(stalls.longest.is_none_or(|longest| longest.ns <= lone.now.0));
            }
        }
    }

    /// An honest client is believed to the nanosecond, however often the shard looks.
    #[test]
    fn honest_waits_are_counted_whole(
        waits in proptest::collection::vec((1..300_u64, 1..300_u64, 0..3_u32), 1..60),
    ) {
        let (mut lone, partition) = producer(shape(1, 1), 1);
        let (mut pool, mut waited) = (WaitCount::default(), 0);
        for (works, waits, looks) in waits {
            lone.now = lone.now.after_ns(works);
            let since = lone.now.0;
            for _ in 0..looks {
                lone.now = lone.now.after_ns(waits / 4);
                look(&mut lone, partition, 0, &EmitClaims { pool, ..claims(WaitKind::Pool, since) });
            }
            lone.now = Time(since + waits);
            waited += waits;
            pool = WaitCount { ns: pool.ns + waits, count: pool.count + 1 };
            look(&mut lone, partition, 0, &EmitClaims { pool, ..EmitClaims::default() });
            let found = common(&lone);
            prop_assert_eq!((found.totals.ns_of(Cause::Pool), found.totals.total_ns()), (waited, waited));
            prop_assert_eq!(found.totals.count_of(Cause::Pool), pool.count);
            prop_assert_eq!(found.last.unwrap().ns, waits);
        }
    }
}

/// The pool of a partition: what is sent fills the retention first; overdraft makes it more than full.
#[test]
fn the_use_of_a_partitions_pool_is_what_its_columns_say() {
    let (mut lone, partition) = producer(shape(1, 2), 2);
    let stats = |lone: &Lone| lone.shard.partitions(lone.now).next().unwrap();
    let found = stats(&lone);
    assert_eq!((found.segments, found.pool(), found.pool_used(), found.quota), (16, 11, 0, 4));
    assert_eq!((found.pool_usage(), found.quota_usage()), (0.0, 0.0));
    // Three queued and one open at subpartition 0, one queued at 1.
    for segment in 0..3 {
        lone.submit(partition, data(0, segment, 0, 4 * KIB, true));
    }
    lone.submit(partition, data(0, 3, 0, KIB, false));
    lone.submit(partition, data(1, 4, 0, 4 * KIB, true));
    let found = stats(&lone);
    assert_eq!(
        (found.open, found.queued, found.held_max, found.queued_bytes),
        (1, 4, 4, u64::from(17 * KIB))
    );
    assert_eq!((found.pool_used(), found.quota_usage()), (5, 1.0));
    assert!((found.pool_usage() - 5.0 / 11.0).abs() < 1e-12);
    // Three of them are sent: the retention covers them.
    lone.grant(0, 3, 0);
    lone.frames();
    let found = stats(&lone);
    assert_eq!((found.open, found.queued, found.unacked, found.pool_used()), (1, 1, 3, 2));
    lone.grant(1, 1, 0);
    lone.frames();
    let found = stats(&lone);
    assert_eq!((found.unacked, found.pool_used()), (4, 2), "one more than the retention covers");
    let over = PartitionStats { open: 1, queued: 12, unacked: 0, held_max: 6, ..found };
    assert!(over.pool_usage() > 1.0 && over.quota_usage() > 1.0);
    let none = PartitionStats { segments: 3, quota: 0, ..over };
    assert_eq!((none.pool_usage(), none.quota_usage()), (0.0, 0.0), "no NaN");
}

/// The pool of a gate: exclusive segments are used before floating ones, and what is granted is not used.
#[test]
fn the_use_of_a_gates_pool_is_told_by_kind() {
    let mut lone = Lone::new();
    let gate = lone.open_gate(2, 7, 2);
    let stats = |lone: &Lone| lone.shard.gates(lone.now).next().unwrap();
    let found = stats(&lone);
    assert_eq!((found.exclusive, found.floating, found.ready), (4, 3, 4));
    assert_eq!((found.pool_usage(), found.exclusive_usage(), found.floating_usage()), (0.0, 0.0, 0.0));
    let payload = vec![1; 4 * KIB as usize];
    for sequence in 0..3 {
        lone.receive_data(0, sequence, weir_flow::wire::Flags::OPEN, 2, &payload);
        lone.frames();
    }
    let found = stats(&lone);
    assert_eq!((found.exclusive_used, found.floating_used), (2, 1));
    assert_eq!((found.exclusive_usage(), found.pool_usage()), (0.5, 3.0 / 7.0));
    assert_eq!((found.queued_bytes, found.buffered_bytes), (u64::from(12 * KIB), u64::from(12 * KIB)));
    let deliveries = lone.deliveries(gate);
    let weir_flow::shard::Delivery::Data { segment, bytes, .. } = deliveries[0] else {
        panic!("{deliveries:?}")
    };
    lone.shard.handle_given_back(gate, segment, bytes, lone.now).unwrap();
    let found = stats(&lone);
    assert_eq!((found.queued_bytes, found.buffered_bytes), (0, u64::from(8 * KIB)));
    assert_eq!(
        (found.consumed_bytes_total, found.exclusive_used, found.floating_used),
        (u64::from(4 * KIB), 2, 0)
    );
    let none = GateStats { exclusive: 0, floating: 0, ..found };
    assert_eq!((none.pool_usage(), none.exclusive_usage(), none.floating_usage()), (0.0, 0.0, 0.0), "no NaN");
}

#[test]
fn the_time_to_consume_what_is_buffered_follows_the_rate() {
    assert_eq!(time_to_consume_ns(0, 0, 0), Some(0), "nothing is buffered");
    assert_eq!(time_to_consume_ns(1_000, 500, 1_000_000_000), Some(2_000_000_000));
    assert_eq!(time_to_consume_ns(1, 3, 10), Some(3));
    assert_eq!(time_to_consume_ns(1_000, 0, 1_000_000_000), None, "there is no telling");
    assert_eq!(time_to_consume_ns(1_000, 500, 0), None);
    assert_eq!(time_to_consume_ns(u64::MAX, 1, u64::MAX), Some(u64::MAX));
}
