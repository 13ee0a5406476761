//! Peers that hold the key and say what has no place on their link.

use weir_flow::failure::{Failure, FailureCode};
use weir_flow::ids::{ChannelIndex, Incarnation, Sequence};
use weir_flow::wire::{Cancel, Flags, FrameType, Header, Limit, LinkKind, Message, Resume, Role};

use super::*;
use crate::peer::{Heard, Line, Persona, SEGMENT_BYTES, bytes_of, catalog, data, entry, event, limit, open};

fn header(header: Header) -> Vec<u8> {
    header.encode().to_vec()
}

/// A header with one byte changed and nothing done about the checksum.
fn garbled() -> Vec<u8> {
    let mut bytes = header(Header::new(FrameType::EndAck));
    bytes[9] ^= 1;
    bytes
}

/// Frames behind which nothing of a link can be believed, and what is said of them.
fn malformed() -> Vec<(Vec<u8>, &'static str)> {
    let ping = |change: fn(&mut Header)| {
        let mut ping = Header { length: 8, ..Header::new(FrameType::Ping) };
        change(&mut ping);
        [&ping.encode()[..], &[0; 9]].concat()
    };
    vec![
        (vec![0xa5; 256], "header checksum"),
        (garbled(), "header checksum"),
        (ping(|ping| ping.length = 9), "Ping has 9 bytes; needed: 8"),
        (ping(|ping| ping.length = u32::MAX), "Ping has 4294967295 bytes"),
        (ping(|ping| ping.flags = Flags(1)), "flags of Ping"),
        (ping(|ping| ping.channel = ChannelIndex(3)), "channel"),
        (ping(|ping| ping.sequence = Sequence(3)), "sequence"),
        (
            header(Header { length: (64 << 10) + 1, ..Header::new(FrameType::Catalog) }),
            "Catalog has 65537 bytes; needed: 2 to 65536",
        ),
    ]
}

/// A link that is still there answers.
pub(crate) fn assert_alive(line: &mut Line) {
    let token = 0x5eed;
    assert!(line.send(&Message::Ping { token }));
    line.until("a Pong", |heard| {
        matches!(heard, Heard::Frame(Message::Pong { token: 0x5eed })).then_some(())
    });
}

#[test]
fn a_frame_that_has_no_place_on_a_control_link_ends_that_link_and_no_other() {
    let scene = Scene::start(PATIENT, &[]);
    let mut bystander = Persona::new("bystander");
    let mut other = bystander.dial_control(&scene.at_a);
    let mut cases = malformed();
    let catalog = |count: u16| {
        let head = Header { length: 2, ..Header::new(FrameType::Catalog) };
        [&head.encode()[..], &count.to_le_bytes()].concat()
    };
    let hello = bystander.hello(Role::Dialler, LinkKind::Control, (0, 0));
    cases.extend([
        (data(0, 0, true, b"x"), "Data has 1 bytes"),
        (
            bytes_of(&Message::EndAck { channel: ChannelIndex(0) }),
            "frame is EndAck; needed: a frame of a control link",
        ),
        (bytes_of(&open(0, "healthy", 1)), "frame is OpenChannel"),
        (bytes_of(&Message::LinkResume { control_received: 0 }), "frame is LinkResume"),
        (bytes_of(&Message::Hello { hello, confirm: false }), "frame is Hello"),
        (catalog(1), "needed"),
        (catalog(u16::MAX), "needed"),
    ]);
    for (number, (bytes, reason)) in cases.into_iter().enumerate() {
        let name = format!("evil{number}");
        let mut evil = Persona::new(&name);
        let mut line = evil.dial_control(&scene.at_a);
        eventually("it is linked", || is_linked(&scene.a, &name).then_some(()));
        line.send_bytes(&bytes);
        line.until_end();
        logged(&scene.a, &["the control link to a peer has ended", &name, "malformed frame", reason]);
        eventually("it is forgotten", || (!is_linked(&scene.a, &name)).then_some(()));
    }
    assert_alive(&mut other);
    assert!(is_linked(&scene.b, "a") && is_linked(&scene.a, "b"));
    drop(other);
    scene.end();
}

#[test]
fn a_frame_that_has_no_place_on_a_data_link_ends_that_link_and_no_other() {
    // A link that only lost its connection would be waited for until the test is over.
    let scene = Scene::start(PATIENT, &[]);
    let mut bystander = Persona::new("bystander");
    let mut other = bystander.dial_data(&scene.at_a, 0);
    let mut cases = malformed();
    let hello = bystander.hello(Role::Dialler, LinkKind::Control, (0, 0));
    let oversized = Header { length: SEGMENT_BYTES + 1, ..Header::new(FrameType::Data) };
    cases.extend([
        (header(oversized), "Data has 32833 bytes; needed: 0 to 32832"),
        (bytes_of(&catalog(vec![entry("x")])), "frame is Catalog; needed: a frame of a data link"),
        (
            bytes_of(&Message::Hello { hello, confirm: true }),
            "frame is Hello; needed: a frame of a data link",
        ),
        (bytes_of(&Message::LinkResume { control_received: 0 }), "frame is LinkResume"),
    ]);
    for (number, (bytes, reason)) in cases.into_iter().enumerate() {
        let name = format!("evil{number}");
        let mut line = Persona::new(&name).dial_data(&scene.at_a, 0);
        assert_alive(&mut line);
        line.send_bytes(&bytes);
        line.until_end();
        logged(&scene.a, &["data link closed", &name, reason]);
    }
    assert_alive(&mut other);
    drop(other);
    scene.end();
}

