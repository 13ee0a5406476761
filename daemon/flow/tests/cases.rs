//! Cases that were reported of systems of this kind, on two shards and the byte stream between them.
//!
//! Abort storms: a channel is opened, data is sent, and one end is given up at a random moment, 20,000 times over the
//! same link, whose socket is lost and replaced in every third round. What each round leaves behind is nothing:
//! whatever was granted was used or lapsed, whatever was used came back. Segments are 4 KiB here and pools a few of
//! them: what matters is that a channel has more to send than it has credit, which eight segments show as well as 1 MiB.

mod harness;

use std::collections::BTreeSet;

use harness::{Pair, SEGMENT_BYTES, any_life, end, event, gate_spec, limits, partition_spec, shape};
use weir_flow::exchange::{Shape, Strategy};
use weir_flow::failure::{Failure, FailureCode};
use weir_flow::ids::{GateId, Incarnation, PartitionId, SegmentIndex, SubpartitionIndex};
use weir_flow::shard::{Delivery, Notice, PartitionUpdate, Submission};
use weir_flow::stats::{ChannelStats, Side};
use weir_flow::wire::{FrameType, HEADER_BYTES, Header};

/// Node of the producers, and node of the consumers.
const A: usize = 0;
const B: usize = 1;

const ROUNDS: u32 = 20_000;
const CONSUMERS: u32 = 2;
/// Segments of each producer.
const SEGMENTS: u32 = 8;
/// Exclusive segments of each channel, and floating ones of each gate.
const EXCLUSIVE: u32 = 2;
const FLOATING: u32 = 2;

/// Time between two rounds, so that links ask for signs of life now and then.
const ROUND_NS: u64 = 100_000_000;

/// Numbers that are the same in every run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % u64::from(bound)) as u32
    }

    fn one_in(&mut self, count: u32) -> bool {
        self.below(count) == 0
    }
}

/// How far consumer 0 is when the channel ends before its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Progress {
    /// All that its credit allows has arrived, and nothing was read.
    Unread,
    /// Some of it was read, and a part of that given back.
    HalfRead,
    /// The last frame has arrived in part.
    MidFrame,
    /// Wherever a few turns of both sockets led, a batch in flight included.
    Anywhere,
}

const PROGRESS: [Progress; 4] =
    [Progress::Unread, Progress::HalfRead, Progress::MidFrame, Progress::Anywhere];

/// A producer's client that counts its segments.
struct Producer {
    id: PartitionId,
    free: BTreeSet<SegmentIndex>,
    /// Of each subpartition: the segment that is open, and what is in it.
    builders: [Option<(SegmentIndex, u32)>; CONSUMERS as usize],
    is_ended: [bool; CONSUMERS as usize],
    failure: Option<Failure>,
}

/// A consumer's client.
struct Consumer {
    id: GateId,
    held: Vec<(SegmentIndex, u32)>,
    events: Vec<u32>,
    /// Ends and failures, in the order in which they came.
    last_words: Vec<Option<FailureCode>>,
}

/// What holds an exchange open beside the storm, over the same link.
struct Calm {
    partition: PartitionId,
    gate: GateId,
    segment: SegmentIndex,
    sent: u32,
}

struct Storm {
    pair: Pair,
    dice: Dice,
    calm: Calm,
    /// The highest channel index that was ever assigned.
    index_max: u32,
    /// What came together: how far it was, whether the producer gave up, whether the socket was lost.
    met: BTreeSet<(Progress, bool, bool)>,
}

impl Storm {
    fn new(seed: u64) -> Self {
        let mut pair = Pair::new(limits());
        let shape = Shape { strategy: Strategy::Forward, ..shape(1, 1) };
        let mut spec = partition_spec(shape, 0, 4);
        spec.exchange = "calm".parse().unwrap();
        let partition = pair.nodes[A].add_partition(spec, pair.now);
        let mut spec = gate_spec(shape, 0, EXCLUSIVE + FLOATING, EXCLUSIVE);
        spec.exchange = "calm".parse().unwrap();
        let gate = pair.nodes[B].add_gate(spec, pair.now);
        let link = pair.nodes[B].link;
        pair.nodes[B].shard.handle_producer(gate, any_life(0), link, pair.now);
        pair.settle();
        let calm = Calm { partition, gate, segment: SegmentIndex(0), sent: 0 };
        let (dice, met) = (Dice(seed), BTreeSet::new());
        Self { pair, dice, calm, index_max: 0, met }
    }

