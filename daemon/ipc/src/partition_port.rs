//! Both ends of a result partition's shared memory: [`PartitionEndpoint`] in the daemon, [`PartitionPort`] in the
//! client. [`crate::layout`] has the picture.
//!
//! The life of a submission: the client writes slices into segments of its region, submits them here and marks its
//! ring dirty; the daemon takes them out, later returns each segment whose slices have all left, and keeps the
//! subpartition cells up to date, from which the client sees who is slow.
//!
//! **Room.** The submit ring has room for two entries per segment and two per subpartition, and 64 more. The client
//! submits a *part* of a segment only if [`PartitionPort::has_room_for_part`] says so, and whatever closes a segment
//! or a subpartition always: so closing never waits. The return ring has room for every segment.
//!
//! **Events** go through 64 slots, used in turn: event n lies in slot n mod 64. The daemon copies the payload out
//! when it takes the entry and publishes how many it has taken; that frees the slot.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::entry::{ReturnEntry, Returned, Submission, SubmitEntry};
use crate::fault::IpcFault;
use crate::layout::{
    EVENT_BYTES_MAX, EVENT_SLOTS, PartitionLayout, PartitionPlaces, SUBPARTITION_CELL_BYTES, failure_place,
};
use crate::memory::{Memory, no_ring};
use crate::primitive::Ordering;
use crate::ring::{Consumer, CursorNames, Producer};
use crate::session::SessionPort;
use crate::signal::{WaitView, Waiter, Waker};
use crate::slots::{EventSlots, FailureCell};
use crate::wait_cell::{WaitCell, WaitCellReader, WaitKind};
use crate::words::Words;

const SUBMIT: CursorNames = CursorNames { tail: "submit.tail", head: "submit.head" };
const RETURN: CursorNames = CursorNames { tail: "return.tail", head: "return.head" };

const CELL_WORDS: usize = SUBPARTITION_CELL_BYTES / 8;

/// Word of a cell that says whether the consumer is gone.
const GONE_WORD: usize = 5;

/// Word of a cell that bounds what is on its way to the consumer.
const BOUND_WORD: usize = 6;

/// What it holds without a bound, as in memory that nobody has written.
const NO_BOUND: u64 = 0;

/// What the daemon says about one subpartition. All but `credit` and `buffer_bytes` only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SubpartitionCell {
    /// Segments that its channel may still open at the receiver.
    pub credit: u32,
    /// Segments that have left its queue, ever.
    pub sent_segments: u64,
    /// Bytes that have reached the consumer's receive region, ever.
    pub acked_bytes: u64,
    /// Bytes that the consumer's application has given back, ever.
    pub consumed_bytes: u64,
    /// Events (without the end of data) that no longer count against the channel's event window, ever. Events that
    /// the client has submitted, less these, are in flight.
    pub events_done: u64,
    /// Its consumer is gone and the partition goes on without it: what is submitted for it is dropped. Never taken
    /// back.
    pub is_gone: bool,
    /// Bytes that its consumer wants on their way to it at most; none: there is no bound. See
    /// `BufferBound` of weir-flow for what a client makes of it.
    pub buffer_bytes: Option<u32>,
}

/// What the daemon publishes about one subpartition: a [`SubpartitionCell`] whose events are given as those in
/// flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SubpartitionUpdate {
    /// See [`SubpartitionCell::credit`].
    pub credit: u32,
    /// See [`SubpartitionCell::sent_segments`].
    pub sent_segments: u64,
    /// See [`SubpartitionCell::acked_bytes`].
    pub acked_bytes: u64,
    /// See [`SubpartitionCell::consumed_bytes`].
    pub consumed_bytes: u64,
    /// Of the events taken from the submit ring and handed on, those that the consumer has not read yet.
    pub events_in_flight: u32,
    /// See [`SubpartitionCell::is_gone`].
    pub is_gone: bool,
    /// See [`SubpartitionCell::buffer_bytes`]. 0 counts as 1.
    pub buffer_bytes: Option<u32>,
}

/// The daemon's end.
pub struct PartitionEndpoint {
    layout: PartitionLayout,
    submit: Consumer,
    returns: Producer,
    waker: Waker,
    slots: EventSlots,
    failure: FailureCell,
    cells: Words,
    waits: WaitCellReader,
    events_taken: Words,
    taken: u64,
    /// Events taken, for each subpartition.
    taken_of: Vec<u64>,
}

