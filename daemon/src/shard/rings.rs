//! The partitions and gates of a shard: for each its rings and its memory.

use std::collections::BTreeMap;
use std::sync::Arc;

use weir_flow::ids::{GateId, PartitionId, SegmentIndex};
use weir_flow::shard::ReceiveMemory;
use weir_ipc::gate_port::GateEndpoint;
use weir_ipc::partition_port::PartitionEndpoint;

use super::mailbox::RingKey;
use super::waits::SeenWaits;
use crate::memory::{ReceiveRegion, SendRegion};

/// A result partition. Its memory stays until the core says that no frame refers to it; its rings are served only
/// while `is_open`.
pub(super) struct PartitionRing {
    pub(super) key: RingKey,
    pub(super) endpoint: PartitionEndpoint,
    pub(super) region: Arc<SendRegion>,
    pub(super) is_open: bool,
    /// Its client was told that everything has arrived. Nothing that comes later changes that.
    pub(super) is_finished: bool,
    /// Its client took memory away that the kernel was to send from. Where a frame was begun, zeros take its place.
    pub(super) has_holes: bool,
    /// How many places its client writes into: subpartitions, or one for all with `broadcast`.
    pub(super) builders: u32,
    pub(super) waits: SeenWaits,
}

impl PartitionRing {
    /// The rings and the memory of a partition that has just come.
    pub(super) fn new(
        key: RingKey,
        endpoint: PartitionEndpoint,
        region: Arc<SendRegion>,
        builders: u32,
    ) -> Self {
        Self {
            key,
            endpoint,
            region,
            is_open: true,
            is_finished: false,
            has_holes: false,
            builders,
            waits: SeenWaits::default(),
        }
    }
}

/// An input gate.
pub(super) struct GateRing {
    pub(super) key: RingKey,
    /// How many channels it has.
    pub(super) channels: u32,
    pub(super) endpoint: GateEndpoint,
    pub(super) region: ReceiveRegion,
    pub(super) is_open: bool,
}

/// What a ring pair of an attachment belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Partition(PartitionId),
    Gate(GateId),
}

/// Every partition and gate of the shard.
#[derive(Default)]
pub(super) struct Rings {
    pub(super) partitions: BTreeMap<PartitionId, PartitionRing>,
    pub(super) gates: Gates,
}

/// Every gate of the shard: the memory that the core writes received payload into.
#[derive(Default)]
pub(super) struct Gates(pub(super) BTreeMap<GateId, GateRing>);

impl ReceiveMemory for Gates {
    fn write(&mut self, gate: GateId, segment: SegmentIndex, offset: u32, bytes: &[u8]) {
        let written = self.0.get_mut(&gate).is_some_and(|gate| gate.region.write(segment.0, offset, bytes));
        if !written {
            // The core checks every place against the gate's segments before it asks; so this is a fault of ours.
            tracing::error!(%gate, %segment, offset, bytes = bytes.len(), "a received slice lies outside its region");
            debug_assert!(written, "the core asked for a place outside the region");
        }
    }
}
