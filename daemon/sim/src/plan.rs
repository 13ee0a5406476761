//! What a run consists of: nodes, exchanges, clients and how each of them behaves. Drawn from the seed alone,
//! before the first step.

use weir_flow::debloat::DebloatSpec;
use weir_flow::exchange::{Name, Shape, Strategy};
use weir_flow::ids::ProducerIndex;
use weir_flow::limits::{Limits, RECORD_ROOM_BYTES};

use crate::faults::Faults;
use crate::rng::Rng;

/// Where a client attaches: a shard of a node, by position in [`Plan::shards`].
pub type ShardPlace = usize;

/// One shard of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardPlan {
    /// The node.
    pub node: u16,
    /// Number of the shard in its node.
    pub index: u16,
}

/// How long the records of a producer are, and how it flushes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Records {
    /// Few bytes, flushed after almost each record.
    Trickle,
    /// Small ones, flushed now and then.
    Small,
    /// From none to several segments, most of them small.
    Mixed,
    /// Around a segment and more.
    Long,
}

/// One producer.
#[derive(Clone, Debug)]
pub struct ProducerPlan {
    /// Its shard.
    pub place: ShardPlace,
    /// The step at which it attaches.
    pub attach_at: u64,
    /// Records that it sends before it ends.
    pub records: u64,
    /// Their lengths.
    pub lengths: Records,
    /// Chance per thousand that an action is an event.
    pub events: u32,
    /// Whether it goes on with other consumers when one has no room, where the strategy lets it choose the record.
    pub skips: bool,
    /// Whether it leaves consumers out that do not keep up, where they are interchangeable and it has several.
    pub adaptive: bool,
    /// How much it does in relation to others.
    pub weight: u32,
    /// The step at which it is killed.
    pub dies_at: Option<u64>,
    /// The step at which it hands over something that cannot be true.
    pub lies_at: Option<u64>,
    /// Segments of its pool beyond the least that work.
    pub spare_segments: u32,
}

/// When a consumer is slow, and how slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slow {
    /// The first step.
    pub from: u64,
    /// The step after the last one.
    pub to: u64,
    /// Of a thousand turns, those that it does not let pass.
    pub per_mille: u32,
}

/// One consumer.
#[derive(Clone, Debug)]
pub struct ConsumerPlan {
    /// Its shard.
    pub place: ShardPlace,
    /// The step at which it attaches.
    pub attach_at: u64,
    /// How much it does in relation to others.
    pub weight: u32,
    /// Slices that it likes to hold before it gives some back.
    pub holds: usize,
    /// It reads nothing in these steps.
    pub pause: Option<(u64, u64)>,
    /// It is much slower in these steps.
    pub slow: Option<Slow>,
    /// How much it wants in flight.
    pub debloat: Option<DebloatSpec>,
    /// It reads nothing at all until everybody else is done.
    pub stopped: bool,
    /// The step at which it is killed.
    pub dies_at: Option<u64>,
    /// The step at which it gives back something that it does not hold.
    pub lies_at: Option<u64>,
    /// Entries of its delivery ring.
    pub ring_entries: usize,
    /// Segments of its pool beyond exclusive and floating.
    pub spare_segments: u32,
}

/// One exchange.
#[derive(Clone, Debug)]
pub struct ExchangePlan {
    /// Its name.
    pub name: Name,
    /// What all its clients state.
    pub shape: Shape,
    /// Its producers, by index.
    pub producers: Vec<ProducerPlan>,
    /// Its consumers, by index.
    pub consumers: Vec<ConsumerPlan>,
    /// It goes on without a consumer that is lost.
    pub continue_without: bool,
}

/// How long outages and the grace of links are in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timing {
    /// No link breaks.
    Calm,
    /// Links break, both ends are told soon, and the grace is longer than any run; or there is none.
    Resets,
    /// All times are so short that outages last longer than the grace, and that a stall looks like an outage.
    Quick,
    /// A silent link is found when all else is done.
    Slow,
}

