//! One process that sends out of an interface which swallows everything, through the daemon's own ring: what a send costs
//! where nothing is copied on the way, as with a network card that gathers.
//!
//! Nothing is acknowledged, so a connection takes what its socket has room for and is then reset; what that costs, and
//! letting go of the memory, is counted with it. Segmentation and acknowledgements are not in it.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use socket2::SockRef;
use weir::io::probe::{self, Level};
use weir::io::uring::{Uring, UringConfig, UringSetup};
use weir::io::{Completion, Ring, SendBatch, SendPart, SocketSlot};
use weir::memory::{HugepageMode, SendRegion};

/// How batches are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Way {
    /// The kernel copies.
    Copy,
    /// It looks up the pages of each batch.
    Unregistered,
    /// Batches name registered memory.
    Registered,
}

impl Way {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Copy, Self::Unregistered, Self::Registered];

    /// As it is called in the report.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Copy => "copy",
            Self::Unregistered => "unregistered",
            Self::Registered => "registered",
        }
    }
}

/// What one process is to send.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Task {
    /// How.
    pub way: Way,
    /// Segments of a batch.
    pub segments: u32,
}

/// What it found.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Found {
    /// Bytes that sockets took.
    pub bytes: u64,
    /// CPU time of the thread, in seconds.
    pub cpu_seconds: f64,
    /// Zero-copy sends.
    pub sends: u64,
    /// Of those, the ones that were copied.
    pub copied: u64,
    /// And the ones that named registered memory.
    pub named: u64,
}

const SEGMENT_BYTES: u32 = 32 << 10;
const HEADER_BYTES: u32 = 32;

/// Segments of the region: more than a cache holds of them.
const REGION_SEGMENTS: u32 = 2048;

/// Connections that are measured, and those before, in which the region is registered.
const CONNECTIONS: usize = 48;
const WARM_UP: usize = 24;

/// What a socket is asked to hold, in bytes; it may say less.
const ROOM: usize = 8 << 20;

/// Most batches of a connection: fewer than those of one region that can name it at a time.
const BATCHES_MAX: u32 = 24;

/// Longest time for anything to happen.
const STUCK: Duration = Duration::from_secs(20);

