//! Recounts everything that the shard keeps running counts of, from the lists that hold it.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec;
use alloc::vec::Vec;

use super::Shard;
use crate::ids::{GateId, LinkId, PartitionId, SegmentIndex, SubpartitionIndex};
use crate::invariant::{Violation, ensure};
use crate::link::plan::Frame;
use crate::link::{Link, ReceiveKey, SendKey, Serving};
use crate::recv::channel::{Channel, Pending};
use crate::recv::gate::Gate;
use crate::send::partition::Partition;
use crate::send::segments::SegmentState;
use crate::send::subpartition::{Item, Next, Retained, Subpartition};
use crate::state::{IndexState, ReceiveState, SendState};

/// What the batches and lists of all links say, by whom it belongs to.
#[derive(Default)]
struct LinkView {
    /// Slices of a segment that the kernel has.
    in_kernel: BTreeMap<(u32, u32), u32>,
    /// Slices of a segment that the kernel reads although a socket took them.
    held: BTreeMap<(u32, u32), u32>,
    /// Sequenced frames of a subpartition in batches.
    planned: BTreeMap<(u32, u32), u64>,
    /// Subpartitions in rounds.
    listed: BTreeSet<(u32, u32)>,
    /// Subpartitions in lists of priority events.
    priority: BTreeSet<(u32, u32)>,
    /// Gate channels that owe a Limit.
    limits: BTreeSet<(u32, u32)>,
    /// Gate channels that owe a BufferSize.
    sizes: BTreeSet<(u32, u32)>,
}

impl Shard {
    /// Recounts everything. Meant for tests and the simulator, after every step; costs as much as there is.
    ///
    /// # Errors
    /// The first invariant that does not hold.
    pub fn check(&self) -> Result<(), Violation> {
        let mut view = LinkView::default();
        for (id, link) in self.links.table.iter() {
            collect_link(link, &mut view)?;
            self.check_link(LinkId(id), link)?;
        }
        for (partition, segment) in self.holds.iter() {
            *view.held.entry((partition.0, segment.0)).or_default() += 1;
        }
        for (id, partition) in self.partitions.table.iter() {
            self.check_partition(PartitionId(id), partition, &view)?;
        }
        for (id, gate) in self.gates.table.iter() {
            self.check_gate(GateId(id), gate, &view)?;
        }
        let urgent = self.gates.table.iter().filter(|(_, gate)| gate.wants_returns()).count();
        ensure!(
            urgent == self.gates.urgent as usize,
            "gates of which nothing given back may wait are counted",
            "{urgent}, counted {}",
            self.gates.urgent
        );
        self.check_lengths()
    }

    fn check_link(&self, id: LinkId, link: &Link) -> Result<(), Violation> {
        let free = link.receiving.iter().filter(|entry| entry.state == IndexState::Free).count();
        let listed = link.free_indices();
        ensure!(
            !link.is_open() || free == listed,
            "free channel indices are listed",
            "link {id}: {free} free, {listed} listed"
        );
        for (index, entry) in link.receiving.iter().enumerate() {
            let channel = self.gates.get(entry.key.gate).and_then(|gate| gate.channel(entry.key.channel));
            let at = channel.and_then(|channel| channel.channel);
            let points_back = at.is_some_and(|(at, number)| at == id && number.0 as usize == index);
            ensure!(
                !(entry.state == IndexState::Live && link.is_open()) || points_back,
                "a live index has its channel",
                "link {id}, index {index}: channel is at {at:?}"
            );
        }
        for (index, serving) in link.sending.iter().enumerate() {
            let Some(Serving::Live(key)) = serving else { continue };
            let partition = self.partitions.get(key.partition);
            let at = partition.and_then(|partition| partition.subpartition(key.subpartition)?.channel);
            let points_back = at.is_some_and(|(at, number)| at == id && number.0 as usize == index);
            ensure!(points_back, "a serving index has its subpartition", "link {id}, index {index}: {at:?}");
        }
        let batch = &link.batch;
        let controls = batch.frames.iter().filter(|planned| planned.frame == Frame::Control).count();
        ensure!(
            controls == batch.control.len(),
            "each control frame has its message",
            "link {id}: {controls} frames, {} messages",
            batch.control.len()
        );
        let begun = usize::from(batch.is_first_begun);
        ensure!(
            batch.is_in_flight || batch.frames.len() == begun,
            "between batches only a begun frame is kept",
            "link {id}: {} frames, begun {begun}",
            batch.frames.len()
        );
        if let Some((target, _)) = link.parser.arriving() {
            let gate = self.gates.get(target.key.gate);
            let segment = gate.and_then(|gate| gate.segments.get(target.segment.0 as usize));
            ensure!(
                segment.is_some_and(|state| state.channel == Some(target.key.channel) && state.is_open),
                "what arrives goes into its channel's open segment",
                "link {id}: {target:?}, {segment:?}"
            );
        }
        Ok(())
    }

