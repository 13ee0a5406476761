//! The catalog: who finds whom, who is refused, who loses.

use weir_flow::catalog::{Catalog, CatalogAction, GateKey, GateWants, Partition, PartitionKey};
use weir_flow::exchange::{Name, Shape, Strategy as Ship};
use weir_flow::failure::{Failure, FailureCode};
use weir_flow::ids::{ConsumerIndex, Incarnation, ProducerIndex};
use weir_flow::wire::{
    CATALOG_ENTRIES_MAX, CatalogEntry, GateEntry, GateState, PartitionEntry, PartitionState,
};

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

fn remote_of(exchange: &str, producer: u32, shape: Shape, incarnation: u64) -> PartitionEntry {
    PartitionEntry {
        exchange: name(exchange),
        producer: ProducerIndex(producer),
        shape,
        shard: 1,
        incarnation: Incarnation(incarnation),
        state: PartitionState::Running,
        task: name("source"),
    }
}

fn remote(producer: u32, shape: Shape, incarnation: u64) -> CatalogEntry {
    CatalogEntry::Partition(remote_of("words", producer, shape, incarnation))
}

fn gone(entry: CatalogEntry) -> CatalogEntry {
    match entry {
        CatalogEntry::Partition(entry) => {
            CatalogEntry::Partition(PartitionEntry { state: PartitionState::Gone, ..entry })
        }
        CatalogEntry::Gate(entry) => CatalogEntry::Gate(GateEntry { state: GateState::Gone, ..entry }),
    }
}

fn attach(catalog: &mut Catalog, producer: u32, shape: Shape, incarnation: u64) -> Result<(), Failure> {
    catalog.handle_local_partition(
        partition_key(producer),
        Partition::running(name("source"), shape, 0, Incarnation(incarnation)),
    )
}

fn gate(catalog: &mut Catalog, consumer: u32, wants: GateWants) -> Result<(), Failure> {
    catalog.handle_gate(gate_key(consumer), name("sink"), wants)
}

/// Everything but what peers are told of gates, which has tests of its own.
fn actions(catalog: &mut Catalog) -> Vec<CatalogAction> {
    let is_of_gates = |action: &CatalogAction| match action {
        CatalogAction::Announce { entries, .. } => {
            entries.iter().all(|entry| matches!(entry, CatalogEntry::Gate(_)))
        }
        _ => false,
    };
    std::iter::from_fn(|| catalog.poll_action()).filter(|action| !is_of_gates(action)).collect()
}

/// Everything but what is announced to peers.
fn decisions(catalog: &mut Catalog) -> Vec<CatalogAction> {
    actions(catalog).into_iter().filter(|action| !matches!(action, CatalogAction::Announce { .. })).collect()
}

/// The peer that is told, or all, and producers with their states.
type Announced = (Option<Name>, Vec<(u32, PartitionState)>);

fn announced(catalog: &mut Catalog) -> Vec<Announced> {
    actions(catalog)
        .into_iter()
        .filter_map(|action| match action {
            CatalogAction::Announce { peer, entries } => {
                let states = entries.into_iter().map(|entry| match entry {
                    CatalogEntry::Partition(entry) => (entry.producer.0, entry.state),
                    CatalogEntry::Gate(gate) => panic!("a gate among them: {gate:?}"),
                });
                Some((peer, states.collect()))
            }
            _ => None,
        })
        .collect()
}

fn known(consumer: u32, shape: Shape) -> CatalogAction {
    CatalogAction::GateShapeKnown { gate: gate_key(consumer), shape }
}

fn connect(consumer: u32, producer: u32, node: &str, shard: u16, incarnation: u64) -> CatalogAction {
    CatalogAction::Connect {
        gate: gate_key(consumer),
        producer: ProducerIndex(producer),
        node: name(node),
        shard,
        incarnation: Incarnation(incarnation),
    }
}

