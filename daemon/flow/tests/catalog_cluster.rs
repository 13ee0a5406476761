//! The catalogs of three nodes whose control links come and go: whatever happened, nodes that can talk agree.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use weir_flow::catalog::{Catalog, CatalogAction, GateKey, GateWants, Partition, PartitionKey};
use weir_flow::exchange::{Name, Shape, Strategy as Ship};
use weir_flow::failure::Failure;
use weir_flow::ids::{ConsumerIndex, Incarnation, ProducerIndex};
use weir_flow::wire::CatalogEntry;

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

fn shape(producers: u32, consumers: u32) -> Shape {
    Shape { producers, consumers, strategy: Ship::Rebalance, segment_bytes: 32 << 10, checksum: false }
}

fn partition_key(producer: u32) -> PartitionKey {
    PartitionKey { exchange: name("words"), producer: ProducerIndex(producer) }
}

fn gate_key(consumer: u32) -> GateKey {
    GateKey { exchange: name("words"), consumer: ConsumerIndex(consumer) }
}

/// A consumer that knows only its own parallelism.
fn wants(consumers: u32) -> GateWants {
    GateWants { consumers, producers: None, strategy: None, segment_bytes: 32 << 10, checksum: None }
}

fn attach(catalog: &mut Catalog, producer: u32, shape: Shape, incarnation: u64) -> Result<(), Failure> {
    catalog.handle_local_partition(
        partition_key(producer),
        Partition::running(name("source"), shape, 0, Incarnation(incarnation)),
    )
}

#[derive(Clone, Debug)]
enum Operation {
    Attach { node: usize, producer: u32, consumers: u32 },
    Gate { node: usize, consumer: u32 },
    Gone { node: usize, producer: u32 },
    Deliver { from: usize, to: usize },
    Part { one: usize, other: usize },
    Meet { one: usize, other: usize },
}

fn operation() -> impl Strategy<Value = Operation> {
    let node = 0usize..3;
    prop_oneof![
        3 => (node.clone(), 0u32..3, 3u32..5)
            .prop_map(|(node, producer, consumers)| Operation::Attach { node, producer, consumers }),
        2 => (node.clone(), 0u32..3).prop_map(|(node, consumer)| Operation::Gate { node, consumer }),
        1 => (node.clone(), 0u32..3).prop_map(|(node, producer)| Operation::Gone { node, producer }),
        6 => (node.clone(), node.clone()).prop_map(|(from, to)| Operation::Deliver { from, to }),
        1 => (node.clone(), node.clone()).prop_map(|(one, other)| Operation::Part { one, other }),
        2 => (node.clone(), node).prop_map(|(one, other)| Operation::Meet { one, other }),
    ]
}

/// Three nodes with control links that deliver in order, or are down.
struct Cluster {
    catalogs: Vec<Catalog>,
    /// Frames under way, by (from, to); absent while the link is down.
    links: BTreeMap<(usize, usize), Vec<Vec<CatalogEntry>>>,
    incarnation: u64,
    connected: BTreeSet<(usize, GateKey, ProducerIndex, Incarnation)>,
}

const NODES: [&str; 3] = ["a", "b", "c"];

impl Cluster {
    fn new() -> Self {
        let catalogs = NODES.iter().map(|node| Catalog::new(name(node))).collect();
        Self { catalogs, links: BTreeMap::new(), incarnation: 0, connected: BTreeSet::new() }
    }

    fn run(&mut self, node: usize) {
        while let Some(action) = self.catalogs[node].poll_action() {
            match action {
                CatalogAction::Announce { peer, entries } => {
                    for (&(from, to), frames) in &mut self.links {
                        if from == node && peer.as_ref().is_none_or(|peer| peer.as_str() == NODES[to]) {
                            frames.push(entries.clone());
                        }
                    }
                }
                CatalogAction::FailLocalPartition { partition, .. } => {
                    self.catalogs[node].handle_local_gone(&partition);
                }
                CatalogAction::FailGate { gate, .. } => self.catalogs[node].handle_gate_gone(&gate),
                CatalogAction::GateShapeKnown { .. } => {}
                CatalogAction::Connect { gate, producer, incarnation, .. } => {
                    let is_new = self.connected.insert((node, gate.clone(), producer, incarnation));
                    assert!(is_new, "{gate} on {node} is connected to {producer} twice");
                }
            }
        }
    }

    fn apply(&mut self, operation: Operation) {
        match operation {
            Operation::Attach { node, producer, consumers } => {
                self.incarnation += 1;
                let _ = attach(&mut self.catalogs[node], producer, shape(3, consumers), self.incarnation);
                self.run(node);
            }
            Operation::Gate { node, consumer } => {
                let key = gate_key(consumer);
                self.catalogs[node].handle_gate_gone(&key);
                self.connected.retain(|(at, gate, _, _)| (*at, gate) != (node, &key));
                let _ = self.catalogs[node].handle_gate(key, name("sink"), wants(3));
                self.run(node);
            }
            Operation::Gone { node, producer } => {
                self.catalogs[node].handle_local_gone(&partition_key(producer));
                self.run(node);
            }
            Operation::Deliver { from, to } => self.deliver(from, to),
            Operation::Part { one, other } => {
                for (node, peer) in [(one, other), (other, one)] {
                    if self.links.remove(&(node, peer)).is_some() {
                        self.catalogs[node].handle_peer_lost(&name(NODES[peer]));
                        self.run(node);
                    }
                }
            }
            Operation::Meet { one, other } => self.meet(one, other),
        }
    }

    fn deliver(&mut self, from: usize, to: usize) {
        if let Some(frames) = self.links.get_mut(&(from, to))
            && !frames.is_empty()
        {
            let entries = frames.remove(0);
            self.catalogs[to].handle_remote(&name(NODES[from]), entries).unwrap();
            self.run(to);
        }
    }

    fn meet(&mut self, one: usize, other: usize) {
        if one == other || self.links.contains_key(&(one, other)) {
            return;
        }
        for (node, peer) in [(one, other), (other, one)] {
            self.links.insert((node, peer), Vec::new());
            self.catalogs[node].handle_peer_found(&name(NODES[peer]));
            self.run(node);
        }
    }

    /// Everybody meets everybody, and nothing is under way any more.
    fn settle(&mut self) {
        for (one, other) in [(0, 1), (0, 2), (1, 2)] {
            self.meet(one, other);
        }
        while let Some((&(from, to), _)) = self.links.iter().find(|(_, frames)| !frames.is_empty()) {
            self.deliver(from, to);
        }
    }
}

proptest! {
    #[test]
    fn nodes_that_can_talk_agree_on_one_holder_of_each_place(
        operations in proptest::collection::vec(operation(), 1..80)
    ) {
        let mut cluster = Cluster::new();
        for operation in operations {
            cluster.apply(operation);
        }
        cluster.settle();
        let view = |catalog: &Catalog| -> Vec<(PartitionKey, Name, Partition)> {
            catalog.partitions().map(|(k, n, p)| (k.clone(), n.clone(), p.clone())).collect()
        };
        let first = view(&cluster.catalogs[0]);
        for catalog in &cluster.catalogs[1..] {
            prop_assert_eq!(view(catalog), first.clone());
        }
        let keys: BTreeSet<&PartitionKey> = first.iter().map(|(key, _, _)| key).collect();
        prop_assert_eq!(keys.len(), first.len(), "one holder each");
        let shapes: BTreeSet<u32> = first.iter().map(|(_, _, partition)| partition.shape.consumers).collect();
        prop_assert!(shapes.len() <= 1, "one shape");
    }
}
