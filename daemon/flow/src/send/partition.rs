//! One result partition: its segments, its subpartitions, and what its client is still to be told.

use alloc::format;
use alloc::vec::Vec;
use core::ops::Range;

use bytes::Bytes;

use super::memory::{Builder, SendMemory};
use super::subpartition::{Item, Slice, Subpartition};
use crate::exchange::Strategy;
use crate::failure::Failure;
use crate::ids::{SubpartitionIndex, Time};
use crate::shard::{ClientFault, PartitionSpec, PartitionUpdate, SubpartitionView};
use crate::stall::emit::EmitStalls;
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
    pub(crate) emit: EmitStalls,
    /// Subpartitions whose end was acknowledged.
    pub(crate) ended: u32,
    /// To be told to the client once.
    pub(crate) outcome: Option<PartitionUpdate>,
    /// In the shard's list of partitions to be looked at.
    pub(crate) is_listed: bool,
    /// It is the one that consumers find under its exchange and producer index.
    pub(crate) is_findable: bool,
}

impl Partition {
    pub(crate) fn new(spec: PartitionSpec, segment_bytes: u32, now: Time) -> Self {
        let count = spec.shape.subpartitions(spec.producer);
        let builders = spec.shape.builders(spec.producer);
        Self {
            state: PartitionState::Running,
            memory: SendMemory::new(spec.segments, builders),
            emit: EmitStalls::new(builders, now),
            subpartitions: (0..count).map(|_| Subpartition::new(segment_bytes)).collect(),
            ended: 0,
            outcome: None,
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

    /// The subpartitions that get what is handed over for a builder.
    pub(crate) fn readers(&self, builder: SubpartitionIndex) -> Range<usize> {
        let index = builder.0 as usize;
        if self.is_shared() { 0..self.subpartitions.len() } else { index..index + 1 }
    }

    /// Whether one builder feeds all subpartitions.
    pub(crate) fn is_shared(&self) -> bool {
        self.spec.shape.strategy == Strategy::Broadcast
    }

    fn readers_of(&self, builder: SubpartitionIndex) -> impl Iterator<Item = &Subpartition> {
        self.subpartitions.get(self.readers(builder)).unwrap_or_default().iter()
    }

    fn open_builder(&self, index: SubpartitionIndex) -> Result<&Builder, ClientFault> {
        let count = self.memory.builders.len();
        let Some(builder) = self.memory.builder(index) else {
            return Err(fault("subpartition", format!("is {index}; needed: below {count}")));
        };
        if builder.is_end_submitted {
            return Err(fault("subpartition", format!("{index} was ended; needed: one that goes on")));
        }
        Ok(builder)
    }

    /// A slice from the client. Everything is checked before anything changes.
    pub(crate) fn submit_data(
        &mut self,
        index: SubpartitionIndex,
        slice: Slice,
        last: bool,
        segment_bytes: u32,
    ) -> Result<(), ClientFault> {
        let builder = self.open_builder(index)?.segment;
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
        let readers = self.readers(index);
        let Self { memory, subpartitions, .. } = self;
        if let Some(state) = memory.segments.get_mut(slice.segment) {
            state.owner = index;
            state.fill = slice.offset + slice.bytes;
            state.is_builder = true;
        }
        if let Some(builder) = memory.builder_mut(index) {
            builder.segment = Some(slice.segment);
            builder.submitted_bytes += u64::from(slice.bytes);
        }
        if slice.bytes > 0 {
            let readers = subpartitions.get_mut(readers).unwrap_or_default().iter_mut();
            readers.filter(|reader| reader.is_live()).for_each(|reader| reader.push_slice(slice, memory));
        }
        if last {
            memory.close_builder(index);
        }
    }

    /// An event from the client.
    pub(crate) fn submit_event(
        &mut self,
        index: SubpartitionIndex,
        payload: &Bytes,
        priority: bool,
    ) -> Result<(), ClientFault> {
        self.open_builder(index)?;
        if payload.len() > EVENT_BYTES_MAX as usize {
            let found = payload.len();
            return Err(fault("event bytes", format!("is {found}; needed: at most {EVENT_BYTES_MAX}")));
        }
        if self.readers_of(index).any(|reader| reader.events_in_flight >= EVENTS_IN_FLIGHT_MAX) {
            return Err(fault(
                "events",
                format!("{EVENTS_IN_FLIGHT_MAX} are on their way; needed: to wait at the event window"),
            ));
        }
        let readers = self.readers(index);
        let readers = self.subpartitions.get_mut(readers).unwrap_or_default().iter_mut();
        let mut is_dropped = false;
        for reader in readers {
            if !reader.is_live() {
                is_dropped = true;
                continue;
            }
            reader.events_in_flight += 1;
            if priority {
                reader.priority.push_back(payload.clone());
            } else {
                reader.queue.push_back(Item::Event(payload.clone()));
            }
        }
        // It is over as soon as it was taken, which its client is to see.
        if is_dropped {
            self.mark_changed(index);
        }
        Ok(())
    }

    /// The end of data from the client.
    pub(crate) fn submit_end(&mut self, index: SubpartitionIndex) -> Result<(), ClientFault> {
        if let Some(open) = self.open_builder(index)?.segment {
            return Err(fault("end", format!("segment {open} is not closed; needed: to close it first")));
        }
        let readers = self.readers(index);
        let readers = self.subpartitions.get_mut(readers).unwrap_or_default().iter_mut();
        readers.filter(|reader| reader.is_live()).for_each(|reader| reader.queue.push_back(Item::End));
        if let Some(builder) = self.memory.builder_mut(index) {
            builder.is_end_submitted = true;
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
        for builder in 0..self.memory.builders.len() as u32 {
            self.memory.close_builder(SubpartitionIndex(builder));
        }
        self.outcome = None;
    }

    pub(crate) fn is_released(&self) -> bool {
        self.state == PartitionState::Closed && !self.memory.is_in_kernel()
    }

    /// Segments come first, so that a client that is told the end has everything back that was free by then.
    pub(crate) fn poll_update(&mut self) -> Option<PartitionUpdate> {
        match self.memory.poll_returned() {
            Some(segment) => Some(PartitionUpdate::Returned(segment)),
            None => self.outcome.take(),
        }
    }

    /// Something changed at a subpartition that its client sees.
    pub(crate) fn mark_changed(&mut self, index: SubpartitionIndex) {
        let builder = if self.is_shared() { SubpartitionIndex(0) } else { index };
        self.memory.mark_changed(builder);
    }

    /// What its client sees of a builder: of those that read from it, each number of the one that is furthest behind.
    pub(crate) fn view(&self, index: SubpartitionIndex) -> Option<SubpartitionView> {
        let sent_segments = self.memory.builder(index)?.sent_segments;
        let of_reader = |reader: &Subpartition| SubpartitionView {
            credit: reader.credit(),
            sent_segments,
            acked_bytes: reader.acked_bytes,
            consumed_bytes: reader.consumed_bytes,
            queued_bytes: reader.queued_bytes,
            events_in_flight: reader.events_in_flight,
            buffer_bytes: reader.buffer_bytes,
            is_gone: reader.state == SendState::Failed,
        };
        self.readers_of(index).map(of_reader).reduce(|slowest, reader| SubpartitionView {
            credit: slowest.credit.min(reader.credit),
            sent_segments,
            acked_bytes: slowest.acked_bytes.min(reader.acked_bytes),
            consumed_bytes: slowest.consumed_bytes.min(reader.consumed_bytes),
            queued_bytes: slowest.queued_bytes.max(reader.queued_bytes),
            events_in_flight: slowest.events_in_flight.max(reader.events_in_flight),
            buffer_bytes: slowest.buffer_bytes.min(reader.buffer_bytes),
            is_gone: slowest.is_gone || reader.is_gone,
        })
    }

    pub(crate) fn has_news(&self) -> bool {
        !self.memory.returned.is_empty() || self.outcome.is_some() || !self.memory.changed.is_empty()
    }

    /// Whether everything that was handed over has arrived, or will never arrive.
    pub(crate) fn is_drained(&self) -> bool {
        self.subpartitions.iter().all(|subpartition| {
            subpartition.queue.is_empty()
                && subpartition.priority.is_empty()
                && (subpartition.retained.is_empty() || !subpartition.is_live())
        }) && self.memory.in_kernel == 0
    }
}

pub(crate) fn fault(field: &'static str, text: alloc::string::String) -> ClientFault {
    ClientFault { field, text }
}
