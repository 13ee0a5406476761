//! How channels open, are refused and fail: what each end is told, and that nobody else notices.

mod harness;

use harness::{
    Lone, Pair, SEGMENT_BYTES, Seen, any_life, cancel_message, data, end, event, gate_spec, limits,
    link_spec, open_message, partition_spec, shape,
};
use weir_flow::exchange::{Shape, Strategy};
use weir_flow::failure::{Failure, FailureCode};
use weir_flow::ids::{ChannelIndex, Incarnation, LinkId, PartitionId, ProducerLife, SubpartitionIndex, Time};
use weir_flow::link::LINK_CHANNELS_MAX;
use weir_flow::shard::{Delivery, Notice, PartitionUpdate, Submission};
use weir_flow::wire::{Header, Message, WireError};

fn producer(consumers: u32) -> (Lone, PartitionId) {
    let mut lone = Lone::new();
    let partition = lone.shard.handle_partition(partition_spec(shape(1, consumers), 0, 16), lone.now);
    (lone, partition)
}

fn refusal(lone: &mut Lone) -> (FailureCode, String) {
    match &lone.messages()[..] {
        [Message::ChannelFailed { failure, .. }] => (failure.code, failure.text.clone()),
        other => panic!("one refusal: {other:?}"),
    }
}

/// Each thing on which the two ends disagree is named with both values; the partition goes on and serves another.
#[test]
fn a_mismatch_names_both_values_and_refuses_only_that_consumer() {
    let (mut lone, partition) = producer(2);
    let right = shape(1, 2);
    let wrong = [
        (
            Shape { strategy: Strategy::Hash, ..right },
            "strategy is hash at the consumer and rebalance at the producer",
        ),
        (Shape { producers: 3, ..right }, "producer parallelism is 3 at the consumer and 1 at the producer"),
        (Shape { consumers: 4, ..right }, "consumer parallelism is 4 at the consumer and 2 at the producer"),
        (
            Shape { segment_bytes: 65536, ..right },
            "segment size is 65536 at the consumer and 4096 at the producer",
        ),
        (Shape { checksum: true, ..right }, "checksum is true at the consumer and false at the producer"),
    ];
    for (shape, text) in wrong {
        lone.open_channel(0, shape, 0, 0, 2);
        assert_eq!(refusal(&mut lone), (FailureCode::Mismatch, format!("{text}; needed: the same")));
        assert!(lone.notices().iter().any(|notice| matches!(notice, Notice::ChannelRefused { .. })));
    }
    lone.open_channel(0, right, 0, 0, 2);
    assert!(matches!(lone.messages()[..], [Message::ChannelAccepted { .. }]));
    assert_eq!(lone.updates(partition), []);
}

/// Other refusals: unknown partition, index out of range, another life, an index beyond the link's channels.
#[test]
fn what_cannot_be_served_is_refused_with_its_reason() {
    let (mut lone, _) = producer(2);
    lone.open_channel(0, shape(2, 2), 1, 0, 2);
    assert_eq!(refusal(&mut lone).0, FailureCode::PartitionNotFound);
    lone.open_channel(0, shape(1, 2), 0, 2, 2);
    assert_eq!(refusal(&mut lone).0, FailureCode::IndexOutOfRange);
    lone.open_channel(LINK_CHANNELS_MAX, shape(1, 2), 0, 0, 2);
    assert_eq!(refusal(&mut lone).0, FailureCode::IndexOutOfRange);
    let Message::OpenChannel { channel, mut open } = open_message(0, shape(1, 2), 0, 0, 2) else {
        unreachable!()
    };
    open.incarnation = Incarnation(8);
    lone.receive(&Message::OpenChannel { channel, open: open.clone() });
    assert_eq!(refusal(&mut lone).0, FailureCode::PartitionNotFound);
    open.incarnation = Incarnation(7);
    lone.receive(&Message::OpenChannel { channel, open });
    assert!(matches!(lone.messages()[..], [Message::ChannelAccepted { incarnation: Incarnation(7), .. }]));
}

