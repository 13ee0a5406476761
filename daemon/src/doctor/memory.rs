//! Memory: hugepages of the machine, of each NUMA node and of the control group, and the bound on regions.

use super::Row;
use crate::config::{Config, HugepageMode};
use crate::control::snapshot::Subsystem;
use crate::io::probe::Level;
use crate::memory::cgroup::{self, GroupLimit};
use crate::memory::system::{self, Hugepages};
use crate::memory::{HUGEPAGE_BYTES, mebibytes};
use crate::root::{Root, Unread};

/// Directory of the NUMA nodes.
const NODES: &str = "/sys/devices/system/node";

/// Hugepages of one NUMA node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NumaNode {
    /// Its number.
    pub number: u32,
    /// Whether it has processors.
    pub has_cpus: bool,
    /// 2 MiB pages of its pool.
    pub total: u64,
    /// Those that nobody uses.
    pub free: u64,
}

/// What there is of memory.
#[derive(Clone, Debug)]
pub struct MemoryFacts {
    /// Memory that the process may use, in bytes.
    pub memory_bytes: u64,
    /// The pool of 2 MiB hugepages; none where the kernel has none or does not show it.
    pub pool: Option<Hugepages>,
    /// The same by NUMA node.
    pub nodes: Vec<NumaNode>,
    /// What the control group may have of hugepages, if it is limited.
    pub hugepage_limit: Option<GroupLimit>,
    /// What it may have of memory, in bytes, if it is limited.
    pub memory_limit: Option<u64>,
    /// How the machine's memory is known.
    pub meminfo: Result<(), Unread>,
}

