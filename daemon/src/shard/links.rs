//! The data links of a shard: which socket carries which link, if any does.

use std::collections::BTreeMap;

use weir_flow::ids::LinkId;

use super::mailbox::LinkKey;
use crate::io::{SendBatch, SocketSlot};
use crate::link::zero_copy::{OUTSTANDING_MAX, Ticket, ZeroCopy};
use crate::observe::sockets::{SocketAccount, SocketWatch};

/// Sockets without probes that are looked at in one turn.
const SAMPLES_PER_TURN: usize = 4;

/// One data link, over all its sockets.
pub(super) struct Link {
    pub(super) key: LinkKey,
    pub(super) carrier: Carrier,
    /// Sends in a row that the kernel could not read all of.
    pub(super) unread_sends: u32,
    /// Whether it sends without a copy.
    pub(super) zero_copy: ZeroCopy,
    /// Of the zero-copy send in flight, if it is one.
    pub(super) ticket: Option<Ticket>,
    /// What watches its socket; also one that is being closed.
    pub(super) watch: Option<SocketWatch>,
    /// What was known of its sockets before that.
    past: SocketAccount,
}

impl Link {
    /// What its sockets waited for until now.
    pub(super) fn socket_account(&self) -> SocketAccount {
        let mut account = self.past.clone();
        if let Some(watch) = &self.watch {
            account += watch.account();
        }
        account
    }

    /// Its socket is about to be closed.
    pub(super) fn release_watch(&mut self) {
        if let Some(watch) = &mut self.watch {
            watch.release();
        }
    }

    /// Its socket is gone: what was known of it is kept.
    fn end_watch(&mut self) {
        self.past = self.socket_account();
        self.watch = None;
    }

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
    pub(super) fn insert(
        &mut self,
        id: LinkId,
        key: LinkKey,
        socket: SocketSlot,
        watch: SocketWatch,
        zero_copy: ZeroCopy,
    ) {
        self.by_socket.insert(socket, id);
        self.by_key.insert(key.clone(), id);
        let (carrier, past) = (Carrier::Socket(socket), SocketAccount::default());
        let watch = Some(watch);
        self.by_id.insert(id, Link { key, carrier, unread_sends: 0, zero_copy, ticket: None, watch, past });
    }

    /// Another socket carries a link.
    pub(super) fn set_socket(&mut self, id: LinkId, socket: SocketSlot, watch: SocketWatch) {
        if let Some(link) = self.by_id.get_mut(&id) {
            link.carrier = Carrier::Socket(socket);
            link.unread_sends = 0;
            link.end_watch();
            link.watch = Some(watch);
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
        link.end_watch();
        Some((id, reason, is_last))
    }

    /// A batch to be filled.
    pub(super) fn take_batch(&mut self) -> SendBatch {
        self.spare_batches.pop().unwrap_or_default()
    }

    /// Keeps a batch for later.
    pub(super) fn keep_batch(&mut self, mut batch: SendBatch) {
        batch.parts.clear();
        // As many as the links that are there can use at a time.
        if self.spare_batches.len() < self.by_id.len() * (OUTSTANDING_MAX as usize + 1) {
            self.spare_batches.push(batch);
        }
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

    /// How every link sends.
    pub(super) fn zero_copies(&self) -> impl Iterator<Item = (LinkId, &ZeroCopy)> {
        self.by_id.iter().map(|(id, link)| (*id, &link.zero_copy))
    }

    /// What the sockets of every link waited for.
    pub(super) fn socket_accounts(&self) -> BTreeMap<LinkId, SocketAccount> {
        self.by_id.iter().map(|(id, link)| (*id, link.socket_account())).collect()
    }

    /// Looks at sockets that have no probes and that were not looked at for a while. No timer runs for it: what it finds
    /// are sums, which lose nothing by being read late.
    pub(super) fn sample_sockets(&mut self, now_ns: u64) {
        let watches = self.by_id.values_mut().filter_map(|link| link.watch.as_mut());
        watches.filter(|watch| watch.is_due(now_ns)).take(SAMPLES_PER_TURN).for_each(SocketWatch::sample);
    }

    pub(super) fn ids(&self) -> Vec<LinkId> {
        self.by_id.keys().copied().collect()
    }

    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::{AsFd, OwnedFd};

    use weir_flow::ids::Time;

    use super::*;
    use crate::io::Ring;
    use crate::io::fake::FakeRing;
    use crate::link::zero_copy::ZeroCopySetting;
    use crate::observe::probes::cause::Cause;
    use crate::observe::sockets::Observer;

    /// A connected socket, in a ring and watched.
    fn socket(ring: &mut FakeRing, observer: &Observer) -> (SocketSlot, SocketWatch) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = OwnedFd::from(TcpStream::connect(listener.local_addr().unwrap()).unwrap());
        let watch = observer.watch(socket.as_fd());
        (ring.add_socket(socket).unwrap(), watch)
    }

    #[test]
    fn what_the_sockets_of_a_link_waited_for_is_added_up_and_known_when_it_has_none() {
        let (mut ring, mut links) = (FakeRing::new(), Links::default());
        let observer = Observer::without(Cause::SwitchedOff);
        let key = LinkKey { peer: "b".parse().unwrap(), local_shard: 0, peer_shard: 0, dialled: true };
        let id = LinkId(7);
        let known = |links: &Links| {
            let account = &links.socket_accounts()[&id];
            assert_eq!(account.state_ns.unwrap().iter().sum::<u64>(), account.watched_ns);
            (account.sockets, account.state.is_some(), account.watched_ns)
        };
        let (first, watch) = socket(&mut ring, &observer);
        let zero_copy = ZeroCopy::new(&ZeroCopySetting::never(), true, Time(0));
        links.insert(id, key, first, watch, zero_copy);
        let now = known(&links);
        assert_eq!((now.0, now.1), (1, true));

        let link = links.get_mut(id).unwrap();
        link.carrier = Carrier::Closing { socket: first, reason: "lost".to_owned(), is_last: false };
        link.release_watch();
        let closing = known(&links);
        assert!(closing.0 == 1 && !closing.1 && closing.2 >= now.2);
        assert_eq!(links.take_closed(first), Some((id, "lost".to_owned(), false)));
        assert_eq!(known(&links), closing, "time goes on without a socket");

        let (second, watch) = socket(&mut ring, &observer);
        links.set_socket(id, second, watch);
        let again = known(&links);
        assert!(again.0 == 2 && again.1 && again.2 >= closing.2);
    }
}
