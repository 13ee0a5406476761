//! Clients at the edge of the shared memory: they submit and take whole segments, without records.

use std::collections::VecDeque;
use std::sync::Arc;

use weir_flow::failure::FailureCode;
use weir_ipc::gate_port::GatePort;
use weir_ipc::partition_port::PartitionPort;
use weir_ipc::region::{ReceiveMapping, SendMapping};
use weir_ipc::session::SessionPort;
use weir_ipc::{Delivered, Returned, Submission};

use crate::shard::mailbox::RingKey;

/// A producer with one subpartition.
pub(super) struct Producer {
    pub(super) ring: RingKey,
    pub(super) port: PartitionPort,
    pub(super) memory: SendMapping,
    pub(super) segment_bytes: usize,
    pub(super) segments: usize,
    pub(super) free: VecDeque<u32>,
    pub(super) is_finished: bool,
    pub(super) failure: Option<FailureCode>,
    /// What was said of it.
    pub(super) failure_text: String,
    pub(super) _session: Arc<SessionPort>,
}

impl Producer {
    pub(super) fn key(&self) -> RingKey {
        self.ring
    }

    pub(super) fn segment_bytes(&self) -> usize {
        self.segment_bytes
    }

    pub(super) fn segments(&self) -> usize {
        self.segments
    }

    pub(super) fn free(&self) -> usize {
        self.free.len()
    }

    /// Writes a segment and hands it over. `false`: no segment is free.
    pub(super) fn submit_segment(&mut self, payload: &[u8]) -> bool {
        let Some(segment) = self.free.pop_front() else { return false };
        assert!(self.memory.write(u64::from(segment) * self.segment_bytes as u64, payload));
        let bytes = u32::try_from(payload.len()).expect("a segment");
        let data = Submission::Data { subpartition: 0, segment, offset: 0, bytes, records: 1, last: true };
        self.submit_raw(&data);
        true
    }

    pub(super) fn submit_raw(&mut self, submission: &Submission) {
        assert!(self.port.submit(submission).expect("the daemon's cursor"));
    }

    pub(super) fn end(&mut self) {
        self.submit_raw(&Submission::End { subpartition: 0 });
    }

    pub(super) fn take_returns(&mut self) {
        while let Some(returned) = self.port.pop().expect("a sound entry") {
            match returned {
                Returned::Segment(segment) => {
                    assert!(!self.free.contains(&segment), "segment {segment} came back twice");
                    self.free.push_back(segment);
                }
                Returned::Finished => self.is_finished = true,
                Returned::Failed { code, text } => {
                    (self.failure, self.failure_text) = (FailureCode::from_wire(code), text);
                }
            }
        }
    }
}

/// A consumer with one channel.
pub(super) struct Consumer {
    pub(super) ring: RingKey,
    pub(super) port: GatePort,
    pub(super) memory: ReceiveMapping,
    pub(super) segment_bytes: usize,
    pub(super) segments: usize,
    /// Every byte taken, in order.
    pub(super) received: Vec<u8>,
    pub(super) held: Vec<(u32, u32)>,
    pub(super) has_ended: bool,
    pub(super) failure: Option<FailureCode>,
    /// Channels that failed, in the order in which they did.
    pub(super) failed: Vec<u32>,
    pub(super) _session: Arc<SessionPort>,
}

impl Consumer {
    pub(super) fn key(&self) -> RingKey {
        self.ring
    }

    pub(super) fn segments(&self) -> usize {
        self.segments
    }

    /// Takes everything and gives it back at once.
    pub(super) fn take(&mut self) {
        self.take_and_hold();
        self.give_all_back();
    }

    pub(super) fn take_and_hold(&mut self) {
        while let Some(delivered) = self.port.pop().expect("a sound entry") {
            match delivered {
                Delivered::Data { segment, offset, bytes, .. } => {
                    let at = u64::from(segment) * self.segment_bytes as u64 + u64::from(offset);
                    self.received
                        .extend_from_slice(self.memory.slice(at, bytes as usize).expect("in the region"));
                    self.held.push((segment, bytes));
                }
                Delivered::Lent { .. } => panic!("{delivered:?} over a link"),
                Delivered::End { .. } => self.has_ended = true,
                Delivered::Failed { channel, code, .. } => {
                    self.failed.push(channel);
                    self.failure = FailureCode::from_wire(code);
                }
                Delivered::Event { .. } => {}
            }
        }
    }

    pub(super) fn give_all_back(&mut self) {
        for (segment, bytes) in self.held.drain(..) {
            self.port.give_back_data(segment, bytes).expect("it was delivered");
        }
        self.port.publish();
    }
}
