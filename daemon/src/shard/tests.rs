//! The shard loop without a kernel: two shards whose rings the test moves bytes between, with real shared memory and
//! a client at each end. The test decides what completes, how much of it, and in which order.

mod client;
mod resuming;
mod waits;
mod world;
mod zero_copy;

use weir_flow::exchange::Strategy;
use weir_flow::failure::{Failure, FailureCode};
use weir_flow::ids::{ProducerIndex, Time};
use weir_flow::limits::Limits;
use weir_ipc::Submission;
use weir_ipc::signal::Park;

use super::mailbox::{LinkKey, ToNode, ToShard};
use crate::io::fake::SendPolicy;
use crate::io::{Errno, RingError};
use client::{Consumer, Producer};
use world::{World, key_of_b};

/// Moves `segments` whole segments from a producer to a consumer and back to the producer's pool.
fn transfer(world: &mut World, producer: &mut Producer, consumer: &mut Consumer, segments: usize) {
    transfer_behind(world, producer, consumer, segments, &[]);
}

/// The same, behind what was submitted before.
fn transfer_behind(
    world: &mut World,
    producer: &mut Producer,
    consumer: &mut Consumer,
    segments: usize,
    before: &[u8],
) {
    let mut expected = before.to_vec();
    for number in 0..segments {
        let payload: Vec<u8> =
            (0..producer.segment_bytes() - number % 7).map(|at| (at * 31 + number) as u8).collect();
        while !producer.submit_segment(&payload) {
            world.step();
            producer.take_returns();
            consumer.take();
        }
        expected.extend_from_slice(&payload);
    }
    producer.end();
    world.until("everything arrived and was acknowledged", |_| {
        producer.take_returns();
        consumer.take();
        producer.is_finished && consumer.has_ended
    });
    assert!(consumer.received == expected, "{} bytes of {}", consumer.received.len(), expected.len());
    assert_eq!(producer.free(), producer.segments(), "every segment came back");
}

#[test]
fn whole_sends_carry_everything() {
    let mut world = World::new(Strategy::Forward);
    let (mut producer, mut consumer) = world.connect();
    transfer(&mut world, &mut producer, &mut consumer, 200);
}

#[test]
fn a_partition_is_found_by_whoever_heard_of_it_however_much_mail_lies_before_it() {
    let mut world = World::new(Strategy::Forward);
    for _ in 0..1000 {
        // Of a link that is not there: nothing becomes of it.
        world.a.mail(ToShard::CloseLink { key: key_of_b(), reason: "none".to_owned() });
    }
    let (mut producer, mut consumer) = world.connect();
    transfer(&mut world, &mut producer, &mut consumer, 3);
}

#[test]
fn short_sends_of_any_length_carry_everything() {
    for bytes in [1, 31, 32, 33, 4096, 40_000] {
        let mut world = World::new(Strategy::Forward);
        let (mut producer, mut consumer) = world.connect();
        world.set_send_policy(SendPolicy::Short(bytes));
        world.set_chunk_bytes(&[bytes as usize, 1, 70_000]);
        // A byte at a time is slow; two segments show all that it can show.
        transfer(&mut world, &mut producer, &mut consumer, if bytes < 100 { 2 } else { 60 });
    }
}

#[test]
fn completions_in_any_order_carry_everything() {
    for seed in 1..20 {
        let mut world = World::new(Strategy::Forward);
        let (mut producer, mut consumer) = world.connect();
        world.shuffle(seed);
        world.set_chunks_max(2);
        world.set_chunk_bytes(&[10_000, 3, 50_000]);
        transfer(&mut world, &mut producer, &mut consumer, 40);
    }
}

#[test]
fn a_failed_send_without_a_grace_fails_both_ends_and_gives_all_memory_back() {
    let mut world = World::with_grace(Strategy::Forward, 0);
    let (mut producer, mut consumer) = world.connect();
    let payload = vec![7; producer.segment_bytes()];
    assert!(producer.submit_segment(&payload));
    world.set_send_policy(SendPolicy::Fail(Errno(libc::ECONNRESET)));
    world.until("the producer hears of it", |_| {
        producer.take_returns();
        producer.failure == Some(FailureCode::LinkLost)
    });
    world.break_wire();
    world.until("the consumer hears of it", |_| {
        consumer.take();
        consumer.failure == Some(FailureCode::LinkLost)
    });
    world.close(&producer.key(), &consumer.key());
    world.until("all memory is back", World::is_released);
    assert_eq!(world.closed_links(), 2, "both ends told the control thread");
    assert_eq!(world.lost_links(), [0, 0], "nobody is to bring another socket");
}

