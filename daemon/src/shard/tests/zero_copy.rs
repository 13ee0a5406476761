//! Zero-copy sends through the loop: memory that the kernel reads late is neither used anew nor given up, and what the
//! kernel says of each send decides how the next ones go. The ring compares what each batch holds when it is let go of with
//! what was read of it.

use weir_flow::exchange::Strategy;
use weir_flow::failure::{Failure, FailureCode};

use super::client::{Consumer, Producer};
use super::world::World;
use super::{transfer, transfer_behind};
use crate::io::Errno;
use crate::io::fake::{NoticePolicy, SendPolicy};
use crate::link::zero_copy::{OUTSTANDING_MAX, ZeroCopyMode, ZeroCopyState};

fn world(mode: ZeroCopyMode, notices: NoticePolicy) -> World {
    let mut world = World::new(Strategy::Forward);
    world.set_zero_copy(mode, notices);
    world
}

/// How the link of A sends.
fn state(world: &World) -> ZeroCopyState {
    world.a.shard.zero_copy_report().links.into_values().next().expect("a link")
}

/// Submits whole segments until none is free, each different; returns what they hold.
fn submit_all(producer: &mut Producer, salt: usize) -> Vec<u8> {
    let mut sent = Vec::new();
    loop {
        let payload: Vec<u8> =
            (0..producer.segment_bytes()).map(|at| (at * 7 + salt + producer.free()) as u8).collect();
        if !producer.submit_segment(&payload) {
            return sent;
        }
        sent.extend(payload);
    }
}

/// Lets go of one held batch of A, chosen by `seed`.
fn let_go_of_one(world: &mut World, seed: usize) {
    let held = world.a.shard.ring.held();
    if let Some(hold) = held.get(seed % held.len().max(1)) {
        world.a.shard.ring.let_go(*hold, false);
    }
}

fn arrive(world: &mut World, producer: &mut Producer, consumer: &mut Consumer, bytes: usize) {
    world.until("all of it has arrived", |_| {
        producer.take_returns();
        consumer.take();
        consumer.received.len() == bytes
    });
    world.settle();
    producer.take_returns();
}

#[test]
fn notices_that_come_late_in_any_order_and_short_sends_carry_everything() {
    for seed in 1..13_usize {
        let mut world = world(ZeroCopyMode::Always, NoticePolicy::Late);
        let (mut producer, mut consumer) = world.connect();
        world.shuffle(seed as u64);
        world.set_send_policy(if seed % 3 == 0 { SendPolicy::Short(20_000) } else { SendPolicy::Whole });
        let mut sent = Vec::new();
        for round in 0..120 {
            sent.extend(submit_all(&mut producer, seed + 11 * round));
            for step in 0..3 {
                world.step();
                producer.take_returns();
                consumer.take();
                if (round + step) % 2 == 0 {
                    let_go_of_one(&mut world, round * 7 + step * 3 + seed);
                }
            }
        }
        assert!(state(&world).counts.sent > 40, "{:?}", state(&world));
        world.set_notices(NoticePolicy::Soon(false));
        transfer_behind(&mut world, &mut producer, &mut consumer, 20, &sent);
        world.settle();
        assert_eq!(state(&world).outstanding, 0);
    }
}

#[test]
fn sending_does_not_wait_for_notices_and_memory_does() {
    let mut world = world(ZeroCopyMode::Always, NoticePolicy::Late);
    let (mut producer, mut consumer) = world.connect();
    let sent = submit_all(&mut producer, 1);
    arrive(&mut world, &mut producer, &mut consumer, sent.len());
    let held = world.a.shard.ring.held();
    assert!(held.len() > 1, "several batches went before any notice");
    assert_eq!(producer.free(), 0, "all of it was acknowledged, and none is free");
    for hold in held {
        let before = producer.free();
        world.a.shard.ring.let_go(hold, false);
        world.settle();
        producer.take_returns();
        assert!(producer.free() > before, "each notice frees what was in its batch");
    }
    assert_eq!(producer.free(), producer.segments());
}

#[test]
fn a_link_that_is_lost_and_resumed_while_notices_are_pending_loses_nothing() {
    for seed in 0..8_usize {
        let mut world = world(ZeroCopyMode::Always, NoticePolicy::Late);
        let (mut producer, mut consumer) = world.connect();
        let mut sent = Vec::new();
        for round in 0..10 {
            sent.extend(submit_all(&mut producer, seed + round));
            for _ in 0..(seed + round) % 5 {
                world.step();
                producer.take_returns();
                consumer.take();
            }
            let_go_of_one(&mut world, round + seed);
            world.step();
            let pending = world.a.shard.ring.held().len();
            world.reset_a();
            world.break_wire();
            world.resume_both(round + 1);
            assert!(world.a.shard.ring.held().len() >= pending, "closing a socket lets go of nothing");
        }
        world.set_notices(NoticePolicy::Soon(true));
        transfer_behind(&mut world, &mut producer, &mut consumer, 10, &sent);
        world.settle();
        assert_eq!((world.closed_links(), state(&world).outstanding), (0, 0));
    }
}

