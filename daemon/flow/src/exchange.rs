//! What both ends of an exchange must agree on.

use alloc::string::String;
use core::fmt;
use core::str::FromStr;

use crate::ids::{ConsumerIndex, ProducerIndex, SubpartitionIndex};

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
}

/// Every strategy, in the order of its wire numbers.
pub const STRATEGIES: [Strategy; 3] = [Strategy::Forward, Strategy::Rebalance, Strategy::Hash];

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
        }
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
        f.write_str("unknown strategy; needed: forward, rebalance or hash")
    }
}

impl core::error::Error for UnknownStrategy {}

/// The properties of an exchange that every producer and consumer must state alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Producer parallelism P, 1 to [`PARALLELISM_MAX`].
    pub producers: u32,
    /// Consumer parallelism C, 1 to [`PARALLELISM_MAX`].
    pub consumers: u32,
    /// Ship strategy.
    pub strategy: Strategy,
    /// Size of a segment on both ends: a power of two from 4 KiB to 1 MiB.
    pub segment_bytes: u32,
    /// Whether each record carries a CRC32C that the consumer's client checks.
    pub checksum: bool,
}

impl Shape {
    /// How many subpartitions each producer has: 1 for `forward`, else one per consumer.
    #[must_use]
    pub const fn subpartitions(&self) -> u32 {
        match self.strategy {
            Strategy::Forward => 1,
            Strategy::Rebalance | Strategy::Hash => self.consumers,
        }
    }

    /// How many channels each consumer's gate has: 1 for `forward`, else one per producer.
    #[must_use]
    pub const fn channels(&self) -> u32 {
        match self.strategy {
            Strategy::Forward => 1,
            Strategy::Rebalance | Strategy::Hash => self.producers,
        }
    }

    /// Whether this producer feeds this consumer, and from which of its subpartitions.
    #[must_use]
    pub fn subpartition(
        &self,
        producer: ProducerIndex,
        consumer: ConsumerIndex,
    ) -> Option<SubpartitionIndex> {
        if producer.0 >= self.producers || consumer.0 >= self.consumers {
            return None;
        }
        match self.strategy {
            Strategy::Forward => (producer.0 == consumer.0).then_some(SubpartitionIndex(0)),
            Strategy::Rebalance | Strategy::Hash => Some(SubpartitionIndex(consumer.0)),
        }
    }
}
