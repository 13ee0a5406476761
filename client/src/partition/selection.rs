//! The channel selector of a partition, by its strategy.

use std::hash::{BuildHasher, Hasher, RandomState};

use weir_flow::exchange::Strategy;
use weir_flow::selector::{Forward, Hash, Rebalance, Selector};

use crate::error::Error;
use crate::options::{ConsumerDeath, PartitionOptions};

/// One of the three selectors.
pub(super) enum Selection {
    Forward(Forward),
    Rebalance(Rebalance),
    Hash(Hash),
}

impl Selection {
    pub(super) fn new(strategy: Strategy, consumers: u32, options: &PartitionOptions) -> Result<Self, Error> {
        if options.on_consumer_death == ConsumerDeath::ContinueWithout && strategy != Strategy::Rebalance {
            let text =
                format!("is ContinueWithout with strategy {strategy}; needed: {}", Strategy::Rebalance);
            return Err(Error::Option { name: "on_consumer_death", text });
        }
        Ok(match strategy {
            Strategy::Forward => Self::Forward(Forward),
            Strategy::Rebalance => Self::Rebalance(match options.first_subpartition {
                Some(first) if first >= consumers => {
                    let text = format!("is {first}; needed: less than {consumers}, the consumers");
                    return Err(Error::Option { name: "first_subpartition", text });
                }
                Some(first) => Rebalance::starting_at(first),
                None => Rebalance::new(RandomState::new().build_hasher().finish()),
            }),
            Strategy::Hash => Self::Hash(match options.max_parallelism {
                None => Hash::new(consumers),
                Some(groups) => Hash::with_max_parallelism(groups, consumers)
                    .map_err(|error| Error::Option { name: "max_parallelism", text: error.to_string() })?,
            }),
        })
    }

    #[inline]
    pub(super) fn select(
        &mut self,
        record: &[u8],
        key: Option<&[u8]>,
        subpartitions: u32,
    ) -> Result<u32, Error> {
        match (self, key) {
            (Self::Forward(selector), _) => Ok(selector.select(record, key, subpartitions)),
            (Self::Rebalance(selector), _) => Ok(selector.select(record, key, subpartitions)),
            (Self::Hash(selector), Some(_)) => Ok(selector.select(record, key, subpartitions)),
            (Self::Hash(_), None) => Err(Error::KeyNeeded),
        }
    }
}
