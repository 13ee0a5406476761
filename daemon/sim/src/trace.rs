//! One readable line per step, for a person who replays a seed.

use std::fmt;
use std::io::{self, Write};

/// Where trace lines go. Off, it costs one comparison per step: lines are only made when they are wanted.
#[derive(Debug, Default)]
pub struct Trace {
    on: bool,
    step: u64,
    now_ns: u64,
}

impl Trace {
    /// A trace that prints to standard output when `on`.
    #[must_use]
    pub const fn new(on: bool) -> Self {
        Self { on, step: 0, now_ns: 0 }
    }

    /// Sets the step number and virtual time that the next lines carry.
    pub const fn at(&mut self, step: u64, now_ns: u64) {
        self.step = step;
        self.now_ns = now_ns;
    }

    /// The current step.
    #[must_use]
    pub const fn step(&self) -> u64 {
        self.step
    }

    /// Prints one line: step, virtual microseconds, who, what.
    pub fn line(&self, who: &dyn fmt::Display, what: fmt::Arguments<'_>) {
        if self.on {
            let written =
                writeln!(io::stdout(), "{:>6} {:>10}us {who:<16} {what}", self.step, self.now_ns / 1_000);
            // Whoever read the trace has seen enough.
            if written.is_err() {
                std::process::exit(0);
            }
        }
    }
}

/// Prints a trace line; arguments are formatted only when tracing is on.
#[macro_export]
macro_rules! trace {
    ($trace:expr, $who:expr, $($what:tt)+) => { $trace.line(&$who, format_args!($($what)+)) };
}
