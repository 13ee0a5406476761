//! What the daemon for tests has of each partition and gate, and how slices get from one to the other.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::os::unix::fs::FileExt;

use weir_flow::exchange::Shape;
use weir_flow::ids::{ConsumerIndex, ProducerIndex};
use weir_ipc::attach::message::{CreateGate, CreatePartition};
use weir_ipc::gate_port::GateEndpoint;
use weir_ipc::partition_port::{PartitionEndpoint, SubpartitionUpdate};
use weir_ipc::{Delivered, GivenBack, Returned, Submission};

pub(super) struct PartitionSide {
    pub(super) asked: CreatePartition,
    pub(super) endpoint: PartitionEndpoint,
    pub(super) region: File,
    pub(super) queues: Vec<VecDeque<Submission>>,
    pub(super) updates: Vec<SubpartitionUpdate>,
    pub(super) ended: Vec<bool>,
    pub(super) is_over: bool,
}

pub(super) struct GateSide {
    pub(super) asked: CreateGate,
    pub(super) shape: Shape,
    pub(super) endpoint: GateEndpoint,
    pub(super) region: File,
    pub(super) segment_bytes: u32,
    pub(super) free: Vec<u32>,
    /// Channel and bytes of each segment with the client.
    pub(super) held: BTreeMap<u32, (u32, u32)>,
    pub(super) over: Vec<bool>,
    /// Bytes given back, by channel.
    pub(super) consumed: Vec<u64>,
}

/// Carries one channel's queue, priority events first.
pub(super) fn carry(gate: &mut GateSide, partition: &mut PartitionSide, segment_bytes: u32) {
    let (consumer, producer) = (ConsumerIndex(gate.asked.consumer), ProducerIndex(partition.asked.producer));
    let Some(channel) = gate.shape.channel(consumer, producer) else { return };
    let Some(subpartition) = gate.shape.subpartition(producer, consumer) else { return };
    let subpartition = subpartition.0 as usize;
    partition.see(subpartition, gate.credit(channel), gate.consumed[channel as usize]);
    let is_priority = |of: &Submission| matches!(of, Submission::Event { priority: true, .. });
    while !gate.over[channel as usize] {
        let queue = &mut partition.queues[subpartition];
        let Some(index) = queue.iter().position(is_priority).or((!queue.is_empty()).then_some(0)) else {
            break;
        };
        let is_carried = match &queue[index] {
            Submission::Data { segment, offset, bytes, records, .. } => {
                let mut slice = vec![0; *bytes as usize];
                let start = u64::from(*segment) * u64::from(segment_bytes) + u64::from(*offset);
                partition.region.read_exact_at(&mut slice, start).expect("a slice of the region");
                gate.deliver(channel, &slice, *records)
            }
            Submission::Event { payload, priority: true, .. } => {
                gate.endpoint.push_priority(channel, payload).expect("an honest client")
            }
            Submission::Event { payload, .. } => gate
                .endpoint
                .push(&Delivered::Event { channel, payload: payload.clone(), priority: false })
                .expect("an honest client"),
            Submission::End { .. } => {
                gate.endpoint.push(&Delivered::End { channel }).expect("an honest client")
            }
        };
        if !is_carried {
            break;
        }
        if let Some(carried) = queue.remove(index) {
            partition.handle_carried(subpartition, &carried);
            gate.over[channel as usize] |= matches!(carried, Submission::End { .. });
        }
    }
}

impl PartitionSide {
    pub(super) fn queue(&mut self, submission: Submission) {
        let subpartition = match &submission {
            Submission::Data { subpartition, .. }
            | Submission::Event { subpartition, .. }
            | Submission::End { subpartition } => *subpartition as usize,
        };
        if let Submission::Data { offset, bytes, .. } = submission {
            assert!(bytes > 0 || offset > 0, "a segment that is handed over has something in it");
        }
        if matches!(submission, Submission::Event { .. }) {
            self.updates[subpartition].events_in_flight += 1;
            self.endpoint.publish(subpartition as u32, &self.updates[subpartition]);
        }
        self.queues[subpartition].push_back(submission);
        if self.updates[subpartition].is_gone {
            self.drop_queue(subpartition);
        }
    }

    /// Publishes what the consumer's side says.
    fn see(&mut self, subpartition: usize, credit: u32, consumed_bytes: u64) {
        let update = &mut self.updates[subpartition];
        if !update.is_gone {
            (update.credit, update.consumed_bytes) = (credit, consumed_bytes);
            self.endpoint.publish(subpartition as u32, update);
        }
    }

