//! Whether what overtakes data gets through while queues are full: those of other channels of the link in both directions, and
//! that of its own channel. Priority events stand for all control frames: a link sends control frames before them, and both
//! before data.

use crate::app::{self, App, Role};
use crate::cluster::{Cluster, Node};
use crate::pipeline::Layout;
use crate::probe::{Kind, ReceiverOptions, SenderOptions};
use crate::report::Case;

use super::{Settings, Stream, WARM_UP, Workload, delays};

const MEMORY_BYTES: u64 = 1 << 30;
const CHANNELS: u32 = 8;
const RECORD_BYTES: usize = 32 << 10;

/// One event every 5 ms in each direction.
const EVENT_EVERY_US: u64 = 5000;
const EVENT_BYTES: usize = 16;

/// Records that the consumer of a full queue takes in a second, and their length in bytes.
const SLOW_PACE: u64 = 500;
const SLOW_RECORD_BYTES: usize = 4 << 10;

/// Events that wait in line behind the queue are sent less often: no more than 8 may be under way.
const IN_LINE_EVERY_US: u64 = 250_000;

/// One direction: channels that carry all they can, and a probe beside them on the same link.
struct Direction {
    bulk: Stream,
    probe: [App; 2],
}

impl Direction {
    fn start(from: &Node, to: &Node) -> Result<Self, String> {
        let bulk = Workload::new(format!("bulk-from-{}", from.name), Layout::Forward(CHANNELS), RECORD_BYTES);
        let bulk = bulk.start(from, to)?;
        let exchange = format!("probe-from-{}", from.name);
        let probe = start_probe(from, to, exchange, Kind::PriorityEvent, EVENT_EVERY_US, None)?;
        Ok(Self { bulk, probe })
    }

    fn set_reading(&mut self, reads: bool) -> Result<(), String> {
        let word = if reads { "go" } else { "stop" };
        (0..CHANNELS).try_for_each(|worker| self.bulk.consumer.command(&format!("{word} {worker}")))
    }
}

fn start_probe(
    from: &Node,
    to: &Node,
    exchange: String,
    kind: Kind,
    every_us: u64,
    records_per_second: Option<u64>,
) -> Result<[App; 2], String> {
    let sender = App::start(&Role::ProbeSender(SenderOptions {
        run_dir: from.run_dir.clone(),
        exchange: exchange.clone(),
        kind,
        bytes: EVENT_BYTES,
        every_us,
    }))?;
    let mut receiver = App::start(&Role::ProbeReceiver(ReceiverOptions {
        run_dir: to.run_dir.clone(),
        exchange,
        exclusive: None,
        records_per_second,
    }))?;
    receiver.report()?;
    Ok([sender, receiver])
}

/// What a window over both directions found.
struct Found {
    /// From `a` to `b`, and back.
    delays: [Vec<u64>; 2],
    bytes: f64,
}

/// What one round found: with nobody reading, with everybody reading, and behind a queue of its own, overtaking it and in
/// line.
struct Round {
    full: Found,
    moving: Found,
    behind: [Vec<u64>; 2],
}

/// Each round: a window in which nobody reads and all producers wait, one in which everything moves, and one behind the queue
/// of a slow consumer.
pub(super) fn run(settings: &Settings) -> Result<Vec<Case>, String> {
    let cluster = Cluster::start(&settings.cluster(MEMORY_BYTES))?;
    let mut directions =
        [Direction::start(cluster.a(), cluster.b())?, Direction::start(cluster.b(), cluster.a())?];
    let rounds = settings.every_round("priority", |round| {
        Ok(Round {
            full: beside(settings, &mut directions, false)?,
            moving: beside(settings, &mut directions, true)?,
            behind: behind_queue(settings, &cluster, &mut directions, round)?,
        })
    })?;
    for Direction { bulk, probe } in directions {
        bulk.end()?;
        app::end(probe.into())?;
    }
    Ok(cases(settings, &rounds))
}