#[test]
fn a_gate_learns_its_shape_from_the_first_producer_and_is_connected_to_each_as_it_appears() {
    let mut catalog = Catalog::new(name("b"));
    gate(&mut catalog, 0, wants(3)).unwrap();
    assert_eq!(actions(&mut catalog), []);
    let first = remote(1, shape(2, 3), 7);
    catalog.handle_remote(&name("a"), vec![first.clone()]).unwrap();
    assert_eq!(actions(&mut catalog), [known(0, shape(2, 3)), connect(0, 1, "a", 1, 7)]);
    // Said again, nothing happens again.
    catalog.handle_remote(&name("a"), vec![first]).unwrap();
    assert_eq!(actions(&mut catalog), []);
    attach(&mut catalog, 0, shape(2, 3), 9).unwrap();
    assert_eq!(decisions(&mut catalog), [connect(0, 0, "b", 0, 9)]);
}

#[test]
fn a_gate_that_comes_after_the_producers_is_connected_to_all_at_once() {
    let mut catalog = Catalog::new(name("b"));
    catalog.handle_remote(&name("a"), vec![remote(1, shape(2, 3), 7), remote(0, shape(2, 3), 8)]).unwrap();
    gate(&mut catalog, 2, wants(3)).unwrap();
    assert_eq!(
        actions(&mut catalog),
        [known(2, shape(2, 3)), connect(2, 0, "a", 1, 8), connect(2, 1, "a", 1, 7)]
    );
}

#[test]
fn a_gate_that_states_everything_knows_its_shape_at_once() {
    let mut catalog = Catalog::new(name("b"));
    gate(&mut catalog, 0, GateWants::all_of(&shape(2, 3))).unwrap();
    assert_eq!(actions(&mut catalog), [known(0, shape(2, 3))]);
    catalog.handle_remote(&name("a"), vec![remote(0, shape(2, 3), 7)]).unwrap();
    assert_eq!(actions(&mut catalog), [connect(0, 0, "a", 1, 7)]);
}

#[test]
fn a_forward_gate_learns_from_any_producer_and_is_connected_to_its_own_only() {
    let mut catalog = Catalog::new(name("b"));
    let forward = Shape { strategy: Ship::Forward, ..shape(3, 3) };
    gate(&mut catalog, 1, wants(3)).unwrap();
    catalog.handle_remote(&name("a"), vec![remote(0, forward, 7)]).unwrap();
    assert_eq!(actions(&mut catalog), [known(1, forward)]);
    catalog.handle_remote(&name("a"), vec![remote(1, forward, 8), remote(2, forward, 9)]).unwrap();
    assert_eq!(actions(&mut catalog), [connect(1, 1, "a", 1, 8)]);
}

#[test]
fn other_exchanges_are_not_touched() {
    let mut catalog = Catalog::new(name("b"));
    gate(&mut catalog, 0, wants(3)).unwrap();
    for exchange in ["word", "words.", "wordz", "a"] {
        let entry = remote_of(exchange, 0, shape(1, 9), 7);
        catalog.handle_remote(&name("a"), vec![CatalogEntry::Partition(entry)]).unwrap();
    }
    assert_eq!(actions(&mut catalog), []);
}

#[test]
fn announcements_tell_every_change_once_and_a_new_peer_everything() {
    let mut catalog = Catalog::new(name("b"));
    catalog.handle_peer_found(&name("a"));
    assert_eq!(announced(&mut catalog), []);
    attach(&mut catalog, 0, shape(3, 3), 7).unwrap();
    attach(&mut catalog, 1, shape(3, 3), 8).unwrap();
    let running = PartitionState::Running;
    assert_eq!(announced(&mut catalog), [(None, vec![(0, running)]), (None, vec![(1, running)])]);

    catalog.handle_local_finished(&partition_key(0));
    catalog.handle_local_finished(&partition_key(0));
    assert_eq!(announced(&mut catalog), [(None, vec![(0, PartitionState::Finished)])]);
    catalog.handle_remote(&name("a"), vec![remote(2, shape(3, 3), 9)]).unwrap();
    catalog.handle_peer_found(&name("c"));
    // Of this node's partitions only: the others' nodes tell of theirs.
    let all = vec![(0, PartitionState::Finished), (1, running)];
    assert_eq!(announced(&mut catalog), [(Some(name("c")), all)]);

    catalog.handle_local_gone(&partition_key(0));
    catalog.handle_local_gone(&partition_key(0));
    catalog.handle_local_finished(&partition_key(0));
    assert_eq!(announced(&mut catalog), [(None, vec![(0, PartitionState::Gone)])]);
}

