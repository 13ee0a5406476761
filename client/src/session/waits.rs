//! Who waits for what of an attachment, and who of them leads. See [the attachment](super) for the scheme.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::thread::{self, Thread};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags};
use rustix::net::Shutdown;
use weir_flow::ids::Time;
use weir_ipc::attach::message::{Response, ResponseBody};
use weir_ipc::attach::socket::AttachError;
use weir_ipc::session::{SessionPort, Wait};
use weir_ipc::signal::WaitView;

use super::{Answer, io_error, poll, receive};
use crate::clock;
use crate::error::Error;

/// How long a daemon that closed the pipe may take to say why on the socket.
const REASON_NS_MAX: u64 = 1_000_000_000;

/// Why the attachment is over.
#[derive(Clone, Debug)]
pub(super) enum Ended {
    Gone,
    Detached {
        code: String,
        text: String,
    },
    /// It takes no messages.
    Deaf,
    Protocol(String),
}

/// What is waited for.
#[derive(Clone, Copy)]
pub(crate) enum Wanted<'a> {
    /// The daemon takes this announcement back.
    News(&'a WaitView),
    /// This request is answered.
    Answer(u64),
    /// Nothing but the time.
    Time,
}

/// The same, as the leader looks at it.
pub(super) enum Watched {
    News(WaitView),
    Answer(u64),
    Time,
}

impl Wanted<'_> {
    pub(super) fn watched(&self) -> Watched {
        match *self {
            Self::News(view) => Watched::News(view.clone()),
            Self::Answer(id) => Watched::Answer(id),
            Self::Time => Watched::Time,
        }
    }
}

impl Watched {
    fn wanted(&self) -> Wanted<'_> {
        match self {
            Self::News(view) => Wanted::News(view),
            Self::Answer(id) => Wanted::Answer(*id),
            Self::Time => Wanted::Time,
        }
    }
}

/// Who is to be woken.
pub(super) enum Who {
    /// It keeps its own time.
    Thread(Thread),
    /// With the time at which it is to be woken in any case. None: it was woken, and was not polled since.
    Future(Option<Waker>, Option<Time>),
}

pub(super) struct Sleeper {
    pub(super) key: u64,
    pub(super) who: Who,
    watched: Watched,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) has_leader: bool,
    /// When the leader looks at the time, at the latest.
    pub(super) leads_until: Option<Time>,
    next_key: u64,
    pub(super) sleepers: Vec<Sleeper>,
    /// Requests whose answer somebody waits for, and the answer once it is there.
    pub(super) answers: BTreeMap<u64, Option<Answer>>,
    pub(super) ended: Option<Ended>,
    /// There is a thread that leads for futures.
    pub(super) has_driver: bool,
    /// The attachment was let go of: nobody waits any more.
    pub(super) is_closed: bool,
}

impl State {
    pub(super) fn is_over(&self, wanted: &Wanted<'_>) -> bool {
        match wanted {
            Wanted::News(view) => !view.is_announced(),
            Wanted::Answer(id) => self.answers.get(id).is_none_or(Option::is_some),
            Wanted::Time => false,
        }
    }

    /// Puts a sleeper on the list.
    pub(super) fn enter(&mut self, who: Who, watched: Watched) -> u64 {
        let key = self.next_key;
        self.next_key += 1;
        self.sleepers.push(Sleeper { key, who, watched });
        key
    }

    /// Wakes every thread whose wait is over, or all if the attachment is. The wakers of futures alike are the caller's to
    /// wake, without the lock: they are code of their runtime.
    #[must_use]
    pub(super) fn wake(&mut self) -> Vec<Waker> {
        let mut wakers = Vec::new();
        let mut sleepers = std::mem::take(&mut self.sleepers);
        for sleeper in &mut sleepers {
            let is_over = self.ended.is_some() || self.is_over(&sleeper.watched.wanted());
            match &mut sleeper.who {
                Who::Thread(thread) if is_over => thread.unpark(),
                Who::Thread(_) => {}
                Who::Future(waker, deadline) => {
                    if is_over || deadline.is_some_and(|deadline| deadline <= clock::now()) {
                        wakers.extend(waker.take());
                    }
                }
            }
        }
        self.sleepers = sleepers;
        wakers
    }

    /// Whether a future waits that was not woken.
    pub(super) fn has_futures(&self) -> bool {
        self.sleepers.iter().any(|sleeper| matches!(sleeper.who, Who::Future(Some(_), _)))
    }

    /// The first time at which a future is to be woken in any case.
    fn first_deadline(&self) -> Option<Time> {
        let deadline = |sleeper: &Sleeper| match sleeper.who {
            Who::Future(Some(_), deadline) => deadline,
            _ => None,
        };
        self.sleepers.iter().filter_map(deadline).min()
    }

