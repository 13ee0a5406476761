//! A world of one node: every channel is local, so that there is no wire to cut and none to judge by. What can go wrong
//! here is memory that is written again while its consumer still reads it, an end that nobody hears of, and an order of
//! deaths that leaves something behind.
//!
//! Clients, model and memory are those of the other world: a consumer compares what it reads when it gives it back, and a
//! producer poisons a segment when it gets it back. What shards hand each other is late by chance, and in order.

mod shell;

use std::collections::{BTreeMap, VecDeque};

use weir_flow::failure::{Failure, FailureCode};
use weir_flow::ids::{ConsumerIndex, Incarnation, LinkId, ProducerIndex, ProducerLife, Time};
use weir_flow::shard::{GateSpec, LinkSpec, PartitionSpec, PoolShares, Transmit};
use weir_flow::stats::Side;

use crate::checks::channel_key;
use crate::common::Common;
use crate::consumer::{self, Consumer, GivenBack};
use crate::memory::Region;
use crate::model::{ChannelKey, Model, Outcome};
use crate::node::Node;
use crate::plan::{Plan, ShardPlan};
use crate::producer::{self, Producer};
use crate::rng::Rng;
use crate::{Finding, Options};

/// Names the numbers that say which shards there are.
const LOCAL: u64 = 0x10ca1;

/// Rounds without any progress after which the end of a run counts as stuck: timers are few and short.
const IDLE_ROUNDS_MAX: u32 = 400;

/// What one run came to.
#[derive(Clone, Debug, Default)]
pub struct LocalReport {
    /// Records that were delivered and checked.
    pub records: u64,
    /// Slices that consumers read in the memory of their producers.
    pub lent: u64,
    /// Of these, such whose producer was dead or gone when they were given back.
    pub outlived: u64,
    /// Consumers that died or left while they had some.
    pub died_holding: u64,
    /// Channels that failed at their consumer.
    pub failed: u64,
    /// Times that a producer waited for a consumer that had all it may have.
    pub at_quota: u64,
    /// Whether the wanted defect was put in.
    pub sabotaged: bool,
    /// What was wrong, if anything.
    pub finding: Option<Finding>,
}

/// What one shard has handed to another, and when it arrives.
type Passing = VecDeque<(u64, Time, Transmit)>;

struct World {
    plan: Plan,
    common: Common,
    shards: Vec<Node>,
    producers: Vec<Producer>,
    consumers: Vec<Consumer>,
    closed_partitions: Vec<bool>,
    closed_gates: Vec<bool>,
    /// By shard and peer: the name of the link.
    links: BTreeMap<(usize, usize), LinkId>,
    passing: BTreeMap<(usize, usize), Passing>,
    report: LocalReport,
}

/// Runs a seed.
#[must_use]
pub fn run(options: Options) -> LocalReport {
    let mut world = match World::new(options) {
        Ok(world) => world,
        Err(text) => unreachable!("seed {}: a plan that cannot be: {text}", options.seed),
    };
    let result = world.run();
    world.report.sabotaged = world.common.sabotaged;
    for (_, channel) in world.common.model.channels() {
        world.report.records += channel.records;
        world.report.failed += u64::from(matches!(channel.outcome, Some(Outcome::Failed(_))));
    }
    let Options { seed, steps, .. } = options;
    let step = world.common.step;
    world.report.finding =
        result.err().map(|text| Finding { seed, steps, step, text: format!("local: {text}") });
    world.report
}

