//! The control link to one peer: who keeps dialling, what goes over it, and when it counts as dead.
//!
//! There is one control link per pair of nodes, whoever dialled. It carries the catalog, and a Ping each interval.
//! Silence for the timeout ends it: a peer that lost power sends no reset. The node decides which of two links
//! between the same nodes stays; this module only runs them.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::time::{Instant, MissedTickBehavior};
use weir_flow::exchange::Name;
use weir_flow::failure::Failure;
use weir_flow::wire::{CONTROL_BYTES_MAX, FrameReader, Message, WireError, encode};

use super::dial::{self, Backoff};
use super::handshake::{self, HandshakeError, Identity, Peer, Purpose};
use super::options::LinkOptions;

/// Messages that may wait to be written to one control link.
pub const OUTBOX_MESSAGES: usize = 1024;

/// Bytes read from a control link at a time.
const READ_BYTES: usize = 16 * 1024;

/// Bytes encoded before they are written.
const WRITE_BYTES: usize = 64 * 1024;

/// A link that lived less than this counts as a failed try for the backoff: a peer that lets go of each link as soon as
/// it is up is not dialled in a circle.
const SHORT_LIFE: Duration = Duration::from_secs(1);

/// The heartbeat of control links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    /// Time between Pings.
    pub interval: Duration,
    /// Silence after which the link is dead. At least twice the interval.
    pub timeout: Duration,
}

impl Default for Heartbeat {
    fn default() -> Self {
        Self { interval: Duration::from_secs(1), timeout: Duration::from_secs(5) }
    }
}

/// Why a control link ended.
#[derive(Debug)]
pub enum LinkEnd {
    /// The peer said so.
    Goodbye(Failure),
    /// The peer closed it without a word.
    Closed,
    /// The peer sent what it must not.
    Wire(WireError),
    /// The peer was silent for this long.
    Silent(Duration),
    /// The socket failed.
    Io(io::Error),
    /// This node let go of it.
    Local,
}

impl fmt::Display for LinkEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Goodbye(failure) => write!(f, "peer said: {}", failure.text),
            Self::Closed => f.write_str("closed by the peer"),
            Self::Wire(error) => write!(f, "malformed frame: {error}"),
            Self::Silent(timeout) => write!(f, "silent for {timeout:?}"),
            Self::Io(error) => write!(f, "{error}"),
            Self::Local => f.write_str("closed by this node"),
        }
    }
}

/// Runs a control link until it ends. Messages of the peer that are not heartbeats are wrapped by `wrap` and sent to
/// `events`; the link ends when `outbox` is closed and written out.
pub async fn run<E>(
    stream: TcpStream,
    heartbeat: Heartbeat,
    outbox: mpsc::Receiver<Message>,
    events: &mpsc::Sender<E>,
    wrap: impl Fn(Message) -> E,
) -> LinkEnd {
    let (read_half, write_half) = stream.into_split();
    // Pongs have a way of their own, so that the outbox closes when the node lets go. A peer that floods Pings gets
    // as many Pongs as the way holds.
    let (pongs, pongs_due) = mpsc::channel(4);
    tokio::select! {
        end = read(read_half, heartbeat.timeout, pongs, events, wrap) => end,
        end = write(write_half, heartbeat.interval, outbox, pongs_due) => end,
    }
}

async fn read<E>(
    mut socket: OwnedReadHalf,
    timeout: Duration,
    pongs: mpsc::Sender<u64>,
    events: &mpsc::Sender<E>,
    wrap: impl Fn(Message) -> E,
) -> LinkEnd {
    let mut frames = FrameReader::new(CONTROL_BYTES_MAX);
    let mut bytes = vec![0_u8; READ_BYTES];
    loop {
        let count = match tokio::time::timeout(timeout, socket.read(&mut bytes)).await {
            Ok(Ok(0)) => return LinkEnd::Closed,
            Ok(Ok(count)) => count,
            Ok(Err(error)) => return LinkEnd::Io(error),
            Err(_) => return LinkEnd::Silent(timeout),
        };
        frames.push(bytes.get(..count).unwrap_or_default());
        loop {
            match frames.poll_message() {
                Ok(None) => break,
                Ok(Some(Message::Ping { token })) => {
                    // Full: the Pongs that are due answer as well.
                    let _ = pongs.try_send(token);
                }
                Ok(Some(Message::Pong { .. })) => {}
                Ok(Some(Message::Goodbye { failure })) => return LinkEnd::Goodbye(failure),
                Ok(Some(message @ (Message::Catalog { .. } | Message::Stats { .. }))) => {
                    if events.send(wrap(message)).await.is_err() {
                        return LinkEnd::Local;
                    }
                }
                Ok(Some(other)) => {
                    let found = other.frame_type();
                    return LinkEnd::Wire(WireError::Unexpected {
                        found,
                        needed: "a frame of a control link",
                    });
                }
                Err(error) => return LinkEnd::Wire(error),
            }
        }
    }
}

