//! The channel selector of a partition, by its strategy.

use std::hash::{BuildHasher, Hasher, RandomState};

use weir_flow::exchange::Strategy;
use weir_flow::selector::adaptive::Adaptive;
use weir_flow::selector::heavy_keys::HeavyKeys;
use weir_flow::selector::{Forward, Hash, Rebalance, SaltedHash, Selector};

use super::custom::ChannelSelector;
use crate::error::Error;
use crate::options::{ConsumerDeath, PartitionOptions};

/// How a partition chooses.
pub(super) enum Selection {
    /// There is one choice: `forward`, and `broadcast`, where it stands for all.
    Forward(Forward),
    /// In turn, whether they keep up or not; or there is one only.
    Turn(Rebalance),
    /// In turn among those that keep up.
    Adaptive(Adaptive<Rebalance>),
    /// By key.
    Hash(Hash, HeavyKeys),
    /// By key, spread over variants of it.
    SaltedHash(SaltedHash, HeavyKeys),
    /// As the application says.
    Custom(Box<dyn ChannelSelector>),
}

/// What the choice depends on.
pub(super) struct SelectionRequest<'a> {
    pub(super) strategy: Strategy,
    /// Subpartitions of this producer.
    pub(super) subpartitions: u32,
    pub(super) options: &'a PartitionOptions,
    /// The application's selector, for `custom` and only for it.
    pub(super) selector: Option<Box<dyn ChannelSelector>>,
}

fn refuse<T>(name: &'static str, text: String) -> Result<T, Error> {
    Err(Error::Option { name, text })
}

fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

impl Selection {
    pub(super) fn new(request: SelectionRequest<'_>) -> Result<Self, Error> {
        let SelectionRequest { strategy, subpartitions, options, selector } = request;
        if options.on_consumer_death == ConsumerDeath::ContinueWithout
            && !strategy.has_interchangeable_consumers()
        {
            let text = format!("is ContinueWithout with strategy {strategy}; needed: rebalance or rescale");
            return refuse("on_consumer_death", text);
        }
        if options.salt.is_some() && strategy != Strategy::Hash {
            return refuse("salt", format!("is given with strategy {strategy}; needed: hash"));
        }
        Ok(match strategy {
            Strategy::Forward | Strategy::Broadcast => Self::Forward(Forward),
            Strategy::Rebalance | Strategy::Rescale => Self::in_turn(subpartitions, options)?,
            Strategy::Hash => Self::by_key(subpartitions, options)?,
            Strategy::Custom => match selector {
                Some(selector) => Self::Custom(selector),
                None => {
                    let text =
                        "is custom, without a selector; needed: Task::partition_with_selector".to_owned();
                    return refuse("strategy", text);
                }
            },
        })
    }

    fn in_turn(subpartitions: u32, options: &PartitionOptions) -> Result<Self, Error> {
        let turn = match options.first_subpartition {
            Some(first) if first >= subpartitions => {
                let text = format!("is {first}; needed: less than {subpartitions}, the subpartitions");
                return refuse("first_subpartition", text);
            }
            Some(first) => Rebalance::starting_at(first),
            None => Rebalance::new(random()),
        };
        let is_adaptive = options.adaptive && subpartitions > 1;
        Ok(if is_adaptive { Self::Adaptive(Adaptive::new(turn, subpartitions)) } else { Self::Turn(turn) })
    }

    fn by_key(subpartitions: u32, options: &PartitionOptions) -> Result<Self, Error> {
        let hash = match options.max_parallelism {
            None => Hash::new(subpartitions),
            Some(groups) => Hash::with_max_parallelism(groups, subpartitions)
                .map_err(|error| Error::Option { name: "max_parallelism", text: error.to_string() })?,
        };
        let heavy = HeavyKeys::new(random());
        Ok(match options.salt {
            None => Self::Hash(hash, heavy),
            Some(variants) => Self::SaltedHash(
                SaltedHash::new(hash, variants, subpartitions, random())
                    .map_err(|error| Error::Option { name: "salt", text: error.to_string() })?,
                heavy,
            ),
        })
    }

    /// The choice, by those that know no more than the record.
    #[inline]
    pub(super) fn select(
        &mut self,
        record: &[u8],
        key: Option<&[u8]>,
        subpartitions: u32,
    ) -> Result<u32, Error> {
        match (self, key) {
            (Self::Turn(selector), _) => Ok(selector.select(record, key, subpartitions)),
            (Self::Hash(selector, heavy), Some(of)) => {
                heavy.handle_key(of);
                Ok(selector.select(record, key, subpartitions))
            }
            (Self::SaltedHash(selector, heavy), Some(of)) => {
                heavy.handle_key(of);
                Ok(selector.select(record, key, subpartitions))
            }
            (Self::Hash(..) | Self::SaltedHash(..), None) => Err(Error::KeyNeeded),
            // The other two are asked where more is known; this one has no choice.
            (Self::Forward(_) | Self::Adaptive(_) | Self::Custom(_), _) => Ok(0),
        }
    }
}
