//! The standard seeds: every one must pass, and together they must take every rare path that is named.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use weir_sim::{Coverage, Finding, Options, run};

const SEEDS: u64 = 2_000;

/// Runs the standard seeds on all processors. Which thread runs a seed has no influence on it.
fn run_all() -> (Coverage, Vec<Finding>) {
    let next = AtomicU64::new(0);
    let work = || {
        let (mut coverage, mut findings) = (Coverage::default(), Vec::new());
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= SEEDS {
                return (coverage, findings);
            }
            let report = run(Options::of(seed));
            coverage.merge(&report.coverage);
            findings.extend(report.finding);
        }
    };
    thread::scope(|scope| {
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let (mut coverage, mut findings) = (Coverage::default(), Vec::new());
        for thread in running {
            let (part, found) = thread.join().unwrap();
            coverage.merge(&part);
            findings.extend(found);
        }
        findings.sort_by_key(|finding: &Finding| finding.seed);
        (coverage, findings)
    })
}

#[test]
fn standard_seeds_pass_and_take_every_rare_path() {
    let (coverage, findings) = run_all();
    let texts: Vec<_> = findings.iter().take(10).map(ToString::to_string).collect();
    assert!(findings.is_empty(), "{} of {SEEDS} seeds failed:\n{}", findings.len(), texts.join("\n"));
    assert!(coverage.missed().is_empty(), "never taken: {:?}\n{coverage}", coverage.missed());
}

#[test]
fn a_seed_does_the_same_again() {
    for seed in 0..20 {
        let (first, second) = (run(Options::of(seed)), run(Options::of(seed)));
        assert_eq!((first.steps, first.records, first.bytes), (second.steps, second.records, second.bytes));
        assert_eq!(first.coverage, second.coverage, "seed {seed}");
    }
}
