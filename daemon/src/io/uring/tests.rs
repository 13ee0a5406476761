//! What only the inside of a ring shows: completions that this kernel does not send by itself.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::AsFd;

use io_uring::opcode;
use rustix::event::{EventfdFlags, eventfd};

use super::*;
use crate::io::Errno;
use crate::io::probe::Level;
use crate::memory::HugepageMode;

fn make_ring(entries: u32) -> Uring {
    let config =
        UringConfig { entries, hugepages: HugepageMode::Off, ..UringConfig::new(Level::Incremental) };
    UringSetup::create(&config).expect("a ring").enable().expect("an enabled ring")
}

fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a listener");
    let near = TcpStream::connect(listener.local_addr().expect("an address")).expect("a connection");
    (near, listener.accept().expect("a connection").0)
}

/// As when the kernel takes nothing because too many completions wait.
#[test]
fn entries_that_the_kernel_did_not_take_are_handed_over_later_and_in_order() {
    let mut ring = make_ring(8);
    for number in 0..100 {
        ring.queue.in_flight += 1;
        ring.queue.backlog.push_back(opcode::Nop::new().build().user_data(number));
    }
    // This one goes behind them.
    // SAFETY: the entry points at no memory.
    unsafe { ring.queue.push(opcode::Nop::new().build().user_data(100)) };
    let mut seen = Vec::new();
    while seen.len() < 101 {
        ring.park(Some(Duration::from_secs(5))).expect("a working ring");
        while let Some(entry) = ring.queue.pop() {
            seen.push(entry.place);
        }
    }
    assert!(seen.into_iter().eq(0..101));
    assert_eq!(ring.queue.in_flight, 0);
}

#[test]
fn a_watch_that_the_kernel_ends_is_started_again() {
    let mut ring = make_ring(8);
    let bell = eventfd(0, EventfdFlags::empty()).expect("an event counter");
    ring.watch(bell.as_fd(), WatchId(9)).expect("a watch");
    let before = ring.queue.in_flight;
    let completion = ring.handle_watched(0, i32::from(libc::POLLIN), 0);
    assert!(matches!(completion, Some(Completion::Watch { id: WatchId(9) })));
    assert_eq!((ring.queue.in_flight, ring.counters().rearmed), (before + 1, 1));
}

#[test]
fn a_watch_that_fails_says_so_and_frees_its_place() {
    let mut ring = make_ring(8);
    let bell = eventfd(0, EventfdFlags::empty()).expect("an event counter");
    ring.watch(bell.as_fd(), WatchId(9)).expect("a watch");
    // Nobody asked for this, so it is as unexpected as any other error.
    let cancel = opcode::AsyncCancel::new(Operation::Watch.user_data(0)).build();
    // SAFETY: the entry points at no memory.
    unsafe { ring.queue.push(cancel) };
    ring.park(Some(Duration::from_secs(5))).expect("a working ring");
    let completions: Vec<Completion> = std::iter::from_fn(|| ring.next()).collect();
    assert!(
        matches!(
            completions[..],
            [Completion::WatchFailed { id: WatchId(9), errno: Errno(libc::ECANCELED) }]
        ),
        "{completions:?}"
    );
    ring.watch(bell.as_fd(), WatchId(10)).expect("a watch");
    assert_eq!(ring.handle_watched(0, 1, 2).map(|_| ()), Some(()), "in the same place");
}

#[test]
fn an_interrupted_send_is_a_short_one_and_an_interrupted_receive_goes_on() {
    let mut ring = make_ring(8);
    let (near, _far) = tcp_pair();
    let slot = ring.add_socket(near.into()).expect("a place");
    let batch = || SendBatch {
        headers: vec![0; 8],
        parts: vec![crate::io::SendPart::Header { start: 0, bytes: 8 }],
        bytes: 8,
    };
    ring.send(slot, batch()).expect("a send");
    let sent = ring.handle_sent(0, -libc::EINTR);
    assert!(matches!(sent, Some(Completion::Sent { result: Ok(0), .. })));
    assert!(ring.handle_sent(0, 8).is_none(), "there is nothing in flight");
    ring.receive(slot).expect("receiving");
    let before = ring.queue.in_flight;
    assert!(ring.handle_received(0, -libc::EINTR, 0).is_none());
    assert_eq!(ring.queue.in_flight, before + 1);
    // Bytes in no buffer, in a buffer that does not exist, or more than a buffer holds: the socket fails, not the
    // daemon.
    for flags in [0, 1 | 77 << 16, 1] {
        let received = ring.handle_received(0, i32::MAX, flags);
        assert!(matches!(received, Some(Completion::ReceiveFailed { errno: Errno(libc::EIO), .. })));
    }
    for place in [1, u16::MAX] {
        assert!(ring.handle_received(place, 5, 1).is_none());
        assert!(ring.handle_sent(place, 5).is_none());
        assert!(ring.handle_watched(place, 5, 0).is_none());
        assert!(ring.handle_socket_cancelled(place).is_none());
        assert!(ring.handle_watch_cancelled(place).is_none());
    }
}

/// The end of a stream may name a buffer as if it were used up. It is still the kernel's.
#[test]
fn the_end_of_a_stream_uses_no_buffer_whatever_its_flags_say() {
    let mut ring = make_ring(8);
    let (near, _far) = tcp_pair();
    let slot = ring.add_socket(near.into()).expect("a place");
    ring.receive(slot).expect("receiving");
    let received = ring.handle_received(0, 0, 1);
    assert!(matches!(received, Some(Completion::EndOfStream { .. })));
    let ReceiveMemory::Shared(shared) = &ring.memory else {
        panic!("shared buffers");
    };
    assert_eq!((shared.available, shared.tail), (8, 8));
}

#[test]
fn a_socket_that_waits_for_memory_leaves_the_queue_when_it_is_closed() {
    let mut ring = make_ring(8);
    let (near, _far) = tcp_pair();
    let slot = ring.add_socket(near.into()).expect("a place");
    if let ReceiveMemory::Shared(shared) = &mut ring.memory {
        shared.available = 0;
    }
    assert!(ring.handle_received(0, -libc::ENOBUFS, 0).is_none());
    assert_eq!(ring.starved, [0]);
    ring.close_socket(slot);
    assert!(ring.starved.is_empty());
    assert!(matches!(ring.next(), Some(Completion::Closed { .. })));
}

#[test]
fn draining_leaves_nothing_in_flight() {
    let mut ring = make_ring(8);
    let (near, _far) = tcp_pair();
    let bell = eventfd(0, EventfdFlags::empty()).expect("an event counter");
    let slot = ring.add_socket(near.into()).expect("a place");
    ring.receive(slot).expect("receiving");
    ring.watch(bell.as_fd(), WatchId(1)).expect("a watch");
    assert_eq!(ring.queue.in_flight, 2);
    assert!(ring.drain());
    assert_eq!(ring.queue.in_flight, 0);
    assert!(ring.sockets.slots().is_empty());
}

#[test]
fn the_registered_descriptor_is_given_back_with_the_ring() {
    // A thread has room for 16 of them.
    for _ in 0..40 {
        let mut ring = make_ring(8);
        let unregistered = ring.queue.submitter.unregister_ring_fd();
        unregistered.expect("this ring's descriptor was registered");
        ring.queue.submitter.register_ring_fd().expect("room for one");
    }
}
