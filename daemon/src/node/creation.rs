//! Partitions and gates: from a client's request to its rings and memory.
//!
//! A partition's memory is made at once. A gate's depends on the exchange's shape, which the producers state; its
//! request is kept until the catalog knows the shape, and only this request waits. Either is answered when the memory is
//! there ([`super::making`]); until then no shard, no peer and no other client knows of a partition, and a gate is
//! connected to nobody.

use std::collections::BTreeMap;

use weir_flow::catalog::{GateKey, GateWants, Partition, PartitionKey};
use weir_flow::debloat::DebloatSpec;
use weir_flow::exchange::{Name, Shape};
use weir_flow::failure::{Failure, FailureCode};
use weir_flow::ids::{ConsumerIndex, ProducerIndex};
use weir_flow::pool::budget::{OverBudget, ReservationId};
use weir_flow::shard::{GateSpec, PartitionSpec, PoolShares};
use weir_ipc::attach::message::{CreateGate, CreatePartition, ResponseBody};

use super::Node;
use super::attachments::{Attachment, Outcome, Place, Refusal};
use super::holds::Held;
use super::making::{Making, MakingId, Purpose};
use crate::attach::create::{self, Ends, Made, MemoryPlan, PoolOptions, Pools, RegionPlan};
use crate::memory::numa::NodeChoice;
use crate::shard::mailbox::{AttachmentId, RingKey, ToShard};

/// Gates whose exchange has no shape yet.
pub(super) type WaitingGates = BTreeMap<GateKey, WaitingGate>;

/// A gate that waits for its first producer, or for its memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaitingGate {
    ring: RingKey,
    /// The request to be answered.
    request: u64,
    pools: Pools,
    debloat: Option<DebloatSpec>,
}

impl Node {
    /// Makes a partition.
    pub(super) fn grant_partition(
        &mut self,
        id: AttachmentId,
        request: u64,
        wanted: &CreatePartition,
    ) -> Outcome {
        let key = self.new_ring(id)?;
        let (task, exchange, shape) = self.check_partition(id, wanted)?;
        let producer = ProducerIndex(wanted.producer);
        let options = &wanted.options;
        let pools = Pools::chosen(
            &PoolOptions {
                exclusive: options.exclusive,
                floating: options.floating,
                quota: options.quota,
                overdraft: options.overdraft,
                retention: options.retention,
            },
            &self.options.limits,
        )?;
        let plan = RegionPlan::partition(self.memory_plan(id), &pools, shape.builders(producer))?;
        let partition = PartitionKey { exchange, producer };
        let continue_without = wanted.continue_without;
        let purpose = Purpose::Partition { key: partition.clone(), task, shape, continue_without };
        let making = self.begin_making(key, request, pools, plan, purpose)?;
        let asked = (request, wanted.task);
        self.attachments.insert_ring(key, asked, Place::Partition(partition), Some(making));
        // Answered by `handle_made`.
        Err(Refusal::Later)
    }

    /// What can be found wrong before any memory is made. Else the names of task and exchange, and the shape.
    fn check_partition(
        &self,
        id: AttachmentId,
        wanted: &CreatePartition,
    ) -> Result<(Name, Name, Shape), Failure> {
        let task = self.task_name(id, wanted.task)?;
        let exchange = exchange_name(&wanted.exchange)?;
        let CreatePartition { producers, consumers, checksum, .. } = *wanted;
        let shape = create::shape(
            producers,
            consumers,
            &wanted.strategy,
            checksum,
            self.options.limits.segment_bytes,
        )?;
        create::check_index("producer", wanted.producer, producers)?;
        create::check_consumer_death(shape.strategy, wanted.continue_without)?;
        let producer = ProducerIndex(wanted.producer);
        let place = Place::Partition(PartitionKey { exchange: exchange.clone(), producer });
        if let Some((holder, _)) = self.attachments.holder(&place) {
            return Err(self.duplicate(
                FailureCode::DuplicateProducer,
                "producer",
                wanted.producer,
                &exchange,
                holder,
            ));
        }
        Ok((task, exchange, shape))
    }

