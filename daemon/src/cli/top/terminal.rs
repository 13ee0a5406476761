//! The terminal: taken over while the screen is shown, and given back as it was whether this ends by a key, a signal, an
//! error or a panic.

use std::io;
use std::sync::mpsc;
use std::thread;

use ratatui::DefaultTerminal;
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
}

impl Drop for Screen {
    fn drop(&mut self) {
        // Says what fails on standard error; there is nothing else to do about it.
        ratatui::restore();
    }
}

/// Told when a signal asks the process to end. The thread that waits for signals ends with the process.
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
        })
        .map_err(problem)?;
    Ok(receiver)
}
