//! Things by number: found in constant time, numbers never given twice.
//!
//! A number is a slot in its low bits and the slot's generation above. A freed slot waits behind others before it
//! is used again, and one whose generations are used up is not used again at all.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

const SLOT_BITS: u32 = 18;
const SLOT_MASK: u32 = (1 << SLOT_BITS) - 1;
const GENERATION_MAX: u32 = (1 << (32 - SLOT_BITS)) - 1;
/// Freed slots that wait before the oldest of them is used again.
const FREE_MIN: usize = 64;

/// A number that no table ever gives.
pub(crate) const NO_ID: u32 = u32::MAX;

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

#[derive(Debug)]
pub(crate) struct Table<T> {
    slots: Vec<Slot<T>>,
    free: VecDeque<u32>,
}

impl<T> Table<T> {
    pub(crate) const fn new() -> Self {
        Self { slots: Vec::new(), free: VecDeque::new() }
    }

    /// Puts a value in and returns its number, or [`NO_ID`] (and drops the value) when 2^18 - 1 live at once.
    pub(crate) fn insert(&mut self, value: T) -> u32 {
        if self.free.len() > FREE_MIN || self.slots.len() as u32 >= SLOT_MASK {
            if let Some(index) = self.free.pop_front()
                && let Some(slot) = self.slots.get_mut(index as usize)
            {
                slot.value = Some(value);
                return (slot.generation << SLOT_BITS) | index;
            }
            return NO_ID;
        }
        let index = self.slots.len() as u32;
        self.slots.push(Slot { generation: 0, value: Some(value) });
        index
    }

    pub(crate) fn remove(&mut self, id: u32) -> Option<T> {
        let slot = self.slots.get_mut((id & SLOT_MASK) as usize)?;
        if slot.generation != id >> SLOT_BITS {
            return None;
        }
        let value = slot.value.take()?;
        if slot.generation < GENERATION_MAX {
            slot.generation += 1;
            self.free.push_back(id & SLOT_MASK);
        }
        Some(value)
    }

    pub(crate) fn get(&self, id: u32) -> Option<&T> {
        let slot = self.slots.get((id & SLOT_MASK) as usize)?;
        if slot.generation == id >> SLOT_BITS { slot.value.as_ref() } else { None }
    }

    pub(crate) fn get_mut(&mut self, id: u32) -> Option<&mut T> {
        let slot = self.slots.get_mut((id & SLOT_MASK) as usize)?;
        if slot.generation == id >> SLOT_BITS { slot.value.as_mut() } else { None }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.slots.iter().enumerate().filter_map(|(index, slot)| {
            slot.value.as_ref().map(|value| ((slot.generation << SLOT_BITS) | index as u32, value))
        })
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut T)> {
        self.slots.iter_mut().enumerate().filter_map(|(index, slot)| {
            let id = (slot.generation << SLOT_BITS) | index as u32;
            slot.value.as_mut().map(|value| (id, value))
        })
    }

    #[cfg(test)]
    pub(crate) fn slots(&self) -> usize {
        self.slots.len()
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeSet;

    use super::*;

    #[test]
    fn numbers_are_found_and_never_given_twice() {
        let mut table = Table::new();
        let mut given = BTreeSet::new();
        for round in 0..10_000_u32 {
            let id = table.insert(round);
            assert!(given.insert(id), "{id} was given twice");
            assert_eq!(table.get(id), Some(&round));
            assert_eq!(table.remove(id), Some(round));
            assert_eq!(table.get(id), None);
            assert_eq!(table.remove(id), None);
        }
        assert!(table.slots() <= FREE_MIN + 2, "slots are used again: {}", table.slots());
    }

    #[test]
    fn a_slot_without_generations_is_retired() {
        let mut table = Table::new();
        for _ in 0..(GENERATION_MAX as usize + 2) * (FREE_MIN + 1) {
            let id = table.insert(());
            assert_ne!(id, NO_ID);
            table.remove(id);
        }
        assert!(table.slots() > FREE_MIN + 2);
    }
}
