//! What the demo shows while it runs: one line per channel, as `weir channels` tells it.

use std::io::{IsTerminal, Write};

use serde_json::Value;

/// Draws over itself on a terminal; elsewhere it prints one line per second and exchange.
pub(crate) struct View {
    is_terminal: bool,
    is_quiet: bool,
    lines_drawn: usize,
}

impl View {
    pub(crate) fn new(is_quiet: bool) -> Self {
        Self { is_terminal: std::io::stderr().is_terminal(), is_quiet, lines_drawn: 0 }
    }

    /// Shows the producers' ends of all channels.
    pub(crate) fn show(&mut self, seconds: f64, phase: &str, rows: &[Value]) {
        if self.is_quiet {
            return;
        }
        let mut lines = vec![format!("{seconds:5.1} s  {phase}")];
        if self.is_terminal {
            lines.push(format!(
                "  {:<10} {:>8} {:>10} {:>7} {:>8} {:>12} {:>12} {:>10}",
                "exchange", "consumer", "state", "credit", "backlog", "queued", "records", "stalled"
            ));
            lines.extend(rows.iter().map(row));
        } else {
            lines.extend(summary_lines(rows));
        }
        let mut error = std::io::stderr().lock();
        let up = if self.is_terminal && self.lines_drawn > 0 {
            format!("\x1b[{}A", self.lines_drawn)
        } else {
            String::new()
        };
        let clear = if self.is_terminal { "\x1b[K" } else { "" };
        // A closed stderr is no reason to stop.
        let _ = write!(error, "{up}");
        for line in &lines {
            let _ = writeln!(error, "{line}{clear}");
        }
        self.lines_drawn = lines.len();
    }
}

/// The producers' ends among the channels of a node.
pub(crate) fn send_ends(channels: &Value) -> Vec<Value> {
    let rows = channels.get("channels").and_then(Value::as_array).cloned().unwrap_or_default();
    rows.into_iter().filter(|row| text(row, "side") == "send").collect()
}

pub(crate) fn text<'a>(row: &'a Value, key: &str) -> &'a str {
    row.get(key).and_then(Value::as_str).unwrap_or("")
}

pub(crate) fn number(row: &Value, key: &str) -> f64 {
    row.get(key).and_then(Value::as_f64).unwrap_or(0.0)
}

fn row(row: &Value) -> String {
    format!(
        "  {:<10} {:>8} {:>10} {:>7} {:>8} {:>9} KiB {:>12} {:>8.1} s",
        text(row, "exchange"),
        number(row, "consumer"),
        text(row, "state"),
        number(row, "credit"),
        number(row, "backlog"),
        number(row, "queued_bytes") as u64 / 1024,
        number(row, "records_total"),
        number(row, "send_stalled_seconds_total"),
    )
}

fn summary_lines(rows: &[Value]) -> Vec<String> {
    let mut names: Vec<&str> = rows.iter().map(|row| text(row, "exchange")).collect();
    names.dedup();
    let line = |name: &&str| {
        let of_exchange = rows.iter().filter(|row| text(row, "exchange") == *name);
        let channels = of_exchange.map(|row| {
            let credit = number(row, "credit");
            format!(
                "{}: {} records, credit {credit}, backlog {}",
                number(row, "consumer"),
                number(row, "records_total"),
                number(row, "backlog")
            )
        });
        format!("  {name}  {}", channels.collect::<Vec<_>>().join(" | "))
    };
    names.iter().map(line).collect()
}
