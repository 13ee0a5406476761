//! A channel whose producer is not there when it is asked for: nothing was read, and it can be asked for again.

mod harness;

use harness::{Lone, accepted, gate_spec, shape};
use weir_flow::failure::{Failure, FailureCode};
use weir_flow::ids::{ChannelIndex, Incarnation, ProducerIndex, ProducerLife};
use weir_flow::shard::{Delivery, Notice};
use weir_flow::wire::Message;

/// The producer's life ended while it was asked for, or its shard does not know it yet. The consumer has read nothing of
/// it: the channel is as before it was asked for, on either end, and may be asked for again, for another life and over
/// another link.
#[test]
fn a_producer_that_is_not_there_can_be_asked_for_again() {
    let mut lone = Lone::new();
    let gate = lone.shard.handle_gate(gate_spec(shape(2, 1), 0, 8, 2), lone.now);
    let not_found = |lone: &mut Lone, index: u32| {
        let failure = Failure::new(FailureCode::PartitionNotFound, "producer 1 of x is not attached here");
        lone.receive(&Message::ChannelFailed { channel: ChannelIndex(index), failure });
        lone.shard.check().expect("all accounts add up");
    };
    let asked = |lone: &mut Lone| match &lone.messages()[..] {
        [Message::OpenChannel { channel, open }] => {
            (*channel, open.producer.0, open.incarnation.0, open.limit)
        }
        other => panic!("one request: {other:?}"),
    };
    let mut limits = Vec::new();
    for life in 1..=3 {
        let life = ProducerLife { producer: ProducerIndex(1), incarnation: Incarnation(life) };
        let link = lone.link;
        lone.shard.handle_producer(gate, life, link, lone.now);
        let (channel, producer, incarnation, limit) = asked(&mut lone);
        assert_eq!((channel, producer, incarnation), (ChannelIndex(0), 1, life.incarnation.0));
        limits.push(limit);
        not_found(&mut lone, 0);
        assert!(lone.notices().contains(&Notice::ProducerNotFound { gate, producer: ProducerIndex(1) }));
        assert_eq!(lone.deliveries(gate), [], "nothing of that reaches the client");
        // Said twice it concerns nobody.
        not_found(&mut lone, 0);
        assert_eq!(lone.notices(), []);
    }
    assert_eq!(limits, [limits[0]; 3], "what was granted in vain was taken back");
    // One that has agreed cannot say so any more: that is a failure as any other.
    let (life, link) = (ProducerLife { producer: ProducerIndex(1), incarnation: Incarnation(4) }, lone.link);
    lone.shard.handle_producer(gate, life, link, lone.now);
    asked(&mut lone);
    lone.receive(&accepted(0));
    not_found(&mut lone, 0);
    assert!(matches!(
        &lone.deliveries(gate)[..],
        [Delivery::Failed { channel: 1, failure }] if failure.code == FailureCode::PartitionNotFound
    ));
}
