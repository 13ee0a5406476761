//! Records as messages, for libraries that keep messages apart: each record is one.

use std::sync::Arc;

use bytes::Bytes;
use weir_bench::app::{Board, Counter};
use weir_bench::blast;
use weir_bench::clock::now_ns;
use weir_bench::peers::Options;

use crate::records::{Source, count};

/// The records of one stream, until it has had all of them or the process is to end.
pub(crate) struct Messages {
    board: Arc<Board>,
    source: Source,
    bytes: usize,
}

impl Messages {
    pub(crate) fn new(board: &Arc<Board>, options: &Options) -> Self {
        let source = Source::new(options.record_bytes, options.records_per_stream);
        Self { board: Arc::clone(board), source, bytes: options.record_bytes }
    }

    /// Writes the next one in place; whether there is one.
    #[cfg(any(feature = "aeron", feature = "zeromq"))]
    pub(crate) fn write(&mut self, message: &mut [u8]) -> bool {
        !self.board.is_ending() && self.source.record(message)
    }
}

impl Iterator for Messages {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        let mut message = vec![0_u8; self.bytes];
        (!self.board.is_ending() && self.source.record(&mut message)).then(|| Bytes::from(message))
    }
}

/// Adds a message up.
pub(crate) fn take(message: &[u8], counter: &Counter) {
    count(counter, 1, message.len() as u64, blast::sum(message));
}

/// Notes how long after the time that it carries a message came.
pub(crate) fn note_time(message: &[u8], board: &Board, counter: &Counter) {
    let now = now_ns();
    if let Some(due) = message.first_chunk::<8>() {
        board.note_time(now.saturating_sub(u64::from_le_bytes(*due)));
    }
    count(counter, 1, message.len() as u64, 0);
}