impl PartitionEndpoint {
    /// Makes the memory. The descriptor is for the client.
    ///
    /// # Errors
    /// A number of the layout is out of its bounds (`InvalidInput`), or the kernel refuses.
    pub fn create(layout: &PartitionLayout) -> io::Result<(Self, OwnedFd)> {
        let places = layout.places()?;
        let (memory, fd) = Memory::create("weir-partition", &places.header)?;
        Ok((Self::over(&memory, layout, &places)?, fd))
    }

    /// The daemon's end of this memory.
    fn over(memory: &Memory, layout: &PartitionLayout, places: &PartitionPlaces) -> io::Result<Self> {
        let PartitionPlaces { submit, returns, .. } = *places;
        Ok(Self {
            layout: *layout,
            submit: Consumer::new(memory.words(submit.place)?, submit.capacity, SUBMIT)
                .ok_or_else(no_ring)?,
            returns: Producer::new(memory.words(returns.place)?, returns.capacity, RETURN)
                .ok_or_else(no_ring)?,
            waker: Waker::new(memory.words(places.waits)?),
            slots: EventSlots::new(memory.words(places.slots)?),
            failure: FailureCell::new(memory.words(failure_place(places.failure, 0))?),
            cells: memory.words(places.cells)?,
            waits: WaitCellReader::new(memory.words(places.wait_cell)?, memory.words(places.wait_cells)?),
            events_taken: memory.words(places.events_taken)?,
            taken: 0,
            taken_of: vec![0; layout.subpartitions as usize],
        })
    }

    /// Takes the oldest submission. An event's payload is copied and its slot is free afterwards.
    ///
    /// Checked here: cursors, kind, flags, unused bits, bounds of segment, subpartition, slot and event length. Not
    /// checked here: whether the client holds the segment, and whether offset and bytes lie inside it.
    ///
    /// # Errors
    /// Something that the client wrote cannot be true: detach it.
    pub fn pop(&mut self) -> Result<Option<Submission>, IpcFault> {
        let Some(entry) = self.submit.pop()? else { return Ok(None) };
        Ok(Some(match SubmitEntry::decode(entry, &self.layout)? {
            SubmitEntry::Data { subpartition, segment, offset, bytes, records, last } => {
                Submission::Data { subpartition, segment, offset, bytes, records, last }
            }
            SubmitEntry::End { subpartition } => Submission::End { subpartition },
            SubmitEntry::Event { subpartition, slot, bytes, priority } => {
                let needed = (self.taken % u64::from(EVENT_SLOTS)) as u32;
                if slot != needed {
                    return Err(IpcFault::new("submit.slot", slot.into(), needed.to_string()));
                }
                let payload = self.slots.read(slot, bytes);
                self.taken += 1;
                if let Some(taken) = self.taken_of.get_mut(subpartition as usize) {
                    *taken += 1;
                }
                // Release: pairs with the Acquire load in `PartitionPort::has_event_slot`; the payload was copied
                // before.
                self.events_taken.store(0, self.taken, Ordering::Release);
                Submission::Event { subpartition, payload, priority }
            }
        }))
    }

    /// Writes a return, which the client sees from the next [`Self::client_waits`] on. `false`: the ring is full,
    /// which for a segment means that the client holds fewer segments than it says: detach it.
    ///
    /// # Errors
    /// The client's cursor cannot be true: detach it.
    pub fn push_returned(&mut self, returned: &Returned) -> Result<bool, IpcFault> {
        if !self.returns.has_room(1)? {
            return Ok(false);
        }
        self.returns.push(match returned {
            Returned::Segment(segment) => ReturnEntry::Segment(*segment).encode(),
            Returned::Finished => ReturnEntry::Finished.encode(),
            Returned::Failed { code, text } => {
                self.failure.write(text);
                ReturnEntry::Failed { code: *code }.encode()
            }
        })
    }

