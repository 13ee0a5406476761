//! Clients that do nothing wrong: pairs of a producer and a consumer, each attached on its own, that move records for
//! as long as they are let. Every record is looked at, byte by byte.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use weir_client::{Client, GateOptions, Item, PartitionOptions, Strategy};

use crate::common::PATIENCE;

/// Length of a record.
const RECORD_BYTES: usize = 1024;
/// Records that a producer emits before it pauses.
const BURST: u64 = 16;
/// The pause between bursts: the machine is to have time for those who do something wrong. Without a pause the figures
/// say how they share a processor, and nothing else.
const PAUSE: Duration = Duration::from_millis(5);

/// Pairs at work.
pub(crate) struct Healthy {
    stop: Arc<AtomicBool>,
    pairs: Vec<Pair>,
    began: Instant,
}

struct Pair {
    received: Arc<AtomicU64>,
    producer: JoinHandle<u64>,
    consumer: JoinHandle<u64>,
}

/// Record number `number` of a pair.
fn record(pair: usize, number: u64) -> [u8; RECORD_BYTES] {
    let mut bytes = [(number as usize * 31 + pair) as u8; RECORD_BYTES];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes
}

impl Healthy {
    /// Starts `pairs` pairs at this daemon and waits until records flow in each.
    pub(crate) fn start(run_dir: &Path, pairs: usize) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let pairs = (0..pairs).map(|pair| Pair::start(run_dir, pair, &stop)).collect();
        let healthy = Self { stop, pairs, began: Instant::now() };
        healthy.await_progress("at the start");
        healthy
    }

    /// Records received by each pair so far.
    fn received(&self) -> Vec<u64> {
        self.pairs.iter().map(|pair| pair.received.load(Ordering::Relaxed)).collect()
    }

    /// Waits until every pair has moved at least one burst more.
    pub(crate) fn await_progress(&self, when: &str) {
        let (before, began) = (self.received(), Instant::now());
        for (pair, before) in before.iter().enumerate() {
            while self.received()[pair] < before + BURST {
                assert!(began.elapsed() < PATIENCE, "healthy pair {pair} stands still {when}");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    /// Starts to measure.
    pub(crate) fn window(&self) -> Window {
        Window { began: Instant::now(), received: self.received() }
    }

    /// Ends all of them in order: every record that was emitted has arrived.
    pub(crate) fn finish(self) {
        self.stop.store(true, Ordering::Relaxed);
        let mut total = 0;
        for (number, pair) in self.pairs.into_iter().enumerate() {
            let emitted = pair.producer.join().expect("a healthy producer");
            let received = pair.consumer.join().expect("a healthy consumer");
            assert_eq!(received, emitted, "records of healthy pair {number}");
            total += received;
        }
        println!("healthy clients: {total} records in {} ms, all exact", self.began.elapsed().as_millis());
    }
}

/// Since when, and how many records each pair had received then.
pub(crate) struct Window {
    began: Instant,
    received: Vec<u64>,
}

impl Window {
    /// Records a second, of all pairs together.
    pub(crate) fn rate(&self, healthy: &Healthy) -> f64 {
        let now: u64 = healthy.received().iter().sum();
        let before: u64 = self.received.iter().sum();
        (now - before) as f64 / self.began.elapsed().as_secs_f64()
    }
}

impl Pair {
    fn start(run_dir: &Path, number: usize, stop: &Arc<AtomicBool>) -> Self {
        let received = Arc::new(AtomicU64::new(0));
        let (producer_dir, consumer_dir) = (run_dir.to_path_buf(), run_dir.to_path_buf());
        let (stop, counter) = (Arc::clone(stop), Arc::clone(&received));
        let producer = std::thread::spawn(move || produce(&producer_dir, number, &stop));
        let consumer = std::thread::spawn(move || consume(&consumer_dir, number, &counter));
        Self { received, producer, consumer }
    }
}

fn exchange(number: usize) -> String {
    format!("healthy-{number}")
}

fn produce(run_dir: &PathBuf, number: usize, stop: &AtomicBool) -> u64 {
    let client = Client::connect(run_dir).expect("a daemon");
    let task = client.task("producer").expect("a task");
    let options = PartitionOptions::default();
    let mut partition =
        task.partition(&exchange(number), 0, 1, 1, Strategy::Forward, options).expect("a partition");
    let mut emitted = 0;
    while !stop.load(Ordering::Relaxed) {
        for _ in 0..BURST {
            partition.emit(&record(number, emitted)).expect("emitted");
            emitted += 1;
        }
        partition.flush().expect("flushed");
        std::thread::sleep(PAUSE);
    }
    let _ = partition.finish().expect("finished");
    emitted
}

fn consume(run_dir: &PathBuf, number: usize, counter: &AtomicU64) -> u64 {
    let client = Client::connect(run_dir).expect("a daemon");
    let task = client.task("consumer").expect("a task");
    let mut gate = task.gate(&exchange(number), 0, 1, GateOptions::default()).expect("a gate");
    let mut received = 0;
    while let Some(item) = gate.next().unwrap_or_else(|error| panic!("healthy pair {number}: {error}")) {
        let Item::Record(found) = item else { panic!("an event that nobody sent") };
        assert!(found[..] == record(number, received), "record {received} of pair {number} is not as it was");
        received += 1;
        counter.store(received, Ordering::Relaxed);
    }
    received
}
