//! Which places of the array of accounts are taken.
//!
//! A place that is given back rests for a while before it is given away again. The generation keeps a socket that lives
//! on in the kernel from writing into an account that is not its own any more; the rest keeps a program that had
//! already looked at the generation from doing so.

use std::collections::VecDeque;

/// How long a place rests. A program runs for far less than a millisecond.
const REST_NS: u64 = 1_000_000_000;

/// A place that is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot {
    /// Index in the array.
    pub(super) index: u32,
    /// Never given to another socket.
    pub(super) generation: u64,
}

/// All places.
#[derive(Debug)]
pub(super) struct Slots {
    limit: u32,
    /// The first that was never taken.
    next: u32,
    /// Places that were given back, and when; the oldest first.
    resting: VecDeque<(u32, u64)>,
    last_generation: u64,
}

impl Slots {
    /// This many places, all free.
    pub(super) fn new(limit: u32) -> Self {
        Self { limit, next: 0, resting: VecDeque::new(), last_generation: 0 }
    }

    /// A free place; `None`: there is none that has rested.
    pub(super) fn take(&mut self, now_ns: u64) -> Option<Slot> {
        let index = if self.next < self.limit {
            self.next += 1;
            self.next - 1
        } else {
            let (index, since_ns) = *self.resting.front()?;
            if now_ns.saturating_sub(since_ns) < REST_NS {
                return None;
            }
            self.resting.pop_front();
            index
        };
        self.last_generation += 1;
        Some(Slot { index, generation: self.last_generation })
    }

    /// Gives a place back.
    pub(super) fn give_back(&mut self, slot: Slot, now_ns: u64) {
        self.resting.push_back((slot.index, now_ns));
    }

    /// How many are taken.
    pub(super) fn taken(&self) -> usize {
        (self.next as usize).saturating_sub(self.resting.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_taken_again_only_when_it_has_rested_and_under_another_generation() {
        let mut slots = Slots::new(2);
        let (first, second) = (slots.take(0).unwrap(), slots.take(0).unwrap());
        assert_eq!((first.index, second.index, slots.taken()), (0, 1, 2));
        assert_eq!(slots.take(u64::MAX), None);
        slots.give_back(second, 5);
        slots.give_back(first, 6);
        assert_eq!((slots.take(REST_NS + 4), slots.taken()), (None, 0));
        let again = slots.take(REST_NS + 5).unwrap();
        assert_eq!((again.index, slots.take(REST_NS + 5)), (1, None));
        assert!(again.generation > second.generation);
        assert_eq!(slots.take(REST_NS + 6).unwrap().index, 0);
    }
}
