//! One result partition: its segments, its subpartitions, and what its client is still to be told.

use alloc::collections::VecDeque;
use alloc::format;
use alloc::vec::Vec;

use bytes::Bytes;

use super::segments::Segments;
use super::subpartition::{Item, SendMemory, Slice, Subpartition};
use crate::failure::Failure;
use crate::ids::SubpartitionIndex;
use crate::shard::{ClientFault, PartitionSpec, PartitionUpdate, SubpartitionView};
use crate::state::{PartitionEvent, PartitionState, SendState};
use crate::wire::EVENT_BYTES_MAX;

/// Most events of a subpartition that may be queued or unacknowledged: what a client can have put into shared memory
/// before it looks. An honest client waits much earlier, at the event window.
pub(crate) const EVENTS_IN_FLIGHT_MAX: u32 = 128;

#[derive(Debug)]
pub(crate) struct Partition {
    pub(crate) spec: PartitionSpec,
    pub(crate) state: PartitionState,
    pub(crate) memory: SendMemory,
    pub(crate) subpartitions: Vec<Subpartition>,
    /// Subpartitions whose end was acknowledged.
    pub(crate) ended: u32,
    /// To be told to the client once.
    pub(crate) outcome: Option<PartitionUpdate>,
    /// Subpartitions whose view changed.
    pub(crate) changed: Vec<SubpartitionIndex>,
    /// In the shard's list of partitions to be looked at.
    pub(crate) is_listed: bool,
    /// It is the one that consumers find under its exchange and producer index.
    pub(crate) is_findable: bool,
}

impl Partition {
    pub(crate) fn new(spec: PartitionSpec, segment_bytes: u32) -> Self {
        let count = spec.shape.subpartitions();
        Self {
            state: PartitionState::Running,
            memory: SendMemory {
                segments: Segments::new(spec.segments),
                returned: VecDeque::new(),
                in_kernel: 0,
            },
            subpartitions: (0..count).map(|_| Subpartition::new(segment_bytes)).collect(),
            ended: 0,
            outcome: None,
            changed: Vec::new(),
            is_listed: false,
            is_findable: false,
            spec,
        }
    }

    /// The subpartition with the memory that it works on.
    pub(crate) fn split(&mut self, index: SubpartitionIndex) -> Option<(&mut Subpartition, &mut SendMemory)> {
        let subpartition = self.subpartitions.get_mut(index.0 as usize)?;
        Some((subpartition, &mut self.memory))
    }

    pub(crate) fn subpartition(&self, index: SubpartitionIndex) -> Option<&Subpartition> {
        self.subpartitions.get(index.0 as usize)
    }

    fn open_subpartition(&mut self, index: SubpartitionIndex) -> Result<&mut Subpartition, ClientFault> {
        let count = self.subpartitions.len();
        let Some(subpartition) = self.subpartitions.get_mut(index.0 as usize) else {
            return Err(fault("subpartition", format!("is {index}; needed: below {count}")));
        };
        if subpartition.is_end_submitted {
            return Err(fault("subpartition", format!("{index} was ended; needed: one that goes on")));
        }
        Ok(subpartition)
    }

    /// A slice from the client. Everything is checked before anything changes.
    pub(crate) fn submit_data(
        &mut self,
        index: SubpartitionIndex,
        slice: Slice,
        last: bool,
        segment_bytes: u32,
    ) -> Result<(), ClientFault> {
        let builder = self.open_subpartition(index)?.builder;
        let Slice { segment, offset, bytes, records } = slice;
        let count = self.memory.segments.len();
        let Some(state) = self.memory.segments.get(segment) else {
            return Err(fault("segment", format!("is {segment}; needed: below {count}")));
        };
        if state.is_builder {
            if builder != Some(segment) {
                let owner = state.owner;
                return Err(fault(
                    "segment",
                    format!("{segment} belongs to subpartition {owner}; needed: one of {index}"),
                ));
            }
        } else if !state.is_free() || state.is_returning {
            return Err(fault("segment", format!("{segment} was not returned; needed: a free segment")));
        } else if let Some(open) = builder {
            return Err(fault("segment", format!("is {segment}; needed: {open}, which is not closed yet")));
        }
        if offset != state.fill {
            return Err(fault(
                "offset",
                format!("is {offset}; needed: {}, where the last ended", state.fill),
            ));
        }
        let room = segment_bytes.saturating_sub(offset);
        if bytes > room || (bytes == 0 && (!last || offset == 0)) {
            return Err(fault("bytes", format!("is {bytes} at offset {offset}; needed: 1 to {room}")));
        }
        if records > bytes {
            return Err(fault("records", format!("is {records}; needed: at most {bytes}, one per byte")));
        }
        self.accept_data(index, slice, last);
        Ok(())
    }

    fn accept_data(&mut self, index: SubpartitionIndex, slice: Slice, last: bool) {
        let Some(subpartition) = self.subpartitions.get_mut(index.0 as usize) else { return };
        let memory = &mut self.memory;
        if let Some(state) = memory.segments.get_mut(slice.segment) {
            state.owner = index;
            state.fill = slice.offset + slice.bytes;
            state.is_builder = true;
        }
        subpartition.builder = Some(slice.segment);
        if slice.bytes > 0 && subpartition.is_live() {
            subpartition.push_slice(slice, memory);
        }
        if last {
            subpartition.close_builder(slice.segment, memory);
        }
    }

