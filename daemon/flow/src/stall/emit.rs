//! The emit stalls of one producer: its client waits for a segment, or for a place for an event.
//!
//! The client says how long it has waited for what, in numbers that only grow and in the wait that goes on
//! ([`EmitClaims`]). Each time the shard looks, what was added since the last look goes to causes:
//! - *at the quota of a subpartition*: to what its channel waited for in that time. With `broadcast` that is the channel
//!   which is furthest behind, since it decides when the segments that all share come back;
//! - *for any of several*, as adaptive selection does when it has left out all: to what the channel with the least queued
//!   waited for, since that will have room first;
//! - *for a segment of the pool*: [`Cause::Pool`];
//! - *for a place for an event*: [`Cause::Event`];
//! - *for room in the ring to the shard*: [`Cause::Shard`].
//!
//! If the channel had several causes since the last look, the one that holds now has the end of the wait, for as long as it
//! has held, and the others share what is before that in proportion. Time in which the channel waited for nothing is the
//! shard's, which had not told the client. A look costs the same however many subpartitions there are, and
//! comes with every turn that serves the partition, so that mostly one cause held between two.
//!
//! Claims are believed as far as time allows: no number grows by more than the time since it was looked at, and all
//! together by no more than the time since the partition came. What is beyond that is counted as soon as time has
//! passed, so that a client whose clock is read a little later than the shard's loses nothing.

use alloc::boxed::Box;

use super::{CAUSES, Cause, LengthsByCause, Stall, StallTotals, Stalls};
use crate::ids::{SubpartitionIndex, Time};
use crate::invariant::{Violation, ensure};

/// A wait takes a system call at least: no more than one in so many nanoseconds is believed.
const WAIT_NS_MIN: u64 = 500;

/// Waits of one kind that have ended, as the client counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitCount {
    /// How long they took, in nanoseconds.
    pub ns: u64,
    /// How many they were.
    pub count: u64,
}

/// What a client waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitKind {
    /// A segment of the pool.
    Pool,
    /// A segment of this subpartition, which is at its quota.
    Quota(SubpartitionIndex),
    /// A segment of whichever subpartition has one first.
    Any,
    /// A place for an event of this subpartition.
    Event(SubpartitionIndex),
    /// Room in the ring to the shard.
    Ring,
}

/// What a client says of its waits: one snapshot, with the numbers of one builder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EmitClaims {
    /// The wait that goes on, and since when.
    pub open: Option<(WaitKind, Time)>,
    /// For a segment of the pool.
    pub pool: WaitCount,
    /// For whichever subpartition has a segment first.
    pub any: WaitCount,
    /// For room in the ring.
    pub ring: WaitCount,
    /// Of the builder that was asked for: at its quota.
    pub quota: WaitCount,
    /// Of the builder that was asked for: for a place for an event.
    pub event: WaitCount,
}

/// What was seen of one growing number of waits.
#[derive(Clone, Copy, Debug)]
struct Meter {
    looked: Time,
    /// Claimed time that was given to causes.
    seen_ns: u64,
    /// Claimed time of waits that have ended.
    ended_ns: u64,
    count: u64,
    /// Time by cause of waits that are not counted yet.
    parts: [u64; CAUSES],
}

/// The waits for one channel, and how long it had waited for what at the last look.
#[derive(Clone, Debug)]
struct Follower {
    meter: Meter,
    /// Which subpartition is followed.
    channel: usize,
    /// Its times by cause at the last look.
    times: [u64; CAUSES],
}

/// The waits of one builder's client.
#[derive(Clone, Debug)]
struct BuilderWaits {
    quota: Follower,
    event: Meter,
    stalls: Seldom,
}

/// Waits that most builders never have, in no memory until there are some.
#[derive(Clone, Debug, Default)]
struct Seldom(Option<Box<Stalls>>);

impl Seldom {
    fn get(&self) -> Stalls {
        self.0.as_deref().copied().unwrap_or_default()
    }

    fn get_mut(&mut self) -> &mut Stalls {
        self.0.get_or_insert_default()
    }
}

/// The emit stalls of one partition.
#[derive(Clone, Debug)]
pub(crate) struct EmitStalls {
    began: Time,
    /// Time given to causes, of all waits together.
    counted_ns: u64,
    pool: Meter,
    ring: Meter,
    any: Follower,
    /// Waits that belong to no single builder.
    common: Seldom,
    builders: alloc::vec::Vec<BuilderWaits>,
    open: Option<(WaitKind, Time)>,
}

