//! The attach socket: a Unix socket of sequenced packets, on which a client asks and the daemon answers.
//!
//! A packet is one message in JSON ([`message`]), at most [`MESSAGE_BYTES_MAX`] bytes, and the daemon's answers carry
//! descriptors beside it ([`socket`]). Answers name the request that they are for and may come in any order.

pub mod message;
pub mod socket;

/// Longest message, in bytes.
pub const MESSAGE_BYTES_MAX: usize = 64 * 1024;
/// Most descriptors beside a message.
pub const DESCRIPTORS_MAX: usize = 4;
/// Version of the messages. Two sides of different versions do not attach.
pub const ATTACH_VERSION: u32 = 4;
