//! A producer as a client that keeps the rules: it owns a partition pool, writes records into segments of its
//! region, hands over slices, and believes only what the daemon publishes.

mod adapted;
mod bounding;
mod cell;
mod contents;
mod leaving;

use std::collections::VecDeque;
use std::fmt;

use bytes::Bytes;
use weir_flow::exchange::{Shape, Strategy};
use weir_flow::failure::Failure;
use weir_flow::ids::{PartitionId, ProducerIndex, SegmentIndex, SubpartitionIndex};
use weir_flow::limits::RECORD_ROOM_BYTES;
use weir_flow::pool::partition::{PartitionPool, PartitionPoolSpec, Unavailable};
use weir_flow::shard::{PartitionUpdate, Submission};

use crate::adapting::Adapting;
use crate::common::Common;
use crate::coverage::Mark;
use crate::faults::Sabotage;
use crate::memory::Region;
use crate::model::{ChannelKey, Content, hash_target, record_key};
use crate::plan::{Plan, ProducerPlan, Records};
use crate::rng::Rng;
use crate::selecting::Selecting;
use crate::trace;
use bounding::Begin;
pub use cell::Cell;
use contents::frame;

/// How far a producer has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Not attached yet.
    Waiting,
    /// The daemon was asked to attach it.
    Attaching,
    /// Sending records.
    Running,
    /// Everything was submitted; it waits for the acknowledgements.
    Ending,
    /// The daemon said that everything was acknowledged.
    Finished,
    /// The daemon said that the partition failed.
    Failed(Failure),
    /// Killed.
    Dead,
}

/// What the daemon has accepted for one subpartition.
#[derive(Clone, Debug, Default)]
pub struct Accepted {
    /// All bytes.
    pub bytes: u64,
    /// Each segment that was closed, in order, with the bytes accepted up to its end.
    pub closed: Vec<(SegmentIndex, u64)>,
}

/// An open segment.
#[derive(Clone, Copy, Debug)]
struct Builder {
    segment: SegmentIndex,
    written: u32,
    submitted: u32,
    records: u32,
}

/// A record that is partly written.
#[derive(Debug)]
struct Pending {
    subpartition: usize,
    content: Content,
    bytes: Vec<u8>,
    at: usize,
    /// With adaptive selection: too long for the room that any consumer had.
    is_long: bool,
}

/// One producer.
#[derive(Debug)]
pub struct Producer {
    /// Exchange and index; the consumer is not used.
    pub key: ChannelKey,
    /// How it behaves.
    pub plan: ProducerPlan,
    /// How far it has come.
    pub state: State,
    /// The daemon's name for its partition, while the daemon has it.
    pub partition: Option<PartitionId>,
    /// Its send region. The kernel reads it too, even when the client is dead.
    pub region: Region,
    /// Its pool.
    pub pool: PartitionPool,
    /// Submissions that the daemon has not read.
    pub ring: VecDeque<Submission>,
    /// Updates that the client has not read.
    pub updates: VecDeque<PartitionUpdate>,
    /// Published by the daemon.
    pub cells: Vec<Cell>,
    /// What the daemon has read from its ring.
    pub accepted: Vec<Accepted>,
    /// The canary: a segment that came back although a consumer has not had it. Its true return is not told.
    pub freed_early: Option<SegmentIndex>,
    /// Whether the last entry of its ring is something that cannot be true.
    pub lied: bool,
    /// Whether the client has left, so that the daemon can close the partition.
    pub left: bool,
    shape: Shape,
    ring_capacity: usize,
    event_window: u64,
    record_bytes_max: u32,
    builders: Vec<Option<Builder>>,
    /// Bytes written, by subpartition.
    written: Vec<u64>,
    /// The canary: what waits beside a bound is not handed over.
    keeps_back: bool,
    pending: Option<Pending>,
    events: Vec<u64>,
    selecting: Selecting,
    adapting: Option<Adapting>,
    /// With adaptive selection: a record that waits until any consumer can take it.
    waiting: Option<Content>,
    left_to_send: u64,
    number: u64,
    ends_given: usize,
    last_slice: Option<(SegmentIndex, u32)>,
    rng: Rng,
}

impl fmt::Display for Producer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "producer x{}p{}", self.key.exchange, self.key.producer)
    }
}

