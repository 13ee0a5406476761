//! Seeded simulator that runs the real core of Weir, `weir-flow`, on virtual nodes, links and time.
//!
//! One seed decides everything: how many nodes, exchanges and clients there are, who is slow, what breaks, and in
//! which order everybody acts. The same seed does the same again, so what a seed finds can be replayed.
//!
//! - [`plan`] and [`faults`]: what a run consists of, drawn from the seed.
//! - [`world`]: the run itself; one actor does one thing per step. [`settle`]: its end, when faults stop.
//! - Actors: [`producer`] and [`consumer`] are clients that keep the rules, [`node`] and [`shell`] are what the
//!   daemon's shell does around a `Shard`, [`kernel`] and [`pipe`] are sockets, [`control`] is the control thread.
//!   [`link`] and [`outage`]: a link outlives its sockets, which break at any byte and are replaced, or not in time.
//! - [`local`]: a world of its own for channels whose both ends are on one node, which have no wire.
//! - Judges: [`model`] knows what each channel must deliver; [`tap`], [`book`], [`mod@line`] and [`once`] read the wire as
//!   an analyser would, over all sockets of a link;
//!   [`memory`] poisons what nobody owns; [`checks`] compares both ends of each link.
//! - [`coverage`]: rare paths by name, so that a test can demand that each was taken.
//!
//! Everything the judges say is a [`world::Finding`] with the command that replays it. [`faults::Sabotage`] puts
//! defects in on purpose, some of them with `tamper`, so that a test can demand that they are found.

pub mod adapting;
pub mod assembling;
pub mod book;
pub mod checks;
pub mod common;
pub mod consumer;
pub mod control;
pub mod coverage;
pub mod faults;
pub mod holds;
pub mod kernel;
pub mod line;
pub mod link;
pub mod local;
pub mod memory;
pub mod model;
pub mod node;
pub mod once;
pub mod outage;
pub mod pipe;
pub mod plan;
pub mod producer;
pub mod rng;
pub mod selecting;
pub mod settle;
pub mod shell;
pub mod tamper;
pub mod tap;
pub mod trace;
pub mod world;

pub use coverage::{Coverage, Mark};
pub use faults::Sabotage;
pub use world::{Finding, Options, Report, STEPS, run};
