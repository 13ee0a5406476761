//! What both ends of an exchange must agree on.

use alloc::string::String;
use core::fmt;
use core::str::FromStr;

use crate::ids::{ConsumerIndex, ProducerIndex, SubpartitionIndex};
use crate::pointwise::{self, Span};

/// Longest exchange or node name, in bytes.
pub const NAME_BYTES_MAX: usize = 64;

/// Largest parallelism on either side of an exchange.
pub const PARALLELISM_MAX: u32 = 4096;

/// A name that is safe in paths, metrics and tables: 1 to [`NAME_BYTES_MAX`] of `A-Z a-z 0-9 . _ -`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(String);

/// Why a text is not a [`Name`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameError {
    /// It has no byte at all.
    Empty,
    /// It is longer than [`NAME_BYTES_MAX`]; holds the length found.
    TooLong(usize),
    /// It holds a character that a name may not have.
    Character(char),
}

impl fmt::Display for NameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => write!(f, "is empty; needed: 1 to {NAME_BYTES_MAX} of A-Z a-z 0-9 . _ -"),
            Self::TooLong(found) => write!(f, "has {found} bytes; needed: at most {NAME_BYTES_MAX}"),
            Self::Character(found) => write!(f, "holds {found:?}; needed: only A-Z a-z 0-9 . _ -"),
        }
    }
}

impl core::error::Error for NameError {}

impl Name {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Name {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        if text.is_empty() {
            return Err(NameError::Empty);
        }
        if text.len() > NAME_BYTES_MAX {
            return Err(NameError::TooLong(text.len()));
        }
        match text.chars().find(|c| !(c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'))) {
            Some(found) => Err(NameError::Character(found)),
            None => Ok(Self(text.into())),
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// How records of an exchange are spread over its consumers. The numbers are those of the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Strategy {
    /// Producer i feeds consumer i, and only it; both sides have the same parallelism.
    Forward = 1,
    /// Records go round all consumers in turn.
    Rebalance = 2,
    /// A record's key decides its consumer, by Flink's key groups.
    Hash = 3,
    /// Every consumer gets every record.
    Broadcast = 4,
    /// Each producer goes round its own share of the consumers, or feeds one that it shares with its neighbours.
    Rescale = 5,
    /// A selector of the producers' application decides.
    Custom = 6,
}

/// Every strategy, in the order of its wire numbers.
pub const STRATEGIES: [Strategy; 6] = [
    Strategy::Forward,
    Strategy::Rebalance,
    Strategy::Hash,
    Strategy::Broadcast,
    Strategy::Rescale,
    Strategy::Custom,
];

/// Which producers of an exchange are connected with which consumers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wiring {
    /// Producer i with consumer i.
    OneToOne,
    /// Neighbours: each consumer with its share of the producers, or each producer with its share of the consumers,
    /// whichever side is the smaller. See [`crate::pointwise`].
    Pointwise,
    /// Every producer with every consumer.
    AllToAll,
}

impl Strategy {
    /// The strategy with this wire number.
    #[must_use]
    pub fn from_wire(number: u8) -> Option<Self> {
        STRATEGIES.into_iter().find(|strategy| *strategy as u8 == number)
    }

    /// Its name in commands, configuration and output.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::Rebalance => "rebalance",
            Self::Hash => "hash",
            Self::Broadcast => "broadcast",
            Self::Rescale => "rescale",
            Self::Custom => "custom",
        }
    }

    /// Which producers are connected with which consumers.
    #[must_use]
    pub const fn wiring(self) -> Wiring {
        match self {
            Self::Forward => Wiring::OneToOne,
            Self::Rescale => Wiring::Pointwise,
            Self::Rebalance | Self::Hash | Self::Broadcast | Self::Custom => Wiring::AllToAll,
        }
    }

    /// Whether any of a producer's consumers may take any of its records, so that one can stand in for another.
    #[must_use]
    pub const fn has_interchangeable_consumers(self) -> bool {
        matches!(self, Self::Rebalance | Self::Rescale)
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Strategy {
    type Err = UnknownStrategy;

    fn from_str(text: &str) -> Result<Self, UnknownStrategy> {
        STRATEGIES.into_iter().find(|strategy| strategy.as_str() == text).ok_or(UnknownStrategy)
    }
}

/// A text that names no strategy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownStrategy;

impl fmt::Display for UnknownStrategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("unknown strategy; needed: ")?;
        for (index, strategy) in STRATEGIES.iter().enumerate() {
            let lead = if index == 0 { "" } else { ", " };
            write!(f, "{lead}{strategy}")?;
        }
        Ok(())
    }
}

impl core::error::Error for UnknownStrategy {}

/// A `forward` exchange whose two sides have different parallelism, which no exchange can have. As text: both numbers, and
/// the strategies that connect any two numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnequalForward {
    /// Producers that were stated.
    pub producers: u32,
    /// Consumers that were stated.
    pub consumers: u32,
}

