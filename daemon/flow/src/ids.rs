//! Names of things, as numbers. Memory is named by [`SegmentIndex`] only: this crate never holds a pointer.
//!
//! Every type here is a plain number with its own type, so that a subpartition cannot be passed where a channel
//! is meant. None carries a bound of its own: the tables that they index check them.

use core::fmt;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number! {
    /// One TCP connection of this shard. Never reused while the shard lives.
    LinkId(u32)
}
number! {
    /// One result partition whose producer is attached to this shard. Never reused while the shard lives.
    PartitionId(u32)
}
number! {
    /// One input gate whose consumer is attached to this shard. Never reused while the shard lives.
    GateId(u32)
}
number! {
    /// One segment inside the region of a partition or a gate, counted from 0.
    SegmentIndex(u32)
}
number! {
    /// One subpartition of a result partition, counted from 0. For `forward` there is exactly one.
    SubpartitionIndex(u32)
}
number! {
    /// One channel on a link, as both ends write it in frame headers. The consumer's end assigns it.
    ChannelIndex(u32)
}
number! {
    /// Which of an exchange's parallel producers, counted from 0.
    ProducerIndex(u32)
}
number! {
    /// Which of an exchange's parallel consumers, counted from 0.
    ConsumerIndex(u32)
}
number! {
    /// One life of (exchange, producer index). A restarted producer is a new one. Unique in the cluster: the
    /// daemon makes it from its epoch and a counter.
    Incarnation(u64)
}
number! {
    /// Position of a data or event frame in its channel, counted from 0 without gaps.
    Sequence(u64)
}
number! {
    /// Nanoseconds of a monotonic clock. Time is always an argument; nothing in this crate reads a clock.
    Time(u64)
}

/// A producer and which of its lives is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProducerLife {
    /// Which producer of the exchange.
    pub producer: ProducerIndex,
    /// Which of its lives; `Incarnation(0)` is whichever there is.
    pub incarnation: Incarnation,
}

impl Time {
    /// Nanoseconds from `earlier` to `self`, 0 when `earlier` is later.
    #[must_use]
    pub const fn since_ns(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// The moment `ns` nanoseconds after `self`; the last moment that the clock can name if that lies beyond it.
    #[must_use]
    pub const fn after_ns(self, ns: u64) -> Self {
        Self(self.0.saturating_add(ns))
    }
}
