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
use crate::partition::{Partition, PartitionRequest};
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
    /// waits. If the daemon has ended since, this attaches anew. A process may make 64 tasks with one daemon, those that
    /// were dropped included: make one per stage of the pipeline, and use it again.
    ///
    /// # Errors
    /// [`Error::Name`]; the daemon refuses or ends meanwhile; or [`Error::NotReattached`].
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
        Ok(Self { session, times: Arc::new(TaskTimes::new(cell)), number })
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
    /// The daemon refuses (a number out of range, the place taken, no memory) or ends meanwhile; an option cannot
    /// work; or [`Error::NotReattached`].
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
        let (task, options) = (life.number, &options);
        let request = PartitionRequest { task, exchange, producer, producers, consumers, strategy, options };
        Partition::create(Arc::clone(&life.session), Arc::clone(&life.times), &request)
    }

    /// Becomes consumer `consumer` of `consumers` of an exchange. Waits for its first producer unless the options
    /// say how many there are. If the daemon has ended since the last call, this attaches anew; if it ends while this
    /// waits, that is an error, and the caller asks again.
    ///
    /// # Errors
    /// The daemon refuses (a number out of range, the place taken, no memory, a shape that differs from the
    /// producers') or ends meanwhile; or [`Error::NotReattached`].
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
