//! One direction of a simulated TCP connection, and a send that the simulated kernel works on.
//!
//! The kernel reads a batch late and in pieces: what it reads from a send region is what lies there at that moment.
//! When it reports the result it looks at the same memory again, so that a segment which was reused while the
//! kernel had it is found even if the peer saw the right bytes.

use std::collections::VecDeque;

use weir_flow::ids::{ChannelIndex, PartitionId, Sequence};
use weir_flow::shard::{Part, Transmit};
use weir_flow::wire::{Flags, FrameType, Header};

use crate::tap::Tap;

/// A frame of which a byte was sent and the last one has not arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flying {
    /// Its type.
    pub frame: FrameType,
    /// It gives the open segment up.
    pub closes: bool,
    /// It was sent before, on an earlier socket.
    pub again: bool,
}

impl Flying {
    /// A frame with this header.
    #[must_use]
    pub const fn new(header: &Header, again: bool) -> Self {
        Self { frame: header.frame_type, closes: header.flags.has(Flags::CLOSED), again }
    }
}

/// The bytes between two sockets, in order. A bounded number of them; none is lost while the connection holds.
#[derive(Debug)]
pub struct Pipe {
    bytes: VecDeque<u8>,
    arrived: usize,
    capacity: usize,
    /// Reads what goes in.
    pub sent: Tap,
    /// Reads what comes out.
    pub read: Tap,
    /// Frames on their way.
    pub flying: VecDeque<Flying>,
}

impl Pipe {
    /// An empty pipe that holds at most `capacity` bytes.
    #[must_use]
    pub fn new(capacity: usize, segment_bytes: u32) -> Self {
        let (sent, read) = (Tap::new(segment_bytes), Tap::new(segment_bytes));
        Self { bytes: VecDeque::new(), arrived: 0, capacity, sent, read, flying: VecDeque::new() }
    }

    /// Bytes that can go in now.
    #[must_use]
    pub fn room(&self) -> usize {
        self.capacity.saturating_sub(self.bytes.len())
    }

    /// Puts bytes in. They have not arrived yet.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
    }

    /// Bytes on their way.
    #[must_use]
    pub fn travelling(&self) -> usize {
        self.bytes.len() - self.arrived
    }

    /// Lets `bytes` more arrive.
    pub fn arrive(&mut self, bytes: usize) {
        self.arrived = (self.arrived + bytes).min(self.bytes.len());
    }

    /// Bytes that can be read now.
    #[must_use]
    pub const fn readable(&self) -> usize {
        self.arrived
    }

    /// Whether nothing is in the pipe.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Reads `bytes` bytes into `out`, which is emptied first.
    pub fn read(&mut self, bytes: usize, out: &mut Vec<u8>) {
        out.clear();
        let bytes = bytes.min(self.arrived);
        out.extend(self.bytes.drain(..bytes));
        self.arrived -= bytes;
    }

    /// Forgets everything in it, as a reset does.
    pub fn reset(&mut self) {
        self.bytes.clear();
        self.arrived = 0;
        self.flying.clear();
    }

    /// Of what is on its way, `kept` bytes still arrive and the rest never does.
    pub fn cut(&mut self, kept: usize) {
        self.arrive(kept);
        self.bytes.truncate(self.arrived);
    }
}

/// A batch in the hands of the kernel.
#[derive(Debug)]
pub struct Sending {
    /// The batch, owned by the kernel until the result was reported.
    pub batch: Transmit,
    /// What the kernel has read so far, for the comparison at the end.
    pub copied: Vec<u8>,
    /// The frames of which the kernel has read the last byte.
    pub frames: Vec<(ChannelIndex, Sequence)>,
    part: usize,
    offset: u32,
    /// The result, once the kernel is done. The shell learns of it later.
    pub result: Option<u32>,
}

impl Sending {
    /// A batch of which nothing was read.
    #[must_use]
    pub const fn new(batch: Transmit) -> Self {
        Self { batch, copied: Vec::new(), frames: Vec::new(), part: 0, offset: 0, result: None }
    }

