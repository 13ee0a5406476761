//! Miri: runs the tests of shared memory in an interpreter that reports undefined behaviour.
//!
//! The ordinary test run needs none of this: Miri is a component of a nightly toolchain.

use std::process::{Command, Stdio};

use crate::process::{self, Outcome};

/// Pointers carry where they come from, and what is aligned only by chance is reported.
const FLAGS: &str = "-Zmiri-strict-provenance -Zmiri-symbolic-alignment-check";

/// Runs what Miri can run of the crate with shared memory; the rest is listed as ignored, each with its reason.
pub(crate) fn run() -> Outcome {
    expect_tools()?;
    process::run(cargo().env("MIRIFLAGS", FLAGS).args([
        "miri",
        "test",
        "--locked",
        "--package",
        "weir-ipc",
        "--lib",
    ]))
}

/// Says how to get what is missing.
fn expect_tools() -> Outcome {
    let has = |arguments: &[&str]| {
        let mut command = cargo();
        command.args(arguments).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    if !has(&["--version"]) {
        return Err(
            "Miri needs a nightly toolchain: rustup toolchain install nightly --profile minimal --component miri,rust-src"
                .into(),
        );
    }
    if !has(&["miri", "--version"]) {
        return Err("Miri is missing: rustup +nightly component add miri rust-src".into());
    }
    // Miri interprets the standard library, too.
    let mut rustc = nightly("rustc");
    let sysroot = rustc.args(["--print", "sysroot"]).output().map_err(|error| format!("rustc: {error}"))?;
    let sysroot = String::from_utf8_lossy(&sysroot.stdout).trim().to_owned();
    if !std::path::Path::new(&sysroot).join("lib/rustlib/src/rust/library/core/src/lib.rs").is_file() {
        return Err(
            "the source of the standard library is missing: rustup +nightly component add rust-src".into()
        );
    }
    Ok(())
}

/// The nightly cargo.
fn cargo() -> Command {
    nightly("cargo")
}

/// The program that rustup has put on the PATH, of the nightly toolchain.
fn nightly(program: &str) -> Command {
    let mut command = process::command(program);
    command.env_remove("RUSTUP_TOOLCHAIN").env_remove("CARGO").env_remove("RUSTC").arg("+nightly");
    command
}
