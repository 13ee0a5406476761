//! The kernel probes: the only user of `aya`.
//!
//! | file | holds |
//! |---|---|
//! | this | the probes once they run: watching a socket, reading its account, taking stalls |
//! | [`loader`] | from the object to attached programs |
//! | [`hooks`] | which program stands where, and what is lost without it |
//! | [`btf`] | where members of the kernel's structures lie |
//! | [`privileges`] | what this thread may do |
//! | [`accounts`], [`slots`] | the memory that the programs write, and who has which part of it |
//! | [`cause`] | why there are no probes |
//!
//! The object is built by `build.rs` from `ebpf/` and is part of the program. It does not depend on the kernel it was
//! built on.

#![allow(unsafe_code)] // declares which records are plain data for the kernel

mod accounts;
mod btf;
pub(crate) mod cause;
pub(crate) mod hooks;
mod loader;
mod privileges;
mod slots;

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use aya::Ebpf;
use aya::maps::{Array, MapData, PerCpuArray, RingBuf, SkStorage};
use weir_ebpf_abi::{Account, SocketStall, Totals, Watch};

use accounts::Accounts;
use hooks::HookState;
use slots::{Slot, Slots};

pub(crate) use loader::{Sources, load};

/// The object with the programs; empty if the daemon was built without.
pub(crate) static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/weir.bpf.o"));

/// Why the object is empty; empty if it is not.
pub(crate) const MISSING: &str = env!("WEIR_EBPF_MISSING");

/// Most sockets that can be watched at a time, whatever is asked for.
const SLOTS_MAX: u32 = 4096;

/// An account, in the form in which the kernel is given one.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct AccountRecord(Account);

// SAFETY: words of 8 bytes without a gap, of which any value is one; the size is asserted where it is declared.
unsafe impl aya::Pod for AccountRecord {}

/// A watch, in the form in which the kernel is given one.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct WatchRecord(Watch);

// SAFETY: integers without a gap, of which any value is one; the size is asserted where it is declared.
unsafe impl aya::Pod for WatchRecord {}

/// Counts of one processor, in the form in which the kernel gives them.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct TotalsRecord(Totals);

// SAFETY: words of 8 bytes, of which any value is one.
unsafe impl aya::Pod for TotalsRecord {}

/// Probes that run. They are taken out of the kernel when this is dropped.
pub(crate) struct Probes {
    /// Keeps the programs attached.
    _programs: Ebpf,
    hooks: Vec<HookState>,
    writing: Mutex<Writing>,
    accounts: Accounts,
    totals: PerCpuArray<MapData, TotalsRecord>,
    stalls: Mutex<RingBuf<MapData>>,
    /// Sockets that could not be watched.
    unwatched: AtomicU64,
}

/// What changes when a socket is watched.
struct Writing {
    slots: Slots,
    accounts: Array<MapData, AccountRecord>,
    watches: SkStorage<MapData, WatchRecord>,
}

/// A socket that the probes watch. Its place is given back when this is dropped.
pub(crate) struct WatchedSocket {
    probes: Arc<Probes>,
    slot: Slot,
}

impl Probes {
    /// What became of each hook.
    pub(crate) fn hooks(&self) -> &[HookState] {
        &self.hooks
    }

    /// How many sockets are watched.
    pub(crate) fn watched(&self) -> usize {
        self.writing().slots.taken()
    }

    /// Sockets that could not be watched, for want of a place or because the kernel refused it.
    pub(crate) fn unwatched_total(&self) -> u64 {
        self.unwatched.load(Ordering::Relaxed)
    }

    /// Stalls that found no room in the ring.
    pub(crate) fn stalls_lost_total(&self) -> u64 {
        let processors = self.totals.get(&0, 0);
        processors.map_or(0, |all| all.iter().map(|one| one.0.stalls_lost).sum())
    }

    /// Takes every finished stall that is there.
    pub(crate) fn take_stalls(&self, mut take: impl FnMut(SocketStall)) {
        let mut ring = self.stalls.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(record) = ring.next() {
            if let Some(stall) = accounts::stall(&record) {
                take(stall);
            }
        }
    }

    /// Watches a TCP socket from this moment on. `None`: there is no place for it, or the kernel refuses; it is counted.
    pub(crate) fn watch(self: &Arc<Self>, socket: BorrowedFd<'_>, now_ns: u64) -> Option<WatchedSocket> {
        let slot = self.writing().watch(socket, now_ns);
        if slot.is_none() {
            self.unwatched.fetch_add(1, Ordering::Relaxed);
        }
        Some(WatchedSocket { probes: Arc::clone(self), slot: slot? })
    }

    fn writing(&self) -> MutexGuard<'_, Writing> {
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Writing {
    fn watch(&mut self, socket: BorrowedFd<'_>, now_ns: u64) -> Option<Slot> {
        let slot = self.slots.take(now_ns)?;
        // The account first: once the socket has its watch, its probes write.
        let account = AccountRecord(Account::begun(slot.generation, now_ns));
        let watch = Watch { slot: slot.index, reserved: 0, generation: slot.generation };
        let outcome = self.accounts.set(slot.index, account, 0);
        let outcome = outcome.and_then(|()| self.watches.insert(&socket.as_raw_fd(), WatchRecord(watch), 0));
        match outcome {
            Ok(()) => Some(slot),
            Err(error) => {
                tracing::debug!(%error, "a socket cannot be watched");
                self.slots.give_back(slot, now_ns);
                None
            }
        }
    }
}

impl WatchedSocket {
    /// Its account at this moment; `None` if it is written without a pause.
    pub(crate) fn account(&self) -> Option<Box<Account>> {
        self.probes.accounts.copy(self.slot)
    }

    /// As [`Accounts::read_since`].
    pub(crate) fn read_since(&self, seen: u64) -> Option<(Option<u64>, u64)> {
        self.probes.accounts.read_since(self.slot, seen)
    }

    /// Ends watching while the socket is still open. Its account stays as it is.
    pub(crate) fn end(&self, socket: BorrowedFd<'_>) {
        // The kernel forgets it with the socket in any case.
        let _ = self.probes.writing().watches.remove(&socket.as_raw_fd());
    }
}

impl Drop for WatchedSocket {
    fn drop(&mut self) {
        self.probes.writing().slots.give_back(self.slot, super::sockets::monotonic_ns());
    }
}

/// Places for this many shards: as many data links as the node lets each have, and some that are being replaced.
pub(crate) fn slots_for(shards: u32, links_per_shard: u32) -> u32 {
    shards.saturating_mul(links_per_shard.saturating_add(links_per_shard / 4)).clamp(1, SLOTS_MAX)
}
