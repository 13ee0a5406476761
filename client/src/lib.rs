//! What an application links to write and read records through Weir.
//!
//! **Owns**: a producer's [`Partition`] and a consumer's [`Gate`], the choice of the consumer for each record, records
//! on segments, the buffer timeout, and the times of tasks. **Must not know**: links, credit, peers. The pure rules
//! (selectors, framing, the pool) are weir-flow's, the shared memory is weir-ipc's; this crate has no `unsafe`.
//!
//! # A producer
//!
//! ```no_run
//! use weir_client::{Client, PartitionOptions, Strategy};
//!
//! fn main() -> Result<(), weir_client::Error> {
//!     let client = Client::connect("/run/weir")?;
//!     let task = client.task("clicks")?;
//!     // Producer 0 of 1, for 4 consumers, each key always to the same one of them.
//!     let mut partition = task.partition("clicks", 0, 1, 4, Strategy::Hash, PartitionOptions::default())?;
//!     for (user, page) in [("ada", "/"), ("grace", "/docs"), ("ada", "/docs")] {
//!         partition.emit_keyed(user.as_bytes(), format!("{user} {page}").as_bytes())?;
//!     }
//!     partition.finish()?;
//!     Ok(())
//! }
//! ```
//!
//! # A consumer
//!
//! ```no_run
//! use weir_client::{Client, GateOptions, Item};
//!
//! fn main() -> Result<(), weir_client::Error> {
//!     let client = Client::connect("/run/weir")?;
//!     let task = client.task("counting")?;
//!     // Consumer 2 of 4. Waits for the first producer.
//!     let mut gate = task.gate("clicks", 2, 4, GateOptions::default())?;
//!     while let Some(item) = gate.next()? {
//!         match item {
//!             // The bytes lie where the daemon put them; they stay until the gate is asked for the next.
//!             Item::Record(record) => println!("{}: {}", record.channel(), String::from_utf8_lossy(&record)),
//!             Item::Event(event) => println!("{}: event of {} bytes", event.channel, event.payload.len()),
//!         }
//!     }
//!     Ok(())
//! }
//! ```
//!
//! Both as programs: `cargo run -p weir-client --example producer` and `--example consumer`; `map` and `fan_out` stand
//! between them. A process may have several tasks, and a task several gates and partitions.
//!
//! # Which consumer gets a record
//!
//! An exchange has one [`Strategy`], which all its producers and consumers state alike:
//!
//! | strategy | a record goes to |
//! |---|---|
//! | [`Strategy::Forward`] | the consumer with the producer's number; there are as many of both |
//! | [`Strategy::Rebalance`] | all consumers in turn |
//! | [`Strategy::Rescale`] | those of the producer's own share in turn: with 2 producers and 6 consumers each feeds 3 of them; with 6 producers and 2 consumers each feeds one. Fewer channels than with `Rebalance` |
//! | [`Strategy::Hash`] | the one that its key belongs to, always the same for equal keys |
//! | [`Strategy::Broadcast`] | every consumer |
//! | [`Strategy::Custom`] | the one that a [`ChannelSelector`] of the application names ([`Task::partition_with_selector`]) |
//!
//! With `Rebalance` and `Rescale` one consumer is as good as another. So records go round those that keep up: one that has
//! stopped, or has much more to do than the others, is left out until it has caught up, and an emit waits only when
//! none has room. [`PartitionOptions::adaptive`] switches that off. With `Hash` it can never be: a record whose consumer
//! has stopped waits for it. [`Partition::try_emit_keyed`] says so instead of waiting, and other keys can go on.
//!
//! When one key has a large part of all records, more consumers do not help: that key has one consumer.
//! [`Partition::heavy_keys`] names such keys with their shares. [`PartitionOptions::salt`] spreads each key over several
//! consumers, and says what the readers have to do then.
//!
//! # Waiting
//!
//! Every call here blocks its thread until it is done, and nothing else: there is no runtime, and one thread per
//! process beside the application's own, for the buffer timeout. A producer waits when its consumers do not keep
//! up, a consumer when nothing is there. Both show in the times of their task.
//!
//! # When the daemon stands still
//!
//! Handing records over and taking them needs no answer of the daemon: while it stands still, producers and consumers
//! wait as they do for each other, and go on when it does. A call that asks for something (a task, a partition) waits
//! up to [`ConnectOptions::request_timeout`] and ends with [`Error::Unanswered`]. The attachment goes on: everything
//! that was made stays good, and what was asked is taken back before anything that is asked later. [`Task::gate`] is
//! the exception, since what it waits for is a producer: [`GateOptions::timeout`] bounds that.
//!
//! Dropping a handle tells the daemon so. If it does not even take that message within [`ConnectOptions::timeout`], the
//! attachment is over, as if the daemon had ended: else it would keep for ever what it was not told to end.
//!
//! # When the daemon ends
//!
//! Killed, stopped, or replaced by a newer one: what this process has of it ends, and nothing of it hangs.
//!
//! - Every call that waits, on whatever thread, ends with [`Error::DaemonGone`], or with [`Error::Detached`] and the
//!   daemon's reason if it had the time to give one. A gate first hands out all that had been delivered to it.
//! - Memory stays mapped for as long as a handle has it: a record that is being read stays what it is.
//! - Records that were emitted and not covered by a [`Partition::finish`] that returned `Ok` may be lost. Which of
//!   them arrived is not known, so a program that emits them once more may repeat some: within one life of a producer
//!   no consumer gets a record twice, over two lives nobody can promise that.
//! - [`Client`] and [`Task`] stay good. The next [`Client::task`], [`Task::partition`] or [`Task::gate`] attaches to
//!   the daemon that then runs on the run directory. It tries again with pauses of random length up to 1 s, and gives
//!   up with [`Error::NotReattached`] after [`ConnectOptions::reattach_timeout`]. A producer made so is a new
//!   incarnation of its index: its consumers see the old one fail and the new one begin, never both as one.
//!
//! So a program that is to survive its daemon wraps what makes handles and uses them in a loop:
//!
//! ```no_run
//! # use weir_client::{Client, Error, PartitionOptions, Strategy, Task};
//! # fn work(task: &Task) -> Result<(), Error> {
//! #     let mut partition = task.partition("x", 0, 1, 1, Strategy::Forward, PartitionOptions::default())?;
//! #     partition.emit(b"record")?;
//! #     partition.finish().map(drop)
//! # }
//! # fn main() -> Result<(), Error> {
//! let client = Client::connect("/run/weir")?;
//! let task = client.task("clicks")?;
//! loop {
//!     match work(&task) {
//!         // The daemon ended while records were on their way: once more from where the application can.
//!         Err(Error::DaemonGone { .. } | Error::Detached { .. }) => {}
//!         done => return done,
//!     }
//! }
//! # }
//! ```
//!
//! # Tests
//!
//! `tests/loopback`: both sides against a daemon of the test's own process, made of weir-ipc's endpoints.

mod client;
mod clock;
mod connection;
mod error;
mod flusher;
mod gate;
mod options;
mod partition;
mod session;
mod times;

pub use client::{Client, Task};
pub use error::Error;
pub use gate::{Event, Gate, Item, Next, RecordRef};
pub use options::{
    BufferTimeout, ConnectOptions, ConsumerDeath, GateOptions, PartitionOptions, RUN_DIR_DEFAULT,
};
pub use partition::{
    ChannelSelector, Finished, HeavyKey, Lacking, Partition, PartitionWaits, Targets, Tried,
};
pub use weir_flow::exchange::{Shape, Strategy};
pub use weir_flow::failure::{Failure, FailureCode};
