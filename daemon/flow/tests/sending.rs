//! The sending end, against a scripted consumer. Follows Flink's PartitionRequestQueueTest and PipelinedSubpartition
//! tests where their behaviour has a meaning here.

mod harness;

use harness::{Lone, Seen, data, end, event, limit_message, partition_spec, shape};
use weir_flow::failure::FailureCode;
use weir_flow::ids::{PartitionId, SegmentIndex, SubpartitionIndex, Time};
use weir_flow::shard::{Notice, PartitionUpdate, Submission};
use weir_flow::wire::{Limit, Message};

const KIB: u32 = 1024;

/// One producer with this many consumers; the first ones are connected with this limit of receive segments.
fn producer(consumers: u32, connected: u32, limit: u64) -> (Lone, PartitionId) {
    let mut lone = Lone::new();
    let partition = lone.shard.handle_partition(partition_spec(shape(1, consumers), 0, 64), lone.now);
    for consumer in 0..connected {
        lone.open_channel(consumer, shape(1, consumers), 0, consumer, limit);
    }
    lone.frames();
    lone.notices();
    (lone, partition)
}

fn sizes(frames: &[Seen]) -> Vec<(u32, bool)> {
    frames
        .iter()
        .map(|seen| match seen {
            Seen::Data { bytes, open, .. } => (*bytes, *open),
            Seen::Message(message) => panic!("unexpected {message:?}"),
        })
        .collect()
}

fn view(lone: &Lone, partition: PartitionId) -> weir_flow::shard::SubpartitionView {
    lone.shard.subpartition_view(partition, SubpartitionIndex(0)).unwrap()
}

/// Row 44 (PartitionRequestQueueTest): an event at the head is sent with 0 credits and costs none. Here events have
/// their own window, of which one place is kept for the end of data.
#[test]
fn an_event_is_sent_without_credit_and_costs_none() {
    let (mut lone, partition) = producer(1, 1, 0);
    lone.submit(partition, event(0, "now", false));
    let messages = lone.messages();
    assert!(matches!(&messages[..], [Message::Event { payload, .. }] if payload == "now"), "{messages:?}");
    lone.grant(0, 1, 1);
    lone.submit(partition, data(0, 0, 0, KIB, true));
    assert_eq!(sizes(&lone.data_frames()), [(KIB, true)], "the one credit is still there");
}

/// Row 44, the window: seven events go, the eighth place is the end's, and consuming makes room.
#[test]
fn events_wait_for_their_window_and_the_end_never_does() {
    let (mut lone, partition) = producer(1, 1, 2);
    for number in 0..9 {
        lone.submit(partition, event(0, &number.to_string(), false));
    }
    assert_eq!(lone.messages().len(), 7);
    lone.receive(&limit_message(0, Limit { limit: 2, ack: 7, event_limit: 10, ..Limit::default() }));
    lone.submit(partition, end(0));
    let messages = lone.messages();
    assert!(matches!(
        &messages[..],
        [Message::Event { .. }, Message::Event { .. }, Message::EndOfData { .. }]
    ));
    assert_eq!(view(&lone, partition).events_in_flight, 2, "seven were acknowledged");
}

/// Row 45 (PartitionRequestQueueTest): no data without credit, however often it is asked; three credits, exactly three
/// buffers; never listed twice.
#[test]
fn three_credits_open_exactly_three_segments() {
    let (mut lone, partition) = producer(1, 1, 0);
    for segment in 0..5 {
        lone.submit(partition, data(0, segment, 0, 4 * KIB, true));
    }
    assert!(lone.data_frames().is_empty());
    let mut links = Vec::new();
    lone.shard.take_links(&mut links);
    lone.grant(0, 3, 0);
    lone.grant(0, 3, 0);
    links.clear();
    lone.shard.take_links(&mut links);
    assert_eq!(links, [lone.link], "the link is named once");
    assert_eq!(sizes(&lone.data_frames()), [(4 * KIB, true); 3]);
    lone.grant(0, 2, 0);
    assert!(lone.data_frames().is_empty(), "an older limit is without effect");
    assert_eq!((view(&lone, partition).credit, view(&lone, partition).queued_bytes), (0, 8 * 1024));
}

