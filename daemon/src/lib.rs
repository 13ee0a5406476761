//! The daemon of Weir and its command line, as a library that the binary `weir` and the tests use.
//!
//! The control thread (tokio) runs [`node`] with [`attach`], [`link`] and [`control`]: everything that concerns more
//! than one client or one link. Each shard thread runs [`shard`] on [`io`]: the data path. They share mailboxes,
//! counted regions ([`memory`]) and the read-only [`config`], nothing else. What decides about credit, segments and
//! frames is not here but in `weir-flow`.

#![allow(rustdoc::private_intra_doc_links)]

pub mod attach;
pub mod cli;
pub mod config;
pub mod control;
pub mod doctor;
pub mod exit;
pub mod inherited;
pub mod io;
pub mod link;
pub mod memory;
pub mod node;
pub mod observe;
pub mod privileges;
pub mod root;
pub mod shard;
pub mod topology;
