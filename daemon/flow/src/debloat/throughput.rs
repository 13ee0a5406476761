//! How many bytes a gate's application consumes in a second of the time in which it has something to consume.
//!
//! A clock runs while anything that arrived has not been given back, and stands while the application waits for data:
//! so what is measured is what it could consume, not what it got. Give-backs are rare events and of any size; a window
//! that is cut by the clock alone would see one too many or one too few of them. So bytes are set against the time from
//! the give-back before them to their own: whole intervals only. The one that goes on counts when it is longer than
//! those before it let expect, so that an application that stops is noticed without a give-back.

use alloc::collections::VecDeque;

use crate::ids::Time;

/// Rows that are kept: the window is as many periods long.
const ROWS: usize = 5;

/// Rows that [`Throughput::recent`] goes by.
const RECENT_ROWS: usize = 2;

/// What was given back in one period, and how long that took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Row {
    bytes: u64,
    busy_ns: u64,
    /// The largest give-back of it.
    largest: u64,
    /// When it was looked at.
    ended: Time,
}

/// The meter of one gate. Time is an argument; one that runs backwards counts as one that stands.
#[derive(Clone, Debug, Default)]
pub struct Throughput {
    /// Since when the clock runs; none while it stands.
    since: Option<Time>,
    /// What the clock showed then, in nanoseconds.
    shown_ns: u64,
    /// What it showed at the end of the last row, and at the last give-back.
    row_ns: u64,
    last_ns: u64,
    bytes: u64,
    largest: u64,
    rows: VecDeque<Row>,
}

impl Throughput {
    /// A meter that has seen nothing, and whose clock stands.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// There is something to consume from now on: the clock runs. Without effect if it does.
    pub fn resume(&mut self, now: Time) {
        self.since.get_or_insert(now);
    }

    /// There is nothing to consume from now on: the clock stands. Without effect if it does.
    pub fn pause(&mut self, now: Time) {
        self.shown_ns = self.busy_ns(now);
        self.since = None;
    }

    /// So many bytes were given back.
    pub fn count(&mut self, bytes: u64, now: Time) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.largest = self.largest.max(bytes);
        self.last_ns = self.busy_ns(now);
    }

    /// A period is over. Rows older than `window_ns` are forgotten, but for the newest.
    pub fn end_period(&mut self, window_ns: u64, now: Time) {
        let busy_ns = self.last_ns.saturating_sub(self.row_ns);
        // Bytes for which no time passed wait for some.
        if self.bytes > 0 && busy_ns > 0 {
            self.rows.push_back(Row { bytes: self.bytes, busy_ns, largest: self.largest, ended: now });
            self.row_ns = self.last_ns;
            (self.bytes, self.largest) = (0, 0);
        }
        let is_old = |row: &Row| row.ended.after_ns(window_ns) < now;
        while self.rows.len() > ROWS || (self.rows.len() > 1 && self.rows.front().is_some_and(is_old)) {
            self.rows.pop_front();
        }
    }

    /// Bytes per second over the window; none before the first give-back of a period that is over.
    #[must_use]
    pub fn rate(&self, now: Time) -> Option<u64> {
        self.rate_of(ROWS, now)
    }

    /// Bytes per second over the last two periods in which something was given back.
    #[must_use]
    pub fn recent(&self, now: Time) -> Option<u64> {
        self.rate_of(RECENT_ROWS, now)
    }

    /// Everything before those two is forgotten: it was different then.
    pub fn forget_earlier(&mut self) {
        while self.rows.len() > RECENT_ROWS {
            self.rows.pop_front();
        }
    }

    /// Whether the clock runs.
    #[must_use]
    pub const fn is_running(&self) -> bool {
        self.since.is_some()
    }

    fn busy_ns(&self, now: Time) -> u64 {
        let running = self.since.map_or(0, |since| now.since_ns(since));
        self.shown_ns.saturating_add(running)
    }

    fn rate_of(&self, rows: usize, now: Time) -> Option<u64> {
        let (mut bytes, mut busy_ns, mut largest) = (0_u64, 0_u64, 0);
        for row in self.rows.iter().rev().take(rows) {
            bytes = bytes.saturating_add(row.bytes);
            busy_ns = busy_ns.saturating_add(row.busy_ns);
            largest = row.largest.max(largest);
        }
        let rate = per_second(bytes, busy_ns)?;
        let open_ns = self.busy_ns(now).saturating_sub(self.last_ns);
        // If the next give-back came now and were as large as any, it would be no more than this.
        let at_most = per_second(bytes.saturating_add(largest), busy_ns.saturating_add(open_ns))?;
        Some(rate.min(at_most))
    }
}

fn per_second(bytes: u64, ns: u64) -> Option<u64> {
    let rate = (u128::from(bytes) * 1_000_000_000).checked_div(u128::from(ns))?;
    Some(u64::try_from(rate).unwrap_or(u64::MAX))
}
