//! `weir pipe`: the records of an exchange through a command's standard input and output to another exchange.
//!
//! Two threads, so that neither end waits for the other: one writes what the gate has to the command, this one emits what
//! the command writes. Pressure goes through the command as through any pipeline: one that may not write stops reading.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, TryRecvError};

use clap::Args;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use weir_client::{Client, Debloat, Gate, GateOptions, Partition};

use super::RunDirArgs;
use super::client::{self, IndexOf};
use super::emitting::{self, Emission, EmitArgs};
use super::framing::{Framing, RecordOutput};
use super::recv::{Stop, copy};
use super::tail::Tail;
use crate::exit::{Exit, Problem};

/// How long a command may take to end after SIGTERM before it gets SIGKILL.
const KILL_AFTER: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };

/// Run a command on the records of one exchange and send what it writes to another.
///
/// The command reads records on its standard input and writes records to its standard output; both are framed alike. Its
/// standard error goes where that of this command goes. The command need not write as many records as it reads.
///
/// When the input ends, the command's standard input is closed; when it then ends with exit code 0, the output ends. If it
/// ends otherwise, this command fails, with the exit code and the last line of standard error in its message, and the
/// consumers of the output are told that their producer is gone. If the input or the output fails, the command gets
/// SIGTERM, and SIGKILL 5 s later. A command that closes its input early is not asked for a reason: the producers of the
/// input are told that this consumer is gone, and the output goes on to its end.
///
/// Exit codes: 0 all was read and sent, 1 it failed, 2 the command line is wrong, 4 no daemon answers.
#[derive(Args, Debug)]
pub(super) struct PipeArgs {
    #[command(flatten)]
    daemon: RunDirArgs,
    /// Name of the exchange to read.
    #[arg(long, value_name = "NAME", value_parser = client::exchange)]
    from: String,
    /// Which of how many consumers of it this is, from 0.
    #[arg(long, value_name = "J/C", default_value = "0/1")]
    consumer: IndexOf,
    /// Name of the exchange to write.
    #[arg(long, value_name = "NAME", value_parser = client::exchange)]
    to: String,
    /// Which of how many producers of it this is, from 0.
    #[arg(long, value_name = "I/P", default_value = "0/1")]
    producer: IndexOf,
    #[command(flatten)]
    emit: EmitArgs,
    /// Name of the task that the daemon lists; all instances of a task have the same.
    #[arg(long, value_name = "NAME", default_value = "pipe", value_parser = client::exchange)]
    task: String,
    /// Keep no more in flight to this consumer than it reads in this time, so that what the command reads is not older; on: in the
    /// time that the daemon is configured with; off: as much as there is room for. Not given: as the daemon is configured.
    #[arg(long, value_name = "TIME|on|off", value_parser = client::debloat)]
    debloat: Option<Debloat>,
    /// How records are told apart: a line each, or each behind its length as a little-endian u32.
    #[arg(long, value_enum, default_value_t)]
    framing: Framing,
    /// Show no progress on the terminal.
    #[arg(long, short)]
    quiet: bool,
    /// The command and its arguments, behind `--`.
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<std::ffi::OsString>,
}

pub(super) fn run(arguments: &PipeArgs) -> Result<Exit, Problem> {
    let emit = &arguments.emit;
    let IndexOf { index, count } = arguments.producer;
    let consumers = emit.check(count).map_err(|problem| problem.fix_or("weir pipe --help"))?;
    let run_dir = &arguments.daemon.run_dir;
    let problem = |e: weir_client::Error| client::problem(run_dir, &e);
    let attached = client::attach(run_dir)?;
    let task = attached.task(&arguments.task).map_err(problem)?;
    let mut partition = task
        .partition(&arguments.to, index, count, consumers, emit.strategy(), emit.options())
        .map_err(problem)?;
    let IndexOf { index, count } = arguments.consumer;
    let debloat = arguments.debloat.clone().unwrap_or_default();
    let options = GateOptions { debloat, ..GateOptions::default() };
    let gate = task.gate(&arguments.from, index, count, options).map_err(problem)?;
    let mut running = Running::start(arguments, gate)?;
    let emission = Emission {
        arguments: emit,
        framing: arguments.framing,
        name: "the command's output",
        run_dir,
        quiet: arguments.quiet,
    };
    if let Err(failure) = emission.run(&running.output, &attached, &mut partition) {
        running.process.stop();
        return Err(running.input_failure(run_dir).unwrap_or(failure));
    }
    let status = running.wait(&attached, &mut partition, run_dir)?;
    if let Some(failure) = running.input_failure(run_dir) {
        return Err(failure);
    }
    if !status.success() {
        return Err(running.failure(arguments, status));
    }
    Ok(emitting::end(partition.finish().map_err(problem)?, consumers))
}

/// A handle of the command's process that stays good whoever waits for it.
struct Process(OwnedFd);

