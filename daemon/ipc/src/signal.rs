//! Who sleeps, and who has news: the flags that save a system call per entry.
//!
//! Each is a store followed by a look at what the other side stores before *its* look, with a SeqCst fence between
//! the two on both sides. Whatever the order, at least one side sees the other, so a wake-up is never lost; it may
//! be given once too often. The flags themselves are only swapped, by either side, so that each change of one is
//! decided against the last one.
//!
//! **A client that waits** ([`Waiter`], [`Waker`]): the client announces the wait, looks at its rings and cells
//! once more, and sleeps only if nothing is there. The daemon publishes, then takes the flag; if it was set, it
//! rings.
//!
//! **A daemon that parks** ([`Marker`], [`Watcher`]): a client publishes, marks its ring dirty, then looks at the
//! parked flag and rings the doorbell only if it is set. The daemon sets the flag, then looks at every dirty bit
//! once more, and sleeps only if none is set. A daemon that will look again soon in any case, and knows of nobody who
//! waits for what clients give back, parks [`Park::Briefly`]: that is marked dirty as ever, but rings no doorbell.

use crate::primitive::{Ordering, fence};
use crate::words::{Backing, Words};

/// Rings of one attachment that can be dirty, and so the most rings that it can have.
pub const RINGS_MAX: u32 = 4096;

/// Words of the dirty bitmap.
pub(crate) const DIRTY_WORDS: usize = RINGS_MAX as usize / 64;

/// The side that sleeps. One thread.
pub struct Waiter {
    flag: Words,
}

/// The side that wakes.
pub struct Waker {
    flag: Words,
}

/// A wait flag in memory of this process, for tests and models.
#[must_use]
pub fn private_wait() -> Option<(Waiter, Waker)> {
    let flag = Words::new(&Backing::private(1), 0, 1)?;
    Some((Waiter::new(flag.clone()), Waker::new(flag)))
}

impl Waiter {
    /// The waiter of a flag that is zero.
    pub(crate) fn new(flag: Words) -> Self {
        Self { flag }
    }

    /// Says that this side is about to sleep. It must look for news once more after this call, and sleep only if
    /// there is none.
    #[inline]
    pub fn announce(&mut self) {
        self.flag.swap(0, 1, Ordering::Relaxed);
        // Pairs with the fence in `Waker::take`: either that side sees the flag, or this side sees its news.
        fence(Ordering::SeqCst);
    }

    /// A look at this flag for other threads.
    #[must_use]
    pub fn view(&self) -> WaitView {
        WaitView { flag: self.flag.clone() }
    }

    /// Takes the announcement back: this side does not sleep, or has woken.
    #[inline]
    pub fn cancel(&mut self) {
        self.flag.swap(0, 0, Ordering::Relaxed);
    }
}

/// A look at the flag, for another thread of the side that sleeps: the one that takes the wake-ups of them all.
#[derive(Clone)]
pub struct WaitView {
    flag: Words,
}

impl WaitView {
    /// Whether the wait is still announced. Once the other side took the flag, its wake-up is given or about to be.
    #[inline]
    #[must_use]
    pub fn is_announced(&self) -> bool {
        // Relaxed: the wake-up, which was read before this look, came after the flag was taken; and who wakes looks
        // at its rings, not at what this says.
        self.flag.load(0, Ordering::Relaxed) != 0
    }
}

impl Waker {
    /// The waker of the same flag.
    pub(crate) fn new(flag: Words) -> Self {
        Self { flag }
    }

    /// Takes the flag, after news was published. `true`: the other side may sleep; wake it.
    #[inline]
    pub fn take(&mut self) -> bool {
        // Pairs with the fence in `Waiter::announce`.
        fence(Ordering::SeqCst);
        self.flag.load(0, Ordering::Relaxed) != 0 && self.flag.swap(0, 0, Ordering::Relaxed) != 0
    }
}

/// For what a daemon that parks wants to be rung.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Park {
    /// For whatever a client marks.
    UntilRung,
    /// Not for what is given back ([`Marker::mark_returns`]): the daemon looks by itself within a time that is its own
    /// to keep. A client that knows only of [`Self::UntilRung`] rings for that too.
    Briefly,
}

