//! The house rules that a compiler does not know. Each finding is one line: file, line, rule, value found.

mod source;

use std::fs;
use std::path::{Path, PathBuf};

use crate::process::{self, Outcome};
use source::Source;

/// Longest source file, in lines without its tests.
const FILE_LINES_MAX: usize = 600;

/// Longest function, in lines.
const FUNCTION_LINES_MAX: usize = 70;

/// The only places where `unsafe` may stand: shared memory, mappings, io_uring, kernel probes.
const UNSAFE_ALLOWED: &[&str] =
    &["daemon/ipc/", "daemon/src/memory/", "daemon/src/io/", "daemon/src/observe/", "ebpf/"];

/// Words that say that something is unfinished.
const UNFINISHED: &[&str] = &["TODO", "FIXME", "XXX", "HACK", "#[ignore"];

/// Checks every Rust file and manifest that git tracks or would track.
pub(crate) fn run() -> Outcome {
    let root = process::root();
    let mut findings = Vec::new();
    for path in tracked(&root)? {
        let name = path.to_string_lossy().into_owned();
        let Ok(text) = fs::read_to_string(root.join(&path)) else { continue };
        if name.ends_with(".rs") {
            check_source(&name, &Source::parse(&text), &mut findings);
        } else if name.ends_with("Cargo.toml") && name != "Cargo.toml" {
            check_edges(&root, &name, &text, &mut findings);
        }
    }
    check_named_tests(&root, &mut findings);
    if findings.is_empty() {
        println!("tidy: clean");
        return Ok(());
    }
    for finding in &findings {
        println!("tidy: {finding}");
    }
    Err(format!("{} findings", findings.len()))
}

fn tracked(root: &Path) -> Result<Vec<PathBuf>, String> {
    let mut git = process::command("git");
    git.current_dir(root).args(["ls-files", "-co", "--exclude-standard", "-z"]);
    let output = git.output().map_err(|error| format!("cannot start git: {error}"))?;
    process::expect_success("git ls-files", output.status)?;
    let names = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut paths: Vec<PathBuf> =
        names.split('\0').filter(|name| !name.is_empty()).map(PathBuf::from).collect();
    paths.sort();
    paths.dedup();
    Ok(paths)
}

fn check_source(name: &str, source: &Source, findings: &mut Vec<String>) {
    let is_test = name.contains("/tests/") || name.ends_with("/tests.rs");
    let lines = source.lines_without_tests();
    if lines > FILE_LINES_MAX && !is_test {
        findings.push(format!("{name}: {lines} lines; at most {FILE_LINES_MAX}: split it by idea"));
    }
    // `tests.rs` beside `x.rs` owns the tests of `x`; its name says it.
    if !source.has_module_doc() && !name.ends_with("/tests.rs") {
        findings.push(format!("{name}:1: no `//!` that says what the file owns"));
    }
    if !is_test {
        for function in source.functions() {
            if function.lines > FUNCTION_LINES_MAX {
                findings.push(format!(
                    "{name}:{}: function {} has {} lines; at most {FUNCTION_LINES_MAX}",
                    function.line, function.name, function.lines
                ));
            }
        }
    }
    if !UNSAFE_ALLOWED.iter().any(|allowed| name.starts_with(allowed)) {
        for line in source.lines_with_word("unsafe") {
            findings.push(format!("{name}:{line}: unsafe; allowed only in {}", UNSAFE_ALLOWED.join(", ")));
        }
    }
    if name != "xtask/src/tidy.rs" {
        for (line, word) in source.lines_with_any(UNFINISHED) {
            findings.push(format!("{name}:{line}: {word} left behind"));
        }
    }
}

/// Each dependency of one crate of ours on another must stand in docs/architecture.md as `` `a` → `b` ``.
fn check_edges(root: &Path, name: &str, manifest: &str, findings: &mut Vec<String>) {
    let architecture = fs::read_to_string(root.join("docs/architecture.md")).unwrap_or_default();
    let Some(from) = manifest.lines().find_map(|line| line.strip_prefix("name = ")) else { return };
    let from = from.trim().trim_matches('"');
    let mut section = "";
    for line in manifest.lines() {
        if line.starts_with('[') {
            section = line;
        }
        let Some(to) = line.split(['.', ' ', '=']).next().filter(|word| word.starts_with("weir")) else {
            continue;
        };
        let edge = format!("`{from}` → `{to}`");
        if section == "[dependencies]" && !architecture.contains(&edge) {
            findings.push(format!("{name}: dependency {edge} has no line in docs/architecture.md"));
        }
    }
}

/// Pages that name tests.
const PAGES_WITH_TESTS: &[&str] = &["docs/testing.md", "docs/operations.md"];

/// Where the tests are that they name.
const TEST_DIRECTORIES: &[&str] = &[
    "daemon/flow/tests",
    "daemon/sim/tests",
    "daemon/ipc/src",
    "daemon/src",
    "daemon/tests",
    "client/tests/loopback",
];

/// Each test that a page names, as `` `file.rs`: `name` ``, must be there.
fn check_named_tests(root: &Path, findings: &mut Vec<String>) {
    for page in PAGES_WITH_TESTS {
        let text = fs::read_to_string(root.join(page)).unwrap_or_default();
        for (number, line) in (1..).zip(text.lines()) {
            for (file, test) in named_tests(line) {
                let mut places =
                    TEST_DIRECTORIES.iter().map(|place| root.join(place).join(format!("{file}.rs")));
                let declared = format!("fn {test}(");
                if !places.any(|path| fs::read_to_string(path).is_ok_and(|text| text.contains(&declared))) {
                    findings.push(format!("{page}:{number}: there is no test {test} in {file}.rs"));
                }
            }
        }
    }
}

/// Every `` `file.rs`: `name` `` of a line.
fn named_tests(line: &str) -> Vec<(&str, &str)> {
    let pieces: Vec<&str> = line.split(".rs`: `").collect();
    pieces
        .windows(2)
        .filter_map(|pair| Some((pair[0].rsplit('`').next()?, pair[1].split('`').next()?)))
        .collect()
}
