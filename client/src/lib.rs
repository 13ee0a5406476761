//! What an application links to write and read records through Weir.
//!
//! Weir carries records, which are bytes of any kind, from the processes that make them to those that take them, on one
//! machine or between many. A daemon on each machine does the carrying, and a process attaches to the daemon of its own
//! machine with this crate. When records are made faster than they are taken, whoever makes them is made to wait: no record is
//! dropped, and no queue grows without bound.
//!
//! # Words
//!
//! ```text
//!   process                                                       process
//! ┌ task "clicks" ─────────────┐      exchange "clicks"        ┌ task "counting" ───┐
//! │ partition: producer 0 of 1 ├─ subpartition 0 ─► channel 0 ─┤ gate: consumer 0   │
//! │                            ├─ subpartition 1 ─┐            └────────────────────┘
//! └────────────────────────────┘                  │            ┌ task "counting" ───┐
//!                                                 └► channel 0 ┤ gate: consumer 1   │
//!                                                              └────────────────────┘
//! ```
//!
//! | word | what it is |
//! |---|---|
//! | exchange | a named connection between so many producers and so many consumers. Its name, the numbers and the [`Strategy`] are stated by both sides alike; nobody has to set it up first |
//! | [`Client`] | this process' attachment to its daemon. One per process is the usual |
//! | [`Task`] | a piece of work of the process, with a name. Its time is measured: how long it was busy, had nothing to read (idle), or could not write (backpressured). Whatever it reads from and writes to belongs to it |
//! | [`Partition`] | the writing end of an exchange: what one producer emits its records into |
//! | subpartition | the part of a partition for one of its consumers |
//! | [`Gate`] | the reading end of an exchange: what one consumer gets its records from |
//! | channel | the part of a gate that comes from one producer. Records of one channel stay in order |
//! | segment | a piece of memory of fixed size (32 KiB unless the daemon was told otherwise), shared with the daemon, in which records lie. There are so many of them and no more: a partition that has none free waits, and a consumer that gives none back makes its producer wait |
//! | event | a message between records, for all consumers or one: a mark that says "up to here", for instance |
//!
//! Producers and consumers of an exchange are numbered from 0, and each place is taken by one at a time. They may come and
//! attach in any order.
//!
//! # A producer
//!
//! A daemon has to run on this machine; this one needs no privileges. Its run directory is where programs find it:
//!
//! ```sh
//! weir daemon --node a --run-dir /tmp/weir-a
//! ```
//!
//! The producer of the picture, with this crate (`client` in Weir's source) among its dependencies:
//!
//! ```no_run
//! use weir_client::{Client, PartitionOptions, Strategy};
//!
//! fn main() -> Result<(), weir_client::Error> {
//!     let client = Client::connect("/tmp/weir-a")?;
//!     let task = client.task("clicks")?;
//!     // Producer 0 of 1, for 2 consumers, each key always to the same one of them.
//!     let mut partition = task.partition("clicks", 0, 1, 2, Strategy::Hash, PartitionOptions::default())?;
//!     for (user, page) in [("ada", "/"), ("grace", "/docs"), ("ada", "/docs")] {
//!         // Waits while the consumer of this key does not keep up.
//!         partition.emit_keyed(user.as_bytes(), format!("{user} {page}").as_bytes())?;
//!     }
//!     // Returns when everything has reached the machines of all consumers. Without it the exchange has failed.
//!     partition.finish()?;
//!     Ok(())
//! }
//! ```
//!
//! A record leaves when its segment is full or after 100 ms, whatever comes first ([`BufferTimeout`]);
//! [`Partition::flush`] sends what there is.
//!
//! # A consumer
//!
//! The producer above ends when both consumers are there. A shell can be one of them:
//! `weir recv --exchange clicks --consumer 0/2 --run-dir /tmp/weir-a` prints its records. The other one as a program:
//!
//! ```no_run
//! use weir_client::{Client, GateOptions, Item};
//!
//! fn main() -> Result<(), weir_client::Error> {
//!     let client = Client::connect("/tmp/weir-a")?;
//!     let task = client.task("counting")?;
//!     // Consumer 1 of 2, the second of them. Waits for the first producer.
//!     let mut gate = task.gate("clicks", 1, 2, GateOptions::default())?;
//!     // Waits for the next. None: every producer has finished, and everything was read.
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
//! # The same with `async`
//!
//! Every call that may wait has a twin for futures, with `_async` behind its name. Here a task reads from one exchange and
//! writes to another; it is the first of two that share the work:
//!
//! ```no_run
//! use weir_client::{Client, GateOptions, Item, PartitionOptions, Strategy};
//!
//! #[tokio::main(flavor = "current_thread")]
//! async fn main() -> Result<(), weir_client::Error> {
//!     let client = Client::connect_async("/tmp/weir-a").await?;
//!     let task = client.task_async("cleaning").await?;
//!     let options = PartitionOptions::default();
//!     let mut clean = task.partition_async("clean", 0, 2, 1, Strategy::Rebalance, options).await?;
//!     let mut clicks = task.gate_async("clicks", 0, 2, GateOptions::default()).await?;
//!     while let Some(item) = clicks.next_async().await? {
//!         let Item::Record(record) = item else { continue };
//!         if record.starts_with(b"bot ") {
//!             continue;
//!         }
//!         clean.emit_async(&record).await?;
//!     }
//!     clean.finish_async().await?;
//!     Ok(())
//! }
//! ```
//!
//! - **No runtime is needed, and any will do**: tokio, another, or a loop that polls and parks. The crate depends on none.
//!   While futures wait, one thread of the attachment waits for the daemon and wakes them. It also keeps their time:
//!   [`GateOptions::timeout`] and [`ConnectOptions::request_timeout`] hold without a timer of the runtime.
//! - **A future may be dropped wherever it waits**, by a `select!` or a timeout for instance, and leaves nothing behind: no
//!   wait, no lost wake-up, no record that is lost or there twice, nothing at the daemon that nobody has. What each does then
//!   stands with it. The one thing to know: a record longer than a segment that is already begun is emitted all the same
//!   ([`Partition::abandoned`]).
//! - **Several at once**: one thread can wait for many gates and partitions ([`Partition::available`], then
//!   [`Partition::try_emit`]). Threads and futures can share one attachment, and one handle by turns.
//! - **There are no `poll_*` forms.** Where a poll is wanted, in a `Stream` for instance, box a future that owns the handle
//!   and returns it with a copy of what it found, `async move { let found = read(&mut gate).await; (gate, found) }`, and
//!   poll that until it is ready. A new future for each poll would not do: one that was dropped is not woken.
//! - A call that need not wait is ready at once and does not give way to others. A loop that is to let them in more often
//!   than it waits does so itself, with tokio's `yield_now` for instance.
//! - What has no twin does not wait: [`Gate::try_next`], [`Partition::flush`], every `check`. Dropping a handle sends a
//!   message to the daemon, and so may block for a moment if the daemon stands still ([`ConnectOptions::timeout`]).
//!
//! # Programs to start from
//!
//! In `client/examples`: `producer` and `consumer`, `map` and `fan_out` between them, and `async_consumer`, which reads two
//! exchanges on one thread. `cargo run -p weir-client --example producer -- /tmp/weir-a`; each says at its top how it is
//! run. A process may have several tasks, and a task several gates and partitions.
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
//! # Records that are built while they are emitted
//!
//! [`Partition::emit`] copies a record into the segment that is open. [`Partition::emit_with`] lends the application the place
//! instead: a record that is encoded there is written once.
//!
//! ```no_run
//! # use weir_client::{Client, PartitionOptions, Strategy};
//! # fn main() -> Result<(), weir_client::Error> {
//! # let task = Client::connect("/run/weir")?.task("x")?;
//! # let mut readings = task.partition("x", 0, 1, 1, Strategy::Forward, PartitionOptions::default())?;
//! # let (sensor, value) = (1_u64, 2_u64);
//! readings.emit_with(16, |record| {
//!     record[..8].copy_from_slice(&sensor.to_le_bytes());
//!     record[8..].copy_from_slice(&value.to_le_bytes());
//! })?;
//! # Ok(())
//! # }
//! ```
//!
//! # Waiting
//!
//! A producer waits when its consumers do not keep up, a consumer when nothing is there. Waiting is never an error, and has
//! no bound unless one is given. It shows in the times of the task: *idle* while it waits for input; backpressured while it
//! waits for output, *hard* if the thread is blocked in an emit, *soft* if it can still do something else, as in
//! [`Partition::wait_available`] and in every future. With several at once the gravest counts: hard, soft, idle.
//!
//! A call without `_async` blocks its thread until it is done, and nothing else. Beside the application's threads there is one
//! per process for the buffer timeout, and one per attachment once a future has waited there. Attaching takes another one
//! for a moment if a future does it.
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
//! # Inside
//!
//! **Owns**: a producer's [`Partition`] and a consumer's [`Gate`], the choice of the consumer for each record, records
//! on segments, the buffer timeout, and the times of tasks. **Must not know**: links, credit, peers. The pure rules
//! (selectors, framing, the pool) are weir-flow's, the shared memory is weir-ipc's; this crate has no `unsafe`.
//! `tests/loopback`: both sides against a daemon of the test's own process, made of weir-ipc's endpoints.

mod caller;
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
    BufferTimeout, ConnectOptions, ConsumerDeath, Debloat, DebloatOptions, GateOptions, PartitionOptions,
    RUN_DIR_DEFAULT,
};
pub use partition::{
    ChannelSelector, Finished, HeavyKey, Lacking, Partition, PartitionWaits, Targets, Tried,
};
#[doc(inline)]
pub use weir_flow::exchange::{NameError, Shape, Strategy};
#[doc(inline)]
pub use weir_flow::failure::{Failure, FailureCode};
