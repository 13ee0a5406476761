//! The send stalls of one channel.
//!
//! A stall opens when something waits to be sent: data, an event, or the end of data. It closes when a frame of it is
//! planned, or nothing waits any more. What is left in the queue then opens the next one at the same moment, so that a
//! channel whose queue is never empty has stalls without gaps, each as long as nothing of it was sent.
//!
//! What keeps it from being sent is its [`Hold`]. If there are several, the first of these counts: the barrier, the lost
//! socket, credit, the event window. If there is none, the next batch of its link could carry it, and the time is split by
//! the link's one send: while that is in the kernel the cause is the socket, and else the shard, which has not come to
//! it. Instead of visiting all channels of a link when a send begins or ends, each compares how long its link has been
//! sending when the hold began and when it ended.
//!
//! **Sums.** Each nanosecond between opening and closing goes to one cause. A part is settled when the hold changes, when
//! the stall closes, and whenever the account is told ([`SendStalls::settle`]): what was told once is not taken back, even
//! if what comes later would have divided it otherwise.

use super::credit::{self, Arrival};
use super::emit::ChannelTimes;
use super::{CAUSES, Cause, LengthsByCause, ReceiveAge, Stall, StallTotals, Stalls};
use crate::ids::Time;
use crate::invariant::{Violation, ensure};

/// What keeps a channel from sending what waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    /// No consumer has come.
    Absent,
    /// The socket of its link is lost, and the receiver has not said where to go on.
    Lost,
    /// There is no credit.
    Credit,
    /// The event window is used up.
    Event,
    /// Nothing: it goes into the next batch.
    Ready,
}

/// What a channel's stalls have to know of its link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Path {
    /// How long sends were in flight, this one included, in nanoseconds since the link came.
    pub(crate) sending_ns: u64,
    /// A send is in flight.
    pub(crate) is_sending: bool,
    /// When something was heard last, if that is so long ago that signs of life are missing.
    pub(crate) silent_since: Option<Time>,
}

/// A stall that goes on.
#[derive(Clone, Copy, Debug)]
struct Open {
    since: Time,
    hold: Hold,
    /// Since when that holds.
    held_since: Time,
    /// Up to where it is settled.
    settled: Time,
    /// [`Path::sending_ns`] at that time.
    sending_ns: u64,
    /// Settled time by cause.
    parts: [u64; CAUSES],
}

/// Time without credit of which 1 part may be inexact, so that the whole still counts as exact.
const EXACT_PARTS: u64 = 100;

/// The send stalls of one channel.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SendStalls {
    /// Without what the open one has that is not settled.
    ended: Stalls,
    open: Option<Open>,
    /// Length of all stalls that have ended, measured as a whole.
    measured_ns: u64,
    /// Settled time without credit, whatever it went to.
    credit_ns: u64,
    /// Of that, what was ended by credit of which it was not known, or not exactly, how long it lay in the socket.
    inexact_ns: u64,
}

impl SendStalls {
    /// Something changed: from now on `hold` keeps what waits; `None`: nothing waits. `all` gets the stall that this ends, if it
    /// ends one, as in all calls below.
    pub(crate) fn update(&mut self, hold: Option<Hold>, path: &Path, now: Time, all: &mut LengthsByCause) {
        let Some(open) = &mut self.open else {
            return self.open_at(hold, path, now);
        };
        if Some(open.hold) == hold {
            return;
        }
        self.settle(path, now);
        match (&mut self.open, hold) {
            (Some(open), Some(hold)) => (open.hold, open.held_since) = (hold, now),
            _ => self.close(now, all),
        }
    }

    /// A Limit arrived. If it ends a wait for credit, how it came says what that was.
    pub(crate) fn handle_limit(
        &mut self,
        hold: Option<Hold>,
        arrival: &Arrival,
        path: &Path,
        now: Time,
        all: &mut LengthsByCause,
    ) {
        if let Some(open) = &mut self.open
            && open.hold == Hold::Credit
            && hold != Some(Hold::Credit)
        {
            let ns = now.since_ns(open.settled);
            let parts = credit::split(ns, arrival);
            self.credit_ns = self.credit_ns.saturating_add(ns);
            if !matches!(arrival.age, Some(ReceiveAge::Exactly(_))) {
                self.inexact_ns = self.inexact_ns.saturating_add(ns);
            }
            add(open, &mut self.ended.totals, &parts);
            (open.settled, open.sending_ns) = (now.max(open.settled), path.sending_ns);
        }
        self.update(hold, path, now, all);
    }

