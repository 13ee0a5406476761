//! Where everything lies in shared memory, said once.
//!
//! Four kinds of memfd, all made and sealed by the daemon and mapped whole by both sides. Everything is a 64-bit
//! word in the machine's byte order (both sides run on one machine). The first line is the same in all:
//!
//! ```text
//! byte  0  MAGIC         "WEIR-IPC"
//!       8  version       LAYOUT_VERSION in the low half, kind of memfd in the high half
//!      16  bytes         size of the memfd
//!      24  first number  segments                                  }  what the places below
//!      32  second number subpartitions | channels                  }  were computed from
//!      40  zero up to 128
//! ```
//!
//! Written by the daemon before the client gets the memfd, checked by the client once, never read by the daemon.
//! `→` means: written by the client, read by the daemon; `←` the reverse. Places are aligned to 64 bytes.
//!
//! **Partition** (kind 1)
//! ```text
//! header            128
//! client waits      128  ⇄ word 0: not 0 = the client sleeps, or is about to (`signal`)
//! events taken      128  ← word 0: client events copied out by the daemon; event n lies in slot n mod 64
//! submit ring            → `Submission` entries; capacity: power of two >= 2 segments + 2 subpartitions + 64
//! return ring            ← `Returned` entries;   capacity: power of two >= segments + 2
//! failure           576  ← word 0: bytes of the text, then the text; valid once a `Failed` entry was taken
//! subpartition cells     ← 64 each: credit, sent segments, acked bytes, consumed bytes, events done,
//!                          not 0 = its consumer is gone, bound of bytes on their way (0 = none), 1 spare
//! wait cell         128  → sequence, what is waited for (kind | subpartition << 32), since (ns), last subpartition;
//!                          time (ns) and number of waits for the pool, for any, for the ring; 6 spare (`wait_cell`)
//! wait cells             → 32 for each subpartition: time and number of waits at its quota, at its event window
//! event slots            → 64 of 1 KiB, from the next page on
//! ```
//! **Gate** (kind 2)
//! ```text
//! header            128
//! client waits      128  ⇄ as above
//! deliver ring           ← `Delivered` entries;  capacity: power of two >= 2 segments + 2 channels + 64
//! priority ring          ← the same, 64, read first: priority events only
//! give-back ring         → `GivenBack` entries;  capacity: that of the deliver ring
//! failures               ← 576 for each channel, as above
//! event slots            ← 64 of 1 KiB, from the next page on
//! ```
//! **Session** (kind 3), one for each attachment
//! ```text
//! header            128
//! daemon parked     128  ⇄ word 0: not 0 = the shard sleeps, or is about to (`signal`)
//! dirty bitmap      512  ⇄ 4096 bits; bit n = ring n of this attachment has news for the daemon
//! ```
//! **Tasks** (kind 4), one for each attachment
//! ```text
//! header            128
//! task cells       4096  → 64 of 64 bytes: sequence, state, since (ns), totals (ns) of idle, busy, soft, hard, 1 spare
//! ```
//!
//! **Entries** are 4 words; unused bits are zero, and an entry in which they are not is refused.
//! ```text
//! word 0   kind (8 bits) | flags (8) | zero (16) | subpartition, channel or failure code (32)
//! Data     word 1: segment | offset << 32      word 2: bytes | records << 32
//! Event    word 1: slot                        word 2: bytes
//! Lent     as Data; the segment is one of the region of the channel's producer
//! give back: Data, Lent word 1: segment | bytes << 32      Event word 1: slot
//! return:    Segment word 1: segment
//! ```

use std::io;

use crate::ring::words_of;
use crate::signal::{DIRTY_WORDS, RINGS_MAX};

/// First word of every memfd: `WEIR-IPC` in little endian.
pub const MAGIC: u64 = u64::from_le_bytes(*b"WEIR-IPC");
/// Version of everything on this page. Two sides of different versions do not attach.
pub const LAYOUT_VERSION: u32 = 3;

