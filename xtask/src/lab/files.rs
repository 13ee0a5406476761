//! What can be checked of the files for systemd without starting anything: units, users, directories, settings, and the
//! package with them.
//!
//! Everything is staged in a directory of its own below the target directory; the machine is not touched.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use super::package;
use crate::process::{self, Outcome};
use crate::setup::is_on_path;
use crate::test::NOT_RUN;

/// The most that `systemd-analyze security` may find of a unit, in tenths: 2.5 of 10.
const EXPOSURE_MAX: &str = "25";

/// Units of the system that ours name; empty ones, so that a check does not depend on the machine.
const SYSTEM_UNITS: &[&str] = &[
    "basic.target",
    "local-fs.target",
    "multi-user.target",
    "network.target",
    "network-online.target",
    "shutdown.target",
    "sysinit.target",
];

/// Where a drop-in says that it goes: in its own words, so that they are checked too.
const INSTALL_AS: &str = "/etc/systemd/system/";

/// What became of the checks.
#[derive(Debug, Default)]
pub(crate) struct Report {
    /// What holds, in a few words each.
    pub(crate) passed: Vec<String>,
    /// `not run here: REASON`, each.
    pub(crate) not_run: Vec<String>,
    /// What does not hold, with the tool's words.
    pub(crate) failed: Vec<String>,
}

impl Report {
    pub(super) fn take(&mut self, what: String, outcome: Outcome) {
        match outcome {
            Ok(()) => self.passed.push(what),
            Err(problem) => self.failed.push(format!("{what}: {problem}")),
        }
    }

    /// The tool, unless it is missing.
    pub(super) fn tool(&mut self, program: &str, what: &str) -> bool {
        let is_there = is_on_path(program);
        if !is_there {
            self.not_run.push(format!("{NOT_RUN} {what} (no {program})"));
        }
        is_there
    }

    /// Prints it; an error if anything does not hold.
    pub(crate) fn print(&self) -> Outcome {
        for (word, lines) in [("ok", &self.passed), ("FAIL", &self.failed)] {
            lines.iter().for_each(|line| println!("files: {word}: {line}"));
        }
        match self.failed.len() {
            0 => Ok(()),
            count => Err(format!("{count} checks of the files for systemd fail")),
        }
    }
}

/// Checks everything, with this program in the place of `/usr/bin/weir`.
///
/// # Errors
/// The directory to stage in cannot be made.
pub(crate) fn check(weir: &Path) -> Result<Report, String> {
    let directory = process::root().join("systemd");
    let stage = process::target_directory().join("files-lab");
    let staged = |name: &str| -> Result<PathBuf, String> {
        let path = stage.join(name);
        // What an earlier run has left.
        let _ = fs::remove_dir_all(&path);
        make(&path)?;
        Ok(path)
    };
    let mut report = Report::default();
    let units = files(&directory, "service")?;
    let drop_ins = files(&directory.join("drop-ins"), "conf")?;
    check_units(&mut report, &staged("units")?, weir, &units, &drop_ins)?;
    check_exposure(&mut report, &units);
    check_users(&mut report, &staged("root")?, &directory)?;
    for file in files(&directory.join("sysctl.d"), "conf")? {
        report.take(format!("{} sets what this kernel has", name(&file)), sysctl(&read(&file)?));
    }
    check_configurations(&mut report, &staged("etc")?, weir, &directory)?;
    package::check(&mut report, &staged("package")?, weir);
    // It holds a copy of the program.
    let _ = fs::remove_dir_all(&stage);
    Ok(report)
}