impl MemoryFacts {
    /// Reads them, those of the control group for this process: its number or `self`.
    #[must_use]
    pub fn read(root: &Root, process: &str) -> Self {
        let directory = root.directory();
        let machine = root.text("/proc/meminfo").and_then(|text| {
            let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
            let kibibytes = total.and_then(|text| text.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
            kibibytes
                .map(|kib| kib.saturating_mul(1 << 10))
                .ok_or_else(|| Unread::malformed("/proc/meminfo", "no MemTotal"))
        });
        let memory_limit = cgroup::memory_limit_of(directory, process);
        let memory_bytes = *machine.as_ref().unwrap_or(&0);
        Self {
            memory_bytes: memory_limit.map_or(memory_bytes, |limit| limit.min(memory_bytes)),
            pool: system::hugepages_of(directory, process),
            nodes: nodes(root),
            hugepage_limit: cgroup::hugepage_limit_of(directory, process),
            memory_limit,
            meminfo: machine.map(|_| ()),
        }
    }
}

fn nodes(root: &Root) -> Vec<NumaNode> {
    let mut nodes: Vec<NumaNode> = root.names(NODES).iter().filter_map(|name| node(root, name)).collect();
    nodes.sort_by_key(|node| node.number);
    nodes
}

fn node(root: &Root, name: &str) -> Option<NumaNode> {
    let number = name.strip_prefix("node")?.parse().ok()?;
    let file = |file: &str| format!("{NODES}/{name}/{file}");
    let pages = |which: &str| root.number(&file(&format!("hugepages/hugepages-2048kB/{which}"))).ok();
    Some(NumaNode {
        number,
        has_cpus: root.text(&file("cpulist")).is_ok_and(|list| !list.is_empty()),
        total: pages("nr_hugepages")?,
        free: pages("free_hugepages")?,
    })
}

/// Judges, for a daemon of so many shards that uses so much of io_uring. `said` is the line `memory` of one that runs.
#[must_use]
pub fn rows(
    facts: &MemoryFacts,
    config: &Config,
    shards: u32,
    level: Option<Level>,
    said: Option<&Subsystem>,
) -> Vec<Row> {
    let mode = config.memory.hugepages;
    let at_start = u64::from(shards) * receive_pages(config, level);
    let total_bytes = config.memory.total.bytes(facts.memory_bytes);
    let mut rows = vec![hugepages(facts.pool.as_ref(), mode, at_start, said)];
    rows.extend(facts.nodes.iter().filter(|node| node.has_cpus).map(|node| numa(*node, &facts.nodes, mode)));
    rows.push(hugepage_limit(facts.hugepage_limit.as_ref(), mode, at_start, total_bytes));
    rows.push(budget(facts, mode, total_bytes));
    rows
}

/// Hugepages for the receive buffers of one shard. At the lowest level they are ordinary pages.
fn receive_pages(config: &Config, level: Option<Level>) -> u64 {
    let bytes = u64::from(config.io.receive_buffers) * u64::from(config.io.receive_buffer_bytes);
    if level.is_some_and(|level| level > Level::OneShot) { bytes.div_ceil(HUGEPAGE_BYTES) } else { 0 }
}

/// `at_start` is how many pages a daemon takes for its receive buffers before it says that it is ready.
fn hugepages(pool: Option<&Hugepages>, mode: HugepageMode, at_start: u64, said: Option<&Subsystem>) -> Row {
    let wanted = "free hugepages of 2 MiB, for regions and receive buffers";
    let ordinary = "regions are made of ordinary pages, which works, with more misses of the TLB";
    if mode == HugepageMode::Off {
        return Row::off("memory", wanted, "memory.hugepages = \"off\"");
    }
    if let Some(said) = said {
        return Row::said(said, wanted, ordinary);
    }
    let available = pool.map_or(0, Hugepages::available);
    let (reason, fix) = match pool {
        Some(pool) => pool.shortage(),
        None => (
            "0 hugepages of 2 MiB are free: this kernel shows no such pool".to_owned(),
            "a kernel with CONFIG_HUGETLBFS; or memory.hugepages = \"off\"".to_owned(),
        ),
    };
    let row = Row::new("memory", wanted, reason);
    match mode {
        HugepageMode::Require if available < at_start => row.failed(REQUIRED_AT_START, fix),
        _ if available > 0 => row,
        HugepageMode::Require => row.degraded(REQUIRED, fix),
        HugepageMode::Auto | HugepageMode::Off => row.degraded(ordinary, fix),
    }
}

/// What lacking hugepages costs where they are required: for receive buffers, and for regions.
const REQUIRED_AT_START: &str = "memory.hugepages = \"require\": the daemon does not start";
const REQUIRED: &str = "memory.hugepages = \"require\": the daemon starts, and regions are refused";

/// A node with processors and without pages, while another has some: its shards get memory of the other.
fn numa(node: NumaNode, all: &[NumaNode], mode: HugepageMode) -> Row {
    let NumaNode { number, total, free, .. } = node;
    let name = format!("memory/node{number}");
    let wanted = "as many hugepages as the other nodes with processors";
    if mode == HugepageMode::Off {
        return Row::off(&name, wanted, "memory.hugepages = \"off\"");
    }
    let most = all.iter().map(|node| node.total).max().unwrap_or(0);
    let row = Row::new(name, wanted, format!("{free} of {total} hugepages of 2 MiB are free"));
    if total > 0 || most == 0 {
        return row;
    }
    row.degraded(
        format!("what runs on processors of node {number} works on memory of another node"),
        format!("echo {most} > {NODES}/node{number}/hugepages/hugepages-2048kB/nr_hugepages, or weir-hugepages.service"),
    )
}

fn hugepage_limit(limit: Option<&GroupLimit>, mode: HugepageMode, at_start: u64, total_bytes: u64) -> Row {
    let name = "hugepage_limit";
    let wanted = "no limit of the control group on hugepages, or one that leaves some";
    if mode == HugepageMode::Off {
        return Row::off(name, wanted, "memory.hugepages = \"off\"");
    }
    let Some(GroupLimit { bytes, file }) = limit else { return Row::new(name, wanted, "no limit") };
    let beyond = match mode {
        _ if *bytes >= total_bytes => "",
        HugepageMode::Require => "; regions beyond it are refused",
        HugepageMode::Auto | HugepageMode::Off => "; regions beyond it are made of ordinary pages",
    };
    let row = Row::new(name, wanted, format!("{} MiB, in {}{beyond}", mebibytes(*bytes), file.display()));
    let fix = limit.map_or(String::new(), GroupLimit::fix);
    // One that leaves some counts as a pool does that has some: it is no fault until a region lacks a page.
    match mode {
        _ if *bytes >= HUGEPAGE_BYTES => row,
        HugepageMode::Require if at_start > 0 => row.failed(REQUIRED_AT_START, fix),
        HugepageMode::Require => row.degraded(REQUIRED, fix),
        HugepageMode::Auto | HugepageMode::Off => row.degraded("regions are made of ordinary pages", fix),
    }
}

fn budget(facts: &MemoryFacts, mode: HugepageMode, total_bytes: u64) -> Row {
    let wanted = format!("room for memory.total, {} MiB", mebibytes(total_bytes));
    if let Err(unread) = &facts.meminfo {
        return Row::unknown("budget", wanted, unread);
    }
    let row = |found: String| Row::new("budget", wanted.clone(), found);
    // Hugepages do not count for the limit of a group.
    match facts.memory_limit.filter(|_| mode != HugepageMode::Require) {
        Some(limit) if limit < total_bytes => row(cgroup::too_small(limit)).degraded(
            "who fills the regions ends the daemon, and with it everybody's channels",
            cgroup::TOO_SMALL_FIX,
        ),
        _ if total_bytes > facts.memory_bytes => {
            row(format!("the machine has {} MiB", mebibytes(facts.memory_bytes))).degraded(
                "regions are refused, or the kernel ends some process, before that bound is reached",
                "memory.total",
            )
        }
        Some(limit) => row(format!("the control group may use {} MiB", mebibytes(limit))),
        None => row(format!("the machine has {} MiB", mebibytes(facts.memory_bytes))),
    }
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;
    use crate::config::MemoryTotal;
    use crate::root::machine;

    const POOL: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB";

    /// A machine of 8 GiB with two NUMA nodes, and these hugepages on each, all free.
    fn facts(pages: [u64; 2], more: &[(&str, &str)]) -> MemoryFacts {
        let total = (pages[0] + pages[1]).to_string();
        let pages = pages.map(|pages| pages.to_string());
        let in_pool = |file: &str| format!("{POOL}/{file}");
        let in_node = |node: usize, file: &str| format!("{NODES}/node{node}/{file}");
        let mut files = vec![
            ("/proc/meminfo".to_owned(), "MemTotal:        8388608 kB\nMemFree: 1 kB\n"),
            ("/proc/7/cgroup".to_owned(), "0::/weir\n"),
            (in_pool("nr_hugepages"), &total),
            (in_pool("free_hugepages"), &total),
            (in_pool("resv_hugepages"), "0"),
            (in_pool("nr_overcommit_hugepages"), "0"),
            (in_pool("surplus_hugepages"), "0"),
            (format!("{NODES}/online"), "0-1\n"),
            (in_node(0, "cpulist"), "0-1\n"),
            (in_node(1, "cpulist"), "2-3\n"),
        ];
        for (node, pages) in pages.iter().enumerate() {
            for file in ["nr_hugepages", "free_hugepages"] {
                files.push((in_node(node, &format!("hugepages/hugepages-2048kB/{file}")), pages));
            }
        }
        let mut files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (path.as_str(), *text)).collect();
        files.extend(more);
        let (_directory, root) = machine(&files);
        MemoryFacts::read(&root, "7")
    }

