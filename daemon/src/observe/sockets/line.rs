//! The line `probes` of `weir status`.

use super::{Observer, ObserverState};
use crate::control::snapshot::{Health, HookRow, Subsystem};
use crate::observe::probes::cause::Cause;
use crate::observe::probes::hooks::{HookState, Need, Outcome};

/// The name of the line.
const NAME: &str = "probes";

/// By what the line says that there are probes.
pub(crate) const HOOKS_ATTACHED: &str = "hooks attached";

/// What there is without probes.
pub(crate) const SAMPLES: &str = "sockets of links are sampled: their times are approximate";

impl Observer {
    /// What became of each hook; none without probes.
    pub(crate) fn hooks(&self) -> Vec<HookRow> {
        match self.state() {
            ObserverState::Probes { hooks, .. } => hooks.iter().map(hook).collect(),
            ObserverState::Samples(_) => Vec::new(),
        }
    }

    /// How observing is done, as one line.
    pub(crate) fn line(&self) -> Subsystem {
        line(&self.state())
    }
}

/// One hook as it is shown.
fn hook(state: &HookState) -> HookRow {
    let (point, verified_instructions) = match &state.outcome {
        Outcome::Attached { point, verified, .. } => (Some(point.to_string()), *verified),
        Outcome::Absent | Outcome::Refused { .. } => (None, None),
    };
    HookRow {
        event: state.hook.name.to_owned(),
        is_attached: state.is_attached(),
        point,
        verified_instructions,
        missing: state.missing(),
    }
}

fn line(state: &ObserverState) -> Subsystem {
    match state {
        ObserverState::Samples(cause) => without(cause),
        ObserverState::Probes { hooks, watched, unwatched_total, stalls_lost_total } => {
            let attached = hooks.iter().filter(|hook| hook.is_attached()).count();
            let detail = format!("{attached} of {} {HOOKS_ATTACHED}, {watched} sockets watched", hooks.len());
            match first_loss(hooks, *unwatched_total, *stalls_lost_total) {
                None => Subsystem::ok(NAME, detail),
                Some((reason, fix)) => Subsystem::degraded(NAME, detail, reason, fix),
            }
        }
    }
}

fn without(cause: &Cause) -> Subsystem {
    let (state, detail) =
        (if cause.is_intended() { Health::Off } else { Health::Degraded }, SAMPLES.to_owned());
    let fix = Some(cause.fix().to_owned()).filter(|fix| !fix.is_empty());
    Subsystem { name: NAME.to_owned(), state, detail, reason: Some(cause.to_string()), fix }
}

/// What is lost, the heaviest first, and what would help.
fn first_loss(hooks: &[HookState], unwatched: u64, stalls_lost: u64) -> Option<(String, &'static str)> {
    let missing: Vec<String> = hooks.iter().filter_map(HookState::missing).collect();
    let wanted = hooks.iter().any(|hook| hook.hook.need == Need::Wanted && !hook.is_attached());
    if !missing.is_empty() {
        let reason = format!("hook missing: {}", missing.join("; "));
        let fix = if wanted {
            "kernel 6.16, or one that lets programs stand at functions"
        } else {
            "a newer kernel"
        };
        return Some((reason, fix));
    }
    if unwatched > 0 {
        let reason = format!("no place: {unwatched} sockets were not watched, and are sampled");
        return Some((reason, "fewer data links; a place that was given back rests for a second"));
    }
    (stalls_lost > 0).then(|| {
        let reason = format!("ring full: {stalls_lost} finished stalls were not told; all sums have them");
        (reason, "more CPU time for the daemon, which empties the ring once a second")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::probes::hooks::{HOOKS, Point};

    const PAGE: &str = include_str!("../../../../docs/operations.md");

    fn hooks(outcome: impl Fn(usize) -> Outcome) -> Vec<HookState> {
        let states = HOOKS.iter().enumerate();
        states.map(|(number, hook)| HookState { hook, outcome: outcome(number) }).collect()
    }

    fn attached() -> Outcome {
        Outcome::Attached { program: "x", point: Point::Tracepoint("x"), verified: None }
    }

    fn with(hooks: Vec<HookState>, unwatched_total: u64, stalls_lost_total: u64) -> Subsystem {
        line(&ObserverState::Probes { hooks, watched: 3, unwatched_total, stalls_lost_total })
    }

    /// The state, and the first words of the reason.
    fn row(line: &Subsystem) -> String {
        let state = match line.state {
            Health::Ok => return "| `probes` | always OK".replace("always OK", "OK"),
            Health::Degraded => "DEGRADED",
            Health::Off => "OFF",
        };
        let reason = line.reason.as_deref().unwrap_or_default();
        format!("| `probes` | {state}: {}", reason.split(": ").next().unwrap_or_default())
    }

    #[test]
    fn a_hook_is_shown_with_its_place_or_with_what_is_lost() {
        let point = Point::Tracepoint("tcp_probe");
        let attached = Outcome::Attached { program: "weir_segment", point, verified: Some(1234) };
        let row = hook(&HookState { hook: &HOOKS[0], outcome: attached });
        assert_eq!(
            (row.is_attached, row.point.as_deref(), row.verified_instructions),
            (true, Some("tp_btf/tcp_probe"), Some(1234))
        );
        let row = hook(&HookState { hook: &HOOKS[4], outcome: Outcome::Absent });
        assert_eq!((row.is_attached, row.point, row.event.as_str()), (false, None, "segment is sent again"));
        assert!(row.missing.is_some_and(|missing| {
            missing.starts_with("this kernel has no tp_btf/tcp_retransmit_skb: lost: ")
        }));
    }

    #[test]
    fn every_cause_and_every_loss_is_a_line_of_its_own_that_the_page_for_operators_explains() {
        let all = || hooks(|_| attached());
        let mut lines: Vec<Subsystem> =
            Cause::one_of_each().into_iter().map(|cause| line(&ObserverState::Samples(cause))).collect();
        for number in 1..HOOKS.len() {
            lines.push(with(hooks(|at| if at == number { Outcome::Absent } else { attached() }), 0, 0));
        }
        lines.push(with(all(), 2, 0));
        lines.push(with(all(), 0, 5));
        let mut seen = std::collections::BTreeSet::new();
        for line in lines {
            assert!(line.reason.is_some(), "{line:?}");
            assert!(seen.insert(line.reason.clone()), "told twice: {line:?}");
            let row = row(&line);
            assert!(PAGE.contains(&row), "docs/operations.md has no row {row}");
        }
        let whole = with(all(), 0, 0);
        assert_eq!(
            (whole.state, whole.detail.as_str()),
            (Health::Ok, "5 of 5 hooks attached, 3 sockets watched")
        );
    }

    #[test]
    fn what_is_lost_is_told_with_its_number_and_its_name() {
        let refused = Outcome::Refused { reason: "fentry/tcp_sendmsg_locked is refused (EPERM)".to_owned() };
        let line = with(hooks(|at| if at == 1 { refused.clone() } else { attached() }), 7, 7);
        let reason = line.reason.unwrap();
        assert!(reason.contains("fentry/tcp_sendmsg_locked is refused (EPERM): lost: idle time"), "{reason}");
        assert!(with(hooks(|_| attached()), 7, 0).reason.unwrap().contains(" 7 sockets"));
        assert!(with(hooks(|_| attached()), 0, 9).reason.unwrap().contains(" 9 finished stalls"));
    }
}
