//! Links and their sockets: how a link gets one, loses it, gets the next, and ends.
//!
//! A socket is lost by what a network does: its stream ends, it is reset, the peer is silent for too long. The link
//! waits for another one then, for as long as the core gives it. A link ends for good when the peer breaks the protocol
//! or this shard cannot serve it, when the node says so, and when the core gives it up.
//!
//! A link that this shard ends while its socket works is a riddle to the other end, which finds the socket gone: the node is
//! told, and can have the dialler say so.
//!
//! In all cases the ring lets go of the socket first. Its last completion has come before the core hears of the loss,
//! and the core before the node, which may bring the next socket then.

use std::mem;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use weir_flow::ids::{LinkId, Time};
use weir_flow::shard::LinkSpec;

use super::links::Carrier;
use super::mailbox::{LinkKey, ToNode};
use super::run::{Drain, ShardLoop};
use crate::io::{Ring, SocketSlot};
use crate::link::zero_copy::{ZeroCopy, is_local};

impl<R: Ring> ShardLoop<R> {
    /// A new link.
    pub(super) fn add_link(
        &mut self,
        key: LinkKey,
        socket: OwnedFd,
        early: &[u8],
        peer_grace: Duration,
        now: Time,
    ) {
        let watch = self.options.observer.watch(socket.as_fd());
        let zero_copy = ZeroCopy::new(&self.options.zero_copy, is_local(socket.as_fd()), now);
        let slot = match self.ring.add_socket(socket) {
            Ok(slot) => slot,
            Err(error) => {
                let reason = error.to_string();
                return self.tell(ToNode::LinkClosed { key, reason, is_unsaid: true });
            }
        };
        let peer_grace_ns = u64::try_from(peer_grace.as_nanos()).unwrap_or(u64::MAX);
        let spec =
            LinkSpec { peer: key.peer.clone(), peer_shard: key.peer_shard, peer_grace_ns, is_local: false };
        let link = self.core.handle_link(spec, now);
        self.links.insert(link, key, slot, watch, zero_copy);
        if let Err(error) = self.ring.receive(slot) {
            return self.close_link(link, error.to_string(), now);
        }
        if !early.is_empty()
            && let Err(error) = self.core.handle_received(link, early, &mut self.rings.gates, now)
        {
            self.close_link(link, error.to_string(), now);
        }
    }

    /// The link is to have another socket. One that has none has said so.
    pub(super) fn suspend_link(&mut self, key: &LinkKey) {
        if let Some(link) = self.links.of_key(key) {
            self.lose_link(link, "its dialler has dialled it again".to_owned());
        }
    }

    /// Another socket for a link that has none. One that is over has said so: its socket is closed.
    pub(super) fn resume_link(&mut self, key: &LinkKey, socket: OwnedFd, now: Time) {
        let Some(id) = self.links.of_key(key) else { return };
        if !matches!(self.links.get(id).map(|link| &link.carrier), Some(Carrier::Nothing { .. }))
            || !self.core.handle_link_resumed(id, now)
        {
            return;
        }
        let watch = self.options.observer.watch(socket.as_fd());
        match self.ring.add_socket(socket) {
            Ok(slot) => {
                self.links.set_socket(id, slot, watch);
                if let Err(error) = self.ring.receive(slot) {
                    self.lose_link(id, error.to_string());
                }
            }
            Err(error) => self.lose_carrier(id, error.to_string(), now),
        }
    }

    /// A socket has failed.
    pub(super) fn lose_socket(&mut self, socket: SocketSlot, reason: String) {
        if let Some(link) = self.links.of_socket(socket) {
            self.lose_link(link, reason);
        }
    }

    /// Starts to close the socket of a link that may get another one.
    pub(super) fn lose_link(&mut self, id: LinkId, reason: String) {
        self.let_go(id, reason, false);
    }

    /// Starts to close a link for good, whatever carries it.
    pub(super) fn close_link(&mut self, id: LinkId, reason: String, now: Time) {
        if let Some(reason) = self.let_go(id, reason, true) {
            self.end_link(id, reason, false, now);
        }
    }

    /// Closes the socket of a link. Returns the reason if it has none.
    fn let_go(&mut self, id: LinkId, reason: String, is_last: bool) -> Option<String> {
        let link = self.links.get_mut(id)?;
        match &mut link.carrier {
            Carrier::Socket(socket) => {
                let socket = *socket;
                link.carrier = Carrier::Closing { socket, reason, is_last };
                link.release_watch();
                self.ring.close_socket(socket);
            }
            Carrier::Closing { reason: old, is_last: was_last, .. } if is_last && !*was_last => {
                (*old, *was_last) = (reason, true);
            }
            Carrier::Closing { .. } => {}
            Carrier::Nothing { .. } => return Some(reason),
        }
        None
    }

    /// The last completion of a socket has come.
    pub(super) fn forget_socket(&mut self, socket: SocketSlot, now: Time) {
        let Some((id, reason, is_last)) = self.links.take_closed(socket) else { return };
        if is_last {
            self.end_link(id, reason, true, now);
        } else {
            self.lose_carrier(id, reason, now);
        }
    }

    /// Nothing carries a link any more. Whether it waits for another socket the core says by a notice.
    fn lose_carrier(&mut self, id: LinkId, reason: String, now: Time) {
        self.core.handle_link_lost(id, &reason, now);
        self.lists.lost.push(id);
        if let Some(link) = self.links.get_mut(id) {
            link.carrier = Carrier::Nothing { reason };
        }
    }

    /// The core keeps a link that has lost its socket.
    pub(super) fn handle_suspended(&mut self, id: LinkId) {
        self.lists.lost.retain(|lost| *lost != id);
        if let Some(link) = self.links.get(id) {
            let reason = link.lost_reason();
            tracing::debug!(shard = self.options.shard, link = %link.key, reason, "link interrupted");
            self.tell(ToNode::LinkLost { key: link.key.clone(), reason });
        }
    }

    /// The core has given a link up that waited for another socket.
    pub(super) fn handle_expired(&mut self, id: LinkId, now: Time) {
        let Some(link) = self.links.get(id) else { return };
        let reason = match self.drain {
            Drain::No => format!("{}; it did not come back within link.grace", link.lost_reason()),
            Drain::Asked | Drain::Done => Self::stopping().to_string(),
        };
        self.close_link(id, reason, now);
    }

    /// Links that have lost their socket and that the core has not kept.
    pub(super) fn end_lost(&mut self, now: Time) {
        let mut lost = mem::take(&mut self.lists.lost);
        for id in lost.drain(..) {
            let reason = self.links.get(id).map(|link| link.lost_reason());
            self.end_link(id, reason.unwrap_or_default(), false, now);
        }
        self.lists.lost = lost;
    }

    /// A link is over, and no operation of its sockets is left.
    fn end_link(&mut self, id: LinkId, reason: String, is_unsaid: bool, now: Time) {
        let Some(link) = self.links.remove(id) else { return };
        self.core.handle_link_closed(id, &reason, now);
        self.tell(ToNode::LinkClosed { key: link.key, reason, is_unsaid });
    }

    /// Tells peers and clients that the daemon stops, as far as that needs no waiting.
    pub(super) fn stop(&mut self, now: Time) {
        for link in self.links.ids() {
            self.close_link(link, Self::stopping().to_string(), now);
        }
    }
}
