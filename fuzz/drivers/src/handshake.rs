//! A handshake with a peer whose every field is anything, and with somebody between the two who changes bytes.
//!
//! Either end succeeds if and only if the peer has the key, says what it may say, and not one byte was changed on the way.
//!
//! **Broken rule**: a change of a byte is not noticed.

use std::net::TcpStream as StdStream;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use arbitrary::Unstructured;
use hmac::{Hmac, KeyInit, Mac};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use sha2::Sha256;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};
use weir::link::handshake::{HandshakeError, Identity, Peer, Purpose, accept, dial};
use weir_flow::exchange::Name;
use weir_flow::failure::{Failure, FailureCode};
use weir_flow::wire::{
    FrameReader, HEADER_BYTES, Header, Hello, LinkKind, Message, PROTOCOL_VERSION, Role, encode,
    handshake_transcript,
};

use crate::input::{byte, bytes, number, put_all};
use crate::{Driver, Reached, Rule};

/// The driver.
pub const DRIVER: Driver = Driver {
    name: "handshake",
    run,
    seeds,
    must_reach: &[
        "accepted",
        "dialled",
        "closed",
        "wire",
        "version",
        "key",
        "name",
        "own name",
        "segment size",
        "record size",
        "shard",
        "inconsistent",
        "changed on the way",
        "dialled again",
        "link over",
    ],
};

const KEY: &[u8] = b"the key of this cluster, 32 byte";
const SHARDS: u16 = 4;
const SEGMENT_BYTES: u32 = 4096;
const RECORD_BYTES_MAX: u32 = 1 << 20;
const GRACE_MS: u32 = 10_000;
const GRACE: Duration = Duration::from_secs(10);

thread_local! {
    static RUNTIME: Runtime =
        Builder::new_current_thread().enable_all().build().expect("a runtime");
}

/// What the peer is, and what happens to its frames on the way.
struct Script {
    hello: Hello,
    key: Vec<u8>,
    /// Of its first frame, and of its second.
    changes: [Change; 2],
    /// How often the link that we dial for was connected before. If it was, the acceptor has a word on it.
    resumes: u32,
    verdict: Verdict,
}

/// What an acceptor says of a link that is to go on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// It goes on with it: the first frame of the link.
    GoesOn,
    /// It has given it up.
    IsOver,
    /// Nothing, and it goes away.
    Nothing,
}

/// What happens to a frame on the way.
struct Change {
    edits: Vec<(u8, u8)>,
    /// The checksum is put right after the edits.
    is_checksum_right: bool,
    cut: usize,
    behind: Vec<u8>,
}

impl Change {
    fn read(input: &mut Unstructured<'_>) -> Self {
        let kind = byte(input);
        let edits = (0..kind % 4).map(|_| (byte(input), byte(input))).collect();
        Self {
            edits,
            is_checksum_right: kind & 4 == 0,
            cut: if kind & 8 == 0 { usize::MAX } else { byte(input).into() },
            behind: if kind & 16 == 0 { Vec::new() } else { bytes(input, 40).to_vec() },
        }
    }

    /// The frame as it arrives, and whether it is another one. What comes behind the last frame of a handshake is
    /// the business of who has the socket next.
    fn apply(&self, message: &Message, is_last: bool) -> (Vec<u8>, bool) {
        let mut frame = Vec::new();
        encode(message, &mut frame);
        let sent = frame.clone();
        for (at, bits) in &self.edits {
            if let Some(byte) = frame.get_mut(usize::from(*at)) {
                *byte ^= bits;
            }
        }
        if self.is_checksum_right {
            let covered = HEADER_BYTES - 4;
            let checksum = weir_flow::checksum::crc32c(&frame[..covered]);
            frame[covered..HEADER_BYTES].copy_from_slice(&checksum.to_le_bytes());
        }
        frame.truncate(self.cut);
        frame.extend_from_slice(&self.behind);
        let is_changed = if is_last { !frame.starts_with(&sent) } else { frame != sent };
        (frame, is_changed)
    }
}

/// Whether the receiver has a whole frame, and so will answer without waiting for more.
fn is_whole(frame: &[u8]) -> bool {
    let Some((head, body)) = frame.split_first_chunk::<HEADER_BYTES>() else { return false };
    Header::decode(head, 0).map_or(true, |header| body.len() >= header.length as usize)
}

