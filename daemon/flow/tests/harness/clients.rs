//! Clients of shards: what each has sent, got and holds. Honest ones, unless they are told to claim something.

use std::collections::{BTreeSet, VecDeque};

use weir_flow::debloat::DebloatSpec;
use weir_flow::exchange::{Shape, Strategy};
use weir_flow::failure::{Failure, FailureCode};
use weir_flow::ids::{
    ConsumerIndex, GateId, PartitionId, ProducerIndex, SegmentIndex, SubpartitionIndex, Time,
};
use weir_flow::shard::{Delivery, GateSpec, PartitionSpec, PartitionUpdate, Submission};

use super::{Node, SEGMENT_BYTES, end, event, gate_spec, partition_spec};

/// What a run reached, by name.
type Reached = BTreeSet<&'static str>;

/// What a channel carried: bytes are numbered, events stand between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Carried {
    Bytes(u64, u64),
    Event(u32),
    End,
}

/// Appends to a stream, joining what lies side by side.
fn note(stream: &mut Vec<Carried>, next: Carried) {
    if let (Some(Carried::Bytes(_, last)), Carried::Bytes(first, end)) = (stream.last_mut(), &next)
        && *last == *first
    {
        *last = *end;
        return;
    }
    stream.push(next);
}

/// Whether everything of `part` is how `whole` begins.
fn begins_with(whole: &[Carried], part: &[Carried]) -> bool {
    part.iter().enumerate().all(|(index, carried)| match (carried, whole.get(index)) {
        (Carried::Bytes(first, end), Some(Carried::Bytes(whole_first, whole_end))) => {
            let is_last = index + 1 == part.len();
            first == whole_first && (end == whole_end || is_last && end < whole_end)
        }
        (carried, found) => found == Some(carried),
    })
}

/// The byte at this position of a channel.
fn content(exchange: &str, producer: u32, consumer: u32, position: u64) -> u8 {
    let channel = u64::from(producer * 7 + consumer * 13) + exchange.len() as u64;
    (position.wrapping_mul(31) ^ (position >> 8) ^ channel) as u8
}

pub struct Producer {
    pub node: usize,
    pub id: PartitionId,
    exchange: &'static str,
    index: u32,
    /// Addresses that its client has: one per consumer, or one for all of them.
    pub addresses: u32,
    free: Vec<SegmentIndex>,
    builders: Vec<Option<(SegmentIndex, u32)>>,
    position: Vec<u64>,
    pub sent: Vec<Vec<Carried>>,
    pub priority_sent: Vec<VecDeque<u32>>,
    events: u32,
    is_ended: Vec<bool>,
    /// Segments of its region.
    segments: u32,
    pub is_finished: bool,
    pub is_failed: bool,
    pub is_closed: bool,
    /// Whether its client has claimed nothing that it did not have.
    pub is_honest: bool,
}

impl Producer {
    /// Producer `index` of the exchange, at this node, with so many segments.
    pub fn new(
        node: usize,
        at: &mut Node,
        exchange: &'static str,
        index: u32,
        shape: Shape,
        segments: u32,
        continue_without: bool,
    ) -> Self {
        let spec = PartitionSpec {
            exchange: exchange.parse().expect("a name"),
            producer: ProducerIndex(index),
            continue_without,
            ..partition_spec(shape, index, segments)
        };
        let addresses = if shape.strategy == Strategy::Broadcast { 1 } else { shape.consumers };
        let channels = addresses as usize;
        Self {
            node,
            id: at.add_partition(spec, Time(0)),
            exchange,
            index,
            addresses,
            free: (0..segments).map(SegmentIndex).collect(),
            builders: vec![None; channels],
            position: vec![0; channels],
            sent: vec![Vec::new(); channels],
            priority_sent: vec![VecDeque::new(); channels],
            events: 0,
            is_ended: vec![false; channels],
            segments,
            is_finished: false,
            is_failed: false,
            is_closed: false,
            is_honest: true,
        }
    }

