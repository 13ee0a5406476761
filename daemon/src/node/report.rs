//! What a node says about itself: gathered from the node and every shard, put into the form of the control socket.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Instant;

use tokio::sync::oneshot;
use weir_flow::ids::LinkId;
use weir_flow::state::LinkState;
use weir_flow::stats::{ChannelStats, LinkStats, Side};

use super::shards::MemoryByShard;
use super::zero_copy;
use crate::attach::descriptors;
use crate::control::configuration::ConfigurationReport;
use crate::control::gates::GateRow;
use crate::control::snapshot::{
    self, ChannelRow, ChannelSide, ChannelsReport, HookRow, LinkRow, MemoryReport, SCHEMA_VERSION,
    SHARD_ANSWER_TIMEOUT, StatusReport, Subsystem,
};
use crate::control::stalls::{Clocks, StallsReport, StallsSource, WaitReport};
use crate::io::probe::LOST_FIX;
use crate::memory::{HugepageMode, TAIL_BYTES, cgroup, mebibytes, system};
use crate::privileges::Privileges;
use crate::shard::mailbox::{ShardSender, ShardSnapshot, ToShard};
use crate::shard::placement::report::Placements;

/// What helps a shard that does not answer.
const SLOW_SHARD_FIX: &str = "give the daemon more CPU time, or set fewer shards";

/// Keepers of memory that has ended that are named, of those with the most.
const KEEPERS_NAMED: usize = 3;

/// State of a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PeerReport {
    pub(super) name: String,
    /// `host:port` from the configuration; none for a peer that dialled us.
    pub(super) address: Option<String>,
    /// Whether that comes from `peers_dns`.
    pub(super) is_found: bool,
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
    /// Who keeps how many bytes of regions that have ended, the most first.
    pub(super) kept: Vec<(String, u64)>,
    pub(super) peers: Vec<PeerReport>,
    /// What was found by name, if there is one.
    pub(super) found: Option<Subsystem>,
    pub(super) attachments: usize,
    pub(super) attachments_max: u32,
    /// File descriptors that the daemon may have; none if there is no limit.
    pub(super) descriptors: Option<u64>,
    pub(super) shards: u16,
    /// Where they are.
    pub(super) placements: Placements,
    /// Where the regions of each are.
    pub(super) memory_by_shard: MemoryByShard,
    pub(super) is_draining: bool,
    /// Sockets of the node that were removed.
    pub(super) vanished: Vec<String>,
    /// The last stranger that was refused, if any.
    pub(super) refused: Option<String>,
    /// How sockets are observed.
    pub(super) probes: Subsystem,
    /// What became of each hook of the probes.
    pub(super) hooks: Vec<HookRow>,
    /// What became of capabilities.
    pub(super) privileges: Privileges,
    /// What is in effect of the configuration.
    pub(super) configuration: ConfigurationReport,
}

/// Everything, at about one moment.
#[derive(Debug)]
pub(crate) struct NodeReport {
    pub(super) facts: NodeFacts,
    pub(super) shards: Vec<ShardSnapshot>,
}

