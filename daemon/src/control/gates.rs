//! What is in flight to the gates of a node, and what they want there: a part of the answer to `GET /v1/channels`.

use serde::{Deserialize, Serialize};
use weir_flow::stats::{DebloatStats, GateStats};

/// One input gate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GateRow {
    /// Name of the exchange.
    pub exchange: String,
    /// Index of the consumer.
    pub consumer: u32,
    /// How many consumers the exchange has.
    pub consumers: u32,
    /// The shard of the gate.
    pub shard: u16,
    /// Bytes known to be in flight: what arrived and the application has not given back, and what the senders told that
    /// they have queued, in segments as full as they are filled now.
    pub in_flight_bytes: u64,
    /// Bytes that the application gave back since the gate came.
    pub consumed_bytes_total: u64,
    /// What debloating does; `null` if the gate is not debloated.
    pub debloat: Option<DebloatRow>,
}

/// What a gate wants in flight.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct DebloatRow {
    /// How old data may be when it is consumed.
    pub target_seconds: f64,
    /// How long the application takes to consume what is in flight; `null` before anything was measured, or if it consumes
    /// nothing.
    pub in_flight_seconds: Option<f64>,
    /// What the application consumes in a second in which it has something to consume; `null` before it did.
    pub bytes_per_second: Option<u64>,
    /// What is wanted in flight; `null` before anything was measured.
    pub wanted_bytes: Option<u64>,
    /// Receive segments that each channel may be granted or use; `null` if that is not held back.
    pub window_segments: Option<u32>,
    /// Bytes that each sender is to have on their way at most; `null` if that is not held back.
    pub buffer_bytes: Option<u32>,
    /// How often what is wanted changed.
    pub changes_total: u64,
    /// How often it changed the other way than before.
    pub turns_total: u64,
}

impl GateRow {
    /// A gate of this shard.
    #[must_use]
    pub fn new(shard: u16, gate: &GateStats) -> Self {
        Self {
            exchange: gate.exchange.to_string(),
            consumer: gate.consumer.0,
            consumers: gate.consumers,
            shard,
            in_flight_bytes: gate.in_flight_bytes,
            consumed_bytes_total: gate.consumed_bytes_total,
            debloat: gate.debloat.as_ref().map(DebloatRow::new),
        }
    }

    /// How long the application takes to consume what is in flight, as far as that is measured.
    #[must_use]
    pub fn in_flight_seconds(&self) -> Option<f64> {
        self.debloat.as_ref()?.in_flight_seconds
    }
}

impl DebloatRow {
    fn new(stats: &DebloatStats) -> Self {
        let seconds = |ns: u64| ns as f64 / 1e9;
        Self {
            target_seconds: seconds(stats.target_ns),
            in_flight_seconds: stats.in_flight_ns.map(seconds),
            bytes_per_second: stats.bytes_per_second,
            wanted_bytes: stats.wanted_bytes,
            window_segments: stats.window,
            buffer_bytes: stats.buffer_bytes,
            changes_total: stats.changes_total,
            turns_total: stats.turns_total,
        }
    }
}
