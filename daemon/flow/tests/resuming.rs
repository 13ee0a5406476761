//! A link whose socket is lost and replaced: what each end says first, what is sent again, what is undone, and when
//! it is over. That everything arrives once and in order wherever the socket is cut, `pair.rs` and the simulator show.

mod harness;

use harness::{
    Lone, Pair, SEGMENT_BYTES, Seen, accepted, any_life, cancel_message, data, data_frame, end, event,
    gate_spec, limits, link_spec, partition_spec, shape,
};
use weir_flow::failure::{Failure, FailureCode};
use weir_flow::ids::{
    ChannelIndex, Incarnation, PartitionId, SegmentIndex, Sequence, SubpartitionIndex, Time,
};
use weir_flow::limits::Limits;
use weir_flow::shard::{Delivery, Notice, PartitionUpdate};
use weir_flow::wire::{Flags, FrameType, Limit, Message, Resume, WireError};

const KIB: u32 = 1024;
const CHANNEL: ChannelIndex = ChannelIndex(0);

fn lose(lone: &mut Lone) {
    lone.shard.handle_link_lost(lone.link, "reset by peer", lone.now);
    lone.check();
}

/// Another socket, and the peer has this many control frames.
fn replace(lone: &mut Lone, control_received: u64) {
    assert!(lone.shard.handle_link_resumed(lone.link, lone.now));
    lone.receive(&Message::LinkResume { control_received });
}

/// A producer with its consumers at the peer, which has one control frame of each: ChannelAccepted.
fn producer(consumers: u32, continue_without: bool) -> (Lone, PartitionId) {
    let mut lone = Lone::new();
    let spec = harness_spec(consumers, continue_without);
    let partition = lone.shard.handle_partition(spec, lone.now);
    for consumer in 0..consumers {
        lone.open_channel(consumer, shape(1, consumers), 0, consumer, 3);
    }
    lone.frames();
    lone.notices();
    (lone, partition)
}

fn harness_spec(consumers: u32, continue_without: bool) -> weir_flow::shard::PartitionSpec {
    let mut spec = partition_spec(shape(1, consumers), 0, 12);
    spec.continue_without = continue_without;
    spec
}

fn resume(next_sequence: u64, opened: u64, open_fill: u32) -> Resume {
    Resume {
        incarnation: Incarnation(7),
        next_sequence: Sequence(next_sequence),
        opened,
        open_fill,
        limit: 3,
        event_limit: 8,
        consumed: 0,
    }
}

fn resume_message(resume: Resume) -> Message {
    Message::Resume { channel: CHANNEL, resume }
}

fn failed(lone: &mut Lone, partition: PartitionId) -> Option<Failure> {
    lone.updates(partition).into_iter().find_map(|update| match update {
        PartitionUpdate::Failed(failure) => Some(failure),
        _ => None,
    })
}

#[test]
fn the_first_frame_on_a_new_socket_says_what_control_arrived() {
    let (mut lone, _) = producer(1, false);
    lose(&mut lone);
    assert_eq!(lone.frames(), [], "nothing is sent without a socket");
    assert!(lone.shard.handle_link_resumed(lone.link, lone.now));
    assert_eq!(lone.messages(), [Message::LinkResume { control_received: 1 }]);
    assert_eq!(lone.messages(), [], "nothing else before the peer has said the same");
}

#[test]
fn a_new_socket_begins_with_link_resume_or_is_refused() {
    let (mut lone, _) = producer(1, false);
    lose(&mut lone);
    assert!(lone.shard.handle_link_resumed(lone.link, lone.now));
    let mut early = Vec::new();
    weir_flow::wire::encode(&Message::Ping { token: 1 }, &mut early);
    let refused = lone.receive_bytes(&early).unwrap_err();
    assert!(matches!(refused, WireError::Unexpected { found: FrameType::Ping, .. }), "{refused}");
    for early in [data_frame(0, 0, Flags::OPEN, 0, b"early"), data_frame(9, 0, Flags::OPEN, 0, b"")] {
        let (mut lone, _) = producer(1, false);
        lose(&mut lone);
        assert!(lone.shard.handle_link_resumed(lone.link, lone.now));
        let refused = lone.receive_bytes(&early).unwrap_err();
        assert!(matches!(refused, WireError::Unexpected { found: FrameType::Data, .. }), "{refused}");
    }
}

