//! Closing sockets, and the end of a ring.

use std::os::fd::{AsFd, AsRawFd};

use rustix::event::{EventfdFlags, eventfd};

use super::*;
use crate::io::{Errno, WatchId};

/// Inode of a socket, by which `/proc/self/fd` shows it however often it was duplicated.
fn inode(stream: &TcpStream) -> u64 {
    rustix::fs::fstat(stream).expect("an open socket").st_ino
}

/// How many descriptors of this process refer to one of these sockets.
fn open_descriptors(inodes: &[u64]) -> usize {
    let names: Vec<String> = inodes.iter().map(|inode| format!("socket:[{inode}]")).collect();
    std::fs::read_dir("/proc/self/fd")
        .expect("/proc")
        .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
        .filter(|target| names.iter().any(|name| target.as_os_str() == name.as_str()))
        .count()
}

/// Sends until nothing more fits, so that the last send most likely stays in flight.
fn fill_up(ring: &mut Uring, slot: SocketSlot) {
    let bytes = vec![7; 256 << 10];
    loop {
        ring.send(slot, plain_batch(&bytes)).expect("a send");
        let completions = settle(ring);
        if completions.is_empty() {
            return;
        }
        let sent = |completion: &Completion| matches!(completion, Completion::Sent { result: Ok(_), .. });
        assert!(completions.iter().all(sent), "{completions:?}");
    }
}

#[test]
fn two_hundred_busy_sockets_close_without_a_descriptor_left() {
    for level in LEVELS {
        // Two places only: one that leaked would be missed at once.
        let mut ring = make_ring(&UringConfig { sockets: 2, ..small_config(level) });
        let mut inodes = Vec::new();
        let client = ClientRegion::create(1, 1 << 20);
        for round in 0..200 {
            let (near, far) = tcp_pair();
            inodes.push(inode(&near));
            let slot = ring.add_socket(near.into()).expect("a place");
            ring.receive(slot).expect("receiving");
            // As much as no socket takes at once, so that it is in flight when the socket closes.
            let part = SendPart::Region {
                region: Arc::clone(&client.region),
                segment: 0,
                offset: 0,
                bytes: 1 << 20,
            };
            let batch = SendBatch { headers: Vec::new(), parts: vec![part; 64], bytes: 64 << 20 };
            ring.send(slot, batch).expect("a send");
            if round % 2 == 0 {
                // Half of them are closed before the kernel has seen any of it.
                ring.park(Some(Duration::ZERO)).expect("a working ring");
            }
            ring.close_socket(slot);
            ring.close_socket(slot);
            assert_eq!(wait_closed(&mut ring, slot), 1, "the batch comes back");
            drop(far);
        }
        assert_eq!(open_descriptors(&inodes), 0);
        assert_eq!(Arc::strong_count(&client.region), 1);
    }
}

#[test]
fn a_send_that_waits_for_room_comes_back_before_the_socket_is_closed() {
    for (level, receives) in [(Level::OneShot, true), (Level::Incremental, true), (Level::Incremental, false)]
    {
        let mut ring = make_ring(&small_config(level));
        let (near, _far) = tcp_pair();
        let slot = ring.add_socket(near.into()).expect("a place");
        if receives {
            ring.receive(slot).expect("receiving");
        }
        fill_up(&mut ring, slot);
        ring.close_socket(slot);
        match wait(&mut ring) {
            Completion::Sent { socket, .. } => assert_eq!(socket, slot),
            other => panic!("{other:?}"),
        }
        assert!(matches!(wait(&mut ring), Completion::Closed { socket } if socket == slot));
        assert!(settle(&mut ring).is_empty(), "closed is the last word");
    }
}

#[test]
fn a_receive_that_shutting_down_does_not_end_is_cancelled() {
    for level in LEVELS {
        let mut ring = make_ring(&small_config(level));
        // Not connected, so it cannot be shut down.
        let socket = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a socket");
        let slot = ring.add_socket(socket.into()).expect("a place");
        ring.receive(slot).expect("receiving");
        ring.park(Some(Duration::ZERO)).expect("a working ring");
        ring.close_socket(slot);
        assert_eq!(wait_closed(&mut ring, slot), 0);
    }
}

#[test]
fn the_peer_sees_the_end_although_someone_else_has_the_socket_open() {
    let mut ring = make_ring(&small_config(Level::Incremental));
    let (near, mut far) = tcp_pair();
    let duplicate = near.try_clone().expect("a duplicate");
    let slot = ring.add_socket(near.into()).expect("a place");
    ring.close_socket(slot);
    far.set_read_timeout(Some(STUCK)).expect("a socket");
    assert_eq!(std::io::Read::read(&mut far, &mut [0; 1]).expect("the end of the stream"), 0);
    drop(duplicate);
}

