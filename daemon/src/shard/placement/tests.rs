//! The plan, on machines that are written down.

use super::*;
use crate::topology::tests::{Files, read, two_sockets};

fn cpus(places: &[Place]) -> Vec<Option<usize>> {
    places.iter().map(|place| place.cpu).collect()
}

/// The CPUs of so many bound shards.
fn bound(topology: &Topology, shards: u16) -> Vec<usize> {
    cpus(&plan(topology, None, shards, Pin::On)).into_iter().map(|cpu| cpu.expect("bound")).collect()
}

fn all() -> Vec<usize> {
    (0..16).collect()
}

#[test]
fn shards_are_bound_only_while_a_cpu_is_left_over() {
    let topology = read(&Files::new(), &[2, 3, 6, 7]);
    for (shards, pin, expected) in [
        (2, Pin::Auto, vec![Some(2), Some(3)]),
        (3, Pin::Auto, vec![Some(2), Some(3), Some(6)]),
        (4, Pin::Auto, vec![None; 4]),
        (4, Pin::On, vec![Some(2), Some(3), Some(6), Some(7)]),
        (5, Pin::On, vec![Some(2), Some(3), Some(6), Some(7), Some(2)]),
        (1, Pin::Off, vec![None]),
        (0, Pin::On, vec![]),
    ] {
        assert_eq!(cpus(&plan(&topology, None, shards, pin)), expected, "{shards} {pin:?}");
    }
    let nothing = read(&Files::new(), &[]);
    assert_eq!(plan(&nothing, None, 2, Pin::On), vec![Place::default(); 2]);
}

#[test]
fn cores_of_both_nodes_come_before_the_second_thread_of_any() {
    let topology = read(&two_sockets(), &all());
    assert_eq!(bound(&topology, 16), [0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15]);
    let places = plan(&topology, None, 10, Pin::Auto);
    let place = |cpu, node, shares_core: &[u16]| Place {
        cpu: Some(cpu),
        node: Some(node),
        memory_node: Some(node),
        shares_cpu: Vec::new(),
        shares_core: shares_core.to_vec(),
    };
    assert_eq!(places[0], place(0, 0, &[8]));
    assert_eq!(places[1], place(4, 1, &[9]));
    assert_eq!(places[2], place(1, 0, &[]));
    assert_eq!(places[9], place(12, 1, &[1]));
}

#[test]
fn threads_of_a_core_that_have_adjacent_numbers_are_told_apart() {
    let path = |cpu| format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
    let files: Files = (0..8).map(|cpu| (path(cpu), format!("{}-{}\n", cpu & !1, cpu | 1))).collect();
    let topology = read(&files, &(0..8).collect::<Vec<_>>());
    assert_eq!(bound(&topology, 8), [0, 2, 4, 6, 1, 3, 5, 7]);
}

#[test]
fn second_threads_whose_first_may_not_be_used_are_cores_like_others() {
    let topology = read(&two_sockets(), &[0, 8, 9, 12]);
    assert_eq!(bound(&topology, 4), [0, 12, 9, 8]);
}

#[test]
fn each_node_gives_in_proportion_to_what_it_has() {
    let topology = read(&two_sockets(), &[0, 1, 2, 3, 4]);
    assert_eq!(bound(&topology, 5), [0, 4, 1, 2, 3]);
    let topology = read(&two_sockets(), &[0, 1, 4, 5, 6, 7]);
    assert_eq!(bound(&topology, 6), [0, 4, 5, 1, 6, 7]);
}

#[test]
fn more_shards_than_cpus_take_turns_and_know_with_whom() {
    let topology = read(&two_sockets(), &[0, 4, 8]);
    let places = plan(&topology, None, 5, Pin::On);
    assert_eq!(cpus(&places), [0, 4, 8, 0, 4].map(Some));
    let shares: Vec<_> = places.iter().map(|place| (&place.shares_cpu[..], &place.shares_core[..])).collect();
    assert_eq!(shares, [(&[3][..], &[2][..]), (&[4], &[]), (&[], &[0, 3]), (&[0], &[2]), (&[1], &[])]);
}

#[test]
fn a_shard_that_roams_has_a_node_if_all_its_cpus_are_of_one() {
    let topology = read(&two_sockets(), &[4, 5, 12]);
    let place = Place { node: Some(1), memory_node: Some(1), ..Place::default() };
    assert_eq!(plan(&topology, None, 3, Pin::Auto), vec![place.clone(); 3]);
    let elsewhere = Place { memory_node: Some(0), ..place };
    assert_eq!(plan(&topology, Some(&[0]), 1, Pin::Off), vec![elsewhere]);
    let topology = read(&two_sockets(), &[4, 5, 0]);
    assert_eq!(plan(&topology, None, 3, Pin::Auto), vec![Place::default(); 3]);
}

#[test]
fn a_cpu_beyond_1024_is_given_like_any_other() {
    let topology = read(&Files::new(), &[3, 1500]);
    assert_eq!(cpus(&plan(&topology, None, 2, Pin::On)), [Some(3), Some(1500)]);
}

#[test]
fn the_cpus_of_this_process_are_known() {
    assert!(!allowed_cpus().is_empty());
}
