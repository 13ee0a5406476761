//! A result partition: what a producer writes its records into.

mod asynchronous;
mod custom;
mod emit;
mod heavy;
mod in_place;
mod losses;
mod selection;
mod waiting;
mod writer;

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use weir_flow::exchange::{Shape, Strategy};
use weir_flow::failure::{Failure, FailureCode};
use weir_flow::flush::FlushClock;
use weir_flow::ids::{ProducerIndex, SubpartitionIndex, Time};
use weir_flow::pool::partition::{PartitionPool, PartitionPoolSpec};
use weir_ipc::attach::message::{self, CreatePartition, RequestBody, ResponseBody};
use weir_ipc::layout::PartitionLayout;
use weir_ipc::partition_port::PartitionPort;
use weir_ipc::region::SendMapping;
use weir_ipc::signal::WaitView;
use weir_ipc::task_cell::TaskState;

pub use self::custom::{ChannelSelector, Targets};
pub use self::emit::{Lacking, Tried};
pub use self::heavy::HeavyKey;
use self::selection::{Selection, SelectionRequest};
use self::waiting::{backpressured, wait};
use self::writer::{Emitted, Lack, Rest, Writer, WriterParts};
use crate::caller::{Caller, block};
use crate::clock;
use crate::error::Error;
use crate::flusher::{self, Registration};
use crate::options::{BufferTimeout, ConsumerDeath, PartitionOptions};
use crate::session::{Session, check_segment_bytes, take_descriptors, unexpected};
use crate::times::TaskTimes;

/// How soon something is tried again for which the daemon has no bell of its own: 1 ms.
const RETRY_NS: u64 = 1_000_000;

/// How soon the flusher goes on with what a dropped future has left: 5 ms.
const REST_RETRY_NS: u64 = 5_000_000;

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

    /// Keeps what is left of something whose future was dropped in its middle. The owner's next call goes on with it, or
    /// the flusher if that comes first.
    fn keep(self: &Arc<Self>, rest: Rest) {
        self.lock().keep(rest);
        if self.flusher.get().is_none() {
            let target: Weak<Self> = Arc::downgrade(self);
            // Without the thread it is the owner's next call.
            if let Ok(registration) = Registration::new(target) {
                let _ = self.flusher.set(registration);
            }
        }
        self.arm(clock::now().after_ns(REST_RETRY_NS));
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
            Ok(true) if writer.has_rests() => Some(now.after_ns(REST_RETRY_NS)),
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
    /// For a segment while its subpartition held as many as it may, or had as much on its way as its consumer wants, in
    /// nanoseconds; with adaptive selection also while those that had room had too much to do already.
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

/// A result partition: one producer's output, with one subpartition for each consumer that it feeds (one in all for
/// `forward`, and for `broadcast`, whose consumers all read the same segments).
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
    /// Which subpartitions' consumers were found to be gone; empty while none was.
    gone: Vec<bool>,
    checksum: bool,
    subpartitions: u32,
    shape: Shape,
    producer: u32,
    record_bytes_max: u32,
    /// Memory for records that [`Self::emit_with`] cannot have written in their place.
    built: Vec<u8>,
    event_bytes_max: usize,
    waits: PartitionWaits,
    abandoned: u64,
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
    pub(crate) exchange: &'a str,
    pub(crate) producer: u32,
    pub(crate) producers: u32,
    pub(crate) consumers: u32,
    pub(crate) strategy: Strategy,
    pub(crate) options: &'a PartitionOptions,
    /// For `custom`, and only for it.
    pub(crate) selector: Option<Box<dyn ChannelSelector>>,
}