    /// Makes a gate, or keeps its request until its shape is known.
    pub(super) fn grant_gate(&mut self, id: AttachmentId, request: u64, wanted: &CreateGate) -> Outcome {
        let ring = self.new_ring(id)?;
        let task = self.task_name(id, wanted.task)?;
        let exchange = exchange_name(&wanted.exchange)?;
        create::check_parallelism("consumer", wanted.consumers)?;
        create::check_index("consumer", wanted.consumer, wanted.consumers)?;
        let strategy = wanted.strategy.as_deref().map(create::strategy).transpose()?;
        let consumer = ConsumerIndex(wanted.consumer);
        let key = GateKey { exchange: exchange.clone(), consumer };
        if let Some((holder, _)) = self.attachments.holder(&Place::Gate(key.clone())) {
            let code = FailureCode::DuplicateConsumer;
            return Err(self.duplicate(code, "consumer", wanted.consumer, &exchange, holder).into());
        }
        let options = PoolOptions {
            exclusive: wanted.options.exclusive,
            floating: wanted.options.floating,
            ..PoolOptions::default()
        };
        let pools = Pools::chosen(&options, &self.options.limits)?;
        let debloat = self.options.debloat.chosen(wanted.options.debloat.as_ref())?;
        let wants = GateWants {
            consumers: wanted.consumers,
            producers: wanted.producers,
            strategy,
            segment_bytes: self.options.limits.segment_bytes,
            checksum: wanted.checksum,
        };
        self.catalog.handle_gate(key.clone(), task, wants)?;
        self.waiting_gates.insert(key.clone(), WaitingGate { ring, request, pools, debloat });
        self.attachments.insert_ring(ring, (request, wanted.task), Place::Gate(key), None);
        // Answered by `make_gate`, at once if the catalog knows the shape already.
        Err(Refusal::Later)
    }

    /// The shape of a gate's exchange is known: its memory can be made.
    pub(super) fn make_gate(&mut self, key: &GateKey, shape: Shape) {
        let Some(WaitingGate { ring, request, pools, debloat }) = self.waiting_gates.get(key).copied() else {
            return;
        };
        let purpose = Purpose::Gate { key: key.clone(), shape, debloat };
        let making =
            RegionPlan::gate(self.memory_plan(ring.attachment), &pools, shape.channels(key.consumer))
                .map_err(Refusal::from)
                .and_then(|plan| self.begin_making(ring, request, pools, plan, purpose));
        match making {
            Ok(making) => {
                if let Some(state) = self.attachments.ring_mut(ring) {
                    state.making = Some(making);
                }
            }
            Err(Refusal::Refused(failure) | Refusal::Fault(failure)) => {
                self.refuse_ring(ring, request, &failure);
            }
            Err(Refusal::Later) => {}
        }
    }

    /// Charges the budget with the most that a region can take, and has it made.
    fn begin_making(
        &mut self,
        ring: RingKey,
        request: u64,
        pools: Pools,
        plan: RegionPlan,
        purpose: Purpose,
    ) -> Result<MakingId, Refusal> {
        let Some((holder, _)) = self.holder(ring.attachment) else {
            return Err(Refusal::Later);
        };
        self.handle_regions_gone();
        let reservation = self
            .budget
            .reserve(holder.clone(), plan.bytes_max())
            .map_err(|over| self.describe_over_budget(over))?;
        let id = self.makers.new_id();
        self.makers.add(Making { id, ring, request, holder, reservation, pools, plan, purpose });
        Ok(id)
    }

    /// A ring is closed whose memory is not made yet. What is being made at this moment is charged until it is there.
    pub(super) fn take_back(&mut self, making: MakingId) {
        if let Some(reservation) = self.makers.take_back(making) {
            self.budget.release(reservation);
        }
    }

    /// A region is made, or cannot be. What nobody wants is given back before the next is made.
    pub(super) fn handle_made(&mut self, making: Making, made: Result<Made, Failure>) {
        let id = making.id;
        if let Ok(Made { preferred: Some((node, said)), .. }) = &made {
            self.options.placement.handle_preferred(*node, said.clone());
        }
        self.conclude(making, made);
        self.makers.handle_made(id);
    }

