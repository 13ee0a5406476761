//! Checking what a client asks for, and making the memory of a partition or a gate.
//!
//! The order is: every number within its bounds, then the budget, then the memory. What the budget does not have is
//! refused before a page is touched, and a region that cannot be made leaves nothing behind.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use weir_flow::exchange::{PARALLELISM_MAX, Shape, Strategy};
use weir_flow::failure::{Failure, FailureCode};
use weir_flow::limits::Limits;
use weir_flow::pool::budget::{NodeBudget, OverBudget, ReservationId};
use weir_flow::pool::partition::PartitionPoolSpec;
use weir_flow::pool::sizing::GateBuffers;
use weir_ipc::gate_port::GateEndpoint;
use weir_ipc::layout::{GateLayout, PartitionLayout, SEGMENTS_MAX};
use weir_ipc::partition_port::PartitionEndpoint;

use super::descriptors;
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
    if strategy == Strategy::Forward && producers != consumers {
        return Err(Failure::new(
            FailureCode::Mismatch,
            format!(
                "forward with {producers} producers and {consumers} consumers; needed: the same number of both"
            ),
        ));
    }
    Ok(Shape { producers, consumers, strategy, segment_bytes, checksum })
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
    if !continue_without || strategy == Strategy::Rebalance {
        return Ok(());
    }
    let text = format!("continue_without with strategy {strategy}; needed: {}", Strategy::Rebalance);
    Err(Failure::new(FailureCode::Mismatch, text))
}

/// Where the memory of partitions and gates comes from.
#[derive(Clone, Copy, Debug)]
pub struct MemoryPlan {
    /// Size of a segment, in bytes.
    pub segment_bytes: u32,
    /// Whether regions are made of hugepages.
    pub hugepages: HugepageMode,
}

/// A partition's memory, charged to the budget.
pub struct MadePartition {
    /// The daemon's end of its rings.
    pub endpoint: PartitionEndpoint,
    /// The daemon's end of its region.
    pub region: Arc<SendRegion>,
    /// Rings, then region, for the client.
    pub descriptors: Vec<OwnedFd>,
    /// Segments of the region.
    pub segments: u32,
    /// What it is charged as.
    pub reservation: ReservationId,
    /// What the region is made of.
    pub backing: Backing,
}

/// A gate's memory, charged to the budget.
pub struct MadeGate {
    /// The daemon's end of its rings.
    pub endpoint: GateEndpoint,
    /// The daemon's end of its region.
    pub region: ReceiveRegion,
    /// Rings, then region, for the client.
    pub descriptors: Vec<OwnedFd>,
    /// Segments of the region.
    pub segments: u32,
    /// What it is charged as.
    pub reservation: ReservationId,
    /// What the region is made of.
    pub backing: Backing,
}

/// Why the memory of a partition or gate was not made.
#[derive(Debug)]
pub enum Unmade {
    /// The budget does not have it. Holders are named as they were when it was reserved.
    OverBudget(OverBudget),
    /// Anything else.
    Failed(Failure),
}

impl From<Failure> for Unmade {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// Makes the memory of a partition. `holder` is whom a later refusal for lack of budget names.
///
/// # Errors
/// Over the budget, no hugepages where they are required, or what the kernel answers.
pub fn partition(
    plan: MemoryPlan,
    pools: &Pools,
    subpartitions: u32,
    budget: &mut NodeBudget,
    holder: &str,
) -> Result<MadePartition, Unmade> {
    let Pools { exclusive, floating, retention, overdraft, .. } = *pools;
    let wanted = PartitionPoolSpec::sized(subpartitions, exclusive, floating, retention, overdraft).segments;
    check_segments(wanted)?;
    let ((region, region_file, segments), reservation) = charged(plan, wanted, budget, holder, || {
        let made = SendRegion::create(wanted, plan.segment_bytes, plan.hugepages)?;
        let bytes = made.0.bytes();
        Ok((made, bytes))
    })?;
    let backing = region.backing();
    match checked(PartitionEndpoint::create(&PartitionLayout { segments, subpartitions })) {
        Ok((endpoint, rings)) => Ok(MadePartition {
            endpoint,
            region,
            descriptors: vec![rings, region_file],
            segments,
            reservation,
            backing,
        }),
        Err(failure) => {
            budget.release(reservation);
            Err(failure.into())
        }
    }
}

/// Makes the memory of a gate. `holder` is whom a later refusal for lack of budget names.
///
/// # Errors
/// As [`partition`].
pub fn gate(
    plan: MemoryPlan,
    pools: &Pools,
    channels: u32,
    budget: &mut NodeBudget,
    holder: &str,
) -> Result<MadeGate, Unmade> {
    let wanted = GateBuffers::of(channels, pools.exclusive, pools.floating).total;
    check_segments(wanted)?;
    let ((region, region_file, segments), reservation) = charged(plan, wanted, budget, holder, || {
        let made = ReceiveRegion::create(wanted, plan.segment_bytes, plan.hugepages)?;
        let bytes = made.0.bytes();
        Ok((made, bytes))
    })?;
    let backing = region.backing();
    match checked(GateEndpoint::create(&GateLayout { segments, channels })) {
        Ok((endpoint, rings)) => Ok(MadeGate {
            endpoint,
            region,
            descriptors: vec![rings, region_file],
            segments,
            reservation,
            backing,
        }),
        Err(failure) => {
            budget.release(reservation);
            Err(failure.into())
        }
    }
}

/// Charges the budget with the most that a region can take, makes it, and gives back what it did not take.
fn charged<T>(
    plan: MemoryPlan,
    segments: u32,
    budget: &mut NodeBudget,
    holder: &str,
    make: impl FnOnce() -> Result<(T, u64), RegionError>,
) -> Result<(T, ReservationId), Unmade> {
    let most =
        planned_bytes(segments, plan.segment_bytes, plan.hugepages).map_err(|error| no_region(&error))?;
    // With `auto` a region that does not fit as hugepages may still fit as ordinary pages, which round up less; but
    // then the budget is all but full, and saying so is more use than a region of the other kind.
    let reservation = budget.reserve(holder.to_owned(), most).map_err(Unmade::OverBudget)?;
    match make() {
        Ok((made, bytes)) if bytes < most => {
            budget.release(reservation);
            // Less than what was just released, so it fits.
            match budget.reserve(holder.to_owned(), bytes) {
                Ok(reservation) => Ok((made, reservation)),
                Err(over) => Err(Unmade::OverBudget(over)),
            }
        }
        Ok((made, _)) => Ok((made, reservation)),
        Err(error) => {
            budget.release(reservation);
            Err(no_region(&error).into())
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
