//! What it costs to survive the loss of a socket, and how long records stop when it happens.

use std::process::Command;
use std::time::Duration;

use crate::cluster::{Cluster, ClusterOptions};
use crate::pipeline::Layout;
use crate::report::Case;

use super::{Settings, WARM_UP, Window, Workload};

const MEMORY_BYTES: u64 = 1 << 30;
const CHANNELS: u32 = 16;
const RECORD_BYTES: usize = 32 << 10;

/// More segments for what is sent and not acknowledged than can be on their way to a consumer: retention never makes
/// a producer wait.
const RETENTION_AMPLE: u32 = 128;

/// Channels whose records are compared byte for byte while sockets are killed.
const COMPARED_CHANNELS: u32 = 4;

/// Sockets are killed so often in each round.
const KILLS: u32 = 10;

/// Time from one kill to the next.
const KILL_EVERY: Duration = Duration::from_millis(400);

/// What a daemon logs when both ends of a data link go on over another socket.
const RESUMED: &str = "link goes on over another socket";

/// The cost first, then the pauses.
pub(super) fn run(settings: &Settings) -> Result<Vec<Case>, String> {
    let mut cases = vec![retention(settings)?];
    match killing_is_possible() {
        Ok(()) => cases.push(pauses(settings)?),
        Err(reason) => settings.notes.not_run(format!("resume after sockets are killed ({reason})")),
    }
    Ok(cases)
}

/// Throughput as it is, with links that are never resumed, and with retention that never makes anybody wait; in turn.
fn retention(settings: &Settings) -> Result<Case, String> {
    let usual = settings.cluster(MEMORY_BYTES);
    let clusters = [
        Cluster::start(&usual)?,
        Cluster::start(&ClusterOptions { grace: Some("0s".to_owned()), ..usual.clone() })?,
        Cluster::start(&ClusterOptions { retention: Some(RETENTION_AMPLE), ..usual })?,
    ];
    let rounds: Vec<Vec<Window>> = settings.every_round("resume: what it costs", |round| {
        clusters.iter().map(|cluster| transfer(settings, cluster, round)).collect()
    })?;
    let mut case = Case::new(format!("resume: {CHANNELS} channels over one link, what retention costs"));
    let rate = |windows: &[Window], at: usize| windows.get(at).map_or(0.0, Window::gigabytes_per_second);
    let cpu = |windows: &[Window], at: usize| windows.get(at).map_or(0.0, Window::cpu_seconds_per_gigabyte);
    for (at, name) in ["usual", "without_grace", "ample_retention"].into_iter().enumerate() {
        case.figure(&format!("gigabytes_per_second_{name}"), rounds.iter().map(|round| rate(round, at)));
        case.figure(&format!("cpu_seconds_per_gigabyte_{name}"), rounds.iter().map(|round| cpu(round, at)));
    }
    for (at, name) in [(1, "without_grace"), (2, "ample_retention")] {
        let percent = |round: &Vec<Window>| 100.0 * (1.0 - rate(round, 0) / rate(round, at));
        case.figure(&format!("percent_slower_than_{name}"), rounds.iter().map(percent));
        let percent = |round: &Vec<Window>| 100.0 * (cpu(round, 0) / cpu(round, at) - 1.0);
        case.figure(&format!("percent_more_cpu_than_{name}"), rounds.iter().map(percent));
    }
    case.figure("foreign_cores", rounds.iter().flatten().map(|window| window.foreign_cores));
    Ok(case)
}

fn transfer(settings: &Settings, cluster: &Cluster, round: u32) -> Result<Window, String> {
    let workload = Workload::new(format!("cost-{round}"), Layout::FanIn(CHANNELS), RECORD_BYTES);
    let mut stream = workload.start(cluster.a(), cluster.b())?;
    std::thread::sleep(WARM_UP);
    let window = stream.watch(cluster, settings.window)?;
    stream.end()?;
    Ok(window)
}

/// Each round: as long as the kills take with nothing killed, then the kills. Every record is compared with what was
/// sent; a difference ends the bench.
fn pauses(settings: &Settings) -> Result<Case, String> {
    let cluster = Cluster::start(&settings.cluster(MEMORY_BYTES))?;
    let mut compared = Workload::new("resumed", Layout::Forward(COMPARED_CHANNELS), RECORD_BYTES);
    compared.compared = true;
    let mut stream = compared.start(cluster.a(), cluster.b())?;
    std::thread::sleep(WARM_UP);
    let mut records = 0;
    let rounds = settings.every_round("resume: sockets killed", |_| {
        let (mut undisturbed, mut killed) = (Vec::new(), Vec::new());
        for (kills, found) in [(false, &mut undisturbed), (true, &mut killed)] {
            for _ in 0..KILLS {
                stream.consumer.report()?;
                if kills {
                    kill_sockets(cluster.addresses())?;
                }
                std::thread::sleep(KILL_EVERY);
                let counts = stream.consumer.report()?;
                // A worker that got nothing at all reports no pause: all of the time was one.
                let none = counts.times_ns.len() < COMPARED_CHANNELS as usize;
                let longest = counts.times_ns.iter().copied().max().filter(|_| !none);
                found.push(longest.map_or(KILL_EVERY.as_secs_f64() * 1e3, |pause| pause as f64 / 1e6));
                records = counts.records_total();
            }
        }
        Ok([undisturbed, killed])
    })?;
    stream.end()?;
    let mut case = Case::new(format!(
        "resume: {COMPARED_CHANNELS} channels, all sockets killed {KILLS} times a round, every byte compared"
    ));
    let pauses = |which: usize| rounds.iter().flat_map(move |found| found[which].iter().copied());
    case.figure("longest_pause_undisturbed_milliseconds", pauses(0));
    case.figure("longest_pause_after_a_kill_milliseconds", pauses(1));
    case.figure("kills", [f64::from(settings.rounds * KILLS)]);
    let resumed = cluster.log(cluster.a()).matches(RESUMED).count();
    case.figure("sockets_that_a_link_went_on_over", [resumed as f64]);
    case.figure("records_compared", [records as f64]);
    Ok(case)
}

fn killing_is_possible() -> Result<(), String> {
    if !rustix::process::geteuid().is_root() {
        return Err("needs root".to_owned());
    }
    let found = Command::new("ss").arg("-V").output();
    found.map(drop).map_err(|_| "needs `ss`; `cargo xtask setup` installs it".to_owned())
}

/// Ends every connection between the daemons, control links included, as an administrator can.
fn kill_sockets(addresses: &[String; 2]) -> Result<(), String> {
    let mut filter: Vec<String> = Vec::new();
    for port in addresses.iter().filter_map(|address| address.rsplit(':').next()) {
        for end in ["sport", "dport"] {
            filter.extend((!filter.is_empty()).then(|| "or".to_owned()));
            filter.extend([end.to_owned(), "=".to_owned(), format!(":{port}")]);
        }
    }
    let output = Command::new("ss")
        .args(["-K", "-t", "-H", "state", "established", "("])
        .args(&filter)
        .arg(")")
        .output()
        .map_err(|error| format!("cannot start ss: {error}"))?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() { Ok(()) } else { Err(format!("ss -K failed: {}", text.trim())) }
}
