//! A peer that says that producers are on it.

use std::net::TcpListener;

use weir_flow::failure::{Failure, FailureCode};
use weir_flow::ids::{ChannelIndex, Incarnation, Sequence};
use weir_flow::wire::{LinkKind, Message};

use super::*;
use crate::peer::{Heard, Line, Persona, SEGMENT_BYTES, bytes_of, catalog, data, entry, event};

/// The hostile node, dialled by `b`: its control link and, once a consumer has asked, its data link.
struct Evil {
    persona: Persona,
    listener: TcpListener,
    control: Line,
    data: Option<Line>,
}

impl Evil {
    fn start(listener: TcpListener) -> Self {
        let mut persona = Persona::new("evil");
        let (control, hello) = persona.accept(&listener);
        assert_eq!(hello.kind, LinkKind::Control);
        Self { persona, listener, control, data: None }
    }

    /// A consumer on `b` for a producer that this node tells of; its channel.
    fn consumer(&mut self, b: &Daemon, exchange: &str) -> (Guarded, u32) {
        let receiver = recv(b, exchange, "0/1");
        assert!(self.control.send(&catalog(vec![entry(exchange)])));
        if self.data.is_none() {
            let (line, hello) = self.persona.accept(&self.listener);
            assert_eq!(hello.kind, LinkKind::Data);
            self.data = Some(line);
        }
        let channel = self.line().until("OpenChannel", |heard| match heard {
            Heard::Frame(Message::OpenChannel { channel, open }) => {
                assert_eq!(open.exchange.as_str(), exchange);
                Some(channel.0)
            }
            _ => None,
        });
        (receiver, channel)
    }

    fn line(&mut self) -> &mut Line {
        self.data.as_mut().expect("a data link")
    }
}

fn accepted(channel: u32) -> Vec<u8> {
    bytes_of(&Message::ChannelAccepted {
        channel: ChannelIndex(channel),
        backlog: 0,
        sequence: Sequence(0),
        incarnation: Incarnation(1),
    })
}

fn end(channel: u32, sequence: u64) -> Vec<u8> {
    bytes_of(&Message::EndOfData { channel: ChannelIndex(channel), backlog: 0, sequence: Sequence(sequence) })
}

/// A record as clients write it.
fn record(text: &[u8]) -> Vec<u8> {
    [&(text.len() as u32).to_le_bytes()[..], text].concat()
}

/// The frames for a channel, and what its consumer is told.
type Attack = (fn(u32) -> Vec<Vec<u8>>, &'static [&'static str]);

const ATTACKS: &[Attack] = &[
    (|c| vec![accepted(c), data(c, 5, true, b"x")], &["sequence gap", "sequence is 5; needed: 0"]),
    (
        |c| vec![accepted(c), data(c, 0, true, b"x"), data(c, 0, false, b"x")],
        &["sequence gap", "sequence is 0; needed: 1"],
    ),
    (
        // Each a quarter of an empty record.
        |c| [vec![accepted(c)], (0..500).map(|n| data(c, n, true, &[0])).collect()].concat(),
        &["credit violation", "was opened; needed: at most"],
    ),
    (
        |c| vec![accepted(c), data(c, 0, false, b"x")],
        &["credit violation", "without OPEN; needed: at most 0"],
    ),
    (
        |c| vec![accepted(c), data(c, 0, true, &[0; SEGMENT_BYTES as usize]), data(c, 1, false, b"x")],
        &["credit violation", "without OPEN; needed: at most 0"],
    ),
    (|c| vec![accepted(c), data(c, 0, true, b"")], &["protocol violation", "Data has 0 bytes"]),
    (
        |c| [vec![accepted(c)], (0..200).map(|n| bytes_of(&event(c, n))).collect()].concat(),
        &["credit violation", "event 9 arrived; needed: at most 8"],
    ),
    (|c| vec![accepted(c), end(c, 7)], &["sequence gap", "sequence is 7; needed: 0"]),
    (|c| vec![data(c, 0, true, b"x")], &["protocol violation"]),
    (|c| vec![end(c, 0)], &["protocol violation"]),
    (|c| vec![accepted(c), accepted(c)], &["protocol violation"]),
    // What no producer's client wrote: a length beyond every record.
    (|c| vec![accepted(c), data(c, 0, true, &[0xff; 8])], &["record too large"]),
    (
        |c| {
            let failure = Failure::new(FailureCode::ProducerGone, "evil\u{1b}[31m\r\nforged line");
            vec![bytes_of(&Message::ChannelFailed { channel: ChannelIndex(c), failure })]
        },
        &["producer gone"],
    ),
];

