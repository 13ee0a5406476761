//! What a network analyser can say about the channels of one link: it holds each end to the protocol, from the
//! bytes alone, and knows nothing of either end's state.

use std::collections::{BTreeMap, VecDeque};

use weir_flow::ids::ChannelIndex;
use weir_flow::wire::{Header, Limit, Message};

use crate::common::Common;
use crate::coverage::Coverage;
use crate::line::Line;
use crate::model::ChannelKey;

/// Segments that a channel may send while another one of its link could send and does not: its turn and what is left
/// of the one before, and the frame that was begun.
const FAIR_SEGMENTS: u64 = 4;

/// The channels of a link whose producers are at one of its ends, by channel index.
#[derive(Debug)]
pub struct Book {
    lines: Vec<Line>,
    /// By channel index, the line that the consumer's end means. An index is used again when its channel is over.
    assigned: BTreeMap<ChannelIndex, usize>,
    /// By channel index, the line that the producer's end means: what the consumer's end said a while ago.
    known: BTreeMap<ChannelIndex, usize>,
    /// OpenChannel frames on their way.
    opening: VecDeque<usize>,
    /// Frames of the producer's end on their way: their sockets and lines.
    on_the_way: VecDeque<(usize, usize)>,
    /// The line of the frame that the producer's end emits now.
    emitting: usize,
    /// The line of the frame that arrives at the consumer's end now.
    arriving: usize,
    segment_bytes: u32,
}

impl Book {
    /// A book without channels.
    #[must_use]
    pub const fn new(segment_bytes: u32) -> Self {
        Self {
            lines: Vec::new(),
            assigned: BTreeMap::new(),
            known: BTreeMap::new(),
            opening: VecDeque::new(),
            on_the_way: VecDeque::new(),
            emitting: usize::MAX,
            arriving: usize::MAX,
            segment_bytes,
        }
    }

    /// All channels.
    pub fn lines(&self) -> impl Iterator<Item = &Line> {
        self.lines.iter()
    }

    fn assigned_mut(&mut self, channel: ChannelIndex) -> Option<&mut Line> {
        self.lines.get_mut(*self.assigned.get(&channel)?)
    }

    fn known_mut(&mut self, channel: ChannelIndex) -> Option<&mut Line> {
        self.lines.get_mut(*self.known.get(&channel)?)
    }

    /// The channel that the producer's end means by an index.
    #[must_use]
    pub fn of_producer(&self, channel: ChannelIndex) -> Option<&Line> {
        self.lines.get(*self.known.get(&channel)?)
    }

    /// The channel of the frame that arrives at the consumer's end now.
    #[must_use]
    pub fn arriving(&self) -> Option<ChannelKey> {
        self.lines.get(self.arriving).map(|line| line.key)
    }

    /// One channel, by its key.
    #[must_use]
    pub fn line(&self, key: ChannelKey) -> Option<&Line> {
        self.lines.iter().rev().find(|line| line.key == key)
    }

    /// One channel, by its key. The last one, if it was opened more than once.
    pub fn line_mut(&mut self, key: ChannelKey) -> Option<&mut Line> {
        self.lines.iter_mut().rev().find(|line| line.key == key)
    }

    fn named<T>(key: ChannelKey, result: Result<T, String>) -> Result<T, String> {
        result.map_err(|text| format!("wire of {key}: {text}"))
    }

    /// The producer's end has emitted a header on a socket of the link; `again` if it had before.
    pub fn producer_begun(
        &mut self,
        header: &Header,
        socket: usize,
        again: bool,
        coverage: &mut Coverage,
    ) -> Result<(), String> {
        let Some(position) = self.known.get(&header.channel).copied() else {
            return Err(format!("wire: {} for channel {}, never opened", header.frame_type, header.channel));
        };
        self.emitting = position;
        self.on_the_way.push_back((socket, position));
        let Some(line) = self.lines.get_mut(position).filter(|_| !again) else { return Ok(()) };
        Self::named(line.key, line.begun(header, coverage))
    }

    /// The producer's end has emitted payload.
    pub fn producer_payload(&mut self, bytes: u32) -> Result<(), String> {
        let Some(line) = self.lines.get_mut(self.emitting) else { return Ok(()) };
        line.sent.payload += u64::from(bytes);
        line.waiting = None;
        self.check_fair(self.emitting)
    }

    /// The producer's end plans a batch now, and these channels could be in it.
    pub fn note_waiting(&mut self, channels: &[ChannelKey]) {
        let sent: BTreeMap<_, _> = self.lines.iter().map(|line| (line.key, line.sent.payload)).collect();
        for line in &mut self.lines {
            // An event at the head of its queue, with no place in the event window, stops a channel too.
            let window_full = line.sent.events + 1 >= line.limit_arrived.event_limit;
            if window_full || line.suspended || !channels.contains(&line.key) {
                line.waiting = None;
            } else if line.waiting.is_none() && channels.len() > 1 {
                line.waiting = Some(sent.clone());
            }
        }
    }

    /// The producer's end plans a batch now, with the bounds that it knows.
    pub fn note_planned(&mut self) {
        self.lines.iter_mut().for_each(Line::planned);
    }