    fn config(mode: HugepageMode, total_bytes: u64) -> Config {
        let mut config = Config::default();
        config.memory.hugepages = mode;
        config.memory.total = MemoryTotal::Bytes(total_bytes);
        config
    }

    fn row(name: &str, facts: &MemoryFacts, config: &Config) -> Row {
        rows(facts, config, 2, Some(Level::Full), None).into_iter().find(|row| row.name == name).unwrap()
    }

    #[test]
    fn a_machine_with_memory_is_fine_in_every_row() {
        let rows =
            rows(&facts([8, 8], &[]), &config(HugepageMode::Auto, 32 << 20), 2, Some(Level::Full), None);
        assert_eq!(rows.len(), 5);
        for row in rows {
            assert_eq!((row.state, &*row.effect, &*row.fix), (State::Ok, "", ""), "{row:?}");
        }
    }

    #[test]
    fn without_hugepages_the_mode_decides() {
        for (pages, mode, expected) in [
            ([0, 0], HugepageMode::Auto, State::Degraded),
            ([0, 0], HugepageMode::Require, State::Failed),
            ([0, 0], HugepageMode::Off, State::Off),
            ([1, 0], HugepageMode::Auto, State::Ok),
            // The receive buffers of each shard take one.
            ([1, 0], HugepageMode::Require, State::Failed),
            ([1, 1], HugepageMode::Require, State::Ok),
        ] {
            let row = row("memory", &facts(pages, &[]), &config(mode, 32 << 20));
            assert_eq!(row.state, expected, "{pages:?} {mode:?}");
        }
        let row = row("memory", &facts([0, 0], &[]), &config(HugepageMode::Auto, 32 << 20));
        assert_eq!((&*row.found, &*row.fix), ("0 hugepages of 2 MiB are free", "sysctl vm.nr_hugepages=64"));
    }

