//! Whether what overtakes data gets through while both directions of one link are full. Priority events stand for all
//! control frames: a link sends control frames before them, and both before data.

use std::time::Duration;

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

/// A shorter window has too few events for a percentile.
const WINDOW_MIN: Duration = Duration::from_secs(2);

/// One direction: channels that carry all they can, and a probe beside them on the same link.
struct Direction {
    bulk: Stream,
    sender: App,
    receiver: App,
}

impl Direction {
    fn start(from: &Node, to: &Node) -> Result<Self, String> {
        let probe = format!("probe-from-{}", from.name);
        let bulk = Workload::new(format!("bulk-from-{}", from.name), Layout::Forward(CHANNELS), RECORD_BYTES);
        let bulk = bulk.start(from, to)?;
        let sender = App::start(&Role::ProbeSender(SenderOptions {
            run_dir: from.run_dir.clone(),
            exchange: probe.clone(),
            kind: Kind::PriorityEvent,
            bytes: EVENT_BYTES,
            every_us: EVENT_EVERY_US,
        }))?;
        let mut receiver = App::start(&Role::ProbeReceiver(ReceiverOptions {
            run_dir: to.run_dir.clone(),
            exchange: probe,
            exclusive: None,
        }))?;
        receiver.report()?;
        Ok(Self { bulk, sender, receiver })
    }

    fn set_reading(&mut self, reads: bool) -> Result<(), String> {
        let word = if reads { "go" } else { "stop" };
        (0..CHANNELS).try_for_each(|worker| self.bulk.consumer.command(&format!("{word} {worker}")))
    }
}

/// Each round: a window in which nobody reads and all producers wait, and one in which everything moves.
pub(super) fn run(settings: &Settings) -> Result<Vec<Case>, String> {
    let cluster = Cluster::start(&settings.cluster(MEMORY_BYTES))?;
    let mut directions =
        [Direction::start(cluster.a(), cluster.b())?, Direction::start(cluster.b(), cluster.a())?];
    let window = settings.window.max(WINDOW_MIN);
    let (mut full, mut moving) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
    let mut bytes_while_full = Vec::new();
    let mut rates = Vec::new();
    for round in 0..settings.rounds {
        for (reads, found) in [(false, &mut full), (true, &mut moving)] {
            for direction in &mut directions {
                direction.set_reading(reads)?;
            }
            std::thread::sleep(WARM_UP);
            let bytes = watch(&mut directions, window, found)?;
            if reads {
                rates.push(bytes as f64 / 1e9 / window.as_secs_f64());
            } else {
                bytes_while_full.push(bytes as f64);
            }
        }
        eprintln!("control: round {} of {}", round + 1, settings.rounds);
    }
    for Direction { bulk, sender, receiver } in directions {
        bulk.end()?;
        app::end(vec![sender, receiver])?;
    }
    let mut cases = Vec::new();
    for (name, found) in [("full: nobody reads", &full), ("moving: everybody reads", &moving)] {
        let mut case =
            Case::new(format!("control: {CHANNELS} channels in each direction of one link, {name}"));
        for (direction, rounds) in ["event_delay_a_to_b", "event_delay_b_to_a"].into_iter().zip(found) {
            delays(&mut case, direction, rounds);
        }
        cases.push(case);
    }
    if let [full, moving] = &mut cases[..] {
        full.figure("bytes_read_of_both_directions", bytes_while_full);
        moving.figure("gigabytes_per_second_of_both_directions", rates);
    }
    Ok(cases)
}

/// Delays of both directions within a window, and the bytes that their channels moved.
fn watch(
    directions: &mut [Direction; 2],
    window: Duration,
    found: &mut [Vec<Vec<u64>>; 2],
) -> Result<u64, String> {
    let mut bytes = 0;
    for direction in directions.iter_mut() {
        direction.receiver.report()?;
        bytes += direction.bulk.consumer.report()?.bytes_total();
    }
    std::thread::sleep(window);
    let mut after = 0;
    for (direction, found) in directions.iter_mut().zip(found) {
        found.push(direction.receiver.report()?.times_ns);
        after += direction.bulk.consumer.report()?.bytes_total();
    }
    Ok(after - bytes)
}