    /// While one channel waits with data and credit, no other gets much more than its turn.
    fn check_fair(&self, sender: usize) -> Result<(), String> {
        let Some(sender) = self.lines.get(sender) else { return Ok(()) };
        let most = FAIR_SEGMENTS * u64::from(self.segment_bytes);
        for line in &self.lines {
            let Some(before) = line.waiting.as_ref().and_then(|sent| sent.get(&sender.key)) else { continue };
            let sent = sender.sent.payload.saturating_sub(*before);
            if sent > most {
                let (key, waits) = (sender.key, line.key);
                return Err(format!("unfair: {key} sent {sent} bytes while {waits} could send and did not"));
            }
        }
        Ok(())
    }

    /// Whether every sender knows what has arrived. To be asked when nothing is under way.
    pub fn check_told(&self) -> Result<(), String> {
        let silent = |line: &&Line| !line.over_arrived && line.limit_arrived.ack < line.arrived.sequence;
        match self.lines.iter().find(silent) {
            None => Ok(()),
            Some(Line { key, limit_arrived, arrived, .. }) => {
                let (ack, arrived) = (limit_arrived.ack, arrived.sequence);
                Err(format!("wire of {key}: {arrived} frames arrived, {ack} were acknowledged, none will be"))
            }
        }
    }

    /// A header of the producer's end has arrived on a socket of the link.
    pub fn consumer_begun(&mut self, header: &Header, socket: usize) {
        while self.on_the_way.front().is_some_and(|(of, _)| *of < socket) {
            self.on_the_way.pop_front();
        }
        self.arriving = self.on_the_way.pop_front().map_or(usize::MAX, |(_, line)| line);
        if let Some(line) = self.lines.get_mut(self.arriving) {
            line.header_arrived(header);
        }
    }

    /// A frame of the producer's end has arrived.
    pub fn consumer_arrived(&mut self, header: &Header) {
        if let Some(line) = self.lines.get_mut(self.arriving) {
            line.frame_arrived(header);
        }
    }

    /// The consumer's end has left its socket.
    pub fn consumer_lost(&mut self) {
        self.lines.iter_mut().for_each(Line::consumer_lost);
    }

    /// The producer's end has left its socket.
    pub fn producer_lost(&mut self) {
        self.lines.iter_mut().for_each(Line::producer_lost);
    }

    /// The consumer's end has emitted a message, for the first time if it happens once.
    pub fn consumer_sent(
        &mut self,
        message: &Message,
        socket: usize,
        common: &mut Common,
    ) -> Result<(), String> {
        let coverage = &mut common.coverage;
        match message {
            Message::OpenChannel { channel, open } => {
                let key = common.channel_of(open)?;
                if let Some(before) = self.assigned_mut(*channel)
                    && !before.over_arrived
                {
                    return Err(format!("wire of {key}: channel index {channel} belongs to {}", before.key));
                }
                let limit = Limit { limit: open.limit, event_limit: open.event_limit, ..Limit::default() };
                let mut line = Line::new(key, limit, self.segment_bytes);
                common.submissions.get(&key).into_iter().flatten().for_each(|bytes| line.submitted(*bytes));
                self.assigned.insert(*channel, self.lines.len());
                self.opening.push_back(self.lines.len());
                self.lines.push(line);
                Ok(())
            }
            Message::Limit { channel, limit } => match self.assigned_mut(*channel) {
                Some(line) => Self::named(line.key, line.answered(*limit, coverage)),
                None => Err(format!("wire: Limit for channel {channel}, never opened")),
            },
            Message::BufferSize { channel, bytes } => match self.assigned_mut(*channel) {
                Some(line) => Self::named(line.key, line.bound_sent(*bytes, socket, coverage)),
                None => Err(format!("wire: BufferSize for channel {channel}, never opened")),
            },
            Message::Resume { channel, resume } => match self.assigned_mut(*channel) {
                Some(line) => Self::named(line.key, line.resume_sent(resume, socket, coverage)),
                None => Err(format!("wire: Resume for channel {channel}, never opened")),
            },
            Message::Cancel { channel, .. } => {
                self.assigned_mut(*channel).into_iter().for_each(Line::cancel_sent);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// A message of the consumer's end has arrived on a socket of the link.
    pub fn producer_arrived(&mut self, message: &Message, socket: usize, coverage: &mut Coverage) {
        match message {
            Message::OpenChannel { channel, .. } => {
                if let Some(position) = self.opening.pop_front() {
                    self.known.insert(*channel, position);
                    self.lines.get_mut(position).into_iter().for_each(|line| line.suspended = false);
                }
            }
            Message::Limit { channel, limit } => {
                if let Some(line) = self.known_mut(*channel) {
                    line.limit_arrived = *limit;
                }
            }
            Message::BufferSize { channel, bytes } => {
                self.known_mut(*channel).into_iter().for_each(|line| line.bound_arrived(*bytes));
            }
            Message::Resume { channel, resume } => {
                if let Some(line) = self.known_mut(*channel) {
                    line.resume_arrived(resume, socket, coverage);
                }
            }
            Message::Cancel { channel, .. } => {
                self.known_mut(*channel).into_iter().for_each(Line::cancel_arrived);
            }
            _ => {}
        }
    }
}
