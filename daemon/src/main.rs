//! The binary `weir`: the daemon and its command line.

use std::process::ExitCode;

fn main() -> ExitCode {
    weir::cli::run()
}
