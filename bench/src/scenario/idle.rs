//! What channels cost at rest: CPU of the daemons while nothing moves, and their memory beside the regions.

use std::time::Duration;

use crate::cluster::Cluster;
use crate::pipeline::{Activity, Layout};
use crate::report::Case;
use crate::usage;

use super::{Settings, WARM_UP, Workload, watch};

/// 32 producers and 32 consumers make 1,024 channels.
const PARALLELISM: u32 = 32;
const MEMORY_BYTES: u64 = 1 << 30;

/// How long the attached channels may take to open.
const SETTLE: Duration = Duration::from_secs(2);

/// One cluster with every channel open and silent, watched for each round.
pub(super) fn run(settings: &Settings) -> Result<Vec<Case>, String> {
    let cluster = Cluster::start(&settings.cluster(MEMORY_BYTES))?;
    std::thread::sleep(WARM_UP);
    let daemons = [cluster.a().pid(), cluster.b().pid()];
    let private = || daemons.map(|pid| usage::private_bytes(pid) as f64 / 1e6);
    let empty = private();
    let mut idle = Workload::new("idle", Layout::AllToAll(PARALLELISM), 64);
    idle.activity = Activity::Silent;
    let mut idle = idle.start(cluster.a(), cluster.b())?;
    std::thread::sleep(SETTLE);
    let open = cluster.ask(cluster.b(), "channels")?;
    let channels = open.get("channels").and_then(|rows| rows.as_array()).map_or(0, Vec::len);
    let windows = settings.every_round("idle", |_| watch(&mut idle.consumer, &daemons, settings.window))?;
    let full = private();
    idle.end()?;
    let mut case = Case::new(format!("idle: {} channels open and silent", PARALLELISM * PARALLELISM));
    case.figure("channels_listed_on_the_consumers_node", [channels as f64]);
    for (at, name) in ["a", "b"].iter().enumerate() {
        case.figure(
            &format!("cpu_percent_of_a_core_{name}"),
            windows
                .iter()
                .map(|window| 100.0 * window.cpu_seconds.get(at).copied().unwrap_or(0.0) / window.seconds),
        );
        case.figure(&format!("private_megabytes_empty_{name}"), empty.get(at).copied());
        case.figure(&format!("private_megabytes_{name}"), full.get(at).copied());
    }
    Ok(vec![case])
}