impl World {
    fn new(options: Options) -> Result<Self, String> {
        let mut rng = Rng::new(options.seed).fork(LOCAL);
        let mut plan = Plan::draw(&mut rng, options.steps);
        let count = rng.range(1, 3) as usize;
        plan.shards = (0..count as u16).map(|index| ShardPlan { node: 0, index }).collect();
        let (mut producers, mut consumers) = (Vec::new(), Vec::new());
        for planned in &mut plan.exchanges {
            planned.producers.iter_mut().for_each(|each| each.place = rng.index(count));
            planned.consumers.iter_mut().for_each(|each| each.place = rng.index(count));
        }
        for (exchange, planned) in (0u32..).zip(&plan.exchanges) {
            for (producer, each) in (0u32..).zip(&planned.producers) {
                let key = ChannelKey { exchange, producer, consumer: 0 };
                producers.push(Producer::new(&plan, key, each, &mut rng)?);
            }
            for (consumer, each) in (0u32..).zip(&planned.consumers) {
                let key = ChannelKey { exchange, producer: 0, consumer };
                consumers.push(Consumer::new(&plan, key, each, &mut rng)?);
            }
        }
        let mut shards: Vec<_> =
            plan.shards.iter().map(|place| Node::new(*place, plan.limits.clone())).collect();
        let mut links = BTreeMap::new();
        for (from, shard) in shards.iter_mut().enumerate() {
            for to in 0..count {
                let spec = LinkSpec {
                    peer: shard.node_name(),
                    peer_shard: to as u16,
                    peer_grace_ns: 0,
                    is_local: true,
                };
                links.insert((from, to), shard.shard.handle_link(spec, Time(0)));
            }
        }
        let model = Model::new(plan.shapes()).continuing(&plan.continues());
        Ok(Self {
            closed_partitions: vec![false; producers.len()],
            closed_gates: vec![false; consumers.len()],
            common: Common::new(rng, model, options.trace, options.sabotage),
            plan,
            shards,
            producers,
            consumers,
            links,
            passing: BTreeMap::new(),
            report: LocalReport::default(),
        })
    }

    fn run(&mut self) -> Result<(), String> {
        for step in 0..self.plan.steps {
            self.common.step = step;
            let elapsed = self.common.rng.small(self.plan.step_ns);
            self.common.now = self.common.now.after_ns(elapsed);
            self.common.trace.at(step, self.common.now.0);
            self.come_and_go()?;
            let actors = self.producers.len() + self.consumers.len() + 2 * self.shards.len();
            let actor = self.common.rng.index(actors);
            self.act(actor)?;
        }
        self.common.healed = true;
        self.settle("clients wait for ever")?;
        // Who waits for somebody that never came, or left before it was connected, goes.
        for position in 0..self.producers.len() {
            let producer = &self.producers[position];
            if !producer.left && !self.waits_in_vain(producer) {
                return Err(format!("{producer} is {:?}: {}", producer.state, producer.describe()));
            }
            if !producer.left {
                self.kill_producer(position);
            }
        }
        self.settle("clients wait for ever")?;
        let Self { consumers, common, .. } = self;
        consumers.iter_mut().filter(|of| !of.left).for_each(|consumer| consumer.dismiss(common));
        self.settle("memory is not released")?;
        self.check_end()
    }

    /// Everybody does what is to be done, until nobody has anything left.
    fn settle(&mut self, stuck: &str) -> Result<(), String> {
        self.consumers.iter_mut().for_each(|consumer| consumer.stopped = false);
        let mut idle = 0;
        for _ in 0..200_000 {
            self.common.step += 1;
            let mut progress = self.come_and_go()?;
            for actor in 0..self.producers.len() + self.consumers.len() + self.shards.len() {
                progress |= self.act(actor)?;
            }
            idle = if progress { 0 } else { idle + 1 };
            if idle > IDLE_ROUNDS_MAX {
                return Ok(());
            }
            let timers = self.shards.iter().filter_map(|node| node.shard.poll_timeout());
            let due = timers.map(|(due, _)| due).min().filter(|_| !progress);
            self.common.now = due.map_or(self.common.now, |due| due.max(self.common.now)).after_ns(1_000);
        }
        Err(format!("endless: {stuck}"))
    }

    /// Clients attach, die, leave, and are connected.
    fn come_and_go(&mut self) -> Result<bool, String> {
        let (step, healed) = (self.common.step, self.common.healed);
        let mut progress = false;
        for position in 0..self.producers.len() {
            let producer = &self.producers[position];
            let dies = !healed && producer.plan.dies_at.is_some_and(|at| at <= step);
            match producer.state {
                producer::State::Waiting if healed || producer.plan.attach_at <= step => {
                    self.attach_partition(position);
                    progress = true;
                }
                producer::State::Running | producer::State::Ending if dies => self.kill_producer(position),
                // Its client closes it then; what is lent it does not get back before.
                producer::State::Finished => self.producers[position].left = true,
                _ => {}
            }
            let may = healed || self.common.rng.chance(50);
            if self.producers[position].left && may && !self.closed_partitions[position] {
                self.closed_partitions[position] = true;
                progress = true;
                self.close_partition(position)?;
            }
        }
        for position in 0..self.consumers.len() {
            let consumer = &mut self.consumers[position];
            match consumer.state {
                consumer::State::Waiting if healed || consumer.plan.attach_at <= step => {
                    self.attach_gate(position);
                    progress = true;
                }
                consumer::State::Running if !healed && consumer.plan.dies_at.is_some_and(|at| at <= step) => {
                    self.report.died_holding += u64::from(consumer.holding() > 0);
                    consumer.kill(&mut self.common);
                }
                consumer::State::Running => progress |= self.connect(position)?,
                _ => {}
            }
            let consumer = &self.consumers[position];
            let in_peace = consumer.state == consumer::State::Finished && !consumer.given.is_empty();
            let may = !in_peace && (healed || self.common.rng.chance(50));
            if consumer.left && may && !self.closed_gates[position] {
                self.closed_gates[position] = true;
                progress = true;
                self.close_gate(position)?;
            }
        }
        Ok(progress)
    }

