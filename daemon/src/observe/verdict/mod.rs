//! The verdict: which task or exchange holds a pipeline up, why, and what helps. Facts in, verdict out.
//!
//! The rule is that of Flink's back pressure monitoring. A task that waits for room is a *victim*: what holds it up is further
//! downstream. Following the victims down, the last task that is busy while those upstream of it wait is the root. Where
//! nobody downstream is busy, the exchange itself holds its producers up. What is downstream of a root and waits for input is
//! *starved*.
//!
//! | part | what it decides |
//! |---|---|
//! | [`walk`] | which tasks and exchanges are roots, who is a victim, who is starved |
//! | [`cause`] | why a root holds others up |
//! | [`sockets`] | what the kernel says of the links of an exchange, and what it does not |
//! | [`text`] | evidence, remedies and confidence, in words |

mod cause;
mod sockets;
mod text;
mod walk;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use weir_flow::stall::{CAUSES, Cause as StallCause};
use weir_flow::wire::SocketSummary;

use super::times::{LOW_ABOVE_MS, Shares, WINDOW_SECONDS, WINDOWS};

/// What is known of a pipeline, or of several.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// The tasks, in the order of the plan: who is upstream comes first.
    pub tasks: Vec<TaskFacts>,
    /// The exchanges between them.
    pub exchanges: Vec<ExchangeFacts>,
    /// How each node looks at the sockets of its links: state and reason of `probes` in its `weir status`.
    pub probes: BTreeMap<String, String>,
    /// What is missing, a sentence each: nodes that are not linked, or that tell nothing.
    pub lacks: Vec<String>,
}

/// One task: all instances under one name.
#[derive(Clone, Debug, Default)]
pub struct TaskFacts {
    /// Its name.
    pub name: String,
    /// How many instances it is declared for.
    pub parallelism: u32,
    /// Those that tell their times.
    pub instances: Vec<InstanceFacts>,
}

/// One instance of a task.
#[derive(Clone, Debug, Default)]
pub struct InstanceFacts {
    /// The node that it is attached to.
    pub node: String,
    /// Its index, if it has one.
    pub index: Option<u32>,
    /// What it did, by window; none of a window that is not full.
    pub windows: [Option<Shares>; WINDOWS],
    /// What its process did on processors.
    pub process: ProcessFacts,
}

/// Milliseconds per second of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessFacts {
    /// On processors, all threads together.
    pub ran: Option<u32>,
    /// Ready, and waiting for a processor.
    pub waited: Option<u32>,
    /// Busy, by the cells of all its tasks together.
    pub busy: u32,
}

/// One exchange.
#[derive(Clone, Debug, Default)]
pub struct ExchangeFacts {
    /// Its name.
    pub name: String,
    /// Its ship strategy, as plans write it.
    pub strategy: Option<String>,
    /// Tasks that write it, as places in [`Facts::tasks`].
    pub writers: Vec<usize>,
    /// Tasks that read it.
    pub readers: Vec<usize>,
    /// The sending ends of its channels that are known.
    pub channels: Vec<ChannelFacts>,
    /// The receiving ends that are known.
    pub arrivals: Vec<ArrivalFacts>,
}

/// The receiving end of one channel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ArrivalFacts {
    /// Index of the producer.
    pub producer: u32,
    /// Index of the consumer.
    pub consumer: u32,
    /// The node of the consumer.
    pub node: String,
    /// What the thread of its shard did.
    pub shard: ProcessFacts,
    /// How much of the consumer's receive segments is in use, in thousandths.
    pub pool_usage: Option<u32>,
    /// Payload bytes that wait to be handed to the application.
    pub queued_bytes: u64,
    /// What the socket of its link did, if anything is known of one.
    pub socket: Option<SocketSummary>,
}

