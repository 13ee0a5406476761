//! Whole texts.

use std::collections::{BTreeMap, BTreeSet};

use weir_flow::stall::{CAUSES, Cause, STALL_BUCKETS, StallLengths};

use super::*;
use crate::control::snapshot::{
    ChannelRow, ChannelSide, ChannelsReport, LinkRow, MemoryReport, SCHEMA_VERSION, ShardRow, StatusReport,
    Subsystem,
};
use crate::control::stalls::{PastWait, PastWaits};
use crate::control::zero_copy::RegisteredRow;

/// A sending end of an exchange without other producers.
pub(super) fn row(exchange: &str, consumer: u32, bytes_total: u64) -> ChannelRow {
    let json = serde_json::json!({
        "exchange": exchange, "side": "send", "producer": 0, "producers": 1, "consumer": consumer, "consumers": 20_000,
        "peer": "b", "strategy": "rebalance", "shard": 0, "state": "open", "credit": 2, "backlog": 3,
        "queued_bytes": 98_304, "unacked_bytes": 32_768, "receiver_ready": 0, "receiver_held": 0,
        "bytes_total": bytes_total, "buffers_total": 7, "records_total": 11, "send_stalled_seconds_total": 1.5,
        "send_stalls": waits(1.5), "emit_stalls": waits(0.25),
    });
    serde_json::from_value(json).unwrap()
}

/// Waits for the consumer, all of them.
fn waits(seconds: f64) -> serde_json::Value {
    let total = serde_json::json!({ "seconds_total": seconds, "count_total": 1 });
    serde_json::json!({ "seconds_total": seconds, "count_total": 1, "by_cause": { "consumer": total } })
}

fn facts(channels: Vec<ChannelRow>) -> Facts {
    let link = LinkRow { peer: "b".into(), shard: 0, peer_shard: 1, state: "established".into(), ..link() };
    Facts {
        status: StatusReport {
            schema_version: SCHEMA_VERSION,
            node: "a".into(),
            version: "1.2.3".into(),
            pid: 4242,
            uptime_seconds: 60,
            listen: "127.0.0.1:7070".into(),
            memory: MemoryReport { used_bytes: 1, behind_regions_bytes: 0, high_water_bytes: 2, total_bytes: 3 },
            subsystems: vec![
                Subsystem::ok("node", "a"),
                Subsystem::degraded("peer/b", "", "gone", "start it"),
                Subsystem::off("peers", "none"),
            ],
            links: vec![link],
            shards: vec![ShardRow {
                turns_total: 5,
                longest_turn_seconds: 0.002,
                registered: RegisteredRow { regions: 2, bytes: 3 << 20, sends_total: 7, refused_total: 1 },
                cpu: Some(1500),
                is_roaming: true,
                ..ShardRow::default()
            }],
            shards_missing: Vec::new(),
                capabilities_given_up: Vec::new(), hooks: Vec::new(), zero_copy: None,
        },
        channels: ChannelsReport {
            schema_version: SCHEMA_VERSION,
            node: "a".into(),
            channels,
            gates: serde_json::from_value(serde_json::json!([gate()])).unwrap(),
            shards_missing: Vec::new(),
        },
        stalls: serde_json::from_value(serde_json::json!({
            "schema_version": 1, "node": "a", "length_bucket_ends_seconds": ends(), "channels": [], "links": [],
            "past": { "send": { "consumer": past(7.5) }, "emit": { "pool": past(0.5) } },
            "node_total": { "send": waits(0.0), "emit": waits(0.0) },
            "partitions": [{ "exchange": "x", "producer": 0, "producers": 1, "shard": 0, "emit": waits(2.5),
                "pool_usage": 1.25, "quota_usage": 0.5 }],
        }))
        .unwrap(),
        tasks: serde_json::from_value(serde_json::json!({
            "schema_version": 1, "node": "a", "included": [], "missing": [], "missing_unnamed": 0, "stale": [],
            "instances_left_out": 0, "channels": [], "channels_left_out": 0,
            "tasks": [{ "task": "map", "id": 1, "predecessors": [], "parallelism": 2, "backpressure_level": null,
                "role": null, "instances": [instance("a", 0), instance("a", 0), instance("b", 1)] }],
        }))
        .unwrap(),
    }
}

/// Where the buckets of lengths end, as the control socket tells it.
fn ends() -> Vec<Option<f64>> {
    (0..STALL_BUCKETS).map(|bucket| StallLengths::end_ns(bucket).map(|ns| ns as f64 / 1e9)).collect()
}

/// A wait of 1.5 us, two of 3 us, one of 50 s and one of 100 s.
fn past(seconds: f64) -> serde_json::Value {
    let mut lengths = StallLengths::default();
    for (ns, waits) in [(1_500, 1), (3_000, 2), (50_000_000_000, 1), (100_000_000_000, 1)] {
        lengths.record(ns, waits);
    }
    serde_json::json!({ "seconds_total": seconds, "length_buckets": lengths.buckets })
}

