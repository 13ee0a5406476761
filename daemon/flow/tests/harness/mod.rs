//! Two ways to drive a shard in tests: against a scripted peer ([`Lone`]), and against another shard over a byte stream
//! that can be cut anywhere ([`Pair`]). Time moves only when a test says so; every step ends with `check()`.

#![allow(dead_code, unreachable_pub, reason = "each test file is a crate of its own and uses its part")]

pub mod clients;

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use weir_flow::exchange::{Shape, Strategy};
use weir_flow::failure::Failure;
use weir_flow::ids::{
    ChannelIndex, ConsumerIndex, GateId, Incarnation, LinkId, PartitionId, ProducerIndex, ProducerLife,
    SegmentIndex, Sequence, SubpartitionIndex, Time,
};
use weir_flow::limits::Limits;
use weir_flow::shard::{
    ClientFault, Delivery, GateSpec, LinkSpec, Notice, Part, PartitionSpec, PartitionUpdate, PoolShares,
    ReceiveMemory, Shard, Submission, Transmit,
};
use weir_flow::wire::{
    Cancel, Flags, FrameType, HEADER_BYTES, Header, Limit, Message, OpenChannel, WireError, decode, encode,
};

/// Small segments make short tests: four slices of 1 KiB fill one.
pub const SEGMENT_BYTES: u32 = 4096;

pub fn limits() -> Limits {
    let limits = Limits { batch_bytes_min: 16 << 10, ..Limits::new(SEGMENT_BYTES).unwrap() };
    limits.validated().unwrap()
}

/// Whichever life of a producer there is.
pub fn any_life(producer: u32) -> ProducerLife {
    ProducerLife { producer: ProducerIndex(producer), incarnation: Incarnation(0) }
}

pub fn shape(producers: u32, consumers: u32) -> Shape {
    Shape {
        producers,
        consumers,
        strategy: Strategy::Rebalance,
        segment_bytes: SEGMENT_BYTES,
        checksum: false,
    }
}

pub fn partition_spec(shape: Shape, producer: u32, segments: u32) -> PartitionSpec {
    PartitionSpec {
        exchange: "x".parse().unwrap(),
        producer: ProducerIndex(producer),
        shape,
        incarnation: Incarnation(7),
        segments,
        pool: PoolShares::default(),
        continue_without: false,
    }
}

pub fn gate_spec(shape: Shape, consumer: u32, segments: u32, exclusive: u32) -> GateSpec {
    GateSpec {
        exchange: "x".parse().unwrap(),
        consumer: ConsumerIndex(consumer),
        shape,
        segments,
        exclusive,
        debloat: None,
    }
}

pub fn link_spec(peer: &str) -> LinkSpec {
    LinkSpec { peer: peer.parse().unwrap(), peer_shard: 0, peer_grace_ns: u64::MAX, is_local: false }
}

pub fn data(subpartition: u32, segment: u32, offset: u32, bytes: u32, last: bool) -> Submission {
    Submission::Data {
        subpartition: SubpartitionIndex(subpartition),
        segment: SegmentIndex(segment),
        offset,
        bytes,
        records: 1,
        last,
    }
}

pub fn event(subpartition: u32, text: &str, priority: bool) -> Submission {
    Submission::Event {
        subpartition: SubpartitionIndex(subpartition),
        payload: Bytes::copy_from_slice(text.as_bytes()),
        priority,
    }
}

pub fn end(subpartition: u32) -> Submission {
    Submission::End { subpartition: SubpartitionIndex(subpartition) }
}

/// Memory of gates, as bytes.
#[derive(Default)]
pub struct Regions {
    gates: BTreeMap<GateId, Vec<Vec<u8>>>,
}

impl Regions {
    pub fn add(&mut self, gate: GateId, segments: u32) {
        let region = (0..segments).map(|_| vec![0; SEGMENT_BYTES as usize]).collect();
        self.gates.insert(gate, region);
    }

    pub fn remove(&mut self, gate: GateId) {
        self.gates.remove(&gate);
    }

    pub fn read(&self, gate: GateId, segment: SegmentIndex, offset: u32, bytes: u32) -> &[u8] {
        &self.gates[&gate][segment.0 as usize][offset as usize..(offset + bytes) as usize]
    }
}

