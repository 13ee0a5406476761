//! The pure core of Weir: who may send how many bytes to whom, and where every segment is at every moment.
//!
//! Everything here is a function of its inputs. Nothing opens a file or a socket, reads a clock, starts a thread, holds
//! a pointer to shared memory, or logs. Memory is named by [`ids::SegmentIndex`] only; time is an argument. So the daemon,
//! the simulator and the tests drive the very same code.
//!
//! The way in:
//! - [`shard`]: the state of one shard thread, with flow control explained before its first line of code. What goes in
//!   is `handle_*`, what comes out is `poll_*` and `take_*`.
//! - [`pool`]: who may take which segment: a producer's partition, a consumer's gate, a node's budget.
//! - [`debloat`]: how much data a gate wants in flight.
//! - [`wire`]: frames, byte by byte.
//! - [`catalog`]: which producers and consumers the cluster has, and which channels therefore must be opened.
//! - [`selector`], [`key_group`], [`pointwise`], [`record`], [`flush`]: the rules that the client library works by.
//! - [`state`]: every state machine as a table. [`invariant`]: what it means that an account does not add up.
//!
//! What comes from a peer or a client is a claim. It is checked before anything changes, and what cannot be true takes
//! down no more than it must: a channel, a client, or a link. No input makes this crate panic, which the lints
//! below enforce as far as they can.
#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, clippy::todo)
)]
extern crate alloc;

pub mod catalog;
pub mod checksum;
pub mod debloat;
pub mod exchange;
pub mod failure;
pub mod flush;
pub mod ids;
pub mod invariant;
pub mod key_group;
pub mod limits;
pub mod link;
pub mod pointwise;
pub mod pool;
pub mod record;
mod recv;
pub mod selector;
mod send;
pub mod shard;
pub mod stall;
pub mod state;
pub mod stats;
pub mod wants;
pub mod wire;
