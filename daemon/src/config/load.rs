//! Reading the configuration: files, then flags, each key checked where it stands.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use toml::Value;
use toml::de::{DeTable, DeValue};

use super::Config;
use super::error::{ConfigError, ConfigErrors, Place};
use super::file::{open, read_bounded, shown_path};
use super::key::{ClusterKey, read_cluster_key};
use super::setting::{Bounds, Section, sections};
use super::value::NodeName;

/// The file that is read unless another is named. It need not exist.
pub const DEFAULT_FILE: &str = "/etc/weir/weir.toml";

/// Largest configuration file, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// A value from the command line, which wins over every file.
#[derive(Clone, Debug, PartialEq)]
pub struct Override {
    /// The flag that it came with, as `--listen`.
    pub flag: &'static str,
    /// The dotted key of the setting, as `listen` or `peers.b`.
    pub key: String,
    /// Its value.
    pub value: Value,
}

/// A configuration that was read, and where its values stand.
#[derive(Clone, Debug, Default)]
pub struct Loaded {
    /// The values.
    pub config: Config,
    /// Where each value that is not a default stands, by dotted key.
    pub places: BTreeMap<String, Place>,
    /// The content of `key_file`, if that is set and was to be read.
    pub key: Option<ClusterKey>,
}

/// Reads the configuration from `file` (else [`DEFAULT_FILE`] if it exists), from `conf.d/*.toml` beside it, and from
/// `overrides`, the later ones winning, and checks every value and relation.
///
/// # Errors
/// A file cannot be read or is not TOML, a key is unknown, a value has the wrong type or is out of bounds, or two
/// settings contradict each other. The first problem is reported, with its place.
pub fn load(file: Option<&Path>, overrides: &[Override]) -> Result<Config, ConfigError> {
    let merged = merge(file, overrides);
    merged.finish(false).map(|loaded| loaded.config).map_err(|errors| *errors.first)
}

/// As [`load`], with the cluster key and with everything that is wrong.
///
/// # Errors
/// As of [`load`] and [`read_cluster_key`]: all of them, file by file in the order in which they are read, then flags,
/// contradictions, and the key. A file that is not TOML has one, and a contradiction of a value that is itself wrong is
/// none.
pub fn load_all(file: Option<&Path>, overrides: &[Override]) -> Result<Loaded, ConfigErrors> {
    merge(file, overrides).finish(true)
}

fn merge(file: Option<&Path>, overrides: &[Override]) -> Merged {
    let mut merged = Merged::default();
    let main = file.unwrap_or(Path::new(DEFAULT_FILE));
    let mut files = Vec::new();
    if file.is_some() || main.exists() {
        files.push(main.to_owned());
    }
    match extra_files(main) {
        Ok(extra) => files.extend(extra),
        Err(error) => merged.errors.push(error),
    }
    for file in files {
        merged.add_file(&file);
    }
    for Override { flag, key, value } in overrides {
        merged.add(key, value.clone(), Place::Flag(flag));
    }
    merged
}

/// `conf.d/*.toml` in the directory of `main`, sorted by name. None if there is no such directory.
fn extra_files(main: &Path) -> Result<Vec<PathBuf>, ConfigError> {
    let directory = main.parent().unwrap_or(Path::new("")).join("conf.d");
    let entries = match fs::read_dir(&directory) {
        Ok(entries) => entries,
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(Vec::new());
        }
        Err(e) => return Err(unreadable(&directory, &e)),
    };
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.map_err(|e| unreadable(&directory, &e))?.path();
        let is_hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        if path.extension().is_some_and(|extension| extension == "toml") && !is_hidden {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn unreadable(path: &Path, error: &io::Error) -> ConfigError {
    ConfigError {
        place: Place::File(path.into()),
        what: "configuration cannot be read".to_owned(),
        found: error.to_string(),
        needed: "a readable file".to_owned(),
        fix: format!("make {} readable, or name another with --config", shown_path(path)),
    }
}

fn read_file(path: &Path) -> Result<String, ConfigError> {
    let error = |found: String, needed: &str| ConfigError {
        place: Place::File(path.into()),
        what: "configuration cannot be read".to_owned(),
        found,
        needed: needed.to_owned(),
        fix: "name the right file with --config".to_owned(),
    };
    let (file, metadata) = open(path).map_err(|e| unreadable(path, &e))?;
    if !metadata.is_file() {
        return Err(error("a directory, pipe or device".to_owned(), "a regular file"));
    }
    let bytes = read_bounded(file, FILE_BYTES_MAX).map_err(|e| unreadable(path, &e))?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        let found = format!("{} bytes", metadata.len().max(bytes.len() as u64));
        return Err(error(found, &format!("at most {FILE_BYTES_MAX} bytes")));
    }
    String::from_utf8(bytes).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        error(format!("a byte at offset {at} that is not UTF-8"), "UTF-8 text")
    })
}

