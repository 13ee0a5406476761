//! Memory that the daemon makes: the regions of partitions and gates, and its own receive scratch.
//!
//! A **region** is one sealed memfd, cut into segments. The daemon makes it, allocates every page of it, maps it and
//! seals it before any client sees its descriptor, so that no client can shrink it under the daemon, and running out
//! of hugepages is an error at creation and never a signal later.
//!
//! - A *send region* is written by the client at any moment. The daemon never reads it in user space: it hands
//!   addresses to the kernel, which reports a page that is gone as EFAULT. That is why [`SendRegion`] gives out a
//!   [`RegionSlice`] and not a slice of bytes.
//! - A *receive region* is written by the daemon only. The seal on future writes makes the client's descriptor good
//!   for reading alone, and forbids punching holes.
//!
//! [`planned_bytes`] says what a region will cost before it is made, so that the node budget is charged first.

#![allow(unsafe_code)] // maps memory that other processes map too; every access is bounds-checked here

pub mod cgroup;
mod error;
pub mod numa;
mod region;
pub mod reserve;
mod scratch;
mod span;
pub mod system;

#[cfg(test)]
mod tests;

use std::fmt;

use weir_flow::limits::is_segment_size;

pub use error::RegionError;
pub use region::{ReceiveRegion, RegionSlice, SendRegion};
pub use scratch::Scratch;
pub use span::{TAIL_BYTES, Tail};

/// Bytes of a hugepage. Regions and scratch use this size only.
pub const HUGEPAGE_BYTES: u64 = 2 << 20;

/// Bytes of an ordinary page.
pub const PAGE_BYTES: u64 = 4 << 10;

/// Whether memory is made of hugepages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HugepageMode {
    /// Hugepages when enough are free, else ordinary pages.
    #[default]
    Auto,
    /// Hugepages, or an error that says how many are missing.
    Require,
    /// Ordinary pages.
    Off,
}

/// What memory turned out to be made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// Pages of [`HUGEPAGE_BYTES`].
    Hugepages,
    /// Pages of [`PAGE_BYTES`].
    Ordinary,
}

impl Backing {
    /// Bytes of one page.
    #[must_use]
    pub const fn page_bytes(self) -> u64 {
        match self {
            Self::Hugepages => HUGEPAGE_BYTES,
            Self::Ordinary => PAGE_BYTES,
        }
    }
}

impl fmt::Display for Backing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Hugepages => "hugepages",
            Self::Ordinary => "ordinary pages",
        })
    }
}

/// Bytes in MiB, with one decimal where they are not whole.
#[must_use]
pub(crate) fn mebibytes(bytes: u64) -> String {
    const MIB: u64 = 1 << 20;
    match bytes % MIB {
        0 => (bytes / MIB).to_string(),
        _ => format!("{:.1}", bytes as f64 / MIB as f64),
    }
}

/// The most bytes that a region of `segments_min` segments of `segment_bytes` each can take in this mode: what the
/// node budget is charged before the region is made. [`HugepageMode::Auto`] counts as hugepages, the larger of the
/// two; the region itself then says what it took.
///
/// # Errors
///
/// As creation: no segment at all, or a segment size that cannot be ([`is_segment_size`]).
pub fn planned_bytes(segments_min: u32, segment_bytes: u32, mode: HugepageMode) -> Result<u64, RegionError> {
    let backing = match mode {
        HugepageMode::Auto | HugepageMode::Require => Backing::Hugepages,
        HugepageMode::Off => Backing::Ordinary,
    };
    region_bytes(segments_min, segment_bytes, backing)
}

/// Bytes of a region with this backing: whole pages.
fn region_bytes(segments_min: u32, segment_bytes: u32, backing: Backing) -> Result<u64, RegionError> {
    if !is_segment_size(segment_bytes) {
        return Err(RegionError::SegmentBytes { found: segment_bytes });
    }
    if segments_min == 0 {
        return Err(RegionError::NoSegments);
    }
    // Two factors below 2^32 and 2^21 leave room in 64 bits for rounding up.
    let bytes = u64::from(segments_min) * u64::from(segment_bytes);
    Ok(bytes.next_multiple_of(backing.page_bytes()))
}
