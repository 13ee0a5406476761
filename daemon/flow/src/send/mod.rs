//! The sending half: result partitions, their subpartitions, and what each may send next.

pub(crate) mod memory;
pub(crate) mod packing;
pub(crate) mod partition;
pub(crate) mod schedule;
pub(crate) mod segments;
pub(crate) mod subpartition;
