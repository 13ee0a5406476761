//! The batch of a link: which frames it holds, and how to undo each.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::ids::Time;
use crate::link::{ReceiveKey, SendKey};
use crate::send::subpartition::Slice;
use crate::wire::{Limit, Message};

/// What a planned frame is, with what is needed to undo it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    /// A message that happens once; the first of [`Batch::control`] that is not accounted for yet.
    Control,
    LinkResume,
    Resume {
        key: ReceiveKey,
        /// What was announced before.
        before: Limit,
    },
    Ping(u64),
    Pong(u64),
    Limit {
        key: ReceiveKey,
        /// What was announced before.
        before: Limit,
    },
    BufferSize {
        key: ReceiveKey,
        /// What was told before.
        before: Option<u32>,
    },
    Slice {
        key: SendKey,
        slice: Slice,
        opens: bool,
        fill_before: Option<u32>,
    },
    Event {
        key: SendKey,
    },
    End {
        key: SendKey,
    },
    Backlog {
        key: SendKey,
        fill_before: Option<u32>,
        told_before: u32,
    },
}

/// A frame in a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Planned {
    pub(crate) frame: Frame,
    /// Where its header, and all of a control frame, begins in the headers of the batch.
    pub(crate) header_start: u32,
    pub(crate) header_bytes: u32,
    /// Bytes of its slice that are to be sent: the last ones, if the frame was begun before.
    pub(crate) slice_bytes: u32,
}

impl Planned {
    pub(crate) const fn bytes(&self) -> u32 {
        self.header_bytes + self.slice_bytes
    }
}

/// A channel's turn in a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn {
    pub(crate) key: SendKey,
    /// How many frames the batch had when the turn began.
    pub(crate) first_frame: usize,
    /// What the channel had left before it got its quantum; none for a turn that an earlier batch began.
    pub(crate) deficit_before: Option<u32>,
}

/// The frames of a link that the kernel has, or of which it has taken a part.
#[derive(Debug)]
pub(crate) struct Batch {
    /// In the order of sending. When nothing is in flight, at most one: the frame that was begun.
    pub(crate) frames: Vec<Planned>,
    /// Copy of the headers, since a begun frame must go on with the same bytes.
    pub(crate) headers: Vec<u8>,
    /// The control messages among `frames`.
    pub(crate) control: VecDeque<Message>,
    /// The turns in which the data among `frames` was planned, in order.
    pub(crate) turns: Vec<Turn>,
    pub(crate) is_in_flight: bool,
    /// Since when; or since when it was the last time.
    pub(crate) in_flight_since: Time,
    /// How long batches were in flight that no longer are, in nanoseconds.
    in_flight_ns: u64,
    /// Whether the first frame was begun by an earlier batch.
    pub(crate) is_first_begun: bool,
    /// Size of the next batch.
    pub(crate) bytes_max: u32,
    window_start: Time,
    window_bytes: u64,
}

impl Batch {
    pub(crate) fn new(bytes_max: u32, now: Time) -> Self {
        Self {
            frames: Vec::new(),
            headers: Vec::new(),
            control: VecDeque::new(),
            turns: Vec::new(),
            is_in_flight: false,
            in_flight_since: now,
            in_flight_ns: 0,
            is_first_begun: false,
            bytes_max,
            window_start: now,
            window_bytes: 0,
        }
    }

    /// The batch is with the kernel.
    pub(crate) fn begin_flight(&mut self, now: Time) {
        self.is_in_flight = true;
        self.in_flight_since = now;
    }

    /// The kernel has given it back.
    pub(crate) fn end_flight(&mut self, now: Time) {
        self.in_flight_ns = self.in_flight_ns_at(now);
        self.is_in_flight = false;
    }

    /// How long batches were in flight, this one included, in nanoseconds.
    pub(crate) fn in_flight_ns_at(&self, now: Time) -> u64 {
        let open_ns = if self.is_in_flight { now.since_ns(self.in_flight_since) } else { 0 };
        self.in_flight_ns.saturating_add(open_ns)
    }

    /// What is planned from here on belongs to this channel's turn.
    pub(crate) fn begin_turn(&mut self, key: SendKey, deficit_before: Option<u32>) {
        self.turns.push(Turn { key, first_frame: self.frames.len(), deficit_before });
    }

    /// Whether a frame was begun and must be finished before anything else.
    pub(crate) fn has_begun(&self) -> bool {
        !self.is_in_flight && self.is_first_begun
    }

    /// The socket took `bytes`. A batch holds what the link carries in one window, within its bounds.
    pub(crate) fn measure(&mut self, bytes: u32, window_ns: u64, bounds: (u32, u32), now: Time) {
        self.window_bytes += u64::from(bytes);
        let elapsed = now.since_ns(self.window_start);
        if elapsed < window_ns {
            return;
        }
        let carried = u128::from(self.window_bytes) * u128::from(window_ns) / u128::from(elapsed.max(1));
        let (min, max) = bounds;
        self.bytes_max = u32::try_from(carried).unwrap_or(max).clamp(min.min(max), max);
        self.window_start = now;
        self.window_bytes = 0;
    }
}