/// Delays of both directions within a window, and the bytes that their channels moved.
fn beside(settings: &Settings, directions: &mut [Direction; 2], reads: bool) -> Result<Found, String> {
    for direction in directions.iter_mut() {
        direction.set_reading(reads)?;
    }
    std::thread::sleep(WARM_UP);
    let mut before = 0;
    for Direction { bulk, probe: [_, receiver] } in directions.iter_mut() {
        receiver.report()?;
        before += bulk.consumer.report()?.bytes_total();
    }
    std::thread::sleep(settings.window);
    let (mut delays, mut after) = ([Vec::new(), Vec::new()], 0);
    for (Direction { bulk, probe: [_, receiver] }, delays) in directions.iter_mut().zip(&mut delays) {
        *delays = receiver.report()?.times_ns;
        after += bulk.consumer.report()?.bytes_total();
    }
    Ok(Found { delays, bytes: (after - before) as f64 })
}

/// Delays of events on channels whose queue is full since their consumer is slow: one that overtakes it, one in line. The
/// others stand still, so that the queue is all there is to wait for.
fn behind_queue(
    settings: &Settings,
    cluster: &Cluster,
    directions: &mut [Direction; 2],
    round: u32,
) -> Result<[Vec<u64>; 2], String> {
    for direction in directions.iter_mut() {
        direction.set_reading(false)?;
    }
    let start = |name: &str, is_priority: bool, every_us: u64| {
        let kind = Kind::BehindRecords { is_priority, record_bytes: SLOW_RECORD_BYTES };
        let exchange = format!("behind-{name}-{round}");
        start_probe(cluster.a(), cluster.b(), exchange, kind, every_us, Some(SLOW_PACE))
    };
    let mut probes = [start("priority", true, EVENT_EVERY_US)?, start("in-line", false, IN_LINE_EVERY_US)?];
    // Until queues are full, and events that came before that have passed.
    std::thread::sleep(WARM_UP * 4);
    for [_, receiver] in &mut probes {
        receiver.report()?;
    }
    std::thread::sleep(settings.window);
    let [overtaking, in_line] = &mut probes;
    let found = [overtaking[1].report()?.times_ns, in_line[1].report()?.times_ns];
    app::end(probes.into_iter().flatten().collect())?;
    Ok(found)
}

fn cases(settings: &Settings, rounds: &[Round]) -> Vec<Case> {
    let mut cases = Vec::new();
    let link = |name: &str, found: fn(&Round) -> &Found| {
        let mut case =
            Case::new(format!("priority: {CHANNELS} channels in each direction of one link, {name}"));
        for (at, direction) in ["event_delay_a_to_b", "event_delay_b_to_a"].into_iter().enumerate() {
            let of_rounds: Vec<Vec<u64>> =
                rounds.iter().map(|round| found(round).delays[at].clone()).collect();
            delays(&mut case, direction, &of_rounds);
        }
        case
    };
    let mut full = link("full: nobody reads", |round| &round.full);
    full.figure("bytes_read_of_both_directions", rounds.iter().map(|round| round.full.bytes));
    cases.push(full);
    let mut moving = link("moving: everybody reads", |round| &round.moving);
    let seconds = settings.window.as_secs_f64();
    moving.figure(
        "gigabytes_per_second_of_both_directions",
        rounds.iter().map(|round| round.moving.bytes / 1e9 / seconds),
    );
    cases.push(moving);
    let mut behind = Case::new(format!(
        "priority: an event behind the full queue of its own channel, whose consumer takes {SLOW_PACE} records of \
         {SLOW_RECORD_BYTES} B a second"
    ));
    for (at, name) in ["event_delay_overtaking", "event_delay_in_line"].into_iter().enumerate() {
        let of_rounds: Vec<Vec<u64>> = rounds.iter().map(|round| round.behind[at].clone()).collect();
        delays(&mut behind, name, &of_rounds);
    }
    cases.push(behind);
    cases
}