/// How long a channel has waited for what.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ChannelTimes {
    /// Nanoseconds by cause.
    pub(crate) ns: [u64; CAUSES],
    /// The cause that holds now and for how long it has, if it is one for all of that time.
    pub(crate) held: Option<(Cause, u64)>,
}

/// Times of the channel with this number.
pub(crate) type Times<'a> = &'a dyn Fn(usize) -> ChannelTimes;

/// What the channel with this number waits for at this moment; none if nothing of it waits.
pub(crate) type NowWaits<'a> = &'a dyn Fn(usize) -> Option<Cause>;

/// Which channels to go by.
pub(crate) struct Followed {
    /// The reader of the builder that is furthest behind; none: as before.
    pub(crate) slowest: Option<usize>,
    /// The channel with the least queued; none: as before.
    pub(crate) nearest: Option<usize>,
}

impl EmitStalls {
    pub(crate) fn new(builders: u32, now: Time) -> Self {
        let meter = Meter { looked: now, seen_ns: 0, ended_ns: 0, count: 0, parts: [0; CAUSES] };
        let builder = |channel: u32| BuilderWaits {
            quota: Follower { meter, channel: channel as usize, times: [0; CAUSES] },
            event: meter,
            stalls: Seldom::default(),
        };
        let any = Follower { meter, channel: 0, times: [0; CAUSES] };
        Self {
            began: now,
            counted_ns: 0,
            pool: meter,
            ring: meter,
            any,
            common: Seldom::default(),
            builders: (0..builders).map(builder).collect(),
            open: None,
        }
    }

    /// The client's numbers, with those of this builder. `all` gets the waits that have ended.
    pub(crate) fn look(
        &mut self,
        builder: SubpartitionIndex,
        claims: &EmitClaims,
        followed: &Followed,
        times: Times<'_>,
        now: Time,
        all: &mut LengthsByCause,
    ) {
        self.open = claims.open.map(|(kind, since)| (kind, since.min(now)));
        let open_ns = |kind: WaitKind| match self.open {
            Some((open, since)) if open == kind => now.since_ns(since),
            _ => 0,
        };
        let left_ns = now.since_ns(self.began).saturating_sub(self.counted_ns);
        let mut look = Look { now, began: self.began, left_ns, all };
        let Self { pool, ring, any, common, .. } = self;
        let (of_pool, of_ring) = (alone(Cause::Pool), alone(Cause::Shard));
        pool.look(claims.pool, open_ns(WaitKind::Pool), &of_pool, &mut look, common);
        ring.look(claims.ring, open_ns(WaitKind::Ring), &of_ring, &mut look, common);
        any.look(claims.any, open_ns(WaitKind::Any), followed.nearest, times, &mut look, common);
        if let Some(own) = self.builders.get_mut(builder.0 as usize) {
            let BuilderWaits { quota, event, stalls } = own;
            let (at_quota, at_event) = (WaitKind::Quota(builder), WaitKind::Event(builder));
            quota.look(claims.quota, open_ns(at_quota), followed.slowest, times, &mut look, stalls);
            event.look(claims.event, open_ns(at_event), &alone(Cause::Event), &mut look, stalls);
        }
        self.counted_ns = now.since_ns(self.began).saturating_sub(look.left_ns);
    }

    /// The builder whose wait goes on, as it was said last.
    pub(crate) fn open_builder(&self) -> Option<SubpartitionIndex> {
        match self.open? {
            (WaitKind::Quota(builder) | WaitKind::Event(builder), _) => Some(builder),
            (WaitKind::Pool | WaitKind::Any | WaitKind::Ring, _) => None,
        }
    }

    /// The waits of this builder's client. `now_waits` says what a channel waits for at this moment.
    pub(crate) fn of_builder(&self, builder: usize, now_waits: NowWaits<'_>) -> Stalls {
        let Some(own) = self.builders.get(builder) else { return Stalls::default() };
        let open = self.open.filter(|_| self.open_builder().is_some_and(|open| open.0 as usize == builder));
        Stalls {
            open: open.map(|(kind, since)| (own.quota.cause(kind, now_waits), since)),
            ..own.stalls.get()
        }
    }

