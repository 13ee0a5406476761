//! What a gate has of producers on its own node: slices that stay in the producer's region and are read there.
//!
//! Such a slice has arrived when it is named, and is acknowledged when the application has given all of it back: the two
//! are one, since the producer writes over it as soon as it is acknowledged. Acknowledgements are in order, as for any
//! other channel. What is given back names a segment and a length, not a slice, so that of several slices in one segment
//! the first counts as given back first. That harms nobody: a segment is written again when all of it has come back.

use alloc::collections::VecDeque;
use alloc::format;
use alloc::vec::Vec;

use crate::ids::SegmentIndex;
use crate::send::partition::fault;
use crate::shard::ClientFault;

/// Most slices of one channel that its gate may have at a time. What waits meanwhile is merged at the sender.
const SLICES_MAX: u32 = 32;

/// A slice that is not wholly given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LentSlice {
    sequence: u64,
    segment: SegmentIndex,
    bytes: u32,
}

/// A segment of which the application holds something, or has given something back that completes no slice yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LentSegment {
    segment: SegmentIndex,
    held: u32,
    returned: u32,
}

/// What one channel has of its producer's region.
#[derive(Debug)]
pub(crate) struct Lent {
    window: u32,
    slices: VecDeque<LentSlice>,
    segments: Vec<LentSegment>,
}

impl Lent {
    /// So many slices at a time that all channels of a gate together have no more than its rings hold: those have room
    /// for two slices of each segment, and two for each channel.
    pub(crate) fn new(segments: u32, channels: u32) -> Self {
        let share = segments.saturating_mul(2) / channels.max(1);
        Self {
            window: share.saturating_add(2).min(SLICES_MAX),
            slices: VecDeque::new(),
            segments: Vec::new(),
        }
    }

    /// Slices that may still be named.
    pub(crate) fn ready(&self) -> u32 {
        self.window.saturating_sub(self.count())
    }

    /// Slices that are not wholly given back.
    pub(crate) fn count(&self) -> u32 {
        self.slices.len() as u32
    }

    pub(crate) const fn window(&self) -> u32 {
        self.window
    }

    /// Frames before this are acknowledged; `next` is the number of the next one to come.
    pub(crate) fn acked(&self, next: u64) -> u64 {
        self.slices.front().map_or(next, |slice| slice.sequence)
    }

    /// Bytes that the application holds of all slices.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.segments.iter().map(|state| u64::from(state.held)).sum()
    }

    /// Bytes of all slices that have not come back.
    pub(crate) fn bytes(&self) -> u64 {
        let all: u64 = self.slices.iter().map(|slice| u64::from(slice.bytes)).sum();
        let returned: u64 = self.segments.iter().map(|state| u64::from(state.returned)).sum();
        all.saturating_sub(returned)
    }

    /// A slice was named. False if there are as many as there may be.
    pub(crate) fn take(&mut self, sequence: u64, segment: SegmentIndex, bytes: u32) -> bool {
        let has_room = self.ready() > 0;
        if has_room {
            self.slices.push_back(LentSlice { sequence, segment, bytes });
        }
        has_room
    }

    /// The application gets bytes of a segment.
    pub(crate) fn hand_up(&mut self, segment: SegmentIndex, bytes: u32) {
        match self.segments.iter_mut().find(|state| state.segment == segment) {
            Some(state) => state.held = state.held.saturating_add(bytes),
            None => self.segments.push(LentSegment { segment, held: bytes, returned: 0 }),
        }
    }

    /// The application gave bytes of a segment back.
    pub(crate) fn give_back(&mut self, segment: SegmentIndex, bytes: u32) -> Result<(), ClientFault> {
        let Some(state) = self.segments.iter_mut().find(|state| state.segment == segment && state.held > 0)
        else {
            return Err(fault("segment", format!("{segment} is not held; needed: one that was handed up")));
        };
        if bytes == 0 || bytes > state.held {
            let text =
                format!("is {bytes} of segment {segment}; needed: 1 to {}, the bytes held", state.held);
            return Err(fault("bytes", text));
        }
        state.held -= bytes;
        state.returned += bytes;
        while let Some(front) = self.slices.front().copied()
            && let Some(state) = self.segments.iter_mut().find(|state| state.segment == front.segment)
            && state.returned >= front.bytes
        {
            state.returned -= front.bytes;
            self.slices.pop_front();
        }
        self.segments.retain(|state| state.held > 0 || state.returned > 0);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: SegmentIndex = SegmentIndex(3);
    const B: SegmentIndex = SegmentIndex(5);

    #[test]
    fn slices_are_acknowledged_in_order_when_they_are_wholly_given_back() {
        let mut lent = Lent::new(10, 1);
        assert_eq!((lent.ready(), lent.acked(7)), (22, 7), "nothing is there");
        for (sequence, segment) in [(7, A), (8, A), (9, B)] {
            assert!(lent.take(sequence, segment, 100));
            lent.hand_up(segment, 100);
        }
        assert_eq!((lent.ready(), lent.acked(10)), (19, 7));
        lent.give_back(B, 100).unwrap();
        assert_eq!(lent.acked(10), 7, "what came back out of turn waits");
        lent.give_back(A, 150).unwrap();
        assert_eq!((lent.acked(10), lent.held_bytes(), lent.bytes()), (8, 50, 50));
        lent.give_back(A, 50).unwrap();
        assert_eq!((lent.acked(10), lent.ready(), lent.bytes()), (10, 22, 0));
    }

    #[test]
    fn nothing_is_given_back_that_is_not_held() {
        let mut lent = Lent::new(10, 1);
        assert!(lent.take(0, A, 100));
        assert!(lent.give_back(A, 1).is_err(), "it was not handed up");
        lent.hand_up(A, 100);
        assert!(lent.give_back(A, 101).is_err() && lent.give_back(A, 0).is_err());
        assert!(lent.give_back(B, 1).is_err());
        lent.give_back(A, 100).unwrap();
        assert!(lent.give_back(A, 1).is_err(), "it was given back");
    }

    #[test]
    fn a_gate_of_many_channels_has_no_more_slices_than_its_rings_hold() {
        for (segments, channels) in [(10, 1), (136, 64), (2_008, 1_000), (1, 1), (4, 0)] {
            let window = Lent::new(segments, channels).window();
            assert!((2..=SLICES_MAX).contains(&window));
            assert!(window * channels <= 2 * segments + 2 * channels, "{segments}, {channels}: {window}");
        }
        let mut lent = Lent::new(1, 1);
        assert!((0..4).all(|sequence| lent.take(sequence, A, 1)));
        assert!(!lent.take(4, A, 1));
    }
}
