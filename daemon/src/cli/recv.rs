//! `weir recv`: the records of an exchange to standard output.

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use clap::Args;
use rustix::event::{PollFd, PollFlags, poll};
use weir_client::{Debloat, Gate, GateOptions, Item, Next};

use super::RunDirArgs;
use super::client::{self, IndexOf};
use super::framing::{Framing, RecordOutput};
use super::output;
use super::progress::Progress;
use crate::exit::{Exit, Problem};

/// Read the records of an exchange to standard output.
///
/// Ends when all its producers have finished, or with the reason why one cannot. Producers may come later than this
/// command, by as much as --wait. When nobody reads its output any more it ends too, and the producers are told that
/// this consumer is gone. When its own daemon ends, it writes what had arrived and ends with exit code 4: it does not
/// attach to the next one, whose producers may begin anew.
///
/// Exit codes: 0 all was read, 1 it failed, 2 the command line is wrong, 4 no daemon answers.
#[derive(Args, Debug)]
pub(super) struct RecvArgs {
    #[command(flatten)]
    daemon: RunDirArgs,
    /// Name of the exchange.
    #[arg(long, value_name = "NAME", value_parser = client::exchange)]
    exchange: String,
    /// Which of how many consumers this is, from 0.
    #[arg(long, value_name = "J/C", default_value = "0/1")]
    consumer: IndexOf,
    /// Name of the task that the daemon lists; all instances of a task have the same.
    #[arg(long, value_name = "NAME", default_value = "recv", value_parser = client::exchange)]
    task: String,
    /// How long to wait for the first producer, as 30s; 0: not at all. Not given: until one comes.
    #[arg(long, value_name = "TIME", value_parser = client::wait)]
    wait: Option<Duration>,
    /// Most records per second. Not given: as many as come.
    #[arg(long, value_name = "N", value_parser = rate)]
    rate: Option<u32>,
    /// Keep no more in flight to this consumer than it reads in this time, so that what it writes is not older; on: in the
    /// time that the daemon is configured with; off: as much as there is room for. Not given: as the daemon is configured.
    #[arg(long, value_name = "TIME|on|off", value_parser = client::debloat)]
    debloat: Option<Debloat>,
    /// How records are told apart: a line each, or each behind its length as a little-endian u32.
    #[arg(long, value_enum, default_value_t)]
    framing: Framing,
    /// Show no progress on the terminal.
    #[arg(long, short)]
    quiet: bool,
}

fn rate(text: &str) -> Result<u32, String> {
    const MAX: u32 = 1_000_000_000;
    text.parse()
        .ok()
        .filter(|n| (1..=MAX).contains(n))
        .ok_or_else(|| format!("a whole number from 1 to {MAX}"))
}

pub(super) fn run(arguments: &RecvArgs) -> Result<Exit, Problem> {
    let run_dir = &arguments.daemon.run_dir;
    let problem = |e: weir_client::Error| client::problem(run_dir, &e);
    let stdout = output::standard_output()?;
    let attached = client::attach(run_dir)?;
    let task = attached.task(&arguments.task).map_err(problem)?;
    watch_reader(&stdout.0);
    let IndexOf { index, count } = arguments.consumer;
    let debloat = arguments.debloat.clone().unwrap_or_default();
    let options = GateOptions { timeout: arguments.wait, debloat, ..GateOptions::default() };
    let mut gate = task.gate(&arguments.exchange, index, count, options).map_err(problem)?;
    let mut output = RecordOutput::new(stdout, arguments.framing);
    // A terminal that shows the records has no place for a progress line.
    let is_shown = io::stdout().is_terminal();
    let progress = Progress::start("received", arguments.quiet || is_shown);
    match copy(&mut gate, &mut output, Some(&progress), arguments.rate.map(Pace::new)) {
        Ok(()) => Ok(Exit::Ok),
        // Nobody reads any more: the gate is dropped, which tells the producers, and nobody has to be told here.
        Err(Stop::Written(e)) if e.kind() == io::ErrorKind::BrokenPipe => Ok(Exit::Ok),
        Err(Stop::Written(e)) => Err(output::write_problem(&e)),
        Err(Stop::Received(e)) => {
            // What arrived before the failure belongs to the output. If that cannot be written, the failure still is
            // what matters.
            let _ = output.flush();
            Err(problem(e))
        }
    }
}

/// Why copying ended early.
pub(super) enum Stop {
    /// The gate failed.
    Received(weir_client::Error),
    /// The output cannot be written.
    Written(io::Error),
}

