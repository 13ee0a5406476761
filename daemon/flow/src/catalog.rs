//! The catalog of a node: which partitions and gates there are, on which nodes, and which gates of this one want what.
//!
//! It lives on the control thread and decides; the shell carries out. Rules:
//! - **Who comes later has to fit.** A producer or consumer that attaches here is refused if its index is taken, or
//!   if it disagrees with what is known of its exchange. Whoever is there already does not notice.
//! - **Two that could not know of each other** (on two nodes, while these had no link) are told apart alike
//!   everywhere: the one with the larger incarnation loses, then the one on the node with the larger name. The
//!   loser's own node fails it.
//! - **A gate takes the first.** It is bound to the first incarnation of each producer that it was connected to,
//!   and is never connected to another one: records of two lives must not be mixed. It is connected to producers
//!   as they appear; only its end needs all of them.
//! - A producer that has finished stays until it is reported gone, which is when every consumer has acknowledged
//!   its end. Partitions of a peer whose control link is lost are forgotten; channels to it are the links' matter.
//! - **Gates of other nodes** are known so that anyone can ask what is attached where. They decide nothing.
//!
//! Everything is in ordered maps, so that the same inputs give the same actions in the same order.

mod action;
mod claims;
mod gates;

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::format;
use alloc::string::ToString;
use alloc::vec::Vec;
use core::fmt;

pub use action::{CatalogAction, GateKey, PartitionKey};
pub use gates::PEER_GATES_MAX;

pub use crate::wants::GateWants;

use crate::exchange::{Name, PARALLELISM_MAX, Shape, Strategy, UnequalForward};
use crate::failure::{Failure, FailureCode};
use crate::ids::{ConsumerIndex, Incarnation, ProducerIndex};
use crate::wire::{CATALOG_ENTRIES_MAX, CatalogEntry, GateState, PartitionEntry, PartitionState};

use claims::Claims;
use gates::{Gate, RemoteGates};

/// Most partitions that are remembered of one peer.
pub const PEER_PARTITIONS_MAX: usize = 1 << 16;

/// A peer that announces more than [`PEER_PARTITIONS_MAX`] partitions or [`PEER_GATES_MAX`] gates. Its control link must be
/// closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TooManyEntries {
    /// Of partitions.
    Partitions,
    /// Of gates.
    Gates,
}

impl fmt::Display for TooManyEntries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, most) = match self {
            Self::Partitions => ("partitions", PEER_PARTITIONS_MAX),
            Self::Gates => ("gates", PEER_GATES_MAX),
        };
        write!(f, "peer announces more {what}; needed: at most {most}")
    }
}

impl core::error::Error for TooManyEntries {}

/// A partition as one node states it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    /// The task that it is an output of.
    pub task: Name,
    /// What the producer stated.
    pub shape: Shape,
    /// The shard that it is attached to.
    pub shard: u16,
    /// The producer's life.
    pub incarnation: Incarnation,
    /// Running or finished; one that is gone is not here.
    pub state: PartitionState,
    /// Of this node, and told to fail; it stays until the shell reports it gone.
    failing: bool,
}

impl Partition {
    /// A partition whose producer is attached.
    #[must_use]
    pub const fn running(task: Name, shape: Shape, shard: u16, incarnation: Incarnation) -> Self {
        Self { task, shape, shard, incarnation, state: PartitionState::Running, failing: false }
    }
}

/// The partition whose shape stands for its exchange.
struct First {
    key: PartitionKey,
    node: Name,
    shape: Shape,
}

impl First {
    /// What `wants` states differently, as a failure of `who`.
    fn refuse(&self, wants: &GateWants, who: &dyn fmt::Display) -> Option<Failure> {
        let differences = wants.differences(&GateWants::all_of(&self.shape))?;
        let (stated, other) = (GateWants::all_of(&self.shape), format!("{} on node {}", self.key, self.node));
        Some(mismatch(who, &differences, &other, wants.unequal_forward(&stated)))
    }
}

/// The catalog of a node.
#[derive(Debug)]
pub struct Catalog {
    node: Name,
    partitions: BTreeMap<PartitionKey, Claims>,
    /// Partitions of each peer.
    peers: BTreeMap<Name, usize>,
    /// Of this node.
    gates: BTreeMap<GateKey, Gate>,
    remote_gates: RemoteGates,
    actions: VecDeque<CatalogAction>,
}

impl Catalog {
    /// The catalog of this node, empty.
    #[must_use]
    pub const fn new(node: Name) -> Self {
        Self {
            node,
            partitions: BTreeMap::new(),
            peers: BTreeMap::new(),
            gates: BTreeMap::new(),
            remote_gates: RemoteGates::new(),
            actions: VecDeque::new(),
        }
    }

