//! Regions: sealed shared memory, cut into segments.

use std::marker::PhantomData;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::{Errno, retry_on_intr};
use rustix::mm::{Advice, madvise};

use super::numa::{self, BytesByNode};
use super::span::{Span, TAIL_BYTES};
use super::system::{self, Hugepages};
use super::{Backing, HugepageMode, PAGE_BYTES, RegionError, region_bytes};

/// Memory of one result partition: the client writes it, the kernel sends from it, the daemon never looks at it.
#[derive(Debug)]
pub struct SendRegion {
    memory: Mapping,
}

/// Memory of one input gate: the daemon writes it, the client reads it.
#[derive(Debug)]
pub struct ReceiveRegion {
    memory: Mapping,
}

/// A range inside one segment of a send region, for the kernel to read. The daemon has no way to read it.
#[derive(Clone, Copy, Debug)]
pub struct RegionSlice<'region> {
    address: *const u8,
    bytes: u32,
    region: PhantomData<&'region SendRegion>,
}

impl RegionSlice<'_> {
    /// Address of the first byte. Valid for as long as the region lives, but its contents may change or vanish.
    #[must_use]
    pub const fn address(&self) -> *const u8 {
        self.address
    }

    /// Length in bytes.
    #[must_use]
    pub const fn bytes(&self) -> u32 {
        self.bytes
    }
}

impl SendRegion {
    /// Makes a region of at least `segments_min` segments. The second value is the descriptor for the client, which
    /// may map it for reading and writing; the third is the number of segments that the pages hold, at least
    /// `segments_min`.
    ///
    /// # Errors
    ///
    /// Any [`RegionError`]; [`RegionError::NoHugepages`] only with [`HugepageMode::Require`].
    pub fn create(
        segments_min: u32,
        segment_bytes: u32,
        mode: HugepageMode,
    ) -> Result<(Arc<Self>, OwnedFd, u32), RegionError> {
        Self::create_at(segments_min, segment_bytes, mode, Path::new(system::ROOT))
    }

    /// As [`SendRegion::create`], with what the system has as shown under `root`.
    pub(super) fn create_at(
        segments_min: u32,
        segment_bytes: u32,
        mode: HugepageMode,
        root: &Path,
    ) -> Result<(Arc<Self>, OwnedFd, u32), RegionError> {
        let (memory, file) = Mapping::create(&SEND, segments_min, segment_bytes, mode, root)?;
        let segments = memory.segments;
        Ok((Arc::new(Self { memory }), file, segments))
    }

    /// The range of `bytes` bytes at `offset` in this segment. None unless all of it lies inside the segment.
    #[must_use]
    pub fn slice(&self, segment: u32, offset: u32, bytes: u32) -> Option<RegionSlice<'_>> {
        let address = self.memory.address(segment, offset, bytes)?;
        Some(RegionSlice { address, bytes, region: PhantomData })
    }

    /// Whether the kernel can read this range now: a client can take pages away ([`RegionSlice`]) and others can take
    /// those before the kernel needs new ones. Nothing is read; a missing page is allocated if there is one. False for
    /// a range outside its segment.
    #[must_use]
    pub fn is_readable(&self, segment: u32, offset: u32, bytes: u32) -> bool {
        let Some(address) = self.memory.address(segment, offset, bytes) else {
            return false;
        };
        // Back to the start of the page, which lies in the mapping, since that begins with a page.
        let before = address.addr() % PAGE_BYTES as usize;
        // SAFETY: the range lies inside the mapping, which lives as long as `self`. The call changes no byte.
        let outcome = retry_on_intr(|| unsafe {
            madvise(address.wrapping_sub(before).cast(), before + bytes as usize, Advice::LinuxPopulateRead)
        });
        // Any other error says that the kernel cannot tell, and not that there is no memory.
        !matches!(outcome, Err(Errno::FAULT | Errno::NOMEM | Errno::HWPOISON))
    }

    /// A second descriptor of a region's file, for a consumer on this node. It can be mapped for reading only, and nothing can
    /// be taken from the file or added to it by it: for that the kernel asks how it was opened. The region's mode lets
    /// nobody but the daemon's own user open it anew.
    ///
    /// # Errors
    /// The kernel refuses, or there is no `/proc`.
    pub fn readable(file: &OwnedFd) -> Result<OwnedFd, Errno> {
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
    }

    /// How many segments it has.
    #[must_use]
    pub const fn segments(&self) -> u32 {
        self.memory.segments
    }

    /// Bytes of memory that it takes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.memory.bytes()
    }

    /// What it is made of.
    #[must_use]
    pub const fn backing(&self) -> Backing {
        self.memory.backing
    }

    /// On which NUMA nodes its pages are.
    #[must_use]
    pub fn nodes(&self) -> BytesByNode {
        self.memory.nodes()
    }

    /// Where it lies.
    pub(super) const fn span(&self) -> &Span {
        &self.memory.span
    }

    /// Takes the memory away from under the mapping, as a client does that punches a hole for which there is no page
    /// left.
    #[cfg(test)]
    pub fn forbid_reading(&self) {
        use rustix::mm::{MapFlags, ProtFlags, mmap};
        let (start, bytes) = (self.memory.span.address().cast(), self.memory.span.bytes());
        // Beyond the end of a file there is no memory, as there is none in such a hole.
        let empty = rustix::fs::memfd_create("weir-hole", MemfdFlags::CLOEXEC).expect("a file");
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: the range is the mapping, which nobody in this process reads or writes, and which is unmapped as a
        // whole in the end.
        unsafe { mmap(start, bytes, ProtFlags::READ | ProtFlags::WRITE, flags, &empty, 0) }.expect("mmap");
    }
}

