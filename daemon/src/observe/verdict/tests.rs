//! Graphs and what is to be said of them.

use weir_flow::stall::Cause as StallCause;

use super::*;

/// One instance, in ms/s: busy and backpressured, the rest idle.
#[derive(Clone, Copy)]
struct Does(u32, u32);

/// What its process does for its busy time, in percent.
#[derive(Clone, Copy, PartialEq)]
enum Process {
    Computes,
    Sleeps,
    Starves,
    Unseen,
}

/// A pipeline that is built up.
#[derive(Default)]
struct Graph(Facts);

impl Graph {
    /// A task with these instances, on node `a`.
    fn task(mut self, name: &str, process: Process, instances: &[Does]) -> Self {
        let instances: Vec<InstanceFacts> =
            (0..).zip(instances).map(|(index, does)| instance(index, *does, process)).collect();
        self.0.tasks.push(TaskFacts {
            name: name.to_owned(),
            parallelism: u32::try_from(instances.len()).unwrap(),
            instances,
        });
        self
    }

    fn place(&self, name: &str) -> usize {
        self.0.tasks.iter().position(|task| task.name == name).unwrap()
    }

    /// An exchange without channels: nothing is known of it but who is at its ends.
    fn exchange(self, name: &str, strategy: &str, writers: &[&str], readers: &[&str]) -> Self {
        self.channels(name, strategy, (writers, readers), &[])
    }

    fn channels(
        mut self,
        name: &str,
        strategy: &str,
        (writers, readers): (&[&str], &[&str]),
        channels: &[ChannelFacts],
    ) -> Self {
        let places = |names: &[&str]| names.iter().map(|name| self.place(name)).collect();
        let exchange = ExchangeFacts {
            name: name.to_owned(),
            strategy: Some(strategy.to_owned()),
            writers: places(writers),
            readers: places(readers),
            channels: channels.to_vec(),
            arrivals: Vec::new(),
        };
        self.0.exchanges.push(exchange);
        self
    }

    fn lacks(mut self, what: &str) -> Self {
        self.0.lacks.push(what.to_owned());
        self
    }

    /// As after little more than a second.
    fn young(mut self) -> Self {
        for instance in self.0.tasks.iter_mut().flat_map(|task| &mut task.instances) {
            instance.windows[1] = None;
        }
        self
    }
}

fn instance(index: u32, Does(busy, backpressured): Does, process: Process) -> InstanceFacts {
    let shares = Shares { idle: 1000 - busy - backpressured, busy, soft: 0, hard: backpressured };
    let (ran, waited) = match process {
        Computes => (Some(busy * 95 / 100), Some(busy / 50)),
        Sleeps => (Some(busy / 50), Some(busy / 100)),
        Starves => (Some(busy / 4), Some(busy * 7 / 10)),
        Unseen => (None, None),
    };
    InstanceFacts {
        node: "a".to_owned(),
        index: Some(index),
        windows: [Some(shares), Some(shares), None],
        process: ProcessFacts { ran, waited, busy },
    }
}

fn channel(
    consumer: u32,
    records: u64,
    send: &[(StallCause, u32)],
    emit: &[(StallCause, u32)],
) -> ChannelFacts {
    let table = |stalls: &[(StallCause, u32)]| {
        let mut table = [0; CAUSES];
        stalls.iter().for_each(|(cause, ms)| table[cause.index()] = *ms);
        table
    };
    ChannelFacts {
        producer: 0,
        consumer,
        node: "a".to_owned(),
        send_stalled: table(send),
        emit_stalled: table(emit),
        records,
        bytes: records * 1000,
        shard: ProcessFacts { ran: Some(50), waited: Some(20), busy: 0 },
    }
}

use Process::{Computes, Sleeps, Starves, Unseen};
use StallCause as Stall;

