//! The work of one simulated shell: what `daemon/src/shard` does around the core, one piece at a time and in any
//! order.

use std::fmt;

use weir_flow::failure::{Failure, FailureCode};
use weir_flow::ids::{GateId, LinkId, PartitionId, SegmentIndex, Time};
use weir_flow::shard::{Delivery, Notice, Part, PartitionUpdate, Submission};
use weir_flow::stats::{ChannelStats, Side};

use crate::checks::channel_key;

use crate::consumer::GivenBack;
use crate::control::Message;
use crate::coverage::Mark;
use crate::faults::Sabotage;
use crate::model::ChannelKey;
use crate::node::Node;
use crate::pipe::{Sending, part_bytes};
use crate::plan::Timing;
use crate::producer::{Cell, Producer};
use crate::trace;
use crate::world::World;

/// Entries of the ring of priority events of each gate.
const PRIORITY_RING_ENTRIES: usize = 64;

/// Most bytes of control frames in one batch, beside its data.
const CONTROL_BATCH_BYTES: u32 = 60 << 10;

/// A piece of work that a shell could do now.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Task {
    Submissions(usize),
    GivenBack(usize),
    Sent(usize, usize),
    Received(usize, usize),
    Closed(usize, usize),
    Adopt(usize, usize),
    Transmit(LinkId),
    Updates(PartitionId),
    Deliveries(GateId),
    Timeout,
    Control,
}

impl World {
    /// One piece of work of a shell, chosen by chance; all there is once faults have stopped. Says whether anything
    /// changed.
    pub(crate) fn shell_act(&mut self, node: usize) -> Result<bool, String> {
        if self.common.now < self.nodes[node].busy_until {
            return Ok(false);
        }
        let mut tasks = std::mem::take(&mut self.tasks);
        tasks.clear();
        self.list_tasks(node, &mut tasks);
        if !self.common.healed && !tasks.is_empty() {
            let chosen = self.common.rng.index(tasks.len());
            tasks.swap(0, chosen);
            tasks.truncate(1);
        }
        let mut progress = self.let_go(node)?;
        if progress {
            self.absorb(node)?;
        }
        for task in tasks.drain(..) {
            progress |= self.perform(node, task)?;
            self.absorb(node)?;
        }
        self.tasks = tasks;
        if !self.common.healed && self.common.rng.chance(self.plan.faults.long_turn) {
            let pause = self.common.rng.small(self.plan.step_ns * 300);
            self.nodes[node].busy_until = self.common.now.after_ns(pause);
            self.common.coverage.hit(Mark::LongTurn);
            trace!(self.common.trace, self.nodes[node], "takes a long turn of {pause} ns");
        }
        Ok(progress)
    }

    fn list_tasks(&self, node: usize, tasks: &mut Vec<Task>) {
        let shell = &self.nodes[node];
        for position in shell.partitions.values() {
            if !self.producers[*position].ring.is_empty() {
                tasks.push(Task::Submissions(*position));
            }
        }
        for (id, position) in &shell.gates {
            let consumer = &self.consumers[*position];
            if !consumer.given.is_empty() {
                tasks.push(Task::GivenBack(*position));
            }
            let room = consumer.ring.len() < consumer.plan.ring_entries
                || consumer.priority.len() < PRIORITY_RING_ENTRIES;
            if room && shell.ready_gates.contains(id) {
                tasks.push(Task::Deliveries(*id));
            }
        }
        for (id, (link, end)) in &shell.links {
            let at = &self.links[*link].ends[*end];
            let is_sent = at.sending.as_ref().is_some_and(|sending| sending.result.is_some());
            if is_sent {
                tasks.push(Task::Sent(*link, *end));
            }
            let Some(number) = at.socket else {
                if at.next_socket.is_some() && at.sending.is_none() {
                    tasks.push(Task::Adopt(*link, *end));
                }
                continue;
            };
            let socket = &self.links[*link].sockets[number];
            let readable = socket.pipes[1 - *end].readable() > 0 && at.condemned.is_none();
            let told = socket.is_told(*end, self.common.step, self.common.healed);
            // What was not read from a socket that is replaced is never read.
            let is_replaced = at.next_socket.is_some();
            if readable && !is_replaced && (self.common.healed || self.common.now >= at.stalled_until) {
                tasks.push(Task::Received(*link, *end));
            }
            if (told || at.condemned.is_some()) && (at.sending.is_none() || at.closes_first) {
                tasks.push(Task::Closed(*link, *end));
            }
            if at.sending.is_none() && !told && at.condemned.is_none() && shell.ready_links.contains(id) {
                tasks.push(Task::Transmit(*id));
            }
        }
        tasks.extend(shell.ready_partitions.iter().map(|id| Task::Updates(*id)));
        let due = shell.shard.poll_timeout().is_some_and(|(due, _)| due <= self.common.now);
        // Now and then a shell comes too early.
        if due || !self.common.healed && self.common.now.0.is_multiple_of(97) {
            tasks.push(Task::Timeout);
        }
        if self.control.has_message(node, self.common.step, self.common.healed) {
            tasks.push(Task::Control);
        }
    }

