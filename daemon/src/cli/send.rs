//! `weir send`: standard input to an exchange.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use clap::Args;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::time::Duration;

use weir_client::{
    BufferTimeout, Client, ConnectOptions, ConsumerDeath, Finished, Partition, PartitionOptions,
};
use weir_flow::exchange::Strategy;

use super::RunDirArgs;
use super::client::{self, IndexOf};
use super::framing::{self, Framing, FramingError, RecordInput};
use super::progress::Progress;
use crate::exit::{Exit, Problem};

/// How often a command without input looks whether its partition and its daemon still work: 250 ms.
const IDLE_CHECK: Timespec = Timespec { tv_sec: 0, tv_nsec: 250_000_000 };

/// Write records from standard input to an exchange.
///
/// Ends when every consumer's daemon has everything, or with the reason why it cannot. When its own daemon ends, it ends
/// too, with exit code 4: what it has read from its input cannot be read again, so it does not attach to the next one.
///
/// Exit codes beside the usual ones: 3 if all was sent, but a consumer had died and the rest was sent without it.
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
    /// How many consumers the exchange has. Only `forward` needs none: as many as producers.
    #[arg(long, value_name = "C", value_parser = client::parallelism)]
    consumers: Option<u32>,
    /// Which consumer gets a record. `forward`: the one with the producer's index. `rebalance`: all in turn. `hash`:
    /// the one that its key decides.
    #[arg(long, value_name = "STRATEGY", default_value = "rebalance", value_parser = strategy)]
    strategy: Strategy,
    /// With `hash`: the key is this field of the record, counted from 1; fields are divided by white space. Not given:
    /// the whole record is the key.
    #[arg(long, value_name = "N", value_parser = field_number)]
    key_field: Option<usize>,
    /// Longest time that a record waits for others before it is sent: a duration, 0 for not at all, or off.
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = client::buffer_timeout)]
    buffer_timeout: BufferTimeout,
    /// What to do when a consumer dies: fail, or go on with the others, which only `rebalance` can. Records that were
    /// on their way to the dead one are lost then, and counted.
    #[arg(long, value_name = "fail|continue", default_value = "fail", value_parser = consumer_death)]
    on_consumer_death: ConsumerDeath,
    /// How records are told apart: a line each, or each behind its length as a little-endian u32.
    #[arg(long, value_enum, default_value_t)]
    framing: Framing,
    /// Show no progress on the terminal.
    #[arg(long, short)]
    quiet: bool,
}

fn strategy(text: &str) -> Result<Strategy, String> {
    text.parse().map_err(|_| "forward, rebalance or hash".to_owned())
}

fn consumer_death(text: &str) -> Result<ConsumerDeath, String> {
    match text {
        "fail" => Ok(ConsumerDeath::Fail),
        "continue" => Ok(ConsumerDeath::ContinueWithout),
        _ => Err("fail or continue".to_owned()),
    }
}

fn field_number(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|n| *n >= 1).ok_or_else(|| "a whole number, at least 1".to_owned())
}

pub(super) fn run(arguments: &SendArgs) -> Result<Exit, Problem> {
    let consumers = consumers(arguments)?;
    if arguments.key_field.is_some() && arguments.strategy != Strategy::Hash {
        return Err(Problem::new(Exit::Usage, "--key-field without a key")
            .found(format!("--strategy {}", arguments.strategy))
            .needed("--strategy hash")
            .fix("leave out --key-field, or add --strategy hash"));
    }
    if arguments.on_consumer_death == ConsumerDeath::ContinueWithout
        && arguments.strategy != Strategy::Rebalance
    {
        return Err(Problem::new(
            Exit::Usage,
            "--on-consumer-death continue without consumers that can stand in",
        )
        .found(format!("--strategy {}", arguments.strategy))
        .needed("--strategy rebalance")
        .fix("leave out --on-consumer-death, or add --strategy rebalance"));
    }
    let run_dir = &arguments.daemon.run_dir;
    let problem = |e: weir_client::Error| client::problem(run_dir, &e);
    let options = ConnectOptions { reattach_timeout: Duration::ZERO, ..ConnectOptions::new(run_dir) };
    let attached = Client::connect_with(options).map_err(problem)?;
    let task = attached.task("send").map_err(problem)?;
    let IndexOf { index, count } = arguments.producer;
    let (buffer_timeout, on_consumer_death) = (arguments.buffer_timeout, arguments.on_consumer_death);
    let options = PartitionOptions { buffer_timeout, on_consumer_death, ..PartitionOptions::default() };
    let mut partition = task
        .partition(&arguments.exchange, index, count, consumers, arguments.strategy, options)
        .map_err(problem)?;
    let input = standard_input()?;
    let reader = input.try_clone().map_err(|e| input_problem(FramingError::Io(e)))?;
    let mut records =
        RecordInput::new(File::from(reader), arguments.framing, attached.record_bytes_max() as usize);
    emit_all(arguments, &attached, &mut records, &input, &mut partition)?;
    Ok(end(partition.finish().map_err(problem)?, consumers))
}

