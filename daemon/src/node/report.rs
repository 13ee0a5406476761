//! What a node says about itself: gathered from the node and every shard, put into the form of the control socket.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use weir_flow::stats::{ChannelStats, Side};

use crate::control::snapshot::{
    ChannelRow, ChannelSide, ChannelsReport, MemoryReport, SCHEMA_VERSION, StatusReport, Subsystem,
};
use crate::memory::{HugepageMode, system};
use crate::shard::mailbox::{ShardSender, ShardSnapshot, ToShard};

/// How long a shard may take to answer. A healthy one needs a few milliseconds.
pub(super) const SHARD_ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// State of a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PeerReport {
    pub(super) name: String,
    /// `host:port` from the configuration; none for a peer that dialled us.
    pub(super) address: Option<String>,
    pub(super) is_linked: bool,
    pub(super) data_links: usize,
    /// Why there is no link, as far as is known.
    pub(super) reason: Option<String>,
}

/// What regions are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RegionReport {
    pub(super) mode: HugepageMode,
    /// Regions that exist and are made of hugepages.
    pub(super) hugepages: u32,
    /// Regions that exist and are made of ordinary pages.
    pub(super) ordinary: u32,
}

/// What the node knows by itself.
#[derive(Clone, Debug)]
pub(super) struct NodeFacts {
    pub(super) node: String,
    pub(super) started: Instant,
    pub(super) listen: SocketAddr,
    pub(super) has_key: bool,
    pub(super) memory: MemoryReport,
    pub(super) regions: RegionReport,
    pub(super) peers: Vec<PeerReport>,
    pub(super) attachments: usize,
    pub(super) attachments_max: u32,
    pub(super) shards: u16,
    pub(super) is_draining: bool,
    /// The last stranger that was refused, if any.
    pub(super) refused: Option<String>,
}

/// Everything, at about one moment.
#[derive(Debug)]
pub(crate) struct NodeReport {
    pub(super) facts: NodeFacts,
    pub(super) shards: Vec<ShardSnapshot>,
}

/// Asks every shard at once. A shard that does not answer in time is missing.
pub(super) async fn ask_shards(shards: &[ShardSender]) -> Vec<ShardSnapshot> {
    let answers: Vec<oneshot::Receiver<ShardSnapshot>> = shards
        .iter()
        .map(|shard| {
            let (reply, answer) = oneshot::channel();
            // A shard that has ended drops the question, which the answer shows.
            shard.send(ToShard::Snapshot { reply });
            answer
        })
        .collect();
    let deadline = tokio::time::Instant::now() + SHARD_ANSWER_TIMEOUT;
    let mut snapshots = Vec::with_capacity(answers.len());
    for answer in answers {
        if let Ok(Ok(snapshot)) = tokio::time::timeout_at(deadline, answer).await {
            snapshots.push(snapshot);
        }
    }
    snapshots
}

impl NodeReport {
    /// The answer to `GET /v1/status`.
    pub(super) fn status(&self) -> StatusReport {
        let facts = &self.facts;
        let mut subsystems = vec![node_line(facts), listener_line(facts)];
        subsystems.extend(facts.peers.iter().map(peer_line));
        if facts.peers.is_empty() {
            subsystems.push(Subsystem::off("peers", "no peer is configured and none has dialled"));
        }
        subsystems.push(memory_line(facts.regions));
        subsystems.push(budget_line(facts.memory));
        subsystems.push(self.io_line());
        subsystems.push(self.shards_line());
        subsystems.push(Subsystem::ok(
            "attach",
            format!("{} of {} attachments", facts.attachments, facts.attachments_max),
        ));
        StatusReport {
            schema_version: SCHEMA_VERSION,
            node: facts.node.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_seconds: facts.started.elapsed().as_secs(),
            listen: facts.listen.to_string(),
            memory: facts.memory,
            subsystems,
        }
    }