    fn perform(&mut self, node: usize, task: Task) -> Result<bool, String> {
        match task {
            Task::Submissions(producer) => self.read_submissions(node, producer)?,
            Task::GivenBack(consumer) => self.read_given_back(node, consumer)?,
            Task::Sent(link, end) => self.report_sent(node, link, end)?,
            Task::Received(link, end) => self.receive(node, link, end)?,
            Task::Closed(link, end) => match self.links[link].ends[end].condemned.clone() {
                Some(reason) => self.report_closed(node, link, end, &reason),
                None => self.report_lost(node, link, end, "connection reset")?,
            },
            Task::Adopt(link, end) => self.adopt(node, link, end)?,
            Task::Transmit(id) => return self.transmit(node, id),
            Task::Updates(id) => self.pass_updates(node, id)?,
            Task::Deliveries(id) => return self.deliver(node, id),
            Task::Timeout => {
                trace!(self.common.trace, self.nodes[node], "timeout");
                self.nodes[node].shard.handle_timeout(self.common.now);
                self.absorb(node)?;
                self.check_grace(node)?;
            }
            Task::Control => {
                if let Some(message) = self.control.next(node) {
                    self.control_message(node, message)?;
                }
            }
        }
        Ok(true)
    }

    fn budget(&mut self) -> usize {
        if self.common.healed { 64 } else { self.common.rng.small(16) as usize }
    }

    fn read_submissions(&mut self, node: usize, producer: usize) -> Result<(), String> {
        for _ in 0..self.budget() {
            let Self { producers, nodes, common, links, .. } = self;
            let (producer, shell) = (&mut producers[producer], &mut nodes[node]);
            let (Some(submission), Some(id)) = (producer.ring.pop_front(), producer.partition) else { break };
            let result = shell.shard.handle_submission(id, submission.clone(), common.now);
            let lie = producer.lied && producer.ring.is_empty();
            match result {
                Ok(()) if lie => return Err(format!("{producer}: {submission:?} was accepted")),
                Err(fault) if lie => {
                    let failure = Failure::new(FailureCode::ClientFault, fault.to_string());
                    producer.kill(common);
                    shell.shard.handle_partition_closed(id, Some(failure), common.now);
                    break;
                }
                Err(fault) => return Err(format!("{producer}: {submission:?} was refused: {fault}")),
                Ok(()) => {}
            }
            producer.accepted(&submission);
            match submission {
                Submission::Data { subpartition, bytes, .. } if bytes > 0 => {
                    for key in producer.channels(subpartition.0 as usize) {
                        common.submissions.entry(key).or_default().push(bytes);
                        if let Some(link) = common.model.links.get(&key) {
                            let book = links[*link].books.iter_mut().find_map(|book| book.line_mut(key));
                            book.into_iter().for_each(|line| line.submitted(bytes));
                        }
                    }
                }
                Submission::Event { subpartition, .. } => {
                    *shell.events_taken.entry((id, subpartition)).or_default() += 1;
                }
                Submission::Data { .. } | Submission::End { .. } => {}
            }
        }
        Ok(())
    }