/// Row 46 (PartitionRequestQueueTest), adapted: a backlog is announced alone when credit is 0, once per growth. Flink
/// does so only with E = 0; here exclusive segments may be in use too.
#[test]
fn a_backlog_without_credit_is_announced_once() {
    let (mut lone, partition) = producer(1, 1, 0);
    lone.submit(partition, data(0, 0, 0, 4 * KIB, true));
    let announced = |messages: &[Message]| match messages {
        [Message::Backlog { backlog, closed: false, .. }] => Some(*backlog),
        _ => None,
    };
    assert_eq!(announced(&lone.messages()), Some(1));
    lone.submit(partition, data(0, 1, 0, KIB, false));
    assert_eq!(announced(&lone.messages()), Some(2));
    lone.submit(partition, data(0, 1, KIB, KIB, true));
    assert!(lone.messages().is_empty(), "a slice that grows inside its segment opens no other");
}

/// Row 47 (PartitionRequestQueueTest), adapted: Flink resumes after a barrier. Here new credit takes a blocked channel
/// back into the round and sends what is queued.
#[test]
fn new_credit_sends_what_is_queued() {
    let (mut lone, partition) = producer(1, 1, 1);
    for segment in 0..3 {
        lone.submit(partition, data(0, segment, 0, 3 * KIB, true));
    }
    assert_eq!(sizes(&lone.data_frames()), [(3 * KIB, true)]);
    lone.grant(0, 2, 1);
    assert_eq!(sizes(&lone.data_frames()), [(3 * KIB, true)]);
    assert_eq!(lone.updates(partition), [PartitionUpdate::Returned(SegmentIndex(0))]);
    lone.grant(0, 3, 2);
    assert_eq!(sizes(&lone.data_frames()), [(3 * KIB, true)]);
}

/// Row 48 (PartitionRequestQueueTest): a channel that is always named but has nothing does not starve another. Events
/// keep channel 0 busy; every batch still has data of channel 1.
#[test]
fn a_busy_channel_does_not_starve_another() {
    let (mut lone, partition) = producer(2, 2, 16);
    for segment in 0..8 {
        lone.submit(partition, data(0, segment, 0, 4 * KIB, true));
        lone.submit(partition, data(1, 8 + segment, 0, 4 * KIB, true));
    }
    let frames = lone.data_frames();
    let mut sent = [0_i32; 2];
    for seen in &frames {
        let Seen::Data { channel, .. } = seen else { continue };
        sent[*channel as usize] += 1;
        assert!((sent[0] - sent[1]).abs() <= 1, "in turn: {frames:?}");
    }
    assert_eq!(sent, [8, 8]);
}

/// Row 48, by bytes: small frames and large ones get the same share of a link.
#[test]
fn turns_are_counted_in_bytes() {
    let (mut lone, partition) = producer(2, 2, 16);
    for segment in 0..6 {
        lone.submit(partition, data(0, segment, 0, 4 * KIB, true));
    }
    for segment in 6..30 {
        lone.submit(partition, data(1, segment, 0, KIB, true));
    }
    let frames = lone.data_frames();
    let (mut sent, mut others) = (0, 0);
    for seen in &frames {
        let Seen::Data { channel, bytes, .. } = seen else { continue };
        if *channel == 0 {
            sent += bytes;
        } else if sent < 24 * KIB {
            others += bytes;
        }
    }
    assert!((16 * KIB..=28 * KIB).contains(&others), "channel 1 sent {others} bytes beside 24 KiB");
}

/// Row 50 (PartitionRequestQueueTest), adapted: Flink cuts buffers at a size that the receiver wishes. Here slices are
/// as long as the client flushed them; those that lie side by side and were not sent are one frame.
#[test]
fn unsent_slices_of_a_segment_are_one_frame() {
    let (mut lone, partition) = producer(1, 0, 0);
    lone.submit(partition, data(0, 0, 0, 128, false));
    lone.submit(partition, data(0, 0, 128, 10, false));
    lone.submit(partition, data(0, 0, 138, 60, true));
    lone.submit(partition, data(0, 1, 0, 65, true));
    lone.open_channel(0, shape(1, 1), 0, 0, 2);
    assert_eq!(sizes(&lone.data_frames()), [(198, true), (65, false)]);
}

