//! What the entries of the rings say, and how ([`crate::layout`] has the picture).
//!
//! Every `decode` checks the whole entry: kind, flags, unused bits, and each number whose bound the memory's layout
//! knows. Whether the numbers are *true* (a segment that the client holds, an offset inside it) is not for this
//! crate to say.

use crate::fault::IpcFault;
use crate::layout::{EVENT_BYTES_MAX, EVENT_SLOTS, GateLayout, PartitionLayout, SEGMENTS_MAX};
use crate::ring::Entry;

/// What a client's partition tells the daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Submission {
    /// A slice of a segment is to be sent.
    Data {
        /// Which subpartition.
        subpartition: u32,
        /// Which segment of the partition's region.
        segment: u32,
        /// Where in the segment the slice starts, in bytes.
        offset: u32,
        /// Its length in bytes. 0 with `last` closes a segment whose bytes were all submitted before.
        bytes: u32,
        /// Records that end in the slice.
        records: u32,
        /// No more slices of this segment come.
        last: bool,
    },
    /// An event is to be sent, at most [`EVENT_BYTES_MAX`] bytes.
    Event {
        /// Which subpartition.
        subpartition: u32,
        /// The client's bytes.
        payload: Vec<u8>,
        /// It overtakes data.
        priority: bool,
    },
    /// Nothing follows on this subpartition.
    End {
        /// Which subpartition.
        subpartition: u32,
    },
}

/// What the daemon tells a client's partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Returned {
    /// This segment is free again.
    Segment(u32),
    /// Every consumer has everything.
    Finished,
    /// The partition ended before its time. Said at most once.
    Failed {
        /// The failure's code.
        code: u16,
        /// One line, cut to [`crate::layout::FAILURE_TEXT_BYTES_MAX`].
        text: String,
    },
}

/// What the daemon tells a client's gate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delivered {
    /// A slice arrived. It is the client's until given back.
    Data {
        /// Which channel of the gate.
        channel: u32,
        /// Which segment of the gate's region.
        segment: u32,
        /// Where in the segment the slice starts, in bytes.
        offset: u32,
        /// Its length in bytes.
        bytes: u32,
        /// Records that end in the slice, as the producer counted them.
        records: u32,
    },
    /// A slice that lies in the region of the channel's producer, which the client has from the gate's region socket
    /// ([`crate::attach::socket::receive_region`]). It is the client's until given back.
    Lent {
        /// Which channel of the gate.
        channel: u32,
        /// Which segment of the producer's region.
        segment: u32,
        /// Where in the segment the slice starts, in bytes.
        offset: u32,
        /// Its length in bytes.
        bytes: u32,
        /// Records that end in the slice, as the producer counted them.
        records: u32,
    },
    /// An event arrived, at most [`EVENT_BYTES_MAX`] bytes. It counts as unread until given back.
    Event {
        /// Which channel of the gate.
        channel: u32,
        /// The producer's bytes.
        payload: Vec<u8>,
        /// It overtook data.
        priority: bool,
    },
    /// Nothing follows on this channel: its producer finished.
    End {
        /// Which channel of the gate.
        channel: u32,
    },
    /// Nothing follows on this channel: it failed. Said at most once for a channel.
    Failed {
        /// Which channel of the gate.
        channel: u32,
        /// The failure's code.
        code: u16,
        /// One line, cut to [`crate::layout::FAILURE_TEXT_BYTES_MAX`].
        text: String,
    },
}

/// What a client's gate gives back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GivenBack {
    /// A slice: one [`Delivered::Data`].
    Data {
        /// Which segment of the gate's region.
        segment: u32,
        /// The slice's length in bytes.
        bytes: u32,
    },
    /// A slice: one [`Delivered::Lent`].
    Lent {
        /// Which channel of the gate.
        channel: u32,
        /// Which segment of the producer's region.
        segment: u32,
        /// The slice's length in bytes.
        bytes: u32,
    },
    /// An event was consumed: one [`Delivered::Event`].
    Event {
        /// Which channel of the gate.
        channel: u32,
    },
}

/// Kind numbers in entries.
mod kind {
    pub(super) const DATA: u64 = 1;
    pub(super) const EVENT: u64 = 2;
    pub(super) const END: u64 = 3;
    pub(super) const FAILED: u64 = 4;
    pub(super) const LENT: u64 = 5;

