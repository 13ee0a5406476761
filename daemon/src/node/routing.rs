//! From what the catalog asks for to what shards and peers are told.
//!
//! A channel needs three things that come about apart: the gate's memory, a link to the producer's shard, and the
//! producer. The catalog says when gate and producer have found each other; here the link is found or made, and the
//! gate's shard told to open the channel over it.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use weir_flow::catalog::{CatalogAction, GateKey, PartitionKey};
use weir_flow::exchange::Name;
use weir_flow::failure::{Failure, FailureCode};
use weir_flow::ids::{ProducerIndex, ProducerLife};
use weir_flow::wire::{CatalogEntry, LinkKind, PartitionState};

use super::attachments::{Attachments, Place, RingState};
use super::data_links::{Refusal, Route, SocketName, Step, Waiter};
use super::{DataSockets, DialProblem, Node, NodeEvent};
use crate::config::SHARDS_MAX;
use crate::link::dial;
use crate::link::handshake::{self, HandshakeError, Identity, Peer, Purpose, say_goodbye};
use crate::link::options::{self as link_options, LinkOptions};
use crate::link::peer::PeerAddress;
use crate::shard::mailbox::{LinkKey, RingKey, ToShard};

/// How long to wait before a channel is tried again whose link was gone when its shard came to it. A link that breaks
/// as soon as it is up must not keep the node busy.
const RETRY_WAIT: Duration = Duration::from_millis(100);

impl Node {
    /// Carries out everything that the catalog and the table of links have asked for.
    pub(super) fn route(&mut self) {
        loop {
            let steps = std::mem::take(&mut self.steps);
            let is_idle = steps.is_empty();
            for step in steps {
                self.take_step(step);
            }
            match self.catalog.poll_action() {
                Some(action) => self.take_action(action),
                None if is_idle => return,
                None => {}
            }
        }
    }

    fn take_action(&mut self, action: CatalogAction) {
        match action {
            CatalogAction::Announce { peer, entries } => self.announce(peer.as_ref(), entries),
            CatalogAction::GateShapeKnown { gate, shape } => self.make_gate(&gate, shape),
            CatalogAction::Connect { gate, producer, node, shard, incarnation } => {
                self.connect(&gate, ProducerLife { producer, incarnation }, node, shard);
            }
            CatalogAction::FailLocalPartition { partition, failure } => {
                self.fail_partition(&partition, failure)
            }
            CatalogAction::FailGate { gate, failure } => self.fail_gate(&gate, failure),
        }
    }

    fn take_step(&mut self, step: Step<OwnedFd>) {
        match step {
            Step::Dial { route, socket } => self.dial_route(route, socket),
            Step::DialLater { route, socket, wait } => self.dial_later(route, socket, wait),
            Step::Add { key, socket } => {
                tracing::info!(?key, "data link up");
                self.mail(key.local_shard, ToShard::AddLink { key, socket, early: Vec::new() });
            }
            Step::Suspend { key } => self.mail(key.local_shard, ToShard::SuspendLink { key }),
            Step::Resume { key, socket } => {
                tracing::info!(?key, "data link has another socket");
                self.mail(key.local_shard, ToShard::ResumeLink { key, socket });
            }
            Step::Close { key, reason } => self.mail(key.local_shard, ToShard::CloseLink { key, reason }),
            Step::Connect { waiter, key } => {
                let Waiter { ring, life } = waiter;
                self.mail(key.local_shard, ToShard::ConnectProducer { key: ring, life, link: key });
            }
        }
    }

    /// A gate and a producer have found each other. A gate that is gone meanwhile needs no channel.
    fn connect(&mut self, gate: &GateKey, life: ProducerLife, node: Name, shard: u16) {
        let Some((client, ring)) = self.attachments.holder(&Place::Gate(gate.clone())) else {
            return;
        };
        let Some(local_shard) = client.shard else {
            return;
        };
        let route = Route { peer: node, local_shard, peer_shard: shard };
        self.links.handle_wanted(route, Waiter { ring, life }, &mut self.steps);
    }

    fn fail_partition(&mut self, partition: &PartitionKey, failure: Failure) {
        let Some((client, ring)) = self.attachments.holder(&Place::Partition(partition.clone())) else {
            return;
        };
        tracing::warn!(client = client.describe(), %partition, %failure, "a partition lost its place");
        self.close_ring(ring, Some(failure));
    }