fn run(program: &[u8], rule: Rule) -> Reached {
    let mut input = Unstructured::new(program);
    let dials = byte(&mut input) % 2 == 1;
    let role = if dials { Role::Acceptor } else { Role::Dialler };
    let script = Script {
        hello: any_hello(&mut input, role),
        key: if byte(&mut input) < 200 { KEY.to_vec() } else { b"another".to_vec() },
        changes: [Change::read(&mut input), Change::read(&mut input)],
        resumes: (byte(&mut input) % 2).into(),
        verdict: [Verdict::GoesOn, Verdict::IsOver, Verdict::Nothing][usize::from(byte(&mut input)) % 3],
    };
    let (here, there) = pair();
    let (result, is_changed) = RUNTIME.with(|runtime| {
        runtime.block_on(async {
            let (here, there) = (stream(here), stream(there));
            // Its socket is closed when an end is done, for the other one waits for that.
            let (identity, expected) = (identity(), "b".parse().expect("a name"));
            if dials {
                let us =
                    async { dial(here, &identity, asked(&script), &expected).await.map(|(_, peer)| peer) };
                tokio::join!(us, play_acceptor(there, &script))
            } else {
                let us = async { accept(here, &identity).await.map(|(_, peer)| peer) };
                tokio::join!(us, play_dialler(there, &script))
            }
        })
    });
    let mut reached = Reached::new();
    if is_changed {
        reached.insert("changed on the way");
    }
    let expected = may_succeed(&script, dials) && (!is_changed || rule == Rule::Broken);
    judge(result, expected, dials, &script, &mut reached);
    reached
}

fn judge(
    result: Result<Peer, HandshakeError>,
    expected: bool,
    dials: bool,
    script: &Script,
    reached: &mut Reached,
) {
    match result {
        Ok(peer) => {
            assert!(expected, "it succeeds with {:?}", script.hello);
            assert_eq!((peer.node, peer.epoch), (script.hello.node.clone(), script.hello.epoch));
            assert_eq!(peer.grace, GRACE);
            reached.insert(match (dials, script.resumes) {
                (true, 0) => "dialled",
                (true, _) => "dialled again",
                (false, _) => "accepted",
            });
        }
        // Only where the machine stood still: nobody waits for bytes that cannot come.
        Err(HandshakeError::Timeout) => {}
        Err(error) => {
            assert!(!expected, "it fails: {error}, with {:?}", script.hello);
            assert!(!error.to_string().is_empty());
            reached.insert(match error {
                HandshakeError::Closed | HandshakeError::Io(_) => "closed",
                HandshakeError::Wire(_) => "wire",
                HandshakeError::Version { .. } => "version",
                HandshakeError::Key => "key",
                HandshakeError::Name { .. } => "name",
                HandshakeError::OwnName { .. } => "own name",
                HandshakeError::SegmentBytes { .. } => "segment size",
                HandshakeError::RecordBytesMax { .. } => "record size",
                HandshakeError::Shard { .. } => "shard",
                HandshakeError::Inconsistent { .. } => "inconsistent",
                HandshakeError::LinkOver(_) => "link over",
                _ => "another reason",
            });
        }
    }
}

/// Whether a peer that says this, with its key, is one to go on with.
fn may_succeed(script: &Script, dials: bool) -> bool {
    let Script { hello, key, .. } = script;
    let named = match hello.kind {
        LinkKind::Control => hello.link == 0 && hello.resumes == 0,
        LinkKind::Data => hello.link != 0,
    };
    let is_equal = (hello.segment_bytes, hello.record_bytes_max) == (SEGMENT_BYTES, RECORD_BYTES_MAX);
    let general = key == KEY && hello.node.as_str() != "a" && is_equal;
    if dials {
        let Purpose { kind, local_shard, peer_shard, link, resumes } = asked(script);
        let answer = (hello.kind, hello.peer_shard, hello.local_shard, hello.link, hello.resumes);
        general
            && hello.role == Role::Acceptor
            && hello.node.as_str() == "b"
            && answer == (kind, local_shard, peer_shard, link, resumes)
            && (resumes == 0 || script.verdict == Verdict::GoesOn)
    } else {
        general && hello.role == Role::Dialler && named && hello.peer_shard < SHARDS
    }
}

