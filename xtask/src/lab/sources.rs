//! Where this machine gets Debian packages from, read from apt's own files: no mirror is named here.

use std::fs;
use std::path::{Path, PathBuf};

/// Where apt keeps its list of sources.
const ONE_FILE: &str = "/etc/apt/sources.list";
const DIRECTORY: &str = "/etc/apt/sources.list.d";

/// A place that packages come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mirror {
    /// Where it is.
    pub(super) address: String,
    /// The file with the keys that its lists are signed with; none: those that apt trusts in any case.
    pub(super) keys: Option<String>,
}

impl Mirror {
    /// One line of a list of sources.
    pub(super) fn line(&self, suite: &str) -> String {
        let options = self.keys.as_ref().map_or(String::new(), |keys| format!("[signed-by={keys}] "));
        format!("deb {options}{} {suite} main\n", self.address)
    }
}

/// Debian's archive, and the one of its security updates, as this machine reaches them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mirrors {
    pub(super) archive: Mirror,
    pub(super) security: Option<Mirror>,
}

impl Mirrors {
    /// Those of this machine.
    ///
    /// # Errors
    /// Its lists name none.
    pub(super) fn of_this_machine() -> Result<Self, String> {
        let mut files: Vec<PathBuf> =
            fs::read_dir(DIRECTORY).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
        files.sort();
        files.insert(0, ONE_FILE.into());
        let mirrors: Vec<Mirror> = files.iter().flat_map(|file| mirrors_of(file)).collect();
        Self::among(mirrors).ok_or_else(|| {
            format!("no Debian archive is named in {ONE_FILE} or in {DIRECTORY}: add one for apt to use")
        })
    }

    fn among(mirrors: Vec<Mirror>) -> Option<Self> {
        let is = |mirror: &&Mirror, name: &str| mirror.address.trim_end_matches('/').ends_with(name);
        let find = |name: &str| mirrors.iter().find(|mirror| is(mirror, name)).cloned();
        Some(Self { archive: find("/debian")?, security: find("/debian-security") })
    }

    /// A list of sources with these suites and what belongs to them.
    pub(super) fn list(&self, suites: &[&str]) -> String {
        let mut text = String::new();
        for suite in suites {
            text.push_str(&self.archive.line(suite));
            text.push_str(&self.archive.line(&format!("{suite}-backports")));
            if let Some(security) = &self.security {
                text.push_str(&security.line(&format!("{suite}-security")));
            }
        }
        text
    }
}

fn mirrors_of(file: &Path) -> Vec<Mirror> {
    let text = fs::read_to_string(file).unwrap_or_default();
    match file.extension().and_then(|extension| extension.to_str()) {
        Some("sources") => of_paragraphs(&text),
        Some("list") => text.lines().filter_map(of_line).collect(),
        _ => Vec::new(),
    }
}

/// The newer form: paragraphs of `Field: value`.
fn of_paragraphs(text: &str) -> Vec<Mirror> {
    text.split("\n\n").flat_map(of_paragraph).collect()
}

fn of_paragraph(paragraph: &str) -> Vec<Mirror> {
    let field = |name: &str| {
        paragraph.lines().filter(|line| !line.starts_with('#')).find_map(|line| {
            let (field, value) = line.split_once(':')?;
            field.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    };
    let is_off = field("Enabled").is_some_and(|value| matches!(value, "no" | "false" | "0"));
    if is_off || !field("Types").is_some_and(|types| types.split_whitespace().any(|one| one == "deb")) {
        return Vec::new();
    }
    // Keys may stand in the paragraph itself, which a line of a list cannot have.
    let keys = field("Signed-By").filter(|keys| keys.starts_with('/')).map(str::to_owned);
    let addresses = field("URIs").unwrap_or_default().split_whitespace();
    addresses.map(|address| Mirror { address: address.to_owned(), keys: keys.clone() }).collect()
}

/// The older form: `deb [options] address suite components`.
fn of_line(line: &str) -> Option<Mirror> {
    let rest = line.trim().strip_prefix("deb ")?.trim_start();
    let (options, rest) = match rest.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?,
        None => ("", rest),
    };
    let keys = options.split_whitespace().find_map(|option| option.strip_prefix("signed-by="));
    let address = rest.split_whitespace().next()?.to_owned();
    Some(Mirror { address, keys: keys.map(str::to_owned) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mirror(address: &str, keys: Option<&str>) -> Mirror {
        Mirror { address: address.to_owned(), keys: keys.map(str::to_owned) }
    }

    #[test]
    fn both_forms_of_apts_lists_are_read() {
        let paragraphs = "Types: deb\n# URIs: http://not.this/debian\nURIs: http://mirror.example/debian\n\
             Suites: bookworm bookworm-updates\nComponents: main\nSigned-By: /usr/share/keyrings/keys.gpg\n\n\
             Types: deb-src\nURIs: http://sources.example/debian\n\n\
             Types: deb deb-src\nEnabled: no\nURIs: http://off.example/debian\n\n\
             types: deb\nuris: http://one.example/debian-security http://two.example/x\nSigned-By:\n -----BEGIN\n";
        assert_eq!(
            of_paragraphs(paragraphs),
            [
                mirror("http://mirror.example/debian", Some("/usr/share/keyrings/keys.gpg")),
                mirror("http://one.example/debian-security", None),
                mirror("http://two.example/x", None),
            ]
        );
        let lines = [
            ("deb http://mirror.example/debian bookworm main", Some(("http://mirror.example/debian", None))),
            (
                "  deb [arch=amd64 signed-by=/k.gpg] http://m.example/debian/ bookworm main",
                Some(("http://m.example/debian/", Some("/k.gpg"))),
            ),
            ("# deb http://mirror.example/debian bookworm main", None),
            ("deb-src http://mirror.example/debian bookworm main", None),
            ("", None),
        ];
        for (line, expected) in lines {
            assert_eq!(of_line(line), expected.map(|(address, keys)| mirror(address, keys)), "{line}");
        }
    }

    #[test]
    fn the_list_has_backports_and_security_of_each_suite() {
        let all = vec![
            mirror("http://other.example/packages", None),
            mirror("http://m.example/debian-security/", None),
            mirror("http://m.example/debian/", Some("/k.gpg")),
        ];
        let mirrors = Mirrors::among(all).unwrap();
        assert_eq!(
            mirrors.list(&["bookworm"]),
            "deb [signed-by=/k.gpg] http://m.example/debian/ bookworm main\n\
             deb [signed-by=/k.gpg] http://m.example/debian/ bookworm-backports main\n\
             deb http://m.example/debian-security/ bookworm-security main\n"
        );
        let only = Mirrors { security: None, ..mirrors };
        assert_eq!(only.list(&["bookworm"]).lines().count(), 2);
        assert_eq!(Mirrors::among(vec![mirror("http://other.example/packages", None)]), None);
    }
}
