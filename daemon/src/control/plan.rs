//! The job graph of what is attached, in the shape of Flink's `getExecutionPlan`.
//!
//! `nodes`, and in each of them `id`, `type`, `pact`, `contents`, `parallelism` and `predecessors` with `id`,
//! `ship_strategy` and `side`, are what Flink prints, under the same names and with the same words; a program that reads
//! plans of Flink reads these. What Weir knows beside that stands behind them.

use serde::{Deserialize, Serialize};

/// Answer to `GET /v1/plan`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanReport {
    /// [`super::snapshot::SCHEMA_VERSION`].
    pub schema_version: u32,
    /// The tasks. Who is upstream comes first, as far as there are no cycles; then by name.
    pub nodes: Vec<PlanNode>,
    /// The exchanges between them, by name; those with one end only as well.
    pub exchanges: Vec<PlanExchange>,
    /// Nodes of the cluster whose tasks are in the plan: the one that answers and those with a control link to it, by name.
    pub included: Vec<String>,
    /// Nodes of the cluster whose tasks are not: no control link leads there.
    pub missing: Vec<MissingNode>,
    /// How many more are missing than are named.
    pub missing_unnamed: u64,
    /// Predecessors that are not listed because there are too many; 0 in any real graph.
    pub predecessors_left_out: u64,
}

/// One task: all processes on all nodes that attach under one name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanNode {
    /// Its place in the list, from 1.
    pub id: u32,
    /// Its name.
    #[serde(rename = "type")]
    pub task: String,
    /// `Data Source` if it reads no exchange, `Data Sink` if it writes none, else `Operator`.
    pub pact: String,
    /// The exchanges that it reads and writes, for people.
    pub contents: String,
    /// How many instances its exchanges are declared for; the largest if they disagree.
    pub parallelism: u32,
    /// Whose records it reads. Left out, as Flink does, for a source.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub predecessors: Vec<Predecessor>,
    /// Instances that are attached now: indices that it holds at any of its exchanges.
    pub attached: u32,
    /// Every parallelism that is declared at its ends, ascending. More than one: its exchanges disagree.
    pub declared: Vec<u32>,
    /// Nodes of the cluster on which they are, by name.
    pub nodes: Vec<String>,
}

/// A task that writes an exchange which another reads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Predecessor {
    /// The task's [`PlanNode::id`].
    pub id: u32,
    /// How records are spread: `FORWARD`, `REBALANCE`, `HASH`, `BROADCAST`, `RESCALE` or `CUSTOM`.
    pub ship_strategy: String,
    /// Always `second`, as Flink prints it for every predecessor.
    pub side: String,
    /// The exchange.
    pub exchange: String,
    /// How many producers it is declared for.
    pub producers: u32,
    /// How many of these the predecessor holds now.
    pub producers_attached: u32,
    /// How many consumers it is declared for.
    pub consumers: u32,
    /// How many of these the reading task holds now.
    pub consumers_attached: u32,
}

/// One exchange. What nobody has stated yet is `null`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanExchange {
    /// Its name.
    pub exchange: String,
    /// As in [`Predecessor`].
    pub ship_strategy: Option<String>,
    /// How many producers it is declared for.
    pub producers: Option<u32>,
    /// How many of these are attached, whatever their task.
    pub producers_attached: u32,
    /// How many consumers it is declared for.
    pub consumers: Option<u32>,
    /// How many of these are attached, whatever their task.
    pub consumers_attached: u32,
    /// Ids of the tasks that write it. Empty: no producer has come yet, or all have gone.
    pub written_by: Vec<u32>,
    /// Ids of the tasks that read it. Empty: no consumer has come yet, or all have gone.
    pub read_by: Vec<u32>,
}

/// A node of the cluster whose tasks are not in the plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MissingNode {
    /// Its name.
    pub node: String,
    /// Why there is no control link, as far as is known.
    pub reason: String,
}

impl PlanReport {
    /// Whether tasks of some node may be missing.
    #[must_use]
    pub fn is_incomplete(&self) -> bool {
        !self.missing.is_empty() || self.missing_unnamed > 0
    }
}
