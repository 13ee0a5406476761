//! Verdicts in words: what was seen, how sure it is, what helps and what does not.

use std::collections::BTreeSet;

use weir_flow::stall::{CAUSES, Cause as StallCause};

use super::cause::{Doubts, computes, held, is_held, loaded, share_of};
use super::sockets;
use super::walk::{Place, Root};
use super::{
    Bottleneck, Cause, ChannelFacts, Confidence, ExchangeFacts, InstanceFacts, SECOND_MS, TaskFacts,
    VerdictKind, View, of_cause,
};
use crate::observe::times::{Level, Shares};

/// Most lines of evidence about one kind of thing.
const LINES_MAX: usize = 4;

/// Everything that is told about a root.
pub(super) struct Telling<'a> {
    pub(super) view: &'a View<'a>,
    pub(super) root: &'a Root,
    pub(super) cause: Cause,
    /// The instance that is meant, if it is one of several.
    pub(super) instance: Option<&'a InstanceFacts>,
}

/// What makes a verdict sure.
pub(super) const fn sure(cause: Cause) -> &'static str {
    match cause {
        Cause::Cpu => "its times and the processor time of its process say the same",
        Cause::Outside | Cause::Sink => "it is busy, and its process hardly uses a processor",
        Cause::Busy => "its times say so",
        Cause::HotKey => "its times and the records that it gets say the same",
        Cause::SlowInstance => "its times differ from those of its siblings",
        Cause::Pool => "the producers wait for segments, and their consumers for records",
        Cause::Network => "the stalls of its channels have one cause, and its consumers are idle",
        Cause::Shard => "its channels wait for a daemon's thread, and its consumers are idle",
        Cause::Held => "a consumer holds its segments and by its own account has nothing to do",
        Cause::NoConsumer => "the plan has no task that reads it",
        Cause::Cycle => "all of them wait, and none works",
        Cause::Unknown => "its producers wait and its consumers are idle",
    }
}

/// What makes a verdict less sure, whatever its cause is.
pub(super) fn doubts(view: &View<'_>, root: &Root, doubts: &mut Doubts) {
    let is_held = |exchange| view.exchange(exchange).is_some_and(|of| is_held(view, of));
    // That a consumer holds what others wait for is seen.
    if root.is_left_over && !matches!(root.place, Place::Exchange(exchange) if is_held(exchange)) {
        doubts.add(Confidence::Low, "it is only what is left: nothing else explains the waiting");
    }
    if view.window.seconds() < 10 {
        doubts.add(
            Confidence::Medium,
            "only one second was looked at: not every task has been watched for ten",
        );
    }
    if !view.facts.lacks.is_empty() {
        doubts.add(Confidence::Medium, "the tasks of some nodes are not known: the reason may be there");
    }
    if let Place::Exchange(exchange) = root.place
        && view.exchange(exchange).is_some_and(|exchange| {
            !exchange.readers.is_empty()
                && exchange.readers.iter().all(|reader| view.summary(*reader).known == 0)
        })
    {
        doubts.add(Confidence::Low, "nothing is known of the tasks that read it");
    }
}

/// What is not known of the tasks themselves.
pub(super) fn lacks(view: &View<'_>) -> Vec<String> {
    let mut lacks = Vec::new();
    for (place, task) in view.facts.tasks.iter().enumerate() {
        let told = task.instances.len();
        let too_new = view.too_new(place);
        let declared = usize::try_from(task.parallelism).unwrap_or(usize::MAX);
        if told == 0 {
            lacks.push(format!("no instance of {} tells its times", task.name));
        } else if too_new > 0 {
            lacks.push(too_new_text(too_new, task));
        } else if told < declared {
            lacks.push(format!("{told} of {declared} instances of {} tell their times", task.name));
        }
    }
    lacks
}

fn too_new_text(too_new: usize, task: &TaskFacts) -> String {
    let (told, have) = (task.instances.len(), if too_new == 1 { "has" } else { "have" });
    format!("{too_new} of {told} instances of {} {have} been watched for less than a second", task.name)
}

/// The first task that writes something and has instances that are too new.
fn too_new_writer(view: &View<'_>) -> Option<String> {
    let mut tasks = view.facts.tasks.iter().enumerate();
    tasks.find_map(|(place, task)| {
        let (too_new, writes) = (view.too_new(place), view.written(place).next().is_some());
        (too_new > 0 && writes).then(|| too_new_text(too_new, task))
    })
}

