//! What it means that an account does not add up. The `check` functions of this crate recount everything from the
//! lists that hold it and compare with the running counts; tests and the simulator call them after every step.

use alloc::string::String;
use core::fmt;

/// An invariant that does not hold: a defect of this crate, never of a peer or a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The rule, in a few words that do not change.
    pub rule: &'static str,
    /// Where, and the numbers that disagree.
    pub text: String,
}

impl Violation {
    /// A violation of `rule` with its numbers.
    #[must_use]
    pub fn new(rule: &'static str, text: impl Into<String>) -> Self {
        Self { rule, text: text.into() }
    }

    /// The same, with where it was found in front of its numbers.
    pub(crate) fn at(self, place: &dyn fmt::Debug) -> Self {
        Self { rule: self.rule, text: alloc::format!("{place:?}: {}", self.text) }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "invariant broken: {}: {}", self.rule, self.text)
    }
}

impl core::error::Error for Violation {}

/// Ends the function with a [`Violation`] unless the condition holds. The text is built only then.
macro_rules! ensure {
    ($condition:expr, $rule:literal, $($text:tt)+) => {
        if !$condition {
            return Err($crate::invariant::Violation::new($rule, alloc::format!($($text)+)));
        }
    };
}
pub(crate) use ensure;
