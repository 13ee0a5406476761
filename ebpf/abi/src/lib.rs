//! Records that the kernel probes write and the daemon reads.
//!
//! Plain `repr(C)` structures without implicit padding, the same in both worlds. A field is never reinterpreted: a
//! change of meaning is a new field, and the sizes asserted here catch a change of layout.
#![no_std]

mod account;
mod offsets;

pub use account::{
    Account, MARKS, Mark, QUEUE_BUCKETS, ReceiveAccount, STATE_PLACES, SendAccount, TIME_BUCKETS, Totals,
    Watch, bucket,
};
pub use offsets::{Member, Missing, Offsets};

/// What a watched socket's send side was doing, exactly one at a time. The probes sample it at the start of each
/// event that can change it; it held since the sample before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum SendState {
    /// Nothing queued.
    Idle = 0,
    /// All queued bytes are sent; waiting for acknowledgements.
    Flight = 1,
    /// Unsent bytes are held back by pacing, small-queue limits or Nagle.
    Held = 2,
    /// Unsent bytes; the congestion window is full.
    CongestionWindow = 3,
    /// Unsent bytes; the peer's receive window is full.
    ReceiveWindow = 4,
    /// All queued bytes are sent and the writer waits for send buffer.
    SendBuffer = 5,
}

/// Every state, by its number.
pub const SEND_STATES: [SendState; 6] = [
    SendState::Idle,
    SendState::Flight,
    SendState::Held,
    SendState::CongestionWindow,
    SendState::ReceiveWindow,
    SendState::SendBuffer,
];

impl SendState {
    /// The state with this number, `None` for a number of a later version.
    #[must_use]
    pub fn from_number(number: u32) -> Option<Self> {
        SEND_STATES.into_iter().find(|state| *state as u32 == number)
    }
}

/// One finished stall of a watched socket, as it stands in the probes' ring buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct SocketStall {
    /// The socket's cookie (`SO_COOKIE`): what joins it to a link.
    pub cookie: u64,
    /// When it began, in nanoseconds of `CLOCK_MONOTONIC`.
    pub began_ns: u64,
    /// How long it lasted, in nanoseconds.
    pub lasted_ns: u64,
    /// Stream offset of the first byte that waited.
    pub stream_offset: u64,
    /// Bytes in the send queue when it began.
    pub queued_bytes: u32,
    /// A [`SendState`], as its number.
    pub state: u32,
}

const _: () = assert!(size_of::<SocketStall>() == 40 && align_of::<SocketStall>() == 8);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_is_found_by_its_number_and_no_other_number_is_one() {
        for (number, state) in (0..).zip(SEND_STATES) {
            assert_eq!(SendState::from_number(number), Some(state));
        }
        assert_eq!(SendState::from_number(6), None);
    }
}
