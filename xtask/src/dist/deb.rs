//! The Debian package, made by dpkg-deb of a staged tree.

use std::fmt::Write;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::{Effort, moment, said, tree, write};
use crate::process::{self, Outcome};

/// Scripts that dpkg runs, in `systemd/debian`.
const SCRIPTS: &[&str] = &["postinst", "prerm", "postrm"];

/// Makes the package of this version with this program, and returns where it is.
///
/// # Errors
/// What keeps it from being made.
pub(crate) fn build(weir: &Path, version: &str, out: &Path, effort: Effort) -> Result<PathBuf, String> {
    build_changed(weir, version, out, effort, |_| Ok(()))
}

/// The same, with a change to the tree of its files before they are packed.
///
/// # Errors
/// As of [`build`], and of the change.
pub(crate) fn build_changed(
    weir: &Path,
    version: &str,
    out: &Path,
    effort: Effort,
    change: impl FnOnce(&Path) -> Outcome,
) -> Result<PathBuf, String> {
    let architecture = architecture()?;
    let version = &debian(version);
    let name = format!("weir_{version}_{architecture}");
    let root = out.join(format!(".{name}"));
    tree::stage(weir, &root)?;
    change(&root)?;
    let moment = moment()?;
    changelog(&root, version, moment)?;
    control(&root, version, architecture)?;
    let package = out.join(format!("{name}.deb"));
    let built = said(
        process::command("dpkg-deb")
            .args(["--root-owner-group", if effort == Effort::Much { "-Zxz" } else { "-Znone" }, "--build"])
            .args([&root, &package])
            .env("SOURCE_DATE_EPOCH", moment.to_string()),
    );
    let _ = fs::remove_dir_all(&root);
    built.map(|_| package)
}

/// A version as Debian sorts it: `1.0.0-rc.1` comes before `1.0.0` there only with a tilde, and a dash begins a revision of the
/// package, which it has none of.
fn debian(version: &str) -> String {
    version.replace('-', "~")
}

/// What Debian calls this kind of machine.
fn architecture() -> Result<&'static str, String> {
    match std::env::consts::ARCH {
        "x86_64" => Ok("amd64"),
        "aarch64" => Ok("arm64"),
        other => Err(format!("Debian's name for {other} is not known here")),
    }
}

/// The one entry of the change log, as the package's format wants it: which revision this is.
fn changelog(root: &Path, version: &str, moment: u64) -> Outcome {
    let revision = said(process::command("git").args(["rev-parse", "--short=12", "HEAD"]))?;
    let date = said(
        process::command("date")
            .args(["--utc", "--rfc-email", &format!("--date=@{moment}")])
            .env("LC_ALL", "C"),
    )?;
    let text = format!(
        "weir ({version}) unstable; urgency=medium\n\n  * Built from revision {}.\n\n -- {}  {}\n",
        revision.trim(),
        maintainer()?,
        date.trim()
    );
    let path = root.join("usr/share/doc/weir/changelog");
    write(&path, text)?;
    tree::compress(&path)?;
    permit(&root.join("usr/share/doc/weir/changelog.gz"), 0o644)
}

/// Who answers for the package: as Debian's tools are told it, else who made the revision.
fn maintainer() -> Result<String, String> {
    let variable = |name| std::env::var(name).ok().filter(|value: &String| !value.trim().is_empty());
    match (variable("DEBFULLNAME"), variable("DEBEMAIL")) {
        (Some(name), Some(address)) => Ok(format!("{name} <{address}>")),
        _ => said(process::command("git").args(["log", "-1", "--format=%cn <%ce>"]))
            .map(|told| told.trim().to_owned()),
    }
}

