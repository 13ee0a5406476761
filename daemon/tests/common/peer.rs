//! A node that is none: it has the cluster key, speaks the protocol, and says on it whatever a test wants. Its frames
//! are made by the wire encoder of `weir-flow`, its handshake by hand, so that each byte of it can be another.
#![allow(dead_code, reason = "each test file uses its own part")]

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use bytes::Bytes;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use weir_flow::exchange::{Name, Shape, Strategy};
use weir_flow::ids::{ChannelIndex, ConsumerIndex, Incarnation, ProducerIndex, Sequence};
use weir_flow::limits::{Limits, RECORD_ROOM_BYTES};
use weir_flow::wire::{
    CatalogEntry, Flags, FrameType, HEADER_BYTES, Header, Hello, Limit, LinkKind, Message, OpenChannel,
    PROTOCOL_VERSION, PartitionEntry, PartitionState, Role, decode, encode, handshake_transcript,
};

use crate::common::PATIENCE;

/// The segment size that daemons have unless they are told otherwise.
pub(crate) const SEGMENT_BYTES: u32 = (32 << 10) + RECORD_ROOM_BYTES;

/// Who the node says that it is.
#[derive(Clone, Debug)]
pub(crate) struct Persona {
    pub(crate) node: Name,
    pub(crate) epoch: u64,
    pub(crate) listen_port: u16,
    /// Longer than that of any daemon, if not set: it never decides.
    pub(crate) grace_ms: u32,
    pub(crate) key: Vec<u8>,
    pub(crate) next_link: u64,
}

impl Persona {
    /// A node of this name, without a cluster key.
    pub(crate) fn new(node: &str) -> Self {
        let epoch = getrandom::u64().expect("random numbers") >> 1;
        Self {
            node: node.parse().expect("a name"),
            epoch,
            listen_port: 1,
            grace_ms: u32::MAX,
            key: Vec::new(),
            next_link: epoch,
        }
    }

    /// Its part of a handshake, without the code. Shards are (its own, the peer's).
    pub(crate) fn hello(&mut self, role: Role, kind: LinkKind, shards: (u16, u16)) -> Hello {
        let mut nonce = [0; 32];
        getrandom::fill(&mut nonce).expect("random numbers");
        self.next_link += 1;
        Hello {
            version: PROTOCOL_VERSION,
            role,
            kind,
            local_shard: shards.0,
            peer_shard: shards.1,
            segment_bytes: SEGMENT_BYTES,
            record_bytes_max: Limits::default().record_bytes_max,
            epoch: self.epoch,
            listen_port: self.listen_port,
            link: if kind == LinkKind::Data { self.next_link } else { 0 },
            resumes: 0,
            grace_ms: self.grace_ms,
            nonce,
            mac: [0; 32],
            node: self.node.clone(),
        }
    }

    /// The code of a role over what both ends said.
    pub(crate) fn code(&self, role: Role, dialler: &Hello, acceptor: &Hello) -> [u8; 32] {
        let mut code = Hmac::<Sha256>::new_from_slice(&self.key).expect("a key of any length");
        code.update(&handshake_transcript(role, dialler, acceptor));
        code.finalize().into_bytes().into()
    }

    /// Dials a control link.
    pub(crate) fn dial_control(&mut self, address: &str) -> Line {
        let hello = self.hello(Role::Dialler, LinkKind::Control, (0, 0));
        self.dial(address, hello)
    }

    /// Dials a new data link between shard 0 of this node and a shard of the peer.
    pub(crate) fn dial_data(&mut self, address: &str, peer_shard: u16) -> Line {
        let hello = self.hello(Role::Dialler, LinkKind::Data, (0, peer_shard));
        self.dial(address, hello)
    }

    /// Dials with this Hello.
    pub(crate) fn dial(&self, address: &str, mut hello: Hello) -> Line {
        let mut line = Line::connect(address);
        line.send(&Message::Hello { hello: hello.clone(), confirm: false });
        let ack = match line.next() {
            Heard::Frame(Message::HelloAck { hello }) => hello,
            other => panic!("no HelloAck but {other:?}"),
        };
        assert_eq!(ack.mac, self.code(Role::Acceptor, &hello, &ack), "the daemon's own code");
        hello.mac = self.code(Role::Dialler, &hello, &ack);
        line.send(&Message::Hello { hello, confirm: true });
        line
    }