    /// Frees the place of a ring: nobody is to be connected to it, or for it, any more.
    pub(super) fn leave_place(&mut self, key: RingKey) {
        match self.attachments.free_place(key) {
            None => {}
            Some(Place::Partition(partition)) => self.catalog.handle_local_gone(&partition),
            Some(Place::Gate(gate)) => {
                self.waiting_gates.remove(&gate);
                self.catalog.handle_gate_gone(&gate);
                self.links.forget_ring(key);
            }
        }
    }

    /// Every consumer's daemon has acknowledged the end of a partition.
    pub(super) fn handle_partition_finished(&mut self, key: RingKey) {
        self.leave_place(key);
    }

    /// A partition has failed. Its client has been told by its shard.
    pub(super) fn handle_ring_failed(&mut self, key: RingKey, failure: &Failure) {
        let Some(state) = self.attachments.ring_mut(key) else { return };
        tracing::warn!(?key, place = ?state.place, %failure, "failed");
        self.leave_place(key);
    }

    /// The link of a channel was gone before the channel was asked for. Nothing of the producer was read, so the gate
    /// is free to be connected to it over another link, a little later.
    pub(super) fn handle_not_connected(&mut self, key: RingKey, producer: ProducerIndex) {
        let Some(gate) = gate_key(&mut self.attachments, key) else { return };
        tracing::info!(%gate, %producer, "the link of a channel broke before it was opened");
        self.catalog.handle_connect_failed(&gate, producer);
        if std::mem::replace(&mut self.is_retry_due, true) {
            return;
        }
        let events = self.events.clone();
        self.tasks.spawn(async move {
            tokio::time::sleep(RETRY_WAIT).await;
            let _ = events.send(NodeEvent::Retry).await;
        });
    }

    /// Connects every gate anew that could not be.
    pub(super) fn handle_retry(&mut self) {
        self.is_retry_due = false;
        self.catalog.handle_retry();
    }

    /// A peer's shard wants to be linked with one of ours, or to go on with a link.
    pub(super) fn handle_data_accepted(&mut self, stream: TcpStream, peer: &Peer) {
        let Purpose { kind, local_shard, peer_shard, link, resumes } = peer.purpose;
        if kind != LinkKind::Data {
            return;
        }
        if self.drain.is_some() {
            self.tasks.spawn(say_goodbye(stream, Self::stopping()));
            return;
        }
        let key = LinkKey { peer: peer.node.clone(), local_shard, peer_shard, dialled: false };
        let socket = match for_shard(stream) {
            // What bounds how many links a peer may have.
            Ok(socket) if u32::from(peer_shard) >= SHARDS_MAX => {
                let reason =
                    format!("shard {peer_shard} dials; needed: below {SHARDS_MAX}, the most of a node");
                return self.turn_away(socket, reason);
            }
            Ok(socket) => socket,
            Err(error) => return tracing::warn!(?key, %error, "a data link could not be handed to its shard"),
        };
        let (name, when) = (SocketName { link, resumes }, (peer.epoch, self.started.elapsed()));
        let outcome = self.links.handle_accepted(key.clone(), name, socket, when, &mut self.steps);
        if let Err(Refusal { socket, reason }) = outcome {
            tracing::info!(?key, reason, "a peer cannot go on with a data link");
            self.turn_away(socket, reason);
        }
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
        let sockets = outcome.and_then(|sockets| match sockets {
            DataSockets::Link { stream, peer } => Ok((for_shard(stream)?, None, peer.epoch)),
            DataSockets::Pair { dialled, accepted } => {
                Ok((for_shard(dialled)?, Some(for_shard(accepted)?), self.identity.epoch))
            }
        });
        match sockets {
            Ok((dialled, None, epoch)) => self.take_dialled(&route, name, dialled, epoch),
            Ok((dialled, Some(accepted), epoch)) => self.take_pair(route, name, (dialled, accepted), epoch),
            Err(DialProblem::Over(reason)) => {
                tracing::info!(?route, reason, "a data link cannot go on");
                self.links.handle_refused(route, name, reason, &mut self.steps);
            }
            Err(DialProblem::Failed(reason)) => self.handle_dial_failed(route, name, &reason),
        }
    }

