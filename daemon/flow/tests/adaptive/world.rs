//! A producer, its pool and its consumers in virtual time: what a client sees of a daemon, with a network that takes
//! the same time for every message, and consumers that take so many bytes per second.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use weir_flow::ids::{SegmentIndex, SubpartitionIndex, Time};
use weir_flow::pool::partition::{PartitionPool, PartitionPoolSpec};
use weir_flow::selector::adaptive::{Adaptive, Take, TargetView};
use weir_flow::selector::{Rebalance, Selector};

/// Bytes of a segment.
pub(crate) const SEGMENT_BYTES: u64 = 32 << 10;

/// Bytes of a record with what it takes beside them.
pub(crate) const RECORD_BYTES: u64 = 1024;

/// Most open or queued segments of a subpartition.
pub(crate) const QUOTA: u32 = 10;

/// Receive segments of a channel.
pub(crate) const WINDOW: u32 = 10;

/// From one end to the other.
const LATENCY_NS: u64 = 50_000;

/// What the producer needs for a record: 1 µs, so 1 GB/s.
const RECORD_NS: u64 = 1_000;

pub(crate) const MILLISECOND: u64 = 1_000_000;
pub(crate) const SECOND: u64 = 1_000_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A segment is in the receive region.
    Arrived { target: usize, bytes: u64 },
    /// The producer's daemon knows of it.
    Acked { target: usize, segment: u32 },
    /// The consumer has done a segment.
    Done { target: usize, bytes: u64 },
    /// The producer's daemon knows of it.
    Consumed { target: usize, bytes: u64 },
}

#[derive(Debug)]
struct Target {
    /// From when on it takes so many bytes per second.
    rates: Vec<(u64, u64)>,
    builder: Option<(SegmentIndex, u64)>,
    queue: VecDeque<(SegmentIndex, u64)>,
    credit: u32,
    sent_segments: u64,
    /// When the consumer has done everything it has.
    busy_until: u64,
    emitted: u64,
    sent: u64,
    done: u64,
    consumed: u64,
    lent: u32,
}

impl Target {
    /// When so many bytes, begun at `start`, are done. `None`: never.
    fn done_at(&self, start: u64, bytes: u64) -> Option<u64> {
        let (mut at, mut left) = (start, bytes as f64);
        for (index, (_, rate)) in self.rates.iter().enumerate() {
            let end = self.rates.get(index + 1).map_or(u64::MAX, |(begin, _)| *begin);
            if end <= at {
                continue;
            }
            let needed = left * SECOND as f64 / *rate as f64;
            if needed <= (end - at) as f64 {
                return Some(at + needed as u64);
            }
            left -= (end - at) as f64 * *rate as f64 / SECOND as f64;
            at = end;
        }
        None
    }
}

/// The world of one producer.
pub(crate) struct World {
    pub(crate) now: u64,
    pool: PartitionPool,
    targets: Vec<Target>,
    events: BinaryHeap<Reverse<(u64, Event)>>,
}

impl World {
    /// With consumers that take so many bytes per second from these moments on; the first is 0.
    pub(crate) fn new(rates: &[&[(u64, u64)]]) -> Self {
        let subpartitions = rates.len() as u32;
        let spec = PartitionPoolSpec {
            segments: 2 * subpartitions + 8 + 32 + 5,
            subpartitions,
            quota: QUOTA,
            overdraft: 5,
        };
        let target = |rates: &&[(u64, u64)]| Target {
            rates: rates.to_vec(),
            builder: None,
            queue: VecDeque::new(),
            credit: WINDOW,
            sent_segments: 0,
            busy_until: 0,
            emitted: 0,
            sent: 0,
            done: 0,
            consumed: 0,
            lent: 0,
        };
        Self {
            now: 0,
            pool: PartitionPool::new(spec).expect("a pool"),
            targets: rates.iter().map(target).collect(),
            events: BinaryHeap::new(),
        }
    }

    /// Bytes that each consumer has done.
    pub(crate) fn done(&self) -> Vec<u64> {
        self.targets.iter().map(|target| target.done).collect()
    }

    /// Bytes emitted to each.
    pub(crate) fn emitted(&self) -> Vec<u64> {
        self.targets.iter().map(|target| target.emitted).collect()
    }