    /// Opens, sends, gives up, and looks at what is left.
    fn round(&mut self, number: u32) {
        self.pass_time();
        let (mut producer, mut consumers) = self.open(number);
        self.fill(&mut producer);
        let progress = PROGRESS[self.dice.below(4) as usize];
        self.advance(progress, &mut consumers[0]);
        let by_producer = self.dice.one_in(4);
        let is_lost = number.is_multiple_of(3);
        self.met.insert((progress, by_producer, is_lost));
        // The socket goes before one end gives up, or before the other end knows it. The peer notices it later.
        let (is_lost_first, noticed_by) = (self.dice.one_in(2), self.dice.below(2) as usize);
        if is_lost && is_lost_first {
            self.pair.lose(noticed_by);
        }
        if by_producer {
            self.close_partition(&producer, FailureCode::ProducerGone);
        } else {
            self.close_gate(&consumers[0], FailureCode::ConsumerGone);
        }
        if is_lost {
            if !is_lost_first {
                self.turn();
                self.pair.lose(noticed_by);
            }
            self.pair.resume();
        }
        self.pair.settle();
        if by_producer {
            self.drain(&mut consumers[0]);
            self.assert_told(&producer, &consumers[0], 0);
            self.close_gate(&consumers[0], FailureCode::ConsumerGone);
        } else {
            self.drain_producer(&mut producer);
            let failed = producer.failure.as_ref().map(|failure| failure.code);
            assert!(
                failed == Some(FailureCode::ConsumerGone) || producer.is_ended[0],
                "round {number}, {progress:?}: {failed:?}"
            );
            self.close_partition(&producer, FailureCode::ProducerGone);
        }
        self.pair.settle();
        // The other consumer has lost its producer, and nothing else.
        self.drain(&mut consumers[1]);
        self.assert_told(&producer, &consumers[1], 1);
        self.close_gate(&consumers[1], FailureCode::ConsumerGone);
        self.pair.settle();
        self.assert_nothing_is_left(&producer, &consumers);
        self.send_in_calm();
    }

    fn pass_time(&mut self) {
        self.pair.now = self.pair.now.after_ns(ROUND_NS);
        for node in &mut self.pair.nodes {
            node.shard.handle_timeout(self.pair.now);
        }
        self.pair.settle();
    }

    fn open(&mut self, number: u32) -> (Producer, [Consumer; CONSUMERS as usize]) {
        let (shape, now) = (shape(1, CONSUMERS), self.pair.now);
        let mut spec = partition_spec(shape, 0, SEGMENTS);
        spec.incarnation = Incarnation(u64::from(number) + 1);
        let producer = Producer {
            id: self.pair.nodes[A].add_partition(spec, now),
            free: (0..SEGMENTS).map(SegmentIndex).collect(),
            builders: [None; CONSUMERS as usize],
            is_ended: [false; CONSUMERS as usize],
            failure: None,
        };
        let consumers = [0, 1].map(|consumer| {
            let node = &mut self.pair.nodes[B];
            let spec = gate_spec(shape, consumer, EXCLUSIVE + FLOATING, EXCLUSIVE);
            let id = node.add_gate(spec, now);
            node.shard.handle_producer(id, any_life(0), node.link, now);
            Consumer { id, held: Vec::new(), events: Vec::new(), last_words: Vec::new() }
        });
        self.pair.nodes[B].plan(now);
        let batch = self.pair.nodes[B].in_flight.as_deref().unwrap();
        let opened = open_channel_indices(batch);
        assert_eq!(opened.len(), CONSUMERS as usize);
        self.index_max = opened.into_iter().fold(self.index_max, u32::max);
        (producer, consumers)
    }

