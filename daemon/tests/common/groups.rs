//! Control groups for daemons, made below the root of their hierarchy, in either version, and removed with their value.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::common::PATIENCE;

/// A group with limits of one controller.
pub(crate) struct Group {
    path: PathBuf,
    /// Where the controller was switched on for it.
    switched: Option<(PathBuf, &'static str)>,
}

impl Group {
    /// Files that say what a group may use, in both versions of control groups, each with its text.
    ///
    /// # Errors
    /// Why this machine has no such group.
    pub(crate) fn new(
        controller: &'static str,
        first: &[(&str, &str)],
        second: &[(&str, &str)],
    ) -> Result<Self, String> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        if !rustix::process::geteuid().is_root() {
            return Err("needs root".to_owned());
        }
        let (root, is_first) = hierarchy(controller).ok_or_else(|| format!("no controller {controller}"))?;
        let mut switched = None;
        if !is_first {
            let file = root.join("cgroup.subtree_control");
            let is_on =
                fs::read_to_string(&file).is_ok_and(|text| text.split(' ').any(|on| on.trim() == controller));
            if !is_on {
                write(&file, &format!("+{controller}"))?;
                switched = Some((file, controller));
            }
        }
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let group = Self { path: root.join(format!("weir-test-{}-{number}", std::process::id())), switched };
        fs::create_dir(&group.path).map_err(|error| format!("{}: {error}", group.path.display()))?;
        for (file, text) in if is_first { first } else { second } {
            group.set(file, text)?;
        }
        Ok(group)
    }

    /// Writes a file of it.
    pub(crate) fn set(&self, file: &str, text: &str) -> Result<(), String> {
        write(&self.path.join(file), text)
    }

    /// A script that enters it and becomes the program behind it.
    pub(crate) fn enter(&self) -> String {
        format!("echo $$ > {}/cgroup.procs && exec \"$0\" \"$@\"", self.path.display())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // What ran in it has just ended. One that stays is empty, and no reason to hide why a test fails.
        let deadline = Instant::now() + PATIENCE;
        while fs::remove_dir(&self.path).is_err() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        if let Some((file, controller)) = &self.switched {
            // It stays on where somebody else has begun to use it.
            let _ = write(file, &format!("-{controller}"));
        }
    }
}

fn write(file: &Path, text: &str) -> Result<(), String> {
    fs::write(file, text).map_err(|error| format!("{}: {error}", file.display()))
}

/// Where the groups of a controller lie, and whether they are of the first version.
fn hierarchy(controller: &str) -> Option<(PathBuf, bool)> {
    let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
    let mounts = || {
        mounts.lines().filter_map(|line| {
            let mut fields = line.split(' ').skip(1);
            Some((PathBuf::from(fields.next()?), fields.next()?, fields.next()?))
        })
    };
    let first = mounts()
        .find(|(_, kind, options)| *kind == "cgroup" && options.split(',').any(|one| one == controller));
    let second = || {
        mounts().find(|(path, kind, _)| {
            let known = fs::read_to_string(path.join("cgroup.controllers")).unwrap_or_default();
            *kind == "cgroup2" && known.split_whitespace().any(|one| one == controller)
        })
    };
    first.map(|(path, ..)| (path, true)).or_else(|| second().map(|(path, ..)| (path, false)))
}
