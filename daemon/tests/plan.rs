//! `weir plan`: the job graph that any node shows of all that it is linked with, and edges that cannot be.

mod common;

use std::process::{Command, Output, Stdio};

use common::{Daemon, DaemonOptions, Guarded, Pair, eventually, free_address, recv, send, weir};
use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

/// `weir plan` with these arguments.
fn plan(daemon: &Daemon, arguments: &[&str]) -> Output {
    weir(["plan"], &daemon.run_dir).args(arguments).output().expect("weir runs")
}

/// Exit code and standard output.
fn printed(output: &Output) -> (Option<i32>, String) {
    (output.status.code(), String::from_utf8(output.stdout.clone()).expect("text"))
}

/// Waits until the plan that this daemon shows is as wanted.
fn until(what: &str, daemon: &Daemon, is_wanted: impl Fn(&Value) -> bool) -> Value {
    let mut last = Value::Null;
    let began = std::time::Instant::now();
    while began.elapsed() < common::PATIENCE {
        last = daemon.ask("plan");
        if is_wanted(&last) {
            return last;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("did not happen within {} s: {what}; the last plan: {last:#}", common::PATIENCE.as_secs())
}

/// One field of every task.
fn tasks(plan: &Value, field: &str) -> Vec<Value> {
    plan["nodes"].as_array().expect("a list of tasks").iter().map(|node| node[field].clone()).collect()
}

fn is_attached(plan: &Value, numbers: &[u64]) -> bool {
    tasks(plan, "attached") == numbers
}

/// `weir pipe` of task `map`, from exchange `words` to exchange `counts`.
fn map(daemon: &Daemon, index: &str) -> Guarded {
    let mut command = weir(["pipe", "--from", "words", "--to", "counts", "--task", "map"], &daemon.run_dir);
    command.args(["--consumer", index, "--producer", index, "--consumers", "2", "--strategy", "hash"]);
    command.args(["--", "cat"]);
    Guarded::spawn(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()))
}

fn sink(daemon: &Daemon, index: &str) -> Guarded {
    let mut command = weir(["recv", "--exchange", "counts", "--consumer", index], &daemon.run_dir);
    command.args(["--task", "sink"]);
    Guarded::spawn(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()))
}

/// Source on a, `map` and `sink` on both.
struct Pipeline {
    pair: Pair,
    source: Guarded,
    maps: [Guarded; 2],
    sinks: [Guarded; 2],
}

impl Pipeline {
    fn start() -> Self {
        let pair = Pair::start();
        let source = send(&pair.a, "words", &["--consumers", "2", "--task", "lines"]);
        let maps = [map(&pair.a, "0/2"), map(&pair.b, "1/2")];
        let sinks = [sink(&pair.a, "0/2"), sink(&pair.b, "1/2")];
        let pipeline = Self { pair, source, maps, sinks };
        for daemon in [&pipeline.pair.a, &pipeline.pair.b] {
            until("all are attached", daemon, |plan| is_attached(plan, &[1, 2, 2]));
        }
        pipeline
    }
}

