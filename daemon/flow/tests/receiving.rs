//! The receiving end, against a scripted producer. Follows Flink's RemoteInputChannelTest, InputGateFairnessTest and
//! CreditBasedPartitionRequestClientHandlerTest where their behaviour has a meaning here.

mod harness;

use harness::{Lone, SEGMENT_BYTES, Seen, any_life, data_frame, gate_spec, shape};
use proptest::prelude::*;
use weir_flow::failure::{Failure, FailureCode};
use weir_flow::ids::{ChannelIndex, GateId, SegmentIndex, Sequence};
use weir_flow::shard::{Delivery, Notice};
use weir_flow::stats::Side;
use weir_flow::wire::{Cancel, Flags, Limit, Message};

fn limits_of(messages: &[Message]) -> Vec<(u32, Limit)> {
    messages
        .iter()
        .filter_map(|message| match message {
            Message::Limit { channel, limit } => Some((channel.0, *limit)),
            _ => None,
        })
        .collect()
}

fn full(byte: u8) -> Vec<u8> {
    vec![byte; SEGMENT_BYTES as usize]
}

fn failures(deliveries: &[Delivery]) -> Vec<(u32, FailureCode)> {
    deliveries
        .iter()
        .filter_map(|delivery| match delivery {
            Delivery::Failed { channel, failure } => Some((*channel, failure.code)),
            _ => None,
        })
        .collect()
}

fn give_back_all(lone: &mut Lone, gate: GateId, deliveries: &[Delivery]) {
    for delivery in deliveries {
        if let Delivery::Data { segment, bytes, .. } = delivery {
            lone.shard.handle_given_back(gate, *segment, *bytes, lone.now).unwrap();
            lone.check();
        }
    }
}

/// Row 27 (CreditBasedPartitionRequestClientHandlerTest): two channels, E = 2, backlog 1: each is granted the one
/// floating segment that it needs. While the socket takes nothing, grants add up and go out as one frame each.
#[test]
fn grants_add_up_while_the_socket_is_busy() {
    let mut lone = Lone::new();
    let gate = lone.open_gate(2, 4 + 8, 2);
    lone.receive_data(0, 0, Flags::OPEN, 1, &full(1));
    lone.receive_data(1, 0, Flags::OPEN, 1, &full(2));
    // Each has opened one of its two and needs three ready: two floating.
    let now = lone.now;
    assert!(lone.shard.poll_transmit(lone.link, &mut lone.transmit, now));
    let first = harness::frames(&lone.transmit);
    assert_eq!(first.len(), 2, "one frame for each channel: {first:?}");
    // The socket is busy: two more buffers arrive, are consumed, and grant more.
    lone.receive_data(0, 1, Flags::OPEN, 4, &full(3));
    lone.receive_data(1, 1, Flags::OPEN, 0, &full(4));
    let deliveries = lone.deliveries(gate);
    give_back_all(&mut lone, gate, &deliveries);
    assert!(!lone.shard.poll_transmit(lone.link, &mut harness_transmit(), now), "one batch at a time");
    lone.shard.handle_sent(lone.link, lone.transmit.bytes, now);
    let limits = limits_of(&lone.messages());
    assert_eq!(limits.len(), 2, "one frame for each channel: {limits:?}");
    let (_, of_first) = limits.iter().find(|(channel, _)| *channel == 0).unwrap();
    assert_eq!((of_first.ack, of_first.consumed), (2, 2 * u64::from(SEGMENT_BYTES)));
    // Backlog 4 and E = 2: six ready beside the two that were opened.
    assert_eq!(of_first.limit, 8);
}

fn harness_transmit() -> weir_flow::shard::Transmit {
    weir_flow::shard::Transmit::default()
}