    /// A producer wants to attach to this node.
    ///
    /// # Errors
    /// The refusal: an index or shape that cannot be, an index that is taken, a shape that differs from what is
    /// known of the exchange. Nothing changes then.
    pub fn handle_local_partition(&mut self, key: PartitionKey, partition: Partition) -> Result<(), Failure> {
        check_shape(&partition.shape)?;
        if key.producer.0 >= partition.shape.producers {
            let text =
                format!("{key}: the index is {}; needed: below {}", key.producer, partition.shape.producers);
            return Err(Failure::new(FailureCode::IndexOutOfRange, text));
        }
        if let Some((node, held)) = self.first_of(&key) {
            return Err(duplicate(&key, node, held));
        }
        self.check_wants(&key.exchange, &GateWants::all_of(&partition.shape), &key)?;
        self.announce(None, alloc::vec![entry(&key, &partition)]);
        let (exchange, changed) = (key.exchange.clone(), BTreeSet::from([key.producer]));
        self.partitions.entry(key).or_default().insert(self.node.clone(), partition);
        self.serve_exchange(&exchange, &changed);
        Ok(())
    }

    /// The producer of a partition of this node has finished; its consumers may still be reading.
    pub fn handle_local_finished(&mut self, key: &PartitionKey) {
        let Some(partition) = self.partitions.get_mut(key).and_then(|nodes| nodes.get_mut(&self.node)) else {
            return;
        };
        if partition.state == PartitionState::Running {
            partition.state = PartitionState::Finished;
            let entry = entry(key, partition);
            self.announce(None, alloc::vec![entry]);
        }
    }

    /// A partition of this node is gone: all of it was acknowledged, or it failed.
    pub fn handle_local_gone(&mut self, key: &PartitionKey) {
        if let Some(partition) = self.forget(key, &self.node.clone()) {
            let gone = Partition { state: PartitionState::Gone, ..partition };
            self.announce(None, alloc::vec![entry(key, &gone)]);
            self.serve_exchange(&key.exchange, &BTreeSet::from([key.producer]));
        }
    }

    /// A peer's control link is up: it is told of everything here.
    pub fn handle_peer_found(&mut self, peer: &Name) {
        let own = |(key, nodes): (&PartitionKey, &Claims)| {
            nodes.get(&self.node).map(|partition| entry(key, partition))
        };
        let mut entries: Vec<CatalogEntry> = self.partitions.iter().filter_map(own).collect();
        entries.extend(self.gates.iter().map(|(key, gate)| gate.entry(key, GateState::Attached)));
        self.announce(Some(peer), entries);
    }

    /// A peer's control link is lost: its partitions and gates are forgotten. When it is back it tells of them again; a
    /// gate that was connected to one of its partitions is not connected to it again.
    pub fn handle_peer_lost(&mut self, peer: &Name) {
        self.remote_gates.handle_peer_lost(peer);
        if *peer == self.node || self.peers.remove(peer).is_none() {
            return;
        }
        self.partitions.retain(|_, nodes| {
            nodes.remove(peer);
            !nodes.is_empty()
        });
    }

    /// A peer tells of its partitions and gates. An entry whose index or shape cannot be is left out: the peer's own
    /// node has refused such a producer or consumer, so nobody is there.
    ///
    /// # Errors
    /// [`TooManyEntries`] closes that peer's control link; what was within the bound is remembered.
    pub fn handle_remote(&mut self, peer: &Name, entries: Vec<CatalogEntry>) -> Result<(), TooManyEntries> {
        if *peer == self.node {
            return Ok(());
        }
        let mut changed: BTreeMap<Name, BTreeSet<ProducerIndex>> = BTreeMap::new();
        let mut outcome = Ok(());
        for entry in entries {
            let partition = match entry {
                CatalogEntry::Partition(partition) => partition,
                CatalogEntry::Gate(gate) => {
                    outcome = outcome.and(self.remote_gates.handle_entry(peer, gate));
                    continue;
                }
            };
            let PartitionEntry { exchange, producer, shape, shard, incarnation, state, task } = partition;
            let key = PartitionKey { exchange, producer };
            if check_shape(&shape).is_err() || key.producer.0 >= shape.producers {
                continue;
            }
            changed.entry(key.exchange.clone()).or_default().insert(key.producer);
            if state == PartitionState::Gone {
                self.forget_life(&key, peer, incarnation);
            } else {
                let partition = Partition { task, shape, shard, incarnation, state, failing: false };
                outcome = outcome.and(self.remember(key, peer, partition));
            }
        }
        for (exchange, producers) in changed {
            self.fail_losers(&exchange);
            self.serve_exchange(&exchange, &producers);
        }
        outcome
    }

