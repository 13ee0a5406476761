//! How soon a message arrives: one at a time there and back, and 10,000 a second at fixed times, alone and beside a bulk
//! that fills the same path. Each beside raw TCP in the same round.

use crate::app::{self, App, Role};
use crate::blast;
use crate::cluster::Cluster;
use crate::latency::{Options, Part, Transport};
use crate::pipeline::Layout;
use crate::report::Case;
use crate::statistics::percentile;

use super::{Settings, WARM_UP, Workload};

const MEMORY_BYTES: u64 = 1 << 30;
const PING_BYTES: usize = 64;
pub(super) const OPEN_LOOP_BYTES: usize = 1024;

/// 10,000 messages a second.
pub(super) const EVERY_NS: u64 = 100_000;

const BULK_RECORD_BYTES: usize = 32 << 10;

/// Open loops: channels, and the buffer timeout in milliseconds.
const OPEN_LOOPS: [(u32, u64); 4] = [(1, 0), (16, 0), (1, 1), (1, 100)];

/// The times of the messages of one window, in nanoseconds.
pub(super) type Times = Vec<u64>;

/// The windows of one measurement over raw TCP and over Weir, one a round.
struct Pairs {
    tcp: Vec<Times>,
    weir: Vec<Times>,
}

/// What one round found: over raw TCP, over Weir.
struct Round {
    wake: Times,
    alone: [Times; 2],
    beside: [Times; 2],
    open_loops: Vec<[Times; 2]>,
}

/// Each round: every measurement over raw TCP, then over Weir.
pub(super) fn run(settings: &Settings) -> Result<Vec<Case>, String> {
    let cluster = Cluster::start(&settings.cluster(MEMORY_BYTES))?;
    let rounds = settings.every_round("latency", |round| {
        Ok(Round {
            wake: wake(settings)?,
            alone: [ping_tcp(settings)?, ping_weir(settings, &cluster, &format!("ping-{round}"))?],
            beside: [beside_blast(settings)?, beside_bulk(settings, &cluster, round)?],
            open_loops: open_loops(settings, &cluster, round)?,
        })
    })?;
    let wakes: Vec<Times> = rounds.iter().map(|round| round.wake.clone()).collect();
    let mut cases = vec![
        ping_case(&Pairs::of(&rounds, |round| &round.alone), &wakes),
        beside_case(&Pairs::of(&rounds, |round| &round.beside)),
    ];
    for (at, (channels, buffer_timeout_ms)) in OPEN_LOOPS.into_iter().enumerate() {
        let pairs = Pairs::of(&rounds, |round| &round.open_loops[at]);
        cases.push(open_loop_case(channels, buffer_timeout_ms, &pairs));
    }
    Ok(cases)
}

impl Pairs {
    fn of<'a>(rounds: &'a [Round], part: impl Fn(&'a Round) -> &'a [Times; 2]) -> Self {
        let which = |at: usize| rounds.iter().map(|round| part(round)[at].clone()).collect();
        Self { tcp: which(0), weir: which(1) }
    }
}

fn open_loops(settings: &Settings, cluster: &Cluster, round: u32) -> Result<Vec<[Times; 2]>, String> {
    let measure = |(channels, buffer_timeout_ms): (u32, u64)| {
        let exchange = format!("open-{channels}-{buffer_timeout_ms}-{round}");
        Ok([
            open_loop_tcp(settings, channels)?,
            open_loop_weir(settings, cluster, exchange, channels, buffer_timeout_ms)?,
        ])
    };
    OPEN_LOOPS.into_iter().map(measure).collect()
}

fn start(transport: Transport, bytes: usize, channels: u32, part: Part) -> Result<App, String> {
    App::start(&Role::Latency(Options { transport, bytes, channels, part }))
}

/// What `app` notes within a window.
pub(super) fn watch(settings: &Settings, app: &mut App) -> Result<Times, String> {
    std::thread::sleep(WARM_UP);
    app.report()?;
    std::thread::sleep(settings.window);
    let times = app.report()?.times_ns;
    if times.is_empty() { Err("no message arrived within the window".to_owned()) } else { Ok(times) }
}

fn wake(settings: &Settings) -> Result<Times, String> {
    let mut app = start(Transport::Tcp { port: None }, PING_BYTES, 1, Part::Wake)?;
    watch(settings, &mut app)
}

fn ping_tcp(settings: &Settings) -> Result<Times, String> {
    let mut echo = start(Transport::Tcp { port: None }, PING_BYTES, 1, Part::Echo)?;
    let port = Some(echo.port()?);
    let mut ping = start(Transport::Tcp { port }, PING_BYTES, 1, Part::Ping)?;
    watch(settings, &mut ping)
}

fn ping_weir(settings: &Settings, cluster: &Cluster, exchange: &str) -> Result<Times, String> {
    let transport = |node: &crate::cluster::Node| Transport::Weir {
        run_dir: node.run_dir.clone(),
        exchange: exchange.to_owned(),
        buffer_timeout_ms: 0,
    };
    let echo = start(transport(cluster.b()), PING_BYTES, 1, Part::Echo)?;
    let mut ping = start(transport(cluster.a()), PING_BYTES, 1, Part::Ping)?;
    let times = watch(settings, &mut ping)?;
    app::end(vec![ping, echo])?;
    Ok(times)
}