/// Each unit by itself, then with each drop-in for it: systemd's own reader has nothing to say, and the program knows the
/// command.
fn check_units(
    report: &mut Report,
    root: &Path,
    weir: &Path,
    units: &[PathBuf],
    drop_ins: &[PathBuf],
) -> Outcome {
    for unit in units {
        let commands = read(unit)?;
        for line in commands.lines().filter_map(|line| line.strip_prefix("ExecStart=/usr/bin/weir ")) {
            let verb = line.split_whitespace().next().unwrap_or_default();
            let outcome = run(Command::new(weir).args([verb, "--help"])).and_then(|output| success(&output));
            report.take(format!("{} starts `weir {verb}`, which there is", name(unit)), outcome);
        }
    }
    if !report.tool("systemd-analyze", "units in the eyes of systemd") {
        return Ok(());
    }
    let directory = root.join("usr/lib/systemd/system");
    make(&directory)?;
    make(&root.join("usr/bin"))?;
    copy(weir, &root.join("usr/bin/weir"))?;
    // That it can be run is all that is asked of the shell.
    make(&root.join("bin"))?;
    copy(Path::new("/bin/sh"), &root.join("bin/sh"))?;
    for name in SYSTEM_UNITS {
        write(&directory.join(name), "[Unit]\nDescription=Unit of the system\n")?;
    }
    for unit in units {
        copy(unit, &directory.join(name(unit)))?;
    }
    let verify = |unit: &str| -> Outcome {
        let root = format!("--root={}", root.display());
        silence(&run(Command::new("systemd-analyze").args(["verify", "--man=no", &root, unit]))?)
    };
    for unit in units {
        report.take(format!("systemd reads {}", name(unit)), verify(&name(unit)));
    }
    for drop_in in drop_ins {
        let what = format!("systemd reads {}", name(drop_in));
        let text = read(drop_in)?;
        let Some((unit, place)) = place_of(&text) else {
            report
                .failed
                .push(format!("{what}: it does not say where it goes, as {INSTALL_AS}UNIT.d/NAME.conf"));
            continue;
        };
        if !units.iter().any(|known| name(known) == unit) || !place.ends_with(&name(drop_in)) {
            report.failed.push(format!("{what}: it says that it goes to {place}"));
            continue;
        }
        let target = root.join(place.trim_start_matches('/'));
        target.parent().map_or(Ok(()), make)?;
        copy(drop_in, &target)?;
        report.take(format!("{what} with {unit}"), verify(unit));
        fs::remove_file(&target).map_err(|error| format!("{}: {error}", target.display()))?;
    }
    Ok(())
}

/// The unit that a drop-in says it is for, and its path.
fn place_of(text: &str) -> Option<(&str, &str)> {
    let place = text.split_whitespace().find(|word| word.starts_with(INSTALL_AS))?.trim_end_matches(',');
    let (unit, _) = place.strip_prefix(INSTALL_AS)?.split_once(".d/")?;
    Some((unit, place))
}

/// What a unit may do that it need not.
fn check_exposure(report: &mut Report, units: &[PathBuf]) {
    if !report.tool("systemd-analyze", "exposure of units") {
        return;
    }
    for unit in units {
        let threshold = format!("--threshold={EXPOSURE_MAX}");
        let outcome = run(Command::new("systemd-analyze")
            .args(["security", "--offline=true", "--no-pager", &threshold])
            .arg(unit));
        let overall = |output: &Output| {
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let line = text.lines().find_map(|line| line.split_once("Overall exposure level"));
            line.map_or(String::new(), |(_, line)| line.trim().to_owned())
        };
        let what = match &outcome {
            Ok(output) => format!("exposure {}", overall(output)),
            Err(_) => format!("exposure of {}", name(unit)),
        };
        // Its output is a table of everything that it looked at.
        let judged = outcome.and_then(|output| success(&output).map_err(|_| "more than 2.5".to_owned()));
        report.take(what, judged);
    }
}

/// User and directories, in a root of their own.
fn check_users(report: &mut Report, root: &Path, directory: &Path) -> Outcome {
    let flag = format!("--root={}", root.display());
    make(&root.join("etc"))?;
    if report.tool("systemd-sysusers", "the user of the service") {
        for file in files(&directory.join("sysusers.d"), "conf")? {
            let outcome = run(Command::new("systemd-sysusers").args([&flag, "--dry-run"]).arg(&file));
            report.take(
                format!("systemd-sysusers makes the user of {}", name(&file)),
                outcome.and_then(|output| success(&output)),
            );
        }
    }
    // The user, as it would be then: directories are given to it.
    write(&root.join("etc/passwd"), "root:x:0:0::/root:/bin/sh\nweir:x:990:990::/:/usr/sbin/nologin\n")?;
    write(&root.join("etc/group"), "root:x:0:\nweir:x:990:\n")?;
    if !report.tool("systemd-tmpfiles", "the directories of the service") {
        return Ok(());
    }
    if !process::is_root() {
        report
            .not_run
            .push(format!("{NOT_RUN} the directories of the service (needs root to give them away)"));
        return Ok(());
    }
    for file in files(&directory.join("tmpfiles.d"), "conf")? {
        let outcome = run(Command::new("systemd-tmpfiles").args([&flag, "--create"]).arg(&file));
        let made =
            outcome.and_then(|output| silence(&output)).and_then(|()| made_as_told(root, &read(&file)?));
        report.take(format!("systemd-tmpfiles makes the directories of {}", name(&file)), made);
    }
    Ok(())
}

/// Whether every line of a `tmpfiles.d` file has brought what it says.
fn made_as_told(root: &Path, text: &str) -> Outcome {
    use std::os::unix::fs::MetadataExt;
    for line in text.lines().filter(|line| line.starts_with("d ")) {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [_, path, mode, user, group, ..] = fields.as_slice() else {
            return Err(format!("a line with too few fields: {line}"));
        };
        let found = fs::metadata(root.join(path.trim_start_matches('/')))
            .map_err(|error| format!("{path}: {error}"))?;
        let id = |name: &str| if name == "weir" { 990 } else { 0 };
        let wanted = (u32::from_str_radix(mode, 8).unwrap_or(0), id(user), id(group));
        let made = (found.mode() & 0o7777, found.uid(), found.gid());
        if made != wanted {
            return Err(format!("{path} has mode and owners {made:?}, not {wanted:?}"));
        }
    }
    Ok(())
}

