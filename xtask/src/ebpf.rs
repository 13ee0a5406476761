//! The kernel probes: what building them needs, and whether they run here.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::process::{self, Outcome};

/// The version that is installed.
const LINKER_VERSION: &str = "0.13.0";

/// Longest time that installing the linker may take: it is about 90 s of work for one processor, which may have other work.
const INSTALL_TIMEOUT: Duration = Duration::from_secs(600);

/// Where the kernel shows its type information.
const KERNEL_TYPES: &str = "/sys/kernel/btf/vmlinux";

/// `CAP_PERFMON` and `CAP_BPF`.
const BPF_CAPABILITIES: u64 = 1 << 38 | 1 << 39;

/// Why a machine has no probes, if it can have none.
pub(crate) type Missing = String;

/// Builds the probes, loads and verifies each, and shows what became of every hook.
pub(crate) fn run() -> Outcome {
    install()?;
    process::run(process::command(process::cargo_program()).env("WEIR_EBPF", "require").args([
        "build",
        "--locked",
        "--package",
        "weir",
    ]))?;
    process::run(process::command(process::target_directory().join("debug/weir")).arg("probes"))
}

/// Installs what building the probes needs. What cannot be had is said; only the probes need it.
pub(crate) fn setup() {
    if let Err(missing) = install() {
        println!("setup: the kernel probes are left out: {missing}");
    }
}

/// Why the tests cannot expect probes here, as far as can be told without trying.
pub(crate) fn missing() -> Option<Missing> {
    source_of_core().err().or_else(|| linker().err()).or_else(not_allowed)
}

/// What the kernel or who runs this process keeps from it.
fn not_allowed() -> Option<Missing> {
    if !Path::new(KERNEL_TYPES).is_file() {
        return Some(format!("{KERNEL_TYPES} is missing"));
    }
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let held = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let held = held.and_then(|text| u64::from_str_radix(text.trim(), 16).ok()).unwrap_or(0);
    (held & BPF_CAPABILITIES != BPF_CAPABILITIES).then(|| "no CAP_BPF and CAP_PERFMON".to_owned())
}

fn install() -> Result<(), Missing> {
    if source_of_core().is_err() {
        println!("setup: installing rust-src");
        let added = output(process::command("rustup").args(["component", "add", "rust-src"]))?;
        if !added.status.success() {
            return Err(format!("rustup component add rust-src: {}", last_line(&added.stderr)));
        }
        source_of_core()?;
    }
    if linker().is_err() {
        install_linker()?;
    }
    Ok(())
}

/// The source that `core` is built from for the target of the probes.
fn source_of_core() -> Result<PathBuf, Missing> {
    let core = sysroot()?.join("lib/rustlib/src/rust/library/core/src/lib.rs");
    if core.is_file() { Ok(core) } else { Err("the component rust-src is missing".to_owned()) }
}

/// The linker, if it runs with the LLVM of this toolchain.
fn linker() -> Result<PathBuf, Missing> {
    let path = cargo_home()?.join("bin/bpf-linker");
    let version =
        output(Command::new(&path).arg("--version")).map_err(|_| "bpf-linker is missing".to_owned())?;
    let text = String::from_utf8_lossy(&version.stdout).into_owned();
    if !version.status.success() {
        return Err("bpf-linker does not start: the toolchain that it was linked with is gone".to_owned());
    }
    if text.split_whitespace().nth(1) != Some(LINKER_VERSION) {
        return Err(format!("bpf-linker is {}; needed: {LINKER_VERSION}", text.trim()));
    }
    let library = llvm()?;
    if fs::read_link(libraries()?.join("libLLVM.so")).is_ok_and(|linked| linked == library) {
        Ok(path)
    } else {
        Err("bpf-linker is linked with the LLVM of another toolchain".to_owned())
    }
}