/// Sends, in a network of its own in which this process is root.
///
/// # Errors
/// What cannot be had here, in one line.
pub fn run(task: Task) -> Result<Found, String> {
    is_apart()?;
    let found = probe::probe(None).map_err(|error| error.to_string())?;
    if task.way == Way::Registered && found.level < Level::Full {
        return Err(found.lost.unwrap_or_default());
    }
    let config = UringConfig {
        register: task.way == Way::Registered,
        hugepages: HugepageMode::Off,
        ..UringConfig::new(found.level)
    };
    let text = |error: weir::io::RingError| error.to_string();
    let mut ring = UringSetup::create(&config).map_err(text)?.enable().map_err(text)?;
    let created = SendRegion::create(REGION_SEGMENTS, SEGMENT_BYTES, HugepageMode::Auto);
    let (region, _file, _) = created.map_err(|error| error.to_string())?;
    let (pairs, room) = connections()?;
    let mut sender =
        Sender { ring: &mut ring, region: &region, task, room, next: 0, found: Found::default() };
    let mut began = None;
    for (number, (near, _far)) in pairs.into_iter().enumerate() {
        if number == WARM_UP {
            sender.found = Found::default();
            began = Some((cpu_time(), sender.ring.counters().registered.sends));
        }
        sender.use_up(near)?;
        if began.is_none() {
            // The region is registered by another thread.
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    let mut found = sender.found;
    let (cpu, named) = began.ok_or("too few connections")?;
    found.cpu_seconds = cpu_time() - cpu;
    found.named = ring.counters().registered.sends - named;
    ring.forget_region(&region);
    Ok(found)
}

/// What is done here to the loopback would end all traffic on the machine's own, so the network must be another one than
/// that of the process that started this one.
fn is_apart() -> Result<(), String> {
    let network = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/net"));
    let parent = rustix::process::getppid().map(|parent| parent.as_raw_nonzero().to_string());
    match (network("self"), network(parent.as_deref().unwrap_or_default())) {
        (Ok(own), Ok(parents)) if own != parents => Ok(()),
        _ => Err("not in a network namespace of its own, which `weir-bench` makes".to_owned()),
    }
}

/// CPU time of this thread, in seconds.
fn cpu_time() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Connections whose near ends send into nothing, and how many bytes each may be asked to take.
fn connections() -> Result<(Vec<(TcpStream, TcpStream)>, u32), String> {
    let text = |error: std::io::Error| error.to_string();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(text)?;
    let address = listener.local_addr().map_err(text)?;
    let (mut pairs, mut room) = (Vec::new(), ROOM);
    for _ in 0..WARM_UP + CONNECTIONS {
        let near = TcpStream::connect(address).map_err(text)?;
        let socket = SockRef::from(&near);
        socket.set_send_buffer_size(ROOM).map_err(text)?;
        // So that the kernel gives up at once what nobody will acknowledge.
        socket.set_linger(Some(Duration::ZERO)).map_err(text)?;
        room = room.min(socket.send_buffer_size().map_err(text)?);
        pairs.push((near, listener.accept().map_err(text)?.0));
    }
    let output = Command::new("tc").args(["qdisc", "add", "dev", "lo", "root", "blackhole"]).output();
    let output = output.map_err(|error| format!("tc: {error}"))?;
    if !output.status.success() {
        return Err(format!("tc: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    // A socket is charged for more than what it is given.
    Ok((pairs, u32::try_from(room / 3).unwrap_or(u32::MAX)))
}

struct Sender<'a> {
    ring: &'a mut Uring,
    region: &'a Arc<SendRegion>,
    task: Task,
    room: u32,
    next: u32,
    found: Found,
}

impl Sender<'_> {
    /// Sends what a socket has room for, and ends its connection.
    fn use_up(&mut self, near: TcpStream) -> Result<(), String> {
        let slot = self.ring.add_socket(OwnedFd::from(near)).map_err(|error| error.to_string())?;
        let batch_bytes = self.task.segments * (HEADER_BYTES + SEGMENT_BYTES);
        if batch_bytes > self.room {
            return Err(format!(
                "sockets hold {} bytes (net.core.wmem_max); needed: {batch_bytes}",
                self.room
            ));
        }
        for _ in 0..(self.room / batch_bytes).min(BATCHES_MAX) {
            let batch = self.batch(batch_bytes);
            let sent = match self.task.way {
                Way::Copy => self.ring.send(slot, batch),
                Way::Unregistered | Way::Registered => self.ring.send_zero_copy(slot, batch),
            };
            sent.map_err(|(error, _)| error.to_string())?;
            self.wait(|completion| {
                matches!(completion, Completion::Sent { .. } | Completion::SentHeld { .. })
            })?;
        }
        self.ring.close_socket(slot);
        self.wait_gone(slot)
    }

    fn batch(&mut self, bytes: u32) -> SendBatch {
        let mut parts = Vec::with_capacity(2 * self.task.segments as usize);
        for number in 0..self.task.segments {
            parts.push(SendPart::Header { start: number * HEADER_BYTES, bytes: HEADER_BYTES });
            let (region, segment) = (Arc::clone(self.region), self.next);
            parts.push(SendPart::Region { region, segment, offset: 0, bytes: SEGMENT_BYTES });
            self.next = (self.next + 1) % REGION_SEGMENTS;
        }
        SendBatch { headers: vec![0; (self.task.segments * HEADER_BYTES) as usize], parts, bytes }
    }

    /// Waits until a socket is closed and nobody has anything of the region.
    fn wait_gone(&mut self, slot: SocketSlot) -> Result<(), String> {
        self.wait(|completion| matches!(completion, Completion::Closed { socket } if *socket == slot))?;
        let began = Instant::now();
        // This function's, the ring's if it knows the region, and none of a batch.
        while Arc::strong_count(self.region) > 2 {
            if began.elapsed() > STUCK {
                return Err("the kernel does not let go of what was sent".to_owned());
            }
            self.ring.park(Some(Duration::from_millis(10))).map_err(|error| error.to_string())?;
            while let Some(completion) = self.ring.next() {
                self.count(&completion)?;
            }
        }
        Ok(())
    }

    fn wait(&mut self, is_wanted: impl Fn(&Completion) -> bool) -> Result<(), String> {
        let began = Instant::now();
        loop {
            while let Some(completion) = self.ring.next() {
                self.count(&completion)?;
                if is_wanted(&completion) {
                    return Ok(());
                }
            }
            if began.elapsed() > STUCK {
                return Err("a send does not end".to_owned());
            }
            self.ring.park(Some(Duration::from_millis(100))).map_err(|error| error.to_string())?;
        }
    }

    fn count(&mut self, completion: &Completion) -> Result<(), String> {
        match completion {
            Completion::Sent { result, .. } => {
                self.found.bytes += u64::from(result.map_err(|errno| format!("send: {errno}"))?);
            }
            Completion::SentHeld { bytes, .. } => {
                self.found.bytes += u64::from(*bytes);
                self.found.sends += 1;
            }
            Completion::Released { copied, .. } => self.found.copied += u64::from(*copied == Some(true)),
            _ => {}
        }
        Ok(())
    }
}