/// A whole run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Limits of every shard.
    pub limits: Limits,
    /// All shards of all nodes.
    pub shards: Vec<ShardPlan>,
    /// All exchanges.
    pub exchanges: Vec<ExchangePlan>,
    /// What goes wrong.
    pub faults: Faults,
    /// How long outages and the grace of links are.
    pub timing: Timing,
    /// One link carries channels in both directions, instead of one link for each.
    pub shared_links: bool,
    /// Largest virtual time between two steps, in nanoseconds.
    pub step_ns: u64,
    /// Steps before the faults stop.
    pub steps: u64,
}

/// Of a thousand producers that could choose adaptively, how many do.
const ADAPTIVE_PER_MILLE: u32 = 600;

/// Names the numbers that say which.
const ADAPTIVE: u64 = 0xada9;

/// Of a thousand runs, how many have consumers that want less in flight than there is room for.
const DEBLOAT_PER_MILLE: u32 = 450;

/// Names the numbers that say which.
const DEBLOAT: u64 = 0xdeb1;

impl ExchangePlan {
    /// Something may be wrong with one of the consumers.
    fn hold_one_up(&mut self, rng: &mut Rng, steps: u64) {
        let position = rng.index(self.consumers.len());
        let Some(consumer) = self.consumers.get_mut(position) else { return };
        match rng.below(6) {
            0 => consumer.weight = 1,
            1 => {
                let from = rng.below(steps);
                consumer.pause = Some((from, from + steps / 4 + rng.below(steps / 2 + 1)));
            }
            2 => consumer.stopped = true,
            3 => {
                consumer.dies_at = Some(rng.below(steps));
                self.continue_without = true;
            }
            _ => {}
        }
    }
}

/// The name of exchange number `position`.
#[must_use]
pub fn exchange_name(position: usize) -> Name {
    name(&format!("x{position}"))
}

/// A name that is known to be valid.
#[must_use]
pub fn name(text: &str) -> Name {
    text.parse().unwrap_or_else(|error| unreachable!("{text}: {error}"))
}

impl Plan {
    /// The plan of a seed.
    #[must_use]
    pub fn draw(rng: &mut Rng, steps: u64) -> Self {
        let timing = match rng.below(100) {
            0..40 => Timing::Calm,
            40..68 => Timing::Resets,
            68..92 => Timing::Quick,
            _ => Timing::Slow,
        };
        let faults = Faults::draw(rng, steps, timing);
        let mut limits = draw_limits(rng);
        set_times(rng, timing, &mut limits);
        let mut shards = Vec::new();
        for node in 0..rng.range(1, 3) as u16 {
            shards.extend((0..rng.range(1, 2) as u16).map(|index| ShardPlan { node, index }));
        }
        let deadly = rng.chance(250);
        let exchanges = (0..rng.range(1, 4) as usize)
            .map(|position| draw_exchange(rng, position, &limits, shards.len(), steps, deadly))
            .collect();
        let mut plan = Self {
            limits,
            shards,
            exchanges,
            faults,
            timing,
            shared_links: rng.chance(700),
            step_ns: match timing {
                Timing::Quick => rng.pick(&[200_000, 2_000_000]),
                _ => rng.pick(&[2_000, 20_000, 200_000, 2_000_000]),
            },
            steps,
        };
        plan.draw_adaptive(&mut rng.clone().fork(ADAPTIVE));
        plan.draw_debloating(&mut rng.clone().fork(DEBLOAT));
        plan
    }

    /// Which consumers want less in flight than there is room for, and how long their period is. Drawn from numbers of its
    /// own, like the producers that choose adaptively.
    fn draw_debloating(&mut self, rng: &mut Rng) {
        let limits = &mut self.limits;
        let least = match self.timing {
            Timing::Calm => 1,
            // A run comes to its end by a bounded number of periods, as of pings.
            _ => (limits.link_grace_ns + limits.peer_timeout_ns) / 2_000,
        };
        limits.debloat_period_ns = (self.step_ns * rng.pick(&[2, 10, 50])).max(least);
        if !rng.chance(DEBLOAT_PER_MILLE) {
            return;
        }
        let period = limits.debloat_period_ns;
        for consumer in self.exchanges.iter_mut().flat_map(|exchange| &mut exchange.consumers) {
            let from = rng.below(self.steps);
            let to = from + rng.below(self.steps) + 1;
            let slow = rng.chance(500).then_some(Slow { from, to, per_mille: rng.pick(&[5, 60, 300]) });
            let debloat = DebloatSpec {
                target_ns: period * rng.range(1, 20),
                bytes_min: rng.pick(&[0, 0, 5_000]),
                bytes_max: rng.pick(&[u64::MAX, u64::MAX, 60_000, 20_000, 1]),
            };
            if rng.chance(800) {
                (consumer.slow, consumer.debloat) = (slow, Some(debloat));
            }
        }
    }

