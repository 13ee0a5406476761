//! Emitting: a record to the consumer that is chosen for it, and what is done while there is no room.

use std::sync::Arc;

use weir_flow::flush::Flush;
use weir_flow::record::{RecordWriter, frame_bytes};
use weir_flow::selector::Rebalance;
use weir_flow::selector::adaptive::{Adaptive, Take, TargetView};

use super::custom::Targets;
use super::selection::Selection;
use super::waiting::{backpressured, wait};
use super::writer::{Emission, Emitted, Lack, Rest, Writer};
use super::{Partition, RETRY_NS, Shared};
use crate::caller::{Caller, block};
use crate::clock;
use crate::error::Error;

/// What came of a record that was not to wait.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tried {
    /// It is emitted.
    Emitted,
    /// It would have to wait. Nothing of it was written.
    WouldBlock(Lacking),
}

impl Tried {
    /// Whether the record is emitted.
    #[must_use]
    pub fn is_emitted(self) -> bool {
        self == Self::Emitted
    }
}

/// What a record would have to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lacking {
    /// A segment of the partition's pool: all are in use.
    Segment,
    /// A segment, while the consumer (with adaptive selection: every consumer) has as many open or queued as it may, or as
    /// many bytes are on their way to it as it wants ([`crate::GateOptions::debloat`]).
    Quota,
    /// A consumer that keeps up. With adaptive selection only: those that do have no room, and those that have room have
    /// more to do already than the others.
    Turn,
}

impl From<Lack> for Lacking {
    fn from(lack: Lack) -> Self {
        match lack {
            Lack::Quota => Self::Quota,
            Lack::Turn => Self::Turn,
            // Nothing else is lacking for a record.
            Lack::Segment | Lack::Event | Lack::Room | Lack::End => Self::Segment,
        }
    }
}

impl Partition {
    /// Emits a record to the consumer that the ship strategy chooses, with `broadcast` to every consumer. Waits while
    /// there is no segment for it; a broadcast then waits for its slowest consumer.
    ///
    /// # Errors
    /// [`Error::RecordTooLarge`] and [`Error::KeyNeeded`] before anything is written, and
    /// [`Error::SelectedOutOfRange`] if the application's selector chose a consumer that there is not;
    /// [`Error::Failed`] when the partition has failed; or the daemon is gone.
    #[inline]
    pub fn emit(&mut self, record: &[u8]) -> Result<(), Error> {
        self.emit_selected(record, None)
    }

    /// Emits a record to the consumer that its key chooses. Strategies other than `hash`, and selectors that do not look
    /// at keys, choose as without.
    ///
    /// # Errors
    /// As [`Self::emit`].
    #[inline]
    pub fn emit_keyed(&mut self, key: &[u8], record: &[u8]) -> Result<(), Error> {
        self.emit_selected(record, Some(key))
    }

    /// Emits a record to this subpartition, whatever the strategy.
    ///
    /// # Errors
    /// As [`Self::emit`], and [`Error::NoSuchSubpartition`]; [`Error::Failed`] with the consumer as its channel if the
    /// partition goes on without that consumer.
    #[inline]
    pub fn emit_to(&mut self, subpartition: u32, record: &[u8]) -> Result<(), Error> {
        match self.emit_at(subpartition, record)? {
            Emitted::Done(()) => self.count_emitted(subpartition, record.len()),
            Emitted::Gone => Err(self.gone_error(subpartition)),
        }
    }

    #[inline]
    pub(super) fn emit_selected(&mut self, record: &[u8], key: Option<&[u8]>) -> Result<(), Error> {
        if let Selection::Adaptive(adaptive) = &mut self.selection {
            let chosen = adaptive.select(record, key);
            return self.emit_adaptively(chosen, record);
        }
        loop {
            let subpartition = self.select(record, key)?;
            match self.emit_at(subpartition, record)? {
                Emitted::Done(()) => return Ok(()),
                // The whole record goes to another one: a part of it that was written here is never read.
                Emitted::Gone => self.see_gone(subpartition),
            }
        }
    }

    /// The subpartition for the next record: the strategy's choice among the consumers that are there.
    #[inline]
    pub(super) fn select(&mut self, record: &[u8], key: Option<&[u8]>) -> Result<u32, Error> {
        if let Selection::Custom(_) = &self.selection {
            return self.select_custom(record, key);
        }
        let mut chosen = self.selection.select(record, key, self.subpartitions)?;
        if self.gone.is_empty() {
            return Ok(chosen);
        }
        for _ in 0..self.subpartitions {
            if !self.gone.get(chosen as usize).copied().unwrap_or(false) {
                return Ok(chosen);
            }
            chosen = self.selection.select(record, key, self.subpartitions)?;
        }
        Err(self.shared.lock().all_gone())
    }