/// Asks every shard at once. A shard that does not answer in time is missing, which the numbers of the others show.
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
        subsystems.extend(facts.found.clone());
        if facts.peers.is_empty() && facts.found.is_none() {
            subsystems.push(Subsystem::off("peers", "no peer is configured and none has dialled"));
        }
        let links = self.links();
        let missing = self.missing();
        subsystems.push(links_line(&links, &missing));
        subsystems.push(memory_line(facts.regions));
        let memory = self.memory();
        subsystems.push(budget_line(memory, &facts.kept, memory_limit(facts.regions.mode)));
        subsystems.push(self.io_line());
        subsystems.push(zero_copy::line(&self.shards));
        subsystems.push(self.shards_line());
        subsystems.push(facts.placements.line());
        subsystems.push(facts.probes.clone());
        subsystems.push(attach_line(facts));
        subsystems.push(facts.privileges.line());
        subsystems.push(facts.configuration.line());
        StatusReport {
            schema_version: SCHEMA_VERSION,
            node: facts.node.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_seconds: facts.started.elapsed().as_secs(),
            listen: facts.listen.to_string(),
            memory,
            subsystems,
            links,
            shards: self.shard_rows(),
            shards_missing: missing,
            capabilities_given_up: facts.privileges.given_up.iter().map(ToString::to_string).collect(),
            hooks: facts.hooks.clone(),
            zero_copy: self.shards.first().map(|shard| shard.zero_copy.setting.clone()),
        }
    }

    /// That of regions, and what lies behind those that are registered, of which only the shards know: the most so far is of regions
    /// alone.
    fn memory(&self) -> MemoryReport {
        let registered = self.shards.iter().map(|shard| u64::from(shard.zero_copy.registered.regions));
        let behind_regions_bytes = registered.sum::<u64>() * TAIL_BYTES as u64;
        let MemoryReport { used_bytes, high_water_bytes, total_bytes, .. } = self.facts.memory;
        let used_bytes = used_bytes + behind_regions_bytes;
        MemoryReport { used_bytes, behind_regions_bytes, high_water_bytes, total_bytes }
    }

    /// Shards that did not answer.
    pub(super) fn missing(&self) -> Vec<u16> {
        let answered = |number: &u16| self.shards.iter().any(|shard| shard.shard == *number);
        (0..self.facts.shards).filter(|number| !answered(number)).collect()
    }

    /// The answer to `GET /v1/channels`.
    pub(super) fn channels(&self) -> ChannelsReport {
        let (mut channels, mut gates) = (Vec::new(), Vec::new());
        for shard in &self.shards {
            let clocks = Clocks::now(shard.at);
            let of_shard: Vec<GateRow> =
                shard.gates.iter().map(|gate| GateRow::new(shard.shard, gate)).collect();
            let seconds: BTreeMap<(&str, u32), f64> = of_shard
                .iter()
                .filter_map(|gate| Some(((&*gate.exchange, gate.consumer), gate.in_flight_seconds()?)))
                .collect();
            channels.extend(shard.channels.iter().map(|channel| {
                let in_flight_seconds = (channel.side == Side::Receive)
                    .then(|| seconds.get(&(channel.exchange.as_str(), channel.consumer.0)).copied())
                    .flatten();
                ChannelRow { in_flight_seconds, ..channel_row(shard.shard, channel, &clocks) }
            }));
            gates.extend(of_shard);
        }
        channels.sort_by(|a, b| {
            (&a.exchange, a.side, a.producer, a.consumer).cmp(&(&b.exchange, b.side, b.producer, b.consumer))
        });
        gates.sort_by(|a, b| (&a.exchange, a.consumer).cmp(&(&b.exchange, b.consumer)));
        let (node, shards_missing) = (self.facts.node.clone(), self.missing());
        ChannelsReport { schema_version: SCHEMA_VERSION, node, channels, gates, shards_missing }
    }

    /// The answer to `GET /v1/stalls`.
    pub(super) fn stalls(&self) -> StallsReport {
        let (node, shards) = (self.facts.node.as_str(), self.shards.as_slice());
        StallsSource { node, shards, links: self.numbered_links(), shards_missing: self.missing() }.report()
    }

    fn links(&self) -> Vec<LinkRow> {
        self.numbered_links().into_iter().map(|(_, row)| row).collect()
    }

    /// Every link with the number that its shard has for it.
    fn numbered_links(&self) -> Vec<(LinkId, LinkRow)> {
        let rows = self.shards.iter();
        let mut rows: Vec<(LinkId, LinkRow)> = rows
            .flat_map(|shard| shard.links.iter().map(|link| (link.link, link_row(shard, link))))
            .collect();
        rows.sort_by(|(_, a), (_, b)| {
            (&a.peer, a.shard, a.peer_shard).cmp(&(&b.peer, b.shard, b.peer_shard))
        });
        rows
    }

    fn io_line(&self) -> Subsystem {
        match self.shards.first() {
            // The probe's line: what is used, then behind a colon what is lost.
            Some(shard) => match shard.ring_level.split_once(": ") {
                None => Subsystem::ok("io_uring", shard.ring_level.clone()),
                Some((level, lost)) => Subsystem::degraded("io_uring", level, lost, LOST_FIX),
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
        let detail = format!("{wanted} shards, longest turn {} us", longest_ns / 1000);
        if self.shards.len() == wanted {
            return Subsystem::ok("shards", detail);
        }
        let reason = format!("{} of {wanted} answer within {SHARD_ANSWER_TIMEOUT:?}", self.shards.len());
        Subsystem::degraded("shards", detail, reason, SLOW_SHARD_FIX)
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
    if !facts.vanished.is_empty() {
        let reason = format!("removed, so that nobody finds it there: {}", facts.vanished.join(", "));
        return Subsystem::degraded("node", facts.node.clone(), reason, "restart the daemon");
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
    let fix = peer_fix(peer, &reason);
    Subsystem::degraded(&name, address, reason, fix)
}

/// A reason that names what the two nodes disagree on carries its own cure; the others are those of a peer that is not
/// there.
fn peer_fix(peer: &PeerReport, reason: &str) -> String {
    let name = &peer.name;
    if reason.contains("needed:") {
        return format!("the value that the reason names, here or on {name}; then restart weir there");
    }
    match &peer.address {
        Some(address) if peer.is_found => {
            format!("start weir on {name}, or take {address} out of the records of peers_dns")
        }
        Some(address) => format!("start weir on {name}, or correct peers.{name} = \"{address}\""),
        None => format!("start weir on {name}, or add --peer {name}=HOST:PORT"),
    }
}

fn links_line(links: &[LinkRow], missing: &[u16]) -> Subsystem {
    let resumes: u64 = links.iter().map(|link| link.resumes_total).sum();
    let detail = format!("{} data links, {resumes} lost connections replaced", links.len());
    let waiting: Vec<String> = links
        .iter()
        .filter(|link| link.state == LinkState::Suspended.as_str())
        .map(|link| format!("{} (shard {} to its {})", link.peer, link.shard, link.peer_shard))
        .collect();
    let lost = (!waiting.is_empty()).then(|| {
        format!("no connection now: {}; their channels wait for at most link.grace", waiting.join(", "))
    });
    if let Some(unanswered) = snapshot::unanswered(missing) {
        let mut reason = format!("{unanswered} links are not counted");
        lost.iter().for_each(|lost| reason.push_str(&format!("; {lost}")));
        return Subsystem::degraded("links", format!("at least {detail}"), reason, SLOW_SHARD_FIX);
    }
    match lost {
        None => Subsystem::ok("links", detail),
        Some(lost) => Subsystem::degraded(
            "links",
            detail,
            lost,
            "the network between the nodes; the log says how each was lost",
        ),
    }
}

/// Clients that the configuration allows and the limit on descriptors does not.
fn attach_line(facts: &NodeFacts) -> Subsystem {
    let detail = format!("{} of {} attachments", facts.attachments, facts.attachments_max);
    let limit = facts.descriptors;
    match (limit, descriptors::too_few(limit, facts.attachments_max)) {
        (Some(limit), Some(effect)) => {
            let reason = format!("RLIMIT_NOFILE is {limit}: {effect}");
            Subsystem::degraded("attach", detail, reason, descriptors::TOO_FEW_FIX)
        }
        _ => Subsystem::ok("attach", detail),
    }
}

fn memory_line(regions: RegionReport) -> Subsystem {
    let RegionReport { mode, hugepages, ordinary } = regions;
    let detail = format!("{hugepages} regions of hugepages, {ordinary} of ordinary pages");
    let pool = system::hugepages(std::path::Path::new(system::ROOT)).unwrap_or_default();
    match mode {
        HugepageMode::Off => Subsystem::ok("memory", format!("{detail}; memory.hugepages = \"off\"")),
        HugepageMode::Auto if ordinary > 0 || (hugepages == 0 && pool.available() == 0) => {
            let (reason, fix) = pool.shortage();
            Subsystem::degraded("memory", detail, reason, fix)
        }
        HugepageMode::Auto | HugepageMode::Require => Subsystem::ok("memory", detail),
    }
}

/// What the daemon's control group may use, if regions count for it: hugepages do not.
fn memory_limit(mode: HugepageMode) -> Option<u64> {
    let counts = mode != HugepageMode::Require;
    counts.then(|| cgroup::memory_limit(std::path::Path::new(system::ROOT))).flatten()
}

fn budget_line(memory: MemoryReport, kept: &[(String, u64)], limit_bytes: Option<u64>) -> Subsystem {
    let MemoryReport { used_bytes, behind_regions_bytes, high_water_bytes, total_bytes } = memory;
    let [used, total, most] = [used_bytes, total_bytes, high_water_bytes].map(mebibytes);
    let mut detail = format!("{used} of {total} MiB used, at most {most}");
    if behind_regions_bytes > 0 {
        detail.push_str(&format!(", with {} KiB behind registered regions", behind_regions_bytes >> 10));
    }
    for (holder, bytes) in kept.iter().take(KEEPERS_NAMED) {
        detail.push_str(&format!("; {holder} keeps {} MiB of what has ended", mebibytes(*bytes)));
    }
    if let Some(rest) = kept.get(KEEPERS_NAMED..).filter(|rest| !rest.is_empty()) {
        let bytes = rest.iter().map(|(_, bytes)| bytes).sum();
        detail.push_str(&format!("; {} others keep {} MiB", rest.len(), mebibytes(bytes)));
    }
    match limit_bytes.filter(|limit| *limit < total_bytes) {
        None => Subsystem::ok("budget", detail),
        Some(limit) => Subsystem::degraded("budget", detail, cgroup::too_small(limit), cgroup::TOO_SMALL_FIX),
    }
}

fn link_row(shard: &ShardSnapshot, link: &LinkStats) -> LinkRow {
    LinkRow {
        peer: link.peer.to_string(),
        shard: shard.shard,
        peer_shard: link.peer_shard,
        state: link.state.to_owned(),
        sent_bytes_total: link.sent_bytes_total,
        received_bytes_total: link.received_bytes_total,
        short_writes_total: link.short_writes_total,
        resumes_total: link.resumes_total,
        resent_bytes_total: link.resent_bytes_total,
        skipped_frames_total: link.skipped_frames_total,
        round_trip_min_seconds: link.round_trip_min_ns.map(|ns| ns as f64 / 1e9),
        socket: shard.sockets.get(&link.link).and_then(|account| account.row()).map(Box::new),
        zero_copy: zero_copy::row(shard, link.link),
    }
}

/// Bytes that were handed over and not given back: of those that this end knows of.
fn in_flight_bytes(channel: &ChannelStats) -> u64 {
    let known = match channel.side {
        Side::Send => channel.queued_bytes + channel.unacked_bytes + channel.acked_bytes,
        Side::Receive => channel.bytes_total,
    };
    known.saturating_sub(channel.consumed_bytes)
}

fn channel_row(shard: u16, channel: &ChannelStats, clocks: &Clocks) -> ChannelRow {
    let is_sending = channel.side == Side::Send;
    let waits = |stalls| is_sending.then(|| Box::new(WaitReport::new(stalls, clocks)));
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
        in_flight_bytes: in_flight_bytes(channel),
        in_flight_seconds: None,
        buffer_bytes: channel.buffer_bytes,
        receiver_ready: channel.receiver_ready,
        receiver_held: channel.receiver_held,
        bytes_total: channel.bytes_total,
        buffers_total: channel.buffers_total,
        records_total: channel.records_total,
        // Nanoseconds of a century still have 53 bits' worth of microseconds.
        send_stalled_seconds_total: channel.send_stalled_ns as f64 / 1e9,
        send_stalls: waits(&channel.stalls),
        emit_stalls: waits(&channel.emit),
    }
}

#[cfg(test)]
mod tests {
    use weir_flow::limits::Limits;
    use weir_flow::pool::partition::PartitionPoolSpec;
    use weir_flow::pool::sizing::GateBuffers;

    use super::*;
    use crate::config::Config;
    use crate::control::snapshot::Health;
    use crate::memory::{HUGEPAGE_BYTES, planned_bytes};
    use crate::observe::probes::cause::Cause;
    use crate::observe::sockets::{Observer, SocketAccount};
    use crate::shard::stall::TurnStats;

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
            kept: Vec::new(),
            peers,
            found: None,
            attachments: 0,
            attachments_max: 1,
            descriptors: Some(68),
            shards: 2,
            placements: Placements::default(),
            memory_by_shard: MemoryByShard::default(),
            is_draining: true,
            vanished: Vec::new(),
            refused: None,
            probes: Observer::without(Cause::NoBpfCapability).line(),
            hooks: Vec::new(),
            privileges: Privileges::default(),
            configuration: ConfigurationReport::default(),
        };
        NodeReport { facts, shards: Vec::new() }
    }

    fn link(state: LinkState) -> LinkStats {
        LinkStats {
            link: LinkId(1),
            peer: "b".parse().unwrap(),
            peer_shard: 1,
            state: state.as_str(),
            sent_bytes_total: 1,
            received_bytes_total: 2,
            skipped_frames_total: 3,
            skipped_bytes_total: 4,
            short_writes_total: 5,
            resumes_total: 6,
            resent_bytes_total: 7,
            round_trip_min_ns: Some(8_000),
        }
    }

    #[test]
    fn a_link_without_a_connection_is_named_while_it_waits() {
        let [waits, stands] = [LinkState::Suspended, LinkState::Established].map(|state| {
            let mut report = report(Vec::new());
            report.facts.shards = 1;
            report.shards.push(ShardSnapshot { links: vec![link(state)], ..empty_snapshot() });
            report.status()
        });
        let line = |status: &StatusReport| {
            status.subsystems.iter().find(|subsystem| subsystem.name == "links").unwrap().clone()
        };
        assert_eq!(line(&stands), Subsystem::ok("links", "1 data links, 6 lost connections replaced"));
        let reason = line(&waits).reason.unwrap();
        assert!(reason.contains("b (shard 0 to its 1)") && reason.contains("link.grace"), "{reason}");
        assert_eq!((waits.links[0].resumes_total, waits.links[0].round_trip_min_seconds), (6, Some(8e-6)));
    }

    #[test]
    fn what_sockets_waited_for_stands_at_their_link_and_at_no_other() {
        let other = LinkStats { link: LinkId(2), peer_shard: 0, ..link(LinkState::Established) };
        let account = SocketAccount { sockets: 3, approximate: true, ..SocketAccount::default() };
        let mut report = report(Vec::new());
        report.shards.push(ShardSnapshot {
            links: vec![link(LinkState::Established), other],
            sockets: BTreeMap::from([(LinkId(1), account)]),
            ..empty_snapshot()
        });
        let links = report.status().links;
        let socket = links[1].socket.clone().unwrap();
        assert_eq!((socket.sockets_total, socket.approximate, socket.idle_seconds_total), (3, true, None));
        assert_eq!((links[0].peer_shard, links[0].socket.clone()), (0, None));
    }

    #[test]
    fn what_a_shard_that_does_not_answer_has_is_not_counted_as_nothing() {
        let mut report = report(Vec::new());
        report.facts.shards = 3;
        report.shards.push(ShardSnapshot {
            shard: 1,
            links: vec![link(LinkState::Suspended)],
            ..empty_snapshot()
        });
        let status = report.status();
        let line = status.subsystems.iter().find(|subsystem| subsystem.name == "links").unwrap();
        assert_eq!(
            (line.state, &*line.detail),
            (Health::Degraded, "at least 1 data links, 6 lost connections replaced")
        );
        let reason = line.reason.clone().unwrap();
        assert!(
            reason.starts_with("shards 0, 2 did not answer within 2s: their links are not counted"),
            "{reason}"
        );
        assert!(reason.contains("; no connection now: b (shard 1 to its 1)"), "{reason}");
        assert_eq!((status.shards_missing, report.channels().shards_missing), (vec![0, 2], vec![0, 2]));
    }

    fn empty_snapshot() -> ShardSnapshot {
        ShardSnapshot {
            shard: 0,
            at: weir_flow::ids::Time(0),
            partitions: Vec::new(),
            gates: Vec::new(),
            channels: Vec::new(),
            past_send_stalls: Default::default(),
            past_emit_stalls: Default::default(),
            links: Vec::new(),
            sockets: BTreeMap::new(),
            zero_copy: Default::default(),
            counts: crate::shard::mailbox::ShardCounts::default(),
            bytes_total: 0,
            cpu: 0,
            turns: TurnStats::default(),
            ring_level: "io_uring level oldest: multishot receive".to_owned(),
        }
    }

    #[test]
    fn the_page_for_operators_explains_every_line_of_status() {
        let peer = PeerReport {
            name: "NAME".to_owned(),
            address: None,
            is_found: false,
            is_linked: false,
            data_links: 0,
            reason: None,
        };
        let mut lost = report(vec![peer]);
        lost.shards.push(ShardSnapshot { links: vec![link(LinkState::Suspended)], ..empty_snapshot() });
        let subsystems = [lost, report(Vec::new())].map(|report| report.status().subsystems).concat();
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
    fn what_lies_behind_registered_regions_counts_as_memory_in_use() {
        let mut node = report(Vec::new());
        node.facts.memory = MemoryReport {
            used_bytes: 4 << 20,
            high_water_bytes: 4 << 20,
            total_bytes: 8 << 20,
            ..MemoryReport::default()
        };
        let detail = |node: &NodeReport| {
            let lines = node.status().subsystems;
            lines.into_iter().find(|line| line.name == "budget").unwrap().detail
        };
        assert_eq!(node.status().memory, node.facts.memory);
        assert!(!detail(&node).contains("behind"), "{}", detail(&node));
        for regions in [1, 2] {
            let mut shard = empty_snapshot();
            shard.zero_copy.registered.regions = regions;
            node.shards.push(shard);
        }
        let behind = 3 * TAIL_BYTES as u64;
        let used_bytes = (4 << 20) + behind;
        assert_eq!(
            node.status().memory,
            MemoryReport {
                used_bytes,
                behind_regions_bytes: behind,
                high_water_bytes: 4 << 20,
                total_bytes: 8 << 20
            }
        );
        assert!(detail(&node).ends_with(", with 96 KiB behind registered regions"), "{}", detail(&node));
    }

    #[test]
    fn a_budget_beyond_the_control_group_is_degraded_and_says_what_ends_the_daemon() {
        let memory = MemoryReport { total_bytes: 64 << 20, ..MemoryReport::default() };
        for (limit, state) in
            [(None, Health::Ok), (Some(64 << 20), Health::Ok), (Some(60 << 20), Health::Degraded)]
        {
            let line = budget_line(memory, &[], limit);
            assert_eq!(line.state, state, "{limit:?}");
            assert_eq!(
                line.reason.is_some_and(|text| text.contains("may use 60 MiB")),
                state == Health::Degraded
            );
        }
        assert!(PAGE.contains("| `budget` | DEGRADED"), "docs/operations.md has no row for it");
    }

    #[test]
    fn the_page_for_operators_counts_hugepages_as_regions_are_made() {
        let limits = Config::default().limits().unwrap();
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
