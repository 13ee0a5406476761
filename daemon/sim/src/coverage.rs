//! Which rare paths a run has taken, by name. A test fails when the standard seeds never took one of them: a path
//! that no seed reaches is a path that nothing checks.

use std::fmt;

macro_rules! marks {
    ($($(#[$doc:meta])* $name:ident => $text:literal,)*) => {
        /// A path worth knowing that it was taken.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Mark { $($(#[$doc])* $name,)* }

        impl Mark {
            /// Every mark.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// Its name in tables.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

marks! {
    /// A send took only a part of a header.
    ShortWriteInHeader => "short write inside a header",
    /// A send took only a part of a data frame's payload.
    ShortWriteInPayload => "short write inside a payload",
    /// A send took only a part of a control frame's body.
    ShortWriteInBody => "short write inside a control frame",
    /// A send took whole frames, but not all.
    ShortWriteAtBoundary => "short write between two frames",
    /// A send took nothing.
    ShortWriteOfNothing => "send that took nothing",
    /// A read ended inside a header.
    ReadCutInHeader => "read cut inside a header",
    /// A read ended inside a payload.
    ReadCutInPayload => "read cut inside a payload",
    /// A read ended inside a control frame's body.
    ReadCutInBody => "read cut inside a control frame",
    /// A read had several frames.
    CoalescedRead => "several frames in one read",
    /// The socket had no room.
    SocketFull => "socket full",
    /// A shard took a long turn.
    LongTurn => "long shard turn",
    /// An acknowledgement came before the result of the send that it acknowledges.
    AckBeforeSent => "acknowledged before the send was reported",
    /// A data frame held several submissions.
    UnsentMerged => "unsent slices merged",
    /// A delivery held several data frames.
    ArrivedMerged => "arrived slices merged",
    /// A slice was put behind another one in the open receive segment.
    PackedBehind => "slice packed into the open segment",
    /// An open receive segment was given up.
    SegmentGivenUp => "open segment given up (CLOSED)",
    /// A backlog was announced alone.
    BacklogAnnounced => "backlog announced without credit",
    /// A Limit frame granted nothing new.
    LimitWithoutGain => "limit frame without new credit",
    /// A channel was granted more than its exclusive segments.
    FloatingGranted => "floating segment granted",
    /// A channel waited for a floating segment.
    FloatingWaited => "floating segment waited for",
    /// A producer found its pool empty.
    PoolEmpty => "producer waited for its pool",
    /// A producer found one subpartition at its quota.
    QuotaReached => "producer waited for a quota",
    /// A producer finished a record with segments beyond its quota or pool.
    OverdraftUsed => "overdraft used",
    /// A producer had to wait before it could send an event.
    EventWindowFull => "event window full",
    /// A priority event arrived before data that was given earlier.
    PriorityOvertook => "priority event overtook data",
    /// A record was longer than two segments.
    LongRecord => "record over several segments",
    /// A record had no bytes.
    EmptyRecord => "record without bytes",
    /// A builder was flushed before it was full.
    PartialFlush => "partial flush",
    /// A builder was closed with nothing left to submit.
    EmptyClose => "builder closed with nothing left",
    /// A producer had finished before one of its consumers attached.
    FinishedBeforeAttach => "producer finished before a consumer attached",
    /// A consumer had attached before one of its producers.
    ConsumerFirst => "consumer attached before a producer",
    /// Data went both ways on one link.
    BothWays => "one link with data both ways",
    /// A link carried at least three channels.
    SharedLink => "three channels on one link",
    /// A link had both ends on one shard.
    LoopbackLink => "link with both ends on one shard",
    /// A consumer gave a segment back while it kept an older one.
    GivenBackOutOfOrder => "given back out of order",
    /// A consumer gave a slice back in two parts.
    GivenBackInParts => "given back in parts",
    /// A consumer's delivery ring was full.
    DeliveryRingFull => "delivery ring full",
    /// A consumer stopped reading for good, until the end of the run.
    ConsumerStopped => "consumer stopped for the whole run",
    /// A producer died.
    ProducerDied => "producer died",
    /// A producer died while the kernel was reading its memory.
    ProducerDiedInKernel => "producer died with a send in flight",
    /// A consumer died.
    ConsumerDied => "consumer died",
    /// A consumer died while it held slices.
    ConsumerDiedHolding => "consumer died holding slices",
    /// A consumer died while a frame for it was half read.
    ConsumerDiedMidFrame => "consumer died in the middle of a frame",
    /// A producer handed over what cannot be true.
    ProducerLied => "producer handed over a lie",
    /// A consumer gave back what it did not hold.
    ConsumerLied => "consumer gave back a lie",
    /// A node began to stop.
    Draining => "node stopping",
    /// A channel was refused because a node was stopping.
    RefusedStopping => "channel refused by a stopping node",
    /// Bytes arrived that cannot be a frame.
    Garbled => "garbled header closed a link",
    /// A shard was told that a link is closed before it was told the result of a send on it.
    ClosedBeforeSent => "link closed before the send was reported",
    /// A record waited for the gate's budget of spanning records.
    SpanningWait => "spanning record waited for the budget",
    /// A link broke.
    LinkLost => "link lost",
    /// A link broke with a send in flight.
    LinkLostInFlight => "link lost with a send in flight",
    /// A link broke inside a frame.
    LinkLostMidFrame => "link lost in the middle of a frame",
    /// A partition was failed by one of its consumers.
    PartitionFailed => "partition failed by its consumer",
    /// A channel failed at its consumer.
    ChannelFailed => "channel failed at its consumer",
    /// A channel was refused because the partition was gone.
    OpenedTooLate => "channel opened after its partition had gone",
}

/// How often each mark was hit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Coverage {
    counts: [u64; Mark::ALL.len()],
}

impl Default for Coverage {
    fn default() -> Self {
        Self { counts: [0; Mark::ALL.len()] }
    }
}

impl Coverage {
    /// Counts a hit.
    pub const fn hit(&mut self, mark: Mark) {
        self.counts[mark as usize] += 1;
    }

    /// Counts a hit if `condition`.
    pub const fn hit_when(&mut self, mark: Mark, condition: bool) {
        if condition {
            self.hit(mark);
        }
    }

    /// How often a mark was hit.
    #[must_use]
    pub const fn count(&self, mark: Mark) -> u64 {
        self.counts[mark as usize]
    }

    /// Adds the counts of another run.
    pub fn merge(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(other.counts) {
            *count += more;
        }
    }

    /// The marks that were never hit.
    #[must_use]
    pub fn missed(&self) -> Vec<&'static str> {
        Mark::ALL.iter().filter(|mark| self.count(**mark) == 0).map(|mark| mark.as_str()).collect()
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for mark in Mark::ALL {
            writeln!(f, "{:>12}  {}", self.count(*mark), mark.as_str())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missed_marks_are_named() {
        let mut coverage = Coverage::default();
        assert_eq!(coverage.missed().len(), Mark::ALL.len());
        for mark in Mark::ALL {
            coverage.hit_when(*mark, *mark != Mark::LinkLost);
        }
        assert_eq!(coverage.missed(), ["link lost"]);
        let mut sum = coverage.clone();
        sum.merge(&coverage);
        assert_eq!(sum.count(Mark::LongTurn), 2);
    }
}
