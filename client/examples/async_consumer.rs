//! Reads both exchanges that the example `fan_out` writes, on one thread: whichever has something is read next.
//!
//! ```text
//! cargo run -p weir-client --example async_consumer -- /tmp/weir-a
//! ```
//!
//! It runs in a tokio runtime, and would in any other: the client brings no runtime and needs none.

use std::error::Error;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use weir_client::{Client, GateOptions, Item};

/// Writes a line for each record, until the producers of both have finished.
pub(crate) async fn consume(
    run_dir: &Path,
    output: &mut impl Write,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    let client = Client::connect_async(run_dir).await?;
    let task = client.task_async("printing").await?;
    // Each waits for its first producer, at the same time.
    let (mut numbers, mut others) = tokio::try_join!(
        task.gate_async("numbers", 0, 1, GateOptions::default()),
        task.gate_async("others", 0, 1, GateOptions::default()),
    )?;
    let (mut has_numbers, mut has_others) = (true, true);
    while has_numbers || has_others {
        // The one that is not ready is dropped, and has taken nothing: it is asked anew in the next round.
        tokio::select! {
            item = numbers.next_async(), if has_numbers => has_numbers = print("number", item?, output)?,
            item = others.next_async(), if has_others => has_others = print("other", item?, output)?,
        }
    }
    Ok(())
}

/// Writes what was read. `false`: that was the end.
fn print(kind: &str, item: Option<Item<'_>>, output: &mut impl Write) -> io::Result<bool> {
    match item {
        Some(Item::Record(record)) => writeln!(output, "{kind} {}", String::from_utf8_lossy(&record))?,
        Some(Item::Event(event)) => writeln!(output, "({})", String::from_utf8_lossy(&event.payload))?,
        None => return Ok(false),
    }
    Ok(true)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let Some(run_dir) = std::env::args().nth(1) else {
        eprintln!("usage: async_consumer RUN_DIR");
        return ExitCode::from(2);
    };
    match consume(Path::new(&run_dir), &mut io::stdout().lock()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("async_consumer: {error}");
            ExitCode::FAILURE
        }
    }
}
