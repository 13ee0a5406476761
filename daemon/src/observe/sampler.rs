//! What is known about a socket without probes: what the kernel tells of it to anybody, looked at now and then.
//!
//! The kernel keeps clocks of its own: time with a send queue, and of that, time in which the peer's window or the send
//! buffer held it up. They lose nothing between two looks, whenever those are, so no timer wakes a shard for it. What
//! they leave open is counted for the state that is found at the later look. Times come in steps of the kernel's timer,
//! usually 4 ms.
//!
//! How long what arrived lies unread the kernel stamps, and each look finds it of what is first in the queue: [`unread`].

mod unread;

use weir_ebpf_abi::{QUEUE_BUCKETS, SendState, bucket};

use super::sockets::{Reading, STATES, SocketAccount, add};
use unread::Unread;

/// Least time between two looks at one socket: ten in a second.
pub(crate) const INTERVAL_NS: u64 = 100_000_000;

/// What was found out about one socket.
#[derive(Clone, Debug)]
pub(crate) struct Sampler {
    began_ns: u64,
    sampled_ns: u64,
    last: Reading,
    states: [u64; STATES],
    /// `None`: arrivals are not stamped.
    unread: Option<Unread>,
    account: SocketAccount,
}

impl Sampler {
    /// Begins with a socket in this state, whose arrivals are stamped from now on or are not. The kernel's clocks may have
    /// run before.
    pub(crate) fn new(now_ns: u64, first: Reading, is_stamped: bool) -> Self {
        let mut account = SocketAccount { approximate: true, sockets: 1, ..SocketAccount::default() };
        account.send_queue.histogram_ns = Some([0; QUEUE_BUCKETS]);
        account.receive_queue.histogram_ns = Some([0; QUEUE_BUCKETS]);
        let mut sampler = Self {
            began_ns: now_ns,
            sampled_ns: now_ns,
            last: first,
            states: [0; STATES],
            unread: is_stamped.then(|| Unread::new(now_ns, &first)),
            account,
        };
        sampler.show(&first);
        sampler
    }

