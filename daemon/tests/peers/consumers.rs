//! A peer that says that consumers are on it.

use weir_flow::failure::{Failure, FailureCode};
use weir_flow::ids::{ChannelIndex, ConsumerIndex, Incarnation, ProducerIndex, Sequence};
use weir_flow::wire::{Cancel, FrameType, Header, Limit, LinkKind, Message, OpenChannel, Resume, Role};

use super::*;
use crate::common::{channels, feed};
use crate::peer::{Heard, Line, Persona, forward, limit, open};

/// A producer on `a` that stays until its input is closed.
fn producer(scene: &Scene, exchange: &str) -> Guarded {
    let mut sender = send(&scene.a, exchange, FORWARD);
    sender.child.stdin.as_mut().expect("an input").write_all(b"first\n").expect("written");
    eventually("the producer is attached", || {
        (!channels(&scene.a, exchange, "send").is_empty()).then_some(())
    });
    sender
}

/// Opens a channel with so much credit; it is accepted.
fn connect(line: &mut Line, channel: u32, exchange: &str, segments: u64) {
    assert!(line.send(&open(channel, exchange, segments)));
    line.until("ChannelAccepted", |heard| match heard {
        Heard::Frame(Message::ChannelAccepted { channel: found, .. }) => (found.0 == channel).then_some(()),
        Heard::Frame(Message::ChannelFailed { failure, .. }) => panic!("{failure}"),
        _ => None,
    });
}

/// The failure that the peer is told.
fn failure_of(line: &mut Line, channel: u32) -> Failure {
    line.until("ChannelFailed", |heard| match heard {
        Heard::Frame(Message::ChannelFailed { channel: found, failure }) if found.0 == channel => {
            Some(failure.clone())
        }
        _ => None,
    })
}

#[test]
fn what_a_consumers_node_cannot_mean_fails_that_channel_and_no_other() {
    let scene = Scene::start(PATIENT, &[]);
    let mut line = Persona::new("evil").dial_data(&scene.at_a, 0);
    let resume = Resume {
        incarnation: Incarnation(0),
        next_sequence: Sequence(0),
        opened: 0,
        open_fill: 0,
        limit: 1,
        event_limit: 1,
        consumed: 0,
    };
    let cancel =
        Cancel { delivered: 1, consumed: 1, failure: Failure::new(FailureCode::ConsumerGone, "evil") };
    let raw = |frame_type, body: &[u8]| {
        let length = body.len() as u32;
        move |channel| Header { length, channel: ChannelIndex(channel), ..Header::new(frame_type) }.encode()
    };
    let buffer_size = raw(FrameType::BufferSize, &[0; 4]);
    type Attack<'a> = Box<dyn Fn(u32) -> Vec<u8> + 'a>;
    let message =
        |make: fn(u32) -> Message| -> Attack<'_> { Box::new(move |channel| peer::bytes_of(&make(channel))) };
    let attacks: Vec<(Attack<'_>, &[&str])> = vec![
        (
            message(|channel| limit(channel, Limit { limit: 4, ack: 1_000_000, ..Limit::default() })),
            &["protocol violation", "ack is 1000000; needed: at most"],
        ),
        (message(|channel| Message::EndAck { channel: ChannelIndex(channel) }), &["protocol violation"]),
        (message(|channel| open(channel, "healthy", 1)), &["protocol violation", "is in use"]),
        (
            Box::new(|channel| peer::bytes_of(&Message::Resume { channel: ChannelIndex(channel), resume })),
            &["protocol violation", "Resume"],
        ),
        (
            Box::new(|channel| {
                peer::bytes_of(&Message::Cancel { channel: ChannelIndex(channel), cancel: cancel.clone() })
            }),
            &["consumer gone", "node evil"],
        ),
        (Box::new(|channel| [&buffer_size(channel)[..], &[0; 4]].concat()), &["protocol violation"]),
    ];
    for (number, (attack, words)) in attacks.iter().enumerate() {
        let (channel, exchange) = (number as u32, format!("x{number}"));
        let sender = producer(&scene, &exchange);
        connect(&mut line, channel, &exchange, 1);
        assert!(line.send_bytes(&attack(channel)));
        failure_of(&mut line, channel);
        assert_failed(&sender.output(), words);
    }
    drop(line);
    scene.end();
}

