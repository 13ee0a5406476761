//! Both ends of a channel on one node: no link, no copy. The consumer reads in its producer's memory, and what it has there
//! outlives the producer; what it leaves there comes back at once.

mod clients;
mod common;

use std::process::Stdio;

use clients::raw::RawClient;
use common::{
    Daemon, DaemonOptions, Guarded, Source, channels, eventually, feed, free_address, lines, memory_used,
    number, recv, send, signal, sorted, weir,
};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;
use weir_client::{Client, Gate, GateOptions, Item, PartitionOptions, Strategy};
use weir_ipc::Submission;

/// Long enough that a producer waits for its consumers many times.
const INPUT_BYTES: usize = 24 << 20;

fn start(directory: &TempDir, shards: &str) -> Daemon {
    let config = "[observe]\nprobes = \"off\"\n[memory]\nhugepages = \"off\"\n";
    std::fs::write(directory.path().join("a.toml"), config).expect("a configuration file");
    let extra = ["--shards", shards];
    Daemon::start(
        directory.path(),
        &DaemonOptions { extra: &extra, ..DaemonOptions::new("a", &free_address()) },
    )
}

/// How a process maps the send regions of others or of its own: the permissions of each mapping.
fn send_regions(pid: u32) -> Vec<String> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let lines = maps.lines().filter(|line| line.contains("memfd:weir-send"));
    lines.filter_map(|line| line.split_whitespace().nth(1)).map(str::to_owned).collect()
}

fn all_is_given_back(daemon: &Daemon) {
    eventually("all memory is given back", || (memory_used(daemon) == 0).then_some(()));
}

fn data_links(daemon: &Daemon) -> usize {
    daemon.ask("status")["links"].as_array().map_or(0, Vec::len)
}

#[test]
fn records_stay_where_they_were_written_whatever_shards_the_two_ends_are_on() {
    // Attachments are spread over the shards, so that with three the two ends are on different ones.
    for shards in ["1", "3"] {
        let directory = TempDir::new().expect("a directory");
        let daemon = start(&directory, shards);
        let receiver = recv(&daemon, "x", "0/1");
        let mut sender = send(&daemon, "x", &["--strategy", "forward", "--consumers", "1"]);
        let source = Source::start(&mut sender);
        eventually("the consumer reads in the producer's memory, and may not write there", || {
            (send_regions(receiver.child.id()) == ["r--s"]).then_some(())
        });
        assert_eq!(data_links(&daemon), 0, "no link carries it");
        // Enough that the producer has waited for its consumer many times.
        eventually("much has passed", || {
            let rows = channels(&daemon, "x", "send");
            (number(rows.first()?, "bytes_total") > INPUT_BYTES as u64).then_some(())
        });
        let input = source.end();
        let output = receiver.output();
        assert!(output.status.success(), "recv: {}", String::from_utf8_lossy(&output.stderr));
        assert!(output.stdout == input, "{} bytes of {}", output.stdout.len(), input.len());
        assert!(sender.output().status.success());
        all_is_given_back(&daemon);
    }
}

#[test]
fn each_strategy_brings_each_record_once() {
    let directory = TempDir::new().expect("a directory");
    let daemon = start(&directory, "2");
    for strategy in ["rebalance", "hash", "broadcast"] {
        let input = lines(4 << 20);
        let receivers: Vec<_> = (0..3).map(|j| recv(&daemon, strategy, &format!("{j}/3"))).collect();
        let mut arguments = vec!["--strategy", strategy, "--consumers", "3"];
        arguments.extend((strategy == "hash").then_some(["--key-field", "1"]).into_iter().flatten());
        let mut sender = send(&daemon, strategy, &arguments);
        let feeder = feed(&mut sender, input.clone());
        let outputs: Vec<Vec<u8>> = receivers.into_iter().map(|receiver| receiver.output().stdout).collect();
        if strategy == "broadcast" {
            assert!(outputs.iter().all(|output| *output == input), "everything to everybody");
        } else {
            let parts: Vec<&[u8]> = outputs.iter().map(Vec::as_slice).collect();
            assert!(sorted(&parts) == sorted(&[&input]), "{strategy}");
        }
        assert!(sender.output().status.success());
        feeder.join().expect("the feeder");
    }
    assert_eq!(data_links(&daemon), 0);
    all_is_given_back(&daemon);
}

