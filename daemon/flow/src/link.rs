//! One data link, over all its sockets: what arrives on it, what waits to be sent on it, and which channels it carries.
//!
//! A link carries channels in both directions. Each direction has its own space of channel indices, assigned by the
//! consumer's end: `receiving` holds those that this end assigned, `sending` those that the peer assigned. The type of
//! a frame says which space its index belongs to.
//!
//! One batch is in flight at a time. After a short write only the frame already begun is fixed; everything behind it
//! is put back and planned anew, so that control and priority events wait for at most one frame and one operation.

use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::vec::Vec;

use crate::failure::Failure;
use crate::ids::{ChannelIndex, GateId, PartitionId, SubpartitionIndex, Time};
use crate::limits::Limits;
use crate::send::schedule::Round;
use crate::shard::LinkSpec;
use crate::stall::ReceiveAge;
use crate::stall::account::Path;
use crate::stall::credit::Arrival;
use crate::state::{IndexEvent, IndexState, LinkState};
use crate::wire::Message;

pub(crate) mod control_log;
pub(crate) mod parser;
pub(crate) mod plan;

use control_log::ControlLog;
use parser::Parser;
use plan::Batch;

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

/// What is behind an index that the peer assigned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Serving {
    /// A subpartition sends on it.
    Live(SendKey),
    /// It failed when its end of data had been planned. The consumer's end may have everything by now and use the index
    /// for another channel, so that it is not told before it says that it has not: by a Cancel or a Resume. An EndAck
    /// says that it has.
    Failed(SendKey, Failure),
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
    pub(crate) resumes: u64,
    pub(crate) resent_bytes: u64,
    pub(crate) round_trip_min_ns: Option<u64>,
}

#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) spec: LinkSpec,
    pub(crate) state: LinkState,
    pub(crate) parser: Parser,
    pub(crate) receiving: Vec<ReceiveIndex>,
    free_indices: Vec<u32>,
    pub(crate) sending: Vec<Option<Serving>>,
    /// Messages that happen once, in order.
    pub(crate) control: VecDeque<Message>,
    /// Those that were sent.
    pub(crate) control_log: ControlLog,
    /// This socket replaces another, and the peer was not told yet what is here.
    pub(crate) is_resume_due: bool,
    /// Channels whose sender is still to be told where to go on.
    pub(crate) resumes: VecDeque<ReceiveKey>,
    /// Why the socket was lost, while there is none.
    pub(crate) lost: String,
    /// Why the socket was lost, while a send on it has not ended.
    pub(crate) pending_loss: Option<String>,
    /// Tokens of a Ping and a Pong that are due.
    pub(crate) ping: Option<u64>,
    pub(crate) pong: Option<u64>,
    /// Channels that owe the peer a Limit. The frame is made when it is sent, so it is never out of date.
    pub(crate) limits: VecDeque<ReceiveKey>,
    /// Channels that owe the peer a BufferSize, made like a Limit.
    pub(crate) sizes: VecDeque<ReceiveKey>,
    /// Channels with priority events.
    pub(crate) priority: VecDeque<SendKey>,
    pub(crate) round: Round,
    pub(crate) batch: Batch,
    /// In the shard's list of links to be looked at.
    pub(crate) is_listed: bool,
    /// When bytes last came, or the socket.
    pub(crate) last_received: Time,
    /// When bytes last came, over whichever socket: a socket alone is no sign of life.
    pub(crate) last_heard: Time,
    pub(crate) last_ping: Time,
    /// After so long without a sign of life it counts as silent: one was due and did not come.
    pub(crate) silence_ns: u64,
    /// How long the bytes that are being handled lay in the socket; none if that is not known.
    pub(crate) receive_age: Option<ReceiveAge>,
    pub(crate) is_timed_out: bool,
    /// Why the peer is stopping, if it said so.
    pub(crate) goodbye: Option<Failure>,
    pub(crate) counts: LinkCounts,
}

impl Link {
    pub(crate) fn new(spec: LinkSpec, limits: &Limits, now: Time) -> Self {
        Self {
            spec,
            state: LinkState::Established,
            parser: Parser::default(),
            receiving: Vec::new(),
            free_indices: Vec::new(),
            sending: Vec::new(),
            control: VecDeque::new(),
            control_log: ControlLog::default(),
            is_resume_due: false,
            resumes: VecDeque::new(),
            lost: String::new(),
            pending_loss: None,
            ping: None,
            pong: None,
            limits: VecDeque::new(),
            sizes: VecDeque::new(),
            priority: VecDeque::new(),
            round: Round::default(),
            batch: Batch::new(limits.batch_bytes_min, now),
            is_listed: false,
            last_received: now,
            last_heard: now,
            last_ping: now,
            silence_ns: limits.ping_interval_ns.saturating_mul(2),
            receive_age: None,
            is_timed_out: false,
            goodbye: None,
            counts: LinkCounts::default(),
        }
    }

