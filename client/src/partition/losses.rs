//! What a partition that goes on without its dead consumers knows of them, and of the records that went with them.
//!
//! The daemon counts bytes, the application wants records. So for each consumer it is kept where submitted parts end,
//! in bytes and in records, until the consumer has given those bytes back: what a consumer took is known to the part.
//! What it is not known to have taken when it dies counts as lost. It may have read some of that; it never is more.

use std::collections::VecDeque;

/// Ends of parts that are kept for one consumer. With more under way, neighbours are counted as one part.
const ENDS_MAX: usize = 1024;

/// Where a part ends, counted from the partition's start.
#[derive(Clone, Copy, Debug)]
struct End {
    bytes: u64,
    records: u64,
}

#[derive(Clone, Debug, Default)]
struct Consumer {
    is_gone: bool,
    submitted: u64,
    /// Records that ended in what was submitted.
    records: u64,
    /// Of them, those that it has taken for certain.
    taken: u64,
    ends: VecDeque<End>,
}

impl Consumer {
    fn see_consumed(&mut self, consumed_bytes: u64) {
        while let Some(end) = self.ends.pop_front_if(|end| end.bytes <= consumed_bytes) {
            self.taken = end.records;
        }
    }
}

/// The consumers of one partition.
#[derive(Debug)]
pub(super) struct Losses {
    consumers: Vec<Consumer>,
    gone: u32,
    lost_records: u64,
}

impl Losses {
    pub(super) fn new(subpartitions: u32) -> Self {
        Self { consumers: vec![Consumer::default(); subpartitions as usize], gone: 0, lost_records: 0 }
    }

    /// Consumers that are gone.
    pub(super) fn gone(&self) -> u32 {
        self.gone
    }

    /// Records that they are not known to have taken.
    pub(super) fn lost_records(&self) -> u64 {
        self.lost_records
    }

    /// A record that was begun will never be finished: its consumer is gone.
    pub(super) fn handle_unfinished(&mut self) {
        self.lost_records += 1;
    }

    pub(super) fn is_gone(&self, subpartition: u32) -> bool {
        self.consumers.get(subpartition as usize).is_some_and(|consumer| consumer.is_gone)
    }

    /// A part was submitted, at a time when the consumer had given so many bytes back.
    pub(super) fn handle_submitted(
        &mut self,
        subpartition: u32,
        bytes: u32,
        records: u32,
        consumed_bytes: u64,
    ) {
        let Some(consumer) = self.consumers.get_mut(subpartition as usize) else { return };
        consumer.submitted += u64::from(bytes);
        consumer.records += u64::from(records);
        consumer.see_consumed(consumed_bytes);
        if consumer.ends.len() >= ENDS_MAX {
            consumer.ends.pop_back();
        }
        consumer.ends.push_back(End { bytes: consumer.submitted, records: consumer.records });
    }

    /// The consumer is gone. Everything that was emitted to it has been submitted.
    pub(super) fn handle_gone(&mut self, subpartition: u32, consumed_bytes: u64) {
        let Some(consumer) = self.consumers.get_mut(subpartition as usize) else { return };
        if std::mem::replace(&mut consumer.is_gone, true) {
            return;
        }
        consumer.see_consumed(consumed_bytes);
        consumer.ends = VecDeque::new();
        self.gone += 1;
        self.lost_records += consumer.records - consumer.taken;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_consumer_is_not_known_to_have_taken_is_lost_and_never_less() {
        // Consumed bytes at its death, and the records lost of 3 parts of 100 bytes with 10 records each.
        for (consumed, lost) in [(0, 30), (99, 30), (100, 20), (250, 10), (299, 10), (300, 0)] {
            let mut losses = Losses::new(2);
            for _ in 0..3 {
                losses.handle_submitted(1, 100, 10, 0);
            }
            losses.handle_submitted(0, 100, 10, 0);
            losses.handle_gone(1, consumed);
            losses.handle_gone(1, 300);
            assert_eq!((losses.gone(), losses.lost_records()), (1, lost), "{consumed} bytes were consumed");
            assert_eq!([0, 1, 2].map(|of| losses.is_gone(of)), [false, true, false]);
        }
    }

    #[test]
    fn many_small_parts_take_bounded_memory_and_the_count_errs_to_one_side() {
        let mut losses = Losses::new(1);
        for _ in 0..10 * ENDS_MAX {
            losses.handle_submitted(0, 10, 1, 0);
        }
        assert!(losses.consumers[0].ends.len() <= ENDS_MAX);
        // Half of it was consumed; the part that is known by its end only counts as a whole.
        losses.handle_gone(0, 50 * ENDS_MAX as u64);
        assert!((5 * ENDS_MAX as u64..=10 * ENDS_MAX as u64).contains(&losses.lost_records()));
        let mut losses = Losses::new(1);
        for part in 0..10 * ENDS_MAX as u64 {
            losses.handle_submitted(0, 10, 1, part * 10);
        }
        losses.handle_gone(0, 100 * ENDS_MAX as u64);
        assert_eq!(losses.lost_records(), 0);
    }
}
