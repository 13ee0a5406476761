//! Peers: the control link to each, and what is known of those that cannot be reached.
//!
//! Two nodes that dial each other get two links; the one that the node with the lower name dialled stays, which both
//! ends decide alike. A link of a later life of the peer always wins over an older one: the peer that made the old
//! one is gone. Epochs are compared only while the older link is there: without one, whoever comes is the node, also
//! with its clock set back. Each link begins with the whole catalog, so a link that is replaced loses nothing.

mod absent;

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot, watch};
use weir_flow::exchange::Name;
use weir_flow::failure::{Failure, FailureCode};
use weir_flow::wire::{CatalogEntry, LinkKind, Message};

use self::absent::Absent;
use super::report::PeerReport;
use super::{Node, NodeEvent};
use crate::control::plan::MissingNode;
use crate::link::handshake::{self, Peer, say_goodbye};
use crate::link::peer::{self, Dialled, LinkEnd, OUTBOX_MESSAGES, PeerAddress};

/// Most linked peers that the configuration does not name. Whoever has the cluster key may take any name, and each
/// name costs a descriptor and the memory of its catalog.
const STRANGE_PEERS_MAX: usize = 1024;

/// One control link. Never reused while the node lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ControlId(u64);

/// Every peer that the configuration names or that is linked.
#[derive(Debug, Default)]
pub(super) struct Peers {
    by_name: BTreeMap<Name, PeerState>,
    by_link: BTreeMap<ControlId, Name>,
    absent: Absent,
    next_link: u64,
}

#[derive(Debug, Default)]
struct PeerState {
    /// From the configuration. A peer without one dialled us, and is forgotten with its link.
    address: Option<String>,
    /// Whether the address comes from the name of the peers and not from `peers`.
    is_found: bool,
    /// Tells the task that dials it whether a link is wanted. None without an address.
    wanted: Option<watch::Sender<bool>>,
    link: Option<ControlLink>,
    /// Why there is no link.
    reason: Option<String>,
    /// The earlier life that is refused beside the link, again and again.
    contested: Option<u64>,
}

#[derive(Debug)]
struct ControlLink {
    id: ControlId,
    dialled: bool,
    epoch: u64,
    /// Where the peer listens, as this link shows it.
    listens: Option<SocketAddr>,
    outbox: mpsc::Sender<Message>,
    /// Keeps the task that dialled it from dialling again.
    _held: Option<oneshot::Sender<()>>,
}

/// A control link whose handshake is done.
pub(super) struct Candidate {
    pub(super) stream: TcpStream,
    pub(super) peer: Peer,
    pub(super) dialled: bool,
    pub(super) listens: Option<SocketAddr>,
    pub(super) held: Option<oneshot::Sender<()>>,
}

/// A control link that did not take a message.
#[derive(Debug, PartialEq, Eq)]
struct Untold {
    peer: Name,
    link: ControlId,
    /// It has ended, which the node is about to hear; else the peer takes too little.
    has_ended: bool,
}

impl PeerState {
    fn set_wanted(&self) {
        if let Some(wanted) = &self.wanted {
            wanted.send_replace(self.link.is_none());
        }
    }
}

/// What of a control link decides whether it stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Claim {
    /// The peer's life.
    epoch: u64,
    /// Whether this node dialled it.
    dialled: bool,
}

/// Whether a new link between these nodes takes the place of the old one. Of links to one life of the peer, a second
/// one from the same side means that this side has lost the first. Epochs grow with the start of a daemon: a later one is
/// the peer started anew, and an earlier one is another daemon of that name, which must not push this one out.
fn replaces(own: &Name, peer: &Name, old: Claim, new: Claim) -> bool {
    let own_dial_wins = own < peer;
    match new.epoch.cmp(&old.epoch) {
        Ordering::Less => false,
        Ordering::Equal => old.dialled == new.dialled || new.dialled == own_dial_wins,
        Ordering::Greater => true,
    }
}