    /// Answers the request of a region, if it is still wanted.
    fn conclude(&mut self, mut making: Making, made: Result<Made, Failure>) {
        let state = self.attachments.ring_mut(making.ring);
        let is_wanted = state.is_some_and(|state| state.making == Some(making.id));
        let failure = match made {
            Ok(made) if !is_wanted => return self.makers.discard(made, making.reservation),
            Ok(made) if self.drain.is_some() => {
                // It came too late: nobody is connected to anybody any more.
                self.makers.discard(made, making.reservation);
                Self::stopping()
            }
            Ok(made) => match self.settle(&mut making, made.bytes) {
                Ok(()) => return self.finish(making, made),
                Err(failure) => failure,
            },
            Err(failure) => {
                self.budget.release(making.reservation);
                failure
            }
        };
        if is_wanted {
            self.refuse_ring(making.ring, making.request, &failure);
        }
    }

    /// A region that nobody wanted is given back.
    pub(super) fn handle_discarded(&mut self, reservation: ReservationId) {
        self.budget.release(reservation);
    }

    /// Gives the budget back what a region did not take of what it was charged with.
    fn settle(&mut self, making: &mut Making, bytes: u64) -> Result<(), Failure> {
        if bytes < making.plan.bytes_max() {
            self.budget.release(making.reservation);
            // Less than what was just released, so it fits.
            making.reservation = self
                .budget
                .reserve(making.holder.clone(), bytes)
                .map_err(|over| self.describe_over_budget(over))?;
        }
        Ok(())
    }

    /// Gives client and shard what was made for them.
    fn finish(&mut self, making: Making, made: Made) {
        let Some((_, shard)) = self.holder(making.ring.attachment) else {
            return self.makers.discard(made, making.reservation);
        };
        match making.purpose.clone() {
            Purpose::Partition { key, task, shape, continue_without } => {
                let incarnation = self.next_incarnation();
                let running = Partition::running(task, shape, shard, incarnation);
                if let Err(failure) = self.catalog.handle_local_partition(key.clone(), running) {
                    self.makers.discard(made, making.reservation);
                    return self.refuse_ring(making.ring, making.request, &failure);
                }
                let PartitionKey { exchange, producer } = key;
                let segments = made.segments;
                let Pools { quota, overdraft, retention, .. } = making.pools;
                let pool = PoolShares { quota, overdraft, retention };
                let spec = PartitionSpec {
                    exchange,
                    producer,
                    shape,
                    incarnation,
                    segments,
                    pool,
                    continue_without,
                };
                let body = ResponseBody::Partition {
                    ring: making.ring.ring,
                    segments,
                    subpartitions: shape.builders(producer),
                    quota: making.pools.quota,
                    overdraft: making.pools.overdraft,
                    segment_bytes: shape.segment_bytes,
                };
                self.hand_over(making, made, shard, body, |key, ends| match ends {
                    Ends::Partition(endpoint, region) => {
                        Some(ToShard::AddPartition { key, spec, endpoint, region })
                    }
                    Ends::Gate(..) => None,
                });
            }
            Purpose::Gate { key: gate, shape, debloat } => {
                self.waiting_gates.remove(&gate);
                let spec = GateSpec {
                    exchange: gate.exchange.clone(),
                    consumer: gate.consumer,
                    shape,
                    segments: made.segments,
                    exclusive: making.pools.exclusive,
                    debloat,
                };
                let body = ResponseBody::Gate {
                    ring: making.ring.ring,
                    segments: made.segments,
                    channels: shape.channels(gate.consumer),
                    producers: shape.producers,
                    consumers: shape.consumers,
                    strategy: shape.strategy.to_string(),
                    segment_bytes: shape.segment_bytes,
                    checksum: shape.checksum,
                };
                self.hand_over(making, made, shard, body, |key, ends| match ends {
                    Ends::Gate(endpoint, region) => Some(ToShard::AddGate { key, spec, endpoint, region }),
                    Ends::Partition(..) => None,
                });
                // Producers that were known before could not be connected to it.
                self.catalog.handle_gate_ready(&gate);
            }
        }
    }

