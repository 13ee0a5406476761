//! What is known about the sockets of one link, however it was found out.

use std::ops::AddAssign;

use weir_ebpf_abi::{
    Account, MARKS, QUEUE_BUCKETS, ReceiveAccount, SEND_STATES, SendState, TIME_BUCKETS, bucket,
};

use super::info::Reading;

/// How many states there are.
pub(crate) const STATES: usize = SEND_STATES.len();

/// What is known about a socket, or about all sockets that one link has had. What is not known is `None`, never 0.
/// Times are nanoseconds; sums never go down.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SocketAccount {
    /// Whether any of it comes from looking now and then, and not from every event.
    pub(crate) approximate: bool,
    /// Sockets that it is about.
    pub(crate) sockets: u64,
    /// Time that it covers.
    pub(crate) watched_ns: u64,
    /// Time in each [`SendState`], by its number; together [`Self::watched_ns`].
    pub(crate) state_ns: Option<[u64; STATES]>,
    /// How often each was entered.
    pub(crate) state_entries: Option<[u64; STATES]>,
    /// The state now; `None` too when there is no socket.
    pub(crate) state: Option<SendState>,
    /// Time with a writer that waited for room in the send buffer.
    pub(crate) unwritable_ns: Option<u64>,
    /// How often one began to wait.
    pub(crate) unwritable_total: Option<u64>,
    /// Bytes written and not acknowledged.
    pub(crate) send_queue: Queue,
    /// Bytes that arrived and were not read.
    pub(crate) receive_queue: Queue,
    /// How long the first of what is unread has waited; 0 if nothing is, and `None` too when there is no socket.
    pub(crate) unread_age_ns: Option<u64>,
    /// How long what arrived waited to be read.
    pub(crate) residence: Option<Residence>,
    /// Segments sent again.
    pub(crate) retransmitted_segments: Option<u64>,
    /// When one last was, on the monotonic clock; `None` too if none ever was.
    pub(crate) retransmitted_last_ns: Option<u64>,
    /// Time in which the peer had no room at all for what waited.
    pub(crate) zero_window_ns: Option<u64>,
    /// How often that began.
    pub(crate) zero_window_total: Option<u64>,
    /// Smoothed round trip; `None` too before the first.
    pub(crate) round_trip_ns: Option<u64>,
    /// Finished stalls of at least 10 ms.
    pub(crate) stalls: Option<Stalls>,
}

/// A queue of bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Queue {
    /// Its length now; `None` too when there is no socket.
    pub(crate) bytes: Option<u64>,
    /// The largest that was seen.
    pub(crate) max_bytes: Option<u64>,
    /// Time with each length, by [`bucket`].
    pub(crate) histogram_ns: Option<[u64; QUEUE_BUCKETS]>,
}

/// Times from arrival to read: of all arrivals, or of those that a look now and then has found unread, each with the time
/// until the last look that did. Of the others nothing is known, and so nothing of how many there were and how long all
/// of them took.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Residence {
    /// How many arrivals were read.
    pub(crate) total: Option<u64>,
    /// All their times together.
    pub(crate) sum_ns: Option<u64>,
    /// The longest; of those that a look has found, which is at most the longest of all.
    pub(crate) max_ns: u64,
    /// How many took how long, by [`bucket`] of nanoseconds.
    pub(crate) histogram: [u64; TIME_BUCKETS],
    /// Arrivals that are not among them, for too many before them were not read.
    pub(crate) unmarked_total: Option<u64>,
}

/// Stalls of a socket that have ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stalls {
    /// How many.
    pub(crate) total: u64,
    /// The longest.
    pub(crate) longest_ns: u64,
    /// When the last one ended, on the monotonic clock.
    pub(crate) last_end_ns: u64,
}

