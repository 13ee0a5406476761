//! Debloating: how much data a gate wants in flight, so that none of it is older than a target when it is consumed.
//!
//! What is controlled is bytes: throughput of the gate's application times the target. In flight is everything that was
//! written and not consumed: in the sender's queue, in sockets, and in the receive region. Two things bound it, both by
//! holding back and never by taking back ([`Share`]): how many receive segments a channel is granted, and how many
//! bytes its sender's queue may hold. So memory that is not wanted is not used: floating segments stay free for others.
//!
//! Throughput is measured by [`Throughput`] once a period. What is wanted follows it in two ways:
//! - **Steps.** When the last two periods differ from what is wanted by more than 60 % of the smaller of the two, and
//!   that again a period later (twice again for one that turns back), what was before is forgotten and the last two
//!   periods are believed at once.
//! - **Drift.** Else a slow mean is kept, and believed when it differs by more than 25 %.
//!
//! On a plateau with noise neither is to swing: each change that turns back widens both bounds by half, up to
//! [`WIDTH_MAX_PM`]; a change to a quarter or to four times and more narrows them again, since what follows it is
//! another plateau.

mod throughput;

pub use throughput::Throughput;

use crate::ids::Time;

/// Periods that the throughput is measured over.
const WINDOW_PERIODS: u64 = 5;
/// By how much a step differs from what is wanted, in thousandths of the smaller of the two.
const STEP_PM: u64 = 600;
/// By how much the mean may drift from it.
const DRIFT_PM: u64 = 250;
/// How much wider the two bounds may become, in thousandths.
pub const WIDTH_MAX_PM: u64 = 8_000;
/// A change by this factor begins another plateau.
const PLATEAU_FACTOR: u64 = 4;
/// Periods after which a step is believed, and one that turns back.
const SAME_PERIODS: u32 = 2;
const TURN_PERIODS: u32 = 3;
/// The mean moves by this part of the difference.
const MEAN_PART: u64 = 16;

/// Least that a sender's queue is bounded to, in bytes. With less, frame headers and wake-ups would cost more than what
/// they carry.
pub const BUFFER_BYTES_MIN: u32 = 1 << 10;
/// Shortest target, in nanoseconds.
pub const TARGET_NS_MIN: u64 = 1_000;
/// Longest target, in nanoseconds.
pub const TARGET_NS_MAX: u64 = 60_000_000_000;

/// What a gate wants of debloating.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DebloatSpec {
    /// How old data may be when it is consumed, in nanoseconds; kept within [`TARGET_NS_MIN`] and [`TARGET_NS_MAX`].
    pub target_ns: u64,
    /// Least that is wanted in flight for the gate, in bytes.
    pub bytes_min: u64,
    /// Most that is wanted in flight for it, in bytes; one below `bytes_min` counts as `bytes_min`.
    pub bytes_max: u64,
}

impl Default for DebloatSpec {
    fn default() -> Self {
        Self { target_ns: 1_000_000_000, bytes_min: 0, bytes_max: u64::MAX }
    }
}

/// What each channel of a gate gets of what the gate wants in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Receive segments that it is granted or uses; at least 1, so that it always goes on.
    pub window: u32,
    /// Bytes that its sender's queue may hold, and that segments are filled to from now on, if that is less than a
    /// segment; at least [`BUFFER_BYTES_MIN`].
    pub buffer_bytes: u32,
}

impl Share {
    /// Nothing is held back.
    pub const UNBOUNDED: Self = Self { window: u32::MAX, buffer_bytes: u32::MAX };

    /// Shares `wanted` bytes among so many channels; 0 count as 1. Half of it is for the receive window, in whole
    /// segments and at least one, and what is left for the queue. Below a segment for each, both are filled no
    /// further than to their half.
    #[must_use]
    pub fn of(wanted: u64, channels: u32, segment_bytes: u32) -> Self {
        let each = wanted / u64::from(channels.max(1));
        let segment = u64::from(segment_bytes.max(1));
        let window = each / 2 / segment;
        let buffer = if window == 0 { each / 2 } else { each - window * segment };
        let within = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
        Self { window: within(window).max(1), buffer_bytes: within(buffer).max(BUFFER_BYTES_MIN) }
    }

    /// What a gate begins with, of whose application nothing is known: two segments each way.
    #[must_use]
    pub fn initial(segment_bytes: u32) -> Self {
        Self { window: 2, buffer_bytes: segment_bytes.saturating_mul(2).max(BUFFER_BYTES_MIN) }
    }
}

/// What a producer's client makes of the bytes that a consumer wants on their way to it at most. It concerns records that
/// are not begun: one that is goes on as without it, so that a record of any length passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferBound {
    bytes: u32,
}

