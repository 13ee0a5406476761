//! Machines that are written down as the kernel shows them, and what is read of them.

use std::collections::BTreeMap;

use super::*;
use crate::root::machine;

/// Files below `/sys`, by path.
pub(crate) type Files = BTreeMap<String, String>;

fn files(files: &[(&str, &str)]) -> Files {
    files.iter().map(|(path, text)| ((*path).to_owned(), format!("{text}\n"))).collect()
}

/// One processor: its number, siblings, package and core.
fn add_cpu(files: &mut Files, cpu: usize, siblings: &str, package: i64, core: i64) {
    let mut add = |name: &str, text: String| {
        files.insert(format!("{CPUS}/cpu{cpu}/topology/{name}"), format!("{text}\n"));
    };
    add("thread_siblings_list", siblings.to_owned());
    add("physical_package_id", package.to_string());
    add("core_id", core.to_string());
}

/// Two packages of four cores with two threads each: processors 0 to 7 are the first threads, 8 to 15 the second ones.
/// Each package is a node with memory.
pub(crate) fn two_sockets() -> Files {
    let mut files = files(&[
        ("/sys/devices/system/cpu/online", "0-15"),
        ("/sys/devices/system/node/has_memory", "0-1"),
        ("/sys/devices/system/node/node0/cpulist", "0-3,8-11"),
        ("/sys/devices/system/node/node0/distance", "10 21"),
        ("/sys/devices/system/node/node1/cpulist", "4-7,12-15"),
        ("/sys/devices/system/node/node1/distance", "21 10"),
    ]);
    for cpu in 0..16_usize {
        let first = cpu % 8;
        let (package, core) = ((first / 4) as i64, (first % 4) as i64);
        add_cpu(&mut files, cpu, &format!("{first},{}", first + 8), package, core);
    }
    files
}

/// What is read of these files of these processors.
pub(crate) fn read(files: &Files, allowed: &[usize]) -> Topology {
    let files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
    let (_directory, root) = machine(&files);
    Topology::read(&root, allowed)
}

/// Processor, core and node of each that was read.
fn found(topology: &Topology) -> Vec<(usize, usize, Option<u32>)> {
    topology
        .cpus()
        .map(|number| (number, topology.cpu(number).unwrap()))
        .map(|(n, c)| (n, c.core, c.node))
        .collect()
}

#[test]
fn two_sockets_with_two_threads_per_core_are_read_as_such() {
    let topology = read(&two_sockets(), &(0..16).collect::<Vec<_>>());
    assert_eq!(topology.doubts(), [""; 0]);
    assert_eq!(topology.describe(), "2 packages, 8 cores, 16 processors (0-15), 2 NUMA nodes (0-1)");
    assert_eq!(topology.cpu(13), Some(&Cpu { core: 5, package: Some(1), core_id: Some(1), node: Some(1) }));
    assert!(topology.has_several_memories());
    assert_eq!((topology.only_memory(), topology.memory_of(1, None)), (None, Some(1)));
}

#[test]
fn only_what_may_be_used_and_is_online_counts() {
    let mut files = two_sockets();
    files.insert(format!("{CPUS}/online"), "0-5,8-9,4000\n".to_owned());
    let topology = read(&files, &[1, 5, 6, 9, 15]);
    assert_eq!(found(&topology), [(1, 1, Some(0)), (5, 5, Some(1)), (9, 1, Some(0))]);
    assert_eq!(topology.describe(), "2 packages, 2 cores, 3 processors (1,5,9), 2 NUMA nodes (0-1)");
}