    /// The answer to `GET /v1/channels`.
    pub(super) fn channels(&self) -> ChannelsReport {
        let mut channels: Vec<ChannelRow> = self
            .shards
            .iter()
            .flat_map(|shard| shard.channels.iter().map(|channel| channel_row(shard.shard, channel)))
            .collect();
        channels.sort_by(|a, b| {
            (&a.exchange, a.side, a.producer, a.consumer).cmp(&(&b.exchange, b.side, b.producer, b.consumer))
        });
        ChannelsReport { schema_version: SCHEMA_VERSION, node: self.facts.node.clone(), channels }
    }

    fn io_line(&self) -> Subsystem {
        match self.shards.first() {
            // The probe's line: what is used, then behind a colon what is lost.
            Some(shard) => match shard.ring_level.split_once(": ") {
                None => Subsystem::ok("io_uring", shard.ring_level.clone()),
                Some((level, lost)) => {
                    Subsystem::degraded("io_uring", level, lost, "a newer kernel, or io.level")
                }
            },
            None => Subsystem::degraded(
                "io_uring",
                "",
                "no shard answers",
                "see the log of the daemon, then restart it",
            ),
        }
    }

    fn shards_line(&self) -> Subsystem {
        let wanted = usize::from(self.facts.shards);
        let longest_ns = self.shards.iter().map(|shard| shard.turns.longest_ns).max().unwrap_or(0);
        let links: u32 = self.shards.iter().map(|shard| shard.counts.links).sum();
        let detail = format!("{wanted} shards, {links} data links, longest turn {} us", longest_ns / 1000);
        if self.shards.len() == wanted {
            return Subsystem::ok("shards", detail);
        }
        let reason = format!("{} of {wanted} answer within {SHARD_ANSWER_TIMEOUT:?}", self.shards.len());
        Subsystem::degraded("shards", detail, reason, "give the daemon more CPU time, or set fewer shards")
    }
}

fn node_line(facts: &NodeFacts) -> Subsystem {
    if facts.is_draining {
        return Subsystem::degraded(
            "node",
            facts.node.clone(),
            "draining: told to stop",
            "start the daemon again",
        );
    }
    Subsystem::ok("node", facts.node.clone())
}

fn listener_line(facts: &NodeFacts) -> Subsystem {
    let authentication =
        if facts.has_key { "peers prove the cluster key" } else { "loopback only, no cluster key" };
    let detail = format!("{}, {authentication}", facts.listen);
    match &facts.refused {
        None => Subsystem::ok("listener", detail),
        Some(refused) => Subsystem::ok("listener", format!("{detail}; last refused: {refused}")),
    }
}

fn peer_line(peer: &PeerReport) -> Subsystem {
    let name = format!("peer/{}", peer.name);
    let address = peer.address.as_deref().unwrap_or("it dials this node");
    if peer.is_linked {
        return Subsystem::ok(&name, format!("{address}, linked, {} data links", peer.data_links));
    }
    let reason = peer.reason.clone().unwrap_or_else(|| "not linked yet".to_owned());
    let fix = match &peer.address {
        Some(address) => {
            format!("start weir on {}, or correct peers.{} = \"{address}\"", peer.name, peer.name)
        }
        None => format!("start weir on {}, or add --peer {}=HOST:PORT", peer.name, peer.name),
    };
    Subsystem::degraded(&name, address, reason, fix)
}

fn memory_line(regions: RegionReport) -> Subsystem {
    let RegionReport { mode, hugepages, ordinary } = regions;
    let detail = format!("{hugepages} regions of hugepages, {ordinary} of ordinary pages");
    let pool = system::hugepages(std::path::Path::new(system::ROOT)).unwrap_or_default();
    match mode {
        HugepageMode::Off => Subsystem::ok("memory", format!("{detail}; memory.hugepages = \"off\"")),
        HugepageMode::Auto if ordinary > 0 || (hugepages == 0 && pool.available() == 0) => {
            Subsystem::degraded(
                "memory",
                detail,
                format!("{} hugepages of 2 MiB are free", pool.available()),
                pool.fix(pool.available().saturating_add(64)),
            )
        }
        HugepageMode::Auto | HugepageMode::Require => Subsystem::ok("memory", detail),
    }
}

