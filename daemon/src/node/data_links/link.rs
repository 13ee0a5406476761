//! The states of one data link, and the numbers that it draws.

use std::time::Duration;

use super::SocketName;
use crate::link::dial::Backoff;

/// A link that a shard has.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) id: u64,
    /// The life of the peer.
    pub(super) epoch: u64,
    /// Number of its latest socket, or of the one that is being dialled.
    pub(super) resumes: u32,
    /// Since when it has the socket that it has.
    pub(super) since: Duration,
    pub(super) backoff: Backoff,
}

impl Link {
    /// Its latest socket, or the one that is being dialled.
    pub(super) fn socket(&self) -> SocketName {
        SocketName { link: self.id, resumes: self.resumes }
    }

    /// One that it has not had or dialled yet.
    pub(super) fn next_socket(&self) -> SocketName {
        SocketName { link: self.id, resumes: self.resumes.saturating_add(1) }
    }
}

/// A link that no shard has yet.
#[derive(Debug)]
pub(super) struct Successor<S> {
    pub(super) link: Link,
    pub(super) socket: S,
    /// For how long the peer keeps it when it is lost.
    pub(super) peer_grace: Duration,
}

/// What has become of a link.
#[derive(Debug)]
pub(super) enum State<S> {
    /// This node is dialling it, or will soon.
    Dialling { socket: SocketName, backoff: Backoff },
    /// A shard has it, with a socket.
    Up(Link),
    /// A shard has it, without a socket. If this node dialled it, it is being dialled, or will be soon.
    Lost(Link),
    /// A shard is letting go of its socket, and will get this one then.
    Replacing { link: Link, socket: S },
    /// A shard is closing it for good; `successor` takes its place then.
    Closing { successor: Option<Successor<S>> },
}

impl<S> State<S> {
    /// The link, while its shard keeps it.
    pub(super) fn link(&self) -> Option<&Link> {
        match self {
            Self::Up(link) | Self::Lost(link) | Self::Replacing { link, .. } => Some(link),
            Self::Dialling { .. } | Self::Closing { .. } => None,
        }
    }

    /// Whether it is this link, and its shard keeps it.
    pub(super) fn is(&self, id: u64) -> bool {
        self.link().is_some_and(|link| link.id == id)
    }
}

/// A source of numbers for ids and waits. It gives every number once before it gives one again, so ids of one node's
/// life differ.
#[derive(Debug)]
pub(super) struct Draws(u64);

impl Draws {
    /// What it gives follows from `seed`.
    pub(super) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// SplitMix64.
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// The first socket of a new link.
    pub(super) fn new_link(&mut self) -> SocketName {
        let link = match self.next() {
            0 => self.next(),
            link => link,
        };
        SocketName { link, resumes: 0 }
    }
}
