//! Zero-copy sends from registered regions through the kernel of this machine: what arrives, what is copied, and when a
//! registration ends.

use std::io::Read;
use std::os::fd::AsRawFd;

use socket2::SockRef;

use super::zero_copy::rest;
use super::*;
use crate::io::RegisteredCounters;
use crate::io::probe::Patience;
use crate::memory::mebibytes;
use crate::observe::tests::thread::{alone, keep_capabilities, own_network};

const SEGMENT_BYTES: u32 = 4 << 10;
/// So few that two batches share a packet, of which the kernel says wrongly that the second was copied.
const SLICES: u32 = 4;
const SEGMENTS: u32 = 16;
const BATCH_BYTES: u32 = SLICES * (32 + SEGMENT_BYTES);

/// Batches after which a region has long been registered: each waits a little for it.
const ATTEMPTS: u32 = 3000;

/// A ring that registers regions. None, with the reason printed, where the kernel cannot.
fn registering_ring() -> Option<Uring> {
    if let Err(lost) = crate::io::probe::try_level(Level::Full, &Patience::default()) {
        println!("not run here: {lost}");
        return None;
    }
    Some(make_ring(&UringConfig { entries: 64, sockets: 128, buffers: 2, ..small_config(Level::Full) }))
}

fn registered(ring: &Uring) -> RegisteredCounters {
    ring.counters().registered
}

fn client() -> ClientRegion {
    let client = ClientRegion::create(SEGMENTS, SEGMENT_BYTES);
    for segment in 0..client.region.segments() {
        client.write(segment, 0, pattern_at(u64::from(segment) * 7919, SEGMENT_BYTES as usize));
    }
    client
}

/// The batch of this number: headers that name it, and slices that go round in the region.
fn batch(client: &ClientRegion, number: u32) -> SendBatch {
    let mut parts = Vec::new();
    for slice in 0..SLICES {
        parts.push(SendPart::Header { start: slice * 32, bytes: 32 });
        let (region, segment) = (Arc::clone(&client.region), (number + slice) % SEGMENTS);
        parts.push(SendPart::Region { region, segment, offset: 0, bytes: SEGMENT_BYTES });
    }
    SendBatch { headers: vec![number as u8; 32 * SLICES as usize], parts, bytes: BATCH_BYTES }
}

/// What became of batches.
#[derive(Default)]
struct Seen {
    taken: u64,
    held: u32,
    released: u32,
    copied: u32,
}

impl Seen {
    /// Takes what is there. Returns whether a send ended.
    fn take(&mut self, ring: &mut Uring) -> bool {
        let mut has_ended = false;
        while let Some(completion) = ring.next() {
            match completion {
                Completion::SentHeld { bytes, .. } => {
                    self.taken += u64::from(bytes);
                    self.held += 1;
                    has_ended = true;
                }
                Completion::Sent { result, .. } => {
                    self.taken += u64::from(result.unwrap_or(0));
                    has_ended = true;
                }
                Completion::Released { copied, .. } => {
                    self.released += 1;
                    self.copied += u32::from(copied == Some(true));
                }
                Completion::Received { chunk, .. } => ring.release(chunk),
                _ => {}
            }
        }
        has_ended
    }

    /// Sends the batch of this number, in as many pieces as it takes.
    fn send(&mut self, ring: &mut Uring, slot: SocketSlot, client: &ClientRegion, number: u32) {
        let end = self.taken + u64::from(BATCH_BYTES);
        let started = Instant::now();
        while self.taken < end {
            let taken = BATCH_BYTES - u32::try_from(end - self.taken).expect("at most a batch");
            ring.send_zero_copy(slot, rest(batch(client, number), taken)).expect("a send");
            while !self.take(ring) {
                assert!(started.elapsed() < STUCK, "a send does not end");
                ring.park(Some(Duration::from_millis(20))).expect("a working ring");
            }
        }
    }

    /// Waits until nothing is held.
    fn wait_released(&mut self, ring: &mut Uring) {
        let started = Instant::now();
        while self.released < self.held {
            assert!(started.elapsed() < STUCK, "{} of {} batches were let go of", self.released, self.held);
            ring.park(Some(Duration::from_millis(20))).expect("a working ring");
            self.take(ring);
        }
    }
}

/// Sends until some have named the region, or as long as one can wait for that. Returns how many batches that were.
fn send_until_named(ring: &mut Uring, slot: SocketSlot, client: &ClientRegion, seen: &mut Seen) -> u32 {
    let before = registered(ring);
    for number in 0..ATTEMPTS {
        let now = registered(ring);
        if now.sends >= before.sends + 3 || now.refused > before.refused {
            return number;
        }
        if number > 32 {
            std::thread::sleep(Duration::from_millis(1));
        }
        seen.send(ring, slot, client, number);
    }
    panic!("no send named the region: {:?}", registered(ring));
}

