//! Two builds of the bench in the same rounds: this one and that of another revision, each with the daemon built beside it.
//!
//! Either runs a scenario for one round at a time, so that what else the machine does falls on both alike; every second round
//! begins with the other one.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::quiet::Notes;
use crate::report::Case;
use crate::scenario::Scenario;

/// Figures that are no measure of either build, or compare already.
const NOT_COMPARED: [&str; 3] = ["foreign_cores", "_over_", "_count"];

/// The build to compare with.
#[derive(Clone, Debug)]
pub struct Base {
    /// Its `weir-bench`.
    pub program: PathBuf,
    /// What it is called in the report.
    pub name: String,
}

/// What both builds run a scenario with.
#[derive(Clone, Debug)]
pub struct Effort {
    /// Rounds of each.
    pub rounds: u32,
    /// Length of one window.
    pub window: Duration,
    /// Arguments for both that are none of these.
    pub rest: Vec<String>,
}

/// The figures of one round of one build, by case and name; the cases in their order.
#[derive(Debug, Default, PartialEq)]
struct Found {
    cases: Vec<String>,
    figures: HashMap<(String, String), f64>,
    /// Figures of each case in their order.
    names: Vec<(String, String)>,
}

/// Runs a scenario with both builds. A case that only one of them has is left out; a scenario that the base does not have is
/// noted.
///
/// # Errors
/// One line, when a build fails.
pub fn run(base: &Base, scenario: &Scenario, effort: &Effort, notes: &Notes) -> Result<Vec<Case>, String> {
    let own = std::env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
    let listed = output(Command::new(&base.program).arg("--list"))?;
    if !listed.lines().any(|line| line.split_whitespace().next() == Some(scenario.name)) {
        notes.not_run(format!("{} against {}, which has no such scenario", scenario.name, base.name));
        return Ok(Vec::new());
    }
    let part = format!("{} against {}", scenario.name, base.name);
    let rounds = notes.run_rounds(&part, effort.rounds, |round| {
        let own_first = round % 2 == 0;
        let mut found = [Found::default(), Found::default()];
        for which in if own_first { [0, 1] } else { [1, 0] } {
            let program = if which == 0 { own.as_path() } else { base.program.as_path() };
            found[which] = one_round(program, scenario.name, effort)?;
        }
        Ok(found)
    })?;
    Ok(cases(&rounds))
}

fn one_round(program: &Path, scenario: &str, effort: &Effort) -> Result<Found, String> {
    let report = tempfile::NamedTempFile::new().map_err(|error| format!("no file for a report: {error}"))?;
    // Scenarios without windows take the argument all the same, and it must be more than 0.
    let seconds = effort.window.as_secs_f64().max(0.01).to_string();
    output(
        Command::new(program)
            .args(["--scenario", scenario, "--rounds", "1", "--seconds", &seconds])
            .args(&effort.rest)
            .arg("--json")
            .arg(report.path()),
    )?;
    let text = std::fs::read_to_string(report.path()).map_err(|error| format!("no report: {error}"))?;
    let value = serde_json::from_str(&text).map_err(|error| format!("a report is not JSON: {error}"))?;
    Ok(Found::of(&value))
}

/// What a program prints; what it complains of only if it fails.
fn output(command: &mut Command) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("cannot start {name}: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(format!("{name} failed ({}): {}", output.status, String::from_utf8_lossy(&output.stderr).trim()))
}

impl Found {
    /// Of a report, whatever its version: cases with names, figures with names and medians.
    fn of(report: &Value) -> Self {
        let mut found = Self::default();
        let list =
            |value: &Value, key: &str| value.get(key).and_then(Value::as_array).cloned().unwrap_or_default();
        let name = |value: &Value| value.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
        for case in list(report, "cases") {
            let of_case = name(&case);
            for figure in list(&case, "figures") {
                let Some(median) = figure.get("median").and_then(Value::as_f64) else { continue };
                let key = (of_case.clone(), name(&figure));
                found.names.push(key.clone());
                found.figures.insert(key, median);
            }
            found.cases.push(of_case);
        }
        found
    }
}

/// A case for each that both builds have: every figure of either, and the ratio.
fn cases(rounds: &[[Found; 2]]) -> Vec<Case> {
    let Some([first, _]) = rounds.first() else { return Vec::new() };
    let mut cases = Vec::new();
    for name in &first.cases {
        let mut case = Case::new(name.clone());
        for key in first.names.iter().filter(|(of_case, _)| of_case == name) {
            let pairs: Vec<(f64, f64)> = rounds
                .iter()
                .filter_map(|[own, base]| Some((*own.figures.get(key)?, *base.figures.get(key)?)))
                .collect();
            let figure = key.1.as_str();
            if pairs.is_empty() || NOT_COMPARED.iter().any(|part| figure.contains(part)) {
                continue;
            }
            if pairs.iter().all(|(_, base)| *base != 0.0) {
                case.figure(&format!("{figure}_over_base"), pairs.iter().map(|(own, base)| own / base));
            }
            case.figure(figure, pairs.iter().map(|(own, _)| *own));
            case.figure(&format!("{figure}_base"), pairs.iter().map(|(_, base)| *base));
        }
        if !case.figures.is_empty() {
            cases.push(case);
        }
    }
    cases
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn found(rate: f64, more: &str) -> Found {
        Found::of(&json!({"schema_version": 1, "cases": [
            {"name": "both", "figures": [
                {"name": "gigabytes_per_second", "median": rate, "rounds": [rate]},
                {"name": "foreign_cores", "median": 0.5},
                {"name": "bytes_of_none", "median": 0.0},
                {"name": "gigabytes_per_second_over_baseline", "median": 0.5},
            ]},
            {"name": more, "figures": [{"name": "gigabytes_per_second", "median": 1.0}]},
        ]}))
    }

    #[test]
    fn what_both_builds_have_is_compared_round_by_round() {
        let rounds = [[found(3.0, "new"), found(2.0, "old")], [found(5.0, "new"), found(4.0, "old")]];
        let cases = cases(&rounds);
        let [case] = &cases[..] else { panic!("one case, not {cases:?}") };
        let figures: Vec<(&str, &[f64])> =
            case.figures.iter().map(|figure| (figure.name.as_str(), &figure.rounds[..])).collect();
        assert_eq!(
            figures,
            [
                ("gigabytes_per_second_over_base", &[1.5, 1.25][..]),
                ("gigabytes_per_second", &[3.0, 5.0]),
                ("gigabytes_per_second_base", &[2.0, 4.0]),
                ("bytes_of_none", &[0.0, 0.0]),
                ("bytes_of_none_base", &[0.0, 0.0]),
            ]
        );
    }

    #[test]
    fn a_report_that_says_nothing_has_no_figures() {
        assert_eq!(Found::of(&json!({"cases": [{"name": 7}, 5]})).figures, HashMap::new());
        assert!(cases(&[]).is_empty());
    }
}