impl Producer {
    /// A producer that has not attached.
    pub fn new(plan: &Plan, key: ChannelKey, producer: &ProducerPlan, rng: &mut Rng) -> Result<Self, String> {
        let exchange = plan.exchanges.get(key.exchange as usize).ok_or("no such exchange")?;
        let shape = exchange.shape;
        let builders = shape.builders(ProducerIndex(key.producer));
        let limits = &plan.limits;
        let spec = PartitionPoolSpec {
            segments: builders + 1 + limits.overdraft + producer.spare_segments,
            subpartitions: builders,
            quota: limits.quota,
            overdraft: limits.overdraft,
        };
        let count = builders as usize;
        let seed = rng.draw();
        Ok(Self {
            key,
            plan: producer.clone(),
            state: State::Waiting,
            partition: None,
            region: Region::new(spec.segments, limits.segment_bytes),
            pool: PartitionPool::new(spec).map_err(|error| format!("pool: {error}"))?,
            ring: VecDeque::new(),
            updates: VecDeque::new(),
            cells: vec![Cell::default(); count],
            accepted: vec![Accepted::default(); count],
            freed_early: None,
            lied: false,
            left: false,
            shape,
            ring_capacity: (2 * spec.segments + 2 * builders + 64).next_power_of_two() as usize,
            event_window: u64::from(limits.event_window),
            record_bytes_max: limits.record_bytes_max,
            builders: vec![None; count],
            written: vec![0; count],
            keeps_back: false,
            pending: None,
            events: vec![0; count],
            selecting: Selecting::new(&shape, ProducerIndex(key.producer), seed)?,
            adapting: producer.adaptive.then(|| Adapting::new(seed, builders)),
            waiting: None,
            left_to_send: producer.records,
            number: 0,
            ends_given: 0,
            last_slice: None,
            rng: rng.fork(u64::from(key.producer)),
        })
    }

    /// The channels to the consumers that get what is handed over for a subpartition: all of them with `broadcast`, whose
    /// only address is 0.
    #[must_use]
    pub fn channels(&self, subpartition: usize) -> Vec<ChannelKey> {
        let producer = ProducerIndex(self.key.producer);
        let consumer = self.shape.consumer_at(producer, SubpartitionIndex(subpartition as u32)).0;
        let consumers = match self.shape.strategy {
            Strategy::Broadcast => 0..self.shape.consumers,
            _ => consumer..consumer + 1,
        };
        consumers.map(|consumer| ChannelKey { consumer, ..self.key }).collect()
    }

