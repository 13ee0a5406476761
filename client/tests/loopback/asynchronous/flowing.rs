//! Records that flow: every one of them arrives, whoever waits and wherever.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::thread;
use std::time::Duration;

use weir_client::{BufferTimeout, Client, Gate, GateOptions, Item, PartitionOptions, Strategy};

use super::executor::{block_on, everywhere, join_all, limited, yield_now};
use super::{TIGHT, next_record_async, pair_async, read_all_async, task_async};
use crate::daemon::{Daemon, Settings};
use crate::{next_record, record};

#[test]
fn records_and_events_flow_in_every_runtime() {
    everywhere(Settings::default(), async |daemon| {
        let task = task_async(&daemon).await;
        let (mut partition, mut gate) = pair_async(&task, "x", PartitionOptions::default()).await;
        let send = async {
            for number in 0..500 {
                partition.emit_async(&record(number, 700)).await.expect("emit");
                if number % 100 == 99 {
                    partition.emit_event_async(&[number as u8], false).await.expect("event");
                    partition.emit_event_to_async(0, &[number as u8], true).await.expect("event");
                }
            }
            partition.finish_async().await.expect("finish")
        };
        let read = async {
            let (mut records, mut ordinary, mut priority) = (0, 0, 0);
            while let Some(item) = gate.next_async().await.expect("no failure") {
                match item {
                    Item::Record(found) => {
                        assert!(*found == record(records, 700));
                        records += 1;
                    }
                    Item::Event(event) if event.priority => priority += 1,
                    Item::Event(event) => {
                        assert_eq!(event.payload, [(records - 1) as u8], "behind the records before it");
                        ordinary += 1;
                    }
                }
            }
            assert_eq!((records, ordinary, priority), (500, 5, 5));
        };
        let (finished, ()) = tokio::join!(send, read);
        assert_eq!(finished.lost_records, 0);
    });
}

#[test]
fn no_wake_up_is_lost_with_both_ends_on_one_thread() {
    const RECORDS: u32 = 100_000;
    let daemon = Daemon::start(TIGHT);
    block_on(async {
        let task = task_async(&daemon).await;
        let (mut partition, mut gate) = pair_async(&task, "x", PartitionOptions::default()).await;
        let send = async {
            for number in 0..RECORDS {
                partition.emit_async(&number.to_le_bytes().repeat(10)).await.expect("emit");
            }
            partition.finish_async().await.expect("finish");
        };
        let read = async {
            for number in 0..RECORDS {
                assert_eq!(next_record_async(&mut gate).await, number.to_le_bytes().repeat(10));
            }
            assert_eq!(gate.next_async().await.expect("no failure"), None);
        };
        tokio::join!(send, read);
    });
}

/// Numbers that look random and are the same each time.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u64) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % bound) as usize
    }
}