    /// A frame was planned: the stall is over, and what still waits begins another one. A priority event that overtakes
    /// data which waits for credit does not end the wait of that.
    pub(crate) fn handle_planned(
        &mut self,
        hold: Option<Hold>,
        path: &Path,
        now: Time,
        all: &mut LengthsByCause,
    ) {
        let is_overtaken =
            hold == Some(Hold::Credit) && self.open.is_some_and(|open| open.hold == Hold::Credit);
        // Of several frames in one batch the first one has ended it.
        let is_new = self.open.is_some_and(|open| open.since == now && Some(open.hold) == hold);
        if is_overtaken || is_new {
            return;
        }
        self.settle(path, now);
        self.close(now, all);
        self.open_at(hold, path, now);
    }

    /// Frames that were planned at `planned` and in a send since then have not left: they have waited for the socket.
    pub(crate) fn handle_put_back(
        &mut self,
        hold: Option<Hold>,
        planned: Time,
        path: &Path,
        now: Time,
        all: &mut LengthsByCause,
    ) {
        let planned = planned.min(now);
        if self.open.is_none() {
            self.open_at(hold, path, now);
        }
        if let Some(open) = &mut self.open {
            let mut parts = [0; CAUSES];
            set(&mut parts, Cause::Socket, open.since.since_ns(planned));
            add(open, &mut self.ended.totals, &parts);
            open.since = open.since.min(planned);
        }
        self.update(hold, path, now, all);
    }

    /// Nothing will be sent any more.
    pub(crate) fn end(&mut self, path: &Path, now: Time, all: &mut LengthsByCause) {
        self.update(None, path, now, all);
    }

    /// Time that is settled, and waits that have ended.
    pub(crate) const fn settled(&self) -> &StallTotals {
        &self.ended.totals
    }

    /// Gives the time up to now to its causes.
    pub(crate) fn settle(&mut self, path: &Path, now: Time) {
        if let Some(open) = &mut self.open {
            let parts = open.unsettled(path, now);
            self.credit_ns = self.credit_ns.saturating_add(open.credit_ns(now));
            add(open, &mut self.ended.totals, &parts);
            (open.settled, open.sending_ns) = (now.max(open.settled), path.sending_ns);
        }
    }

    /// How long there was no credit for what waits, the wait that goes on included, in nanoseconds.
    pub(crate) fn without_credit_ns(&self, now: Time) -> u64 {
        self.credit_ns.saturating_add(self.open.map_or(0, |open| open.credit_ns(now)))
    }

    /// Everything that is told, the stall that goes on included.
    pub(crate) fn stalls(&self, path: &Path, now: Time) -> Stalls {
        let mut stalls = self.ended;
        if let Some(open) = &self.open {
            let parts = open.unsettled(path, now);
            add_parts(&mut stalls.totals, &parts);
            stalls.open = Some((open.cause(path), open.since));
        }
        stalls
    }

    /// What it waits for at this moment; none if nothing waits.
    pub(crate) fn cause_now(&self, path: &Path) -> Option<Cause> {
        Some(self.open.as_ref()?.cause(path))
    }

    /// Times by cause, the stall that goes on included.
    pub(crate) fn times(&self, path: &Path, now: Time) -> ChannelTimes {
        let mut totals = self.ended.totals;
        let Some(open) = &self.open else { return ChannelTimes { ns: totals.ns, held: None } };
        add_parts(&mut totals, &open.unsettled(path, now));
        // Socket and shard take turns while it is ready: which of them was when is not known.
        let is_one = open.hold != Hold::Ready;
        let held = is_one.then(|| (open.cause(path), now.since_ns(open.held_since)));
        ChannelTimes { ns: totals.ns, held }
    }

    /// Whether more than 1 part in [`EXACT_PARTS`] of the time without credit is divided by what is not known exactly. A
    /// link's first Limit may have come before anything could watch its socket, and says nothing of those that follow.
    pub(crate) const fn is_approximate(&self) -> bool {
        self.inexact_ns > self.credit_ns / EXACT_PARTS
    }

