//! The kernel: its release, what was switched off in it, and what it shows of itself.

use super::process::ProcessFacts;
use super::{Row, State};
use crate::config::{Config, ProbesMode};
use crate::observe::probes::cause::Cause;
use crate::observe::sockets::SAMPLES;
use crate::root::{Root, Unread};

/// The oldest release that Weir is made for.
const OLDEST: (u32, u32) = (6, 1);

/// With what type information begins, in the order of bytes of either kind of machine.
const BTF_MAGIC: [[u8; 2]; 2] = [[0x9f, 0xeb], [0xeb, 0x9f]];

const TYPES: &str = "/sys/kernel/btf/vmlinux";

/// What the kernel says of itself.
#[derive(Clone, Debug)]
pub struct KernelFacts {
    /// Its release, as `uname -r` shows it.
    pub release: String,
    /// `kernel.io_uring_disabled`: 0 for nobody, 1 for all but one group, 2 for everybody.
    pub io_uring_disabled: Result<u32, Unread>,
    /// That group.
    pub io_uring_group: Option<i64>,
    /// The first bytes of its type information.
    pub types: Result<Vec<u8>, Unread>,
    /// The modes of lockdown, the one that holds in brackets.
    pub lockdown: Result<String, Unread>,
    /// `kernel.ftrace_enabled`.
    pub ftrace_enabled: Result<u32, Unread>,
}

impl KernelFacts {
    /// Reads them. `release` is that of the kernel that runs.
    #[must_use]
    pub fn read(root: &Root, release: String) -> Self {
        Self {
            release,
            io_uring_disabled: root.number("/proc/sys/kernel/io_uring_disabled"),
            io_uring_group: root.number("/proc/sys/kernel/io_uring_group").ok(),
            types: root.bytes(TYPES, 2),
            lockdown: root.text("/sys/kernel/security/lockdown"),
            ftrace_enabled: root.number("/proc/sys/kernel/ftrace_enabled"),
        }
    }
}

/// Judges.
#[must_use]
pub fn rows(facts: &KernelFacts, process: &ProcessFacts, config: &Config) -> Vec<Row> {
    let probes = config.observe.probes;
    vec![
        release(&facts.release),
        io_uring_disabled(facts, process),
        types(&facts.types, probes),
        lockdown(&facts.lockdown, probes),
        ftrace(&facts.ftrace_enabled, probes),
    ]
}

fn release(found: &str) -> Row {
    let wanted = format!("Linux {}.{} or later", OLDEST.0, OLDEST.1);
    let row = Row::new("kernel", wanted, format!("Linux {found}"));
    match version(found) {
        Some(version) if version >= OLDEST => row,
        Some(_) => row.degraded(
            "what Weir needs of io_uring came with 6.1; whether a distribution brought it here, the rows below say",
            "a kernel from 6.1 on: that of a newer release of the distribution, or its backport",
        ),
        None => row.in_state(State::Unknown, "", ""),
    }
}

/// The first two numbers of a release.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn io_uring_disabled(facts: &KernelFacts, process: &ProcessFacts) -> Row {
    let wanted = "0, or 1 with the daemon in kernel.io_uring_group";
    let name = "io_uring_disabled";
    let value = match &facts.io_uring_disabled {
        Ok(value) => *value,
        // Kernels before 6.6 have no such switch.
        Err(unread) if unread.is_absent() => return Row::new(name, wanted, "this kernel has no such switch"),
        Err(unread) => return Row::unknown(name, wanted, unread),
    };
    let row = Row::new(name, wanted, format!("kernel.io_uring_disabled is {value}"));
    let effect = "io_uring is refused: the daemon does not start";
    match value {
        0 => row,
        1 if process.may_use_io_uring_of(facts.io_uring_group) => row,
        1 => row.failed(
            effect,
            "sysctl kernel.io_uring_disabled=0, or sysctl kernel.io_uring_group=$(id -g weir)",
        ),
        _ => row.failed(effect, "sysctl kernel.io_uring_disabled=0"),
    }
}

