//! Reading the configuration of a daemon that runs anew, which SIGHUP orders.
//!
//! It is read whole and checked whole before anything of it takes effect. If anything is wrong, all stays as it was.

use std::collections::BTreeMap;
use std::path::PathBuf;

use tokio::signal::unix::Signal;

use super::log::Level;
use super::{systemd, wiring};
use crate::config::{
    self, Applied, Change, ClusterKey, Config, ConfigErrors, DEFAULT_FILE, Loaded, NodeName, Override, Place,
};
use crate::control::configuration::{ConfigurationReport, WaitingSetting};
use crate::exit::Problem;
use crate::node::NodeHandle;

/// Where a daemon's configuration comes from.
#[derive(Clone, Debug)]
pub(super) struct Source {
    /// The file that was named, if one was.
    pub(super) file: Option<PathBuf>,
    /// The flags.
    pub(super) overrides: Vec<Override>,
}

impl Source {
    /// Reads all of it.
    pub(super) fn read(&self) -> Result<Loaded, ConfigErrors> {
        config::load_all(self.file.as_deref(), &self.overrides)
    }
}

/// What reloads.
pub(super) struct Reloader {
    source: Source,
    /// What is in effect.
    effective: Config,
    /// The cluster key in effect.
    key: Option<ClusterKey>,
    report: ConfigurationReport,
    level: Option<Level>,
}

impl Reloader {
    /// For a daemon that has started with what was `loaded`.
    pub(super) fn new(source: Source, loaded: Loaded, level: Option<Level>) -> Self {
        let file = source.file.clone().unwrap_or_else(|| PathBuf::from(DEFAULT_FILE));
        let report = ConfigurationReport {
            file: file.display().to_string(),
            effective: config::sourced_file(&loaded.config, &loaded.places),
            ..ConfigurationReport::default()
        };
        Self { source, effective: loaded.config, key: loaded.key, report, level }
    }

    /// Reloads at each signal, until dropped.
    pub(super) async fn run(mut self, mut hangup: Signal, node: NodeHandle) {
        node.configure(None, self.report.clone()).await;
        while hangup.recv().await.is_some() {
            systemd::notify(&systemd::reloading());
            self.reload(&node).await;
            // The manager waits for this. One that has ended has told so already.
            let Ok(beat) = node.beat().await else { return };
            systemd::notify(&systemd::with_status(systemd::READY, &beat.line));
        }
    }

    async fn reload(&mut self, node: &NodeHandle) {
        let source = self.source.clone();
        // Files may lie where reading takes its time.
        let loaded = tokio::task::spawn_blocking(move || source.read()).await;
        let settings = match loaded {
            Ok(Ok(loaded)) => self.take(&loaded),
            Ok(Err(errors)) => Err(errors.iter().map(ToString::to_string).collect()),
            Err(error) => Err(vec![format!("the configuration was not read: {error}")]),
        };
        let settings = match settings {
            Ok(settings) => Some(settings),
            Err(errors) => {
                for error in &errors {
                    tracing::error!(%error, "configuration not taken: what was in effect still is");
                }
                self.report.reloads_failed_total = self.report.reloads_failed_total.saturating_add(1);
                self.report.errors = errors;
                None
            }
        };
        node.configure(settings, self.report.clone()).await;
    }

    /// Takes what can change; what the node is to change of it. If it cannot be, why not, and nothing is changed.
    fn take(&mut self, loaded: &Loaded) -> Result<crate::node::LiveSettings, Vec<String>> {
        let Applied { config, live, mut waiting } = config::apply(&self.effective, &loaded.config);
        let name = NodeName(self.effective.node_name());
        if config.peers.contains_key(&name) {
            return Err(vec![format!(
                "peers names {name}, which this node is until it is restarted; fix: restart the daemon"
            )]);
        }
        let settings =
            wiring::live_settings(&config).map_err(|problem: Problem| vec![problem.to_string()])?;
        if loaded.key != self.key && config.key_file == loaded.config.key_file {
            let (before, after) = ("the key that it held at the start", "another key");
            let [before, after] = [before, after].map(|text| Some(text.to_owned()));
            waiting.push(Change { key: "key_file".into(), before, after });
        }
        if let Some(level) = self.level.as_ref().filter(|_| config.log.level != self.effective.log.level) {
            level.set(config.log.level);
        }
        self.say(&live, &waiting);
        let mut places = loaded.places.clone();
        places.retain(|key, _| waiting.iter().all(|change| change.key != *key));
        self.report = ConfigurationReport {
            reloads_total: self.report.reloads_total.saturating_add(1),
            effective: config::sourced_file(&config, &places),
            waiting: waiting.into_iter().map(|change| waits(change, &loaded.places)).collect(),
            errors: Vec::new(),
            ..self.report.clone()
        };
        self.effective = config;
        Ok(settings)
    }

    fn say(&self, live: &[Change], waiting: &[Change]) {
        let keys: Vec<&str> = live.iter().map(|change| change.key.as_str()).collect();
        tracing::info!(changed = keys.join(", "), waiting = waiting.len(), "configuration reloaded");
        for Change { key, before, after } in waiting {
            tracing::warn!(
                key,
                effective = before,
                wanted = after,
                "a setting needs a restart: it waits for one"
            );
        }
    }
}

fn waits(change: Change, places: &BTreeMap<String, Place>) -> WaitingSetting {
    let Change { key, before, after } = change;
    let place = places.get(&key).map(ToString::to_string);
    WaitingSetting { key, effective: before, wanted: after, place }
}
