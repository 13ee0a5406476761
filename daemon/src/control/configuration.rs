//! What a daemon says of its configuration: what is in effect, and what is not.

use serde::{Deserialize, Serialize};

use super::snapshot::{SCHEMA_VERSION, Subsystem};

/// Most keys and errors that one line names. The rest is counted.
const NAMED_MAX: usize = 5;

/// Answer to `GET /v1/configuration`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConfigurationReport {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// The file that is read. It need not exist.
    pub file: String,
    /// How often the configuration was read anew and taken since the start.
    pub reloads_total: u64,
    /// How often it was read anew and not taken.
    pub reloads_failed_total: u64,
    /// The values in effect, as a file that would give them.
    pub effective: String,
    /// Settings whose values in the files are others than those in effect: they wait for a restart.
    pub waiting: Vec<WaitingSetting>,
    /// What was wrong with the files when they were read last, one line each with place, value and fix. Not empty: what was
    /// in effect before still is.
    pub errors: Vec<String>,
}

/// A setting that waits for a restart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitingSetting {
    /// Its dotted key.
    pub key: String,
    /// The value in effect, as the file would have it. `null`: it is not set.
    pub effective: Option<String>,
    /// The value that a restart would bring.
    pub wanted: Option<String>,
    /// Where that stands: `FILE:LINE` or a flag; `null` for a default.
    pub place: Option<String>,
}

impl Default for ConfigurationReport {
    fn default() -> Self {
        Self {
            schema_version: SCHEMA_VERSION,
            file: String::new(),
            reloads_total: 0,
            reloads_failed_total: 0,
            effective: String::new(),
            waiting: Vec::new(),
            errors: Vec::new(),
        }
    }
}

impl ConfigurationReport {
    /// The line of `weir status`.
    #[must_use]
    pub fn line(&self) -> Subsystem {
        const NAME: &str = "configuration";
        let file = if self.file.is_empty() { "defaults" } else { self.file.as_str() };
        let detail = match self.reloads_total {
            0 => format!("{file}, as read at the start"),
            count => format!("{file}, reloaded {count} times"),
        };
        if !self.errors.is_empty() {
            let reason =
                format!("not taken when it was read last: {}", some_of(self.errors.iter().cloned(), " | "));
            let fix = "correct what the reason names (`weir config check` lists all of it), then reload: systemctl reload \
                       weir, or kill -HUP";
            return Subsystem::degraded(NAME, format!("{detail}; what was in effect still is"), reason, fix);
        }
        if !self.waiting.is_empty() {
            let reason = format!(
                "waits for a restart: {}",
                some_of(self.waiting.iter().map(WaitingSetting::text), ", ")
            );
            return Subsystem::degraded(NAME, detail, reason, "systemctl restart weir");
        }
        Subsystem::ok(NAME, detail)
    }

    /// What a service manager is to show of it, behind what the daemon does; empty if all is well.
    #[must_use]
    pub fn note(&self) -> String {
        match (self.errors.first(), self.waiting.len()) {
            (Some(error), _) => format!("; configuration not taken: {error}"),
            (None, 0) => String::new(),
            (None, count) => format!("; {count} settings wait for a restart"),
        }
    }
}

impl WaitingSetting {
    /// The key with both values and the place of the one that waits.
    #[must_use]
    pub fn text(&self) -> String {
        let shown = |value: &Option<String>| value.clone().unwrap_or_else(|| "not set".to_owned());
        let place = self.place.as_ref().map(|place| format!(" ({place})")).unwrap_or_default();
        format!("{} is {} and would be {}{place}", self.key, shown(&self.effective), shown(&self.wanted))
    }
}

fn some_of(all: impl Iterator<Item = String>, between: &str) -> String {
    let mut all: Vec<String> = all.collect();
    let rest = all.len().saturating_sub(NAMED_MAX);
    all.truncate(NAMED_MAX);
    let mut text = all.join(between);
    if rest > 0 {
        text.push_str(&format!("{between}and {rest} more"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::snapshot::Health;

    fn waiting(key: &str) -> WaitingSetting {
        WaitingSetting {
            key: key.to_owned(),
            effective: Some("2".to_owned()),
            wanted: None,
            place: Some("f:3".to_owned()),
        }
    }

    #[test]
    fn an_error_is_said_before_what_waits_and_both_name_place_and_cure() {
        let mut report = ConfigurationReport { file: "f".to_owned(), ..ConfigurationReport::default() };
        assert_eq!((report.line().state, report.note()), (Health::Ok, String::new()));
        report.waiting = vec![waiting("shards")];
        let line = report.line();
        assert_eq!(
            line.reason.as_deref(),
            Some("waits for a restart: shards is 2 and would be not set (f:3)")
        );
        assert_eq!((line.state, line.fix.as_deref()), (Health::Degraded, Some("systemctl restart weir")));
        report.errors = (0..7).map(|n| format!("f:{n}: wrong")).collect();
        let line = report.line();
        let reason = line.reason.unwrap();
        assert!(reason.ends_with("f:3: wrong | f:4: wrong | and 2 more"), "{reason}");
        assert!(line.detail.contains("still is") && line.fix.unwrap().contains("weir config check"));
        assert_eq!(report.note(), "; configuration not taken: f:0: wrong");
    }
}