fn types(found: &Result<Vec<u8>, Unread>, mode: ProbesMode) -> Row {
    let wanted = "type information (BTF), for kernel probes";
    if mode == ProbesMode::Off {
        return Row::off("btf", wanted, Cause::SwitchedOff.to_string());
    }
    let problem = match found {
        Ok(bytes) if BTF_MAGIC.iter().any(|magic| bytes.starts_with(magic)) => {
            return Row::new("btf", wanted, format!("{TYPES} is there"));
        }
        Ok(_) => format!("{TYPES}: it is no type information (BTF)"),
        Err(unread) => unread.to_string(),
    };
    let cause = Cause::NoTypes { problem };
    let state = if mode == ProbesMode::Require { State::Failed } else { State::Degraded };
    Row::new("btf", wanted, cause.to_string()).in_state(state, SAMPLES, cause.fix())
}

fn lockdown(found: &Result<String, Unread>, mode: ProbesMode) -> Row {
    let wanted = "none or integrity, for kernel probes";
    if mode == ProbesMode::Off {
        return Row::off("lockdown", wanted, Cause::SwitchedOff.to_string());
    }
    let text = match found {
        Ok(text) => text,
        Err(unread) => return Row::unknown("lockdown", wanted, unread),
    };
    let holds = text.split(['[', ']']).nth(1).unwrap_or(text);
    let row = Row::new("lockdown", wanted, holds);
    if holds != "confidentiality" {
        return row;
    }
    let state = if mode == ProbesMode::Require { State::Failed } else { State::Degraded };
    row.in_state(
        state,
        SAMPLES,
        "lockdown=integrity on the kernel's command line, and a restart of the machine",
    )
}

fn ftrace(found: &Result<u32, Unread>, mode: ProbesMode) -> Row {
    let wanted = "1, for kernel probes at functions";
    if mode == ProbesMode::Off {
        return Row::off("ftrace_enabled", wanted, Cause::SwitchedOff.to_string());
    }
    match found {
        Ok(0) => Row::new("ftrace_enabled", wanted, "0").degraded(
            "probes at functions never run: those of sends and reads, where the kernel has no tracepoint for them",
            "sysctl kernel.ftrace_enabled=1, and a restart of weir",
        ),
        Ok(value) => Row::new("ftrace_enabled", wanted, value.to_string()),
        Err(unread) if unread.is_absent() => {
            Row::new("ftrace_enabled", wanted, "this kernel has no such switch")
        }
        Err(unread) => Row::unknown("ftrace_enabled", wanted, unread),
    }
}

#[cfg(test)]
mod tests {
    use super::super::process::tests::{LIMITS, STATUS, process};
    use super::*;
    use crate::root::machine;

    const FINE: [(&str, &str); 5] = [
        ("/proc/sys/kernel/io_uring_disabled", "0\n"),
        ("/proc/sys/kernel/io_uring_group", "-1\n"),
        ("/sys/kernel/btf/vmlinux", "\u{0}"),
        ("/sys/kernel/security/lockdown", "none [integrity] confidentiality\n"),
        ("/proc/sys/kernel/ftrace_enabled", "1\n"),
    ];

    /// A kernel with these files in place of the fine ones. No text: there is no such file.
    fn kernel(changed: &[(&str, Option<&str>)]) -> KernelFacts {
        let mut files: Vec<(&str, &str)> = FINE.to_vec();
        for (path, text) in changed {
            files.retain(|(other, _)| other != path);
            files.extend(text.map(|text| (*path, text)));
        }
        let (_directory, root) = machine(&files);
        let types = root.locate(TYPES);
        if types.exists() && std::fs::read(&types).unwrap() == [0] {
            std::fs::write(types, [0x9f, 0xeb, 1, 0]).unwrap();
        }
        KernelFacts::read(&root, "6.12.9-amd64".to_owned())
    }

    fn row(name: &str, facts: &KernelFacts, mode: ProbesMode) -> Row {
        let mut config = Config::default();
        config.observe.probes = mode;
        let process = process(STATUS, LIMITS);
        rows(facts, &process, &config).into_iter().find(|row| row.name == name).unwrap()
    }

