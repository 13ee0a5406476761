//! The operators of the chain: this program again, once for each instance, so that each has processor time of its own.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use weir_bench::app;
use weir_bench::cluster::{Cluster, Node};
use weir_client::{Gate, Item, Partition, PartitionOptions, Strategy, Task};

use super::Slow;
use crate::chain::{self, ATTACH_TIMEOUT};

/// Size of every record.
pub(super) const RECORD_BYTES: usize = 8 << 10;

/// How long C is busy with each record when it is what is slow.
const SERVICE: Duration = Duration::from_millis(2);

/// Instances of C behind a hash.
const KEYED: u32 = 4;

/// Of so many records all but one have the hot key.
const HOT_IN: u64 = 10;

/// Bytes a second that the pipe behind a slow sink takes.
const SINK_BYTES_PER_SECOND: u64 = 4_000_000;

/// Bytes that are read from it at a time.
const SINK_BYTES: usize = 64 << 10;

/// What an operator does with each record beside passing it on.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum Work {
    /// Nothing.
    None,
    /// Computes for so many microseconds.
    Compute(u64),
    /// Sleeps for so many.
    Sleep(u64),
    /// Writes it to standard output.
    Write,
}

/// An exchange that an operator reads: its name, and which consumer of how many it is.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Reads {
    exchange: String,
    consumer: u32,
    consumers: u32,
}

/// An exchange that it writes.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Writes {
    exchange: String,
    producer: u32,
    producers: u32,
    consumers: u32,
    /// As commands name it.
    strategy: String,
    /// With the smallest pool that there can be.
    is_tight: bool,
}

/// One instance of an operator.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Operator {
    run_dir: PathBuf,
    task: String,
    reads: Option<Reads>,
    writes: Option<Writes>,
    work: Work,
    /// Records a second that a source emits; as many as go if `None`.
    pace: Option<u64>,
}

/// The process' side: does what `text` says, until it is ended.
///
/// # Errors
/// One line: what it could not do.
pub(crate) fn serve(text: &str) -> Result<(), String> {
    let operator: Operator =
        serde_json::from_str(text).map_err(|error| format!("an operator cannot be read: {error}"))?;
    let task = chain::attach(&operator.run_dir, &operator.task)?;
    let mut output = operator.writes.as_ref().map(|writes| partition(&task, writes)).transpose()?;
    match &operator.reads {
        None => {
            let output = output.as_mut().ok_or("a source without an exchange to write")?;
            emit(output, operator.pace)
        }
        Some(reads) => {
            let mut gate = chain::gate(&task, &reads.exchange, reads.consumer, reads.consumers)?;
            pass_on(&mut gate, output.as_mut(), operator.work)
        }
    }
}

fn partition(task: &Task, writes: &Writes) -> Result<Partition, String> {
    let strategy: Strategy =
        writes.strategy.parse().map_err(|_| "a strategy that there is not".to_owned())?;
    let mut options = PartitionOptions::default();
    if writes.is_tight {
        options.exclusive = Some(1);
        options.floating = Some(0);
        options.overdraft = Some(0);
        options.retention = Some(0);
    }
    let Writes { exchange, producer, producers, consumers, .. } = writes;
    task.partition(exchange, *producer, *producers, *consumers, strategy, options)
        .map_err(|error| error.to_string())
}

/// Emits records without end: number, then filler. The number is the key, too.
fn emit(output: &mut Partition, pace: Option<u64>) -> Result<(), String> {
    let mut record = vec![0x5a; RECORD_BYTES];
    let began = Instant::now();
    for number in 0_u64.. {
        if let Some(pace) = pace {
            let due = began + Duration::from_micros(number * 1_000_000 / pace.max(1));
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
        }
        put(output, &mut record, number)?;
    }
    Ok(())
}

fn put(output: &mut Partition, record: &mut [u8], number: u64) -> Result<(), String> {
    if let Some(place) = record.first_chunk_mut::<8>() {
        *place = number.to_le_bytes();
    }
    output.emit(record).map_err(|error| error.to_string())
}

/// The key of the record with this number.
fn key(number: u64) -> [u8; 8] {
    let is_hot = !number.is_multiple_of(HOT_IN);
    if is_hot { [0; 8] } else { number.to_le_bytes() }
}

fn pass_on(gate: &mut Gate, mut output: Option<&mut Partition>, work: Work) -> Result<(), String> {
    let mut record = Vec::new();
    loop {
        match gate.next().map_err(|error| error.to_string())? {
            Some(Item::Record(read)) => {
                record.clear();
                record.extend_from_slice(&read);
            }
            Some(Item::Event(_)) => continue,
            None => return Ok(()),
        }
        work.on(&record)?;
        let Some(output) = output.as_deref_mut() else { continue };
        let number = record.first_chunk::<8>().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        output.emit_keyed(&key(number), &record).map_err(|error| error.to_string())?;
    }
}

impl Work {
    fn on(self, record: &[u8]) -> Result<(), String> {
        match self {
            Self::None => {}
            Self::Compute(us) => compute(Duration::from_micros(us), record),
            Self::Sleep(us) => std::thread::sleep(Duration::from_micros(us)),
            Self::Write => std::io::stdout()
                .lock()
                .write_all(record)
                .map_err(|error| format!("the sink takes nothing: {error}"))?,
        }
        Ok(())
    }
}