#[test]
fn link_resume_is_refused_where_it_has_no_place_or_cannot_be_true() {
    let bytes = |control_received| {
        let mut bytes = Vec::new();
        weir_flow::wire::encode(&Message::LinkResume { control_received }, &mut bytes);
        bytes
    };
    let (mut lone, _) = producer(1, false);
    assert!(lone.receive_bytes(&bytes(1)).is_err(), "on a socket that replaces none");
    for (control_received, may_be) in [(0, true), (1, true), (2, false), (u64::MAX, false)] {
        let (mut lone, _) = producer(1, false);
        lose(&mut lone);
        assert!(lone.shard.handle_link_resumed(lone.link, lone.now));
        assert_eq!(lone.receive_bytes(&bytes(control_received)).is_ok(), may_be, "{control_received} of 1");
        if may_be {
            assert!(lone.receive_bytes(&bytes(control_received)).is_err(), "a second time");
        }
    }
}

#[test]
fn what_is_not_acknowledged_is_sent_again_behind_what_the_receiver_has() {
    let (mut lone, partition) = producer(1, false);
    lone.submit(partition, data(0, 0, 0, KIB, false));
    lone.frames();
    lone.submit(partition, data(0, 0, KIB, KIB, false));
    lone.submit(partition, event(0, "e", false));
    lone.submit(partition, data(0, 0, 2 * KIB, KIB, true));
    assert_eq!(lone.frames().len(), 3);
    lose(&mut lone);
    replace(&mut lone, 1);
    assert_eq!(lone.messages(), [Message::LinkResume { control_received: 1 }], "no data before its Resume");
    // The first slice arrived, the second was cut.
    lone.receive(&resume_message(resume(1, 1, KIB)));
    let again = lone.frames();
    assert!(
        matches!(
            &again[..],
            [
                Seen::Data { sequence: 1, bytes: KIB, open: false, offset: KIB, .. },
                Seen::Message(Message::Event { sequence: Sequence(2), .. }),
                Seen::Data { sequence: 3, bytes: KIB, open: false, .. },
            ]
        ),
        "{again:?}"
    );
    lone.grant(0, 3, 4);
    assert_eq!(lone.updates(partition), [PartitionUpdate::Returned(SegmentIndex(0))]);
}

/// A receiver that had begun a segment with a frame that was cut has not opened it: the frame opens it again.
#[test]
fn a_frame_that_was_cut_is_undone_at_the_receiver_with_the_segment_that_it_opened() {
    for cut in [0, 1, 31, 32, 33, 32 + KIB as usize - 1] {
        let mut lone = Lone::new();
        let gate = lone.open_gate(1, 4, 2);
        lone.receive_data(0, 0, Flags::OPEN, 0, &[1; 4000]);
        lone.frames();
        let frame = data_frame(0, 1, Flags::OPEN, 0, &[2; KIB as usize]);
        lone.receive_bytes(&frame[..cut]).unwrap();
        lose(&mut lone);
        replace(&mut lone, 1);
        let messages = lone.messages();
        let Some(Message::Resume { resume, .. }) = messages.get(1) else { panic!("{messages:?}") };
        assert_eq!((resume.next_sequence, resume.opened), (Sequence(1), 1), "cut at {cut}");
        // Once the header was there the segment before it was closed, and stays so.
        let open_fill = if cut < 32 { 4000 } else { 0 };
        assert_eq!((resume.open_fill, resume.limit), (open_fill, 3), "cut at {cut}");
        lone.receive_bytes(&frame).unwrap();
        let bytes: u32 = lone
            .deliveries(gate)
            .iter()
            .map(|delivery| if let Delivery::Data { bytes, .. } = delivery { *bytes } else { 0 })
            .sum();
        assert_eq!(bytes, 4000 + KIB, "cut at {cut}");
    }
}

