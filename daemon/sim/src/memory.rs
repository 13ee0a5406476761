//! Simulated segment memory. Whatever nobody owns is poisoned, so that a read of memory that was given up too early
//! finds poison or foreign bytes, and a write into memory that is still read is seen at once.

use std::collections::BTreeMap;

use weir_flow::ids::{GateId, SegmentIndex};
use weir_flow::shard::ReceiveMemory;

/// What a segment is filled with while nobody may read it.
pub const POISON: u8 = 0xdb;

/// The memory of one partition or gate: `segments` times `segment_bytes` bytes.
#[derive(Debug)]
pub struct Region {
    segment_bytes: usize,
    bytes: Vec<u8>,
}

impl Region {
    /// A region of poison.
    #[must_use]
    pub fn new(segments: u32, segment_bytes: u32) -> Self {
        let segment_bytes = segment_bytes as usize;
        Self { segment_bytes, bytes: vec![POISON; segments as usize * segment_bytes] }
    }

    fn range(
        &self,
        segment: SegmentIndex,
        offset: u32,
        bytes: u32,
    ) -> Result<std::ops::Range<usize>, String> {
        let end = offset as usize + bytes as usize;
        let start = segment.0 as usize * self.segment_bytes;
        if end > self.segment_bytes || start + end > self.bytes.len() {
            return Err(format!(
                "memory: segment {segment} offset {offset} bytes {bytes} lies outside the region"
            ));
        }
        Ok(start + offset as usize..start + end)
    }

    /// The bytes of a slice, or why there is no such slice.
    pub fn read(&self, segment: SegmentIndex, offset: u32, bytes: u32) -> Result<&[u8], String> {
        let range = self.range(segment, offset, bytes)?;
        Ok(&self.bytes[range])
    }

    /// Writes a slice.
    pub fn write(&mut self, segment: SegmentIndex, offset: u32, bytes: &[u8]) -> Result<(), String> {
        let range = self.range(segment, offset, bytes.len() as u32)?;
        self.bytes[range].copy_from_slice(bytes);
        Ok(())
    }

    /// Poisons a slice.
    pub fn poison(&mut self, segment: SegmentIndex, offset: u32, bytes: u32) -> Result<(), String> {
        let range = self.range(segment, offset, bytes)?;
        self.bytes[range].fill(POISON);
        Ok(())
    }

    /// Poisons a whole segment.
    pub fn poison_segment(&mut self, segment: SegmentIndex) -> Result<(), String> {
        self.poison(segment, 0, self.segment_bytes as u32)
    }
}

/// A slice of receive memory that a consumer was given and has not given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldSlice {
    /// Which segment of the gate.
    pub segment: SegmentIndex,
    /// First byte.
    pub offset: u32,
    /// Length in bytes.
    pub bytes: u32,
}

impl HeldSlice {
    const fn overlaps(&self, segment: SegmentIndex, offset: u32, bytes: u32) -> bool {
        self.segment.0 == segment.0 && offset < self.offset + self.bytes && self.offset < offset + bytes
    }
}

/// The receive memory of one gate, with every slice that its consumer may still read.
#[derive(Debug)]
pub struct GateMemory {
    /// The bytes.
    pub region: Region,
    /// Slices delivered and not given back, in no order.
    pub held: Vec<HeldSlice>,
    /// The regions of producers of the same node, by channel, while the consumer may read them.
    pub lent: BTreeMap<u32, Region>,
}

impl GateMemory {
    /// Where a slice lies that came over this channel if it is lent, else in the gate's own memory.
    pub fn source(&self, lent: Option<u32>) -> Result<&Region, String> {
        match lent {
            None => Ok(&self.region),
            Some(channel) => {
                self.lent.get(&channel).ok_or_else(|| format!("memory: channel {channel} has no lent region"))
            }
        }
    }

    /// The core has handed a slice to the consumer.
    pub fn hold(&mut self, segment: SegmentIndex, offset: u32, bytes: u32) -> Result<(), String> {
        if let Some(held) = self.held.iter().find(|held| held.overlaps(segment, offset, bytes)) {
            return Err(format!(
                "memory: segment {segment} {offset}+{bytes} was delivered; {held:?} is held"
            ));
        }
        self.held.push(HeldSlice { segment, offset, bytes });
        Ok(())
    }