/// The directory that only dpkg reads.
fn control(root: &Path, version: &str, architecture: &str) -> Outcome {
    let directory = root.join("DEBIAN");
    fs::create_dir_all(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    permit(&directory, 0o755)?;
    let paths: Vec<PathBuf> =
        tree::all(root)?.into_iter().filter(|path| !path.starts_with("DEBIAN")).collect();
    let file = |name: &str, text: String, mode: u32| -> Outcome {
        write(&directory.join(name), text)?;
        permit(&directory.join(name), mode)
    };
    let bytes: u64 =
        paths.iter().filter_map(|path| fs::metadata(root.join(path)).ok()).map(|found| found.len()).sum();
    let program = root.join(tree::PROGRAM);
    let program = fs::read(&program).map_err(|error| format!("{}: {error}", program.display()))?;
    let filled = [
        ("VERSION", version.to_owned()),
        ("ARCHITECTURE", architecture.to_owned()),
        ("MAINTAINER", maintainer()?),
        ("SIZE", bytes.div_ceil(1024).to_string()),
        ("LIBRARIES", libraries(&program)),
    ]
    .iter()
    .fold(tree::text("systemd/debian/control")?, |text, (name, value)| {
        text.replace(&format!("@{name}@"), value)
    });
    file("control", filled, 0o644)?;
    let conffiles = paths.iter().filter(|path| path.starts_with("etc"));
    file("conffiles", conffiles.map(|path| format!("/{}\n", path.display())).collect(), 0o644)?;
    let sums = said(process::command("md5sum").args(&paths).current_dir(root))?;
    file("md5sums", sums.lines().filter(|line| !line.contains("  etc/")).fold(String::new(), line), 0o644)?;
    SCRIPTS.iter().try_for_each(|name| file(name, tree::text(&format!("systemd/debian/{name}"))?, 0o755))
}

fn line(mut text: String, line: &str) -> String {
    let _ = writeln!(text, "{line}");
    text
}

/// The packages with the libraries that a program needs, as the program says it, each with a comma behind it.
fn libraries(program: &[u8]) -> String {
    match glibc(program) {
        Some((major, minor)) => format!("libc6 (>= {major}.{minor}), libgcc-s1, "),
        // Nothing is linked when it runs.
        None => String::new(),
    }
}

/// The newest version of glibc that a program names a symbol of: such names stand between zeros.
fn glibc(program: &[u8]) -> Option<(u32, u32)> {
    const BEGIN: &[u8] = b"\0GLIBC_";
    let at = (0..program.len()).filter(|at| program[*at..].starts_with(BEGIN));
    let names = at.filter_map(|at| {
        let rest = &program[at + BEGIN.len()..];
        let end = rest.iter().take(16).position(|byte| *byte == 0)?;
        let mut numbers = std::str::from_utf8(&rest[..end]).ok()?.split('.').map(str::parse::<u32>);
        Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
    });
    names.max()
}

fn permit(path: &Path, mode: u32) -> Outcome {
    let set = fs::set_permissions(path, fs::Permissions::from_mode(mode));
    set.map_err(|error| format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_that_is_needed_is_the_newest_that_is_named() {
        let program = b"x\0GLIBC_2.4\0GLIBC_2.36\0GLIBC_2.2.5\0GLIBC_PRIVATE\0 GLIBC_9.9\0";
        assert_eq!(glibc(program), Some((2, 36)));
        assert_eq!(libraries(program), "libc6 (>= 2.36), libgcc-s1, ");
        assert_eq!(libraries(b"static"), "");
        assert_eq!(glibc(b"static"), None);
        assert_eq!(glibc(b"\0GLIBC_2"), None);
    }

    #[test]
    fn a_version_before_a_release_sorts_below_it() {
        assert_eq!(debian("0.2.0-rc.1"), "0.2.0~rc.1");
        assert_eq!(debian("0.2.0+1"), "0.2.0+1");
        let is_below = ["--compare-versions", &debian("0.2.0-rc.1"), "lt", &debian("0.2.0")];
        // Where there is no dpkg, the first lines are all that is tried.
        if let Ok(status) = std::process::Command::new("dpkg").args(is_below).status() {
            assert!(status.success());
        }
    }

    #[test]
    fn the_control_file_has_no_place_that_is_not_filled() {
        let text = tree::text("systemd/debian/control").unwrap();
        let places: Vec<&str> = text.split('@').skip(1).step_by(2).collect();
        assert_eq!(places, ["VERSION", "ARCHITECTURE", "MAINTAINER", "SIZE", "LIBRARIES"]);
    }
}