#[test]
fn memory_stays_while_a_send_is_in_flight_and_goes_when_it_ends() {
    let mut world = World::new(Strategy::Forward);
    let (mut producer, mut consumer) = world.connect();
    world.set_send_policy(SendPolicy::Hold);
    let payload = vec![1; producer.segment_bytes()];
    assert!(producer.submit_segment(&payload));
    world.until("a send of payload is in flight", World::has_payload_in_flight);
    world.drop_clients(&Failure::new(FailureCode::ProducerGone, "killed"));
    for _ in 0..20 {
        world.step();
    }
    assert!(!world.is_released_at_a(), "the kernel may still read the region");
    world.set_send_policy(SendPolicy::Whole);
    world.until("its memory is back", World::is_released_at_a);
    world.until("the consumer's is too", World::is_released);
    consumer.take();
    drop(producer);
}

#[test]
fn a_consumer_that_gives_nothing_back_stops_the_sender_and_nothing_grows() {
    let mut world = World::new(Strategy::Forward);
    let (mut producer, mut consumer) = world.connect();
    let payload = vec![3; producer.segment_bytes()];
    let mut submitted = 0;
    for _ in 0..2000 {
        submitted += usize::from(producer.submit_segment(&payload));
        world.step();
        producer.take_returns();
        consumer.take_and_hold();
    }
    let most = producer.segments() + consumer.segments();
    assert!(submitted <= most, "{submitted} segments went in; the two regions hold {most}");
    assert!(
        consumer.received.len() <= consumer.segments() * payload.len(),
        "it holds no more than its region"
    );
    assert!(consumer.received.len() < submitted * payload.len(), "the rest waits at the sender");
    consumer.give_all_back();
    world.until("it moves again once the segments are given back", |_| {
        consumer.take();
        producer.take_returns();
        consumer.received.len() == submitted * payload.len()
    });
}

#[test]
fn a_client_that_lies_is_detached_with_the_field_and_nobody_else() {
    let mut world = World::new(Strategy::Forward);
    let (mut producer, mut consumer) = world.connect();
    let (mut liar, _its_consumer) = world.connect();
    let beyond = liar.segment_bytes() as u32;
    liar.submit_raw(&Submission::Data {
        subpartition: 0,
        segment: 0,
        offset: 0,
        bytes: beyond + 1,
        records: 1,
        last: true,
    });
    world.until("the liar is detached", |world| world.fault_of(liar.key().attachment).is_some());
    let text = world.fault_of(liar.key().attachment).unwrap_or_default();
    assert!(text.contains("bytes") || text.contains("offset"), "{text}");
    transfer(&mut world, &mut producer, &mut consumer, 20);
}

#[test]
fn the_end_of_a_stream_without_a_grace_ends_the_link_and_its_channels() {
    let mut world = World::with_grace(Strategy::Forward, 0);
    let (mut producer, mut consumer) = world.connect();
    world.end_streams();
    world.until("both ends hear of it", |_| {
        producer.take_returns();
        consumer.take();
        producer.failure == Some(FailureCode::LinkLost) && consumer.failure == Some(FailureCode::LinkLost)
    });
    assert_eq!((world.closed_links(), world.unsaid()), (2, 0), "each end knows by itself");
}

#[test]
fn garbage_from_the_peer_closes_the_link_for_good() {
    let mut world = World::new(Strategy::Forward);
    let (_producer, mut consumer) = world.connect();
    let began = world.now_ns();
    world.arrive_at_b(&[0xff; 64]);
    world.until("the consumer hears of it", |_| {
        consumer.take();
        consumer.failure == Some(FailureCode::LinkLost)
    });
    assert!(world.now_ns() - began < 1_000_000_000, "it waited for another socket");
    assert_eq!((world.closed_links(), world.lost_links()), (1, [0, 0]));
    assert_eq!(world.unsaid(), 1, "its peer finds a lost connection, and no reason");
}

#[test]
fn a_ring_that_fails_ends_the_shard_with_the_reason() {
    let mut world = World::new(Strategy::Forward);
    world.a.shard.ring.fail_park(RingError::fatal(
        "io_uring_enter",
        Errno(libc::EBADF),
        "none: this is a test",
    ));
    let (shard, mut reports) = world.take_a();
    shard.run();
    let mut failed = None;
    while let Ok(report) = reports.try_recv() {
        if let ToNode::ShardFailed { shard, text } = report {
            failed = Some((shard, text));
        }
    }
    let (number, text) = failed.expect("a report");
    assert_eq!(number, 0);
    assert!(text.contains("io_uring_enter"), "{text}");
}