/// Whether each line is `[-]KEY = VALUE` with a key of this kernel.
fn sysctl(text: &str) -> Outcome {
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with(['#', ';'])) {
        let (key, value) = line.split_once('=').ok_or_else(|| format!("no setting: {line}"))?;
        let path = Path::new("/proc/sys").join(key.trim().trim_start_matches('-').replace('.', "/"));
        if value.trim().is_empty() || !path.is_file() {
            return Err(format!("no such setting: {line}"));
        }
    }
    Ok(())
}

/// Every configuration that is shipped, alone and as part of the main one.
fn check_configurations(report: &mut Report, etc: &Path, weir: &Path, directory: &Path) -> Outcome {
    let check = |file: &Path| -> Outcome {
        success(&run(Command::new(weir).args(["config", "check", "--config"]).arg(file))?)
    };
    let main = etc.join("weir.toml");
    copy(&directory.join("weir.toml"), &main)?;
    report.take("weir takes weir.toml".to_owned(), check(&main));
    make(&etc.join("conf.d"))?;
    for part in files(&directory.join("conf.d"), "toml")? {
        let place = etc.join("conf.d").join(name(&part));
        copy(&part, &place)?;
        report.take(format!("weir takes conf.d/{}", name(&part)), check(&main));
    }
    report.take("weir takes all of conf.d together".to_owned(), check(&main));
    Ok(())
}

/// Files of a directory with this ending, sorted. There is at least one.
fn files(directory: &Path, ending: &str) -> Result<Vec<PathBuf>, String> {
    let shown = directory.display();
    let entries = fs::read_dir(directory).map_err(|error| format!("{shown}: {error}"))?;
    let mut files: Vec<PathBuf> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|found| found == ending))
        .collect();
    files.sort();
    if files.is_empty() { Err(format!("{shown}: no file that ends in .{ending}")) } else { Ok(files) }
}

pub(super) fn run(command: &mut Command) -> Result<Output, String> {
    command.output().map_err(|error| format!("cannot start `{}`: {error}", process::describe(command)))
}

fn success(output: &Output) -> Outcome {
    if output.status.success() { Ok(()) } else { Err(words(output)) }
}

/// Success without a word: an unknown key is only a line on standard error.
pub(super) fn silence(output: &Output) -> Outcome {
    let is_silent = output.stderr.is_empty() && output.stdout.is_empty();
    if output.status.success() && is_silent { Ok(()) } else { Err(words(output)) }
}

fn words(output: &Output) -> String {
    let text = [output.stdout.as_slice(), output.stderr.as_slice()].concat();
    format!("{}: {}", output.status, String::from_utf8_lossy(&text).trim())
}

fn name(path: &Path) -> String {
    path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}

fn make(path: &Path) -> Outcome {
    fs::create_dir_all(path).map_err(|error| format!("{}: {error}", path.display()))
}

fn copy(from: &Path, to: &Path) -> Outcome {
    fs::copy(from, to).map(|_| ()).map_err(|error| format!("{} to {}: {error}", from.display(), to.display()))
}

fn write(path: &Path, text: &str) -> Outcome {
    fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drop_in_says_where_it_goes() {
        let text = "# Install as\n#   /etc/systemd/system/weir.service.d/no-probes.conf, and the rest as\n";
        assert_eq!(
            place_of(text),
            Some(("weir.service", "/etc/systemd/system/weir.service.d/no-probes.conf"))
        );
        assert_eq!(place_of("# Install it somewhere.\n"), None);
    }

    #[test]
    fn a_setting_is_one_that_there_is() {
        assert_eq!(sysctl("# a\n\n-net.ipv4.tcp_rmem = 1 2 3\nkernel.pid_max=4\n"), Ok(()));
        for text in ["net.ipv4.tcp_rmen = 1 2 3", "kernel.pid_max =", "kernel.pid_max"] {
            assert!(sysctl(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_report_with_a_failure_fails() {
        let mut report = Report::default();
        report.take("one".to_owned(), Ok(()));
        assert!(report.print().is_ok());
        report.take("another".to_owned(), Err("why".to_owned()));
        assert_eq!(report.failed, ["another: why"]);
        assert!(report.print().is_err());
        assert!(!report.tool("no-such-program", "a check"));
        assert_eq!(report.not_run, ["not run here: a check (no no-such-program)"]);
    }
}