/// Backlog with CLOSED can be lost as well: the sender says it again, else the receiver's segment stays open for ever.
#[test]
fn a_given_up_segment_is_given_up_again() {
    let (mut lone, partition) = producer(1, false);
    for segment in 0..4 {
        lone.submit(partition, data(0, segment, 0, 3 * KIB, true));
    }
    let sent = lone.frames();
    assert!(matches!(sent.last(), Some(Seen::Message(Message::Backlog { closed: true, .. }))), "{sent:?}");
    lose(&mut lone);
    replace(&mut lone, 1);
    lone.receive(&resume_message(resume(3, 3, 3 * KIB)));
    let again = lone.messages();
    assert!(matches!(again.last(), Some(Message::Backlog { closed: true, backlog: 1, .. })), "{again:?}");
}

#[test]
fn control_frames_are_sent_again_from_where_the_peer_is_until_a_pong_confirms_them() {
    let (mut lone, _) = producer(3, false);
    lose(&mut lone);
    replace(&mut lone, 1);
    let again = lone.messages();
    assert_eq!(
        again[1..].iter().map(Message::frame_type).collect::<Vec<_>>(),
        [FrameType::ChannelAccepted, FrameType::ChannelAccepted],
        "the second and the third: {again:?}"
    );
    // A Ping behind them is answered: none of them can be missing.
    lone.now = Time(1_500_000_000);
    lone.shard.handle_timeout(lone.now);
    let ping = lone.messages();
    let [Message::Ping { token }] = ping[..] else { panic!("{ping:?}") };
    lone.receive(&Message::Pong { token });
    lose(&mut lone);
    assert!(lone.shard.handle_link_resumed(lone.link, lone.now));
    let mut early = Vec::new();
    weir_flow::wire::encode(&Message::LinkResume { control_received: 2 }, &mut early);
    assert!(lone.receive_bytes(&early).is_err(), "three are confirmed");
}

/// Nor can those be confirmed that were sent behind the Ping, or that were on their way when the socket was lost.
#[test]
fn a_pong_confirms_only_what_was_sent_before_its_ping() {
    let (mut lone, _) = producer(2, false);
    lose(&mut lone);
    replace(&mut lone, 2);
    lone.frames();
    lone.now = Time(1_500_000_000);
    lone.shard.handle_timeout(lone.now);
    lone.receive(&cancel_message(1, Failure::new(FailureCode::ConsumerGone, "killed")));
    let said = lone.messages();
    let [Message::Ping { token }, Message::ChannelFailed { .. }, Message::ChannelFailed { .. }] = said[..]
    else {
        panic!("{said:?}")
    };
    lone.receive(&Message::Pong { token });
    lose(&mut lone);
    replace(&mut lone, 2);
    let types: Vec<FrameType> = lone.messages().iter().map(Message::frame_type).collect();
    assert_eq!(types, [FrameType::LinkResume, FrameType::ChannelFailed, FrameType::ChannelFailed]);
}

