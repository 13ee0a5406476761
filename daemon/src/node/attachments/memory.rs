//! What clients have of memory, in sum.

use super::Attachments;
use crate::memory::Backing;
use crate::node::shards::MemoryByShard;

impl Attachments {
    /// Regions that exist: of hugepages, of ordinary pages.
    pub(in crate::node) fn regions(&self) -> (u32, u32) {
        let backings = self
            .by_id
            .values()
            .flat_map(|client| client.rings.values())
            .filter_map(|ring| ring.memory.as_ref().map(|memory| memory.backing));
        backings.chain(self.holds.kept_backings()).fold(
            (0, 0),
            |(hugepages, ordinary), backing| match backing {
                Backing::Hugepages => (hugepages + 1, ordinary),
                Backing::Ordinary => (hugepages, ordinary + 1),
            },
        )
    }

    /// Regions of the clients of each shard, by the NUMA nodes that they are on. Those that have ended for their shard are
    /// none of its.
    pub(in crate::node) fn memory_by_shard(&self) -> MemoryByShard {
        let mut by_shard = MemoryByShard::new();
        for client in self.by_id.values() {
            let Some(shard) = client.shard else { continue };
            let sums = by_shard.entry(shard).or_default();
            for memory in client.rings.values().filter_map(|ring| ring.memory.as_ref()) {
                sums.add(&memory.nodes);
            }
        }
        by_shard
    }
}
