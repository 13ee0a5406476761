//! The receive segments of one gate: who may fill how many. Counts only; which segment it is does not matter here.
//!
//! Each channel owns `exclusive` segments that no other can take. What is left over is floating: the channels share
//! it, and one that needs more than there is waits its turn in a fair queue.
//!
//! A segment of a channel is *ready* (granted to the sender and not opened) or *used* (open, filled, or held by
//! the application). A grant is never taken back, so `ready` shrinks only when the sender opens a segment.
//! `ready + used` is at least `exclusive` while the channel is open, and what it has above `exclusive` is floating:
//! exclusive segments are a count, not identities.
//!
//! A gate that wants less in flight sets a *window*: a channel is granted nothing by which `ready + used` would be more
//! than that. What it has beyond goes as it is given back: floating segments to others, exclusive ones are held back
//! for their channel. The window is at least 1, so that each channel always goes on.
//!
//! Invariants ([`GatePool::check`]): floating = free + Σ over channels of what they have above `exclusive`; a channel
//! that has fewer ready than it needs, and room in its window, is in the queue, once, and then nothing is free.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::fmt;

use crate::invariant::{Violation, ensure};

/// Size of a gate's pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GatePoolSpec {
    /// Segments in all; at least `channels * exclusive`.
    pub segments: u32,
    /// Channels of the gate; at least 1.
    pub channels: u32,
    /// Segments that each channel owns; at least 1.
    pub exclusive: u32,
}

/// How many segments a gate must and may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GatePoolSize {
    /// With fewer it cannot work: the exclusive ones, and one floating if any are wanted.
    pub required: u64,
    /// The exclusive ones and all floating.
    pub max: u64,
}

impl GatePoolSpec {
    /// How many segments a gate of this many channels must and may have.
    #[must_use]
    pub const fn sized(channels: u32, exclusive: u32, floating: u32) -> GatePoolSize {
        let owned = channels as u64 * exclusive as u64;
        let one = if floating == 0 { 0 } else { 1 };
        GatePoolSize { required: owned + one, max: owned + floating as u64 }
    }
}

/// A pool that cannot work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GatePoolError {
    /// Segments there are.
    pub found: u32,
    /// Segments needed at least.
    pub needed: u64,
}

impl fmt::Display for GatePoolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the gate has {} segments; needed: at least {}", self.found, self.needed)
    }
}

impl core::error::Error for GatePoolError {}

/// The sender opened a segment that it was not granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotGranted;

#[derive(Clone, Copy, Debug, Default)]
struct Account {
    ready: u32,
    used: u32,
    required: u32,
    is_open: bool,
    is_waiting: bool,
}

impl Account {
    const fn floating(&self, exclusive: u32) -> u32 {
        (self.ready + self.used).saturating_sub(exclusive)
    }

    /// Ready segments that it has not, needs, and may have.
    fn lacks(&self, window: u32) -> u32 {
        if !self.is_open {
            return 0;
        }
        let room = window.saturating_sub(self.ready + self.used);
        self.required.saturating_sub(self.ready).min(room)
    }
}

/// The segments of one gate, by channel. A channel number that is out of range has no segments and gets none.
#[derive(Clone, Debug)]
pub struct GatePool {
    exclusive: u32,
    window: u32,
    floating: u32,
    floating_free: u32,
    accounts: Vec<Account>,
    waiting: VecDeque<u32>,
}

impl GatePool {
    /// A pool in which no channel is open.
    ///
    /// # Errors
    /// [`GatePoolError`] if there are no channels, no exclusive segments, or too few segments for them.
    pub fn new(spec: GatePoolSpec) -> Result<Self, GatePoolError> {
        let owned = u64::from(spec.channels) * u64::from(spec.exclusive);
        let Some(floating) = u64::from(spec.segments).checked_sub(owned).filter(|_| owned > 0) else {
            return Err(GatePoolError { found: spec.segments, needed: owned.max(1) });
        };
        Ok(Self {
            exclusive: spec.exclusive,
            window: u32::MAX,
            floating: floating as u32,
            floating_free: floating as u32,
            accounts: (0..spec.channels).map(|_| Account::default()).collect(),
            waiting: VecDeque::with_capacity(spec.channels as usize),
        })
    }

