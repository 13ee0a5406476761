//! How many segments a partition or a gate needs at least and has at most.

use super::partition::PartitionPoolSpec;

/// The quota of [`PartitionPoolSpec::sized`]: segments that a subpartition may hold open or queued.
pub const QUOTA: u32 = 10;

/// Segments of a gate with N channels, E exclusive ones each and F floating ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GateBuffers {
    /// Fewest segments with which every channel can make progress: N * E + 1, or N * E if F is 0.
    pub required: u32,
    /// Segments of the whole gate: N * E + F.
    pub total: u32,
}

impl GateBuffers {
    /// The segments of a gate. `exclusive` below 1 counts as 1: a channel without a segment of its own could wait
    /// for ever behind its siblings. Counts beyond 32 bits stay at the largest number.
    #[must_use]
    pub const fn of(channels: u32, exclusive: u32, floating: u32) -> Self {
        let exclusive = if exclusive == 0 { 1 } else { exclusive };
        let owned = channels.saturating_mul(exclusive);
        let one_floating = if floating == 0 { 0 } else { 1 };
        Self { required: owned.saturating_add(one_floating), total: owned.saturating_add(floating) }
    }
}

impl PartitionPoolSpec {
    /// A partition with N subpartitions (1 for `broadcast`, however many consumers there are: its segments are shared, and
    /// each is charged once): as many segments as the largest of N + 1 and N * `exclusive` +
    /// `floating`, then `retention` for what is sent and not yet acknowledged, then `overdraft`. Its quota is
    /// [`QUOTA`]. Counts beyond 32 bits stay at the largest number.
    #[must_use]
    pub const fn sized(
        subpartitions: u32,
        exclusive: u32,
        floating: u32,
        retention: u32,
        overdraft: u32,
    ) -> Self {
        let least = subpartitions.saturating_add(1);
        let most = subpartitions.saturating_mul(exclusive).saturating_add(floating);
        let pool = if most > least { most } else { least };
        let segments = pool.saturating_add(retention).saturating_add(overdraft);
        Self { segments, subpartitions, quota: QUOTA, overdraft }
    }
}
