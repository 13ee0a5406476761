//! `cargo xtask bench`: measures Weir against raw TCP and other libraries in the same run.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Parser, Subcommand};
use weir_bench::app;
use weir_bench::quiet::Notes;
use weir_bench::report::{Case, Machine, Report, SCHEMA_VERSION, Took};
use weir_bench::scenario::{SCENARIOS, Scenario, Settings};
#[cfg(feature = "ring")]
use weir_bench::swallow;
use weir_bench::versus;

#[derive(Parser)]
#[command(
    name = "cargo xtask bench",
    about = "Measure Weir against raw TCP and other libraries in the same run"
)]
struct Arguments {
    /// Run only this scenario (repeatable); all if not given
    #[arg(long, value_name = "NAME")]
    scenario: Vec<String>,
    /// List the scenarios and end
    #[arg(long)]
    list: bool,
    /// Rounds of each case, interleaved with the baseline; what each scenario usually has if not given
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,
    /// Length of one measured window, in seconds; what each scenario usually has if not given
    #[arg(long)]
    seconds: Option<f64>,
    /// Shards of each daemon
    #[arg(long, default_value_t = 1)]
    shards: u32,
    /// TCP congestion control of links and baseline; the system's if not given
    #[arg(long, value_name = "NAME")]
    congestion: Option<String>,
    /// Also write the report to this file, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Also write the report to this file, as one page with plots
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Compare with this weir-bench, which has its daemon beside it; `--base REV` of `cargo xtask bench` builds one
    #[arg(long, value_name = "FILE")]
    base_program: Option<PathBuf>,
    /// What it is called in the report
    #[arg(long, value_name = "NAME", default_value = "base", requires = "base_program")]
    base_name: String,
    #[command(subcommand)]
    inner: Option<Inner>,
}

#[derive(Subcommand)]
enum Inner {
    /// One process of a workload; started by the bench itself
    #[command(hide = true)]
    App {
        /// Its role, as JSON
        role: String,
    },
    /// One process that sends into nothing; started by the bench itself
    #[cfg(feature = "ring")]
    #[command(hide = true)]
    Swallow {
        /// What it is to send, as JSON
        task: String,
    },
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("bench: {problem}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), String> {
    if let Some(Inner::App { role }) = &arguments.inner {
        return app::serve(serde_json::from_str(role).map_err(|error| format!("bad role: {error}"))?);
    }
    #[cfg(feature = "ring")]
    if let Some(Inner::Swallow { task }) = &arguments.inner {
        let task = serde_json::from_str(task).map_err(|error| format!("bad task: {error}"))?;
        let found = swallow::run(task)?;
        println!("{}", serde_json::to_string(&found).map_err(|error| error.to_string())?);
        return Ok(());
    }
    if arguments.list {
        for scenario in SCENARIOS {
            println!("{:<14} {}", scenario.name, scenario.about);
        }
        return Ok(());
    }
    if arguments.seconds.is_some_and(|seconds| !(seconds.is_finite() && seconds > 0.0)) {
        return Err(format!("--seconds {}; needed: more than 0", arguments.seconds.unwrap_or_default()));
    }
    let scenarios = arguments.scenarios()?;
    arguments.announce(&scenarios);
    let notes = Notes::default();
    let (mut cases, mut took) = (Vec::new(), Vec::new());
    for scenario in scenarios {
        let began = Instant::now();
        for mut case in arguments.run_scenario(scenario, &notes)? {
            scenario.name.clone_into(&mut case.scenario);
            cases.push(case);
        }
        let done = Took {
            scenario: scenario.name.to_owned(),
            seconds: began.elapsed().as_secs_f64(),
            expected_seconds: arguments.expected_seconds(scenario),
        };
        eprintln!("{}", done.line());
        took.push(done);
    }
    let (rounds, not_run, remarks) = notes.take();
    let machine = Machine::here(arguments.congestion.as_deref());
    let report = Report { schema_version: SCHEMA_VERSION, machine, rounds, took, not_run, remarks, cases };
    print!("{}", report.table());
    if let Some(path) = &arguments.json {
        let text = serde_json::to_string_pretty(&report)
            .map_err(|error| format!("cannot write the report: {error}"))?;
        write(path, &text)?;
    }
    if let Some(path) = &arguments.html {
        write(path, &report.html())?;
    }
    Ok(())
}

impl Arguments {
    /// Those asked for, in the order in which they run; all if none was named.
    fn scenarios(&self) -> Result<Vec<&'static Scenario>, String> {
        for name in &self.scenario {
            if Scenario::named(name).is_none() {
                let known: Vec<&str> = SCENARIOS.iter().map(|scenario| scenario.name).collect();
                return Err(format!("unknown scenario {name:?}; known: {}", known.join(", ")));
            }
        }
        let is_wanted = |scenario: &&Scenario| {
            self.scenario.is_empty() || self.scenario.iter().any(|name| name == scenario.name)
        };
        Ok(SCENARIOS.iter().filter(is_wanted).collect())
    }

    fn rounds(&self, scenario: &Scenario) -> u32 {
        self.rounds.unwrap_or(scenario.rounds)
    }

    fn window(&self, scenario: &Scenario) -> Duration {
        self.seconds.map_or_else(|| scenario.window(), Duration::from_secs_f64)
    }

    /// About how long a scenario takes.
    fn expected_seconds(&self, scenario: &Scenario) -> f64 {
        let (rounds, window) = (self.rounds(scenario), self.window(scenario));
        if self.base_program.is_some() {
            // Each build runs its rounds one by one, with what is before and after them.
            2.0 * f64::from(rounds) * scenario.seconds(1, window)
        } else {
            scenario.seconds(rounds, window)
        }
    }

    /// Says what is about to run and about how long it takes.
    fn announce(&self, scenarios: &[&Scenario]) {
        let seconds = |scenario: &Scenario| self.expected_seconds(scenario);
        let each: Vec<String> = scenarios
            .iter()
            .map(|scenario| {
                format!("{} {:.0} s ({} rounds)", scenario.name, seconds(scenario), self.rounds(scenario))
            })
            .collect();
        let all: f64 = scenarios.iter().map(|scenario| seconds(scenario)).sum();
        let all = if all < 120.0 { format!("{all:.0} s") } else { format!("{:.1} min", all / 60.0) };
        eprintln!("bench: about {all} on two cores: {}", each.join(", "));
    }

    fn run_scenario(&self, scenario: &Scenario, notes: &Notes) -> Result<Vec<Case>, String> {
        let (rounds, window) = (self.rounds(scenario), self.window(scenario));
        let Some(program) = self.base_program.clone() else {
            return (scenario.run)(&Settings {
                rounds,
                window,
                shards: self.shards,
                congestion: self.congestion.clone(),
                notes: notes.clone(),
            });
        };
        let mut rest = vec!["--shards".to_owned(), self.shards.to_string()];
        if let Some(name) = &self.congestion {
            rest.extend(["--congestion".to_owned(), name.clone()]);
        }
        let base = versus::Base { program, name: self.base_name.clone() };
        versus::run(&base, scenario, &versus::Effort { rounds, window, rest }, notes)
    }
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    std::fs::write(path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))
}
