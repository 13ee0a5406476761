//! What one would use in place of Weir: the same job over other libraries. They are built into a program of their own,
//! `weir-peers`, so that nothing of the product depends on them; this is what it shares with the bench.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Window of each stream over HTTP/2, in bytes.
pub const STREAM_WINDOW_BYTES: u32 = 1 << 20;

/// Window of a connection over HTTP/2, in bytes.
pub const CONNECTION_WINDOW_BYTES: u32 = 16 << 20;

/// Longest frame of HTTP/2 and of yamux, in bytes.
pub const FRAME_BYTES: u32 = 64 << 10;

/// A library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Peer {
    /// TCP by tokio.
    Tokio,
    /// HTTP/2 by h2.
    H2,
    /// gRPC by tonic.
    Tonic,
    /// yamux, a multiplexer over one connection.
    Yamux,
    /// QUIC by quinn.
    Quinn,
    /// ZeroMQ by libzmq.
    ZeroMq,
    /// Aeron by its C media driver.
    Aeron,
}

impl Peer {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::Tokio, Self::H2, Self::Tonic, Self::Yamux, Self::Quinn, Self::ZeroMq, Self::Aeron];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Tokio => "tokio",
            Self::H2 => "h2",
            Self::Tonic => "tonic",
            Self::Yamux => "yamux",
            Self::Quinn => "quinn",
            Self::ZeroMq => "zeromq",
            Self::Aeron => "aeron",
        }
    }

    /// How it is used here.
    #[must_use]
    pub fn settings(self) -> &'static str {
        match self {
            Self::Tokio => "TCP connection per stream, 32 KiB per write, 64 KiB per read",
            Self::H2 => "one connection, 32 KiB per frame, windows of 1 MiB and 16 MiB",
            Self::Tonic => "one connection, message per record, no protobuf, windows of 1 MiB and 16 MiB",
            Self::Yamux => "one connection, 32 KiB per write, windows as they grow by themselves",
            Self::Quinn => "one connection, encrypted as always, 32 KiB per write",
            Self::ZeroMq => {
                "one PUSH to one PULL over TCP for all streams, message per record, at most 4 MiB held at each end"
            }
            Self::Aeron => {
                "over UDP, a media driver of one thread at each end, publication per stream, records written in place, datagrams \
                 of 64 KiB, logs of 3 x 1 MiB that are touched before"
            }
        }
    }

    /// What has to be there to build it in; nothing but cargo for most.
    #[must_use]
    pub fn needs(self) -> Option<&'static str> {
        match self {
            Self::ZeroMq => Some("pkg-config and libzmq3-dev"),
            Self::Aeron => Some("cmake 3.30 or newer, libclang-dev, uuid-dev and libbsd-dev"),
            _ => None,
        }
    }
}

/// What a process of `weir-peers` does.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Options {
    /// Over which library.
    pub peer: Peer,
    /// Its part.
    pub part: Part,
    /// Streams of records, side by side.
    pub streams: u32,
    /// Length of a record, in bytes; at least 8.
    pub record_bytes: usize,
    /// Each stream ends after so many; never if `None`. Not in an open loop.
    pub records_per_stream: Option<u64>,
    /// Where the receiver listens; a receiver tells it as the record count of worker 1.
    pub port: Option<u16>,
    /// A directory that both ends see, for what they must know of each other.
    pub directory: PathBuf,
}

/// The part of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Part {
    /// Writes every word of its records and sends them as fast as it can.
    Send,
    /// Adds every word of the records up.
    Receive,
    /// Sends records at fixed times, to the streams in turn.
    OpenLoop {
        /// Time between two of them, in nanoseconds.
        every_ns: u64,
    },
    /// Notes how long after its time each of them came.
    NoteTimes,
}
