//! What the lab needs: QEMU on the machine; kernels and a busybox in a directory of its own, where they stay.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::sources::Mirrors;
use crate::process::{self, Outcome};
use crate::setup::is_on_path;

/// Starts the machines. In the package `qemu-system-x86`.
pub(super) const QEMU: &str = "qemu-system-x86_64";
const QEMU_PACKAGE: &str = "qemu-system-x86";

/// The release of Debian whose kernels are tried: it has both.
const KERNELS_RELEASE: &str = "bookworm";

/// The package that depends on the newest kernel image of each suite.
const KERNEL_PACKAGE: &str = "linux-image-cloud-amd64";

/// A shell and what it needs, in one program without libraries.
const BUSYBOX_PACKAGE: &str = "busybox-static";

/// A series of kernels that the probes are tried on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Series {
    /// Debian 12's own
    #[value(name = "6.1")]
    V6_1,
    /// Debian 13's, for Debian 12 too
    #[value(name = "6.12")]
    V6_12,
}

/// All of them.
pub(super) const SERIES: [Series; 2] = [Series::V6_1, Series::V6_12];

impl Series {
    /// As it is called.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::V6_1 => "6.1",
            Self::V6_12 => "6.12",
        }
    }

    /// The kernel, once it is there.
    pub(super) fn kernel(self) -> PathBuf {
        directory().join("kernels").join(self.name())
    }
}

/// Where everything is kept that is downloaded or made.
pub(super) fn directory() -> PathBuf {
    let directory = process::target_directory().join("lab");
    // Programs are started elsewhere with paths in it.
    std::path::absolute(&directory).unwrap_or(directory)
}

/// The busybox, once it is there.
pub(super) fn busybox() -> PathBuf {
    directory().join("busybox")
}

/// Installs and downloads what is missing, and leaves what is there.
pub(super) fn run() -> Outcome {
    if std::env::consts::ARCH != "x86_64" {
        return Err("the lab starts x86-64 kernels with the programs of this machine, which is none".into());
    }
    if missing(&SERIES).is_empty() {
        println!("lab: all is there, in {}", directory().display());
        return Ok(());
    }
    for program in ["apt-get", "dpkg-deb"] {
        if !is_on_path(program) {
            return Err(format!("`{program}` is missing: the lab takes its parts from Debian packages"));
        }
    }
    let mirrors = Mirrors::of_this_machine()?;
    let absent: Vec<Series> = SERIES.into_iter().filter(|series| !series.kernel().is_file()).collect();
    if !absent.is_empty() || !busybox().is_file() {
        let apt = Apt::new("kernels", &mirrors.list(&[KERNELS_RELEASE]))?;
        apt.update()?;
        for series in absent {
            let package = newest_image(&apt.query("apt-cache", &["show", KERNEL_PACKAGE])?, series)
                .ok_or_else(|| format!("apt offers no {KERNEL_PACKAGE} of {}", series.name()))?;
            apt.take(&package, &format!("boot/vmlinuz-{}", image_release(&package)), &series.kernel())?;
        }
        if !busybox().is_file() {
            apt.take(BUSYBOX_PACKAGE, "bin/busybox", &busybox())?;
        }
    }
    // Last, since it is the one part that not everybody may have.
    if !is_on_path(QEMU) {
        install_qemu(&mirrors)?;
    }
    match missing(&SERIES).first() {
        Some(missing) => Err(format!("{missing}, still")),
        None => Ok(()),
    }
}

/// What is missing to start these kernels, one line each.
pub(super) fn missing(series: &[Series]) -> Vec<String> {
    let mut missing = Vec::new();
    if !is_on_path(QEMU) {
        missing.push(format!("`{QEMU}` is missing (package {QEMU_PACKAGE})"));
    }
    let kernels = series.iter().filter(|series| !series.kernel().is_file());
    missing.extend(kernels.map(|series| {
        format!("a Debian cloud kernel {} is missing: {}", series.name(), series.kernel().display())
    }));
    if !busybox().is_file() {
        missing.push(format!(
            "a static busybox is missing (package {BUSYBOX_PACKAGE}): {}",
            busybox().display()
        ));
    }
    missing
}

