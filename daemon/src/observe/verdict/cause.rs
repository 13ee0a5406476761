//! Why a root holds others up.

use std::collections::{BTreeMap, BTreeSet};

use weir_flow::stall::Cause as StallCause;

use super::sockets;
use super::text::{self, Telling};
use super::walk::{Place, Root};
use super::{
    ArrivalFacts, BUSY_FROM_MS, Bottleneck, Cause, ChannelFacts, Confidence, ExchangeFacts, InstanceFacts,
    ProcessFacts, SECOND_MS, STALL_FROM_MS, Summary, TaskFacts, View, of_cause,
};

/// A process that spends at least this many thousandths of its tasks' busy time on processors, or waiting for one, computes.
/// More than half: where many want the processors, one that sleeps waits long each time that it wakes.
const COMPUTES_FROM: u64 = 700;

/// So many on processors are enough, whatever it waited.
const RAN_FROM: u64 = 500;

/// Between these thousandths it is not sure.
const UNSURE: std::ops::Range<u64> = 450..800;

/// A shard's thread that runs, or waits for a processor, for at least so many milliseconds per second keeps others waiting.
const LOADED_FROM_MS: u32 = 800;

/// Receive segments of which less than so many thousandths are in use hold nobody up.
const EMPTY_BELOW: u32 = 300;

/// Receive segments of which at least so many thousandths are in use hold their producers up.
const FULL_FROM: u32 = 700;

/// A task that is busy for at most so many milliseconds per second does nothing.
const RESTS_UPTO_MS: u32 = 100;

/// The busiest instance is out of line when its siblings are on average busy for at most this many thousandths of its time.
const UNEVEN_UPTO: u64 = 500;

/// Why confidence is not high, the gravest first.
#[derive(Debug, Default)]
pub(super) struct Doubts(Vec<(Confidence, String)>);

impl Doubts {
    pub(super) fn add(&mut self, confidence: Confidence, reason: impl Into<String>) {
        self.0.push((confidence, reason.into()));
    }

    /// How sure it is, and why not surer.
    fn sum(mut self, sure: &str) -> (Confidence, String) {
        self.0.sort_by_key(|(confidence, _)| *confidence);
        match self.0.first() {
            None => (Confidence::High, sure.to_owned()),
            Some((confidence, _)) => {
                let reasons: Vec<&str> = self.0.iter().map(|(_, reason)| reason.as_str()).collect();
                (*confidence, reasons.join("; "))
            }
        }
    }
}

/// What carries an exchange, if that is what most of its stalls come from: the pool, the network, or a shard.
pub(super) fn carrier(exchange: &ExchangeFacts) -> Option<Cause> {
    let send = |cause| sum(exchange, |channel| of_cause(&channel.send_stalled, cause));
    let emit = |cause| sum(exchange, |channel| of_cause(&channel.emit_stalled, cause));
    let both = |causes: &[StallCause]| causes.iter().map(|cause| send(*cause) + emit(*cause)).sum::<u64>();
    let pool = emit(StallCause::Pool);
    let network = both(&[StallCause::Network, StallCause::Socket]);
    let shard = both(&[StallCause::Shard]);
    let consumer = both(&[StallCause::Consumer, StallCause::Event, StallCause::Barrier]);
    if pool + network + shard + consumer >= u64::from(STALL_FROM_MS) && !loaded(exchange).is_empty() {
        // What a thread that hardly runs says of its waits is said by its own slowness.
        return Some(Cause::Shard);
    }
    let most = |stalled: u64| stalled >= u64::from(STALL_FROM_MS) && stalled > consumer;
    if most(pool) && pool > network + shard {
        Some(Cause::Pool)
    } else if most(network + shard) {
        Some(if network >= shard { Cause::Network } else { Cause::Shard })
    } else {
        None
    }
}

/// Nodes at either end of the exchange where the thread of a shard has as much to do as it can, or waits for a processor; with
/// what it did.
pub(super) fn loaded(exchange: &ExchangeFacts) -> BTreeMap<&str, ProcessFacts> {
    let sending = exchange.channels.iter().map(|channel| (channel.node.as_str(), channel.shard));
    let receiving = exchange.arrivals.iter().map(|arrival| (arrival.node.as_str(), arrival.shard));
    let is_loaded = |shard: &ProcessFacts| {
        let together = shard.ran.unwrap_or(0).saturating_add(shard.waited.unwrap_or(0));
        together >= LOADED_FROM_MS
    };
    sending.chain(receiving).filter(|(_, shard)| is_loaded(shard)).collect()
}

fn sum(exchange: &ExchangeFacts, stalled: impl Fn(&ChannelFacts) -> u32) -> u64 {
    exchange.channels.iter().map(|channel| u64::from(stalled(channel))).sum()
}

