//! Files that the configuration names: opened without waiting, read up to a bound, shown without harm to a terminal.

use std::fmt::Write;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Opens `path` for reading. A pipe or device at the path makes nobody wait: it is opened without blocking, and its
/// metadata tells what it is.
///
/// # Errors
/// It cannot be opened, or not be looked at.
pub(super) fn open(path: &Path) -> io::Result<(File, Metadata)> {
    let flags = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path)?;
    let metadata = file.metadata()?;
    Ok((file, metadata))
}

/// At most `bytes_max` bytes of `file`, and one more if it has more than that.
///
/// # Errors
/// It cannot be read.
pub(super) fn read_bounded(file: File, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// A path as a message shows it: on one line, and without characters that steer a terminal.
pub(super) fn shown_path(path: &Path) -> String {
    let mut shown = String::new();
    for character in path.display().to_string().chars() {
        if character.is_control() {
            // Writing to a string cannot fail.
            let _ = write!(shown, "{}", character.escape_default());
        } else {
            shown.push(character);
        }
    }
    shown
}