    fn check_partition(
        &self,
        id: PartitionId,
        partition: &Partition,
        view: &LinkView,
    ) -> Result<(), Violation> {
        partition.memory.segments.check()?;
        let mut counted = vec![SegmentState::default(); partition.memory.segments.len() as usize];
        for segment in partition.memory.builders.iter().filter_map(|builder| builder.segment) {
            let state = counted.get_mut(segment.0 as usize);
            state.into_iter().for_each(|state| state.is_builder = true);
        }
        for (index, subpartition) in partition.subpartitions.iter().enumerate() {
            count_slices(subpartition, &mut counted);
            let key = SendKey { partition: id, subpartition: SubpartitionIndex(index as u32) };
            check_subpartition(key, subpartition)?;
            self.check_sending(key, subpartition, view)?;
        }
        check_builders(id, partition)?;
        partition.emit.check().map_err(|violation| violation.at(&id))?;
        let (mut in_kernel, mut held) = (0, 0);
        for (segment, state) in partition.memory.segments.iter() {
            let Some(counted) = counted.get_mut(segment.0 as usize) else { continue };
            counted.in_kernel = view.in_kernel.get(&(id.0, segment.0)).copied().unwrap_or(0);
            counted.held = view.held.get(&(id.0, segment.0)).copied().unwrap_or(0);
            in_kernel += counted.in_kernel;
            held += counted.held;
            let places =
                |of: &SegmentState| (of.is_builder, of.queued, of.in_kernel, of.held, of.lent, of.unacked);
            let (found, needed) = (places(state), places(counted));
            ensure!(
                found == needed,
                "slices of a segment are where they are counted",
                "partition {id}, segment {segment}: (builder, queued, in kernel, held, lent, unacked) is {found:?}, \
                 counted {needed:?}"
            );
        }
        let found = (partition.memory.in_kernel, partition.memory.held);
        ensure!(
            (in_kernel, held) == found,
            "slices in the kernel are counted",
            "partition {id}: {found:?} counted {:?}",
            (in_kernel, held)
        );
        let returned: BTreeSet<SegmentIndex> = partition.memory.returned.iter().copied().collect();
        ensure!(
            returned.len() == partition.memory.returned.len(),
            "a segment returns once",
            "partition {id}: {:?}",
            partition.memory.returned
        );
        for (segment, state) in partition.memory.segments.iter() {
            ensure!(
                state.is_returning == returned.contains(&segment) && (state.is_free() || !state.is_returning),
                "a segment that returns is free",
                "partition {id}, segment {segment}: {state:?}"
            );
        }
        let ended = partition.subpartitions.iter().filter(|sub| sub.state == SendState::Ended).count();
        ensure!(
            ended == partition.ended as usize,
            "ended subpartitions are counted",
            "partition {id}: {ended}"
        );
        Ok(())
    }