impl SocketAccount {
    /// From the account of a watched socket. `open`: the socket at this moment, if it still is there; what has passed
    /// since the last event counts for the state that it is in.
    pub(crate) fn from_probes(account: &Account, open: Option<(&Reading, u64)>) -> Self {
        let (send, receive) = (&account.send, &account.receive);
        let mut state_ns = first(send.state_ns);
        let mut queued_ns = send.queued_ns;
        let mut unread_ns = receive.queued_ns;
        let mut end_ns = send.sampled_ns;
        let open = open.filter(|_| send.closed_ns == 0);
        let mut state = None;
        if let Some((reading, now_ns)) = open {
            let found = reading.state();
            let passed_ns = now_ns.saturating_sub(send.sampled_ns);
            add(&mut state_ns, found as usize, passed_ns);
            add(&mut queued_ns, bucket(reading.queued_bytes), passed_ns);
            add(&mut unread_ns, bucket(receive.queued_bytes), now_ns.saturating_sub(receive.changed_ns));
            end_ns = end_ns.max(now_ns);
            state = Some(found);
        }
        Self {
            approximate: false,
            sockets: 1,
            watched_ns: end_ns.saturating_sub(account.began_ns),
            state_ns: Some(state_ns),
            state_entries: Some(first(send.state_entries)),
            state,
            unwritable_ns: Some(send.unwritable_ns),
            unwritable_total: Some(send.unwritable_total),
            send_queue: Queue {
                bytes: open.map(|(reading, _)| reading.queued_bytes),
                max_bytes: Some(send.queued_max_bytes),
                histogram_ns: Some(queued_ns),
            },
            receive_queue: Queue {
                bytes: open.map(|(reading, _)| reading.unread_bytes),
                max_bytes: Some(receive.queued_max_bytes),
                histogram_ns: Some(unread_ns),
            },
            unread_age_ns: open.and_then(|(reading, now_ns)| unread_age_ns(receive, reading, now_ns)),
            residence: Some(Residence {
                total: Some(receive.residence_total),
                sum_ns: Some(receive.residence_ns),
                max_ns: receive.residence_max_ns,
                histogram: receive.residence_histogram,
                unmarked_total: Some(receive.marks_lost),
            }),
            retransmitted_segments: Some(
                open.map_or(send.retransmitted_segments, |(reading, _)| reading.retransmitted_segments),
            ),
            retransmitted_last_ns: Some(send.retransmitted_last_ns).filter(|ns| *ns > 0),
            zero_window_ns: Some(send.zero_window_ns),
            zero_window_total: Some(send.zero_window_total),
            round_trip_ns: Some(send.round_trip_us.saturating_mul(1000)).filter(|ns| *ns > 0),
            stalls: Some(Stalls::default()),
        }
    }

    /// What one hook less leaves unknown: without sends the edges of idle time are rough.
    pub(crate) fn without_sends(mut self) -> Self {
        self.approximate = true;
        self
    }

    /// What one hook less leaves unknown: without reads, when anything was read.
    pub(crate) fn without_reads(mut self) -> Self {
        self.residence = None;
        self.unread_age_ns = None;
        self.receive_queue.max_bytes = None;
        self.receive_queue.histogram_ns = None;
        self
    }

    /// The same as that of a link that has no socket now.
    pub(crate) fn ended(mut self) -> Self {
        self.state = None;
        self.send_queue.bytes = None;
        self.receive_queue.bytes = None;
        self.unread_age_ns = None;
        self.round_trip_ns = None;
        self
    }
}

/// How long the first of what is unread has been there. What arrived before watching began has no mark, nor what found no
/// place for one.
fn unread_age_ns(receive: &ReceiveAccount, reading: &Reading, now_ns: u64) -> Option<u64> {
    if receive.marks_read < receive.marks_written {
        let mark = receive.marks.get(receive.marks_read as usize % MARKS)?;
        return Some(now_ns.saturating_sub(mark.arrived_ns));
    }
    (reading.unread_bytes == 0).then_some(0)
}

