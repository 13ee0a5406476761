//! Debloating: what is in flight to a slow consumer with and without, what it costs a fast one, and how soon it follows.
//!
//! The slow consumers sleep to keep their pace, so that both run at once and the CPU limits neither. What is in flight is
//! told by the daemon of the producers: what they handed over and the application has not given back.

use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::cluster::Cluster;
use crate::pipeline::Layout;
use crate::report::Case;

use super::{Settings, Stream, Window, Workload};

const MEMORY_BYTES: u64 = 1 << 30;
const CHANNELS: u32 = 16;

/// Records of the slow and of the stepping consumer.
const RECORD_BYTES: usize = 1 << 10;

/// Records that the slow consumer takes in a second.
const SLOW: u64 = 250;

/// Records that the stepping consumer takes in a second, before and after a step up.
const STEPS: [u64; 2] = [500, 2_000];

/// Longest time in which a step may be followed before the bench gives up on it.
const FOLLOW: Duration = Duration::from_secs(20);

/// How long a plateau is watched.
const PLATEAU: Duration = Duration::from_secs(6);

/// Time between two looks.
const LOOK: Duration = Duration::from_millis(20);

/// Once what is wanted has been the same for so long, five measurements of a gate, it follows the consumer as it is now.
const STEADY: Duration = Duration::from_secs(1);

/// Longest time in which a slow consumer may take what was granted to it before it was slow.
const DRAIN: Duration = Duration::from_secs(60);

/// Pairs of half windows in a round of a fast consumer, one with debloating and one without: by chance, two windows differ
/// by more than what debloating costs, so there have to be many.
const PAIRS: u32 = 8;

/// How long producers have written again before their consumer is watched. What is wanted in flight is as it was: a time
/// in which nothing came does not count.
const SWITCHED: Duration = Duration::from_millis(150);

/// Steps take their time: no more rounds of them than this.
const STEP_ROUNDS: u32 = 2;

/// The slow one, the fast one, the one that steps.
pub(super) fn run(settings: &Settings) -> Result<Vec<Case>, String> {
    let mut cases = vec![slow(settings)?];
    for record_bytes in [32 << 10, RECORD_BYTES] {
        cases.push(fast(settings, record_bytes)?);
    }
    cases.push(steps(settings)?);
    Ok(cases)
}

/// The same workload twice on one cluster: first with debloating.
fn both(cluster: &Cluster, name: &str, record_bytes: usize) -> Result<[Stream; 2], String> {
    let start = |what: &str, debloated| {
        let exchange = format!("{name}-{what}");
        let workload = Workload::new(exchange, Layout::FanIn(CHANNELS), record_bytes);
        Workload { debloated, ..workload }.start(cluster.a(), cluster.b())
    };
    Ok([start("with", true)?, start("without", false)?])
}

/// One round of a slow consumer, with debloating and without.
struct Slow {
    records_per_second: Vec<f64>,
    /// Bytes.
    in_flight: [f64; 2],
    /// How long the consumer takes for what is in flight to it, with debloating.
    seconds: f64,
}

fn slow(settings: &Settings) -> Result<Case, String> {
    let cluster = Cluster::start(&settings.cluster(MEMORY_BYTES))?;
    let mut streams = both(&cluster, "slow", RECORD_BYTES)?;
    for stream in &mut streams {
        stream.set_pace(&[SLOW])?;
    }
    await_consumed(&cluster, "slow-with")?;
    let rounds = settings.every_round("debloat, a slow consumer", |_| {
        let windows: Result<Vec<Window>, String> =
            streams.iter_mut().map(|stream| stream.watch(&cluster, settings.window)).collect();
        let report = cluster.ask(cluster.a(), "channels")?;
        let gates = cluster.ask(cluster.b(), "channels")?;
        Ok(Slow {
            records_per_second: windows?.iter().map(Window::records_per_second).collect(),
            in_flight: ["with", "without"].map(|what| in_flight(&report, &format!("slow-{what}"))),
            seconds: debloat_number(&gates, "slow-with", "in_flight_seconds").unwrap_or(f64::NAN),
        })
    })?;
    streams.into_iter().try_for_each(Stream::end)?;
    let mut case = Case::new(format!(
        "debloat: {CHANNELS} channels to a consumer that takes {SLOW} records of {RECORD_BYTES} B a second"
    ));
    let in_flight = || rounds.iter().map(|round| round.in_flight);
    case.figure("percent_less_in_flight", in_flight().map(|[with, without]| (1.0 - with / without) * 100.0));
    case.figure("with_in_flight_kilobytes", in_flight().map(|[with, _]| with / 1e3));
    case.figure("without_in_flight_kilobytes", in_flight().map(|[_, without]| without / 1e3));
    case.figure("with_in_flight_seconds", rounds.iter().map(|round| round.seconds));
    for (at, what) in ["with", "without"].into_iter().enumerate() {
        let counts = rounds.iter().filter_map(|round| round.records_per_second.get(at).copied());
        case.figure(&format!("{what}_records_per_second"), counts);
    }
    Ok(case)
}

