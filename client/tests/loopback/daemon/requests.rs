//! What the daemon for tests does with the requests of its clients.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::MemfdFlags;
use weir_flow::exchange::Shape;
use weir_flow::ids::{ConsumerIndex, ProducerIndex};
use weir_ipc::attach::message::{
    CreateGate, CreatePartition, Request, RequestBody, Response, ResponseBody, WITHDRAWN,
};
use weir_ipc::attach::socket::region_pair;
use weir_ipc::attach::socket::{self, AttachError};
use weir_ipc::gate_port::GateEndpoint;
use weir_ipc::layout::{GateLayout, PartitionLayout};
use weir_ipc::partition_port::{PartitionEndpoint, SubpartitionUpdate};

use super::rings::{GateSide, PartitionSide};
use super::world::{Ring, Session, World};

fn memfd(bytes: u64) -> (File, OwnedFd) {
    let fd = rustix::fs::memfd_create("test-region", MemfdFlags::CLOEXEC).expect("memfd");
    rustix::fs::ftruncate(&fd, bytes).expect("ftruncate");
    (File::from(fd.try_clone().expect("dup")), fd)
}

fn shape(strategy: &str, producers: u32, consumers: u32) -> Shape {
    let strategy = strategy.parse().expect("a strategy");
    Shape { producers, consumers, strategy, segment_bytes: 0, checksum: false }
}

impl World {
    pub(super) fn handle_requests(&mut self) {
        let mut index = 0;
        while index < self.sessions.len() {
            match socket::receive_request(&self.sessions[index].connection) {
                Ok(request) => self.handle_request(index, request),
                Err(AttachError::WouldBlock) => index += 1,
                Err(AttachError::Closed) => {
                    let session = self.sessions.remove(index);
                    for ring in session.rings {
                        self.close(ring);
                    }
                }
                Err(error) => panic!("request: {error}"),
            }
        }
    }

    fn handle_request(&mut self, index: usize, request: Request) {
        let Request { id, body } = request;
        let body = match body {
            RequestBody::CreateTask { .. } => {
                let tasks = &mut self.sessions[index].tasks;
                let cell = (0..).find(|cell| !tasks.contains_key(cell)).expect("a number");
                tasks.insert(cell, id);
                self.tasks_made += 1;
                ResponseBody::Task { cell }
            }
            RequestBody::CloseTask { task } => {
                self.sessions[index].tasks.remove(&task).expect("a task of this client");
                ResponseBody::Closed
            }
            RequestBody::Withdraw { request, ends_made } => {
                self.withdraw(index, request, ends_made);
                ResponseBody::Closed
            }
            RequestBody::CreatePartition(asked) => return self.create_partition(index, id, asked),
            RequestBody::CreateGate(asked) => return self.sessions[index].unanswered.push((id, asked)),
            RequestBody::ClosePartition { ring } | RequestBody::CloseGate { ring } => {
                self.take_news();
                self.carry();
                let ring = std::mem::replace(&mut self.sessions[index].rings[ring as usize], Ring::Closed);
                self.close(ring);
                ResponseBody::Closed
            }
            RequestBody::Hello { .. } => panic!("a second hello"),
        };
        self.sessions[index].answer(id, body, &[]);
    }

    /// Takes an earlier request back.
    fn withdraw(&mut self, index: usize, request: u64, ends_made: bool) {
        self.answer_gates();
        let session = &mut self.sessions[index];
        let before = session.unanswered.len();
        session.unanswered.retain(|(id, _)| *id != request);
        if session.unanswered.len() < before {
            let text = "the client does not wait any more".to_owned();
            session.answer(request, ResponseBody::Refused { code: WITHDRAWN.to_owned(), text }, &[]);
        }
        if !ends_made {
            return;
        }
        session.tasks.retain(|_, made_for| *made_for != request);
        if let Some(ring) = session.asked.iter().position(|asked| *asked == request) {
            let ring = std::mem::replace(&mut session.rings[ring], Ring::Closed);
            self.close(ring);
        }
    }

    /// The other end of each channel learns that this one is gone.
    fn close(&mut self, ring: Ring) {
        match ring {
            Ring::Partition(partition) if !partition.is_over => {
                let producer = ProducerIndex(partition.asked.producer);
                for gate in self.gates_mut().filter(|gate| gate.asked.exchange == partition.asked.exchange) {
                    if let Some(channel) = gate.shape.channel(ConsumerIndex(gate.asked.consumer), producer) {
                        gate.fail(channel, 1, "the producer left before its end of data");
                    }
                }
            }
            Ring::Gate(gate) if gate.over.iter().any(|over| !over) => {
                for partition in self.partitions_mut().filter(|of| of.asked.exchange == gate.asked.exchange) {
                    partition.fail(2, "the consumer left before it had everything");
                }
            }
            _ => {}
        }
    }

