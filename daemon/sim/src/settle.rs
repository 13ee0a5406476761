//! The end of a run: faults stop, everybody reads, and then nothing may be missing and nothing may be left over.

use weir_flow::failure::FailureCode;
use weir_flow::ids::Time;
use weir_flow::stats::{ChannelStats, Side};

use crate::checks::channel_key;
use crate::consumer::{self, Consumer};
use crate::coverage::Mark;
use crate::model::{ChannelKey, Outcome};
use crate::plan::Timing;
use crate::producer::{self, Producer};
use crate::trace;
use crate::world::World;

/// Times that the clock may be moved on without any progress before the run counts as stuck.
const IDLE_JUMPS_MAX: u32 = 400;

/// Rounds after which a run counts as endless.
const ROUNDS_MAX: u64 = 200_000;

impl World {
    /// As the end of [`Self::run`], for a run whose steps were made one by one.
    pub fn settle_now(&mut self) -> Result<(), String> {
        self.settle()
    }

    /// Lets everything come to its end and looks at what is left.
    pub(crate) fn settle(&mut self) -> Result<(), String> {
        self.common.healed = true;
        for node in &mut self.nodes {
            node.busy_until = Time(0);
        }
        for socket in self.links.iter_mut().flat_map(|link| &mut link.sockets) {
            (socket.cut_after, socket.garble) = ([None; 2], false);
        }
        // First with the stopped consumers still stopped: nobody else may miss anything.
        if self.consumers.iter().any(|consumer| consumer.stopped) {
            self.settle_until("others wait for a stopped consumer", Self::others_are_served)?;
            self.note_beside_stopped();
            for consumer in &mut self.consumers {
                consumer.stopped = false;
            }
        }
        self.settle_until("clients wait for ever", Self::clients_are_done)?;
        self.dismiss_producers();
        self.settle_until("clients wait for ever", Self::clients_are_done)?;
        self.dismiss_consumers();
        self.settle_until("memory is not released", Self::all_is_released)?;
        self.check_outcomes()
    }

    fn settle_until(
        &mut self,
        stuck: &str,
        goal: impl Fn(&Self) -> Result<(), String>,
    ) -> Result<(), String> {
        // When a link is lost nothing moves before its grace is over.
        let idle_ns = match self.plan.timing {
            Timing::Calm => 0,
            _ => 2 * (self.plan.limits.link_grace_ns + self.plan.limits.peer_timeout_ns),
        };
        let (mut idle_jumps, mut idle_from) = (0, self.common.now);
        let mut measured = self.measure();
        for round in 0..ROUNDS_MAX {
            let mut progress = false;
            self.control_act();
            for position in 0..self.actors() {
                self.common.step += 1;
                self.common.trace.at(self.common.step, self.common.now.0);
                let actor = self.actor(position);
                progress |= self.act(actor)?;
            }
            if round % 8 == 0 {
                self.check_accounts()?;
            }
            if progress {
                self.common.now = self.common.now.after_ns(1_000);
                continue;
            }
            self.check_accounts()?;
            self.check_told()?;
            self.check_cells()?;
            if self.links.iter().all(|link| link.working().is_some()) {
                self.check_backlogs()?;
                self.check_bounds()?;
            }
            let Err(missing) = goal(self) else { return Ok(()) };
            let now = self.measure();
            if now == measured {
                idle_jumps += 1;
            } else {
                (idle_jumps, idle_from) = (0, self.common.now);
            }
            measured = now;
            if idle_jumps > IDLE_JUMPS_MAX && self.common.now.since_ns(idle_from) >= idle_ns {
                return Err(format!("stuck: {stuck}: {missing}"));
            }
            self.jump();
        }
        Err(format!("endless: {stuck}"))
    }

    /// When nothing is under way and no deadline is near, every sender knows what has arrived and was given back: a
    /// trickle must not wait for company.
    fn check_told(&self) -> Result<(), String> {
        let soon = self.common.now.after_ns(self.plan.limits.limit_delay_ns);
        for link in self.links.iter().filter(|link| link.working().is_some()) {
            for (end, book) in link.books.iter().enumerate() {
                let node = &self.nodes[link.ends[1 - end].node];
                if node.shard.poll_timeout().is_some_and(|(due, _)| due <= soon) {
                    continue;
                }
                book.check_told()?;
            }
        }
        Ok(())
    }

    /// Moves the clock to the next moment that some shard waits for.
    fn jump(&mut self) {
        let due = self.nodes.iter().filter_map(|node| node.shard.poll_timeout()).min_by_key(|(due, _)| *due);
        let least = self.common.now.after_ns(1_000);
        let due = due.map_or(least, |(due, reason)| {
            trace!(self.common.trace, "clock", "jumps for {reason}");
            due.max(least)
        });
        self.common.now = due;
    }

