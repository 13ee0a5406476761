//! Links that lose their sockets: what the core and the node are told, in which order, and that nothing is lost.

use weir_flow::exchange::Strategy;
use weir_flow::failure::{Failure, FailureCode};

use super::world::{World, key_of_b};
use super::{transfer, transfer_behind};
use crate::io::fake::SendPolicy;
use crate::io::{Errno, SendPart};

/// How the socket of a link goes.
#[derive(Clone, Copy, Debug)]
enum Loss {
    /// Both ends find the end of the stream, behind what had arrived.
    Ended,
    /// A's sends and receives fail; what its socket had taken does not arrive.
    Reset,
    /// B is told that its peer has dialled anew: what had arrived and was not read is dropped.
    Superseded,
}

fn lose(world: &mut World, loss: Loss) {
    match loss {
        Loss::Ended => world.end_streams(),
        Loss::Reset => {
            world.reset_a();
            world.break_wire();
        }
        Loss::Superseded => {
            world.reset_a();
            world.suspend_at_b();
        }
    }
}

#[test]
fn nothing_is_lost_and_nothing_comes_twice_over_many_sockets() {
    for (seed, losses) in [
        (1, [Loss::Ended, Loss::Reset, Loss::Superseded]),
        (2, [Loss::Superseded, Loss::Superseded, Loss::Reset]),
        (3, [Loss::Reset, Loss::Ended, Loss::Ended]),
    ] {
        let mut world = World::new(Strategy::Forward);
        let (mut producer, mut consumer) = world.connect();
        world.shuffle(seed);
        world.set_chunk_bytes(&[10_000, 3, 50_000]);
        let mut sent = Vec::new();
        for round in 0..30_usize {
            for number in 0..7 {
                let payload: Vec<u8> = (0..producer.segment_bytes() - (round * 7 + number) % 11)
                    .map(|at| (at * 31 + round * 7 + number) as u8)
                    .collect();
                if producer.submit_segment(&payload) {
                    sent.extend_from_slice(&payload);
                }
            }
            world.set_send_policy(if round % 2 == 0 { SendPolicy::Short(40_000) } else { SendPolicy::Whole });
            for _ in 0..round * 7 % 23 {
                world.step();
                producer.take_returns();
                consumer.take();
            }
            lose(&mut world, losses[round % losses.len()]);
            world.resume_both(round + 1);
        }
        producer.end();
        world.until("everything arrived and was acknowledged", |_| {
            producer.take_returns();
            consumer.take();
            producer.is_finished && consumer.has_ended
        });
        assert!(
            sent.len() > 60 * producer.segment_bytes(),
            "it got going between the losses: {}",
            sent.len()
        );
        assert!(consumer.received == sent, "{} bytes of {}", consumer.received.len(), sent.len());
        assert_eq!(producer.free(), producer.segments(), "every segment came back");
        assert_eq!(world.closed_links(), 0);
    }
}

#[test]
fn a_loss_is_told_only_when_the_send_in_flight_has_ended() {
    for (taken, result) in [(0, Err(Errno(libc::ECONNRESET))), (20_000, Ok(20_000))] {
        let mut world = World::new(Strategy::Forward);
        let (mut producer, mut consumer) = world.connect();
        world.settle();
        world.set_send_policy(SendPolicy::Hold);
        let payload = vec![7; producer.segment_bytes()];
        assert!(producer.submit_segment(&payload));
        world.until("a send of payload is in flight", World::has_payload_in_flight);
        world.end_streams();
        world.settle();
        assert_eq!(world.lost_links(), [0, 1], "the kernel may still read the region: {taken}");
        // Nobody brings a socket before he is asked. One that comes nevertheless is of no use.
        world.resume(true);
        world.settle();
        assert_eq!(world.open_sockets(), [1, 0]);
        world.complete_send_at_a(result);
        world.resume_both(1);
        transfer_behind(&mut world, &mut producer, &mut consumer, 20, &payload);
    }
}

