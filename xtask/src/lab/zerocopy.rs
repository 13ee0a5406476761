//! Two machines with a network between them whose cards read what is sent where it lies, as real ones do: the one place
//! beside real hardware where zero-copy sends can be seen to be such, and to arrive. It says nothing about speed.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::machine::{Card, Machine, Told};
use super::report::{self, Check};
use super::setup::{self, SERIES, Series, said};
use super::{BOOT_TIMEOUT, build, expect_all, image, table};
use crate::process::{self, Outcome};

/// What each guest does.
const SCRIPT: &[u8] = include_bytes!("pair.sh");

/// Lines that are sent: about 30 MB.
const LINES: u32 = 4_000_000;

/// Hugepages of each guest.
const HUGEPAGES: u32 = 48;

/// The least number of zero-copy sends that shows something.
const SENDS_MIN: u64 = 50;

/// One try: a kernel, and how much of io_uring is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Try {
    series: Series,
    level: &'static str,
    /// Whether sends name registered memory.
    is_registered: bool,
}

fn tries(series: Option<Series>) -> Vec<Try> {
    let of = |series, level, is_registered| Try { series, level, is_registered };
    let all = [
        of(Series::V6_1, "auto", false),
        of(Series::V6_12, "auto", false),
        of(Series::Newest, "incremental", false),
        of(Series::Newest, "auto", true),
    ];
    all.into_iter().filter(|one| series.is_none_or(|series| series == one.series)).collect()
}

