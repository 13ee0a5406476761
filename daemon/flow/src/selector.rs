//! Channel selectors: which subpartition gets the next record.

pub mod adaptive;
pub mod heavy_keys;

use core::fmt;

use self::adaptive::Interchangeable;
use crate::key_group::{
    MAX_PARALLELISM_MAX, default_max_parallelism, hash_bytes, key_group, salted_subpartition_of,
    subpartition_of,
};

/// Chooses a subpartition for each record of one producer.
pub trait Selector {
    /// The subpartition for this record, below `subpartitions`, which is at least 1. `key` is the part of the
    /// record that decides, if it has one; otherwise the whole record does.
    fn select(&mut self, record: &[u8], key: Option<&[u8]>, subpartitions: u32) -> u32;
}

/// For `forward`: the only subpartition there is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Forward;

impl Selector for Forward {
    fn select(&mut self, _record: &[u8], _key: Option<&[u8]>, _subpartitions: u32) -> u32 {
        0
    }
}

/// For `rebalance` and `rescale`: all subpartitions in turn. The first is random, so that many producers which start together do
/// not all send to the same consumer first.
#[derive(Clone, Copy, Debug)]
pub struct Rebalance {
    turn: Turn,
}

#[derive(Clone, Copy, Debug)]
enum Turn {
    /// Nothing was sent yet; holds the randomness.
    First(u64),
    /// The subpartition of the next record.
    Next(u32),
}

impl Rebalance {
    /// Starts at a subpartition that `seed` decides. The caller has the randomness: this crate has none.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self { turn: Turn::First(seed) }
    }

    /// Starts at this subpartition.
    #[must_use]
    pub const fn starting_at(subpartition: u32) -> Self {
        Self { turn: Turn::Next(subpartition) }
    }
}

impl Selector for Rebalance {
    #[inline]
    fn select(&mut self, _record: &[u8], _key: Option<&[u8]>, subpartitions: u32) -> u32 {
        let chosen = match self.turn {
            // Multiplying the upper half spreads a seed evenly over any number of subpartitions.
            Turn::First(seed) => (((spread(seed) >> 32) * u64::from(subpartitions)) >> 32) as u32,
            Turn::Next(next) if next < subpartitions => next,
            Turn::Next(_) => 0,
        };
        self.turn = Turn::Next(chosen.wrapping_add(1));
        chosen
    }
}

impl Interchangeable for Rebalance {
    #[inline]
    fn handle_taken(&mut self, taken: u32) {
        self.turn = Turn::Next(taken.wrapping_add(1));
    }
}

/// Makes seeds that differ in few bits differ in all (the finisher of SplitMix64).
pub(crate) const fn spread(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// For `hash`: the key decides, by Flink's key groups. Equal keys always go to the same subpartition.
#[derive(Clone, Copy, Debug)]
pub struct Hash {
    max_parallelism: u32,
}

/// A number of key groups that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaxParallelismError {
    /// The number asked for.
    pub found: u32,
    /// Fewest: one for each subpartition.
    pub min: u32,
}

impl fmt::Display for MaxParallelismError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { found, min } = self;
        write!(f, "maximum parallelism is {found}; needed: {min} (the consumers) to {MAX_PARALLELISM_MAX}")
    }
}

impl core::error::Error for MaxParallelismError {}

impl Hash {
    /// With as many key groups as Flink chooses for this many subpartitions.
    #[must_use]
    pub const fn new(subpartitions: u32) -> Self {
        Self { max_parallelism: default_max_parallelism(subpartitions) }
    }

    /// With this many key groups.
    ///
    /// # Errors
    /// [`MaxParallelismError`] if there are fewer than subpartitions, or more than [`MAX_PARALLELISM_MAX`].
    pub fn with_max_parallelism(
        max_parallelism: u32,
        subpartitions: u32,
    ) -> Result<Self, MaxParallelismError> {
        let min = subpartitions.max(1);
        if (min..=MAX_PARALLELISM_MAX).contains(&max_parallelism) {
            return Ok(Self { max_parallelism });
        }
        Err(MaxParallelismError { found: max_parallelism, min })
    }

    /// The number of key groups.
    #[must_use]
    pub const fn max_parallelism(&self) -> u32 {
        self.max_parallelism
    }
}

impl Selector for Hash {
    #[inline]
    fn select(&mut self, record: &[u8], key: Option<&[u8]>, subpartitions: u32) -> u32 {
        let group = key_group(hash_bytes(key.unwrap_or(record)), self.max_parallelism);
        subpartition_of(group, self.max_parallelism, subpartitions)
    }
}

/// For `hash` with salt: the records of each key are spread over so many variants of it, each of which has a consumer of
/// its own ([`salted_subpartition_of`]). A reader that needs all records of a key gets them in so many parts.
#[derive(Clone, Copy, Debug)]
pub struct SaltedHash {
    hash: Hash,
    variants: u32,
    random: u64,
}

/// A number of variants that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SaltError {
    /// The number asked for.
    pub found: u32,
    /// Most: one for each subpartition.
    pub max: u32,
}

impl fmt::Display for SaltError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "is {}; needed: 1 to {}, the consumers", self.found, self.max)
    }
}

impl core::error::Error for SaltError {}

impl SaltedHash {
    /// Spreads each key over `variants` of the subpartitions. The caller has the randomness.
    ///
    /// # Errors
    /// [`SaltError`] if there are no variants, or more than subpartitions.
    pub fn new(hash: Hash, variants: u32, subpartitions: u32, seed: u64) -> Result<Self, SaltError> {
        if (1..=subpartitions).contains(&variants) {
            return Ok(Self { hash, variants, random: seed });
        }
        Err(SaltError { found: variants, max: subpartitions })
    }
}

impl Selector for SaltedHash {
    #[inline]
    fn select(&mut self, record: &[u8], key: Option<&[u8]>, subpartitions: u32) -> u32 {
        let own = self.hash.select(record, key, subpartitions);
        // At random and not in turn: keys that come in a pattern would meet the same variant each time.
        self.random = self.random.wrapping_add(1);
        let variant = (((spread(self.random) >> 32) * u64::from(self.variants)) >> 32) as u32;
        salted_subpartition_of(own, variant, self.variants, subpartitions)
    }
}
