//! The ring without a kernel keeps the promises of a ring.

use std::os::fd::AsFd;

use super::*;
use crate::io::fake::{FakeRing, SendPolicy};
use crate::io::{Chunk, Disposition, Errno, RingError, WatchId};

fn ring_with_socket() -> (FakeRing, SocketSlot) {
    let mut ring = FakeRing::new();
    let slot = ring.add_socket(any_descriptor()).expect("a place");
    (ring, slot)
}

fn step(ring: &mut FakeRing) -> Vec<Completion> {
    ring.park(Some(Duration::ZERO)).expect("a working ring");
    std::iter::from_fn(|| ring.next()).collect()
}

fn chunks(ring: &mut FakeRing) -> Vec<Chunk> {
    let received = |completion| match completion {
        Completion::Received { chunk, .. } => chunk,
        other => panic!("{other:?}"),
    };
    step(ring).into_iter().map(received).collect()
}

#[test]
fn a_send_is_taken_whole_in_part_or_not_at_all() {
    let (mut ring, slot) = ring_with_socket();
    ring.send(slot, plain_batch(b"whole")).expect("a send");
    assert!(ring.next().is_none(), "nothing completes before the ring is parked");
    assert!(matches!(step(&mut ring)[..], [Completion::Sent { result: Ok(5), .. }]));
    ring.set_socket_policy(slot, SendPolicy::Short(3));
    ring.send(slot, plain_batch(b"partial")).expect("a send");
    assert!(matches!(step(&mut ring)[..], [Completion::Sent { result: Ok(3), .. }]));
    ring.set_socket_policy(slot, SendPolicy::Fail(Errno(libc::EPIPE)));
    ring.send(slot, plain_batch(b"lost")).expect("a send");
    assert!(matches!(step(&mut ring)[..], [Completion::Sent { result: Err(Errno(libc::EPIPE)), .. }]));
    assert_eq!(ring.take_sent(slot), b"wholepar");
}

#[test]
fn a_held_send_outlives_its_socket_and_closed_comes_last() {
    let (mut ring, slot) = ring_with_socket();
    ring.set_socket_policy(slot, SendPolicy::Hold);
    ring.send(slot, plain_batch(b"late")).expect("a send");
    let (error, _) = ring.send(slot, plain_batch(b"second")).expect_err("one is in flight");
    assert_eq!(error.disposition, Disposition::Retry);
    ring.close_socket(slot);
    assert!(step(&mut ring).is_empty());
    assert_eq!(ring.in_flight(slot).map(|batch| batch.bytes), Some(4));
    assert!(ring.send(slot, plain_batch(b"x")).is_err());
    ring.complete_send(slot, Ok(2));
    assert!(matches!(
        step(&mut ring)[..],
        [Completion::Sent { result: Ok(2), .. }, Completion::Closed { socket }] if socket == slot
    ));
    assert!(ring.sockets().is_empty());
}

#[test]
fn closing_cancels_a_send_that_nobody_holds() {
    let (mut ring, slot) = ring_with_socket();
    ring.send(slot, plain_batch(b"gone")).expect("a send");
    ring.hold_closed(true);
    ring.close_socket(slot);
    assert!(matches!(step(&mut ring)[..], [Completion::Sent { result: Err(Errno(libc::ECANCELED)), .. }]));
    assert!(step(&mut ring).is_empty());
    ring.hold_closed(false);
    assert!(matches!(step(&mut ring)[..], [Completion::Closed { .. }]));
}

#[test]
fn arriving_bytes_are_cut_as_the_test_says() {
    let (mut ring, slot) = ring_with_socket();
    ring.set_chunk_bytes(&[1, 3]);
    ring.arrive(slot, b"abcdefg");
    assert!(step(&mut ring).is_empty(), "it does not receive yet");
    ring.receive(slot).expect("receiving");
    let chunks = chunks(&mut ring);
    let bytes: Vec<&[u8]> = chunks.iter().map(|chunk| ring.bytes(chunk)).collect();
    assert_eq!(bytes, [b"a".as_slice(), b"bcd", b"e", b"fg"]);
}

#[test]
fn receiving_waits_while_too_many_chunks_are_held() {
    let (mut ring, slot) = ring_with_socket();
    ring.set_chunk_bytes(&[2]);
    ring.set_chunks_max(2);
    ring.receive(slot).expect("receiving");
    ring.arrive(slot, b"abcdef");
    ring.end_stream(slot);
    let held = chunks(&mut ring);
    assert_eq!((held.len(), ring.chunks_held()), (2, 2));
    assert!(step(&mut ring).is_empty());
    assert!(ring.counters().receive_starved > 0);
    for chunk in held {
        ring.release(chunk);
    }
    match &mut step(&mut ring)[..] {
        [Completion::Received { chunk, .. }, Completion::EndOfStream { .. }] => {
            assert_eq!(ring.bytes(chunk), b"ef");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_failure_comes_after_the_bytes_and_closing_drops_both() {
    let (mut ring, slot) = ring_with_socket();
    ring.receive(slot).expect("receiving");
    ring.arrive(slot, b"last");
    ring.fail_receive(slot, Errno(libc::ECONNRESET));
    ring.park(None).expect("a working ring");
    ring.close_socket(slot);
    assert!(matches!(ring.next(), Some(Completion::Closed { .. })));
    assert!(ring.next().is_none());
    assert_eq!(ring.chunks_held(), 0);
}

#[test]
fn a_signal_is_reported_to_who_watches() {
    let mut ring = FakeRing::new();
    let descriptor = any_descriptor();
    ring.watch(descriptor.as_fd(), WatchId(4)).expect("a watch");
    ring.signal(WatchId(4));
    ring.signal(WatchId(5));
    assert!(matches!(step(&mut ring)[..], [Completion::Watch { id: WatchId(4) }]));
    ring.signal(WatchId(4));
    ring.unwatch(WatchId(4));
    assert!(step(&mut ring).is_empty());
    assert!(ring.watches().is_empty());
}

#[test]
fn a_seed_changes_the_order_between_sockets_and_never_within_one() {
    let mut orders = Vec::new();
    for seed in 1..20 {
        let mut ring = FakeRing::new();
        ring.shuffle(seed);
        ring.set_chunk_bytes(&[1]);
        let slots: Vec<SocketSlot> =
            (0..3).map(|_| ring.add_socket(any_descriptor()).expect("a place")).collect();
        for slot in &slots {
            ring.receive(*slot).expect("receiving");
            ring.arrive(*slot, b"abc");
        }
        let mut order = Vec::new();
        let mut seen = [0; 3];
        for completion in step(&mut ring) {
            let Completion::Received { socket, chunk } = completion else {
                panic!("only bytes arrive");
            };
            assert_eq!(ring.bytes(&chunk), [b"abc"[seen[socket.index()]]]);
            seen[socket.index()] += 1;
            order.push(socket.index());
        }
        assert_eq!(seen, [3; 3]);
        orders.push(order);
    }
    orders.dedup();
    assert!(orders.len() > 5, "{orders:?}");
}

#[test]
fn a_park_can_fail() {
    let mut ring = FakeRing::new();
    ring.fail_park(RingError::fatal("io_uring_enter", Errno(libc::EBADR), "more memory"));
    assert!(ring.park(Some(Duration::from_secs(1))).is_err());
    ring.park(None).expect("only once");
    assert_eq!(ring.parks(), [Some(Duration::from_secs(1)), None]);
}