    /// Whether its client may still hand something over for this consumer.
    fn is_open(&self, consumer: u32) -> bool {
        !self.is_failed && !self.is_closed && !self.is_ended[consumer as usize]
    }

    fn submit(&self, at: &mut Node, submission: Submission, now: Time) {
        let result = at.shard.handle_submission(self.id, submission, now);
        assert!(result.is_ok() || !self.is_honest, "an honest client is refused: {result:?}");
    }

    pub fn write(&mut self, at: &mut Node, consumer: u32, bytes: u32, close: bool, now: Time) {
        let channel = consumer as usize;
        if !self.is_open(consumer) {
            return;
        }
        let begun = self.builders[channel];
        if bytes == 0 && begun.is_none() {
            return;
        }
        let Some((segment, fill)) = begun.or_else(|| self.free.pop().map(|segment| (segment, 0))) else {
            return;
        };
        let count = bytes.min(SEGMENT_BYTES - fill);
        let first = self.position[channel];
        let region = at.sends.get_mut(&self.id).expect("its region");
        let slice = &mut region[segment.0 as usize][fill as usize..][..count as usize];
        for (position, byte) in (first..).zip(slice) {
            *byte = content(self.exchange, self.index, consumer, position);
        }
        self.position[channel] += u64::from(count);
        if count > 0 {
            note(&mut self.sent[channel], Carried::Bytes(first, first + u64::from(count)));
        }
        // Nothing to hand over and nothing to close is no submission.
        let last = close || count == 0 || fill + count == SEGMENT_BYTES;
        let submission = Submission::Data {
            subpartition: SubpartitionIndex(consumer),
            segment,
            offset: fill,
            bytes: count,
            records: u32::from(count > 0),
            last,
        };
        self.builders[channel] = (!last).then_some((segment, fill + count));
        self.submit(at, submission, now);
    }

    pub fn event(&mut self, at: &mut Node, consumer: u32, priority: bool, now: Time) {
        let view = at.shard.subpartition_view(self.id, SubpartitionIndex(consumer));
        if !self.is_open(consumer) || view.is_none_or(|view| view.events_in_flight >= 7) {
            return;
        }
        let name = self.events;
        self.events += 1;
        if priority {
            self.priority_sent[consumer as usize].push_back(name);
        } else {
            self.sent[consumer as usize].push(Carried::Event(name));
        }
        self.submit(at, event(consumer, &name.to_string(), priority), now);
    }

    pub fn end(&mut self, at: &mut Node, consumer: u32, now: Time) {
        if !self.is_open(consumer) {
            return;
        }
        if self.builders[consumer as usize].is_some() {
            self.write(at, consumer, 0, true, now);
        }
        self.is_ended[consumer as usize] = true;
        self.sent[consumer as usize].push(Carried::End);
        self.submit(at, end(consumer), now);
    }

    /// Any numbers. Whether they were refused.
    pub fn claim(&mut self, at: &mut Node, submission: Submission, now: Time) -> bool {
        self.is_honest = false;
        if at.shard.handle_submission(self.id, submission, now).is_ok() {
            return false;
        }
        let failure = Failure::new(FailureCode::ClientFault, "it lied");
        at.shard.handle_partition_closed(self.id, Some(failure), now);
        self.is_closed = true;
        true
    }

    /// Takes what its client is told. Whether it failed.
    pub fn take_updates(&mut self, at: &mut Node, reached: &mut Reached) -> bool {
        let mut failed = false;
        while let Some(update) = at.shard.poll_update(self.id) {
            match update {
                PartitionUpdate::Returned(segment) => {
                    assert!(!self.free.contains(&segment) || !self.is_honest, "{segment} is free already");
                    self.free.push(segment);
                }
                PartitionUpdate::Finished => self.is_finished = true,
                PartitionUpdate::Failed(failure) => {
                    assert!(!failure.text.is_empty() && !self.is_failed, "one reason");
                    reached.insert("partition failed");
                    (self.is_failed, failed) = (true, true);
                }
            }
        }
        for consumer in 0..self.addresses {
            let view = at.shard.subpartition_view(self.id, SubpartitionIndex(consumer));
            if view.is_some_and(|view| view.is_gone) && !self.is_failed {
                reached.insert("goes on without a consumer");
            }
        }
        failed
    }

