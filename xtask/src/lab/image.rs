//! The file system of the guest: the weir program with its libraries, a busybox, and the script that drives them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::archive::Archive;
use super::setup::said;

/// Where drivers lie.
const DRIVERS: &str = "/drivers";

/// Directories that the script mounts something on or writes to.
const DIRECTORIES: &[&str] = &["/proc", "/sys", "/dev", "/run", "/tmp", DRIVERS];

/// The console of the first program: without it, what fails early says nothing.
const CONSOLE: (u32, u32) = (5, 1);

/// The whole file system, as the kernel unpacks it: `script` is what the guest does.
///
/// # Errors
/// A file that cannot be read, or a library that this machine does not have.
pub(super) fn build(
    weir: &Path,
    busybox: &Path,
    script: &[u8],
    drivers: &[PathBuf],
) -> Result<Vec<u8>, String> {
    let mut archive = Archive::default();
    for directory in DIRECTORIES {
        archive.directory(directory);
    }
    archive.device("/dev/console", CONSOLE);
    archive.file("/bin/busybox", &read(busybox)?, true);
    archive.link("/bin/sh", "busybox");
    archive.file("/bin/weir", &read(weir)?, true);
    for library in libraries(&linked(weir)?)? {
        archive.file(&library, &read(Path::new(&library))?, true);
    }
    for driver in drivers {
        let name = driver.file_name().unwrap_or_default().to_string_lossy();
        archive.file(&format!("{DRIVERS}/{name}"), &read(driver)?, false);
    }
    archive.file("/init", script, true);
    Ok(archive.finish())
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// What the loader of this machine finds for a program.
fn linked(program: &Path) -> Result<String, String> {
    said(Command::new("ldd").arg(program).env("LC_ALL", "C"))
}

/// The paths of the libraries and of the loader.
fn libraries(told: &str) -> Result<Vec<String>, String> {
    let mut found = Vec::new();
    for line in told.lines().map(str::trim) {
        let (name, place) = line.split_once(" => ").unwrap_or(("", line));
        if place.starts_with("not found") {
            return Err(format!("the library {name} is missing on this machine"));
        }
        let path = place.split(' ').next().unwrap_or_default();
        // What the kernel maps by itself has no path.
        if path.starts_with('/') {
            found.push(path.to_owned());
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_those_that_have_a_path() {
        let told = "\tlinux-vdso.so.1 (0x00007ffd)\n\
             \tlibgcc_s.so.1 => /lib/x86_64-linux-gnu/libgcc_s.so.1 (0x00007fec)\n\
             \tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007fed)\n\
             \t/lib64/ld-linux-x86-64.so.2 (0x00007fee)\n";
        assert_eq!(
            libraries(told).unwrap(),
            [
                "/lib/x86_64-linux-gnu/libgcc_s.so.1",
                "/lib/x86_64-linux-gnu/libc.so.6",
                "/lib64/ld-linux-x86-64.so.2",
            ]
        );
        assert_eq!(libraries("\tstatically linked\n"), Ok(Vec::new()));
        let missing = libraries("\tlibelf.so.1 => not found\n").unwrap_err();
        assert!(missing.contains("libelf.so.1"), "{missing}");
    }
}