#[test]
fn a_node_without_memory_or_one_that_may_not_be_used_is_served_by_the_nearest() {
    let mut files = two_sockets();
    for (path, text) in [
        ("has_memory", "0,2"),
        ("node2/cpulist", ""),
        ("node0/distance", "10 21 31"),
        ("node1/distance", "21 10 12"),
        ("node2/distance", "31 12 10"),
    ] {
        files.insert(format!("{NODES}/{path}"), format!("{text}\n"));
    }
    let topology = read(&files, &(0..16).collect::<Vec<_>>());
    assert_eq!(topology.doubts(), [""; 0]);
    // Node 2 has memory and no processors, node 1 the other way round.
    let memory = |node, allowed: &[u32]| topology.memory_of(node, Some(allowed));
    assert_eq!(
        [memory(0, &[0, 1, 2]), memory(1, &[0, 1, 2]), memory(1, &[0, 1])],
        [Some(0), Some(2), Some(0)]
    );
    assert_eq!([memory(0, &[1]), memory(7, &[0])], [None, None]);
    assert!(topology.has_several_memories());
    files.insert(format!("{NODES}/has_memory"), "2\n".to_owned());
    let topology = read(&files, &[0]);
    assert_eq!((topology.has_several_memories(), topology.only_memory()), (false, Some(2)));
}

#[test]
fn a_processor_beyond_a_mask_of_1024_bits_is_one_like_any_other() {
    let mut files = files(&[
        ("/sys/devices/system/cpu/online", "3,1500-1501"),
        ("/sys/devices/system/node/node0/cpulist", "3"),
        ("/sys/devices/system/node/node77/cpulist", "1500-1501"),
        ("/sys/devices/system/node/has_normal_memory", "0,77"),
    ]);
    add_cpu(&mut files, 3, "3", 0, 0);
    add_cpu(&mut files, 1500, "1500-1501", 3, 40);
    add_cpu(&mut files, 1501, "1500-1501", 3, 40);
    let topology = read(&files, &[3, 1500, 1501]);
    assert_eq!(topology.doubts(), [""; 0]);
    assert_eq!(found(&topology), [(3, 3, Some(0)), (1500, 1500, Some(77)), (1501, 1500, Some(77))]);
    assert_eq!(topology.memory_of(77, None), Some(77));
}

#[test]
fn of_a_machine_that_shows_nothing_each_processor_is_a_core_and_it_is_told() {
    let topology = read(&Files::new(), &[0, 2]);
    assert_eq!(found(&topology), [(0, 0, None), (2, 2, None)]);
    assert_eq!((topology.has_several_memories(), topology.only_memory()), (false, None));
    assert_eq!(topology.describe(), "1 package, 2 cores, 2 processors (0,2), no NUMA nodes");
    assert_eq!(
        topology.doubts(),
        [
            "not known: there is no /sys/devices/system/cpu/online",
            "not known: there is no /sys/devices/system/cpu/cpu0/topology/thread_siblings_list",
            "not known: there is no /sys/devices/system/cpu/cpu2/topology/thread_siblings_list",
        ]
    );
}

#[test]
fn what_means_nothing_is_told_and_taken_for_less() {
    let mut files = two_sockets();
    let garbage = [
        (format!("{CPUS}/online"), "0-"),
        (format!("{CPUS}/cpu0/topology/thread_siblings_list"), "\u{1}\u{2}x"),
        // Somebody else's.
        (format!("{CPUS}/cpu1/topology/thread_siblings_list"), "2,10"),
        (format!("{CPUS}/cpu4/topology/core_id"), "-1"),
        (format!("{CPUS}/cpu4/topology/physical_package_id"), "many"),
        (format!("{NODES}/node0/cpulist"), "9-0"),
        (format!("{NODES}/node1/cpulist"), "4-7,99999999999999999999"),
        (format!("{NODES}/nodes/cpulist"), "0-3"),
        (format!("{NODES}/node0/distance"), "10"),
    ];
    for (path, text) in garbage {
        files.insert(path, text.to_owned());
    }
    let topology = read(&files, &[0, 1, 4, 8, 9]);
    // The second threads still say whose they are; for the first of a core the numbers do.
    assert_eq!(found(&topology), [(0, 0, None), (1, 1, None), (4, 4, None), (8, 0, None), (9, 1, None)]);
    assert_eq!(topology.cpu(4).map(|cpu| (cpu.package, cpu.core_id)), Some((None, None)));
    let doubts = topology.doubts().join("\n");
    for told in ["cpu/online has \"0-\"", "node0/cpulist has \"9-0\"", "node1/cpulist has", "cpu0/topology"] {
        assert!(doubts.contains(told), "{told}: {doubts}");
    }
    assert_eq!(topology.doubts().len(), DOUBTS_MAX);
}

