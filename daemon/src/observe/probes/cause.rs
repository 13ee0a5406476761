//! Why the probes do not run. Each cause is another one for the operator, so each has its own words and its own cure.

use std::fmt;

use weir_ebpf_abi::Missing;

/// Why there are no probes, so that the state of sockets is sampled instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// `observe.probes` is `off`.
    SwitchedOff,
    /// The program has none in it.
    BuiltWithout {
        /// What was missing when it was built.
        reason: &'static str,
    },
    /// The thread that loads them has neither capability, or only `CAP_PERFMON`.
    NoBpfCapability,
    /// It has `CAP_BPF` alone: maps can be made, programs not.
    OnlyBpfCapability,
    /// The `bpf` call itself is refused, whatever it asks for: a system call filter.
    CallRefused {
        /// What it answers.
        errno: String,
    },
    /// The kernel's type information cannot be read.
    NoTypes {
        /// Where it was looked for, and what is wrong there.
        problem: String,
    },
    /// The kernel has no such member in a structure that the probes read.
    NoMember(Missing),
    /// The object and the daemon disagree about the records that they share.
    StaleObject {
        /// What differs.
        problem: String,
    },
    /// The kernel refuses the object or its maps.
    Rejected {
        /// What the kernel says.
        problem: String,
    },
    /// The one hook that nothing works without cannot be attached.
    NoBase {
        /// Its name, and why.
        problem: String,
    },
}

impl Cause {
    /// The cause in a few words, the same for every occasion.
    pub(crate) const fn title(&self) -> &'static str {
        match self {
            Self::SwitchedOff => "switched off",
            Self::BuiltWithout { .. } => "built without",
            Self::NoBpfCapability => "no CAP_BPF",
            Self::OnlyBpfCapability => "no CAP_PERFMON",
            Self::CallRefused { .. } => "bpf() refused",
            Self::NoTypes { .. } => "no type information",
            Self::NoMember(_) => "unknown kernel",
            Self::StaleObject { .. } => "stale object",
            Self::Rejected { .. } => "object rejected",
            Self::NoBase { .. } => "no tcp_probe",
        }
    }

    /// What would cure it; empty where it is as wanted.
    pub(crate) const fn fix(&self) -> &'static str {
        match self {
            Self::SwitchedOff => "",
            Self::BuiltWithout { .. } => "cargo xtask setup, then build weir again",
            Self::NoBpfCapability | Self::OnlyBpfCapability => {
                "AmbientCapabilities=CAP_BPF CAP_PERFMON in the unit, or setcap cap_bpf,cap_perfmon+ep on weir"
            }
            Self::CallRefused { .. } => {
                "SystemCallFilter=bpf in the unit, or a container profile that allows bpf()"
            }
            Self::NoTypes { .. } => "a kernel with CONFIG_DEBUG_INFO_BTF, and /sys mounted",
            Self::NoMember(_) => "a weir that knows this kernel",
            Self::StaleObject { .. } => "build weir anew, from a clean target directory",
            Self::Rejected { .. } => "a kernel from 5.12 on, not locked down against bpf; the log has more",
            Self::NoBase { .. } => "a kernel with the tracepoint tcp_probe that lets it be used",
        }
    }

    /// Whether that is how it was meant to be.
    pub(crate) const fn is_intended(&self) -> bool {
        matches!(self, Self::SwitchedOff | Self::BuiltWithout { .. })
    }

    /// One of each, for whoever checks that all are documented.
    #[cfg(test)]
    pub(crate) fn one_of_each() -> Vec<Self> {
        let problem = || "x".to_owned();
        vec![
            Self::SwitchedOff,
            Self::BuiltWithout { reason: "x" },
            Self::NoBpfCapability,
            Self::OnlyBpfCapability,
            Self::CallRefused { errno: problem() },
            Self::NoTypes { problem: problem() },
            Self::NoMember(Missing { structure: "x", member: "y" }),
            Self::StaleObject { problem: problem() },
            Self::Rejected { problem: problem() },
            Self::NoBase { problem: problem() },
        ]
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let title = self.title();
        match self {
            Self::SwitchedOff => write!(f, "{title}: observe.probes = \"off\""),
            Self::BuiltWithout { reason } => write!(f, "{title}: {reason}"),
            Self::NoBpfCapability => write!(f, "{title}: the daemon may not use bpf()"),
            Self::OnlyBpfCapability => {
                write!(f, "{title}: the daemon has CAP_BPF alone, with which programs cannot be loaded")
            }
            Self::CallRefused { errno } => {
                write!(
                    f,
                    "{title}: {errno} whatever it is asked, although the capabilities are there: a seccomp filter"
                )
            }
            Self::NoTypes { problem } => write!(f, "{title}: {problem}"),
            Self::NoMember(Missing { structure, member }) => {
                write!(f, "{title}: its struct {structure} has no member {member} as the probes need it")
            }
            Self::StaleObject { problem } => write!(f, "{title}: {problem}"),
            Self::Rejected { problem } => write!(f, "{title}: {problem}"),
            Self::NoBase { problem } => write!(f, "{title}: {problem}"),
        }
    }
}