impl ReceiveMemory for Regions {
    fn write(&mut self, gate: GateId, segment: SegmentIndex, offset: u32, bytes: &[u8]) {
        let region = self.gates.get_mut(&gate).expect("nothing is written into a released gate");
        let start = offset as usize;
        region[segment.0 as usize][start..start + bytes.len()].copy_from_slice(bytes);
    }
}

/// A frame that a shard sent. The payload of data is its (segment, offset).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    Data { channel: u32, sequence: u64, bytes: u32, backlog: u32, open: bool, segment: u32, offset: u32 },
    Message(Message),
}

/// One shard against a scripted peer.
pub struct Lone {
    pub shard: Shard,
    pub link: LinkId,
    pub memory: Regions,
    pub transmit: Transmit,
    pub now: Time,
}

impl Lone {
    pub fn new() -> Self {
        Self::with(limits())
    }

    pub fn with(limits: Limits) -> Self {
        let mut shard = Shard::new(limits);
        let link = shard.handle_link(link_spec("peer"), Time(0));
        Self { shard, link, memory: Regions::default(), transmit: Transmit::default(), now: Time(0) }
    }

    pub fn check(&self) {
        self.shard.check().unwrap();
    }

    pub fn submit(&mut self, partition: PartitionId, submission: Submission) {
        self.shard.handle_submission(partition, submission, self.now).unwrap();
        self.check();
    }

    pub fn fault(&mut self, partition: PartitionId, submission: Submission) -> ClientFault {
        let fault = self.shard.handle_submission(partition, submission, self.now).unwrap_err();
        self.check();
        fault
    }

    pub fn receive_bytes(&mut self, bytes: &[u8]) -> Result<(), WireError> {
        let result = self.shard.handle_received(self.link, bytes, &mut self.memory, self.now);
        self.check();
        result
    }

    pub fn receive(&mut self, message: &Message) {
        let mut bytes = Vec::new();
        encode(message, &mut bytes);
        self.receive_bytes(&bytes).unwrap();
    }

    pub fn receive_data(&mut self, channel: u32, sequence: u64, flags: Flags, backlog: u32, payload: &[u8]) {
        self.receive_bytes(&data_frame(channel, sequence, flags, backlog, payload)).unwrap();
    }

    /// The consumer at the peer asks for a subpartition.
    pub fn open_channel(&mut self, channel: u32, shape: Shape, producer: u32, consumer: u32, limit: u64) {
        self.receive(&open_message(channel, shape, producer, consumer, limit));
    }

    pub fn grant(&mut self, channel: u32, limit: u64, ack: u64) {
        self.receive(&limit_message(channel, Limit { limit, ack, event_limit: 8, ..Limit::default() }));
    }

    /// Plans one batch and returns its frames, all of them sent.
    pub fn batch(&mut self) -> Vec<Seen> {
        let (shard, now) = (&mut self.shard, self.now);
        if !shard.poll_transmit(self.link, &mut self.transmit, now) {
            return Vec::new();
        }
        shard.check().unwrap();
        let seen = frames(&self.transmit);
        shard.handle_sent(self.link, self.transmit.bytes, now);
        shard.check().unwrap();
        seen
    }

    /// All frames that the shard has to send.
    pub fn frames(&mut self) -> Vec<Seen> {
        let mut all = Vec::new();
        loop {
            let batch = self.batch();
            if batch.is_empty() {
                return all;
            }
            all.extend(batch);
        }
    }

    pub fn data_frames(&mut self) -> Vec<Seen> {
        self.frames().into_iter().filter(|seen| matches!(seen, Seen::Data { .. })).collect()
    }

    pub fn messages(&mut self) -> Vec<Message> {
        let messages = self.frames().into_iter();
        messages
            .filter_map(|seen| if let Seen::Message(message) = seen { Some(message) } else { None })
            .collect()
    }

    pub fn updates(&mut self, partition: PartitionId) -> Vec<PartitionUpdate> {
        std::iter::from_fn(|| self.shard.poll_update(partition)).collect()
    }

    pub fn deliveries(&mut self, gate: GateId) -> Vec<Delivery> {
        std::iter::from_fn(|| self.shard.poll_delivery(gate)).collect()
    }

    pub fn notices(&mut self) -> Vec<Notice> {
        std::iter::from_fn(|| self.shard.poll_notice()).collect()
    }

