//! Memory and messages between the daemon and its clients.
//!
//! **Owns**: the layout of every shared memfd ([`layout`]), the rings in them ([`ring`]), the two ends of a
//! partition's and a gate's memory ([`partition_port`], [`gate_port`]), the session page with its doorbells
//! ([`session`]), task cells ([`task_cell`]), cells of waits ([`wait_cell`]), a client's mappings of regions ([`region`]) and the messages of the
//! attach socket ([`attach`]). Everything of the daemon's end is called *endpoint*, everything of the client's end
//! *port*.
//!
//! **Must not know**: credit, channels, links, pools. Numbers pass through here after their bounds were checked;
//! what they mean is decided elsewhere.
//!
//! # Who trusts whom
//!
//! The daemon trusts nothing in memory that a client can write. Cursors that it needs are private copies; the other
//! side's cursor is accepted only if it leaves the ring's content between 0 and its capacity; an entry is copied
//! out once and checked in the copy. What cannot be true is an [`IpcFault`] that names the field: the daemon then
//! detaches that client and nobody else. A client checks the daemon's numbers with the same code.
//!
//! Every memfd is made by the daemon and sealed against shrinking, growing and further seals before a client gets
//! it, so that no client can make the daemon's mapping end early (SIGBUS). A client may still punch holes: on the
//! ordinary memfds of this crate that only turns pages to zeros, which is one more way to write wrong numbers.
//!
//! Shared words are only ever accessed as atomics, so that a process that writes at the same time is a matter of
//! values, never of undefined behaviour.
//!
//! # Tests
//!
//! Beside the code: bounds, oracles, every hostile field. `tests/processes.rs`: two processes. `tests/loom.rs`,
//! run with `RUSTFLAGS="--cfg loom"`: rings, wake-up flag, dirty set and parked flag under every interleaving.

#![allow(unsafe_code)] // Shared memory is read and written through pointers; see `words` and `region`.
#![cfg_attr(loom, allow(dead_code))] // The models use the parts that need no kernel.

#[cfg(not(loom))]
pub mod attach;
#[cfg(not(loom))]
mod entry;
mod fault;
#[cfg(not(loom))]
pub mod gate_port;
pub mod layout;
#[cfg(not(loom))]
mod memory;
#[cfg(not(loom))]
pub mod partition_port;
mod primitive;
#[cfg(all(test, not(loom)))]
mod properties;
#[cfg(not(loom))]
pub mod region;
pub mod ring;
#[cfg(not(loom))]
pub mod session;
pub mod signal;
#[cfg(not(loom))]
mod slots;
pub mod task_cell;
pub mod wait_cell;
mod words;

#[cfg(not(loom))]
pub use entry::{Delivered, GivenBack, Returned, Submission};
pub use fault::IpcFault;