    /// A pool without segments and channels.
    #[must_use]
    pub const fn none() -> Self {
        Self {
            exclusive: 0,
            window: u32::MAX,
            floating: 0,
            floating_free: 0,
            accounts: Vec::new(),
            waiting: VecDeque::new(),
        }
    }

    /// Opens a channel: its exclusive segments, as far as its window has room, less those still held from before, are
    /// ready.
    pub fn open(&mut self, channel: u32) {
        let (exclusive, owned) = (self.exclusive, self.owned());
        if let Some(account) = self.account(channel) {
            account.is_open = true;
            account.required = exclusive;
            account.ready = owned.saturating_sub(account.used);
        }
    }

    /// How many segments each channel may be granted or use from now on; 0 counts as 1. What a channel has is not taken
    /// back. Channels that gained a ready segment are appended to `gained`.
    pub fn set_window(&mut self, window: u32, gained: &mut Vec<u32>) {
        self.window = window.max(1);
        let owned = self.owned();
        for channel in 0..self.accounts.len() as u32 {
            let Some(account) = self.account(channel).filter(|account| account.is_open) else { continue };
            let held_back = owned.saturating_sub(account.ready + account.used);
            if held_back > 0 {
                account.ready += held_back;
                gained.push(channel);
            }
            self.enlist(channel);
        }
        self.serve(gained);
    }

    /// How many segments each channel may be granted or use.
    #[must_use]
    pub const fn window(&self) -> u32 {
        self.window
    }

    /// Segments that an open channel has in any case.
    fn owned(&self) -> u32 {
        self.exclusive.min(self.window)
    }

    /// One that lacks a segment waits for it, once.
    fn enlist(&mut self, channel: u32) {
        let window = self.window;
        if let Some(account) = self.account(channel)
            && account.lacks(window) > 0
            && !account.is_waiting
        {
            account.is_waiting = true;
            self.waiting.push_back(channel);
        }
    }

    /// The sender told its backlog: the channel needs that many ready segments beside its exclusive ones. Takes what
    /// is free, and waits for the rest. Returns how many it gained.
    pub fn handle_backlog(&mut self, channel: u32, backlog: u32) -> u32 {
        let Some(account) = self.accounts.get_mut(channel as usize).filter(|account| account.is_open) else {
            return 0;
        };
        account.required = backlog.saturating_add(self.exclusive);
        let gained = account.lacks(self.window).min(self.floating_free);
        account.ready += gained;
        self.floating_free -= gained;
        self.enlist(channel);
        gained
    }

    /// The sender opens a segment.
    ///
    /// # Errors
    /// [`NotGranted`] if none is ready.
    pub fn take(&mut self, channel: u32) -> Result<(), NotGranted> {
        let account = self.account(channel).ok_or(NotGranted)?;
        account.ready = account.ready.checked_sub(1).ok_or(NotGranted)?;
        account.used += 1;
        // What was opened is no longer in the backlog that was told.
        account.required = account.required.saturating_sub(1);
        Ok(())
    }

    /// What the sender began to put into the segment that it opened last did not arrive: it is ready again.
    pub fn untake(&mut self, channel: u32) {
        if let Some(account) = self.account(channel).filter(|account| account.is_open && account.used > 0) {
            account.used -= 1;
            account.ready += 1;
            account.required = account.required.saturating_add(1);
        }
    }

    /// A used segment is empty again. Channels that gained a ready segment are appended to `gained`.
    pub fn give_back(&mut self, channel: u32, gained: &mut Vec<u32>) {
        let (exclusive, window) = (self.exclusive, self.window);
        let Some(account) = self.account(channel) else { return };
        let was_floating = account.floating(exclusive) > 0;
        let Some(used) = account.used.checked_sub(1) else { return };
        account.used = used;
        if was_floating {
            self.floating_free += 1;
            // It may have waited for room in its window.
            self.enlist(channel);
            self.serve(gained);
        } else if account.is_open && account.ready + account.used < window {
            account.ready += 1;
            gained.push(channel);
        }
    }

