//! The scenarios, one file each, and what they share: a window over running processes.

pub mod debloat;
pub mod hash_skew;
pub mod idle;
pub mod isolation;
pub mod latency;
mod list;
pub mod local;
pub mod peers;
pub mod priority;
pub mod probes;
pub mod rebalance;
pub mod resume;
pub mod scale;
pub mod scrape;
pub mod selection;
pub mod throughput;
pub mod trickle;
pub mod zero_copy;

pub use list::{SCENARIOS, Scenario};

use std::time::{Duration, Instant};

use crate::app::{self, App, Counts, Role};
use crate::choice::Choice;
use crate::cluster::{Cluster, ClusterOptions, Node};
use crate::pipeline::{Activity, ConsumerOptions, Layout, ProducerOptions};
use crate::quiet::Notes;
use crate::report::Case;
use crate::statistics::percentile;
use crate::usage;

/// What a scenario is run with.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Rounds of each case, interleaved with the baseline.
    pub rounds: u32,
    /// Length of one measured window.
    pub window: Duration,
    /// Shards of each daemon.
    pub shards: u32,
    /// Congestion control of links and baseline.
    pub congestion: Option<String>,
    /// What became of the rounds, and what could not be measured.
    pub notes: Notes,
}

impl Settings {
    /// Runs `round` once for every round; what the quiet ones found. `name` is that of the scenario or of a part of it.
    fn every_round<T>(
        &self,
        name: &str,
        round: impl FnMut(u32) -> Result<T, String>,
    ) -> Result<Vec<T>, String> {
        self.notes.run_rounds(name, self.rounds, round)
    }

    /// A cluster as these settings want it, whose daemons may use this much memory for regions, in bytes.
    fn cluster(&self, memory_bytes: u64) -> ClusterOptions {
        ClusterOptions {
            shards: self.shards,
            memory_bytes,
            congestion: self.congestion.clone(),
            ..ClusterOptions::default()
        }
    }
}

/// An exchange to be run: its name, layout and records.
#[derive(Clone, Debug)]
struct Workload {
    exchange: String,
    layout: Layout,
    record_bytes: usize,
    /// How producers choose the consumer of a record.
    choice: Choice,
    /// With a key: so many percent of the records have the same one.
    hot_key_percent: u64,
    /// What producers do.
    activity: Activity,
    /// Compare every byte that is read, and watch the pauses between records.
    compared: bool,
    /// Keep no more in flight to the consumers than they consume in a second.
    debloated: bool,
}

impl Workload {
    fn new(exchange: impl Into<String>, layout: Layout, record_bytes: usize) -> Self {
        Self {
            exchange: exchange.into(),
            layout,
            record_bytes,
            choice: layout.choice(),
            hot_key_percent: 0,
            activity: Activity::Write,
            compared: false,
            debloated: false,
        }
    }

    /// Starts its producers on one node and its consumers on another, and waits until the consumers have attached.
    fn start(self, from: &Node, to: &Node) -> Result<Stream, String> {
        let Self { exchange, layout, record_bytes, choice, hot_key_percent, activity, compared, debloated } =
            self;
        let producer = App::start(&Role::Producer(ProducerOptions {
            run_dir: from.run_dir.clone(),
            exchange: exchange.clone(),
            layout,
            choice,
            hot_key_percent,
            record_bytes,
            activity,
        }))?;
        let mut consumer = App::start(&Role::Consumer(ConsumerOptions {
            run_dir: to.run_dir.clone(),
            exchange,
            layout,
            compared_bytes: compared.then_some(record_bytes),
            debloated,
        }))?;
        consumer.report()?;
        Ok(Stream { producer, consumer })
    }
}

/// A running [`Workload`]: one process of producers, one of consumers.
struct Stream {
    producer: App,
    consumer: App,
}

impl Stream {
    /// Watches it for `length`; CPU time is that of both daemons, then of the producer and the consumer.
    fn watch(&mut self, cluster: &Cluster, length: Duration) -> Result<Window, String> {
        let pids = [cluster.a().pid(), cluster.b().pid(), self.producer.pid(), self.consumer.pid()];
        watch(&mut self.consumer, &pids, length)
    }

    /// Waits until so many records have been read: until the channels are open, if there are so many.
    fn await_records(&mut self, records: u64) -> Result<(), String> {
        let began = Instant::now();
        loop {
            let read = self.consumer.report()?.records_total();
            if read >= records {
                return Ok(());
            }
            if began.elapsed() > OPENING {
                return Err(format!("{read} of {records} records were read within {} s", OPENING.as_secs()));
            }
            std::thread::sleep(OPENING_LOOK);
        }
    }

    /// How many records it has read by now.
    fn look(&mut self) -> Result<(Instant, u64), String> {
        let read = self.consumer.report()?.records_total();
        Ok((Instant::now(), read))
    }

