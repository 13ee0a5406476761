//! `weir plan`: the job graph of what is attached.

use clap::Args;

use super::RunDirArgs;
use super::output::{self, Align, Output};
use crate::control::client;
use crate::control::plan::{PlanExchange, PlanNode, PlanReport};
use crate::exit::{Exit, Problem};

/// Nodes of a task that the table names.
const NODES_NAMED: usize = 3;

/// Show the job graph of what is attached: tasks, their parallelism, and the exchanges between them.
///
/// A task is everything that attaches under one name, on this node and on all that it is linked with. `parallelism` is what
/// its exchanges are declared for, `attached` how many instances are there now. In JSON the graph has the shape of Flink's
/// getExecutionPlan.
///
/// Exit codes: 0 the tasks of all nodes are shown, 3 those of some are missing, 4 no daemon answers.
#[derive(Args, Debug)]
pub(super) struct PlanArgs {
    #[command(flatten)]
    daemon: RunDirArgs,
    /// Form of the output.
    #[arg(long, value_enum, default_value_t)]
    output: Output,
    /// The same as --output json.
    #[arg(long, conflicts_with = "output")]
    json: bool,
}

pub(super) fn run(arguments: &PlanArgs) -> Result<Exit, Problem> {
    let report: PlanReport = client::get(&arguments.daemon.run_dir, "/v1/plan")?;
    match arguments.output {
        Output::Table if !arguments.json => output::print(&text(&report))?,
        Output::Table | Output::Json => output::print_json(&report)?,
    }
    Ok(if report.is_incomplete() { Exit::Degraded } else { Exit::Ok })
}

const HEAD: [(&str, Align); 8] = [
    ("id", Align::Right),
    ("task", Align::Left),
    ("parallelism", Align::Right),
    ("attached", Align::Right),
    ("nodes", Align::Left),
    ("reads", Align::Left),
    ("strategy", Align::Left),
    ("from", Align::Left),
];

fn text(report: &PlanReport) -> String {
    let mut text = if report.nodes.is_empty() {
        "no tasks\n".to_owned()
    } else {
        let rows: Vec<Vec<String>> = report.nodes.iter().flat_map(|node| rows(node, report)).collect();
        output::table(&HEAD, &rows)
    };
    text.push('\n');
    for line in remarks(report) {
        text.push_str(&line);
        text.push('\n');
    }
    text
}

/// A row for each exchange that the task reads, and one for a task that reads none.
fn rows(node: &PlanNode, report: &PlanReport) -> Vec<Vec<String>> {
    let reads = report.exchanges.iter().filter(|exchange| exchange.read_by.contains(&node.id));
    let mut reads: Vec<[String; 3]> = reads.map(|exchange| read(node, exchange)).collect();
    if reads.is_empty() {
        reads.push(["-", "-", "-"].map(str::to_owned));
    }
    let head =
        [node.id.to_string(), node.task.clone(), parallelism(node), node.attached.to_string(), places(node)];
    let blank = [const { String::new() }; 5];
    let heads = std::iter::once(&head).chain(std::iter::repeat(&blank));
    reads.into_iter().zip(heads).map(|(read, head)| head.iter().cloned().chain(read).collect()).collect()
}

/// What the task reads, how it is spread, and the tasks that it comes from.
fn read(node: &PlanNode, exchange: &PlanExchange) -> [String; 3] {
    let is_of = |name: &str| name == exchange.exchange;
    let from = node.predecessors.iter().filter(|predecessor| is_of(&predecessor.exchange));
    let from: Vec<String> = from.map(|predecessor| predecessor.id.to_string()).collect();
    let or_none = |text: String| if text.is_empty() { "-".to_owned() } else { text };
    let strategy = exchange.ship_strategy.clone().unwrap_or_default();
    [exchange.exchange.clone(), or_none(strategy), or_none(from.join(", "))]
}

