//! The memory limit of this process' control group: beyond it the kernel ends the process, whatever the machine has left.

use std::fs;
use std::path::{Path, PathBuf};

/// A limit from here on is none: version 1 shows its largest number of pages.
const UNLIMITED_BYTES: u64 = 1 << 60;

/// The least memory limit of this process' control group and those around it, in bytes. None: there is none, or the
/// system does not show it. `root` is the root of the file system, `/` outside tests.
///
/// Hugepages do not count for it, unless the system was mounted so (`memory_hugetlb_accounting`).
#[must_use]
pub fn memory_limit(root: &Path) -> Option<u64> {
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    groups.lines().filter_map(|line| least_limit(root, line)).min()
}

/// The least limit of the group that a line of `/proc/self/cgroup` names, `HIERARCHY:CONTROLLERS:PATH`.
fn least_limit(root: &Path, line: &str) -> Option<u64> {
    let mut fields = line.splitn(3, ':');
    let (hierarchy, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
    let (mounts, file): (&[&str], _) = if hierarchy == "0" {
        (&["sys/fs/cgroup", "sys/fs/cgroup/unified"], "memory.max")
    } else if controllers.split(',').any(|controller| controller == "memory") {
        (&["sys/fs/cgroup/memory"], "memory.limit_in_bytes")
    } else {
        return None;
    };
    // A path that is not below the mount belongs to another namespace; what can be seen of it still limits.
    let group = PathBuf::from(path.trim_start_matches('/'));
    let limits = mounts.iter().flat_map(|mount| {
        let mount = root.join(mount);
        group.ancestors().map(|group| limit_in(&mount.join(group).join(file))).collect::<Vec<_>>()
    });
    limits.flatten().min()
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
    fn the_first_version_is_understood_beside_the_second() {
        let groups = ("proc/self/cgroup", "12:pids:/x\n4:cpu,memory:/job/a\n0::/\n");
        let unlimited = ("sys/fs/cgroup/memory/job/a/memory.limit_in_bytes", "9223372036854771712\n");
        let limited = ("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "33554432\n");
        assert_eq!(memory_limit(system(&[groups, unlimited]).path()), None);
        assert_eq!(memory_limit(system(&[groups, unlimited, limited]).path()), Some(32 << 20));
    }
}