impl Peers {
    /// Where to dial a peer for a data link.
    pub(super) fn address(&self, peer: &Name) -> Option<String> {
        let state = self.by_name.get(peer)?;
        state.address.clone().or_else(|| Some(state.link.as_ref()?.listens?.to_string()))
    }

    /// Whether the configuration names this peer, or it is linked.
    pub(super) fn is_known(&self, peer: &Name) -> bool {
        self.by_name.contains_key(peer)
    }

    /// Whether this node dials this peer.
    pub(super) fn is_dialled(&self, peer: &Name) -> bool {
        self.by_name.get(peer).is_some_and(|state| state.wanted.is_some())
    }

    /// Whether this node dials this peer at this address.
    pub(super) fn is_dialled_at(&self, peer: &Name, address: &str) -> bool {
        let state = self.by_name.get(peer).filter(|state| state.wanted.is_some());
        state.is_some_and(|state| state.address.as_deref() == Some(address))
    }

    /// The peer that listens at this address, as far as is known without asking.
    pub(super) fn at(&self, address: SocketAddr) -> Option<Name> {
        let text = address.to_string();
        let is_there = |state: &PeerState| {
            let listens = state.link.as_ref().and_then(|link| link.listens);
            listens == Some(address) || state.address.as_ref() == Some(&text)
        };
        self.by_name.iter().find(|(_, state)| is_there(state)).map(|(name, _)| name.clone())
    }

    /// Whether there is a control link to this peer.
    pub(super) fn is_linked(&self, peer: &Name) -> bool {
        self.by_name.get(peer).is_some_and(|state| state.link.is_some())
    }

    /// Whether another node than this peer was met where it is dialled.
    pub(super) fn has_another_name(&self, peer: &Name) -> bool {
        let reason = self.by_name.get(peer).and_then(|state| state.reason.as_deref());
        reason.is_some_and(|reason| reason.contains(handshake::OTHER_NAME))
    }

    /// Whether a link of this peer would be one too many.
    fn is_full(&self, peer: &Name) -> bool {
        !self.is_known(peer)
            && self.by_name.values().filter(|state| state.address.is_none()).count() >= STRANGE_PEERS_MAX
    }

    /// Sends a message to a peer, or to all that are linked. Returns the links that did not take it.
    fn send(&self, peer: Option<&Name>, message: &Message) -> Vec<Untold> {
        self.by_name
            .iter()
            .filter(|(name, _)| peer.is_none_or(|peer| peer == *name))
            .filter_map(|(name, state)| {
                let link = state.link.as_ref()?;
                let has_ended = match link.outbox.try_send(message.clone()) {
                    Ok(()) => return None,
                    Err(TrySendError::Full(_)) => false,
                    Err(TrySendError::Closed(_)) => true,
                };
                Some(Untold { peer: name.clone(), link: link.id, has_ended })
            })
            .collect()
    }

    /// Sends a message to every linked peer that has taken most of what it was told before. For what comes again anyway: that
    /// it is late is no reason to lose a link.
    pub(super) fn send_if_idle(&self, message: &Message) {
        let outboxes = self.by_name.values().filter_map(|state| state.link.as_ref().map(|link| &link.outbox));
        for outbox in outboxes.filter(|outbox| outbox.capacity() > OUTBOX_MESSAGES / 2) {
            // Of a link that has ended the node is about to hear.
            let _ = outbox.try_send(message.clone());
        }
    }