#[test]
fn a_long_catalog_is_told_in_parts() {
    let mut catalog = Catalog::new(name("b"));
    let parallelism = CATALOG_ENTRIES_MAX as u32 + 1;
    for producer in 0..parallelism {
        attach(&mut catalog, producer, shape(parallelism, 1), producer.into()).unwrap();
    }
    actions(&mut catalog);
    catalog.handle_peer_found(&name("a"));
    let parts: Vec<usize> = announced(&mut catalog).into_iter().map(|(_, entries)| entries.len()).collect();
    assert_eq!(parts, [CATALOG_ENTRIES_MAX, 1]);
}

#[test]
fn a_second_producer_with_the_same_index_is_refused_here_and_told_where_the_first_is() {
    let mut catalog = Catalog::new(name("b"));
    attach(&mut catalog, 0, shape(2, 3), 7).unwrap();
    catalog.handle_remote(&name("a"), vec![remote(1, shape(2, 3), 9)]).unwrap();
    actions(&mut catalog);
    let refused = attach(&mut catalog, 0, shape(2, 3), 8).unwrap_err();
    assert_eq!(refused.code, FailureCode::DuplicateProducer);
    assert_eq!(
        refused.text,
        "producer 0 of exchange words is held on node b (shard 0, incarnation 7); \
         needed: another index, or its end"
    );
    // On another node as well, even if the newcomer's incarnation is smaller: it does know of the first.
    let refused = attach(&mut catalog, 1, shape(2, 3), 3).unwrap_err();
    assert!(refused.text.contains("is held on node a (shard 1, incarnation 9)"), "{refused}");

    // A finished producer holds its place until it is gone.
    catalog.handle_local_finished(&partition_key(0));
    let refused = attach(&mut catalog, 0, shape(2, 3), 8).unwrap_err();
    assert!(refused.text.contains("has finished and is still being read on node b"), "{refused}");
    actions(&mut catalog);
    catalog.handle_local_gone(&partition_key(0));
    attach(&mut catalog, 0, shape(2, 3), 8).unwrap();
    catalog.handle_remote(&name("a"), vec![gone(remote(1, shape(2, 3), 9))]).unwrap();
    attach(&mut catalog, 1, shape(2, 3), 10).unwrap();
    assert_eq!(decisions(&mut catalog), []);
}

#[test]
fn a_gone_entry_of_an_earlier_life_does_not_remove_the_next() {
    let mut catalog = Catalog::new(name("b"));
    catalog.handle_remote(&name("a"), vec![remote(0, shape(1, 1), 9)]).unwrap();
    catalog.handle_remote(&name("a"), vec![gone(remote(0, shape(1, 1), 8))]).unwrap();
    assert_eq!(catalog.partitions().count(), 1);
}

