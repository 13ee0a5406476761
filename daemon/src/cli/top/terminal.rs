//! The terminal: taken over while the screen is shown, and given back as it was whether this ends by a key, a signal, an
//! error or a panic.

use std::io;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use ratatui::DefaultTerminal;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use tokio::signal::unix::{SignalKind, signal};

use super::reports::Latest;
use super::state::State;
use super::view;
use crate::exit::{Exit, Problem};

/// The terminal, taken over until this is dropped.
pub(super) struct Screen(DefaultTerminal);

impl Screen {
    /// Takes the terminal over: its other screen, keys as they come. A panic gives it back before it says what happened.
    pub(super) fn open() -> Result<Self, Problem> {
        ratatui::try_init().map(Self).map_err(|error| {
            Problem::new(Exit::Failed, "the terminal cannot be taken over")
                .found(error.to_string())
                .fix("the environment variable TERM")
        })
    }

    /// Shows what there is now.
    pub(super) fn draw(&mut self, state: &mut State, latest: &Latest) -> io::Result<()> {
        self.0.draw(|frame| view::draw(frame, state, latest)).map(|_| ())
    }

    /// Whether the terminal has hung up.
    pub(super) fn is_gone(&self) -> bool {
        matches!(self.await_keys(Duration::ZERO), Ok(Input::Gone))
    }

    /// The terminal is gone: there is nothing to give back, and what the library says when that fails has nowhere to go
    /// either, which would be a panic.
    pub(super) fn forget(self) {
        std::mem::forget(self);
    }

    /// Waits for keys, at most for `timeout`.
    ///
    /// The library that reads them must not be asked at a terminal that is gone: it reads its end again and again, and does
    /// not return.
    pub(super) fn await_keys(&self, timeout: Duration) -> io::Result<Input> {
        let stdin = io::stdin();
        let mut polled = [PollFd::new(&stdin, PollFlags::IN)];
        let nanoseconds = i64::from(timeout.subsec_nanos());
        let seconds = i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX);
        match poll(&mut polled, Some(&Timespec { tv_sec: seconds, tv_nsec: nanoseconds })) {
            Ok(_) => {}
            // A signal: whoever waits for those says which.
            Err(Errno::INTR) => return Ok(Input::Nothing),
            Err(errno) => return Err(errno.into()),
        }
        let found = polled[0].revents();
        Ok(if found.intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL) {
            Input::Gone
        } else if found.contains(PollFlags::IN) {
            Input::Keys
        } else {
            Input::Nothing
        })
    }
}

/// What there is to be read.
pub(super) enum Input {
    /// Keys.
    Keys,
    /// Nothing, in this time.
    Nothing,
    /// The terminal has hung up: nothing will ever come, and nobody sees the screen.
    Gone,
}

impl Drop for Screen {
    fn drop(&mut self) {
        // Says what fails on standard error; there is nothing else to do about it.
        ratatui::restore();
    }
}

/// How long the process may go on after it was asked to end.
const END_TIMEOUT: Duration = Duration::from_secs(2);

/// Told when a signal asks the process to end. The thread that waits for signals ends with the process; or the process with
/// it, if it is not heard in time, because the terminal does not take what is written for instance.
pub(super) fn end_signals() -> Result<mpsc::Receiver<()>, Problem> {
    let problem =
        |error: io::Error| Problem::new(Exit::Failed, "cannot listen for signals").found(error.to_string());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(problem)?;
    let kinds = [SignalKind::terminate(), SignalKind::hangup(), SignalKind::interrupt(), SignalKind::quit()];
    let guard = runtime.enter();
    let mut listeners = Vec::with_capacity(kinds.len());
    for kind in kinds {
        listeners.push(signal(kind).map_err(problem)?);
    }
    drop(guard);
    let (sender, receiver) = mpsc::channel();
    thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            runtime.block_on(async {
                let any = std::future::poll_fn(|context| {
                    let came =
                        |listener: &mut tokio::signal::unix::Signal| listener.poll_recv(context).is_ready();
                    match listeners.iter_mut().any(came) {
                        true => std::task::Poll::Ready(()),
                        false => std::task::Poll::Pending,
                    }
                });
                any.await;
            });
            // Nobody is left to be told if the screen has gone.
            let _ = sender.send(());
            thread::sleep(END_TIMEOUT);
            std::process::exit(0);
        })
        .map_err(problem)?;
    Ok(receiver)
}
