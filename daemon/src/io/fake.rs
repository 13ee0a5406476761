//! A ring without a kernel, for tests of the shard loop.
//!
//! The test says what arrives, how much of a send is taken, when, and in which order completions come. What a ring
//! promises holds here as well: one send in flight per socket, everything about one socket in order, the batch comes
//! back, [`Completion::Closed`] is last, and receiving waits while too many chunks are held.
//!
//! Of a zero-copy send the ring remembers what it read, and when it lets go of the batch compares that with what is in the
//! memory then: memory that was used anew before is found out ([`holds`]).

mod holds;

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::memory::SendRegion;
use holds::Holds;
pub use holds::NoticePolicy;

use super::{
    Chunk, Completion, Errno, HoldId, Ring, RingCounters, RingError, SendBatch, SendPart, SocketSlot, WatchId,
};

/// What becomes of the sends of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendPolicy {
    /// The next park completes it, whole.
    Whole,
    /// The next park completes it, with at most this many bytes taken.
    Short(u32),
    /// The next park completes it with this error.
    Fail(Errno),
    /// It stays in flight until [`FakeRing::complete_send`], also when the socket is closed.
    Hold,
}

/// How a stream ends.
#[derive(Clone, Copy, Debug)]
enum End {
    Stream,
    Failure(Errno),
}

/// One source of completions: those of one source come in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Source {
    Socket(SocketSlot),
    Watch(WatchId),
    /// A batch that is let go of, which comes in no order with anything.
    Hold(u32),
}

#[derive(Debug)]
struct FakeSocket {
    _descriptor: OwnedFd,
    policy: SendPolicy,
    in_flight: Option<SendBatch>,
    /// Whether that is a zero-copy send.
    is_zero_copy: bool,
    taken: Vec<u8>,
    receiving: bool,
    arrived: VecDeque<u8>,
    end: Option<End>,
    closing: bool,
}

/// The ring.
#[derive(Debug)]
pub struct FakeRing {
    sockets: BTreeMap<SocketSlot, FakeSocket>,
    next_socket: u16,
    watches: Vec<WatchId>,
    signals: Vec<WatchId>,
    ready: VecDeque<(Source, Completion)>,
    chunks: BTreeMap<u32, Vec<u8>>,
    next_chunk: u32,
    /// Chunks that may be held before receiving waits.
    chunks_max: usize,
    /// Sizes of chunks, used round and round.
    chunk_bytes: Vec<usize>,
    chunk_turn: usize,
    policy: SendPolicy,
    holds: Holds,
    hold_closed: bool,
    shuffle: Option<u64>,
    failure: Option<RingError>,
    counters: RingCounters,
    parks: Vec<Option<Duration>>,
    forgotten: Vec<Weak<SendRegion>>,
}

impl Default for FakeRing {
    fn default() -> Self {
        Self {
            sockets: BTreeMap::new(),
            next_socket: 0,
            watches: Vec::new(),
            signals: Vec::new(),
            ready: VecDeque::new(),
            chunks: BTreeMap::new(),
            next_chunk: 0,
            chunks_max: usize::MAX,
            chunk_bytes: vec![usize::MAX],
            chunk_turn: 0,
            policy: SendPolicy::Whole,
            holds: Holds::default(),
            hold_closed: false,
            shuffle: None,
            failure: None,
            counters: RingCounters::default(),
            parks: Vec::new(),
            forgotten: Vec::new(),
        }
    }
}

impl FakeRing {
    /// A ring that completes everything at the next park, in the order in which it was started.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// How often this region was forgotten.
    #[must_use]
    pub fn times_forgotten(&self, region: &Weak<SendRegion>) -> usize {
        self.forgotten.iter().filter(|forgotten| forgotten.ptr_eq(region)).count()
    }

    /// Sets what becomes of sends of sockets that are added from now on.
    pub fn set_policy(&mut self, policy: SendPolicy) {
        self.policy = policy;
    }

    /// Sets what becomes of the sends of one socket, one in flight included.
    pub fn set_socket_policy(&mut self, socket: SocketSlot, policy: SendPolicy) {
        self.socket(socket).policy = policy;
    }

    /// Sets the sizes in which arriving bytes are cut into chunks, used round and round. Each is at least 1.
    pub fn set_chunk_bytes(&mut self, sizes: &[usize]) {
        assert!(!sizes.is_empty() && sizes.iter().all(|size| *size > 0), "sizes of chunks: {sizes:?}");
        self.chunk_bytes = sizes.to_vec();
        self.chunk_turn = 0;
    }

