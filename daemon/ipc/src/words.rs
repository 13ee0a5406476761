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
        // What Miri is to look at is the view of a mapping. It knows anonymous ones.
        #[cfg(all(miri, not(loom)))]
        if let Ok(mapping) = memmap2::MmapMut::map_anon(words * size_of::<AtomicU64>()) {
            return Arc::new(Self::Mapping(mapping.into()));
        }
        Arc::new(Self::Private((0..words).map(|_| AtomicU64::new(0)).collect()))
    }

    /// The `count` words from word `start` on; `None` if they are not all there.
    #[inline]
    fn run(&self, start: usize, count: usize) -> Option<&[AtomicU64]> {
        match self {
            #[cfg(not(loom))]
            Self::Mapping(mapping) => {
                if start.checked_add(count)? > mapping.len() / size_of::<AtomicU64>() {
                    return None;
                }
                // SAFETY: word `start` and the `count` words from it on end inside the mapping, as was just checked. A
                // mapping starts at a page boundary, so the words are aligned; it is readable and writable until it is
                // dropped, which the returned lifetime forbids; the file behind it is sealed against shrinking
                // (`memory`), so each page exists or reads as zeros. Every access by this process goes through these
                // atomics. Other processes' writes are outside the model of this process and are met by atomics, too.
                Some(unsafe {
                    std::slice::from_raw_parts(mapping.as_ptr().cast::<AtomicU64>().add(start), count)
                })
            }
            Self::Private(words) => words.get(start..)?.get(..count),
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
        backing.run(start, count)?;
        Some(Self { backing: Arc::clone(backing), start, count })
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
        self.backing.run(self.start, self.count).unwrap_or_default()
    }

    /// Word `index`.
    #[inline]
    fn at(&self, index: usize) -> Option<&AtomicU64> {
        if index >= self.count {
            return None;
        }
        self.backing.run(self.start + index, 1)?.first()
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
