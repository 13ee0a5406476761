//! What must be true between the two ends of a link at any moment, whatever is on the wire.

use std::collections::{BTreeMap, BTreeSet};

use weir_flow::ids::SubpartitionIndex;
use weir_flow::stats::{ChannelStats, Side};

use crate::consumer::Consumer;
use crate::coverage::{Coverage, Mark};
use crate::line::Line;
use crate::model::ChannelKey;
use crate::plan::Timing;
use crate::producer::{Cell, Producer};
use crate::world::World;

impl World {
    /// Compares what the shards say of their channels with what was seen on the wire and at the clients.
    pub(crate) fn check_accounts(&mut self) -> Result<(), String> {
        let mut ready: BTreeMap<(u32, u32), u64> = BTreeMap::new();
        for node in 0..self.nodes.len() {
            let stats: Vec<_> = self.nodes[node].shard.channels(self.common.now).collect();
            self.check_views(node, &stats)?;
            for channel in &stats {
                let key = channel_key(channel)?;
                let Some(line) = self.line_of(key) else { continue };
                let result = match channel.side {
                    Side::Send => self.check_sender(node, line, channel),
                    Side::Receive => check_receiver(line, channel, self.holds(line)),
                };
                result.map_err(|text| format!("{}: {key}: {text}: {channel:?}", self.nodes[node]))?;
                if channel.side == Side::Receive {
                    *ready.entry((key.exchange, key.consumer)).or_default() +=
                        u64::from(channel.receiver_ready);
                    let floats = channel.receiver_ready > self.plan.limits.exclusive;
                    self.common.coverage.hit_when(Mark::FloatingGranted, floats);
                    let wanted = channel.backlog + self.plan.limits.exclusive;
                    let waits = channel.receiver_ready < wanted && channel.state == "open";
                    self.common.coverage.hit_when(Mark::FloatingWaited, waits && channel.backlog > 0);
                }
            }
        }
        self.note_held_back();
        self.check_gates(&ready)
    }

    /// Rare states of gates that want less in flight than there is room for.
    fn note_held_back(&mut self) {
        let Self { nodes, common, plan, .. } = self;
        let coverage = &mut common.coverage;
        for node in nodes.iter() {
            for gate in node.shard.gates(common.now) {
                let Some(debloat) = &gate.debloat else { continue };
                coverage
                    .hit_when(Mark::HeldBackNoMore, debloat.changes_total > 1 && debloat.window.is_none());
                let Some(window) = debloat.window else { continue };
                let ours = |stats: &ChannelStats| {
                    stats.side == Side::Receive
                        && stats.state == "open"
                        && (&stats.exchange, stats.consumer) == (&gate.exchange, gate.consumer)
                };
                for channel in node.shard.channels(common.now).filter(ours) {
                    let has = channel.receiver_ready + channel.receiver_held;
                    let lacks = channel.receiver_ready < channel.backlog + plan.limits.exclusive;
                    let is_held_back = lacks && has >= window && channel.backlog > 0;
                    coverage.hit_when(Mark::HeldBack, is_held_back);
                    coverage.hit_when(Mark::ExclusiveHeldBack, has < plan.limits.exclusive);
                    let free = gate.floating_free > 0;
                    coverage.hit_when(Mark::FloatingLeftFree, is_held_back && free);
                }
            }
        }
    }

    fn line_of(&self, key: ChannelKey) -> Option<&Line> {
        let link = self.links.get(*self.common.model.links.get(&key)?)?;
        link.books.iter().find_map(|book| book.line(key))
    }

    /// Every byte that the client handed over is queued, sent and not acknowledged, or acknowledged.
    fn check_sender(&self, node: usize, line: &Line, stats: &ChannelStats) -> Result<(), String> {
        if stats.state == "failed" || stats.state == "waiting" {
            return Ok(());
        }
        let ChannelStats { queued_bytes, unacked_bytes, acked_bytes, consumed_bytes, .. } = *stats;
        let sum = queued_bytes + unacked_bytes + acked_bytes;
        if sum != line.submitted_bytes() {
            return Err(format!("{sum} bytes are accounted for; {} were submitted", line.submitted_bytes()));
        }
        if line.suspended {
            // A frame that was sent in part is back in the queue.
            return Ok(());
        }
        if queued_bytes > line.unsent() {
            return Err(format!("{queued_bytes} bytes are queued; {} were not sent", line.unsent()));
        }
        if acked_bytes.max(consumed_bytes) > line.arrived.payload {
            let arrived = line.arrived.payload;
            return Err(format!(
                "{acked_bytes} bytes are acknowledged, {consumed_bytes} consumed; {arrived} arrived"
            ));
        }
        let told = stats.buffer_bytes.unwrap_or(u32::MAX);
        if stats.state == "open" && told != line.bound {
            return Err(format!("its bound is {told}; it was told {}", line.bound));
        }
        let most = line.limit_arrived.limit - line.sent.opened;
        if u64::from(stats.credit) > most {
            return Err(format!("credit is {}; possible at most {most}", stats.credit));
        }
        let is_quiet = self.links.iter().all(|link| link.is_quiet(node));
        if is_quiet && stats.state == "open" && u64::from(stats.credit) != most {
            return Err(format!(
                "credit is {}; nothing is in flight and {most} segments may be opened",
                stats.credit
            ));
        }
        Ok(())
    }