/// Every call of both ends is dropped again and again after up to three polls. Records of up to four segments, which are
/// longer than quota and overdraft together, are begun and left in their middle.
#[test]
fn records_arrive_once_and_in_order_although_every_call_is_dropped_again_and_again() {
    const RECORDS: usize = 4_000;
    let length =
        |number: usize| if number.is_multiple_of(7) { number * 37 % 16_000 } else { number * 13 % 1_500 };
    for (seed, strategy) in [(1, Strategy::Forward), (2, Strategy::Rebalance), (3, Strategy::Hash)] {
        let daemon = Daemon::start(TIGHT);
        let consumers = if strategy == Strategy::Forward { 1 } else { 2 };
        let options = PartitionOptions { adaptive: seed == 2, checksum: seed == 3, ..Default::default() };
        let ((mut left, mut dropped), seen) = block_on(async {
            let task = task_async(&daemon).await;
            let mut partition =
                task.partition_async("x", 0, 1, consumers, strategy, options).await.expect("partition");
            let send = async {
                let (mut numbers, mut dropped) = (Numbers(seed), 0);
                for number in 0..RECORDS {
                    let bytes =
                        [&(number as u32).to_le_bytes()[..], &record(number, length(number))].concat();
                    let key = [number as u8];
                    loop {
                        let before = partition.abandoned();
                        let polls = numbers.below(4);
                        if let Some(emitted) = limited(partition.emit_keyed_async(&key, &bytes), polls).await
                        {
                            emitted.expect("emit");
                            break;
                        }
                        dropped += 1;
                        if partition.abandoned() > before {
                            break;
                        }
                        if limited(partition.available(), numbers.below(3)).await.is_none() {
                            yield_now().await;
                        }
                    }
                }
                let left = partition.abandoned();
                partition.finish_async().await.expect("finish");
                (left, dropped)
            };
            let read = async |consumer: u32| {
                let mut gate =
                    task.gate_async("x", consumer, consumers, GateOptions::default()).await.expect("gate");
                let (mut numbers, mut seen) = (Numbers(seed + 10), Vec::new());
                loop {
                    match limited(gate.next_async(), numbers.below(3)).await {
                        Some(Ok(Some(Item::Record(found)))) => {
                            let number = u32::from_le_bytes(*found.first_chunk().expect("a number")) as usize;
                            assert!(found[4..] == record(number, length(number)), "record {number} is whole");
                            assert!(seen.last().is_none_or(|last| *last < number), "in order");
                            seen.push(number);
                        }
                        Some(Ok(None)) => return seen,
                        Some(other) => panic!("{other:?}; needed: a record"),
                        None => yield_now().await,
                    }
                }
            };
            if consumers == 1 {
                tokio::join!(send, read(0))
            } else {
                let (sent, first, second) = tokio::join!(send, read(0), read(1));
                (sent, [first, second].concat())
            }
        });
        let mut seen: Vec<usize> = seen;
        seen.sort_unstable();
        assert!(seen.into_iter().eq(0..RECORDS), "every record once, with {strategy}");
        println!("{strategy}: {dropped} emits were dropped, {left} of them in their middle");
        assert!(std::mem::take(&mut dropped) > 0);
        // Forward has nowhere else to go, and so its long records stop in their middle.
        assert!(strategy != Strategy::Forward || std::mem::take(&mut left) > 0);
    }
}

#[test]
fn threads_and_futures_share_an_attachment() {
    const RECORDS: usize = 2_000;
    let daemon = Daemon::start(TIGHT);
    let client = Client::connect(daemon.run_dir()).expect("attach");
    let task = client.task("test").expect("task");
    let mut threads = Vec::new();
    let mut futures: Vec<Pin<Box<dyn Future<Output = ()>>>> = Vec::new();
    for pair in 0..8 {
        let (mut partition, mut gate) = block_on(pair_async(&task, &format!("x{pair}"), Default::default()));
        // A future to a future, a thread to a future, a future to a thread, a thread to a thread.
        if pair % 2 == 0 {
            futures.push(Box::pin(async move {
                for number in 0..RECORDS {
                    partition.emit_async(&record(number + pair, 300)).await.expect("emit");
                }
                partition.finish_async().await.expect("finish");
            }));
        } else {
            threads.push(thread::spawn(move || {
                (0..RECORDS).for_each(|number| partition.emit(&record(number + pair, 300)).expect("emit"));
                partition.finish().expect("finish");
            }));
        }
        if pair % 4 < 2 {
            futures.push(Box::pin(async move {
                for number in 0..RECORDS {
                    assert_eq!(next_record_async(&mut gate).await, record(number + pair, 300));
                }
                assert_eq!(gate.next_async().await.expect("no failure"), None);
            }));
        } else {
            threads.push(thread::spawn(move || {
                (0..RECORDS)
                    .for_each(|number| assert_eq!(next_record(&mut gate), record(number + pair, 300)));
                assert_eq!(gate.next().expect("no failure"), None);
            }));
        }
    }
    block_on(join_all(futures));
    threads.into_iter().for_each(|thread| thread.join().expect("a thread"));
}

