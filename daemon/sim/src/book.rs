//! What a network analyser can say about the channels of one link: it holds each end to the protocol, from the
//! bytes alone, and knows nothing of either end's state.
//!
//! Each channel is seen at four places: frames when the producer's end emits them and when they arrive at the
//! consumer's end, and the answers likewise. So "opened ≤ limit" is checked with what had really arrived.

use std::collections::{BTreeMap, VecDeque};

use weir_flow::ids::ChannelIndex;
use weir_flow::wire::{Flags, FrameType, Header, Limit, Message};

use crate::common::Common;
use crate::coverage::{Coverage, Mark};
use crate::model::ChannelKey;

/// Segments that a channel may send while another one of its link could send and does not: its turn and what is left
/// of the one before, and the frame that was begun.
const FAIR_SEGMENTS: u64 = 4;

/// One channel of a link, as the bytes show it.
#[derive(Debug)]
pub struct Line {
    /// Which channel this is.
    pub key: ChannelKey,
    /// Receive segments that the producer's end has opened, by what it emitted.
    pub opened_sent: u64,
    /// The same, by the headers that arrived at the consumer's end.
    pub opened_arrived: u64,
    /// Payload bytes that the producer's end has emitted.
    pub payload_sent: u64,
    /// Payload bytes that have arrived at the consumer's end, in whole frames.
    pub payload_arrived: u64,
    /// The consumer's last answer, when emitted.
    pub limit_sent: Limit,
    /// The consumer's last answer that has arrived.
    pub limit_arrived: Limit,
    next_sequence: u64,
    arrived_sequence: u64,
    events_sent: u64,
    open_fill: Option<u32>,
    over: Option<&'static str>,
    over_arrived: bool,
    submitted_ends: VecDeque<u64>,
    submitted: u64,
    frame_ends: VecDeque<u64>,
    delivered: u64,
    segment_bytes: u32,
    /// While it could send and has not: what each channel of the link had sent when that began.
    waiting: Option<BTreeMap<ChannelKey, u64>>,
}

impl Line {
    fn new(key: ChannelKey, limit: Limit, segment_bytes: u32) -> Self {
        Self {
            key,
            opened_sent: 0,
            opened_arrived: 0,
            payload_sent: 0,
            payload_arrived: 0,
            limit_sent: limit,
            limit_arrived: limit,
            next_sequence: 0,
            arrived_sequence: 0,
            events_sent: 0,
            open_fill: None,
            over: None,
            over_arrived: false,
            submitted_ends: VecDeque::new(),
            submitted: 0,
            frame_ends: VecDeque::new(),
            delivered: 0,
            segment_bytes,
            waiting: None,
        }
    }

    /// The consumer was handed `bytes` of this channel.
    pub fn delivered(&mut self, bytes: u32, coverage: &mut Coverage) -> Result<(), String> {
        let end = self.delivered + u64::from(bytes);
        if end > self.payload_arrived {
            return Err(format!(
                "{}: {end} bytes were delivered; {} arrived",
                self.key, self.payload_arrived
            ));
        }
        coverage.hit_when(Mark::ArrivedMerged, pass(&mut self.frame_ends, end) > 0);
        self.delivered = end;
        Ok(())
    }

    /// The producer's daemon has accepted a submission of `bytes` for this channel.
    pub fn submitted(&mut self, bytes: u32) {
        self.submitted += u64::from(bytes);
        if self.submitted_ends.back() != Some(&self.submitted) {
            self.submitted_ends.push_back(self.submitted);
        }
    }

    /// Bytes accepted from the producer's client.
    #[must_use]
    pub const fn submitted_bytes(&self) -> u64 {
        self.submitted
    }

    /// Bytes accepted from the producer's client and not emitted yet.
    #[must_use]
    pub const fn unsent(&self) -> u64 {
        self.submitted.saturating_sub(self.payload_sent)
    }

    /// Bytes that have arrived and were not handed to the consumer.
    #[must_use]
    pub const fn undelivered(&self) -> u64 {
        self.payload_arrived.saturating_sub(self.delivered)
    }

