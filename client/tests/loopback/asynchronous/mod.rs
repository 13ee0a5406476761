//! The calls for futures: in a runtime and without one, alone and beside threads, and dropped wherever they wait.

mod cancelling;
mod ending;
mod executor;
mod flowing;
mod waiting;

use weir_client::{Client, Gate, GateOptions, Item, Partition, PartitionOptions, Strategy, Task};

use crate::daemon::Daemon;

/// Small pools, so that everybody waits all the time.
const TIGHT: crate::daemon::Settings = crate::daemon::Settings {
    segment_bytes: 4096,
    record_bytes_max: 64 << 10,
    partition_segments: 8,
    quota: 2,
    overdraft: 1,
    gate_segments: 3,
    event_window: 8,
    spanning_bytes_max: 64 << 20,
};

async fn task_async(daemon: &Daemon) -> Task {
    let client = Client::connect_async(daemon.run_dir()).await.expect("attach");
    client.task_async("test").await.expect("task")
}

/// The only producer and the only consumer of an exchange.
async fn pair_async(task: &Task, exchange: &str, options: PartitionOptions) -> (Partition, Gate) {
    let partition = task.partition_async(exchange, 0, 1, 1, Strategy::Forward, options).await;
    let gate = task.gate_async(exchange, 0, 1, GateOptions::default()).await;
    (partition.expect("partition"), gate.expect("gate"))
}

/// The next item, which is a record.
async fn next_record_async(gate: &mut Gate) -> Vec<u8> {
    match gate.next_async().await {
        Ok(Some(Item::Record(record))) => record.to_vec(),
        other => panic!("{other:?}; needed: a record"),
    }
}

/// Every record up to the end.
async fn read_all_async(gate: &mut Gate) -> Vec<Vec<u8>> {
    let mut records = Vec::new();
    while let Some(item) = gate.next_async().await.expect("no failure") {
        match item {
            Item::Record(record) => records.push(record.to_vec()),
            Item::Event(event) => panic!("{event:?}; needed: a record"),
        }
    }
    records
}