    /// Accepts the next link that a daemon dials, and shakes hands honestly; what it is for, as the dialler said it.
    pub(crate) fn accept(&mut self, listener: &TcpListener) -> (Line, Hello) {
        let (stream, _) = listener.accept().expect("a connection");
        let mut line = Line::new(stream);
        let hello = match line.next() {
            Heard::Frame(Message::Hello { hello, confirm: false }) => hello,
            other => panic!("no Hello but {other:?}"),
        };
        let mut ack = self.hello(Role::Acceptor, hello.kind, (hello.peer_shard, hello.local_shard));
        (ack.link, ack.resumes) = (hello.link, hello.resumes);
        ack.mac = self.code(Role::Acceptor, &hello, &ack);
        line.send(&Message::HelloAck { hello: ack.clone() });
        match line.next() {
            Heard::Frame(Message::Hello { hello: confirmed, confirm: true }) => {
                assert_eq!(confirmed.mac, self.code(Role::Dialler, &hello, &ack), "the daemon's own code");
            }
            other => panic!("no Hello with CONFIRM but {other:?}"),
        }
        if hello.kind == LinkKind::Control {
            // So says an acceptor that it has taken the link.
            line.send(&Message::Ping { token: 0 });
        }
        (line, hello)
    }
}

/// What comes on a connection.
#[derive(Debug)]
pub(crate) enum Heard {
    /// A frame that is not Data.
    Frame(Message),
    /// A Data frame and how long its payload is.
    Data(Header),
    /// The connection has ended; what the peer said last in Goodbye.
    End(Option<String>),
}

/// A connection to a daemon. Reading panics when nothing comes for [`PATIENCE`].
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) stream: TcpStream,
    goodbye: Option<String>,
    /// Whether Pings are answered while reading.
    pub(crate) answers_pings: bool,
}

impl Line {
    pub(crate) fn connect(address: &str) -> Self {
        Self::new(TcpStream::connect(address).expect("a daemon that listens"))
    }

    pub(crate) fn new(stream: TcpStream) -> Self {
        stream.set_nodelay(true).expect("an option of every TCP socket");
        stream.set_read_timeout(Some(PATIENCE)).expect("an option of every socket");
        stream.set_write_timeout(Some(PATIENCE)).expect("an option of every socket");
        Self { stream, goodbye: None, answers_pings: true }
    }

