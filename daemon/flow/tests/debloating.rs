//! A gate that wants less in flight than there is room for, and a sender that is told so, each against a scripted peer.

mod harness;

use harness::{
    Lone, SEGMENT_BYTES, Seen, any_life, data, data_frame, gate_spec, limits, open_message, partition_spec,
    shape,
};
use weir_flow::debloat::{BUFFER_BYTES_MIN, BufferBound, DebloatSpec};
use weir_flow::ids::{ChannelIndex, GateId, PartitionId, SegmentIndex, SubpartitionIndex, Time};
use weir_flow::limits::Limits;
use weir_flow::shard::Delivery;
use weir_flow::stats::DebloatStats;
use weir_flow::wire::{Flags, Message};

const MS: u64 = 1_000_000;
const PERIOD: u64 = 10 * MS;
const KIB: u32 = 1024;
const SEGMENT: u64 = SEGMENT_BYTES as u64;

/// A gate with all its channels open, four segments of each kind for a channel, and a period of 10 ms.
fn gate(producers: u32, spec: DebloatSpec) -> (Lone, GateId) {
    let mut lone = Lone::with(Limits { debloat_period_ns: PERIOD, ..limits() });
    let segments = 8 * producers;
    let spec =
        weir_flow::shard::GateSpec { debloat: Some(spec), ..gate_spec(shape(producers, 1), 0, segments, 4) };
    let gate = lone.shard.handle_gate(spec, lone.now);
    lone.memory.add(gate, segments);
    for producer in 0..producers {
        lone.shard.handle_producer(gate, any_life(producer), lone.link, lone.now);
    }
    let opened = lone.messages();
    let granted = opened.iter().map(|message| match message {
        Message::OpenChannel { open, .. } => open.limit,
        other => panic!("{other:?}"),
    });
    assert!(granted.into_iter().all(|limit| limit == 2), "nothing is known: two of four are granted");
    (0..producers).for_each(|channel| lone.receive(&harness::accepted(channel)));
    let told = sizes(&lone.messages());
    let needed: Vec<_> = (0..producers).map(|channel| (channel, 2 * SEGMENT_BYTES)).collect();
    assert_eq!(told, needed, "each sender hears of it");
    (lone, gate)
}

/// A target of 100 ms, 100 KB in flight at a megabyte per second.
fn wants() -> DebloatSpec {
    DebloatSpec { target_ns: 100 * MS, ..DebloatSpec::default() }
}

fn sizes(messages: &[Message]) -> Vec<(u32, u32)> {
    let sizes = messages.iter().filter_map(|message| match message {
        Message::BufferSize { channel, bytes } => Some((channel.0, *bytes)),
        _ => None,
    });
    sizes.collect()
}

fn granted(messages: &[Message], of: u32) -> Option<u64> {
    let limits = messages.iter().filter_map(|message| match message {
        Message::Limit { channel, limit } if channel.0 == of => Some(limit.limit),
        _ => None,
    });
    limits.max()
}

fn debloat(lone: &Lone) -> DebloatStats {
    lone.shard.gates(lone.now).next().unwrap().debloat.unwrap()
}

/// An application that consumes at a rate, of channels whose senders send as much as they are granted.
struct Feed {
    sequences: Vec<u64>,
    granted: Vec<u64>,
    opened: Vec<u64>,
    /// Channels that carry data: the first ones.
    busy: usize,
    held: Vec<(SegmentIndex, u32)>,
    sizes: Vec<(u32, u32)>,
}

impl Feed {
    fn new(channels: usize) -> Self {
        Self {
            sequences: vec![0; channels],
            granted: vec![2; channels],
            opened: vec![0; channels],
            busy: channels,
            held: Vec::new(),
            sizes: Vec::new(),
        }
    }

    /// One segment is consumed each so many nanoseconds.
    fn run(&mut self, lone: &mut Lone, gate: GateId, ns_each: u64, count: u64) {
        for _ in 0..count {
            self.fill(lone, gate);
            lone.now = lone.now.after_ns(ns_each);
            lone.shard.handle_timeout(lone.now);
            lone.check();
            let (segment, bytes) = self.held.remove(0);
            lone.shard.handle_given_back(gate, segment, bytes, lone.now).unwrap();
            lone.check();
        }
        self.fill(lone, gate);
    }

