//! The screen as text and colours, at several sizes.

use std::time::{Duration, Instant};

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use serde_json::{Value, json};

use super::*;

/// The chain A, B, C, D, held up by C, which has four instances.
fn reports(at: Instant, bytes_total: u64) -> Reports {
    let times = |idle: u32, busy: u32, hard: u32| {
        json!({ "idle_ms_per_second": idle, "busy_ms_per_second": busy, "soft_backpressured_ms_per_second": 0,
                "hard_backpressured_ms_per_second": hard })
    };
    let instance = |index: u32, last: Value| {
        json!({ "node": "n1", "index": index, "last_1_s": last, "last_10_s": null, "last_60_s": null,
                "idle_seconds_total": 1.0, "busy_seconds_total": 1.0, "soft_backpressured_seconds_total": 0.0,
                "hard_backpressured_seconds_total": 1.0, "process_ran_ms_per_second": 730,
                "process_waited_ms_per_second": null })
    };
    let task = |id: u32, name: &str, role: Value, instances: Vec<Value>| {
        json!({ "task": name, "id": id, "predecessors": [], "parallelism": instances.len(), "backpressure_level": null,
                "role": role, "instances": instances })
    };
    let busy = (0..4).map(|index| instance(index, times(0, 1000, 0))).collect();
    let tasks = vec![
        task(1, "A", json!("victim"), vec![instance(0, times(0, 100, 900))]),
        task(2, "B", json!("victim"), vec![instance(0, times(0, 200, 800))]),
        task(3, "C", json!("bottleneck"), busy),
        task(4, "D", json!("starved"), vec![instance(0, Value::Null)]),
    ];
    let node = |id: u32, name: &str, from: Option<(u32, &str)>| {
        let predecessors: Vec<Value> = from
            .into_iter()
            .map(|(id, exchange)| {
                json!({
            "id": id, "ship_strategy": "REBALANCE", "side": "second", "exchange": exchange, "producers": 1,
            "producers_attached": 1, "consumers": 1, "consumers_attached": 1 })
            })
            .collect();
        json!({ "id": id, "type": name, "pact": "Operator", "contents": "", "parallelism": 1,
                "predecessors": predecessors, "attached": 1, "declared": [1], "nodes": ["n1"] })
    };
    let channel = json!({ "exchange": "a-b", "producer": 0, "consumer": 0, "node": "n1", "bytes_per_second": 2_097_152,
        "records_per_second": 500, "queued_bytes": 0, "send_stalled_ms_per_second": { "consumer": 870, "network": 3 },
        "emit_stalled_ms_per_second": {}, "pool_usage_ratio": null });
    let status: Value = json!({ "schema_version": 1, "node": "n1", "version": "1", "pid": 1, "uptime_seconds": 3725,
        "listen": "127.0.0.1:7070", "memory": { "used_bytes": 1, "high_water_bytes": 1, "total_bytes": 1 },
        "subsystems": [{ "name": "memory", "state": "degraded", "detail": "", "reason": "r", "fix": "f" }],
        "links": [{ "peer": "n2", "shard": 0, "peer_shard": 1, "state": "established", "sent_bytes_total": bytes_total,
            "received_bytes_total": 0, "short_writes_total": 0, "resumes_total": 2, "resent_bytes_total": 0,
            "skipped_frames_total": 0, "round_trip_min_seconds": 0.000_05 }] });
    let verdict = json!({ "schema_version": 1, "node": "n1", "verdict": "bottleneck",
        "summary": "C computes and holds B and A up", "window_seconds": 10, "victims": ["A", "B"], "starved": ["D"],
        "lacks": [], "included": ["n1"], "missing": [], "missing_unnamed": 0, "stale": [],
        "bottlenecks": [{ "task": "C", "exchange": null, "instance": null, "nodes": ["n1"], "cause": "cpu",
            "summary": "s", "held_up_ms_per_second": 900, "holds_up": ["B"], "evidence": [], "confidence": "high",
            "confidence_reason": "", "remedy": "More instances of C", "would_not_help": [] }] });
    let row = json!({ "exchange": "a-b", "side": "send", "producer": 0, "producers": 1, "consumer": 3, "consumers": 4,
        "peer": "n2", "strategy": "rebalance", "shard": 0, "state": "open", "credit": 2, "backlog": 3,
        "queued_bytes": 98_304, "unacked_bytes": 0, "receiver_ready": 0, "receiver_held": 0,
        "bytes_total": bytes_total, "buffers_total": 7, "records_total": 11, "send_stalled_seconds_total": 1.5 });
    let waits = json!({ "seconds_total": 12.5, "count_total": 40,
        "by_cause": { "network": { "seconds_total": 0.5, "count_total": 1 },
                      "consumer": { "seconds_total": 12.0, "count_total": 39 } } });
    let none = json!({ "seconds_total": 0.0, "count_total": 0 });
    let stalls = json!({ "schema_version": 1, "node": "n1", "length_bucket_ends_seconds": [],
        "node_total": { "send": waits, "emit": none }, "links": [], "partitions": [],
        "channels": [{ "exchange": "a-b", "producer": 0, "producers": 1, "consumer": 3, "consumers": 4, "peer": "n2",
            "shard": 0, "state": "open", "approximate": false, "send": waits, "emit": none }] });
    let read = "read from JSON";
    Reports {
        status: serde_json::from_value(status).expect(read),
        plan: serde_json::from_value(
            json!({ "schema_version": 1, "exchanges": [], "included": ["n1"], "missing": [],
            "missing_unnamed": 0, "predecessors_left_out": 0,
            "nodes": [node(1, "A", None), node(2, "B", Some((1, "a-b"))), node(3, "C", Some((2, "b-c"))),
                      node(4, "D", Some((3, "c-d")))] }),
        )
        .expect(read),
        tasks: serde_json::from_value(
            json!({ "schema_version": 1, "node": "n1", "tasks": tasks, "included": ["n1"],
            "missing": [{ "node": "n3", "reason": "gone" }], "missing_unnamed": 0, "stale": [],
            "instances_left_out": 0, "channels": [channel], "channels_left_out": 0 }),
        )
        .expect(read),
        bottleneck: serde_json::from_value(verdict).expect(read),
        channels: serde_json::from_value(json!({ "schema_version": 1, "node": "n1", "channels": [row] }))
            .expect(read),
        stalls: serde_json::from_value(stalls).expect(read),
        at,
    }
}

