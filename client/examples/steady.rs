//! A producer and a consumer that outlive their daemon: when it ends, is replaced or upgraded, they begin a new life of
//! their exchange on the one that comes after it.
//!
//! ```text
//! steady RUN_DIR producer [COUNT]     # numbers from 0, in each life; without COUNT for ever
//! steady RUN_DIR consumer             # tells of each life how many came; a gap or a repeat is an error
//! ```

use std::path::Path;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use weir_client::{Client, Error, GateOptions, Item, PartitionOptions, Strategy, Task};

/// Rest between two batches of numbers, and before a life after one that failed.
const REST: Duration = Duration::from_millis(10);

/// Numbers between two rests.
const BATCH: u64 = 1_000;

/// Tells that a life has begun or ended: a line in the journal of a service.
fn tell(life: u64, what: &str) {
    println!("life {life} {what}");
}

/// Emits numbers until `count` have arrived, in as many lives as it takes.
pub(crate) fn produce(run_dir: &Path, count: Option<u64>) -> Result<(), Error> {
    let client = Client::connect(run_dir)?;
    let task = client.task("producing")?;
    for life in 1.. {
        match produce_once(&task, count) {
            Ok(()) => return Ok(()),
            // Waited as long as a client waits for a daemon: there is none.
            Err(error @ Error::NotReattached { .. }) => return Err(error),
            Err(error) => tell(life, &format!("ends: {error}")),
        }
        thread::sleep(REST);
    }
    Ok(())
}

/// One life: the numbers from 0. What was not finished is emitted once more by the next one.
fn produce_once(task: &Task, count: Option<u64>) -> Result<(), Error> {
    let mut partition = task.partition("steady", 0, 1, 1, Strategy::Forward, PartitionOptions::default())?;
    for number in 0..count.unwrap_or(u64::MAX) {
        partition.emit(&number.to_le_bytes())?;
        if number % BATCH == 0 {
            thread::sleep(REST);
        }
    }
    partition.finish().map(drop)
}

/// Reads numbers until a life ends in order, and checks that within each there is neither a gap nor a repeat. Returns how
/// many that one had.
pub(crate) fn consume(run_dir: &Path) -> Result<u64, Box<dyn std::error::Error + Send + Sync>> {
    let client = Client::connect(run_dir)?;
    let task = client.task("consuming")?;
    let mut life = 1;
    loop {
        let mut count = 0;
        match consume_once(&task, life, &mut count) {
            Ok(None) => return Ok(count),
            Ok(Some(number)) => return Err(format!("{number} came instead of {count}").into()),
            Err(error @ Error::NotReattached { .. }) => return Err(error.into()),
            Err(error) => tell(life, &format!("ends after {count} numbers: {error}")),
        }
        // A life of which nothing came is none.
        life += u64::from(count > 0);
        thread::sleep(REST);
    }
}

/// One life. Counts what came; returns the number that should not have come, if one did.
fn consume_once(task: &Task, life: u64, count: &mut u64) -> Result<Option<u64>, Error> {
    let mut gate = task.gate("steady", 0, 1, GateOptions::default())?;
    while let Some(item) = gate.next()? {
        let Item::Record(record) = item else { continue };
        let number = record.as_ref().try_into().map(u64::from_le_bytes).unwrap_or(u64::MAX);
        if number != *count {
            return Ok(Some(number));
        }
        if number == 0 {
            tell(life, "begins");
        }
        *count += 1;
    }
    Ok(None)
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let ended = match words.as_slice() {
        [run_dir, "producer"] => produce(Path::new(run_dir), None).map_err(Into::into),
        [run_dir, "producer", count] => match count.parse() {
            Ok(count) => produce(Path::new(run_dir), Some(count)).map_err(Into::into),
            Err(_) => Err("COUNT is not a number".into()),
        },
        [run_dir, "consumer"] => consume(Path::new(run_dir)).map(|count| println!("all {count} came")),
        _ => Err("usage: steady RUN_DIR producer [COUNT] | steady RUN_DIR consumer".into()),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("steady: {error}");
            ExitCode::FAILURE
        }
    }
}
