//! `weir probes`: whether the kernel probes run on this machine, hook by hook.

use std::time::Instant;

use clap::Args;
use serde::Serialize;

use super::output::{self, Align, Output};
use crate::control::snapshot::SCHEMA_VERSION;
use crate::exit::{Exit, Problem};
use crate::observe::probes::hooks::{HookState, Outcome};
use crate::observe::sockets::{Observer, ObserverState};

/// Load the kernel probes of this program, show what became of each hook, and take them out again.
///
/// Needs what the daemon needs for them: CAP_BPF and CAP_PERFMON. No daemon is asked, and none is disturbed.
///
/// Exit codes: 0 every hook is attached, 3 some are not, 1 there are no probes, with the reason.
#[derive(Args, Debug)]
pub(super) struct ProbesArgs {
    /// Form of the output.
    #[arg(long, value_enum, default_value_t)]
    output: Output,
}

/// The answer in JSON.
#[derive(Debug, Serialize)]
struct ProbesReport {
    schema_version: u32,
    /// Time from the object to the last attached program.
    load_seconds: f64,
    hooks: Vec<HookRow>,
}

/// One hook.
#[derive(Debug, Serialize)]
struct HookRow {
    /// The event that it stands for.
    event: &'static str,
    /// Whether a program is attached.
    is_attached: bool,
    /// Where it stands.
    point: Option<String>,
    /// Instructions that the verifier walked; `null` where the kernel does not tell.
    verified_instructions: Option<u32>,
    /// What is missing, why, and what is lost.
    missing: Option<String>,
}

pub(super) fn run(arguments: &ProbesArgs) -> Result<Exit, Problem> {
    let began = Instant::now();
    let observer = Observer::start(1);
    let load_seconds = began.elapsed().as_secs_f64();
    let hooks = match observer.state() {
        ObserverState::Probes { hooks, .. } => hooks,
        ObserverState::Samples(cause) => {
            return Err(Problem::new(Exit::Failed, "no kernel probes")
                .found(cause.to_string())
                .fix(cause.fix()));
        }
    };
    let report =
        ProbesReport { schema_version: SCHEMA_VERSION, load_seconds, hooks: hooks.iter().map(row).collect() };
    match arguments.output {
        Output::Json => output::print_json(&report)?,
        Output::Table => output::print(&text(&report))?,
    }
    Ok(if report.hooks.iter().all(|hook| hook.is_attached) { Exit::Ok } else { Exit::Degraded })
}

fn row(state: &HookState) -> HookRow {
    let (point, verified_instructions) = match &state.outcome {
        Outcome::Attached { point, verified, .. } => (Some(point.to_string()), *verified),
        Outcome::Absent | Outcome::Refused { .. } => (None, None),
    };
    HookRow {
        event: state.hook.name,
        is_attached: state.is_attached(),
        point,
        verified_instructions,
        missing: state.missing(),
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
            vec![hook.event.to_owned(), state.to_owned(), verified, place]
        })
        .collect();
    let head =
        [("event", Align::Left), ("state", Align::Left), ("verified", Align::Right), ("hook", Align::Left)];
    let mut text = output::table(&head, &rows);
    text.push_str(&format!("\nloaded and attached in {:.0} ms\n", report.load_seconds * 1e3));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::probes::hooks::{HOOKS, Point};

    #[test]
    fn a_hook_is_a_line_with_its_place_or_with_what_is_lost() {
        let point = Point::Tracepoint("tcp_probe");
        let outcome = Outcome::Attached { program: "weir_segment", point, verified: Some(1234) };
        let hooks =
            [HookState { hook: &HOOKS[0], outcome }, HookState { hook: &HOOKS[4], outcome: Outcome::Absent }];
        let report =
            ProbesReport { schema_version: 1, load_seconds: 0.0801, hooks: hooks.iter().map(row).collect() };
        assert_eq!(
            text(&report),
            "EVENT                  STATE     VERIFIED  HOOK\n\
             segment arrives        attached      1234  tp_btf/tcp_probe\n\
             segment is sent again  missing          -  this kernel has no tp_btf/tcp_retransmit_skb: lost: when a \
             segment was last sent again; how many were is known\n\nloaded and attached in 80 ms\n"
        );
    }
}
