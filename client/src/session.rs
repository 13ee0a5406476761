//! One attachment as its threads share it: the attach socket, the wake-up pipe, and who of them waits for what.
//!
//! # Waiting
//!
//! There is one pipe for all ports of the attachment and one socket for all answers. Of those that wait, one leads: it
//! polls both, and wakes those others whose wait is over. The others sleep until they are woken: threads are parked,
//! futures are pending. When the leader's own wait is over, it hands the lead to another. So a process with one thread
//! pays no second switch, and a process with many wakes only those that have something to do. Only a thread can lead. While
//! nobody but futures waits, it is one of the attachment's own ([`futures`]).
//!
//! **No wake-up is lost.** Whoever waits announces it in shared memory and looks at the port once more before it
//! comes here. The daemon, when it has news, takes the announcement back and then writes the pipe. The leader
//! empties the pipe and then looks at every announcement: those that were taken back are over. Who comes here later
//! looks at its own announcement first, under the same lock. Whatever the order, one of the two sees it.
//!
//! **The daemon's death** is the end of the socket or of the pipe. It ends every wait with an error, for good: an
//! attachment that is over stays over. The next one is made by [`crate::connection`].
//!
//! # A daemon that stands still
//!
//! It may be stopped, or have no time, and go on later with what it was asked. A request that it does not answer in time
//! is taken back: the daemon ends what it made of it as soon as it comes to it, before anything that is asked later, and
//! the attachment goes on. Only if the daemon does not even take the message that gives something back is the attachment
//! over: the daemon finds its end when it goes on, and ends everything of it.

mod asking;
mod futures;
mod waits;

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use weir_flow::ids::Time;
use weir_flow::limits::{SEGMENT_SIZE_NEEDED, is_segment_size};
use weir_ipc::attach::ATTACH_VERSION;
use weir_ipc::attach::message::{Request, RequestBody, Response, ResponseBody};
use weir_ipc::attach::socket::{self, AttachError};
use weir_ipc::session::{SessionFds, SessionPort};
use weir_ipc::task_cell::TaskCells;

use self::futures::Sleep;
use self::waits::Waits;
pub(crate) use self::waits::Wanted;
use crate::caller::Caller;
use crate::clock;
use crate::error::Error;
use crate::options::ConnectOptions;

/// Name of the attach socket in the run directory.
const ATTACH_SOCKET: &str = "attach.sock";

/// Tries to send a message, each for its part of the time: a process that stood still itself during one has another.
const SEND_TRIES: u32 = 2;

/// Least event window that works: one place is the end's, and an event needs another.
const EVENT_WINDOW_MIN: u32 = 2;

/// What the daemon said about itself.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    /// Its name.
    pub(crate) name: String,
    /// Longest record, in bytes.
    pub(crate) record_bytes_max: u32,
    /// Longest event, in bytes.
    pub(crate) event_bytes_max: u32,
    /// Events of one channel that may be on their way, the end of data among them.
    pub(crate) event_window: u32,
    /// Bytes that a gate may hold in records that span segments.
    pub(crate) spanning_bytes_max: u64,
}

/// An answer with the descriptors beside it.
pub(crate) type Answer = (ResponseBody, Vec<OwnedFd>);

/// One attachment.
pub(crate) struct Session {
    waits: Arc<Waits>,
    port: Arc<SessionPort>,
    cells: TaskCells,
    node: Node,
    /// How long the daemon may take to take a message.
    send_timeout: Duration,
    /// How long the daemon may take to answer a request.
    request_timeout: Duration,
    next_id: AtomicU64,
}

