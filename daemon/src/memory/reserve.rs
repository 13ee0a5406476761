//! Reserving hugepages by NUMA node: what an operator does once per boot, before memory is in pieces.
//!
//! The pool of a node is only ever made larger: other programs may count on what is there.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::HUGEPAGE_BYTES;

/// Directory of the NUMA nodes.
const NODES: &str = "sys/devices/system/node";

/// The pool of one node, or of all where the kernel has none by node.
const POOL: &str = "hugepages/hugepages-2048kB";

/// Of a node's memory, the share that may be hugepages, in percent: what else runs there needs the rest.
const SHARE_MAX_PERCENT: u64 = 90;

/// What became of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reserved {
    /// Its number.
    pub node: u32,
    /// Pages of 2 MiB that it had.
    pub before: u64,
    /// Those that it has now.
    pub after: u64,
}

impl Reserved {
    /// Pages that are missing of those wanted.
    #[must_use]
    pub const fn short(&self, wanted: u64) -> u64 {
        wanted.saturating_sub(self.after)
    }
}

/// Why nothing was reserved.
#[derive(Debug)]
pub enum ReserveError {
    /// The kernel has no pool of 2 MiB pages by node, or does not show it.
    NoPool,
    /// More than a node can spare.
    TooMany {
        /// The node.
        node: u32,
        /// The most that is taken of it, in pages.
        pages_max: u64,
    },
    /// A file cannot be read or written.
    File {
        /// It.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
}

impl fmt::Display for ReserveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoPool => f.write_str("this kernel shows no hugepages of 2 MiB by NUMA node"),
            Self::TooMany { node, pages_max } => write!(
                f,
                "node {node} has memory for {pages_max} hugepages at most, with a tenth left for everything else"
            ),
            Self::File { path, source } => write!(f, "{}: {source}", path.display()),
        }
    }
}

impl std::error::Error for ReserveError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::File { source, .. } => Some(source),
            Self::NoPool | Self::TooMany { .. } => None,
        }
    }
}

/// Makes the pool of every node that has processors hold at least `wanted` pages. The kernel gives as many as it finds
/// whole memory for, which [`Reserved::after`] tells. `root` is the root of the file system, `/` outside tests.
///
/// # Errors
/// There is no such pool, a node is too small, or a file cannot be read or written. Nodes that come before the one that
/// failed keep what they were given; none was given anything if one is too small.
pub fn reserve(root: &Path, wanted: u64) -> Result<Vec<Reserved>, ReserveError> {
    reserve_by(root, wanted, |pool, pages| fs::write(pool, pages.to_string()))
}

/// As [`reserve`], with how a pool is told.
fn reserve_by(
    root: &Path,
    wanted: u64,
    mut tell: impl FnMut(&Path, u64) -> io::Result<()>,
) -> Result<Vec<Reserved>, ReserveError> {
    let nodes = nodes(root)?;
    for (node, directory) in &nodes {
        let pages_max = memory_bytes(directory) / HUGEPAGE_BYTES * SHARE_MAX_PERCENT / 100;
        if wanted > pages_max {
            return Err(ReserveError::TooMany { node: *node, pages_max });
        }
    }
    let mut reserved = Vec::with_capacity(nodes.len());
    for (node, directory) in nodes {
        let pool = directory.join(POOL).join("nr_hugepages");
        let before = pages(&pool)?;
        if before < wanted {
            tell(&pool, wanted).map_err(|source| ReserveError::File { path: pool.clone(), source })?;
        }
        reserved.push(Reserved { node, before, after: pages(&pool)? });
    }
    Ok(reserved)
}

/// The nodes with processors and a pool, by number.
fn nodes(root: &Path) -> Result<Vec<(u32, PathBuf)>, ReserveError> {
    let directory = root.join(NODES);
    let entries = fs::read_dir(&directory).map_err(|_| ReserveError::NoPool)?;
    let mut nodes: Vec<(u32, PathBuf)> = entries
        .flatten()
        .filter_map(|entry| {
            let number = entry.file_name().to_str()?.strip_prefix("node")?.parse().ok()?;
            let path = entry.path();
            let cpus = fs::read_to_string(path.join("cpulist")).ok()?;
            (!cpus.trim().is_empty() && path.join(POOL).is_dir()).then_some((number, path))
        })
        .collect();
    nodes.sort_unstable();
    if nodes.is_empty() { Err(ReserveError::NoPool) } else { Ok(nodes) }
}

