//! The catalog as the record of what is attached where: gates are told of like partitions, both with their tasks, and
//! sides of a forward exchange that do not fit are refused with what would.

use weir_flow::catalog::{
    Catalog, CatalogAction, GateKey, GateWants, PEER_GATES_MAX, Partition, PartitionKey,
};
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

fn forward(parallelism: u32) -> Shape {
    Shape { strategy: Ship::Forward, ..shape(parallelism, parallelism) }
}

/// A consumer that knows only its own parallelism.
fn wants(consumers: u32) -> GateWants {
    GateWants { consumers, producers: None, strategy: None, segment_bytes: 32 << 10, checksum: None }
}

fn gate_key(consumer: u32) -> GateKey {
    GateKey { exchange: name("words"), consumer: ConsumerIndex(consumer) }
}

fn attach(catalog: &mut Catalog, producer: u32, shape: Shape) -> Result<(), Failure> {
    let key = PartitionKey { exchange: name("words"), producer: ProducerIndex(producer) };
    catalog.handle_local_partition(key, Partition::running(name("source"), shape, 0, Incarnation(7)))
}

fn gate(catalog: &mut Catalog, consumer: u32, wants: GateWants) -> Result<(), Failure> {
    catalog.handle_gate(gate_key(consumer), name("sink"), wants)
}

fn remote_gate(consumer: u32, wants: GateWants, state: GateState) -> CatalogEntry {
    let (exchange, task, consumer) = (name("words"), name("far"), ConsumerIndex(consumer));
    CatalogEntry::Gate(GateEntry { exchange, consumer, wants, state, task })
}

fn remote_partition(producer: u32, shape: Shape) -> CatalogEntry {
    CatalogEntry::Partition(PartitionEntry {
        exchange: name("words"),
        producer: ProducerIndex(producer),
        shape,
        shard: 1,
        incarnation: Incarnation(9),
        state: PartitionState::Running,
        task: name("far"),
    })
}

/// What peers are told: whom, and each entry in a few words.
fn told(catalog: &mut Catalog) -> Vec<(Option<String>, Vec<String>)> {
    let describe = |entry: &CatalogEntry| match entry {
        CatalogEntry::Partition(entry) => {
            format!("{} {:?} of {}", entry.producer, entry.state, entry.task)
        }
        CatalogEntry::Gate(entry) => format!(
            "gate {} {:?} of {}, from {:?}",
            entry.consumer, entry.state, entry.task, entry.wants.producers
        ),
    };
    std::iter::from_fn(|| catalog.poll_action())
        .filter_map(|action| match action {
            CatalogAction::Announce { peer, entries } => {
                Some((peer.map(|peer| peer.to_string()), entries.iter().map(describe).collect()))
            }
            _ => None,
        })
        .collect()
}

fn to_all(entry: &str) -> (Option<String>, Vec<String>) {
    (None, vec![entry.to_owned()])
}

/// Every gate known, with its node, its task and the producers that it expects.
fn gates(catalog: &Catalog) -> Vec<(u32, String, String, Option<u32>)> {
    catalog
        .gates()
        .map(|(key, node, task, wants)| (key.consumer.0, node.to_string(), task.to_string(), wants.producers))
        .collect()
}

fn known(
    consumer: u32,
    node: &str,
    task: &str,
    producers: Option<u32>,
) -> (u32, String, String, Option<u32>) {
    (consumer, node.to_owned(), task.to_owned(), producers)
}

#[test]
fn peers_are_told_of_a_gate_when_it_comes_when_it_learns_its_shape_and_when_it_goes() {
    let mut catalog = Catalog::new(name("b"));
    gate(&mut catalog, 0, wants(3)).unwrap();
    assert_eq!(told(&mut catalog), [to_all("gate 0 Attached of sink, from None")]);
    catalog.handle_remote(&name("a"), vec![remote_partition(0, shape(2, 3))]).unwrap();
    assert_eq!(told(&mut catalog), [to_all("gate 0 Attached of sink, from Some(2)")]);
    catalog.handle_remote(&name("a"), vec![remote_partition(1, shape(2, 3))]).unwrap();
    assert_eq!(told(&mut catalog), []);
    // One whose exchange is known already has nothing to learn.
    gate(&mut catalog, 1, wants(3)).unwrap();
    assert_eq!(told(&mut catalog), [to_all("gate 1 Attached of sink, from Some(2)")]);
    catalog.handle_gate_gone(&gate_key(0));
    catalog.handle_gate_gone(&gate_key(0));
    assert_eq!(told(&mut catalog), [to_all("gate 0 Gone of sink, from Some(2)")]);
    // Nobody was told of one that is refused.
    gate(&mut catalog, 2, wants(4)).unwrap_err();
    assert_eq!(told(&mut catalog), []);
}

