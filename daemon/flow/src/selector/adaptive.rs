//! Adaptive selection: records go round those consumers that keep up, instead of waiting for one that does not.
//!
//! For consumers that can stand in for each other, and only for them ([`Interchangeable`]). What is known of a target:
//! - **outstanding**: bytes handed over for it and not yet given back by its consumer. What waits in an open segment is
//!   emitted, but it cannot be worked off, and it is less than a segment;
//! - **rate**: bytes that its consumer gives back per second while it has something to give back. A target whose rate is
//!   not known yet counts with the median of the others. One that gives nothing back although it could loses its rate
//!   by and by, and one that goes on has it again just as soon;
//! - **score**: outstanding / rate, the time after which it would have done all that it has; at least the time for which
//!   it has given nothing back although it could.
//!
//! A look is made every [`LOOK_NS`] or [`LOOK_BYTES`], whichever comes first. It says which targets are *eligible*: not
//! those that have no credit and as many segments as they may hold, and not those whose score is over twice the median.
//! A target that was left out for its score comes back at the median, so that one at the edge does not go in and out. With less than [`DELAY_MIN_NS`] of work nobody is left out: that is no queue, it is the grain
//! of the signal. Between two looks records go round the eligible targets in turn. While all are eligible this is
//! exactly the turn of the selector inside.
//!
//! What a record costs does not hang on how many targets there are or are left out: each target knows the next eligible
//! one. That is made anew at a look that changed who is eligible. Whoever is taken out between two looks points to the
//! one behind it, and such a way is made short when it is walked (as in a disjoint-set forest).
//!
//! **A target that recovers is found without being tried.** It is left out for its score only while it has something
//! outstanding, and what it has it works off; when that is done its score is 0. Its rate is measured on the way.
//!
//! Whoever emits may find out between two looks that a target cannot take a record ([`Adaptive::handle_blocked`]). When
//! none is left it looks again, and waits until any of them can, not until a certain one can.

use alloc::vec;
use alloc::vec::Vec;

use super::Selector;
use crate::ids::Time;

/// Longest time between two looks while records are emitted, in nanoseconds: 1 ms, for up to 64 targets. A partition
/// with more looks as much less often, so that looking costs the same share of its time.
pub const LOOK_NS: u64 = 1_000_000;

/// Most bytes emitted between two looks: 64 KiB, for up to 64 targets.
pub const LOOK_BYTES: u64 = 64 << 10;

/// Most records emitted without asking for the time.
const CLOCK_RECORDS_MAX: u64 = 64;

/// A target with less work than this is never left out for its score: 10 ms, in nanoseconds.
pub const DELAY_MIN_NS: u64 = 10_000_000;

/// The same as a score, in nanoseconds.
const LEAST: f64 = DELAY_MIN_NS as f64;

/// How long a rate is remembered, in nanoseconds: after so much time with nothing given back it counts half.
const MEMORY_NS: f64 = 100e6;

/// The rate of all targets while none is known: any, since only their ratios matter then. In bytes per nanosecond.
const RATE_UNKNOWN: f64 = 1.0;

/// A target whose score is over so many times the median is left out.
const SLOW_OVER: f64 = 2.0;

/// And comes back at so many times the median. The distance is larger than what one segment changes for most.
const SLOW_UNTIL: f64 = 1.0;

/// No target.
const NOBODY: u32 = u32::MAX;

/// A selector that may be overruled: any of its targets can take any record. Not for one that goes by a key.
pub trait Interchangeable: Selector {
    /// The record goes to `taken`, which may be the last choice itself. The turn goes on behind it.
    fn handle_taken(&mut self, taken: u32);
}

/// What is known of a target at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TargetView {
    /// Bytes emitted to it that the daemon has not been given yet.
    pub unsubmitted_bytes: u64,
    /// Bytes that its consumer has given back, ever.
    pub consumed_bytes: u64,
    /// A record for it would wait now: it has no segment open, no credit, and as many segments as it may hold.
    pub is_full: bool,
    /// Its consumer is gone, for good.
    pub is_gone: bool,
}

/// When a target can take a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Take {
    /// Without a wait.
    Now,
    /// After a wait.
    Later,
    /// Its consumer is gone.
    Never,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Eligible,
    /// Its score was over the bound.
    Slow,
    /// A record for it would wait.
    Full,
    Gone,
}

#[derive(Clone, Copy, Debug)]
struct Target {
    state: State,
    consumed: u64,
    /// Bytes per nanosecond.
    rate: Option<f64>,
    /// Since when nothing was given back, or nothing was there to be given back.
    since: Time,
    /// Nanoseconds until all of it would be done.
    score: f64,
}