    fn data_begun(&mut self, header: &Header, coverage: &mut Coverage) -> Result<(), String> {
        self.in_sequence(header)?;
        if header.flags.has(Flags::OPEN) {
            self.opened_sent += 1;
            if self.opened_sent > self.limit_arrived.limit {
                let (opened, limit) = (self.opened_sent, self.limit_arrived.limit);
                return Err(format!("opened {opened} receive segments; the limit that arrived is {limit}"));
            }
            self.open_fill = Some(0);
        } else {
            coverage.hit(Mark::PackedBehind);
        }
        let Some(fill) = self.open_fill else { return Err("a slice was appended to no open segment".into()) };
        let filled = fill.saturating_add(header.length);
        if filled > self.segment_bytes {
            return Err(format!("a slice of {} bytes does not fit behind {fill}", header.length));
        }
        self.open_fill = Some(filled);
        let end = self.payload_sent + u64::from(header.length);
        if end > self.submitted {
            return Err(format!("{end} bytes were sent; the producer submitted {}", self.submitted));
        }
        coverage.hit_when(Mark::UnsentMerged, pass(&mut self.submitted_ends, end) > 0);
        Ok(())
    }

    fn in_sequence(&mut self, header: &Header) -> Result<(), String> {
        if header.sequence.0 != self.next_sequence {
            let (found, needed) = (header.sequence, self.next_sequence);
            return Err(format!("{} has sequence number {found}; expected {needed}", header.frame_type));
        }
        self.next_sequence += 1;
        Ok(())
    }

    fn event_sent(&mut self, limit: u64) -> Result<(), String> {
        self.events_sent += 1;
        let sent = self.events_sent;
        if sent <= limit { Ok(()) } else { Err(format!("{sent} events were sent; possible: {limit}")) }
    }

    fn begun(&mut self, header: &Header, coverage: &mut Coverage) -> Result<(), String> {
        // Not even a failure may follow: the other end may use the index for another channel by now.
        if let Some(over) = self.over {
            return Err(format!("{} was sent after {over}", header.frame_type));
        }
        match header.frame_type {
            FrameType::Data => self.data_begun(header, coverage),
            FrameType::Event => {
                self.in_sequence(header)?;
                // One place is always left for the end of data.
                self.event_sent(self.limit_arrived.event_limit - 1)
            }
            FrameType::EndOfData => {
                self.over = Some("EndOfData");
                if self.payload_sent != self.submitted {
                    return Err(format!("EndOfData after {} of {} bytes", self.payload_sent, self.submitted));
                }
                self.in_sequence(header)?;
                self.event_sent(self.limit_arrived.event_limit)
            }
            FrameType::Backlog if header.flags.has(Flags::CLOSED) => {
                coverage.hit(Mark::SegmentGivenUp);
                match self.open_fill.take() {
                    Some(_) => Ok(()),
                    None => Err("a segment was given up while none was open".into()),
                }
            }
            FrameType::Backlog => {
                let no_credit = self.opened_sent == self.limit_arrived.limit;
                coverage.hit_when(Mark::BacklogAnnounced, no_credit && header.backlog > 0);
                Ok(())
            }
            FrameType::ChannelFailed => {
                self.over = Some("ChannelFailed");
                Ok(())
            }
            FrameType::ChannelAccepted => Ok(()),
            other => Err(format!("{other} was sent from the producer's end")),
        }
    }

    fn arrived(&mut self, header: &Header) {
        match header.frame_type {
            FrameType::Data => {
                self.payload_arrived += u64::from(header.length);
                self.arrived_sequence = header.sequence.0 + 1;
                if self.frame_ends.back() != Some(&self.payload_arrived) {
                    self.frame_ends.push_back(self.payload_arrived);
                }
            }
            FrameType::Event | FrameType::EndOfData => self.arrived_sequence = header.sequence.0 + 1,
            _ => {}
        }
        self.over_arrived |= matches!(header.frame_type, FrameType::EndOfData | FrameType::ChannelFailed);
    }

    fn answered(&mut self, limit: Limit, coverage: &mut Coverage) -> Result<(), String> {
        let before = self.limit_sent;
        let fields = [
            ("limit", before.limit, limit.limit, u64::MAX),
            ("event limit", before.event_limit, limit.event_limit, u64::MAX),
            ("ack", before.ack, limit.ack, self.arrived_sequence),
            ("consumed", before.consumed, limit.consumed, self.delivered),
        ];
        for (field, before, now, most) in fields {
            if now < before || now > most {
                return Err(format!("Limit says {field} {now} after {before}; possible at most {most}"));
            }
        }
        coverage.hit_when(Mark::LimitWithoutGain, limit.limit == before.limit);
        self.limit_sent = limit;
        Ok(())
    }
}

