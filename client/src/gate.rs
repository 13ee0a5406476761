//! An input gate: what a consumer reads its records from.

mod item;
mod lent;
mod reader;

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use weir_flow::exchange::{Shape, Strategy};
use weir_flow::ids::ConsumerIndex;
use weir_ipc::attach::message::{self, CreateGate, RequestBody, ResponseBody};
use weir_ipc::gate_port::GatePort;
use weir_ipc::layout::GateLayout;
use weir_ipc::region::ReceiveMapping;
use weir_ipc::signal::WaitView;
use weir_ipc::task_cell::TaskState;

pub use self::item::{Event, Item, Next, RecordRef};
use self::lent::LentRegions;
use self::reader::{Found, Reader, ReaderParts};
use crate::caller::{Caller, block};
use crate::error::Error;
use crate::options::{Debloat, DebloatOptions, GateOptions};
use crate::session::{Session, Wanted, check_segment_bytes, take_descriptors, unexpected};
use crate::times::TaskTimes;

/// An input gate: one consumer's input, with one channel for each producer (one in all for `forward`).
///
/// Records of one channel come in the order in which they were emitted. Between channels the order is that of
/// arrival. A consumer that does not call [`Self::next`] holds the segments that its records lie in; that stops its
/// producers, each by its own credit, and nobody else.
///
/// Dropping a gate before its end tells the producers that their consumer is gone.
pub struct Gate {
    reader: Reader,
    view: WaitView,
    session: Arc<Session>,
    times: Arc<TaskTimes>,
    ring: u32,
    shape: Shape,
    consumer: u32,
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate").field("ring", &self.ring).field("shape", &self.shape).finish_non_exhaustive()
    }
}

/// What a gate is asked for with.
pub(crate) struct GateRequest<'a> {
    pub(crate) exchange: &'a str,
    pub(crate) consumer: u32,
    pub(crate) consumers: u32,
    pub(crate) options: &'a GateOptions,
}

impl GateRequest<'_> {
    fn body(&self, task: u32) -> RequestBody {
        let options = self.options;
        RequestBody::CreateGate(CreateGate {
            task,
            exchange: self.exchange.to_owned(),
            consumer: self.consumer,
            consumers: self.consumers,
            producers: options.producers,
            strategy: options.strategy.map(|strategy| strategy.as_str().to_owned()),
            checksum: options.checksum,
            options: message::GateOptions {
                exclusive: options.exclusive,
                floating: options.floating,
                debloat: debloat(&options.debloat),
            },
        })
    }
}

/// As the daemon is told.
fn debloat(wanted: &Debloat) -> Option<message::DebloatOptions> {
    match wanted {
        Debloat::Configured => None,
        Debloat::Off => Some(message::DebloatOptions::default()),
        Debloat::On(DebloatOptions { target, bytes_min, bytes_max }) => Some(message::DebloatOptions {
            enabled: true,
            // More than 60 s are refused in any case.
            target_ns: target.map(|target| u64::try_from(target.as_nanos()).unwrap_or(u64::MAX)),
            bytes_min: *bytes_min,
            bytes_max: *bytes_max,
        }),
    }
}

impl Gate {
    /// Asks the daemon for a gate.
    pub(crate) async fn create(
        caller: Caller,
        session: Arc<Session>,
        times: Arc<TaskTimes>,
        task: u32,
        request: &GateRequest<'_>,
    ) -> Result<Self, Error> {
        let asked = session.request_within(caller, request.body(task), request.options.timeout);
        let Some((body, descriptors)) = asked.await? else {
            let awaited = format!("the first producer of exchange {}", request.exchange);
            return Err(Error::Timeout { awaited, waited: request.options.timeout.unwrap_or_default() });
        };
        let ResponseBody::Gate {
            ring,
            segments,
            channels,
            producers,
            consumers,
            strategy,
            segment_bytes,
            checksum,
        } = body
        else {
            return Err(unexpected(&body, "a gate"));
        };
        let shape = strategy
            .parse::<Strategy>()
            .map_err(|error| Error::protocol(format!("strategy {strategy:?}: {error}")))
            .map(|strategy| Shape { producers, consumers, strategy, segment_bytes, checksum });
        let created = shape.and_then(|shape| {
            let layout = GateLayout { segments, channels };
            Self::map(Arc::clone(&session), times, ring, shape, layout, request, descriptors)
        });
        if created.is_err() {
            session.tell(RequestBody::CloseGate { ring });
        }
        created
    }

    /// Maps what the daemon made.
    fn map(
        session: Arc<Session>,
        times: Arc<TaskTimes>,
        ring: u32,
        shape: Shape,
        layout: GateLayout,
        request: &GateRequest<'_>,
        descriptors: Vec<OwnedFd>,
    ) -> Result<Self, Error> {
        let GateRequest { consumer, options, .. } = *request;
        let [rings, region, regions] = take_descriptors(descriptors)?;
        let segment_bytes = check_segment_bytes(shape.segment_bytes)?;
        let port = GatePort::attach(rings, &layout, ring, Arc::clone(session.port()))
            .map_err(|cause| Error::os("mapping a gate's rings", cause))?;
        let mapping = ReceiveMapping::map(region, u64::from(layout.segments) * u64::from(segment_bytes))
            .map_err(|cause| Error::os("mapping a receive region", cause))?;
        let view = port.wait_view();
        let reader = Reader::new(ReaderParts {
            port,
            mapping,
            lent: LentRegions::new(regions, shape, consumer, layout.channels),
            channels: layout.channels,
            segment_bytes,
            record_bytes_max: session.node().record_bytes_max,
            checksum: shape.checksum,
            spanning_bytes_max: options.spanning_bytes_max.unwrap_or(session.node().spanning_bytes_max),
        });
        Ok(Self { reader, view, session, times, ring, shape, consumer })
    }

