//! Zero-copy sends through the kernel of this machine: on loopback and between virtual interfaces, where it copies after
//! all; out of an interface that swallows everything, where it does not; and through sockets that cannot.

use std::io::Read;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::mpsc;

use socket2::SockRef;

use super::*;
use crate::io::zero_copy::{ZeroCopySupport, support};
use crate::io::{Errno, HoldId};
use crate::link::zero_copy::{Outcome, ZeroCopy, ZeroCopyMode, ZeroCopySetting};
use crate::observe::tests::thread::{alone, keep_capabilities, own_network};

const SEGMENT_BYTES: u32 = 32 << 10;

/// False, with the reason printed, where the kernel does not tell whether it copies.
fn is_measured() -> bool {
    let found = support();
    let is_measured = found == ZeroCopySupport::Measured;
    if !is_measured {
        println!("not run here: zero-copy sends ({found:?})");
    }
    is_measured
}

/// A batch as a link sends it: two headers, each with a segment behind it.
fn batch(client: &ClientRegion, first: u32) -> SendBatch {
    let segments = client.region.segments();
    let mut parts = Vec::new();
    for number in 0..2 {
        parts.push(SendPart::Header { start: number * 32, bytes: 32 });
        let (region, segment) = (Arc::clone(&client.region), (first + number) % segments);
        parts.push(SendPart::Region { region, segment, offset: 0, bytes: SEGMENT_BYTES });
    }
    SendBatch { headers: vec![first as u8; 64], parts, bytes: 64 + 2 * SEGMENT_BYTES }
}

fn client(segments: u32) -> ClientRegion {
    let client = ClientRegion::create(segments, SEGMENT_BYTES);
    for segment in 0..client.region.segments() {
        client.write(segment, 0, pattern_at(u64::from(segment) * 7919, SEGMENT_BYTES as usize));
    }
    client
}

/// Waits until so many batches were let go of; what else comes is dropped. Returns whether each was copied.
fn wait_released(ring: &mut Uring, count: usize) -> Vec<bool> {
    let mut released = Vec::new();
    while released.len() < count {
        match wait(ring) {
            Completion::Released { copied, .. } => released.push(copied.expect("a kernel that tells")),
            Completion::Received { chunk, .. } => ring.release(chunk),
            _ => {}
        }
    }
    released
}

/// What is left of a batch of which the socket took so many bytes.
pub(super) fn rest(batch: SendBatch, taken: u32) -> SendBatch {
    let mut skip = taken;
    let parts = batch.parts.iter().filter_map(|part| {
        let skipped = skip.min(part.bytes());
        skip -= skipped;
        let left = part.bytes() - skipped;
        let part = match part.clone() {
            SendPart::Header { start, .. } => SendPart::Header { start: start + skipped, bytes: left },
            SendPart::Region { region, segment, offset, .. } => {
                SendPart::Region { region, segment, offset: offset + skipped, bytes: left }
            }
        };
        (left > 0).then_some(part)
    });
    let parts = parts.collect();
    SendBatch { headers: batch.headers, parts, bytes: batch.bytes - taken }
}

const BATCH_BYTES: u32 = 2 * (32 + SEGMENT_BYTES);

/// Reads batches to the end, compares them with what was sent, and returns how many there were.
fn read_all(mut far: TcpStream) -> u64 {
    let (mut bytes, mut count) = (vec![0; BATCH_BYTES as usize], 0_u64);
    while far.read_exact(&mut bytes).is_ok() {
        let first = count * 2 % 8;
        for (number, frame) in bytes.chunks(32 + SEGMENT_BYTES as usize).enumerate() {
            assert!(frame[..32].iter().all(|byte| u64::from(*byte) == first), "the header of batch {count}");
            check_pattern((first + number as u64) * 7919, &frame[32..]);
        }
        count += 1;
    }
    count
}

