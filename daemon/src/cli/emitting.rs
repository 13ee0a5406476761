//! What `weir send` and `weir pipe` share: arguments that say how records leave, and a stream emitted record by record.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use clap::Args;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use weir_client::{BufferTimeout, Client, ConsumerDeath, Finished, Partition, PartitionOptions};
use weir_flow::exchange::Strategy;

use super::client;
use super::framing::{self, Framing, FramingError, RecordInput};
use super::output;
use super::progress::Progress;
use crate::exit::{Exit, Problem};

/// How often a command without input looks whether its partition and its daemon still work: 250 ms.
const IDLE_CHECK: Timespec = Timespec { tv_sec: 0, tv_nsec: 250_000_000 };

/// How records leave.
#[derive(Args, Debug)]
pub(super) struct EmitArgs {
    /// How many consumers the exchange has. Only `forward` needs none: as many as producers.
    #[arg(long, value_name = "C", value_parser = client::parallelism)]
    consumers: Option<u32>,
    /// Which consumer gets a record. `forward`: the one with the producer's index. `rebalance`: all in turn. `hash`:
    /// the one that its key decides. `broadcast`: each. `rescale`: those of the producer's own share, in turn.
    #[arg(long, value_name = "STRATEGY", default_value = "rebalance", value_parser = strategy)]
    strategy: Strategy,
    /// With `hash`: the key is this field of the record, counted from 1; fields are divided by white space. Not given:
    /// the whole record is the key.
    #[arg(long, value_name = "N", value_parser = field_number)]
    key_field: Option<usize>,
    /// With `hash`: spread the records of each key over so many consumers instead of one. Each of them then has a part
    /// of the key's records, and what they make of those parts must be merged.
    #[arg(long, value_name = "N", value_parser = client::parallelism)]
    salt: Option<u32>,
    /// With `rebalance` and `rescale`: strictly in turn. A consumer that does not keep up then holds all others back,
    /// where otherwise it is left out until it does.
    #[arg(long)]
    no_adaptive: bool,
    /// Longest time that a record waits for others before it is sent: a duration, 0 for not at all, or off.
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = client::buffer_timeout)]
    buffer_timeout: BufferTimeout,
    /// What to do when a consumer dies: fail, or go on with the others, which only `rebalance` and `rescale` can. Records
    /// that were on their way to the dead one are lost then, and counted.
    #[arg(long, value_name = "fail|continue", default_value = "fail", value_parser = consumer_death)]
    on_consumer_death: ConsumerDeath,
}

fn strategy(text: &str) -> Result<Strategy, String> {
    // A custom selector is code of an application; a command has none.
    let known = text.parse().ok().filter(|strategy| *strategy != Strategy::Custom);
    known.ok_or_else(|| "forward, rebalance, hash, broadcast or rescale".to_owned())
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

impl EmitArgs {
    /// Refuses what contradicts itself. The number of consumers: given, or for `forward` as many as `producers`.
    pub(super) fn check(&self, producers: u32) -> Result<u32, Problem> {
        if self.key_field.is_some() && self.strategy != Strategy::Hash {
            return Err(Problem::new(Exit::Usage, "--key-field without a key")
                .found(format!("--strategy {}", self.strategy))
                .needed("--strategy hash")
                .fix("leave out --key-field, or add --strategy hash"));
        }
        if self.salt.is_some() && self.strategy != Strategy::Hash {
            return Err(Problem::new(Exit::Usage, "--salt without a key")
                .found(format!("--strategy {}", self.strategy))
                .needed("--strategy hash")
                .fix("leave out --salt, or add --strategy hash"));
        }
        if let (Some(salt), Some(consumers)) = (self.salt, self.consumers)
            && salt > consumers
        {
            return Err(Problem::new(Exit::Usage, "--salt spreads each key over some of the consumers")
                .found(format!("--salt {salt} and --consumers {consumers}"))
                .needed("at most as many as consumers")
                .fix(format!("--salt {consumers}, or more --consumers")));
        }
        if self.on_consumer_death == ConsumerDeath::ContinueWithout
            && !self.strategy.has_interchangeable_consumers()
        {
            let what = "--on-consumer-death continue without consumers that can stand in";
            return Err(Problem::new(Exit::Usage, what)
                .found(format!("--strategy {}", self.strategy))
                .needed("--strategy rebalance or rescale")
                .fix("leave out --on-consumer-death, or add --strategy rebalance"));
        }
        match self.consumers {
            Some(consumers) if self.strategy == Strategy::Forward && consumers != producers => {
                Err(Problem::new(Exit::Usage, "forward connects each producer with one consumer")
                    .found(format!("{producers} producers and {consumers} consumers"))
                    .needed("as many consumers as producers, or a strategy that connects any numbers")
                    .fix(format!(
                        "--consumers {producers}, or --strategy rescale, rebalance, hash or broadcast"
                    )))
            }
            Some(consumers) => Ok(consumers),
            None if self.strategy == Strategy::Forward => Ok(producers),
            None => Err(Problem::new(Exit::Usage, "an argument is missing").needed("--consumers <C>")),
        }
    }

    /// The ship strategy.
    pub(super) fn strategy(&self) -> Strategy {
        self.strategy
    }

    /// How the partition is to be made.
    pub(super) fn options(&self) -> PartitionOptions {
        let (buffer_timeout, on_consumer_death) = (self.buffer_timeout, self.on_consumer_death);
        let (salt, adaptive) = (self.salt, !self.no_adaptive);
        PartitionOptions { buffer_timeout, on_consumer_death, salt, adaptive, ..PartitionOptions::default() }
    }
}

/// A stream of records on its way to a partition.
pub(super) struct Emission<'a> {
    /// How records leave.
    pub(super) arguments: &'a EmitArgs,
    /// How they are told apart.
    pub(super) framing: Framing,
    /// What the stream is called in messages, such as `the input`.
    pub(super) name: &'static str,
    /// Run directory of the daemon, for messages.
    pub(super) run_dir: &'a Path,
    /// Whether to show no progress.
    pub(super) quiet: bool,
}

