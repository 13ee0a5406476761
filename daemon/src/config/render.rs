//! The configuration as text: the reference page, the commented default file, and the values in force.

use std::collections::BTreeMap;
use std::fmt::Write;

use toml::Value;

use super::Config;
use super::error::Place;
use super::setting::{Section, Setting, sections};

/// The configuration as a TOML table. Settings without a value are missing.
pub(super) fn values_of(config: &Config) -> toml::Table {
    toml::Table::try_from(config).unwrap_or_default()
}

fn value_of<'a>(values: &'a toml::Table, section: &Section, setting: &Setting) -> Option<&'a Value> {
    let table = if section.name.is_empty() { Some(values) } else { values.get(section.name)?.as_table() };
    table?.get(setting.name)
}

/// Lines of a doc comment as one paragraph.
fn paragraph(lines: &[&str]) -> String {
    lines.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ")
}

/// `docs/configuration.md`.
#[must_use]
pub fn markdown() -> String {
    let defaults = values_of(&Config::default());
    let mut page = String::from(
        "# Configuration\n\n\
         <!-- Made from daemon/src/config.rs by `weir config print --markdown`. Do not edit. -->\n\n\
         `weir daemon` reads `/etc/weir/weir.toml`, or the file named with `--config`, and then `conf.d/*.toml` in the\n\
         same directory in order of their names. Flags of the command line win over files, later files over earlier\n\
         ones, and a key that stands nowhere has its default. A missing `/etc/weir/weir.toml` is not an error.\n\n\
         An unknown key, a wrong type and a value out of bounds are errors: the daemon names file, line, the value\n\
         found and the values needed, and exits with 78. `weir config check` does the same without starting anything,\n\
         `weir config print` shows the values that a start would have, and with `--run-dir` those of the daemon that runs.\n\n\
         *A change needs* says what it takes: `reload` is `systemctl reload weir`, or SIGHUP to the daemon, and holds for what is\n\
         made from then on. What needs a restart is named in the log and by `weir status`, and waits.\n",
    );
    for section in sections() {
        let title =
            if section.name.is_empty() { "Top level".to_owned() } else { format!("`[{}]`", section.name) };
        let _ = write!(page, "\n## {title}\n\n{}\n", paragraph(section.doc));
        if section.name == "peers" {
            page.push_str("\n```toml\n[peers]\nb = \"10.0.0.2:7070\"\n```\n");
        }
        for setting in section.settings {
            markdown_of(&mut page, &section, setting, &defaults);
        }
    }
    page
}

fn markdown_of(page: &mut String, section: &Section, setting: &Setting, defaults: &toml::Table) {
    let default = value_of(defaults, section, setting);
    let default = default.map_or("not set".to_owned(), |value| format!("`{value}`"));
    let _ = write!(
        page,
        "\n### `{}`\n\n{}\n\n\
         | default | values | unit | a change needs | cost |\n|---|---|---|---|---|\n| {default} | {} | {} | {} | {} |\n",
        section.key(setting),
        paragraph(setting.doc),
        setting.bounds.needed(),
        setting.unit,
        setting.scope.as_str(),
        setting.cost,
    );
}

/// The default file: every setting, commented out, with its description.
#[must_use]
pub fn default_file() -> String {
    let defaults = values_of(&Config::default());
    let mut file = String::from(
        "# /etc/weir/weir.toml: configuration of the Weir daemon. Every line shows the default.\n\
         # docs/configuration.md says the same at length. `weir config check` reads this file without starting anything.\n",
    );
    for section in sections() {
        file.push('\n');
        if !section.name.is_empty() {
            push_comment(&mut file, section.doc);
            let _ = writeln!(file, "[{}]", section.name);
        }
        if section.name == "peers" {
            file.push_str("# b = \"10.0.0.2:7070\"\n");
        }
        for (nth, setting) in section.settings.iter().enumerate() {
            if nth > 0 {
                file.push('\n');
            }
            push_comment(&mut file, setting.doc);
            let _ = writeln!(
                file,
                "# Needed: {}. A change needs: {}.",
                setting.bounds.needed(),
                setting.scope.as_str()
            );
            match value_of(&defaults, &section, setting) {
                Some(value) => {
                    let _ = writeln!(file, "# {} = {value}", setting.name);
                }
                None => {
                    let _ = writeln!(file, "# {} = \"\"", setting.name);
                }
            }
        }
    }
    file
}

fn push_comment(file: &mut String, lines: &[&str]) {
    for line in lines {
        let _ = writeln!(file, "# {}", line.trim().replace('`', ""));
    }
}

/// The values of `config` as a file that would give the same configuration.
#[must_use]
pub fn effective_file(config: &Config) -> String {
    sourced_file(config, &BTreeMap::new())
}

/// As [`effective_file`]. Behind a value stands where it comes from, if `places` knows it.
#[must_use]
pub fn sourced_file(config: &Config, places: &BTreeMap<String, Place>) -> String {
    let values = values_of(config);
    let place = |key: &str| places.get(key).map(|place| format!("  # {place}")).unwrap_or_default();
    let mut file = String::new();
    for section in sections() {
        if !section.name.is_empty() {
            let _ = write!(file, "\n[{}]\n", section.name);
        }
        if section.name == "peers" {
            for (name, address) in &config.peers {
                // A name may hold a dot, which would divide a bare key.
                let _ = writeln!(file, "\"{name}\" = \"{address}\"{}", place(&format!("peers.{name}")));
            }
        }
        for setting in section.settings {
            if let Some(value) = value_of(&values, &section, setting) {
                let _ = writeln!(file, "{} = {value}{}", setting.name, place(&section.key(setting)));
            }
        }
    }
    file
}
