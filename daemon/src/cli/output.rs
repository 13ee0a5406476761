//! Standard output: text, tables and JSON, and what happens when nobody reads it any more.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;

use clap::ValueEnum;
use rustix::event::{PollFd, PollFlags, poll};
use serde::Serialize;

use crate::exit::{Exit, Problem};

/// Form of what a command prints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Output {
    /// Aligned columns, for people.
    #[default]
    Table,
    /// One JSON object with `schema_version` first, for programs.
    Json,
}

/// Whether the command line asks for JSON, known before it is parsed: it may be wrong in other places.
pub(super) fn wants_json(arguments: &[OsString]) -> bool {
    // What is behind `--` is another program's command line.
    let arguments = arguments.split(|argument| argument == "--").next().unwrap_or_default();
    let is_pair = arguments.windows(2).any(|pair| pair[0] == "--output" && pair[1] == "json");
    is_pair || arguments.iter().any(|argument| argument == "--output=json" || argument == "--json")
}

/// A stream to write to that may be set not to block, as a parent process can leave it: a write waits all the same.
pub(super) struct Patient<F>(pub(super) F);

impl<F: Write + AsFd> Write for Patient<F> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match self.0.write(bytes) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    poll(&mut [PollFd::new(&self.0, PollFlags::OUT)], None)?;
                }
                outcome => return outcome,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Standard output without a buffer of its own.
pub(super) fn standard_output() -> Result<Patient<File>, Problem> {
    let stdout = io::stdout().as_fd().try_clone_to_owned().map_err(|e| write_problem(&e))?;
    Ok(Patient(File::from(stdout)))
}

/// Prints `text` as it is.
pub(super) fn print(text: &str) -> Result<(), Problem> {
    done(standard_output()?.write_all(text.as_bytes()))
}

/// Says something on standard error, as `weir: TEXT`. That it cannot be said is no reason to end otherwise.
pub(super) fn say(text: &str) {
    let _ = writeln!(io::stderr(), "weir: {text}");
}

/// Prints one JSON object and a newline.
pub(super) fn print_json<T: Serialize>(value: &T) -> Result<(), Problem> {
    let text = serde_json::to_string(value)
        .map_err(|e| Problem::new(Exit::Failed, "cannot write JSON").found(e.to_string()))?;
    print(&format!("{text}\n"))
}

/// What a write to standard output means: nobody reading is no failure.
pub(super) fn done(written: io::Result<()>) -> Result<(), Problem> {
    match written {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => Err(write_problem(&e)),
        _ => Ok(()),
    }
}

/// The problem that standard output cannot be written.
pub(super) fn write_problem(error: &io::Error) -> Problem {
    Problem::new(Exit::Failed, "cannot write standard output")
        .found(error.to_string())
        .needed("a file, pipe or terminal that takes data")
        .fix("the redirection after `>` or `|`")
}

/// How a column is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Align {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// A table of aligned columns with one space's gutter of two, its head in capitals, no trailing spaces.
pub(super) fn table(head: &[(&str, Align)], rows: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = head.iter().map(|(name, _)| name.chars().count()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let first = head.iter().map(|(name, _)| name.to_uppercase()).collect::<Vec<_>>();
    let mut text = String::new();
    for row in std::iter::once(&first).chain(rows) {
        let mut line = String::new();
        for ((cell, width), (_, align)) in row.iter().zip(&widths).zip(head) {
            match align {
                Align::Left => line.push_str(&format!("{cell:<width$}  ")),
                Align::Right => line.push_str(&format!("{cell:>width$}  ")),
            }
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_nothing_trails() {
        let rows = vec![vec!["edge".into(), "5".into()], vec!["e".into(), "12345".into()]];
        let text = table(&[("exchange", Align::Left), ("credit", Align::Right)], &rows);
        assert_eq!(text, "EXCHANGE  CREDIT\nedge           5\ne          12345\n");
    }

    #[test]
    fn json_is_asked_for_in_each_form_of_this_command_line() {
        let words = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
        assert!(wants_json(&words("weir status --output json")));
        assert!(wants_json(&words("weir status --output=json --bad")));
        assert!(wants_json(&words("weir plan --json")));
        assert!(!wants_json(&words("weir pipe -- jq --json")));
        assert!(!wants_json(&words("weir pipe -- weir status --output json")));
        assert!(!wants_json(&words("weir status --output table json")));
    }
}