/// A chain of four, of which the third does `third`, with exchanges `ab`, `bc` and `cd`.
fn chain(third: Does, process: Process) -> Graph {
    Graph::default()
        .task("A", Computes, &[Does(40, 960)])
        .task("B", Computes, &[Does(60, 930)])
        .task("C", process, &[third])
        .task("D", Computes, &[Does(100, 0)])
        .exchange("ab", "FORWARD", &["A"], &["B"])
        .exchange("bc", "FORWARD", &["B"], &["C"])
        .exchange("cd", "FORWARD", &["C"], &["D"])
}

/// A chain of three over `bc`, whose channel stalls like this; nobody downstream is busy.
fn carried(stalls: ChannelFacts, third: Does) -> Graph {
    Graph::default()
        .task("A", Computes, &[Does(100, 890)])
        .task("B", Computes, &[Does(100, 890)])
        .task("C", Computes, &[third])
        .exchange("ab", "FORWARD", &["A"], &["B"])
        .channels("bc", "FORWARD", (&["B"], &["C"]), &[stalls])
}

/// The same, with this at the receiving end of `bc`.
fn arriving(pool_usage: u32, queued_bytes: u64) -> Graph {
    let mut graph =
        carried(channel(0, 10, &[(Stall::Consumer, 900)], &[(Stall::Consumer, 880)]), Does(90, 0));
    let shard = ProcessFacts { ran: Some(50), waited: Some(20), busy: 0 };
    graph.0.exchanges[1].arrivals =
        vec![ArrivalFacts { node: "b".to_owned(), shard, pool_usage: Some(pool_usage), queued_bytes }];
    graph
}

/// As [`carried`], over a shard whose thread did this, at the sending or at the receiving end.
fn on_shard(third: Does, ran: u32, waited: u32, is_receiving: bool) -> Graph {
    let mut graph = carried(channel(0, 10, &[(Stall::Socket, 900)], &[(Stall::Socket, 880)]), third);
    let shard = ProcessFacts { ran: Some(ran), waited: Some(waited), busy: 0 };
    let exchange = &mut graph.0.exchanges[1];
    if is_receiving {
        exchange.arrivals = vec![ArrivalFacts { node: "b".to_owned(), shard, ..ArrivalFacts::default() }];
    } else {
        exchange.channels[0].shard = shard;
    }
    graph
}

/// A source, and four readers behind a hash with these records, of which the first is as busy as can be.
fn skewed(strategy: &str, records: Option<[u64; 4]>) -> Graph {
    let readers = [Does(990, 0), Does(120, 0), Does(90, 0), Does(110, 0)];
    let graph = Graph::default().task("A", Computes, &[Does(100, 880)]).task("B", Sleeps, &readers);
    let channels: Vec<ChannelFacts> = match records {
        None => Vec::new(),
        Some(records) => (0..)
            .zip(records)
            .map(|(consumer, records)| {
                let stalled = if consumer == 0 { 900 } else { 0 };
                channel(consumer, records, &[(Stall::Consumer, stalled)], &[(Stall::Consumer, stalled)])
            })
            .collect(),
    };
    graph.channels("ab", strategy, (&["A"], &["B"]), &channels)
}

/// What is to be said: for each bottleneck the task or the exchange, and its cause.
type Needed = &'static [(&'static str, Cause)];

/// Names of tasks.
type Names = &'static [&'static str];

