//! What the system says about its hugepages.
//!
//! Every function takes the root of the file system, `/` outside tests.

use std::fs;
use std::path::Path;

use super::HUGEPAGE_BYTES;

/// Root of the file system.
pub const ROOT: &str = "/";

/// Pages that a command to make room for some asks for.
const PAGES_SUGGESTED: u64 = 64;

/// State of the pool of 2 MiB hugepages, in pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hugepages {
    /// Pages in the pool.
    pub total: u64,
    /// Pages that nobody uses.
    pub free: u64,
    /// Of the free pages, those promised to a mapping that has not touched them yet.
    pub reserved: u64,
    /// Pages that the kernel may still add by itself, by `nr_overcommit_hugepages`.
    pub growth: u64,
}

impl Hugepages {
    /// Pages that a new region can have.
    #[must_use]
    pub const fn available(&self) -> u64 {
        self.free.saturating_sub(self.reserved).saturating_add(self.growth)
    }

    /// How many a new region can have, in words, and what makes room for some.
    #[must_use]
    pub fn shortage(&self) -> (String, String) {
        let available = self.available();
        (
            format!("{available} hugepages of 2 MiB are free"),
            self.fix(available.saturating_add(PAGES_SUGGESTED)),
        )
    }

    /// The command that makes room for `wanted` pages.
    #[must_use]
    pub fn fix(&self, wanted: u64) -> String {
        let missing = wanted.saturating_sub(self.available());
        format!("sysctl vm.nr_hugepages={}", self.total.saturating_add(missing))
    }
}

/// The pool of 2 MiB hugepages. None where the kernel has no such pool or does not show it.
#[must_use]
pub fn hugepages(root: &Path) -> Option<Hugepages> {
    let pool = root.join("sys/kernel/mm/hugepages/hugepages-2048kB");
    let read = |file: &str| fs::read_to_string(pool.join(file)).ok()?.trim().parse::<u64>().ok();
    let overcommit = read("nr_overcommit_hugepages").unwrap_or(0);
    let surplus = read("surplus_hugepages").unwrap_or(0);
    Some(Hugepages {
        total: read("nr_hugepages")?,
        free: read("free_hugepages")?,
        reserved: read("resv_hugepages")?,
        growth: overcommit.saturating_sub(surplus),
    })
}

/// Bytes of ordinary memory that can be had without swapping. None where the kernel does not show it.
#[must_use]
pub(super) fn memory_available(root: &Path) -> Option<u64> {
    meminfo_bytes(root, "MemAvailable:")
}

/// Whether an allocation of hugepages that names no size gets pages of [`HUGEPAGE_BYTES`].
#[must_use]
pub(super) fn default_hugepage_is_2_mib(root: &Path) -> bool {
    meminfo_bytes(root, "Hugepagesize:") == Some(HUGEPAGE_BYTES)
}

fn meminfo_bytes(root: &Path, name: &str) -> Option<u64> {
    let text = fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let value = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kibibytes: u64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1 << 10)
}