    fn check_sending(
        &self,
        key: SendKey,
        subpartition: &Subpartition,
        view: &LinkView,
    ) -> Result<(), Violation> {
        let Some((link, index)) = subpartition.channel else { return Ok(()) };
        let name = (key.partition.0, key.subpartition.0);
        let at = self.links.get(link).and_then(|link| link.sender(index));
        ensure!(at == Some(key), "a connected subpartition is known to its link", "{key:?}: {at:?}");
        let planned = view.planned.get(&name).copied().unwrap_or(0);
        let unsent = subpartition.next_sequence - subpartition.sent_sequence;
        ensure!(
            planned == unsent,
            "frames that are not sent are in a batch",
            "{key:?}: {planned} planned, {unsent} not sent"
        );
        let listed = view.listed.contains(&name);
        ensure!(listed == subpartition.is_listed, "round and its flag agree", "{key:?}: in round {listed}");
        ensure!(
            listed || subpartition.next() == Next::Nothing,
            "who can send is in the round",
            "{key:?}: {:?}",
            subpartition.next()
        );
        let listed = view.priority.contains(&name);
        ensure!(
            listed || !subpartition.has_priority(),
            "who has a priority event is listed for it",
            "{key:?}"
        );
        Ok(())
    }

    fn check_gate(&self, id: GateId, gate: &Gate, view: &LinkView) -> Result<(), Violation> {
        gate.pool.check()?;
        self.check_debloating(id, gate)?;
        ensure!(gate.gained.is_empty(), "gained credit was told", "gate {id}: {:?}", gate.gained);
        let backlogged = gate.channels.iter().filter(|channel| channel.backlog > 0).count();
        ensure!(
            backlogged == gate.backlogged as usize,
            "channels with a backlog are counted",
            "gate {id}: {backlogged}, counted {}",
            gate.backlogged
        );
        let mut used = vec![0_u32; gate.channels.len()];
        let mut waiting = vec![0_u64; gate.segments.len()];
        for (index, channel) in gate.channels.iter().enumerate() {
            let key = ReceiveKey { gate: id, channel: index as u32 };
            check_channel(key, channel, &mut waiting, self.limits.event_window)?;
            self.check_granting(key, gate, channel, view)?;
        }
        for (index, state) in gate.segments.iter().enumerate() {
            let Some(channel) = state.channel else { continue };
            if let Some(count) = used.get_mut(channel as usize) {
                *count += 1;
            }
            let not_handed = u64::from(state.written) - u64::from(state.handed);
            let pending = waiting.get(index).copied().unwrap_or(0);
            ensure!(
                state.given_back <= state.handed && not_handed == pending,
                "bytes of a segment wait, are held or came back",
                "gate {id}, segment {index}: {state:?}, {pending} wait"
            );
            let open = gate.channel(channel).and_then(|channel| channel.open);
            let is_open = open.is_some_and(|open| open.segment.0 as usize == index);
            ensure!(is_open == state.is_open, "open segment and channel agree", "gate {id}, segment {index}");
            ensure!(
                state.is_open || state.given_back < state.written,
                "a closed segment whose bytes came back is free",
                "gate {id}, segment {index}: {state:?}"
            );
        }
        let free: BTreeSet<SegmentIndex> = gate.free.iter().copied().collect();
        let total: u32 = used.iter().sum();
        ensure!(
            free.len() == gate.free.len() && free.len() + total as usize == gate.segments.len(),
            "every receive segment is free or used once",
            "gate {id}: {} free, {total} used, {} in all",
            gate.free.len(),
            gate.segments.len()
        );
        for (channel, count) in used.iter().enumerate() {
            let needed = gate.pool.used(channel as u32);
            ensure!(*count == needed, "pool and segments agree", "gate {id}, channel {channel}: {count}");
        }
        Ok(())
    }

