//! Tasks, channels, links and stalls, a line each. The first line of each table is its title.

use ratatui::text::{Line, Span};

use super::super::reports::{Latest, Reports};
use super::bar::{self, Parts};
use super::{DIM, bytes, fit};
use crate::control::snapshot::{ChannelRow, ChannelSide, LinkRow};
use crate::control::stalls::{CauseTotal, WaitReport};

/// Cells of a bar.
const BAR: usize = 16;

/// Each instance of each task.
pub(super) fn tasks(now: &Reports) -> Vec<Line<'static>> {
    let title = format!(
        "{:<18} {:>5} {:<12} {:<BAR$} {:>4} {:>4} {:>5} {:>5}",
        "task", "index", "node", "", "idle", "busy", "backp", "cpu"
    );
    let mut lines = vec![Line::from(title)];
    for task in &now.tasks.tasks {
        for instance in &task.instances {
            let index = instance.index.map_or("-".to_owned(), |index| index.to_string());
            let mut spans =
                vec![Span::raw(format!("{} {index:>5} {} ", fit(&task.task, 18), fit(&instance.node, 12)))];
            let shown: Option<Parts> = bar::parts(instance);
            match shown {
                Some(parts) => {
                    spans.extend(bar::bar(parts, BAR));
                    let [idle, busy, backpressured] = parts;
                    spans.push(Span::raw(format!(" {idle:>4} {busy:>4} {backpressured:>5}")));
                }
                None => {
                    spans.push(Span::styled(format!("{:BAR$} {:>4} {:>4} {:>5}", "", "-", "-", "-"), DIM))
                }
            }
            let ran = instance.process_ran_ms_per_second.map_or("-".to_owned(), |ran| ran.to_string());
            spans.push(Span::raw(format!(" {ran:>5}")));
            lines.push(Line::from(spans));
        }
    }
    lines
}

/// Growth of a counter in a second; none while there is one look only, or if it began anew.
fn rate(latest: &Latest, now: u64, before: Option<u64>) -> Option<f64> {
    let grown = now.checked_sub(before?)?;
    Some(grown as f64 / latest.seconds()?)
}

fn shown_rate(rate: Option<f64>) -> String {
    rate.map_or("-".to_owned(), |rate| format!("{}/s", bytes(rate)))
}

/// Each end of each channel.
pub(super) fn channels(latest: &Latest) -> Vec<Line<'static>> {
    let Some(now) = &latest.now else { return Vec::new() };
    let title = format!(
        "{:<14} {:<4} {:>7} {:<8} {:>6} {:>7} {:>9} {:>11} {}",
        "exchange", "side", "from>to", "peer", "credit", "backlog", "queued", "rate", "state"
    );
    let mut lines = vec![Line::from(title)];
    let before =
        latest.before.as_ref().map(|reports| reports.channels.channels.as_slice()).unwrap_or_default();
    for row in &now.channels.channels {
        let was = before.iter().find(|was| is_same_channel(was, row)).map(|was| was.bytes_total);
        lines.push(Line::from(channel_line(row, &shown_rate(rate(latest, row.bytes_total, was)))));
    }
    lines
}

fn is_same_channel(a: &ChannelRow, b: &ChannelRow) -> bool {
    (a.side, a.producer, a.consumer, &a.exchange) == (b.side, b.producer, b.consumer, &b.exchange)
}

fn channel_line(row: &ChannelRow, rate: &str) -> String {
    let side = match row.side {
        ChannelSide::Send => "send",
        ChannelSide::Receive => "recv",
    };
    let between = format!("{}>{}", row.producer, row.consumer);
    let peer = if row.peer.is_empty() { "-" } else { &row.peer };
    format!(
        "{} {side:<4} {between:>7} {} {:>6} {:>7} {:>9} {rate:>11} {}",
        fit(&row.exchange, 14),
        fit(peer, 8),
        row.credit,
        row.backlog,
        bytes(row.queued_bytes as f64),
        row.state,
    )
}

/// Each data link.
pub(super) fn links(latest: &Latest) -> Vec<Line<'static>> {
    let Some(now) = &latest.now else { return Vec::new() };
    let title = format!(
        "{:<16} {:>6} {:<12} {:>11} {:>11} {:>7} {:>9}  {}",
        "peer", "shards", "state", "sent", "received", "resumes", "min rtt", "sends by"
    );
    let mut lines = vec![Line::from(title)];
    let before = latest.before.as_ref().map(|reports| reports.status.links.as_slice()).unwrap_or_default();
    for row in &now.status.links {
        let was = before.iter().find(|was| is_same_link(was, row));
        let sent = rate(latest, row.sent_bytes_total, was.map(|was| was.sent_bytes_total));
        let received = rate(latest, row.received_bytes_total, was.map(|was| was.received_bytes_total));
        let shards = format!("{}>{}", row.shard, row.peer_shard);
        let round_trip =
            row.round_trip_min_seconds.map_or("-".to_owned(), |seconds| format!("{:.0} us", seconds * 1e6));
        lines.push(Line::from(format!(
            "{} {shards:>6} {:<12} {:>11} {:>11} {:>7} {round_trip:>9}  {}",
            fit(&row.peer, 16),
            row.state,
            shown_rate(sent),
            shown_rate(received),
            row.resumes_total,
            row.zero_copy.mode,
        )));
    }
    if now.status.links.is_empty() {
        lines.push(Line::from("no data links: no channel goes to another node").style(DIM));
    }
    lines
}

fn is_same_link(a: &LinkRow, b: &LinkRow) -> bool {
    (a.shard, a.peer_shard, &a.peer) == (b.shard, b.peer_shard, &b.peer)
}

/// What waited, the longest first.
pub(super) fn stalls(now: &Reports) -> Vec<Line<'static>> {
    let title = format!(
        "{:<14} {:>7} {:<4} {:>10} {:>7} {}",
        "exchange", "from>to", "kind", "total", "waits", "by cause"
    );
    let mut waits: Vec<(String, String, &str, &WaitReport)> = Vec::new();
    for row in &now.stalls.channels {
        let between = format!("{}>{}", row.producer, row.consumer);
        waits.push((row.exchange.clone(), between.clone(), "send", &row.waits.send));
        waits.push((row.exchange.clone(), between, "emit", &row.waits.emit));
    }
    for row in &now.stalls.partitions {
        waits.push((row.exchange.clone(), format!("{}>*", row.producer), "emit", &row.emit));
    }
    waits.retain(|(.., wait)| wait.seconds_total > 0.0);
    waits.sort_by(|a, b| b.3.seconds_total.total_cmp(&a.3.seconds_total));
    let mut lines = vec![Line::from(title)];
    for (exchange, between, kind, wait) in waits {
        lines.push(Line::from(format!(
            "{} {between:>7} {kind:<4} {:>8.1} s {:>7} {}",
            fit(&exchange, 14),
            wait.seconds_total,
            wait.count_total,
            by_cause(wait),
        )));
    }
    if lines.len() == 1 {
        lines.push(Line::from("nobody has waited").style(DIM));
    }
    lines
}

/// Causes with their seconds, the longest first.
fn by_cause(wait: &WaitReport) -> String {
    let mut causes: Vec<(&String, &CauseTotal)> = wait.by_cause.iter().collect();
    causes.sort_by(|a, b| b.1.seconds_total.total_cmp(&a.1.seconds_total));
    let shown: Vec<String> =
        causes.iter().map(|(cause, total)| format!("{cause} {:.1} s", total.seconds_total)).collect();
    shown.join(", ")
}