impl Emission<'_> {
    /// Emits every record of `stream` until it ends. While nothing is there to read, it looks every 250 ms whether
    /// partition and daemon still work.
    ///
    /// # Errors
    /// The stream cannot be read or has a record that is none, or the partition or the daemon failed.
    pub(super) fn run(
        &self,
        stream: &OwnedFd,
        attached: &Client,
        partition: &mut Partition,
    ) -> Result<(), Problem> {
        let broken = |e| self.stream_problem(e);
        let failed = |e: weir_client::Error| client::problem(self.run_dir, &e);
        let reader = stream.try_clone().map_err(|e| broken(FramingError::Io(e)))?;
        let record_bytes_max = attached.record_bytes_max() as usize;
        let mut records = RecordInput::new(File::from(reader), self.framing, record_bytes_max);
        let progress = Progress::start("sent", self.quiet);
        let mut number = 0_u64;
        loop {
            while let Some(record) = records.next_read().map_err(broken)? {
                number += 1;
                let emitted = if self.arguments.strategy == Strategy::Hash {
                    partition.emit_keyed(self.key(record, number)?, record)
                } else {
                    partition.emit(record)
                };
                emitted.map_err(failed)?;
                progress.count(record.len());
            }
            if records.is_at_end() {
                return Ok(());
            }
            while !is_readable(stream).map_err(broken)? {
                // Nothing to emit: this is how a partition that has failed meanwhile, and the daemon's end, are noticed.
                partition.is_available().map_err(failed)?;
                attached.check().map_err(failed)?;
            }
            records.fill().map_err(broken)?;
        }
    }

    fn key<'r>(&self, record: &'r [u8], number: u64) -> Result<&'r [u8], Problem> {
        let Some(field) = self.arguments.key_field else { return Ok(record) };
        framing::field(record, field).ok_or_else(|| {
            Problem::new(Exit::Failed, format!("record {number} of {} has no key", self.name))
                .found(format!("fewer than {field} fields"))
                .needed(format!("field {field}, divided by white space"))
                .fix("--key-field, or leave it out to make the whole record the key")
        })
    }

    fn stream_problem(&self, error: FramingError) -> Problem {
        let problem = |what: String| Problem::new(Exit::Failed, what);
        match error {
            FramingError::TooLong { record, found, max } => problem(format!("record {record} of {} is too long", self.name))
                .found(found.map_or_else(|| format!("more than {max} bytes"), |found| format!("{found} bytes")))
                .needed(format!("at most {max} bytes"))
                .fix("record.bytes_max in the configuration of the daemons, or --framing if it is framed otherwise"),
            FramingError::Truncated { record, found, needed } => problem(format!("{} ends inside record {record}", self.name))
                .found(format!("{found} bytes of it, its length included"))
                .needed(format!("{needed} bytes"))
                .fix("the program that writes it, or --framing lines"),
            FramingError::Io(e) => {
                problem(format!("cannot read {}", self.name)).found(e.to_string()).needed("readable bytes")
            }
        }
    }
}

/// Waits for something to read, for at most [`IDLE_CHECK`]. A stream that has ended or is broken counts as readable.
fn is_readable(stream: &OwnedFd) -> Result<bool, FramingError> {
    match poll(&mut [PollFd::new(stream, PollFlags::IN)], Some(&IDLE_CHECK)) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Ok(false),
        Err(errno) => Err(FramingError::Io(io::Error::from(errno))),
    }
}

/// Says on standard error what was lost with consumers that died.
pub(super) fn end(finished: Finished, consumers: u32) -> Exit {
    let Finished { lost_consumers, lost_records } = finished;
    if lost_consumers == 0 {
        return Exit::Ok;
    }
    output::say(&format!(
        "warning: {lost_consumers} of {consumers} consumers died; at most {lost_records} records that were sent to them \
         were not read; all others have arrived"
    ));
    Exit::Degraded
}
