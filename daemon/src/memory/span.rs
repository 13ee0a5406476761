//! Where a region lies in the daemon's address space, and the *tail*: ordinary pages directly behind it, which only the
//! daemon has.
//!
//! A zero-copy send from registered memory names one registration for all of its ranges. So the headers of its frames must
//! lie in the same one as the payload: in the tail, which is registered together with the region. It does a second thing:
//! a registration of nothing but hugepages is charged to a socket by the hugepage, however little is sent of one, and with
//! a page of another size in it by what is sent.

use std::mem::ManuallyDrop;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

use super::SendRegion;

/// Bytes of the tail of a send region: whole ordinary pages. They take memory once they are written or registered.
pub const TAIL_BYTES: usize = 32 << 10;

/// One mapping of a whole file, and a tail behind it.
#[derive(Debug)]
pub(super) struct Span {
    /// All of the address space that it takes.
    start: *mut u8,
    reserved: usize,
    /// The file.
    memory: *mut u8,
    bytes: usize,
    tail: usize,
    is_tail_taken: AtomicBool,
}

// SAFETY: it is addresses of memory that belongs to this value alone, wherever it is moved to.
unsafe impl Send for Span {}
// SAFETY: through a shared reference it gives out addresses and nothing else.
unsafe impl Sync for Span {}

impl Span {
    /// Maps `bytes` bytes of a file for reading and writing, at a multiple of `align`, with all page tables filled, and a
    /// tail of so many bytes behind it. All three are whole pages of their kind, and `align` is a power of two.
    pub(super) fn map(file: &OwnedFd, bytes: usize, align: usize, tail: usize) -> Result<Self, Errno> {
        let reserved = bytes.checked_add(tail).and_then(|sum| sum.checked_add(align)).ok_or(Errno::NOMEM)?;
        // SAFETY: the kernel chooses a place where nothing is. Nothing can be read or written there yet.
        let start = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                reserved,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }?;
        let start = start.cast::<u8>();
        let memory = start.wrapping_add(start.addr().next_multiple_of(align) - start.addr());
        let span = Self { start, reserved, memory, bytes, tail, is_tail_taken: AtomicBool::new(false) };
        // Before Linux 6.13 a mapping over what was reserved that fails may leave a hole, where another thread may have mapped
        // something since. So what was reserved is given back only when both are there, and else address space is lost, and no
        // memory: that fails only where the process has no more room for mappings.
        let span = ManuallyDrop::new(span);
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let shared = MapFlags::SHARED | MapFlags::FIXED | MapFlags::POPULATE;
        // SAFETY: the range lies inside what was just reserved, which nobody else knows of.
        unsafe { mmap(memory.cast(), bytes, access, shared, file, 0) }?;
        if tail > 0 {
            let behind = memory.wrapping_add(bytes).cast();
            // SAFETY: as above; the reservation has room for it behind the file, wherever in it that begins.
            let mapped = unsafe { mmap_anonymous(behind, tail, access, MapFlags::PRIVATE | MapFlags::FIXED) };
            if let Err(errno) = mapped {
                // SAFETY: the file was mapped there just now, and nobody knows of it.
                let _ = unsafe { munmap(memory.cast(), bytes) };
                return Err(errno);
            }
        }
        // From here on dropping it gives the address space back.
        Ok(ManuallyDrop::into_inner(span))
    }

    /// Address of the first byte of the file.
    pub(super) const fn address(&self) -> *mut u8 {
        self.memory
    }

    /// Length of the file in bytes.
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        // SAFETY: the range is what was reserved, and nothing refers to it: whoever gives out an address keeps this alive.
        // A failure leaves memory behind, which nobody can do anything about.
        let _ = unsafe { munmap(self.start.cast(), self.reserved) };
    }
}

/// The tail of a send region, for one user at a time. Keeps the region alive.
#[derive(Debug)]
pub struct Tail {
    region: Arc<SendRegion>,
}

impl Tail {
    /// The tail of this region. None while somebody has it.
    #[must_use]
    pub fn take(region: &Arc<SendRegion>) -> Option<Self> {
        let is_taken = region.span().is_tail_taken.swap(true, Ordering::Acquire);
        (!is_taken).then(|| Self { region: Arc::clone(region) })
    }

    /// The region that it lies behind.
    #[must_use]
    pub const fn region(&self) -> &Arc<SendRegion> {
        &self.region
    }

    /// Address and length in bytes of the region and its tail together, for the kernel to read. Valid for as long as the
    /// region lives.
    #[must_use]
    pub fn range_with_region(&self) -> (*const u8, usize) {
        let span = self.region.span();
        (span.memory, span.bytes + span.tail)
    }

    /// Copies `bytes` to `offset` in the tail, and returns where they are then. None, and nothing is written, unless all of
    /// them fit there.
    ///
    /// The kernel may be reading other parts of the tail; that it does not read this one any more is for the caller to know,
    /// who else sends what was not meant.
    #[must_use]
    pub fn write(&mut self, offset: usize, bytes: &[u8]) -> Option<*const u8> {
        let span = self.region.span();
        let end = offset.checked_add(bytes.len())?;
        if end > span.tail {
            return None;
        }
        let address = span.memory.wrapping_add(span.bytes + offset);
        // SAFETY: the range lies in the tail, which is mapped for writing as long as the region lives, and which nobody
        // but this value writes or reads in user space. `bytes` cannot overlap it: nobody holds a reference into it.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), address, bytes.len()) };
        Some(address)
    }
}

impl Drop for Tail {
    fn drop(&mut self) {
        self.region.span().is_tail_taken.store(false, Ordering::Release);
    }
}