    /// Every peer that is known or was linked, by name. `now` is the time since the node started.
    pub(super) fn reports(&self, now: Duration, data_links: impl Fn(&Name) -> usize) -> Vec<PeerReport> {
        let known = self.by_name.iter().map(|(name, state)| PeerReport {
            name: name.to_string(),
            address: state.address.clone(),
            is_found: state.is_found,
            is_linked: state.link.is_some(),
            data_links: data_links(name),
            reason: state.reason.clone(),
        });
        let absent = self.absent.iter().map(|(name, reason, since)| PeerReport {
            name: name.to_string(),
            address: None,
            is_found: false,
            is_linked: false,
            data_links: data_links(name),
            reason: Some(format!("not linked for {} s: {reason}", now.saturating_sub(since).as_secs())),
        });
        let mut reports: Vec<PeerReport> = known.chain(absent).collect();
        reports.sort_by(|a, b| a.name.cmp(&b.name));
        reports
    }

    /// The peers that are linked, and those that are not, as far as any are known, by name.
    pub(super) fn linked_and_missing(&self) -> (Vec<&Name>, Vec<MissingNode>) {
        let (linked, others): (Vec<_>, Vec<_>) =
            self.by_name.iter().partition(|(_, state)| state.link.is_some());
        let others = others.into_iter().map(|(name, state)| (name, state.reason.as_deref()));
        let absent = self.absent.iter().map(|(name, reason, _)| (name, Some(reason)));
        let missing = others.chain(absent).map(|(name, reason)| MissingNode {
            node: name.to_string(),
            reason: reason.unwrap_or("not linked yet").to_owned(),
        });
        let mut missing: Vec<MissingNode> = missing.collect();
        missing.sort_by(|a, b| a.node.cmp(&b.node));
        (linked.into_iter().map(|(name, _)| name).collect(), missing)
    }

    /// Peers that were linked, are not any more, and whose names are not kept.
    pub(super) fn missing_unnamed(&self) -> u64 {
        self.absent.dropped()
    }

    /// Says goodbye on every link and lets go of them.
    pub(super) fn close_all(&mut self, failure: &Failure) {
        for state in self.by_name.values_mut() {
            state.wanted = None;
            if let Some(link) = state.link.take() {
                // A peer that takes nothing any more is only closed.
                let _ = link.outbox.try_send(Message::Goodbye { failure: failure.clone() });
            }
        }
        self.by_link.clear();
    }
}

impl Node {
    /// Begins to dial every configured peer.
    pub(super) fn keep_peers(&mut self) {
        for peer in self.options.peers.clone() {
            self.keep_peer(peer);
        }
    }

    /// Begins to dial a configured peer. It may be linked already, if it has dialled.
    pub(super) fn keep_peer(&mut self, peer: PeerAddress) {
        self.peers.absent.remove(&peer.node);
        let state = self.peers.by_name.entry(peer.node.clone()).or_default();
        let (wanted, is_wanted) = watch::channel(state.link.is_none());
        if state.address.as_ref().is_some_and(|before| *before != peer.address) {
            // It was met at the address before.
            state.reason = None;
        }
        (state.address, state.wanted) = (Some(peer.address.clone()), Some(wanted));
        state.is_found = self.options.peers.iter().all(|configured| configured.node != peer.node);
        let (events, name) = (self.events.clone(), peer.node.clone());
        let (identity, options) = (self.identity.clone(), self.options.link.clone());
        let places = self.dials.control.clone();
        let wrap = move |outcome| NodeEvent::Dialled { peer: name.clone(), outcome };
        self.tasks.spawn(peer::keep(peer, identity, options, places, is_wanted, events, wrap));
    }

    /// Dials a peer no more, and lets go of the link that this node has dialled. One that the peer has dialled stays.
    pub(super) fn leave_peer(&mut self, name: &Name, farewell: Failure) {
        let Some(state) = self.peers.by_name.get_mut(name) else { return };
        (state.address, state.wanted) = (None, None);
        match &state.link {
            Some(link) if link.dialled => {
                let id = link.id;
                self.lose_link(id, Some(farewell));
            }
            Some(_) => return,
            None => {
                self.peers.by_name.remove(name);
            }
        }
        // Nobody misses it.
        self.peers.absent.remove(name);
    }

