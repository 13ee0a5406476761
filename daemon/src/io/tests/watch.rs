//! Watching descriptors.

use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};

use super::*;
use crate::io::WatchId;

fn counter() -> OwnedFd {
    eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).expect("an event counter")
}

fn signal(counter: &OwnedFd) {
    rustix::io::write(counter, &1_u64.to_ne_bytes()).expect("room in the counter");
}

fn wait_watch(ring: &mut Uring) -> WatchId {
    match wait(ring) {
        Completion::Watch { id } => id,
        other => panic!("{other:?}"),
    }
}

#[test]
fn each_signal_is_reported_although_nobody_reads_the_counter() {
    let mut ring = make_ring(&small_config(Level::Incremental));
    let bell = counter();
    ring.watch(bell.as_fd(), WatchId(7)).expect("a watch");
    assert!(settle(&mut ring).is_empty(), "not signalled");
    for _ in 0..100 {
        signal(&bell);
        assert_eq!(wait_watch(&mut ring), WatchId(7));
    }
    assert!(settle(&mut ring).is_empty(), "a signal is reported once");
}

#[test]
fn a_signal_from_before_the_watch_is_reported() {
    let mut ring = make_ring(&small_config(Level::Incremental));
    let bell = counter();
    signal(&bell);
    ring.watch(bell.as_fd(), WatchId(0)).expect("a watch");
    assert_eq!(wait_watch(&mut ring), WatchId(0));
}

#[test]
fn a_signal_between_two_parks_is_not_lost() {
    let mut ring = make_ring(&small_config(Level::Incremental));
    let bell = counter();
    ring.watch(bell.as_fd(), WatchId(1)).expect("a watch");
    settle(&mut ring);
    let clone = bell.try_clone().expect("a duplicate");
    for _ in 0..200 {
        let bell = clone.try_clone().expect("a duplicate");
        let thread = std::thread::spawn(move || signal(&bell));
        assert_eq!(wait_watch(&mut ring), WatchId(1));
        thread.join().expect("a thread");
    }
}

#[test]
fn the_caller_may_close_its_descriptor_at_once() {
    let mut ring = make_ring(&small_config(Level::Incremental));
    let bell = counter();
    let ringer = bell.try_clone().expect("a duplicate");
    ring.watch(bell.as_fd(), WatchId(3)).expect("a watch");
    drop(bell);
    signal(&ringer);
    assert_eq!(wait_watch(&mut ring), WatchId(3));
}

#[test]
fn nothing_is_reported_after_the_end_of_a_watch_and_its_number_can_be_used_again() {
    let mut ring = make_ring(&small_config(Level::Incremental));
    let (old, new) = (counter(), counter());
    for _ in 0..100 {
        ring.watch(old.as_fd(), WatchId(5)).expect("a watch");
        signal(&old);
        ring.park(Some(Duration::ZERO)).expect("a working ring");
        ring.unwatch(WatchId(5));
        ring.unwatch(WatchId(5));
        assert!(settle(&mut ring).is_empty());
    }
    ring.watch(old.as_fd(), WatchId(5)).expect("a watch");
    ring.unwatch(WatchId(5));
    ring.watch(new.as_fd(), WatchId(5)).expect("a watch");
    signal(&new);
    assert_eq!(wait_watch(&mut ring), WatchId(5));
    signal(&old);
    assert!(settle(&mut ring).is_empty());
    ring.unwatch(WatchId(99));
}

#[test]
fn a_pipe_whose_other_end_is_gone_does_not_keep_the_ring_busy() {
    let mut ring = make_ring(&small_config(Level::Incremental));
    let (read, write) = rustix::pipe::pipe().expect("a pipe");
    ring.watch(read.as_fd(), WatchId(1)).expect("a watch");
    settle(&mut ring);
    drop(write);
    assert_eq!(wait_watch(&mut ring), WatchId(1));
    let enters = ring.counters().enters;
    let more = settle(&mut ring).len();
    assert!(more <= 1 && ring.counters().enters - enters <= 10, "{more} completions, {:?}", ring.counters());
}

#[test]
fn many_watches_are_told_apart() {
    let mut ring = make_ring(&UringConfig { entries: 8, ..small_config(Level::Incremental) });
    let bells: Vec<OwnedFd> = (0..100).map(|_| counter()).collect();
    for (number, bell) in bells.iter().enumerate() {
        ring.watch(bell.as_fd(), WatchId(1000 + number as u32)).expect("a watch");
    }
    assert!(settle(&mut ring).is_empty());
    for number in [99, 0, 42] {
        signal(&bells[number]);
        assert_eq!(wait_watch(&mut ring), WatchId(1000 + number as u32));
    }
    // All at once are more than the completion queue holds.
    for bell in &bells {
        signal(bell);
    }
    let mut seen: Vec<u32> = Vec::new();
    while seen.len() < 100 {
        let WatchId(id) = wait_watch(&mut ring);
        if !seen.contains(&id) {
            seen.push(id);
        }
    }
}
