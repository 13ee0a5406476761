//! What `weir send` and `weir recv` share: arguments of an exchange, and client errors as problems.

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use weir_client::{BufferTimeout, Client, ConnectOptions, Debloat, DebloatOptions, Error};
use weir_flow::exchange::{Name, PARALLELISM_MAX};

use crate::config::Span;
use crate::control::client::unreachable;
use crate::exit::{Exit, Problem};

/// One of a number of parallel producers or consumers, written `INDEX/COUNT` with the index from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct IndexOf {
    /// Which, below [`Self::count`].
    pub(super) index: u32,
    /// Of how many, 1 to [`PARALLELISM_MAX`].
    pub(super) count: u32,
}

impl fmt::Display for IndexOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.index, self.count)
    }
}

impl FromStr for IndexOf {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts =
            text.split_once('/').and_then(|(i, n)| Some((i.parse::<u32>().ok()?, n.parse::<u32>().ok()?)));
        match parts {
            Some((index, count)) if index < count && count <= PARALLELISM_MAX => Ok(Self { index, count }),
            _ => Err(format!("INDEX/COUNT with 0 <= INDEX < COUNT <= {PARALLELISM_MAX}, as 0/4")),
        }
    }
}

/// Reads the name of an exchange.
pub(super) fn exchange(text: &str) -> Result<String, String> {
    Name::from_str(text).map(|name| name.to_string()).map_err(|e| format!("a name, but this one {e}"))
}

/// Reads a parallelism.
pub(super) fn parallelism(text: &str) -> Result<u32, String> {
    let count = text.parse().ok().filter(|count| (1..=PARALLELISM_MAX).contains(count));
    count.ok_or_else(|| format!("a whole number from 1 to {PARALLELISM_MAX}"))
}

/// Reads a buffer timeout.
pub(super) fn buffer_timeout(text: &str) -> Result<BufferTimeout, String> {
    if text == "off" {
        return Ok(BufferTimeout::Off);
    }
    match Span::from_str(text) {
        Ok(span) if span.0 <= Duration::from_secs(3600) => Ok(BufferTimeout::from(span.0)),
        _ => Err(format!(
            "{}; 0 (each record at once), at most 60min, or off (only full segments)",
            Span::NEEDED
        )),
    }
}

/// Reads whether a gate is debloated.
pub(super) fn debloat(text: &str) -> Result<Debloat, String> {
    const MAX: Duration = Duration::from_secs(60);
    match (text, Span::from_str(text)) {
        ("on", _) => Ok(Debloat::On(DebloatOptions::default())),
        ("off", _) => Ok(Debloat::Off),
        (_, Ok(span)) if !span.0.is_zero() && span.0 <= MAX => {
            Ok(Debloat::On(DebloatOptions { target: Some(span.0), ..DebloatOptions::default() }))
        }
        _ => {
            Err("a time from 1ms to 60s, on (the time that the daemon is configured with), or off".to_owned())
        }
    }
}

/// Reads how long to wait.
pub(super) fn wait(text: &str) -> Result<Duration, String> {
    Span::from_str(text).map(|span| span.0).map_err(|_| Span::NEEDED.to_owned())
}

/// Attaches to the daemon with this run directory, and to no later one: what a command has read of its input, or
/// written of its output, cannot be done again.
pub(super) fn attach(run_dir: &Path) -> Result<Client, Problem> {
    let options = ConnectOptions { reattach_timeout: Duration::ZERO, ..ConnectOptions::new(run_dir) };
    Client::connect_with(options).map_err(|e| problem(run_dir, &e))
}

/// A client error as the user of a command sees it.
pub(super) fn problem(run_dir: &Path, error: &Error) -> Problem {
    match error {
        Error::DaemonUnreachable { path, cause } => unreachable(path, run_dir, cause),
        Error::DaemonGone { .. } => Problem::new(Exit::Unreachable, error.to_string())
            .needed("a daemon that goes on running")
            .fix("its log says why it ended; start both again"),
        Error::Unanswered { .. } => Problem::new(Exit::Unreachable, error.to_string())
            .needed("a daemon that answers")
            .fix("its log, and whether it is stopped or short of CPU time"),
        Error::Timeout { .. } => Problem::new(Exit::Failed, error.to_string())
            .needed("a producer on a node that is linked with this one")
            .fix("start it with weir send; weir status shows the links; a longer --wait"),
        Error::RecordTooLarge { found, max } => Problem::new(Exit::Failed, "a record is too long")
            .found(format!("{found} bytes"))
            .needed(format!("at most {max} bytes"))
            .fix("record.bytes_max in the configuration of the daemons"),
        _ => Problem::new(Exit::Failed, error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_is_below_its_count() {
        assert_eq!(IndexOf::from_str("3/4"), Ok(IndexOf { index: 3, count: 4 }));
        assert_eq!(IndexOf::from_str("0/1").unwrap().to_string(), "0/1");
        for text in ["4/4", "0/0", "0/4097", "1", "/", "a/b", "-1/2", "0/1/2", "0 /1", ""] {
            assert!(IndexOf::from_str(text).is_err(), "{text} was taken");
        }
    }

    #[test]
    fn debloating_has_three_forms() {
        assert_eq!(debloat("off"), Ok(Debloat::Off));
        assert_eq!(debloat("on"), Ok(Debloat::On(DebloatOptions::default())));
        let target = Some(Duration::from_millis(300));
        let timed = Debloat::On(DebloatOptions { target, ..DebloatOptions::default() });
        assert_eq!(debloat("300ms"), Ok(timed));
        for text in ["", "0", "0ms", "61s", "2min", "yes", "300"] {
            assert!(debloat(text).is_err(), "{text} was taken");
        }
    }

    #[test]
    fn a_buffer_timeout_has_three_forms() {
        assert_eq!(buffer_timeout("0"), Ok(BufferTimeout::EachRecord));
        assert_eq!(buffer_timeout("off"), Ok(BufferTimeout::Off));
        assert_eq!(buffer_timeout("100ms"), Ok(BufferTimeout::After(Duration::from_millis(100))));
        assert_eq!(buffer_timeout("1s"), Ok(BufferTimeout::After(Duration::from_secs(1))));
        for text in ["", "1", "-1ms", "on", "2h", "61min"] {
            assert!(buffer_timeout(text).is_err(), "{text} was taken");
        }
    }
}