    fn check_debloating(&self, id: GateId, gate: &Gate) -> Result<(), Violation> {
        let Some(state) = &gate.debloating else { return Ok(()) };
        let governed = gate.channels.iter().filter(|channel| channel.lent.is_none());
        let buffered: u64 = governed.map(|channel| channel.counts.bytes - channel.consumed).sum();
        ensure!(
            state.core.buffered() == buffered,
            "what can be consumed is counted",
            "gate {id}: {buffered}, counted {}",
            state.core.buffered()
        );
        let listed = self.debloats.iter().filter(|(_, of)| *of == id).count();
        ensure!(
            listed == usize::from(state.is_armed) && (state.is_armed || !state.has_moved),
            "a period that runs is listed once",
            "gate {id}: {listed}, has moved {}",
            state.has_moved
        );
        ensure!(
            gate.pool.window() == state.share.window,
            "the pool's window is the share",
            "gate {id}: {}, {:?}",
            gate.pool.window(),
            state.share
        );
        Ok(())
    }

    fn check_granting(
        &self,
        key: ReceiveKey,
        gate: &Gate,
        channel: &Channel,
        view: &LinkView,
    ) -> Result<(), Violation> {
        let in_rotation = gate.rotation.contains(&key.channel);
        ensure!(
            in_rotation == channel.is_listed && in_rotation != channel.pending.is_empty(),
            "what waits is in the rotation",
            "{key:?}: in rotation {in_rotation}, {} wait",
            channel.pending.len()
        );
        if !channel.is_connected() {
            return Ok(());
        }
        let ready = gate.ready(key.channel);
        let granted = channel.opened + u64::from(ready);
        ensure!(
            granted >= channel.announced.limit,
            "no grant is taken back",
            "{key:?}: granted {granted}, announced {}",
            channel.announced.limit
        );
        let at = channel.channel.and_then(|(link, index)| self.links.get(link)?.receiver(index));
        ensure!(at == Some(key), "a connected channel is known to its link", "{key:?}: {at:?}");
        let due = view.limits.contains(&(key.gate.0, key.channel));
        ensure!(due == channel.is_limit_due, "due Limits are listed", "{key:?}: listed {due}");
        let is_told = due || granted == channel.announced.limit;
        ensure!(
            is_told,
            "new credit is told",
            "{key:?}: granted {granted}, announced {:?}",
            channel.announced
        );
        let due = view.sizes.contains(&(key.gate.0, key.channel));
        let is_told = channel.told_buffer_bytes == Some(gate.buffer_bytes());
        ensure!(due == channel.is_size_due, "due BufferSizes are listed", "{key:?}: listed {due}");
        ensure!(
            due || is_told || channel.state != ReceiveState::Open || channel.lent.is_some(),
            "what is wanted is told",
            "{key:?}: wanted {}, told {:?}",
            gate.buffer_bytes(),
            channel.told_buffer_bytes
        );
        let segments = gate.used(key.channel) as usize;
        let events = channel.pending.iter().filter(|item| matches!(item, Pending::Event(_))).count();
        ensure!(
            channel.pending.len() <= segments + 2 * events,
            "no queue is longer than its segments",
            "{key:?}: {} wait in {segments} segments with {events} events",
            channel.pending.len()
        );
        Ok(())
    }
}

fn collect_link(link: &Link, view: &mut LinkView) -> Result<(), Violation> {
    for planned in &link.batch.frames {
        match &planned.frame {
            Frame::Slice { key, slice, .. } => {
                *view.in_kernel.entry((key.partition.0, slice.segment.0)).or_default() += 1;
                *view.planned.entry((key.partition.0, key.subpartition.0)).or_default() += 1;
            }
            Frame::Event { key } | Frame::End { key } => {
                *view.planned.entry((key.partition.0, key.subpartition.0)).or_default() += 1;
            }
            Frame::Control
            | Frame::Ping(_)
            | Frame::Pong(_)
            | Frame::LinkResume
            | Frame::Resume { .. }
            | Frame::Limit { .. }
            | Frame::BufferSize { .. }
            | Frame::Backlog { .. } => {}
        }
    }
    for key in link.round.iter() {
        let is_new = view.listed.insert((key.partition.0, key.subpartition.0));
        ensure!(is_new, "a subpartition is in one round once", "{key:?}");
    }
    view.priority.extend(link.priority.iter().map(|key| (key.partition.0, key.subpartition.0)));
    view.limits.extend(link.limits.iter().map(|key| (key.gate.0, key.channel)));
    view.sizes.extend(link.sizes.iter().map(|key| (key.gate.0, key.channel)));
    Ok(())
}

