//! Both ends of an input gate's shared memory: [`GateEndpoint`] in the daemon, [`GatePort`] in the client.
//! [`crate::layout`] has the picture.
//!
//! The daemon delivers slices that it has copied into the gate's region, or that lie in the region of a producer on the
//! same node; the client reads them in place and gives each one back. Priority events have a ring of their own, which the client reads first.
//!
//! **Room.** Each slice and each event delivered is given back by exactly one entry. The daemon never lets more be
//! outstanding than the give-back ring holds, so giving back never waits; and since whatever fills the deliver ring
//! is given back sooner or later, a daemon that found no room is told when to look again: by the client's mark.
//!
//! **Events** go through 64 slots, of which ordinary events may take 48. The client copies the payload out when it
//! takes the entry; the slot comes back with the event's give-back entry. Failure texts have a cell per channel and
//! need no slot.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::entry::{DeliverEntry, Delivered, GiveBackEntry, GivenBack};
use crate::fault::IpcFault;
use crate::layout::{
    EVENT_BYTES_MAX, EVENT_SLOTS, GateLayout, GatePlaces, PRIORITY_EVENT_SLOTS, PRIORITY_RING_ENTRIES, Place,
    failure_place,
};
use crate::memory::{Memory, no_ring};
use crate::ring::{Consumer, CursorNames, Producer};
use crate::session::SessionPort;
use crate::signal::{WaitView, Waiter, Waker};
use crate::slots::{EventSlots, FailureCell};

const DELIVER: CursorNames = CursorNames { tail: "deliver.tail", head: "deliver.head" };
const PRIORITY: CursorNames = CursorNames { tail: "priority.tail", head: "priority.head" };
const GIVE_BACK: CursorNames = CursorNames { tail: "give_back.tail", head: "give_back.head" };

/// Which event slots are with the client, and for which channel.
struct SlotTable {
    /// Bit n: slot n is free.
    free: u64,
    /// The channel whose event lies, or lay last, in each slot.
    channels: [u32; EVENT_SLOTS as usize],
}

impl SlotTable {
    fn new() -> Self {
        Self { free: u64::MAX, channels: [0; EVENT_SLOTS as usize] }
    }

    /// Whether an event of this kind may take a slot.
    fn has_free(&self, priority: bool) -> bool {
        self.free.count_ones() > if priority { 0 } else { PRIORITY_EVENT_SLOTS }
    }

    /// Takes the first free slot for an event of `channel`.
    fn take(&mut self, channel: u32, priority: bool) -> Option<u32> {
        if !self.has_free(priority) {
            return None;
        }
        let slot = self.free.trailing_zeros();
        *self.channels.get_mut(slot as usize)? = channel;
        self.free &= !(1 << slot);
        Some(slot)
    }

    /// Frees a slot that holds an event of `channel`.
    fn give_back(&mut self, slot: u32, channel: u32) -> Result<(), IpcFault> {
        let bit = 1_u64.checked_shl(slot).unwrap_or_default();
        if bit & !self.free == 0 {
            return Err(IpcFault::new(
                "give_back.slot",
                slot.into(),
                "a slot whose event was not given back yet",
            ));
        }
        match self.channels.get(slot as usize) {
            Some(needed) if *needed != channel => {
                Err(IpcFault::new("give_back.channel", channel.into(), needed.to_string()))
            }
            _ => {
                self.free |= bit;
                Ok(())
            }
        }
    }
}

/// The daemon's end.
pub struct GateEndpoint {
    layout: GateLayout,
    memory: Memory,
    failures: Place,
    deliver: Producer,
    priority: Producer,
    give_back: Consumer,
    waker: Waker,
    slots: EventSlots,
    table: SlotTable,
    /// Slices with the client: delivered and not given back.
    outstanding: u64,
    /// Most of them: what the give-back ring holds beside every event slot.
    outstanding_max: u64,
}

impl GateEndpoint {
    /// Makes the memory. The descriptor is for the client.
    ///
    /// # Errors
    /// A number of the layout is out of its bounds (`InvalidInput`), or the kernel refuses.
    pub fn create(layout: &GateLayout) -> io::Result<(Self, OwnedFd)> {
        let places = layout.places()?;
        let (memory, fd) = Memory::create("weir-gate", &places.header)?;
        Ok((Self::over(memory, layout, &places)?, fd))
    }