impl ReceiveRegion {
    /// Makes a region of at least `segments_min` segments. The second value is the descriptor for the client, which
    /// can map it for reading only; the third is the number of segments that the pages hold, at least `segments_min`.
    ///
    /// # Errors
    ///
    /// Any [`RegionError`]; [`RegionError::NoHugepages`] only with [`HugepageMode::Require`].
    pub fn create(
        segments_min: u32,
        segment_bytes: u32,
        mode: HugepageMode,
    ) -> Result<(Self, OwnedFd, u32), RegionError> {
        let (memory, file) =
            Mapping::create(&RECEIVE, segments_min, segment_bytes, mode, Path::new(system::ROOT))?;
        let segments = memory.segments;
        Ok((Self { memory }, file, segments))
    }

    /// Copies `bytes` to `offset` in this segment. False, and nothing is written, unless all of it lies inside the
    /// segment.
    #[must_use]
    pub fn write(&mut self, segment: u32, offset: u32, bytes: &[u8]) -> bool {
        let Ok(length) = u32::try_from(bytes.len()) else {
            return false;
        };
        let Some(address) = self.memory.address(segment, offset, length) else {
            return false;
        };
        // SAFETY: `address` up to `length` bytes lies inside the mapping, which lives as long as `self`. Its pages
        // are allocated, and the seals keep every client from removing one. `bytes` cannot overlap it: nobody in
        // this process holds a reference into the mapping. Clients that read at the same time are other processes.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), address, bytes.len()) };
        true
    }

    /// How many segments it has.
    #[must_use]
    pub const fn segments(&self) -> u32 {
        self.memory.segments
    }

    /// Bytes of memory that it takes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.memory.bytes()
    }

    /// What it is made of.
    #[must_use]
    pub const fn backing(&self) -> Backing {
        self.memory.backing
    }

    /// On which NUMA nodes its pages are.
    #[must_use]
    pub fn nodes(&self) -> BytesByNode {
        self.memory.nodes()
    }
}

/// What the client may do with a region.
struct Access {
    /// Name of the file, as `/proc/PID/maps` shows it.
    name: &'static str,
    /// File mode.
    mode: Mode,
    /// Seals beside those that every region has.
    seals: SealFlags,
    /// Bytes of ordinary pages behind it.
    tail_bytes: usize,
}

const SEND: Access = Access {
    name: "weir-send",
    mode: Mode::from_raw_mode(0o600),
    seals: SealFlags::empty(),
    tail_bytes: TAIL_BYTES,
};

// The seal leaves the daemon's mapping writable, since that exists before the seal.
const RECEIVE: Access = Access {
    name: "weir-receive",
    mode: Mode::from_raw_mode(0o400),
    seals: SealFlags::FUTURE_WRITE,
    tail_bytes: 0,
};

/// One mapped, sealed region.
#[derive(Debug)]
struct Mapping {
    span: Span,
    segments: u32,
    segment_bytes: u32,
    backing: Backing,
}

impl Mapping {
    fn create(
        access: &Access,
        segments_min: u32,
        segment_bytes: u32,
        mode: HugepageMode,
        root: &Path,
    ) -> Result<(Self, OwnedFd), RegionError> {
        if mode != HugepageMode::Off {
            match Self::create_backed(access, segments_min, segment_bytes, Backing::Hugepages, root) {
                Err(RegionError::NoHugepages { .. }) if mode == HugepageMode::Auto => {}
                outcome => return outcome,
            }
        }
        Self::create_backed(access, segments_min, segment_bytes, Backing::Ordinary, root)
    }