#[test]
fn a_socket_with_nothing_in_flight_closes_without_entering_the_kernel() {
    let mut ring = make_ring(&small_config(Level::Incremental));
    let (near, _far) = tcp_pair();
    let slot = ring.add_socket(near.into()).expect("a place");
    ring.close_socket(slot);
    // Would wait for ever if it did not see that a completion is there.
    ring.park(None).expect("a working ring");
    assert!(matches!(ring.next(), Some(Completion::Closed { socket }) if socket == slot));
}

#[test]
fn a_slot_of_a_closed_socket_names_nobody() {
    let mut ring = make_ring(&UringConfig { sockets: 1, ..small_config(Level::Incremental) });
    let (near, _far) = tcp_pair();
    let old = ring.add_socket(near.into()).expect("a place");
    let (near, _far) = tcp_pair();
    let error = ring.add_socket(near.into()).expect_err("a full table");
    assert_eq!((error.errno, error.disposition), (Errno(libc::EMFILE), crate::io::Disposition::Socket));
    ring.close_socket(old);
    wait_closed(&mut ring, old);
    let (near, mut far) = tcp_pair();
    let new = ring.add_socket(near.into()).expect("the place that became free");
    assert_eq!(old.index(), new.index());
    assert_ne!(old, new);
    assert!(ring.send(old, plain_batch(b"x")).is_err());
    assert!(ring.receive(old).is_err());
    ring.close_socket(old);
    ring.send(new, plain_batch(b"alive")).expect("a send");
    assert!(matches!(wait(&mut ring), Completion::Sent { result: Ok(5), .. }));
    let mut bytes = [0; 5];
    std::io::Read::read_exact(&mut far, &mut bytes).expect("five bytes");
    assert_eq!(&bytes, b"alive");
}

#[test]
fn bytes_that_arrive_while_closing_are_dropped_and_their_memory_is_used_again() {
    for level in LEVELS {
        let mut ring = make_ring(&UringConfig { buffers: 2, buffer_bytes: 4 << 10, ..small_config(level) });
        for _ in 0..50 {
            let (near, mut far) = tcp_pair();
            let slot = ring.add_socket(near.into()).expect("a place");
            ring.receive(slot).expect("receiving");
            ring.park(Some(Duration::ZERO)).expect("a working ring");
            std::io::Write::write_all(&mut far, &[1; 6000]).expect("an open connection");
            ring.park(Some(Duration::ZERO)).expect("a working ring");
            ring.close_socket(slot);
            let completion = wait(&mut ring);
            assert!(matches!(completion, Completion::Closed { .. }), "{completion:?}");
        }
        let (near, mut far) = tcp_pair();
        let slot = ring.add_socket(near.into()).expect("a place");
        ring.receive(slot).expect("receiving");
        std::io::Write::write_all(&mut far, &[2; 100]).expect("an open connection");
        match wait(&mut ring) {
            Completion::Received { chunk, .. } => {
                assert!(ring.bytes(&chunk).iter().all(|byte| *byte == 2));
                ring.release(chunk);
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_ring_that_is_dropped_lets_go_of_everything() {
    for level in LEVELS {
        let client = ClientRegion::create(1, 1 << 20);
        let (near, far) = tcp_pair();
        let inodes = [inode(&near)];
        let event = eventfd(0, EventfdFlags::empty()).expect("an event counter");
        let mut ring = make_ring(&small_config(level));
        let slot = ring.add_socket(near.into()).expect("a place");
        ring.receive(slot).expect("receiving");
        ring.watch(event.as_fd(), WatchId(1)).expect("a watch");
        let part =
            SendPart::Region { region: Arc::clone(&client.region), segment: 0, offset: 0, bytes: 1 << 20 };
        let batch = SendBatch { headers: Vec::new(), parts: vec![part; 64], bytes: 64 << 20 };
        ring.send(slot, batch).expect("a send");
        ring.park(Some(Duration::ZERO)).expect("a working ring");
        assert_eq!(open_descriptors(&inodes), 1);
        drop(ring);
        assert_eq!(open_descriptors(&inodes), 0);
        assert_eq!(Arc::strong_count(&client.region), 1);
        assert!(far.as_raw_fd() >= 0);
    }
}

#[test]
fn a_ring_that_nobody_enabled_can_be_dropped() {
    for level in LEVELS {
        let setup = UringSetup::create(&small_config(level)).expect("a ring");
        std::thread::spawn(move || drop(setup)).join().expect("no panic");
    }
}
