//! Makes, seals and maps the memfds of this crate.
//!
//! **Sealed** with SHRINK, GROW and SEAL before a client gets it: nobody can make it shorter, so a mapping of it
//! never ends early, and nobody can take or add a seal. A client may punch holes into it; on these ordinary pages
//! (never hugepages) a hole reads as zeros and takes a fresh page when written, so it is only another way to write
//! zeros. Everything but event slots is allocated when it is made: too little memory is an error then, and not a
//! signal later. Event slots are allocated when first used: most partitions and gates never have an event, and a
//! thousand of them should not pay 64 KiB each. What remains is a machine that forbids overcommitting
//! (`vm.overcommit_memory = 2`) and is at its limit: there a page of event slots, or one that a client punched
//! away, may be missing when it is needed.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use memmap2::MmapRaw;
use rustix::fs::{FallocateFlags, MemfdFlags, Mode, SealFlags};

use crate::layout::{HEADER_WORDS, Header, Place};
use crate::primitive::Ordering;
use crate::words::{Backing, Words};

/// A mapped memfd.
#[derive(Clone)]
pub(crate) struct Memory {
    backing: Arc<Backing>,
}

impl Memory {
    /// Makes a memfd with this header, zero behind it. The descriptor is for the client.
    pub(crate) fn create(name: &str, header: &Header) -> io::Result<(Self, OwnedFd)> {
        let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::fchmod(&fd, Mode::RUSR | Mode::WUSR)?;
        rustix::fs::ftruncate(&fd, header.bytes as u64)?;
        rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, header.allocated as u64)?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok((Self::begin(MmapRaw::map_raw(&fd)?, header)?, fd))
    }

    /// Maps a memfd that the daemon made, after its size and header were compared with what is expected.
    pub(crate) fn attach(fd: OwnedFd, header: &Header) -> io::Result<Self> {
        let file = File::from(fd);
        let found = file.metadata()?.len();
        if found != header.bytes as u64 {
            return Err(unexpected("size", found, header.bytes as u64));
        }
        let memory = Self::over(MmapRaw::map_raw(&file)?);
        memory.check(header)?;
        Ok(memory)
    }

    /// Both ends' handles of memory that no other process has, made and checked as a memfd's. For tests where there
    /// are no memfds.
    #[cfg(test)]
    pub(crate) fn anonymous(header: &Header) -> io::Result<(Self, Self)> {
        let daemon = Self::begin(memmap2::MmapMut::map_anon(header.bytes)?.into(), header)?;
        daemon.check(header)?;
        Ok((daemon.clone(), daemon))
    }

    fn over(mapping: MmapRaw) -> Self {
        Self { backing: Arc::new(Backing::Mapping(mapping)) }
    }

    /// Writes the header into a fresh mapping.
    fn begin(mapping: MmapRaw, header: &Header) -> io::Result<Self> {
        let memory = Self::over(mapping);
        let words = memory.words(Place { at: 0, bytes: HEADER_WORDS * 8 })?;
        for (index, word) in header.words().into_iter().enumerate() {
            words.store(index, word, Ordering::Relaxed);
        }
        Ok(memory)
    }

    /// Compares the header with what is expected.
    fn check(&self, header: &Header) -> io::Result<()> {
        let words = self.words(Place { at: 0, bytes: HEADER_WORDS * 8 })?;
        for (index, (name, needed)) in Header::NAMES.into_iter().zip(header.words()).enumerate() {
            let found = words.load(index, Ordering::Relaxed);
            if found != needed {
                return Err(unexpected(name, found, needed));
            }
        }
        Ok(())
    }

    /// The words at `place`.
    pub(crate) fn words(&self, place: Place) -> io::Result<Words> {
        Words::new(&self.backing, place.at / 8, place.bytes / 8)
            .ok_or_else(|| io::Error::other(format!("no words at {place:?} of shared memory")))
    }
}

/// The error for a memfd that is not the expected one.
fn unexpected(name: &str, found: u64, needed: u64) -> io::Error {
    let text = format!(
        "shared memory has {name} {found:#x}; needed: {needed:#x} (client and daemon of one version)"
    );
    io::Error::new(io::ErrorKind::InvalidData, text)
}

/// The error for a ring whose place does not fit its capacity.
pub(crate) fn no_ring() -> io::Error {
    io::Error::other("a ring does not fit its place in shared memory")
}

/// A second descriptor of the same file, for tests that play a hostile client.
#[cfg(test)]
pub(crate) fn duplicate(fd: &OwnedFd) -> OwnedFd {
    fd.try_clone().expect("dup")
}

#[cfg(all(test, not(loom)))]
mod tests;