    /// What the client of each partition sees is what its channels say, of several that share their segments the one
    /// that is furthest behind.
    fn check_views(&mut self, node: usize, stats: &[ChannelStats]) -> Result<(), String> {
        let Self { nodes, producers, common, plan, .. } = self;
        for (id, position) in &nodes[node].partitions {
            let Some(producer) = producers.get(*position) else { continue };
            for number in 0..producer.cells.len() {
                let channels = producer.channels(number);
                let rows: Vec<_> = stats
                    .iter()
                    .filter(|stats| stats.side == Side::Send)
                    .filter(|stats| channel_key(stats).is_ok_and(|key| channels.contains(&key)))
                    .collect();
                let view = nodes[node].shard.subpartition_view(*id, SubpartitionIndex(number as u32));
                let Some(view) = view else { return Err(format!("{producer}: {number} has no view")) };
                let least = |of: fn(&ChannelStats) -> u64| rows.iter().map(|stats| of(stats)).min();
                let queued = rows.iter().map(|stats| stats.queued_bytes).max();
                let needed = (
                    least(|stats| stats.buffer_bytes.unwrap_or(u32::MAX).into()),
                    least(|stats| stats.credit.into()),
                    least(|stats| stats.acked_bytes),
                    least(|stats| stats.consumed_bytes),
                    queued,
                );
                let found = (
                    Some(u64::from(view.buffer_bytes)),
                    Some(u64::from(view.credit)),
                    Some(view.acked_bytes),
                    Some(view.consumed_bytes),
                    Some(view.queued_bytes),
                );
                if found != needed {
                    return Err(format!(
                        "{producer}: the view of {number} is {view:?}; its channels: {needed:?}"
                    ));
                }
                let failed = rows.iter().any(|stats| stats.state == "failed");
                if view.is_gone != failed {
                    return Err(format!(
                        "{producer}: the view of {number} is {view:?}; one failed: {failed}"
                    ));
                }
                if plan.timing == Timing::Calm && !failed {
                    check_left(producer, number, &rows, view.sent_segments)?;
                }
                if producer.is_shared() {
                    note_shared(&rows, plan.limits.segment_bytes, &mut common.coverage);
                }
            }
        }
        Ok(())
    }

