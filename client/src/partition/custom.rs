//! Selectors of the application: code that says which consumer gets a record.

use std::fmt;

use super::writer::Writer;

/// Says which consumer gets each record of a partition ([`crate::Task::partition_with_selector`]).
///
/// A partition has one subpartition for each consumer, numbered from 0; a selector names the subpartition. It is asked
/// once for each record, in the order in which they are emitted, on the thread that emits. If that subpartition has no
/// room the emit waits for it: a selector that wants to avoid slow consumers looks at [`Targets`] first.
///
/// A closure that takes the record, its key if it has one, and the number of consumers is a selector too:
///
/// ```no_run
/// # use weir_client::{Client, PartitionOptions};
/// # fn main() -> Result<(), weir_client::Error> {
/// # let task = Client::connect("/run/weir")?.task("x")?;
/// // Records that begin with the same byte go to the same consumer.
/// let by_first_byte = |record: &[u8], _key: Option<&[u8]>, consumers: u32| {
///     record.first().copied().map_or(0, u32::from) % consumers
/// };
/// let mut partition =
///     task.partition_with_selector("x", 0, 1, 4, by_first_byte, PartitionOptions::default())?;
/// partition.emit(b"a record")?;
/// # Ok(())
/// # }
/// ```
///
/// All consumers of one key get the same one only if the selector sees to it: it must go by the record and its key alone
/// then, and not by what it finds in [`Targets`].
pub trait ChannelSelector: Send {
    /// The subpartition for this record, less than [`Targets::count`]. `key` is what `emit_keyed` was given, and `None`
    /// with `emit`.
    fn select(&mut self, record: &[u8], key: Option<&[u8]>, targets: &mut Targets<'_>) -> u32;
}

impl<F: FnMut(&[u8], Option<&[u8]>, u32) -> u32 + Send> ChannelSelector for F {
    fn select(&mut self, record: &[u8], key: Option<&[u8]>, targets: &mut Targets<'_>) -> u32 {
        self(record, key, targets.count())
    }
}

/// What a partition knows of its subpartitions at the moment of a choice. Each answer is of the last news from the
/// daemon, some microseconds old. For a subpartition that there is not all are 0.
pub struct Targets<'a> {
    writer: &'a mut Writer,
}

impl fmt::Debug for Targets<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Targets").field("count", &self.count()).finish_non_exhaustive()
    }
}

impl<'a> Targets<'a> {
    pub(super) fn new(writer: &'a mut Writer) -> Self {
        Self { writer }
    }

    /// How many subpartitions there are.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.writer.subpartitions()
    }

    /// Whether a record of so many bytes for this subpartition can be begun without a wait.
    #[must_use]
    pub fn has_room(&mut self, subpartition: u32, record_bytes: usize) -> bool {
        self.writer.has_room(subpartition, record_bytes)
    }

    /// Segments of this subpartition that are open or wait to be sent.
    #[must_use]
    pub fn queued_segments(&mut self, subpartition: u32) -> u32 {
        self.writer.queued_segments(subpartition)
    }

    /// Segments of this subpartition that are in use: those of [`Self::queued_segments`], and those that were sent and
    /// whose arrival was not heard of.
    #[must_use]
    pub fn taken_segments(&mut self, subpartition: u32) -> u32 {
        self.writer.taken_segments(subpartition)
    }

    /// Segments that the consumer's node has room for now.
    #[must_use]
    pub fn credit(&self, subpartition: u32) -> u32 {
        self.writer.cell(subpartition).credit
    }

    /// Bytes that have arrived in the consumer's memory since the start. A record counts with the 4 bytes of its length
    /// and, if records carry one, the 4 bytes of its checksum.
    #[must_use]
    pub fn arrived_bytes(&self, subpartition: u32) -> u64 {
        self.writer.cell(subpartition).acked_bytes
    }

    /// Bytes that the consumer is done with since the start, counted alike.
    #[must_use]
    pub fn consumed_bytes(&self, subpartition: u32) -> u64 {
        self.writer.cell(subpartition).consumed_bytes
    }
}
