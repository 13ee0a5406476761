//! A process' way to its daemon over several lives of that daemon: which attachment is the current one, and how the
//! next comes about.
//!
//! An attachment never comes back to life: what was made over it ends with it. Whoever makes something new asks here
//! for an attachment first and gets the current one, or, if that is over, a new one. Of those that ask at the same time,
//! one attaches and the others wait for it, each no longer than its own patience and the attempt that is under way then.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use weir_flow::ids::Time;

use crate::caller::{Caller, Taken, Turn, work_that_blocks};
use crate::clock;
use crate::error::Error;
use crate::options::ConnectOptions;
use crate::session::Session;

/// Longest pause before the second attempt: 20 ms. It doubles with each further one.
const BACKOFF_NS_MIN: u64 = 20_000_000;

/// Longest pause between two attempts: 1 s.
const BACKOFF_NS_MAX: u64 = 1_000_000_000;

/// Name of the thread on which a future attaches.
const THREAD: &str = "weir-attach";

/// The attachments of one [`crate::Client`], one after the other.
pub(crate) struct Connection {
    options: ConnectOptions,
    session: Mutex<Arc<Session>>,
    /// Attaching, one at a time.
    turn: Turn,
}

impl Connection {
    /// Attaches for the first time: one attempt.
    pub(crate) async fn connect(caller: Caller, options: ConnectOptions) -> Result<Self, Error> {
        work_that_blocks(caller, THREAD, move || {
            let session = Mutex::new(Arc::new(Session::connect(&options, options.timeout)?));
            Ok(Self { options, session, turn: Turn::default() })
        })
        .await
    }

