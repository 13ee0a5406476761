//! The 32 bytes in front of every frame, and the table that says what each type of frame may hold.
//!
//! ```text
//!  0        4      5       6          8         12        16          24        28       32
//!  +--------+------+-------+----------+---------+---------+-----------+---------+--------+
//!  | length | type | flags | reserved | channel | backlog | sequence  | records | CRC32C |
//!  |  u32   |  u8  |  u8   | u16 = 0  |   u32   |   u32   |    u64    |   u32   |  u32   |
//!  +--------+------+-------+----------+---------+---------+-----------+---------+--------+
//! ```
//! `length` counts the bytes behind the header. The checksum covers bytes 0 to 27, so that a length is never
//! believed that the peer did not write. A field that a type does not use is 0.

use core::fmt;

use super::error::WireError;
use crate::checksum::crc32c;
use crate::ids::{ChannelIndex, Sequence};

/// Size of a header, in bytes.
pub const HEADER_BYTES: usize = 32;

/// Version of everything in this module. Peers must have the same.
pub const PROTOCOL_VERSION: u16 = 4;

/// Largest payload of an event, in bytes.
pub const EVENT_BYTES_MAX: u32 = 1024;

/// Largest body of any frame but a data frame, in bytes.
pub const CONTROL_BYTES_MAX: u32 = 64 * 1024;

/// How many bytes of the header its checksum covers.
const COVERED_BYTES: usize = 28;

/// Which end of what sends a type of frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the node of a channel's producer to that of its consumer.
    ToConsumer,
    /// From the node of a channel's consumer to that of its producer.
    ToProducer,
    /// Belongs to the link as a whole; both ends send it.
    Link,
}

impl Direction {
    /// Its name in `docs/protocol.md`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ToConsumer => "to consumer",
            Self::ToProducer => "to producer",
            Self::Link => "link",
        }
    }
}

/// How long a frame's body may be, in bytes. A data frame's largest is the segment size, which the links agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BodyBytes {
    /// Shortest.
    pub min: u32,
    /// Longest.
    pub max: u32,
}

/// Which fields of the header a type of frame uses; the others are 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderFields {
    /// `channel`.
    pub channel: bool,
    /// `backlog`.
    pub backlog: bool,
    /// `sequence`.
    pub sequence: bool,
    /// `records`.
    pub records: bool,
}

/// The flag bits of a header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(pub u8);

impl Flags {
    /// No flag.
    pub const NONE: Self = Self(0);
    /// On Data: this slice starts the next receive segment, and costs one credit.
    pub const OPEN: Self = Self(1);
    /// On Backlog: the open receive segment is given up; nothing more will be put into it.
    pub const CLOSED: Self = Self(2);
    /// On Event: it overtakes queued data.
    pub const PRIORITY: Self = Self(4);
    /// On Hello: the third message of a handshake.
    pub const CONFIRM: Self = Self(8);

    /// Every flag with its name.
    pub const ALL: [(Self, &'static str); 4] = [
        (Self::OPEN, "OPEN"),
        (Self::CLOSED, "CLOSED"),
        (Self::PRIORITY, "PRIORITY"),
        (Self::CONFIRM, "CONFIRM"),
    ];

    /// Whether every bit of `flag` is set.
    #[must_use]
    pub const fn has(self, flag: Self) -> bool {
        self.0 & flag.0 == flag.0
    }

    /// `self` if `condition`, else no flag.
    #[must_use]
    pub const fn when(self, condition: bool) -> Self {
        if condition { self } else { Self::NONE }
    }
}

macro_rules! frame_types {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $direction:ident, $min:expr, $max:expr, $flags:expr,
        [$($field:ident)*];)*) => {
        /// The type of a frame. Numbers are never reused.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum FrameType { $($(#[$doc])* $name = $number,)* }

        impl FrameType {
            /// Every type, in the order of its numbers.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The type with this number.
            #[must_use]
            pub const fn from_wire(number: u8) -> Option<Self> {
                match number { $($number => Some(Self::$name),)* _ => None }
            }

            /// Its name in `docs/protocol.md`, logs and errors.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)* }
            }

            /// Who sends it.
            #[must_use]
            pub const fn direction(self) -> Direction {
                match self { $(Self::$name => Direction::$direction,)* }
            }

            /// How long its body may be.
            #[must_use]
            pub const fn body_bytes(self) -> BodyBytes {
                match self { $(Self::$name => BodyBytes { min: $min, max: $max },)* }
            }

            /// The flags that it may carry.
            #[must_use]
            pub const fn flags(self) -> Flags {
                match self { $(Self::$name => $flags,)* }
            }

            /// The header fields that it uses.
            #[must_use]
            pub const fn fields(self) -> HeaderFields {
                #[allow(unused_mut, reason = "some types use no field")]
                match self {
                    $(Self::$name => {
                        let mut fields =
                            HeaderFields { channel: false, backlog: false, sequence: false, records: false };
                        $(fields.$field = true;)*
                        fields
                    })*
                }
            }
        }
    };
}