    /// A number that changes when anything but heartbeats happened.
    fn measure(&self) -> u64 {
        let taken = self.common.model.channels().map(|(_, channel)| channel.records + channel.events);
        let lines = self.links.iter().flat_map(|link| &link.books).flat_map(|book| book.lines());
        let moved =
            lines.map(|line| line.arrived.payload + line.limit_arrived.ack + line.limit_arrived.consumed);
        let free = self.producers.iter().map(|producer| u64::from(producer.pool.free()));
        let clients = self.producers.iter().filter(|p| p.left).count()
            + self.consumers.iter().filter(|c| c.left).count();
        let held = self
            .nodes
            .iter()
            .map(|node| (node.partitions.len() + node.gates.len() + node.links.len()) as u64);
        let links = self.links.iter().map(|link| {
            let over = link.ends.iter().filter(|end| end.closed).count() as u64;
            link.sockets.len() as u64 * 3 + over
        });
        taken
            .chain(links)
            .chain(moved)
            .chain(free)
            .chain(held)
            .fold(clients as u64, |sum, part| crate::rng::mix(sum.wrapping_add(part)))
    }

    /// Every channel of a running consumer that is not stopped has everything that its producer handed over, and a
    /// producer that feeds no stopped consumer is done.
    fn others_are_served(&self) -> Result<(), String> {
        let stopped = |key: ChannelKey| {
            self.consumers.iter().any(|consumer| {
                consumer.stopped
                    && consumer.state == consumer::State::Running
                    && (consumer.key.exchange, consumer.key.consumer) == (key.exchange, key.consumer)
            })
        };
        for line in self.links.iter().flat_map(|link| &link.books).flat_map(|book| book.lines()) {
            let served = line.unsent() == 0 && line.undelivered() == 0;
            if !served && !stopped(line.key) && !self.common.model.may_fail(line.key) {
                let (unsent, undelivered) = (line.unsent(), line.undelivered());
                return Err(format!("{}: {unsent} bytes unsent, {undelivered} undelivered", line.key));
            }
        }
        for producer in &self.producers {
            let (exchange, number) = (producer.key.exchange, producer.key.producer);
            let waits = self.common.model.siblings(exchange, number).any(stopped);
            if !waits && !producer.left && !self.waits_in_vain(producer) {
                return Err(format!("{producer} is {:?}", producer.state));
            }
            if self.has_choice(producer) && producer.has_records_for_any() {
                return Err(format!("{producer} has a consumer that reads: {}", producer.describe()));
            }
        }
        Ok(())
    }

    /// Whether a producer that chooses adaptively has a consumer that reads.
    fn has_choice(&self, producer: &Producer) -> bool {
        let reads = |key: ChannelKey| {
            self.consumers.iter().any(|consumer| {
                (consumer.key.exchange, consumer.key.consumer) == (key.exchange, key.consumer)
                    && consumer.state == consumer::State::Running
                    && !consumer.stopped
                    && !consumer.lied
            })
        };
        let shard = &self.nodes[producer.plan.place].shard;
        let is_open = |stats: &ChannelStats| {
            stats.side == Side::Send
                && stats.state == "open"
                && channel_key(stats).is_ok_and(|key| {
                    (key.exchange, key.producer) == (producer.key.exchange, producer.key.producer)
                        && reads(key)
                })
        };
        producer.is_adaptive() && shard.channels(self.common.now).any(|stats| is_open(&stats))
    }

    /// Notes who has sent all records beside a consumer that is stopped.
    fn note_beside_stopped(&mut self) {
        let is_stopped = |key: ChannelKey| {
            let ours = |consumer: &&Consumer| {
                (consumer.key.exchange, consumer.key.consumer) == (key.exchange, key.consumer)
            };
            let stands = |of: &Consumer| of.stopped && of.state == consumer::State::Running;
            self.consumers.iter().find(ours).is_some_and(stands)
        };
        for producer in self.producers.iter().filter(|of| of.state == producer::State::Ending) {
            let siblings = || self.common.model.siblings(producer.key.exchange, producer.key.producer);
            let is_beside = siblings().any(is_stopped) && !siblings().all(is_stopped);
            self.common.coverage.hit_when(Mark::WentOnBesideStopped, producer.is_adaptive() && is_beside);
        }
    }

