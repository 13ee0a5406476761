//! Tests against the kernel of this machine, and of the fake ring.

mod close;
mod fake;
mod park;
mod probe;
mod receive;
mod registered;
mod send;
mod transfer;
mod watch;
mod zero_copy;

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use memmap2::MmapRaw;

use super::probe::Level;
use super::uring::{Uring, UringConfig, UringSetup};
use super::{Completion, Ring, SendBatch, SendPart, SocketSlot};
use crate::memory::{HugepageMode, SendRegion};

/// Long enough that reaching it means that something is stuck.
const STUCK: Duration = Duration::from_secs(60);

/// The two ways of receiving.
const LEVELS: [Level; 2] = [Level::OneShot, Level::Incremental];

fn small_config(level: Level) -> UringConfig {
    UringConfig { hugepages: HugepageMode::Off, ..UringConfig::new(level) }
}

fn make_ring(config: &UringConfig) -> Uring {
    UringSetup::create(config).expect("a ring").enable().expect("an enabled ring")
}

fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a listener");
    let near = TcpStream::connect(listener.local_addr().expect("an address")).expect("a connection");
    let (far, _) = listener.accept().expect("a connection");
    (near, far)
}

/// The next completion; panics if none comes.
fn wait(ring: &mut impl Ring) -> Completion {
    let started = Instant::now();
    while started.elapsed() < STUCK {
        if let Some(completion) = ring.next() {
            return completion;
        }
        ring.park(Some(STUCK)).expect("a working ring");
    }
    panic!("no completion");
}

/// Completions until there are none for a while: nothing that is about to happen is missed by much.
fn settle(ring: &mut impl Ring) -> Vec<Completion> {
    let mut completions = Vec::new();
    for _ in 0..5 {
        ring.park(Some(Duration::from_millis(10))).expect("a working ring");
        while let Some(completion) = ring.next() {
            completions.push(completion);
        }
    }
    completions
}

/// Waits until this socket is closed and releases what comes in between; returns how many sends came back.
fn wait_closed(ring: &mut impl Ring, slot: SocketSlot) -> usize {
    let mut sent = 0;
    loop {
        match wait(ring) {
            Completion::Closed { socket } if socket == slot => return sent,
            Completion::Sent { .. } => sent += 1,
            Completion::Received { chunk, .. } => ring.release(chunk),
            _ => {}
        }
    }
}

/// Bytes that do not repeat within any size that the code counts in: the length is a prime number.
fn pattern() -> &'static [u8] {
    static PATTERN: OnceLock<Vec<u8>> = OnceLock::new();
    PATTERN.get_or_init(|| {
        let mut random = Random(7);
        (0..1_048_583).map(|_| random.below(256) as u8).collect()
    })
}

/// The longest part of the endless stream of patterns that starts here and has at most this many bytes.
fn pattern_at(position: u64, bytes: usize) -> &'static [u8] {
    let pattern = pattern();
    let start = (position % pattern.len() as u64) as usize;
    &pattern[start..pattern.len().min(start + bytes)]
}

/// Checks that these bytes are the stream of patterns from this position on.
fn check_pattern(mut position: u64, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let wanted = pattern_at(position, bytes.len());
        assert!(bytes[..wanted.len()] == *wanted, "bytes from {position} on differ");
        position += wanted.len() as u64;
        bytes = &bytes[wanted.len()..];
    }
}

/// A small generator of numbers that look random: xorshift.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: u64) -> u64 {
        (self.next() >> 8) % limit
    }
}

/// A send region together with the mapping that a client would have.
struct ClientRegion {
    region: Arc<SendRegion>,
    map: MmapRaw,
    segment_bytes: u32,
}

impl ClientRegion {
    fn create(segments: u32, segment_bytes: u32) -> Self {
        let (region, file, _) =
            SendRegion::create(segments, segment_bytes, HugepageMode::Auto).expect("a region");
        let map = MmapRaw::map_raw(&file).expect("a writable mapping");
        Self { region, map, segment_bytes }
    }

    fn write(&self, segment: u32, offset: u32, bytes: &[u8]) {
        let start = segment as usize * self.segment_bytes as usize + offset as usize;
        assert!(start + bytes.len() <= self.map.len());
        // SAFETY: the range lies inside the mapping, and nothing refers to it.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.map.as_mut_ptr().add(start), bytes.len())
        };
    }
}

/// A batch of headers only.
fn plain_batch(bytes: &[u8]) -> SendBatch {
    let length = u32::try_from(bytes.len()).expect("a short batch");
    SendBatch {
        headers: bytes.to_vec(),
        parts: vec![SendPart::Header { start: 0, bytes: length }],
        bytes: length,
    }
}

/// Any descriptor that a fake ring can own.
fn any_descriptor() -> OwnedFd {
    std::fs::File::open("/dev/null").expect("/dev/null").into()
}