/// A Ping that was lost with its socket, or did not leave, is not waited for: the next one confirms.
#[test]
fn a_ping_that_is_never_answered_does_not_stand_in_the_way_of_the_next() {
    for is_sent in [true, false] {
        let (mut lone, _) = producer(1, false);
        lone.now = Time(1_500_000_000);
        lone.shard.handle_timeout(lone.now);
        assert!(lone.shard.poll_transmit(lone.link, &mut lone.transmit, lone.now));
        let taken = if is_sent { lone.transmit.bytes } else { 0 };
        lone.shard.handle_sent(lone.link, taken, lone.now);
        if is_sent {
            lose(&mut lone);
            replace(&mut lone, 1);
            lone.frames();
        }
        // Another one that happens once.
        lone.open_channel(9, shape(1, 1), 0, 0, 2);
        lone.now = Time(3_000_000_000);
        if is_sent {
            lone.frames();
            lone.shard.handle_timeout(lone.now);
        }
        let said = lone.messages();
        if !is_sent {
            // The Ping left before it; one more to cover it.
            let [Message::Ping { token }, Message::ChannelFailed { .. }] = said[..] else {
                panic!("{said:?}")
            };
            lone.receive(&Message::Pong { token });
            lone.now = Time(4_500_000_000);
            lone.shard.handle_timeout(lone.now);
        }
        let said = if is_sent { said } else { lone.messages() };
        let [Message::Ping { token }] = said[..] else { panic!("sent {is_sent}: {said:?}") };
        lone.receive(&Message::Pong { token });
        lose(&mut lone);
        assert!(lone.shard.handle_link_resumed(lone.link, lone.now));
        let mut early = Vec::new();
        weir_flow::wire::encode(&Message::LinkResume { control_received: 1 }, &mut early);
        assert!(lone.receive_bytes(&early).is_err(), "two are confirmed, sent {is_sent}");
    }
}

/// Frames that rely on control frames never come before them, however many of those wait.
#[test]
fn nothing_overtakes_control_frames() {
    let consumers = 800;
    let mut lone = Lone::new();
    let spec = partition_spec(shape(1, consumers), 0, consumers + 8);
    let partition = lone.shard.handle_partition(spec, lone.now);
    for consumer in 0..consumers {
        if consumer >= consumers - 8 {
            lone.submit(partition, data(consumer, consumer, 0, 8, true));
        }
        lone.open_channel(consumer, shape(1, consumers), 0, consumer, 3);
    }
    let (mut accepted, mut data) = (0, 0);
    for seen in lone.frames() {
        match seen {
            Seen::Message(Message::ChannelAccepted { .. }) => accepted += 1,
            Seen::Data { channel, .. } => {
                assert!(channel < accepted, "data of channel {channel} after {accepted} were accepted");
                data += 1;
            }
            Seen::Message(other) => panic!("{other:?}"),
        }
    }
    assert_eq!((accepted, data), (consumers, 8));
}

/// The kernel may still read the slices of a send that has not ended: until then nothing changes.
#[test]
fn a_loss_takes_effect_when_the_send_in_flight_has_ended() {
    for taken in [0, 40, u32::MAX] {
        let (mut lone, partition) = producer(1, false);
        lone.submit(partition, data(0, 0, 0, KIB, true));
        assert!(lone.shard.poll_transmit(lone.link, &mut lone.transmit, lone.now));
        lose(&mut lone);
        assert!(!lone.shard.handle_link_resumed(lone.link, lone.now), "the old socket is still in use");
        lone.shard.handle_partition_closed(partition, None, lone.now);
        assert!(!lone.notices().contains(&Notice::PartitionReleased(partition)), "the kernel may read it");
        lone.shard.handle_sent(lone.link, taken.min(lone.transmit.bytes), lone.now);
        lone.check();
        assert!(lone.notices().contains(&Notice::PartitionReleased(partition)));
        replace(&mut lone, 1);
        let said = lone.messages();
        assert!(matches!(said[..], [Message::LinkResume { .. }, Message::ChannelFailed { .. }]), "{said:?}");
    }
}

/// A backlog that was announced can be lost like anything else.
#[test]
fn a_backlog_that_was_lost_is_announced_again() {
    let (mut lone, partition) = producer(1, false);
    for segment in 0..4 {
        lone.submit(partition, data(0, segment, 0, SEGMENT_BYTES, true));
    }
    let sent = lone.frames();
    assert!(matches!(sent.last(), Some(Seen::Message(Message::Backlog { .. }))), "{sent:?}");
    lose(&mut lone);
    replace(&mut lone, 1);
    // Everything arrived but the last frame, and the segment that it closed is closed for want of room.
    lone.receive(&resume_message(resume(3, 3, 0)));
    let again = lone.messages();
    assert!(matches!(again.last(), Some(Message::Backlog { closed: false, backlog: 1, .. })), "{again:?}");
}

