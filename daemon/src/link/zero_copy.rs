//! Whether a link sends without a copy: decided by what came of it so far. Pure; the shard asks before each batch.
//!
//! A zero-copy send costs more than a plain one where the kernel copies after all, as it does on loopback and between
//! virtual interfaces. It says so in the *notice* with which it lets go of a batch. So a link goes by its notices:
//!
//! | state | what happens | next |
//! |---|---|---|
//! | start | the peer is local | copying, for 10 s |
//! | start | it is not | without copy |
//! | without copy | all of the last 16 notices say copied | copying, for as long as the next rest is |
//! | without copy | no memory may be locked for a send | the same |
//! | copying | the rest is over | probing: 4 sends without copy |
//! | probing | all of them were copied | copying, for a rest twice as long, of at most 10 min |
//! | probing | not all were copied | without copy; the next rest is 10 s again |
//! | probing | no memory may be locked for a send | copying, for a rest twice as long |
//! | any | the socket or the kernel knows no zero-copy send | off for good |
//!
//! With `always` what notices say is without effect, and a rest is over without probing. A batch of fewer than 16 KiB is
//! copied in any state, and so is one when so many are outstanding that their headers would take too much memory: what
//! is outstanding is bounded, and sending never waits for a notice.
//!
//! It takes all of them, since one alone may say so wrongly. What a socket cannot send at once waits in packets of up to 64 KiB
//! and 17 pieces, and a small batch may wait in one that was begun for the batch before it. Then the kernel (since 6.10) tells
//! the truth for the first batch of each packet only, and calls the others copied; the ring takes that back where it sees it.
//! Where the kernel does copy it says so of all.
//!
//! A notice belongs to the state in which its batch was sent: what comes late says nothing about the state of now.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::BorrowedFd;

use socket2::{SockAddr, SockRef};
use weir_flow::ids::{LinkId, Time};

mod setting;

pub use setting::{Judged, ZeroCopyMode, ZeroCopySetting};

use crate::io::RegisteredCounters;

/// Least size of a batch that is sent without a copy, in bytes: below it copying is cheaper.
pub(crate) const BATCH_BYTES_MIN: u32 = 16 << 10;

/// Batches of one link that the kernel may read at a time. With the largest batches that is as much as a round trip of
/// 10 ms needs at 25 Gbit/s; what is beyond is copied.
pub(crate) const OUTSTANDING_MAX: u32 = 64;

/// Notices that count. The bits of a [`u16`].
const NOTICES: u32 = u16::BITS;

/// Sends of a probe.
const PROBE_SENDS: u8 = 4;

/// First and longest rest, in nanoseconds.
const REST_MIN_NS: u64 = 10_000_000_000;
const REST_MAX_NS: u64 = 600_000_000_000;

/// Names the state in which a batch was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket(u32);

/// Why a link copies, or did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    /// The peer's address is of this machine.
    Local,
    /// Notices said so.
    Copied,
    /// The kernel may lock no more memory for this user.
    Memory,
}

/// How one link sends, for those who look at the daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ZeroCopyState {
    /// `zero_copy`, `probing`, `copy` or `off`.
    pub(crate) mode: &'static str,
    /// Why it is not `zero_copy`, if there is more to say than that it is switched off.
    pub(crate) reason: Option<String>,
    /// It copies for want of memory that may be locked.
    pub(crate) is_short_of_memory: bool,
    /// Batches that the kernel may still read.
    pub(crate) outstanding: u32,
    /// What came of its sends.
    pub(crate) counts: ZeroCopyCounts,
}

/// How the links of a shard send.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ZeroCopyReport {
    pub(crate) setting: ZeroCopySetting,
    /// Memory that its sends can name.
    pub(crate) registered: RegisteredCounters,
    pub(crate) links: BTreeMap<LinkId, ZeroCopyState>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    ZeroCopy,
    Copying { until: Time, why: Why },
    Probing { unsent: u8, unanswered: u8, copied: u8 },
    Off { errno: i32 },
    Never,
}

