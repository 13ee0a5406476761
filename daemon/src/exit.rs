//! How a command ends: its exit code, and the one line that says why.

use std::fmt;
use std::process::ExitCode;

use serde::Serialize;

use crate::config::ConfigError;

/// Exit codes of `weir`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Done.
    Ok = 0,
    /// It failed.
    Failed = 1,
    /// The command line is wrong.
    Usage = 2,
    /// It works, and something is degraded.
    Degraded = 3,
    /// No daemon answers.
    Unreachable = 4,
    /// The configuration is wrong.
    Config = 78,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// Why a command failed. Shown as one line: what happened, what was found, what is needed, what fixes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// What happened.
    pub what: String,
    /// The value or state found.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub found: String,
    /// The value or state needed.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub needed: String,
    /// The key or command that fixes it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub fix: String,
    /// The exit code.
    #[serde(rename = "exit_code", serialize_with = "as_number")]
    pub exit: Exit,
}

fn as_number<S: serde::Serializer>(exit: &Exit, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u8(*exit as u8)
}

impl Problem {
    /// A problem with this exit code, of which only what happened is known so far.
    #[must_use]
    pub fn new(exit: Exit, what: impl Into<String>) -> Self {
        Self { what: what.into(), found: String::new(), needed: String::new(), fix: String::new(), exit }
    }

    /// The same with the value found.
    #[must_use]
    pub fn found(mut self, found: impl Into<String>) -> Self {
        self.found = found.into();
        self
    }

    /// The same with the value needed.
    #[must_use]
    pub fn needed(mut self, needed: impl Into<String>) -> Self {
        self.needed = needed.into();
        self
    }

    /// The same with what fixes it.
    #[must_use]
    pub fn fix(mut self, fix: impl Into<String>) -> Self {
        self.fix = fix.into();
        self
    }

    /// The same with what fixes it, if that is not known yet.
    #[must_use]
    pub fn fix_or(mut self, fix: impl Into<String>) -> Self {
        if self.fix.is_empty() {
            self.fix = fix.into();
        }
        self
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = self.what.clone();
        for (label, part) in [("; found ", &self.found), ("; needed ", &self.needed), ("; fix: ", &self.fix)]
        {
            if !part.is_empty() {
                text.push_str(label);
                text.push_str(part);
            }
        }
        // One line, whatever the parts hold.
        f.write_str(&text.replace(['\n', '\r'], " "))
    }
}

impl std::error::Error for Problem {}

impl From<ConfigError> for Problem {
    fn from(error: ConfigError) -> Self {
        Self {
            what: format!("{}: {}", error.place, error.what),
            found: error.found,
            needed: error.needed,
            fix: error.fix,
            exit: Exit::Config,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_is_one_line_and_leaves_out_what_is_not_known() {
        let whole = Problem::new(Exit::Failed, "it broke").found("a\nb").needed("c").fix("d");
        assert_eq!(whole.to_string(), "it broke; found a b; needed c; fix: d");
        assert_eq!(Problem::new(Exit::Failed, "it broke").fix("d").to_string(), "it broke; fix: d");
    }
}