#[test]
fn both_nodes_show_the_same_graph_of_tasks_on_both() {
    let Pipeline { pair, mut source, maps, sinks } = Pipeline::start();
    let edge = |id: u32, strategy: &str, exchange: &str, producers: u32| {
        json!([{
            "id": id, "ship_strategy": strategy, "side": "second", "exchange": exchange,
            "producers": producers, "producers_attached": producers, "consumers": 2, "consumers_attached": 2,
        }])
    };
    let needed = json!({
        "schema_version": 1,
        "nodes": [
            {
                "id": 1, "type": "lines", "pact": "Data Source", "contents": "writes words", "parallelism": 1,
                "attached": 1, "declared": [1], "nodes": ["a"],
            },
            {
                "id": 2, "type": "map", "pact": "Operator", "contents": "reads words; writes counts",
                "parallelism": 2, "predecessors": edge(1, "REBALANCE", "words", 1),
                "attached": 2, "declared": [2], "nodes": ["a", "b"],
            },
            {
                "id": 3, "type": "sink", "pact": "Data Sink", "contents": "reads counts", "parallelism": 2,
                "predecessors": edge(2, "HASH", "counts", 2),
                "attached": 2, "declared": [2], "nodes": ["a", "b"],
            },
        ],
        "exchanges": [
            {
                "exchange": "counts", "ship_strategy": "HASH", "producers": 2, "producers_attached": 2,
                "consumers": 2, "consumers_attached": 2, "written_by": [2], "read_by": [3],
            },
            {
                "exchange": "words", "ship_strategy": "REBALANCE", "producers": 1, "producers_attached": 1,
                "consumers": 2, "consumers_attached": 2, "written_by": [1], "read_by": [2],
            },
        ],
        "included": ["a", "b"],
        "missing": [],
        "missing_unnamed": 0,
        "predecessors_left_out": 0,
    });
    for daemon in [&pair.a, &pair.b] {
        until("the gates have learnt what the producers state", daemon, |plan| *plan == needed);
    }
    let table = "ID  TASK   PARALLELISM  ATTACHED  NODES  READS   STRATEGY   FROM\n \
                 1  lines            1         1  a      -       -          -\n \
                 2  map              2         2  a, b   words   REBALANCE  1\n \
                 3  sink             2         2  a, b   counts  HASH       2\n\
                 \n\
                 tasks of nodes: a, b\n";
    for daemon in [&pair.a, &pair.b] {
        assert_eq!(printed(&plan(daemon, &[])), (Some(0), table.to_owned()));
    }
    // The same bytes however they are asked for, and however often.
    let json = printed(&plan(&pair.a, &["--json"]));
    assert_eq!(json.0, Some(0));
    assert_eq!(json, printed(&plan(&pair.b, &["--output", "json"])));
    let output = plan(&pair.a, &["--json", "--output", "table"]);
    assert_eq!(output.status.code(), Some(2));
    let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON on failure as well");
    assert!(answer["error"]["what"].is_string(), "{answer}");

    // The input ends, and with it one after the other.
    drop(source.child.stdin.take());
    for ended in [source].into_iter().chain(maps).chain(sinks) {
        assert_eq!(ended.output().status.code(), Some(0));
    }
    for daemon in [&pair.a, &pair.b] {
        until("all tasks have gone", daemon, |plan| {
            plan["nodes"] == json!([]) && plan["exchanges"] == json!([])
        });
        assert_eq!(printed(&plan(daemon, &[])), (Some(0), "no tasks\n\ntasks of nodes: a, b\n".to_owned()));
    }
}

#[test]
fn who_leaves_is_shown_no_more_and_a_lost_node_is_named() {
    let mut pipeline = Pipeline::start();
    // One more, on the node that will be lost, with every character that names have.
    let name = "--exchange=-_.Az9";
    let mut command = weir(["recv", name, "--consumer", "1/3", "--task=..-_9aZ"], &pipeline.pair.b.run_dir);
    let mut extra = Guarded::spawn(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()));
    let Pair { a, b, .. } = &mut pipeline.pair;
    let seen = until("it is seen from the other node", a, |plan| is_attached(plan, &[1, 1, 2, 2]));
    assert_eq!(tasks(&seen, "type")[0], "..-_9aZ");
    let alone = json!({
        "exchange": "-_.Az9", "ship_strategy": null, "producers": null, "producers_attached": 0, "consumers": 3,
        "consumers_attached": 1, "written_by": [], "read_by": [1],
    });
    assert_eq!(seen["exchanges"][0], alone);
    let (_, table) = printed(&plan(a, &[]));
    assert!(table.contains("\nexchange -_.Az9 has no producer; read by ..-_9aZ\n"), "{table}");
    extra.child.kill().expect("it can be killed");
    for daemon in [&*a, &*b] {
        until("it is gone", daemon, |plan| is_attached(plan, &[1, 2, 2]));
    }

    b.kill();
    let lost = until("the node is missing", a, |plan| plan["missing"] != json!([]));
    assert_eq!((&lost["missing"][0]["node"], &lost["included"]), (&json!("b"), &json!(["a"])));
    assert!(lost["missing"][0]["reason"].as_str().is_some_and(|reason| !reason.is_empty()), "{lost}");
    assert!(!lost["nodes"].to_string().contains("\"b\""), "nothing is said of tasks on it: {lost}");
    let (code, table) = printed(&plan(a, &[]));
    assert_eq!(code, Some(3), "{table}");
    assert!(table.contains("\nmissing: those of node b, which is not linked: "), "{table}");
}

