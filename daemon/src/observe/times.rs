//! How long a task was idle, busy, soft and hard backpressured: over windows of 1, 10 and 60 seconds, and since it began.
//!
//! A task's cell is written by its client, so what it says is a claim. [`TaskMeter`] takes it at moments that this side
//! chooses and believes of it what the clock allows: between two of these moments exactly the time passes that passed,
//! and what the claims are over or short of that is put right. So totals never go down, and the four of any span add up
//! to its length whatever a client writes; a lie can only move time between the four.
//!
//! No clock here: whoever reads the cell reads the clock.

use std::collections::VecDeque;

use weir_ipc::task_cell::{TASK_STATES, TaskState, TaskTimes};

/// How many windows there are.
pub const WINDOWS: usize = 3;

/// Their lengths in seconds, the shortest first.
pub const WINDOW_SECONDS: [u32; WINDOWS] = [1, 10, 60];

const SECOND_NS: u64 = 1_000_000_000;

/// The shortest window is kept in steps of at least this.
const FINE_STEP_NS: u64 = SECOND_NS / 10;

/// The longer windows are kept in steps of at least this.
const COARSE_STEP_NS: u64 = SECOND_NS;

/// Most samples of the shortest window: one more than steps in it, and one that is older than it.
const FINE_SAMPLES_MAX: usize = 12;

/// Most samples of the longer windows.
const COARSE_SAMPLES_MAX: usize = 62;

/// At most this share of backpressured time, in milliseconds per second, is [`Level::Ok`]. As Flink has it.
pub const LOW_ABOVE_MS: u32 = 100;

/// At most this share of backpressured time, in milliseconds per second, is [`Level::Low`]. As Flink has it.
pub const HIGH_ABOVE_MS: u32 = 500;

/// How much of its time a task was backpressured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// At most a tenth.
    Ok,
    /// At most half.
    Low,
    /// More.
    High,
}

impl Level {
    /// The level of this many backpressured milliseconds per second.
    #[must_use]
    pub const fn of(backpressured_ms: u32) -> Self {
        if backpressured_ms > HIGH_ABOVE_MS {
            Self::High
        } else if backpressured_ms > LOW_ABOVE_MS {
            Self::Low
        } else {
            Self::Ok
        }
    }

    /// As output shows it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "OK",
            Self::Low => "LOW",
            Self::High => "HIGH",
        }
    }
}

/// What a task did with a second, in milliseconds: the mean of a window. The four add up to 1000.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shares {
    /// Waiting for input.
    pub idle: u32,
    /// Working.
    pub busy: u32,
    /// Waiting for output, still able to react.
    pub soft: u32,
    /// Waiting for output, blocked inside an emit.
    pub hard: u32,
}

impl Shares {
    /// Waiting for output, in either way.
    #[must_use]
    pub const fn backpressured(self) -> u32 {
        self.soft.saturating_add(self.hard)
    }

    /// How much of it that is.
    #[must_use]
    pub const fn level(self) -> Level {
        Level::of(self.backpressured())
    }

    /// The shares of these times in their sum. `None` if there is no time in them.
    #[must_use]
    pub fn of(times_ns: [u64; TASK_STATES]) -> Option<Self> {
        let sum: u128 = times_ns.iter().map(|ns| u128::from(*ns)).sum();
        if sum == 0 {
            return None;
        }
        // Each gets the whole milliseconds up to its end less those up to its beginning, so that nothing is lost.
        let mut ends = 0_u128;
        let mut given = 0_u32;
        let shares = times_ns.map(|ns| {
            ends += u128::from(ns);
            let upto = u32::try_from((ends * 1000 + sum / 2) / sum).unwrap_or(1000);
            upto - std::mem::replace(&mut given, upto)
        });
        let [idle, busy, soft, hard] = shares;
        Some(Self { idle, busy, soft, hard })
    }
}

/// Accepted totals at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sample {
    at_ns: u64,
    totals_ns: [u64; TASK_STATES],
}

/// The times of one task, from its beginning to its end. At most 74 samples of 40 bytes are kept.
#[derive(Clone, Debug)]
pub struct TaskMeter {
    last: Sample,
    /// What the cell said when it was read last; none before the task was started.
    claim: Option<TaskTimes>,
    /// What that came to at `last`.
    claimed_ns: [u64; TASK_STATES],
    fine: VecDeque<Sample>,
    coarse: VecDeque<Sample>,
}

impl TaskMeter {
    /// The meter of a task that was made at this moment, in nanoseconds of the monotonic clock. Before that it had no
    /// time, whatever it will say.
    #[must_use]
    pub fn new(made_at_ns: u64) -> Self {
        Self {
            last: Sample { at_ns: made_at_ns, totals_ns: [0; TASK_STATES] },
            claim: None,
            claimed_ns: [0; TASK_STATES],
            fine: VecDeque::new(),
            coarse: VecDeque::new(),
        }
    }

