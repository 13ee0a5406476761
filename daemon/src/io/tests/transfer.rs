//! Streams that must arrive byte for byte.

use std::io::Write;
use std::net::TcpStream;

use socket2::SockRef;

use super::*;
use crate::io::Chunk;

/// Fills a batch with the stream from `position` on: headers and slices of random sizes.
fn fill(batch: &mut SendBatch, client: &ClientRegion, random: &mut Random, position: u64, limit: u64) {
    batch.headers.clear();
    batch.parts.clear();
    batch.bytes = 0;
    let mut limit = limit;
    for segment in 0..=random.below(15) as u32 {
        for slice in [false, true] {
            let offset = if slice { random.below(u64::from(client.segment_bytes) - 1) } else { 0 };
            let most = if slice { u64::from(client.segment_bytes) - offset } else { 64 };
            let wanted = (1 + random.below(most)).min(limit);
            let bytes = pattern_at(position + u64::from(batch.bytes), wanted as usize);
            if bytes.is_empty() {
                return;
            }
            let length = bytes.len() as u32;
            batch.parts.push(if slice {
                client.write(segment, offset as u32, bytes);
                let region = Arc::clone(&client.region);
                SendPart::Region { region, segment, offset: offset as u32, bytes: length }
            } else {
                let start = batch.headers.len() as u32;
                batch.headers.extend_from_slice(bytes);
                SendPart::Header { start, bytes: length }
            });
            batch.bytes += length;
            limit -= u64::from(length);
        }
    }
}

/// Sends `total` bytes from one socket of the ring to another. Returns how many sends were short.
fn transfer(ring: &mut Uring, near: TcpStream, far: TcpStream, total: u64, seed: u64) -> u64 {
    let client = ClientRegion::create(16, 32 << 10);
    let mut random = Random(seed);
    let near = ring.add_socket(near.into()).expect("a place");
    let far = ring.add_socket(far.into()).expect("a place");
    ring.receive(far).expect("receiving");
    let (mut sent, mut received, mut short) = (0, 0, 0);
    let mut batch = Some(SendBatch::default());
    let mut held: Vec<Chunk> = Vec::new();
    while received < total {
        if sent < total
            && let Some(mut next) = batch.take()
        {
            fill(&mut next, &client, &mut random, sent, total - sent);
            ring.send(near, next).expect("a send");
        }
        let completion = ring.next();
        // Now and then chunks are kept, and released in any order; all are when nothing comes because of them.
        if completion.is_none() || random.below(4) != 0 {
            while !held.is_empty() {
                ring.release(held.swap_remove(random.below(held.len() as u64) as usize));
            }
        }
        match completion.unwrap_or_else(|| wait(ring)) {
            Completion::Sent { result, batch: back, .. } => {
                let bytes = result.expect("an open connection");
                short += u64::from(bytes < back.bytes);
                sent += u64::from(bytes);
                batch = Some(back);
            }
            Completion::Received { socket, chunk } => {
                assert_eq!(socket, far);
                check_pattern(received, ring.bytes(&chunk));
                received += u64::from(chunk.bytes());
                held.push(chunk);
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((sent, received), (total, total));
    for chunk in held {
        ring.release(chunk);
    }
    ring.close_socket(near);
    ring.close_socket(far);
    wait_closed(ring, near);
    // Whichever of the two was last, none is left.
    settle(ring);
    drop(batch);
    assert_eq!(Arc::strong_count(&client.region), 1, "the ring let go of the region");
    short
}

#[test]
fn one_hundred_megabytes_arrive_byte_for_byte() {
    for level in LEVELS {
        let mut ring = make_ring(&UringConfig::new(level));
        let (near, far) = tcp_pair();
        transfer(&mut ring, near, far, 100_000_000, 11);
    }
}

#[test]
fn short_writes_lose_and_repeat_nothing() {
    for level in LEVELS {
        let mut ring = make_ring(&small_config(level));
        let (near, far) = tcp_pair();
        near.set_nodelay(true).expect("a TCP socket");
        SockRef::from(&near).set_send_buffer_size(32 << 10).expect("a small send buffer");
        let short = transfer(&mut ring, near, far, 4_000_000, 5);
        assert!(short > 0, "no write was short");
    }
}

/// Many sockets share few small buffers, and chunks are released late and in any order.
#[test]
fn many_sockets_share_buffers_without_mixing_bytes() {
    const SOCKETS: usize = 16;
    const BYTES: u64 = 1_000_000;
    for level in LEVELS {
        let mut ring = make_ring(&UringConfig { buffers: 4, buffer_bytes: 16 << 10, ..small_config(level) });
        let mut writers = Vec::new();
        let mut slots = Vec::new();
        for number in 0..SOCKETS as u64 {
            let (near, far) = tcp_pair();
            let slot = ring.add_socket(far.into()).expect("a place");
            ring.receive(slot).expect("receiving");
            slots.push(slot);
            writers.push(std::thread::spawn(move || write_pattern(near, number, BYTES)));
        }
        let mut received = [0; SOCKETS];
        let mut held: Vec<(u64, Chunk)> = Vec::new();
        let mut random = Random(3);
        let mut ended = 0;
        while ended < SOCKETS {
            let completion = ring.next();
            // Some are looked at long after others arrived; all are when nothing comes because all buffers are held.
            if completion.is_none() || random.below(8) == 0 {
                while !held.is_empty() {
                    let (position, chunk) = held.swap_remove(random.below(held.len() as u64) as usize);
                    check_pattern(position, ring.bytes(&chunk));
                    ring.release(chunk);
                }
            }
            match completion.unwrap_or_else(|| wait(&mut ring)) {
                Completion::Received { socket, chunk } => {
                    let number = slots.iter().position(|slot| *slot == socket).expect("one of the sockets");
                    let position = number as u64 * 1000 + received[number];
                    received[number] += u64::from(chunk.bytes());
                    held.push((position, chunk));
                }
                Completion::EndOfStream { .. } => ended += 1,
                other => panic!("{other:?}"),
            }
        }
        for (position, chunk) in held {
            check_pattern(position, ring.bytes(&chunk));
            ring.release(chunk);
        }
        assert_eq!(received, [BYTES; SOCKETS]);
        for writer in writers {
            writer.join().expect("a writer that wrote everything");
        }
    }
}

/// Writes the pattern from a position that is this writer's own, in pieces of random sizes.
fn write_pattern(mut stream: TcpStream, number: u64, total: u64) {
    let mut random = Random(number + 100);
    let mut written = 0;
    while written < total {
        let wanted = (1 + random.below(9000)).min(total - written);
        let bytes = pattern_at(number * 1000 + written, wanted as usize);
        stream.write_all(bytes).expect("an open connection");
        written += bytes.len() as u64;
    }
}
