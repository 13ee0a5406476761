//! Sends with a copy in the kernel and without: what either costs on the paths that a machine has by itself.
//!
//! On loopback and between virtual interfaces the kernel copies in the end what is sent "without", which the notices say and
//! which is counted here: this is the price of not adapting, not the gain. Out of an interface that swallows everything it
//! does not: there the daemon's ring is measured, with no daemon around it, since nobody would answer.

use std::process::Command;

use crate::cluster::{Cluster, ClusterOptions};
use crate::pipeline::Layout;
use crate::report::Case;

#[cfg(feature = "ring")]
mod into_nothing;

use super::{Settings, WARM_UP, Window, Workload};

const MEMORY_BYTES: u64 = 1 << 30;
const CHANNELS: u32 = 16;
const RECORD_BYTES: usize = 32 << 10;

/// What `link.zero_copy` is set to. Each round runs all of them, another one first each time.
const MODES: [&str; 3] = ["never", "always", "auto"];

/// Loopback, then virtual interfaces.
pub(super) fn run(settings: &Settings) -> Result<Vec<Case>, String> {
    let mut cases = vec![path(settings, "loopback", None)?];
    match Namespaces::new() {
        Ok(namespaces) => cases.push(path(settings, "virtual interfaces", Some(&namespaces))?),
        Err(reason) => settings.notes.not_run(format!("zero-copy over virtual interfaces ({reason})")),
    }
    #[cfg(feature = "ring")]
    into_nothing::run(settings, &mut cases);
    Ok(cases)
}

/// One window, and what the link had done in the end.
struct Run {
    window: Window,
    sends: f64,
    copied: f64,
}

fn path(settings: &Settings, name: &str, namespaces: Option<&Namespaces>) -> Result<Case, String> {
    let rounds = settings.every_round(&format!("zero-copy over {name}"), |round| {
        let mut runs = [const { None }; MODES.len()];
        for step in 0..MODES.len() {
            let mode = (step + round as usize) % MODES.len();
            runs[mode] = Some(transfer(settings, MODES[mode], namespaces)?);
        }
        Ok(runs)
    })?;
    let of = |mode: usize| rounds.iter().filter_map(move |runs| runs.get(mode)?.as_ref());
    let mut case =
        Case::new(format!("zero-copy: {CHANNELS} channels over {name}, records of {RECORD_BYTES} B"));
    for (at, mode) in MODES.iter().enumerate() {
        let cpu = of(at).map(|run| run.window.cpu_seconds_per_gigabyte());
        case.figure(&format!("cpu_seconds_per_gigabyte_{mode}"), cpu);
        let rate = of(at).map(|run| run.window.gigabytes_per_second());
        case.figure(&format!("gigabytes_per_second_{mode}"), rate);
        case.figure(&format!("zero_copy_sends_{mode}"), of(at).map(|run| run.sends));
        case.figure(&format!("zero_copy_sends_copied_{mode}"), of(at).map(|run| run.copied));
    }
    for (at, name) in MODES.iter().enumerate().skip(1) {
        let cpu = |run: &Run| run.window.cpu_seconds_per_gigabyte();
        let more = of(0).zip(of(at)).map(|(never, other)| 100.0 * (cpu(other) / cpu(never) - 1.0));
        case.figure(&format!("percent_more_cpu_per_gigabyte_{name}"), more);
    }
    case.figure("foreign_cores", rounds.iter().flatten().flatten().map(|run| run.window.foreign_cores));
    Ok(case)
}

fn transfer(settings: &Settings, mode: &'static str, apart: Option<&Namespaces>) -> Result<Run, String> {
    let options = ClusterOptions {
        zero_copy: Some(mode),
        apart: apart.map(Namespaces::ends),
        ..settings.cluster(MEMORY_BYTES)
    };
    let cluster = Cluster::start(&options)?;
    let workload = Workload::new("copied", Layout::FanIn(CHANNELS), RECORD_BYTES);
    let mut stream = workload.start(cluster.a(), cluster.b())?;
    std::thread::sleep(WARM_UP);
    let window = stream.watch(&cluster, settings.window)?;
    let status = cluster.ask(cluster.a(), "status")?;
    let links = status["links"].as_array().ok_or("status has no links")?;
    let sum = |key: &str| links.iter().filter_map(|link| link["zero_copy"][key].as_f64()).sum();
    let run = Run { window, sends: sum("sent_total"), copied: sum("copied_total") };
    stream.end()?;
    Ok(run)
}

/// Network namespaces, such as two with a pair of virtual interfaces between them. They go with the value.
struct Namespaces {
    names: Vec<String>,
}

/// Addresses of the two ends.
const ADDRESSES: [&str; 2] = ["10.79.0.1", "10.79.0.2"];

impl Namespaces {
    /// Makes them. The error is one line: what cannot be had here.
    fn new() -> Result<Self, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("needs root".to_owned());
        }
        let namespaces =
            Self { names: ["a", "b"].map(|end| format!("weir-bench-{}{end}", std::process::id())).to_vec() };
        let (a, b) = (&namespaces.names[0], &namespaces.names[1]);
        ip(&format!("netns add {a}"))?;
        ip(&format!("netns add {b}"))?;
        ip(&format!("-n {a} link add veth0 type veth peer name veth0 netns {b}"))?;
        for (name, address) in namespaces.names.iter().zip(ADDRESSES) {
            ip(&format!("-n {name} address add {address}/24 dev veth0"))?;
            ip(&format!("-n {name} link set veth0 up"))?;
            ip(&format!("-n {name} link set lo up"))?;
        }
        Ok(namespaces)
    }

    fn ends(&self) -> [(String, String); 2] {
        [0, 1].map(|end| (self.names[end].clone(), ADDRESSES[end].to_owned()))
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for name in &self.names {
            // It is not there if making it failed.
            let _ = ip(&format!("netns delete {name}"));
        }
    }
}

fn ip(arguments: &str) -> Result<(), String> {
    let output = Command::new("ip").args(arguments.split(' ')).output();
    let output = output.map_err(|error| format!("ip: {error}"))?;
    let problem = || format!("ip {arguments}: {}", String::from_utf8_lossy(&output.stderr).trim());
    if output.status.success() { Ok(()) } else { Err(problem()) }
}
