//! Arbitrary bytes from a peer, cut anywhere, into a shard that has partitions and a gate on that link.
//!
//! The input is a program: raw bytes, frames with any fields and the right checksum, messages with any numbers; between
//! them, clients that claim things, sockets that take what they like, time, and links that end. After every step all
//! accounts add up ([`Shard::check`]); what is handed up was written, byte by byte; and at the end a second link, of which
//! the first knows nothing, still carries data.
//!
//! **Broken rule**: a write into a receive region loses its last byte.

mod frames;
mod seeds;

use std::collections::BTreeMap;

use arbitrary::Unstructured;
use bytes::Bytes;
use weir_flow::failure::{Failure, FailureCode};
use weir_flow::ids::{GateId, Incarnation, LinkId, PartitionId, SegmentIndex, SubpartitionIndex, Time};
use weir_flow::shard::{
    Delivery, GateSpec, Notice, PartitionSpec, ReceiveMemory, Shard, Submission, Transmit,
};
use weir_flow::wire::{Flags, encode};

use crate::harness::{
    Regions, SEGMENT_BYTES, accepted, any_life, data_frame, gate_spec, limits, link_spec, partition_spec,
    shape,
};
use crate::input::{byte, bytes, number, number_32};
use crate::{Driver, Reached, Rule};
use frames::{any_frame, any_message};

/// The driver.
pub const DRIVER: Driver = Driver {
    name: "link_bytes",
    run,
    seeds: seeds::seeds,
    must_reach: &[
        "wire error",
        "client fault",
        "data delivered",
        "event delivered",
        "end delivered",
        "failure delivered",
        "priority delivered",
        "channel opened",
        "channel ended",
        "channel failed",
        "channel refused",
        "link goodbye",
        "partition released",
        "gate released",
        "sent",
        "partly sent",
        "cut",
        "link suspended",
        "link resumed",
    ],
};

const SEGMENTS: u32 = 6;
const STEPS_MAX: u32 = 300;

/// The receive regions, and which of their bytes were written since they were last handed up.
struct Memory {
    regions: Regions,
    written: BTreeMap<(GateId, u32), Vec<bool>>,
    rule: Rule,
}

impl ReceiveMemory for Memory {
    fn write(&mut self, gate: GateId, segment: SegmentIndex, offset: u32, bytes: &[u8]) {
        self.regions.write(gate, segment, offset, bytes);
        let lost = usize::from(self.rule == Rule::Broken).min(bytes.len());
        let written =
            self.written.entry((gate, segment.0)).or_insert_with(|| vec![false; SEGMENT_BYTES as usize]);
        written[offset as usize..][..bytes.len() - lost].fill(true);
    }
}

impl Memory {
    /// A slice was handed up: every byte of it arrived.
    fn hand_up(&mut self, gate: GateId, segment: SegmentIndex, offset: u32, bytes: u32) {
        if bytes == 0 {
            return;
        }
        let written = self.written.get_mut(&(gate, segment.0)).expect("something was written");
        let slice = &mut written[offset as usize..][..bytes as usize];
        assert!(slice.iter().all(|written| *written), "bytes of {segment} at {offset} never arrived");
        slice.fill(false);
    }
}

struct World {
    shard: Shard,
    memory: Memory,
    transmit: Transmit,
    now: Time,
    link: LinkId,
    is_suspended: bool,
    partition: PartitionId,
    gate: GateId,
    held: Vec<(SegmentIndex, u32)>,
    cut: usize,
    /// Another link, with a gate and a channel of its own.
    bystander: LinkId,
    bystander_gate: GateId,
    reached: Reached,
}

fn run(program: &[u8], rule: Rule) -> Reached {
    let mut world = World::new(rule);
    let mut input = Unstructured::new(program);
    for _ in 0..STEPS_MAX {
        if input.is_empty() {
            break;
        }
        world.apply(&mut input);
        world.take_notices();
        world.shard.check().expect("all accounts add up");
    }
    world.poll();
    world.bystander_goes_on();
    world.end();
    world.reached
}

fn spec(exchange: &str, spec: GateSpec) -> GateSpec {
    GateSpec { exchange: exchange.parse().expect("a name"), ..spec }
}

impl World {
    fn new(rule: Rule) -> Self {
        let now = Time(0);
        let mut shard = Shard::new(limits());
        let mut memory = Memory { regions: Regions::default(), written: BTreeMap::new(), rule };
        let link = shard.handle_link(link_spec("peer"), now);
        let bystander = shard.handle_link(link_spec("other"), now);
        let partition = shard.handle_partition(partition_spec(shape(2, 2), 0, 4), now);
        let bystander_gate = shard.handle_gate(spec("y", gate_spec(shape(1, 1), 0, 4, 2)), now);
        memory.regions.add(bystander_gate, 4);
        shard.handle_producer(bystander_gate, any_life(0), bystander, now);
        let gate = open_gate(&mut shard, &mut memory, link, now);
        let mut world = Self {
            shard,
            memory,
            transmit: Transmit::default(),
            now,
            link,
            is_suspended: false,
            partition,
            gate,
            held: Vec::new(),
            cut: usize::MAX,
            bystander,
            bystander_gate,
            reached: Reached::new(),
        };
        world.drain(bystander);
        let mut frame = Vec::new();
        encode(&accepted(0), &mut frame);
        world.bystander_receives(&frame);
        world
    }