/// What came of the sends of a link since it came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ZeroCopyCounts {
    /// Batches that a socket took without a copy, as far as was known then.
    pub(crate) sent: u64,
    /// Notices that said that the kernel copied after all.
    pub(crate) copied: u64,
    /// Sends that failed for want of memory that may be locked; each was copied instead.
    pub(crate) refused: u64,
    /// Batches that were copied since too many were outstanding.
    pub(crate) crowded: u64,
}

/// State of one link.
#[derive(Clone, Debug)]
pub(crate) struct ZeroCopy {
    mode: ZeroCopyMode,
    state: State,
    /// Grows with each change of state.
    epoch: u32,
    /// The last notices of this state, the latest in the lowest bit: whether it said copied.
    notices: u16,
    next_rest_ns: u64,
    outstanding: u32,
    counts: ZeroCopyCounts,
}

/// What became of a zero-copy send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// As if it had been a plain one.
    AsSent,
    /// The socket took nothing, and the link goes on: what was in the batch is planned again, and copied.
    SendAgain,
}

impl ZeroCopy {
    /// A link whose socket has just come.
    pub(crate) fn new(setting: &ZeroCopySetting, is_local: bool, now: Time) -> Self {
        let state = match setting.mode {
            _ if setting.lost.is_some() => State::Never,
            ZeroCopyMode::Never => State::Never,
            ZeroCopyMode::Auto if is_local => {
                State::Copying { until: now.after_ns(REST_MIN_NS), why: Why::Local }
            }
            ZeroCopyMode::Auto | ZeroCopyMode::Always => State::ZeroCopy,
        };
        let next_rest_ns = if matches!(state, State::Copying { .. }) { 2 * REST_MIN_NS } else { REST_MIN_NS };
        Self {
            mode: setting.mode,
            state,
            epoch: 0,
            notices: 0,
            next_rest_ns,
            outstanding: 0,
            counts: ZeroCopyCounts::default(),
        }
    }

    /// Whether the next batch, of so many bytes, is sent without a copy. If so, [`Self::handle_ended`] gets the ticket.
    pub(crate) fn poll(&mut self, bytes: u32, now: Time) -> Option<Ticket> {
        if bytes < BATCH_BYTES_MIN {
            return None;
        }
        if let State::Copying { until, .. } = self.state
            && until <= now
        {
            self.change(match self.mode {
                ZeroCopyMode::Always => State::ZeroCopy,
                _ => State::Probing { unsent: PROBE_SENDS, unanswered: PROBE_SENDS, copied: 0 },
            });
        }
        let wants = match &self.state {
            State::ZeroCopy => true,
            State::Probing { unsent, .. } => *unsent > 0,
            State::Copying { .. } | State::Off { .. } | State::Never => false,
        };
        if wants && self.outstanding >= OUTSTANDING_MAX {
            self.counts.crowded += 1;
            return None;
        }
        if let State::Probing { unsent, .. } = &mut self.state {
            *unsent = unsent.saturating_sub(1);
        }
        wants.then_some(Ticket(self.epoch))
    }

    /// The kernel took a batch, and a notice will follow.
    pub(crate) fn handle_held(&mut self) {
        self.counts.sent += 1;
        self.outstanding += 1;
    }

    /// A send came to nothing, or needs no notice.
    pub(crate) fn handle_ended(&mut self, ticket: Ticket, result: Result<(), i32>, now: Time) -> Outcome {
        let Err(errno) = result else {
            // Nothing is known of it, so that one more is sent in its place.
            self.send_another(ticket);
            return Outcome::AsSent;
        };
        match errno {
            libc::EOPNOTSUPP | libc::EINVAL => {
                self.change(State::Off { errno });
                Outcome::SendAgain
            }
            libc::ENOMEM | libc::ENOBUFS => {
                self.counts.refused += 1;
                if self.is_of_now(ticket) {
                    self.rest(Why::Memory, now);
                }
                Outcome::SendAgain
            }
            _ => {
                self.send_another(ticket);
                Outcome::AsSent
            }
        }
    }

