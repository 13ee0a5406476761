//! The data links of a shard: which socket carries which link.

use std::collections::BTreeMap;

use weir_flow::ids::LinkId;

use super::mailbox::LinkKey;
use crate::io::{SendBatch, SocketSlot};

/// One data link.
pub(super) struct Link {
    pub(super) key: LinkKey,
    pub(super) socket: SocketSlot,
    /// Why it is being closed. The core hears of it when the last completion of its socket has come.
    pub(super) closing: Option<String>,
    /// Sends in a row that the kernel could not read all of.
    pub(super) unread_sends: u32,
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
    /// Adds a link. One of the same name that is still closing keeps its socket and loses the name.
    pub(super) fn insert(&mut self, id: LinkId, key: LinkKey, socket: SocketSlot) {
        self.by_socket.insert(socket, id);
        self.by_key.insert(key.clone(), id);
        self.by_id.insert(id, Link { key, socket, closing: None, unread_sends: 0 });
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

    pub(super) fn get(&self, id: LinkId) -> Option<&Link> {
        self.by_id.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: LinkId) -> Option<&mut Link> {
        self.by_id.get_mut(&id)
    }

    pub(super) fn of_socket(&self, socket: SocketSlot) -> Option<LinkId> {
        self.by_socket.get(&socket).copied()
    }

    /// The live link of this name.
    pub(super) fn of_key(&self, key: &LinkKey) -> Option<LinkId> {
        let id = *self.by_key.get(key)?;
        self.by_id.get(&id).filter(|link| link.closing.is_none()).map(|_| id)
    }

    pub(super) fn remove(&mut self, id: LinkId) -> Option<Link> {
        let link = self.by_id.remove(&id)?;
        self.by_socket.remove(&link.socket);
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
