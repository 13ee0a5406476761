//! One socket that is watched.

use std::cell::Cell;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use weir_flow::stall::ReceiveAge;

use super::{Observer, Reading, SocketAccount, arrival, monotonic_ns};
use crate::observe::probes::WatchedSocket;
use crate::observe::probes::hooks::{READS, SENDS};
use crate::observe::sampler::Sampler;

/// What watches one socket. It belongs to the shard that has the socket, and ends when it is dropped.
pub(crate) struct SocketWatch {
    observer: Observer,
    cookie: u64,
    /// A duplicate, to ask the kernel with; none once the socket is about to be closed.
    descriptor: Option<OwnedFd>,
    means: Means,
    /// What was known when it was let go.
    last: Option<SocketAccount>,
    /// Arrivals up to this number were looked at.
    marks_seen: Cell<u64>,
    /// When the first of what the last look found unread had arrived; none once it was read.
    unread_since_ns: Cell<Option<u64>>,
}

/// How the state of a socket is found out.
#[allow(clippy::large_enum_variant, reason = "one per link")]
enum Means {
    Probes(WatchedSocket),
    Samples(Sampler),
    /// Not at all: it is no TCP socket.
    Nothing,
}

impl SocketWatch {
    pub(super) fn new(observer: &Observer, socket: BorrowedFd<'_>, now_ns: u64) -> Self {
        let watch = |descriptor, cookie, means| Self {
            observer: observer.clone(),
            cookie,
            descriptor,
            means,
            last: None,
            marks_seen: Cell::new(0),
            unread_since_ns: Cell::new(None),
        };
        let Ok(first) = Reading::of(socket) else { return watch(None, 0, Means::Nothing) };
        // Without a duplicate nothing more is asked; what the probes write can be read all the same.
        let descriptor = socket.try_clone_to_owned().ok();
        let cookie = rustix::net::sockopt::socket_cookie(socket).unwrap_or(0);
        let means = match observer.begin(socket, cookie, now_ns) {
            Some(watched) => Means::Probes(watched),
            None => {
                let is_stamped = arrival::stamp_arrivals(socket).is_ok();
                Means::Samples(Sampler::new(now_ns, first, is_stamped))
            }
        };
        watch(descriptor, cookie, means)
    }

    /// The longest time that any of what was read since the last call had lain in the receive queue. `None`: nothing was
    /// read to the end of a segment, or it is not known. A few loads, no system call. Without probes it is known of what
    /// the last [`Self::sample`] found unread; only for whoever has read since.
    pub(crate) fn receive_age(&self) -> Option<ReceiveAge> {
        match &self.means {
            Means::Probes(watched) if self.observer.has_hook(READS) => {
                let (longest, seen) = watched.read_since(self.marks_seen.get())?;
                self.marks_seen.set(seen);
                longest.map(ReceiveAge::Exactly)
            }
            Means::Samples(_) => {
                let arrived_ns = self.unread_since_ns.take()?;
                Some(ReceiveAge::AtLeast(monotonic_ns().saturating_sub(arrived_ns)))
            }
            Means::Probes(_) | Means::Nothing => None,
        }
    }

    /// Whether [`Self::sample`] is of use now.
    pub(crate) fn is_due(&self, now_ns: u64) -> bool {
        matches!(&self.means, Means::Samples(sampler) if sampler.is_due(now_ns)) && self.descriptor.is_some()
    }

    /// Looks at a socket that has no probes: four system calls, and a fifth if anything lies unread. Only for the thread
    /// that reads it.
    pub(crate) fn sample(&mut self) {
        let Some(reading) = self.look() else { return };
        if let Means::Samples(sampler) = &mut self.means {
            sampler.sample(monotonic_ns(), reading);
            self.unread_since_ns.set(sampler.unread_since_ns());
        }
    }

    /// The socket at this moment; what is asked beyond what the means at hand tell.
    fn look(&self) -> Option<Reading> {
        let descriptor = self.descriptor.as_ref()?.as_fd();
        let reading = Reading::of(descriptor).ok()?;
        Some(match &self.means {
            Means::Samples(_) => reading.with_arrival(descriptor),
            Means::Probes(_) | Means::Nothing => reading,
        })
    }

    /// The socket is about to be closed: takes a last look, and lets go of it. What is known stays.
    pub(crate) fn release(&mut self) {
        if self.last.is_some() {
            return;
        }
        self.last = Some(self.account().ended());
        if let (Means::Probes(watched), Some(descriptor)) = (&self.means, &self.descriptor) {
            watched.end(descriptor.as_fd());
        }
        self.descriptor = None;
    }

    /// Everything that is known about the socket until now; until it was released, if it was.
    pub(crate) fn account(&self) -> SocketAccount {
        if let Some(last) = &self.last {
            return last.clone();
        }
        let reading = self.look();
        let now_ns = monotonic_ns();
        let account = match &self.means {
            Means::Nothing => SocketAccount::default(),
            Means::Probes(watched) => self.probed(watched, reading, now_ns),
            Means::Samples(sampler) => match reading {
                None => sampler.account(),
                Some(reading) => {
                    let mut sampler = sampler.clone();
                    sampler.sample(now_ns, reading);
                    sampler.account()
                }
            },
        };
        if self.descriptor.is_some() { account } else { account.ended() }
    }

    fn probed(&self, watched: &WatchedSocket, reading: Option<Reading>, now_ns: u64) -> SocketAccount {
        // One that is written without a pause is known at the next question.
        let Some(account) = watched.account() else { return SocketAccount::default() };
        let open = reading.as_ref().filter(|reading| reading.is_established);
        let mut known = SocketAccount::from_probes(&account, open.map(|reading| (reading, now_ns)));
        self.observer.collect();
        known.stalls = Some(self.observer.stalls_of(self.cookie));
        if !self.observer.has_hook(SENDS) {
            known = known.without_sends();
        }
        if !self.observer.has_hook(READS) {
            known = known.without_reads();
        }
        known
    }
}

impl Drop for SocketWatch {
    fn drop(&mut self) {
        if matches!(self.means, Means::Probes(_)) {
            self.observer.forget(self.cookie);
        }
    }
}