/// Row 28 (same): no credit message for a channel that was released, even if it was due.
#[test]
fn a_released_channel_grants_nothing() {
    let mut lone = Lone::new();
    let gate = lone.open_gate(2, 4 + 8, 2);
    lone.receive_data(0, 0, Flags::OPEN, 3, &full(1));
    lone.receive_data(1, 0, Flags::OPEN, 3, &full(1));
    let failure = Failure::new(FailureCode::ProducerGone, "left");
    lone.receive(&Message::ChannelFailed { channel: ChannelIndex(0), failure });
    let channels: Vec<u32> = limits_of(&lone.messages()).iter().map(|(channel, _)| *channel).collect();
    assert_eq!(channels, [1]);
    lone.shard.handle_gate_closed(gate, None, lone.now);
    lone.check();
    let messages = lone.messages();
    assert!(matches!(&messages[..], [Message::Cancel { channel: ChannelIndex(1), .. }]), "{messages:?}");
}

/// Row 29 (same): a data frame for which there is no segment fails its channel.
#[test]
fn data_beyond_the_grant_fails_its_channel() {
    let mut lone = Lone::new();
    let gate = lone.open_gate(1, 2, 2);
    for sequence in 0..2 {
        lone.receive_data(0, sequence, Flags::OPEN, 0, &full(1));
    }
    lone.receive_data(0, 2, Flags::OPEN, 0, &full(1));
    let deliveries = lone.deliveries(gate);
    assert_eq!(deliveries.len(), 3, "what had arrived comes first: {deliveries:?}");
    assert_eq!(failures(&deliveries), [(0, FailureCode::CreditViolation)]);
    let messages = lone.messages();
    assert!(messages.iter().any(|message| matches!(
        message,
        Message::Cancel { cancel: Cancel { failure, .. }, .. } if failure.code == FailureCode::CreditViolation
    )));
}

/// Row 29, packing: a slice without OPEN must fit behind what is in the open segment.
#[test]
fn a_slice_that_does_not_fit_fails_its_channel() {
    let mut lone = Lone::new();
    let gate = lone.open_gate(1, 2, 2);
    lone.receive_data(0, 0, Flags::OPEN, 0, &[1; 4000]);
    lone.receive_data(0, 1, Flags::NONE, 0, &[1; 96]);
    lone.receive_data(0, 2, Flags::NONE, 0, &[1; 1]);
    let deliveries = lone.deliveries(gate);
    assert_eq!(failures(&deliveries), [(0, FailureCode::CreditViolation)]);

    let mut lone = Lone::new();
    let gate = lone.open_gate(1, 2, 2);
    lone.receive_data(0, 0, Flags::NONE, 0, &[1; 1]);
    assert_eq!(failures(&lone.deliveries(gate)), [(0, FailureCode::CreditViolation)], "none is open");
}

/// Row 30 (same): a failure of one channel is nobody else's. Flink guards against exceptions; here every kind of bad
/// frame for a channel is tried, and the sibling goes on over the same link.
#[test]
fn a_bad_channel_does_not_touch_its_siblings() {
    let bad: Vec<(Vec<u8>, FailureCode)> = vec![
        (data_frame(0, 5, Flags::OPEN, 0, &[1; 10]), FailureCode::SequenceGap),
        (data_frame(0, 0, Flags::NONE, 0, &[1; 10]), FailureCode::CreditViolation),
        (data_frame(0, 0, Flags::OPEN, 0, &[]), FailureCode::Protocol),
        (message_bytes(&harness::accepted(0)), FailureCode::Protocol),
        (
            message_bytes(&Message::EndOfData {
                channel: ChannelIndex(0),
                backlog: 0,
                sequence: Sequence(3),
            }),
            FailureCode::SequenceGap,
        ),
        (bad_field(), FailureCode::Protocol),
    ];
    for (bytes, code) in bad {
        let mut lone = Lone::new();
        let gate = lone.open_gate(2, 4, 2);
        lone.receive_bytes(&bytes).unwrap();
        lone.receive_data(1, 0, Flags::OPEN, 0, &[2; 10]);
        let deliveries = lone.deliveries(gate);
        assert_eq!(failures(&deliveries), [(0, code)]);
        assert!(deliveries.iter().any(|delivery| matches!(delivery, Delivery::Data { channel: 1, .. })));
        let cancels = lone.messages().into_iter().filter(|message| matches!(message, Message::Cancel { .. }));
        assert_eq!(cancels.count(), 1, "the producer's node is told");
    }
}