/// The consumer's end: its question was lost, so that the producer's end knows no channel that could be resumed.
#[test]
fn a_channel_whose_question_was_lost_is_asked_for_again_and_not_resumed() {
    let mut lone = Lone::new();
    let gate = lone.shard.handle_gate(gate_spec(shape(2, 1), 0, 6, 2), lone.now);
    lone.memory.add(gate, 6);
    for producer in 0..2 {
        lone.shard.handle_producer(gate, any_life(producer), lone.link, lone.now);
    }
    lone.frames();
    lone.receive(&accepted(0));
    lone.frames();
    lose(&mut lone);
    replace(&mut lone, 1);
    let said = lone.messages();
    let types: Vec<FrameType> = said.iter().map(Message::frame_type).collect();
    assert_eq!(types[..3], [FrameType::LinkResume, FrameType::OpenChannel, FrameType::Resume], "{said:?}");
    assert!(matches!(said[1], Message::OpenChannel { channel: ChannelIndex(1), .. }));
    assert!(matches!(said[2], Message::Resume { channel: ChannelIndex(0), .. }));
}

/// EndAck lost with its link: the producer's end keeps waiting, and the consumer's end says it again.
#[test]
fn an_end_ack_that_was_lost_is_said_again() {
    let mut lone = Lone::new();
    let gate = lone.open_gate(1, 4, 2);
    lone.receive(&Message::EndOfData { channel: CHANNEL, backlog: 0, sequence: Sequence(0) });
    assert_eq!(lone.messages(), [Message::EndAck { channel: CHANNEL }]);
    lose(&mut lone);
    replace(&mut lone, 1);
    let said = lone.messages();
    assert_eq!(said[1..], [Message::EndAck { channel: CHANNEL }]);
    assert!(matches!(lone.deliveries(gate)[..], [Delivery::End { .. }]), "once");
}

/// The end of data was sent when the partition failed. Whether the consumer's end has it decides what it is told.
#[test]
fn a_channel_that_failed_at_its_end_is_told_of_it_only_if_the_end_did_not_arrive() {
    for (answer, told) in [
        (resume_message(resume(0, 0, 0)), true),
        (cancel_message(0, Failure::new(FailureCode::ConsumerGone, "killed")), true),
        (Message::EndAck { channel: CHANNEL }, false),
    ] {
        let (mut lone, partition) = producer(2, false);
        lone.submit(partition, end(0));
        lone.frames();
        lone.receive(&cancel_message(1, Failure::new(FailureCode::ConsumerGone, "killed")));
        let said = lone.messages();
        assert!(matches!(said[..], [Message::ChannelFailed { channel: ChannelIndex(1), .. }]), "{said:?}");
        lose(&mut lone);
        replace(&mut lone, 3);
        lone.receive(&answer);
        let said = lone.messages();
        let needed = usize::from(told);
        assert_eq!(said.len() - 1, needed, "after {answer:?}: {said:?}");
        // Whatever it was, the index is free now.
        lone.open_channel(0, shape(1, 2), 0, 0, 2);
        let said = lone.messages();
        assert!(
            matches!(&said[..], [Message::ChannelFailed { failure, .. }] if failure.code != FailureCode::Protocol),
            "{said:?}"
        );
    }
}

