//! A partition whose consumers all read the same segments, against scripted consumers. That everything arrives once and
//! in order at each of them, `pair.rs` and the simulator show.

mod harness;

use harness::{
    Lone, Seen, cancel_message, data, end, event, limit_message, link_spec, open_message, partition_spec,
    shape,
};
use weir_flow::exchange::{Shape, Strategy};
use weir_flow::failure::{Failure, FailureCode};
use weir_flow::ids::{
    ChannelIndex, Incarnation, LinkId, PartitionId, SegmentIndex, Sequence, SubpartitionIndex,
};
use weir_flow::shard::{Notice, PartitionUpdate, SubpartitionView};
use weir_flow::wire::{Limit, Message, Resume, encode};

const KIB: u32 = 1024;
const SEGMENTS: u32 = 6;

fn broadcast(consumers: u32) -> Shape {
    Shape { strategy: Strategy::Broadcast, ..shape(1, consumers) }
}

/// One producer with this many consumers; the first ones are connected, each with its limit of receive segments.
fn producer(consumers: u32, limits: &[u64]) -> (Lone, PartitionId) {
    let mut lone = Lone::new();
    let partition = lone.shard.handle_partition(partition_spec(broadcast(consumers), 0, SEGMENTS), lone.now);
    for (consumer, limit) in (0..).zip(limits) {
        lone.open_channel(consumer, broadcast(consumers), 0, consumer, *limit);
    }
    lone.frames();
    lone.notices();
    (lone, partition)
}

/// Channel, segment, offset and length of each data frame.
fn slices(frames: &[Seen]) -> Vec<(u32, u32, u32, u32)> {
    frames
        .iter()
        .map(|seen| match seen {
            Seen::Data { channel, segment, offset, bytes, .. } => (*channel, *segment, *offset, *bytes),
            Seen::Message(message) => panic!("unexpected {message:?}"),
        })
        .collect()
}

fn view(lone: &Lone, partition: PartitionId) -> SubpartitionView {
    lone.shard.subpartition_view(partition, SubpartitionIndex(0)).unwrap()
}

fn returned(segments: &[u32]) -> Vec<PartitionUpdate> {
    segments.iter().map(|segment| PartitionUpdate::Returned(SegmentIndex(*segment))).collect()
}

#[test]
fn a_segment_is_handed_over_once_and_comes_back_when_the_last_consumer_has_it() {
    let (mut lone, partition) = producer(3, &[4, 4, 4]);
    lone.submit(partition, data(0, 0, 0, KIB, true));
    assert_eq!(slices(&lone.data_frames()), [(0, 0, 0, KIB), (1, 0, 0, KIB), (2, 0, 0, KIB)]);
    for channel in [1, 0] {
        lone.grant(channel, 4, 1);
        assert_eq!(lone.updates(partition), [], "another has not acknowledged it");
    }
    lone.grant(2, 4, 1);
    assert_eq!(lone.updates(partition), returned(&[0]), "once");
    for channel in 0..3 {
        lone.grant(channel, 4, 1);
    }
    assert_eq!(lone.updates(partition), []);
}

/// The client's quota counts what is open or queued, and a segment is queued for as long as one consumer waits for it.
#[test]
fn the_client_sees_the_consumer_that_is_furthest_behind() {
    let (mut lone, partition) = producer(2, &[3, 0]);
    lone.submit(partition, data(0, 0, 0, 3 * KIB, true));
    lone.submit(partition, event(0, "soon", false));
    lone.frames();
    let ahead = Limit { limit: 5, ack: 2, consumed: 3072, event_limit: 9, age_us: 0 };
    lone.receive(&limit_message(0, ahead));
    let behind = view(&lone, partition);
    assert_eq!((behind.credit, behind.sent_segments, behind.queued_bytes), (0, 0, 3072));
    assert_eq!((behind.acked_bytes, behind.consumed_bytes, behind.events_in_flight), (0, 0, 1));
    let mut changed = Vec::new();
    lone.shard.take_changed_subpartitions(partition, &mut changed);
    assert_eq!(changed, [SubpartitionIndex(0)], "one view for all, named once");
    changed.clear();
    lone.grant(1, 2, 0);
    lone.shard.take_changed_subpartitions(partition, &mut changed);
    assert_eq!(changed, [SubpartitionIndex(0)], "whichever consumer it is that changed");
    lone.frames();
    let sent = view(&lone, partition);
    assert_eq!((sent.credit, sent.sent_segments, sent.queued_bytes), (1, 1, 0));
    lone.receive(&limit_message(1, Limit { limit: 2, ack: 2, consumed: 1024, event_limit: 9, age_us: 0 }));
    let acked = view(&lone, partition);
    assert_eq!((acked.acked_bytes, acked.consumed_bytes, acked.events_in_flight), (3072, 1024, 0));
    assert_eq!(lone.shard.subpartition_view(partition, SubpartitionIndex(1)), None);
}