/// Says on standard error what was lost.
fn end(finished: Finished, consumers: u32) -> Exit {
    let Finished { lost_consumers, lost_records } = finished;
    if lost_consumers == 0 {
        return Exit::Ok;
    }
    eprintln!(
        "weir: warning: {lost_consumers} of {consumers} consumers died; at most {lost_records} records that were sent \
         to them were not read; all others have arrived"
    );
    Exit::Degraded
}

/// The number of consumers: given, or for `forward` as many as producers.
fn consumers(arguments: &SendArgs) -> Result<u32, Problem> {
    let producers = arguments.producer.count;
    match arguments.consumers {
        Some(consumers) if arguments.strategy == Strategy::Forward && consumers != producers => {
            Err(Problem::new(Exit::Usage, "forward connects each producer with one consumer")
                .found(format!("{producers} producers and {consumers} consumers"))
                .needed("as many consumers as producers")
                .fix(format!("--consumers {producers}, or another --strategy")))
        }
        Some(consumers) => Ok(consumers),
        None if arguments.strategy == Strategy::Forward => Ok(producers),
        None => Err(Problem::new(Exit::Usage, "an argument is missing")
            .needed("--consumers <C>")
            .fix("weir send --help")),
    }
}

/// Standard input, to be read without a buffer of its own.
fn standard_input() -> Result<OwnedFd, Problem> {
    io::stdin().as_fd().try_clone_to_owned().map_err(|e| {
        Problem::new(Exit::Failed, "cannot read standard input").found(e.to_string()).needed("an open file")
    })
}

/// Emits every record of the input.
fn emit_all(
    arguments: &SendArgs,
    attached: &Client,
    records: &mut RecordInput<File>,
    input: &OwnedFd,
    partition: &mut Partition,
) -> Result<(), Problem> {
    let progress = Progress::start("sent", arguments.quiet);
    let failed = |e: weir_client::Error| client::problem(&arguments.daemon.run_dir, &e);
    let is_keyed = arguments.strategy == Strategy::Hash;
    let mut number = 0_u64;
    loop {
        while let Some(record) = records.next_read().map_err(input_problem)? {
            number += 1;
            let emitted = if is_keyed {
                let key = match arguments.key_field {
                    None => record,
                    Some(field) => framing::field(record, field).ok_or_else(|| no_key(number, field))?,
                };
                partition.emit_keyed(key, record)
            } else {
                partition.emit(record)
            };
            emitted.map_err(failed)?;
            progress.count(record.len());
        }
        if records.is_at_end() {
            return Ok(());
        }
        while !is_readable(input)? {
            // Nothing to emit: this is how a partition that has failed meanwhile, and the daemon's end, are noticed.
            partition.is_available().map_err(failed)?;
            attached.check().map_err(failed)?;
        }
        records.fill().map_err(input_problem)?;
    }
}

/// Waits for input, for at most [`IDLE_CHECK`]. An input that has ended or is broken counts as readable.
fn is_readable(input: &OwnedFd) -> Result<bool, Problem> {
    match poll(&mut [PollFd::new(input, PollFlags::IN)], Some(&IDLE_CHECK)) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Ok(false),
        Err(errno) => Err(input_problem(FramingError::Io(errno.into()))),
    }
}

fn no_key(number: u64, field: usize) -> Problem {
    Problem::new(Exit::Failed, format!("record {number} of the input has no key"))
        .found(format!("fewer than {field} fields"))
        .needed(format!("field {field}, divided by white space"))
        .fix("--key-field, or leave it out to make the whole record the key")
}

fn input_problem(error: FramingError) -> Problem {
    let problem = Problem::new(Exit::Failed, error.to_string());
    match error {
        FramingError::TooLong { found, max, .. } => problem
            .found(found.map_or_else(|| format!("more than {max} bytes"), |found| format!("{found} bytes")))
            .needed(format!("at most {max} bytes"))
            .fix("record.bytes_max in the configuration of the daemons, or --framing if the input is framed otherwise"),
        FramingError::Truncated { found, needed, .. } => problem
            .found(format!("{found} bytes of it, its length included"))
            .needed(format!("{needed} bytes"))
            .fix("the program that writes the input, or --framing lines"),
        FramingError::Io(e) => problem.found(e.to_string()).needed("readable input"),
    }
}
