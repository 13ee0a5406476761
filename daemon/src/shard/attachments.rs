//! The client sessions of a shard and what each has opened.

use std::collections::BTreeMap;

use weir_ipc::session::SessionEndpoint;
use weir_ipc::signal::Park;

use super::mailbox::{AttachmentId, RingKey};
use super::rings::Target;
use crate::io::WatchId;

/// One client's session.
pub(super) struct Attachment {
    pub(super) session: SessionEndpoint,
    pub(super) watch: WatchId,
    pub(super) targets: BTreeMap<u32, Target>,
    /// The client waits for something that this turn has published.
    pub(super) wakes: bool,
}

/// Every session of the shard.
#[derive(Default)]
pub(super) struct Attachments {
    by_id: BTreeMap<AttachmentId, Attachment>,
    watches: u32,
    dirty: Vec<u32>,
}

impl Attachments {
    /// The watch for the next session's doorbell. Ids start behind that of the mailbox and are not used again, so
    /// that a completion of an ended watch is never taken for a new one.
    pub(super) fn next_watch(&mut self) -> WatchId {
        self.watches = self.watches.wrapping_add(1).max(1);
        WatchId(self.watches)
    }

    pub(super) fn insert(&mut self, id: AttachmentId, session: SessionEndpoint, watch: WatchId) {
        self.by_id.insert(id, Attachment { session, watch, targets: BTreeMap::new(), wakes: false });
    }

    pub(super) fn contains(&self, id: AttachmentId) -> bool {
        self.by_id.contains_key(&id)
    }

    pub(super) fn remove(&mut self, id: AttachmentId) -> Option<Attachment> {
        self.by_id.remove(&id)
    }

    pub(super) fn target(&self, key: RingKey) -> Option<Target> {
        self.by_id.get(&key.attachment)?.targets.get(&key.ring).copied()
    }

    pub(super) fn set_target(&mut self, key: RingKey, target: Target) {
        if let Some(attachment) = self.by_id.get_mut(&key.attachment) {
            attachment.targets.insert(key.ring, target);
        }
    }

    pub(super) fn remove_target(&mut self, key: RingKey) {
        if let Some(attachment) = self.by_id.get_mut(&key.attachment) {
            attachment.targets.remove(&key.ring);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Adds every ring that a client marked since the last call.
    pub(super) fn take_marked(&mut self, out: &mut Vec<RingKey>) {
        for (id, attachment) in &mut self.by_id {
            self.dirty.clear();
            attachment.session.take_dirty(&mut self.dirty);
            out.extend(self.dirty.iter().map(|ring| RingKey { attachment: *id, ring: *ring }));
        }
    }

    /// The client of this ring waits for what was just published.
    pub(super) fn wake(&mut self, id: AttachmentId) {
        if let Some(attachment) = self.by_id.get_mut(&id) {
            attachment.wakes = true;
        }
    }

    /// Rings each client that is to wake, once.
    pub(super) fn ring_clients(&mut self) {
        for attachment in self.by_id.values_mut().filter(|attachment| attachment.wakes) {
            attachment.wakes = false;
            if let Err(error) = attachment.session.ring_client() {
                tracing::error!(%error, "a client cannot be woken");
            }
        }
    }

    /// Tells every client to ring the doorbell from now on, and for what. `true`: one had marked a ring already, so the
    /// shard must not sleep.
    pub(super) fn park(&mut self, park: Park) -> bool {
        let mut marked = false;
        for attachment in self.by_id.values_mut() {
            marked |= attachment.session.park(park);
        }
        marked
    }

    /// Tells every client that the shard looks by itself.
    pub(super) fn unpark(&mut self) {
        for attachment in self.by_id.values_mut() {
            attachment.session.unpark();
        }
    }
}
