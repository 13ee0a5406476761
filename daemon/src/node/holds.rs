//! Memory that clients have, whether they are still entitled to it or not.
//!
//! Every region is charged from before it is made until nobody has it any more, which is later than its shard lets go
//! of it: a client that was detached, or that closed its partition, may keep descriptor and mapping for as long as it
//! lives, and hand them on. Were it not charged for that, a few such clients could take all memory of the machine.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use weir_flow::pool::budget::ReservationId;

use super::attachments::{Attachment, RingMemory};
use super::{Node, NodeEvent};
use crate::attach::create::Lending;
use crate::attach::region_watch::{Gone, RegionWatch, RegionWatches};
use crate::memory::Backing;
use crate::memory::numa::OnNodes;
use crate::shard::mailbox::AttachmentId;

/// How the budget's name of a holder ends whose right to what it has is over.
const OVER: &str = ", for what has ended";

/// Every region that somebody has.
#[derive(Default)]
pub(super) struct Holds {
    /// None where the kernel has none to give: then a region counts as gone when its shard lets go of it.
    watches: Option<RegionWatches>,
    regions: BTreeMap<RegionWatch, Hold>,
}

/// A region that a client is given.
pub(super) struct Held<'a> {
    pub(super) region: Option<&'a OwnedFd>,
    pub(super) backing: Backing,
    pub(super) bytes: u64,
    pub(super) nodes: OnNodes,
}

/// A region that somebody has.
struct Hold {
    reservation: ReservationId,
    backing: Backing,
    bytes: u64,
    /// Who was given it. It may have passed it on.
    holder: String,
    /// Its process, if that is one of this pid namespace.
    pid: Option<u32>,
    /// Whether its shard has let go of it, and its holder should have.
    is_over: bool,
}

impl Holds {
    /// Backings of the regions that only their holders have.
    pub(super) fn kept_backings(&self) -> impl Iterator<Item = Backing> {
        self.regions.values().filter(|hold| hold.is_over).map(|hold| hold.backing)
    }

    /// Who has how many bytes that are over for those who were given them, the most first.
    pub(super) fn kept(&self) -> Vec<(String, u64)> {
        let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
        for hold in self.regions.values().filter(|hold| hold.is_over) {
            *sums.entry(&hold.holder).or_default() += hold.bytes;
        }
        let mut kept: Vec<(String, u64)> =
            sums.into_iter().map(|(holder, bytes)| (holder.to_owned(), bytes)).collect();
        kept.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        kept.into_iter().map(|(holder, bytes)| (self.keeper(&holder), bytes)).collect()
    }

    /// Who has what was given to this holder and is over for it. The kernel tells that somebody has it and not who: the
    /// holder's process, one that it forked, or one that it gave a descriptor to.
    fn keeper(&self, holder: &str) -> String {
        let mut over = self.regions.values().filter(|hold| hold.is_over && hold.holder == holder);
        if over.next().and_then(|hold| hold.pid).is_some_and(has_exited) {
            return format!("one that {holder}, which has exited, passed it to");
        }
        format!("{holder} or one that it passed it to")
    }

    /// A holder that the budget names, as people are told of it. None: it has a right to what it has.
    pub(super) fn describe_over(&self, holder: &str) -> Option<String> {
        holder.strip_suffix(OVER).map(|holder| format!("{}{OVER}", self.keeper(holder)))
    }

    /// Forgets what nobody has any more; what it was charged as.
    fn take_gone(&mut self) -> Vec<ReservationId> {
        let Some(watches) = &self.watches else { return Vec::new() };
        let gone = match watches.take_gone() {
            Ok(Gone::These(gone)) => gone,
            Ok(Gone::AllBut(live)) => {
                self.regions.keys().copied().filter(|watch| !live.contains(watch)).collect()
            }
            Err(error) => {
                tracing::error!(%error, "cannot tell which memory is free");
                Vec::new()
            }
        };
        gone.iter().filter_map(|watch| self.regions.remove(watch)).map(|hold| hold.reservation).collect()
    }
}

impl Node {
    /// Begins to watch what clients have. Where that is not possible, they are charged for less than they may have.
    pub(super) fn watch_regions(&mut self) {
        let started = RegionWatches::new().and_then(|watches| Ok((watches.bell()?, watches)));
        let (bell, watches) = match started {
            Ok(started) => started,
            Err(error) => {
                tracing::warn!(%error, "cannot watch the memory of clients: what one keeps after its end is not charged");
                return;
            }
        };
        self.attachments.holds.watches = Some(watches);
        let events = self.events.clone();
        self.acceptors.spawn(async move {
            while bell.rung().await.is_ok() && events.send(NodeEvent::RegionsGone).await.is_ok() {}
        });
    }

    /// Notes that a client is given a region.
    pub(super) fn hold(
        &mut self,
        id: AttachmentId,
        Held { region, backing, bytes, nodes }: Held<'_>,
        reservation: ReservationId,
        holder: String,
        lending: Lending,
    ) -> RingMemory {
        let pid = self.attachments.get(id).and_then(Attachment::pid);
        let holds = &mut self.attachments.holds;
        let added = holds.watches.as_ref().zip(region).map(|(watches, region)| watches.add(region.as_fd()));
        let watch = match added {
            Some(Ok(watch)) => {
                holds
                    .regions
                    .insert(watch, Hold { reservation, backing, bytes, holder, pid, is_over: false });
                Some(watch)
            }
            Some(Err(error)) => {
                tracing::warn!(
                    %error, holder, "cannot watch the memory of a client: raise fs.inotify.max_user_watches"
                );
                None
            }
            None => None,
        };
        RingMemory { reservation, backing, nodes, watch, lending: Some(lending) }
    }

    /// The shard has let go of a region. If its client has not, it is charged on, under a name that says so.
    pub(super) fn let_go(&mut self, mut memory: RingMemory) {
        // The node's own descriptor would keep it.
        memory.lending = None;
        self.handle_regions_gone();
        let Some(watch) = memory.watch else {
            self.budget.release(memory.reservation);
            return;
        };
        let Some(hold) = self.attachments.holds.regions.get_mut(&watch) else { return };
        hold.is_over = true;
        // Just released, so it fits.
        let bytes = self.budget.release(hold.reservation);
        match self.budget.reserve(format!("{}{OVER}", hold.holder), bytes) {
            Ok(reservation) => hold.reservation = reservation,
            Err(error) => tracing::error!(%error, "a reservation was lost"),
        }
    }

    /// Memory that nobody has any more is free.
    pub(super) fn handle_regions_gone(&mut self) {
        for reservation in self.attachments.holds.take_gone() {
            self.budget.release(reservation);
        }
    }
}

/// Whether this process has ended, reaped or not. One that has its number by now makes it look alive.
fn has_exited(pid: u32) -> bool {
    let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return false };
    match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(process) => {
            let mut fds = [PollFd::new(&process, PollFlags::IN)];
            poll(&mut fds, Some(&Timespec::default())) == Ok(1)
        }
        Err(errno) => errno == Errno::SRCH,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_exited_when_it_has_ended_and_when_it_was_reaped() {
        assert!(!has_exited(std::process::id()));
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        assert!(!has_exited(child.id()));
        child.kill().unwrap();
        let began = std::time::Instant::now();
        while !has_exited(child.id()) {
            assert!(began.elapsed().as_secs() < 20, "a process that was killed does not end");
        }
        child.wait().unwrap();
        assert!(has_exited(child.id()));
        // What is no number of a process.
        assert!(!has_exited(0) && !has_exited(u32::MAX));
    }
}
