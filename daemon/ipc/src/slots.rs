//! Short byte strings in shared memory: event payloads and failure texts.
//!
//! They are copied word by word with atomic loads and stores, so that a side that writes while the other copies
//! spoils the bytes and nothing else. What makes a copy valid is the ring entry that names it.

use crate::layout::{EVENT_BYTES_MAX, FAILURE_TEXT_BYTES_MAX};
use crate::primitive::Ordering;
use crate::words::Words;

/// Words of one event slot.
const SLOT_WORDS: usize = EVENT_BYTES_MAX / 8;

/// Writes `bytes` into the words. What does not fit is left out.
fn write(words: &Words, first: usize, bytes: &[u8]) {
    for (offset, chunk) in bytes.chunks(8).enumerate() {
        let mut word = [0; 8];
        for (to, from) in word.iter_mut().zip(chunk) {
            *to = *from;
        }
        // Relaxed: published by the Release store of the ring's tail.
        words.store(first + offset, u64::from_le_bytes(word), Ordering::Relaxed);
    }
}

/// Copies `count` bytes out of the words.
fn read(words: &Words, first: usize, count: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(count.next_multiple_of(8));
    for offset in 0..count.div_ceil(8) {
        // Relaxed: ordered by the Acquire load of the ring's tail.
        bytes.extend_from_slice(&words.load(first + offset, Ordering::Relaxed).to_le_bytes());
    }
    bytes.truncate(count);
    bytes
}

/// The event slots of a partition or gate.
pub(crate) struct EventSlots {
    words: Words,
}

impl EventSlots {
    pub(crate) fn new(words: Words) -> Self {
        Self { words }
    }

    /// Writes a payload of at most [`EVENT_BYTES_MAX`] bytes into a slot.
    pub(crate) fn write(&self, slot: u32, payload: &[u8]) {
        write(&self.words, slot as usize * SLOT_WORDS, payload.get(..EVENT_BYTES_MAX).unwrap_or(payload));
    }

    /// Copies a payload out of a slot, once.
    pub(crate) fn read(&self, slot: u32, bytes: u32) -> Vec<u8> {
        read(&self.words, slot as usize * SLOT_WORDS, (bytes as usize).min(EVENT_BYTES_MAX))
    }
}

/// A cell for one failure text.
pub(crate) struct FailureCell {
    words: Words,
}

impl FailureCell {
    pub(crate) fn new(words: Words) -> Self {
        Self { words }
    }

    /// Writes a text, cut to [`FAILURE_TEXT_BYTES_MAX`] at a character's boundary.
    pub(crate) fn write(&self, text: &str) {
        let text = text.get(..text.floor_char_boundary(FAILURE_TEXT_BYTES_MAX)).unwrap_or_default();
        self.words.store(0, text.len() as u64, Ordering::Relaxed);
        write(&self.words, 1, text.as_bytes());
    }

    /// Copies the text out.
    pub(crate) fn read(&self) -> String {
        let bytes = self.words.load(0, Ordering::Relaxed).min(FAILURE_TEXT_BYTES_MAX as u64);
        String::from_utf8_lossy(&read(&self.words, 1, bytes as usize)).into_owned()
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