/// Goes round the targets of `S` that keep up.
///
/// It cannot be had for a selector that goes by a key, whose records must not change their consumer:
///
/// ```
/// use weir_flow::selector::{Rebalance, adaptive::Adaptive};
/// let _ = Adaptive::new(Rebalance::starting_at(0), 4);
/// ```
///
/// ```compile_fail
/// use weir_flow::selector::{Hash, adaptive::Adaptive};
/// let _ = Adaptive::new(Hash::new(4), 4);
/// ```
#[derive(Debug)]
pub struct Adaptive<S> {
    inner: S,
    targets: Vec<Target>,
    /// Bytes emitted to each target. Apart from the rest, since this is what each record touches.
    emitted: Vec<u64>,
    /// By target: itself if it is eligible, or else one that is not behind the first eligible one behind it, going
    /// round. [`NOBODY`] if it is the only target, or if none was eligible at the last look.
    next: Vec<u32>,
    /// How many targets are eligible.
    eligible: u32,
    /// Whether `next` is as the last look left it, each entry the first eligible target.
    is_short: bool,
    /// Whether the rate of a target that is there is not known.
    has_unknown: bool,
    /// When the last look was.
    looked_at: Option<Time>,
    /// Bytes that may be emitted before the next look.
    bytes_left: u64,
    /// Records emitted since the last look.
    records: u64,
    /// At how many of them the time is asked for.
    ask_at: u64,
    scores: Vec<f64>,
}

impl<S: Interchangeable> Adaptive<S> {
    /// With so many targets, of which nothing is known: all are eligible.
    #[must_use]
    pub fn new(inner: S, targets: u32) -> Self {
        let target = Target { state: State::Eligible, consumed: 0, rate: None, since: Time(0), score: 0.0 };
        Self {
            inner,
            targets: vec![target; targets as usize],
            emitted: vec![0; targets as usize],
            next: (0..targets).collect(),
            eligible: targets,
            is_short: true,
            has_unknown: true,
            looked_at: None,
            bytes_left: LOOK_BYTES,
            records: 0,
            ask_at: 1,
            scores: Vec::with_capacity(targets as usize),
        }
    }

    /// How many targets there are.
    #[must_use]
    pub fn targets(&self) -> u32 {
        self.targets.len() as u32
    }

    /// The target of the next record: the choice of the selector inside, or the next eligible one behind it. `None` if
    /// none is eligible.
    #[inline]
    pub fn select(&mut self, record: &[u8], key: Option<&[u8]>) -> Option<u32> {
        let wanted = self.inner.select(record, key, self.targets());
        // Mostly the same. Not told apart: with many targets left out a branch would be guessed wrong too often.
        let chosen = self.next_of(wanted);
        if !self.is_eligible(chosen) {
            return self.select_far(wanted);
        }
        self.inner.handle_taken(chosen);
        Some(chosen)
    }

    #[inline]
    fn next_of(&self, target: u32) -> u32 {
        self.next.get(target as usize).copied().unwrap_or(NOBODY)
    }

    /// Whether a record may go to this target.
    #[inline]
    #[must_use]
    pub fn is_eligible(&self, target: u32) -> bool {
        self.next.get(target as usize).is_some_and(|next| *next == target)
    }

    /// Whether this target could take a record, and is left out because it has too much to do.
    #[must_use]
    pub fn is_slow(&self, target: u32) -> bool {
        self.targets.get(target as usize).is_some_and(|target| target.state == State::Slow)
    }

    /// Whether there is a target that is left out because it has too much to do, and could take a record.
    #[must_use]
    pub fn has_slow(&self) -> bool {
        self.targets.iter().any(|target| target.state == State::Slow)
    }

    /// Whether the consumers of all targets are gone.
    #[must_use]
    pub fn are_all_gone(&self) -> bool {
        self.targets.iter().all(|target| target.state == State::Gone)
    }

    /// As [`Self::select`], and asks `take` whether the target can take the record. Those that cannot are taken out, so
    /// that each is asked at most once. `None` if none is left: look again, or wait for any of them.
    ///
    /// # Errors
    /// Those of `take`.
    pub fn select_able<E>(
        &mut self,
        record: &[u8],
        key: Option<&[u8]>,
        mut take: impl FnMut(u32) -> Result<Take, E>,
    ) -> Result<Option<u32>, E> {
        while let Some(chosen) = self.select(record, key) {
            match take(chosen)? {
                Take::Now => return Ok(Some(chosen)),
                Take::Later => self.handle_blocked(chosen),
                Take::Never => self.handle_gone(chosen),
            }
        }
        Ok(None)
    }

