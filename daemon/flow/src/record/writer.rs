//! How a record is cut over segments.

use core::fmt;

use super::{CHECKSUM_BYTES, PREFIX_BYTES};
use crate::checksum::crc32c;

/// A record over the limit, refused before a byte of it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordTooLarge {
    /// Bytes of the record.
    pub bytes: usize,
    /// Most bytes that a record may have.
    pub max: u32,
}

impl fmt::Display for RecordTooLarge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "record has {} bytes; needed: at most {}", self.bytes, self.max)
    }
}

impl core::error::Error for RecordTooLarge {}

/// Bytes that a record of `record_bytes` takes on segments.
#[must_use]
#[inline]
pub const fn frame_bytes(record_bytes: usize, checksum: bool) -> usize {
    let checksum_bytes = if checksum { CHECKSUM_BYTES } else { 0 };
    record_bytes.saturating_add(PREFIX_BYTES + checksum_bytes)
}

/// One record on its way into segments.
#[derive(Clone, Debug)]
pub struct RecordWriter<'a> {
    prefix: [u8; PREFIX_BYTES],
    record: &'a [u8],
    checksum: Option<[u8; CHECKSUM_BYTES]>,
    /// How much of the three, taken as one, was given out.
    written: usize,
}

impl<'a> RecordWriter<'a> {
    /// A record of which nothing is written. `checksum` says whether the exchange has checksums.
    ///
    /// # Errors
    /// [`RecordTooLarge`] if it has more than `record_bytes_max` bytes.
    #[inline]
    pub fn new(record: &'a [u8], checksum: bool, record_bytes_max: u32) -> Result<Self, RecordTooLarge> {
        match u32::try_from(record.len()) {
            Ok(bytes) if bytes <= record_bytes_max => Ok(Self {
                prefix: bytes.to_le_bytes(),
                record,
                checksum: checksum.then(|| crc32c(record).to_le_bytes()),
                written: 0,
            }),
            _ => Err(RecordTooLarge { bytes: record.len(), max: record_bytes_max }),
        }
    }

    /// The next bytes to write, at most `room` in all: three pieces, one behind the other, any of them maybe
    /// empty. They count as written from here on.
    #[inline]
    pub fn next_pieces(&mut self, room: usize) -> [&[u8]; 3] {
        let checksum = self.checksum.as_ref().map_or(&[][..], |bytes| bytes.as_slice());
        if self.written == 0 && room >= self.remaining() {
            self.written = self.remaining();
            return [&self.prefix, self.record, checksum];
        }
        let (mut skip, mut room) = (self.written, room);
        let mut taken = 0;
        let pieces = [self.prefix.as_slice(), self.record, checksum].map(|part| {
            let skipped = skip.min(part.len());
            skip -= skipped;
            let rest = part.get(skipped..).unwrap_or_default();
            let piece = rest.get(..room).unwrap_or(rest);
            room -= piece.len();
            taken += piece.len();
            piece
        });
        self.written += taken;
        pieces
    }

    /// Bytes still to write.
    #[must_use]
    #[inline]
    pub const fn remaining(&self) -> usize {
        frame_bytes(self.record.len(), self.checksum.is_some()).saturating_sub(self.written)
    }

    /// Whether some of it is written, so that it must be finished (and overdraft may be used for that).
    #[must_use]
    #[inline]
    pub const fn is_begun(&self) -> bool {
        self.written > 0
    }
}
