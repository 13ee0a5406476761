//! Hot keys: what a `hash` partition knows of the keys that carry most of its records.

use weir_flow::selector::heavy_keys::HeavyKeys;

use super::Partition;
use super::selection::Selection;

/// A key of a `hash` partition, with its share of the records.
#[derive(Clone, Debug, PartialEq)]
pub struct HeavyKey {
    /// The key; of a key with more than 64 bytes the first 64.
    pub key: Vec<u8>,
    /// How many bytes the key has.
    pub key_bytes: usize,
    /// Its share of the records, from 0 to 1, as far as a sample of one record in 16 tells. At most this.
    pub share: f64,
    /// And at least this.
    pub share_min: f64,
}

impl Partition {
    /// The keys that carry most of this producer's records, the heaviest first: up to 64, and every key with more than a
    /// 64th of the records among them. Newer records count more. Empty for strategies that go by no key, and before
    /// the first record.
    ///
    /// A key with a share of more than 1 / consumers is too much for its consumer alone when all consumers together can
    /// just take what is emitted. More parallelism does not help then; [`crate::PartitionOptions::salt`] does.
    #[must_use]
    pub fn heavy_keys(&self) -> Vec<HeavyKey> {
        let (Selection::Hash(_, heavy) | Selection::SaltedHash(_, heavy)) = &self.selection else {
            return Vec::new();
        };
        shares(heavy)
    }
}

fn shares(heavy: &HeavyKeys) -> Vec<HeavyKey> {
    let samples = heavy.samples().max(1) as f64;
    let key = |key: weir_flow::selector::heavy_keys::HeavyKey| HeavyKey {
        share: key.count as f64 / samples,
        share_min: (key.count - key.error.min(key.count)) as f64 / samples,
        key_bytes: key.bytes,
        key: key.prefix,
    };
    heavy.heaviest().into_iter().map(key).collect()
}
