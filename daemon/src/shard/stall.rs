//! How long the turns of the shard loop take: a long turn delays every channel of the shard.

use weir_flow::ids::Time;

/// A turn longer than this counts as long, in nanoseconds. A turn is bounded to about 1 MiB of received data and
/// 512 KiB of planning, some 300 µs on a slow core; ten times that means that the thread was kept from its core.
pub const LONG_TURN_NS: u64 = 3_000_000;

/// Length of the turns of one shard since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TurnStats {
    /// Turns taken.
    pub turns: u64,
    /// Turns longer than [`LONG_TURN_NS`].
    pub long_turns: u64,
    /// The longest turn, in nanoseconds.
    pub longest_ns: u64,
    /// When the longest turn began.
    pub longest_at: Time,
    /// How often the loop slept.
    pub parks: u64,
}

/// Measures turns. Parked time is not part of a turn.
#[derive(Debug, Default)]
pub struct StallDetector {
    stats: TurnStats,
    began: Option<Time>,
}

impl StallDetector {
    /// A turn begins. A turn that had begun without an end is closed first.
    pub fn turn_begins(&mut self, now: Time) {
        self.turn_ends(now);
        self.began = Some(now);
    }

    /// The turn ends. Returns its length if it was long.
    pub fn turn_ends(&mut self, now: Time) -> Option<u64> {
        let began = self.began.take()?;
        let length_ns = now.since_ns(began);
        self.stats.turns += 1;
        if length_ns > self.stats.longest_ns {
            self.stats.longest_ns = length_ns;
            self.stats.longest_at = began;
        }
        if length_ns <= LONG_TURN_NS {
            return None;
        }
        self.stats.long_turns += 1;
        Some(length_ns)
    }

    /// The loop goes to sleep.
    pub fn parks(&mut self) {
        self.stats.parks += 1;
    }

    /// What was measured.
    #[must_use]
    pub fn stats(&self) -> TurnStats {
        self.stats
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_turn_is_kept_and_long_ones_are_counted() {
        let mut detector = StallDetector::default();
        for (began, ended, long) in [
            (0, 1000, None),
            (5000, 5000 + LONG_TURN_NS + 1, Some(LONG_TURN_NS + 1)),
            (9_000_000, 9_000_010, None),
        ] {
            detector.turn_begins(Time(began));
            assert_eq!(detector.turn_ends(Time(ended)), long);
        }
        let stats = detector.stats();
        assert_eq!((stats.turns, stats.long_turns, stats.longest_ns), (3, 1, LONG_TURN_NS + 1));
        assert_eq!(stats.longest_at, Time(5000));
    }

    #[test]
    fn time_between_turns_is_not_counted() {
        let mut detector = StallDetector::default();
        detector.turn_begins(Time(0));
        detector.turn_ends(Time(10));
        detector.turn_begins(Time(10_000_000_000));
        detector.turn_ends(Time(10_000_000_020));
        assert_eq!(detector.stats().longest_ns, 20);
        assert_eq!(detector.turn_ends(Time(50_000_000_000)), None, "no turn was open");
    }
}
