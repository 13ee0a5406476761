//! Whether one stopped consumer slows the others: 64 independent forward channels over one link.

use crate::app::{self, App, Counts, Role};
use crate::cluster::{Cluster, ClusterOptions};
use crate::pipeline::{ConsumerOptions, Layout, ProducerOptions};
use crate::report::Case;

use super::{Settings, WARM_UP, watch};

const CHANNELS: u32 = 64;
const RECORD_BYTES: usize = 4096;
const MEMORY_BYTES: u64 = 2 << 30;

/// The consumer that is stopped.
const STOPPED: usize = 17;

/// Each round: a window with all running, a window with one stopped, and then it goes on.
pub(super) fn run(settings: &Settings) -> Result<Vec<Case>, String> {
    let cluster = Cluster::start(&ClusterOptions {
        shards: settings.shards,
        memory_bytes: MEMORY_BYTES,
        congestion: settings.congestion.clone(),
        ..ClusterOptions::default()
    })?;
    let layout = Layout::Forward(CHANNELS);
    let exchange = "isolation".to_owned();
    let producer = App::start(&Role::Producer(ProducerOptions {
        run_dir: cluster.a().run_dir.clone(),
        exchange: exchange.clone(),
        layout,
        record_bytes: RECORD_BYTES,
        silent: false,
    }))?;
    let mut consumer = App::start(&Role::Consumer(ConsumerOptions {
        run_dir: cluster.b().run_dir.clone(),
        exchange,
        layout,
        compared_bytes: None,
    }))?;
    std::thread::sleep(WARM_UP);
    let pids = [cluster.a().pid(), cluster.b().pid(), producer.pid(), consumer.pid()];
    let (mut running, mut stopped) = (Vec::new(), Vec::new());
    for round in 0..settings.rounds {
        running.push(watch(&mut consumer, &pids, settings.window)?);
        consumer.command(&format!("stop {STOPPED}"))?;
        std::thread::sleep(WARM_UP);
        stopped.push(watch(&mut consumer, &pids, settings.window)?);
        consumer.command(&format!("go {STOPPED}"))?;
        std::thread::sleep(WARM_UP);
        eprintln!("isolation: round {} of {}", round + 1, settings.rounds);
    }
    app::end(vec![producer, consumer])?;
    let mut case = Case::new(format!(
        "isolation: {CHANNELS} forward channels, records of {RECORD_BYTES} B, one consumer stopped"
    ));
    case.figure(
        "gigabytes_per_second_of_the_others_running",
        running.iter().map(|w| others(&w.counts) / w.seconds),
    );
    case.figure(
        "gigabytes_per_second_of_the_others_stopped",
        stopped.iter().map(|w| others(&w.counts) / w.seconds),
    );
    case.figure(
        "others_stopped_over_running",
        running
            .iter()
            .zip(&stopped)
            .map(|(a, b)| (others(&b.counts) / b.seconds) / (others(&a.counts) / a.seconds)),
    );
    case.figure(
        "bytes_of_the_stopped_one",
        stopped.iter().map(|w| w.counts.bytes.get(STOPPED).map_or(0.0, |b| *b as f64)),
    );
    case.figure("foreign_cores", running.iter().chain(&stopped).map(|window| window.foreign_cores));
    Ok(vec![case])
}

/// Gigabytes of all consumers but the one that is stopped.
fn others(counts: &Counts) -> f64 {
    let bytes: u64 =
        counts.bytes.iter().enumerate().filter(|(at, _)| *at != STOPPED).map(|(_, bytes)| bytes).sum();
    bytes as f64 / 1e9
}