/// Event slots of a partition, and of a gate.
pub const EVENT_SLOTS: u32 = 64;
/// Event slots of a gate that only priority events may take, so that ordinary ones never hold them up.
pub const PRIORITY_EVENT_SLOTS: u32 = 16;
/// Longest payload of an event, in bytes.
pub const EVENT_BYTES_MAX: usize = 1024;
/// Longest text of a failure, in bytes; longer ones are cut.
pub const FAILURE_TEXT_BYTES_MAX: usize = 512;
/// Entries of a gate's priority ring.
pub const PRIORITY_RING_ENTRIES: u32 = 64;
/// Rings that one attachment may have, partitions and gates together.
pub const ATTACHMENT_RINGS_MAX: u32 = RINGS_MAX;
/// Tasks that one attachment may have.
pub const TASKS_MAX: u32 = 64;
/// Most segments of one partition or gate.
pub const SEGMENTS_MAX: u32 = 1 << 20;
/// Most subpartitions of a partition, and channels of a gate.
pub const CHANNELS_MAX: u32 = 4096;

const HEADER_BYTES: usize = 128;
const LINE_BYTES: usize = 128;
const FAILURE_CELL_BYTES: usize = 576;
const PAGE_BYTES: usize = 4096;

/// Bytes of one subpartition cell.
pub(crate) const SUBPARTITION_CELL_BYTES: usize = 64;
/// Bytes of a partition's wait cell.
pub(crate) const WAIT_CELL_BYTES: usize = 128;
/// Bytes of one subpartition's wait cell.
pub(crate) const SUBPARTITION_WAIT_CELL_BYTES: usize = 32;
/// Bytes of one task cell.
pub(crate) const TASK_CELL_BYTES: usize = 64;

/// Kind of a memfd, as in its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Kind {
    Partition = 1,
    Gate = 2,
    Session = 3,
    Tasks = 4,
}

/// What a memfd's header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: Kind,
    /// Size of the memfd.
    pub(crate) bytes: usize,
    /// Of them, what is allocated when it is made: all but event slots. Not in the header itself.
    pub(crate) allocated: usize,
    pub(crate) first: u32,
    pub(crate) second: u32,
}

/// Words of a header that are not zero.
pub(crate) const HEADER_WORDS: usize = 5;

impl Header {
    /// The header's words.
    pub(crate) fn words(&self) -> [u64; HEADER_WORDS] {
        let version = u64::from(LAYOUT_VERSION) | u64::from(self.kind as u32) << 32;
        [MAGIC, version, self.bytes as u64, self.first.into(), self.second.into()]
    }

    /// What each word is, for messages.
    pub(crate) const NAMES: [&str; HEADER_WORDS] =
        ["magic", "version and kind", "bytes", "first number", "second number"];
}

/// A run of bytes inside a memfd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) at: usize,
    pub(crate) bytes: usize,
}

/// A ring inside a memfd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RingPlace {
    pub(crate) place: Place,
    pub(crate) capacity: u32,
}

/// Hands out places one behind the other.
struct Planner {
    at: usize,
}

impl Planner {
    fn new() -> Self {
        Self { at: HEADER_BYTES }
    }

    fn place(&mut self, bytes: usize) -> Place {
        let place = Place { at: self.at, bytes };
        self.at = (self.at + bytes).next_multiple_of(64);
        place
    }

    fn ring(&mut self, capacity: u32) -> RingPlace {
        RingPlace { place: self.place(words_of(capacity) * 8), capacity }
    }

    /// Everything so far, in whole pages.
    fn bytes(&self) -> usize {
        self.at.next_multiple_of(PAGE_BYTES)
    }

    /// The event slots, which start a page, so that those of a partition or gate without events take no memory.
    fn slots(&mut self) -> Place {
        self.at = self.bytes();
        self.place(EVENT_BYTES_MAX * EVENT_SLOTS as usize)
    }
}

/// Refuses a number that is not from 1 to `most`.
fn check_number(name: &str, found: u32, most: u32) -> io::Result<()> {
    if (1..=most).contains(&found) {
        return Ok(());
    }
    let text = format!("{name} is {found}; needed: 1 to {most}");
    Err(io::Error::new(io::ErrorKind::InvalidInput, text))
}

/// What the places in a partition's memfd follow from. Both sides must state it alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionLayout {
    /// Segments of its region, 1 to [`SEGMENTS_MAX`].
    pub segments: u32,
    /// Its subpartitions, 1 to [`CHANNELS_MAX`]; one for all consumers with `broadcast`.
    pub subpartitions: u32,
}

/// The places in a partition's memfd.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PartitionPlaces {
    pub(crate) header: Header,
    pub(crate) waits: Place,
    pub(crate) events_taken: Place,
    pub(crate) submit: RingPlace,
    pub(crate) returns: RingPlace,
    pub(crate) failure: Place,
    pub(crate) cells: Place,
    pub(crate) wait_cell: Place,
    pub(crate) wait_cells: Place,
    pub(crate) slots: Place,
}

