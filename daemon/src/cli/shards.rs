//! `weir shards`: where each shard runs, where its memory is, and how much it does.

use clap::Args;

use super::RunDirArgs;
use super::output::{self, Align, Output};
use crate::control::client;
use crate::control::shards::{ShardLoad, ShardPlaceRow, ShardState, ShardsReport};
use crate::control::snapshot::{self, Health};
use crate::exit::{Exit, Problem};

/// Show where each shard runs, where its memory is, and how much it does.
///
/// `wanted` is the CPU that a shard is bound to, and `cpu` the one that it ran on when it was asked; `core` is that of the
/// wanted one, as PACKAGE/CORE. `node` is its NUMA node, `memory` the node that its regions are made on, and `regions` how
/// much of them is on which node. `shares` names other shards on the same CPU, or on another thread of the same core.
/// `longest` is the longest turn of its loop, which delays every channel of the shard. Below stand why shards roam, and what is
/// not known of the machine.
///
/// Exit codes: 0 every shard is as it should be, 3 one is not, or does not answer, 4 no daemon answers.
#[derive(Args, Debug)]
pub(super) struct ShardsArgs {
    #[command(flatten)]
    daemon: RunDirArgs,
    /// Show all columns of the table.
    #[arg(long)]
    wide: bool,
    /// Form of the output.
    #[arg(long, value_enum, default_value_t)]
    output: Output,
    /// The same as --output json.
    #[arg(long, conflicts_with = "output")]
    json: bool,
}

pub(super) fn run(arguments: &ShardsArgs) -> Result<Exit, Problem> {
    let report: ShardsReport = client::get(&arguments.daemon.run_dir, "/v1/shards")?;
    match arguments.output {
        _ if arguments.json => output::print_json(&report)?,
        Output::Json => output::print_json(&report)?,
        Output::Table => output::print(&text(&report, arguments.wide))?,
    }
    Ok(exit(&report))
}

fn exit(report: &ShardsReport) -> Exit {
    let is_whole = report.shards_missing.is_empty() && report.placement.state != Health::Degraded;
    if is_whole { Exit::Ok } else { Exit::Degraded }
}