    /// Takes what the cell says at `now_ns`, which was read after the clock or right before. `None`: there was no
    /// snapshot to be had, and what the cell said before still holds.
    pub fn observe(&mut self, now_ns: u64, read: Option<TaskTimes>) {
        let Some(claim) = read.or(self.claim) else { return };
        let Some(elapsed_ns) = now_ns.checked_sub(self.last.at_ns) else { return };
        let claimed_ns = claim.totals_at(now_ns);
        let mut passed = [0_u64; TASK_STATES];
        for ((passed, now), before) in passed.iter_mut().zip(claimed_ns).zip(self.claimed_ns) {
            *passed = now.saturating_sub(before);
        }
        believe(&mut passed, elapsed_ns, claim.state);
        for (total, passed) in self.last.totals_ns.iter_mut().zip(passed) {
            *total = total.saturating_add(passed);
        }
        self.last.at_ns = now_ns;
        (self.claim, self.claimed_ns) = (Some(claim), claimed_ns);
        let [shortest, .., longest] = WINDOW_SECONDS.map(|seconds| u64::from(seconds) * SECOND_NS);
        keep(&mut self.fine, self.last, (FINE_STEP_NS, shortest, FINE_SAMPLES_MAX));
        keep(&mut self.coarse, self.last, (COARSE_STEP_NS, longest, COARSE_SAMPLES_MAX));
    }

    /// What the task did in the last second of each window, as the last reading had it; `None` for a window that is
    /// longer than the task was watched.
    #[must_use]
    pub fn windows(&self) -> [Option<Shares>; WINDOWS] {
        WINDOW_SECONDS.map(|seconds| {
            let window_ns = u64::from(seconds) * SECOND_NS;
            let begin_ns = self.last.at_ns.checked_sub(window_ns)?;
            let kept = if seconds == 1 { &self.fine } else { &self.coarse };
            // The youngest that is old enough: between full steps the window is up to a step longer than its name.
            let begin = kept.iter().rev().find(|sample| sample.at_ns <= begin_ns)?;
            let mut spans = self.last.totals_ns;
            for (span, before) in spans.iter_mut().zip(begin.totals_ns) {
                *span = span.saturating_sub(before);
            }
            Shares::of(spans)
        })
    }

    /// Nanoseconds in each state since the task was made, in the order of [`TaskState::ALL`]; they add up to the time
    /// from then to the last reading.
    #[must_use]
    pub const fn totals_ns(&self) -> [u64; TASK_STATES] {
        self.last.totals_ns
    }

    /// What it is doing, as its cell said last; none before it was started.
    #[must_use]
    pub fn state(&self) -> Option<TaskState> {
        self.claim.map(|claim| claim.state)
    }
}

/// Makes claimed spans add up to the time that passed: more than that is cut, each in proportion; what is missing was
/// spent in the state that the task says it is in.
fn believe(spans_ns: &mut [u64; TASK_STATES], elapsed_ns: u64, state: TaskState) {
    let sum: u128 = spans_ns.iter().map(|ns| u128::from(*ns)).sum();
    if sum > u128::from(elapsed_ns) {
        for span in spans_ns.iter_mut() {
            let cut = u128::from(*span) * u128::from(elapsed_ns) / sum;
            *span = u64::try_from(cut).unwrap_or(elapsed_ns);
        }
    }
    let sum = spans_ns.iter().fold(0_u64, |sum, ns| sum.saturating_add(*ns));
    if let Some(span) = spans_ns.get_mut(state as usize) {
        *span = span.saturating_add(elapsed_ns.saturating_sub(sum));
    }
}

