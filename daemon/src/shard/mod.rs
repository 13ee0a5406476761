//! One shard: a thread that owns its channels from the client's ring to the socket and back.
//!
//! A shard drives the pure core ([`weir_flow::shard::Shard`]) and owns what the core must not know: file descriptors,
//! mapped memory, the ring of the kernel, and the clock. Data flows one way through each turn of the loop: what
//! arrived (mail, completions, submissions) goes into the core, what the core decided (deliveries, returns, frames)
//! comes out. Shards share nothing with each other; they talk through [`mailbox`] only, to the control thread and, for
//! channels whose ends are on two of them, to each other ([`local`]).

mod attachments;
mod budget;
mod carrying;
mod clock;
mod links;
mod local;
pub mod mailbox;
pub mod placement;
mod publish;
mod receive;
mod rings;
mod run;
pub mod stall;
mod transmit;
mod waits;
mod zero_copy;

#[cfg(test)]
mod tests;

pub use run::{ShardLoop, ShardOptions};
