//! Which producers feed which consumers when an exchange is wired pointwise, by exactly Flink's arithmetic, so that a
//! job has the same edges here and there.
//!
//! With at least as many producers as consumers, each consumer reads its own share of neighbouring producers, and each
//! producer feeds one consumer. With fewer producers, each feeds its own share of neighbouring consumers, and each
//! consumer reads one producer. Shares differ by at most one. With as many of both it is one to one.

/// Neighbouring producers or consumers: from `start` up to, not including, `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The first.
    pub start: u32,
    /// The one behind the last.
    pub end: u32,
}

impl Span {
    /// One alone.
    #[must_use]
    pub const fn one(index: u32) -> Self {
        Self { start: index, end: index.saturating_add(1) }
    }

    /// How many there are.
    #[must_use]
    pub const fn count(self) -> u32 {
        self.end.saturating_sub(self.start)
    }

    /// Where this one is among them, counted from 0.
    #[must_use]
    pub const fn position(self, index: u32) -> Option<u32> {
        if index >= self.start && index < self.end { Some(index - self.start) } else { None }
    }
}

/// The consumers that this producer feeds. Both parallelisms are at least 1, and the producer is below its own.
#[must_use]
pub const fn consumers_of(producer: u32, producers: u32, consumers: u32) -> Span {
    if producers >= consumers {
        // The only one whose share the producer is in.
        return Span::one(share_holding(producer, producers, consumers));
    }
    let end = start_up(producer.saturating_add(1), consumers, producers);
    Span { start: start_up(producer, consumers, producers), end }
}

/// The producers that feed this consumer. Both parallelisms are at least 1, and the consumer is below its own.
#[must_use]
pub const fn producers_of(consumer: u32, producers: u32, consumers: u32) -> Span {
    if producers >= consumers {
        let start = start_down(consumer, producers, consumers);
        return Span { start, end: start_down(consumer.saturating_add(1), producers, consumers) };
    }
    Span::one((consumer as u64 * producers as u64 / at_least_1(consumers)) as u32)
}

/// The first of the share of `holder`, of so many holders, in so many others: rounded down.
const fn start_down(holder: u32, others: u32, holders: u32) -> u32 {
    (holder as u64 * others as u64 / at_least_1(holders)) as u32
}

/// The same, rounded up.
const fn start_up(holder: u32, others: u32, holders: u32) -> u32 {
    (holder as u64 * others as u64).div_ceil(at_least_1(holders)) as u32
}

/// The holder in whose share `other` is, when shares start at [`start_down`].
const fn share_holding(other: u32, others: u32, holders: u32) -> u32 {
    let behind = (other as u64 + 1) * holders as u64;
    behind.div_ceil(at_least_1(others)).saturating_sub(1) as u32
}

const fn at_least_1(number: u32) -> u64 {
    if number == 0 { 1 } else { number as u64 }
}
