//! A consumer that is lost with its whole node: what becomes of its producer, whose own node and link to it are in order
//! or not until the grace has passed.

mod common;

use std::collections::BTreeSet;
use std::process::Stdio;
use std::time::{Duration, Instant};

use common::{Daemon, DaemonOptions, Guarded, PATIENCE, eventually, free_address, memory_used, weir};
use tempfile::TempDir;
use weir_client::{Client, ConsumerDeath, Error, FailureCode, PartitionOptions, Strategy};

/// A grace that is long beside the time in which the loss of a socket is noticed, and short beside a test.
const CONFIG: &str = "[link]\nheartbeat_interval = '200ms'\nheartbeat_timeout = '4s'\ngrace = '6s'\n\
                      [memory]\nhugepages = 'off'\n";

/// How long a link is waited for, at the least: the grace counts from when the peer was last heard.
const WAITED_MIN: Duration = Duration::from_millis(5500);

/// Records that are emitted after the loss was told.
const RECORDS_AFTER: u64 = 20_000;

/// A producer's node and two consumers' nodes, which know each other.
fn start(directory: &TempDir) -> [Daemon; 3] {
    const NAMES: [&str; 3] = ["a", "b", "c"];
    let addresses = [free_address(), free_address(), free_address()];
    [0, 1, 2].map(|own| {
        std::fs::write(directory.path().join(format!("{}.toml", NAMES[own])), CONFIG).expect("a file");
        let peers: Vec<(&str, &str)> =
            (0..3).filter(|peer| *peer != own).map(|peer| (NAMES[peer], addresses[peer].as_str())).collect();
        let options = DaemonOptions { peers: &peers, ..DaemonOptions::new(NAMES[own], &addresses[own]) };
        Daemon::start(directory.path(), &options)
    })
}

fn recv(daemon: &Daemon, consumer: &str) -> Guarded {
    let mut command = weir(["recv", "--exchange", "x", "--consumer", consumer], &daemon.run_dir);
    Guarded::spawn(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()))
}

/// The numbers of whole lines, which come once.
fn numbers(output: &[u8]) -> BTreeSet<u64> {
    let text = std::str::from_utf8(output).expect("UTF-8");
    let mut numbers = BTreeSet::new();
    for line in text.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
        let number = line.split(' ').next().and_then(|number| number.parse().ok()).expect("a number");
        assert!(line == record(number) + "\n", "record {number} is whole");
        assert!(numbers.insert(number), "record {number} came twice");
    }
    numbers
}

/// Emits until the producer's node has heard from node `c` of what was sent after a moment: that moment. The grace counts
/// from later, then, and not from before a pause of the machine.
fn heard(producing: &Daemon, mut emit: impl FnMut()) -> Instant {
    let began = Instant::now();
    let row = || common::channels(producing, "x", "send").into_iter().find(|row| row["peer"] == "c");
    let sent = common::number(&row().expect("a channel"), "bytes_total");
    eventually("what was sent since is acknowledged", || {
        (0..500).for_each(|_| emit());
        let row = row()?;
        let acknowledged = common::number(&row, "bytes_total") - common::number(&row, "unacked_bytes");
        (acknowledged > sent).then_some(())
    });
    began
}

fn record(number: u64) -> String {
    format!("{number} {:1$}", "", (number % 397) as usize)
}

