//! The handshake: both ends prove that they hold the cluster key before either believes the other.
//!
//! ```text
//!  dialler                                              acceptor
//!     | -- Hello {name, epoch, nonce, shards, ...} ----->  |
//!     | <------------ HelloAck {the same, code(acceptor)}  |
//!     | -- Hello + CONFIRM {the same, code(dialler)} --->  |
//! ```
//! A code is HMAC-SHA256 under the cluster key over [`weir_flow::wire::handshake_transcript`]: role, both names,
//! both nonces, both epochs, versions, shards. A replayed code meets a fresh nonce; a reflected one meets the other
//! role. Without a cluster key, which only loopback listeners may do, the key is empty; a node with a key and one
//! without refuse each other like any two keys.
//!
//! Frames are read exactly, so that not one byte behind the handshake is taken from the socket's next owner. Before
//! it fails, an end says why ([`Message::Goodbye`]), so that both ends can log the same reason.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use hmac::{Hmac, KeyInit, Mac};
use rustix::net::{RecvFlags, recv};
use sha2::Sha256;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::TcpStream;
use weir_flow::exchange::Name;
use weir_flow::failure::{Failure, FailureCode};
use weir_flow::limits::RECORD_ROOM_BYTES;
use weir_flow::wire::{
    FrameType, HEADER_BYTES, Header, Hello, LinkKind, Message, PROTOCOL_VERSION, Role, WireError, decode,
    encode, handshake_transcript,
};

/// How long a handshake may take.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// Most bytes that one end reads during a handshake.
pub const HANDSHAKE_BYTES_MAX: usize = 4096;

/// Most bytes that are read from a peer which has proven itself and is told why the connection is of no use: it may
/// have begun to use it.
const UNREAD_BYTES_MAX: usize = 1 << 20;

/// How long a refused peer is given to read the reason before the connection is closed.
const FAREWELL_TIMEOUT: Duration = Duration::from_millis(500);

/// What a daemon says to itself, when it has dialled itself.
pub const ITSELF: &str = "the node at that address is this one itself";

/// Begins the reason when another node was met than the one that was dialled.
pub const OTHER_NAME: &str = "node name is";

/// Who this node is, for every handshake of its life.
#[derive(Clone)]
pub struct Identity {
    /// The node's name.
    pub node: Name,
    /// This life of the daemon.
    pub epoch: u64,
    /// Segment size, in bytes.
    pub segment_bytes: u32,
    /// The largest record, in bytes (`record.bytes_max`).
    pub record_bytes_max: u32,
    /// How long this node waits for another connection of a data link that was lost. Told in whole milliseconds, rounded
    /// up, of which there may be 49 days.
    pub grace: Duration,
    /// Number of shards.
    pub shards: u16,
    /// TCP port that the node listens on.
    pub listen_port: u16,
    /// The cluster key, empty without one.
    pub key: Arc<[u8]>,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the key.
        f.debug_struct("Identity")
            .field("node", &self.node)
            .field("epoch", &self.epoch)
            .finish_non_exhaustive()
    }
}

/// What a link is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Purpose {
    /// Control or data.
    pub kind: LinkKind,
    /// The shard of this node; 0 for a control link.
    pub local_shard: u16,
    /// The shard of the peer; 0 for a control link.
    pub peer_shard: u16,
    /// Which data link: chosen by its dialler, never 0; 0 for a control link.
    pub link: u64,
    /// 0 for a new link, else larger than with any earlier connection of this one; 0 for a control link.
    pub resumes: u32,
}

impl Purpose {
    /// A control link.
    pub const CONTROL: Self =
        Self { kind: LinkKind::Control, local_shard: 0, peer_shard: 0, link: 0, resumes: 0 };

    /// The same connection as the other end sees it.
    #[must_use]
    pub const fn mirrored(self) -> Self {
        Self { local_shard: self.peer_shard, peer_shard: self.local_shard, ..self }
    }

    /// What this end says that the connection is for.
    const fn of(hello: &Hello) -> Self {
        let Hello { kind, local_shard, peer_shard, link, resumes, .. } = *hello;
        Self { kind, local_shard, peer_shard, link, resumes }
    }

    /// Data links have a name, control links have none.
    fn check(self) -> Result<(), HandshakeError> {
        let is_right = match self.kind {
            LinkKind::Control => (self.link, self.resumes) == (0, 0),
            LinkKind::Data => self.link != 0,
        };
        if is_right { Ok(()) } else { Err(HandshakeError::Inconsistent { field: "link" }) }
    }
}