/// A second consumer with the same index is refused and told where the first is, whichever link it comes over, and also
/// after the first had everything.
#[test]
fn a_second_consumer_with_the_same_index_is_refused() {
    let (mut lone, partition) = producer(1);
    lone.open_channel(0, shape(1, 1), 0, 0, 2);
    lone.messages();
    lone.open_channel(1, shape(1, 1), 0, 0, 2);
    let (code, text) = refusal(&mut lone);
    assert_eq!(code, FailureCode::DuplicateConsumer);
    assert_eq!(text, "consumer 0 of x is attached already, on node peer");
    lone.submit(partition, end(0));
    lone.messages();
    assert_eq!(lone.updates(partition), [], "the first one goes on");
    lone.receive(&Message::EndAck { channel: ChannelIndex(0) });
    assert_eq!(lone.updates(partition), [PartitionUpdate::Finished]);
    lone.open_channel(1, shape(1, 1), 0, 0, 2);
    assert_eq!(refusal(&mut lone).0, FailureCode::PartitionNotFound, "it is finished and gone");
}

/// A consumer that follows another of its node at once may ask before it is known here that the other is gone: each came over
/// a link of its own. That is too early, and no refusal; the same from another node, and over the same link, is one.
#[test]
fn a_successor_that_asks_before_the_news_of_its_predecessor_is_asked_to_come_again() {
    for continue_without in [false, true] {
        let mut lone = Lone::new();
        let mut spec = partition_spec(shape(1, 2), 0, 16);
        spec.continue_without = continue_without;
        let partition = lone.shard.handle_partition(spec, lone.now);
        let first = lone.link;
        let asked_over = |lone: &mut Lone, link: LinkId, channel: u32, consumer: u32| {
            lone.link = link;
            lone.open_channel(channel, shape(1, 2), 0, consumer, 2);
            match &lone.messages()[..] {
                [Message::ChannelAccepted { .. }] => None,
                [Message::ChannelFailed { failure, .. }] => Some((failure.code, failure.text.clone())),
                other => panic!("one answer: {other:?}"),
            }
        };
        let another = lone.shard.handle_link(link_spec("peer"), lone.now);
        let elsewhere = lone.shard.handle_link(link_spec("elsewhere"), lone.now);
        for (consumer, channel) in [(0, 0), (1, 1)] {
            assert_eq!(asked_over(&mut lone, first, channel, consumer), None);
        }
        let early = "consumer 0 of x follows one of node peer that has not left".to_owned();
        for channel in 0..3 {
            let answer = asked_over(&mut lone, another, channel, 0);
            assert_eq!(answer, Some((FailureCode::PartitionNotFound, early.clone())));
        }
        let taken =
            (FailureCode::DuplicateConsumer, "consumer 0 of x is attached already, on node peer".to_owned());
        assert_eq!(asked_over(&mut lone, elsewhere, 0, 0), Some(taken.clone()));
        assert_eq!(asked_over(&mut lone, first, 2, 0), Some(taken));
        assert_eq!(lone.updates(partition), [], "the first one goes on");
        // What it will find when the news is here.
        lone.link = first;
        lone.receive(&cancel_message(0, Failure::new(FailureCode::ConsumerGone, "gone")));
        lone.messages();
        let (code, text) = asked_over(&mut lone, another, 3, 0).expect("not there");
        if continue_without {
            assert_eq!(code, FailureCode::DuplicateConsumer);
            assert_eq!(text, "consumer 0 of x was lost, and its producer goes on without");
        } else {
            assert_eq!(
                (code, text.as_str()),
                (FailureCode::PartitionNotFound, "producer 0 of x is not attached here")
            );
        }
    }
}

/// A consumer that had everything is not given it again, whatever link its successor comes over.
#[test]
fn a_consumer_that_has_had_its_data_is_refused_over_any_link_of_its_node() {
    let (mut lone, partition) = producer(2);
    let first = lone.link;
    let another = lone.shard.handle_link(link_spec("peer"), lone.now);
    for (channel, consumer) in [(0, 0), (1, 1)] {
        lone.open_channel(channel, shape(1, 2), 0, consumer, 2);
    }
    lone.submit(partition, end(0));
    lone.messages();
    lone.receive(&Message::EndAck { channel: ChannelIndex(0) });
    for (link, channel) in [(first, 2), (another, 0)] {
        lone.link = link;
        lone.open_channel(channel, shape(1, 2), 0, 0, 2);
        let text = "consumer 0 of x has had its data already".to_owned();
        assert_eq!(refusal(&mut lone), (FailureCode::DuplicateConsumer, text));
    }
}

