//! A result partition: what a producer writes its records into.

mod losses;
mod selection;
mod writer;

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use weir_flow::exchange::Strategy;
use weir_flow::failure::{Failure, FailureCode};
use weir_flow::flush::{Flush, FlushClock};
use weir_flow::ids::Time;
use weir_flow::pool::partition::{PartitionPool, PartitionPoolSpec};
use weir_flow::record::RecordWriter;
use weir_ipc::attach::message::{self, CreatePartition, RequestBody, ResponseBody};
use weir_ipc::layout::PartitionLayout;
use weir_ipc::partition_port::PartitionPort;
use weir_ipc::region::SendMapping;
use weir_ipc::signal::WaitView;
use weir_ipc::task_cell::TaskState;

use self::selection::Selection;
use self::writer::{Emission, Emitted, Lack, Writer, WriterParts};
use crate::clock;
use crate::error::Error;
use crate::flusher::{self, Registration};
use crate::options::{BufferTimeout, ConsumerDeath, PartitionOptions};
use crate::session::{Session, Wanted, check_segment_bytes, take_descriptors, unexpected};
use crate::times::TaskTimes;

/// How soon something is tried again for which the daemon has no bell of its own: 1 ms.
const RETRY_NS: u64 = 1_000_000;

/// What the handle and the flusher share.
struct Shared {
    writer: Mutex<Writer>,
    view: WaitView,
    session: Arc<Session>,
    times: Arc<TaskTimes>,
    ring: u32,
    /// The place with the flusher, if the buffer timeout asks for one.
    flusher: OnceLock<Registration>,
}

impl Shared {
    #[inline]
    fn lock(&self) -> MutexGuard<'_, Writer> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the flusher to come at `due`.
    fn arm(&self, due: Time) {
        if let Some(registration) = self.flusher.get() {
            registration.arm(due);
        }
    }
}

impl flusher::Flush for Shared {
    fn flush_due(&self, now: Time) -> Option<Time> {
        let mut writer = self.lock();
        match writer.flush_due(now) {
            Ok(true) => None,
            Ok(false) => Some(writer.next_timeout().unwrap_or(now.after_ns(RETRY_NS))),
            // The owner meets the same error at its next call.
            Err(_) => None,
        }
    }
}

/// How long a partition has waited, by what it lacked. An emit that still waits is not counted yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartitionWaits {
    /// For a segment of its pool, in nanoseconds.
    pub segment_ns: u64,
    /// For a segment while its subpartition held as many as it may, in nanoseconds.
    pub quota_ns: u64,
    /// For a place for an event, in nanoseconds.
    pub event_ns: u64,
    /// For room in the ring to the daemon, in nanoseconds.
    pub ring_ns: u64,
}

/// How a partition finished.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Finished {
    /// Consumers that died before, and without which the partition went on; always 0 unless it was made with
    /// [`ConsumerDeath::ContinueWithout`].
    pub lost_consumers: u32,
    /// Records that they are not known to have taken; see [`Partition::lost_records`].
    pub lost_records: u64,
}

/// A result partition: one producer's output, with one subpartition for each consumer (one in all for `forward`).
///
/// Records go into a segment of the subpartition that the ship strategy names, and the segment goes to the daemon
/// when it is full or its buffer timeout has passed. An emit that finds no free segment waits until consumers have
/// taken what was sent; it never fails for lack of room.
///
/// [`Self::finish`] ends it in good order. A partition that is dropped before has failed: its consumers get
/// everything that had left, and then `producer gone`. A partition whose consumer dies fails, unless it was made to go
/// on without it ([`ConsumerDeath`]).
pub struct Partition {
    shared: Arc<Shared>,
    selection: Selection,
    /// Which consumers were found to be gone; empty while none was.
    gone: Vec<bool>,
    checksum: bool,
    subpartitions: u32,
    record_bytes_max: u32,
    event_bytes_max: usize,
    waits: PartitionWaits,
}

impl fmt::Debug for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Partition")
            .field("ring", &self.shared.ring)
            .field("subpartitions", &self.subpartitions)
            .finish_non_exhaustive()
    }
}

