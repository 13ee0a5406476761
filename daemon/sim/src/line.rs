//! One channel of a link as the bytes show it, over all sockets of the link.
//!
//! Each channel is seen at four places: frames when the producer's end emits them and when they arrive at the
//! consumer's end, and the answers likewise. So "opened ≤ limit" is checked with what had really arrived, and a sender
//! that goes on after an outage must go on exactly where the receiver is.

use std::collections::{BTreeMap, VecDeque};

use weir_flow::debloat::BUFFER_BYTES_MIN;
use weir_flow::wire::{Flags, FrameType, Header, Limit, Resume};

use crate::coverage::{Coverage, Mark};
use crate::model::ChannelKey;

/// How far a channel has come at one place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Number of the next frame.
    pub sequence: u64,
    /// Payload bytes.
    pub payload: u64,
    /// Receive segments opened.
    pub opened: u64,
    /// Bytes in the open receive segment.
    pub fill: Option<u32>,
    /// Events, the end of data included.
    pub events: u64,
}

/// One channel of a link, as the bytes show it.
#[derive(Debug)]
pub struct Line {
    /// Which channel this is.
    pub key: ChannelKey,
    /// What the producer's end has emitted. Goes back when the receiver says after an outage that it has less.
    pub sent: Place,
    /// What has arrived at the consumer's end: in whole frames, but for the open segment, which begins with a header.
    pub arrived: Place,
    /// The consumer's last answer, when emitted.
    pub limit_sent: Limit,
    /// The consumer's last answer that has arrived.
    pub limit_arrived: Limit,
    /// The socket was lost, and the receiver has not said where to go on.
    pub suspended: bool,
    over: Option<&'static str>,
    /// Nothing follows any more, as the consumer's end sees it: the channel index may be used again.
    pub over_arrived: bool,
    cancel_sent: bool,
    /// The end of data was sent and is to be sent again.
    end_rewound: bool,
    /// The consumer's end has given the channel up, as the producer's end knows: it waits for ChannelFailed.
    cancelled: bool,
    /// A data frame arrives: whether it opened its segment, and its length.
    partial: Option<(bool, u32)>,
    /// Length of the data frame that had arrived in part when the consumer's end last lost its socket.
    pub lost_partial: Option<u32>,
    /// Where the receiver said that it is, on which socket; not known to the sender yet.
    resumes: VecDeque<(usize, Place)>,
    /// The backlog that the consumer's end was told last.
    pub backlog_arrived: u32,
    /// The bound that the consumer's end told last, and on which socket.
    bound_sent: Option<(usize, u32)>,
    /// The bound that the producer's end knows.
    pub bound: u32,
    /// Bounds by which frames were planned that are not seen yet, the last one that of the batch planned last.
    planned_bounds: Vec<u32>,
    submitted_ends: VecDeque<u64>,
    submitted: u64,
    frame_ends: VecDeque<u64>,
    delivered: u64,
    segment_bytes: u32,
    /// While it could send and has not: what each channel of the link had sent when that began.
    pub(crate) waiting: Option<BTreeMap<ChannelKey, u64>>,
}

