//! How links send, as the control socket tells it.

use serde::{Deserialize, Serialize};

/// Whether a link sends without a copy, and what came of it since it came.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ZeroCopyRow {
    /// `zero_copy`, `probing` while it tries whether the kernel still copies, `copy`, or `off`.
    pub mode: String,
    /// Why it is not `zero_copy`, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Batches that a socket took to be sent without a copy.
    pub sent_total: u64,
    /// Of those, the ones that the kernel copied after all, as it said when it let go of them.
    pub copied_total: u64,
    /// Sends that the kernel refused for want of memory that may be locked; each was copied instead.
    pub refused_total: u64,
    /// Batches that were copied since the kernel had not let go of enough others.
    pub crowded_total: u64,
    /// Batches that the kernel has not let go of.
    pub outstanding: u32,
}

/// The regions that one shard has registered, so that sends name them by a number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegisteredRow {
    /// Those that are registered now.
    pub regions: u32,
    /// Their size.
    pub bytes: u64,
    /// Sends that named one.
    pub sends_total: u64,
    /// Times that the kernel refused to register one, or a send for what it named.
    pub refused_total: u64,
}
