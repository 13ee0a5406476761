//! How a consumer finds records in slices: the core's assembler, with the slices that it has to wait for.

use weir_flow::exchange::Shape;
use weir_flow::ids::ConsumerIndex;
use weir_flow::limits::Limits;
use weir_flow::record::{Assembler, SpanningBudget, Step};

/// One channel's assembler, and bytes that it could not take yet.
#[derive(Debug)]
struct Channel {
    assembler: Assembler,
    waiting: Vec<u8>,
}

/// The assemblers of a gate.
#[derive(Debug)]
pub struct Assembling {
    channels: Vec<Channel>,
    budget: SpanningBudget,
}

impl Assembling {
    /// Assemblers between two records.
    #[must_use]
    pub fn new(limits: &Limits, shape: &Shape, consumer: ConsumerIndex) -> Self {
        let channel = |_| Channel {
            assembler: Assembler::new(limits.record_bytes_max, shape.checksum),
            waiting: Vec::new(),
        };
        Self {
            channels: (0..shape.channels(consumer)).map(channel).collect(),
            budget: SpanningBudget::new(limits.spanning_bytes_max),
        }
    }

    /// Takes the next slice of a channel and hands every record that it completes to `take`, with its channel: a
    /// record that ends may let others go on. Whether some channel waits for the budget in the end.
    pub fn feed(
        &mut self,
        channel: u32,
        slice: &[u8],
        mut take: impl FnMut(u32, &[u8]) -> Result<(), String>,
    ) -> Result<bool, String> {
        let Some(fed) = self.channels.get_mut(channel as usize) else { return Ok(false) };
        fed.waiting.extend_from_slice(slice);
        let mut again = true;
        while again {
            again = false;
            for (number, channel) in (0u32..).zip(&mut self.channels) {
                let before = self.budget.used();
                channel.advance(&mut self.budget, |record| take(number, record))?;
                again |= self.budget.used() < before;
            }
        }
        Ok(self.channels.iter().any(|channel| !channel.waiting.is_empty()))
    }

    /// The channel ends here. Whether it is between two records.
    pub fn end(&mut self, channel: u32) -> bool {
        let Some(channel) = self.channels.get_mut(channel as usize) else { return false };
        let whole = channel.waiting.is_empty() && channel.assembler.is_between_records();
        channel.waiting.clear();
        channel.assembler.release(&mut self.budget);
        whole
    }
}

impl Channel {
    fn advance(
        &mut self,
        budget: &mut SpanningBudget,
        mut take: impl FnMut(&[u8]) -> Result<(), String>,
    ) -> Result<(), String> {
        let mut at = 0;
        loop {
            match self.assembler.next_record(&self.waiting, &mut at, budget) {
                Step::InPlace(range) => take(&self.waiting[range])?,
                Step::Assembled(record) => take(record)?,
                Step::NeedMore | Step::Wait => break,
                fault @ (Step::TooLarge { .. } | Step::ChecksumMismatch { .. }) => {
                    return Err(format!("record: {fault:?}"));
                }
            }
        }
        self.waiting.drain(..at);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_flow::exchange::Strategy;

    #[test]
    fn a_channel_that_waits_for_the_budget_goes_on_when_another_has_finished() {
        let limits = Limits { record_bytes_max: 100, spanning_bytes_max: 100, ..Limits::default() };
        let shape = Shape {
            producers: 2,
            consumers: 1,
            strategy: Strategy::Hash,
            segment_bytes: 32 << 10,
            checksum: false,
        };
        let mut assembling = Assembling::new(&limits, &shape, ConsumerIndex(0));
        let record = |byte: u8| [vec![90, 0, 0, 0], vec![byte; 90]].concat();
        let (first, second) = (record(1), record(2));
        let mut taken = Vec::new();
        let mut feed = |assembling: &mut Assembling, channel, slice: &[u8]| {
            let take = |channel, record: &[u8]| {
                taken.push((channel, record.to_vec()));
                Ok(())
            };
            assembling.feed(channel, slice, take).unwrap();
            taken.len()
        };
        assert_eq!(feed(&mut assembling, 0, &first[..50]), 0);
        assert_eq!(feed(&mut assembling, 1, &second[..60]), 0, "the first has the budget");
        assert!(!assembling.end(9));
        assert_eq!(feed(&mut assembling, 0, &first[50..]), 1);
        assert_eq!(feed(&mut assembling, 1, &second[60..]), 2);
        assert!(assembling.end(0) && assembling.end(1));
        assert_eq!(taken, [(0, vec![1; 90]), (1, vec![2; 90])]);
    }
}
