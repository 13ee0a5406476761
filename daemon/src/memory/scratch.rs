//! Scratch: memory of one thread of the daemon, which no other process sees.

use std::alloc::Layout;
use std::io;
use std::path::Path;
use std::ptr::NonNull;

use memmap2::{MmapOptions, MmapRaw};
use rustix::mm::Advice;

use super::{Backing, HUGEPAGE_BYTES, HugepageMode, PAGE_BYTES, system};

/// Zeroed private memory for the kernel to receive into. It gives out an address only, since the kernel may write
/// to it at any moment: who dereferences it must know that the kernel does not.
#[derive(Debug)]
pub struct Scratch {
    memory: Memory,
    bytes: usize,
}

#[derive(Debug)]
enum Memory {
    Hugepages { address: NonNull<u8>, layout: Layout },
    Ordinary(MmapRaw),
}

// SAFETY: the memory belongs to this value alone, wherever it is moved to.
unsafe impl Send for Scratch {}

impl Scratch {
    /// Makes `bytes` bytes, from hugepages where `mode` wants them. The address is that of a page.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for 0 bytes or more than memory can name; `OutOfMemory` with [`HugepageMode::Require`] when
    /// there are no hugepages; else what mapping ordinary memory answers.
    pub fn create(bytes: usize, mode: HugepageMode) -> io::Result<Self> {
        Self::create_at(bytes, mode, Path::new(system::ROOT))
    }

    /// As [`Scratch::create`], with what the system has as shown under `root`.
    pub(super) fn create_at(bytes: usize, mode: HugepageMode, root: &Path) -> io::Result<Self> {
        let layout = Layout::from_size_align(bytes, page_bytes()).map_err(|_| io::ErrorKind::InvalidInput)?;
        if bytes == 0 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        if mode != HugepageMode::Off {
            if let Some(memory) = from_hugepages(layout, root) {
                return Ok(Self { memory, bytes });
            }
            if mode == HugepageMode::Require {
                let wanted = (bytes as u64).div_ceil(HUGEPAGE_BYTES);
                let (found, remedy) = system::hugepages(root).unwrap_or_default().refusal(wanted);
                let text = format!("{found}; needed: {wanted}; {remedy}");
                return Err(io::Error::new(io::ErrorKind::OutOfMemory, text));
            }
        }
        let map = MmapOptions::new().len(bytes).map_anon()?;
        Ok(Self { memory: Memory::Ordinary(map.into()), bytes })
    }

    /// Address of the first byte.
    #[must_use]
    pub fn address(&self) -> *mut u8 {
        match &self.memory {
            Memory::Hugepages { address, .. } => address.as_ptr(),
            Memory::Ordinary(map) => map.as_mut_ptr(),
        }
    }

    /// Length in bytes, as asked for.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// What it is made of.
    #[must_use]
    pub const fn backing(&self) -> Backing {
        match self.memory {
            Memory::Hugepages { .. } => Backing::Hugepages,
            Memory::Ordinary(_) => Backing::Ordinary,
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Memory::Hugepages { address, layout } = self.memory {
            // SAFETY: `address` came from hugepage_rs::alloc with this layout, and goes nowhere else.
            unsafe { hugepage_rs::dealloc(address.as_ptr(), layout) };
        }
    }
}

const fn page_bytes() -> usize {
    PAGE_BYTES as usize
}

/// None when there are no hugepages, or not the size that this program counts in.
fn from_hugepages(layout: Layout, root: &Path) -> Option<Memory> {
    // hugepage_rs allocates pages of the default size, whatever that is, and panics where there is none.
    if !system::default_hugepage_is_2_mib(root) {
        return None;
    }
    // Asking first, as for a region: whoever is short of a page must not take those that are left even for a moment.
    if system::hugepages(root)?.available() < (layout.size() as u64).div_ceil(HUGEPAGE_BYTES) {
        return None;
    }
    // SAFETY: the layout's size is not 0.
    let address = NonNull::new(unsafe { hugepage_rs::alloc(layout) })?;
    let memory = Memory::Hugepages { address, layout };
    let length = layout.size().next_multiple_of(HUGEPAGE_BYTES as usize);
    // A mapping of hugepages can succeed and be refused a page when it is touched, which is SIGBUS. Touching all of
    // it in the kernel turns that into an error.
    // SAFETY: the range is exactly the new allocation.
    let touched = unsafe { rustix::mm::madvise(address.as_ptr().cast(), length, Advice::LinuxPopulateWrite) };
    match touched {
        Ok(()) => Some(memory),
        Err(_) => {
            // SAFETY: as in `drop`; `memory` is not used again, and dropping this enum frees nothing.
            unsafe { hugepage_rs::dealloc(address.as_ptr(), layout) };
            None
        }
    }
}
