//! Pipelines that are built up from a few words.

use super::Process::{Computes, Sleeps, Starves, Unseen};
use super::*;

/// One instance, in ms/s: busy and backpressured, the rest idle.
#[derive(Clone, Copy)]
pub(super) struct Does(pub(super) u32, pub(super) u32);

/// What its process does for its busy time, in percent.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Process {
    Computes,
    Sleeps,
    Starves,
    Unseen,
}

/// A pipeline that is built up.
#[derive(Default)]
pub(super) struct Graph(pub(super) Facts);

impl Graph {
    /// A task with these instances, on node `a`.
    pub(super) fn task(mut self, name: &str, process: Process, instances: &[Does]) -> Self {
        let instances: Vec<InstanceFacts> =
            (0..).zip(instances).map(|(index, does)| instance(index, *does, process)).collect();
        self.0.tasks.push(TaskFacts {
            name: name.to_owned(),
            parallelism: u32::try_from(instances.len()).unwrap(),
            instances,
        });
        self
    }

    pub(super) fn place(&self, name: &str) -> usize {
        self.0.tasks.iter().position(|task| task.name == name).unwrap()
    }

    /// An exchange without channels: nothing is known of it but who is at its ends.
    pub(super) fn exchange(self, name: &str, strategy: &str, writers: &[&str], readers: &[&str]) -> Self {
        self.channels(name, strategy, (writers, readers), &[])
    }

    pub(super) fn channels(
        mut self,
        name: &str,
        strategy: &str,
        (writers, readers): (&[&str], &[&str]),
        channels: &[ChannelFacts],
    ) -> Self {
        let places = |names: &[&str]| names.iter().map(|name| self.place(name)).collect();
        let exchange = ExchangeFacts {
            name: name.to_owned(),
            strategy: Some(strategy.to_owned()),
            writers: places(writers),
            readers: places(readers),
            channels: channels.to_vec(),
            arrivals: Vec::new(),
        };
        self.0.exchanges.push(exchange);
        self
    }

    pub(super) fn lacks(mut self, what: &str) -> Self {
        self.0.lacks.push(what.to_owned());
        self
    }

    /// As after little more than a second.
    pub(super) fn young(mut self) -> Self {
        for instance in self.0.tasks.iter_mut().flat_map(|task| &mut task.instances) {
            instance.windows[1] = None;
        }
        self
    }
}

pub(super) fn instance(index: u32, Does(busy, backpressured): Does, process: Process) -> InstanceFacts {
    let shares = Shares { idle: 1000 - busy - backpressured, busy, soft: 0, hard: backpressured };
    let (ran, waited) = match process {
        Computes => (Some(busy * 95 / 100), Some(busy / 50)),
        Sleeps => (Some(busy / 50), Some(busy / 100)),
        Starves => (Some(busy / 4), Some(busy * 7 / 10)),
        Unseen => (None, None),
    };
    InstanceFacts {
        node: "a".to_owned(),
        index: Some(index),
        windows: [Some(shares), Some(shares), None],
        process: ProcessFacts { ran, waited, busy },
    }
}

pub(super) fn channel(
    consumer: u32,
    records: u64,
    send: &[(StallCause, u32)],
    emit: &[(StallCause, u32)],
) -> ChannelFacts {
    let table = |stalls: &[(StallCause, u32)]| {
        let mut table = [0; CAUSES];
        stalls.iter().for_each(|(cause, ms)| table[cause.index()] = *ms);
        table
    };
    ChannelFacts {
        producer: 0,
        consumer,
        node: "a".to_owned(),
        send_stalled: table(send),
        emit_stalled: table(emit),
        records,
        bytes: records * 1000,
        shard: ProcessFacts { ran: Some(50), waited: Some(20), busy: 0 },
        socket: None,
    }
}

/// A chain of four, of which the third does `third`, with exchanges `ab`, `bc` and `cd`.
pub(super) fn chain(third: Does, process: Process) -> Graph {
    Graph::default()
        .task("A", Computes, &[Does(40, 960)])
        .task("B", Computes, &[Does(60, 930)])
        .task("C", process, &[third])
        .task("D", Computes, &[Does(100, 0)])
        .exchange("ab", "FORWARD", &["A"], &["B"])
        .exchange("bc", "FORWARD", &["B"], &["C"])
        .exchange("cd", "FORWARD", &["C"], &["D"])
}

/// A chain of three over `bc`, whose channel stalls like this; nobody downstream is busy.
pub(super) fn carried(stalls: ChannelFacts, third: Does) -> Graph {
    Graph::default()
        .task("A", Computes, &[Does(100, 890)])
        .task("B", Computes, &[Does(100, 890)])
        .task("C", Computes, &[third])
        .exchange("ab", "FORWARD", &["A"], &["B"])
        .channels("bc", "FORWARD", (&["B"], &["C"]), &[stalls])
}

/// The same, with this at the receiving end of `bc`.
pub(super) fn arriving(pool_usage: u32, queued_bytes: u64) -> Graph {
    let mut graph =
        carried(channel(0, 10, &[(Stall::Consumer, 900)], &[(Stall::Consumer, 880)]), Does(90, 0));
    let shard = ProcessFacts { ran: Some(50), waited: Some(20), busy: 0 };
    let pool_usage = Some(pool_usage);
    graph.0.exchanges[1].arrivals = vec![ArrivalFacts {
        node: "b".to_owned(),
        shard,
        pool_usage,
        queued_bytes,
        ..ArrivalFacts::default()
    }];
    graph
}

/// As [`carried`], over a shard whose thread did this, at the sending or at the receiving end.
pub(super) fn on_shard(third: Does, ran: u32, waited: u32, is_receiving: bool) -> Graph {
    let mut graph = carried(channel(0, 10, &[(Stall::Socket, 900)], &[(Stall::Socket, 880)]), third);
    let shard = ProcessFacts { ran: Some(ran), waited: Some(waited), busy: 0 };
    let exchange = &mut graph.0.exchanges[1];
    if is_receiving {
        exchange.arrivals = vec![ArrivalFacts { node: "b".to_owned(), shard, ..ArrivalFacts::default() }];
    } else {
        exchange.channels[0].shard = shard;
    }
    graph
}

/// A source, and four readers behind a hash with these records, of which the first is as busy as can be.
pub(super) fn skewed(strategy: &str, records: Option<[u64; 4]>) -> Graph {
    let readers = [Does(990, 0), Does(120, 0), Does(90, 0), Does(110, 0)];
    let graph = Graph::default().task("A", Computes, &[Does(100, 880)]).task("B", Sleeps, &readers);
    let channels: Vec<ChannelFacts> = match records {
        None => Vec::new(),
        Some(records) => (0..)
            .zip(records)
            .map(|(consumer, records)| {
                let stalled = if consumer == 0 { 900 } else { 0 };
                channel(consumer, records, &[(Stall::Consumer, stalled)], &[(Stall::Consumer, stalled)])
            })
            .collect(),
    };
    graph.channels("ab", strategy, (&["A"], &["B"]), &channels)
}
