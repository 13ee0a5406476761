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

/// Drivers of the guest's network card, in the order in which they are loaded. Kernels that have one of them built in have
/// no file of it.
const DRIVERS: [&str; 9] = [
    "virtio_ring",
    "virtio",
    "virtio_pci_legacy_dev",
    "virtio_pci_modern_dev",
    "virtio_pci",
    "dimlib",
    "failover",
    "net_failover",
    "virtio_net",
];

/// The package that depends on the newest kernel image of each suite.
const KERNEL_PACKAGE: &str = "linux-image-cloud-amd64";

/// A shell and what it needs, in one program without libraries.
const BUSYBOX_PACKAGE: &str = "busybox-static";

/// A series of kernels that something is tried on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Series {
    /// Debian 12's own
    #[value(name = "6.1")]
    V6_1,
    /// Debian 13's, for Debian 12 too
    #[value(name = "6.12")]
    V6_12,
    /// The newest that Debian offers for one of its releases
    #[value(name = "newest")]
    Newest,
}

/// Those that the probes are tried on.
pub(super) const PROBED: [Series; 2] = [Series::V6_1, Series::V6_12];

/// All of them.
pub(super) const SERIES: [Series; 3] = [Series::V6_1, Series::V6_12, Series::Newest];

impl Series {
    /// As it is called.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::V6_1 => "6.1",
            Self::V6_12 => "6.12",
            Self::Newest => "newest",
        }
    }

    /// The release of Debian whose kernels it is of.
    const fn release(self) -> &'static str {
        match self {
            Self::V6_1 | Self::V6_12 => "bookworm",
            Self::Newest => "trixie",
        }
    }

    /// The kernel, once it is there.
    pub(super) fn kernel(self) -> PathBuf {
        directory().join("kernels").join(self.name())
    }

    /// The drivers of its network card, once they are there, in files that are to be loaded by name.
    pub(super) fn drivers(self) -> PathBuf {
        directory().join("drivers").join(self.name())
    }

    fn is_there(self) -> bool {
        self.kernel().is_file() && self.drivers().is_dir()
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
    let absent: Vec<Series> = SERIES.into_iter().filter(|series| !series.is_there()).collect();
    for release in ["bookworm", "trixie"] {
        let mut wanted = absent.iter().filter(|series| series.release() == release).peekable();
        let wants_busybox = release == "bookworm" && !busybox().is_file();
        if wanted.peek().is_none() && !wants_busybox {
            continue;
        }
        let apt = Apt::new(release, &mirrors.list(&[release]))?;
        apt.update()?;
        wanted.try_for_each(|series| take_kernel(&apt, *series))?;
        if wants_busybox {
            let unpacked = apt.unpack(&[BUSYBOX_PACKAGE.to_owned()])?;
            keep(&unpacked.join("bin/busybox"), &busybox())?;
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
    let kernels = series.iter().filter(|series| !series.is_there());
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

    /// Downloads packages, and returns where they are unpacked until the next ones are.
    fn unpack(&self, packages: &[String]) -> Result<PathBuf, String> {
        println!("lab: downloading {}", packages.join(" "));
        let _ = fs::remove_dir_all(&self.downloads);
        let unpacked = self.downloads.join("unpacked");
        fs::create_dir_all(&unpacked).map_err(|error| format!("{}: {error}", unpacked.display()))?;
        let words: Vec<&str> =
            ["download", "-qq"].into_iter().chain(packages.iter().map(String::as_str)).collect();
        self.query("apt-get", &words)?;
        for archive in files(&self.downloads) {
            if archive.extension().is_some_and(|extension| extension == "deb") {
                said(Command::new("dpkg-deb").arg("--extract").args([&archive, &unpacked]))?;
            }
        }
        Ok(unpacked)
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

/// Downloads a kernel and the drivers of its network card.
fn take_kernel(apt: &Apt, series: Series) -> Outcome {
    let image = newest_image(&apt.query("apt-cache", &["show", KERNEL_PACKAGE])?, series)
        .ok_or_else(|| format!("apt offers no {KERNEL_PACKAGE} of {}", series.name()))?;
    let release = image_release(&image);
    let packages = match series {
        Series::V6_1 | Series::V6_12 => vec![image.clone()],
        Series::Newest => ["binary", "modules"].map(|part| format!("linux-{part}-{release}")).to_vec(),
    };
    let unpacked = apt.unpack(&packages)?;
    let places = [format!("boot/vmlinuz-{release}"), format!("usr/lib/modules/{release}/vmlinuz")];
    let kernel = places.iter().map(|place| unpacked.join(place)).find(|path| path.is_file());
    let kernel = kernel.ok_or_else(|| format!("{} has no kernel", packages.join(" and ")))?;
    let drivers = series.drivers();
    let _ = fs::remove_dir_all(&drivers);
    let modules = ["lib", "usr/lib"].map(|place| unpacked.join(place).join("modules").join(release));
    let mut found = Vec::new();
    modules.iter().for_each(|directory| find_drivers(directory, &mut found));
    for (number, path) in found {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        keep(&path, &drivers.join(format!("{number}-{name}")))?;
    }
    if !drivers.is_dir() {
        return Err(format!("{} has no driver of a network card", packages.join(" and ")));
    }
    keep(&kernel, &series.kernel())
}

/// Adds the drivers that lie somewhere in a directory, with the place of each in the order of loading.
fn find_drivers(directory: &Path, found: &mut Vec<(usize, PathBuf)>) {
    for path in files(directory) {
        if path.is_dir() && !path.is_symlink() {
            find_drivers(&path, found);
        } else if let Some(number) = driver(&path.file_name().unwrap_or_default().to_string_lossy()) {
            found.push((number, path));
        }
    }
}

/// Where the driver in this file stands in the order of loading, if it is one.
fn driver(file: &str) -> Option<usize> {
    let (name, _) = file.split_once(".ko")?;
    DRIVERS.iter().position(|driver| *driver == name)
}

/// What is in a directory.
pub(super) fn files(directory: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> =
        fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    files.sort();
    files
}

/// Moves a file to where it is kept: in one step, so that half a file is never taken for what is there.
fn keep(from: &Path, to: &Path) -> Outcome {
    if let Some(parent) = to.parent() {
        fs::create_dir_all(parent).map_err(|error| format!("{}: {error}", parent.display()))?;
    }
    fs::rename(from, to).map_err(|error| format!("{} cannot be kept: {error}", from.display()))
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
    let begin = match series {
        Series::V6_1 | Series::V6_12 => format!("linux-image-{}.", series.name()),
        Series::Newest => "linux-image-".to_owned(),
    };
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
        assert_eq!(image(Series::Newest), image(Series::V6_12));
        assert_eq!(newest_image("Depends: linux-image-6.10.1-cloud-amd64\n", Series::V6_1), None);
        assert_eq!(image_release("linux-image-6.1.0-57-cloud-amd64"), "6.1.0-57-cloud-amd64");
    }

    #[test]
    fn drivers_are_known_by_their_files_however_those_are_packed() {
        assert_eq!(driver("virtio.ko"), Some(1));
        assert_eq!(driver("virtio_net.ko.xz"), Some(DRIVERS.len() - 1));
        assert_eq!((driver("nd_virtio.ko"), driver("virtio_net.txt")), (None, None));
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