/// A consumer in this process, with what it is told about the exchange.
fn gate(daemon: &Daemon, exchange: &str, consumers: u32, strategy: Strategy) -> (Client, Gate) {
    let client = Client::connect(&daemon.run_dir).expect("a daemon");
    let task = client.task("consumer").expect("a task");
    let (producers, checksum) = (Some(1), Some(false));
    let options = GateOptions { producers, strategy: Some(strategy), checksum, ..GateOptions::default() };
    let gate = task.gate(exchange, 0, consumers, options).expect("a gate");
    (client, gate)
}

fn kept(daemon: &Daemon) -> String {
    let status = daemon.ask("status");
    let rows = status["subsystems"].as_array().cloned().unwrap_or_default();
    rows.iter().find(|row| row["name"] == "budget").map(Value::to_string).unwrap_or_default()
}

#[test]
fn what_a_consumer_holds_outlives_its_producer_and_is_charged_until_it_lets_go() {
    let directory = TempDir::new().expect("a directory");
    let daemon = start(&directory, "2");
    let (client, mut gate) = gate(&daemon, "x", 1, Strategy::Forward);
    let of_gate = memory_used(&daemon);
    let mut sender = send(&daemon, "x", &["--strategy", "forward", "--consumers", "1"]);
    let input = lines(INPUT_BYTES);
    let feeder = feed(&mut sender, input.clone());
    let mut read = Vec::new();
    let take = |gate: &mut Gate, read: &mut Vec<u8>| match gate.next() {
        Ok(Some(Item::Record(record))) => {
            read.extend_from_slice(&record);
            read.push(b'\n');
            Ok(true)
        }
        Ok(Some(Item::Event(_))) => Ok(true),
        Ok(None) => Ok(false),
        Err(error) => Err(error),
    };
    take(&mut gate, &mut read).expect("a record");
    eventually("its producer waits for it", || {
        let rows = channels(&daemon, "x", "send");
        rows.first()
            .is_some_and(|row| number(row, "queued_bytes") > 0 && number(row, "credit") == 0)
            .then_some(())
    });
    let of_both = memory_used(&daemon);
    signal(sender.child.id(), Signal::KILL);
    assert!(!sender.output().status.success());
    feeder.join().expect("the feeder");
    eventually("the daemon has noticed", || {
        kept(&daemon)
            .contains("keep")
            .then_some(())
            .or_else(|| channels(&daemon, "x", "send").is_empty().then_some(()))
    });
    assert_eq!(memory_used(&daemon), of_both, "a region that is read is charged");

    let error = loop {
        match take(&mut gate, &mut read) {
            Ok(goes_on) => assert!(goes_on, "the producer did not finish"),
            Err(error) => break error,
        }
    };
    assert!(error.to_string().contains("has ended"), "{error}");
    assert!(read.len() > 32 << 10 && input.starts_with(&read), "{} bytes, whole and in order", read.len());
    eventually("the region is free when its channel is over", || {
        (memory_used(&daemon) == of_gate).then_some(())
    });
    drop((gate, client));
    all_is_given_back(&daemon);
}