    fn fill(&mut self, lone: &mut Lone, gate: GateId) {
        let messages = lone.messages();
        for message in &messages {
            if let Message::Limit { channel, limit } = message {
                let granted = &mut self.granted[channel.0 as usize];
                assert!(limit.limit >= *granted, "the limit went down");
                *granted = limit.limit;
            }
        }
        self.sizes.extend(sizes(&messages));
        for channel in 0..self.busy {
            while self.opened[channel] < self.granted[channel] {
                let payload = [channel as u8; SEGMENT_BYTES as usize];
                lone.receive_data(channel as u32, self.sequences[channel], Flags::OPEN, 20, &payload);
                self.sequences[channel] += 1;
                self.opened[channel] += 1;
            }
        }
        // What is open is full, and more waits.
        for channel in 0..self.busy {
            let channel = ChannelIndex(channel as u32);
            lone.receive(&Message::Backlog { channel, backlog: 20, closed: true });
        }
        for delivery in lone.deliveries(gate) {
            let Delivery::Data { segment, bytes, .. } = delivery else { panic!("{delivery:?}") };
            self.held.push((segment, bytes));
        }
    }
}

/// Held segments follow the throughput up and down, and floating segments come back to the pool as they are consumed.
#[test]
fn held_segments_follow_the_throughput() {
    let (mut lone, gate) = gate(1, wants());
    let mut feed = Feed::new(1);
    feed.run(&mut lone, gate, MS, 200);
    assert_eq!(feed.held.len(), 8, "4 MB/s want more than there is: all are in use");
    assert_eq!(debloat(&lone).window, None, "nothing is held back");
    assert_eq!(feed.sizes.last(), Some(&(0, u32::MAX)));
    // 40 KB in flight: two segments for each half are 32 KB.
    feed.run(&mut lone, gate, 10 * MS, 30);
    assert_eq!(debloat(&lone).wanted_bytes, Some(SEGMENT * 10));
    assert_eq!(feed.held.len(), 5, "half of ten segments");
    assert_eq!(feed.sizes.last(), Some(&(0, 5 * SEGMENT_BYTES)), "and the other half");
    // 4 KB: less than a segment.
    feed.run(&mut lone, gate, 100 * MS, 30);
    let stats = debloat(&lone);
    assert_eq!((stats.wanted_bytes, stats.window), (Some(SEGMENT), Some(1)));
    assert_eq!((feed.held.len(), stats.buffer_bytes), (1, Some(SEGMENT_BYTES / 2)));
    assert_eq!(feed.sizes.last(), Some(&(0, SEGMENT_BYTES / 2)));
    let pool = lone.shard.gates(lone.now).next().unwrap();
    assert_eq!((pool.floating_used, pool.exclusive_used, pool.ready), (0, 1, 0));
    // What is in flight lasts for what it takes to consume it: a segment here, and a backlog of 20 half ones.
    assert_eq!(pool.in_flight_bytes, SEGMENT + 20 * SEGMENT / 2);
    assert_eq!(stats.in_flight_ns, Some(11 * 100 * MS));
    // And up again.
    feed.run(&mut lone, gate, MS, 300);
    assert_eq!(feed.held.len(), 8);
    assert_eq!(debloat(&lone).window, None);
}

/// An application that stops is left with a segment for each channel, and each goes on when it does.
#[test]
fn a_stopped_application_holds_one_segment_of_each_channel() {
    let (mut lone, gate) = gate(3, wants());
    let mut feed = Feed::new(3);
    feed.run(&mut lone, gate, MS, 300);
    let before = feed.held.len();
    for _ in 0..3_000 {
        lone.now = lone.now.after_ns(PERIOD);
        lone.shard.handle_timeout(lone.now);
        lone.check();
    }
    feed.fill(&mut lone, gate);
    assert_eq!(feed.held.len(), before, "nothing more comes in");
    let stats = debloat(&lone);
    assert_eq!((stats.window, stats.buffer_bytes), (Some(1), Some(BUFFER_BYTES_MIN)));
    // The rest is consumed at once, so fast that nothing would be held back: only the time of a period changes that.
    for (segment, bytes) in std::mem::take(&mut feed.held) {
        lone.shard.handle_given_back(gate, segment, bytes, lone.now).unwrap();
        lone.check();
    }
    feed.fill(&mut lone, gate);
    assert_eq!(feed.held.len(), 3, "one each: {:?}", feed.granted);
    assert!(feed.granted.iter().zip(&feed.opened).all(|(granted, opened)| granted == opened));
}

