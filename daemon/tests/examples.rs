//! The examples of the client over two daemons, compared with what comes out of them without Weir; and futures on both
//! ends of an exchange between two nodes, dropped wherever they wait.

mod common;

use std::io::{self, Write};
use std::path::Path;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use common::{Daemon, Pair, channels, eventually, memory_used, number};
use tokio::task::yield_now;
use weir_client::{Client, Gate, GateOptions, Item, PartitionOptions, Strategy};

#[allow(dead_code, reason = "its `main`")]
#[path = "../../client/examples/async_consumer.rs"]
mod async_consumer;
#[allow(dead_code, reason = "its `main`")]
#[path = "../../client/examples/consumer.rs"]
mod consumer;
#[allow(dead_code, reason = "its `main`")]
#[path = "../../client/examples/fan_out.rs"]
mod fan_out;
#[allow(dead_code, reason = "its `main`")]
#[path = "../../client/examples/map.rs"]
mod map;
#[allow(dead_code, reason = "its `main`")]
#[path = "../../client/examples/producer.rs"]
mod producer;
#[allow(dead_code, reason = "its `main`")]
#[path = "../../client/examples/steady.rs"]
mod steady;

/// More than all exchanges of the chain hold together.
const LINES: u64 = 600_000;

/// Runs a part of the pipeline on a thread of its own, attached to this daemon.
fn stage<T: Send + 'static>(
    daemon: &Daemon,
    what: impl FnOnce(&Path) -> T + Send + 'static,
) -> JoinHandle<T> {
    let run_dir = daemon.run_dir.clone();
    thread::spawn(move || what(&run_dir))
}

fn await_memory_given_back(pair: &Pair) {
    for daemon in [&pair.a, &pair.b] {
        eventually("all memory is given back", || (memory_used(daemon) == 0).then_some(()));
    }
}

/// An output that takes nothing at first, and everything once it is let.
struct Held {
    bytes: Vec<u8>,
    reached: Option<Sender<()>>,
    let_go: Receiver<()>,
}