/// Every graph with its verdict, its victims and its starved tasks.
fn table() -> Vec<(&'static str, Graph, VerdictKind, Needed, Names, Names)> {
    use VerdictKind::{Bottleneck as Found, NoBottleneck as Nothing, NotEnoughData as Unsaid};
    let consumer = |ms| channel(0, 10, &[(Stall::Consumer, ms)], &[(Stall::Consumer, ms)]);
    vec![
        (
            "four operators, the third computes",
            chain(Does(990, 0), Computes),
            Found,
            &[("C", Cause::Cpu)],
            &["A", "B"],
            &["D"],
        ),
        (
            "it waits for something outside",
            chain(Does(990, 0), Sleeps),
            Found,
            &[("C", Cause::Outside)],
            &["A", "B"],
            &["D"],
        ),
        (
            "it wants a processor that others have",
            chain(Does(990, 0), Starves),
            Found,
            &[("C", Cause::Cpu)],
            &["A", "B"],
            &["D"],
        ),
        (
            "its process cannot be seen",
            chain(Does(990, 0), Unseen),
            Found,
            &[("C", Cause::Busy)],
            &["A", "B"],
            &["D"],
        ),
        (
            "it waits a little itself, and nobody behind it is why",
            chain(Does(800, 190), Computes),
            Found,
            &[("C", Cause::Cpu)],
            &["A", "B"],
            &["D"],
        ),
        (
            "the last of two busy ones",
            chain(Does(500, 490), Computes).task("E", Computes, &[Does(950, 0)]).exchange(
                "ce",
                "FORWARD",
                &["C"],
                &["E"],
            ),
            Found,
            &[("E", Cause::Cpu)],
            &["A", "B", "C"],
            &[],
        ),
        (
            "the sink is slow",
            Graph::default()
                .task("A", Computes, &[Does(10, 980)])
                .task("B", Sleeps, &[Does(995, 0)])
                .exchange("ab", "FORWARD", &["A"], &["B"]),
            Found,
            &[("B", Cause::Sink)],
            &["A"],
            &[],
        ),
        ("a hot key", skewed("HASH", Some([900, 30, 30, 40])), Found, &[("B", Cause::HotKey)], &["A"], &[]),
        (
            "a hot key of a selector of the application",
            skewed("CUSTOM", Some([900, 30, 30, 40])),
            Found,
            &[("B", Cause::HotKey)],
            &["A"],
            &[],
        ),
        (
            "a hot key whose records are not known",
            skewed("HASH", None),
            Found,
            &[("B", Cause::HotKey)],
            &["A"],
            &[],
        ),
        (
            "a slow instance behind a hash that spreads evenly",
            skewed("HASH", Some([250, 250, 240, 260])),
            Found,
            &[("B", Cause::SlowInstance)],
            &["A"],
            &[],
        ),
        (
            "a slow instance among interchangeable ones",
            skewed("REBALANCE", Some([250, 250, 250, 250])),
            Found,
            &[("B", Cause::SlowInstance)],
            &["A"],
            &[],
        ),
        (
            "the pool is too small",
            carried(channel(0, 10, &[], &[(Stall::Pool, 880)]), Does(120, 0)),
            Found,
            &[("bc", Cause::Pool)],
            &["A", "B"],
            &["C"],
        ),
        (
            "the network is slow",
            carried(channel(0, 10, &[(Stall::Network, 900)], &[(Stall::Network, 880)]), Does(90, 0)),
            Found,
            &[("bc", Cause::Network)],
            &["A", "B"],
            &["C"],
        ),
        (
            "the socket takes no more",
            carried(
                channel(0, 10, &[(Stall::Socket, 900)], &[(Stall::Socket, 700), (Stall::Pool, 100)]),
                Does(90, 0),
            ),
            Found,
            &[("bc", Cause::Network)],
            &["A", "B"],
            &["C"],
        ),
        (
            "the network is slow and the consumer half busy",
            carried(channel(0, 10, &[(Stall::Network, 900)], &[(Stall::Network, 880)]), Does(600, 0)),
            Found,
            &[("bc", Cause::Network)],
            &["A", "B"],
            &[],
        ),
        (
            "a shard is slow",
            carried(
                channel(0, 10, &[(Stall::Shard, 700), (Stall::Consumer, 100)], &[(Stall::Shard, 800)]),
                Does(90, 0),
            ),
            Found,
            &[("bc", Cause::Shard)],
            &["A", "B"],
            &["C"],
        ),
        (
            "the consumer is told to be slow and is idle",
            carried(consumer(900), Does(90, 0)),
            Found,
            &[("bc", Cause::Unknown)],
            &["A", "B"],
            &["C"],
        ),
        (
            "a shard gets no processor",
            on_shard(Does(90, 0), 5, 980, false),
            Found,
            &[("bc", Cause::Shard)],
            &["A", "B"],
            &["C"],
        ),
        (
            "a shard has all it can do",
            on_shard(Does(90, 0), 990, 5, true),
            Found,
            &[("bc", Cause::Shard)],
            &["A", "B"],
            &["C"],
        ),
        (
            "a shard that has much to do is not to blame for a busy consumer",
            on_shard(Does(990, 0), 990, 5, true),
            Found,
            &[("C", Cause::Cpu)],
            &["A", "B"],
            &[],
        ),
        (
            "what is waited for is on its way",
            arriving(100, 0),
            Found,
            &[("bc", Cause::Network)],
            &["A", "B"],
            &["C"],
        ),
        (
            "the consumer's segments are full and it is idle",
            arriving(900, 0),
            Found,
            &[("bc", Cause::Unknown)],
            &["A", "B"],
            &["C"],
        ),
        (
            "its daemon has not handed on what came",
            arriving(100, 9000),
            Found,
            &[("bc", Cause::Unknown)],
            &["A", "B"],
            &["C"],
        ),
        (
            "the consumer is slow, and a pool ran dry because of it",
            carried(channel(0, 10, &[(Stall::Consumer, 900)], &[(Stall::Pool, 880)]), Does(980, 0)),
            Found,
            &[("C", Cause::Cpu)],
            &["A", "B"],
            &[],
        ),
        (
            "nobody reads",
            Graph::default().task("A", Computes, &[Does(10, 980)]).exchange("ab", "FORWARD", &["A"], &[]),
            Found,
            &[("ab", Cause::NoConsumer)],
            &["A"],
            &[],
        ),
        (
            "nobody reads one of two outputs",
            Graph::default()
                .task("A", Computes, &[Does(10, 980)])
                .task("B", Computes, &[Does(10, 0)])
                .channels("ab", "FORWARD", (&["A"], &["B"]), &[consumer(0)])
                .channels("ac", "FORWARD", (&["A"], &[]), &[consumer(900)]),
            Found,
            &[("ac", Cause::NoConsumer)],
            &["A"],
            &[],
        ),
        (
            "a fan-out with one slow branch",
            Graph::default()
                .task("A", Computes, &[Does(20, 970)])
                .task("B", Computes, &[Does(990, 0)])
                .task("C", Computes, &[Does(20, 0)])
                .channels("ab", "FORWARD", (&["A"], &["B"]), &[consumer(900)])
                .channels("ac", "FORWARD", (&["A"], &["C"]), &[consumer(0)]),
            Found,
            &[("B", Cause::Cpu)],
            &["A"],
            &[],
        ),
        (
            "a fan-out with one slow branch, and no channel tells",
            Graph::default()
                .task("A", Computes, &[Does(20, 970)])
                .task("B", Computes, &[Does(990, 0)])
                .task("C", Computes, &[Does(20, 0)])
                .exchange("ab", "FORWARD", &["A"], &["B"])
                .exchange("ac", "FORWARD", &["A"], &["C"]),
            Found,
            &[("B", Cause::Cpu)],
            &["A"],
            &[],
        ),
        (
            "a fan-in is held up once",
            Graph::default()
                .task("A", Computes, &[Does(20, 970)])
                .task("B", Computes, &[Does(20, 700)])
                .task("C", Sleeps, &[Does(990, 0)])
                .task("D", Computes, &[Does(20, 0)])
                .exchange("ac", "FORWARD", &["A"], &["C"])
                .exchange("bc", "FORWARD", &["B"], &["C"])
                .exchange("cd", "FORWARD", &["C"], &["D"]),
            Found,
            &[("C", Cause::Outside)],
            &["A", "B"],
            &["D"],
        ),
        (
            "two pipelines, the worse one first",
            Graph::default()
                .task("A", Computes, &[Does(20, 300)])
                .task("B", Computes, &[Does(990, 0)])
                .task("X", Computes, &[Does(20, 900)])
                .task("Y", Sleeps, &[Does(990, 0)])
                .exchange("ab", "FORWARD", &["A"], &["B"])
                .exchange("xy", "FORWARD", &["X"], &["Y"]),
            Found,
            &[("Y", Cause::Sink), ("B", Cause::Cpu)],
            &["A", "X"],
            &[],
        ),
        (
            "two branches, both slow",
            Graph::default()
                .task("A", Computes, &[Does(20, 970)])
                .task("B", Computes, &[Does(990, 0)])
                .task("C", Sleeps, &[Does(990, 0)])
                .channels("ab", "FORWARD", (&["A"], &["B"]), &[consumer(450)])
                .channels("ac", "FORWARD", (&["A"], &["C"]), &[consumer(450)]),
            Found,
            &[("B", Cause::Cpu), ("C", Cause::Sink)],
            &["A"],
            &[],
        ),
        (
            "a circle with a busy task",
            Graph::default()
                .task("A", Computes, &[Does(20, 970)])
                .task("B", Computes, &[Does(990, 0)])
                .exchange("ab", "FORWARD", &["A"], &["B"])
                .exchange("ba", "FORWARD", &["B"], &["A"]),
            Found,
            &[("B", Cause::Cpu)],
            &["A"],
            &[],
        ),
        (
            "a circle in which all wait",
            Graph::default()
                .task("A", Computes, &[Does(0, 1000)])
                .task("B", Computes, &[Does(0, 1000)])
                .exchange("ab", "FORWARD", &["A"], &["B"])
                .exchange("ba", "FORWARD", &["B"], &["A"]),
            Found,
            &[("", Cause::Cycle)],
            &["A", "B"],
            &[],
        ),
        (
            "a task that waits for itself",
            Graph::default().task("A", Computes, &[Does(0, 1000)]).exchange("aa", "FORWARD", &["A"], &["A"]),
            Found,
            &[("", Cause::Cycle)],
            &["A"],
            &[],
        ),
        (
            "what waits has no exchange that is known",
            Graph::default().task("A", Computes, &[Does(0, 1000)]),
            Unsaid,
            &[],
            &["A"],
            &[],
        ),
        (
            "all idle",
            Graph::default().task("A", Computes, &[Does(0, 0)]).task("B", Computes, &[Does(0, 0)]).exchange(
                "ab",
                "FORWARD",
                &["A"],
                &["B"],
            ),
            Nothing,
            &[],
            &[],
            &[],
        ),
        (
            "all busy, nobody waits",
            Graph::default()
                .task("A", Computes, &[Does(1000, 0)])
                .task("B", Computes, &[Does(1000, 0)])
                .exchange("ab", "FORWARD", &["A"], &["B"]),
            Nothing,
            &[],
            &[],
            &[],
        ),
        (
            "the source is slow",
            Graph::default()
                .task("A", Sleeps, &[Does(990, 10)])
                .task("B", Computes, &[Does(50, 0)])
                .exchange("ab", "FORWARD", &["A"], &["B"]),
            Nothing,
            &[],
            &[],
            &[],
        ),
        (
            "as much waiting as is nothing",
            Graph::default()
                .task("A", Computes, &[Does(10, 100)])
                .task("B", Computes, &[Does(990, 0)])
                .exchange("ab", "FORWARD", &["A"], &["B"]),
            Nothing,
            &[],
            &[],
            &[],
        ),
        ("one task alone", Graph::default().task("A", Computes, &[Does(1000, 0)]), Nothing, &[], &[], &[]),
        ("nothing at all", Graph::default(), Unsaid, &[], &[], &[]),
        ("a task of which nothing is told", Graph::default().task("A", Computes, &[]), Unsaid, &[], &[], &[]),
        (
            "only a second was seen",
            chain(Does(990, 0), Computes).young(),
            Found,
            &[("C", Cause::Cpu)],
            &["A", "B"],
            &["D"],
        ),
        (
            "a node is missing",
            chain(Does(990, 0), Computes).lacks("node c is not linked"),
            Found,
            &[("C", Cause::Cpu)],
            &["A", "B"],
            &["D"],
        ),
    ]
}

