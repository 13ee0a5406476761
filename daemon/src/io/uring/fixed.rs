//! Registered regions, for zero-copy sends that name their memory by a number instead of having the kernel look up and hold
//! its pages anew each time.
//!
//! | state of a region | what happens | next |
//! |---|---|---|
//! | fresh | 32 batches that drew on it alone were sent without a copy | asked |
//! | asked | a thread beside the shards registers it in a ring of its own; the answer is taken with its next batch, or when the shard's ring is parked | ready, or refused |
//! | ready | this ring has a share in that registration; batches that draw on it alone name it | broken, when the kernel refuses such a batch |
//! | refused | no memory may be locked: it waits for 4,096 such batches, then for twice as many each time | asked |
//! | broken | it is as if it had never been registered | |
//!
//! In every state but *ready* a batch is sent without registration, and so is one that draws on two regions, or whose
//! headers are too long: the headers of a registered batch are copied to the region's tail ([`Tail`]).
//!
//! A registration ends when its region is forgotten and the kernel has let go of the last batch that names it.

mod registrar;
#[cfg(test)]
mod tests;

pub(super) use registrar::{Kernel, Registrar, Source};

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::io::{Errno, RegisteredCounters, SendBatch, SendPart};
use crate::memory::{SendRegion, TAIL_BYTES, Tail};

/// Batches of one region that name it at a time, and each have a part of its tail.
const SLOTS: u32 = u32::BITS;

/// Longest headers of a batch that names a region, in bytes.
pub(super) const SLOT_BYTES: usize = TAIL_BYTES / SLOTS as usize;

/// Regions of one ring that may be registered.
pub(super) const REGIONS_MAX: u16 = 256;

/// Largest region that is registered, in bytes: it takes the kernel some milliseconds.
const REGION_BYTES_MAX: u64 = 256 << 20;

/// Batches after which a region is worth registering.
const BATCHES_MIN: u32 = 32;

/// Batches after which a region that was refused is asked for again; and the most, after doubling.
const BATCHES_AFTER_REFUSAL: u32 = 4096;
const BATCHES_AFTER_REFUSAL_MAX: u32 = 1 << 20;

/// Longest time for which a ring sleeps that has asked for a registration. Nothing wakes it for the answer, and until that is
/// taken it keeps a ring of its own and pages that nobody counts.
pub(super) const ANSWER_WAIT: Duration = Duration::from_millis(100);

/// What the table of registrations of a ring can be told.
pub(super) trait Registrations {
    /// What has a registration until this ring has a share in it.
    type Source;

    /// Wants a region and its tail registered. The answer comes to `job`, from any thread and at any time.
    fn ask(&mut self, tail: &Tail, job: &Arc<Job<Self::Source>>);

    /// Gets a share in a registration, under this number.
    fn share(&mut self, number: u16, source: &Self::Source) -> Result<(), Errno>;

    /// Gives the share of this number up. The kernel has let go of all that named it.
    fn give_up(&mut self, number: u16) -> Result<(), Errno>;
}

/// A registration that was asked for.
pub(super) struct Job<S>(Mutex<Answer<S>>);

enum Answer<S> {
    Awaited,
    Given(Result<S, Errno>),
    /// Nobody wants it any more.
    Unwanted,
}

impl<S> Job<S> {
    fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(Answer::Awaited)))
    }

    fn replace(&self, answer: Answer<S>) -> Answer<S> {
        std::mem::replace(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner), answer)
    }

    /// Answers it. What nobody wants ends here.
    pub(super) fn answer(&self, result: Result<S, Errno>) {
        let mut place = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*place, Answer::Awaited) {
            *place = Answer::Given(result);
        }
    }

    /// Whether the answer is still wanted.
    fn is_wanted(&self) -> bool {
        !matches!(*self.0.lock().unwrap_or_else(PoisonError::into_inner), Answer::Unwanted)
    }

    /// The answer, once.
    fn poll(&self) -> Option<Result<S, Errno>> {
        let mut place = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !matches!(*place, Answer::Given(_)) {
            return None;
        }
        match std::mem::replace(&mut *place, Answer::Unwanted) {
            Answer::Given(result) => Some(result),
            Answer::Awaited | Answer::Unwanted => None,
        }
    }
}

enum State<S> {
    /// So many batches are left until it is asked for; and how many it waits for if it is refused then.
    Waiting {
        batches: u32,
        next: u32,
    },
    Asked {
        job: Arc<Job<S>>,
        next: u32,
    },
    Ready,
    Broken,
}

struct Entry<S> {
    tail: Tail,
    state: State<S>,
    /// Whether this ring has a share in a registration.
    is_shared: bool,
    /// Parts of the tail that are in use: each is of a batch that the kernel has not let go of.
    slots: u32,
    /// Whether it had a batch since [`Fixed::make_room`] came by.
    is_used: bool,
    is_forgotten: bool,
}

/// What a batch has of a region that it names, until the kernel has let go of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Named {
    number: u16,
    slot: u8,
}