#[test]
fn a_link_that_gets_no_other_socket_is_over_after_the_grace_and_a_late_socket_is_closed() {
    let mut world = World::new(Strategy::Forward);
    let (mut producer, mut consumer) = world.connect();
    assert!(producer.submit_segment(&[1; 100]));
    let began = world.now_ns();
    world.end_streams();
    world.until("both ends hear of it", |_| {
        producer.take_returns();
        consumer.take();
        producer.failure == Some(FailureCode::LinkLost) && consumer.failure == Some(FailureCode::LinkLost)
    });
    let waited_ns = world.now_ns() - began;
    assert!((9_000_000_000..11_000_000_000).contains(&waited_ns), "{waited_ns} ns");
    assert_eq!((world.lost_links(), world.closed_links()), ([1, 1], 2));
    for reason in world.closed_for() {
        assert_eq!(reason, "the peer closed it; it did not come back within link.grace");
    }
    world.resume(true);
    world.resume(false);
    world.settle();
    assert_eq!(world.open_sockets(), [0, 0]);
    world.close(&producer.key(), &consumer.key());
    world.until("all memory is back", World::is_released);
}

#[test]
fn a_link_without_a_socket_that_the_node_closes_is_over_at_once() {
    let mut world = World::new(Strategy::Forward);
    let (_producer, mut consumer) = world.connect();
    world.end_streams();
    world.until("both ends have lost their socket", |world| world.lost_links() == [1, 1]);
    world.close_link_at_b(&key_of_b());
    world.settle();
    consumer.take();
    assert_eq!(consumer.failure, Some(FailureCode::LinkLost));
    assert_eq!(world.closed_for(), ["a test"]);
}

#[test]
fn a_link_that_is_closed_for_good_while_it_loses_its_socket_is_over_and_not_lost() {
    let mut world = World::new(Strategy::Forward);
    let (mut producer, mut consumer) = world.connect();
    world.hold_closed_at_b(true);
    world.break_wire();
    world.settle();
    world.close_link_at_b(&key_of_b());
    world.settle();
    assert_eq!((world.lost_links(), world.closed_links()), ([0, 0], 0), "its socket is still there");
    world.hold_closed_at_b(false);
    world.settle();
    assert_eq!(world.lost_links(), [0, 0]);
    assert_eq!(world.closed_for(), ["a test"]);
    consumer.take();
    assert_eq!(consumer.failure, Some(FailureCode::LinkLost));
    // The other end is not told: it hears from its node.
    producer.take_returns();
    assert_eq!(producer.failure, None);
}

#[test]
fn a_silent_peer_loses_the_socket_and_not_the_link() {
    let mut world = World::new(Strategy::Forward);
    let (mut producer, mut consumer) = world.connect();
    world.hold_wire(true);
    world.until("both ends have lost their socket", |world| world.lost_links() == [1, 1]);
    world.hold_wire(false);
    world.resume_both(1);
    transfer(&mut world, &mut producer, &mut consumer, 20);
    assert_eq!(world.closed_links(), 0);
}

#[test]
fn a_channel_that_is_asked_for_while_its_link_has_no_socket_is_left_to_the_node() {
    let mut world = World::new(Strategy::Forward);
    world.settle();
    world.end_streams();
    world.until("both ends have lost their socket", |world| world.lost_links() == [1, 1]);
    let mut consumer = world.gate_over(key_of_b());
    world.until("the node is told", |world| !world.not_connected().is_empty());
    consumer.take();
    assert_eq!((consumer.failure, consumer.has_ended), (None, false));
}

#[test]
fn memory_of_clients_that_are_gone_is_given_back_while_their_link_has_no_socket() {
    let mut world = World::new(Strategy::Forward);
    let (mut producer, mut consumer) = world.connect();
    let payload = vec![1; producer.segment_bytes()];
    assert!(producer.submit_segment(&payload));
    world.settle();
    world.reset_a();
    world.suspend_at_b();
    world.until("both ends have lost their socket", |world| world.lost_links() == [1, 1]);
    world.drop_clients(&Failure::new(FailureCode::ProducerGone, "killed"));
    world.until("all memory is back", World::is_released);
    consumer.take();
    drop(producer);
}

#[test]
fn what_a_batch_refers_to_is_let_go_of_when_its_socket_is_lost() {
    let mut world = World::new(Strategy::Forward);
    let (mut producer, _consumer) = world.connect();
    assert!(producer.submit_segment(&[1; 100]));
    world.settle();
    world.end_streams();
    world.until("both ends have lost their socket", |world| world.lost_links() == [1, 1]);
    let batch = world.a.shard.links.take_batch();
    assert!(!batch.parts.iter().any(|part| matches!(part, SendPart::Region { .. })));
}
