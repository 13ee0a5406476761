//! From the plan and the readings of all nodes to facts, reports and a verdict. Functions of their input.

use std::collections::BTreeMap;

use weir_flow::stall::{CAUSES, Cause as StallCause};
use weir_flow::stats::Side;
use weir_flow::wire::{ChannelSummary, ProcessTimes, SOCKET_STATE_NAMES, SocketSummary, TaskTimes};

use super::stats::TasksFacts;
use crate::control::bottleneck::BottleneckReport;
use crate::control::plan::{PlanNode, PlanReport};
use crate::control::snapshot::SCHEMA_VERSION;
use crate::control::tasks::{
    ChannelSocket, InstanceRow, TaskChannel, TaskRole, TaskRow, TasksReport, TimesRow,
};
use crate::observe::tasks::from_wire;
use crate::observe::times::{Level, Shares};
use crate::observe::verdict::{
    self, ArrivalFacts, ChannelFacts, ExchangeFacts, Facts, InstanceFacts, ProcessFacts, TaskFacts, Verdict,
};

/// Nodes whose absence is told by name in a verdict.
const LACKS_NAMED: usize = 4;

/// Everything, put together.
struct Whole<'a> {
    plan: PlanReport,
    /// Instances by task, with their nodes, in the order of nodes and indices.
    instances: BTreeMap<String, Vec<(&'a str, &'a TaskTimes)>>,
    /// Sending ends by exchange.
    channels: BTreeMap<String, Vec<(&'a str, &'a ChannelSummary)>>,
    /// Receiving ends by exchange.
    arrivals: BTreeMap<String, Vec<(&'a str, &'a ChannelSummary)>>,
    /// What each node says of its kernel probes.
    probes: BTreeMap<String, String>,
    stale: Vec<String>,
    instances_left_out: u64,
    channels_left_out: u64,
}

impl TasksFacts {
    fn whole(&self) -> Whole<'_> {
        let mut whole = Whole {
            plan: self.plan.clone().report(),
            instances: BTreeMap::new(),
            channels: BTreeMap::new(),
            arrivals: BTreeMap::new(),
            probes: BTreeMap::new(),
            stale: Vec::new(),
            instances_left_out: 0,
            channels_left_out: 0,
        };
        for told in &self.readings {
            let node = told.node.as_str();
            if told.is_stale() {
                whole.stale.push(node.to_owned());
                continue;
            }
            let reading = told.reading.as_ref();
            whole.probes.insert(node.to_owned(), reading.probes.clone());
            whole.instances_left_out += u64::from(reading.tasks_left_out);
            whole.channels_left_out += u64::from(reading.channels_left_out);
            for times in &reading.tasks {
                whole.instances.entry(times.task.to_string()).or_default().push((node, times));
            }
            for channel in &reading.channels {
                let exchange = channel.exchange.to_string();
                match channel.side {
                    Side::Send => whole.channels.entry(exchange).or_default().push((node, channel)),
                    Side::Receive => whole.arrivals.entry(exchange).or_default().push((node, channel)),
                }
            }
        }
        whole.stale.sort();
        for instances in whole.instances.values_mut() {
            instances.sort_by_key(|(node, times)| (*node, times.index, times.instance));
        }
        for channels in whole.channels.values_mut() {
            channels.sort_by_key(|(node, channel)| (channel.producer, channel.consumer, *node));
        }
        whole
    }

    /// The answer to `GET /v1/bottleneck`.
    pub(super) fn bottleneck(&self) -> BottleneckReport {
        let whole = self.whole();
        let verdict = verdict::decide(&whole.facts());
        let Whole { plan, stale, .. } = whole;
        BottleneckReport {
            schema_version: SCHEMA_VERSION,
            node: self.node.to_string(),
            verdict,
            included: plan.included,
            missing: plan.missing,
            missing_unnamed: plan.missing_unnamed,
            stale,
        }
    }

    /// The answer to `GET /v1/tasks`.
    pub(super) fn tasks(&self) -> TasksReport {
        let whole = self.whole();
        let verdict = verdict::decide(&whole.facts());
        let planned = whole.plan.nodes.iter().map(|node| whole.row(&node.task, Some(node), &verdict));
        let unplanned = whole.instances.keys().filter(|task| !whole.is_planned(task));
        let tasks = planned.chain(unplanned.map(|task| whole.row(task, None, &verdict))).collect();
        let channels =
            whole.channels.values().flatten().map(|(node, channel)| channel_row(node, channel)).collect();
        let Whole { plan, stale, instances_left_out, channels_left_out, .. } = whole;
        TasksReport {
            schema_version: SCHEMA_VERSION,
            node: self.node.to_string(),
            tasks,
            included: plan.included,
            missing: plan.missing,
            missing_unnamed: plan.missing_unnamed,
            stale,
            instances_left_out,
            channels,
            channels_left_out,
        }
    }
}

