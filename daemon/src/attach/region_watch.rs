//! Knowing when nobody has the memory of a region any more.
//!
//! The daemon can let go of a region; a client need not. It has the memory for as long as it has a descriptor or a
//! mapping, and so has every process that it passed the descriptor on to, and every message with it that nobody has
//! read. Only the kernel knows, and it tells: the file of a region has no name, so it counts as deleted when the last
//! open description of it is gone, and an inotify watch reports that.

use std::collections::BTreeSet;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;
use tokio::io::unix::AsyncFd;

use super::readiness::registered;

/// The watch of one region. Not used again before two thousand million others were.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RegionWatch(i32);

/// Watches of regions.
#[derive(Debug)]
pub struct RegionWatches {
    queue: OwnedFd,
}

/// What became of the regions watched.
#[derive(Debug, PartialEq, Eq)]
pub enum Gone {
    /// Nobody has these any more.
    These(Vec<RegionWatch>),
    /// So many went at a time that the kernel could not tell which: these are all that somebody still has.
    AllBut(BTreeSet<RegionWatch>),
}

impl RegionWatches {
    /// No watch yet.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn new() -> io::Result<Self> {
        Ok(Self { queue: inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)? })
    }

    /// Watches a region from now on, until nobody has it.
    ///
    /// # Errors
    /// The kernel refuses: too many watches of this user (`fs.inotify.max_user_watches`), or no `/proc`.
    pub fn add(&self, region: BorrowedFd<'_>) -> io::Result<RegionWatch> {
        let path = format!("/proc/self/fd/{}", region.as_raw_fd());
        Ok(RegionWatch(inotify::add_watch(&self.queue, path, WatchFlags::DELETE_SELF)?))
    }

    /// What became of them since the last call. Does not wait.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn take_gone(&self) -> io::Result<Gone> {
        let mut space = [MaybeUninit::uninit(); 4096];
        let mut events = inotify::Reader::new(&self.queue, &mut space);
        let (mut gone, mut is_complete) = (Vec::new(), true);
        loop {
            match events.next() {
                // Said of every watch when its file is gone, and once.
                Ok(event) if event.events().contains(ReadFlags::IGNORED) => {
                    gone.push(RegionWatch(event.wd()))
                }
                Ok(event) => is_complete &= !event.events().contains(ReadFlags::QUEUE_OVERFLOW),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if is_complete => return Ok(Gone::These(gone)),
                Err(Errno::AGAIN) => return Ok(Gone::AllBut(self.live()?)),
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Every watch whose region somebody still has.
    fn live(&self) -> io::Result<BTreeSet<RegionWatch>> {
        let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", self.queue.as_raw_fd()))?;
        let watch = |line: &str| {
            let number = line.strip_prefix("inotify wd:")?.split(' ').next()?;
            i32::from_str_radix(number, 16).ok().map(RegionWatch)
        };
        Ok(text.lines().filter_map(watch).collect())
    }

    /// Tells when to call [`Self::take_gone`].
    ///
    /// # Errors
    /// There is no tokio runtime with I/O, or no descriptor left.
    pub fn bell(&self) -> io::Result<GoneBell> {
        Ok(GoneBell { queue: registered(self.queue.as_fd().try_clone_to_owned()?)? })
    }
}

/// Rings when somebody lets go of the last of a region.
#[derive(Debug)]
pub struct GoneBell {
    queue: AsyncFd<OwnedFd>,
}

impl GoneBell {
    /// Waits for the next time.
    ///
    /// # Errors
    /// The runtime is ending.
    pub async fn rung(&self) -> io::Result<()> {
        // Before whoever waits here looks at what there is: what comes later rings again.
        self.queue.readable().await?.clear_ready();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use memmap2::MmapRaw;
    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;

    fn region() -> OwnedFd {
        let region = memfd_create("region", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&region, 4096).unwrap();
        region
    }

    #[test]
    fn a_region_is_gone_with_its_last_descriptor_and_its_last_mapping() {
        let watches = RegionWatches::new().unwrap();
        let (first, second) = (region(), region());
        let (watch, other) = (watches.add(first.as_fd()).unwrap(), watches.add(second.as_fd()).unwrap());
        assert_ne!(watch, other);
        let (copy, mapping) = (first.try_clone().unwrap(), MmapRaw::map_raw(&first).unwrap());
        drop(first);
        assert_eq!(watches.take_gone().unwrap(), Gone::These(Vec::new()), "a copy and a mapping are left");
        drop(copy);
        assert_eq!(watches.take_gone().unwrap(), Gone::These(Vec::new()), "a mapping is left");
        assert_eq!(watches.live().unwrap(), [watch, other].into());
        drop(mapping);
        assert_eq!(watches.take_gone().unwrap(), Gone::These(vec![watch]));
        assert_eq!(watches.take_gone().unwrap(), Gone::These(Vec::new()), "said once");
        assert_eq!(watches.live().unwrap(), [other].into());
    }

    #[test]
    fn more_at_a_time_than_the_kernel_can_tell_are_found_nevertheless() {
        let watches = RegionWatches::new().unwrap();
        let kept = region();
        let watch = watches.add(kept.as_fd()).unwrap();
        let queued_max: usize = std::fs::read_to_string("/proc/sys/fs/inotify/max_queued_events")
            .unwrap()
            .trim()
            .parse()
            .unwrap();
        for _ in 0..=queued_max / 2 {
            watches.add(region().as_fd()).unwrap();
        }
        assert_eq!(watches.take_gone().unwrap(), Gone::AllBut([watch].into()));
    }

    #[tokio::test]
    async fn the_bell_rings_for_each_that_goes() {
        let watches = RegionWatches::new().unwrap();
        let bell = watches.bell().unwrap();
        for _ in 0..3 {
            let region = region();
            let watch = watches.add(region.as_fd()).unwrap();
            drop(region);
            bell.rung().await.unwrap();
            assert_eq!(watches.take_gone().unwrap(), Gone::These(vec![watch]));
        }
    }
}
