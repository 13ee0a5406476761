//! Producers and consumers of the workloads: they write every byte of a payload and read every byte of it.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use weir_client::{Client, Debloat, DebloatOptions, Gate, GateOptions, Item, Partition, Task};

use crate::app::{Board, Counter};
use crate::blast;
use crate::choice::Choice;
use crate::clock::now_ns;

/// How producers and consumers of an exchange are laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Layout {
    /// This many producers, written in turn by one thread, all to one consumer on one thread.
    FanIn(u32),
    /// This many producers, each on its own thread with a consumer of its own.
    Forward(u32),
    /// This many producers and as many consumers, each on its own thread; every producer feeds every consumer.
    AllToAll(u32),
    /// Producers and consumers of different number, each on its own thread; every producer may feed every consumer.
    Spread {
        /// Producers.
        producers: u32,
        /// Consumers.
        consumers: u32,
    },
}

impl Layout {
    /// How many producers there are.
    #[must_use]
    pub fn producers(self) -> u32 {
        match self {
            Self::FanIn(count) | Self::Forward(count) | Self::AllToAll(count) => count,
            Self::Spread { producers, .. } => producers,
        }
    }

    /// How many consumers there are.
    #[must_use]
    pub fn consumers(self) -> u32 {
        match self {
            Self::FanIn(_) => 1,
            Self::Forward(count) | Self::AllToAll(count) => count,
            Self::Spread { consumers, .. } => consumers,
        }
    }

    /// How its producers choose unless they are told otherwise.
    #[must_use]
    pub fn choice(self) -> Choice {
        match self {
            Self::Forward(_) => Choice::Forward,
            Self::FanIn(_) | Self::AllToAll(_) | Self::Spread { .. } => Choice::Adaptive,
        }
    }
}

/// A process of producers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ProducerOptions {
    /// Run directory of the daemon to attach to.
    pub run_dir: PathBuf,
    /// Name of the exchange.
    pub exchange: String,
    /// How many, and how they are connected.
    pub layout: Layout,
    /// How they choose the consumer of a record.
    pub choice: Choice,
    /// With a key: so many percent of the records have the same one.
    pub hot_key_percent: u64,
    /// Length of each record, in bytes.
    pub record_bytes: usize,
    /// What they do.
    pub activity: Activity,
}

/// What producers do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Activity {
    /// Write records as fast as they can.
    Write,
    /// Write one record to each consumer, stand still until told to go on, and then write as fast as they can.
    Greet,
    /// Attach, and write nothing.
    Silent,
}

/// A process of consumers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ConsumerOptions {
    /// Run directory of the daemon to attach to.
    pub run_dir: PathBuf,
    /// Name of the exchange.
    pub exchange: String,
    /// How many, and how they are connected.
    pub layout: Layout,
    /// Length of each record, in bytes, if every byte is to be compared with what its producer wrote, and the longest
    /// pause between two records watched. Not for a layout in which a consumer has several producers.
    pub compared_bytes: Option<usize>,
    /// Whether no more is kept in flight to them than they consume in a second.
    pub debloated: bool,
}

/// How long a stopped worker sleeps between looks at its switch.
const STOPPED_LOOK: Duration = Duration::from_millis(5);

/// Attaches and starts the producers; returns their counters.
pub(crate) fn produce(options: ProducerOptions) -> Result<Arc<Board>, String> {
    let task = attach(&options.run_dir, "producer")?;
    let producers = options.layout.producers();
    let mut partitions = Vec::new();
    for producer in 0..producers {
        partitions.push(
            options
                .choice
                .partition(&task, &options.exchange, producer, options.layout)
                .map_err(|error| format!("cannot make producer {producer}/{producers}: {error}"))?,
        );
    }
    let groups: Vec<Vec<Partition>> = match options.layout {
        Layout::FanIn(_) => vec![partitions],
        Layout::Forward(_) | Layout::AllToAll(_) | Layout::Spread { .. } => {
            partitions.into_iter().map(|partition| vec![partition]).collect()
        }
    };
    let board = Board::new(groups.len());
    for (worker, group) in groups.into_iter().enumerate() {
        let board = Arc::clone(&board);
        let record_bytes = options.record_bytes;
        let (activity, keys) = (options.activity, Keys::of(&options));
        // The task is kept alive by every worker: dropped, it would end its cell.
        let task = task.clone();
        spawn_worker("producer", board, move |board| {
            let outcome = match activity {
                Activity::Silent => hold(board, &group),
                Activity::Greet => greet(board, worker, group, record_bytes, keys),
                Activity::Write => write(board, worker, group, record_bytes, keys),
            };
            drop(task);
            outcome
        });
    }
    Ok(board)
}

