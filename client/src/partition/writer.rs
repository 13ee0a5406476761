//! The inside of a partition: one open segment per subpartition, the pool that they come from, and the port to the
//! daemon. It never waits: what cannot be done now is an outcome that says what to wait for.
//!
//! The owner of the partition and the flusher take turns at it under one lock. Between two calls every segment is
//! in one of three places: free in the pool, open here, or submitted to the daemon.
//!
//! A partition that goes on without dead consumers looks, before it writes for one, whether it is gone. What was
//! written for it is submitted all the same: the daemon drops it and returns the segment.
//!
//! What a dropped future has left in its middle is kept here ([`rest`]), and nothing that belongs behind it goes before.

mod bound;
mod rest;
mod targets;

use weir_flow::checksum::crc32c;
use weir_flow::failure::{Failure, FailureCode};
use weir_flow::flush::{Flush, FlushClock};
use weir_flow::ids::{SegmentIndex, SubpartitionIndex, Time};
use weir_flow::limits::RECORD_ROOM_BYTES;
use weir_flow::pool::partition::{PartitionPool, Unavailable};
use weir_flow::record::{CHECKSUM_BYTES, PREFIX_BYTES, frame_bytes};
use weir_ipc::partition_port::PartitionPort;
use weir_ipc::region::SendMapping;
use weir_ipc::{IpcFault, Returned, Submission};

use self::bound::Room;
pub(crate) use self::rest::{Emission, Rest};
use super::losses::Losses;
use crate::clock;
use crate::error::Error;

/// What a partition lacks to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lack {
    /// A segment of the pool.
    Segment,
    /// A segment, and the subpartition holds as many as it may, or as many bytes are on their way as its consumer wants.
    Quota,
    /// A place for another event of this subpartition.
    Event,
    /// Room in the submit ring.
    Room,
    /// A consumer that keeps up: those that do have no segment to take, and those that have are left out by adaptive
    /// selection.
    Turn,
    /// The word that all consumers' daemons have everything.
    End,
}

/// What became of something that was emitted to one consumer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Emitted<T> {
    /// It is done.
    Done(T),
    /// The consumer is gone. Nothing of it will be read.
    Gone,
}

/// The segment that a subpartition's records are written into.
#[derive(Clone, Copy, Debug)]
struct Builder {
    /// The segment; none is open if there is none.
    segment: Option<SegmentIndex>,
    /// Where the segment starts in the region.
    base: u64,
    /// Bytes written. All of the segment if none is open: there is no room then.
    written: u32,
    /// Up to where records that fit whole are written without a look at the bound of what is on its way. As `written` if
    /// no segment is open.
    end: u32,
    /// Bytes of all segments that were closed, ever.
    closed_bytes: u64,
    /// Bytes submitted.
    submitted: u32,
    /// Records that ended since the last submission.
    records: u32,
    /// Events submitted, ever.
    events: u64,
}

impl Builder {
    /// Whether no record is begun in what is left of the open segment. One that would be is cut in nearly all cases, and has
    /// to be put together at its reader, where a segment of its own would hold all of it.
    fn is_full(&self, segment_bytes: u32) -> bool {
        segment_bytes - self.written <= RECORD_ROOM_BYTES
    }
}

/// What a writer is made of.
pub(crate) struct WriterParts {
    pub(crate) port: PartitionPort,
    pub(crate) mapping: SendMapping,
    pub(crate) pool: PartitionPool,
    pub(crate) clock: FlushClock,
    pub(crate) segment_bytes: u32,
    pub(crate) checksum: bool,
    /// Events of one subpartition that may be on their way, its end among them. At least 2.
    pub(crate) event_window: u32,
    /// Whether the partition goes on without dead consumers.
    pub(crate) continues: bool,
    /// Whether part-filled segments stay until somebody flushes: there is no buffer timeout.
    pub(crate) holds_parts: bool,
}

/// The inside of a partition.
pub(crate) struct Writer {
    parts: WriterParts,
    /// Bytes beside each record: length and maybe checksum.
    overhead: usize,
    builders: Vec<Builder>,
    /// Most events of a subpartition that may be under way.
    events_max: u64,
    /// Dead consumers, if the partition goes on without them.
    losses: Option<Losses>,
    /// What dropped futures have left in its middle, the oldest first.
    rests: Vec<Rest>,
    /// The subpartition that lacked something last; none if any of several would do.
    lacking: Option<u32>,
    failure: Option<Failure>,
    is_finished: bool,
}

