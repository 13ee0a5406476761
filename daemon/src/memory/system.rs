//! What the system says about its hugepages.
//!
//! Every function takes the root of the file system, `/` outside tests.

use std::fs;
use std::path::Path;

use super::cgroup::{self, GroupRoom};
use super::{HUGEPAGE_BYTES, mebibytes};

/// Root of the file system.
pub const ROOT: &str = "/";

/// Pages that a command to make room for some asks for.
const PAGES_SUGGESTED: u64 = 64;

/// State of the pool of 2 MiB hugepages, in pages, and what of it a process may have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hugepages {
    /// Pages in the pool.
    pub total: u64,
    /// Pages that nobody uses.
    pub free: u64,
    /// Of the free pages, those promised to a mapping that has not touched them yet.
    pub reserved: u64,
    /// Pages that the kernel may still add by itself, by `nr_overcommit_hugepages`.
    pub growth: u64,
    /// What the process' control group may still have, if it is limited.
    pub group: Option<GroupRoom>,
}

impl Hugepages {
    /// Pages that a new region can have.
    #[must_use]
    pub fn available(&self) -> u64 {
        self.pages_of_group().map_or(self.in_pool(), |pages| pages.min(self.in_pool()))
    }

    /// Pages that anybody can have.
    const fn in_pool(&self) -> u64 {
        self.free.saturating_sub(self.reserved).saturating_add(self.growth)
    }

    fn pages_of_group(&self) -> Option<u64> {
        self.group.as_ref().map(|room| room.bytes / HUGEPAGE_BYTES)
    }

    /// How many a new region can have, in words; with the limit, where one leaves fewer than there are.
    #[must_use]
    pub fn found(&self) -> String {
        let found = |pages: u64| format!("{pages} hugepages of 2 MiB are free");
        match (&self.group, self.pages_of_group()) {
            (Some(GroupRoom { limit, .. }), Some(pages)) if pages < self.in_pool() => format!(
                "{} for the daemon, whose control group may have {} MiB of them, in {}",
                found(pages),
                mebibytes(limit.bytes),
                limit.file.display()
            ),
            _ => found(self.in_pool()),
        }
    }

    /// The same, and what makes room for some.
    #[must_use]
    pub fn shortage(&self) -> (String, String) {
        let is_limited = self.pages_of_group().is_some_and(|pages| pages < self.in_pool());
        // What is there is enough to begin with, once the limit is gone.
        let wanted = if is_limited { self.in_pool() } else { self.in_pool().saturating_add(PAGES_SUGGESTED) };
        (self.found(), self.fix(wanted))
    }

    /// The command that makes room for `wanted` pages.
    #[must_use]
    pub fn fix(&self, wanted: u64) -> String {
        let missing = wanted.saturating_sub(self.in_pool());
        let grow = || format!("sysctl vm.nr_hugepages={}", self.total.saturating_add(missing));
        match (&self.group, self.pages_of_group()) {
            (Some(room), Some(pages)) if pages < wanted && missing == 0 => room.limit.fix(),
            (Some(room), Some(pages)) if pages < wanted => format!("{} && {}", room.limit.fix(), grow()),
            _ => grow(),
        }
    }
}

/// The pool of 2 MiB hugepages, with what this process' control group may have of it. None where the kernel has no such pool
/// or does not show it.
#[must_use]
pub fn hugepages(root: &Path) -> Option<Hugepages> {
    hugepages_of(root, "self")
}

/// The same with the control group of another process, by its number.
#[must_use]
pub fn hugepages_of(root: &Path, process: &str) -> Option<Hugepages> {
    let pool = root.join("sys/kernel/mm/hugepages/hugepages-2048kB");
    let read = |file: &str| fs::read_to_string(pool.join(file)).ok()?.trim().parse::<u64>().ok();
    let overcommit = read("nr_overcommit_hugepages").unwrap_or(0);
    let surplus = read("surplus_hugepages").unwrap_or(0);
    Some(Hugepages {
        total: read("nr_hugepages")?,
        free: read("free_hugepages")?,
        reserved: read("resv_hugepages")?,
        growth: overcommit.saturating_sub(surplus),
        group: cgroup::hugepage_room_of(root, process),
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