    /// What came of dialling a configured peer.
    pub(super) fn handle_dialled(&mut self, name: &Name, outcome: Dialled) {
        match outcome {
            // On its way when the peer was let go of.
            Dialled::Up { .. } if !self.peers.is_dialled(name) => {
                tracing::debug!(peer = %name, "a control link is not wanted any more");
            }
            Dialled::Up { stream, peer, held } => {
                self.adopt(Candidate { stream, peer, dialled: true, listens: None, held: Some(held) });
            }
            Dialled::Failed { reason } => {
                let Some(state) = self.peers.by_name.get_mut(name) else {
                    return;
                };
                // The peer has the link that is there: it wants no second one.
                if state.link.is_some() {
                    return tracing::debug!(peer = %name, reason, "another control link is not there");
                }
                // Once per reason: dialling goes on every second.
                if state.reason.as_ref() != Some(&reason) {
                    tracing::warn!(peer = %name, reason, "cannot link with a peer; dialling goes on");
                    state.reason = Some(reason);
                }
            }
        }
    }

    /// A peer has dialled.
    pub(super) fn handle_accepted(&mut self, stream: TcpStream, peer: Peer, from: SocketAddr) {
        match peer.purpose.kind {
            LinkKind::Data => self.handle_data_accepted(stream, peer, from),
            LinkKind::Control => {
                let listens = SocketAddr::new(from.ip(), peer.listen_port);
                self.adopt(Candidate { stream, peer, dialled: false, listens: Some(listens), held: None });
            }
        }
    }

    /// Takes a control link, or refuses it in favour of the one that is there.
    pub(super) fn adopt(&mut self, new: Candidate) {
        let name = new.peer.node.clone();
        if self.drain.is_some() {
            self.refuse(new.stream, Failure::new(FailureCode::Stopping, "the daemon is stopping"));
            return;
        }
        if self.peers.is_full(&name) {
            let text = format!(
                "{STRANGE_PEERS_MAX} nodes that peers does not name are linked with {}; needed: fewer, or {name} \
                 in its peers",
                self.identity.node
            );
            self.refuse(new.stream, Failure::new(FailureCode::OverBudget, text));
            return;
        }
        if let Some(old) = self.peers.by_name.get(&name).and_then(|state| state.link.as_ref()) {
            let old_claim = Claim { epoch: old.epoch, dialled: old.dialled };
            let new_claim = Claim { epoch: new.peer.epoch, dialled: new.dialled };
            if !replaces(&self.identity.node, &name, old_claim, new_claim) {
                let failure = self.contested(&name, old_claim.epoch, new_claim.epoch);
                self.refuse(new.stream, failure);
                return;
            }
            let text = if old.epoch == new.peer.epoch {
                "another link between the same nodes stays"
            } else {
                "the peer was restarted"
            };
            // The new link begins with the whole catalog of the peer; what went meanwhile is not in it.
            self.lose_link(old.id, Some(Failure::new(FailureCode::LinkLost, text)));
        }
        let id = ControlId(self.peers.next_link);
        self.peers.next_link += 1;
        let (outbox, due) = mpsc::channel(OUTBOX_MESSAGES);
        tracing::info!(peer = %name, dialled = new.dialled, epoch = new.peer.epoch, "linked with a peer");
        let state = self.peers.by_name.entry(name.clone()).or_default();
        let epoch = new.peer.epoch;
        let Candidate { stream, dialled, listens, held, .. } = new;
        self.peers.absent.remove(&name);
        state.link = Some(ControlLink { id, dialled, epoch, listens, outbox, _held: held });
        (state.reason, state.contested) = (None, None);
        state.set_wanted();
        self.peers.by_link.insert(id, name.clone());
        if let Some(later) = self.links.handle_life(&name, epoch, &mut self.steps) {
            tracing::warn!(peer = %name, epoch, later, "a peer has data links of a later life than the one that is \
                linked now: its clock was set back, or there are two nodes of this name");
        }
        self.catalog.handle_peer_found(&name);
        self.seen.begin(&name);
        let (events, heartbeat) = (self.events.clone(), self.options.heartbeat);
        self.tasks.spawn(async move {
            let wrap = |message| NodeEvent::Control { link: id, message };
            let end = peer::run(stream, heartbeat, due, &events, wrap).await;
            let _ = events.send(NodeEvent::ControlEnded { link: id, end }).await;
        });
    }