/// A gate, and a copy of what was found in it.
type Reading = dyn Future<Output = (Gate, Option<Vec<u8>>)> + Send;

/// What a program makes that has to be polled for records.
struct Records {
    reading: Pin<Box<Reading>>,
}

impl Records {
    fn new(gate: Gate) -> Self {
        Self { reading: Box::pin(Self::read(gate)) }
    }

    async fn read(mut gate: Gate) -> (Gate, Option<Vec<u8>>) {
        let found = match gate.next_async().await.expect("no failure") {
            Some(Item::Record(record)) => Some(record.to_vec()),
            Some(Item::Event(event)) => panic!("{event:?}; needed: a record"),
            None => None,
        };
        (gate, found)
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Vec<u8>>> {
        let (gate, found) = ready!(self.reading.as_mut().poll(context));
        self.reading = Box::pin(Self::read(gate));
        Poll::Ready(found)
    }
}

#[test]
fn a_future_that_owns_its_gate_serves_who_polls() {
    everywhere(TIGHT, async |daemon| {
        const RECORDS: usize = 1_000;
        let task = task_async(&daemon).await;
        let (mut partition, gate) = pair_async(&task, "x", PartitionOptions::default()).await;
        let send = async {
            for number in 0..RECORDS {
                partition.emit_async(&record(number, 300)).await.expect("emit");
            }
            partition.finish_async().await.expect("finish");
        };
        let mut records = Records::new(gate);
        let read = async {
            for number in 0..RECORDS {
                let found = std::future::poll_fn(|context| records.poll_next(context)).await;
                assert_eq!(found, Some(record(number, 300)));
            }
            assert_eq!(std::future::poll_fn(|context| records.poll_next(context)).await, None);
        };
        tokio::join!(send, read);
    });
}

#[test]
fn one_thread_selects_over_two_gates_and_a_partition() {
    everywhere(TIGHT, async |daemon| {
        const RECORDS: usize = 1_500;
        let task = task_async(&daemon).await;
        let options = || PartitionOptions {
            buffer_timeout: BufferTimeout::After(Duration::from_millis(1)),
            ..Default::default()
        };
        let (mut to_first, mut first) = pair_async(&task, "first", options()).await;
        let (mut to_second, mut second) = pair_async(&task, "second", options()).await;
        let (mut merged, mut behind) = pair_async(&task, "merged", options()).await;
        let send = async {
            for number in 0..RECORDS {
                to_first.emit_async(&record(number, 200)).await.expect("emit");
                to_second.emit_async(&record(number, 201)).await.expect("emit");
            }
            tokio::try_join!(to_first.finish_async(), to_second.finish_async()).expect("finish");
        };
        let merge = async {
            let (mut waiting, mut open) = (std::collections::VecDeque::new(), [true; 2]);
            while open != [false; 2] || !waiting.is_empty() {
                // Reads on until it has much to do itself.
                let reads = waiting.len() < 10;
                tokio::select! {
                    item = first.next_async(), if open[0] && reads => match item.expect("no failure") {
                        Some(Item::Record(record)) => waiting.push_back(record.to_vec()),
                        _ => open[0] = false,
                    },
                    item = second.next_async(), if open[1] && reads => match item.expect("no failure") {
                        Some(Item::Record(record)) => waiting.push_back(record.to_vec()),
                        _ => open[1] = false,
                    },
                    available = merged.available(), if !waiting.is_empty() => {
                        available.expect("no failure");
                        let front = waiting.front().expect("there is one");
                        if merged.try_emit(front).expect("no failure").is_emitted() {
                            waiting.pop_front();
                        }
                    }
                }
            }
            merged.finish_async().await.expect("finish");
        };
        let ((), (), read) = tokio::join!(send, merge, read_all_async(&mut behind));
        for length in [200, 201] {
            let of: Vec<_> = read.iter().filter(|found| found.len() == length).collect();
            assert_eq!(of.len(), RECORDS);
            assert!(of.iter().enumerate().all(|(number, found)| **found == record(number, length)));
        }
    });
}
