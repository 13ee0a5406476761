//! What `cargo xtask bench` and `cargo xtask demo` are made of: daemons and applications as real processes, baselines
//! on the same path in the same run, and a report that gives medians with their spread.

pub mod app;
pub mod blast;
pub mod choice;
pub mod clock;
pub mod cluster;
pub mod latency;
pub mod peers;
pub mod pipeline;
pub mod probe;
pub mod quiet;
pub mod report;
pub mod scenario;
pub mod statistics;
#[cfg(feature = "ring")]
pub mod swallow;
pub mod usage;
pub mod versus;