    /// Which producers choose adaptively. Drawn from numbers of its own, so that a seed without such producers does what
    /// it would do if there were none at all.
    fn draw_adaptive(&mut self, rng: &mut Rng) {
        for exchange in &mut self.exchanges {
            let shape = exchange.shape;
            for (index, producer) in (0..).map(ProducerIndex).zip(&mut exchange.producers) {
                let has_choice = shape.strategy.has_interchangeable_consumers() && shape.builders(index) > 1;
                producer.adaptive = rng.chance(ADAPTIVE_PER_MILLE) && has_choice;
            }
            if exchange.producers.iter().any(|producer| producer.adaptive) {
                exchange.hold_one_up(rng, self.steps);
            }
        }
    }

    /// How long a link cannot be reached after it broke, in nanoseconds.
    #[must_use]
    pub fn outage(&self, rng: &mut Rng) -> u64 {
        let grace = self.limits.link_grace_ns;
        match self.timing {
            // About as long as the grace, so that it is over on one end only, now and then.
            Timing::Quick => rng.pick(&[0, 1, grace / 4, grace * 9 / 10, grace * 11 / 10, grace * 2]),
            _ => rng.pick(&[0, 1, rng.clone().small(self.step_ns * 300)]),
        }
    }

    /// Which exchanges go on without a consumer that is lost.
    #[must_use]
    pub fn continues(&self) -> Vec<bool> {
        self.exchanges.iter().map(|exchange| exchange.continue_without).collect()
    }

    /// Shapes of all exchanges.
    #[must_use]
    pub fn shapes(&self) -> Vec<Shape> {
        self.exchanges.iter().map(|exchange| exchange.shape).collect()
    }
}

fn draw_limits(rng: &mut Rng) -> Limits {
    let segment_bytes = rng.pick(&[4096, 4096, 4096, 8192]) + RECORD_ROOM_BYTES;
    let batch_bytes_max = segment_bytes + 4096 + rng.pick(&[0, 1000, 30_000, 200_000]);
    Limits {
        segment_bytes,
        exclusive: rng.range_u32(1, 3),
        floating: rng.pick(&[0, 1, 2, 8]),
        quota: rng.pick(&[1, 2, 3, 10]),
        overdraft: rng.pick(&[0, 1, 5]),
        retention: rng.pick(&[0, 2, 32]),
        event_window: rng.pick(&[2, 3, 8]),
        record_bytes_max: 5 * segment_bytes,
        spanning_bytes_max: u64::from(5 * segment_bytes) * rng.pick(&[1, 1, 50]),
        batch_slices_max: rng.pick(&[1, 2, 4, 16]),
        batch_bytes_min: rng.range_u32(1, batch_bytes_max),
        batch_bytes_max,
        batch_window_ns: rng.pick(&[10_000, 2_000_000]),
        limit_delay_ns: rng.pick(&[0, 20_000, 500_000]),
        debloat_period_ns: 200_000_000,
        ping_interval_ns: rng.pick(&[1_000_000, 100_000_000, 1_000_000_000]),
        peer_timeout_ns: 60_000_000_000,
        link_grace_ns: 70_000_000_000,
    }
}

/// Times of links. A run comes to its end by a bounded number of pings, so that they are never much shorter than what
/// is waited for.
fn set_times(rng: &mut Rng, timing: Timing, limits: &mut Limits) {
    match timing {
        Timing::Calm => {}
        Timing::Resets => {
            limits.ping_interval_ns = 2_000_000_000;
            limits.link_grace_ns = rng.pick(&[0, 61_000_000_000, 70_000_000_000, 100_000_000_000]);
        }
        Timing::Quick => {
            limits.ping_interval_ns = rng.pick(&[1_000_000, 2_000_000, 4_000_000]);
            limits.peer_timeout_ns = limits.ping_interval_ns * rng.range(2, 6);
            limits.link_grace_ns = limits.peer_timeout_ns * rng.range(11, 40) / 10;
        }
        Timing::Slow => {
            // Longer than any stall of a run.
            limits.ping_interval_ns = 1_000_000_000;
            limits.peer_timeout_ns = 10_000_000_000;
            limits.link_grace_ns = rng.pick(&[11_000_000_000, 30_000_000_000]);
        }
    }
}