/// The values so far and where each came from, by dotted key; and what is wrong so far.
#[derive(Default)]
struct Merged {
    values: toml::Table,
    places: BTreeMap<String, Place>,
    errors: Vec<ConfigError>,
    /// The keys of the values that were not taken.
    refused: Vec<String>,
}

impl Merged {
    fn add_file(&mut self, path: &Path) {
        let before = self.errors.len();
        if let Err(error) = self.add_text(path) {
            self.errors.push(error);
        }
        // As a reader finds them, and not by key.
        self.errors.get_mut(before..).unwrap_or_default().sort_by_key(|error| match error.place {
            Place::Line(_, line) => line,
            _ => 0,
        });
    }

    fn add_text(&mut self, path: &Path) -> Result<(), ConfigError> {
        let text = read_file(path)?;
        let source = Source { path, text: &text };
        let spans = DeTable::parse(&text).map_err(|e| source.syntax(&e))?;
        let values: toml::Table = toml::from_str(&text).map_err(|e| source.syntax(&e))?;
        for (key, span) in spans.get_ref() {
            let (name, line) = (key.get_ref().as_ref(), source.place(key.span()));
            let value = values.get(name).cloned().unwrap_or(Value::Boolean(false));
            let section =
                sections().into_iter().find(|section| !section.name.is_empty() && section.name == name);
            let Some(section) = section else {
                self.add(name, value, line);
                continue;
            };
            match (span.get_ref(), value) {
                (DeValue::Table(inner_spans), Value::Table(inner)) => {
                    self.add_section(&section, inner_spans, inner, &source);
                }
                _ => self.errors.push(not_a_section(name, line)),
            }
        }
        Ok(())
    }

    fn add_section(
        &mut self,
        section: &Section,
        spans: &DeTable<'_>,
        values: toml::Table,
        source: &Source<'_>,
    ) {
        for (name, value) in values {
            let span =
                spans.iter().find(|(key, _)| key.get_ref().as_ref() == name).map(|(key, _)| key.span());
            let place = source.place(span.unwrap_or_default());
            self.add(&format!("{}.{name}", section.name), value, place);
        }
    }

    /// Takes the value of one setting, if there is such a setting and it takes that value.
    fn add(&mut self, key: &str, value: Value, place: Place) {
        if let Err(error) = check(key, &value, &place) {
            self.errors.push(error);
            self.refused.push(key.to_owned());
            return;
        }
        match key.split_once('.') {
            None => self.values.insert(key.to_owned(), value),
            Some((section, name)) => {
                let table = self.values.entry(section).or_insert_with(|| Value::Table(toml::Table::new()));
                table.as_table_mut().and_then(|table| table.insert(name.to_owned(), value))
            }
        };
        self.places.insert(key.to_owned(), place);
    }

    fn finish(self, with_key: bool) -> Result<Loaded, ConfigErrors> {
        let Self { values, places, mut errors, refused } = self;
        let config: Config = match Value::Table(values).try_into() {
            Ok(config) => config,
            Err(error) => {
                errors.push(unlike_settings(&error));
                Config::default()
            }
        };
        let is_refused = |key: &str| refused.iter().any(|refused| is_within(refused, key));
        for relation in config.broken_relations() {
            if relation.of.iter().any(|key| is_refused(key)) {
                continue;
            }
            let place = places.iter().find(|(key, _)| is_within(key, relation.key));
            errors.push(ConfigError {
                place: place.map_or(Place::Default, |(_, place)| place.clone()),
                what: relation.what.to_owned(),
                found: relation.found,
                needed: relation.needed,
                fix: relation.fix.to_owned(),
            });
        }
        let key = match config.key_file.as_deref().filter(|_| with_key).map(read_cluster_key) {
            Some(Ok(key)) => Some(key),
            Some(Err(error)) => {
                errors.push(error);
                None
            }
            None => None,
        };
        match ConfigErrors::of(errors) {
            Some(errors) => Err(errors),
            None => Ok(Loaded { config, places, key }),
        }
    }
}

