//! Passes a stream on to standard error and remembers its last line.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Longest part of a line that is remembered, in bytes.
const LINE_BYTES_MAX: usize = 400;

/// Longest wait for the rest of a stream whose writer has ended: another process may hold it open, and only then it takes so
/// long.
const REST_TIMEOUT: Duration = Duration::from_secs(5);

/// A stream that is passed on by a thread of its own.
pub(super) struct Tail {
    last: Arc<Mutex<LastLine>>,
    /// Closed when the stream has ended.
    ended: Receiver<()>,
}

impl Tail {
    /// Starts to pass `stream` on.
    ///
    /// # Errors
    /// No thread can be started.
    pub(super) fn pass_on(stream: OwnedFd) -> io::Result<Self> {
        let last = Arc::new(Mutex::new(LastLine::default()));
        let (ending, ended) = mpsc::channel::<()>();
        let shared = Arc::clone(&last);
        let body = move || {
            let _ending = ending;
            let (mut stream, mut piece) = (File::from(stream), vec![0; 8 << 10]);
            loop {
                let bytes = match stream.read(&mut piece) {
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                    Ok(0) | Err(_) => return,
                    Ok(bytes) => &piece[..bytes],
                };
                // A line that cannot be shown is no reason to let its writer wait.
                let _ = io::stderr().write_all(bytes);
                shared.lock().unwrap_or_else(PoisonError::into_inner).push(bytes);
            }
        };
        std::thread::Builder::new().name("stderr".to_owned()).spawn(body)?;
        Ok(Self { last, ended })
    }

    /// The last line that is not empty, once the stream has ended or nothing comes any more; without control characters.
    pub(super) fn last_line(&self) -> Option<String> {
        // Nothing is ever sent: this waits for the end.
        let _ = self.ended.recv_timeout(REST_TIMEOUT);
        self.last.lock().unwrap_or_else(PoisonError::into_inner).text()
    }
}

/// The last line of a stream that comes in pieces.
#[derive(Debug, Default)]
struct LastLine {
    whole: Vec<u8>,
    begun: Vec<u8>,
}

impl LastLine {
    fn push(&mut self, bytes: &[u8]) {
        for byte in bytes {
            if *byte != b'\n' {
                if self.begun.len() < LINE_BYTES_MAX {
                    self.begun.push(*byte);
                }
            } else if self.begun.is_empty() {
                // An empty line says nothing.
            } else {
                self.whole = std::mem::take(&mut self.begun);
            }
        }
    }

    fn text(&self) -> Option<String> {
        let line = if self.begun.is_empty() { &self.whole } else { &self.begun };
        let text: String =
            String::from_utf8_lossy(line).chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let text = text.trim().to_owned();
        (!text.is_empty()).then_some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_is_found_however_the_bytes_come() {
        for (text, expected) in [
            (&b""[..], None),
            (b"\n\n", None),
            (b"one", Some("one")),
            (b"one\ntwo\n", Some("two")),
            (b"one\ntwo\n\n\n", Some("two")),
            (b"one\ntw", Some("tw")),
            (b"a\x1b[31m\xffb\n", Some("a [31m\u{fffd}b")),
        ] {
            for piece in [1, 2, 100] {
                let mut last = LastLine::default();
                text.chunks(piece).for_each(|bytes| last.push(bytes));
                assert_eq!(last.text().as_deref(), expected, "{text:?} in pieces of {piece}");
            }
        }
        let mut last = LastLine::default();
        last.push(&vec![b'x'; 1 << 20]);
        assert_eq!(last.text().map(|text| text.len()), Some(LINE_BYTES_MAX));
    }
}
