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
//!     partition.finish()
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
//! Both as programs: `cargo run -p weir-client --example producer` and `--example consumer`.
//!
//! # Waiting
//!
//! Every call here blocks its thread until it is done, and nothing else: there is no runtime, and one thread per
//! process beside the application's own, for the buffer timeout. A producer waits when its consumers do not keep
//! up, a consumer when nothing is there. Both show in the times of their task. A daemon that ends, or that detaches
//! this process, ends every wait with an error.
//!
//! # Tests
//!
//! `tests/loopback`: both sides against a daemon of the test's own process, made of weir-ipc's endpoints.

mod client;
mod clock;
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
pub use options::{BufferTimeout, ConnectOptions, GateOptions, PartitionOptions, RUN_DIR_DEFAULT};
pub use partition::{Partition, PartitionWaits};
pub use weir_flow::exchange::{Shape, Strategy};
pub use weir_flow::failure::{Failure, FailureCode};