/// Copies records until the end of data. Output waits for company only while records are there.
pub(super) fn copy<W: Write>(
    gate: &mut Gate,
    output: &mut RecordOutput<W>,
    progress: Option<&Progress>,
    mut pace: Option<Pace>,
) -> Result<(), Stop> {
    loop {
        let is_waiting = match gate.try_next().map_err(Stop::Received)? {
            Next::Item(item) => {
                take(&item, output, progress, pace.as_mut()).map_err(Stop::Written)?;
                false
            }
            Next::Pending => true,
            Next::End => break,
        };
        if is_waiting {
            output.flush().map_err(Stop::Written)?;
            let Some(item) = gate.next().map_err(Stop::Received)? else { break };
            take(&item, output, progress, pace.as_mut()).map_err(Stop::Written)?;
        }
    }
    output.flush().map_err(Stop::Written)
}

/// Adds a record to the output and keeps the rate. Events of applications have no place in a stream of records.
fn take<W: Write>(
    item: &Item<'_>,
    output: &mut RecordOutput<W>,
    progress: Option<&Progress>,
    pace: Option<&mut Pace>,
) -> io::Result<()> {
    let Item::Record(record) = item else { return Ok(()) };
    if let Some(progress) = progress {
        progress.count(record.len());
    }
    output.push(record)?;
    if let Some(wait) = pace.and_then(|pace| pace.take(Instant::now())) {
        output.flush()?;
        std::thread::sleep(wait);
    }
    Ok(())
}

/// Ends the process when the reader of a pipe goes away while no record is on its way: nothing would be written then,
/// and so nothing noticed. The daemon sees the process end and tells the producers.
fn watch_reader(stdout: &File) {
    let Ok(stdout) = stdout.try_clone() else { return };
    let body = move || {
        loop {
            // Errors and hang-ups are reported without being asked for. A file or terminal never has any.
            let mut descriptors = [PollFd::new(&stdout, PollFlags::empty())];
            match poll(&mut descriptors, None) {
                Ok(_) if descriptors[0].revents().contains(PollFlags::ERR) => {
                    std::process::exit(i32::from(Exit::Ok as u8))
                }
                Ok(_) => return,
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => return,
            }
        }
    };
    // Without the thread the process ends at its next write.
    let _ = std::thread::Builder::new().name("stdout".to_owned()).spawn(body);
}

/// Longest time by which records may come early, so that a high rate needs few pauses.
const EARLY: Duration = Duration::from_millis(10);

/// Keeps a rate: says after each record how long to wait. Time in which no record came is not made up for.
pub(super) struct Pace {
    interval_ns: u64,
    /// When the next record is due; none before the first.
    due: Option<Instant>,
}

impl Pace {
    fn new(records_per_second: u32) -> Self {
        Self { interval_ns: 1_000_000_000 / u64::from(records_per_second.max(1)), due: None }
    }

    /// Counts one record at `now`. How long to wait before the next, if that is worth a pause.
    fn take(&mut self, now: Instant) -> Option<Duration> {
        let due = self.due.map_or(now, |due| due.max(now)) + Duration::from_nanos(self.interval_ns);
        self.due = Some(due);
        let early = due.saturating_duration_since(now);
        (early >= EARLY).then_some(early)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Time that `records` at this rate take when each is handled at once, idling `idle` before every `every`th.
    fn time_of(records: u32, rate: u32, every: u32, idle: Duration) -> Duration {
        let start = Instant::now();
        let (mut now, mut pace) = (start, Pace::new(rate));
        for nth in 1..=records {
            if nth.is_multiple_of(every) {
                now += idle;
            }
            if let Some(wait) = pace.take(now) {
                now += wait;
            }
        }
        now - start
    }

    #[test]
    fn a_rate_is_kept_at_both_ends_of_the_scale() {
        let is_about = |found: Duration, wanted: Duration| {
            assert!(found <= wanted && wanted - found <= EARLY, "{found:?} instead of {wanted:?}");
        };
        is_about(time_of(3, 1, u32::MAX, Duration::ZERO), Duration::from_secs(3));
        is_about(time_of(100_000, 100_000, u32::MAX, Duration::ZERO), Duration::from_secs(1));
        is_about(time_of(5_000_000, 10_000_000, u32::MAX, Duration::ZERO), Duration::from_millis(500));
    }

    #[test]
    fn idle_time_is_not_made_up_for() {
        // 2,000 records at 1,000 per second take 2 s; the idle second in the middle comes on top of it.
        let found = time_of(2_000, 1_000, 1_000, Duration::from_millis(500));
        assert!(found >= Duration::from_millis(2_950), "{found:?}");
    }
}
