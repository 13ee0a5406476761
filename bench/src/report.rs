//! What a bench run found, as a table, as JSON and as a page.

mod html;
mod plot;

use serde::Serialize;

use crate::quiet::{QUIET_SHARE, Rounds};
use crate::statistics::Spread;

/// Version of the JSON report.
pub const SCHEMA_VERSION: u32 = 2;

/// A whole run.
#[derive(Debug, Serialize)]
pub struct Report {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// What it ran on.
    pub machine: Machine,
    /// What became of the rounds of each scenario.
    pub rounds: Vec<Rounds>,
    /// How long each scenario took, with all that is before and after its rounds.
    pub took: Vec<Took>,
    /// What could not be measured here, and why.
    pub not_run: Vec<String>,
    /// What stands out.
    pub remarks: Vec<String>,
    /// One entry per measured case, in the order they ran.
    pub cases: Vec<Case>,
}

/// How long a scenario took, and how long it was said to take.
#[derive(Clone, Debug, Serialize)]
pub struct Took {
    /// The scenario.
    pub scenario: String,
    /// From its start to its end.
    pub seconds: f64,
    /// What was expected.
    pub expected_seconds: f64,
}

impl Took {
    /// All of these as one.
    fn all(parts: &[Self]) -> Self {
        let sum = |of: fn(&Self) -> f64| parts.iter().map(of).sum();
        Self {
            scenario: "all".to_owned(),
            seconds: sum(|part| part.seconds),
            expected_seconds: sum(|part| part.expected_seconds),
        }
    }

    /// It in one line.
    #[must_use]
    pub fn line(&self) -> String {
        let percent = 100.0 * (self.seconds / self.expected_seconds - 1.0);
        format!(
            "{}: done in {:.0} s, expected {:.0} s ({percent:+.0} %)",
            self.scenario, self.seconds, self.expected_seconds
        )
    }
}

/// What a run ran on, as far as it bears on the figures.
#[derive(Debug, Serialize)]
pub struct Machine {
    /// Release of the kernel.
    pub kernel: String,
    /// CPUs that this process may use.
    pub cpus: usize,
    /// TCP congestion control of the links and of the baseline.
    pub congestion: String,
    /// Free 2 MiB hugepages at the start.
    pub hugepages_free: u64,
    /// Share of the CPU time of the machine that other processes may take in a round that counts.
    pub quiet_share: f64,
}

/// One measured case.
#[derive(Debug, Serialize)]
pub struct Case {
    /// The scenario that it is of.
    pub scenario: String,
    /// Scenario and case.
    pub name: String,
    /// Cases of one scenario that are to be compared with each other have the same one.
    pub group: String,
    /// Where it lies among the cases of its scenario, if they differ by numbers.
    pub axes: Vec<Axis>,
    /// What was measured, each with its unit in its name.
    pub figures: Vec<Figure>,
}

/// A number by which cases differ.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Axis {
    /// What it is a number of.
    pub name: String,
    /// The number.
    pub value: f64,
}

/// One measured value.
#[derive(Debug, Serialize)]
pub struct Figure {
    /// Name with the unit last.
    pub name: String,
    /// The values of all rounds together.
    #[serde(flatten)]
    pub value: Spread,
    /// Each of them, in the order of the rounds.
    pub rounds: Vec<f64>,
}

impl Case {
    /// A case without figures.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        let name = name.into();
        let (scenario, group, axes) = (String::new(), String::new(), Vec::new());
        Self { scenario, name, group, axes, figures: Vec::new() }
    }

    /// Says that it differs from others by this number.
    #[must_use]
    pub fn at(mut self, axis: &str, value: f64) -> Self {
        self.axes.push(Axis { name: axis.to_owned(), value });
        self
    }

    /// Says with which others it is to be compared.
    #[must_use]
    pub fn in_group(mut self, group: impl Into<String>) -> Self {
        self.group = group.into();
        self
    }

    /// Adds a figure.
    pub fn figure(&mut self, name: &str, values: impl IntoIterator<Item = f64>) {
        let rounds: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
        let value = Spread::of(rounds.iter().copied());
        self.figures.push(Figure { name: name.to_owned(), value, rounds });
    }

    /// Its figure of this name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<&Figure> {
        self.figures.iter().find(|figure| figure.name == name)
    }
}