#[test]
fn frames_for_channels_that_are_not_there_are_skipped() {
    let scene = Scene::start("", &[]);
    let mut line = Persona::new("evil").dial_data(&scene.at_a, 0);
    for index in [0, 7, 65_535, 65_536, u32::MAX] {
        let channel = ChannelIndex(index);
        let failure = Failure::new(FailureCode::ConsumerGone, "none");
        let resume = Resume {
            incarnation: Incarnation(1),
            next_sequence: Sequence(u64::MAX),
            opened: u64::MAX,
            open_fill: u32::MAX,
            limit: u64::MAX,
            event_limit: u64::MAX,
            consumed: u64::MAX,
        };
        for message in [
            event(index, 0),
            limit(index, Limit { limit: u64::MAX, ack: u64::MAX, consumed: u64::MAX, ..Limit::default() }),
            Message::ChannelAccepted {
                channel,
                backlog: u32::MAX,
                sequence: Sequence(0),
                incarnation: Incarnation(1),
            },
            Message::ChannelFailed { channel, failure: failure.clone() },
            Message::Backlog { channel, backlog: u32::MAX, closed: true },
            Message::BufferSize { channel, bytes: 1 },
            Message::Resume { channel, resume },
            Message::Cancel {
                channel,
                cancel: Cancel { delivered: 0, consumed: 0, failure: failure.clone() },
            },
            Message::EndOfData { channel, backlog: 0, sequence: Sequence(0) },
            Message::EndAck { channel },
        ] {
            assert!(line.send(&message));
        }
        assert!(line.send_bytes(&data(index, 3, true, &[7; SEGMENT_BYTES as usize])));
        assert!(line.send_bytes(&data(index, 9, false, &[])));
        assert_alive(&mut line);
    }
    drop(line);
    scene.end();
}

#[test]
fn a_link_is_resumed_by_nobody_who_did_not_have_it_and_not_with_nonsense() {
    let scene = Scene::start(PATIENT, &[]);
    let mut evil = Persona::new("evil");
    let first = evil.hello(Role::Dialler, LinkKind::Data, (0, 0));
    let line = evil.dial(&scene.at_a, first.clone());
    let again = |evil: &mut Persona, link: u64, resumes: u32| {
        let mut hello = evil.hello(Role::Dialler, LinkKind::Data, (0, 0));
        (hello.link, hello.resumes) = (link, resumes);
        hello
    };
    // A link that nobody knows; that of another node; that of an earlier life of this one.
    let unknown = again(&mut evil, 77, 1);
    assert!(evil.dial(&scene.at_a, unknown).until_end().is_some());
    let mut thief = Persona::new("thief");
    let stolen = again(&mut thief, first.link, 1);
    assert!(thief.dial(&scene.at_a, stolen).until_end().is_some());
    drop(line);
    // Its own, with what is no LinkResume; it is over then.
    let next = again(&mut evil, first.link, 1);
    let mut line = evil.dial(&scene.at_a, next);
    line.until("LinkResume", |heard| matches!(heard, Heard::Frame(Message::LinkResume { .. })).then_some(()));
    line.send(&Message::Ping { token: 1 });
    line.until_end();
    logged(&scene.a, &["data link closed", "evil", "frame is Ping; needed: LinkResume"]);
    let late = again(&mut evil, first.link, 2);
    assert!(evil.dial(&scene.at_a, late).until_end().is_some());
    // A count that cannot be.
    let hello = evil.hello(Role::Dialler, LinkKind::Data, (0, 0));
    let link = hello.link;
    drop(evil.dial(&scene.at_a, hello));
    let next = again(&mut evil, link, 1);
    let mut line = evil.dial(&scene.at_a, next);
    line.send(&Message::LinkResume { control_received: 1 << 40 });
    line.until_end();
    logged(&scene.a, &["data link closed", "evil", "frame is LinkResume; needed: a count"]);
    // Said twice.
    let hello = evil.hello(Role::Dialler, LinkKind::Data, (0, 0));
    let link = hello.link;
    drop(evil.dial(&scene.at_a, hello));
    let next = again(&mut evil, link, u32::MAX);
    let mut line = evil.dial(&scene.at_a, next);
    line.send(&Message::LinkResume { control_received: 0 });
    assert_alive(&mut line);
    line.send(&Message::LinkResume { control_received: 0 });
    line.until_end();
    logged(&scene.a, &["data link closed", "evil", "frame is LinkResume; needed: another frame"]);
    scene.end();
}
