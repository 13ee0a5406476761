//! Who waits, as `weir channels` tells it: the producers' ends of all channels, looked at while a pipeline runs.

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::Value;
use weir_bench::cluster::Cluster;

use crate::text::grouped;
use crate::view::{number, send_ends, text};

/// How often the channels are looked at.
pub(crate) const LOOK: Duration = Duration::from_millis(250);

/// What was seen of one channel.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct ChannelSeen {
    pub(crate) exchange: String,
    pub(crate) producer: u64,
    pub(crate) consumer: u64,
    /// How long it had a backlog and no credit, in seconds.
    pub(crate) waited_seconds: f64,
    /// In how many looks it had a backlog and no credit.
    pub(crate) looks_waiting: u64,
    /// In how many looks it was there.
    pub(crate) looks: u64,
    /// Its largest backlog, in segments.
    pub(crate) backlog_max: u64,
}

/// Looks at the channels of a pipeline while it runs.
pub(crate) struct Watch<'a> {
    cluster: Option<&'a Cluster>,
    /// The exchange whose progress is shown, and how many records it is to carry.
    input: (&'static str, u64),
    /// Whether progress is shown: on a terminal, unless only a summary is wanted.
    is_shown: bool,
    began: Instant,
    channels: BTreeMap<(String, u64, u64), ChannelSeen>,
}

impl<'a> Watch<'a> {
    pub(crate) fn new(cluster: &'a Cluster, input: (&'static str, u64), is_quiet: bool) -> Self {
        let is_shown = !is_quiet && std::io::stderr().is_terminal();
        Self { cluster: Some(cluster), input, is_shown, began: Instant::now(), channels: BTreeMap::new() }
    }

    /// One that sees nothing.
    #[cfg(test)]
    pub(crate) fn of_nothing() -> Self {
        Self {
            cluster: None,
            input: ("", 0),
            is_shown: false,
            began: Instant::now(),
            channels: BTreeMap::new(),
        }
    }

    /// Looks once.
    pub(crate) fn look(&mut self) -> Result<(), String> {
        let Some(cluster) = self.cluster else { return Ok(()) };
        let mut carried = 0;
        for node in [cluster.a(), cluster.b()] {
            for row in send_ends(&cluster.ask(node, "channels")?) {
                if text(&row, "exchange") == self.input.0 {
                    carried += number(&row, "records_total") as u64;
                }
                self.see(&row);
            }
        }
        self.show(&format!(
            "{:5.1} s  {} of {} {} carried",
            self.began.elapsed().as_secs_f64(),
            grouped(carried),
            grouped(self.input.1),
            self.input.0
        ));
        Ok(())
    }

    fn see(&mut self, row: &Value) {
        let (producer, consumer) = (number(row, "producer") as u64, number(row, "consumer") as u64);
        let exchange = text(row, "exchange").to_owned();
        let seen = self.channels.entry((exchange.clone(), producer, consumer)).or_default();
        let (credit, backlog) = (number(row, "credit") as u64, number(row, "backlog") as u64);
        *seen = ChannelSeen {
            exchange,
            producer,
            consumer,
            waited_seconds: seen.waited_seconds.max(number(row, "send_stalled_seconds_total")),
            looks_waiting: seen.looks_waiting + u64::from(credit == 0 && backlog > 0),
            looks: seen.looks + 1,
            backlog_max: seen.backlog_max.max(backlog),
        };
    }

    /// Draws over the line before.
    fn show(&self, line: &str) {
        if self.is_shown {
            // A closed standard error is no reason to stop.
            let _ = write!(std::io::stderr(), "\r\x1b[K{line}");
        }
    }

    /// What was seen, and no progress line any more.
    pub(crate) fn finish(self) -> Vec<ChannelSeen> {
        self.show("");
        self.channels.into_values().collect()
    }
}

/// How long the channel to this consumer waited, all producers together; in seconds.
pub(crate) fn waited(channels: &[ChannelSeen], exchange: &str, consumer: u32) -> f64 {
    let to_consumer = channels
        .iter()
        .filter(|channel| channel.exchange == exchange && channel.consumer == u64::from(consumer));
    to_consumer.map(|channel| channel.waited_seconds).sum()
}

/// The channels of an exchange, a line each.
pub(crate) fn table(channels: &[ChannelSeen], exchange: &str) -> Vec<String> {
    let head = format!("{:<18} {:>8} {:>12} {:>12}", "channel", "waited", "no credit", "backlog max");
    let line = |seen: &ChannelSeen| {
        format!(
            "{:<18} {:>6.1} s {:>12} {:>12}",
            format!("{} {} > {}", seen.exchange, seen.producer, seen.consumer),
            seen.waited_seconds,
            format!("{} of {}", seen.looks_waiting, seen.looks),
            seen.backlog_max
        )
    };
    let of_exchange = channels.iter().filter(|seen| seen.exchange == exchange);
    std::iter::once(head).chain(of_exchange.map(line)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::COLUMNS;
    use serde_json::json;

    fn row(credit: u64, backlog: u64, waited: f64) -> Value {
        json!({ "exchange": "documents", "producer": 0, "consumer": 3, "credit": credit, "backlog": backlog,
                "send_stalled_seconds_total": waited })
    }

    #[test]
    fn a_channel_waits_when_it_has_a_backlog_and_no_credit() {
        let mut watch = Watch::of_nothing();
        for row in [row(0, 5, 0.5), row(2, 9, 0.5), row(0, 0, 0.5), row(0, 1, 1.25)] {
            watch.see(&row);
        }
        let seen = watch.finish();
        assert_eq!(seen.len(), 1);
        assert_eq!((seen[0].looks_waiting, seen[0].looks, seen[0].backlog_max), (2, 4, 9));
        assert!((waited(&seen, "documents", 3) - 1.25).abs() < 1e-9);
        assert!(waited(&seen, "documents", 0).abs() < 1e-9);
        assert!(waited(&seen, "results", 3).abs() < 1e-9);
        let lines = table(&seen, "documents");
        assert_eq!(lines.len(), 2);
        assert!(lines[1].starts_with("documents 0 > 3 ") && lines[1].contains("2 of 4"), "{lines:?}");
        assert!(lines.iter().all(|line| line.len() <= COLUMNS - 5));
    }
}
