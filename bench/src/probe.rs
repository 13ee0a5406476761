//! A trickle of small messages that carry the time at which they were emitted, and a reader that says how long each was
//! on its way.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use weir_client::{BufferTimeout, GateOptions, Item, Partition, PartitionOptions, Strategy, Tried};

use crate::app::{Board, Counter};
use crate::clock::now_ns;
use crate::pipeline::{Pace, attach, spawn_worker};

/// What a message is sent as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// A record, handed to the daemon when the buffer timeout says so.
    Record {
        /// The buffer timeout, in milliseconds. 0: each record at once.
        buffer_timeout_ms: u64,
    },
    /// An event that overtakes data and needs no credit.
    PriorityEvent,
    /// An event behind records of its own channel, which are written whenever there is room for one.
    BehindRecords {
        /// Whether it overtakes them.
        is_priority: bool,
        /// Length of a record, in bytes.
        record_bytes: usize,
    },
}

/// A process that sends messages.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SenderOptions {
    /// Run directory of the daemon to attach to.
    pub run_dir: PathBuf,
    /// Name of the exchange.
    pub exchange: String,
    /// What it sends.
    pub kind: Kind,
    /// Length of a message, in bytes; at least 8.
    pub bytes: usize,
    /// Time between two messages, in microseconds.
    pub every_us: u64,
}

/// A process that reads them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ReceiverOptions {
    /// Run directory of the daemon to attach to.
    pub run_dir: PathBuf,
    /// Name of the exchange.
    pub exchange: String,
    /// Exclusive segments of its channel; the daemon's default if `None`.
    pub exclusive: Option<u32>,
    /// Records are no messages: so many of them are taken in a second, and the delays are those of events.
    pub records_per_second: Option<u64>,
}

/// Time between two looks for room.
const ROOM_LOOK: Duration = Duration::from_millis(1);

/// Attaches and starts the sender.
pub(crate) fn send(options: SenderOptions) -> Result<Arc<Board>, String> {
    let task = attach(&options.run_dir, "probe-sender")?;
    let buffer_timeout = match options.kind {
        Kind::Record { buffer_timeout_ms } => BufferTimeout::from(Duration::from_millis(buffer_timeout_ms)),
        Kind::PriorityEvent | Kind::BehindRecords { .. } => BufferTimeout::Off,
    };
    let partition_options = PartitionOptions { buffer_timeout, ..PartitionOptions::default() };
    let mut partition = task
        .partition(&options.exchange, 0, 1, 1, Strategy::Forward, partition_options)
        .map_err(|error| format!("cannot make the probe {}: {error}", options.exchange))?;
    let board = Board::new(1);
    spawn_worker("probe sender", Arc::clone(&board), move |board| {
        let _task = task;
        let mut message = vec![0_u8; options.bytes.max(8)];
        let mut due = Instant::now();
        while !board.is_ending() {
            let now = now_ns();
            message.iter_mut().zip(now.to_le_bytes()).for_each(|(byte, of_now)| *byte = of_now);
            let outcome = match options.kind {
                Kind::Record { .. } => partition.emit(&message),
                Kind::PriorityEvent => partition.emit_event(&message, true),
                Kind::BehindRecords { is_priority, .. } => partition.emit_event(&message, is_priority),
            };
            outcome.map_err(|error| error.to_string())?;
            if let Some(counter) = board.counters.first() {
                counter.records.fetch_add(1, Ordering::Relaxed);
            }
            due += Duration::from_micros(options.every_us);
            if let Kind::BehindRecords { record_bytes, .. } = options.kind {
                fill(&mut partition, record_bytes, due)?;
            }
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
        }
        Ok(())
    });
    Ok(board)
}

/// Writes records whenever there is room for one, until it is time for the next event.
fn fill(partition: &mut Partition, record_bytes: usize, until: Instant) -> Result<(), String> {
    let record = vec![0_u8; record_bytes];
    while Instant::now() < until {
        match partition.try_emit(&record).map_err(|error| error.to_string())? {
            Tried::Emitted => {}
            Tried::WouldBlock(_) => std::thread::sleep(ROOM_LOOK),
        }
    }
    Ok(())
}

/// Attaches and starts the reader.
pub(crate) fn receive(options: ReceiverOptions) -> Result<Arc<Board>, String> {
    let task = attach(&options.run_dir, "probe-receiver")?;
    let gate_options =
        GateOptions { producers: Some(1), exclusive: options.exclusive, ..GateOptions::default() };
    let mut gate = task
        .gate(&options.exchange, 0, 1, gate_options)
        .map_err(|error| format!("cannot read the probe {}: {error}", options.exchange))?;
    let board = Board::new(1);
    spawn_worker("probe receiver", Arc::clone(&board), move |board| {
        let _task = task;
        let counter = board.counters.first().ok_or("no counter")?;
        let mut pace = Pace::new();
        while let Some(item) = gate.next().map_err(|error| error.to_string())? {
            match (item, options.records_per_second) {
                (Item::Record(record), None) => note(board, counter, &record),
                (Item::Record(_), Some(rate)) => pace.keep(rate),
                (Item::Event(event), _) => note(board, counter, &event.payload),
            }
        }
        Ok(())
    });
    Ok(board)
}

fn note(board: &Board, counter: &Counter, message: &[u8]) {
    let now = now_ns();
    if let Some(sent) = message.first_chunk::<8>() {
        board.note_time(now.saturating_sub(u64::from_le_bytes(*sent)));
    }
    counter.records.fetch_add(1, Ordering::Relaxed);
    counter.bytes.fetch_add(message.len() as u64, Ordering::Relaxed);
}