    /// When nothing is left to do, every client has been told all that changed.
    pub(crate) fn check_cells(&self) -> Result<(), String> {
        for node in &self.nodes {
            for (id, position) in &node.partitions {
                let Some(producer) = self.producers.get(*position).filter(|producer| !producer.left) else {
                    continue;
                };
                for (number, cell) in (0..).map(SubpartitionIndex).zip(&producer.cells) {
                    let Some(view) = node.shard.subpartition_view(*id, number) else { continue };
                    let taken = node.events_taken.get(&(*id, number)).copied().unwrap_or_default();
                    if *cell != Cell::of(&view, taken) {
                        return Err(format!("{producer}: was told {cell:?} of {number}; it is {view:?}"));
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether the application that this channel feeds holds anything of any channel.
    fn holds(&self, line: &Line) -> bool {
        let ours = |consumer: &&Consumer| {
            (consumer.key.exchange, consumer.key.consumer) == (line.key.exchange, line.key.consumer)
        };
        self.consumers.iter().find(ours).is_none_or(|consumer| {
            let regions = &self.nodes[consumer.plan.place].regions;
            let memory = consumer.gate.and_then(|gate| regions.get(gate));
            memory.is_none_or(|memory| !memory.held.is_empty())
        })
    }

    /// When nothing is on its way, a receiver knows of every segment that its sender would open.
    pub(crate) fn check_backlogs(&self) -> Result<(), String> {
        for node in &self.nodes {
            for stats in node.shard.channels(self.common.now) {
                let key = channel_key(&stats)?;
                let waits = stats.side == Side::Send && stats.state == "open" && stats.credit == 0;
                let Some(line) = self.line_of(key).filter(|line| waits && !line.suspended) else { continue };
                // An event at the head of the queue hides what is behind it.
                if stats.backlog > line.backlog_arrived
                    && line.sent.events + 1 < line.limit_arrived.event_limit
                {
                    let told = line.backlog_arrived;
                    return Err(format!(
                        "{node}: {key}: the receiver knows of a backlog of {told}: {stats:?}"
                    ));
                }
            }
        }
        Ok(())
    }

    /// When nothing is on its way, a sender knows what its receiver wants on its way at most, over whatever outages.
    pub(crate) fn check_bounds(&self) -> Result<(), String> {
        let mut wanted = BTreeMap::new();
        let open = || self.nodes.iter().flat_map(|node| node.shard.channels(self.common.now));
        for stats in open().filter(|stats| stats.side == Side::Receive && stats.state == "open") {
            wanted.insert(channel_key(&stats)?, stats.buffer_bytes);
        }
        for stats in open().filter(|stats| stats.side == Side::Send && stats.state == "open") {
            let key = channel_key(&stats)?;
            if wanted.get(&key).is_some_and(|wanted| *wanted != stats.buffer_bytes) {
                let (found, needed) = (stats.buffer_bytes, wanted.get(&key));
                return Err(format!("{key}: its sender keeps to {found:?}; the receiver wants {needed:?}"));
            }
        }
        Ok(())
    }

    /// Segments that may be opened, and those that the client holds, fit into the gate.
    fn check_gates(&self, ready: &BTreeMap<(u32, u32), u64>) -> Result<(), String> {
        for consumer in &self.consumers {
            let Some(id) = consumer.gate else { continue };
            let node = &self.nodes[consumer.plan.place];
            let Some(memory) = node.regions.get(id) else { continue };
            let held: BTreeSet<_> = memory.held.iter().map(|slice| slice.segment).collect();
            let granted =
                ready.get(&(consumer.key.exchange, consumer.key.consumer)).copied().unwrap_or_default();
            let sum = granted + held.len() as u64;
            if sum > u64::from(consumer.segments) {
                let (held, all) = (held.len(), consumer.segments);
                return Err(format!("{consumer}: {granted} segments granted, {held} held, {all} exist"));
            }
            if consumer.ring.len() > consumer.plan.ring_entries + 1 {
                return Err(format!("{consumer}: its delivery ring has {} entries", consumer.ring.len()));
            }
        }
        Ok(())
    }
}

/// A segment has left the queue when the last of those that read from it has sent it. Without outages nothing comes
/// back into a queue.
fn check_left(
    producer: &Producer,
    number: usize,
    rows: &[&ChannelStats],
    sent_segments: u64,
) -> Result<(), String> {
    let Some(accepted) = producer.accepted.get(number) else { return Ok(()) };
    let queued = rows.iter().map(|stats| stats.queued_bytes).max().unwrap_or_default();
    let sent = accepted.bytes.saturating_sub(queued);
    let most = accepted.closed.iter().filter(|(_, end)| *end <= sent).count() as u64;
    if sent_segments > most {
        return Err(format!(
            "{producer}: {sent_segments} segments left the queue of {number}; at most {most}"
        ));
    }
    Ok(())
}

/// Rare states of consumers that share their producer's segments.
fn note_shared(rows: &[&ChannelStats], segment_bytes: u32, coverage: &mut Coverage) {
    let acked = || rows.iter().map(|stats| stats.acked_bytes);
    let (least, most) = (acked().min().unwrap_or_default(), acked().max().unwrap_or_default());
    let has = |state: &str| rows.iter().any(|stats| stats.state == state);
    coverage.hit_when(Mark::BroadcastApart, most - least > u64::from(segment_bytes));
    coverage.hit_when(Mark::BroadcastLate, has("waiting") && most > 0);
    let resent = rows.iter().any(|stats| stats.state == "suspended" && stats.unacked_bytes > 0);
    coverage.hit_when(Mark::BroadcastInterrupted, resent && has("open"));
}

/// What the receiver says it has is what has arrived and was not handed over; and it has granted at least what the
/// sender knows of.
fn check_receiver(line: &Line, stats: &ChannelStats, holds: bool) -> Result<(), String> {
    if stats.state != "open" && stats.state != "ended" {
        return Ok(());
    }
    if stats.queued_bytes != line.undelivered() {
        return Err(format!("{} bytes wait; {} should", stats.queued_bytes, line.undelivered()));
    }
    let (held, idle) = (stats.receiver_held, line.idle_segments());
    if stats.state == "open" && stats.queued_bytes == 0 && !holds && held != idle {
        return Err(format!("{held} segments are held; nothing waits and {idle} are open"));
    }
    if stats.state == "open" && stats.receiver_ready + held == 0 {
        return Err("it has no segment, granted or in use: it would wait for ever".into());
    }
    let granted = u64::from(stats.receiver_ready) + line.arrived.opened;
    if stats.state == "open" && granted < line.limit_sent.limit {
        return Err(format!(
            "{granted} segments were granted; the sender was told {}",
            line.limit_sent.limit
        ));
    }
    Ok(())
}

/// The channel that the core speaks of.
pub(crate) fn channel_key(stats: &ChannelStats) -> Result<ChannelKey, String> {
    let number = stats.exchange.as_str().strip_prefix('x').and_then(|text| text.parse().ok());
    let exchange = number.ok_or_else(|| format!("unknown exchange {}", stats.exchange))?;
    Ok(ChannelKey { exchange, producer: stats.producer.0, consumer: stats.consumer.0 })
}