/// The verdict in one sentence.
pub(super) fn summary(view: &View<'_>, verdict: VerdictKind, bottlenecks: &[Bottleneck]) -> String {
    match (verdict, bottlenecks) {
        (VerdictKind::Bottleneck, [first]) => first.summary.clone(),
        (VerdictKind::Bottleneck, all) => {
            let first = all.first().map_or("", |first| first.summary.as_str());
            format!("{} bottlenecks; the worst: {first}", all.len())
        }
        (VerdictKind::NoBottleneck, _) => {
            let most = (0..view.summaries.len()).max_by_key(|place| view.summary(*place).backpressured);
            let most = most.map(|place| {
                let ms = view.summary(place).backpressured;
                format!(" ({}, the one that waits most, for {ms} ms/s)", view.name(place))
            });
            let known = if view.facts.lacks.is_empty() { "" } else { " among the tasks that are known" };
            format!(
                "No bottleneck{known}: no task waits for room for more than {} ms/s{}; the pipeline is as fast as its \
                 sources.",
                super::LOW_ABOVE_MS,
                most.unwrap_or_default()
            )
        }
        (VerdictKind::NotEnoughData, _) if view.facts.tasks.is_empty() => {
            "Not enough data: no task is attached.".to_owned()
        }
        (VerdictKind::NotEnoughData, _) => {
            let waits = (0..view.summaries.len()).find(|place| view.summary(*place).waits());
            let is_any_known = view.summaries.iter().any(|summary| summary.known > 0);
            let again = super::wait_seconds(view, verdict).map_or("", |_| " Ask again in a second.");
            match waits {
                None if is_any_known => {
                    let who = too_new_writer(view).unwrap_or_default();
                    format!("Not enough data: {who}, and no other task waits for room.{again}")
                }
                None => format!("Not enough data: no task has been watched for a second yet.{again}"),
                Some(place) => format!(
                    "Not enough data: {} waits for room, and what it writes to is not known.",
                    view.name(place)
                ),
            }
        }
    }
}

fn count(places: usize) -> String {
    places.to_string()
}

/// Milliseconds of a second as percent, for sentences.
fn percent(ms: u64) -> u64 {
    (ms + 5) / 10
}