    /// A consumer wants to attach to this node. Its shape is said to be known at once or when a first producer
    /// appears; its channels follow.
    ///
    /// # Errors
    /// The refusal, as for producers. A consumer index that is taken on another node is found out when its channel
    /// is opened.
    pub fn handle_gate(&mut self, key: GateKey, task: Name, wants: GateWants) -> Result<(), Failure> {
        check_stated(&wants)?;
        if key.consumer.0 >= wants.consumers {
            let text = format!("{key}: the index is {}; needed: below {}", key.consumer, wants.consumers);
            return Err(Failure::new(FailureCode::IndexOutOfRange, text));
        }
        if self.gates.contains_key(&key) {
            let text = format!("{key} is attached to this node already; needed: another index, or its end");
            return Err(Failure::new(FailureCode::DuplicateConsumer, text));
        }
        self.check_wants(&key.exchange, &wants, &key)?;
        let first = self.first_shape(&key.exchange);
        self.gates.insert(key.clone(), Gate::new(task, wants));
        self.serve_gate(&key, first.as_ref(), None);
        self.announce_gate(&key);
        Ok(())
    }

    /// A gate is gone.
    pub fn handle_gate_gone(&mut self, key: &GateKey) {
        if let Some(gate) = self.gates.remove(key) {
            self.announce(None, alloc::vec![gate.entry(key, GateState::Gone)]);
        }
    }

    /// A connection that was asked for could not be made, so nothing of that producer was read: the gate is free
    /// to be connected to it again, when that producer is told of anew or at [`Catalog::handle_retry`].
    pub fn handle_connect_failed(&mut self, key: &GateKey, producer: ProducerIndex) {
        if let Some(gate) = self.gates.get_mut(key) {
            gate.bound.remove(&producer);
        }
    }

    /// A gate can be connected from now on: it is given every producer that it has none of its channels to.
    pub fn handle_gate_ready(&mut self, key: &GateKey) {
        let first = self.first_shape(&key.exchange);
        self.serve_gate(key, first.as_ref(), None);
    }

    /// Looks at every gate again. The shell calls this some time after a connection failed.
    pub fn handle_retry(&mut self) {
        let keys: Vec<GateKey> = self.gates.keys().cloned().collect();
        for key in keys {
            let first = self.first_shape(&key.exchange);
            self.serve_gate(&key, first.as_ref(), None);
        }
    }

    /// The next thing to do.
    pub fn poll_action(&mut self) -> Option<CatalogAction> {
        self.actions.pop_front()
    }

    /// Every partition known, with the node that states it.
    pub fn partitions(&self) -> impl Iterator<Item = (&PartitionKey, &Name, &Partition)> {
        self.partitions
            .iter()
            .flat_map(|(key, nodes)| nodes.iter().map(move |(node, partition)| (key, node, partition)))
    }

    /// Every partition of this exchange, with its place.
    fn partitions_of(&self, exchange: &Name) -> impl Iterator<Item = (&PartitionKey, &Name, &Partition)> {
        let first = PartitionKey { exchange: exchange.clone(), producer: ProducerIndex(0) };
        let last = PartitionKey { exchange: exchange.clone(), producer: ProducerIndex(u32::MAX) };
        self.partitions
            .range(first..=last)
            .flat_map(|(key, nodes)| nodes.iter().map(move |(node, partition)| (key, node, partition)))
    }

    /// The one of several claims to a partition that stands: the first.
    fn first_of(&self, key: &PartitionKey) -> Option<(&Name, &Partition)> {
        self.partitions.get(key)?.iter().min_by_key(|(node, partition)| (partition.incarnation, *node))
    }

    /// The partition of an exchange whose shape stands if they disagree: the first.
    fn first_shape(&self, exchange: &Name) -> Option<First> {
        let (key, node, partition) =
            self.partitions_of(exchange).min_by_key(|(_, node, partition)| (partition.incarnation, *node))?;
        Some(First { key: key.clone(), node: node.clone(), shape: partition.shape })
    }

    /// This node's gates of an exchange.
    fn gates_of(&self, exchange: &Name) -> impl Iterator<Item = (&GateKey, &Gate)> {
        let first = GateKey { exchange: exchange.clone(), consumer: ConsumerIndex(0) };
        let last = GateKey { exchange: exchange.clone(), consumer: ConsumerIndex(u32::MAX) };
        self.gates.range(first..=last)
    }

