//! The buffer timeout: when a segment that is not full is sent on.
//!
//! One clock per partition. Time is read only when the first record after a flush is written, so that a busy
//! producer does not pay for it. A flush takes everything that was written to any subpartition; so a record waits
//! at most the timeout, and often less.

use crate::ids::Time;

/// When written records are sent on although their segment is not full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufferTimeout {
    /// After each record.
    EachRecord,
    /// This many nanoseconds after the first record that waits; at least 1.
    After(u64),
    /// Never: only full segments, events and the end are sent.
    Off,
}

impl Default for BufferTimeout {
    /// 100 ms.
    fn default() -> Self {
        Self::After(100_000_000)
    }
}

impl BufferTimeout {
    /// The timeout of this many nanoseconds, where 0 means after each record.
    #[must_use]
    pub const fn from_ns(ns: u64) -> Self {
        if ns == 0 { Self::EachRecord } else { Self::After(ns) }
    }
}

/// What to do after a record was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flush {
    /// Flush its subpartition now.
    Now,
    /// Flush the partition at this moment. Said once; until the next flush further records answer `Nothing`.
    At(Time),
    /// Nothing: a flush is due already, or is not wanted.
    Nothing,
}

/// The flush decisions of one partition.
#[derive(Clone, Copy, Debug)]
pub struct FlushClock {
    timeout: BufferTimeout,
    due: Option<Time>,
}

impl FlushClock {
    /// A clock with nothing to flush.
    #[must_use]
    pub const fn new(timeout: BufferTimeout) -> Self {
        Self { timeout, due: None }
    }

    /// A record was written and its segment is not full. `now` is called only if the time matters.
    #[inline]
    pub fn handle_written(&mut self, now: impl FnOnce() -> Time) -> Flush {
        match (self.timeout, self.due) {
            (BufferTimeout::EachRecord, _) => Flush::Now,
            (BufferTimeout::Off, _) | (BufferTimeout::After(_), Some(_)) => Flush::Nothing,
            (BufferTimeout::After(ns), None) => {
                let due = now().after_ns(ns);
                self.due = Some(due);
                Flush::At(due)
            }
        }
    }

    /// Everything that was written has been sent on.
    pub const fn handle_flushed(&mut self) {
        self.due = None;
    }

    /// A flush was due but could not be made: it is due again one timeout later.
    pub const fn handle_postponed(&mut self, now: Time) {
        if let BufferTimeout::After(ns) = self.timeout {
            self.due = Some(now.after_ns(ns));
        }
    }

    /// When the partition must be flushed, if something waits for it.
    #[must_use]
    pub const fn poll_timeout(&self) -> Option<Time> {
        self.due
    }

    /// Whether the partition must be flushed now.
    #[must_use]
    pub fn is_due(&self, now: Time) -> bool {
        self.due.is_some_and(|due| due <= now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn never() -> Time {
        panic!("the clock must not be read")
    }

    #[test]
    fn a_timeout_of_0_flushes_after_each_record_and_reads_no_clock() {
        let mut clock = FlushClock::new(BufferTimeout::from_ns(0));
        assert_eq!(clock.handle_written(never), Flush::Now);
        clock.handle_flushed();
        assert_eq!(clock.handle_written(never), Flush::Now);
        clock.handle_postponed(Time(5));
        assert_eq!(clock.poll_timeout(), None);
    }

    #[test]
    fn off_never_flushes() {
        let mut clock = FlushClock::new(BufferTimeout::Off);
        assert_eq!(clock.handle_written(never), Flush::Nothing);
        clock.handle_postponed(Time(5));
        assert_eq!(clock.poll_timeout(), None);
        assert!(!clock.is_due(Time(u64::MAX)));
    }

    #[test]
    fn the_first_record_after_a_flush_sets_the_moment_and_later_ones_do_not_move_it() {
        let mut clock = FlushClock::new(BufferTimeout::After(100));
        assert_eq!(clock.poll_timeout(), None);
        assert_eq!(clock.handle_written(|| Time(7)), Flush::At(Time(107)));
        assert_eq!(clock.handle_written(never), Flush::Nothing);
        assert!(!clock.is_due(Time(106)));
        assert!(clock.is_due(Time(107)));
        assert_eq!(clock.poll_timeout(), Some(Time(107)));
        clock.handle_flushed();
        assert_eq!(clock.poll_timeout(), None);
        assert_eq!(clock.handle_written(|| Time(150)), Flush::At(Time(250)));
    }

    #[test]
    fn a_postponed_flush_is_due_one_timeout_later() {
        let mut clock = FlushClock::new(BufferTimeout::After(100));
        let _ = clock.handle_written(|| Time(0));
        clock.handle_postponed(Time(130));
        assert!(!clock.is_due(Time(229)));
        assert!(clock.is_due(Time(230)));
    }

    #[test]
    fn the_default_is_100_ms() {
        assert_eq!(BufferTimeout::default(), BufferTimeout::from_ns(100_000_000));
    }
}