/// A gate into which nothing comes has no deadline, and one that is settled has none.
#[test]
fn a_gate_that_carries_nothing_costs_nothing() {
    let (mut lone, gate) = gate(1, DebloatSpec { bytes_min: 2 * SEGMENT, ..wants() });
    let due = |lone: &Lone| lone.shard.poll_timeout().is_some_and(|(_, reason)| reason == "debloat period");
    assert!(!due(&lone));
    let mut feed = Feed::new(1);
    feed.run(&mut lone, gate, MS, 100);
    let mut periods = 0;
    while due(&lone) {
        lone.now = lone.shard.poll_timeout().unwrap().0;
        lone.shard.handle_timeout(lone.now);
        lone.check();
        lone.frames();
        periods += 1;
        assert!(periods < 20_000, "it settles: {:?}", debloat(&lone));
    }
    assert_eq!(debloat(&lone).wanted_bytes, Some(2 * SEGMENT), "the least");
}

/// What a gate wants is for the channels that carry data: one alone has all of it, two have half each.
#[test]
fn what_is_wanted_is_shared_among_channels_that_carry_data() {
    let (mut lone, gate) = gate(2, wants());
    let mut feed = Feed::new(2);
    feed.busy = 1;
    feed.run(&mut lone, gate, 10 * MS, 40);
    assert_eq!(debloat(&lone).window, Some(5), "half of ten segments, all for one");
    feed.busy = 2;
    feed.run(&mut lone, gate, 10 * MS, 40);
    assert_eq!(debloat(&lone).window, Some(2), "half of five segments");
}

/// The frame that tells a sender is made when it is planned, comes again when it did not leave, and is told anew on
/// another socket: what was told on the lost one may not have arrived.
#[test]
fn what_was_told_on_a_lost_socket_is_told_again() {
    let (mut lone, gate) = gate(2, wants());
    let mut feed = Feed::new(2);
    feed.run(&mut lone, gate, 20 * MS, 40);
    let told = debloat(&lone).buffer_bytes.unwrap();
    assert!(sizes(&lone.messages()).is_empty(), "it was told");
    lone.shard.handle_link_lost(lone.link, "reset", lone.now);
    lone.check();
    assert!(lone.shard.handle_link_resumed(lone.link, lone.now));
    // The two OpenChannel that the peer has.
    lone.receive(&Message::LinkResume { control_received: 2 });
    let now = lone.now;
    assert!(lone.shard.poll_transmit(lone.link, &mut lone.transmit, now));
    lone.shard.handle_sent(lone.link, 0, now);
    lone.check();
    let again = lone.messages();
    let mut found = sizes(&again);
    found.sort_unstable();
    assert_eq!(found, [(0, told), (1, told)]);
    let first = again.iter().position(|message| matches!(message, Message::BufferSize { .. })).unwrap();
    let last = again.iter().rposition(|message| matches!(message, Message::Resume { .. })).unwrap();
    assert!(last < first, "where to go on comes first: {again:?}");
    assert!(granted(&again, 0).is_none_or(|limit| limit >= feed.granted[0]));
}

/// A gate without debloating tells no sizes, and one that never held back tells none on another socket.
#[test]
fn without_debloating_nothing_is_told() {
    let mut lone = Lone::new();
    let gate = lone.open_gate(1, 8, 2);
    lone.receive_data(0, 0, Flags::OPEN, 5, &[1; 4096]);
    let messages = lone.messages();
    assert_eq!(sizes(&messages), []);
    assert!(lone.shard.gates(lone.now).next().unwrap().debloat.is_none());
    lone.shard.handle_link_lost(lone.link, "reset", lone.now);
    assert!(lone.shard.handle_link_resumed(lone.link, lone.now));
    lone.receive(&Message::LinkResume { control_received: 1 });
    assert_eq!(sizes(&lone.messages()), []);
    lone.shard.handle_gate_closed(gate, None, lone.now);
}

fn producer(consumers: u32, limit: u64) -> (Lone, PartitionId) {
    let mut lone = Lone::new();
    let partition = lone.shard.handle_partition(partition_spec(shape(1, consumers), 0, 20), lone.now);
    for consumer in 0..consumers {
        lone.receive(&open_message(consumer, shape(1, consumers), 0, consumer, limit));
    }
    lone.frames();
    (lone, partition)
}

fn tell(lone: &mut Lone, channel: u32, bytes: u32) {
    lone.receive(&Message::BufferSize { channel: ChannelIndex(channel), bytes });
}