    /// A gate whose channels were asked for and accepted: channel i of the link is producer i.
    pub fn open_gate(&mut self, producers: u32, segments: u32, exclusive: u32) -> GateId {
        let gate = self.shard.handle_gate(gate_spec(shape(producers, 1), 0, segments, exclusive), self.now);
        self.memory.add(gate, segments);
        for producer in 0..producers {
            self.shard.handle_producer(gate, any_life(producer), self.link, self.now);
        }
        self.frames();
        for channel in 0..producers {
            self.receive(&accepted(channel));
        }
        self.notices();
        gate
    }
}

pub fn open_message(channel: u32, shape: Shape, producer: u32, consumer: u32, limit: u64) -> Message {
    Message::OpenChannel {
        channel: ChannelIndex(channel),
        open: OpenChannel {
            exchange: "x".parse().unwrap(),
            producer: ProducerIndex(producer),
            consumer: ConsumerIndex(consumer),
            shape,
            incarnation: Incarnation(0),
            limit,
            event_limit: 8,
        },
    }
}

pub fn accepted(channel: u32) -> Message {
    Message::ChannelAccepted {
        channel: ChannelIndex(channel),
        backlog: 0,
        sequence: Sequence(0),
        incarnation: Incarnation(7),
    }
}

pub fn limit_message(channel: u32, limit: Limit) -> Message {
    Message::Limit { channel: ChannelIndex(channel), limit }
}

pub fn cancel_message(channel: u32, failure: Failure) -> Message {
    let cancel = Cancel { delivered: 10, consumed: 5, failure };
    Message::Cancel { channel: ChannelIndex(channel), cancel }
}

pub fn data_frame(channel: u32, sequence: u64, flags: Flags, backlog: u32, payload: &[u8]) -> Vec<u8> {
    let header = Header {
        length: payload.len() as u32,
        frame_type: FrameType::Data,
        flags,
        channel: ChannelIndex(channel),
        backlog,
        sequence: Sequence(sequence),
        records: 1,
    };
    let mut bytes = header.encode().to_vec();
    bytes.extend_from_slice(payload);
    bytes
}

/// The frames of a batch.
pub fn frames(transmit: &Transmit) -> Vec<Seen> {
    let mut seen = Vec::new();
    for (index, part) in transmit.parts.iter().enumerate() {
        let Part::Header { start, bytes } = *part else { continue };
        let mut rest = &transmit.headers[start as usize..(start + bytes) as usize];
        while !rest.is_empty() {
            let (head, behind) = rest.split_first_chunk::<HEADER_BYTES>().expect("a whole header");
            let header = Header::decode(head, SEGMENT_BYTES).unwrap();
            if header.frame_type == FrameType::Data {
                let Some(Part::Slice { segment, offset, bytes, .. }) = transmit.parts.get(index + 1) else {
                    panic!("a slice follows its header")
                };
                assert_eq!((header.length, behind.len()), (*bytes, 0), "a slice follows its header");
                seen.push(Seen::Data {
                    channel: header.channel.0,
                    sequence: header.sequence.0,
                    bytes: header.length,
                    backlog: header.backlog,
                    open: header.flags.has(Flags::OPEN),
                    segment: segment.0,
                    offset: *offset,
                });
                rest = behind;
            } else {
                let (body, behind) = behind.split_at(header.length as usize);
                seen.push(Seen::Message(decode(&header, body).unwrap()));
                rest = behind;
            }
        }
    }
    let sum: u32 = transmit
        .parts
        .iter()
        .map(|part| match part {
            Part::Header { bytes, .. } | Part::Slice { bytes, .. } => *bytes,
        })
        .sum();
    assert_eq!(sum, transmit.bytes, "parts add up");
    seen
}

/// One node of a [`Pair`].
pub struct Node {
    pub shard: Shard,
    pub link: LinkId,
    pub memory: Regions,
    pub sends: BTreeMap<PartitionId, Vec<Vec<u8>>>,
    /// Bytes on their way to this node.
    pub wire: VecDeque<u8>,
    /// The batch that the socket has.
    pub in_flight: Option<Vec<u8>>,
    transmit: Transmit,
}

impl Node {
    pub fn new(limits: Limits, peer: &str) -> Self {
        let mut shard = Shard::new(limits);
        let link = shard.handle_link(link_spec(peer), Time(0));
        Self {
            shard,
            link,
            memory: Regions::default(),
            sends: BTreeMap::new(),
            wire: VecDeque::new(),
            in_flight: None,
            transmit: Transmit::default(),
        }
    }

