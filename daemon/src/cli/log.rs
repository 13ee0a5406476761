//! The log of the daemon: lines to standard error, from a thread of its own.
//!
//! Whoever logs never waits for whoever reads: a terminal that is held, a pipe that nobody empties or a full disk must not
//! stop a node. Lines that find the queue full are counted, and the count is written when lines can be written again; a
//! line that cannot be written is lost, and nothing else.

use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender, SyncSender, TrySendError};
use std::time::{Duration, Instant};

use tracing::level_filters::LevelFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Registry, reload};

use super::output;
use crate::config::{LogConfig, LogFormat, LogLevel};

/// Lines that may wait to be written.
const QUEUED_LINES_MAX: usize = 1024;

/// Longest wait for the last lines when the daemon ends.
const LAST_LINES_TIMEOUT: Duration = Duration::from_millis(500);

/// What the writing thread is handed.
enum Entry {
    Line(Vec<u8>),
    /// Answered when everything before it was written.
    Mark(Sender<()>),
}

/// The log while it is written to. It lives as long as the daemon.
pub(super) struct Log {
    entries: SyncSender<Entry>,
    level: Option<Level>,
}

/// The least severe level that is written, while the log is.
#[derive(Clone)]
pub(super) struct Level(reload::Handle<LevelFilter, Registry>);

impl Level {
    /// Changes it from now on.
    pub(super) fn set(&self, level: LogLevel) {
        // The log lives as long as the process, so that there is one.
        if let Err(error) = self.0.reload(filter(level)) {
            tracing::warn!(%error, "the level of the log stays as it is");
        }
    }
}

fn filter(level: LogLevel) -> LevelFilter {
    match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    }
}

impl Log {
    /// Sends what is logged in this process to standard error from now on.
    pub(super) fn start(options: &LogConfig) -> Self {
        let (lines, mut log) = match Lines::start(io::stderr(), options.format) {
            Ok(started) => started,
            Err(e) => {
                output::say(&format!("warning: no log: {e}"));
                let (entries, _) = mpsc::sync_channel(1);
                return Self { entries, level: None };
            }
        };
        let (level, handle) = reload::Layer::new(filter(options.level));
        let form = tracing_subscriber::fmt::layer()
            .with_writer(lines)
            .with_target(false)
            .with_ansi(io::stderr().is_terminal())
            .log_internal_errors(false);
        let registry = tracing_subscriber::registry().with(level);
        let started = match options.format {
            LogFormat::Text => registry.with(form).try_init(),
            LogFormat::Json => registry.with(form.json().flatten_event(true)).try_init(),
        };
        match started {
            Ok(()) => log.level = Some(Level(handle)),
            Err(e) => output::say(&format!("warning: no log: {e}")),
        }
        log
    }

    /// What is written, to be changed while it is.
    pub(super) fn level(&self) -> Option<Level> {
        self.level.clone()
    }

    /// Waits until what was logged so far is written, at most half a second.
    pub(super) fn flush(&self) {
        let deadline = Instant::now() + LAST_LINES_TIMEOUT;
        let (written, is_written) = mpsc::channel();
        let mut mark = Entry::Mark(written);
        loop {
            match self.entries.try_send(mark) {
                Ok(()) => break,
                Err(TrySendError::Disconnected(_)) => return,
                Err(TrySendError::Full(_)) if Instant::now() >= deadline => return,
                Err(TrySendError::Full(entry)) => mark = entry,
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        // Not answered in time: the reader stands still, and the daemon ends all the same.
        let _ = is_written.recv_timeout(deadline.saturating_duration_since(Instant::now()));
    }
}

/// Takes lines and never waits.
struct Lines {
    entries: SyncSender<Entry>,
    lost: Arc<AtomicU64>,
}

impl Lines {
    /// Starts the thread that writes to `output`.
    fn start(output: impl Write + Send + 'static, format: LogFormat) -> io::Result<(Self, Log)> {
        let (entries, queue) = mpsc::sync_channel(QUEUED_LINES_MAX);
        let lost = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&lost);
        std::thread::Builder::new()
            .name("log".to_owned())
            .spawn(move || write(&queue, &counted, format, output))?;
        Ok((Self { entries: entries.clone(), lost }, Log { entries, level: None }))
    }
}

/// Writes what comes until nobody can send any more.
fn write(queue: &Receiver<Entry>, lost: &AtomicU64, format: LogFormat, mut output: impl Write) {
    for entry in queue {
        match entry {
            // A line that cannot be written cannot be told about either.
            Entry::Line(line) => drop(output.write_all(&line)),
            // Nobody waits for it any more, perhaps.
            Entry::Mark(written) => drop(written.send(())),
        }
        // Told behind what was queued: a reader sees where lines are missing.
        let missing = lost.swap(0, Ordering::Relaxed);
        if missing > 0 {
            let text = format!("{missing} lines of the log are missing here: nobody took them in time");
            let _ = match format {
                LogFormat::Text => writeln!(output, " WARN {text}"),
                LogFormat::Json => writeln!(output, "{{\"level\":\"WARN\",\"message\":\"{text}\"}}"),
            };
        }
    }
}

impl Write for &Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if let Err(TrySendError::Full(_)) = self.entries.try_send(Entry::Line(line.to_vec())) {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = &'a Self;

    fn make_writer(&'a self) -> Self::Writer {
        self
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// An output that fails, or waits until it may go on, or keeps what is written.
    #[derive(Clone, Default)]
    struct Page {
        text: Arc<Mutex<Vec<u8>>>,
        held: Arc<Mutex<()>>,
        fails: bool,
    }

    impl Write for Page {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            drop(self.held.lock().unwrap());
            if self.fails {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.text.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Page {
        fn lines(&self) -> Vec<String> {
            String::from_utf8(self.text.lock().unwrap().clone()).unwrap().lines().map(str::to_owned).collect()
        }
    }

    /// As the subscriber does it: one write for each line.
    fn log_line(mut lines: &Lines, text: &str) {
        lines.write_all(format!("{text}\n").as_bytes()).expect("never fails");
    }

    #[test]
    fn who_logs_never_waits_and_what_is_missing_is_counted_where_it_is_missing() {
        let page = Page::default();
        let (lines, log) = Lines::start(page.clone(), LogFormat::Text).unwrap();
        let held = page.held.lock().unwrap();
        let sent = 3 * QUEUED_LINES_MAX;
        for nth in 0..sent {
            log_line(&lines, &format!("line {nth}"));
        }
        // The thread stands still with one line in hand; nobody waits for it here either.
        log.flush();
        assert!(page.lines().is_empty());
        drop(held);
        log.flush();
        log_line(&lines, "after");
        log.flush();
        let found = page.lines();
        let missing = found.iter().position(|line| line.contains("lines of the log are missing")).unwrap();
        let told: usize = found[missing].split(' ').find_map(|word| word.parse().ok()).unwrap();
        assert_eq!(found.len() - 2 + told, sent, "every line is there or counted");
        assert!((QUEUED_LINES_MAX..=QUEUED_LINES_MAX + 2).contains(&(found.len() - 2)), "{}", found.len());
        assert_eq!((found[0].as_str(), found.last().map(String::as_str)), ("line 0", Some("after")));
    }

    #[test]
    fn an_output_that_fails_costs_its_lines_and_nothing_else() {
        let page = Page { fails: true, ..Page::default() };
        let (lines, log) = Lines::start(page.clone(), LogFormat::Text).unwrap();
        for nth in 0..10 {
            log_line(&lines, &format!("line {nth}"));
            log.flush();
        }
        assert!(page.lines().is_empty());
    }
}
