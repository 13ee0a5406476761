//! What a gate hands out.

use std::fmt;
use std::ops::Deref;

/// What comes next in a gate.
#[derive(Debug, PartialEq, Eq)]
pub enum Item<'a> {
    /// A record.
    Record(RecordRef<'a>),
    /// An event.
    Event(Event),
}

/// What [`Gate::try_next`](super::Gate::try_next) finds.
#[derive(Debug, PartialEq, Eq)]
pub enum Next<'a> {
    /// A record or an event.
    Item(Item<'a>),
    /// Nothing yet.
    Pending,
    /// Nothing any more: every producer has finished and everything was read.
    End,
}

/// The bytes of a record, where the daemon put them: in the gate's region, or, if it spanned segments, in the memory
/// in which it was put together.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RecordRef<'a> {
    bytes: &'a [u8],
    channel: u32,
}

impl<'a> RecordRef<'a> {
    #[inline]
    pub(super) fn new(bytes: &'a [u8], channel: u32) -> Self {
        Self { bytes, channel }
    }

    /// The channel that it came by: the index of its producer, but for `forward` and `rescale`, where
    /// [`Gate::producer_of`](super::Gate::producer_of) says whose it is.
    #[must_use]
    #[inline]
    pub fn channel(&self) -> u32 {
        self.channel
    }

    /// Its bytes, for as long as the gate is not asked for the next.
    #[must_use]
    #[inline]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }
}

impl fmt::Debug for RecordRef<'_> {
    /// Where it came from and how long it is. Its content is the application's.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordRef")
            .field("channel", &self.channel)
            .field("bytes", &self.bytes.len())
            .finish_non_exhaustive()
    }
}

impl Deref for RecordRef<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        self.bytes
    }
}

impl AsRef<[u8]> for RecordRef<'_> {
    fn as_ref(&self) -> &[u8] {
        self.bytes
    }
}

/// An event that a producer emitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The channel that it came by; see [`RecordRef::channel`].
    pub channel: u32,
    /// The producer's bytes, up to 1,024 of them.
    pub payload: Vec<u8>,
    /// It overtook records that were still on their way.
    pub priority: bool,
}