    /// Sets how many records a second each consumer takes; 0: none, it stands still.
    fn set_pace(&mut self, records_per_second: &[u64]) -> Result<(), String> {
        for (consumer, rate) in records_per_second.iter().enumerate() {
            if *rate == 0 {
                self.consumer.command(&format!("stop {consumer}"))?;
            } else {
                self.consumer.command(&format!("pace {consumer} {rate}"))?;
                self.consumer.command(&format!("go {consumer}"))?;
            }
        }
        Ok(())
    }

    /// Lets the first thread of the producers write, or stand still.
    fn set_writing(&mut self, writes: bool) -> Result<(), String> {
        self.producer.command(if writes { "go 0" } else { "stop 0" })
    }

    fn end(self) -> Result<(), String> {
        app::end(vec![self.producer, self.consumer])
    }
}

/// How long channels may take to carry their first records.
const OPENING: Duration = Duration::from_secs(60);

/// Time between two looks while they do.
const OPENING_LOOK: Duration = Duration::from_millis(1);

/// Time that processes run before a window opens, so that pools are filled and TCP windows have opened.
const WARM_UP: Duration = Duration::from_millis(400);

/// What moved and what it cost between two moments.
#[derive(Debug)]
struct Window {
    seconds: f64,
    /// Difference of the reader's counts.
    counts: Counts,
    /// CPU time of each process of interest, in seconds.
    cpu_seconds: Vec<f64>,
    /// CPU time of all other processes of the machine, as a share of one core.
    foreign_cores: f64,
}

impl Window {
    fn gigabytes(&self) -> f64 {
        self.counts.bytes_total() as f64 / 1e9
    }

    fn gigabytes_per_second(&self) -> f64 {
        self.gigabytes() / self.seconds
    }

    fn records_per_second(&self) -> f64 {
        self.counts.records_total() as f64 / self.seconds
    }

    fn cpu_seconds_per_gigabyte(&self) -> f64 {
        self.cpu_seconds.iter().sum::<f64>() / self.gigabytes()
    }
}

/// Records a second that each of these streams reads, watched for `length` all at once: for those that keep a pace by sleeping, so
/// that none takes anything from another.
fn watch_rates(streams: &mut [Stream], length: Duration) -> Result<Vec<f64>, String> {
    let looks: Result<Vec<(Instant, u64)>, String> = streams.iter_mut().map(Stream::look).collect();
    let before = looks?;
    std::thread::sleep(length);
    let rate = |(stream, (began, before)): (&mut Stream, (Instant, u64))| {
        let (ended, after) = stream.look()?;
        Ok((after - before) as f64 / (ended - began).as_secs_f64())
    };
    streams.iter_mut().zip(before).map(rate).collect()
}

/// Watches `reader` for `length`; CPU time is that of `pids`.
fn watch(reader: &mut App, pids: &[u32], length: Duration) -> Result<Window, String> {
    let before = reader.report()?;
    let began = Instant::now();
    let cpu_before: Vec<u64> = pids.iter().map(|pid| usage::cpu_ns(*pid)).collect();
    let busy_before = usage::machine_busy_ns();
    std::thread::sleep(length);
    let after = reader.report()?;
    let seconds = began.elapsed().as_secs_f64();
    let busy = seconds_between(busy_before, usage::machine_busy_ns());
    let cpu_seconds: Vec<f64> = pids
        .iter()
        .zip(&cpu_before)
        .map(|(pid, before)| seconds_between(*before, usage::cpu_ns(*pid)))
        .collect();
    let foreign_cores = ((busy - cpu_seconds.iter().sum::<f64>()) / seconds).max(0.0);
    Ok(Window { seconds, counts: difference(&before, &after), cpu_seconds, foreign_cores })
}

fn seconds_between(before_ns: u64, after_ns: u64) -> f64 {
    after_ns.saturating_sub(before_ns) as f64 / 1e9
}

fn difference(before: &Counts, after: &Counts) -> Counts {
    let subtract = |before: &[u64], after: &[u64]| {
        before.iter().zip(after).map(|(before, after)| after - before).collect()
    };
    Counts {
        bytes: subtract(&before.bytes, &after.bytes),
        records: subtract(&before.records, &after.records),
        checksum: after.checksum.wrapping_sub(before.checksum),
        times_ns: after.times_ns.clone(),
    }
}

/// Adds percentiles of delays, one value per round each, in milliseconds.
fn delays(case: &mut Case, name: &str, rounds: &[Vec<u64>]) {
    for (what, share) in [("p50", 0.5), ("p99", 0.99), ("max", 1.0)] {
        let values = rounds.iter().map(|times| percentile(times, share) as f64 / 1e6);
        case.figure(&format!("{name}_milliseconds_{what}"), values);
    }
    case.figure(&format!("{name}_count"), rounds.iter().map(|times| times.len() as f64));
}