fn message_bytes(message: &Message) -> Vec<u8> {
    let mut bytes = Vec::new();
    weir_flow::wire::encode(message, &mut bytes);
    bytes
}

/// An EndAck-like frame of channel 0 with a field that its type does not use.
fn bad_field() -> Vec<u8> {
    let header = weir_flow::wire::Header {
        records: 9,
        channel: ChannelIndex(0),
        ..weir_flow::wire::Header::new(weir_flow::wire::FrameType::Backlog)
    };
    header.encode().to_vec()
}

/// Row 73 (RemoteInputChannelTest): a wrong sequence number fails the channel; nothing of it is delivered.
#[test]
fn a_gap_in_the_sequence_fails_its_channel() {
    let mut lone = Lone::new();
    let gate = lone.open_gate(1, 4, 2);
    lone.receive_data(0, 0, Flags::OPEN, 0, &[1; 10]);
    lone.receive_data(0, 2, Flags::NONE, 0, &[2; 10]);
    let deliveries = lone.deliveries(gate);
    assert_eq!(deliveries.len(), 2);
    assert_eq!(failures(&deliveries), [(0, FailureCode::SequenceGap)]);
}

/// Row 25 (NettyMessageClientDecoderDelegateTest): the payload of a channel that is gone is skipped, wherever it is
/// cut, and later frames of the link still decode.
#[test]
fn the_payload_of_a_gone_channel_is_skipped() {
    for cut in [1, 31, 32, 33, 40, 131] {
        let mut lone = Lone::new();
        let gone = lone.open_gate(1, 2, 2);
        let frame = data_frame(0, 0, Flags::OPEN, 0, &[7; 100]);
        let (first, second) = frame.split_at(cut);
        lone.receive_bytes(first).unwrap();
        lone.shard.handle_gate_closed(gone, None, lone.now);
        lone.check();
        lone.memory.remove(gone);
        lone.receive_bytes(second).unwrap();
        let stats = lone.shard.links().next().unwrap();
        assert_eq!((stats.skipped_frames_total, stats.skipped_bytes_total), (1, 100), "cut at {cut}");
        // The index is used again only when the peer has confirmed the cancel.
        lone.frames();
        let gate = lone.shard.handle_gate(gate_spec(shape(1, 1), 0, 2, 2), lone.now);
        lone.memory.add(gate, 2);
        lone.shard.handle_producer(gate, any_life(0), lone.link, lone.now);
        let messages = lone.messages();
        assert!(matches!(&messages[..], [Message::OpenChannel { channel: ChannelIndex(1), .. }]));
        lone.receive(&harness::accepted(1));
        lone.receive_data(0, 1, Flags::NONE, 0, &[8; 50]);
        lone.receive_data(1, 0, Flags::OPEN, 0, &[9; 10]);
        let deliveries = lone.deliveries(gate);
        let [Delivery::Data { segment, offset, bytes, .. }] = deliveries[..] else {
            panic!("one slice: {deliveries:?}")
        };
        assert_eq!(lone.memory.read(gate, segment, offset, bytes), [9; 10]);
    }
}

/// A channel index is free again when the peer has confirmed a cancel, or when the end of data has arrived.
#[test]
fn a_channel_index_is_used_again_when_nothing_can_arrive_for_it() {
    let mut lone = Lone::new();
    let first = lone.open_gate(1, 2, 2);
    lone.receive(&Message::EndOfData { channel: ChannelIndex(0), backlog: 0, sequence: Sequence(0) });
    assert!(matches!(lone.deliveries(first)[..], [Delivery::End { channel: 0 }]));
    let messages = lone.messages();
    assert_eq!(messages, [Message::EndAck { channel: ChannelIndex(0) }]);
    let second = lone.open_gate(1, 2, 2);
    lone.receive_data(0, 0, Flags::OPEN, 0, &[1; 10]);
    assert_eq!(lone.deliveries(second).len(), 1, "index 0 belongs to the second gate");
    lone.shard.handle_gate_closed(second, None, lone.now);
    lone.frames();
    let failure = Failure::new(FailureCode::ConsumerGone, "confirmed");
    lone.receive(&Message::ChannelFailed { channel: ChannelIndex(0), failure });
    let third = lone.open_gate(1, 2, 2);
    lone.receive_data(0, 0, Flags::OPEN, 0, &[1; 10]);
    assert_eq!(lone.deliveries(third).len(), 1);
}