#[test]
fn what_a_producers_node_may_not_send_fails_that_channel_and_no_other() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let at_evil = listener.local_addr().expect("its address").to_string();
    let scene = Scene::start("", &[("evil", &at_evil)]);
    let mut evil = Evil::start(listener);
    // A channel of the same link that is open throughout.
    let (beside, channel) = evil.consumer(&scene.b, "beside");
    assert!(evil.line().send_bytes(&accepted(channel)));
    assert!(evil.line().send_bytes(&data(channel, 0, true, &record(b"before"))));
    for (number, (attack, words)) in ATTACKS.iter().enumerate() {
        let (receiver, channel) = evil.consumer(&scene.b, &format!("x{number}"));
        assert!(evil.line().send_bytes(&attack(channel).concat()));
        let output = receiver.output();
        assert_failed(&output, words);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!text.contains('\u{1b}') && !text.contains("\nforged"), "{text:?}");
    }
    let second = data(channel, 1, false, &record(b"after"));
    assert!(evil.line().send_bytes(&[second, end(channel, 2)].concat()));
    let output = beside.output();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.stdout, b"before\nafter\n");
    evil.line().until("EndAck", |heard| {
        matches!(heard, Heard::Frame(Message::EndAck { channel: found }) if found.0 == channel).then_some(())
    });
    assert!(is_linked(&scene.b, "evil"));
    // The link itself: both channels on it end with the reason, and the next consumer gets another link.
    let (first, channel) = evil.consumer(&scene.b, "y0");
    assert!(evil.line().send_bytes(&accepted(channel)));
    let (second, _) = evil.consumer(&scene.b, "y1");
    assert!(evil.line().send_bytes(&[0xa5; 64]));
    for receiver in [first, second] {
        assert_failed(&receiver.output(), &["link lost", "node evil", "header checksum"]);
    }
    evil.line().until_end();
    // It is told why on another connection, which goes on with nothing.
    let (mut line, hello) = evil.persona.accept(&evil.listener);
    assert_eq!((hello.kind, hello.resumes), (LinkKind::Data, 1));
    line.send(&Message::LinkResume { control_received: 0 });
    let told = line.until_end().unwrap_or_default();
    assert!(told.contains("node b has closed the link") && told.contains("header checksum"), "{told:?}");
    evil.data = None;
    let (third, channel) = evil.consumer(&scene.b, "y2");
    assert!(
        evil.line().send_bytes(
            &[accepted(channel), data(channel, 0, true, &record(b"z")), end(channel, 1)].concat()
        )
    );
    assert_eq!(third.output().stdout, b"z\n");
    drop(evil);
    scene.end();
}

#[test]
fn a_peer_that_never_says_a_word_on_a_channel_holds_up_nobody_and_is_told_when_its_consumer_goes() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let at_evil = listener.local_addr().expect("its address").to_string();
    let scene = Scene::start("", &[("evil", &at_evil)]);
    let mut evil = Evil::start(listener);
    let (receiver, channel) = evil.consumer(&scene.b, "x");
    drop(receiver);
    evil.line().until("Cancel", |heard| match heard {
        Heard::Frame(Message::Cancel { channel: found, cancel }) => {
            assert_eq!((found.0, cancel.failure.code), (channel, FailureCode::ConsumerGone));
            Some(())
        }
        _ => None,
    });
    drop(evil);
    scene.end();
}