    /// Sets how many chunks may be held before receiving waits, as when all receive buffers are in use.
    pub fn set_chunks_max(&mut self, chunks: usize) {
        self.chunks_max = chunks;
    }

    /// From now on completions of different sources come in an order that this seed decides. Those of one source
    /// stay in order.
    pub fn shuffle(&mut self, seed: u64) {
        self.shuffle = Some(seed | 1);
    }

    /// While set, [`Completion::Closed`] does not come.
    pub fn hold_closed(&mut self, hold: bool) {
        self.hold_closed = hold;
    }

    /// The next park fails with this error.
    pub fn fail_park(&mut self, error: RingError) {
        self.failure = Some(error);
    }

    /// Bytes arrive at a socket.
    pub fn arrive(&mut self, socket: SocketSlot, bytes: &[u8]) {
        self.socket(socket).arrived.extend(bytes);
    }

    /// The peer of a socket sends nothing more.
    pub fn end_stream(&mut self, socket: SocketSlot) {
        self.socket(socket).end = Some(End::Stream);
    }

    /// Receiving from a socket fails, after what has arrived.
    pub fn fail_receive(&mut self, socket: SocketSlot, errno: Errno) {
        self.socket(socket).end = Some(End::Failure(errno));
    }

    /// Signals a watched descriptor.
    pub fn signal(&mut self, id: WatchId) {
        self.signals.push(id);
    }

    /// Completes the send in flight: the socket took this many bytes of it, or failed.
    pub fn complete_send(&mut self, socket: SocketSlot, result: Result<u32, Errno>) {
        let entry = self.socket(socket);
        let batch = entry.in_flight.take().expect("a send in flight");
        let is_zero_copy = std::mem::take(&mut entry.is_zero_copy);
        if let Ok(bytes) = result {
            assert!(bytes <= batch.bytes, "{bytes} bytes taken of {}", batch.bytes);
            entry.taken.extend(contents(&batch, bytes));
        }
        let completion = match result {
            Ok(bytes) if is_zero_copy => {
                let hold = self.holds.hold(batch, bytes);
                Completion::SentHeld { socket, bytes, hold }
            }
            result => Completion::Sent { socket, result, batch },
        };
        self.push(Source::Socket(socket), completion);
        self.finish_close(socket);
    }

    /// The batch in flight.
    #[must_use]
    pub fn in_flight(&self, socket: SocketSlot) -> Option<&SendBatch> {
        self.sockets.get(&socket)?.in_flight.as_ref()
    }

    /// The bytes that a socket took since this was last asked.
    pub fn take_sent(&mut self, socket: SocketSlot) -> Vec<u8> {
        std::mem::take(&mut self.socket(socket).taken)
    }

    /// Sockets that are open or closing, in the order in which they were added.
    #[must_use]
    pub fn sockets(&self) -> Vec<SocketSlot> {
        self.sockets.keys().copied().collect()
    }

    /// Sets when and how zero-copy sends are let go of from now on.
    pub fn set_notices(&mut self, policy: NoticePolicy) {
        self.holds.set_policy(policy);
    }

    /// The batches that zero-copy sends have left with the kernel, and of which the shard knows.
    #[must_use]
    pub fn held(&self) -> Vec<HoldId> {
        self.holds.told()
    }

    /// The next park lets go of one of them.
    pub fn let_go(&mut self, hold: HoldId, copied: bool) {
        self.holds.let_go(hold, copied);
    }

    /// Watched descriptors.
    #[must_use]
    pub fn watches(&self) -> &[WatchId] {
        &self.watches
    }

    /// Chunks that were not released.
    #[must_use]
    pub fn chunks_held(&self) -> usize {
        self.chunks.len()
    }

    /// The timeouts of all parks so far.
    #[must_use]
    pub fn parks(&self) -> &[Option<Duration>] {
        &self.parks
    }

    fn socket(&mut self, socket: SocketSlot) -> &mut FakeSocket {
        self.sockets.get_mut(&socket).expect("a socket that is not closed")
    }

    fn push(&mut self, source: Source, completion: Completion) {
        self.ready.push_back((source, completion));
    }

    fn finish_close(&mut self, socket: SocketSlot) {
        if self.hold_closed {
            return;
        }
        if self.sockets.get(&socket).is_some_and(|entry| entry.closing && entry.in_flight.is_none()) {
            self.sockets.remove(&socket);
            self.push(Source::Socket(socket), Completion::Closed { socket });
        }
    }

