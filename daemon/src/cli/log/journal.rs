//! The log as the journal of systemd takes it: one datagram per entry, one field per line of it.
//!
//! `tracing-journald` sends from the thread that logs, which waits when the journal does. Here entries go the way of all
//! lines of the log: through a queue, to a thread that may wait.

use std::fmt;
use std::fmt::Write as _;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Where the journal takes entries.
pub(super) const SOCKET: &str = "/run/systemd/journal/socket";

/// Longest name of a field, in bytes: that of the journal.
const NAME_BYTES_MAX: usize = 64;

/// Begins the names of fields that are Weir's own.
const PREFIX: &str = "WEIR_";

/// Whether what is written to `stream` goes to the journal: `JOURNAL_STREAM` names device and number of its file.
pub(super) fn is_journal(stream: impl AsFd, variable: Option<&str>) -> bool {
    let named = variable.and_then(|text| {
        let (device, number) = text.split_once(':')?;
        Some((device.parse::<u64>().ok()?, number.parse::<u64>().ok()?))
    });
    let found = rustix::fs::fstat(stream).map(|found| (found.st_dev, found.st_ino));
    named.is_some() && named == found.ok()
}

/// Sends each entry that is written to it.
pub(super) struct Journal {
    socket: UnixDatagram,
    path: PathBuf,
}

impl Journal {
    /// Finds the journal.
    ///
    /// # Errors
    /// Nobody takes entries at `path`.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        UnixDatagram::unbound()?.connect(path)?;
        // Not connected: the journal may be started anew.
        Ok(Self { socket: UnixDatagram::unbound()?, path: path.to_owned() })
    }
}

impl io::Write for Journal {
    fn write(&mut self, entry: &[u8]) -> io::Result<usize> {
        self.socket.send_to(entry, &self.path)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// An entry with this text and nothing else.
pub(super) fn entry(level: Level, message: &str) -> String {
    let mut entry = String::new();
    // Writing to a string cannot fail.
    let _ = begin(&mut entry, level, message);
    entry
}

fn begin(to: &mut impl fmt::Write, level: Level, message: &str) -> fmt::Result {
    // Those of syslog.
    let priority = match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    };
    writeln!(to, "PRIORITY={priority}\nSYSLOG_IDENTIFIER=weir\nMESSAGE={}", one_line(message))
}

/// Line ends would end a field, and what follows would be one that nobody meant.
fn one_line(text: &str) -> String {
    text.replace(['\n', '\r', '\0'], " ")
}

/// Makes entries of events. The text has the fields too, since that is what is shown.
pub(super) struct Entries;

impl<S, N> FormatEvent<S, N> for Entries
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let metadata = event.metadata();
        begin(&mut writer, *metadata.level(), &format!("{}{}", fields.message, fields.shown))?;
        writeln!(writer, "{PREFIX}TARGET={}", metadata.target())?;
        if let (Some(file), Some(line)) = (metadata.file(), metadata.line()) {
            writeln!(writer, "CODE_FILE={file}\nCODE_LINE={line}")?;
        }
        writer.write_str(&fields.lines)
    }
}

#[derive(Default)]
struct Fields {
    message: String,
    /// As people read them.
    shown: String,
    /// One field of the journal per line.
    lines: String,
}

impl Fields {
    fn add(&mut self, field: &Field, value: &str, shown: &str) {
        if field.name() == "message" {
            value.clone_into(&mut self.message);
            return;
        }
        // Writing to a string cannot fail.
        let _ = write!(self.shown, " {}={shown}", field.name());
        let _ = writeln!(self.lines, "{}={}", name(field.name()), one_line(value));
    }
}

/// The name of a field as the journal takes it.
fn name(field: &str) -> String {
    let upper = field.bytes().map(|byte| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => char::from(byte.to_ascii_uppercase()),
        _ => '_',
    });
    PREFIX.chars().chain(upper).take(NAME_BYTES_MAX).collect()
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value, &format!("{value:?}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let text = format!("{value:?}");
        self.add(field, &text, &text);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_stream_is_the_journals_if_the_variable_names_its_file() {
        let file = tempfile::tempfile().unwrap();
        let found = rustix::fs::fstat(&file).unwrap();
        let named = |device: u64, number: u64| is_journal(&file, Some(&format!("{device}:{number}")));
        assert!(named(found.st_dev, found.st_ino));
        assert!(!named(found.st_dev, found.st_ino + 1) && !named(found.st_dev + 1, found.st_ino));
        for variable in [None, Some(""), Some("1"), Some("a:b")] {
            assert!(!is_journal(&file, variable), "{variable:?}");
        }
    }

    #[test]
    fn an_entry_is_a_datagram_and_a_journal_that_is_started_anew_is_found_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        Journal::open(&path).err().unwrap();
        let first = UnixDatagram::bind(&path).unwrap();
        let mut journal = Journal::open(&path).unwrap();
        let text = entry(Level::WARN, "two\nlines");
        let received = |from: &UnixDatagram| {
            let mut bytes = [0; 256];
            let length = from.recv(&mut bytes).unwrap();
            String::from_utf8(bytes[..length].to_vec()).unwrap()
        };
        journal.write_all(text.as_bytes()).unwrap();
        assert_eq!(received(&first), "PRIORITY=4\nSYSLOG_IDENTIFIER=weir\nMESSAGE=two lines\n");
        drop(first);
        std::fs::remove_file(&path).unwrap();
        journal.write_all(text.as_bytes()).unwrap_err();
        let second = UnixDatagram::bind(&path).unwrap();
        journal.write_all(text.as_bytes()).unwrap();
        assert_eq!(received(&second), text);
    }

    #[test]
    fn a_field_has_a_name_that_the_journal_takes() {
        assert_eq!(name("peer_shard"), "WEIR_PEER_SHARD");
        assert_eq!(name("a.b-c"), "WEIR_A_B_C");
        assert_eq!(name(&"x".repeat(100)).len(), NAME_BYTES_MAX);
    }
}