/// What a stopped consumer ties up is the pool of its producer; the others get all that was handed over until then.
#[test]
fn a_stopped_consumer_holds_the_segments_and_no_other_consumer_waits_for_what_was_handed_over() {
    let (mut lone, partition) = producer(3, &[64, 0, 64]);
    for segment in 0..SEGMENTS {
        lone.submit(partition, data(0, segment, 0, 4 * KIB, true));
    }
    let frames = lone.data_frames();
    for channel in [0, 2] {
        let got = slices(&frames).iter().filter(|slice| slice.0 == channel).count();
        assert_eq!(got, SEGMENTS as usize, "channel {channel}: {frames:?}");
        lone.grant(channel, 64, SEGMENTS.into());
    }
    assert_eq!(lone.updates(partition), [], "the client has no segment to go on with");
    let fault = lone.fault(partition, data(0, 0, 0, KIB, true));
    assert_eq!(fault.field, "segment", "{fault}");
    lone.grant(1, 2, 0);
    assert_eq!(slices(&lone.data_frames()), [(1, 0, 0, 4 * KIB), (1, 1, 0, 4 * KIB)]);
    lone.grant(1, 2, 1);
    assert_eq!(lone.updates(partition), returned(&[0]));
}

#[test]
fn a_consumer_that_comes_late_gets_everything_from_the_beginning() {
    let (mut lone, partition) = producer(2, &[8]);
    lone.submit(partition, data(0, 0, 0, KIB, false));
    assert_eq!(slices(&lone.data_frames()), [(0, 0, 0, KIB)]);
    lone.submit(partition, data(0, 0, KIB, KIB, true));
    lone.submit(partition, data(0, 1, 0, KIB, true));
    lone.submit(partition, end(0));
    lone.frames();
    lone.grant(0, 8, 4);
    lone.receive(&Message::EndAck { channel: ChannelIndex(0) });
    assert_eq!(lone.updates(partition), [], "nothing is free, and nothing has ended");
    lone.open_channel(1, broadcast(2), 0, 1, 8);
    let frames = lone.frames();
    let slices: Vec<_> = frames
        .iter()
        .filter_map(|seen| match seen {
            Seen::Data { channel, segment, offset, bytes, .. } => Some((*channel, *segment, *offset, *bytes)),
            Seen::Message(_) => None,
        })
        .collect();
    assert_eq!(slices, [(1, 0, 0, 2 * KIB), (1, 1, 0, KIB)], "merged, since none of it was sent to this one");
    assert!(matches!(frames.last(), Some(Seen::Message(Message::EndOfData { .. }))), "{frames:?}");
    lone.grant(1, 8, 3);
    lone.receive(&Message::EndAck { channel: ChannelIndex(1) });
    let mut updates = returned(&[0, 1]);
    updates.push(PartitionUpdate::Finished);
    assert_eq!(lone.updates(partition), updates);
}

#[test]
fn an_event_is_handed_over_once_and_the_slowest_consumer_bounds_how_many_there_are() {
    let (mut lone, partition) = producer(2, &[0, 0]);
    for number in 0..9 {
        lone.submit(partition, event(0, &number.to_string(), number % 2 == 0));
    }
    let messages = lone.messages();
    for channel in [ChannelIndex(0), ChannelIndex(1)] {
        let to = |message: &&Message| matches!(message, Message::Event { channel: to, .. } if *to == channel);
        assert_eq!(messages.iter().filter(to).count(), 7, "the window of channel {channel}");
    }
    lone.receive(&limit_message(0, Limit { limit: 0, ack: 7, event_limit: 15, ..Limit::default() }));
    lone.frames();
    lone.receive(&limit_message(0, Limit { limit: 0, ack: 9, event_limit: 17, ..Limit::default() }));
    assert_eq!(view(&lone, partition).events_in_flight, 9, "the other has acknowledged none");
    for number in 9..128 {
        lone.submit(partition, event(0, &number.to_string(), false));
    }
    let fault = lone.fault(partition, event(0, "one too many", false));
    assert_eq!(fault.field, "events", "{fault}");
}

