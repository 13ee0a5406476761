//! The inside of a gate: the slice being read, the records that span slices, and who has ended.
//!
//! It never waits, and never hands out bytes: it says where a record lies. Slices are read in the order in which the
//! daemon delivered them; each is given back once, when its last record was let go of, and told to the daemon in
//! batches. A channel whose next record would exceed the spanning budget is put aside, with all that follows on it,
//! until another channel has let go of some.

use std::collections::VecDeque;

use weir_flow::failure::{Failure, FailureCode};
use weir_flow::ids::Time;
use weir_flow::record::{Assembler, SpanningBudget, Step};
use weir_ipc::gate_port::GatePort;
use weir_ipc::region::ReceiveMapping;
use weir_ipc::{Delivered, IpcFault};

use super::lent::LentRegions;
use crate::clock;
use crate::error::Error;

/// The daemon is told of slices given back at the latest when the next one is, and this much time has passed since
/// it was last told: 50 us.
const PUBLISH_NS_MAX: u64 = 50_000;

/// Or when this many segments' worth of bytes was given back.
const PUBLISH_SEGMENTS_MAX: u32 = 2;

/// What comes next.
pub(crate) enum Found {
    /// A record in the region.
    InPlace {
        /// Its channel.
        channel: u32,
        /// It lies in the region of the channel's producer.
        is_lent: bool,
        /// Where it starts in the region.
        start: u64,
        /// Its length.
        bytes: usize,
    },
    /// A record that spanned slices, in its channel's own memory.
    Assembled {
        /// Its channel.
        channel: u32,
    },
    /// An event.
    Event {
        /// Its channel.
        channel: u32,
        /// The producer's bytes.
        payload: Vec<u8>,
        /// It overtook data.
        priority: bool,
    },
    /// Nothing yet.
    Nothing,
    /// Nothing any more: every producer has finished.
    End,
}

/// Where a channel stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChannelState {
    /// More may come.
    Open,
    /// Its next record waits for the spanning budget.
    Aside,
    /// It broke off at this end: what still comes is given back unread.
    Broken,
    /// Its end, or its failure, was taken.
    Over,
}

/// How far the current slice could be read.
enum Stop {
    /// Up to behind a record that lies in it.
    InPlace { channel: u32, is_lent: bool, start: u64, bytes: usize },
    /// Up to behind a record that spanned slices.
    Assembled,
    /// To its end, or there is no slice.
    UsedUp,
    /// Up to a record for which the spanning budget has no room.
    Aside,
    /// Up to a record that is over the limit.
    TooLarge { bytes: u32, max: u32 },
    /// Up to behind a record whose bytes are not those that were written.
    ChecksumMismatch { found: u32, needed: u32 },
}

struct Channel {
    assembler: Assembler,
    state: ChannelState,
    /// What was delivered while the channel is aside, the slice that it stopped in first.
    aside: VecDeque<Aside>,
}

/// Something put aside.
enum Aside {
    Slice(Slice),
    Delivered(Delivered),
}

/// A slice being read.
#[derive(Clone, Copy, Debug)]
struct Slice {
    channel: u32,
    /// It lies in the region of the channel's producer.
    is_lent: bool,
    segment: u32,
    /// Where it starts in the region.
    start: u64,
    bytes: u32,
    /// Bytes read.
    at: usize,
}

/// What a reader is made of.
pub(crate) struct ReaderParts {
    pub(crate) port: GatePort,
    pub(crate) mapping: ReceiveMapping,
    pub(crate) lent: LentRegions,
    pub(crate) channels: u32,
    pub(crate) segment_bytes: u32,
    pub(crate) record_bytes_max: u32,
    pub(crate) checksum: bool,
    pub(crate) spanning_bytes_max: u64,
}

/// The inside of a gate.
pub(crate) struct Reader {
    port: GatePort,
    mapping: ReceiveMapping,
    lent: LentRegions,
    segment_bytes: u32,
    current: Option<Slice>,
    /// The slice whose spanning record was handed out last; what follows in it was not looked at yet.
    given: Option<Slice>,
    /// The channel whose event was handed out last and is not given back yet.
    event: Option<u32>,
    channels: Vec<Channel>,
    /// Channels that are not over.
    open: u32,
    budget: SpanningBudget,
    /// Channels that are aside, the one that waits longest first.
    waiting: VecDeque<u32>,
    /// Memory of the spanning budget was let go of since the first of them was refused.
    retry: bool,
    /// The channel that was aside and whose deliveries are taken up before new ones.
    resuming: Option<u32>,
    /// Bytes given back that the daemon was not told of.
    unpublished: u64,
    published_at: Time,
    /// The first failure of a channel: with it the gate has no good end.
    failure: Option<(u32, Failure)>,
}

