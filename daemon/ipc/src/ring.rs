//! A ring of 32-byte entries with one producer and one consumer, in memory that both map.
//!
//! ```text
//! byte   0  tail      entries ever published          written by the producer only
//! byte 128  head      entries ever taken              written by the consumer only
//! byte 256  entry 0   4 words                         written by the producer only
//!      288  entry 1   …                               capacity is a power of two
//! ```
//!
//! The cursors count up for ever (64 bits do not wrap in the life of a machine); entry number n lies at
//! n mod capacity. They are on lines of their own, two apart, since processors fetch lines in pairs.
//!
//! **Private cursors.** Each side works on its own copy of its own cursor and never reads back what it wrote. Of the
//! other side's it keeps the last value seen and looks again only when that value says "empty" or "full", so that a
//! busy ring touches the other side's line once per batch.
//!
//! **Validation.** A cursor read from the other side is accepted only if it did not go back and leaves between 0
//! and `capacity` entries in the ring. An entry is copied out once, by four atomic loads; checks are made on the
//! copy.
//!
//! **Batches.** [`Producer::push`] writes an entry, [`Producer::publish`] makes all written ones visible with one
//! store. A consumer's head is stored with each entry taken: its line is the consumer's own until a producer looks
//! for room.
//!
//! **Pairs of orderings.** `tail` is stored with Release after the entries and loaded with Acquire before them.
//! `head` is stored with Release after an entry was copied out and loaded with Acquire before its place is used
//! again.

use crate::fault::IpcFault;
use crate::primitive::Ordering;
use crate::words::{Backing, Words};

/// One entry: four little words, whose meaning is the owner's.
pub type Entry = [u64; ENTRY_WORDS];

/// Words of one entry.
pub const ENTRY_WORDS: usize = 4;
/// Bytes of one entry.
pub const ENTRY_BYTES: usize = ENTRY_WORDS * 8;

/// Largest capacity of a ring, in entries.
pub const CAPACITY_MAX: u32 = 1 << 24;

const TAIL: usize = 0;
const HEAD: usize = 16;
const ENTRIES: usize = 32;

/// Words that a ring of `capacity` entries takes.
pub(crate) const fn words_of(capacity: u32) -> usize {
    ENTRIES + capacity as usize * ENTRY_WORDS
}

/// How a ring's cursors are called in an [`IpcFault`].
#[derive(Clone, Copy, Debug)]
pub struct CursorNames {
    /// The producer's cursor.
    pub tail: &'static str,
    /// The consumer's cursor.
    pub head: &'static str,
}

/// A ring of `capacity` entries in memory of this process, for tests and models. `None` unless `capacity` is a
/// power of two and at most [`CAPACITY_MAX`].
#[must_use]
pub fn private(capacity: u32) -> Option<(Producer, Consumer)> {
    let names = CursorNames { tail: "ring.tail", head: "ring.head" };
    let words = Words::new(&Backing::private(words_of(capacity)), 0, words_of(capacity))?;
    Some((Producer::new(words.clone(), capacity, names)?, Consumer::new(words, capacity, names)?))
}

/// Whether `words` hold a ring of this capacity.
fn fits(words: &Words, capacity: u32) -> bool {
    capacity.is_power_of_two() && capacity <= CAPACITY_MAX && words.count() == words_of(capacity)
}

/// First word of entry number `position`.
#[inline]
fn place(position: u64, capacity: u64) -> usize {
    ENTRIES + (position & (capacity - 1)) as usize * ENTRY_WORDS
}

/// The side that writes entries. One thread.
pub struct Producer {
    words: Words,
    names: CursorNames,
    capacity: u64,
    /// Entries ever written; the next one's number.
    written: u64,
    /// The part of them that the consumer may see.
    published: u64,
    /// The consumer's cursor when last looked at.
    head_seen: u64,
}

impl Producer {
    /// The producer of a ring whose cursors are zero.
    pub(crate) fn new(words: Words, capacity: u32, names: CursorNames) -> Option<Self> {
        fits(&words, capacity).then(|| Self {
            words,
            names,
            capacity: capacity.into(),
            written: 0,
            published: 0,
            head_seen: 0,
        })
    }