#[test]
fn a_node_that_nobody_configured_is_missed_when_it_is_lost_and_not_when_it_stops() {
    let directory = TempDir::new().expect("a directory");
    let (at_a, at_c) = (free_address(), free_address());
    let a = Daemon::start(directory.path(), &DaemonOptions::new("a", &at_a));
    let options = DaemonOptions { peers: &[("a", &at_a)], ..DaemonOptions::new("c", &at_c) };
    let mut c = Daemon::start(directory.path(), &options);
    let is_included = |plan: &Value| plan["included"] == json!(["a", "c"]) && plan["missing"] == json!([]);
    until("they are linked", &a, is_included);
    c.kill();
    let lost = until("it is lost", &a, |plan| plan["included"] == json!(["a"]));
    assert_eq!(lost["missing"][0]["node"], "c", "{lost}");
    assert_eq!(plan(&a, &[]).status.code(), Some(3));
    let mut c = Daemon::start(directory.path(), &options);
    until("it is back", &a, is_included);
    assert_eq!(c.terminate(), Some(0));
    until("it has stopped", &a, |plan| plan["included"] == json!(["a"]) && plan["missing"] == json!([]));
    assert_eq!(plan(&a, &[]).status.code(), Some(0));
}

/// Standard error of a command that ends by itself, and its exit code.
fn refusal(command: &mut Command) -> (Option<i32>, String) {
    let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let output = Guarded::spawn(command).output();
    (output.status.code(), String::from_utf8(output.stderr).expect("text"))
}

#[test]
fn a_forward_edge_with_unequal_sides_is_refused_with_what_would_fit() {
    let pair = Pair::start();
    let unequal = ["--producer", "0/2", "--consumers", "3", "--strategy", "forward"];
    // By the command itself.
    for verb in [&["send", "--exchange", "x"][..], &["pipe", "--from", "in", "--to", "x"]] {
        let mut command = weir(verb.iter().chain(&unequal), &pair.a.run_dir);
        let command = if verb[0] == "pipe" { command.args(["--", "cat"]) } else { &mut command };
        let (code, text) = refusal(command);
        assert_eq!(code, Some(2), "{text}");
        for part in ["2 producers and 3 consumers", "--consumers 2", "rescale, rebalance, hash or broadcast"]
        {
            assert!(text.contains(part), "{part} in {text}");
        }
    }
    // By the daemon, here and on the other node, of a consumer that comes later.
    let sender = send(&pair.a, "x", &["--producer", "0/2", "--strategy", "forward"]);
    for daemon in [&pair.a, &pair.b] {
        until("the producer is known", daemon, |plan| is_attached(plan, &[1]));
        let (code, text) =
            refusal(&mut weir(["recv", "--exchange", "x", "--consumer", "0/3"], &daemon.run_dir));
        assert_eq!(code, Some(1), "{text}");
        let needed = "forward has 2 producers and 3 consumers; needed: as many of both, or another strategy: rescale, \
                      rebalance, hash or broadcast";
        assert!(text.contains(needed), "{text}");
    }
    // One that waits already when a producer of another node turns out not to fit.
    let waiting = recv(&pair.b, "y", "0/3");
    eventually("it waits", || is_attached(&pair.b.ask("plan"), &[1, 1]).then_some(()));
    let late = send(&pair.a, "y", &["--producer", "0/2", "--strategy", "forward"]);
    let output = waiting.output();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("forward has 2 producers and 3 consumers"), "{text}");
    for sender in [sender, late] {
        common::signal(sender.child.id(), Signal::TERM);
    }
}
