//! Emitting a record that the application writes where it will be sent from.
//!
//! A record that is built somewhere and then emitted is written twice. Here the application is lent the place inside the
//! open segment, or the next one if none is open. Only a record that is cut between two is built beside them and copied.

use weir_flow::flush::Flush;
use weir_flow::selector::adaptive::Take;

use super::Partition;
use super::selection::Selection;
use super::waiting::{backpressured, wait};
use super::writer::Emitted;
use crate::caller::{Caller, block};
use crate::error::Error;

impl Partition {
    /// Emits a record of `bytes` bytes that `write` writes: as [`Self::emit`] of the same bytes, without copying them if
    /// there is room for all of them in the segment that is open, or in the next one if none is. `write` is called once, with a slice of exactly `bytes`
    /// bytes that hold anything, and writes all of them; what it leaves is sent as it was.
    ///
    /// It is called under a lock that the partition's flusher may wait for: what takes long is better done before.
    ///
    /// # Errors
    /// As [`Self::emit`]; `write` has been called or not.
    ///
    /// # Panics
    /// If `write` panics; then nothing is emitted, and the partition is as before.
    #[inline]
    pub fn emit_with(&mut self, bytes: usize, write: impl FnOnce(&mut [u8])) -> Result<(), Error> {
        self.emit_with_selected(bytes, None, write)
    }

    /// As [`Self::emit_with`], to the consumer that the key chooses, as [`Self::emit_keyed`] does.
    ///
    /// # Errors
    /// As [`Self::emit_keyed`]; `write` has been called or not.
    ///
    /// # Panics
    /// As [`Self::emit_with`].
    #[inline]
    pub fn emit_keyed_with(
        &mut self,
        key: &[u8],
        bytes: usize,
        write: impl FnOnce(&mut [u8]),
    ) -> Result<(), Error> {
        self.emit_with_selected(bytes, Some(key), write)
    }

    #[inline]
    fn emit_with_selected(
        &mut self,
        bytes: usize,
        key: Option<&[u8]>,
        write: impl FnOnce(&mut [u8]),
    ) -> Result<(), Error> {
        self.check_length(bytes)?;
        let chosen = match &mut self.selection {
            // The selector of an application may look at the record: it has to be there first.
            Selection::Custom(_) => {
                return self
                    .emit_built(bytes, write, |partition, record| partition.emit_selected(record, key));
            }
            // The strategies look at the key only.
            Selection::Adaptive(adaptive) => adaptive.select(&[], key),
            _ => Some(self.select(&[], key)?),
        };
        let Some(subpartition) = chosen else {
            return self.emit_built(bytes, write, |partition, record| {
                partition.emit_where_there_is_room_blocked(None, record)
            });
        };
        let mut appended = self.shared.lock().append(subpartition, bytes, write)?;
        if let Err(write) = appended {
            appended = match self.open_for(subpartition, bytes)? {
                true => self.shared.lock().append(subpartition, bytes, write)?,
                false => Err(write),
            };
        }
        match appended {
            Ok(flush) => {
                if flush != Flush::Nothing {
                    self.flush_record(subpartition, flush)?;
                }
                self.count_emitted(subpartition, bytes)
            }
            Err(write) => self
                .emit_built(bytes, write, |partition, record| partition.emit_cut(subpartition, record, key)),
        }
    }

    /// Opens the next segment, and waits for it, if none is open and a record of so many bytes lies whole in one. `false`: the
    /// record is to be built elsewhere, for it is cut, or its consumer is gone, or adaptive selection had better choose anew.
    #[cold]
    #[inline(never)]
    fn open_for(&mut self, subpartition: u32, bytes: usize) -> Result<bool, Error> {
        let Self { shared, waits, selection, .. } = self;
        if let Selection::Adaptive(_) = selection {
            let mut writer = shared.lock();
            return Ok(writer.take(subpartition, bytes)? == Take::Now
                && writer.open_for(subpartition, bytes)? == Ok(true));
        }
        let caller = Caller::Thread;
        block(wait(caller, backpressured(caller), shared, waits, |writer| {
            writer.open_for(subpartition, bytes)
        }))
    }

    /// A record that does not fit into the segment that is open.
    fn emit_cut(&mut self, subpartition: u32, record: &[u8], key: Option<&[u8]>) -> Result<(), Error> {
        if let Selection::Adaptive(_) = &self.selection {
            return self.emit_where_there_is_room_blocked(Some(subpartition), record);
        }
        match self.emit_slowly_blocked(subpartition, record)? {
            Emitted::Done(()) => Ok(()),
            Emitted::Gone => {
                self.see_gone(subpartition);
                self.emit_selected(record, key)
            }
        }
    }

    /// Has a record built in the memory that is kept for that, and emits it.
    #[cold]
    #[inline(never)]
    fn emit_built(
        &mut self,
        bytes: usize,
        write: impl FnOnce(&mut [u8]),
        emit: impl FnOnce(&mut Self, &[u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut record = std::mem::take(&mut self.built);
        record.resize(bytes, 0);
        write(&mut record);
        let outcome = emit(self, &record);
        self.built = record;
        outcome
    }
}
