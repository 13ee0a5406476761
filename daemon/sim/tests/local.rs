//! Channels inside one node: the seeds must pass, and together they must see what such channels are feared for.

use weir_sim::local::{LocalReport, run};
use weir_sim::{Options, Sabotage};

const SEEDS: u64 = 400;

#[test]
fn what_is_read_in_the_producers_memory_is_whole_whoever_dies_when() {
    let mut sum = LocalReport::default();
    let mut findings = Vec::new();
    for seed in 0..SEEDS {
        let report = run(Options::of(seed));
        sum.records += report.records;
        sum.lent += report.lent;
        sum.outlived += report.outlived;
        sum.died_holding += report.died_holding;
        sum.failed += report.failed;
        sum.at_quota += report.at_quota;
        findings.extend(report.finding.map(|finding| finding.to_string()));
    }
    let first: Vec<_> = findings.iter().take(10).collect();
    assert!(findings.is_empty(), "{} of {SEEDS} seeds failed:\n{first:#?}", findings.len());
    assert!(sum.records > 10_000 && sum.lent > 10_000, "{sum:?}");
    assert!(sum.outlived > 20, "slices outlive their producer: {sum:?}");
    assert!(sum.died_holding > 5 && sum.failed > 50, "consumers die with slices: {sum:?}");
    assert!(sum.at_quota > 100, "producers wait for a consumer that holds what it has: {sum:?}");
}

#[test]
fn a_seed_does_the_same_again() {
    for seed in 0..10 {
        let (first, second) = (run(Options::of(seed)), run(Options::of(seed)));
        assert_eq!((first.records, first.lent), (second.records, second.lent), "seed {seed}");
    }
}

#[test]
fn a_give_back_that_is_lost_or_comes_twice_is_found() {
    for sabotage in [Sabotage::LoseGiveBack, Sabotage::ReadAfterGiveBack] {
        let runs = (0..60).map(|seed| run(Options { sabotage, ..Options::of(seed) }));
        let spoilt: Vec<_> = runs.filter(|report| report.sabotaged).collect();
        let found = spoilt.iter().filter(|report| report.finding.is_some()).count();
        assert!(spoilt.len() > 10 && found * 2 > spoilt.len(), "{sabotage:?}: {found} of {}", spoilt.len());
    }
}
