//! The command line: one file per verb.
//!
//! Rules that every verb keeps: data goes to standard output and the rest to standard error; a failure is one line
//! `weir: error: what happened; found X; needed Y; fix: Z`; with `--output json` it is a JSON object on standard output
//! as well; a closed pipe ends a command quietly; exit codes are those of [`Exit`].

mod bottleneck;
mod channels;
mod client;
mod completions;
mod config;
mod daemon;
mod doctor;
mod emitting;
mod framing;
mod hugepages;
mod log;
mod man;
mod output;
mod pipe;
mod plan;
mod probes;
mod progress;
mod recv;
mod reload;
mod send;
mod shards;
mod stalls;
mod status;
mod systemd;
mod tail;
mod top;
mod usage;
mod wiring;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use crate::config::DEFAULT_RUN_DIR;
use crate::control::snapshot::ErrorReport;
use crate::exit::{Exit, Problem};

/// Moves records between processes on two nodes under credit-based flow control.
#[derive(Debug, Parser)]
#[command(name = "weir", version, about, after_help = EXIT_CODES, disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

/// Those of [`Exit`], in the order of their numbers.
const EXIT_CODES: &str = "Exit codes: 0 done, 1 failed, 2 wrong usage, 3 done but something is degraded, 4 no daemon answers, \
                          78 the configuration is wrong.";

#[derive(Debug, Subcommand)]
enum Verb {
    /// Run the daemon of this node.
    Daemon(daemon::DaemonArgs),
    /// Write records from standard input to an exchange.
    Send(send::SendArgs),
    /// Read the records of an exchange to standard output.
    Recv(recv::RecvArgs),
    /// Run a command on the records of one exchange and send what it writes to another.
    Pipe(pipe::PipeArgs),
    /// Show the state of every subsystem of a daemon.
    Status(status::StatusArgs),
    /// Show the channels of a daemon.
    Channels(channels::ChannelsArgs),
    /// Show where the shards of a daemon run, where their memory is, and how much they do.
    Shards(shards::ShardsArgs),
    /// Show who waits on a daemon's node, for how long, and why.
    Stalls(stalls::StallsArgs),
    /// Show the job graph of what is attached to a daemon and those that it is linked with.
    Plan(plan::PlanArgs),
    /// Show which task or exchange holds a pipeline up, why, and what helps.
    Bottleneck(bottleneck::BottleneckArgs),
    /// Look at tasks, channels, links and stalls again and again.
    Top(top::TopArgs),
    /// Show whether the kernel probes run on this machine, hook by hook.
    Probes(probes::ProbesArgs),
    /// Look at this machine as a daemon would, and say what to change.
    Doctor(doctor::DoctorArgs),
    /// Reserve hugepages on each NUMA node.
    Hugepages(hugepages::HugepagesArgs),
    /// Check or print a configuration.
    Config(config::ConfigArgs),
    /// Print what a shell needs to complete commands and options of this program.
    Completions(completions::CompletionsArgs),
    /// Print a page of the manual, or write all of them.
    Man(man::ManArgs),
}

/// The daemon that a command talks to.
#[derive(Args, Clone, Debug)]
struct RunDirArgs {
    /// Run directory of the daemon.
    #[arg(long, value_name = "DIR", default_value = DEFAULT_RUN_DIR)]
    run_dir: PathBuf,
}

/// Runs the command that the process was started with.
#[must_use]
pub fn run() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let wants_json = output::wants_json(&arguments);
    let ended = match Cli::try_parse_from(&arguments) {
        Ok(Cli { verb }) => run_verb(verb),
        Err(error) => usage::handle(&error, &arguments),
    };
    match ended {
        Ok(exit) => exit.into(),
        Err(problem) => {
            output::say(&format!("error: {problem}"));
            if wants_json {
                // Nothing is left to do if even this cannot be written.
                let _ = output::print_json(&ErrorReport::new(problem.clone()));
            }
            problem.exit.into()
        }
    }
}

fn run_verb(verb: Verb) -> Result<Exit, Problem> {
    match verb {
        Verb::Daemon(arguments) => daemon::start(arguments),
        Verb::Send(arguments) => send::run(&arguments),
        Verb::Recv(arguments) => recv::run(&arguments),
        Verb::Pipe(arguments) => pipe::run(&arguments),
        Verb::Status(arguments) => status::run(&arguments),
        Verb::Channels(arguments) => channels::run(&arguments),
        Verb::Shards(arguments) => shards::run(&arguments),
        Verb::Stalls(arguments) => stalls::run(&arguments),
        Verb::Plan(arguments) => plan::run(&arguments),
        Verb::Bottleneck(arguments) => bottleneck::run(&arguments),
        Verb::Top(arguments) => top::run(&arguments),
        Verb::Probes(arguments) => probes::run(&arguments),
        Verb::Doctor(arguments) => doctor::run(&arguments),
        Verb::Hugepages(arguments) => hugepages::run(&arguments),
        Verb::Config(arguments) => config::run(&arguments),
        Verb::Completions(arguments) => completions::run(&arguments),
        Verb::Man(arguments) => man::run(&arguments),
    }
}