    pub fn assert_all_free(&mut self) {
        self.free.sort_unstable();
        let all: Vec<_> = (0..self.segments).map(SegmentIndex).collect();
        assert_eq!(self.free, all, "every segment is free");
    }

    /// What it and a consumer know of their channel.
    pub fn compare(&self, consumer: &Consumer, wholly: bool) {
        if self.exchange != consumer.exchange || !self.is_honest {
            return;
        }
        let builder = consumer.builder as usize;
        let (sent, got) = (&self.sent[builder], &consumer.got[self.index as usize]);
        assert!(begins_with(sent, got), "{got:?} arrived of {sent:?}");
        let priority_sent = &self.priority_sent[builder];
        let priority_got = &consumer.priority_got[self.index as usize];
        let arrived = priority_got.iter().zip(priority_sent).all(|(got, sent)| got == sent);
        assert!(
            arrived && priority_got.len() <= priority_sent.len(),
            "{priority_got:?} of {priority_sent:?}"
        );
        if wholly {
            assert_eq!((got, priority_got), (sent, priority_sent), "everything arrived");
        }
    }
}

/// A slice that a consumer's client holds.
pub struct Held {
    channel: u32,
    segment: SegmentIndex,
    offset: u32,
    bytes: u32,
    first: u64,
    /// Of its bytes, those given back.
    given_back: u32,
}

pub struct Consumer {
    pub node: usize,
    pub id: GateId,
    exchange: &'static str,
    /// The address of its producers that it reads from.
    builder: u32,
    pub producers: u32,
    pub held: Vec<Held>,
    events: Vec<u32>,
    /// Bytes that came by each channel.
    pub position: Vec<u64>,
    got: Vec<Vec<Carried>>,
    priority_got: Vec<VecDeque<u32>>,
    is_done: Vec<bool>,
    pub is_closed: bool,
}

impl Consumer {
    /// Consumer `index` of the exchange, at this node, with two exclusive segments a channel and so many floating ones.
    pub fn new(
        node: usize,
        at: &mut Node,
        exchange: &'static str,
        index: u32,
        shape: Shape,
        floating: u32,
    ) -> Self {
        Self::wanting(node, at, exchange, index, shape, floating, None)
    }

    /// The same, with so much in flight as it wants.
    pub fn wanting(
        node: usize,
        at: &mut Node,
        exchange: &'static str,
        index: u32,
        shape: Shape,
        floating: u32,
        debloat: Option<DebloatSpec>,
    ) -> Self {
        let producers = shape.producers;
        let channels = producers as usize;
        let spec = GateSpec {
            debloat,
            exchange: exchange.parse().expect("a name"),
            consumer: ConsumerIndex(index),
            ..gate_spec(shape, index, producers * 2 + floating, 2)
        };
        Self {
            node,
            id: at.add_gate(spec, Time(0)),
            exchange,
            builder: if shape.strategy == Strategy::Broadcast { 0 } else { index },
            producers,
            held: Vec::new(),
            events: Vec::new(),
            position: vec![0; channels],
            got: vec![Vec::new(); channels],
            priority_got: vec![VecDeque::new(); channels],
            is_done: vec![false; channels],
            is_closed: false,
        }
    }