    fn read_given_back(&mut self, node: usize, consumer: usize) -> Result<(), String> {
        for _ in 0..self.budget() {
            let Self { consumers, nodes, common, .. } = self;
            let (consumer, shell) = (&mut consumers[consumer], &mut nodes[node]);
            let (Some(given), Some(id)) = (consumer.given.pop_front(), consumer.gate) else { break };
            let result = match given {
                GivenBack::Data { segment, offset, bytes } => {
                    if let Some(memory) = shell.regions.get_mut(id) {
                        memory.release(segment, offset, bytes);
                    }
                    shell.shard.handle_given_back(id, segment, bytes, common.now)
                }
                GivenBack::Lent { channel, segment, bytes } => {
                    shell.shard.handle_lent_given_back(id, channel, segment, bytes, common.now)
                }
                GivenBack::Event(channel) => shell.shard.handle_event_consumed(id, channel, common.now),
            };
            let lie = consumer.lied && consumer.given.is_empty();
            match result {
                Ok(()) if lie => return Err(format!("{consumer}: {given:?} was accepted")),
                Err(fault) if lie => {
                    let failure = Failure::new(FailureCode::ClientFault, fault.to_string());
                    consumer.detach(common);
                    if let Some(memory) = shell.regions.get_mut(id) {
                        memory.held.clear();
                    }
                    shell.shard.handle_gate_closed(id, Some(failure), common.now);
                    break;
                }
                result => result.map_err(|fault| format!("{consumer}: {given:?} was refused: {fault}"))?,
            }
        }
        Ok(())
    }

    fn report_sent(&mut self, node: usize, link: usize, end: usize) -> Result<(), String> {
        let Some(sending) = self.links[link].ends[end].sending.take() else { return Ok(()) };
        self.verify_sent(node, &sending)?;
        let mut result = sending.result.unwrap_or_default();
        if sending.left() > 0 && self.common.sabotage(Sabotage::OverstateSent) {
            result += 1;
        }
        let Some(id) = self.links[link].ends[end].id else { return Ok(()) };
        match self.hold(node, id) {
            Some(number) => self.keep_held(node, number, sending, (link, end)),
            None => self.links[link].ends[end].spare = sending.batch,
        }
        trace!(self.common.trace, self.nodes[node], "link {link} sent {result}");
        self.nodes[node].shard.handle_sent(id, result, self.common.now);
        if self.links[link].ends[end].is_losing {
            self.finish_loss(node, link, end, id)?;
        }
        if self.links[link].ends[end].closed {
            self.nodes[node].links.remove(&id);
        }
        Ok(())
    }

    fn receive(&mut self, node: usize, link: usize, end: usize) -> Result<(), String> {
        self.maybe_stall(link, end);
        let faults = &self.plan.faults;
        let (cut, near) = (faults.cut_read, faults.cut_near_boundary);
        let Some(socket) = self.links[link].ends[end].socket else { return Ok(()) };
        let readable = self.links[link].sockets[socket].pipes[1 - end].readable();
        let bytes = if self.common.healed {
            readable
        } else if self.common.rng.chance(near) {
            (self.common.rng.range(1, 40) as usize).min(readable)
        } else if self.common.rng.chance(cut) {
            self.common.rng.small(readable as u64) as usize
        } else {
            readable
        };
        let mut buffer = std::mem::take(&mut self.buffer);
        self.links[link].sockets[socket].pipes[1 - end].read(bytes, &mut buffer);
        let Self { links, common, nodes, .. } = self;
        let instead = links[link].tampered(end, &buffer, common);
        links[link].arrived(end, &buffer, common)?;
        let given = instead.as_deref().unwrap_or(&buffer);
        let Some(id) = links[link].ends[end].id else { return Ok(()) };
        let shell = &mut nodes[node];
        trace!(common.trace, shell, "link {link} received {bytes} bytes");
        let result = shell.shard.handle_received(id, given, &mut shell.regions, common.now);
        self.buffer = buffer;
        match result {
            Err(error) if self.links[link].sockets[socket].is_garbled => {
                self.common.coverage.hit(Mark::Garbled);
                trace!(self.common.trace, self.nodes[node], "link {link}: {error}");
                // Nothing is read from a link behind an error, even if it is closed a little later.
                self.links[link].ends[end].condemned = Some(error.to_string());
                self.links[link].sockets[socket].told[end] = Some(0);
                Ok(())
            }
            result => result.map_err(|error| format!("{}: link {link}: {error}", self.nodes[node])),
        }
    }

