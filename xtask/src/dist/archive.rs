//! The archive for machines without dpkg: the same tree, and a script that installs it and takes it away again.

use std::fmt::Write;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::{Effort, moment, said, tree, write};
use crate::process;

/// Makes the archive of this version with this program, and returns where it is.
///
/// # Errors
/// What keeps it from being made.
pub(crate) fn build(weir: &Path, version: &str, out: &Path, effort: Effort) -> Result<PathBuf, String> {
    let name = format!("weir-{version}-{}-linux", std::env::consts::ARCH);
    let stage = out.join(format!(".{name}"));
    let directory = stage.join(&name);
    let root = directory.join("root");
    tree::stage(weir, &root)?;
    let mut list = String::new();
    for path in tree::all(&root)? {
        let _ = writeln!(list, "{:o} {}", tree::mode(&path), path.display());
    }
    write(&directory.join("files.list"), list)?;
    let script = directory.join("install.sh");
    write(&script, tree::text("systemd/tarball/install.sh")?)?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755))
        .map_err(|error| format!("{}: {error}", script.display()))?;
    let (ending, compression) = match effort {
        Effort::Little => ("tar", "--no-auto-compress"),
        Effort::Much => ("tar.xz", "--xz"),
    };
    let archive = out.join(format!("{name}.{ending}"));
    let built = said(
        process::command("tar")
            .args(["--create", compression, "--sort=name", "--owner=0", "--group=0", "--numeric-owner"])
            .arg(format!("--mtime=@{}", moment()?))
            .arg("--file")
            .arg(&archive)
            .arg("--directory")
            .arg(&stage)
            .arg(&name),
    );
    let _ = fs::remove_dir_all(&stage);
    built.map(|_| archive)
}
