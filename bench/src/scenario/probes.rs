//! What the kernel probes cost: on the links that they watch, and on sockets that are not Weir's.
//!
//! A probe that is loaded is called for every TCP socket of the machine. So what runs without probes runs while no daemon
//! has any: each window has a cluster of its own.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use crate::clock::thread_cpu_ns;
use crate::cluster::{Cluster, ClusterOptions};
use crate::pipeline::Layout;
use crate::report::Case;

use super::{Settings, WARM_UP, Window, Workload};

const MEMORY_BYTES: u64 = 1 << 30;
const CHANNELS: u32 = 16;
const RECORD_BYTES: usize = 32 << 10;

/// Round trips of one measurement on a socket of others.
const ROUND_TRIPS: u32 = 40_000;

/// Probes that a round trip calls: each way a send, a segment that arrives, and a read. Acknowledgements travel with the
/// answers.
const PROBES_PER_ROUND_TRIP: f64 = 6.0;

/// The links first, then the others.
pub(super) fn run(settings: &Settings) -> Result<Vec<Case>, String> {
    if let Err(reason) = Cluster::start(&with(settings, "require")) {
        let last = reason.lines().last().unwrap_or_default();
        settings.notes.not_run(format!("the cost of the probes, which cannot be loaded ({last})"));
        return Ok(Vec::new());
    }
    Ok(vec![watched(settings)?, others(settings)?])
}

fn with(settings: &Settings, probes: &'static str) -> ClusterOptions {
    ClusterOptions { probes: Some(probes), ..settings.cluster(MEMORY_BYTES) }
}

/// Throughput without probes and with all of them; each round begins with the other one.
fn watched(settings: &Settings) -> Result<Case, String> {
    let rounds = settings.every_round("probes: links", |round| {
        if round % 2 == 0 {
            let without = transfer(settings, "off")?;
            Ok((without, transfer(settings, "require")?))
        } else {
            let with_probes = transfer(settings, "require")?;
            Ok((transfer(settings, "off")?, with_probes))
        }
    })?;
    let (without, with_probes): (Vec<Window>, Vec<Window>) = rounds.into_iter().unzip();
    let mut case =
        Case::new(format!("probes: {CHANNELS} channels over one link, records of {RECORD_BYTES} B"));
    for (name, windows) in [("without", &without), ("with", &with_probes)] {
        let cpu = windows.iter().map(Window::cpu_seconds_per_gigabyte);
        case.figure(&format!("cpu_seconds_per_gigabyte_{name}"), cpu);
        let rate = windows.iter().map(Window::gigabytes_per_second);
        case.figure(&format!("gigabytes_per_second_{name}"), rate);
    }
    let pairs = || without.iter().zip(&with_probes);
    let more = |(without, with): (&Window, &Window)| {
        100.0 * (with.cpu_seconds_per_gigabyte() / without.cpu_seconds_per_gigabyte() - 1.0)
    };
    case.figure("percent_more_cpu_per_gigabyte", pairs().map(more));
    let slower = |(without, with): (&Window, &Window)| {
        100.0 * (1.0 - with.gigabytes_per_second() / without.gigabytes_per_second())
    };
    case.figure("percent_slower", pairs().map(slower));
    case.figure("foreign_cores", without.iter().chain(&with_probes).map(|window| window.foreign_cores));
    Ok(case)
}

fn transfer(settings: &Settings, probes: &'static str) -> Result<Window, String> {
    let cluster = Cluster::start(&with(settings, probes))?;
    let workload = Workload::new("watched", Layout::FanIn(CHANNELS), RECORD_BYTES);
    let mut stream = workload.start(cluster.a(), cluster.b())?;
    std::thread::sleep(WARM_UP);
    let window = stream.watch(&cluster, settings.window)?;
    stream.end()?;
    Ok(window)
}

/// Round trips of one byte over a connection of this process, beside no daemon with probes, one, and two.
///
/// A machine has one daemon. Programs of two stand at the same hooks one behind the other, so the second shows what it
/// costs that another one is there already.
fn others(settings: &Settings) -> Result<Case, String> {
    let rounds = settings.every_round("probes: sockets of others", |round| {
        let mut found = [0.0; 3];
        for step in 0..found.len() {
            let daemons = (step + round as usize) % found.len();
            let options = ClusterOptions { probes_at_one: daemons == 1, ..with(settings, "require") };
            let _cluster = (daemons > 0).then(|| Cluster::start(&options)).transpose()?;
            found[daemons] = round_trip_ns()?;
        }
        Ok(found)
    })?;
    let mut case = Case::new("probes: a connection that is not Weir's, round trips of one byte");
    let per_event = |less: usize, more: usize| {
        rounds.iter().map(move |found| (found[more] - found[less]) / PROBES_PER_ROUND_TRIP)
    };
    case.figure("cpu_nanoseconds_per_event", per_event(0, 1));
    case.figure("cpu_nanoseconds_per_event_second_daemon", per_event(1, 2));
    case.figure("cpu_nanoseconds_per_round_trip_without", rounds.iter().map(|found| found[0]));
    case.figure("cpu_nanoseconds_per_round_trip_beside_probes", rounds.iter().map(|found| found[1]));
    Ok(case)
}

/// CPU time of a round trip. Both ends are this thread's, so that nothing of it is anybody else's.
fn round_trip_ns() -> Result<f64, String> {
    let problem = |error: std::io::Error| format!("cannot measure a connection: {error}");
    let listener = TcpListener::bind("127.0.0.1:0").map_err(problem)?;
    let mut near = TcpStream::connect(listener.local_addr().map_err(problem)?).map_err(problem)?;
    let (mut far, _) = listener.accept().map_err(problem)?;
    for end in [&near, &far] {
        end.set_nodelay(true).map_err(problem)?;
    }
    let mut byte = [0];
    let mut began = thread_cpu_ns();
    // The first quarter warms up.
    for trip in 0..ROUND_TRIPS + ROUND_TRIPS / 4 {
        if trip == ROUND_TRIPS / 4 {
            began = thread_cpu_ns();
        }
        near.write_all(&byte).and_then(|()| far.read_exact(&mut byte)).map_err(problem)?;
        far.write_all(&byte).and_then(|()| near.read_exact(&mut byte)).map_err(problem)?;
    }
    Ok((thread_cpu_ns() - began) as f64 / f64::from(ROUND_TRIPS))
}