    /// The daemon's end of this memory.
    fn over(memory: Memory, layout: &GateLayout, places: &GatePlaces) -> io::Result<Self> {
        let GatePlaces { deliver, priority, give_back, failures, .. } = *places;
        let producer = |ring: crate::layout::RingPlace, names| {
            Producer::new(memory.words(ring.place)?, ring.capacity, names).ok_or_else(no_ring)
        };
        Ok(Self {
            layout: *layout,
            failures,
            deliver: producer(deliver, DELIVER)?,
            priority: producer(priority, PRIORITY)?,
            give_back: Consumer::new(memory.words(give_back.place)?, give_back.capacity, GIVE_BACK)
                .ok_or_else(no_ring)?,
            waker: Waker::new(memory.words(places.waits)?),
            slots: EventSlots::new(memory.words(places.slots)?),
            table: SlotTable::new(),
            outstanding: 0,
            outstanding_max: u64::from(give_back.capacity) - u64::from(EVENT_SLOTS),
            memory,
        })
    }

    /// Whether [`Self::push`] takes whatever comes next.
    ///
    /// # Errors
    /// The client's cursor cannot be true: detach it.
    pub fn has_room(&mut self) -> Result<bool, IpcFault> {
        let slot = self.table.has_free(false);
        Ok(slot && self.outstanding < self.outstanding_max && self.deliver.has_room(1)?)
    }

    /// Whether [`Self::push_priority`] takes an event.
    ///
    /// # Errors
    /// The client's cursor cannot be true: detach it.
    pub fn has_priority_room(&mut self) -> Result<bool, IpcFault> {
        Ok(self.table.has_free(true) && self.priority.has_room(1)?)
    }

    /// Writes a delivery behind the others, which the client sees from the next [`Self::client_waits`] on. `false`:
    /// no room for this one, and nothing was written. An end or a failure needs room in the ring only, so that the
    /// last word on a channel gets through to a client that holds everything else.
    ///
    /// # Errors
    /// The client's cursor cannot be true: detach it. Or a number is outside this gate's layout, or a payload
    /// longer than [`EVENT_BYTES_MAX`]: an error of this daemon.
    pub fn push(&mut self, delivered: &Delivered) -> Result<bool, IpcFault> {
        if !self.deliver.has_room(1)? {
            return Ok(false);
        }
        let entry = match *delivered {
            Delivered::Data { .. } | Delivered::Lent { .. } if self.outstanding >= self.outstanding_max => {
                return Ok(false);
            }
            Delivered::Data { channel, segment, offset, bytes, records } => {
                self.outstanding += 1;
                DeliverEntry::Data { channel, segment, offset, bytes, records }
            }
            Delivered::Lent { channel, segment, offset, bytes, records } => {
                self.outstanding += 1;
                DeliverEntry::Lent { channel, segment, offset, bytes, records }
            }
            Delivered::Event { channel, ref payload, priority } => {
                let Some(entry) = self.event(channel, payload, priority, false)? else { return Ok(false) };
                entry
            }
            Delivered::End { channel } => DeliverEntry::End { channel },
            Delivered::Failed { channel, code, ref text } => {
                IpcFault::check_below("deliver.channel", channel, self.layout.channels)?;
                if let Ok(words) = self.memory.words(failure_place(self.failures, channel)) {
                    FailureCell::new(words).write(text);
                }
                DeliverEntry::Failed { channel, code }
            }
        };
        self.deliver.push(entry.encode())
    }

    /// Writes a priority event into the ring that is read first; as [`Self::push`].
    ///
    /// # Errors
    /// As [`Self::push`].
    pub fn push_priority(&mut self, channel: u32, payload: &[u8]) -> Result<bool, IpcFault> {
        if !self.has_priority_room()? {
            return Ok(false);
        }
        let Some(entry) = self.event(channel, payload, true, true)? else { return Ok(false) };
        self.priority.push(entry.encode())
    }

