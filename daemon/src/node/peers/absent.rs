//! Peers that this node was linked with and is no more, and that nobody configured here.
//!
//! A configured peer is known whether it is linked or not. One that dialled is known by its link only, so that its name is
//! kept here, until this node ends, for those who ask what the cluster does and whether all of it is there.

use std::collections::VecDeque;
use std::time::Duration;

use weir_flow::exchange::Name;

/// Most names that are kept. Whoever has the cluster key may take any name.
const NAMES_MAX: usize = 256;

/// One of them.
#[derive(Debug)]
struct Lost {
    peer: Name,
    reason: String,
    /// When its link was lost, since the node started.
    at: Duration,
}

/// Their names, the one that was lost first at the front.
#[derive(Debug, Default)]
pub(super) struct Absent {
    names: VecDeque<Lost>,
    /// Names that are not kept any more.
    dropped: u64,
}

impl Absent {
    /// A peer's link was lost at this time since the node started, for this reason.
    pub(super) fn add(&mut self, peer: Name, reason: String, at: Duration) {
        self.remove(&peer);
        self.names.push_back(Lost { peer, reason, at });
        if self.names.len() > NAMES_MAX {
            self.names.pop_front();
            self.dropped = self.dropped.saturating_add(1);
        }
    }

    /// A peer is linked again, or has ended in order.
    pub(super) fn remove(&mut self, peer: &Name) {
        self.names.retain(|lost| lost.peer != *peer);
    }

    /// Each of them, why it is not linked, and since when, as time since the node started.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&Name, &str, Duration)> {
        self.names.iter().map(|Lost { peer, reason, at }| (peer, reason.as_str(), *at))
    }

    /// At most so many more were lost whose names are not kept.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_that_were_lost_are_named_and_the_others_counted() {
        let name = |number: usize| -> Name { format!("n{number}").parse().unwrap() };
        let mut absent = Absent::default();
        for number in 0..NAMES_MAX + 2 {
            absent.add(name(number), "silent".to_owned(), Duration::from_secs(1));
        }
        assert_eq!((absent.iter().count(), absent.dropped()), (NAMES_MAX, 2));
        assert_eq!(absent.iter().next(), Some((&name(2), "silent", Duration::from_secs(1))));
        // Lost once more: it is named once, with the last reason.
        absent.add(name(2), "closed".to_owned(), Duration::from_secs(2));
        assert_eq!((absent.iter().count(), absent.dropped()), (NAMES_MAX, 2));
        assert_eq!(absent.iter().last(), Some((&name(2), "closed", Duration::from_secs(2))));
        absent.remove(&name(2));
        assert!(absent.iter().all(|(peer, ..)| *peer != name(2)));
    }
}