    /// Entries that the ring can hold.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Entries that can be pushed now.
    ///
    /// # Errors
    /// The consumer's cursor cannot be true.
    #[inline]
    pub fn room(&mut self) -> Result<u64, IpcFault> {
        // Acquire: pairs with the Release store of `head` in `Consumer::pop`, so that a place is written again
        // only after its entry was copied out.
        let head = self.words.load(HEAD, Ordering::Acquire);
        if head.wrapping_sub(self.head_seen) > self.published - self.head_seen {
            let needed = format!("from {} to {}", self.head_seen, self.published);
            return Err(IpcFault::new(self.names.head, head, needed));
        }
        self.head_seen = head;
        Ok(self.known_room())
    }

    /// Whether `wanted` entries can be pushed now. Looks at the consumer's cursor only if the last look does not
    /// answer it.
    ///
    /// # Errors
    /// The consumer's cursor cannot be true.
    #[inline]
    pub fn has_room(&mut self, wanted: u64) -> Result<bool, IpcFault> {
        Ok(self.known_room() >= wanted || self.room()? >= wanted)
    }

    /// Writes an entry, which stays invisible until [`Self::publish`]. `false`: the ring is full.
    ///
    /// # Errors
    /// The consumer's cursor cannot be true.
    #[inline]
    pub fn push(&mut self, entry: Entry) -> Result<bool, IpcFault> {
        if !self.has_room(1)? {
            return Ok(false);
        }
        let words = self.words.as_slice().get(place(self.written, self.capacity)..).unwrap_or_default();
        for (word, value) in words.iter().zip(entry) {
            // Relaxed: published by the Release store of `tail`.
            word.store(value, Ordering::Relaxed);
        }
        self.written += 1;
        Ok(true)
    }

    /// Makes every entry pushed visible. Says whether there was one that was not.
    #[inline]
    pub fn publish(&mut self) -> bool {
        let news = self.published != self.written;
        if news {
            self.published = self.written;
            // Release: pairs with the Acquire load of `tail` in `Consumer::pop`.
            self.words.store(TAIL, self.published, Ordering::Release);
        }
        news
    }

    /// Room by the consumer's cursor as last seen.
    #[inline]
    fn known_room(&self) -> u64 {
        self.capacity - (self.written - self.head_seen)
    }
}

/// The side that takes entries. One thread.
pub struct Consumer {
    words: Words,
    names: CursorNames,
    capacity: u64,
    /// Entries ever taken; the next one's number.
    taken: u64,
    /// The producer's cursor when last looked at.
    tail_seen: u64,
}

impl Consumer {
    /// The consumer of a ring whose cursors are zero.
    pub(crate) fn new(words: Words, capacity: u32, names: CursorNames) -> Option<Self> {
        fits(&words, capacity).then(|| Self {
            words,
            names,
            capacity: capacity.into(),
            taken: 0,
            tail_seen: 0,
        })
    }

    /// Takes the oldest entry.
    ///
    /// # Errors
    /// The producer's cursor cannot be true.
    #[inline]
    pub fn pop(&mut self) -> Result<Option<Entry>, IpcFault> {
        if self.taken == self.tail_seen && !self.look()? {
            return Ok(None);
        }
        let words = self.words.as_slice().get(place(self.taken, self.capacity)..).unwrap_or_default();
        let mut entry = [0; ENTRY_WORDS];
        for (value, word) in entry.iter_mut().zip(words) {
            // Relaxed: ordered by the Acquire load of `tail`.
            *value = word.load(Ordering::Relaxed);
        }
        self.taken += 1;
        // Release: pairs with the Acquire load of `head` in `Producer::room`; the entry was copied out before.
        self.words.store(HEAD, self.taken, Ordering::Release);
        Ok(Some(entry))
    }

    /// Looks at the producer's cursor. Says whether the ring has an entry.
    fn look(&mut self) -> Result<bool, IpcFault> {
        // Acquire: pairs with the Release store of `tail` in `Producer::publish`.
        let tail = self.words.load(TAIL, Ordering::Acquire);
        if tail.wrapping_sub(self.taken) > self.capacity {
            let needed = format!("from {} to {}", self.taken, self.taken.saturating_add(self.capacity));
            return Err(IpcFault::new(self.names.tail, tail, needed));
        }
        self.tail_seen = tail;
        Ok(tail != self.taken)
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
