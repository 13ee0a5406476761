//! The records of the job: every word written by the sender, every word added up by the receiver, as over Weir.

use std::sync::atomic::Ordering;

use weir_bench::app::Counter;
use weir_bench::blast;

/// Bytes that are written at once where records are packed by their user: as many as a segment of Weir has.
pub(crate) const CHUNK_BYTES: usize = 32 * 1024;

/// Bytes of the length before each record where the library does not keep records apart.
const LENGTH_BYTES: usize = 4;

/// Writes the records of one stream.
pub(crate) struct Source {
    record_bytes: usize,
    /// Records that are still to be written.
    left: u64,
    number: u64,
}

impl Source {
    /// Records of so many bytes, without end unless there is a `limit`.
    pub(crate) fn new(record_bytes: usize, limit: Option<u64>) -> Self {
        Self { record_bytes, left: limit.unwrap_or(u64::MAX), number: 0 }
    }

    /// Writes the next record; whether there is one.
    pub(crate) fn record(&mut self, record: &mut [u8]) -> bool {
        if self.left == 0 {
            return false;
        }
        self.left -= 1;
        self.number = blast::fill(record, self.number);
        true
    }

    /// Replaces `chunk` by as many records as fit into [`CHUNK_BYTES`], or by one that is longer, each behind its length.
    /// None are left if it is empty.
    pub(crate) fn chunk(&mut self, chunk: &mut Vec<u8>) {
        let each = LENGTH_BYTES + self.record_bytes;
        let count = ((CHUNK_BYTES / each).max(1) as u64).min(self.left) as usize;
        chunk.resize(count * each, 0);
        for behind_length in chunk.chunks_exact_mut(each) {
            let (length, record) = behind_length.split_at_mut(LENGTH_BYTES);
            length.copy_from_slice(&(record.len() as u32).to_le_bytes());
            self.record(record);
        }
    }
}

/// Takes the bytes of one stream apart into records and adds them up, however they come cut.
#[derive(Default)]
pub(crate) struct Sink {
    length: [u8; LENGTH_BYTES],
    length_filled: usize,
    record_bytes: usize,
    /// Bytes of the record that are there.
    taken: usize,
}

impl Sink {
    /// Takes what has come, and counts it.
    pub(crate) fn take(&mut self, mut bytes: &[u8], counter: &Counter) {
        let (mut records, mut counted, mut checksum) = (0, 0, 0_u64);
        while !bytes.is_empty() {
            if self.length_filled < LENGTH_BYTES {
                let part = bytes.len().min(LENGTH_BYTES - self.length_filled);
                self.length[self.length_filled..][..part].copy_from_slice(&bytes[..part]);
                self.length_filled += part;
                bytes = &bytes[part..];
                if self.length_filled < LENGTH_BYTES {
                    break;
                }
                self.record_bytes = u32::from_le_bytes(self.length) as usize;
                self.taken = 0;
            }
            let (part, rest) = bytes.split_at(bytes.len().min(self.record_bytes - self.taken));
            checksum = checksum.wrapping_add(sum_from(part, self.taken, self.record_bytes));
            self.taken += part.len();
            bytes = rest;
            if self.taken == self.record_bytes {
                records += 1;
                counted += self.record_bytes as u64;
                self.length_filled = 0;
            }
        }
        count(counter, records, counted, checksum);
    }
}

/// What the bytes from `at` on add to the sum of their record, whose other words may have come before or come later.
fn sum_from(bytes: &[u8], at: usize, record_bytes: usize) -> u64 {
    let words_end = record_bytes & !7;
    let to_word = (at.next_multiple_of(8) - at).min(bytes.len());
    let (head, aligned) = bytes.split_at(to_word);
    let whole = (aligned.len() & !7).min(words_end.saturating_sub(at + to_word));
    let (whole, tail) = aligned.split_at(whole);
    let single = |bytes: &[u8], from: usize| {
        bytes.iter().zip(from..).fold(0_u64, |sum, (byte, at)| {
            let shift = if at < words_end { 8 * (at % 8) } else { 0 };
            sum.wrapping_add(u64::from(*byte) << shift)
        })
    };
    single(head, at).wrapping_add(blast::sum(whole)).wrapping_add(single(tail, at + head.len() + whole.len()))
}

/// Adds to a counter which only the calling thread writes.
pub(crate) fn count(counter: &Counter, records: u64, bytes: u64, checksum: u64) {
    for (field, more) in [(&counter.records, records), (&counter.bytes, bytes), (&counter.checksum, checksum)]
    {
        field.store(field.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
    }
}
