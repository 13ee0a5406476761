//! What a shell does around the core of one shard of a node alone.

use weir_flow::failure::{Failure, FailureCode};
use weir_flow::ids::{GateId, PartitionId};
use weir_flow::shard::{Delivery, Notice, Submission, Transmit};

use super::World;
use crate::consumer::GivenBack;
use crate::producer::Cell;
use crate::trace;

impl World {
    /// One piece of work of a shard, chosen by chance; all there is once faults have stopped.
    pub(super) fn shell_act(&mut self, shard: usize) -> Result<bool, String> {
        let all = self.common.healed;
        let chosen = self.common.rng.below(6);
        let mut progress = false;
        if all || chosen == 0 {
            progress |= self.take_submissions(shard)?;
            self.absorb(shard)?;
        }
        if all || chosen == 1 {
            progress |= self.take_given_back(shard)?;
            self.absorb(shard)?;
        }
        if all || chosen == 2 {
            progress |= self.pass_updates(shard);
        }
        if all || chosen == 3 {
            progress |= self.deliver(shard);
            self.absorb(shard)?;
        }
        if all || chosen == 4 {
            progress |= self.exchange(shard)?;
        }
        if all || chosen == 5 {
            progress |=
                self.shards[shard].shard.poll_timeout().is_some_and(|(due, _)| due <= self.common.now);
            self.shards[shard].shard.handle_timeout(self.common.now);
        }
        Ok(progress)
    }

    fn budget(&mut self) -> usize {
        if self.common.healed { 64 } else { self.common.rng.small(16) as usize }
    }

    fn take_submissions(&mut self, shard: usize) -> Result<bool, String> {
        let mut progress = false;
        let ids: Vec<(PartitionId, usize)> =
            self.shards[shard].partitions.iter().map(|(id, position)| (*id, *position)).collect();
        for (id, position) in ids {
            for _ in 0..self.budget() {
                let Self { producers, shards, common, .. } = self;
                let (producer, shell) = (&mut producers[position], &mut shards[shard]);
                let Some(submission) = producer.ring.pop_front() else { break };
                progress = true;
                let is_lie = producer.lied && producer.ring.is_empty();
                match shell.shard.handle_submission(id, submission.clone(), common.now) {
                    Ok(()) if is_lie => return Err(format!("{producer}: {submission:?} was accepted")),
                    Err(fault) if is_lie => {
                        let failure = Failure::new(FailureCode::ClientFault, fault.to_string());
                        producer.kill(common);
                        shell.shard.handle_partition_closed(id, Some(failure), common.now);
                        break;
                    }
                    outcome => outcome.map_err(|fault| format!("{producer}: {submission:?}: {fault}"))?,
                }
                producer.accepted(&submission);
                if let Submission::Event { subpartition, .. } = submission {
                    *shell.events_taken.entry((id, subpartition)).or_default() += 1;
                }
            }
        }
        Ok(progress)
    }

    fn take_given_back(&mut self, shard: usize) -> Result<bool, String> {
        let mut progress = false;
        let ids: Vec<(GateId, usize)> =
            self.shards[shard].gates.iter().map(|(id, position)| (*id, *position)).collect();
        for (id, position) in ids {
            for _ in 0..self.budget() {
                let Self { consumers, shards, common, .. } = self;
                let (consumer, core) = (&mut consumers[position], &mut shards[shard].shard);
                let Some(given) = consumer.given.pop_front() else { break };
                progress = true;
                let outcome = match given {
                    GivenBack::Data { segment, bytes, .. } => {
                        core.handle_given_back(id, segment, bytes, common.now)
                    }
                    GivenBack::Lent { channel, segment, bytes } => {
                        core.handle_lent_given_back(id, channel, segment, bytes, common.now)
                    }
                    GivenBack::Event(channel) => core.handle_event_consumed(id, channel, common.now),
                };
                let is_lie = consumer.lied && consumer.given.is_empty();
                match outcome {
                    Ok(()) if is_lie => return Err(format!("{consumer}: {given:?} was accepted")),
                    Err(fault) if is_lie => {
                        let failure = Failure::new(FailureCode::ClientFault, fault.to_string());
                        consumer.detach(common);
                        core.handle_gate_closed(id, Some(failure), common.now);
                        break;
                    }
                    outcome => outcome.map_err(|fault| format!("{consumer}: {given:?}: {fault}"))?,
                }
            }
        }
        Ok(progress)
    }