    pub(super) const SEGMENT: u64 = 1;
    pub(super) const FINISHED: u64 = 2;
}

const FLAG_LAST: u64 = 1;
const FLAG_PRIORITY: u64 = 2;

/// The two halves of a word: low, high.
fn halves(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}

/// A word of two halves.
fn word(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

/// Word 0 of an entry.
fn head(kind: u64, flags: u64, number: u32) -> u64 {
    kind | flags << 8 | u64::from(number) << 32
}

/// The parts of word 0: kind, flags, unused bits, number.
fn parts(word: u64) -> (u64, u64, u64, u32) {
    (word & 0xff, word >> 8 & 0xff, word >> 16 & 0xffff, (word >> 32) as u32)
}

/// How a ring's fields are called in an [`IpcFault`].
struct Names {
    kind: &'static str,
    flags: &'static str,
    unused: &'static str,
    number: &'static str,
    segment: &'static str,
    slot: &'static str,
    event_bytes: &'static str,
}

/// Refuses flags other than `known`.
fn check_flags(names: &Names, flags: u64, known: u64) -> Result<(), IpcFault> {
    if flags & !known == 0 {
        return Ok(());
    }
    Err(IpcFault::new(names.flags, flags, format!("only bits of {known:#x}")))
}

/// Refuses bits that no field of this entry uses.
fn check_unused(names: &Names, unused: &[u64]) -> Result<(), IpcFault> {
    unused.iter().try_for_each(|found| IpcFault::check_zero(names.unused, *found))
}

/// Slot and length of an event, from words 1 and 2.
fn event_slot(names: &Names, first: u64, second: u64) -> Result<(u32, u32), IpcFault> {
    let ((slot, slot_unused), (bytes, bytes_unused)) = (halves(first), halves(second));
    check_unused(names, &[slot_unused.into(), bytes_unused.into()])?;
    IpcFault::check_below(names.slot, slot, EVENT_SLOTS)?;
    IpcFault::check_below(names.event_bytes, bytes, EVENT_BYTES_MAX as u32 + 1)?;
    Ok((slot, bytes))
}

/// A submission as its ring carries it: an event's payload lies in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SubmitEntry {
    Data { subpartition: u32, segment: u32, offset: u32, bytes: u32, records: u32, last: bool },
    Event { subpartition: u32, slot: u32, bytes: u32, priority: bool },
    End { subpartition: u32 },
}

const SUBMIT: Names = Names {
    kind: "submit.kind",
    flags: "submit.flags",
    unused: "submit.unused",
    number: "submit.subpartition",
    segment: "submit.segment",
    slot: "submit.slot",
    event_bytes: "submit.event_bytes",
};

impl SubmitEntry {
    pub(crate) fn encode(self) -> Entry {
        match self {
            Self::Data { subpartition, segment, offset, bytes, records, last } => {
                let flags = if last { FLAG_LAST } else { 0 };
                [head(kind::DATA, flags, subpartition), word(segment, offset), word(bytes, records), 0]
            }
            Self::Event { subpartition, slot, bytes, priority } => {
                let flags = if priority { FLAG_PRIORITY } else { 0 };
                [head(kind::EVENT, flags, subpartition), slot.into(), bytes.into(), 0]
            }
            Self::End { subpartition } => [head(kind::END, 0, subpartition), 0, 0, 0],
        }
    }

    pub(crate) fn decode(entry: Entry, layout: &PartitionLayout) -> Result<Self, IpcFault> {
        let [word_0, word_1, word_2, word_3] = entry;
        let (kind, flags, unused, subpartition) = parts(word_0);
        if !matches!(kind, kind::DATA | kind::EVENT | kind::END) {
            return Err(IpcFault::new(SUBMIT.kind, kind, "1 (data), 2 (event) or 3 (end)"));
        }
        check_unused(&SUBMIT, &[unused, word_3])?;
        IpcFault::check_below(SUBMIT.number, subpartition, layout.subpartitions)?;
        match kind {
            kind::DATA => {
                check_flags(&SUBMIT, flags, FLAG_LAST)?;
                let ((segment, offset), (bytes, records)) = (halves(word_1), halves(word_2));
                IpcFault::check_below(SUBMIT.segment, segment, layout.segments)?;
                Ok(Self::Data { subpartition, segment, offset, bytes, records, last: flags & FLAG_LAST != 0 })
            }
            kind::EVENT => {
                check_flags(&SUBMIT, flags, FLAG_PRIORITY)?;
                let (slot, bytes) = event_slot(&SUBMIT, word_1, word_2)?;
                Ok(Self::Event { subpartition, slot, bytes, priority: flags & FLAG_PRIORITY != 0 })
            }
            _ => {
                check_flags(&SUBMIT, flags, 0)?;
                check_unused(&SUBMIT, &[word_1, word_2])?;
                Ok(Self::End { subpartition })
            }
        }
    }
}

