//! `weir status`: one line per subsystem.

use clap::Args;

use super::RunDirArgs;
use super::output::{self, Align, Output};
use crate::control::client;
use crate::control::snapshot::{StatusReport, Subsystem};
use crate::exit::{Exit, Problem};

/// Show the state of every subsystem: OK, DEGRADED with the reason and the fix, or OFF.
///
/// Exit codes: 0 nothing is degraded, 3 something is, 4 no daemon answers.
#[derive(Args, Debug)]
pub(super) struct StatusArgs {
    #[command(flatten)]
    daemon: RunDirArgs,
    /// Form of the output.
    #[arg(long, value_enum, default_value_t)]
    output: Output,
}

pub(super) fn run(arguments: &StatusArgs) -> Result<Exit, Problem> {
    let report: StatusReport = client::get(&arguments.daemon.run_dir, "/v1/status")?;
    match arguments.output {
        Output::Json => output::print_json(&report)?,
        Output::Table => output::print(&text(&report))?,
    }
    Ok(if report.is_degraded() { Exit::Degraded } else { Exit::Ok })
}

fn text(report: &StatusReport) -> String {
    let StatusReport { node, version, pid, uptime_seconds, listen, memory, .. } = report;
    let mut text = format!(
        "node {node}, weir {version}, pid {pid}, up {uptime_seconds} s, links on {listen}, regions {} of {} MiB (most {} MiB)\n\n",
        memory.used_bytes >> 20,
        memory.total_bytes >> 20,
        memory.high_water_bytes >> 20,
    );
    let rows: Vec<Vec<String>> = report
        .subsystems
        .iter()
        .map(|subsystem| vec![subsystem.name.clone(), subsystem.state.as_str().to_owned(), detail(subsystem)])
        .collect();
    text.push_str(&output::table(
        &[("subsystem", Align::Left), ("state", Align::Left), ("detail", Align::Left)],
        &rows,
    ));
    text
}

fn detail(subsystem: &Subsystem) -> String {
    let mut parts: Vec<String> = Vec::new();
    parts.extend(Some(subsystem.detail.clone()).filter(|detail| !detail.is_empty()));
    parts.extend(subsystem.reason.clone());
    parts.extend(subsystem.fix.as_ref().map(|fix| format!("fix: {fix}")));
    parts.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::snapshot::{MemoryReport, SCHEMA_VERSION};

    #[test]
    fn each_subsystem_is_one_line_with_reason_and_fix() {
        let report = StatusReport {
            schema_version: SCHEMA_VERSION,
            node: "a".into(),
            version: "0.1.0".into(),
            pid: 7,
            uptime_seconds: 3,
            listen: "127.0.0.1:7070".into(),
            memory: MemoryReport {
                used_bytes: 2 << 20,
                behind_regions_bytes: 0,
                high_water_bytes: 4 << 20,
                total_bytes: 64 << 20,
            },
            subsystems: vec![
                Subsystem::ok("shards", "2 running"),
                Subsystem::degraded(
                    "memory",
                    "ordinary pages",
                    "no free hugepages",
                    "sysctl vm.nr_hugepages=64",
                ),
                Subsystem::off("peers", "none configured"),
            ],
            links: Vec::new(),
            shards: Vec::new(),
            shards_missing: Vec::new(),
            capabilities_given_up: Vec::new(),
            hooks: Vec::new(),
            zero_copy: None,
        };
        assert_eq!(
            text(&report),
            "node a, weir 0.1.0, pid 7, up 3 s, links on 127.0.0.1:7070, regions 2 of 64 MiB (most 4 MiB)\n\n\
             SUBSYSTEM  STATE     DETAIL\n\
             shards     OK        2 running\n\
             memory     DEGRADED  ordinary pages; no free hugepages; fix: sysctl vm.nr_hugepages=64\n\
             peers      OFF       none configured\n"
        );
    }
}