fn instance(node: &str, index: u32) -> serde_json::Value {
    serde_json::json!({ "node": node, "index": index, "last_1_s": null, "last_10_s": null, "last_60_s": null,
        "idle_seconds_total": 1.0, "busy_seconds_total": 2.0, "soft_backpressured_seconds_total": 3.0,
        "hard_backpressured_seconds_total": 4.0, "process_ran_ms_per_second": null, "process_waited_ms_per_second": null })
}

fn gate() -> serde_json::Value {
    serde_json::json!({ "exchange": "x", "consumer": 1, "consumers": 2, "shard": 0, "in_flight_bytes": 4_000,
        "consumed_bytes_total": 9_000, "debloat": { "target_seconds": 1.0, "in_flight_seconds": 0.5,
            "bytes_per_second": 8_000, "wanted_bytes": 7_000, "window_segments": 3, "buffer_bytes": 2_048,
            "changes_total": 6, "turns_total": 1 } })
}

fn link() -> LinkRow {
    serde_json::from_value(serde_json::json!({
        "peer": "", "shard": 0, "peer_shard": 0, "state": "suspended", "sent_bytes_total": 10, "received_bytes_total": 20,
        "short_writes_total": 1, "resumes_total": 2, "resent_bytes_total": 3, "skipped_frames_total": 4,
        "round_trip_min_seconds": 0.000_5,
        "socket": { "approximate": false, "sockets_total": 1, "watched_seconds_total": 9.0, "idle_seconds_total": 7.0,
            "receive_window_seconds_total": 2.0, "unwritable_seconds_total": 1.0, "send_queue_bytes": 5,
            "receive_queue_bytes": 6, "residence_seconds_total": 0.25, "retransmitted_segments_total": 3,
            "residence_nanoseconds_total": residence(), "zero_windows_total": 4 },
    }))
    .unwrap()
}

/// One arrival that was read within 8 ns, two within 8 us, one within 34 s.
fn residence() -> Vec<u64> {
    let mut counts = vec![0; 36];
    for (bucket, count) in [(3, 1), (13, 2), (35, 1)] {
        counts[bucket] = count;
    }
    counts
}

/// Samples of a text: name and labels, value.
fn samples(text: &str) -> BTreeMap<&str, f64> {
    let mut samples = BTreeMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (series, value) = line.rsplit_once(' ').unwrap();
        assert!(samples.insert(series, value.parse().unwrap()).is_none(), "{series} twice");
    }
    samples
}

/// The name of a series' metric.
fn metric(series: &str) -> &str {
    let name = series.split('{').next().unwrap();
    let of_histogram = ["_bucket", "_count", "_sum"].iter().find_map(|suffix| name.strip_suffix(suffix));
    of_histogram.unwrap_or(name)
}

fn sum(text: &str, name: &str) -> f64 {
    samples(text).iter().filter(|(series, _)| metric(series) == name).map(|(_, value)| value).sum()
}