    /// The shard first: what the client then does finds its ring there.
    fn hand_over(
        &mut self,
        making: Making,
        made: Made,
        shard: u16,
        body: ResponseBody,
        mail: impl FnOnce(RingKey, Ends) -> Option<ToShard>,
    ) {
        let Making { ring, request, holder, reservation, .. } = making;
        let Made { ends, descriptors, bytes, backing, nodes, lending, .. } = made;
        let held = Held { region: descriptors.get(1), backing, bytes, nodes };
        let memory = self.hold(ring.attachment, held, reservation, holder, lending);
        if let Some(state) = self.attachments.ring_mut(ring) {
            state.making = None;
            state.memory = Some(memory);
        }
        if let Some(mail) = mail(ring, ends) {
            self.mail(shard, mail);
        }
        self.answer(ring.attachment, request, body, descriptors);
    }

    /// A gate can never be served: its request is refused, or it is closed.
    pub(super) fn fail_gate(&mut self, key: &GateKey, failure: Failure) {
        if let Some(WaitingGate { ring, request, .. }) = self.waiting_gates.remove(key) {
            self.refuse_ring(ring, request, &failure);
        } else if let Some((client, ring)) = self.attachments.holder(&Place::Gate(key.clone())) {
            tracing::warn!(client = client.describe(), gate = %key, %failure, "a gate failed");
            self.close_ring(ring, Some(failure));
        }
    }

    /// Refuses a request whose ring is in place and has no memory.
    fn refuse_ring(&mut self, ring: RingKey, request: u64, failure: &Failure) {
        self.close_ring(ring, None);
        self.answer_refused(ring.attachment, request, failure);
    }

    /// How regions of this client are made: on the NUMA node of its shard.
    fn memory_plan(&self, id: AttachmentId) -> MemoryPlan {
        let shard = self.attachments.get(id).and_then(|client| client.shard);
        MemoryPlan {
            segment_bytes: self.options.limits.segment_bytes,
            hugepages: self.options.hugepages,
            node: shard.map_or(NodeChoice::Preferred(None), |shard| self.options.placement.memory_of(shard)),
        }
    }

    /// How the budget names a client, and the client's shard. All that a process has counts as one.
    fn holder(&self, id: AttachmentId) -> Option<(String, u16)> {
        let client = self.attachments.get(id)?;
        Some((client.describe(), client.shard?))
    }

    /// What a client is told for whose partition or gate the budget has nothing.
    fn describe_over_budget(&self, mut over: OverBudget) -> Failure {
        for (holder, _) in &mut over.holders {
            match self.attachments.holds.describe_over(holder) {
                Some(described) => *holder = described,
                None => holder.push_str(&self.attachments.exchanges(holder)),
            }
        }
        Failure::new(FailureCode::OverBudget, over.to_string())
    }

    /// The name of a client's task.
    fn task_name(&self, id: AttachmentId, task: u32) -> Result<Name, Failure> {
        let name = self.attachments.get(id).and_then(|client| client.task_name(task));
        name.cloned().ok_or_else(|| {
            let text = format!("task is {task}; needed: the cell of a task made before");
            Failure::new(FailureCode::Protocol, text)
        })
    }

    fn duplicate(
        &self,
        code: FailureCode,
        side: &str,
        index: u32,
        exchange: &Name,
        holder: &Attachment,
    ) -> Failure {
        let (holder, node) = (holder.describe(), &self.options.node);
        let text = format!(
            "{side} {index} of exchange {exchange} is {holder} on node {node}; needed: another index, or its end"
        );
        Failure::new(code, text)
    }
}

fn exchange_name(text: &str) -> Result<Name, Failure> {
    text.parse().map_err(|error| Failure::new(FailureCode::Protocol, format!("exchange name {error}")))
}