fn fault(fault: IpcFault) -> Error {
    Error::protocol(fault.to_string())
}

impl Writer {
    pub(crate) fn new(parts: WriterParts) -> Self {
        let closed = Builder {
            segment: None,
            base: 0,
            written: parts.segment_bytes,
            end: parts.segment_bytes,
            closed_bytes: 0,
            submitted: parts.segment_bytes,
            records: 0,
            events: 0,
        };
        let subpartitions = parts.pool.spec().subpartitions;
        Self {
            overhead: frame_bytes(0, parts.checksum),
            builders: vec![closed; subpartitions as usize],
            losses: parts.continues.then(|| Losses::new(subpartitions)),
            // One place of the window is the end's.
            events_max: u64::from(parts.event_window.saturating_sub(1)),
            rests: Vec::new(),
            lacking: None,
            failure: None,
            is_finished: false,
            parts,
        }
    }

    /// Subpartitions.
    pub(crate) fn subpartitions(&self) -> u32 {
        self.parts.pool.spec().subpartitions
    }

    /// The port, to announce waits at.
    pub(crate) fn port(&mut self) -> &mut PartitionPort {
        &mut self.parts.port
    }

    /// Has `write` write a record of so many bytes if all of it fits into the open segment: the path of nearly every
    /// record. Says when the flusher is to come, if it was not to come before. Gives `write` back if the record does not
    /// fit, or its consumer is gone: nothing was written then. The same if `write` panics.
    #[inline]
    pub(crate) fn append<W: FnOnce(&mut [u8])>(
        &mut self,
        subpartition: u32,
        record_bytes: usize,
        write: W,
    ) -> Result<Result<Flush, W>, Error> {
        if self.losses.is_some() && self.parts.port.is_gone(subpartition) {
            return Ok(Err(write));
        }
        let Some(builder) = self.builders.get_mut(subpartition as usize) else { return Ok(Err(write)) };
        let left = builder.end.saturating_sub(builder.written) as usize;
        if record_bytes > left || self.overhead + record_bytes > left {
            return Ok(Err(write));
        }
        let frame = self.overhead + record_bytes;
        let start = builder.base + u64::from(builder.written);
        let Some(place) = self.parts.mapping.slice_mut(start, frame) else { return Err(outside()) };
        let Some((prefix, behind)) = place.split_first_chunk_mut::<PREFIX_BYTES>() else {
            return Err(outside());
        };
        let (record, checksum) = behind.split_at_mut(record_bytes);
        write(record);
        // Less than a segment, which is a u32.
        *prefix = (record_bytes as u32).to_le_bytes();
        if let Some(checksum) = checksum.first_chunk_mut::<CHECKSUM_BYTES>() {
            *checksum = crc32c(record).to_le_bytes();
        }
        builder.written += frame as u32;
        builder.records += 1;
        if builder.is_full(self.parts.segment_bytes) {
            self.close(subpartition)?;
            return Ok(Ok(Flush::Nothing));
        }
        Ok(Ok(self.parts.clock.handle_written(clock::now)))
    }

    /// Opens the next segment if none is open and a record of so many bytes, that is not begun, lies whole in one. Whether
    /// the record may be appended now; what it does not fit into is looked at by [`Self::append`].
    pub(crate) fn open_for(
        &mut self,
        subpartition: u32,
        record_bytes: usize,
    ) -> Result<Result<bool, Lack>, Error> {
        let is_open = self.builders.get(subpartition as usize).is_none_or(|of| of.segment.is_some());
        let segment_bytes = self.parts.segment_bytes as usize;
        if is_open || record_bytes > segment_bytes - self.overhead || self.is_gone(subpartition)? {
            return Ok(Ok(false));
        }
        if !self.is_admitted(subpartition) {
            self.hand_over(subpartition)?;
            return Ok(Err(Lack::Quota));
        }
        Ok(self.open(subpartition, false)?.map(|()| true))
    }

    /// Writes as much of a record as there are segments for.
    pub(crate) fn advance(
        &mut self,
        subpartition: u32,
        emission: &mut Emission<'_>,
    ) -> Result<Result<Emitted<Flush>, Lack>, Error> {
        Ok(match self.write_on(subpartition, emission)? {
            Ok(Emitted::Done(())) => {
                let is_full = self.builders.get(subpartition as usize).is_none_or(|of| of.segment.is_none());
                let clock = &mut self.parts.clock;
                let flush = if is_full { Flush::Nothing } else { clock.handle_written(clock::now) };
                Ok(Emitted::Done(flush))
            }
            Ok(Emitted::Gone) => Ok(Emitted::Gone),
            Err(lack) => Err(lack),
        })
    }