    fn select_custom(&mut self, record: &[u8], key: Option<&[u8]>) -> Result<u32, Error> {
        let Selection::Custom(selector) = &mut self.selection else { return Ok(0) };
        let mut writer = self.shared.lock();
        let found = selector.select(record, key, &mut Targets::new(&mut writer));
        if found < self.subpartitions {
            return Ok(found);
        }
        Err(Error::SelectedOutOfRange { found, count: self.subpartitions })
    }

    #[cold]
    pub(super) fn see_gone(&mut self, subpartition: u32) {
        self.gone.resize(self.subpartitions as usize, false);
        if let Some(is_gone) = self.gone.get_mut(subpartition as usize) {
            *is_gone = true;
        }
    }

    #[inline]
    fn emit_at(&mut self, subpartition: u32, record: &[u8]) -> Result<Emitted<()>, Error> {
        if self.append(subpartition, record)? {
            return Ok(Emitted::Done(()));
        }
        self.emit_slowly_blocked(subpartition, record)
    }

    #[cold]
    #[inline(never)]
    pub(super) fn emit_slowly_blocked(
        &mut self,
        subpartition: u32,
        record: &[u8],
    ) -> Result<Emitted<()>, Error> {
        block(self.emit_slowly(Caller::Thread, subpartition, record))
    }

    pub(super) async fn emit_at_by(
        &mut self,
        caller: Caller,
        subpartition: u32,
        record: &[u8],
    ) -> Result<Emitted<()>, Error> {
        if self.append(subpartition, record)? {
            return Ok(Emitted::Done(()));
        }
        self.emit_slowly(caller, subpartition, record).await
    }

    /// Emits a record that fits into the open segment. `false`: it does not, and nothing was written.
    #[inline]
    pub(super) fn append(&mut self, subpartition: u32, record: &[u8]) -> Result<bool, Error> {
        if record.len() > self.record_bytes_max as usize {
            return Ok(false);
        }
        let write = |place: &mut [u8]| place.copy_from_slice(record);
        let appended = self.shared.lock().append(subpartition, record.len(), write)?;
        match appended {
            Ok(Flush::Nothing) => Ok(true),
            Ok(flush) => self.flush_record(subpartition, flush).map(|()| true),
            Err(_) => Ok(false),
        }
    }

    /// Emits a record to the subpartition that keeps up best, if there is one.
    #[inline]
    fn emit_adaptively(&mut self, chosen: Option<u32>, record: &[u8]) -> Result<(), Error> {
        if let Some(subpartition) = chosen
            && self.append(subpartition, record)?
        {
            return self.count_emitted(subpartition, record.len());
        }
        self.emit_where_there_is_room_blocked(chosen, record)
    }

    #[cold]
    #[inline(never)]
    pub(super) fn emit_where_there_is_room_blocked(
        &mut self,
        chosen: Option<u32>,
        record: &[u8],
    ) -> Result<(), Error> {
        block(self.emit_where_there_is_room(Caller::Thread, chosen, record))
    }

    /// A record that does not fit into the open segment of the one that was chosen.
    pub(super) async fn emit_where_there_is_room(
        &mut self,
        caller: Caller,
        mut chosen: Option<u32>,
        record: &[u8],
    ) -> Result<(), Error> {
        self.check_record(record)?;
        loop {
            let able = match self.select_able(chosen.take(), record)? {
                Some(subpartition) => subpartition,
                None => self.wait_for_any(caller, record).await?,
            };
            match self.emit_at_by(caller, able, record).await? {
                Emitted::Done(()) => return self.count_emitted(able, record.len()),
                // Between the choice and the record. The whole of it goes to another one.
                Emitted::Gone => self.adaptive(|adaptive| adaptive.handle_gone(able)),
            }
        }
    }

    /// Of those that keep up, the next that can take the record now; first the one that was chosen.
    fn select_able(&mut self, chosen: Option<u32>, record: &[u8]) -> Result<Option<u32>, Error> {
        let Selection::Adaptive(adaptive) = &mut self.selection else { return Ok(chosen) };
        let mut writer = self.shared.lock();
        if let Some(subpartition) = chosen {
            match writer.take(subpartition, record.len())? {
                Take::Now => return Ok(Some(subpartition)),
                Take::Later => adaptive.handle_blocked(subpartition),
                Take::Never => adaptive.handle_gone(subpartition),
            }
        }
        adaptive.select_able(record, None, |subpartition| writer.take(subpartition, record.len()))
    }

    /// Waits until any that keeps up can take the record.
    async fn wait_for_any(&mut self, caller: Caller, record: &[u8]) -> Result<u32, Error> {
        let Self { shared, waits, selection: Selection::Adaptive(adaptive), .. } = self else { return Ok(0) };
        let attempt = |writer: &mut Writer| select_anew(adaptive, writer, record);
        wait(caller, backpressured(caller), shared, waits, attempt).await
    }