    /// Hands over more than credit allows to send: every segment, or a few less.
    fn fill(&mut self, producer: &mut Producer) {
        if self.dice.one_in(4) {
            // The consumers come first as often as the data.
            self.pair.settle();
        }
        for _ in 0..SEGMENTS + 4 {
            let subpartition = self.dice.below(CONSUMERS);
            match self.dice.below(12) {
                0 => self.submit_event(producer, subpartition),
                1 => self.submit_end(producer, subpartition),
                _ => self.submit_data(producer, subpartition),
            }
            if self.dice.one_in(4) {
                self.turn();
            }
        }
    }

    fn submit_data(&mut self, producer: &mut Producer, subpartition: u32) {
        let index = subpartition as usize;
        if producer.is_ended[index] {
            return;
        }
        let Some((segment, fill)) =
            producer.builders[index].or_else(|| producer.free.pop_first().map(|segment| (segment, 0)))
        else {
            return;
        };
        let bytes = 1 + self.dice.below(SEGMENT_BYTES - fill);
        let last = fill + bytes == SEGMENT_BYTES || self.dice.one_in(2);
        let submission = harness::data(subpartition, segment.0, fill, bytes, last);
        self.submit(producer.id, submission);
        producer.builders[index] = (!last).then_some((segment, fill + bytes));
    }

    fn submit_event(&mut self, producer: &Producer, subpartition: u32) {
        if !producer.is_ended[subpartition as usize] {
            let is_priority = self.dice.one_in(2);
            self.submit(producer.id, event(subpartition, "barrier", is_priority));
        }
    }

    fn submit_end(&mut self, producer: &mut Producer, subpartition: u32) {
        // One is left that can fail.
        if producer.is_ended.iter().all(|is_ended| !is_ended) {
            self.close_builder(producer, subpartition);
            producer.is_ended[subpartition as usize] = true;
            self.submit(producer.id, end(subpartition));
        }
    }

    fn close_builder(&mut self, producer: &mut Producer, subpartition: u32) {
        if let Some((segment, fill)) = producer.builders[subpartition as usize].take() {
            let submission = Submission::Data {
                subpartition: SubpartitionIndex(subpartition),
                segment,
                offset: fill,
                bytes: 0,
                records: 0,
                last: true,
            };
            self.submit(producer.id, submission);
        }
    }

    fn submit(&mut self, partition: PartitionId, submission: Submission) {
        let now = self.pair.now;
        self.pair.nodes[A].shard.handle_submission(partition, submission, now).unwrap();
    }

    /// One socket takes some bytes and the other gives some.
    fn turn(&mut self) {
        let from = self.dice.below(2) as usize;
        let bytes = [40, 4000, 40_000][self.dice.below(3) as usize];
        if self.dice.one_in(3) {
            let now = self.pair.now;
            self.pair.nodes[from].plan(now);
        }
        self.pair.send(from, self.dice.below(bytes) as usize);
        self.pair.receive(1 - from, self.dice.below(bytes) as usize);
    }

    fn advance(&mut self, progress: Progress, consumer: &mut Consumer) {
        match progress {
            Progress::Unread => self.pair.settle(),
            Progress::HalfRead => {
                self.pair.settle();
                let count = 1 + self.dice.below(4);
                self.poll(consumer, count);
                if let Some((segment, bytes)) = consumer.held.pop() {
                    self.give_back(consumer, segment, bytes.div_ceil(2));
                    consumer.held.extend((bytes > 1).then_some((segment, bytes / 2)));
                }
            }
            Progress::MidFrame => {
                while self.pair.send(A, usize::MAX) {}
                let cut = 1 + self.dice.below(SEGMENT_BYTES) as usize;
                let arrives = self.pair.nodes[B].wire.len().saturating_sub(cut);
                self.pair.receive(B, arrives);
            }
            Progress::Anywhere => {
                for _ in 0..self.dice.below(8) {
                    self.turn();
                }
            }
        }
    }

