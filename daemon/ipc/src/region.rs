//! A client's mappings of its regions. The daemon makes and seals them and maps them by its own rules.
//!
//! A region's pages were all allocated before the client got it, and it is sealed against shrinking, so that no
//! access inside the mapping can fail.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

use memmap2::{MmapOptions, MmapRaw};

/// Opens a region of at least `bytes` bytes, all of which are then mapped.
fn map(fd: OwnedFd, bytes: u64, map: impl Fn(&File) -> io::Result<MmapRaw>) -> io::Result<MmapRaw> {
    let file = File::from(fd);
    let found = file.metadata()?.len();
    if found < bytes {
        let text = format!("region has {found} bytes; needed: {bytes}");
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    map(&file)
}

/// Where `count` bytes from `offset` on start, if all of them are in the mapping.
fn start(mapping: &MmapRaw, offset: u64, count: usize) -> Option<usize> {
    let start = usize::try_from(offset).ok()?;
    (start.checked_add(count)? <= mapping.len()).then_some(start)
}

/// A send region, mapped for writing. One owner: two writers would spoil each other's bytes.
pub struct SendMapping {
    mapping: MmapRaw,
}

impl SendMapping {
    /// Maps a region of at least `bytes` bytes.
    ///
    /// # Errors
    /// It is smaller (`InvalidData`), or the kernel refuses.
    pub fn map(fd: OwnedFd, bytes: u64) -> io::Result<Self> {
        Ok(Self { mapping: map(fd, bytes, |file| MmapRaw::map_raw(file))? })
    }

    /// Its length in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.mapping.len() as u64
    }

    /// Whether it has no byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.mapping.len() == 0
    }

    /// The `count` bytes from `offset` on, to be written; `None` if they are not all in the region. Bytes of a slice that
    /// was submitted must not be written again before the segment is returned: the kernel may be sending them.
    #[inline]
    #[must_use]
    pub fn slice_mut(&mut self, offset: u64, count: usize) -> Option<&mut [u8]> {
        let start = start(&self.mapping, offset, count)?;
        // SAFETY: `start + count` is at most the mapping's length, so the bytes are mapped and writable for as long as
        // `self` is borrowed; the region is sealed against shrinking. Of this mapping nothing else hands out references. A
        // consumer of this node, maybe in this process, has a mapping of its own and reads in it what was submitted and not
        // returned, which is not written again meanwhile. The daemon never touches a send region in user space; the kernel
        // may read it at any time, which can at worst send bytes that the client was told not to change.
        Some(unsafe { std::slice::from_raw_parts_mut(self.mapping.as_mut_ptr().add(start), count) })
    }

    /// Copies `bytes` to `offset` of the region. `false`: they do not fit in, and nothing was written. Bytes of a
    /// slice that was submitted must not be written again before the segment is returned: the kernel may be
    /// sending them.
    #[inline]
    #[must_use]
    pub fn write(&mut self, offset: u64, bytes: &[u8]) -> bool {
        let Some(place) = self.slice_mut(offset, bytes.len()) else { return false };
        place.copy_from_slice(bytes);
        true
    }
}

/// A receive region, or the send region of a producer on this node, mapped for reading.
pub struct ReceiveMapping {
    mapping: MmapRaw,
}

impl ReceiveMapping {
    /// Maps a region of at least `bytes` bytes.
    ///
    /// # Errors
    /// It is smaller (`InvalidData`), or the kernel refuses.
    pub fn map(fd: OwnedFd, bytes: u64) -> io::Result<Self> {
        Ok(Self { mapping: map(fd, bytes, |file| MmapOptions::new().map_raw_read_only(file))? })
    }

    /// Its length in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.mapping.len() as u64
    }

    /// Whether it has no byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.mapping.len() == 0
    }

    /// `count` bytes from `offset` on; `None` if they are not all in the region.
    ///
    /// They hold still only from the delivery of their slice until it is given back: then the daemon may write the
    /// next slice there. A caller asks for delivered slices only, and lets go of the bytes before it gives them
    /// back.
    #[inline]
    #[must_use]
    pub fn slice(&self, offset: u64, count: usize) -> Option<&[u8]> {
        let start = start(&self.mapping, offset, count)?;
        // SAFETY: `start + count` is at most the mapping's length, so the bytes are mapped and readable for as long
        // as `self` is borrowed; the region is sealed against shrinking. This process maps it read-only. The daemon
        // writes a byte only before the delivery of its slice and after it was given back, and the caller keeps the
        // bytes for no longer, as said above. In the region of a producer on this node the producer does, which is a process
        // of the same user and keeps to the same rule; one that does not could as well write into this process by `ptrace`.
        Some(unsafe { std::slice::from_raw_parts(self.mapping.as_ptr().add(start), count) })
    }
}

#[cfg(all(test, not(loom)))]
pub(crate) mod tests;
