//! Control groups of nodes: each has its own below that of this process, since the systemd of a node takes the one that
//! it finds itself in for the whole machine's.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The beginning of the names of all that the lab makes.
const PREFIX: &str = "weir-lab-";

/// Enters groups, then becomes another program.
const ENTER: &str =
    r#"while [ "$1" != -- ]; do echo $$ > "$1/cgroup.procs" || exit 1; shift; done; shift; exec "$@""#;

/// Makes groups with this name and returns a command that begins in them; its arguments are the program and its own.
///
/// # Errors
/// They cannot be made.
pub(super) fn command_in(name: &str) -> Result<Command, String> {
    let mut command = Command::new("sh");
    command.args(["-c", ENTER, "sh"]);
    for parent in own() {
        let group = parent.join(format!("{PREFIX}{name}"));
        fs::create_dir_all(&group).map_err(|error| format!("{}: {error}", group.display()))?;
        command.arg(group);
    }
    command.arg("--");
    Ok(command)
}

/// Removes the groups of nodes that have ended, whoever had made them.
pub(super) fn sweep() {
    for parent in own() {
        let entries = fs::read_dir(&parent).into_iter().flatten().flatten();
        let ours = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(PREFIX));
        ours.for_each(|entry| remove(&entry.path()));
    }
}

/// Those below first. A group in which something runs stays.
fn remove(group: &Path) {
    for entry in fs::read_dir(group).into_iter().flatten().flatten() {
        if entry.path().is_dir() {
            remove(&entry.path());
        }
    }
    let _ = fs::remove_dir(group);
}

/// The groups of this process in the hierarchies by which systemd counts processes.
fn own() -> Vec<PathBuf> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    groups(&read("/proc/self/cgroup"), &read("/proc/self/mountinfo"))
}

fn groups(own: &str, mounts: &str) -> Vec<PathBuf> {
    let hierarchies = own.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (number, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let is_unified = number == "0" && controllers.is_empty();
        (is_unified || controllers == "name=systemd").then_some((is_unified, path))
    });
    hierarchies.filter_map(|(is_unified, path)| mounted(mounts, is_unified, path)).collect()
}

/// Where a group of a hierarchy is seen.
fn mounted(mounts: &str, is_unified: bool, path: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        // What the file system is stands behind the separator.
        let (place, kind) = line.split_once(" - ")?;
        let mut kind = kind.split(' ');
        let (kind, options) = (kind.next()?, kind.nth(1)?);
        let is_it = match is_unified {
            true => kind == "cgroup2",
            false => kind == "cgroup" && options.split(',').any(|option| option == "name=systemd"),
        };
        let mut place = place.split(' ').skip(3);
        let (root, at) = (place.next()?, place.next()?);
        let below = Path::new(path).strip_prefix(root).ok()?;
        is_it.then(|| Path::new(at).join(below))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_found_where_both_hierarchies_are_and_where_one_is() {
        let mounts = "23 1 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
             32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n\
             40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd\n\
             41 31 0:38 /here /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";
        assert_eq!(
            groups("9:name=systemd:/\n1:cpu:/x\n0::/here/there\n", mounts),
            [PathBuf::from("/sys/fs/cgroup/systemd/"), "/sys/fs/cgroup/unified/there".into()]
        );
        assert!(groups("0::/elsewhere\n", mounts).is_empty());
    }

    #[test]
    fn what_is_started_in_no_group_is_started_all_the_same() {
        let told = Command::new("sh").args(["-c", ENTER, "sh", "--", "echo", "a b"]).output().unwrap();
        assert_eq!(told.stdout, b"a b\n");
    }
}