    /// The kernel has let go of a batch. `copied`: whether it says that it made a copy; none if it does not tell.
    pub(crate) fn handle_notice(&mut self, ticket: Ticket, copied: Option<bool>, now: Time) {
        self.outstanding = self.outstanding.saturating_sub(1);
        let was_copied = copied == Some(true);
        self.counts.copied += u64::from(was_copied);
        if !self.is_of_now(ticket) || self.mode == ZeroCopyMode::Always {
            return;
        }
        self.notices = self.notices << 1 | u16::from(was_copied);
        match &mut self.state {
            State::ZeroCopy => {
                if self.notices.count_ones() == NOTICES {
                    self.rest(Why::Copied, now);
                }
            }
            State::Probing { unanswered, copied, .. } => {
                *unanswered = unanswered.saturating_sub(1);
                *copied += u8::from(was_copied);
                let (is_over, is_copied) = (*unanswered == 0, *copied == PROBE_SENDS);
                if is_over && is_copied {
                    self.rest(Why::Copied, now);
                } else if is_over {
                    self.next_rest_ns = REST_MIN_NS;
                    self.change(State::ZeroCopy);
                }
            }
            State::Copying { .. } | State::Off { .. } | State::Never => {}
        }
    }

    /// How it sends, and what came of it.
    pub(crate) fn report(&self) -> ZeroCopyState {
        let (mode, reason) = self.describe();
        ZeroCopyState {
            mode,
            reason,
            is_short_of_memory: matches!(self.state, State::Copying { why: Why::Memory, .. }),
            outstanding: self.outstanding,
            counts: self.counts,
        }
    }

    /// The state in one word, and why it is not `zero_copy`.
    pub(crate) fn describe(&self) -> (&'static str, Option<String>) {
        let why = |text: &str| Some(text.to_owned());
        match self.state {
            State::ZeroCopy => ("zero_copy", None),
            State::Probing { .. } => ("probing", why("tries whether the kernel still copies")),
            State::Copying { why: Why::Local, .. } => ("copy", why("the peer is on this machine")),
            State::Copying { why: Why::Copied, .. } => ("copy", why("the kernel copies on this path")),
            State::Copying { why: Why::Memory, .. } => ("copy", why("no more memory may be locked")),
            State::Off { errno } => ("off", Some(format!("refused: {}", crate::io::Errno(errno)))),
            State::Never => ("off", None),
        }
    }

    const fn is_of_now(&self, ticket: Ticket) -> bool {
        self.epoch == ticket.0
    }

    fn change(&mut self, state: State) {
        self.state = state;
        self.epoch = self.epoch.wrapping_add(1);
        self.notices = 0;
    }

    fn rest(&mut self, why: Why, now: Time) {
        self.change(State::Copying { until: now.after_ns(self.next_rest_ns), why });
        self.next_rest_ns = (2 * self.next_rest_ns).min(REST_MAX_NS);
    }

    fn send_another(&mut self, ticket: Ticket) {
        if self.is_of_now(ticket)
            && let State::Probing { unsent, .. } = &mut self.state
        {
            *unsent += 1;
        }
    }
}

/// Whether what this socket is connected to is on this machine: its address is of the loopback network, or the one that the
/// socket has itself. So is a peer of which nothing is known. Another address of this machine is found out by notices.
pub(crate) fn is_local(socket: BorrowedFd<'_>) -> bool {
    let socket = SockRef::from(&socket);
    let address = |address: io::Result<SockAddr>| Some(address.ok()?.as_socket()?.ip().to_canonical());
    let (peer, own) = (address(socket.peer_addr()), address(socket.local_addr()));
    peer.is_none_or(|peer| peer.is_loopback() || own == Some(peer))
}

#[cfg(test)]
mod tests;