/// Installs QEMU from this machine's own release or, where that would remove a package, from its backports: an older
/// QEMU cannot stand beside newer tools of it that are there already.
fn install_qemu(mirrors: &Mirrors) -> Outcome {
    let release = codename(&fs::read_to_string("/etc/os-release").unwrap_or_default())
        .ok_or("/etc/os-release names no release of Debian")?;
    if !process::is_root() {
        return Err(format!(
            "`{QEMU}` is missing, and only root can install it: `cargo xtask lab setup` as root"
        ));
    }
    let apt = Apt::new("machine", &mirrors.list(&[&release]))?;
    apt.update()?;
    let install = ["install", "--no-remove", "--no-install-recommends", "--yes"];
    let backports = format!("{release}-backports");
    let mut refusal = String::new();
    let suites: [&[&str]; 2] = [&[], &["--target-release", &backports]];
    for suite in suites {
        let arguments: Vec<&str> = install.iter().chain(suite).chain(&[QEMU_PACKAGE]).copied().collect();
        let tried: Vec<&str> = arguments.iter().chain(&["--simulate"]).copied().collect();
        match apt.query("apt-get", &tried) {
            Ok(_) => {
                println!("lab: installing {QEMU_PACKAGE}");
                return apt.query("apt-get", &arguments).map(drop);
            }
            Err(problem) => refusal = problem,
        }
    }
    Err(format!("{QEMU_PACKAGE} cannot be installed without removing what is there: {refusal}"))
}

/// apt with lists of its own, so that those of the machine stay as they are.
struct Apt {
    options: Vec<String>,
    downloads: PathBuf,
}

impl Apt {
    fn new(name: &str, sources: &str) -> Result<Self, String> {
        let directory = directory().join("apt").join(name);
        let downloads = directory.join("downloads");
        for needed in
            [&directory.join("lists/partial"), &directory.join("cache/archives/partial"), &downloads]
        {
            fs::create_dir_all(needed).map_err(|error| format!("{}: {error}", needed.display()))?;
        }
        let list = directory.join("sources.list");
        fs::write(&list, sources).map_err(|error| format!("{}: {error}", list.display()))?;
        let options = [
            ("Dir::Etc::sourcelist", list),
            ("Dir::Etc::sourceparts", "/dev/null".into()),
            ("Dir::State::lists", directory.join("lists")),
            ("Dir::Cache", directory.join("cache")),
            ("APT::Sandbox::User", "root".into()),
            // Else a mirror that does not answer is a warning.
            ("APT::Update::Error-Mode", "any".into()),
            ("Acquire::http::Timeout", "30".into()),
            ("DPkg::Lock::Timeout", "600".into()),
        ];
        let options = options.iter().map(|(name, value)| format!("{name}={}", value.display())).collect();
        Ok(Self { options, downloads })
    }

    fn update(&self) -> Outcome {
        println!("lab: reading lists of packages");
        self.query("apt-get", &["update", "-qq"])
            .map(drop)
            .map_err(|problem| format!("the Debian archive of this machine cannot be read: {problem}"))
    }

    /// Downloads a package and keeps one of its files.
    fn take(&self, package: &str, file: &str, to: &Path) -> Outcome {
        println!("lab: downloading {package}");
        let _ = fs::remove_dir_all(&self.downloads);
        let unpacked = self.downloads.join("unpacked");
        fs::create_dir_all(&unpacked).map_err(|error| format!("{}: {error}", unpacked.display()))?;
        self.query("apt-get", &["download", "-qq", package])?;
        let archive = fs::read_dir(&self.downloads)
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path())
            .find(|path| path.extension().is_some_and(|extension| extension == "deb"))
            .ok_or_else(|| format!("apt-get downloaded no package {package}"))?;
        said(Command::new("dpkg-deb").arg("--extract").args([&archive, &unpacked]))?;
        if let Some(parent) = to.parent() {
            fs::create_dir_all(parent).map_err(|error| format!("{}: {error}", parent.display()))?;
        }
        // In one step, so that half a file is never taken for what is there.
        let kept = fs::rename(unpacked.join(file), to);
        kept.map_err(|error| format!("{package} has no {file}: {error}"))?;
        let _ = fs::remove_dir_all(&self.downloads);
        Ok(())
    }

    /// Runs a program of apt and returns what it says.
    fn query(&self, program: &str, arguments: &[&str]) -> Result<String, String> {
        let mut command = Command::new(program);
        for option in &self.options {
            command.args(["-o", option]);
        }
        let directory = Some(&self.downloads).filter(|path| path.is_dir());
        command.current_dir(directory.map_or(Path::new("/"), |path| path.as_path()));
        said(command.args(arguments).env("DEBIAN_FRONTEND", "noninteractive").env("LC_ALL", "C"))
    }
}