/// What we dial for.
fn asked(script: &Script) -> Purpose {
    Purpose { kind: LinkKind::Data, local_shard: 1, peer_shard: 2, link: 9, resumes: script.resumes }
}

fn identity() -> Identity {
    Identity {
        node: "a".parse().expect("a name"),
        epoch: 5,
        segment_bytes: SEGMENT_BYTES,
        record_bytes_max: RECORD_BYTES_MAX,
        shards: SHARDS,
        listen_port: 7070,
        grace: GRACE,
        key: Arc::from(KEY),
    }
}

fn any_hello(input: &mut Unstructured<'_>, role: Role) -> Hello {
    let node: Name = ["b", "a", "c"][usize::from(byte(input)) % 3].parse().expect("a name");
    let role = if byte(input) < 240 { role } else { Role::from_wire(3 - role as u8).unwrap_or(role) };
    let kind = if byte(input).is_multiple_of(2) { LinkKind::Data } else { LinkKind::Control };
    let (local_shard, peer_shard) = (byte(input).into(), byte(input).into());
    let (segment_bytes, record_bytes_max) = match byte(input) {
        0..240 => (SEGMENT_BYTES, RECORD_BYTES_MAX),
        240..248 => (SEGMENT_BYTES, RECORD_BYTES_MAX - 1),
        _ => (2 * SEGMENT_BYTES, RECORD_BYTES_MAX),
    };
    Hello {
        version: PROTOCOL_VERSION,
        role,
        kind,
        local_shard,
        peer_shard,
        segment_bytes,
        record_bytes_max,
        epoch: number(input),
        listen_port: 7071,
        link: number(input),
        resumes: byte(input).into(),
        grace_ms: GRACE_MS,
        nonce: [byte(input); 32],
        mac: [0; 32],
        node,
    }
}

async fn play_dialler(mut stream: TcpStream, script: &Script) -> bool {
    let hello = Message::Hello { hello: script.hello.clone(), confirm: false };
    let (frame, mut is_changed) = script.changes[0].apply(&hello, false);
    // The other end may have gone, which is its answer.
    let _ = stream.write_all(&frame).await;
    if is_whole(&frame)
        && let Some(Message::HelloAck { hello: ack }) = next_message(&mut stream).await
    {
        let mac = code(&script.key, Role::Dialler, &script.hello, &ack);
        let hello = Hello { mac, ..script.hello.clone() };
        let (frame, second) = script.changes[1].apply(&Message::Hello { hello, confirm: true }, true);
        is_changed |= second;
        let _ = stream.write_all(&frame).await;
    }
    part(stream).await;
    is_changed
}

async fn play_acceptor(mut stream: TcpStream, script: &Script) -> bool {
    let mut is_changed = false;
    if let Some(Message::Hello { hello, .. }) = next_message(&mut stream).await {
        let mac = code(&script.key, Role::Acceptor, &hello, &script.hello);
        let ack = Message::HelloAck { hello: Hello { mac, ..script.hello.clone() } };
        let (mut frame, changed) = script.changes[0].apply(&ack, true);
        if script.resumes > 0 && !changed {
            // What comes behind it would be its word on the link.
            frame.truncate(frame_bytes(&ack));
        }
        is_changed = changed;
        let _ = stream.write_all(&frame).await;
        // It speaks of the link only to a dialler that has proven itself.
        if is_whole(&frame)
            && matches!(next_message(&mut stream).await, Some(Message::Hello { confirm: true, .. }))
        {
            let failure = Failure::new(FailureCode::LinkLost, "its grace is over");
            let message = match script.verdict {
                Verdict::GoesOn => Some(Message::LinkResume { control_received: 4 }),
                Verdict::IsOver => Some(Message::Goodbye { failure }),
                Verdict::Nothing => None,
            };
            let mut frame = Vec::new();
            message.iter().for_each(|message| encode(message, &mut frame));
            let _ = stream.write_all(&frame).await;
        }
    }
    part(stream).await;
    is_changed
}

/// Bytes of a message on the wire.
fn frame_bytes(message: &Message) -> usize {
    let mut bytes = Vec::new();
    encode(message, &mut bytes);
    bytes.len()
}

