//! One data link: what arrives on it, what waits to be sent on it, and which channels it carries.
//!
//! A link carries channels in both directions. Each direction has its own space of channel indices, assigned by the
//! consumer's end: `receiving` holds those that this end assigned, `sending` those that the peer assigned. The type of
//! a frame says which space its index belongs to.
//!
//! One batch is in flight at a time. After a short write only the frame already begun is fixed; everything behind it
//! is put back and planned anew, so that control and priority events wait for at most one frame and one operation.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::failure::Failure;
use crate::ids::{ChannelIndex, GateId, PartitionId, SubpartitionIndex, Time};
use crate::send::schedule::Round;
use crate::shard::LinkSpec;
use crate::state::{IndexEvent, IndexState, LinkState};
use crate::wire::Message;

pub(crate) mod parser;
pub(crate) mod plan;

use parser::Parser;
use plan::{Batch, Frame};

/// Most channels in each direction of one link.
pub const LINK_CHANNELS_MAX: u32 = 1 << 16;

/// Most answers that may wait for a peer that does not read them, before its link is closed.
pub(crate) const ANSWERS_MAX: usize = 1 << 14;

/// A subpartition of this shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SendKey {
    pub(crate) partition: PartitionId,
    pub(crate) subpartition: SubpartitionIndex,
}

/// A channel of a gate of this shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReceiveKey {
    pub(crate) gate: GateId,
    pub(crate) channel: u32,
}

/// An index that this end assigned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReceiveIndex {
    pub(crate) state: IndexState,
    pub(crate) key: ReceiveKey,
}

/// Counts of a link since it came.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LinkCounts {
    pub(crate) sent_bytes: u64,
    pub(crate) received_bytes: u64,
    pub(crate) skipped_frames: u64,
    pub(crate) skipped_bytes: u64,
    pub(crate) short_writes: u64,
    pub(crate) round_trip_min_ns: Option<u64>,
}

#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) spec: LinkSpec,
    pub(crate) state: LinkState,
    pub(crate) parser: Parser,
    pub(crate) receiving: Vec<ReceiveIndex>,
    free_indices: Vec<u32>,
    pub(crate) sending: Vec<Option<SendKey>>,
    /// Messages that happen once, in order.
    pub(crate) control: VecDeque<Message>,
    /// ChannelFailed for channels that failed while their end of data was in a batch. It is told only if the socket
    /// did not take the end: after EndOfData the peer may use the index for another channel.
    pub(crate) withheld: Vec<(SendKey, Message)>,
    /// Tokens of a Ping and a Pong that are due.
    pub(crate) ping: Option<u64>,
    pub(crate) pong: Option<u64>,
    /// Channels that owe the peer a Limit. The frame is made when it is sent, so it is never out of date.
    pub(crate) limits: VecDeque<ReceiveKey>,
    /// Channels with priority events.
    pub(crate) priority: VecDeque<SendKey>,
    pub(crate) round: Round,
    pub(crate) batch: Batch,
    /// In the shard's list of links to be looked at.
    pub(crate) is_listed: bool,
    pub(crate) last_received: Time,
    pub(crate) last_ping: Time,
    pub(crate) is_timed_out: bool,
    /// Why the peer is stopping, if it said so.
    pub(crate) goodbye: Option<Failure>,
    pub(crate) counts: LinkCounts,
}

impl Link {
    pub(crate) fn new(spec: LinkSpec, batch_bytes_min: u32, now: Time) -> Self {
        Self {
            spec,
            state: LinkState::Established,
            parser: Parser::default(),
            receiving: Vec::new(),
            free_indices: Vec::new(),
            sending: Vec::new(),
            control: VecDeque::new(),
            withheld: Vec::new(),
            ping: None,
            pong: None,
            limits: VecDeque::new(),
            priority: VecDeque::new(),
            round: Round::default(),
            batch: Batch::new(batch_bytes_min, now),
            is_listed: false,
            last_received: now,
            last_ping: now,
            is_timed_out: false,
            goodbye: None,
            counts: LinkCounts::default(),
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        self.state != LinkState::Closed
    }

    /// The channel failed: the peer is told, unless the end of data is its last word.
    pub(crate) fn tell_failed(&mut self, key: SendKey, message: Message, is_ending: bool) {
        if !is_ending {
            self.control.push_back(message);
        } else if self.batch.frames.iter().any(|planned| planned.frame == Frame::End { key }) {
            self.withheld.push((key, message));
        }
    }

    /// The failure that waited for what becomes of the channel's end of data.
    pub(crate) fn take_withheld(&mut self, key: SendKey) -> Option<Message> {
        let position = self.withheld.iter().position(|(of, _)| *of == key)?;
        Some(self.withheld.swap_remove(position).1)
    }

    /// Whether there is anything to plan.
    pub(crate) fn has_work(&self) -> bool {
        !self.batch.is_in_flight
            && self.is_open()
            && (self.batch.has_begun()
                || !self.control.is_empty()
                || self.ping.is_some()
                || self.pong.is_some()
                || !self.limits.is_empty()
                || !self.priority.is_empty()
                || !self.round.is_empty())
    }

    /// Assigns an index to a channel of a gate. None if all are taken.
    pub(crate) fn assign(&mut self, key: ReceiveKey) -> Option<ChannelIndex> {
        let index = match self.free_indices.pop() {
            Some(index) => index,
            None if (self.receiving.len() as u32) < LINK_CHANNELS_MAX => {
                self.receiving.push(ReceiveIndex { state: IndexState::Free, key });
                self.receiving.len() as u32 - 1
            }
            None => return None,
        };
        let entry = self.receiving.get_mut(index as usize)?;
        entry.state = entry.state.on(IndexEvent::Assigned).ok()?;
        entry.key = key;
        Some(ChannelIndex(index))
    }

    /// The channel of a gate that has this index, if it is still wanted.
    pub(crate) fn receiver(&self, index: ChannelIndex) -> Option<ReceiveKey> {
        self.receiving
            .get(index.0 as usize)
            .filter(|entry| entry.state == IndexState::Live)
            .map(|entry| entry.key)
    }

    /// Something happened to an index that this end assigned. Returns its state before, none if it was never
    /// assigned or the event has no place there.
    pub(crate) fn change_index(&mut self, index: ChannelIndex, event: IndexEvent) -> Option<IndexState> {
        let entry = self.receiving.get_mut(index.0 as usize)?;
        let before = entry.state;
        entry.state = before.on(event).ok()?;
        if entry.state == IndexState::Free {
            self.free_indices.push(index.0);
        }
        Some(before)
    }

    /// The subpartition that serves the channel with this index of the peer.
    pub(crate) fn sender(&self, index: ChannelIndex) -> Option<SendKey> {
        self.sending.get(index.0 as usize).copied().flatten()
    }

    pub(crate) fn set_sender(&mut self, index: ChannelIndex, key: Option<SendKey>) {
        let needed = index.0 as usize + 1;
        if self.sending.len() < needed && key.is_some() {
            self.sending.resize(needed, None);
        }
        if let Some(entry) = self.sending.get_mut(index.0 as usize) {
            *entry = key;
        }
    }

    pub(crate) fn free_indices(&self) -> usize {
        self.free_indices.len()
    }
}
