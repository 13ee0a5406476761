//! Everything that must pass before a change lands, cheapest first.

use crate::process::{self, Outcome};
use crate::{setup, test, tidy};

/// Formatting, house rules, clippy and rustdoc with warnings denied, then every test.
pub(crate) fn run() -> Outcome {
    step("fmt");
    process::cargo(&["fmt", "--all", "--check"])?;
    // A workspace of its own.
    process::cargo(&["fmt", "--manifest-path", "bench/peers/Cargo.toml", "--check"])?;
    step("tidy");
    tidy::run()?;
    // Before anything is built: the daemon is built without kernel probes while their tools are missing.
    step("setup");
    setup::run()?;
    step("clippy");
    process::cargo(&["clippy", "--workspace", "--all-targets", "--locked", "--", "--deny", "warnings"])?;
    step("docs");
    process::run(
        process::command(process::cargo_program())
            .args(["doc", "--workspace", "--no-deps", "--document-private-items", "--locked"])
            .env("RUSTDOCFLAGS", "--deny warnings"),
    )?;
    step("test");
    test::run()
}

fn step(name: &str) {
    println!("== {name}");
}
