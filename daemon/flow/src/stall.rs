//! Waits, their causes, and how long they took.
//!
//! Two kinds of wait are measured. A **send stall** belongs to a channel: something is queued and nothing of it is
//! sent. An **emit stall** belongs to a producer: its client waits for a segment, or for a place in an event window.
//! Each has exactly one [`Cause`] at every moment, so that the times of all causes add up to the time of the waits, to
//! the nanosecond. A wait that goes on counts as far as it has come whenever somebody asks.
//!
//! This file is the vocabulary: pure values that are added up, compared and shown. Which cause holds when is decided in
//! `account` for send stalls, in `credit` for the part of them in which credit was missing, and in [`emit`] for emit
//! stalls.

use crate::ids::Time;

pub(crate) mod account;
pub(crate) mod credit;
pub mod emit;

pub use credit::ReceiveAge;

/// How many causes there are: the length of every table by cause.
pub const CAUSES: usize = 7;

/// Why something waits. The order is that of [`Cause::ALL`]; [`Cause::index`] is its place there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cause {
    /// The sender waits for the consumer's application: it holds the receive segments of the channel, or no consumer
    /// has come yet.
    Consumer,
    /// The sender waits for the path between the nodes: for a Limit that is on its way, or for a link whose socket is
    /// lost or from which nothing is heard.
    Network,
    /// The sender waits for a daemon's thread: what could be sent was not planned yet, a Limit lay in the socket unread, or
    /// the peer's thread had not told what was given back.
    Shard,
    /// The sender waits for the socket of its link: the one send that may be in flight is still in the kernel.
    Socket,
    /// The sender waits for the consumer to take events: the event window is used up.
    Event,
    /// The channel waits until the barrier has come on all others. Never seen while nothing aligns barriers.
    Barrier,
    /// The producer's client waits for a segment, and no subpartition is at its quota: the pool of the partition is too
    /// small for what is on its way. Only an emit stall has this cause.
    Pool,
}

impl Cause {
    /// All of them, in the order of every table by cause.
    pub const ALL: [Self; CAUSES] =
        [Self::Consumer, Self::Network, Self::Shard, Self::Socket, Self::Event, Self::Barrier, Self::Pool];

    /// Its name in output; never changes.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Consumer => "consumer",
            Self::Network => "network",
            Self::Shard => "shard",
            Self::Socket => "socket",
            Self::Event => "event",
            Self::Barrier => "barrier",
            Self::Pool => "pool",
        }
    }

    /// The cause with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|cause| cause.as_str() == name)
    }

    /// Its place in a table by cause; below [`CAUSES`].
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }
}

/// Time and number of waits by cause, since the channel or the partition began.
///
/// Time is split among causes as they held. A wait is counted once, when it ends, under the cause that held longest in
/// it: so the counts add up to the number of waits that have ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StallTotals {
    /// Nanoseconds by cause, in the order of [`Cause::ALL`].
    pub ns: [u64; CAUSES],
    /// Waits that have ended, by the cause that held longest in each.
    pub count: [u64; CAUSES],
}

impl StallTotals {
    /// Nanoseconds of this cause.
    #[must_use]
    pub fn ns_of(&self, cause: Cause) -> u64 {
        self.ns.get(cause.index()).copied().unwrap_or(0)
    }

    /// Waits that have ended and in which this cause held longest.
    #[must_use]
    pub fn count_of(&self, cause: Cause) -> u64 {
        self.count.get(cause.index()).copied().unwrap_or(0)
    }

    /// Nanoseconds of all causes together.
    #[must_use]
    pub fn total_ns(&self) -> u64 {
        self.ns.iter().fold(0, |sum, ns| sum.saturating_add(*ns))
    }

    /// Waits that have ended, of all causes together.
    #[must_use]
    pub fn total_count(&self) -> u64 {
        self.count.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// The cause with the most time; the first one in the order of [`Cause::ALL`] if several have as much, none if there
    /// was no wait.
    #[must_use]
    pub fn most(&self) -> Option<Cause> {
        let most = self.ns.iter().copied().max().filter(|ns| *ns > 0)?;
        Cause::ALL.into_iter().find(|cause| self.ns_of(*cause) == most)
    }

    /// `ns` more of this cause. What a counter cannot hold is lost: after 584 years.
    pub fn add_ns(&mut self, cause: Cause, ns: u64) {
        if let Some(total) = self.ns.get_mut(cause.index()) {
            *total = total.saturating_add(ns);
        }
    }

    /// `waits` more that ended with this cause.
    pub fn add_count(&mut self, cause: Cause, waits: u64) {
        if let Some(count) = self.count.get_mut(cause.index()) {
            *count = count.saturating_add(waits);
        }
    }

    /// Adds another account to this one.
    pub fn add(&mut self, other: &Self) {
        for cause in Cause::ALL {
            self.add_ns(cause, other.ns_of(cause));
            self.add_count(cause, other.count_of(cause));
        }
    }
}

/// How many lengths are told apart.
pub const STALL_BUCKETS: usize = 28;

/// The first bucket ends at 2 to this power, in nanoseconds: 1,024 ns. The clock of a shard is read once per turn, so that
/// shorter waits are not told apart.
const FIRST_BITS: u32 = 10;

/// How long waits were: a histogram by powers of two, of [`STALL_BUCKETS`] buckets whatever comes.
///
/// Bucket 0 holds waits below 1,024 ns, bucket `i` those from 2^(9+i) up to, not including, 2^(10+i) ns, and the last one
/// all from 2^36 ns (69 s) on. Only waits that have ended are in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StallLengths {
    /// Waits by length.
    pub buckets: [u64; STALL_BUCKETS],
}