/// An index that the peer uses twice is its fault: that channel fails, the link goes on.
#[test]
fn a_channel_index_in_use_fails_its_channel() {
    let (mut lone, partition) = producer(2);
    lone.open_channel(0, shape(1, 2), 0, 0, 2);
    lone.messages();
    lone.open_channel(0, shape(1, 2), 0, 1, 2);
    assert!(matches!(
        &lone.updates(partition)[..],
        [PartitionUpdate::Failed(failure)] if failure.code == FailureCode::Protocol
    ));
    assert!(matches!(lone.messages()[..], [Message::ChannelFailed { channel: ChannelIndex(0), .. }]));
}

/// A second producer with the same index fails at once and does not touch the first; one that comes after the first
/// failed takes its place.
#[test]
fn a_second_producer_with_the_same_index_fails() {
    let (mut lone, first) = producer(1);
    let second = lone.shard.handle_partition(partition_spec(shape(1, 1), 0, 16), lone.now);
    assert!(matches!(
        &lone.updates(second)[..],
        [PartitionUpdate::Failed(failure)] if failure.code == FailureCode::DuplicateProducer
    ));
    assert_eq!(lone.updates(first), []);
    lone.shard.handle_partition_closed(first, None, lone.now);
    lone.shard.handle_partition_closed(second, None, lone.now);
    lone.check();
    let third = lone.shard.handle_partition(partition_spec(shape(1, 1), 0, 16), lone.now);
    lone.open_channel(0, shape(1, 1), 0, 0, 2);
    assert!(matches!(lone.messages()[..], [Message::ChannelAccepted { .. }]));
    assert_eq!(lone.updates(third), []);
    let bad = partition_spec(shape(1, 1), 3, 16);
    let bad = lone.shard.handle_partition(bad, lone.now);
    assert!(matches!(
        &lone.updates(bad)[..],
        [PartitionUpdate::Failed(failure)] if failure.code == FailureCode::IndexOutOfRange
    ));
}

/// A consumer that gives up fails its partition with how far it came; siblings are told; queued segments return.
#[test]
fn a_cancel_fails_the_partition_and_returns_its_segments() {
    let (mut lone, partition) = producer(2);
    for consumer in 0..2 {
        lone.open_channel(consumer, shape(1, 2), 0, consumer, 0);
    }
    lone.frames();
    lone.submit(partition, data(0, 0, 0, 100, true));
    lone.submit(partition, data(1, 1, 0, 100, true));
    lone.submit(partition, data(1, 2, 0, 100, false));
    lone.receive(&cancel_message(0, Failure::new(FailureCode::ConsumerGone, "killed")));
    let updates = lone.updates(partition);
    let [PartitionUpdate::Returned(_), PartitionUpdate::Returned(_), PartitionUpdate::Failed(failure)] =
        &updates[..]
    else {
        panic!("{updates:?}")
    };
    assert_eq!(failure.code, FailureCode::ConsumerGone);
    assert_eq!(
        failure.text,
        "subpartition 0 of x, consumer on node peer: killed (delivered 10 bytes, consumed 5 bytes)"
    );
    let told = lone.messages();
    assert_eq!(told.len(), 2, "both consumers are told: {told:?}");
    // What the client still hands over comes straight back.
    lone.submit(partition, data(1, 2, 100, 100, true));
    assert!(matches!(lone.updates(partition)[..], [PartitionUpdate::Returned(_)]));
    lone.receive(&cancel_message(0, Failure::new(FailureCode::ConsumerGone, "again")));
    assert_eq!(lone.updates(partition), [], "it fails once");
}

/// A producer that is killed fails its channels with a typed reason; its memory is released when nothing refers to it.
#[test]
fn a_killed_producer_is_released_when_the_kernel_lets_go() {
    let (mut lone, partition) = producer(1);
    lone.open_channel(0, shape(1, 1), 0, 0, 4);
    lone.frames();
    lone.submit(partition, data(0, 0, 0, 1000, true));
    lone.submit(partition, data(0, 1, 0, 1000, false));
    let now = lone.now;
    assert!(lone.shard.poll_transmit(lone.link, &mut lone.transmit, now));
    lone.shard.handle_partition_closed(
        partition,
        Some(Failure::new(FailureCode::ProducerGone, "killed")),
        now,
    );
    lone.check();
    let released = |lone: &mut Lone| lone.notices().contains(&Notice::PartitionReleased(partition));
    assert!(!released(&mut lone), "the kernel still reads");
    // The socket took a part of the first frame: it must be finished from the same memory.
    lone.shard.handle_sent(lone.link, 500, now);
    lone.check();
    assert!(!released(&mut lone));
    assert!(lone.shard.poll_transmit(lone.link, &mut lone.transmit, now));
    assert!(lone.transmit.parts.iter().any(|part| matches!(
        part,
        weir_flow::shard::Part::Slice { partition: id, offset: 468, bytes: 532, .. } if *id == partition
    )));
    lone.shard.handle_sent(lone.link, lone.transmit.bytes, now);
    lone.check();
    assert!(released(&mut lone));
    assert_eq!(lone.shard.channels(now).count(), 0);
}

