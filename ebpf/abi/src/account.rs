//! What the probes keep of one watched socket.
//!
//! An [`Account`] lies in an array that user space maps, so that it can be read without a system call, without the
//! socket, and after the socket has closed. The kernel holds the socket's lock at each probe, so that there is one
//! writer at a time; whoever reads looks at [`Account::sequence`] before and after.

use crate::{SEND_STATES, SendState};

/// Places for send states in an account: the next power of two, so that a masked index is always one of them.
pub const STATE_PLACES: usize = 8;

const _: () = assert!(SEND_STATES.len() <= STATE_PLACES && STATE_PLACES.is_power_of_two());

/// Buckets of a histogram of queue lengths.
pub const QUEUE_BUCKETS: usize = 32;

/// Buckets of a histogram of times.
pub const TIME_BUCKETS: usize = 64;

/// Arrivals that an account remembers until they are read, and for a while after that.
pub const MARKS: usize = 64;

/// The bucket of a value: 0 for 0, else one more than its base-2 logarithm, so that bucket `n` holds 2^(n-1) to
/// 2^n - 1.
#[inline]
#[must_use]
pub const fn bucket(value: u64) -> usize {
    // Without a branch: in a loop the verifier would walk both ways in every round.
    64 - value.leading_zeros() as usize
}

/// Which account a watched socket has: what the kernel keeps with the socket itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Watch {
    /// Its place in the array.
    pub slot: u32,
    /// 0.
    pub reserved: u32,
    /// What [`Account::generation`] must be. A socket that lives on when its place was given to another one finds
    /// another number there, and writes nothing.
    pub generation: u64,
}

/// An arrival of bytes of the stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Mark {
    /// Everything before this offset of the stream, in bytes, had arrived.
    pub end_offset: u64,
    /// When, in nanoseconds of `CLOCK_MONOTONIC`.
    pub arrived_ns: u64,
    /// When the application had read all of it; 0: not yet.
    pub read_ns: u64,
}

/// The sending side of a socket. All times are nanoseconds of `CLOCK_MONOTONIC`, all sums go up only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct SendAccount {
    /// Until when time is accounted for.
    pub sampled_ns: u64,
    /// How often the state was looked at.
    pub samples_total: u64,
    /// The [`SendState`] until then, as its number.
    pub state: u64,
    /// Since when.
    pub state_since_ns: u64,
    /// Bytes in the send queue when it began.
    pub state_queued_bytes: u64,
    /// Stream offset of the first byte that was not sent when it began.
    pub state_offset: u64,
    /// Which of its own clocks the kernel ran then, and since when: a change that no probe saw has changed it.
    pub clock: u64,
    /// Time in each state, by its number.
    pub state_ns: [u64; STATE_PLACES],
    /// How often each was entered.
    pub state_entries: [u64; STATE_PLACES],
    /// Since when a writer has waited for room in the send buffer; 0: none waits.
    pub unwritable_since_ns: u64,
    /// Time with a writer that waits.
    pub unwritable_ns: u64,
    /// How often one began to wait.
    pub unwritable_total: u64,
    /// Since when the peer has had no room at all while bytes waited; 0: it has.
    pub zero_window_since_ns: u64,
    /// Time without any room at the peer while bytes waited.
    pub zero_window_ns: u64,
    /// How often that began.
    pub zero_window_total: u64,
    /// Bytes written and not acknowledged.
    pub queued_bytes: u64,
    /// Most of them at a time.
    pub queued_max_bytes: u64,
    /// Of those, bytes that were not sent.
    pub unsent_bytes: u64,
    /// Time with each length of the queue, by [`bucket`].
    pub queued_ns: [u64; QUEUE_BUCKETS],
    /// Segments sent again, as the kernel counts them.
    pub retransmitted_segments: u64,
    /// When a segment was last sent again; 0: never, or not known.
    pub retransmitted_last_ns: u64,
    /// Smoothed round trip, in microseconds.
    pub round_trip_us: u64,
    /// When the connection was over; 0: it is not. Nothing is accounted for after that.
    pub closed_ns: u64,
}

