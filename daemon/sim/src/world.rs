//! One run: everything there is, and the loop that lets one actor at a time do one thing.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use weir_flow::ids::{SubpartitionIndex, Time};
use weir_flow::stats::Side;

use crate::book::Book;
use crate::common::Common;
use crate::consumer::Consumer;
use crate::control::Control;
use crate::coverage::{Coverage, Mark};
use crate::faults::Sabotage;
use crate::holds::ZeroCopy;
use crate::link::Link;
use crate::model::{ChannelKey, Model};
use crate::node::Node;
use crate::plan::Plan;
use crate::producer::Producer;
use crate::rng::Rng;
use crate::shell::Task;
use crate::trace;

/// Steps of a run, unless asked for otherwise.
pub const STEPS: u64 = 3_000;

/// What to run.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Decides everything.
    pub seed: u64,
    /// Steps before the faults stop.
    pub steps: u64,
    /// Print a line per step.
    pub trace: bool,
    /// A defect to put in.
    pub sabotage: Sabotage,
}

impl Options {
    /// The standard run of a seed.
    #[must_use]
    pub const fn of(seed: u64) -> Self {
        Self { seed, steps: STEPS, trace: false, sabotage: Sabotage::None }
    }
}

/// Something that must not be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The seed that shows it.
    pub seed: u64,
    /// Steps of the run.
    pub steps: u64,
    /// The step at which it was seen.
    pub step: u64,
    /// What it is.
    pub text: String,
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { seed, steps, step, text } = self;
        let length = if *steps == STEPS { String::new() } else { format!(" --steps {steps}") };
        write!(f, "seed {seed}, step {step}: {text}\nreplay: cargo xtask sim --seed {seed}{length} --trace")
    }
}

/// What a run came to.
#[derive(Clone, Debug)]
pub struct Report {
    /// Rare paths taken.
    pub coverage: Coverage,
    /// Records that were delivered and checked.
    pub records: u64,
    /// Bytes of those records.
    pub bytes: u64,
    /// Steps, those after the faults stopped included.
    pub steps: u64,
    /// Whether the wanted defect was put in.
    pub sabotaged: bool,
    /// What was wrong, if anything.
    pub finding: Option<Finding>,
}

/// Who acts at a step.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Actor {
    Producer(usize),
    Consumer(usize),
    Shell(usize),
    Kernel(usize, usize),
}

/// Everything there is in a run.
pub struct World {
    pub(crate) plan: Plan,
    pub(crate) common: Common,
    pub(crate) nodes: Vec<Node>,
    pub(crate) producers: Vec<Producer>,
    pub(crate) consumers: Vec<Consumer>,
    pub(crate) links: Vec<Link>,
    pub(crate) control: Control,
    pub(crate) tasks: Vec<Task>,
    pub(crate) buffer: Vec<u8>,
    pub(crate) changed: Vec<SubpartitionIndex>,
    pub(crate) zero_copy: ZeroCopy,
    shell_weights: Vec<u32>,
}

impl World {
    /// The world of a seed, before its first step.
    pub fn new(options: Options) -> Result<Self, String> {
        let mut rng = Rng::new(options.seed);
        let plan = Plan::draw(&mut rng, options.steps);
        Self::with_plan(plan, rng, options)
    }

    /// The world of a plan that was not drawn, before its first step.
    pub fn with_plan(plan: Plan, mut rng: Rng, options: Options) -> Result<Self, String> {
        let (mut producers, mut consumers) = (Vec::new(), Vec::new());
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
        let nodes: Vec<_> = plan.shards.iter().map(|place| Node::new(*place, plan.limits.clone())).collect();
        let shell_weights = nodes.iter().map(|_| rng.pick(&[8, 16, 64])).collect();
        let common = Common::new(
            rng,
            Model::new(plan.shapes()).continuing(&plan.continues()),
            options.trace,
            options.sabotage,
        );
        Ok(Self {
            control: Control::new(nodes.len(), producers.len(), consumers.len()),
            plan,
            common,
            nodes,
            producers,
            consumers,
            links: Vec::new(),
            tasks: Vec::new(),
            buffer: Vec::new(),
            changed: Vec::new(),
            zero_copy: ZeroCopy::of_seed(options.seed),
            shell_weights,
        })
    }