/// A lost link fails the channels of both directions and nobody else's; it may be reported while a send is in flight.
#[test]
fn a_lost_link_fails_its_channels_only() {
    let (mut lone, partition) = producer(1);
    lone.open_channel(0, shape(1, 1), 0, 0, 4);
    let other = lone.shard.handle_link(link_spec("other"), lone.now);
    let gate = lone.open_gate(1, 2, 2);
    let spared = lone.shard.handle_gate(gate_spec(shape(1, 1), 0, 2, 2), lone.now);
    lone.shard.handle_producer(spared, any_life(0), other, lone.now);
    lone.submit(partition, data(0, 0, 0, 1000, true));
    let now = lone.now;
    assert!(lone.shard.poll_transmit(lone.link, &mut lone.transmit, now));
    lone.shard.handle_link_closed(lone.link, "reset by peer", now);
    lone.check();
    let deliveries = lone.deliveries(gate);
    let [Delivery::Failed { failure, .. }] = &deliveries[..] else { panic!("{deliveries:?}") };
    assert_eq!(failure.code, FailureCode::LinkLost);
    assert_eq!(failure.text, "the link to node peer was lost: reset by peer");
    assert!(
        matches!(&lone.updates(partition)[..], [PartitionUpdate::Failed(_)]),
        "the kernel has its segment"
    );
    assert_eq!(lone.deliveries(spared), []);
    lone.shard.handle_sent(lone.link, 10, now);
    lone.check();
    assert!(matches!(&lone.updates(partition)[..], [PartitionUpdate::Returned(_)]));
    assert_eq!(lone.shard.links().count(), 1);
    assert!(!lone.shard.poll_transmit(lone.link, &mut lone.transmit, now));
    lone.shard.handle_producer(spared, any_life(0), lone.link, now);
    assert_eq!(lone.deliveries(spared), [], "it was opened before: without effect");
}

/// A gate over a link that is not there, or that was made wrong, hears of it on the channel.
#[test]
fn what_stands_against_opening_is_delivered_as_a_failure() {
    let mut lone = Lone::new();
    let failure = |lone: &mut Lone, gate| match &lone.deliveries(gate)[..] {
        [Delivery::Failed { channel: 0, failure }] => failure.code,
        other => panic!("one failure: {other:?}"),
    };
    let gate = lone.shard.handle_gate(gate_spec(shape(1, 1), 0, 2, 2), lone.now);
    lone.shard.handle_producer(gate, any_life(0), LinkId(99), lone.now);
    assert_eq!(failure(&mut lone, gate), FailureCode::LinkLost);
    let small = lone.shard.handle_gate(gate_spec(shape(2, 1), 0, 3, 2), lone.now);
    lone.shard.handle_producer(small, any_life(0), lone.link, lone.now);
    assert_eq!(failure(&mut lone, small), FailureCode::OverBudget);
    let odd = Shape { segment_bytes: 8192, ..shape(1, 1) };
    let odd = lone.shard.handle_gate(gate_spec(odd, 0, 3, 2), lone.now);
    lone.shard.handle_producer(odd, any_life(0), lone.link, lone.now);
    assert_eq!(failure(&mut lone, odd), FailureCode::Mismatch);
    lone.shard.handle_producer(odd, any_life(7), lone.link, lone.now);
    lone.check();
    assert_eq!(lone.frames(), [], "nothing was asked for");
}

