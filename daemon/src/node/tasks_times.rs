//! What the tasks of this node's clients do: their cells, read several times a second on one clock.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::sync::mpsc;
use weir_flow::wire::{ProcessTimes, TaskTimes};
use weir_ipc::task_cell::{TASK_STATES, TaskState};

use super::attachments::{Attachment, Place};
use super::{Node, NodeEvent};
use crate::observe::tasks;
use crate::observe::tasks_cpu::{self, ProcessMeter};
use crate::shard::mailbox::AttachmentId;

/// Most processes whose processor time is read in one second. Of more, each has its turn every few seconds.
const PROCESSES_PER_SECOND_MAX: usize = 128;

/// Time between readings of the tasks' cells.
const TIMES_INTERVAL: Duration = Duration::from_millis(250);

/// What the names of the shards' threads begin with; their numbers follow.
const SHARD_THREAD: &str = "weir-shard-";

/// Now, in nanoseconds of `CLOCK_MONOTONIC`: the clock of the tasks' cells and of the shards.
pub(super) fn now_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanoseconds = u64::try_from(time.tv_nsec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(nanoseconds)
}

/// Processes of clients, by pid.
#[derive(Debug, Default)]
pub(super) struct Processes {
    meters: BTreeMap<u32, ProcessMeter>,
    /// Whose turn is next.
    next: u32,
    /// The threads of this daemon's shards, by shard.
    shards: BTreeMap<u16, ProcessMeter>,
}

impl Processes {
    /// What the threads of the shards did since they were looked at before.
    pub(super) fn observe_shards(&mut self, now_ns: u64) -> BTreeMap<u16, ProcessTimes> {
        for (shard, time) in tasks_cpu::read_threads(Path::new("/proc"), SHARD_THREAD) {
            self.shards.entry(shard).or_default().observe(now_ns, Some(time));
        }
        self.shards.iter().map(|(shard, meter)| (*shard, meter.times(0))).collect()
    }

    /// Reads the processor time of these processes, as many as may be read at once, and forgets all others.
    fn observe(&mut self, now_ns: u64, pids: &BTreeMap<u32, u32>) {
        self.meters.retain(|pid, _| pids.contains_key(pid));
        let in_turn = pids.range(self.next..).chain(pids.range(..self.next)).map(|(pid, _)| *pid);
        for pid in in_turn.take(PROCESSES_PER_SECOND_MAX) {
            let read = tasks_cpu::read(Path::new("/proc"), pid);
            self.meters.entry(pid).or_default().observe(now_ns, read);
            self.next = pid.saturating_add(1);
        }
    }
}

impl Attachment {
    /// The smallest index that the task with this cell has at an exchange: at one that it reads, if it reads any.
    fn index_of(&self, cell: u32) -> Option<u32> {
        let places = self.places(cell);
        let indices = places.map(|place| match place {
            Place::Gate(key) => (false, key.consumer.0),
            Place::Partition(key) => (true, key.producer.0),
        });
        indices.min().map(|(_, index)| index)
    }
}

impl Node {
    /// Reads the cells of all tasks. A client that wrote a state that there is not is detached.
    pub(super) fn handle_read_times(&mut self) {
        let now_ns = now_ns();
        let mut faults: Vec<(AttachmentId, String)> = Vec::new();
        for (id, client) in self.attachments.live_mut() {
            if let Err(fault) = client.read_times(now_ns) {
                faults.push((id, fault.to_string()));
            }
        }
        for (id, text) in faults {
            self.handle_attachment_fault(id, &text);
        }
    }

    /// What every task of this node did, as its cells were read last.
    pub(super) fn own_times(&mut self, now_ns: u64) -> Vec<TaskTimes> {
        let mut busy_of: BTreeMap<u32, u32> = BTreeMap::new();
        for client in self.attachments.attached() {
            let busy = client.meters().filter_map(|(_, _, meter)| {
                let [second, ..] = meter.windows();
                second.map(|shares| shares.busy)
            });
            let busy = busy.fold(0_u32, u32::saturating_add);
            if let Some(pid) = client.pid() {
                let sum = busy_of.entry(pid).or_default();
                *sum = sum.saturating_add(busy);
            }
        }
        self.processes.observe(now_ns, &busy_of);
        let clients = self.attachments.live().filter(|(_, client)| client.shard.is_some());
        clients.flat_map(|(id, client)| own_times_of(id, client, &busy_of, &self.processes)).collect()
    }
}

fn own_times_of(
    id: AttachmentId,
    client: &Attachment,
    busy_of: &BTreeMap<u32, u32>,
    processes: &Processes,
) -> Vec<TaskTimes> {
    let process = client.pid().and_then(|pid| {
        let busy = busy_of.get(&pid).copied().unwrap_or_default();
        processes.meters.get(&pid).map(|meter| meter.times(busy))
    });
    let mut times = Vec::new();
    for (cell, name, meter) in client.meters() {
        // Not started by its client yet.
        if meter.state().is_none() {
            continue;
        }
        times.push(TaskTimes {
            task: name.clone(),
            // Attachments are numbered on, and a client has few cells. A later task in the same cell is another one only
            // for as long as both are seen, which they never are.
            instance: (id.0 << 32) | u64::from(cell),
            index: client.index_of(cell),
            windows: meter.windows().map(tasks::to_wire),
            total_ns: in_order(meter.totals_ns()),
            process: process.unwrap_or_default(),
        });
    }
    times
}

/// Idle, busy, soft, hard: the order of the wire, whatever that of the cells is.
fn in_order(totals_ns: [u64; TASK_STATES]) -> [u64; 4] {
    let of = |state: TaskState| totals_ns.get(state as usize).copied().unwrap_or_default();
    [of(TaskState::Idle), of(TaskState::Busy), of(TaskState::Soft), of(TaskState::Hard)]
}

/// Says every quarter of a second that it is time to read.
pub(super) async fn read(events: mpsc::Sender<NodeEvent>) {
    let mut ticks = tokio::time::interval(TIMES_INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if events.send(NodeEvent::ReadTimes).await.is_err() {
            return;
        }
    }
}