/// There is one address. A client that names another lies.
#[test]
fn another_address_than_0_is_refused() {
    for submission in [data(1, 0, 0, KIB, true), event(1, "x", false), end(1), data(u32::MAX, 0, 0, 1, true)]
    {
        let (mut lone, partition) = producer(3, &[4, 4, 4]);
        let fault = lone.fault(partition, submission);
        assert_eq!(fault.field, "subpartition", "{fault}");
        assert!(fault.text.contains("below 1"), "{fault}");
    }
    let (mut lone, partition) = producer(3, &[4, 4, 4]);
    lone.submit(partition, end(0));
    assert_eq!(lone.messages().len(), 3, "an end for each");
    let fault = lone.fault(partition, data(0, 0, 0, KIB, true));
    assert!(fault.text.contains("was ended"), "{fault}");
}

/// Nobody stands in for a consumer of a broadcast, whatever was asked for.
#[test]
fn a_lost_consumer_fails_the_partition_and_every_segment_comes_back_once() {
    for continue_without in [false, true] {
        let mut lone = Lone::new();
        let mut spec = partition_spec(broadcast(3), 0, SEGMENTS);
        spec.continue_without = continue_without;
        let partition = lone.shard.handle_partition(spec, lone.now);
        for consumer in 0..3 {
            lone.open_channel(consumer, broadcast(3), 0, consumer, u64::from(consumer));
        }
        lone.frames();
        lone.notices();
        for segment in 0..3 {
            lone.submit(partition, data(0, segment, 0, 4 * KIB, segment < 2));
        }
        lone.frames();
        lone.grant(2, 2, 1);
        lone.receive(&cancel_message(1, Failure::new(FailureCode::ConsumerGone, "it left")));
        let mut updates = lone.updates(partition);
        let Some(PartitionUpdate::Failed(failure)) = updates.pop() else { panic!("{updates:?}") };
        assert_eq!(failure.code, FailureCode::ConsumerGone, "{failure}");
        assert!(view(&lone, partition).is_gone);
        let mut free = returned(&[0, 1]);
        free.sort_by_key(|update| format!("{update:?}"));
        updates.sort_by_key(|update| format!("{update:?}"));
        assert_eq!(updates, free, "the third is still the client's");
        let failed = lone.messages();
        let is_failed = |message: &Message| matches!(message, Message::ChannelFailed { failure, .. } if failure.code == FailureCode::ConsumerGone);
        assert_eq!(failed.iter().filter(|message| is_failed(message)).count(), 3, "{failed:?}");
        lone.shard.handle_partition_closed(partition, None, lone.now);
        lone.check();
        assert!(lone.notices().contains(&Notice::PartitionReleased(partition)));
    }
}

/// One that has everything does not make up for one that has not.
#[test]
fn a_consumer_that_is_lost_after_another_has_ended_fails_the_partition_all_the_same() {
    let (mut lone, partition) = producer(2, &[4, 0]);
    lone.submit(partition, data(0, 0, 0, KIB, true));
    lone.submit(partition, end(0));
    lone.frames();
    lone.grant(0, 4, 2);
    lone.receive(&Message::EndAck { channel: ChannelIndex(0) });
    assert!(!view(&lone, partition).is_gone);
    lone.receive(&cancel_message(1, Failure::new(FailureCode::ConsumerGone, "it left")));
    assert!(view(&lone, partition).is_gone);
    let updates = lone.updates(partition);
    assert_eq!(updates.first(), returned(&[0]).first(), "{updates:?}");
    assert!(
        matches!(&updates[1..], [PartitionUpdate::Failed(failure)] if failure.code == FailureCode::ConsumerGone)
    );
}

