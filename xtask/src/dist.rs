//! Weir as others install it: a Debian package, and an archive for other distributions.
//!
//! | file | holds |
//! |---|---|
//! | this | the verb: builds the programs, then what they are packed in |
//! | [`tree`] | the files of an installation, each with its place and mode |
//! | [`libraries`] | what the program is made of beside our own code, with its licences |
//! | [`deb`] | the Debian package |
//! | [`archive`] | the archive with its install script |
//!
//! The package is made by dpkg-deb of a staged tree. What a helper would add to it, such as the parts of the maintainer
//! scripts that enable and start services, stands in `systemd/debian` in the open, and needs nothing that is not on every
//! Debian machine.

pub(crate) mod archive;
pub(crate) mod deb;
mod libraries;
mod tree;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::{self, Outcome};

/// The target whose programs need no library.
const STATIC_TARGET: &str = "x86_64-unknown-linux-musl";

/// What to pack.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Only one of the two
    #[arg(long, value_enum)]
    only: Option<Kind>,
    /// Pack this program instead of building one
    #[arg(long, value_name = "PATH", requires = "only")]
    weir: Option<PathBuf>,
    /// Where to put it; not given: `dist` in the target directory
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// A form to be installed from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Kind {
    /// The Debian package
    Deb,
    /// The archive with the install script, whose program needs no library
    Archive,
}

/// How small what is made should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effort {
    /// As large as its files: it is installed from here and now.
    Little,
    /// As small as it can be.
    Much,
}

/// Makes them, and says where they are.
pub(crate) fn run(arguments: &Arguments) -> Outcome {
    // Programs are started elsewhere.
    let absolute =
        |path: &Path| std::path::absolute(path).map_err(|error| format!("{}: {error}", path.display()));
    let out = absolute(&arguments.out.clone().unwrap_or_else(|| process::target_directory().join("dist")))?;
    fs::create_dir_all(&out).map_err(|error| format!("{}: {error}", out.display()))?;
    for kind in [Kind::Deb, Kind::Archive] {
        if arguments.only.is_some_and(|only| only != kind) {
            continue;
        }
        let weir = match &arguments.weir {
            Some(path) => absolute(path)?,
            None => build((kind == Kind::Archive).then_some(STATIC_TARGET))?,
        };
        let made = match kind {
            Kind::Deb => deb::build(&weir, &version(), &out, Effort::Much)?,
            Kind::Archive => archive::build(&weir, &version(), &out, Effort::Much)?,
        };
        let bytes = fs::metadata(&made).map_or(0, |found| found.len());
        println!("dist: {} ({:.1} MB)", made.display(), bytes as f64 / 1e6);
    }
    Ok(())
}

/// The version of the workspace.
pub(crate) fn version() -> String {
    env!("CARGO_PKG_VERSION").to_owned()
}

/// Builds the daemon with probes in it, for this machine or a target.
fn build(target: Option<&str>) -> Result<PathBuf, String> {
    let mut cargo = process::command(process::cargo_program());
    cargo.env("WEIR_EBPF", "require");
    cargo.args(["build", "--quiet", "--release", "--locked", "--package", "weir"]);
    let Some(target) = target else {
        process::run(&mut cargo)?;
        return Ok(process::release_directory().join("weir"));
    };
    if !has_target(target) {
        println!("dist: installing the standard library for {target}");
        process::run(process::command("rustup").args(["target", "add", target]))?;
    }
    process::run(cargo.args(["--target", target]))?;
    Ok(process::target_directory().join(target).join("release/weir"))
}

fn has_target(target: &str) -> bool {
    let told = said(process::command("rustc").args(["--print", "target-libdir", "--target", target]));
    told.is_ok_and(|path| Path::new(path.trim()).is_dir())
}

/// The moment that everything in what is made is dated with, in seconds since 1970: that of the revision, so that it
/// depends on nothing else.
fn moment() -> Result<u64, String> {
    let told = said(process::command("git").args(["log", "-1", "--format=%ct"]))?;
    told.trim().parse().map_err(|_| format!("git tells no time of the revision: {told:?}"))
}

/// What a program says, if it ends well.
fn said(command: &mut Command) -> Result<String, String> {
    let line = process::describe(command);
    let output = command.output().map_err(|error| format!("cannot start `{line}`: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(format!("`{line}` failed ({}): {}", output.status, String::from_utf8_lossy(&output.stderr).trim()))
}

fn write(path: &Path, content: impl AsRef<[u8]>) -> Outcome {
    fs::write(path, content).map_err(|error| format!("{}: {error}", path.display()))
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}
