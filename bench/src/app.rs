//! The processes that a workload runs: this program again, told what to do by its arguments and steered by lines on
//! its standard input. They count what they moved; the bench reads the counts at the edges of its window.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

use crate::{blast, latency, pipeline, probe};

/// What a process is to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Role {
    /// Listen on loopback, tell the port as the record count of worker 1, and read what comes.
    BlastReceiver {
        /// Bytes of one read.
        chunk_bytes: usize,
    },
    /// Write to the receiver on this port.
    BlastSender {
        /// Port of the receiver.
        port: u16,
        /// Bytes of one write.
        chunk_bytes: usize,
        /// TCP congestion control, the system's if `None`.
        congestion: Option<String>,
    },
    /// Write records through Weir.
    Producer(pipeline::ProducerOptions),
    /// Read records through Weir.
    Consumer(pipeline::ConsumerOptions),
    /// Send messages that carry the time.
    ProbeSender(probe::SenderOptions),
    /// Read them and say how long they were on their way.
    ProbeReceiver(probe::ReceiverOptions),
    /// Be one end of a measurement of delays.
    Latency(latency::Options),
}

/// What a process has moved so far, in one slot per worker.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Counts {
    /// Payload bytes.
    pub bytes: Vec<u64>,
    /// Records, or reads and writes of a blast.
    pub records: Vec<u64>,
    /// Sum over the payload, so that no reader can be optimised away.
    pub checksum: u64,
    /// Times that were noted since the report before, in nanoseconds: how long messages were on their way, or the
    /// longest pause of each worker.
    pub times_ns: Vec<u64>,
}

impl Counts {
    /// Bytes of all workers.
    #[must_use]
    pub fn bytes_total(&self) -> u64 {
        self.bytes.iter().sum()
    }

    /// Records of all workers.
    #[must_use]
    pub fn records_total(&self) -> u64 {
        self.records.iter().sum()
    }
}

/// Counters of one worker, written by it alone and read at any time.
#[derive(Debug, Default)]
pub struct Counter {
    /// Payload bytes.
    pub bytes: AtomicU64,
    /// Records.
    pub records: AtomicU64,
    /// Sum over the payload.
    pub checksum: AtomicU64,
    /// Longest time between two records since the last report, in nanoseconds, if the worker watches it.
    pub pause_ns: AtomicU64,
    /// Most records that the worker takes in a second; 0: as many as come.
    pub records_per_second: AtomicU64,
    /// Set while this worker is to stand still.
    pub stopped: AtomicBool,
}

/// What the workers of one process share with its control loop.
#[derive(Debug, Default)]
pub struct Board {
    /// One counter per worker.
    pub counters: Vec<Counter>,
    /// Set when the workers are to finish.
    pub ending: AtomicBool,
    /// Set before that: the other end may go from now on.
    pub closing: AtomicBool,
    times_ns: Mutex<Vec<u64>>,
}

impl Board {
    /// A board for this many workers.
    #[must_use]
    pub fn new(workers: usize) -> Arc<Self> {
        Arc::new(Self {
            counters: (0..workers).map(|_| Counter::default()).collect(),
            ending: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            times_ns: Mutex::default(),
        })
    }

    /// Whether the workers are to finish.
    #[must_use]
    pub fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Relaxed)
    }

    /// Whether that the other end has gone is no failure any more.
    #[must_use]
    pub fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Relaxed) || self.is_ending()
    }

    /// Notes a time for the next report.
    pub fn note_time(&self, nanoseconds: u64) {
        self.times_ns.lock().unwrap_or_else(PoisonError::into_inner).push(nanoseconds);
    }

    fn counts(&self) -> Counts {
        let mut times_ns = std::mem::take(&mut *self.times_ns.lock().unwrap_or_else(PoisonError::into_inner));
        let pauses = self.counters.iter().map(|counter| counter.pause_ns.swap(0, Ordering::Relaxed));
        times_ns.extend(pauses.filter(|pause| *pause > 0));
        let read = |field: fn(&Counter) -> &AtomicU64| {
            self.counters.iter().map(|counter| field(counter).load(Ordering::Relaxed)).collect::<Vec<u64>>()
        };
        Counts {
            bytes: read(|counter| &counter.bytes),
            records: read(|counter| &counter.records),
            checksum: read(|counter| &counter.checksum).iter().fold(0, |sum, part| sum.wrapping_add(*part)),
            times_ns,
        }
    }
}

