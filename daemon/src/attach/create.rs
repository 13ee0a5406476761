//! Checking what a client asks for, and making the memory of a partition or a gate.
//!
//! The order is: every number within its bounds ([`RegionPlan`]), then the budget, which the node has, then the memory,
//! which takes its time and is made on a thread that may take it. What the budget does not have is refused before a
//! page is touched, and a region that cannot be made leaves nothing behind.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use weir_flow::exchange::{PARALLELISM_MAX, Shape, Strategy};
use weir_flow::failure::{Failure, FailureCode};
use weir_flow::limits::Limits;
use weir_flow::pool::partition::PartitionPoolSpec;
use weir_flow::pool::sizing::GateBuffers;
use weir_ipc::attach::socket;
use weir_ipc::gate_port::GateEndpoint;
use weir_ipc::layout::{GateLayout, PartitionLayout, SEGMENTS_MAX};
use weir_ipc::partition_port::PartitionEndpoint;

use super::descriptors;
use crate::memory::numa::{BytesByNode, NodeChoice, OnNodes, Preference};
use crate::memory::{Backing, HugepageMode, ReceiveRegion, RegionError, SendRegion, planned_bytes};

/// Segments of one partition or gate, each number `None` where the node's default holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolOptions {
    /// Exclusive segments per channel.
    pub exclusive: Option<u32>,
    /// Floating segments.
    pub floating: Option<u32>,
    /// Segments that a subpartition may hold open or queued.
    pub quota: Option<u32>,
    /// Segments beyond the pool, only to finish a record.
    pub overdraft: Option<u32>,
    /// Segments for what is sent and not acknowledged.
    pub retention: Option<u32>,
}

/// Segments of one partition or gate, each number within its bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pools {
    /// Exclusive segments per channel.
    pub exclusive: u32,
    /// Floating segments.
    pub floating: u32,
    /// Segments that a subpartition may hold open or queued.
    pub quota: u32,
    /// Segments beyond the pool, only to finish a record.
    pub overdraft: u32,
    /// Segments for what is sent and not acknowledged.
    pub retention: u32,
}

impl Pools {
    /// The client's choice where it made one, the node's defaults elsewhere.
    ///
    /// # Errors
    /// The first number that is out of its bounds.
    pub fn chosen(options: &PoolOptions, defaults: &Limits) -> Result<Self, Failure> {
        let within = |name: &str, found: Option<u32>, default: u32, least: u32, most: u32| match found {
            None => Ok(default),
            Some(found) if (least..=most).contains(&found) => Ok(found),
            Some(found) => Err(protocol(format!("{name} is {found}; needed: {least} to {most}"))),
        };
        Ok(Self {
            exclusive: within("exclusive", options.exclusive, defaults.exclusive, 1, 1024)?,
            floating: within("floating", options.floating, defaults.floating, 0, 65_536)?,
            quota: within("max_buffers_per_channel", options.quota, defaults.quota, 1, 65_536)?,
            overdraft: within("overdraft", options.overdraft, defaults.overdraft, 0, 1024)?,
            retention: within("retention", options.retention, defaults.retention, 0, 65_536)?,
        })
    }
}

/// The shape that a producer states.
///
/// # Errors
/// An unknown strategy, or a parallelism that cannot be.
pub fn shape(
    producers: u32,
    consumers: u32,
    strategy: &str,
    checksum: bool,
    segment_bytes: u32,
) -> Result<Shape, Failure> {
    let strategy = self::strategy(strategy)?;
    check_parallelism("producer", producers)?;
    check_parallelism("consumer", consumers)?;
    let shape = Shape { producers, consumers, strategy, segment_bytes, checksum };
    match shape.check_parallelism() {
        Ok(()) => Ok(shape),
        Err(unequal) => Err(Failure::new(FailureCode::Mismatch, unequal.to_string())),
    }
}

/// The strategy of this name.
///
/// # Errors
/// There is none.
pub fn strategy(name: &str) -> Result<Strategy, Failure> {
    let shown = || name.chars().take(32).collect::<String>();
    name.parse().map_err(|error| protocol(format!("strategy is {:?}: {error}", shown())))
}

/// Checks a parallelism by itself.
///
/// # Errors
/// It is not from 1 to [`PARALLELISM_MAX`].
pub fn check_parallelism(side: &str, found: u32) -> Result<(), Failure> {
    if (1..=PARALLELISM_MAX).contains(&found) {
        return Ok(());
    }
    let text = format!("{side} parallelism is {found}; needed: 1 to {PARALLELISM_MAX}");
    Err(Failure::new(FailureCode::IndexOutOfRange, text))
}