impl Park {
    /// As in the parked flag, where 0 is a daemon that is awake.
    const fn word(self) -> u64 {
        match self {
            Self::UntilRung => 1,
            Self::Briefly => 2,
        }
    }
}

/// The side that marks rings dirty. Any number of threads, each for its own rings.
#[derive(Clone)]
pub struct Marker {
    parked: Words,
    dirty: Words,
}

/// The side that takes dirty rings and parks. One thread.
pub struct Watcher {
    parked: Words,
    dirty: Words,
}

/// A dirty bitmap of `64 * words` rings with its parked flag in memory of this process, for tests and models.
#[must_use]
pub fn private_dirty(words: usize) -> Option<(Marker, Watcher)> {
    let backing = Backing::private(words + 1);
    let (parked, dirty) = (Words::new(&backing, 0, 1)?, Words::new(&backing, 1, words)?);
    Some((Marker::new(parked.clone(), dirty.clone()), Watcher::new(parked, dirty)))
}

impl Marker {
    pub(crate) fn new(parked: Words, dirty: Words) -> Self {
        Self { parked, dirty }
    }

    /// Marks `ring`, whose news was published before. `true`: the other side is parked; ring its doorbell. A ring
    /// outside the bitmap is not marked.
    #[inline]
    pub fn mark(&self, ring: u32) -> bool {
        self.set_dirty(ring) != 0 && self.take_parked()
    }

    /// As [`Self::mark`], for news that is only what the client gave back: a daemon that has parked
    /// [`Park::Briefly`] is not to be rung for it.
    #[inline]
    pub fn mark_returns(&self, ring: u32) -> bool {
        let parked = self.set_dirty(ring);
        parked != 0 && parked != Park::Briefly.word() && self.take_parked()
    }

    /// Sets the mark, and looks at the parked flag behind it.
    #[inline]
    fn set_dirty(&self, ring: u32) -> u64 {
        // Release: pairs with the Acquire swap in `Watcher::take`; what the ring holds is visible to who takes
        // the bit.
        self.dirty.fetch_or(ring as usize / 64, 1 << (ring % 64), Ordering::Release);
        // Pairs with the fence in `Watcher::park`: either that side sees the bit, or this side sees the flag.
        fence(Ordering::SeqCst);
        self.parked.load(0, Ordering::Relaxed)
    }

    /// Only one of many threads that find the flag set needs to ring.
    #[inline]
    fn take_parked(&self) -> bool {
        self.parked.swap(0, 0, Ordering::Relaxed) != 0
    }
}

impl Watcher {
    pub(crate) fn new(parked: Words, dirty: Words) -> Self {
        Self { parked, dirty }
    }

    /// Appends every dirty ring to `out`, in ascending order, and clears its mark. Rings that do not exist may be
    /// among them: a client can mark what it likes.
    pub fn take(&mut self, out: &mut Vec<u32>) {
        for (word, base) in self.dirty.as_slice().iter().zip((0..).step_by(64)) {
            // The load leaves the line shared while nothing happens.
            if word.load(Ordering::Relaxed) == 0 {
                continue;
            }
            // Acquire: pairs with the Release `fetch_or` in `Marker::mark`.
            let mut bits = word.swap(0, Ordering::Acquire);
            while bits != 0 {
                out.push(base + bits.trailing_zeros());
                bits &= bits - 1;
            }
        }
    }

    /// Says that this side is about to sleep. `true`: a ring is dirty, and it must not.
    #[must_use]
    pub fn park(&mut self, park: Park) -> bool {
        self.parked.swap(0, park.word(), Ordering::Relaxed);
        // Pairs with the fence in `Marker::mark`.
        fence(Ordering::SeqCst);
        self.dirty.as_slice().iter().any(|word| word.load(Ordering::Relaxed) != 0)
    }

    /// Says that this side is awake: nobody needs to ring.
    pub fn unpark(&mut self) {
        self.parked.swap(0, 0, Ordering::Relaxed);
    }
}