impl PartitionLayout {
    /// Its places.
    pub(crate) fn places(&self) -> io::Result<PartitionPlaces> {
        check_number("segments", self.segments, SEGMENTS_MAX)?;
        check_number("subpartitions", self.subpartitions, CHANNELS_MAX)?;
        let mut planner = Planner::new();
        let waits = planner.place(LINE_BYTES);
        let events_taken = planner.place(LINE_BYTES);
        let submit = planner.ring((2 * self.segments + 2 * self.subpartitions + 64).next_power_of_two());
        let returns = planner.ring((self.segments + 2).next_power_of_two());
        let failure = planner.place(FAILURE_CELL_BYTES);
        let cells = planner.place(SUBPARTITION_CELL_BYTES * self.subpartitions as usize);
        let wait_cell = planner.place(WAIT_CELL_BYTES);
        let wait_cells = planner.place(SUBPARTITION_WAIT_CELL_BYTES * self.subpartitions as usize);
        let (allocated, slots) = (planner.bytes(), planner.slots());
        let (kind, bytes) = (Kind::Partition, planner.bytes());
        let header = Header { kind, bytes, allocated, first: self.segments, second: self.subpartitions };
        Ok(PartitionPlaces {
            header,
            waits,
            events_taken,
            submit,
            returns,
            failure,
            cells,
            wait_cell,
            wait_cells,
            slots,
        })
    }
}

/// What the places in a gate's memfd follow from. Both sides must state it alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GateLayout {
    /// Segments of its region, 1 to [`SEGMENTS_MAX`].
    pub segments: u32,
    /// Its channels, 1 to [`CHANNELS_MAX`].
    pub channels: u32,
}

/// The places in a gate's memfd.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GatePlaces {
    pub(crate) header: Header,
    pub(crate) waits: Place,
    pub(crate) deliver: RingPlace,
    pub(crate) priority: RingPlace,
    pub(crate) give_back: RingPlace,
    pub(crate) failures: Place,
    pub(crate) slots: Place,
}

impl GateLayout {
    /// Its places.
    pub(crate) fn places(&self) -> io::Result<GatePlaces> {
        check_number("segments", self.segments, SEGMENTS_MAX)?;
        check_number("channels", self.channels, CHANNELS_MAX)?;
        let capacity = (2 * self.segments + 2 * self.channels + 64).next_power_of_two();
        let mut planner = Planner::new();
        let waits = planner.place(LINE_BYTES);
        let deliver = planner.ring(capacity);
        let priority = planner.ring(PRIORITY_RING_ENTRIES);
        let give_back = planner.ring(capacity);
        let failures = planner.place(FAILURE_CELL_BYTES * self.channels as usize);
        let (allocated, slots) = (planner.bytes(), planner.slots());
        let (kind, bytes) = (Kind::Gate, planner.bytes());
        let header = Header { kind, bytes, allocated, first: self.segments, second: self.channels };
        Ok(GatePlaces { header, waits, deliver, priority, give_back, failures, slots })
    }
}

/// The failure cell of channel `index` (0 for a partition) among `failures`.
pub(crate) fn failure_place(failures: Place, index: u32) -> Place {
    Place { at: failures.at + index as usize * FAILURE_CELL_BYTES, bytes: FAILURE_CELL_BYTES }
}

/// The places in an attachment's session page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SessionPlaces {
    pub(crate) header: Header,
    pub(crate) parked: Place,
    pub(crate) dirty: Place,
}

/// The places in a session page.
pub(crate) fn session_places() -> SessionPlaces {
    let mut planner = Planner::new();
    let parked = planner.place(LINE_BYTES);
    let dirty = planner.place(DIRTY_WORDS * 8);
    let bytes = planner.bytes();
    let header = Header { kind: Kind::Session, bytes, allocated: bytes, first: 0, second: 0 };
    SessionPlaces { header, parked, dirty }
}

/// The header and the cells of a task page.
pub(crate) fn task_places() -> (Header, Place) {
    let mut planner = Planner::new();
    let cells = planner.place(TASK_CELL_BYTES * TASKS_MAX as usize);
    let bytes = planner.bytes();
    (Header { kind: Kind::Tasks, bytes, allocated: bytes, first: TASKS_MAX, second: 0 }, cells)
}

#[cfg(all(test, not(loom)))]
mod tests;