/// Runs it and returns what it says; an error is the line that it gives as the reason then.
pub(super) fn said(command: &mut Command) -> Result<String, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| format!("cannot start `{program}`: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    Err(format!("`{program}` failed ({}): {}", output.status, reason(&text)))
}

/// The first line that is an error of apt's, whose last one only sums up; of other programs the last.
fn reason(text: &str) -> &str {
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let first = lines.clone().find(|line| line.starts_with("E: "));
    first.or_else(|| lines.next_back()).unwrap_or("no output")
}

/// The newest image of a series, from what is told of the package that depends on them.
fn newest_image(packages: &str, series: Series) -> Option<String> {
    let begin = format!("linux-image-{}.", series.name());
    // Versions of one package stand newest first.
    packages
        .lines()
        .filter_map(|line| line.strip_prefix("Depends: "))
        .flat_map(|line| line.split([' ', ',']))
        .find(|word| word.starts_with(&begin))
        .map(str::to_owned)
}

/// What a kernel of this package calls itself.
fn image_release(package: &str) -> &str {
    package.strip_prefix("linux-image-").unwrap_or(package)
}

/// The code name of a release.
pub(super) fn codename(os_release: &str) -> Option<String> {
    let name = os_release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="))?;
    let name = name.trim().trim_matches('"');
    (!name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric())).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_image_of_a_series_is_the_first_that_apt_names() {
        let told = "Package: linux-image-cloud-amd64\nVersion: 6.12.95-1~bpo12+1\n\
             Depends: linux-image-6.12.95+deb12-cloud-amd64 (= 6.12.95-1~bpo12+1)\n\n\
             Package: linux-image-cloud-amd64\nDepends: linux-base, linux-image-6.1.0-57-cloud-amd64 (= 6.1.192-3)\n\n\
             Package: linux-image-cloud-amd64\nDepends: linux-image-6.1.0-50-cloud-amd64 (= 6.1.176-1)\n";
        let image = |series| newest_image(told, series);
        assert_eq!(image(Series::V6_1).as_deref(), Some("linux-image-6.1.0-57-cloud-amd64"));
        assert_eq!(image(Series::V6_12).as_deref(), Some("linux-image-6.12.95+deb12-cloud-amd64"));
        assert_eq!(newest_image("Depends: linux-image-6.10.1-cloud-amd64\n", Series::V6_1), None);
        assert_eq!(image_release("linux-image-6.1.0-57-cloud-amd64"), "6.1.0-57-cloud-amd64");
    }

    #[test]
    fn the_reason_is_the_first_error_of_apt_and_the_last_line_of_others() {
        assert_eq!(reason("W: old\nE: Failed to fetch\nE: Some files failed\n"), "E: Failed to fetch");
        assert_eq!(reason("one\n two \n\n"), "two");
        assert_eq!(reason(" \n"), "no output");
    }

    #[test]
    fn the_release_of_this_machine_is_a_word() {
        assert_eq!(codename("ID=debian\nVERSION_CODENAME=bookworm\n").as_deref(), Some("bookworm"));
        assert_eq!(codename("VERSION_CODENAME=\"trixie\"\n").as_deref(), Some("trixie"));
        assert_eq!(codename("VERSION_CODENAME=a b\n"), None);
        assert_eq!(codename("ID=debian\n"), None);
    }
}