    /// Whether the batch names memory of this partition.
    #[must_use]
    pub fn reads(&self, id: PartitionId) -> bool {
        self.batch.parts.iter().any(|part| matches!(part, Part::Slice { partition, .. } if *partition == id))
    }

    /// Bytes that the kernel has taken.
    #[must_use]
    pub fn taken(&self) -> u32 {
        self.copied.len() as u32
    }

    /// Bytes that the kernel has not taken.
    #[must_use]
    pub fn left(&self) -> u32 {
        self.batch.bytes - self.taken()
    }

    /// The next piece, of at most `most` bytes and inside one part.
    pub fn next_piece(&mut self, most: u32) -> Option<Part> {
        let part = *self.batch.parts.get(self.part)?;
        let length = part_bytes(&part);
        let from = self.offset;
        let taken = most.min(length - from);
        self.offset += taken;
        if self.offset == length {
            self.part += 1;
            self.offset = 0;
        }
        Some(cut(part, from, taken))
    }

    /// The parts that cover the bytes taken so far, for the second look.
    #[must_use]
    pub fn taken_parts(&self) -> Vec<Part> {
        let mut left = self.taken();
        let mut parts = Vec::new();
        for part in &self.batch.parts {
            let taken = left.min(part_bytes(part));
            if taken == 0 {
                break;
            }
            parts.push(cut(*part, 0, taken));
            left -= taken;
        }
        parts
    }
}

/// Length of a part.
#[must_use]
pub const fn part_bytes(part: &Part) -> u32 {
    match part {
        Part::Header { bytes, .. } | Part::Slice { bytes, .. } => *bytes,
    }
}

const fn cut(part: Part, from: u32, taken: u32) -> Part {
    match part {
        Part::Header { start, .. } => Part::Header { start: start + from, bytes: taken },
        Part::Slice { partition, segment, offset, .. } => {
            Part::Slice { partition, segment, offset: offset + from, bytes: taken }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_flow::ids::{PartitionId, SegmentIndex};

    #[test]
    fn a_pipe_keeps_order_and_its_bound() {
        let mut pipe = Pipe::new(8, 4096);
        pipe.push(&[1, 2, 3, 4, 5]);
        assert_eq!((pipe.room(), pipe.readable(), pipe.travelling()), (3, 0, 5));
        pipe.arrive(3);
        let mut out = Vec::new();
        pipe.read(100, &mut out);
        assert_eq!(out, [1, 2, 3]);
        pipe.arrive(100);
        pipe.read(1, &mut out);
        assert_eq!((out.as_slice(), pipe.readable(), pipe.room()), ([4].as_slice(), 1, 7));
    }

    #[test]
    fn pieces_cover_a_batch_exactly_once() {
        let slice =
            Part::Slice { partition: PartitionId(1), segment: SegmentIndex(2), offset: 100, bytes: 10 };
        let batch = Transmit {
            headers: vec![0; 5],
            parts: vec![Part::Header { start: 0, bytes: 5 }, slice],
            bytes: 15,
        };
        let mut sending = Sending::new(batch);
        let mut found = Vec::new();
        while let Some(part) = sending.next_piece(4) {
            let (Part::Header { bytes, .. } | Part::Slice { bytes, .. }) = part;
            sending.copied.extend(std::iter::repeat_n(0, bytes as usize));
            found.push(part);
        }
        let at = |offset, bytes| Part::Slice {
            partition: PartitionId(1),
            segment: SegmentIndex(2),
            offset,
            bytes,
        };
        let head = |start, bytes| Part::Header { start, bytes };
        assert_eq!(found, [head(0, 4), head(4, 1), at(100, 4), at(104, 4), at(108, 2)]);
        assert_eq!(sending.left(), 0);
        sending.copied.truncate(7);
        assert_eq!(sending.taken_parts(), [head(0, 5), at(100, 2)]);
    }
}
