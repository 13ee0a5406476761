//! Replays simulated runs of the core.

use crate::process::{self, Outcome};

/// What to replay.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The seed that decides everything about the run
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Run this many seeds, counted up from --seed
    #[arg(long)]
    seeds: Option<u64>,
    /// Stop after this many steps
    #[arg(long)]
    steps: Option<u64>,
    /// Print one line per step
    #[arg(long)]
    trace: bool,
}

/// Builds the simulator with optimisation and runs it.
pub(crate) fn run(arguments: &Arguments) -> Outcome {
    process::cargo(&["build", "--quiet", "--profile", "sim", "--package", "weir-sim"])?;
    let mut command = process::command(process::release_directory().with_file_name("sim").join("weir-sim"));
    command.args(["--seed", &arguments.seed.to_string()]);
    if let Some(seeds) = arguments.seeds {
        command.args(["--seeds", &format!("{}..{}", arguments.seed, arguments.seed.saturating_add(seeds))]);
    }
    if let Some(steps) = arguments.steps {
        command.args(["--steps", &steps.to_string()]);
    }
    if arguments.trace {
        command.arg("--trace");
    }
    process::run(&mut command)
}