/// Keeps partitions attached without writing to them.
fn hold(board: &Board, _held: &[Partition]) -> Result<(), String> {
    while !board.is_ending() {
        std::thread::sleep(Duration::from_secs(1));
    }
    Ok(())
}

/// Writes one record to each consumer, then stands still, then writes.
fn greet(
    board: &Board,
    worker: usize,
    mut group: Vec<Partition>,
    record_bytes: usize,
    keys: Keys,
) -> Result<(), String> {
    let record = vec![0_u8; record_bytes];
    let counter = board.counters.get(worker).ok_or("no counter")?;
    counter.stopped.store(true, Ordering::Relaxed);
    for partition in &mut group {
        for consumer in 0..partition.subpartitions() {
            partition.emit_to(consumer, &record).map_err(|error| error.to_string())?;
        }
        partition.flush().map_err(|error| error.to_string())?;
    }
    while counter.stopped.load(Ordering::Relaxed) {
        if board.is_ending() {
            return Ok(());
        }
        std::thread::sleep(STOPPED_LOOK);
    }
    write(board, worker, group, record_bytes, keys)
}

/// The keys of records.
#[derive(Clone, Copy, Debug)]
enum Keys {
    None,
    /// So many percent have the same one, the others one of [`COLD_KEYS`].
    Hot(u64),
}

/// Keys that are not the hot one.
const COLD_KEYS: u64 = 1000;

impl Keys {
    fn of(options: &ProducerOptions) -> Self {
        match options.choice {
            Choice::Hash { .. } => Self::Hot(options.hot_key_percent),
            _ => Self::None,
        }
    }

    /// The key of record `number`.
    fn of_record(self, number: u64) -> Option<[u8; 8]> {
        let Self::Hot(percent) = self else { return None };
        let spread = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let is_hot = (spread >> 32) % 100 < percent;
        Some(if is_hot { 0 } else { 1 + (spread >> 40) % COLD_KEYS }.to_le_bytes())
    }
}

fn write(
    board: &Board,
    worker: usize,
    mut group: Vec<Partition>,
    record_bytes: usize,
    keys: Keys,
) -> Result<(), String> {
    let counter = board.counters.get(worker).ok_or("no counter")?;
    let (mut number, mut records) = (0_u64, 0_u64);
    let length = record_bytes as u64;
    while !board.is_ending() {
        if counter.stopped.load(Ordering::Relaxed) {
            std::thread::sleep(STOPPED_LOOK);
            continue;
        }
        for partition in &mut group {
            let first = number;
            let write = |record: &mut [u8]| number = blast::fill(record, first);
            let emitted = match keys.of_record(records) {
                None => partition.emit_with(record_bytes, write),
                Some(key) => partition.emit_keyed_with(&key, record_bytes, write),
            };
            emitted.map_err(|error| error.to_string())?;
        }
        records += group.len() as u64;
        count(counter, records, records * length, 0);
    }
    Ok(())
}

/// Attaches and starts the consumers; returns their counters.
pub(crate) fn consume(options: ConsumerOptions) -> Result<Arc<Board>, String> {
    let task = attach(&options.run_dir, "consumer")?;
    let consumers = options.layout.consumers();
    let board = Board::new(consumers as usize);
    for consumer in 0..consumers {
        let debloat = if options.debloated { Debloat::On(DebloatOptions::default()) } else { Debloat::Off };
        let producers = Some(options.layout.producers());
        let gate_options = GateOptions { producers, debloat, ..GateOptions::default() };
        let gate = task
            .gate(&options.exchange, consumer, consumers, gate_options)
            .map_err(|error| format!("cannot make consumer {consumer}/{consumers}: {error}"))?;
        let board = Arc::clone(&board);
        let task = task.clone();
        let compared_bytes = options.compared_bytes;
        spawn_worker("consumer", board, move |board| {
            let outcome = match compared_bytes {
                Some(bytes) => compare(board, consumer as usize, gate, bytes),
                None => read(board, consumer as usize, gate),
            };
            drop(task);
            outcome
        });
    }
    Ok(board)
}

