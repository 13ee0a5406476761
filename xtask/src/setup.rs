//! Installs what tests use beside the Rust toolchain, and what building the kernel probes needs.

use std::path::Path;

use crate::ebpf;
use crate::process::{self, Outcome};

/// A program that tests start, the Debian package that brings it, and what is not tested without it.
struct Tool {
    program: &'static str,
    package: &'static str,
    used_for: &'static str,
}

const TOOLS: &[Tool] = &[
    Tool { program: "cc", package: "gcc", used_for: "linking any Rust program" },
    Tool { program: "ip", package: "iproute2", used_for: "transfers between two network namespaces" },
    Tool { program: "tc", package: "iproute2", used_for: "kernel probes on a slow network" },
    Tool { program: "ss", package: "iproute2", used_for: "connections killed under load (`ss -K`)" },
    Tool { program: "nft", package: "nftables", used_for: "outages of the network under load" },
    Tool { program: "systemd-analyze", package: "systemd", used_for: "checks of the unit files" },
    Tool { program: "mkfs.ext4", package: "e2fsprogs", used_for: "disks of emulated machines" },
    Tool { program: "dpkg-deb", package: "dpkg", used_for: "package" },
    Tool { program: "mmdebstrap", package: "mmdebstrap", used_for: "nodes to install the package on" },
    Tool {
        program: "systemd-nspawn",
        package: "systemd-container",
        used_for: "nodes to install the package on",
    },
];

/// Installs the missing packages if this is root and apt-get exists; else says which are missing and what that costs.
/// Then the tools of the kernel probes.
pub(crate) fn run() -> Outcome {
    packages()?;
    ebpf::setup();
    Ok(())
}

fn packages() -> Outcome {
    let missing: Vec<&Tool> = TOOLS.iter().filter(|tool| !is_on_path(tool.program)).collect();
    if missing.is_empty() {
        println!("setup: no package to install");
        return Ok(());
    }
    if process::is_root() && is_on_path("apt-get") {
        let packages: Vec<&str> = missing.iter().map(|tool| tool.package).collect();
        println!("setup: installing {}", packages.join(", "));
        let installed = install(&packages);
        if let Err(problem) = installed {
            println!("setup: {problem}");
        }
    }
    for tool in missing.iter().filter(|tool| !is_on_path(tool.program)) {
        println!(
            "setup: `{}` is missing (package {}): without it, no {}",
            tool.program, tool.package, tool.used_for
        );
    }
    Ok(())
}

fn install(packages: &[&str]) -> Outcome {
    process::run(process::command("apt-get").args(["update", "-qq"]))?;
    process::run(
        process::command("apt-get")
            .args(["install", "-y", "-qq", "--no-install-recommends"])
            .args(packages)
            .env("DEBIAN_FRONTEND", "noninteractive"),
    )
}

/// Whether a program of this name is in one of PATH's directories, or where Debian puts those of root.
pub(crate) fn is_on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .any(|directory| Path::new(&directory).join(program).is_file())
}
