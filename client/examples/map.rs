//! Splits the lines that the example `producer` emits into words, and sends each word to the consumer that it belongs to:
//! a task with a gate and a partition. Two of these share the lines; see the example `fan_out` for who reads the words.
//!
//! ```text
//! cargo run -p weir-client --example map -- /tmp/weir-a 0           # and another one with 1
//! ```

use std::path::Path;
use std::process::ExitCode;

use weir_client::{Client, Error, GateOptions, Item, PartitionOptions, Strategy};

/// How many of these there are: consumers of `lines`, and producers of `words`.
const MAPS: u32 = 2;

/// Consumers of the exchange `words`.
const CONSUMERS: u32 = 1;

/// Reads lines until their producer has finished, and emits their words.
pub(crate) fn map(run_dir: &Path, index: u32) -> Result<(), Error> {
    let client = Client::connect(run_dir)?;
    let task = client.task("splitting")?;
    let options = PartitionOptions::default();
    let mut words = task.partition("words", index, MAPS, CONSUMERS, Strategy::Hash, options)?;
    let mut lines = task.gate("lines", index, MAPS, GateOptions::default())?;
    while let Some(item) = lines.next()? {
        match item {
            Item::Record(line) => {
                // When nobody takes words, this waits, then the gate is not read, and then the producer waits.
                for word in line.split(|byte| *byte == b' ') {
                    words.emit_keyed(word, word)?;
                }
            }
            // An event is for those behind, too.
            Item::Event(event) => words.emit_event(&event.payload, event.priority)?,
        }
    }
    words.finish()?;
    Ok(())
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let (Some(run_dir), Some(Ok(index))) =
        (arguments.next(), arguments.next().map(|number| number.parse::<u32>()))
    else {
        eprintln!("usage: map RUN_DIR 0|1");
        return ExitCode::from(2);
    };
    match map(Path::new(&run_dir), index) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("map: {error}");
            ExitCode::FAILURE
        }
    }
}
