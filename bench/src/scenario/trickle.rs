//! Whether a trickle is delivered in time beside a bulk channel on the same link: 100 B every 20 ms, on a channel with 100
//! segments of credit of its own. Nothing fills a segment, so a record waits for the buffer timeout, and then must not
//! wait for the bulk.

use std::time::Duration;

use crate::app::{self, App, Role};
use crate::cluster::Cluster;
use crate::pipeline::Layout;
use crate::probe::{Kind, ReceiverOptions, SenderOptions};
use crate::report::Case;
use crate::statistics::percentile;

use super::{Settings, WARM_UP, Workload, delays};

const MEMORY_BYTES: u64 = 1 << 30;
const TRICKLE_BYTES: usize = 100;
const TRICKLE_EVERY_US: u64 = 20_000;
const TRICKLE_SEGMENTS: u32 = 100;
const BULK_RECORD_BYTES: usize = 32 << 10;

/// Buffer timeouts, in milliseconds; 0: each record at once. Each has a trickle of its own, all at the same time.
const BUFFER_TIMEOUTS_MS: [u64; 3] = [0, 10, 100];

/// The delays of each trickle, in nanoseconds, and what the bulk beside them moved.
struct Round {
    alone: Vec<Vec<u64>>,
    beside: Vec<Vec<u64>>,
    /// Gigabytes per second.
    bulk_rate: f64,
}

/// Each round: a window with the trickles alone, and one beside the bulk.
pub(super) fn run(settings: &Settings) -> Result<Vec<Case>, String> {
    let cluster = Cluster::start(&settings.cluster(MEMORY_BYTES))?;
    let mut trickles = Vec::new();
    for buffer_timeout_ms in BUFFER_TIMEOUTS_MS {
        trickles.push(start_trickle(&cluster, buffer_timeout_ms)?);
    }
    let rounds = settings.every_round("trickle", |round| {
        let alone = watch(&mut trickles, settings.window)?;
        let bulk = Workload::new(format!("bulk-{round}"), Layout::Forward(1), BULK_RECORD_BYTES);
        let mut bulk = bulk.start(cluster.a(), cluster.b())?;
        std::thread::sleep(WARM_UP);
        let before = bulk.consumer.report()?.bytes_total();
        let beside = watch(&mut trickles, settings.window)?;
        let bytes = bulk.consumer.report()?.bytes_total() - before;
        bulk.end()?;
        Ok(Round { alone, beside, bulk_rate: bytes as f64 / 1e9 / settings.window.as_secs_f64() })
    })?;
    app::end(trickles.into_iter().flatten().collect())?;
    Ok(cases(&rounds))
}

fn start_trickle(cluster: &Cluster, buffer_timeout_ms: u64) -> Result<[App; 2], String> {
    let exchange = format!("trickle-{buffer_timeout_ms}");
    let sender = App::start(&Role::ProbeSender(SenderOptions {
        run_dir: cluster.a().run_dir.clone(),
        exchange: exchange.clone(),
        kind: Kind::Record { buffer_timeout_ms },
        bytes: TRICKLE_BYTES,
        every_us: TRICKLE_EVERY_US,
    }))?;
    let mut receiver = App::start(&Role::ProbeReceiver(ReceiverOptions {
        run_dir: cluster.b().run_dir.clone(),
        exchange,
        exclusive: Some(TRICKLE_SEGMENTS),
        records_per_second: None,
    }))?;
    receiver.report()?;
    Ok([sender, receiver])
}

/// What the trickles saw within a window.
fn watch(trickles: &mut [[App; 2]], window: Duration) -> Result<Vec<Vec<u64>>, String> {
    for [_, receiver] in trickles.iter_mut() {
        // What came before the window.
        receiver.report()?;
    }
    std::thread::sleep(window);
    trickles.iter_mut().map(|[_, receiver]| Ok(receiver.report()?.times_ns)).collect()
}

fn cases(rounds: &[Round]) -> Vec<Case> {
    let mut cases = Vec::new();
    for (at, buffer_timeout_ms) in BUFFER_TIMEOUTS_MS.into_iter().enumerate() {
        let of = |part: fn(&Round) -> &Vec<Vec<u64>>| {
            rounds.iter().filter_map(|round| part(round).get(at).cloned()).collect::<Vec<_>>()
        };
        let (alone, beside) = (of(|round| &round.alone), of(|round| &round.beside));
        let mut case = Case::new(format!(
            "trickle: {TRICKLE_BYTES} B every {} ms, {TRICKLE_SEGMENTS} segments of credit, buffer timeout \
             {buffer_timeout_ms} ms",
            TRICKLE_EVERY_US / 1000
        ));
        delays(&mut case, "delay_alone", &alone);
        delays(&mut case, "delay_beside_bulk", &beside);
        let beyond = |times: &Vec<u64>| percentile(times, 0.99) as f64 / 1e6 - buffer_timeout_ms as f64;
        case.figure("p99_beside_bulk_beyond_buffer_timeout_milliseconds", beside.iter().map(beyond));
        case.figure("gigabytes_per_second_of_the_bulk", rounds.iter().map(|round| round.bulk_rate));
        cases.push(case);
    }
    cases
}
