//! From the ends of exchanges to a graph of tasks. A function of its input.

use std::collections::{BTreeMap, BTreeSet};

use weir_flow::catalog::GateWants;
use weir_flow::exchange::{Name, Strategy};
use weir_flow::ids::Incarnation;

use super::order::{self, Edges};
use crate::control::plan::{PlanExchange, PlanNode, Predecessor};

/// Most predecessors that a graph lists. An exchange has the product of its tasks on both ends, so that a few thousand ends
/// could make millions.
const PREDECESSORS_MAX: usize = 1 << 16;

/// A partition or a gate.
#[derive(Clone, Debug)]
pub(super) struct End {
    /// The task that has it.
    pub(super) task: Name,
    /// The node that it is attached to.
    pub(super) node: Name,
    pub(super) exchange: Name,
    pub(super) side: Side,
    /// Which producer or consumer.
    pub(super) index: u32,
    /// What is stated of the exchange there.
    pub(super) stated: GateWants,
}

/// Which end of its exchange an end is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// A partition, of this life of its producer.
    Writes { since: Incarnation },
    /// A gate.
    Reads,
}

/// The graph.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Graph {
    pub(super) nodes: Vec<PlanNode>,
    pub(super) exchanges: Vec<PlanExchange>,
    pub(super) predecessors_left_out: u64,
}

/// Indices, by task, that are taken at one end of an exchange.
type Attached = BTreeMap<Name, BTreeSet<u32>>;

#[derive(Default)]
struct Exchange {
    /// What the first of its partitions states: that is what stands if they disagree.
    stands: Option<(Incarnation, Name, GateWants)>,
    /// What the first of its gates states, for as long as there is no partition.
    expected: Option<GateWants>,
    writers: Attached,
    readers: Attached,
}

impl Exchange {
    fn stated(&self) -> Option<&GateWants> {
        self.stands.as_ref().map(|(_, _, stated)| stated).or(self.expected.as_ref())
    }

    fn add(&mut self, end: &End) {
        let End { node, stated, .. } = end;
        let attached = match end.side {
            Side::Writes { since } => {
                let is_first = self.stands.as_ref().is_none_or(|(first, at, _)| (since, node) < (*first, at));
                if is_first {
                    self.stands = Some((since, node.clone(), *stated));
                }
                &mut self.writers
            }
            Side::Reads => {
                // One that has met a producer knows more than one that has not.
                if self.expected.is_none_or(|expected| expected.strategy.is_none()) {
                    self.expected = Some(*stated);
                }
                &mut self.readers
            }
        };
        attached.entry(end.task.clone()).or_default().insert(end.index);
    }
}

#[derive(Default)]
struct Task {
    nodes: BTreeSet<Name>,
    indices: BTreeSet<u32>,
    declared: BTreeSet<u32>,
    reads: BTreeSet<Name>,
    writes: BTreeSet<Name>,
}

impl Task {
    fn add(&mut self, end: &End) {
        let (exchanges, declared) = match end.side {
            Side::Writes { .. } => (&mut self.writes, end.stated.producers),
            Side::Reads => (&mut self.reads, Some(end.stated.consumers)),
        };
        exchanges.insert(end.exchange.clone());
        self.declared.extend(declared);
        self.nodes.insert(end.node.clone());
        self.indices.insert(end.index);
    }

    fn pact(&self) -> &'static str {
        match (self.reads.is_empty(), self.writes.is_empty()) {
            (true, _) => "Data Source",
            (false, true) => "Data Sink",
            (false, false) => "Operator",
        }
    }

    fn contents(&self) -> String {
        let parts = [("reads", &self.reads), ("writes", &self.writes)];
        let parts = parts.iter().filter(|(_, exchanges)| !exchanges.is_empty());
        parts.map(|(verb, exchanges)| format!("{verb} {}", listed(exchanges))).collect::<Vec<_>>().join("; ")
    }
}

