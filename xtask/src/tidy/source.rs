//! A view of Rust source that is good enough for house rules: lines with comments and literals blanked out.

/// One source file.
pub(super) struct Source {
    raw: Vec<String>,
    /// The same lines with comments, strings and characters replaced by spaces.
    code: Vec<String>,
    /// First line of the trailing `#[cfg(test)]` module, or the number of lines.
    tests_begin: usize,
}

/// One function with a body.
pub(super) struct Function {
    pub(super) name: String,
    /// Counted from 1.
    pub(super) line: usize,
    pub(super) lines: usize,
}

impl Source {
    pub(super) fn parse(text: &str) -> Self {
        let raw: Vec<String> = text.lines().map(str::to_owned).collect();
        let code: Vec<String> = blank(text).lines().map(str::to_owned).collect();
        let tests_begin = code.iter().position(|line| line.trim() == "#[cfg(test)]").unwrap_or(raw.len());
        Self { raw, code, tests_begin }
    }

    pub(super) fn lines_without_tests(&self) -> usize {
        self.tests_begin
    }

    pub(super) fn has_module_doc(&self) -> bool {
        self.raw.iter().any(|line| line.starts_with("//!"))
    }

    /// Lines (from 1) of code in which `word` stands by itself.
    pub(super) fn lines_with_word(&self, word: &str) -> Vec<usize> {
        let is_part = |c: char| c.is_alphanumeric() || c == '_';
        let has = |line: &str| line.split(|c| !is_part(c)).any(|part| part == word);
        (1..).zip(&self.code).filter(|(_, line)| has(line)).map(|(number, _)| number).collect()
    }

    /// Lines (from 1), comments included, that hold one of `words`.
    pub(super) fn lines_with_any<'a>(&self, words: &[&'a str]) -> Vec<(usize, &'a str)> {
        let found = |line: &String| words.iter().copied().find(|word| line.contains(word));
        (1..).zip(&self.raw).filter_map(|(number, line)| found(line).map(|word| (number, word))).collect()
    }

    /// Functions outside the trailing test module.
    pub(super) fn functions(&self) -> Vec<Function> {
        let code = self.code.get(..self.tests_begin).unwrap_or_default();
        (0..code.len()).filter_map(|at| function_at(code, at)).collect()
    }
}

fn function_at(code: &[String], at: usize) -> Option<Function> {
    let head = code.get(at)?.trim_start();
    let name = head.split("fn ").nth(1).filter(|_| starts_function(head))?;
    let name: String = name.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
    let mut depth = 0_i64;
    let mut opened = false;
    for (offset, line) in code.get(at..)?.iter().enumerate() {
        for c in line.chars() {
            match c {
                '{' => {
                    depth += 1;
                    opened = true;
                }
                '}' => depth -= 1,
                ';' if !opened && depth == 0 => return None,
                _ => {}
            }
        }
        if opened && depth <= 0 {
            return Some(Function { name, line: at + 1, lines: offset + 1 });
        }
    }
    None
}

fn starts_function(head: &str) -> bool {
    let mut words = head.split_whitespace();
    words.by_ref().find(|word| !is_qualifier(word)) == Some("fn")
}

fn is_qualifier(word: &str) -> bool {
    matches!(word, "pub" | "const" | "async" | "unsafe" | "extern")
        || word.starts_with("pub(")
        || word.starts_with('"')
}

/// Replaces comments, strings and character literals by spaces, keeping lines.
fn blank(text: &str) -> String {
    let bytes: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while let Some(&c) = bytes.get(at) {
        let length = literal_length(&bytes, at);
        if length == 0 {
            out.push(c);
            at += 1;
            continue;
        }
        for &skipped in bytes.iter().skip(at).take(length) {
            out.push(if skipped == '\n' { '\n' } else { ' ' });
        }
        at += length;
    }
    out
}

/// Length of the comment or literal that begins at `at`, 0 if none does.
fn literal_length(text: &[char], at: usize) -> usize {
    let rest = text.get(at..).unwrap_or_default();
    let before = at.checked_sub(1).and_then(|before| text.get(before)).copied().unwrap_or(' ');
    let begins_word = !(before.is_alphanumeric() || before == '_');
    match rest {
        ['/', '/', ..] => rest.iter().position(|c| *c == '\n').unwrap_or(rest.len()),
        ['/', '*', ..] => find(rest, &['*', '/']).map_or(rest.len(), |end| end + 2),
        ['r', '"', ..] if begins_word => {
            find(rest.get(2..).unwrap_or_default(), &['"']).map_or(rest.len(), |end| end + 3)
        }
        ['r', '#', '"', ..] if begins_word => {
            find(rest.get(3..).unwrap_or_default(), &['"', '#']).map_or(rest.len(), |end| end + 5)
        }
        ['"', ..] => quoted_length(rest),
        ['\'', '\\', ..] => {
            find(rest.get(2..).unwrap_or_default(), &['\'']).map_or(rest.len(), |end| end + 3)
        }
        ['\'', _, '\'', ..] => 3,
        _ => 0,
    }
}

fn quoted_length(rest: &[char]) -> usize {
    let mut escaped = false;
    for (at, c) in rest.iter().enumerate().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    rest.len()
}

fn find(text: &[char], needle: &[char]) -> Option<usize> {
    text.windows(needle.len()).position(|window| window == needle)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &str = "//! Doc.\n// unsafe in a comment\npub(crate) fn long() {\n    let text = \"unsafe { fn x() {\";\n    if '{' == c {\n    }\n}\n\
                          trait T { fn no_body(&self); }\nunsafe fn here() {}\n#[cfg(test)]\nmod tests {\n fn in_tests() {\n }\n}\n";

    #[test]
    fn words_in_comments_and_literals_do_not_count() {
        let source = Source::parse(SAMPLE);
        assert_eq!(source.lines_with_word("unsafe"), [9]);
        assert!(source.has_module_doc());
    }

    #[test]
    fn functions_are_measured_from_head_to_closing_brace() {
        let functions = Source::parse(SAMPLE).functions();
        let found: Vec<(&str, usize, usize)> = functions
            .iter()
            .map(|function| (function.name.as_str(), function.line, function.lines))
            .collect();
        assert_eq!(found, [("long", 3, 5), ("here", 9, 1)]);
    }

    #[test]
    fn tests_at_the_end_do_not_count_as_lines() {
        assert_eq!(Source::parse(SAMPLE).lines_without_tests(), 9);
    }
}