    fn handle_response(&mut self, response: Response, descriptors: Vec<OwnedFd>) {
        if let ResponseBody::Detached { code, text } = response.body {
            self.ended = Some(Ended::Detached { code, text });
        } else if let Some(answer) = self.answers.get_mut(&response.id) {
            *answer = Some((response.body, descriptors));
        }
    }
}

/// The waits of one attachment, and what they wait at.
pub(super) struct Waits {
    path: PathBuf,
    pub(super) connection: OwnedFd,
    port: Arc<SessionPort>,
    /// Ends the leader's wait early.
    nudge: OwnedFd,
    /// How long the daemon may take to take a message.
    send_timeout: Duration,
    state: Mutex<State>,
    /// For the thread that leads for futures.
    pub(super) changed: Condvar,
}

impl Waits {
    pub(super) fn new(
        path: PathBuf,
        connection: OwnedFd,
        port: Arc<SessionPort>,
        send_timeout: Duration,
    ) -> Result<Self, Error> {
        let nudge = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|cause| Error::os("making a descriptor to be woken by", cause))?;
        let (state, changed) = (Mutex::default(), Condvar::new());
        Ok(Self { path, connection, port, nudge, send_timeout, state, changed })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// See [`Session::sleep`](super::Session::sleep), for a thread.
    pub(super) fn sleep(&self, wanted: &Wanted<'_>, deadline: Option<Time>) -> Result<(), Error> {
        let mut state = self.lock();
        let key = state.enter(Who::Thread(thread::current()), wanted.watched());
        loop {
            if state.is_over(wanted) || deadline.is_some_and(|deadline| deadline <= clock::now()) {
                drop(self.leave(state, key));
                return Ok(());
            }
            if let Some(ended) = &state.ended {
                let error = self.error(ended);
                drop(self.leave(state, key));
                return Err(error);
            }
            if state.has_leader {
                drop(state);
                park(deadline);
                state = self.lock();
                continue;
            }
            let (next, led) = self.lead(state, deadline);
            state = next;
            if let Err(error) = led {
                drop(self.leave(state, key));
                return Err(error);
            }
        }
    }

    /// Takes a sleeper off the list. It is to be dropped by the caller, whose lock ends here.
    pub(super) fn leave(&self, mut state: MutexGuard<'_, State>, key: u64) -> Option<Sleeper> {
        let at = state.sleepers.iter().position(|sleeper| sleeper.key == key);
        let left = at.map(|at| state.sleepers.remove(at));
        self.hand_on(&state);
        left
    }

    /// Sees to it that somebody leads while others wait: a thread of those that wait, or else the one for futures.
    pub(super) fn hand_on(&self, state: &State) {
        if state.has_leader {
            return;
        }
        let thread = state.sleepers.iter().find_map(|sleeper| match &sleeper.who {
            Who::Thread(thread) => Some(thread),
            Who::Future(..) => None,
        });
        match thread {
            Some(thread) => thread.unpark(),
            None => self.changed.notify_one(),
        }
    }

