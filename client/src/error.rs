//! What can go wrong between an application and its daemon, as one type that programs can match on.
//!
//! Waiting is never an error. Each text says what happened, what was found, what is needed and, where there is one,
//! the command that mends it.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use weir_flow::exchange::NameError;
use weir_flow::failure::Failure;

/// Why a call into Weir did not do what it was asked.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// No daemon answers at this socket.
    DaemonUnreachable {
        /// The attach socket that was tried.
        path: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
    /// The daemon ended while this client was attached. The partitions and gates made until then are of no more use;
    /// the next that is made attaches anew.
    DaemonGone {
        /// The attach socket of that daemon.
        path: PathBuf,
    },
    /// The daemon ended this client's attachment and said why: it is stopping, for instance. As for
    /// [`Self::DaemonGone`], partitions and gates are of no more use.
    Detached {
        /// The kind of reason, as in [`Self::Refused`]: `daemon_stopping`, `client_fault`. Empty if it gave none.
        code: String,
        /// The daemon's reason.
        text: String,
    },
    /// The daemon had ended, or let this client go, and for as long as was to be waited no daemon took its place.
    NotReattached {
        /// How long was waited: `reattach_timeout`.
        waited: Duration,
        /// What came of the last attempt.
        cause: Box<Error>,
    },
    /// The daemon did not answer in time: it stands still, or has too much to do. What was asked is taken back: when the
    /// daemon goes on it ends what it may have made of it, before anything that is asked later. Other handles go on.
    Unanswered {
        /// What was asked for.
        asked: &'static str,
        /// How long was waited: `request_timeout`, or `timeout` if it did not even take the message.
        waited: Duration,
    },
    /// What was to be waited for did not come in the time that the caller gave. Nothing was created.
    Timeout {
        /// What was waited for.
        awaited: String,
        /// How long.
        waited: Duration,
    },
    /// The daemon refused a request. Nothing was created; other handles go on.
    Refused {
        /// The kind of refusal: the name of a [`FailureCode`](crate::FailureCode) with underscores, `over_budget` for
        /// instance.
        code: String,
        /// Value found, value needed, and the fix.
        text: String,
    },
    /// The partition failed, or one channel of the gate did. For a gate the other channels can still be read.
    Failed {
        /// At a gate the channel ([`crate::Gate::producer_of`] says whose it is); at a partition that goes on without its
        /// dead consumers the consumer that was asked for. None when the whole partition failed.
        channel: Option<u32>,
        /// Code and text, as the daemon reported them.
        failure: Failure,
    },
    /// A record is longer than the daemon's limit. Nothing of it was written.
    RecordTooLarge {
        /// Bytes of the record.
        found: usize,
        /// Most bytes that a record may have.
        max: usize,
    },
    /// An event is longer than the limit. Nothing of it was written.
    EventTooLarge {
        /// Bytes of the event.
        found: usize,
        /// Most bytes that an event may have.
        max: usize,
    },
    /// A call named a subpartition that the partition does not have.
    NoSuchSubpartition {
        /// The index given.
        found: u32,
        /// How many subpartitions there are.
        count: u32,
    },
    /// The application's selector chose a subpartition that the partition does not have. Nothing of the record was
    /// written.
    SelectedOutOfRange {
        /// The index that it chose.
        found: u32,
        /// How many subpartitions there are.
        count: u32,
    },
    /// A record without a key on a `hash` partition, whose keys decide the consumer. Use
    /// [`Partition::emit_keyed`](crate::Partition::emit_keyed).
    KeyNeeded,
    /// The task or exchange cannot have this name: needed are 1 to 64 of `A-Z a-z 0-9 . _ -`.
    Name {
        /// The name given.
        found: String,
        /// What is wrong with it.
        cause: NameError,
    },
    /// An option has a value that cannot work. Nothing was created.
    Option {
        /// Its name.
        name: &'static str,
        /// Value found and value needed.
        text: String,
    },
    /// The daemon sent or published something that cannot be true: the two sides disagree on their contract.
    Protocol {
        /// What was found and what was expected.
        text: String,
    },
    /// A call to the operating system failed.
    Os {
        /// What was being done.
        what: &'static str,
        /// What the system said.
        cause: io::Error,
    },
}

