//! A run of 64-bit words that another process may write at any time.
//!
//! Everything in shared memory is such a word. [`Words`] keeps its memory alive and is the only way in: loads,
//! stores and swaps of whole words, each with its ordering. An index outside the run reads 0 and writes nothing:
//! it cannot occur, since every run's extent is checked when it is made, and this way the data path has no panic.

use std::sync::Arc;

use crate::primitive::{AtomicU64, Ordering};

/// Where the words live.
pub(crate) enum Backing {
    /// A shared mapping of a memfd.
    #[cfg(not(loom))]
    Mapping(memmap2::MmapRaw),
    /// Memory of this process: tests and models.
    Private(Box<[AtomicU64]>),
}

impl Backing {
    /// Zeroed memory of this process.
    pub(crate) fn private(words: usize) -> Arc<Self> {
        Arc::new(Self::Private((0..words).map(|_| AtomicU64::new(0)).collect()))
    }

    /// All words.
    fn words(&self) -> &[AtomicU64] {
        match self {
            #[cfg(not(loom))]
            Self::Mapping(mapping) => {
                let start = mapping.as_ptr().cast::<AtomicU64>();
                // SAFETY: a mapping starts at a page boundary, so `start` is aligned; it is readable and writable
                // for `mapping.len()` bytes until it is dropped, which the returned lifetime forbids; the file
                // behind it is sealed against shrinking (`memory`), so each page exists or reads as zeros. Every
                // access by this process goes through these atomics. Other processes' writes are outside the
                // model of this process and are met by atomics, too.
                unsafe { std::slice::from_raw_parts(start, mapping.len() / size_of::<AtomicU64>()) }
            }
            Self::Private(words) => words,
        }
    }
}

/// A checked run of words inside a [`Backing`]. Clones name the same words.
#[derive(Clone)]
pub(crate) struct Words {
    backing: Arc<Backing>,
    start: usize,
    count: usize,
}

impl Words {
    /// `count` words from word `start` on; `None` if they are not all there.
    pub(crate) fn new(backing: &Arc<Backing>, start: usize, count: usize) -> Option<Self> {
        let end = start.checked_add(count)?;
        (end <= backing.words().len()).then(|| Self { backing: Arc::clone(backing), start, count })
    }

    /// How many words the run has.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// The words from `first` on, all of which are inside this run.
    pub(crate) fn part(&self, first: usize, count: usize) -> Option<Self> {
        let end = first.checked_add(count)?;
        (end <= self.count).then(|| Self {
            backing: Arc::clone(&self.backing),
            start: self.start + first,
            count,
        })
    }

    /// The run as a slice.
    #[inline]
    pub(crate) fn as_slice(&self) -> &[AtomicU64] {
        self.backing.words().get(self.start..self.start + self.count).unwrap_or_default()
    }

    /// Word `index`.
    #[inline]
    fn at(&self, index: usize) -> Option<&AtomicU64> {
        self.as_slice().get(index)
    }

    /// Loads word `index`.
    #[inline]
    pub(crate) fn load(&self, index: usize, ordering: Ordering) -> u64 {
        self.at(index).map_or(0, |word| word.load(ordering))
    }

    /// Stores word `index`.
    #[inline]
    pub(crate) fn store(&self, index: usize, value: u64, ordering: Ordering) {
        if let Some(word) = self.at(index) {
            word.store(value, ordering);
        }
    }

    /// Swaps word `index`.
    #[inline]
    pub(crate) fn swap(&self, index: usize, value: u64, ordering: Ordering) -> u64 {
        self.at(index).map_or(0, |word| word.swap(value, ordering))
    }

    /// Sets bits of word `index`.
    #[inline]
    pub(crate) fn fetch_or(&self, index: usize, bits: u64, ordering: Ordering) {
        if let Some(word) = self.at(index) {
            word.fetch_or(bits, ordering);
        }
    }
}