    fn pass_updates(&mut self, shard: usize) -> bool {
        let Self { producers, shards, .. } = self;
        let shell = &mut shards[shard];
        let mut progress = false;
        for id in std::mem::take(&mut shell.ready_partitions) {
            progress = true;
            let mut changed = Vec::new();
            shell.shard.take_changed_subpartitions(id, &mut changed);
            let Some(producer) = shell.partitions.get(&id).map(|position| &mut producers[*position]) else {
                continue;
            };
            for subpartition in changed {
                let Some(view) = shell.shard.subpartition_view(id, subpartition) else { continue };
                let taken = shell.events_taken.get(&(id, subpartition)).copied().unwrap_or_default();
                if let Some(cell) = producer.cells.get_mut(subpartition.0 as usize) {
                    *cell = Cell::of(&view, taken);
                }
            }
            while let Some(update) = shell.shard.poll_update(id) {
                if !producer.left {
                    producer.updates.push_back(update);
                }
            }
        }
        progress
    }

    fn deliver(&mut self, shard: usize) -> bool {
        let mut progress = false;
        for id in std::mem::take(&mut self.shards[shard].ready_gates) {
            let budget = self.budget();
            let Self { consumers, shards, report, .. } = self;
            let shell = &mut shards[shard];
            let Some(position) = shell.gates.get(&id) else { continue };
            let consumer = &mut consumers[*position];
            for _ in 0..budget {
                if let Some(delivery) = shell.shard.poll_priority_delivery(id) {
                    progress = true;
                    consumer.priority.extend((!consumer.left).then_some(delivery));
                    continue;
                }
                if consumer.ring.len() >= consumer.plan.ring_entries {
                    break;
                }
                let Some(delivery) = shell.shard.poll_delivery(id) else { break };
                progress = true;
                report.lent += u64::from(matches!(delivery, Delivery::Lent { .. }));
                consumer.ring.extend((!consumer.left).then_some(delivery));
            }
            // It may have more, which is looked at again.
            shell.ready_gates.insert(id);
        }
        progress
    }

    /// Hands over what this shard has for others, and takes what has arrived.
    fn exchange(&mut self, shard: usize) -> Result<bool, String> {
        let mut progress = false;
        for peer in 0..self.shards.len() {
            let link = self.links[&(shard, peer)];
            let mut transmit = Transmit::default();
            let now = self.common.now;
            while self.shards[shard].shard.poll_transmit(link, &mut transmit, now) {
                progress = true;
                self.shards[shard].shard.handle_sent(link, transmit.bytes, now);
                let delay = if self.common.healed { 0 } else { self.common.rng.small(50) };
                let due = self.common.step + delay;
                trace!(self.common.trace, self.shards[shard], "hands {} bytes to {peer}", transmit.bytes);
                let passing = self.passing.entry((shard, peer)).or_default();
                passing.push_back((due, now, std::mem::take(&mut transmit)));
                self.absorb(shard)?;
            }
            let (step, healed) = (self.common.step, self.common.healed);
            while let Some(passing) = self.passing.get_mut(&(peer, shard))
                && passing.front().is_some_and(|(due, ..)| healed || *due <= step)
                && let Some((_, since, transmit)) = passing.pop_front()
            {
                progress = true;
                let core = &mut self.shards[shard].shard;
                core.handle_passed(link, &transmit, now.since_ns(since), now).map_err(|e| e.to_string())?;
                self.absorb(shard)?;
            }
        }
        Ok(progress)
    }

    pub(super) fn absorb(&mut self, shard: usize) -> Result<(), String> {
        let Self { shards, producers, consumers, common, .. } = self;
        let shell = &mut shards[shard];
        for notice in shell.absorb()? {
            trace!(common.trace, shell, "notice {notice:?}");
            match notice {
                Notice::PartitionReleased(id) => {
                    shell.ready_partitions.remove(&id);
                    let producer = shell.partitions.remove(&id).map(|position| &mut producers[position]);
                    if let Some(producer) = producer {
                        producer.partition = None;
                    }
                }
                Notice::GateReleased(id) => {
                    shell.ready_gates.remove(&id);
                    shell.regions.remove(id);
                    let consumer = shell.gates.remove(&id).map(|position| &mut consumers[position]);
                    if let Some(consumer) = consumer {
                        consumer.gate = None;
                    }
                }
                Notice::ProducerNotFound { gate, producer } => {
                    let Some(position) = shell.gates.get(&gate) else { continue };
                    let consumer = &mut consumers[*position];
                    for channel in 0..consumer.connected.len() {
                        if consumer.channel(channel as u32).producer == producer.0 {
                            consumer.connected[channel] = false;
                        }
                    }
                }
                Notice::ChannelOpened(_)
                | Notice::ChannelEnded(_)
                | Notice::ChannelFailed(..)
                | Notice::ChannelRefused { .. } => {}
                other => return Err(format!("{shell}: {other:?} of a node alone")),
            }
        }
        Ok(())
    }
}