/// Largest body of a data frame that any configuration allows: the largest segment.
const DATA_BYTES_MAX: u32 = crate::limits::SEGMENT_BYTES_MAX;

/// A failure on the wire: code, length of its text, text.
const FAILURE_BYTES_MIN: u32 = 4;
const FAILURE_BYTES_MAX: u32 = FAILURE_BYTES_MIN + crate::failure::FAILURE_TEXT_BYTES_MAX as u32;

/// The bytes of a name beside its length: 1 to [`crate::exchange::NAME_BYTES_MAX`].
const NAME_MAX: u32 = crate::exchange::NAME_BYTES_MAX as u32;

frame_types! {
    /// First message of a handshake, and (with [`Flags::CONFIRM`]) its third.
    Hello = 1, Link, 108, 107 + NAME_MAX, Flags::CONFIRM, [];
    /// Second message of a handshake.
    HelloAck = 2, Link, 108, 107 + NAME_MAX, Flags::NONE, [];
    /// A consumer asks for a subpartition and assigns the channel's index.
    OpenChannel = 3, ToProducer, 50, 49 + NAME_MAX, Flags::NONE, [channel];
    /// The producer's node serves the channel.
    ChannelAccepted = 4, ToConsumer, 8, 8, Flags::NONE, [channel backlog sequence];
    /// The producer's node does not serve the channel (any more).
    ChannelFailed = 5, ToConsumer, FAILURE_BYTES_MIN, FAILURE_BYTES_MAX, Flags::NONE, [channel];
    /// One slice of a segment.
    Data = 6, ToConsumer, 0, DATA_BYTES_MAX, Flags::OPEN, [channel backlog sequence records];
    /// A message beside the data, in its order or ahead of it.
    Event = 7, ToConsumer, 0, EVENT_BYTES_MAX, Flags::PRIORITY, [channel backlog sequence];
    /// How many receive segments the queue would still open, when no data can say it.
    Backlog = 8, ToConsumer, 0, 0, Flags::CLOSED, [channel backlog];
    /// How much the sender may send, and what has arrived and was consumed.
    Limit = 9, ToProducer, 40, 40, Flags::NONE, [channel];
    /// How full the consumer wants buffers to be.
    BufferSize = 10, ToProducer, 4, 4, Flags::NONE, [channel];
    /// Where a channel goes on after the socket of its link was replaced.
    Resume = 11, ToProducer, 52, 52, Flags::NONE, [channel];
    /// The consumer is gone, or does not want the channel any more.
    Cancel = 12, ToProducer, 16 + FAILURE_BYTES_MIN, 16 + FAILURE_BYTES_MAX, Flags::NONE, [channel];
    /// The producer has sent everything.
    EndOfData = 13, ToConsumer, 0, 0, Flags::NONE, [channel backlog sequence];
    /// The consumer's node has everything, with the end of data.
    EndAck = 14, ToProducer, 0, 0, Flags::NONE, [channel];
    /// Asks for a Pong.
    Ping = 15, Link, 8, 8, Flags::NONE, [];
    /// Answers a Ping with its token.
    Pong = 16, Link, 8, 8, Flags::NONE, [];
    /// Partitions of the sending node.
    Catalog = 17, Link, 2, CONTROL_BYTES_MAX, Flags::NONE, [];
    /// What the sending node's tasks and channels did lately.
    Stats = 18, Link, 22, CONTROL_BYTES_MAX, Flags::NONE, [];
    /// The sender will close the link, at once or when the channels on it have ended, and why.
    Goodbye = 19, Link, FAILURE_BYTES_MIN, FAILURE_BYTES_MAX, Flags::NONE, [];
    /// First frame of each end on a socket that replaces another: how much of the peer's control it has.
    LinkResume = 20, Link, 8, 8, Flags::NONE, [];
}

impl FrameType {
    /// Whether frames of this type belong to one channel, so that a bad one fails that channel only.
    #[must_use]
    pub const fn is_channel(self) -> bool {
        !matches!(self.direction(), Direction::Link)
    }

    /// Whether frames of this type happen once and can be told by no later one: they are counted, kept until the peer
    /// has them, and sent again on the next socket of a link.
    #[must_use]
    pub const fn happens_once(self) -> bool {
        matches!(
            self,
            Self::OpenChannel | Self::ChannelAccepted | Self::ChannelFailed | Self::Cancel | Self::EndAck
        )
    }
}