    /// Publishes what a consumer wants on its way at most.
    pub(super) fn bound(&mut self, subpartition: usize, bytes: Option<u32>) {
        self.updates[subpartition].buffer_bytes = bytes;
        self.endpoint.publish(subpartition as u32, &self.updates[subpartition]);
    }

    /// Goes on without a consumer, or fails if that was the last.
    pub(super) fn lose(&mut self, subpartition: usize, consumed_bytes: u64) {
        assert!(self.asked.continue_without, "a partition that was made so");
        let update = &mut self.updates[subpartition];
        (update.is_gone, update.consumed_bytes) = (true, consumed_bytes);
        self.endpoint.publish(subpartition as u32, update);
        self.drop_queue(subpartition);
        if self.updates.iter().all(|update| update.is_gone) {
            self.fail(2, "the last consumer left");
        }
    }

    /// What is for a consumer that is gone counts as carried, to nobody.
    fn drop_queue(&mut self, subpartition: usize) {
        while let Some(dropped) = self.queues[subpartition].pop_front() {
            self.handle_carried(subpartition, &dropped);
        }
    }

    fn handle_carried(&mut self, subpartition: usize, carried: &Submission) {
        let update = &mut self.updates[subpartition];
        match carried {
            Submission::Data { segment, bytes, last, .. } => {
                update.acked_bytes += u64::from(*bytes);
                if *last {
                    update.sent_segments += 1;
                    let returned = Returned::Segment(*segment);
                    assert!(self.endpoint.push_returned(&returned).expect("an honest client"));
                }
            }
            Submission::Event { .. } => update.events_in_flight -= 1,
            Submission::End { .. } => {
                self.ended[subpartition] = true;
                let is_over = |(ended, update): (&bool, &SubpartitionUpdate)| *ended || update.is_gone;
                if self.ended.iter().zip(&self.updates).all(is_over) {
                    self.is_over = true;
                    assert!(self.endpoint.push_returned(&Returned::Finished).expect("an honest client"));
                }
            }
        }
        self.endpoint.publish(subpartition as u32, &self.updates[subpartition]);
    }

    pub(super) fn fail(&mut self, code: u16, text: &str) {
        if !std::mem::replace(&mut self.is_over, true) {
            let failed = Returned::Failed { code, text: text.into() };
            assert!(self.endpoint.push_returned(&failed).expect("an honest client"));
        }
    }
}

impl GateSide {
    /// Segments that this channel may still have.
    fn credit(&self, channel: u32) -> u32 {
        let held = self.held.values().filter(|(of, _)| *of == channel).count();
        ((self.free.len() + self.held.len()) / self.over.len()).saturating_sub(held) as u32
    }

    /// Delivers a slice in a segment of its own. `false`: there is none, or no room.
    pub(super) fn deliver(&mut self, channel: u32, bytes: &[u8], records: u32) -> bool {
        if bytes.is_empty() {
            return true;
        }
        if !self.endpoint.has_room().expect("an honest client") {
            return false;
        }
        if self.credit(channel) == 0 {
            return false;
        }
        let Some(segment) = self.free.pop() else { return false };
        let start = u64::from(segment) * u64::from(self.segment_bytes);
        self.region.write_all_at(bytes, start).expect("a segment of the region");
        let count = bytes.len() as u32;
        self.held.insert(segment, (channel, count));
        let data = Delivered::Data { channel, segment, offset: 0, bytes: count, records };
        self.endpoint.push(&data).expect("an honest client")
    }

    pub(super) fn take_back(&mut self, given_back: GivenBack) {
        if let GivenBack::Data { segment, bytes } = given_back {
            let held = self.held.remove(&segment);
            assert_eq!(held.map(|(_, bytes)| bytes), Some(bytes), "a slice is given back once and whole");
            if let Some((channel, bytes)) = held {
                self.consumed[channel as usize] += u64::from(bytes);
            }
            // What a client reads after it gave it back is not what it was.
            let start = u64::from(segment) * u64::from(self.segment_bytes);
            self.region.write_all_at(&vec![0xEE; bytes as usize], start).expect("a segment of the region");
            self.free.push(segment);
        }
    }

    pub(super) fn fail(&mut self, channel: u32, code: u16, text: &str) {
        if let Some(over) = self.over.get_mut(channel as usize)
            && !std::mem::replace(over, true)
        {
            let failed = Delivered::Failed { channel, code, text: text.into() };
            assert!(self.endpoint.push(&failed).expect("an honest client"), "room for a failure");
        }
    }
}
