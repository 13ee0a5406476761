//! The sockets of data links: dialled, accepted, handed to shards, turned away. Which ones are wanted the table of links
//! says; here they come about.
//!
//! A peer has at most one link of its own to each shard here from each of its own: a second one takes the place of the
//! first. How many of its shards there are it says itself, below the most that a node can have, and whoever has the
//! cluster key may take any name. So the links of each shard are bounded beside that; new ones only, for a link that
//! goes on takes the place that it had.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use weir_flow::failure::{Failure, FailureCode};
use weir_flow::wire::LinkKind;

use super::data_links::{Arrival, Refusal, Route, SocketName};
use super::{DataSockets, DialProblem, Node, NodeEvent};
use crate::config::SHARDS_MAX;
use crate::io::probe::Level;
use crate::io::uring::UringConfig;
use crate::link::dial;
use crate::link::handshake::{self, HandshakeError, Identity, Peer, Purpose, say_goodbye};
use crate::link::options::{self as link_options, LinkOptions};
use crate::link::peer::PeerAddress;
use crate::shard::mailbox::LinkKey;

/// Data links of one shard from which on no peer gets a new one. A ring has places for more sockets: for links that this
/// node dials, and for sockets that are being closed.
pub(super) const SHARD_LINKS_MAX: usize = 192;

const _: () = assert!(SHARD_LINKS_MAX < UringConfig::new(Level::OneShot).sockets as usize);

/// Of those, the ones of nodes that `peers` does not name and that have no control link. A node that wants a channel has
/// heard of the partition on a control link: without one it can only have lost it a moment ago.
pub(super) const UNLINKED_LINKS_MAX: usize = 64;

impl Node {
    /// A peer's shard wants to be linked with one of ours, or to go on with a link.
    pub(super) fn handle_data_accepted(&mut self, stream: TcpStream, peer: Peer, from: SocketAddr) {
        let Purpose { local_shard, peer_shard, link, resumes, .. } = peer.purpose;
        if self.drain.is_some() {
            self.tasks.spawn(say_goodbye(stream, Self::stopping()));
            return;
        }
        let key = LinkKey { peer: peer.node, local_shard, peer_shard, dialled: false };
        let excess = if resumes == 0 { self.excess(&key) } else { None };
        if let Some(failure) = excess {
            self.refused.note(from, &failure);
            self.tasks.spawn(say_goodbye(stream, failure));
            return;
        }
        let socket = match for_shard(stream) {
            Ok(socket) => socket,
            Err(error) => {
                return tracing::warn!(link = %key, %error, "a data link could not be handed to its shard");
            }
        };
        let name = SocketName { link, resumes };
        let arrival = self.arrival(name, socket, peer.epoch, peer.grace);
        let outcome = self.links.handle_accepted(key.clone(), arrival, &mut self.steps);
        if let Err(Refusal { socket, reason }) = outcome {
            tracing::info!(link = %key, reason, "a peer cannot go on with a data link");
            self.turn_away(socket, reason);
        }
    }

    /// Why a peer may not have this link, if it may not.
    fn excess(&self, key: &LinkKey) -> Option<Failure> {
        let LinkKey { peer, local_shard, peer_shard, .. } = key;
        let over_budget = |text| Some(Failure::new(FailureCode::OverBudget, text));
        if u32::from(*peer_shard) >= SHARDS_MAX {
            let text = format!("shard {peer_shard} dials; needed: below {SHARDS_MAX}, the most of a node");
            return Some(Failure::new(FailureCode::IndexOutOfRange, text));
        }
        if self.links.has(key) {
            return None;
        }
        let count = self.links.count_of_shard(*local_shard, |_| true);
        if count >= SHARD_LINKS_MAX {
            return over_budget(format!(
                "shard {local_shard} has {count} data links; needed: fewer than {SHARD_LINKS_MAX} for a new one"
            ));
        }
        if self.peers.is_known(peer) {
            return None;
        }
        let count = self.links.count_of_shard(*local_shard, |peer| !self.peers.is_known(peer));
        if count >= UNLINKED_LINKS_MAX {
            return over_budget(format!(
                "shard {local_shard} has {count} data links of nodes without a control link; needed: a control \
                 link of {peer} first"
            ));
        }
        None
    }

    fn arrival(
        &self,
        name: SocketName,
        socket: OwnedFd,
        epoch: u64,
        peer_grace: Duration,
    ) -> Arrival<OwnedFd> {
        Arrival { socket, name, epoch, peer_grace, at: self.started.elapsed() }
    }

