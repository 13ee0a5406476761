//! The gates of this node, and what is known of those of others.

use alloc::collections::BTreeMap;

use super::{Catalog, GateKey, GateWants, TooManyEntries, check_stated};
use crate::exchange::{Name, Shape};
use crate::ids::{Incarnation, ProducerIndex};
use crate::wire::{CatalogEntry, GateEntry, GateState};

/// Most gates that are remembered of one peer.
pub const PEER_GATES_MAX: usize = 1 << 16;

/// A gate of this node.
#[derive(Debug)]
pub(super) struct Gate {
    /// The task that it is an input of.
    pub(super) task: Name,
    pub(super) wants: GateWants,
    /// Set once.
    pub(super) shape: Option<Shape>,
    /// Producers that it was connected to, with the life that it was bound to.
    pub(super) bound: BTreeMap<ProducerIndex, Incarnation>,
    pub(super) failed: bool,
    /// Whether peers were told of it.
    is_announced: bool,
}

impl Gate {
    pub(super) const fn new(task: Name, wants: GateWants) -> Self {
        Self { task, wants, shape: None, bound: BTreeMap::new(), failed: false, is_announced: false }
    }

    /// What is settled of its exchange.
    pub(super) fn known(&self) -> GateWants {
        self.shape.as_ref().map_or(self.wants, GateWants::all_of)
    }

    /// What the wire says of it.
    pub(super) fn entry(&self, key: &GateKey, state: GateState) -> CatalogEntry {
        CatalogEntry::Gate(GateEntry {
            exchange: key.exchange.clone(),
            consumer: key.consumer,
            wants: self.known(),
            state,
            task: self.task.clone(),
        })
    }
}

/// The gates of the peers, by peer.
#[derive(Debug)]
pub(super) struct RemoteGates(BTreeMap<Name, BTreeMap<GateKey, RemoteGate>>);

#[derive(Debug)]
struct RemoteGate {
    task: Name,
    wants: GateWants,
}

impl RemoteGates {
    pub(super) const fn new() -> Self {
        Self(BTreeMap::new())
    }

    /// A peer tells of one of its gates. One that cannot be is left out.
    pub(super) fn handle_entry(&mut self, peer: &Name, entry: GateEntry) -> Result<(), TooManyEntries> {
        let GateEntry { exchange, consumer, wants, state, task } = entry;
        if check_stated(&wants).is_err() || consumer.0 >= wants.consumers {
            return Ok(());
        }
        let key = GateKey { exchange, consumer };
        if state == GateState::Gone {
            if let Some(gates) = self.0.get_mut(peer) {
                gates.remove(&key);
            }
            return Ok(());
        }
        let gates = self.0.entry(peer.clone()).or_default();
        if gates.len() >= PEER_GATES_MAX && !gates.contains_key(&key) {
            return Err(TooManyEntries::Gates);
        }
        gates.insert(key, RemoteGate { task, wants });
        Ok(())
    }

    pub(super) fn handle_peer_lost(&mut self, peer: &Name) {
        self.0.remove(peer);
    }
}

impl Catalog {
    /// Every gate known: the node that it is attached to, its task, and what is known there of its exchange. Those of this
    /// node come first.
    pub fn gates(&self) -> impl Iterator<Item = (&GateKey, &Name, &Name, GateWants)> {
        let own = self.gates.iter().map(|(key, gate)| (key, &self.node, &gate.task, gate.known()));
        let remote = self.remote_gates.0.iter();
        let remote = remote.flat_map(|(node, gates)| {
            gates.iter().map(move |(key, gate)| (key, node, &gate.task, gate.wants))
        });
        own.chain(remote)
    }

    /// Tells all peers of a gate of this node.
    pub(super) fn announce_gate(&mut self, key: &GateKey) {
        if let Some(gate) = self.gates.get_mut(key) {
            gate.is_announced = true;
            let entry = gate.entry(key, GateState::Attached);
            self.announce(None, alloc::vec![entry]);
        }
    }

    /// Tells all peers what a gate of this node has learnt, if they know less of it.
    pub(super) fn announce_learnt(&mut self, key: &GateKey) {
        if self.gates.get(key).is_some_and(|gate| gate.is_announced && gate.wants.shape().is_none()) {
            self.announce_gate(key);
        }
    }
}