fn read(board: &Board, worker: usize, mut gate: Gate) -> Result<(), String> {
    let counter = board.counters.get(worker).ok_or("no counter")?;
    let (mut records, mut bytes, mut checksum) = (0_u64, 0_u64, 0_u64);
    let mut pace = Pace::new();
    while let Some(item) = gate.next().map_err(|error| error.to_string())? {
        let Item::Record(record) = item else { continue };
        records += 1;
        bytes += record.len() as u64;
        checksum = checksum.wrapping_add(blast::sum(&record));
        count(counter, records, bytes, checksum);
        pace.keep(counter.records_per_second.load(Ordering::Relaxed));
        while counter.stopped.load(Ordering::Relaxed) {
            std::thread::sleep(STOPPED_LOOK);
        }
    }
    Ok(())
}

/// Keeps a consumer at a rate, as work that waits for something else does: it costs time and no CPU.
pub(crate) struct Pace {
    due: Instant,
}

impl Pace {
    /// Time that may be caught up with, so that late wake-ups do not make the rate smaller.
    const CAUGHT_UP: Duration = Duration::from_millis(20);

    /// A shorter sleep is not worth a system call.
    const SLEEP_MIN: Duration = Duration::from_millis(1);

    pub(crate) fn new() -> Self {
        Self { due: Instant::now() }
    }

    /// Called after each record; 0: as many as come.
    pub(crate) fn keep(&mut self, records_per_second: u64) {
        if records_per_second == 0 {
            return;
        }
        let now = Instant::now();
        let earliest = now.checked_sub(Self::CAUGHT_UP).unwrap_or(now);
        self.due = self.due.max(earliest) + Duration::from_nanos(1_000_000_000 / records_per_second);
        let early = self.due.saturating_duration_since(now);
        if early >= Self::SLEEP_MIN {
            std::thread::sleep(early);
        }
    }
}

/// Reads records that must be those of one producer, each once and in order.
fn compare(board: &Board, worker: usize, mut gate: Gate, record_bytes: usize) -> Result<(), String> {
    let counter = board.counters.get(worker).ok_or("no counter")?;
    let mut needed = vec![0_u8; record_bytes];
    let (mut number, mut records, mut bytes) = (0_u64, 0_u64, 0_u64);
    let mut before = now_ns();
    loop {
        let next = gate.next().map_err(|error| error.to_string());
        let item = match next {
            Ok(Some(item)) => item,
            Ok(None) => return Ok(()),
            Err(problem) => return fatal(board, &problem),
        };
        let Item::Record(record) = item else { continue };
        number = blast::fill(&mut needed, number);
        if record.bytes() != needed {
            return fatal(board, &format!("record {records} is not what was sent"));
        }
        records += 1;
        bytes += record.len() as u64;
        count(counter, records, bytes, 0);
        let now = now_ns();
        counter.pause_ns.fetch_max(now - before, Ordering::Relaxed);
        before = now;
        while counter.stopped.load(Ordering::Relaxed) {
            std::thread::sleep(STOPPED_LOOK);
        }
    }
}

/// What was compared is not as it must be: the process ends, so that the bench fails.
fn fatal(board: &Board, problem: &str) -> Result<(), String> {
    if board.is_closing() {
        return Ok(());
    }
    eprintln!("consumer: {problem}");
    std::process::exit(1);
}

fn count(counter: &Counter, records: u64, bytes: u64, checksum: u64) {
    counter.records.store(records, Ordering::Relaxed);
    counter.bytes.store(bytes, Ordering::Relaxed);
    counter.checksum.store(checksum, Ordering::Relaxed);
}

pub(crate) fn attach(run_dir: &std::path::Path, name: &str) -> Result<Task, String> {
    let client = Client::connect(run_dir).map_err(|error| error.to_string())?;
    client.task(name).map_err(|error| error.to_string())
}

/// Runs a worker in a thread. That the other end has gone is an error only while the work is to go on.
pub fn spawn_worker(
    role: &'static str,
    board: Arc<Board>,
    work: impl FnOnce(&Board) -> Result<(), String> + Send + 'static,
) {
    std::thread::spawn(move || match work(&board) {
        Err(problem) if !board.is_closing() => eprintln!("{role}: {problem}"),
        _ => {}
    });
}