/// Who is at the other end, proven.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its name.
    pub node: Name,
    /// This life of its daemon.
    pub epoch: u64,
    /// TCP port that it listens on.
    pub listen_port: u16,
    /// How long it waits for another connection of a data link that was lost.
    pub grace: Duration,
    /// What the link is for, as this end sees it.
    pub purpose: Purpose,
}

/// Why a handshake failed.
#[derive(Debug)]
pub enum HandshakeError {
    /// It was not done in [`HANDSHAKE_TIMEOUT`].
    Timeout,
    /// The peer closed the connection without a reason.
    Closed,
    /// The socket failed.
    Io(io::Error),
    /// The peer sent what is no well-formed handshake, or more than [`HANDSHAKE_BYTES_MAX`].
    Wire(WireError),
    /// The peer speaks another version of the protocol.
    Version {
        /// The peer's.
        found: u16,
    },
    /// The peer's code was not made with our key.
    Key,
    /// The peer has another name than the configuration says.
    Name {
        /// The peer's.
        found: Name,
        /// The configuration's.
        needed: Name,
    },
    /// The peer has our own name.
    OwnName {
        /// It.
        name: Name,
    },
    /// The peer is this daemon.
    Itself,
    /// The peer has another segment size.
    SegmentBytes {
        /// The peer's, in bytes.
        found: u32,
        /// Ours, in bytes.
        needed: u32,
    },
    /// The peer has another bound on records: what one lets through kills channels at the other.
    RecordBytesMax {
        /// The peer's, in bytes.
        found: u32,
        /// Ours, in bytes.
        needed: u32,
    },
    /// The peer asks for a shard that this node does not have.
    Shard {
        /// What it asks for.
        found: u16,
        /// How many there are.
        shards: u16,
    },
    /// What the peer says of itself does not fit this place of the handshake.
    Inconsistent {
        /// The field.
        field: &'static str,
    },
    /// The peer refused this node and said why.
    Refused(Failure),
    /// The peer has given up the link that this connection was to continue.
    LinkOver(Failure),
    /// The system has no random numbers.
    Random,
}

impl fmt::Display for HandshakeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Timeout => write!(f, "handshake took longer than {HANDSHAKE_TIMEOUT:?}"),
            Self::Closed => f.write_str("connection closed during the handshake"),
            Self::Io(error) => write!(f, "connection failed during the handshake: {error}"),
            Self::Wire(error) => write!(f, "no handshake: {error}"),
            Self::Version { found } => write!(
                f,
                "protocol version is {found}; needed: {PROTOCOL_VERSION}; run the same release of weir on both nodes"
            ),
            Self::Key => {
                f.write_str("cluster key differs; needed: the same --key-file content on both nodes")
            }
            Self::Name { found, needed } => {
                write!(f, "{OTHER_NAME} {found}; needed: {needed}, as peers configures it for this address")
            }
            Self::OwnName { name } => {
                write!(f, "node name {name} is that of both nodes; needed: a name of its own for each")
            }
            Self::Itself => f.write_str(ITSELF),
            Self::SegmentBytes { found, needed } => {
                let configured = |bytes: &u32| bytes.saturating_sub(RECORD_ROOM_BYTES);
                let (found, needed) = (configured(found), configured(needed));
                write!(f, "memory.segment_bytes of the peer is {found}; needed: {needed}, equal on all nodes")
            }
            Self::RecordBytesMax { found, needed } => {
                write!(f, "record.bytes_max of the peer is {found}; needed: {needed}, equal on all nodes")
            }
            Self::Shard { found, shards } => {
                write!(f, "shard {found} asked for; needed: below {shards}")
            }
            Self::Inconsistent { field } => {
                write!(f, "{field} does not fit the handshake; needed: the expected one")
            }
            Self::Refused(failure) => write!(f, "refused by the peer: {}", failure.text),
            Self::LinkOver(failure) => write!(f, "the peer has given the link up: {}", failure.text),
            Self::Random => f.write_str("the system gives no random numbers (getrandom)"),
        }
    }
}

impl std::error::Error for HandshakeError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io(error) => Some(error),
            Self::Wire(error) => Some(error),
            Self::Refused(failure) | Self::LinkOver(failure) => Some(failure),
            _ => None,
        }
    }
}

impl From<WireError> for HandshakeError {
    fn from(error: WireError) -> Self {
        match error {
            WireError::Version { found, .. } => Self::Version { found },
            error => Self::Wire(error),
        }
    }
}

