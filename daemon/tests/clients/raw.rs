//! A client that has every descriptor of its attachment in its own hands.
//!
//! It knows the layout of shared memory as `weir_ipc::layout` draws it, and writes any word of it by `pwrite`, which
//! needs no `unsafe` and spares no field.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use weir_ipc::attach::ATTACH_VERSION;
use weir_ipc::attach::message::{
    CreateGate, CreatePartition, GateOptions, PartitionOptions, Request, RequestBody, Response, ResponseBody,
};
use weir_ipc::attach::socket::{AttachError, connect, receive_response, send_request};
use weir_ipc::gate_port::GatePort;
use weir_ipc::layout::{GateLayout, PartitionLayout};
use weir_ipc::partition_port::PartitionPort;
use weir_ipc::region::SendMapping;
use weir_ipc::session::{SessionFds, SessionPort};

use crate::common::PATIENCE;

/// Bytes of an entry in a ring.
const ENTRY: u64 = 32;
/// Where a ring's entries begin behind its first byte; its head lies half way.
const ENTRIES: u64 = 256;

/// A ring in a memfd.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RingAt {
    pub(crate) at: u64,
    pub(crate) capacity: u64,
}

impl RingAt {
    pub(crate) fn tail(self) -> u64 {
        self.at
    }

    pub(crate) fn head(self) -> u64 {
        self.at + 128
    }

    /// Word `word` of the entry with this number.
    pub(crate) fn word(self, number: u64, word: u64) -> u64 {
        self.at + ENTRIES + number % self.capacity * ENTRY + word * 8
    }

    fn end(self) -> u64 {
        self.at + ENTRIES + self.capacity * ENTRY
    }
}

/// An attachment.
pub(crate) struct RawClient {
    pub(crate) socket: OwnedFd,
    next: u64,
    /// The session page.
    pub(crate) page: File,
    pub(crate) doorbell: OwnedFd,
    pub(crate) wakeup: OwnedFd,
    pub(crate) cells: File,
    pub(crate) port: Arc<SessionPort>,
}

/// How a conversation ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The daemon said why.
    Detached(String),
    /// The socket is closed.
    Closed,
}

/// An answer and its descriptors.
pub(crate) type Answer = (ResponseBody, Vec<OwnedFd>);

pub(crate) fn attach_socket(run_dir: &Path) -> OwnedFd {
    connect(&run_dir.join("attach.sock")).expect("a daemon that listens")
}

pub(crate) fn say(socket: &OwnedFd, id: u64, body: RequestBody) -> Result<(), AttachError> {
    send_request(socket, &Request { id, body })
}

pub(crate) fn hello(name: &str) -> RequestBody {
    RequestBody::Hello { version: ATTACH_VERSION, process_name: name.to_owned() }
}

/// The next message of the daemon; none if it says nothing for so long.
pub(crate) fn hear(
    socket: &OwnedFd,
    patience: Duration,
) -> Option<Result<(Response, Vec<OwnedFd>), AttachError>> {
    let timeout = Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: patience.subsec_nanos().into() };
    let mut fds = [PollFd::new(socket, PollFlags::IN)];
    match poll(&mut fds, Some(&timeout)) {
        Ok(0) => None,
        _ => Some(receive_response(socket)),
    }
}

/// Hears the daemon out; why it ended the attachment, or none if it does not within this time.
pub(crate) fn hear_out(socket: &OwnedFd, patience: Duration) -> Option<Ended> {
    let deadline = Instant::now() + patience;
    loop {
        match hear(socket, deadline.saturating_duration_since(Instant::now()))? {
            Ok((Response { body: ResponseBody::Detached { text, .. }, .. }, _)) => {
                return Some(Ended::Detached(text));
            }
            Ok(_) => {}
            Err(_) => return Some(Ended::Closed),
        }
    }
}

impl RawClient {
    /// Attaches, with one task.
    pub(crate) fn attach(run_dir: &Path) -> Self {
        let mut client = Self::try_attach(run_dir).expect("an attachment");
        let (body, _) = client.ask(RequestBody::CreateTask { name: "task".to_owned() }).expect("a task");
        assert!(matches!(body, ResponseBody::Task { cell: 0 }), "{body:?}");
        client
    }

