//! The simulated shell of one shard: it owns the core's state and what the core names by number, and it does only
//! what a shell may: it polls what the core asked to be polled, and nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use weir_flow::exchange::Name;
use weir_flow::ids::{GateId, LinkId, PartitionId, SubpartitionIndex, Time};
use weir_flow::limits::Limits;
use weir_flow::shard::{Notice, Shard};

use crate::memory::ReceiveRegions;
use crate::plan::{ShardPlan, name};

/// One shard of one node.
pub struct Node {
    /// Where it is.
    pub place: ShardPlan,
    /// The core.
    pub shard: Shard,
    /// Receive memory of its gates.
    pub regions: ReceiveRegions,
    /// Its partitions: positions of their producers.
    pub partitions: BTreeMap<PartitionId, usize>,
    /// Its gates: positions of their consumers.
    pub gates: BTreeMap<GateId, usize>,
    /// Its links: position of the link and which end is here.
    pub links: BTreeMap<LinkId, (usize, usize)>,
    /// Gates that the core wants polled.
    pub ready_gates: BTreeSet<GateId>,
    /// Partitions that the core wants polled.
    pub ready_partitions: BTreeSet<PartitionId>,
    /// Links that the core wants polled.
    pub ready_links: BTreeSet<LinkId>,
    /// Links that the core said wait for a socket.
    pub suspended: BTreeSet<LinkId>,
    /// It was told that its node is stopping.
    pub draining: bool,
    /// In a long turn until then.
    pub busy_until: Time,
    /// Events accepted so far, by partition and subpartition.
    pub events_taken: BTreeMap<(PartitionId, SubpartitionIndex), u64>,
    /// Batches of zero-copy sends that the kernel still reads, by number.
    pub holds: Vec<Option<crate::holds::Held>>,
    gate_ids: Vec<GateId>,
    partition_ids: Vec<PartitionId>,
    link_ids: Vec<LinkId>,
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "shard {}.{}", self.place.node, self.place.index)
    }
}

impl Node {
    /// A shard without links, partitions and gates.
    #[must_use]
    pub fn new(place: ShardPlan, limits: Limits) -> Self {
        Self {
            place,
            shard: Shard::new(limits),
            regions: ReceiveRegions::default(),
            partitions: BTreeMap::new(),
            gates: BTreeMap::new(),
            links: BTreeMap::new(),
            ready_gates: BTreeSet::new(),
            ready_partitions: BTreeSet::new(),
            ready_links: BTreeSet::new(),
            suspended: BTreeSet::new(),
            draining: false,
            busy_until: Time(0),
            events_taken: BTreeMap::new(),
            holds: Vec::new(),
            gate_ids: Vec::new(),
            partition_ids: Vec::new(),
            link_ids: Vec::new(),
        }
    }

    /// The name of its node.
    #[must_use]
    pub fn node_name(&self) -> Name {
        name(&format!("n{}", self.place.node))
    }

    /// Takes the lists of what wants service, checks the core, and hands out its notices.
    pub fn absorb(&mut self) -> Result<Vec<Notice>, String> {
        self.shard.take_gates(&mut self.gate_ids);
        self.ready_gates.extend(self.gate_ids.drain(..));
        self.shard.take_partitions(&mut self.partition_ids);
        self.ready_partitions.extend(self.partition_ids.drain(..));
        self.shard.take_links(&mut self.link_ids);
        self.ready_links.extend(self.link_ids.drain(..));
        if let Some(fault) = self.regions.fault.take() {
            return Err(format!("{self}: {fault}"));
        }
        self.shard.check().map_err(|violation| format!("{self}: {violation}"))?;
        let mut notices = Vec::new();
        while let Some(notice) = self.shard.poll_notice() {
            notices.push(notice);
        }
        Ok(notices)
    }
}
