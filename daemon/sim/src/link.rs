//! A simulated data link: two ends that know it under names of their own, the sockets that stood for it one after the
//! other, and what an analyser has seen of its channels.
//!
//! The ends need not believe in the same socket: one learns earlier than the other that a socket is broken, and one
//! gets the next socket earlier. Bytes on a socket that an end has left are lost.

use weir_flow::ids::{LinkId, Time};
use weir_flow::shard::Transmit;
use weir_flow::wire::{Direction, Message};

use crate::book::Book;
use crate::common::Common;
use crate::coverage::Mark;
use crate::once::Once;
use crate::pipe::{Flying, Pipe, Sending};
use crate::tap::{Position, Seen};

/// One end of a link.
#[derive(Debug)]
pub struct End {
    /// Position of its shard.
    pub node: usize,
    /// The shard's name for the link, once it was told of it; none again when its node was started anew.
    pub id: Option<LinkId>,
    /// The link is over for this end.
    pub closed: bool,
    /// The socket that its shell reads and writes.
    pub socket: Option<usize>,
    /// The socket that its shell takes when it is done with the one before.
    pub next_socket: Option<usize>,
    /// What arrives cannot be frames: the link is to be closed for good.
    pub condemned: Option<String>,
    /// A batch that the kernel works on, or whose result the shell has not read.
    pub sending: Option<Sending>,
    /// Kept for reuse.
    pub spare: Transmit,
    /// When its socket is gone, the shard is told so before it is told the result of its last send.
    pub closes_first: bool,
    /// The shard knows that the socket is gone, and not yet what became of the last send.
    pub is_losing: bool,
    /// What it had not read when it left its last socket.
    pub unread: Vec<u8>,
    /// Its reader stalls until then.
    pub stalled_until: Time,
    /// When bytes came last, or the link itself.
    pub heard: Time,
    /// When it was last connected.
    pub connected: Time,
    /// One end has said, in this end's hearing, that it is stopping.
    pub goodbye: bool,
}

/// One connection between the two ends.
#[derive(Debug)]
pub struct Socket {
    /// `pipes[e]` carries what `ends[e]` sends.
    pub pipes: [Pipe; 2],
    /// Whether what is sent arrives.
    pub moves: bool,
    /// The step from which each end's kernel says that the connection is broken.
    pub told: [Option<u64>; 2],
    /// It breaks when so many more bytes were sent by an end.
    pub cut_after: [Option<u32>; 2],
    /// A header byte is to change.
    pub garble: bool,
    /// A header byte has changed; what is behind it means nothing.
    pub is_garbled: bool,
    /// Whether `ends[e]` has sent a LinkResume on it, and whether that has arrived.
    pub resume_sent: [bool; 2],
    /// Whether the LinkResume of `ends[e]` has arrived.
    pub resume_arrived: [bool; 2],
}

impl Socket {
    fn new(socket_bytes: usize, segment_bytes: u32) -> Self {
        Self {
            pipes: [Pipe::new(socket_bytes, segment_bytes), Pipe::new(socket_bytes, segment_bytes)],
            moves: true,
            told: [None; 2],
            cut_after: [None; 2],
            garble: false,
            is_garbled: false,
            resume_sent: [false; 2],
            resume_arrived: [false; 2],
        }
    }

    /// Whether the kernel of this end has noticed that the socket is broken.
    #[must_use]
    pub fn is_told(&self, end: usize, step: u64, healed: bool) -> bool {
        self.told.get(end).copied().flatten().is_some_and(|at| healed || at <= step)
    }
}

/// One link.
#[derive(Debug)]
pub struct Link {
    /// The dialling end and the other one.
    pub ends: [End; 2],
    /// Every socket that stood for it, in order.
    pub sockets: Vec<Socket>,
    /// `books[e]` has the channels whose producers are at `ends[e]`.
    pub books: [Book; 2],
    /// `once[e]` has the frames of `ends[e]` that happen once.
    pub once: [Once; 2],
    /// The step at which its dialler tries again.
    pub redial: Option<u64>,
    /// No dial succeeds before.
    pub reachable_at: Time,
    socket_bytes: usize,
    segment_bytes: u32,
    seen: Vec<Seen>,
}

impl Link {
    /// A link between two shards, of which neither was told yet.
    #[must_use]
    pub fn new(nodes: [usize; 2], socket_bytes: usize, segment_bytes: u32) -> Self {
        let end = |node| End {
            node,
            id: None,
            closed: false,
            socket: None,
            next_socket: None,
            condemned: None,
            sending: None,
            spare: Transmit::default(),
            closes_first: false,
            is_losing: false,
            unread: Vec::new(),
            stalled_until: Time(0),
            heard: Time(0),
            connected: Time(0),
            goodbye: false,
        };
        Self {
            ends: nodes.map(end),
            sockets: vec![Socket::new(socket_bytes, segment_bytes)],
            books: [Book::new(segment_bytes), Book::new(segment_bytes)],
            once: [Once::default(), Once::default()],
            redial: None,
            reachable_at: Time(0),
            socket_bytes,
            segment_bytes,
            seen: Vec::new(),
        }
    }

    /// Another socket. Its number.
    pub fn connect(&mut self) -> usize {
        self.sockets.push(Socket::new(self.socket_bytes, self.segment_bytes));
        self.sockets.len() - 1
    }