#[test]
fn a_new_peer_is_told_of_partitions_and_gates_in_frames_that_are_not_too_long() {
    let mut catalog = Catalog::new(name("b"));
    attach(&mut catalog, 0, shape(1, 4096)).unwrap();
    let gates = u32::try_from(CATALOG_ENTRIES_MAX).unwrap();
    for consumer in 0..gates {
        gate(&mut catalog, consumer, wants(4096)).unwrap();
    }
    catalog.handle_remote(&name("c"), vec![remote_gate(4000, wants(4096), GateState::Attached)]).unwrap();
    told(&mut catalog);
    catalog.handle_peer_found(&name("a"));
    let told = told(&mut catalog);
    let [(first_to, first), (second_to, second)] = &told[..] else { panic!("{told:?}") };
    assert_eq!([first_to, second_to], [&Some("a".to_owned()), &Some("a".to_owned())]);
    assert_eq!(first[..2], ["0 Running of source", "gate 0 Attached of sink, from Some(1)"]);
    // Those of other nodes are theirs to tell.
    assert_eq!((first.len(), second.len()), (CATALOG_ENTRIES_MAX, 1));
}

#[test]
fn gates_of_all_nodes_are_known_until_they_go_or_their_node_does() {
    let mut catalog = Catalog::new(name("b"));
    gate(&mut catalog, 0, wants(3)).unwrap();
    let attached = |consumer| remote_gate(consumer, wants(3), GateState::Attached);
    catalog.handle_remote(&name("a"), vec![attached(1), attached(2)]).unwrap();
    // The index may be taken on two nodes: whose channels are opened is decided elsewhere.
    catalog.handle_remote(&name("c"), vec![attached(1)]).unwrap();
    let own = known(0, "b", "sink", None);
    let far = |consumer, node| known(consumer, node, "far", None);
    assert_eq!(gates(&catalog), [own.clone(), far(1, "a"), far(2, "a"), far(1, "c")]);
    let learnt = remote_gate(2, GateWants { producers: Some(4), ..wants(3) }, GateState::Attached);
    let gone = remote_gate(1, wants(3), GateState::Gone);
    catalog.handle_remote(&name("a"), vec![learnt, gone.clone(), gone]).unwrap();
    assert_eq!(gates(&catalog), [own.clone(), known(2, "a", "far", Some(4)), far(1, "c")]);
    catalog.handle_peer_lost(&name("a"));
    assert_eq!(gates(&catalog), [own.clone(), far(1, "c")]);
    // Nobody may speak for this node.
    catalog.handle_remote(&name("b"), vec![remote_gate(0, wants(3), GateState::Gone)]).unwrap();
    assert_eq!(gates(&catalog), [own, far(1, "c")]);
}

#[test]
fn gates_of_other_nodes_decide_nothing() {
    let mut catalog = Catalog::new(name("b"));
    let entries = [0, 1].map(|consumer| remote_gate(consumer, wants(9), GateState::Attached));
    catalog.handle_remote(&name("a"), entries.to_vec()).unwrap();
    attach(&mut catalog, 0, shape(1, 3)).unwrap();
    gate(&mut catalog, 0, wants(3)).unwrap();
    let decided = std::iter::from_fn(|| catalog.poll_action());
    let decided: Vec<_> =
        decided.filter(|action| !matches!(action, CatalogAction::Announce { .. })).collect();
    let [CatalogAction::GateShapeKnown { .. }, CatalogAction::Connect { .. }] = &decided[..] else {
        panic!("{decided:?}")
    };
}

#[test]
fn a_gate_that_cannot_be_is_left_out() {
    let mut catalog = Catalog::new(name("b"));
    let impossible = [
        remote_gate(3, wants(3), GateState::Attached),
        remote_gate(0, wants(5000), GateState::Attached),
        remote_gate(0, GateWants { consumers: 4, ..GateWants::all_of(&forward(3)) }, GateState::Attached),
        remote_gate(
            0,
            GateWants { producers: Some(2), strategy: Some(Ship::Forward), ..wants(3) },
            GateState::Attached,
        ),
    ];
    catalog.handle_remote(&name("a"), impossible.to_vec()).unwrap();
    assert_eq!(gates(&catalog), []);
}