impl Machine {
    /// This machine.
    #[must_use]
    pub fn here(congestion: Option<&str>) -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
        Self {
            kernel: read("/proc/sys/kernel/osrelease"),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            congestion: congestion
                .map_or_else(|| read("/proc/sys/net/ipv4/tcp_congestion_control"), str::to_owned),
            hugepages_free: read("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages")
                .parse()
                .unwrap_or(0),
            quiet_share: QUIET_SHARE,
        }
    }
}

impl Machine {
    /// It in one line.
    fn line(&self) -> String {
        format!(
            "kernel {}, {} CPUs, congestion control {}, {} free hugepages; a round is noisy when others take more than {:.0} % \
             of the machine",
            self.kernel,
            self.cpus,
            self.congestion,
            self.hugepages_free,
            100.0 * self.quiet_share
        )
    }
}

impl Rounds {
    /// What became of them, in one line.
    fn line(&self) -> String {
        let mut text = format!(
            "{}: {} rounds in {:.0} s, {} dropped as noisy; others took {:.2} cores ({:.2} .. {:.2})",
            self.name,
            self.run,
            self.seconds,
            self.dropped,
            self.foreign_cores.median,
            self.foreign_cores.min,
            self.foreign_cores.max
        );
        if self.kept_noisy > 0 {
            text.push_str(&format!("; {} of the rounds that count are noisy", self.kept_noisy));
        }
        text
    }
}

impl Report {
    /// The report as a table for people.
    #[must_use]
    pub fn table(&self) -> String {
        let mut text = format!("{}\n", self.machine.line());
        for case in &self.cases {
            text.push_str(&format!("\n{}\n", case.name));
            let longest = case.figures.iter().map(|figure| figure.name.len()).max().unwrap_or(0);
            let width = longest.max(NAME_WIDTH);
            for Figure { name, value, .. } in &case.figures {
                text.push_str(&format!(
                    "  {name:<width$} {:>12}   ({} .. {})\n",
                    number(value.median),
                    number(value.min),
                    number(value.max)
                ));
            }
        }
        text.push('\n');
        for rounds in &self.rounds {
            text.push_str(&format!("{}\n", rounds.line()));
        }
        text.push('\n');
        let all = (self.took.len() > 1).then(|| Took::all(&self.took));
        for took in self.took.iter().chain(&all) {
            text.push_str(&format!("{}\n", took.line()));
        }
        for remark in &self.remarks {
            text.push_str(&format!("{remark}\n"));
        }
        for what in &self.not_run {
            text.push_str(&format!("not run here: {what}\n"));
        }
        if !self.not_run.is_empty() {
            text.push_str(&format!("{} measurements could not run here\n", self.not_run.len()));
        }
        text
    }
}

/// Columns of the names of figures; more where one is longer.
const NAME_WIDTH: usize = 44;

/// A number with about four significant digits.
fn number(value: f64) -> String {
    let magnitude = value.abs();
    match magnitude {
        _ if magnitude >= 1000.0 => format!("{value:.0}"),
        _ if magnitude >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_expected_stands_beside_what_it_took() {
        let took = |scenario: &str, seconds, expected_seconds| Took {
            scenario: scenario.to_owned(),
            seconds,
            expected_seconds,
        };
        let mut report = Report {
            schema_version: SCHEMA_VERSION,
            machine: Machine::here(None),
            rounds: Vec::new(),
            took: vec![took("peers", 103.0, 60.0), took("idle", 9.0, 10.0)],
            not_run: Vec::new(),
            remarks: Vec::new(),
            cases: Vec::new(),
        };
        let lines = [
            "peers: done in 103 s, expected 60 s (+72 %)",
            "idle: done in 9 s, expected 10 s (-10 %)",
            "all: done in 112 s, expected 70 s (+60 %)",
        ];
        assert!(report.table().contains(&lines.join("\n")), "{}", report.table());
        report.took.truncate(1);
        assert!(!report.table().contains("all: done"), "one is all");
    }
}
