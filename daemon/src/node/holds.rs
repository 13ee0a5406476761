//! Memory that clients have, whether they are still entitled to it or not.
//!
//! Every region is charged from before it is made until nobody has it any more, which is later than its shard lets go
//! of it: a client that was detached, or that closed its partition, may keep descriptor and mapping for as long as it
//! lives, and hand them on. Were it not charged for that, a few such clients could take all memory of the machine.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};

use weir_flow::pool::budget::ReservationId;

use super::attachments::RingMemory;
use super::{Node, NodeEvent};
use crate::attach::region_watch::{Gone, RegionWatch, RegionWatches};
use crate::memory::Backing;

/// Every region that somebody has.
#[derive(Default)]
pub(super) struct Holds {
    /// None where the kernel has none to give: then a region counts as gone when its shard lets go of it.
    watches: Option<RegionWatches>,
    regions: BTreeMap<RegionWatch, Hold>,
}

/// A region that somebody has.
struct Hold {
    reservation: ReservationId,
    backing: Backing,
    bytes: u64,
    /// Who was given it.
    holder: String,
    /// Whether its shard has let go of it, and its holder should have.
    is_over: bool,
}

impl Holds {
    /// Backings of the regions that only their holders have.
    pub(super) fn kept_backings(&self) -> impl Iterator<Item = Backing> {
        self.regions.values().filter(|hold| hold.is_over).map(|hold| hold.backing)
    }

    /// Who has how many bytes that are over for them, the most first.
    pub(super) fn kept(&self) -> Vec<(String, u64)> {
        let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
        for hold in self.regions.values().filter(|hold| hold.is_over) {
            *sums.entry(&hold.holder).or_default() += hold.bytes;
        }
        let mut kept: Vec<(String, u64)> =
            sums.into_iter().map(|(holder, bytes)| (holder.to_owned(), bytes)).collect();
        kept.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        kept
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
        region: Option<&OwnedFd>,
        reservation: ReservationId,
        backing: Backing,
        bytes: u64,
        holder: String,
    ) -> RingMemory {
        let holds = &mut self.attachments.holds;
        let added = holds.watches.as_ref().zip(region).map(|(watches, region)| watches.add(region.as_fd()));
        let watch = match added {
            Some(Ok(watch)) => {
                holds.regions.insert(watch, Hold { reservation, backing, bytes, holder, is_over: false });
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
        RingMemory { reservation, backing, watch }
    }

    /// The shard has let go of a region. If its client has not, it is charged on, under a name that says so.
    pub(super) fn let_go(&mut self, memory: &RingMemory) {
        self.handle_regions_gone();
        let Some(watch) = memory.watch else {
            self.budget.release(memory.reservation);
            return;
        };
        let Some(hold) = self.attachments.holds.regions.get_mut(&watch) else { return };
        hold.is_over = true;
        // Just released, so it fits.
        let bytes = self.budget.release(hold.reservation);
        match self.budget.reserve(format!("{}, for what has ended", hold.holder), bytes) {
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
