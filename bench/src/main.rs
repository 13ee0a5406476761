//! `cargo xtask bench`: measures Weir against a raw TCP blast in the same run.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use weir_bench::app;
use weir_bench::report::{Machine, Report, SCHEMA_VERSION};
use weir_bench::scenario::{SCENARIOS, Settings};

#[derive(Parser)]
#[command(name = "cargo xtask bench", about = "Measure Weir against a raw TCP blast in the same run")]
struct Arguments {
    /// Run only this scenario (repeatable); all if not given
    #[arg(long, value_name = "NAME")]
    scenario: Vec<String>,
    /// List the scenarios and end
    #[arg(long)]
    list: bool,
    /// Rounds of each case, interleaved with the baseline
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Length of one measured window, in seconds
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
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
    if arguments.list {
        for scenario in SCENARIOS {
            println!("{:<12} {}", scenario.name, scenario.about);
        }
        return Ok(());
    }
    if !(arguments.seconds.is_finite() && arguments.seconds > 0.0) {
        return Err(format!("--seconds {}; needed: more than 0", arguments.seconds));
    }
    for name in &arguments.scenario {
        if !SCENARIOS.iter().any(|scenario| scenario.name == name) {
            let known: Vec<&str> = SCENARIOS.iter().map(|scenario| scenario.name).collect();
            return Err(format!("unknown scenario {name:?}; known: {}", known.join(", ")));
        }
    }
    let settings = Settings {
        rounds: arguments.rounds,
        window: Duration::from_secs_f64(arguments.seconds),
        shards: arguments.shards,
        congestion: arguments.congestion.clone(),
    };
    let machine = Machine::here(arguments.rounds, arguments.seconds, arguments.congestion.as_deref());
    let mut report = Report { schema_version: SCHEMA_VERSION, machine, cases: Vec::new() };
    for scenario in SCENARIOS {
        if arguments.scenario.is_empty() || arguments.scenario.iter().any(|name| name == scenario.name) {
            report.cases.extend((scenario.run)(&settings)?);
        }
    }
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

fn write(path: &Path, text: &str) -> Result<(), String> {
    std::fs::write(path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))
}
