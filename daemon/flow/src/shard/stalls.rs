//! Stalls: what the shell adds to what the shard knows of them, and when open ones are settled.

use super::Shard;
use crate::ids::{LinkId, PartitionId, SubpartitionIndex, Time};
use crate::invariant::{Violation, ensure};
use crate::send::partition::Partition;
use crate::send::subpartition::Subpartition;
use crate::stall::emit::{EmitClaims, Followed, WaitKind};
use crate::stall::{Cause, PastStalls, ReceiveAge, StallTotals};

impl Shard {
    /// How long the bytes of the next [`Self::handle_received`] on this link lay in its socket; without effect on any
    /// other. Where it is not said, or less is said than it was, what a Limit waited in the socket counts for the
    /// consumer, and [`ChannelStats::is_stall_approximate`](crate::stats::ChannelStats::is_stall_approximate) says so.
    pub fn handle_receive_age(&mut self, link: LinkId, age: ReceiveAge) {
        if let Some(state) = self.links.get_mut(link) {
            state.receive_age = Some(age);
        }
    }

    /// Gives the time of all open stalls up to now to its causes. Called before [`Self::channels`] by whoever adds up
    /// what that tells: what was settled is not taken back, so that no number ever becomes less.
    pub fn settle_stalls(&mut self, now: Time) {
        let Self { partitions, links, .. } = self;
        for (_, partition) in partitions.table.iter_mut() {
            for subpartition in &mut partition.subpartitions {
                let path = links.path_of(subpartition, now);
                subpartition.stalls.settle(&path, now);
            }
        }
    }

    /// Bytes come on a link from which signs of life were missing: what its channels waited for until now was the network.
    pub(super) fn settle_silence(&mut self, link: LinkId, now: Time) {
        let Self { partitions, links, .. } = self;
        let Some(state) = links.get(link) else { return };
        let path = state.path(now);
        if path.silent_since.is_none() {
            return;
        }
        for key in state.senders() {
            let Some(partition) = partitions.get_mut(key.partition) else { continue };
            if let Some((subpartition, _)) = partition.split(key.subpartition) {
                subpartition.stalls.settle(&path, now);
            }
        }
    }

    /// All send stalls since the shard began, those of channels that have gone included.
    #[must_use]
    pub const fn past_send_stalls(&self) -> &PastStalls {
        &self.send_stalls
    }

    /// The same of emit stalls.
    #[must_use]
    pub const fn past_emit_stalls(&self) -> &PastStalls {
        &self.emit_stalls
    }

    /// A partition has gone: what it waited is kept.
    pub(super) fn keep_stalls(&mut self, partition: &Partition) {
        self.send_stalls.gone.add(&send_totals(partition));
        self.emit_stalls.gone.add(&partition.emit.totals());
    }

    /// Recounts the waits that have ended, of both kinds: those of partitions that are there, and of those that have gone.
    pub(super) fn check_lengths(&self) -> Result<(), Violation> {
        let (mut send, mut emit) = (self.send_stalls.gone, self.emit_stalls.gone);
        for (_, partition) in self.partitions.table.iter() {
            send.add(&send_totals(partition));
            emit.add(&partition.emit.totals());
        }
        for (past, totals) in [(&self.send_stalls, send), (&self.emit_stalls, emit)] {
            for cause in Cause::ALL {
                let (lengths, count) = (past.lengths.of(cause).total_count(), totals.count_of(cause));
                ensure!(
                    lengths == count,
                    "each wait is counted once by cause and length",
                    "{cause:?}: {lengths} lengths of {count}"
                );
            }
        }
        Ok(())
    }

    /// What the client of a partition says of its waits, with the numbers of this builder: of this subpartition, or of
    /// subpartition 0 with `broadcast`. Claims that cannot be are cut to what the time that passed allows.
    pub fn handle_emit_claims(
        &mut self,
        partition: PartitionId,
        builder: SubpartitionIndex,
        claims: &EmitClaims,
        now: Time,
    ) {
        let Self { partitions, links, emit_stalls, .. } = self;
        let Some(state) = partitions.get_mut(partition) else { return };
        let followed = followed(state, builder, claims);
        let Partition { emit, subpartitions, .. } = state;
        let times = |index: usize| {
            let subpartition = subpartitions.get(index);
            subpartition
                .map(|subpartition| subpartition.stalls.times(&links.path_of(subpartition, now), now))
                .unwrap_or_default()
        };
        emit.look(builder, claims, &followed, &times, now, &mut emit_stalls.lengths);
    }

    /// The builder at whose quota or event window the client of a partition waits, as it said last.
    #[must_use]
    pub fn waiting_builder(&self, partition: PartitionId) -> Option<SubpartitionIndex> {
        self.partitions.get(partition)?.emit.open_builder()
    }
}

/// The send stalls of all channels of a partition, without what open ones have that is not settled.
fn send_totals(partition: &Partition) -> StallTotals {
    let mut totals = StallTotals::default();
    partition.subpartitions.iter().for_each(|subpartition| totals.add(subpartition.stalls.settled()));
    totals
}

/// Which channels the waits of a client go by, of those that are live. Looked up only for a wait that goes on.
fn followed(partition: &Partition, builder: SubpartitionIndex, claims: &EmitClaims) -> Followed {
    let open = claims.open.map(|(kind, _)| kind);
    let least = |range: core::ops::Range<usize>, of: fn(&Subpartition) -> u64| {
        let start = range.start;
        let channels = partition.subpartitions.get(range).unwrap_or_default().iter().enumerate();
        let live = channels.filter(|(_, subpartition)| subpartition.is_live());
        live.min_by_key(|(_, subpartition)| of(subpartition)).map(|(index, _)| start + index)
    };
    let slowest = (open == Some(WaitKind::Quota(builder)))
        .then(|| least(partition.readers(builder), |subpartition| subpartition.acked_bytes));
    let nearest = (open == Some(WaitKind::Any))
        .then(|| least(0..partition.subpartitions.len(), |subpartition| subpartition.queued_bytes));
    Followed { slowest: slowest.flatten(), nearest: nearest.flatten() }
}