/// Adds the slices of a subpartition to the segments that they lie in.
fn count_slices(subpartition: &Subpartition, counted: &mut [SegmentState]) {
    let mut at = |segment: SegmentIndex, change: fn(&mut SegmentState)| {
        if let Some(state) = counted.get_mut(segment.0 as usize) {
            change(state);
        }
    };
    for item in &subpartition.queue {
        if let Item::Slice(slice) = item {
            at(slice.segment, |state| state.queued += 1);
        }
    }
    let sent = subpartition.sent_sequence.saturating_sub(subpartition.retained_base) as usize;
    for frame in subpartition.retained.iter().take(sent) {
        if let Retained::Slice { slice } = frame {
            match subpartition.lending {
                Some(_) => at(slice.segment, |state| state.lent += 1),
                None => at(slice.segment, |state| state.unacked += 1),
            }
        }
    }
}

/// Everything that was handed over in a builder is with each subpartition that reads from it, until it has arrived: so
/// those that share a segment hold it until the last of them has it.
fn check_builders(id: PartitionId, partition: &Partition) -> Result<(), Violation> {
    for (number, builder) in partition.memory.builders.iter().enumerate() {
        let readers = partition.readers(SubpartitionIndex(number as u32));
        let readers = readers.filter_map(|index| Some((index, partition.subpartitions.get(index)?)));
        for (index, reader) in readers.filter(|(_, reader)| reader.state != SendState::Failed) {
            let found = reader.queued_bytes + reader.unacked_bytes + reader.acked_bytes;
            ensure!(
                found == builder.submitted_bytes,
                "what was handed over waits, is on its way, or has arrived",
                "partition {id}, subpartition {index}: {found} of {}",
                builder.submitted_bytes
            );
            let slices = reader.queue.iter().filter_map(|item| match item {
                Item::Slice(slice) => Some(slice),
                Item::Event(_) | Item::End => None,
            });
            let retained = reader.retained.iter().filter_map(|frame| match frame {
                Retained::Slice { slice } => Some(slice),
                Retained::Event { .. } | Retained::End => None,
            });
            for slice in slices.chain(retained) {
                let state = partition.memory.segments.get(slice.segment);
                let is_inside = state.is_some_and(|state| {
                    state.owner.0 as usize == number && slice.offset + slice.bytes <= state.fill
                });
                ensure!(
                    is_inside,
                    "a slice lies in what was handed over in its builder",
                    "partition {id}, subpartition {index}: {slice:?} in {state:?}"
                );
            }
        }
    }
    Ok(())
}

