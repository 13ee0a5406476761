//! The archive that a kernel unpacks as its first file system: cpio in its `newc` form.

use std::collections::BTreeSet;
use std::path::{Component, Path};

/// Bits of the mode that say what an entry is.
const DIRECTORY: u32 = 0o040_000;
const FILE: u32 = 0o100_000;
const LINK: u32 = 0o120_000;
const CHARACTER_DEVICE: u32 = 0o020_000;

/// Headers and contents begin at multiples of this many bytes.
const ALIGNMENT: usize = 4;

/// An archive in the making. Directories come by themselves, before what lies in them.
#[derive(Default)]
pub(super) struct Archive {
    bytes: Vec<u8>,
    directories: BTreeSet<String>,
    entries: u32,
}

impl Archive {
    /// A file at this path, which all may read, and run if it is to be.
    pub(super) fn file(&mut self, path: &str, content: &[u8], is_program: bool) {
        let mode = FILE | if is_program { 0o755 } else { 0o644 };
        self.add(path, mode, (0, 0), content);
    }

    /// A symbolic link to `target`.
    pub(super) fn link(&mut self, path: &str, target: &str) {
        self.add(path, LINK | 0o777, (0, 0), target.as_bytes());
    }

    /// A character device with its major and minor number.
    pub(super) fn device(&mut self, path: &str, number: (u32, u32)) {
        self.add(path, CHARACTER_DEVICE | 0o600, number, &[]);
    }

    /// A directory, and those that it lies in.
    pub(super) fn directory(&mut self, path: &str) {
        let name = relative(path);
        if name.is_empty() || self.directories.contains(&name) {
            return;
        }
        self.parents(&name);
        self.entry(&name, DIRECTORY | 0o755, (0, 0), &[]);
        self.directories.insert(name);
    }

    /// The whole archive.
    pub(super) fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, (0, 0), &[]);
        self.bytes
    }

    fn add(&mut self, path: &str, mode: u32, device: (u32, u32), content: &[u8]) {
        let name = relative(path);
        self.parents(&name);
        self.entry(&name, mode, device, content);
    }

    fn parents(&mut self, name: &str) {
        if let Some((parent, _)) = name.rsplit_once('/') {
            self.directory(parent);
        }
    }

    fn entry(&mut self, name: &str, mode: u32, (major, minor): (u32, u32), content: &[u8]) {
        self.entries += 1;
        let links = if mode & DIRECTORY == DIRECTORY { 2 } else { 1 };
        let length = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX);
        // Number, mode, owner, group, links, time, length, device that it lies on, device that it is, length of the name,
        // sum.
        let fields = [
            self.entries,
            mode,
            0,
            0,
            links,
            0,
            length(content.len()),
            0,
            0,
            major,
            minor,
            length(name.len() + 1),
            0,
        ];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        let length = self.bytes.len().next_multiple_of(ALIGNMENT);
        self.bytes.resize(length, 0);
    }
}

/// The path without a root and without steps that go nowhere or up.
fn relative(path: &str) -> String {
    let parts = Path::new(path).components().filter_map(|part| match part {
        Component::Normal(name) => name.to_str(),
        _ => None,
    });
    parts.collect::<Vec<_>>().join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Name, mode and content of every entry, read as the kernel reads them.
    fn entries(bytes: &[u8]) -> Vec<(String, u32, Vec<u8>)> {
        let (mut at, mut found) = (0, Vec::new());
        loop {
            assert_eq!((at % 4, &bytes[at..at + 6]), (0, &b"070701"[..]));
            let field = |number: usize| {
                let from = at + 6 + number * 8;
                u32::from_str_radix(std::str::from_utf8(&bytes[from..from + 8]).unwrap(), 16).unwrap()
            };
            let (mode, length, name_length) = (field(1), field(6) as usize, field(11) as usize);
            let name_at = at + 110;
            let name = std::str::from_utf8(&bytes[name_at..name_at + name_length - 1]).unwrap().to_owned();
            assert_eq!(bytes[name_at + name_length - 1], 0);
            let content_at = (name_at + name_length).next_multiple_of(4);
            if name == "TRAILER!!!" {
                assert_eq!(content_at, bytes.len());
                return found;
            }
            found.push((name, mode, bytes[content_at..content_at + length].to_vec()));
            at = (content_at + length).next_multiple_of(4);
        }
    }

    #[test]
    fn every_entry_is_read_back_and_directories_come_first_and_once() {
        let mut archive = Archive::default();
        archive.file("/bin/program", b"12345", true);
        archive.link("/bin/sh", "program");
        archive.file("/lib/deep/library", b"", false);
        archive.device("/dev/console", (5, 1));
        archive.directory("/lib");
        let found = entries(&archive.finish());
        let all: Vec<(&str, u32, &[u8])> =
            found.iter().map(|(name, mode, content)| (name.as_str(), *mode, content.as_slice())).collect();
        assert_eq!(
            all,
            [
                ("bin", 0o040_755, &b""[..]),
                ("bin/program", 0o100_755, b"12345"),
                ("bin/sh", 0o120_777, b"program"),
                ("lib", 0o040_755, b""),
                ("lib/deep", 0o040_755, b""),
                ("lib/deep/library", 0o100_644, b""),
                ("dev", 0o040_755, b""),
                ("dev/console", 0o020_600, b""),
            ]
        );
    }

    #[test]
    fn a_path_cannot_leave_the_archive() {
        assert_eq!(relative("/../a/./b"), "a/b");
    }
}