impl Named {
    /// The number that the kernel knows the region by.
    pub(super) const fn number(self) -> u16 {
        self.number
    }
}

/// The regions of one ring.
pub(super) struct Fixed<S> {
    entries: Vec<Option<Entry<S>>>,
    free: Vec<u16>,
    /// By the address of the region, which an entry keeps alive.
    by_region: BTreeMap<usize, u16>,
    /// Entries that have asked, in that order, which is the one of the answers; and some whose answer was taken since.
    asked: VecDeque<u16>,
    /// The entry that is looked at next when a region finds no room.
    hand: u16,
    is_on: bool,
    counters: RegisteredCounters,
}

impl<S> Fixed<S> {
    /// No region is ever registered unless `is_on`.
    pub(super) fn new(is_on: bool) -> Self {
        Self {
            entries: Vec::new(),
            free: Vec::new(),
            by_region: BTreeMap::new(),
            asked: VecDeque::new(),
            hand: 0,
            is_on,
            counters: RegisteredCounters::default(),
        }
    }

    /// The error is the last one, as long as a region has no registration because of one.
    pub(super) fn counters(&self) -> RegisteredCounters {
        let is_refused = |entry: &Entry<S>| match entry.state {
            State::Waiting { next, .. } | State::Asked { next, .. } => next > BATCHES_AFTER_REFUSAL,
            State::Broken => true,
            State::Ready => false,
        };
        let errno = if self.entries.iter().flatten().any(is_refused) { self.counters.errno } else { 0 };
        RegisteredCounters { errno, ..self.counters }
    }

    /// A batch is about to be sent without a copy. If it can name its region, what it has of that, and where its headers
    /// are from now on, until [`Self::let_go`].
    pub(super) fn name(
        &mut self,
        batch: &SendBatch,
        kernel: &mut impl Registrations<Source = S>,
    ) -> Option<(Named, *const u8)> {
        if !self.is_on || batch.headers.len() > SLOT_BYTES {
            return None;
        }
        let number = self.number_of(only_region(batch)?)?;
        let entry = self.entries.get_mut(usize::from(number))?.as_mut()?;
        entry.is_used = true;
        if entry.advance(number, kernel, &mut self.counters) {
            self.asked.push_back(number);
        }
        if !matches!(entry.state, State::Ready) {
            return None;
        }
        let slot = entry.slots.trailing_ones();
        if slot >= SLOTS {
            return None;
        }
        let headers = entry.tail.write(slot as usize * SLOT_BYTES, &batch.headers)?;
        entry.slots |= 1 << slot;
        self.counters.sends += 1;
        Some((Named { number, slot: slot as u8 }, headers))
    }

    /// Whether an answer is to come.
    pub(super) fn is_asking(&self) -> bool {
        !self.asked.is_empty()
    }

    /// Takes the answers that are there, also those of regions that had no batch since.
    pub(super) fn take_answers(&mut self, kernel: &mut impl Registrations<Source = S>) {
        while let Some(number) = self.asked.front().copied() {
            let entry = self.entries.get_mut(usize::from(number)).and_then(Option::as_mut);
            if entry.is_some_and(|entry| !entry.take_answer(number, kernel, &mut self.counters)) {
                return;
            }
            self.asked.pop_front();
        }
    }

    /// The kernel has let go of a batch.
    pub(super) fn let_go(&mut self, named: Named, kernel: &mut impl Registrations<Source = S>) {
        let Some(Some(entry)) = self.entries.get_mut(usize::from(named.number)) else { return };
        entry.slots &= !(1 << named.slot);
        if entry.is_forgotten {
            self.end(named.number, kernel);
        }
    }

    /// The kernel refused a batch for what it names.
    pub(super) fn handle_refused(&mut self, named: Named, errno: Errno) {
        if let Some(Some(entry)) = self.entries.get_mut(usize::from(named.number)) {
            entry.state = State::Broken;
            self.counters.refused += 1;
            self.counters.errno = errno.0;
        }
    }

    /// No batch will draw on this region any more.
    pub(super) fn forget(&mut self, region: &Arc<SendRegion>, kernel: &mut impl Registrations<Source = S>) {
        let Some(number) = self.by_region.remove(&Arc::as_ptr(region).addr()) else { return };
        if let Some(Some(entry)) = self.entries.get_mut(usize::from(number)) {
            entry.is_forgotten = true;
            if let State::Asked { job, .. } = &entry.state {
                // What is there already ends with this.
                drop(job.replace(Answer::Unwanted));
                self.asked.retain(|asked| *asked != number);
            }
        }
        self.end(number, kernel);
    }

    /// Forgets all that no batch names.
    pub(super) fn forget_all(&mut self, kernel: &mut impl Registrations<Source = S>) {
        let regions: Vec<_> =
            self.entries.iter().flatten().map(|entry| Arc::clone(entry.tail.region())).collect();
        regions.iter().for_each(|region| self.forget(region, kernel));
    }

