//! A consumer as a client that keeps the rules: it reads deliveries, assembles records out of receive memory,
//! holds slices for as long as it likes and gives exactly them back.

use std::collections::VecDeque;
use std::fmt;

use weir_flow::exchange::Shape;
use weir_flow::ids::{ConsumerIndex, GateId, SegmentIndex};
use weir_flow::shard::Delivery;

use crate::assembling::Assembling;
use crate::common::Common;
use crate::coverage::Mark;
use crate::faults::Sabotage;
use crate::memory::GateMemory;
use crate::model::ChannelKey;
use crate::plan::{ConsumerPlan, Plan};
use crate::rng::Rng;
use crate::trace;

/// How far a consumer has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Not attached yet.
    Waiting,
    /// The daemon was asked to attach it.
    Attaching,
    /// Reading.
    Running,
    /// Every channel has ended, and everything was given back.
    Finished,
    /// It left because a channel failed.
    Left,
    /// Killed.
    Dead,
}

/// What a client gives back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GivenBack {
    /// Bytes of a segment.
    Data {
        /// The segment.
        segment: SegmentIndex,
        /// First byte, which the core is not told.
        offset: u32,
        /// How many.
        bytes: u32,
    },
    /// Bytes in the memory of a channel's producer.
    Lent {
        /// The channel.
        channel: u32,
        /// The segment.
        segment: SegmentIndex,
        /// How many.
        bytes: u32,
    },
    /// An event of a channel.
    Event(u32),
}

/// A slice that the client still reads.
#[derive(Clone, Debug)]
struct Holding {
    /// The channel in whose producer's memory it lies.
    lent: Option<u32>,
    segment: SegmentIndex,
    offset: u32,
    copy: Vec<u8>,
}

/// One consumer.
#[derive(Debug)]
pub struct Consumer {
    /// Exchange and index; the producer is not used.
    pub key: ChannelKey,
    /// How it behaves.
    pub plan: ConsumerPlan,
    /// How far it has come.
    pub state: State,
    /// The daemon's name for its gate, while the daemon has it.
    pub gate: Option<GateId>,
    /// Segments of the gate.
    pub segments: u32,
    /// Deliveries that the client has not read.
    pub ring: VecDeque<Delivery>,
    /// Priority events that the client has not read.
    pub priority: VecDeque<Delivery>,
    /// What was given back and not read by the daemon.
    pub given: VecDeque<GivenBack>,
    /// Which channels were connected, by channel inside the gate.
    pub connected: Vec<bool>,
    /// It reads nothing until everybody else is done.
    pub stopped: bool,
    /// Whether the last entry that it gave back is something that cannot be true.
    pub lied: bool,
    /// Whether the client has left, so that the daemon can close the gate.
    pub left: bool,
    shape: Shape,
    held: Vec<Holding>,
    assembling: Assembling,
    over: Vec<bool>,
    failed: bool,
    leaves: bool,
    rng: Rng,
}

impl fmt::Display for Consumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "consumer x{}c{}", self.key.exchange, self.key.consumer)
    }
}

impl Consumer {
    /// A consumer that has not attached.
    pub fn new(plan: &Plan, key: ChannelKey, consumer: &ConsumerPlan, rng: &mut Rng) -> Result<Self, String> {
        let shape = plan.exchanges.get(key.exchange as usize).ok_or("no such exchange")?.shape;
        let channels = shape.channels(ConsumerIndex(key.consumer));
        let limits = &plan.limits;
        let mut rng = rng.fork(u64::from(key.consumer) + 1_000);
        Ok(Self {
            key,
            plan: consumer.clone(),
            state: State::Waiting,
            gate: None,
            segments: channels * limits.exclusive + limits.floating + consumer.spare_segments,
            ring: VecDeque::new(),
            priority: VecDeque::new(),
            given: VecDeque::new(),
            connected: vec![false; channels as usize],
            stopped: consumer.stopped,
            lied: false,
            left: false,
            shape,
            held: Vec::new(),
            assembling: Assembling::new(limits, &shape, ConsumerIndex(key.consumer)),
            over: vec![false; channels as usize],
            failed: false,
            leaves: rng.chance(500),
            rng,
        })
    }