    fn transmit(&mut self, node: usize, id: LinkId) -> Result<bool, String> {
        let Self { nodes, links, common, plan, .. } = self;
        let shell = &mut nodes[node];
        let Some((link, end)) = shell.links.get(&id).copied() else { return Ok(false) };
        if links[link].ends[end].socket.is_none() {
            return Ok(false);
        }
        let waiting = waiting_channels(shell, id, common.now);
        links[link].books[end].note_waiting(&waiting);
        links[link].books[end].note_planned();
        let at = &mut links[link].ends[end];
        if !shell.shard.poll_transmit(id, &mut at.spare, common.now) {
            shell.ready_links.remove(&id);
            return Ok(false);
        }
        let batch = std::mem::take(&mut at.spare);
        trace!(common.trace, shell, "link {link} sends {} bytes: {}", batch.bytes, Parts(&batch.parts));
        trace!(common.trace, shell, "link {link} could carry {waiting:?}");
        let sum: u64 = batch.parts.iter().map(|part| u64::from(part_bytes(part))).sum();
        // A frame that was begun, and control of three kinds, come on top.
        let most = plan.limits.batch_bytes_max + plan.limits.segment_bytes + CONTROL_BATCH_BYTES;
        if sum != u64::from(batch.bytes) || sum == 0 || sum > u64::from(most) {
            return Err(format!("{shell}: a batch says {} bytes, has {sum}, may have {most}", batch.bytes));
        }
        common.coverage.hit_when(Mark::BroadcastBatch, has_slice_twice(&batch.parts));
        at.sending = Some(Sending::new(batch));
        Ok(true)
    }

    fn pass_updates(&mut self, node: usize, id: PartitionId) -> Result<(), String> {
        let Self { nodes, producers, common, changed, .. } = self;
        let shell = &mut nodes[node];
        shell.ready_partitions.remove(&id);
        let Some(producer) = shell.partitions.get(&id).and_then(|position| producers.get_mut(*position))
        else {
            return Ok(());
        };
        // The cells first or the ring first: the client may see either before the other.
        let cells_first = common.rng.chance(500);
        for cells in [cells_first, !cells_first] {
            if cells {
                changed.clear();
                shell.shard.take_changed_subpartitions(id, changed);
                for subpartition in changed.drain(..) {
                    let Some(view) = shell.shard.subpartition_view(id, subpartition) else { continue };
                    let taken = shell.events_taken.get(&(id, subpartition)).copied().unwrap_or_default();
                    if let Some(cell) = producer.cells.get_mut(subpartition.0 as usize) {
                        *cell = Cell::of(&view, taken);
                    }
                }
                continue;
            }
            if common.wants(Sabotage::FreeShared)
                && let Some(segment) = shared_early(shell, producer, common.now)
                && common.sabotage(Sabotage::FreeShared)
            {
                producer.freed_early = Some(segment);
                producer.updates.push_back(PartitionUpdate::Returned(segment));
            }
            while let Some(update) = shell.shard.poll_update(id) {
                let returned = matches!(update, PartitionUpdate::Returned(_));
                if producer.left || returned && common.sabotage(Sabotage::LoseReturned) {
                    continue;
                }
                if let Some(segment) = producer.freed_early
                    && update == PartitionUpdate::Returned(segment)
                {
                    producer.freed_early = None;
                    continue;
                }
                producer.updates.push_back(update);
            }
        }
        Ok(())
    }

