//! The client against a daemon of this process: every call, every wait, every way to end.

mod asynchronous;
mod bound;
mod broadcast;
mod consumer_death;
mod daemon;
mod events;
mod examples;
mod failures;
mod flushing;
mod in_place;
mod pipelines;
mod reattach;
mod records;
mod selecting;
mod threads;
mod unanswered;
mod waiting;

use weir_client::{Client, Gate, GateOptions, Item, Partition, PartitionOptions, Strategy, Task};

use self::daemon::Daemon;

/// A client with one task.
fn task(daemon: &Daemon) -> Task {
    Client::connect(daemon.run_dir()).expect("attach").task("test").expect("task")
}

/// The only producer of an exchange.
fn producer(task: &Task, consumers: u32, strategy: Strategy, options: PartitionOptions) -> Partition {
    task.partition("x", 0, 1, consumers, strategy, options).expect("partition")
}

/// One consumer of it.
fn consumer(task: &Task, consumer: u32, consumers: u32) -> Gate {
    task.gate("x", consumer, consumers, GateOptions::default()).expect("gate")
}

/// The only consumer of an exchange, whose producer is there.
fn gate_of(task: &Task, exchange: &str) -> Gate {
    task.gate(exchange, 0, 1, GateOptions::default()).expect("gate")
}

/// A forward pair in one task.
fn pair(task: &Task, options: PartitionOptions) -> (Partition, Gate) {
    let partition = producer(task, 1, Strategy::Forward, options);
    (partition, consumer(task, 0, 1))
}

/// A record of so many bytes that differs from those of other numbers.
fn record(number: usize, bytes: usize) -> Vec<u8> {
    (0..bytes)
        .map(|at| (number.wrapping_mul(31).wrapping_add(at.wrapping_mul(7)) >> (at % 3)) as u8)
        .collect()
}

/// The next item, which is a record.
#[track_caller]
fn next_record(gate: &mut Gate) -> Vec<u8> {
    match gate.next() {
        Ok(Some(Item::Record(record))) => record.to_vec(),
        other => panic!("{other:?}; needed: a record"),
    }
}

/// Every record up to the end.
#[track_caller]
fn read_all(gate: &mut Gate) -> Vec<Vec<u8>> {
    let mut records = Vec::new();
    while let Some(item) = gate.next().expect("no failure") {
        match item {
            Item::Record(record) => records.push(record.to_vec()),
            Item::Event(event) => panic!("{event:?}; needed: a record"),
        }
    }
    records
}