    /// Sends bytes; whether the peer still takes them.
    pub(crate) fn send_bytes(&mut self, bytes: &[u8]) -> bool {
        match self.stream.write_all(bytes) {
            Ok(()) => true,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                panic!("the daemon takes nothing")
            }
            Err(_) => false,
        }
    }

    pub(crate) fn send(&mut self, message: &Message) -> bool {
        self.send_bytes(&bytes_of(message))
    }

    /// The next frame, or the end.
    pub(crate) fn next(&mut self) -> Heard {
        let began = Instant::now();
        loop {
            assert!(began.elapsed() < PATIENCE, "the daemon only asks whether this end lives");
            let mut head = [0; HEADER_BYTES];
            if !self.read(&mut head) {
                return Heard::End(self.goodbye.take());
            }
            let header = Header::decode(&head, SEGMENT_BYTES).expect("a header as a daemon writes it");
            let mut body = vec![0; header.length as usize];
            if !self.read(&mut body) {
                return Heard::End(self.goodbye.take());
            }
            if header.frame_type == FrameType::Data {
                return Heard::Data(header);
            }
            match decode(&header, &body).expect("a body as a daemon writes it") {
                Message::Ping { token } if self.answers_pings => {
                    self.send(&Message::Pong { token });
                }
                Message::Goodbye { failure } => self.goodbye = Some(failure.text),
                message => return Heard::Frame(message),
            }
        }
    }

    /// Reads on until `wanted` gives something.
    pub(crate) fn until<T>(&mut self, what: &str, mut wanted: impl FnMut(&Heard) -> Option<T>) -> T {
        let began = Instant::now();
        loop {
            let heard = self.next();
            if let Some(found) = wanted(&heard) {
                return found;
            }
            assert!(began.elapsed() < PATIENCE, "much came, but not: {what}; {heard:?}");
            assert!(!matches!(heard, Heard::End(_)), "the link has ended before: {what}; {heard:?}");
        }
    }

    /// Reads on until the peer ends the connection; what it said in Goodbye.
    pub(crate) fn until_end(&mut self) -> Option<String> {
        loop {
            if let Heard::End(goodbye) = self.next() {
                return goodbye;
            }
        }
    }

    /// Ends the connection without Goodbye, once the daemon has read everything that was sent on it. A connection that
    /// is dropped while the daemon's bytes are on the way is reset instead: the daemon may then fail at sending before
    /// it reads what was sent last.
    pub(crate) fn cut(mut self) {
        // The daemon may have ended it already.
        let _ = self.stream.shutdown(Shutdown::Write);
        self.until_end();
    }

    fn read(&mut self, bytes: &mut [u8]) -> bool {
        match self.stream.read_exact(bytes) {
            Ok(()) => true,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                panic!("the daemon says nothing and does not end the connection")
            }
            Err(_) => false,
        }
    }

    /// Whether the peer has ended the connection, without waiting for it. Reads what there is.
    pub(crate) fn has_ended(&mut self) -> bool {
        self.stream.set_read_timeout(Some(Duration::from_millis(1))).expect("an option");
        let mut scrap = vec![0; 64 << 10];
        let ended = loop {
            match self.stream.read(&mut scrap) {
                Ok(0) => break true,
                Ok(_) => {}
                Err(error) => break !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
            }
        };
        self.stream.set_read_timeout(Some(PATIENCE)).expect("an option");
        ended
    }
}

pub(crate) fn bytes_of(message: &Message) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(message, &mut bytes);
    bytes
}

/// A Data frame.
pub(crate) fn data(channel: u32, sequence: u64, is_open: bool, payload: &[u8]) -> Vec<u8> {
    let header = Header {
        length: payload.len() as u32,
        flags: if is_open { Flags::OPEN } else { Flags::NONE },
        channel: ChannelIndex(channel),
        sequence: Sequence(sequence),
        ..Header::new(FrameType::Data)
    };
    [&header.encode()[..], payload].concat()
}

/// An Event frame.
pub(crate) fn event(channel: u32, sequence: u64) -> Message {
    Message::Event {
        channel: ChannelIndex(channel),
        backlog: 0,
        sequence: Sequence(sequence),
        priority: false,
        payload: Bytes::from_static(b"event"),
    }
}

/// One producer, one consumer, forward.
pub(crate) fn forward() -> Shape {
    Shape {
        producers: 1,
        consumers: 1,
        strategy: Strategy::Forward,
        segment_bytes: SEGMENT_BYTES,
        checksum: false,
    }
}

/// OpenChannel for the one consumer of a forward exchange, with so many segments of credit.
pub(crate) fn open(channel: u32, exchange: &str, limit: u64) -> Message {
    let open = OpenChannel {
        exchange: exchange.parse().expect("a name"),
        producer: ProducerIndex(0),
        consumer: ConsumerIndex(0),
        shape: forward(),
        incarnation: Incarnation(0),
        limit,
        event_limit: 8,
    };
    Message::OpenChannel { channel: ChannelIndex(channel), open }
}

/// Limit of a channel; everything not named is 0.
pub(crate) fn limit(channel: u32, limit: Limit) -> Message {
    Message::Limit { channel: ChannelIndex(channel), limit }
}

/// A running partition of a forward exchange, on shard 0.
pub(crate) fn entry(exchange: &str) -> PartitionEntry {
    PartitionEntry {
        exchange: exchange.parse().expect("a name"),
        producer: ProducerIndex(0),
        shape: forward(),
        incarnation: Incarnation(1),
        shard: 0,
        state: PartitionState::Running,
        task: "map".parse().expect("a name"),
    }
}

/// Catalog with these partitions.
pub(crate) fn catalog(partitions: Vec<PartitionEntry>) -> Message {
    Message::Catalog { entries: partitions.into_iter().map(CatalogEntry::Partition).collect() }
}