    fn create_partition(&mut self, index: usize, id: u64, asked: CreatePartition) {
        if asked.producer >= asked.producers {
            let text = format!("producer is {}; needed: less than {}", asked.producer, asked.producers);
            let body = ResponseBody::Refused { code: "index out of range".into(), text };
            return self.sessions[index].answer(id, body, &[]);
        }
        let shape = shape(&asked.strategy, asked.producers, asked.consumers);
        let subpartitions = shape.builders(ProducerIndex(asked.producer));
        let segments = self.settings.partition_segments;
        let layout = PartitionLayout { segments, subpartitions };
        let (endpoint, rings) = PartitionEndpoint::create(&layout).expect("partition");
        let (region, region_fd) = memfd(u64::from(segments) * u64::from(self.settings.segment_bytes));
        let session = &mut self.sessions[index];
        let body = ResponseBody::Partition {
            ring: session.rings.len() as u32,
            segments,
            subpartitions,
            quota: asked.options.quota.unwrap_or(self.settings.quota),
            overdraft: asked.options.overdraft.unwrap_or(self.settings.overdraft),
            segment_bytes: self.settings.segment_bytes,
        };
        let count = subpartitions as usize;
        session.asked.push(id);
        session.rings.push(Ring::Partition(Box::new(PartitionSide {
            asked,
            endpoint,
            region,
            queues: vec![VecDeque::new(); count],
            updates: vec![SubpartitionUpdate::default(); count],
            ended: vec![false; count],
            is_over: false,
        })));
        session.answer(id, body, &[rings.as_fd(), region_fd.as_fd()]);
    }

    /// Answers the gates whose exchange has a producer by now, or that said how many there are.
    pub(super) fn answer_gates(&mut self) {
        for index in 0..self.sessions.len() {
            for (id, asked) in std::mem::take(&mut self.sessions[index].unanswered) {
                let known = self
                    .partitions_mut()
                    .find(|of| of.asked.exchange == asked.exchange)
                    .map(|of| of.asked.clone());
                let producers = asked.producers.or(known.as_ref().map(|of| of.producers));
                let Some(producers) = producers else {
                    self.sessions[index].unanswered.push((id, asked));
                    continue;
                };
                let strategy = known.as_ref().map(|of| of.strategy.clone()).or(asked.strategy.clone());
                let strategy = strategy.unwrap_or("rebalance".into());
                let checksum = known.is_some_and(|of| of.checksum) || asked.checksum.unwrap_or(false);
                self.create_gate(index, id, asked, producers, strategy, checksum);
            }
        }
    }

    fn create_gate(
        &mut self,
        index: usize,
        id: u64,
        asked: CreateGate,
        producers: u32,
        strategy: String,
        checksum: bool,
    ) {
        let shape = shape(&strategy, producers, asked.consumers);
        let channels = shape.channels(ConsumerIndex(asked.consumer));
        let segments = self.settings.gate_segments;
        let (endpoint, rings) = GateEndpoint::create(&GateLayout { segments, channels }).expect("gate");
        let (region, region_fd) = memfd(u64::from(segments) * u64::from(self.settings.segment_bytes));
        let session = &mut self.sessions[index];
        let body = ResponseBody::Gate {
            ring: session.rings.len() as u32,
            segments,
            channels,
            producers,
            consumers: asked.consumers,
            strategy,
            segment_bytes: self.settings.segment_bytes,
            checksum,
        };
        session.asked.push(id);
        session.rings.push(Ring::Gate(Box::new(GateSide {
            asked,
            shape,
            endpoint,
            region,
            segment_bytes: self.settings.segment_bytes,
            free: (0..segments).collect(),
            held: BTreeMap::new(),
            over: vec![false; channels as usize],
            consumed: vec![0; channels as usize],
        })));
        let (_, regions) = region_pair().expect("a region socket");
        session.answer(id, body, &[rings.as_fd(), region_fd.as_fd(), regions.as_fd()]);
    }
}

impl Session {
    fn answer(&self, id: u64, body: ResponseBody, descriptors: &[BorrowedFd<'_>]) {
        match socket::send_response(&self.connection, &Response { id, body }, descriptors) {
            Ok(()) | Err(AttachError::Closed) => {}
            Err(error) => panic!("answer: {error}"),
        }
    }
}