/// Row 82 (InputGateFairnessTest): 37 channels with 27 buffers each; while draining, what is left never differs by more
/// than one.
#[test]
fn channels_are_drained_in_turn() {
    let (channels, buffers) = (37, 27);
    let mut lone = Lone::new();
    let gate = lone.open_gate(channels, channels * buffers, buffers);
    for channel in 0..channels {
        for sequence in 0..buffers {
            lone.receive_data(channel, u64::from(sequence), Flags::OPEN, 0, &full(1));
        }
    }
    let mut left = vec![buffers; channels as usize];
    while let Some(delivery) = lone.shard.poll_delivery(gate) {
        let Delivery::Data { channel, .. } = delivery else { panic!("data: {delivery:?}") };
        left[channel as usize] -= 1;
        let (least, most) = (left.iter().min().unwrap(), left.iter().max().unwrap());
        assert!(most - least <= 1, "{left:?}");
    }
    assert_eq!(left, vec![0; channels as usize]);
}

/// Slices that lie side by side and were not handed up are one delivery; so a queue is never longer than its segments.
#[test]
fn contiguous_slices_are_handed_up_as_one() {
    let mut lone = Lone::new();
    let gate = lone.open_gate(1, 4, 2);
    for sequence in 0..40 {
        let flags = Flags::OPEN.when(sequence == 0);
        lone.receive_data(0, sequence, flags, 0, &[sequence as u8; 100]);
    }
    let deliveries = lone.deliveries(gate);
    let [Delivery::Data { segment, offset: 0, bytes: 4000, records: 40, .. }] = deliveries[..] else {
        panic!("one delivery: {deliveries:?}")
    };
    assert_eq!(lone.memory.read(gate, segment, 3900, 100), [39; 100]);
    lone.receive_data(0, 40, Flags::NONE, 0, &[40; 96]);
    let deliveries = lone.deliveries(gate);
    assert!(matches!(deliveries[..], [Delivery::Data { offset: 4000, bytes: 96, .. }]));
}

/// A receive segment is free again when it is closed and every byte that was handed up was given back, in any order.
#[test]
fn a_segment_is_free_when_closed_and_given_back() {
    let mut lone = Lone::new();
    let gate = lone.open_gate(1, 2, 2);
    let held = |lone: &Lone| lone.shard.channels(lone.now).next().unwrap().receiver_held;
    lone.receive_data(0, 0, Flags::OPEN, 0, &[1; 1000]);
    let segment = SegmentIndex(0);
    assert!(matches!(lone.deliveries(gate)[..], [Delivery::Data { segment: SegmentIndex(0), .. }]));
    lone.shard.handle_given_back(gate, segment, 400, lone.now).unwrap();
    lone.shard.handle_given_back(gate, segment, 600, lone.now).unwrap();
    lone.check();
    assert_eq!(held(&lone), 1, "slices may still be appended");
    lone.receive_data(0, 1, Flags::NONE, 0, &[2; 500]);
    lone.receive(&Message::Backlog { channel: ChannelIndex(0), backlog: 1, closed: true });
    assert_eq!(held(&lone), 1, "500 bytes wait");
    let deliveries = lone.deliveries(gate);
    give_back_all(&mut lone, gate, &deliveries);
    assert_eq!(held(&lone), 0);
    let limits = limits_of(&lone.messages());
    assert_eq!(limits.last().unwrap().1.limit, 3, "opened 1, ready 2");
}

