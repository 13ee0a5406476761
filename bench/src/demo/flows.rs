//! The processes of the demo: `weir send` fed with the corpus, `weir recv` read by threads that count.

use std::io::{Read, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use weir_bench::app;
use weir_bench::cluster::{Cluster, Node};

use crate::corpus::{Chunk, Tally};

/// Consumers of each exchange.
pub(crate) const CONSUMERS: u32 = 4;

/// Records after which the slow consumer rests.
const SLOW_AFTER_RECORDS: u64 = 1000;

/// How long the slow consumer rests each time.
const SLOW_REST: Duration = Duration::from_millis(10);

/// One exchange with its producer and its consumers.
pub(crate) struct Exchange {
    pub(crate) name: &'static str,
    producer: Option<Child>,
    consumers: Vec<Consumer>,
}

struct Consumer {
    child: Child,
    counter: Arc<Counter>,
    reader: Option<JoinHandle<Tally>>,
}

#[derive(Default)]
struct Counter {
    records: AtomicU64,
    is_slow: AtomicBool,
}

impl Exchange {
    /// Starts the consumers on node b and the producer on node a.
    pub(crate) fn start(cluster: &Cluster, name: &'static str, strategy: &str) -> Result<Self, String> {
        let mut exchange = Self { name, producer: None, consumers: Vec::new() };
        for consumer in 0..CONSUMERS {
            let position = format!("{consumer}/{CONSUMERS}");
            let child = weir(cluster, cluster.b(), &["recv", "--exchange", name, "--consumer", &position])
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .spawn();
            exchange
                .consumers
                .push(Consumer::new(child.map_err(|error| format!("cannot start weir recv: {error}"))?)?);
        }
        let mut send = weir(cluster, cluster.a(), &["send", "--exchange", name, "--strategy", strategy]);
        send.args(["--consumers", &CONSUMERS.to_string()]);
        if strategy == "hash" {
            send.args(["--key-field", "1"]);
        }
        let child = send.stdin(Stdio::piped()).stdout(Stdio::null()).spawn();
        exchange.producer = Some(child.map_err(|error| format!("cannot start weir send: {error}"))?);
        Ok(exchange)
    }

    /// Feeds the producer in a thread of its own: the corpus at least once, and again until `until`.
    pub(crate) fn feed(
        &mut self,
        corpus: &Arc<Vec<Chunk>>,
        until: Instant,
    ) -> Result<JoinHandle<Result<Tally, String>>, String> {
        let input = self.producer.as_mut().and_then(|producer| producer.stdin.take());
        let mut input = input.ok_or("the producer is fed already")?;
        let corpus = Arc::clone(corpus);
        let name = self.name;
        Ok(std::thread::spawn(move || {
            let mut fed = Tally::default();
            for chunk in corpus.iter().chain(corpus.iter().cycle().take_while(|_| Instant::now() < until)) {
                input
                    .write_all(&chunk.text)
                    .map_err(|error| format!("the producer of {name} took no more: {error}"))?;
                fed.add(chunk.sum);
            }
            Ok(fed)
        }))
    }

    /// Makes a consumer rest after every thousand records.
    pub(crate) fn slow(&self, consumer: usize, is_slow: bool) {
        if let Some(consumer) = self.consumers.get(consumer) {
            consumer.counter.is_slow.store(is_slow, Ordering::Relaxed);
        }
    }

    /// Stops the process of a consumer, or lets it go on.
    pub(crate) fn stop(&self, consumer: usize, stopped: bool) {
        let pid = self
            .consumers
            .get(consumer)
            .and_then(|consumer| Pid::from_raw(consumer.child.id().cast_signed()));
        if let Some(pid) = pid {
            // Fails only if it has ended, which the tally will show.
            let _ = kill_process(pid, if stopped { Signal::STOP } else { Signal::CONT });
        }
    }

    /// Records that each consumer has read so far.
    pub(crate) fn records(&self) -> Vec<u64> {
        self.consumers.iter().map(|consumer| consumer.counter.records.load(Ordering::Relaxed)).collect()
    }

    /// Waits until producer and consumers have ended in order; what the consumers read.
    pub(crate) fn finish(mut self) -> Result<Tally, String> {
        let mut read = Tally::default();
        for consumer in &mut self.consumers {
            if let Some(reader) = consumer.reader.take() {
                read.add(reader.join().map_err(|_| format!("a reader of {} failed", self.name))?);
            }
            expect_success(&mut consumer.child, self.name, "recv")?;
        }
        if let Some(producer) = &mut self.producer {
            expect_success(producer, self.name, "send")?;
        }
        Ok(read)
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        let consumers = self.consumers.iter_mut().map(|consumer| &mut consumer.child);
        app::kill(&mut consumers.chain(&mut self.producer).collect::<Vec<_>>());
    }
}

impl Consumer {
    fn new(mut child: Child) -> Result<Self, String> {
        let output = child.stdout.take().ok_or("weir recv has no output")?;
        let counter = Arc::new(Counter::default());
        let counted = Arc::clone(&counter);
        let reader = Some(std::thread::spawn(move || read_lines(output, &counted)));
        Ok(Self { child, counter, reader })
    }
}

fn read_lines(mut output: ChildStdout, counter: &Counter) -> Tally {
    let mut tally = Tally::default();
    let mut buffer = vec![0_u8; 64 * 1024];
    let mut filled = 0;
    let mut rested_at = 0;
    while let Ok(read @ 1..) = output.read(buffer.get_mut(filled..).unwrap_or_default()) {
        filled += read;
        let mut start = 0;
        while let Some(length) =
            buffer.get(start..filled).and_then(|rest| rest.iter().position(|byte| *byte == b'\n'))
        {
            tally.add_record(buffer.get(start..start + length).unwrap_or_default());
            start += length + 1;
            if counter.is_slow.load(Ordering::Relaxed) && tally.records >= rested_at + SLOW_AFTER_RECORDS {
                rested_at = tally.records;
                counter.records.store(tally.records, Ordering::Relaxed);
                std::thread::sleep(SLOW_REST);
            }
        }
        buffer.copy_within(start..filled, 0);
        filled -= start;
        counter.records.store(tally.records, Ordering::Relaxed);
    }
    tally
}

fn weir(cluster: &Cluster, node: &Node, arguments: &[&str]) -> Command {
    let mut command = Command::new(cluster.program());
    // The demo shows what moves; a progress line of each process would write over it.
    command.args(arguments).args(["--quiet", "--run-dir"]).arg(&node.run_dir);
    command
}

fn expect_success(child: &mut Child, exchange: &str, verb: &str) -> Result<(), String> {
    let status = child.wait().map_err(|error| format!("cannot wait for weir {verb}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("weir {verb} of {exchange} failed ({status})")) }
}