#[test]
fn of_two_producers_that_could_not_know_of_each_other_one_loses_and_both_nodes_agree() {
    // (incarnation on a, incarnation on b, does a lose)
    for (on_a, on_b, a_loses) in [(5, 7, false), (7, 5, true), (6, 6, false)] {
        let (mut a, mut b) = (Catalog::new(name("a")), Catalog::new(name("b")));
        attach(&mut a, 0, shape(1, 1), on_a).unwrap();
        attach(&mut b, 0, shape(1, 1), on_b).unwrap();
        for _ in 0..2 {
            // The second time is a repetition.
            a.handle_remote(&name("b"), vec![remote(0, shape(1, 1), on_b)]).unwrap();
            b.handle_remote(&name("a"), vec![remote(0, shape(1, 1), on_a)]).unwrap();
        }
        let lost = |catalog: &mut Catalog| -> Vec<FailureCode> {
            decisions(catalog)
                .into_iter()
                .map(|action| match action {
                    CatalogAction::FailLocalPartition { partition, failure } => {
                        assert_eq!(partition, partition_key(0));
                        failure.code
                    }
                    other => panic!("{other:?}"),
                })
                .collect()
        };
        let (winner, loser) = if a_loses { (&mut b, &mut a) } else { (&mut a, &mut b) };
        assert_eq!(lost(winner), []);
        assert_eq!(lost(loser), [FailureCode::DuplicateProducer]);

        // A gate takes the winner, wherever it is attached, and not a loser that is still there.
        for catalog in [winner, loser] {
            gate(catalog, 0, wants(1)).unwrap();
            let connects: Vec<Name> = decisions(catalog)
                .into_iter()
                .filter_map(|action| match action {
                    CatalogAction::Connect { node, .. } => Some(node),
                    _ => None,
                })
                .collect();
            assert_eq!(connects, [name(if a_loses { "b" } else { "a" })]);
        }
    }
}

#[test]
fn of_two_producers_with_different_shapes_the_later_loses() {
    let mut catalog = Catalog::new(name("b"));
    attach(&mut catalog, 0, shape(2, 3), 7).unwrap();
    actions(&mut catalog);
    catalog.handle_remote(&name("a"), vec![remote(1, shape(2, 4), 9)]).unwrap();
    assert_eq!(decisions(&mut catalog), [], "the remote one is later");
    catalog.handle_remote(&name("c"), vec![remote(1, shape(2, 5), 3)]).unwrap();
    let [CatalogAction::FailLocalPartition { failure, .. }] = &decisions(&mut catalog)[..] else {
        panic!("the local one is later");
    };
    assert_eq!(failure.code, FailureCode::Mismatch);
    assert_eq!(
        failure.text,
        "producer 0 of exchange words: consumers is 3, needed: 5 (as producer 1 of exchange words on node c \
         states); state the same on both sides"
    );
}

#[test]
fn a_producer_that_disagrees_with_what_is_known_is_refused_with_both_values() {
    let mut catalog = Catalog::new(name("b"));
    catalog.handle_remote(&name("a"), vec![remote(0, shape(2, 3), 7)]).unwrap();
    let base = shape(2, 3);
    for (other, text) in [
        (shape(4, 3), "producers is 4, needed: 2"),
        (shape(2, 4), "consumers is 4, needed: 3"),
        (Shape { strategy: Ship::Hash, ..base }, "strategy is hash, needed: rebalance"),
        (Shape { segment_bytes: 4096, ..base }, "segment size is 4096, needed: 32768"),
        (Shape { checksum: true, ..base }, "checksum is true, needed: false"),
        (shape(4, 4), "consumers is 4, needed: 3; producers is 4, needed: 2"),
    ] {
        let refused = attach(&mut catalog, 1, other, 9).unwrap_err();
        assert_eq!(refused.code, FailureCode::Mismatch);
        assert!(refused.text.contains(text), "{refused} does not say {text}");
        // The same for a consumer that states all.
        let refused = gate(&mut catalog, 0, GateWants::all_of(&other)).unwrap_err();
        assert!(refused.text.contains(text), "{refused} does not say {text}");
    }
    let refused = gate(&mut catalog, 0, wants(4)).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "mismatch: consumer 0 of exchange words: consumers is 4, needed: 3 (as producer 0 of exchange words on \
         node a states); state the same on both sides"
    );
    assert_eq!(actions(&mut catalog), []);
    attach(&mut catalog, 1, base, 9).unwrap();
    gate(&mut catalog, 0, wants(3)).unwrap();
}