/// What a client does not hold it cannot give back; the fault names the field and the values.
#[test]
fn a_client_that_gives_back_what_it_does_not_hold_is_found_out() {
    let mut lone = Lone::new();
    let gate = lone.open_gate(1, 2, 2);
    lone.receive_data(0, 0, Flags::OPEN, 0, &[1; 1000]);
    let mut give_back = |segment, bytes| {
        let fault = lone.shard.handle_given_back(gate, SegmentIndex(segment), bytes, lone.now).unwrap_err();
        lone.check();
        (fault.field, fault.text)
    };
    assert_eq!(give_back(9, 1), ("segment", "is 9; needed: below 2".into()));
    assert_eq!(give_back(1, 1), ("segment", "1 is not held; needed: one that was handed up".into()));
    assert_eq!(give_back(0, 1), ("segment", "0 is not held; needed: one that was handed up".into()));
    lone.deliveries(gate);
    let mut give_back = |segment, bytes| {
        lone.shard.handle_given_back(gate, SegmentIndex(segment), bytes, lone.now).map_err(|fault| fault.text)
    };
    assert_eq!(give_back(0, 1001).unwrap_err(), "is 1001 of segment 0; needed: 1 to 1000, the bytes held");
    assert!(give_back(0, 0).is_err());
    assert!(give_back(0, 1000).is_ok());
    assert!(give_back(0, 1).is_err());
    assert!(lone.shard.handle_event_consumed(gate, 0, lone.now).is_err(), "no event was handed up");
    assert!(lone.shard.handle_event_consumed(gate, 7, lone.now).is_err());
}

/// Events arrive within their window, priority ones apart; consuming one makes room for another.
#[test]
fn events_have_their_own_window() {
    let mut lone = Lone::new();
    let gate = lone.open_gate(1, 2, 2);
    let event = |sequence, priority| Message::Event {
        channel: ChannelIndex(0),
        backlog: 0,
        sequence: Sequence(sequence),
        priority,
        payload: bytes::Bytes::from_static(b"e"),
    };
    for sequence in 0..8 {
        lone.receive(&event(sequence, sequence == 7));
    }
    assert_eq!(lone.deliveries(gate).len(), 7);
    let priority = lone.shard.poll_priority_delivery(gate);
    assert!(matches!(priority, Some(Delivery::Event { priority: true, .. })));
    lone.frames();
    lone.shard.handle_event_consumed(gate, 0, lone.now).unwrap();
    let limits = limits_of(&lone.messages());
    assert_eq!(limits.iter().map(|(_, limit)| limit.event_limit).collect::<Vec<_>>(), [9]);
    lone.receive(&event(8, false));
    assert_eq!(lone.deliveries(gate).len(), 1);
    lone.receive(&event(9, false));
    assert_eq!(failures(&lone.deliveries(gate)), [(0, FailureCode::CreditViolation)]);
}

/// A trickle is acknowledged in time: new credit at once, what only acknowledges after a short wait, once.
#[test]
fn an_acknowledgement_waits_for_company_but_not_long() {
    let mut lone = Lone::new();
    lone.open_gate(1, 2, 2);
    lone.receive_data(0, 0, Flags::OPEN, 0, &[1; 10]);
    lone.receive_data(0, 1, Flags::NONE, 0, &[1; 10]);
    assert_eq!(lone.frames(), []);
    let (deadline, reason) = lone.shard.poll_timeout().unwrap();
    assert_eq!(reason, "limit");
    lone.now = deadline;
    lone.shard.handle_timeout(deadline);
    lone.check();
    let limits = limits_of(&lone.messages());
    assert_eq!(limits.iter().map(|(_, limit)| limit.ack).collect::<Vec<_>>(), [2]);
    lone.receive_data(0, 2, Flags::NONE, 0, &[1; 3000]);
    assert_eq!(limits_of(&lone.messages()).len(), 1, "half a segment is worth a frame");
    lone.receive_data(0, 3, Flags::NONE, 0, &[1; 10]);
    let (deadline, _) = lone.shard.poll_timeout().unwrap();
    lone.shard.handle_timeout(deadline);
    assert_eq!(limits_of(&lone.messages()).len(), 1, "and so every time");
}