fn fault(fault: IpcFault) -> Error {
    Error::protocol(fault.to_string())
}

impl Reader {
    pub(crate) fn new(parts: ReaderParts) -> Self {
        let channel = || Channel {
            assembler: Assembler::new(parts.record_bytes_max, parts.checksum),
            state: ChannelState::Open,
            aside: VecDeque::new(),
        };
        Self {
            port: parts.port,
            mapping: parts.mapping,
            lent: parts.lent,
            segment_bytes: parts.segment_bytes,
            current: None,
            given: None,
            event: None,
            channels: (0..parts.channels).map(|_| channel()).collect(),
            open: parts.channels,
            budget: SpanningBudget::new(parts.spanning_bytes_max),
            waiting: VecDeque::new(),
            retry: false,
            resuming: None,
            unpublished: 0,
            published_at: Time(0),
            failure: None,
        }
    }

    /// The port, to announce waits at.
    pub(crate) fn port(&mut self) -> &mut GatePort {
        &mut self.port
    }

    /// The bytes of a record that was found in place.
    #[inline]
    pub(crate) fn in_place(
        &self,
        channel: u32,
        is_lent: bool,
        start: u64,
        bytes: usize,
    ) -> Result<&[u8], Error> {
        let mapping = if is_lent { self.lent.mapping(channel) } else { Some(&self.mapping) };
        mapping.and_then(|mapping| mapping.slice(start, bytes)).ok_or_else(outside)
    }

    /// The bytes of a record that was assembled.
    pub(crate) fn assembled(&self, channel: u32) -> &[u8] {
        self.channels.get(channel as usize).map_or(&[], |channel| channel.assembler.assembled())
    }

    /// Finds what comes next. What was found before is let go of.
    #[inline]
    pub(crate) fn find(&mut self) -> Result<Found, Error> {
        match self.step() {
            Stop::InPlace { channel, is_lent, start, bytes } => {
                Ok(Found::InPlace { channel, is_lent, start, bytes })
            }
            stop => self.find_behind(stop),
        }
    }

    /// Reads on in the current slice.
    #[inline]
    fn step(&mut self) -> Stop {
        let Some(slice) = &mut self.current else { return Stop::UsedUp };
        let mapping = if slice.is_lent { self.lent.mapping(slice.channel) } else { Some(&self.mapping) };
        let bytes = mapping.and_then(|mapping| mapping.slice(slice.start, slice.bytes as usize));
        let Some(bytes) = bytes else { return Stop::UsedUp };
        let Some(channel) = self.channels.get_mut(slice.channel as usize) else { return Stop::UsedUp };
        match channel.assembler.next_record(bytes, &mut slice.at, &mut self.budget) {
            Step::InPlace(range) => {
                let start = slice.start + range.start as u64;
                Stop::InPlace { channel: slice.channel, is_lent: slice.is_lent, start, bytes: range.len() }
            }
            Step::Assembled(_) => Stop::Assembled,
            Step::NeedMore => Stop::UsedUp,
            Step::Wait => Stop::Aside,
            Step::TooLarge { bytes, max } => Stop::TooLarge { bytes, max },
            Step::ChecksumMismatch { found, needed } => Stop::ChecksumMismatch { found, needed },
        }
    }

    /// Goes on where the current slice, if there is one, has no further record in place.
    #[cold]
    #[inline(never)]
    fn find_behind(&mut self, mut stop: Stop) -> Result<Found, Error> {
        loop {
            if let Some(slice) = self.current {
                match stop {
                    Stop::InPlace { channel, is_lent, start, bytes } => {
                        return Ok(Found::InPlace { channel, is_lent, start, bytes });
                    }
                    Stop::Assembled => {
                        self.given = self.current.take();
                        return Ok(Found::Assembled { channel: slice.channel });
                    }
                    Stop::UsedUp => self.give_back(slice)?,
                    Stop::Aside => self.put_aside(slice, true),
                    Stop::TooLarge { bytes, max } => {
                        let text = format!("a record has {bytes} bytes; needed: at most {max}");
                        return Err(self.break_off(slice, Failure::new(FailureCode::RecordTooLarge, text)));
                    }
                    Stop::ChecksumMismatch { found, needed } => {
                        let text = format!("a record has checksum {found:#010x}; needed: {needed:#010x}");
                        return Err(self.break_off(slice, Failure::new(FailureCode::Checksum, text)));
                    }
                }
                self.current = None;
            }
            self.let_go()?;
            if self.current.is_none()
                && let Some(found) = self.take_up_next()?
            {
                return Ok(found);
            }
            stop = self.step();
        }
    }