/// A return as its ring carries it: a failure's text lies in the failure cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReturnEntry {
    Segment(u32),
    Finished,
    Failed { code: u16 },
}

const RETURN: Names = Names {
    kind: "return.kind",
    flags: "return.flags",
    unused: "return.unused",
    number: "return.code",
    segment: "return.segment",
    slot: "return.slot",
    event_bytes: "return.event_bytes",
};

/// A failure's code, which has 16 bits.
fn failure_code(names: &Names, number: u32) -> Result<u16, IpcFault> {
    u16::try_from(number).map_err(|_| IpcFault::new(names.number, number.into(), "at most 65535"))
}

impl ReturnEntry {
    pub(crate) fn encode(self) -> Entry {
        match self {
            Self::Segment(segment) => [head(kind::SEGMENT, 0, 0), segment.into(), 0, 0],
            Self::Finished => [head(kind::FINISHED, 0, 0), 0, 0, 0],
            Self::Failed { code } => [head(kind::FAILED, 0, code.into()), 0, 0, 0],
        }
    }

    pub(crate) fn decode(entry: Entry, layout: &PartitionLayout) -> Result<Self, IpcFault> {
        let [word_0, word_1, word_2, word_3] = entry;
        let (kind, flags, unused, number) = parts(word_0);
        if !matches!(kind, kind::SEGMENT | kind::FINISHED | kind::FAILED) {
            return Err(IpcFault::new(RETURN.kind, kind, "1 (segment), 2 (finished) or 4 (failed)"));
        }
        check_flags(&RETURN, flags, 0)?;
        check_unused(&RETURN, &[unused, word_2, word_3])?;
        let (segment, segment_unused) = halves(word_1);
        match kind {
            kind::SEGMENT => {
                check_unused(&RETURN, &[segment_unused.into(), number.into()])?;
                IpcFault::check_below(RETURN.segment, segment, layout.segments)?;
                Ok(Self::Segment(segment))
            }
            kind::FINISHED => {
                check_unused(&RETURN, &[word_1, number.into()])?;
                Ok(Self::Finished)
            }
            _ => {
                check_unused(&RETURN, &[word_1])?;
                Ok(Self::Failed { code: failure_code(&RETURN, number)? })
            }
        }
    }
}

/// A delivery as its ring carries it: an event's payload lies in a slot, a failure's text in the channel's cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeliverEntry {
    Data { channel: u32, segment: u32, offset: u32, bytes: u32, records: u32 },
    Lent { channel: u32, segment: u32, offset: u32, bytes: u32, records: u32 },
    Event { channel: u32, slot: u32, bytes: u32, priority: bool },
    End { channel: u32 },
    Failed { channel: u32, code: u16 },
}

const DELIVER: Names = Names {
    kind: "deliver.kind",
    flags: "deliver.flags",
    unused: "deliver.unused",
    number: "deliver.channel",
    segment: "deliver.segment",
    slot: "deliver.slot",
    event_bytes: "deliver.event_bytes",
};

impl DeliverEntry {
    pub(crate) fn encode(self) -> Entry {
        match self {
            Self::Data { channel, segment, offset, bytes, records } => {
                [head(kind::DATA, 0, channel), word(segment, offset), word(bytes, records), 0]
            }
            Self::Lent { channel, segment, offset, bytes, records } => {
                [head(kind::LENT, 0, channel), word(segment, offset), word(bytes, records), 0]
            }
            Self::Event { channel, slot, bytes, priority } => {
                let flags = if priority { FLAG_PRIORITY } else { 0 };
                [head(kind::EVENT, flags, channel), slot.into(), bytes.into(), 0]
            }
            Self::End { channel } => [head(kind::END, 0, channel), 0, 0, 0],
            Self::Failed { channel, code } => [head(kind::FAILED, 0, channel), code.into(), 0, 0],
        }
    }

