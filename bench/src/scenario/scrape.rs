//! What a scrape costs where there are many channels.

use std::time::{Duration, Instant};

use crate::cluster::Cluster;
use crate::pipeline::Layout;
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
    workload.silent = true;
    let stream = workload.start(cluster.a(), cluster.b())?;
    await_open(&cluster)?;
    let nodes = [cluster.a(), cluster.b()];
    let mut found = [(); 2].map(|()| (Vec::new(), Vec::new(), Vec::new()));
    for round in 0..settings.rounds {
        for (node, (milliseconds, cpu, megabytes)) in nodes.iter().zip(&mut found) {
            for _ in 0..SCRAPES {
                let (began, cpu_before) = (Instant::now(), usage::cpu_ns(node.pid()));
                let text = cluster.get(node, "/metrics")?;
                milliseconds.push(began.elapsed().as_secs_f64() * 1e3);
                cpu.push(usage::cpu_ns(node.pid()).saturating_sub(cpu_before) as f64 / 1e6);
                megabytes.push(text.len() as f64 / f64::from(1 << 20));
            }
        }
        eprintln!("scrape: round {} of {}", round + 1, settings.rounds);
    }
    stream.end()?;
    let mut case = Case::new(format!("scrape: {} channels open and silent", PARALLELISM * PARALLELISM));
    for (node, (milliseconds, cpu, megabytes)) in ["a", "b"].into_iter().zip(found) {
        case.figure(&format!("milliseconds_{node}"), milliseconds);
        case.figure(&format!("cpu_milliseconds_of_the_daemon_{node}"), cpu);
        case.figure(&format!("mebibytes_{node}"), megabytes);
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
