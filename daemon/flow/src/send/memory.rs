//! The segments of a partition: which of them its client has open, and which it gets back.
//!
//! A client writes into *builders*, one segment at a time in each. A subpartition has a builder of its own, but for
//! `broadcast`: there all subpartitions share one, each segment is written and charged once, and every subpartition
//! has its slices in a queue of its own. The counts of a segment are those of all subpartitions together, so that the
//! slowest of them decides when it has left the queue and when it is free.

use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;

use super::segments::{SegmentState, Segments};
use crate::ids::{SegmentIndex, SubpartitionIndex};

/// One place that a client writes into.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Builder {
    /// The segment that is open.
    pub(crate) segment: Option<SegmentIndex>,
    pub(crate) is_end_submitted: bool,
    /// Bytes handed over, ever.
    pub(crate) submitted_bytes: u64,
    /// Segments of it that have left the queue of every subpartition, ever.
    pub(crate) sent_segments: u64,
    /// What its client sees changed since the shell last looked.
    pub(crate) is_changed: bool,
}

/// The segments of a partition, and those that its client gets back.
#[derive(Debug)]
pub(crate) struct SendMemory {
    pub(crate) segments: Segments,
    pub(crate) builders: Vec<Builder>,
    pub(crate) returned: VecDeque<SegmentIndex>,
    /// Builders of which the client sees something that changed.
    pub(crate) changed: Vec<SubpartitionIndex>,
    /// Slices in batches or begun frames. Memory may not go away while there are any.
    pub(crate) in_kernel: u32,
    /// Slices that the kernel still reads although a socket took them. As for `in_kernel`.
    pub(crate) held: u32,
}

impl SendMemory {
    pub(crate) fn new(segments: u32, builders: u32) -> Self {
        Self {
            segments: Segments::new(segments),
            builders: vec![Builder::default(); builders as usize],
            returned: VecDeque::new(),
            changed: Vec::new(),
            in_kernel: 0,
            held: 0,
        }
    }

    pub(crate) fn builder(&self, index: SubpartitionIndex) -> Option<&Builder> {
        self.builders.get(index.0 as usize)
    }

    pub(crate) fn builder_mut(&mut self, index: SubpartitionIndex) -> Option<&mut Builder> {
        self.builders.get_mut(index.0 as usize)
    }

    /// Changes the counts of a segment in use. One that leaves the queue by that is counted, one that is free by that
    /// goes back to the client.
    pub(crate) fn change(&mut self, segment: SegmentIndex, change: impl FnOnce(&mut SegmentState)) {
        let Some(state) = self.segments.get_mut(segment) else { return };
        change(state);
        let leaves = state.is_gone_from_queue() && !state.has_left;
        state.has_left |= leaves;
        let owner = state.owner;
        if state.is_free() {
            *state = SegmentState { is_returning: true, ..SegmentState::default() };
            self.returned.push_back(segment);
        }
        if leaves && let Some(builder) = self.builder_mut(owner) {
            builder.sent_segments += 1;
            self.mark_changed(owner);
        }
    }

    /// Something changed that the client sees of a builder.
    pub(crate) fn mark_changed(&mut self, index: SubpartitionIndex) {
        if let Some(builder) = self.builders.get_mut(index.0 as usize)
            && !builder.is_changed
        {
            builder.is_changed = true;
            self.changed.push(index);
        }
    }

    /// Appends the builders of which the client sees something that changed since the last call.
    pub(crate) fn take_changed(&mut self, out: &mut Vec<SubpartitionIndex>) {
        for index in self.changed.drain(..) {
            if let Some(builder) = self.builders.get_mut(index.0 as usize) {
                builder.is_changed = false;
            }
            out.push(index);
        }
    }

    /// The client closed what it had open in a builder.
    pub(crate) fn close_builder(&mut self, index: SubpartitionIndex) {
        let segment = self.builder_mut(index).and_then(|builder| builder.segment.take());
        if let Some(segment) = segment {
            self.change(segment, |state| state.is_builder = false);
        }
    }

    /// The next segment that the client gets back.
    pub(crate) fn poll_returned(&mut self) -> Option<SegmentIndex> {
        let segment = self.returned.pop_front()?;
        if let Some(state) = self.segments.get_mut(segment) {
            state.is_returning = false;
        }
        Some(segment)
    }

    /// The kernel reads a slice of this segment, whatever becomes of the batch that it is in.
    pub(crate) fn hold(&mut self, segment: SegmentIndex) {
        self.held += 1;
        self.change(segment, |state| state.held += 1);
    }

    /// The kernel no longer reads a slice for which [`Self::hold`] was called.
    pub(crate) fn release(&mut self, segment: SegmentIndex) {
        self.held = self.held.saturating_sub(1);
        self.change(segment, |state| state.held = state.held.saturating_sub(1));
    }

    /// Whether the kernel may read any of it.
    pub(crate) const fn is_in_kernel(&self) -> bool {
        self.in_kernel > 0 || self.held > 0
    }

    /// The kernel let go of a slice whose channel is over.
    pub(crate) fn drop_in_kernel(&mut self, segment: SegmentIndex) {
        self.in_kernel = self.in_kernel.saturating_sub(1);
        self.change(segment, |state| state.in_kernel = state.in_kernel.saturating_sub(1));
    }
}
