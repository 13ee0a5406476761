//! A process' connection to its daemon, and the tasks in it.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use weir_flow::exchange::{Name, Strategy};
use weir_ipc::attach::message::{RequestBody, ResponseBody};
use weir_ipc::task_cell::TaskState;

use crate::clock;
use crate::error::Error;
use crate::gate::{Gate, GateRequest};
use crate::options::{ConnectOptions, GateOptions, PartitionOptions};
use crate::partition::{Partition, PartitionRequest};
use crate::session::{Session, unexpected};
use crate::times::TaskTimes;

/// An attachment to the daemon of this machine. Clones are the same attachment; it ends when the last of them and
/// every handle made with them is gone.
#[derive(Clone)]
pub struct Client {
    session: Arc<Session>,
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
    /// [`Error::DaemonUnreachable`] if none answers; [`Error::Refused`] if it does not want this process.
    pub fn connect(run_dir: impl AsRef<Path>) -> Result<Self, Error> {
        Self::connect_with(ConnectOptions::new(run_dir))
    }

    /// Attaches to a daemon.
    ///
    /// # Errors
    /// As [`Self::connect`].
    pub fn connect_with(options: ConnectOptions) -> Result<Self, Error> {
        Ok(Self { session: Arc::new(Session::connect(&options)?) })
    }

    /// Name of the daemon's node.
    #[must_use]
    pub fn node(&self) -> &str {
        &self.session.node().name
    }

    /// Longest record that can be emitted, in bytes.
    #[must_use]
    pub fn record_bytes_max(&self) -> u32 {
        self.session.node().record_bytes_max
    }

    /// Looks whether the daemon is still there and keeps this attachment. Waits for nothing, so that a program that
    /// waits for something else, its input for example, can ask now and then. Every call that waits notices by itself.
    ///
    /// # Errors
    /// [`Error::DaemonGone`], or [`Error::Detached`] with the daemon's reason; from then on always.
    pub fn check(&self) -> Result<(), Error> {
        self.session.check()
    }

    /// Makes a task: the unit whose times are measured. It is busy from now on, except while one of its handles
    /// waits.
    ///
    /// # Errors
    /// [`Error::Name`], or the daemon refuses or is gone.
    pub fn task(&self, name: &str) -> Result<Task, Error> {
        check_name(name)?;
        let (body, _) = self.session.request(RequestBody::CreateTask { name: name.to_owned() })?;
        let ResponseBody::Task { cell: number } = body else {
            return Err(unexpected(&body, "a task"));
        };
        let cell = self.session.cells().start(number, TaskState::Busy, clock::now().0);
        let cell = cell.ok_or_else(|| Error::protocol(format!("there is no task cell {number}")))?;
        Ok(Task { session: Arc::clone(&self.session), times: Arc::new(TaskTimes::new(cell)), number })
    }
}

/// A task: what reads from gates, works, and writes to partitions.
///
/// Its handles may be used on several threads, each handle by one at a time.
#[derive(Clone)]
pub struct Task {
    session: Arc<Session>,
    times: Arc<TaskTimes>,
    number: u32,
}

impl fmt::Debug for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task").field("number", &self.number).finish_non_exhaustive()
    }
}

impl Task {
    /// As [`Client::check`].
    ///
    /// # Errors
    /// As [`Client::check`].
    pub fn check(&self) -> Result<(), Error> {
        self.session.check()
    }

    /// Becomes producer `producer` of `producers` of an exchange with so many consumers.
    ///
    /// # Errors
    /// The daemon refuses (a number out of range, the place taken, no memory) or is gone; an option cannot work.
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
        let (task, options) = (self.number, &options);
        let request = PartitionRequest { task, exchange, producer, producers, consumers, strategy, options };
        Partition::create(Arc::clone(&self.session), Arc::clone(&self.times), &request)
    }

    /// Becomes consumer `consumer` of `consumers` of an exchange. Waits for its first producer unless the options
    /// say how many there are.
    ///
    /// # Errors
    /// The daemon refuses (a number out of range, the place taken, no memory, a shape that differs from the
    /// producers') or is gone.
    pub fn gate(
        &self,
        exchange: &str,
        consumer: u32,
        consumers: u32,
        options: GateOptions,
    ) -> Result<Gate, Error> {
        check_name(exchange)?;
        let request = GateRequest { task: self.number, exchange, consumer, consumers, options: &options };
        Gate::create(Arc::clone(&self.session), Arc::clone(&self.times), &request)
    }
}

fn check_name(name: &str) -> Result<(), Error> {
    match name.parse::<Name>() {
        Ok(_) => Ok(()),
        Err(cause) => Err(Error::Name { found: name.to_owned(), cause }),
    }
}
