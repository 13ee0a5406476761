//! Who waits, as the shard tells it: from the send that the ring holds, and from the cells of clients.

use tokio::sync::oneshot;
use weir_flow::exchange::Strategy;
use weir_flow::stall::{Cause, Stalls};
use weir_flow::stats::{ChannelStats, Side};
use weir_ipc::wait_cell::WaitKind;

use super::client::Producer;
use super::world::World;
use crate::io::fake::SendPolicy;
use crate::shard::mailbox::{ShardSnapshot, ToShard};

/// Time of one step of the world.
const STEP_NS: u64 = 100_000;

/// What A answers when it is asked, a step later.
fn snapshot(world: &mut World) -> ShardSnapshot {
    let (reply, mut answer) = oneshot::channel();
    world.a.mail(ToShard::Snapshot { reply });
    world.step();
    let snapshot = answer.try_recv().expect("an answer within a turn");
    assert_eq!(snapshot.at.0, world.now_ns());
    snapshot
}

fn channel(world: &mut World) -> ChannelStats {
    snapshot(world).channels.into_iter().find(|channel| channel.side == Side::Send).expect("a channel")
}

fn times(stalls: &Stalls) -> Vec<(&'static str, u64)> {
    let all = Cause::ALL.into_iter().map(|cause| (cause.as_str(), stalls.totals.ns_of(cause)));
    all.filter(|(_, ns)| *ns > 0).collect()
}

fn submit(producer: &mut Producer, segments: usize) {
    let payload = vec![7; producer.segment_bytes()];
    for _ in 0..segments {
        assert!(producer.submit_segment(&payload));
    }
}

/// Hands over all that is free.
fn submit_all(producer: &mut Producer) {
    let free = producer.free();
    submit(producer, free);
}

fn steps(world: &mut World, count: usize) {
    (0..count).for_each(|_| world.step());
}

#[test]
fn a_send_that_the_ring_holds_is_waited_for_as_the_socket() {
    let mut world = World::new(Strategy::Forward);
    let (mut producer, mut consumer) = world.connect();
    world.settle();
    for socket in world.a.shard.ring.sockets() {
        world.a.shard.ring.set_socket_policy(socket, SendPolicy::Hold);
    }
    // A batch has one whole segment at first, and there is credit for two.
    submit(&mut producer, 2);
    steps(&mut world, 1);
    assert!(world.has_payload_in_flight());
    steps(&mut world, 20);
    let found = channel(&mut world);
    assert_eq!(times(&found.stalls), [("socket", 21 * STEP_NS)]);
    assert_eq!(found.stalls.open.map(|(cause, _)| cause), Some(Cause::Socket));
    for socket in world.a.shard.ring.sockets() {
        world.a.shard.ring.set_socket_policy(socket, SendPolicy::Whole);
    }
    let socket = world.a.shard.ring.sockets()[0];
    let bytes = world.a.shard.ring.in_flight(socket).expect("a batch").bytes;
    world.complete_send_at_a(Ok(bytes));
    world.until("all has arrived", |world| {
        consumer.take();
        consumer.received.len() == 2 * producer.segment_bytes() && world.a.shard.core.check().is_ok()
    });
    let found = channel(&mut world);
    assert_eq!((times(&found.stalls).len(), found.stalls.open), (1, None));
    assert_eq!(found.stalls.totals.count_of(Cause::Socket), 1);
}

#[test]
fn segments_that_the_application_holds_are_waited_for_as_the_consumers() {
    let mut world = World::new(Strategy::Forward);
    let (mut producer, mut consumer) = world.connect();
    submit_all(&mut producer);
    for _ in 0..100 {
        world.step();
        consumer.take_and_hold();
        producer.take_returns();
        if producer.free() > 0 {
            submit(&mut producer, 1);
        }
    }
    let found = channel(&mut world);
    assert_eq!(found.stalls.open.map(|(cause, _)| cause), Some(Cause::Consumer));
    let waited = |found: &ChannelStats| found.stalls.totals.ns_of(Cause::Consumer);
    assert!(waited(&found) > 50 * STEP_NS, "{:?}", found.stalls.totals);
    steps(&mut world, 10);
    let later = channel(&mut world);
    assert_eq!(waited(&later) - waited(&found), 11 * STEP_NS, "all of the time goes there");
    consumer.give_all_back();
    world.settle();
    let ended = channel(&mut world);
    assert!(ended.is_stall_approximate, "no TCP socket tells how long the credit lay unread");
    assert_ne!(ended.stalls.totals.total_count(), later.stalls.totals.total_count());
}

#[test]
fn a_lost_link_is_waited_for_as_the_network() {
    let mut world = World::new(Strategy::Forward);
    let (mut producer, mut consumer) = world.connect();
    world.settle();
    world.reset_a();
    submit(&mut producer, 1);
    steps(&mut world, 30);
    let found = channel(&mut world);
    assert_eq!(found.stalls.open.map(|(cause, _)| cause), Some(Cause::Network), "{found:?}");
    assert!(found.stalls.totals.ns_of(Cause::Network) > 20 * STEP_NS, "{found:?}");
    world.break_wire();
    world.resume_both(1);
    world.until("it has arrived", |_| {
        consumer.take();
        consumer.received.len() == producer.segment_bytes()
    });
}

