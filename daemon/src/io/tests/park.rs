//! Parking: when it waits, and how it ends.

use std::os::fd::AsFd;
use std::time::Instant;

use rustix::event::{EventfdFlags, eventfd};

use super::*;
use crate::io::WatchId;

#[test]
fn zero_does_not_wait() {
    let mut ring = make_ring(&small_config(Level::Incremental));
    // Would never end if it waited for a completion.
    for _ in 0..100 {
        ring.park(Some(Duration::ZERO)).expect("a working ring");
        assert!(ring.next().is_none());
    }
    assert_eq!(ring.counters().enters, 0, "there was nothing to enter the kernel for");
}

#[test]
fn a_timeout_ends_the_wait_and_not_before_its_time() {
    let mut ring = make_ring(&small_config(Level::Incremental));
    for timeout in [Duration::from_nanos(1), Duration::from_millis(30)] {
        let started = Instant::now();
        ring.park(Some(timeout)).expect("the end of the time is no error");
        assert!(started.elapsed() >= timeout);
        assert!(ring.next().is_none());
    }
}

#[test]
fn the_longest_timeout_is_taken() {
    let mut ring = make_ring(&small_config(Level::Incremental));
    let bell = eventfd(1, EventfdFlags::empty()).expect("an event counter");
    ring.watch(bell.as_fd(), WatchId(1)).expect("a watch");
    ring.park(Some(Duration::MAX)).expect("a working ring");
    assert!(matches!(ring.next(), Some(Completion::Watch { .. })));
}

#[test]
fn without_a_timeout_it_waits_for_a_completion() {
    let mut ring = make_ring(&small_config(Level::Incremental));
    let bell = eventfd(0, EventfdFlags::empty()).expect("an event counter");
    ring.watch(bell.as_fd(), WatchId(1)).expect("a watch");
    let thread = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        rustix::io::write(&bell, &1_u64.to_ne_bytes()).expect("room in the counter");
    });
    loop {
        ring.park(None).expect("a working ring");
        if let Some(completion) = ring.next() {
            assert!(matches!(completion, Completion::Watch { id: WatchId(1) }));
            break;
        }
    }
    thread.join().expect("a thread");
}

#[test]
fn it_does_not_wait_while_a_completion_is_there() {
    let mut ring = make_ring(&small_config(Level::Incremental));
    let bell = eventfd(1, EventfdFlags::empty()).expect("an event counter");
    ring.watch(bell.as_fd(), WatchId(1)).expect("a watch");
    // The first one waits for the completion that the others find.
    for _ in 0..10 {
        ring.park(None).expect("a working ring");
    }
    assert_eq!(ring.counters().enters, 1);
    assert!(matches!(ring.next(), Some(Completion::Watch { .. })));
}

#[test]
fn what_was_started_is_handed_over_without_waiting() {
    let mut ring = make_ring(&small_config(Level::Incremental));
    let (near, mut far) = tcp_pair();
    let slot = ring.add_socket(near.into()).expect("a place");
    ring.send(slot, plain_batch(b"now")).expect("a send");
    ring.park(Some(Duration::ZERO)).expect("a working ring");
    let mut bytes = [0; 3];
    std::io::Read::read_exact(&mut far, &mut bytes).expect("three bytes");
    assert!(matches!(ring.next(), Some(Completion::Sent { result: Ok(3), .. })));
}

#[test]
fn a_signal_ends_the_wait_without_an_error() {
    extern "C" fn ignore(_signal: libc::c_int) {}
    // SAFETY: all zeroes is a sigaction without flags; the handler does nothing. No other test uses this signal.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = ignore as extern "C" fn(libc::c_int) as usize;
        assert_eq!(libc::sigaction(libc::SIGUSR2, &action, std::ptr::null_mut()), 0);
    }
    // Before any signal: it is the wait that one may end.
    let mut ring = make_ring(&small_config(Level::Incremental));
    // SAFETY: has no precondition.
    let parked = unsafe { libc::pthread_self() };
    let (done, stop) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        // Again and again, since the first may come before the wait begins.
        while stop.recv_timeout(Duration::from_millis(5)) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            // SAFETY: the thread that parks waits for this one before it ends.
            unsafe { libc::pthread_kill(parked, libc::SIGUSR2) };
        }
    });
    // Would never end by itself.
    ring.park(None).expect("a signal is no error");
    assert!(ring.next().is_none());
    drop(done);
    thread.join().expect("a thread");
}

#[test]
fn a_ring_is_made_on_one_thread_and_used_on_another() {
    let setup = UringSetup::create(&UringConfig::new(Level::Incremental)).expect("a ring");
    let used = std::thread::spawn(move || {
        let mut ring = setup.enable().expect("an enabled ring");
        let (near, far) = tcp_pair();
        let near = ring.add_socket(near.into()).expect("a place");
        let far = ring.add_socket(far.into()).expect("a place");
        ring.receive(far).expect("receiving");
        ring.send(near, plain_batch(b"over")).expect("a send");
        let mut bytes = 0;
        while bytes < 4 {
            if let Completion::Received { chunk, .. } = wait(&mut ring) {
                bytes += chunk.bytes();
                ring.release(chunk);
            }
        }
    });
    used.join().expect("no panic");
}