    /// Says Hello.
    pub(crate) fn try_attach(run_dir: &Path) -> Result<Self, ResponseBody> {
        let socket = attach_socket(run_dir);
        let _ = say(&socket, 1, hello("raw"));
        let (response, descriptors) =
            hear(&socket, PATIENCE).expect("an answer in time").expect("an answer, not the end");
        let Response { body: ResponseBody::Welcome { .. }, .. } = response else { return Err(response.body) };
        let [page, doorbell, wakeup, cells] =
            <[OwnedFd; 4]>::try_from(descriptors).expect("four descriptors");
        let copy = |fd: &OwnedFd| fd.try_clone().expect("a copy");
        let fds = SessionFds { page: copy(&page), doorbell: copy(&doorbell), wakeup: copy(&wakeup) };
        let port = Arc::new(SessionPort::attach(fds).expect("a session page"));
        Ok(Self { socket, next: 2, page: page.into(), doorbell, wakeup, cells: cells.into(), port })
    }

    /// Asks, and hears the answer; or how the attachment ended.
    pub(crate) fn ask(&mut self, body: RequestBody) -> Result<Answer, Ended> {
        let id = self.next;
        self.next += 1;
        let _ = say(&self.socket, id, body);
        loop {
            match hear(&self.socket, PATIENCE).expect("an answer in time") {
                Ok((Response { id: found, body }, descriptors)) if found == id => {
                    return Ok((body, descriptors));
                }
                Ok((Response { body: ResponseBody::Detached { text, .. }, .. }, _)) => {
                    return Err(Ended::Detached(text));
                }
                Ok(_) => {}
                Err(_) => return Err(Ended::Closed),
            }
        }
    }

    /// Makes producer 0 of 1 with a small pool.
    pub(crate) fn partition(&mut self, exchange: &str, consumers: u32) -> Result<RawPartition, ResponseBody> {
        let options = PartitionOptions {
            exclusive: Some(1),
            floating: Some(4),
            overdraft: Some(0),
            retention: Some(2),
            ..PartitionOptions::default()
        };
        let wanted = CreatePartition {
            task: 0,
            exchange: exchange.to_owned(),
            producer: 0,
            producers: 1,
            consumers,
            strategy: "rebalance".to_owned(),
            checksum: false,
            continue_without: false,
            options,
        };
        let (body, descriptors) = self.ask(RequestBody::CreatePartition(wanted)).expect("an answer");
        let ResponseBody::Partition { ring, segments, subpartitions, segment_bytes, .. } = body else {
            return Err(body);
        };
        let [rings, region] = <[OwnedFd; 2]>::try_from(descriptors).expect("two descriptors");
        let layout = PartitionLayout { segments, subpartitions };
        let copy = |fd: &OwnedFd| fd.try_clone().expect("a copy");
        let port = PartitionPort::attach(copy(&rings), &layout, ring, Arc::clone(&self.port)).expect("rings");
        let mapping = SendMapping::map(copy(&region), u64::from(segments) * u64::from(segment_bytes))
            .expect("a region");
        Ok(RawPartition { ring, layout, segment_bytes, rings: rings.into(), region, port, mapping })
    }

    /// Makes a gate of an exchange whose producer is there.
    pub(crate) fn gate(
        &mut self,
        exchange: &str,
        consumer: u32,
        consumers: u32,
    ) -> Result<RawGate, ResponseBody> {
        self.make_gate(CreateGate {
            task: 0,
            exchange: exchange.to_owned(),
            consumer,
            consumers,
            producers: None,
            strategy: None,
            checksum: None,
            options: GateOptions { exclusive: Some(2), floating: Some(4), debloat: None },
        })
    }

    /// Makes the only gate of an exchange whose producer is not there yet, and throws away the socket on which that one's region
    /// would come: so their channel goes over a link, although both are on one node.
    pub(crate) fn linked_gate(&mut self, exchange: &str) -> Result<RawGate, ResponseBody> {
        let mut gate = self.make_gate(CreateGate {
            task: 0,
            exchange: exchange.to_owned(),
            consumer: 0,
            consumers: 1,
            producers: Some(1),
            strategy: Some("rebalance".to_owned()),
            checksum: Some(false),
            options: GateOptions { exclusive: Some(2), floating: Some(4), debloat: None },
        })?;
        gate.regions = File::open("/dev/null").expect("a file").into();
        Ok(gate)
    }

