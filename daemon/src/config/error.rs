//! Why a configuration is not taken.

use std::fmt;
use std::path::Path;

use super::file::shown_path;

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A line of a file, counted from 1.
    Line(Box<Path>, u32),
    /// A file as a whole.
    File(Box<Path>),
    /// A flag of the command line, as `--listen`.
    Flag(&'static str),
    /// Nowhere: the value is the built-in default.
    Default,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line(file, line) => write!(f, "{}:{line}", shown_path(file)),
            Self::File(file) => write!(f, "{}", shown_path(file)),
            Self::Flag(flag) => f.write_str(flag),
            Self::Default => f.write_str("default configuration"),
        }
    }
}

/// What is wrong with a configuration: where, what happened, what was found, what is needed, what fixes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// Where the value stands.
    pub place: Place,
    /// What happened, as `unknown key "memory.totl"`.
    pub what: String,
    /// The value found.
    pub found: String,
    /// What is needed instead.
    pub needed: String,
    /// The key or command that fixes it.
    pub fix: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { place, what, found, needed, fix } = self;
        write!(f, "{place}: {what}; found {found}; needed {needed}; fix: {fix}")
    }
}

impl std::error::Error for ConfigError {}

/// Everything that is wrong with a configuration: at least one thing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigErrors {
    /// The first.
    pub first: Box<ConfigError>,
    /// The others.
    pub rest: Vec<ConfigError>,
}

impl ConfigErrors {
    /// These errors, if there are any.
    #[must_use]
    pub fn of(errors: Vec<ConfigError>) -> Option<Self> {
        let mut errors = errors.into_iter();
        Some(Self { first: Box::new(errors.next()?), rest: errors.collect() })
    }

    /// All of them, in their order.
    pub fn iter(&self) -> impl Iterator<Item = &ConfigError> {
        std::iter::once(&*self.first).chain(&self.rest)
    }
}

impl From<ConfigError> for ConfigErrors {
    fn from(first: ConfigError) -> Self {
        Self { first: Box::new(first), rest: Vec::new() }
    }
}