    fn poll(&mut self, consumer: &mut Consumer, count: u32) {
        let shard = &mut self.pair.nodes[B].shard;
        while let Some(Delivery::Event { channel, .. }) = shard.poll_priority_delivery(consumer.id) {
            consumer.events.push(channel);
        }
        for _ in 0..count {
            match shard.poll_delivery(consumer.id) {
                Some(Delivery::Data { segment, bytes, .. }) => consumer.held.push((segment, bytes)),
                Some(Delivery::Lent { .. }) => unreachable!("no link is local"),
                Some(Delivery::Event { channel, .. }) => consumer.events.push(channel),
                Some(Delivery::Failed { failure, .. }) => consumer.last_words.push(Some(failure.code)),
                Some(Delivery::End { .. }) => consumer.last_words.push(None),
                None => return,
            }
        }
    }

    fn give_back(&mut self, consumer: &Consumer, segment: SegmentIndex, bytes: u32) {
        let now = self.pair.now;
        self.pair.nodes[B].shard.handle_given_back(consumer.id, segment, bytes, now).unwrap();
    }

    /// Reads and gives back everything that a consumer still has.
    fn drain(&mut self, consumer: &mut Consumer) {
        loop {
            self.poll(consumer, u32::MAX);
            if consumer.held.is_empty() && consumer.events.is_empty() {
                return;
            }
            for (segment, bytes) in std::mem::take(&mut consumer.held) {
                self.give_back(consumer, segment, bytes);
            }
            let now = self.pair.now;
            for channel in std::mem::take(&mut consumer.events) {
                self.pair.nodes[B].shard.handle_event_consumed(consumer.id, channel, now).unwrap();
            }
            self.pair.settle();
        }
    }

    /// What a client does when it is told that its partition has failed: it lets go of what it has open.
    fn drain_producer(&mut self, producer: &mut Producer) {
        (0..CONSUMERS).for_each(|subpartition| self.close_builder(producer, subpartition));
        self.pair.settle();
        while let Some(update) = self.pair.nodes[A].shard.poll_update(producer.id) {
            match update {
                PartitionUpdate::Returned(segment) => {
                    assert!(producer.free.insert(segment), "{segment} twice")
                }
                PartitionUpdate::Failed(failure) => {
                    assert!(producer.failure.replace(failure).is_none(), "failed twice");
                }
                PartitionUpdate::Finished => panic!("one of its consumers is gone, and one has no end"),
            }
        }
        if producer.failure.is_some() {
            assert_eq!(producer.free.len(), SEGMENTS as usize, "the pool is full again");
        }
    }

    fn close_partition(&mut self, producer: &Producer, code: FailureCode) {
        let failure = Some(Failure::new(code, "killed"));
        self.pair.nodes[A].shard.handle_partition_closed(producer.id, failure, self.pair.now);
    }

    fn close_gate(&mut self, consumer: &Consumer, code: FailureCode) {
        let node = &mut self.pair.nodes[B];
        node.shard.handle_gate_closed(consumer.id, Some(Failure::new(code, "killed")), self.pair.now);
        // From now on writing into it panics.
        node.memory.remove(consumer.id);
    }

    /// The consumer heard once how its channel ended, and all its segments are free: none is granted, none is used,
    /// and `check()` holds: floating segments that no channel has are free.
    fn assert_told(&self, producer: &Producer, consumer: &Consumer, index: usize) {
        let own = |stats: &ChannelStats| stats.exchange.as_str() == "x" && stats.consumer.0 as usize == index;
        match consumer.last_words[..] {
            [Some(FailureCode::ProducerGone | FailureCode::ConsumerGone)] => {}
            // The producer was gone when the request arrived: nothing was read, and the next life may be asked for.
            [] => assert!(self.stats(B).iter().filter(|stats| own(stats)).all(|own| own.state == "waiting")),
            [None] => assert!(producer.is_ended[index], "an end that nobody said"),
            ref words => panic!("{words:?}"),
        }
        let stats = self.stats(B).into_iter();
        let left: Vec<(u32, u32)> =
            stats.filter(own).map(|stats| (stats.receiver_ready, stats.receiver_held)).collect();
        assert_eq!(left, [(0, 0)], "granted and not used, used and not returned");
    }