impl Default for BufferBound {
    fn default() -> Self {
        Self::NONE
    }
}

impl BufferBound {
    /// No bound.
    pub const NONE: Self = Self { bytes: u32::MAX };

    /// This many bytes, or no bound for the largest number.
    #[must_use]
    pub const fn new(bytes: u32) -> Self {
        Self { bytes }
    }

    /// Whether another record may be begun while so many bytes were written and are not known to have arrived. If not, the
    /// client hands over what it wrote before it waits: what is not handed over never arrives.
    #[must_use]
    pub const fn admits(self, outstanding_bytes: u64) -> bool {
        self.bytes == u32::MAX || outstanding_bytes < self.bytes as u64
    }

    /// Whether a record of so many bytes, its framing included, is begun in the open segment, which has `fill` bytes, rather
    /// than in the next one. Always with a bound of a segment and more: then segments are filled as ever.
    #[must_use]
    pub const fn appends(self, fill: u32, record_bytes: usize, segment_bytes: u32) -> bool {
        let room = self.bytes.saturating_sub(fill) as usize;
        self.bytes >= segment_bytes || fill == 0 || record_bytes <= room
    }

    /// Up to where in the open segment, which has `fill` bytes, records that fit whole are written without asking again,
    /// while so many bytes are outstanding: each of them is one that [`Self::admits`] and [`Self::appends`]. At least
    /// `fill`; without a bound the whole segment.
    #[must_use]
    pub const fn fill_end(self, fill: u32, outstanding_bytes: u64, segment_bytes: u32) -> u32 {
        if self.bytes == u32::MAX {
            return segment_bytes;
        }
        let most = if self.bytes < segment_bytes { self.bytes } else { segment_bytes };
        let room = (self.bytes as u64).saturating_sub(outstanding_bytes);
        let end = fill as u64 + room;
        let end = if end < most as u64 { end as u32 } else { most };
        if end > fill { end } else { fill }
    }
}

/// Which way something changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Up,
    Down,
}

/// The debloating of one gate.
#[derive(Clone, Debug)]
pub struct Debloat {
    spec: DebloatSpec,
    meter: Throughput,
    /// Bytes that arrived and were not given back.
    buffered: u64,
    wanted: Option<u64>,
    mean: u64,
    /// The way of the last change.
    way: Option<Way>,
    /// The way in which the last periods differ, and how many of them do.
    run: Option<(Way, u32)>,
    width_pm: u64,
    changes: u64,
    turns: u64,
}

impl Debloat {
    /// Debloating of a gate into which nothing has arrived.
    #[must_use]
    pub fn new(spec: DebloatSpec) -> Self {
        let DebloatSpec { target_ns, bytes_min, bytes_max } = spec;
        Self {
            spec: DebloatSpec {
                target_ns: target_ns.clamp(TARGET_NS_MIN, TARGET_NS_MAX),
                bytes_min,
                bytes_max: bytes_max.max(bytes_min),
            },
            meter: Throughput::new(),
            buffered: 0,
            wanted: None,
            mean: 0,
            way: None,
            run: None,
            width_pm: 1_000,
            changes: 0,
            turns: 0,
        }
    }

    /// So many bytes arrived.
    pub fn handle_arrived(&mut self, bytes: u64, now: Time) {
        self.buffered = self.buffered.saturating_add(bytes);
        if self.buffered > 0 {
            self.meter.resume(now);
        }
    }

    /// The application gave so many bytes back.
    pub fn handle_given_back(&mut self, bytes: u64, now: Time) {
        self.meter.count(bytes, now);
        self.buffered = self.buffered.saturating_sub(bytes);
        if self.buffered == 0 {
            self.meter.pause(now);
        }
    }

    /// A period of so many nanoseconds is over. `most` is what could be in flight at all, in bytes. Whether what is
    /// wanted changed.
    pub fn handle_period(&mut self, most: u64, period_ns: u64, now: Time) -> bool {
        self.meter.end_period(period_ns.saturating_mul(WINDOW_PERIODS), now);
        let (Some(rate), Some(recent)) = (self.meter.rate(now), self.meter.recent(now)) else { return false };
        let bounds = self.bounds(most);
        let (found, recent) = (self.in_flight_for(rate, bounds), self.in_flight_for(recent, bounds));
        let Some(wanted) = self.wanted else {
            (self.wanted, self.mean) = (Some(found), found);
            return true;
        };
        self.mean = moved(self.mean, found);
        if self.is_step(wanted, recent, bounds) {
            self.meter.forget_earlier();
            self.change(wanted, recent);
            return true;
        }
        // While it may be a step the mean is not believed: it would be on its way for long.
        let is_drift = differs(wanted, self.mean, DRIFT_PM * self.width_pm / 1_000).is_some();
        if is_drift && self.run.is_none() {
            self.change(wanted, self.mean.clamp(bounds.0, bounds.1));
            return true;
        }
        // The pool may have become smaller or larger than it was.
        let within = wanted.clamp(bounds.0, bounds.1);
        self.wanted = Some(within);
        within != wanted
    }

