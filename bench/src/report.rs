//! What a bench run found, as a table, as JSON and as a page.

mod html;

use serde::Serialize;

use crate::statistics::Spread;

/// Version of the JSON report.
pub const SCHEMA_VERSION: u32 = 1;

/// A whole run.
#[derive(Debug, Serialize)]
pub struct Report {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// What it ran on.
    pub machine: Machine,
    /// One entry per measured case, in the order they ran.
    pub cases: Vec<Case>,
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
    /// Rounds per case.
    pub rounds: u32,
    /// Length of a window, in seconds.
    pub window_seconds: f64,
}

/// One measured case.
#[derive(Debug, Serialize)]
pub struct Case {
    /// Scenario and case.
    pub name: String,
    /// What was measured, each with its unit in its name.
    pub figures: Vec<Figure>,
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
        Self { name: name.into(), figures: Vec::new() }
    }

    /// Adds a figure.
    pub fn figure(&mut self, name: &str, values: impl IntoIterator<Item = f64>) {
        let rounds: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
        let value = Spread::of(rounds.iter().copied());
        self.figures.push(Figure { name: name.to_owned(), value, rounds });
    }

    /// Its figure of this name.
    fn find(&self, name: &str) -> Option<&Figure> {
        self.figures.iter().find(|figure| figure.name == name)
    }
}

impl Machine {
    /// This machine.
    #[must_use]
    pub fn here(rounds: u32, window_seconds: f64, congestion: Option<&str>) -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
        Self {
            kernel: read("/proc/sys/kernel/osrelease"),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            congestion: congestion
                .map_or_else(|| read("/proc/sys/net/ipv4/tcp_congestion_control"), str::to_owned),
            hugepages_free: read("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages")
                .parse()
                .unwrap_or(0),
            rounds,
            window_seconds,
        }
    }
}

impl Report {
    /// The report as a table for people.
    #[must_use]
    pub fn table(&self) -> String {
        let machine = &self.machine;
        let mut text = format!(
            "kernel {}, {} CPUs, congestion control {}, {} free hugepages, {} rounds of {} s\n",
            machine.kernel,
            machine.cpus,
            machine.congestion,
            machine.hugepages_free,
            machine.rounds,
            machine.window_seconds
        );
        for case in &self.cases {
            text.push_str(&format!("\n{}\n", case.name));
            for Figure { name, value, .. } in &case.figures {
                text.push_str(&format!(
                    "  {name:<44} {:>12}   ({} .. {})\n",
                    number(value.median),
                    number(value.min),
                    number(value.max)
                ));
            }
        }
        text
    }
}

/// A number with about four significant digits.
fn number(value: f64) -> String {
    let magnitude = value.abs();
    match magnitude {
        _ if magnitude >= 1000.0 => format!("{value:.0}"),
        _ if magnitude >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.3}"),
    }
}