    fn apply(&mut self, input: &mut Unstructured<'_>) {
        let now = self.now;
        match byte(input) % 16 {
            0 => {
                let count = usize::from(byte(input));
                let raw = bytes(input, count).to_vec();
                self.receive(&raw);
            }
            1 | 2 => {
                let frame = any_frame(input);
                self.receive(&frame);
            }
            3..=5 => {
                let message = any_message(input);
                let mut frame = Vec::new();
                encode(&message, &mut frame);
                self.receive(&frame);
            }
            6 => self.cut = usize::from(byte(input)) + 1,
            7 => self.submit(input),
            8 => self.give_back(input),
            9 => self.poll(),
            10 => self.transmit(number_32(input)),
            11 => {
                self.now = now.after_ns(number(input).saturating_mul(1_000_000));
                self.shard.handle_timeout(self.now);
            }
            12 => {
                self.shard.handle_gate_closed(self.gate, None, now);
                self.held.clear();
                self.gate = open_gate(&mut self.shard, &mut self.memory, self.link, now);
            }
            13 => self.end_link("the end"),
            14 => self.replace_socket(),
            _ => {
                let _ = self.shard.handle_event_consumed(self.gate, number_32(input), now);
            }
        }
    }

    /// What the peer sends, cut into pieces.
    fn receive(&mut self, bytes: &[u8]) {
        if self.is_suspended {
            return;
        }
        if self.cut < bytes.len() {
            self.reached.insert("cut");
        }
        for piece in bytes.chunks(self.cut) {
            let result = self.shard.handle_received(self.link, piece, &mut self.memory, self.now);
            self.shard.check().expect("all accounts add up");
            if let Err(error) = result {
                assert!(!error.to_string().is_empty());
                self.reached.insert("wire error");
                self.end_link("bad frames");
                return;
            }
        }
    }

    fn end_link(&mut self, reason: &str) {
        self.shard.handle_link_closed(self.link, reason, self.now);
        self.shard.check().expect("all accounts add up");
        self.link = self.shard.handle_link(link_spec("peer"), self.now);
        self.is_suspended = false;
        for producer in 0..2 {
            self.shard.handle_producer(self.gate, any_life(producer), self.link, self.now);
        }
    }

    /// The socket breaks, or another one takes its place.
    fn replace_socket(&mut self) {
        if !self.is_suspended {
            self.shard.handle_link_lost(self.link, "reset", self.now);
            self.is_suspended = true;
            self.reached.insert("link suspended");
        } else if self.shard.handle_link_resumed(self.link, self.now) {
            self.is_suspended = false;
        } else {
            self.end_link("it came back too late");
        }
    }

    fn submit(&mut self, input: &mut Unstructured<'_>) {
        let subpartition = SubpartitionIndex(number_32(input));
        let submission = match byte(input) % 6 {
            0 => Submission::End { subpartition },
            1 => Submission::Event {
                subpartition,
                payload: Bytes::from_static(b"event"),
                priority: byte(input).is_multiple_of(2),
            },
            kind => Submission::Data {
                subpartition,
                segment: SegmentIndex(number_32(input)),
                offset: number_32(input),
                bytes: number_32(input).saturating_mul(16),
                records: 1,
                last: kind > 3,
            },
        };
        if self.shard.handle_submission(self.partition, submission, self.now).is_err() {
            self.reached.insert("client fault");
            let failure = Failure::new(FailureCode::ClientFault, "it lied");
            self.shard.handle_partition_closed(self.partition, Some(failure), self.now);
            let spec = PartitionSpec { incarnation: Incarnation(8), ..partition_spec(shape(2, 2), 0, 4) };
            self.partition = self.shard.handle_partition(spec, self.now);
        }
    }

    /// Something that was delivered, or any claim.
    fn give_back(&mut self, input: &mut Unstructured<'_>) {
        let pick = usize::from(byte(input));
        if pick < 200 && !self.held.is_empty() {
            let (segment, bytes) = self.held.swap_remove(pick % self.held.len());
            self.shard.handle_given_back(self.gate, segment, bytes, self.now).expect("it was delivered");
        } else {
            let (segment, bytes) = (SegmentIndex(number_32(input)), number_32(input));
            if self.shard.handle_given_back(self.gate, segment, bytes, self.now).is_ok() {
                // A client that lies within what it holds harms itself only; what it has is not known any more.
                self.held.clear();
            }
        }
    }

