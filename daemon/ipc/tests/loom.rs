//! Every interleaving of two sides of shared memory, within loom's memory model:
//! `RUSTFLAGS="--cfg loom" cargo test -p weir-ipc --release --test loom`.
//!
//! A sleep is a wait on a notice that a wake-up leaves, as with the eventfd and the pipe: given before the sleep, it
//! ends it at once. A wake-up that is lost leaves a thread asleep for ever, which loom reports as a deadlock.
//!
//! What must fail does, too: a side that leaves out its second look, or the order of the mailbox turned round, is a
//! deadlock that the same model finds ([`expect_deadlock`]).
//!
//! The mailbox of a shard (`daemon/src/shard/mailbox.rs`) cannot be built for loom, which tokio and io_uring are not made
//! for. What is modelled is its protocol: the queue of the standard library taken as one that works, an eventfd, the
//! completions of a poll, and the turns of `daemon/src/shard/run.rs`.
//!
//! What loom cannot show: that a load takes effect after a store that follows it in the program. So the Release and
//! Acquire of a ring's head, which keep the copying of an entry before the reuse of its place, are not proven here;
//! that the head is stored after the copy is.

#![cfg(loom)]

use std::collections::VecDeque;
use std::env;
use std::process::Command;

use loom::sync::{Arc, Condvar, Mutex, Notify};
use loom::thread;
use weir_ipc::ring::{self, Consumer, Entry, Producer};
use weir_ipc::signal;
use weir_ipc::task_cell::{self, TaskState};
use weir_ipc::wait_cell::{self, WaitKind};

fn entry(number: u64) -> Entry {
    [number, number + 100, number + 200, number + 300]
}

/// Runs a model; `preemptions` bounds how often a thread may be interrupted where it could go on.
fn model(preemptions: usize, run: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(run);
}