impl Session {
    /// Attaches to the daemon: one attempt, of at most `timeout`.
    pub(crate) fn connect(options: &ConnectOptions, timeout: Duration) -> Result<Self, Error> {
        let path = options.run_dir.join(ATTACH_SOCKET);
        let unreachable = |cause| Error::DaemonUnreachable { path: path.clone(), cause: io_error(cause) };
        let connection = open(&path, timeout).map_err(unreachable)?;
        let process_name = options.process_name.clone().unwrap_or_else(process_name);
        let hello = RequestBody::Hello { version: ATTACH_VERSION, process_name };
        match socket::send_request(&connection, &Request { id: 1, body: hello }) {
            // A daemon that wants nobody says why and closes, maybe before it was asked.
            Ok(()) | Err(AttachError::Closed) => {}
            Err(cause) => return Err(unreachable(cause)),
        }
        let deadline = after(timeout);
        while !poll(&mut [PollFd::new(&connection, PollFlags::IN)], Some(deadline))? {
            if deadline <= clock::now() {
                return Err(unreachable(AttachError::WouldBlock));
            }
        }
        let (response, descriptors) = receive(&connection).map_err(unreachable)?;
        let (node, fds, cells) = welcome(response.body, descriptors)?;
        let port = SessionPort::attach(fds).map_err(|cause| Error::os("mapping the session page", cause))?;
        let cells = TaskCells::attach(cells).map_err(|cause| Error::os("mapping the task cells", cause))?;
        // An attempt to attach may have had less time than later messages have.
        bound_sends(&connection, options.timeout).map_err(unreachable)?;
        let (port, send_timeout) = (Arc::new(port), options.timeout);
        let waits = Arc::new(Waits::new(path, connection, Arc::clone(&port), send_timeout)?);
        let (request_timeout, next_id) = (options.request_timeout, AtomicU64::new(2));
        Ok(Self { waits, port, cells, node, send_timeout, request_timeout, next_id })
    }

    /// What the daemon said about itself.
    pub(crate) fn node(&self) -> &Node {
        &self.node
    }

    /// The shared memory of the attachment.
    pub(crate) fn port(&self) -> &Arc<SessionPort> {
        &self.port
    }

    /// The cells of the attachment's tasks.
    pub(crate) fn cells(&self) -> &TaskCells {
        &self.cells
    }

    /// Sleeps until what is wanted is there or `deadline` has passed. An announced wait must have looked at its port
    /// again before. A future that is dropped meanwhile sleeps no more.
    pub(crate) async fn sleep(
        &self,
        caller: Caller,
        wanted: &Wanted<'_>,
        deadline: Option<Time>,
    ) -> Result<(), Error> {
        match caller {
            Caller::Thread => self.waits.sleep(wanted, deadline),
            Caller::Future => Sleep::new(&self.waits, *wanted, deadline).await,
        }
    }

    /// Looks whether the attachment still holds, without waiting for anything.
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.waits.check()
    }

    /// The error for a wait that took too long: nothing was heard of the daemon.
    pub(crate) fn unanswered(&self) -> Error {
        self.waits.unanswered()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.waits.close();
    }
}

/// Opens a connection to the daemon's socket. No call on it waits longer than `timeout` for a daemon that stands
/// still.
fn open(path: &Path, timeout: Duration) -> Result<OwnedFd, AttachError> {
    let refused = |call| move |errno| AttachError::Os { call, errno };
    let address = SocketAddrUnix::new(path).map_err(refused("connect"))?;
    let flags = SocketFlags::CLOEXEC;
    let connection = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .map_err(refused("socket"))?;
    bound_sends(&connection, timeout)?;
    loop {
        match rustix::net::connect(&connection, &address) {
            Ok(()) => return Ok(connection),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Err(AttachError::WouldBlock),
            Err(errno) => return Err(AttachError::Os { call: "connect", errno }),
        }
    }
}

/// Bounds the time that the tries to send a message wait until the daemon takes it.
fn bound_sends(connection: &OwnedFd, timeout: Duration) -> Result<(), AttachError> {
    // No time at all would mean: for ever.
    let timeout = (timeout / SEND_TRIES).max(Duration::from_millis(1));
    set_socket_timeout(connection, Timeout::Send, Some(timeout))
        .map_err(|errno| AttachError::Os { call: "setsockopt", errno })
}