/// A later socket of the same link: sums are added up, and what is now is that of the later one. What is known of one
/// only is kept, and marked as approximate.
impl AddAssign<SocketAccount> for SocketAccount {
    fn add_assign(&mut self, later: Self) {
        if self.sockets == 0 {
            *self = later;
            return;
        }
        if later.sockets == 0 {
            return;
        }
        let mixed = self.residence.is_some() != later.residence.is_some();
        self.approximate |= later.approximate || mixed;
        self.sockets += later.sockets;
        self.watched_ns += later.watched_ns;
        self.state = later.state;
        self.unread_age_ns = later.unread_age_ns;
        self.round_trip_ns = later.round_trip_ns;
        self.retransmitted_last_ns = self.retransmitted_last_ns.max(later.retransmitted_last_ns);
        both(&mut self.state_ns, later.state_ns, |a, b| each(a, &b));
        both(&mut self.state_entries, later.state_entries, |a, b| each(a, &b));
        self.send_queue.add(later.send_queue);
        self.receive_queue.add(later.receive_queue);
        both(&mut self.residence, later.residence, Residence::add);
        both(&mut self.stalls, later.stalls, Stalls::add);
        for (sum, more) in [
            (&mut self.unwritable_ns, later.unwritable_ns),
            (&mut self.unwritable_total, later.unwritable_total),
            (&mut self.retransmitted_segments, later.retransmitted_segments),
            (&mut self.zero_window_ns, later.zero_window_ns),
            (&mut self.zero_window_total, later.zero_window_total),
        ] {
            both(sum, more, |sum, more| *sum += more);
        }
    }
}

impl Queue {
    fn add(&mut self, later: Self) {
        self.bytes = later.bytes;
        self.max_bytes = self.max_bytes.max(later.max_bytes);
        both(&mut self.histogram_ns, later.histogram_ns, |a, b| each(a, &b));
    }
}

impl Residence {
    fn add(&mut self, later: Self) {
        // What is known of a part of the arrivals only is not known of all.
        for (sum, more) in [
            (&mut self.total, later.total),
            (&mut self.sum_ns, later.sum_ns),
            (&mut self.unmarked_total, later.unmarked_total),
        ] {
            *sum = sum.zip(more).map(|(sum, more)| sum + more);
        }
        self.max_ns = self.max_ns.max(later.max_ns);
        each(&mut self.histogram, &later.histogram);
    }
}

impl Stalls {
    fn add(&mut self, later: Self) {
        self.total += later.total;
        self.longest_ns = self.longest_ns.max(later.longest_ns);
        self.last_end_ns = self.last_end_ns.max(later.last_end_ns);
    }

    /// One more.
    pub(crate) fn note(&mut self, lasted_ns: u64, end_ns: u64) {
        self.add(Self { total: 1, longest_ns: lasted_ns, last_end_ns: end_ns });
    }
}

/// Adds what is known of both, and keeps what is known of one.
fn both<T>(sum: &mut Option<T>, more: Option<T>, add: impl FnOnce(&mut T, T)) {
    match (sum.as_mut(), more) {
        (Some(sum), Some(more)) => add(sum, more),
        (None, more) => *sum = more,
        (Some(_), None) => {}
    }
}

fn each(sums: &mut [u64], more: &[u64]) {
    sums.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
}

/// Adds to one bucket, the last one for whatever lies beyond.
pub(in crate::observe) fn add(buckets: &mut [u64], at: usize, more: u64) {
    let at = at.min(buckets.len().saturating_sub(1));
    if let Some(bucket) = buckets.get_mut(at) {
        *bucket += more;
    }
}