    /// The waits that belong to no single builder.
    pub(crate) fn common(&self, now_waits: NowWaits<'_>) -> Stalls {
        let open = self.open.filter(|_| self.open_builder().is_none());
        Stalls {
            open: open.map(|(kind, since)| (self.any.cause(kind, now_waits), since)),
            ..self.common.get()
        }
    }

    /// All waits of the partition.
    pub(crate) fn totals(&self) -> StallTotals {
        let mut totals = self.common.get().totals;
        let waited = self.builders.iter().filter_map(|own| own.stalls.0.as_deref());
        waited.for_each(|stalls| totals.add(&stalls.totals));
        totals
    }

    /// # Errors
    /// The first invariant that does not hold.
    pub(crate) fn check(&self) -> Result<(), Violation> {
        let (sum, counted) = (self.totals().total_ns(), self.counted_ns);
        ensure!(sum == counted, "emit stalls add up to the time that was counted", "{sum} ns of {counted}");
        Ok(())
    }
}

/// One look at a partition.
struct Look<'a> {
    now: Time,
    began: Time,
    /// Time that has passed and is given to no cause.
    left_ns: u64,
    /// Gets the waits that have ended.
    all: &'a mut LengthsByCause,
}

impl Meter {
    /// Gives what was added to the causes of the time since the last look.
    fn look(
        &mut self,
        claim: WaitCount,
        open_ns: u64,
        since: &ChannelTimes,
        look: &mut Look<'_>,
        stalls: &mut Seldom,
    ) {
        let elapsed_ns = look.now.since_ns(self.looked);
        self.looked = look.now;
        let claimed_ns = claim.ns.saturating_add(open_ns);
        let grown_ns = claimed_ns.saturating_sub(self.seen_ns).min(elapsed_ns).min(look.left_ns);
        look.left_ns -= grown_ns;
        // A number that has become less was never true.
        self.seen_ns = self.seen_ns.min(claimed_ns).saturating_add(grown_ns);
        let parts = if grown_ns > 0 { share(grown_ns, since) } else { [0; CAUSES] };
        for (cause, ns) in Cause::ALL.into_iter().zip(parts).filter(|(_, ns)| *ns > 0) {
            stalls.get_mut().totals.add_ns(cause, ns);
            if let Some(part) = self.parts.get_mut(cause.index()) {
                *part = part.saturating_add(ns);
            }
        }
        self.count_ended(claim, elapsed_ns, look, stalls);
    }

    /// Counts the waits that have ended since the last look: of several, each with their mean length.
    fn count_ended(&mut self, claim: WaitCount, elapsed_ns: u64, look: &mut Look<'_>, stalls: &mut Seldom) {
        let ended_ns = claim.ns.saturating_sub(self.ended_ns).min(look.now.since_ns(look.began));
        let count = claim.count.saturating_sub(self.count).min(elapsed_ns / WAIT_NS_MIN + 1);
        (self.ended_ns, self.count) = (claim.ns, claim.count);
        if count == 0 || ended_ns == 0 {
            return;
        }
        let parts = StallTotals { ns: core::mem::take(&mut self.parts), count: [0; CAUSES] };
        if let Some(cause) = parts.most() {
            stalls.get_mut().record(
                Stall { ns: (ended_ns / count).max(1), cause, at: look.now },
                count,
                look.all,
            );
        }
    }
}

impl Follower {
    fn look(
        &mut self,
        claim: WaitCount,
        open_ns: u64,
        channel: Option<usize>,
        times: Times<'_>,
        look: &mut Look<'_>,
        stalls: &mut Seldom,
    ) {
        let now = times(self.channel);
        let mut since = now;
        for (ns, before) in since.ns.iter_mut().zip(self.times) {
            *ns = ns.saturating_sub(before);
        }
        self.meter.look(claim, open_ns, &since, look, stalls);
        let channel = channel.unwrap_or(self.channel);
        self.times = if channel == self.channel { now.ns } else { times(channel).ns };
        self.channel = channel;
    }

    /// The cause of an open wait.
    fn cause(&self, kind: WaitKind, now_waits: NowWaits<'_>) -> Cause {
        match kind {
            WaitKind::Pool => Cause::Pool,
            WaitKind::Event(_) => Cause::Event,
            WaitKind::Ring => Cause::Shard,
            WaitKind::Quota(_) | WaitKind::Any => now_waits(self.channel).unwrap_or(Cause::Shard),
        }
    }
}