fn named(found: &Bottleneck) -> (String, Cause) {
    assert!(found.task.is_none() || found.exchange.is_none(), "both are named");
    (found.task.clone().or(found.exchange.clone()).unwrap_or_default(), found.cause)
}

#[test]
fn every_graph_has_its_verdict() {
    for (what, graph, kind, needed, victims, starved) in table() {
        let verdict = decide(&graph.0);
        let found: Vec<(String, Cause)> = verdict.bottlenecks.iter().map(named).collect();
        let needed: Vec<(String, Cause)> =
            needed.iter().map(|(name, cause)| ((*name).to_owned(), *cause)).collect();
        assert_eq!((verdict.verdict, &found), (kind, &needed), "{what}: {verdict:#?}");
        assert_eq!(verdict.victims, victims, "victims: {what}");
        assert_eq!(verdict.starved, starved, "starved: {what}");
    }
}

#[test]
fn every_verdict_says_what_was_seen_what_helps_and_what_does_not() {
    for (what, graph, _, _, _, _) in table() {
        let verdict = decide(&graph.0);
        assert!(verdict.summary.ends_with('.'), "{what}: {}", verdict.summary);
        for found in &verdict.bottlenecks {
            assert!(
                !found.evidence.is_empty() && found.evidence.iter().any(|line| line.contains("ms/s")),
                "{what}: {found:?}"
            );
            assert!(!found.remedy.is_empty() && !found.would_not_help.is_empty(), "{what}: {found:?}");
            assert!(!found.confidence_reason.is_empty() && !found.holds_up.is_empty(), "{what}: {found:?}");
            let texts = [&found.evidence, &found.would_not_help].into_iter().flatten();
            let texts = texts.chain([&found.summary, &found.remedy, &found.confidence_reason]);
            for text in texts {
                assert!(!text.contains("  ") && !text.contains(char::is_control), "{what}: {text:?}");
            }
        }
    }
}

