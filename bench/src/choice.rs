//! How the producers of a workload choose the consumer of a record.

use serde::{Deserialize, Serialize};
use weir_client::{ChannelSelector, Error, Partition, PartitionOptions, Strategy, Targets, Task};

use crate::pipeline::Layout;

/// Bytes of a record's length before it, which count as written.
const LENGTH_BYTES: u64 = 4;

/// How a producer chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Choice {
    /// The producer with this index feeds the consumer with this index.
    Forward,
    /// `rebalance`, strictly in turn.
    InTurn,
    /// `rebalance` among the consumers that keep up.
    Adaptive,
    /// Of the next four, the one with the fewest segments lent to it: what Flink 2.3 does with its adaptive partitioner.
    /// For comparison only.
    NextFour,
    /// `hash`, each key spread over so many consumers; 1: to one.
    Hash {
        /// Consumers of each key.
        salt: u32,
    },
}

impl Choice {
    /// Makes producer `producer` of an exchange.
    ///
    /// # Errors
    /// Whatever the daemon refuses it with.
    pub fn partition(
        self,
        task: &Task,
        exchange: &str,
        producer: u32,
        layout: Layout,
    ) -> Result<Partition, Error> {
        let (producers, consumers) = (layout.producers(), layout.consumers());
        let options = PartitionOptions { adaptive: self == Self::Adaptive, ..PartitionOptions::default() };
        let strategy = match self {
            Self::NextFour => {
                let selector = NextFour::new(consumers);
                return task
                    .partition_with_selector(exchange, producer, producers, consumers, selector, options);
            }
            Self::Hash { salt } => {
                let options = PartitionOptions { salt: Some(salt), ..options };
                return task.partition(exchange, producer, producers, consumers, Strategy::Hash, options);
            }
            Self::Forward => Strategy::Forward,
            Self::InTurn | Self::Adaptive => Strategy::Rebalance,
        };
        task.partition(exchange, producer, producers, consumers, strategy, options)
    }
}

/// The selector of Flink's `AdaptiveLoadBasedRecordWriter`: it goes on from the consumer that it chose last and takes, of
/// the next four, one that nothing is lent to, or else the one with the fewest segments, then the fewest bytes.
#[derive(Debug)]
struct NextFour {
    current: u32,
    /// Bytes written for each consumer.
    written: Vec<u64>,
}

impl NextFour {
    const TRAVERSED: u32 = 4;

    fn new(consumers: u32) -> Self {
        // It begins with the first consumer, as Flink's does.
        Self { current: consumers.saturating_sub(1), written: vec![0; consumers as usize] }
    }

    /// The choice, from how loaded a consumer is: segments, then bytes.
    fn choose(&self, count: u32, mut load: impl FnMut(u32) -> (u32, u64)) -> u32 {
        let candidates = (1..=Self::TRAVERSED.min(count)).map(|step| (self.current + step) % count.max(1));
        let mut best: Option<(u32, (u32, u64))> = None;
        for candidate in candidates {
            let found = load(candidate);
            if found.0 == 0 {
                return candidate;
            }
            // The first of equals wins.
            if best.is_none_or(|(_, least)| found < least) {
                best = Some((candidate, found));
            }
        }
        best.map_or(0, |(candidate, _)| candidate)
    }
}

impl ChannelSelector for NextFour {
    fn select(&mut self, record: &[u8], _key: Option<&[u8]>, targets: &mut Targets<'_>) -> u32 {
        let count = targets.count();
        let chosen = self.choose(count, |consumer| {
            let written = self.written.get(consumer as usize).copied().unwrap_or(0);
            (targets.taken_segments(consumer), written.saturating_sub(targets.arrived_bytes(consumer)))
        });
        self.current = chosen;
        if let Some(written) = self.written.get_mut(chosen as usize) {
            *written += record.len() as u64 + LENGTH_BYTES;
        }
        chosen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The cases of Flink's own test of its selector.
    #[test]
    fn the_comparison_chooses_as_flinks_does() {
        for (segments, bytes, expected) in [
            ([2, 3, 4, 2], [1, 2, 3, 0], 3),
            ([2, 3, 4, 0], [0; 4], 3),
            ([2, 3, 0, 2], [0; 4], 2),
            ([2, 2, 2, 2], [1; 4], 0),
        ] {
            let load = |at: u32| (segments[at as usize], bytes[at as usize]);
            assert_eq!(NextFour::new(4).choose(4, load), expected, "{segments:?} {bytes:?}");
        }
    }

    #[test]
    fn the_comparison_looks_at_four_and_no_more() {
        let mut selector = NextFour::new(8);
        let load = |at: u32| (if at == 5 { 0 } else { 9 }, 0);
        assert_eq!(selector.choose(8, load), 0, "the fifth is not looked at");
        selector.current = 1;
        assert_eq!(selector.choose(8, load), 5);
    }
}
