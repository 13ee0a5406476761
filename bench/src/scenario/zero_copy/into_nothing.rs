//! The daemon's ring by itself, out of an interface that swallows everything.

use std::process::Command;

use crate::report::Case;
use crate::swallow::{Found, Task, Way};

use super::{Namespaces, Settings, ip};

/// Segments of the batches that are sent into nothing.
const BATCHES: [u32; 2] = [2, 16];

/// One case for each size, where it can be measured.
pub(super) fn run(settings: &Settings, cases: &mut Vec<Case>) {
    for segments in BATCHES {
        match swallowed(settings, segments) {
            Ok(case) => cases.push(case),
            Err(reason) => settings.notes.not_run(format!("zero-copy into nothing ({reason})")),
        }
    }
}

/// Each way of sending in every round, another one first each time.
fn swallowed(settings: &Settings, segments: u32) -> Result<Case, String> {
    let rounds = settings.every_round(&format!("zero-copy into nothing, {segments} segments"), |round| {
        let mut found = [Found::default(); Way::ALL.len()];
        for step in 0..found.len() {
            let at = (step + round as usize) % found.len();
            found[at] = swallow(Task { way: Way::ALL[at], segments })?;
        }
        Ok(found)
    })?;
    let of = |at: usize| rounds.iter().map(move |found| &found[at]);
    let cpu = |found: &Found| 1e9 * found.cpu_seconds / found.bytes as f64;
    let mut case = Case::new(format!("zero-copy: the ring, batches of {segments} x 32 KiB into nothing"));
    for (at, way) in Way::ALL.iter().enumerate() {
        case.figure(&format!("cpu_seconds_per_gigabyte_{}", way.as_str()), of(at).map(cpu));
    }
    for (at, way) in Way::ALL.iter().enumerate().skip(1) {
        let name = way.as_str();
        case.figure(&format!("zero_copy_sends_{name}"), of(at).map(|found| found.sends as f64));
        case.figure(&format!("zero_copy_sends_copied_{name}"), of(at).map(|found| found.copied as f64));
        let more = of(at - 1).zip(of(at)).map(|(before, found)| 100.0 * (cpu(found) / cpu(before) - 1.0));
        let than = Way::ALL[at - 1].as_str();
        case.figure(&format!("percent_more_cpu_per_gigabyte_{name}_than_{than}"), more);
    }
    case.figure("zero_copy_sends_named_registered", of(2).map(|found| found.named as f64));
    Ok(case)
}

/// Runs one process in a network namespace of its own.
fn swallow(task: Task) -> Result<Found, String> {
    if !rustix::process::geteuid().is_root() {
        return Err("needs root".to_owned());
    }
    let namespace = Namespaces { names: vec![format!("weir-bench-{}n", std::process::id())] };
    let name = &namespace.names[0];
    ip(&format!("netns add {name}"))?;
    ip(&format!("-n {name} link set lo up"))?;
    let program = std::env::current_exe().map_err(|error| format!("this program: {error}"))?;
    let task = serde_json::to_string(&task).map_err(|error| error.to_string())?;
    let mut command = Command::new("ip");
    command.args(["netns", "exec", name]).arg(program).args(["swallow", &task]);
    let output = command.output().map_err(|error| format!("ip: {error}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
    }
    serde_json::from_slice(&output.stdout).map_err(|error| format!("a bad answer: {error}"))
}
