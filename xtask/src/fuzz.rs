//! Fuzz targets: builds them on nightly, runs them, and makes their corpora small.
//!
//! The ordinary test run replays the committed corpora on stable and needs none of this.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use crate::process::{self, Outcome};

/// A fuzz target.
struct Target {
    name: &'static str,
    /// Whether it reaches code with `unsafe` in it: then it runs under the address sanitizer, at half the speed.
    is_sanitized: bool,
}

const TARGETS: &[Target] = &[
    Target { name: "wire_decode", is_sanitized: false },
    Target { name: "link_bytes", is_sanitized: false },
    Target { name: "flow_operations", is_sanitized: false },
    Target { name: "record_assembler", is_sanitized: false },
    Target { name: "ipc_validation", is_sanitized: true },
    Target { name: "attach_message", is_sanitized: true },
    Target { name: "handshake", is_sanitized: false },
    Target { name: "config", is_sanitized: false },
];

/// Longest input, in bytes.
const INPUT_BYTES_MAX: u32 = 1024;

/// Most files of a committed corpus; the test run refuses more.
const FILES_MAX: usize = 200;

/// Of them, at most so many are there to notice the broken rule of their driver.
const NOTICING_MAX: usize = 8;

/// What to fuzz.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// One target, or all of them in turn
    #[arg(value_parser = TARGETS.iter().map(|target| target.name).collect::<Vec<_>>())]
    target: Option<String>,
    /// How long to look for new inputs, for each target
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Afterwards replace fuzz/corpus/TARGET by the fewest inputs that cover as much
    #[arg(long)]
    renew: bool,
}

/// Runs the targets one after the other. The first input that breaks a rule ends it, and its file is named.
pub(crate) fn run(arguments: &Arguments) -> Outcome {
    expect_tools()?;
    for target in TARGETS {
        if arguments.target.as_deref().is_none_or(|name| name == target.name) {
            target.run(arguments.seconds)?;
            if arguments.renew {
                target.renew()?;
            }
        }
    }
    Ok(())
}

/// Says how to get what is missing.
fn expect_tools() -> Outcome {
    let has = |arguments: &[&str]| {
        let mut command = cargo();
        command.args(arguments).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    if !has(&["+nightly", "--version"]) {
        return Err(
            "fuzzing needs a nightly toolchain: rustup toolchain install nightly --profile minimal".into()
        );
    }
    if !has(&["+nightly", "fuzz", "--version"]) {
        return Err("fuzzing needs cargo-fuzz: cargo install cargo-fuzz --locked".into());
    }
    Ok(())
}

/// The cargo that rustup has put on the PATH, which takes `+nightly`.
fn cargo() -> std::process::Command {
    let mut command = process::command("cargo");
    command.env_remove("RUSTUP_TOOLCHAIN").env_remove("CARGO").env_remove("RUSTC");
    command
}

/// Where fuzzing builds and keeps what it found.
fn work_directory() -> PathBuf {
    process::target_directory().join("fuzz")
}

impl Target {
    fn corpus(&self) -> PathBuf {
        process::root().join("fuzz/corpus").join(self.name)
    }

    /// Inputs that were found here, not in the repository.
    fn found(&self) -> PathBuf {
        work_directory().join("found").join(self.name)
    }

    fn run(&self, seconds: u64) -> Outcome {
        let Self { name, .. } = *self;
        println!("== fuzz: {name}, {seconds} s");
        let artifacts = work_directory().join("artifacts").join(name);
        for directory in [&self.found(), &artifacts] {
            make_directory(directory)?;
        }
        // A corpus of an older format is no place to begin from; what the driver makes itself is.
        self.corpus_tool("seeds", &[&self.found()])?;
        let mut command = self.fuzz("run");
        command.args([self.found(), self.corpus()]).args([
            "--",
            "-fork=0",
            "-timeout=60",
            "-print_final_stats=1",
            // What takes many steps to get to is looked for from the start.
            "-len_control=0",
            &format!("-max_len={INPUT_BYTES_MAX}"),
            &format!("-max_total_time={seconds}"),
            &format!("-artifact_prefix={}/", artifacts.display()),
        ]);
        process::run(&mut command).map_err(|problem| {
            format!(
                "{problem}; the input is in {}, and `cargo +nightly fuzz run {name} FILE` runs it again",
                artifacts.display()
            )
        })
    }

    /// A verb of the drivers' own program.
    fn corpus_tool(&self, verb: &str, directories: &[&Path]) -> Outcome {
        process::run(
            process::command(process::cargo_program())
                .args(["run", "--quiet", "--package", "weir-fuzz-drivers", "--features", "daemon,flow,ipc"])
                .args(["--example", "corpus", "--", verb, self.name])
                .args(directories),
        )
    }

    /// The fewest inputs that cover what all of them together do.
    fn renew(&self) -> Outcome {
        let (corpus, small) = (self.corpus(), work_directory().join("small").join(self.name));
        let _ = fs::remove_dir_all(&small);
        make_directory(&small)?;
        let mut command = self.fuzz("run");
        command.args([&small, &self.found(), &corpus]).args([
            "--",
            "-set_cover_merge=1",
            // How often an edge is taken says little here, and makes a corpus four times as large.
            "-use_counters=0",
            &format!("-max_len={INPUT_BYTES_MAX}"),
        ]);
        process::run(&mut command)?;
        let problem = |error: std::io::Error| format!("cannot renew {}: {error}", corpus.display());
        let mut files = Vec::new();
        for entry in fs::read_dir(&small).map_err(problem)? {
            let entry = entry.map_err(problem)?;
            let written = entry.metadata().and_then(|metadata| metadata.modified()).map_err(problem)?;
            files.push((written, entry.path()));
        }
        // Those that cover the most are written first.
        files.sort();
        files.truncate(FILES_MAX - NOTICING_MAX);
        fs::remove_dir_all(&corpus).map_err(problem)?;
        make_directory(&corpus)?;
        for (_, path) in &files {
            fs::copy(path, corpus.join(path.file_name().unwrap_or_default())).map_err(problem)?;
        }
        // Coverage does not know of the value at a bound; the broken rule does.
        self.corpus_tool("noticing", &[&self.found(), &corpus])?;
        println!("fuzz: {} files and those that notice the broken rule in {}", files.len(), corpus.display());
        Ok(())
    }

    /// `cargo fuzz VERB TARGET` with what it takes to build this target.
    fn fuzz(&self, verb: &str) -> std::process::Command {
        let sanitizer = if self.is_sanitized { "address" } else { "none" };
        let mut command = cargo();
        command
            .args(["+nightly", "fuzz", verb, "--sanitizer", sanitizer, "--target-dir"])
            .arg(work_directory().join(sanitizer))
            .arg(self.name);
        command
    }
}

fn make_directory(path: &Path) -> Outcome {
    fs::create_dir_all(path).map_err(|error| format!("cannot make {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A target is three files: its name here, its driver, its corpus.
    #[test]
    fn every_target_has_a_driver_and_a_corpus() {
        let root = process::root();
        for target in TARGETS {
            let name = target.name;
            assert!(root.join(format!("fuzz/fuzz_targets/{name}.rs")).is_file(), "{name}");
            assert!(root.join(format!("fuzz/drivers/src/{name}.rs")).is_file(), "{name}");
            assert!(target.corpus().is_dir(), "{name}");
        }
        let targets = fs::read_dir(root.join("fuzz/fuzz_targets")).expect("a directory").count();
        assert_eq!(targets, TARGETS.len(), "every target is run");
    }
}
