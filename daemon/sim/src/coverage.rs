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
    /// The kernel let go of a batch whose socket had been lost by then.
    NoticeAfterLoss => "notice after the socket was lost",
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
    /// A gate granted a channel less than it had free, since it wanted no more in flight.
    HeldBack => "credit held back",
    /// A channel had fewer segments than its exclusive ones.
    ExclusiveHeldBack => "exclusive segment held back",
    /// A floating segment was free while a channel that could have used it was held back.
    FloatingLeftFree => "floating segment left free",
    /// A gate that had held back did so no more.
    HeldBackNoMore => "credit held back no more",
    /// A sender was told a smaller bound than before.
    BoundFell => "bound fell",
    /// A sender was told a larger bound than before.
    BoundRose => "bound rose",
    /// A sender was told the same bound on another socket.
    BoundAgain => "bound told again on another socket",
    /// A segment was opened though the one before had room beyond the bound.
    FilledLess => "segment filled no further than the bound",
    /// A producer waited since as much was on its way as its consumer wants.
    BoundWaited => "producer waited for a bound",
    /// One with several consumers on its segments did.
    BroadcastBoundWaited => "broadcast producer waited for a bound",
    /// A producer closed a segment since a record would have gone beyond the bound.
    BoundClosed => "segment closed at the bound",
    /// A record was longer than the bound.
    BoundExceeded => "record longer than the bound",
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
    /// An end learnt that its socket is gone.
    LinkLost => "link lost its socket",
    /// A socket broke with a send in flight.
    LinkLostInFlight => "socket broke with a send in flight",
    /// A shard was told that a socket is gone before it was told the result of a send on it.
    LostBeforeSent => "socket lost before the send was reported",
    /// A socket broke and both ends were told.
    CutReset => "socket reset",
    /// A socket broke and one end was told.
    CutHalfOpen => "socket half-open",
    /// A socket broke and nobody was told.
    CutSilent => "socket silent",
    /// The send in flight had been taken in part.
    LostAfterShortWrite => "socket lost in the middle of a send",
    /// The last byte read from a lost socket was the last of a frame.
    LostAtBoundary => "socket lost between two frames",
    /// A lost socket ended inside a header.
    LostInHeader => "socket lost inside a header",
    /// A lost socket ended inside a payload.
    LostInPayload => "socket lost inside a payload",
    /// A lost socket ended inside a control frame's body.
    LostInBody => "socket lost inside a control frame",
    /// One end had left a socket in which the other still believed.
    LostApart => "ends noticed a loss at different times",
    /// An end noticed by time alone that its socket is dead.
    TimedOut => "dead socket found by its silence",
    /// An end believed in its socket when the next one came.
    Superseded => "believed-in socket superseded",
    /// It had not read everything from the old one.
    SupersededUnread => "superseded with unread bytes",
    /// Bytes had arrived at a lost socket and were not read.
    OldBytesDiscarded => "unread bytes of a lost socket discarded",
    /// An OpenChannel was lost with its socket.
    LostOpenChannel => "OpenChannel lost with its socket",
    /// A ChannelAccepted was lost with its socket.
    LostChannelAccepted => "ChannelAccepted lost with its socket",
    /// A ChannelFailed was lost with its socket.
    LostChannelFailed => "ChannelFailed lost with its socket",
    /// A Cancel was lost with its socket.
    LostCancel => "Cancel lost with its socket",
    /// An EndOfData was lost with its socket.
    LostEndOfData => "EndOfData lost with its socket",
    /// An EndAck was lost with its socket.
    LostEndAck => "EndAck lost with its socket",
    /// A Backlog that gives a segment up was lost with its socket.
    LostClosed => "Backlog CLOSED lost with its socket",
    /// A Limit was lost with its socket.
    LostLimit => "Limit lost with its socket",
    /// A BufferSize was lost with its socket.
    LostBufferSize => "BufferSize lost with its socket",
    /// An Event was lost with its socket.
    LostEvent => "Event lost with its socket",
    /// A Goodbye was lost with its socket.
    LostGoodbye => "Goodbye lost with its socket",
    /// A Data frame was lost with its socket.
    LostData => "Data lost with its socket",
    /// Both ends went on over another socket.
    LinkResumed => "link resumed",
    /// A link with data both ways got another socket.
    ResumedBothWays => "link with data both ways resumed",
    /// Data was sent again.
    Rewound => "sender went back",
    /// Nothing was to be sent again.
    NothingToRewind => "sender went on where it was",
    /// The end of data was sent again.
    RewoundEnd => "end of data taken back",
    /// A channel failed when its end of data had been sent and was lost: the receiver hears of it when it resumes.
    FailedBehindEnd => "failed behind a lost end of data",
    /// A segment that the sender had opened was not opened.
    RewoundOpen => "opened segment taken back",
    /// A segment that the sender had given up was open.
    RewoundGivenUp => "given-up segment open again",
    /// A control frame that happens once was sent again.
    ControlResent => "control sent again",
    /// A socket that replaced another broke before anything was said.
    RecutBeforeResume => "resuming cut before LinkResume",
    /// It broke with a LinkResume on the way.
    RecutLinkResume => "resuming cut with LinkResume on the way",
    /// It broke when one end knew what the other has.
    RecutOneResume => "resuming cut with one LinkResume arrived",
    /// It broke while control was sent again.
    RecutControl => "resuming cut inside the resent control",
    /// It broke with a Resume on the way.
    RecutResume => "resuming cut with Resume on the way",
    /// It broke before the dialler had it.
    Stillborn => "socket lost behind its handshake",
    /// A socket came for a link that was over.
    ResumedTooLate => "socket for a link that was over",
    /// The grace was over at the dialler first.
    DiallerExpired => "grace over at the dialler",
    /// The grace was over at the acceptor first.
    AcceptorExpired => "grace over at the acceptor",
    /// The grace was over at the other end too.
    BothExpired => "grace over at both ends",
    /// A dialler learnt that the acceptor does not know the link any more.
    DialRefused => "redial refused",
    /// A dialler whose link was over made a new one while the acceptor still waited.
    FreshLink => "fresh link closed the older one",
    /// A link was closed for good while it had no socket.
    ClosedSuspended => "suspended link closed",
    /// A link lost its socket after one end had said that it is stopping.
    LostAfterGoodbye => "link lost after Goodbye",
    /// A channel was opened over a link that had no socket.
    OpenedSuspended => "channel opened over a suspended link",
    /// A node was killed and started anew.
    Restarted => "node started anew",
    /// Its peer heard of that before it noticed.
    EpochHeard => "peer heard of the new epoch",
    /// A producer went on without a lost consumer.
    SkippedGone => "lost consumer skipped",
    /// It had begun a segment for it.
    GoneWithBuilder => "lost consumer had an open segment",
    /// It finished without it.
    FinishedWithout => "finished without a lost consumer",
    /// A producer failed with its link although its consumer has everything.
    LostButDelivered => "link lost though everything was delivered",
    /// A producer left a consumer out since it had too much to do.
    LeftOutSlow => "consumer left out for what it has to do",
    /// A producer left a consumer out since it had no credit and its quota was used.
    LeftOutFull => "consumer left out without credit",
    /// A producer went on to another consumer since a record would have waited.
    LeftOutBlocked => "consumer left out by a record that would wait",
    /// A consumer that was left out for what it had to do got records again.
    BackSlow => "slow consumer back again",
    /// A consumer that had no credit and had used its quota got records again.
    BackFull => "consumer without credit back again",
    /// A producer had left out all its consumers, and waited.
    AllLeftOut => "all consumers left out",
    /// It waited though some had room, since those had too much to do.
    WaitedForTurn => "waited beside slow consumers that had room",
    /// A consumer was lost in the middle of a record, which went to another one.
    TakenElsewhere => "record of a lost consumer sent to another",
    /// A long record waited in a consumer that had nothing, since nobody could have taken it without a wait.
    LongWaited => "record longer than any room waited",
    /// A producer had nothing left to send while one of its consumers was stopped.
    WentOnBesideStopped => "all records sent beside a stopped consumer",
    /// One consumer of a broadcast had acknowledged more than a segment beyond another.
    BroadcastApart => "broadcast consumers a segment apart",
    /// One had acknowledged data before another had attached.
    BroadcastLate => "broadcast consumer attached late",
    /// A producer waited for the slowest of several.
    BroadcastWaited => "broadcast producer waited for a segment",
    /// One batch had the same slice for two of them.
    BroadcastBatch => "broadcast slice twice in one batch",
    /// One had lost its link with data on the way while another went on.
    BroadcastInterrupted => "broadcast link interrupted beside another",
    /// A partition with several failed.
    BroadcastFailed => "broadcast partition failed by one consumer",
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
        assert_eq!(coverage.missed(), ["link lost its socket"]);
        let mut sum = coverage.clone();
        sum.merge(&coverage);
        assert_eq!(sum.count(Mark::LongTurn), 2);
    }
}