/// The graph of these ends, in whatever order they come.
pub(super) fn graph(mut ends: Vec<End>) -> Graph {
    ends.sort_by(|a, b| (&a.exchange, a.index, &a.node).cmp(&(&b.exchange, b.index, &b.node)));
    let (mut tasks, mut exchanges) = (BTreeMap::<Name, Task>::new(), BTreeMap::<Name, Exchange>::new());
    for end in &ends {
        tasks.entry(end.task.clone()).or_default().add(end);
        exchanges.entry(end.exchange.clone()).or_default().add(end);
    }
    let order = upstream_first(&tasks, &exchanges);
    let ids: BTreeMap<&Name, u32> = order.iter().copied().zip(1..).collect();
    let (mut room, mut predecessors_left_out) = (PREDECESSORS_MAX, 0_u64);
    let mut nodes = Vec::with_capacity(order.len());
    for (name, id) in order.iter().copied().zip(1..) {
        let Some(task) = tasks.get(name) else { continue };
        let reads = task.reads.iter().filter_map(|exchange| exchanges.get_key_value(exchange));
        let mut predecessors = Vec::new();
        for (name_of, exchange) in reads {
            let listed = exchange.writers.len().min(room);
            room = room.saturating_sub(listed);
            predecessors_left_out += count(exchange.writers.len().saturating_sub(listed));
            if listed > 0 {
                predecessors.extend(predecessors_of(name, name_of, exchange, &ids).into_iter().take(listed));
            }
        }
        nodes.push(PlanNode {
            id,
            task: name.to_string(),
            pact: task.pact().to_owned(),
            contents: task.contents(),
            parallelism: task.declared.last().copied().unwrap_or_default(),
            predecessors,
            attached: instances(task.indices.len()),
            declared: task.declared.iter().copied().collect(),
            nodes: task.nodes.iter().map(ToString::to_string).collect(),
        });
    }
    let exchanges = exchanges.iter().map(|(name, exchange)| plan_exchange(name, exchange, &ids)).collect();
    Graph { nodes, exchanges, predecessors_left_out }
}

/// The names of the tasks in their order.
fn upstream_first<'a>(
    tasks: &'a BTreeMap<Name, Task>,
    exchanges: &BTreeMap<Name, Exchange>,
) -> Vec<&'a Name> {
    let names: Vec<&Name> = tasks.keys().collect();
    // Exchanges are vertices as well: a way through each costs its ends, and not the product of the tasks on both sides.
    let exchange_at: BTreeMap<&Name, usize> = exchanges.keys().zip(names.len()..).collect();
    let task_at: BTreeMap<&Name, usize> = names.iter().copied().zip(0..).collect();
    let written = tasks.values().map(|task| task.writes.iter().filter_map(|to| exchange_at.get(to)));
    let mut next: Edges = written.map(|places| places.copied().collect()).collect();
    let read = exchanges.values().map(|exchange| exchange.readers.keys().filter_map(|by| task_at.get(by)));
    next.extend(read.map(|places| places.copied().collect::<Vec<usize>>()));
    let order = order::upstream_first(&next, names.len());
    order.into_iter().filter_map(|place| names.get(place).copied()).collect()
}

/// Every task that writes an exchange, as predecessors of one that reads it, by id.
fn predecessors_of(
    reader: &Name,
    name: &Name,
    exchange: &Exchange,
    ids: &BTreeMap<&Name, u32>,
) -> Vec<Predecessor> {
    let Some((_, _, stated)) = &exchange.stands else { return Vec::new() };
    let consumers_attached = exchange.readers.get(reader).map_or(0, BTreeSet::len);
    let mut predecessors: Vec<Predecessor> = exchange
        .writers
        .iter()
        .filter_map(|(writer, indices)| {
            Some(Predecessor {
                id: *ids.get(writer)?,
                ship_strategy: shown(stated.strategy?),
                side: "second".to_owned(),
                exchange: name.to_string(),
                producers: stated.producers?,
                producers_attached: instances(indices.len()),
                consumers: stated.consumers,
                consumers_attached: instances(consumers_attached),
            })
        })
        .collect();
    predecessors.sort_by_key(|predecessor| predecessor.id);
    predecessors
}

fn plan_exchange(name: &Name, exchange: &Exchange, ids: &BTreeMap<&Name, u32>) -> PlanExchange {
    let stated = exchange.stated();
    let ids_of = |attached: &Attached| {
        let mut ids: Vec<u32> = attached.keys().filter_map(|task| ids.get(task).copied()).collect();
        ids.sort_unstable();
        ids
    };
    let taken = |attached: &Attached| {
        let indices: BTreeSet<&u32> = attached.values().flatten().collect();
        instances(indices.len())
    };
    PlanExchange {
        exchange: name.to_string(),
        ship_strategy: stated.and_then(|stated| stated.strategy).map(shown),
        producers: stated.and_then(|stated| stated.producers),
        producers_attached: taken(&exchange.writers),
        consumers: stated.map(|stated| stated.consumers),
        consumers_attached: taken(&exchange.readers),
        written_by: ids_of(&exchange.writers),
        read_by: ids_of(&exchange.readers),
    }
}

/// A strategy as Flink's plans write it.
fn shown(strategy: Strategy) -> String {
    strategy.as_str().to_uppercase()
}

fn listed(names: &BTreeSet<Name>) -> String {
    names.iter().map(Name::as_str).collect::<Vec<_>>().join(", ")
}

/// Instances are at most as many as indices, which are below 4096.
fn instances(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

fn count(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}