    /// Whether a newcomer fits to what is known of its exchange.
    fn check_wants(&self, exchange: &Name, wants: &GateWants, who: &dyn fmt::Display) -> Result<(), Failure> {
        if let Some(failure) = self.first_shape(exchange).and_then(|first| first.refuse(wants, who)) {
            return Err(failure);
        }
        for (key, gate) in self.gates_of(exchange).filter(|(_, gate)| !gate.failed) {
            if let Some(differences) = wants.differences(&gate.known()) {
                let (stated, other) = (gate.known(), format!("{key} on node {}", self.node));
                return Err(mismatch(who, &differences, &other, wants.unequal_forward(&stated)));
            }
        }
        Ok(())
    }

    fn announce(&mut self, peer: Option<&Name>, entries: Vec<CatalogEntry>) {
        for chunk in entries.chunks(CATALOG_ENTRIES_MAX) {
            self.actions.push_back(CatalogAction::Announce { peer: peer.cloned(), entries: chunk.to_vec() });
        }
    }

    fn remember(
        &mut self,
        key: PartitionKey,
        peer: &Name,
        partition: Partition,
    ) -> Result<(), TooManyEntries> {
        let known = self.partitions.get(&key).is_some_and(|nodes| nodes.get(peer).is_some());
        if !known {
            let count = self.peers.entry(peer.clone()).or_default();
            if *count >= PEER_PARTITIONS_MAX {
                return Err(TooManyEntries::Partitions);
            }
            *count += 1;
        }
        self.partitions.entry(key).or_default().insert(peer.clone(), partition);
        Ok(())
    }

    fn forget_life(&mut self, key: &PartitionKey, peer: &Name, incarnation: Incarnation) {
        let known = self.partitions.get(key).and_then(|nodes| nodes.get(peer));
        if known.is_some_and(|partition| partition.incarnation == incarnation) {
            self.forget(key, peer);
        }
    }

    fn forget(&mut self, key: &PartitionKey, node: &Name) -> Option<Partition> {
        let nodes = self.partitions.get_mut(key)?;
        let partition = nodes.remove(node)?;
        if nodes.is_empty() {
            self.partitions.remove(key);
        }
        if let Some(count) = self.peers.get_mut(node) {
            *count = count.saturating_sub(1);
        }
        Some(partition)
    }

    /// Fails the partitions of this node that another one turned out to have come before.
    fn fail_losers(&mut self, exchange: &Name) {
        let Some(first) = self.first_shape(exchange) else { return };
        let mut losers: Vec<(PartitionKey, Failure)> = Vec::new();
        for (key, node, partition) in self.partitions_of(exchange) {
            if *node != self.node || partition.failing {
                continue;
            }
            let failure = match self.first_of(key) {
                Some((winner, held)) if *winner != self.node => Some(duplicate(key, winner, held)),
                _ => first.refuse(&GateWants::all_of(&partition.shape), key),
            };
            losers.extend(failure.map(|failure| (key.clone(), failure)));
        }
        for (partition, failure) in losers {
            if let Some(lost) =
                self.partitions.get_mut(&partition).and_then(|nodes| nodes.get_mut(&self.node))
            {
                lost.failing = true;
            }
            self.actions.push_back(CatalogAction::FailLocalPartition { partition, failure });
        }
    }

    /// Gives each gate of an exchange whatever has become known with these producers.
    fn serve_exchange(&mut self, exchange: &Name, changed: &BTreeSet<ProducerIndex>) {
        let keys: Vec<GateKey> = self.gates_of(exchange).map(|(key, _)| key.clone()).collect();
        let first = self.first_shape(exchange);
        for key in keys {
            self.serve_gate(&key, first.as_ref(), Some(changed));
        }
    }

    /// Gives a gate whatever has become known for it: with the changed producers, or with all of them.
    fn serve_gate(
        &mut self,
        key: &GateKey,
        first: Option<&First>,
        changed: Option<&BTreeSet<ProducerIndex>>,
    ) {
        let Some(gate) = self.gates.get(key) else { return };
        if gate.failed {
            return;
        }
        // A gate that reads already is not disturbed by a newcomer that does not fit: that one's node refuses it.
        let refusal = if gate.bound.is_empty() { first } else { None };
        if let Some(failure) = refusal.and_then(|first| first.refuse(&gate.known(), key)) {
            return self.fail_gate(key, failure);
        }
        let was_known = gate.shape.is_some();
        let Some(shape) = gate.shape.or_else(|| gate.wants.shape()).or(first.map(|first| first.shape)) else {
            return;
        };
        let connects = self.connects(key, gate, &shape, changed.filter(|_| was_known));
        let Some(gate) = self.gates.get_mut(key) else { return };
        if !was_known {
            gate.shape = Some(shape);
            self.actions.push_back(CatalogAction::GateShapeKnown { gate: key.clone(), shape });
        }
        for connect in connects {
            if let CatalogAction::Connect { producer, incarnation, .. } = connect {
                gate.bound.insert(producer, incarnation);
            }
            self.actions.push_back(connect);
        }
        if !was_known {
            self.announce_learnt(key);
        }
    }