fn opens(frames: &[Seen]) -> Vec<(u32, bool)> {
    let opens = frames.iter().filter_map(|seen| match seen {
        Seen::Data { bytes, open, .. } => Some((*bytes, *open)),
        Seen::Message(_) => None,
    });
    opens.collect()
}

/// A sender fills receive segments no further than it was told; its client sees the bound.
#[test]
fn segments_are_filled_no_further_than_told() {
    let (mut lone, partition) = producer(2, 10);
    tell(&mut lone, 0, 2 * KIB);
    let view = |lone: &Lone, of| lone.shard.subpartition_view(partition, SubpartitionIndex(of)).unwrap();
    assert_eq!((view(&lone, 0).buffer_bytes, view(&lone, 1).buffer_bytes), (2 * KIB, u32::MAX));
    let mut changed = Vec::new();
    lone.shard.take_changed_subpartitions(partition, &mut changed);
    assert!(changed.contains(&SubpartitionIndex(0)), "its client is told");
    for (segment, of) in [(0, 0), (1, 0), (2, 0), (3, 1), (4, 1), (5, 1)] {
        lone.submit(partition, data(of, segment, 0, KIB, true));
    }
    let frames = lone.data_frames();
    let of = |channel: u32| {
        let mine = |seen: &&Seen| matches!(seen, Seen::Data { channel: found, .. } if *found == channel);
        opens(&frames.iter().filter(mine).cloned().collect::<Vec<_>>())
    };
    assert_eq!(of(0), [(KIB, true), (KIB, false), (KIB, true)], "two of a KiB fill a segment");
    assert_eq!(of(1), [(KIB, true), (KIB, false), (KIB, false)], "nobody told the other");
}

/// What is longer than the bound has a segment of its own: nothing is cut, and nothing waits for ever.
#[test]
fn slices_longer_than_the_bound_pass() {
    let (mut lone, partition) = producer(1, 10);
    tell(&mut lone, 0, 1);
    lone.submit(partition, data(0, 0, 0, SEGMENT_BYTES, true));
    lone.submit(partition, data(0, 1, 0, KIB, false));
    lone.submit(partition, data(0, 1, KIB, 10, true));
    assert_eq!(opens(&lone.data_frames()), [(SEGMENT_BYTES, true), (KIB + 10, true)]);
}

/// A bound that falls makes the backlog longer, one that rises makes it shorter; both are told with the next frame. A
/// segment that was open beyond the bound is given up if there is no credit for another.
#[test]
fn a_bound_that_changes_recounts_the_backlog() {
    let (mut lone, partition) = producer(1, 1);
    lone.submit(partition, data(0, 0, 0, 3 * KIB, true));
    assert_eq!(opens(&lone.data_frames()), [(3 * KIB, true)]);
    tell(&mut lone, 0, KIB);
    assert!(lone.frames().is_empty(), "nothing waits, so nothing is given up");
    for segment in 1..5 {
        lone.submit(partition, data(0, segment, 0, KIB, true));
    }
    let messages = lone.messages();
    let backlogs: Vec<_> = messages
        .iter()
        .filter_map(|message| match message {
            Message::Backlog { backlog, closed, .. } => Some((*backlog, *closed)),
            _ => None,
        })
        .collect();
    assert_eq!(backlogs, [(4, true)], "3 KiB are more than the bound, and each of the others is as much");
    tell(&mut lone, 0, u32::MAX);
    lone.check();
    lone.grant(0, 2, 1);
    assert_eq!(
        opens(&lone.data_frames()),
        [(KIB, true), (KIB, false), (KIB, false), (KIB, false)],
        "all four into one"
    );
}

/// The bound holds over a lost socket, whatever the receiver has.
#[test]
fn a_bound_holds_over_a_lost_socket() {
    let (mut lone, partition) = producer(1, 9);
    tell(&mut lone, 0, KIB);
    for segment in 0..3 {
        lone.submit(partition, data(0, segment, 0, KIB, true));
    }
    assert_eq!(opens(&lone.data_frames()), [(KIB, true); 3]);
    lone.shard.handle_link_lost(lone.link, "reset", lone.now);
    lone.check();
    assert!(lone.shard.handle_link_resumed(lone.link, lone.now));
    lone.receive(&Message::LinkResume { control_received: 1 });
    lone.receive(&Message::Resume {
        channel: ChannelIndex(0),
        resume: weir_flow::wire::Resume {
            incarnation: weir_flow::ids::Incarnation(7),
            next_sequence: weir_flow::ids::Sequence(1),
            opened: 1,
            open_fill: KIB,
            limit: 9,
            event_limit: 8,
            consumed: 0,
        },
    });
    assert_eq!(opens(&lone.data_frames()), [(KIB, true); 2]);
    let view = lone.shard.subpartition_view(partition, SubpartitionIndex(0)).unwrap();
    assert_eq!(view.buffer_bytes, KIB);
}