    fn stats(&self, node: usize) -> Vec<ChannelStats> {
        self.pair.nodes[node].shard.channels(self.pair.now).collect()
    }

    fn assert_nothing_is_left(&mut self, producer: &Producer, consumers: &[Consumer]) {
        let mut released = 0;
        for node in &mut self.pair.nodes {
            while let Some(notice) = node.shard.poll_notice() {
                released += match notice {
                    Notice::PartitionReleased(id) => u32::from(id == producer.id),
                    Notice::GateReleased(id) => u32::from(consumers.iter().any(|consumer| consumer.id == id)),
                    _ => 0,
                };
            }
        }
        assert_eq!(released, 1 + CONSUMERS, "one partition and its gates");
        self.pair.nodes[A].sends.remove(&producer.id).unwrap();
        let (sends, receives) = (self.stats(A), self.stats(B));
        let ([send], [receive]) = (&sends[..], &receives[..]) else { panic!("{sends:?}, {receives:?}") };
        assert_eq!((send.side, receive.side), (Side::Send, Side::Receive));
        assert_eq!(send.credit, receive.receiver_ready, "nothing granted is on its way");
        let has = receive.receiver_ready + receive.receiver_held;
        assert!((EXCLUSIVE..=EXCLUSIVE + FLOATING).contains(&has), "{has} segments, its pool at most");
        assert_eq!((send.queued_bytes, send.unacked_bytes, receive.queued_bytes), (0, 0, 0));
    }

    /// One record from end to end beside the storm.
    fn send_in_calm(&mut self) {
        let (now, segment) = (self.pair.now, self.calm.segment);
        self.calm.sent += 1;
        let record = self.calm.sent.to_le_bytes().repeat(1 + self.calm.sent as usize % 1000);
        let node = &mut self.pair.nodes[A];
        let region = node.sends.get_mut(&self.calm.partition).unwrap();
        region[segment.0 as usize][..record.len()].copy_from_slice(&record);
        let submission = harness::data(0, segment.0, 0, record.len() as u32, true);
        node.shard.handle_submission(self.calm.partition, submission, now).unwrap();
        self.pair.settle();
        let (gate, mut arrived) = (self.calm.gate, Vec::new());
        while let Some(delivery) = self.pair.nodes[B].shard.poll_delivery(gate) {
            let Delivery::Data { segment, offset, bytes, .. } = delivery else { panic!("{delivery:?}") };
            let node = &mut self.pair.nodes[B];
            arrived.extend_from_slice(node.memory.read(gate, segment, offset, bytes));
            node.shard.handle_given_back(gate, segment, bytes, now).unwrap();
        }
        assert!(arrived == record, "record {} beside the storm", self.calm.sent);
        self.pair.settle();
        let update = self.pair.nodes[A].shard.poll_update(self.calm.partition);
        assert_eq!(update, Some(PartitionUpdate::Returned(segment)));
    }
}

fn open_channel_indices(mut bytes: &[u8]) -> Vec<u32> {
    let mut indices = Vec::new();
    while let Some((head, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() {
        let header = Header::decode(head, SEGMENT_BYTES).unwrap();
        if header.frame_type == FrameType::OpenChannel {
            indices.push(header.channel.0);
        }
        bytes = &rest[header.length as usize..];
    }
    indices
}

/// 20,000 times: open, send more than there is credit for, abort unread, half read, or in the middle of a frame.
#[test]
fn a_storm_of_aborts_leaves_nothing_granted_held_or_assigned() {
    let mut storm = Storm::new(3);
    for number in 0..ROUNDS {
        storm.round(number);
    }
    assert_eq!(storm.calm.sent, ROUNDS);
    // The calm exchange has one index, each round's consumers have two others.
    assert_eq!(storm.index_max, CONSUMERS, "channel indices are used again");
    assert_eq!(storm.met.len(), PROGRESS.len() * 4, "{:?}", storm.met);
}