/// Memory of a node, in bytes; 0 if the kernel does not show it. Its lines are `Node 0 MemTotal:  8388608 kB`.
fn memory_bytes(node: &Path) -> u64 {
    let text = fs::read_to_string(node.join("meminfo")).unwrap_or_default();
    let total = text.lines().find_map(|line| line.split_once("MemTotal:"));
    let kibibytes: Option<u64> =
        total.and_then(|(_, text)| text.trim().strip_suffix("kB")?.trim().parse().ok());
    kibibytes.unwrap_or(0).saturating_mul(1 << 10)
}

fn pages(pool: &Path) -> Result<u64, ReserveError> {
    let file = |source| ReserveError::File { path: pool.to_owned(), source };
    let text = fs::read_to_string(pool).map_err(file)?;
    text.trim().parse().map_err(|_| file(io::Error::new(io::ErrorKind::InvalidData, "no number")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine whose nodes have these processors and pages, and 64 MiB of memory each.
    fn machine(nodes: &[(&str, u64)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (number, (cpus, pages)) in nodes.iter().enumerate() {
            let node = root.path().join(NODES).join(format!("node{number}"));
            fs::create_dir_all(node.join(POOL)).unwrap();
            fs::write(node.join("cpulist"), format!("{cpus}\n")).unwrap();
            fs::write(node.join(POOL).join("nr_hugepages"), format!("{pages}\n")).unwrap();
            fs::write(
                node.join("meminfo"),
                format!("Node {number} MemTotal:   65536 kB\nNode {number} MemFree: 1 kB\n"),
            )
            .unwrap();
        }
        root
    }

    fn found(reserved: &[Reserved]) -> Vec<(u32, u64, u64)> {
        reserved.iter().map(|node| (node.node, node.before, node.after)).collect()
    }

    #[test]
    fn each_node_with_processors_is_raised_and_none_is_lowered() {
        let root = machine(&[("0-1", 0), ("2-3", 20), ("", 0)]);
        assert_eq!(found(&reserve(root.path(), 8).unwrap()), [(0, 0, 8), (1, 20, 20)]);
        assert_eq!(found(&reserve(root.path(), 0).unwrap()), [(0, 8, 8), (1, 20, 20)]);
    }

    #[test]
    fn what_the_kernel_does_not_give_is_told() {
        let root = machine(&[("0", 2), ("1", 0)]);
        let give_five = |pool: &Path, wanted: u64| fs::write(pool, wanted.min(5).to_string());
        let reserved = reserve_by(root.path(), 8, give_five).unwrap();
        assert_eq!(found(&reserved), [(0, 2, 5), (1, 0, 5)]);
        assert_eq!((reserved[0].short(8), reserved[0].short(4)), (3, 0));
    }

    #[test]
    fn a_node_keeps_a_tenth_of_its_memory_and_then_none_is_touched() {
        let root = machine(&[("0", 0), ("1", 0)]);
        // 32 pages, of which 28 may be taken.
        assert_eq!(reserve(root.path(), 28).unwrap().len(), 2);
        let error = reserve_by(root.path(), 29, |_, _| panic!("written")).unwrap_err();
        assert_eq!(
            error.to_string(),
            "node 0 has memory for 28 hugepages at most, with a tenth left for everything else"
        );
    }

    #[test]
    fn without_a_pool_or_the_right_to_write_it_is_an_error() {
        let nothing = tempfile::tempdir().unwrap();
        assert!(matches!(reserve(nothing.path(), 1), Err(ReserveError::NoPool)));
        let root = machine(&[("0", 0)]);
        let refuse = |_: &Path, _| Err(io::ErrorKind::PermissionDenied.into());
        let error = reserve_by(root.path(), 1, refuse).unwrap_err();
        assert!(error.to_string().contains("node0/hugepages/hugepages-2048kB/nr_hugepages"), "{error}");
    }
}