/// The sending end of one channel. Times are milliseconds per second.
#[derive(Clone, Debug, Default)]
pub struct ChannelFacts {
    /// Index of the producer.
    pub producer: u32,
    /// Index of the consumer.
    pub consumer: u32,
    /// The node of the producer.
    pub node: String,
    /// Send stalls, by cause.
    pub send_stalled: [u32; CAUSES],
    /// Emit stalls of the producer, by cause.
    pub emit_stalled: [u32; CAUSES],
    /// Records per second.
    pub records: u64,
    /// Payload bytes per second.
    pub bytes: u64,
    /// What the thread of its shard did.
    pub shard: ProcessFacts,
    /// What the socket of its link did, if anything is known of one.
    pub socket: Option<SocketSummary>,
}

/// What the facts come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VerdictKind {
    /// Something holds the pipeline up.
    Bottleneck,
    /// Nothing does.
    NoBottleneck,
    /// It cannot be told.
    NotEnoughData,
}

/// Why a root holds others up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// The task computes.
    Cpu,
    /// The task waits for something outside of Weir.
    Outside,
    /// The last task of a pipeline waits for something outside: what it writes to is slow.
    Sink,
    /// The task is busy; whether it computes or waits is not known.
    Busy,
    /// One instance gets most of the records, by their keys.
    HotKey,
    /// One instance does not keep up with its siblings.
    SlowInstance,
    /// The producers' pool is too small for what is on its way.
    Pool,
    /// The path between the nodes.
    Network,
    /// The thread of a daemon that carries the exchange.
    Shard,
    /// A consumer holds what it was given and does nothing.
    Held,
    /// Nobody reads the exchange.
    NoConsumer,
    /// Tasks wait for each other in a circle.
    Cycle,
    /// Something between the tasks; what it is the numbers do not say.
    Unknown,
}

impl Cause {
    /// As output shows it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Outside => "outside",
            Self::Sink => "sink",
            Self::Busy => "busy",
            Self::HotKey => "hot_key",
            Self::SlowInstance => "slow_instance",
            Self::Pool => "pool",
            Self::Network => "network",
            Self::Shard => "shard",
            Self::Held => "held",
            Self::NoConsumer => "no_consumer",
            Self::Cycle => "cycle",
            Self::Unknown => "unknown",
        }
    }
}

/// How sure a verdict is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Confidence {
    /// It may well be otherwise.
    Low,
    /// Something that would tell is not known.
    Medium,
    /// All numbers say the same.
    High,
}

impl Confidence {
    /// As output shows it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
        }
    }
}

/// One thing that holds others up. Either a task or an exchange is named, or with [`Cause::Cycle`] neither.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bottleneck {
    /// The task.
    pub task: Option<String>,
    /// The exchange.
    pub exchange: Option<String>,
    /// The instance of the task that is meant, if it is one of several.
    pub instance: Option<u32>,
    /// Nodes of that instance; of an exchange, those of its producers.
    pub nodes: Vec<String>,
    /// Why.
    pub cause: Cause,
    /// In one sentence.
    pub summary: String,
    /// How much the tasks that it holds up wait, in milliseconds per second: the most of them.
    pub held_up_ms_per_second: u32,
    /// The tasks right in front of it that wait.
    pub holds_up: Vec<String>,
    /// What was seen, a line each, with numbers and units.
    pub evidence: Vec<String>,
    /// What would be evidence and is not known, a sentence each, with the reason.
    #[serde(default)]
    pub lacks: Vec<String>,
    /// How sure it is.
    pub confidence: Confidence,
    /// Why not surer, or what makes it sure.
    pub confidence_reason: String,
    /// What helps.
    pub remedy: String,
    /// What one might try, and why it would not help; a line each.
    pub would_not_help: Vec<String>,
}

/// What the facts come to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// In one word.
    pub verdict: VerdictKind,
    /// In one sentence.
    pub summary: String,
    /// Seconds after which it can be told, where it cannot yet because tasks have not been watched for long enough; else `null`.
    #[serde(default)]
    pub wait_seconds: Option<u32>,
    /// The window that it is from, in seconds.
    pub window_seconds: u32,
    /// What holds others up, the worst first.
    pub bottlenecks: Vec<Bottleneck>,
    /// Tasks that wait for room because of those.
    pub victims: Vec<String>,
    /// Tasks that wait for input because of those.
    pub starved: Vec<String>,
    /// What was not known, a sentence each.
    pub lacks: Vec<String>,
}

