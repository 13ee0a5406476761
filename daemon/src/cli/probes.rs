//! `weir probes`: whether the kernel probes run on this machine, hook by hook.

use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use serde::Serialize;

use super::output::{self, Align, Output};
use crate::control::client;
use crate::control::snapshot::{Health, HookRow, SCHEMA_VERSION, StatusReport, Subsystem};
use crate::exit::{Exit, Problem};
use crate::observe::sockets::{HOOKS_ATTACHED, Observer};

/// Load the kernel probes of this program, show what became of each hook, and take them out again.
///
/// Needs what the daemon needs for them: CAP_BPF and CAP_PERFMON. No daemon is asked, and none is disturbed. With --run-dir
/// nothing is loaded: the daemon that runs there is asked what became of its own.
///
/// Exit codes: 0 every hook is attached, 3 some are not, 1 there are no probes, with the reason, or a daemon of an earlier release
/// does not tell, 4 no daemon answers.
#[derive(Args, Debug)]
pub(super) struct ProbesArgs {
    /// Ask the daemon with this run directory.
    #[arg(long, value_name = "DIR")]
    run_dir: Option<PathBuf>,
    /// Form of the output.
    #[arg(long, value_enum, default_value_t)]
    output: Output,
}

/// The answer in JSON.
#[derive(Debug, Serialize)]
struct ProbesReport {
    schema_version: u32,
    /// Time from the object to the last attached program; not there for a daemon that has loaded them long ago.
    #[serde(skip_serializing_if = "Option::is_none")]
    load_seconds: Option<f64>,
    hooks: Vec<HookRow>,
}

pub(super) fn run(arguments: &ProbesArgs) -> Result<Exit, Problem> {
    let (hooks, load_seconds) = match &arguments.run_dir {
        Some(run_dir) => (of_daemon(run_dir)?, None),
        None => tried()?,
    };
    let report = ProbesReport { schema_version: SCHEMA_VERSION, load_seconds, hooks };
    match arguments.output {
        Output::Json => output::print_json(&report)?,
        Output::Table => output::print(&text(&report))?,
    }
    Ok(if report.hooks.iter().all(|hook| hook.is_attached) { Exit::Ok } else { Exit::Degraded })
}

fn none() -> Problem {
    Problem::new(Exit::Failed, "no kernel probes")
}

/// Loads and attaches them.
fn tried() -> Result<(Vec<HookRow>, Option<f64>), Problem> {
    let began = Instant::now();
    let observer = Observer::start(1);
    let load_seconds = began.elapsed().as_secs_f64();
    match observer.cause() {
        None => Ok((observer.hooks(), Some(load_seconds))),
        Some(cause) => Err(none().found(cause.to_string()).fix(cause.fix())),
    }
}

/// What a daemon that runs says of its own.
fn of_daemon(run_dir: &Path) -> Result<Vec<HookRow>, Problem> {
    let report: StatusReport = client::get(run_dir, "/v1/status")?;
    let line = report.subsystems.into_iter().find(|line| line.name == "probes");
    told(report.hooks, line)
}

/// The hooks that a daemon tells of, or why it tells of none: by its line `probes`.
fn told(hooks: Vec<HookRow>, line: Option<Subsystem>) -> Result<Vec<HookRow>, Problem> {
    match line {
        _ if !hooks.is_empty() => Ok(hooks),
        // Some are missing where that is degraded.
        Some(line) if line.state == Health::Ok || line.detail.contains(HOOKS_ATTACHED) => {
            Err(Problem::new(Exit::Failed, "this daemon does not tell what became of each hook")
                .found(line.detail)
                .needed("a daemon of this release")
                .fix("weir probes, which tries them on this machine; or restart the daemon"))
        }
        Some(line) => Err(none().found(line.reason.unwrap_or_default()).fix(line.fix.unwrap_or_default())),
        None => Err(none()),
    }
}

fn text(report: &ProbesReport) -> String {
    let rows: Vec<Vec<String>> = report
        .hooks
        .iter()
        .map(|hook| {
            let verified = hook.verified_instructions.map_or("-".to_owned(), |count| count.to_string());
            let place = hook.point.clone().or_else(|| hook.missing.clone()).unwrap_or_default();
            let state = if hook.is_attached { "attached" } else { "missing" };
            vec![hook.event.clone(), state.to_owned(), verified, place]
        })
        .collect();
    let head =
        [("event", Align::Left), ("state", Align::Left), ("verified", Align::Right), ("hook", Align::Left)];
    let mut text = output::table(&head, &rows);
    if let Some(seconds) = report.load_seconds {
        text.push_str(&format!("\nloaded and attached in {:.0} ms\n", seconds * 1e3));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_that_has_probes_and_does_not_tell_of_hooks_is_not_one_without_probes() {
        let attached = Subsystem::ok("probes", "5 of 5 hooks attached, 0 sockets watched");
        let some =
            Subsystem::degraded("probes", "4 of 5 hooks attached, 0 sockets watched", "hook missing: x", "y");
        for line in [attached, some] {
            let text = told(Vec::new(), Some(line.clone())).unwrap_err().to_string();
            assert!(text.contains("does not tell") && text.contains(&line.detail), "{text}");
            assert!(!text.contains("no kernel probes"), "{text}");
        }
        let refused = Subsystem::degraded("probes", "sockets are sampled", "no CAP_BPF: x", "setcap y");
        let text = told(Vec::new(), Some(refused)).unwrap_err().to_string();
        assert_eq!(text, "no kernel probes; found no CAP_BPF: x; fix: setcap y");
        assert_eq!(told(Vec::new(), None).unwrap_err().to_string(), "no kernel probes");
    }

    #[test]
    fn a_hook_is_a_line_with_its_place_or_with_what_is_lost() {
        let row = |event: &str, point: Option<&str>, missing: Option<&str>| HookRow {
            event: event.to_owned(),
            is_attached: point.is_some(),
            point: point.map(str::to_owned),
            verified_instructions: point.map(|_| 1234),
            missing: missing.map(str::to_owned),
        };
        let lost = "this kernel has no tp_btf/tcp_retransmit_skb: lost: when a segment was last sent again; how many were is known";
        let hooks = vec![
            row("segment arrives", Some("tp_btf/tcp_probe"), None),
            row("segment is sent again", None, Some(lost)),
        ];
        let report = ProbesReport { schema_version: 1, load_seconds: Some(0.0801), hooks };
        assert_eq!(
            text(&report),
            "EVENT                  STATE     VERIFIED  HOOK\n\
             segment arrives        attached      1234  tp_btf/tcp_probe\n\
             segment is sent again  missing          -  this kernel has no tp_btf/tcp_retransmit_skb: lost: when a \
             segment was last sent again; how many were is known\n\nloaded and attached in 80 ms\n"
        );
    }
}
