//! What is tried of Weir as it is installed: its files by themselves, and machines of their own, emulated, for what cannot
//! be tried on the machine at hand: other kernels.
//!
//! | file | holds |
//! |---|---|
//! | this | the verb, and what it prints |
//! | [`files`], [`package`] | units, users, directories, settings and the package with them, without starting anything |
//! | [`setup`] | what is installed and downloaded, and where it is kept |
//! | [`sources`] | where packages come from |
//! | [`archive`], [`image`] | the file system of the guest |
//! | [`nspawn`] | the package on nodes with systemd; its own page tells the rest |
//! | [`limits`] | a daemon under each limit that may be put on it |
//! | [`installed`], `installed.sh` | machines that start from a disk with the package on it |
//! | [`joined`], `joined.sh` | two of them with a network between them |
//! | `guest.sh`, `pair.sh` | what the guest does; and each of two |
//! | [`machine`] | how QEMU is started, and that it ends |
//! | [`report`] | what the guest told, and whether that is right |
//! | [`zerocopy`] | two guests, what they told, and whether that is right |

mod archive;
mod checks;
pub(crate) mod files;
mod groups;
mod image;
mod installed;
mod joined;
mod lifecycle;
mod limits;
mod machine;
mod node;
pub(crate) mod nspawn;
mod package;
mod page;
mod report;
mod rootfs;
mod setup;
mod sources;
mod walk;
mod zerocopy;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::process::{self, Outcome};
use machine::Machine;
use report::Report;
use setup::Series;

/// What the guest does that tries probes.
const SCRIPT: &[u8] = include_bytes!("lab/guest.sh");

/// Longest time of one machine from its start to its end.
const BOOT_TIMEOUT: Duration = Duration::from_secs(420);

/// What to do in the lab.
#[derive(clap::Subcommand)]
pub(crate) enum Verb {
    /// Check the files for systemd with systemd's own tools, and every configuration that is shipped; part of `test`
    Static(StaticArguments),
    /// Install the package on two nodes with systemd, let records flow between them, and do to the service what happens to
    /// services; part of `test`
    Nspawn(StaticArguments),
    /// What `nspawn` starts in namespaces of its own
    #[command(name = nspawn::INSIDE, hide = true)]
    NspawnInside(nspawn::InsideArguments),
    /// Run daemons with clients under each limit that a machine, a container or a unit may put on them, and show what they say of
    /// it; part of `test`
    Limits,
    /// Install and download what is missing: QEMU, three kernels of Debian, a busybox
    Setup,
    /// Start two machines with a network between them, and show that what one sends without a copy is not copied, and arrives;
    /// needs root, and some minutes
    Zerocopy(ProbesArguments),
    /// Start Debian's kernels from a disk with the package on it: hugepages at boot, limits, probes, two NUMA nodes; then two
    /// machines at a time, whose services send to each other without a copy; some minutes
    Qemu(ProbesArguments),
    /// Start Debian's kernels and show that the kernel probes load, attach and count there: some minutes
    Probes(ProbesArguments),
}

/// Which program.
#[derive(clap::Args)]
pub(crate) struct StaticArguments {
    /// Check with this program instead of building one
    #[arg(long, value_name = "PATH")]
    weir: Option<PathBuf>,
}

/// Which kernels, and which program.
#[derive(clap::Args)]
pub(crate) struct ProbesArguments {
    /// One kernel, or all of them in turn
    #[arg(long, value_enum)]
    kernel: Option<Series>,
    /// Try this program instead of building one
    #[arg(long, value_name = "PATH")]
    weir: Option<PathBuf>,
}

/// Does it.
pub(crate) fn run(verb: &Verb) -> Outcome {
    match verb {
        Verb::Static(arguments) => check_files(arguments),
        Verb::Nspawn(arguments) => nspawn::check(&program(arguments)?).map(drop),
        Verb::NspawnInside(arguments) => nspawn::run_inside(arguments),
        Verb::Limits => limits::run(),
        Verb::Setup => setup::run(),
        Verb::Zerocopy(arguments) => zerocopy::run(arguments.kernel, arguments.weir.as_deref()),
        Verb::Qemu(arguments) => qemu(arguments),
        Verb::Probes(arguments) => probes(arguments),
    }
}

