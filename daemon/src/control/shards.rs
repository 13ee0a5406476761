//! What the daemon says of its shards: where each runs, where its memory is, and how much it does.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::snapshot::Subsystem;

/// Answer to `GET /v1/shards`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ShardsReport {
    /// [`super::snapshot::SCHEMA_VERSION`].
    pub schema_version: u32,
    /// Name of the node.
    pub node: String,
    /// The line `placement` of the status.
    pub placement: Subsystem,
    /// `shard.pin`: `auto`, `on` or `off`.
    pub pin: String,
    /// What may be used of the machine, in words.
    pub machine: String,
    /// What is not known of it: then it is taken for a simpler one.
    #[serde(default)]
    pub doubts: Vec<String>,
    /// CPUs that the daemon may use and that are online, in ascending order.
    pub cpus_allowed: Vec<usize>,
    /// Those of its start.
    pub cpus_allowed_at_start: Vec<usize>,
    /// Whether the daemon was started with a policy for memory (`NUMAPolicy=`, `numactl`), which it leaves as it is.
    pub has_memory_policy: bool,
    /// One row per shard, by number.
    pub shards: Vec<ShardPlaceRow>,
    /// Shards that did not answer within [`super::snapshot::SHARD_ANSWER_TIMEOUT`]: what they do is not in their rows.
    #[serde(default)]
    pub shards_missing: Vec<u16>,
}

/// Whether a shard stays on one CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ShardState {
    /// It does.
    Bound,
    /// It runs wherever the kernel puts it.
    Roaming,
}

/// One shard.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ShardPlaceRow {
    /// The shard.
    pub shard: u16,
    /// Whether it stays on one CPU.
    pub state: ShardState,
    /// Why it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The CPU that it is to be on; `null` if it is to roam.
    pub cpu_wanted: Option<usize>,
    /// The CPU that it ran on when it was asked; `null` if it did not answer.
    pub cpu: Option<usize>,
    /// Package of the CPU that it is to be on.
    pub package: Option<u32>,
    /// Core of that CPU, as the firmware counts those of a package.
    pub core: Option<u32>,
    /// NUMA node of the CPU that it is to be on, or of all that it may roam on; `null` if those are of several, or the
    /// kernel knows no nodes.
    pub numa_node: Option<u32>,
    /// NUMA node that its regions are made on as long as that has memory; `null` if it has no preference.
    pub memory_node: Option<u32>,
    /// Bytes of its regions by the NUMA node that they are on, of large regions by a sample. Nothing where the kernel does
    /// not tell.
    #[serde(default)]
    pub memory_bytes_by_node: BTreeMap<u32, u64>,
    /// Those of them that are on another node than the one that they were to be made on, which had no memory left. What a shard
    /// left behind when it moved to other CPUs does not count.
    #[serde(default)]
    pub memory_elsewhere_bytes: u64,
    /// Other shards on the same CPU.
    #[serde(default)]
    pub shares_cpu_with: Vec<u16>,
    /// Other shards on other threads of the same core.
    #[serde(default)]
    pub shares_core_with: Vec<u16>,
    /// What it does; `null` if it did not answer.
    pub load: Option<ShardLoad>,
}

/// What a shard has done since the daemon started, and what it has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ShardLoad {
    /// Turns of its loop.
    pub turns_total: u64,
    /// Turns longer than 3 ms: the thread was kept from its CPU.
    pub long_turns_total: u64,
    /// The longest turn.
    pub longest_turn_seconds: f64,
    /// How often it slept.
    pub parks_total: u64,
    /// Payload that it moved, both directions.
    pub bytes_total: u64,
    /// Clients.
    pub attachments: u32,
    /// Result partitions.
    pub partitions: u32,
    /// Input gates.
    pub gates: u32,
    /// Data links.
    pub links: u32,
}
