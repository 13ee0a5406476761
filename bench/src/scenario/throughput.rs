//! How much 64 channels move over one link, and what a gigabyte costs, against the raw blast of the same round.

use crate::app::{App, Role};
use crate::cluster::Cluster;
use crate::pipeline::Layout;
use crate::report::Case;

use super::{Settings, WARM_UP, Window, Workload, watch};

/// Channels over the one link.
const CHANNELS: u32 = 64;

/// Record lengths, in bytes.
const RECORD_BYTES: [usize; 3] = [32 * 1024, 512, 64];

/// Memory bound of each daemon.
const MEMORY_BYTES: u64 = 1 << 30;

/// Each round: the blast, then each record length through two daemons and two applications.
pub(super) fn run(settings: &Settings) -> Result<Vec<Case>, String> {
    let cluster = Cluster::start(&settings.cluster(MEMORY_BYTES))?;
    let mut rounds: Vec<(Window, Vec<Window>)> = Vec::new();
    for round in 0..settings.rounds {
        let baseline = blast(settings)?;
        let mut windows = Vec::new();
        for record_bytes in RECORD_BYTES {
            windows.push(weir(settings, &cluster, round, record_bytes)?);
        }
        eprintln!("throughput: round {} of {}", round + 1, settings.rounds);
        rounds.push((baseline, windows));
    }
    let mut cases = vec![baseline_case(rounds.iter().map(|(baseline, _)| baseline))];
    for (at, record_bytes) in RECORD_BYTES.iter().enumerate() {
        let pairs: Vec<(&Window, &Window)> =
            rounds.iter().filter_map(|(baseline, windows)| Some((baseline, windows.get(at)?))).collect();
        cases.push(weir_case(*record_bytes, &pairs));
    }
    Ok(cases)
}

/// One window of the raw blast.
pub(super) fn blast(settings: &Settings) -> Result<Window, String> {
    let mut receiver = App::start(&Role::BlastReceiver)?;
    let port =
        receiver.report()?.records.get(1).and_then(|port| u16::try_from(*port).ok()).ok_or("no port")?;
    let sender = App::start(&Role::BlastSender { port, congestion: settings.congestion.clone() })?;
    std::thread::sleep(WARM_UP);
    let pids = [sender.pid(), receiver.pid()];
    let mut window = watch(&mut receiver, &pids, settings.window)?;
    // Worker 1 carries the port, not a count; its difference is 0.
    window.counts.records.truncate(1);
    Ok(window)
}

fn weir(settings: &Settings, cluster: &Cluster, round: u32, record_bytes: usize) -> Result<Window, String> {
    let exchange = format!("throughput-{record_bytes}-{round}");
    let workload = Workload::new(exchange, Layout::FanIn(CHANNELS), record_bytes);
    let mut stream = workload.start(cluster.a(), cluster.b())?;
    std::thread::sleep(WARM_UP);
    let window = stream.watch(cluster, settings.window)?;
    stream.end()?;
    Ok(window)
}

fn baseline_case<'a>(windows: impl Iterator<Item = &'a Window> + Clone) -> Case {
    let mut case = Case::new("baseline: raw TCP blast, 256 KiB writes and reads, payload written and read");
    case.figure("gigabytes_per_second", windows.clone().map(Window::gigabytes_per_second));
    case.figure("cpu_seconds_per_gigabyte", windows.clone().map(Window::cpu_seconds_per_gigabyte));
    case.figure("foreign_cores", windows.map(|window| window.foreign_cores));
    case
}

fn weir_case(record_bytes: usize, pairs: &[(&Window, &Window)]) -> Case {
    let mut case = Case::new(format!("throughput: {CHANNELS} channels, records of {record_bytes} B"));
    let cpu_of = |which: &'static [usize]| {
        pairs.iter().map(move |(_, weir)| {
            which.iter().filter_map(|at| weir.cpu_seconds.get(*at)).sum::<f64>() / weir.gigabytes()
        })
    };
    case.figure("cpu_seconds_per_gigabyte", pairs.iter().map(|(_, weir)| weir.cpu_seconds_per_gigabyte()));
    case.figure("cpu_seconds_per_gigabyte_of_daemons", cpu_of(&[0, 1]));
    case.figure("cpu_seconds_per_gigabyte_of_applications", cpu_of(&[2, 3]));
    case.figure(
        "cpu_per_gigabyte_over_baseline",
        pairs.iter().map(|(base, weir)| weir.cpu_seconds_per_gigabyte() / base.cpu_seconds_per_gigabyte()),
    );
    case.figure("gigabytes_per_second", pairs.iter().map(|(_, weir)| weir.gigabytes_per_second()));
    case.figure(
        "gigabytes_per_second_over_baseline",
        pairs.iter().map(|(base, weir)| weir.gigabytes_per_second() / base.gigabytes_per_second()),
    );
    case.figure("records_per_second", pairs.iter().map(|(_, weir)| weir.records_per_second()));
    case.figure("foreign_cores", pairs.iter().map(|(_, weir)| weir.foreign_cores));
    case
}