#[test]
fn what_is_sent_from_registered_memory_arrives_as_it_was_and_the_registration_ends_with_the_region() {
    let Some(mut ring) = registering_ring() else { return };
    let (near, mut far) = tcp_pair();
    let reader = std::thread::spawn(move || {
        let (mut bytes, mut count) = (vec![0; BATCH_BYTES as usize], 0_u32);
        while far.read_exact(&mut bytes).is_ok() {
            for (slice, frame) in (0..).zip(bytes.chunks(32 + SEGMENT_BYTES as usize)) {
                assert!(frame[..32].iter().all(|byte| *byte == count as u8), "the header of batch {count}");
                let segment = (count + slice) % SEGMENTS;
                check_pattern(u64::from(segment) * 7919, &frame[32..]);
            }
            count += 1;
        }
        count
    });
    let slot = ring.add_socket(near.into()).expect("a place");
    let (client, mut seen) = (client(), Seen::default());
    let mut count = send_until_named(&mut ring, slot, &client, &mut seen);
    for _ in 0..500 {
        seen.send(&mut ring, slot, &client, count);
        count += 1;
    }
    let found = registered(&ring);
    assert!(found.sends > 20, "{found:?}");
    assert_eq!((found.regions, found.bytes, found.refused), (1, client.region.bytes(), 0));
    ring.forget_region(&client.region);
    ring.close_socket(slot);
    seen.wait_released(&mut ring);
    assert_eq!(reader.join().expect("what arrives is what was sent"), count);
    assert_eq!(Arc::strong_count(&client.region), 1);
    assert_eq!(registered(&ring).regions, 0);
}

#[test]
fn a_region_that_falls_silent_after_it_asked_is_registered_while_its_ring_sleeps() {
    let Some(mut ring) = registering_ring() else { return };
    let (near, far) = tcp_pair();
    let reader = std::thread::spawn(move || std::io::copy(&mut { far }, &mut std::io::sink()));
    let slot = ring.add_socket(near.into()).expect("a place");
    let (client, mut seen) = (client(), Seen::default());
    for number in 0..32 {
        seen.send(&mut ring, slot, &client, number);
    }
    seen.wait_released(&mut ring);
    let started = Instant::now();
    while registered(&ring).regions == 0 {
        assert!(started.elapsed() < STUCK, "{:?}", registered(&ring));
        // Nothing comes any more that would end this.
        ring.park(None).expect("a working ring");
        seen.take(&mut ring);
    }
    let found = registered(&ring);
    assert_eq!((found.bytes, found.sends, found.refused), (client.region.bytes(), 0, 0));
    drop(ring);
    assert_eq!(Arc::strong_count(&client.region), 1);
    let _ = reader.join();
}

#[test]
fn out_of_an_interface_that_swallows_everything_registered_sends_are_not_copied() {
    if let Err(why) = alone(|| -> Result<(), String> {
        own_network(&[])?;
        let Some(mut ring) = registering_ring() else { return Ok(()) };
        let slot = swallowed(&mut ring, 1)?[0];
        let (client, mut seen) = (client(), Seen::default());
        send_until_named(&mut ring, slot, &client, &mut seen);
        assert_eq!(seen.released, 0, "nothing is let go of that may have to go again");
        ring.forget_region(&client.region);
        ring.close_socket(slot);
        seen.wait_released(&mut ring);
        assert_eq!(seen.copied, 0, "the kernel read the memory where it lay");
        assert_eq!((Arc::strong_count(&client.region), registered(&ring).regions), (1, 0));
        Ok(())
    }) {
        println!("not run here: an interface that swallows everything ({why})");
    }
}

/// Sockets whose sends go nowhere, and whose connections end at once when they are closed.
fn swallowed(ring: &mut Uring, count: usize) -> Result<Vec<SocketSlot>, String> {
    let mut slots = Vec::new();
    for _ in 0..count {
        let (near, far) = tcp_pair();
        let socket = SockRef::from(&near);
        socket.set_linger(Some(Duration::ZERO)).map_err(|error| error.to_string())?;
        set_send_buffer(near.as_raw_fd(), 32 << 20);
        slots.push(ring.add_socket(near.into()).map_err(|error| error.to_string())?);
        // It stays open, with nothing to say: its end would be swallowed too.
        std::mem::forget(far);
    }
    let tc = ["qdisc", "add", "dev", "lo", "root", "blackhole"];
    let output = std::process::Command::new("tc").args(tc).output().map_err(|error| error.to_string())?;
    let problem = || String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() { Ok(slots) } else { Err(problem()) }
}

