//! Where shard threads run, and on which NUMA node their memory is: a pure function of the machine and the setting.
//!
//! Shards get cores of their own first, and second threads of cores only when all have one. They are spread over the NUMA
//! nodes in proportion to what each has, so that the applications are left as much on each. [`keeper`] puts the plan into
//! effect, and makes another one when the processors that the daemon may use change.

pub mod keeper;
pub mod report;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};

use crate::config::PinMode;
use crate::memory::numa;
use crate::topology::Topology;

/// Whether shard threads are bound to one CPU each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pin {
    /// Bound if there are fewer shards than CPUs. With a shard on every CPU, a bound thread could not step aside for
    /// the applications that it serves.
    #[default]
    Auto,
    /// Always bound.
    On,
    /// Never bound.
    Off,
}

impl From<PinMode> for Pin {
    fn from(mode: PinMode) -> Self {
        match mode {
            PinMode::Auto => Self::Auto,
            PinMode::On => Self::On,
            PinMode::Off => Self::Off,
        }
    }
}

/// The CPUs that this thread may use and that are online, in ascending order; empty if the kernel does not tell.
#[must_use]
pub fn allowed_cpus() -> Vec<usize> {
    numa::affinity(None).unwrap_or_default()
}

/// Where one shard is to be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The CPU that it is bound to; none: it roams.
    pub cpu: Option<usize>,
    /// The NUMA node that it runs on; none if that is not known, or several.
    pub node: Option<u32>,
    /// The node that its regions are made on, if they can be; none: wherever the kernel makes them.
    pub memory_node: Option<u32>,
    /// Other shards on the same CPU.
    pub shares_cpu: Vec<u16>,
    /// Other shards on other threads of the same core.
    pub shares_core: Vec<u16>,
}

/// Whether shards are bound to CPUs.
#[must_use]
pub fn is_bound(pin: Pin, shards: u16, cpus: usize) -> bool {
    match pin {
        Pin::Auto => usize::from(shards) < cpus,
        Pin::On => cpus > 0,
        Pin::Off => false,
    }
}

/// Where each of so many shards is to be. `memories`: the nodes whose memory may be used, none where that is not known.
#[must_use]
pub fn plan(topology: &Topology, memories: Option<&[u32]>, shards: u16, pin: Pin) -> Vec<Place> {
    let order = order(topology);
    let memory_of = |node: Option<u32>| node.and_then(|node| topology.memory_of(node, memories));
    if !is_bound(pin, shards, order.len()) {
        let mut nodes = topology.cpus().map(|cpu| topology.cpu(cpu).and_then(|cpu| cpu.node));
        let first = nodes.next().flatten();
        let node = first.filter(|_| nodes.all(|node| node == first));
        let place = Place { node, memory_node: memory_of(node), ..Place::default() };
        return vec![place; usize::from(shards)];
    }
    let cpus: Vec<usize> = order.iter().copied().cycle().take(usize::from(shards)).collect();
    let core = |cpu: usize| topology.cpu(cpu).map_or(cpu, |cpu| cpu.core);
    let place = |(shard, cpu): (u16, usize)| {
        let others = || (0_u16..).zip(cpus.iter().copied()).filter(|(other, _)| *other != shard);
        let node = topology.cpu(cpu).and_then(|cpu| cpu.node);
        let on_core = others().filter(|(_, other)| *other != cpu && core(*other) == core(cpu));
        Place {
            cpu: Some(cpu),
            node,
            memory_node: memory_of(node),
            shares_cpu: others().filter(|(_, other)| *other == cpu).map(|(other, _)| other).collect(),
            shares_core: on_core.map(|(other, _)| other).collect(),
        }
    };
    (0_u16..).zip(cpus.iter().copied()).map(place).collect()
}

/// The CPUs in the order in which shards get them.
fn order(topology: &Topology) -> Vec<usize> {
    // By how many threads of its core come before it, then by node.
    let mut rounds: BTreeMap<usize, BTreeMap<Option<u32>, VecDeque<usize>>> = BTreeMap::new();
    let mut threads: BTreeMap<usize, usize> = BTreeMap::new();
    for number in topology.cpus() {
        let Some(cpu) = topology.cpu(number) else { continue };
        let before = threads.entry(cpu.core).or_default();
        rounds.entry(*before).or_default().entry(cpu.node).or_default().push_back(number);
        *before += 1;
    }
    rounds.into_values().flat_map(spread).collect()
}

/// Takes one after the other from the node of which the smallest share has been taken; of equals, from the first.
fn spread(nodes: BTreeMap<Option<u32>, VecDeque<usize>>) -> Vec<usize> {
    let mut nodes: Vec<(usize, VecDeque<usize>)> =
        nodes.into_values().map(|cpus| (cpus.len(), cpus)).collect();
    let mut order = Vec::new();
    loop {
        let left = nodes.iter_mut().filter(|(_, cpus)| !cpus.is_empty());
        let next = left.min_by(|(total_a, left_a), (total_b, left_b)| {
            let (taken_a, taken_b) = (total_a - left_a.len(), total_b - left_b.len());
            (taken_a * *total_b).cmp(&(taken_b * *total_a))
        });
        match next.and_then(|(_, cpus)| cpus.pop_front()) {
            Some(cpu) => order.push(cpu),
            None => return order,
        }
    }
}
