//! Every state machine of this crate, as tables: (state, event) gives the next state, and every pair that is not
//! listed is a typed error. A snapshot test prints all pairs, so that a change of a machine is read in the diff.
//!
//! Being out of credit is no state: it is derived from numbers. Neither is a link's short write or a queue's
//! fullness.

use core::fmt;

/// An event that the state does not allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unexpected {
    /// The machine.
    pub machine: &'static str,
    /// Its state.
    pub state: &'static str,
    /// The event.
    pub event: &'static str,
}

impl fmt::Display for Unexpected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is {} and cannot take {}", self.machine, self.state, self.event)
    }
}

impl core::error::Error for Unexpected {}

macro_rules! machine {
    (
        $(#[$doc:meta])* $state:ident, $event:ident, $machine:literal;
        states { $($(#[$state_doc:meta])* $variant:ident = $text:literal,)+ }
        events { $($(#[$event_doc:meta])* $input:ident = $input_text:literal,)+ }
        rows { $($from:ident, $on:ident => $to:ident;)+ }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $state { $($(#[$state_doc])* $variant,)+ }

        #[doc = concat!("What happens to a [`", stringify!($state), "`].")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $event { $($(#[$event_doc])* $input,)+ }

        impl $state {
            /// Every state.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// Its name in output.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)+ }
            }

            /// The state after this event.
            ///
            /// # Errors
            /// [`Unexpected`] if the table has no row for the pair; the state stays.
            pub const fn on(self, event: $event) -> Result<Self, Unexpected> {
                match (self, event) {
                    $((Self::$from, $event::$on) => Ok(Self::$to),)+
                    #[allow(unreachable_patterns, reason = "a machine may list every pair")]
                    _ => Err(Unexpected { machine: $machine, state: self.as_str(), event: event.as_str() }),
                }
            }
        }

        impl $event {
            /// Every event.
            pub const ALL: &'static [Self] = &[$(Self::$input,)+];

            /// Its name in errors.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$input => $input_text,)+ }
            }
        }
    };
}

machine! {
    /// The sending end of a channel: one subpartition and its consumer.
    SendState, SendEvent, "send channel";
    states {
        /// No consumer has asked for it; data may queue up.
        Waiting = "waiting",
        /// A consumer is there.
        Open = "open",
        /// The end of data is on its way.
        Ending = "ending",
        /// The consumer's node has everything.
        Ended = "ended",
        /// It ended before its time.
        Failed = "failed",
    }
    events {
        /// A consumer was accepted.
        Accepted = "a consumer",
        /// The end of data was planned for sending.
        EndPlanned = "the end of data",
        /// The socket did not take the end of data; it will be planned again.
        EndReverted = "the end of data back",
        /// The consumer's node acknowledged the end of data.
        EndAcked = "EndAck",
        /// Consumer, producer or link is gone, or the peer broke the protocol.
        Failed = "a failure",
    }
    rows {
        Waiting, Accepted => Open;
        Open, EndPlanned => Ending;
        Ending, EndReverted => Open;
        Ending, EndAcked => Ended;
        Waiting, Failed => Failed;
        Open, Failed => Failed;
        Ending, Failed => Failed;
    }
}

machine! {
    /// The receiving end of a channel: one channel of a gate.
    ReceiveState, ReceiveEvent, "receive channel";
    states {
        /// Its producer is not known yet.
        Vacant = "waiting",
        /// The producer's node was asked.
        Requested = "requested",
        /// Data may arrive.
        Open = "open",
        /// The end of data arrived.
        Ended = "ended",
        /// It ended before its time.
        Failed = "failed",
    }
    events {
        /// OpenChannel was queued.
        Requested = "a request",
        /// The producer's node agreed.
        Accepted = "ChannelAccepted",
        /// The producer's node has no such producer.
        NotFound = "a producer that is not there",
        /// A Data, Event or Backlog frame arrived.
        FrameArrived = "a frame",
        /// The end of data arrived.
        EndArrived = "EndOfData",
        /// Consumer, producer or link is gone, or the peer broke the protocol.
        Failed = "a failure",
    }
    rows {
        Vacant, Requested => Requested;
        Requested, Accepted => Open;
        Requested, NotFound => Vacant;
        Open, FrameArrived => Open;
        Open, EndArrived => Ended;
        Vacant, Failed => Failed;
        Requested, Failed => Failed;
        Open, Failed => Failed;
    }
}

machine! {
    /// A channel index that this end assigned on a link. It is used again only when no frame for its last use can
    /// arrive any more.
    IndexState, IndexEvent, "channel index";
    states {
        /// May be assigned.
        Free = "free",
        /// Belongs to a channel of a gate.
        Live = "live",
        /// The channel was given up here; frames for it are skipped until the peer confirms with ChannelFailed.
        Cancelled = "cancelled",
    }
    events {
        /// A channel took it.
        Assigned = "an assignment",
        /// The end of data arrived.
        EndArrived = "EndOfData",
        /// This end gave the channel up.
        Cancelled = "a cancel",
        /// ChannelFailed arrived: the peer's last word on it.
        FailedArrived = "ChannelFailed",
    }
    rows {
        Free, Assigned => Live;
        Live, EndArrived => Free;
        Live, Cancelled => Cancelled;
        Live, FailedArrived => Free;
        Cancelled, FailedArrived => Free;
    }
}

machine! {
    /// A data link, from its first handshake to its end, over all its sockets.
    LinkState, LinkEvent, "link";
    states {
        /// Channels may be opened over it.
        Established = "established",
        /// One end is stopping: channels go on, none is opened.
        Draining = "draining",
        /// Its socket is gone; another may come within the grace.
        Suspended = "suspended",
        /// Another socket is there; the peer has not yet said what it has.
        Resuming = "resuming",
        /// It is over.
        Closed = "closed",
    }
    events {
        /// This end is stopping.
        GoodbyeQueued = "a local Goodbye",
        /// The peer is stopping.
        GoodbyeArrived = "Goodbye",
        /// The socket is gone.
        SocketLost = "the loss of its socket",
        /// Another socket stands for it.
        SocketReplaced = "another socket",
        /// The peer said what it has.
        PeerResumed = "LinkResume",
        /// It is given up.
        Closed = "a close",
    }
    rows {
        Established, GoodbyeQueued => Draining;
        Established, GoodbyeArrived => Draining;
        Draining, GoodbyeQueued => Draining;
        Draining, GoodbyeArrived => Draining;
        Established, SocketLost => Suspended;
        Resuming, SocketLost => Suspended;
        Suspended, SocketReplaced => Resuming;
        Resuming, PeerResumed => Established;
        Established, Closed => Closed;
        Draining, Closed => Closed;
        Suspended, Closed => Closed;
        Resuming, Closed => Closed;
    }
}

machine! {
    /// A result partition.
    PartitionState, PartitionEvent, "partition";
    states {
        /// Its producer writes, or waits for the last acknowledgement.
        Running = "running",
        /// Every consumer's node has everything.
        Finished = "finished",
        /// A channel or the producer failed.
        Failed = "failed",
        /// The client is gone; memory comes back as the kernel lets go.
        Closed = "closed",
    }
    events {
        /// The last subpartition's end was acknowledged.
        AllEnded = "the last EndAck",
        /// A channel or the producer failed.
        Failed = "a failure",
        /// The client closed it or is gone.
        Closed = "a close",
    }
    rows {
        Running, AllEnded => Finished;
        Running, Failed => Failed;
        Finished, Closed => Closed;
        Failed, Closed => Closed;
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::String;
    use core::fmt::Write;

    use super::*;

    macro_rules! print_machine {
        ($out:expr, $state:ident, $event:ident) => {
            writeln!($out, "{}", stringify!($state)).unwrap();
            for state in $state::ALL {
                for event in $event::ALL {
                    match state.on(*event) {
                        Ok(next) => writeln!($out, "  {state:?} + {event:?} -> {next:?}").unwrap(),
                        Err(error) => {
                            assert_eq!((error.state, error.event), (state.as_str(), event.as_str()));
                            writeln!($out, "  {state:?} + {event:?} -> unexpected").unwrap();
                        }
                    }
                }
            }
        };
    }

    #[test]
    fn every_pair_is_as_in_the_snapshot() {
        let mut found = String::new();
        print_machine!(found, SendState, SendEvent);
        print_machine!(found, ReceiveState, ReceiveEvent);
        print_machine!(found, IndexState, IndexEvent);
        print_machine!(found, LinkState, LinkEvent);
        print_machine!(found, PartitionState, PartitionEvent);
        let needed = include_str!("../tests/snapshots/states.txt");
        assert_eq!(found, needed, "a machine changed; the new snapshot is:\n{found}");
    }

    #[test]
    fn an_unexpected_event_says_what_met_what() {
        let error = SendState::Waiting.on(SendEvent::EndAcked).unwrap_err();
        assert_eq!(alloc::format!("{error}"), "send channel is waiting and cannot take EndAck");
    }
}
