//! Pipelines and what is to be said of them.

mod graphs;
mod sockets;
mod table;

use Process::{Computes, Sleeps, Starves, Unseen};
use StallCause as Stall;
use weir_flow::stall::Cause as StallCause;

use super::*;
use graphs::{Does, Graph, Process, arriving, carried, chain, channel, on_shard, skewed};
use table::table;

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
const REMEDIES: [(Cause, &str, &str); 13] = [
    (Cause::Cpu, "less work for each record.", "more instances of other tasks"),
    (Cause::Outside, "wait for several at a time", "more instances of other tasks"),
    (Cause::Sink, "A faster sink", "if all write to the same place"),
    (Cause::Busy, "find out first whether it computes", "more instances of other tasks"),
    (Cause::HotKey, "Another key", "all records of one key still go to one of them"),
    (Cause::SlowInstance, "Look at the node of this instance", "this one stays as slow"),
    (Cause::Pool, "More segments", "what is on its way is bounded by the pool"),
    (Cause::Network, "A faster path", "the path stays as slow"),
    (Cause::Shard, "more `shards`", "bytes wait in the daemon"),
    (Cause::Held, "process is stopped", "it would hold those too"),
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
    let (confidence, reason) = of(arriving(100, 9000));
    assert_eq!(confidence, Confidence::Low);
    assert_eq!(reason, "it is only what is left: nothing else explains the waiting");
    let (confidence, reason) = of(arriving(100, 9000).young().lacks("node c is not linked"));
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
        "1 of 1 instances of A has been watched for less than a second",
        "no instance of B tells its times",
        "1 of 4 instances of D tell their times",
    ];
    assert_eq!(decide(&graph.0).lacks, needed);
}

#[test]
fn of_a_producer_that_was_not_watched_for_a_second_nothing_is_said_yet() {
    let mut facts = chain(Does(10, 0), Computes).0;
    for task in &mut facts.tasks {
        for instance in &mut task.instances {
            instance.windows = [Some(Shares { idle: 900, busy: 100, soft: 0, hard: 0 }); WINDOWS];
        }
    }
    let known = decide(&facts);
    assert_eq!((known.verdict, known.wait_seconds), (VerdictKind::NoBottleneck, None));
    // The last task writes nothing: it waits for nobody.
    let mut sink = facts.clone();
    sink.tasks[3].instances[0].windows = [None; WINDOWS];
    assert_eq!(decide(&sink).verdict, VerdictKind::NoBottleneck);
    let mut early = facts.clone();
    early.tasks[0].instances[0].windows = [None; WINDOWS];
    let verdict = decide(&early);
    assert_eq!((verdict.verdict, verdict.wait_seconds), (VerdictKind::NotEnoughData, Some(1)));
    assert_eq!(
        verdict.summary,
        "Not enough data: 1 of 1 instances of A has been watched for less than a second, and no other task waits for \
         room. Ask again in a second."
    );
    // Nobody has: the same.
    early.tasks.iter_mut().for_each(|task| task.instances[0].windows = [None; WINDOWS]);
    let verdict = decide(&early);
    assert_eq!((verdict.verdict, verdict.wait_seconds), (VerdictKind::NotEnoughData, Some(1)));
    assert!(verdict.summary.ends_with("for a second yet. Ask again in a second."), "{}", verdict.summary);
    // Where nobody tells, waiting does not help.
    early.tasks.iter_mut().for_each(|task| task.instances.clear());
    assert_eq!(decide(&early).wait_seconds, None);
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
