//! Reading what the kernel shows as files, within bounds, from a root that tests can put elsewhere.

use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use rustix::fs::OFlags;

use crate::memory::system::ROOT;

/// The most that is read of a file. Those that are read have a few KiB at most.
const TEXT_BYTES_MAX: u64 = 256 << 10;

/// The most entries of a directory that are looked at.
const ENTRIES_MAX: usize = 4096;

/// Why something is not known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unread {
    /// The file.
    path: String,
    why: Why,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Why {
    Absent,
    Denied(String),
    Malformed(String),
}

impl Unread {
    /// Whether it does not exist, so that this kernel has no such thing or does not show it.
    #[must_use]
    pub fn is_absent(&self) -> bool {
        self.why == Why::Absent
    }

    /// What is there and means nothing.
    #[must_use]
    pub fn malformed(path: &str, found: &str) -> Self {
        let found = found.chars().take(80).collect::<String>().escape_debug().to_string();
        Self { path: path.to_owned(), why: Why::Malformed(found) }
    }

    /// What would let it be read; empty if nothing would.
    #[must_use]
    pub fn fix(&self) -> &'static str {
        match self.why {
            Why::Denied(_) => "run weir doctor as root, or as the user of the daemon",
            Why::Absent | Why::Malformed(_) => "",
        }
    }
}

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = &self.path;
        match &self.why {
            Why::Absent => write!(f, "not known: there is no {path}"),
            Why::Denied(error) => write!(f, "not known: cannot read {path}: {error}"),
            Why::Malformed(found) => write!(f, "not known: {path} has {found:?}"),
        }
    }
}

/// Where `/proc`, `/sys` and `/etc` are.
#[derive(Clone, Debug)]
pub struct Root(PathBuf);

impl Default for Root {
    fn default() -> Self {
        Self(PathBuf::from(ROOT))
    }
}

impl Root {
    /// A machine that is written down in this directory.
    #[must_use]
    pub fn at(directory: &Path) -> Self {
        Self(directory.to_owned())
    }

    /// The directory itself.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.0
    }

    /// Where `path`, which begins with `/`, is.
    #[must_use]
    pub fn locate(&self, path: &str) -> PathBuf {
        self.0.join(path.trim_start_matches('/'))
    }

    /// The first bytes of a file, at most `bytes_max`. A pipe or device makes nobody wait, and is not read.
    ///
    /// # Errors
    /// It is not there, or may not be read.
    pub fn bytes(&self, path: &str, bytes_max: u64) -> Result<Vec<u8>, Unread> {
        let unread = |error: io::Error| Unread {
            path: path.to_owned(),
            why: match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Why::Absent,
                _ => Why::Denied(error.to_string()),
            },
        };
        let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
        let file =
            OpenOptions::new().read(true).custom_flags(flags).open(self.locate(path)).map_err(unread)?;
        if !file.metadata().map_err(unread)?.is_file() {
            return Err(Unread::malformed(path, "no file, but a directory, pipe or device"));
        }
        let mut bytes = Vec::new();
        file.take(bytes_max).read_to_end(&mut bytes).map_err(unread)?;
        Ok(bytes)
    }

    /// A file as text, without white space around it.
    ///
    /// # Errors
    /// It is not there, may not be read, or is no text.
    pub fn text(&self, path: &str) -> Result<String, Unread> {
        let bytes = self.bytes(path, TEXT_BYTES_MAX)?;
        match String::from_utf8(bytes) {
            Ok(text) => Ok(text.trim().to_owned()),
            Err(error) => Err(Unread::malformed(path, &String::from_utf8_lossy(error.as_bytes()))),
        }
    }

    /// A file that holds one number.
    ///
    /// # Errors
    /// As [`Root::text`]; or it is no number of this kind.
    pub fn number<T: FromStr>(&self, path: &str) -> Result<T, Unread> {
        let text = self.text(path)?;
        text.parse().map_err(|_| Unread::malformed(path, &text))
    }

    /// Names in a directory, sorted, of at most [`ENTRIES_MAX`] entries; none if it is not there or not to be read.
    #[must_use]
    pub fn names(&self, path: &str) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.locate(path)) else { return Vec::new() };
        let names = entries.take(ENTRIES_MAX).flatten().map(|entry| entry.file_name());
        let mut names: Vec<String> = names.filter_map(|name| name.into_string().ok()).collect();
        names.sort();
        names
    }
}

/// A machine with these files, for tests.
#[cfg(test)]
pub(crate) fn machine(files: &[(&str, &str)]) -> (tempfile::TempDir, Root) {
    let directory = tempfile::tempdir().unwrap();
    let root = Root::at(directory.path());
    for (path, text) in files {
        let path = root.locate(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    (directory, root)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_read_and_everything_else_is_named_with_its_path() {
        let (_directory, root) =
            machine(&[("/proc/sys/a", "7\n"), ("/proc/sys/b", "seven\n"), ("/proc/sys/c/d", "")]);
        assert_eq!(root.number::<u32>("/proc/sys/a"), Ok(7));
        for (path, expected) in [
            ("/proc/sys/b", "not known: /proc/sys/b has \"seven\""),
            ("/proc/sys/none", "not known: there is no /proc/sys/none"),
            ("/proc/sys/c", "not known: /proc/sys/c has \"no file, but a directory, pipe or device\""),
        ] {
            let unread = root.number::<u32>(path).unwrap_err();
            assert_eq!(unread.to_string(), expected);
            assert_eq!(unread.is_absent(), path == "/proc/sys/none");
        }
        assert_eq!(root.names("/proc/sys"), ["a", "b", "c"]);
        assert_eq!(root.names("/sys"), [""; 0]);
    }

    #[test]
    fn no_more_than_the_bound_is_read_and_a_pipe_makes_nobody_wait() {
        let long = "x".repeat(2 << 20);
        let (directory, root) = machine(&[("/proc/long", &long)]);
        assert_eq!(root.bytes("/proc/long", 16).unwrap().len(), 16);
        assert_eq!(root.text("/proc/long").unwrap().len() as u64, TEXT_BYTES_MAX);
        let pipe = directory.path().join("proc/pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0)
            .unwrap();
        assert!(root.text("/proc/pipe").unwrap_err().to_string().contains("pipe"));
    }

    #[test]
    fn what_may_not_be_read_says_who_may() {
        if rustix::process::geteuid().is_root() {
            // Root may read everything but this.
            let (_directory, root) = machine(&[]);
            let unread = Unread { path: "/x".to_owned(), why: Why::Denied("Permission denied".to_owned()) };
            assert_eq!(unread.to_string(), "not known: cannot read /x: Permission denied");
            assert!(unread.fix().contains("as root"));
            assert!(root.text("/x").unwrap_err().is_absent());
            return;
        }
        let (directory, root) = machine(&[("/proc/secret", "1")]);
        let path = directory.path().join("proc/secret");
        fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o000)).unwrap();
        let unread = root.text("/proc/secret").unwrap_err();
        assert!(unread.to_string().starts_with("not known: cannot read /proc/secret"));
        assert!(unread.fix().contains("as root"));
    }
}