    /// Publishes what is known of a subpartition. One out of range is ignored.
    pub fn publish(&mut self, subpartition: u32, update: &SubpartitionUpdate) {
        let Some(cell) = self.cells.part(subpartition as usize * CELL_WORDS, CELL_WORDS) else { return };
        let taken = self.taken_of.get(subpartition as usize).copied().unwrap_or_default();
        let done = taken.saturating_sub(update.events_in_flight.into());
        let words = [
            update.credit.into(),
            update.sent_segments,
            update.acked_bytes,
            update.consumed_bytes,
            done,
            update.is_gone.into(),
            update.buffer_bytes.map_or(NO_BOUND, |bytes| bytes.max(1).into()),
        ];
        for (index, word) in words.into_iter().enumerate() {
            // Release: pairs with the Acquire loads in `PartitionPort::cell`. Each number stands alone.
            cell.store(index, word, Ordering::Release);
        }
    }

    /// What the client says of its waits.
    #[must_use]
    pub fn waits(&self) -> &WaitCellReader {
        &self.waits
    }

    /// Makes every return pushed visible and says whether the client may sleep: then ring it once
    /// ([`crate::session::SessionEndpoint::ring_client`]). Call it once in each turn that pushed, published or took
    /// events.
    pub fn client_waits(&mut self) -> bool {
        self.returns.publish();
        self.waker.take()
    }
}

/// The client's end. It belongs to one thread at a time.
pub struct PartitionPort {
    layout: PartitionLayout,
    ring: u32,
    session: Arc<SessionPort>,
    submit: Producer,
    returns: Consumer,
    waiter: Waiter,
    slots: EventSlots,
    failure: FailureCell,
    cells: Words,
    waits: WaitCell,
    events_taken: Words,
    events_written: u64,
}

impl PartitionPort {
    /// Maps the memory that the daemon passed. `ring` is the number that the daemon gave with it.
    ///
    /// # Errors
    /// The memory does not have this layout, or the kernel refuses.
    pub fn attach(
        fd: OwnedFd,
        layout: &PartitionLayout,
        ring: u32,
        session: Arc<SessionPort>,
    ) -> io::Result<Self> {
        let places = layout.places()?;
        Self::over(&Memory::attach(fd, &places.header)?, layout, &places, ring, session)
    }

    /// The client's end of this memory.
    fn over(
        memory: &Memory,
        layout: &PartitionLayout,
        places: &PartitionPlaces,
        ring: u32,
        session: Arc<SessionPort>,
    ) -> io::Result<Self> {
        let PartitionPlaces { submit, returns, .. } = *places;
        Ok(Self {
            layout: *layout,
            ring,
            session,
            submit: Producer::new(memory.words(submit.place)?, submit.capacity, SUBMIT)
                .ok_or_else(no_ring)?,
            returns: Consumer::new(memory.words(returns.place)?, returns.capacity, RETURN)
                .ok_or_else(no_ring)?,
            waiter: Waiter::new(memory.words(places.waits)?),
            slots: EventSlots::new(memory.words(places.slots)?),
            failure: FailureCell::new(memory.words(failure_place(places.failure, 0))?),
            cells: memory.words(places.cells)?,
            waits: WaitCell::new(memory.words(places.wait_cell)?, memory.words(places.wait_cells)?),
            events_taken: memory.words(places.events_taken)?,
            events_written: 0,
        })
    }

    /// Whether a slice that does not close its segment, or an event, may be submitted: enough room stays for
    /// everything that closes something.
    ///
    /// # Errors
    /// The daemon's cursor cannot be true.
    pub fn has_room_for_part(&mut self) -> Result<bool, IpcFault> {
        let kept = u64::from(self.layout.segments) + u64::from(self.layout.subpartitions) + 64;
        self.submit.has_room(kept + 1)
    }

    /// Whether an event slot is free.
    #[must_use]
    pub fn has_event_slot(&self) -> bool {
        // Acquire: pairs with the Release store in `PartitionEndpoint::pop`, so that a slot is written again only
        // after its payload was copied out.
        let taken = self.events_taken.load(0, Ordering::Acquire);
        self.events_written.saturating_sub(taken) < EVENT_SLOTS.into()
    }