/// Sends batches until the rules of a link say that the kernel copies. Returns how many zero-copy sends that took.
fn send_until_copying(near: TcpStream, far: TcpStream) -> u64 {
    let reader = std::thread::spawn(move || read_all(far));
    let mut ring = make_ring(&small_config(Level::Incremental));
    let slot = ring.add_socket(near.into()).expect("a place");
    let client = client(8);
    let setting = ZeroCopySetting::of(ZeroCopyMode::Auto);
    let now = weir_flow::ids::Time(0);
    let mut link = ZeroCopy::new(&setting, false, now);
    let (mut tickets, mut batches, mut sends) = (std::collections::BTreeMap::new(), 0_u64, 0_u64);
    while link.describe().0 == "zero_copy" {
        let mut taken = 0;
        while taken < BATCH_BYTES {
            let next = rest(batch(&client, (batches * 2 % 8) as u32), taken);
            // Whatever the size, so that short writes go this way as well.
            let ticket = link.poll(BATCH_BYTES, now);
            match ticket {
                Some(_) => ring.send_zero_copy(slot, next).expect("a send"),
                None => ring.send(slot, next).expect("a send"),
            }
            taken += loop {
                match wait(&mut ring) {
                    Completion::Sent { result, .. } => break result.expect("a send"),
                    Completion::SentHeld { bytes, hold, .. } => {
                        link.handle_held();
                        sends += 1;
                        tickets.insert(hold, ticket.expect("a zero-copy send"));
                        break bytes;
                    }
                    Completion::Released { hold, copied, .. } => {
                        link.handle_notice(tickets.remove(&hold).expect("a batch that is held"), copied, now);
                    }
                    other => panic!("{other:?}"),
                }
            };
        }
        batches += 1;
    }
    ring.close_socket(slot);
    assert_eq!(reader.join().expect("what arrives is what was sent"), batches);
    assert!(wait_released(&mut ring, tickets.len()).iter().all(|copied| *copied));
    assert_eq!(Arc::strong_count(&client.region), 1);
    sends
}

#[test]
fn on_loopback_everything_is_copied_and_the_link_goes_to_copying() {
    if !is_measured() {
        return;
    }
    let (near, far) = tcp_pair();
    let sends = send_until_copying(near, far);
    assert!((16..200).contains(&sends), "{sends} sends until all of the last sixteen were copied");
}