    fn take_dialled(&mut self, route: &Route, name: SocketName, socket: OwnedFd, epoch: u64) {
        let when = (epoch, self.started.elapsed());
        let unwanted = self.links.handle_dialled(route, name, socket, when, &mut self.steps);
        if let Some(socket) = unwanted {
            self.turn_away(socket, "the link was given up while it was dialled again".to_owned());
        }
    }

    /// Both ends of a link of this node to itself. A new link can be refused by nobody; of one that goes on the accepted
    /// end comes first: if it is over, so is the other.
    fn take_pair(&mut self, route: Route, name: SocketName, ends: (OwnedFd, OwnedFd), epoch: u64) {
        if !self.links.is_dialling(&route, name) {
            return;
        }
        let (dialled, accepted) = ends;
        let (mut dialled, is_new) = (Some(dialled), name.resumes == 0);
        if let Some(dialled) = dialled.take_if(|_| is_new) {
            self.take_dialled(&route, name, dialled, epoch);
        }
        let far = Route { local_shard: route.peer_shard, peer_shard: route.local_shard, ..route.clone() };
        let when = (epoch, self.started.elapsed());
        match self.links.handle_accepted(far.key(false), name, accepted, when, &mut self.steps) {
            Ok(()) => {
                if let Some(dialled) = dialled {
                    self.take_dialled(&route, name, dialled, epoch);
                }
            }
            Err(Refusal { reason, .. }) => self.links.handle_refused(route, name, reason, &mut self.steps),
        }
    }

    fn handle_dial_failed(&mut self, route: Route, name: SocketName, reason: &str) {
        tracing::warn!(?route, resumes = name.resumes, reason, "a data link could not be dialled");
        self.links.handle_dial_failed(route, name, &mut self.steps);
    }

    fn dial_later(&mut self, route: Route, socket: SocketName, wait: Duration) {
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

    fn dial_route(&mut self, route: Route, socket: SocketName) {
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
        let identity = self.identity.clone();
        let purpose = Purpose {
            kind: LinkKind::Data,
            local_shard: route.local_shard,
            peer_shard: route.peer_shard,
            link: socket.link,
            resumes: socket.resumes,
        };
        self.tasks.spawn(async move {
            let outcome = dial_peer(&peer, &identity, &options, purpose).await;
            let _ = events.send(NodeEvent::DataDialled { route, socket, outcome }).await;
        });
    }

    /// A shard says that a link has lost its socket.
    pub(super) fn handle_link_lost(&mut self, key: &LinkKey, reason: &str) {
        tracing::info!(?key, reason, "a data link has lost its socket");
        self.links.handle_lost(key, self.started.elapsed(), &mut self.steps);
    }

    /// A shard says that a link is over.
    pub(super) fn handle_link_closed(&mut self, key: &LinkKey, reason: &str) {
        tracing::info!(?key, reason, "data link closed");
        self.links.handle_closed(key, reason, &mut self.steps);
    }

    /// Nobody can be connected to a peer that is gone; when it is back, the catalog asks anew.
    pub(super) fn forget_peer(&mut self, peer: &Name) {
        self.catalog.handle_peer_lost(peer);
        let waiters = self.links.forget_waiters(peer, |_| true);
        self.unbind(waiters);
    }

    /// A peer tells that these producers are gone. A gate that still waited for a link to one has read nothing of it,
    /// and is free to take its next life.
    pub(super) fn forget_gone(&mut self, peer: &Name, entries: &[CatalogEntry]) {
        for entry in entries.iter().filter(|entry| entry.state == PartitionState::Gone) {
            let life = ProducerLife { producer: entry.producer, incarnation: entry.incarnation };
            let attachments = &mut self.attachments;
            let waiters = self.links.forget_waiters(peer, |waiter| {
                waiter.life == life
                    && gate_key(attachments, waiter.ring).is_some_and(|gate| gate.exchange == entry.exchange)
            });
            self.unbind(waiters);
        }
    }

    fn unbind(&mut self, waiters: Vec<Waiter>) {
        for Waiter { ring, life } in waiters {
            if let Some(gate) = gate_key(&mut self.attachments, ring) {
                self.catalog.handle_connect_failed(&gate, life.producer);
            }
        }
    }
}

/// The gate that this ring is. None once it has left its place, which another may have taken.
fn gate_key(attachments: &mut Attachments, ring: RingKey) -> Option<GateKey> {
    match attachments.ring_mut(ring)? {
        RingState { place: Place::Gate(gate), has_ended: false, .. } => Some(gate.clone()),
        _ => None,
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