/// Where consumers share their segments, the one that wants least decides.
#[test]
fn of_shared_segments_the_least_bound_counts() {
    let mut lone = Lone::new();
    let shape =
        weir_flow::exchange::Shape { strategy: weir_flow::exchange::Strategy::Broadcast, ..shape(1, 3) };
    let partition = lone.shard.handle_partition(partition_spec(shape, 0, 20), lone.now);
    (0..3).for_each(|consumer| lone.receive(&open_message(consumer, shape, 0, consumer, 5)));
    for (channel, bytes) in [(0, 9_000), (1, 3_000), (2, 5_000)] {
        tell(&mut lone, channel, bytes);
    }
    let view = lone.shard.subpartition_view(partition, SubpartitionIndex(0)).unwrap();
    assert_eq!(view.buffer_bytes, 3_000);
}

/// A size for a channel that is gone is skipped, and one of 0 bytes fails its channel.
#[test]
fn a_size_for_nobody_is_skipped() {
    let (mut lone, _) = producer(1, 1);
    tell(&mut lone, 7, 100);
    assert_eq!(lone.shard.links().next().unwrap().skipped_frames_total, 1);
    let mut bytes = data_frame(0, 0, Flags::default(), 0, &[0; 4]);
    let header = weir_flow::wire::Header {
        length: 4,
        frame_type: weir_flow::wire::FrameType::BufferSize,
        flags: Flags::default(),
        channel: ChannelIndex(0),
        backlog: 0,
        sequence: weir_flow::ids::Sequence(0),
        records: 0,
    };
    bytes[..32].copy_from_slice(&header.encode());
    lone.receive_bytes(&bytes).unwrap();
    assert!(lone.messages().iter().any(|message| matches!(message, Message::ChannelFailed { .. })));
}

/// What a client makes of a bound.
#[test]
fn a_bound_is_for_records_that_are_not_begun() {
    let bound = BufferBound::new(1_000);
    assert!(bound.admits(0) && bound.admits(999) && !bound.admits(1_000));
    assert!(bound.appends(0, 50_000, SEGMENT_BYTES), "one that is longer begins an empty segment");
    assert!(bound.appends(400, 600, SEGMENT_BYTES) && !bound.appends(401, 600, SEGMENT_BYTES));
    let queue = BufferBound::new(3 * SEGMENT_BYTES);
    assert!(queue.appends(4_000, 50_000, SEGMENT_BYTES), "segments are filled as ever");
    assert!(!queue.admits(3 * SEGMENT));
    let within = |bound: BufferBound, fill, outstanding| bound.fill_end(fill, outstanding, SEGMENT_BYTES);
    assert_eq!((within(bound, 0, 0), within(bound, 400, 400)), (1_000, 1_000), "no further than the bound");
    assert_eq!((within(bound, 0, 900), within(bound, 400, 900)), (100, 500), "what is outstanding counts");
    assert_eq!((within(bound, 2_000, 0), within(bound, 400, u64::MAX)), (2_000, 400), "never below the fill");
    assert_eq!(within(queue, 4_000, 4_000), SEGMENT_BYTES, "no further than the segment");
    assert_eq!(within(queue, 4_000, 3 * SEGMENT - 1), 4_001);
    assert_eq!(within(BufferBound::NONE, 0, u64::MAX), SEGMENT_BYTES);
    assert!(BufferBound::NONE.admits(u64::MAX) && BufferBound::NONE.appends(1, usize::MAX, SEGMENT_BYTES));
}

/// Time that stands still and time that jumps change nothing but what is measured.
#[test]
fn time_that_jumps_is_harmless() {
    let (mut lone, gate) = gate(1, wants());
    let mut feed = Feed::new(1);
    for ns in [0, 0, 0, 3_600_000 * MS, 0, MS, u64::MAX / 2] {
        feed.run(&mut lone, gate, ns, 3);
    }
    lone.now = Time(u64::MAX);
    feed.run(&mut lone, gate, u64::MAX, 3);
    assert!(debloat(&lone).window.is_none_or(|window| window >= 1));
}