    pub(crate) fn view(&self, target: u32) -> TargetView {
        let of = &self.targets[target as usize];
        TargetView {
            unsubmitted_bytes: of.builder.map_or(0, |(_, written)| written),
            consumed_bytes: of.consumed,
            is_full: of.builder.is_none()
                && of.credit == 0
                && self.pool.held(SubpartitionIndex(target)) >= QUOTA,
            is_gone: false,
        }
    }

    pub(crate) fn take(&self, target: u32) -> Take {
        let is_open = self.targets[target as usize].builder.is_some();
        let is_able = is_open || self.pool.is_available(SubpartitionIndex(target));
        if is_able { Take::Now } else { Take::Later }
    }

    /// Writes a record, which must fit.
    pub(crate) fn write(&mut self, target: u32) {
        let index = SubpartitionIndex(target);
        let of = &mut self.targets[target as usize];
        if of.builder.is_none() {
            let segment = self.pool.acquire(index, false).expect("it was asked for");
            of.builder = Some((segment, 0));
            of.lent += 1;
        }
        of.emitted += RECORD_BYTES;
        let (segment, written) = of.builder.expect("it was opened");
        of.builder = Some((segment, written + RECORD_BYTES));
        if written + RECORD_BYTES == SEGMENT_BYTES {
            of.builder = None;
            of.queue.push_back((segment, SEGMENT_BYTES));
            self.send(target as usize);
        }
        self.now += RECORD_NS;
    }

    fn send(&mut self, target: usize) {
        let of = &mut self.targets[target];
        while of.credit > 0
            && let Some((segment, bytes)) = of.queue.pop_front()
        {
            of.credit -= 1;
            of.sent_segments += 1;
            of.sent += bytes;
            self.events.push(Reverse((self.now + LATENCY_NS, Event::Arrived { target, bytes })));
            self.events
                .push(Reverse((self.now + 2 * LATENCY_NS, Event::Acked { target, segment: segment.0 })));
        }
        self.pool.handle_sent(SubpartitionIndex(target as u32), of.sent_segments);
    }

    /// Everything that has happened by now.
    pub(crate) fn settle(&mut self) {
        while self.events.peek().is_some_and(|Reverse((at, _))| *at <= self.now) {
            let Some(Reverse((at, event))) = self.events.pop() else { return };
            match event {
                Event::Arrived { target, bytes } => {
                    let of = &mut self.targets[target];
                    if let Some(done) = of.done_at(of.busy_until.max(at), bytes) {
                        of.busy_until = done;
                        self.events.push(Reverse((done, Event::Done { target, bytes })));
                    } else {
                        of.busy_until = u64::MAX / 2;
                    }
                }
                Event::Acked { target, segment } => {
                    self.targets[target].lent -= 1;
                    self.pool.handle_returned(SegmentIndex(segment)).expect("it was taken");
                }
                Event::Done { target, bytes } => {
                    self.targets[target].done += bytes;
                    self.events.push(Reverse((at + LATENCY_NS, Event::Consumed { target, bytes })));
                }
                Event::Consumed { target, bytes } => {
                    self.targets[target].consumed += bytes;
                    self.targets[target].credit += 1;
                    self.send(target);
                }
            }
        }
        self.pool.check().expect("the rules of the pool");
    }

    /// Waits for the next thing to happen, at most so long.
    fn sleep(&mut self, most_ns: u64) {
        let next = self.events.peek().map_or(u64::MAX, |Reverse((at, _))| *at);
        self.now = next.max(self.now).min(self.now + most_ns);
    }
}

/// How the producer chooses.
pub(crate) trait Chooser {
    /// The target of the next record, which can take it. `None`: it waits, until something happens or so long.
    fn choose(&mut self, world: &World) -> Result<u32, u64>;

    /// The record was written.
    fn written(&mut self, _target: u32, _world: &World) {}
}

impl World {
    /// Emits as fast as it can until `end`.
    pub(crate) fn run(&mut self, chooser: &mut impl Chooser, end: u64) {
        while self.now < end {
            self.settle();
            match chooser.choose(self) {
                Ok(target) => {
                    self.write(target);
                    chooser.written(target, self);
                }
                Err(most_ns) => self.sleep(most_ns.min(end - self.now)),
            }
        }
        self.settle();
    }

