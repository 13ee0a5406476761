//! A process' connection to its daemon, and the tasks in it.

use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use weir_flow::exchange::{Name, Strategy};
use weir_flow::ids::Time;
use weir_ipc::attach::message::{RequestBody, ResponseBody};
use weir_ipc::task_cell::TaskState;

use crate::caller::{Caller, Turn, block, work_that_blocks};
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
    /// Attaches to the daemon with this run directory. Waits up to 5 s for its answer ([`ConnectOptions::timeout`]).
    ///
    /// # Errors
    /// [`Error::DaemonUnreachable`] if none answers; [`Error::Detached`] with the daemon's reason if it lets nobody
    /// in, because it is stopping for instance; [`Error::Refused`] if it does not want this process;
    /// [`Error::Protocol`] if it speaks another version.
    pub fn connect(run_dir: impl AsRef<Path>) -> Result<Self, Error> {
        Self::connect_with(ConnectOptions::new(run_dir))
    }

    /// As [`Self::connect`], with options.
    ///
    /// # Errors
    /// As [`Self::connect`].
    pub fn connect_with(options: ConnectOptions) -> Result<Self, Error> {
        block(Self::connect_by(Caller::Thread, options))
    }

    /// As [`Self::connect`], for a future. Connecting blocks, so a short-lived thread does it.
    ///
    /// Dropped while it waits, it leaves nothing: an attachment that comes about all the same is let go of.
    ///
    /// # Errors
    /// As [`Self::connect`]; [`Error::Os`] if there is no room for a thread.
    pub async fn connect_async(run_dir: impl AsRef<Path>) -> Result<Self, Error> {
        Self::connect_by(Caller::Future, ConnectOptions::new(run_dir)).await
    }

    /// As [`Self::connect_async`], with options.
    ///
    /// # Errors
    /// As [`Self::connect_async`].
    pub async fn connect_with_async(options: ConnectOptions) -> Result<Self, Error> {
        Self::connect_by(Caller::Future, options).await
    }

    async fn connect_by(caller: Caller, options: ConnectOptions) -> Result<Self, Error> {
        Ok(Self { connection: Arc::new(Connection::connect(caller, options).await?) })
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

    /// Makes a task: the unit whose times are measured. It is busy from now on, except while one of its handles waits. It
    /// is there until the last handle of it is gone, its partitions and gates included. A process may have 64 at a time.
    ///
    /// The name is 1 to 64 of `A-Z a-z 0-9 . _ -`. Tasks that do the same work, in whatever process, have the same one:
    /// `weir plan` shows them as one. Waits for the daemon's answer, up to [`ConnectOptions::request_timeout`]. If the daemon
    /// has ended since, this attaches anew.
    ///
    /// # Errors
    /// [`Error::Name`]; the daemon refuses, ends meanwhile, or does not answer ([`Error::Unanswered`]); or
    /// [`Error::NotReattached`].
    pub fn task(&self, name: &str) -> Result<Task, Error> {
        block(self.task_by(Caller::Thread, name))
    }

    /// As [`Self::task`], for a future. Dropped while it waits, it leaves no task behind.
    ///
    /// # Errors
    /// As [`Self::task`].
    pub async fn task_async(&self, name: &str) -> Result<Task, Error> {
        self.task_by(Caller::Future, name).await
    }

    async fn task_by(&self, caller: Caller, name: &str) -> Result<Task, Error> {
        check_name(name)?;
        let session = self.connection.attached(caller).await?;
        let life = Arc::new(Life::begin(caller, session, name).await?);
        let (connection, name) = (Arc::clone(&self.connection), Arc::from(name));
        Ok(Task { connection, name, life: Arc::new(Mutex::new(life)), turn: Turn::default() })
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
    /// Making the task anew, one at a time.
    turn: Turn,
}

/// A task as one attachment knows it.
struct Life {
    session: Arc<Session>,
    times: Arc<TaskTimes>,
    number: u32,
}

impl Life {
    /// Makes the task over this attachment.
    async fn begin(caller: Caller, session: Arc<Session>, name: &str) -> Result<Self, Error> {
        let (body, _) = session.request(caller, RequestBody::CreateTask { name: name.to_owned() }).await?;
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
    async fn attached(&self, caller: Caller) -> Result<Arc<Life>, Error> {
        let session = self.connection.attached(caller).await?;
        let known = self.life();
        if Arc::ptr_eq(&known.session, &session) {
            return Ok(known);
        }
        // Those that ask at the same time make it once. It happens once for each daemon: a future has it done on a thread,
        // so that no other waits for it to be polled.
        let (task, turn) = (self.clone(), self.turn.take(caller, Time(u64::MAX)).await);
        work_that_blocks(caller, "weir-attach", move || {
            let _turn = turn;
            let known = task.life();
            if Arc::ptr_eq(&known.session, &session) {
                return Ok(known);
            }
            let life = Arc::new(block(Life::begin(Caller::Thread, session, &task.name))?);
            let mut known = task.life.lock().unwrap_or_else(PoisonError::into_inner);
            let before = std::mem::replace(&mut *known, Arc::clone(&life));
            drop(known);
            drop(before);
            Ok(life)
        })
        .await
    }

    fn life(&self) -> Arc<Life> {
        Arc::clone(&self.life.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Becomes producer `producer` (from 0) of `producers` (1 to 4,096) of an exchange with so many consumers (1 to 4,096).
    /// The exchange has a name of 1 to 64 of `A-Z a-z 0-9 . _ -`, under which it is known on all nodes.
    ///
    /// Waits for the daemon's answer, up to [`ConnectOptions::request_timeout`], and for no consumer. If the daemon has
    /// ended since the last call, this attaches anew; the producer is then a new incarnation, whose records are no
    /// continuation of those before.
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
        let (options, selector) = (&options, None);
        let request =
            PartitionRequest { exchange, producer, producers, consumers, strategy, options, selector };
        block(self.partition_by(Caller::Thread, request))
    }

    /// As [`Self::partition`], for a future. Dropped while it waits, it leaves no partition behind: the daemon ends what it
    /// may have made before anything that is asked later.
    ///
    /// # Errors
    /// As [`Self::partition`].
    pub async fn partition_async(
        &self,
        exchange: &str,
        producer: u32,
        producers: u32,
        consumers: u32,
        strategy: Strategy,
        options: PartitionOptions,
    ) -> Result<Partition, Error> {
        let (options, selector) = (&options, None);
        let request =
            PartitionRequest { exchange, producer, producers, consumers, strategy, options, selector };
        self.partition_by(Caller::Future, request).await
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
        let (options, strategy) = (&options, Strategy::Custom);
        let selector: Option<Box<dyn ChannelSelector>> = Some(Box::new(selector));
        let request =
            PartitionRequest { exchange, producer, producers, consumers, strategy, options, selector };
        block(self.partition_by(Caller::Thread, request))
    }

    /// As [`Self::partition_with_selector`], for a future. Dropped while it waits, it leaves no partition behind.
    ///
    /// # Errors
    /// As [`Self::partition`].
    pub async fn partition_with_selector_async(
        &self,
        exchange: &str,
        producer: u32,
        producers: u32,
        consumers: u32,
        selector: impl ChannelSelector + 'static,
        options: PartitionOptions,
    ) -> Result<Partition, Error> {
        let (options, strategy) = (&options, Strategy::Custom);
        let selector: Option<Box<dyn ChannelSelector>> = Some(Box::new(selector));
        let request =
            PartitionRequest { exchange, producer, producers, consumers, strategy, options, selector };
        self.partition_by(Caller::Future, request).await
    }

    async fn partition_by(&self, caller: Caller, request: PartitionRequest<'_>) -> Result<Partition, Error> {
        check_name(request.exchange)?;
        let life = self.attached(caller).await?;
        let (session, times) = (Arc::clone(&life.session), Arc::clone(&life.times));
        Partition::create(caller, session, times, life.number, request).await
    }

    /// Becomes consumer `consumer` (from 0) of `consumers` (1 to 4,096) of an exchange. Waits for its first producer, for as
    /// long as [`GateOptions::timeout`] says, unless the options say all that it would be asked: `producers`, `strategy`
    /// and `checksum`. If the daemon has ended since the last call, this attaches anew; if it ends while this waits, that is
    /// an error, and the caller asks again.
    ///
    /// Each life of a producer hands its data for a consumer out once. A second gate of a consumer that has had it, or whose
    /// first gate is on another node, is made all the same: its channel to that producer then fails with the code
    /// [`DuplicateConsumer`](crate::FailureCode::DuplicateConsumer), which [`Gate::next`] says.
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
        let request = GateRequest { exchange, consumer, consumers, options: &options };
        block(self.gate_by(Caller::Thread, &request))
    }

    /// As [`Self::gate`], for a future. [`GateOptions::timeout`] needs no timer of a runtime. Dropped while it waits, it
    /// leaves no gate behind: the place is free for whoever asks next.
    ///
    /// # Errors
    /// As [`Self::gate`].
    pub async fn gate_async(
        &self,
        exchange: &str,
        consumer: u32,
        consumers: u32,
        options: GateOptions,
    ) -> Result<Gate, Error> {
        let request = GateRequest { exchange, consumer, consumers, options: &options };
        self.gate_by(Caller::Future, &request).await
    }

    async fn gate_by(&self, caller: Caller, request: &GateRequest<'_>) -> Result<Gate, Error> {
        check_name(request.exchange)?;
        let life = self.attached(caller).await?;
        let (session, times) = (Arc::clone(&life.session), Arc::clone(&life.times));
        Gate::create(caller, session, times, life.number, request).await
    }
}

fn check_name(name: &str) -> Result<(), Error> {
    match name.parse::<Name>() {
        Ok(_) => Ok(()),
        Err(cause) => Err(Error::Name { found: name.to_owned(), cause }),
    }
}