/// What a partition is asked for with.
pub(crate) struct PartitionRequest<'a> {
    pub(crate) task: u32,
    pub(crate) exchange: &'a str,
    pub(crate) producer: u32,
    pub(crate) producers: u32,
    pub(crate) consumers: u32,
    pub(crate) strategy: Strategy,
    pub(crate) options: &'a PartitionOptions,
}

/// What the daemon made: [`ResponseBody::Partition`].
struct Made {
    ring: u32,
    segments: u32,
    subpartitions: u32,
    quota: u32,
    overdraft: u32,
    segment_bytes: u32,
}

impl PartitionRequest<'_> {
    fn body(&self) -> RequestBody {
        let options = self.options;
        RequestBody::CreatePartition(CreatePartition {
            task: self.task,
            exchange: self.exchange.to_owned(),
            producer: self.producer,
            producers: self.producers,
            consumers: self.consumers,
            strategy: self.strategy.as_str().to_owned(),
            checksum: options.checksum,
            continue_without: options.on_consumer_death == ConsumerDeath::ContinueWithout,
            options: message::PartitionOptions {
                exclusive: options.exclusive,
                floating: options.floating,
                quota: options.quota,
                overdraft: options.overdraft,
                retention: options.retention,
            },
        })
    }
}

impl Partition {
    /// Asks the daemon for a partition.
    pub(crate) fn create(
        session: Arc<Session>,
        times: Arc<TaskTimes>,
        request: &PartitionRequest<'_>,
    ) -> Result<Self, Error> {
        let options = request.options;
        let selection = Selection::new(request.strategy, request.consumers, options)?;
        let (body, descriptors) = session.request(request.body())?;
        let ResponseBody::Partition { ring, segments, subpartitions, quota, overdraft, segment_bytes } = body
        else {
            return Err(unexpected(&body, "a partition"));
        };
        let made = Made { ring, segments, subpartitions, quota, overdraft, segment_bytes };
        let created = Self::map(Arc::clone(&session), times, selection, options, &made, descriptors);
        if created.is_err() {
            session.tell(RequestBody::ClosePartition { ring });
        }
        created
    }

    /// Maps what the daemon made.
    fn map(
        session: Arc<Session>,
        times: Arc<TaskTimes>,
        selection: Selection,
        options: &PartitionOptions,
        made: &Made,
        descriptors: Vec<OwnedFd>,
    ) -> Result<Self, Error> {
        let [rings, region] = take_descriptors(descriptors)?;
        let Made { ring, segments, subpartitions, quota, overdraft, .. } = *made;
        let segment_bytes = check_segment_bytes(made.segment_bytes)?;
        let pool = PartitionPool::new(PartitionPoolSpec { segments, subpartitions, quota, overdraft })
            .map_err(|error| Error::protocol(error.to_string()))?;
        let layout = PartitionLayout { segments, subpartitions };
        let port = PartitionPort::attach(rings, &layout, ring, Arc::clone(session.port()))
            .map_err(|cause| Error::os("mapping a partition's rings", cause))?;
        let mapping = SendMapping::map(region, u64::from(segments) * u64::from(segment_bytes))
            .map_err(|cause| Error::os("mapping a send region", cause))?;
        let (view, clock) = (port.wait_view(), FlushClock::new(options.buffer_timeout.to_flow()));
        let (checksum, event_window) = (options.checksum, session.node().event_window);
        let continues = options.on_consumer_death == ConsumerDeath::ContinueWithout;
        let parts =
            WriterParts { port, mapping, pool, clock, segment_bytes, checksum, event_window, continues };
        let writer = Mutex::new(Writer::new(parts));
        let (record_bytes_max, event_bytes_max) =
            (session.node().record_bytes_max, session.node().event_bytes_max as usize);
        let shared = Arc::new(Shared { writer, view, session, times, ring, flusher: OnceLock::new() });
        if options.buffer_timeout != BufferTimeout::Off {
            let target: Weak<Shared> = Arc::downgrade(&shared);
            let _ = shared.flusher.set(Registration::new(target)?);
        }
        let (gone, waits) = (Vec::new(), PartitionWaits::default());
        Ok(Self {
            shared,
            selection,
            gone,
            checksum,
            subpartitions,
            record_bytes_max,
            event_bytes_max,
            waits,
        })
    }