/// In forward exchanges producer i feeds consumer i alone, on channel 0 of its gate.
#[test]
fn forward_pairs_producer_and_consumer() {
    let forward = Shape { strategy: Strategy::Forward, ..shape(3, 3) };
    let mut lone = Lone::new();
    let gate = lone.shard.handle_gate(gate_spec(forward, 1, 2, 2), lone.now);
    lone.shard.handle_producer(gate, any_life(0), lone.link, lone.now);
    assert_eq!(lone.messages(), [], "producer 0 does not feed consumer 1");
    let life = ProducerLife { incarnation: Incarnation(9), ..any_life(1) };
    lone.shard.handle_producer(gate, life, lone.link, lone.now);
    lone.shard.handle_producer(gate, life, lone.link, lone.now);
    let messages = lone.messages();
    let [Message::OpenChannel { open, .. }] = &messages[..] else { panic!("asked once: {messages:?}") };
    assert_eq!(open.incarnation, Incarnation(9), "for the life that the gate was told of");
    let partition = lone.shard.handle_partition(partition_spec(forward, 2, 4), lone.now);
    lone.open_channel(0, forward, 2, 1, 2);
    assert_eq!(refusal(&mut lone).0, FailureCode::IndexOutOfRange);
    lone.open_channel(0, forward, 2, 2, 2);
    assert!(matches!(lone.messages()[..], [Message::ChannelAccepted { .. }]));
    let fault = lone.fault(partition, data(1, 0, 0, 10, true));
    assert_eq!((fault.field, fault.text.as_str()), ("subpartition", "is 1; needed: below 1"));
}

/// What a producer's client hands over is checked before anything changes; each fault names its field and values.
#[test]
fn a_client_that_lies_is_found_out() {
    let (mut lone, partition) = producer(2);
    lone.submit(partition, data(0, 0, 0, 100, false));
    let claims: Vec<(Submission, &str, &str)> = vec![
        (data(2, 1, 0, 10, false), "subpartition", "is 2; needed: below 2"),
        (data(0, 16, 0, 10, false), "segment", "is 16; needed: below 16"),
        (data(1, 0, 100, 10, false), "segment", "0 belongs to subpartition 0; needed: one of 1"),
        (data(0, 1, 0, 10, false), "segment", "is 1; needed: 0, which is not closed yet"),
        (data(0, 0, 0, 10, false), "offset", "is 0; needed: 100, where the last ended"),
        (data(0, 0, 200, 10, false), "offset", "is 200; needed: 100, where the last ended"),
        (data(0, 0, 100, 3997, false), "bytes", "is 3997 at offset 100; needed: 1 to 3996"),
        (data(0, 0, 100, 0, false), "bytes", "is 0 at offset 100; needed: 1 to 3996"),
        (data(1, 1, 0, 0, true), "bytes", "is 0 at offset 0; needed: 1 to 4096"),
        (data(1, 1, u32::MAX, u32::MAX, true), "offset", "is 4294967295; needed: 0, where the last ended"),
        (end(0), "end", "segment 0 is not closed; needed: to close it first"),
        (event(0, &"x".repeat(1025), false), "event bytes", "is 1025; needed: at most 1024"),
    ];
    for (claim, field, text) in claims {
        let fault = lone.fault(partition, claim);
        assert_eq!((fault.field, fault.text.as_str()), (field, text));
    }
    let records = Submission::Data {
        subpartition: SubpartitionIndex(1),
        segment: weir_flow::ids::SegmentIndex(5),
        offset: 0,
        bytes: 10,
        records: 11,
        last: false,
    };
    assert_eq!(lone.fault(partition, records).field, "records");
    lone.submit(partition, data(0, 0, 100, 10, true));
    assert_eq!(
        lone.fault(partition, data(1, 0, 110, 10, true)).text,
        "0 was not returned; needed: a free segment"
    );
    lone.submit(partition, end(0));
    assert_eq!(lone.fault(partition, end(0)).field, "subpartition");
    assert_eq!(lone.fault(partition, data(0, 3, 0, 10, true)).field, "subpartition");
    for _ in 0..128 {
        lone.submit(partition, event(1, "e", false));
    }
    assert_eq!(lone.fault(partition, event(1, "e", false)).field, "events");
    assert_eq!(lone.fault(PartitionId(77), end(0)).field, "partition");
}

