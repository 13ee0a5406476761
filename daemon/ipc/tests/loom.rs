//! Every interleaving of two sides of shared memory, within loom's memory model:
//! `RUSTFLAGS="--cfg loom" cargo test -p weir-ipc --release --test loom`.
//!
//! A sleep is a wait on a notice that a wake-up leaves, as with the eventfd and the pipe: given before the sleep, it
//! ends it at once. A wake-up that is lost leaves a thread asleep for ever, which loom reports as a deadlock.
//!
//! What loom cannot show: that a load takes effect after a store that follows it in the program. So the Release and
//! Acquire of a ring's head, which keep the copying of an entry before the reuse of its place, are not proven here;
//! that the head is stored after the copy is.

#![cfg(loom)]

use loom::sync::{Arc, Notify};
use loom::thread;
use weir_ipc::ring::{self, Consumer, Entry, Producer};
use weir_ipc::signal;
use weir_ipc::task_cell::{self, TaskState};

fn entry(number: u64) -> Entry {
    [number, number + 100, number + 200, number + 300]
}

/// Runs a model; `preemptions` bounds how often a thread may be interrupted where it could go on.
fn model(preemptions: usize, run: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(run);
}

fn push(producer: &mut Producer, number: u64) {
    while !producer.push(entry(number)).unwrap() {
        producer.publish();
        thread::yield_now();
    }
}

fn pop(consumer: &mut Consumer) -> Entry {
    loop {
        match consumer.pop().unwrap() {
            Some(found) => return found,
            None => thread::yield_now(),
        }
    }
}

/// Three entries through a ring of two: each arrives once, whole and in order, and none is overwritten early.
#[test]
fn entries_arrive_whole_and_in_order() {
    model(3, || {
        let (mut producer, mut consumer) = ring::private(2).unwrap();
        let writer = thread::spawn(move || {
            for number in 1..=3 {
                push(&mut producer, number);
                producer.publish();
            }
        });
        for number in 1..=3 {
            assert_eq!(pop(&mut consumer), entry(number));
        }
        assert_eq!(consumer.pop(), Ok(None));
        writer.join().unwrap();
    });
}

/// Two entries published at once are seen together or not at all before them.
#[test]
fn a_batch_becomes_visible_at_once() {
    model(3, || {
        let (mut producer, mut consumer) = ring::private(4).unwrap();
        let writer = thread::spawn(move || {
            push(&mut producer, 1);
            push(&mut producer, 2);
            producer.publish();
        });
        if let Some(first) = consumer.pop().unwrap() {
            assert_eq!(first, entry(1));
            assert_eq!(consumer.pop(), Ok(Some(entry(2))));
        }
        writer.join().unwrap();
    });
}

/// A client that announces, looks again and sleeps is always woken by a daemon that publishes and takes the flag.
#[test]
fn a_waiting_client_is_woken() {
    model(4, || {
        let (mut producer, mut consumer) = ring::private(2).unwrap();
        let (mut waiter, mut waker) = signal::private_wait().unwrap();
        let pipe = Arc::new(Notify::new());
        let write_end = Arc::clone(&pipe);
        let daemon = thread::spawn(move || {
            for number in 1..=2 {
                assert!(producer.push(entry(number)).unwrap());
                producer.publish();
                if waker.take() {
                    write_end.notify();
                }
            }
        });
        for number in 1..=2 {
            let found = loop {
                if let Some(found) = consumer.pop().unwrap() {
                    break found;
                }
                waiter.announce();
                if let Some(found) = consumer.pop().unwrap() {
                    waiter.cancel();
                    break found;
                }
                pipe.wait();
                waiter.cancel();
            };
            assert_eq!(found, entry(number));
        }
        daemon.join().unwrap();
    });
}

/// A daemon's turns until `wanted` entries came from the rings: take the dirty ones, empty them, park, sleep.
fn daemon(
    watcher: &mut signal::Watcher,
    consumers: &mut [Consumer],
    doorbell: &Notify,
    wanted: u64,
) -> Vec<u64> {
    let (mut dirty, mut found) = (Vec::new(), Vec::new());
    loop {
        watcher.take(&mut dirty);
        for ring in dirty.drain(..) {
            while let Some([number, ..]) = consumers[ring as usize].pop().unwrap() {
                found.push(number);
            }
        }
        if found.len() as u64 == wanted {
            return found;
        }
        if !watcher.park() {
            doorbell.wait();
        }
        watcher.unpark();
    }
}

fn submit(producer: &mut Producer, marker: &signal::Marker, ring: u32, number: u64, doorbell: &Notify) {
    assert!(producer.push(entry(number)).unwrap());
    producer.publish();
    if marker.mark(ring) {
        doorbell.notify();
    }
}

/// One client thread, two submissions: the daemon never sleeps through one.
#[test]
fn a_parked_daemon_is_woken() {
    model(4, || {
        let (mut producer, consumer) = ring::private(2).unwrap();
        let (marker, mut watcher) = signal::private_dirty(1).unwrap();
        let doorbell = Arc::new(Notify::new());
        let client_doorbell = Arc::clone(&doorbell);
        let client = thread::spawn(move || {
            for number in 1..=2 {
                submit(&mut producer, &marker, 0, number, &client_doorbell);
            }
        });
        assert_eq!(daemon(&mut watcher, &mut [consumer], &doorbell, 2), [1, 2]);
        client.join().unwrap();
    });
}

/// Two client threads with a ring each in the same word of the bitmap, of which one may ring for both.
#[test]
fn a_parked_daemon_is_woken_by_either_of_two_threads() {
    model(3, || {
        let (marker, mut watcher) = signal::private_dirty(1).unwrap();
        let doorbell = Arc::new(Notify::new());
        let (mut consumers, mut clients) = (Vec::new(), Vec::new());
        for ring in 0..2 {
            let (mut producer, consumer) = ring::private(1).unwrap();
            consumers.push(consumer);
            let (marker, doorbell) = (marker.clone(), Arc::clone(&doorbell));
            clients.push(thread::spawn(move || {
                submit(&mut producer, &marker, ring, u64::from(ring), &doorbell);
            }));
        }
        let mut found = daemon(&mut watcher, &mut consumers, &doorbell, 2);
        found.sort_unstable();
        assert_eq!(found, [0, 1]);
        for client in clients {
            client.join().unwrap();
        }
    });
}

/// A snapshot of a task's cell is one that was written, never parts of two.
#[test]
fn no_snapshot_is_torn() {
    model(2, || {
        let (cells, reader) = task_cell::private(1).unwrap();
        let mut cell = cells.start(0, TaskState::Busy, 0).unwrap();
        let writer = thread::spawn(move || {
            cell.enter(TaskState::Hard, 10);
        });
        if let Some(times) = reader.read(0).unwrap() {
            let parts = (times.state, times.since_ns, times.total_ns);
            let written = [(TaskState::Busy, 0, [0; 4]), (TaskState::Hard, 10, [0, 10, 0, 0])];
            assert!(written.contains(&parts), "{parts:?}");
        }
        writer.join().unwrap();
    });
}