#[derive(Clone, Debug)]
enum Step {
    Data { channel: u32, bytes: u32 },
    Cut { channel: u32, bytes: u32, at: usize },
    Event { channel: u32 },
    Backlog { channel: u32, backlog: u32, closed: bool },
    End { channel: u32 },
    Fail { channel: u32 },
    Poll,
    GiveBack { pick: usize, share: u32 },
    Send { bytes: usize },
}

fn step() -> impl Strategy<Value = Step> {
    let channel = 0..3_u32;
    prop_oneof![
        8 => (channel.clone(), 1..=SEGMENT_BYTES).prop_map(|(channel, bytes)| Step::Data { channel, bytes }),
        2 => (channel.clone(), 1..=500_u32, 0..500_usize)
            .prop_map(|(channel, bytes, at)| Step::Cut { channel, bytes, at }),
        1 => channel.clone().prop_map(|channel| Step::Event { channel }),
        2 => (channel.clone(), 0..20_u32, any::<bool>())
            .prop_map(|(channel, backlog, closed)| Step::Backlog { channel, backlog, closed }),
        1 => channel.clone().prop_map(|channel| Step::End { channel }),
        1 => channel.prop_map(|channel| Step::Fail { channel }),
        6 => Just(Step::Poll),
        6 => (any::<usize>(), 1..=4_u32).prop_map(|(pick, share)| Step::GiveBack { pick, share }),
        4 => (0..200_usize).prop_map(|bytes| Step::Send { bytes }),
    ]
}

/// What an honest producer knows of its channel.
#[derive(Clone, Default)]
struct Sender {
    sequence: u64,
    fill: Option<u32>,
    events: u64,
    is_over: bool,
}

fn run(steps: Vec<Step>) {
    let mut lone = Lone::new();
    let gate = lone.open_gate(3, 6 + 4, 2);
    let mut senders = vec![Sender::default(); 3];
    let mut held: Vec<(SegmentIndex, u32)> = Vec::new();
    for step in steps {
        apply(&mut lone, gate, &mut senders, &mut held, &step);
        lone.check();
    }
    // Nothing leaks: with everything over and given back, all segments are free.
    for channel in 0..3 {
        apply(&mut lone, gate, &mut senders, &mut held, &Step::Fail { channel });
    }
    apply(&mut lone, gate, &mut senders, &mut held, &Step::Poll);
    while !held.is_empty() {
        apply(&mut lone, gate, &mut senders, &mut held, &Step::GiveBack { pick: 0, share: 1 });
    }
    lone.check();
    let stats = lone.shard.channels(lone.now).filter(|stats| stats.side == Side::Receive);
    let held: u32 = stats.map(|stats| stats.receiver_held + stats.receiver_ready).sum();
    assert_eq!(held, 0);
    lone.shard.handle_gate_closed(gate, None, lone.now);
    lone.check();
    assert!(lone.notices().contains(&Notice::GateReleased(gate)));
}