fn only(graph: Graph) -> Bottleneck {
    let mut verdict = decide(&graph.0);
    assert_eq!(verdict.bottlenecks.len(), 1);
    verdict.bottlenecks.remove(0)
}

#[test]
fn confidence_falls_with_what_is_not_known() {
    let of = |graph: Graph| {
        let found = only(graph);
        (found.confidence, found.confidence_reason)
    };
    assert_eq!(of(chain(Does(990, 0), Computes)).0, Confidence::High);
    for (graph, reason) in [
        (chain(Does(990, 0), Unseen), "the processor time of its process is not known"),
        (chain(Does(990, 0), Computes).young(), "only one second was looked at"),
        (
            chain(Does(990, 0), Computes).lacks("node c is not linked"),
            "the tasks of some nodes are not known",
        ),
        (skewed("HASH", None), "how many records each instance gets is not known"),
    ] {
        let (confidence, found) = of(graph);
        assert_eq!(confidence, Confidence::Medium, "{reason}");
        assert!(found.starts_with(reason), "{found}");
    }
    let (confidence, reason) = of(carried(channel(0, 10, &[(Stall::Network, 900)], &[]), Does(90, 0)));
    assert_eq!((confidence, reason.contains("idle")), (Confidence::High, true), "{reason}");
    let nothing_known = Graph::default()
        .task("A", Computes, &[Does(10, 900)])
        .task("B", Computes, &[Does(10, 0)])
        .exchange("ab", "FORWARD", &["A"], &["B"]);
    assert_eq!(of(nothing_known).0, Confidence::Low);
}

