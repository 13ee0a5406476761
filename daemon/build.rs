//! Builds the kernel probes in `ebpf/` and makes them part of the daemon.
//!
//! The object is built by the toolchain that builds the daemon. It needs that toolchain's source of `core` (`rust-src`)
//! and `bpf-linker`, which `cargo xtask setup` installs. Without them the daemon is built without probes, and both this
//! script and the daemon say so; `WEIR_EBPF=require` makes it an error instead, `WEIR_EBPF=skip` leaves them out.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// Name of the object where the daemon includes it from.
const OBJECT: &str = "weir.bpf.o";

/// Variables of the outer cargo that must not reach the inner one, beside those that begin with `CARGO_`.
const OUTER: &[&str] =
    &["RUSTC", "RUSTC_WRAPPER", "RUSTC_WORKSPACE_WRAPPER", "RUSTDOC", "RUSTFLAGS", "RUSTDOCFLAGS"];

/// Variables of it that the inner one needs all the same.
const KEPT: &[&str] = &["CARGO_HOME", "CARGO_NET_OFFLINE", "CARGO_HTTP_CAINFO"];

fn main() {
    let out = PathBuf::from(variable("OUT_DIR"));
    let source = Path::new(&variable("CARGO_MANIFEST_DIR")).join("../ebpf");
    for path in ["src", "Cargo.toml", "Cargo.lock", "abi/src", "abi/Cargo.toml"] {
        rerun_if_changed(&source.join(path));
    }
    for name in ["WEIR_EBPF", "BPF_LINKER"] {
        println!("cargo::rerun-if-env-changed={name}");
    }
    let wish = env::var("WEIR_EBPF").unwrap_or_default();
    let tools = if wish == "skip" { Err("WEIR_EBPF=skip".to_owned()) } else { tools() };
    let missing = match tools {
        Ok(linker) => match build(&source, &out, &linker) {
            Ok(()) => String::new(),
            Err(problem) => fail(&problem),
        },
        Err(reason) if wish == "require" => fail(&format!("WEIR_EBPF=require, but {reason}")),
        Err(reason) => {
            if wish != "skip" {
                println!("cargo::warning=built without kernel probes: {reason}");
            }
            if let Err(error) = fs::write(out.join(OBJECT), []) {
                fail(&format!("cannot write {OBJECT}: {error}"));
            }
            reason
        }
    };
    println!("cargo::rustc-env=WEIR_EBPF_MISSING={missing}");
}

/// Where `bpf-linker` is, if it and the source of `core` are there; else what is missing, and how it is had.
///
/// Whatever decides is watched, so that installing what was missing has its effect, and nothing else starts this again.
fn tools() -> Result<PathBuf, String> {
    if env::var("CARGO_CFG_TARGET_OS").as_deref() != Ok("linux") {
        return Err("the target is not Linux".to_owned());
    }
    let sysroot = sysroot().ok_or("rustc does not tell its sysroot")?;
    if !sysroot.join("lib/rustlib/src/rust/library/core/src/lib.rs").is_file() {
        rerun_if_changed(&sysroot.join("lib/rustlib/components"));
        return Err("the component rust-src is missing (cargo xtask setup)".to_owned());
    }
    let installed = cargo_home().map(|home| home.join("bin"));
    let named = env::var_os("BPF_LINKER").map(PathBuf::from);
    let on_path = env::var_os("PATH").unwrap_or_default();
    let directories = env::split_paths(&on_path).chain(installed.clone());
    let linker = named.or_else(|| directories.map(|dir| dir.join("bpf-linker")).find(|path| path.is_file()));
    let linker = linker.ok_or_else(|| {
        installed.iter().filter(|dir| dir.is_dir()).for_each(|dir| rerun_if_changed(dir));
        "bpf-linker is missing (cargo xtask setup)".to_owned()
    })?;
    rerun_if_changed(&linker);
    // One that was linked with the library of a toolchain that is gone does not start.
    let starts = Command::new(&linker).arg("--version").output().is_ok_and(|output| output.status.success());
    if starts { Ok(linker) } else { Err(format!("{} does not start (cargo xtask setup)", linker.display())) }
}

/// Builds the object into `out`.
fn build(source: &Path, out: &Path, linker: &Path) -> Result<(), String> {
    let endian = if env::var("CARGO_CFG_TARGET_ENDIAN").as_deref() == Ok("big") { "eb" } else { "el" };
    let (target, target_dir) = (format!("bpf{endian}-unknown-none"), out.join("ebpf"));
    let flags = [
        format!("--cfg=bpf_target_arch=\"{}\"", variable("CARGO_CFG_TARGET_ARCH")),
        // The kernel is told the types of maps and programs, which are made from the debug information.
        "-Cdebuginfo=2".to_owned(),
        "-Clink-arg=--btf".to_owned(),
        format!("-Clinker={}", linker.display()),
        // The same object wherever the tree lies.
        format!("--remap-path-prefix={}=ebpf", source.display()),
    ];
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for (name, _) in env::vars_os() {
        if is_outer(&name) {
            cargo.env_remove(name);
        }
    }
    cargo
        .current_dir(source)
        .args(["build", "--locked", "--release", "-Zbuild-std=core", "--target", &target, "--target-dir"])
        .arg(&target_dir)
        // For `-Z` and the two features that the probes use, in this one process.
        .env("RUSTC_BOOTSTRAP", "1")
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"));
    let output = cargo.output().map_err(|error| format!("cannot start cargo: {error}"))?;
    if !output.status.success() {
        return Err(format!("the kernel probes do not build:\n{}", String::from_utf8_lossy(&output.stderr)));
    }
    let object = target_dir.join(target).join("release/weir-ebpf");
    fs::copy(&object, out.join(OBJECT)).map_err(|error| format!("{}: {error}", object.display()))?;
    Ok(())
}

fn is_outer(name: &OsStr) -> bool {
    let Some(name) = name.to_str() else { return false };
    OUTER.contains(&name) || (name.starts_with("CARGO") && !KEPT.contains(&name))
}

fn sysroot() -> Option<PathBuf> {
    let output = Command::new(variable("RUSTC")).args(["--print", "sysroot"]).output().ok()?;
    Some(PathBuf::from(String::from_utf8(output.stdout).ok()?.trim()))
}

fn cargo_home() -> Option<PathBuf> {
    env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cargo")))
}

fn rerun_if_changed(path: &Path) {
    println!("cargo::rerun-if-changed={}", path.display());
}

/// A variable that cargo sets for every build script.
fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| fail(&format!("{name} is not set: this is a build script")))
}

fn fail(problem: &str) -> ! {
    eprintln!("{problem}");
    std::process::exit(1)
}