#[test]
fn a_list_of_other_processors_as_online_is_not_believed() {
    let mut files = two_sockets();
    files.insert(format!("{CPUS}/online"), "900-901\n".to_owned());
    let topology = read(&files, &[0, 4]);
    assert_eq!(found(&topology), [(0, 0, Some(0)), (4, 4, Some(1))]);
    assert_eq!(
        topology.doubts(),
        ["/sys/devices/system/cpu/online has none of the processors that may be used"]
    );
    assert!(read(&files, &[]).doubts().is_empty());
}

#[test]
fn a_processor_of_two_nodes_is_of_the_first_and_one_of_none_is_told() {
    let mut files = two_sockets();
    files.insert(format!("{NODES}/node1/cpulist"), "3-6\n".to_owned());
    let topology = read(&files, &[3, 7]);
    assert_eq!(found(&topology), [(3, 3, Some(0)), (7, 7, None)]);
    assert_eq!(
        topology.doubts(),
        ["processor 3 is in the lists of nodes 0 and 1", "processor 7 is in the list of no node"]
    );
}

#[test]
fn threads_of_a_core_whose_siblings_are_not_shown_are_found_by_its_number() {
    let mut files = two_sockets();
    files.retain(|path, _| !path.ends_with("thread_siblings_list"));
    let topology = read(&files, &[1, 9, 5, 13]);
    assert_eq!(found(&topology), [(1, 1, Some(0)), (5, 5, Some(1)), (9, 1, Some(0)), (13, 5, Some(1))]);
}

#[test]
fn a_list_of_processors_is_read_within_bounds_and_shown_as_it_was() {
    for (text, numbers) in
        [("0-2,5\n", vec![0, 1, 2, 5]), ("", vec![]), ("7", vec![7]), ("1,3-4", vec![1, 3, 4])]
    {
        assert_eq!(parse_list(text), Some(numbers.clone()));
        assert_eq!(show_list(&numbers), text.trim());
    }
    assert_eq!(parse_list("0-1023").unwrap().len(), 1024);
    for text in ["3-1", "a", "1-", "0-18446744073709551615", "0-65535,1"] {
        assert_eq!(parse_list(text), None, "{text}");
    }
}

#[test]
fn the_memories_that_a_process_may_use_are_those_of_its_status() {
    let (_directory, root) = machine(&[
        ("/proc/7/status", "Name:\tweir\nMems_allowed:\t3\nMems_allowed_list:\t0-1,70\n"),
        ("/proc/8/status", "Mems_allowed_list:\tall\n"),
    ]);
    assert_eq!(memories_allowed(&root, "7"), Some(vec![0, 1, 70]));
    assert_eq!([memories_allowed(&root, "8"), memories_allowed(&root, "9")], [None, None]);
}

#[test]
fn this_machine_is_read_without_doubt() {
    let allowed = crate::shard::placement::allowed_cpus();
    let topology = Topology::read(&Root::default(), &allowed);
    assert_eq!(topology.cpus().collect::<Vec<_>>(), allowed);
    if topology.doubts().is_empty() {
        assert!(topology.cpus().all(|cpu| topology.cpu(cpu).unwrap().core <= cpu));
    } else {
        println!("not run here: the topology of this machine ({})", topology.doubts().join("; "));
    }
}
