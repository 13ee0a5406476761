//! Why bytes from a peer are refused, and how far the refusal reaches.

use core::fmt;

use super::header::{FrameType, Header};
use crate::exchange::NameError;
use crate::ids::ChannelIndex;

/// What a refused frame takes down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The link that it came on.
    Link,
    /// One channel; the link and its other channels go on.
    Channel(ChannelIndex),
}

/// Why bytes from a peer are refused. The text names the value found and the value needed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WireError {
    /// The header's checksum does not match its bytes.
    HeaderChecksum {
        /// The checksum in the header.
        found: u32,
        /// The checksum of its bytes.
        needed: u32,
    },
    /// The reserved field of the header is not 0.
    Reserved {
        /// Its value.
        found: u16,
    },
    /// There is no such type of frame.
    UnknownType {
        /// The number in the header.
        found: u8,
    },
    /// The type is known but has no place where it came.
    Unexpected {
        /// The type in the header.
        found: FrameType,
        /// What may come there.
        needed: &'static str,
    },
    /// A flag is set that the type does not have.
    UnknownFlags {
        /// The type in the header.
        frame_type: FrameType,
        /// The flags in the header.
        found: u8,
    },
    /// The length is out of the bounds of the type.
    Length {
        /// The type in the header.
        frame_type: FrameType,
        /// The length in the header, in bytes.
        found: u32,
        /// Shortest allowed, in bytes.
        min: u32,
        /// Longest allowed, in bytes.
        max: u32,
    },
    /// The peer speaks another version of the protocol.
    Version {
        /// The peer's.
        found: u16,
        /// Ours.
        needed: u16,
    },
    /// The body ends inside a field.
    Truncated {
        /// The field.
        field: &'static str,
        /// Bytes left, at most those of the body.
        found: usize,
        /// Bytes needed.
        needed: usize,
    },
    /// The body goes on behind its last field.
    Trailing {
        /// The type of the frame.
        frame_type: FrameType,
        /// Bytes left over.
        found: usize,
    },
    /// A number is not one that its field can have.
    Field {
        /// The field.
        field: &'static str,
        /// Its value.
        found: u64,
        /// What it must be.
        needed: &'static str,
    },
    /// A name is not well formed.
    Name {
        /// The field.
        field: &'static str,
        /// What is wrong with it.
        error: NameError,
    },
    /// A text is not UTF-8.
    Text {
        /// The field.
        field: &'static str,
    },
}

impl WireError {
    /// What the frame with this header takes down. A header that cannot be believed takes the link, for no later
    /// frame can be found; a bad body takes its channel, or the link if the frame belongs to the link.
    #[must_use]
    pub const fn scope(&self, header: &Header) -> Scope {
        match self {
            Self::HeaderChecksum { .. }
            | Self::Reserved { .. }
            | Self::UnknownType { .. }
            | Self::Unexpected { .. }
            | Self::UnknownFlags { .. }
            | Self::Length { .. }
            | Self::Version { .. } => Scope::Link,
            Self::Truncated { .. }
            | Self::Trailing { .. }
            | Self::Field { .. }
            | Self::Name { .. }
            | Self::Text { .. } => {
                if header.frame_type.is_channel() {
                    Scope::Channel(header.channel)
                } else {
                    Scope::Link
                }
            }
        }
    }
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::HeaderChecksum { found, needed } => {
                write!(f, "header checksum is {found:#010x}; needed: {needed:#010x}")
            }
            Self::Reserved { found } => write!(f, "reserved field is {found}; needed: 0"),
            Self::UnknownType { found } => {
                write!(f, "frame type is {found}; needed: 1 to {}", FrameType::ALL.len())
            }
            Self::Unexpected { found, needed } => write!(f, "frame is {found}; needed: {needed}"),
            Self::UnknownFlags { frame_type, found } => {
                write!(
                    f,
                    "flags of {frame_type} are {found:#04x}; needed: only {:#04x}",
                    frame_type.flags().0
                )
            }
            Self::Length { frame_type, found, min, max } if min == max => {
                write!(f, "{frame_type} has {found} bytes; needed: {min}")
            }
            Self::Length { frame_type, found, min, max } => {
                write!(f, "{frame_type} has {found} bytes; needed: {min} to {max}")
            }
            Self::Version { found, needed } => write!(f, "protocol version is {found}; needed: {needed}"),
            Self::Truncated { field, found, needed } => {
                write!(f, "{field} has {found} bytes left; needed: {needed}")
            }
            Self::Trailing { frame_type, found } => {
                write!(f, "{frame_type} has {found} bytes behind its last field; needed: 0")
            }
            Self::Field { field, found, needed } => write!(f, "{field} is {found}; needed: {needed}"),
            Self::Name { field, error } => write!(f, "{field} {error}"),
            Self::Text { field } => write!(f, "{field} is not UTF-8; needed: UTF-8"),
        }
    }
}

impl core::error::Error for WireError {}
