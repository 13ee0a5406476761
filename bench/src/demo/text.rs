//! Text for terminals that may be narrow: nothing is wider than [`COLUMNS`].

use serde::Serialize;

/// Widest line, in characters.
pub(crate) const COLUMNS: usize = 72;

/// Tells what is seen, step by step; or nothing but a summary, as JSON.
#[derive(Clone, Copy)]
pub(crate) struct Teller {
    is_json: bool,
}

impl Teller {
    pub(crate) fn new(is_json: bool) -> Self {
        Self { is_json }
    }

    /// Whether only the summary is wanted.
    pub(crate) fn is_quiet(self) -> bool {
        self.is_json
    }

    /// A sentence, behind an empty line.
    pub(crate) fn paragraph(self, text: &str) {
        self.line("");
        self.say("", text);
    }

    /// As [`say`].
    pub(crate) fn say(self, indent: &str, text: &str) {
        if !self.is_json {
            say(indent, text);
        }
    }

    /// A line as it is, but for spaces at its end.
    pub(crate) fn line(self, text: &str) {
        if !self.is_json {
            println!("{}", text.trim_end());
        }
    }

    /// The summary, if it is wanted.
    pub(crate) fn json(self, summary: &impl Serialize) -> Result<(), String> {
        if self.is_json {
            let text = serde_json::to_string_pretty(summary)
                .map_err(|error| format!("cannot write the summary: {error}"))?;
            println!("{text}");
        }
        Ok(())
    }
}

/// Prints `text` behind `indent`, broken between words; further lines are indented as far.
pub(crate) fn say(indent: &str, text: &str) {
    for line in wrapped(indent, text) {
        println!("{line}");
    }
}

/// The lines of `text` behind `indent`. A word that does not fit into a line has one of its own.
pub(crate) fn wrapped(indent: &str, text: &str) -> Vec<String> {
    let further = " ".repeat(indent.chars().count());
    let mut lines = Vec::new();
    let mut line = indent.to_owned();
    let mut is_empty = true;
    for word in text.split_whitespace() {
        if !is_empty && line.chars().count() + 1 + word.chars().count() > COLUMNS {
            lines.push(std::mem::replace(&mut line, further.clone()));
            is_empty = true;
        }
        if !is_empty {
            line.push(' ');
        }
        line.push_str(word);
        is_empty = false;
    }
    lines.push(line);
    lines
}

/// A whole number with its thousands apart: `1,234,567`.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A bar whose length is to `columns` as `part` is to `whole`; of one character at least if there is anything.
pub(crate) fn bar(part: u64, whole: u64, columns: u64) -> String {
    let length = (part * columns).checked_div(whole).unwrap_or(0).min(columns);
    "#".repeat(length.max(u64::from(part > 0)) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_broken_between_words_and_loses_none() {
        let text = "credit backlog segment ".repeat(40) + &"x".repeat(100) + " end";
        let lines = wrapped("  say: ", &text);
        assert!(lines[0].starts_with("  say: credit"));
        assert!(lines[1..].iter().all(|line| line.starts_with("       ") && !line.starts_with("        ")));
        assert!(
            lines.iter().all(|line| line.len() <= COLUMNS || line.trim() == "x".repeat(100)),
            "{lines:?}"
        );
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(words(&lines.join("\n"))[1..], words(&text));
    }

    #[test]
    fn numbers_are_grouped_from_the_right() {
        let cases = [(0, "0"), (999, "999"), (1000, "1,000"), (12_345, "12,345"), (1_234_567, "1,234,567")];
        for (number, text) in cases {
            assert_eq!(grouped(number), text);
        }
    }

    #[test]
    fn a_bar_never_hides_what_is_there() {
        assert_eq!(bar(0, 10, 30), "");
        assert_eq!(bar(0, 0, 30), "");
        assert_eq!(bar(1, 1000, 30), "#");
        assert_eq!(bar(500, 1000, 30).len(), 15);
        assert_eq!(bar(2000, 1000, 30).len(), 30);
    }
}
