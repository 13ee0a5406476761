//! Why links are over that peers dialled, for a while: their diallers may ask to go on.

use std::collections::VecDeque;

use weir_flow::exchange::Name;

/// Links of peers that are over and whose reason is remembered.
pub(super) const OVER_MAX: usize = 256;

/// The latest links that are over.
#[derive(Debug, Default)]
pub(super) struct Over {
    /// Peer, link and reason; the latest last.
    links: VecDeque<(Name, u64, String)>,
}

impl Over {
    /// This link of a peer is over.
    pub(super) fn remember(&mut self, peer: &Name, id: u64, reason: &str) {
        if self.links.len() >= OVER_MAX {
            self.links.pop_front();
        }
        self.links.push_back((peer.clone(), id, reason.to_owned()));
    }

    /// Why a peer cannot go on with this link.
    pub(super) fn reason(&self, peer: &Name, id: u64) -> String {
        let known = self.links.iter().rev().find(|(of, over, _)| of == peer && *over == id);
        known.map_or_else(
            || "the link is not known any more".to_owned(),
            |(_, _, reason)| format!("the link is over: {reason}"),
        )
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.links.len()
    }
}