fn latest() -> Latest {
    let began = Instant::now();
    let mut latest = Latest::default();
    latest.take(reports(began, 1_000_000));
    latest.take(reports(began + Duration::from_secs(2), 5_000_000));
    latest
}

fn drawn(width: u16, height: u16, state: &mut State, latest: &Latest) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, state, latest)).unwrap();
    terminal.backend().buffer().clone()
}

/// The lines of a screen, without what trails.
fn lines(buffer: &Buffer) -> Vec<String> {
    let area = *buffer.area();
    (0..area.height)
        .map(|y| {
            let line: String = (0..area.width).map(|x| buffer[(x, y)].symbol()).collect();
            line.trim_end().to_owned()
        })
        .collect()
}

fn shown(view: View) -> Vec<String> {
    let mut state = State { view, ..State::default() };
    lines(&drawn(80, 24, &mut state, &latest()))
}

#[test]
fn the_graph_shows_who_is_the_bottleneck_who_its_victim_and_who_starves() {
    let lines = shown(View::Graph);
    assert_eq!(lines[0], "weir top: node n1, up 1 h 2 min, DEGRADED memory");
    assert_eq!(lines[1], "bottleneck: C computes and holds B and A up");
    assert_eq!(lines[2], "high confidence. More instances of C");
    assert_eq!(lines[4], "task                   x                      idle busy backp  role");
    let bar = |busy: usize, waiting: usize| "\u{2588}".repeat(busy) + &"\u{2592}".repeat(waiting);
    assert_eq!(lines[5], format!("A                      1 {}    0  100   900  victim", bar(2, 18)));
    assert_eq!(lines[6], "  > a-b (REBALANCE) to B               2.0 MiB/s, 500 records/s, waits 870 ms/s:");
    assert_eq!(lines[9], format!("C                      4 {}    0 1000     0  bottleneck", bar(20, 0)));
    assert!(lines[11].starts_with("D") && lines[11].ends_with("starved"), "{}", lines[11]);
    assert_eq!(lines[12], "not shown, for no news come from there: n3");
    assert_eq!(lines[23], "1-5 view  arrows scroll  p pause  ? help  q quit");
}

