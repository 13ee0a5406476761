//! Whether there are probes, and what they have told so far.

use std::collections::HashMap;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{SocketWatch, Stalls, monotonic_ns};
use crate::observe::probes::cause::Cause;
use crate::observe::probes::hooks::{HookState, Need};
use crate::observe::probes::{Probes, Sources, WatchedSocket, load};

/// Watches sockets: one for all shards and the control thread.
#[derive(Clone)]
pub(crate) struct Observer {
    shared: Arc<Shared>,
}

struct Shared {
    probes: Result<Arc<Probes>, Cause>,
    /// Finished stalls of sockets that are watched, by their cookies.
    stalls: Mutex<HashMap<u64, Stalls>>,
}

/// How observing is done, at one moment.
#[derive(Clone, Debug)]
pub(crate) enum ObserverState {
    /// With probes.
    Probes {
        /// What became of each hook.
        hooks: Vec<HookState>,
        /// Sockets that are watched.
        watched: usize,
        /// Sockets that could not be watched, so that they are sampled.
        unwatched_total: u64,
        /// Finished stalls that were not told, for want of room.
        stalls_lost_total: u64,
    },
    /// By samples alone.
    Samples(Cause),
}

impl Observer {
    /// Loads the probes of this program into the kernel that runs, with room for this many sockets. Where that fails
    /// it samples.
    pub(crate) fn start(slots: u32) -> Self {
        Self::from_sources(&Sources::own(slots))
    }

    /// The same from elsewhere.
    pub(crate) fn from_sources(sources: &Sources<'_>) -> Self {
        Self::with(load(sources).map(Arc::new))
    }

    /// Samples alone.
    pub(crate) fn without(cause: Cause) -> Self {
        Self::with(Err(cause))
    }

    fn with(probes: Result<Arc<Probes>, Cause>) -> Self {
        Self { shared: Arc::new(Shared { probes, stalls: Mutex::default() }) }
    }

    /// Why there are no probes; `None`: there are.
    pub(crate) fn cause(&self) -> Option<&Cause> {
        self.shared.probes.as_ref().err()
    }

    /// Whether probes run at every hook that is wanted: of segments, sends and reads. Others may be missing.
    pub(crate) fn has_wanted_hooks(&self) -> bool {
        let is_missing = |state: &HookState| state.hook.need != Need::Optional && !state.is_attached();
        let probes = self.shared.probes.as_ref();
        probes.is_ok_and(|probes| !probes.hooks().iter().any(is_missing))
    }

    /// How observing is done.
    pub(crate) fn state(&self) -> ObserverState {
        match &self.shared.probes {
            Ok(probes) => ObserverState::Probes {
                hooks: probes.hooks().to_vec(),
                watched: probes.watched(),
                unwatched_total: probes.unwatched_total(),
                stalls_lost_total: probes.stalls_lost_total(),
            },
            Err(cause) => ObserverState::Samples(cause.clone()),
        }
    }

    /// Watches a connected TCP socket from this moment on. What cannot be watched has an account of nothing.
    pub(crate) fn watch(&self, socket: BorrowedFd<'_>) -> SocketWatch {
        SocketWatch::new(self, socket, monotonic_ns())
    }

    /// Takes the stalls that have ended since the last time. To be called about once a second, or some are lost.
    pub(crate) fn collect(&self) {
        let Ok(probes) = &self.shared.probes else { return };
        let mut sums = self.stalls();
        probes.take_stalls(|stall| {
            // One of a socket that is not watched any more has nobody who asks for it.
            if let Some(sum) = sums.get_mut(&stall.cookie) {
                sum.note(stall.lasted_ns, stall.began_ns.saturating_add(stall.lasted_ns));
            }
        });
    }

    pub(super) fn begin(&self, socket: BorrowedFd<'_>, cookie: u64, now_ns: u64) -> Option<WatchedSocket> {
        let watched = self.shared.probes.as_ref().ok()?.watch(socket, now_ns)?;
        self.stalls().insert(cookie, Stalls::default());
        Some(watched)
    }

    pub(super) fn stalls_of(&self, cookie: u64) -> Stalls {
        self.stalls().get(&cookie).copied().unwrap_or_default()
    }

    pub(super) fn forget(&self, cookie: u64) {
        self.stalls().remove(&cookie);
    }

    /// Whether the hook of this number in [`crate::observe::probes::hooks::HOOKS`] is attached.
    pub(super) fn has_hook(&self, number: usize) -> bool {
        let probes = self.shared.probes.as_ref();
        probes.is_ok_and(|probes| probes.hooks().get(number).is_some_and(HookState::is_attached))
    }

    fn stalls(&self) -> MutexGuard<'_, HashMap<u64, Stalls>> {
        self.shared.stalls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Observer").field(&self.state()).finish()
    }
}
