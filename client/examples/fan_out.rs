//! Reads the words of the example `map` and writes them to two exchanges: numbers to `numbers`, by value, and all others
//! to `others`, to whoever has time. A task with one gate and two partitions.
//!
//! ```text
//! weir recv --exchange numbers --consumer 0/1 --run-dir /tmp/weir-a &
//! weir recv --exchange others --consumer 0/1 --run-dir /tmp/weir-a &
//! cargo run -p weir-client --example fan_out -- /tmp/weir-a
//! ```

use std::path::Path;
use std::process::ExitCode;

use weir_client::{Client, Error, GateOptions, Item, PartitionOptions, Strategy};

/// Says which of so many consumers gets a number: those next to each other go to the same.
fn by_value(record: &[u8], _key: Option<&[u8]>, consumers: u32) -> u32 {
    let digits = record.iter().map(|byte| u32::from(byte.saturating_sub(b'0')));
    let value = digits.fold(0_u32, |value, digit| value.wrapping_mul(10).wrapping_add(digit));
    value / 100 % consumers
}

/// Reads words until their producers have finished, and emits each once.
pub(crate) fn fan_out(run_dir: &Path) -> Result<(), Error> {
    let client = Client::connect(run_dir)?;
    let task = client.task("sorting")?;
    let mut words = task.gate("words", 0, 1, GateOptions::default())?;
    let options = PartitionOptions::default;
    let mut numbers = task.partition_with_selector("numbers", 0, 1, 1, by_value, options())?;
    let mut others = task.partition("others", 0, 1, 1, Strategy::Rebalance, options())?;
    while let Some(item) = words.next()? {
        let Item::Record(word) = item else { continue };
        if word.iter().all(u8::is_ascii_digit) {
            numbers.emit(&word)?;
        } else {
            others.emit(&word)?;
        }
    }
    numbers.finish()?;
    others.finish()?;
    Ok(())
}

fn main() -> ExitCode {
    let Some(run_dir) = std::env::args().nth(1) else {
        eprintln!("usage: fan_out RUN_DIR");
        return ExitCode::from(2);
    };
    match fan_out(Path::new(&run_dir)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fan_out: {error}");
            ExitCode::FAILURE
        }
    }
}