impl Telling<'_> {
    fn task_name(&self) -> &str {
        match self.root.place {
            Place::Task(task) | Place::Cycle(task) => self.view.name(task),
            Place::Exchange(_) => "",
        }
    }

    fn exchange(&self) -> Option<&ExchangeFacts> {
        match self.root.place {
            Place::Exchange(exchange) => self.view.exchange(exchange),
            Place::Task(_) | Place::Cycle(_) => None,
        }
    }

    /// The task, and which instance if it is one of several.
    fn subject(&self) -> String {
        match (self.exchange(), self.instance.and_then(|instance| instance.index)) {
            (Some(exchange), _) => format!("exchange {}", exchange.name),
            (None, Some(index)) => format!("{}, instance {index},", self.task_name()),
            (None, None) => self.task_name().to_owned(),
        }
    }

    pub(super) fn summary(&self) -> String {
        let subject = self.subject();
        match self.cause {
            Cause::Cpu => format!("{subject} is the bottleneck: it computes all the time."),
            Cause::Outside => {
                format!(
                    "{subject} is the bottleneck: it waits for something outside of Weir, not for a processor."
                )
            }
            Cause::Sink => format!("{subject} is the bottleneck: what it writes to is slow."),
            Cause::Busy => format!("{subject} is the bottleneck: it is busy all the time."),
            Cause::HotKey => {
                format!("{subject} is the bottleneck: it gets most of the records, by their key.")
            }
            Cause::SlowInstance => {
                format!("{subject} is the bottleneck: it does not keep up, while its siblings do.")
            }
            Cause::Pool => format!("{subject} is the bottleneck: the pool of its producers is too small."),
            Cause::Network => format!("{subject} is the bottleneck: the network between its nodes is slow."),
            Cause::Shard => {
                format!("{subject} is the bottleneck: a daemon's thread does not keep up with it.")
            }
            Cause::Held => format!(
                "{subject} is where it is held up: a consumer keeps what it was given and does nothing."
            ),
            Cause::NoConsumer => format!("{subject} has no consumer: its producers wait until one attaches."),
            Cause::Cycle => format!("{subject} and others wait for each other in a circle."),
            Cause::Unknown => {
                format!("{subject} is where it is held up: its producers wait, its consumers are idle.")
            }
        }
    }

    pub(super) fn evidence(&self) -> Vec<String> {
        let mut lines = Vec::new();
        match self.root.place {
            Place::Task(task) => self.of_task(task, &mut lines),
            Place::Exchange(exchange) => self.of_exchange(exchange, &mut lines),
            Place::Cycle(_) => {}
        }
        for place in self.root.holds_up.iter().take(LINES_MAX) {
            let waits = self.view.summary(*place).backpressured;
            let level = Level::of(waits).as_str();
            lines.push(format!("upstream, {} waits for room {waits} ms/s, {level}", self.view.name(*place)));
        }
        lines
    }

    fn of_task(&self, place: usize, lines: &mut Vec<String>) {
        let (Some(task), summary) = (self.view.task(place), self.view.summary(place)) else { return };
        let Some(busiest) = task.instances.get(summary.busiest) else { return };
        let which = match busiest.index {
            Some(index) if task.instances.len() > 1 => format!("{}, instance {index}", task.name),
            _ => task.name.clone(),
        };
        let seconds = self.view.window.seconds();
        lines.push(format!("{which} on {}: {} (mean of {seconds} s)", busiest.node, shown(summary.shares)));
        let others = task.instances.iter().enumerate().filter(|(at, _)| *at != summary.busiest);
        let others: Vec<Shares> =
            others.filter_map(|(_, instance)| self.view.window.shares(instance)).collect();
        if !others.is_empty() {
            let mean = |of: fn(&Shares) -> u32| {
                let sum: u64 = others.iter().map(|shares| u64::from(of(shares))).sum();
                sum / u64::try_from(others.len()).unwrap_or(1).max(1)
            };
            let (busy, idle) = (mean(|shares| shares.busy), mean(|shares| shares.idle));
            let count = count(others.len());
            lines.push(format!("its {count} siblings: busy {busy} ms/s, idle {idle} ms/s on average"));
        }
        let process = busiest.process;
        if let (Some(ran), Some(computes)) = (process.ran, computes(process)) {
            let waited =
                process.waited.map(|ms| format!(" and was ready for one {ms} ms/s")).unwrap_or_default();
            lines.push(format!(
                "its process ran on a processor {ran} ms/s{waited}: {} % of its busy time",
                percent(computes)
            ));
        }
        if let (Cause::HotKey | Cause::SlowInstance, Some(index)) = (self.cause, busiest.index) {
            self.read(place).take(LINES_MAX).for_each(|exchange| of_consumer(exchange, index, lines));
        }
    }

    /// The exchanges that this task reads.
    fn read(&self, task: usize) -> impl Iterator<Item = &ExchangeFacts> {
        self.view.facts.exchanges.iter().filter(move |exchange| exchange.readers.contains(&task))
    }

    /// Of the exchanges that go by key to the task that is meant: the tasks that write them, and whether any goes by a key
    /// that the client knows, and not by a selector of the application alone.
    fn keyed(&self) -> (String, bool) {
        let Place::Task(task) = self.root.place else { return (String::new(), false) };
        let is_hash = self.read(task).any(|exchange| exchange.is_of("HASH"));
        let keyed = self.read(task).filter(|exchange| exchange.is_of("HASH") || exchange.is_of("CUSTOM"));
        let writers: BTreeSet<usize> = keyed.flat_map(|exchange| &exchange.writers).copied().collect();
        let names: Vec<&str> = writers.iter().take(LINES_MAX).map(|task| self.view.name(*task)).collect();
        (names.join(", "), is_hash)
    }

    fn of_exchange(&self, place: usize, lines: &mut Vec<String>) {
        let Some(exchange) = self.view.exchange(place) else { return };
        for (what, stalled) in [
            ("send", worst(exchange, |channel| channel.send_stalled)),
            ("emit", worst(exchange, |channel| channel.emit_stalled)),
        ] {
            if let Some((producer, consumer, stalled)) = stalled {
                lines.push(format!("channel {producer} > {consumer}: {what} stalls {}", by_cause(&stalled)));
            }
        }
        for (node, shard) in loaded(exchange) {
            let (ran, waited) = (shard.ran.unwrap_or(0), shard.waited.unwrap_or(0));
            lines.push(format!(
                "the shard's thread on {node} ran {ran} ms/s and waited for a processor {waited} ms/s"
            ));
        }
        let bytes: u128 = exchange.channels.iter().map(|channel| u128::from(channel.bytes)).sum();
        if !exchange.channels.is_empty() {
            lines.push(format!("exchange {} carries {:.1} MB/s", exchange.name, bytes as f64 / 1e6));
        }
        if self.cause == Cause::Held {
            lines.extend(held(exchange).take(LINES_MAX).map(|of| {
                let (consumer, node, usage) = (of.consumer, &of.node, u64::from(of.pool_usage.unwrap_or(0)));
                format!("consumer {consumer} on {node} holds {} % of its receive segments", percent(usage))
            }));
        }
        if sockets::concern(self.cause) {
            lines.extend(sockets::evidence(exchange));
        }
        for reader in exchange.readers.iter().take(LINES_MAX) {
            let summary = self.view.summary(*reader);
            if summary.known > 0 {
                lines.push(format!("downstream, {}: {}", self.view.name(*reader), shown(summary.shares)));
            }
        }
    }

    /// What would be evidence and is not known.
    pub(super) fn lacks(&self) -> Vec<String> {
        match self.exchange() {
            Some(exchange) if sockets::concern(self.cause) => sockets::lacks(self.view, exchange),
            Some(_) | None => Vec::new(),
        }
    }

    pub(super) fn remedy(&self) -> String {
        let task = self.task_name();
        match self.cause {
            Cause::Cpu if self.wants_processor() => format!(
                "More processors for {task}, or fewer neighbours on its machine: it is ready and waits for one. More \
                 instances help on other machines only."
            ),
            Cause::Cpu => {
                format!(
                    "More instances of {task} (a higher parallelism), on free processors; or less work for each record."
                )
            }
            Cause::Outside => format!(
                "Make what {task} waits for faster, or wait for several at a time: more instances of {task}, or asking \
                 asynchronously."
            ),
            Cause::Sink => {
                format!("A faster sink: what {task} writes to. Or larger writes, if it takes those better.")
            }
            Cause::Busy => format!(
                "More instances of {task}, or less work for each record; find out first whether it computes or waits."
            ),
            Cause::HotKey => match self.keyed() {
                (writers, true) => format!(
                    "Another key, or salt: spread the hot key over several instances and merge their partial results behind \
                     them (`--salt`, `PartitionOptions::salt`). Which keys they are the program of {writers} can tell: \
                     `Partition::heavy_keys` names those with most records."
                ),
                (writers, false) => format!(
                    "Another key: the selector in the program of {writers} sends it these records, and can spread them over \
                     several instances, if something behind them merges their partial results."
                ),
            },
            Cause::SlowInstance => format!(
                "Look at the node of this instance of {task}. With `rebalance` or `rescale`, adaptive selection gives it \
                 fewer records."
            ),
            Cause::Pool => {
                "More segments for the producers of this exchange: `pool.floating`, `pool.exclusive` and \
                            `pool.retention`, or the same in PartitionOptions."
                    .to_owned()
            }
            Cause::Network => {
                "A faster path between the nodes, or fewer bytes over it: tasks that exchange much on one \
                               node."
                    .to_owned()
            }
            Cause::Shard => {
                "More processor time for the daemon there: more `shards`, or fewer neighbours on its \
                             processors."
                    .to_owned()
            }
            Cause::Held => {
                "Look whether the consumer's process is stopped (`ps -o stat=`: T) or in a debugger, and \
                            why it does not ask for its next record."
                    .to_owned()
            }
            Cause::NoConsumer => "Start a task that reads it.".to_owned(),
            Cause::Cycle => {
                "Break the circle, or let a task in it read while it waits for room (`try_emit`).".to_owned()
            }
            Cause::Unknown => {
                "Look at `weir stalls` and `weir channels` of the nodes on both ends.".to_owned()
            }
        }
    }

    /// Whether it waits for a processor at least as long as it has one.
    fn wants_processor(&self) -> bool {
        let Place::Task(task) = self.root.place else { return false };
        let busiest =
            self.view.task(task).and_then(|facts| facts.instances.get(self.view.summary(task).busiest));
        busiest.is_some_and(|instance| instance.process.waited >= instance.process.ran)
    }

    pub(super) fn would_not_help(&self) -> Vec<String> {
        let lines: &[&str] = match self.cause {
            Cause::Cpu | Cause::Outside | Cause::Busy => &[
                "more instances of other tasks: they wait already",
                "larger pools or more credit: they are full because of it, and would be full again",
            ],
            Cause::Sink => &[
                "more instances of the tasks upstream: they wait already",
                "more instances of the sink, if all write to the same place",
                "larger pools or more credit: they would be full again",
            ],
            Cause::HotKey => &[
                "more instances: all records of one key still go to one of them",
                "larger pools or more credit: they would be full again",
            ],
            Cause::SlowInstance => {
                &["more instances, with a strategy that names the consumer: this one stays as slow"]
            }
            Cause::Pool => &[
                "more instances of the consumers: they are idle",
                "a faster network: what is on its way is bounded by the pool",
            ],
            Cause::Network => &[
                "more instances of any task: the path stays as slow",
                "larger pools: they would be full again",
            ],
            Cause::Shard => &[
                "more instances of the consumers: they are idle",
                "a faster network: bytes wait in the daemon, not on their way",
            ],
            Cause::Held => &["larger pools or more credit: it would hold those too"],
            Cause::NoConsumer => &["anything upstream: records wait for somebody who reads them"],
            Cause::Cycle => &["larger pools: they fill up again"],
            Cause::Unknown => &["more instances of the consumers: they are idle"],
        };
        lines.iter().map(ToString::to_string).collect()
    }
}

