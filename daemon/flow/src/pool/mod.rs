//! Who may take which segments, and how many: a node's budget, a partition's pool, a gate's pool.
//!
//! Pools count; they hold no memory. A segment is in exactly one place at any moment, and each pool can recount
//! its places and say so.

pub mod budget;
pub mod gate;
pub mod partition;
pub mod sizing;
