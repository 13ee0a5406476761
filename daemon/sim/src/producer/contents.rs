//! What a producer writes: records of its kind of length, no two alike.

use weir_flow::record::RecordWriter;

use super::Producer;
use crate::model::Content;
use crate::plan::Records;

impl Producer {
    /// The length of the next record.
    pub(super) fn record_bytes(&mut self) -> u32 {
        let segment = u64::from(self.shape.segment_bytes);
        let bytes = match self.plan.lengths {
            Records::Trickle => self.rng.below(64),
            Records::Small => self.rng.below(400),
            Records::Mixed if self.rng.chance(50) => self.rng.below(4 * segment),
            Records::Mixed => self.rng.small(segment) - 1,
            Records::Long => segment / 2 + self.rng.below(2 * segment),
        };
        bytes as u32
    }

    /// A record that is like no other.
    pub(super) fn next_content(&mut self, bytes: u32) -> Content {
        self.number += 1;
        let seed = crate::rng::mix(u64::from(self.key.exchange) << 40 | u64::from(self.key.producer) << 32)
            .wrapping_add(self.number << 20);
        Content { seed, bytes }
    }
}

/// A record as it lies on segments, taken from the core's writer in pieces of odd sizes.
pub(super) fn frame(record: &[u8], checksum: bool, record_bytes_max: u32) -> Result<Vec<u8>, String> {
    let writer = RecordWriter::new(record, checksum, record_bytes_max);
    let mut writer = writer.map_err(|error| error.to_string())?;
    let mut framed = Vec::with_capacity(writer.remaining());
    while writer.remaining() > 0 {
        let room = framed.len() % 5 + 1 + framed.len() * 3;
        writer.next_pieces(room).iter().for_each(|piece| framed.extend_from_slice(piece));
    }
    Ok(framed)
}
