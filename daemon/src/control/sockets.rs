//! What the sockets of a link wait for, as the control socket tells it.

use serde::{Deserialize, Serialize};

/// What is known about all sockets that a link has had. What is not known is `null`, never 0. Histograms are by powers of
/// two: entry 0 is for 0, entry `n` for 2^(n-1) to 2^n - 1; what is missing at the end is 0.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SocketRow {
    /// Whether any of it comes from looking now and then, and not from the kernel probes.
    pub approximate: bool,
    /// Sockets that it is about.
    pub sockets_total: u64,
    /// Time that it covers: the sum of the six states.
    pub watched_seconds_total: f64,
    /// What the socket waits for now, in words: `idle`, `flight`, `held`, `congestion_window`, `receive_window` or
    /// `send_buffer`.
    pub state: Option<String>,
    /// Time with nothing to send.
    pub idle_seconds_total: Option<f64>,
    /// Time in which all was sent and not all acknowledged.
    pub flight_seconds_total: Option<f64>,
    /// Time in which this node's kernel held data back: pacing, limits of its queues, Nagle.
    pub held_seconds_total: Option<f64>,
    /// Time in which the network held data back: the congestion window was full.
    pub congestion_window_seconds_total: Option<f64>,
    /// Time in which the peer held data back: its receive window was full.
    pub receive_window_seconds_total: Option<f64>,
    /// Time in which the send buffer was too small for the path.
    pub send_buffer_seconds_total: Option<f64>,
    /// Time in which a send waited for room in the send buffer.
    pub unwritable_seconds_total: Option<f64>,
    /// How often one began to wait.
    pub unwritable_total: Option<u64>,
    /// Bytes written and not acknowledged.
    pub send_queue_bytes: Option<u64>,
    /// Most of them at a time.
    pub send_queue_max_bytes: Option<u64>,
    /// Time with each number of them.
    pub send_queue_seconds: Option<Vec<f64>>,
    /// Bytes that arrived and were not read.
    pub receive_queue_bytes: Option<u64>,
    /// Most of them at a time.
    pub receive_queue_max_bytes: Option<u64>,
    /// Time with each number of them.
    pub receive_queue_seconds: Option<Vec<f64>>,
    /// How long the first of them has waited; 0 if there are none. From looks now and then it is at least so long.
    pub receive_queue_age_seconds: Option<f64>,
    /// Arrivals that were read. Not known from looks now and then.
    pub arrivals_read_total: Option<u64>,
    /// Arrivals that are not among them, for too many were waiting.
    pub arrivals_unmarked_total: Option<u64>,
    /// Time from arrival to read, of all of them together. Not known from looks now and then.
    pub residence_seconds_total: Option<f64>,
    /// The longest; from looks now and then it is at least so long.
    pub residence_max_seconds: Option<f64>,
    /// How many arrivals waited how many nanoseconds; from looks now and then: of those that were found unread, until the
    /// last look that did.
    pub residence_nanoseconds_total: Option<Vec<u64>>,
    /// Segments sent again.
    pub retransmitted_segments_total: Option<u64>,
    /// How long ago one last was; `null` too if none ever was.
    pub retransmitted_last_age_seconds: Option<f64>,
    /// How often the peer had no room at all for what waited.
    pub zero_windows_total: Option<u64>,
    /// Time of that.
    pub zero_window_seconds_total: Option<f64>,
    /// Smoothed round trip.
    pub round_trip_seconds: Option<f64>,
    /// Waits of at least 10 ms that have ended, each for one cause.
    pub stalls_total: Option<u64>,
    /// The longest of them.
    pub stall_longest_seconds: Option<f64>,
}