async fn write(
    mut socket: OwnedWriteHalf,
    interval: Duration,
    mut outbox: mpsc::Receiver<Message>,
    mut pongs: mpsc::Receiver<u64>,
) -> LinkEnd {
    let mut ticks = tokio::time::interval(interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut token = 0_u64;
    let mut bytes = Vec::new();
    loop {
        let message = tokio::select! {
            message = outbox.recv() => message,
            Some(token) = pongs.recv() => Some(Message::Pong { token }),
            _ = ticks.tick() => {
                token = token.wrapping_add(1);
                Some(Message::Ping { token })
            }
        };
        let Some(message) = message else {
            // What was said last is written; the peer reads it before the end of the stream.
            return match socket.shutdown().await {
                Ok(()) => LinkEnd::Local,
                Err(error) => LinkEnd::Io(error),
            };
        };
        bytes.clear();
        encode(&message, &mut bytes);
        while bytes.len() < WRITE_BYTES {
            match outbox.try_recv() {
                Ok(message) => encode(&message, &mut bytes),
                Err(_) => break,
            }
        }
        if let Err(error) = socket.write_all(&bytes).await {
            return LinkEnd::Io(error);
        }
    }
}

/// What dialling reports to the node.
#[derive(Debug)]
pub enum Dialled {
    /// A control link is up. `held` is kept as long as the link is; dropping it makes the dialler go on.
    Up {
        /// The connection.
        stream: TcpStream,
        /// Who is at the other end.
        peer: Peer,
        /// Kept while the link lives.
        held: oneshot::Sender<()>,
    },
    /// A try failed; the next one follows by itself.
    Failed {
        /// Why.
        reason: String,
    },
}

/// One peer that the configuration names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerAddress {
    /// The name that the peer must have.
    pub node: Name,
    /// `host:port`, resolved anew with every try.
    pub address: String,
}

/// Keeps a control link to `peer` up: dials whenever `wanted` is true and no link that it dialled lives, with one of the
/// `places` of all who dial. What comes of it is wrapped by `wrap` and sent to `events`. Ends when `wanted` is closed.
pub async fn keep<E>(
    peer: PeerAddress,
    identity: Identity,
    options: LinkOptions,
    places: Arc<Semaphore>,
    mut wanted: watch::Receiver<bool>,
    events: mpsc::Sender<E>,
    wrap: impl Fn(Dialled) -> E,
) {
    let mut backoff = Backoff::default();
    while wanted.wait_for(|wanted| *wanted).await.is_ok() {
        // Nobody closes it.
        let place = places.acquire().await;
        // The peer may have dialled meanwhile.
        if !*wanted.borrow() {
            continue;
        }
        let outcome = try_once(&peer, &identity, &options).await;
        drop(place);
        match outcome {
            Ok((stream, found)) => {
                let (held, ended) = oneshot::channel();
                let up = Instant::now();
                if events.send(wrap(Dialled::Up { stream, peer: found, held })).await.is_err() {
                    return;
                }
                // Resolves when the node drops its end.
                let _ = ended.await;
                if up.elapsed() >= SHORT_LIFE {
                    backoff.reset();
                }
            }
            Err(reason) => {
                if events.send(wrap(Dialled::Failed { reason })).await.is_err() {
                    return;
                }
            }
        }
        let wait = backoff.next_wait(random());
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = closed(&mut wanted) => return,
        }
    }
}

/// Resolves when the node let go of the watch.
async fn closed(wanted: &mut watch::Receiver<bool>) {
    while wanted.changed().await.is_ok() {}
}

/// Connects, shakes hands and waits until the peer has taken the control link: once.
///
/// # Errors
/// One line for people: what was dialled and why it failed.
pub async fn try_once(
    peer: &PeerAddress,
    identity: &Identity,
    options: &LinkOptions,
) -> Result<(TcpStream, Peer), String> {
    let stream = dial::dial(&peer.address, options).await.map_err(|error| error.to_string())?;
    let failed = |error| format!("{}: {error}", peer.address);
    let (stream, found) =
        handshake::dial(stream, identity, Purpose::CONTROL, &peer.node).await.map_err(failed)?;
    // Whether it wants another link of this node it decides behind the handshake. One that it lets go of at once is none.
    let stream = handshake::await_taken(stream).await.map_err(failed)?;
    Ok((stream, found))
}

/// What an address is found to be.
#[derive(Debug)]
pub enum Found {
    /// A node, with a control link to it if it has taken one.
    Node {
        /// Who.
        peer: Peer,
        /// The connection; nothing if the node wants none, as when there is one already.
        stream: Option<TcpStream>,
    },
    /// This node.
    Itself,
    /// Nobody that can be linked with.
    Failed {
        /// Why.
        reason: String,
    },
}

