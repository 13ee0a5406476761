//! Waits of futures, and the thread that leads for them.
//!
//! A future that waits has its waker on the list of those that wait. Futures lead nobody: while no thread waits, a thread of
//! the attachment does, which is started for the first of them and ends with the attachment. It keeps their deadlines
//! too, so that no runtime has to.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread;

use weir_flow::ids::Time;

use super::waits::{Ended, Sleeper, State, Waits, Wanted, Who, wake_all};
use crate::clock;
use crate::error::Error;

/// A future's sleep. Whoever drops it before its end waits no more, and leaves nothing behind.
pub(super) struct Sleep<'a> {
    waits: &'a Arc<Waits>,
    wanted: Wanted<'a>,
    deadline: Option<Time>,
    /// Its place on the list, from its first poll on.
    key: Option<u64>,
}

impl<'a> Sleep<'a> {
    pub(super) fn new(waits: &'a Arc<Waits>, wanted: Wanted<'a>, deadline: Option<Time>) -> Self {
        Self { waits, wanted, deadline, key: None }
    }

    /// Whether it is over, and how.
    fn outcome(&self, state: &State) -> Option<Result<(), Error>> {
        let is_late = self.deadline.is_some_and(|deadline| deadline <= clock::now());
        if is_late || state.is_over(&self.wanted) {
            return Some(Ok(()));
        }
        state.ended.as_ref().map(|ended| Err(self.waits.error(ended)))
    }

    /// Is on the list from now on, with this waker. The one that was there before.
    fn stay(&mut self, state: &mut State, waker: Waker) -> Option<Waker> {
        let Some(key) = self.key else {
            self.key = Some(state.enter(Who::Future(Some(waker), self.deadline), self.wanted.watched()));
            return None;
        };
        match state.sleepers.iter_mut().find(|sleeper| sleeper.key == key) {
            Some(Sleeper { who: Who::Future(before, _), .. }) => before.replace(waker),
            _ => None,
        }
    }

    /// Is not on the list any more.
    fn leave(&mut self, state: MutexGuard<'_, State>) -> Option<Sleeper> {
        self.key.take().and_then(|key| self.waits.leave(state, key))
    }
}

impl Future for Sleep<'_> {
    type Output = Result<(), Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // Wakers are cloned and dropped without the lock: both are code of their runtime.
        let waker = context.waker().clone();
        let waits = self.waits;
        let mut state = waits.lock();
        if let Some(outcome) = self.outcome(&state) {
            drop(self.leave(state));
            return Poll::Ready(outcome);
        }
        let before = self.stay(&mut state, waker);
        let comes_too_late = match (self.deadline, state.leads_until) {
            (Some(deadline), Some(leads_until)) => deadline < leads_until,
            (Some(_), None) => true,
            (None, _) => false,
        };
        if state.has_leader && comes_too_late {
            waits.nudge();
        }
        // Also while a thread leads: it does so for as long as it waits itself, and no longer.
        let led = if state.has_leader && state.has_driver { Ok(()) } else { Driver::wake(waits, &mut state) };
        if led.is_err() {
            drop(self.leave(state));
            return Poll::Ready(led);
        }
        drop(state);
        drop(before);
        Poll::Pending
    }
}

impl Drop for Sleep<'_> {
    fn drop(&mut self) {
        if self.key.is_some() {
            let waits = self.waits;
            drop(self.leave(waits.lock()));
        }
    }
}

/// How long the thread that leads for futures goes on when none waits any more, so that the next need not wake it:
/// 100 ms. That saves time, and nothing depends on it.
const LINGER_NS: u64 = 100_000_000;

/// The thread that leads while futures wait and no thread does.
struct Driver;

impl Driver {
    /// Sees to it that it runs.
    fn wake(waits: &Arc<Waits>, state: &mut State) -> Result<(), Error> {
        if state.has_driver {
            waits.changed.notify_one();
            return Ok(());
        }
        let shared = Arc::clone(waits);
        thread::Builder::new()
            .name("weir-waits".into())
            .spawn(move || Self::run(&shared))
            .map_err(|cause| Error::os("starting the thread that wakes futures", cause))?;
        state.has_driver = true;
        Ok(())
    }

    fn run(waits: &Waits) {
        let mut lingers_until = Time(0);
        let mut state = waits.lock();
        while !state.is_closed && state.ended.is_none() {
            let has_futures = state.has_futures();
            if has_futures {
                lingers_until = clock::now().after_ns(LINGER_NS);
            }
            if state.has_leader || !has_futures && lingers_until <= clock::now() {
                // Threads may wait all the same.
                if !state.has_leader && !state.sleepers.is_empty() {
                    waits.hand_on(&state);
                }
                state = waits.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let (next, led) = waits.lead(state, (!has_futures).then_some(lingers_until));
            state = next;
            if let Err(error) = led {
                state.ended.get_or_insert(Ended::Protocol(error.to_string()));
            }
        }
        state.has_driver = false;
        let wakers = state.wake();
        drop(state);
        wake_all(wakers);
    }
}
