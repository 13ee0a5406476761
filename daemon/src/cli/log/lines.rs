//! The queue of the log, and the thread that writes what is in it.
//!
//! Whoever logs never waits for whoever reads: a terminal that is held, a pipe that nobody empties or a full disk must not
//! stop a node. Lines that find the queue full are counted, and the count is written when lines can be written again; a
//! line that cannot be written is lost, and nothing else.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender, TrySendError};
use std::time::{Duration, Instant};

use tracing::Level;
use tracing_subscriber::fmt::MakeWriter;

use super::journal;
use super::limit::{Limiter, Suppressed, WINDOW};
use crate::privileges::{PROBES, Privileges, RINGS};

/// Lines that may wait to be written.
const QUEUED_LINES_MAX: usize = 1024;

/// How often windows of the limiter are looked at.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// What a line looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// For people.
    Text,
    /// One object.
    Json,
    /// An entry of the journal.
    Journal,
}

impl Form {
    /// A line of the log's own, with a number of it for programs.
    fn line(self, level: Level, text: &str, name: &str, number: u64) -> String {
        match self {
            Self::Text => format!("{level:>5} {text}\n"),
            Self::Json => {
                let fields = serde_json::json!({"level": level.as_str(), "message": text, name: number});
                format!("{fields}\n")
            }
            Self::Journal => {
                format!("{}WEIR_{}={number}\n", journal::entry(level, text), name.to_uppercase())
            }
        }
    }
}

/// What the writing thread is handed.
enum Entry {
    Line(Vec<u8>),
    /// Answered when everything before it was written.
    Mark(Sender<()>),
}

/// The way to the writing thread for who ends the log.
#[derive(Clone)]
pub(super) struct Queue(SyncSender<Entry>);

impl Queue {
    /// Waits until what was logged so far is written, until `deadline`.
    pub(super) fn flush(&self, deadline: Instant) {
        let (written, is_written) = mpsc::channel();
        let mut mark = Entry::Mark(written);
        loop {
            match self.0.try_send(mark) {
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
pub(super) struct Lines {
    entries: SyncSender<Entry>,
    lost: Arc<AtomicU64>,
}

impl Lines {
    /// Starts the thread that writes to `output`, and tells there what `limiter` has kept back.
    pub(super) fn start(
        output: impl Write + Send + 'static,
        form: Form,
        limiter: Limiter,
    ) -> io::Result<(Self, Queue)> {
        let (entries, queue) = mpsc::sync_channel(QUEUED_LINES_MAX);
        let lost = Arc::new(AtomicU64::new(0));
        let mut writer = Writer { output, form, limiter, lost: Arc::clone(&lost) };
        std::thread::Builder::new().name("log".to_owned()).spawn(move || {
            // It is there before the others give theirs up, and needs none.
            let mut privileges = Privileges::default();
            privileges.give_up(PROBES);
            privileges.give_up(RINGS);
            writer.run(&queue);
        })?;
        Ok((Self { entries: entries.clone(), lost }, Queue(entries)))
    }
}

/// What the thread has.
struct Writer<W> {
    output: W,
    form: Form,
    limiter: Limiter,
    lost: Arc<AtomicU64>,
}

impl<W: Write> Writer<W> {
    /// Writes what comes until nobody can send any more.
    fn run(&mut self, queue: &Receiver<Entry>) {
        let mut looked = Instant::now();
        loop {
            match queue.recv_timeout(LOOK_INTERVAL) {
                // A line that cannot be written cannot be told about either.
                Ok(Entry::Line(line)) => drop(self.output.write_all(&line)),
                Ok(Entry::Mark(written)) => {
                    self.tell(true);
                    // Nobody waits for it any more, perhaps.
                    let _ = written.send(());
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            // Told behind what was queued: a reader sees where lines are missing.
            let missing = self.lost.swap(0, Ordering::Relaxed);
            if missing > 0 {
                let text = format!("{missing} lines of the log are missing here: nobody took them in time");
                self.say(Level::WARN, &text, "missing", missing);
            }
            if looked.elapsed() >= LOOK_INTERVAL {
                looked = Instant::now();
                self.tell(false);
            }
        }
    }

    /// Tells what the limiter has kept back: of all places, or of those whose window is over.
    fn tell(&mut self, at_once: bool) {
        for Suppressed { level, count, message } in self.limiter.take(Instant::now(), at_once) {
            let seconds = WINDOW.as_secs();
            let text = format!("{count} more like this within {seconds} s are not written: {message}");
            self.say(level, &text, "suppressed", count);
        }
    }

    fn say(&mut self, level: Level, text: &str, name: &str, number: u64) {
        drop(self.output.write_all(self.form.line(level, text, name, number).as_bytes()));
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

    /// For what does not come.
    fn soon() -> Instant {
        Instant::now() + Duration::from_millis(500)
    }

    /// For what comes; nobody waits so long.
    fn patient() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    /// As the subscriber does it: one write for each line.
    fn log_line(mut lines: &Lines, text: &str) {
        lines.write_all(format!("{text}\n").as_bytes()).expect("never fails");
    }

    #[test]
    fn who_logs_never_waits_and_what_is_missing_is_counted_where_it_is_missing() {
        let page = Page::default();
        let (lines, log) = Lines::start(page.clone(), Form::Text, Limiter::default()).unwrap();
        let held = page.held.lock().unwrap();
        let sent = 3 * QUEUED_LINES_MAX;
        for nth in 0..sent {
            log_line(&lines, &format!("line {nth}"));
        }
        // The thread stands still with one line in hand; nobody waits for it here either.
        log.flush(soon());
        assert!(page.lines().is_empty());
        drop(held);
        log.flush(patient());
        log_line(&lines, "after");
        log.flush(patient());
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
        let (lines, log) = Lines::start(page.clone(), Form::Text, Limiter::default()).unwrap();
        for nth in 0..10 {
            log_line(&lines, &format!("line {nth}"));
            log.flush(patient());
        }
        assert!(page.lines().is_empty());
    }

    #[test]
    fn a_line_of_the_logs_own_is_one_of_its_form() {
        let line = |form: Form| form.line(Level::WARN, "3 more \"like\" this", "suppressed", 3);
        assert_eq!(line(Form::Text), " WARN 3 more \"like\" this\n");
        let json: serde_json::Value = serde_json::from_str(&line(Form::Json)).unwrap();
        assert_eq!((json["level"].as_str(), json["suppressed"].as_u64()), (Some("WARN"), Some(3)));
        let entry = line(Form::Journal);
        assert!(entry.starts_with("PRIORITY=4\n") && entry.ends_with("\nWEIR_SUPPRESSED=3\n"), "{entry}");
    }
}
