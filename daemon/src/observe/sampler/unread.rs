//! How long what arrived lay unread, from looks now and then.
//!
//! A look finds the first byte that is unread, and when it arrived. It counts once: when a later look finds that it has
//! been read, with what it had waited at the last look that found it. What came and was read between two looks is not
//! seen; so nothing is known of how many there were, and every time is at least so long as it says.

use weir_ebpf_abi::{TIME_BUCKETS, bucket};

use crate::observe::sockets::{Reading, Residence, add};

/// The first byte that was unread at the last look.
#[derive(Clone, Copy, Debug)]
struct First {
    /// Its offset in the stream.
    offset: u64,
    /// When it arrived, or later.
    arrived_ns: u64,
    /// How long it had waited at that look.
    age_ns: u64,
}

/// What was found out about one receive queue. Times are nanoseconds of one clock.
#[derive(Clone, Debug)]
pub(super) struct Unread {
    /// Whatever was unread at the last look arrived after this.
    after_ns: u64,
    /// The time of a look, and the bytes that had arrived by then: once all of those are read, [`Self::after_ns`].
    checked: (u64, u64),
    first: Option<First>,
    /// How long the first byte had waited at the last look; 0 if there was none, `None` if that look could not tell.
    age_ns: Option<u64>,
    residence: Residence,
}

impl Unread {
    /// Begins with a socket in this state.
    pub(super) fn new(now_ns: u64, first: &Reading) -> Self {
        let residence = Residence {
            total: None,
            sum_ns: None,
            max_ns: 0,
            histogram: [0; TIME_BUCKETS],
            unmarked_total: None,
        };
        Self {
            after_ns: now_ns,
            checked: (now_ns, first.received_bytes),
            first: None,
            age_ns: None,
            residence,
        }
    }

    /// Takes what a look has found.
    pub(super) fn look(&mut self, now_ns: u64, reading: &Reading) {
        self.age_ns = None;
        // The end of a stream counts as a byte of it, and it is not known whether it has come.
        let Some(offset) = reading.read_bytes.filter(|_| reading.is_established) else { return };
        let (checked_ns, arrived_bytes) = self.checked;
        if offset >= arrived_bytes {
            self.after_ns = self.after_ns.max(checked_ns);
            self.checked = (now_ns, reading.received_bytes);
        }
        if let Some(read) = self.first.take_if(|first| first.offset != offset) {
            self.note(read.age_ns);
        }
        if reading.unread_bytes == 0 {
            self.age_ns = Some(0);
            return;
        }
        // What a step of the wall clock adds ends at what is known without it. Without a stamp it has been there since
        // this look at the latest.
        let arrived_ns = reading.oldest_arrival_ns.unwrap_or(now_ns).max(self.after_ns).min(now_ns);
        let first = self.first.get_or_insert(First { offset, arrived_ns, age_ns: 0 });
        // A buffer that still lies there may have been given a later stamp.
        first.arrived_ns = first.arrived_ns.min(arrived_ns);
        first.age_ns = now_ns.saturating_sub(first.arrived_ns);
        self.age_ns = Some(first.age_ns);
    }

    /// How long the first byte had waited at the last look, as [`SocketAccount::unread_age_ns`] has it.
    ///
    /// [`SocketAccount::unread_age_ns`]: crate::observe::sockets::SocketAccount::unread_age_ns
    pub(super) fn age_ns(&self) -> Option<u64> {
        self.age_ns
    }

    /// When the first byte that lay unread at the last look had arrived, or later; none if there was none, or that look
    /// could not tell.
    pub(super) fn since_ns(&self) -> Option<u64> {
        self.age_ns?;
        self.first.map(|first| first.arrived_ns)
    }

    /// What is known of those that were read.
    pub(super) fn residence(&self) -> Residence {
        self.residence.clone()
    }