    /// Takes priority events, then at most `count` deliveries. Whether a channel failed.
    pub fn poll(&mut self, at: &mut Node, count: usize, trust: &[bool], reached: &mut Reached) -> bool {
        let name = |payload: &[u8]| std::str::from_utf8(payload).ok()?.parse::<u32>().ok();
        let mut failed = false;
        while let Some(delivery) = at.shard.poll_priority_delivery(self.id) {
            let Delivery::Event { channel, payload, priority: true } = delivery else {
                panic!("{delivery:?} is no priority event")
            };
            self.priority_got[channel as usize].extend(name(&payload));
            self.events.push(channel);
        }
        for _ in 0..count {
            let Some(delivery) = at.shard.poll_delivery(self.id) else { break };
            match delivery {
                Delivery::Data { channel, segment, offset, bytes, .. } => {
                    let first = self.position[channel as usize];
                    self.position[channel as usize] += u64::from(bytes);
                    let carried = Carried::Bytes(first, first + u64::from(bytes));
                    if bytes > 0 {
                        note(&mut self.got[channel as usize], carried);
                    }
                    let held = Held { channel, segment, offset, bytes, first, given_back: 0 };
                    self.check_bytes(at, &held, trust);
                    self.held.push(held);
                }
                Delivery::Lent { .. } => panic!("{delivery:?} over a link that carries bytes"),
                Delivery::Event { channel, payload, .. } => {
                    self.got[channel as usize].extend(name(&payload).map(Carried::Event));
                    self.events.push(channel);
                }
                Delivery::End { channel } => {
                    self.got[channel as usize].push(Carried::End);
                    self.last_word(channel);
                }
                Delivery::Failed { channel, failure } => {
                    assert!(!failure.text.is_empty(), "a failure says why");
                    reached.insert("channel failed");
                    self.last_word(channel);
                    failed = true;
                }
            }
        }
        failed
    }

    fn last_word(&mut self, channel: u32) {
        assert!(!self.is_done[channel as usize], "a channel ends once");
        self.is_done[channel as usize] = true;
    }

    /// Its bytes are those that were written, as long as it is held.
    fn check_bytes(&self, at: &Node, held: &Held, trust: &[bool]) {
        if !trust[held.channel as usize] {
            return;
        }
        let found = at.memory.read(self.id, held.segment, held.offset, held.bytes);
        for (position, found) in (held.first..).zip(found) {
            let needed = content(self.exchange, held.channel, self.builder, position);
            assert_eq!(*found, needed, "byte {position} of channel {}", held.channel);
        }
    }

    pub fn give_back(&mut self, at: &mut Node, pick: usize, share: u32, trust: &[bool], now: Time) {
        if self.is_closed || self.held.is_empty() {
            return;
        }
        let pick = pick % self.held.len();
        self.check_bytes(at, &self.held[pick], trust);
        let held = &mut self.held[pick];
        let part = (held.bytes - held.given_back).div_ceil(share);
        at.shard.handle_given_back(self.id, held.segment, part, now).expect("it was delivered");
        held.given_back += part;
        if held.given_back == held.bytes {
            self.held.swap_remove(pick);
        }
    }

    pub fn consume_event(&mut self, at: &mut Node, now: Time) {
        if !self.is_closed
            && let Some(channel) = self.events.pop()
        {
            at.shard.handle_event_consumed(self.id, channel, now).expect("it was delivered");
        }
    }

    /// Reads and gives back everything.
    pub fn read_on(&mut self, at: &mut Node, trust: &[bool], reached: &mut Reached, now: Time) -> bool {
        let failed = self.poll(at, usize::MAX, trust, reached);
        while !self.held.is_empty() && !self.is_closed {
            self.give_back(at, 0, 1, trust, now);
        }
        while !self.events.is_empty() && !self.is_closed {
            self.consume_event(at, now);
        }
        failed
    }

    /// Which producer's bytes may be compared.
    pub fn trust(&self, producers: &[Producer]) -> Vec<bool> {
        let mine = producers.iter().filter(|producer| producer.exchange == self.exchange);
        mine.map(|producer| producer.is_honest).collect()
    }
}