#[test]
fn every_metric_is_written_and_no_other() {
    let mut rows = vec![row("x", 0, 10), row("x", 1, 5)];
    rows.push(ChannelRow {
        side: ChannelSide::Receive,
        send_stalls: None,
        emit_stalls: None,
        ..row("y", 0, 1)
    });
    let text = Exporter::new(1).expose(&facts(rows), Format::Prometheus);
    let written: BTreeSet<&str> = samples(&text).keys().map(|series| metric(series)).collect();
    let known: BTreeSet<&str> = registry::ALL.iter().map(|metric| metric.name).collect();
    assert_eq!(written, known);
    for (series, value) in [
        ("weir_build_info{version=\"1.2.3\"}", 1.0),
        ("weir_subsystem_degraded{subsystem=\"node\"}", 0.0),
        ("weir_subsystem_degraded{subsystem=\"peer/b\"}", 1.0),
        ("weir_link_connected{peer=\"b\",shard=\"0\",peer_shard=\"1\"}", 1.0),
        ("weir_shard_longest_turn_seconds{shard=\"0\"}", 0.002),
        ("weir_shard_registered_regions{shard=\"0\"}", 2.0),
        ("weir_shard_registered_bytes{shard=\"0\"}", 3_145_728.0),
        ("weir_shard_registered_sends_total{shard=\"0\"}", 7.0),
        ("weir_shard_registered_refused_total{shard=\"0\"}", 1.0),
        ("weir_shard_cpu{shard=\"0\"}", 1500.0),
        ("weir_shard_roaming{shard=\"0\"}", 1.0),
        ("weir_channels{side=\"send\"}", 2.0),
        ("weir_gate_in_flight_bytes{exchange=\"x\",consumer=\"1\"}", 4_000.0),
        ("weir_gate_consumed_bytes_total{exchange=\"x\",consumer=\"1\"}", 9_000.0),
        ("weir_gate_in_flight_seconds{exchange=\"x\",consumer=\"1\"}", 0.5),
        ("weir_gate_target_seconds{exchange=\"x\",consumer=\"1\"}", 1.0),
        ("weir_gate_wanted_bytes{exchange=\"x\",consumer=\"1\"}", 7_000.0),
        ("weir_gate_window_segments{exchange=\"x\",consumer=\"1\"}", 3.0),
        ("weir_gate_buffer_bytes{exchange=\"x\",consumer=\"1\"}", 2_048.0),
        ("weir_gate_wanted_turns_total{exchange=\"x\",consumer=\"1\"}", 1.0),
        ("weir_channels_unnamed", 2.0),
        (
            "weir_channel_bytes_total{exchange=\"x\",side=\"send\",producer=\"0\",consumer=\"0\",peer=\"b\"}",
            10.0,
        ),
        ("weir_channel_bytes_total{exchange=\"other\",side=\"send\"}", 5.0),
        ("weir_channel_bytes_total{exchange=\"other\",side=\"receive\"}", 1.0),
        ("weir_channel_send_stall_seconds_total{exchange=\"other\",side=\"send\",cause=\"consumer\"}", 1.5),
        (
            "weir_channel_emit_stall_seconds_total{exchange=\"x\",side=\"send\",producer=\"0\",consumer=\"0\",peer=\"b\",\
             cause=\"consumer\"}",
            0.25,
        ),
        ("weir_partition_emit_stall_seconds_total{exchange=\"x\",producer=\"0\",cause=\"consumer\"}", 2.5),
        ("weir_partition_pool_usage_ratio{exchange=\"x\",producer=\"0\"}", 1.25),
        ("weir_send_stall_seconds_bucket{cause=\"consumer\",le=\"0.000002048\"}", 1.0),
        ("weir_send_stall_seconds_bucket{cause=\"consumer\",le=\"0.000008192\"}", 3.0),
        ("weir_send_stall_seconds_bucket{cause=\"consumer\",le=\"34.359738368\"}", 3.0),
        ("weir_send_stall_seconds_bucket{cause=\"consumer\",le=\"+Inf\"}", 5.0),
        ("weir_send_stall_seconds_count{cause=\"consumer\"}", 5.0),
        ("weir_send_stall_seconds_sum{cause=\"consumer\"}", 7.5),
        ("weir_emit_stall_seconds_sum{cause=\"pool\"}", 0.5),
        ("weir_task_seconds_total{task=\"map\",index=\"0\",state=\"busy\"}", 4.0),
        (
            "weir_link_socket_seconds_total{peer=\"b\",shard=\"0\",peer_shard=\"1\",state=\"receive_window\"}",
            2.0,
        ),
        (
            "weir_link_receive_residence_seconds_bucket{peer=\"b\",shard=\"0\",peer_shard=\"1\",le=\"0.000004096\"}",
            1.0,
        ),
        (
            "weir_link_receive_residence_seconds_bucket{peer=\"b\",shard=\"0\",peer_shard=\"1\",le=\"0.000008192\"}",
            3.0,
        ),
        (
            "weir_link_receive_residence_seconds_bucket{peer=\"b\",shard=\"0\",peer_shard=\"1\",le=\"+Inf\"}",
            4.0,
        ),
        ("weir_link_receive_residence_seconds_sum{peer=\"b\",shard=\"0\",peer_shard=\"1\"}", 0.25),
    ] {
        assert_eq!(samples(&text).get(series), Some(&value), "{series}\n{text}");
    }
    assert!(!text.contains("subsystem=\"peers\""), "what is off has no series");
    assert!(!text.contains("task=\"map\",index=\"1\""), "instances of other nodes are told there");
    assert!(!text.contains("state=\"held\""), "what a source does not tell has no series");
    assert!(!text.contains("4242") && !text.contains("7070"), "neither processes nor ports");
}

#[test]
fn what_is_not_known_has_no_series() {
    let mut facts = facts(Vec::new());
    facts.status.links[0].round_trip_min_seconds = None;
    facts.status.links[0].socket = None;
    facts.status.shards.clear();
    facts.stalls.past = None;
    let text = Exporter::new(10).expose(&facts, Format::Prometheus);
    for absent in [
        "weir_send_stall_seconds",
        "weir_emit_stall_seconds",
        "weir_link_round_trip_min_seconds",
        "weir_link_socket_seconds_total",
        "weir_link_receive_residence_seconds",
        "weir_link_zero_windows_total",
        "weir_shard_turns_total",
        "weir_channel_bytes_total",
    ] {
        assert!(!text.contains(absent), "{absent}: {text}");
    }
    assert!(text.contains("weir_channels{side=\"send\"} 0\n"), "none is a number here");
}