fn budget_line(memory: MemoryReport) -> Subsystem {
    let MemoryReport { used_bytes, high_water_bytes, total_bytes } = memory;
    Subsystem::ok("budget", format!("{used_bytes} of {total_bytes} bytes used, at most {high_water_bytes}"))
}

fn channel_row(shard: u16, channel: &ChannelStats) -> ChannelRow {
    ChannelRow {
        exchange: channel.exchange.to_string(),
        side: match channel.side {
            Side::Send => ChannelSide::Send,
            Side::Receive => ChannelSide::Receive,
        },
        producer: channel.producer.0,
        producers: channel.producers,
        consumer: channel.consumer.0,
        consumers: channel.consumers,
        peer: channel.peer.as_ref().map(ToString::to_string).unwrap_or_default(),
        strategy: channel.strategy.to_string(),
        shard,
        state: channel.state.to_owned(),
        credit: channel.credit,
        backlog: channel.backlog,
        queued_bytes: channel.queued_bytes,
        unacked_bytes: channel.unacked_bytes,
        receiver_ready: channel.receiver_ready,
        receiver_held: channel.receiver_held,
        bytes_total: channel.bytes_total,
        buffers_total: channel.buffers_total,
        records_total: channel.records_total,
        // Nanoseconds of a century still have 53 bits' worth of microseconds.
        send_stalled_seconds_total: channel.send_stalled_ns as f64 / 1e9,
    }
}

#[cfg(test)]
mod tests {
    use weir_flow::limits::Limits;
    use weir_flow::pool::partition::PartitionPoolSpec;
    use weir_flow::pool::sizing::GateBuffers;

    use super::*;
    use crate::control::snapshot::Health;
    use crate::memory::{HUGEPAGE_BYTES, planned_bytes};

    const PAGE: &str = include_str!("../../../docs/operations.md");

    /// A node where everything is wrong that can be.
    fn report(peers: Vec<PeerReport>) -> NodeReport {
        let facts = NodeFacts {
            node: "a".to_owned(),
            started: Instant::now(),
            listen: "127.0.0.1:7070".parse().unwrap(),
            has_key: false,
            memory: MemoryReport::default(),
            regions: RegionReport { mode: HugepageMode::Auto, hugepages: 0, ordinary: 1 },
            peers,
            attachments: 0,
            attachments_max: 1,
            shards: 2,
            is_draining: true,
            refused: None,
        };
        NodeReport { facts, shards: Vec::new() }
    }

    #[test]
    fn the_page_for_operators_explains_every_line_of_status() {
        let peer = PeerReport {
            name: "NAME".to_owned(),
            address: None,
            is_linked: false,
            data_links: 0,
            reason: None,
        };
        let subsystems =
            [report(vec![peer]), report(Vec::new())].map(|report| report.status().subsystems).concat();
        for Subsystem { name, state, .. } in subsystems {
            let state = match state {
                Health::Ok => "always OK",
                Health::Degraded => "DEGRADED",
                Health::Off => "OFF",
            };
            let row = format!("| `{name}` | {state}");
            assert!(PAGE.contains(&row), "docs/operations.md has no row {row}");
        }
    }

    #[test]
    fn the_page_for_operators_counts_hugepages_as_regions_are_made() {
        let limits = Limits::default();
        let pages = |segments| {
            planned_bytes(segments, limits.segment_bytes, HugepageMode::Auto).unwrap() / HUGEPAGE_BYTES
        };
        let Limits { exclusive, floating, retention, overdraft, .. } = limits;
        let partition = PartitionPoolSpec::sized(64, exclusive, floating, retention, overdraft).segments;
        let gate = GateBuffers::of(64, exclusive, floating).total;
        for (segments, what) in [(partition, "partitions"), (gate, "gates")] {
            let (each, all) = (pages(segments), 8 * pages(segments));
            let row = PAGE.lines().find(|line| line.starts_with(&format!("| 8 {what} |"))).unwrap();
            assert!(row.ends_with(&format!("= {segments} | {each} | {all} |")), "{segments} {each}: {row}");
        }
    }
}
