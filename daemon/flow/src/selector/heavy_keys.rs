//! Which keys carry most records: a sketch of bounded memory and little work per record.
//!
//! Space-Saving over a sample: of about [`SAMPLED_ONE_IN`] records one is looked at, at random distances, so that keys
//! which come in a pattern are not seen too often or never. Of the keys seen [`KEYS_MAX`] are counted; one that is not
//! among them takes the place of the one with the least count, and inherits that count as its possible error. So a
//! key with more than a [`KEYS_MAX`]th of all records is among them, and no key is counted too low by more than the
//! sampling does. Old records count less than new ones: at [`SAMPLES_MAX`] samples all counts are halved.

use alloc::vec::Vec;

use super::spread;
use crate::key_group::hash_bytes;

/// Keys that are counted.
pub const KEYS_MAX: usize = 64;

/// Bytes of a key that are kept: longer keys are told apart by their first bytes, their length and their hash.
pub const KEY_BYTES_KEPT: usize = 64;

/// Mean distance of the records that are looked at.
pub const SAMPLED_ONE_IN: u32 = 16;

/// Samples that count in full.
pub const SAMPLES_MAX: u64 = 1 << 16;

/// A key that is counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeavyKey {
    /// Its first bytes, at most [`KEY_BYTES_KEPT`].
    pub prefix: Vec<u8>,
    /// How many bytes it has.
    pub bytes: usize,
    hash: i32,
    /// Samples that it is counted with.
    pub count: u64,
    /// Of them, those that may have been other keys'.
    pub error: u64,
}

impl HeavyKey {
    fn is(&self, key: &[u8], hash: i32) -> bool {
        self.hash == hash && self.bytes == key.len() && key.starts_with(&self.prefix)
    }
}

/// The sketch of one producer's keys.
#[derive(Clone, Debug)]
pub struct HeavyKeys {
    keys: Vec<HeavyKey>,
    samples: u64,
    /// Records that pass before the next is looked at.
    skip: u32,
    random: u64,
}

impl HeavyKeys {
    /// Of no key so far. The caller has the randomness.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self { keys: Vec::new(), samples: 0, skip: 0, random: seed }
    }

    /// A record with this key was emitted.
    #[inline]
    pub fn handle_key(&mut self, key: &[u8]) {
        match self.skip.checked_sub(1) {
            Some(skip) => self.skip = skip,
            None => self.sample(key),
        }
    }

    /// Samples that count.
    #[must_use]
    pub const fn samples(&self) -> u64 {
        self.samples
    }

    /// The keys that are counted, the heaviest first.
    #[must_use]
    pub fn heaviest(&self) -> Vec<HeavyKey> {
        let mut keys = self.keys.clone();
        keys.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.error.cmp(&b.error)));
        keys
    }

    #[cold]
    fn sample(&mut self, key: &[u8]) {
        self.random = self.random.wrapping_add(1);
        // From 0 to twice the mean, less 2: the record itself counts for the mean.
        self.skip = (spread(self.random) >> 32) as u32 % (2 * SAMPLED_ONE_IN - 1);
        self.count(key);
        self.samples += 1;
        if self.samples >= SAMPLES_MAX {
            self.halve();
        }
    }

    fn count(&mut self, key: &[u8]) {
        let hash = hash_bytes(key);
        if let Some(known) = self.keys.iter_mut().find(|known| known.is(key, hash)) {
            known.count += 1;
            return;
        }
        let prefix = key.get(..KEY_BYTES_KEPT).unwrap_or(key);
        if self.keys.len() < KEYS_MAX {
            let (prefix, bytes) = (prefix.to_vec(), key.len());
            self.keys.push(HeavyKey { prefix, bytes, hash, count: 1, error: 0 });
        } else if let Some(least) = self.keys.iter_mut().min_by_key(|known| known.count) {
            least.prefix.clear();
            least.prefix.extend_from_slice(prefix);
            (least.bytes, least.hash, least.error) = (key.len(), hash, least.count);
            least.count += 1;
        }
    }

    fn halve(&mut self) {
        self.samples /= 2;
        for key in &mut self.keys {
            key.count /= 2;
            key.error /= 2;
        }
        self.keys.retain(|key| key.count > 0);
    }
}
