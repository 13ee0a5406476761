//! Sending: outcomes and refusals.

use std::io::Read;

use rustix::io::Errno as SystemErrno;
use socket2::SockRef;

use super::*;
use crate::io::{BatchError, Disposition, Errno, PARTS_MAX};

#[test]
fn one_send_per_socket_is_in_flight() {
    let mut ring = make_ring(&small_config(Level::Incremental));
    let (near, mut far) = tcp_pair();
    let slot = ring.add_socket(near.into()).expect("a place");
    ring.send(slot, plain_batch(b"first ")).expect("a send");
    let (error, batch) = ring.send(slot, plain_batch(b"second")).expect_err("one is in flight");
    assert_eq!(error.disposition, Disposition::Retry);
    assert!(matches!(wait(&mut ring), Completion::Sent { result: Ok(6), .. }));
    ring.send(slot, batch).expect("a send");
    assert!(matches!(wait(&mut ring), Completion::Sent { result: Ok(6), .. }));
    let mut bytes = [0; 12];
    far.read_exact(&mut bytes).expect("twelve bytes");
    assert_eq!(&bytes, b"first second");
}

#[test]
fn a_batch_that_names_foreign_memory_is_refused() {
    let mut ring = make_ring(&small_config(Level::Incremental));
    let (near, _far) = tcp_pair();
    let slot = ring.add_socket(near.into()).expect("a place");
    let client = ClientRegion::create(2, 32 << 10);
    let segments = client.region.segments();
    let region = |segment, offset, bytes| SendPart::Region {
        region: Arc::clone(&client.region),
        segment,
        offset,
        bytes,
    };
    let header = |start, bytes| SendPart::Header { start, bytes };
    let cases = [
        (vec![], 0, BatchError::Empty),
        (vec![header(0, 1); PARTS_MAX + 1], PARTS_MAX as u32 + 1, BatchError::TooManyParts(PARTS_MAX + 1)),
        (vec![header(0, 0)], 0, BatchError::Part(0)),
        (vec![header(0, 8), header(1, 8)], 16, BatchError::Part(1)),
        (vec![header(u32::MAX, 1)], 1, BatchError::Part(0)),
        (vec![header(8, u32::MAX)], u32::MAX, BatchError::Part(0)),
        (vec![region(segments, 0, 1)], 1, BatchError::Part(0)),
        (vec![region(u32::MAX, 0, 1)], 1, BatchError::Part(0)),
        (vec![region(0, 32 << 10, 1)], 1, BatchError::Part(0)),
        (vec![region(0, 1, 32 << 10)], 32 << 10, BatchError::Part(0)),
        (vec![region(0, u32::MAX, u32::MAX)], u32::MAX, BatchError::Part(0)),
        (vec![header(0, 8)], 9, BatchError::Bytes { found: 8, stated: 9 }),
    ];
    for (parts, bytes, wanted) in cases {
        let batch = SendBatch { headers: vec![0; 8], parts, bytes };
        let (error, batch) = ring.send(slot, batch).expect_err("a batch that is not sound");
        assert_eq!(error.disposition, Disposition::Socket);
        assert!(error.to_string().contains(&wanted.to_string()), "{error} for {wanted}");
        assert_eq!(batch.bytes, bytes, "the same batch comes back");
    }
    assert!(settle(&mut ring).is_empty());
    assert_eq!(Arc::strong_count(&client.region), 1);
    ring.send(slot, plain_batch(b"sound")).expect("the socket is as good as before");
    assert!(matches!(wait(&mut ring), Completion::Sent { result: Ok(5), .. }));
}

#[test]
fn the_largest_batch_arrives_in_order() {
    let mut ring = make_ring(&small_config(Level::Incremental));
    let (near, mut far) = tcp_pair();
    let slot = ring.add_socket(near.into()).expect("a place");
    let headers: Vec<u8> = pattern_at(0, 2 * PARTS_MAX).to_vec();
    let parts = (0..PARTS_MAX as u32).map(|part| SendPart::Header { start: part * 2, bytes: 2 }).collect();
    let batch = SendBatch { headers, parts, bytes: 2 * PARTS_MAX as u32 };
    ring.send(slot, batch).expect("a send");
    assert!(matches!(wait(&mut ring), Completion::Sent { result: Ok(2048), .. }));
    let mut bytes = vec![0; 2 * PARTS_MAX];
    far.read_exact(&mut bytes).expect("all of it");
    check_pattern(0, &bytes);
}

/// Sends until it fails.
fn send_until_it_fails(ring: &mut Uring, slot: SocketSlot) -> Errno {
    let bytes = vec![7; 256 << 10];
    loop {
        ring.send(slot, plain_batch(&bytes)).expect("a send");
        if let Completion::Sent { result: Err(errno), .. } = wait(ring) {
            return errno;
        }
    }
}