/// The channel is interrupted by a cut of its link, and then the consumer's end says where to go on.
#[test]
fn a_resume_with_numbers_that_cannot_be_fails_that_channel_and_no_other() {
    let scene = Scene::start(PATIENT, &[]);
    let mut evil = Persona::new("evil");
    let right = Resume {
        incarnation: Incarnation(0),
        next_sequence: Sequence(1),
        opened: 1,
        open_fill: 10,
        limit: 4,
        event_limit: 8,
        consumed: 0,
    };
    // What was acknowledged before, what is said, and what becomes of it.
    let attacks: [(u64, Vec<Resume>, &[&str]); 6] = [
        (
            0,
            vec![Resume { next_sequence: Sequence(1 << 40), ..right }],
            &["ack is 1099511627776; needed: at most 1"],
        ),
        (
            1,
            vec![Resume { next_sequence: Sequence(0), ..right }],
            &["Resume at sequence 0", "needed: at least 1"],
        ),
        (0, vec![Resume { opened: 1 << 40, limit: 1 << 50, ..right }], &["1099511627776 segments opened"]),
        (0, vec![Resume { opened: 1, limit: 0, ..right }], &["Resume at sequence 1, 1 segments opened of 0"]),
        (0, vec![Resume { incarnation: Incarnation(7), ..right }], &["Resume of incarnation 7"]),
        // Fill beyond every segment does not concern this end; twice does.
        (
            0,
            vec![Resume { open_fill: u32::MAX, ..right }, right],
            &["Resume of a channel that was not interrupted"],
        ),
    ];
    for (number, (ack, resumes, words)) in attacks.into_iter().enumerate() {
        let exchange = format!("x{number}");
        let sender = producer(&scene, &exchange);
        let mut hello = evil.hello(Role::Dialler, LinkKind::Data, (0, 0));
        let mut line = evil.dial(&scene.at_a, hello.clone());
        connect(&mut line, 0, &exchange, 4);
        line.until("data", |heard| matches!(heard, Heard::Data(_)).then_some(()));
        line.send(&limit(0, Limit { limit: 4, ack, event_limit: 8, ..Limit::default() }));
        line.cut();
        hello.resumes = 1;
        let mut line = evil.dial(&scene.at_a, hello);
        // It has ChannelAccepted.
        line.send(&Message::LinkResume { control_received: 1 });
        for resume in resumes {
            line.send(&Message::Resume { channel: ChannelIndex(0), resume });
        }
        assert_eq!(failure_of(&mut line, 0).code, FailureCode::Protocol);
        assert_failed(&sender.output(), words);
    }
    scene.end();
}

#[test]
fn numbers_that_go_down_or_too_far_have_no_effect() {
    let scene = Scene::start("", &[]);
    let mut line = Persona::new("evil").dial_data(&scene.at_a, 0);
    let mut sender = producer(&scene, "x");
    connect(&mut line, 0, "x", 8);
    let down = |limit, ack, consumed| Limit { limit, ack, consumed, event_limit: 0, age_us: u32::MAX };
    for numbers in [down(0, 0, 0), down(1, 0, u64::MAX), down(0, 0, 0)] {
        assert!(line.send(&limit(0, numbers)));
    }
    let input = "more\n".repeat(10_000).into_bytes();
    feed(&mut sender, input.clone()).join().expect("the feeder");
    let (mut bytes, mut opened, mut next) = (0, 0, 0);
    loop {
        match line.next() {
            Heard::Data(header) => {
                assert_eq!(header.sequence.0, next, "in order");
                (next, bytes) = (next + 1, bytes + u64::from(header.length));
                opened += u64::from(header.flags.has(weir_flow::wire::Flags::OPEN));
                // What was acknowledged stays so: an older number takes nothing back.
                line.send(&limit(0, down(0, next, bytes)));
                line.send(&limit(0, down(0, next / 2, bytes / 2)));
            }
            Heard::Frame(Message::EndOfData { sequence, .. }) => {
                assert_eq!(sequence.0, next);
                break;
            }
            Heard::Frame(_) => {}
            Heard::End(goodbye) => panic!("the link ended: {goodbye:?}"),
        }
    }
    // A length of four bytes in place of each newline.
    assert_eq!(bytes, (input.len() + 3 * 10_000 + "first\n".len() + 3) as u64);
    assert!(opened <= 8, "{opened} segments of 8");
    line.send(&limit(0, down(0, next + 1, bytes)));
    line.send(&Message::EndAck { channel: ChannelIndex(0) });
    let sent = sender.output();
    assert!(sent.status.success(), "{}", String::from_utf8_lossy(&sent.stderr));
    drop(line);
    scene.end();
}

