//! Graphs from the ends of exchanges.

use proptest::prelude::*;
use weir_flow::catalog::GateWants;
use weir_flow::exchange::{Name, Shape, Strategy as Ship};
use weir_flow::ids::Incarnation;

use super::graph::{End, Graph, Side, graph};
use super::order::upstream_first;

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

fn stated(producers: u32, consumers: u32, strategy: Ship) -> GateWants {
    GateWants::all_of(&Shape { producers, consumers, strategy, segment_bytes: 4096, checksum: false })
}

/// A partition: task, node, exchange, index, and what is stated of the exchange.
fn writes(task: &str, node: &str, exchange: &str, index: u32, stated: GateWants) -> End {
    let side = Side::Writes { since: Incarnation(7) };
    End { task: name(task), node: name(node), exchange: name(exchange), side, index, stated }
}

/// A gate.
fn reads(task: &str, node: &str, exchange: &str, index: u32, stated: GateWants) -> End {
    End { side: Side::Reads, ..writes(task, node, exchange, index, stated) }
}

/// One task to another, each with one instance.
fn edge(exchange: &str, from: &str, to: &str) -> [End; 2] {
    let stated = stated(1, 1, Ship::Forward);
    [writes(from, "a", exchange, 0, stated), reads(to, "a", exchange, 0, stated)]
}

/// The tasks in order, each with those that it reads from.
fn shown(graph: &Graph) -> Vec<String> {
    graph
        .nodes
        .iter()
        .enumerate()
        .map(|(at, node)| {
            assert_eq!(node.id as usize, at + 1);
            let from: Vec<String> = node.predecessors.iter().map(|from| from.id.to_string()).collect();
            format!("{} {} <- {}", node.id, node.task, from.join(" "))
        })
        .collect()
}

#[test]
fn a_chain_is_printed_as_flink_prints_it_with_our_fields_behind() {
    let words = stated(1, 2, Ship::Rebalance);
    let counts = stated(2, 2, Ship::Hash);
    let ends = vec![
        reads("sink", "b", "counts", 1, counts),
        writes("map", "b", "counts", 1, counts),
        writes("map", "a", "counts", 0, counts),
        reads("map", "b", "words", 1, words),
        reads("map", "a", "words", 0, words),
        writes("lines", "a", "words", 0, words),
    ];
    let graph = graph(ends);
    let json = serde_json::to_string_pretty(&graph.nodes).unwrap();
    let source = r#"  {
    "id": 1,
    "type": "lines",
    "pact": "Data Source",
    "contents": "writes words",
    "parallelism": 1,
    "attached": 1,
    "declared": [
      1
    ],
    "nodes": [
      "a"
    ]
  },
"#;
    let map = r#"  {
    "id": 2,
    "type": "map",
    "pact": "Operator",
    "contents": "reads words; writes counts",
    "parallelism": 2,
    "predecessors": [
      {
        "id": 1,
        "ship_strategy": "REBALANCE",
        "side": "second",
        "exchange": "words",
        "producers": 1,
        "producers_attached": 1,
        "consumers": 2,
        "consumers_attached": 2
      }
    ],
    "attached": 2,
    "declared": [
      2
    ],
    "nodes": [
      "a",
      "b"
    ]
  },
"#;
    assert!(json.contains(source), "{json}");
    assert!(json.contains(map), "{json}");
    let sink = &graph.nodes[2];
    assert_eq!((sink.pact.as_str(), sink.parallelism, sink.attached), ("Data Sink", 2, 1));
    assert_eq!((sink.predecessors[0].producers_attached, sink.predecessors[0].consumers_attached), (2, 1));
}

#[test]
fn a_diamond_has_its_tip_first_and_its_end_last_whatever_their_names() {
    let ends = [
        edge("l", "z-source", "left"),
        edge("r", "z-source", "right"),
        edge("ld", "left", "a-end"),
        edge("rd", "right", "a-end"),
    ];
    assert_eq!(
        shown(&graph(ends.concat())),
        ["1 z-source <- ", "2 left <- 1", "3 right <- 1", "4 a-end <- 2 3"]
    );
}