/// Whether a key is this one, or lies in the section of this name.
fn is_within(key: &str, of: &str) -> bool {
    key.strip_prefix(of).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

fn unlike_settings(error: &toml::de::Error) -> ConfigError {
    ConfigError {
        place: Place::Default,
        what: "configuration cannot be read".to_owned(),
        found: error.message().to_owned(),
        needed: "values as in `weir config print`".to_owned(),
        fix: "the configuration file".to_owned(),
    }
}

/// Whether there is such a setting, and it takes this value.
fn check(key: &str, value: &Value, place: &Place) -> Result<(), ConfigError> {
    let Some(bounds) = bounds_of(key) else {
        return Err(unknown_key(key, place.clone()));
    };
    if let Some(name) = key.strip_prefix("peers.")
        && let Err(e) = NodeName::from_str(name)
    {
        return Err(ConfigError {
            place: place.clone(),
            what: "a peer needs the name of its node".to_owned(),
            found: format!("{name:?}, which {}", e.to_string().split("; needed").next().unwrap_or_default()),
            needed: Bounds::Name.needed(),
            fix: "the key in [peers]".to_owned(),
        });
    }
    if !bounds.allows(value) {
        return Err(ConfigError {
            place: place.clone(),
            what: format!("bad value of {key}"),
            found: shown(value),
            needed: bounds.needed(),
            fix: key.to_owned(),
        });
    }
    Ok(())
}

/// The bounds of the setting with this dotted key.
fn bounds_of(key: &str) -> Option<Bounds> {
    if key.starts_with("peers.") {
        return Some(Bounds::PeerAddress);
    }
    let (section, name) = key.rsplit_once('.').unwrap_or(("", key));
    let section = sections().into_iter().find(|known| known.name == section)?;
    section.settings.iter().find(|setting| setting.name == name).map(|setting| setting.bounds)
}

fn not_a_section(name: &str, place: Place) -> ConfigError {
    ConfigError {
        place,
        what: format!("{name} is a section"),
        found: "a value".to_owned(),
        needed: format!("[{name}] on a line of its own, its keys below it"),
        fix: format!("[{name}]"),
    }
}

fn unknown_key(key: &str, place: Place) -> ConfigError {
    ConfigError {
        place,
        what: "unknown key".to_owned(),
        found: format!("{key:?}"),
        needed: "a key that `weir config print` lists".to_owned(),
        fix: format!("the nearest known key is \"{}\"", nearest_key(key)),
    }
}

/// The known key or section that `key` most likely stands for: alike as a whole, or alike in its last part and in the
/// wrong section.
fn nearest_key(key: &str) -> String {
    let known = sections().into_iter().flat_map(|section| {
        let own = Some(section.name.to_owned()).filter(|name| !name.is_empty());
        own.into_iter().chain(section.settings.iter().map(move |setting| section.key(setting)))
    });
    let last = |key: &str| key.rsplit('.').next().unwrap_or_default().to_owned();
    let score = |candidate: &str| {
        let whole = strsim::normalized_damerau_levenshtein(key, candidate);
        let part = strsim::normalized_damerau_levenshtein(&last(key), &last(candidate)) - 0.1;
        whole.max(part)
    };
    known.max_by(|a, b| score(a).total_cmp(&score(b))).unwrap_or_default()
}

/// A value as a message shows it: one line, not too long.
fn shown(value: &Value) -> String {
    match value {
        Value::Table(_) => "a table".to_owned(),
        Value::Array(_) => "an array".to_owned(),
        Value::String(text) if text.chars().count() > 80 => {
            format!(
                "a text of {} bytes that begins {:?}",
                text.len(),
                text.chars().take(40).collect::<String>()
            )
        }
        Value::String(text) => format!("{text:?}"),
        other => other.to_string(),
    }
}

/// A file being read.
struct Source<'a> {
    path: &'a Path,
    text: &'a str,
}

impl Source<'_> {
    /// The line on which `span` begins.
    fn place(&self, span: Range<usize>) -> Place {
        let before = self.text.as_bytes().iter().take(span.start);
        let line = 1 + before.filter(|byte| **byte == b'\n').count();
        Place::Line(self.path.into(), u32::try_from(line).unwrap_or(u32::MAX))
    }

    fn syntax(&self, error: &toml::de::Error) -> ConfigError {
        let place = error.span().map_or(Place::File(self.path.into()), |span| self.place(span));
        ConfigError {
            place,
            what: "not valid TOML".to_owned(),
            found: error.message().replace('\n', ", "),
            needed: "KEY = VALUE lines below [SECTION] lines".to_owned(),
            fix: "that line; `weir config check` reads the file again".to_owned(),
        }
    }
}
