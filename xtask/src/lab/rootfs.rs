//! The root file system of a node: a small Debian with systemd, made once and kept. Nodes have it below a layer of
//! their own, so it stays as it is.

use std::fs;
use std::path::PathBuf;

use super::setup::{codename, directory};
use super::sources::Mirrors;
use crate::process;

/// Beside what every Debian has: what a node needs to start and the checks look with.
const PACKAGES: &str = "systemd,systemd-sysv,dbus,iproute2,procps,apt,adduser";

/// Makes it if it is not there, and returns where it is.
///
/// # Errors
/// This machine names no release of Debian or no archive, or mmdebstrap fails.
pub(super) fn ensure() -> Result<PathBuf, String> {
    // Programs of this machine are to run on it.
    let release = codename(&fs::read_to_string("/etc/os-release").unwrap_or_default())
        .ok_or("/etc/os-release names no release of Debian")?;
    let root = directory().join(format!("rootfs-{release}"));
    // What it was made with, beside it.
    let made_with = directory().join(format!("rootfs-{release}.packages"));
    if root.is_dir() && fs::read_to_string(&made_with).is_ok_and(|packages| packages == PACKAGES) {
        return Ok(root);
    }
    let mirrors = Mirrors::of_this_machine()?;
    let partial = directory().join(format!("rootfs-{release}.partial"));
    let shown = |error: std::io::Error| format!("{}: {error}", partial.display());
    // What an earlier run has left that was ended, and what was made of other packages.
    for old in [&partial, &root] {
        // Not through what may be mounted in it, which is no part of it.
        let mut remove = process::command("rm");
        super::setup::said(remove.args(["--recursive", "--force", "--one-file-system"]).arg(old))?;
    }
    fs::create_dir_all(directory()).map_err(shown)?;
    println!("lab: making a Debian {release} with systemd: half a minute to two, once");
    // It mounts in there. Whatever ends it, its mounts end with its namespace.
    let mut command = process::command("unshare");
    command
        .args(["--mount", "--propagation=private", "--", "mmdebstrap"])
        .args(["--quiet", "--mode=root", "--variant=essential", "--format=directory"])
        .arg(format!("--include={PACKAGES}"))
        // Nothing of it needs to outlive a machine that loses its power.
        .arg("--dpkgopt=force-unsafe-io")
        .arg(&release)
        .arg(&partial)
        .arg(mirrors.archive.line(&release).trim());
    super::setup::said(&mut command)?;
    fs::rename(&partial, &root).map_err(shown)?;
    fs::write(&made_with, PACKAGES).map_err(|error| format!("{}: {error}", made_with.display()))?;
    Ok(root)
}