    /// Tells the other end of a socket that its link is over.
    fn turn_away(&mut self, socket: OwnedFd, reason: String) {
        match for_node(socket) {
            Ok(stream) => {
                let failure = Failure::new(FailureCode::LinkLost, reason);
                self.tasks.spawn(say_goodbye(stream, failure));
            }
            // It is closed without a word then.
            Err(error) => tracing::debug!(%error, "a peer could not be told why its link is over"),
        }
    }

    /// What came of dialling a data link.
    pub(super) fn handle_data_dialled(
        &mut self,
        route: Route,
        name: SocketName,
        outcome: Result<DataSockets, DialProblem>,
    ) {
        let result = outcome.and_then(|sockets| match sockets {
            DataSockets::Link { stream, peer } => {
                let arrival = self.arrival(name, for_shard(stream)?, peer.epoch, peer.grace);
                self.take_dialled(&route, arrival);
                Ok(())
            }
            DataSockets::Pair { dialled, accepted } => {
                let ends = (for_shard(dialled)?, for_shard(accepted)?);
                self.take_pair(&route, name, ends);
                Ok(())
            }
        });
        match result {
            Ok(()) => {}
            Err(DialProblem::Over(reason)) => {
                tracing::info!(?route, reason, "a data link cannot go on");
                self.links.handle_refused(route, name, reason, &mut self.steps);
            }
            Err(DialProblem::Failed(reason)) => self.handle_dial_failed(route, name, &reason),
        }
    }

    fn take_dialled(&mut self, route: &Route, arrival: Arrival<OwnedFd>) {
        if let Some(socket) = self.links.handle_dialled(route, arrival, &mut self.steps) {
            self.turn_away(socket, "the link was given up while it was dialled again".to_owned());
        }
    }

    /// Both ends of a link of this node to itself. A new link can be refused by nobody; of one that goes on the accepted
    /// end comes first: if it is over, so is the other.
    fn take_pair(&mut self, route: &Route, name: SocketName, (dialled, accepted): (OwnedFd, OwnedFd)) {
        if !self.links.is_dialling(route, name) {
            return;
        }
        let (epoch, grace) = (self.identity.epoch, self.identity.grace);
        let dialled = self.arrival(name, dialled, epoch, grace);
        let accepted = self.arrival(name, accepted, epoch, grace);
        let far = route.far_end(&self.identity.node);
        if name.resumes == 0 {
            self.take_dialled(route, dialled);
            // It was not refused when it was new.
            let _ = self.links.handle_accepted(far, accepted, &mut self.steps);
            return;
        }
        match self.links.handle_accepted(far, accepted, &mut self.steps) {
            Ok(()) => self.take_dialled(route, dialled),
            Err(Refusal { reason, .. }) => {
                self.links.handle_refused(route.clone(), name, reason, &mut self.steps);
            }
        }
    }

    fn handle_dial_failed(&mut self, route: Route, name: SocketName, reason: &str) {
        tracing::warn!(?route, resumes = name.resumes, reason, "a data link could not be dialled");
        self.links.handle_dial_failed(route, name, &mut self.steps);
    }

    /// Dials after this time.
    pub(super) fn dial_later(&mut self, route: Route, socket: SocketName, wait: Duration) {
        tracing::debug!(?route, wait_ms = wait.as_millis(), "a data link is dialled again");
        let events = self.events.clone();
        self.tasks.spawn(async move {
            tokio::time::sleep(wait).await;
            let _ = events.send(NodeEvent::DialAgain { route, socket }).await;
        });
    }

    /// It is time to dial again, if anybody still waits.
    pub(super) fn handle_dial_again(&mut self, route: Route, socket: SocketName) {
        self.links.handle_dial_due(route, socket, &mut self.steps);
    }

    /// Dials a peer, or makes a pair.
    pub(super) fn dial_route(&mut self, route: Route, socket: SocketName) {
        let (events, options) = (self.events.clone(), self.options.link.clone());
        if route.peer == self.identity.node {
            self.tasks.spawn(async move {
                let outcome = make_pair(&options)
                    .await
                    .map_err(|error| DialProblem::Failed(format!("loopback link: {error}")));
                let _ = events.send(NodeEvent::DataDialled { route, socket, outcome }).await;
            });
            return;
        }
        let Some(peer) = self.peer_address(&route.peer) else {
            self.handle_dial_failed(route, socket, "no address of the peer is known");
            return;
        };
        let (identity, places) = (self.identity.clone(), self.dials.data.clone());
        self.tasks.spawn(async move {
            // Nobody closes it.
            let _place = places.acquire().await;
            let outcome = dial_peer(&peer, &identity, &options, purpose(&route, socket)).await;
            let _ = events.send(NodeEvent::DataDialled { route, socket, outcome }).await;
        });
    }

