//! `weir send`: standard input to an exchange.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use clap::Args;

use super::RunDirArgs;
use super::client::{self, IndexOf};
use super::emitting::{self, Emission, EmitArgs};
use super::framing::Framing;
use crate::exit::{Exit, Problem};

/// Write records from standard input to an exchange.
///
/// Ends when every consumer's daemon has everything, or with the reason why it cannot. When its own daemon ends, it ends
/// too, with exit code 4: what it has read from its input cannot be read again, so it does not attach to the next one.
///
/// Exit codes: 0 all was sent, 1 it failed, 2 the command line is wrong, 3 all was sent, but a consumer had died and the
/// rest was sent without it, 4 no daemon answers.
#[derive(Args, Debug)]
pub(super) struct SendArgs {
    #[command(flatten)]
    daemon: RunDirArgs,
    /// Name of the exchange.
    #[arg(long, value_name = "NAME", value_parser = client::exchange)]
    exchange: String,
    /// Which of how many producers this is, from 0.
    #[arg(long, value_name = "I/P", default_value = "0/1")]
    producer: IndexOf,
    #[command(flatten)]
    emit: EmitArgs,
    /// Name of the task that the daemon lists; all instances of a task have the same.
    #[arg(long, value_name = "NAME", default_value = "send", value_parser = client::exchange)]
    task: String,
    /// How records are told apart: a line each, or each behind its length as a little-endian u32.
    #[arg(long, value_enum, default_value_t)]
    framing: Framing,
    /// Show no progress on the terminal.
    #[arg(long, short)]
    quiet: bool,
}

pub(super) fn run(arguments: &SendArgs) -> Result<Exit, Problem> {
    let IndexOf { index, count } = arguments.producer;
    let emit = &arguments.emit;
    let consumers = emit.check(count).map_err(|problem| problem.fix_or("weir send --help"))?;
    let run_dir = &arguments.daemon.run_dir;
    let problem = |e: weir_client::Error| client::problem(run_dir, &e);
    let attached = client::attach(run_dir)?;
    let task = attached.task(&arguments.task).map_err(problem)?;
    let mut partition = task
        .partition(&arguments.exchange, index, count, consumers, emit.strategy(), emit.options())
        .map_err(problem)?;
    let emission = Emission {
        arguments: emit,
        framing: arguments.framing,
        name: "the input",
        run_dir,
        quiet: arguments.quiet,
    };
    emission.run(&standard_input()?, &attached, &mut partition)?;
    Ok(emitting::end(partition.finish().map_err(problem)?, consumers))
}

/// Standard input, to be read without a buffer of its own.
fn standard_input() -> Result<OwnedFd, Problem> {
    io::stdin().as_fd().try_clone_to_owned().map_err(|e| {
        Problem::new(Exit::Failed, "cannot read standard input").found(e.to_string()).needed("an open file")
    })
}
