//! A process' connection to its daemon, and the tasks in it.

use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use weir_flow::exchange::{Name, Strategy};
use weir_ipc::attach::message::{RequestBody, ResponseBody};
use weir_ipc::task_cell::TaskState;

use crate::clock;
use crate::connection::Connection;
use crate::error::Error;
use crate::gate::{Gate, GateRequest};
use crate::options::{ConnectOptions, GateOptions, PartitionOptions};
use crate::partition::{ChannelSelector, Partition, PartitionRequest};
use crate::session::{Session, unexpected};
use crate::times::TaskTimes;

/// A process' attachment to the daemon of this machine. Clones are the same attachment; it ends when the last of them
/// and every handle made with them is gone.
///
/// A client outlives its daemon. When the daemon ends, killed or in order, everything made until then ends with a
/// typed error; the next call that makes a task, a partition or a gate attaches to the daemon that then runs on the
/// run directory, and waits for it up to [`ConnectOptions::reattach_timeout`]. See the crate's page for what is
/// promised.
#[derive(Clone)]
pub struct Client {
    connection: Arc<Connection>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("node", &self.node()).finish_non_exhaustive()
    }
}

impl Client {
    /// Attaches to the daemon with this run directory.
    ///
    /// # Errors
    /// [`Error::DaemonUnreachable`] if none answers; [`Error::Detached`] with the daemon's reason if it lets nobody
    /// in, because it is stopping for instance; [`Error::Refused`] if it does not want this process.
    pub fn connect(run_dir: impl AsRef<Path>) -> Result<Self, Error> {
        Self::connect_with(ConnectOptions::new(run_dir))
    }

    /// Attaches to a daemon.
    ///
    /// # Errors
    /// As [`Self::connect`].
    pub fn connect_with(options: ConnectOptions) -> Result<Self, Error> {
        Ok(Self { connection: Arc::new(Connection::connect(options)?) })
    }

    /// Name of the node of the daemon that was attached to last.
    #[must_use]
    pub fn node(&self) -> String {
        self.connection.current().node().name.clone()
    }

    /// Longest record that can be emitted, in bytes, as the daemon that was attached to last says.
    #[must_use]
    pub fn record_bytes_max(&self) -> u32 {
        self.connection.current().node().record_bytes_max
    }

    /// Looks whether the daemon that was attached to last is still there and keeps the attachment. Waits for nothing and
    /// attaches to nothing, so that a program that waits for something else, its input for example, can ask now and
    /// then. Every call that waits notices by itself. For a handle that may be of an earlier attachment:
    /// [`Partition::check`], [`Gate::check`].
    ///
    /// # Errors
    /// [`Error::DaemonGone`], or [`Error::Detached`] with the daemon's reason; from then on until a new attachment is
    /// made.
    pub fn check(&self) -> Result<(), Error> {
        self.connection.current().check()
    }

    /// Makes a task: the unit whose times are measured. It is busy from now on, except while one of its handles
    /// waits. If the daemon has ended since, this attaches anew. A process may have 64 tasks at a time with one daemon;
    /// a task is there until the last handle of it is gone, its partitions and gates included.
    ///
    /// # Errors
    /// [`Error::Name`]; the daemon refuses, ends meanwhile, or does not answer ([`Error::Unanswered`]); or
    /// [`Error::NotReattached`].
    pub fn task(&self, name: &str) -> Result<Task, Error> {
        check_name(name)?;
        let life = Arc::new(Life::begin(self.connection.attached()?, name)?);
        let (connection, name) = (Arc::clone(&self.connection), Arc::from(name));
        Ok(Task { connection, name, life: Arc::new(Mutex::new(life)) })
    }
}

/// A task: what reads from gates, works, and writes to partitions.
///
/// Its handles may be used on several threads, each handle by one at a time. A task outlives its daemon as the
/// [`Client`] does; its times begin anew with each attachment.
#[derive(Clone)]
pub struct Task {
    connection: Arc<Connection>,
    name: Arc<str>,
    life: Arc<Mutex<Arc<Life>>>,
}

/// A task as one attachment knows it.
struct Life {
    session: Arc<Session>,
    times: Arc<TaskTimes>,
    number: u32,
}