#[test]
fn a_cycle_is_shown_behind_what_leads_into_it_and_before_what_it_leads_to() {
    let ends = [
        edge("in", "z-source", "m-head"),
        edge("there", "m-head", "k-tail"),
        edge("back", "k-tail", "m-head"),
        edge("out", "k-tail", "a-sink"),
        edge("self", "own", "own"),
    ];
    let graph = graph(ends.concat());
    // Of one cycle by name. `back` comes before `in`: predecessors are in the order of the exchanges' names.
    let needed = ["1 own <- 1", "2 z-source <- ", "3 k-tail <- 4", "4 m-head <- 3 2", "5 a-sink <- 3"];
    assert_eq!(shown(&graph), needed);
    assert_eq!(graph.nodes[0].pact, "Operator");
}

#[test]
fn an_exchange_with_one_end_is_shown_with_what_is_known_of_it() {
    let open = GateWants { producers: None, strategy: None, checksum: None, ..stated(1, 3, Ship::Hash) };
    let ends = vec![
        reads("sink", "a", "later", 2, open),
        writes("source", "a", "unread", 1, stated(4, 5, Ship::Broadcast)),
    ];
    let graph = graph(ends);
    assert_eq!(shown(&graph), ["1 sink <- ", "2 source <- "]);
    let [sink, source] = &graph.nodes[..] else { panic!("{graph:?}") };
    assert_eq!((sink.pact.as_str(), sink.parallelism), ("Data Sink", 3));
    assert_eq!((source.pact.as_str(), source.parallelism, source.attached), ("Data Source", 4, 1));
    let [later, unread] = &graph.exchanges[..] else { panic!("{graph:?}") };
    let json = serde_json::to_string(later).unwrap();
    assert_eq!(
        json,
        r#"{"exchange":"later","ship_strategy":null,"producers":null,"producers_attached":0,"consumers":3,"consumers_attached":1,"written_by":[],"read_by":[1]}"#
    );
    assert_eq!((&unread.written_by[..], &unread.read_by[..]), (&[2][..], &[][..]));
    assert_eq!((unread.ship_strategy.as_deref(), unread.producers), (Some("BROADCAST"), Some(4)));
    // A gate that has met a producer knows more than one that has not, whichever comes first.
    let learnt = reads("sink", "a", "later", 1, stated(2, 3, Ship::Hash));
    let graph = super::graph::graph(vec![reads("sink", "a", "later", 0, open), learnt]);
    assert_eq!(
        (graph.exchanges[0].ship_strategy.as_deref(), graph.exchanges[0].producers),
        (Some("HASH"), Some(2))
    );
}

#[test]
fn several_tasks_at_one_end_each_have_their_share_of_it() {
    let stated = stated(4, 2, Ship::Hash);
    let mut ends: Vec<End> = (0..3).map(|index| writes("one", "a", "x", index, stated)).collect();
    ends.push(writes("two", "b", "x", 3, stated));
    ends.push(reads("left", "b", "x", 0, stated));
    ends.push(reads("right", "c", "x", 1, stated));
    let graph = graph(ends);
    assert_eq!(shown(&graph), ["1 one <- ", "2 two <- ", "3 left <- 1 2", "4 right <- 1 2"]);
    let attached: Vec<(u32, u32)> =
        graph.nodes.iter().map(|node| (node.parallelism, node.attached)).collect();
    assert_eq!(attached, [(4, 3), (4, 1), (2, 1), (2, 1)]);
    let from = &graph.nodes[3].predecessors[1];
    assert_eq!(
        (from.producers, from.producers_attached, from.consumers, from.consumers_attached),
        (4, 1, 2, 1)
    );
    let exchange = &graph.exchanges[0];
    assert_eq!((exchange.producers_attached, exchange.consumers_attached), (4, 2));
}

#[test]
fn a_task_whose_ends_disagree_shows_every_number_and_counts_each_instance_once() {
    let ends = vec![
        reads("map", "a", "in", 0, stated(1, 2, Ship::Rebalance)),
        reads("map", "a", "in", 1, stated(1, 2, Ship::Rebalance)),
        writes("map", "a", "out", 1, stated(3, 1, Ship::Rebalance)),
        writes("map", "b", "out", 2, stated(3, 1, Ship::Rebalance)),
    ];
    let graph = graph(ends);
    let map = &graph.nodes[0];
    assert_eq!((&map.declared[..], map.parallelism, map.attached), (&[2, 3][..], 3, 3));
    assert_eq!(map.nodes, ["a", "b"]);
}