#[test]
fn a_resume_that_cannot_be_fails_its_channel() {
    let sent = |lone: &mut Lone, partition| {
        for segment in 0..2 {
            lone.submit(partition, data(0, segment, 0, SEGMENT_BYTES, true));
        }
        lone.frames();
        lone.grant(0, 3, 1);
    };
    let hostile = [
        ("behind what was acknowledged", resume(0, 0, 0)),
        ("ahead of what was sent", resume(3, 2, 0)),
        ("more segments than were opened", resume(2, 3, 0)),
        ("more segments than the limit", Resume { limit: 1, ..resume(2, 2, 0) }),
        ("another life", Resume { incarnation: Incarnation(8), ..resume(1, 1, 0) }),
    ];
    for (what, resume) in hostile {
        let (mut lone, partition) = producer(1, false);
        sent(&mut lone, partition);
        lose(&mut lone);
        replace(&mut lone, 1);
        lone.receive(&resume_message(resume));
        let failure = failed(&mut lone, partition).expect(what);
        assert_eq!(failure.code, FailureCode::Protocol, "{what}: {failure}");
    }
    let (mut lone, partition) = producer(1, false);
    sent(&mut lone, partition);
    lone.receive(&resume_message(resume(1, 1, 0)));
    assert!(failed(&mut lone, partition).is_some(), "of a channel that was not interrupted");
}

#[test]
fn a_link_that_does_not_come_back_within_its_grace_is_closed_for_good() {
    let (mut lone, partition) = producer(1, false);
    lone.now = Time(2_000_000_000);
    lone.shard.handle_timeout(lone.now);
    lone.receive(&Message::Pong { token: 0 });
    lose(&mut lone);
    let (deadline, reason) = lone.shard.poll_timeout().unwrap();
    assert_eq!((deadline, reason), (Time(12_000_000_000), "link grace"), "10 s after it was last heard");
    // Another link has its own deadlines, which come earlier.
    lone.shard.handle_link(link_spec("other"), lone.now);
    for seconds in 3..12 {
        lone.shard.handle_timeout(Time(seconds * 1_000_000_000));
    }
    lone.shard.handle_timeout(Time(deadline.0 - 1));
    assert!(failed(&mut lone, partition).is_none());
    lone.shard.handle_timeout(deadline);
    lone.check();
    let failure = failed(&mut lone, partition).unwrap();
    assert_eq!(failure.code, FailureCode::LinkLost);
    for part in ["peer", "reset by peer", "10 s", "link.grace"] {
        assert!(failure.text.contains(part), "{part:?} in {:?}", failure.text);
    }
    assert!(lone.notices().contains(&Notice::LinkExpired(lone.link)));
    assert!(!lone.shard.handle_link_resumed(lone.link, deadline), "a socket that comes late is refused");
}

#[test]
fn a_silent_socket_does_not_use_up_the_grace_of_the_next() {
    let (mut lone, partition) = producer(1, false);
    lone.now = Time(5_000_000_000);
    lone.shard.handle_timeout(lone.now);
    assert!(matches!(lone.notices()[..], [Notice::LinkTimedOut { .. }]));
    lose(&mut lone);
    lone.now = Time(9_999_999_999);
    lone.shard.handle_timeout(lone.now);
    lone.notices();
    assert!(lone.shard.handle_link_resumed(lone.link, lone.now));
    lone.now = Time(10_500_000_000);
    lone.shard.handle_timeout(lone.now);
    assert_eq!(lone.notices(), [], "its silence is counted from its own beginning");
    lone.receive(&Message::LinkResume { control_received: 1 });
    lone.receive(&resume_message(resume(0, 0, 0)));
    lone.now = Time(11_000_000_000);
    lone.shard.handle_timeout(lone.now);
    assert!(failed(&mut lone, partition).is_none());
    assert!(lone.messages().iter().any(|message| matches!(message, Message::Ping { .. })));
}

