//! The one thread of a process that hands over part-filled segments whose buffer timeout has passed.
//!
//! It holds its partitions weakly, sleeps for as long as none of them has data waiting, and ends when there is no
//! partition left, so it never keeps a process or a partition alive. It never holds its own lock and that of a
//! partition at once: a partition arms its timeout while its own lock is held.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use weir_flow::ids::Time;

use crate::clock;
use crate::error::Error;

/// What the flusher calls.
pub(crate) trait Flush: Send + Sync {
    /// Hands over what waits. Returns when to come again, if something had to stay.
    fn flush_due(&self, now: Time) -> Option<Time>;
}

struct Entry {
    target: Weak<dyn Flush>,
    deadline: Option<Time>,
}

struct State {
    entries: BTreeMap<u64, Entry>,
    next_id: u64,
    is_running: bool,
}

impl State {
    /// Takes the targets whose deadline has passed.
    fn take_due(&mut self, now: Time) -> Vec<(u64, Arc<dyn Flush>)> {
        let mut due = Vec::new();
        for (id, entry) in &mut self.entries {
            if entry.deadline.is_some_and(|deadline| deadline <= now) {
                entry.deadline = None;
                due.extend(entry.target.upgrade().map(|target| (*id, target)));
            }
        }
        due
    }

    fn next_deadline(&self) -> Option<Time> {
        self.entries.values().filter_map(|entry| entry.deadline).min()
    }
}

struct Flusher {
    state: Mutex<State>,
    changed: Condvar,
}

static FLUSHER: Flusher = Flusher {
    state: Mutex::new(State { entries: BTreeMap::new(), next_id: 0, is_running: false }),
    changed: Condvar::new(),
};

/// A partition's place with the flusher; given up when dropped.
pub(crate) struct Registration {
    id: u64,
}

impl Registration {
    /// Registers a partition, and starts the thread if it does not run.
    pub(crate) fn new(target: Weak<dyn Flush>) -> Result<Self, Error> {
        let mut state = FLUSHER.lock();
        if !state.is_running {
            thread::Builder::new()
                .name("weir-flusher".into())
                .spawn(run)
                .map_err(|cause| Error::os("starting the flusher thread", cause))?;
            state.is_running = true;
        }
        let id = state.next_id;
        state.next_id += 1;
        state.entries.insert(id, Entry { target, deadline: None });
        Ok(Self { id })
    }

    /// Asks for a flush at `deadline`, or earlier if one was asked for already.
    pub(crate) fn arm(&self, deadline: Time) {
        let mut state = FLUSHER.lock();
        let is_first = state.next_deadline().is_none_or(|first| deadline < first);
        if let Some(entry) = state.entries.get_mut(&self.id) {
            entry.deadline = Some(entry.deadline.map_or(deadline, |earlier| earlier.min(deadline)));
        }
        if is_first {
            FLUSHER.changed.notify_one();
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut state = FLUSHER.lock();
        state.entries.remove(&self.id);
        if state.entries.is_empty() {
            FLUSHER.changed.notify_one();
        }
    }
}

impl Flusher {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn run() {
    let mut state = FLUSHER.lock();
    while !state.entries.is_empty() {
        let now = clock::now();
        let due = state.take_due(now);
        if due.is_empty() {
            state = sleep(state, now);
            continue;
        }
        drop(state);
        let again: Vec<_> =
            due.iter().filter_map(|(id, target)| Some((*id, target.flush_due(now)?))).collect();
        // The last hold on a partition may be ours: it must be let go of before the lock is taken.
        drop(due);
        state = FLUSHER.lock();
        for (id, deadline) in again {
            if let Some(entry) = state.entries.get_mut(&id) {
                entry.deadline = Some(entry.deadline.map_or(deadline, |earlier| earlier.min(deadline)));
            }
        }
    }
    state.is_running = false;
}

/// Sleeps until the next deadline, or for as long as there is none.
fn sleep(state: MutexGuard<'_, State>, now: Time) -> MutexGuard<'_, State> {
    match state.next_deadline() {
        None => FLUSHER.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
        Some(deadline) => {
            let rest = Duration::from_nanos(deadline.since_ns(now));
            FLUSHER.changed.wait_timeout(state, rest).unwrap_or_else(PoisonError::into_inner).0
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{self, Sender};

    use super::*;

    struct Target {
        calls: Mutex<Sender<Time>>,
        again: Mutex<Option<Time>>,
    }

    impl Flush for Target {
        fn flush_due(&self, now: Time) -> Option<Time> {
            self.calls.lock().expect("calls").send(now).expect("the test listens");
            self.again.lock().expect("again").take()
        }
    }

    #[test]
    fn it_comes_when_asked_comes_again_when_something_stayed_and_ends_with_its_last_partition() {
        let (calls, called) = mpsc::channel();
        let target = Arc::new(Target { calls: Mutex::new(calls), again: Mutex::new(Some(Time(1))) });
        let weak: Weak<Target> = Arc::downgrade(&target);
        let registration = Registration::new(weak).expect("thread");
        let due = clock::now().after_ns(1_000_000);
        registration.arm(due);
        assert!(called.recv().expect("the first call") >= due, "not before it is due");
        // Something stayed, so it comes again, although nobody asks.
        called.recv().expect("the second call");
        assert!(called.try_recv().is_err(), "and then no more");
        // An earlier deadline cuts the sleep until a later one short.
        registration.arm(Time(u64::MAX));
        registration.arm(clock::now());
        called.recv().expect("the third call");
        // It holds nothing: what it calls is gone as soon as its owner lets go.
        let weak = Arc::downgrade(&target);
        drop(target);
        while weak.strong_count() > 0 {
            thread::yield_now();
        }
        registration.arm(clock::now());
        drop(registration);
        while FLUSHER.lock().is_running {
            thread::yield_now();
        }
        // And it starts anew for the next.
        let (calls, called) = mpsc::channel();
        let target = Arc::new(Target { calls: Mutex::new(calls), again: Mutex::new(None) });
        let weak: Weak<Target> = Arc::downgrade(&target);
        let registration = Registration::new(weak).expect("thread");
        registration.arm(clock::now());
        called.recv().expect("a call");
    }
}