/// The process' side: does what `role` says until its standard input ends.
///
/// # Errors
/// One line: what the role could not do.
pub fn serve(role: Role) -> Result<(), String> {
    let board = match role {
        Role::BlastReceiver { chunk_bytes } => blast::receive(chunk_bytes)?,
        Role::BlastSender { port, chunk_bytes, congestion } => {
            blast::send(port, chunk_bytes, congestion.as_deref())?
        }
        Role::Producer(options) => pipeline::produce(options)?,
        Role::Consumer(options) => pipeline::consume(options)?,
        Role::ProbeSender(options) => probe::send(options)?,
        Role::ProbeReceiver(options) => probe::receive(options)?,
        Role::Latency(options) => latency::serve(options)?,
    };
    obey(&board)
}

/// Reports and steers the workers of `board` as the bench asks for on standard input, until that ends.
///
/// # Errors
/// One line: a command that is none, or a pipe that is broken.
pub fn obey(board: &Board) -> Result<(), String> {
    for line in std::io::stdin().lines() {
        let line = line.map_err(|error| format!("cannot read commands: {error}"))?;
        let mut words = line.split_whitespace();
        let command = words.next();
        let numbers: Vec<usize> = words.map_while(|word| word.parse().ok()).collect();
        match (command, &numbers[..]) {
            (Some("report"), []) => print_line(&board.counts())?,
            (Some("stop"), [worker]) => set_stopped(board, *worker, true),
            (Some("go"), [worker]) => set_stopped(board, *worker, false),
            (Some("pace"), [worker, records_per_second]) => {
                if let Some(counter) = board.counters.get(*worker) {
                    counter.records_per_second.store(*records_per_second as u64, Ordering::Relaxed);
                }
            }
            (Some("close"), []) => board.closing.store(true, Ordering::Relaxed),
            (Some("end"), []) => board.ending.store(true, Ordering::Relaxed),
            _ => return Err(format!("unknown command {line:?}")),
        }
    }
    Ok(())
}

fn set_stopped(board: &Board, worker: usize, stopped: bool) {
    if let Some(counter) = board.counters.get(worker) {
        counter.stopped.store(stopped, Ordering::Relaxed);
    }
}

fn print_line(value: &impl Serialize) -> Result<(), String> {
    let text = serde_json::to_string(value).map_err(|error| format!("cannot write a report: {error}"))?;
    println!("{text}");
    std::io::stdout().flush().map_err(|error| format!("cannot write a report: {error}"))
}

/// How long a process may take to answer, from its start on: one that makes thousands of channels takes seconds until it does.
const ANSWER: Duration = Duration::from_secs(60);

/// The bench's side of one process; it is ended with this.
pub struct App {
    child: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
    patience: Duration,
}

impl App {
    /// Starts this program again with `role`.
    ///
    /// # Errors
    /// One line, when it cannot be started.
    pub fn start(role: &Role) -> Result<Self, String> {
        let program =
            std::env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
        Self::start_program(&program, role)
    }

    /// Starts another program that takes a role and commands as this one does.
    ///
    /// # Errors
    /// One line, when it cannot be started.
    pub fn start_program(program: &Path, role: &impl Serialize) -> Result<Self, String> {
        let role = serde_json::to_string(role).map_err(|error| format!("cannot write a role: {error}"))?;
        let mut child = Command::new(program)
            .args(["app", &role])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("cannot start a workload process: {error}"))?;
        let (Some(commands), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("a workload process has no pipes".to_owned());
        };
        Ok(Self { child, commands, answers: BufReader::new(answers), patience: ANSWER })
    }

    /// Waits no longer than this for an answer of it.
    #[must_use]
    pub fn patient_for(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// The port at which it listens, if its role is one that does.
    ///
    /// # Errors
    /// One line, when it has ended or does not listen.
    pub fn port(&mut self) -> Result<u16, String> {
        let counts = self.report()?;
        let port = counts.records.get(1).and_then(|port| u16::try_from(*port).ok());
        port.filter(|port| *port > 0).ok_or_else(|| "no port".to_owned())
    }

    /// Its process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it has moved so far.
    ///
    /// # Errors
    /// One line, when it has ended, does not answer in time, or answers nonsense.
    pub fn report(&mut self) -> Result<Counts, String> {
        self.command("report")?;
        self.await_answer()?;
        let mut line = String::new();
        let read = self.answers.read_line(&mut line).map_err(|error| format!("no report: {error}"))?;
        if read == 0 {
            return Err("a workload process ended early; its error is above".to_owned());
        }
        serde_json::from_str(&line).map_err(|error| format!("a report is not JSON: {error}"))
    }

    /// Waits until it has written something, or has ended.
    fn await_answer(&self) -> Result<(), String> {
        let problem = |error: rustix::io::Errno| format!("no report: {error}");
        let limit =
            Timespec::try_from(self.patience).map_err(|_| "an endless wait for a report".to_owned())?;
        let mut answer = [PollFd::new(self.answers.get_ref(), PollFlags::IN)];
        match retry_on_intr(|| poll(&mut answer, Some(&limit))).map_err(problem)? {
            0 => Err(format!("a workload process has not answered for {} s", self.patience.as_secs_f64())),
            _ => Ok(()),
        }
    }

    /// Sends one command line.
    ///
    /// # Errors
    /// One line, when it has ended.
    pub fn command(&mut self, line: &str) -> Result<(), String> {
        writeln!(self.commands, "{line}").map_err(|error| format!("a workload process ended early: {error}"))
    }
}