    /// What the exchange turned out to be.
    #[must_use]
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// The producer that writes this channel. The same number but for `forward` and `rescale`, whose consumers read from
    /// some of the producers.
    #[must_use]
    pub fn producer_of(&self, channel: u32) -> u32 {
        self.shape.producer_at(ConsumerIndex(self.consumer), channel).0
    }

    /// Looks whether the daemon that made this gate is still there. Waits for nothing. What was delivered before can
    /// still be read.
    ///
    /// # Errors
    /// [`Error::DaemonGone`], or [`Error::Detached`] with the daemon's reason; from then on always.
    pub fn check(&self) -> Result<(), Error> {
        self.session.check()
    }

    /// The next record or event; waits for it. `None` when every producer has finished and everything was read.
    ///
    /// What was returned before is let go of: its segment goes back, and becomes credit.
    ///
    /// # Errors
    /// [`Error::Failed`] once for each channel that failed; the others can be read on, but a gate with a failed
    /// channel ends with that error again, and never with `None`. Or the daemon is gone, and everything that it had
    /// delivered was read.
    #[inline]
    #[allow(clippy::should_implement_trait)] // An iterator cannot lend its items.
    pub fn next(&mut self) -> Result<Option<Item<'_>>, Error> {
        let mut found = self.reader.find()?;
        if let Found::Nothing = found {
            found = self.wait_blocked()?;
        }
        match self.next_of(found)? {
            Next::Item(item) => Ok(Some(item)),
            Next::Pending | Next::End => Ok(None),
        }
    }

    /// As [`Self::next`], for a future: it blocks no thread. The task counts as idle meanwhile.
    ///
    /// Dropped while it waits, it has taken nothing: the next call gets what would have come. So it can be one of several
    /// that a program waits for at once, again and again. What was returned before it was first polled is let go of all the
    /// same.
    ///
    /// # Errors
    /// As [`Self::next`].
    pub async fn next_async(&mut self) -> Result<Option<Item<'_>>, Error> {
        let mut found = self.reader.find()?;
        if let Found::Nothing = found {
            found = self.wait(Caller::Future).await?;
        }
        match self.next_of(found)? {
            Next::Item(item) => Ok(Some(item)),
            Next::Pending | Next::End => Ok(None),
        }
    }

    /// As [`Self::next`], without waiting.
    ///
    /// # Errors
    /// As [`Self::next`]; but that the daemon is gone is noticed by `next` and [`Self::check`] only.
    pub fn try_next(&mut self) -> Result<Next<'_>, Error> {
        let found = self.reader.find()?;
        if let Found::Nothing = found {
            self.reader.publish();
        }
        self.next_of(found)
    }

    #[inline]
    fn next_of(&self, found: Found) -> Result<Next<'_>, Error> {
        Ok(match found {
            Found::InPlace { channel, is_lent, start, bytes } => {
                let bytes = self.reader.in_place(channel, is_lent, start, bytes)?;
                Next::Item(Item::Record(RecordRef::new(bytes, channel)))
            }
            Found::Assembled { channel } => {
                Next::Item(Item::Record(RecordRef::new(self.reader.assembled(channel), channel)))
            }
            Found::Event { channel, payload, priority } => {
                Next::Item(Item::Event(Event { channel, payload, priority }))
            }
            Found::Nothing => Next::Pending,
            Found::End => Next::End,
        })
    }

    /// Waits until something is found.
    async fn wait(&mut self, caller: Caller) -> Result<Found, Error> {
        let _waiting = self.times.enter(TaskState::Idle);
        loop {
            let announced = Announced::new(&mut self.reader);
            let found = announced.reader.find();
            if !matches!(found, Ok(Found::Nothing)) {
                return found;
            }
            // Also what this last look has given back: the daemon may have nothing to deliver in without it.
            announced.reader.publish();
            self.session.sleep(caller, &Wanted::News(&self.view), None).await?;
        }
    }

    #[cold]
    #[inline(never)]
    fn wait_blocked(&mut self) -> Result<Found, Error> {
        block(self.wait(Caller::Thread))
    }
}

/// The daemon is to ring when it delivers something. Taken back when this is dropped.
struct Announced<'a> {
    reader: &'a mut Reader,
}

impl<'a> Announced<'a> {
    fn new(reader: &'a mut Reader) -> Self {
        reader.port().announce_wait();
        Self { reader }
    }
}

impl Drop for Announced<'_> {
    fn drop(&mut self) {
        self.reader.port().cancel_wait();
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.reader.publish();
        self.session.tell(RequestBody::CloseGate { ring: self.ring });
    }
}
