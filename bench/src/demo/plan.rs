//! The job graph as the daemon tells it: which task has which parallelism, and how records get to it.

use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::Value;
use weir_bench::cluster::Cluster;

use crate::chain::ATTACH_TIMEOUT;

/// A task of the plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct PlanTask {
    /// Its name.
    pub(crate) task: String,
    /// `nodes[].parallelism`.
    pub(crate) parallelism: u64,
    /// `predecessors[].ship_strategy` of each predecessor.
    pub(crate) ship_strategies: Vec<String>,
}

/// The tasks, those upstream first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Plan {
    pub(crate) tasks: Vec<PlanTask>,
}

impl Plan {
    /// Asks a daemon until every producer and consumer of `exchanges` exchanges is attached.
    ///
    /// # Errors
    /// The daemon does not answer, or what it has found by then.
    pub(crate) fn of_all_attached(cluster: &Cluster, exchanges: usize) -> Result<Self, String> {
        let began = Instant::now();
        loop {
            let answer = cluster.ask(cluster.a(), "plan")?;
            if is_complete(&answer, exchanges) {
                return Self::read(&answer);
            }
            if began.elapsed() > ATTACH_TIMEOUT {
                let seconds = ATTACH_TIMEOUT.as_secs();
                return Err(format!("not every task is attached after {seconds} s; the plan is {answer}"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The tasks in what `weir plan --output json` prints.
    fn read(answer: &Value) -> Result<Self, String> {
        let nodes = answer.get("nodes").and_then(Value::as_array).ok_or("the plan has no nodes")?;
        let task = |node: &Value| {
            let name = node.get("type").and_then(Value::as_str)?;
            let parallelism = node.get("parallelism").and_then(Value::as_u64)?;
            let predecessors =
                node.get("predecessors").and_then(Value::as_array).cloned().unwrap_or_default();
            let strategy = |predecessor: &Value| Some(predecessor.get("ship_strategy")?.as_str()?.to_owned());
            let ship_strategies: Option<Vec<String>> = predecessors.iter().map(strategy).collect();
            Some(PlanTask { task: name.to_owned(), parallelism, ship_strategies: ship_strategies? })
        };
        let tasks: Option<Vec<PlanTask>> = nodes.iter().map(task).collect();
        tasks
            .map(|tasks| Self { tasks })
            .ok_or_else(|| format!("the plan has a node that cannot be read: {answer}"))
    }

    /// The plan on one line, for a chain.
    pub(crate) fn line(&self) -> String {
        let mut line = String::new();
        for task in &self.tasks {
            if !task.ship_strategies.is_empty() {
                line.push_str(&format!(" -{}-> ", task.ship_strategies.join(",")));
            } else if !line.is_empty() {
                line.push_str(", ");
            }
            line.push_str(&format!("{} x{}", task.task, task.parallelism));
        }
        line
    }

    /// Whether this task has this parallelism, and each predecessor of it this ship strategy.
    ///
    /// # Errors
    /// One line: what the plan says of it instead.
    pub(crate) fn expect(&self, task: &str, parallelism: u32, ship_strategy: &str) -> Result<(), String> {
        let found = self.tasks.iter().find(|found| found.task == task);
        let is_so = found.is_some_and(|found| {
            found.parallelism == u64::from(parallelism)
                && !found.ship_strategies.is_empty()
                && found.ship_strategies.iter().all(|found| found == ship_strategy)
        });
        let wanted = format!("{task} with parallelism {parallelism} behind {ship_strategy}");
        if is_so { Ok(()) } else { Err(format!("the plan is {}; needed: {wanted}", self.line())) }
    }
}

/// Whether there are so many exchanges, all with all their ends, and every node of the cluster has told its tasks.
fn is_complete(answer: &Value, exchanges: usize) -> bool {
    let none = Vec::new();
    let list = |key: &str| answer.get(key).and_then(Value::as_array).unwrap_or(&none);
    let is_whole = |exchange: &Value| {
        [("producers", "producers_attached"), ("consumers", "consumers_attached")].iter().all(
            |(all, attached)| {
                let number = |key: &str| exchange.get(key).and_then(Value::as_u64);
                number(all).is_some() && number(all) == number(attached)
            },
        )
    };
    list("missing").is_empty()
        && list("exchanges").len() == exchanges
        && list("exchanges").iter().all(is_whole)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn answer(maps: u64, attached: u64, strategy: &str) -> Value {
        json!({
            "nodes": [
                { "id": 1, "type": "source", "pact": "Data Source", "parallelism": 1 },
                { "id": 2, "type": "map", "pact": "Operator", "parallelism": maps,
                  "predecessors": [{ "id": 1, "ship_strategy": strategy, "side": "second" }] },
            ],
            "exchanges": [{ "exchange": "documents", "producers": 1, "producers_attached": 1,
                            "consumers": maps, "consumers_attached": attached }],
            "missing": [],
        })
    }

    #[test]
    fn a_plan_is_what_it_says_and_nothing_else() {
        let before = Plan::read(&answer(1, 1, "FORWARD")).unwrap();
        let after = Plan::read(&answer(4, 4, "REBALANCE")).unwrap();
        assert_eq!(before.line(), "source x1 -FORWARD-> map x1");
        assert_eq!(after.line(), "source x1 -REBALANCE-> map x4");
        assert_eq!(before.expect("map", 1, "FORWARD"), Ok(()));
        assert_eq!(after.expect("map", 4, "REBALANCE"), Ok(()));
        let wrong = [
            before.expect("map", 4, "REBALANCE"),
            after.expect("map", 1, "FORWARD"),
            after.expect("map", 4, "FORWARD"),
            after.expect("map", 3, "REBALANCE"),
            after.expect("sink", 4, "REBALANCE"),
            // It reads from nobody, so by no strategy.
            after.expect("source", 1, "REBALANCE"),
        ];
        for found in wrong {
            assert!(found.is_err());
        }
        let problem = before.expect("map", 4, "REBALANCE").unwrap_err();
        assert!(
            problem.contains("source x1 -FORWARD-> map x1") && problem.contains("parallelism 4"),
            "{problem}"
        );
    }

    #[test]
    fn a_plan_is_complete_when_all_ends_of_all_exchanges_are_there() {
        let mut complete = answer(4, 4, "REBALANCE");
        assert!(is_complete(&complete, 1));
        assert!(!is_complete(&complete, 2));
        assert!(!is_complete(&answer(4, 3, "REBALANCE"), 1));
        assert!(!is_complete(&json!({}), 1));
        complete["exchanges"][0]["producers"] = Value::Null;
        complete["exchanges"][0]["producers_attached"] = Value::Null;
        assert!(!is_complete(&complete, 1));
        let mut missing = answer(4, 4, "REBALANCE");
        missing["missing"] = json!([{ "node": "b", "reason": "refused" }]);
        assert!(!is_complete(&missing, 1));
    }

    #[test]
    fn what_cannot_be_read_is_an_error() {
        let mut nameless = answer(1, 1, "FORWARD");
        nameless["nodes"][0]["type"] = Value::Null;
        let mut without_strategy = answer(1, 1, "FORWARD");
        without_strategy["nodes"][1]["predecessors"][0]["ship_strategy"] = Value::Null;
        for wrong in [json!({}), nameless, without_strategy] {
            assert!(Plan::read(&wrong).is_err(), "{wrong}");
        }
    }
}
