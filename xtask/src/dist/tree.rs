//! The files of an installation, as they lie below the root directory.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::{libraries, read, said, write};
use crate::process::{self, Outcome};

/// Files as they are in the repository: from, to. What ends in `/` is a directory whose files go there, each.
const COPIED: &[(&str, &str)] = &[
    ("systemd/weir.service", "usr/lib/systemd/system/weir.service"),
    ("systemd/weir-hugepages.service", "usr/lib/systemd/system/weir-hugepages.service"),
    ("systemd/sysusers.d/weir.conf", "usr/lib/sysusers.d/weir.conf"),
    ("systemd/tmpfiles.d/weir.conf", "usr/lib/tmpfiles.d/weir.conf"),
    ("systemd/sysctl.d/10-weir.conf", "usr/lib/sysctl.d/10-weir.conf"),
    ("systemd/weir.toml", "etc/weir/weir.toml"),
    ("systemd/weir-hugepages.default", "etc/default/weir-hugepages"),
    ("systemd/grafana/", "usr/share/weir/grafana/"),
    ("systemd/prometheus/", "usr/share/weir/prometheus/"),
    ("systemd/drop-ins/", "usr/share/doc/weir/examples/drop-ins/"),
    ("systemd/conf.d/", "usr/share/doc/weir/examples/conf.d/"),
    ("client/examples/", "usr/share/doc/weir/examples/client/"),
    ("docs/", "usr/share/doc/weir/"),
    ("README.md", "usr/share/doc/weir/README.md"),
    ("systemd/debian/copyright", "usr/share/doc/weir/copyright"),
];

/// Directories without a file of ours.
const EMPTY: &[&str] = &["etc/weir/conf.d"];

/// Where each shell looks for what it needs to complete command lines.
const COMPLETIONS: &[(&str, &str)] = &[
    ("bash", "usr/share/bash-completion/completions/weir"),
    ("zsh", "usr/share/zsh/vendor-completions/_weir"),
    ("fish", "usr/share/fish/vendor_completions.d/weir.fish"),
];

const MANUAL: &str = "usr/share/man/man1";

/// The program, below the root.
pub(super) const PROGRAM: &str = "usr/bin/weir";

/// Puts everything below `root`, which is made anew, and sets modes.
///
/// # Errors
/// A file that cannot be read or written, or a program that does not tell its pages.
pub(super) fn stage(weir: &Path, root: &Path) -> Outcome {
    let _ = fs::remove_dir_all(root);
    let repository = process::root();
    for (from, to) in COPIED {
        copy(&repository.join(from), &root.join(to))?;
    }
    for directory in EMPTY.iter().chain(&[MANUAL]) {
        make(&root.join(directory))?;
    }
    program(weir, &root.join(PROGRAM))?;
    for (shell, place) in COMPLETIONS {
        let target = root.join(place);
        target.parent().map_or(Ok(()), make)?;
        write(&target, said(process::command(weir).args(["completions", shell]))?)?;
    }
    let manual = root.join(MANUAL);
    said(process::command(weir).args(["man", "--directory"]).arg(&manual))?;
    for page in files(&manual)? {
        compress(&page)?;
    }
    let list = root.join("usr/share/doc/weir/libraries.txt");
    write(&list, libraries::text()?)?;
    compress(&list)?;
    set_modes(root)
}

/// The program without what only a debugger needs.
fn program(weir: &Path, to: &Path) -> Outcome {
    to.parent().map_or(Ok(()), make)?;
    // Part of what links programs, so it is there wherever one was built.
    said(process::command("strip").args(["--remove-section=.comment", "-o"]).arg(to).arg(weir)).map(drop)
}

fn copy(from: &Path, to: &Path) -> Outcome {
    if from.is_dir() {
        return files(from)?.iter().try_for_each(|file| match file.file_name() {
            Some(name) => copy(file, &to.join(name)),
            None => Ok(()),
        });
    }
    to.parent().map_or(Ok(()), make)?;
    fs::copy(from, to).map(drop).map_err(|error| format!("{} to {}: {error}", from.display(), to.display()))
}

/// Files that lie directly in a directory, sorted.
fn files(directory: &Path) -> Result<Vec<PathBuf>, String> {
    Ok(entries(directory)?.into_iter().filter(|path| path.is_file()).collect())
}

fn entries(directory: &Path) -> Result<Vec<PathBuf>, String> {
    let listed = fs::read_dir(directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    let mut paths: Vec<PathBuf> = listed.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    Ok(paths)
}

/// Every file below a directory, as paths relative to it, sorted.
pub(super) fn all(root: &Path) -> Result<Vec<PathBuf>, String> {
    let (mut waiting, mut found) = (vec![root.to_path_buf()], Vec::new());
    while let Some(directory) = waiting.pop() {
        for path in entries(&directory)? {
            if path.is_dir() {
                waiting.push(path);
            } else if let Ok(relative) = path.strip_prefix(root) {
                found.push(relative.to_path_buf());
            }
        }
    }
    found.sort();
    Ok(found)
}

/// In the place of the file one that ends in `.gz`, which depends on nothing but its content.
pub(super) fn compress(path: &Path) -> Outcome {
    said(process::command("gzip").args(["-9", "--no-name", "--force"]).arg(path)).map(drop)
}

/// What the mode of a file is. All may read all of it: what is secret is not in a package.
pub(super) fn mode(path: &Path) -> u32 {
    if path == Path::new(PROGRAM) { 0o755 } else { 0o644 }
}

/// Modes that do not depend on who stages.
fn set_modes(root: &Path) -> Outcome {
    let set = |path: &Path, mode: u32| -> Outcome {
        let set = fs::set_permissions(path, fs::Permissions::from_mode(mode));
        set.map_err(|error| format!("{}: {error}", path.display()))
    };
    let mut waiting = vec![root.to_path_buf()];
    while let Some(directory) = waiting.pop() {
        set(&directory, 0o755)?;
        waiting.extend(entries(&directory)?.into_iter().filter(|path| path.is_dir()));
    }
    all(root)?.iter().try_for_each(|path| set(&root.join(path), mode(path)))
}

fn make(path: &Path) -> Outcome {
    fs::create_dir_all(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// A text of the repository.
pub(super) fn text(path: &str) -> Result<String, String> {
    read(&process::root().join(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_copied_is_there_and_has_a_place_below_the_root() {
        for (from, to) in COPIED {
            assert!(process::root().join(from).exists(), "{from}");
            assert_eq!(from.ends_with('/'), to.ends_with('/'), "{from}");
            assert!(!to.starts_with('/'), "{to}");
        }
    }

    #[test]
    fn only_the_program_can_be_run() {
        assert_eq!(mode(Path::new("usr/bin/weir")), 0o755);
        assert_eq!(mode(Path::new("etc/weir/weir.toml")), 0o644);
    }
}