    /// Puts a payload into a slot, from all slots if `any`, else from those of ordinary events.
    fn event(
        &mut self,
        channel: u32,
        payload: &[u8],
        priority: bool,
        any: bool,
    ) -> Result<Option<DeliverEntry>, IpcFault> {
        if payload.len() > EVENT_BYTES_MAX {
            let needed = format!("at most {EVENT_BYTES_MAX}");
            return Err(IpcFault::new("deliver.event_bytes", payload.len() as u64, needed));
        }
        let Some(slot) = self.table.take(channel, any) else { return Ok(None) };
        self.slots.write(slot, payload);
        Ok(Some(DeliverEntry::Event { channel, slot, bytes: payload.len() as u32, priority }))
    }

    /// Takes the oldest entry given back.
    ///
    /// Checked here: cursors, kind, flags, unused bits, bounds of segment, channel and slot, that no more is given
    /// back than was delivered, and that an event's slot is with the client. Not checked here: whether the segment
    /// has a delivered slice of that many bytes.
    ///
    /// # Errors
    /// Something that the client wrote cannot be true: detach it.
    pub fn pop(&mut self) -> Result<Option<GivenBack>, IpcFault> {
        let Some(entry) = self.give_back.pop()? else { return Ok(None) };
        Ok(Some(match GiveBackEntry::decode(entry, &self.layout)? {
            GiveBackEntry::Data { segment, bytes } => {
                self.count_back(segment)?;
                GivenBack::Data { segment, bytes }
            }
            GiveBackEntry::Lent { channel, segment, bytes } => {
                self.count_back(segment)?;
                GivenBack::Lent { channel, segment, bytes }
            }
            GiveBackEntry::Event { channel, slot } => {
                self.table.give_back(slot, channel)?;
                GivenBack::Event { channel }
            }
        }))
    }

    /// One slice less is with the client.
    fn count_back(&mut self, segment: u32) -> Result<(), IpcFault> {
        self.outstanding = self.outstanding.checked_sub(1).ok_or_else(|| {
            IpcFault::new("give_back.segment", segment.into(), "none: every slice was given back")
        })?;
        Ok(())
    }

    /// Makes everything pushed visible and says whether the client may sleep: then ring it once
    /// ([`crate::session::SessionEndpoint::ring_client`]). Call it once in each turn that pushed.
    pub fn client_waits(&mut self) -> bool {
        // Priority events first: a client that sees the slices behind them has seen them.
        self.priority.publish();
        self.deliver.publish();
        self.waker.take()
    }
}

/// The client's end. It belongs to one thread at a time.
pub struct GatePort {
    layout: GateLayout,
    ring: u32,
    session: Arc<SessionPort>,
    memory: Memory,
    failures: Place,
    deliver: Consumer,
    priority: Consumer,
    give_back: Producer,
    waiter: Waiter,
    slots: EventSlots,
    /// Events taken and not given back: channel and slot, in the order taken.
    events: Vec<(u32, u32)>,
    /// An event was given back that is not published: its producer may wait for its slot.
    has_event: bool,
}

impl GatePort {
    /// Maps the memory that the daemon passed. `ring` is the number that the daemon gave with it.
    ///
    /// # Errors
    /// The memory does not have this layout, or the kernel refuses.
    pub fn attach(
        fd: OwnedFd,
        layout: &GateLayout,
        ring: u32,
        session: Arc<SessionPort>,
    ) -> io::Result<Self> {
        let places = layout.places()?;
        Self::over(Memory::attach(fd, &places.header)?, layout, &places, ring, session)
    }

    /// The client's end of this memory.
    fn over(
        memory: Memory,
        layout: &GateLayout,
        places: &GatePlaces,
        ring: u32,
        session: Arc<SessionPort>,
    ) -> io::Result<Self> {
        let GatePlaces { deliver, priority, give_back, failures, .. } = *places;
        let consumer = |ring: crate::layout::RingPlace, names| {
            Consumer::new(memory.words(ring.place)?, ring.capacity, names).ok_or_else(no_ring)
        };
        Ok(Self {
            layout: *layout,
            ring,
            session,
            failures,
            deliver: consumer(deliver, DELIVER)?,
            priority: consumer(priority, PRIORITY)?,
            give_back: Producer::new(memory.words(give_back.place)?, give_back.capacity, GIVE_BACK)
                .ok_or_else(no_ring)?,
            waiter: Waiter::new(memory.words(places.waits)?),
            slots: EventSlots::new(memory.words(places.slots)?),
            events: Vec::with_capacity(EVENT_SLOTS as usize),
            has_event: false,
            memory,
        })
    }

