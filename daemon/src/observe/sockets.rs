//! The sockets of data links: what each waits for, by whichever means there are.
//!
//! An [`Observer`] is made once, when the daemon starts: with kernel probes if they can be had, without if not. It
//! gives each socket a [`SocketWatch`], which the shard keeps beside the link, and both ways end in the same
//! [`SocketAccount`].

mod account;
mod arrival;
mod info;
mod line;
mod observer;
mod row;
mod watch;

use rustix::time::{ClockId, clock_gettime};

pub(crate) use account::{Queue, Residence, STATES, SocketAccount, Stalls};
pub(crate) use line::{HOOKS_ATTACHED, SAMPLES};
pub(crate) use observer::{Observer, ObserverState};
pub(crate) use watch::SocketWatch;

pub(super) use account::add;
pub(super) use info::Reading;

/// Now, in nanoseconds of `CLOCK_MONOTONIC`: the clock of the probes and of the shards.
pub(crate) fn monotonic_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(u64::try_from(time.tv_nsec).unwrap_or(0))
}