    /// Whether it is time to look again.
    pub(crate) fn is_due(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.sampled_ns) >= INTERVAL_NS
    }

    /// Accounts for the time since the last look.
    pub(crate) fn sample(&mut self, now_ns: u64, reading: Reading) {
        let passed_ns = now_ns.saturating_sub(self.sampled_ns);
        let since = |now: u64, before: u64| now.saturating_sub(before);
        let busy_ns = since(reading.busy_ns, self.last.busy_ns).min(passed_ns);
        let window_ns = since(reading.receive_window_ns, self.last.receive_window_ns).min(busy_ns);
        let buffer_ns = since(reading.send_buffer_ns, self.last.send_buffer_ns).min(busy_ns - window_ns);
        // What held the rest of the busy time the clocks do not tell.
        let rest = match reading.state() {
            SendState::CongestionWindow => SendState::CongestionWindow,
            SendState::Held => SendState::Held,
            SendState::Idle | SendState::Flight | SendState::ReceiveWindow | SendState::SendBuffer => {
                SendState::Flight
            }
        };
        for (state, ns) in [
            (SendState::Idle, passed_ns - busy_ns),
            (SendState::ReceiveWindow, window_ns),
            (SendState::SendBuffer, buffer_ns),
            (rest, busy_ns - window_ns - buffer_ns),
        ] {
            add(&mut self.states, state as usize, ns);
        }
        for (queue, bytes) in [
            (&mut self.account.send_queue, reading.queued_bytes),
            (&mut self.account.receive_queue, reading.unread_bytes),
        ] {
            if let Some(histogram) = &mut queue.histogram_ns {
                add(histogram, bucket(bytes), passed_ns);
            }
        }
        if let Some(unread) = &mut self.unread {
            unread.look(now_ns, &reading);
        }
        self.sampled_ns = self.sampled_ns.max(now_ns);
        self.last = reading;
        self.show(&reading);
    }

    /// What is known until the last look.
    pub(crate) fn account(&self) -> SocketAccount {
        let mut account = self.account.clone();
        account.watched_ns = self.sampled_ns - self.began_ns;
        account.state_ns = Some(self.states);
        account.unread_age_ns = self.unread.as_ref().and_then(Unread::age_ns);
        account.residence = self.unread.as_ref().map(Unread::residence);
        account
    }

    /// When the first of what the last look found unread had arrived, or later; none if nothing lay there.
    pub(crate) fn unread_since_ns(&self) -> Option<u64> {
        self.unread.as_ref().and_then(Unread::since_ns)
    }

    fn show(&mut self, reading: &Reading) {
        let account = &mut self.account;
        account.state = Some(reading.state());
        for (queue, bytes) in [
            (&mut account.send_queue, reading.queued_bytes),
            (&mut account.receive_queue, reading.unread_bytes),
        ] {
            queue.bytes = Some(bytes);
            queue.max_bytes = queue.max_bytes.max(Some(bytes));
        }
        account.retransmitted_segments = Some(reading.retransmitted_segments);
        account.round_trip_ns = Some(reading.round_trip_ns).filter(|ns| *ns > 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn reading(busy: u64, window: u64, buffer: u64) -> Reading {
        Reading {
            busy_ns: busy * MS,
            receive_window_ns: window * MS,
            send_buffer_ns: buffer * MS,
            ..Reading::default()
        }
    }

    #[test]
    fn the_kernels_clocks_are_split_and_add_up_to_the_time_that_passed() {
        let mut sampler = Sampler::new(10 * MS, reading(500, 100, 0), false);
        assert!(!sampler.is_due(109 * MS) && sampler.is_due(110 * MS));
        let held = Reading {
            queued_bytes: 10,
            unsent_bytes: 5,
            segment_bytes: 1,
            peer_window_bytes: 1_000,
            congestion_window_segments: 10,
            ..reading(560, 130, 8)
        };
        sampler.sample(110 * MS, held);
        let account = sampler.account();
        assert_eq!(account.state_ns, Some([40, 0, 22, 0, 30, 8].map(|ms| ms * MS)));
        assert_eq!((account.watched_ns, account.state), (100 * MS, Some(SendState::Held)));
        assert_eq!(account.send_queue.bytes, Some(10));
        assert!(account.approximate);
        // Not known, and so not zero.
        assert_eq!((account.residence, account.unread_age_ns), (None, None), "arrivals are not stamped");
        assert_eq!((account.unwritable_ns, account.zero_window_total, account.stalls), (None, None, None));
    }

    #[test]
    fn arrivals_that_are_stamped_are_known_by_how_long_they_waited() {
        let open = |received, read, arrived| Reading {
            received_bytes: received,
            read_bytes: Some(read),
            unread_bytes: received - read,
            oldest_arrival_ns: arrived,
            is_established: true,
            ..Reading::default()
        };
        let mut sampler = Sampler::new(0, open(0, 0, None), true);
        sampler.sample(100 * MS, open(7, 0, Some(60 * MS)));
        let account = sampler.account();
        assert_eq!((account.unread_age_ns, account.receive_queue.bytes), (Some(40 * MS), Some(7)));
        assert_eq!(account.residence.unwrap().max_ns, 0, "nothing was read");
        sampler.sample(200 * MS, open(7, 7, None));
        let account = sampler.account();
        assert_eq!(account.residence.unwrap().max_ns, 40 * MS);
        assert!(account.approximate && account.unread_age_ns == Some(0));
    }

    #[test]
    fn clocks_that_run_ahead_in_steps_never_count_more_than_passed() {
        let mut sampler = Sampler::new(0, reading(0, 0, 0), false);
        for (now, reading) in
            [(3, reading(4, 4, 4)), (5, reading(8, 4, 8)), (5, reading(12, 12, 12)), (9, reading(0, 0, 0))]
        {
            sampler.sample(now * MS, reading);
            let account = sampler.account();
            assert_eq!(account.state_ns.unwrap().iter().sum::<u64>(), now * MS);
            assert_eq!(account.watched_ns, now * MS);
        }
    }
}