impl Life {
    /// Makes the task over this attachment.
    fn begin(session: Arc<Session>, name: &str) -> Result<Self, Error> {
        let (body, _) = session.request(RequestBody::CreateTask { name: name.to_owned() })?;
        let ResponseBody::Task { cell: number } = body else {
            return Err(unexpected(&body, "a task"));
        };
        let cell = session.cells().start(number, TaskState::Busy, clock::now().0);
        let cell = cell.ok_or_else(|| Error::protocol(format!("there is no task cell {number}")))?;
        let times = Arc::new(TaskTimes::new(cell, Some((Arc::clone(&session), number))));
        Ok(Self { session, times, number })
    }
}

impl fmt::Debug for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Task {
    /// As [`Client::check`].
    ///
    /// # Errors
    /// As [`Client::check`].
    pub fn check(&self) -> Result<(), Error> {
        self.connection.current().check()
    }

    /// The task at the daemon that runs now: made there first, if that is not the one that knew it last.
    fn attached(&self) -> Result<Arc<Life>, Error> {
        let session = self.connection.attached()?;
        // Threads that ask at the same time make it once.
        let mut life = self.life.lock().unwrap_or_else(PoisonError::into_inner);
        if !Arc::ptr_eq(&life.session, &session) {
            *life = Arc::new(Life::begin(session, &self.name)?);
        }
        Ok(Arc::clone(&life))
    }

    /// Becomes producer `producer` of `producers` of an exchange with so many consumers. If the daemon has ended since
    /// the last call, this attaches anew; the producer is then a new incarnation, whose records are no continuation
    /// of those before.
    ///
    /// # Errors
    /// The daemon refuses (a number out of range, the place taken, no memory), ends meanwhile, or does not answer
    /// ([`Error::Unanswered`]); an option cannot work; or [`Error::NotReattached`]. With `forward`, unequal numbers of
    /// producers and consumers are refused with the code `mismatch`; the text names both and the strategies that connect
    /// any numbers.
    pub fn partition(
        &self,
        exchange: &str,
        producer: u32,
        producers: u32,
        consumers: u32,
        strategy: Strategy,
        options: PartitionOptions,
    ) -> Result<Partition, Error> {
        check_name(exchange)?;
        let life = self.attached()?;
        let (task, options, selector) = (life.number, &options, None);
        let request =
            PartitionRequest { task, exchange, producer, producers, consumers, strategy, options, selector };
        Partition::create(Arc::clone(&life.session), Arc::clone(&life.times), request)
    }

    /// As [`Self::partition`], with a selector of the application: it says which consumer gets a record. The ship
    /// strategy of the exchange is then [`Strategy::Custom`], for all its producers; each has a selector of its own.
    ///
    /// # Errors
    /// As [`Self::partition`].
    pub fn partition_with_selector(
        &self,
        exchange: &str,
        producer: u32,
        producers: u32,
        consumers: u32,
        selector: impl ChannelSelector + 'static,
        options: PartitionOptions,
    ) -> Result<Partition, Error> {
        check_name(exchange)?;
        let life = self.attached()?;
        let (task, options, strategy) = (life.number, &options, Strategy::Custom);
        let selector: Option<Box<dyn ChannelSelector>> = Some(Box::new(selector));
        let request =
            PartitionRequest { task, exchange, producer, producers, consumers, strategy, options, selector };
        Partition::create(Arc::clone(&life.session), Arc::clone(&life.times), request)
    }

    /// Becomes consumer `consumer` of `consumers` of an exchange. Waits for its first producer, for as long as
    /// [`GateOptions::timeout`] says, unless the options say all that it would be asked. If the daemon has ended since
    /// the last call, this attaches anew; if it ends while this waits, that is an error, and the caller asks again.
    ///
    /// # Errors
    /// [`Error::Timeout`] if no producer came: the place is free again then. The daemon refuses (a number out of range,
    /// the place taken, no memory, a shape that differs from the producers'), ends meanwhile, or does not answer
    /// ([`Error::Unanswered`]); or [`Error::NotReattached`].
    pub fn gate(
        &self,
        exchange: &str,
        consumer: u32,
        consumers: u32,
        options: GateOptions,
    ) -> Result<Gate, Error> {
        check_name(exchange)?;
        let life = self.attached()?;
        let request = GateRequest { task: life.number, exchange, consumer, consumers, options: &options };
        Gate::create(Arc::clone(&life.session), Arc::clone(&life.times), &request)
    }
}

fn check_name(name: &str) -> Result<(), Error> {
    match name.parse::<Name>() {
        Ok(_) => Ok(()),
        Err(cause) => Err(Error::Name { found: name.to_owned(), cause }),
    }
}