#[test]
fn channels_that_cannot_be_are_refused_and_nobody_notices() {
    let scene = Scene::start("", &[]);
    let mut line = Persona::new("evil").dial_data(&scene.at_a, 0);
    let sender = producer(&scene, "x");
    let asked = |change: fn(&mut OpenChannel)| {
        let Message::OpenChannel { mut open, .. } = open(0, "x", 1) else { unreachable!() };
        change(&mut open);
        open
    };
    let attacks: [(u32, OpenChannel, FailureCode); 8] = [
        (0, asked(|open| open.exchange = "none".parse().expect("a name")), FailureCode::PartitionNotFound),
        (1, asked(|open| open.producer = ProducerIndex(9)), FailureCode::PartitionNotFound),
        (2, asked(|open| open.incarnation = Incarnation(3)), FailureCode::PartitionNotFound),
        (3, asked(|open| open.consumer = ConsumerIndex(4)), FailureCode::IndexOutOfRange),
        (4, asked(|open| open.shape.consumers = 2), FailureCode::Mismatch),
        (5, asked(|open| open.shape.segment_bytes = 4096), FailureCode::Mismatch),
        (65_536, asked(|_| {}), FailureCode::IndexOutOfRange),
        (u32::MAX, asked(|_| {}), FailureCode::IndexOutOfRange),
    ];
    for (channel, open, code) in attacks {
        assert!(line.send(&Message::OpenChannel { channel: ChannelIndex(channel), open }));
        let failure = failure_of(&mut line, channel);
        assert_eq!(failure.code, code, "{failure}");
    }
    // One that has its consumer already.
    assert!(line.send(&open(6, "healthy", 1)));
    assert_eq!(failure_of(&mut line, 6).code, FailureCode::DuplicateConsumer);
    assert_eq!(forward().consumers, 1);
    // The producer still waits for the one that is right.
    connect(&mut line, 65_535, "x", 1);
    drop(line);
    drop(sender);
    scene.end();
}

#[test]
fn a_peer_that_never_reads_loses_its_link_and_holds_nobody_up() {
    let scene = Scene::start(BRISK, &[]);
    let mut sender = producer(&scene, "x");
    let mut line = Persona::new("evil").dial_data(&scene.at_a, 0);
    connect(&mut line, 0, "x", 1 << 40);
    let _feeder = feed(&mut sender, common::lines(64 << 20));
    // It shows signs of life, and grants whatever there may be. Pauses, for the kernel puts off asking a peer with a
    // closed window whether it is open again with every packet of that peer.
    let signs = [Message::Ping { token: 9 }, limit(0, Limit { limit: 1 << 40, ..Limit::default() })];
    eventually("the link is given up", || {
        std::thread::sleep(Duration::from_millis(400));
        (!signs.iter().all(|sign| line.send(sign))).then_some(())
    });
    assert_failed(&sender.output(), &["link lost", "node evil"]);
    drop(line);
    scene.end();
}
/// One that sends all the time keeps the kernel from giving it up: its link may stay, and its producer waits, as for a
/// consumer that reads nothing. Whatever it holds is back when the producer goes.
#[test]
fn a_peer_that_never_reads_and_always_sends_holds_nothing_of_a_producer_that_is_gone() {
    let scene = Scene::start(BRISK, &[]);
    let before = common::memory_used(&scene.a);
    let mut sender = producer(&scene, "x");
    let mut line = Persona::new("evil").dial_data(&scene.at_a, 0);
    connect(&mut line, 0, "x", 1 << 40);
    let _feeder = feed(&mut sender, common::lines(64 << 20));
    let mut writer = line.stream.try_clone().expect("a second descriptor");
    let enough = Arc::new(AtomicBool::new(false));
    let is_enough = Arc::clone(&enough);
    let chatter = std::thread::spawn(move || {
        let ping = peer::bytes_of(&Message::Ping { token: 9 });
        while !is_enough.load(Ordering::Relaxed) && writer.write_all(&ping).is_ok() {
            std::thread::sleep(Duration::from_millis(5));
        }
    });
    // The socket is full.
    let mut last = 0;
    eventually("nothing is sent any more", || {
        std::thread::sleep(Duration::from_millis(300));
        let sent = channels(&scene.a, "x", "send").first().and_then(|row| row["bytes_total"].as_u64());
        let is_full = sent.is_none_or(|sent| sent > 0 && sent == last);
        last = sent.unwrap_or(0);
        is_full.then_some(())
    });
    drop(sender);
    eventually("its memory is back", || (common::memory_used(&scene.a) <= before).then_some(()));
    enough.store(true, Ordering::Relaxed);
    chatter.join().expect("the chatter");
    drop(line);
    scene.end();
}
