//! Peers by a name that resolves to the addresses of all nodes (`peers_dns`).
//!
//! The name is looked up beside the node, time after time. Whose an address is nobody says, so it is asked: by a control link
//! that takes whoever is there, and is kept if that node is no peer yet. From then on it is a peer like one that the
//! configuration names, with that address. An address that is this node's own is known by its answer.
//!
//! An address that fails is asked again when the name has been looked up again, so that the work is bounded by the number
//! of addresses in an interval. A peer whose address the name has no more is dialled no more, and stays as long as its link does.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use tokio::task::AbortHandle;
use weir_flow::exchange::Name;
use weir_flow::failure::{Failure, FailureCode};

use super::peers::Candidate;
use super::{Node, NodeEvent};
use crate::control::snapshot::Subsystem;
use crate::link::peer::{self, Found, PeerAddress};
use crate::link::resolve::{self, Lookup};

/// Addresses and nodes that the line names.
const NAMED_MAX: usize = 5;

/// What is known of one address.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    /// It is being asked.
    Asked,
    /// A node of this name.
    Node(Name),
    /// This node.
    Own,
    /// Nobody, for this reason.
    Nobody(String),
}

/// What the name has been found to mean.
#[derive(Debug, Default)]
pub(super) struct Discovery {
    lookup: Option<Lookup>,
    looking: Option<AbortHandle>,
    places: BTreeMap<SocketAddr, Place>,
    /// Why the name could not be looked up the last time.
    problem: Option<String>,
}

impl Discovery {
    /// The line of `weir status`, if there is a name.
    pub(super) fn line(&self) -> Option<Subsystem> {
        const NAME: &str = "peers_dns";
        let Lookup { name, .. } = self.lookup.as_ref()?;
        let mut nodes: Vec<&str> = Vec::new();
        let (mut own, mut failed) = (0, Vec::new());
        for place in self.places.values() {
            match place {
                Place::Node(node) => nodes.push(node.as_str()),
                Place::Own => own += 1,
                Place::Nobody(reason) => failed.push(reason.as_str()),
                Place::Asked => {}
            }
        }
        nodes.sort_unstable();
        nodes.dedup();
        let own = if own > 0 { ", this node among them" } else { "" };
        let detail =
            format!("{name}: {} addresses{own}; peers: {}", self.places.len(), some_of(&nodes, ", "));
        if let Some(problem) = &self.problem {
            let host = name.rsplit_once(':').map_or(name.as_str(), |(host, _)| host);
            let reason = format!("cannot resolve {name}: {problem}; what was found before is kept");
            let fix = format!("peers_dns, or the records of that name (`getent ahosts {host}` shows them)");
            return Some(Subsystem::degraded(NAME, detail, reason, fix));
        }
        if !failed.is_empty() {
            let fix = "start weir there, or take that address out of the records of the name";
            return Some(Subsystem::degraded(NAME, detail, some_of(&failed, " | "), fix));
        }
        Some(Subsystem::ok(NAME, detail))
    }
}

fn some_of(all: &[&str], between: &str) -> String {
    let shown = all.iter().take(NAMED_MAX).copied().collect::<Vec<_>>().join(between);
    match all.len().saturating_sub(NAMED_MAX) {
        _ if all.is_empty() => "none".to_owned(),
        0 => shown,
        rest => format!("{shown}{between}and {rest} more"),
    }
}

impl Node {
    /// Looks this name up from now on, and no other.
    pub(super) fn look_up(&mut self, lookup: Option<Lookup>) {
        if self.discovery.lookup == lookup {
            return;
        }
        if let Some(looking) = self.discovery.looking.take() {
            looking.abort();
        }
        let name = |lookup: &Option<Lookup>| lookup.as_ref().map(|lookup| lookup.name.clone());
        // What a name means does not change with how often it is looked up.
        if name(&self.discovery.lookup) != name(&lookup) {
            for (address, place) in std::mem::take(&mut self.discovery.places) {
                self.leave_found(address, place);
            }
            self.discovery = Discovery::default();
        }
        self.discovery.lookup.clone_from(&lookup);
        if let Some(lookup) = lookup {
            let name = lookup.name.clone();
            let wrap = move |outcome| NodeEvent::Resolved { name: name.clone(), outcome };
            let looking = resolve::repeat(lookup, self.events.clone(), wrap);
            self.discovery.looking = Some(self.acceptors.spawn(looking));
        }
    }