/// Milliseconds of a second.
const SECOND_MS: u32 = 1000;

/// From here on a task counts as busy: half of its time.
const BUSY_FROM_MS: u32 = 500;

/// Stalls shorter than this in a second say nothing.
const STALL_FROM_MS: u32 = 50;

/// Place of the 10 s among the windows.
const TEN_SECONDS: usize = 1;

/// Which of the windows the verdict is from: 10 s if every instance has one, else 1 s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Window(usize);

impl Window {
    fn of(facts: &Facts) -> Self {
        let mut instances = facts.tasks.iter().flat_map(|task| &task.instances);
        let is_full =
            |instance: &InstanceFacts| instance.windows.get(TEN_SECONDS).is_some_and(Option::is_some);
        Self(if instances.all(is_full) { TEN_SECONDS } else { 0 })
    }

    fn seconds(self) -> u32 {
        WINDOW_SECONDS.get(self.0).copied().unwrap_or(1)
    }

    /// What the instance did in it. What does not add up to a second is scaled to it.
    fn shares(self, instance: &InstanceFacts) -> Option<Shares> {
        let Shares { idle, busy, soft, hard } = (*instance.windows.get(self.0)?)?;
        Shares::of([idle, busy, soft, hard].map(u64::from))
    }
}

/// The instances of a task, together.
#[derive(Clone, Copy, Debug, Default)]
struct Summary {
    /// How many told what they did.
    known: usize,
    /// Of the instance that waited most for room.
    backpressured: u32,
    /// Which instance was busiest.
    busiest: usize,
    /// What that one did.
    shares: Shares,
}

impl Summary {
    fn of(task: &TaskFacts, window: Window) -> Self {
        let mut summary = Self::default();
        for (place, instance) in task.instances.iter().enumerate() {
            let Some(shares) = window.shares(instance) else { continue };
            if summary.known == 0 || shares.busy > summary.shares.busy {
                (summary.busiest, summary.shares) = (place, shares);
            }
            summary.known += 1;
            summary.backpressured = summary.backpressured.max(shares.backpressured());
        }
        summary
    }

    /// Whether it waits for room at all.
    fn waits(&self) -> bool {
        self.backpressured > LOW_ABOVE_MS
    }

    /// Whether it is busy, and not for want of input or room only.
    fn is_busy(&self) -> bool {
        self.shares.busy >= BUSY_FROM_MS
    }
}

impl ExchangeFacts {
    fn is_of(&self, strategy: &str) -> bool {
        self.strategy.as_deref() == Some(strategy)
    }
}

impl ChannelFacts {
    fn send_total(&self) -> u32 {
        total(&self.send_stalled)
    }

    fn emit_total(&self) -> u32 {
        total(&self.emit_stalled)
    }
}

/// All causes together; no channel waits for more than a second in a second, whatever is told.
fn total(stalled: &[u32; CAUSES]) -> u32 {
    stalled.iter().fold(0_u32, |sum, ms| sum.saturating_add(*ms)).min(SECOND_MS)
}

/// Of a table by cause, this one.
fn of_cause(stalled: &[u32; CAUSES], cause: StallCause) -> u32 {
    stalled.get(cause.index()).copied().unwrap_or_default().min(SECOND_MS)
}

/// The verdict on these facts.
#[must_use]
pub fn decide(facts: &Facts) -> Verdict {
    let window = Window::of(facts);
    let summaries: Vec<Summary> = facts.tasks.iter().map(|task| Summary::of(task, window)).collect();
    let view = View::new(facts, window, &summaries);
    let found = walk::walk(&view);
    let mut bottlenecks: Vec<Bottleneck> =
        found.roots.iter().map(|root| cause::bottleneck(&view, root)).collect();
    bottlenecks.sort_by_key(|found| std::cmp::Reverse(found.held_up_ms_per_second));
    let names = |places: &[usize]| {
        places.iter().filter_map(|place| facts.tasks.get(*place)).map(|task| task.name.clone()).collect()
    };
    let mut lacks = facts.lacks.clone();
    lacks.extend(text::lacks(&view));
    let verdict = kind(&view, !bottlenecks.is_empty());
    Verdict {
        verdict,
        summary: text::summary(&view, verdict, &bottlenecks),
        wait_seconds: wait_seconds(&view, verdict),
        window_seconds: window.seconds(),
        bottlenecks,
        victims: names(&found.victims),
        starved: names(&found.starved),
        lacks,
    }
}

