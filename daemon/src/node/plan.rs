//! What is attached where, as a job graph: gathered from the catalog and the peers of this node.

mod graph;
mod order;

#[cfg(test)]
mod tests;

use tokio::sync::oneshot;
use weir_flow::catalog::{Catalog, GateWants};

use super::Node;
use crate::control::plan::{MissingNode, PlanReport};
use crate::control::snapshot::SCHEMA_VERSION;
use graph::{End, Graph, Side};

/// What the node knows by itself, at one moment.
#[derive(Clone, Debug)]
pub(crate) struct PlanFacts {
    ends: Vec<End>,
    included: Vec<String>,
    missing: Vec<MissingNode>,
    missing_unnamed: u64,
}

impl PlanFacts {
    /// The answer to `GET /v1/plan`.
    pub(super) fn report(self) -> PlanReport {
        let Self { ends, included, missing, missing_unnamed } = self;
        let Graph { nodes, exchanges, predecessors_left_out } = graph::graph(ends);
        PlanReport {
            schema_version: SCHEMA_VERSION,
            nodes,
            exchanges,
            included,
            missing,
            missing_unnamed,
            predecessors_left_out,
        }
    }
}

impl Node {
    /// Somebody asks for the plan.
    pub(super) fn handle_plan(&self, reply: oneshot::Sender<PlanFacts>) {
        // The asker may have given up.
        let _ = reply.send(self.plan_facts());
    }

    /// What the node knows of what is attached where.
    pub(super) fn plan_facts(&self) -> PlanFacts {
        let (linked, missing) = self.peers.linked_and_missing();
        let mut included: Vec<String> = linked.iter().map(ToString::to_string).collect();
        included.push(self.options.node.to_string());
        included.sort();
        PlanFacts {
            ends: ends(&self.catalog),
            included,
            missing,
            missing_unnamed: self.peers.missing_unnamed(),
        }
    }
}

/// Every partition and every gate that the catalog knows.
fn ends(catalog: &Catalog) -> Vec<End> {
    let partitions = catalog.partitions().map(|(key, node, partition)| End {
        task: partition.task.clone(),
        node: node.clone(),
        exchange: key.exchange.clone(),
        side: Side::Writes { since: partition.incarnation },
        index: key.producer.0,
        stated: GateWants::all_of(&partition.shape),
    });
    let gates = catalog.gates().map(|(key, node, task, wants)| End {
        task: task.clone(),
        node: node.clone(),
        exchange: key.exchange.clone(),
        side: Side::Reads,
        index: key.consumer.0,
        stated: wants,
    });
    partitions.chain(gates).collect()
}