    /// An event from the client.
    pub(crate) fn submit_event(
        &mut self,
        index: SubpartitionIndex,
        payload: Bytes,
        priority: bool,
    ) -> Result<(), ClientFault> {
        let subpartition = self.open_subpartition(index)?;
        if payload.len() > EVENT_BYTES_MAX as usize {
            let found = payload.len();
            return Err(fault("event bytes", format!("is {found}; needed: at most {EVENT_BYTES_MAX}")));
        }
        if subpartition.events_in_flight >= EVENTS_IN_FLIGHT_MAX {
            return Err(fault(
                "events",
                format!("{EVENTS_IN_FLIGHT_MAX} are on their way; needed: to wait at the event window"),
            ));
        }
        if subpartition.is_live() {
            subpartition.events_in_flight += 1;
            if priority {
                subpartition.priority.push_back(payload);
            } else {
                subpartition.queue.push_back(Item::Event(payload));
            }
        }
        Ok(())
    }

    /// The end of data from the client.
    pub(crate) fn submit_end(&mut self, index: SubpartitionIndex) -> Result<(), ClientFault> {
        let subpartition = self.open_subpartition(index)?;
        if let Some(open) = subpartition.builder {
            return Err(fault("end", format!("segment {open} is not closed; needed: to close it first")));
        }
        subpartition.is_end_submitted = true;
        if subpartition.is_live() {
            subpartition.queue.push_back(Item::End);
        }
        Ok(())
    }

    /// The partition failed: the client is told once. False if it had an outcome before.
    pub(crate) fn fail(&mut self, failure: &Failure) -> bool {
        match self.state.on(PartitionEvent::Failed) {
            Ok(state) => {
                self.state = state;
                self.outcome = Some(PartitionUpdate::Failed(failure.clone()));
                true
            }
            Err(_) => false,
        }
    }

    /// One more subpartition's end was acknowledged. Whether that was the last one.
    pub(crate) fn count_ended(&mut self) -> bool {
        self.ended += 1;
        self.finish_if_ended()
    }

    /// Whether another subpartition than this one still sends, or has ended well.
    pub(crate) fn has_others(&self, index: SubpartitionIndex) -> bool {
        let others = self.subpartitions.iter().enumerate().filter(|(other, _)| *other as u32 != index.0);
        others.into_iter().any(|(_, subpartition)| subpartition.state != SendState::Failed)
    }

    /// Finishes if every subpartition is over. Those that failed while the partition goes on count: it goes on
    /// without them.
    pub(crate) fn finish_if_ended(&mut self) -> bool {
        if self.subpartitions.iter().any(Subpartition::is_live) {
            return false;
        }
        if let Ok(state) = self.state.on(PartitionEvent::AllEnded) {
            self.state = state;
            self.outcome = Some(PartitionUpdate::Finished);
        }
        true
    }

    /// The client is gone: what it still wrote is nobody's.
    pub(crate) fn close(&mut self) {
        self.state = self.state.on(PartitionEvent::Closed).unwrap_or(PartitionState::Closed);
        for subpartition in &mut self.subpartitions {
            if let Some(segment) = subpartition.builder {
                subpartition.close_builder(segment, &mut self.memory);
            }
        }
        self.outcome = None;
    }

    pub(crate) fn is_released(&self) -> bool {
        self.state == PartitionState::Closed && self.memory.in_kernel == 0
    }

    /// Segments come first, so that a client that is told the end has everything back that was free by then.
    pub(crate) fn poll_update(&mut self) -> Option<PartitionUpdate> {
        match self.memory.poll_returned() {
            Some(segment) => Some(PartitionUpdate::Returned(segment)),
            None => self.outcome.take(),
        }
    }

    pub(crate) fn mark_changed(&mut self, index: SubpartitionIndex) {
        if let Some(subpartition) = self.subpartitions.get_mut(index.0 as usize)
            && !subpartition.is_changed
        {
            subpartition.is_changed = true;
            self.changed.push(index);
        }
    }

    pub(crate) fn take_changed(&mut self, out: &mut Vec<SubpartitionIndex>) {
        for index in self.changed.drain(..) {
            if let Some(subpartition) = self.subpartitions.get_mut(index.0 as usize) {
                subpartition.is_changed = false;
            }
            out.push(index);
        }
    }

    pub(crate) fn view(&self, index: SubpartitionIndex) -> Option<SubpartitionView> {
        let subpartition = self.subpartition(index)?;
        Some(SubpartitionView {
            credit: subpartition.credit(),
            sent_segments: subpartition.sent_segments,
            acked_bytes: subpartition.acked_bytes,
            consumed_bytes: subpartition.consumed_bytes,
            queued_bytes: subpartition.queued_bytes,
            events_in_flight: subpartition.events_in_flight,
            is_gone: subpartition.state == SendState::Failed,
        })
    }

    pub(crate) fn has_news(&self) -> bool {
        !self.memory.returned.is_empty() || self.outcome.is_some() || !self.changed.is_empty()
    }

    /// Whether everything that was handed over has arrived, or will never arrive.
    pub(crate) fn is_drained(&self) -> bool {
        self.subpartitions.iter().all(|subpartition| {
            subpartition.queue.is_empty()
                && subpartition.priority.is_empty()
                && subpartition.retained.is_empty()
        }) && self.memory.in_kernel == 0
    }
}

pub(crate) fn fault(field: &'static str, text: alloc::string::String) -> ClientFault {
    ClientFault { field, text }
}