/// The facts, and what is made of them first.
struct View<'a> {
    facts: &'a Facts,
    window: Window,
    summaries: &'a [Summary],
    /// The exchanges that each task writes.
    written: Vec<Vec<usize>>,
    /// What the channels of each exchange tell.
    told: Vec<Told>,
}

/// What the channels of an exchange tell of it.
#[derive(Clone, Copy, Debug, Default)]
struct Told {
    /// Whether any of them waits; `None` if there are none.
    is_blocked: Option<bool>,
    /// What carries the exchange, if that is why.
    carrier: Option<Cause>,
}

impl<'a> View<'a> {
    fn new(facts: &'a Facts, window: Window, summaries: &'a [Summary]) -> Self {
        let mut written = vec![Vec::new(); facts.tasks.len()];
        for (place, exchange) in facts.exchanges.iter().enumerate() {
            for writer in &exchange.writers {
                if let Some(exchanges) = written.get_mut(*writer) {
                    exchanges.push(place);
                }
            }
        }
        let told = facts.exchanges.iter().map(|exchange| {
            let stalled = |channel: &ChannelFacts| channel.send_total().max(channel.emit_total());
            let is_blocked = exchange.channels.iter().any(|channel| stalled(channel) >= STALL_FROM_MS);
            Told {
                is_blocked: (!exchange.channels.is_empty()).then_some(is_blocked),
                carrier: cause::carrier(exchange),
            }
        });
        Self { facts, window, summaries, written, told: told.collect() }
    }

    /// The exchanges that this task writes, with their places.
    fn written(&self, task: usize) -> impl Iterator<Item = (usize, &'a ExchangeFacts)> + '_ {
        let places = self.written.get(task).into_iter().flatten();
        places.filter_map(|place| Some((*place, self.exchange(*place)?)))
    }

    fn told(&self, exchange: usize) -> Told {
        self.told.get(exchange).copied().unwrap_or_default()
    }

    fn task(&self, place: usize) -> Option<&'a TaskFacts> {
        self.facts.tasks.get(place)
    }

    fn exchange(&self, place: usize) -> Option<&'a ExchangeFacts> {
        self.facts.exchanges.get(place)
    }

    fn summary(&self, place: usize) -> Summary {
        self.summaries.get(place).copied().unwrap_or_default()
    }

    /// Instances of a task that have been watched for less than a second.
    fn too_new(&self, place: usize) -> usize {
        let told = self.task(place).map_or(0, |task| task.instances.len());
        told.saturating_sub(self.summary(place).known)
    }

    fn name(&self, place: usize) -> &'a str {
        self.task(place).map_or("", |task| task.name.as_str())
    }
}

fn kind(view: &View<'_>, is_found: bool) -> VerdictKind {
    if is_found {
        return VerdictKind::Bottleneck;
    }
    let is_known = view.summaries.iter().any(|summary| summary.known > 0);
    let waits = view.summaries.iter().any(Summary::waits);
    // One that has not been watched may wait for room, if it writes anything.
    let mut writers = (0..view.summaries.len()).filter(|place| view.written(*place).next().is_some());
    let is_too_new = writers.any(|place| view.too_new(place) > 0);
    if is_known && !waits && !is_too_new { VerdictKind::NoBottleneck } else { VerdictKind::NotEnoughData }
}

/// When to ask again, if waiting is what helps.
fn wait_seconds(view: &View<'_>, verdict: VerdictKind) -> Option<u32> {
    let waits = view.summaries.iter().any(Summary::waits);
    let is_too_new = (0..view.summaries.len()).any(|place| view.too_new(place) > 0);
    let is_early = verdict == VerdictKind::NotEnoughData && !waits && is_too_new;
    WINDOW_SECONDS.first().copied().filter(|_| is_early)
}
