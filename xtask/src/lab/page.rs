//! A section of the page for operators, from which the lab takes its commands: what it runs is what people read, and a line
//! that is not run is found.

use std::cell::Cell;
use std::fs;

use crate::process;

/// The page, from the root of the repository.
const PAGE: &str = "docs/operations.md";

/// Where a command is to be run, by its comment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// `# on a: …`, or on one node, whichever: the first.
    First,
    /// `# on b: …`
    Second,
    /// Anything else.
    Both,
}

/// One line of a block of commands.
#[derive(Debug)]
pub(super) struct Line {
    /// Without its comment.
    pub(super) command: String,
    pub(super) place: Place,
    is_taken: Cell<bool>,
}

/// The commands of a section in their order, and its other blocks.
#[derive(Debug)]
pub(super) struct Page {
    lines: Vec<Line>,
    blocks: Vec<(String, String)>,
}

impl Page {
    /// Reads a section by its heading.
    ///
    /// # Errors
    /// There is no such page, or no such section in it.
    pub(super) fn read(heading: &str) -> Result<Self, String> {
        let path = process::root().join(PAGE);
        let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        Self::of(&text, heading).ok_or_else(|| format!("{PAGE} has no section {heading:?}"))
    }

    fn of(text: &str, heading: &str) -> Option<Self> {
        let (_, section) = text.split_once(&format!("\n## {heading}\n"))?;
        let section = section.split("\n## ").next()?;
        let mut page = Self { lines: Vec::new(), blocks: Vec::new() };
        // Between fences there are blocks and text in turn, and a block begins with the name of its language.
        for block in section.split("```").skip(1).step_by(2) {
            let (language, content) = block.split_once('\n')?;
            if language == "sh" {
                page.lines.extend(content.lines().map(line));
            } else {
                page.blocks.push((language.to_owned(), content.to_owned()));
            }
        }
        Some(page)
    }

    /// The next command that begins with these words, which counts as run from now on.
    ///
    /// # Errors
    /// There is none.
    pub(super) fn take(&self, words: &str) -> Result<&Line, String> {
        let found = self.lines.iter().find(|line| !line.is_taken.get() && line.command.starts_with(words));
        let line = found.ok_or_else(|| format!("{PAGE} has no command {words:?} that was not run yet"))?;
        line.is_taken.set(true);
        Ok(line)
    }

    /// The one block of a language.
    ///
    /// # Errors
    /// There is none, or there are several.
    pub(super) fn block(&self, language: &str) -> Result<&str, String> {
        let mut found = self.blocks.iter().filter(|(found, _)| found == language);
        match (found.next(), found.next()) {
            (Some((_, content)), None) => Ok(content),
            _ => Err(format!("{PAGE} does not have one block of {language} there")),
        }
    }

    /// Commands that nobody took.
    pub(super) fn left(&self) -> Vec<&str> {
        let lines = self.lines.iter().filter(|line| !line.is_taken.get());
        lines.map(|line| line.command.as_str()).collect()
    }
}

/// A comment begins behind at least two spaces, which no command here has in it.
fn line(text: &str) -> Line {
    let (command, comment) = text.split_once("  #").unwrap_or((text, ""));
    let comment = comment.trim();
    let place = match comment {
        _ if comment.starts_with("on a") || comment.starts_with("on one node") => Place::First,
        _ if comment.starts_with("on b") => Place::Second,
        _ => Place::Both,
    };
    Line { command: command.trim().to_owned(), place, is_taken: Cell::new(false) }
}

/// A configuration in which two nodes have changed places: their names, and their addresses.
pub(super) fn changed_places(text: &str, pairs: &[(&str, &str)]) -> String {
    const ASIDE: &str = "\u{1}";
    pairs.iter().fold(text.to_owned(), |text, (one, other)| {
        text.replace(one, ASIDE).replace(other, one).replace(ASIDE, other)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# Page\n\n## First\n\n```sh\nnot this\n```\n\n## Second\n\nText.\n\n```sh\nmake it x\nsend it | count      # on b: what it does\n```\n\n\
                        ```toml\nnode = \"a\"\n```\n\n```sh\nmake it y     # on one node; then bring it\nlook                 # at both\n```\n\n## Third\n```sh\nneither\n```\n";

    #[test]
    fn commands_are_taken_in_their_order_and_what_is_left_is_told() {
        let page = Page::of(TEXT, "Second").unwrap();
        assert_eq!(page.block("toml"), Ok("node = \"a\"\n"));
        assert!(page.block("json").is_err());
        assert_eq!(page.left(), ["make it x", "send it | count", "make it y", "look"]);
        let take = |words| page.take(words).map(|line| (line.command.as_str(), line.place));
        assert_eq!(take("make"), Ok(("make it x", Place::Both)));
        assert_eq!(take("make"), Ok(("make it y", Place::First)));
        assert!(take("make").unwrap_err().contains("\"make\""));
        assert_eq!(take("send"), Ok(("send it | count", Place::Second)));
        assert_eq!(page.left(), ["look"]);
        assert!(Page::of(TEXT, "Fourth").is_none());
    }

    #[test]
    fn nodes_change_places_with_their_addresses() {
        let text = "node = \"a\"\nlisten = \"10.0.0.1:7\"\nb = \"10.0.0.2:7\"\n";
        assert_eq!(
            changed_places(text, &[("\"a\"", "\"b\""), ("10.0.0.1", "10.0.0.2"), ("\na = ", "\nb = ")]),
            "node = \"b\"\nlisten = \"10.0.0.2:7\"\na = \"10.0.0.1:7\"\n"
        );
    }
}