    /// Position of a producer.
    pub(crate) fn producer_position(&self, exchange: u32, producer: u32) -> Option<usize> {
        self.producers.iter().position(|p| (p.key.exchange, p.key.producer) == (exchange, producer))
    }

    /// All steps of the plan, then everything comes to its end.
    pub fn run(&mut self) -> Result<(), String> {
        for step in 0..self.plan.steps {
            self.step(step)?;
        }
        self.settle()
    }

    /// Payload bytes that each channel's sender has put on the wire so far.
    #[must_use]
    pub fn carried(&self) -> BTreeMap<ChannelKey, u64> {
        let lines = self.links.iter().flat_map(|link| &link.books).flat_map(Book::lines);
        lines.map(|line| (line.key, line.sent.payload)).collect()
    }

    /// Records that each consumer has read so far, by channel.
    #[must_use]
    pub fn records(&self) -> BTreeMap<ChannelKey, u64> {
        self.common.model.channels().map(|(key, channel)| (*key, channel.records)).collect()
    }

    /// Bytes that were handed over and not given back, of all channels: queued, in sockets, in receive regions.
    #[must_use]
    pub fn in_flight(&self) -> u64 {
        let channels = self.nodes.iter().flat_map(|node| node.shard.channels(self.common.now));
        let sending = channels.filter(|stats| stats.side == Side::Send);
        sending
            .map(|stats| stats.queued_bytes + stats.unacked_bytes + stats.acked_bytes - stats.consumed_bytes)
            .sum()
    }

    /// A consumer that was stopped reads from now on.
    pub fn release(&mut self, exchange: u32, consumer: u32) {
        let ours = |at: &&mut Consumer| (at.key.exchange, at.key.consumer) == (exchange, consumer);
        self.consumers.iter_mut().filter(ours).for_each(|consumer| consumer.stopped = false);
    }

    /// Free segments of a producer's pool, and for each subpartition the segments that it holds open or queued and
    /// whether it may have another.
    #[must_use]
    pub fn pool(&self, exchange: u32, producer: u32) -> Option<(u32, Vec<(u32, bool)>)> {
        let pool = &self.producers.get(self.producer_position(exchange, producer)?)?.pool;
        let each = |index| (pool.held(SubpartitionIndex(index)), pool.is_available(SubpartitionIndex(index)));
        Some((pool.free(), (0..pool.spec().subpartitions).map(each).collect()))
    }

    /// No end of a link that there is reads, or all do again.
    pub fn stall_readers(&mut self, stalled: bool) {
        let until = if stalled { Time(u64::MAX) } else { Time(0) };
        self.links.iter_mut().flat_map(|link| &mut link.ends).for_each(|end| end.stalled_until = until);
    }

    /// Bytes that wait in each direction of each link that works.
    #[must_use]
    pub fn waiting(&self) -> Vec<[usize; 2]> {
        let pipes = self.links.iter().filter_map(|link| Some(&link.sockets[link.working()?].pipes));
        pipes.map(|pipes| [0, 1].map(|end| pipes[end].travelling() + pipes[end].readable())).collect()
    }

    /// One step.
    pub fn step(&mut self, step: u64) -> Result<(), String> {
        self.common.step = step;
        let elapsed = self.common.rng.small(self.plan.step_ns);
        self.common.now = self.common.now.after_ns(elapsed);
        self.common.trace.at(step, self.common.now.0);
        self.control_act();
        let actor = self.choose();
        self.act(actor)?;
        self.check_accounts()
    }