/// Row 53 (PipelinedSubpartitionWithReadViewTest), adapted: how often the shell is told. Once for the first slice, not
/// again until it was looked at, and not at all while there is nothing that may be sent.
#[test]
fn the_shell_is_told_once_until_it_looks() {
    let (mut lone, partition) = producer(1, 1, 1);
    let told = |lone: &mut Lone| {
        let mut links = Vec::new();
        lone.shard.take_links(&mut links);
        links.len()
    };
    let flush = |lone: &mut Lone| {
        lone.frames();
        told(lone);
    };
    flush(&mut lone);
    lone.submit(partition, data(0, 0, 0, 100, false));
    lone.submit(partition, data(0, 0, 100, 100, false));
    assert_eq!(told(&mut lone), 1, "once for the first of two");
    assert_eq!(told(&mut lone), 0);
    flush(&mut lone);
    lone.submit(partition, data(0, 0, 200, 100, false));
    assert_eq!(told(&mut lone), 1, "once for a flush that can go");
    flush(&mut lone);
    lone.submit(partition, data(0, 0, 300, 3796, true));
    lone.submit(partition, data(0, 1, 0, 4096, true));
    flush(&mut lone);
    lone.submit(partition, data(0, 2, 0, 10, false));
    assert_eq!(told(&mut lone), 1, "no credit, but the backlog grew");
    flush(&mut lone);
    lone.submit(partition, data(0, 2, 10, 10, false));
    assert_eq!(told(&mut lone), 0, "no credit, and nothing that the receiver should know");
    assert_eq!(lone.frames(), []);
}

/// Row 54 (PipelinedSubpartitionWithReadViewTest), adapted: the backlog is receive segments that the queue would open,
/// not buffers; what was flushed counts, what was not handed over cannot.
#[test]
fn the_backlog_is_what_sending_the_queue_would_open() {
    let (mut lone, partition) = producer(1, 1, 1);
    for (segment, bytes) in [(0, 3 * KIB), (1, KIB), (2, KIB), (3, 2 * KIB), (4, 2 * KIB)] {
        lone.submit(partition, data(0, segment, 0, bytes, true));
    }
    let backlogs = |frames: Vec<Seen>| -> Vec<(u32, bool)> {
        let data = frames.into_iter().filter_map(|seen| match seen {
            Seen::Data { backlog, open, .. } => Some((backlog, open)),
            Seen::Message(_) => None,
        });
        data.collect()
    };
    // 3 + 1 fill the first; 1 + 2 share the second; 2 does not fit behind them.
    assert_eq!(backlogs(lone.frames()), [(2, true), (2, false)]);
    lone.grant(0, 3, 2);
    assert_eq!(backlogs(lone.frames()), [(1, true), (1, false), (0, true)]);
}

/// A head that does not fit gives the open segment up when there is no credit: the receiver gets it back.
#[test]
fn an_open_segment_is_given_up_when_the_head_does_not_fit() {
    let (mut lone, partition) = producer(1, 1, 1);
    lone.submit(partition, data(0, 0, 0, 3 * KIB, true));
    lone.frames();
    lone.submit(partition, data(0, 1, 0, 2 * KIB, true));
    let messages = lone.messages();
    assert!(matches!(&messages[..], [Message::Backlog { backlog: 1, closed: true, .. }]), "{messages:?}");
    lone.submit(partition, data(0, 2, 0, KIB, true));
    assert!(lone.data_frames().is_empty(), "what would fit stays behind: order is kept");
    lone.grant(0, 2, 1);
    assert_eq!(sizes(&lone.data_frames()), [(2 * KIB, true), (KIB, false)]);
}

/// A priority event overtakes queued data and is numbered as it is sent.
#[test]
fn a_priority_event_overtakes_queued_data() {
    let (mut lone, partition) = producer(1, 1, 4);
    lone.submit(partition, data(0, 0, 0, 4 * KIB, true));
    lone.submit(partition, event(0, "in line", false));
    lone.submit(partition, event(0, "first", true));
    lone.submit(partition, end(0));
    let frames = lone.frames();
    let sequences: Vec<(u64, &str)> = frames
        .iter()
        .map(|seen| match seen {
            Seen::Data { sequence, .. } => (*sequence, "data"),
            Seen::Message(Message::Event { sequence, priority, .. }) => {
                (sequence.0, if *priority { "priority" } else { "event" })
            }
            Seen::Message(Message::EndOfData { sequence, .. }) => (sequence.0, "end"),
            Seen::Message(message) => panic!("unexpected {message:?}"),
        })
        .collect();
    assert_eq!(sequences, [(0, "priority"), (1, "data"), (2, "event"), (3, "end")]);
}

