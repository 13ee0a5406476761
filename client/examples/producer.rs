//! Emits numbered lines to two consumers in turn.
//!
//! ```text
//! weir daemon --node a --run-dir /tmp/weir-a &
//! cargo run -p weir-client --example producer -- /tmp/weir-a 1000
//! cargo run -p weir-client --example consumer -- /tmp/weir-a 0      # and another one with 1
//! ```

use std::path::Path;
use std::process::ExitCode;

use weir_client::{Client, Error, PartitionOptions, Strategy};

/// Consumers of the exchange `lines`.
const CONSUMERS: u32 = 2;

/// Emits `count` lines and waits until both consumers' daemons have them.
pub(crate) fn produce(run_dir: &Path, count: u64) -> Result<(), Error> {
    let client = Client::connect(run_dir)?;
    let task = client.task("producing")?;
    let mut partition =
        task.partition("lines", 0, 1, CONSUMERS, Strategy::Rebalance, PartitionOptions::default())?;
    for number in 0..count {
        partition.emit(format!("line {number}").as_bytes())?;
    }
    partition.emit_event(b"that was all", false)?;
    partition.finish()?;
    Ok(())
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let (Some(run_dir), count) = (arguments.next(), arguments.next()) else {
        eprintln!("usage: producer RUN_DIR [COUNT]");
        return ExitCode::from(2);
    };
    let Ok(count) = count.as_deref().unwrap_or("1000").parse() else {
        eprintln!("COUNT is not a number; needed: how many lines to emit");
        return ExitCode::from(2);
    };
    match produce(Path::new(&run_dir), count) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("producer: {error}");
            ExitCode::FAILURE
        }
    }
}