/// Waits until no more is in flight to a slow consumer than is wanted: what was granted to it before it was slow is consumed.
fn await_consumed(cluster: &Cluster, exchange: &str) -> Result<(), String> {
    let began = Instant::now();
    loop {
        let wanted = debloat_number(&cluster.ask(cluster.b(), "channels")?, exchange, "wanted_bytes");
        let bytes = in_flight(&cluster.ask(cluster.a(), "channels")?, exchange);
        if wanted.is_some_and(|wanted| bytes <= wanted) {
            return Ok(());
        }
        if began.elapsed() > DRAIN {
            return Err(format!(
                "{exchange}: {bytes} B in flight after {} s; wanted: {wanted:?}",
                DRAIN.as_secs()
            ));
        }
        sleep(LOOK);
    }
}

/// Waits until what is wanted for an exchange stays as it is, or for as long as a step may be followed: that one that does not
/// settle is slower is for its figures to say.
fn await_steady(cluster: &Cluster, exchange: &str) -> Result<(), String> {
    let began = Instant::now();
    let (mut wanted, mut since) = (None, began);
    while since.elapsed() < STEADY && began.elapsed() < FOLLOW {
        let found = debloat_number(&cluster.ask(cluster.b(), "channels")?, exchange, "wanted_bytes");
        if found != wanted {
            (wanted, since) = (found, Instant::now());
        }
        sleep(LOOK);
    }
    Ok(())
}

fn fast(settings: &Settings, record_bytes: usize) -> Result<Case, String> {
    let cluster = Cluster::start(&settings.cluster(MEMORY_BYTES))?;
    let mut streams = both(&cluster, "fast", record_bytes)?;
    let [with, without] = &mut streams;
    without.set_writing(false)?;
    await_steady(&cluster, "fast-with")?;
    with.set_writing(false)?;
    let rounds = settings.every_round(&format!("debloat, a fast consumer, {record_bytes} B"), |_| {
        let mut one = |is_with: bool| {
            let stream = if is_with { &mut *with } else { &mut *without };
            stream.set_writing(true)?;
            sleep(SWITCHED);
            let window = stream.watch(&cluster, settings.window / 2);
            stream.set_writing(false)?;
            window
        };
        // One at a time; who is first takes turns.
        let pair = |number: u32| {
            Ok::<[Window; 2], String>(if number.is_multiple_of(2) {
                let with = one(true)?;
                [with, one(false)?]
            } else {
                let without = one(false)?;
                [one(true)?, without]
            })
        };
        (0..PAIRS).map(pair).collect::<Result<Vec<_>, _>>()
    })?;
    for stream in &mut streams {
        stream.set_writing(true)?;
    }
    streams.into_iter().try_for_each(Stream::end)?;
    let pairs: Vec<[Window; 2]> = rounds.into_iter().flatten().collect();
    let mut case = Case::new(format!(
        "debloat: {CHANNELS} channels to a consumer that takes all it can, records of {record_bytes} B"
    ));
    let ratios =
        |value: fn(&Window) -> f64| pairs.iter().map(move |[with, without]| value(with) / value(without));
    case.figure("throughput_with_over_without", ratios(Window::gigabytes_per_second));
    case.figure("cpu_per_gigabyte_with_over_without", ratios(Window::cpu_seconds_per_gigabyte));
    case.figure("with_gigabytes_per_second", pairs.iter().map(|[with, _]| with.gigabytes_per_second()));
    case.figure(
        "without_gigabytes_per_second",
        pairs.iter().map(|[_, without]| without.gigabytes_per_second()),
    );
    case.figure("foreign_cores", pairs.iter().flatten().map(|window| window.foreign_cores));
    Ok(case)
}

