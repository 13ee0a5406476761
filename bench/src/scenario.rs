//! The scenarios, one file each, and what they share: a window over running processes.

pub mod control;
pub mod hash_skew;
pub mod idle;
pub mod isolation;
pub mod latency;
pub mod local;
pub mod probes;
pub mod rebalance;
pub mod resume;
pub mod scrape;
pub mod selection;
pub mod throughput;
pub mod trickle;
pub mod zero_copy;

use std::time::{Duration, Instant};

use crate::app::{self, App, Counts, Role};
use crate::choice::Choice;
use crate::cluster::{Cluster, ClusterOptions, Node};
use crate::pipeline::{ConsumerOptions, Layout, ProducerOptions};
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
}

impl Settings {
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
    /// Attach, and write nothing.
    silent: bool,
    /// Compare every byte that is read, and watch the pauses between records.
    compared: bool,
}

impl Workload {
    fn new(exchange: impl Into<String>, layout: Layout, record_bytes: usize) -> Self {
        Self {
            exchange: exchange.into(),
            layout,
            record_bytes,
            choice: layout.choice(),
            hot_key_percent: 0,
            silent: false,
            compared: false,
        }
    }

    /// Starts its producers on one node and its consumers on another, and waits until the consumers have attached.
    fn start(self, from: &Node, to: &Node) -> Result<Stream, String> {
        let Self { exchange, layout, record_bytes, choice, hot_key_percent, silent, compared } = self;
        let producer = App::start(&Role::Producer(ProducerOptions {
            run_dir: from.run_dir.clone(),
            exchange: exchange.clone(),
            layout,
            choice,
            hot_key_percent,
            record_bytes,
            silent,
        }))?;
        let mut consumer = App::start(&Role::Consumer(ConsumerOptions {
            run_dir: to.run_dir.clone(),
            exchange,
            layout,
            compared_bytes: compared.then_some(record_bytes),
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

    fn end(self) -> Result<(), String> {
        app::end(vec![self.producer, self.consumer])
    }
}

/// A scenario by its name.
pub struct Scenario {
    /// What `--scenario` calls it.
    pub name: &'static str,
    /// One line for `--list`.
    pub about: &'static str,
    /// Runs it.
    pub run: fn(&Settings) -> Result<Vec<Case>, String>,
}

/// Every scenario.
pub const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "throughput",
        about: "64 channels over one link; records of 32 KiB, 512 B and 64 B",
        run: throughput::run,
    },
    Scenario {
        name: "local",
        about: "64 channels on one node, against the same between two nodes; records of 32 KiB, 1 KiB and 64 B",
        run: local::run,
    },
    Scenario {
        name: "isolation",
        about: "64 forward channels over one link, then one consumer stopped",
        run: isolation::run,
    },
    Scenario {
        name: "idle",
        about: "1,024 attached channels at rest: CPU and memory of the daemons",
        run: idle::run,
    },
    Scenario {
        name: "latency",
        about: "there and back, and 10,000 messages a second at fixed times, beside raw TCP",
        run: latency::run,
    },
    Scenario {
        name: "trickle",
        about: "100 B every 20 ms beside a bulk channel: delay against the buffer timeout",
        run: trickle::run,
    },
    Scenario {
        name: "control",
        about: "both directions full, then moving: delay of priority events meanwhile",
        run: control::run,
    },
    Scenario {
        name: "rebalance",
        about: "8 consumers of which one is slow, stopped, or recovers: in turn, Flink's next four, adaptive",
        run: rebalance::run,
    },
    Scenario {
        name: "selection",
        about: "what it costs to choose a consumer, without daemons: in turn, adaptive, up to 4,096 consumers",
        run: selection::run,
    },
    Scenario {
        name: "hash-skew",
        about: "half of the records have one key: more consumers, and salting",
        run: hash_skew::run,
    },
    Scenario {
        name: "resume",
        about: "what retention costs; how long records stop when all sockets are killed (root, ss)",
        run: resume::run,
    },
    Scenario {
        name: "probes",
        about: "what the kernel probes cost: on links that move 32 KiB records, and on sockets of others (root)",
        run: probes::run,
    },
    Scenario {
        name: "zero-copy",
        about: "sends with and without a copy in the kernel, over loopback and between virtual interfaces (root, ip)",
        run: zero_copy::run,
    },
    Scenario {
        name: "scrape",
        about: "10,000 channels: how long a scrape of /metrics takes, and how large it is",
        run: scrape::run,
    },
];

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
