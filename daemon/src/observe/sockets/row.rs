//! An account in the form of the control socket.

use weir_ebpf_abi::SendState;

use super::{Queue, SocketAccount, monotonic_ns};
use crate::control::sockets::SocketRow;

/// The word for a state.
pub(crate) const fn state_word(state: SendState) -> &'static str {
    match state {
        SendState::Idle => "idle",
        SendState::Flight => "flight",
        SendState::Held => "held",
        SendState::CongestionWindow => "congestion_window",
        SendState::ReceiveWindow => "receive_window",
        SendState::SendBuffer => "send_buffer",
    }
}

impl SocketAccount {
    /// The row; `None` if nothing was ever known of a socket.
    pub(crate) fn row(&self) -> Option<SocketRow> {
        if self.sockets == 0 {
            return None;
        }
        let state = |state: SendState| {
            self.state_ns.and_then(|times| times.get(state as usize).copied()).map(seconds)
        };
        let residence = self.residence.as_ref();
        Some(SocketRow {
            approximate: self.approximate,
            sockets_total: self.sockets,
            watched_seconds_total: seconds(self.watched_ns),
            state: self.state.map(|state| state_word(state).to_owned()),
            idle_seconds_total: state(SendState::Idle),
            flight_seconds_total: state(SendState::Flight),
            held_seconds_total: state(SendState::Held),
            congestion_window_seconds_total: state(SendState::CongestionWindow),
            receive_window_seconds_total: state(SendState::ReceiveWindow),
            send_buffer_seconds_total: state(SendState::SendBuffer),
            unwritable_seconds_total: self.unwritable_ns.map(seconds),
            unwritable_total: self.unwritable_total,
            send_queue_bytes: self.send_queue.bytes,
            send_queue_max_bytes: self.send_queue.max_bytes,
            send_queue_seconds: times(&self.send_queue),
            receive_queue_bytes: self.receive_queue.bytes,
            receive_queue_max_bytes: self.receive_queue.max_bytes,
            receive_queue_seconds: times(&self.receive_queue),
            receive_queue_age_seconds: self.unread_age_ns.map(seconds),
            arrivals_read_total: residence.and_then(|residence| residence.total),
            arrivals_unmarked_total: residence.and_then(|residence| residence.unmarked_total),
            residence_seconds_total: residence.and_then(|residence| residence.sum_ns).map(seconds),
            residence_max_seconds: residence.map(|residence| seconds(residence.max_ns)),
            residence_nanoseconds_total: residence.map(|residence| used(&residence.histogram).to_vec()),
            retransmitted_segments_total: self.retransmitted_segments,
            retransmitted_last_age_seconds: self
                .retransmitted_last_ns
                .map(|ns| seconds(monotonic_ns().saturating_sub(ns))),
            zero_windows_total: self.zero_window_total,
            zero_window_seconds_total: self.zero_window_ns.map(seconds),
            round_trip_seconds: self.round_trip_ns.map(seconds),
            stalls_total: self.stalls.map(|stalls| stalls.total),
            stall_longest_seconds: self.stalls.map(|stalls| seconds(stalls.longest_ns)),
        })
    }
}

fn times(queue: &Queue) -> Option<Vec<f64>> {
    let histogram = queue.histogram_ns.as_ref()?;
    Some(used(histogram).iter().copied().map(seconds).collect())
}

/// Without the zeros at the end.
fn used(histogram: &[u64]) -> &[u64] {
    let length = histogram.iter().rposition(|count| *count > 0).map_or(0, |last| last + 1);
    histogram.get(..length).unwrap_or_default()
}

/// A century of nanoseconds has 53 bits' worth of microseconds.
fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::sockets::Residence;

    #[test]
    fn what_is_not_known_is_null_and_histograms_end_with_what_they_count() {
        assert_eq!(SocketAccount::default().row(), None);
        let mut histogram = [0; weir_ebpf_abi::TIME_BUCKETS];
        histogram[3] = 2;
        let known = SocketAccount {
            sockets: 1,
            watched_ns: 1_500_000_000,
            state: Some(SendState::ReceiveWindow),
            state_ns: Some([1_000_000_000, 0, 0, 0, 500_000_000, 0]),
            residence: Some(Residence {
                total: Some(2),
                sum_ns: Some(9),
                max_ns: 5,
                histogram,
                unmarked_total: Some(0),
            }),
            ..SocketAccount::default()
        };
        let row = known.row().unwrap();
        assert_eq!((row.idle_seconds_total, row.receive_window_seconds_total), (Some(1.0), Some(0.5)));
        assert_eq!((row.state.as_deref(), row.held_seconds_total), (Some("receive_window"), Some(0.0)));
        assert_eq!(row.residence_nanoseconds_total, Some(vec![0, 0, 0, 2]));
        assert_eq!((row.arrivals_read_total, row.residence_seconds_total), (Some(2), Some(9e-9)));
        let sampled =
            Residence { total: None, sum_ns: None, unmarked_total: None, ..known.residence.clone().unwrap() };
        let sampled = SocketAccount { residence: Some(sampled), ..known.clone() }.row().unwrap();
        assert_eq!((sampled.arrivals_read_total, sampled.residence_seconds_total), (None, None));
        assert_eq!((sampled.residence_max_seconds, sampled.arrivals_unmarked_total), (Some(5e-9), None));
        assert_eq!(
            (row.zero_windows_total, row.send_queue_seconds.clone(), row.stalls_total),
            (None, None, None)
        );
        let json = serde_json::to_string(&row).unwrap();
        assert!(json.contains("\"zero_windows_total\":null"), "{json}");
    }
}