    pub fn add_partition(&mut self, spec: PartitionSpec, now: Time) -> PartitionId {
        let segments = spec.segments;
        let id = self.shard.handle_partition(spec, now);
        self.sends.insert(id, (0..segments).map(|_| vec![0; SEGMENT_BYTES as usize]).collect());
        id
    }

    pub fn add_gate(&mut self, spec: GateSpec, now: Time) -> GateId {
        let segments = spec.segments;
        let id = self.shard.handle_gate(spec, now);
        self.memory.add(id, segments);
        id
    }

    /// Plans a batch, if none is in flight. The kernel reads the memory when the socket takes it, not now.
    pub fn plan(&mut self, now: Time) -> bool {
        if self.in_flight.is_some() || !self.shard.poll_transmit(self.link, &mut self.transmit, now) {
            return false;
        }
        let mut bytes = Vec::new();
        for part in &self.transmit.parts {
            match *part {
                Part::Header { start, bytes: length } => {
                    bytes
                        .extend_from_slice(&self.transmit.headers[start as usize..(start + length) as usize]);
                }
                Part::Slice { partition, segment, offset, bytes: length } => {
                    let region = &self.sends[&partition];
                    let start = offset as usize;
                    bytes.extend_from_slice(&region[segment.0 as usize][start..start + length as usize]);
                }
            }
        }
        assert_eq!(bytes.len(), self.transmit.bytes as usize);
        self.in_flight = Some(bytes);
        true
    }
}

/// Two shards and the byte stream between them.
pub struct Pair {
    pub nodes: [Node; 2],
    pub now: Time,
}

impl Pair {
    pub fn new(limits: Limits) -> Self {
        Self { nodes: [Node::new(limits.clone(), "b"), Node::new(limits, "a")], now: Time(0) }
    }

    pub fn check(&self) {
        for (index, node) in self.nodes.iter().enumerate() {
            if let Err(violation) = node.shard.check() {
                panic!("node {index}: {violation}");
            }
        }
    }

    /// The socket of a node takes at most this many bytes of its batch.
    pub fn send(&mut self, from: usize, bytes_max: usize) -> bool {
        let now = self.now;
        let node = &mut self.nodes[from];
        node.plan(now);
        let Some(mut batch) = node.in_flight.take() else { return false };
        batch.truncate(bytes_max);
        node.shard.handle_sent(node.link, batch.len() as u32, now);
        let any = !batch.is_empty();
        self.nodes[1 - from].wire.extend(batch);
        any
    }

    /// A node reads at most this many bytes.
    pub fn receive(&mut self, to: usize, bytes_max: usize) -> bool {
        let now = self.now;
        let node = &mut self.nodes[to];
        let count = bytes_max.min(node.wire.len());
        let bytes: Vec<u8> = node.wire.drain(..count).collect();
        node.shard.handle_received(node.link, &bytes, &mut node.memory, now).unwrap();
        count > 0
    }

    /// A node loses its socket. What the peer still sends into it goes nowhere.
    pub fn lose(&mut self, index: usize) {
        let now = self.now;
        let node = &mut self.nodes[index];
        if node.in_flight.take().is_some() {
            node.shard.handle_sent(node.link, 0, now);
        }
        node.shard.handle_link_lost(node.link, "reset", now);
        self.check();
    }

    /// Both nodes get a new socket; one that had not lost the old one loses it now, with what is unread in it.
    pub fn resume(&mut self) {
        for index in 0..2 {
            self.lose(index);
            self.nodes[index].wire.clear();
        }
        let now = self.now;
        for node in &mut self.nodes {
            assert!(node.shard.handle_link_resumed(node.link, now), "the link waits for a socket");
        }
        self.check();
    }

    /// Everything that can move does, timers included, until nothing does.
    pub fn settle(&mut self) {
        for _ in 0..10_000 {
            let mut moved = false;
            for index in 0..2 {
                moved |= self.send(index, usize::MAX);
                moved |= self.receive(index, usize::MAX);
                self.check();
            }
            if moved {
                continue;
            }
            let due = self.nodes.iter().filter_map(|node| node.shard.poll_timeout());
            match due.filter(|(_, reason)| *reason == "limit").map(|(time, _)| time).min() {
                Some(time) => {
                    self.now = self.now.max(time);
                    for node in &mut self.nodes {
                        node.shard.handle_timeout(self.now);
                    }
                }
                None => return,
            }
        }
        panic!("the pair does not settle");
    }
}