    /// Lets go of the spanning record or the event that was handed out last. A channel that has had a spanning
    /// record lets those go first which wait for the budget.
    fn let_go(&mut self) -> Result<(), Error> {
        if let Some(channel) = self.event.take() {
            self.port.give_back_event(channel).map_err(fault)?;
            self.port.publish();
        }
        let Some(slice) = self.given.take() else { return Ok(()) };
        if let Some(channel) = self.channels.get_mut(slice.channel as usize) {
            channel.assembler.release(&mut self.budget);
        }
        self.retry = !self.waiting.is_empty();
        if self.retry {
            self.put_aside(slice, false)
        } else {
            self.current = Some(slice)
        }
        Ok(())
    }

    /// Takes up deliveries until there is a current slice (`None`) or something for the application.
    fn take_up_next(&mut self) -> Result<Option<Found>, Error> {
        while self.current.is_none() {
            let found = match self.next_aside() {
                Some(Aside::Slice(slice)) => {
                    self.current = Some(slice);
                    None
                }
                Some(Aside::Delivered(delivered)) => self.take_up(delivered)?,
                None if self.open == 0 => return self.end_of_gate().map(Some),
                None => match self.port.pop().map_err(fault)? {
                    Some(delivered) => self.take_up(delivered)?,
                    None => return Ok(Some(Found::Nothing)),
                },
            };
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// Every channel is over.
    fn end_of_gate(&mut self) -> Result<Found, Error> {
        self.publish();
        match &self.failure {
            None => Ok(Found::End),
            Some((channel, failure)) => {
                Err(Error::Failed { channel: Some(*channel), failure: failure.clone() })
            }
        }
    }

    /// What is to be taken up of a channel that was aside.
    fn next_aside(&mut self) -> Option<Aside> {
        if let Some(number) = self.resuming {
            if let Some(aside) = self.channels.get_mut(number as usize).and_then(|of| of.aside.pop_front()) {
                return Some(aside);
            }
            self.resuming = None;
        }
        if !self.retry {
            return None;
        }
        let number = self.waiting.pop_front()?;
        self.retry = !self.waiting.is_empty();
        let channel = self.channels.get_mut(number as usize)?;
        channel.state = ChannelState::Open;
        self.resuming = Some(number);
        channel.aside.pop_front()
    }

    /// Takes up one delivery. `None`: there is a current slice now, or nothing for the application.
    fn take_up(&mut self, delivered: Delivered) -> Result<Option<Found>, Error> {
        let number = match &delivered {
            Delivered::Data { channel, .. }
            | Delivered::Lent { channel, .. }
            | Delivered::Event { channel, .. }
            | Delivered::End { channel }
            | Delivered::Failed { channel, .. } => *channel,
        };
        let Some(channel) = self.channels.get_mut(number as usize) else {
            return Err(Error::protocol(format!("a delivery for channel {number}, which the gate has not")));
        };
        let overtakes = matches!(delivered, Delivered::Event { priority: true, .. });
        if channel.state == ChannelState::Aside && !overtakes {
            channel.aside.push_back(Aside::Delivered(delivered));
            return Ok(None);
        }
        let is_broken = channel.state == ChannelState::Broken;
        match delivered {
            Delivered::Data { channel, segment, offset, bytes, .. }
            | Delivered::Lent { channel, segment, offset, bytes, .. } => {
                let is_lent = matches!(delivered, Delivered::Lent { .. });
                let slice = self.slice((channel, is_lent), segment, offset, bytes)?;
                if is_broken {
                    self.give_back(slice)?;
                } else {
                    self.current = Some(slice);
                }
                Ok(None)
            }
            Delivered::Event { channel, .. } if is_broken => {
                self.port.give_back_event(channel).map_err(fault)?;
                self.port.publish();
                Ok(None)
            }
            Delivered::Event { channel, payload, priority } => {
                self.event = Some(channel);
                Ok(Some(Found::Event { channel, payload, priority }))
            }
            Delivered::End { channel } => self.end(channel).map(|()| None),
            Delivered::Failed { channel, code, text } => {
                let code = FailureCode::from_wire(code).unwrap_or(FailureCode::Protocol);
                self.close(channel);
                if is_broken { Ok(None) } else { Err(self.fail(channel, Failure::new(code, text))) }
            }
        }
    }

    /// The slice that a delivery names, if it can be.
    fn slice(
        &mut self,
        (channel, is_lent): (u32, bool),
        segment: u32,
        offset: u32,
        bytes: u32,
    ) -> Result<Slice, Error> {
        let length = if is_lent { self.lent.begin(channel)? } else { self.mapping.len() };
        let start = u64::from(segment) * u64::from(self.segment_bytes) + u64::from(offset);
        let is_inside = u64::from(offset) + u64::from(bytes) <= u64::from(self.segment_bytes)
            && start + u64::from(bytes) <= length;
        let slice = Slice { channel, is_lent, segment, start, bytes, at: 0 };
        if is_inside { Ok(slice) } else { Err(outside()) }
    }

    /// A producer has finished.
    fn end(&mut self, channel: u32) -> Result<(), Error> {
        let is_whole = self
            .channels
            .get(channel as usize)
            .is_some_and(|of| of.state == ChannelState::Broken || of.assembler.is_between_records());
        self.close(channel);
        if is_whole {
            return Ok(());
        }
        let text = "the producer ended inside a record; needed: whole records";
        Err(self.fail(channel, Failure::new(FailureCode::Protocol, text)))
    }

    /// Nothing follows on this channel.
    fn close(&mut self, channel: u32) {
        let Some(of) = self.channels.get_mut(channel as usize) else { return };
        of.assembler.release(&mut self.budget);
        // Everything of it was read and given back before.
        self.lent.end(channel);
        self.retry |= !self.waiting.is_empty();
        if of.state != ChannelState::Over {
            of.state = ChannelState::Over;
            self.open -= 1;
        }
    }

    /// Notes a failure, and makes it an error.
    fn fail(&mut self, channel: u32, failure: Failure) -> Error {
        self.failure.get_or_insert_with(|| (channel, failure.clone()));
        Error::Failed { channel: Some(channel), failure }
    }

    /// A channel cannot be read any further. The rest of it is given back unread.
    fn break_off(&mut self, slice: Slice, failure: Failure) -> Error {
        self.current = None;
        if let Some(channel) = self.channels.get_mut(slice.channel as usize) {
            channel.state = ChannelState::Broken;
            channel.assembler.release(&mut self.budget);
            self.retry |= !self.waiting.is_empty();
        }
        match self.give_back(slice) {
            Ok(()) => self.fail(slice.channel, failure),
            Err(error) => error,
        }
    }

    /// Puts a channel aside until memory of the budget is let go of. One that was aside before keeps its place.
    fn put_aside(&mut self, slice: Slice, keeps_place: bool) {
        let Some(channel) = self.channels.get_mut(slice.channel as usize) else { return };
        channel.state = ChannelState::Aside;
        channel.aside.push_front(Aside::Slice(slice));
        let is_again = self.resuming == Some(slice.channel) && keeps_place;
        if self.resuming == Some(slice.channel) {
            self.resuming = None;
        }
        if is_again {
            self.waiting.push_front(slice.channel);
            // Those behind it must not pass it by: what it waits for becomes free only if they do not take it.
            self.retry = false;
        } else {
            self.waiting.push_back(slice.channel);
        }
    }

    /// Gives a slice back, and tells the daemon when it is time.
    fn give_back(&mut self, slice: Slice) -> Result<(), Error> {
        if slice.is_lent {
            self.port.give_back_lent(slice.channel, slice.segment, slice.bytes).map_err(fault)?;
        } else {
            self.port.give_back_data(slice.segment, slice.bytes).map_err(fault)?;
        }
        self.unpublished += u64::from(slice.bytes);
        let now = clock::now();
        let is_much = self.unpublished >= u64::from(PUBLISH_SEGMENTS_MAX * self.segment_bytes);
        if is_much || now.since_ns(self.published_at) >= PUBLISH_NS_MAX {
            self.published_at = now;
            self.publish();
        }
        Ok(())
    }

    /// Tells the daemon of everything given back.
    pub(crate) fn publish(&mut self) {
        self.unpublished = 0;
        self.port.publish();
    }
}

/// A slice lies outside of the region.
#[cold]
fn outside() -> Error {
    Error::protocol("a delivered slice lies outside of its segment")
}