    fn adaptive(&mut self, change: impl FnOnce(&mut Adaptive<Rebalance>)) {
        if let Selection::Adaptive(adaptive) = &mut self.selection {
            change(adaptive);
        }
    }

    /// What adaptive selection has to know of a record that was emitted.
    #[inline]
    pub(super) fn count_emitted(&mut self, subpartition: u32, record_bytes: usize) -> Result<(), Error> {
        if let Selection::Adaptive(adaptive) = &mut self.selection
            && adaptive.handle_emitted(subpartition, frame_bytes(record_bytes, self.checksum) as u64)
        {
            return self.look_if_due();
        }
        Ok(())
    }

    #[cold]
    #[inline(never)]
    fn look_if_due(&mut self) -> Result<(), Error> {
        if let Selection::Adaptive(adaptive) = &mut self.selection
            && adaptive.is_due(clock::now())
        {
            return look(adaptive, &mut self.shared.lock());
        }
        Ok(())
    }

    /// Emits a record if that needs no wait; otherwise says what it would wait for. A strategy that goes round has then
    /// gone on to the next consumer all the same; with adaptive selection each that keeps up was asked.
    ///
    /// A record that is longer than a segment may still wait, once more of it is written than the overdraft holds.
    ///
    /// # Errors
    /// As [`Self::emit`].
    pub fn try_emit(&mut self, record: &[u8]) -> Result<Tried, Error> {
        self.try_emit_selected(record, None)
    }

    /// As [`Self::try_emit`], to the consumer that the key chooses. Another key may have room when this one has not.
    ///
    /// # Errors
    /// As [`Self::emit_keyed`].
    pub fn try_emit_keyed(&mut self, key: &[u8], record: &[u8]) -> Result<Tried, Error> {
        self.try_emit_selected(record, Some(key))
    }

    fn try_emit_selected(&mut self, record: &[u8], key: Option<&[u8]>) -> Result<Tried, Error> {
        if let Selection::Adaptive(_) = &self.selection {
            return self.try_emit_adaptively(record);
        }
        loop {
            let subpartition = self.select(record, key)?;
            match self.try_emit_at(subpartition, record)? {
                Emitted::Done(tried) => return Ok(tried),
                Emitted::Gone => self.see_gone(subpartition),
            }
        }
    }

    fn try_emit_adaptively(&mut self, record: &[u8]) -> Result<Tried, Error> {
        self.check_record(record)?;
        loop {
            let mut able = self.select_able(None, record)?;
            if able.is_none()
                && let Selection::Adaptive(adaptive) = &mut self.selection
            {
                match select_anew(adaptive, &mut self.shared.lock(), record)? {
                    Ok(subpartition) => able = Some(subpartition),
                    Err(lack) => return Ok(Tried::WouldBlock(lack.into())),
                }
            }
            let Some(subpartition) = able else { continue };
            match self.emit_at(subpartition, record)? {
                Emitted::Done(()) => {
                    self.count_emitted(subpartition, record.len())?;
                    return Ok(Tried::Emitted);
                }
                Emitted::Gone => self.adaptive(|adaptive| adaptive.handle_gone(subpartition)),
            }
        }
    }

    /// As [`Self::try_emit`], to this subpartition.
    ///
    /// # Errors
    /// As [`Self::emit_to`].
    pub fn try_emit_to(&mut self, subpartition: u32, record: &[u8]) -> Result<Tried, Error> {
        match self.try_emit_at(subpartition, record)? {
            Emitted::Done(Tried::Emitted) => {
                self.count_emitted(subpartition, record.len())?;
                Ok(Tried::Emitted)
            }
            Emitted::Done(would_block) => Ok(would_block),
            Emitted::Gone => Err(self.gone_error(subpartition)),
        }
    }

    fn try_emit_at(&mut self, subpartition: u32, record: &[u8]) -> Result<Emitted<Tried>, Error> {
        self.check_record(record)?;
        {
            let mut writer = self.shared.lock();
            match writer.prepare(subpartition, record.len())? {
                Emitted::Gone => return Ok(Emitted::Gone),
                Emitted::Done(false) => {
                    return Ok(Emitted::Done(Tried::WouldBlock(writer.lack_of(subpartition).into())));
                }
                Emitted::Done(true) => {}
            }
        }
        Ok(match self.emit_at(subpartition, record)? {
            Emitted::Done(()) => Emitted::Done(Tried::Emitted),
            Emitted::Gone => Emitted::Gone,
        })
    }

    fn check_record(&self, record: &[u8]) -> Result<(), Error> {
        self.check_length(record.len())
    }

    pub(super) fn check_length(&self, found: usize) -> Result<(), Error> {
        let max = self.record_bytes_max as usize;
        if found > max { Err(Error::RecordTooLarge { found, max }) } else { Ok(()) }
    }

