//! A simulated data link: two sockets, two pipes, and what an analyser has seen of its channels.

use weir_flow::ids::{LinkId, Time};
use weir_flow::shard::Transmit;
use weir_flow::wire::{Direction, Message};

use crate::book::Book;
use crate::common::Common;
use crate::coverage::Mark;
use crate::pipe::{Pipe, Sending};
use crate::tap::{Position, Seen};

/// One end of a link.
#[derive(Debug)]
pub struct End {
    /// Position of its shard.
    pub node: usize,
    /// The shard's name for the link, once it was told of it.
    pub id: Option<LinkId>,
    /// The shard was told that the link is closed.
    pub closed: bool,
    /// A batch that the kernel works on, or whose result the shell has not read.
    pub sending: Option<Sending>,
    /// Kept for reuse.
    pub spare: Transmit,
    /// Once the link is broken, the shard is told so before it is told the result of its last send.
    pub closes_first: bool,
    /// Its reader stalls until then.
    pub stalled_until: Time,
}

/// What became of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// It works.
    Up,
    /// Nothing moves any more, and nobody is told.
    Silent,
    /// The connection is broken; the ends learn of it one by one.
    Broken,
}

/// One link.
#[derive(Debug)]
pub struct Link {
    /// The dialling end and the other one.
    pub ends: [End; 2],
    /// `pipes[e]` carries what `ends[e]` sends.
    pub pipes: [Pipe; 2],
    /// `books[e]` has the channels whose producers are at `ends[e]`.
    pub books: [Book; 2],
    /// What became of it.
    pub health: Health,
    /// A header byte is to change.
    pub garble: bool,
    /// A header byte has changed; what is behind it means nothing.
    pub is_garbled: bool,
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
            sending: None,
            spare: Transmit::default(),
            closes_first: false,
            stalled_until: Time(0),
        };
        Self {
            ends: nodes.map(end),
            pipes: [Pipe::new(socket_bytes, segment_bytes), Pipe::new(socket_bytes, segment_bytes)],
            books: [Book::new(segment_bytes), Book::new(segment_bytes)],
            health: Health::Up,
            garble: false,
            is_garbled: false,
            seen: Vec::new(),
        }
    }

    /// The kernel of `end` has taken these bytes off a batch.
    pub fn emitted(&mut self, end: usize, bytes: &[u8], common: &mut Common) -> Result<(), String> {
        self.seen.clear();
        self.pipes[end].sent.feed(bytes, &mut self.seen)?;
        for seen in &self.seen {
            match seen {
                Seen::Begun(header) if header.frame_type.direction() == Direction::ToConsumer => {
                    self.books[end].producer_begun(header, &mut common.coverage)?;
                }
                Seen::Payload(_, bytes) => self.books[end].producer_payload(*bytes)?,
                Seen::Done(header, message) => {
                    if let Some(sending) = &mut self.ends[end].sending {
                        sending.frames.push((header.channel, header.sequence));
                    }
                    let Some(message) = message else { continue };
                    if header.frame_type.direction() == Direction::ToProducer {
                        self.books[1 - end].consumer_sent(message, common)?;
                    }
                }
                Seen::Begun(_) => {}
            }
        }
        Ok(())
    }

    /// The shell of `end` has read these bytes. Call this before the core gets them.
    pub fn arrived(&mut self, end: usize, bytes: &[u8], common: &mut Common) -> Result<(), String> {
        self.seen.clear();
        let pipe = &mut self.pipes[1 - end];
        match pipe.read.feed(bytes, &mut self.seen) {
            // Frames before the garbled one still count.
            Err(_) if self.is_garbled => {}
            result => result?,
        }
        let mark = match pipe.read.position() {
            Position::Boundary => None,
            Position::Header => Some(Mark::ReadCutInHeader),
            Position::Payload => Some(Mark::ReadCutInPayload),
            Position::Body => Some(Mark::ReadCutInBody),
        };
        mark.into_iter().for_each(|mark| common.coverage.hit(mark));
        let mut frames = 0;
        for seen in &self.seen {
            if let Seen::Begun(header) = seen
                && header.frame_type.direction() == Direction::ToConsumer
            {
                self.books[1 - end].consumer_begun(header);
            }
            let Seen::Done(header, message) = seen else { continue };
            frames += 1;
            match header.frame_type.direction() {
                Direction::ToConsumer => self.books[1 - end].consumer_arrived(header),
                Direction::ToProducer => {
                    if let Some(message) = message {
                        self.acknowledged_early(end, message, common);
                        self.books[end].producer_arrived(message);
                    }
                }
                Direction::Link => {}
            }
        }
        common.coverage.hit_when(Mark::CoalescedRead, frames > 1);
        Ok(())
    }

    /// Notes an acknowledgement that overtakes the result of the send that it acknowledges.
    fn acknowledged_early(&self, end: usize, message: &Message, common: &mut Common) {
        let Message::Limit { channel, limit } = message else { return };
        let Some(sending) = &self.ends[end].sending else { return };
        let early = sending.frames.iter().any(|(of, sequence)| of == channel && sequence.0 < limit.ack);
        common.coverage.hit_when(Mark::AckBeforeSent, early);
    }
}