impl HandshakeError {
    /// What the peer is told, or `None` when it cannot hear it or said it itself.
    fn farewell(&self) -> Option<Failure> {
        let code = match self {
            Self::Closed | Self::Io(_) | Self::Refused(_) | Self::LinkOver(_) | Self::Random => return None,
            Self::Timeout | Self::Wire(_) | Self::Inconsistent { .. } => FailureCode::Protocol,
            Self::Version { .. }
            | Self::Key
            | Self::Name { .. }
            | Self::OwnName { .. }
            | Self::Itself
            | Self::SegmentBytes { .. }
            | Self::RecordBytesMax { .. } => FailureCode::Mismatch,
            Self::Shard { .. } => FailureCode::IndexOutOfRange,
        };
        Some(Failure::new(code, self.to_string()))
    }
}

/// The dialler's side. `expected` is the name that the configuration gives the address.
///
/// # Errors
/// The peer has been told why, if it could be. The connection is closed.
pub async fn dial(
    stream: TcpStream,
    identity: &Identity,
    purpose: Purpose,
    expected: &Name,
) -> Result<(TcpStream, Peer), HandshakeError> {
    dial_named(stream, identity, purpose, Some(expected)).await
}

/// As [`dial`], for a control link to an address of which nobody has said whose it is.
///
/// # Errors
/// As of [`dial`].
pub async fn dial_anyone(
    stream: TcpStream,
    identity: &Identity,
) -> Result<(TcpStream, Peer), HandshakeError> {
    dial_named(stream, identity, Purpose::CONTROL, None).await
}

async fn dial_named(
    stream: TcpStream,
    identity: &Identity,
    purpose: Purpose,
    expected: Option<&Name>,
) -> Result<(TcpStream, Peer), HandshakeError> {
    run(stream, async |stream: &mut TcpStream| {
        let mut hello = own_hello(identity, Role::Dialler, purpose)?;
        write_message(stream, &Message::Hello { hello: hello.clone(), confirm: false }).await?;
        let ack = match read_message(stream, &mut 0).await? {
            Message::HelloAck { hello } => hello,
            other => return Err(unexpected(&other, "HelloAck")),
        };
        verify(identity, &hello, &ack, Role::Acceptor, &ack.mac)?;
        check_peer(identity, &ack, Role::Acceptor)?;
        if let Some(needed) = expected.filter(|expected| **expected != ack.node) {
            return Err(HandshakeError::Name { found: ack.node, needed: needed.clone() });
        }
        if Purpose::of(&ack).mirrored() != purpose {
            return Err(HandshakeError::Inconsistent { field: "link, its kind or shard" });
        }
        hello.mac = code(identity, &hello, &ack, Role::Dialler)?.finalize().into_bytes().into();
        write_message(stream, &Message::Hello { hello, confirm: true }).await?;
        if purpose.resumes > 0 {
            hear_verdict(stream).await?;
        }
        Ok(peer(ack, purpose))
    })
    .await
}

/// Waits until the acceptor has taken a control link that this end has dialled, which it says by its first frame.
///
/// # Errors
/// It has not taken it, and said why: [`HandshakeError::Refused`]; or it said nothing in [`HANDSHAKE_TIMEOUT`]. The
/// connection is closed.
pub async fn await_taken(mut stream: TcpStream) -> Result<TcpStream, HandshakeError> {
    match tokio::time::timeout(HANDSHAKE_TIMEOUT, hear_verdict(&mut stream)).await {
        Ok(Ok(())) => Ok(stream),
        Ok(Err(HandshakeError::LinkOver(failure))) => Err(HandshakeError::Refused(failure)),
        Ok(Err(error)) => Err(error),
        Err(_) => Err(HandshakeError::Timeout),
    }
}

/// Whether the acceptor goes on with the link: it knows that only once the dialler has proven itself. Its first frame
/// is a Goodbye, or else the first one of the link, which is left to the socket's next owner.
async fn hear_verdict(stream: &mut TcpStream) -> Result<(), HandshakeError> {
    let head = peek_header(stream).await.map_err(broken)?;
    if !matches!(Header::decode(&head, 0), Ok(Header { frame_type: FrameType::Goodbye, .. })) {
        return Ok(());
    }
    match read_message(stream, &mut 0).await? {
        Message::Goodbye { failure } => Err(HandshakeError::LinkOver(failure)),
        other => Err(unexpected(&other, "Goodbye")),
    }
}

/// The next header, which is left in the socket.
async fn peek_header(stream: &TcpStream) -> io::Result<[u8; HEADER_BYTES]> {
    loop {
        // Asked first: all that comes before the end is there then.
        let is_last = stream.ready(Interest::READABLE).await?.is_read_closed();
        match stream.try_io(Interest::READABLE, || try_peek_header(stream)) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && is_last => {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            result => return result,
        }
    }
}