    fn open_at(&mut self, hold: Option<Hold>, path: &Path, now: Time) {
        self.open = hold.map(|hold| Open {
            since: now,
            hold,
            held_since: now,
            settled: now,
            sending_ns: path.sending_ns,
            parts: [0; CAUSES],
        });
    }

    /// Ends the open stall, which is settled. One that took no time, as far as the clock of the shard tells, was none.
    fn close(&mut self, now: Time, all: &mut LengthsByCause) {
        let Some(open) = self.open.take() else { return };
        let ns = now.since_ns(open.since);
        if ns == 0 {
            return;
        }
        self.measured_ns = self.measured_ns.saturating_add(ns);
        let Some(cause) = (StallTotals { ns: open.parts, count: [0; CAUSES] }).most() else { return };
        self.ended.record(Stall { ns, cause, at: now }, 1, all);
    }

    /// Recounts what can be: `hold` is what keeps the channel by its own state.
    ///
    /// # Errors
    /// The first invariant that does not hold.
    pub(crate) fn check(&self, hold: Option<Hold>) -> Result<(), Violation> {
        let found = self.open.map(|open| open.hold);
        ensure!(
            found == hold,
            "a stall is open while something waits, with its cause",
            "{found:?}, {hold:?}"
        );
        let open_ns = self.open.map_or(0, |open| open.settled.since_ns(open.since));
        let (sum, measured) = (self.ended.totals.total_ns(), self.measured_ns.saturating_add(open_ns));
        ensure!(sum == measured, "the causes of stalls add up to their time", "{sum} ns of {measured}");
        let (count, lengths) = (self.ended.totals.total_count(), self.ended.lengths.total_count());
        ensure!(count == lengths, "each stall is counted once", "{count} by cause, {lengths} by length");
        Ok(())
    }
}

impl Open {
    /// The time without credit that is not settled.
    fn credit_ns(&self, now: Time) -> u64 {
        if self.hold == Hold::Credit { now.since_ns(self.settled) } else { 0 }
    }

    /// By cause, the time that is not settled.
    fn unsettled(&self, path: &Path, now: Time) -> [u64; CAUSES] {
        let ns = now.since_ns(self.settled);
        let mut parts = [0; CAUSES];
        match self.hold {
            Hold::Absent => set(&mut parts, Cause::Consumer, ns),
            Hold::Lost => set(&mut parts, Cause::Network, ns),
            Hold::Event => set(&mut parts, Cause::Event, ns),
            Hold::Credit => {
                let silent_ns = path.silent_since.map_or(0, |since| now.since_ns(since)).min(ns);
                set(&mut parts, Cause::Network, silent_ns);
                set(&mut parts, Cause::Consumer, ns - silent_ns);
            }
            Hold::Ready => {
                let sending_ns = path.sending_ns.saturating_sub(self.sending_ns).min(ns);
                set(&mut parts, Cause::Socket, sending_ns);
                set(&mut parts, Cause::Shard, ns - sending_ns);
            }
        }
        parts
    }

    /// What it waits for at this moment.
    const fn cause(&self, path: &Path) -> Cause {
        match self.hold {
            Hold::Absent => Cause::Consumer,
            Hold::Lost => Cause::Network,
            Hold::Event => Cause::Event,
            Hold::Credit if path.silent_since.is_some() => Cause::Network,
            Hold::Credit => Cause::Consumer,
            Hold::Ready if path.is_sending => Cause::Socket,
            Hold::Ready => Cause::Shard,
        }
    }
}

fn set(parts: &mut [u64; CAUSES], cause: Cause, ns: u64) {
    if let Some(part) = parts.get_mut(cause.index()) {
        *part = ns;
    }
}

fn add(open: &mut Open, totals: &mut StallTotals, parts: &[u64; CAUSES]) {
    for (mine, part) in open.parts.iter_mut().zip(parts) {
        *mine = mine.saturating_add(*part);
    }
    add_parts(totals, parts);
}

fn add_parts(totals: &mut StallTotals, parts: &[u64; CAUSES]) {
    for (total, part) in totals.ns.iter_mut().zip(parts) {
        *total = total.saturating_add(*part);
    }
}