    /// The first eligible target from `wanted` on, if the way to it is longer than one step. It is one step afterwards
    /// for all targets on the way.
    #[cold]
    fn select_far(&mut self, wanted: u32) -> Option<u32> {
        if self.eligible == 0 {
            return None;
        }
        let mut chosen = wanted;
        while !self.is_eligible(chosen) {
            // Behind a target that there is not the first one comes.
            chosen = if chosen < self.targets() { self.next_of(chosen) } else { 0 };
        }
        let mut on_the_way = wanted;
        while on_the_way != chosen
            && let Some(next) = self.next.get_mut(on_the_way as usize)
        {
            on_the_way = core::mem::replace(next, chosen);
        }
        self.inner.handle_taken(chosen);
        Some(chosen)
    }

    /// Makes every way to an eligible target one step.
    fn shorten(&mut self) {
        let is_eligible = |target: &Target| target.state == State::Eligible;
        // Behind the last one the first one comes.
        let mut ahead = self.targets.iter().position(is_eligible).map_or(NOBODY, |first| first as u32);
        self.eligible = 0;
        let all = (0..self.targets.len() as u32).zip(&mut self.next).zip(&self.targets);
        for ((index, next), target) in all.rev() {
            if is_eligible(target) {
                ahead = index;
                self.eligible += 1;
            }
            *next = ahead;
        }
        self.is_short = true;
    }

    /// Takes a target out until the next look: a record for it would wait.
    pub fn handle_blocked(&mut self, target: u32) {
        self.leave_out(target, State::Full);
    }

    /// Takes a target out for good: its consumer is gone.
    pub fn handle_gone(&mut self, target: u32) {
        self.leave_out(target, State::Gone);
    }

    fn leave_out(&mut self, target: u32, state: State) {
        if self.is_eligible(target) {
            let behind = if target + 1 < self.targets() { target + 1 } else { 0 };
            if let Some(next) = self.next.get_mut(target as usize) {
                *next = if behind == target { NOBODY } else { behind };
            }
            self.eligible -= 1;
            self.is_short = false;
        }
        if let Some(target) = self.targets.get_mut(target as usize)
            && target.state != State::Gone
        {
            target.state = state;
        }
    }

    /// A record was emitted to this target, with so many bytes as they count at the daemon. `true`: ask
    /// [`Self::is_due`] what time means for the next look.
    #[inline]
    #[must_use]
    pub fn handle_emitted(&mut self, target: u32, bytes: u64) -> bool {
        if let Some(emitted) = self.emitted.get_mut(target as usize) {
            *emitted += bytes;
        }
        self.bytes_left = self.bytes_left.saturating_sub(bytes);
        self.records += 1;
        self.bytes_left == 0 || self.records >= self.ask_at
    }

    /// Records come seldom from here on, or came seldom until here: the time is asked for at the next one.
    pub fn handle_pause(&mut self) {
        self.ask_at = self.ask_at.min(self.records + 1);
    }

    /// Whether a look is due. If not, it is set how many records may pass before this is asked again.
    #[must_use]
    pub fn is_due(&mut self, now: Time) -> bool {
        let Some(looked_at) = self.looked_at else { return true };
        let (elapsed, between) = (now.since_ns(looked_at), LOOK_NS.saturating_mul(self.scale()));
        if self.bytes_left == 0 || elapsed >= between {
            return true;
        }
        // Half of the time that is left, at the pace so far: asked a few times too often rather than too late.
        let each = (elapsed / self.records.max(1)).max(1);
        self.ask_at = self.records + ((between - elapsed) / 2 / each).clamp(1, CLOCK_RECORDS_MAX);
        false
    }

    /// How many times less often than with few targets looks are made.
    fn scale(&self) -> u64 {
        self.targets.len().div_ceil(64).max(1) as u64
    }

    /// Looks at every target and says anew which are eligible.
    pub fn look(&mut self, now: Time, mut view: impl FnMut(u32) -> TargetView) {
        if self.looked_at.is_none() {
            // Before that nobody can have waited.
            self.targets.iter_mut().for_each(|target| target.since = now);
        }
        let prior = if self.has_unknown { self.median_rate() } else { RATE_UNKNOWN };
        // How many are there, how many of them have next to nothing to do, and whether anyone has too much.
        let (mut there, mut light, mut is_any_heavy) = (0_usize, 0_usize, false);
        let mut is_changed = !self.is_short;
        self.has_unknown = false;
        let all = self.targets.iter_mut().zip(&self.emitted).zip(&self.next);
        for (index, ((target, emitted), next)) in (0..).zip(all) {
            target.measure(now, *emitted, &view(index), prior);
            let (is_there, is_heavy) = (target.state != State::Gone, target.is_heavy(LEAST));
            there += usize::from(is_there);
            light += usize::from(is_there & (target.score <= LEAST));
            is_any_heavy |= is_heavy;
            self.has_unknown |= is_there & target.rate.is_none();
            if target.state == State::Slow && !is_heavy {
                target.state = State::Eligible;
            }
            is_changed |= (*next == index) != (target.state == State::Eligible);
        }
        if is_any_heavy {
            // What the median is matters only if it is more than the least.
            let is_light = light > there.saturating_sub(1) / 2;
            let median = if is_light { LEAST } else { self.median_score().max(LEAST) };
            is_changed |= self.leave_out_slow(median);
        }
        if is_changed {
            self.shorten();
        }
        let elapsed = self.looked_at.map_or(0, |looked_at| now.since_ns(looked_at));
        let each = (elapsed / self.records.max(1)).max(1);
        (self.records, self.ask_at) = (0, (LOOK_NS / 2 / each).clamp(1, CLOCK_RECORDS_MAX));
        self.looked_at = Some(now);
        self.bytes_left = LOOK_BYTES.saturating_mul(self.scale());
    }

