//! Receiving: the life of a chunk, and memory that is used up.

use std::io::Write;
use std::net::Shutdown;

use super::*;
use crate::io::Chunk;

/// Two buffers of 4 KiB.
fn tight_config(level: Level) -> UringConfig {
    UringConfig { buffers: 2, buffer_bytes: 4 << 10, ..small_config(level) }
}

/// Takes chunks until this many bytes came and this many sockets wait for memory.
fn take_chunks(ring: &mut Uring, bytes: u32, starved: u64) -> Vec<(SocketSlot, Chunk)> {
    let mut chunks: Vec<(SocketSlot, Chunk)> = Vec::new();
    let started = Instant::now();
    loop {
        while let Some(completion) = ring.next() {
            match completion {
                Completion::Received { socket, chunk } => chunks.push((socket, chunk)),
                other => panic!("{other:?}"),
            }
        }
        let taken: u32 = chunks.iter().map(|(_, chunk)| chunk.bytes()).sum();
        if taken >= bytes && ring.counters().receive_starved >= starved {
            assert_eq!(taken, bytes, "not a byte more than there is memory");
            return chunks;
        }
        assert!(started.elapsed() < STUCK, "{taken} bytes came, {:?}", ring.counters());
        ring.park(Some(Duration::from_millis(10))).expect("a working ring");
    }
}