    #[test]
    fn without_receive_buffers_of_hugepages_a_daemon_starts_without_any() {
        let config = config(HugepageMode::Require, 32 << 20);
        let path = "/sys/fs/cgroup/weir/hugetlb.2MB.max";
        let (none, limited) = (facts([0, 0], &[]), facts([8, 8], &[(path, "0")]));
        for (level, expected) in [
            (Some(Level::OneShot), State::Degraded),
            (Some(Level::Incremental), State::Failed),
            (Some(Level::Full), State::Failed),
        ] {
            for (facts, name) in [(&none, "memory"), (&limited, "hugepage_limit")] {
                let rows = rows(facts, &config, 2, level, None);
                let row = rows.iter().find(|row| row.name == name).unwrap();
                assert_eq!(row.state, expected, "{level:?} {row:?}");
                assert_eq!(row.effect.contains("does not start"), expected == State::Failed, "{row:?}");
            }
        }
        assert_eq!(rows(&facts([1, 0], &[]), &config, 2, Some(Level::OneShot), None)[0].state, State::Ok);
    }

    #[test]
    fn a_daemon_that_runs_knows_what_its_regions_are_made_of() {
        let said = Subsystem::ok("memory", "3 regions of hugepages, 0 of ordinary pages");
        let row = &rows(&facts([0, 0], &[]), &config(HugepageMode::Auto, 32 << 20), 2, None, Some(&said))[0];
        assert_eq!((row.state, &row.found), (State::Ok, &said.detail));
    }

    #[test]
    fn a_node_with_processors_and_without_pages_is_named_with_its_file() {
        let facts = facts([16, 0], &[]);
        let config = config(HugepageMode::Auto, 32 << 20);
        assert_eq!(row("memory/node0", &facts, &config).state, State::Ok);
        let poor = row("memory/node1", &facts, &config);
        assert_eq!(poor.state, State::Degraded);
        assert!(poor.fix.starts_with("echo 16 > /sys/devices/system/node/node1/hugepages/"), "{}", poor.fix);
    }

    #[test]
    fn a_limit_on_hugepages_is_told_with_the_file_that_lifts_it() {
        let path = "/sys/fs/cgroup/weir/hugetlb.2MB.max";
        for (bytes, mode, expected) in [
            ("max", HugepageMode::Auto, State::Ok),
            ("33554432", HugepageMode::Auto, State::Ok),
            ("4194304", HugepageMode::Auto, State::Ok),
            ("4194304", HugepageMode::Require, State::Ok),
            ("0", HugepageMode::Auto, State::Degraded),
            ("0", HugepageMode::Require, State::Failed),
            ("0", HugepageMode::Off, State::Off),
        ] {
            let row = row("hugepage_limit", &facts([8, 8], &[(path, bytes)]), &config(mode, 32 << 20));
            assert_eq!(row.state, expected, "{bytes} {mode:?}");
            if expected > State::Unknown {
                assert_eq!(row.fix, format!("echo max > {path}"));
            }
            assert_eq!(
                row.found.contains("regions beyond it are"),
                bytes == "4194304" || bytes == "0" && mode != HugepageMode::Off,
                "{row:?}"
            );
        }
        let limited = facts([8, 8], &[(path, "0")]);
        let row = row("memory", &limited, &config(HugepageMode::Auto, 32 << 20));
        assert_eq!((row.state, row.fix), (State::Degraded, format!("echo max > {path}")));
        assert!(row.found.contains(path), "{}", row.found);
    }

    #[test]
    fn a_bound_that_the_group_or_the_machine_does_not_have_is_told_as_in_the_status() {
        let path = "/sys/fs/cgroup/weir/memory.max";
        for (bytes, mode, total_bytes, expected) in [
            ("max", HugepageMode::Auto, 32 << 20, State::Ok),
            ("33554432", HugepageMode::Auto, 32 << 20, State::Ok),
            ("16777216", HugepageMode::Auto, 32 << 20, State::Degraded),
            ("16777216", HugepageMode::Off, 32 << 20, State::Degraded),
            ("max", HugepageMode::Auto, 9 << 30, State::Degraded),
        ] {
            let row = row("budget", &facts([8, 8], &[(path, bytes)]), &config(mode, total_bytes));
            assert_eq!(row.state, expected, "{bytes} {mode:?} {total_bytes}");
        }
        let row = row("budget", &facts([8, 8], &[(path, "16777216")]), &config(HugepageMode::Auto, 32 << 20));
        assert_eq!((row.found, &*row.fix), (cgroup::too_small(16 << 20), cgroup::TOO_SMALL_FIX));
    }

    #[test]
    fn a_machine_that_shows_nothing_is_not_known() {
        let (_directory, root) = machine(&[]);
        let facts = MemoryFacts::read(&root, "7");
        let config = config(HugepageMode::Auto, 32 << 20);
        assert_eq!(row("budget", &facts, &config).state, State::Unknown);
        assert!(row("memory", &facts, &config).fix.contains("CONFIG_HUGETLBFS"));
    }
}