    /// How many subpartitions there are.
    #[must_use]
    pub fn subpartitions(&self) -> u32 {
        self.subpartitions
    }

    /// How long emits have waited so far, by what was lacking.
    #[must_use]
    pub fn waits(&self) -> PartitionWaits {
        self.waits
    }

    /// Looks whether the daemon that made this partition is still there. Waits for nothing. An emit notices only when it
    /// has to wait.
    ///
    /// # Errors
    /// [`Error::DaemonGone`], or [`Error::Detached`] with the daemon's reason; from then on always.
    pub fn check(&self) -> Result<(), Error> {
        self.shared.session.check()
    }

    /// Consumers that have died so far, and without which the partition goes on ([`ConsumerDeath`]).
    #[must_use]
    pub fn lost_consumers(&self) -> u32 {
        self.shared.lock().losses().0
    }

    /// Records that were emitted to consumers which have died ([`Self::lost_consumers`]), and which these are not known
    /// to have taken. Of them some may have been read, but no record beyond them is missing.
    #[must_use]
    pub fn lost_records(&self) -> u64 {
        self.shared.lock().losses().1
    }

    /// Emits a record to the consumer that the ship strategy chooses. Waits while there is no segment for it.
    ///
    /// # Errors
    /// [`Error::RecordTooLarge`] and [`Error::KeyNeeded`] before anything is written; [`Error::Failed`] when the
    /// partition has failed; or the daemon is gone.
    #[inline]
    pub fn emit(&mut self, record: &[u8]) -> Result<(), Error> {
        self.emit_selected(record, None)
    }

    /// Emits a record to the consumer that its key chooses. Strategies other than `hash` do not look at the key.
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
    /// As [`Self::emit`], and [`Error::NoSuchSubpartition`]; [`Error::Failed`] with the subpartition as its channel if
    /// the partition goes on without that consumer.
    #[inline]
    pub fn emit_to(&mut self, subpartition: u32, record: &[u8]) -> Result<(), Error> {
        match self.emit_at(subpartition, record)? {
            Emitted::Done(()) => Ok(()),
            Emitted::Gone => Err(gone(subpartition)),
        }
    }