fn apply(
    lone: &mut Lone,
    gate: GateId,
    senders: &mut [Sender],
    held: &mut Vec<(SegmentIndex, u32)>,
    step: &Step,
) {
    match *step {
        Step::Data { channel, bytes } => {
            if let Some(frame) = next_frame(lone, senders, channel, bytes) {
                lone.receive_bytes(&frame).unwrap();
            }
        }
        Step::Cut { channel, bytes, at } => {
            if let Some(frame) = next_frame(lone, senders, channel, bytes) {
                let (first, second) = frame.split_at(at.min(frame.len()));
                lone.receive_bytes(first).unwrap();
                apply(lone, gate, senders, held, &Step::Poll);
                lone.receive_bytes(second).unwrap();
            }
        }
        Step::Event { channel } => {
            let sender = &mut senders[channel as usize];
            if !sender.is_over && sender.events < 7 {
                let message = Message::Event {
                    channel: ChannelIndex(channel),
                    backlog: 1,
                    sequence: Sequence(sender.sequence),
                    priority: sender.events.is_multiple_of(2),
                    payload: bytes::Bytes::from_static(b"e"),
                };
                sender.sequence += 1;
                sender.events += 1;
                lone.receive(&message);
            }
        }
        Step::Backlog { channel, backlog, closed } => {
            let sender = &mut senders[channel as usize];
            if !sender.is_over {
                sender.fill = if closed { None } else { sender.fill };
                lone.receive(&Message::Backlog { channel: ChannelIndex(channel), backlog, closed });
            }
        }
        Step::End { channel } => {
            let sender = &mut senders[channel as usize];
            if !core::mem::replace(&mut sender.is_over, true) {
                let sequence = Sequence(sender.sequence);
                lone.receive(&Message::EndOfData { channel: ChannelIndex(channel), backlog: 0, sequence });
            }
        }
        Step::Fail { channel } => {
            if !core::mem::replace(&mut senders[channel as usize].is_over, true) {
                let failure = Failure::new(FailureCode::ProducerGone, "left");
                lone.receive(&Message::ChannelFailed { channel: ChannelIndex(channel), failure });
            }
        }
        Step::Poll => {
            for delivery in lone.deliveries(gate) {
                if let Delivery::Data { segment, bytes, .. } = delivery {
                    held.push((segment, bytes));
                }
            }
        }
        Step::GiveBack { pick, share } => give_back_share(lone, gate, held, pick, share),
        Step::Send { bytes } => {
            if lone.shard.poll_transmit(lone.link, &mut lone.transmit, lone.now) {
                let bytes = lone.transmit.bytes.min(bytes as u32);
                lone.shard.handle_sent(lone.link, bytes, lone.now);
            }
        }
    }
}

fn give_back_share(
    lone: &mut Lone,
    gate: GateId,
    held: &mut Vec<(SegmentIndex, u32)>,
    pick: usize,
    share: u32,
) {
    if held.is_empty() {
        return;
    }
    let pick = pick % held.len();
    let (segment, bytes) = held[pick];
    let part = bytes.div_ceil(share);
    lone.shard.handle_given_back(gate, segment, part, lone.now).unwrap();
    if part == bytes {
        held.swap_remove(pick);
    } else {
        held[pick].1 -= part;
    }
}

/// The next frame that an honest producer may send, if the grant allows one.
fn next_frame(lone: &Lone, senders: &mut [Sender], channel: u32, bytes: u32) -> Option<Vec<u8>> {
    let sender = &mut senders[channel as usize];
    let stats = lone.shard.channels(lone.now).nth(channel as usize).unwrap();
    let fits = sender.fill.is_some_and(|fill| fill + bytes <= SEGMENT_BYTES);
    if sender.is_over || (!fits && stats.receiver_ready == 0) {
        return None;
    }
    sender.fill = Some(if fits { sender.fill.unwrap() + bytes } else { bytes });
    let frame = data_frame(
        channel,
        sender.sequence,
        Flags::OPEN.when(!fits),
        3,
        &vec![channel as u8; bytes as usize],
    );
    sender.sequence += 1;
    Some(frame)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    /// Row 74 (RemoteInputChannelTest), adapted: Flink races threads; here one thread owns a channel, so what can
    /// differ is the order. In any order of frames, cuts, ends, failures, hand-ups and give-backs nothing leaks.
    #[test]
    fn no_order_of_frames_releases_and_give_backs_leaks(steps in proptest::collection::vec(step(), 0..120)) {
        run(steps);
    }
}

/// What a peer sends for a channel index that it was never given is skipped and counted.
#[test]
fn frames_for_unknown_channels_are_counted() {
    let mut lone = Lone::new();
    lone.receive_data(77, 0, Flags::OPEN, 0, &[1; 10]);
    lone.receive(&Message::EndAck { channel: ChannelIndex(3) });
    lone.receive(&Message::Backlog { channel: ChannelIndex(u32::MAX), backlog: 1, closed: false });
    let stats = lone.shard.links().next().unwrap();
    assert_eq!(stats.skipped_frames_total, 3);
    assert_eq!(lone.frames().into_iter().filter(|seen| !matches!(seen, Seen::Data { .. })).count(), 0);
}
