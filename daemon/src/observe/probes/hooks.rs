//! Which programs are attached where, and what is lost without each.
//!
//! A hook is a place in the kernel's TCP; some can be reached in two ways. Tracepoints come first: they do without
//! changing the kernel's code, which hardened kernels refuse.

use std::fmt;

use super::btf::Btf;
use super::cause::Cause;

/// Where in the kernel a program stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Point {
    /// A tracepoint.
    Tracepoint(&'static str),
    /// The entry of a function.
    Function(&'static str),
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tracepoint(name) => write!(f, "tp_btf/{name}"),
            Self::Function(name) => write!(f, "fentry/{name}"),
        }
    }
}

/// What becomes of the rest when a hook cannot be attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// There is nothing to see.
    Base,
    /// Something is not known, or only roughly.
    Wanted,
    /// Little is lost.
    Optional,
}

/// One place, and the programs for it in the order in which they are tried.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hook {
    /// The name of the event that it stands for.
    pub(crate) name: &'static str,
    pub(crate) need: Need,
    /// What is lost without it.
    pub(crate) loss: &'static str,
    /// Program and place.
    ways: &'static [(&'static str, Point)],
}

/// The hook without which the edges of idle time are rough.
pub(crate) const SENDS: usize = 1;

/// The hook without which nothing is known of reads.
pub(crate) const READS: usize = 2;

/// Every hook. The first is the base.
pub(crate) const HOOKS: [Hook; 5] = [
    Hook {
        name: "segment arrives",
        need: Need::Base,
        loss: "all",
        ways: &[("weir_segment", Point::Tracepoint("tcp_probe"))],
    },
    Hook {
        name: "send begins",
        need: Need::Wanted,
        loss: "idle time counts as time in flight until the next segment",
        ways: &[
            ("weir_send", Point::Tracepoint("tcp_sendmsg_locked")),
            ("weir_send_entry", Point::Function("tcp_sendmsg_locked")),
        ],
    },
    Hook {
        name: "application reads",
        need: Need::Wanted,
        loss: "how long what arrived waited to be read",
        ways: &[("weir_read", Point::Tracepoint("tcp_rcv_space_adjust"))],
    },
    Hook {
        name: "connection ends",
        need: Need::Optional,
        loss: "the time between the last segment of a connection and its end",
        ways: &[("weir_state", Point::Tracepoint("inet_sock_set_state"))],
    },
    Hook {
        name: "segment is sent again",
        need: Need::Optional,
        loss: "when a segment was last sent again; how many were is known",
        ways: &[("weir_resend", Point::Tracepoint("tcp_retransmit_skb"))],
    },
];

/// What became of a hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// A program stands there.
    Attached {
        /// Which.
        program: &'static str,
        /// Where.
        point: Point,
        /// Instructions that the verifier walked, where the kernel tells.
        verified: Option<u32>,
    },
    /// This kernel has no such place.
    Absent,
    /// It has, and does not let the program stand there.
    Refused {
        /// Where, and what the kernel says.
        reason: String,
    },
}

/// A hook and what became of it.
#[derive(Clone, Debug)]
pub(crate) struct HookState {
    pub(crate) hook: &'static Hook,
    pub(crate) outcome: Outcome,
}

impl HookState {
    /// Whether a program stands there.
    pub(crate) const fn is_attached(&self) -> bool {
        matches!(self.outcome, Outcome::Attached { .. })
    }

    /// What is missing and why, in a few words; `None` if nothing is.
    pub(crate) fn missing(&self) -> Option<String> {
        let Hook { loss, ways, .. } = self.hook;
        let places: Vec<String> = ways.iter().map(|(_, point)| point.to_string()).collect();
        match &self.outcome {
            Outcome::Attached { .. } => None,
            Outcome::Absent => Some(format!("this kernel has no {}: lost: {loss}", places.join(" or "))),
            Outcome::Refused { reason } => Some(format!("{reason}: lost: {loss}")),
        }
    }
}

/// What there is to be attached to.
pub(super) trait Facts {
    /// Whether the kernel has this place, as far as its type information tells.
    fn has(&self, point: Point) -> bool;
}

impl Facts for Btf<'_> {
    fn has(&self, point: Point) -> bool {
        match point {
            Point::Tracepoint(name) => self.has_tracepoint(name),
            Point::Function(name) => self.has_function(name),
        }
    }
}

