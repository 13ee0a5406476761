//! Processors and NUMA nodes of the machine, as the kernel shows them below `/sys/devices/system`.
//!
//! What cannot be read, or means nothing, is no error: the machine is taken for a simpler one (each processor a core of
//! its own, one node), and [`Topology::doubts`] says what is missing. Numbers of processors and nodes may have gaps and
//! any size.

pub mod cpuset;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use crate::root::{Root, Unread};

/// Directory of the processors.
const CPUS: &str = "/sys/devices/system/cpu";

/// Directory of the NUMA nodes.
const NODES: &str = "/sys/devices/system/node";

/// Doubts that are kept: of a machine that shows nothing each processor would have one.
const DOUBTS_MAX: usize = 4;

/// One processor, as the kernel counts them: a thread of a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cpu {
    /// The lowest number of a processor of its core, by which the core is told from others.
    pub core: usize,
    /// Number of its package, as the firmware counts them.
    pub package: Option<u32>,
    /// Number of its core within the package.
    pub core_id: Option<u32>,
    /// Its NUMA node; none where the kernel knows no nodes.
    pub node: Option<u32>,
}

/// One NUMA node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Node {
    has_memory: bool,
    /// How far each node is, itself included.
    distances: BTreeMap<u32, u32>,
}

/// Processors that may be used and are online, and the NUMA nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    cpus: BTreeMap<usize, Cpu>,
    nodes: BTreeMap<u32, Node>,
    doubts: Vec<String>,
}

impl Topology {
    /// Reads what concerns these processors. Those that are offline are left out.
    #[must_use]
    pub fn read(root: &Root, allowed: &[usize]) -> Self {
        let mut topology = Self::default();
        let path = format!("{CPUS}/online");
        let online = topology.list(root, &path).map(BTreeSet::from_iter);
        let has_some = |online: &BTreeSet<usize>| allowed.iter().any(|cpu| online.contains(cpu));
        let online = online.filter(|online| {
            let is_sound = allowed.is_empty() || has_some(online);
            if !is_sound {
                topology.doubt(format!("{path} has none of the processors that may be used"));
            }
            is_sound
        });
        let is_online = |cpu: &usize| online.as_ref().is_none_or(|online| online.contains(cpu));
        let nodes = topology.read_nodes(root);
        for cpu in allowed.iter().copied().filter(is_online) {
            let node = nodes.get(&cpu).copied();
            if node.is_none() && !nodes.is_empty() {
                topology.doubt(format!("processor {cpu} is in the list of no node"));
            }
            let cpu_read = topology.read_cpu(root, cpu, node);
            topology.cpus.insert(cpu, cpu_read);
        }
        topology
    }

    fn read_cpu(&mut self, root: &Root, cpu: usize, node: Option<u32>) -> Cpu {
        let file = |name: &str| format!("{CPUS}/cpu{cpu}/topology/{name}");
        // Firmware that does not number them has -1 here.
        let number = |name: &str| root.number::<i64>(&file(name)).ok().and_then(|id| u32::try_from(id).ok());
        let (package, core_id) = (number("physical_package_id"), number("core_id"));
        let path = file("thread_siblings_list");
        let core = match self.list(root, &path) {
            Some(siblings) if siblings.contains(&cpu) => siblings.into_iter().min(),
            Some(_) => {
                self.doubt(format!("{path} does not have processor {cpu}"));
                None
            }
            None => None,
        };
        // Without siblings, who has the same two numbers is one. Those with lower numbers have been read.
        let same =
            |other: &&Cpu| other.core_id.is_some() && (other.package, other.core_id) == (package, core_id);
        let core = core.or_else(|| self.cpus.values().find(same).map(|other| other.core)).unwrap_or(cpu);
        Cpu { core, package, core_id, node }
    }

    /// Reads the nodes; the node of each processor.
    fn read_nodes(&mut self, root: &Root) -> BTreeMap<usize, u32> {
        let number = |name: &String| name.strip_prefix("node")?.parse().ok();
        let mut numbers: Vec<u32> = root.names(NODES).iter().filter_map(number).collect();
        numbers.sort_unstable();
        let with_memory = ["has_memory", "has_normal_memory"]
            .iter()
            .find_map(|file| parse_list(&root.text(&format!("{NODES}/{file}")).ok()?));
        if with_memory.is_none() && numbers.len() > 1 {
            self.doubt(format!("{NODES}/has_memory does not say which nodes have memory"));
        }
        let mut of_cpu = BTreeMap::new();
        for number in &numbers {
            for cpu in self.list(root, &format!("{NODES}/node{number}/cpulist")).unwrap_or_default() {
                let first = *of_cpu.entry(cpu).or_insert(*number);
                if first != *number {
                    self.doubt(format!("processor {cpu} is in the lists of nodes {first} and {number}"));
                }
            }
            let distances = root.text(&format!("{NODES}/node{number}/distance")).unwrap_or_default();
            let distances: Vec<u32> =
                distances.split_whitespace().filter_map(|text| text.parse().ok()).collect();
            let is_whole = distances.len() == numbers.len();
            let distances = numbers.iter().copied().zip(distances).filter(|_| is_whole).collect();
            let has_memory = with_memory
                .as_ref()
                .is_none_or(|nodes| usize::try_from(*number).is_ok_and(|number| nodes.contains(&number)));
            self.nodes.insert(*number, Node { has_memory, distances });
        }
        of_cpu
    }

    /// A file with a list, or a doubt.
    fn list(&mut self, root: &Root, path: &str) -> Option<Vec<usize>> {
        let read = root.text(path);
        let list = read.and_then(|text| parse_list(&text).ok_or_else(|| Unread::malformed(path, &text)));
        list.map_err(|unread| self.doubt(unread.to_string())).ok()
    }