#[test]
fn receiving_waits_while_all_memory_is_held_and_goes_on_after_release() {
    const BYTES: usize = 64 << 10;
    let mut ring = make_ring(&tight_config(Level::Incremental));
    let (mut near, far) = tcp_pair();
    let slot = ring.add_socket(far.into()).expect("a place");
    ring.receive(slot).expect("receiving");
    near.write_all(pattern_at(0, BYTES)).expect("room for 64 KiB");
    let held = take_chunks(&mut ring, 8 << 10, 1);
    let enters = ring.counters().enters;
    assert!(settle(&mut ring).is_empty());
    assert!(ring.counters().enters - enters <= 6, "it does not try again before memory comes back");
    let mut position = 0;
    for (_, chunk) in held {
        check_pattern(position, ring.bytes(&chunk));
        position += u64::from(chunk.bytes());
        ring.release(chunk);
    }
    while position < BYTES as u64 {
        match wait(&mut ring) {
            Completion::Received { chunk, .. } => {
                check_pattern(position, ring.bytes(&chunk));
                position += u64::from(chunk.bytes());
                ring.release(chunk);
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn all_sockets_that_waited_for_memory_go_on() {
    let mut ring = make_ring(&tight_config(Level::Incremental));
    let mut pairs = Vec::new();
    for _ in 0..5 {
        let (mut near, far) = tcp_pair();
        let slot = ring.add_socket(far.into()).expect("a place");
        near.write_all(pattern_at(0, 10_000)).expect("room for 10 kB");
        pairs.push((near, slot, 0));
    }
    for (_, slot, _) in &pairs {
        ring.receive(*slot).expect("receiving");
    }
    let mut held = take_chunks(&mut ring, 8 << 10, 4);
    while pairs.iter().any(|(_, _, position)| *position < 10_000) {
        for (socket, chunk) in held.drain(..) {
            let pair = pairs.iter_mut().find(|(_, slot, _)| *slot == socket).expect("one of them");
            check_pattern(pair.2, ring.bytes(&chunk));
            pair.2 += u64::from(chunk.bytes());
            ring.release(chunk);
        }
        match wait(&mut ring) {
            Completion::Received { socket, chunk } => held.push((socket, chunk)),
            other => panic!("{other:?}"),
        }
        for (socket, chunk) in held.drain(..) {
            let pair = pairs.iter_mut().find(|(_, slot, _)| *slot == socket).expect("one of them");
            check_pattern(pair.2, ring.bytes(&chunk));
            pair.2 += u64::from(chunk.bytes());
            ring.release(chunk);
        }
    }
}

#[test]
fn a_socket_that_is_closed_while_it_waits_for_memory_is_forgotten() {
    let mut ring = make_ring(&tight_config(Level::Incremental));
    let (mut near, far) = tcp_pair();
    let slot = ring.add_socket(far.into()).expect("a place");
    ring.receive(slot).expect("receiving");
    near.write_all(&[1; 20_000]).expect("room for 20 kB");
    let held = take_chunks(&mut ring, 8 << 10, 1);
    ring.close_socket(slot);
    wait_closed(&mut ring, slot);
    let (mut near, far) = tcp_pair();
    let next = ring.add_socket(far.into()).expect("a place");
    assert_eq!(next.index(), slot.index());
    for (_, chunk) in held {
        ring.release(chunk);
    }
    near.write_all(&[2; 100]).expect("room");
    assert!(settle(&mut ring).is_empty(), "the new socket does not receive yet");
    ring.receive(next).expect("receiving");
    for (socket, chunk) in take_chunks(&mut ring, 100, 1) {
        assert_eq!(socket, next);
        assert!(ring.bytes(&chunk).iter().all(|byte| *byte == 2));
        ring.release(chunk);
    }
}

#[test]
fn a_chunk_stays_as_it_is_until_it_is_released() {
    for level in LEVELS {
        let mut ring = make_ring(&UringConfig { buffers: 4, buffer_bytes: 4 << 10, ..small_config(level) });
        let mut pairs = Vec::new();
        for _ in 0..2 {
            let (near, far) = tcp_pair();
            let slot = ring.add_socket(far.into()).expect("a place");
            ring.receive(slot).expect("receiving");
            pairs.push((near, slot));
        }
        pairs[0].0.write_all(pattern_at(0, 3000)).expect("room");
        let Completion::Received { socket, chunk: kept } = wait(&mut ring) else {
            panic!("bytes arrive");
        };
        assert_eq!((socket, kept.bytes()), (pairs[0].1, 3000));
        // As much through the other socket as goes round all buffers many times.
        for round in 0..50_u8 {
            pairs[1].0.write_all(&[round; 2000]).expect("room");
            let mut left = 2000;
            while left > 0 {
                let Completion::Received { chunk, .. } = wait(&mut ring) else {
                    panic!("bytes arrive");
                };
                assert!(ring.bytes(&chunk).iter().all(|byte| *byte == round));
                left -= chunk.bytes();
                ring.release(chunk);
            }
        }
        check_pattern(0, ring.bytes(&kept));
        ring.release(kept);
    }
}

#[test]
fn the_end_of_a_stream_comes_once_and_after_all_bytes() {
    for level in LEVELS {
        let mut ring = make_ring(&tight_config(level));
        // More rounds than there are buffers: the end of a stream must not use one up.
        for _ in 0..20 {
            let (mut near, far) = tcp_pair();
            let slot = ring.add_socket(far.into()).expect("a place");
            ring.receive(slot).expect("receiving");
            ring.receive(slot).expect("receiving already");
            near.write_all(pattern_at(0, 5000)).expect("room");
            near.shutdown(Shutdown::Write).expect("an open connection");
            let mut position = 0;
            loop {
                match wait(&mut ring) {
                    Completion::Received { chunk, .. } => {
                        check_pattern(position, ring.bytes(&chunk));
                        position += u64::from(chunk.bytes());
                        ring.release(chunk);
                    }
                    Completion::EndOfStream { socket } => {
                        assert_eq!(socket, slot);
                        break;
                    }
                    other => panic!("{other:?}"),
                }
            }
            assert_eq!(position, 5000);
            assert!(ring.receive(slot).is_err(), "nothing can come any more");
            ring.send(slot, plain_batch(b"still open")).expect("the other direction is open");
            assert!(matches!(wait(&mut ring), Completion::Sent { result: Ok(10), .. }));
            ring.close_socket(slot);
            wait_closed(&mut ring, slot);
        }
    }
}

#[test]
fn a_chunk_of_another_ring_reads_as_nothing() {
    let mut ring = make_ring(&small_config(Level::Incremental));
    let mut other = make_ring(&small_config(Level::Incremental));
    let (mut near, far) = tcp_pair();
    let slot = ring.add_socket(far.into()).expect("a place");
    ring.receive(slot).expect("receiving");
    near.write_all(b"bytes").expect("room");
    let Completion::Received { chunk, .. } = wait(&mut ring) else {
        panic!("bytes arrive");
    };
    assert_eq!(ring.bytes(&chunk), b"bytes");
    assert_eq!(other.bytes(&chunk), b"");
    other.release(chunk);
}

/// With room for 32 completions and nobody who takes them, the kernel ends lasting receives and keeps completions
/// back. Nothing of it may be lost or come out of order.
#[test]
fn a_full_completion_queue_loses_and_reorders_nothing() {
    const SOCKETS: usize = 40;
    const ROUNDS: u64 = 30;
    for level in LEVELS {
        let mut ring = make_ring(&UringConfig { entries: 8, ..small_config(level) });
        let mut pairs = Vec::new();
        for number in 0..SOCKETS {
            let (near, far) = tcp_pair();
            let slot = ring.add_socket(far.into()).expect("a place");
            ring.receive(slot).expect("receiving");
            pairs.push((near, slot, number as u64 * 777));
        }
        for round in 0..ROUNDS {
            for (number, (near, _, _)) in pairs.iter_mut().enumerate() {
                near.write_all(pattern_at(number as u64 * 777 + round * 100, 100)).expect("room");
            }
            // Lets the kernel work, and takes nothing.
            ring.park(Some(Duration::ZERO)).expect("a working ring");
        }
        let mut left = SOCKETS as u64 * ROUNDS * 100;
        while left > 0 {
            match wait(&mut ring) {
                Completion::Received { socket, chunk } => {
                    let pair = pairs.iter_mut().find(|(_, slot, _)| *slot == socket).expect("one of them");
                    check_pattern(pair.2, ring.bytes(&chunk));
                    pair.2 += u64::from(chunk.bytes());
                    left -= u64::from(chunk.bytes());
                    ring.release(chunk);
                }
                other => panic!("{other:?}"),
            }
        }
    }
}
