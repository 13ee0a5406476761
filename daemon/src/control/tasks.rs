//! What every task does: the answer to `GET /v1/tasks`.
//!
//! Times are milliseconds per second, the mean of a window; idle, busy, soft and hard of one window add up to 1000. A window
//! that is longer than an instance was watched is `null`.

use serde::{Deserialize, Serialize};

use super::plan::MissingNode;

/// Answer to `GET /v1/tasks`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TasksReport {
    /// [`super::snapshot::SCHEMA_VERSION`].
    pub schema_version: u32,
    /// Name of the node that answers.
    pub node: String,
    /// The tasks, in the order of the plan; behind them, by name, those that have no partition and no gate.
    pub tasks: Vec<TaskRow>,
    /// Nodes of the cluster whose tasks are here, by name.
    pub included: Vec<String>,
    /// Nodes of the cluster whose tasks are not: no control link leads there.
    pub missing: Vec<MissingNode>,
    /// How many more are missing than are named.
    pub missing_unnamed: u64,
    /// Nodes that are linked and have told nothing for 3 seconds, by name: their numbers are not here.
    pub stale: Vec<String>,
    /// Instances of tasks that a node left out of what it told, because it has too many.
    pub instances_left_out: u64,
    /// The sending ends of the channels between them, as far as they are told: those that waited most.
    pub channels: Vec<TaskChannel>,
    /// Ends of channels that a node left out of what it told.
    pub channels_left_out: u64,
}

/// What a task is to the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskRole {
    /// It holds others up.
    Bottleneck,
    /// It waits for room because of a bottleneck.
    Victim,
    /// It waits for input because of a bottleneck.
    Starved,
}

/// One task: all instances under one name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TaskRow {
    /// Its name.
    pub task: String,
    /// Its id in the plan; `null` if it has no partition and no gate.
    pub id: Option<u32>,
    /// Ids of the tasks whose records it reads.
    pub predecessors: Vec<u32>,
    /// How many instances its exchanges are declared for.
    pub parallelism: u32,
    /// `OK`, `LOW` or `HIGH`: backpressure of the instance that waits most for room, in the verdict's window; `null` if not
    /// known.
    pub backpressure_level: Option<String>,
    /// What it is to the others; `null`: nothing of the kind.
    pub role: Option<TaskRole>,
    /// Its instances, by node and index.
    pub instances: Vec<InstanceRow>,
}

/// One instance of a task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InstanceRow {
    /// The node that it is attached to.
    pub node: String,
    /// Its index at the exchanges that it reads, else at those that it writes; `null` if it has none.
    pub index: Option<u32>,
    /// The last second.
    pub last_1_s: Option<TimesRow>,
    /// The last 10 seconds.
    pub last_10_s: Option<TimesRow>,
    /// The last 60 seconds.
    pub last_60_s: Option<TimesRow>,
    /// Seconds since it began, waiting for input.
    pub idle_seconds_total: f64,
    /// Seconds since it began, working.
    pub busy_seconds_total: f64,
    /// Seconds since it began, waiting for output and still able to react.
    pub soft_backpressured_seconds_total: f64,
    /// Seconds since it began, blocked inside an emit.
    pub hard_backpressured_seconds_total: f64,
    /// What its process ran on processors, in milliseconds per second; `null` if not known.
    pub process_ran_ms_per_second: Option<u32>,
    /// What its process was ready and waited for a processor.
    pub process_waited_ms_per_second: Option<u32>,
}

/// What an instance did with a second, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimesRow {
    /// Waiting for input.
    pub idle_ms_per_second: u32,
    /// Working.
    pub busy_ms_per_second: u32,
    /// Waiting for output, still able to react.
    pub soft_backpressured_ms_per_second: u32,
    /// Blocked inside an emit.
    pub hard_backpressured_ms_per_second: u32,
}

/// The sending end of one channel, in the last second.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TaskChannel {
    /// Name of the exchange.
    pub exchange: String,
    /// Index of the producer.
    pub producer: u32,
    /// Index of the consumer.
    pub consumer: u32,
    /// The node of the producer.
    pub node: String,
    /// Payload bytes per second.
    pub bytes_per_second: u64,
    /// Records per second.
    pub records_per_second: u64,
    /// Payload that waits to be sent, in bytes.
    pub queued_bytes: u64,
    /// Send stalls in milliseconds per second, by cause; those of 0 are left out.
    pub send_stalled_ms_per_second: std::collections::BTreeMap<String, u32>,
    /// Emit stalls of the producer, likewise.
    pub emit_stalled_ms_per_second: std::collections::BTreeMap<String, u32>,
    /// How much of the producer's pool is in use: 1 is all of it, more with overdraft; `null` if not known.
    pub pool_usage_ratio: Option<f64>,
    /// What the socket of its link did; `null` if nothing is known of one.
    #[serde(default)]
    pub socket: Option<ChannelSocket>,
}

/// What the socket of a link did in the last second. What is not known is `null` or left out, never 0.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChannelSocket {
    /// Whether it was looked at now and then, and not told by kernel probes.
    pub approximate: bool,
    /// Milliseconds per second that its sending side was in each state: `idle`, `flight`, `held`, `congestion_window`,
    /// `receive_window`, `send_buffer`.
    pub states_ms_per_second: std::collections::BTreeMap<String, u32>,
    /// TCP segments sent again.
    pub retransmitted_segments_per_second: Option<u32>,
    /// Bytes written and not acknowledged.
    pub send_queue_bytes: Option<u32>,
    /// Bytes that arrived and were not read.
    pub receive_queue_bytes: Option<u32>,
    /// From the arrival of bytes to their being read, the mean.
    pub residence_seconds: Option<f64>,
}

impl TasksReport {
    /// Whether tasks of some node may be missing.
    #[must_use]
    pub fn is_incomplete(&self) -> bool {
        !self.missing.is_empty() || self.missing_unnamed > 0 || !self.stale.is_empty()
    }
}