/// A segment returns when it is closed and every slice of it is acknowledged; an acknowledgement that comes before the
/// kernel reported the send counts when it did.
#[test]
fn a_segment_returns_when_closed_sent_and_acknowledged() {
    let (mut lone, partition) = producer(1, 1, 4);
    lone.submit(partition, data(0, 9, 0, KIB, false));
    lone.frames();
    lone.grant(0, 4, 1);
    assert_eq!(lone.updates(partition), [], "the client still writes it");
    assert_eq!(view(&lone, partition).sent_segments, 0);
    lone.submit(partition, data(0, 9, KIB, KIB, true));
    let now = lone.now;
    assert!(lone.shard.poll_transmit(lone.link, &mut lone.transmit, now));
    lone.grant(0, 4, 2);
    assert_eq!(lone.updates(partition), [], "the kernel still has it");
    lone.shard.handle_sent(lone.link, lone.transmit.bytes, now);
    lone.check();
    assert_eq!(lone.updates(partition), [PartitionUpdate::Returned(SegmentIndex(9))]);
    let view = view(&lone, partition);
    assert_eq!((view.sent_segments, view.acked_bytes), (1, 2048));
}

/// A segment that was handed over in full can be closed later with a slice of 0 bytes.
#[test]
fn a_segment_can_be_closed_after_its_last_byte() {
    let (mut lone, partition) = producer(1, 1, 4);
    lone.submit(partition, data(0, 3, 0, KIB, false));
    lone.frames();
    lone.grant(0, 4, 1);
    let close = Submission::Data {
        subpartition: SubpartitionIndex(0),
        segment: SegmentIndex(3),
        offset: KIB,
        bytes: 0,
        records: 0,
        last: true,
    };
    lone.submit(partition, close);
    assert_eq!(lone.updates(partition), [PartitionUpdate::Returned(SegmentIndex(3))]);
}

/// `finish` is over when every consumer's node has acknowledged the end; data and segments are free by then.
#[test]
fn a_partition_is_finished_when_every_end_is_acknowledged() {
    let (mut lone, partition) = producer(2, 2, 4);
    lone.submit(partition, data(0, 0, 0, KIB, true));
    for subpartition in 0..2 {
        lone.submit(partition, end(subpartition));
    }
    lone.frames();
    let ack = |channel| Message::EndAck { channel: weir_flow::ids::ChannelIndex(channel) };
    lone.receive(&ack(1));
    assert_eq!(lone.updates(partition), []);
    lone.receive(&ack(0));
    assert_eq!(
        lone.updates(partition),
        [PartitionUpdate::Returned(SegmentIndex(0)), PartitionUpdate::Finished]
    );
    lone.shard.handle_partition_closed(partition, None, lone.now);
    assert!(lone.notices().contains(&Notice::PartitionReleased(partition)));
    assert_eq!(lone.shard.subpartition_view(partition, SubpartitionIndex(0)), None);
}

/// Data waits for a consumer that comes late, even one that comes after the end was submitted.
#[test]
fn a_producer_may_end_before_its_consumer_attaches() {
    let (mut lone, partition) = producer(1, 0, 0);
    lone.submit(partition, data(0, 0, 0, KIB, true));
    lone.submit(partition, end(0));
    assert!(lone.frames().is_empty());
    lone.open_channel(5, shape(1, 1), 0, 0, 2);
    let frames = lone.frames();
    assert!(matches!(
        &frames[..],
        [
            Seen::Message(Message::ChannelAccepted { backlog: 1, .. }),
            Seen::Data { sequence: 0, .. },
            Seen::Message(Message::EndOfData { .. }),
        ]
    ));
}

/// An acknowledgement of what was never sent fails the channel, on both ends, and nobody else.
#[test]
fn an_acknowledgement_of_the_future_fails_the_partition() {
    let (mut lone, partition) = producer(1, 1, 4);
    lone.submit(partition, data(0, 0, 0, KIB, true));
    lone.frames();
    lone.grant(0, 4, 2);
    let updates = lone.updates(partition);
    assert!(matches!(
        &updates[..],
        [PartitionUpdate::Returned(_), PartitionUpdate::Failed(failure)] if failure.code == FailureCode::Protocol
    ));
    let messages = lone.messages();
    assert!(matches!(&messages[..], [Message::ChannelFailed { .. }]), "{messages:?}");
}

