//! Control groups of nodes: each has its own below that of this process, since the systemd of a node takes the one that
//! it finds itself in for the whole machine's.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The beginning of the names of all that the lab makes.
const PREFIX: &str = "weir-lab-";

/// No run takes as long: what is older was left by one that was ended.
const RUN_MAX: Duration = Duration::from_secs(6 * 60 * 60);

/// Enters groups, then becomes another program.
const ENTER: &str =
    r#"while [ "$1" != -- ]; do echo $$ > "$1/cgroup.procs" || exit 1; shift; done; shift; exec "$@""#;

/// A name for the groups of this run that no other run on this machine has: when it began, in nanoseconds since 1970.
pub(super) fn new_run() -> String {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos().to_string()
}

/// Makes groups of a run with this name and returns a command that begins in them; its arguments are the program and its own.
///
/// # Errors
/// They cannot be made.
pub(super) fn command_in(run: &str, name: &str) -> Result<Command, String> {
    let mut command = Command::new("sh");
    command.args(["-c", ENTER, "sh"]);
    for parent in own() {
        let group = parent.join(format!("{PREFIX}{run}-{name}"));
        fs::create_dir_all(&group).map_err(|error| format!("{}: {error}", group.display()))?;
        command.arg(group);
    }
    command.arg("--");
    Ok(command)
}

/// Removes the groups of this run, in which nothing runs any more, and of earlier ones that were ended before they could. Those
/// of a run beside this one stay, the empty ones too, for its nodes count on them.
pub(super) fn sweep(run: &str) {
    for parent in own() {
        let entries = fs::read_dir(&parent).into_iter().flatten().flatten();
        let over = entries.filter(|entry| is_over(&entry.file_name().to_string_lossy(), run));
        over.for_each(|entry| remove(&entry.path()));
    }
}

/// Whether a group of this name is one of this run, or of one that began long before it.
fn is_over(group: &str, run: &str) -> bool {
    let began = |run: &str| run.parse().map(Duration::from_nanos).unwrap_or_default();
    let of = group.strip_prefix(PREFIX).and_then(|rest| rest.split_once('-')).map(|(of, _)| of);
    of.is_some_and(|of| of == run || began(of) + RUN_MAX < began(run))
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
    fn groups_are_removed_of_this_run_and_of_those_that_are_long_over() {
        let hours = |hours: u64| Duration::from_secs(hours * 60 * 60).as_nanos().to_string();
        let is_over = |run: &str| is_over(&format!("weir-lab-{run}-a"), &hours(480_007));
        assert!(is_over(&hours(480_007)) && is_over(&hours(480_000)));
        // Another that runs, from before this one or after it.
        assert!(!is_over(&hours(480_005)) && !is_over(&hours(480_008)));
        assert!(!super::is_over("payload", &hours(480_007)));
    }

    #[test]
    fn what_is_started_in_no_group_is_started_all_the_same() {
        let told = Command::new("sh").args(["-c", ENTER, "sh", "--", "echo", "a b"]).output().unwrap();
        assert_eq!(told.stdout, b"a b\n");
    }
}