    /// Whether a producer waits for a consumer that left before it was connected: nobody can tell it.
    fn waits_in_vain(&self, producer: &Producer) -> bool {
        let channels = self.shards[producer.plan.place].shard.channels(self.common.now);
        let waiting: Vec<_> = channels
            .filter(|stats| stats.side == Side::Send && stats.state == "waiting")
            .filter_map(|stats| channel_key(&stats).ok())
            .collect();
        let gone = self.consumers.iter().filter(|consumer| consumer.left);
        gone.map(|consumer| ChannelKey { producer: producer.key.producer, ..consumer.key })
            .any(|key| waiting.contains(&key))
    }

    fn kill_producer(&mut self, position: usize) {
        let Self { producers, common, .. } = self;
        let producer = &mut producers[position];
        producer.kill(common);
        common.model.causes.producers_gone.insert((producer.key.exchange, producer.key.producer));
    }

    fn attach_partition(&mut self, position: usize) {
        let Self { producers, shards, common, plan, .. } = self;
        let producer = &mut producers[position];
        let exchange = &plan.exchanges[producer.key.exchange as usize];
        let shell = &mut shards[producer.plan.place];
        let spec = PartitionSpec {
            exchange: exchange.name.clone(),
            producer: ProducerIndex(producer.key.producer),
            shape: exchange.shape,
            incarnation: Incarnation(position as u64 + 1),
            segments: producer.segments(),
            pool: PoolShares { quota: plan.limits.quota, ..PoolShares::default() },
            continue_without: exchange.continue_without,
        };
        let id = shell.shard.handle_partition(spec, common.now);
        producer.partition = Some(id);
        producer.state = producer::State::Running;
        shell.partitions.insert(id, position);
    }

    fn attach_gate(&mut self, position: usize) {
        let Self { consumers, shards, common, plan, .. } = self;
        let consumer = &mut consumers[position];
        let exchange = &plan.exchanges[consumer.key.exchange as usize];
        let shell = &mut shards[consumer.plan.place];
        let spec = GateSpec {
            exchange: exchange.name.clone(),
            consumer: ConsumerIndex(consumer.key.consumer),
            shape: exchange.shape,
            segments: consumer.segments,
            exclusive: plan.limits.exclusive,
            debloat: consumer.plan.debloat,
        };
        let id = shell.shard.handle_gate(spec, common.now);
        consumer.gate = Some(id);
        consumer.state = consumer::State::Running;
        shell.regions.insert(id, consumer.segments, exchange.shape.segment_bytes);
        shell.gates.insert(id, position);
    }

    fn connect(&mut self, position: usize) -> Result<bool, String> {
        let mut progress = false;
        for channel in 0..self.consumers[position].connected.len() {
            let consumer = &self.consumers[position];
            let key = consumer.channel(channel as u32);
            let found = self
                .producers
                .iter()
                .position(|of| (of.key.exchange, of.key.producer) == (key.exchange, key.producer));
            let (Some(at), Some(gate)) = (found, consumer.gate) else { continue };
            let producer = &self.producers[at];
            let known = match producer.state {
                producer::State::Waiting | producer::State::Attaching => false,
                producer::State::Running | producer::State::Ending => {
                    self.common.healed || self.common.rng.chance(100)
                }
                // A catalog is late.
                _ => !self.common.healed && self.common.rng.chance(5),
            };
            if consumer.connected[channel] || !known {
                continue;
            }
            let (near, far) = (consumer.plan.place, producer.plan.place);
            let life = ProducerLife {
                producer: ProducerIndex(key.producer),
                incarnation: Incarnation(at as u64 + 1),
            };
            let link = self.links[&(near, far)];
            self.consumers[position].connected[channel] = true;
            progress = true;
            self.shards[near].shard.handle_producer(gate, life, link, self.common.now);
            self.absorb(near)?;
        }
        Ok(progress)
    }