    fn deliver(&mut self, node: usize, id: GateId) -> Result<bool, String> {
        let Some(position) = self.nodes[node].gates.get(&id).copied() else { return Ok(false) };
        let mut progress = false;
        for _ in 0..self.budget() {
            let Self { nodes, consumers, .. } = self;
            let (shell, consumer) = (&mut nodes[node], &mut consumers[position]);
            let priority = consumer.priority.len() < PRIORITY_RING_ENTRIES;
            if let Some(delivery) = priority.then(|| shell.shard.poll_priority_delivery(id)).flatten() {
                progress = true;
                if !consumer.left {
                    consumer.priority.push_back(delivery);
                }
                continue;
            }
            if consumer.ring.len() >= consumer.plan.ring_entries {
                self.common.coverage.hit(Mark::DeliveryRingFull);
                break;
            }
            let Some(delivery) = shell.shard.poll_delivery(id) else {
                shell.ready_gates.remove(&id);
                break;
            };
            progress = true;
            self.hand_over(node, id, position, delivery)?;
        }
        Ok(progress)
    }

    fn hand_over(
        &mut self,
        node: usize,
        id: GateId,
        position: usize,
        delivery: Delivery,
    ) -> Result<(), String> {
        let Self { nodes, consumers, common, links, .. } = self;
        let consumer = &mut consumers[position];
        if let Delivery::Data { channel, segment, offset, bytes, .. } = &delivery {
            let key = consumer.channel(*channel);
            let link = common.model.links.get(&key).ok_or_else(|| format!("{key}: data without a link"))?;
            let line = links[*link].books.iter_mut().find_map(|book| book.line_mut(key));
            let line = line.ok_or_else(|| format!("{key}: data without a channel"))?;
            line.delivered(*bytes, &mut common.coverage)?;
            if let Some(memory) = nodes[node].regions.get_mut(id) {
                memory.hold(*segment, *offset, *bytes)?;
            }
            if common.sabotage(Sabotage::LoseDelivery) {
                return Ok(());
            }
            if common.sabotage(Sabotage::RepeatDelivery) {
                consumer.ring.push_back(delivery.clone());
            }
        }
        if !consumer.left {
            consumer.ring.push_back(delivery);
        }
        Ok(())
    }

    /// What the core wants done after a piece of work.
    pub(crate) fn absorb(&mut self, node: usize) -> Result<(), String> {
        for notice in self.nodes[node].absorb()? {
            trace!(self.common.trace, self.nodes[node], "notice {notice:?}");
            match notice {
                Notice::PartitionReleased(id) => self.partition_released(node, id)?,
                Notice::GateReleased(id) => self.gate_released(node, id)?,
                Notice::LinkTimedOut { link, .. } | Notice::LinkStuck { link, .. } => {
                    if let Some((link, end)) = self.nodes[node].links.get(&link).copied() {
                        self.timed_out(node, link, end)?;
                    }
                }
                Notice::LinkSuspended(id) => {
                    self.nodes[node].suspended.insert(id);
                }
                Notice::LinkExpired(id) => self.expired(node, id)?,
                Notice::LinkResumed(_) => self.common.coverage.hit(Mark::LinkResumed),
                Notice::ChannelOpened(_)
                | Notice::ChannelEnded(_)
                | Notice::ChannelFailed(..)
                | Notice::LinkGoodbye(_) => {}
                Notice::ProducerNotFound { gate, producer } => {
                    // The gate waits for it as before, and asks again if the catalog still knows it.
                    let Some(position) = self.nodes[node].gates.get(&gate) else { continue };
                    let consumer = &mut self.consumers[*position];
                    for channel in 0..consumer.connected.len() {
                        if consumer.channel(channel as u32).producer == producer.0 {
                            consumer.connected[channel] = false;
                        }
                    }
                }
                Notice::ChannelRefused { failure, .. } => {
                    let late = failure.code == FailureCode::PartitionNotFound;
                    let mark = if late { Mark::OpenedTooLate } else { Mark::RefusedStopping };
                    self.common.coverage.hit(mark);
                }
            }
        }
        Ok(())
    }