/// Expects that `run`, which breaks a rule, ends in a deadlock. A deadlocked model cannot be unwound, so it runs in a
/// process of its own: this test, once more.
fn expect_deadlock(test: &str, run: impl FnOnce()) {
    const CHILD: &str = "WEIR_DEADLOCKED_MODEL";
    if env::var_os(CHILD).is_some() {
        return run();
    }
    let mut child = Command::new(env::current_exe().unwrap());
    let output = child.args([test, "--exact", "--nocapture"]).env(CHILD, "1").output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("deadlock"), "no deadlock is found: {text}");
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
        if !watcher.park(signal::Park::UntilRung) {
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

/// A daemon that looks again soon, twice, and then sleeps until it is rung: what is given back, which rings only in the last
/// of these sleeps, is found.
#[test]
fn a_daemon_that_parks_briefly_misses_nothing() {
    model(3, || {
        let (mut producer, mut consumer) = ring::private(2).unwrap();
        let (marker, mut watcher) = signal::private_dirty(1).unwrap();
        let doorbell = Arc::new(Notify::new());
        let client_doorbell = Arc::clone(&doorbell);
        let client = thread::spawn(move || {
            assert!(producer.push(entry(1)).unwrap());
            producer.publish();
            if marker.mark_returns(0) {
                client_doorbell.notify();
            }
        });
        let (mut dirty, mut found, mut brief) = (Vec::new(), Vec::new(), 2);
        loop {
            watcher.take(&mut dirty);
            for _ in dirty.drain(..) {
                while let Some([number, ..]) = consumer.pop().unwrap() {
                    found.push(number);
                }
            }
            if !found.is_empty() {
                break;
            }
            // The time of a brief sleep passes; any other one ends only if it is rung.
            if brief > 0 {
                brief -= 1;
                let _is_dirty = watcher.park(signal::Park::Briefly);
            } else if !watcher.park(signal::Park::UntilRung) {
                doorbell.wait();
            }
            watcher.unpark();
        }
        assert_eq!(found, [1]);
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

/// In a snapshot a wait either goes on or is in its total, and no part is from another.
#[test]
fn no_snapshot_of_waits_is_torn() {
    model(2, || {
        let (mut cell, reader) = wait_cell::private(1).unwrap();
        cell.begin(WaitKind::Quota(0), 10);
        let writer = thread::spawn(move || cell.begin(WaitKind::Pool, 25));
        if let Some(waits) = reader.read(0).unwrap() {
            let parts = (waits.open, waits.quota.ns, waits.quota.count);
            let written = [(Some((WaitKind::Quota(0), 10)), 0, 0), (Some((WaitKind::Pool, 25)), 15, 1)];
            assert!(written.contains(&parts), "{parts:?}");
        }
        writer.join().unwrap();
    });
}

/// A client that goes to sleep without its second look sleeps for ever.
#[test]
fn a_client_without_a_second_look_is_found() {
    expect_deadlock("a_client_without_a_second_look_is_found", || {
        model(2, || {
            let (mut producer, mut consumer) = ring::private(2).unwrap();
            let (mut waiter, mut waker) = signal::private_wait().unwrap();
            let pipe = Arc::new(Notify::new());
            let write_end = Arc::clone(&pipe);
            let daemon = thread::spawn(move || {
                assert!(producer.push(entry(1)).unwrap());
                producer.publish();
                if waker.take() {
                    write_end.notify();
                }
            });
            while consumer.pop().unwrap().is_none() {
                waiter.announce();
                pipe.wait();
                waiter.cancel();
            }
            daemon.join().unwrap();
        });
    });
}

/// A daemon that sleeps although a ring is dirty sleeps for ever.
#[test]
fn a_daemon_without_a_second_look_is_found() {
    expect_deadlock("a_daemon_without_a_second_look_is_found", || {
        model(2, || {
            let (mut producer, mut consumer) = ring::private(2).unwrap();
            let (marker, mut watcher) = signal::private_dirty(1).unwrap();
            let doorbell = Arc::new(Notify::new());
            let client_doorbell = Arc::clone(&doorbell);
            let client = thread::spawn(move || submit(&mut producer, &marker, 0, 1, &client_doorbell));
            let mut dirty = Vec::new();
            while consumer.pop().unwrap().is_none() {
                watcher.take(&mut dirty);
                if dirty.is_empty() {
                    let _is_dirty = watcher.park(signal::Park::UntilRung);
                    doorbell.wait();
                    watcher.unpark();
                }
            }
            client.join().unwrap();
        });
    });
}

/// What a shard sleeps on: eventfds that are polled. A write is an edge; the completion is there only while the count
/// is not 0, for a poll looks again before it completes.
struct Eventfds {
    state: Mutex<[Eventfd; 2]>,
    changed: Condvar,
}

#[derive(Clone, Copy, Default)]
struct Eventfd {
    count: u64,
    is_edge: bool,
}

impl Eventfds {
    fn new() -> Arc<Self> {
        Arc::new(Self { state: Mutex::new([Eventfd::default(); 2]), changed: Condvar::new() })
    }

    fn write(&self, index: usize) {
        let mut state = self.state.lock().unwrap();
        state[index].count += 1;
        state[index].is_edge = true;
        self.changed.notify_one();
    }

    fn read(&self, index: usize) {
        self.state.lock().unwrap()[index].count = 0;
    }

    /// The completions there are; waits for one if `wait`.
    fn park(&self, wait: bool) -> [bool; 2] {
        let mut state = self.state.lock().unwrap();
        loop {
            let mut completions = [false; 2];
            for (eventfd, completion) in state.iter_mut().zip(&mut completions) {
                *completion = std::mem::take(&mut eventfd.is_edge) && eventfd.count > 0;
            }
            if !wait || completions != [false; 2] {
                return completions;
            }
            state = self.changed.wait(state).unwrap();
        }
    }
}

const MAILBOX: usize = 0;
const DOORBELL: usize = 1;

type Queue = Arc<Mutex<VecDeque<u64>>>;

fn next_mail(queue: &Queue) -> Option<u64> {
    queue.lock().unwrap().pop_front()
}

/// Turns of a shard until `wanted` messages came. One message a turn, so that some stay for the next. After the doorbell
/// was hushed another turn must come before the sleep; `is_hasty` leaves that out.
fn take_mail(queue: &Queue, eventfds: &Eventfds, wanted: usize, is_hasty: bool) -> Vec<u64> {
    let mut found = Vec::new();
    let mut completions = [false; 2];
    loop {
        let mail = next_mail(queue);
        let mut is_busy = mail.is_some();
        found.extend(mail);
        if found.len() == wanted {
            return found;
        }
        if completions[MAILBOX] {
            eventfds.read(MAILBOX);
            is_busy |= !is_hasty;
        }
        completions = eventfds.park(!is_busy);
    }
}

fn mailbox(is_hasty: bool, rings_first: bool) {
    model(3, move || {
        let (queue, eventfds) = (Queue::default(), Eventfds::new());
        let (sender_queue, sender_eventfds) = (Arc::clone(&queue), Arc::clone(&eventfds));
        let control_thread = thread::spawn(move || {
            for number in 1..=2 {
                if rings_first {
                    sender_eventfds.write(MAILBOX);
                }
                sender_queue.lock().unwrap().push_back(number);
                if !rings_first {
                    sender_eventfds.write(MAILBOX);
                }
            }
        });
        assert_eq!(take_mail(&queue, &eventfds, 2, is_hasty), [1, 2]);
        control_thread.join().unwrap();
    });
}

/// A shard never sleeps through a message: it is put in before the doorbell rings, and after the doorbell was hushed
/// the shard looks once more.
#[test]
fn mail_wakes_a_shard() {
    mailbox(false, false);
}

#[test]
fn a_shard_that_hushes_and_sleeps_is_found() {
    expect_deadlock("a_shard_that_hushes_and_sleeps_is_found", || mailbox(true, false));
}

#[test]
fn a_sender_that_rings_first_is_found() {
    expect_deadlock("a_sender_that_rings_first_is_found", || mailbox(false, true));
}

/// A shard asleep is woken by either of the two that it sleeps on: mail, and a client of its own. The client's eventfd is
/// never read.
#[test]
fn mail_and_clients_wake_the_same_shard() {
    model(2, || {
        let (queue, eventfds) = (Queue::default(), Eventfds::new());
        let (mut producer, mut consumer) = ring::private(1).unwrap();
        let (marker, mut watcher) = signal::private_dirty(1).unwrap();
        let (sender_queue, sender_eventfds) = (Arc::clone(&queue), Arc::clone(&eventfds));
        let control_thread = thread::spawn(move || {
            sender_queue.lock().unwrap().push_back(1);
            sender_eventfds.write(MAILBOX);
        });
        let client_eventfds = Arc::clone(&eventfds);
        let client = thread::spawn(move || {
            assert!(producer.push(entry(2)).unwrap());
            producer.publish();
            if marker.mark(0) {
                client_eventfds.write(DOORBELL);
            }
        });
        let (mut found, mut dirty, mut completions) = (0, Vec::new(), [false; 2]);
        loop {
            let mut is_busy = next_mail(&queue).is_some();
            found += u64::from(is_busy);
            if completions[MAILBOX] {
                eventfds.read(MAILBOX);
                is_busy = true;
            }
            watcher.take(&mut dirty);
            for _ in dirty.drain(..) {
                while consumer.pop().unwrap().is_some() {
                    (found, is_busy) = (found + 1, true);
                }
            }
            if found == 2 {
                break;
            }
            let is_dirty = !is_busy && watcher.park(signal::Park::UntilRung);
            completions = eventfds.park(!is_busy && !is_dirty);
            watcher.unpark();
        }
        control_thread.join().unwrap();
        client.join().unwrap();
    });
}

/// A shard sleeps for all its sessions at once: it tells each client, then looks at each once more.
#[test]
fn a_shard_sleeps_for_all_its_sessions() {
    model(2, || {
        let eventfds = Eventfds::new();
        let (mut watchers, mut consumers, mut clients) = (Vec::new(), Vec::new(), Vec::new());
        for session in 0..2 {
            let (mut producer, consumer) = ring::private(1).unwrap();
            let (marker, watcher) = signal::private_dirty(1).unwrap();
            watchers.push(watcher);
            consumers.push(consumer);
            let eventfds = Arc::clone(&eventfds);
            clients.push(thread::spawn(move || {
                assert!(producer.push(entry(session as u64)).unwrap());
                producer.publish();
                if marker.mark(0) {
                    eventfds.write(session);
                }
            }));
        }
        let (mut found, mut dirty) = (Vec::new(), Vec::new());
        while found.len() < 2 {
            for (watcher, consumer) in watchers.iter_mut().zip(&mut consumers) {
                watcher.take(&mut dirty);
                if dirty.drain(..).next().is_some() {
                    found.extend(consumer.pop().unwrap().map(|[number, ..]| number));
                }
            }
            if found.len() == 2 {
                break;
            }
            let is_dirty = watchers
                .iter_mut()
                .fold(false, |is_dirty, watcher| watcher.park(signal::Park::UntilRung) | is_dirty);
            eventfds.park(!is_dirty);
            watchers.iter_mut().for_each(signal::Watcher::unpark);
        }
        for client in clients {
            client.join().unwrap();
        }
    });
}