    /// The name was looked up, or could not be.
    pub(super) fn handle_resolved(&mut self, name: &str, outcome: Result<Vec<SocketAddr>, String>) {
        // On its way when the name was changed or taken away, or a drain began.
        if self.drain.is_some() || self.discovery.lookup.as_ref().is_none_or(|lookup| lookup.name != name) {
            return;
        }
        let addresses = match outcome {
            Ok(addresses) => addresses,
            Err(problem) => {
                if self.discovery.problem.as_ref() != Some(&problem) {
                    tracing::warn!(problem, "the name of the peers cannot be resolved; it is tried again");
                    self.discovery.problem = Some(problem);
                }
                return;
            }
        };
        self.discovery.problem = None;
        let gone: Vec<SocketAddr> = self
            .discovery
            .places
            .keys()
            .filter(|address| addresses.binary_search(address).is_err())
            .copied()
            .collect();
        for address in gone {
            // One that is linked goes when its link has ended.
            let is_linked = matches!(self.discovery.places.get(&address), Some(Place::Node(node)) if self.peers.is_linked(node));
            if !is_linked && let Some(place) = self.discovery.places.remove(&address) {
                tracing::info!(%address, "the name of the peers has this address no more");
                self.leave_found(address, place);
            }
        }
        for address in addresses {
            self.look_at(address);
        }
    }

    fn look_at(&mut self, address: SocketAddr) {
        match self.discovery.places.get(&address) {
            Some(Place::Asked | Place::Own) => return,
            Some(Place::Node(node)) if !self.is_found(node) => return,
            Some(Place::Node(node)) => {
                let node = node.clone();
                if !self.peers.is_dialled(&node) {
                    // The configuration named it until now.
                    self.keep_peer(PeerAddress { node, address: address.to_string() });
                    return;
                }
                if self.peers.is_linked(&node) || !self.peers.has_another_name(&node) {
                    return;
                }
                // Another node has come to that address.
                self.discovery.places.remove(&address);
                self.leave_found(address, Place::Node(node));
            }
            Some(Place::Nobody(_)) | None => {}
        }
        if let Some(node) = self.peers.at(address) {
            // It has dialled, or is configured.
            if self.is_found(&node) && !self.peers.is_dialled(&node) {
                self.keep_peer(PeerAddress { node: node.clone(), address: address.to_string() });
            }
            self.discovery.places.insert(address, Place::Node(node));
            return;
        }
        self.discovery.places.insert(address, Place::Asked);
        let (events, places) = (self.events.clone(), self.dials.control.clone());
        let (identity, options) = (self.identity.clone(), self.options.link.clone());
        self.acceptors.spawn(async move {
            // Nobody closes it.
            let place = places.acquire().await;
            let found = peer::find(address, &identity, &options).await;
            drop(place);
            // A node that has ended looks for nobody.
            let _ = events.send(NodeEvent::Found { address, found }).await;
        });
    }

    /// An address was asked whose it is.
    pub(super) fn handle_found(&mut self, address: SocketAddr, found: Found) {
        // One that the name has no more by now; and a node that drains takes no link.
        if self.drain.is_some() || self.discovery.places.get(&address) != Some(&Place::Asked) {
            return;
        }
        let place = match found {
            Found::Itself => Place::Own,
            Found::Failed { reason } => {
                tracing::warn!(%address, reason, "nobody to be linked with at an address of the name of the peers");
                Place::Nobody(reason)
            }
            Found::Node { peer, stream } => {
                let node = peer.node.clone();
                tracing::info!(%address, peer = %node, "a peer was found by name");
                if self.is_found(&node) {
                    self.keep_peer(PeerAddress { node: node.clone(), address: address.to_string() });
                }
                if let Some(stream) = stream {
                    self.adopt(Candidate { stream, peer, dialled: true, listens: Some(address), held: None });
                }
                Place::Node(node)
            }
        };
        self.discovery.places.insert(address, place);
    }

    /// Whether a node is a peer only because it was found: the configuration does not name it.
    fn is_found(&self, node: &Name) -> bool {
        self.options.peers.iter().all(|peer| peer.node != *node)
    }

    /// What was at an address, which the name has no more, or where another node is. A node that was found at another address
    /// too is dialled there.
    fn leave_found(&mut self, address: SocketAddr, place: Place) {
        let Place::Node(node) = place else { return };
        if !self.is_found(&node) {
            return;
        }
        let mut places = self.discovery.places.iter();
        match places.find(|(_, other)| matches!(other, Place::Node(other) if *other == node)) {
            Some((other, _)) if self.peers.is_dialled_at(&node, &address.to_string()) => {
                self.keep_peer(PeerAddress { address: other.to_string(), node });
            }
            Some(_) => {}
            None => {
                let text = format!("{} does not find {node} by name any more", self.identity.node);
                self.leave_peer(&node, Failure::new(FailureCode::LinkLost, text));
            }
        }
    }
}
