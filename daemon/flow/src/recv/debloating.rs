//! Debloating of a gate with its channels: who carries data, what each may have, and what its sender was told.

use super::channel::Channel;
use super::gate::Gate;
use crate::debloat::{BUFFER_BYTES_MIN, Debloat, DebloatSpec, Share};
use crate::ids::Time;
use crate::limits::Limits;

/// A channel that carried data counts for so many periods more. What a gate wants is shared among those that count.
const ACTIVE_PERIODS: u32 = 5;

/// The state of a gate's debloating.
#[derive(Debug)]
pub(crate) struct Debloating {
    pub(crate) core: Debloat,
    /// What each channel gets now.
    pub(crate) share: Share,
    /// Among how many channels it was shared.
    channels: u32,
    /// The gate is in the shard's list of those whose period runs.
    pub(crate) is_armed: bool,
    /// Something arrived or was given back in this period.
    pub(crate) has_moved: bool,
}

impl Debloating {
    pub(crate) fn new(spec: DebloatSpec, segment_bytes: u32) -> Self {
        Self {
            core: Debloat::new(spec),
            share: Share::initial(segment_bytes),
            channels: 0,
            is_armed: false,
            has_moved: false,
        }
    }
}

impl Gate {
    /// Bytes that each channel's sender is to keep its queue to.
    pub(crate) fn buffer_bytes(&self) -> u32 {
        self.debloating.as_ref().map_or(u32::MAX, |state| state.share.buffer_bytes)
    }

    /// A period is over. Whether what channels get changed; then `gained` names those that were granted more.
    pub(crate) fn end_debloat_period(&mut self, limits: &Limits, now: Time) -> bool {
        let most = self.in_flight_max(limits);
        let channels = self.count_active();
        let Some(state) = &mut self.debloating else { return false };
        state.has_moved = false;
        let has_changed = state.core.handle_period(most, limits.debloat_period_ns, now);
        // Channels come and go; a share that would hardly differ stays.
        let is_other = channels.abs_diff(state.channels).saturating_mul(4) >= state.channels;
        if !has_changed && !is_other {
            return false;
        }
        let share = state.core.share(channels, limits.segment_bytes, most);
        state.channels = channels;
        if share == state.share {
            return false;
        }
        state.share = share;
        self.pool.set_window(share.window, &mut self.gained);
        true
    }

    /// Whether another period is to be waited for.
    pub(crate) fn has_debloat_period(&self) -> bool {
        let least = 2 * u64::from(BUFFER_BYTES_MIN) * u64::from(self.channels.len() as u32);
        self.debloating.as_ref().is_some_and(|state| state.has_moved || state.core.is_settling(least))
    }

    /// What could be in flight if nothing were held back: every receive segment, and every sender's queue as large as
    /// those of this node may be.
    pub(crate) fn in_flight_max(&self, limits: &Limits) -> u64 {
        let queues = (self.channels.len() as u64).saturating_mul(limits.quota.into());
        u64::from(self.spec.segments).saturating_add(queues).saturating_mul(limits.segment_bytes.into())
    }

    /// What is known to be in flight: what has arrived and was not given back, and what the senders have told that they
    /// have queued, up to a segment each.
    pub(crate) fn in_flight_bytes(&self, segment_bytes: u32) -> u64 {
        let fill = u64::from(self.buffer_bytes().min(segment_bytes));
        let of_channel = |channel: &Channel| {
            let buffered = channel.counts.bytes.saturating_sub(channel.consumed);
            buffered.saturating_add(u64::from(channel.backlog).saturating_mul(fill))
        };
        self.governed().map(of_channel).fold(0, u64::saturating_add)
    }

    /// The channels that it holds back: not those that read in their producer's memory, whose quota is their bound.
    fn governed(&self) -> impl Iterator<Item = &Channel> {
        self.channels.iter().filter(|channel| channel.lent.is_none())
    }

    fn count_active(&mut self) -> u32 {
        let mut active = 0;
        for channel in self.channels.iter_mut().filter(|channel| channel.lent.is_none()) {
            let carries = channel.counts.bytes > channel.period_bytes
                || channel.counts.bytes > channel.consumed
                || channel.backlog > 0;
            channel.period_bytes = channel.counts.bytes;
            channel.active_periods =
                if carries { ACTIVE_PERIODS } else { channel.active_periods.saturating_sub(1) };
            active += u32::from(channel.active_periods > 0);
        }
        active.max(1)
    }
}
