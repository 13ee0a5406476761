//! What a producer's client sees of the daemon.

use weir_flow::shard::SubpartitionView;

/// What the daemon publishes for one subpartition; the client reads it whenever it likes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// Segments that its channel may still open at the receiver.
    pub credit: u32,
    /// Segments that left the queue.
    pub sent_segments: u64,
    /// Bytes that reached the consumer's receive region.
    pub acked_bytes: u64,
    /// Bytes that the consumer gave back.
    pub consumed_bytes: u64,
    /// Events that were taken and consumed.
    pub events_done: u64,
    /// Bytes that the consumer wants on their way at most.
    pub buffer_bytes: u32,
    /// Its consumer is lost.
    pub is_gone: bool,
}

impl Default for Cell {
    fn default() -> Self {
        Self::of(&SubpartitionView { buffer_bytes: u32::MAX, ..SubpartitionView::default() }, 0)
    }
}

impl Cell {
    /// What is published of a view, of whose events so many were taken.
    #[must_use]
    pub fn of(view: &SubpartitionView, events_taken: u64) -> Self {
        Self {
            credit: view.credit,
            sent_segments: view.sent_segments,
            acked_bytes: view.acked_bytes,
            consumed_bytes: view.consumed_bytes,
            events_done: events_taken - u64::from(view.events_in_flight),
            buffer_bytes: view.buffer_bytes,
            is_gone: view.is_gone,
        }
    }
}