    fn create_backed(
        access: &Access,
        segments_min: u32,
        segment_bytes: u32,
        backing: Backing,
        root: &Path,
    ) -> Result<(Self, OwnedFd), RegionError> {
        let bytes = region_bytes(segments_min, segment_bytes, backing)?;
        let length = usize::try_from(bytes).ok().filter(|length| isize::try_from(*length).is_ok());
        let segments = u32::try_from(bytes / u64::from(segment_bytes));
        let (Some(length), Ok(segments)) = (length, segments) else {
            return Err(RegionError::NoMemory {
                wanted_bytes: bytes,
                available_bytes: system::memory_available(root).unwrap_or_default(),
            });
        };
        let file = match backing {
            Backing::Hugepages => hugepage_file(access.name, bytes, root)?,
            Backing::Ordinary => ordinary_file(access.name, bytes, root)?,
        };
        let os = |call| move |errno| RegionError::Os { call, errno };
        rustix::fs::fchmod(&file, access.mode).map_err(os("fchmod"))?;
        // Filling the page tables now spares the first send or receive of each segment a page fault.
        let page = usize::try_from(backing.page_bytes()).unwrap_or(usize::MAX);
        let span = Span::map(&file, length, page, access.tail_bytes).map_err(os("mmap"))?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL | access.seals;
        rustix::fs::fcntl_add_seals(&file, seals).map_err(os("fcntl(F_ADD_SEALS)"))?;
        Ok((Self { span, segments, segment_bytes, backing }, file))
    }

    /// Address of this range, if it lies inside one segment.
    fn address(&self, segment: u32, offset: u32, bytes: u32) -> Option<*mut u8> {
        let end = offset.checked_add(bytes)?;
        if segment >= self.segments || end > self.segment_bytes {
            return None;
        }
        let start = u64::from(segment) * u64::from(self.segment_bytes) + u64::from(offset);
        let start = usize::try_from(start).ok()?;
        // SAFETY: `start` + `bytes` is at most `segments` x `segment_bytes`, which is at most the length of the
        // mapping, itself below isize::MAX.
        Some(unsafe { self.span.address().add(start) })
    }

    fn bytes(&self) -> u64 {
        self.span.bytes() as u64
    }

    fn nodes(&self) -> BytesByNode {
        let page = usize::try_from(self.backing.page_bytes()).unwrap_or(usize::MAX);
        numa::nodes_of(self.span.address(), self.span.bytes(), page)
    }
}

/// Why `wanted` hugepages cannot be had, with this pool.
fn no_hugepages(pool: &Hugepages, wanted: u64) -> RegionError {
    let (found, remedy) = pool.refusal(wanted);
    RegionError::NoHugepages { wanted, found, remedy }
}

/// An unsealed file of hugepages, all of them allocated.
pub(super) fn hugepage_file(name: &str, bytes: u64, root: &Path) -> Result<OwnedFd, RegionError> {
    let wanted = bytes / Backing::Hugepages.page_bytes();
    let pool = system::hugepages(root).unwrap_or_default();
    // Asking first spares everybody else the moment in which a region that cannot be had takes all that is free.
    if pool.available() < wanted {
        return Err(no_hugepages(&pool, wanted));
    }
    let flags = MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB | MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC;
    let lost = |errno: Errno, call: &'static str| match errno {
        Errno::NOSPC | Errno::NOMEM | Errno::INVAL | Errno::NOENT | Errno::NODEV | Errno::OPNOTSUPP => {
            no_hugepages(&system::hugepages(root).unwrap_or_default(), wanted)
        }
        errno => RegionError::Os { call, errno },
    };
    let file = rustix::fs::memfd_create(name, flags).map_err(|errno| lost(errno, "memfd_create"))?;
    rustix::fs::ftruncate(&file, bytes).map_err(|errno| lost(errno, "ftruncate"))?;
    allocate(&file, bytes).map_err(|errno| lost(errno, "fallocate"))?;
    Ok(file)
}

/// An unsealed file of ordinary pages, all of them allocated.
pub(super) fn ordinary_file(name: &str, bytes: u64, root: &Path) -> Result<OwnedFd, RegionError> {
    let missing = |available| RegionError::NoMemory { wanted_bytes: bytes, available_bytes: available };
    // The kernel does not refuse to allocate more than there is: it starts to kill processes.
    if let Some(available) = system::memory_available(root)
        && available < bytes
    {
        return Err(missing(available));
    }
    let os = |call| move |errno| RegionError::Os { call, errno };
    let flags = MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC;
    let file = rustix::fs::memfd_create(name, flags).map_err(os("memfd_create"))?;
    rustix::fs::ftruncate(&file, bytes).map_err(os("ftruncate"))?;
    allocate(&file, bytes).map_err(|errno| match errno {
        Errno::NOSPC | Errno::NOMEM => missing(system::memory_available(root).unwrap_or_default()),
        errno => RegionError::Os { call: "fallocate", errno },
    })?;
    Ok(file)
}

/// Allocates every page of a file. Without this, mapping more hugepages than there are would succeed and the first
/// touch of the missing one would be SIGBUS.
fn allocate(file: &OwnedFd, bytes: u64) -> Result<(), Errno> {
    retry_on_intr(|| rustix::fs::fallocate(file, FallocateFlags::empty(), 0, bytes))
}