/// Computes for this long.
fn compute(time: Duration, record: &[u8]) {
    let began = Instant::now();
    let mut sum = 0_u64;
    while began.elapsed() < time {
        sum = record.iter().fold(sum, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte)));
        std::hint::black_box(sum);
    }
}

/// All operators; they end with this.
pub(super) struct Chain {
    children: Vec<Child>,
    instances: usize,
}

impl Chain {
    /// Starts the chain with what is slow.
    ///
    /// # Errors
    /// One line: what could not be started.
    pub(super) fn start(cluster: &Cluster, slow: Slow) -> Result<Self, String> {
        let mut chain = Self { children: Vec::new(), instances: 0 };
        for operator in operators(cluster, slow) {
            chain.add(&operator)?;
        }
        Ok(chain)
    }

    fn add(&mut self, operator: &Operator) -> Result<(), String> {
        let program =
            std::env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
        let text =
            serde_json::to_string(operator).map_err(|error| format!("cannot write an operator: {error}"))?;
        let is_writing = matches!(operator.work, Work::Write);
        let output = if is_writing { Stdio::piped() } else { Stdio::null() };
        let mut child = Command::new(program)
            .args(["--operator", &text])
            .stdin(Stdio::null())
            .stdout(output)
            .spawn()
            .map_err(|error| format!("cannot start operator {}: {error}", operator.task))?;
        if let Some(pipe) = child.stdout.take() {
            std::thread::spawn(move || read_slowly(pipe));
        }
        self.children.push(child);
        self.instances += 1;
        Ok(())
    }

    /// Waits until every instance tells its times to node a.
    ///
    /// # Errors
    /// One line: who is not there.
    pub(super) fn await_attached(&self, cluster: &Cluster) -> Result<(), String> {
        let began = Instant::now();
        loop {
            let answer = cluster.ask_path(cluster.a(), "/v1/tasks")?;
            let tasks = answer.get("tasks").and_then(Value::as_array).cloned().unwrap_or_default();
            let instances = tasks.iter().filter_map(|task| task.get("instances").and_then(Value::as_array));
            if instances.map(Vec::len).sum::<usize>() == self.instances {
                return Ok(());
            }
            if began.elapsed() > ATTACH_TIMEOUT {
                return Err(format!("not every operator is attached; the tasks are {answer}"));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Chain {
    fn drop(&mut self) {
        // They have no end of their own, and what they leave is the daemons' matter.
        app::kill(&mut self.children.iter_mut().collect::<Vec<_>>());
    }
}

fn read_slowly(mut pipe: impl Read) {
    let mut bytes = vec![0; SINK_BYTES];
    let began = Instant::now();
    let mut taken = 0_u64;
    while let Ok(read @ 1..) = pipe.read(&mut bytes) {
        taken += read as u64;
        let due = began + Duration::from_micros(taken * 1_000_000 / SINK_BYTES_PER_SECOND);
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
    }
}

/// The instances, consumers first, so that nobody waits for them.
fn operators(cluster: &Cluster, slow: Slow) -> Vec<Operator> {
    let count = if slow == Slow::Skew { KEYED } else { 1 };
    let us = u64::try_from(SERVICE.as_micros()).unwrap_or(u64::MAX);
    let third = match slow {
        Slow::Cpu => Work::Compute(us),
        Slow::Wait | Slow::Skew => Work::Sleep(us),
        _ => Work::None,
    };
    let fourth = if slow == Slow::Sink { Work::Write } else { Work::None };
    let strategy = if slow == Slow::Skew { "hash" } else { "forward" };
    let collecting = if slow == Slow::Skew { "hash" } else { "forward" };
    let reads = |exchange: &str, consumer: u32, consumers: u32| {
        Some(Reads { exchange: exchange.to_owned(), consumer, consumers })
    };
    let writes = |exchange: &str, producer: (u32, u32), consumers: u32, strategy: &str, is_tight: bool| {
        Some(Writes {
            exchange: exchange.to_owned(),
            producer: producer.0,
            producers: producer.1,
            consumers,
            strategy: strategy.to_owned(),
            is_tight,
        })
    };
    let operator = |node: &Node, task: &str, reads, writes, work| Operator {
        run_dir: run_dir(node),
        task: task.to_owned(),
        reads,
        writes,
        work,
        pace: (slow == Slow::None && task == "A").then_some(100),
    };
    let (a, b) = (cluster.a(), cluster.b());
    let mut operators = vec![operator(b, "D", reads("cd", 0, 1), None, fourth)];
    for index in 0..count {
        let output = writes("cd", (index, count), 1, collecting, false);
        operators.push(operator(b, "C", reads("bc", index, count), output, third));
    }
    let is_tight = slow == Slow::Pool;
    operators.push(operator(
        a,
        "B",
        reads("ab", 0, 1),
        writes("bc", (0, 1), count, strategy, is_tight),
        Work::None,
    ));
    operators.push(operator(a, "A", None, writes("ab", (0, 1), 1, "forward", false), Work::None));
    operators
}

fn run_dir(node: &Node) -> PathBuf {
    let run_dir: &Path = &node.run_dir;
    run_dir.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nine_of_ten_records_have_the_hot_key() {
        let hot = (0..1000).filter(|number| key(*number) == [0; 8]).count();
        // The record with number 0 has it as well.
        assert_eq!(hot, 901);
    }

    #[test]
    fn computing_takes_the_time_that_was_asked_for() {
        let began = Instant::now();
        compute(Duration::from_millis(5), &[1; 64]);
        assert!(began.elapsed() >= Duration::from_millis(5));
    }
}