    fn close_partition(&mut self, position: usize) -> Result<(), String> {
        let producer = &mut self.producers[position];
        let place = producer.plan.place;
        producer.ring.clear();
        let failure = (producer.state != producer::State::Finished)
            .then(|| Failure::new(FailureCode::ProducerGone, format!("{producer} left")));
        if let Some(id) = producer.partition {
            self.shards[place].shard.handle_partition_closed(id, failure, self.common.now);
        }
        self.absorb(place)
    }

    fn close_gate(&mut self, position: usize) -> Result<(), String> {
        let consumer = &mut self.consumers[position];
        let place = consumer.plan.place;
        consumer.given.clear();
        let failure = (consumer.state != consumer::State::Finished)
            .then(|| Failure::new(FailureCode::ConsumerGone, format!("{consumer} left")));
        if let Some(id) = consumer.gate {
            self.shards[place].shard.handle_gate_closed(id, failure, self.common.now);
        }
        self.absorb(place)
    }

    /// One thing that one actor does: a producer, a consumer, or a shard.
    fn act(&mut self, actor: usize) -> Result<bool, String> {
        let Self { producers, common, .. } = self;
        if let Some(producer) = producers.get_mut(actor) {
            let waited = producer.ring.is_empty();
            let progress = producer.act(common)?;
            let is_stuck = !progress && waited && producer.state == producer::State::Running;
            self.report.at_quota += u64::from(is_stuck);
            return Ok(progress);
        }
        let position = actor - producers.len();
        if position < self.consumers.len() {
            return self.consume(position);
        }
        let shard = (position - self.consumers.len()) % self.shards.len();
        let progress = self.shell_act(shard)?;
        self.absorb(shard)?;
        Ok(progress)
    }

    /// A consumer reads, in the memory of its producers.
    fn consume(&mut self, position: usize) -> Result<bool, String> {
        let Self { consumers, producers, shards, common, report, .. } = self;
        let consumer = &mut consumers[position];
        let shell = &mut shards[consumer.plan.place];
        let Some(memory) = consumer.gate.and_then(|id| shell.regions.get_mut(id)) else { return Ok(false) };
        let mut lenders = Vec::new();
        for channel in 0..consumer.connected.len() as u32 {
            let key = consumer.channel(channel);
            let of = |of: &Producer| (of.key.exchange, of.key.producer) == (key.exchange, key.producer);
            let Some(lender) = producers.iter().position(of) else { continue };
            let region = std::mem::replace(&mut producers[lender].region, Region::new(0, 1));
            memory.lent.insert(channel, region);
            lenders.push((channel, lender));
        }
        let before = consumer.given.len();
        let progress = consumer.act(memory, common);
        for (channel, lender) in lenders {
            if let Some(region) = memory.lent.remove(&channel) {
                producers[lender].region = region;
            }
            let is_over = producers[lender].left;
            let new = consumer.given.iter().skip(before);
            let came_back =
                |given: &&GivenBack| matches!(given, GivenBack::Lent { channel: of, .. } if *of == channel);
            report.outlived += new.filter(came_back).count() as u64 * u64::from(is_over);
        }
        progress
    }

    /// When all is over.
    fn check_end(&self) -> Result<(), String> {
        for node in &self.shards {
            if let Some(left) = node.shard.channels(self.common.now).next() {
                return Err(format!("{node} keeps a channel: {left:?}"));
            }
            if !node.partitions.is_empty() || !node.gates.is_empty() {
                return Err(format!("{node} keeps memory"));
            }
        }
        for consumer in &self.consumers {
            for channel in 0..consumer.connected.len() {
                let key = consumer.channel(channel as u32);
                let model = self.common.model.channel(key)?;
                let is_complete = model.outcome == Some(Outcome::End) && model.missing() == 0;
                if !is_complete && !self.common.model.may_fail(key) {
                    let missing = model.missing();
                    return Err(format!("{key}: {:?}, {missing} items missing, no cause", model.outcome));
                }
                let is_excused = matches!(consumer.state, consumer::State::Dead | consumer::State::Left);
                if consumer.connected[channel] && model.outcome.is_none() && !is_excused {
                    return Err(format!("{key}: has neither ended nor failed"));
                }
            }
        }
        Ok(())
    }
}
