//! The demo without a scenario: two exchanges over one link, and what flow control does when one consumer is slow and
//! another stops.
//!
//! `words` is a rebalance exchange whose consumer 0 rests 10 ms after every 1,000 records. `keys` is a hash exchange
//! whose consumer 3 is stopped as a process; its producer must wait for it, and nobody else may. When the input ends
//! both are lifted, and every record must have arrived exactly once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::Value;
use weir_bench::cluster::{Cluster, ClusterOptions};

use crate::Arguments;
use crate::corpus::{self, Tally};
use crate::flows::Exchange;
use crate::view::{View, number, send_ends, text};

/// Bound on the regions of each daemon.
pub(crate) const MEMORY_BYTES: u64 = 256 << 20;

/// The slow consumer of `words`.
const SLOW: usize = 0;

/// The stopped consumer of `keys`.
const STOPPED: usize = 3;

/// How often the channels are looked at.
const LOOK: Duration = Duration::from_millis(500);

#[derive(Serialize)]
struct Summary {
    schema_version: u32,
    exchanges: Vec<ExchangeSummary>,
    /// Records per second of `words` while `keys` stood still and had nothing to send.
    words_records_per_second_alone: f64,
    /// The same while a consumer of `keys` was stopped and its producer waited.
    words_records_per_second_beside_stopped: f64,
    memory: Vec<MemorySummary>,
    waits: Vec<Wait>,
    degraded: Vec<String>,
}

#[derive(Serialize)]
struct ExchangeSummary {
    exchange: &'static str,
    sent_records: u64,
    received_records: u64,
    exactly_once: bool,
}

#[derive(Serialize)]
struct MemorySummary {
    node: String,
    high_water_bytes: u64,
    bound_bytes: u64,
}

/// How long one channel waited for credit.
#[derive(Serialize)]
struct Wait {
    exchange: String,
    consumer: u64,
    seconds: f64,
}

/// Runs it, prints what was seen, and fails if a record was lost or came twice.
pub(crate) fn run(arguments: &Arguments) -> Result<(), String> {
    let summary = measure(arguments)?;
    print(&summary, arguments.json)?;
    let lost = summary.exchanges.iter().find(|exchange| !exchange.exactly_once);
    lost.map_or(Ok(()), |exchange| {
        Err(format!("{}: not every record arrived exactly once", exchange.exchange))
    })
}

fn measure(arguments: &Arguments) -> Result<Summary, String> {
    let corpus = Arc::new(corpus::make());
    let cluster = Cluster::start(&ClusterOptions {
        shards: 1,
        memory_bytes: MEMORY_BYTES,
        ..ClusterOptions::default()
    })?;
    let mut observer = Observer {
        cluster: &cluster,
        view: View::new(arguments.json),
        began: Instant::now(),
        waits: BTreeMap::new(),
    };
    let (began, length) = (observer.began, Duration::from_secs(arguments.seconds));

    let mut words = Exchange::start(&cluster, "words", "rebalance")?;
    let mut keys = Exchange::start(&cluster, "keys", "hash")?;
    words.slow(SLOW, true);
    let words_fed = words.feed(&corpus, began + length)?;
    let alone = observer.watch(&words, length / 2, "words: consumer 0 is slow; keys: no input yet")?;

    keys.stop(STOPPED, true);
    let keys_fed = keys.feed(&corpus, began)?;
    let beside = observer.watch(&words, length, "words: consumer 0 is slow; keys: consumer 3 is stopped")?;
    while !words_fed.is_finished() {
        observer.watch(&words, began.elapsed() + LOOK, "the rest of the corpus")?;
    }
    let waits = observer.waits();
    words.slow(SLOW, false);
    keys.stop(STOPPED, false);
    while !keys_fed.is_finished() {
        observer.watch(&words, began.elapsed() + LOOK, "lifted: everything flows")?;
    }

    let status = [cluster.a(), cluster.b()]
        .map(|node| cluster.ask(node, "status").map(|status| (node.name.clone(), status)));
    let exchanges = vec![tally(words_fed, words)?, tally(keys_fed, keys)?];
    let (mut memory, mut degraded) = (Vec::new(), Vec::new());
    for answer in status {
        let (node, status) = answer?;
        degraded.extend(degraded_lines(&node, &status));
        memory.push(memory_summary(node, &status));
    }
    Ok(Summary {
        schema_version: 1,
        exchanges,
        words_records_per_second_alone: alone,
        words_records_per_second_beside_stopped: beside,
        memory,
        waits,
        degraded,
    })
}

/// Looks at the channels, shows them, and remembers how long each has waited.
struct Observer<'a> {
    cluster: &'a Cluster,
    view: View,
    began: Instant,
    /// Seconds that the channel to each consumer of each exchange has waited for credit.
    waits: BTreeMap<(String, u64), f64>,
}