    /// Submits: writes the entry, publishes it, marks the ring dirty and rings the daemon if it sleeps. `false`: no
    /// room, or no event slot. Never `false` for an entry that closes a segment or a subpartition if
    /// [`Self::has_room_for_part`] was asked before all others.
    ///
    /// # Errors
    /// The daemon's cursor cannot be true, or the payload is longer than [`EVENT_BYTES_MAX`].
    pub fn submit(&mut self, submission: &Submission) -> Result<bool, IpcFault> {
        if !self.submit.has_room(1)? {
            return Ok(false);
        }
        let entry = match *submission {
            Submission::Data { subpartition, segment, offset, bytes, records, last } => {
                SubmitEntry::Data { subpartition, segment, offset, bytes, records, last }
            }
            Submission::End { subpartition } => SubmitEntry::End { subpartition },
            Submission::Event { subpartition, ref payload, priority } => {
                if payload.len() > EVENT_BYTES_MAX {
                    let needed = format!("at most {EVENT_BYTES_MAX}");
                    return Err(IpcFault::new("submit.event_bytes", payload.len() as u64, needed));
                }
                if !self.has_event_slot() {
                    return Ok(false);
                }
                let slot = (self.events_written % u64::from(EVENT_SLOTS)) as u32;
                self.slots.write(slot, payload);
                self.events_written += 1;
                SubmitEntry::Event { subpartition, slot, bytes: payload.len() as u32, priority }
            }
        };
        self.submit.push(entry.encode())?;
        self.submit.publish();
        self.session.mark(self.ring);
        Ok(true)
    }

    /// Takes the oldest return.
    ///
    /// # Errors
    /// Something that the daemon wrote cannot be true.
    pub fn pop(&mut self) -> Result<Option<Returned>, IpcFault> {
        let Some(entry) = self.returns.pop()? else { return Ok(None) };
        Ok(Some(match ReturnEntry::decode(entry, &self.layout)? {
            ReturnEntry::Segment(segment) => Returned::Segment(segment),
            ReturnEntry::Finished => Returned::Finished,
            ReturnEntry::Failed { code } => Returned::Failed { code, text: self.failure.read() },
        }))
    }

    /// What the daemon last said about a subpartition; zeros for one out of range.
    #[must_use]
    pub fn cell(&self, subpartition: u32) -> SubpartitionCell {
        let first = subpartition as usize * CELL_WORDS;
        // Acquire: pairs with the Release stores in `PartitionEndpoint::publish`.
        let word = |index| self.cells.load(first + index, Ordering::Acquire);
        SubpartitionCell {
            credit: u32::try_from(word(0)).unwrap_or(u32::MAX),
            sent_segments: word(1),
            acked_bytes: word(2),
            consumed_bytes: word(3),
            events_done: word(4),
            is_gone: word(GONE_WORD) != 0,
            buffer_bytes: Some(word(BOUND_WORD))
                .filter(|bytes| *bytes != NO_BOUND)
                .map(|bytes| u32::try_from(bytes).unwrap_or(u32::MAX)),
        }
    }

    /// [`SubpartitionCell::is_gone`] alone: one load, for a look before each record.
    #[inline]
    #[must_use]
    pub fn is_gone(&self, subpartition: u32) -> bool {
        // Acquire: pairs with the Release store in `PartitionEndpoint::publish`, after the numbers of the same cell.
        self.cells.load(subpartition as usize * CELL_WORDS + GONE_WORD, Ordering::Acquire) != 0
    }

    /// The client cannot go on for want of this, from `now_ns` on, in nanoseconds of CLOCK_MONOTONIC. Tells the daemon; it
    /// wakes nobody.
    pub fn begin_wait(&mut self, kind: WaitKind, now_ns: u64) {
        self.waits.begin(kind, now_ns);
    }

    /// The client goes on.
    pub fn end_wait(&mut self, now_ns: u64) {
        self.waits.end(now_ns);
    }

    /// Says that the client is about to sleep. It must look again at everything that it waits for ([`Self::pop`],
    /// [`Self::cell`], [`Self::has_event_slot`]) and only then wait ([`SessionPort::wait`]).
    pub fn announce_wait(&mut self) {
        self.waiter.announce();
    }

    /// A look at the announcement for other threads of the client.
    #[must_use]
    pub fn wait_view(&self) -> WaitView {
        self.waiter.view()
    }

    /// Takes the announcement back, after the wait or instead of it.
    pub fn cancel_wait(&mut self) {
        self.waiter.cancel();
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