    fn write_on(
        &mut self,
        subpartition: u32,
        emission: &mut Emission<'_>,
    ) -> Result<Result<Emitted<()>, Lack>, Error> {
        if let Err(lack) = self.keep_to_bound(subpartition, emission)? {
            return Ok(Err(lack));
        }
        loop {
            if self.is_gone(subpartition)? {
                return Ok(Ok(Emitted::Gone));
            }
            let segment_bytes = self.parts.segment_bytes;
            let Some(builder) = self.builders.get_mut(subpartition as usize) else {
                return Err(Error::NoSuchSubpartition { found: subpartition, count: self.subpartitions() });
            };
            for piece in emission.next_pieces((segment_bytes - builder.written) as usize) {
                if !self.parts.mapping.write(builder.base + u64::from(builder.written), piece) {
                    return Err(outside());
                }
                builder.written += piece.len() as u32;
            }
            let is_done = emission.remaining() == 0;
            builder.records += u32::from(is_done);
            if builder.segment.is_some() && builder.is_full(segment_bytes) {
                self.close(subpartition)?;
            }
            if is_done {
                return Ok(Ok(Emitted::Done(())));
            }
            if let Err(lack) = self.open(subpartition, emission.is_begun())? {
                return Ok(Err(lack));
            }
            emission.handle_opened();
        }
    }

    /// Whether a record of so many bytes can be begun now and all of it be written without a wait. If it could not
    /// for want of a segment, what is in the open one is submitted, so that its segment comes back.
    pub(crate) fn prepare(&mut self, subpartition: u32, record_bytes: usize) -> Result<Emitted<bool>, Error> {
        if self.is_gone(subpartition)? {
            return Ok(Emitted::Gone);
        }
        let Some(builder) = self.builders.get(subpartition as usize) else {
            return Err(Error::NoSuchSubpartition { found: subpartition, count: self.subpartitions() });
        };
        let left = builder.end.saturating_sub(builder.written) as usize;
        if self.overhead + record_bytes <= left {
            return Ok(Emitted::Done(true));
        }
        self.look()?;
        self.see_sent(subpartition);
        match self.room(subpartition, record_bytes) {
            Room::There => return Ok(Emitted::Done(true)),
            Room::AtBound => self.hand_over(subpartition)?,
            Room::NoSegment => self.close(subpartition)?,
        }
        Ok(Emitted::Done(false))
    }

