//! Whether one stopped consumer slows the others: 64 independent forward channels over one link.

use crate::app::Counts;
use crate::cluster::Cluster;
use crate::pipeline::Layout;
use crate::report::Case;

use super::{Settings, WARM_UP, Window, Workload};

const CHANNELS: u32 = 64;
const RECORD_BYTES: usize = 4096;
const MEMORY_BYTES: u64 = 2 << 30;

/// The consumer that is stopped.
const STOPPED: usize = 17;

/// Each round: a window with all running, a window with one stopped, and then it goes on.
pub(super) fn run(settings: &Settings) -> Result<Vec<Case>, String> {
    let cluster = Cluster::start(&settings.cluster(MEMORY_BYTES))?;
    let workload = Workload::new("isolation", Layout::Forward(CHANNELS), RECORD_BYTES);
    let mut stream = workload.start(cluster.a(), cluster.b())?;
    std::thread::sleep(WARM_UP);
    let rounds = settings.every_round("isolation", |_| {
        let running = stream.watch(&cluster, settings.window)?;
        stream.consumer.command(&format!("stop {STOPPED}"))?;
        std::thread::sleep(WARM_UP);
        let stopped = stream.watch(&cluster, settings.window)?;
        stream.consumer.command(&format!("go {STOPPED}"))?;
        std::thread::sleep(WARM_UP);
        Ok([running, stopped])
    })?;
    stream.end()?;
    let rate = |window: &Window| others(&window.counts) / window.seconds;
    let mut case = Case::new(format!(
        "isolation: {CHANNELS} forward channels, records of {RECORD_BYTES} B, one consumer stopped"
    ));
    case.figure(
        "gigabytes_per_second_of_the_others_running",
        rounds.iter().map(|[running, _]| rate(running)),
    );
    case.figure(
        "gigabytes_per_second_of_the_others_stopped",
        rounds.iter().map(|[_, stopped]| rate(stopped)),
    );
    case.figure(
        "others_stopped_over_running",
        rounds.iter().map(|[running, stopped]| rate(stopped) / rate(running)),
    );
    case.figure(
        "bytes_of_the_stopped_one",
        rounds
            .iter()
            .map(|[_, stopped]| stopped.counts.bytes.get(STOPPED).map_or(0.0, |bytes| *bytes as f64)),
    );
    case.figure("foreign_cores", rounds.iter().flatten().map(|window| window.foreign_cores));
    Ok(vec![case])
}

/// Gigabytes of all consumers but the one that is stopped.
fn others(counts: &Counts) -> f64 {
    let bytes: u64 =
        counts.bytes.iter().enumerate().filter(|(at, _)| *at != STOPPED).map(|(_, bytes)| bytes).sum();
    bytes as f64 / 1e9
}