#[test]
fn gates_that_are_remembered_of_a_peer_are_bounded() {
    let mut catalog = Catalog::new(name("b"));
    let entry = |at: usize, state| {
        let (exchange, consumer) = (name(&format!("x{}", at / 4096)), ConsumerIndex((at % 4096) as u32));
        CatalogEntry::Gate(GateEntry { exchange, consumer, wants: wants(4096), state, task: name("far") })
    };
    let attached = |at| entry(at, GateState::Attached);
    for first in (0..PEER_GATES_MAX).step_by(4096) {
        catalog.handle_remote(&name("a"), (first..first + 4096).map(attached).collect()).unwrap();
    }
    let refused = catalog.handle_remote(&name("a"), vec![attached(PEER_GATES_MAX)]).unwrap_err();
    assert_eq!(refused.to_string(), "peer announces more gates; needed: at most 65536");
    assert_eq!(catalog.gates().count(), PEER_GATES_MAX);
    // What is known may change and go, and then there is room; partitions and other peers have bounds of their own.
    let gone = entry(1, GateState::Gone);
    let entries = vec![attached(0), gone, attached(PEER_GATES_MAX), remote_partition(0, shape(1, 3))];
    catalog.handle_remote(&name("a"), entries).unwrap();
    catalog.handle_remote(&name("c"), vec![attached(0)]).unwrap();
    catalog.handle_peer_lost(&name("a"));
    assert_eq!((catalog.gates().count(), catalog.partitions().count()), (1, 0));
}

#[test]
fn sides_of_a_forward_exchange_that_differ_are_refused_with_the_strategies_that_fit() {
    const CHOICES: &str = "forward has 2 producers and 3 consumers; needed: as many of both, or another strategy: \
                           rescale, rebalance, hash or broadcast";
    let refusals = [
        // One that states both numbers.
        attach(&mut Catalog::new(name("b")), 0, Shape { producers: 2, ..forward(3) }),
        // A consumer that leaves only the checksum open.
        gate(
            &mut Catalog::new(name("b")),
            0,
            GateWants { producers: Some(2), strategy: Some(Ship::Forward), ..wants(3) },
        ),
        // A consumer that meets the producers of this node, or of another.
        {
            let mut catalog = Catalog::new(name("b"));
            attach(&mut catalog, 0, forward(2)).unwrap();
            gate(&mut catalog, 0, wants(3))
        },
        {
            let mut catalog = Catalog::new(name("b"));
            catalog.handle_remote(&name("a"), vec![remote_partition(0, forward(2))]).unwrap();
            gate(&mut catalog, 0, wants(3))
        },
        // A producer that meets a consumer.
        {
            let mut catalog = Catalog::new(name("b"));
            gate(&mut catalog, 0, wants(3)).unwrap();
            attach(&mut catalog, 0, forward(2))
        },
    ];
    for (number, refusal) in refusals.into_iter().enumerate() {
        let refusal = refusal.unwrap_err();
        assert_eq!(refusal.code, FailureCode::Mismatch, "{number}");
        assert!(refusal.text.ends_with(CHOICES), "{number}: {refusal}");
    }
    // A consumer that waits when a producer of another node turns out not to fit.
    let mut catalog = Catalog::new(name("b"));
    gate(&mut catalog, 0, wants(3)).unwrap();
    catalog.handle_remote(&name("a"), vec![remote_partition(0, forward(2))]).unwrap();
    let failed = std::iter::from_fn(|| catalog.poll_action()).find_map(|action| match action {
        CatalogAction::FailGate { failure, .. } => Some(failure),
        _ => None,
    });
    assert!(failed.as_ref().is_some_and(|failure| failure.text.ends_with(CHOICES)), "{failed:?}");
    // Another strategy connects them, and another disagreement has nothing to do with it.
    let mut catalog = Catalog::new(name("b"));
    attach(&mut catalog, 0, Shape { strategy: Ship::Rescale, ..shape(2, 3) }).unwrap();
    gate(&mut catalog, 0, wants(3)).unwrap();
    let refusal = gate(&mut catalog, 1, wants(4)).unwrap_err();
    assert!(!refusal.text.contains("forward"), "{refusal}");
}
