//! `weir stalls`: who waits on a node, for how long, and why.

use std::io::{self, IsTerminal, Write};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::{Args, ValueEnum};
use weir_flow::stall::{Cause, STALL_BUCKETS};

use super::RunDirArgs;
use super::output::{self, Align, Output};
use crate::control::client;
use crate::control::snapshot;
use crate::control::stalls::{StallsReport, WaitEnded, WaitReport};
use crate::exit::{Exit, Problem};

/// Time between two looks with `--watch`.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// Levels of a sparkline, the lowest first, where the terminal shows them.
const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Levels of a sparkline where it does not.
const MARKS: [char; 8] = ['.', ':', '-', '=', '+', '*', '#', '@'];

/// Buckets of lengths in one place of a sparkline.
const BUCKETS_PER_PLACE: usize = 2;

/// Show who waits, for how long, and why.
///
/// A send stall: something is queued for a channel and nothing of it is sent. An emit stall: a producer's application waits
/// for a segment, or for a place for an event. Each wait has one cause at a time: consumer (its application holds the
/// segments, or it has not come), network (the path, or a lost link), shard (a daemon's thread has not come to it), socket
/// (the send of its link is in the kernel), event (the event window is used up), pool (the producer's pool is too small).
/// Times are since the channel began, the wait that goes on included.
///
/// LENGTHS counts the waits that have ended, from 1 us on the left to 69 s on the right; each place holds waits four
/// times as long as the one before.
///
/// Exit codes: 0 all are shown, 3 a shard does not answer and what it has is missing, 4 no daemon answers.
#[derive(Args, Debug)]
pub(super) struct StallsArgs {
    #[command(flatten)]
    daemon: RunDirArgs,
    /// What to add waits up by.
    #[arg(long, value_enum, default_value_t)]
    by: By,
    /// Show them again every second until interrupted.
    #[arg(long)]
    watch: bool,
    /// Form of the output. JSON has all of it, whatever `--by` says; with `--watch` one object per line.
    #[arg(long, value_enum, default_value_t)]
    output: Output,
}

/// What one row stands for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum By {
    /// A channel, and what belongs to no single channel of a producer.
    #[default]
    Channel,
    /// A data link, with the channels that it carries.
    Link,
    /// A cause.
    Cause,
}

pub(super) fn run(arguments: &StallsArgs) -> Result<Exit, Problem> {
    let marks = if shows_blocks(|name| std::env::var(name).ok()) { BLOCKS } else { MARKS };
    let is_redrawn = arguments.watch && io::stdout().is_terminal();
    loop {
        let report: StallsReport = client::get(&arguments.daemon.run_dir, "/v1/stalls")?;
        let mut text = match arguments.output {
            Output::Json => json(&report)?,
            Output::Table => table(&report, arguments.by, &marks, now_unix_seconds()),
        };
        match (arguments.output, is_redrawn) {
            (Output::Table, true) => text.insert_str(0, "\x1b[H\x1b[2J"),
            // Two tables in a file are told apart.
            (Output::Table, false) if arguments.watch => text.push('\n'),
            _ => {}
        }
        if !write(&text)? || !arguments.watch {
            return Ok(if report.shards_missing.is_empty() { Exit::Ok } else { Exit::Degraded });
        }
        thread::sleep(WATCH_INTERVAL);
    }
}

/// Writes to standard output. Whether somebody still reads it.
fn write(text: &str) -> Result<bool, Problem> {
    match output::standard_output()?.write_all(text.as_bytes()) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(e) => Err(output::write_problem(&e)),
    }
}

fn json(report: &StallsReport) -> Result<String, Problem> {
    let text = serde_json::to_string(report)
        .map_err(|e| Problem::new(Exit::Failed, "cannot write JSON").found(e.to_string()))?;
    Ok(text + "\n")
}

fn now_unix_seconds() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// Whether the locale and the terminal have block characters. `of` looks an environment variable up.
fn shows_blocks(of: impl Fn(&str) -> Option<String>) -> bool {
    let set = |name: &&str| of(name).filter(|value| !value.is_empty());
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].iter().find_map(set).unwrap_or_default();
    let locale = locale.to_ascii_lowercase().replace('-', "");
    let has_glyphs = !matches!(of("TERM").as_deref(), Some("linux" | "dumb"));
    locale.contains("utf8") && has_glyphs
}