pub(super) fn bottleneck(view: &View<'_>, root: &Root) -> Bottleneck {
    let mut doubts = Doubts::default();
    text::doubts(view, root, &mut doubts);
    let (cause, instance) = match root.place {
        Place::Task(task) => of_task(view, task, &mut doubts),
        Place::Exchange(exchange) => (of_exchange(view, exchange, &mut doubts), None),
        Place::Cycle(_) => (Cause::Cycle, None),
    };
    let (confidence, confidence_reason) = doubts.sum(text::sure(cause));
    let held_up = root.holds_up.iter().map(|task| view.summary(*task).backpressured).max().unwrap_or(0);
    let telling = Telling { view, root, cause, instance };
    Bottleneck {
        task: match root.place {
            Place::Task(task) => Some(view.name(task).to_owned()),
            Place::Exchange(_) | Place::Cycle(_) => None,
        },
        exchange: match root.place {
            Place::Exchange(exchange) => view.exchange(exchange).map(|exchange| exchange.name.clone()),
            Place::Task(_) | Place::Cycle(_) => None,
        },
        instance: instance.and_then(|instance| instance.index),
        nodes: nodes(view, root, instance, cause),
        cause,
        summary: telling.summary(),
        held_up_ms_per_second: held_up.min(SECOND_MS),
        holds_up: root.holds_up.iter().map(|task| view.name(*task).to_owned()).collect(),
        evidence: telling.evidence(),
        lacks: telling.lacks(),
        confidence,
        confidence_reason,
        remedy: telling.remedy(),
        would_not_help: telling.would_not_help(),
    }
}

fn nodes(view: &View<'_>, root: &Root, instance: Option<&InstanceFacts>, cause: Cause) -> Vec<String> {
    let nodes: BTreeSet<&str> = match (root.place, instance) {
        (_, Some(instance)) => BTreeSet::from([instance.node.as_str()]),
        (Place::Task(task) | Place::Cycle(task), None) => {
            let instances = view.task(task).into_iter().flat_map(|task| &task.instances);
            instances.map(|instance| instance.node.as_str()).collect()
        }
        (Place::Exchange(exchange), None) if cause == Cause::Shard => {
            let nodes = view.exchange(exchange).map(loaded).unwrap_or_default();
            nodes.into_keys().collect()
        }
        (Place::Exchange(exchange), None) => {
            let channels = view.exchange(exchange).into_iter().flat_map(|exchange| &exchange.channels);
            channels.map(|channel| channel.node.as_str()).collect()
        }
    };
    nodes.into_iter().map(str::to_owned).collect()
}

/// Why a task is slow, and which instance if it is not all of them.
fn of_task<'a>(view: &View<'a>, place: usize, doubts: &mut Doubts) -> (Cause, Option<&'a InstanceFacts>) {
    let (Some(task), summary) = (view.task(place), view.summary(place)) else {
        return (Cause::Unknown, None);
    };
    let Some(busiest) = task.instances.get(summary.busiest) else { return (Cause::Unknown, None) };
    if let Some(cause) = uneven(view, place, task, &summary, doubts) {
        return (cause, Some(busiest));
    }
    let one_of_several = Some(busiest).filter(|_| task.instances.len() > 1);
    let Some(computes) = computes(busiest.process) else {
        doubts.add(Confidence::Medium, "the processor time of its process is not known");
        return (Cause::Busy, one_of_several);
    };
    if UNSURE.contains(&computes) {
        doubts.add(Confidence::Medium, "it does some of both, computing and waiting");
    }
    if busiest.process.busy > summary.shares.busy.saturating_mul(3) / 2 {
        doubts.add(Confidence::Medium, "its process has other busy tasks, which use processors as well");
    }
    let writes = view.written(place).next().is_some();
    let ran = computes_of(busiest.process.ran, busiest.process.busy);
    let computes = computes >= COMPUTES_FROM || ran >= RAN_FROM;
    let cause = match (computes, writes) {
        (true, _) => Cause::Cpu,
        (false, true) => Cause::Outside,
        (false, false) => Cause::Sink,
    };
    (cause, one_of_several)
}

/// How many thousandths of its tasks' busy time a process runs or waits for a processor. `None`: not known.
pub(super) fn computes(process: ProcessFacts) -> Option<u64> {
    let used = u64::from(process.ran?) + u64::from(process.waited.unwrap_or(0));
    (process.busy > 0).then(|| used.saturating_mul(1000) / u64::from(process.busy))
}

fn computes_of(ran: Option<u32>, busy: u32) -> u64 {
    u64::from(ran.unwrap_or(0)).saturating_mul(1000).checked_div(u64::from(busy)).unwrap_or(0)
}