    /// Tells the other end of a link that this node dialled that it is over. Once: a peer that cannot be reached finds
    /// out when its own grace is over.
    pub(super) fn tell_over(&mut self, route: Route, socket: SocketName, reason: String) {
        if route.peer == self.identity.node {
            let far = route.far_end(&self.identity.node);
            self.links.handle_told(far, socket.link, reason, &mut self.steps);
            return;
        }
        let Some(peer) = self.peer_address(&route.peer).filter(|_| self.drain.is_none()) else {
            return;
        };
        let (identity, options) = (self.identity.clone(), self.options.link.clone());
        let places = self.dials.data.clone();
        self.tasks.spawn(async move {
            let _place = places.acquire().await;
            match dial_peer(&peer, &identity, &options, purpose(&route, socket)).await {
                Ok(DataSockets::Link { stream, .. }) => {
                    let text = format!("node {} has closed the link: {reason}", identity.node);
                    say_goodbye(stream, Failure::new(FailureCode::LinkLost, text)).await;
                }
                // It knows.
                Ok(DataSockets::Pair { .. }) | Err(DialProblem::Over(_)) => {}
                Err(DialProblem::Failed(error)) => {
                    tracing::info!(?route, error, "a peer could not be told that a data link is over");
                }
            }
        });
    }

    /// A shard says that a link has lost its socket.
    pub(super) fn handle_link_lost(&mut self, key: &LinkKey, reason: &str) {
        tracing::info!(link = %key, reason, "a data link has lost its socket");
        self.links.handle_lost(key, self.started.elapsed(), &mut self.steps);
    }

    /// A shard says that a link is over, and whether its other end cannot know that.
    pub(super) fn handle_link_closed(&mut self, key: &LinkKey, reason: &str, is_unsaid: bool) {
        tracing::info!(link = %key, reason, "data link closed");
        self.links.handle_closed(key, reason, is_unsaid, &mut self.steps);
    }
}

/// What a socket of a link that this node dials is for.
fn purpose(route: &Route, socket: SocketName) -> Purpose {
    Purpose {
        kind: LinkKind::Data,
        local_shard: route.local_shard,
        peer_shard: route.peer_shard,
        link: socket.link,
        resumes: socket.resumes,
    }
}

/// Connects to a peer and shakes hands for a data link.
async fn dial_peer(
    peer: &PeerAddress,
    identity: &Identity,
    options: &LinkOptions,
    purpose: Purpose,
) -> Result<DataSockets, DialProblem> {
    let failed = |error: &dyn std::fmt::Display| DialProblem::Failed(format!("{}: {error}", peer.address));
    let stream =
        dial::dial(&peer.address, options).await.map_err(|error| DialProblem::Failed(error.to_string()))?;
    match handshake::dial(stream, identity, purpose, &peer.node).await {
        Ok((stream, peer)) => Ok(DataSockets::Link { stream, peer }),
        Err(HandshakeError::LinkOver(failure)) => {
            Err(DialProblem::Over(format!("node {} said: {}", peer.node, failure.text)))
        }
        Err(error) => Err(failed(&error)),
    }
}

impl From<io::Error> for DialProblem {
    fn from(error: io::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

/// A connection as a shard wants it: blocking, so that the ring waits for it instead of failing with EAGAIN.
fn for_shard(stream: TcpStream) -> io::Result<OwnedFd> {
    let stream = stream.into_std()?;
    stream.set_nonblocking(false)?;
    Ok(stream.into())
}

/// Takes a connection back that no shard wanted.
fn for_node(socket: OwnedFd) -> io::Result<TcpStream> {
    let stream = std::net::TcpStream::from(socket);
    stream.set_nonblocking(true)?;
    TcpStream::from_std(stream)
}

/// Both ends of a connection of this process to itself. There is nobody to authenticate, but somebody else may have
/// connected first, and is turned away.
async fn make_pair(options: &LinkOptions) -> io::Result<DataSockets> {
    let listener = TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0)).await?;
    let dialled = TcpStream::connect(listener.local_addr()?).await?;
    let own = dialled.local_addr()?;
    let accepted = loop {
        let (accepted, from) = listener.accept().await?;
        if from == own {
            break accepted;
        }
    };
    for end in [&dialled, &accepted] {
        link_options::apply(end, options).map_err(io::Error::other)?;
    }
    Ok(DataSockets::Pair { dialled, accepted })
}
