//! The memory limit of this process' control group: beyond it the kernel ends the process, whatever the machine has left.

use std::fs;
use std::path::{Path, PathBuf};

use super::mebibytes;

/// A limit from here on is none: version 1 shows its largest number of pages.
const UNLIMITED_BYTES: u64 = 1 << 60;

/// The memory that a control group may use.
const MEMORY: Controller = Controller { name: "memory", v1: "memory.limit_in_bytes", v2: "memory.max" };

/// The hugepages of 2 MiB that it may use.
const HUGEPAGES: Controller =
    Controller { name: "hugetlb", v1: "hugetlb.2MB.limit_in_bytes", v2: "hugetlb.2MB.max" };

/// One controller, and the files that have its limit in the two versions of control groups.
struct Controller {
    name: &'static str,
    v1: &'static str,
    v2: &'static str,
}

/// A limit, and where it stands.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GroupLimit {
    /// What may be used, in bytes.
    pub bytes: u64,
    /// The file that says so.
    pub file: PathBuf,
}

/// The least memory limit of this process' control group and those around it, in bytes. None: there is none, or the
/// system does not show it. `root` is the root of the file system, `/` outside tests.
///
/// Hugepages do not count for it, unless the system was mounted so (`memory_hugetlb_accounting`).
#[must_use]
pub fn memory_limit(root: &Path) -> Option<u64> {
    memory_limit_of(root, "self")
}

/// The same of another process, by its number.
#[must_use]
pub fn memory_limit_of(root: &Path, process: &str) -> Option<u64> {
    least(root, process, &MEMORY).map(|limit| limit.bytes)
}

/// The least limit on hugepages of 2 MiB, in the same way.
#[must_use]
pub fn hugepage_limit_of(root: &Path, process: &str) -> Option<GroupLimit> {
    least(root, process, &HUGEPAGES)
}

/// Why a bound on regions that is larger than the group's memory is a danger.
#[must_use]
pub fn too_small(limit_bytes: u64) -> String {
    format!(
        "the daemon's control group may use {} MiB, and the kernel ends the daemon when regions of ordinary pages need \
         more",
        mebibytes(limit_bytes)
    )
}

/// What helps.
pub const TOO_SMALL_FIX: &str = "a smaller memory.total, or a larger MemoryMax=";

fn least(root: &Path, process: &str, controller: &Controller) -> Option<GroupLimit> {
    let groups = fs::read_to_string(root.join(format!("proc/{process}/cgroup"))).ok()?;
    groups.lines().filter_map(|line| least_limit(root, line, controller)).min()
}

/// The least limit of the group that a line of `/proc/PID/cgroup` names, `HIERARCHY:CONTROLLERS:PATH`.
fn least_limit(root: &Path, line: &str, controller: &Controller) -> Option<GroupLimit> {
    let mut fields = line.splitn(3, ':');
    let (hierarchy, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
    let (mounts, file) = if hierarchy == "0" {
        (vec![PathBuf::from("sys/fs/cgroup"), PathBuf::from("sys/fs/cgroup/unified")], controller.v2)
    } else if controllers.split(',').any(|name| name == controller.name) {
        (vec![Path::new("sys/fs/cgroup").join(controller.name)], controller.v1)
    } else {
        return None;
    };
    // A path that is not below the mount belongs to another namespace; what can be seen of it still limits.
    let group = PathBuf::from(path.trim_start_matches('/'));
    let files = mounts.iter().flat_map(|mount| {
        group.ancestors().map(|group| Path::new("/").join(mount).join(group).join(file)).collect::<Vec<_>>()
    });
    let limits = files.filter_map(|file| {
        let shown = root.join(file.strip_prefix("/").ok()?);
        limit_in(&shown).map(|bytes| GroupLimit { bytes, file })
    });
    limits.min()
}

fn limit_in(file: &Path) -> Option<u64> {
    let bytes: u64 = fs::read_to_string(file).ok()?.trim().parse().ok()?;
    (bytes < UNLIMITED_BYTES).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A system with these files.
    fn system(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn the_least_limit_on_the_way_to_the_root_counts() {
        let groups = ("proc/self/cgroup", "0::/system.slice/weir.service\n");
        let at = |path: &'static str, text: &'static str| (path, text);
        let own = at("sys/fs/cgroup/system.slice/weir.service/memory.max", "67108864\n");
        let outer = at("sys/fs/cgroup/system.slice/memory.max", "1073741824\n");
        let none = at("sys/fs/cgroup/system.slice/weir.service/memory.max", "max\n");
        for (files, expected) in [
            (vec![groups, own, outer], Some(67_108_864)),
            (vec![groups, none, outer], Some(1 << 30)),
            (vec![groups, none], None),
            (vec![groups], None),
            (vec![own], None),
            // Inside a container the root of what is seen is the container's group.
            (vec![at("proc/self/cgroup", "0::/\n"), at("sys/fs/cgroup/memory.max", "4096\n")], Some(4096)),
        ] {
            let root = system(&files);
            assert_eq!(memory_limit(root.path()), expected, "{files:?}");
        }
    }

    #[test]
    fn a_limit_on_hugepages_is_found_with_its_file() {
        let groups = ("proc/7/cgroup", "3:hugetlb:/b\n0::/system.slice/weir.service\n");
        let second = ("sys/fs/cgroup/system.slice/hugetlb.2MB.max", "4194304\n");
        let first = ("sys/fs/cgroup/hugetlb/b/hugetlb.2MB.limit_in_bytes", "0\n");
        let found = |files: &[(&str, &str)]| {
            hugepage_limit_of(system(files).path(), "7")
                .map(|limit| (limit.bytes, limit.file.display().to_string()))
        };
        assert_eq!(found(&[groups]), None);
        assert_eq!(found(&[groups, second]), Some((4 << 20, format!("/{}", second.0))));
        assert_eq!(found(&[groups, second, first]), Some((0, format!("/{}", first.0))));
    }

    #[test]
    fn the_first_version_is_understood_beside_the_second() {
        let groups = ("proc/self/cgroup", "12:pids:/x\n4:cpu,memory:/job/a\n0::/\n");
        let unlimited = ("sys/fs/cgroup/memory/job/a/memory.limit_in_bytes", "9223372036854771712\n");
        let limited = ("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "33554432\n");
        assert_eq!(memory_limit(system(&[groups, unlimited]).path()), None);
        assert_eq!(memory_limit(system(&[groups, unlimited, limited]).path()), Some(32 << 20));
    }
}