    /// The channel from the producer that a channel of the gate belongs to.
    #[must_use]
    pub fn channel(&self, channel: u32) -> ChannelKey {
        let producer = self.shape.producer_at(ConsumerIndex(self.key.consumer), channel);
        ChannelKey { producer: producer.0, ..self.key }
    }

    /// Slices that it holds.
    #[must_use]
    pub fn holding(&self) -> usize {
        self.held.len()
    }

    fn reads(&self, common: &Common) -> bool {
        let paused = self.plan.pause.is_some_and(|(from, to)| (from..to).contains(&common.step));
        !self.stopped && (common.healed || !paused)
    }

    /// Whether it is slow now, and lets this turn pass.
    fn dawdles(&mut self, common: &Common) -> bool {
        let Some(slow) = self.plan.slow.filter(|slow| (slow.from..slow.to).contains(&common.step)) else {
            return false;
        };
        !common.healed && !self.rng.chance(slow.per_mille)
    }

    /// One turn of the client. Says whether anything changed.
    pub fn act(&mut self, memory: &mut GateMemory, common: &mut Common) -> Result<bool, String> {
        if self.state != State::Running || !self.reads(common) {
            common.coverage.hit_when(Mark::ConsumerStopped, self.state == State::Running && self.stopped);
            return Ok(false);
        }
        if self.lied || self.dawdles(common) {
            return Ok(false);
        }
        if self.plan.lies_at.is_some_and(|at| at <= common.step) {
            self.lie(common);
            return Ok(true);
        }
        let mut progress = false;
        for _ in 0..self.rng.range(1, 6) {
            // Priority events are read first, always.
            let Some(delivery) = self.priority.pop_front().or_else(|| self.ring.pop_front()) else { break };
            progress = true;
            self.read(delivery, memory, common)?;
        }
        let most = if common.healed { 0 } else { self.plan.holds };
        while self.held.len() > most {
            progress = true;
            self.give_one_back(memory, common)?;
        }
        if self.held.is_empty() && self.over.iter().all(|over| *over) {
            self.state = State::Finished;
            self.left = true;
        } else if self.failed && self.leaves {
            self.leave(State::Left, common);
        } else if !progress && !self.held.is_empty() && self.rng.chance(200) {
            progress = true;
            self.give_one_back(memory, common)?;
        }
        Ok(progress)
    }

    fn read(
        &mut self,
        delivery: Delivery,
        memory: &mut GateMemory,
        common: &mut Common,
    ) -> Result<(), String> {
        trace!(common.trace, self, "reads {delivery:?}");
        match delivery {
            Delivery::Data { channel, segment, offset, bytes, .. }
            | Delivery::Lent { channel, segment, offset, bytes, .. } => {
                let lent = matches!(delivery, Delivery::Lent { .. }).then_some(channel);
                let copy = memory.source(lent)?.read(segment, offset, bytes)?.to_vec();
                let keys: Vec<_> = (0..self.over.len() as u32).map(|number| self.channel(number)).collect();
                let take = |channel, record: &[u8]| {
                    let key = keys.get(channel as usize).copied().unwrap_or(self.key);
                    common.model.take_record(key, record)
                };
                let waits = self.assembling.feed(channel, &copy, take)?;
                common.coverage.hit_when(Mark::SpanningWait, waits);
                self.held.push(Holding { lent, segment, offset, copy });
            }
            Delivery::Event { channel, payload, priority } => {
                let overtook = common.model.take_event(self.channel(channel), &payload, priority)?;
                common.coverage.hit_when(Mark::PriorityOvertook, overtook);
                self.given.push_back(GivenBack::Event(channel));
            }
            Delivery::End { channel } => {
                let key = self.channel(channel);
                common.model.take_end(key)?;
                if !self.assembling.end(channel) {
                    return Err(format!("{key}: the end came inside a record"));
                }
                self.close(channel)?;
            }
            Delivery::Failed { channel, failure } => {
                let key = self.channel(channel);
                common.model.take_failure(key, &failure)?;
                common.coverage.hit(Mark::ChannelFailed);
                self.failed = true;
                self.assembling.end(channel);
                self.close(channel)?;
            }
        }
        Ok(())
    }