/// The receiving side of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct ReceiveAccount {
    /// When the queue last changed.
    pub changed_ns: u64,
    /// Bytes that arrived and are not read.
    pub queued_bytes: u64,
    /// Most of them at a time.
    pub queued_max_bytes: u64,
    /// Time with each length of the queue, by [`bucket`].
    pub queued_ns: [u64; QUEUE_BUCKETS],
    /// Segments that brought the next bytes of the stream.
    pub arrivals_total: u64,
    /// Times that the application took bytes out.
    pub reads_total: u64,
    /// Arrivals that have been read.
    pub residence_total: u64,
    /// Time from arrival to read, all of those together.
    pub residence_ns: u64,
    /// The longest of them.
    pub residence_max_ns: u64,
    /// How many took how long, by [`bucket`] of nanoseconds.
    pub residence_histogram: [u64; TIME_BUCKETS],
    /// Arrivals that found no place to be remembered, for [`MARKS`] before them were not read yet.
    pub marks_lost: u64,
    /// Number of the first mark that is not read, counted from the beginning.
    pub marks_read: u64,
    /// Number of marks written. Number `n` stands in place `n % MARKS`, until [`MARKS`] later ones have been written.
    pub marks_written: u64,
    /// The marks.
    pub marks: [Mark; MARKS],
}

/// Everything about one socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Account {
    /// Odd while a probe writes.
    pub sequence: u64,
    /// Of the socket whose account it is; 0: nobody's.
    pub generation: u64,
    /// When watching began, in nanoseconds of `CLOCK_MONOTONIC`.
    pub began_ns: u64,
    /// The sending side.
    pub send: SendAccount,
    /// The receiving side.
    pub receive: ReceiveAccount,
}

/// What concerns all watched sockets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Totals {
    /// Stalls that found no room in the ring.
    pub stalls_lost: u64,
}

impl Account {
    /// The account of a socket from this moment on.
    #[must_use]
    pub const fn begun(generation: u64, now_ns: u64) -> Self {
        Self {
            sequence: 0,
            generation,
            began_ns: now_ns,
            send: SendAccount {
                sampled_ns: now_ns,
                samples_total: 0,
                state: SendState::Idle as u64,
                state_since_ns: now_ns,
                state_queued_bytes: 0,
                state_offset: 0,
                clock: 0,
                state_ns: [0; STATE_PLACES],
                state_entries: [0; STATE_PLACES],
                unwritable_since_ns: 0,
                unwritable_ns: 0,
                unwritable_total: 0,
                zero_window_since_ns: 0,
                zero_window_ns: 0,
                zero_window_total: 0,
                queued_bytes: 0,
                queued_max_bytes: 0,
                unsent_bytes: 0,
                queued_ns: [0; QUEUE_BUCKETS],
                retransmitted_segments: 0,
                retransmitted_last_ns: 0,
                round_trip_us: 0,
                closed_ns: 0,
            },
            receive: ReceiveAccount {
                changed_ns: now_ns,
                queued_bytes: 0,
                queued_max_bytes: 0,
                queued_ns: [0; QUEUE_BUCKETS],
                arrivals_total: 0,
                reads_total: 0,
                residence_total: 0,
                residence_ns: 0,
                residence_max_ns: 0,
                residence_histogram: [0; TIME_BUCKETS],
                marks_lost: 0,
                marks_read: 0,
                marks_written: 0,
                marks: [Mark { end_offset: 0, arrived_ns: 0, read_ns: 0 }; MARKS],
            },
        }
    }
}

// Words of 8 bytes without a gap, which is how user space copies it.
const _: () = assert!(align_of::<Account>() == 8);
const _: () = assert!(
    size_of::<Account>()
        == 8 * (3 + 7 + 2 * STATE_PLACES + 6 + 3 + QUEUE_BUCKETS + 4 // the sending side
            + 3 + QUEUE_BUCKETS + 5 + TIME_BUCKETS + 3 + 3 * MARKS)
);
const _: () = assert!(size_of::<Watch>() == 16 && size_of::<Totals>() == 8);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_holds_the_values_from_one_power_of_two_to_the_next() {
        let cases = [(0, 0), (1, 1), (2, 2), (3, 2), (4, 3), (1023, 10), (1024, 11), (u64::MAX, 64)];
        for (value, number) in cases {
            assert_eq!(bucket(value), number, "{value}");
        }
        assert!(bucket(u64::from(u32::MAX >> 1)) < QUEUE_BUCKETS);
    }

    #[test]
    fn an_account_begins_idle_and_empty() {
        let account = Account::begun(7, 1_000);
        assert_eq!((account.generation, account.sequence, account.began_ns), (7, 0, 1_000));
        assert_eq!(
            (account.send.state, account.send.sampled_ns, account.receive.changed_ns),
            (0, 1_000, 1_000)
        );
        assert_eq!(account.send.state_ns.iter().sum::<u64>(), 0);
    }
}
