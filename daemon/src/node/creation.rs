//! Partitions and gates: from a client's request to its rings and memory.
//!
//! A partition is made at once. A gate's memory depends on the exchange's shape, which the producers state; its
//! request is kept until the catalog knows the shape, and only this request waits.

use std::collections::BTreeMap;

use weir_flow::catalog::{GateKey, GateWants, Partition, PartitionKey};
use weir_flow::exchange::{Name, Shape};
use weir_flow::failure::{Failure, FailureCode};
use weir_flow::ids::{ConsumerIndex, ProducerIndex};
use weir_flow::shard::{GateSpec, PartitionSpec};
use weir_ipc::attach::message::{CreateGate, CreatePartition, ResponseBody};

use super::Node;
use super::attachments::{Attachment, Outcome, Place, Refusal};
use crate::attach::create::{self, MemoryPlan, PoolOptions, Pools, Unmade};
use crate::shard::mailbox::{AttachmentId, RingKey, ToShard};

/// Gates whose exchange has no shape yet.
pub(super) type WaitingGates = BTreeMap<GateKey, WaitingGate>;

/// A gate that waits for its first producer.
#[derive(Debug)]
pub(super) struct WaitingGate {
    ring: RingKey,
    /// The request to be answered.
    request: u64,
    pools: Pools,
}

impl Node {
    /// Makes a partition.
    pub(super) fn grant_partition(&mut self, id: AttachmentId, wanted: &CreatePartition) -> Outcome {
        let key = self.new_ring(id)?;
        let (exchange, shape) = self.check_partition(id, wanted)?;
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
        let Some((holder, shard)) = self.holder(id) else {
            return Err(Refusal::Later);
        };
        let plan = self.memory_plan();
        self.handle_regions_gone();
        let made = create::partition(plan, &pools, shape.subpartitions(), &mut self.budget, &holder)
            .map_err(|unmade| self.unmade(unmade))?;
        let incarnation = self.next_incarnation();
        let partition = PartitionKey { exchange: exchange.clone(), producer };
        let running = Partition::running(shape, shard, incarnation);
        if let Err(failure) = self.catalog.handle_local_partition(partition.clone(), running) {
            self.budget.release(made.reservation);
            return Err(failure.into());
        }
        let (region, bytes) = (made.descriptors.last(), made.region.bytes());
        let memory = self.hold(region, made.reservation, made.backing, bytes, holder);
        self.attachments.insert_ring(key, Place::Partition(partition), Some(memory));
        let spec = PartitionSpec {
            exchange,
            producer,
            shape,
            incarnation,
            segments: made.segments,
            continue_without: wanted.continue_without,
        };
        self.mail(shard, ToShard::AddPartition { key, spec, endpoint: made.endpoint, region: made.region });
        let body = ResponseBody::Partition {
            ring: key.ring,
            segments: made.segments,
            subpartitions: shape.subpartitions(),
            quota: pools.quota,
            overdraft: pools.overdraft,
            segment_bytes: shape.segment_bytes,
        };
        Ok((body, made.descriptors))
    }

    /// What can be found wrong before any memory is made.
    fn check_partition(&self, id: AttachmentId, wanted: &CreatePartition) -> Result<(Name, Shape), Failure> {
        self.check_task(id, wanted.task)?;
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
        Ok((exchange, shape))
    }

    /// Makes a gate, or keeps its request until its shape is known.
    pub(super) fn grant_gate(&mut self, id: AttachmentId, request: u64, wanted: &CreateGate) -> Outcome {
        let ring = self.new_ring(id)?;
        self.check_task(id, wanted.task)?;
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
        let wants = GateWants {
            consumers: wanted.consumers,
            producers: wanted.producers,
            strategy,
            segment_bytes: self.options.limits.segment_bytes,
            checksum: wanted.checksum,
        };
        self.catalog.handle_gate(key.clone(), wants)?;
        self.waiting_gates.insert(key.clone(), WaitingGate { ring, request, pools });
        self.attachments.insert_ring(ring, Place::Gate(key), None);
        // Answered by `make_gate`, at once if the catalog knows the shape already.
        Err(Refusal::Later)
    }

    /// The shape of a gate's exchange is known: its request is answered.
    pub(super) fn make_gate(&mut self, key: &GateKey, shape: Shape) {
        let Some(WaitingGate { ring, request, pools }) = self.waiting_gates.remove(key) else {
            return;
        };
        let Some((holder, shard)) = self.holder(ring.attachment) else {
            return;
        };
        let plan = self.memory_plan();
        self.handle_regions_gone();
        let made = match create::gate(plan, &pools, shape.channels(), &mut self.budget, &holder) {
            Ok(made) => made,
            Err(unmade) => {
                let failure = self.unmade(unmade);
                return self.refuse_gate(ring, request, &failure);
            }
        };
        let (region, bytes) = (made.descriptors.last(), made.region.bytes());
        let memory = self.hold(region, made.reservation, made.backing, bytes, holder);
        self.attachments.insert_ring(ring, Place::Gate(key.clone()), Some(memory));
        let spec = GateSpec {
            exchange: key.exchange.clone(),
            consumer: key.consumer,
            shape,
            segments: made.segments,
            exclusive: pools.exclusive,
        };
        self.mail(shard, ToShard::AddGate { key: ring, spec, endpoint: made.endpoint, region: made.region });
        let body = ResponseBody::Gate {
            ring: ring.ring,
            segments: made.segments,
            channels: shape.channels(),
            producers: shape.producers,
            consumers: shape.consumers,
            strategy: shape.strategy.to_string(),
            segment_bytes: shape.segment_bytes,
            checksum: shape.checksum,
        };
        self.answer(ring.attachment, request, body, made.descriptors);
    }

    /// A gate can never be served: its request is refused, or it is closed.
    pub(super) fn fail_gate(&mut self, key: &GateKey, failure: Failure) {
        if let Some(WaitingGate { ring, request, .. }) = self.waiting_gates.remove(key) {
            self.refuse_gate(ring, request, &failure);
        } else if let Some((client, ring)) = self.attachments.holder(&Place::Gate(key.clone())) {
            tracing::warn!(client = client.describe(), gate = %key, %failure, "a gate failed");
            self.close_ring(ring, Some(failure));
        }
    }

    fn refuse_gate(&mut self, ring: RingKey, request: u64, failure: &Failure) {
        self.close_ring(ring, None);
        self.answer_refused(ring.attachment, request, failure);
    }

    fn memory_plan(&self) -> MemoryPlan {
        MemoryPlan { segment_bytes: self.options.limits.segment_bytes, hugepages: self.options.hugepages }
    }

    /// How the budget names a client, and the client's shard. All that a process has counts as one.
    fn holder(&self, id: AttachmentId) -> Option<(String, u16)> {
        let client = self.attachments.get(id)?;
        Some((client.describe(), client.shard?))
    }

    /// What a client is told whose partition or gate was not made.
    fn unmade(&self, unmade: Unmade) -> Failure {
        match unmade {
            Unmade::Failed(failure) => failure,
            Unmade::OverBudget(mut over) => {
                for (holder, _) in &mut over.holders {
                    let exchanges = self.attachments.exchanges(holder);
                    holder.push_str(&exchanges);
                }
                Failure::new(FailureCode::OverBudget, over.to_string())
            }
        }
    }

    fn check_task(&self, id: AttachmentId, task: u32) -> Result<(), Failure> {
        if self.attachments.get(id).is_some_and(|client| client.has_task(task)) {
            return Ok(());
        }
        Err(Failure::new(
            FailureCode::Protocol,
            format!("task is {task}; needed: the cell of a task made before"),
        ))
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
