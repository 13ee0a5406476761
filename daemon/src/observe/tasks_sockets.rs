//! What the sockets of links did in about the last second, from accounts that only grow.
//!
//! No clock and no I/O here.

use std::collections::BTreeMap;

use weir_flow::ids::LinkId;
use weir_flow::wire::{SECOND_MS, SOCKET_STATES, SocketSummary};

use super::sockets::{STATES, SocketAccount};

const _: () = assert!(STATES == SOCKET_STATES, "the wire has a place for each state of a socket");

/// A link of one of this node's shards.
pub(crate) type LinkOfShard = (u16, LinkId);

/// What a link's sockets had counted.
#[derive(Clone, Copy, Debug)]
struct Counted {
    at_ns: u64,
    watched_ns: u64,
    state_ns: Option<[u64; STATES]>,
    retransmitted: Option<u64>,
    /// Arrivals that were read, and the sum of their waits.
    read: Option<(u64, u64)>,
}

impl Counted {
    fn of(at_ns: u64, account: &SocketAccount) -> Self {
        Self {
            at_ns,
            watched_ns: account.watched_ns,
            state_ns: account.state_ns,
            retransmitted: account.retransmitted_segments,
            read: account.residence.as_ref().and_then(|residence| residence.total.zip(residence.sum_ns)),
        }
    }
}

/// From what the sockets of links count since they began to what they did since they were asked before. Remembers as many
/// links as there were.
#[derive(Debug, Default)]
pub(crate) struct SocketWindows {
    counted: BTreeMap<LinkOfShard, Counted>,
}

impl SocketWindows {
    /// Takes the account of every link, with the moment when its shard told it. A link of which nothing is known is left out;
    /// one that was not there before has no rates yet.
    pub(crate) fn take<'a>(
        &mut self,
        accounts: impl Iterator<Item = (LinkOfShard, u64, &'a SocketAccount)>,
    ) -> BTreeMap<LinkOfShard, SocketSummary> {
        let before = std::mem::take(&mut self.counted);
        let mut summaries = BTreeMap::new();
        for (link, at_ns, account) in accounts {
            let before = before.get(&link);
            if account.sockets == 0 {
                // It could not be read this time.
                self.counted.extend(before.map(|before| (link, *before)));
                continue;
            }
            let now = Counted::of(at_ns, account);
            summaries.insert(link, summary(account, &now, before));
            self.counted.insert(link, now);
        }
        summaries
    }
}

fn summary(account: &SocketAccount, now: &Counted, before: Option<&Counted>) -> SocketSummary {
    let mut summary = SocketSummary {
        is_approximate: account.approximate,
        send_queue_bytes: account.send_queue.bytes.map(bounded),
        receive_queue_bytes: account.receive_queue.bytes.map(bounded),
        ..SocketSummary::default()
    };
    let Some(before) = before else { return summary };
    let watched_ns = now.watched_ns.saturating_sub(before.watched_ns);
    if let (Some(now), Some(before), 1..) = (now.state_ns, before.state_ns, watched_ns) {
        for ((state, now), before) in summary.states.iter_mut().zip(now).zip(before) {
            *state = Some(milliseconds(now.saturating_sub(before), watched_ns));
        }
    }
    let elapsed_ns = now.at_ns.saturating_sub(before.at_ns);
    if let (Some(now), Some(before), 1..) = (now.retransmitted, before.retransmitted, elapsed_ns) {
        let per_second = u128::from(now.saturating_sub(before)) * 1_000_000_000 / u128::from(elapsed_ns);
        summary.retransmitted = Some(bounded(u64::try_from(per_second).unwrap_or(u64::MAX)));
    }
    if let (Some((count, sum_ns)), Some((count_before, sum_before_ns))) = (now.read, before.read) {
        let mean_ns = sum_ns.saturating_sub(sum_before_ns).checked_div(count.saturating_sub(count_before));
        summary.residence_us = mean_ns.map(|ns| bounded(ns / 1000));
    }
    summary
}

/// Of a second. Parts that are read a moment after the whole cannot be more than it.
fn milliseconds(part_ns: u64, whole_ns: u64) -> u16 {
    let ms = (u128::from(part_ns) * 1000 + u128::from(whole_ns) / 2) / u128::from(whole_ns.max(1));
    u16::try_from(ms).map_or(SECOND_MS, |ms| ms.min(SECOND_MS))
}

