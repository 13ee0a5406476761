//! From what the catalog asks for to what shards and peers are told.
//!
//! A channel needs three things that come about apart: the gate's memory, a link to the producer's shard, and the
//! producer. The catalog says when gate and producer have found each other; here the link is found or made, and the
//! gate's shard told to open the channel over it.
//!
//! Where both are on this node and of one user there is no link: the client of the gate gets the producer's region to read,
//! and the shards hand each other the rest.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use weir_flow::catalog::{CatalogAction, GateKey, PartitionKey};
use weir_flow::exchange::Name;
use weir_flow::failure::Failure;
use weir_flow::ids::{ProducerIndex, ProducerLife};
use weir_flow::wire::{CatalogEntry, PartitionEntry, PartitionState};
use weir_ipc::attach::message::LentRegion;
use weir_ipc::attach::socket;

use super::attachments::{Attachments, Place, RingState};
use super::data_links::{Route, Step, Waiter};
use super::{Node, NodeEvent};
use crate::shard::mailbox::{RingKey, ToShard};

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
            Step::Add { key, socket, peer_grace } => {
                tracing::info!(link = %key, "data link up");
                let early = Vec::new();
                self.mail(key.local_shard, ToShard::AddLink { key, socket, early, peer_grace });
            }
            Step::Suspend { key } => self.mail(key.local_shard, ToShard::SuspendLink { key }),
            Step::Resume { key, socket } => {
                tracing::info!(link = %key, "data link has another socket");
                self.mail(key.local_shard, ToShard::ResumeLink { key, socket });
            }
            Step::Tell { route, socket, reason } => self.tell_over(route, socket, reason),
            Step::Close { key, reason } => self.mail(key.local_shard, ToShard::CloseLink { key, reason }),
            Step::Connect { waiter, key } => {
                let Waiter { ring, life } = waiter;
                self.mail(key.local_shard, ToShard::ConnectProducer { key: ring, life, link: key });
            }
        }
    }

    /// A gate and a producer have found each other. A gate that is gone meanwhile needs no channel; one whose memory is
    /// not made yet is connected to whoever is there then.
    fn connect(&mut self, gate: &GateKey, life: ProducerLife, node: Name, shard: u16) {
        if self.waiting_gates.contains_key(gate) {
            return self.catalog.handle_connect_failed(gate, life.producer);
        }
        let Some((client, ring)) = self.attachments.holder(&Place::Gate(gate.clone())) else {
            return;
        };
        let Some(local_shard) = client.shard else {
            return;
        };
        if node == self.options.node && self.lend(gate, ring, life) {
            return self.mail(local_shard, ToShard::ConnectLocal { key: ring, life, shard });
        }
        let route = Route { peer: node, local_shard, peer_shard: shard };
        self.links.handle_wanted(route, Waiter { ring, life }, &mut self.steps);
    }

    /// Gives the client of a gate the region of a producer on this node, if it may read it. Where that does not come about
    /// the channel goes over a link, as if the producer were elsewhere.
    fn lend(&self, gate: &GateKey, ring: RingKey, life: ProducerLife) -> bool {
        let exchange = gate.exchange.clone();
        let place = Place::Partition(PartitionKey { exchange, producer: life.producer });
        let Some((region, socket)) = self.attachments.lend(&place, ring) else { return false };
        let sent = socket::send_region(socket, &LentRegion { producer: life.producer.0 }, region.as_fd());
        if let Err(error) = &sent {
            tracing::info!(%gate, producer = %life.producer, %error, "a region cannot be lent");
        }
        sent.is_ok()
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
        tracing::warn!(ring = %key, place = ?state.place, %failure, "failed");
        self.leave_place(key);
    }

    /// The link of a channel was gone before the channel was asked for, or the producer's life was: it was replaced at
    /// that moment, or is so new that its shard does not know it yet. Nothing of the producer was read, so the gate is
    /// free to be connected to what the catalog knows of it a little later.
    pub(super) fn handle_not_connected(&mut self, key: RingKey, producer: ProducerIndex) {
        let Some(gate) = gate_key(&mut self.attachments, key) else { return };
        tracing::info!(%gate, %producer, "a channel could not be opened and is tried again");
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

    /// Nobody can be connected to a peer that is gone; when it is back, the catalog asks anew.
    pub(super) fn forget_peer(&mut self, peer: &Name) {
        self.seen.forget(peer);
        self.catalog.handle_peer_lost(peer);
        let waiters = self.links.forget_waiters(peer, |_| true);
        self.unbind(waiters);
    }

    /// A peer tells that these producers are gone. A gate that still waited for a link to one has read nothing of it,
    /// and is free to take its next life.
    pub(super) fn forget_gone(&mut self, peer: &Name, entries: &[CatalogEntry]) {
        let gone = entries.iter().filter_map(|entry| match entry {
            CatalogEntry::Partition(entry @ PartitionEntry { state: PartitionState::Gone, .. }) => {
                Some(entry)
            }
            CatalogEntry::Partition(_) | CatalogEntry::Gate(_) => None,
        });
        for entry in gone {
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