impl StallLengths {
    /// The bucket of a wait of this length.
    #[must_use]
    pub const fn bucket_of(ns: u64) -> usize {
        let bits = u64::BITS - ns.leading_zeros();
        let bucket = bits.saturating_sub(FIRST_BITS) as usize;
        if bucket < STALL_BUCKETS { bucket } else { STALL_BUCKETS - 1 }
    }

    /// Waits in this bucket are shorter than this many nanoseconds; none for the last one, which has no end, and beyond.
    #[must_use]
    pub const fn end_ns(bucket: usize) -> Option<u64> {
        if bucket + 1 < STALL_BUCKETS { Some(1 << (FIRST_BITS as usize + bucket)) } else { None }
    }

    /// So many waits of this length have ended.
    pub fn record(&mut self, ns: u64, waits: u64) {
        if let Some(count) = self.buckets.get_mut(Self::bucket_of(ns)) {
            *count = count.saturating_add(waits);
        }
    }

    /// Waits of all lengths.
    #[must_use]
    pub fn total_count(&self) -> u64 {
        self.buckets.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Adds another histogram to this one.
    pub fn add(&mut self, other: &Self) {
        for (count, more) in self.buckets.iter_mut().zip(other.buckets) {
            *count = count.saturating_add(more);
        }
    }
}

/// Lengths of waits by the cause that held longest in each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LengthsByCause([StallLengths; CAUSES]);

impl LengthsByCause {
    /// No wait.
    pub const NONE: Self = Self([StallLengths { buckets: [0; STALL_BUCKETS] }; CAUSES]);

    /// The lengths of those with this cause.
    #[must_use]
    pub fn of(&self, cause: Cause) -> StallLengths {
        self.0.get(cause.index()).copied().unwrap_or_default()
    }

    /// `waits` more of this cause and length have ended.
    pub fn record(&mut self, cause: Cause, ns: u64, waits: u64) {
        if let Some(lengths) = self.0.get_mut(cause.index()) {
            lengths.record(ns, waits);
        }
    }

    /// Adds another account to this one.
    pub fn add(&mut self, other: &Self) {
        self.0.iter_mut().zip(&other.0).for_each(|(lengths, more)| lengths.add(more));
    }
}

impl Default for LengthsByCause {
    fn default() -> Self {
        Self::NONE
    }
}

/// What a shard knows of all waits of one kind since it began, also of those whose channel has gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PastStalls {
    /// Every wait that has ended.
    pub lengths: LengthsByCause,
    /// Waits of partitions that have gone. Those that are there tell of theirs themselves.
    pub gone: StallTotals,
}

impl PastStalls {
    /// No wait.
    pub const NONE: Self =
        Self { lengths: LengthsByCause::NONE, gone: StallTotals { ns: [0; CAUSES], count: [0; CAUSES] } };

    /// Adds what another shard knows.
    pub fn add(&mut self, other: &Self) {
        self.lengths.add(&other.lengths);
        self.gone.add(&other.gone);
    }
}

/// One wait that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stall {
    /// How long it was, in nanoseconds.
    pub ns: u64,
    /// The cause that held longest in it.
    pub cause: Cause,
    /// When it ended.
    pub at: Time,
}

/// Everything that is told about the waits of a channel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stalls {
    /// Time and number by cause; the time of the wait that goes on is in it, its number is not.
    pub totals: StallTotals,
    /// How long those were that have ended.
    pub lengths: StallLengths,
    /// The one that ended last.
    pub last: Option<Stall>,
    /// The longest that has ended; of several as long, the first.
    pub longest: Option<Stall>,
    /// The cause that holds now, and since when something waits; none if nothing does.
    pub open: Option<(Cause, Time)>,
}

impl Stalls {
    /// So many waits like this one have ended, the last of them then. Their time is in the totals already. `all` has those
    /// of every channel.
    pub(crate) fn record(&mut self, stall: Stall, waits: u64, all: &mut LengthsByCause) {
        all.record(stall.cause, stall.ns, waits);
        self.totals.add_count(stall.cause, waits);
        self.lengths.record(stall.ns, waits);
        self.last = Some(stall);
        if self.longest.is_none_or(|longest| stall.ns > longest.ns) {
            self.longest = Some(stall);
        }
    }

    /// Adds what another channel tells: the later of the last ones, the longer of the longest, the older of the open
    /// ones.
    pub fn add(&mut self, other: &Self) {
        self.totals.add(&other.totals);
        self.lengths.add(&other.lengths);
        let later = |mine: &Stall, theirs: &Stall| theirs.at > mine.at;
        let longer = |mine: &Stall, theirs: &Stall| theirs.ns > mine.ns;
        self.last = choose(self.last, other.last, later);
        self.longest = choose(self.longest, other.longest, longer);
        self.open = choose(self.open, other.open, |mine, theirs| theirs.1 < mine.1);
    }
}

fn choose<T: Copy>(mine: Option<T>, theirs: Option<T>, prefer: impl FnOnce(&T, &T) -> bool) -> Option<T> {
    match (mine, theirs) {
        (Some(mine), Some(theirs)) => Some(if prefer(&mine, &theirs) { theirs } else { mine }),
        (mine, theirs) => mine.or(theirs),
    }
}
