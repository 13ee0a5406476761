//! From slices back to records, one [`Assembler`] per channel.
//!
//! A record that lies whole inside one slice is named by its place there: no copy. One that spans slices is put
//! together in the channel's own buffer, whose memory the gate's [`SpanningBudget`] bounds. A channel whose next
//! record would exceed the budget is not read until another channel finishes its own; one may always proceed, so
//! the gate never stands still.

use alloc::vec::Vec;
use core::ops::Range;

use super::{CHECKSUM_BYTES, PREFIX_BYTES};
use crate::checksum::crc32c;

/// A buffer up to this size is kept for the next spanning record, outside of the budget; a larger one is freed.
const KEPT_BYTES_MAX: usize = 4096;

/// Bytes that the channels of one gate may hold in spanning records.
#[derive(Clone, Copy, Debug)]
pub struct SpanningBudget {
    max: u64,
    used: u64,
}

impl SpanningBudget {
    /// A budget of which nothing is used.
    #[must_use]
    pub const fn new(bytes_max: u64) -> Self {
        Self { max: bytes_max, used: 0 }
    }

    /// Bytes in use.
    #[must_use]
    pub const fn used(&self) -> u64 {
        self.used
    }

    /// Takes `bytes` if they are available, or if nobody has any.
    fn reserve(&mut self, bytes: u64) -> bool {
        let sum = self.used.saturating_add(bytes);
        let granted = self.used == 0 || sum <= self.max;
        if granted {
            self.used = sum;
        }
        granted
    }

    const fn release(&mut self, bytes: u64) {
        self.used = self.used.saturating_sub(bytes);
    }
}

/// What [`Assembler::next_record`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step<'a> {
    /// A record that lies in the slice, at this range of it.
    InPlace(Range<usize>),
    /// A record that spanned slices, until the next call.
    Assembled(&'a [u8]),
    /// The slice is used up.
    NeedMore,
    /// The record that follows does not fit into the budget. Leave the slice as it is, and call again with it
    /// when another channel of the gate has finished a record.
    Wait,
    /// The record that follows is over the limit. The channel cannot go on.
    TooLarge {
        /// Bytes that its length says.
        bytes: u32,
        /// Most bytes that a record may have.
        max: u32,
    },
    /// The bytes of a record are not those that were written. The channel cannot go on.
    ChecksumMismatch {
        /// The checksum behind the record.
        found: u32,
        /// The checksum of its bytes.
        needed: u32,
    },
}

/// Why a channel cannot go on.
#[derive(Clone, Copy, Debug)]
enum Fault {
    TooLarge(u32),
    Checksum { found: u32, needed: u32 },
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// Between two records.
    Between,
    /// So many bytes of a length are known.
    Prefix { bytes: [u8; PREFIX_BYTES], known: usize },
    /// The length is known, nothing of the record was taken, no memory is reserved.
    Known { bytes: u32 },
    /// The buffer is being filled; its memory is reserved.
    Filling { bytes: u32 },
    /// The buffer was given out; its memory is still reserved.
    Given { bytes: u32 },
    /// The channel cannot go on.
    Failed(Fault),
}

/// Puts the records of one channel together.
#[derive(Debug)]
pub struct Assembler {
    record_bytes_max: u32,
    /// Bytes behind each record: 4 or 0.
    checksum_bytes: usize,
    state: State,
    buffer: Vec<u8>,
}

impl Assembler {
    /// An assembler between two records.
    #[must_use]
    pub const fn new(record_bytes_max: u32, checksum: bool) -> Self {
        let checksum_bytes = if checksum { CHECKSUM_BYTES } else { 0 };
        Self { record_bytes_max, checksum_bytes, state: State::Between, buffer: Vec::new() }
    }