impl Whole<'_> {
    fn is_planned(&self, task: &str) -> bool {
        self.plan.nodes.iter().any(|node| node.task == task)
    }

    fn facts(&self) -> Facts {
        let tasks = self.plan.nodes.iter().map(|node| TaskFacts {
            name: node.task.clone(),
            parallelism: node.parallelism,
            instances: self.of(&node.task).iter().map(|(node, times)| instance_facts(node, times)).collect(),
        });
        let places: BTreeMap<u32, usize> = self.plan.nodes.iter().map(|node| node.id).zip(0..).collect();
        let places_of = |ids: &[u32]| ids.iter().filter_map(|id| places.get(id).copied()).collect();
        let exchanges = self.plan.exchanges.iter().map(|exchange| {
            let channels = self.channels.get(&exchange.exchange).into_iter().flatten();
            let arrivals = self.arrivals.get(&exchange.exchange).into_iter().flatten();
            ExchangeFacts {
                name: exchange.exchange.clone(),
                strategy: exchange.ship_strategy.clone(),
                writers: places_of(&exchange.written_by),
                readers: places_of(&exchange.read_by),
                channels: channels.map(|(node, channel)| channel_facts(node, channel)).collect(),
                arrivals: arrivals.map(|(node, channel)| arrival_facts(node, channel)).collect(),
            }
        });
        Facts {
            tasks: tasks.collect(),
            exchanges: exchanges.collect(),
            probes: self.probes.clone(),
            lacks: self.lacks(),
        }
    }

    fn of(&self, task: &str) -> &[(&str, &TaskTimes)] {
        self.instances.get(task).map_or(&[], Vec::as_slice)
    }

    fn lacks(&self) -> Vec<String> {
        let missing = self.plan.missing.iter().take(LACKS_NAMED);
        let mut lacks: Vec<String> = missing
            .map(|missing| format!("node {} is not linked: {}", missing.node, missing.reason))
            .collect();
        let unnamed = u64::try_from(self.plan.missing.len().saturating_sub(LACKS_NAMED)).unwrap_or(u64::MAX);
        let unnamed = unnamed.saturating_add(self.plan.missing_unnamed);
        if unnamed > 0 {
            lacks.push(format!("{unnamed} more nodes are not linked"));
        }
        for node in self.stale.iter().take(LACKS_NAMED) {
            lacks.push(format!("node {node} has told nothing for 3 s"));
        }
        if let Some(more) = self.stale.len().checked_sub(LACKS_NAMED + 1) {
            lacks.push(format!("{} more nodes have told nothing for 3 s", more + 1));
        }
        if self.instances_left_out > 0 {
            lacks.push(format!(
                "{} instances of tasks are left out: there are too many",
                self.instances_left_out
            ));
        }
        lacks
    }

    fn row(&self, task: &str, node: Option<&PlanNode>, verdict: &Verdict) -> TaskRow {
        let instances = self.of(task);
        let is_in = |names: &[String]| names.iter().any(|name| name == task);
        let is_root = verdict.bottlenecks.iter().any(|found| found.task.as_deref() == Some(task));
        let role = if is_root {
            Some(TaskRole::Bottleneck)
        } else if is_in(&verdict.victims) {
            Some(TaskRole::Victim)
        } else {
            is_in(&verdict.starved).then_some(TaskRole::Starved)
        };
        let window = usize::from(verdict.window_seconds >= 10);
        let waits = instances.iter().filter_map(|(_, times)| Some(shares_of(times, window)?.backpressured()));
        TaskRow {
            task: task.to_owned(),
            id: node.map(|node| node.id),
            predecessors: node.map(predecessors).unwrap_or_default(),
            parallelism: node.map_or(0, |node| node.parallelism),
            backpressure_level: waits.max().map(|ms| Level::of(ms).as_str().to_owned()),
            role,
            instances: instances.iter().map(|(node, times)| instance_row(node, times)).collect(),
        }
    }
}

/// Ids of the tasks that this one reads from, each once.
fn predecessors(node: &PlanNode) -> Vec<u32> {
    let mut ids: Vec<u32> = node.predecessors.iter().map(|predecessor| predecessor.id).collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}