    /// The socket that both ends use, if it moves.
    #[must_use]
    pub fn working(&self) -> Option<usize> {
        let socket = self.ends[0].socket.filter(|socket| self.ends[1].socket == Some(*socket))?;
        self.sockets[socket].moves.then_some(socket)
    }

    /// What this end reads from.
    #[must_use]
    pub fn reading(&self, end: usize) -> Option<&Pipe> {
        Some(&self.sockets[self.ends[end].socket?].pipes[1 - end])
    }

    /// Whether nothing that this shard has planned is on its way into the socket, and no frame is begun.
    #[must_use]
    pub fn is_quiet(&self, node: usize) -> bool {
        self.ends.iter().enumerate().filter(|(_, at)| at.node == node).all(|(end, at)| {
            let position = at.socket.map(|socket| self.sockets[socket].pipes[end].sent.position());
            at.sending.is_none() && position.is_none_or(|position| position == Position::Boundary)
        })
    }

    /// The kernel of `end` has taken these bytes off a batch.
    pub fn emitted(&mut self, end: usize, bytes: &[u8], common: &mut Common) -> Result<(), String> {
        let Some(socket) = self.ends[end].socket else { return Err("sent without a socket".into()) };
        self.seen.clear();
        let Self { ends, sockets, books, once, seen, .. } = self;
        let at = &mut sockets[socket];
        at.pipes[end].sent.feed(bytes, seen)?;
        for seen in &*seen {
            match seen {
                Seen::Begun(header) => {
                    at.pipes[end].flying.push_back(Flying::new(header, once[end].is_again(header)));
                    let again = once[end].begun(header, socket > 0)?;
                    common.coverage.hit_when(Mark::ControlResent, again);
                    if header.frame_type.direction() == Direction::ToConsumer {
                        books[end].producer_begun(header, socket, again, &mut common.coverage)?;
                    }
                }
                Seen::Payload(_, bytes) => books[end].producer_payload(*bytes)?,
                Seen::Done(header, message) => {
                    if let Some(sending) = &mut ends[end].sending {
                        sending.frames.push((header.channel, header.sequence));
                    }
                    let Some(message) = message else { continue };
                    let again = once[end].sent(header, message)?;
                    if let Message::LinkResume { control_received } = message {
                        once[1 - end].check_received(*control_received)?;
                        at.resume_sent[end] = true;
                    }
                    if header.frame_type.direction() == Direction::ToProducer && !again {
                        books[1 - end].consumer_sent(message, socket, common)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// The shell of `end` has read these bytes. Call this before the core gets them.
    pub fn arrived(&mut self, end: usize, bytes: &[u8], common: &mut Common) -> Result<(), String> {
        let Some(socket) = self.ends[end].socket else { return Err("read without a socket".into()) };
        self.ends[end].heard = common.now;
        self.seen.clear();
        let at = &mut self.sockets[socket];
        match at.pipes[1 - end].read.feed(bytes, &mut self.seen) {
            // Frames before the garbled one still count.
            Err(_) if at.is_garbled => {}
            result => result?,
        }
        let mark = match at.pipes[1 - end].read.position() {
            Position::Boundary => None,
            Position::Header => Some(Mark::ReadCutInHeader),
            Position::Payload => Some(Mark::ReadCutInPayload),
            Position::Body => Some(Mark::ReadCutInBody),
        };
        mark.into_iter().for_each(|mark| common.coverage.hit(mark));
        let mut frames = 0;
        for seen in std::mem::take(&mut self.seen) {
            if let Seen::Begun(header) = &seen
                && header.frame_type.direction() == Direction::ToConsumer
            {
                self.books[1 - end].consumer_begun(header, socket);
            }
            let Seen::Done(header, message) = seen else { continue };
            frames += 1;
            self.sockets[socket].pipes[1 - end].flying.pop_front();
            self.once[1 - end].arrived(&header);
            match header.frame_type.direction() {
                Direction::ToConsumer => self.books[1 - end].consumer_arrived(&header),
                Direction::ToProducer => {
                    if let Some(message) = message {
                        self.acknowledged_early(end, &message, common);
                        self.books[end].producer_arrived(&message, socket, &mut common.coverage);
                    }
                }
                Direction::Link => match message {
                    Some(Message::LinkResume { control_received }) => {
                        self.once[end].resume(control_received);
                        self.sockets[socket].resume_arrived[1 - end] = true;
                    }
                    Some(Message::Goodbye { .. }) => self.ends[end].goodbye = true,
                    _ => {}
                },
            }
        }
        common.coverage.hit_when(Mark::CoalescedRead, frames > 1);
        Ok(())
    }

    /// `end` has left its socket: what it had not read whole was never there.
    pub fn left(&mut self, end: usize) {
        self.books[1 - end].consumer_lost();
        self.books[end].producer_lost();
        self.once[end].lost();
    }

    /// Notes an acknowledgement that overtakes the result of the send that it acknowledges.
    fn acknowledged_early(&self, end: usize, message: &Message, common: &mut Common) {
        let Message::Limit { channel, limit } = message else { return };
        let Some(sending) = &self.ends[end].sending else { return };
        let early = sending.frames.iter().any(|(of, sequence)| of == channel && sequence.0 < limit.ack);
        common.coverage.hit_when(Mark::AckBeforeSent, early);
    }
}