/// Drops the ends up to `end` and says how many of them lay strictly before it.
fn pass(ends: &mut VecDeque<u64>, end: u64) -> u32 {
    let mut inside = 0;
    while let Some(front) = ends.front().copied()
        && front <= end
    {
        inside += u32::from(front < end);
        ends.pop_front();
    }
    inside
}

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
    /// Frames of the producer's end on their way: their lines.
    on_the_way: VecDeque<usize>,
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

    /// The producer's end has emitted a header.
    pub fn producer_begun(&mut self, header: &Header, coverage: &mut Coverage) -> Result<(), String> {
        let Some(position) = self.known.get(&header.channel).copied() else {
            return Err(format!("wire: {} for channel {}, never opened", header.frame_type, header.channel));
        };
        self.emitting = position;
        self.on_the_way.push_back(position);
        let Some(line) = self.lines.get_mut(position) else { return Ok(()) };
        Self::named(line.key, line.begun(header, coverage))
    }

    /// The producer's end has emitted payload.
    pub fn producer_payload(&mut self, bytes: u32) -> Result<(), String> {
        let Some(line) = self.lines.get_mut(self.emitting) else { return Ok(()) };
        line.payload_sent += u64::from(bytes);
        line.waiting = None;
        self.check_fair(self.emitting)
    }

    /// The producer's end plans a batch now, and these channels could be in it.
    pub fn note_waiting(&mut self, channels: &[ChannelKey]) {
        let sent: BTreeMap<_, _> = self.lines.iter().map(|line| (line.key, line.payload_sent)).collect();
        for line in &mut self.lines {
            // An event at the head of its queue, with no place in the event window, stops a channel too.
            let window_full = line.events_sent + 1 >= line.limit_arrived.event_limit;
            if window_full || !channels.contains(&line.key) {
                line.waiting = None;
            } else if line.waiting.is_none() && channels.len() > 1 {
                line.waiting = Some(sent.clone());
            }
        }
    }

    /// While one channel waits with data and credit, no other gets much more than its turn.
    fn check_fair(&self, sender: usize) -> Result<(), String> {
        let Some(sender) = self.lines.get(sender) else { return Ok(()) };
        let most = FAIR_SEGMENTS * u64::from(self.segment_bytes);
        for line in &self.lines {
            let Some(before) = line.waiting.as_ref().and_then(|sent| sent.get(&sender.key)) else { continue };
            let sent = sender.payload_sent.saturating_sub(*before);
            if sent > most {
                let (key, waits) = (sender.key, line.key);
                return Err(format!("unfair: {key} sent {sent} bytes while {waits} could send and did not"));
            }
        }
        Ok(())
    }

    /// Whether every sender knows what has arrived. To be asked when nothing is under way.
    pub fn check_told(&self) -> Result<(), String> {
        let silent = |line: &&Line| !line.over_arrived && line.limit_arrived.ack < line.arrived_sequence;
        match self.lines.iter().find(silent) {
            None => Ok(()),
            Some(Line { key, limit_arrived, arrived_sequence, .. }) => {
                let ack = limit_arrived.ack;
                Err(format!(
                    "wire of {key}: {arrived_sequence} frames arrived, {ack} were acknowledged, none will be"
                ))
            }
        }
    }

    /// A header of the producer's end has arrived.
    pub fn consumer_begun(&mut self, header: &Header) {
        self.arriving = self.on_the_way.pop_front().unwrap_or(usize::MAX);
        if let Some(line) = self.lines.get_mut(self.arriving) {
            let opens = header.frame_type == FrameType::Data && header.flags.has(Flags::OPEN);
            line.opened_arrived += u64::from(opens);
        }
    }

    /// A frame of the producer's end has arrived.
    pub fn consumer_arrived(&mut self, header: &Header) {
        if let Some(line) = self.lines.get_mut(self.arriving) {
            line.arrived(header);
        }
    }

    /// The consumer's end has emitted a message.
    pub fn consumer_sent(&mut self, message: &Message, common: &mut Common) -> Result<(), String> {
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
                Some(line) => Self::named(line.key, line.answered(*limit, &mut common.coverage)),
                None => Err(format!("wire: Limit for channel {channel}, never opened")),
            },
            _ => Ok(()),
        }
    }

    /// A message of the consumer's end has arrived.
    pub fn producer_arrived(&mut self, message: &Message) {
        match message {
            Message::OpenChannel { channel, .. } => {
                if let Some(position) = self.opening.pop_front() {
                    self.known.insert(*channel, position);
                }
            }
            Message::Limit { channel, limit } => {
                if let Some(line) = self.known_mut(*channel) {
                    line.limit_arrived = *limit;
                }
            }
            _ => {}
        }
    }
}
