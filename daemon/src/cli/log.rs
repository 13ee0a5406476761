//! The log of the daemon: lines to standard error, or entries of the journal, from a thread of its own.
//!
//! | file | holds |
//! |---|---|
//! | this | starting it, its form and its level |
//! | [`lines`] | the queue and the thread |
//! | [`limit`] | bounds on what is said again and again |
//! | [`journal`] | the journal of systemd |

mod journal;
mod limit;
mod lines;

use std::io::{self, IsTerminal};
use std::path::Path;
use std::time::{Duration, Instant};

use tracing::level_filters::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Registry, reload};

use self::journal::Journal;
use self::limit::Limiter;
use self::lines::{Form, Lines, Queue};
use super::output;
use crate::config::{LogConfig, LogFormat, LogLevel};

/// Longest wait for the last lines when the daemon ends. Only a reader that stands still takes so long; a machine that is
/// slow is not to cost the words that say why it ended.
const LAST_LINES_TIMEOUT: Duration = Duration::from_secs(5);

/// The log while it is written to. It lives as long as the daemon.
pub(super) struct Log {
    queue: Option<Queue>,
    level: Option<Level>,
}

/// The least severe level that is written, while the log is.
#[derive(Clone)]
pub(super) struct Level(reload::Handle<LevelFilter, Registry>);

impl Level {
    /// Changes it from now on.
    pub(super) fn set(&self, level: LogLevel) {
        // The log lives as long as the process, so that there is one.
        if let Err(error) = self.0.reload(filter(level)) {
            tracing::warn!(%error, "the level of the log stays as it is");
        }
    }
}

fn filter(level: LogLevel) -> LevelFilter {
    match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    }
}

impl Log {
    /// Sends what is logged in this process to standard error, or to the journal, from now on.
    pub(super) fn start(options: &LogConfig) -> Self {
        let limiter = Limiter::default();
        let (form, journal, warning) = destination(options.format);
        let started = match journal {
            Some(journal) => Lines::start(journal, form, limiter.clone()),
            None => Lines::start(io::stderr(), form, limiter.clone()),
        };
        let (lines, queue) = match started {
            Ok(started) => started,
            Err(e) => {
                output::say(&format!("warning: no log: {e}"));
                return Self { queue: None, level: None };
            }
        };
        let (level, handle) = reload::Layer::new(filter(options.level));
        let registry = tracing_subscriber::registry().with(level).with(limiter);
        let layer = tracing_subscriber::fmt::layer()
            .with_writer(lines)
            .with_target(false)
            .with_ansi(form == Form::Text && io::stderr().is_terminal())
            .log_internal_errors(false);
        let started = match form {
            Form::Text => registry.with(layer).try_init(),
            Form::Json => registry.with(layer.json().flatten_event(true)).try_init(),
            Form::Journal => registry.with(layer.event_format(journal::Entries)).try_init(),
        };
        if let Err(e) = started {
            output::say(&format!("warning: no log: {e}"));
            return Self { queue: Some(queue), level: None };
        }
        if let Some(warning) = warning {
            tracing::warn!("{warning}");
        }
        Self { queue: Some(queue), level: Some(Level(handle)) }
    }

    /// What is written, to be changed while it is.
    pub(super) fn level(&self) -> Option<Level> {
        self.level.clone()
    }

    /// Waits until what was logged so far is written, at most some seconds.
    pub(super) fn flush(&self) {
        if let Some(queue) = &self.queue {
            queue.flush(Instant::now() + LAST_LINES_TIMEOUT);
        }
    }
}

/// The form of this log; the journal, if it goes there; and what to say about it.
fn destination(format: LogFormat) -> (Form, Option<Journal>, Option<String>) {
    let open = || Journal::open(Path::new(journal::SOCKET));
    match format {
        LogFormat::Text => (Form::Text, None, None),
        LogFormat::Json => (Form::Json, None, None),
        LogFormat::Journald => match open() {
            Ok(journal) => (Form::Journal, Some(journal), None),
            Err(e) => {
                let warning = format!(
                    "log.format is \"journald\", but nobody takes entries at {}: {e}; the log is text on standard error",
                    journal::SOCKET
                );
                (Form::Text, None, Some(warning))
            }
        },
        LogFormat::Auto => {
            let variable = std::env::var("JOURNAL_STREAM").ok();
            let is_journal = journal::is_journal(io::stderr(), variable.as_deref());
            match is_journal.then(open) {
                Some(Ok(journal)) => (Form::Journal, Some(journal), None),
                _ => (Form::Text, None, None),
            }
        }
    }
}