/// Checks an index against its parallelism.
///
/// # Errors
/// It is not below it.
pub fn check_index(side: &str, found: u32, parallelism: u32) -> Result<(), Failure> {
    if found < parallelism {
        return Ok(());
    }
    let text = format!("{side} index is {found}; needed: below {parallelism}, the {side} parallelism");
    Err(Failure::new(FailureCode::IndexOutOfRange, text))
}

/// Checks what a partition is to do when a consumer dies.
///
/// # Errors
/// It is to go on without it, and its consumers do not stand in for each other.
pub fn check_consumer_death(strategy: Strategy, continue_without: bool) -> Result<(), Failure> {
    if !continue_without || strategy.has_interchangeable_consumers() {
        return Ok(());
    }
    let text = format!("continue_without with strategy {strategy}; needed: rebalance or rescale");
    Err(Failure::new(FailureCode::Mismatch, text))
}

/// Where the memory of partitions and gates comes from.
#[derive(Clone, Copy, Debug)]
pub struct MemoryPlan {
    /// Size of a segment, in bytes.
    pub segment_bytes: u32,
    /// Whether regions are made of hugepages.
    pub hugepages: HugepageMode,
    /// The NUMA node of regions.
    pub node: NodeChoice,
}

/// The memory of a partition or gate: every number is within its bounds, and nothing is made yet.
#[derive(Clone, Copy, Debug)]
pub struct RegionPlan {
    memory: MemoryPlan,
    /// Segments that are needed at least.
    segments: u32,
    bytes_max: u64,
    ends: PlannedEnds,
}

#[derive(Clone, Copy, Debug)]
enum PlannedEnds {
    Partition { subpartitions: u32 },
    Gate { channels: u32 },
}

/// The memory of a partition or gate.
pub struct Made {
    /// The daemon's ends.
    pub ends: Ends,
    /// Rings, then region, for the client; of a gate also its end of the region socket.
    pub descriptors: Vec<OwnedFd>,
    /// Segments of the region.
    pub segments: u32,
    /// Bytes of the region.
    pub bytes: u64,
    /// What the region is made of.
    pub backing: Backing,
    /// On which NUMA nodes the region is.
    pub nodes: OnNodes,
    /// The node that the kernel was asked to prefer, and why it did not; none if it was not asked.
    pub preferred: Option<(u32, Result<(), String>)>,
    /// What the node keeps, to lend the region of a producer to consumers on this node.
    pub lending: Lending,
}

/// The node's part in lending regions of producers to consumers on this node.
#[derive(Debug)]
pub enum Lending {
    /// Of a partition: its region, for reading. None where it cannot be had: then its channels go over links.
    Region(Option<OwnedFd>),
    /// Of a gate: where its client gets regions.
    Socket(OwnedFd),
}

/// The daemon's ends of rings and region.
#[allow(clippy::large_enum_variant, reason = "they are few and are moved on at once")]
pub enum Ends {
    /// Those of a partition.
    Partition(PartitionEndpoint, Arc<SendRegion>),
    /// Those of a gate.
    Gate(GateEndpoint, ReceiveRegion),
}

impl std::fmt::Debug for Made {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { segments, bytes, backing, .. } = self;
        f.debug_struct("Made")
            .field("segments", segments)
            .field("bytes", bytes)
            .field("backing", backing)
            .finish_non_exhaustive()
    }
}

impl RegionPlan {
    /// The memory of a partition with so many subpartitions; with `broadcast` these share their segments and count as
    /// one.
    ///
    /// # Errors
    /// More segments than there may be.
    pub fn partition(memory: MemoryPlan, pools: &Pools, subpartitions: u32) -> Result<Self, Failure> {
        let Pools { exclusive, floating, retention, overdraft, .. } = *pools;
        let wanted =
            PartitionPoolSpec::sized(subpartitions, exclusive, floating, retention, overdraft).segments;
        Self::of(memory, wanted, PlannedEnds::Partition { subpartitions })
    }

    /// The memory of a gate with so many channels.
    ///
    /// # Errors
    /// As [`RegionPlan::partition`].
    pub fn gate(memory: MemoryPlan, pools: &Pools, channels: u32) -> Result<Self, Failure> {
        let wanted = GateBuffers::of(channels, pools.exclusive, pools.floating).total;
        Self::of(memory, wanted, PlannedEnds::Gate { channels })
    }