fn shares_of(times: &TaskTimes, window: usize) -> Option<Shares> {
    from_wire(*times.windows.get(window)?)
}

fn instance_facts(node: &str, times: &TaskTimes) -> InstanceFacts {
    let ProcessTimes { ran, waited, busy } = times.process;
    InstanceFacts {
        node: node.to_owned(),
        index: times.index,
        windows: times.windows.map(from_wire),
        process: ProcessFacts { ran, waited, busy },
    }
}

fn instance_row(node: &str, times: &TaskTimes) -> InstanceRow {
    let [last_1_s, last_10_s, last_60_s] = times.windows.map(|window| from_wire(window).map(times_row));
    // Nanoseconds of a century still have 53 bits' worth of microseconds.
    let [idle, busy, soft, hard] = times.total_ns.map(|ns| ns as f64 / 1e9);
    InstanceRow {
        node: node.to_owned(),
        index: times.index,
        last_1_s,
        last_10_s,
        last_60_s,
        idle_seconds_total: idle,
        busy_seconds_total: busy,
        soft_backpressured_seconds_total: soft,
        hard_backpressured_seconds_total: hard,
        process_ran_ms_per_second: times.process.ran,
        process_waited_ms_per_second: times.process.waited,
    }
}

fn times_row(shares: Shares) -> TimesRow {
    TimesRow {
        idle_ms_per_second: shares.idle,
        busy_ms_per_second: shares.busy,
        soft_backpressured_ms_per_second: shares.soft,
        hard_backpressured_ms_per_second: shares.hard,
    }
}

fn channel_facts(node: &str, channel: &ChannelSummary) -> ChannelFacts {
    ChannelFacts {
        producer: channel.producer.0,
        consumer: channel.consumer.0,
        node: node.to_owned(),
        send_stalled: channel.send_stalled.map(u32::from),
        emit_stalled: channel.emit_stalled.map(u32::from),
        records: channel.records,
        bytes: channel.bytes,
        shard: shard_facts(channel),
        socket: channel.socket,
    }
}

fn shard_facts(channel: &ChannelSummary) -> ProcessFacts {
    let (ran, waited) = (channel.shard_ran.map(u32::from), channel.shard_waited.map(u32::from));
    ProcessFacts { ran, waited, busy: 0 }
}

fn arrival_facts(node: &str, channel: &ChannelSummary) -> ArrivalFacts {
    ArrivalFacts {
        producer: channel.producer.0,
        consumer: channel.consumer.0,
        node: node.to_owned(),
        shard: shard_facts(channel),
        pool_usage: channel.pool_usage.map(u32::from),
        queued_bytes: channel.queued_bytes,
        socket: channel.socket,
    }
}

fn channel_row(node: &str, channel: &ChannelSummary) -> TaskChannel {
    TaskChannel {
        exchange: channel.exchange.to_string(),
        producer: channel.producer.0,
        consumer: channel.consumer.0,
        node: node.to_owned(),
        bytes_per_second: channel.bytes,
        records_per_second: channel.records,
        queued_bytes: channel.queued_bytes,
        send_stalled_ms_per_second: by_cause(&channel.send_stalled),
        emit_stalled_ms_per_second: by_cause(&channel.emit_stalled),
        pool_usage_ratio: channel.pool_usage.map(|thousandths| f64::from(thousandths) / 1000.0),
        socket: channel.socket.map(|socket| channel_socket(&socket)),
    }
}

fn channel_socket(socket: &SocketSummary) -> ChannelSocket {
    let states = SOCKET_STATE_NAMES.into_iter().zip(socket.states);
    ChannelSocket {
        approximate: socket.is_approximate,
        states_ms_per_second: states
            .filter_map(|(state, ms)| Some((state.to_owned(), u32::from(ms?))))
            .collect(),
        retransmitted_segments_per_second: socket.retransmitted,
        send_queue_bytes: socket.send_queue_bytes,
        receive_queue_bytes: socket.receive_queue_bytes,
        residence_seconds: socket.residence_us.map(|us| f64::from(us) / 1e6),
    }
}

fn by_cause(stalled: &[u16; CAUSES]) -> BTreeMap<String, u32> {
    let causes = StallCause::ALL.into_iter().zip(stalled).filter(|(_, ms)| **ms > 0);
    causes.map(|(cause, ms)| (cause.as_str().to_owned(), u32::from(*ms))).collect()
}