/// A segment that is free but that the client was not told of is not its to use.
#[test]
fn a_client_that_guesses_a_free_segment_is_found_out() {
    let (mut lone, partition) = producer(1);
    lone.open_channel(0, shape(1, 1), 0, 0, 2);
    lone.submit(partition, data(0, 0, 0, 10, true));
    lone.frames();
    lone.grant(0, 2, 1);
    let fault = lone.fault(partition, data(0, 0, 0, 10, true));
    assert_eq!((fault.field, fault.text.as_str()), ("segment", "0 was not returned; needed: a free segment"));
    assert!(matches!(lone.updates(partition)[..], [PartitionUpdate::Returned(_)]));
    lone.submit(partition, data(0, 0, 0, 10, true));
}

/// Bytes that cannot be frames, and frames that have no place on a data link, close the link with a reason.
#[test]
fn what_cannot_be_a_frame_closes_the_link() {
    let mut lone = Lone::new();
    let mut broken = Header::new(weir_flow::wire::FrameType::Backlog).encode();
    broken[5] ^= 1;
    assert!(matches!(lone.receive_bytes(&broken), Err(WireError::HeaderChecksum { .. })));
    let mut lone = Lone::new();
    let mut header = Header::new(weir_flow::wire::FrameType::Data);
    header.length = SEGMENT_BYTES + 1;
    assert!(matches!(lone.receive_bytes(&header.encode()), Err(WireError::Length { .. })));
    let mut lone = Lone::new();
    let mut bytes = Vec::new();
    weir_flow::wire::encode(&Message::Catalog { entries: Vec::new() }, &mut bytes);
    assert!(matches!(lone.receive_bytes(&bytes), Err(WireError::Unexpected { .. })));
}

/// A peer that asks and asks and never reads the answers loses its link before they fill the memory.
#[test]
fn unread_answers_close_the_link() {
    let mut lone = Lone::new();
    let mut bytes = Vec::new();
    weir_flow::wire::encode(&open_message(0, shape(1, 1), 0, 0, 2), &mut bytes);
    let error = (0..100_000)
        .find_map(|_| lone.shard.handle_received(lone.link, &bytes, &mut lone.memory, lone.now).err())
        .expect("the link is closed");
    assert!(matches!(error, WireError::Unexpected { .. }));
}

/// Pings go out by time and answer each other; a peer that says nothing is reported once.
#[test]
fn a_silent_peer_is_reported() {
    let mut lone = Lone::new();
    let (deadline, reason) = lone.shard.poll_timeout().unwrap();
    assert_eq!((deadline, reason), (Time(1_000_000_000), "ping"));
    lone.now = deadline;
    lone.shard.handle_timeout(lone.now);
    let messages = lone.messages();
    assert_eq!(messages, [Message::Ping { token: 1_000_000_000 }]);
    lone.now = Time(1_000_300_000);
    lone.receive(&Message::Pong { token: 1_000_000_000 });
    lone.receive(&Message::Pong { token: 3 });
    assert_eq!(lone.shard.links().next().unwrap().round_trip_min_ns, Some(300_000));
    lone.receive(&Message::Ping { token: 42 });
    lone.receive(&Message::Ping { token: 43 });
    assert_eq!(lone.messages(), [Message::Pong { token: 43 }], "one answer for both");
    let mut reported = Vec::new();
    for second in 2..20 {
        lone.now = Time(second * 1_000_000_000);
        lone.shard.handle_timeout(lone.now);
        lone.check();
        lone.frames();
        reported.extend(lone.notices());
    }
    let link = lone.link;
    assert_eq!(reported, [Notice::LinkTimedOut { link, silent_ns: 5_999_700_000 }]);
    assert_eq!(lone.shard.poll_timeout(), None);
}