#[test]
fn a_producer_goes_on_without_a_consumer_whose_node_is_lost_and_counts_what_is_lost() {
    let directory = TempDir::new().expect("a directory");
    let [producing, staying, mut lost] = start(&directory);
    let task = Client::connect(&producing.run_dir).and_then(|client| client.task("test")).expect("a task");
    // Strictly in turn, so that it waits while nobody knows, and does not send everything to the other meanwhile.
    let options = PartitionOptions {
        on_consumer_death: ConsumerDeath::ContinueWithout,
        adaptive: false,
        ..PartitionOptions::default()
    };
    let mut partition = task.partition("x", 0, 1, 2, Strategy::Rebalance, options).expect("a partition");
    let (receivers, mut emitted) = ([recv(&staying, "0/2"), recv(&lost, "1/2")], 0);
    let has_arrived = |daemon: &Daemon| {
        let rows = common::channels(daemon, "x", "receive");
        rows.iter().filter_map(|row| row["bytes_total"].as_u64()).sum::<u64>() > 0
    };
    eventually("records reach both nodes", || {
        for _ in 0..500 {
            partition.emit(record(emitted).as_bytes()).expect("emit");
            emitted += 1;
        }
        (has_arrived(&staying) && has_arrived(&lost)).then_some(())
    });
    let began = heard(&producing, || {
        partition.emit(record(emitted).as_bytes()).expect("emit");
        emitted += 1;
    });
    lost.kill();
    // Until the grace has passed nobody knows whether the node comes back: what is for its consumer waits.
    while partition.lost_consumers() == 0 {
        partition.emit(record(emitted).as_bytes()).expect("emit");
        emitted += 1;
        assert!(began.elapsed() < PATIENCE, "the loss of the node is not told");
    }
    assert!(began.elapsed() >= WAITED_MIN, "given up after {:?}", began.elapsed());
    let told = emitted;
    for _ in 0..RECORDS_AFTER {
        partition.emit(record(emitted).as_bytes()).expect("emit");
        emitted += 1;
    }
    let finished = partition.finish().expect("an end in good order");
    let [staying_output, lost_output] = receivers.map(Guarded::output);
    assert!(staying_output.status.success(), "{}", String::from_utf8_lossy(&staying_output.stderr));
    assert_eq!(lost_output.status.code(), Some(4), "its daemon was killed");
    let (kept, read) = (numbers(&staying_output.stdout), numbers(&lost_output.stdout));
    assert!(kept.is_disjoint(&read), "a record came to both");
    assert!((told..emitted).all(|number| kept.contains(&number)), "what was emitted since is all there");
    let (given, missing) = (emitted - kept.len() as u64, emitted - (kept.len() + read.len()) as u64);
    assert_eq!(finished.lost_consumers, 1);
    assert!(missing > 0, "some were on their way");
    assert!(
        (missing..=given).contains(&finished.lost_records),
        "{} counted, {missing} missing of {given}",
        finished.lost_records
    );
    for daemon in [&producing, &staying] {
        eventually("its memory is back", || (memory_used(daemon) == 0).then_some(()));
    }
}

/// Without that policy the same loss fails the producer, with the node and the reason, and its other consumer.
#[test]
fn a_producer_that_needs_all_its_consumers_fails_when_the_node_of_one_is_lost() {
    let directory = TempDir::new().expect("a directory");
    let [producing, staying, mut lost] = start(&directory);
    let task = Client::connect(&producing.run_dir).and_then(|client| client.task("test")).expect("a task");
    let options = PartitionOptions { adaptive: false, ..PartitionOptions::default() };
    let mut partition = task.partition("x", 0, 1, 2, Strategy::Rebalance, options).expect("a partition");
    let receivers = [recv(&staying, "0/2"), recv(&lost, "1/2")];
    let mut number = 0;
    let mut emit = || {
        number += 1;
        partition.emit(record(number).as_bytes())
    };
    eventually("both are there", || {
        (0..500).try_for_each(|_| emit()).expect("emit");
        let rows = common::channels(&producing, "x", "send");
        (rows.iter().filter(|row| row["state"] == "open").count() == 2).then_some(())
    });
    let began = heard(&producing, || emit().expect("emit"));
    lost.kill();
    let error = loop {
        match emit() {
            Ok(()) => assert!(began.elapsed() < PATIENCE, "the loss of the node is not told"),
            Err(error) => break error,
        }
    };
    assert!(began.elapsed() >= WAITED_MIN, "given up after {:?}", began.elapsed());
    match &error {
        Error::Failed { channel: None, failure } if failure.code == FailureCode::LinkLost => {
            assert!(failure.text.contains("node c"), "{failure}");
        }
        other => panic!("{other:?}; needed: a lost link"),
    }
    let [staying, lost] = receivers.map(Guarded::output);
    assert_eq!((staying.status.code(), lost.status.code()), (Some(1), Some(4)));
    drop(partition);
    eventually("its memory is back", || (memory_used(&producing) == 0).then_some(()));
}