/// One column: its name, how it is set, and its cell of a row.
type Column = (&'static str, Align, fn(&ShardPlaceRow) -> String);

/// Where each is, within 80 columns.
const NARROW: &[Column] = &[
    ("shard", Align::Right, |row| row.shard.to_string()),
    ("state", Align::Left, state),
    ("wanted", Align::Right, |row| known(row.cpu_wanted)),
    ("cpu", Align::Right, |row| known(row.cpu)),
    ("core", Align::Right, core),
    ("node", Align::Right, |row| known(row.numa_node)),
    ("memory", Align::Right, |row| known(row.memory_node)),
    ("regions", Align::Left, regions),
    ("shares", Align::Left, shares),
    ("longest", Align::Right, |row| loaded(row, |load| milliseconds(load.longest_turn_seconds))),
];

/// What each does, behind that.
const WIDE: &[Column] = &[
    ("turns", Align::Right, |row| loaded(row, |load| load.turns_total.to_string())),
    ("long_turns", Align::Right, |row| loaded(row, |load| load.long_turns_total.to_string())),
    ("parks", Align::Right, |row| loaded(row, |load| load.parks_total.to_string())),
    ("bytes_total", Align::Right, |row| loaded(row, |load| load.bytes_total.to_string())),
    ("attachments", Align::Right, |row| loaded(row, |load| load.attachments.to_string())),
    ("partitions", Align::Right, |row| loaded(row, |load| load.partitions.to_string())),
    ("gates", Align::Right, |row| loaded(row, |load| load.gates.to_string())),
    ("links", Align::Right, |row| loaded(row, |load| load.links.to_string())),
];

/// What is not known, or not there, is a dash.
fn known(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

fn loaded(row: &ShardPlaceRow, value: impl Fn(&ShardLoad) -> String) -> String {
    known(row.load.as_ref().map(value))
}

fn milliseconds(seconds: f64) -> String {
    format!("{:.1} ms", seconds * 1e3)
}

fn state(row: &ShardPlaceRow) -> String {
    match row.state {
        ShardState::Bound => "bound".to_owned(),
        ShardState::Roaming => "roams".to_owned(),
    }
}

fn core(row: &ShardPlaceRow) -> String {
    match (row.package, row.core) {
        (Some(package), Some(core)) => format!("{package}/{core}"),
        (None, Some(core)) => core.to_string(),
        (_, None) => "-".to_owned(),
    }
}

/// Whole MiB by node; one node needs no number if it is the one that is wanted.
fn regions(row: &ShardPlaceRow) -> String {
    let parts = row.memory_bytes_by_node.iter().filter(|(_, bytes)| **bytes > 0);
    let parts: Vec<String> = parts
        .map(|(node, bytes)| match row.memory_node {
            Some(wanted) if wanted == *node => format!("{} MiB", bytes.div_ceil(1 << 20)),
            _ => format!("{} MiB on {node}", bytes.div_ceil(1 << 20)),
        })
        .collect();
    if parts.is_empty() { "-".to_owned() } else { parts.join(", ") }
}

fn shares(row: &ShardPlaceRow) -> String {
    let list = |what: &str, shards: &[u16]| {
        let shards: Vec<String> = shards.iter().map(ToString::to_string).collect();
        (!shards.is_empty()).then(|| format!("{what} {}", shards.join(",")))
    };
    let parts: Vec<String> = [list("cpu", &row.shares_cpu_with), list("core", &row.shares_core_with)]
        .into_iter()
        .flatten()
        .collect();
    if parts.is_empty() { "-".to_owned() } else { parts.join(" ") }
}

fn text(report: &ShardsReport, is_wide: bool) -> String {
    let ShardsReport { node, placement, machine, pin, shards, .. } = report;
    let mut text = format!("node {node}: {machine}\nshard.pin = \"{pin}\": {}\n\n", placement.detail);
    let columns: Vec<&Column> = NARROW.iter().chain(WIDE.iter().filter(|_| is_wide)).collect();
    let head: Vec<(&str, Align)> = columns.iter().map(|(name, align, _)| (*name, *align)).collect();
    let rows: Vec<Vec<String>> =
        shards.iter().map(|row| columns.iter().map(|(_, _, cell)| cell(row)).collect()).collect();
    text.push_str(&output::table(&head, &rows));
    let mut notes: Vec<String> = Vec::new();
    if placement.state == Health::Degraded {
        let [reason, fix] = [&placement.reason, &placement.fix].map(|part| part.clone().unwrap_or_default());
        notes.push(format!("DEGRADED: {reason}; fix: {fix}"));
    }
    notes.extend(why_they_roam(shards));
    if report.has_memory_policy {
        notes.push(
            "memory: as the policy says that the daemon was started with (NUMAPolicy=, numactl)".to_owned(),
        );
    }
    notes.extend(report.doubts.iter().cloned());
    notes.extend(
        snapshot::unanswered(&report.shards_missing).map(|missing| format!("{missing} load is not known")),
    );
    if !notes.is_empty() {
        text.push_str(&format!("\n{}\n", notes.join("\n")));
    }
    text
}

/// Each reason once, with its shards.
fn why_they_roam(shards: &[ShardPlaceRow]) -> Vec<String> {
    let mut reasons: Vec<(&str, Vec<usize>)> = Vec::new();
    for (row, reason) in shards.iter().filter_map(|row| Some((row, row.reason.as_deref()?))) {
        match reasons.iter_mut().find(|(other, _)| *other == reason) {
            Some((_, shards)) => shards.push(row.shard.into()),
            None => reasons.push((reason, vec![row.shard.into()])),
        }
    }
    let told = |(reason, shards): (&str, Vec<usize>)| {
        let list = crate::topology::show_list(&shards);
        if shards.len() == 1 {
            format!("shard {list} roams: {reason}")
        } else {
            format!("shards {list} roam: {reason}")
        }
    };
    reasons.into_iter().map(told).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::control::snapshot::{SCHEMA_VERSION, Subsystem};

    fn row(shard: u16) -> ShardPlaceRow {
        ShardPlaceRow {
            shard,
            state: ShardState::Bound,
            reason: None,
            cpu_wanted: Some(1500),
            cpu: Some(1501),
            package: Some(1),
            core: Some(63),
            numa_node: Some(1),
            memory_node: Some(1),
            memory_bytes_by_node: BTreeMap::from([(0, 2 << 20), (1, 62 << 20)]),
            memory_elsewhere_bytes: 2 << 20,
            shares_cpu_with: vec![2],
            shares_core_with: vec![3, 4],
            load: Some(ShardLoad { longest_turn_seconds: 0.00125, links: 7, ..ShardLoad::default() }),
        }
    }

    fn report(shards: Vec<ShardPlaceRow>) -> ShardsReport {
        ShardsReport {
            schema_version: SCHEMA_VERSION,
            node: "a".into(),
            placement: Subsystem::ok("placement", "2 shards bound to CPUs 0, 1 of 0-3"),
            pin: "auto".into(),
            machine: "1 package".into(),
            doubts: Vec::new(),
            cpus_allowed: vec![0, 1],
            cpus_allowed_at_start: vec![0, 1],
            has_memory_policy: false,
            shards,
            shards_missing: Vec::new(),
        }
    }

    #[test]
    fn a_shard_is_one_line_with_everything_in_its_place() {
        let whole = report(vec![row(0)]);
        let told = text(&whole, false);
        assert_eq!(
            told,
            "node a: 1 package\nshard.pin = \"auto\": 2 shards bound to CPUs 0, 1 of 0-3\n\n\
             SHARD  STATE  WANTED   CPU  CORE  NODE  MEMORY  REGIONS               SHARES          LONGEST\n    \
             0  bound    1500  1501  1/63     1       1  2 MiB on 0, 62 MiB  cpu 2 core 3,4   1.2 ms\n"
                .replace("REGIONS               SHARES          LONGEST", "REGIONS             SHARES          LONGEST")
        );
        assert_eq!(exit(&whole), Exit::Ok);
        let wide = text(&whole, true);
        assert!(wide.contains("LINKS\n") && wide.trim_end().ends_with('7'), "{wide}");
        let json = serde_json::to_value(&whole).unwrap();
        assert_eq!(json["shards"][0]["memory_bytes_by_node"]["1"], 62 << 20);
        assert_eq!(json["shards"][0]["state"], "bound");
        assert_eq!(serde_json::from_value::<ShardsReport>(json).unwrap(), whole);
    }

    #[test]
    fn usual_machines_fit_into_80_columns() {
        let usual = ShardPlaceRow {
            cpu_wanted: Some(12),
            cpu: Some(12),
            memory_bytes_by_node: BTreeMap::from([(1, 1200 << 20)]),
            shares_cpu_with: Vec::new(),
            shares_core_with: vec![10],
            ..row(11)
        };
        let told = text(&report(vec![usual]), false);
        assert!(told.lines().all(|line| line.len() <= 80), "{told}");
    }

    #[test]
    fn what_is_not_as_it_should_be_is_told_below_and_in_the_exit_code() {
        let roaming = |shard, reason: &str| ShardPlaceRow {
            state: ShardState::Roaming,
            reason: Some(reason.to_owned()),
            cpu_wanted: None,
            cpu: None,
            package: None,
            core: None,
            numa_node: None,
            memory_node: None,
            memory_bytes_by_node: BTreeMap::new(),
            memory_elsewhere_bytes: 0,
            shares_cpu_with: Vec::new(),
            shares_core_with: Vec::new(),
            load: None,
            shard,
        };
        let mut bad = report(vec![roaming(0, "x"), roaming(1, "y"), roaming(2, "x")]);
        bad.placement = Subsystem::degraded("placement", "3 shards roam", "too few", "more");
        (bad.shards_missing, bad.has_memory_policy) = (vec![0, 1, 2], true);
        bad.doubts.push("not known: z".to_owned());
        let told = text(&bad, false);
        assert!(
            told.ends_with(
                "\nDEGRADED: too few; fix: more\nshards 0,2 roam: x\nshard 1 roams: y\n\
                 memory: as the policy says that the daemon was started with (NUMAPolicy=, numactl)\nnot known: z\n\
                 shards 0, 1, 2 did not answer within 2s: their load is not known\n"
            ),
            "{told}"
        );
        assert!(
            told.contains("\n    0  roams       -    -     -     -       -  -        -             -\n"),
            "{told}"
        );
        assert_eq!(exit(&bad), Exit::Degraded);
        bad.shards_missing.clear();
        assert_eq!(exit(&bad), Exit::Degraded);
    }
}