#[test]
fn a_peer_that_goes_away_fails_the_send() {
    for level in LEVELS {
        let mut ring = make_ring(&small_config(level));
        let (near, mut far) = tcp_pair();
        let slot = ring.add_socket(near.into()).expect("a place");
        let reader = std::thread::spawn(move || {
            // Goes with bytes unread, so that the connection is reset.
            far.read_exact(&mut [0; 1000]).expect("some bytes");
        });
        let errno = send_until_it_fails(&mut ring, slot);
        assert!(matches!(errno.0, libc::EPIPE | libc::ECONNRESET), "{errno}");
        reader.join().expect("a reader");
        ring.close_socket(slot);
        wait_closed(&mut ring, slot);
    }
}

#[test]
fn a_reset_while_a_send_waits_for_room_fails_send_and_receive() {
    for level in LEVELS {
        let mut ring = make_ring(&small_config(level));
        let (near, far) = tcp_pair();
        let slot = ring.add_socket(near.into()).expect("a place");
        ring.receive(slot).expect("receiving");
        let bytes = vec![7; 8 << 20];
        let mut waiting = false;
        while !waiting {
            ring.send(slot, plain_batch(&bytes)).expect("a send");
            waiting = settle(&mut ring).is_empty();
        }
        SockRef::from(&far).set_linger(Some(Duration::ZERO)).expect("a socket");
        drop(far);
        let (mut sent, mut received) = (false, false);
        while !(sent && received) {
            match wait(&mut ring) {
                Completion::Sent { result: Err(_), .. } => sent = true,
                // It did not wait yet.
                Completion::Sent { result: Ok(_), batch, .. } => ring.send(slot, batch).expect("a send"),
                // Which of the two sees the reset first is the kernel's affair; the other sees a plain end.
                Completion::ReceiveFailed { .. } | Completion::EndOfStream { .. } => received = true,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(ring.receive(slot).expect_err("it has ended").disposition, Disposition::Socket);
    }
}

#[test]
fn a_descriptor_that_does_not_block_still_waits_for_room() {
    let mut ring = make_ring(&small_config(Level::Incremental));
    let (near, far) = tcp_pair();
    near.set_nonblocking(true).expect("a socket");
    let slot = ring.add_socket(near.into()).expect("a place");
    ring.receive(slot).expect("receiving");
    let bytes = vec![7; 8 << 20];
    loop {
        ring.send(slot, plain_batch(&bytes)).expect("a send");
        let completions = settle(&mut ring);
        if completions.is_empty() {
            break;
        }
        for completion in completions {
            match completion {
                Completion::Sent { result: Ok(bytes), .. } => assert!(bytes > 0),
                other => panic!("{other:?}"),
            }
        }
    }
    drop(far);
}

#[test]
fn a_descriptor_that_is_no_socket_fails_that_operation_only() {
    let mut ring = make_ring(&small_config(Level::Incremental));
    let slot = ring.add_socket(any_descriptor()).expect("a place");
    ring.send(slot, plain_batch(b"x")).expect("a send");
    match wait(&mut ring) {
        Completion::Sent { result, .. } => {
            assert_eq!(result, Err(Errno::from(SystemErrno::NOTSOCK)));
        }
        other => panic!("{other:?}"),
    }
    ring.close_socket(slot);
    wait_closed(&mut ring, slot);
}

#[test]
fn more_operations_than_the_queue_has_entries_all_run() {
    const SOCKETS: usize = 100;
    for level in LEVELS {
        let mut ring = make_ring(&UringConfig { entries: 8, ..small_config(level) });
        let mut slots = Vec::new();
        for _ in 0..SOCKETS {
            let (near, far) = tcp_pair();
            let near = ring.add_socket(near.into()).expect("a place");
            let far = ring.add_socket(far.into()).expect("a place");
            slots.push((near, far));
        }
        for (near, far) in &slots {
            ring.receive(*far).expect("receiving");
            ring.send(*near, plain_batch(&[near.index() as u8; 50])).expect("a send");
        }
        let (mut sent, mut received) = (0, [0; SOCKETS]);
        while sent < SOCKETS || received.iter().any(|bytes| *bytes < 50) {
            match wait(&mut ring) {
                Completion::Sent { result, .. } => {
                    assert_eq!(result, Ok(50));
                    sent += 1;
                }
                Completion::Received { socket, chunk } => {
                    let number = slots.iter().position(|(_, far)| *far == socket).expect("one of them");
                    let wanted = slots[number].0.index() as u8;
                    assert!(ring.bytes(&chunk).iter().all(|byte| *byte == wanted));
                    received[number] += chunk.bytes();
                    ring.release(chunk);
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn a_batch_is_used_again_without_allocating() {
    let mut ring = make_ring(&small_config(Level::Incremental));
    let (near, far) = tcp_pair();
    let slot = ring.add_socket(near.into()).expect("a place");
    let mut batch = plain_batch(&[1; 512]);
    let (headers, parts) = (batch.headers.as_ptr(), batch.parts.as_ptr());
    for _ in 0..10 {
        ring.send(slot, batch).expect("a send");
        batch = match wait(&mut ring) {
            Completion::Sent { batch, .. } => batch,
            other => panic!("{other:?}"),
        };
        assert_eq!((batch.headers.as_ptr(), batch.parts.as_ptr()), (headers, parts));
    }
    drop(far);
}
