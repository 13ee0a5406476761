//! A process with several tasks, and tasks with several gates and partitions.

use std::thread;

use weir_client::{Client, GateOptions, Item, Partition, PartitionOptions, Strategy, Task};
use weir_ipc::task_cell::TaskState;

use crate::daemon::{Daemon, Settings};
use crate::{next_record, read_all, record};

fn partition(task: &Task, exchange: &str, consumers: u32, strategy: Strategy) -> Partition {
    task.partition(exchange, 0, 1, consumers, strategy, PartitionOptions::default()).expect("a partition")
}

/// Two sources, a task that reads both and writes to three exchanges, and a task for each of these: five tasks of one
/// client, each on a thread of its own.
#[test]
fn one_client_runs_a_whole_pipeline() {
    const RECORDS: usize = 3_000;
    let daemon = Daemon::start(Settings::default());
    let client = Client::connect(daemon.run_dir()).expect("attach");
    let task = |name: &str| client.task(name).expect("a task");
    let (left, right) = (task("left"), task("right"));
    let sources = [(left, "left"), (right, "right")].map(|(task, exchange)| {
        thread::spawn(move || {
            let mut output = partition(&task, exchange, 1, Strategy::Forward);
            (0..RECORDS).for_each(|number| output.emit(&record(number, 50 + number % 100)).expect("emit"));
            output.finish().expect("finish")
        })
    });
    let joining = task("joining");
    let joined = thread::spawn(move || {
        let gate = |exchange| joining.gate(exchange, 0, 1, GateOptions::default()).expect("a gate");
        let (mut left, mut right) = (gate("left"), gate("right"));
        let mut all = partition(&joining, "all", 2, Strategy::Rebalance);
        let mut keyed = partition(&joining, "keyed", 2, Strategy::Hash);
        let mut odd = partition(&joining, "odd", 1, Strategy::Forward);
        for number in 0..RECORDS {
            // One of each, in step: the two gates of a task are read on one thread.
            let (one, other) = (next_record(&mut left), next_record(&mut right));
            assert!(one == other && one == record(number, 50 + number % 100), "record {number}");
            all.emit(&one).expect("emit");
            keyed.emit_keyed(&number.to_le_bytes(), &other).expect("emit");
            if number % 2 == 1 {
                odd.emit(&one).expect("emit");
            }
        }
        assert!(left.next().expect("no failure").is_none() && right.next().expect("no failure").is_none());
        for output in [all, keyed, odd] {
            output.finish().expect("finish");
        }
    });
    let sinks: Vec<_> = [("all", 2), ("keyed", 2), ("odd", 1)]
        .into_iter()
        .flat_map(|(exchange, consumers)| (0..consumers).map(move |consumer| (exchange, consumer, consumers)))
        .map(|(exchange, consumer, consumers)| {
            let task = task(exchange);
            thread::spawn(move || {
                let options = GateOptions::default();
                let mut gate = task.gate(exchange, consumer, consumers, options).expect("a gate");
                (exchange, read_all(&mut gate))
            })
        })
        .collect();
    let read: Vec<_> = sinks.into_iter().map(|sink| sink.join().expect("a sink")).collect();
    joined.join().expect("the joining task");
    for source in sources {
        source.join().expect("a source");
    }
    let mut expected: Vec<_> = (0..RECORDS).map(|number| record(number, 50 + number % 100)).collect();
    expected.sort_unstable();
    for exchange in ["all", "keyed"] {
        let of = read.iter().filter(|(name, _)| *name == exchange).flat_map(|(_, records)| records.clone());
        let mut found: Vec<_> = of.collect();
        found.sort_unstable();
        assert!(found == expected, "{} records of {exchange}", found.len());
    }
    let odd = (1..RECORDS).step_by(2).map(|number| record(number, 50 + number % 100));
    assert!(read[4].1.iter().cloned().eq(odd), "in order");
}

#[test]
fn each_task_of_a_process_has_its_own_times() {
    let daemon = Daemon::start(Settings::default());
    let client = Client::connect(daemon.run_dir()).expect("attach");
    let [writing, reading] = ["writing", "reading"].map(|name| client.task(name).expect("a task"));
    let mut output = partition(&writing, "x", 1, Strategy::Forward);
    let mut gate = reading.gate("x", 0, 1, GateOptions::default()).expect("a gate");
    daemon.hold(true);
    let writer = thread::spawn(move || {
        (0..2_000).for_each(|number| output.emit(&record(number, 1000)).expect("emit"));
        output.finish().expect("finish")
    });
    let reader = thread::spawn(move || {
        let mut count = 0;
        while let Some(Item::Record(_)) = gate.next().expect("no failure") {
            count += 1;
        }
        count
    });
    // One is blocked while the other has nothing to do.
    daemon.await_task_state(0, TaskState::Hard);
    daemon.await_task_state(1, TaskState::Idle);
    daemon.hold(false);
    writer.join().expect("the writer");
    assert_eq!(reader.join().expect("the reader"), 2_000);
    daemon.await_task_state(0, TaskState::Busy);
}
