//! Buffers to receive into.
//!
//! **Shared** buffers form a ring that the kernel takes from: it fills the first one piece by piece, for whatever
//! socket has bytes, and goes to the next when it is full. A buffer goes back to the kernel when two things are true:
//! the kernel has said that it is done with it, and every chunk of it was released.
//!
//! **Staging** buffers serve kernels without such rings: each belongs to one receive, then to the chunk that the
//! receive brought.

use std::io;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::types::BufRingEntry;
use io_uring::{IoUring, cqueue};

use super::UringConfig;
use crate::io::probe::Level;
use crate::io::{Chunk, Errno, RingError};
use crate::memory::{Backing, HugepageMode, PAGE_BYTES, Scratch};

/// The kernel's number for the ring of shared buffers.
pub(super) const BUFFER_GROUP: u16 = 0;

/// IOU_PBUF_RING_INC: the kernel fills a buffer in several pieces.
pub(super) const INCREMENTAL: u16 = 2;

/// What failed when there is no memory to receive into: no answer about a ring.
pub(in crate::io) const RECEIVE_MEMORY: &str = "memory to receive into";

/// A filled range: buffer, offset and length in bytes.
pub(super) type Range = (u32, u32, u32);

pub(super) enum ReceiveMemory {
    Shared(Shared),
    Staging(Staging),
}

impl ReceiveMemory {
    pub(super) fn create(ring: &IoUring, config: &UringConfig) -> Result<Self, RingError> {
        if config.level == Level::OneShot {
            return Ok(Self::Staging(Staging::new(config.buffer_bytes)));
        }
        Shared::create(ring, config).map(Self::Shared)
    }

    pub(super) const fn backing(&self) -> Backing {
        match self {
            Self::Shared(shared) => shared.memory.backing(),
            Self::Staging(_) => Backing::Ordinary,
        }
    }

    /// Whether the kernel has a buffer to receive into.
    pub(super) const fn has_room(&self) -> bool {
        match self {
            Self::Shared(shared) => shared.available > 0,
            Self::Staging(_) => true,
        }
    }

    pub(super) fn bytes(&self, chunk: &Chunk) -> &[u8] {
        let (memory, start) = match self {
            Self::Shared(shared) => (&shared.memory, shared.start(chunk.buffer) + chunk.offset as usize),
            Self::Staging(staging) => match staging.buffers.get(chunk.buffer as usize) {
                Some(memory) => (memory, chunk.offset as usize),
                None => return &[],
            },
        };
        let length = chunk.bytes as usize;
        if start.checked_add(length).is_none_or(|end| end > memory.bytes()) {
            return &[];
        }
        // SAFETY: the range lies inside the memory, which was zeroed when it was made. The kernel has filled it and
        // writes to it again only after the chunk, which is neither copied nor made anywhere else, was released;
        // that takes a unique reference to the ring, and so cannot happen while this slice lives.
        unsafe { std::slice::from_raw_parts(memory.address().add(start), length) }
    }
}

/// What is known of one shared buffer.
#[derive(Clone, Copy, Debug, Default)]
struct Fill {
    /// Bytes that the kernel filled since it got the buffer.
    filled: u32,
    /// Chunks of it that were not released.
    chunks: u32,
    /// Whether the kernel has it.
    with_kernel: bool,
}

/// Buffers that all sockets of a ring receive into.
pub(super) struct Shared {
    /// The ring of entries by which buffers are given to the kernel.
    entries: Scratch,
    memory: Scratch,
    buffer_bytes: u32,
    /// Entries written so far, modulo 2^16.
    pub(super) tail: u16,
    fills: Vec<Fill>,
    /// Buffers that the kernel has.
    pub(super) available: u16,
}

impl Shared {
    fn create(ring: &IoUring, config: &UringConfig) -> Result<Self, RingError> {
        let out_of_memory = |error: io::Error| {
            let fewer = "lower the number of receive buffers";
            let (errno, fix) = match error.raw_os_error() {
                Some(number) => (Errno(number), format!("give the daemon more memory or {fewer}")),
                // Not the kernel's answer: one that says what is missing.
                None => (Errno(libc::ENOMEM), format!("{error}, or {fewer}")),
            };
            RingError::fatal(RECEIVE_MEMORY, errno, fix)
        };
        let bytes = usize::from(config.buffers) * config.buffer_bytes as usize;
        let memory = Scratch::create(bytes, config.hugepages).map_err(out_of_memory)?;
        let length =
            (usize::from(config.buffers) * size_of::<BufRingEntry>()).next_multiple_of(PAGE_BYTES as usize);
        let entries = Scratch::create(length, HugepageMode::Off).map_err(out_of_memory)?;
        let mut shared = Self {
            entries,
            memory,
            buffer_bytes: config.buffer_bytes,
            tail: 0,
            fills: vec![Fill::default(); usize::from(config.buffers)],
            available: 0,
        };
        // SAFETY: the entries are page-aligned memory for this many of them, and outlive the ring: both are owned
        // by the same value, which drops the ring first.
        unsafe {
            ring.submitter().register_buf_ring_with_flags(
                shared.entries.address() as u64,
                config.buffers,
                BUFFER_GROUP,
                INCREMENTAL,
            )
        }
        .map_err(|error| {
            RingError::fatal(
                "io_uring_register(PBUF_RING)",
                error.into(),
                "needs Linux 6.12; set io.level = \"oneshot\"",
            )
        })?;
        for buffer in 0..u32::from(config.buffers) {
            shared.provide(buffer);
        }
        Ok(shared)
    }