/// What one consumer gets of an exchange, and from whom.
fn of_consumer(exchange: &ExchangeFacts, index: u32, lines: &mut Vec<String>) {
    let is_its = |channel: &ChannelFacts| channel.consumer == index;
    let Some(records) = share_of(exchange, |channel| channel.records, is_its) else { return };
    let bytes = share_of(exchange, |channel| channel.bytes, is_its).map(percent);
    let bytes = bytes.map(|bytes| format!(" and {bytes} % of the bytes")).unwrap_or_default();
    let consumers: BTreeSet<u32> = exchange.channels.iter().map(|channel| channel.consumer).collect();
    let even = 1000 / u64::try_from(consumers.len()).unwrap_or(u64::MAX).max(1);
    lines.push(format!(
        "consumer {index} gets {} % of the records{bytes} of exchange {}; {} % would be even",
        percent(records),
        exchange.name,
        percent(even)
    ));
    let producers: BTreeSet<u32> = exchange.channels.iter().map(|channel| channel.producer).collect();
    let most =
        exchange.channels.iter().filter(|channel| is_its(channel)).max_by_key(|channel| channel.records);
    if let Some(most) = most.filter(|most| producers.len() > 1 && most.records > 0) {
        let all: u128 = exchange
            .channels
            .iter()
            .filter(|channel| is_its(channel))
            .map(|channel| u128::from(channel.records))
            .sum();
        let part = u64::try_from(u128::from(most.records) * 1000 / all.max(1)).unwrap_or(1000);
        lines.push(format!(
            "producer {} emits {} % of those, more than any other",
            most.producer,
            percent(part)
        ));
    }
}

