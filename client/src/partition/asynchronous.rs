//! The calls of a partition for futures.

use std::sync::Arc;

use weir_ipc::task_cell::TaskState;

use super::selection::Selection;
use super::waiting::wait;
use super::writer::{Emitted, Lack, Rest, Writer};
use super::{Finished, Partition, Shared};
use crate::caller::Caller;
use crate::error::Error;

impl Partition {
    /// As [`Self::emit`], for a future: while there is no room it blocks no thread. The task counts as backpressured, but
    /// still able to react (soft): it can do something else meanwhile.
    ///
    /// **Dropped** while it waits, nothing of the record is written, and a strategy that goes round has gone on to the next
    /// consumer all the same. There is one exception, for records that are longer than a segment: such a record is begun
    /// when there is room for its beginning, and may have to wait in its middle. Dropped there, it *is* emitted: the
    /// partition keeps a copy of the rest and writes it as soon as there is room, without another call. That counts in
    /// [`Self::abandoned`]. In neither case is the partition in any way different for what is called next.
    ///
    /// # Errors
    /// As [`Self::emit`].
    pub async fn emit_async(&mut self, record: &[u8]) -> Result<(), Error> {
        self.emit_selected_async(record, None).await
    }

    /// As [`Self::emit_async`], to the consumer that the key chooses.
    ///
    /// # Errors
    /// As [`Self::emit_keyed`].
    pub async fn emit_keyed_async(&mut self, key: &[u8], record: &[u8]) -> Result<(), Error> {
        self.emit_selected_async(record, Some(key)).await
    }

    /// As [`Self::emit_async`], to this subpartition, whatever the strategy.
    ///
    /// # Errors
    /// As [`Self::emit_to`].
    pub async fn emit_to_async(&mut self, subpartition: u32, record: &[u8]) -> Result<(), Error> {
        match self.emit_at_by(Caller::Future, subpartition, record).await? {
            Emitted::Done(()) => self.count_emitted(subpartition, record.len()),
            Emitted::Gone => Err(self.gone_error(subpartition)),
        }
    }

    async fn emit_selected_async(&mut self, record: &[u8], key: Option<&[u8]>) -> Result<(), Error> {
        if let Selection::Adaptive(adaptive) = &mut self.selection {
            let chosen = adaptive.select(record, key);
            if let Some(subpartition) = chosen
                && self.append(subpartition, record)?
            {
                return self.count_emitted(subpartition, record.len());
            }
            return self.emit_where_there_is_room(Caller::Future, chosen, record).await;
        }
        loop {
            let subpartition = self.select(record, key)?;
            match self.emit_at_by(Caller::Future, subpartition, record).await? {
                Emitted::Done(()) => return Ok(()),
                Emitted::Gone => self.see_gone(subpartition),
            }
        }
    }

    /// As [`Self::wait_available`], for a future. What it waits for can then be emitted with [`Self::try_emit`]: a program
    /// that waits for several things at once decides what to emit when it knows that it can. A record that is longer than a
    /// segment is better emitted with [`Self::emit_async`]: `try_emit` may block the thread in its middle.
    ///
    /// Dropped while it waits, it leaves nothing behind.
    ///
    /// # Errors
    /// As [`Self::wait_available`].
    pub async fn available(&mut self) -> Result<(), Error> {
        self.await_available(Caller::Future).await
    }

    /// As [`Self::emit_event`], for a future. It waits until every consumer takes another event, and emits it to all of
    /// them then.
    ///
    /// **Dropped** while it waits, no consumer gets the event. There is one exception: with more than 64 consumers, or while
    /// the daemon stands still, it may have to wait when some have got it. Dropped there, all get it, without another
    /// call, which counts in [`Self::abandoned`].
    ///
    /// # Errors
    /// As [`Self::emit_event`].
    pub async fn emit_event_async(&mut self, payload: &[u8], priority: bool) -> Result<(), Error> {
        self.check_event(payload)?;
        let Self { shared, waits, abandoned, subpartitions: count, .. } = self;
        let (shared, count) = (&*shared, *count);
        let mut begun = EventBegun { shared, abandoned, count, next: 0, payload, priority };
        let attempt = |writer: &mut Writer| begun.advance(writer);
        let outcome = wait(Caller::Future, TaskState::Soft, shared, waits, attempt).await;
        begun.next = count;
        outcome
    }

    /// As [`Self::emit_event_to`], for a future. Dropped while it waits, the event is not emitted.
    ///
    /// # Errors
    /// As [`Self::emit_event_to`].
    pub async fn emit_event_to_async(
        &mut self,
        subpartition: u32,
        payload: &[u8],
        priority: bool,
    ) -> Result<(), Error> {
        match self.emit_event_at(Caller::Future, subpartition, payload, priority).await? {
            Emitted::Done(()) => Ok(()),
            Emitted::Gone => Err(self.gone_error(subpartition)),
        }
    }

    /// As [`Self::finish`], for a future.
    ///
    /// Dropped before it is done, the partition is dropped with it, and what its consumers get is what they get of a
    /// partition that is dropped: everything that had left, and then the error that their producer is gone. If everything
    /// was handed over by then they may get a good end all the same.
    ///
    /// # Errors
    /// As [`Self::finish`].
    pub async fn finish_async(self) -> Result<Finished, Error> {
        self.finish_by(Caller::Future).await
    }

    /// Records and events that were emitted although their future was dropped: part of them was written already, and the
    /// partition emits the rest by itself. Only records that are longer than a segment can be among them. Whoever emits
    /// again what a dropped future may have emitted looks at this before and after.
    #[must_use]
    pub fn abandoned(&self) -> u64 {
        self.abandoned
    }
}

/// An event on its way to all consumers. Dropped when some have it, which only a future can be, the rest of it is kept.
struct EventBegun<'a> {
    shared: &'a Arc<Shared>,
    abandoned: &'a mut u64,
    count: u32,
    /// The first subpartition that has not got it.
    next: u32,
    payload: &'a [u8],
    priority: bool,
}

impl EventBegun<'_> {
    fn advance(&mut self, writer: &mut Writer) -> Result<Result<(), Lack>, Error> {
        writer.emit_event_to_all(&mut self.next, self.payload, self.priority)
    }
}

impl Drop for EventBegun<'_> {
    fn drop(&mut self) {
        if self.next == 0 || self.next >= self.count {
            return;
        }
        let (next, payload, priority) = (self.next, self.payload.to_vec(), self.priority);
        self.shared.keep(Rest::Event { next, payload, priority });
        *self.abandoned += 1;
    }
}