#[test]
fn a_producer_that_disagrees_with_a_gate_of_this_node_is_refused_and_the_gate_does_not_notice() {
    let mut catalog = Catalog::new(name("b"));
    gate(&mut catalog, 0, wants(3)).unwrap();
    let refused = attach(&mut catalog, 0, shape(2, 4), 7).unwrap_err();
    assert!(
        refused.text.contains("consumers is 4, needed: 3 (as consumer 0 of exchange words on node b"),
        "{refused}"
    );
    let refused = gate(&mut catalog, 1, wants(4)).unwrap_err();
    assert_eq!(refused.code, FailureCode::Mismatch);
    assert_eq!(actions(&mut catalog), []);
    attach(&mut catalog, 0, shape(2, 3), 7).unwrap();
    assert_eq!(decisions(&mut catalog), [known(0, shape(2, 3)), connect(0, 0, "b", 0, 7)]);
}

#[test]
fn a_gate_that_reads_nothing_yet_fails_once_if_a_peers_producer_disagrees() {
    let mut catalog = Catalog::new(name("b"));
    gate(&mut catalog, 0, wants(3)).unwrap();
    gate(&mut catalog, 1, GateWants { producers: Some(2), ..wants(3) }).unwrap();
    let entries = vec![remote(0, shape(4, 3), 7)];
    catalog.handle_remote(&name("a"), entries.clone()).unwrap();
    let decided = decisions(&mut catalog);
    let [first, second, CatalogAction::FailGate { gate, failure }] = &decided[..] else {
        panic!("{decided:?}")
    };
    assert_eq!([first, second], [&known(0, shape(4, 3)), &connect(0, 0, "a", 1, 7)]);
    assert_eq!(*gate, gate_key(1));
    assert!(
        failure.text.contains("producers is 2, needed: 4 (as producer 0 of exchange words on node a"),
        "{failure}"
    );
    catalog.handle_remote(&name("a"), entries).unwrap();
    catalog.handle_retry();
    assert_eq!(decisions(&mut catalog), []);
}

#[test]
fn a_gate_whose_memory_has_one_shape_is_not_left_waiting_for_producers_of_another() {
    let mut catalog = Catalog::new(name("b"));
    let forward = Shape { strategy: Ship::Forward, ..shape(3, 3) };
    gate(&mut catalog, 1, wants(3)).unwrap();
    catalog.handle_remote(&name("a"), vec![remote(0, forward, 7)]).unwrap();
    catalog.handle_remote(&name("a"), vec![gone(remote(0, forward, 7))]).unwrap();
    assert_eq!(decisions(&mut catalog), [known(1, forward)]);
    catalog.handle_remote(&name("a"), vec![remote(0, shape(3, 3), 8)]).unwrap();
    let [CatalogAction::FailGate { failure, .. }] = &decisions(&mut catalog)[..] else {
        panic!("it must fail")
    };
    assert!(failure.text.contains("strategy is forward, needed: rebalance"), "{failure}");
}

#[test]
fn a_gate_that_reads_already_does_not_notice_a_newcomer_that_does_not_fit() {
    let mut catalog = Catalog::new(name("b"));
    gate(&mut catalog, 0, wants(3)).unwrap();
    catalog.handle_remote(&name("a"), vec![remote(0, shape(2, 3), 7)]).unwrap();
    actions(&mut catalog);
    // Even one that would have come first.
    catalog.handle_remote(&name("c"), vec![remote(1, shape(2, 4), 1)]).unwrap();
    assert_eq!(actions(&mut catalog), []);
    catalog.handle_remote(&name("c"), vec![gone(remote(1, shape(2, 4), 1))]).unwrap();
    catalog.handle_remote(&name("c"), vec![remote(1, shape(2, 3), 9)]).unwrap();
    assert_eq!(actions(&mut catalog), [connect(0, 1, "c", 1, 9)]);
}