    fn bounds(&self, most: u64) -> (u64, u64) {
        let min = self.spec.bytes_min.min(most);
        (min, self.spec.bytes_max.min(most).max(min))
    }

    fn in_flight_for(&self, rate: u64, (min, max): (u64, u64)) -> u64 {
        let bytes = u128::from(rate) * u128::from(self.spec.target_ns) / 1_000_000_000;
        u64::try_from(bytes).unwrap_or(u64::MAX).clamp(min, max)
    }

    /// Counts the periods in which the throughput differs the same way. Whether they are enough. A bound is told however
    /// near it is.
    fn is_step(&mut self, wanted: u64, found: u64, (min, max): (u64, u64)) -> bool {
        let way = if found == wanted {
            None
        } else if found == min {
            Some(Way::Down)
        } else if found == max {
            Some(Way::Up)
        } else {
            differs(wanted, found, STEP_PM * self.width_pm / 1_000)
        };
        let Some(way) = way else {
            self.run = None;
            return false;
        };
        let periods = match self.run {
            Some((of, periods)) if of == way => periods.saturating_add(1),
            _ => 1,
        };
        self.run = Some((way, periods));
        let turns = self.way.is_some_and(|last| last != way);
        periods >= if turns { TURN_PERIODS } else { SAME_PERIODS }
    }

    fn change(&mut self, from: u64, to: u64) {
        if to == from {
            return;
        }
        let way = if to > from { Way::Up } else { Way::Down };
        self.changes += 1;
        if self.way.is_some_and(|last| last != way) {
            self.turns += 1;
            self.width_pm = (self.width_pm * 3 / 2).min(WIDTH_MAX_PM);
        }
        let (less, more) = (from.min(to), from.max(to));
        if more / PLATEAU_FACTOR >= less {
            self.width_pm = 1_000;
        }
        self.way = Some(way);
        self.run = None;
        (self.wanted, self.mean) = (Some(to), to);
    }

    /// How old data may be when it is consumed, in nanoseconds.
    #[must_use]
    pub const fn target_ns(&self) -> u64 {
        self.spec.target_ns
    }

    /// Bytes wanted in flight; none before anything was measured.
    #[must_use]
    pub const fn wanted(&self) -> Option<u64> {
        self.wanted
    }

    /// What each of so many channels gets. `most` is what could be in flight at all: who wants that much is not held back.
    #[must_use]
    pub fn share(&self, channels: u32, segment_bytes: u32, most: u64) -> Share {
        match self.wanted {
            None => Share::initial(segment_bytes),
            Some(wanted) if wanted >= most => Share::UNBOUNDED,
            Some(wanted) => Share::of(wanted, channels, segment_bytes),
        }
    }

    /// Bytes that arrived and were not given back.
    #[must_use]
    pub const fn buffered(&self) -> u64 {
        self.buffered
    }

    /// Bytes per second that the application consumes while it has something to consume; none before it did.
    #[must_use]
    pub fn rate(&self, now: Time) -> Option<u64> {
        self.meter.rate(now)
    }

    /// How often what is wanted changed.
    #[must_use]
    pub const fn changes(&self) -> u64 {
        self.changes
    }

    /// How often it changed the other way than before.
    #[must_use]
    pub const fn turns(&self) -> u64 {
        self.turns
    }

    /// Whether another period can change anything although nothing more happens: an application that holds what it has
    /// is slower with every moment, until no more than `least` bytes are wanted.
    #[must_use]
    pub fn is_settling(&self, least: u64) -> bool {
        let least = self.spec.bytes_min.max(least);
        self.meter.is_running() && self.wanted.is_some_and(|wanted| wanted > least)
    }
}

/// The way in which `found` differs from `wanted` by more than so many thousandths of the smaller of the two.
fn differs(wanted: u64, found: u64, by_pm: u64) -> Option<Way> {
    let is_over =
        |more: u64, less: u64| u128::from(more) * 1_000 > u128::from(less) * u128::from(1_000 + by_pm);
    if is_over(found, wanted) {
        Some(Way::Up)
    } else if is_over(wanted, found) {
        Some(Way::Down)
    } else {
        None
    }
}

/// `mean`, a part of the way nearer to `found`: at least by one, so that it gets there.
fn moved(mean: u64, found: u64) -> u64 {
    let part = mean.abs_diff(found).div_ceil(MEAN_PART);
    if found > mean { mean + part } else { mean - part }
}
