//! What the daemon sees of itself and of the kernel, and what it makes of it.
//!
//! | part | what it does |
//! |---|---|
//! | [`times`] | idle, busy and backpressured time of a task, from what its cell claims |
//! | [`tasks_cpu`] | processor time of the tasks' processes |
//! | [`tasks_sockets`] | what the sockets of links did lately |
//! | [`tasks`] | readings of a node, as they are kept and told |
//! | [`verdict`] | which task or exchange holds a pipeline up, and why |

pub mod metrics;
pub(crate) mod probes;
pub(crate) mod sampler;
pub(crate) mod sockets;
pub mod tasks;
pub mod tasks_cpu;
pub(crate) mod tasks_sockets;
pub mod times;
pub mod verdict;

#[cfg(test)]
pub(crate) mod tests;