/// Whether one instance does most of the work of its task, and why.
fn uneven(
    view: &View<'_>,
    place: usize,
    task: &TaskFacts,
    summary: &Summary,
    doubts: &mut Doubts,
) -> Option<Cause> {
    let siblings = || task.instances.iter().enumerate().filter(|(at, _)| *at != summary.busiest);
    let busy: Vec<u64> = siblings()
        .filter_map(|(_, instance)| view.window.shares(instance))
        .map(|shares| u64::from(shares.busy))
        .collect();
    let count = u64::try_from(busy.len()).ok().filter(|count| *count > 0)?;
    let mean = busy.iter().sum::<u64>() / count;
    if summary.shares.busy < BUSY_FROM_MS || mean * 1000 > u64::from(summary.shares.busy) * UNEVEN_UPTO {
        return None;
    }
    let read = || view.facts.exchanges.iter().filter(|exchange| exchange.readers.contains(&place));
    let is_keyed = |exchange: &ExchangeFacts| matches!(exchange.strategy.as_deref(), Some("HASH" | "CUSTOM"));
    if !read().any(is_keyed) {
        return Some(Cause::SlowInstance);
    }
    let index = task.instances.get(summary.busiest).and_then(|instance| instance.index);
    let shares = read().filter(|exchange| is_keyed(exchange)).filter_map(|exchange| share(exchange, index?));
    match shares.max() {
        // Nothing moved in the last second, or nobody tells: that it is slow is seen, that it gets more is not.
        None => {
            doubts.add(
                Confidence::Medium,
                "how many records each instance gets is not known: a hot key looks alike",
            );
            return Some(Cause::SlowInstance);
        }
        // Its siblings are idle, and yet it gets no more than they do: it is slow by itself.
        Some(share) if share * (count + 1) < 1200 => return Some(Cause::SlowInstance),
        Some(_) => {}
    }
    Some(Cause::HotKey)
}

/// Of the records of an exchange, those that go to this consumer; in thousandths. `None`: there are none.
fn share(exchange: &ExchangeFacts, consumer: u32) -> Option<u64> {
    share_of(exchange, |channel| channel.records, |channel| channel.consumer == consumer)
}

/// Of what the channels of an exchange carry, the part of these; in thousandths. `None`: they carry nothing.
pub(super) fn share_of(
    exchange: &ExchangeFacts,
    carries: fn(&ChannelFacts) -> u64,
    is_counted: impl Fn(&ChannelFacts) -> bool,
) -> Option<u64> {
    let sum = |channels: &mut dyn Iterator<Item = &ChannelFacts>| {
        channels.map(|channel| u128::from(carries(channel))).sum::<u128>()
    };
    let its = sum(&mut exchange.channels.iter().filter(|channel| is_counted(channel)));
    let all = sum(&mut exchange.channels.iter());
    (all > 0).then(|| u64::try_from(its * 1000 / all).unwrap_or(1000))
}

fn of_exchange(view: &View<'_>, place: usize, doubts: &mut Doubts) -> Cause {
    let Some(exchange) = view.exchange(place) else { return Cause::Unknown };
    if exchange.readers.is_empty() {
        return Cause::NoConsumer;
    }
    if exchange.channels.is_empty() {
        doubts.add(Confidence::Low, "no channel of the exchange tells why it waits");
    }
    if let Some(cause) = view.told(place).carrier {
        if let Some(doubt) = sockets::doubt(exchange).filter(|_| cause == Cause::Network) {
            doubts.add(Confidence::Medium, doubt);
        }
        return cause;
    }
    if is_on_its_way(exchange) {
        doubts.add(
            Confidence::Medium,
            "told by what is left: neither the consumers nor their daemons hold what the producers wait for",
        );
        return Cause::Network;
    }
    if is_held(view, exchange) { Cause::Held } else { Cause::Unknown }
}

/// Whether consumers that read nothing else, and do nothing, hold it up.
pub(super) fn is_held(view: &View<'_>, exchange: &ExchangeFacts) -> bool {
    let reads_more = |reader: &usize| {
        view.facts.exchanges.iter().filter(|other| other.readers.contains(reader)).count() > 1
    };
    let rests = |reader: &usize| {
        let summary = view.summary(*reader);
        summary.known > 0 && summary.shares.busy <= RESTS_UPTO_MS
    };
    exchange.readers.iter().all(|reader| rests(reader) && !reads_more(reader))
        && held(exchange).next().is_some()
}

/// Ends of channels whose consumers hold nearly all receive segments, while their producers wait for those.
pub(super) fn held(exchange: &ExchangeFacts) -> impl Iterator<Item = &ArrivalFacts> {
    let waits = |arrival: &ArrivalFacts| {
        exchange.channels.iter().any(|channel| {
            (channel.producer, channel.consumer) == (arrival.producer, arrival.consumer)
                && of_cause(&channel.send_stalled, StallCause::Consumer) >= STALL_FROM_MS
        })
    };
    let is_full = |arrival: &ArrivalFacts| arrival.pool_usage.is_some_and(|usage| usage >= FULL_FROM);
    exchange.arrivals.iter().filter(move |arrival| is_full(arrival) && waits(arrival))
}

/// Whether what producers wait for is nowhere else: they wait for credit, and the consumers hold few of their segments.
fn is_on_its_way(exchange: &ExchangeFacts) -> bool {
    let waits = sum(exchange, |channel| of_cause(&channel.send_stalled, StallCause::Consumer));
    let is_empty = |arrival: &ArrivalFacts| {
        arrival.queued_bytes == 0 && arrival.pool_usage.is_some_and(|usage| usage < EMPTY_BELOW)
    };
    waits >= u64::from(STALL_FROM_MS)
        && !exchange.arrivals.is_empty()
        && exchange.arrivals.iter().all(is_empty)
}