/// A stall is the time in which data waits for credit, the open interval included.
#[test]
fn a_stall_counts_from_the_first_slice_without_credit() {
    let (mut lone, partition) = producer(1, 1, 0);
    lone.now = Time(1_000);
    lone.submit(partition, data(0, 0, 0, KIB, true));
    let stalled = |lone: &Lone, now| lone.shard.channels(Time(now)).next().unwrap().send_stalled_ns;
    assert_eq!(stalled(&lone, 1_500), 500);
    lone.now = Time(3_000);
    lone.grant(0, 1, 0);
    assert_eq!(stalled(&lone, 9_000), 2_000, "credit ended it");
    lone.data_frames();
    assert_eq!(stalled(&lone, 9_000), 2_000);
}

/// A batch is as large as what the link carries in its window, within its bounds, and has at most so many slices.
#[test]
fn a_batch_follows_the_rate_of_its_link() {
    let (mut lone, partition) = producer(1, 1, 64);
    for segment in 0..60 {
        lone.submit(partition, data(0, segment, 0, 4 * KIB, true));
    }
    let slices = |frames: Vec<Seen>| frames.len();
    assert_eq!(slices(lone.batch()), 3, "16 KiB at first: three slices and their headers");
    // Two of these in 2 ms: the next batch may have 24 KiB and a little.
    lone.now = Time(2_000_000);
    assert_eq!(slices(lone.batch()), 3);
    for _ in 0..2 {
        lone.now = lone.now.after_ns(1_000);
        assert_eq!(slices(lone.batch()), 6);
    }
    lone.now = Time(4_000_000);
    assert_eq!(slices(lone.batch()), 6);
    // Eighteen in 2 ms would make a batch of eighteen.
    assert_eq!(slices(lone.batch()), 16, "no more than batch_slices_max");
    lone.now = Time(1_000_000_000);
    assert_eq!(slices(lone.batch()), 16);
    assert_eq!(slices(lone.batch()), 3, "a slow link has the smallest batch again");
}

/// The end of data waits for a priority event that waits for its window: nothing may follow the end.
#[test]
fn the_end_waits_for_priority_events() {
    let (mut lone, partition) = producer(1, 1, 1);
    for _ in 0..8 {
        lone.submit(partition, event(0, "priority", true));
    }
    lone.submit(partition, end(0));
    assert_eq!(lone.messages().len(), 7, "neither the eighth event nor the end");
    lone.receive(&limit_message(0, Limit { limit: 1, ack: 7, event_limit: 9, ..Limit::default() }));
    let messages = lone.messages();
    assert!(
        matches!(&messages[..], [Message::Event { priority: true, .. }, Message::EndOfData { .. }]),
        "{messages:?}"
    );
}

/// A segment leaves the queue when its last slice is sent or when it is closed, whichever comes later. The client, which
/// may wait for its quota, is told of either.
#[test]
fn a_segment_that_leaves_the_queue_by_being_closed_is_told_to_the_client() {
    let (mut lone, partition) = producer(1, 1, 4);
    let told = |lone: &mut Lone| {
        let (mut listed, mut changed) = (Vec::new(), Vec::new());
        lone.shard.take_partitions(&mut listed);
        lone.shard.take_changed_subpartitions(partition, &mut changed);
        (listed.len(), changed.len(), view(lone, partition).sent_segments)
    };
    told(&mut lone);
    lone.submit(partition, data(0, 0, 0, KIB, false));
    lone.frames();
    assert_eq!(told(&mut lone), (1, 1, 0), "all of it is sent, and it is open");
    let close = Submission::Data {
        subpartition: SubpartitionIndex(0),
        segment: SegmentIndex(0),
        offset: KIB,
        bytes: 0,
        records: 0,
        last: true,
    };
    lone.submit(partition, close);
    assert_eq!(told(&mut lone), (1, 1, 1));
    lone.submit(partition, data(0, 1, 0, KIB, true));
    lone.frames();
    assert_eq!(told(&mut lone), (1, 1, 2));
    lone.grant(0, 4, 2);
    assert_eq!(told(&mut lone), (1, 1, 2), "counted once");
}