    #[test]
    fn a_kernel_with_everything_is_fine_in_every_row() {
        for row in rows(&kernel(&[]), &process(STATUS, LIMITS), &Config::default()) {
            assert_eq!((row.state, &*row.effect, &*row.fix), (State::Ok, "", ""), "{row:?}");
        }
    }

    #[test]
    fn an_old_release_is_a_doubt_and_no_verdict() {
        for (release, expected) in [
            ("6.1.0-57-cloud-amd64", State::Ok),
            ("6.18.44-fc", State::Ok),
            ("7.0", State::Ok),
            ("6.0.19", State::Degraded),
            ("5.15.0-91-generic", State::Degraded),
            ("unheard-of", State::Unknown),
        ] {
            assert_eq!(super::release(release).state, expected, "{release}");
        }
    }

    #[test]
    fn the_switch_of_io_uring_is_off_for_nobody_or_not_for_the_daemons_group() {
        let switch = "/proc/sys/kernel/io_uring_disabled";
        let group = "/proc/sys/kernel/io_uring_group";
        for (value, of, expected) in [
            (Some("0"), "-1", State::Ok),
            (None, "-1", State::Ok),
            (Some("1"), "990", State::Ok),
            (Some("1"), "-1", State::Failed),
            (Some("1"), "991", State::Failed),
            (Some("2"), "990", State::Failed),
            (Some("x"), "990", State::Unknown),
        ] {
            let facts = kernel(&[(switch, value), (group, Some(of))]);
            let row = row("io_uring_disabled", &facts, ProbesMode::Auto);
            assert_eq!(row.state, expected, "{value:?} {of}");
            assert_eq!(row.fix.contains("sysctl kernel.io_uring_disabled=0"), expected == State::Failed);
        }
    }

    #[test]
    fn missing_type_information_is_told_as_in_the_status() {
        for (text, word) in
            [(None, "there is no /sys/kernel/btf/vmlinux"), (Some("no"), "it is no type information")]
        {
            let facts = kernel(&[(TYPES, text)]);
            let found = row("btf", &facts, ProbesMode::Auto);
            assert_eq!(found.state, State::Degraded);
            assert!(
                found.found.starts_with("no type information: ") && found.found.contains(word),
                "{found:?}"
            );
            assert_eq!(row("btf", &facts, ProbesMode::Require).state, State::Failed);
            assert_eq!(row("btf", &facts, ProbesMode::Off).state, State::Off);
        }
    }

    #[test]
    fn lockdown_counts_where_it_keeps_probes_from_reading() {
        let path = "/sys/kernel/security/lockdown";
        for (text, mode, expected) in [
            (Some("[none] integrity confidentiality"), ProbesMode::Auto, State::Ok),
            (Some("none [integrity] confidentiality"), ProbesMode::Auto, State::Ok),
            (Some("none integrity [confidentiality]"), ProbesMode::Auto, State::Degraded),
            (Some("none integrity [confidentiality]"), ProbesMode::Require, State::Failed),
            (Some("none integrity [confidentiality]"), ProbesMode::Off, State::Off),
            (None, ProbesMode::Auto, State::Unknown),
        ] {
            let row = row("lockdown", &kernel(&[(path, text)]), mode);
            assert_eq!(row.state, expected, "{text:?} {mode:?}");
        }
    }

    #[test]
    fn functions_that_cannot_be_traced_are_a_loss_to_probes() {
        let path = "/proc/sys/kernel/ftrace_enabled";
        for (text, expected) in [(Some("0"), State::Degraded), (Some("1"), State::Ok), (None, State::Ok)] {
            let row = row("ftrace_enabled", &kernel(&[(path, text)]), ProbesMode::Auto);
            assert_eq!(row.state, expected, "{text:?}");
            assert_eq!(row.fix.contains("sysctl kernel.ftrace_enabled=1"), expected == State::Degraded);
        }
    }
}
