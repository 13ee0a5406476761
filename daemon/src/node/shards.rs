//! What a node says of its shards: where each is, and what it does.

use std::collections::BTreeMap;

use super::report::NodeReport;
use super::zero_copy;
use crate::control::shards::{ShardLoad, ShardPlaceRow, ShardState, ShardsReport};
use crate::control::snapshot::{SCHEMA_VERSION, ShardRow};
use crate::memory::numa::{NodeChoice, OnNodes};
use crate::shard::mailbox::{ShardCounts, ShardSnapshot};
use crate::shard::placement::Pin;
use crate::shard::placement::report::{Placements, ShardPlace};
use crate::shard::stall::TurnStats;

/// Regions of each shard by the NUMA node that they are on.
pub(super) type MemoryByShard = BTreeMap<u16, OnNodes>;

impl NodeReport {
    /// The answer to `GET /v1/shards`.
    pub(super) fn places(&self) -> ShardsReport {
        let placements = &self.facts.placements;
        ShardsReport {
            schema_version: SCHEMA_VERSION,
            node: self.facts.node.clone(),
            placement: placements.line(),
            pin: match placements.pin {
                Pin::Auto => "auto",
                Pin::On => "on",
                Pin::Off => "off",
            }
            .to_owned(),
            machine: placements.machine.clone(),
            doubts: placements.doubts.clone(),
            cpus_allowed: placements.allowed.clone(),
            cpus_allowed_at_start: placements.at_start.clone(),
            has_memory_policy: placements.has_own_policy,
            shards: self.place_rows(),
            shards_missing: self.missing(),
        }
    }

    /// One row per shard, by number.
    fn place_rows(&self) -> Vec<ShardPlaceRow> {
        let placements = &self.facts.placements;
        let numbered = (0_u16..).zip(&placements.shards);
        numbered
            .map(|(number, place)| {
                let answer = self.shards.iter().find(|shard| shard.shard == number);
                let memory = self.facts.memory_by_shard.get(&number).cloned().unwrap_or_default();
                place_row(number, placements, place, memory, answer)
            })
            .collect()
    }

    /// Of the shards that answered, by number.
    pub(super) fn shard_rows(&self) -> Vec<ShardRow> {
        let places = self.place_rows();
        let row = |shard: &ShardSnapshot| {
            let place = places.get(usize::from(shard.shard));
            ShardRow {
                cpu: Some(shard.cpu),
                is_roaming: place.is_some_and(|place| place.state == ShardState::Roaming),
                memory_elsewhere_bytes: place.map_or(0, |place| place.memory_elsewhere_bytes),
                registered: zero_copy::registered(shard),
                ..turns(shard)
            }
        };
        let mut rows: Vec<ShardRow> = self.shards.iter().map(row).collect();
        rows.sort_by_key(|row| row.shard);
        rows
    }
}

fn place_row(
    number: u16,
    placements: &Placements,
    shard: &ShardPlace,
    memory: OnNodes,
    answer: Option<&ShardSnapshot>,
) -> ShardPlaceRow {
    let reason = placements.why_it_roams(shard);
    let place = &shard.place;
    ShardPlaceRow {
        shard: number,
        state: if reason.is_none() { ShardState::Bound } else { ShardState::Roaming },
        reason,
        cpu_wanted: place.cpu,
        cpu: answer.map(|answer| answer.cpu),
        package: shard.package,
        core: shard.core_id,
        numa_node: place.node,
        memory_node: match shard.memory {
            NodeChoice::Only(node) | NodeChoice::Preferred(node) => node,
        },
        memory_bytes_by_node: memory.by_node,
        memory_elsewhere_bytes: memory.elsewhere_bytes,
        shares_cpu_with: place.shares_cpu.clone(),
        shares_core_with: place.shares_core.clone(),
        load: answer.map(load),
    }
}

fn load(snapshot: &ShardSnapshot) -> ShardLoad {
    let ShardCounts { attachments, partitions, gates, links } = snapshot.counts;
    let ShardRow { turns_total, long_turns_total, longest_turn_seconds, parks_total, .. } = turns(snapshot);
    ShardLoad {
        turns_total,
        long_turns_total,
        longest_turn_seconds,
        parks_total,
        bytes_total: snapshot.bytes_total,
        attachments,
        partitions,
        gates,
        links,
    }
}

fn turns(snapshot: &ShardSnapshot) -> ShardRow {
    let TurnStats { turns, long_turns, longest_ns, parks, .. } = snapshot.turns;
    ShardRow {
        shard: snapshot.shard,
        turns_total: turns,
        long_turns_total: long_turns,
        longest_turn_seconds: longest_ns as f64 / 1e9,
        parks_total: parks,
        ..ShardRow::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::numa::BytesByNode;
    use crate::node::tests::snapshot;
    use crate::shard::placement::Place;

    fn place(cpu: Option<usize>, memory: NodeChoice) -> ShardPlace {
        ShardPlace {
            place: Place { cpu, node: Some(1), ..Place::default() },
            package: Some(0),
            core_id: Some(3),
            memory,
            was_bound: true,
            refused: None,
        }
    }

    #[test]
    fn a_row_has_what_the_keeper_the_node_and_the_shard_know() {
        let placements = Placements { allowed: vec![2], ..Placements::default() };
        let answer = ShardSnapshot { cpu: 5, bytes_total: 7, ..snapshot(0) };
        // They were made while the shard was on node 0.
        let by_node = BytesByNode::from([(0, 10), (1, 20)]);
        let memory = OnNodes::made(by_node, NodeChoice::Preferred(Some(0)));
        let bound = place(Some(4), NodeChoice::Preferred(Some(1)));
        let row = place_row(0, &placements, &bound, memory.clone(), Some(&answer));
        assert_eq!((row.state, row.reason.clone(), row.cpu_wanted), (ShardState::Bound, None, Some(4)));
        assert_eq!((row.cpu, row.package, row.core, row.numa_node), (Some(5), Some(0), Some(3), Some(1)));
        assert_eq!((row.memory_node, row.memory_elsewhere_bytes), (Some(1), 20));
        assert_eq!(row.load.map(|load| load.bytes_total), Some(7));
        // One that does not answer is somewhere all the same.
        let row = place_row(0, &placements, &place(None, NodeChoice::Preferred(None)), memory, None);
        assert_eq!((row.state, row.cpu, row.load), (ShardState::Roaming, None, None));
        assert!(row.reason.is_some() && row.memory_elsewhere_bytes == 20, "{:?}", row.reason);
        let row =
            place_row(0, &placements, &place(None, NodeChoice::Only(Some(0))), OnNodes::default(), None);
        assert_eq!(row.memory_node, Some(0));
    }
}
