//! What channels cost by their number: how soon they carry their first record, what the daemons hold for each, and how much
//! they move; and what shards change about that.

use std::time::Instant;

use crate::cluster::{Cluster, ClusterOptions};
use crate::pipeline::{Activity, Layout};
use crate::report::Case;
use crate::usage;

use super::{Settings, WARM_UP, Window, Workload};

/// Producers and consumers; every producer feeds every consumer, each on a thread of its own.
const SIZES: [(u32, u32); 5] = [(1, 1), (2, 5), (10, 10), (25, 40), (100, 100)];

/// The size at which numbers of shards are compared.
const SIZE_OF_SHARDS: (u32, u32) = (10, 10);

/// Most shards that are tried.
const SHARDS_MAX: u32 = 4;

const RECORD_BYTES: usize = 1 << 10;
const SEGMENT_BYTES: u32 = 4 << 10;
const MEMORY_BYTES: u64 = 2 << 30;

/// What one cluster with its channels showed.
struct Found {
    setup_ms: f64,
    /// Private memory of each daemon, beside what it had without channels.
    daemon_bytes: [f64; 2],
    window: Window,
}

/// Each round: every size, then the numbers of shards; each with daemons of its own.
pub(super) fn run(settings: &Settings) -> Result<Vec<Case>, String> {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from) as u32;
    let shards: Vec<u32> = (1..=cpus.min(SHARDS_MAX)).collect();
    let rounds = settings.every_round("scale", |_| {
        let sizes: Result<Vec<Found>, String> =
            SIZES.iter().map(|size| measure(settings, *size, settings.shards)).collect();
        let by_shards: Result<Vec<Found>, String> =
            shards.iter().map(|shards| measure(settings, SIZE_OF_SHARDS, *shards)).collect();
        Ok((sizes?, by_shards?))
    })?;
    let mut cases = Vec::new();
    for (at, (producers, consumers)) in SIZES.into_iter().enumerate() {
        let found: Vec<&Found> = rounds.iter().filter_map(|(sizes, _)| sizes.get(at)).collect();
        let channels = producers * consumers;
        let mut case = Case::new(format!(
            "scale: {channels} channels ({producers} producers, {consumers} consumers), segments of {SEGMENT_BYTES} B"
        ))
        .at("channels", channels.into());
        figures(&mut case, &found, channels);
        cases.push(case);
    }
    for remark in bends(&cases) {
        settings.notes.remark(remark);
    }
    for (at, shards) in shards.iter().enumerate() {
        let found: Vec<&Found> = rounds.iter().filter_map(|(_, by_shards)| by_shards.get(at)).collect();
        let channels = SIZE_OF_SHARDS.0 * SIZE_OF_SHARDS.1;
        let name = if *shards == 1 { "shard" } else { "shards" };
        let mut case = Case::new(format!("scale: {shards} {name}, {channels} channels"));
        figures(&mut case, &found, channels);
        cases.push(case);
    }
    Ok(cases)
}

fn measure(settings: &Settings, (producers, consumers): (u32, u32), shards: u32) -> Result<Found, String> {
    let options =
        ClusterOptions { segment_bytes: Some(SEGMENT_BYTES), shards, ..settings.cluster(MEMORY_BYTES) };
    let cluster = Cluster::start(&options)?;
    std::thread::sleep(WARM_UP);
    let private = || [cluster.a(), cluster.b()].map(|node| usage::private_bytes(node.pid()) as f64);
    let empty = private();
    let mut workload = Workload::new("scale", Layout::Spread { producers, consumers }, RECORD_BYTES);
    workload.activity = Activity::Greet;
    let began = Instant::now();
    let mut stream = workload.start(cluster.a(), cluster.b())?;
    stream.await_records(u64::from(producers * consumers))?;
    let setup_ms = began.elapsed().as_secs_f64() * 1e3;
    std::thread::sleep(WARM_UP);
    let open = private();
    for producer in 0..producers {
        stream.producer.command(&format!("go {producer}"))?;
    }
    std::thread::sleep(WARM_UP);
    let window = stream.watch(&cluster, settings.window)?;
    stream.end()?;
    Ok(Found { setup_ms, daemon_bytes: [open[0] - empty[0], open[1] - empty[1]], window })
}

/// Figures that stay as they are from one size to the next if the cost is linear in channels and records.
const LINEAR_IF_EVEN: [&str; 4] = [
    "setup_microseconds_per_channel",
    "daemon_bytes_per_channel_a",
    "daemon_bytes_per_channel_b",
    "cpu_seconds_per_gigabyte",
];

/// A figure that grows by more than this from one size to the next is not linear.
const EVEN_WITHIN: f64 = 1.5;

/// Where the curves bend upwards: each figure and the sizes between which it grows.
fn bends(cases: &[Case]) -> Vec<String> {
    let mut remarks = Vec::new();
    for name in LINEAR_IF_EVEN {
        for pair in cases.windows(2) {
            let size = |case: &Case| case.axes.first().map_or(0.0, |axis| axis.value);
            let median = |case: &Case| case.find(name).map_or(0.0, |figure| figure.value.median);
            let (less, more) = (median(&pair[0]), median(&pair[1]));
            if less > 0.0 && more / less > EVEN_WITHIN {
                remarks.push(format!(
                    "scale: not linear from {} to {} channels: {} is {:.1} times as much",
                    size(&pair[0]),
                    size(&pair[1]),
                    name.replace('_', " "),
                    more / less
                ));
            }
        }
    }
    remarks
}

fn figures(case: &mut Case, found: &[&Found], channels: u32) {
    case.figure("setup_milliseconds", found.iter().map(|found| found.setup_ms));
    let per_channel = found.iter().map(|found| 1e3 * found.setup_ms / f64::from(channels));
    case.figure("setup_microseconds_per_channel", per_channel);
    for (at, node) in ["a", "b"].into_iter().enumerate() {
        let bytes = found.iter().map(|found| found.daemon_bytes[at] / f64::from(channels));
        case.figure(&format!("daemon_bytes_per_channel_{node}"), bytes);
    }
    let window = |of: fn(&Window) -> f64| found.iter().map(move |found| of(&found.window));
    case.figure("gigabytes_per_second", window(Window::gigabytes_per_second));
    case.figure("records_per_second", window(Window::records_per_second));
    case.figure("cpu_seconds_per_gigabyte", window(Window::cpu_seconds_per_gigabyte));
    case.figure("foreign_cores", window(|window| window.foreign_cores));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cost_that_grows_faster_than_channels_is_told() {
        let case = |channels: f64, cpu: f64, bytes: f64| {
            let mut case = Case::new("scale").at("channels", channels);
            case.figure("cpu_seconds_per_gigabyte", [cpu]);
            case.figure("daemon_bytes_per_channel_a", [bytes]);
            case
        };
        let told = bends(&[case(100.0, 1.0, 9000.0), case(1000.0, 1.4, 3000.0), case(10000.0, 2.8, 2900.0)]);
        assert_eq!(
            told,
            ["scale: not linear from 1000 to 10000 channels: cpu seconds per gigabyte is 2.0 times as much"]
        );
    }
}