    /// Why a new link of this peer is not taken while the old one is there.
    fn contested(&mut self, name: &Name, old_epoch: u64, new_epoch: u64) -> Failure {
        let own = &self.identity.node;
        if new_epoch >= old_epoch {
            let text = format!("nodes {own} and {name} are linked already");
            return Failure::new(FailureCode::LinkLost, text);
        }
        let told = self.peers.by_name.get_mut(name).and_then(|state| state.contested.replace(new_epoch));
        // Once for each: it goes on dialling.
        if told != Some(new_epoch) {
            tracing::warn!(
                peer = %name,
                linked = old_epoch,
                refused = new_epoch,
                "two daemons use this name, and the one that was started later is linked; or a clock was set back"
            );
        }
        let text = format!(
            "another node {name}, which was started later, is linked with {own}; needed: a name of its own for each \
             node; or, if there is one only, to wait until its earlier life counts as lost: its clock was set back \
             (by it, the one that is linked was started at {old_epoch} ns since 1970, this one at {new_epoch} ns)"
        );
        Failure::new(FailureCode::Mismatch, text)
    }

    fn refuse(&mut self, stream: TcpStream, failure: Failure) {
        tracing::debug!(%failure, "a control link is not needed");
        self.tasks.spawn(say_goodbye(stream, failure));
    }

    /// Lets go of a control link, with a last word for the peer.
    fn drop_link(&mut self, link: ControlId, farewell: Option<Failure>) {
        let Some(name) = self.peers.by_link.remove(&link) else {
            return;
        };
        let Some(state) = self.peers.by_name.get_mut(&name) else {
            return;
        };
        if let Some(link) = state.link.take()
            && let Some(failure) = farewell
        {
            state.reason = Some(failure.text.clone());
            let _ = link.outbox.try_send(Message::Goodbye { failure });
        }
        state.set_wanted();
        if state.address.is_none()
            && let Some(state) = self.peers.by_name.remove(&name)
        {
            self.peers.absent.add(name, state.reason.unwrap_or_default(), self.started.elapsed());
        }
    }

    /// Lets go of a control link, and of what the peer has told on it.
    fn lose_link(&mut self, link: ControlId, farewell: Option<Failure>) {
        if let Some(name) = self.peers.by_link.get(&link).cloned() {
            self.drop_link(link, farewell);
            self.forget_peer(&name);
        }
    }

    /// A message on a control link. One of a link that was let go concerns nobody.
    pub(super) fn handle_control(&mut self, link: ControlId, message: Message) {
        let Some(name) = self.peers.by_link.get(&link).cloned() else {
            return;
        };
        let entries = match message {
            Message::Catalog { entries } => entries,
            Message::Stats { stats } => return self.handle_stats(&name, stats),
            _ => return,
        };
        self.forget_gone(&name, &entries);
        if let Err(error) = self.catalog.handle_remote(&name, entries) {
            tracing::warn!(peer = %name, %error, "the control link to a peer is closed");
            self.lose_link(link, Some(Failure::new(FailureCode::Protocol, error.to_string())));
        }
    }

    /// A control link has ended.
    pub(super) fn handle_control_ended(&mut self, link: ControlId, end: &LinkEnd) {
        let Some(name) = self.peers.by_link.get(&link).cloned() else {
            return;
        };
        tracing::warn!(peer = %name, %end, "the control link to a peer has ended");
        if let Some(state) = self.peers.by_name.get_mut(&name) {
            state.reason = Some(end.to_string());
        }
        self.lose_link(link, None);
        // A daemon that stops has let go of all its tasks: nobody is missed there.
        if matches!(end, LinkEnd::Goodbye(failure) if failure.code == FailureCode::Stopping) {
            self.peers.absent.remove(&name);
        }
    }