/// Sockets that break before a byte has come over them are no sign of life.
#[test]
fn sockets_that_carry_nothing_do_not_make_the_grace_longer() {
    let (mut lone, partition) = producer(1, false);
    for seconds in 1..12 {
        lone.now = Time(seconds * 1_000_000_000);
        lose(&mut lone);
        lone.shard.handle_timeout(lone.now);
        let is_waiting = lone.shard.handle_link_resumed(lone.link, lone.now);
        assert_eq!(is_waiting, seconds < 10, "after {seconds} s");
    }
    assert_eq!(failed(&mut lone, partition).unwrap().code, FailureCode::LinkLost);
}

/// A peer that goes on talking and does not read: what is in flight to it must not stay for ever.
#[test]
fn a_socket_that_takes_nothing_for_as_long_as_a_silence_is_given_up() {
    let (mut lone, partition) = producer(1, false);
    lone.submit(partition, data(0, 0, 0, KIB, true));
    assert!(lone.shard.poll_transmit(lone.link, &mut lone.transmit, lone.now));
    for seconds in 1..6 {
        lone.now = Time(seconds * 1_000_000_000);
        lone.receive(&Message::Ping { token: 1 });
        assert_eq!(lone.notices(), [], "after {seconds} s");
        lone.shard.handle_timeout(lone.now);
    }
    let stuck = Notice::LinkStuck { link: lone.link, stuck_ns: 5_000_000_000 };
    assert_eq!(lone.notices(), [stuck]);
    lone.shard.handle_timeout(Time(9_000_000_000));
    assert_eq!(lone.notices(), [], "once");
}

/// A peer that has given the link up says so on the new socket.
#[test]
fn goodbye_on_a_new_socket_is_the_reason_when_it_closes() {
    let (mut lone, partition) = producer(1, false);
    lose(&mut lone);
    assert!(lone.shard.handle_link_resumed(lone.link, lone.now));
    lone.receive(&Message::Goodbye { failure: Failure::new(FailureCode::LinkLost, "my grace is over") });
    lose(&mut lone);
    let failure = failed(&mut lone, partition).unwrap();
    assert_eq!((failure.code, &failure.text[..]), (FailureCode::LinkLost, "my grace is over"));
    assert!(!lone.shard.handle_link_resumed(lone.link, lone.now));
}

#[test]
fn without_grace_or_after_goodbye_a_lost_socket_is_the_end() {
    let mut lone = Lone::with(Limits { link_grace_ns: 0, ..limits() });
    let partition = lone.shard.handle_partition(partition_spec(shape(1, 1), 0, 12), lone.now);
    lone.open_channel(0, shape(1, 1), 0, 0, 3);
    lose(&mut lone);
    assert_eq!(failed(&mut lone, partition).unwrap().code, FailureCode::LinkLost);

    let (mut lone, partition) = producer(1, false);
    lone.receive(&Message::Goodbye { failure: Failure::new(FailureCode::Stopping, "upgrade") });
    lose(&mut lone);
    assert_eq!(failed(&mut lone, partition).unwrap().code, FailureCode::Stopping);

    let (mut lone, partition) = producer(1, false);
    lose(&mut lone);
    lone.shard.handle_drain(lone.now);
    lone.check();
    assert!(failed(&mut lone, partition).is_some(), "a daemon that stops does not wait for a socket");
    assert!(lone.notices().contains(&Notice::LinkExpired(lone.link)));
}

/// Many sockets, each cut before anything could be said on it.
#[test]
fn sockets_that_break_at_once_change_nothing() {
    let mut pair = Pair::new(limits());
    let partition = pair.nodes[0].add_partition(partition_spec(shape(1, 1), 0, 12), pair.now);
    let gate = pair.nodes[1].add_gate(gate_spec(shape(1, 1), 0, 6, 2), pair.now);
    let link = pair.nodes[1].link;
    pair.nodes[1].shard.handle_producer(gate, any_life(0), link, pair.now);
    for round in 0..200_usize {
        pair.resume();
        for turn in 0..round % 7 {
            pair.send(turn % 2, 7 + round);
            pair.receive(1 - turn % 2, 5 + round / 2);
        }
    }
    pair.resume();
    pair.nodes[0].shard.handle_submission(partition, data(0, 0, 0, KIB, true), pair.now).unwrap();
    pair.nodes[0].shard.handle_submission(partition, end(0), pair.now).unwrap();
    pair.settle();
    let all: Vec<Delivery> = std::iter::from_fn(|| pair.nodes[1].shard.poll_delivery(gate)).collect();
    assert!(matches!(all[..], [Delivery::Data { bytes: KIB, .. }, Delivery::End { .. }]), "{all:?}");
}