/// A daemon that stops says so: no new channels on either end, those that there are run to their end, and the failure
/// of what is left is `stopping` and not `link lost`.
#[test]
fn a_stopping_daemon_drains() {
    let mut pair = Pair::new(limits());
    let now = pair.now;
    let partition = pair.nodes[0].add_partition(partition_spec(shape(1, 1), 0, 8), now);
    let gate = pair.nodes[1].add_gate(gate_spec(shape(1, 1), 0, 4, 2), now);
    let link = pair.nodes[1].link;
    pair.nodes[1].shard.handle_producer(gate, any_life(0), link, now);
    pair.settle();
    pair.nodes[0].shard.handle_submission(partition, data(0, 0, 0, 100, true), now).unwrap();
    assert!(!pair.nodes[0].shard.is_drained(), "it was not asked to");
    pair.nodes[0].shard.handle_drain(now);
    assert!(!pair.nodes[0].shard.is_drained(), "data waits");
    pair.settle();
    assert!(pair.nodes[0].shard.is_drained());
    let notices: Vec<Notice> = std::iter::from_fn(|| pair.nodes[1].shard.poll_notice()).collect();
    assert!(notices.contains(&Notice::LinkGoodbye(link)));
    let late = pair.nodes[1].add_gate(gate_spec(shape(1, 1), 0, 4, 2), now);
    pair.nodes[1].shard.handle_producer(late, any_life(0), link, now);
    let delivery = pair.nodes[1].shard.poll_delivery(late);
    assert!(
        matches!(delivery, Some(Delivery::Failed { failure, .. }) if failure.code == FailureCode::Stopping)
    );
    pair.nodes[1].shard.handle_link_closed(link, "end of stream", now);
    pair.check();
    let deliveries: Vec<Delivery> = std::iter::from_fn(|| pair.nodes[1].shard.poll_delivery(gate)).collect();
    assert!(matches!(
        &deliveries[..],
        [Delivery::Data { bytes: 100, .. }, Delivery::Failed { failure, .. }] if failure.code == FailureCode::Stopping
    ));
}

/// A gate that closes while its channel is being opened cancels it on the other end.
#[test]
fn a_gate_may_close_before_its_channel_opened() {
    let mut pair = Pair::new(limits());
    let now = pair.now;
    let partition = pair.nodes[0].add_partition(partition_spec(shape(1, 1), 0, 8), now);
    let gate = pair.nodes[1].add_gate(gate_spec(shape(1, 1), 0, 4, 2), now);
    let link = pair.nodes[1].link;
    pair.nodes[1].shard.handle_producer(gate, any_life(0), link, now);
    pair.nodes[1].shard.handle_gate_closed(gate, None, now);
    pair.nodes[1].memory.remove(gate);
    pair.settle();
    let updates: Vec<PartitionUpdate> =
        std::iter::from_fn(|| pair.nodes[0].shard.poll_update(partition)).collect();
    assert!(matches!(
        &updates[..],
        [PartitionUpdate::Failed(failure)] if failure.code == FailureCode::ConsumerGone
    ));
}

/// After a short write only the frame that was begun is fixed: control that came since goes before the data behind it.
#[test]
fn behind_a_begun_frame_everything_is_planned_anew() {
    let (mut lone, partition) = producer(1);
    lone.open_channel(0, shape(1, 1), 0, 0, 8);
    lone.frames();
    for segment in 0..3 {
        lone.submit(partition, data(0, segment, 0, 1000, true));
    }
    let now = lone.now;
    assert!(lone.shard.poll_transmit(lone.link, &mut lone.transmit, now));
    assert_eq!(lone.transmit.bytes, 3 * 1032);
    lone.shard.handle_sent(lone.link, 1032 + 20, now);
    lone.check();
    let view = lone.shard.subpartition_view(partition, SubpartitionIndex(0)).unwrap();
    assert_eq!((view.credit, view.queued_bytes, view.sent_segments), (7, 1000, 1));
    lone.receive(&Message::Ping { token: 5 });
    lone.submit(partition, event(0, "urgent", true));
    assert!(lone.shard.poll_transmit(lone.link, &mut lone.transmit, now));
    let weir_flow::shard::Part::Header { start: 0, bytes: 12 } = lone.transmit.parts[0] else {
        panic!("the rest of the begun header: {:?}", lone.transmit.parts)
    };
    let mut rest = lone.transmit.clone();
    rest.headers.drain(..12);
    rest.parts.drain(..2);
    for part in &mut rest.parts {
        if let weir_flow::shard::Part::Header { start, .. } = part {
            *start -= 12;
        }
    }
    rest.bytes -= 1012;
    let behind = harness::frames(&rest);
    assert!(
        matches!(
            &behind[..],
            [
                Seen::Message(Message::Pong { token: 5 }),
                Seen::Message(Message::Event { priority: true, .. }),
                Seen::Data { sequence: 3, .. },
            ]
        ),
        "{behind:?}"
    );
    lone.shard.handle_sent(lone.link, 0, now);
    lone.check();
    assert!(
        lone.shard.poll_transmit(lone.link, &mut lone.transmit, now),
        "nothing was lost by a write of 0 bytes"
    );
    assert_eq!(lone.transmit.bytes, rest.bytes + 1012);
    lone.shard.handle_sent(lone.link, lone.transmit.bytes, now);
    lone.check();
}