fn draw_exchange(
    rng: &mut Rng,
    position: usize,
    limits: &Limits,
    shards: usize,
    steps: u64,
    deadly: bool,
) -> ExchangePlan {
    let strategy = rng.pick(&[
        Strategy::Forward,
        Strategy::Rebalance,
        Strategy::Hash,
        Strategy::Broadcast,
        Strategy::Rescale,
    ]);
    let producers = rng.range_u32(1, 3);
    let consumers = if strategy == Strategy::Forward { producers } else { rng.range_u32(1, 4) };
    let shape = Shape {
        producers,
        consumers,
        strategy,
        segment_bytes: limits.segment_bytes,
        checksum: rng.chance(300),
    };
    let bytes = rng.pick(&[2_000, 30_000, 200_000]) / u64::from(producers);
    ExchangePlan {
        name: exchange_name(position),
        shape,
        continue_without: rng.chance(500),
        producers: (0..producers).map(|_| draw_producer(rng, limits, shards, steps, deadly, bytes)).collect(),
        consumers: (0..consumers).map(|_| draw_consumer(rng, limits, shards, steps, deadly)).collect(),
    }
}

fn draw_producer(
    rng: &mut Rng,
    limits: &Limits,
    shards: usize,
    steps: u64,
    deadly: bool,
    bytes: u64,
) -> ProducerPlan {
    let lengths = rng.pick(&[Records::Trickle, Records::Small, Records::Mixed, Records::Long]);
    let average = match lengths {
        Records::Trickle => 100,
        Records::Small => 200,
        Records::Mixed => 1_000,
        Records::Long => u64::from(limits.segment_bytes) * 3 / 2,
    };
    ProducerPlan {
        place: rng.index(shards),
        attach_at: if rng.chance(300) { rng.below(steps / 2 + 1) } else { rng.below(50) },
        records: if rng.chance(50) { 0 } else { rng.range(1, (bytes / average).max(1)) },
        lengths,
        events: rng.pick(&[0, 10, 100, 400]),
        skips: rng.chance(500),
        adaptive: false,
        weight: rng.pick(&[1, 4, 16]),
        dies_at: (deadly && rng.chance(250)).then(|| rng.below(steps)),
        lies_at: (deadly && rng.chance(100)).then(|| rng.below(steps)),
        spare_segments: rng.pick(&[0, 1, 4, 40]),
    }
}

fn draw_consumer(rng: &mut Rng, limits: &Limits, shards: usize, steps: u64, deadly: bool) -> ConsumerPlan {
    let pause_from = rng.below(steps);
    ConsumerPlan {
        place: rng.index(shards),
        attach_at: if rng.chance(300) { rng.below(steps / 2 + 1) } else { rng.below(50) },
        weight: rng.pick(&[1, 4, 16]),
        holds: rng.pick(&[0, 1, 4, limits.exclusive as usize + 1]),
        pause: rng.chance(250).then(|| (pause_from, pause_from + rng.below(steps / 2 + 1))),
        slow: None,
        debloat: None,
        stopped: rng.chance(80),
        dies_at: (deadly && rng.chance(250)).then(|| rng.below(steps)),
        lies_at: (deadly && rng.chance(100)).then(|| rng.below(steps)),
        ring_entries: rng.pick(&[1, 2, 16, 256]),
        spare_segments: rng.pick(&[0, 0, 1, 5]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_plan_is_within_the_bounds_of_the_core() {
        for seed in 0..500 {
            let plan = Plan::draw(&mut Rng::new(seed), 4_000);
            assert!(plan.limits.clone().validated().is_ok(), "seed {seed}: {:?}", plan.limits);
            assert!(plan.exchanges.iter().all(|x| x.producers.len() == x.shape.producers as usize));
            assert!(plan.exchanges.iter().all(|x| x.consumers.len() == x.shape.consumers as usize));
        }
    }
}
