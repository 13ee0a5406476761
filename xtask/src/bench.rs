//! `cargo xtask bench`: builds what it measures, and runs it.
//!
//! Other libraries that Weir is compared with are built only when they are to be measured, by a workspace of their own; and
//! another revision in a work tree of its own.

mod base;

use std::path::{Path, PathBuf};
use std::process::Stdio;

use crate::process::{self, Outcome};
use base::Base;

/// Measures; what is not taken here is the program's.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Passed on to the program; `--help` lists them. Beside these: `--base REV` compares with another revision
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    rest: Vec<String>,
}

/// What measures.
const PROGRAM: &str = "weir-bench";

/// Scenarios that need `weir-peers`.
const WITH_PEERS: [&str; 2] = ["peers", "peers-latency"];

/// What the arguments ask of this side.
#[derive(Debug, PartialEq)]
struct Request {
    /// The revision to compare with.
    base: Option<String>,
    /// Whether other libraries are measured.
    needs_peers: bool,
    /// What the program is given.
    rest: Vec<String>,
}

impl Request {
    fn of(arguments: &[String]) -> Result<Self, String> {
        let (mut base, mut scenarios, mut rest) = (None, Vec::new(), Vec::new());
        let mut only_tells = false;
        let mut words = arguments.iter();
        while let Some(word) = words.next() {
            let (name, value) = match word.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (word.as_str(), None),
            };
            match name {
                "--base" => {
                    let revision = value.or_else(|| words.next().cloned());
                    base = Some(revision.ok_or("--base needs a revision")?);
                    continue;
                }
                "--scenario" => {
                    rest.push(word.clone());
                    let following = if value.is_none() { words.next().cloned() } else { None };
                    rest.extend(following.clone());
                    scenarios.extend(value.or(following));
                    continue;
                }
                "--list" | "--help" | "-h" => only_tells = true,
                _ => {}
            }
            rest.push(word.clone());
        }
        let is_measured =
            |name: &&str| scenarios.is_empty() || scenarios.iter().any(|scenario| scenario == name);
        let needs_peers = !only_tells && WITH_PEERS.iter().any(is_measured);
        Ok(Self { base: base.filter(|_| !only_tells), needs_peers, rest })
    }
}

/// Builds, then measures.
pub(crate) fn run(arguments: &Arguments) -> Outcome {
    let request = Request::of(&arguments.rest)?;
    let find = |revision: &String| Base::find(&process::root(), &target().join("base"), revision);
    let base = request.base.as_ref().map(find).transpose()?;
    build(&process::root(), &target(), PROGRAM)?;
    if request.needs_peers {
        build_peers(&process::root(), &target());
    }
    let mut program = process::command(process::release_directory().join(PROGRAM));
    program.args(&request.rest);
    if let Some(base) = &base {
        if base::has_changes(&process::root()) {
            println!("bench: this work tree has changes that are not committed; they are measured");
        }
        let built = base.build(|tree, target| {
            build(tree, target, PROGRAM)?;
            if request.needs_peers {
                build_peers(tree, target);
            }
            Ok(())
        })?;
        program.arg("--base-program").arg(built).args(["--base-name", &base.name()]);
    }
    process::run(&mut program)
}

/// Where everything is built, from wherever it is looked at.
fn target() -> PathBuf {
    process::root().join(process::target_directory())
}

/// Builds the daemon and a program of the bench of this work tree with optimisation. The other one is left out: linking it takes as
/// long.
pub(crate) fn build(tree: &Path, target: &Path, program: &str) -> Outcome {
    process::run(
        process::command(process::cargo_program())
            .current_dir(tree)
            .args([
                "build",
                "--quiet",
                "--release",
                "--locked",
                "--package",
                "weir",
                "--package",
                "weir-bench",
                "--bin",
                "weir",
                "--bin",
                program,
            ])
            .arg("--target-dir")
            .arg(target),
    )
}