#[test]
fn of_producers_that_disagree_the_first_says_what_the_exchange_is() {
    let late = writes("late", "a", "x", 0, stated(9, 9, Ship::Hash));
    let mut first = writes("first", "b", "x", 1, stated(2, 2, Ship::Broadcast));
    first.side = Side::Writes { since: Incarnation(3) };
    let sink = reads("sink", "a", "x", 0, stated(2, 2, Ship::Broadcast));
    let graph = graph(vec![late, sink, first]);
    assert_eq!(shown(&graph), ["1 first <- ", "2 late <- ", "3 sink <- 1 2"]);
    let from = &graph.nodes[2].predecessors[1];
    assert_eq!((from.ship_strategy.as_str(), from.producers), ("BROADCAST", 2));
}

#[test]
fn predecessors_are_bounded_and_what_is_left_out_is_counted() {
    let stated = stated(4096, 4096, Ship::Rebalance);
    let end = |at: u32| {
        [writes(&format!("w{at}"), "a", "x", at, stated), reads(&format!("r{at}"), "a", "x", at, stated)]
    };
    let graph = graph((0..300).flat_map(end).collect());
    assert_eq!(graph.nodes.len(), 600);
    let listed: usize = graph.nodes.iter().map(|node| node.predecessors.len()).sum();
    assert_eq!((listed, graph.predecessors_left_out), (1 << 16, 300 * 300 - (1 << 16)));
}

/// Names that only just are names, and sort next to each other.
const NAMES: [&str; 8] = ["-", "--", ".", "..", "A", "_", "a", "a.b"];

fn any_end() -> impl Strategy<Value = End> {
    let place = (0..NAMES.len(), 0..NAMES.len(), 0..NAMES.len());
    (place, any::<bool>(), 0u32..4, 1u32..4, 0u64..3).prop_map(
        |((task, node, exchange), is_gate, index, number, since)| {
            let stated = stated(number, number + 1, Ship::Rebalance);
            let end = writes(NAMES[task], NAMES[node], NAMES[exchange], index, stated);
            let side = if is_gate { Side::Reads } else { Side::Writes { since: Incarnation(since) } };
            End { side, ..end }
        },
    )
}

proptest! {
    /// One end for each place of each node, as the catalog has them: two calls that see the same print the same.
    #[test]
    fn the_graph_does_not_depend_on_the_order_of_its_ends(
        ends in proptest::collection::vec(any_end(), 0..40),
        seed in any::<u64>(),
    ) {
        let mut ends = ends;
        let place = |end: &End| (end.exchange.clone(), end.side == Side::Reads, end.index, end.node.clone());
        ends.sort_by_key(|end| format!("{:?}", place(end)));
        ends.dedup_by_key(|end| {
            let is_gate = end.side == Side::Reads;
            (end.exchange.clone(), is_gate, end.index, end.node.clone())
        });
        let mut shuffled = ends.clone();
        let mut state = seed;
        for at in (1..shuffled.len()).rev() {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            shuffled.swap(at, (state >> 33) as usize % (at + 1));
        }
        prop_assert_eq!(graph(ends), graph(shuffled));
    }

    /// Against a definition that asks for every pair of vertices which of them reaches the other.
    #[test]
    fn every_vertex_comes_behind_those_that_lead_to_it_unless_it_leads_to_them(
        edges in proptest::collection::vec((0usize..9, 0usize..9), 0..16),
        named in 1usize..=9,
    ) {
        let mut next = vec![Vec::new(); 9];
        for &(from, to) in &edges {
            next[from].push(to);
        }
        let mut reaches = [[false; 9]; 9];
        for &(from, to) in &edges {
            reaches[from][to] = true;
        }
        for via in 0..9 {
            for from in 0..9 {
                for to in 0..9 {
                    reaches[from][to] |= reaches[from][via] && reaches[via][to];
                }
            }
        }
        let order = upstream_first(&next, named);
        let mut sorted = order.clone();
        sorted.sort_unstable();
        prop_assert_eq!(sorted, (0..named).collect::<Vec<_>>());
        for (at, &first) in order.iter().enumerate() {
            for &second in &order[at + 1..] {
                prop_assert!(!reaches[second][first] || reaches[first][second], "{} before {}", first, second);
            }
        }
        // Where nothing is said by the edges, numbers say it: without any, the order is that of the numbers.
        if edges.is_empty() {
            prop_assert_eq!(order, (0..named).collect::<Vec<_>>());
        }
    }
}
