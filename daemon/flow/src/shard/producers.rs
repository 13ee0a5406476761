//! The attach side of partitions: what producers' clients hand over.

use alloc::format;

use super::{ClientFault, Notice, PartitionSpec, Shard, Submission};
use crate::failure::{Failure, FailureCode};
use crate::ids::{PartitionId, SubpartitionIndex, Time};
use crate::link::SendKey;
use crate::send::partition::{Partition, fault};
use crate::send::subpartition::{Next, Slice};
use crate::stall::account::Path;
use crate::state::PartitionState;

impl Shard {
    /// A producer attached. A partition that cannot be (its index is out of range or held by another, its segment size
    /// is not this node's) fails at once: its first update says why.
    pub fn handle_partition(&mut self, spec: PartitionSpec, now: Time) -> PartitionId {
        let refusal = self.refusal(&spec);
        let key = (spec.exchange.clone(), spec.producer);
        let id =
            PartitionId(self.partitions.table.insert(Partition::new(spec, self.limits.segment_bytes, now)));
        match refusal {
            Some(failure) => self.fail_partition(id, &failure, now),
            None => {
                if let Some(partition) = self.partitions.get_mut(id) {
                    partition.is_findable = true;
                    self.findable.insert(key, id);
                }
            }
        }
        id
    }

    fn refusal(&self, spec: &PartitionSpec) -> Option<Failure> {
        let PartitionSpec { exchange, producer, shape, .. } = spec;
        if producer.0 >= shape.producers {
            return Some(Failure::new(
                FailureCode::IndexOutOfRange,
                format!("producer index of {exchange} is {producer}; needed: below {}", shape.producers),
            ));
        }
        if shape.segment_bytes != self.limits.segment_bytes {
            let (found, needed) = (shape.segment_bytes, self.limits.segment_bytes);
            return Some(Failure::new(
                FailureCode::Mismatch,
                format!("segment_bytes of {exchange} is {found}; needed: {needed}, as this node has"),
            ));
        }
        self.findable.contains_key(&(exchange.clone(), *producer)).then(|| {
            Failure::new(
                FailureCode::DuplicateProducer,
                format!("producer {producer} of {exchange} is attached already; needed: another index"),
            )
        })
    }

    /// A producer's client handed something over. Everything in it is checked before anything changes.
    ///
    /// # Errors
    /// [`ClientFault`]: it cannot be true. The shell detaches the client with
    /// [`Self::handle_partition_closed`].
    pub fn handle_submission(
        &mut self,
        partition: PartitionId,
        submission: Submission,
        now: Time,
    ) -> Result<(), ClientFault> {
        let segment_bytes = self.limits.segment_bytes;
        let Some(state) = self.partitions.get_mut(partition) else {
            return Err(fault("partition", format!("is {partition}, which is unknown")));
        };
        let builder = match submission {
            Submission::Data { subpartition, segment, offset, bytes, records, last } => {
                let slice = Slice { segment, offset, bytes, records };
                state.submit_data(subpartition, slice, last, segment_bytes)?;
                subpartition
            }
            Submission::Event { subpartition, payload, priority } => {
                state.submit_event(subpartition, &payload, priority)?;
                subpartition
            }
            Submission::End { subpartition } => {
                state.submit_end(subpartition)?;
                subpartition
            }
        };
        let readers = state.readers(builder);
        if state.has_news() {
            self.partitions.list(partition);
        }
        for reader in readers {
            let subpartition = SubpartitionIndex(reader as u32);
            self.activate(SendKey { partition, subpartition }, now);
        }
        Ok(())
    }

    /// The client of a partition closed it after it had finished (`None`), or left or was detached before. Its
    /// consumers are told, and [`Notice::PartitionReleased`] follows when the kernel has let go of its memory.
    pub fn handle_partition_closed(&mut self, partition: PartitionId, failure: Option<Failure>, now: Time) {
        let Some(state) = self.partitions.get(partition) else { return };
        if state.state == PartitionState::Running {
            let failure = failure.unwrap_or_else(|| {
                Failure::new(
                    FailureCode::ProducerGone,
                    format!(
                        "producer {} of {} left before its end of data was acknowledged",
                        state.spec.producer, state.spec.exchange
                    ),
                )
            });
            self.fail_partition(partition, &failure, now);
        }
        if let Some(state) = self.partitions.get_mut(partition) {
            state.close();
        }
        self.release_partition(partition);
    }

    /// Forgets a closed partition when nothing refers to its memory.
    pub(super) fn release_partition(&mut self, id: PartitionId) {
        if self.partitions.get(id).is_some_and(Partition::is_released) {
            if let Some(partition) = self.partitions.table.remove(id.0) {
                self.keep_stalls(&partition);
            }
            self.notices.push_back(Notice::PartitionReleased(id));
        }
    }

    /// The subpartition may have something to send: it takes its place in its link's round.
    pub(super) fn activate(&mut self, key: SendKey, now: Time) {
        let Some(partition) = self.partitions.get_mut(key.partition) else { return };
        let Some((subpartition, _)) = partition.split(key.subpartition) else { return };
        let at = subpartition.channel.and_then(|(id, _)| Some((id, self.links.get_mut(id)?)));
        let Some((link_id, link)) = at else {
            return subpartition.update_stall(&Path::default(), now, &mut self.send_stalls.lengths);
        };
        subpartition.update_stall(&link.path(now), now, &mut self.send_stalls.lengths);
        if !subpartition.is_listed && subpartition.next() != Next::Nothing {
            subpartition.is_listed = true;
            link.round.push(key);
        }
        if !subpartition.is_priority_listed && subpartition.has_priority() {
            subpartition.is_priority_listed = true;
            link.priority.push_back(key);
        }
        self.links.list(link_id);
    }

    /// The view of a subpartition changed: its client is told.
    pub(super) fn mark_changed(&mut self, key: SendKey) {
        if let Some(partition) = self.partitions.get_mut(key.partition) {
            partition.mark_changed(key.subpartition);
        }
        self.partitions.list(key.partition);
    }
}
