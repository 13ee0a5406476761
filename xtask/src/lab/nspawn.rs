//! The package on two nodes: systemd as the first process of each, in containers of this machine's kernel.
//!
//! | file | holds |
//! |---|---|
//! | this | the verb: what is needed, what is made first, and the order |
//! | [`super::rootfs`], [`super::node`] | what a node consists of, and how it starts and ends |
//! | [`super::walk`], [`super::page`] | from the package to records between two nodes, by the commands of the page for operators |
//! | [`super::lifecycle`] | what happens to the service: faults, upgrades, removal |
//! | [`super::checks`] | one line for each |

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::checks::Checks;
use super::node::{self, Node};
use super::setup::{directory, said};
use super::{groups, lifecycle, rootfs, walk};
use crate::dist;
use crate::hugepages::Hugepages;
use crate::process::{self, Outcome};
use crate::setup::is_on_path;
use crate::test::NOT_RUN;

/// The verb that this program is started with again, in namespaces of its own.
pub(super) const INSIDE: &str = "nspawn-inside";

/// Free 2 MiB pages that the two nodes use.
const HUGEPAGES: u64 = 48;

/// Tries with a root file system what nodes are made of. The mounts and the cable end with the namespaces that it runs in.
const TRIED: &str = r#"set -e
mount -t tmpfs none /mnt
mkdir /mnt/upper /mnt/work /mnt/root /mnt/bpf
mount -t overlay -o "lowerdir=$1,upperdir=/mnt/upper,workdir=/mnt/work" none /mnt/root
mount -t bpf none /mnt/bpf
ip link add weir0 type veth peer name weir1
SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1 systemd-nspawn --quiet --register=no --keep-unit --private-network \
    --capability=all --resolv-conf=off --timezone=off --bind=/mnt/bpf:/sys/fs/bpf --directory=/mnt/root true"#;

/// Programs that nodes are made with, and the packages that bring them.
const PROGRAMS: &[(&str, &str)] = &[
    ("systemd-nspawn", "systemd-container"),
    ("mmdebstrap", "mmdebstrap"),
    ("dpkg-deb", "dpkg"),
    ("unshare", "util-linux"),
    ("nsenter", "util-linux"),
    ("ip", "iproute2"),
];

/// Where the things are that go into the nodes.
#[derive(clap::Args)]
pub(crate) struct InsideArguments {
    /// The root file system
    #[arg(long)]
    rootfs: PathBuf,
    /// The package that is installed first
    #[arg(long)]
    package: PathBuf,
    /// The one that it is upgraded to
    #[arg(long)]
    newer: PathBuf,
    /// The archive for other distributions
    #[arg(long)]
    archive: PathBuf,
    /// The program that outlives its daemon
    #[arg(long)]
    steady: PathBuf,
    /// A name for its control groups that no other run has
    #[arg(long)]
    run: String,
}

/// Why this machine can have no nodes, if it cannot.
fn missing() -> Option<String> {
    if !process::is_root() {
        return Some("needs root".to_owned());
    }
    let absent = PROGRAMS.iter().find(|(program, _)| !is_on_path(program));
    if let Some((program, package)) = absent {
        return Some(format!("no {program}: package {package}, which `cargo xtask setup` installs"));
    }
    None
}

/// Why this machine refuses what nodes are made of, if it does: a container inside of a container, for instance. All of it is
/// tried once: control groups, namespaces, layers of file systems, a BPF file system, a cable, and a container.
fn refused(rootfs: &Path, run: &str) -> Option<String> {
    let tried = try_all(rootfs, run);
    groups::sweep(run);
    tried.err().map(|problem| format!("what nodes are made of is refused here: {problem}"))
}

fn try_all(rootfs: &Path, run: &str) -> Outcome {
    let mut command = groups::command_in(run, "tried")?;
    command
        .args(["unshare", "--mount", "--propagation=private", "--net"])
        .args(["--pid", "--fork", "--kill-child", "--mount-proc", "--"])
        .args(["sh", "-c", TRIED, "sh"])
        .arg(rootfs);
    said(&mut command).map(drop)
}

