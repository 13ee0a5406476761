//! A daemon under each limit that may be put on it: the tests of `daemon/tests/limits.rs` by themselves, with what was said of
//! each limit; then where the rest is shown, which needs a machine or a service manager of its own.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use crate::hugepages::Hugepages;
use crate::process::{self, Outcome};
use crate::test::NOT_RUN;

/// Free 2 MiB pages that those tests use.
const HUGEPAGES: u64 = 12;

/// How the lines begin that say what became of a limit.
const SAID: &str = "limit: ";

/// What is not a limit of one process or group.
const ELSEWHERE: [(&str, &str); 2] = [
    (
        "kernel.io_uring_disabled=2",
        "it is a switch of the whole machine; `cargo xtask lab qemu` sets it in one of its own",
    ),
    ("a system call filter without io_uring", "it takes a service manager; `cargo xtask lab nspawn` has one"),
];

/// Runs them.
///
/// # Errors
/// One fails: then all that it printed was passed on.
pub(super) fn run() -> Outcome {
    let (hugepages, text) = Hugepages::reserve(HUGEPAGES);
    println!("limits: {text}");
    let mut command = process::command(process::cargo_program());
    command.args([
        "test",
        "--quiet",
        "--package",
        "weir",
        "--locked",
        "--test",
        "limits",
        "--",
        "--show-output",
    ]);
    let line = process::describe(&command);
    let mut child =
        command.stdout(Stdio::piped()).spawn().map_err(|error| format!("cannot start `{line}`: {error}"))?;
    let output = child.stdout.take().ok_or_else(|| format!("`{line}` has no output"))?;
    let printed: Vec<String> = BufReader::new(output).lines().map_while(Result::ok).collect();
    let status = child.wait().map_err(|error| format!("cannot wait for `{line}`: {error}"))?;
    drop(hugepages);
    if !status.success() {
        printed.iter().for_each(|text| println!("{text}"));
        return process::expect_success(&line, status);
    }
    let mut not_run = 0;
    for text in printed.iter().filter_map(|text| shown(text)) {
        not_run += usize::from(text.contains(NOT_RUN));
        println!("limits: {text}");
    }
    for (what, why) in ELSEWHERE {
        println!("limits: {NOT_RUN} {what} ({why})");
    }
    println!("limits: all hold; {} could not run here", not_run + ELSEWHERE.len());
    Ok(())
}

/// What of a line that a test has printed is for people.
fn shown(line: &str) -> Option<&str> {
    let name = line.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" stdout ----"));
    name.or_else(|| line.strip_prefix(SAID)).or_else(|| line.starts_with(NOT_RUN).then_some(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_tests_and_what_was_said_are_shown_and_nothing_else() {
        let lines = [
            ("---- a_full_disk stdout ----", Some("a_full_disk")),
            ("limit: no space", Some("no space")),
            ("test a_full_disk ... ok", None),
            ("successes:", None),
        ];
        for (line, expected) in lines {
            assert_eq!(shown(line), expected, "{line}");
        }
        let left_out = format!("{NOT_RUN} a full disk (needs root)");
        assert_eq!(shown(&left_out), Some(&*left_out));
    }
}