    /// Emits a record every so many nanoseconds until `end`, as far as it can.
    pub(crate) fn run_paced(&mut self, chooser: &mut impl Chooser, each_ns: u64, end: u64) {
        let mut next = self.now;
        while self.now < end {
            self.settle();
            if self.now < next {
                self.sleep(next - self.now);
                continue;
            }
            match chooser.choose(self) {
                Ok(target) => {
                    self.write(target);
                    chooser.written(target, self);
                    next += each_ns;
                }
                Err(most_ns) => self.sleep(most_ns.min(end - self.now)),
            }
        }
        self.settle();
    }
}

/// In turn, and waits for the one whose turn it is.
pub(crate) struct RoundRobin {
    selector: Rebalance,
    chosen: Option<u32>,
}

impl RoundRobin {
    pub(crate) fn new() -> Self {
        Self { selector: Rebalance::starting_at(0), chosen: None }
    }
}

impl Chooser for RoundRobin {
    fn choose(&mut self, world: &World) -> Result<u32, u64> {
        let count = world.targets.len() as u32;
        let chosen = *self.chosen.get_or_insert_with(|| self.selector.select(b"", None, count));
        if world.take(chosen) != Take::Now {
            return Err(u64::MAX);
        }
        self.chosen = None;
        Ok(chosen)
    }
}

/// Of the next four the one with the fewest segments lent, then with the fewest bytes not handed to the network: the
/// choice of Flink 2.3. It waits for the chosen one.
pub(crate) struct NextFour {
    current: u32,
    chosen: Option<u32>,
}

impl NextFour {
    pub(crate) fn new() -> Self {
        Self { current: u32::MAX, chosen: None }
    }

    fn pick(&self, world: &World) -> u32 {
        let count = world.targets.len() as u32;
        let next = (1..=count.min(4)).map(|step| self.current.wrapping_add(step) % count);
        let load = |target: &u32| {
            let of = &world.targets[*target as usize];
            (of.lent, of.emitted - of.sent)
        };
        next.min_by_key(load).expect("there is one")
    }
}

impl Chooser for NextFour {
    fn choose(&mut self, world: &World) -> Result<u32, u64> {
        let chosen = match self.chosen {
            Some(chosen) => chosen,
            None => self.pick(world),
        };
        if world.take(chosen) != Take::Now {
            self.chosen = Some(chosen);
            return Err(u64::MAX);
        }
        (self.current, self.chosen) = (chosen, None);
        Ok(chosen)
    }
}

/// Ours, used as a client uses it.
pub(crate) struct Ours {
    pub(crate) adaptive: Adaptive<Rebalance>,
    pub(crate) chosen: Vec<u32>,
    /// Whether to note what was chosen.
    pub(crate) notes: bool,
    /// How often each target was taken out or came back at a look.
    pub(crate) changes: Vec<u32>,
}

impl Ours {
    pub(crate) fn new(targets: u32) -> Self {
        Self {
            adaptive: Adaptive::new(Rebalance::starting_at(0), targets),
            chosen: Vec::new(),
            notes: false,
            changes: vec![0; targets as usize],
        }
    }

    fn look(&mut self, world: &World) {
        let before: Vec<bool> =
            (0..self.adaptive.targets()).map(|target| self.adaptive.is_slow(target)).collect();
        self.adaptive.look(Time(world.now), |target| world.view(target));
        for (target, was_slow) in (0..).zip(before) {
            self.changes[target as usize] += u32::from(was_slow != self.adaptive.is_slow(target));
        }
    }

    fn able(&mut self, world: &World) -> Option<u32> {
        let take = |target| Ok::<_, ()>(world.take(target));
        self.adaptive.select_able(b"", None, take).expect("it never fails")
    }
}

impl Chooser for Ours {
    fn choose(&mut self, world: &World) -> Result<u32, u64> {
        if let Some(chosen) = self.able(world) {
            return Ok(chosen);
        }
        self.look(world);
        match self.able(world) {
            Some(chosen) => Ok(chosen),
            None if self.adaptive.has_slow() => Err(MILLISECOND),
            None => Err(u64::MAX),
        }
    }

    fn written(&mut self, target: u32, world: &World) {
        if self.notes {
            self.chosen.push(target);
        }
        if self.adaptive.handle_emitted(target, RECORD_BYTES) && self.adaptive.is_due(Time(world.now)) {
            self.look(world);
        }
    }
}