/// A ping over raw TCP while another connection carries a blast.
fn beside_blast(settings: &Settings) -> Result<Times, String> {
    let chunk_bytes = blast::CHUNK_BYTES;
    let mut receiver = App::start(&Role::BlastReceiver { chunk_bytes })?;
    let port = receiver.port()?;
    let _sender =
        App::start(&Role::BlastSender { port, chunk_bytes, congestion: settings.congestion.clone() })?;
    ping_tcp(settings)
}

/// A ping over Weir while another exchange carries records as fast as it can, over the same link.
fn beside_bulk(settings: &Settings, cluster: &Cluster, round: u32) -> Result<Times, String> {
    let bulk = Workload::new(format!("latency-bulk-{round}"), Layout::Forward(1), BULK_RECORD_BYTES);
    let bulk = bulk.start(cluster.a(), cluster.b())?;
    let times = ping_weir(settings, cluster, &format!("ping-beside-{round}"))?;
    bulk.end()?;
    Ok(times)
}

pub(super) fn open_loop_tcp(settings: &Settings, channels: u32) -> Result<Times, String> {
    let mut receiver = start(Transport::Tcp { port: None }, OPEN_LOOP_BYTES, channels, Part::Receive)?;
    let port = Some(receiver.port()?);
    let part = Part::OpenLoop { every_ns: EVERY_NS };
    let _sender = start(Transport::Tcp { port }, OPEN_LOOP_BYTES, channels, part)?;
    watch(settings, &mut receiver)
}

pub(super) fn open_loop_weir(
    settings: &Settings,
    cluster: &Cluster,
    exchange: String,
    channels: u32,
    buffer_timeout_ms: u64,
) -> Result<Times, String> {
    let transport = |node: &crate::cluster::Node| Transport::Weir {
        run_dir: node.run_dir.clone(),
        exchange: exchange.clone(),
        buffer_timeout_ms,
    };
    let part = Part::OpenLoop { every_ns: EVERY_NS };
    let sender = start(transport(cluster.a()), OPEN_LOOP_BYTES, channels, part)?;
    let mut receiver = start(transport(cluster.b()), OPEN_LOOP_BYTES, channels, Part::Receive)?;
    let times = watch(settings, &mut receiver)?;
    app::end(vec![sender, receiver])?;
    Ok(times)
}

/// Percentiles in microseconds, one value a round.
pub(super) fn microseconds<'a>(rounds: &'a [Times], share: f64) -> impl Iterator<Item = f64> + 'a {
    rounds.iter().map(move |times| percentile(times, share) as f64 / 1e3)
}

pub(super) fn percentiles(case: &mut Case, name: &str, rounds: &[Times]) {
    for (what, share) in [("p50", 0.5), ("p99", 0.99), ("p999", 0.999), ("max", 1.0)] {
        case.figure(&format!("{name}_microseconds_{what}"), microseconds(rounds, share));
    }
    case.figure(&format!("{name}_count"), rounds.iter().map(|times| times.len() as f64));
}

/// Weir's percentile over that of raw TCP and whatever else is added to it, round by round.
fn ratio(case: &mut Case, name: &str, pairs: &Pairs, share: f64, added: impl Iterator<Item = f64>) {
    let base = microseconds(&pairs.tcp, share).zip(added).map(|(tcp, added)| tcp + added);
    case.figure(name, microseconds(&pairs.weir, share).zip(base).map(|(weir, base)| weir / base));
}

fn ping_case(pairs: &Pairs, wakes: &[Times]) -> Case {
    let mut case = Case::new(format!("latency: {PING_BYTES} B there and back, one at a time"));
    percentiles(&mut case, "weir", &pairs.weir);
    percentiles(&mut case, "tcp", &pairs.tcp);
    percentiles(&mut case, "wake", wakes);
    let two_wakes = |share| microseconds(wakes, share).map(|wake| 2.0 * wake);
    ratio(&mut case, "p50_over_tcp_and_two_wakes", pairs, 0.5, two_wakes(0.5));
    ratio(&mut case, "p99_over_tcp_and_two_wakes", pairs, 0.99, two_wakes(0.99));
    case
}

fn beside_case(pairs: &Pairs) -> Case {
    let mut case =
        Case::new(format!("latency: {PING_BYTES} B there and back, beside a bulk over the same path"));
    percentiles(&mut case, "weir", &pairs.weir);
    percentiles(&mut case, "tcp", &pairs.tcp);
    ratio(&mut case, "p50_over_tcp", pairs, 0.5, std::iter::repeat(0.0));
    ratio(&mut case, "p99_over_tcp", pairs, 0.99, std::iter::repeat(0.0));
    case
}

fn open_loop_case(channels: u32, buffer_timeout_ms: u64, pairs: &Pairs) -> Case {
    let mut case = Case::new(format!(
        "latency: {OPEN_LOOP_BYTES} B every {} us over {channels} {}, buffer timeout {buffer_timeout_ms} ms",
        EVERY_NS / 1000,
        if channels == 1 { "channel" } else { "channels" }
    ));
    percentiles(&mut case, "weir", &pairs.weir);
    percentiles(&mut case, "tcp", &pairs.tcp);
    ratio(&mut case, "p50_over_tcp", pairs, 0.5, std::iter::repeat(0.0));
    ratio(&mut case, "p99_over_tcp", pairs, 0.99, std::iter::repeat(0.0));
    case
}