#[test]
fn a_hot_key_needs_another_key_and_not_more_instances() {
    let found = only(skewed("HASH", Some([900, 30, 30, 40])));
    assert_eq!((found.instance, found.nodes.as_slice()), (Some(0), &["a".to_owned()][..]));
    assert!(found.remedy.contains("key") && found.remedy.contains("salt"), "{}", found.remedy);
    assert!(!found.remedy.to_lowercase().contains("more instances"), "{}", found.remedy);
    assert!(found.would_not_help.iter().any(|line| line.starts_with("more instances")), "{found:?}");
    assert!(found.evidence.iter().any(|line| line.contains("90 % of the records")), "{found:?}");
}

#[test]
fn a_task_that_wants_a_processor_is_told_to_get_one() {
    let starving = only(chain(Does(990, 0), Starves));
    assert!(starving.remedy.starts_with("More processors"), "{}", starving.remedy);
    let computing = only(chain(Does(990, 0), Computes));
    assert!(computing.remedy.starts_with("More instances"), "{}", computing.remedy);
}

#[test]
fn the_node_of_a_shard_that_is_slow_is_named() {
    for (is_receiving, node) in [(false, "a"), (true, "b")] {
        let found = only(on_shard(Does(90, 0), 5, 980, is_receiving));
        assert_eq!(found.nodes, [node]);
        let needed = format!("the shard's thread on {node} ran 5 ms/s and waited for a processor 980 ms/s");
        assert!(found.evidence.contains(&needed), "{found:?}");
    }
}