    fn close(&mut self, channel: u32) -> Result<(), String> {
        let key = self.channel(channel);
        let over = self.over.get_mut(channel as usize).ok_or_else(|| format!("{key}: no such channel"))?;
        *over = true;
        Ok(())
    }

    fn give_one_back(&mut self, memory: &mut GateMemory, common: &mut Common) -> Result<(), String> {
        let position = if self.rng.chance(700) { 0 } else { self.rng.index(self.held.len()) };
        let holding = self.held.remove(position);
        let Holding { lent, segment, offset, copy } = &holding;
        let (lent, segment, offset, bytes) = (*lent, *segment, *offset, copy.len() as u32);
        if memory.source(lent)?.read(segment, offset, bytes)? != copy.as_slice() {
            return Err(format!("{self}: segment {segment} {offset}+{bytes} changed while it was held"));
        }
        common.coverage.hit_when(Mark::GivenBackOutOfOrder, position > 0);
        if common.sabotage(Sabotage::LoseGiveBack) {
            return Ok(());
        }
        if lent.is_none() {
            memory.region.poison(segment, offset, bytes)?;
        }
        if common.sabotage(Sabotage::ReadAfterGiveBack) {
            self.held.push(holding.clone());
        }
        if bytes > 1 && self.rng.chance(100) {
            let first = self.rng.range_u32(1, bytes - 1);
            common.coverage.hit(Mark::GivenBackInParts);
            self.given.push_back(given(lent, segment, offset, first));
            self.given.push_back(given(lent, segment, offset + first, bytes - first));
        } else {
            self.given.push_back(given(lent, segment, offset, bytes));
        }
        trace!(common.trace, self, "gives back segment {segment} {offset}+{bytes}");
        Ok(())
    }

    /// Gives back something that it cannot hold in any state.
    fn lie(&mut self, common: &mut Common) {
        let lie = match self.rng.below(4) {
            3 => GivenBack::Lent { channel: 0, segment: SegmentIndex(u32::MAX), bytes: 1 },
            0 => GivenBack::Data { segment: SegmentIndex(self.segments), offset: 0, bytes: 1 },
            1 => GivenBack::Data { segment: SegmentIndex(0), offset: 0, bytes: u32::MAX },
            _ => GivenBack::Event(self.over.len() as u32),
        };
        trace!(common.trace, self, "lies: {lie:?}");
        common.coverage.hit(Mark::ConsumerLied);
        let key = (self.key.exchange, self.key.consumer);
        common.model.causes.consumers_lied.insert(key);
        common.model.causes.consumers_gone.insert(key);
        self.lied = true;
        self.given.push_back(lie);
    }

    /// The process is killed: whatever it had not published is lost.
    pub fn kill(&mut self, common: &mut Common) {
        trace!(common.trace, self, "is killed");
        common.coverage.hit(Mark::ConsumerDied);
        common.coverage.hit_when(Mark::ConsumerDiedHolding, !self.held.is_empty());
        self.leave(State::Dead, common);
    }

    /// The daemon has detached it.
    pub fn detach(&mut self, common: &mut Common) {
        self.leave(State::Dead, common);
    }

    /// It leaves because nothing more can come.
    pub fn dismiss(&mut self, common: &mut Common) {
        if self.over.iter().all(|over| *over) {
            self.state = State::Finished;
            self.left = true;
        } else {
            self.leave(State::Left, common);
        }
    }

    fn leave(&mut self, state: State, common: &mut Common) {
        self.state = state;
        self.left = true;
        self.held.clear();
        self.ring.clear();
        self.priority.clear();
        common.model.causes.consumers_gone.insert((self.key.exchange, self.key.consumer));
    }
}

/// What is said of a slice that is given back.
fn given(lent: Option<u32>, segment: SegmentIndex, offset: u32, bytes: u32) -> GivenBack {
    match lent {
        Some(channel) => GivenBack::Lent { channel, segment, bytes },
        None => GivenBack::Data { segment, offset, bytes },
    }
}