    fn note(&mut self, age_ns: u64) {
        self.residence.max_ns = self.residence.max_ns.max(age_ns);
        add(&mut self.residence.histogram, bucket(age_ns), 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many bytes had arrived and so many of them were read, the next of which arrived then.
    fn reading(received: u64, read: u64, arrived_ns: Option<u64>) -> Reading {
        Reading {
            received_bytes: received,
            read_bytes: Some(read),
            unread_bytes: received - read,
            oldest_arrival_ns: arrived_ns,
            is_established: true,
            ..Reading::default()
        }
    }

    fn counted(unread: &Unread) -> (u64, u64) {
        (unread.residence.max_ns, unread.residence.histogram.iter().sum())
    }

    #[test]
    fn the_first_unread_byte_counts_once_it_is_read_with_what_it_had_waited_when_it_was_last_seen() {
        let mut unread = Unread::new(1_000, &reading(10, 10, None));
        unread.look(2_000, &reading(30, 10, Some(1_500)));
        assert_eq!((unread.age_ns(), counted(&unread)), (Some(500), (0, 0)), "it is not read");
        unread.look(3_000, &reading(30, 10, Some(1_500)));
        assert_eq!((unread.age_ns(), counted(&unread)), (Some(1_500), (0, 0)));
        // It was read, and another one lies there.
        unread.look(4_000, &reading(30, 20, Some(1_600)));
        assert_eq!((unread.age_ns(), counted(&unread)), (Some(2_400), (1_500, 1)));
        unread.look(5_000, &reading(30, 30, None));
        assert_eq!((unread.age_ns(), counted(&unread)), (Some(0), (2_400, 2)));
        assert_eq!(unread.residence.histogram[bucket(1_500)], 1);
        assert_eq!(unread.residence.histogram[bucket(2_400)], 1);
        let known = unread.residence();
        assert_eq!((known.total, known.sum_ns, known.unmarked_total), (None, None, None));
    }

    #[test]
    fn a_byte_that_lies_there_keeps_its_arrival_whatever_joins_it_in_its_buffer() {
        let mut unread = Unread::new(1_000, &reading(0, 0, None));
        unread.look(2_000, &reading(10, 0, Some(1_500)));
        // The stamp of the buffer is now that of what came last.
        unread.look(3_000, &reading(20, 0, Some(2_900)));
        assert_eq!(unread.age_ns(), Some(1_500));
        // And without one it is as old as it was known to be.
        unread.look(4_000, &reading(20, 0, None));
        assert_eq!(unread.age_ns(), Some(2_500));
    }

    #[test]
    fn what_is_not_stamped_has_been_there_since_the_look_that_found_it() {
        let mut unread = Unread::new(1_000, &reading(0, 0, None));
        unread.look(2_000, &reading(10, 0, None));
        assert_eq!(unread.age_ns(), Some(0));
        unread.look(3_000, &reading(10, 0, None));
        unread.look(4_000, &reading(10, 10, None));
        assert_eq!(counted(&unread), (1_000, 1));
    }

    #[test]
    fn a_wall_clock_that_is_set_makes_nothing_older_than_it_can_be_nor_younger_than_nothing() {
        let mut unread = Unread::new(1_000, &reading(10, 10, None));
        // Set forward: the stamp is of long ago. All of it arrived after the beginning.
        unread.look(2_000, &reading(20, 10, Some(0)));
        assert_eq!(unread.age_ns(), Some(1_000));
        // All that had arrived at the look before is read; the rest came after it.
        unread.look(3_000, &reading(30, 20, Some(0)));
        unread.look(4_000, &reading(40, 30, Some(0)));
        assert_eq!(unread.age_ns(), Some(1_000));
        // Not all of it is read yet: it may have come since the look before that.
        unread.look(5_000, &reading(50, 35, Some(0)));
        assert_eq!(unread.age_ns(), Some(2_000));
        // Set back: the stamp is yet to come.
        unread.look(6_000, &reading(60, 50, Some(90_000)));
        assert_eq!(unread.age_ns(), Some(0));
    }

    #[test]
    fn a_look_that_cannot_tell_changes_nothing() {
        let mut unread = Unread::new(1_000, &reading(0, 0, None));
        unread.look(2_000, &reading(10, 0, Some(1_500)));
        let busy = Reading { read_bytes: None, ..reading(20, 0, Some(1_500)) };
        let over = Reading { is_established: false, ..reading(11, 1, Some(1_500)) };
        for reading in [busy, over] {
            unread.look(3_000, &reading);
            assert_eq!((unread.age_ns(), counted(&unread)), (None, (0, 0)));
        }
        unread.look(4_000, &reading(20, 0, Some(3_900)));
        assert_eq!(unread.age_ns(), Some(2_500));
    }
}