    /// Whether several consumers read the same segments.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.shape.strategy == Strategy::Broadcast && self.shape.consumers > 1
    }

    /// The daemon has accepted a slice.
    pub fn accepted(&mut self, submission: &Submission) {
        let Submission::Data { subpartition, segment, bytes, last, .. } = *submission else { return };
        let Some(accepted) = self.accepted.get_mut(subpartition.0 as usize) else { return };
        accepted.bytes += u64::from(bytes);
        if last {
            accepted.closed.push((segment, accepted.bytes));
        }
    }

    /// What it waits for, for a report.
    #[must_use]
    pub fn describe(&self) -> String {
        let held: Vec<_> =
            (0..self.builders.len() as u32).map(|s| self.pool.held(SubpartitionIndex(s))).collect();
        let (free, all) = (self.pool.free(), self.segments());
        let (left, pending) = (self.left_to_send, self.pending.as_ref().map(|p| (p.subpartition, p.at)));
        format!("{left} records left, pending {pending:?}, {free} of {all} segments free, held {held:?}")
    }

    /// Segments of the region.
    #[must_use]
    pub const fn segments(&self) -> u32 {
        self.pool.spec().segments
    }

    /// One turn of the client. Says whether anything changed.
    pub fn act(&mut self, common: &mut Common) -> Result<bool, String> {
        let mut progress = false;
        if common.healed || self.rng.chance(700) {
            progress |= self.read_updates(common)?;
            self.read_cells();
            progress |= self.leave_gone(common)?;
        }
        self.pool.check().map_err(|violation| format!("{self}: {violation}"))?;
        // A segment may come back after the last acknowledgement: the kernel can be later than the peer.
        if self.state == State::Finished && !self.left && self.pool.free() == self.segments() {
            self.left = true;
            progress = true;
        }
        if self.state == State::Running && !self.lied && self.plan.lies_at.is_some_and(|at| at <= common.step)
        {
            self.lie(common);
            return Ok(true);
        }
        for _ in 0..self.rng.range(1, 4) {
            if self.state == State::Running && !self.lied {
                progress |= self.work(common)?;
            }
        }
        Ok(progress)
    }

    fn read_updates(&mut self, common: &mut Common) -> Result<bool, String> {
        let most = if common.healed { usize::MAX } else { self.rng.range(1, 8) as usize };
        let count = most.min(self.updates.len());
        for update in self.updates.drain(..count).collect::<Vec<_>>() {
            trace!(common.trace, self, "reads {update:?}");
            match update {
                PartitionUpdate::Returned(segment) => {
                    self.region.poison_segment(segment)?;
                    self.pool.handle_returned(segment).map_err(|error| format!("{self}: {error}"))?;
                }
                PartitionUpdate::Finished if self.state == State::Ending => {
                    let continued = self.cells.iter().any(|cell| cell.is_gone);
                    common.coverage.hit_when(Mark::FinishedWithout, continued);
                    self.state = State::Finished;
                }
                PartitionUpdate::Failed(failure) if matches!(self.state, State::Running | State::Ending) => {
                    common.model.partition_explained(self.key.exchange, self.key.producer, &failure)?;
                    common.coverage.hit(Mark::PartitionFailed);
                    common.coverage.hit_when(Mark::BroadcastFailed, self.is_shared());
                    self.state = State::Failed(failure);
                    self.left = true;
                }
                update => return Err(format!("{self}: was told {update:?} in state {:?}", self.state)),
            }
        }
        Ok(count > 0)
    }

    fn read_cells(&mut self) {
        for (subpartition, cell) in (0u32..).zip(&self.cells) {
            self.pool.handle_sent(SubpartitionIndex(subpartition), cell.sent_segments);
        }
    }

    /// Goes on without consumers that are lost, if the exchange does: what is begun for them is given up.
    fn leave_gone(&mut self, common: &mut Common) -> Result<bool, String> {
        if self.state != State::Running || self.lied || !common.model.continues(self.key.exchange) {
            return Ok(false);
        }
        let mut progress = false;
        for subpartition in 0..self.cells.len() {
            if !self.cells[subpartition].is_gone {
                continue;
            }
            let mut channels = self.channels(subpartition).into_iter();
            if let Some(key) = channels.find(|key| !common.model.may_fail(*key)) {
                return Err(format!("{key}: its consumer is said to be lost, with nothing that explains it"));
            }
            if let Some(pending) = self.pending.take_if(|pending| pending.subpartition == subpartition) {
                self.take_elsewhere(subpartition, pending.content, common);
            }
            if self.builders[subpartition].is_some() {
                progress = true;
                common.coverage.hit(Mark::GoneWithBuilder);
                self.submit(subpartition, true, common)?;
            }
        }
        Ok(progress)
    }

    fn is_gone(&self, subpartition: usize, common: &Common) -> bool {
        self.cells[subpartition].is_gone && common.model.continues(self.key.exchange)
    }

    fn work(&mut self, common: &mut Common) -> Result<bool, String> {
        if self.pending.is_some() {
            if self.rng.chance(50) {
                self.flush_some(common)?;
            }
            let progress = self.write(common)?;
            self.check_waits(common)?;
            return Ok(progress);
        }
        if self.left_to_send == 0 {
            return self.finish(common);
        }
        let dice = self.rng.below(1000) as u32;
        if dice < self.plan.events {
            return self.send_event(common);
        }
        let flushes = match self.plan.lengths {
            Records::Trickle => 500,
            Records::Small | Records::Long => 50,
            Records::Mixed => 150,
        };
        if self.rng.chance(flushes) {
            return self.flush_some(common);
        }
        self.begin_record(common)
    }

    fn begin_record(&mut self, common: &mut Common) -> Result<bool, String> {
        let is_any_there = (0..self.cells.len()).any(|subpartition| !self.is_gone(subpartition, common));
        if is_any_there && self.is_adaptive() {
            return self.begin_adapted(common);
        }
        let bytes = self.record_bytes();
        let mut payload = Vec::new();
        if !is_any_there {
            return Ok(false);
        }
        let chooses = !matches!(self.shape.strategy, Strategy::Forward | Strategy::Broadcast);
        let tries = if self.plan.skips && chooses { 4 } else { 1 };
        let mut chosen = None;
        for attempt in 0..tries {
            let content = self.next_content(bytes);
            content.write(&mut payload);
            let mut subpartition = self.selecting.select(&payload)?;
            while self.is_gone(subpartition, common) {
                common.coverage.hit(Mark::SkippedGone);
                self.selecting.skipped();
                subpartition = self.selecting.select(&payload)?;
            }
            chosen = Some((content, subpartition));
            let is_open = self.builders[subpartition].is_some();
            let has_room = is_open || self.pool.is_available(SubpartitionIndex(subpartition as u32));
            if has_room && self.admits(subpartition) {
                break;
            }
            self.selecting.skipped();
            if tries > 1 && attempt + 1 == tries && self.rng.chance(700) {
                // It looks again later.
                return Ok(false);
            }
        }
        let Some((content, mut subpartition)) = chosen else { return Ok(false) };
        if self.shape.strategy == Strategy::Hash {
            let wanted = hash_target(record_key(&payload), self.shape.consumers);
            if wanted as usize != subpartition {
                return Err(format!("{self}: hash chose {subpartition}; the key belongs to {wanted}"));
            }
            subpartition = self.move_key(subpartition, common);
        }
        for key in self.channels(subpartition) {
            common.model.give_record(key, content)?;
        }
        common.coverage.hit_when(Mark::EmptyRecord, bytes == 0);
        common.coverage.hit_when(Mark::LongRecord, bytes > 2 * self.shape.segment_bytes);
        let framed = frame(&payload, self.shape.checksum, self.record_bytes_max)?;
        self.pending = Some(Pending { subpartition, content, bytes: framed, at: 0, is_long: false });
        self.left_to_send -= 1;
        trace!(common.trace, self, "begins a record of {bytes} bytes to {subpartition}");
        self.write(common)?;
        Ok(true)
    }

    /// Goes on with the pending record. Says whether a byte was written.
    fn write(&mut self, common: &mut Common) -> Result<bool, String> {
        let mut progress = false;
        while let Some(mut pending) = self.pending.take() {
            let subpartition = pending.subpartition;
            if pending.at == 0
                && let Begin::Later(moved) = self.look_at_bound(subpartition, pending.bytes.len(), common)?
            {
                self.pending = Some(pending);
                return Ok(progress || moved);
            }
            let Some(mut builder) = self.builder(subpartition, pending.at > 0, common) else {
                self.pending = Some(pending);
                return Ok(progress);
            };
            progress = true;
            let room = (self.shape.segment_bytes - builder.written) as usize;
            let piece = &pending.bytes[pending.at..pending.bytes.len().min(pending.at + room)];
            self.region.write(builder.segment, builder.written, piece)?;
            builder.written += piece.len() as u32;
            self.written[subpartition] += piece.len() as u64;
            pending.at += piece.len();
            let complete = pending.at == pending.bytes.len();
            builder.records += u32::from(complete);
            let left = self.shape.segment_bytes - builder.written;
            // As a client does it: no record begins in the room of a length.
            let full = left == 0 || complete && left <= RECORD_ROOM_BYTES;
            self.builders[subpartition] = Some(builder);
            if full {
                self.submit(subpartition, true, common)?;
            }
            if complete {
                self.written_adapted(subpartition, pending.bytes.len(), common)?;
            } else {
                self.pending = Some(pending);
            }
        }
        Ok(progress)
    }

    /// The canary: a keyed record goes to another consumer, since its own has no room.
    fn move_key(&self, subpartition: usize, common: &mut Common) -> usize {
        let count = self.builders.len();
        let has_room = self.builders[subpartition].is_some()
            || self.pool.is_available(SubpartitionIndex(subpartition as u32));
        if count > 1 && !has_room && common.sabotage(Sabotage::MoveKey) {
            return (subpartition + 1) % count;
        }
        subpartition
    }

    fn builder(&mut self, subpartition: usize, begun: bool, common: &mut Common) -> Option<Builder> {
        if let Some(builder) = self.builders[subpartition] {
            return Some(builder);
        }
        let index = SubpartitionIndex(subpartition as u32);
        let plain = self.pool.is_available(index);
        match self.pool.acquire(index, begun) {
            Ok(segment) => {
                common.coverage.hit_when(Mark::OverdraftUsed, begun && !plain);
                Some(Builder { segment, written: 0, submitted: 0, records: 0 })
            }
            Err(lack) => {
                let mark = match lack {
                    Unavailable::Pool => Mark::PoolEmpty,
                    Unavailable::Quota => Mark::QuotaReached,
                };
                common.coverage.hit(mark);
                common.coverage.hit_when(Mark::BroadcastWaited, self.is_shared());
                None
            }
        }
    }

    /// Hands over what was written and not handed over; with `last` the segment is closed.
    fn submit(&mut self, subpartition: usize, last: bool, common: &mut Common) -> Result<(), String> {
        let Some(builder) = &mut self.builders[subpartition] else { return Ok(()) };
        let bytes = builder.written - builder.submitted;
        if bytes == 0 && !last {
            return Ok(());
        }
        let submission = Submission::Data {
            subpartition: SubpartitionIndex(subpartition as u32),
            segment: builder.segment,
            offset: builder.submitted,
            bytes,
            records: builder.records,
            last,
        };
        let (segment, offset) = (builder.segment, builder.submitted);
        builder.submitted = builder.written;
        builder.records = 0;
        if last {
            self.builders[subpartition] = None;
        }
        common.coverage.hit_when(Mark::PartialFlush, !last);
        common.coverage.hit_when(Mark::EmptyClose, last && bytes == 0);
        trace!(common.trace, self, "submits {submission:?}");
        self.push(submission)?;
        if bytes > 0 {
            self.last_slice = Some((segment, offset));
            self.spoil(common)?;
        }
        Ok(())
    }

    /// The canary: changes a byte that was handed over.
    fn spoil(&mut self, common: &mut Common) -> Result<(), String> {
        if let Some((segment, offset)) = self.last_slice
            && common.sabotage(Sabotage::WriteAfterSubmit)
        {
            let byte = self.region.read(segment, offset, 1)?[0];
            self.region.write(segment, offset, &[!byte])?;
        }
        Ok(())
    }

    fn push(&mut self, submission: Submission) -> Result<(), String> {
        if self.ring.len() >= self.ring_capacity {
            return Err(format!("{self}: its submit ring of {} entries is full", self.ring_capacity));
        }
        self.ring.push_back(submission);
        Ok(())
    }

    /// Whether a submission that is not a closing one leaves room for all closing ones.
    fn ring_has_room(&self) -> bool {
        let kept = self.segments() as usize + self.builders.len() + 64;
        self.ring_capacity - self.ring.len() > kept
    }

    fn flush_some(&mut self, common: &mut Common) -> Result<bool, String> {
        let subpartition = self.rng.index(self.builders.len());
        let Some(builder) = self.builders[subpartition].filter(|_| !self.keeps_back) else {
            return Ok(false);
        };
        let unfinished = self.pending.as_ref().is_some_and(|p| p.subpartition == subpartition);
        // An adaptive producer closes a segment only where a record has no room, as the client library does.
        let last = !unfinished && !self.is_adaptive() && self.rng.chance(200);
        if !last && (builder.written == builder.submitted || !self.ring_has_room()) {
            return Ok(false);
        }
        self.submit(subpartition, last, common)?;
        Ok(true)
    }

    fn send_event(&mut self, common: &mut Common) -> Result<bool, String> {
        let subpartition = self.rng.index(self.builders.len());
        if self.is_gone(subpartition, common) {
            return Ok(false);
        }
        let in_flight = self.events[subpartition] - self.cells[subpartition].events_done;
        if in_flight + 1 >= self.event_window {
            common.coverage.hit(Mark::EventWindowFull);
            return Ok(false);
        }
        if !self.ring_has_room() {
            return Ok(false);
        }
        let priority = self.rng.chance(400);
        if !priority {
            self.submit(subpartition, false, common)?;
        }
        self.number += 1;
        let bytes = (self.rng.small(1024) - u64::from(self.rng.chance(100))).min(1024) as u32;
        let content = Content { seed: crate::rng::mix(!self.number).wrapping_mul(3), bytes };
        let mut payload = Vec::new();
        content.write(&mut payload);
        for key in self.channels(subpartition) {
            common.model.give_event(key, content, priority)?;
        }
        self.events[subpartition] += 1;
        trace!(common.trace, self, "event of {bytes} bytes to {subpartition}, priority {priority}");
        let subpartition = SubpartitionIndex(subpartition as u32);
        self.push(Submission::Event { subpartition, payload: Bytes::from(payload), priority })?;
        Ok(true)
    }
}