#[test]
fn what_a_client_waits_for_goes_to_the_cause_of_its_channel_or_to_the_pool() {
    let mut world = World::new(Strategy::Forward);
    let (mut producer, mut consumer) = world.connect();
    submit_all(&mut producer);
    for _ in 0..100 {
        world.step();
        consumer.take_and_hold();
        producer.take_returns();
    }
    submit_all(&mut producer);
    world.settle();
    let before = world.now_ns();
    producer.port.begin_wait(WaitKind::Quota(0), before);
    steps(&mut world, 9);
    let found = channel(&mut world);
    assert_eq!(times(&found.emit), [("consumer", 10 * STEP_NS)]);
    assert_eq!(found.emit.open.map(|(cause, since)| (cause, since.0)), Some((Cause::Consumer, before)));
    // Now it wants a segment of the pool.
    producer.port.begin_wait(WaitKind::Pool, world.now_ns());
    steps(&mut world, 4);
    let partition = snapshot(&mut world).partitions.remove(0);
    assert_eq!(times(&partition.emit), [("pool", 5 * STEP_NS)]);
    producer.port.end_wait(world.now_ns());
    steps(&mut world, 20);
    let snapshot = snapshot(&mut world);
    let (own, common) = (&snapshot.channels[0].emit, &snapshot.partitions[0].emit);
    assert_eq!((times(own), own.open), (vec![("consumer", 10 * STEP_NS)], None));
    assert_eq!((times(common), common.open), (vec![("pool", 5 * STEP_NS)], None));
    assert_eq!((own.totals.total_count(), common.totals.total_count()), (1, 1));
    assert_eq!(own.longest.map(|longest| longest.ns), Some(10 * STEP_NS));
}

/// A wait goes to the cause that held, also if nobody asks before the cause has changed: the shard looks when it serves
/// the partition.
#[test]
fn a_wait_is_divided_when_its_cause_changes() {
    let mut world = World::new(Strategy::Forward);
    let (mut producer, mut consumer) = world.connect();
    submit_all(&mut producer);
    for _ in 0..50 {
        world.step();
        consumer.take_and_hold();
        producer.take_returns();
    }
    submit_all(&mut producer);
    world.settle();
    // As the node does every second. What was before it has no part in the wait.
    channel(&mut world);
    producer.port.begin_wait(WaitKind::Quota(0), world.now_ns());
    steps(&mut world, 10);
    world.reset_a();
    steps(&mut world, 40);
    let found = channel(&mut world);
    let (consumer_ns, network_ns) =
        (found.emit.totals.ns_of(Cause::Consumer), found.emit.totals.ns_of(Cause::Network));
    // It takes a step or two before the loss is known.
    assert!((10 * STEP_NS..=14 * STEP_NS).contains(&consumer_ns), "{:?}", found.emit);
    assert_eq!(consumer_ns + network_ns, 51 * STEP_NS, "{:?}", found.emit);
}

#[test]
fn a_client_that_waits_for_what_there_is_not_is_detached() {
    // It is found when somebody asks,
    let mut world = World::new(Strategy::Forward);
    let (mut producer, _consumer) = world.connect();
    producer.port.begin_wait(WaitKind::Quota(7), world.now_ns());
    assert!(snapshot(&mut world).channels.is_empty(), "its partition is gone");
    let fault = world.fault_of(producer.key().attachment).expect("it was detached");
    assert_eq!(fault, "wait.subpartition is 7; needed: less than 1");
    // and when its partition is served.
    let mut world = World::new(Strategy::Forward);
    let (mut producer, _consumer) = world.connect();
    producer.port.begin_wait(WaitKind::Event(1), world.now_ns());
    submit(&mut producer, 1);
    steps(&mut world, 3);
    let fault = world.fault_of(producer.key().attachment).expect("it was detached");
    assert_eq!(fault, "wait.subpartition is 1; needed: less than 1");
}

/// A clock that is ahead, or a wait from before there was a partition, makes no more time than has passed.
#[test]
fn a_client_that_lies_about_time_is_cut() {
    let mut world = World::new(Strategy::Forward);
    let (mut producer, _consumer) = world.connect();
    let began = world.now_ns();
    producer.port.begin_wait(WaitKind::Pool, 1);
    producer.port.end_wait(u64::MAX);
    steps(&mut world, 5);
    let emit = snapshot(&mut world).partitions.remove(0).emit;
    // The partition came a few steps before `began`.
    assert!(emit.totals.total_ns() <= world.now_ns() - began + 60 * STEP_NS, "{emit:?}");
    producer.port.begin_wait(WaitKind::Quota(0), u64::MAX);
    let found = channel(&mut world);
    assert_eq!(found.emit.totals.total_ns(), 0, "it has not begun");
    assert!(world.fault_of(producer.key().attachment).is_none());
}