/// What one step showed.
struct Step {
    /// When what is wanted was what the new rate asks for, in seconds.
    wanted: f64,
    /// When no more was in flight than that.
    in_flight: f64,
    /// How long the application takes at the new rate for what was in flight at the step.
    granted: f64,
}

fn steps(settings: &Settings) -> Result<Case, String> {
    let cluster = Cluster::start(&settings.cluster(MEMORY_BYTES))?;
    let workload = Workload::new("step", Layout::FanIn(CHANNELS), RECORD_BYTES);
    let mut stream = Workload { debloated: true, ..workload }.start(cluster.a(), cluster.b())?;
    let [low, high] = STEPS;
    // The first step is only a beginning.
    step(&cluster, &mut stream, low)?;
    let rounds = settings.notes.run_rounds("debloat, steps", settings.rounds.min(STEP_ROUNDS), |_| {
        let up = step(&cluster, &mut stream, high)?;
        let high_turns = plateau(&cluster)?;
        let down = step(&cluster, &mut stream, low)?;
        Ok::<_, String>((up, down, [high_turns, plateau(&cluster)?]))
    })?;
    stream.end()?;
    let (up, down) = (|| rounds.iter().map(|(up, ..)| up), || rounds.iter().map(|(_, down, _)| down));
    let mut case = Case::new(format!(
        "debloat: {CHANNELS} channels to a consumer that takes {low}, then {high} records of {RECORD_BYTES} B a second"
    ));
    case.figure("up_seconds_until_wanted", up().map(|step| step.wanted));
    case.figure("down_seconds_until_wanted", down().map(|step| step.wanted));
    case.figure("down_seconds_until_in_flight", down().map(|step| step.in_flight));
    case.figure("down_seconds_to_consume_what_was_granted", down().map(|step| step.granted));
    case.figure("plateau_direction_changes", rounds.iter().flat_map(|(.., turns)| *turns));
    Ok(case)
}

/// Sets another rate, and waits until it is followed. What is not followed in time is infinite, and not in the figures.
fn step(cluster: &Cluster, stream: &mut Stream, records_per_second: u64) -> Result<Step, String> {
    // As the gate counts them: with their lengths.
    let rate = records_per_second as f64 * (RECORD_BYTES + 4) as f64;
    let granted = in_flight(&cluster.ask(cluster.a(), "channels")?, "step") / rate;
    stream.set_pace(&[records_per_second])?;
    let began = Instant::now();
    let mut found = Step { wanted: f64::INFINITY, in_flight: f64::INFINITY, granted };
    while began.elapsed() < FOLLOW && !(found.wanted.is_finite() && found.in_flight.is_finite()) {
        let wanted = debloat_number(&cluster.ask(cluster.b(), "channels")?, "step", "wanted_bytes");
        let seconds = began.elapsed().as_secs_f64();
        // The target is a second. A step is four times as much, or a quarter.
        if found.wanted.is_infinite()
            && wanted.is_some_and(|wanted| (rate / 1.5..rate * 1.5).contains(&wanted))
        {
            found.wanted = seconds;
        }
        let bytes = in_flight(&cluster.ask(cluster.a(), "channels")?, "step");
        if found.in_flight.is_infinite() && found.wanted.is_finite() && bytes <= rate * 1.5 {
            found.in_flight = began.elapsed().as_secs_f64();
        }
        sleep(LOOK);
    }
    Ok(found)
}

/// How often what is wanted changes its direction while nothing else changes.
fn plateau(cluster: &Cluster) -> Result<f64, String> {
    let turns = || -> Result<f64, String> {
        let report = cluster.ask(cluster.b(), "channels")?;
        debloat_number(&report, "step", "turns_total").ok_or_else(|| "the gate is not there".to_owned())
    };
    let before = turns()?;
    sleep(PLATEAU);
    Ok(turns()? - before)
}

/// Bytes that the producers of an exchange handed over and its consumers have not given back.
fn in_flight(report: &Value, exchange: &str) -> f64 {
    let rows = report["channels"].as_array().into_iter().flatten();
    let of = rows.filter(|row| row["exchange"] == exchange && row["side"] == "send");
    of.filter_map(|row| row["in_flight_bytes"].as_f64()).sum()
}

/// A number of what the only gate of an exchange does.
fn debloat_number(report: &Value, exchange: &str, key: &str) -> Option<f64> {
    let mut rows = report["gates"].as_array()?.iter();
    rows.find(|row| row["exchange"] == exchange)?["debloat"][key].as_f64()
}
