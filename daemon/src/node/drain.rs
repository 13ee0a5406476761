//! How a node stops: nobody new is let in, what is queued is sent, then everybody is told and let go.
//!
//! Clients that come meanwhile are told why they are not let in. Where the service manager keeps the sockets they are not
//! accepted: they wait for the next daemon, and their connection is reset if none comes.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;
use weir_flow::failure::{Failure, FailureCode};

use super::Node;
use super::report::{NodeFacts, NodeReport, RegionReport, ask_shards};
use crate::attach::descriptors;
use crate::control::snapshot::MemoryReport;
use crate::shard::mailbox::ToShard;

/// How long the last words may take to be written.
pub(super) const FAREWELL_TIMEOUT: Duration = Duration::from_secs(1);

/// A drain that has begun.
#[derive(Debug)]
pub(super) struct Drain {
    deadline: Instant,
    /// Shards that still have something to send.
    waiting: BTreeSet<u16>,
}

impl Drain {
    pub(super) fn deadline(&self) -> Instant {
        self.deadline
    }
}

impl Node {
    /// The node is to stop. A second order changes nothing.
    pub(super) fn handle_drain(&mut self) {
        if self.drain.is_some() {
            return;
        }
        self.acceptors.abort_all();
        if self.run_dir.has_heirs() {
            // Clients that come from now on are the next daemon's.
            self.reception.abort_all();
        }
        let waiting = self.shards.iter().map(|shard| shard.shard()).collect();
        self.drain = Some(Drain { deadline: Instant::now() + self.options.drain_timeout, waiting });
        for shard in &self.shards {
            if !shard.send(ToShard::Drain) {
                tracing::debug!(shard = shard.shard(), "a shard has ended before the drain");
            }
        }
        tracing::info!(timeout = ?self.options.drain_timeout, "draining");
    }

    pub(super) fn handle_shard_drained(&mut self, shard: u16) {
        if let Some(drain) = &mut self.drain {
            drain.waiting.remove(&shard);
        }
    }

    pub(super) fn is_drained(&self) -> bool {
        self.drain.as_ref().is_some_and(|drain| drain.waiting.is_empty())
    }

    /// What everybody is told who wants something of a node that drains.
    pub(super) fn stopping() -> Failure {
        Failure::new(FailureCode::Stopping, "the daemon is stopping")
    }

    /// Tells everybody and lets go. Whoever does not read it in time is cut off.
    pub(super) async fn say_goodbye(mut self) {
        self.acceptors.abort_all();
        self.reception.abort_all();
        self.keepers.abort_all();
        self.inbox.close();
        self.detach_all();
        self.peers.close_all(&Self::stopping());
        for shard in &self.shards {
            shard.send(ToShard::Stop);
        }
        let written = async { while self.tasks.join_next().await.is_some() {} };
        // Tasks that are left end with the node.
        let _ = tokio::time::timeout(FAREWELL_TIMEOUT, written).await;
    }

    /// Somebody asks for a report: the node's part now, the shards' parts when they answer.
    pub(super) fn handle_report(&mut self, reply: oneshot::Sender<NodeReport>) {
        self.handle_regions_gone();
        let (hugepages, ordinary) = self.attachments.regions();
        let facts = NodeFacts {
            node: self.options.node.to_string(),
            started: self.started,
            listen: self.listen,
            has_key: self.options.key.is_some(),
            memory: MemoryReport {
                used_bytes: self.budget.used(),
                behind_regions_bytes: 0,
                high_water_bytes: self.budget.high_water(),
                total_bytes: self.budget.total(),
            },
            regions: RegionReport { mode: self.options.hugepages, hugepages, ordinary },
            kept: self.attachments.holds.kept(),
            peers: self.peers.reports(self.started.elapsed(), |peer| self.links.count(peer)),
            attachments: self.attachments.attached().count(),
            attachments_max: self.options.attachments_max,
            descriptors: descriptors::limit(),
            shards: self.identity.shards,
            placements: self.options.placement.report(),
            memory_by_shard: self.attachments.memory_by_shard(),
            is_draining: self.drain.is_some(),
            vanished: self.run_dir.vanished().map(|path| path.display().to_string()).collect(),
            refused: self.refused.last(),
            found: self.discovery.line(),
            probes: self.options.observer.line(),
            hooks: self.options.observer.hooks(),
            privileges: self.options.privileges.clone(),
            configuration: self.configuration.clone(),
        };
        let shards = self.shards.clone();
        self.tasks.spawn(async move {
            let shards = ask_shards(&shards).await;
            // The asker may have given up.
            let _ = reply.send(NodeReport { facts, shards });
        });
    }
}