    fn doubt(&mut self, text: String) {
        if self.doubts.len() < DOUBTS_MAX {
            self.doubts.push(text);
        }
    }

    /// Takes what was known before of the same processors, and of nodes, where it could not be read now: machines do not lose these.
    /// Whether there was something.
    pub fn complete(&mut self, before: &Self) -> bool {
        let mut is_poorer = self.nodes.is_empty() && !before.nodes.is_empty();
        if is_poorer {
            self.nodes.clone_from(&before.nodes);
        }
        for (number, cpu) in &mut self.cpus {
            let Some(known) = before.cpus.get(number) else { continue };
            if (known.core_id.is_some() && cpu.core_id.is_none())
                || (known.node.is_some() && cpu.node.is_none())
            {
                *cpu = *known;
                is_poorer = true;
            }
        }
        is_poorer
    }

    /// What is not known of the machine, in words; a few at most.
    #[must_use]
    pub fn doubts(&self) -> &[String] {
        &self.doubts
    }

    /// Numbers of the processors, in ascending order.
    pub fn cpus(&self) -> impl Iterator<Item = usize> {
        self.cpus.keys().copied()
    }

    /// One of them.
    #[must_use]
    pub fn cpu(&self, number: usize) -> Option<&Cpu> {
        self.cpus.get(&number)
    }

    /// Whether regions have the choice between nodes.
    #[must_use]
    pub fn has_several_memories(&self) -> bool {
        self.nodes.values().filter(|node| node.has_memory).count() > 1
    }

    /// The only node, if there is no more than one with memory.
    #[must_use]
    pub fn only_memory(&self) -> Option<u32> {
        let mut with_memory = self.nodes.iter().filter(|(_, node)| node.has_memory);
        let first = with_memory.next().map(|(number, _)| *number);
        first.filter(|_| with_memory.next().is_none())
    }

    /// The node whose memory is nearest to the processors of this one: itself, or another if it has none or the process may
    /// not use it. `allowed`: the nodes whose memory may be used, none where that is not known.
    #[must_use]
    pub fn memory_of(&self, node: u32, allowed: Option<&[u32]>) -> Option<u32> {
        let is_usable = |number: &u32| {
            let has_memory = self.nodes.get(number).is_some_and(|node| node.has_memory);
            has_memory && allowed.is_none_or(|allowed| allowed.contains(number))
        };
        if is_usable(&node) {
            return Some(node);
        }
        let distances = &self.nodes.get(&node)?.distances;
        let others = distances.iter().filter(|(number, _)| is_usable(number));
        others.min_by_key(|(number, distance)| (**distance, **number)).map(|(number, _)| *number)
    }

    /// The machine in a few words: `2 packages, 8 cores, 16 processors (0-15), 2 NUMA nodes`, of what may be used.
    #[must_use]
    pub fn describe(&self) -> String {
        let cpus: Vec<usize> = self.cpus().collect();
        let count = |distinct: BTreeSet<usize>| distinct.len();
        let packages =
            count(self.cpus.values().map(|cpu| cpu.package.map_or(0, |package| package as usize)).collect());
        let cores = count(self.cpus.values().map(|cpu| cpu.core).collect());
        let nodes: BTreeSet<u32> = self.cpus.values().filter_map(|cpu| cpu.node).collect();
        let mut text = format!(
            "{}, {}, {}",
            counted(packages, "package"),
            counted(cores, "core"),
            counted(cpus.len(), "processor")
        );
        if !cpus.is_empty() {
            let _ = write!(text, " ({})", show_list(&cpus));
        }
        match nodes.len() {
            0 => text.push_str(", no NUMA nodes"),
            number => {
                let nodes: Vec<usize> = nodes.into_iter().map(|node| node as usize).collect();
                let _ = write!(text, ", {} ({})", counted(number, "NUMA node"), show_list(&nodes));
            }
        }
        text
    }
}

/// `1 core`, `2 cores`.
pub(crate) fn counted(number: usize, what: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {what}{plural}")
}

/// A list of numbers as the kernel writes it: `0-3,8`. At most 65,536 of them, or none at all.
#[must_use]
pub fn parse_list(text: &str) -> Option<Vec<usize>> {
    const MAX: usize = 1 << 16;
    let mut numbers = Vec::new();
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if last < first || last - first >= MAX || numbers.len() + (last - first) >= MAX {
            return None;
        }
        numbers.extend(first..=last);
    }
    Some(numbers)
}

/// Numbers in ascending order as the kernel writes them: `0-3,8`.
#[must_use]
pub fn show_list(numbers: &[usize]) -> String {
    let mut text = String::new();
    let mut rest = numbers;
    while let Some((first, _)) = rest.split_first() {
        let length = (0..).zip(rest).take_while(|(at, number)| **number == *first + at).count();
        if !text.is_empty() {
            text.push(',');
        }
        let _ = match length {
            1 => write!(text, "{first}"),
            _ => write!(text, "{first}-{}", first + length - 1),
        };
        rest = &rest[length..];
    }
    text
}

/// The nodes whose memory a process may use (`self` for the one that asks); none where the kernel does not tell.
#[must_use]
pub fn memories_allowed(root: &Root, process: &str) -> Option<Vec<u32>> {
    let status = root.text(&format!("/proc/{process}/status")).ok()?;
    let list = status.lines().find_map(|line| line.strip_prefix("Mems_allowed_list:"))?;
    let nodes = parse_list(list)?;
    Some(nodes.into_iter().filter_map(|node| u32::try_from(node).ok()).collect())
}

#[cfg(test)]
pub(crate) mod tests;