/// All of the time had one cause.
fn alone(cause: Cause) -> ChannelTimes {
    let mut times = ChannelTimes { held: Some((cause, u64::MAX)), ..ChannelTimes::default() };
    if let Some(ns) = times.ns.get_mut(cause.index()) {
        *ns = u64::MAX;
    }
    times
}

/// Divides `ns` that ended now. The cause that holds has the end of it, the others share the rest in proportion to their
/// times, of which each gets at most itself; what is beyond that is the shard's. The parts add up to `ns`.
fn share(ns: u64, times: &ChannelTimes) -> [u64; CAUSES] {
    let mut weights = times.ns;
    let mut parts = [0; CAUSES];
    let mut rest = ns;
    if let Some((cause, held_ns)) = times.held
        && let (Some(part), Some(weight)) = (parts.get_mut(cause.index()), weights.get_mut(cause.index()))
    {
        let taken = ns.min(held_ns).min(*weight);
        (*part, *weight, rest) = (taken, *weight - taken, ns - taken);
    }
    let sum: u128 = weights.iter().map(|weight| u128::from(*weight)).sum();
    let shared = u128::from(rest).min(sum);
    for (part, weight) in parts.iter_mut().zip(weights) {
        // At most `rest`, which is a u64.
        let more = (u128::from(weight) * shared).checked_div(sum).unwrap_or(0);
        let more = u64::try_from(more).unwrap_or(u64::MAX);
        (*part, rest) = (*part + more, rest - more);
    }
    // What rounding left is less than one for each cause, and goes to the one with the most; what is beyond all
    // weights to the shard.
    let most = (0..CAUSES).max_by_key(|cause| (weights.get(*cause), CAUSES - cause)).unwrap_or(0);
    let beyond = u64::try_from(u128::from(ns).saturating_sub(times_sum(&times.ns))).unwrap_or(0).min(rest);
    for (cause, more) in [(most, rest - beyond), (Cause::Shard.index(), beyond)] {
        if let Some(part) = parts.get_mut(cause) {
            *part += more;
        }
    }
    parts
}

fn times_sum(ns: &[u64; CAUSES]) -> u128 {
    ns.iter().map(|ns| u128::from(*ns)).sum()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn shares_add_up_and_follow_the_weights(
            ns in prop_oneof![0..2_000_u64, 0..u64::MAX / 2],
            weights in prop::array::uniform7(prop_oneof![0..1_000_u64, 0..u64::MAX]),
            held in proptest::option::of((0..CAUSES, prop_oneof![0..1_000_u64, any::<u64>()])),
        ) {
            let held = held.map(|(cause, held_ns)| (Cause::ALL[cause], held_ns));
            let parts = share(ns, &ChannelTimes { ns: weights, held });
            prop_assert_eq!(times_sum(&parts), u128::from(ns));
            for (cause, (part, weight)) in parts.iter().zip(weights).enumerate() {
                // Nothing gets more than it held, but for what is beyond all of it and for rounding.
                if cause != Cause::Shard.index() {
                    prop_assert!(u128::from(*part) <= u128::from(weight) + CAUSES as u128);
                }
            }
            if let Some((cause, held_ns)) = held {
                let own = parts[cause.index()];
                prop_assert!(own >= ns.min(held_ns).min(weights[cause.index()]), "the end of it");
            }
        }
    }

    #[test]
    fn the_cause_that_holds_has_the_end_and_others_share_the_rest() {
        let of = |parts: [u64; CAUSES]| {
            [Cause::Consumer, Cause::Network, Cause::Shard].map(|cause| parts[cause.index()])
        };
        assert_eq!(share(70, &alone(Cause::Pool))[Cause::Pool.index()], 70);
        let mut ns = [0; CAUSES];
        (ns[Cause::Consumer.index()], ns[Cause::Network.index()]) = (900, 100);
        let held = |held_ns| ChannelTimes { ns, held: Some((Cause::Network, held_ns)) };
        assert_eq!(of(share(60, &held(100))), [0, 60, 0]);
        assert_eq!(of(share(400, &held(100))), [300, 100, 0]);
        assert_eq!(of(share(1_000, &held(100))), [900, 100, 0]);
        assert_eq!(of(share(1_250, &held(100))), [900, 100, 250], "in which it waited for nothing");
        assert_eq!(of(share(100, &held(0))), [90, 10, 0], "in proportion");
        assert_eq!(of(share(70, &ChannelTimes::default())), [0, 0, 70]);
    }
}