    /// The channel is over. What it had ready goes to others; what it uses comes back one by one.
    pub fn close(&mut self, channel: u32, gained: &mut Vec<u32>) {
        let exclusive = self.exclusive;
        let Some(account) = self.account(channel) else { return };
        let before = account.floating(exclusive);
        account.is_open = false;
        account.required = 0;
        account.ready = 0;
        let freed = before - account.floating(exclusive);
        self.floating_free += freed;
        self.serve(gained);
    }

    /// Hands free floating segments to waiting channels, one each per turn.
    fn serve(&mut self, gained: &mut Vec<u32>) {
        while self.floating_free > 0 {
            let Some(channel) = self.waiting.pop_front() else { return };
            let Some(account) = self.accounts.get_mut(channel as usize) else { continue };
            account.is_waiting = false;
            if account.lacks(self.window) == 0 {
                continue;
            }
            account.ready += 1;
            self.floating_free -= 1;
            gained.push(channel);
            self.enlist(channel);
        }
    }

    fn account(&mut self, channel: u32) -> Option<&mut Account> {
        self.accounts.get_mut(channel as usize)
    }

    /// Segments granted to the sender of this channel and not opened.
    #[must_use]
    pub fn ready(&self, channel: u32) -> u32 {
        self.accounts.get(channel as usize).map_or(0, |account| account.ready)
    }

    /// Segments of this channel that are open, filled or held by the application.
    #[must_use]
    pub fn used(&self, channel: u32) -> u32 {
        self.accounts.get(channel as usize).map_or(0, |account| account.used)
    }

    /// Ready segments that the channel wants: the backlog it was told and its exclusive ones.
    #[must_use]
    pub fn required(&self, channel: u32) -> u32 {
        self.accounts.get(channel as usize).map_or(0, |account| account.required)
    }

    /// Whether the channel waits for a floating segment.
    #[must_use]
    pub fn is_waiting(&self, channel: u32) -> bool {
        self.accounts.get(channel as usize).is_some_and(|account| account.is_waiting)
    }

    /// Floating segments that no channel has.
    #[must_use]
    pub const fn floating_free(&self) -> u32 {
        self.floating_free
    }

    /// Floating segments in all.
    #[must_use]
    pub const fn floating(&self) -> u32 {
        self.floating
    }

    /// Recounts everything.
    ///
    /// # Errors
    /// The first invariant that does not hold.
    pub fn check(&self) -> Result<(), Violation> {
        let lent: u32 = self.accounts.iter().map(|account| account.floating(self.exclusive)).sum();
        ensure!(
            lent + self.floating_free == self.floating,
            "floating segments are free or lent",
            "{lent} lent + {} free, {} in all",
            self.floating_free,
            self.floating
        );
        let mut queued: Vec<u32> = self.waiting.iter().copied().collect();
        let entries = queued.len();
        queued.sort_unstable();
        queued.dedup();
        ensure!(queued.len() == entries, "a channel waits once", "{:?}", self.waiting);
        for (channel, account) in self.accounts.iter().enumerate() {
            let is_queued = queued.binary_search(&(channel as u32)).is_ok();
            ensure!(is_queued == account.is_waiting, "waiting flag and queue agree", "channel {channel}");
            if account.is_open {
                let needs = account.lacks(self.window) > 0;
                ensure!(
                    account.ready + account.used >= self.owned(),
                    "an open channel has its exclusive segments, as far as its window has room",
                    "channel {channel}: {account:?}, window {}",
                    self.window
                );
                ensure!(
                    account.ready + account.used >= 1,
                    "an open channel always goes on",
                    "channel {channel}: {account:?}"
                );
                ensure!(!needs || is_queued, "who needs a segment waits", "channel {channel}: {account:?}");
                ensure!(!needs || self.floating_free == 0, "nobody waits beside a free segment", "{channel}");
            } else {
                ensure!(
                    account.ready == 0,
                    "a closed channel has no grants",
                    "channel {channel}: {account:?}"
                );
            }
        }
        Ok(())
    }
}
