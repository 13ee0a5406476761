//! The screen: a head with the verdict, one view below it, and the keys.

mod bar;
mod graph;
mod tables;

#[cfg(test)]
mod tests;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

use super::reports::{Latest, Reports};
use super::state::{State, View};
use crate::control::bottleneck::BottleneckReport;
use crate::observe::verdict::VerdictKind;

/// What the keys do.
const HELP: [&str; 14] = [
    "1 to 5, Tab     choose a view: graph, tasks, channels, links, stalls",
    "Up, Down        scroll by a line (also k, j)",
    "Page Up, Down   scroll by a page (also Space)",
    "Home, End       to the first and the last line",
    "p               stop looking, and look again",
    "q, Esc, Ctrl-C  end",
    "",
    "Times are milliseconds of each second, of the last second:",
    "  idle           waiting for input",
    "  busy           working, or waiting for something outside of Weir",
    "  backpressured  waiting for room at its output",
    "A task that is backpressured is held up by another one further down: `bottleneck` above names it.",
    "Channels, links and stalls are those of the node that is asked; graph and tasks are of all nodes that",
    "it is linked with.",
];

/// Draws the whole screen, however small it is.
pub(super) fn draw(frame: &mut Frame<'_>, state: &mut State, latest: &Latest) {
    let Some(now) = &latest.now else { return };
    let [head, verdict, tabs, body, keys] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(2),
        Constraint::Length(1),
        Constraint::Min(0),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    frame.render_widget(head_line(now, state, latest), head);
    frame.render_widget(Paragraph::new(verdict_lines(&now.bottleneck)), verdict);
    frame.render_widget(tab_line(state.view), tabs);
    frame.render_widget(Line::from("1-5 view  arrows scroll  p pause  ? help  q quit").style(DIM), keys);
    if state.shows_help {
        frame.render_widget(Paragraph::new(HELP.map(Line::from).to_vec()), body);
        return;
    }
    let lines = match state.view {
        View::Graph => graph::lines(now),
        View::Tasks => tables::tasks(now),
        View::Channels => tables::channels(latest),
        View::Links => tables::links(latest),
        View::Stalls => tables::stalls(now),
    };
    draw_lines(frame, state, lines, body);
}

/// Dim text: frames and units.
const DIM: Style = Style::new().add_modifier(Modifier::DIM);

/// What a column is called.
const TITLE: Style = Style::new().add_modifier(Modifier::BOLD);

/// The first line is the title of what follows, which scrolls below it.
fn draw_lines(frame: &mut Frame<'_>, state: &mut State, mut lines: Vec<Line<'static>>, area: Rect) {
    if lines.is_empty() || area.height == 0 {
        return state.set_lines(0, 0);
    }
    let title = lines.remove(0).style(TITLE);
    let [top, rest] = Layout::vertical([Constraint::Length(1), Constraint::Min(0)]).areas(area);
    frame.render_widget(title, top);
    state.set_lines(lines.len(), usize::from(rest.height));
    let shown: Vec<Line<'_>> =
        lines.into_iter().skip(state.scrolled).take(usize::from(rest.height)).collect();
    frame.render_widget(Paragraph::new(shown), rest);
}

fn head_line(now: &Reports, state: &State, latest: &Latest) -> Line<'static> {
    let status = &now.status;
    let degraded =
        status.subsystems.iter().filter(|line| line.state == crate::control::snapshot::Health::Degraded);
    let degraded: Vec<&str> = degraded.map(|line| line.name.as_str()).collect();
    let mut spans = vec![
        Span::styled(format!("weir top: node {}", status.node), TITLE),
        Span::raw(format!(", up {}", duration(status.uptime_seconds))),
    ];
    match degraded.as_slice() {
        [] => spans.push(Span::raw(", all OK")),
        names => spans.push(Span::styled(format!(", DEGRADED {}", names.join(" ")), Color::Yellow)),
    }
    if state.is_paused {
        spans.push(Span::styled("  paused", Color::Yellow));
    }
    if let Some(problem) = &latest.problem {
        let old = now.at.elapsed().as_secs();
        spans.push(Span::styled(format!("  {old} s old: {problem}"), Color::Red));
    }
    Line::from(spans)
}

/// The verdict and what helps; in words, so that it stands without colours.
fn verdict_lines(report: &BottleneckReport) -> Vec<Line<'static>> {
    let verdict = &report.verdict;
    let style = match verdict.verdict {
        VerdictKind::Bottleneck => Style::from(Color::Red),
        VerdictKind::NoBottleneck => Style::from(Color::Green),
        VerdictKind::NotEnoughData => DIM,
    };
    let first = Line::from(Span::styled(format!("bottleneck: {}", verdict.summary), style));
    let second = match verdict.bottlenecks.first() {
        Some(worst) => format!("{} confidence. {}", worst.confidence.as_str(), worst.remedy),
        None => verdict.lacks.first().cloned().unwrap_or_default(),
    };
    vec![first, Line::from(second).style(DIM)]
}

fn tab_line(shown: View) -> Line<'static> {
    let mut spans = Vec::new();
    for (at, view) in View::ALL.into_iter().enumerate() {
        let style = if view == shown { Style::new().add_modifier(Modifier::REVERSED) } else { DIM };
        spans.push(Span::styled(format!(" {} {} ", at + 1, view.title()), style));
        spans.push(Span::raw(" "));
    }
    Line::from(spans)
}

/// A length of time in the two largest units that it has.
fn duration(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds / 3600 % 24),
    }
}

/// A rate or size of bytes with a unit, in at most 9 characters.
fn bytes(count: f64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (mut value, mut at) = (count, 0);
    while value >= 1000.0 && at + 1 < units.len() {
        value /= 1024.0;
        at += 1;
    }
    let unit = units.get(at).copied().unwrap_or("B");
    if at == 0 || value >= 100.0 { format!("{value:.0} {unit}") } else { format!("{value:.1} {unit}") }
}

/// `text` in exactly `width` columns, cut with a sign that it was.
fn fit(text: &str, width: usize) -> String {
    let count = text.chars().count();
    if count <= width {
        return format!("{text:<width$}");
    }
    let mut cut: String = text.chars().take(width.saturating_sub(1)).collect();
    if width > 0 {
        cut.push('~');
    }
    cut
}
