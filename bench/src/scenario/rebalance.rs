//! What a slow consumer costs the others when consumers are interchangeable, by how the producer chooses.
//!
//! Consumers keep a pace by sleeping, so that what they can take is known exactly and the CPU is not what limits them: the choices
//! are measured at once, each with an exchange of its own.

use std::time::{Duration, Instant};

use crate::choice::Choice;
use crate::cluster::Cluster;
use crate::pipeline::Layout;
use crate::report::Case;

use super::{Settings, Stream, Workload, watch_rates};

const CONSUMERS: u32 = 8;
const RECORD_BYTES: usize = 4096;
const MEMORY_BYTES: u64 = 1 << 30;

/// Records a second that a consumer takes which is not slow.
const PACE: u64 = 2000;

/// The consumer that is slow.
const SLOW: usize = 3;

/// How long a producer may take to fill what is in flight and to learn who is slow.
const SETTLE: Duration = Duration::from_millis(700);

/// Rates are looked at in slices of this length while a consumer recovers.
const SLICE: Duration = Duration::from_millis(50);

/// A consumer has recovered when a slice has so much of its pace.
const RECOVERED: f64 = 0.8;

/// Longest time that is waited for that.
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(5);

const CHOICES: [(&str, Choice); 3] =
    [("in_turn", Choice::InTurn), ("next_four", Choice::NextFour), ("adaptive", Choice::Adaptive)];

/// What is wrong with the slow consumer.
struct Skew {
    name: &'static str,
    producers: u32,
    /// Records a second that it takes.
    slow_pace: u64,
}

const SKEWS: [Skew; 5] = [
    Skew { name: "all equal", producers: 1, slow_pace: PACE },
    Skew { name: "one of 8 takes half", producers: 1, slow_pace: PACE / 2 },
    Skew { name: "one of 8 takes a tenth", producers: 1, slow_pace: PACE / 10 },
    Skew { name: "one of 8 is stopped", producers: 1, slow_pace: 0 },
    Skew {
        name: "8 producers at once, one of 8 consumers takes a tenth",
        producers: 8,
        slow_pace: PACE / 10,
    },
];

impl Skew {
    fn paces(&self) -> [u64; CONSUMERS as usize] {
        let mut paces = [PACE; CONSUMERS as usize];
        paces[SLOW] = self.slow_pace;
        paces
    }
}

/// Each round: every skew with every choice; then how soon a consumer that has recovered gets its share.
pub(super) fn run(settings: &Settings) -> Result<Vec<Case>, String> {
    let cluster = Cluster::start(&settings.cluster(MEMORY_BYTES))?;
    let rounds = settings.every_round("rebalance", |round| {
        // Of each skew and choice: the share of what all consumers can take.
        let mut shares = [[0.0; CHOICES.len()]; SKEWS.len()];
        for (skew, shares) in SKEWS.iter().zip(&mut shares) {
            *shares = measure(settings, &cluster, round, skew)?;
        }
        Ok((shares, recovery(&cluster, round)?))
    })?;
    let shares_of = |at: usize| rounds.iter().map(|(shares, _)| shares[at]).collect::<Vec<_>>();
    let mut cases: Vec<Case> =
        SKEWS.iter().enumerate().map(|(at, skew)| case(skew, &shares_of(at))).collect();
    let mut case = Case::new("rebalance: one of 8 took a tenth and takes all it is given again, adaptive");
    case.figure("milliseconds_until_it_has_its_share", rounds.iter().map(|(_, recovery)| *recovery));
    cases.push(case);
    Ok(cases)
}

fn case(skew: &Skew, rounds: &[[f64; CHOICES.len()]]) -> Case {
    let mut case = Case::new(format!("rebalance: {CONSUMERS} consumers, {}", skew.name));
    let can_take: u64 = skew.paces().iter().sum();
    case.figure("records_per_second_that_consumers_can_take", [can_take as f64]);
    for (at, (name, _)) in CHOICES.iter().enumerate() {
        case.figure(&format!("percent_of_that_{name}"), rounds.iter().map(|shares| 100.0 * shares[at]));
    }
    let adaptive_over = |other: usize| rounds.iter().map(move |shares| shares[2] / shares[other]);
    // Strictly in turn nothing moves beside a consumer that is stopped.
    if skew.slow_pace > 0 {
        case.figure("adaptive_over_in_turn", adaptive_over(0));
    }
    case.figure("adaptive_over_next_four", adaptive_over(1));
    case
}

fn start(cluster: &Cluster, exchange: String, producers: u32, choice: Choice) -> Result<Stream, String> {
    let layout = Layout::Spread { producers, consumers: CONSUMERS };
    let mut workload = Workload::new(exchange, layout, RECORD_BYTES);
    workload.choice = choice;
    workload.start(cluster.a(), cluster.b())
}

/// Of what the consumers can take, the share that each choice gave them.
fn measure(
    settings: &Settings,
    cluster: &Cluster,
    round: u32,
    skew: &Skew,
) -> Result<[f64; CHOICES.len()], String> {
    let mut streams = Vec::new();
    for (name, choice) in CHOICES {
        let exchange = format!("{name}-{}-{}-{round}", skew.producers, skew.slow_pace);
        let mut stream = start(cluster, exchange, skew.producers, choice)?;
        stream.set_pace(&skew.paces())?;
        streams.push(stream);
    }
    std::thread::sleep(SETTLE);
    let rates = watch_rates(&mut streams, settings.window)?;
    streams.into_iter().try_for_each(Stream::end)?;
    let can_take: u64 = skew.paces().iter().sum();
    let mut shares = [0.0; CHOICES.len()];
    shares.iter_mut().zip(rates).for_each(|(share, rate)| *share = rate / can_take as f64);
    Ok(shares)
}

/// Milliseconds from the moment when a slow consumer takes its pace again until it is given it.
fn recovery(cluster: &Cluster, round: u32) -> Result<f64, String> {
    let skew = Skew { name: "", producers: 1, slow_pace: PACE / 10 };
    let mut stream = start(cluster, format!("recovery-{round}"), 1, Choice::Adaptive)?;
    stream.set_pace(&skew.paces())?;
    std::thread::sleep(2 * SETTLE);
    let mut before = stream.consumer.report()?;
    stream.set_pace(&[PACE; CONSUMERS as usize])?;
    let (began, mut last) = (Instant::now(), Instant::now());
    while began.elapsed() < RECOVERY_TIMEOUT {
        std::thread::sleep(SLICE);
        let after = stream.consumer.report()?;
        let seconds = last.elapsed().as_secs_f64();
        last = Instant::now();
        let taken = |counts: &crate::app::Counts| counts.records.get(SLOW).copied().unwrap_or(0);
        let rate = (taken(&after) - taken(&before)) as f64 / seconds;
        if rate >= RECOVERED * PACE as f64 {
            let milliseconds = began.elapsed().as_secs_f64() * 1e3;
            stream.end()?;
            return Ok(milliseconds);
        }
        before = after;
    }
    Err(format!("a consumer that recovered did not get its share within {} s", RECOVERY_TIMEOUT.as_secs()))
}