impl Line {
    /// A channel that was asked for, with what its sender may use from the start.
    #[must_use]
    pub const fn new(key: ChannelKey, limit: Limit, segment_bytes: u32) -> Self {
        let place = Place { sequence: 0, payload: 0, opened: 0, fill: None, events: 0 };
        Self {
            key,
            sent: place,
            arrived: place,
            limit_sent: limit,
            limit_arrived: limit,
            suspended: false,
            over: None,
            over_arrived: false,
            cancel_sent: false,
            end_rewound: false,
            cancelled: false,
            partial: None,
            lost_partial: None,
            resumes: VecDeque::new(),
            backlog_arrived: 0,
            bound_sent: None,
            bound: u32::MAX,
            planned_bounds: Vec::new(),
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
        if end > self.arrived.payload {
            let arrived = self.arrived.payload;
            return Err(format!("{}: {end} bytes were delivered; {arrived} arrived", self.key));
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
        self.submitted.saturating_sub(self.sent.payload)
    }

    /// Bytes that have arrived and were not handed to the consumer.
    #[must_use]
    pub const fn undelivered(&self) -> u64 {
        self.arrived.payload.saturating_sub(self.delivered)
    }

    fn data_begun(&mut self, header: &Header, coverage: &mut Coverage) -> Result<(), String> {
        self.in_sequence(header)?;
        let (least, most) = self.fills();
        if header.flags.has(Flags::OPEN) {
            if let Some(fill) = self.sent.fill.filter(|fill| fill + header.length <= least) {
                return Err(format!(
                    "a slice of {} bytes opened a segment; it fits behind {fill}, up to {least}",
                    header.length
                ));
            }
            let fits = |fill: u32| fill + header.length <= self.segment_bytes;
            coverage.hit_when(Mark::FilledLess, self.sent.fill.is_some_and(fits));
            self.sent.opened += 1;
            if self.sent.opened > self.limit_arrived.limit {
                let (opened, limit) = (self.sent.opened, self.limit_arrived.limit);
                return Err(format!("opened {opened} receive segments; the limit that arrived is {limit}"));
            }
            self.sent.fill = Some(0);
        } else {
            coverage.hit(Mark::PackedBehind);
        }
        let Some(fill) = self.sent.fill else { return Err("a slice was appended to no open segment".into()) };
        let filled = fill.saturating_add(header.length);
        if filled > self.segment_bytes || (filled > most && fill > 0) {
            let bytes = header.length;
            return Err(format!("a slice of {bytes} bytes does not fit behind {fill}, up to {most}"));
        }
        self.sent.fill = Some(filled);
        let end = self.sent.payload + u64::from(header.length);
        if end > self.submitted {
            return Err(format!("{end} bytes were sent; the producer submitted {}", self.submitted));
        }
        coverage.hit_when(Mark::UnsentMerged, pass(&mut self.submitted_ends, end) > 0);
        Ok(())
    }

    /// How far segments are filled at least and at most, by the bounds that the frame may have been planned with.
    fn fills(&mut self) -> (u32, u32) {
        let bounds = self.planned_bounds.iter().map(|bound| (*bound).min(self.segment_bytes));
        let least = bounds.clone().min().unwrap_or(self.segment_bytes);
        let most = bounds.max().unwrap_or(self.segment_bytes);
        // What follows was planned with the last batch.
        if self.planned_bounds.len() > 1 {
            self.planned_bounds.drain(..self.planned_bounds.len() - 1);
        }
        (least, most)
    }

    /// The producer's end plans a batch.
    pub fn planned(&mut self) {
        if self.planned_bounds.last() != Some(&self.bound) {
            self.planned_bounds.push(self.bound);
        }
    }

    /// The consumer's end tells a bound.
    pub fn bound_sent(&mut self, bytes: u32, socket: usize, coverage: &mut Coverage) -> Result<(), String> {
        if bytes < BUFFER_BYTES_MIN {
            return Err(format!("a bound of {bytes} bytes; needed: at least {BUFFER_BYTES_MIN}"));
        }
        if let Some((of, before)) = self.bound_sent.replace((socket, bytes)) {
            if (of, before) == (socket, bytes) {
                return Err(format!("a bound of {bytes} bytes was told twice"));
            }
            coverage.hit_when(Mark::BoundFell, bytes < before);
            coverage.hit_when(Mark::BoundRose, bytes > before);
            coverage.hit_when(Mark::BoundAgain, bytes == before);
        }
        Ok(())
    }

    /// The producer's end learns a bound.
    pub const fn bound_arrived(&mut self, bytes: u32) {
        self.bound = bytes;
    }

    fn in_sequence(&mut self, header: &Header) -> Result<(), String> {
        if header.sequence.0 != self.sent.sequence {
            let (found, needed) = (header.sequence, self.sent.sequence);
            return Err(format!("{} has sequence number {found}; expected {needed}", header.frame_type));
        }
        self.sent.sequence += 1;
        Ok(())
    }

    fn event_sent(&mut self, limit: u64) -> Result<(), String> {
        self.sent.events += 1;
        let sent = self.sent.events;
        if sent <= limit { Ok(()) } else { Err(format!("{sent} events were sent; possible: {limit}")) }
    }

    /// The producer's end emits a frame.
    pub fn begun(&mut self, header: &Header, coverage: &mut Coverage) -> Result<(), String> {
        let frame = header.frame_type;
        if let Some(over) = self.over {
            // Not even a failure may follow: the other end may use the index for another channel by now.
            let tells = frame == FrameType::ChannelFailed && over == "EndOfData" && self.cancelled;
            if !tells {
                return Err(format!("{frame} was sent after {over}"));
            }
        }
        if self.suspended && !frame.happens_once() {
            return Err(format!("{frame} was sent before the receiver said where to go on"));
        }
        match frame {
            FrameType::Data => self.data_begun(header, coverage),
            FrameType::Event => {
                self.in_sequence(header)?;
                // One place is always left for the end of data.
                self.event_sent(self.limit_arrived.event_limit - 1)
            }
            FrameType::EndOfData => {
                self.over = Some("EndOfData");
                self.end_rewound = false;
                if self.sent.payload != self.submitted {
                    return Err(format!("EndOfData after {} of {} bytes", self.sent.payload, self.submitted));
                }
                self.in_sequence(header)?;
                self.event_sent(self.limit_arrived.event_limit)
            }
            FrameType::Backlog if header.flags.has(Flags::CLOSED) => {
                coverage.hit(Mark::SegmentGivenUp);
                match self.sent.fill.take() {
                    Some(_) => Ok(()),
                    None => Err("a segment was given up while none was open".into()),
                }
            }
            FrameType::Backlog => {
                let no_credit = self.sent.opened == self.limit_arrived.limit;
                coverage.hit_when(Mark::BacklogAnnounced, no_credit && header.backlog > 0);
                Ok(())
            }
            FrameType::ChannelFailed => {
                coverage.hit_when(Mark::FailedBehindEnd, self.end_rewound);
                self.over = Some("ChannelFailed");
                Ok(())
            }
            FrameType::ChannelAccepted => Ok(()),
            other => Err(format!("{other} was sent from the producer's end")),
        }
    }

    /// A header arrives at the consumer's end.
    pub fn header_arrived(&mut self, header: &Header) {
        if header.frame_type == FrameType::Data {
            let opens = header.flags.has(Flags::OPEN);
            if opens {
                self.arrived.opened += 1;
                self.arrived.fill = None;
            }
            self.partial = Some((opens, header.length));
        }
    }

    /// A whole frame has arrived at the consumer's end.
    pub fn frame_arrived(&mut self, header: &Header) {
        if header.frame_type != FrameType::ChannelFailed {
            self.backlog_arrived = header.backlog;
        }
        match header.frame_type {
            FrameType::Data => {
                self.partial = None;
                self.arrived.payload += u64::from(header.length);
                self.arrived.sequence = header.sequence.0 + 1;
                self.arrived.fill = Some(self.arrived.fill.unwrap_or_default() + header.length);
                if self.frame_ends.back() != Some(&self.arrived.payload) {
                    self.frame_ends.push_back(self.arrived.payload);
                }
            }
            FrameType::Event | FrameType::EndOfData => {
                self.arrived.sequence = header.sequence.0 + 1;
                self.arrived.events += 1;
            }
            FrameType::Backlog if header.flags.has(Flags::CLOSED) => self.arrived.fill = None,
            _ => {}
        }
        self.over_arrived |= match header.frame_type {
            FrameType::EndOfData => !self.cancel_sent,
            other => other == FrameType::ChannelFailed,
        };
    }

    /// Receive segments that the receiver holds when nothing waits and the application holds nothing.
    #[must_use]
    pub fn idle_segments(&self) -> u32 {
        u32::from(self.arrived.fill.is_some() || matches!(self.partial, Some((true, _))))
    }

    /// The consumer's end has left its socket: a frame that arrived in part was never there.
    pub fn consumer_lost(&mut self) {
        let partial = self.partial.take();
        self.lost_partial = partial.map(|(_, bytes)| bytes);
        if let Some((true, _)) = partial {
            self.arrived.opened -= 1;
        }
    }

    /// The producer's end has left its socket.
    pub fn producer_lost(&mut self) {
        self.suspended = true;
        self.waiting = None;
    }

    /// The consumer's end emits a Limit.
    pub fn answered(&mut self, limit: Limit, coverage: &mut Coverage) -> Result<(), String> {
        let before = self.limit_sent;
        let fields = [
            ("limit", before.limit, limit.limit, u64::MAX),
            ("event limit", before.event_limit, limit.event_limit, u64::MAX),
            ("ack", before.ack, limit.ack, self.arrived.sequence),
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

    /// The consumer's end says where the sender must go on.
    pub fn resume_sent(
        &mut self,
        resume: &Resume,
        socket: usize,
        coverage: &mut Coverage,
    ) -> Result<(), String> {
        let Place { sequence, opened, fill, .. } = self.arrived;
        let found = (resume.next_sequence.0, resume.opened, resume.open_fill);
        let needed = (sequence, opened, fill.unwrap_or_default());
        if found != needed {
            return Err(format!("Resume says (sequence, opened, fill) {found:?}; arrived has {needed:?}"));
        }
        self.answered(resume_limit(resume), coverage)?;
        self.resumes.push_back((socket, self.arrived));
        Ok(())
    }

    /// The producer's end learns where it must go on.
    pub fn resume_arrived(&mut self, resume: &Resume, socket: usize, coverage: &mut Coverage) {
        while self.resumes.front().is_some_and(|(of, _)| *of < socket) {
            self.resumes.pop_front();
        }
        let Some((_, place)) = self.resumes.pop_front() else { return };
        if self.over == Some("ChannelFailed") {
            return;
        }
        let rewinds = place.sequence < self.sent.sequence;
        coverage.hit(if rewinds { Mark::Rewound } else { Mark::NothingToRewind });
        self.end_rewound = self.over.is_some();
        coverage.hit_when(Mark::RewoundEnd, self.end_rewound);
        coverage.hit_when(Mark::RewoundGivenUp, place.fill.is_some() && self.sent.fill.is_none());
        coverage.hit_when(Mark::RewoundOpen, place.opened < self.sent.opened);
        self.limit_arrived = resume_limit(resume);
        self.sent = place;
        self.over = None;
        self.suspended = false;
        self.waiting = None;
    }

    /// The consumer's end gives the channel up.
    pub const fn cancel_sent(&mut self) {
        self.cancel_sent = true;
    }

    /// The producer's end learns that the consumer's gave the channel up.
    pub const fn cancel_arrived(&mut self) {
        self.cancelled = true;
    }
}

/// What a Resume says that a Limit could say.
const fn resume_limit(resume: &Resume) -> Limit {
    Limit {
        limit: resume.limit,
        ack: resume.next_sequence.0,
        consumed: resume.consumed,
        event_limit: resume.event_limit,
        age_us: 0,
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