/// Says that nothing more comes, and reads until the other end says the same.
async fn part(mut stream: TcpStream) {
    let _ = stream.shutdown().await;
    let mut scrap = [0; 512];
    while matches!(stream.read(&mut scrap).await, Ok(1..)) {}
}

async fn next_message(stream: &mut TcpStream) -> Option<Message> {
    let mut reader = FrameReader::new(4096);
    let mut bytes = [0; 512];
    loop {
        let count = stream.read(&mut bytes).await.ok().filter(|count| *count > 0)?;
        reader.push(&bytes[..count]);
        if let Some(message) = reader.poll_message().expect("what we send is well formed") {
            return Some(message);
        }
    }
}

fn code(key: &[u8], role: Role, dialler: &Hello, acceptor: &Hello) -> [u8; 32] {
    let mut code = Hmac::<Sha256>::new_from_slice(key).expect("a key of any length");
    code.update(&handshake_transcript(role, dialler, acceptor));
    code.finalize().into_bytes().into()
}

/// Two ends of a connection. They are not TCP, which the code under test cannot tell and which has ports to run out of.
fn pair() -> (OwnedFd, OwnedFd) {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).expect("two sockets")
}

fn stream(socket: OwnedFd) -> TcpStream {
    TcpStream::from_std(StdStream::from(socket)).expect("a socket that does not block")
}

/// `hello` as [`any_hello`] reads it, then the key, then both changes.
fn seed(first: u64, hello: &[u64], key: u64, changes: &[u64]) -> Vec<u8> {
    let mut program = Vec::new();
    put_all(&mut program, &[first]);
    put_all(&mut program, hello);
    put_all(&mut program, &[key]);
    put_all(&mut program, changes);
    program
}

fn seeds() -> Vec<Vec<u8>> {
    let dialler: &[u64] = &[0, 0, 0, 2, 1, 0, 7, 9, 0, 3];
    let acceptor: &[u64] = &[0, 0, 0, 2, 1, 0, 7, 9, 0, 3];
    let with = |at: usize, value: u64| {
        let mut hello = dialler.to_vec();
        hello[at] = value;
        hello
    };
    vec![
        seed(0, dialler, 0, &[0, 0]),
        seed(0, &[0, 0, 1, 0, 0, 0, 7, 0, 0, 3], 0, &[0, 0]),
        seed(1, acceptor, 0, &[0, 0]),
        seed(0, dialler, 249, &[0, 0]),
        seed(1, acceptor, 249, &[0, 0]),
        // The link goes on, is over, or nothing is said.
        seed(1, &[0, 0, 0, 2, 1, 0, 7, 9, 1, 3], 0, &[0, 0, 1, 0]),
        seed(1, &[0, 0, 0, 2, 1, 0, 7, 9, 1, 3], 0, &[0, 0, 1, 1]),
        seed(1, &[0, 0, 0, 2, 1, 0, 7, 9, 1, 3], 0, &[0, 0, 1, 2]),
        seed(0, &with(0, 1), 0, &[0, 0]),
        seed(1, &with(0, 2), 0, &[0, 0]),
        seed(0, &with(1, 249), 0, &[0, 0]),
        seed(0, &with(4, 9), 0, &[0, 0]),
        seed(0, &with(5, 249), 0, &[0, 0]),
        seed(0, &with(5, 240), 0, &[0, 0]),
        seed(1, &with(5, 240), 0, &[0, 0]),
        seed(0, &with(7, 0), 0, &[0, 0]),
        seed(1, &with(3, 3), 0, &[0, 0]),
        // Changed: a nonce, a version, a checksum, the code; cut off; with bytes behind.
        seed(0, dialler, 0, &[1, 74, 1, 0]),
        seed(0, dialler, 0, &[1, 32, 1, 0]),
        seed(0, dialler, 0, &[5, 10, 1, 0]),
        seed(0, dialler, 0, &[0, 1, 100, 1]),
        seed(1, acceptor, 0, &[1, 100, 1, 0]),
        seed(0, dialler, 0, &[8, 50, 0]),
        seed(1, acceptor, 0, &[24, 20, 1, 2, 3]),
    ]
}