/// Asks who is at an address, and for a control link: once.
pub async fn find(address: SocketAddr, identity: &Identity, options: &LinkOptions) -> Found {
    let failed = |reason: String| Found::Failed { reason };
    let stream = match dial::dial(&address.to_string(), options).await {
        Ok(stream) => stream,
        Err(error) => return failed(error.to_string()),
    };
    let (stream, peer) = match handshake::dial_anyone(stream, identity).await {
        Ok(found) => found,
        Err(HandshakeError::Itself) => return Found::Itself,
        Err(HandshakeError::Refused(failure)) if failure.text == handshake::ITSELF => return Found::Itself,
        Err(error) => return failed(format!("{address}: {error}")),
    };
    let stream = handshake::await_taken(stream).await.ok();
    Found::Node { peer, stream }
}

/// A number for jitter. Without the system's random numbers there is only less of it.
pub fn random() -> u64 {
    getrandom::u64().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;
    use weir_flow::failure::FailureCode;
    use weir_flow::wire::FrameType;

    use super::*;

    /// A control link to nobody but this test: its end, its outbox and what it hears.
    struct Link {
        peer: TcpStream,
        outbox: mpsc::Sender<Message>,
        heard: mpsc::Receiver<Message>,
        end: tokio::task::JoinHandle<LinkEnd>,
    }

    async fn link() -> Link {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let peer = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        let (outbox, due) = mpsc::channel(8);
        let (events, heard) = mpsc::channel(8);
        let end = tokio::spawn(async move { run(stream, Heartbeat::default(), due, &events, |m| m).await });
        Link { peer, outbox, heard, end }
    }

    fn bytes_of(messages: &[Message]) -> Vec<u8> {
        let mut bytes = Vec::new();
        messages.iter().for_each(|message| encode(message, &mut bytes));
        bytes
    }

    /// Reads what the link sends until `wanted` comes.
    async fn until(peer: &mut TcpStream, wanted: impl Fn(&Message) -> bool) -> Message {
        let mut frames = FrameReader::new(CONTROL_BYTES_MAX);
        let mut bytes = [0_u8; 256];
        loop {
            while let Some(message) = frames.poll_message().unwrap() {
                if wanted(&message) {
                    return message;
                }
            }
            let count = peer.read(&mut bytes).await.unwrap();
            assert_ne!(count, 0, "the link ended early");
            frames.push(&bytes[..count]);
        }
    }

    fn goodbye() -> Message {
        Message::Goodbye { failure: Failure::new(FailureCode::Stopping, "enough") }
    }

    #[tokio::test]
    async fn messages_pass_pings_are_answered_and_the_last_word_is_written() {
        let mut link = link().await;
        let catalog = Message::Catalog { entries: Vec::new() };
        // Cut where it hurts: the header of the second frame comes in two pieces.
        let bytes = bytes_of(&[catalog.clone(), Message::Ping { token: 77 }]);
        link.peer.write_all(&bytes[..50]).await.unwrap();
        assert_eq!(link.heard.recv().await, Some(catalog.clone()));
        link.peer.write_all(&bytes[50..]).await.unwrap();
        until(&mut link.peer, |message| *message == Message::Pong { token: 77 }).await;
        link.outbox.send(catalog.clone()).await.unwrap();
        link.outbox.send(goodbye()).await.unwrap();
        drop(link.outbox);
        until(&mut link.peer, |message| *message == goodbye()).await;
        assert!(matches!(link.end.await.unwrap(), LinkEnd::Local));
    }

    #[tokio::test]
    async fn a_goodbye_and_a_silent_close_end_the_link() {
        let mut first = link().await;
        first.peer.write_all(&bytes_of(&[goodbye()])).await.unwrap();
        assert_eq!(first.end.await.unwrap().to_string(), "peer said: enough");
        let second = link().await;
        drop(second.peer);
        assert!(matches!(second.end.await.unwrap(), LinkEnd::Closed | LinkEnd::Io(_)));
    }

    #[tokio::test]
    async fn frames_that_have_no_place_on_a_control_link_end_it() {
        let mut data = weir_flow::wire::Header::new(FrameType::Data).encode().to_vec();
        data.push(0);
        for bytes in [vec![0x5a; 64], data, bytes_of(&[Message::EndAck { channel: Default::default() }])] {
            let mut link = link().await;
            link.peer.write_all(&bytes).await.unwrap();
            let end = link.end.await.unwrap();
            assert!(matches!(end, LinkEnd::Wire(_)), "{end}");
            assert_eq!(link.heard.recv().await, None);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_says_nothing_is_given_up_after_the_timeout() {
        let link = link().await;
        let begun = Instant::now();
        let end = link.end.await.unwrap();
        assert!(matches!(end, LinkEnd::Silent(_)), "{end}");
        assert!(begun.elapsed() >= Heartbeat::default().timeout);
        drop(link.peer);
    }
}
