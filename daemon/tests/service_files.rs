//! The files for systemd, checked by systemd's own tools where they are installed.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn systemd_directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../systemd")
}

/// Runs a tool; none, with a line that says so, if it is not installed.
fn tool(name: &str, arguments: &[&str]) -> Option<Output> {
    match Command::new(name).args(arguments).output() {
        Ok(output) => Some(output),
        Err(e) if e.kind() == ErrorKind::NotFound => {
            println!("not run here: {name} (not installed)");
            None
        }
        Err(e) => panic!("{name}: {e}"),
    }
}

/// Asserts success and silence: an unknown key is only a line on standard error.
fn assert_silent(output: &Output) {
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.is_empty(), "{}: {text}", output.status);
}

/// A root directory with the unit, a program of the right name, and the targets of this system.
fn staged_root() -> tempfile::TempDir {
    let root = tempfile::tempdir().expect("a directory");
    let units = root.path().join("usr/lib/systemd/system");
    fs::create_dir_all(&units).expect("directories");
    fs::create_dir_all(root.path().join("usr/bin")).expect("directories");
    fs::copy(env!("CARGO_BIN_EXE_weir"), root.path().join("usr/bin/weir")).expect("the program");
    fs::copy(systemd_directory().join("weir.service"), units.join("weir.service")).expect("the unit");
    for name in ["basic", "multi-user", "network", "network-online", "shutdown", "sysinit"] {
        fs::write(units.join(format!("{name}.target")), "[Unit]\nDescription=Target\n").expect("a target");
    }
    root
}

#[test]
fn the_unit_is_valid() {
    let root = staged_root();
    let root_flag = format!("--root={}", root.path().display());
    if let Some(output) = tool("systemd-analyze", &["verify", "--man=no", &root_flag, "weir.service"]) {
        assert_silent(&output);
    }
}

#[test]
fn the_unit_exposes_little() {
    let unit = systemd_directory().join("weir.service");
    let unit = unit.to_str().expect("UTF-8");
    // Exposure 3.0 of 10.
    if let Some(output) = tool("systemd-analyze", &["security", "--offline=true", "--threshold=30", unit]) {
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }
}

#[test]
fn user_and_directories_can_be_made() {
    let root = tempfile::tempdir().expect("a directory");
    let etc = root.path().join("etc");
    fs::create_dir(&etc).expect("a directory");
    fs::write(etc.join("passwd"), "root:x:0:0::/root:/bin/sh\nweir:x:990:990::/:/usr/sbin/nologin\n")
        .expect("a file");
    fs::write(etc.join("group"), "root:x:0:\nweir:x:990:\n").expect("a file");
    let root_flag = format!("--root={}", root.path().display());
    let file = |name: &str| systemd_directory().join(name).to_str().expect("UTF-8").to_owned();
    if let Some(output) = tool("systemd-sysusers", &[&root_flag, "--dry-run", &file("sysusers.d/weir.conf")])
    {
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    if !rustix::process::getuid().is_root() {
        eprintln!("skipped: systemd-tmpfiles needs root to give directories away");
        return;
    }
    if let Some(output) = tool("systemd-tmpfiles", &[&root_flag, "--create", &file("tmpfiles.d/weir.conf")]) {
        assert_silent(&output);
        for (directory, owner) in [("run/weir", 990), ("etc/weir", 0)] {
            let metadata = fs::metadata(root.path().join(directory)).expect("the directory");
            assert_eq!(
                (metadata.mode() & 0o7777, metadata.uid(), metadata.gid()),
                (0o750, owner, 990),
                "{directory}"
            );
        }
    }
}