    /// Leads once: waits for the daemon, or until `deadline` or the first one of a future, takes in what the daemon has
    /// said, and wakes whose wait is over.
    pub(super) fn lead<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        deadline: Option<Time>,
    ) -> (MutexGuard<'a, State>, Result<(), Error>) {
        let until = deadline.into_iter().chain(state.first_deadline()).min();
        state.has_leader = true;
        state.leads_until = until;
        drop(state);
        let heard = self.hear(until);
        let mut state = self.lock();
        state.has_leader = false;
        let wakers = state.wake();
        if wakers.is_empty() {
            return (state, heard);
        }
        drop(state);
        wake_all(wakers);
        (self.lock(), heard)
    }

    /// Waits for the daemon once, and takes in what it has said.
    fn hear(&self, deadline: Option<Time>) -> Result<(), Error> {
        let wakeup = self.port.wakeup_fd();
        let mut fds = [wakeup, self.connection.as_fd(), self.nudge.as_fd()]
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        if !poll(&mut fds, deadline)? {
            return Ok(());
        }
        let [has_rung, has_spoken, is_nudged] = fds.map(|fd| !fd.revents().is_empty());
        if is_nudged {
            // Nothing to be read any more is as good: the leader looks at everything anew.
            let _ = rustix::io::read(&self.nudge, &mut [0; 8]);
        }
        if has_spoken {
            self.listen();
        }
        if has_rung {
            let rung = self.port.drain().map_err(|cause| Error::os("reading the wake-up pipe", cause))?;
            if rung == Wait::Gone {
                self.read_last_words();
            }
        }
        Ok(())
    }

    /// Makes the leader look at everything anew.
    pub(super) fn nudge(&self) {
        // It can only be full, and is readable then.
        let _ = rustix::io::write(&self.nudge, &1_u64.to_ne_bytes());
    }

    /// Looks whether the attachment still holds, without waiting for anything.
    pub(super) fn check(&self) -> Result<(), Error> {
        let mut state = self.lock();
        if state.ended.is_none() && state.has_leader {
            // Another thread looks all the time, but may not have been given the time to see the end.
            drop(state);
            if self.is_hung_up() {
                self.read_last_words();
            }
            state = self.lock();
        }
        if state.ended.is_none() && !state.has_leader {
            let (next, led) = self.lead(state, Some(clock::now()));
            state = next;
            self.hand_on(&state);
            led?;
        }
        match &state.ended {
            Some(ended) => Err(self.error(ended)),
            None => Ok(()),
        }
    }

    /// Whether the daemon's end of the socket is closed. Takes nothing from it.
    fn is_hung_up(&self) -> bool {
        let mut fds = [PollFd::new(&self.connection, PollFlags::empty())];
        matches!(poll(&mut fds, Some(clock::now())), Ok(true))
    }

    /// Whether the socket takes a message now.
    pub(super) fn has_room_to_send(&self) -> Result<bool, Error> {
        // Also if it is at its end: sending finds that.
        poll(&mut [PollFd::new(&self.connection, PollFlags::OUT)], Some(clock::now()))
    }

    /// Takes one message off the socket, which has one or is at its end. Says whether more may follow.
    fn listen(&self) -> bool {
        let received = receive(&self.connection);
        let mut state = self.lock();
        match received {
            Ok((response, descriptors)) => state.handle_response(response, descriptors),
            Err(AttachError::WouldBlock) => {}
            Err(AttachError::Closed) => {
                state.ended.get_or_insert(Ended::Gone);
            }
            Err(cause) => {
                state.ended.get_or_insert(Ended::Protocol(cause.to_string()));
                // The daemon does not know that this attachment is over, and would keep the places of its handles.
                let _ = rustix::net::shutdown(&self.connection, Shutdown::Both);
            }
        }
        state.ended.is_none()
    }

    /// The daemon has left: reads what it said before, up to the end of the socket or for a second.
    pub(super) fn read_last_words(&self) {
        let deadline = clock::now().after_ns(REASON_NS_MAX);
        let mut fds = [PollFd::new(&self.connection, PollFlags::IN)];
        while deadline > clock::now() {
            match poll(&mut fds, Some(deadline)) {
                Ok(true) if self.listen() => {}
                Ok(false) => {}
                Ok(true) | Err(_) => break,
            }
        }
        self.lock().ended.get_or_insert(Ended::Gone);
    }

    /// Ends the attachment, for everybody who waits.
    pub(super) fn end(&self, ended: Ended) {
        let mut state = self.lock();
        state.ended.get_or_insert(ended);
        let wakers = state.wake();
        drop(state);
        self.changed.notify_one();
        wake_all(wakers);
        let _ = rustix::net::shutdown(&self.connection, Shutdown::Both);
    }

    /// Nobody waits any more: the thread that leads for futures ends.
    pub(super) fn close(&self) {
        self.lock().is_closed = true;
        self.changed.notify_one();
        self.nudge();
    }

    /// The error of every wait from now on, if the attachment is over.
    pub(super) fn ended(&self) -> Option<Error> {
        self.lock().ended.as_ref().map(|ended| self.error(ended))
    }

    pub(super) fn gone(&self) -> Error {
        Error::DaemonGone { path: self.path.clone() }
    }

    /// The error for a wait that took too long: nothing was heard of the daemon.
    pub(super) fn unanswered(&self) -> Error {
        Error::DaemonUnreachable { path: self.path.clone(), cause: io_error(AttachError::WouldBlock) }
    }

    pub(super) fn error(&self, ended: &Ended) -> Error {
        match ended {
            Ended::Gone => self.gone(),
            Ended::Detached { code, text } => Error::Detached { code: code.clone(), text: text.clone() },
            Ended::Deaf => {
                let text = format!("it took no message for {:?}", self.send_timeout);
                let cause = std::io::Error::new(std::io::ErrorKind::TimedOut, text);
                Error::DaemonUnreachable { path: self.path.clone(), cause }
            }
            Ended::Protocol(text) => Error::protocol(text),
        }
    }
}

/// Sleeps until woken or until the deadline. May return early.
fn park(deadline: Option<Time>) {
    match deadline {
        None => thread::park(),
        Some(deadline) => thread::park_timeout(Duration::from_nanos(deadline.since_ns(clock::now()))),
    }
}

/// Wakes futures. A waker is code of their runtime: one that panics must not end the waits of others.
pub(super) fn wake_all(wakers: Vec<Waker>) {
    for waker in wakers {
        let _ = std::panic::catch_unwind(AssertUnwindSafe(|| waker.wake()));
    }
}