#[test]
fn what_is_not_known_of_tasks_is_said() {
    let mut graph = chain(Does(990, 0), Computes);
    graph.0.tasks[3].parallelism = 4;
    graph.0.tasks[0].instances[0].windows = [None; WINDOWS];
    graph.0.tasks[1].instances.clear();
    let needed = [
        "1 of 1 instances of A have been watched for less than a second",
        "no instance of B tells its times",
        "1 of 4 instances of D tell their times",
    ];
    assert_eq!(decide(&graph.0).lacks, needed);
}

/// Numbers that no task has: nothing overflows, and what is said stays within a second.
#[test]
fn lies_are_bounded() {
    let lie = Shares { idle: u32::MAX, busy: u32::MAX, soft: u32::MAX, hard: u32::MAX };
    let mut graph = chain(Does(990, 0), Computes);
    for task in &mut graph.0.tasks {
        for instance in &mut task.instances {
            instance.windows = [Some(lie); WINDOWS];
            instance.process = ProcessFacts { ran: Some(u32::MAX), waited: Some(u32::MAX), busy: 1 };
        }
    }
    for exchange in &mut graph.0.exchanges {
        exchange.channels = vec![ChannelFacts {
            send_stalled: [u32::MAX; CAUSES],
            emit_stalled: [u32::MAX; CAUSES],
            records: u64::MAX,
            bytes: u64::MAX,
            ..ChannelFacts::default()
        }];
        exchange.readers.push(usize::MAX);
        exchange.writers.push(usize::MAX);
    }
    let verdict = decide(&graph.0);
    assert!(verdict.bottlenecks.iter().all(|found| found.held_up_ms_per_second <= 1000), "{verdict:?}");
}

/// A pipeline of hundreds of tasks, each with each: as many edges as a plan lists.
#[test]
fn large_graphs_are_walked_once() {
    let mut graph = Graph::default();
    let names: Vec<String> = (0..300).map(|number| format!("t{number}")).collect();
    for name in &names {
        graph = graph.task(name, Computes, &[Does(0, 1000)]);
    }
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    for number in 0..60 {
        graph = graph.exchange(&format!("x{number}"), "HASH", &names, &names);
    }
    let verdict = decide(&graph.0);
    assert!(
        verdict.bottlenecks.iter().all(|found| found.cause == Cause::Cycle),
        "{:?}",
        verdict.bottlenecks.len()
    );
    assert_eq!(verdict.victims.len(), names.len());
}

/// As many tasks as one node tells, each with an exchange of its own, and all of them wait.
#[test]
fn many_small_graphs_are_decided_at_once() {
    let mut facts = Facts::default();
    for number in 0..4096 {
        let graph = chain(Does(990, 0), Computes).0;
        let first = facts.tasks.len();
        for mut task in graph.tasks {
            task.name = format!("{}{number}", task.name);
            facts.tasks.push(task);
        }
        for mut exchange in graph.exchanges {
            exchange.writers.iter_mut().chain(&mut exchange.readers).for_each(|place| *place += first);
            facts.exchanges.push(exchange);
        }
    }
    let verdict = decide(&facts);
    assert_eq!((verdict.bottlenecks.len(), verdict.victims.len(), verdict.starved.len()), (4096, 8192, 4096));
}