/// Of a part of a header it says that there is nothing: then only more of it, or its end, wakes who waits.
fn try_peek_header(stream: &TcpStream) -> io::Result<[u8; HEADER_BYTES]> {
    let mut head = [0_u8; HEADER_BYTES];
    match recv(stream, &mut head[..], RecvFlags::PEEK)? {
        (HEADER_BYTES, _) => Ok(head),
        (0, _) => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Err(io::ErrorKind::WouldBlock.into()),
    }
}

/// The acceptor's side.
///
/// # Errors
/// As [`dial`].
pub async fn accept(stream: TcpStream, identity: &Identity) -> Result<(TcpStream, Peer), HandshakeError> {
    run(stream, async |stream: &mut TcpStream| {
        let mut read_bytes = 0;
        let hello = match read_message(stream, &mut read_bytes).await? {
            Message::Hello { hello, confirm: false } => hello,
            other => return Err(unexpected(&other, "Hello")),
        };
        check_peer(identity, &hello, Role::Dialler)?;
        // Nothing else vouches for these bytes: the code that follows is not made over them.
        if hello.mac != [0; 32] {
            return Err(HandshakeError::Inconsistent { field: "code of the first Hello" });
        }
        let purpose = Purpose::of(&hello).mirrored();
        purpose.check()?;
        if purpose.local_shard >= identity.shards {
            return Err(HandshakeError::Shard { found: purpose.local_shard, shards: identity.shards });
        }
        let mut ack = own_hello(identity, Role::Acceptor, purpose)?;
        ack.mac = code(identity, &hello, &ack, Role::Acceptor)?.finalize().into_bytes().into();
        write_message(stream, &Message::HelloAck { hello: ack.clone() }).await?;
        let confirm = match read_message(stream, &mut read_bytes).await? {
            Message::Hello { hello, confirm: true } => hello,
            other => return Err(unexpected(&other, "Hello with CONFIRM")),
        };
        if (Hello { mac: hello.mac, ..confirm.clone() }) != hello {
            return Err(HandshakeError::Inconsistent { field: "Hello with CONFIRM" });
        }
        verify(identity, &hello, &ack, Role::Dialler, &confirm.mac)?;
        Ok(peer(hello, purpose))
    })
    .await
}

/// Runs one side within its time; tells the peer why when it fails.
async fn run(
    mut stream: TcpStream,
    side: impl AsyncFnOnce(&mut TcpStream) -> Result<Peer, HandshakeError>,
) -> Result<(TcpStream, Peer), HandshakeError> {
    let error = match tokio::time::timeout(HANDSHAKE_TIMEOUT, side(&mut stream)).await {
        Ok(Ok(peer)) => return Ok((stream, peer)),
        Ok(Err(error)) => error,
        Err(_) => HandshakeError::Timeout,
    };
    if let Some(failure) = error.farewell() {
        part(stream, failure, HANDSHAKE_BYTES_MAX).await;
    }
    Err(error)
}

/// Tells a peer whose handshake succeeded why this connection is of no use.
pub async fn say_goodbye(stream: TcpStream, failure: Failure) {
    part(stream, failure, UNREAD_BYTES_MAX).await;
}

/// Sends the reason and waits a moment for the peer to have it. Closing with unread bytes in the socket would reset
/// the connection, and the peer might never see the reason; so at most `bytes_max` are read.
async fn part(mut stream: TcpStream, failure: Failure, bytes_max: usize) {
    let farewell = async {
        write_message(&mut stream, &Message::Goodbye { failure }).await?;
        stream.shutdown().await.map_err(HandshakeError::Io)?;
        let mut scrap = [0_u8; 1024];
        let mut left = bytes_max;
        while left > 0 {
            match stream.read(&mut scrap).await {
                Ok(0) | Err(_) => break,
                Ok(bytes) => left = left.saturating_sub(bytes),
            }
        }
        Ok::<(), HandshakeError>(())
    };
    // A peer that does not listen to the reason is only closed.
    let _ = tokio::time::timeout(FAREWELL_TIMEOUT, farewell).await;
}

