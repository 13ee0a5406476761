//! What a scrape costs where there are many channels.

use std::time::{Duration, Instant};

use crate::cluster::Cluster;
use crate::pipeline::{Activity, Layout};
use crate::report::Case;
use crate::usage;

use super::{Settings, Workload};

/// 100 producers and 100 consumers make 10,000 channels.
const PARALLELISM: u32 = 100;

/// Two segments for each channel at its consumer, and those of the partitions.
const MEMORY_BYTES: u64 = 2 << 30;

/// How long the channels may take to open.
const OPENING: Duration = Duration::from_secs(60);

/// Scrapes of one round.
const SCRAPES: u32 = 10;

/// Every channel open and silent, and both nodes scraped again and again.
pub(super) fn run(settings: &Settings) -> Result<Vec<Case>, String> {
    let cluster = Cluster::start(&settings.cluster(MEMORY_BYTES))?;
    let mut workload = Workload::new("scraped", Layout::AllToAll(PARALLELISM), 64);
    workload.activity = Activity::Silent;
    let stream = workload.start(cluster.a(), cluster.b())?;
    await_open(&cluster)?;
    let nodes = [cluster.a(), cluster.b()];
    let rounds = settings.every_round("scrape", |_| {
        let mut found = [(); 2].map(|()| Vec::new());
        for (node, found) in nodes.iter().zip(&mut found) {
            for _ in 0..SCRAPES {
                let (began, cpu_before) = (Instant::now(), usage::cpu_ns(node.pid()));
                let text = cluster.get(node, "/metrics")?;
                let milliseconds = began.elapsed().as_secs_f64() * 1e3;
                let cpu = usage::cpu_ns(node.pid()).saturating_sub(cpu_before) as f64 / 1e6;
                found.push([milliseconds, cpu, text.len() as f64 / f64::from(1 << 20)]);
            }
        }
        Ok(found)
    })?;
    stream.end()?;
    let mut case = Case::new(format!("scrape: {} channels open and silent", PARALLELISM * PARALLELISM));
    for (at, node) in ["a", "b"].into_iter().enumerate() {
        let names = ["milliseconds", "cpu_milliseconds_of_the_daemon", "mebibytes"];
        for (which, name) in names.into_iter().enumerate() {
            let values = rounds.iter().flat_map(|found| &found[at]).map(|scrape| scrape[which]);
            case.figure(&format!("{name}_{node}"), values);
        }
    }
    Ok(vec![case])
}

fn await_open(cluster: &Cluster) -> Result<(), String> {
    let needed = f64::from(PARALLELISM * PARALLELISM);
    let began = Instant::now();
    loop {
        let text = cluster.get(cluster.a(), "/metrics")?;
        let count = text.lines().find_map(|line| line.strip_prefix("weir_channels{side=\"send\"} "));
        let open: f64 = count.and_then(|count| count.parse().ok()).unwrap_or(0.0);
        if open >= needed {
            return Ok(());
        }
        if began.elapsed() > OPENING {
            return Err(format!("{open} of {needed} channels opened within {} s", OPENING.as_secs()));
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}
