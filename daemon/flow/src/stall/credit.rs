//! What a wait for credit was, told when it ends.
//!
//! While a channel waits for credit nothing here says why: the application may hold the segments, or the Limit that
//! would help may be on its way, or it may be here and unread. When it has been read, three times are known from its end
//! backwards:
//!
//! ```text
//!       the application holds the segments    the peer's     the path,         in the socket,
//!                                             shard waits    peer to here      not read
//!   t0 ─────────────────────────────────────┼──────────────┼─────────────────┼───────────────── t1
//!                  consumer                       age             path              age of bytes
//! ```
//!
//! What they do not explain was the consumer's. Both shards count as one cause: a daemon had not come to it. The times come
//! from clocks of two machines, but each is a difference of one clock, so that the clocks need not agree. The path is half
//! of the shortest round trip that the link has seen; a Limit that was lost and sent again has taken longer, and that
//! counts for the consumer.

use super::{CAUSES, Cause};

/// How long bytes lay in a socket before they were read, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceiveAge {
    /// It was measured.
    Exactly(u64),
    /// They were seen to lie there, and may have been there before.
    AtLeast(u64),
}

impl ReceiveAge {
    /// What is known to have passed.
    const fn ns(self) -> u64 {
        match self {
            Self::Exactly(ns) | Self::AtLeast(ns) => ns,
        }
    }
}

/// How a Limit came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Arrival {
    /// How long its bytes lay in the socket; none if that is not known.
    pub(crate) age: Option<ReceiveAge>,
    /// How long it takes from the peer to here, in nanoseconds.
    pub(crate) path_ns: u64,
    /// How long the credit in it waited at the peer before it was told, in nanoseconds.
    pub(crate) peer_ns: u64,
}

/// Divides a wait of `ns` nanoseconds. The parts add up to it, whatever was claimed: what is known best comes first, and each
/// takes what is left at most.
pub(crate) fn split(ns: u64, arrival: &Arrival) -> [u64; CAUSES] {
    let local_ns = arrival.age.map_or(0, ReceiveAge::ns).min(ns);
    let path_ns = arrival.path_ns.min(ns - local_ns);
    let peer_ns = arrival.peer_ns.min(ns - local_ns - path_ns);
    let mut parts = [0; CAUSES];
    for (cause, part) in [
        (Cause::Shard, local_ns + peer_ns),
        (Cause::Network, path_ns),
        (Cause::Consumer, ns - local_ns - path_ns - peer_ns),
    ] {
        if let Some(place) = parts.get_mut(cause.index()) {
            *place = part;
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parts(ns: u64, age_ns: Option<u64>, path_ns: u64, peer_ns: u64) -> (u64, u64, u64) {
        let age = age_ns.map(ReceiveAge::Exactly);
        let parts = split(ns, &Arrival { age, path_ns, peer_ns });
        assert_eq!(parts, split(ns, &Arrival { age: age_ns.map(ReceiveAge::AtLeast), path_ns, peer_ns }));
        let of = |cause: Cause| parts[cause.index()];
        assert_eq!(parts.iter().sum::<u64>(), ns);
        (of(Cause::Consumer), of(Cause::Network), of(Cause::Shard))
    }

    #[test]
    fn what_is_not_explained_was_the_consumers() {
        assert_eq!(parts(1_000, Some(0), 0, 0), (1_000, 0, 0));
        assert_eq!(parts(1_000, Some(200), 300, 100), (400, 300, 300));
        assert_eq!(parts(1_000, None, 300, 100), (600, 300, 100), "not known is not counted");
    }

    #[test]
    fn claims_beyond_the_wait_are_cut() {
        assert_eq!(parts(1_000, Some(u64::MAX), u64::MAX, u64::MAX), (0, 0, 1_000));
        assert_eq!(parts(1_000, Some(0), u64::MAX, u64::MAX), (0, 1_000, 0));
        assert_eq!(parts(1_000, Some(0), 0, u64::MAX), (0, 0, 1_000));
        assert_eq!(parts(1_000, Some(600), 600, 600), (0, 400, 600));
        assert_eq!(parts(0, Some(5), 5, 5), (0, 0, 0));
    }

    proptest! {
        #[test]
        fn the_parts_add_up_to_the_whole(ns: u64, age_ns: Option<u64>, path_ns: u64, peer_ns: u64) {
            let age = age_ns.map(ReceiveAge::Exactly);
            let parts = split(ns, &Arrival { age, path_ns, peer_ns });
            let sum = parts.iter().try_fold(0_u64, |sum, part| sum.checked_add(*part));
            prop_assert_eq!(sum, Some(ns));
        }
    }
}
