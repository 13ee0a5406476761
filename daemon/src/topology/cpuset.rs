//! The processors that a control group leaves to a process, by either version of control groups.

use std::path::{Path, PathBuf};

use super::parse_list;
use crate::root::Root;

/// The processors that a control group leaves, and where that stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpusetFile {
    /// In ascending order.
    pub cpus: Vec<usize>,
    /// The file that says so.
    pub file: PathBuf,
}

/// The cpuset of the nearest group that has one, for a process by its number or `self`.
#[must_use]
pub fn cpuset(root: &Root, process: &str) -> Option<CpusetFile> {
    let groups = root.text(&format!("/proc/{process}/cgroup")).ok()?;
    groups.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (hierarchy, controllers, group) = (fields.next()?, fields.next()?, fields.next()?);
        let (mount, files) = if hierarchy == "0" {
            ("/sys/fs/cgroup", &["cpuset.cpus.effective"][..])
        } else if controllers.split(',').any(|name| name == "cpuset") {
            ("/sys/fs/cgroup/cpuset", &["cpuset.effective_cpus", "cpuset.cpus"][..])
        } else {
            return None;
        };
        // What lies above belongs to another namespace if the path cannot be seen; what can be seen of it still counts.
        Path::new(group.trim_start_matches('/')).ancestors().find_map(|group| {
            files.iter().find_map(|file| {
                let file = Path::new(mount).join(group).join(file);
                let cpus = parse_list(&root.text(file.to_str()?).ok()?)?;
                (!cpus.is_empty()).then_some(CpusetFile { cpus, file })
            })
        })
    })
}