    /// Whether every subpartition whose consumer is not gone has a segment open or could open one, and is below its bound.
    pub(crate) fn is_available(&mut self) -> Result<bool, Error> {
        self.look()?;
        for subpartition in 0..self.subpartitions() {
            let is_open =
                self.builders.get(subpartition as usize).is_some_and(|builder| builder.segment.is_some());
            if self.is_gone(subpartition)? {
                continue;
            }
            if !self.is_admitted(subpartition) {
                self.hand_over(subpartition)?;
                return Ok(false);
            }
            self.see_sent(subpartition);
            if !is_open && !self.may_open(subpartition) {
                self.lacking = Some(subpartition);
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether a segment could be opened now to begin something in.
    fn may_open(&self, subpartition: u32) -> bool {
        !self.is_behind_rest(subpartition) && self.parts.pool.is_available(SubpartitionIndex(subpartition))
    }

    /// Opens the next segment of a subpartition.
    fn open(&mut self, subpartition: u32, is_begun: bool) -> Result<Result<(), Lack>, Error> {
        self.look()?;
        if self.is_behind_rest(subpartition) {
            return Ok(Err(Lack::Room));
        }
        self.see_sent(subpartition);
        let segment = match self.parts.pool.acquire(SubpartitionIndex(subpartition), is_begun) {
            Ok(segment) => segment,
            Err(Unavailable::Pool) => return Ok(Err(Lack::Segment)),
            Err(Unavailable::Quota) => {
                self.lacking = Some(subpartition);
                return Ok(Err(Lack::Quota));
            }
        };
        if let Some(builder) = self.builders.get_mut(subpartition as usize) {
            builder.segment = Some(segment);
            builder.base = u64::from(segment.0) * u64::from(self.parts.segment_bytes);
            builder.written = 0;
            builder.submitted = 0;
        }
        self.set_first_end(subpartition);
        Ok(Ok(()))
    }

    /// Takes in what the daemon returned. An error once the partition has failed.
    pub(crate) fn look(&mut self) -> Result<(), Error> {
        while let Some(returned) = self.parts.port.pop().map_err(fault)? {
            match returned {
                Returned::Segment(segment) => {
                    let accounted = self.parts.pool.handle_returned(SegmentIndex(segment));
                    accounted.map_err(|error| Error::protocol(error.to_string()))?;
                }
                Returned::Finished => self.is_finished = true,
                Returned::Failed { code, text } => {
                    let code = FailureCode::from_wire(code).unwrap_or(FailureCode::Protocol);
                    self.failure = Some(Failure::new(code, text));
                }
            }
        }
        match &self.failure {
            Some(failure) => Err(Error::Failed { channel: None, failure: failure.clone() }),
            None => self.push_rests(),
        }
    }

    /// Whether every consumer's daemon has everything.
    pub(crate) fn is_finished(&mut self) -> Result<bool, Error> {
        self.look()?;
        Ok(self.is_finished)
    }

    /// Whether a consumer is gone that the partition goes on without. Its open segment is given to the daemon then.
    fn is_gone(&mut self, subpartition: u32) -> Result<bool, Error> {
        let Some(losses) = &self.losses else { return Ok(false) };
        if losses.is_gone(subpartition) {
            return Ok(true);
        }
        let cell = self.parts.port.cell(subpartition);
        if !cell.is_gone {
            return Ok(false);
        }
        self.close(subpartition)?;
        if let Some(losses) = &mut self.losses {
            losses.handle_gone(subpartition, cell.consumed_bytes);
        }
        Ok(true)
    }

    /// Consumers that are gone, and records that they are not known to have taken.
    pub(crate) fn losses(&mut self) -> (u32, u64) {
        for subpartition in 0..self.subpartitions() {
            // What cannot be submitted is met again by whoever emits next.
            let _ = self.is_gone(subpartition);
        }
        self.losses.as_ref().map_or((0, 0), |losses| (losses.gone(), losses.lost_records()))
    }

    /// The error when there is no consumer left. The daemon's own words, if it has said them already.
    pub(crate) fn all_gone(&mut self) -> Error {
        let found = self.look();
        let text = format!("all {} consumers are gone", self.subpartitions());
        let failure = Failure::new(FailureCode::ConsumerGone, text);
        found.err().unwrap_or(Error::Failed { channel: None, failure })
    }

    fn see_sent(&mut self, subpartition: u32) {
        let sent = self.parts.port.cell(subpartition).sent_segments;
        self.parts.pool.handle_sent(SubpartitionIndex(subpartition), sent);
    }

    fn submit(&mut self, submission: &Submission) -> Result<(), Error> {
        if self.parts.port.submit(submission).map_err(fault)? {
            return Ok(());
        }
        Err(Error::protocol(format!("the submit ring has no room for {submission:?}")))
    }

    /// Submits what was written since the last time, and the segment itself if `last`.
    fn submit_data(&mut self, subpartition: u32, last: bool) -> Result<(), Error> {
        let Some(builder) = self.builders.get_mut(subpartition as usize) else { return Ok(()) };
        let Some(segment) = builder.segment else { return Ok(()) };
        let (offset, bytes) = (builder.submitted, builder.written - builder.submitted);
        if bytes == 0 && !last {
            return Ok(());
        }
        let records = std::mem::take(&mut builder.records);
        builder.submitted = builder.written;
        if let Some(losses) = &mut self.losses {
            let consumed = self.parts.port.cell(subpartition).consumed_bytes;
            losses.handle_submitted(subpartition, bytes, records, consumed);
        }
        if last {
            builder.segment = None;
            builder.closed_bytes += u64::from(builder.written);
            builder.end = self.parts.segment_bytes;
            builder.written = self.parts.segment_bytes;
            builder.submitted = self.parts.segment_bytes;
        }
        self.submit(&Submission::Data { subpartition, segment: segment.0, offset, bytes, records, last })
    }

    /// Gives the open segment to the daemon for good; back to the pool if nothing was written into it, of which the daemon has
    /// never heard. Never waits.
    fn close(&mut self, subpartition: u32) -> Result<(), Error> {
        let segment_bytes = self.parts.segment_bytes;
        if let Some(Builder { segment: opened @ Some(_), written: written @ 0, submitted, end, .. }) =
            self.builders.get_mut(subpartition as usize)
        {
            let segment = opened.take();
            (*written, *submitted, *end) = (segment_bytes, segment_bytes, segment_bytes);
            let unused = segment.map_or(Ok(()), |segment| self.parts.pool.handle_unused(segment));
            return unused.map_err(|error| Error::protocol(error.to_string()));
        }
        self.submit_data(subpartition, true)
    }

    /// Submits what waits in one subpartition. `false`: there is no room for parts now, and it still waits.
    pub(crate) fn submit_part(&mut self, subpartition: u32) -> Result<bool, Error> {
        let waits = self
            .builders
            .get(subpartition as usize)
            .is_some_and(|builder| builder.segment.is_some() && builder.written > builder.submitted);
        if !waits || self.is_gone(subpartition)? {
            return Ok(true);
        }
        if !self.parts.port.has_room_for_part().map_err(fault)? {
            return Ok(false);
        }
        self.submit_data(subpartition, false)?;
        Ok(true)
    }

    /// Submits what waits in any subpartition, unless such parts wait for a flush. `false`: something had to stay for want
    /// of room.
    pub(crate) fn flush_due(&mut self, now: Time) -> Result<bool, Error> {
        if self.has_rests() {
            self.look()?;
        }
        if self.parts.holds_parts {
            return Ok(true);
        }
        let mut is_done = true;
        for subpartition in 0..self.subpartitions() {
            is_done &= self.submit_part(subpartition)?;
        }
        if is_done {
            self.parts.clock.handle_flushed();
        } else {
            self.parts.clock.handle_postponed(now);
        }
        Ok(is_done)
    }

    /// When the buffer timeout ends, if something waits for it.
    pub(crate) fn next_timeout(&self) -> Option<Time> {
        self.parts.clock.poll_timeout()
    }

    /// Submits everything written so far. Where there is no room for a part of a segment, the segment is closed.
    pub(crate) fn flush(&mut self) -> Result<(), Error> {
        self.look()?;
        for subpartition in 0..self.subpartitions() {
            if !self.submit_part(subpartition)? {
                self.close(subpartition)?;
            }
        }
        self.parts.clock.handle_flushed();
        Ok(())
    }

    /// Submits an event, behind all data so far unless it has priority.
    pub(crate) fn emit_event(
        &mut self,
        subpartition: u32,
        payload: &[u8],
        priority: bool,
    ) -> Result<Result<Emitted<()>, Lack>, Error> {
        self.look()?;
        if self.is_gone(subpartition)? {
            return Ok(Ok(Emitted::Gone));
        }
        if subpartition >= self.subpartitions() {
            return Err(Error::NoSuchSubpartition { found: subpartition, count: self.subpartitions() });
        }
        if !self.has_event_window(subpartition) || !self.parts.port.has_event_slot() {
            self.lacking = Some(subpartition);
            return Ok(Err(Lack::Event));
        }
        if !priority && self.is_behind_rest(subpartition) {
            return Ok(Err(Lack::Room));
        }
        // Room for two: the data in front of the event, and the event.
        if !self.parts.port.has_room_for_part().map_err(fault)? {
            return Ok(Err(Lack::Room));
        }
        if !priority {
            self.submit_data(subpartition, false)?;
            if !self.parts.port.has_room_for_part().map_err(fault)? {
                return Ok(Err(Lack::Room));
            }
        }
        self.submit(&Submission::Event { subpartition, payload: payload.to_vec(), priority })?;
        if let Some(builder) = self.builders.get_mut(subpartition as usize) {
            builder.events += 1;
        }
        Ok(Ok(Emitted::Done(())))
    }

    /// Whether the consumer of a subpartition takes another event.
    fn has_event_window(&self, subpartition: u32) -> bool {
        let events = self.builders.get(subpartition as usize).map_or(0, |builder| builder.events);
        events.saturating_sub(self.parts.port.cell(subpartition).events_done) < self.events_max
    }

    /// Closes every segment and every subpartition. Lacks something only if a rest is there, which comes first.
    pub(crate) fn end(&mut self) -> Result<Result<(), Lack>, Error> {
        self.look()?;
        if self.has_rests() {
            return Ok(Err(Lack::Room));
        }
        for subpartition in 0..self.subpartitions() {
            self.close(subpartition)?;
            self.submit(&Submission::End { subpartition })?;
        }
        self.parts.clock.handle_flushed();
        Ok(Ok(()))
    }
}

/// The region is smaller than the daemon said.
#[cold]
fn outside() -> Error {
    Error::protocol("a segment lies outside of its region")
}