/// Ends processes that are each other's ends. All learn of it before the first one stops, so that none takes it for a failure
/// that another went first.
///
/// # Errors
/// One line, when one had ended before.
pub fn end(mut apps: Vec<App>) -> Result<(), String> {
    for command in ["close", "end"] {
        for app in &mut apps {
            app.command(command)?;
            // Answered when it has taken the command.
            app.report()?;
        }
    }
    Ok(())
}

/// Kills processes that are each other's ends and have no orderly end. All stand still first, so that none sees another go and
/// complains.
pub fn kill(children: &mut [&mut Child]) {
    let signal = |child: &Child, signal| {
        // It fails only when the process has ended.
        let _ = Pid::from_raw(child.id().cast_signed()).map(|pid| kill_process(pid, signal));
    };
    for child in children.iter_mut() {
        // One that has ended and been waited for has no process any more.
        if matches!(child.try_wait(), Ok(None)) {
            signal(child, Signal::STOP);
        }
    }
    for child in children.iter_mut() {
        let _ = child.kill();
    }
    for child in children {
        let _ = child.wait();
    }
}

impl Drop for App {
    fn drop(&mut self) {
        // It has no state worth an orderly end, and may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Writes a shell script that can be started at once. Another process copies it: a file that this one has open for writing
    /// would be inherited for a moment by whatever another thread starts meanwhile, and cannot be executed until that is over.
    pub(crate) fn write_script(path: &Path, text: &str) {
        let draft = path.with_extension("draft");
        std::fs::write(&draft, format!("#!/bin/sh\n{text}")).expect("a script");
        let copied = Command::new("install").args(["-m", "755"]).arg(&draft).arg(path).status();
        assert!(copied.expect("install").success());
    }

    #[test]
    fn all_learn_of_the_end_before_the_first_one_stops() {
        let directory = tempfile::tempdir().expect("a directory");
        let (program, told) = (directory.path().join("process"), directory.path().join("told"));
        let script = "while read line; do\n\
                      case $line in\n\
                      report) echo '{\"bytes\":[],\"records\":[],\"checksum\":0,\"times_ns\":[]}' ;;\n\
                      *) echo \"$line\" >>$(echo $2 | tr -d '\"') ;;\n\
                      esac\n\
                      done\n";
        write_script(&program, script);
        let start = || App::start_program(&program, &told).expect("a process");
        end(vec![start(), start()]).expect("both answer");
        assert_eq!(std::fs::read_to_string(&told).expect("commands"), "close\nclose\nend\nend\n");
    }

    #[test]
    fn none_sees_another_one_killed() {
        let directory = tempfile::tempdir().expect("a directory");
        let seen = directory.path().join("seen");
        let mut first = Command::new("sleep").arg("1000").spawn().expect("sleep");
        let watches = format!("while [ -d /proc/{} ]; do :; done; touch {}", first.id(), seen.display());
        let mut second = Command::new("sh").args(["-c", &watches]).spawn().expect("sh");
        let mut ended = Command::new("true").spawn().expect("true");
        ended.wait().expect("it ends");
        kill(&mut [&mut ended, &mut first, &mut second]);
        assert!(!seen.exists());
        assert!([&mut first, &mut second].into_iter().all(|child| matches!(child.try_wait(), Ok(Some(_)))));
    }

    #[test]
    fn what_is_closing_is_not_ending_yet() {
        let board = Board::new(1);
        assert!(!board.is_closing());
        board.closing.store(true, Ordering::Relaxed);
        assert!(board.is_closing() && !board.is_ending());
    }
}
