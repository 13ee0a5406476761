//! What a fuzz target does with its bytes. Each module is one [`Driver`]: it reads its input as a program, runs it
//! against the product, and panics when a rule is broken.
//!
//! The same functions run twice: under libFuzzer (`cargo xtask fuzz`), which looks for inputs, and in the ordinary
//! test run, which replays the committed ones ([`replay`]).
//!
//! A driver that cannot fail proves nothing. So each can be told to break one rule on purpose ([`Rule::Broken`]), and the
//! replay demands that its corpus notices; and each says what its inputs reached ([`Reached`]), so that a corpus which no
//! longer gets past the first check is noticed, too.

pub mod input;
pub mod replay;

#[cfg(feature = "ipc")]
pub mod attach_message;
#[cfg(feature = "daemon")]
pub mod config;
#[cfg(feature = "flow")]
pub mod flow_operations;
#[cfg(feature = "daemon")]
pub mod handshake;
#[cfg(feature = "ipc")]
pub mod ipc_validation;
#[cfg(feature = "flow")]
pub mod link_bytes;
#[cfg(feature = "flow")]
pub mod record_assembler;
#[cfg(feature = "flow")]
pub mod wire_decode;

#[cfg(feature = "flow")]
#[path = "../../../daemon/flow/tests/harness/mod.rs"]
mod harness;

use std::collections::BTreeSet;

/// Whether a driver runs as it should, or with one rule broken that its corpus must notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// As it should.
    Kept,
    /// With one rule broken on purpose; the module says which.
    Broken,
}

/// What an input reached, by name.
pub type Reached = BTreeSet<&'static str>;

/// One way of driving the product with arbitrary bytes.
#[derive(Clone, Copy)]
pub struct Driver {
    /// Name of the fuzz target and of the corpus.
    pub name: &'static str,
    /// Runs one input. It panics if a rule does not hold.
    pub run: fn(&[u8], Rule) -> Reached,
    /// Inputs made here: where to begin, and what a change of a format does not make stale.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// What seeds and corpus together must reach.
    pub must_reach: &'static [&'static str],
}

impl Driver {
    /// What a fuzz target does.
    pub fn fuzz(&self, bytes: &[u8]) {
        (self.run)(bytes, Rule::Kept);
    }
}

/// Every driver that is built in.
#[must_use]
pub fn drivers() -> Vec<Driver> {
    vec![
        #[cfg(feature = "ipc")]
        attach_message::DRIVER,
        #[cfg(feature = "daemon")]
        config::DRIVER,
        #[cfg(feature = "flow")]
        flow_operations::DRIVER,
        #[cfg(feature = "daemon")]
        handshake::DRIVER,
        #[cfg(feature = "ipc")]
        ipc_validation::DRIVER,
        #[cfg(feature = "flow")]
        link_bytes::DRIVER,
        #[cfg(feature = "flow")]
        record_assembler::DRIVER,
        #[cfg(feature = "flow")]
        wire_decode::DRIVER,
    ]
}