/// The states that there are, of the places that there are.
fn first<const PLACES: usize>(places: [u64; PLACES]) -> [u64; STATES] {
    let mut states = [0; STATES];
    states.iter_mut().zip(places).for_each(|(state, place)| *state = place);
    states
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account() -> Account {
        let mut account = Account::begun(1, 1_000);
        account.send.state_ns[SendState::Flight as usize] = 400;
        account.send.state_ns[SendState::Idle as usize] = 100;
        account.send.sampled_ns = 1_500;
        account.receive.changed_ns = 1_200;
        account.receive.queued_ns[0] = 200;
        account.receive.queued_bytes = 5;
        account.receive.residence_total = 1;
        account.receive.residence_ns = 4;
        account.receive.residence_max_ns = 4;
        account.receive.residence_histogram[3] = 1;
        account
    }

    fn residence(account: &SocketAccount) -> Residence {
        account.residence.clone().unwrap()
    }

    #[test]
    fn what_is_unread_is_as_old_as_the_first_mark_that_is_not_read() {
        let mut account = account();
        let unread = |bytes| Reading { unread_bytes: bytes, ..Reading::default() };
        let age = |account: &Account, reading: &Reading| {
            SocketAccount::from_probes(account, Some((reading, 1_800))).unread_age_ns
        };
        assert_eq!((age(&account, &unread(0)), age(&account, &unread(5))), (Some(0), None));
        account.receive.marks_read = MARKS as u64 + 2;
        account.receive.marks_written = MARKS as u64 + 4;
        account.receive.marks[2].arrived_ns = 1_100;
        account.receive.marks[3].arrived_ns = 1_700;
        assert_eq!(age(&account, &unread(5)), Some(700));
        assert_eq!(SocketAccount::from_probes(&account, None).unread_age_ns, None);
        let open = SocketAccount::from_probes(&account, Some((&unread(5), 1_800)));
        assert_eq!(open.clone().without_reads().unread_age_ns, None);
        assert_eq!(open.ended().unread_age_ns, None);
    }

    #[test]
    fn the_interval_that_runs_counts_for_the_state_that_the_socket_is_in() {
        let reading = Reading { queued_bytes: 9, unsent_bytes: 9, ..Reading::default() };
        let open = SocketAccount::from_probes(&account(), Some((&reading, 1_800)));
        assert_eq!((open.watched_ns, open.state), (800, Some(SendState::CongestionWindow)));
        assert_eq!(open.state_ns, Some([100, 400, 0, 300, 0, 0]));
        assert_eq!(open.send_queue.histogram_ns.unwrap()[bucket(9)], 300);
        assert_eq!(open.receive_queue.histogram_ns.unwrap()[bucket(5)], 600);
        assert_eq!(open.receive_queue.bytes, Some(0));
    }

    #[test]
    fn a_socket_that_is_over_ends_with_its_last_event() {
        let mut closed = account();
        closed.send.closed_ns = 1_500;
        let reading = Reading::default();
        for account in [
            SocketAccount::from_probes(&closed, Some((&reading, 9_000))),
            SocketAccount::from_probes(&account(), None),
        ] {
            assert_eq!((account.watched_ns, account.state, account.send_queue.bytes), (500, None, None));
            assert_eq!(account.state_ns.unwrap().iter().sum::<u64>(), 500);
        }
    }

    #[test]
    fn sockets_of_one_link_are_added_up_and_what_is_unknown_is_not_made_zero() {
        let probed = SocketAccount::from_probes(&account(), None);
        let mut sum = SocketAccount::default();
        sum += probed.clone();
        assert_eq!(sum, probed);
        sum += probed.clone();
        assert_eq!((sum.sockets, sum.watched_ns, sum.approximate), (2, 1_000, false));
        assert_eq!(sum.state_ns, Some([200, 800, 0, 0, 0, 0]));
        sum += SocketAccount::default();
        assert_eq!(sum.sockets, 2);

        let sampled = SocketAccount { sockets: 1, approximate: true, ..SocketAccount::default() };
        let mut unknown = sampled.clone();
        unknown += sampled.clone();
        assert_eq!(
            (unknown.residence.clone(), unknown.zero_window_total, unknown.state_ns),
            (None, None, None)
        );
        unknown += probed.clone();
        assert!(unknown.approximate && unknown.residence.is_some());

        // Of the arrivals at one of the two only some were seen.
        let seen =
            Residence { total: None, sum_ns: None, max_ns: 9, unmarked_total: None, ..residence(&probed) };
        let mut some = probed.clone();
        some += SocketAccount { residence: Some(seen), ..sampled };
        assert!(some.approximate);
        let of_both = residence(&some);
        assert_eq!((of_both.total, of_both.sum_ns, of_both.unmarked_total), (None, None, None));
        assert_eq!((of_both.max_ns, of_both.histogram[3]), (9, 2));
    }
}
