//! Making a ring: on the thread that starts the shards, so that what is missing is known before any of them runs.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};

use io_uring::IoUring;

use super::Uring;
use super::fixed::{Fixed, REGIONS_MAX, Registrar};
use super::memory::ReceiveMemory;
use super::queue::Queue;
use super::socket::Sockets;
use super::watch::Watches;
use super::zero_copy::Holds;
use crate::io::probe::{self, Level};
use crate::io::{Errno, RingCounters, RingError};
use crate::memory::{Backing, HugepageMode};

/// Most sockets of one ring.
const SOCKETS_MAX: u16 = 32 << 10;

/// How large a ring is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UringConfig {
    /// How it receives: at most what [`probe::probe`] found.
    pub level: Level,
    /// Entries of the submission queue, 8 to 4,096. The completion queue has four times as many.
    pub entries: u32,
    /// Most sockets, 1 to 32,768. The kernel also wants it at most the limit on open descriptors.
    pub sockets: u16,
    /// Receive buffers: a power of two, 2 to 128. Unused at [`Level::OneShot`].
    pub buffers: u16,
    /// Size of a receive buffer in bytes: a power of two, 4 KiB to 16 MiB.
    pub buffer_bytes: u32,
    /// Whether receive buffers are made of hugepages. Unused at [`Level::OneShot`].
    pub hugepages: HugepageMode,
    /// Whether the kernel is asked to tell whether it copied what was to be sent without a copy. Linux 6.2; one that does
    /// not know the question refuses the send.
    pub zero_copy_usage: bool,
    /// Whether regions that zero-copy sends draw on are registered, for sends that name them. Without effect below
    /// [`Level::Full`].
    pub register: bool,
}

impl UringConfig {
    /// The usual ring of a shard at this level: 256 entries, 256 sockets, 8 buffers of 256 KiB.
    #[must_use]
    pub const fn new(level: Level) -> Self {
        Self {
            level,
            entries: 256,
            sockets: 256,
            buffers: 8,
            buffer_bytes: 256 << 10,
            hugepages: HugepageMode::Auto,
            zero_copy_usage: true,
            register: true,
        }
    }

    fn check(&self) -> Result<(), RingError> {
        let refuse =
            |text: String| Err(RingError::fatal(text, Errno(libc::EINVAL), "change the configuration"));
        if !(8..=4096).contains(&self.entries) {
            return refuse(format!("submission queue of {} entries; needed: 8 to 4096", self.entries));
        }
        if !(1..=SOCKETS_MAX).contains(&self.sockets) {
            return refuse(format!("{} sockets; needed: 1 to {SOCKETS_MAX}", self.sockets));
        }
        if !self.buffers.is_power_of_two() || !(2..=128).contains(&self.buffers) {
            return refuse(format!("{} receive buffers; needed: a power of two from 2 to 128", self.buffers));
        }
        if !self.buffer_bytes.is_power_of_two() || !(4 << 10..=16 << 20).contains(&self.buffer_bytes) {
            let found = self.buffer_bytes;
            return refuse(format!(
                "receive buffers of {found} bytes; needed: a power of two from 4096 to 16777216"
            ));
        }
        Ok(())
    }
}

/// A ring that nobody uses yet, for any thread.
pub struct UringSetup {
    // In this order, so that the kernel's side goes before the memory that it uses.
    ring: Box<IoUring>,
    memory: ReceiveMemory,
    sockets: u16,
    entries: u32,
    zero_copy_usage: bool,
    is_registering: bool,
}

impl UringSetup {
    /// Makes a ring.
    ///
    /// # Errors
    ///
    /// [`crate::io::Disposition::Fatal`], with what the operator can do: io_uring is switched off or too old, a
    /// resource limit is too low, or the configuration is out of its bounds.
    pub fn create(config: &UringConfig) -> Result<Self, RingError> {
        config.check()?;
        let ring: IoUring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .setup_r_disabled()
            .setup_submit_all()
            .setup_cqsize(config.entries * 4)
            .build(config.entries)
            .map_err(|error| probe::setup_error(error.into()))?;
        ring.submitter().register_files_sparse(u32::from(config.sockets)).map_err(|error| {
            let fix = format!(
                "raise the limit on open descriptors (LimitNOFILE=, ulimit -n) to more than {}, or lower the number of sockets",
                config.sockets
            );
            RingError::fatal("io_uring_register(FILES)", error.into(), fix)
        })?;
        let memory = ReceiveMemory::create(&ring, config)?;
        let is_registering = config.register && config.level == Level::Full;
        if is_registering {
            ring.submitter().register_buffers_sparse(u32::from(REGIONS_MAX)).map_err(|error| {
                RingError::fatal("io_uring_register(BUFFERS)", error.into(), "set io.level = \"incremental\"")
            })?;
        }
        Ok(Self {
            ring: Box::new(ring),
            memory,
            sockets: config.sockets,
            entries: config.entries,
            zero_copy_usage: config.zero_copy_usage,
            is_registering,
        })
    }

    /// What the receive buffers are made of.
    #[must_use]
    pub const fn backing(&self) -> Backing {
        self.memory.backing()
    }

    /// Makes this thread the one that uses the ring.
    ///
    /// # Errors
    ///
    /// [`crate::io::Disposition::Fatal`] when the kernel refuses.
    pub fn enable(self) -> Result<Uring, RingError> {
        static TAG: AtomicU32 = AtomicU32::new(0);
        let sockets = usize::from(self.sockets);
        Ok(Uring {
            // Only a name: no other memory is published with it.
            tag: TAG.fetch_add(1, Ordering::Relaxed),
            queue: Queue::enable(self.ring, self.entries as usize)?,
            sockets: Sockets::new(self.sockets),
            holds: Holds::new(self.zero_copy_usage),
            fixed: Fixed::new(self.is_registering),
            registrar: Registrar::default(),
            watches: Watches::default(),
            memory: self.memory,
            ready: VecDeque::with_capacity(sockets),
            starved: VecDeque::with_capacity(sockets),
            counters: RingCounters::default(),
        })
    }
}