impl Process {
    /// The process of a child that nobody has waited for.
    fn of(child: &Child) -> io::Result<Self> {
        let pid = Pid::from_child(child);
        Ok(Self(pidfd_open(pid, PidfdFlags::empty())?))
    }

    fn try_clone(&self) -> io::Result<Self> {
        self.0.try_clone().map(Self)
    }

    /// Whether it has ended, after at most `timeout`.
    fn has_ended(&self, timeout: &Timespec) -> bool {
        matches!(poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(timeout)), Ok(ready) if ready > 0)
    }

    /// SIGTERM, and SIGKILL if that does not end it. Of one that has ended already, nothing becomes.
    fn stop(&self) {
        let _ = pidfd_send_signal(&self.0, Signal::TERM);
        if !self.has_ended(&KILL_AFTER) {
            let _ = pidfd_send_signal(&self.0, Signal::KILL);
        }
    }
}

/// The command, the thread that feeds it, and the one that passes on what it says.
struct Running {
    child: Child,
    process: Process,
    output: OwnedFd,
    errors: Tail,
    /// How feeding ended; nothing while it goes on.
    fed: Receiver<Result<(), Stop>>,
}

impl Running {
    fn start(arguments: &PipeArgs, gate: Gate) -> Result<Self, Problem> {
        let (program, rest) = arguments.command.split_first().map_or((None, &[][..]), |(p, r)| (Some(p), r));
        let program = program.cloned().unwrap_or_default();
        let cannot = |e: io::Error| {
            Problem::new(Exit::Failed, format!("cannot run {}", program.display()))
                .found(e.to_string())
                .needed("a program that can be run")
                .fix("the words behind --")
        };
        let mut child = Command::new(&program)
            .args(rest)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(cannot)?;
        let process = Process::of(&child).map_err(cannot)?;
        let (Some(input), Some(output), Some(errors)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            return Err(cannot(io::Error::other("no pipes")));
        };
        let feeder = Feeder {
            gate,
            output: RecordOutput::new(File::from(OwnedFd::from(input)), arguments.framing),
            process: process.try_clone().map_err(cannot)?,
        };
        let (tell, fed) = mpsc::channel();
        std::thread::Builder::new()
            .name("input".to_owned())
            .spawn(move || feeder.run(&tell))
            .map_err(cannot)?;
        let errors = Tail::pass_on(OwnedFd::from(errors)).map_err(cannot)?;
        Ok(Self { child, process, output: OwnedFd::from(output), errors, fed })
    }

    /// Waits until the command ends, which may take longer than its output.
    fn wait(
        &mut self,
        attached: &Client,
        partition: &mut Partition,
        run_dir: &std::path::Path,
    ) -> Result<ExitStatus, Problem> {
        const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 250_000_000 };
        let failed = |e: weir_client::Error| client::problem(run_dir, &e);
        while !self.process.has_ended(&LOOK) {
            if let Err(failure) = partition.is_available().and_then(|_| attached.check()).map_err(failed) {
                self.process.stop();
                return Err(failure);
            }
        }
        self.child
            .wait()
            .map_err(|e| Problem::new(Exit::Failed, "cannot wait for the command").found(e.to_string()))
    }

    /// The reason why the input could not go on, if that is so.
    fn input_failure(&self, run_dir: &std::path::Path) -> Option<Problem> {
        match self.fed.try_recv() {
            Ok(Err(Stop::Received(e))) => Some(client::problem(run_dir, &e)),
            // It reads no more, which is its own affair.
            Ok(Ok(()) | Err(Stop::Written(_))) | Err(TryRecvError::Empty | TryRecvError::Disconnected) => {
                None
            }
        }
    }

    /// The command's own failure.
    fn failure(&self, arguments: &PipeArgs, status: ExitStatus) -> Problem {
        let name = arguments.command.first().map(|program| program.display().to_string()).unwrap_or_default();
        let problem = Problem::new(Exit::Failed, format!("the command {name} failed"))
            .needed("exit code 0")
            .fix("the command; the consumers of its output are told that their producer is gone");
        match self.errors.last_line() {
            Some(line) => problem.found(format!("{status}, and on its standard error: {line}")),
            None => problem.found(format!("{status}")),
        }
    }
}

/// Writes what the gate has to the command.
struct Feeder {
    gate: Gate,
    output: RecordOutput<File>,
    process: Process,
}

impl Feeder {
    fn run(self, tell: &mpsc::Sender<Result<(), Stop>>) {
        let Self { mut gate, mut output, process } = self;
        let ended = copy(&mut gate, &mut output, None, None);
        let is_cut_short = matches!(ended, Err(Stop::Received(_)));
        // Told before the command can notice: what it writes of an input that was cut short is not the whole output.
        let _ = tell.send(ended);
        if is_cut_short {
            process.stop();
        }
        // Here the command sees the end of its input, and the daemon that nobody reads this gate.
    }
}
