//! How slices are packed into the receiver's segments, and what that costs.
//!
//! The sender decides. A slice is appended to the open receive segment if it fits behind what is there; else it
//! opens the next one, which costs a credit. Slices lie behind each other without gaps and are never cut. `backlog` is
//! how many segments the queued slices would open if they were sent now, in order; it is kept up by simulating that
//! packing at the tail of the queue, so that a push or a send costs the same however long the queue is.
//!
//! A consumer that wants less in flight says how far segments are to be filled: less than that is still room in a
//! segment, more is not. It binds nobody: a slice that is longer opens a segment of its own.

/// The sender's view of the receiver's segments of one channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Packing {
    segment_bytes: u32,
    /// Bytes that a segment is filled to.
    fill_bytes: u32,
    /// Receive segments opened since the channel began.
    opened: u64,
    /// Receive segments that may be opened since the channel began.
    limit: u64,
    /// Bytes in the open receive segment; none while no segment is open.
    fill: Option<u32>,
    backlog: u32,
    /// `fill` as it will be when the queue is sent.
    tail_fill: Option<u32>,
    /// Whether the last queued slice opens a segment.
    tail_opens: bool,
}

impl Packing {
    pub(crate) const fn new(segment_bytes: u32) -> Self {
        Self {
            segment_bytes,
            fill_bytes: segment_bytes,
            opened: 0,
            limit: 0,
            fill: None,
            backlog: 0,
            tail_fill: None,
            tail_opens: false,
        }
    }

    pub(crate) const fn backlog(&self) -> u32 {
        self.backlog
    }

    pub(crate) const fn opened(&self) -> u64 {
        self.opened
    }

    pub(crate) const fn limit(&self) -> u64 {
        self.limit
    }

    pub(crate) const fn has_open(&self) -> bool {
        self.fill.is_some()
    }

    pub(crate) const fn fill(&self) -> Option<u32> {
        self.fill
    }

    pub(crate) fn credit(&self) -> u32 {
        u32::try_from(self.limit.saturating_sub(self.opened)).unwrap_or(u32::MAX)
    }

    /// Takes a limit from the receiver; an older, lower one is without effect. Whether it rose.
    pub(crate) fn handle_limit(&mut self, limit: u64) -> bool {
        let rose = limit > self.limit;
        self.limit = self.limit.max(limit);
        rose
    }

    /// Whether a slice of this length can be sent now.
    pub(crate) fn can_send(&self, bytes: u32) -> bool {
        self.fits(self.fill, bytes) || self.opened < self.limit
    }

    fn fits(&self, fill: Option<u32>, bytes: u32) -> bool {
        fill.is_some_and(|fill| fill.saturating_add(bytes) <= self.fill_bytes)
    }

    /// A slice was appended to the queue.
    pub(crate) fn push(&mut self, bytes: u32) {
        self.tail_opens = !self.fits(self.tail_fill, bytes);
        if self.tail_opens {
            self.backlog += 1;
            self.tail_fill = Some(bytes);
        } else {
            self.tail_fill = self.tail_fill.map(|fill| fill + bytes);
        }
    }

    /// The last slice of the queue, so far `bytes` long, grew by `more`.
    pub(crate) fn extend(&mut self, bytes: u32, more: u32) {
        let before = self.tail_fill.unwrap_or(0).saturating_sub(bytes);
        if !self.tail_opens && !self.fits(Some(before), bytes + more) {
            self.tail_opens = true;
            self.backlog += 1;
        }
        self.tail_fill = Some(if self.tail_opens { bytes + more } else { before + bytes + more });
    }

    /// The first slice of the queue is sent. Whether it opens a segment.
    pub(crate) fn take(&mut self, bytes: u32) -> bool {
        let opens = !self.fits(self.fill, bytes);
        if opens {
            self.opened += 1;
            self.backlog = self.backlog.saturating_sub(1);
            self.fill = Some(bytes);
        } else {
            self.fill = self.fill.map(|fill| fill + bytes);
        }
        opens
    }

    /// The open segment is given up: nothing more goes into it. Only called when the first slice of the queue does
    /// not fit into it, so the backlog stays as it is.
    pub(crate) fn give_up(&mut self) {
        self.fill = None;
    }

    /// What was taken did not leave. The caller puts the slice back and calls [`Self::recount`].
    pub(crate) fn revert(&mut self, opened: bool, fill_before: Option<u32>) {
        self.opened -= u64::from(opened);
        self.fill = fill_before;
    }

    /// The receiver said what it has: the next slice is packed behind that. The caller calls [`Self::recount`].
    pub(crate) fn resume(&mut self, opened: u64, fill: Option<u32>) {
        self.opened = opened;
        self.fill = fill;
    }

    /// How far segments are filled from now on, also the one that is open: never over their size. The caller calls
    /// [`Self::recount`].
    pub(crate) fn set_fill(&mut self, bytes: u32) {
        self.fill_bytes = bytes.min(self.segment_bytes);
    }

    /// Simulates the packing of the whole queue anew.
    pub(crate) fn recount(&mut self, queue: impl Iterator<Item = u32>) {
        self.backlog = 0;
        self.tail_fill = self.fill;
        self.tail_opens = false;
        queue.for_each(|bytes| self.push(bytes));
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        Push(u32),
        Extend(u32),
        Send,
        Limit(u64),
        Fill(u32),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (1..=64_u32).prop_map(Step::Push),
            (1..=64_u32).prop_map(Step::Extend),
            Just(Step::Send),
            (0..40_u64).prop_map(Step::Limit),
            (1..=80_u32).prop_map(Step::Fill),
        ]
    }

    proptest! {
        /// The running backlog is what simulating the whole queue gives, whatever came before.
        #[test]
        fn running_backlog_equals_a_full_count(steps in proptest::collection::vec(step(), 0..200)) {
            let mut packing = Packing::new(64);
            let mut queue: VecDeque<u32> = VecDeque::new();
            for step in steps {
                match step {
                    Step::Push(bytes) => {
                        packing.push(bytes);
                        queue.push_back(bytes);
                    }
                    Step::Extend(more) => {
                        if let Some(last) = queue.back_mut() {
                            let more = more.min(64 - *last);
                            packing.extend(*last, more);
                            *last += more;
                        }
                    }
                    Step::Send => {
                        if queue.front().is_some_and(|bytes| packing.can_send(*bytes)) {
                            packing.take(queue.pop_front().unwrap());
                        } else if !queue.is_empty() {
                            packing.give_up();
                        }
                    }
                    Step::Limit(limit) => {
                        packing.handle_limit(limit);
                    }
                    Step::Fill(bytes) => {
                        packing.set_fill(bytes);
                        packing.recount(queue.iter().copied());
                    }
                }
                let mut counted = packing.clone();
                counted.recount(queue.iter().copied());
                prop_assert_eq!(packing.backlog(), counted.backlog());
                prop_assert_eq!(packing.tail_fill, counted.tail_fill);
                prop_assert!(packing.opened <= packing.limit);
            }
        }
    }

    #[test]
    fn a_trickle_of_small_slices_shares_one_credit() {
        let mut packing = Packing::new(32 << 10);
        packing.handle_limit(1);
        for sent in 0..327 {
            packing.push(100);
            assert!(packing.can_send(100), "slice {sent}");
            packing.take(100);
        }
        packing.push(100);
        assert!(!packing.can_send(100), "the 328th slice does not fit into 32 KiB");
        assert_eq!((packing.opened(), packing.backlog()), (1, 1));
    }
}