/// One row: what it stands for, its kind, its waits.
struct Row<'a> {
    names: Vec<String>,
    kind: &'static str,
    waits: &'a WaitReport,
}

fn table(report: &StallsReport, by: By, marks: &[char; 8], now: f64) -> String {
    let mut text = match by {
        By::Channel => rows(&["exchange", "producer", "consumer", "peer"], channel_rows(report), marks, now),
        By::Link => rows(&["peer", "shards", "state", "channels"], link_rows(report), marks, now),
        By::Cause => cause_table(report),
    };
    if by == By::Link {
        text.push_str(&socket_table(report));
    }
    if by == By::Channel && report.channels.iter().any(|row| row.approximate) {
        text.push_str("approximate: how long credit lay unread is not known, and counts for the consumer\n");
    }
    if let Some(missing) = snapshot::unanswered(&report.shards_missing) {
        text.push_str(&format!("{missing} stalls are not shown\n"));
    }
    text
}

fn channel_rows(report: &StallsReport) -> Vec<Row<'_>> {
    let mut rows = Vec::new();
    for row in &report.channels {
        let names = || {
            let peer = if row.peer.is_empty() { "-".to_owned() } else { row.peer.clone() };
            let (producer, consumer) = (
                format!("{}/{}", row.producer, row.producers),
                format!("{}/{}", row.consumer, row.consumers),
            );
            vec![row.exchange.clone(), producer, consumer, peer]
        };
        rows.push(Row { names: names(), kind: "send", waits: &row.waits.send });
        rows.push(Row { names: names(), kind: "emit", waits: &row.waits.emit });
    }
    for row in &report.partitions {
        let producer = format!("{}/{}", row.producer, row.producers);
        let names = vec![row.exchange.clone(), producer, "all".to_owned(), "-".to_owned()];
        rows.push(Row { names, kind: "emit", waits: &row.emit });
    }
    rows
}

fn link_rows(report: &StallsReport) -> Vec<Row<'_>> {
    let rows = report.links.iter().map(|row| {
        let crate::control::stalls::LinkStalls { link, channels, send } = row;
        let shards = format!("{}-{}", link.shard, link.peer_shard);
        let names = vec![link.peer.clone(), shards, link.state.clone(), channels.to_string()];
        Row { names, kind: "send", waits: send }
    });
    rows.collect()
}

/// What the sockets of links waited for, of those of which it is known: a table of its own.
fn socket_table(report: &StallsReport) -> String {
    let known = report.links.iter().filter_map(|row| Some((&row.link, row.link.socket.as_deref()?)));
    let cells: Vec<Vec<String>> = known
        .map(|(link, socket)| {
            let time = |seconds: Option<f64>| seconds.map_or_else(|| "-".to_owned(), length);
            let count = |count: Option<u64>| count.map_or_else(|| "-".to_owned(), |count| count.to_string());
            vec![
                link.peer.clone(),
                format!("{}-{}", link.shard, link.peer_shard),
                socket.state.clone().unwrap_or_else(|| "-".to_owned()),
                time(socket.idle_seconds_total),
                time(socket.flight_seconds_total),
                time(socket.held_seconds_total),
                time(socket.congestion_window_seconds_total),
                time(socket.receive_window_seconds_total),
                time(socket.send_buffer_seconds_total),
                time(socket.unwritable_seconds_total),
                count(socket.send_queue_bytes),
                count(socket.receive_queue_bytes),
                count(socket.retransmitted_segments_total),
                if socket.approximate { "approximate" } else { "probes" }.to_owned(),
            ]
        })
        .collect();
    if cells.is_empty() {
        return String::new();
    }
    let right =
        ["idle", "flight", "held", "cwnd", "rwnd", "sndbuf", "unwritable", "unsent", "unread", "resent"];
    let mut head = vec![("peer", Align::Left), ("shards", Align::Left), ("socket", Align::Left)];
    head.extend(right.map(|name| (name, Align::Right)));
    head.push(("seen by", Align::Left));
    format!("\n{}", output::table(&head, &cells))
}