#[test]
fn a_producer_gets_everything_back_from_a_consumer_that_dies() {
    let directory = TempDir::new().expect("a directory");
    let daemon = start(&directory, "2");
    let stopped = recv(&daemon, "x", "1/2");
    let (client, mut gate) = gate(&daemon, "x", 2, Strategy::Rebalance);
    let mut command = weir(["send", "--exchange", "x"], &daemon.run_dir);
    command.args([
        "--strategy",
        "rebalance",
        "--consumers",
        "2",
        "--no-adaptive",
        "--on-consumer-death",
        "continue",
    ]);
    let mut sender =
        Guarded::spawn(command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()));
    let row = |consumer: u64| {
        let rows = channels(&daemon, "x", "send");
        rows.into_iter().find(|row| number(row, "consumer") == consumer)
    };
    eventually("the one that will be stopped is there", || {
        row(1).is_some_and(|row| row["state"] == "open").then_some(())
    });
    signal(stopped.child.id(), Signal::STOP);
    let feeder = feed(&mut sender, lines(INPUT_BYTES / 6));
    let reading = std::thread::spawn(move || {
        let mut records = 0_u64;
        while let Some(item) = gate.next().expect("the other one goes on") {
            records += u64::from(matches!(item, Item::Record(_)));
        }
        (records, client)
    });
    eventually("the producer waits for the one that is stopped", || {
        row(1)
            .is_some_and(|row| number(&row, "queued_bytes") > 0 && number(&row, "credit") == 0)
            .then_some(())
    });
    drop(stopped);
    let sent = sender.output();
    assert_eq!(sent.status.code(), Some(3), "it went on without: {}", String::from_utf8_lossy(&sent.stderr));
    feeder.join().expect("the feeder");
    assert!(reading.join().expect("the reader").0 > 100);
    all_is_given_back(&daemon);
}

#[test]
fn one_thread_may_finish_before_it_reads() {
    let directory = TempDir::new().expect("a directory");
    let daemon = start(&directory, "1");
    let (client, mut gate) = gate(&daemon, "x", 1, Strategy::Forward);
    let task = client.task("producer").expect("a task");
    let options = PartitionOptions::default();
    let mut partition = task.partition("x", 0, 1, 1, Strategy::Forward, options).expect("a partition");
    for number in 0..1_000_u32 {
        partition.emit(&number.to_le_bytes()).expect("room");
    }
    partition.emit_event(b"behind", false).expect("room");
    partition.finish().expect("everything is with the consumer");
    let (mut numbers, mut events) = (0_u32, 0);
    while let Some(item) = gate.next().expect("no failure") {
        match item {
            Item::Record(record) => {
                assert_eq!(*record, numbers.to_le_bytes());
                numbers += 1;
            }
            Item::Event(event) => {
                assert_eq!((event.payload.as_slice(), numbers), (&b"behind"[..], 1_000));
                events += 1;
            }
        }
    }
    assert_eq!((numbers, events), (1_000, 1));
    drop((gate, client));
    all_is_given_back(&daemon);
}

#[test]
fn what_a_producer_takes_away_its_consumer_reads_as_zeros() {
    let directory = TempDir::new().expect("a directory");
    let daemon = start(&directory, "1");
    let (client, mut gate) = gate(&daemon, "x", 1, Strategy::Rebalance);
    let mut producer = RawClient::attach(&daemon.run_dir);
    let mut partition = producer.partition("x", 1).expect("a partition");
    let mut send = |segment: u32, punches: bool| {
        let at = u64::from(segment) * u64::from(partition.segment_bytes);
        assert!(partition.mapping.write(at, b"\x05\0\0\0hello"));
        if punches {
            let bytes = u64::from(partition.segment_bytes) * u64::from(partition.layout.segments);
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            fallocate(&partition.region, flags, 0, bytes).expect("a hole");
        }
        let slice =
            Submission::Data { subpartition: 0, segment, offset: 0, bytes: 9, records: 1, last: true };
        assert_eq!(partition.port.submit(&slice), Ok(true));
        producer.ring_doorbell();
    };
    let mut next = || match gate.next() {
        Ok(Some(Item::Record(record))) => record.to_vec(),
        other => panic!("{other:?}"),
    };
    send(0, false);
    assert_eq!(next(), b"hello");
    send(1, true);
    assert_eq!((next(), next()), (Vec::new(), Vec::new()), "two lengths of 0");
    drop((partition, producer, gate, client));
    all_is_given_back(&daemon);
}
