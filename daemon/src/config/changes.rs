//! What a configuration that is read anew changes in a daemon that runs: what takes effect, and what waits for a restart.

use toml::Value;

use super::render::values_of;
use super::setting::{Scope, sections};
use super::{Config, MemoryTotal};

/// A setting whose value is another one now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Its dotted key; of a peer `peers.NAME`.
    pub key: String,
    /// The value before, as the file would have it. `None`: it was not set.
    pub before: Option<String>,
    /// The value now.
    pub after: Option<String>,
}

/// What came of a configuration that was read anew.
#[derive(Clone, Debug)]
pub struct Applied {
    /// What is in effect from now on.
    pub config: Config,
    /// The settings that took effect.
    pub live: Vec<Change>,
    /// Those that wait for a restart.
    pub waiting: Vec<Change>,
}

/// What is in effect when a daemon that runs with `effective` reads `wanted`: the values of `wanted` for the settings whose
/// [`Scope`] allows that, the others as they were.
#[must_use]
pub fn apply(effective: &Config, wanted: &Config) -> Applied {
    let (mut values, news) = (values_of(effective), values_of(wanted));
    let (mut live, mut waiting) = (Vec::new(), Vec::new());
    for section in sections() {
        for setting in section.settings {
            let (before, after) =
                (get(&values, section.name, setting.name), get(&news, section.name, setting.name));
            if before == after {
                continue;
            }
            let change = Change {
                key: section.key(setting),
                before: before.map(ToString::to_string),
                after: after.map(ToString::to_string),
            };
            let is_live = match setting.scope {
                Scope::Reload => true,
                Scope::ReloadToRaise => is_raised(effective.memory.total, wanted.memory.total),
                Scope::Restart | Scope::RestartEverywhere => false,
            };
            if !is_live {
                waiting.push(change);
                continue;
            }
            let after = after.cloned();
            set(&mut values, section.name, setting.name, after);
            live.push(change);
        }
    }
    live.extend(changed_peers(effective, wanted));
    // The values of two configurations, each of which was one.
    let mut config: Config = Value::Table(values).try_into().unwrap_or_else(|_| effective.clone());
    config.peers.clone_from(&wanted.peers);
    Applied { config, live, waiting }
}

fn changed_peers(effective: &Config, wanted: &Config) -> Vec<Change> {
    let names = effective.peers.keys().chain(wanted.peers.keys());
    let mut names: Vec<_> = names.collect();
    names.sort();
    names.dedup();
    let quoted = |config: &Config, name| config.peers.get(name).map(|address| format!("\"{address}\""));
    names
        .into_iter()
        .map(|name| Change {
            key: format!("peers.{name}"),
            before: quoted(effective, name),
            after: quoted(wanted, name),
        })
        .filter(|change| change.before != change.after)
        .collect()
}

/// Whether the second is more on this machine. The same amount in another form counts as more: nothing must be given up.
fn is_raised(before: MemoryTotal, after: MemoryTotal) -> bool {
    let machine = super::memory_of_process();
    after.bytes(machine) >= before.bytes(machine)
}

fn get<'a>(values: &'a toml::Table, section: &str, name: &str) -> Option<&'a Value> {
    let table = if section.is_empty() { Some(values) } else { values.get(section)?.as_table() };
    table?.get(name)
}

fn set(values: &mut toml::Table, section: &str, name: &str, value: Option<Value>) {
    let table =
        if section.is_empty() { Some(values) } else { values.get_mut(section).and_then(Value::as_table_mut) };
    let Some(table) = table else { return };
    match value {
        Some(value) => table.insert(name.to_owned(), value),
        None => table.remove(name),
    };
}

#[cfg(test)]
mod tests {
    use super::super::setting::Bounds;
    use super::*;

    fn read(text: &str) -> Config {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn what_can_change_changes_and_the_rest_waits() {
        let before =
            read("node = 'a'\nshards = 2\n[peers]\nb = 'h:1'\nc = 'h:2'\n[memory]\ntotal = '64 MiB'\n");
        let after = read(
            "node = 'a'\nshards = 3\nmetrics.listen = '127.0.0.1:1'\ndrain_timeout = '1s'\n[peers]\nc = 'h:3'\nd = 'h:4'\n\
             [memory]\ntotal = '65 MiB'\n[log]\nlevel = 'debug'\nformat = 'json'\n",
        );
        let Applied { config, live, waiting } = apply(&before, &after);
        let keys = |changes: &[Change]| changes.iter().map(|change| change.key.clone()).collect::<Vec<_>>();
        assert_eq!(
            keys(&live),
            ["drain_timeout", "memory.total", "log.level", "peers.b", "peers.c", "peers.d"]
        );
        assert_eq!(keys(&waiting), ["shards", "log.format", "metrics.listen"]);
        assert_eq!(
            waiting[0],
            Change { key: "shards".into(), before: Some("2".into()), after: Some("3".into()) }
        );
        assert_eq!(waiting[2].before, None);
        assert_eq!((live[3].after.clone(), live[4].after.as_deref()), (None, Some("\"h:3\"")));
        // In effect is the new one with what waits as it was.
        let mut expected = after.clone();
        (expected.shards, expected.log.format) = (before.shards, before.log.format);
        expected.metrics.listen = None;
        assert_eq!(config, expected);
        // Once more: nothing is new, and the same waits.
        let again = apply(&config, &after);
        assert_eq!((again.live, again.waiting, again.config), (Vec::new(), waiting, config));
    }

    #[test]
    fn the_bound_on_memory_is_raised_and_not_lowered() {
        let of = |total: &str| read(&format!("[memory]\ntotal = '{total}'\n"));
        let raised = apply(&of("64 MiB"), &of("1 GiB"));
        assert_eq!((raised.live.len(), raised.waiting.len()), (1, 0));
        let lowered = apply(&of("64 MiB"), &of("32 MiB"));
        assert_eq!((lowered.live.len(), lowered.waiting.len()), (0, 1));
        assert_eq!(lowered.config, of("64 MiB"));
    }

    #[test]
    fn only_one_setting_is_bounded_by_what_it_was() {
        let raised = sections()
            .into_iter()
            .flat_map(|section| section.settings)
            .filter(|setting| setting.scope == Scope::ReloadToRaise);
        let bounds: Vec<Bounds> = raised.map(|setting| setting.bounds).collect();
        assert!(matches!(bounds.as_slice(), [Bounds::MemoryTotal]), "{bounds:?}");
    }
}