    /// Ends a registration that no batch names.
    fn end(&mut self, number: u16, kernel: &mut impl Registrations<Source = S>) {
        let Some(place) = self.entries.get_mut(usize::from(number)) else { return };
        let Some(entry) = place.as_ref().filter(|entry| entry.slots == 0) else { return };
        if entry.is_shared {
            self.counters.regions -= 1;
            self.counters.bytes -= entry.tail.region().bytes();
            if kernel.give_up(number).is_err() {
                // The kernel keeps the pages, so the region keeps its place and its charge.
                return;
            }
        }
        // Last, so that the region's memory is free when nobody refers to the region any more.
        *place = None;
        self.free.push(number);
    }

    fn number_of(&mut self, region: &Arc<SendRegion>) -> Option<u16> {
        let address = Arc::as_ptr(region).addr();
        if let Some(number) = self.by_region.get(&address) {
            return Some(*number);
        }
        if region.bytes() > REGION_BYTES_MAX {
            return None;
        }
        let grown = u16::try_from(self.entries.len()).ok().filter(|number| *number < REGIONS_MAX);
        if self.free.is_empty() && grown.is_none() && !self.make_room() {
            return None;
        }
        let tail = Tail::take(region)?;
        let number = self.free.pop().or(grown)?;
        let state = State::Waiting { batches: BATCHES_MIN, next: BATCHES_AFTER_REFUSAL };
        let entry =
            Some(Entry { tail, state, is_shared: false, slots: 0, is_used: true, is_forgotten: false });
        match self.entries.get_mut(usize::from(number)) {
            Some(place) => *place = entry,
            None => self.entries.push(entry),
        }
        self.by_region.insert(address, number);
        Some(number)
    }

    /// Lets go of the region of the next entry, if that has no registration, has not asked for one, and had no batch since this
    /// came by: many that sent a little must not shut out one that sends a lot, nor many that send a lot each other. One entry
    /// is looked at, so that a batch costs no more for it.
    fn make_room(&mut self) -> bool {
        let number = self.hand;
        self.hand = (number + 1) % REGIONS_MAX;
        let Some(Some(entry)) = self.entries.get_mut(usize::from(number)) else { return false };
        let was_used = std::mem::take(&mut entry.is_used);
        // One that was refused waits longer than others, and one that is broken is not to be asked for again: the place says so.
        let is_new = matches!(entry.state, State::Waiting { next, .. } if next == BATCHES_AFTER_REFUSAL);
        if was_used || !is_new || entry.is_shared || entry.slots > 0 {
            return false;
        }
        self.by_region.remove(&Arc::as_ptr(entry.tail.region()).addr());
        if let Some(place) = self.entries.get_mut(usize::from(number)) {
            *place = None;
        }
        self.free.push(number);
        true
    }
}

impl<S> Entry<S> {
    /// One batch more, or an answer. Whether it asks now.
    fn advance(
        &mut self,
        number: u16,
        kernel: &mut impl Registrations<Source = S>,
        counters: &mut RegisteredCounters,
    ) -> bool {
        let State::Waiting { batches, next } = &mut self.state else {
            self.take_answer(number, kernel, counters);
            return false;
        };
        *batches = batches.saturating_sub(1);
        if *batches > 0 {
            return false;
        }
        let (job, next) = (Job::new(), *next);
        kernel.ask(&self.tail, &job);
        self.state = State::Asked { job, next };
        true
    }

    /// Takes the answer, if it has asked and there is one. Whether none is to come any more.
    fn take_answer(
        &mut self,
        number: u16,
        kernel: &mut impl Registrations<Source = S>,
        counters: &mut RegisteredCounters,
    ) -> bool {
        let State::Asked { job, next } = &self.state else { return true };
        let Some(answer) = job.poll() else { return false };
        let next = *next;
        match answer.and_then(|source| kernel.share(number, &source)) {
            Ok(()) => {
                self.is_shared = true;
                self.state = State::Ready;
                counters.regions += 1;
                counters.bytes += self.tail.region().bytes();
            }
            Err(errno) => {
                counters.refused += 1;
                counters.errno = errno.0;
                self.state = match errno.0 {
                    libc::ENOMEM | libc::EPERM | libc::EAGAIN | libc::EMFILE | libc::ENFILE => {
                        let later = (2 * next).min(BATCHES_AFTER_REFUSAL_MAX);
                        State::Waiting { batches: next, next: later }
                    }
                    _ => State::Broken,
                };
            }
        }
        true
    }
}

/// The region that all slices of a batch lie in.
fn only_region(batch: &SendBatch) -> Option<&Arc<SendRegion>> {
    let mut regions = batch.parts.iter().filter_map(|part| match part {
        SendPart::Region { region, .. } => Some(region),
        SendPart::Header { .. } => None,
    });
    let first = regions.next()?;
    regions.all(|region| Arc::ptr_eq(region, first)).then_some(first)
}
