//! Records on the segments of a channel: a length, the bytes, and a checksum if the exchange asks for it.
//!
//! ```text
//!  +-----------+-----------------+-------------------+      next record …
//!  | bytes u32 | bytes           | CRC32C u32, maybe |
//!  +-----------+-----------------+-------------------+
//! ```
//! Records follow each other without gaps and do not know segments: any part may be cut between two, even the
//! length. The writer's side is [`writer`], the reader's [`assembler`]. Both are pure: they say which bytes, the
//! caller has the memory. The checksum covers the bytes of the record, and is made and checked by the two
//! applications' clients, for a daemon cannot vouch for memory that a client may still change.

pub mod assembler;
pub mod writer;

pub use assembler::{Assembler, SpanningBudget, Step};
pub use writer::{RecordTooLarge, RecordWriter, frame_bytes};

/// Size of the length in front of a record, in bytes.
pub const PREFIX_BYTES: usize = 4;

/// Size of the checksum behind a record, in bytes.
pub const CHECKSUM_BYTES: usize = 4;
