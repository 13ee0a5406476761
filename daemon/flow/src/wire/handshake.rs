//! What the first three frames of a link say, and the bytes that their codes are made over.
//!
//! The dialler sends Hello with an empty code, the acceptor answers HelloAck with its code, the dialler sends
//! Hello again with CONFIRM and its own code. Each code is HMAC-SHA256 under the cluster key over
//! [`handshake_transcript`]; the shell computes and compares it, for this crate has no cryptography. Without a
//! cluster key (loopback only) the key is empty: a node with a key and one without refuse each other.

use alloc::vec::Vec;

use crate::exchange::Name;

/// First bytes of every transcript, so that a code made for something else can never fit.
pub const HANDSHAKE_DOMAIN: &[u8; 16] = b"weir-handshake\0\x01";

/// Which end of a link a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Role {
    /// It opened the connection.
    Dialler = 1,
    /// It listened.
    Acceptor = 2,
}

impl Role {
    /// The role with this wire number.
    #[must_use]
    pub const fn from_wire(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::Dialler),
            2 => Some(Self::Acceptor),
            _ => None,
        }
    }
}

/// What a link carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum LinkKind {
    /// Catalog, Stats, Ping and Pong. One per pair of nodes.
    Control = 1,
    /// Channels. One per pair of shards in use.
    Data = 2,
}

impl LinkKind {
    /// The kind with this wire number.
    #[must_use]
    pub const fn from_wire(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::Control),
            2 => Some(Self::Data),
            _ => None,
        }
    }
}

/// The body of Hello and HelloAck: who the sender is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Protocol version of the sender.
    pub version: u16,
    /// Which end the sender is.
    pub role: Role,
    /// What the link will carry.
    pub kind: LinkKind,
    /// The sender's shard.
    pub local_shard: u16,
    /// The shard that the sender wants, or has, at the other end.
    pub peer_shard: u16,
    /// The sender's segment size, in bytes. Both ends must have the same.
    pub segment_bytes: u32,
    /// The largest record that the sender's node lets through, in bytes. Both ends must have the same.
    pub record_bytes_max: u32,
    /// One life of the sending daemon. Another value from the same node means that it was started anew.
    pub epoch: u64,
    /// TCP port that the sender's node listens on: with the address of this connection, where a peer that the
    /// configuration does not name can be dialled.
    pub listen_port: u16,
    /// The data link that this connection is for: a random number other than 0 that its dialler chose when it was new.
    /// 0 on a control link.
    pub link: u64,
    /// 0: the link is new. Else this connection takes the place of an earlier one of the same link, and the number is
    /// larger than that of any before. 0 on a control link.
    pub resumes: u32,
    /// How long the sender waits for another connection of a data link that was lost, in milliseconds; 0: not at all. Of
    /// both ends the one that waits less decides. Without effect on a control link.
    pub grace_ms: u32,
    /// Random, made for this handshake.
    pub nonce: [u8; 32],
    /// The code over the transcript, or 0 in the first Hello.
    pub mac: [u8; 32],
    /// The sender's node name.
    pub node: Name,
}

/// The bytes that the code of `role` is made over: everything that both ends said, but their codes.
///
/// Both ends compute the same bytes for the same role. The role keeps one end's code from being sent back as the
/// other's; the nonces keep a code from being used again.
#[must_use]
pub fn handshake_transcript(role: Role, dialler: &Hello, acceptor: &Hello) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(256);
    bytes.extend_from_slice(HANDSHAKE_DOMAIN);
    bytes.push(role as u8);
    for hello in [dialler, acceptor] {
        bytes.extend_from_slice(&hello.version.to_le_bytes());
        bytes.extend_from_slice(&[hello.role as u8, hello.kind as u8]);
        bytes.extend_from_slice(&hello.local_shard.to_le_bytes());
        bytes.extend_from_slice(&hello.peer_shard.to_le_bytes());
        bytes.extend_from_slice(&hello.segment_bytes.to_le_bytes());
        bytes.extend_from_slice(&hello.record_bytes_max.to_le_bytes());
        bytes.extend_from_slice(&hello.epoch.to_le_bytes());
        bytes.extend_from_slice(&hello.listen_port.to_le_bytes());
        bytes.extend_from_slice(&hello.link.to_le_bytes());
        bytes.extend_from_slice(&hello.resumes.to_le_bytes());
        bytes.extend_from_slice(&hello.grace_ms.to_le_bytes());
        bytes.extend_from_slice(&hello.nonce);
        // The length in front keeps two names from running into each other.
        bytes.push(u8::try_from(hello.node.as_str().len()).unwrap_or(u8::MAX));
        bytes.extend_from_slice(hello.node.as_str().as_bytes());
    }
    bytes
}
