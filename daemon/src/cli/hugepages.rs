//! `weir hugepages`: makes room for regions, once per boot.

use std::path::Path;

use clap::Args;
use serde::Serialize;

use super::output::{self, Align, Output};
use crate::control::snapshot::SCHEMA_VERSION;
use crate::exit::{Exit, Problem};
use crate::memory::reserve::{ReserveError, Reserved, reserve};
use crate::memory::system::ROOT;

/// Reserve hugepages of 2 MiB on each NUMA node that has processors. Pools are made larger, never smaller.
///
/// Needs root. `weir-hugepages.service` does this at boot.
///
/// Exit codes: 0 every node has as many, 3 one fell short, 1 nothing was done.
#[derive(Args, Debug)]
pub(super) struct HugepagesArgs {
    /// Pages that each node is to have, those included that others use.
    #[arg(long, value_name = "PAGES")]
    per_node: u64,
    /// Form of the output.
    #[arg(long, value_enum, default_value_t)]
    output: Output,
}

/// The answer in JSON.
#[derive(Debug, Serialize)]
struct HugepagesReport {
    schema_version: u32,
    /// Pages that each node was to have.
    wanted: u64,
    nodes: Vec<NodeRow>,
}

/// One node.
#[derive(Debug, Serialize)]
struct NodeRow {
    node: u32,
    before: u64,
    after: u64,
    /// Pages that are missing.
    short: u64,
}

pub(super) fn run(arguments: &HugepagesArgs) -> Result<Exit, Problem> {
    let wanted = arguments.per_node;
    let reserved = reserve(Path::new(ROOT), wanted).map_err(|error| problem(&error, wanted))?;
    let report = report(wanted, &reserved);
    match arguments.output {
        Output::Json => output::print_json(&report)?,
        Output::Table => output::print(&text(&report))?,
    }
    let is_short = report.nodes.iter().any(|node| node.short > 0);
    Ok(if is_short { Exit::Degraded } else { Exit::Ok })
}

fn problem(error: &ReserveError, wanted: u64) -> Problem {
    let problem = Problem::new(Exit::Failed, "no hugepages reserved").found(error.to_string());
    match error {
        ReserveError::NoPool => problem
            .needed("a kernel with CONFIG_HUGETLBFS and CONFIG_NUMA, and /sys mounted")
            .fix("memory.hugepages = \"off\", if that is how it is to be"),
        ReserveError::TooMany { pages_max, .. } => {
            problem.needed(format!("at most {pages_max} per node, not {wanted}")).fix("--per-node")
        }
        ReserveError::File { .. } => {
            problem.needed("the right to write it").fix("sudo weir hugepages, or weir-hugepages.service")
        }
    }
}

fn report(wanted: u64, reserved: &[Reserved]) -> HugepagesReport {
    let nodes = reserved.iter().map(|found| NodeRow {
        node: found.node,
        before: found.before,
        after: found.after,
        short: found.short(wanted),
    });
    HugepagesReport { schema_version: SCHEMA_VERSION, wanted, nodes: nodes.collect() }
}

fn text(report: &HugepagesReport) -> String {
    let rows: Vec<Vec<String>> = report
        .nodes
        .iter()
        .map(|node| {
            [node.node.into(), node.before, report.wanted, node.after, node.short]
                .map(|n: u64| n.to_string())
                .to_vec()
        })
        .collect();
    let head = ["node", "before", "wanted", "now", "short"].map(|name| (name, Align::Right));
    let mut text = output::table(&head, &rows);
    for node in report.nodes.iter().filter(|node| node.short > 0) {
        text.push_str(&format!(
            "\nnode {} is {} pages short: its free memory is in pieces. fix: reserve them earlier, by \
             weir-hugepages.service at boot or hugepages={} on the kernel's command line\n",
            node.node, node.short, report.wanted
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_fell_short_is_named_below_the_table() {
        let reserved =
            [Reserved { node: 0, before: 2, after: 64 }, Reserved { node: 1, before: 0, after: 60 }];
        let report = report(64, &reserved);
        assert_eq!(
            text(&report),
            "NODE  BEFORE  WANTED  NOW  SHORT\n   0       2      64   64      0\n   1       0      64   60      4\n\n\
             node 1 is 4 pages short: its free memory is in pieces. fix: reserve them earlier, by \
             weir-hugepages.service at boot or hugepages=64 on the kernel's command line\n"
        );
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["nodes"][1], serde_json::json!({"node": 1, "before": 0, "after": 60, "short": 4}));
    }

    #[test]
    fn what_kept_it_from_being_done_says_what_would_not() {
        let problem = problem(&ReserveError::TooMany { node: 0, pages_max: 28 }, 29);
        assert_eq!(problem.exit, Exit::Failed);
        assert!(problem.to_string().contains("needed at most 28 per node, not 29"), "{problem}");
    }
}