#[test]
fn between_virtual_interfaces_everything_is_copied() {
    if !is_measured() {
        return;
    }
    let outcome = alone(|| -> Result<u64, String> {
        own_network(&[])?;
        let (tell, told) = mpsc::channel::<Result<libc::pid_t, String>>();
        let (ready, wait_ready) = mpsc::channel::<()>();
        let far = std::thread::spawn(move || -> Result<TcpStream, String> {
            // A thread has the network of the one that made it, until it makes another.
            let outcome = own_network(&[]);
            // SAFETY: it takes and returns a number.
            let thread = unsafe { libc::gettid() };
            tell.send(outcome.map(|()| thread)).map_err(|error| error.to_string())?;
            wait_ready.recv().map_err(|error| error.to_string())?;
            run("ip address add 10.78.0.2/24 dev veth1")?;
            run("ip link set veth1 up")?;
            let listener =
                TcpListener::bind((Ipv4Addr::new(10, 78, 0, 2), 7000)).map_err(|e| e.to_string())?;
            listener.accept().map(|(stream, _)| stream).map_err(|error| error.to_string())
        });
        let thread = told.recv().map_err(|error| error.to_string())??;
        run(&format!("ip link add veth0 type veth peer name veth1 netns {thread}"))?;
        run("ip address add 10.78.0.1/24 dev veth0")?;
        run("ip link set veth0 up")?;
        ready.send(()).map_err(|error| error.to_string())?;
        let started = Instant::now();
        let near = loop {
            match TcpStream::connect((Ipv4Addr::new(10, 78, 0, 2), 7000)) {
                Ok(near) => break near,
                Err(error) if started.elapsed() > STUCK => return Err(error.to_string()),
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        };
        let far = far.join().map_err(|_| "a panic".to_owned())??;
        Ok(send_until_copying(near, far))
    });
    match outcome {
        Ok(sends) => assert!((16..200).contains(&sends), "{sends}"),
        Err(why) => println!("not run here: a pair of virtual interfaces ({why})"),
    }
}

/// Runs a command in the network of the calling thread.
fn run(command: &str) -> Result<(), String> {
    let mut words = command.split(' ');
    let output = Command::new(words.next().unwrap_or_default()).args(words).output();
    let output = output.map_err(|error| format!("{command}: {error}"))?;
    let problem = || format!("{command}: {}", String::from_utf8_lossy(&output.stderr).trim());
    if output.status.success() { Ok(()) } else { Err(problem()) }
}

#[test]
fn out_of_an_interface_that_swallows_everything_nothing_is_copied_and_all_is_held_until_the_connection_ends()
{
    if !is_measured() {
        return;
    }
    for is_reset in [true, false] {
        if let Err(why) = alone(move || send_into_nothing(is_reset)) {
            println!("not run here: an interface that swallows everything ({why})");
        }
    }
}

/// Closing resets the connection, so that the kernel gives up at once what nobody will acknowledge; or it does so after
/// some time, as it does for links.
fn send_into_nothing(is_reset: bool) -> Result<(), String> {
    own_network(&[])?;
    let (near, far) = tcp_pair();
    let socket = SockRef::from(&near);
    let sizes = socket.set_send_buffer_size(4 << 20);
    sizes.and_then(|()| socket.set_tcp_user_timeout(Some(Duration::from_millis(700)))).map_err(text)?;
    if is_reset {
        socket.set_linger(Some(Duration::ZERO)).map_err(text)?;
    }
    run("tc qdisc add dev lo root blackhole")?;
    let mut ring = make_ring(&small_config(Level::Incremental));
    let slot = ring.add_socket(near.into()).expect("a place");
    let client = client(8);
    let mut held = Vec::new();
    for number in 0..4 {
        ring.send_zero_copy(slot, batch(&client, number * 2)).expect("a send");
        match wait(&mut ring) {
            Completion::SentHeld { bytes, hold, .. } => {
                assert!(bytes > 0);
                held.push(hold);
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(held, [0, 1, 2, 3].map(HoldId), "the lowest numbers that are free");
    assert!(Arc::strong_count(&client.region) > 4, "nothing is let go of that may have to go again");
    ring.close_socket(slot);
    wait_closed(&mut ring, slot);
    assert_eq!(wait_released(&mut ring, 4), [false; 4], "the kernel read the memory where it lay");
    assert_eq!(Arc::strong_count(&client.region), 1);
    drop(far);
    Ok(())
}

fn text(error: std::io::Error) -> String {
    error.to_string()
}

#[test]
fn a_socket_that_knows_no_zero_copy_send_refuses_it_and_lives_on() {
    if !is_measured() {
        return;
    }
    let mut ring = make_ring(&small_config(Level::Incremental));
    let (near, mut far) = UnixStream::pair().expect("a socket pair");
    let slot = ring.add_socket(near.into()).expect("a place");
    let client = client(2);
    for _ in 0..10 {
        ring.send_zero_copy(slot, batch(&client, 0)).expect("a send");
        match wait(&mut ring) {
            Completion::Sent { result: Err(errno), batch, .. } => {
                assert_eq!(errno, Errno(libc::EOPNOTSUPP));
                assert_eq!(batch.bytes, 64 + 2 * SEGMENT_BYTES, "the batch is back");
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(Arc::strong_count(&client.region), 1, "it came after the notice");
    }
    let setting = ZeroCopySetting::of(ZeroCopyMode::Always);
    let mut link = ZeroCopy::new(&setting, false, weir_flow::ids::Time(0));
    let ticket = link.poll(64 << 10, weir_flow::ids::Time(0)).expect("without a copy");
    let outcome = link.handle_ended(ticket, Err(libc::EOPNOTSUPP), weir_flow::ids::Time(0));
    assert_eq!((outcome, link.describe().0), (Outcome::SendAgain, "off"));
    ring.send(slot, plain_batch(b"alive")).expect("a send");
    assert!(matches!(wait(&mut ring), Completion::Sent { result: Ok(5), .. }));
    let mut bytes = [0; 5];
    far.read_exact(&mut bytes).expect("five bytes");
    assert_eq!(&bytes, b"alive");
    ring.close_socket(slot);
    assert_eq!(wait_closed(&mut ring, slot), 0);
}

#[test]
fn a_hundred_links_closed_with_zero_copy_sends_in_flight_leave_nothing() {
    if !is_measured() {
        return;
    }
    let mut ring = make_ring(&UringConfig { sockets: 2, ..small_config(Level::Incremental) });
    let client = ClientRegion::create(1, 1 << 20);
    let mut released = 0;
    for round in 0..100 {
        let (near, far) = tcp_pair();
        let slot = ring.add_socket(near.into()).expect("a place");
        ring.receive(slot).expect("receiving");
        let part =
            || SendPart::Region { region: Arc::clone(&client.region), segment: 0, offset: 0, bytes: 1 << 20 };
        // More than a socket takes at once: the first is held, the second is in flight.
        for _ in 0..2 {
            let parts = (0..16).map(|_| part()).collect();
            let sent = ring.send_zero_copy(slot, SendBatch { headers: Vec::new(), parts, bytes: 16 << 20 });
            if round % 3 > 0 && sent.is_ok() {
                ring.park(Some(Duration::ZERO)).expect("a working ring");
                while let Some(completion) = ring.next() {
                    released += usize::from(matches!(completion, Completion::Released { .. }));
                }
            }
        }
        ring.close_socket(slot);
        loop {
            match wait(&mut ring) {
                Completion::Closed { .. } => break,
                Completion::Released { .. } => released += 1,
                _ => {}
            }
        }
        // Whatever it had is given up with the connection.
        drop(far);
    }
    let started = Instant::now();
    while Arc::strong_count(&client.region) > 1 && started.elapsed() < STUCK {
        ring.park(Some(Duration::from_millis(10))).expect("a working ring");
        while let Some(completion) = ring.next() {
            released += usize::from(matches!(completion, Completion::Released { .. }));
        }
    }
    assert_eq!(Arc::strong_count(&client.region), 1, "{released} batches were released");
}

#[test]
fn a_ring_that_is_dropped_lets_go_of_what_it_sends_without_a_copy() {
    if !is_measured() {
        return;
    }
    let client = client(8);
    let (near, far) = tcp_pair();
    let mut ring = make_ring(&small_config(Level::Incremental));
    let slot = ring.add_socket(near.into()).expect("a place");
    ring.send_zero_copy(slot, batch(&client, 0)).expect("a send");
    ring.park(Some(Duration::ZERO)).expect("a working ring");
    drop(far);
    drop(ring);
    assert_eq!(Arc::strong_count(&client.region), 1);
}

#[test]
fn without_memory_that_may_be_locked_a_zero_copy_send_is_refused_and_a_plain_one_is_not() {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    let Some(limit) = limit.filter(|limit| is_measured() && *limit < 1 << 30) else {
        println!("not run here: a bound on locked memory (it is {limit:?})");
        return;
    };
    alone(move || {
        // Rings that a thread without CAP_IPC_LOCK makes are charged for what is sent through them.
        keep_capabilities(rustix::thread::CapabilitySet::empty());
        let config = UringConfig { entries: 8, sockets: 2, buffers: 2, ..small_config(Level::Incremental) };
        let Ok(setup) = UringSetup::create(&config) else {
            return println!("not run here: a ring without CAP_IPC_LOCK");
        };
        let mut ring = setup.enable().expect("an enabled ring");
        let (near, far) = tcp_pair();
        let slot = ring.add_socket(near.into()).expect("a place");
        let client = ClientRegion::create(1, 1 << 20);
        let count = u32::try_from(limit / (1 << 20)).expect("a limit below 1 GiB") + 1;
        let part =
            SendPart::Region { region: Arc::clone(&client.region), segment: 0, offset: 0, bytes: 1 << 20 };
        let parts = vec![part; count as usize];
        let batch = SendBatch { headers: Vec::new(), parts, bytes: count << 20 };
        ring.send_zero_copy(slot, batch).expect("a send");
        let batch = match wait(&mut ring) {
            Completion::Sent { result: Err(errno), batch, .. } => {
                assert!(matches!(errno.0, libc::ENOMEM | libc::ENOBUFS), "{errno}");
                batch
            }
            other => panic!("{other:?}"),
        };
        ring.send(slot, batch).expect("a send");
        assert!(matches!(wait(&mut ring), Completion::Sent { result: Ok(1..), .. }), "it is copied");
        drop(far);
    });
}