    /// Where a buffer starts in the memory.
    fn start(&self, buffer: u32) -> usize {
        buffer as usize * self.buffer_bytes as usize
    }

    /// Gives a buffer to the kernel, whole.
    fn provide(&mut self, buffer: u32) {
        let start = self.start(buffer);
        let Some(fill) = self.fills.get_mut(buffer as usize) else {
            return;
        };
        *fill = Fill { filled: 0, chunks: 0, with_kernel: true };
        let base = self.entries.address().cast::<BufRingEntry>();
        let index = usize::from(self.tail) & (self.fills.len() - 1);
        // SAFETY: `index` is below the number of entries. There are as many entries as buffers and each buffer is
        // given once, so this one is not the kernel's now; it reads it only after the tail says so. `start` lies
        // inside the memory.
        unsafe {
            let entry = &mut *base.add(index);
            entry.set_addr(self.memory.address().add(start) as u64);
            entry.set_len(self.buffer_bytes);
            entry.set_bid(buffer as u16);
        }
        self.tail = self.tail.wrapping_add(1);
        self.available += 1;
        // SAFETY: `base` is the address of the first entry. The tail is aligned for 16 bits, and the kernel only
        // reads it.
        let tail = unsafe { AtomicU16::from_ptr(BufRingEntry::tail(base).cast_mut()) };
        // Pairs with the kernel's acquiring load: it sees the entry before it sees the tail.
        tail.store(self.tail, Ordering::Release);
    }

    /// Takes note of a completion. None if it brought no bytes.
    pub(super) fn handle_filled(&mut self, result: i32, flags: u32) -> Option<Range> {
        // Only a receive that brought bytes has used a buffer, whatever the flags say. Some kernels name the buffer
        // at the end of the stream as if it were used up while it stays in the ring.
        let bytes = u32::try_from(result).ok().filter(|bytes| *bytes > 0)?;
        let buffer = cqueue::buffer_select(flags)?;
        let fill = self.fills.get_mut(usize::from(buffer))?;
        let offset = fill.filled;
        let filled = offset.checked_add(bytes).filter(|filled| *filled <= self.buffer_bytes)?;
        if !fill.with_kernel {
            return None;
        }
        fill.filled = filled;
        fill.chunks += 1;
        if !cqueue::buffer_more(flags) {
            fill.with_kernel = false;
            self.available -= 1;
        }
        Some((u32::from(buffer), offset, bytes))
    }

    /// Takes a chunk back. True if that gave a buffer back to the kernel.
    pub(super) fn handle_released(&mut self, chunk: &Chunk) -> bool {
        let Some(fill) = self.fills.get_mut(chunk.buffer as usize) else {
            return false;
        };
        fill.chunks = fill.chunks.saturating_sub(1);
        let done = fill.chunks == 0 && !fill.with_kernel;
        if done {
            self.provide(chunk.buffer);
        }
        done
    }
}

/// Buffers that belong to one receive or chunk at a time.
pub(super) struct Staging {
    buffers: Vec<Scratch>,
    free: Vec<u32>,
    buffer_bytes: u32,
}

impl Staging {
    pub(super) const fn new(buffer_bytes: u32) -> Self {
        Self { buffers: Vec::new(), free: Vec::new(), buffer_bytes }
    }

    pub(super) const fn buffer_bytes(&self) -> u32 {
        self.buffer_bytes
    }

    /// A buffer that nobody else has. There are at most as many as sockets receive or hold a chunk.
    pub(super) fn take(&mut self) -> io::Result<u32> {
        if let Some(buffer) = self.free.pop() {
            return Ok(buffer);
        }
        let buffer = u32::try_from(self.buffers.len()).map_err(|_| io::ErrorKind::OutOfMemory)?;
        self.buffers.push(Scratch::create(self.buffer_bytes as usize, HugepageMode::Off)?);
        Ok(buffer)
    }

    pub(super) fn give(&mut self, buffer: u32) {
        self.free.push(buffer);
    }

    pub(super) fn address(&self, buffer: u32) -> *mut u8 {
        self.buffers.get(buffer as usize).map_or(std::ptr::null_mut(), Scratch::address)
    }

    /// Takes note of a completion. None if it brought no bytes.
    pub(super) fn handle_filled(&mut self, buffer: Option<u32>, result: i32) -> Option<Range> {
        let buffer = buffer?;
        match u32::try_from(result) {
            Ok(bytes) if bytes > 0 && bytes <= self.buffer_bytes => Some((buffer, 0, bytes)),
            _ => {
                self.give(buffer);
                None
            }
        }
    }
}
