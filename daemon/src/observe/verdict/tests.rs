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
        socket: None,
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
    let pool_usage = Some(pool_usage);
    graph.0.exchanges[1].arrivals = vec![ArrivalFacts {
        node: "b".to_owned(),
        shard,
        pool_usage,
        queued_bytes,
        ..ArrivalFacts::default()
    }];
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
        (
            "everybody behind it is starved, however far",
            chain(Does(990, 0), Computes).task("E", Computes, &[Does(0, 0)]).exchange(
                "de",
                "FORWARD",
                &["D"],
                &["E"],
            ),
            Found,
            &[("C", Cause::Cpu)],
            &["A", "B"],
            &["D", "E"],
        ),
        (
            "the network is slow, and the half busy consumer holds up more",
            carried(
                channel(0, 10, &[(Stall::Network, 300), (Stall::Consumer, 600)], &[(Stall::Consumer, 880)]),
                Does(600, 0),
            ),
            Found,
            &[("C", Cause::Cpu)],
            &["A", "B"],
            &[],
        ),
        (
            "a little of everything is nothing that could be named",
            carried(channel(0, 10, &[], &[(Stall::Pool, 28), (Stall::Network, 27)]), Does(90, 0)),
            Found,
            &[("bc", Cause::Unknown)],
            &["A", "B"],
            &["C"],
        ),
        (
            "all instances are busy, one a little more",
            Graph::default()
                .task("A", Computes, &[Does(100, 880)])
                .task("B", Sleeps, &[Does(990, 0), Does(600, 0), Does(620, 0), Does(590, 0)])
                .exchange("ab", "HASH", &["A"], &["B"]),
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
            "one instance behind a hash does not keep up, and whether it gets more is not known",
            skewed("HASH", None),
            Found,
            &[("B", Cause::SlowInstance)],
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
            "a fan-out with one slow branch, and another that is as busy and keeps up",
            Graph::default()
                .task("A", Computes, &[Does(20, 970)])
                .task("B", Computes, &[Does(990, 0)])
                .task("C", Computes, &[Does(990, 0)])
                .channels("ab", "FORWARD", (&["A"], &["B"]), &[consumer(900)])
                .channels("ac", "FORWARD", (&["A"], &["C"]), &[consumer(10)]),
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

/// What helps with each cause, and what does not: words that no other cause has.
const REMEDIES: [(Cause, &str, &str); 12] = [
    (Cause::Cpu, "less work for each record.", "more instances of other tasks"),
    (Cause::Outside, "wait for several at a time", "more instances of other tasks"),
    (Cause::Sink, "A faster sink", "if all write to the same place"),
    (Cause::Busy, "find out first whether it computes", "more instances of other tasks"),
    (Cause::HotKey, "Another key", "all records of one key still go to one of them"),
    (Cause::SlowInstance, "Look at the node of this instance", "this one stays as slow"),
    (Cause::Pool, "More segments", "what is on its way is bounded by the pool"),
    (Cause::Network, "A faster path", "the path stays as slow"),
    (Cause::Shard, "more `shards`", "bytes wait in the daemon"),
    (Cause::NoConsumer, "Start a task that reads it", "anything upstream"),
    (Cause::Cycle, "Break the circle", "larger pools: they fill up again"),
    (Cause::Unknown, "`weir stalls` and `weir channels`", "more instances of the consumers: they are idle"),
];

#[test]
fn each_cause_has_a_remedy_of_its_own_and_what_would_not_help() {
    let mut seen = std::collections::BTreeSet::new();
    for (what, graph, _, _, _, _) in table() {
        // Who wants a processor is told something else, of which another test knows.
        let starves = what == "it wants a processor that others have";
        for found in decide(&graph.0).bottlenecks.into_iter().filter(|_| !starves) {
            for (cause, helps, does_not) in REMEDIES {
                let is_own = cause == found.cause;
                assert_eq!(found.remedy.contains(helps), is_own, "{what}: {cause:?}: {}", found.remedy);
                let is_said = found.would_not_help.iter().any(|line| line.contains(does_not));
                assert!(is_said || !is_own, "{what}: {cause:?}: {:?}", found.would_not_help);
            }
            seen.insert(found.cause);
        }
    }
    assert_eq!(seen.len(), REMEDIES.len(), "{seen:?}");
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
        (skewed("HASH", None), "how many records each instance gets is not known: a hot key looks alike"),
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
    let unread =
        Graph::default().task("A", Computes, &[Does(10, 980)]).exchange("ab", "FORWARD", &["A"], &[]);
    let sure = (Confidence::High, "the plan has no task that reads it".to_owned());
    assert_eq!(of(unread), sure, "that nobody reads it is seen, and not left over");
    // What is only left over is not sure, whatever else is known; and of several doubts the gravest counts.
    let (confidence, reason) = of(arriving(900, 0));
    assert_eq!(confidence, Confidence::Low);
    assert_eq!(reason, "it is only what is left: nothing else explains the waiting");
    let (confidence, reason) = of(arriving(900, 0).young().lacks("node c is not linked"));
    assert_eq!(confidence, Confidence::Low);
    assert!(reason.starts_with("it is only what is left") && reason.matches("; ").count() == 2, "{reason}");
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
fn who_can_tell_the_keys_is_named_with_what_their_consumer_gets() {
    let mut graph = skewed("HASH", Some([900, 30, 30, 40]));
    // A second producer, with a third of as much for the same consumer; and larger records for another one.
    let channels = &mut graph.0.exchanges[0].channels;
    channels.push(ChannelFacts { producer: 7, ..channel(0, 300, &[], &[]) });
    channels[3].bytes = 3_760_000;
    let found = only(graph);
    for line in [
        "consumer 0 gets 92 % of the records and 24 % of the bytes of exchange ab; 25 % would be even",
        "producer 0 emits 75 % of those, more than any other",
    ] {
        assert!(found.evidence.iter().any(|found| found == line), "{line}: {:?}", found.evidence);
    }
    assert!(found.remedy.contains("the program of A can tell: `Partition::heavy_keys`"), "{}", found.remedy);

    // What a selector of the application goes by nobody else knows, and salt does nothing to it.
    let found = only(skewed("CUSTOM", Some([900, 30, 30, 40])));
    assert!(found.remedy.contains("the selector in the program of A"), "{}", found.remedy);
    assert!(!found.remedy.contains("salt") && !found.remedy.contains("heavy_keys"), "{}", found.remedy);
    assert!(!found.evidence.iter().any(|line| line.contains("more than any other")), "{found:?}");
}

/// What the socket of a link did, of 1,000 ms.
fn socket(states: [u16; 6], is_approximate: bool) -> Option<SocketSummary> {
    Some(SocketSummary {
        is_approximate,
        states: states.map(Some),
        retransmitted: Some(12),
        send_queue_bytes: Some(2_621_440),
        receive_queue_bytes: Some(0),
        residence_us: None,
    })
}

/// As [`carried`] over a slow network, with what the sockets of the link from `a` to `b` tell at both ends, and what the two
/// nodes say of their probes.
fn over_sockets(
    sending: Option<SocketSummary>,
    receiving: Option<SocketSummary>,
    probes: [&str; 2],
) -> Graph {
    let mut graph = carried(channel(0, 10, &[(Stall::Network, 900)], &[(Stall::Network, 880)]), Does(90, 0));
    graph.0.exchanges[1].channels[0].socket = sending;
    let node = "b".to_owned();
    graph.0.exchanges[1].arrivals = vec![ArrivalFacts { node, socket: receiving, ..ArrivalFacts::default() }];
    let probes = ["a", "b"].into_iter().zip(probes);
    graph.0.probes = probes.map(|(node, probes)| (node.to_owned(), probes.to_owned())).collect();
    graph
}

fn sockets_of(found: &Bottleneck) -> Vec<&str> {
    let lines = found.evidence.iter().map(String::as_str);
    lines.filter(|line| line.starts_with("socket of ")).collect()
}

#[test]
fn the_kernel_s_word_on_a_link_is_evidence_for_a_slow_network() {
    let read = SocketSummary {
        residence_us: Some(1_500),
        receive_queue_bytes: Some(70),
        ..SocketSummary::default()
    };
    let sending = socket([30, 150, 0, 820, 0, 0], false);
    let found = only(over_sockets(sending, Some(read), ["OK", "OK"]));
    assert_eq!(found.cause, Cause::Network);
    let needed = [
        "socket of a to b: congestion_window 820, flight 150, idle 30 ms/s; send queue 2.6 MB; 12 segments/s sent again",
        "socket of b from a: what was read had waited 1.5 ms in it, the mean; receive queue 70 B",
    ];
    assert_eq!(sockets_of(&found), needed);
    assert_eq!((found.lacks.as_slice(), found.confidence), (&[][..], Confidence::High), "{found:?}");

    let quick = SocketSummary { residence_us: Some(999), ..SocketSummary::default() };
    let found = only(over_sockets(sending, Some(quick), ["OK", "OK"]));
    assert_eq!(sockets_of(&found)[1], "socket of b from a: what was read had waited 999 us in it, the mean");

    // Only a moment ago something was heard of it: there are no shares yet, and what is not known is not 0.
    let young = SocketSummary { send_queue_bytes: Some(1_500), ..SocketSummary::default() };
    let found = only(over_sockets(Some(young), None, ["OK", "OK"]));
    assert_eq!(sockets_of(&found), ["socket of a to b: send queue 1.5 kB"]);
    assert_eq!(
        found.lacks,
        ["node a: what its sockets did in the last second is not known; probes there: OK"]
    );
}

#[test]
fn samples_are_marked_and_what_they_do_not_tell_is_said_with_the_state_of_the_probes() {
    let off = "OFF: switched off: observe.probes = \"off\"";
    let found = only(over_sockets(socket([0, 0, 0, 0, 100, 900], true), None, [off, "DEGRADED: no CAP_BPF"]));
    assert_eq!(
        sockets_of(&found),
        [
            "socket of a to b, approximate: send_buffer 900, receive_window 100 ms/s; send queue 2.6 MB; 12 segments/s sent again"
        ]
    );
    let needed = [
        format!("node a: what its sockets wait for is known approximately; probes there: {off}"),
        "node b: how long what arrived waited to be read is not known; probes there: DEGRADED: no CAP_BPF"
            .to_owned(),
    ];
    assert_eq!(found.lacks, needed);

    let found = only(over_sockets(None, None, ["", "OK"]));
    assert_eq!(sockets_of(&found), [] as [&str; 0]);
    assert_eq!(found.lacks, ["node a: what its sockets wait for is not known; probes there: not told"]);
}

#[test]
fn a_window_that_the_peer_s_kernel_closes_is_a_doubt_about_the_network() {
    let of = |states| only(over_sockets(socket(states, false), None, ["OK", "OK"]));
    let found = of([100, 0, 0, 160, 740, 0]);
    assert_eq!((found.cause, found.confidence), (Cause::Network, Confidence::Medium));
    assert!(found.confidence_reason.contains("no room for 740 ms/s"), "{}", found.confidence_reason);
    for states in [[100, 0, 0, 740, 160, 0], [550, 0, 0, 0, 450, 0], [510, 0, 0, 0, 510, 0]] {
        assert_eq!(of(states).confidence, Confidence::High, "{states:?}");
    }
}

#[test]
fn sockets_are_told_of_exchanges_only_and_few_of_them() {
    // Where a task is what is slow, or the pool, the links have nothing to do with it.
    let mut graph = chain(Does(990, 0), Computes);
    for exchange in &mut graph.0.exchanges {
        let stalled =
            ChannelFacts { socket: socket([0, 0, 0, 0, 1000, 0], false), ..channel(0, 9, &[], &[]) };
        exchange.channels = vec![ChannelFacts { send_stalled: [900; CAUSES], ..stalled }];
    }
    let found = only(graph);
    assert_eq!((sockets_of(&found), found.lacks.len()), (Vec::new(), 0), "{found:?}");
    let mut graph = carried(channel(0, 10, &[], &[(Stall::Pool, 880)]), Does(120, 0));
    graph.0.exchanges[1].channels[0].socket = socket([0, 0, 0, 0, 1000, 0], true);
    let found = only(graph);
    assert_eq!((found.cause, sockets_of(&found), found.lacks.len()), (Cause::Pool, Vec::new(), 0));

    // Of the channels of one exchange, those that wait.
    let mut graph = over_sockets(socket([0, 0, 0, 1000, 0, 0], false), None, ["OK", "OK"]);
    let idle = ChannelFacts { node: "c".to_owned(), socket: None, ..channel(1, 10, &[], &[]) };
    let flowing = ChannelFacts { socket: socket([1000, 0, 0, 0, 0, 0], true), ..idle.clone() };
    graph.0.exchanges[1].channels.extend([idle, flowing]);
    let found = only(graph);
    assert_eq!((sockets_of(&found).len(), found.lacks.len()), (1, 0), "{found:?}");

    // Hundreds of channels between dozens of nodes: those that wait most, each link once.
    let mut graph = over_sockets(None, None, ["", ""]);
    let exchange = &mut graph.0.exchanges[1];
    (exchange.channels, exchange.arrivals) = (Vec::new(), Vec::new());
    for consumer in 0..400_u32 {
        let waits = 100 + consumer;
        let node = format!("s{}", consumer / 100);
        let socket = socket([0, (consumer / 100) as u16, 0, 0, 0, 0], true);
        let stalls = [(Stall::Network, waits)];
        exchange.channels.push(ChannelFacts { node, socket, ..channel(consumer, 1, &stalls, &stalls) });
        let node = format!("r{}", consumer / 50);
        exchange.arrivals.push(ArrivalFacts { consumer, node, socket, ..ArrivalFacts::default() });
    }
    let found = only(graph);
    let sockets = sockets_of(&found);
    assert_eq!(sockets.len(), 4, "{sockets:?}");
    assert!(sockets[0].starts_with("socket of s3 to r7, approximate: flight 3 ms/s"), "{sockets:?}");
    assert!(sockets[1].starts_with("socket of s3 to r6, approximate: flight 3 ms/s"), "{sockets:?}");
    assert_eq!(found.lacks.len(), 5, "{:?}", found.lacks);
    // Four senders whose sockets are sampled, eight receivers that do not say how long they leave what arrives.
    assert_eq!(found.lacks[4], "8 more of the kind, of this and other nodes");
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
fn ten_seconds_are_looked_at_when_everybody_was_watched_for_them() {
    assert_eq!(decide(&chain(Does(990, 0), Computes).0).window_seconds, 10);
    for late in 0..4 {
        let mut graph = chain(Does(990, 0), Computes);
        graph.0.tasks[late].instances[0].windows[1] = None;
        let verdict = decide(&graph.0);
        assert_eq!((verdict.window_seconds, verdict.lacks.len()), (1, 0), "{verdict:?}");
        assert_eq!(verdict.bottlenecks[0].task.as_deref(), Some("C"));
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

/// Four states of more than a second each are the parts of one second.
#[test]
fn times_that_no_second_holds_are_told_as_parts_of_one() {
    let mut graph = chain(Does(990, 0), Computes);
    let lie = Shares { idle: u32::MAX, busy: u32::MAX, soft: u32::MAX, hard: u32::MAX };
    graph.0.tasks[1].instances[0].windows = [Some(lie); WINDOWS];
    let found = only(graph);
    assert_eq!(found.held_up_ms_per_second, 500);
    assert!(found.evidence.contains(&"upstream, B waits for room 500 ms/s, LOW".to_owned()), "{found:?}");
}

const LYING: SocketSummary = SocketSummary {
    is_approximate: false,
    states: [Some(u16::MAX); 6],
    retransmitted: Some(u32::MAX),
    send_queue_bytes: Some(u32::MAX),
    receive_queue_bytes: Some(u32::MAX),
    residence_us: Some(u32::MAX),
};

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
            socket: Some(LYING),
            ..ChannelFacts::default()
        }];
        exchange.arrivals = vec![ArrivalFacts { socket: Some(LYING), ..ArrivalFacts::default() }];
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