    pub(crate) fn decode(entry: Entry, layout: &GateLayout) -> Result<Self, IpcFault> {
        let [word_0, word_1, word_2, word_3] = entry;
        let (kind, flags, unused, channel) = parts(word_0);
        if !matches!(kind, kind::DATA | kind::EVENT | kind::END | kind::FAILED | kind::LENT) {
            let needed = "1 (data), 2 (event), 3 (end), 4 (failed) or 5 (lent)";
            return Err(IpcFault::new(DELIVER.kind, kind, needed));
        }
        check_unused(&DELIVER, &[unused, word_3])?;
        check_flags(&DELIVER, flags, if kind == kind::EVENT { FLAG_PRIORITY } else { 0 })?;
        IpcFault::check_below(DELIVER.number, channel, layout.channels)?;
        match kind {
            kind::DATA => {
                let ((segment, offset), (bytes, records)) = (halves(word_1), halves(word_2));
                IpcFault::check_below(DELIVER.segment, segment, layout.segments)?;
                Ok(Self::Data { channel, segment, offset, bytes, records })
            }
            kind::LENT => {
                let ((segment, offset), (bytes, records)) = (halves(word_1), halves(word_2));
                IpcFault::check_below(DELIVER.segment, segment, SEGMENTS_MAX)?;
                Ok(Self::Lent { channel, segment, offset, bytes, records })
            }
            kind::EVENT => {
                let (slot, bytes) = event_slot(&DELIVER, word_1, word_2)?;
                Ok(Self::Event { channel, slot, bytes, priority: flags & FLAG_PRIORITY != 0 })
            }
            kind::END => {
                check_unused(&DELIVER, &[word_1, word_2])?;
                Ok(Self::End { channel })
            }
            _ => {
                let (code, code_unused) = halves(word_1);
                check_unused(&DELIVER, &[code_unused.into(), word_2])?;
                let code = u16::try_from(code)
                    .map_err(|_| IpcFault::new("deliver.code", code.into(), "at most 65535"))?;
                Ok(Self::Failed { channel, code })
            }
        }
    }
}

/// What is given back, as its ring carries it: an event with its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GiveBackEntry {
    Data { segment: u32, bytes: u32 },
    Lent { channel: u32, segment: u32, bytes: u32 },
    Event { channel: u32, slot: u32 },
}

const GIVE_BACK: Names = Names {
    kind: "give_back.kind",
    flags: "give_back.flags",
    unused: "give_back.unused",
    number: "give_back.channel",
    segment: "give_back.segment",
    slot: "give_back.slot",
    event_bytes: "give_back.event_bytes",
};

impl GiveBackEntry {
    pub(crate) fn encode(self) -> Entry {
        match self {
            Self::Data { segment, bytes } => [head(kind::DATA, 0, 0), word(segment, bytes), 0, 0],
            Self::Lent { channel, segment, bytes } => {
                [head(kind::LENT, 0, channel), word(segment, bytes), 0, 0]
            }
            Self::Event { channel, slot } => [head(kind::EVENT, 0, channel), slot.into(), 0, 0],
        }
    }

    pub(crate) fn decode(entry: Entry, layout: &GateLayout) -> Result<Self, IpcFault> {
        let [word_0, word_1, word_2, word_3] = entry;
        let (kind, flags, unused, channel) = parts(word_0);
        if !matches!(kind, kind::DATA | kind::EVENT | kind::LENT) {
            return Err(IpcFault::new(GIVE_BACK.kind, kind, "1 (data), 2 (event) or 5 (lent)"));
        }
        check_flags(&GIVE_BACK, flags, 0)?;
        check_unused(&GIVE_BACK, &[unused, word_2, word_3])?;
        if kind == kind::DATA {
            check_unused(&GIVE_BACK, &[channel.into()])?;
            let (segment, bytes) = halves(word_1);
            IpcFault::check_below(GIVE_BACK.segment, segment, layout.segments)?;
            return Ok(Self::Data { segment, bytes });
        }
        IpcFault::check_below(GIVE_BACK.number, channel, layout.channels)?;
        if kind == kind::LENT {
            let (segment, bytes) = halves(word_1);
            IpcFault::check_below(GIVE_BACK.segment, segment, SEGMENTS_MAX)?;
            return Ok(Self::Lent { channel, segment, bytes });
        }
        let (slot, _) = event_slot(&GIVE_BACK, word_1, 0)?;
        Ok(Self::Event { channel, slot })
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