impl fmt::Display for FrameType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A frame's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Bytes behind the header.
    pub length: u32,
    /// Type of the frame.
    pub frame_type: FrameType,
    /// Flags, all of them allowed for the type.
    pub flags: Flags,
    /// The channel, as the consumer's end numbered it on this link.
    pub channel: ChannelIndex,
    /// Receive segments that the sender's queue would still open after this frame.
    pub backlog: u32,
    /// Position of a Data, Event or EndOfData frame in its channel.
    pub sequence: Sequence,
    /// Records that end in this slice. What the producer's client says, never relied on.
    pub records: u32,
}

impl Header {
    /// A header of this type with everything else 0.
    #[must_use]
    pub const fn new(frame_type: FrameType) -> Self {
        Self {
            length: 0,
            frame_type,
            flags: Flags::NONE,
            channel: ChannelIndex(0),
            backlog: 0,
            sequence: Sequence(0),
            records: 0,
        }
    }

    /// The header as bytes, with its checksum.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        put(&mut bytes, 0, self.length.to_le_bytes());
        put(&mut bytes, 4, [self.frame_type as u8, self.flags.0]);
        put(&mut bytes, 8, self.channel.0.to_le_bytes());
        put(&mut bytes, 12, self.backlog.to_le_bytes());
        put(&mut bytes, 16, self.sequence.0.to_le_bytes());
        put(&mut bytes, 24, self.records.to_le_bytes());
        let checksum = checksum(&bytes);
        put(&mut bytes, COVERED_BYTES, checksum.to_le_bytes());
        bytes
    }

    /// The header in these bytes. `data_bytes_max` is the segment size, or 0 on a link that carries no data.
    ///
    /// # Errors
    /// Every one of them closes the link, for behind a header that cannot be believed no frame can be found:
    /// wrong checksum, reserved bits, unknown type, a flag that the type does not have, a length out of bounds.
    pub fn decode(bytes: &[u8; HEADER_BYTES], data_bytes_max: u32) -> Result<Self, WireError> {
        let (found, needed) = (u32::from_le_bytes(take(bytes, COVERED_BYTES)), checksum(bytes));
        if found != needed {
            return Err(WireError::HeaderChecksum { found, needed });
        }
        let reserved = u16::from_le_bytes(take(bytes, 6));
        if reserved != 0 {
            return Err(WireError::Reserved { found: reserved });
        }
        let [number, flags] = take(bytes, 4);
        let Some(frame_type) = FrameType::from_wire(number) else {
            return Err(WireError::UnknownType { found: number });
        };
        if flags & !frame_type.flags().0 != 0 {
            return Err(WireError::UnknownFlags { frame_type, found: flags });
        }
        let length = u32::from_le_bytes(take(bytes, 0));
        let BodyBytes { min, max } = frame_type.body_bytes();
        let max = if frame_type == FrameType::Data { max.min(data_bytes_max) } else { max };
        if length < min || length > max {
            return Err(WireError::Length { frame_type, found: length, min, max });
        }
        Ok(Self {
            length,
            frame_type,
            flags: Flags(flags),
            channel: ChannelIndex(u32::from_le_bytes(take(bytes, 8))),
            backlog: u32::from_le_bytes(take(bytes, 12)),
            sequence: Sequence(u64::from_le_bytes(take(bytes, 16))),
            records: u32::from_le_bytes(take(bytes, 24)),
        })
    }

    /// Checks that the fields which this type does not use are 0.
    ///
    /// # Errors
    /// The first field that is not. It fails the channel, or the link for a frame of the link.
    pub fn check_fields(&self) -> Result<(), WireError> {
        let used = self.frame_type.fields();
        let fields = [
            ("channel", used.channel, u64::from(self.channel.0)),
            ("backlog", used.backlog, u64::from(self.backlog)),
            ("sequence", used.sequence, self.sequence.0),
            ("records", used.records, u64::from(self.records)),
        ];
        match fields.into_iter().find(|(_, used, found)| !used && *found != 0) {
            Some((field, _, found)) => {
                Err(WireError::Field { field, found, needed: "0, for this type of frame" })
            }
            None => Ok(()),
        }
    }
}

/// The checksum of the bytes that it covers.
fn checksum(bytes: &[u8; HEADER_BYTES]) -> u32 {
    let (covered, _) = bytes.split_at(COVERED_BYTES);
    crc32c(covered)
}

/// Writes a field at its offset, which is a constant of this file and within the header.
#[inline(always)]
fn put<const N: usize>(bytes: &mut [u8; HEADER_BYTES], offset: usize, field: [u8; N]) {
    if let Some(place) = bytes.get_mut(offset..).and_then(|rest| rest.first_chunk_mut::<N>()) {
        *place = field;
    }
}

/// Reads the field at its offset, which is a constant of this file and within the header.
#[inline(always)]
fn take<const N: usize>(bytes: &[u8; HEADER_BYTES], offset: usize) -> [u8; N] {
    bytes.get(offset..).and_then(|rest| rest.first_chunk::<N>()).copied().unwrap_or([0; N])
}
