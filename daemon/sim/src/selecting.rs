//! How a producer chooses the consumer of a record: the core's selectors, held against what they promise.

use weir_flow::exchange::{Shape, Strategy};
use weir_flow::ids::ProducerIndex;
use weir_flow::selector::{Forward, Hash, Rebalance, Selector};

use crate::model::{MAX_PARALLELISM, record_key};

#[derive(Debug)]
enum Kind {
    Forward(Forward),
    Rebalance(Rebalance),
    Hash(Hash),
}

/// A producer's selector, with what it has chosen so far.
#[derive(Debug)]
pub struct Selecting {
    kind: Kind,
    counts: Vec<u64>,
    skipped: bool,
}

impl Selecting {
    /// The selector of an exchange.
    pub fn new(shape: &Shape, producer: ProducerIndex, seed: u64) -> Result<Self, String> {
        let count = shape.builders(producer);
        let kind = match shape.strategy {
            Strategy::Forward | Strategy::Broadcast => Kind::Forward(Forward),
            Strategy::Rebalance | Strategy::Rescale => Kind::Rebalance(Rebalance::new(seed)),
            Strategy::Custom => return Err("a custom selector is code of an application".to_owned()),
            Strategy::Hash => {
                let hash = Hash::with_max_parallelism(MAX_PARALLELISM, count);
                Kind::Hash(hash.map_err(|error| error.to_string())?)
            }
        };
        Ok(Self { kind, counts: vec![0; count as usize], skipped: false })
    }

    /// The subpartition of a record.
    pub fn select(&mut self, record: &[u8]) -> Result<usize, String> {
        let count = self.counts.len() as u32;
        let chosen = match &mut self.kind {
            Kind::Forward(forward) => forward.select(record, None, count),
            Kind::Rebalance(rebalance) => rebalance.select(record, None, count),
            Kind::Hash(hash) => hash.select(record, Some(record_key(record)), count),
        };
        let counted = self.counts.get_mut(chosen as usize);
        *counted.ok_or_else(|| format!("the selector chose subpartition {chosen} of {count}"))? += 1;
        Ok(chosen as usize)
    }

    /// The producer did not use the last choice.
    pub const fn skipped(&mut self) {
        self.skipped = true;
    }

    /// Whether `rebalance` has given every consumer the same number of records, or one more.
    pub fn check(&self) -> Result<(), String> {
        let (least, most) = (self.counts.iter().min(), self.counts.iter().max());
        let even = least.zip(most).is_none_or(|(least, most)| most - least <= 1);
        match self.kind {
            Kind::Rebalance(_) if !self.skipped && !even => {
                Err(format!("rebalance gave its consumers {:?} records", self.counts))
            }
            _ => Ok(()),
        }
    }
}