#[test]
fn stop_ends_the_thread_and_says_so() {
    let world = World::new(Strategy::Forward);
    assert!(world.a.mail(ToShard::Stop));
    let (shard, mut reports) = world.take_a();
    shard.run();
    assert!(matches!(reports.try_recv(), Ok(ToNode::Stopped { shard: 0 })));
}

#[test]
fn an_idle_shard_parks_without_a_spin_and_a_marked_ring_keeps_it_awake() {
    let mut world = World::new(Strategy::Forward);
    let (mut producer, _consumer) = world.connect();
    world.settle();
    let parks = world.a.shard.stall.stats().parks;
    assert!(world.a.parks_when_idle(), "nothing to do: it sleeps");
    assert_eq!(world.a.shard.stall.stats().parks, parks + 1);
    assert!(producer.submit_segment(&[1, 2, 3]));
    assert!(!world.a.parks_when_idle(), "a submission is there: it must not sleep");
}

#[test]
fn what_comes_back_of_a_message_that_came_alone_rings_nobody_and_is_looked_for() {
    let mut world = World::new(Strategy::Forward);
    let (mut producer, mut consumer) = world.connect();
    world.settle();
    assert_eq!(world.park_of_b().0, Park::UntilRung, "nothing was delivered");
    assert!(producer.submit_segment(&[7; 100]));
    world.until("it was delivered", |_| {
        consumer.take_and_hold();
        !consumer.received.is_empty()
    });
    let (park, due) = world.park_of_b();
    let delay = Limits::default().limit_delay_ns;
    assert_eq!(park, Park::Briefly);
    assert!(due.is_some_and(|due| due.0 <= world.now_ns() + delay), "{due:?} at {}", world.now_ns());
    // The consumer holds it: after that time it has to ring.
    world.pass(2 * delay);
    assert_eq!(world.park_of_b().0, Park::UntilRung);
    consumer.give_all_back();
    world.settle();
    assert_eq!(world.park_of_b().0, Park::UntilRung, "what came back is no delivery");
}

#[test]
fn a_sender_that_waits_for_credit_is_not_kept_waiting_by_a_consumer_that_does_not_ring() {
    let mut world = World::new(Strategy::Forward);
    let (mut producer, mut consumer) = world.connect();
    let payload = vec![7; producer.segment_bytes()];
    while producer.submit_segment(&payload) {}
    let mut parks = 0;
    // As long as not all of it has got credit, each sleep ends with what comes back.
    world.until("all was delivered", |world| {
        let is_waiting = world.b.shard.core.channels(Time(world.now_ns())).any(|channel| channel.backlog > 0);
        if is_waiting {
            assert_eq!(world.park_of_b().0, Park::UntilRung);
            parks += 1;
        }
        consumer.take_and_hold();
        if parks > 3 {
            consumer.give_all_back();
        }
        consumer.received.len() == producer.segments() * payload.len()
    });
    assert!(parks > 3, "{parks} looks while the sender waited");
}

#[test]
fn a_gate_whose_rings_are_full_is_rung_for() {
    let mut world = World::new(Strategy::Forward);
    let (mut producer, mut consumer) = world.connect();
    let (mut sent, mut was_brief) = (0, false);
    world.until("the rings are full", |world| {
        producer.take_returns();
        sent += usize::from(producer.submit_segment(&[7; 10]));
        was_brief |= world.park_of_b().0 == Park::Briefly;
        !world.b.shard.lists.full_gates.is_empty()
    });
    assert!(was_brief, "as long as there was room");
    assert_eq!(world.park_of_b().0, Park::UntilRung);
    world.until("all was delivered", |_| {
        consumer.take();
        consumer.received.len() == 10 * sent
    });
    world.settle();
    assert!(world.b.shard.lists.full_gates.is_empty());
}

#[test]
fn what_a_consumer_gave_back_before_it_closed_counts_as_consumed_though_it_rang_nobody() {
    let mut world = World::new(Strategy::Forward);
    let (mut producer, mut consumer) = world.connect();
    assert!(producer.submit_segment(&[7; 100]));
    world.until("it was delivered", |_| {
        consumer.take_and_hold();
        !consumer.received.is_empty()
    });
    consumer.give_all_back();
    world.b.mail(ToShard::CloseRing { key: consumer.key(), failure: None });
    world.until("the producer hears of it", |_| {
        producer.take_returns();
        producer.failure.is_some()
    });
    let text = &producer.failure_text;
    assert!(text.contains("delivered 100 bytes, consumed 100 bytes"), "{text}");
}