    /// Completes the sends that do not wait for the test.
    fn run_sends(&mut self, socket: SocketSlot) {
        let Some(entry) = self.sockets.get(&socket) else { return };
        let Some(planned) = entry.in_flight.as_ref().map(|batch| batch.bytes) else {
            return;
        };
        let result = match entry.policy {
            SendPolicy::Hold => return,
            _ if entry.closing => Err(Errno(libc::ECANCELED)),
            _ if entry.is_zero_copy && self.holds.refusal().is_some() => {
                Err(self.holds.refusal().unwrap_or(Errno(libc::EIO)))
            }
            SendPolicy::Whole => Ok(planned),
            SendPolicy::Short(bytes) => Ok(planned.min(bytes)),
            SendPolicy::Fail(errno) => Err(errno),
        };
        let readable = entry.in_flight.as_ref().map_or(0, readable_bytes);
        let result = match result {
            Ok(bytes) if bytes > readable && readable == 0 => Err(Errno(libc::EFAULT)),
            Ok(bytes) => Ok(bytes.min(readable)),
            Err(errno) => Err(errno),
        };
        self.complete_send(socket, result);
    }

    fn take_ready(&mut self) -> Option<Completion> {
        let Some(state) = &mut self.shuffle else {
            return self.ready.pop_front().map(|(_, completion)| completion);
        };
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        let chosen = *state as usize % self.ready.len().max(1);
        let source = self.ready.get(chosen)?.0;
        let first = self.ready.iter().position(|(other, _)| *other == source)?;
        self.ready.remove(first).map(|(_, completion)| completion)
    }

    fn run_receives(&mut self, slot: SocketSlot) {
        while let Some(socket) = self.sockets.get_mut(&slot)
            && socket.receiving
            && !socket.closing
        {
            if socket.arrived.is_empty() {
                let completion = match socket.end.take() {
                    None => return,
                    Some(End::Stream) => Completion::EndOfStream { socket: slot },
                    Some(End::Failure(errno)) => Completion::ReceiveFailed { socket: slot, errno },
                };
                socket.receiving = false;
                self.push(Source::Socket(slot), completion);
                return;
            }
            if self.chunks.len() >= self.chunks_max {
                self.counters.receive_starved += 1;
                return;
            }
            let size = self.chunk_bytes[self.chunk_turn % self.chunk_bytes.len()].min(socket.arrived.len());
            self.chunk_turn += 1;
            let bytes: Vec<u8> = socket.arrived.drain(..size).collect();
            let buffer = self.next_chunk;
            self.next_chunk += 1;
            let length = u32::try_from(bytes.len()).expect("a chunk below 4 GiB");
            self.chunks.insert(buffer, bytes);
            let chunk = Chunk { ring: u32::MAX, buffer, offset: 0, bytes: length, socket: slot };
            self.push(Source::Socket(slot), Completion::Received { socket: slot, chunk });
        }
    }
}

/// Bytes of a batch up to the first part that the kernel could not read.
fn readable_bytes(batch: &SendBatch) -> u32 {
    let is_readable = |part: &&SendPart| match part {
        SendPart::Header { .. } => true,
        SendPart::Region { region, segment, offset, bytes } => region.is_readable(*segment, *offset, *bytes),
    };
    batch.parts.iter().take_while(is_readable).map(SendPart::bytes).sum()
}

/// The first `count` bytes of a batch.
fn contents(batch: &SendBatch, count: u32) -> Vec<u8> {
    let (mut bytes, mut left) = (Vec::new(), count);
    batch
        .for_each_range(None, |address, length| {
            let length = length.min(left);
            left -= length;
            // SAFETY: the range lies inside memory that the batch keeps alive and that the kernel could read. In these
            // tests nobody else writes it.
            bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(address, length as usize) });
        })
        .expect("a batch that was checked when it was sent");
    bytes
}

impl Ring for FakeRing {
    fn add_socket(&mut self, socket: OwnedFd) -> Result<SocketSlot, RingError> {
        let slot = SocketSlot::new(self.next_socket, 0);
        self.next_socket += 1;
        let entry = FakeSocket {
            _descriptor: socket,
            policy: self.policy,
            in_flight: None,
            is_zero_copy: false,
            taken: Vec::new(),
            receiving: false,
            arrived: VecDeque::new(),
            end: None,
            closing: false,
        };
        self.sockets.insert(slot, entry);
        Ok(slot)
    }