    /// Tells a peer, or all, of partitions of this node. A link that takes no more is lost.
    pub(super) fn announce(&mut self, peer: Option<&Name>, entries: Vec<CatalogEntry>) {
        let message = Message::Catalog { entries };
        for Untold { peer, link, has_ended } in self.peers.send(peer, &message) {
            if has_ended {
                // What ends it is on its way here, and the next link begins with everything.
                tracing::info!(%peer, "a peer is told on its next control link: this one has ended");
                continue;
            }
            tracing::warn!(%peer, "a peer does not take what it is told");
            let text = format!("{OUTBOX_MESSAGES} messages wait to be taken");
            self.lose_link(link, Some(Failure::new(FailureCode::LinkLost, text)));
        }
    }

    /// How a configured peer is dialled for a data link.
    pub(super) fn peer_address(&self, peer: &Name) -> Option<PeerAddress> {
        Some(PeerAddress { node: peer.clone(), address: self.peers.address(peer)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_that_has_ended_is_told_from_one_that_takes_no_more() {
        let mut peers = Peers::default();
        let mut outboxes = Vec::new();
        for (number, name) in (0..).zip(["ended", "full", "well"]) {
            let name: Name = name.parse().unwrap();
            let (outbox, due) = mpsc::channel(if name.as_str() == "full" { 1 } else { 8 });
            let id = ControlId(number);
            let link = ControlLink { id, dialled: true, epoch: 1, listens: None, outbox, _held: None };
            peers.by_name.insert(name, PeerState { link: Some(link), ..PeerState::default() });
            outboxes.push(due);
        }
        peers.by_name.insert("away".parse().unwrap(), PeerState::default());
        let message = Message::Catalog { entries: Vec::new() };
        assert_eq!(peers.send(None, &message), []);
        outboxes.remove(0);
        let untold = |number, name: &str, has_ended| Untold {
            peer: name.parse().unwrap(),
            link: ControlId(number),
            has_ended,
        };
        assert_eq!(peers.send(None, &message), [untold(0, "ended", true), untold(1, "full", false)]);
        assert_eq!(peers.send(Some(&"well".parse().unwrap()), &message), []);
        assert_eq!(peers.send(Some(&"ended".parse().unwrap()), &message), [untold(0, "ended", true)]);
    }

    #[test]
    fn of_two_links_both_ends_keep_the_same_one() {
        let (a, b): (Name, Name) = ("a".parse().unwrap(), "b".parse().unwrap());
        let claim = |epoch, dialled| Claim { epoch, dialled };
        // The link that a dialled stays, whichever comes second, at a and at b.
        assert!(replaces(&a, &b, claim(1, false), claim(1, true)));
        assert!(!replaces(&a, &b, claim(1, true), claim(1, false)));
        assert!(replaces(&b, &a, claim(1, true), claim(1, false)));
        assert!(!replaces(&b, &a, claim(1, false), claim(1, true)));
        // The same side dials again: it has lost the first.
        assert!(replaces(&a, &b, claim(1, true), claim(1, true)));
        assert!(replaces(&a, &b, claim(1, false), claim(1, false)));
        // Another life of the peer: the old link leads nowhere, whoever dialled the new one.
        assert!(replaces(&a, &b, claim(1, true), claim(2, false)));
        assert!(replaces(&b, &a, claim(1, false), claim(2, true)));
        // An earlier one is another daemon of that name, whoever dialled.
        for (old, new) in [(true, true), (true, false), (false, true), (false, false)] {
            assert!(!replaces(&a, &b, claim(2, old), claim(1, new)));
        }
    }
}
