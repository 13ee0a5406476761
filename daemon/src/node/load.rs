//! Which shard a new client goes to: the one that moved the fewest bytes lately. And which of them go on at all.

use std::time::{Duration, Instant};

use crate::shard::mailbox::ShardSnapshot;

/// What is known of each shard.
#[derive(Clone, Debug)]
pub(super) struct LoadTable {
    shards: Vec<ShardLoad>,
}

#[derive(Clone, Copy, Debug, Default)]
struct ShardLoad {
    /// Bytes moved since the start, at the last sample.
    bytes_total: u64,
    /// Bytes moved between the last two samples.
    bytes_lately: u64,
    /// Clients placed on it.
    attachments: u32,
    /// When the last sample came.
    heard_at: Option<Instant>,
}

impl LoadTable {
    /// A table of this many shards, all of them idle and empty.
    #[must_use]
    pub(super) fn new(shards: u16) -> Self {
        Self { shards: vec![ShardLoad::default(); usize::from(shards)] }
    }

    /// Takes in a sample that came at `now`. Samples come once a second.
    pub(super) fn handle_sample(&mut self, snapshot: &ShardSnapshot, now: Instant) {
        if let Some(load) = self.shards.get_mut(usize::from(snapshot.shard)) {
            load.bytes_lately = snapshot.bytes_total.saturating_sub(load.bytes_total);
            load.bytes_total = snapshot.bytes_total;
            load.heard_at = Some(now);
        }
    }

    /// Shards of which nothing has come for longer than this, or never.
    pub(super) fn silent(&self, now: Instant, longest: Duration) -> Vec<u16> {
        let is_silent =
            |load: &ShardLoad| load.heard_at.is_none_or(|at| now.saturating_duration_since(at) > longest);
        let shards = (0_u16..).zip(&self.shards);
        shards.filter(|(_, load)| is_silent(load)).map(|(shard, _)| shard).collect()
    }

    /// Picks the shard with the fewest bytes lately; of equals, the one with the fewest clients, then the first. The
    /// client counts as placed until [`Self::handle_gone`].
    pub(super) fn place(&mut self) -> u16 {
        let least =
            (0_u16..).zip(&mut self.shards).min_by_key(|(_, load)| (load.bytes_lately, load.attachments));
        let Some((shard, load)) = least else {
            return 0;
        };
        load.attachments = load.attachments.saturating_add(1);
        shard
    }

    /// A client of this shard is gone.
    pub(super) fn handle_gone(&mut self, shard: u16) {
        if let Some(load) = self.shards.get_mut(usize::from(shard)) {
            load.attachments = load.attachments.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shard::mailbox::ShardCounts;
    use crate::shard::stall::TurnStats;

    fn sample(shard: u16, bytes_total: u64) -> ShardSnapshot {
        ShardSnapshot {
            shard,
            at: weir_flow::ids::Time(0),
            partitions: Vec::new(),
            gates: Vec::new(),
            channels: Vec::new(),
            past_send_stalls: Default::default(),
            past_emit_stalls: Default::default(),
            links: Vec::new(),
            sockets: std::collections::BTreeMap::new(),
            zero_copy: Default::default(),
            counts: ShardCounts::default(),
            bytes_total,
            cpu: 0,
            turns: TurnStats::default(),
            ring_level: String::new(),
        }
    }

    #[test]
    fn a_shard_is_silent_until_it_is_heard_and_again_when_it_was_not_for_long() {
        let mut table = LoadTable::new(2);
        let (now, longest) = (Instant::now(), Duration::from_secs(3));
        assert_eq!(table.silent(now, longest), [0, 1]);
        table.handle_sample(&sample(1, 0), now);
        assert_eq!(table.silent(now, longest), [0]);
        table.handle_sample(&sample(0, 0), now + longest);
        assert_eq!(table.silent(now + longest, longest), [0_u16; 0]);
        assert_eq!(table.silent(now + longest + Duration::from_nanos(1), longest), [1]);
    }

    #[test]
    fn the_shard_with_the_fewest_bytes_lately_is_picked_then_the_emptiest() {
        let mut table = LoadTable::new(3);
        assert_eq!([table.place(), table.place(), table.place(), table.place()], [0, 1, 2, 0]);
        table.handle_gone(1);
        assert_eq!(table.place(), 1);
        // Shard 2 moved a lot, but long ago.
        for (first, second) in [(0, 500), (0, 400), (9_000, 9_000)] {
            let shard = if second == 500 {
                0
            } else if second == 400 {
                1
            } else {
                2
            };
            table.handle_sample(&sample(shard, first), Instant::now());
            table.handle_sample(&sample(shard, second), Instant::now());
        }
        assert_eq!(table.place(), 2);
        table.handle_sample(&sample(2, 10_000), Instant::now());
        assert_eq!(table.place(), 1);
    }
}