/// What a partition is to be, as its application chose.
struct Chosen<'a> {
    selection: Selection,
    shape: Shape,
    producer: u32,
    options: &'a PartitionOptions,
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
    /// What both ends must agree on, but for the size of a segment, which the daemon knows.
    fn shape(&self) -> Shape {
        Shape {
            producers: self.producers,
            consumers: self.consumers,
            strategy: self.strategy,
            segment_bytes: 0,
            checksum: self.options.checksum,
        }
    }

    fn body(&self, task: u32) -> RequestBody {
        let options = self.options;
        RequestBody::CreatePartition(CreatePartition {
            task,
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
    pub(crate) async fn create(
        caller: Caller,
        session: Arc<Session>,
        times: Arc<TaskTimes>,
        task: u32,
        mut request: PartitionRequest<'_>,
    ) -> Result<Self, Error> {
        let (options, producer) = (request.options, request.producer);
        let mut shape = request.shape();
        let (strategy, selector) = (request.strategy, request.selector.take());
        let subpartitions = shape.builders(ProducerIndex(producer));
        let selection = Selection::new(SelectionRequest { strategy, subpartitions, options, selector })?;
        let (body, descriptors) = session.request(caller, request.body(task)).await?;
        let ResponseBody::Partition { ring, segments, subpartitions, quota, overdraft, segment_bytes } = body
        else {
            return Err(unexpected(&body, "a partition"));
        };
        let made = Made { ring, segments, subpartitions, quota, overdraft, segment_bytes };
        shape.segment_bytes = segment_bytes;
        let chosen = Chosen { selection, shape, producer, options };
        let created = Self::map(Arc::clone(&session), times, chosen, &made, descriptors);
        if created.is_err() {
            session.tell(RequestBody::ClosePartition { ring });
        }
        created
    }

    /// Maps what the daemon made.
    fn map(
        session: Arc<Session>,
        times: Arc<TaskTimes>,
        chosen: Chosen<'_>,
        made: &Made,
        descriptors: Vec<OwnedFd>,
    ) -> Result<Self, Error> {
        let Chosen { selection, shape, producer, options } = chosen;
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
        let holds_parts = options.buffer_timeout == BufferTimeout::Off;
        let parts = WriterParts {
            port,
            mapping,
            pool,
            clock,
            segment_bytes,
            checksum,
            event_window,
            continues,
            holds_parts,
        };
        let writer = Mutex::new(Writer::new(parts));
        let (record_bytes_max, event_bytes_max) =
            (session.node().record_bytes_max, session.node().event_bytes_max as usize);
        let shared = Arc::new(Shared { writer, view, session, times, ring, flusher: OnceLock::new() });
        if options.buffer_timeout != BufferTimeout::Off {
            let target: Weak<Shared> = Arc::downgrade(&shared);
            let _ = shared.flusher.set(Registration::new(target)?);
        }
        let (gone, waits, abandoned) = (Vec::new(), PartitionWaits::default(), 0);
        Ok(Self {
            shared,
            selection,
            gone,
            checksum,
            subpartitions,
            shape,
            producer,
            record_bytes_max,
            built: Vec::new(),
            event_bytes_max,
            waits,
            abandoned,
        })
    }

    /// How many subpartitions there are to emit to; with `broadcast` one, which stands for all consumers.
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

    /// Waits until every subpartition can take a record; with adaptive selection, until any can. The task counts as
    /// backpressured, but still able to react; an [`Self::emit`] that waits counts as blocked.
    ///
    /// # Errors
    /// The partition has failed, or the daemon is gone.
    pub fn wait_available(&mut self) -> Result<(), Error> {
        block(self.await_available(Caller::Thread))
    }

    async fn await_available(&mut self, caller: Caller) -> Result<(), Error> {
        let is_adaptive = self.is_adaptive();
        let Self { shared, waits, .. } = self;
        wait(caller, TaskState::Soft, shared, waits, |writer| {
            if is_adaptive {
                return Ok(if writer.is_any_available()? { Ok(()) } else { Err(writer.lack_of_all()) });
            }
            Ok(if writer.is_available()? { Ok(()) } else { Err(writer.lack_of_found()) })
        })
        .await
    }

    /// Whether every subpartition can take a record now; with adaptive selection, whether any can.
    ///
    /// # Errors
    /// The partition has failed.
    pub fn is_available(&mut self) -> Result<bool, Error> {
        let is_adaptive = self.is_adaptive();
        let mut writer = self.shared.lock();
        if is_adaptive { writer.is_any_available() } else { writer.is_available() }
    }

    /// Whether records go round those consumers only that keep up ([`PartitionOptions::adaptive`]).
    #[must_use]
    pub fn is_adaptive(&self) -> bool {
        matches!(self.selection, Selection::Adaptive(_))
    }

    /// The consumer that reads this subpartition. The same number but for `forward` and `rescale`, whose producers feed
    /// some of the consumers.
    #[must_use]
    pub fn consumer_of(&self, subpartition: u32) -> u32 {
        self.shape.consumer_at(ProducerIndex(self.producer), SubpartitionIndex(subpartition)).0
    }

    /// The error for a consumer that was asked for by its number, and that the partition goes on without.
    #[cold]
    fn gone_error(&self, subpartition: u32) -> Error {
        let consumer = self.consumer_of(subpartition);
        let text = format!("consumer {consumer} is gone, and the partition goes on without it");
        Error::Failed { channel: Some(consumer), failure: Failure::new(FailureCode::ConsumerGone, text) }
    }

    /// Emits an event of up to 1,024 bytes to every consumer, behind all records so far; with `priority`, ahead of all that
    /// still wait. Waits while 7 events are under way to one of them.
    ///
    /// # Errors
    /// [`Error::EventTooLarge`] before anything is sent; otherwise as [`Self::emit`].
    pub fn emit_event(&mut self, payload: &[u8], priority: bool) -> Result<(), Error> {
        // A consumer that is gone needs no event.
        (0..self.subpartitions).try_for_each(|subpartition| {
            block(self.emit_event_at(Caller::Thread, subpartition, payload, priority)).map(drop)
        })
    }

    /// As [`Self::emit_event`], to one subpartition.
    ///
    /// # Errors
    /// As [`Self::emit_event`], and [`Error::NoSuchSubpartition`].
    pub fn emit_event_to(&mut self, subpartition: u32, payload: &[u8], priority: bool) -> Result<(), Error> {
        match block(self.emit_event_at(Caller::Thread, subpartition, payload, priority))? {
            Emitted::Done(()) => Ok(()),
            Emitted::Gone => Err(self.gone_error(subpartition)),
        }
    }

    async fn emit_event_at(
        &mut self,
        caller: Caller,
        subpartition: u32,
        payload: &[u8],
        priority: bool,
    ) -> Result<Emitted<()>, Error> {
        self.check_event(payload)?;
        let Self { shared, waits, .. } = self;
        let attempt = |writer: &mut Writer| writer.emit_event(subpartition, payload, priority);
        wait(caller, backpressured(caller), shared, waits, attempt).await
    }

    fn check_event(&self, payload: &[u8]) -> Result<(), Error> {
        let (found, max) = (payload.len(), self.event_bytes_max);
        if found > max { Err(Error::EventTooLarge { found, max }) } else { Ok(()) }
    }

    /// Hands everything emitted so far to the daemon. Does not wait for it to be sent.
    ///
    /// # Errors
    /// The partition has failed.
    pub fn flush(&mut self) -> Result<(), Error> {
        self.shared.lock().flush()
    }

    /// Ends the partition: hands over everything, and returns when the daemon of every consumer has it, of every one
    /// that is left if the partition goes on without those that died. That a consumer has not come yet is waited for, too.
    ///
    /// # Errors
    /// The partition has failed, or the daemon is gone: then it is not known what arrived.
    pub fn finish(self) -> Result<Finished, Error> {
        block(self.finish_by(Caller::Thread))
    }

    async fn finish_by(mut self, caller: Caller) -> Result<Finished, Error> {
        let Self { shared, waits, .. } = &mut self;
        let (kind, mut unused) = (backpressured(caller), *waits);
        // It lacks something only if a future was dropped in the middle of a record.
        wait(caller, kind, shared, &mut unused, Writer::end).await?;
        let outcome = wait(caller, kind, shared, &mut unused, |writer| {
            Ok(if writer.is_finished()? { Ok(()) } else { Err(Lack::End) })
        });
        match outcome.await {
            // A daemon that drains says that all has arrived, and is gone at once. What it said counts.
            Err(_) if shared.lock().is_finished().unwrap_or(false) => {}
            outcome => outcome?,
        }
        let (lost_consumers, lost_records) = shared.lock().losses();
        Ok(Finished { lost_consumers, lost_records })
    }
}

impl Drop for Partition {
    /// Tells the daemon. Whether the end was good, it knows itself.
    fn drop(&mut self) {
        self.shared.session.tell(RequestBody::ClosePartition { ring: self.shared.ring });
    }
}
