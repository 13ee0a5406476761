//! The memory limit of this process' control group: beyond it the kernel ends the process, whatever the machine has left.

use std::fs;
use std::path::{Path, PathBuf};

use super::mebibytes;

/// A limit from here on is none: version 1 shows its largest number of pages.
const UNLIMITED_BYTES: u64 = 1 << 60;

/// The memory that a control group may use.
const MEMORY: Controller = Controller {
    name: "memory",
    v1: &[Files { limit: "memory.limit_in_bytes", usage: "memory.usage_in_bytes" }],
    v2: &[Files { limit: "memory.max", usage: "memory.current" }],
};

/// The hugepages of 2 MiB that it may use, and those that may be promised to it.
const HUGEPAGES: Controller = Controller {
    name: "hugetlb",
    v1: &[
        Files { limit: "hugetlb.2MB.limit_in_bytes", usage: "hugetlb.2MB.usage_in_bytes" },
        Files { limit: "hugetlb.2MB.rsvd.limit_in_bytes", usage: "hugetlb.2MB.rsvd.usage_in_bytes" },
    ],
    v2: &[
        Files { limit: "hugetlb.2MB.max", usage: "hugetlb.2MB.current" },
        Files { limit: "hugetlb.2MB.rsvd.max", usage: "hugetlb.2MB.rsvd.current" },
    ],
};

/// One controller, and its files in the two versions of control groups.
struct Controller {
    name: &'static str,
    v1: &'static [Files],
    v2: &'static [Files],
}

/// A limit and what is used of it, each in bytes.
#[derive(Clone, Copy)]
struct Files {
    limit: &'static str,
    usage: &'static str,
}

/// A limit, and where it stands.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GroupLimit {
    /// What may be used, in bytes.
    pub bytes: u64,
    /// The file that says so.
    pub file: PathBuf,
}

/// What a limit leaves.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GroupRoom {
    /// What may still be used, in bytes.
    pub bytes: u64,
    /// The limit.
    pub limit: GroupLimit,
}

impl GroupLimit {
    /// The command that takes it away.
    #[must_use]
    pub fn fix(&self) -> String {
        // How a file of either version says that there is none.
        let none =
            if self.file.extension().is_some_and(|extension| extension == "max") { "max" } else { "-1" };
        format!("echo {none} > {}", self.file.display())
    }
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
    limits(root, process, &MEMORY).into_iter().map(|(limit, _)| limit.bytes).min()
}

/// The least limit on hugepages of 2 MiB, in the same way.
#[must_use]
pub fn hugepage_limit_of(root: &Path, process: &str) -> Option<GroupLimit> {
    let limits = limits(root, process, &HUGEPAGES).into_iter();
    limits.map(|(limit, _)| limit).min()
}

/// The least that the limits on hugepages of 2 MiB leave to this process' control group, in the same way.
#[must_use]
pub fn hugepage_room_of(root: &Path, process: &str) -> Option<GroupRoom> {
    let rooms = limits(root, process, &HUGEPAGES).into_iter().map(|(limit, usage)| {
        let used = limit.file.with_file_name(usage);
        let used = used.strip_prefix("/").ok().and_then(|file| number_in(&root.join(file)));
        GroupRoom { bytes: limit.bytes.saturating_sub(used.unwrap_or(0)), limit }
    });
    rooms.min()
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

/// The limits of a process' control group and of those around it, each with the name of the file beside it that has what is
/// used.
fn limits(root: &Path, process: &str, controller: &Controller) -> Vec<(GroupLimit, &'static str)> {
    let groups = fs::read_to_string(root.join(format!("proc/{process}/cgroup"))).unwrap_or_default();
    groups.lines().filter_map(|line| limits_of(root, line, controller)).flatten().collect()
}

/// Those of the group that a line of `/proc/PID/cgroup` names, `HIERARCHY:CONTROLLERS:PATH`.
fn limits_of(root: &Path, line: &str, controller: &Controller) -> Option<Vec<(GroupLimit, &'static str)>> {
    let mut fields = line.splitn(3, ':');
    let (hierarchy, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
    let (mounts, files) = if hierarchy == "0" {
        (vec![PathBuf::from("sys/fs/cgroup"), PathBuf::from("sys/fs/cgroup/unified")], controller.v2)
    } else if controllers.split(',').any(|name| name == controller.name) {
        (vec![Path::new("sys/fs/cgroup").join(controller.name)], controller.v1)
    } else {
        return None;
    };
    // A path that is not below the mount belongs to another namespace; what can be seen of it still limits.
    let group = PathBuf::from(path.trim_start_matches('/'));
    let groups = mounts.iter().flat_map(|mount| {
        group.ancestors().map(|group| Path::new("/").join(mount).join(group)).collect::<Vec<_>>()
    });
    let limits = groups.flat_map(|group| {
        files.iter().filter_map(move |Files { limit, usage }| {
            let file = group.join(limit);
            let bytes = number_in(&root.join(file.strip_prefix("/").ok()?))?;
            (bytes < UNLIMITED_BYTES).then_some((GroupLimit { bytes, file }, *usage))
        })
    });
    Some(limits.collect())
}

/// None where a file has no number, such as `max`.
fn number_in(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
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
    fn what_a_limit_leaves_is_what_nobody_uses_of_it() {
        let groups = ("proc/7/cgroup", "0::/a/b\n");
        let outer = [
            ("sys/fs/cgroup/a/hugetlb.2MB.max", "8388608"),
            ("sys/fs/cgroup/a/hugetlb.2MB.current", "6291456"),
        ];
        let inner = ("sys/fs/cgroup/a/b/hugetlb.2MB.max", "4194304");
        let left = |files: &[(&str, &str)]| {
            hugepage_room_of(system(files).path(), "7")
                .map(|room| (room.bytes, room.limit.bytes, room.limit.fix()))
        };
        assert_eq!(left(&[groups]), None);
        let fix = |group: &str| format!("echo max > /sys/fs/cgroup/{group}/hugetlb.2MB.max");
        assert_eq!(left(&[groups, inner]), Some((4 << 20, 4 << 20, fix("a/b"))));
        assert_eq!(left(&[groups, outer[0], outer[1], inner]), Some((2 << 20, 8 << 20, fix("a"))));
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