    /// Every client has left, but for consumers whose missing producers never reached them.
    fn clients_are_done(&self) -> Result<(), String> {
        for producer in self.producers.iter().filter(|producer| !producer.left) {
            if !self.waits_in_vain(producer) {
                let open = producer.describe();
                return Err(format!("{producer} is {:?}: {open}", producer.state));
            }
        }
        for consumer in self.consumers.iter().filter(|consumer| !consumer.left) {
            for channel in 0..consumer.connected.len() {
                let key = consumer.channel(channel as u32);
                let model = self.common.model.channel(key)?;
                let producer = self.producer_position(key.exchange, key.producer);
                let in_vain = producer.is_some_and(|position| self.waits_in_vain(&self.producers[position]));
                if consumer.connected[channel] && model.outcome.is_none() && !in_vain {
                    return Err(format!("{consumer}: {key} has neither ended nor failed"));
                }
            }
            if consumer.holding() > 0 {
                return Err(format!("{consumer} holds {} slices", consumer.holding()));
            }
        }
        Ok(())
    }

    /// Whether a producer waits for a consumer that went before it had reached the producer's node. Nobody can tell
    /// the producer: another consumer with that index may still come.
    fn waits_in_vain(&self, producer: &Producer) -> bool {
        if producer.left {
            return false;
        }
        let shard = &self.nodes[producer.plan.place].shard;
        let stats: Vec<_> =
            shard.channels(self.common.now).filter(|stats| stats.side == Side::Send).collect();
        let gone = |consumer: &Consumer| {
            let key = ChannelKey { producer: producer.key.producer, ..consumer.key };
            let failed = self.common.model.channel(key).is_ok_and(|channel| channel.outcome.is_some());
            let waits = stats.iter().any(|stats| stats.state == "waiting" && channel_key(stats) == Ok(key));
            (consumer.left || failed) && waits
        };
        self.consumers.iter().filter(|consumer| consumer.key.exchange == producer.key.exchange).any(gone)
    }

    /// Producers that wait in vain are killed.
    fn dismiss_producers(&mut self) {
        let in_vain: Vec<_> = self.producers.iter().map(|producer| self.waits_in_vain(producer)).collect();
        let Self { producers, common, .. } = self;
        for (producer, _) in producers.iter_mut().zip(in_vain).filter(|(_, in_vain)| *in_vain) {
            producer.kill(common);
            let key = (producer.key.exchange, producer.key.producer);
            common.model.causes.producers_gone.insert(key);
        }
    }

    /// Consumers that can get no more leave.
    fn dismiss_consumers(&mut self) {
        let Self { consumers, common, .. } = self;
        for consumer in consumers.iter_mut().filter(|consumer| !consumer.left) {
            consumer.dismiss(common);
        }
    }

    /// Nothing is left of any client in any shard, and nothing is under way.
    fn all_is_released(&self) -> Result<(), String> {
        for node in &self.nodes {
            if let Some(position) = node.partitions.values().next() {
                return Err(format!("{node} keeps the partition of {}", self.producers[*position]));
            }
            if let Some(position) = node.gates.values().next() {
                return Err(format!("{node} keeps the gate of {}", self.consumers[*position]));
            }
            if node.draining && !node.shard.is_drained() {
                return Err(format!("{node} is stopping and not drained"));
            }
            if let Some(left) = node.shard.channels(self.common.now).next() {
                return Err(format!("{node} keeps a channel: {left:?}"));
            }
        }
        self.check_holds()?;
        self.check_links_quiet()
    }

    /// What must be true of each client and each channel when all is over.
    fn check_outcomes(&mut self) -> Result<(), String> {
        for producer in &self.producers {
            let lost = matches!(&producer.state, producer::State::Failed(failure) if failure.code == FailureCode::LinkLost);
            let delivered =
                |key| self.common.model.channel(key).is_ok_and(|c| c.outcome == Some(Outcome::End));
            let mut channels = self.common.model.siblings(producer.key.exchange, producer.key.producer);
            let delivered = lost && channels.all(delivered);
            self.common.coverage.hit_when(Mark::LostButDelivered, delivered);
            if producer.state == producer::State::Finished && producer.pool.free() != producer.segments() {
                let (free, all) = (producer.pool.free(), producer.segments());
                return Err(format!("{producer} has finished; {free} of {all} segments came back"));
            }
        }
        for consumer in &self.consumers {
            for channel in 0..consumer.connected.len() {
                let key = consumer.channel(channel as u32);
                let model = self.common.model.channel(key)?;
                let complete = model.outcome == Some(Outcome::End) && model.missing() == 0;
                if !complete && !self.common.model.may_fail(key) {
                    let missing = model.missing();
                    return Err(format!("{key}: {:?}, {missing} items missing, no cause", model.outcome));
                }
                let typed = model.outcome.is_some() || consumer.state == consumer::State::Dead;
                let left = consumer.state == consumer::State::Left;
                if consumer.connected[channel] && !typed && !left {
                    return Err(format!("{key}: has neither ended nor failed"));
                }
            }
        }
        Ok(())
    }
}