    fn of(memory: MemoryPlan, segments: u32, ends: PlannedEnds) -> Result<Self, Failure> {
        check_segments(segments)?;
        // With `auto` a region that does not fit as hugepages may still fit as ordinary pages, which round up less; but
        // then the budget is all but full, and saying so is more use than a region of the other kind.
        let bytes_max = planned_bytes(segments, memory.segment_bytes, memory.hugepages)
            .map_err(|error| no_region(&error))?;
        Ok(Self { memory, segments, bytes_max, ends })
    }

    /// The most bytes that the region can take, which the budget is charged with before it is made.
    #[must_use]
    pub const fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// Makes rings and region. Blocks while the kernel clears every page, for seconds if there are many.
    ///
    /// # Errors
    /// No hugepages where they are required, or what the kernel answers. Nothing is left behind then.
    pub fn make(&self) -> Result<Made, Failure> {
        let MemoryPlan { segment_bytes, hugepages, node } = self.memory;
        let preference = Preference::begin(node.preferred());
        let said = preference.as_ref().map(drop).map_err(ToString::to_string);
        let preferred = node.preferred().map(|node| (node, said));
        let on_nodes = |bytes, nodes: &dyn Fn() -> BytesByNode| {
            let by_node = match node {
                NodeChoice::Only(node) => node.into_iter().map(|node| (node, bytes)).collect(),
                NodeChoice::Preferred(_) => nodes(),
            };
            OnNodes::made(by_node, node)
        };
        match self.ends {
            PlannedEnds::Partition { subpartitions } => {
                let (region, file, segments) = SendRegion::create(self.segments, segment_bytes, hugepages)
                    .map_err(|error| no_region(&error))?;
                let (bytes, backing) = (region.bytes(), region.backing());
                let nodes = on_nodes(bytes, &|| region.nodes());
                let readable = SendRegion::readable(&file).ok();
                let layout = PartitionLayout { segments, subpartitions };
                let (endpoint, rings) = checked(PartitionEndpoint::create(&layout))?;
                let ends = Ends::Partition(endpoint, region);
                let lending = Lending::Region(readable);
                let descriptors = vec![rings, file];
                Ok(Made { ends, descriptors, segments, bytes, backing, nodes, preferred, lending })
            }
            PlannedEnds::Gate { channels } => {
                let (region, file, segments) = ReceiveRegion::create(self.segments, segment_bytes, hugepages)
                    .map_err(|error| no_region(&error))?;
                let (bytes, backing) = (region.bytes(), region.backing());
                let nodes = on_nodes(bytes, &|| region.nodes());
                let layout = GateLayout { segments, channels };
                let pair = socket::region_pair().map_err(|error| {
                    Failure::new(
                        FailureCode::OverBudget,
                        format!("cannot make a socket for regions: {error}"),
                    )
                })?;
                let (endpoint, rings) = checked(GateEndpoint::create(&layout))?;
                let ends = Ends::Gate(endpoint, region);
                let (descriptors, lending) = (vec![rings, file, pair.1], Lending::Socket(pair.0));
                Ok(Made { ends, descriptors, segments, bytes, backing, nodes, preferred, lending })
            }
        }
    }
}

fn check_segments(wanted: u32) -> Result<(), Failure> {
    if wanted <= SEGMENTS_MAX {
        return Ok(());
    }
    Err(Failure::new(
        FailureCode::OverBudget,
        format!(
            "{wanted} segments asked for; needed: at most {SEGMENTS_MAX}; lower exclusive, floating or retention"
        ),
    ))
}

fn protocol(text: String) -> Failure {
    Failure::new(FailureCode::Protocol, text)
}

fn no_region(error: &RegionError) -> Failure {
    Failure::new(FailureCode::OverBudget, error.to_string())
}

/// Rings that were made, unless that took one of the last descriptors.
fn checked<T>(made: io::Result<(T, OwnedFd)>) -> Result<(T, OwnedFd), Failure> {
    let (endpoint, rings) = made.map_err(|error| {
        Failure::new(FailureCode::OverBudget, format!("cannot make shared memory for rings: {error}"))
    })?;
    match descriptors::scarce(&rings) {
        Some(scarce) => Err(Failure::new(FailureCode::OverBudget, scarce.to_string())),
        None => Ok((endpoint, rings)),
    }
}
