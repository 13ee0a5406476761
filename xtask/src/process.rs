//! Starting other programs, and saying plainly which one failed.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

/// What a verb ends with: nothing, or one line that says what went wrong.
pub(crate) type Outcome = Result<(), String>;

/// The root of the repository.
pub(crate) fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_path_buf()
}

/// Where everything is built.
pub(crate) fn target_directory() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// Where programs are built for tests.
pub(crate) fn debug_directory() -> PathBuf {
    target_directory().join("debug")
}

/// Where optimised programs are built.
pub(crate) fn release_directory() -> PathBuf {
    target_directory().join("release")
}

/// A command that runs in the root of the repository.
pub(crate) fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.current_dir(root());
    command
}

/// Runs it with our own output; an error names the command and its status.
pub(crate) fn run(command: &mut Command) -> Outcome {
    let line = describe(command);
    let status = command.status().map_err(|error| format!("cannot start `{line}`: {error}"))?;
    expect_success(&line, status)
}

/// Runs this cargo with `arguments`.
pub(crate) fn cargo(arguments: &[&str]) -> Outcome {
    run(command(cargo_program()).args(arguments))
}

/// The cargo that runs us, so that a toolchain override is kept.
pub(crate) fn cargo_program() -> std::ffi::OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// `Ok` if the status is a success.
pub(crate) fn expect_success(line: &str, status: ExitStatus) -> Outcome {
    if status.success() { Ok(()) } else { Err(format!("`{line}` failed ({status})")) }
}

/// The command as one would type it.
pub(crate) fn describe(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ")
}

/// Whether we may do what root may.
pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