    /// Nothing was heard for too long: the shell leaves the socket.
    fn timed_out(&mut self, node: usize, link: usize, end: usize) -> Result<(), String> {
        let at = &self.links[link].ends[end];
        if at.is_losing {
            return Ok(());
        }
        let Some(socket) = at.socket else {
            return Err(format!("{}: link {link} timed out without a socket", self.nodes[node]));
        };
        // With short times a reader that stalls or a long turn is enough.
        if self.links[link].working().is_some() && self.plan.timing != Timing::Quick {
            return Err(format!("{}: link {link} timed out; it works", self.nodes[node]));
        }
        let at = &mut self.links[link].sockets[socket];
        let blind = !at.moves && at.told[end].is_none();
        self.common.coverage.hit_when(Mark::TimedOut, blind);
        self.close_socket(link, socket, end);
        self.links[link].sockets[socket].told[end] = Some(0);
        Ok(())
    }

    /// Puts a message for the control thread's part of a shell into its mailbox.
    pub(crate) fn post(&mut self, node: usize, delay: u64, message: Message) {
        self.control.post(node, self.common.step + delay, message);
    }
}

/// The parts of a batch in a trace: `32` for headers, `p3 s1+0:4096` for a slice.
struct Parts<'a>(&'a [Part]);

impl fmt::Display for Parts<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for part in self.0 {
            match part {
                Part::Header { bytes, .. } => write!(f, "[{bytes}] ")?,
                Part::Slice { partition, segment, offset, bytes } => {
                    write!(f, "[p{partition} s{segment} {offset}+{bytes}] ")?;
                }
            }
        }
        Ok(())
    }
}

/// Whether a batch has the same bytes for two channels.
fn has_slice_twice(parts: &[Part]) -> bool {
    parts.iter().enumerate().any(|(index, part)| {
        matches!(part, Part::Slice { .. }) && parts.get(index + 1..).is_some_and(|rest| rest.contains(part))
    })
}

/// A closed segment that one consumer of a producer has acknowledged and that waits for another.
fn shared_early(shell: &Node, producer: &Producer, now: Time) -> Option<SegmentIndex> {
    if !producer.is_shared() || producer.left {
        return None;
    }
    let ours = |stats: &ChannelStats| {
        stats.side == Side::Send
            && channel_key(stats).is_ok_and(|key| {
                (key.exchange, key.producer) == (producer.key.exchange, producer.key.producer)
            })
    };
    let stats: Vec<_> = shell.shard.channels(now).filter(ours).collect();
    let most = stats.iter().map(|stats| stats.acked_bytes).max()?;
    let begun = stats.iter().map(|stats| stats.acked_bytes + stats.unacked_bytes).min()?;
    let closed = &producer.accepted.first()?.closed;
    // All that a consumer has of it lies before its end, so that the last part of it waits.
    closed.iter().find(|(_, end)| begun < *end && *end <= most).map(|(segment, _)| *segment)
}

/// The channels that could send on this link now: they have data and credit.
fn waiting_channels(shell: &Node, id: LinkId, now: Time) -> Vec<ChannelKey> {
    let sends = |stats: &ChannelStats| {
        stats.side == Side::Send && stats.link == Some(id) && stats.queued_bytes > 0 && stats.credit > 0
    };
    shell.shard.channels(now).filter(sends).filter_map(|stats| channel_key(&stats).ok()).collect()
}
