//! A configuration that is read anew: what of it takes effect in a node that runs.
//!
//! Whatever is made from now on is made by the new numbers; what exists keeps those that it was made with. So no pool
//! changes under a client, and no number that both ends of a link have agreed on.

use tokio::sync::oneshot;
use weir_flow::failure::{Failure, FailureCode};
use weir_flow::limits::Limits;

use super::Node;
use crate::attach::debloat::DebloatDefaults;
use crate::control::configuration::ConfigurationReport;
use crate::link::peer::PeerAddress;
use crate::link::resolve::Lookup;

/// The settings that can change while a node runs.
#[derive(Clone, Debug)]
pub struct LiveSettings {
    /// Peers to dial. None of them has the node's own name.
    pub peers: Vec<PeerAddress>,
    /// A name by which more of them are found.
    pub lookup: Option<Lookup>,
    /// The defaults of pools, and the bound on spanning records, count; nothing else of it.
    pub limits: Limits,
    /// What gates do whose client does not say whether they are debloated.
    pub debloat: DebloatDefaults,
    /// Bytes of all regions together. Less than before changes nothing.
    pub memory_bytes: u64,
    /// Most client processes attached at a time. Those that are attached stay.
    pub attachments_max: u32,
    /// Longest time that a drain may take which begins later.
    pub drain_timeout: std::time::Duration,
}

/// What a node is told when its configuration was read anew.
#[derive(Debug)]
pub(crate) struct Configure {
    /// What takes effect; nothing if it was not taken.
    pub(crate) settings: Option<LiveSettings>,
    /// What there is to say of it.
    pub(crate) report: ConfigurationReport,
    /// Answered when all of it holds.
    pub(crate) done: oneshot::Sender<()>,
}

impl Node {
    pub(super) fn handle_configure(&mut self, order: Configure) {
        let Configure { settings, report, done } = order;
        // A node that drains dials nobody any more.
        if let Some(settings) = settings.filter(|_| self.drain.is_none()) {
            self.take_settings(settings);
        }
        self.configuration = report;
        // The asker may have ended.
        let _ = done.send(());
    }

    fn take_settings(&mut self, settings: LiveSettings) {
        let LiveSettings { peers, lookup, limits, debloat, memory_bytes, attachments_max, drain_timeout } =
            settings;
        self.options.limits = Limits {
            exclusive: limits.exclusive,
            floating: limits.floating,
            quota: limits.quota,
            overdraft: limits.overdraft,
            retention: limits.retention,
            spanning_bytes_max: limits.spanning_bytes_max,
            ..self.options.limits.clone()
        };
        self.options.debloat = debloat;
        self.options.attachments_max = attachments_max;
        self.options.drain_timeout = drain_timeout;
        self.budget.raise(memory_bytes);
        self.change_peers(peers);
        self.look_up(lookup);
    }

    /// Dials those that are new or have moved, and lets go of those that are not named any more. A link that such a peer has
    /// dialled stays: it names this node.
    fn change_peers(&mut self, wanted: Vec<PeerAddress>) {
        let before = std::mem::replace(&mut self.options.peers, wanted.clone());
        for old in before.iter().filter(|old| !wanted.contains(old)) {
            let has_moved = wanted.iter().any(|new| new.node == old.node);
            let text = if has_moved {
                format!("peers of {} names another address of {}", self.identity.node, old.node)
            } else {
                format!("peers of {} does not name {} any more", self.identity.node, old.node)
            };
            tracing::info!(peer = %old.node, address = old.address, has_moved, "a peer is not dialled there any more");
            self.leave_peer(&old.node, Failure::new(FailureCode::LinkLost, text));
        }
        for new in wanted.into_iter().filter(|new| !before.contains(new)) {
            tracing::info!(peer = %new.node, address = new.address, "a peer is dialled");
            self.keep_peer(new);
        }
    }
}