    /// What the stalls of its channels go by.
    pub(crate) fn path(&self, now: Time) -> Path {
        let is_silent = !self.spec.is_local && now.since_ns(self.last_heard) > self.silence_ns;
        Path {
            sending_ns: self.batch.in_flight_ns_at(now),
            is_sending: self.batch.is_in_flight,
            silent_since: is_silent.then_some(self.last_heard),
        }
    }

    /// How what is being handled came here; `peer_ns` is how long it waited at the peer.
    pub(crate) fn arrival(&self, peer_ns: u64) -> Arrival {
        let path_ns = self.counts.round_trip_min_ns.unwrap_or(0) / 2;
        Arrival { age: self.receive_age, path_ns, peer_ns }
    }

    /// How long after it was last heard it waits for another socket: as long as the end that waits less. `own_ns` is
    /// what this node would wait.
    pub(crate) fn grace_ns(&self, own_ns: u64) -> u64 {
        own_ns.min(self.spec.peer_grace_ns)
    }

    pub(crate) fn is_open(&self) -> bool {
        self.state != LinkState::Closed
    }

    /// Whether a socket stands for it.
    pub(crate) const fn has_socket(&self) -> bool {
        !matches!(self.state, LinkState::Suspended | LinkState::Closed)
    }

    /// A channel failed: the peer is told, at once unless it may have the end of data.
    pub(crate) fn tell_failed(
        &mut self,
        index: ChannelIndex,
        key: SendKey,
        failure: Failure,
        is_ending: bool,
    ) {
        if is_ending {
            self.set_serving(index, Some(Serving::Failed(key, failure)));
        } else {
            self.set_serving(index, None);
            self.control.push_back(Message::ChannelFailed { channel: index, failure });
        }
    }

    /// The consumer's end has not seen the end of data of a channel that failed: it is told of the failure.
    pub(crate) fn answer_failed(&mut self, index: ChannelIndex) {
        if let Some(Serving::Failed(_, failure)) = self.serving(index) {
            let failure = failure.clone();
            self.set_serving(index, None);
            self.control.push_back(Message::ChannelFailed { channel: index, failure });
        }
    }

    /// The end of data of a channel that failed did not leave: nobody has seen it.
    pub(crate) fn answer_unsent_end(&mut self, key: SendKey) {
        let of_key =
            |serving: &Option<Serving>| matches!(serving, Some(Serving::Failed(of, _)) if *of == key);
        if let Some(index) = self.sending.iter().position(of_key) {
            self.answer_failed(ChannelIndex(index as u32));
        }
    }

    /// Whether there is anything to plan.
    pub(crate) fn has_work(&self) -> bool {
        if self.batch.is_in_flight || !self.has_socket() {
            return false;
        }
        if self.is_resume_due || self.batch.has_begun() {
            return true;
        }
        self.state != LinkState::Resuming
            && ((!self.control.is_empty() && self.control_log.has_room())
                || self.ping.is_some()
                || self.pong.is_some()
                || !self.resumes.is_empty()
                || !self.limits.is_empty()
                || !self.sizes.is_empty()
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
        match self.serving(index) {
            Some(Serving::Live(key)) => Some(*key),
            Some(Serving::Failed(..)) | None => None,
        }
    }

    /// What is behind an index of the peer.
    pub(crate) fn serving(&self, index: ChannelIndex) -> Option<&Serving> {
        self.sending.get(index.0 as usize)?.as_ref()
    }

    pub(crate) fn set_serving(&mut self, index: ChannelIndex, serving: Option<Serving>) {
        let needed = index.0 as usize + 1;
        if self.sending.len() < needed && serving.is_some() {
            self.sending.resize(needed, None);
        }
        if let Some(entry) = self.sending.get_mut(index.0 as usize) {
            *entry = serving;
        }
    }

    /// Subpartitions that send over this link.
    pub(crate) fn senders(&self) -> impl Iterator<Item = SendKey> {
        self.sending.iter().filter_map(|serving| match serving {
            Some(Serving::Live(key)) => Some(*key),
            Some(Serving::Failed(..)) | None => None,
        })
    }

    pub(crate) fn free_indices(&self) -> usize {
        self.free_indices.len()
    }
}
