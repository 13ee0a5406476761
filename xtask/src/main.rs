//! Every job of this repository, one verb each: `cargo xtask VERB`.
//!
//! The verbs start processes and read files; they link no product crate, so that they still run when the product
//! does not build.

mod bench;
mod ci;
mod dist;
mod ebpf;
mod fuzz;
mod hugepages;
mod lab;
mod miri;
mod process;
mod setup;
mod sim;
mod test;
mod tidy;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Every job of this repository", version)]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Install what the tests use beside rustup: Debian packages, if they are missing and this is root; and the tools that
    /// build the kernel probes
    Setup,
    /// Build the kernel probes, load and verify each, and show what became of every hook
    Ebpf,
    /// Set up, then run every test that this machine can run; count what it cannot
    Test,
    /// Everything that must pass before a change lands: fmt, clippy, docs, tidy, test
    Ci,
    /// Check the house rules: file and function size, where unsafe may be, dependency edges, module docs
    Tidy,
    /// Replay one simulated run, or many
    Sim(sim::Arguments),
    /// Look for inputs that break a rule: all fuzz targets, or one
    Fuzz(fuzz::Arguments),
    /// Look for undefined behaviour in the tests of shared memory, with Miri; not part of `test` and `ci`
    Miri,
    /// Try Weir as it is installed: the files for systemd, and the kernel probes on other kernels, in emulated machines
    #[command(subcommand)]
    Lab(lab::Verb),
    /// Make a Debian package, and an archive with an install script for other distributions
    Dist(dist::Arguments),
    /// Two daemons, a slow and a stopped consumer, every record once: see flow control at work; `--list` shows more
    #[command(disable_help_flag = true)]
    Demo(PassedOn),
    /// Measure what Weir does and costs, against raw TCP and other libraries in the same run; `--list` shows the scenarios,
    /// `--base REV` compares two revisions
    #[command(disable_help_flag = true)]
    Bench(bench::Arguments),
}

#[derive(clap::Args)]
struct PassedOn {
    /// Passed on to the program; `--help` lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    rest: Vec<String>,
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().verb {
        Verb::Setup => setup::run(),
        Verb::Ebpf => ebpf::run(),
        Verb::Test => test::run(),
        Verb::Ci => ci::run(),
        Verb::Tidy => tidy::run(),
        Verb::Sim(arguments) => sim::run(&arguments),
        Verb::Fuzz(arguments) => fuzz::run(&arguments),
        Verb::Miri => miri::run(),
        Verb::Lab(verb) => lab::run(&verb),
        Verb::Dist(arguments) => dist::run(&arguments),
        Verb::Demo(arguments) => demo(&arguments.rest),
        Verb::Bench(arguments) => bench::run(&arguments),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("xtask: {problem}");
            ExitCode::FAILURE
        }
    }
}

/// Builds the daemon and the demo with optimisation, and runs the latter beside the former.
fn demo(arguments: &[String]) -> process::Outcome {
    bench::build(&process::root(), &process::target_directory(), "weir-demo")?;
    process::run(process::command(process::release_directory().join("weir-demo")).args(arguments))
}