    /// The connections to these producers, or to all, that a gate of this shape does not have yet.
    fn connects(
        &self,
        key: &GateKey,
        gate: &Gate,
        shape: &Shape,
        changed: Option<&BTreeSet<ProducerIndex>>,
    ) -> Vec<CatalogAction> {
        let all = || (0..shape.producers).map(ProducerIndex).collect();
        let producers: Vec<ProducerIndex> =
            changed.map_or_else(all, |changed| changed.iter().copied().collect());
        let mut connects = Vec::new();
        for producer in producers {
            if gate.bound.contains_key(&producer) || shape.subpartition(producer, key.consumer).is_none() {
                continue;
            }
            let partition_key = PartitionKey { exchange: key.exchange.clone(), producer };
            let claims = self.partitions.get(&partition_key).into_iter().flat_map(Claims::iter);
            let first = claims
                .filter(|(_, partition)| partition.shape == *shape && !partition.failing)
                .min_by_key(|(node, partition)| (partition.incarnation, *node));
            connects.extend(first.map(|(node, partition)| CatalogAction::Connect {
                gate: key.clone(),
                producer,
                node: node.clone(),
                shard: partition.shard,
                incarnation: partition.incarnation,
            }));
        }
        connects
    }

    fn fail_gate(&mut self, key: &GateKey, failure: Failure) {
        if let Some(gate) = self.gates.get_mut(key) {
            gate.failed = true;
            self.actions.push_back(CatalogAction::FailGate { gate: key.clone(), failure });
        }
    }
}

/// What the wire says of a partition.
fn entry(key: &PartitionKey, partition: &Partition) -> CatalogEntry {
    CatalogEntry::Partition(PartitionEntry {
        exchange: key.exchange.clone(),
        producer: key.producer,
        shape: partition.shape,
        shard: partition.shard,
        incarnation: partition.incarnation,
        state: partition.state,
        task: partition.task.clone(),
    })
}

/// Whether an exchange can have this shape at all.
fn check_shape(shape: &Shape) -> Result<(), Failure> {
    for (side, parallelism) in [("producers", shape.producers), ("consumers", shape.consumers)] {
        if !(1..=PARALLELISM_MAX).contains(&parallelism) {
            let text = format!("{side} is {parallelism}; needed: 1 to {PARALLELISM_MAX}");
            return Err(Failure::new(FailureCode::Mismatch, text));
        }
    }
    shape.check_parallelism().map_err(|unequal| Failure::new(FailureCode::Mismatch, unequal.to_string()))
}

/// Whether there can be an exchange of which a consumer states this, whatever it leaves open.
fn check_stated(wants: &GateWants) -> Result<(), Failure> {
    let GateWants { consumers, producers, strategy, segment_bytes, checksum } = *wants;
    check_shape(&Shape {
        producers: producers.unwrap_or(consumers),
        consumers,
        strategy: strategy.unwrap_or(Strategy::Rebalance),
        segment_bytes,
        checksum: checksum.unwrap_or(false),
    })
}

fn duplicate(key: &PartitionKey, node: &Name, held: &Partition) -> Failure {
    let state = match held.state {
        PartitionState::Running => "is held",
        PartitionState::Finished => "has finished and is still being read",
        PartitionState::Gone => "is ending",
    };
    let Partition { shard, incarnation, .. } = held;
    let text = format!(
        "{key} {state} on node {node} (shard {shard}, incarnation {incarnation}); needed: another index, or its end"
    );
    Failure::new(FailureCode::DuplicateProducer, text)
}

/// If it comes of a `forward` exchange whose sides differ in parallelism, `unequal` tells what could connect them.
fn mismatch(
    who: &dyn fmt::Display,
    differences: &str,
    other: &str,
    unequal: Option<UnequalForward>,
) -> Failure {
    let mut text = format!("{who}: {differences} (as {other} states); state the same on both sides");
    if let Some(unequal) = unequal {
        text.push_str(&format!(": {unequal}"));
    }
    Failure::new(FailureCode::Mismatch, text)
}