    #[inline]
    fn emit_selected(&mut self, record: &[u8], key: Option<&[u8]>) -> Result<(), Error> {
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
    fn select(&mut self, record: &[u8], key: Option<&[u8]>) -> Result<u32, Error> {
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

    #[cold]
    fn see_gone(&mut self, subpartition: u32) {
        self.gone.resize(self.subpartitions as usize, false);
        if let Some(is_gone) = self.gone.get_mut(subpartition as usize) {
            *is_gone = true;
        }
    }

    #[inline]
    fn emit_at(&mut self, subpartition: u32, record: &[u8]) -> Result<Emitted<()>, Error> {
        if record.len() <= self.record_bytes_max as usize {
            let appended = self.shared.lock().append(subpartition, record)?;
            match appended {
                Some(Flush::Nothing) => return Ok(Emitted::Done(())),
                Some(flush) => return self.flush_record(subpartition, flush).map(Emitted::Done),
                None => {}
            }
        }
        self.emit_slowly(subpartition, record)
    }

    /// Emits a record if that needs no wait. `false`: it does, and nothing was written. The strategy has then made
    /// its choice all the same; `rebalance` goes on to the next consumer.
    ///
    /// A record that is longer than a segment may still wait, once more of it is written than the overdraft holds.
    ///
    /// # Errors
    /// As [`Self::emit`].
    pub fn try_emit(&mut self, record: &[u8]) -> Result<bool, Error> {
        loop {
            let subpartition = self.select(record, None)?;
            match self.try_emit_at(subpartition, record)? {
                Emitted::Done(is_emitted) => return Ok(is_emitted),
                Emitted::Gone => self.see_gone(subpartition),
            }
        }
    }

    /// As [`Self::try_emit`], to this subpartition.
    ///
    /// # Errors
    /// As [`Self::emit_to`].
    pub fn try_emit_to(&mut self, subpartition: u32, record: &[u8]) -> Result<bool, Error> {
        match self.try_emit_at(subpartition, record)? {
            Emitted::Done(is_emitted) => Ok(is_emitted),
            Emitted::Gone => Err(gone(subpartition)),
        }
    }

    fn try_emit_at(&mut self, subpartition: u32, record: &[u8]) -> Result<Emitted<bool>, Error> {
        self.check_record(record)?;
        let prepared = self.shared.lock().prepare(subpartition, record.len())?;
        if prepared != Emitted::Done(true) {
            return Ok(prepared);
        }
        Ok(match self.emit_at(subpartition, record)? {
            Emitted::Done(()) => Emitted::Done(true),
            Emitted::Gone => Emitted::Gone,
        })
    }

    /// Waits until every subpartition can take a record. The task counts as backpressured, but still able to react;
    /// an [`Self::emit`] that waits counts as blocked.
    ///
    /// # Errors
    /// The partition has failed, or the daemon is gone.
    pub fn wait_available(&mut self) -> Result<(), Error> {
        let Self { shared, waits, .. } = self;
        wait(shared, waits, TaskState::Soft, |writer| {
            Ok(if writer.is_available()? { Ok(()) } else { Err(Lack::Segment) })
        })
    }

    /// Whether every subpartition can take a record now.
    ///
    /// # Errors
    /// The partition has failed.
    pub fn is_available(&mut self) -> Result<bool, Error> {
        self.shared.lock().is_available()
    }

    /// Emits an event to every consumer, behind all records so far; with `priority`, ahead of all that still wait.
    /// Waits while too many events are under way to one of them.
    ///
    /// # Errors
    /// [`Error::EventTooLarge`] before anything is sent; otherwise as [`Self::emit`].
    pub fn emit_event(&mut self, payload: &[u8], priority: bool) -> Result<(), Error> {
        // A consumer that is gone needs no event.
        (0..self.subpartitions)
            .try_for_each(|subpartition| self.emit_event_at(subpartition, payload, priority).map(drop))
    }

    /// As [`Self::emit_event`], to one subpartition.
    ///
    /// # Errors
    /// As [`Self::emit_event`], and [`Error::NoSuchSubpartition`].
    pub fn emit_event_to(&mut self, subpartition: u32, payload: &[u8], priority: bool) -> Result<(), Error> {
        match self.emit_event_at(subpartition, payload, priority)? {
            Emitted::Done(()) => Ok(()),
            Emitted::Gone => Err(gone(subpartition)),
        }
    }

    fn emit_event_at(
        &mut self,
        subpartition: u32,
        payload: &[u8],
        priority: bool,
    ) -> Result<Emitted<()>, Error> {
        if payload.len() > self.event_bytes_max {
            return Err(Error::EventTooLarge { found: payload.len(), max: self.event_bytes_max });
        }
        let Self { shared, waits, .. } = self;
        wait(shared, waits, TaskState::Hard, |writer| writer.emit_event(subpartition, payload, priority))
    }

    /// Hands everything emitted so far to the daemon. Does not wait for it to be sent.
    ///
    /// # Errors
    /// The partition has failed.
    pub fn flush(&mut self) -> Result<(), Error> {
        self.shared.lock().flush()
    }

    /// Ends the partition: hands over everything, and returns when the daemon of every consumer has it, of every one
    /// that is left if the partition goes on without those that died.
    ///
    /// # Errors
    /// The partition has failed, or the daemon is gone: then it is not known what arrived.
    pub fn finish(mut self) -> Result<Finished, Error> {
        self.shared.lock().end()?;
        let Self { shared, waits, .. } = &mut self;
        let mut unused = *waits;
        let outcome = wait(shared, &mut unused, TaskState::Hard, |writer| {
            Ok(if writer.is_finished()? { Ok(()) } else { Err(Lack::Segment) })
        });
        match outcome {
            // A daemon that drains says that all has arrived, and is gone at once. What it said counts.
            Err(_) if shared.lock().is_finished().unwrap_or(false) => {}
            outcome => outcome?,
        }
        let (lost_consumers, lost_records) = shared.lock().losses();
        Ok(Finished { lost_consumers, lost_records })
    }

    fn check_record(&self, record: &[u8]) -> Result<(), Error> {
        let max = self.record_bytes_max as usize;
        if record.len() > max { Err(Error::RecordTooLarge { found: record.len(), max }) } else { Ok(()) }
    }

    /// A record that does not fit into the open segment.
    #[cold]
    #[inline(never)]
    fn emit_slowly(&mut self, subpartition: u32, record: &[u8]) -> Result<Emitted<()>, Error> {
        let writer = RecordWriter::new(record, self.checksum, self.record_bytes_max)
            .map_err(|error| Error::RecordTooLarge { found: error.bytes, max: error.max as usize })?;
        let mut emission = Emission::new(writer);
        let Self { shared, waits, .. } = self;
        match wait(shared, waits, TaskState::Hard, |writer| writer.advance(subpartition, &mut emission))? {
            Emitted::Done(flush) => self.flush_record(subpartition, flush).map(Emitted::Done),
            Emitted::Gone => Ok(Emitted::Gone),
        }
    }

    /// Does what the buffer timeout asks for after a record.
    #[cold]
    #[inline(never)]
    fn flush_record(&mut self, subpartition: u32, flush: Flush) -> Result<(), Error> {
        match flush {
            Flush::Nothing => {}
            Flush::At(due) => self.shared.arm(due),
            Flush::Now => {
                if !self.shared.lock().submit_part(subpartition)? {
                    self.shared.arm(clock::now().after_ns(RETRY_NS));
                }
            }
        }
        Ok(())
    }
}

/// The error for a consumer that was asked for by its number, and that the partition goes on without.
#[cold]
fn gone(subpartition: u32) -> Error {
    let text = format!("consumer {subpartition} is gone, and the partition goes on without it");
    Error::Failed { channel: Some(subpartition), failure: Failure::new(FailureCode::ConsumerGone, text) }
}

impl Drop for Partition {
    /// Tells the daemon. Whether the end was good, it knows itself.
    fn drop(&mut self) {
        self.shared.session.tell(RequestBody::ClosePartition { ring: self.shared.ring });
    }
}

/// Calls `attempt` until nothing is lacking, and waits in between.
fn wait<T>(
    shared: &Shared,
    waits: &mut PartitionWaits,
    kind: TaskState,
    mut attempt: impl FnMut(&mut Writer) -> Result<Result<T, Lack>, Error>,
) -> Result<T, Error> {
    if let Ok(done) = attempt(&mut shared.lock())? {
        return Ok(done);
    }
    let _waiting = shared.times.enter(kind);
    loop {
        let start = clock::now();
        let lack = {
            let mut writer = shared.lock();
            writer.port().announce_wait();
            match attempt(&mut writer) {
                Ok(Err(lack)) => lack,
                Ok(Ok(done)) => {
                    writer.port().cancel_wait();
                    return Ok(done);
                }
                Err(error) => {
                    writer.port().cancel_wait();
                    return Err(error);
                }
            }
        };
        // The daemon rings when it returned or published something. Room in the ring comes without.
        let deadline = (lack == Lack::Room).then(|| start.after_ns(RETRY_NS));
        let slept = shared.session.sleep(&Wanted::News(&shared.view), deadline);
        shared.lock().port().cancel_wait();
        let waited = clock::now().since_ns(start);
        *match lack {
            Lack::Segment => &mut waits.segment_ns,
            Lack::Quota => &mut waits.quota_ns,
            Lack::Event => &mut waits.event_ns,
            Lack::Room => &mut waits.ring_ns,
        } += waited;
        slept?;
    }
}
