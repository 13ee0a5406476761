//! `cargo xtask demo`: two daemons on this machine, and what can be seen of a pipeline that runs over them.
//!
//! Without a scenario it shows what flow control does when one consumer is slow and another stops. The scenarios show
//! how one finds what holds a pipeline up, and what helps: more parallelism (`fix`), or not (`skew`). Their work is
//! waiting, so that what they show does not hang on how many processors there are; what they assert of rates is coarse,
//! what they assert of results is exact. `bottleneck` makes one thing slow, each time another, and asks the daemons which.

mod bottleneck;
mod chain;
mod corpus;
mod counts;
mod documents;
mod fix;
mod flows;
mod plan;
mod pressure;
mod skew;
mod text;
mod view;
mod watch;

use std::process::ExitCode;

use clap::{Parser, ValueEnum};

#[derive(Parser)]
#[command(
    name = "cargo xtask demo",
    about = "Two daemons, a slow and a stopped consumer, every record exactly once; or a scenario"
)]
struct Arguments {
    /// Show this instead: how a pipeline is made faster, or why it is not
    #[arg(long, value_enum)]
    scenario: Option<Scenario>,
    /// List what can be shown
    #[arg(long, conflicts_with = "scenario")]
    list: bool,
    /// About how long it lasts. Without a scenario the corpus of 200 MB is sent in any case; a scenario takes at least 4
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(2..=3600))]
    seconds: u64,
    /// Print only the summary, as JSON
    #[arg(long)]
    json: bool,
    /// What is slow in the scenario `bottleneck`
    #[arg(long, value_enum, default_value = "cpu")]
    slow: bottleneck::Slow,
    /// Be an operator of the scenario `bottleneck`
    #[arg(long, hide = true)]
    operator: Option<String>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Scenario {
    /// A map that is too slow, and four of it: another plan, four times the rate, the same output
    Fix,
    /// A hot key: more consumers do not help, salting does, and the counts stay the same
    Skew,
    /// Four operators, one thing that is slow (--slow), and what weir bottleneck says of it
    Bottleneck,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(operator) = &arguments.operator {
        return end(bottleneck::serve(operator));
    }
    let outcome = match arguments.scenario {
        _ if arguments.list => {
            list();
            Ok(())
        }
        None => pressure::run(&arguments),
        Some(Scenario::Fix) => fix::run(&arguments),
        Some(Scenario::Skew) => skew::run(&arguments),
        Some(Scenario::Bottleneck) => bottleneck::run(&arguments),
    };
    end(outcome)
}

fn end(outcome: Result<(), String>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("demo: {problem}");
            ExitCode::FAILURE
        }
    }
}

fn list() {
    println!("cargo xtask demo");
    text::say("  ", "Two daemons, a slow and a stopped consumer, every record exactly once");
    for scenario in Scenario::value_variants() {
        let Some(value) = scenario.to_possible_value() else { continue };
        println!("cargo xtask demo --scenario {}", value.get_name());
        text::say("  ", &value.get_help().map(ToString::to_string).unwrap_or_default());
    }
}

/// How long a scenario is to last, in seconds: what was asked for, and long enough that its rates can be told apart.
fn scenario_seconds(arguments: &Arguments) -> u64 {
    arguments.seconds.max(4)
}
