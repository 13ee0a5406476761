//! Every test that this machine can run. What it cannot run is printed with its reason and counted.

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::ebpf;
use crate::hugepages::Hugepages;
use crate::lab::{files, nspawn};
use crate::process::{self, Outcome};
use crate::setup;

/// A test that cannot run here prints a line that begins like this, and goes on with what it can.
pub(crate) const NOT_RUN: &str = "not run here:";

/// Free 2 MiB pages that the tests of hugepage regions use at most at one time.
const HUGEPAGES_WANTED: u64 = 96;

/// Sets up, then runs unit, property, simulation and end-to-end tests of the whole workspace, then the models of
/// the shared-memory rings, and the files for systemd.
pub(crate) fn run() -> Outcome {
    let began = Instant::now();
    setup::run()?;
    let (hugepages, text) = Hugepages::reserve(HUGEPAGES_WANTED);
    println!("test: {text}");
    let probes = ebpf::missing();
    // Where they can run, a test that finds them not to run has failed.
    let expected = probes.is_none().then(|| ("WEIR_PROBES_EXPECTED", "1".into()));
    let mut not_run = cargo_test("workspace", &["--workspace", "--locked"], expected.as_slice())?;
    not_run.extend(probes.map(|missing| format!("{NOT_RUN} kernel probes ({missing})")));
    println!("== test: files for systemd");
    // The program that the tests above have started.
    let files = files::check(&process::debug_directory().join("weir"))?;
    files.print()?;
    not_run.extend(files.not_run);
    println!("== test: the package on nodes with systemd");
    not_run.extend(nspawn::check(&process::debug_directory().join("weir"))?);
    not_run.extend(cargo_test(
        "loom models",
        &["--package", "weir-ipc", "--locked", "--release", "--test", "loom"],
        &[
            ("RUSTFLAGS", "--cfg loom".into()),
            ("CARGO_TARGET_DIR", process::root().join("target").join("flagged").into()),
        ],
    )?);
    drop(hugepages);
    not_run.sort();
    not_run.dedup();
    for line in &not_run {
        println!("test: {line}");
    }
    println!(
        "test: all passed in {} s; {} checks could not run here",
        began.elapsed().as_secs(),
        not_run.len()
    );
    Ok(())
}

/// Runs `cargo test`, passing its output on without what passing tests print, and returns the checks not run.
fn cargo_test(name: &str, arguments: &[&str], variables: &[(&str, OsString)]) -> Result<Vec<String>, String> {
    println!("== test: {name}");
    let mut command = process::command(process::cargo_program());
    command.arg("test").args(arguments).args(["--", "--show-output"]);
    for (variable, value) in variables {
        command.env(variable, value);
    }
    passed_on(&mut command)
}

/// Runs it, passing its output on without what passing tests print, and returns the checks not run.
///
/// # Errors
/// It fails.
pub(crate) fn passed_on(command: &mut Command) -> Result<Vec<String>, String> {
    let line = process::describe(command);
    let mut child =
        command.stdout(Stdio::piped()).spawn().map_err(|error| format!("cannot start `{line}`: {error}"))?;
    let output = child.stdout.take().ok_or_else(|| format!("`{line}` has no output"))?;
    let mut filter = OutputFilter::default();
    for text in BufReader::new(output).lines() {
        let text = text.map_err(|error| format!("cannot read the output of `{line}`: {error}"))?;
        if filter.shows(&text) {
            println!("{text}");
        }
    }
    let status = child.wait().map_err(|error| format!("cannot wait for `{line}`: {error}"))?;
    process::expect_success(&line, status)?;
    Ok(filter.not_run)
}

/// Leaves out what `--show-output` prints of passing tests, but keeps its `not run here:` lines.
#[derive(Default)]
struct OutputFilter {
    in_successes: bool,
    not_run: Vec<String>,
}

impl OutputFilter {
    fn shows(&mut self, line: &str) -> bool {
        if let Some(at) = line.find(NOT_RUN) {
            self.not_run.push(line[at..].trim().to_owned());
        }
        match line {
            "successes:" => self.in_successes = true,
            "failures:" => self.in_successes = false,
            _ if line.starts_with("test result:") => self.in_successes = false,
            _ => {}
        }
        !self.in_successes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_of_passing_tests_is_left_out_and_what_did_not_run_is_kept() {
        let mut filter = OutputFilter::default();
        let output = [
            ("test a ... ok", true),
            ("successes:", false),
            ("---- a stdout ----", false),
            ("not run here: hugepages (0 free)", false),
            ("failures:", true),
            ("---- b stdout ----", true),
            ("test result: FAILED. 1 passed; 1 failed", true),
        ];
        for (line, shown) in output {
            assert_eq!(filter.shows(line), shown, "{line}");
        }
        assert_eq!(filter.not_run, ["not run here: hugepages (0 free)"]);
    }
}
