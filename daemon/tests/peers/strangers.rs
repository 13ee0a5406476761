//! Those who have not shown that they hold the cluster key.

use std::io::ErrorKind;
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpListener};

use socket2::{Domain, Socket, Type};
use weir_flow::ids::ChannelIndex;
use weir_flow::wire::{FrameType, Hello, Message, Role};
use weir_flow::wire::{Header, LinkKind};

use super::*;
use crate::peer::{Heard, Line, Persona, bytes_of, data};
use crate::proxy::{Kind, Proxy, Way};

const KEY: u8 = 7;

/// Two daemons with a key, linked by way of a proxy that records their handshakes; `b` also dials node `e`.
struct Keyed {
    a: Daemon,
    b: Daemon,
    at_a: String,
    at_b: String,
    proxy: Proxy,
    _directory: TempDir,
}

fn keyed(e: &str) -> Keyed {
    let directory = TempDir::new().expect("a directory");
    let key = key_file(directory.path(), "key", KEY);
    let (at_a, at_b) = (free_address(), free_address());
    let extra: &[&str] = &["--key-file", &key];
    let a = Daemon::start(directory.path(), &DaemonOptions { extra, ..DaemonOptions::new("a", &at_a) });
    let proxy = Proxy::start(&at_a);
    let between = proxy.address();
    let peers: &[(&str, &str)] = &[("a", &between), ("e", e)];
    let b =
        Daemon::start(directory.path(), &DaemonOptions { peers, extra, ..DaemonOptions::new("b", &at_b) });
    Keyed { a, b, at_a, at_b, proxy, _directory: directory }
}

/// The two messages of a dialler and the one of the acceptor, as the proxy saw them.
fn handshake_frames(proxy: &Proxy, kind: Kind) -> [Vec<u8>; 3] {
    let cut = |bytes: Vec<u8>, number: usize| {
        let mut rest = bytes.as_slice();
        for _ in 0..number {
            rest = &rest[frame_bytes(rest)..];
        }
        rest[..frame_bytes(rest)].to_vec()
    };
    let forth = proxy.recorded(kind, 0, Way::ToTarget);
    [cut(forth.clone(), 0), cut(forth, 1), cut(proxy.recorded(kind, 0, Way::ToDialler), 0)]
}

fn frame_bytes(bytes: &[u8]) -> usize {
    32 + u32::from_le_bytes(bytes[..4].try_into().expect("a header")) as usize
}

/// Says Hello, hears HelloAck, then says what `answer` makes of both; how the daemon ends it.
fn confirm_with(
    address: &str,
    mut hello: Hello,
    answer: impl FnOnce(&Hello, &Hello) -> [u8; 32],
) -> Option<String> {
    let mut line = Line::connect(address);
    line.send(&Message::Hello { hello: hello.clone(), confirm: false });
    let Heard::Frame(Message::HelloAck { hello: ack }) = line.next() else { panic!("no HelloAck") };
    hello.mac = answer(&hello, &ack);
    line.send(&Message::Hello { hello, confirm: true });
    line.until_end()
}

