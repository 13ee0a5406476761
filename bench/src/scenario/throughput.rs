//! How much moves over one link, and what a gigabyte costs, by the number of channels and the length of records, against the
//! raw blast of the same round.

use crate::app::{App, Role};
use crate::blast;
use crate::cluster::Cluster;
use crate::pipeline::Layout;
use crate::report::Case;

use super::{Settings, WARM_UP, Window, Workload, watch};

/// Channels over the one link.
const CHANNELS: [u32; 4] = [1, 16, 64, 1000];

/// Record lengths, in bytes.
const RECORD_BYTES: [usize; 4] = [64, 1 << 10, 32 << 10, 1 << 20];

/// Memory bound of each daemon: each producer has a region of its own, of some 1.5 MB.
const MEMORY_BYTES: u64 = 4 << 30;

/// Each round: the blast, then every number of channels with every record length.
pub(super) fn run(settings: &Settings) -> Result<Vec<Case>, String> {
    let cluster = Cluster::start(&settings.cluster(MEMORY_BYTES))?;
    let cells = || CHANNELS.into_iter().flat_map(|channels| RECORD_BYTES.map(|bytes| (channels, bytes)));
    let rounds: Vec<(Window, Vec<Window>)> = settings.every_round("throughput", |round| {
        let baseline = blast(settings, blast::CHUNK_BYTES)?;
        let windows: Result<Vec<Window>, String> = cells()
            .map(|(channels, record_bytes)| {
                let exchange = format!("throughput-{channels}-{record_bytes}-{round}");
                weir(settings, &cluster, exchange, channels, record_bytes)
            })
            .collect();
        Ok((baseline, windows?))
    })?;
    let mut cases = vec![blast_case(blast::CHUNK_BYTES, rounds.iter().map(|(baseline, _)| baseline))];
    for (at, (channels, record_bytes)) in cells().enumerate() {
        let pairs: Vec<(&Window, &Window)> =
            rounds.iter().filter_map(|(baseline, windows)| Some((baseline, windows.get(at)?))).collect();
        let name = if channels == 1 { "channel" } else { "channels" };
        let mut case = Case::new(format!("throughput: {channels} {name}, records of {record_bytes} B"))
            .at("channels", channels.into())
            .at("record_bytes", record_bytes as f64);
        weir_figures(&mut case, &pairs);
        cases.push(case);
    }
    Ok(cases)
}

/// One window of the raw blast, with so many bytes per write and read.
pub(super) fn blast(settings: &Settings, chunk_bytes: usize) -> Result<Window, String> {
    let mut receiver = App::start(&Role::BlastReceiver { chunk_bytes })?;
    let port = receiver.port()?;
    let congestion = settings.congestion.clone();
    let sender = App::start(&Role::BlastSender { port, chunk_bytes, congestion })?;
    std::thread::sleep(WARM_UP);
    let pids = [sender.pid(), receiver.pid()];
    let mut window = watch(&mut receiver, &pids, settings.window)?;
    // Worker 1 carries the port, not a count; its difference is 0.
    window.counts.records.truncate(1);
    Ok(window)
}

/// One window over two daemons and two applications.
pub(super) fn weir(
    settings: &Settings,
    cluster: &Cluster,
    exchange: String,
    channels: u32,
    record_bytes: usize,
) -> Result<Window, String> {
    let workload = Workload::new(exchange, Layout::FanIn(channels), record_bytes);
    let mut stream = workload.start(cluster.a(), cluster.b())?;
    stream.await_records(channels.into())?;
    std::thread::sleep(WARM_UP);
    let window = stream.watch(cluster, settings.window)?;
    stream.end()?;
    Ok(window)
}

fn blast_case<'a>(chunk_bytes: usize, windows: impl Iterator<Item = &'a Window> + Clone) -> Case {
    let kib = chunk_bytes >> 10;
    let mut case =
        Case::new(format!("baseline: raw TCP blast, {kib} KiB writes and reads, payload written and read"));
    case.figure("gigabytes_per_second", windows.clone().map(Window::gigabytes_per_second));
    case.figure("cpu_seconds_per_gigabyte", windows.clone().map(Window::cpu_seconds_per_gigabyte));
    case.figure("foreign_cores", windows.map(|window| window.foreign_cores));
    case
}

fn weir_figures(case: &mut Case, pairs: &[(&Window, &Window)]) {
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
}
