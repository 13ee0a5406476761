//! What a short write takes back: frames that did not leave are planned anew, in the same turns, and what failed or
//! ended meanwhile is told in the right order. Each of these was found by the simulator.

mod harness;

use harness::{
    Lone, Seen, any_life, cancel_message, data, end, event, gate_spec, limit_message, limits, partition_spec,
    shape,
};
use weir_flow::failure::{Failure, FailureCode};
use weir_flow::ids::{ChannelIndex, PartitionId, Sequence};
use weir_flow::limits::Limits;
use weir_flow::shard::Part;
use weir_flow::wire::{Limit, Message};

const KIB: u32 = 1024;

/// One producer with this many consumers, all of them connected with more limit than they need.
fn producer(consumers: u32, limits: Limits) -> (Lone, PartitionId) {
    let mut lone = Lone::with(limits);
    let partition = lone.shard.handle_partition(partition_spec(shape(1, consumers), 0, 64), lone.now);
    for consumer in 0..consumers {
        lone.open_channel(consumer, shape(1, consumers), 0, consumer, 100);
    }
    lone.frames();
    lone.notices();
    (lone, partition)
}

/// Plans a batch and lets the socket take `taken` of it. The subpartitions of the slices that the batch begins with,
/// in order, by segment: each test gives each subpartition its own range of segments.
fn send_some(lone: &mut Lone, taken: u32) -> Vec<u32> {
    let now = lone.now;
    assert!(lone.shard.poll_transmit(lone.link, &mut lone.transmit, now), "something is left to send");
    let segments = lone.transmit.parts.iter().filter_map(|part| match part {
        Part::Slice { segment, .. } => Some(segment.0),
        Part::Header { .. } => None,
    });
    let segments = segments.collect();
    lone.shard.handle_sent(lone.link, taken.min(lone.transmit.bytes), now);
    lone.check();
    segments
}

/// Six channels, four slices in a batch, and a socket that takes half a slice each time: all six are served in turn, not
/// only those that happen to be first in a batch.
#[test]
fn a_socket_that_takes_half_a_slice_at_a_time_serves_every_channel() {
    let (mut lone, partition) = producer(6, Limits { batch_slices_max: 4, ..limits() });
    for subpartition in 0..6 {
        for segment in 0..3 {
            lone.submit(partition, data(subpartition, subpartition * 10 + segment, 0, 4 * KIB, true));
        }
    }
    // The first slice of a batch is the one that goes on or begins.
    let mut order: Vec<u32> = (0..24).map(|_| send_some(&mut lone, 2 * KIB + 16)[0] / 10).collect();
    order.dedup();
    assert_eq!(order[..12], [0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5], "{order:?}");
}

/// Row 48, and more: after EndOfData was sent nothing follows on the channel, not even a failure: the consumer's end
/// may have given the index to another channel.
#[test]
fn a_sent_end_of_data_is_the_last_word_on_a_channel() {
    let (mut lone, partition) = producer(2, limits());
    lone.submit(partition, end(0));
    assert!(lone.shard.poll_transmit(lone.link, &mut lone.transmit, lone.now));
    let bytes = lone.transmit.bytes;
    lone.receive(&cancel_message(1, Failure::new(FailureCode::ConsumerGone, "killed")));
    lone.shard.handle_sent(lone.link, bytes, lone.now);
    let messages = lone.messages();
    assert!(
        matches!(&messages[..], [Message::ChannelFailed { channel: ChannelIndex(1), .. }]),
        "{messages:?}"
    );
}

/// The other way round: the socket took nothing of the end, and the channel failed meanwhile. Then the failure is the
/// last word.
#[test]
fn an_end_of_data_that_did_not_leave_becomes_the_failure() {
    let (mut lone, partition) = producer(2, limits());
    lone.submit(partition, end(0));
    assert!(lone.shard.poll_transmit(lone.link, &mut lone.transmit, lone.now));
    lone.receive(&cancel_message(1, Failure::new(FailureCode::ConsumerGone, "killed")));
    // The client leaves, so that nothing but the link remembers the channel.
    lone.shard.handle_partition_closed(partition, None, lone.now);
    lone.check();
    lone.shard.handle_sent(lone.link, 0, lone.now);
    let mut failed: Vec<u32> = lone
        .messages()
        .iter()
        .map(|message| match message {
            Message::ChannelFailed { channel, .. } => channel.0,
            other => panic!("unexpected {other:?}"),
        })
        .collect();
    failed.sort_unstable();
    assert_eq!(failed, [0, 1]);
}

/// The consumer's end: an EndOfData that crosses its Cancel is skipped; the index is free when the answer has come.
#[test]
fn an_end_of_data_that_crosses_a_cancel_does_not_free_the_index() {
    let mut lone = Lone::new();
    let gate = lone.open_gate(1, 4, 2);
    lone.shard.handle_gate_closed(gate, None, lone.now);
    assert!(matches!(&lone.messages()[..], [Message::Cancel { .. }]));
    lone.receive(&Message::EndOfData { channel: ChannelIndex(0), backlog: 0, sequence: Sequence(0) });
    for needed in [1, 0] {
        let gate = lone.shard.handle_gate(gate_spec(shape(1, 1), 0, 4, 2), lone.now);
        lone.shard.handle_producer(gate, any_life(0), lone.link, lone.now);
        let messages = lone.messages();
        assert!(
            matches!(&messages[..], [Message::OpenChannel { channel, .. }] if channel.0 == needed),
            "needed: {needed} {messages:?}"
        );
        let failure = Failure::new(FailureCode::ConsumerGone, "the answer to the Cancel");
        lone.receive(&Message::ChannelFailed { channel: ChannelIndex(0), failure });
    }
}

/// Data never overtakes a priority event that was handed over before it, also when the event waits for its window.
#[test]
fn data_waits_behind_a_priority_event_that_waits_for_its_window() {
    let (mut lone, partition) = producer(1, limits());
    for _ in 0..8 {
        lone.submit(partition, event(0, "barrier", true));
    }
    lone.submit(partition, data(0, 0, 0, KIB, true));
    let before = lone.frames();
    assert_eq!(before.len(), 7, "seven events, and no data: {before:?}");
    lone.receive(&limit_message(0, Limit { limit: 100, ack: 7, event_limit: 9, ..Limit::default() }));
    let after = lone.frames();
    assert!(
        matches!(&after[..], [Seen::Message(Message::Event { priority: true, .. }), Seen::Data { .. }]),
        "{after:?}"
    );
}