#[test]
fn a_drained_shard_says_so_once_everything_is_acknowledged() {
    let mut world = World::new(Strategy::Forward);
    let (mut producer, mut consumer) = world.connect();
    assert!(producer.submit_segment(&[9; 100]));
    world.a.mail(ToShard::Drain);
    world.until("it is drained", |world| {
        consumer.take();
        producer.take_returns();
        world.is_drained()
    });
    assert_eq!(producer.free(), producer.segments());
}

#[test]
fn a_channel_whose_link_is_gone_or_closing_is_left_to_the_node_and_its_client_hears_nothing() {
    for peer_shard in [0, 9] {
        let mut world = World::new(Strategy::Forward);
        world.settle();
        let link = LinkKey { peer_shard, ..key_of_b() };
        world.close_link_at_b(&link);
        let mut consumer = world.gate_over(link);
        world.until("the node is told", |world| !world.not_connected().is_empty());
        assert_eq!(world.not_connected(), [(consumer.key(), ProducerIndex(0))]);
        world.settle();
        consumer.take();
        assert_eq!((consumer.failure, consumer.has_ended), (None, false));
    }
}

#[test]
fn a_client_that_takes_its_memory_away_is_detached_and_the_others_on_its_link_go_on() {
    // The hole is found when nothing of the frame is sent, when a part of its header is, and when all of it is.
    for begun in [0, 7, 32, 100] {
        let mut world = World::new(Strategy::Forward);
        let (mut holed, mut victim) = world.connect();
        let (mut producer, mut consumer) = world.connect();
        let region = world.region_of(&holed);
        let payload = vec![5; holed.segment_bytes()];
        world.settle();
        world.set_send_policy(SendPolicy::Hold);
        assert!(holed.submit_segment(&payload));
        world.until("a send of it is in flight", World::has_payload_in_flight);
        if begun > 0 {
            world.take_of_send_at_a(begun);
        }
        region.forbid_reading();
        world.set_send_policy(SendPolicy::Whole);
        let attachment = holed.key().attachment;
        world.until("its client is detached", |world| world.fault_of(attachment).is_some());
        let text = world.fault_of(attachment).unwrap_or_default();
        assert!(text.contains("segment") && text.contains("memory"), "{text}");
        world.until("its consumer hears of it", |_| {
            victim.take();
            victim.failure == Some(FailureCode::ClientFault)
        });
        transfer(&mut world, &mut producer, &mut consumer, 20);
        assert_eq!(world.closed_links(), 0);
    }
}

#[test]
fn a_link_whose_sends_cannot_be_read_although_all_memory_is_there_is_closed() {
    let mut world = World::new(Strategy::Forward);
    let (mut producer, _consumer) = world.connect();
    world.set_send_policy(SendPolicy::Fail(Errno(libc::EFAULT)));
    assert!(producer.submit_segment(&[1; 100]));
    world.until("the producer hears of it", |_| {
        producer.take_returns();
        producer.failure == Some(FailureCode::LinkLost)
    });
    assert_eq!(world.fault_of(producer.key().attachment), None);
    assert_eq!(world.lost_links(), [0, 0], "the next socket would be no better");
}

#[test]
fn memory_that_was_let_go_of_is_unmapped_at_once() {
    let mut world = World::new(Strategy::Forward);
    let (mut producer, mut consumer) = world.connect();
    let region = std::sync::Arc::downgrade(&world.region_of(&producer));
    transfer(&mut world, &mut producer, &mut consumer, 20);
    world.close(&producer.key(), &consumer.key());
    world.until("the node is told", World::is_released);
    assert_eq!(region.strong_count(), 0, "its budget is free, and so must its memory be");
}

#[test]
fn a_gate_that_fails_says_so_on_every_channel() {
    let mut world = World::new(Strategy::Rebalance);
    let mut consumer = world.gate_of(3);
    world.settle();
    world.fail_gate(&consumer, Failure::new(FailureCode::Mismatch, "another shape"));
    world.until("it is released", |world| {
        consumer.take();
        world.is_released()
    });
    consumer.take();
    assert_eq!((consumer.failed, consumer.failure), (vec![0, 1, 2], Some(FailureCode::Mismatch)));
}
