//! Records and events on their way, and what is kept of those that were given up in their middle.
//!
//! A future may be dropped when part of its record is written, or when some of the consumers have its event. What was
//! written cannot be taken back, and a consumer that has part of a record waits for the rest. So the rest is kept. It
//! goes out as soon as there is room for it: every look at what the daemon returned tries, and so does the flusher. What
//! belongs behind it has to wait for it, and nothing else does.

use weir_flow::record::RecordWriter;

use super::{Emitted, Lack, Writer};
use crate::error::Error;

/// A record on its way into segments.
pub(crate) struct Emission<'a> {
    source: Source<'a>,
    /// Segments opened for it.
    opened: u32,
}

enum Source<'a> {
    /// A record of the application.
    Record(RecordWriter<'a>),
    /// What was left of one, with its frame.
    Rest { bytes: Vec<u8>, written: usize },
}

impl<'a> Emission<'a> {
    pub(crate) fn new(record: RecordWriter<'a>) -> Self {
        Self { source: Source::Record(record), opened: 0 }
    }

    /// The next bytes to write, at most `room` in all. They count as written from here on.
    #[inline]
    pub(super) fn next_pieces(&mut self, room: usize) -> [&[u8]; 3] {
        match &mut self.source {
            Source::Record(record) => record.next_pieces(room),
            Source::Rest { bytes, written } => {
                let rest = bytes.get(*written..).unwrap_or_default();
                let piece = rest.get(..room).unwrap_or(rest);
                *written += piece.len();
                [piece, &[], &[]]
            }
        }
    }

    /// Whether nothing of it is written.
    pub(super) fn is_fresh(&self) -> bool {
        matches!(&self.source, Source::Record(record) if !record.is_begun())
    }

    /// Bytes still to write.
    #[inline]
    pub(super) fn remaining(&self) -> usize {
        match &self.source {
            Source::Record(record) => record.remaining(),
            Source::Rest { bytes, written } => bytes.len().saturating_sub(*written),
        }
    }

    /// Whether it may use overdraft: only to finish what it began in a segment of its own.
    pub(super) fn is_begun(&self) -> bool {
        self.opened > 0
    }

    pub(super) fn handle_opened(&mut self) {
        self.opened += 1;
    }

    /// Whether some of a record is written, and some is not.
    pub(crate) fn is_in_part_written(&self) -> bool {
        matches!(&self.source, Source::Record(record) if record.is_begun() && record.remaining() > 0)
    }

    /// It is not to be written any further.
    pub(crate) fn end(&mut self) {
        self.source = Source::Rest { bytes: Vec::new(), written: 0 };
    }

    /// What is left of it, as an emission of its own.
    pub(crate) fn take_rest(&mut self) -> Emission<'static> {
        let bytes = self.next_pieces(usize::MAX).concat();
        Emission { source: Source::Rest { bytes, written: 0 }, opened: self.opened }
    }
}

/// What is left of something whose future was dropped in its middle.
pub(crate) enum Rest {
    /// Of a record.
    Record {
        /// Where it goes.
        subpartition: u32,
        /// What is not written yet.
        emission: Emission<'static>,
    },
    /// Of an event for all consumers.
    Event {
        /// The first subpartition that has not got it.
        next: u32,
        /// The event.
        payload: Vec<u8>,
        /// Whether it overtakes records.
        priority: bool,
    },
}

impl Rest {
    /// Whether what comes later for this subpartition belongs behind it.
    fn precedes(&self, of: u32) -> bool {
        match self {
            Self::Record { subpartition, .. } => *subpartition == of,
            Self::Event { next, priority, .. } => !priority && *next <= of,
        }
    }
}

impl Writer {
    /// Whether anything is left.
    pub(crate) fn has_rests(&self) -> bool {
        !self.rests.is_empty()
    }

    /// Whether something comes first that is left for this subpartition.
    pub(super) fn is_behind_rest(&self, subpartition: u32) -> bool {
        self.rests.iter().any(|rest| rest.precedes(subpartition))
    }

    /// Keeps what is left. No segment stays open that records behind an event could be written into.
    pub(crate) fn keep(&mut self, rest: Rest) {
        if let Rest::Event { next, priority: false, .. } = rest {
            for subpartition in next..self.subpartitions() {
                // What cannot be submitted is met again by whoever emits next.
                let _ = self.close(subpartition);
            }
        }
        self.rests.push(rest);
    }

    /// Writes as much of what is left as there is room for.
    pub(super) fn push_rests(&mut self) -> Result<(), Error> {
        if self.rests.is_empty() {
            return Ok(());
        }
        // While they are away nothing is behind them: not their own segments either.
        let mut rests = std::mem::take(&mut self.rests);
        let mut outcome = Ok(());
        rests.retain_mut(|rest| match self.push_rest(rest) {
            Ok(is_done) => !is_done,
            Err(error) => {
                outcome = Err(error);
                false
            }
        });
        self.rests = rests;
        outcome
    }

    /// Whether all of it is written.
    fn push_rest(&mut self, rest: &mut Rest) -> Result<bool, Error> {
        match rest {
            Rest::Record { subpartition, emission } => match self.write_on(*subpartition, emission)? {
                Ok(Emitted::Done(())) => {
                    // Nobody else looks at its buffer timeout.
                    if !self.submit_part(*subpartition)? {
                        self.close(*subpartition)?;
                    }
                    Ok(true)
                }
                Ok(Emitted::Gone) => {
                    if let Some(losses) = &mut self.losses {
                        losses.handle_unfinished();
                    }
                    Ok(true)
                }
                Err(_) => Ok(false),
            },
            Rest::Event { next, payload, priority } => {
                Ok(self.emit_event_on(next, payload, *priority)?.is_ok())
            }
        }
    }

    /// Submits an event for all consumers: begins it only when every one of them takes it, and nothing is left.
    pub(crate) fn emit_event_to_all(
        &mut self,
        next: &mut u32,
        payload: &[u8],
        priority: bool,
    ) -> Result<Result<(), Lack>, Error> {
        if *next == 0 {
            self.look()?;
            for subpartition in 0..self.subpartitions() {
                if !self.is_gone(subpartition)? && !self.has_event_window(subpartition) {
                    self.lacking = Some(subpartition);
                    return Ok(Err(Lack::Event));
                }
            }
            if self.has_rests() {
                return Ok(Err(Lack::Room));
            }
        }
        self.emit_event_on(next, payload, priority)
    }

    /// Submits an event to the subpartitions from `next` on. A consumer that is gone needs none.
    fn emit_event_on(
        &mut self,
        next: &mut u32,
        payload: &[u8],
        priority: bool,
    ) -> Result<Result<(), Lack>, Error> {
        while *next < self.subpartitions() {
            if let Err(lack) = self.emit_event(*next, payload, priority)? {
                return Ok(Err(lack));
            }
            *next += 1;
        }
        Ok(Ok(()))
    }
}