/// All that are declared: exchanges of one task may disagree.
fn parallelism(node: &PlanNode) -> String {
    node.declared.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn places(node: &PlanNode) -> String {
    let named: Vec<&str> = node.nodes.iter().take(NODES_NAMED).map(String::as_str).collect();
    match node.nodes.len().saturating_sub(NODES_NAMED) {
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}

/// What the table cannot show, a line each.
fn remarks(report: &PlanReport) -> Vec<String> {
    let names = |ids: &[u32]| {
        let tasks = report.nodes.iter().filter(|node| ids.contains(&node.id));
        tasks.map(|node| node.task.as_str()).collect::<Vec<_>>().join(", ")
    };
    let mut lines = Vec::new();
    for exchange in &report.exchanges {
        let PlanExchange { exchange: name, written_by, read_by, .. } = exchange;
        if written_by.is_empty() {
            lines.push(format!("exchange {name} has no producer; read by {}", names(read_by)));
        } else if read_by.is_empty() {
            lines.push(format!("exchange {name} has no consumer; written by {}", names(written_by)));
        }
    }
    if report.predecessors_left_out > 0 {
        lines.push(format!("{} predecessors are not shown", report.predecessors_left_out));
    }
    lines.push(format!("tasks of nodes: {}", report.included.join(", ")));
    for missing in &report.missing {
        lines.push(format!(
            "missing: those of node {}, which is not linked: {}",
            missing.node, missing.reason
        ));
    }
    if report.missing_unnamed > 0 {
        lines.push(format!("missing: those of {} more nodes that were linked", report.missing_unnamed));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::plan::{MissingNode, Predecessor};
    use crate::control::snapshot::SCHEMA_VERSION;

    fn node(id: u32, task: &str, declared: &[u32], attached: u32, nodes: &[&str]) -> PlanNode {
        PlanNode {
            id,
            task: task.to_owned(),
            pact: "Operator".to_owned(),
            contents: String::new(),
            parallelism: declared.iter().copied().max().unwrap(),
            predecessors: Vec::new(),
            attached,
            declared: declared.to_vec(),
            nodes: nodes.iter().map(ToString::to_string).collect(),
        }
    }

    fn exchange(name: &str, strategy: Option<&str>, written_by: &[u32], read_by: &[u32]) -> PlanExchange {
        PlanExchange {
            exchange: name.to_owned(),
            ship_strategy: strategy.map(str::to_owned),
            producers: None,
            producers_attached: 0,
            consumers: None,
            consumers_attached: 0,
            written_by: written_by.to_vec(),
            read_by: read_by.to_vec(),
        }
    }

    fn predecessor(id: u32, exchange: &str) -> Predecessor {
        Predecessor {
            id,
            ship_strategy: "HASH".to_owned(),
            side: "second".to_owned(),
            exchange: exchange.to_owned(),
            producers: 1,
            producers_attached: 1,
            consumers: 1,
            consumers_attached: 1,
        }
    }

    fn report(nodes: Vec<PlanNode>, exchanges: Vec<PlanExchange>) -> PlanReport {
        PlanReport {
            schema_version: SCHEMA_VERSION,
            nodes,
            exchanges,
            included: vec!["a".to_owned(), "b".to_owned()],
            missing: Vec::new(),
            missing_unnamed: 0,
            predecessors_left_out: 0,
        }
    }

    #[test]
    fn a_chain_reads_from_top_to_bottom_within_80_columns() {
        let mut map = node(2, "map", &[2], 2, &["a", "b"]);
        map.predecessors = vec![predecessor(1, "words")];
        let mut sink = node(3, "sink", &[2], 1, &["b"]);
        sink.predecessors = vec![predecessor(2, "counts")];
        let exchanges = vec![
            exchange("counts", Some("HASH"), &[2], &[3]),
            exchange("words", Some("REBALANCE"), &[1], &[2]),
        ];
        let text = text(&report(vec![node(1, "lines", &[1], 1, &["a"]), map, sink], exchanges));
        assert_eq!(
            text,
            "ID  TASK   PARALLELISM  ATTACHED  NODES  READS   STRATEGY   FROM\n \
             1  lines            1         1  a      -       -          -\n \
             2  map              2         2  a, b   words   REBALANCE  1\n \
             3  sink             2         1  b      counts  HASH       2\n\
             \n\
             tasks of nodes: a, b\n"
        );
        assert!(text.lines().all(|line| line.len() <= 80), "{text}");
        assert!(
            include_str!("../../../docs/operations.md").contains(&text),
            "the sample of the page: {text}"
        );
    }

    #[test]
    fn what_is_not_whole_is_shown_as_it_is() {
        let mut join = node(3, "join-_.9", &[2, 4], 3, &["a", "b", "c", "d", "e"]);
        join.predecessors = vec![predecessor(1, "left"), predecessor(2, "left")];
        let exchanges = vec![
            exchange("later", None, &[], &[3]),
            exchange("left", Some("HASH"), &[1, 2], &[3]),
            exchange("out", Some("BROADCAST"), &[1, 3], &[]),
        ];
        let nodes = vec![node(1, "one", &[1], 1, &["a"]), node(2, "two", &[1], 1, &["a"]), join];
        let missing = MissingNode { node: "c".to_owned(), reason: "connection refused".to_owned() };
        let report = PlanReport {
            missing: vec![missing],
            missing_unnamed: 7,
            predecessors_left_out: 9,
            ..report(nodes, exchanges)
        };
        assert!(report.is_incomplete());
        let lines = [
            "ID  TASK      PARALLELISM  ATTACHED  NODES               READS  STRATEGY  FROM",
            " 1  one                 1         1  a                   -      -         -",
            " 2  two                 1         1  a                   -      -         -",
            " 3  join-_.9         2, 4         3  a, b, c and 2 more  later  -         -",
            "                                                         left   HASH      1, 2",
            "",
            "exchange later has no producer; read by join-_.9",
            "exchange out has no consumer; written by one, join-_.9",
            "9 predecessors are not shown",
            "tasks of nodes: a, b",
            "missing: those of node c, which is not linked: connection refused",
            "missing: those of 7 more nodes that were linked",
        ];
        assert_eq!(text(&report).lines().collect::<Vec<_>>(), lines);
    }

    #[test]
    fn nothing_attached_is_said() {
        assert_eq!(text(&report(Vec::new(), Vec::new())), "no tasks\n\ntasks of nodes: a, b\n");
    }
}
