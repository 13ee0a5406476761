//! Zero-copy sends: batches that the simulated kernel goes on reading after their socket took them, until it says so.
//!
//! It lets go late and in no order, also after the socket was lost and after the client or the link has gone, and looks once
//! more at what it has read: memory that was used anew, or released, before that is found out.

use crate::coverage::Mark;
use crate::faults::Sabotage;
use crate::pipe::Sending;
use crate::rng::{Rng, mix};
use crate::trace;
use crate::world::World;
use weir_flow::ids::LinkId;
use weir_flow::shard::Part;

/// Batches of a shard that the kernel may read at a time.
const HELD_MAX: usize = 8;

/// A batch that the kernel reads.
#[derive(Debug)]
pub struct Held {
    sending: Sending,
    /// The link, which end of it, and which of its sockets took the batch.
    from: (usize, usize, Option<usize>),
    /// The core believes that the kernel has let go of it.
    is_denied: bool,
}

/// When the kernel sends without a copy. Draws numbers of its own, so that it changes nothing where it does not.
#[derive(Debug)]
pub(crate) struct ZeroCopy {
    rng: Rng,
    is_used: bool,
}

impl ZeroCopy {
    /// In every other seed.
    pub(crate) fn of_seed(seed: u64) -> Self {
        let mut rng = Rng::new(mix(seed ^ 0x7a65_726f));
        let is_used = rng.chance(500);
        Self { rng, is_used }
    }
}

impl World {
    /// Whether the kernel goes on reading a batch that a socket has taken. If so the core is told, before it hears that the
    /// socket took it.
    pub(crate) fn hold(&mut self, node: usize, id: LinkId) -> Option<usize> {
        if !self.zero_copy.is_used || self.common.healed || !self.zero_copy.rng.chance(700) {
            return None;
        }
        let holds = &mut self.nodes[node].holds;
        let number = holds.iter().position(Option::is_none).unwrap_or(holds.len());
        if number >= HELD_MAX {
            return None;
        }
        self.nodes[node].shard.handle_held(id, number as u32);
        Some(number)
    }

    /// Keeps what the kernel reads under the number of [`Self::hold`].
    pub(crate) fn keep_held(&mut self, node: usize, number: usize, sending: Sending, from: (usize, usize)) {
        let has_slices = sending.batch.parts.iter().any(|part| matches!(part, Part::Slice { .. }));
        let is_denied = has_slices && self.common.sabotage(Sabotage::LetGoEarly);
        if is_denied {
            self.nodes[node].shard.handle_released(number as u32);
        }
        let (link, end) = from;
        let socket = self.links[link].ends[end].socket;
        let held = Some(Held { sending, from: (link, end, socket), is_denied });
        let holds = &mut self.nodes[node].holds;
        if number < holds.len() {
            holds[number] = held;
        } else {
            holds.push(held);
        }
    }

    /// Lets go of one batch of this shard now and then. Whether it did.
    pub(crate) fn let_go(&mut self, node: usize) -> Result<bool, String> {
        let holds = &self.nodes[node].holds;
        let may_go = |held: &&Held| !held.is_denied;
        let count = holds.iter().flatten().filter(may_go).count();
        if count == 0 || !(self.common.healed || self.zero_copy.rng.chance(60)) {
            return Ok(false);
        }
        let chosen = self.zero_copy.rng.index(count);
        let mut all = holds.iter().enumerate();
        let taken =
            all.by_ref().filter(|(_, held)| held.as_ref().is_some_and(|held| may_go(&held))).nth(chosen);
        let Some(number) = taken.map(|(number, _)| number) else { return Ok(false) };
        let Some(Held { sending, from: (link, end, socket), .. }) = self.nodes[node].holds[number].take()
        else {
            return Ok(false);
        };
        self.verify_sent(node, &sending)?;
        let is_lost = self.links[link].ends[end].socket != socket;
        self.common.coverage.hit_when(Mark::NoticeAfterLoss, is_lost);
        trace!(self.common.trace, self.nodes[node], "let go of batch {number} of link {link}");
        self.nodes[node].shard.handle_released(number as u32);
        Ok(true)
    }

    /// Looks once more at what the kernel reads although the core knows nothing of it.
    pub(crate) fn check_holds(&self) -> Result<(), String> {
        for (position, node) in self.nodes.iter().enumerate() {
            for held in node.holds.iter().flatten() {
                self.verify_sent(position, &held.sending)?;
            }
        }
        Ok(())
    }
}
