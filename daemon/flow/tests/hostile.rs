//! A peer that says anything, and clients that claim anything. Nothing panics, every account still adds up, and what is
//! on another link goes on.

mod harness;

use bytes::Bytes;
use harness::{Lone, SEGMENT_BYTES, any_life, data_frame, gate_spec, link_spec, partition_spec, shape};
use proptest::prelude::*;
use weir_flow::failure::{Failure, FailureCode};
use weir_flow::ids::{
    ChannelIndex, GateId, Incarnation, PartitionId, SegmentIndex, Sequence, SubpartitionIndex, Time,
};
use weir_flow::shard::{Delivery, Submission};
use weir_flow::wire::{Cancel, Flags, Limit, Message, Resume, encode};

#[derive(Clone, Debug)]
enum Step {
    Peer(Vec<u8>),
    Client(Submission),
    GiveBack(u32, u32),
    EventConsumed(u32),
    Poll,
    Send(u32),
    Time(u64),
    Attach,
}

/// Numbers around those that mean something, and the largest.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![8 => 0..6_u64, 2 => 0..40_u64, 1 => Just(u64::MAX), 1 => any::<u64>()]
}

fn small() -> impl Strategy<Value = u32> {
    prop_oneof![12 => 0..4_u32, 1 => 0..200_u32, 1 => Just(70_000_u32), 1 => Just(u32::MAX)]
}