impl Write for Held {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Some(reached) = self.reached.take() {
            reached.send(()).map_err(io::Error::other)?;
            self.let_go.recv().map_err(io::Error::other)?;
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Whether two ascending sequences make these numbers, whatever is taken of which first.
fn are_two_ascending(numbers: &[u64]) -> bool {
    let mut last: [Option<u64>; 2] = [None; 2];
    numbers.iter().all(|number| {
        // To be put behind the larger one that is below it.
        last.sort_unstable_by(|one, other| other.cmp(one));
        let fits = last.iter_mut().find(|last| last.is_none_or(|last| last < *number));
        fits.map(|last| *last = Some(*number)).is_some()
    })
}

#[test]
fn lines_become_words_that_an_async_consumer_reads_and_everything_before_it_waits_while_it_does_not() {
    let pair = Pair::start_on_ordinary_pages();
    let ((reached, is_reached), (release, let_go)) = (mpsc::channel(), mpsc::channel());
    let reader = stage(&pair.b, move |run_dir| {
        let mut output = Held { bytes: Vec::new(), reached: Some(reached), let_go };
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async_consumer::consume(run_dir, &mut output)).expect("consume");
        String::from_utf8(output.bytes).expect("text")
    });
    let stages = [
        stage(&pair.a, |run_dir| map::map(run_dir, 0).expect("a map")),
        stage(&pair.b, |run_dir| map::map(run_dir, 1).expect("the other")),
        stage(&pair.a, |run_dir| fan_out::fan_out(run_dir).expect("the fan-out")),
    ];
    let source = stage(&pair.a, |run_dir| producer::produce(run_dir, LINES).expect("produce"));
    is_reached.recv_timeout(common::PATIENCE).expect("the first word is read");
    let sent =
        || channels(&pair.a, "lines", "send").iter().map(|row| number(row, "bytes_total")).sum::<u64>();
    eventually("no more lines are taken", || {
        let before = sent();
        thread::sleep(Duration::from_millis(500));
        (before > 0 && sent() == before).then_some(())
    });
    assert!(!source.is_finished(), "it waits for the end of the chain");
    release.send(()).expect("it waits");
    let output = reader.join().expect("the reader");
    source.join().expect("the source");
    stages.into_iter().for_each(|stage| stage.join().expect("a stage"));
    // Each line is the word "line" and its number.
    let numbers: Vec<u64> =
        output.lines().filter_map(|line| line.strip_prefix("number ")?.parse().ok()).collect();
    let others = output.lines().filter(|line| *line == "other line").count() as u64;
    assert_eq!((output.lines().count() as u64, others), (2 * LINES, LINES));
    assert!(are_two_ascending(&numbers), "each of two maps keeps the order of its lines");
    let mut sorted = numbers;
    sorted.sort_unstable();
    assert!(sorted.into_iter().eq(0..LINES), "every number once");
    await_memory_given_back(&pair);
}

#[test]
fn two_consumers_on_two_nodes_get_every_line_of_the_producer_in_order() {
    const LINES: u64 = 200_000;
    let pair = Pair::start();
    let readers = [(0, &pair.b), (1, &pair.a)].map(|(index, daemon)| {
        stage(daemon, move |run_dir| {
            let mut output = Vec::new();
            consumer::consume(run_dir, index, &mut output).expect("consume");
            String::from_utf8(output).expect("text")
        })
    });
    stage(&pair.a, |run_dir| producer::produce(run_dir, LINES).expect("produce")).join().expect("the source");
    let mut all = Vec::new();
    for reader in readers {
        let output = reader.join().expect("a reader");
        let lines = output.strip_suffix("(that was all)\n").expect("the event is behind its records");
        let numbers: Vec<u64> = lines
            .lines()
            .map(|line| line.strip_prefix("line ").expect("a line").parse().expect("a number"))
            .collect();
        assert!(numbers.is_sorted(), "in order");
        all.extend(numbers);
    }
    all.sort_unstable();
    assert!(all.into_iter().eq(0..LINES), "every line once");
    await_memory_given_back(&pair);
}

const RECORDS: usize = 3_000;

/// Longer than a producer may hold (15 segments of 32 KiB) and its consumer may get unread (10): a future has to wait in
/// its middle, whatever the daemons do meanwhile.
const LONG_BYTES: usize = 1_000_000;

fn is_long(number: usize) -> bool {
    number.is_multiple_of(100)
}

/// The number in front, and bytes that differ from those of other numbers.
fn record(number: usize) -> Vec<u8> {
    let length = if is_long(number) { LONG_BYTES } else { 4 + number * 37 % 3_000 };
    let mut bytes: Vec<u8> = (0..length).map(|at| (number.wrapping_mul(31) + at * 7) as u8).collect();
    bytes[..4].copy_from_slice(&(number as u32).to_le_bytes());
    bytes
}

fn key(number: usize) -> [u8; 1] {
    [(number % 23) as u8]
}

/// Is done when it was polled so often and once more.
async fn polls(count: usize) {
    for _ in 0..count {
        yield_now().await;
    }
}

/// Emits every record once. How many futures were dropped, and how many of them in the middle of their record.
async fn emit_all(run_dir: &Path) -> (usize, u64) {
    let task =
        Client::connect_async(run_dir).await.expect("attach").task_async("emits").await.expect("a task");
    let options = PartitionOptions { checksum: true, ..Default::default() };
    let made = task.partition_async("x", 0, 1, 2, Strategy::Hash, options).await;
    let (mut partition, mut dropped) = (made.expect("a partition"), 0);
    for number in 0..RECORDS {
        let (key, record) = (key(number), record(number));
        loop {
            let before = partition.abandoned();
            let emitted = tokio::select! {
                biased;
                emitted = partition.emit_keyed_async(&key, &record) => Some(emitted),
                () = polls(number % 3) => None,
            };
            if let Some(emitted) = emitted {
                emitted.expect("emit");
                break;
            }
            dropped += 1;
            if partition.abandoned() > before {
                break;
            }
            partition.available().await.expect("available");
            yield_now().await;
        }
    }
    let left = partition.abandoned();
    partition.finish_async().await.expect("finish");
    (dropped, left)
}

/// Reads to the end, and drops two futures of three where they wait. The numbers that came.
async fn read_all(gate: &mut Gate) -> Vec<usize> {
    let mut seen = Vec::new();
    for round in 0_usize.. {
        let item = tokio::select! {
            biased;
            item = gate.next_async() => item.expect("no failure"),
            () = polls(round % 3), if round % 3 < 2 => continue,
        };
        let Some(Item::Record(found)) = item else {
            assert_eq!(item, None);
            break;
        };
        let number = u32::from_le_bytes(*found.first_chunk().expect("a number")) as usize;
        assert!(*found == record(number), "record {number} is whole");
        seen.push(number);
    }
    seen
}

#[test]
fn futures_that_are_dropped_wherever_they_wait_move_each_record_once_between_two_nodes() {
    let pair = Pair::start_on_ordinary_pages();
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let ((dropped, left), seen) = runtime.block_on(async {
        let read = async {
            let client = Client::connect_async(&pair.b.run_dir).await.expect("attach");
            let task = client.task_async("reads").await.expect("a task");
            let (first, second) = tokio::join!(
                task.gate_async("x", 0, 2, GateOptions::default()),
                task.gate_async("x", 1, 2, GateOptions::default()),
            );
            let (mut first, mut second) = (first.expect("a gate"), second.expect("a gate"));
            let (first, second) = tokio::join!(read_all(&mut first), read_all(&mut second));
            [first, second]
        };
        tokio::join!(emit_all(&pair.a.run_dir), read)
    });
    let mut consumers = [None; 23];
    for (consumer, numbers) in seen.iter().enumerate() {
        assert!(numbers.is_sorted(), "in order");
        for number in numbers {
            let of_key = consumers[usize::from(key(*number)[0])].get_or_insert(consumer);
            assert_eq!(*of_key, consumer, "a key has one consumer");
        }
    }
    let mut all = seen.concat();
    all.sort_unstable();
    assert!(all.into_iter().eq(0..RECORDS), "every record once");
    println!("{dropped} emits were dropped, {left} of them in their middle");
    // Each third long one is dropped as soon as it waits.
    let at_once = (0..RECORDS).filter(|number| is_long(*number) && number % 3 == 0).count() as u64;
    assert!(left >= at_once, "{left} of at least {at_once}");
    await_memory_given_back(&pair);
}

#[test]
fn what_outlives_its_daemons_carries_every_number_in_one_life_too() {
    let pair = Pair::start_on_ordinary_pages();
    let consumer = stage(&pair.b, |run_dir| steady::consume(run_dir).expect("no gap and no repeat"));
    stage(&pair.a, |run_dir| steady::produce(run_dir, Some(5_000)).expect("produce"))
        .join()
        .expect("a thread");
    assert_eq!(consumer.join().expect("a thread"), 5_000);
    await_memory_given_back(&pair);
}