fn after(duration: Duration) -> Time {
    clock::now().after_ns(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
}

/// Takes one message off the socket.
fn receive(connection: &OwnedFd) -> Result<(Response, Vec<OwnedFd>), AttachError> {
    match socket::receive_response(connection) {
        // The kernel says "reset" once, ahead of what is still to be read, if the daemon closed before it had read
        // everything itself. At a plain end it says so again.
        Err(AttachError::Closed) => socket::receive_response(connection),
        received => received,
    }
}

/// Waits until a descriptor has news. `false`: the deadline came first, or a signal.
fn poll(fds: &mut [PollFd<'_>], deadline: Option<Time>) -> Result<bool, Error> {
    let timeout = deadline.map(|deadline| {
        let rest = Duration::from_nanos(deadline.since_ns(clock::now()));
        Timespec {
            tv_sec: i64::try_from(rest.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(rest.subsec_nanos()),
        }
    });
    match rustix::event::poll(fds, timeout.as_ref()) {
        Ok(count) => Ok(count > 0),
        Err(Errno::INTR) => Ok(false),
        Err(errno) => Err(Error::os("waiting for the daemon", errno)),
    }
}

/// What the answer to the first request says.
fn welcome(body: ResponseBody, descriptors: Vec<OwnedFd>) -> Result<(Node, SessionFds, OwnedFd), Error> {
    match body {
        ResponseBody::Welcome {
            version,
            node: name,
            segment_bytes: _,
            record_bytes_max,
            event_bytes_max,
            event_window,
            spanning_bytes_max,
        } => {
            if version != ATTACH_VERSION {
                let text = format!("the daemon attaches with version {version}; needed: {ATTACH_VERSION}");
                return Err(Error::Protocol { text });
            }
            if event_window < EVENT_WINDOW_MIN {
                let text = format!("the event window is {event_window}; needed: at least {EVENT_WINDOW_MIN}");
                return Err(Error::Protocol { text });
            }
            let [page, doorbell, wakeup, cells] = take_descriptors(descriptors)?;
            let node = Node { name, record_bytes_max, event_bytes_max, event_window, spanning_bytes_max };
            Ok((node, SessionFds { page, doorbell, wakeup }, cells))
        }
        ResponseBody::Refused { code, text } => Err(Error::Refused { code, text }),
        ResponseBody::Detached { code, text } => Err(Error::Detached { code, text }),
        other => Err(unexpected(&other, "welcome")),
    }
}

/// A segment size that can be.
pub(crate) fn check_segment_bytes(found: u32) -> Result<u32, Error> {
    if is_segment_size(found) {
        return Ok(found);
    }
    Err(Error::protocol(format!("segments have {found} bytes; needed: {SEGMENT_SIZE_NEEDED}")))
}

/// Exactly `N` descriptors.
pub(crate) fn take_descriptors<const N: usize>(descriptors: Vec<OwnedFd>) -> Result<[OwnedFd; N], Error> {
    descriptors.try_into().map_err(|found: Vec<OwnedFd>| {
        Error::protocol(format!("an answer came with {} descriptors; needed: {N}", found.len()))
    })
}

/// The error for an answer that is not one to the question.
pub(crate) fn unexpected(found: &ResponseBody, needed: &str) -> Error {
    Error::protocol(format!("the daemon answered {found:?}; needed: {needed}"))
}

fn io_error(cause: AttachError) -> std::io::Error {
    match cause {
        AttachError::Os { errno, .. } => errno.into(),
        AttachError::WouldBlock => std::io::Error::from(std::io::ErrorKind::TimedOut),
        other => std::io::Error::other(other.to_string()),
    }
}

/// The command name of this process.
fn process_name() -> String {
    let name = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
    let name = name.trim();
    if name.is_empty() { "unnamed".into() } else { name.into() }
}