    /// The next record of `slice`, from `at` on, which moves behind what was used. Call again, with the same slice,
    /// until the answer is [`Step::NeedMore`]: only that call gives back the memory of a spanning record.
    #[inline]
    pub fn next_record(&mut self, slice: &[u8], at: &mut usize, budget: &mut SpanningBudget) -> Step<'_> {
        if let State::Between = self.state
            && let Some(rest) = slice.get(*at..)
            && let Some((prefix, behind)) = rest.split_first_chunk::<PREFIX_BYTES>()
        {
            let bytes = u32::from_le_bytes(*prefix);
            let length = bytes as usize;
            if bytes <= self.record_bytes_max && length + self.checksum_bytes <= behind.len() {
                let start = *at + PREFIX_BYTES;
                *at = start + length + self.checksum_bytes;
                if self.checksum_bytes == 0 {
                    return Step::InPlace(start..start + length);
                }
                return self.checked_in_place(slice, start..start + length);
            }
        }
        self.next_cut(slice, at, budget)
    }

    /// The record that [`Step::Assembled`] gave out, once more. Empty after any other answer.
    #[must_use]
    pub fn assembled(&self) -> &[u8] {
        match self.state {
            State::Given { bytes } => self.buffer.get(..bytes as usize).unwrap_or_default(),
            _ => &[],
        }
    }

    /// Whether the channel is between two records. An end of data anywhere else is a fault of the producer.
    #[must_use]
    pub const fn is_between_records(&self) -> bool {
        matches!(self.state, State::Between | State::Given { .. })
    }

    /// Gives back what this channel has of the budget. For a channel that ends early.
    pub fn release(&mut self, budget: &mut SpanningBudget) {
        if let State::Filling { bytes } | State::Given { bytes } = self.state {
            budget.release(self.reservation(bytes));
            self.state = State::Between;
        }
        self.shrink();
    }

    /// What a spanning record of `bytes` bytes holds of the budget.
    fn reservation(&self, bytes: u32) -> u64 {
        // A usize of 0 or 4 is no loss.
        u64::from(bytes) + self.checksum_bytes as u64
    }

    fn shrink(&mut self) {
        self.buffer.clear();
        if self.buffer.capacity() > KEPT_BYTES_MAX {
            self.buffer = Vec::new();
        }
    }

    fn fail(&mut self, fault: Fault) -> Step<'_> {
        self.state = State::Failed(fault);
        self.buffer = Vec::new();
        match fault {
            Fault::TooLarge(bytes) => Step::TooLarge { bytes, max: self.record_bytes_max },
            Fault::Checksum { found, needed } => Step::ChecksumMismatch { found, needed },
        }
    }

    /// A record in the slice, if the checksum behind it is right.
    fn checked_in_place(&mut self, slice: &[u8], place: Range<usize>) -> Step<'_> {
        let checksum = slice.get(place.end..).and_then(|behind| behind.first_chunk::<CHECKSUM_BYTES>());
        let found = checksum.copied().map_or(0, u32::from_le_bytes);
        let needed = crc32c(slice.get(place.clone()).unwrap_or_default());
        if found == needed { Step::InPlace(place) } else { self.fail(Fault::Checksum { found, needed }) }
    }

    /// Everything that is not a record lying whole in the slice with its length.
    #[cold]
    #[inline(never)]
    fn next_cut(&mut self, slice: &[u8], at: &mut usize, budget: &mut SpanningBudget) -> Step<'_> {
        loop {
            match self.state {
                State::Failed(fault) => return self.fail(fault),
                State::Given { .. } => {
                    self.release(budget);
                    return self.next_record(slice, at, budget);
                }
                State::Between | State::Prefix { .. } => {
                    if !self.take_prefix(slice, at) {
                        return Step::NeedMore;
                    }
                }
                State::Known { bytes } if bytes > self.record_bytes_max => {
                    return self.fail(Fault::TooLarge(bytes));
                }
                State::Known { bytes } => {
                    let length = bytes as usize;
                    let rest = slice.get(*at..).unwrap_or_default();
                    if length + self.checksum_bytes <= rest.len() {
                        let start = *at;
                        *at = start + length + self.checksum_bytes;
                        self.state = State::Between;
                        if self.checksum_bytes == 0 {
                            return Step::InPlace(start..start + length);
                        }
                        return self.checked_in_place(slice, start..start + length);
                    }
                    if rest.is_empty() {
                        return Step::NeedMore;
                    }
                    if !budget.reserve(self.reservation(bytes)) {
                        return Step::Wait;
                    }
                    self.buffer.clear();
                    self.buffer.reserve_exact(length + self.checksum_bytes);
                    self.state = State::Filling { bytes };
                }
                State::Filling { bytes } => {
                    if !self.fill(bytes, slice, at) {
                        return Step::NeedMore;
                    }
                    return self.give(bytes, budget);
                }
            }
        }
    }

    /// Takes what is there of a length. Whether all of it is known.
    fn take_prefix(&mut self, slice: &[u8], at: &mut usize) -> bool {
        let (mut bytes, mut known) = match self.state {
            State::Prefix { bytes, known } => (bytes, known),
            _ => ([0; PREFIX_BYTES], 0),
        };
        let rest = slice.get(*at..).unwrap_or_default();
        for (place, byte) in bytes.iter_mut().skip(known).zip(rest) {
            *place = *byte;
            known += 1;
            *at += 1;
        }
        let complete = known == PREFIX_BYTES;
        self.state = match (complete, known) {
            (true, _) => State::Known { bytes: u32::from_le_bytes(bytes) },
            (false, 0) => State::Between,
            (false, _) => State::Prefix { bytes, known },
        };
        complete
    }

    /// Takes what is there of a spanning record. Whether all of it is.
    fn fill(&mut self, bytes: u32, slice: &[u8], at: &mut usize) -> bool {
        let whole = bytes as usize + self.checksum_bytes;
        let missing = whole.saturating_sub(self.buffer.len());
        let rest = slice.get(*at..).unwrap_or_default();
        let taken = rest.get(..missing).unwrap_or(rest);
        self.buffer.extend_from_slice(taken);
        *at += taken.len();
        self.buffer.len() >= whole
    }

    /// The spanning record in the buffer, if its checksum is right.
    fn give(&mut self, bytes: u32, budget: &mut SpanningBudget) -> Step<'_> {
        let (record, checksum) = self.buffer.split_at(self.buffer.len().min(bytes as usize));
        if let Some(found) = checksum.first_chunk::<CHECKSUM_BYTES>() {
            let (found, needed) = (u32::from_le_bytes(*found), crc32c(record));
            if found != needed {
                budget.release(self.reservation(bytes));
                return self.fail(Fault::Checksum { found, needed });
            }
        }
        self.state = State::Given { bytes };
        Step::Assembled(self.buffer.get(..bytes as usize).unwrap_or_default())
    }
}