#[test]
fn a_partition_that_continues_loses_only_the_consumer_that_is_gone() {
    let (mut lone, partition) = producer(2, true);
    let gone = |lone: &Lone, index| {
        lone.shard.subpartition_view(partition, SubpartitionIndex(index)).unwrap().is_gone
    };
    lone.submit(partition, data(1, 0, 0, KIB, false));
    lone.receive(&cancel_message(1, Failure::new(FailureCode::ConsumerGone, "killed")));
    let said = lone.messages();
    assert!(matches!(said[..], [Message::ChannelFailed { channel: ChannelIndex(1), .. }]), "{said:?}");
    assert!(failed(&mut lone, partition).is_none());
    assert_eq!((gone(&lone, 0), gone(&lone, 1)), (false, true));
    // What is still handed over for it goes nowhere, and its segments come back.
    lone.submit(partition, data(1, 0, KIB, KIB, true));
    lone.submit(partition, end(1));
    assert_eq!(lone.updates(partition), [PartitionUpdate::Returned(SegmentIndex(0))]);
    lone.submit(partition, data(0, 1, 0, KIB, true));
    lone.submit(partition, end(0));
    assert_eq!(lone.frames().len(), 2);
    lone.receive(&Message::Limit {
        channel: CHANNEL,
        limit: Limit { limit: 3, ack: 2, event_limit: 8, ..Limit::default() },
    });
    lone.receive(&Message::EndAck { channel: CHANNEL });
    let updates = lone.updates(partition);
    assert!(updates.contains(&PartitionUpdate::Finished), "{updates:?}");
}

#[test]
fn a_partition_whose_last_consumer_is_gone_fails_however_it_would_continue() {
    let killed = || Failure::new(FailureCode::ConsumerGone, "killed");
    let (mut lone, partition) = producer(2, true);
    lone.receive(&cancel_message(1, killed()));
    lone.receive(&cancel_message(0, killed()));
    assert_eq!(failed(&mut lone, partition).unwrap().code, FailureCode::ConsumerGone);

    let (mut lone, partition) = producer(2, true);
    lone.submit(partition, end(0));
    lone.frames();
    lone.receive(&Message::EndAck { channel: CHANNEL });
    lone.receive(&cancel_message(1, killed()));
    assert_eq!(lone.updates(partition), [PartitionUpdate::Finished], "the other one has its whole share");

    let (mut lone, partition) = producer(2, false);
    lone.receive(&cancel_message(1, killed()));
    assert!(failed(&mut lone, partition).is_some(), "the policy is fail unless it is asked for");
}

/// An event for a consumer that is lost is over as soon as it was taken: the client is told, as of one that was consumed.
#[test]
fn an_event_for_a_lost_consumer_is_told_as_over() {
    let (mut lone, partition) = producer(2, true);
    lone.receive(&cancel_message(0, Failure::new(FailureCode::ConsumerGone, "left")));
    let mut changed = Vec::new();
    lone.shard.take_changed_subpartitions(partition, &mut changed);
    changed.clear();
    lone.submit(partition, event(0, "late", false));
    lone.shard.take_changed_subpartitions(partition, &mut changed);
    assert_eq!(changed, [SubpartitionIndex(0)]);
    let view = lone.shard.subpartition_view(partition, SubpartitionIndex(0)).unwrap();
    assert_eq!((view.is_gone, view.events_in_flight), (true, 0));
}