/// Tries one kernel, or all of them, with this program or with one that is built.
pub(super) fn run(series: Option<Series>, weir: Option<&Path>) -> Outcome {
    if !process::is_root() {
        return Err(
            "only root can make a network for the machines: `cargo xtask lab zerocopy` as root".into()
        );
    }
    expect_all(&setup::missing(&series.map_or(SERIES.to_vec(), |one| vec![one])))?;
    let weir = match weir {
        Some(path) => path.to_owned(),
        None => build()?,
    };
    let mut failed = Vec::new();
    for one in tries(series) {
        let name = format!("{}-{}", one.series.name(), one.level);
        println!("lab: starting two machines, kernel {name}, at most {} s", BOOT_TIMEOUT.as_secs());
        let told = start(one, &name, &weir)?;
        let (kernel, checks) = judge(one, &told);
        let mut rows = vec![["CHECK", "VERDICT", "FOUND"].map(str::to_owned)];
        rows.extend(checks.iter().map(|check| {
            let verdict = if check.is_ok { "OK" } else { "FAIL" };
            [check.what.clone(), verdict.to_owned(), check.found.clone()]
        }));
        println!("\n== kernel {kernel}, io.level = {}\n\n{}", one.level, table(&rows, &[]));
        if checks.iter().any(|check| !check.is_ok) {
            println!("lab: what the machines said is in {}", directory(&name).display());
            failed.push(name);
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(format!("zero-copy sends fail on {}", failed.join(" and "))) }
}

fn directory(name: &str) -> std::path::PathBuf {
    setup::directory().join("runs").join(format!("zerocopy-{name}"))
}

/// Starts both machines and waits for their end. The sender stands first.
fn start(one: Try, name: &str, weir: &Path) -> Result<[Told; 2], String> {
    let network = Network::new()?;
    let image = image::build(weir, &setup::busybox(), SCRIPT, &setup::files(&one.series.drivers()))?;
    let directory = directory(name);
    let kernel = one.series.kernel();
    let path = directory.join("image.cpio");
    let file = |error: std::io::Error| format!("{}: {error}", directory.display());
    for end in ["a", "b"] {
        fs::create_dir_all(directory.join(end)).map_err(file)?;
    }
    fs::write(&path, &image).map_err(file)?;
    let told = std::thread::scope(|scope| {
        let threads = ["a", "b"].map(|end| {
            let (directory, kernel, path, network) = (directory.join(end), &kernel, &path, &network);
            let image_bytes = u64::try_from(image.len()).unwrap_or(u64::MAX);
            scope.spawn(move || {
                let machine = Machine {
                    kernel,
                    image: path,
                    image_bytes,
                    directory: &directory,
                    timeout: BOOT_TIMEOUT,
                    card: Some(network.card(end)),
                    words: format!(
                        "net.ifnames=0 hugepages={HUGEPAGES} WEIR_ROLE={end} WEIR_LEVEL={} WEIR_LINES={LINES}",
                        one.level
                    ),
                };
                machine.run()
            })
        });
        threads.map(|thread| thread.join().unwrap_or_else(|_| Err("a thread of the lab failed".to_owned())))
    });
    let _ = fs::remove_file(&path);
    let [a, b] = told;
    Ok([a?, b?])
}

/// A network namespace with a bridge and an interface for each machine. It goes with the value.
pub(super) struct Network {
    namespace: String,
}

impl Network {
    /// Makes it.
    ///
    /// # Errors
    /// What `ip` says.
    pub(super) fn new() -> Result<Self, String> {
        let network = Self { namespace: format!("weir-lab-{}", std::process::id()) };
        let name = &network.namespace;
        ip(&format!("netns add {name}"))?;
        ip(&format!("-n {name} link add bridge type bridge"))?;
        ip(&format!("-n {name} link set bridge up"))?;
        for end in ["a", "b"] {
            ip(&format!("-n {name} tuntap add tap-{end} mode tap vnet_hdr"))?;
            ip(&format!("-n {name} link set tap-{end} master bridge up"))?;
        }
        Ok(network)
    }

    /// The card of the machine `a`, or of `b`.
    pub(super) fn card(&self, end: &str) -> Card {
        let number = if end == "a" { 1 } else { 2 };
        Card { namespace: self.namespace.clone(), tap: format!("tap-{end}"), number }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // It is not there if making it failed.
        let _ = ip(&format!("netns delete {}", self.namespace));
    }
}

fn ip(arguments: &str) -> Outcome {
    said(Command::new("ip").args(arguments.split(' '))).map(drop)
}

/// What the kernel calls itself, and whether what both machines said is right.
fn judge(one: Try, told: &[Told; 2]) -> (String, Vec<Check>) {
    let [a, b] = [0, 1].map(|end: usize| report::sections(&told[end].report));
    let text = |sections: &std::collections::BTreeMap<String, String>, name: &str| {
        sections.get(name).map_or(String::new(), |text| text.trim().to_owned())
    };
    let mut checks = Vec::new();
    let mut check = |what: &str, found: String, is_ok: bool| {
        checks.push(Check { what: what.to_owned(), found, is_ok });
    };
    let took = told.iter().map(|told| told.took.as_secs()).max().unwrap_or(0);
    let has_ended = told.iter().all(|told| told.has_ended) && a.contains_key("end") && b.contains_key("end");
    check("both machines come to their end", format!("after {took} s"), has_ended);
    let outcomes = [text(&a, "outcome"), text(&b, "outcome")];
    check(
        "sender and receiver succeed",
        outcomes.join(" and "),
        outcomes.iter().all(|outcome| outcome == "0"),
    );
    let sums = [text(&a, "sum"), text(&b, "sum")];
    let is_same = !sums[0].is_empty() && sums[0] == sums[1];
    let bytes = text(&a, "bytes");
    check("what arrives is what was sent", format!("{bytes} bytes, sum {:.16}", sums[1]), is_same);
    let status: Value = serde_json::from_str(&text(&a, "status")).unwrap_or(Value::Null);
    let links = status["links"].as_array().map_or(&[][..], Vec::as_slice);
    let sum = |key: &str| links.iter().filter_map(|link| link["zero_copy"][key].as_u64()).sum::<u64>();
    let (sent, copied) = (sum("sent_total"), sum("copied_total"));
    check("the sender sends without a copy", format!("{sent} batches"), sent >= SENDS_MIN);
    check("none of them is copied", format!("{copied} of {sent}"), copied == 0 && sent > 0);
    let outstanding = sum("outstanding");
    check("the kernel has let go of all", format!("{outstanding} left"), outstanding == 0 && sent > 0);
    let lines = status["subsystems"].as_array().map_or(&[][..], Vec::as_slice);
    let line = lines.iter().find(|line| line["name"] == "zero copy");
    let detail = line.and_then(|line| line["detail"].as_str()).unwrap_or_default();
    let named = named(detail);
    let is_ok = if one.is_registered { named.is_some_and(|named| named > 0) } else { named.is_none() };
    let what = if one.is_registered { "some name registered memory" } else { "none names registered memory" };
    check(
        what,
        named.map_or("no memory is registered".to_owned(), |named| format!("{named} batches")),
        is_ok,
    );
    let charged = detail.split("is charged: ").nth(1).unwrap_or_default().to_owned();
    let is_tried = !charged.is_empty() && !charged.starts_with("not tried");
    check("what a byte from a hugepage is charged as is known", charged, is_tried);
    (text(&a, "kernel"), checks)
}

/// How many batches named registered memory, from the line of status. None if no memory is registered.
fn named(detail: &str) -> Option<u64> {
    let before =
        detail.split(" named registered memory").next().filter(|before| before.len() < detail.len())?;
    before.rsplit(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn told(report: String) -> Told {
        Told { console: String::new(), report, has_ended: true, took: Duration::from_secs(40) }
    }

    fn faults(one: Try, copied: u32, detail: &str, sum: &str) -> Vec<String> {
        let status = format!(
            r#"{{"links":[{{"zero_copy":{{"sent_total":400,"copied_total":{copied},"outstanding":0}}}}],
                "subsystems":[{{"name":"zero copy","detail":"{detail}"}}]}}"#
        );
        let a = format!(
            "@@ kernel\n7.0\n@@ bytes\n9\n@@ sum\nab -\n@@ outcome\n0\n@@ status\n{status}\n@@ end\n"
        );
        let b = format!("@@ outcome\n0\n@@ sum\n{sum} -\n@@ status\n{{}}\n@@ end\n");
        let (kernel, checks) = judge(one, &[told(a), told(b)]);
        assert_eq!(kernel, "7.0");
        checks.into_iter().filter(|check| !check.is_ok).map(|check| check.what).collect()
    }

    #[test]
    fn what_both_said_is_right_only_if_nothing_was_copied_and_all_arrived() {
        let [plain, registered] = [false, true].map(|is_registered| {
            let all = tries(Some(Series::Newest));
            all.into_iter().find(|one| one.is_registered == is_registered).unwrap()
        });
        let unnamed = "no memory is registered: too old; a byte from a hugepage is charged: x2";
        let named = "0 copied; 77 named registered memory, of which; a byte from a hugepage is charged: x2";
        let none: Vec<String> = Vec::new();
        assert_eq!(faults(plain, 0, unnamed, "ab"), none);
        assert_eq!(faults(registered, 0, named, "ab"), none);
        assert_eq!(faults(registered, 1, named, "ab"), ["none of them is copied"]);
        assert_eq!(faults(registered, 0, named, "cd"), ["what arrives is what was sent"]);
        assert_eq!(faults(registered, 0, unnamed, "ab"), ["some name registered memory"]);
        assert_eq!(faults(plain, 0, named, "ab"), ["none names registered memory"]);
        assert_eq!(faults(plain, 0, "", "ab"), ["what a byte from a hugepage is charged as is known"]);
    }
}