    fn make_gate(&mut self, wanted: CreateGate) -> Result<RawGate, ResponseBody> {
        let (body, descriptors) = self.ask(RequestBody::CreateGate(wanted)).expect("an answer");
        let ResponseBody::Gate { ring, segments, channels, .. } = body else { return Err(body) };
        let [rings, region, regions] = <[OwnedFd; 3]>::try_from(descriptors).expect("three descriptors");
        let layout = GateLayout { segments, channels };
        let copy = rings.try_clone().expect("a copy");
        let port = GatePort::attach(copy, &layout, ring, Arc::clone(&self.port)).expect("rings");
        Ok(RawGate { ring, layout, rings: rings.into(), region, regions, port })
    }

    /// Rings the daemon whether it sleeps or not.
    pub(crate) fn ring_doorbell(&self) {
        let _ = rustix::io::write(self.doorbell.as_fd(), &1_u64.to_ne_bytes());
    }

    /// Tells the daemon that a ring has news.
    pub(crate) fn mark(&self, ring: u32) {
        self.port.mark(ring);
        self.ring_doorbell();
    }

    /// How the daemon ends this attachment; none if it does not within this time.
    pub(crate) fn hear_out(&self, patience: Duration) -> Option<Ended> {
        hear_out(&self.socket, patience)
    }
}

/// A partition whose memory is all within reach.
pub(crate) struct RawPartition {
    pub(crate) ring: u32,
    pub(crate) layout: PartitionLayout,
    pub(crate) segment_bytes: u32,
    /// The memfd with its rings.
    pub(crate) rings: File,
    /// The memfd with its segments.
    pub(crate) region: OwnedFd,
    pub(crate) port: PartitionPort,
    pub(crate) mapping: SendMapping,
}

/// A gate whose memory is all within reach.
pub(crate) struct RawGate {
    pub(crate) ring: u32,
    pub(crate) layout: GateLayout,
    pub(crate) rings: File,
    pub(crate) region: OwnedFd,
    /// Where regions of producers on the same node come.
    pub(crate) regions: OwnedFd,
    pub(crate) port: GatePort,
}

impl RawPartition {
    pub(crate) fn submit_ring(&self) -> RingAt {
        let PartitionLayout { segments, subpartitions } = self.layout;
        RingAt { at: 384, capacity: (2 * segments + 2 * subpartitions + 64).next_power_of_two().into() }
    }

    pub(crate) fn return_ring(&self) -> RingAt {
        RingAt {
            at: self.submit_ring().end(),
            capacity: (self.layout.segments + 2).next_power_of_two().into(),
        }
    }

    /// Where what only the daemon writes lies behind the rings: failure text and subpartition cells.
    pub(crate) fn told(&self) -> std::ops::Range<u64> {
        let at = self.return_ring().end();
        at..at + 576 + 64 * u64::from(self.layout.subpartitions)
    }
}

impl RawGate {
    fn capacity(&self) -> u64 {
        let GateLayout { segments, channels } = self.layout;
        (2 * segments + 2 * channels + 64).next_power_of_two().into()
    }

    pub(crate) fn deliver_ring(&self) -> RingAt {
        RingAt { at: 256, capacity: self.capacity() }
    }

    pub(crate) fn priority_ring(&self) -> RingAt {
        RingAt { at: self.deliver_ring().end(), capacity: 64 }
    }

    pub(crate) fn give_back_ring(&self) -> RingAt {
        RingAt { at: self.priority_ring().end(), capacity: self.capacity() }
    }

    /// Where the failure texts of its channels lie, which only the daemon writes.
    pub(crate) fn told(&self) -> std::ops::Range<u64> {
        let at = self.give_back_ring().end();
        at..at + 576 * u64::from(self.layout.channels)
    }
}

/// Reads a word of a memfd.
pub(crate) fn peek(memfd: &File, at: u64) -> u64 {
    let mut bytes = [0; 8];
    memfd.read_exact_at(&mut bytes, at).expect("a word");
    u64::from_ne_bytes(bytes)
}

/// Writes a word of a memfd.
pub(crate) fn poke(memfd: &File, at: u64, value: u64) {
    memfd.write_all_at(&value.to_ne_bytes(), at).expect("a word");
}