fn message() -> impl Strategy<Value = Message> {
    let channel = || small().prop_map(ChannelIndex);
    let failure = || Failure::new(FailureCode::ConsumerGone, "so it says");
    prop_oneof![
        3 => (channel(), 0..3_u32, 0..3_u32, number()).prop_map(|(channel, producer, consumer, limit)| {
            let open = harness::open_message(channel.0, shape(2, 2), producer, consumer, limit);
            match open {
                Message::OpenChannel { mut open, .. } => {
                    open.event_limit = limit;
                    Message::OpenChannel { channel, open }
                }
                other => other,
            }
        }),
        3 => (channel(), 0..2_u64, small()).prop_map(|(channel, sequence, backlog)| {
            let sequence = Sequence(sequence / 2 * 5);
            Message::ChannelAccepted { channel, backlog, sequence, incarnation: Incarnation(7) }
        }),
        1 => channel().prop_map(move |channel| Message::ChannelFailed { channel, failure: failure() }),
        2 => (channel(), number(), small(), any::<bool>()).prop_map(|(channel, sequence, backlog, priority)| {
            let (sequence, payload) = (Sequence(sequence), Bytes::from_static(b"event"));
            Message::Event { channel, backlog, sequence, priority, payload }
        }),
        2 => (channel(), small(), any::<bool>())
            .prop_map(|(channel, backlog, closed)| Message::Backlog { channel, backlog, closed }),
        6 => (channel(), number(), number(), number(), number()).prop_map(
            |(channel, limit, ack, consumed, event_limit)| {
                Message::Limit { channel, limit: Limit { limit, ack, consumed, event_limit, age_us: 0 } }
            }
        ),
        1 => channel().prop_map(|channel| Message::BufferSize { channel, bytes: 1 }),
        1 => channel().prop_map(|channel| {
            let resume = Resume {
                incarnation: Incarnation(7),
                next_sequence: Sequence(0),
                opened: 0,
                open_fill: 0,
                limit: 0,
                event_limit: 0,
                consumed: 0,
            };
            Message::Resume { channel, resume }
        }),
        1 => channel().prop_map(move |channel| {
            let cancel = Cancel { delivered: u64::MAX, consumed: 0, failure: failure() };
            Message::Cancel { channel, cancel }
        }),
        1 => (channel(), number())
            .prop_map(|(channel, sequence)| Message::EndOfData { channel, backlog: 9, sequence: Sequence(sequence) }),
        1 => channel().prop_map(|channel| Message::EndAck { channel }),
        1 => number().prop_map(|token| Message::Ping { token }),
        1 => number().prop_map(|token| Message::Pong { token }),
        1 => Just(Message::Goodbye { failure: failure() }),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let submission = prop_oneof![
        6 => (small(), small(), prop_oneof![Just(0_u32), small()], small(), any::<bool>()).prop_map(
            |(subpartition, segment, offset, bytes, last)| Submission::Data {
                subpartition: SubpartitionIndex(subpartition),
                segment: SegmentIndex(segment),
                offset,
                bytes,
                records: bytes.min(1),
                last,
            }
        ),
        2 => (small(), any::<bool>()).prop_map(|(subpartition, priority)| Submission::Event {
            subpartition: SubpartitionIndex(subpartition),
            payload: Bytes::from_static(b"event"),
            priority,
        }),
        1 => small().prop_map(|subpartition| Submission::End { subpartition: SubpartitionIndex(subpartition) }),
    ];
    prop_oneof![
        10 => message().prop_map(|message| {
            let mut bytes = Vec::new();
            encode(&message, &mut bytes);
            Step::Peer(bytes)
        }),
        8 => (small(), number(), any::<bool>(), small(), 0..=SEGMENT_BYTES).prop_map(
            |(channel, sequence, opens, backlog, bytes)| {
                let payload = vec![3; bytes as usize];
                Step::Peer(data_frame(channel, sequence, Flags::OPEN.when(opens), backlog, &payload))
            }
        ),
        // A piece of a frame: what follows is read as its rest.
        1 => (1..60_usize).prop_map(|bytes| {
            let mut frame = data_frame(0, 0, Flags::OPEN, 1, &[5; 100]);
            frame.truncate(bytes);
            Step::Peer(frame)
        }),
        8 => submission.prop_map(Step::Client),
        3 => (small(), small()).prop_map(|(segment, bytes)| Step::GiveBack(segment, bytes)),
        1 => small().prop_map(Step::EventConsumed),
        4 => Just(Step::Poll),
        6 => (0..10_000_u32).prop_map(Step::Send),
        1 => number().prop_map(Step::Time),
        1 => Just(Step::Attach),
    ]
}

struct World {
    lone: Lone,
    partition: PartitionId,
    gate: GateId,
}

impl World {
    fn new() -> Self {
        let mut lone = Lone::new();
        let partition = lone.shard.handle_partition(partition_spec(shape(2, 2), 0, 4), lone.now);
        let gate = lone.shard.handle_gate(gate_spec(shape(2, 2), 0, 6, 2), lone.now);
        lone.memory.add(gate, 6);
        for producer in 0..2 {
            lone.shard.handle_producer(gate, any_life(producer), lone.link, lone.now);
        }
        Self { lone, partition, gate }
    }

    fn apply(&mut self, step: &Step) {
        let Self { lone, partition, gate } = self;
        let now = lone.now;
        match step {
            Step::Peer(bytes) => {
                let link = lone.link;
                if lone.shard.handle_received(link, bytes, &mut lone.memory, now).is_err() {
                    lone.shard.handle_link_closed(link, "bad frames", now);
                    lone.shard.handle_sent(link, 0, now);
                    lone.link = lone.shard.handle_link(link_spec("peer"), now);
                }
            }
            Step::Client(submission) => {
                if lone.shard.handle_submission(*partition, submission.clone(), now).is_err() {
                    let failure = Failure::new(FailureCode::ClientFault, "it lied");
                    lone.shard.handle_partition_closed(*partition, Some(failure), now);
                    *partition = lone.shard.handle_partition(partition_spec(shape(2, 2), 0, 4), now);
                }
            }
            Step::GiveBack(segment, bytes) => {
                let _ = lone.shard.handle_given_back(*gate, SegmentIndex(*segment), *bytes, now);
            }
            Step::EventConsumed(channel) => {
                let _ = lone.shard.handle_event_consumed(*gate, *channel, now);
            }
            Step::Poll => {
                while let Some(Delivery::Data { .. } | Delivery::Event { .. }) =
                    lone.shard.poll_delivery(*gate)
                {}
                while lone.shard.poll_priority_delivery(*gate).is_some() {}
                while lone.shard.poll_update(*partition).is_some() {}
                while lone.shard.poll_notice().is_some() {}
            }
            Step::Send(bytes) => {
                if lone.shard.poll_transmit(lone.link, &mut lone.transmit, now) {
                    lone.check();
                    lone.shard.handle_sent(lone.link, *bytes, now);
                }
            }
            Step::Time(ns) => {
                lone.now = now.after_ns(*ns);
                lone.shard.handle_timeout(lone.now);
            }
            Step::Attach => {
                lone.shard.handle_gate_closed(*gate, None, now);
                *gate = lone.shard.handle_gate(gate_spec(shape(2, 2), 0, 6, 2), now);
                lone.memory.add(*gate, 6);
                for producer in 0..2 {
                    lone.shard.handle_producer(*gate, any_life(producer), lone.link, now);
                }
            }
        }
        lone.check();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    #[test]
    fn no_claim_breaks_an_account(steps in proptest::collection::vec(step(), 0..200)) {
        let mut world = World::new();
        for step in &steps {
            world.apply(step);
        }
    }

    #[test]
    fn no_bytes_break_an_account(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let mut lone = Lone::new();
        let _ = lone.receive_bytes(&bytes);
        lone.shard.handle_link_closed(lone.link, "done", Time(1));
        lone.check();
    }
}