fn own_hello(identity: &Identity, role: Role, purpose: Purpose) -> Result<Hello, HandshakeError> {
    let mut nonce = [0_u8; 32];
    getrandom::fill(&mut nonce).map_err(|_| HandshakeError::Random)?;
    Ok(Hello {
        version: PROTOCOL_VERSION,
        role,
        kind: purpose.kind,
        local_shard: purpose.local_shard,
        peer_shard: purpose.peer_shard,
        segment_bytes: identity.segment_bytes,
        record_bytes_max: identity.record_bytes_max,
        epoch: identity.epoch,
        listen_port: identity.listen_port,
        link: purpose.link,
        resumes: purpose.resumes,
        grace_ms: milliseconds(identity.grace),
        nonce,
        mac: [0; 32],
        node: identity.node.clone(),
    })
}

/// Rounded up, so that a grace does not become none.
fn milliseconds(time: Duration) -> u32 {
    u32::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u32::MAX)
}

/// What must hold for the peer at either end.
fn check_peer(identity: &Identity, peer: &Hello, role: Role) -> Result<(), HandshakeError> {
    if peer.role != role {
        return Err(HandshakeError::Inconsistent { field: "role" });
    }
    if peer.node == identity.node && peer.epoch == identity.epoch {
        return Err(HandshakeError::Itself);
    }
    if peer.node == identity.node {
        return Err(HandshakeError::OwnName { name: peer.node.clone() });
    }
    if peer.segment_bytes != identity.segment_bytes {
        return Err(HandshakeError::SegmentBytes {
            found: peer.segment_bytes,
            needed: identity.segment_bytes,
        });
    }
    if peer.record_bytes_max != identity.record_bytes_max {
        return Err(HandshakeError::RecordBytesMax {
            found: peer.record_bytes_max,
            needed: identity.record_bytes_max,
        });
    }
    Ok(())
}

fn code(
    identity: &Identity,
    dialler: &Hello,
    acceptor: &Hello,
    role: Role,
) -> Result<Hmac<Sha256>, HandshakeError> {
    // HMAC takes a key of any length, the empty one too; the error exists for other codes only.
    let mut code = Hmac::<Sha256>::new_from_slice(&identity.key).map_err(|_| HandshakeError::Key)?;
    code.update(&handshake_transcript(role, dialler, acceptor));
    Ok(code)
}

/// Compares in constant time.
fn verify(
    identity: &Identity,
    dialler: &Hello,
    acceptor: &Hello,
    role: Role,
    found: &[u8; 32],
) -> Result<(), HandshakeError> {
    code(identity, dialler, acceptor, role)?.verify_slice(found).map_err(|_| HandshakeError::Key)
}

fn peer(hello: Hello, purpose: Purpose) -> Peer {
    let Hello { node, epoch, listen_port, grace_ms, .. } = hello;
    Peer { node, epoch, listen_port, grace: Duration::from_millis(grace_ms.into()), purpose }
}

fn unexpected(found: &Message, needed: &'static str) -> HandshakeError {
    match found {
        Message::Goodbye { failure } => HandshakeError::Refused(failure.clone()),
        other => WireError::Unexpected { found: other.frame_type(), needed }.into(),
    }
}

async fn write_message(stream: &mut TcpStream, message: &Message) -> Result<(), HandshakeError> {
    let mut bytes = Vec::with_capacity(256);
    encode(message, &mut bytes);
    stream.write_all(&bytes).await.map_err(HandshakeError::Io)
}

/// Reads exactly one frame. `read_bytes` counts towards [`HANDSHAKE_BYTES_MAX`].
async fn read_message(stream: &mut TcpStream, read_bytes: &mut usize) -> Result<Message, HandshakeError> {
    let mut head = [0_u8; HEADER_BYTES];
    stream.read_exact(&mut head).await.map_err(broken)?;
    let header = Header::decode(&head, 0)?;
    if !matches!(header.frame_type, FrameType::Hello | FrameType::HelloAck | FrameType::Goodbye) {
        return Err(WireError::Unexpected { found: header.frame_type, needed: "a handshake" }.into());
    }
    let body_bytes = usize::try_from(header.length).unwrap_or(usize::MAX);
    *read_bytes = read_bytes.saturating_add(HEADER_BYTES).saturating_add(body_bytes);
    if *read_bytes > HANDSHAKE_BYTES_MAX {
        let max = u32::try_from(HANDSHAKE_BYTES_MAX).unwrap_or(u32::MAX);
        return Err(
            WireError::Length { frame_type: header.frame_type, found: header.length, min: 0, max }.into()
        );
    }
    let mut body = vec![0_u8; body_bytes];
    stream.read_exact(&mut body).await.map_err(broken)?;
    Ok(decode(&header, &body)?)
}

fn broken(error: io::Error) -> HandshakeError {
    match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => HandshakeError::Closed,
        _ => HandshakeError::Io(error),
    }
}

#[cfg(test)]
mod tests;
