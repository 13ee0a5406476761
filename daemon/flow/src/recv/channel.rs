//! One channel of a gate: what arrived in which order, and what was announced to the sender.

use alloc::collections::VecDeque;

use bytes::Bytes;

use super::lent::Lent;
use crate::failure::Failure;
use crate::ids::{ChannelIndex, Incarnation, LinkId, SegmentIndex, Sequence, Time};
use crate::state::ReceiveState;
use crate::wire::{Limit, Resume};

/// Something that arrived and was not handed to the application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Pending {
    Slice { segment: SegmentIndex, offset: u32, bytes: u32, records: u32 },
    Event(Bytes),
    End,
    Failed(Failure),
}

/// The segment that slices are being appended to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OpenSegment {
    pub(crate) segment: SegmentIndex,
    /// Bytes of complete frames in it.
    pub(crate) fill: u32,
}

/// Counts of a channel since it opened.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReceiveCounts {
    pub(crate) bytes: u64,
    pub(crate) buffers: u64,
    pub(crate) records: u64,
    pub(crate) limit_frames: u64,
    pub(crate) backlog_frames: u64,
    pub(crate) size_frames: u64,
}

#[derive(Debug)]
pub(crate) struct Channel {
    pub(crate) state: ReceiveState,
    /// The link and the index that this end gave it; none before it is requested and after its end.
    pub(crate) channel: Option<(LinkId, ChannelIndex)>,
    /// The life of the partition; 0 until its node accepted.
    pub(crate) incarnation: Incarnation,
    /// Number of the next frame to arrive.
    pub(crate) next_sequence: u64,
    /// Segments that the sender opened since the channel began.
    pub(crate) opened: u64,
    pub(crate) open: Option<OpenSegment>,
    /// What it has of its producer's region, if that is on this node: then it has no segments of its own.
    pub(crate) lent: Option<Lent>,
    /// The backlog that the sender told last.
    pub(crate) backlog: u32,
    pub(crate) pending: VecDeque<Pending>,
    pub(crate) pending_bytes: u64,
    pub(crate) priority: VecDeque<Bytes>,
    /// Event and EndOfData frames that arrived.
    pub(crate) events_arrived: u64,
    pub(crate) events_handed: u64,
    pub(crate) events_consumed: u64,
    /// Bytes handed to the application.
    pub(crate) delivered: u64,
    /// Bytes that the application gave back.
    pub(crate) consumed: u64,
    /// What the sender was told last.
    pub(crate) announced: Limit,
    /// Bytes that arrived since then.
    pub(crate) unannounced_bytes: u64,
    /// When the sender could first have been told more room than that: for data, or for events.
    pub(crate) room_since: Option<Time>,
    /// In its link's list of channels that owe a Limit.
    pub(crate) is_limit_due: bool,
    /// In the shard's list of Limits that wait for company.
    pub(crate) is_limit_delayed: bool,
    /// The bytes that the sender was told to keep its queue to; none if it may not have got that.
    pub(crate) told_buffer_bytes: Option<u32>,
    /// In its link's list of channels that owe a BufferSize.
    pub(crate) is_size_due: bool,
    /// Periods of debloating for which it still counts as one that carries data.
    pub(crate) active_periods: u32,
    /// Bytes that had arrived when the last period ended.
    pub(crate) period_bytes: u64,
    /// In the gate's rotation.
    pub(crate) is_listed: bool,
    /// In the gate's rotation of priority events.
    pub(crate) is_priority_listed: bool,
    pub(crate) counts: ReceiveCounts,
}

impl Channel {
    pub(crate) fn new() -> Self {
        Self {
            state: ReceiveState::Vacant,
            channel: None,
            incarnation: Incarnation(0),
            next_sequence: 0,
            opened: 0,
            open: None,
            lent: None,
            backlog: 0,
            pending: VecDeque::new(),
            pending_bytes: 0,
            priority: VecDeque::new(),
            events_arrived: 0,
            events_handed: 0,
            events_consumed: 0,
            delivered: 0,
            consumed: 0,
            announced: Limit::default(),
            unannounced_bytes: 0,
            room_since: None,
            is_limit_due: false,
            is_limit_delayed: false,
            told_buffer_bytes: Some(u32::MAX),
            is_size_due: false,
            active_periods: 0,
            period_bytes: 0,
            is_listed: false,
            is_priority_listed: false,
            counts: ReceiveCounts::default(),
        }
    }

    /// Appends a slice, or lets the last one grow if they lie side by side and neither was handed up.
    pub(crate) fn push_slice(&mut self, segment: SegmentIndex, offset: u32, bytes: u32, records: u32) {
        self.pending_bytes += u64::from(bytes);
        if let Some(Pending::Slice { segment: last, offset: start, bytes: length, records: ended }) =
            self.pending.back_mut()
            && *last == segment
            && *start + *length == offset
        {
            *length += bytes;
            *ended = ended.saturating_add(records);
            return;
        }
        self.pending.push_back(Pending::Slice { segment, offset, bytes, records });
    }

    /// Where the sender goes on, with the limit that it is told.
    pub(crate) fn resume(&self, limit: &Limit) -> Resume {
        Resume {
            incarnation: self.incarnation,
            next_sequence: Sequence(self.next_sequence),
            opened: self.opened,
            open_fill: self.open.map_or(0, |open| open.fill),
            limit: limit.limit,
            event_limit: limit.event_limit,
            consumed: limit.consumed,
        }
    }

    /// Whether the sender may still be told something.
    pub(crate) const fn is_connected(&self) -> bool {
        matches!(self.state, ReceiveState::Requested | ReceiveState::Open)
    }
}