#[test]
fn idle_is_blue_busy_red_and_backpressured_grey() {
    let buffer = drawn(80, 24, &mut State::default(), &latest());
    let first = 25;
    assert_eq!(buffer[(first, 5)].fg, Color::Red);
    assert_eq!(buffer[(first + 19, 5)].fg, Color::DarkGray);
    assert_eq!(bar::bar([1000, 0, 0], 1)[0].style.fg, Some(Color::Blue));
}

#[test]
fn rates_are_those_between_two_looks() {
    let channels = shown(View::Channels);
    assert!(channels[5].starts_with("a-b            send     0>3 n2"), "{}", channels[5]);
    // 4,000,000 bytes in 2 s.
    assert!(channels[5].contains(" 1.9 MiB/s open"), "{}", channels[5]);
    let links = shown(View::Links);
    assert!(
        links[5].contains("0>1") && links[5].contains("1.9 MiB/s") && links[5].contains("50 us"),
        "{}",
        links[5]
    );
    let mut once = Latest::default();
    once.take(reports(Instant::now(), 1));
    let mut state = State { view: View::Links, ..State::default() };
    let links = lines(&drawn(80, 24, &mut state, &once));
    assert!(links[5].contains(" - "), "one look has no rate: {}", links[5]);
}

#[test]
fn stalls_name_their_causes_the_longest_first() {
    let lines = shown(View::Stalls);
    assert_eq!(lines[5], "a-b                0>3 send     12.5 s      40 consumer 12.0 s, network 0.5 s");
    assert_eq!(lines[6], "", "who has not waited has no line");
}

#[test]
fn instances_of_a_task_have_a_line_each() {
    let lines = shown(View::Tasks);
    let of_c: Vec<&String> = lines.iter().filter(|line| line.starts_with("C ")).collect();
    assert_eq!(of_c.len(), 4);
    assert!(of_c[3].contains("    3 n1") && of_c[3].ends_with("  730"), "{}", of_c[3]);
}

#[test]
fn no_size_of_a_screen_is_too_small_or_too_large() {
    let latest = latest();
    for (width, height) in [(1, 1), (2, 3), (10, 5), (80, 4), (300, 90)] {
        for view in View::ALL {
            for shows_help in [false, true] {
                let mut state = State { view, shows_help, scrolled: 99, ..State::default() };
                drawn(width, height, &mut state, &latest);
            }
        }
    }
    let mut state = State { scrolled: 3, ..State::default() };
    let lines = lines(&drawn(80, 9, &mut state, &latest));
    assert!(lines[4].starts_with("task"), "the title stays: {lines:?}");
    assert!(lines[5].starts_with("  > b-c"), "{lines:?}");
}

#[test]
fn a_daemon_that_does_not_answer_leaves_what_was_seen_and_says_so() {
    let mut latest = latest();
    latest.take_or_note(Err(crate::exit::Problem::new(crate::exit::Exit::Unreachable, "no daemon answers")));
    let lines = lines(&drawn(120, 24, &mut State::default(), &latest));
    assert!(lines[0].contains("s old: no daemon answers"), "{}", lines[0]);
    assert!(lines[5].starts_with("A "), "{}", lines[5]);
}