impl Observer<'_> {
    /// Looks until `until` after the beginning; the rate of `exchange` in the second half of that time, when what
    /// changed at its start has settled.
    fn watch(&mut self, exchange: &Exchange, until: Duration, phase: &str) -> Result<f64, String> {
        let total = || exchange.records().iter().sum::<u64>();
        let half = self.began.elapsed() + until.saturating_sub(self.began.elapsed()) / 2;
        let mut window = (Instant::now(), total());
        let mut settled = false;
        while self.began.elapsed() < until {
            if !settled && self.began.elapsed() >= half {
                window = (Instant::now(), total());
                settled = true;
            }
            self.look(phase)?;
            std::thread::sleep(LOOK.min(until.saturating_sub(self.began.elapsed())));
        }
        Ok((total() - window.1) as f64 / window.0.elapsed().as_secs_f64().max(f64::MIN_POSITIVE))
    }

    fn look(&mut self, phase: &str) -> Result<(), String> {
        let rows = send_ends(&self.cluster.ask(self.cluster.a(), "channels")?);
        for row in &rows {
            let channel = (text(row, "exchange").to_owned(), number(row, "consumer") as u64);
            let waited = self.waits.entry(channel).or_default();
            *waited = waited.max(number(row, "send_stalled_seconds_total"));
        }
        self.view.show(self.began.elapsed().as_secs_f64(), phase, &rows);
        Ok(())
    }

    fn waits(&self) -> Vec<Wait> {
        let wait = |((exchange, consumer), seconds): (&(String, u64), &f64)| Wait {
            exchange: exchange.clone(),
            consumer: *consumer,
            seconds: *seconds,
        };
        self.waits.iter().map(wait).collect()
    }
}

fn tally(
    fed: std::thread::JoinHandle<Result<Tally, String>>,
    exchange: Exchange,
) -> Result<ExchangeSummary, String> {
    let name = exchange.name;
    let sent = fed.join().map_err(|_| format!("the feeder of {name} failed"))??;
    let received = exchange.finish()?;
    Ok(ExchangeSummary {
        exchange: name,
        sent_records: sent.records,
        received_records: received.records,
        exactly_once: sent == received,
    })
}

fn memory_summary(node: String, status: &Value) -> MemorySummary {
    let field = |key: &str| status.pointer(&format!("/memory/{key}")).and_then(Value::as_u64).unwrap_or(0);
    MemorySummary { node, high_water_bytes: field("high_water_bytes"), bound_bytes: field("total_bytes") }
}

fn degraded_lines(node: &str, status: &Value) -> Vec<String> {
    let subsystems = status.get("subsystems").and_then(Value::as_array).cloned().unwrap_or_default();
    let degraded = subsystems.iter().filter(|subsystem| text(subsystem, "state") == "degraded");
    degraded
        .map(|subsystem| {
            let (name, reason, fix) =
                (text(subsystem, "name"), text(subsystem, "reason"), text(subsystem, "fix"));
            format!("{node}: {name}: DEGRADED ({reason}; fix: {fix})")
        })
        .collect()
}

fn print(summary: &Summary, json: bool) -> Result<(), String> {
    if json {
        let text = serde_json::to_string_pretty(summary)
            .map_err(|error| format!("cannot write the summary: {error}"))?;
        println!("{text}");
        return Ok(());
    }
    println!();
    for exchange in &summary.exchanges {
        let verdict =
            if exchange.exactly_once { "every record exactly once" } else { "NOT every record exactly once" };
        println!(
            "{:<6} sent {:>9}, received {:>9}: {verdict}",
            exchange.exchange, exchange.sent_records, exchange.received_records
        );
    }
    let (alone, beside) =
        (summary.words_records_per_second_alone, summary.words_records_per_second_beside_stopped);
    println!(
        "words  {alone:.0} records/s alone, {beside:.0} beside the stopped consumer of keys ({:.0} %); its slow consumer sets the pace",
        100.0 * beside / alone
    );
    for memory in &summary.memory {
        let mebibytes = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        println!(
            "memory of {}: at most {:.1} MiB of {:.0} MiB",
            memory.node,
            mebibytes(memory.high_water_bytes),
            mebibytes(memory.bound_bytes)
        );
    }
    println!("channels that waited for credit until the input of words ended:");
    for wait in summary.waits.iter().filter(|wait| wait.seconds >= 0.05) {
        println!("  {:<6} consumer {}: {:.1} s", wait.exchange, wait.consumer, wait.seconds);
    }
    for line in &summary.degraded {
        println!("{line}");
    }
    Ok(())
}
