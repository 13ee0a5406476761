//! A line on the terminal that says how far a command is. Nothing is shown when standard error is no terminal.

use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time between two updates of the line.
const INTERVAL: Duration = Duration::from_millis(500);

/// Records and bytes so far. One thread counts, another shows.
#[derive(Default)]
struct Counts {
    records: AtomicU64,
    bytes: AtomicU64,
}

/// Counts records, and shows the count if somebody can see it.
pub(super) struct Progress {
    counts: Arc<Counts>,
    shown: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Progress {
    /// Starts to show progress as `sent` or `received`, unless `is_quiet` or there is no terminal.
    pub(super) fn start(verb: &'static str, is_quiet: bool) -> Self {
        let counts = Arc::new(Counts::default());
        let is_visible = !is_quiet && io::stderr().is_terminal();
        let shown = is_visible.then(|| show(verb, Arc::clone(&counts))).flatten();
        Self { counts, shown }
    }

    /// Counts one record.
    pub(super) fn count(&self, bytes: usize) {
        // Only this thread writes, so a load and a store are enough and cost less than an atomic addition.
        let add = |counter: &AtomicU64, n: u64| {
            counter.store(counter.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
        };
        add(&self.counts.records, 1);
        add(&self.counts.bytes, bytes as u64);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.shown.take() {
            drop(stop);
            // The thread has nothing that could fail; if it did, only the line is missing.
            let _ = thread.join();
        }
    }
}

fn show(verb: &'static str, counts: Arc<Counts>) -> Option<(Sender<()>, JoinHandle<()>)> {
    let (stop, stopped) = mpsc::channel::<()>();
    let body = move || {
        let start = Instant::now();
        let mut last = (start, 0);
        while stopped.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
            let (now, bytes) = (Instant::now(), counts.bytes.load(Ordering::Relaxed));
            write_line(verb, &counts, now - last.0, bytes.saturating_sub(last.1), "");
            last = (now, bytes);
        }
        write_line(verb, &counts, start.elapsed(), counts.bytes.load(Ordering::Relaxed), "\n");
    };
    let thread = std::thread::Builder::new().name("progress".to_owned()).spawn(body).ok()?;
    Some((stop, thread))
}

fn write_line(verb: &str, counts: &Counts, time: Duration, bytes_in_time: u64, end: &str) {
    let megabytes = |bytes: u64| bytes as f64 / 1e6;
    let rate = megabytes(bytes_in_time) / time.as_secs_f64().max(1e-3);
    let records = counts.records.load(Ordering::Relaxed);
    let total = megabytes(counts.bytes.load(Ordering::Relaxed));
    // A line that cannot be shown is no reason to stop.
    let _ = write!(io::stderr(), "\r{verb} {records} records, {total:.1} MB, {rate:.1} MB/s\x1b[K{end}");
}