    fn close_socket(&mut self, socket: SocketSlot) {
        let Some(entry) = self.sockets.get_mut(&socket).filter(|entry| !entry.closing) else {
            return;
        };
        entry.closing = true;
        let dropped = |completion: &Completion| {
            matches!(completion, Completion::EndOfStream { .. } | Completion::ReceiveFailed { .. })
        };
        // What had not been taken yet is dropped, as the kernel's ring drops it.
        let chunks = &mut self.chunks;
        self.ready.retain(|(source, completion)| match completion {
            Completion::Received { chunk, .. } if *source == Source::Socket(socket) => {
                chunks.remove(&chunk.buffer);
                false
            }
            completion => *source != Source::Socket(socket) || !dropped(completion),
        });
        self.finish_close(socket);
    }

    fn send(&mut self, socket: SocketSlot, batch: SendBatch) -> Result<(), (RingError, SendBatch)> {
        let Some(entry) = self.sockets.get_mut(&socket).filter(|entry| !entry.closing) else {
            return Err((RingError::socket("send on a closed socket", Errno(libc::ENOTCONN)), batch));
        };
        if entry.in_flight.is_some() {
            return Err((RingError::retry("send while one is in flight", Errno(libc::EALREADY)), batch));
        }
        if let Err(error) = batch.for_each_range(None, |_, _| {}) {
            return Err((RingError::socket(format!("send: {error}"), Errno(libc::EINVAL)), batch));
        }
        entry.in_flight = Some(batch);
        Ok(())
    }

    fn send_zero_copy(&mut self, socket: SocketSlot, batch: SendBatch) -> Result<(), (RingError, SendBatch)> {
        self.send(socket, batch)?;
        self.socket(socket).is_zero_copy = true;
        Ok(())
    }

    fn forget_region(&mut self, region: &Arc<SendRegion>) {
        let draws = |batch: &SendBatch| {
            batch.parts.iter().any(|part| match part {
                SendPart::Region { region: of_part, .. } => Arc::ptr_eq(of_part, region),
                SendPart::Header { .. } => false,
            })
        };
        let in_flight = self.sockets.values().filter_map(|socket| socket.in_flight.as_ref());
        assert!(
            !in_flight.chain(self.holds.batches()).any(draws),
            "a region was forgotten with a batch in flight"
        );
        self.forgotten.push(Arc::downgrade(region));
    }

    fn receive(&mut self, socket: SocketSlot) -> Result<(), RingError> {
        let Some(entry) = self.sockets.get_mut(&socket).filter(|entry| !entry.closing) else {
            return Err(RingError::socket("receive on a closed socket", Errno(libc::ENOTCONN)));
        };
        entry.receiving = true;
        Ok(())
    }

    fn watch(&mut self, _descriptor: BorrowedFd<'_>, id: WatchId) -> Result<(), RingError> {
        self.watches.push(id);
        Ok(())
    }

    fn unwatch(&mut self, id: WatchId) {
        self.watches.retain(|watch| *watch != id);
        self.ready.retain(|(source, _)| *source != Source::Watch(id));
    }

    fn park(&mut self, timeout: Option<Duration>) -> Result<(), RingError> {
        self.parks.push(timeout);
        self.counters.enters += 1;
        if let Some(error) = self.failure.take() {
            return Err(error);
        }
        for socket in self.sockets() {
            self.run_sends(socket);
            self.run_receives(socket);
            self.finish_close(socket);
        }
        for (hold, completion) in self.holds.due() {
            self.push(Source::Hold(hold), completion);
        }
        for id in std::mem::take(&mut self.signals) {
            if self.watches.contains(&id) {
                self.push(Source::Watch(id), Completion::Watch { id });
            }
        }
        Ok(())
    }

    fn next(&mut self) -> Option<Completion> {
        let completion = self.take_ready()?;
        match completion {
            Completion::SentHeld { hold, .. } => self.holds.handle_told(hold),
            Completion::Released { hold, .. } => self.holds.handle_returned(hold),
            _ => {}
        }
        Some(completion)
    }

    fn bytes(&self, chunk: &Chunk) -> &[u8] {
        self.chunks.get(&chunk.buffer).map_or(&[], Vec::as_slice)
    }

    fn release(&mut self, chunk: Chunk) {
        self.chunks.remove(&chunk.buffer).expect("a chunk that was not released before");
    }

    fn counters(&self) -> RingCounters {
        self.counters
    }
}