    /// Leaves out who has too much to do. Whether that is another one than before.
    fn leave_out_slow(&mut self, median: f64) -> bool {
        let mut is_changed = false;
        for ((index, target), next) in (0..).zip(&mut self.targets).zip(&self.next) {
            if matches!(target.state, State::Eligible | State::Slow) {
                target.state = if target.is_heavy(median) { State::Slow } else { State::Eligible };
                is_changed |= (*next == index) != (target.state == State::Eligible);
            }
        }
        is_changed
    }

    /// The median of the rates that are known.
    fn median_rate(&mut self) -> f64 {
        self.scores.clear();
        self.scores.extend(self.targets.iter().filter_map(|target| target.rate));
        lower_median(&mut self.scores).unwrap_or(RATE_UNKNOWN)
    }

    /// The median of the scores of all whose consumers are there. Of an even number the lower one of the two in the
    /// middle: of two targets one is then slow when the other is twice as fast.
    fn median_score(&mut self) -> f64 {
        self.scores.clear();
        let there = self.targets.iter().filter(|target| target.state != State::Gone);
        self.scores.extend(there.map(|target| target.score));
        lower_median(&mut self.scores).unwrap_or(0.0)
    }
}

impl Target {
    /// Whether it has too much to do beside others of which the one in the middle has so much. One that is left out
    /// already stays so for longer.
    fn is_heavy(&self, median: f64) -> bool {
        let bound = match self.state {
            State::Slow => SLOW_UNTIL,
            State::Eligible => SLOW_OVER,
            State::Full | State::Gone => return false,
        };
        self.score > bound * median
    }

    /// Takes in what is known now, after so many bytes were emitted to it.
    fn measure(&mut self, now: Time, emitted: u64, view: &TargetView, prior: f64) {
        if view.is_gone || self.state == State::Gone {
            self.state = State::Gone;
            return;
        }
        if view.is_full {
            self.state = State::Full;
        } else if self.state == State::Full {
            self.state = State::Eligible;
        }
        let consumed = view.consumed_bytes.clamp(self.consumed, emitted.max(self.consumed));
        let gained = consumed - self.consumed;
        self.consumed = consumed;
        let submitted = emitted.saturating_sub(view.unsubmitted_bytes);
        let outstanding = submitted.saturating_sub(consumed);
        let is_idle = outstanding == 0;
        if gained > 0 {
            self.learn(gained, now.since_ns(self.since), is_idle);
        }
        if gained > 0 || is_idle {
            self.since = now;
        }
        if is_idle {
            // What it could take it has taken.
            self.score = 0.0;
            return;
        }
        let waited = now.since_ns(self.since) as f64;
        // The rate is thought to be less the longer nothing was given back.
        let needed = outstanding as f64 * (MEMORY_NS + waited) / (self.rate.unwrap_or(prior) * MEMORY_NS);
        // One that has done nothing for some time is not thought to be done in less than that.
        self.score = needed.max(waited);
    }

    /// So much was given back in so much time. If there is nothing more to be given back it may have been done at any
    /// moment of that time: then it only says that the rate is no lower.
    fn learn(&mut self, gained: u64, elapsed_ns: u64, is_idle: bool) {
        let (gained, elapsed) = (gained as f64, elapsed_ns.max(1) as f64);
        match self.rate {
            None if is_idle => {}
            None => self.rate = Some(gained / elapsed),
            Some(rate) if is_idle && gained < rate * elapsed => {}
            // The new rate counts by how long it was measured.
            Some(rate) => self.rate = Some((rate * MEMORY_NS + gained) / (MEMORY_NS + elapsed)),
        }
    }
}

fn lower_median(values: &mut [f64]) -> Option<f64> {
    let middle = values.len().checked_sub(1)? / 2;
    Some(*values.select_nth_unstable_by(middle, f64::total_cmp).1)
}