    /// Takes the oldest priority event, or else the oldest delivery. An event's payload is copied out.
    ///
    /// # Errors
    /// Something that the daemon wrote cannot be true.
    pub fn pop(&mut self) -> Result<Option<Delivered>, IpcFault> {
        let entry = match self.priority.pop()? {
            Some(entry) => entry,
            None => match self.deliver.pop()? {
                Some(entry) => entry,
                None => return Ok(None),
            },
        };
        Ok(Some(match DeliverEntry::decode(entry, &self.layout)? {
            DeliverEntry::Data { channel, segment, offset, bytes, records } => {
                Delivered::Data { channel, segment, offset, bytes, records }
            }
            DeliverEntry::Lent { channel, segment, offset, bytes, records } => {
                Delivered::Lent { channel, segment, offset, bytes, records }
            }
            DeliverEntry::Event { channel, slot, bytes, priority } => {
                self.events.push((channel, slot));
                Delivered::Event { channel, payload: self.slots.read(slot, bytes), priority }
            }
            DeliverEntry::End { channel } => Delivered::End { channel },
            DeliverEntry::Failed { channel, code } => {
                let words = self.memory.words(failure_place(self.failures, channel));
                let text = words.map(|words| FailureCell::new(words).read()).unwrap_or_default();
                Delivered::Failed { channel, code, text }
            }
        }))
    }

    /// Gives a slice back: once for each [`Delivered::Data`], in any order, with its own length. After this call
    /// its bytes may change. Takes effect at the daemon with [`Self::publish`].
    ///
    /// # Errors
    /// The daemon's cursor cannot be true, or more is given back than was delivered.
    pub fn give_back_data(&mut self, segment: u32, bytes: u32) -> Result<(), IpcFault> {
        self.push_back(GiveBackEntry::Data { segment, bytes })
    }

    /// Gives a slice back that lies in the region of a channel's producer: once for each [`Delivered::Lent`]. After this
    /// call its bytes may change. As [`Self::give_back_data`] otherwise.
    ///
    /// # Errors
    /// As [`Self::give_back_data`].
    pub fn give_back_lent(&mut self, channel: u32, segment: u32, bytes: u32) -> Result<(), IpcFault> {
        self.push_back(GiveBackEntry::Lent { channel, segment, bytes })
    }

    /// Says that an event of `channel` was consumed: once for each [`Delivered::Event`]. Takes effect at the daemon
    /// with [`Self::publish`].
    ///
    /// # Errors
    /// The daemon's cursor cannot be true, or no event of this channel is with the client.
    pub fn give_back_event(&mut self, channel: u32) -> Result<(), IpcFault> {
        let Some(index) = self.events.iter().position(|(of, _)| *of == channel) else {
            return Err(IpcFault::new("give_back.channel", channel.into(), "a channel with an event taken"));
        };
        let (_, slot) = self.events.remove(index);
        self.has_event = true;
        self.push_back(GiveBackEntry::Event { channel, slot })
    }

    fn push_back(&mut self, entry: GiveBackEntry) -> Result<(), IpcFault> {
        if self.give_back.push(entry.encode())? {
            return Ok(());
        }
        let capacity = self.give_back.capacity();
        Err(IpcFault::new("give_back.tail", capacity, "no more given back than was delivered"))
    }

    /// Makes everything given back visible, marks the ring dirty and rings the daemon if it sleeps; for slices alone not
    /// if it looks again soon. Does nothing if nothing was given back since the last call. Call it before waiting, and
    /// often enough that credit flows.
    pub fn publish(&mut self) {
        if !self.give_back.publish() {
            return;
        }
        if std::mem::take(&mut self.has_event) {
            self.session.mark(self.ring);
        } else {
            self.session.mark_returns(self.ring);
        }
    }

    /// Says that the client is about to sleep. It must try [`Self::pop`] again and only then wait
    /// ([`SessionPort::wait`]).
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

const _: () =
    assert!(PRIORITY_RING_ENTRIES >= EVENT_SLOTS, "a priority event with a slot has room in its ring");

#[cfg(all(test, not(loom)))]
mod tests;