/// The rows that have waits, the longest first.
fn rows(heads: &[&'static str], mut rows: Vec<Row<'_>>, marks: &[char; 8], now: f64) -> String {
    rows.retain(|row| row.waits.seconds_total > 0.0 || row.waits.count_total > 0);
    if rows.is_empty() {
        return "no stalls\n".to_owned();
    }
    rows.sort_by(|a, b| b.waits.seconds_total.total_cmp(&a.waits.seconds_total));
    let mut head: Vec<(&str, Align)> = heads.iter().map(|name| (*name, Align::Left)).collect();
    head.extend([
        ("kind", Align::Left),
        ("waited", Align::Right),
        ("count", Align::Right),
        ("causes", Align::Left),
        ("lengths", Align::Left),
        ("last", Align::Left),
        ("longest", Align::Left),
        ("now", Align::Left),
    ]);
    let cells: Vec<Vec<String>> = rows
        .into_iter()
        .map(|row| {
            let Row { mut names, kind, waits } = row;
            let now_waits = waits.open.as_ref();
            names.extend([
                kind.to_owned(),
                length(waits.seconds_total),
                waits.count_total.to_string(),
                causes(waits),
                sparkline(&waits.length_buckets, marks),
                ended(waits.last.as_ref(), now),
                ended(waits.longest.as_ref(), now),
                now_waits.map_or_else(
                    || "-".to_owned(),
                    |open| format!("{} {}", length(open.seconds), open.cause),
                ),
            ]);
            names
        })
        .collect();
    output::table(&head, &cells)
}

fn cause_table(report: &StallsReport) -> String {
    let waits = &report.node_total;
    let mut cells = Vec::new();
    for cause in Cause::ALL.map(Cause::as_str) {
        let of = |waits: &WaitReport| waits.by_cause.get(cause).copied();
        let (send, emit) = (of(&waits.send), of(&waits.emit));
        if send.is_none() && emit.is_none() {
            continue;
        }
        let mut row = vec![cause.to_owned()];
        for (total, all) in [(send, &waits.send), (emit, &waits.emit)] {
            let total = total.unwrap_or_default();
            row.push(length(total.seconds_total));
            row.push(share(total.seconds_total, all.seconds_total));
            row.push(total.count_total.to_string());
        }
        cells.push(row);
    }
    if cells.is_empty() {
        return "no stalls\n".to_owned();
    }
    let head = [
        ("cause", Align::Left),
        ("send", Align::Right),
        ("share", Align::Right),
        ("count", Align::Right),
        ("emit", Align::Right),
        ("share", Align::Right),
        ("count", Align::Right),
    ];
    output::table(&head, &cells)
}

fn share(part: f64, whole: f64) -> String {
    if whole > 0.0 { format!("{:.0}%", 100.0 * part / whole) } else { "-".to_owned() }
}

/// The causes with the most time, up to three, with their shares.
fn causes(waits: &WaitReport) -> String {
    let mut causes: Vec<(&str, f64)> =
        waits.by_cause.iter().map(|(name, total)| (name.as_str(), total.seconds_total)).collect();
    causes.sort_by(|a, b| b.1.total_cmp(&a.1));
    let words: Vec<String> = causes
        .iter()
        .take(3)
        .map(|(name, seconds)| format!("{name} {}", share(*seconds, waits.seconds_total)))
        .collect();
    words.join(" ")
}

fn ended(ended: Option<&WaitEnded>, now: f64) -> String {
    let Some(ended) = ended else { return "-".to_owned() };
    let ago = (now - ended.ended_unix_seconds).max(0.0);
    format!("{} {}, {} ago", length(ended.seconds), ended.cause, length(ago))
}

/// A length of time with three digits at most, or whole seconds.
fn length(seconds: f64) -> String {
    let (value, unit) = match seconds {
        s if s >= 1.0 => (s, "s"),
        s if s >= 1e-3 => (s * 1e3, "ms"),
        s => (s * 1e6, "us"),
    };
    match value {
        v if v >= 99.95 => format!("{v:.0} {unit}"),
        v => format!("{v:.1} {unit}"),
    }
}

/// One character for each pair of buckets, as high as it has waits compared with the fullest; a space for none.
fn sparkline(buckets: &[u64], marks: &[char; 8]) -> String {
    let places = STALL_BUCKETS.div_ceil(BUCKETS_PER_PLACE);
    let mut counts: Vec<u64> = buckets.chunks(BUCKETS_PER_PLACE).map(|pair| pair.iter().sum()).collect();
    counts.resize(places, 0);
    let most = counts.iter().copied().max().unwrap_or(0);
    let mark = |count: u64| {
        if count == 0 {
            return ' ';
        }
        let steps = marks.len() as u64;
        // From 1 to the number of steps.
        let level = (u128::from(count) * u128::from(steps)).div_ceil(u128::from(most.max(1)));
        usize::try_from(level)
            .ok()
            .and_then(|level| marks.get(level.saturating_sub(1)))
            .copied()
            .unwrap_or(' ')
    };
    counts.into_iter().map(mark).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::control::snapshot::SCHEMA_VERSION;
    use crate::control::stalls::{CauseTotal, ChannelStalls, PartitionStalls, WaitOpen, Waits};

    fn waits(seconds: f64, cause: &str) -> WaitReport {
        let mut length_buckets = vec![0; STALL_BUCKETS];
        (length_buckets[0], length_buckets[11], length_buckets[27]) = (1, 8, 4);
        let ended = WaitEnded { seconds: 0.0125, cause: cause.to_owned(), ended_unix_seconds: 990.0 };
        WaitReport {
            seconds_total: seconds,
            count_total: 13,
            by_cause: BTreeMap::from([
                (cause.to_owned(), CauseTotal { seconds_total: seconds * 0.75, count_total: 13 }),
                ("socket".to_owned(), CauseTotal { seconds_total: seconds * 0.25, count_total: 0 }),
            ]),
            length_buckets,
            last: Some(ended.clone()),
            longest: Some(WaitEnded { seconds: 70.0, ..ended }),
            open: Some(WaitOpen { seconds: 0.25, cause: cause.to_owned() }),
        }
    }

    fn report() -> StallsReport {
        let channel = |consumer, seconds, approximate| ChannelStalls {
            exchange: "edge".into(),
            producer: 0,
            producers: 1,
            consumer,
            consumers: 2,
            peer: "b".into(),
            shard: 0,
            state: "open".into(),
            approximate,
            waits: Waits { send: waits(seconds, "consumer"), emit: WaitReport::default() },
        };
        let partition = PartitionStalls {
            exchange: "edge".into(),
            producer: 0,
            producers: 1,
            shard: 0,
            emit: waits(4.0, "pool"),
            pool_usage: 1.25,
            quota_usage: 0.5,
        };
        StallsReport {
            schema_version: SCHEMA_VERSION,
            node: "a".into(),
            length_bucket_ends_seconds: Vec::new(),
            node_total: Waits { send: waits(10.0, "consumer"), emit: waits(4.0, "pool") },
            channels: vec![channel(0, 2.0, false), channel(1, 8.0, false)],
            partitions: vec![partition],
            links: Vec::new(),
            past: None,
            shards_missing: Vec::new(),
        }
    }

    #[test]
    fn the_sample_of_the_page_is_what_is_printed() {
        let mut report = report();
        (report.partitions, report.channels) = (Vec::new(), report.channels.split_off(1));
        let text = table(&report, By::Channel, &BLOCKS, 1000.0);
        assert!(include_str!("../../../docs/operations.md").contains(text.trim_end()), "{text}");
    }

    #[test]
    fn who_waited_longest_comes_first_and_who_did_not_is_left_out() {
        let text = table(&report(), By::Channel, &BLOCKS, 1000.0);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 4, "{text}");
        let starts =
            ["EXCHANGE", "edge      0/1       1/2", "edge      0/1       all", "edge      0/1       0/2"];
        for (line, start) in lines.iter().zip(starts) {
            assert!(line.starts_with(start), "{line}");
        }
        for word in [
            "8.0 s",
            "consumer 75% socket 25%",
            "▁    █       ▄",
            "12.5 ms consumer, 10.0 s ago",
            "250 ms consumer",
        ] {
            assert!(lines[1].contains(word), "{word}: {}", lines[1]);
        }
    }

    #[test]
    fn causes_have_their_shares_of_each_kind() {
        let text = table(&report(), By::Cause, &BLOCKS, 1000.0);
        let cells: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(cells[1], ["consumer", "7.5", "s", "75%", "13", "0.0", "us", "0%", "0"], "{text}");
        assert_eq!(cells[2], ["socket", "2.5", "s", "25%", "0", "1.0", "s", "25%", "0"], "{text}");
        assert_eq!(cells[3], ["pool", "0.0", "us", "0%", "0", "3.0", "s", "75%", "13"], "{text}");
    }

    #[test]
    fn sockets_are_shown_by_link_with_what_is_known_of_them() {
        let mut report = report();
        let socket = crate::control::sockets::SocketRow {
            approximate: true,
            state: Some("receive_window".to_owned()),
            receive_window_seconds_total: Some(2.5),
            retransmitted_segments_total: Some(3),
            ..Default::default()
        };
        let link = serde_json::json!({
            "peer": "b", "shard": 0, "peer_shard": 1, "state": "established", "sent_bytes_total": 1,
            "received_bytes_total": 1, "short_writes_total": 0, "resumes_total": 0, "resent_bytes_total": 0,
            "skipped_frames_total": 0, "round_trip_min_seconds": null, "socket": socket,
        });
        let link = serde_json::from_value(link).unwrap();
        let send = waits(2.0, "consumer");
        report.links.push(crate::control::stalls::LinkStalls { link, channels: 2, send });
        let text = table(&report, By::Link, &MARKS, 1000.0);
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(&lines[1][..6], ["b", "0-1", "established", "2", "send", "2.0"], "{text}");
        let socket = [
            "b",
            "0-1",
            "receive_window",
            "-",
            "-",
            "-",
            "-",
            "2.5",
            "s",
            "-",
            "-",
            "-",
            "-",
            "3",
            "approximate",
        ];
        assert_eq!(lines[4], socket, "{text}");
    }

    #[test]
    fn what_is_missing_or_guessed_is_said() {
        let mut report = report();
        report.channels[0].approximate = true;
        report.shards_missing = vec![1];
        let text = table(&report, By::Channel, &MARKS, 1000.0);
        assert!(text.contains("approximate: "), "{text}");
        assert!(text.ends_with("shard 1 did not answer within 2s: its stalls are not shown\n"), "{text}");
        assert!(text.is_ascii(), "{text}");
        report.channels.clear();
        report.partitions.clear();
        assert!(table(&report, By::Channel, &MARKS, 1000.0).starts_with("no stalls\n"));
        assert!(table(&report, By::Link, &MARKS, 1000.0).starts_with("no stalls\n"));
    }

    #[test]
    fn a_sparkline_is_as_high_as_its_fullest_place_and_always_as_wide() {
        assert_eq!(sparkline(&[], &BLOCKS), " ".repeat(14));
        let mut buckets = vec![0; STALL_BUCKETS];
        (buckets[0], buckets[1], buckets[2], buckets[27]) = (1, 1, u64::MAX / 2, 1);
        assert_eq!(sparkline(&buckets, &MARKS), format!(".@{}.", " ".repeat(11)));
        // More than a report can have, as from another version.
        assert_eq!(sparkline(&[1; 40], &MARKS).chars().count(), 14);
    }

    #[test]
    fn blocks_are_for_terminals_that_have_them() {
        let with = |set: &[(&str, &str)]| {
            let set: BTreeMap<String, String> =
                set.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            shows_blocks(|name| set.get(name).cloned())
        };
        assert!(with(&[("LANG", "de_DE.UTF-8")]));
        assert!(with(&[("LC_ALL", ""), ("LANG", "C.utf8"), ("TERM", "xterm")]));
        assert!(!with(&[("LC_ALL", "C"), ("LANG", "de_DE.UTF-8")]));
        assert!(!with(&[("LANG", "C.UTF-8"), ("TERM", "linux")]));
        assert!(!with(&[("LANG", "C.UTF-8"), ("TERM", "dumb")]));
        assert!(!with(&[]));
    }

    #[test]
    fn lengths_have_few_digits() {
        let all = [
            (0.0, "0.0 us"),
            (1.5e-6, "1.5 us"),
            (0.0125, "12.5 ms"),
            (0.25, "250 ms"),
            (75.0, "75.0 s"),
            (3600.0, "3600 s"),
        ];
        for (seconds, text) in all {
            assert_eq!(length(seconds), text);
        }
    }
}