fn check_subpartition(key: SendKey, subpartition: &Subpartition) -> Result<(), Violation> {
    let Subpartition { retained_base, next_sequence, sent_sequence, acked_sequence, .. } = subpartition;
    let end = retained_base + subpartition.retained.len() as u64;
    ensure!(end == *next_sequence, "sequence numbers have no gap", "{key:?}: {end}, next {next_sequence}");
    ensure!(
        sent_sequence <= next_sequence && acked_sequence <= next_sequence,
        "nothing is sent or acknowledged that was not planned",
        "{key:?}: next {next_sequence}, sent {sent_sequence}, acked {acked_sequence}"
    );
    ensure!(
        subpartition.packing.opened() <= subpartition.packing.limit(),
        "opened segments stay within the limit",
        "{key:?}: {:?}",
        subpartition.packing
    );
    let slices: Vec<u32> = subpartition
        .queue
        .iter()
        .filter_map(|item| match item {
            Item::Slice(slice) => Some(slice.bytes),
            Item::Event(_) | Item::End => None,
        })
        .collect();
    let queued_bytes: u64 = slices.iter().map(|bytes| u64::from(*bytes)).sum();
    ensure!(
        queued_bytes == subpartition.queued_bytes,
        "queued bytes are counted",
        "{key:?}: {queued_bytes}, counted {}",
        subpartition.queued_bytes
    );
    let mut packing = subpartition.packing.clone();
    packing.recount(slices.into_iter());
    ensure!(
        packing.backlog() == subpartition.packing.backlog(),
        "the backlog is what sending the queue would open",
        "{key:?}: {} would open {}",
        subpartition.packing.backlog(),
        packing.backlog()
    );
    let sent_bytes: u64 = subpartition
        .retained
        .iter()
        .map(|frame| match frame {
            Retained::Slice { slice } => u64::from(slice.bytes),
            Retained::Event { .. } | Retained::End => 0,
        })
        .sum();
    ensure!(
        sent_bytes == subpartition.unacked_bytes,
        "unacknowledged bytes are counted",
        "{key:?}: {sent_bytes}, counted {}",
        subpartition.unacked_bytes
    );
    if let Some(lending) = subpartition.lending {
        let lent =
            subpartition.retained.iter().filter(|frame| matches!(frame, Retained::Slice { .. })).count();
        ensure!(
            lent == lending.count as usize && lending.count <= lending.most,
            "slices that are lent are counted",
            "{key:?}: {lent}, {lending:?}"
        );
    }
    let unmerged = subpartition.queue.iter().zip(subpartition.queue.iter().skip(1)).any(|pair| {
        matches!(pair, (Item::Slice(first), Item::Slice(second))
            if first.segment == second.segment && first.offset + first.bytes == second.offset)
    });
    ensure!(!unmerged, "slices side by side are one", "{key:?}: {:?}", subpartition.queue);
    subpartition.stalls.check(subpartition.hold()).map_err(|violation| violation.at(&key))
}

fn check_channel(
    key: ReceiveKey,
    channel: &Channel,
    waiting: &mut [u64],
    event_window: u32,
) -> Result<(), Violation> {
    let mut pending_bytes = 0;
    for item in &channel.pending {
        if let Pending::Slice { segment, bytes, .. } = item {
            pending_bytes += u64::from(*bytes);
            if channel.lent.is_none()
                && let Some(count) = waiting.get_mut(segment.0 as usize)
            {
                *count += u64::from(*bytes);
            }
        }
    }
    ensure!(
        pending_bytes == channel.pending_bytes,
        "waiting bytes are counted",
        "{key:?}: {pending_bytes}, counted {}",
        channel.pending_bytes
    );
    ensure!(
        channel.delivered + pending_bytes == channel.counts.bytes && channel.consumed <= channel.delivered,
        "what arrived waits or was handed up",
        "{key:?}: arrived {}, delivered {}, consumed {}",
        channel.counts.bytes,
        channel.delivered,
        channel.consumed
    );
    if let Some(lent) = &channel.lent {
        let (held, out) = (channel.delivered - channel.consumed, channel.counts.bytes - channel.consumed);
        ensure!(
            lent.count() <= lent.window() && lent.held_bytes() == held && lent.bytes() == out,
            "what is lent waits, is held, or came back",
            "{key:?}: {lent:?}, {held} held, {out} did not come back"
        );
    }
    ensure!(
        channel.events_consumed <= channel.events_handed
            && channel.events_handed <= channel.events_arrived
            && channel.events_arrived <= channel.events_consumed + u64::from(event_window),
        "events stay within their window",
        "{key:?}: {} arrived, {} handed, {} consumed",
        channel.events_arrived,
        channel.events_handed,
        channel.events_consumed
    );
    ensure!(
        channel.state != ReceiveState::Vacant || channel.next_sequence == 0,
        "nothing arrives before a request",
        "{key:?}"
    );
    Ok(())
}
