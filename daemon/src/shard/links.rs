//! The data links of a shard: which socket carries which link, if any does.

use std::collections::BTreeMap;

use weir_flow::ids::LinkId;

use super::mailbox::LinkKey;
use crate::io::{SendBatch, SocketSlot};

/// One data link, over all its sockets.
pub(super) struct Link {
    pub(super) key: LinkKey,
    pub(super) carrier: Carrier,
    /// Sends in a row that the kernel could not read all of.
    pub(super) unread_sends: u32,
}

impl Link {
    /// Why nothing carries it; empty if something does.
    pub(super) fn lost_reason(&self) -> String {
        match &self.carrier {
            Carrier::Socket(_) => String::new(),
            Carrier::Closing { reason, .. } | Carrier::Nothing { reason } => reason.clone(),
        }
    }
}

/// What carries a link at this moment.
pub(super) enum Carrier {
    /// This socket.
    Socket(SocketSlot),
    /// Nothing any more: this socket is being closed. The core hears of it when its last completion has come.
    Closing {
        socket: SocketSlot,
        /// Why.
        reason: String,
        /// Whether the link ends with it.
        is_last: bool,
    },
    /// Nothing: the last socket was lost for this reason.
    Nothing { reason: String },
}

/// Every data link of the shard.
#[derive(Default)]
pub(super) struct Links {
    by_id: BTreeMap<LinkId, Link>,
    by_socket: BTreeMap<SocketSlot, LinkId>,
    by_key: BTreeMap<LinkKey, LinkId>,
    /// Batches that came back from the ring, to be filled again. They refer to no region: one that has let go of its
    /// last channel must not stay in memory until its batch is used again.
    spare_batches: Vec<SendBatch>,
}

impl Links {
    /// Adds a link with its first socket.
    pub(super) fn insert(&mut self, id: LinkId, key: LinkKey, socket: SocketSlot) {
        self.by_socket.insert(socket, id);
        self.by_key.insert(key.clone(), id);
        self.by_id.insert(id, Link { key, carrier: Carrier::Socket(socket), unread_sends: 0 });
    }

    /// Another socket carries a link.
    pub(super) fn set_socket(&mut self, id: LinkId, socket: SocketSlot) {
        if let Some(link) = self.by_id.get_mut(&id) {
            link.carrier = Carrier::Socket(socket);
            link.unread_sends = 0;
            self.by_socket.insert(socket, id);
        }
    }

    /// The last completion of a socket has come. Returns the link that it belonged to, why it was closed, and whether
    /// the link ends with it.
    pub(super) fn take_closed(&mut self, socket: SocketSlot) -> Option<(LinkId, String, bool)> {
        let id = self.by_socket.remove(&socket)?;
        let link = self.by_id.get_mut(&id)?;
        let nothing = Carrier::Nothing { reason: String::new() };
        let Carrier::Closing { reason, is_last, .. } = std::mem::replace(&mut link.carrier, nothing) else {
            return None;
        };
        link.carrier = Carrier::Nothing { reason: reason.clone() };
        Some((id, reason, is_last))
    }

    /// A batch to be filled.
    pub(super) fn take_batch(&mut self) -> SendBatch {
        self.spare_batches.pop().unwrap_or_default()
    }

    /// Keeps a batch for later.
    pub(super) fn keep_batch(&mut self, mut batch: SendBatch) {
        batch.parts.clear();
        self.spare_batches.push(batch);
    }

    /// The socket that carries a link, if one does.
    pub(super) fn socket(&self, id: LinkId) -> Option<SocketSlot> {
        match self.by_id.get(&id)?.carrier {
            Carrier::Socket(socket) => Some(socket),
            Carrier::Closing { .. } | Carrier::Nothing { .. } => None,
        }
    }

    pub(super) fn get(&self, id: LinkId) -> Option<&Link> {
        self.by_id.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: LinkId) -> Option<&mut Link> {
        self.by_id.get_mut(&id)
    }

    pub(super) fn of_socket(&self, socket: SocketSlot) -> Option<LinkId> {
        self.by_socket.get(&socket).copied()
    }

    /// The link of this name, whatever carries it.
    pub(super) fn of_key(&self, key: &LinkKey) -> Option<LinkId> {
        self.by_key.get(key).copied()
    }

    pub(super) fn remove(&mut self, id: LinkId) -> Option<Link> {
        let link = self.by_id.remove(&id)?;
        if let Carrier::Socket(socket) | Carrier::Closing { socket, .. } = &link.carrier {
            self.by_socket.remove(socket);
        }
        if self.by_key.get(&link.key) == Some(&id) {
            self.by_key.remove(&link.key);
        }
        Some(link)
    }

    pub(super) fn ids(&self) -> Vec<LinkId> {
        self.by_id.keys().copied().collect()
    }

    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }
}
