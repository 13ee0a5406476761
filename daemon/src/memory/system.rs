//! What the system says about its hugepages.
//!
//! Every function takes the root of the file system, `/` outside tests.

use std::fs;
use std::path::Path;

use super::cgroup::{self, GroupRoom};
use super::{HUGEPAGE_BYTES, mebibytes};
use crate::root::Root;
use crate::topology::{memories_allowed, show_list};

/// Root of the file system.
pub const ROOT: &str = "/";

/// Directory of the NUMA nodes, and that of the pool in the directory of each.
const NODES: &str = "/sys/devices/system/node";
const NODE_POOL: &str = "hugepages/hugepages-2048kB";

/// Why the kernel may refuse pages that are free for all that can be seen.
const HIDDEN_CAUSE: &str = "somebody else took them meanwhile, or a limit leaves fewer that is not seen from here: of a control group \
     around a container (hugetlb.2MB.max), or of a policy for memory (NUMAPolicy=, numactl)";

/// What to do then.
const HIDDEN_REMEDY: &str = "lift that limit";

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
    /// Those of the NUMA nodes that the process may have memory of, if there are others.
    pub nodes: Option<NodePages>,
    /// What the process' control group may still have, if it is limited.
    pub group: Option<GroupRoom>,
}

/// Pages on some NUMA nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodePages {
    /// The nodes, at least one.
    pub numbers: Vec<usize>,
    /// Pages in the pool of the first of them.
    pub first_total: u64,
    /// Pages of all of them that nobody uses.
    pub free: u64,
}

impl Hugepages {
    /// Pages that a new region can have.
    #[must_use]
    pub fn available(&self) -> u64 {
        self.pages_of_group().map_or(self.in_pool(), |pages| pages.min(self.in_pool()))
    }

    /// Pages that anybody can have who may use the same nodes. The kernel knows of no node for what is reserved.
    fn in_pool(&self) -> u64 {
        let free = self.free.saturating_sub(self.reserved);
        let on_nodes = self.nodes.as_ref().map_or(free, |nodes| nodes.free.min(free));
        on_nodes.saturating_add(self.growth)
    }

    fn pages_of_group(&self) -> Option<u64> {
        self.group.as_ref().map(|room| room.bytes / HUGEPAGE_BYTES)
    }

    /// How many a new region can have, in words; with the limit, where one leaves fewer than there are.
    #[must_use]
    pub fn found(&self) -> String {
        let found = |pages: u64| match &self.nodes {
            Some(NodePages { numbers, .. }) => format!(
                "{pages} hugepages of 2 MiB are free on NUMA nodes {}, and the daemon may use no others (AllowedMemoryNodes=, \
                 cpuset.mems)",
                show_list(numbers)
            ),
            None => format!("{pages} hugepages of 2 MiB are free"),
        };
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
        let grow = || match &self.nodes {
            // The kernel would share them out to all nodes.
            Some(NodePages { numbers, first_total, .. }) => format!(
                "echo {} > {NODES}/node{}/{NODE_POOL}/nr_hugepages",
                first_total.saturating_add(missing),
                numbers.first().copied().unwrap_or(0)
            ),
            None => format!("sysctl vm.nr_hugepages={}", self.total.saturating_add(missing)),
        };
        match (&self.group, self.pages_of_group()) {
            (Some(room), Some(pages)) if pages < wanted && missing == 0 => room.limit.fix(),
            (Some(room), Some(pages)) if pages < wanted => format!("{} && {}", room.limit.fix(), grow()),
            _ => grow(),
        }
    }

    /// Why `wanted` pages were not to be had: how many can be, and what to do, with its command if there is one.
    #[must_use]
    pub(super) fn refusal(&self, wanted: u64) -> (String, String) {
        if self.available() < wanted {
            return (self.found(), format!("run `{}`", self.fix(wanted)));
        }
        (format!("{}, and the kernel gives fewer: {HIDDEN_CAUSE}", self.found()), HIDDEN_REMEDY.to_owned())
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
        nodes: pages_of_nodes(&Root::at(root), process),
        group: cgroup::hugepage_room_of(root, process),
    })
}

/// Those of the nodes that a process may use; none where there are no others, or the kernel does not tell.
fn pages_of_nodes(root: &Root, process: &str) -> Option<NodePages> {
    let number = |name: String| name.strip_prefix("node")?.parse::<usize>().ok();
    let allowed: Vec<usize> =
        memories_allowed(root, process)?.into_iter().filter_map(|node| usize::try_from(node).ok()).collect();
    let pages =
        |node: usize, file: &str| root.number::<u64>(&format!("{NODES}/node{node}/{NODE_POOL}/{file}")).ok();
    // Nodes without memory have no pool.
    let nodes = root
        .names(NODES)
        .into_iter()
        .filter_map(number)
        .filter(|node| pages(*node, "free_hugepages").is_some());
    let (mut numbers, others): (Vec<usize>, Vec<usize>) = nodes.partition(|node| allowed.contains(node));
    numbers.sort_unstable();
    let first = numbers.first().filter(|_| !others.is_empty())?;
    let first_total = pages(*first, "nr_hugepages")?;
    let free = numbers.iter().filter_map(|node| pages(*node, "free_hugepages")).sum();
    Some(NodePages { numbers, first_total, free })
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