impl fmt::Display for UnequalForward {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { producers, consumers } = self;
        write!(
            f,
            "forward has {producers} producers and {consumers} consumers; needed: as many of both, or another \
             strategy: rescale, rebalance, hash or broadcast"
        )
    }
}

impl core::error::Error for UnequalForward {}

/// The properties of an exchange that every producer and consumer must state alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Producer parallelism P, 1 to [`PARALLELISM_MAX`].
    pub producers: u32,
    /// Consumer parallelism C, 1 to [`PARALLELISM_MAX`].
    pub consumers: u32,
    /// Ship strategy.
    pub strategy: Strategy,
    /// Size of a segment on both ends: see [`crate::limits::is_segment_size`].
    pub segment_bytes: u32,
    /// Whether each record carries a CRC32C that the consumer's client checks.
    pub checksum: bool,
}

impl Shape {
    /// Whether the strategy can connect so many producers with so many consumers.
    ///
    /// # Errors
    /// It is `forward`, and the numbers differ.
    pub const fn check_parallelism(&self) -> Result<(), UnequalForward> {
        let Self { producers, consumers, .. } = *self;
        match self.strategy {
            Strategy::Forward if producers != consumers => Err(UnequalForward { producers, consumers }),
            _ => Ok(()),
        }
    }

    /// How many subpartitions this producer has: one for each consumer that it feeds.
    #[must_use]
    pub const fn subpartitions(&self, producer: ProducerIndex) -> u32 {
        match self.strategy.wiring() {
            Wiring::OneToOne => 1,
            Wiring::Pointwise => self.consumers_of(producer).count(),
            Wiring::AllToAll => self.consumers,
        }
    }

    /// How many addresses this producer writes to: one for each subpartition, or one for all if every consumer gets
    /// every record.
    #[must_use]
    pub const fn builders(&self, producer: ProducerIndex) -> u32 {
        match self.strategy {
            Strategy::Broadcast => 1,
            _ => self.subpartitions(producer),
        }
    }

    /// How many channels the gate of this consumer has: one for each producer that feeds it.
    #[must_use]
    pub const fn channels(&self, consumer: ConsumerIndex) -> u32 {
        match self.strategy.wiring() {
            Wiring::OneToOne => 1,
            Wiring::Pointwise => self.producers_of(consumer).count(),
            Wiring::AllToAll => self.producers,
        }
    }

    /// Whether this producer feeds this consumer, and from which of its subpartitions.
    #[must_use]
    pub const fn subpartition(
        &self,
        producer: ProducerIndex,
        consumer: ConsumerIndex,
    ) -> Option<SubpartitionIndex> {
        if producer.0 >= self.producers || consumer.0 >= self.consumers {
            return None;
        }
        match self.consumers_of(producer).position(consumer.0) {
            Some(position) => Some(SubpartitionIndex(position)),
            None => None,
        }
    }

    /// Which channel of this consumer's gate this producer feeds, if it does.
    #[must_use]
    pub const fn channel(&self, consumer: ConsumerIndex, producer: ProducerIndex) -> Option<u32> {
        if producer.0 >= self.producers || consumer.0 >= self.consumers {
            return None;
        }
        self.producers_of(consumer).position(producer.0)
    }

    /// The consumer that this subpartition of a producer feeds. The subpartition is one that the producer has.
    #[must_use]
    pub const fn consumer_at(
        &self,
        producer: ProducerIndex,
        subpartition: SubpartitionIndex,
    ) -> ConsumerIndex {
        ConsumerIndex(self.consumers_of(producer).start.saturating_add(subpartition.0))
    }

    /// The producer that feeds this channel of a consumer's gate. The channel is one that the gate has.
    #[must_use]
    pub const fn producer_at(&self, consumer: ConsumerIndex, channel: u32) -> ProducerIndex {
        ProducerIndex(self.producers_of(consumer).start.saturating_add(channel))
    }

    /// The consumers that this producer feeds, in the order of its subpartitions.
    const fn consumers_of(&self, producer: ProducerIndex) -> Span {
        match self.strategy.wiring() {
            Wiring::OneToOne => Span::one(producer.0),
            Wiring::Pointwise => pointwise::consumers_of(producer.0, self.producers, self.consumers),
            Wiring::AllToAll => Span { start: 0, end: self.consumers },
        }
    }

    /// The producers that feed this consumer, in the order of the channels of its gate.
    const fn producers_of(&self, consumer: ConsumerIndex) -> Span {
        match self.strategy.wiring() {
            Wiring::OneToOne => Span::one(consumer.0),
            Wiring::Pointwise => pointwise::producers_of(consumer.0, self.producers, self.consumers),
            Wiring::AllToAll => Span { start: 0, end: self.producers },
        }
    }
}
