//! When the sender of a channel is told its limit, and what it is told.
//!
//! A Limit frame is made from the state of the channel at the moment it is planned, so it is never out of date and there
//! is never more than one per channel and batch. New credit is told at once. What only acknowledges or counts may
//! wait for company, but not long: a trickle must not wait for a batch.

use super::channel::Channel;
use crate::ids::Time;
use crate::wire::Limit;

/// How soon the sender must hear of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Urgency {
    Nothing,
    Soon,
    Now,
}

impl Channel {
    /// What the sender is told if it is told now. `ready` is what the gate's pool holds for the channel.
    pub(crate) fn limit(&self, ready: u32, event_window: u32, now: Time) -> Limit {
        let age_ns = self.room_since.map_or(0, |since| now.since_ns(since));
        Limit {
            limit: self.opened + u64::from(ready),
            ack: self.acked(),
            consumed: self.consumed,
            event_limit: self.events_consumed + u64::from(event_window),
            age_us: u32::try_from(age_ns / 1000).unwrap_or(u32::MAX),
        }
    }

    /// Frames before this are acknowledged: they have arrived, or came back if they are read in the producer's memory.
    pub(crate) fn acked(&self) -> u64 {
        self.lent.as_ref().map_or(self.next_sequence, |lent| lent.acked(self.next_sequence))
    }

    /// Notes since when the sender could be told more room than it was.
    pub(crate) fn note_room(&mut self, ready: u32, event_window: u32, now: Time) {
        let has_more = self.opened + u64::from(ready) > self.announced.limit
            || self.events_consumed + u64::from(event_window) > self.announced.event_limit;
        if has_more {
            self.room_since.get_or_insert(now);
        }
    }

    pub(crate) fn urgency(&self, ready: u32, event_window: u32, segment_bytes: u32) -> Urgency {
        let announced = &self.announced;
        let (limit, event_limit) =
            (self.opened + u64::from(ready), self.events_consumed + u64::from(event_window));
        let half = u64::from(segment_bytes / 2);
        if limit > announced.limit
            || event_limit > announced.event_limit
            || self.unannounced_bytes >= half
            || self.consumed - announced.consumed >= u64::from(segment_bytes)
        {
            Urgency::Now
        } else if self.acked() > announced.ack || self.consumed > announced.consumed {
            Urgency::Soon
        } else {
            Urgency::Nothing
        }
    }

    /// The frame with these numbers is planned. What was announced before.
    pub(crate) fn announce(&mut self, limit: Limit) -> Limit {
        self.is_limit_due = false;
        self.unannounced_bytes = 0;
        self.room_since = None;
        self.counts.limit_frames += 1;
        core::mem::replace(&mut self.announced, limit)
    }

    /// The frame that was planned last did not leave.
    pub(crate) fn revert_announce(&mut self, before: Limit) {
        self.announced = before;
        self.counts.limit_frames -= 1;
    }
}