#[test]
fn indices_and_shapes_that_cannot_be_are_refused_and_left_out() {
    let mut catalog = Catalog::new(name("b"));
    let refused = attach(&mut catalog, 2, shape(2, 3), 7).unwrap_err();
    assert_eq!(refused.code, FailureCode::IndexOutOfRange);
    assert_eq!(refused.text, "producer 2 of exchange words: the index is 2; needed: below 2");
    let refused = gate(&mut catalog, 3, wants(3)).unwrap_err();
    assert_eq!(refused.text, "consumer 3 of exchange words: the index is 3; needed: below 3");
    let forward = Shape { strategy: Ship::Forward, ..shape(2, 3) };
    let refused = attach(&mut catalog, 0, forward, 7).unwrap_err();
    assert_eq!(
        refused.text,
        "forward has 2 producers and 3 consumers; needed: as many of both, or another strategy: rescale, rebalance, \
         hash or broadcast"
    );
    let refused = attach(&mut catalog, 0, shape(1, 5000), 7).unwrap_err();
    assert_eq!(refused.text, "consumers is 5000; needed: 1 to 4096");
    assert!(gate(&mut catalog, 0, GateWants::all_of(&shape(0, 3))).is_err());

    gate(&mut catalog, 0, wants(3)).unwrap();
    catalog.handle_remote(&name("a"), vec![remote(2, shape(2, 3), 7), remote(0, forward, 7)]).unwrap();
    assert_eq!(actions(&mut catalog), []);
    assert_eq!(catalog.partitions().count(), 0);
}

#[test]
fn a_second_consumer_with_the_same_index_is_refused_until_the_first_is_gone() {
    let mut catalog = Catalog::new(name("b"));
    gate(&mut catalog, 0, wants(3)).unwrap();
    let refused = gate(&mut catalog, 0, wants(3)).unwrap_err();
    assert_eq!(refused.code, FailureCode::DuplicateConsumer);
    catalog.handle_gate_gone(&gate_key(0));
    gate(&mut catalog, 0, wants(3)).unwrap();
    catalog.handle_remote(&name("a"), vec![remote(0, shape(1, 3), 7)]).unwrap();
    assert_eq!(actions(&mut catalog), [known(0, shape(1, 3)), connect(0, 0, "a", 1, 7)]);
}

#[test]
fn a_peer_lost_and_back_is_not_connected_to_twice() {
    let mut catalog = Catalog::new(name("b"));
    gate(&mut catalog, 0, wants(3)).unwrap();
    catalog.handle_remote(&name("a"), vec![remote(0, shape(2, 3), 7), remote(1, shape(2, 3), 8)]).unwrap();
    actions(&mut catalog);
    catalog.handle_peer_lost(&name("a"));
    catalog.handle_peer_lost(&name("a"));
    assert_eq!(catalog.partitions().count(), 0);
    // Producer 0 is the same life, producer 1 was restarted meanwhile: the gate may take neither.
    catalog.handle_remote(&name("a"), vec![remote(0, shape(2, 3), 7), remote(1, shape(2, 3), 9)]).unwrap();
    assert_eq!(actions(&mut catalog), []);
    // A gate that comes now takes both.
    gate(&mut catalog, 1, wants(3)).unwrap();
    assert_eq!(
        actions(&mut catalog),
        [known(1, shape(2, 3)), connect(1, 0, "a", 1, 7), connect(1, 1, "a", 1, 9)]
    );
}

#[test]
fn losing_one_peer_leaves_the_others_and_this_node() {
    let mut catalog = Catalog::new(name("b"));
    attach(&mut catalog, 0, shape(3, 1), 1).unwrap();
    catalog.handle_remote(&name("a"), vec![remote(1, shape(3, 1), 2)]).unwrap();
    catalog.handle_remote(&name("c"), vec![remote(2, shape(3, 1), 3)]).unwrap();
    catalog.handle_peer_lost(&name("a"));
    catalog.handle_peer_lost(&name("b"));
    let left: Vec<u32> = catalog.partitions().map(|(key, _, _)| key.producer.0).collect();
    assert_eq!(left, [0, 2]);
    // Nobody may speak for this node.
    catalog.handle_remote(&name("b"), vec![gone(remote(0, shape(3, 1), 1))]).unwrap();
    assert_eq!(catalog.partitions().count(), 2);
}