    /// The core has learnt that the consumer gave these bytes back: they may be written again.
    pub fn release(&mut self, segment: SegmentIndex, offset: u32, bytes: u32) {
        let end = offset + bytes;
        let covers = |held: &HeldSlice| {
            held.segment == segment && held.offset <= offset && end <= held.offset + held.bytes
        };
        let Some(position) = self.held.iter().position(covers) else { return };
        let held = self.held.swap_remove(position);
        for (from, to) in [(held.offset, offset), (end, held.offset + held.bytes)] {
            if from < to {
                self.held.push(HeldSlice { segment, offset: from, bytes: to - from });
            }
        }
    }
}

/// The gates of one shard, as the core writes them. A write that cannot be right is kept in `fault`, because the
/// core's interface has no way to refuse it.
#[derive(Debug, Default)]
pub struct ReceiveRegions {
    gates: Vec<(GateId, GateMemory)>,
    /// The first write that was wrong.
    pub fault: Option<String>,
}

impl ReceiveRegions {
    /// Adds the memory of a gate.
    pub fn insert(&mut self, gate: GateId, segments: u32, segment_bytes: u32) {
        self.gates.push((
            gate,
            GateMemory {
                region: Region::new(segments, segment_bytes),
                held: Vec::new(),
                lent: BTreeMap::new(),
            },
        ));
    }

    /// Frees the memory of a gate, as the shell does when the core has released it.
    pub fn remove(&mut self, gate: GateId) {
        self.gates.retain(|(id, _)| *id != gate);
    }

    /// The memory of a gate.
    #[must_use]
    pub fn get(&self, gate: GateId) -> Option<&GateMemory> {
        self.gates.iter().find(|(id, _)| *id == gate).map(|(_, memory)| memory)
    }

    /// The memory of a gate.
    pub fn get_mut(&mut self, gate: GateId) -> Option<&mut GateMemory> {
        self.gates.iter_mut().find(|(id, _)| *id == gate).map(|(_, memory)| memory)
    }
}

impl ReceiveMemory for ReceiveRegions {
    fn write(&mut self, gate: GateId, segment: SegmentIndex, offset: u32, bytes: &[u8]) {
        let Some(memory) = self.get_mut(gate) else {
            self.fault.get_or_insert(format!("memory: write to gate {gate}, which has no region"));
            return;
        };
        let length = bytes.len() as u32;
        let clash = memory.held.iter().find(|held| held.overlaps(segment, offset, length)).copied();
        let result = match clash {
            Some(held) => Err(format!(
                "memory: write to segment {segment} {offset}+{length} of gate {gate}, whose consumer still holds {}+{}",
                held.offset, held.bytes
            )),
            None => memory.region.write(segment, offset, bytes),
        };
        if let Err(text) = result {
            self.fault.get_or_insert(text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_into_held_slices_and_outside_the_region_are_seen() {
        let mut regions = ReceiveRegions::default();
        let gate = GateId(3);
        regions.insert(gate, 2, 64);
        regions.write(gate, SegmentIndex(1), 0, &[1; 16]);
        assert_eq!(regions.fault, None);
        regions.get_mut(gate).unwrap().held.push(HeldSlice {
            segment: SegmentIndex(1),
            offset: 0,
            bytes: 16,
        });
        regions.write(gate, SegmentIndex(1), 16, &[2; 16]);
        assert_eq!(regions.fault, None, "behind the held slice is free");
        regions.write(gate, SegmentIndex(1), 15, &[2; 1]);
        assert!(regions.fault.take().unwrap().contains("still holds 0+16"));
        regions.get_mut(gate).unwrap().release(SegmentIndex(1), 4, 4);
        regions.write(gate, SegmentIndex(1), 4, &[3; 4]);
        assert_eq!(regions.fault, None, "the middle was given back");
        regions.write(gate, SegmentIndex(1), 7, &[3; 2]);
        assert!(regions.fault.take().unwrap().contains("still holds 8+8"));
        regions.write(gate, SegmentIndex(1), 60, &[2; 5]);
        assert!(regions.fault.take().unwrap().contains("outside the region"));
        regions.write(GateId(4), SegmentIndex(0), 0, &[1]);
        assert!(regions.fault.take().unwrap().contains("no region"));
    }
}