/// Adds a sample if the last one is a step older, and lets go of those that no window begins at any more.
fn keep(kept: &mut VecDeque<Sample>, sample: Sample, (step_ns, window_ns, samples_max): (u64, u64, usize)) {
    let is_due = kept.back().is_none_or(|last| sample.at_ns.saturating_sub(last.at_ns) >= step_ns);
    if !is_due {
        return;
    }
    kept.push_back(sample);
    let begin_ns = sample.at_ns.saturating_sub(window_ns);
    while kept.get(1).is_some_and(|second| second.at_ns <= begin_ns) || kept.len() > samples_max {
        kept.pop_front();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: u64 = 1_000_000;
    const STEP: u64 = 250 * MS;

    fn times(state: TaskState, since_ns: u64, total_ns: [u64; TASK_STATES]) -> TaskTimes {
        TaskTimes { state, since_ns, total_ns }
    }

    /// A meter of a task that is made at 0 and reads `cell` every quarter of a second up to `until_ns`.
    fn observed(until_ns: u64, mut cell: impl FnMut(u64) -> Option<TaskTimes>) -> TaskMeter {
        let mut meter = TaskMeter::new(0);
        for now in (STEP..=until_ns).step_by(STEP as usize) {
            let read = cell(now);
            meter.observe(now, read);
        }
        meter
    }

    /// An honest cell of a task that repeats these spans of states from 0 on, at `now`.
    fn honest(spans: &[(TaskState, u64)], now: u64) -> TaskTimes {
        let (mut at, mut total) = (0, [0; TASK_STATES]);
        for (state, span) in spans.iter().cycle() {
            if at + span > now {
                return times(*state, at, total);
            }
            total[*state as usize] += span;
            at += span;
        }
        unreachable!("a cycle has no end")
    }

    #[test]
    fn an_honest_task_has_its_shares_in_every_window_and_its_totals() {
        let spans = [
            (TaskState::Busy, 40 * MS),
            (TaskState::Idle, 30 * MS),
            (TaskState::Hard, 20 * MS),
            (TaskState::Soft, 10 * MS),
        ];
        let meter = observed(90_000 * MS, |now| Some(honest(&spans, now)));
        for shares in meter.windows() {
            let shares = shares.expect("every window is full");
            // A window may end within a round of the spans.
            let found = [shares.idle, shares.busy, shares.soft, shares.hard];
            for (found, needed) in found.into_iter().zip([300, 400, 100, 200]) {
                assert!(found.abs_diff(needed) <= 10, "{shares:?}");
            }
            assert_eq!(shares.level(), Level::Low);
        }
        assert_eq!(meter.totals_ns(), [27_000, 36_000, 9_000, 18_000].map(|ms| ms * MS));
        assert_eq!(meter.state(), Some(TaskState::Busy));
    }

    #[test]
    fn an_interval_that_goes_on_counts_at_every_reading() {
        let meter = observed(2_000 * MS, |now| {
            Some(match now {
                0..500_000_000 => times(TaskState::Busy, 0, [0; TASK_STATES]),
                _ => times(TaskState::Hard, 500 * MS, [0, 500 * MS, 0, 0]),
            })
        });
        assert_eq!(meter.totals_ns(), [0, 500 * MS, 0, 1_500 * MS]);
        assert_eq!(meter.windows()[0].map(|shares| shares.hard), Some(1000));
    }

    #[test]
    fn a_window_that_the_task_was_not_watched_for_is_none() {
        let full = |until_ms: u64| {
            let meter = observed(until_ms * MS, |now| Some(honest(&[(TaskState::Idle, 7 * MS)], now)));
            meter.windows().map(|window| window.is_some())
        };
        assert_eq!(full(750), [false, false, false]);
        assert_eq!(full(1_250), [true, false, false]);
        assert_eq!(full(10_000), [true, false, false]);
        assert_eq!(full(10_500), [true, true, false]);
        assert_eq!(full(59_000), [true, true, false]);
        assert_eq!(full(61_500), [true, true, true]);
        assert_eq!(TaskMeter::new(5).windows(), [None; WINDOWS]);
    }

    #[test]
    fn a_window_forgets_what_is_older() {
        let spans = [(TaskState::Hard, 30_000 * MS), (TaskState::Idle, 1_000_000 * MS)];
        let windows = observed(45_000 * MS, |now| Some(honest(&spans, now))).windows();
        let hard = windows.map(|window| window.map(|shares| shares.hard));
        assert_eq!(hard, [Some(0), Some(0), None]);
        let windows = observed(35_000 * MS, |now| Some(honest(&spans, now))).windows();
        let hard = windows[1].map(|shares| shares.hard).unwrap();
        assert!((440..=560).contains(&hard), "5 of 10 s: {hard}");
    }

    #[test]
    fn totals_that_jump_are_cut_to_the_time_that_passed() {
        let jump = |now: u64| [0, now * 1_000, now * 1_000, 0];
        let meter = observed(3_000 * MS, |now| Some(times(TaskState::Busy, now, jump(now))));
        assert_eq!(meter.totals_ns().iter().sum::<u64>(), 3_000 * MS);
        let shares = meter.windows()[0].unwrap();
        assert_eq!((shares.busy, shares.soft, shares.idle + shares.hard), (500, 500, 0));
        let meter = observed(2_000 * MS, |now| Some(times(TaskState::Soft, now, [u64::MAX; TASK_STATES])));
        assert_eq!(meter.totals_ns().iter().sum::<u64>(), 2_000 * MS);
    }

    #[test]
    fn totals_that_go_down_count_as_none_and_the_state_takes_the_time() {
        let mut meter = observed(1_000 * MS, |_| Some(times(TaskState::Busy, 0, [0; TASK_STATES])));
        let before = meter.totals_ns();
        // It begins anew, as if it had been idle ever since.
        meter.observe(1_500 * MS, Some(times(TaskState::Idle, 1_500 * MS, [0; TASK_STATES])));
        let after = meter.totals_ns();
        assert_eq!(before, [0, 1_000 * MS, 0, 0]);
        assert_eq!(after, [500 * MS, 1_000 * MS, 0, 0]);
    }

    #[test]
    fn a_since_in_the_future_adds_nothing_but_the_time_that_passed() {
        let meter = observed(2_000 * MS, |_| Some(times(TaskState::Idle, u64::MAX, [0; TASK_STATES])));
        assert_eq!(meter.totals_ns(), [2_000 * MS, 0, 0, 0]);
        // And one since before the machine was started does not count what was before the task.
        let meter = observed(2_000 * MS, |now| Some(times(TaskState::Hard, 0, [now; TASK_STATES])));
        assert_eq!(meter.totals_ns().iter().sum::<u64>(), 2_000 * MS);
    }

    #[test]
    fn without_a_snapshot_what_was_said_before_goes_on() {
        let mut meter = TaskMeter::new(0);
        meter.observe(500 * MS, None);
        assert_eq!((meter.totals_ns(), meter.state()), ([0; TASK_STATES], None));
        meter.observe(1_000 * MS, Some(times(TaskState::Idle, 0, [0; TASK_STATES])));
        meter.observe(2_500 * MS, None);
        assert_eq!(meter.totals_ns(), [2_500 * MS, 0, 0, 0]);
    }

    #[test]
    fn a_clock_that_goes_back_changes_nothing() {
        let mut meter = observed(2_000 * MS, |now| Some(honest(&[(TaskState::Busy, MS)], now)));
        let (before, windows) = (meter.totals_ns(), meter.windows());
        meter.observe(1_000 * MS, Some(times(TaskState::Hard, 0, [0; TASK_STATES])));
        assert_eq!((meter.totals_ns(), meter.windows()), (before, windows));
    }

    #[test]
    fn memory_is_bounded_however_often_it_is_read() {
        for step in [1, MS, 99 * MS, 101 * MS, 999 * MS, 1_001 * MS, 30_000 * MS] {
            let mut meter = TaskMeter::new(0);
            for round in 1..=2_000_u64 {
                meter.observe(round * step, Some(honest(&[(TaskState::Busy, 1 << 40)], round * step)));
            }
            assert!(meter.fine.len() <= FINE_SAMPLES_MAX && meter.coarse.len() <= COARSE_SAMPLES_MAX);
            // Being bounded costs no window that is due.
            let due = WINDOW_SECONDS.map(|seconds| 2_000 * step >= 2 * u64::from(seconds) * SECOND_NS);
            let full = meter.windows().map(|window| window.is_some());
            assert!(due.iter().zip(full).all(|(due, full)| !due || full), "step {step}: {full:?}");
        }
    }

    #[test]
    fn the_levels_are_those_of_flink() {
        let levels = [0, 100, 101, 500, 501, 1000, u32::MAX].map(Level::of);
        let needed = [Level::Ok, Level::Ok, Level::Low, Level::Low, Level::High, Level::High, Level::High];
        assert_eq!(levels, needed);
    }

    proptest! {
        /// Whatever is written into a cell: totals grow by the time that passed, and full windows add up to a second.
        #[test]
        fn any_cell_is_clamped(
            reads in proptest::collection::vec(
                (1_u64..3_000_000_000, proptest::option::of((0_usize..4, any::<u64>(), any::<[u64; TASK_STATES]>()))),
                1..200,
            ),
            made_at_ns in 0_u64..1 << 40,
        ) {
            let mut meter = TaskMeter::new(made_at_ns);
            let (mut now, mut began) = (made_at_ns, None);
            for (step, read) in reads {
                now += step;
                let before = meter.totals_ns();
                let read = read.map(|(state, since, total)| times(TaskState::ALL[state], since, total));
                if read.is_some() {
                    began = Some(made_at_ns);
                }
                meter.observe(now, read);
                let after = meter.totals_ns();
                prop_assert!(before.iter().zip(after).all(|(before, after)| *before <= after));
                let sum: u64 = after.iter().sum();
                prop_assert_eq!(sum, began.map_or(0, |began| now - began));
                for shares in meter.windows().into_iter().flatten() {
                    prop_assert_eq!(shares.idle + shares.busy + shares.soft + shares.hard, 1000);
                }
            }
        }
    }
}