impl Error {
    /// The failure inside, if a partition or channel failed.
    #[must_use]
    pub fn failure(&self) -> Option<&Failure> {
        match self {
            Self::Failed { failure, .. } => Some(failure),
            _ => None,
        }
    }

    /// Whether the client has no attachment (any more), because no daemon is there or it let this client go. All
    /// partitions and gates are of no more use then. What is made next attaches anew, if a daemon is there by then.
    #[must_use]
    pub fn is_unattached(&self) -> bool {
        matches!(
            self,
            Self::DaemonUnreachable { .. }
                | Self::DaemonGone { .. }
                | Self::Detached { .. }
                | Self::NotReattached { .. }
        )
    }

    pub(crate) fn protocol(text: impl Into<String>) -> Self {
        Self::Protocol { text: text.into() }
    }

    pub(crate) fn os(what: &'static str, cause: impl Into<io::Error>) -> Self {
        Self::Os { what, cause: cause.into() }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DaemonUnreachable { path, cause } => {
                let directory = path.parent().unwrap_or(path).display();
                write!(
                    f,
                    "no daemon answers at {}: {cause}; start it with `weir daemon --run-dir {directory}`",
                    path.display()
                )
            }
            Self::DaemonGone { path } => {
                write!(f, "the daemon at {} ended while this process was attached to it", path.display())
            }
            Self::Detached { code, text } if code.is_empty() => {
                write!(f, "the daemon detached this process: {text}")
            }
            Self::Detached { code, text } => {
                write!(f, "the daemon detached this process: {text} ({code})")
            }
            Self::NotReattached { waited, cause } => {
                write!(f, "the daemon ended, and none could be attached to within {waited:?}: {cause}")
            }
            Self::Unanswered { asked, waited } => write!(
                f,
                "the daemon did not answer within {waited:?} when it was asked for {asked}: it stands still or has too \
                 much to do; what was asked is taken back"
            ),
            Self::Timeout { awaited, waited } => write!(f, "{awaited} did not come within {waited:?}"),
            Self::Refused { code, text } => write!(f, "the daemon refused: {code}: {text}"),
            Self::Failed { channel: Some(channel), failure } => {
                write!(f, "channel {channel} failed: {failure}")
            }
            Self::Failed { channel: None, failure } => write!(f, "the partition failed: {failure}"),
            Self::RecordTooLarge { found, max } => {
                write!(
                    f,
                    "a record has {found} bytes; needed: at most {max} (record_bytes_max of the daemon)"
                )
            }
            Self::EventTooLarge { found, max } => {
                write!(f, "an event has {found} bytes; needed: at most {max}")
            }
            Self::NoSuchSubpartition { found, count } => {
                write!(f, "no subpartition {found}; needed: 0 to {}", count.saturating_sub(1))
            }
            Self::SelectedOutOfRange { found, count } => {
                write!(f, "the selector chose subpartition {found}; needed: 0 to {}", count.saturating_sub(1))
            }
            Self::KeyNeeded => f.write_str("a hash partition needs a key for each record: use emit_keyed"),
            Self::Name { found, cause } => write!(f, "the name {found:?} {cause}"),
            Self::Option { name, text } => write!(f, "option {name}: {text}"),
            Self::Protocol { text } => write!(f, "daemon and client do not understand each other: {text}"),
            Self::Os { what, cause } => write!(f, "{what}: {cause}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::DaemonUnreachable { cause, .. } | Self::Os { cause, .. } => Some(cause),
            Self::Failed { failure, .. } => Some(failure),
            Self::Name { cause, .. } => Some(cause),
            Self::NotReattached { cause, .. } => Some(cause),
            _ => None,
        }
    }
}