/// Builds the other libraries. Where they cannot be built, the bench says which of them are absent and counts them.
fn build_peers(tree: &Path, target: &Path) {
    let directory = tree.join("bench/peers");
    if !directory.is_dir() {
        return;
    }
    let mut features: Vec<&str> = Vec::new();
    for (name, feature, missing, packages) in [
        ("ZeroMQ", "zeromq", missing_for_zeromq(), "libzmq3-dev pkg-config"),
        ("Aeron", "aeron", missing_for_aeron(), "cmake libclang-dev uuid-dev libbsd-dev zlib1g-dev"),
    ] {
        match missing {
            None => features.extend(["--features", feature]),
            Some(missing) => {
                println!("bench: {name} is not measured: {missing} (Debian: apt-get install {packages})");
            }
        }
    }
    println!(
        "bench: building weir-peers, the libraries that Weir is compared with; the first time takes minutes"
    );
    let mut cargo = process::command(process::cargo_program());
    // Its configuration is found from its directory.
    cargo.current_dir(&directory).args(["build", "--quiet", "--release", "--locked"]).args(features);
    cargo.arg("--target-dir").arg(target);
    if let Err(problem) = process::run(&mut cargo) {
        println!("bench: no other library is measured: {problem}");
    }
}

fn missing_for_zeromq() -> Option<String> {
    missing_package("libzmq")
}

/// What is missing of a library, by its name for pkg-config.
fn missing_package(name: &str) -> Option<String> {
    let mut pkg_config = process::command("pkg-config");
    pkg_config.args(["--exists", name]).stdout(Stdio::null()).stderr(Stdio::null());
    match pkg_config.status() {
        Err(_) => Some("pkg-config is missing".to_owned()),
        Ok(status) if !status.success() => Some(format!("{name} is missing")),
        Ok(_) => None,
    }
}

/// Aeron is built from its source.
fn missing_for_aeron() -> Option<String> {
    let version = process::command("cmake").arg("--version").output();
    let Some(found) = version.ok().and_then(|output| cmake_version(&String::from_utf8_lossy(&output.stdout)))
    else {
        return Some("cmake is missing".to_owned());
    };
    if found < CMAKE_MIN {
        let (major, minor) = CMAKE_MIN;
        return Some(format!(
            "cmake is {}.{} and has to be {major}.{minor} (also as `pip install cmake`)",
            found.0, found.1
        ));
    }
    ["uuid", "libbsd"].into_iter().find_map(missing_package)
}

/// Oldest cmake that builds Aeron.
const CMAKE_MIN: (u32, u32) = (3, 30);

/// The version that cmake tells, such as 3.25 in "cmake version 3.25.1".
fn cmake_version(told: &str) -> Option<(u32, u32)> {
    let mut numbers = told.split_whitespace().nth(2)?.split('.');
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(words: &str) -> Result<Request, String> {
        Request::of(&words.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn other_libraries_are_built_only_to_be_measured() {
        for (words, needed) in [
            ("", true),
            ("--rounds 3", true),
            ("--scenario peers", true),
            ("--scenario=peers-latency --rounds 2", true),
            ("--scenario idle --scenario peers", true),
            ("--scenario idle", false),
            ("--scenario=idle", false),
            ("--list", false),
            ("--help", false),
        ] {
            let request = request(words).expect("a request");
            assert_eq!(request.needs_peers, needed, "{words}");
            assert_eq!(request.rest.join(" "), words, "all is passed on");
        }
    }

    #[test]
    fn versions_are_compared_as_numbers() {
        assert_eq!(cmake_version("cmake version 3.25.1\n\nCMake suite"), Some((3, 25)));
        assert_eq!(cmake_version("cmake version 4.4.5"), Some((4, 4)));
        assert_eq!(cmake_version("cmake"), None);
        assert!((3, 5) < CMAKE_MIN && CMAKE_MIN < (4, 0));
    }

    #[test]
    fn the_revision_is_taken_out() {
        let of = |words| request(words).expect("a request");
        for words in ["--base main~3 --scenario idle", "--scenario idle --base=main~3"] {
            let found = of(words);
            assert_eq!(
                (found.base.as_deref(), found.rest.join(" ")),
                (Some("main~3"), "--scenario idle".into())
            );
        }
        assert!(request("--scenario idle --base").is_err());
    }
}
