//! Every kind of pipeline with what is to be said of it.

use super::*;

/// What is to be said: for each bottleneck the task or the exchange, and its cause.
pub(super) type Needed = &'static [(&'static str, Cause)];

/// Names of tasks.
pub(super) type Names = &'static [&'static str];

/// Every graph with its verdict, its victims and its starved tasks.
pub(super) fn table() -> Vec<(&'static str, Graph, VerdictKind, Needed, Names, Names)> {
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
            &[("bc", Cause::Held)],
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