    fn poll(&mut self) {
        while let Some(delivery) = self.shard.poll_priority_delivery(self.gate) {
            assert!(matches!(delivery, Delivery::Event { priority: true, .. }), "{delivery:?}");
            self.reached.insert("priority delivered");
        }
        while let Some(delivery) = self.shard.poll_delivery(self.gate) {
            self.reached.insert(match delivery {
                Delivery::Data { segment, offset, bytes, .. } => {
                    self.memory.hand_up(self.gate, segment, offset, bytes);
                    self.held.push((segment, bytes));
                    "data delivered"
                }
                Delivery::Lent { .. } => "lent data delivered",
                Delivery::Event { .. } => "event delivered",
                Delivery::End { .. } => "end delivered",
                Delivery::Failed { .. } => "failure delivered",
            });
        }
        while self.shard.poll_update(self.partition).is_some() {}
    }

    /// A batch of which the socket takes at most `taken` bytes.
    fn transmit(&mut self, taken: u32) {
        if !self.shard.poll_transmit(self.link, &mut self.transmit, self.now) {
            return;
        }
        self.shard.check().expect("all accounts add up");
        let taken = taken.saturating_mul(8).min(self.transmit.bytes);
        self.reached.insert(if taken == self.transmit.bytes { "sent" } else { "partly sent" });
        self.shard.handle_sent(self.link, taken, self.now);
    }

    fn drain(&mut self, link: LinkId) {
        while self.shard.poll_transmit(link, &mut self.transmit, self.now) {
            self.shard.handle_sent(link, self.transmit.bytes, self.now);
        }
    }

    fn take_notices(&mut self) {
        while let Some(notice) = self.shard.poll_notice() {
            let name = match notice {
                Notice::ChannelOpened(_) => "channel opened",
                Notice::ChannelEnded(_) => "channel ended",
                Notice::ChannelFailed(..) => "channel failed",
                Notice::ChannelRefused { .. } => "channel refused",
                Notice::ProducerNotFound { .. } => "producer not found",
                Notice::PartitionReleased(_) => "partition released",
                Notice::GateReleased(gate) => {
                    self.memory.regions.remove(gate);
                    "gate released"
                }
                Notice::LinkGoodbye(_) => "link goodbye",
                Notice::LinkResumed(_) => "link resumed",
                Notice::LinkExpired(link) if link == self.link => {
                    self.end_link("it was away for too long");
                    "link expired"
                }
                Notice::LinkTimedOut { link, .. } | Notice::LinkStuck { link, .. }
                    if link == self.link && !self.is_suspended =>
                {
                    self.replace_socket();
                    "link timed out"
                }
                _ => continue,
            };
            self.reached.insert(name);
        }
    }

    fn bystander_receives(&mut self, frame: &[u8]) {
        let result = self.shard.handle_received(self.bystander, frame, &mut self.memory, self.now);
        assert_eq!(result, Ok(()), "the other link is not touched");
        self.shard.check().expect("all accounts add up");
    }

    /// The second link carries a slice, whatever happened on the first.
    fn bystander_goes_on(&mut self) {
        let rule = std::mem::replace(&mut self.memory.rule, Rule::Kept);
        self.bystander_receives(&data_frame(0, 0, Flags::OPEN, 0, &[9; 100]));
        match self.shard.poll_delivery(self.bystander_gate) {
            Some(Delivery::Data { segment, offset, bytes: 100, .. }) => {
                self.memory.hand_up(self.bystander_gate, segment, offset, 100);
            }
            other => panic!("the other link delivers {other:?}"),
        }
        self.memory.rule = rule;
    }

    /// When everybody left, nothing is left.
    fn end(&mut self) {
        for link in [self.link, self.bystander] {
            self.shard.handle_link_closed(link, "the end", self.now);
        }
        for gate in [self.gate, self.bystander_gate] {
            self.shard.handle_gate_closed(gate, None, self.now);
        }
        self.shard.handle_partition_closed(self.partition, None, self.now);
        self.shard.check().expect("all accounts add up");
        let left = self.shard.channels(self.now).count();
        assert_eq!(left, 0, "no channel is left");
    }
}

fn open_gate(shard: &mut Shard, memory: &mut Memory, link: LinkId, now: Time) -> GateId {
    let gate = shard.handle_gate(gate_spec(shape(2, 2), 0, SEGMENTS, 2), now);
    memory.regions.add(gate, SEGMENTS);
    memory.written.retain(|(of, _), _| *of != gate);
    for producer in 0..2 {
        shard.handle_producer(gate, any_life(producer), link, now);
    }
    gate
}