#[test]
fn nobody_gets_in_with_another_key_or_with_codes_that_others_made() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let at_e = listener.local_addr().expect("its address").to_string();
    let scene = keyed(&at_e);
    let healthy = Healthy::start(&scene.a, &scene.b, "healthy");
    let differs = Some("cluster key differs");
    let mut evil = Persona::new("e");

    // As a dialler: another key, none, the acceptor's own code sent back.
    for key in [vec![9; 32], Vec::new(), vec![KEY; 31]] {
        let persona = Persona { key, ..evil.clone() };
        let hello = evil.hello(Role::Dialler, LinkKind::Control, (0, 0));
        let end = confirm_with(&scene.at_a, hello, |hello, ack| persona.code(Role::Dialler, hello, ack));
        assert_eq!(end.as_deref().map(|text| &text[..19]), differs);
    }
    for kind in [LinkKind::Control, LinkKind::Data] {
        let end = confirm_with(&scene.at_a, evil.hello(Role::Dialler, kind, (0, 0)), |_, ack| ack.mac);
        assert_eq!(end.as_deref().map(|text| &text[..19]), differs);
    }
    // A handshake of `b` that was listened to, said again.
    for kind in [Kind::Control, Kind::Data] {
        let [hello, confirm, _] = handshake_frames(&scene.proxy, kind);
        let mut line = Line::connect(&scene.at_a);
        line.send_bytes(&hello);
        assert!(matches!(line.next(), Heard::Frame(Message::HelloAck { .. })));
        line.send_bytes(&confirm);
        assert_eq!(line.until_end().as_deref().map(|text| &text[..19]), differs, "{kind:?}");
    }
    logged(&scene.a, &["a link was refused", "cluster key differs"]);

    // As an acceptor, whom `b` dials: an answer that was listened to; `b`'s own words sent back; another key.
    let dialled = || {
        let (stream, _) = listener.accept().expect("b dials e");
        let mut line = Line::new(stream);
        let Heard::Frame(Message::Hello { hello, .. }) = line.next() else { panic!("no Hello") };
        (line, hello)
    };
    let (mut line, _) = dialled();
    line.send_bytes(&handshake_frames(&scene.proxy, Kind::Control)[2]);
    assert_eq!(line.until_end().as_deref().map(|text| &text[..19]), differs);
    let (mut line, hello) = dialled();
    line.send(&Message::HelloAck { hello: Hello { role: Role::Acceptor, ..hello } });
    assert_eq!(line.until_end().as_deref().map(|text| &text[..19]), differs);
    let (mut line, hello) = dialled();
    let mut ack = evil.hello(Role::Acceptor, LinkKind::Control, (0, 0));
    ack.mac = Persona { key: vec![9; 32], ..evil.clone() }.code(Role::Acceptor, &hello, &ack);
    line.send(&Message::HelloAck { hello: ack });
    assert_eq!(line.until_end().as_deref().map(|text| &text[..19]), differs);
    shown(&scene.b, "peer/e", "cluster key differs");
    // One in the middle, who has `a` answer for it: `a` is not who was dialled. And one who has `b` answer itself.
    for (address, expected) in [(&scene.at_a, "node name is a; needed: e"), (&scene.at_b, "")] {
        let (mut line, hello) = dialled();
        let mut other = Line::connect(address);
        other.send(&Message::Hello { hello, confirm: false });
        if let Heard::Frame(answer @ Message::HelloAck { .. }) = other.next() {
            line.send_bytes(&bytes_of(&answer));
            assert!(line.until_end().is_some_and(|text| text.contains(expected)));
        } else {
            // `b` does not answer its own name.
            assert_eq!(expected, "");
        }
    }
    assert!(!is_linked(&scene.b, "e") && !is_linked(&scene.a, "e"));
    healthy.finish();
}

#[test]
fn what_is_no_handshake_is_refused_with_what_it_was() {
    let scene = Scene::start("", &[]);
    let mut evil = Persona::new("e");
    let hello = evil.hello(Role::Dialler, LinkKind::Control, (0, 0));
    let hello_bytes = bytes_of(&Message::Hello { hello: hello.clone(), confirm: false });
    let header = |header: Header| header.encode().to_vec();
    let mut unknown_type = header(Header::new(FrameType::Hello));
    unknown_type[4] = 99;
    let checksum = crc32c(&unknown_type[..28]);
    unknown_type[28..].copy_from_slice(&checksum.to_le_bytes());
    for (bytes, reason) in [
        (vec![0x5a; 4096], "header checksum"),
        (b"GET / HTTP/1.1\r\nHost: weir\r\nUser-Agent: x\r\n\r\n".to_vec(), "header checksum"),
        (unknown_type, "frame type is 99"),
        (header(Header { length: 152 << 10, ..Header::new(FrameType::Hello) }), "Hello has 155648 bytes"),
        (data(0, 0, true, &[0; 64]), "Data"),
        (bytes_of(&Message::Ping { token: 1 }), "frame is Ping; needed: a handshake"),
        (bytes_of(&Message::EndAck { channel: ChannelIndex(0) }), "frame is EndAck; needed: a handshake"),
        (bytes_of(&Message::Hello { hello: hello.clone(), confirm: true }), "needed: Hello"),
        (bytes_of(&Message::HelloAck { hello: hello.clone() }), "needed: Hello"),
        ([hello_bytes.clone(), hello_bytes.clone()].concat(), "needed: Hello with CONFIRM"),
        (
            bytes_of(&Message::Hello {
                hello: Hello { node: "a".parse().expect("a name"), ..hello.clone() },
                confirm: false,
            }),
            "node name a is that of both nodes",
        ),
        (
            bytes_of(&Message::Hello {
                hello: Hello { segment_bytes: 4096 + 64, ..hello.clone() },
                confirm: false,
            }),
            "memory.segment_bytes of the peer is 4096",
        ),
        (
            bytes_of(&Message::Hello {
                hello: Hello { record_bytes_max: 7, ..hello.clone() },
                confirm: false,
            }),
            "record.bytes_max of the peer is 7; needed: 1048576",
        ),
        (
            bytes_of(&Message::Hello { hello: Hello { version: 77, ..hello.clone() }, confirm: false }),
            "protocol version is 77",
        ),
        (
            bytes_of(&Message::Hello {
                hello: evil.hello(Role::Dialler, LinkKind::Data, (0, 9)),
                confirm: false,
            }),
            "shard 9 asked for",
        ),
        (
            bytes_of(&Message::Hello { hello: Hello { mac: [1; 32], ..hello.clone() }, confirm: false }),
            "code of the first Hello",
        ),
    ] {
        let mut line = Line::connect(&scene.at_a);
        line.send_bytes(&bytes);
        while !matches!(line.next(), Heard::End(goodbye) if goodbye.as_deref().is_none_or(|text| text.contains(reason)))
        {
        }
        logged(&scene.a, &["a link was refused", reason]);
        shown(&scene.a, "listener", reason);
    }
    // One that only goes is no news; neither does it keep anything.
    for bytes in [&b""[..], &hello_bytes[..1], &hello_bytes[..40], &hello_bytes] {
        Line::connect(&scene.at_a).send_bytes(bytes);
    }
    scene.end();
}

