//! Runs the simulator: one seed, or a range of seeds, with a coverage table at the end.

use std::ops::Range;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use weir_sim::{Coverage, Options, STEPS, Sabotage, run};

const USAGE: &str =
    "usage: weir-sim (--seed N | --seeds A..B) [--steps N] [--seconds-max S] [--trace] [--coverage]";

#[derive(Debug, PartialEq, Eq)]
struct Arguments {
    seeds: Range<u64>,
    steps: u64,
    seconds_max: u64,
    trace: bool,
    coverage: bool,
}

fn number(name: &str, text: Option<String>) -> Result<u64, String> {
    let text = text.ok_or_else(|| format!("{name} has no value; needed: a number"))?;
    text.parse().map_err(|_| format!("{name} is {text:?}; needed: a number"))
}

fn range(text: Option<String>) -> Result<Range<u64>, String> {
    let text = text.ok_or("--seeds has no value; needed: A..B")?;
    let ends = text.split_once("..").and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
    let (first, end) = ends.ok_or_else(|| format!("--seeds is {text:?}; needed: A..B"))?;
    if first < end { Ok(first..end) } else { Err(format!("--seeds is {text:?}; needed: A below B")) }
}

fn parse(mut words: impl Iterator<Item = String>) -> Result<Arguments, String> {
    let mut seeds = None;
    let mut arguments =
        Arguments { seeds: 0..0, steps: STEPS, seconds_max: u64::MAX, trace: false, coverage: false };
    while let Some(word) = words.next() {
        match word.as_str() {
            "--seed" => {
                let seed = number("--seed", words.next())?;
                seeds = Some(seed..seed.saturating_add(1));
            }
            "--seeds" => seeds = Some(range(words.next())?),
            "--steps" => arguments.steps = number("--steps", words.next())?.max(1),
            "--seconds-max" => arguments.seconds_max = number("--seconds-max", words.next())?,
            "--trace" => arguments.trace = true,
            "--coverage" => arguments.coverage = true,
            other => return Err(format!("unknown argument {other:?}\n{USAGE}")),
        }
    }
    arguments.seeds = seeds.ok_or_else(|| format!("no seed was named\n{USAGE}"))?;
    Ok(arguments)
}

fn main() -> ExitCode {
    let arguments = match parse(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(text) => {
            eprintln!("weir-sim: {text}");
            return ExitCode::from(2);
        }
    };
    let began = Instant::now();
    let mut coverage = Coverage::default();
    let (mut ran, mut records, mut bytes, mut findings) = (0u64, 0, 0, 0u64);
    for seed in arguments.seeds {
        if began.elapsed() >= Duration::from_secs(arguments.seconds_max) {
            break;
        }
        let options =
            Options { seed, steps: arguments.steps, trace: arguments.trace, sabotage: Sabotage::None };
        let report = run(options);
        coverage.merge(&report.coverage);
        ran += 1;
        records += report.records;
        bytes += report.bytes;
        if let Some(finding) = report.finding {
            findings += 1;
            eprintln!("{finding}");
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    if arguments.coverage {
        print!("{coverage}");
    }
    println!(
        "{ran} seeds, {findings} findings, {records} records, {bytes} bytes, {:.1} seeds/s",
        ran as f64 / seconds
    );
    if findings == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Arguments, String> {
        parse(line.split_whitespace().map(String::from))
    }

    #[test]
    fn seeds_and_bounds_are_read() {
        let arguments = parsed("--seeds 3..7 --steps 10 --seconds-max 5 --trace").unwrap();
        assert_eq!((arguments.seeds, arguments.steps, arguments.seconds_max), (3..7, 10, 5));
        assert_eq!(parsed("--seed 9").unwrap().seeds, 9..10);
    }

    #[test]
    fn wrong_arguments_are_named() {
        for (line, text) in [
            ("", "no seed"),
            ("--seed x", "--seed is \"x\""),
            ("--seeds 7..3", "A below B"),
            ("--seed", "no value"),
            ("--fast", "unknown argument"),
        ] {
            assert!(parsed(line).unwrap_err().contains(text), "{line}");
        }
    }
}