#[test]
fn ten_thousand_channels_are_bounded_series_with_the_sums_of_all() {
    let rows: Vec<ChannelRow> = (0..10_000).map(|consumer| row("clicks.by-user", consumer, 1000)).collect();
    let facts = facts(rows);
    let text = Exporter::new(1000).expose(&facts, Format::OpenMetrics);
    assert_eq!(sum(&text, "weir_channel_bytes_total"), 10_000.0 * 1000.0);
    assert_eq!(sum(&text, "weir_channel_records_total"), 10_000.0 * 11.0);
    assert_eq!(sum(&text, "weir_channel_queued_bytes"), 10_000.0 * 98_304.0);
    assert_eq!(sum(&text, "weir_channel_send_stall_seconds_total"), 15_000.0);
    let names = samples(&text).keys().filter(|series| metric(series) == "weir_channel_bytes_total").count();
    assert_eq!(names, 1001);
    assert!(text.len() < 5 << 20, "{} bytes", text.len());
}

#[test]
fn lengths_of_waits_are_few_series_whatever_is_attached() {
    let rows: Vec<ChannelRow> = (0..5_000).map(|consumer| row("clicks", consumer, 10)).collect();
    for rows in [Vec::new(), rows] {
        let mut facts = facts(rows);
        let cause = |cause: Cause| (cause.as_str().to_owned(), serde_json::from_value(past(1.0)).unwrap());
        let all: BTreeMap<String, PastWait> = Cause::ALL.map(cause).into();
        facts.stalls.past = Some(PastWaits { send: all.clone(), emit: all });
        let text = Exporter::new(1000).expose(&facts, Format::OpenMetrics);
        for name in ["weir_send_stall_seconds", "weir_emit_stall_seconds"] {
            let count = samples(&text).keys().filter(|series| metric(series) == name).count();
            // 13 bounds, one without an end, sum and count, for each cause.
            assert_eq!(count, 16 * CAUSES, "{name}");
        }
    }
}

#[test]
fn the_series_of_a_channel_that_has_ended_are_gone() {
    let exporter = Exporter::new(10);
    let both = facts(vec![row("x", 0, 10), row("gone", 0, 5)]);
    assert!(exporter.expose(&both, Format::Prometheus).contains("exchange=\"gone\""));
    let one = facts(vec![row("x", 0, 10)]);
    assert!(!exporter.expose(&one, Format::Prometheus).contains("exchange=\"gone\""));
}

/// A file beside the service files.
fn read(file: &str) -> String {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../systemd").join(file);
    std::fs::read_to_string(path).unwrap()
}

/// Metrics that a file names; those of the series of a histogram are its own.
fn named(file: &str) -> BTreeSet<String> {
    let text = read(file);
    let words = text.split(|character: char| !(character.is_ascii_alphanumeric() || character == '_'));
    let is_histogram = |name: &&str| {
        let histograms = registry::ALL.iter().filter(|metric| metric.kind == registry::Kind::Histogram);
        histograms.map(|metric| metric.name).any(|histogram| histogram == *name)
    };
    let names = words.filter(|word| word.starts_with("weir_"));
    names.map(|word| Some(metric(word)).filter(is_histogram).unwrap_or(word).to_owned()).collect()
}

/// A rule for a bound that no bucket has matches nothing, and nobody notices.
#[test]
fn alerts_name_only_bounds_that_buckets_have() {
    let text = Exporter::new(1).expose(&facts(Vec::new()), Format::Prometheus);
    let rules = read("prometheus/weir.rules.yml");
    let bounds: Vec<&str> = rules.split("le=\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    assert!(!bounds.is_empty());
    for bound in bounds {
        let bucket = format!("weir_send_stall_seconds_bucket{{cause=\"consumer\",le=\"{bound}\"}}");
        assert!(text.contains(&bucket), "{bound}");
    }
}

#[test]
fn dashboard_and_alerts_name_only_metrics_that_there_are() {
    let written: BTreeSet<String> = registry::ALL.iter().map(|metric| metric.name.to_owned()).collect();
    for file in ["grafana/weir.json", "prometheus/weir.rules.yml"] {
        let named = named(file);
        assert!(!named.is_empty(), "{file}");
        assert_eq!(named.difference(&written).collect::<Vec<_>>(), [] as [&String; 0], "{file}");
    }
    let dashboard: serde_json::Value = serde_json::from_str(&read("grafana/weir.json")).unwrap();
    for panel in dashboard["panels"].as_array().unwrap() {
        assert!(panel["description"].as_str().is_some_and(|text| text.ends_with('.')), "{}", panel["title"]);
    }
}