/// Does all of it with this program in the package. Returns what could not run here, each as `not run here: REASON`.
///
/// # Errors
/// Something does not hold, or a part cannot be made.
pub(crate) fn check(weir: &Path) -> Result<Vec<String>, String> {
    if let Some(reason) = missing() {
        let line = format!("{NOT_RUN} the package in nodes with systemd ({reason})");
        println!("nspawn: {line}");
        return Ok(vec![line]);
    }
    let rootfs = match rootfs::ensure() {
        Ok(rootfs) => rootfs,
        Err(reason) => {
            let line = format!("{NOT_RUN} the package in nodes with systemd (no Debian to start: {reason})");
            println!("nspawn: {line}");
            return Ok(vec![line]);
        }
    };
    let run = groups::new_run();
    if let Some(reason) = refused(&rootfs, &run) {
        let line = format!("{NOT_RUN} the package in nodes with systemd ({reason})");
        println!("nspawn: {line}");
        return Ok(vec![line]);
    }
    let out = directory().join("packages");
    let _ = fs::remove_dir_all(&out);
    fs::create_dir_all(&out).map_err(|error| format!("{}: {error}", out.display()))?;
    let package = dist::deb::build(weir, &dist::version(), &out, dist::Effort::Little)?;
    let newer = format!("{}+1", dist::version());
    let newer =
        dist::deb::build_changed(weir, &newer, &out, dist::Effort::Little, lifecycle::change_defaults)?;
    let archive = dist::archive::build(weir, &dist::version(), &out, dist::Effort::Little)?;
    process::cargo(&["build", "--quiet", "--locked", "--package", "weir-client", "--example", "steady"])?;
    let steady = process::debug_directory().join("examples/steady");
    let (hugepages, text) = Hugepages::reserve(HUGEPAGES);
    println!("nspawn: {text}");
    let files = [
        ("--rootfs", &rootfs),
        ("--package", &package),
        ("--newer", &newer),
        ("--archive", &archive),
        ("--steady", &steady),
    ];
    let mut command = node::inside(&["lab", INSIDE])?;
    for (flag, path) in files {
        command.arg(flag).arg(std::path::absolute(path).unwrap_or_else(|_| path.clone()));
    }
    command.args(["--run", &run]);
    // Its last line has said what does not hold.
    let outcome = crate::test::passed_on(&mut command)
        .map_err(|_| "the package on nodes with systemd fails".to_owned());
    groups::sweep(&run);
    drop(hugepages);
    let _ = fs::remove_dir_all(&out);
    outcome
}

/// In the namespaces: two nodes from their start to their end.
pub(super) fn run_inside(arguments: &InsideArguments) -> Outcome {
    let nodes = directory().join("nodes");
    fs::create_dir_all(&nodes).map_err(|error| format!("{}: {error}", nodes.display()))?;
    said(Command::new("mount").args(["-t", "tmpfs", "-o", "mode=0755", "none"]).arg(&nodes))?;
    let files =
        [&arguments.package, &arguments.newer, &arguments.archive, &arguments.steady].map(PathBuf::as_path);
    let mut checks = Checks::new("nspawn");
    let boot = |name| Node::boot(&arguments.run, name, &arguments.rootfs, &nodes, &files);
    let (a, b) = std::thread::scope(|scope| {
        let (a, b) = (scope.spawn(|| boot("a")), scope.spawn(|| boot("b")));
        (a.join(), b.join())
    });
    let joined = |node: std::thread::Result<Result<Node, String>>| node.unwrap_or(Err("a panic".to_owned()));
    let (a, b) = (joined(a)?, joined(b)?);
    let package = name(&arguments.package);
    walk::run(&mut checks, &a, &b)?;
    lifecycle::run(
        &mut checks,
        &a,
        &lifecycle::Packages { package: &package, newer: &name(&arguments.newer) },
    )?;
    lifecycle::archive(&mut checks, &b, &name(&arguments.archive));
    checks.check("both nodes stop", || a.stop().and_then(|()| b.stop()).map(|()| String::new()));
    checks.finish()
}

/// What a file is called in the nodes.
fn name(path: &Path) -> String {
    path.file_name().map_or_else(String::new, |name| format!("/root/{}", name.to_string_lossy()))
}