/// Sets it whatever the bound for everybody is, which takes CAP_NET_ADMIN.
fn set_send_buffer(socket: libc::c_int, bytes: libc::c_int) {
    let length = size_of_val(&bytes) as libc::socklen_t;
    let value = (&raw const bytes).cast();
    // SAFETY: the kernel reads a number.
    let outcome = unsafe { libc::setsockopt(socket, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, value, length) };
    assert_eq!(outcome, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn a_hundred_regions_that_go_with_sends_in_flight_are_kept_until_the_last_notice_and_not_longer() {
    if let Err(why) = alone(|| -> Result<(), String> {
        own_network(&[])?;
        let Some(mut ring) = registering_ring() else { return Ok(()) };
        for (round, slot) in swallowed(&mut ring, 100)?.into_iter().enumerate() {
            let (client, mut seen) = (client(), Seen::default());
            send_until_named(&mut ring, slot, &client, &mut seen);
            let weak = Arc::downgrade(&client.region);
            ring.forget_region(&client.region);
            // Its client and its shard are gone: what is in flight keeps it.
            drop(client);
            assert!(weak.strong_count() > 1 && registered(&ring).regions == 1, "round {round}");
            ring.close_socket(slot);
            seen.wait_released(&mut ring);
            assert_eq!((weak.strong_count(), registered(&ring).regions), (0, 0), "round {round}");
            assert_eq!(seen.copied, 0, "round {round}");
        }
        assert_eq!(registered(&ring).refused, 0);
        Ok(())
    }) {
        println!("not run here: an interface that swallows everything ({why})");
    }
}

#[test]
fn registrations_that_are_shared_in_any_order_are_all_kept() {
    let Some(mut ring) = registering_ring() else { return };
    let (near, far) = tcp_pair();
    let slot = ring.add_socket(near.into()).expect("a place");
    let reader = std::thread::spawn(move || std::io::copy(&mut { far }, &mut std::io::sink()));
    let (clients, mut seen) = ([client(), client(), client()], Seen::default());
    // They get their numbers in this order, and their registrations in the other one.
    for client in &clients {
        seen.send(&mut ring, slot, client, 0);
    }
    for client in clients.iter().rev().chain(&clients) {
        send_until_named(&mut ring, slot, client, &mut seen);
    }
    let found = registered(&ring);
    assert_eq!((found.regions, found.refused), (3, 0), "{found:?}");
    ring.close_socket(slot);
    seen.wait_released(&mut ring);
    drop(ring);
    let _ = reader.join();
}

#[test]
fn a_ring_that_is_dropped_with_registered_sends_in_flight_keeps_nothing() {
    let Some(mut ring) = registering_ring() else { return };
    let (near, far) = tcp_pair();
    // Dropped with what is queued, its reader sees an end at once, however little of that it has read.
    SockRef::from(&near).set_linger(Some(Duration::ZERO)).expect("a socket");
    let slot = ring.add_socket(near.into()).expect("a place");
    let reader = std::thread::spawn(move || std::io::copy(&mut { far }, &mut std::io::sink()));
    let client = client();
    send_until_named(&mut ring, slot, &client, &mut Seen::default());
    ring.send_zero_copy(slot, batch(&client, 0)).expect("a send");
    ring.park(Some(Duration::ZERO)).expect("a working ring");
    drop(ring);
    assert_eq!(Arc::strong_count(&client.region), 1);
    let _ = reader.join();
}

#[test]
fn without_memory_that_may_be_locked_regions_stay_unregistered_and_sends_go_on() {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    let Some(limit) = limit.filter(|limit| *limit < 1 << 30) else {
        return println!("not run here: a bound on locked memory (it is {limit:?})");
    };
    alone(move || {
        // Rings that a thread without CAP_IPC_LOCK makes are charged, and so are those of threads that it makes.
        keep_capabilities(rustix::thread::CapabilitySet::empty());
        let config = UringConfig { entries: 8, sockets: 2, buffers: 2, ..small_config(Level::Full) };
        let Ok(setup) = UringSetup::create(&config) else {
            return println!("not run here: a registering ring without CAP_IPC_LOCK");
        };
        let mut ring = setup.enable().expect("an enabled ring");
        let (near, far) = tcp_pair();
        let reader = std::thread::spawn(move || std::io::copy(&mut { far }, &mut std::io::sink()));
        let slot = ring.add_socket(near.into()).expect("a place");
        let segments = u32::try_from(limit.div_ceil(u64::from(SEGMENT_BYTES))).expect("a limit below 1 GiB");
        let (client, mut seen) = (ClientRegion::create(segments + 16, SEGMENT_BYTES), Seen::default());
        let sent = send_until_named(&mut ring, slot, &client, &mut seen);
        let found = registered(&ring);
        let size = mebibytes(client.region.bytes());
        assert_eq!((found.regions, found.sends, found.errno), (0, 0, libc::ENOMEM), "{size} MiB: {found:?}");
        for number in sent..sent + 50 {
            seen.send(&mut ring, slot, &client, number);
        }
        assert_eq!(seen.taken, u64::from(sent + 50) * u64::from(BATCH_BYTES));
        ring.forget_region(&client.region);
        ring.close_socket(slot);
        seen.wait_released(&mut ring);
        assert_eq!(Arc::strong_count(&client.region), 1);
        let _ = reader.join();
    });
}