#[test]
fn a_connection_that_failed_is_asked_for_again_at_the_next_word_of_the_producer_or_at_a_retry() {
    let mut catalog = Catalog::new(name("b"));
    gate(&mut catalog, 0, wants(3)).unwrap();
    catalog.handle_remote(&name("a"), vec![remote(0, shape(2, 3), 7)]).unwrap();
    actions(&mut catalog);
    catalog.handle_connect_failed(&gate_key(0), ProducerIndex(0));
    assert_eq!(actions(&mut catalog), [], "at once would be a busy loop");
    catalog.handle_retry();
    assert_eq!(actions(&mut catalog), [connect(0, 0, "a", 1, 7)]);
    catalog.handle_retry();
    assert_eq!(actions(&mut catalog), []);

    // A life of which nothing was read does not bind.
    catalog.handle_connect_failed(&gate_key(0), ProducerIndex(0));
    catalog.handle_peer_lost(&name("a"));
    catalog.handle_remote(&name("a"), vec![remote(0, shape(2, 3), 9)]).unwrap();
    assert_eq!(actions(&mut catalog), [connect(0, 0, "a", 1, 9)]);
}

#[test]
fn a_finished_producer_is_found_by_consumers_that_come_later() {
    let mut catalog = Catalog::new(name("b"));
    attach(&mut catalog, 0, shape(1, 3), 7).unwrap();
    catalog.handle_local_finished(&partition_key(0));
    gate(&mut catalog, 0, wants(3)).unwrap();
    assert_eq!(decisions(&mut catalog), [known(0, shape(1, 3)), connect(0, 0, "b", 0, 7)]);
}

#[test]
fn what_is_remembered_of_a_peer_is_bounded() {
    let mut catalog = Catalog::new(name("b"));
    let max = weir_flow::catalog::PEER_PARTITIONS_MAX;
    let entry = |at: usize| {
        let exchange = format!("x{}", at / 4096);
        CatalogEntry::Partition(remote_of(&exchange, (at % 4096) as u32, shape(4096, 1), at as u64))
    };
    for first in (0..max).step_by(4096) {
        catalog.handle_remote(&name("a"), (first..first + 4096).map(entry).collect()).unwrap();
    }
    let refused = catalog.handle_remote(&name("a"), vec![entry(max)]).unwrap_err();
    assert_eq!(refused.to_string(), "peer announces more partitions; needed: at most 65536");
    assert_eq!(catalog.partitions().count(), max);
    // What is known may change and go, and then there is room.
    catalog.handle_remote(&name("a"), vec![entry(0), gone(entry(1)), entry(max)]).unwrap();
    // Another peer has its own bound.
    catalog.handle_remote(&name("c"), vec![entry(max + 1)]).unwrap();
    catalog.handle_peer_lost(&name("a"));
    assert_eq!(catalog.partitions().count(), 1);
}

#[test]
fn with_rescale_a_gate_is_connected_to_its_share_of_the_producers_and_to_no_other() {
    let rescale = |producers, consumers| Shape { strategy: Ship::Rescale, ..shape(producers, consumers) };
    let mut catalog = Catalog::new(name("b"));
    gate(&mut catalog, 1, wants(2)).unwrap();
    // The first producer that is known says what the exchange is, whether it feeds this gate or not.
    catalog.handle_remote(&name("a"), vec![remote(0, rescale(5, 2), 7)]).unwrap();
    assert_eq!(actions(&mut catalog), [known(1, rescale(5, 2))]);
    let others = [1, 2, 3, 4].map(|producer| remote(producer, rescale(5, 2), 8));
    catalog.handle_remote(&name("a"), others.to_vec()).unwrap();
    let expected = [2, 3, 4].map(|producer| connect(1, producer, "a", 1, 8));
    assert_eq!(actions(&mut catalog), expected);
    let mut catalog = Catalog::new(name("b"));
    catalog.handle_remote(&name("a"), [0, 1].map(|of| remote(of, rescale(2, 5), 7)).to_vec()).unwrap();
    gate(&mut catalog, 3, wants(5)).unwrap();
    assert_eq!(actions(&mut catalog), [known(3, rescale(2, 5)), connect(3, 1, "a", 1, 7)]);
}
