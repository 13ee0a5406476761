//! Replays a driver's seeds and its committed corpus, in the ordinary test run.

use std::fs;
use std::panic::{self, AssertUnwindSafe};
use std::path::PathBuf;

use crate::{Driver, Reached, Rule};

/// Most files of one corpus, and most bytes of them together: what stands in the repository stays small.
const FILES_MAX: usize = 200;
const BYTES_MAX: usize = 128 << 10;

/// Where the corpus of a driver lies.
#[must_use]
pub fn corpus_directory(driver: &Driver) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../corpus").join(driver.name)
}

/// Every input, with its name: generated seeds, then the files of the corpus.
///
/// # Panics
/// If the corpus is not there, or is larger than it may be.
#[must_use]
pub fn inputs(driver: &Driver) -> Vec<(String, Vec<u8>)> {
    let mut inputs: Vec<_> = (driver.seeds)()
        .into_iter()
        .enumerate()
        .map(|(number, bytes)| (format!("generated seed {number}"), bytes))
        .collect();
    let directory = corpus_directory(driver);
    let entries = fs::read_dir(&directory)
        .unwrap_or_else(|error| panic!("no corpus at {}: {error}", directory.display()));
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("a readable directory").path()).collect();
    files.sort();
    let mut bytes_total = 0;
    assert!(!files.is_empty() && files.len() <= FILES_MAX, "{} files in {}", files.len(), driver.name);
    for path in files {
        let bytes = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        bytes_total += bytes.len();
        inputs.push((path.display().to_string(), bytes));
    }
    assert!(bytes_total <= BYTES_MAX, "{bytes_total} bytes in the corpus of {}", driver.name);
    inputs
}

/// Runs every input with all rules kept.
///
/// # Panics
/// If an input breaks a rule, or if what the driver must reach is not reached by any.
pub fn expect_rules_kept(driver: &Driver) {
    let mut reached = Reached::new();
    for (name, bytes) in inputs(driver) {
        let outcome = panic::catch_unwind(AssertUnwindSafe(|| (driver.run)(&bytes, Rule::Kept)));
        match outcome {
            Ok(names) => reached.extend(names),
            Err(_) => panic!("{}: {name} breaks a rule; its message is above", driver.name),
        }
    }
    let missing: Vec<&str> =
        driver.must_reach.iter().copied().filter(|name| !reached.contains(name)).collect();
    assert!(
        missing.is_empty(),
        "{}: no input reaches {missing:?}; see docs/testing.md on how to renew the corpus",
        driver.name
    );
}

/// Whether an input notices the broken rule.
#[must_use]
pub fn notices(driver: &Driver, bytes: &[u8]) -> bool {
    panic::catch_unwind(|| (driver.run)(bytes, Rule::Broken)).is_err()
}

/// Runs every input with one rule broken.
///
/// # Panics
/// If no file of the corpus notices: then the replay proves nothing.
pub fn expect_broken_rule_noticed(driver: &Driver) {
    let inputs = inputs(driver);
    let seeds = (driver.seeds)().len();
    let noticed: Vec<bool> = inputs.iter().map(|(_, bytes)| notices(driver, bytes)).collect();
    let count = |part: &[bool]| part.iter().filter(|noticed| **noticed).count();
    let (by_seeds, by_files) = (count(&noticed[..seeds]), count(&noticed[seeds..]));
    println!("{}: the broken rule is noticed by {by_seeds} seeds and {by_files} files", driver.name);
    assert!(by_files > 0, "{}: no file of the corpus notices the broken rule", driver.name);
}