/// Who loads and attaches.
pub(super) trait Attach {
    /// Loads a program and attaches it. Returns how many instructions the verifier walked, where that is told.
    ///
    /// # Errors
    /// What the kernel says, in one line.
    fn attach(&mut self, program: &'static str, point: Point) -> Result<Option<u32>, String>;
}

/// Attaches what can be attached.
///
/// # Errors
/// The base cannot.
pub(super) fn attach_all(facts: &impl Facts, attach: &mut impl Attach) -> Result<Vec<HookState>, Cause> {
    let mut states = Vec::with_capacity(HOOKS.len());
    for hook in &HOOKS {
        let state = HookState { hook, outcome: attach_one(hook, facts, attach) };
        if hook.need == Need::Base
            && let Some(problem) = state.missing()
        {
            return Err(Cause::NoBase { problem });
        }
        states.push(state);
    }
    Ok(states)
}

fn attach_one(hook: &Hook, facts: &impl Facts, attach: &mut impl Attach) -> Outcome {
    let mut refusals = Vec::new();
    for &(program, point) in hook.ways.iter().filter(|(_, point)| facts.has(*point)) {
        match attach.attach(program, point) {
            Ok(verified) => return Outcome::Attached { program, point, verified },
            Err(problem) => refusals.push(format!("{point} is refused ({problem})")),
        }
    }
    if refusals.is_empty() { Outcome::Absent } else { Outcome::Refused { reason: refusals.join(", ") } }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A kernel that has everything but `absent`, and refuses `refused`.
    struct Kernel {
        absent: Vec<Point>,
        refused: Vec<Point>,
        attached: Vec<(&'static str, Point)>,
    }

    impl Facts for Vec<Point> {
        fn has(&self, point: Point) -> bool {
            !self.contains(&point)
        }
    }

    impl Attach for Kernel {
        fn attach(&mut self, program: &'static str, point: Point) -> Result<Option<u32>, String> {
            if self.refused.contains(&point) {
                return Err("EPERM".to_owned());
            }
            self.attached.push((program, point));
            Ok(Some(100))
        }
    }

    fn on(absent: &[Point], refused: &[Point]) -> (Result<Vec<HookState>, Cause>, Vec<&'static str>) {
        let mut kernel = Kernel { absent: absent.to_vec(), refused: refused.to_vec(), attached: Vec::new() };
        let absent = kernel.absent.clone();
        let states = attach_all(&absent, &mut kernel);
        (states, kernel.attached.iter().map(|(program, _)| *program).collect())
    }

    const SEND_POINT: Point = Point::Tracepoint("tcp_sendmsg_locked");
    const SEND_ENTRY: Point = Point::Function("tcp_sendmsg_locked");

    #[test]
    fn a_tracepoint_is_taken_before_the_function() {
        let (states, attached) = on(&[], &[]);
        assert!(states.unwrap().iter().all(HookState::is_attached));
        assert_eq!(attached, ["weir_segment", "weir_send", "weir_read", "weir_state", "weir_resend"]);
    }

    #[test]
    fn the_function_is_taken_where_there_is_no_tracepoint() {
        let (states, attached) = on(&[SEND_POINT], &[]);
        assert!(attached.contains(&"weir_send_entry") && !attached.contains(&"weir_send"));
        let outcome = &states.unwrap()[1].outcome;
        assert!(matches!(outcome, Outcome::Attached { point: SEND_ENTRY, .. }), "{outcome:?}");
    }

    #[test]
    fn what_is_refused_and_what_is_absent_is_told_by_name_with_what_is_lost() {
        let (states, attached) = on(&[SEND_POINT], &[SEND_ENTRY]);
        assert_eq!(attached.len(), 4);
        let missing = states.unwrap()[1].missing().unwrap();
        assert!(missing.starts_with("fentry/tcp_sendmsg_locked is refused (EPERM): lost: idle"), "{missing}");
        let (states, _) = on(&[SEND_POINT, SEND_ENTRY], &[]);
        let missing = states.unwrap()[1].missing().unwrap();
        assert!(
            missing.starts_with("this kernel has no tp_btf/tcp_sendmsg_locked or fentry/tcp_sendmsg_locked"),
            "{missing}"
        );
    }

    #[test]
    fn each_hook_but_the_base_can_be_missing_alone() {
        for hook in &HOOKS {
            let points: Vec<Point> = hook.ways.iter().map(|(_, point)| *point).collect();
            for (absent, refused) in [(&points[..], &[][..]), (&[], &points)] {
                let (states, _) = on(absent, refused);
                match (hook.need, states) {
                    (Need::Base, Err(cause)) => assert!(cause.to_string().contains("tcp_probe"), "{cause}"),
                    (Need::Base, Ok(_)) => panic!("attached without {}", hook.name),
                    (_, states) => {
                        let states = states.unwrap();
                        let missing: Vec<&str> = states
                            .iter()
                            .filter(|state| !state.is_attached())
                            .map(|state| state.hook.name)
                            .collect();
                        assert_eq!(missing, [hook.name]);
                    }
                }
            }
        }
    }
}
