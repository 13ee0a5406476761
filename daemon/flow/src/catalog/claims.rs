//! Who states one partition: a node, and more than one only until the loser has failed.

use alloc::vec::Vec;

use super::Partition;
use crate::exchange::Name;

/// The nodes that state a partition, by name. There may be tens of thousands of partitions, nearly each with one node: no
/// memory is set aside for a second.
#[derive(Debug, Default)]
pub(super) struct Claims(Vec<(Name, Partition)>);

impl Claims {
    fn place(&self, node: &Name) -> Result<usize, usize> {
        self.0.binary_search_by(|(name, _)| name.cmp(node))
    }

    pub(super) fn get(&self, node: &Name) -> Option<&Partition> {
        let place = self.place(node).ok()?;
        self.0.get(place).map(|(_, partition)| partition)
    }

    pub(super) fn get_mut(&mut self, node: &Name) -> Option<&mut Partition> {
        let place = self.place(node).ok()?;
        self.0.get_mut(place).map(|(_, partition)| partition)
    }

    /// Takes the place of what this node stated before.
    pub(super) fn insert(&mut self, node: Name, partition: Partition) {
        match self.place(&node) {
            Ok(place) => {
                if let Some(claim) = self.0.get_mut(place) {
                    *claim = (node, partition);
                }
            }
            Err(place) => {
                self.0.reserve_exact(1);
                self.0.insert(place, (node, partition));
            }
        }
    }

    pub(super) fn remove(&mut self, node: &Name) -> Option<Partition> {
        let place = self.place(node).ok()?;
        Some(self.0.remove(place).1)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Name, &Partition)> {
        self.0.iter().map(|(node, partition)| (node, partition))
    }
}