    /// A record that does not fit into the open segment.
    async fn emit_slowly(
        &mut self,
        caller: Caller,
        subpartition: u32,
        record: &[u8],
    ) -> Result<Emitted<()>, Error> {
        let writer = RecordWriter::new(record, self.checksum, self.record_bytes_max)
            .map_err(|error| Error::RecordTooLarge { found: error.bytes, max: error.max as usize })?;
        let Self { shared, waits, selection, abandoned, checksum, .. } = self;
        let shared = &*shared;
        let (record_bytes, frame_bytes) = (record.len(), frame_bytes(record.len(), *checksum) as u64);
        let emission = Emission::new(writer);
        let mut begun = Begun { shared, selection, abandoned, subpartition, frame_bytes, emission };
        let outcome = wait(caller, backpressured(caller), shared, waits, |writer| {
            begun.advance(caller, record_bytes, writer)
        });
        let outcome = outcome.await;
        begun.end();
        match outcome? {
            Emitted::Done(flush) => self.flush_record(subpartition, flush).map(Emitted::Done),
            Emitted::Gone => Ok(Emitted::Gone),
        }
    }

    /// Does what the buffer timeout asks for after a record.
    #[cold]
    #[inline(never)]
    pub(super) fn flush_record(&mut self, subpartition: u32, flush: Flush) -> Result<(), Error> {
        match flush {
            Flush::Nothing => {}
            Flush::At(due) => {
                self.shared.arm(due);
                // The first record for some time, maybe.
                self.adaptive(Adaptive::handle_pause);
            }
            Flush::Now => {
                if !self.shared.lock().submit_part(subpartition)? {
                    self.shared.arm(clock::now().after_ns(RETRY_NS));
                }
            }
        }
        Ok(())
    }
}

/// A record on its way. Dropped in its middle, which only a future can be, the rest of it is kept: it is emitted, by
/// whoever comes to it next.
struct Begun<'a, 'r> {
    shared: &'a Arc<Shared>,
    selection: &'a mut Selection,
    abandoned: &'a mut u64,
    subpartition: u32,
    frame_bytes: u64,
    emission: Emission<'r>,
}

impl Begun<'_, '_> {
    /// Writes as much as there are segments for. A future begins only when there is room: the records of those that are
    /// dropped in their wait are hardly ever begun then.
    fn advance(
        &mut self,
        caller: Caller,
        record_bytes: usize,
        writer: &mut Writer,
    ) -> Result<Result<Emitted<Flush>, Lack>, Error> {
        if caller == Caller::Future && !self.emission.is_in_part_written() {
            match writer.prepare(self.subpartition, record_bytes)? {
                Emitted::Gone => return Ok(Ok(Emitted::Gone)),
                Emitted::Done(false) => return Ok(Err(writer.lack_of(self.subpartition))),
                Emitted::Done(true) => {}
            }
        }
        writer.advance(self.subpartition, &mut self.emission)
    }

    /// The record is written, or has failed.
    fn end(mut self) {
        self.emission.end();
    }
}

impl Drop for Begun<'_, '_> {
    fn drop(&mut self) {
        if !self.emission.is_in_part_written() {
            return;
        }
        let (subpartition, emission) = (self.subpartition, self.emission.take_rest());
        self.shared.keep(Rest::Record { subpartition, emission });
        *self.abandoned += 1;
        if let Selection::Adaptive(adaptive) = &mut *self.selection {
            // Whether a look is due is asked at the next record again.
            let _ = adaptive.handle_emitted(subpartition, self.frame_bytes);
        }
    }
}

/// Looks at all consumers, and says anew which of them keep up.
fn look(adaptive: &mut Adaptive<Rebalance>, writer: &mut Writer) -> Result<(), Error> {
    let mut outcome = Ok(());
    adaptive.look(clock::now(), |subpartition| {
        writer.view(subpartition).unwrap_or_else(|error| {
            outcome = Err(error);
            TargetView::default()
        })
    });
    outcome
}

/// Looks, and chooses one that can take the record now. What is lacking if there is none.
fn select_anew(
    adaptive: &mut Adaptive<Rebalance>,
    writer: &mut Writer,
    record: &[u8],
) -> Result<Result<u32, Lack>, Error> {
    look(adaptive, writer)?;
    let take = |subpartition| writer.take(subpartition, record.len());
    match adaptive.select_able(record, None, take)? {
        Some(subpartition) => Ok(Ok(subpartition)),
        None if adaptive.are_all_gone() => Err(writer.all_gone()),
        // One that is left out for what it has to do comes back without news from the daemon: time has to pass.
        None if adaptive.has_slow() => Ok(Err(Lack::Turn)),
        None => Ok(Err(writer.lack_of_all())),
    }
}