/// Two consumers on links of their own. The socket of one is lost with data on the way: the segment waits for it, and the
/// other goes on.
#[test]
fn a_segment_waits_for_the_consumer_whose_link_is_interrupted() {
    let (mut lone, partition) = producer(2, &[8]);
    let first = lone.link;
    let second = lone.shard.handle_link(link_spec("other"), lone.now);
    let deliver = |lone: &mut Lone, link: LinkId, message: &Message| {
        let mut bytes = Vec::new();
        encode(message, &mut bytes);
        lone.shard.handle_received(link, &bytes, &mut lone.memory, lone.now).unwrap();
        lone.check();
    };
    deliver(&mut lone, second, &open_message(0, broadcast(2), 0, 1, 8));
    lone.link = second;
    lone.frames();
    for (segment, offset, last) in [(0, 0, false), (0, KIB, true), (1, 0, true)] {
        lone.submit(partition, data(0, segment, offset, KIB, last));
        for link in [first, second] {
            lone.link = link;
            assert_eq!(lone.data_frames().len(), 1, "a frame of its own for each slice");
        }
    }
    lone.shard.handle_link_lost(second, "reset", lone.now);
    lone.check();
    deliver(
        &mut lone,
        first,
        &limit_message(0, Limit { limit: 8, ack: 3, event_limit: 8, ..Limit::default() }),
    );
    assert_eq!(lone.updates(partition), [], "the other may have to get it again");
    lone.submit(partition, data(0, 2, 0, KIB, true));
    lone.link = first;
    assert_eq!(slices(&lone.data_frames()), [(0, 2, 0, KIB)], "this one goes on");

    lone.link = second;
    assert!(lone.shard.handle_link_resumed(second, lone.now));
    deliver(&mut lone, second, &Message::LinkResume { control_received: 1 });
    let resume = Resume {
        incarnation: Incarnation(7),
        next_sequence: Sequence(1),
        opened: 1,
        open_fill: KIB,
        limit: 8,
        event_limit: 8,
        consumed: 0,
    };
    deliver(&mut lone, second, &Message::Resume { channel: ChannelIndex(0), resume });
    assert_eq!(lone.updates(partition), [], "half of the first segment is to be sent again");
    assert_eq!(
        slices(&lone.data_frames()),
        [(0, 0, KIB, KIB), (0, 1, 0, KIB), (0, 2, 0, KIB)],
        "from where the receiver is, with what came meanwhile"
    );
    let acked = |ack| limit_message(0, Limit { limit: 8, ack, event_limit: 8, ..Limit::default() });
    deliver(&mut lone, second, &acked(3));
    assert_eq!(lone.updates(partition), returned(&[0, 1]));
    deliver(&mut lone, second, &acked(4));
    assert_eq!(lone.updates(partition), [], "the first has not acknowledged the last one");
    deliver(&mut lone, first, &acked(4));
    assert_eq!(lone.updates(partition), returned(&[2]));
}

/// A segment is in the kernel's hands once for each consumer, and free when all have let go.
#[test]
fn a_client_that_closes_with_sends_in_flight_keeps_its_memory_until_both_have_ended() {
    let (mut lone, partition) = producer(2, &[8]);
    let first = lone.link;
    let second = lone.shard.handle_link(link_spec("other"), lone.now);
    let mut bytes = Vec::new();
    encode(&open_message(0, broadcast(2), 0, 1, 8), &mut bytes);
    lone.shard.handle_received(second, &bytes, &mut lone.memory, lone.now).unwrap();
    lone.link = second;
    lone.frames();
    lone.submit(partition, data(0, 0, 0, KIB, true));
    let mut sizes = Vec::new();
    for link in [first, second] {
        assert!(lone.shard.poll_transmit(link, &mut lone.transmit, lone.now));
        sizes.push(lone.transmit.bytes);
    }
    lone.shard.handle_partition_closed(partition, None, lone.now);
    lone.check();
    let released = |lone: &mut Lone| lone.notices().contains(&Notice::PartitionReleased(partition));
    assert!(!released(&mut lone), "two sends read it");
    lone.shard.handle_sent(first, sizes[0], lone.now);
    lone.check();
    assert!(!released(&mut lone), "one still reads it");
    lone.shard.handle_sent(second, sizes[1], lone.now);
    lone.check();
    assert!(released(&mut lone));
}