#[test]
fn a_region_whose_client_is_gone_stays_until_the_kernel_has_let_go_of_it() {
    for is_link_lost in [false, true] {
        let mut world = world(ZeroCopyMode::Always, NoticePolicy::Late);
        let (mut producer, mut consumer) = world.connect();
        let region = std::sync::Arc::downgrade(&world.region_of(&producer));
        let sent = submit_all(&mut producer, 3);
        arrive(&mut world, &mut producer, &mut consumer, sent.len());
        world.drop_clients(&Failure::new(FailureCode::ClientFault, "a test"));
        if is_link_lost {
            world.end_streams();
        }
        world.settle();
        let held = world.a.shard.ring.held();
        let (last, others) = held.split_last().expect("batches are held");
        for hold in others {
            world.a.shard.ring.let_go(*hold, false);
        }
        world.settle();
        assert!(!world.is_released_at_a(), "one batch still has memory of it");
        assert!(region.upgrade().is_some());
        world.a.shard.ring.let_go(*last, false);
        world.until("it is released", World::is_released_at_a);
        assert!(region.upgrade().is_none(), "nobody has it");
        assert_eq!(world.a.shard.ring.times_forgotten(&region), 1, "the ring was told so, once");
    }
}

#[test]
fn a_hundred_links_torn_down_with_sends_in_flight_leave_nothing() {
    for seed in 0..100_usize {
        let mut world = world(ZeroCopyMode::Always, NoticePolicy::Late);
        let (mut producer, mut consumer) = world.connect();
        world.shuffle(seed as u64);
        let region = std::sync::Arc::downgrade(&world.region_of(&producer));
        if seed % 3 == 0 {
            world.set_send_policy(SendPolicy::Short(9_000));
        }
        submit_all(&mut producer, seed);
        for _ in 0..seed % 6 {
            world.step();
            consumer.take();
        }
        let held = world.a.shard.ring.held().len();
        world.close_links();
        world.until("the links are over", |world| world.closed_links() == 2);
        world.close(&producer.key(), &consumer.key());
        world.settle();
        assert_eq!(world.is_released_at_a(), world.a.shard.ring.held().is_empty(), "{held} were held");
        world.set_notices(NoticePolicy::Soon(false));
        world.until("all memory is back", World::is_released);
        assert!(region.upgrade().is_none());
        assert_eq!(world.a.shard.ring.times_forgotten(&region), 1);
    }
}

#[test]
fn a_link_on_which_the_kernel_copies_goes_to_copying_and_tries_again() {
    let mut world = world(ZeroCopyMode::Auto, NoticePolicy::Soon(true));
    let (mut producer, mut consumer) = world.connect();
    // The peer is local, so it has copied so far; ten seconds later it tries.
    assert_eq!(state(&world).mode, "copy");
    let mut sent = submit_all(&mut producer, 1);
    arrive(&mut world, &mut producer, &mut consumer, sent.len());
    assert_eq!(state(&world).counts.sent, 0);
    world.pass(10_000_000_000);
    while state(&world).counts.sent < 4 || state(&world).outstanding > 0 {
        sent.extend(submit_all(&mut producer, sent.len()));
        arrive(&mut world, &mut producer, &mut consumer, sent.len());
    }
    let found = state(&world);
    assert_eq!((found.mode, found.counts.sent, found.counts.copied), ("copy", 4, 4));
    world.set_notices(NoticePolicy::Soon(false));
    world.pass(20_000_000_000);
    while state(&world).mode != "zero_copy" {
        sent.extend(submit_all(&mut producer, sent.len()));
        arrive(&mut world, &mut producer, &mut consumer, sent.len());
    }
    transfer_behind(&mut world, &mut producer, &mut consumer, 30, &sent);
}

#[test]
fn a_send_that_is_refused_as_such_goes_again_by_copy() {
    for errno in [libc::EOPNOTSUPP, libc::EINVAL, libc::ENOMEM, libc::ENOBUFS] {
        let mut world = world(ZeroCopyMode::Always, NoticePolicy::Refuse(Errno(errno)));
        let (mut producer, mut consumer) = world.connect();
        transfer(&mut world, &mut producer, &mut consumer, 30);
        let found = state(&world);
        assert_eq!(world.lost_links(), [0, 0], "the link is as good as before");
        assert_eq!(found.counts.sent, 0);
        let is_memory = matches!(errno, libc::ENOMEM | libc::ENOBUFS);
        assert_eq!(
            (found.mode, found.is_short_of_memory),
            if is_memory { ("copy", true) } else { ("off", false) }
        );
    }
}

#[test]
fn a_failed_connection_fails_a_zero_copy_send_as_any_other() {
    let mut world = world(ZeroCopyMode::Always, NoticePolicy::Refuse(Errno(libc::ECONNRESET)));
    let (mut producer, mut consumer) = world.connect();
    let sent = submit_all(&mut producer, 1);
    world.until("A has lost its socket", |world| world.lost_links()[0] == 1);
    world.break_wire();
    world.set_notices(NoticePolicy::Soon(false));
    world.resume_both(1);
    transfer_behind(&mut world, &mut producer, &mut consumer, 10, &sent);
}

#[test]
fn when_too_many_batches_are_held_the_next_ones_are_copied() {
    let mut world = world(ZeroCopyMode::Always, NoticePolicy::Late);
    let (mut producer, mut consumer) = world.connect();
    // The least that goes without a copy, so that there are many.
    world.set_send_policy(SendPolicy::Short(300));
    let sent = submit_all(&mut producer, 1);
    arrive(&mut world, &mut producer, &mut consumer, sent.len());
    let found = state(&world);
    assert_eq!(found.outstanding, OUTSTANDING_MAX);
    assert!(found.counts.crowded > 0);
    assert_eq!(world.a.shard.ring.held().len() as u32, OUTSTANDING_MAX);
    world.set_notices(NoticePolicy::Soon(false));
    world.set_send_policy(SendPolicy::Whole);
    transfer_behind(&mut world, &mut producer, &mut consumer, 10, &sent);
}