    fn choose(&mut self) -> Actor {
        let weights = self.producers.iter().map(|producer| producer.plan.weight);
        let weights = weights.chain(self.consumers.iter().map(|consumer| consumer.plan.weight));
        let weights = weights.chain(self.shell_weights.iter().copied());
        let weights = weights.chain(self.links.iter().flat_map(|_| [8, 8]));
        let total: u64 = weights.clone().map(u64::from).sum();
        let mut dice = self.common.rng.below(total);
        let mut position = 0;
        for weight in weights {
            if dice < u64::from(weight) {
                break;
            }
            dice -= u64::from(weight);
            position += 1;
        }
        self.actor(position)
    }

    /// How many actors there are.
    pub(crate) fn actors(&self) -> usize {
        self.producers.len() + self.consumers.len() + self.nodes.len() + 2 * self.links.len()
    }

    /// One of them.
    pub(crate) fn actor(&self, mut position: usize) -> Actor {
        for (count, actor) in [
            (self.producers.len(), Actor::Producer as fn(usize) -> Actor),
            (self.consumers.len(), Actor::Consumer),
            (self.nodes.len(), Actor::Shell),
        ] {
            if position < count {
                return actor(position);
            }
            position -= count;
        }
        Actor::Kernel(position / 2, position % 2)
    }

    /// Lets an actor do one thing. Says whether anything changed.
    pub(crate) fn act(&mut self, actor: Actor) -> Result<bool, String> {
        match actor {
            Actor::Producer(position) => self.producers[position].act(&mut self.common),
            Actor::Consumer(position) => {
                let Self { consumers, nodes, common, .. } = self;
                let consumer = &mut consumers[position];
                let memory = consumer.gate.and_then(|id| nodes[consumer.plan.place].regions.get_mut(id));
                match memory {
                    Some(memory) => consumer.act(memory, common),
                    None => Ok(false),
                }
            }
            Actor::Shell(position) => self.shell_act(position),
            Actor::Kernel(link, end) => self.kernel_act(link, end),
        }
    }

    fn trace_plan(&self) {
        let trace = &self.common.trace;
        trace!(trace, "plan", "{:?}", self.plan.limits);
        trace!(trace, "plan", "{:?}", self.plan.faults);
        for exchange in &self.plan.exchanges {
            trace!(trace, "plan", "{}: {:?}", exchange.name, exchange.shape);
        }
        for producer in &self.producers {
            trace!(trace, producer, "on {}: {:?}", self.nodes[producer.plan.place], producer.plan);
        }
        for consumer in &self.consumers {
            trace!(trace, consumer, "on {}: {:?}", self.nodes[consumer.plan.place], consumer.plan);
        }
    }

    fn note_links(&mut self) {
        for link in &self.links {
            let carried = |book: &Book| book.lines().filter(|line| line.sent.payload > 0).count();
            let counts = [carried(&link.books[0]), carried(&link.books[1])];
            self.common.coverage.hit_when(Mark::BothWays, counts[0] > 0 && counts[1] > 0);
            self.common.coverage.hit_when(Mark::SharedLink, counts[0] + counts[1] >= 3);
        }
    }
}

/// Runs a seed.
#[must_use]
pub fn run(options: Options) -> Report {
    let mut world = match World::new(options) {
        Ok(world) => world,
        Err(text) => unreachable!("seed {}: a plan that cannot be: {text}", options.seed),
    };
    world.trace_plan();
    // A panic of the core is a finding like any other: it needs the seed.
    let result = catch_unwind(AssertUnwindSafe(|| world.run())).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        Err(format!("panic: {}", text.or_else(|| panic.downcast_ref().copied()).unwrap_or("unknown")))
    });
    world.note_links();
    let step = world.common.step;
    let finding = result.err().map(|text| Finding { seed: options.seed, steps: options.steps, step, text });
    if let Some(finding) = &finding {
        trace!(world.common.trace, "finding", "{finding}");
    }
    let (mut records, mut bytes) = (0, 0);
    for (_, channel) in world.common.model.channels() {
        records += channel.records;
        bytes += channel.bytes;
    }
    let sabotaged = world.common.sabotaged;
    Report { coverage: world.common.coverage, records, bytes, steps: step, sabotaged, finding }
}
