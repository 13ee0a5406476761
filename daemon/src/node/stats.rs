//! What the tasks and channels of this node and its peers did lately: taken once a second, told to every peer, and kept
//! of every peer for as long as it is linked.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use weir_flow::exchange::Name;
use weir_flow::wire::{Message, PROBES_TEXT_BYTES_MAX, Stats};

use super::Node;
use super::plan::PlanFacts;
use super::tasks_times::now_ns;
use crate::control::snapshot::Subsystem;
use crate::observe::tasks::{ChannelWindows, Collector, Pools, Reading, ShardMoment};
use crate::observe::tasks_sockets::SocketWindows;
use crate::shard::mailbox::ShardSnapshot;

/// A reading of a peer that is older than this is stale: the peer tells a new one every second.
pub(super) const STALE_AFTER: Duration = Duration::from_secs(3);

/// What was read last.
#[derive(Debug, Default)]
pub(super) struct Seen {
    own: Arc<Reading>,
    windows: ChannelWindows,
    sockets: SocketWindows,
    peers: BTreeMap<Name, PeerSeen>,
}

/// What a peer told last. Goes with its control link.
#[derive(Debug)]
struct PeerSeen {
    collector: Collector,
    /// When it told the reading; before the first one, when it was linked.
    told: Instant,
    whole: Arc<Reading>,
}

/// What one node did.
#[derive(Clone, Debug)]
pub(crate) struct NodeReading {
    pub(super) node: Name,
    /// How long ago it was told; before the first one, how long ago the node was linked.
    pub(super) age: Duration,
    pub(super) reading: Arc<Reading>,
}

impl NodeReading {
    /// Whether nothing is known of the node any more.
    pub(super) fn is_stale(&self) -> bool {
        self.age > STALE_AFTER
    }
}

/// Everything that is known of all tasks, at one moment.
#[derive(Debug)]
pub(crate) struct TasksFacts {
    pub(super) node: Name,
    pub(super) plan: PlanFacts,
    /// Of this node and of those that it is linked with.
    pub(super) readings: Vec<NodeReading>,
}

impl Seen {
    /// A peer is linked. What it did is told soon.
    pub(super) fn begin(&mut self, peer: &Name) {
        let (told, whole) = (Instant::now(), Arc::default());
        self.peers.insert(peer.clone(), PeerSeen { collector: Collector::default(), told, whole });
    }

    /// A peer tells a part of what its tasks and channels did.
    fn take(&mut self, peer: &Name, stats: Stats) {
        let Some(seen) = self.peers.get_mut(peer) else { return };
        if let Some(reading) = seen.collector.take(stats) {
            (seen.told, seen.whole) = (Instant::now(), Arc::new(reading));
        }
    }

    /// The link to a peer is lost, and what it told with it.
    pub(super) fn forget(&mut self, peer: &Name) {
        self.peers.remove(peer);
    }

    fn of_peer(&self, peer: &Name) -> NodeReading {
        let seen = self.peers.get(peer);
        NodeReading {
            node: peer.clone(),
            age: seen.map_or(Duration::MAX, |seen| seen.told.elapsed()),
            reading: seen.map(|seen| Arc::clone(&seen.whole)).unwrap_or_default(),
        }
    }
}

/// How sockets are looked at: state and reason of the line `probes` of `weir status`, as peers have it.
fn probes_text(line: &Subsystem) -> String {
    let mut text = line.state.as_str().to_owned();
    if let Some(reason) = &line.reason {
        text.push_str(": ");
        text.extend(reason.chars().map(|character| if character.is_control() { '?' } else { character }));
    }
    text.truncate(text.floor_char_boundary(PROBES_TEXT_BYTES_MAX));
    text
}

impl Node {
    /// A sample of what the shards count: with the times of the tasks it is the reading of this second.
    pub(super) fn handle_load(&mut self, snapshots: &[ShardSnapshot]) {
        let now = Instant::now();
        snapshots.iter().for_each(|snapshot| self.load.handle_sample(snapshot, now));
        self.handle_read_times();
        let now_ns = now_ns();
        let threads = self.processes.observe_shards(now_ns);
        let accounts = snapshots.iter().flat_map(|snapshot| {
            let accounts = snapshot.sockets.iter();
            accounts.map(|(link, account)| ((snapshot.shard, *link), snapshot.at.0, account))
        });
        let sockets = &self.seen.sockets.take(accounts);
        let channels = snapshots.iter().flat_map(|snapshot| {
            let thread = threads.get(&snapshot.shard).copied().unwrap_or_default();
            snapshot.channels.iter().map(move |channel| {
                let socket = channel.link.and_then(|link| sockets.get(&(snapshot.shard, link)).copied());
                (ShardMoment { at_ns: snapshot.at.0, thread, socket }, channel)
            })
        });
        let pools = Pools::new(
            snapshots.iter().flat_map(|snapshot| &snapshot.partitions),
            snapshots.iter().flat_map(|snapshot| &snapshot.gates),
        );
        let channels = self.seen.windows.take(channels, &pools);
        let probes = probes_text(&self.options.observer.line());
        let reading = Reading { probes, ..Reading::new(now_ns, self.own_times(now_ns), channels) };
        for stats in reading.frames() {
            self.peers.send_if_idle(&Message::Stats { stats });
        }
        self.seen.own = Arc::new(reading);
    }

    /// A peer tells what its tasks did.
    pub(super) fn handle_stats(&mut self, peer: &Name, stats: Stats) {
        self.seen.take(peer, stats);
    }

    /// Somebody asks what all tasks did.
    pub(super) fn handle_tasks(&self, reply: oneshot::Sender<TasksFacts>) {
        let own = NodeReading {
            node: self.options.node.clone(),
            age: match self.seen.own.read_at_ns {
                0 => self.started.elapsed(),
                read_at_ns => Duration::from_nanos(now_ns().saturating_sub(read_at_ns)),
            },
            reading: Arc::clone(&self.seen.own),
        };
        let (linked, _) = self.peers.linked_and_missing();
        let readings = std::iter::once(own).chain(linked.into_iter().map(|peer| self.seen.of_peer(peer)));
        let facts = TasksFacts {
            node: self.options.node.clone(),
            plan: self.plan_facts(),
            readings: readings.collect(),
        };
        // The asker may have given up.
        let _ = reply.send(facts);
    }
}
