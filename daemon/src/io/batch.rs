//! What one send operation sends.

use std::fmt;
use std::sync::Arc;

use crate::memory::SendRegion;

/// Most parts of one batch: the kernel's limit on the vectors of one operation.
pub const PARTS_MAX: usize = 1024;

/// Bytes to send in one operation, in order: frame headers, which live in the batch, and slices, which live in send
/// regions. The ring owns it while it is in flight, so nothing that it refers to can go away.
#[derive(Debug, Default)]
pub struct SendBatch {
    /// Memory of the headers.
    pub headers: Vec<u8>,
    /// What to send, in order. At most [`PARTS_MAX`].
    pub parts: Vec<SendPart>,
    /// Sum over the parts, in bytes.
    pub bytes: u32,
}

/// One range of a [`SendBatch`], of at least 1 byte.
#[derive(Clone, Debug)]
pub enum SendPart {
    /// A range of [`SendBatch::headers`].
    Header {
        /// Its first byte.
        start: u32,
        /// Its length in bytes.
        bytes: u32,
    },
    /// A slice of a segment.
    Region {
        /// The region.
        region: Arc<SendRegion>,
        /// The segment.
        segment: u32,
        /// Where in the segment it starts, in bytes.
        offset: u32,
        /// Its length in bytes.
        bytes: u32,
    },
}

impl SendPart {
    /// Length in bytes.
    #[must_use]
    pub const fn bytes(&self) -> u32 {
        match self {
            Self::Header { bytes, .. } | Self::Region { bytes, .. } => *bytes,
        }
    }
}

/// What is wrong with a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchError {
    /// It has no part.
    Empty,
    /// It has more parts than one operation can have; holds the number found.
    TooManyParts(usize),
    /// This part does not lie inside the headers or its segment, or has no byte.
    Part(usize),
    /// The parts do not add up to the batch's length.
    Bytes {
        /// Sum over the parts.
        found: u64,
        /// What the batch says.
        stated: u32,
    },
}

impl fmt::Display for BatchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("batch has no part; needed: at least 1"),
            Self::TooManyParts(found) => write!(f, "batch has {found} parts; needed: at most {PARTS_MAX}"),
            Self::Part(index) => write!(f, "part {index} of the batch is empty or outside its memory"),
            Self::Bytes { found, stated } => {
                write!(f, "parts add up to {found} bytes; the batch states {stated}")
            }
        }
    }
}

impl SendBatch {
    /// Calls `each` with the address and length of every part, in order. Nothing is read. `headers`: where the headers were
    /// copied to, if they were.
    ///
    /// The addresses stay valid until the batch is changed or dropped; moving it is fine.
    pub(super) fn for_each_range(
        &self,
        headers: Option<*const u8>,
        mut each: impl FnMut(*const u8, u32),
    ) -> Result<(), BatchError> {
        if self.parts.is_empty() {
            return Err(BatchError::Empty);
        }
        if self.parts.len() > PARTS_MAX {
            return Err(BatchError::TooManyParts(self.parts.len()));
        }
        let mut found = 0;
        for (index, part) in self.parts.iter().enumerate() {
            let address = self.address(part, headers).ok_or(BatchError::Part(index))?;
            each(address, part.bytes());
            found += u64::from(part.bytes());
        }
        if found != u64::from(self.bytes) {
            return Err(BatchError::Bytes { found, stated: self.bytes });
        }
        Ok(())
    }

    fn address(&self, part: &SendPart, headers: Option<*const u8>) -> Option<*const u8> {
        if part.bytes() == 0 {
            return None;
        }
        match part {
            SendPart::Header { start, bytes } => {
                let start = usize::try_from(*start).ok()?;
                let end = start.checked_add(usize::try_from(*bytes).ok()?)?;
                let range = self.headers.get(start..end)?;
                Some(headers.map_or(range.as_ptr(), |headers| headers.wrapping_add(start)))
            }
            SendPart::Region { region, segment, offset, bytes } => {
                Some(region.slice(*segment, *offset, *bytes)?.address())
            }
        }
    }
}