/// Builds the linker against the LLVM that rustc has: no other is needed, and the two cannot differ.
fn install_linker() -> Result<(), Missing> {
    let (library, libraries) = (llvm()?, libraries()?);
    // This directory is where the linker finds its library when it runs, so it stays.
    let linked = |error: std::io::Error| format!("{}: {error}", libraries.display());
    fs::create_dir_all(&libraries).map_err(linked)?;
    for name in [Some("libLLVM.so".as_ref()), library.file_name()].into_iter().flatten() {
        let link = libraries.join(name);
        let _ = fs::remove_file(&link);
        symlink(&library, link).map_err(linked)?;
    }
    let prefix = libraries.parent().unwrap_or(&libraries);
    println!("setup: installing bpf-linker {LINKER_VERSION}: one to a few minutes, once");
    let mut cargo = process::command(process::cargo_program());
    cargo
        .args(["install", "bpf-linker", "--version", LINKER_VERSION, "--locked", "--force"])
        .args(["--no-default-features", "--features", &format!("llvm-{}", llvm_version()?)])
        .arg("--root")
        .arg(cargo_home()?)
        .env("LLVM_PREFIX", prefix)
        .env("CARGO_TARGET_DIR", process::target_directory().join("bpf-linker"))
        .env_remove("RUSTFLAGS");
    let installed = within(&mut cargo, INSTALL_TIMEOUT);
    // A few hundred megabytes that nobody needs again.
    let _ = fs::remove_dir_all(process::target_directory().join("bpf-linker"));
    installed?;
    linker().map(drop)
}

/// Runs it, with what it prints kept until it fails, and ends it when it takes too long.
fn within(command: &mut Command, timeout: Duration) -> Result<(), Missing> {
    let log = std::env::temp_dir().join(format!("weir-setup-{}.log", std::process::id()));
    let file = fs::File::create(&log).map_err(|error| format!("{}: {error}", log.display()))?;
    let line = process::describe(command);
    let mut child = command
        .stdout(Stdio::null())
        .stderr(file)
        .spawn()
        .map_err(|error| format!("cannot start `{line}`: {error}"))?;
    let deadline = Instant::now() + timeout;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break Ok(status),
            Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(200)),
            Ok(None) => {
                let _ = child.kill();
                let _ = child.wait();
                break Err(format!("`{line}` took longer than {} s", timeout.as_secs()));
            }
            Err(error) => break Err(format!("cannot wait for `{line}`: {error}")),
        }
    };
    let said = fs::read(&log).unwrap_or_default();
    let _ = fs::remove_file(&log);
    match status? {
        status if status.success() => Ok(()),
        status => Err(format!("`{line}` failed ({status}): {}", last_line(&said))),
    }
}

/// Where the linker's LLVM is linked from.
fn libraries() -> Result<PathBuf, Missing> {
    Ok(cargo_home()?.join("lib/weir-bpf-linker/lib"))
}

fn cargo_home() -> Result<PathBuf, Missing> {
    let home = || std::env::var_os("HOME").map(|home| Path::new(&home).join(".cargo"));
    std::env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(home)
        .ok_or_else(|| "neither CARGO_HOME nor HOME is set".to_owned())
}

/// The LLVM of this toolchain.
fn llvm() -> Result<PathBuf, Missing> {
    let directory = sysroot()?.join("lib");
    let entries = fs::read_dir(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    let mut found = entries.flatten().map(|entry| entry.path()).filter(|path| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("libLLVM.so."))
    });
    found.next().ok_or_else(|| format!("{} has no libLLVM.so", directory.display()))
}

/// Its major version.
fn llvm_version() -> Result<String, Missing> {
    let text = rustc(&["-vV"])?;
    let line = text.lines().find_map(|line| line.strip_prefix("LLVM version: "));
    line.and_then(|version| version.split('.').next().map(str::to_owned))
        .ok_or_else(|| "rustc does not tell its LLVM version".to_owned())
}

fn sysroot() -> Result<PathBuf, Missing> {
    Ok(PathBuf::from(rustc(&["--print", "sysroot"])?.trim()))
}

fn rustc(arguments: &[&str]) -> Result<String, Missing> {
    let told = output(process::command("rustc").args(arguments))?;
    Ok(String::from_utf8_lossy(&told.stdout).into_owned())
}

fn output(command: &mut Command) -> Result<Output, Missing> {
    let line = process::describe(command);
    command.output().map_err(|error| format!("cannot start `{line}`: {error}"))
}

fn last_line(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    text.lines().rev().map(str::trim).find(|line| !line.is_empty()).unwrap_or("no output").to_owned()
}
