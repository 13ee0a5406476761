//! Prints what one of the two consumers of `lines` gets; see the example `producer`.

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use weir_client::{Client, GateOptions, Item};

/// Consumers of the exchange `lines`.
const CONSUMERS: u32 = 2;

/// Writes each record as a line, until every producer has finished.
pub(crate) fn consume(
    run_dir: &Path,
    consumer: u32,
    output: &mut impl Write,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let client = Client::connect(run_dir)?;
    let task = client.task("consuming")?;
    let mut gate = task.gate("lines", consumer, CONSUMERS, GateOptions::default())?;
    while let Some(item) = gate.next()? {
        match item {
            Item::Record(record) => {
                output.write_all(&record)?;
                output.write_all(b"\n")?;
            }
            Item::Event(event) => writeln!(output, "({})", String::from_utf8_lossy(&event.payload))?,
        }
    }
    Ok(())
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let (Some(run_dir), Some(Ok(consumer))) =
        (arguments.next(), arguments.next().map(|number| number.parse::<u32>()))
    else {
        eprintln!("usage: consumer RUN_DIR 0|1");
        return ExitCode::from(2);
    };
    match consume(Path::new(&run_dir), consumer, &mut io::stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("consumer: {error}");
            ExitCode::FAILURE
        }
    }
}