fn crc32c(bytes: &[u8]) -> u32 {
    let mut crc = !0_u32;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg());
        }
    }
    !crc
}

#[test]
fn a_stranger_who_says_nothing_or_one_byte_a_second_is_cut_off() {
    let scene = Scene::start("", &[]);
    let silent = Line::connect(&scene.at_a);
    let slow = Line::connect(&scene.at_a);
    let mut writer = slow.stream.try_clone().expect("a second descriptor");
    let writing = std::thread::spawn(move || {
        let hello = Persona::new("e").hello(Role::Dialler, LinkKind::Control, (0, 0));
        for byte in bytes_of(&Message::Hello { hello, confirm: false }) {
            if writer.write_all(&[byte]).is_err() {
                return;
            }
            std::thread::sleep(Duration::from_secs(1));
        }
        panic!("all of it was taken");
    });
    for mut line in [silent, slow] {
        assert!(line.until_end().is_some_and(|text| text.contains("longer than 5s")));
    }
    writing.join().expect("the writer");
    scene.end();
}

/// Fills the places of strangers from an address of its own, for as long as it is not told that it is enough: each
/// connection stays until the daemon ends it, and then another one takes its place.
fn flood(address: String, enough: Arc<AtomicBool>) {
    let source: SocketAddr = "127.0.0.2:0".parse().expect("an address");
    let target: SocketAddr = address.parse().expect("an address");
    let mut held: Vec<Socket> = Vec::new();
    while !enough.load(Ordering::Relaxed) {
        held.retain(|socket| {
            let peeked = socket.peek(&mut [MaybeUninit::uninit()]);
            peeked.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
        });
        for _ in held.len()..100.min(held.len() + 2) {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
            // So that a flood leaves no ports in TIME_WAIT.
            socket.set_linger(Some(Duration::ZERO)).expect("an option");
            socket.bind(&source.into()).expect("all of 127/8 is this host");
            if socket.connect(&target.into()).is_ok() {
                socket.set_nonblocking(true).expect("an option");
                held.push(socket);
            }
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_flood_of_strangers_keeps_no_peer_out() {
    let scene = Scene::start("", &[]);
    let enough = Arc::new(AtomicBool::new(false));
    let start = || {
        let (address, enough) = (scene.at_a.clone(), Arc::clone(&enough));
        std::thread::spawn(move || flood(address, enough))
    };
    let floods = [start(), start()];
    logged(&scene.a, &["have not finished their handshake"]);
    let directory = TempDir::new().expect("a directory");
    for name in ["c", "d", "f"] {
        let address = free_address();
        let options = DaemonOptions { peers: &[("a", &scene.at_a)], ..DaemonOptions::new(name, &address) };
        let peer = Daemon::start(directory.path(), &options);
        eventually("a new peer is linked", || is_linked(&peer, "a").then_some(()));
        assert!(Usage::of(&scene.a).descriptors < scene.before[0].descriptors + 200);
    }
    enough.store(true, Ordering::Relaxed);
    for flood in floods {
        flood.join().expect("a flood");
    }
    // Of thousands that were refused not each has a line, and the others are counted.
    eventually("the others are counted", || {
        scene.a.printed().contains("s are not written: a link was refused").then_some(())
    });
    let lines = scene.a.printed().matches("a link was refused").count();
    assert!(lines < 1000, "{lines} lines");
    scene.end();
}
