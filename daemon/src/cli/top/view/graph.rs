//! The job graph: each task with how it spends its time, and below it the exchanges that it writes.

use std::collections::BTreeMap;

use ratatui::style::Color;
use ratatui::text::{Line, Span};

use super::super::reports::Reports;
use super::bar::{self, Parts};
use super::{DIM, bytes, fit};
use crate::control::plan::PlanNode;
use crate::control::tasks::{TaskChannel, TaskRole, TaskRow};

/// Cells of a bar.
const BAR: usize = 20;

pub(super) fn lines(now: &Reports) -> Vec<Line<'static>> {
    let title = format!(
        "{:<18} {:>5} {:<BAR$} {:>4} {:>4} {:>5}  {}",
        "task", "x", "", "idle", "busy", "backp", "role"
    );
    let mut lines = vec![Line::from(title)];
    for task in &now.tasks.tasks {
        lines.push(task_line(task));
        let node = now.plan.nodes.iter().find(|node| Some(node.id) == task.id);
        lines.extend(node.into_iter().flat_map(|node| exchanges(now, node)));
    }
    if now.tasks.tasks.is_empty() {
        lines.push(Line::from("no tasks: no program is attached").style(DIM));
    }
    let absent = now
        .tasks
        .missing
        .iter()
        .map(|missing| missing.node.as_str())
        .chain(now.tasks.stale.iter().map(String::as_str));
    let absent: Vec<&str> = absent.collect();
    if !absent.is_empty() {
        lines.push(
            Line::from(format!("not shown, for no news come from there: {}", absent.join(", ")))
                .style(Color::Yellow),
        );
    }
    lines
}

fn task_line(task: &TaskRow) -> Line<'static> {
    let known: Vec<Parts> = task.instances.iter().filter_map(bar::parts).collect();
    let mut spans = vec![Span::raw(format!("{} {:>5} ", fit(&task.task, 18), task.parallelism))];
    match bar::mean(&known) {
        Some(parts) => {
            spans.extend(bar::bar(parts, BAR));
            let [idle, busy, backpressured] = parts;
            spans.push(Span::raw(format!(" {idle:>4} {busy:>4} {backpressured:>5}  ")));
        }
        None => spans.push(Span::styled(format!("{:BAR$} {:>4} {:>4} {:>5}  ", "", "-", "-", "-"), DIM)),
    }
    spans.push(role(task.role));
    Line::from(spans)
}

fn role(role: Option<TaskRole>) -> Span<'static> {
    match role {
        Some(TaskRole::Bottleneck) => Span::styled("bottleneck", Color::Red),
        Some(TaskRole::Victim) => Span::styled("victim", Color::DarkGray),
        Some(TaskRole::Starved) => Span::styled("starved", Color::Blue),
        None => Span::raw(""),
    }
}

/// One line per exchange that this task writes and another reads.
fn exchanges(now: &Reports, writer: &PlanNode) -> Vec<Line<'static>> {
    let mut lines = Vec::new();
    for reader in &now.plan.nodes {
        for edge in reader.predecessors.iter().filter(|edge| edge.id == writer.id) {
            let channels = now.tasks.channels.iter().filter(|channel| channel.exchange == edge.exchange);
            let shown = Exchange::of(channels);
            let what = format!("  > {} ({}) to {}", edge.exchange, edge.ship_strategy, reader.task);
            let waits = match shown.waits {
                Some((cause, ms)) => format!(", waits {ms} ms/s: {cause}"),
                None => String::new(),
            };
            let rate = format!("{}/s, {} records/s{waits}", bytes(shown.bytes as f64), shown.records);
            lines.push(Line::from(format!("{} {rate}", fit(&what, 38))).style(DIM));
        }
    }
    lines
}

/// The channels of one exchange together.
struct Exchange {
    bytes: u64,
    records: u64,
    /// The channel that waits most: its largest cause, and its milliseconds of each second.
    waits: Option<(String, u32)>,
}

impl Exchange {
    fn of<'a>(channels: impl Iterator<Item = &'a TaskChannel>) -> Self {
        let (mut bytes, mut records) = (0_u64, 0_u64);
        let mut waits: BTreeMap<u32, String> = BTreeMap::new();
        for channel in channels {
            bytes = bytes.saturating_add(channel.bytes_per_second);
            records = records.saturating_add(channel.records_per_second);
            let stalls = channel.send_stalled_ms_per_second.iter().filter(|(_, ms)| **ms > 0);
            waits.extend(stalls.map(|(cause, ms)| (*ms, cause.clone())));
        }
        Self { bytes, records, waits: waits.pop_last().map(|(ms, cause)| (cause, ms)) }
    }
}