    /// The attachment that was made last. It may be over.
    pub(crate) fn current(&self) -> Arc<Session> {
        Arc::clone(&self.session.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// An attachment that is not known to be over: the current one, or a new one.
    pub(crate) async fn attached(self: &Arc<Self>, caller: Caller) -> Result<Arc<Session>, Error> {
        let session = self.current();
        match session.check() {
            Ok(()) => Ok(session),
            Err(ended) if self.options.reattach_timeout.is_zero() => Err(ended),
            Err(_) => self.reattach(caller, session, after(self.options.reattach_timeout)).await,
        }
    }

    /// Waits until `deadline` for an attachment other than `old`, or makes it.
    async fn reattach(
        self: &Arc<Self>,
        caller: Caller,
        old: Arc<Session>,
        deadline: Time,
    ) -> Result<Arc<Session>, Error> {
        loop {
            let turn = self.turn.take(caller, deadline).await;
            let current = self.current();
            if !Arc::ptr_eq(&current, &old) {
                return Ok(current);
            }
            if rest_until(deadline).is_zero() {
                return Err(self.not_reattached(old.unanswered()));
            }
            let connection = Arc::clone(self);
            match work_that_blocks(caller, THREAD, move || connection.attach_in_turn(turn)).await {
                // One that waited had less patience left than this.
                Err(Error::NotReattached { .. }) if !rest_until(deadline).is_zero() => {}
                outcome => return outcome,
            }
        }
    }

    /// Attaches, and makes that the current attachment before another has its turn. After a failure another may have more
    /// patience left.
    fn attach_in_turn(&self, turn: Taken) -> Result<Arc<Session>, Error> {
        let session = self.attach_while(&turn)?;
        *self.session.lock().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&session);
        Ok(session)
    }

    /// Tries until the patience of somebody ends. One that comes meanwhile may have less of it.
    fn attach_while(&self, turn: &Taken) -> Result<Arc<Session>, Error> {
        let mut backoff = Backoff::new(RandomState::new().build_hasher().finish());
        loop {
            // The last attempt is made at the end: a daemon that is there answers at once.
            let patience = rest_until(turn.until()).max(Duration::from_millis(10));
            match Session::connect(&self.options, self.options.timeout.min(patience)) {
                Ok(session) => return Ok(Arc::new(session)),
                Err(error) if !error.is_unattached() => return Err(error),
                Err(error) if rest_until(turn.until()).is_zero() => return Err(self.not_reattached(error)),
                Err(_) => thread::sleep(backoff.next_pause().min(rest_until(turn.until()))),
            }
        }
    }

    fn not_reattached(&self, cause: Error) -> Error {
        Error::NotReattached { waited: self.options.reattach_timeout, cause: Box::new(cause) }
    }
}

fn after(duration: Duration) -> Time {
    clock::now().after_ns(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
}

fn rest_until(deadline: Time) -> Duration {
    Duration::from_nanos(deadline.since_ns(clock::now()))
}

/// Pauses between attempts: each is random, from nothing up to a bound that doubles. So all the processes that a
/// daemon leaves behind do not come back in step.
struct Backoff {
    bound_ns: u64,
    random: u64,
}

impl Backoff {
    fn new(seed: u64) -> Self {
        Self { bound_ns: BACKOFF_NS_MIN, random: seed }
    }

    fn next_pause(&mut self) -> Duration {
        // SplitMix64: good enough to be out of step.
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        let pause_ns = (u128::from(mixed) * u128::from(self.bound_ns)) >> 64;
        self.bound_ns = (self.bound_ns * 2).min(BACKOFF_NS_MAX);
        // Below the bound, which is a u64.
        Duration::from_nanos(pause_ns as u64)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, OwnedFd};
    use std::pin::pin;
    use std::task::{Context, Waker};
    use std::time::Instant;

    use rustix::event::{PollFd, PollFlags};
    use weir_ipc::attach::ATTACH_VERSION;
    use weir_ipc::attach::message::{Response, ResponseBody};
    use weir_ipc::attach::socket::{self, AttachError};
    use weir_ipc::session::SessionEndpoint;
    use weir_ipc::task_cell::TaskCellReader;

    use super::*;
    use crate::caller::{block, wait_for};

    /// Longest wait for what should come soon.
    const PATIENCE: Duration = Duration::from_secs(20);

    fn await_news(fd: &OwnedFd) {
        rustix::event::poll(&mut [PollFd::new(fd, PollFlags::IN)], None).expect("poll");
    }

    /// The next client, which is not answered.
    fn accept_one(listener: &OwnedFd) -> OwnedFd {
        await_news(listener);
        socket::accept(listener).expect("a client").0
    }

    /// Takes one client in as a daemon does, which is gone when what is returned is dropped.
    fn welcome_one(listener: OwnedFd) -> (OwnedFd, SessionEndpoint, TaskCellReader) {
        let connection = accept_one(&listener);
        let hello = loop {
            await_news(&connection);
            match socket::receive_request(&connection) {
                Err(AttachError::WouldBlock) => {}
                hello => break hello.expect("hello"),
            }
        };
        let (endpoint, fds) = SessionEndpoint::create().expect("session");
        let (cells, cells_fd) = TaskCellReader::create().expect("cells");
        let body = ResponseBody::Welcome {
            version: ATTACH_VERSION,
            node: "here".into(),
            segment_bytes: 4096,
            record_bytes_max: 4096,
            event_bytes_max: 1024,
            event_window: 8,
            spanning_bytes_max: 4096,
        };
        let descriptors = [fds.page.as_fd(), fds.doorbell.as_fd(), fds.wakeup.as_fd(), cells_fd.as_fd()];
        let welcome = Response { id: hello.id, body };
        socket::send_response(&connection, &welcome, &descriptors).expect("welcome");
        (connection, endpoint, cells)
    }

    #[test]
    fn little_patience_of_one_that_waits_ends_an_attempt_and_not_the_patience_of_who_made_it() {
        let directory = tempfile::tempdir().expect("a run directory");
        let path = directory.path().join("attach.sock");
        let listen = || socket::listen(&path, 0o600).expect("listen");
        let stop_listening = || std::fs::remove_file(&path).expect("its socket");
        let listener = listen();
        let daemon = thread::spawn(move || welcome_one(listener));
        let connecting = Connection::connect(Caller::Thread, ConnectOptions::new(directory.path()));
        let connection = Arc::new(block(connecting).expect("attach"));
        drop(daemon.join().expect("a daemon"));
        stop_listening();
        let (old, began) = (connection.current(), Instant::now());
        // Attaches, with much patience.
        let listener = listen();
        let mut patient =
            pin!(connection.reattach(Caller::Future, Arc::clone(&old), after(PATIENCE + PATIENCE)));
        assert!(patient.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        // It is at it, and finds no daemon any more.
        let attempt = accept_one(&listener);
        stop_listening();
        drop((attempt, listener));
        // Waits for that, with little.
        let impatient =
            connection.reattach(Caller::Thread, Arc::clone(&old), after(Duration::from_millis(50)));
        let error = block(impatient).map(drop).expect_err("no daemon");
        assert!(matches!(error, Error::NotReattached { .. }), "{error:?}");
        assert!(began.elapsed() < PATIENCE, "it waited for the other's patience: {:?}", began.elapsed());
        let listener = listen();
        let daemon = thread::spawn(move || welcome_one(listener));
        let session = block(wait_for(Caller::Thread, patient)).expect("it goes on");
        assert!(!Arc::ptr_eq(&session, &old) && Arc::ptr_eq(&session, &connection.current()));
        drop(daemon.join().expect("a daemon"));
    }

    #[test]
    fn pauses_are_spread_below_a_bound_that_doubles_up_to_a_second() {
        let mut bound = Duration::from_nanos(BACKOFF_NS_MIN);
        let mut backoffs: Vec<Backoff> = (0..1000).map(Backoff::new).collect();
        for _ in 0..12 {
            let pauses: Vec<Duration> = backoffs.iter_mut().map(Backoff::next_pause).collect();
            assert!(pauses.iter().all(|pause| *pause < bound), "{pauses:?}");
            // 1000 of them: some in each quarter, or they are not random.
            for quarter in 0..4 {
                let range = bound * quarter / 4..bound * (quarter + 1) / 4;
                let count = pauses.iter().filter(|pause| range.contains(pause)).count();
                assert!((150..=350).contains(&count), "{count} pauses of 1000 in {range:?}");
            }
            bound = (bound * 2).min(Duration::from_nanos(BACKOFF_NS_MAX));
        }
        assert_eq!(bound, Duration::from_secs(1));
    }
}
