//! What travels on links: a fixed header, then a body. `docs/protocol.md` is the specification, and a test ties
//! it to this code.
//!
//! - [`header`]: the 32 bytes in front of every frame, the table of frame types, flags and bounds.
//! - [`message`]: every control frame as an owned value. Data frames have no message: their payload goes from
//!   the socket into a receive segment and is never collected here.
//! - [`mod@encode`], [`mod@decode`]: the two directions, and the reader that finds frames in a byte stream.
//! - [`handshake`]: what a link's first three frames prove.
//! - [`error`]: why bytes from a peer are refused, and how far the refusal reaches.
//!
//! Numbers are little endian. Nothing here trusts a length before it was checked against its bound, and no input
//! can make it panic.

pub mod decode;
pub mod encode;
pub mod error;
pub mod handshake;
pub mod header;
pub mod message;

pub use decode::{FrameReader, decode};
pub use encode::encode;
pub use error::{Scope, WireError};
pub use handshake::{HANDSHAKE_DOMAIN, Hello, LinkKind, Role, handshake_transcript};
pub use header::{
    BodyBytes, CONTROL_BYTES_MAX, Direction, EVENT_BYTES_MAX, Flags, FrameType, HEADER_BYTES, Header,
    HeaderFields, PROTOCOL_VERSION,
};
pub use message::{
    CATALOG_ENTRIES_MAX, CHANNEL_SUMMARIES_MAX, Cancel, CatalogEntry, ChannelSummary, GateEntry, GateState,
    Limit, Message, OpenChannel, PROBES_TEXT_BYTES_MAX, PartitionEntry, PartitionState, ProcessTimes, Resume,
    SECOND_MS, SOCKET_STATE_NAMES, SOCKET_STATES, SocketSummary, Stats, TASK_TIMES_MAX, TASK_WINDOWS,
    TaskShares, TaskTimes,
};