fn shown(shares: Shares) -> String {
    let (busy, idle, waits) = (shares.busy, shares.idle, shares.backpressured());
    format!("busy {busy}, idle {idle}, backpressured {waits} ms/s")
}

/// The channel that stalls most.
fn worst(
    exchange: &ExchangeFacts,
    stalled: impl Fn(&ChannelFacts) -> [u32; CAUSES],
) -> Option<(u32, u32, [u32; CAUSES])> {
    let rows = exchange.channels.iter().map(|channel| (channel.producer, channel.consumer, stalled(channel)));
    rows.filter(|(_, _, stalled)| super::total(stalled) > 0)
        .max_by_key(|(_, _, stalled)| super::total(stalled))
}

/// Milliseconds per second, the causes with the most first.
fn by_cause(stalled: &[u32; CAUSES]) -> String {
    let mut causes: Vec<(u32, StallCause)> = StallCause::ALL
        .into_iter()
        .map(|cause| (of_cause(stalled, cause), cause))
        .filter(|(ms, _)| *ms > 0)
        .collect();
    causes.sort_by_key(|(ms, cause)| (SECOND_MS.saturating_sub(*ms), *cause));
    let causes: Vec<String> = causes.iter().map(|(ms, cause)| format!("{} {ms}", cause.as_str())).collect();
    format!("{} ms/s: {}", super::total(stalled), causes.join(", "))
}