/// As the wire has it: its largest number stands for what is not known.
fn bounded(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX).min(u32::MAX - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::sockets::{Queue, Residence};

    const SECOND: u64 = 1_000_000_000;

    fn account(watched_ns: u64, state_ns: [u64; STATES]) -> SocketAccount {
        SocketAccount {
            sockets: 1,
            watched_ns,
            state_ns: Some(state_ns),
            retransmitted_segments: Some(watched_ns / SECOND * 3),
            send_queue: Queue { bytes: Some(u64::MAX), ..Queue::default() },
            ..SocketAccount::default()
        }
    }

    /// What is told of the only link.
    fn told(windows: &mut SocketWindows, at_ns: u64, account: &SocketAccount) -> Option<SocketSummary> {
        let link = (3, LinkId(7));
        windows.take([(link, at_ns, account)].into_iter()).remove(&link)
    }

    /// The wire has no names of its own for what the probes tell.
    #[test]
    fn states_have_the_order_and_the_names_of_the_probes() {
        for (state, name) in weir_ebpf_abi::SEND_STATES.into_iter().zip(weir_flow::wire::SOCKET_STATE_NAMES) {
            assert_eq!(weir_flow::wire::SOCKET_STATE_NAMES[state as usize], name);
            let account = SocketAccount { sockets: 1, state: Some(state), ..SocketAccount::default() };
            assert_eq!(account.row().and_then(|row| row.state).as_deref(), Some(name));
        }
    }

    #[test]
    fn what_sockets_count_becomes_shares_of_a_second_and_means() {
        let mut windows = SocketWindows::default();
        let first = told(&mut windows, SECOND, &account(SECOND, [SECOND, 0, 0, 0, 0, 0])).unwrap();
        assert_eq!((first.states, first.retransmitted), ([None; STATES], None), "no rates yet");
        assert_eq!(first.send_queue_bytes, Some(u32::MAX - 1));
        let residence = |total, sum_ns| {
            let histogram = [0; weir_ebpf_abi::TIME_BUCKETS];
            let (total, sum, unmarked_total) = (Some(total), Some(sum_ns), Some(0));
            Some(Residence { total, sum_ns: sum, max_ns: sum_ns, histogram, unmarked_total })
        };
        // In two seconds: half of the time in one state, half of that in another.
        let mut second = account(3 * SECOND, [SECOND + SECOND / 2, SECOND / 2, 0, 0, SECOND, 0]);
        second.residence = residence(4, 1_000_000);
        let shares = told(&mut windows, 3 * SECOND, &second).unwrap();
        assert_eq!(shares.states, [250, 250, 0, 0, 500, 0].map(Some));
        assert_eq!((shares.retransmitted, shares.residence_us), (Some(3), None), "the first of its kind");
        let mut third = account(4 * SECOND, [SECOND + SECOND / 2, SECOND / 2, 0, 0, 2 * SECOND, 0]);
        (third.residence, third.approximate) = (residence(6, 5_000_000), true);
        let shares = told(&mut windows, 4 * SECOND, &third).unwrap();
        assert_eq!((shares.is_approximate, shares.residence_us), (true, Some(2_000)));
        // Nothing was read, and nobody has looked since.
        let shares = told(&mut windows, 5 * SECOND, &third).unwrap();
        assert_eq!((shares.states, shares.residence_us), ([None; STATES], None));
    }

    #[test]
    fn what_is_not_known_is_not_zero_and_what_jumps_is_bounded() {
        let mut windows = SocketWindows::default();
        told(&mut windows, SECOND, &account(SECOND, [0; STATES]));
        let unread = SocketAccount::default();
        assert_eq!(told(&mut windows, 2 * SECOND, &unread), None, "it could not be read");
        let jumped = told(&mut windows, 3 * SECOND, &account(SECOND + 1, [u64::MAX; STATES])).unwrap();
        assert_eq!(jumped.states, [Some(SECOND_MS); STATES]);
        let back = told(&mut windows, 3 * SECOND, &account(SECOND + 2, [0; STATES])).unwrap();
        assert_eq!((back.states, back.retransmitted), ([Some(0); STATES], None));
        let blind = SocketAccount { sockets: 1, ..SocketAccount::default() };
        assert_eq!(told(&mut windows, 4 * SECOND, &blind), Some(SocketSummary::default()));
        // A link that is gone is forgotten.
        assert!(windows.take(std::iter::empty()).is_empty() && windows.counted.is_empty());
    }
}