/// Programs are started elsewhere.
fn absolute(path: &Path) -> Result<PathBuf, String> {
    std::path::absolute(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// The program that is given, or the one that tests start.
fn program(arguments: &StaticArguments) -> Result<PathBuf, String> {
    match &arguments.weir {
        Some(path) => absolute(path),
        None => {
            process::cargo(&["build", "--quiet", "--locked", "--package", "weir"])?;
            Ok(process::debug_directory().join("weir"))
        }
    }
}

fn check_files(arguments: &StaticArguments) -> Outcome {
    let report = files::check(&program(arguments)?)?;
    report.not_run.iter().for_each(|line| println!("files: {line}"));
    report.print()
}

/// An error if something is missing.
fn expect_all(missing: &[String]) -> Outcome {
    if missing.is_empty() {
        return Ok(());
    }
    missing.iter().for_each(|line| println!("lab: {line}"));
    Err("`cargo xtask lab setup` installs QEMU, as root, and the kernels and the busybox, as anybody; \
         `cargo xtask setup` installs systemd-nspawn, mmdebstrap and mkfs.ext4"
        .to_owned())
}

fn qemu(arguments: &ProbesArguments) -> Outcome {
    let series = arguments.kernel.map_or(setup::PROBED.to_vec(), |one| vec![one]);
    expect_all(&installed::missing(&series))?;
    let weir = match &arguments.weir {
        Some(path) => absolute(path)?,
        None => build()?,
    };
    installed::run(&series, &weir)
}

fn probes(arguments: &ProbesArguments) -> Outcome {
    let series = arguments.kernel.map_or(setup::PROBED.to_vec(), |one| vec![one]);
    expect_all(&setup::missing(&series))?;
    let weir = match &arguments.weir {
        Some(path) => path.clone(),
        None => build()?,
    };
    let image = image::build(&weir, &setup::busybox(), SCRIPT, &[])?;
    let mut failed = Vec::new();
    for one in series {
        let report = try_on(one, &image)?;
        print!("{}", text(one, &report));
        if report.faults() > 0 {
            println!("lab: what the machine said is in {}", run_directory(one).display());
            failed.push(one.name());
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(format!("probes fail on {}", failed.join(" and "))) }
}

/// Builds the daemon with probes in it.
fn build() -> Result<PathBuf, String> {
    process::run(process::command(process::cargo_program()).env("WEIR_EBPF", "require").args([
        "build",
        "--quiet",
        "--release",
        "--locked",
        "--package",
        "weir",
    ]))?;
    Ok(process::release_directory().join("weir"))
}

/// Where a machine's words are kept until the next one of its kind.
fn run_directory(series: Series) -> PathBuf {
    setup::directory().join("runs").join(series.name())
}

/// Starts one kernel and judges what it said.
fn try_on(series: Series, image: &[u8]) -> Result<Report, String> {
    println!("lab: starting Debian's kernel {}, at most {} s", series.name(), BOOT_TIMEOUT.as_secs());
    let directory = run_directory(series);
    fs::create_dir_all(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    let path = directory.join("image.cpio");
    fs::write(&path, image).map_err(|error| format!("{}: {error}", path.display()))?;
    let machine = Machine {
        kernel: &series.kernel(),
        image: &path,
        image_bytes: u64::try_from(image.len()).unwrap_or(u64::MAX),
        directory: &directory,
        timeout: BOOT_TIMEOUT,
        card: None,
        words: String::new(),
    };
    let told = machine.run();
    let _ = fs::remove_file(&path);
    Ok(Report::of(&told?))
}

/// The report for people.
fn text(series: Series, report: &Report) -> String {
    let verdict = |fault: Option<&str>| fault.map_or("OK".to_owned(), |fault| format!("FAIL: {fault}"));
    let number = |number: Option<u64>| number.map_or("-".to_owned(), |number| number.to_string());
    let mut rows =
        vec![["HOOK", "VERIFIED", "RUNS IN A", "RUNS IN B", "PLACE", "VERDICT"].map(str::to_owned)];
    rows.extend(report.hooks.iter().map(|hook| {
        let runs = |node: usize| number(hook.runs.and_then(|runs| runs.get(node).copied()));
        let place = hook.place.clone();
        [hook.event.clone(), number(hook.verified), runs(0), runs(1), place, verdict(hook.fault())]
    }));
    let name = format!("kernel {} ({})", series.name(), report.kernel);
    let mut text = format!("\n== {name}\n\n{}", table(&rows, &[1, 2, 3]));
    let mut rows = vec![["CHECK", "VERDICT", "FOUND"].map(str::to_owned)];
    rows.extend(report.checks.iter().map(|check| {
        let verdict = if check.is_ok { "OK" } else { "FAIL" };
        [check.what.clone(), verdict.to_owned(), check.found.clone()]
    }));
    text.push('\n');
    text.push_str(&table(&rows, &[]));
    let outcome = match report.faults() {
        0 => "OK".to_owned(),
        faults => format!("FAIL ({faults})"),
    };
    text.push_str(&format!("\n{name}: {outcome}\n\n"));
    text
}

/// Rows in columns as wide as their widest cell; those of these numbers to the right.
fn table<const COLUMNS: usize>(rows: &[[String; COLUMNS]], right: &[usize]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().enumerate().map(|(column, cell)| match width(column) {
            width if right.contains(&column) => format!("{cell:>width$}"),
            width => format!("{cell:<width$}"),
        });
        let line = cells.collect::<Vec<_>>().join("  ");
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use report::{Check, Hook};

    #[test]
    fn the_table_has_each_hook_and_each_check_with_its_verdict() {
        let hook = |event: &str, place: &str, runs| Hook {
            event: event.to_owned(),
            place: place.to_owned(),
            verified: Some(39),
            runs,
            is_attached: true,
        };
        let check = |what: &str, is_ok| Check { what: what.to_owned(), found: "5 s".to_owned(), is_ok };
        let report = Report {
            kernel: "6.1.0".to_owned(),
            hooks: vec![
                hook("segment arrives", "tp_btf/tcp_probe", Some([12, 3])),
                hook("send begins", "fentry/tcp_sendmsg_locked", Some([0, 3])),
                hook("connection ends", "tp_btf/inet_sock_set_state", None),
            ],
            checks: vec![check("one thing", true), check("another", false)],
        };
        assert_eq!(
            text(Series::V6_1, &report),
            "\n== kernel 6.1 (6.1.0)\n\n\
             HOOK             VERIFIED  RUNS IN A  RUNS IN B  PLACE                       VERDICT\n\
             segment arrives        39         12          3  tp_btf/tcp_probe            OK\n\
             send begins            39          0          3  fentry/tcp_sendmsg_locked   FAIL: never ran\n\
             connection ends        39          -          -  tp_btf/inet_sock_set_state  FAIL: no daemon has it attached\n\
             \n\
             CHECK      VERDICT  FOUND\n\
             one thing  OK       5 s\n\
             another    FAIL     5 s\n\
             \nkernel 6.1 (6.1.0): FAIL (3)\n\n"
        );
    }
}
