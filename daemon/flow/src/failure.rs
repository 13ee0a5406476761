//! Why a channel, a partition or a gate ended before its time. Each has a number on the wire and in shared memory.

use alloc::string::String;
use core::fmt;

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $number:literal => $text:literal,)*) => {
        /// The kind of a [`Failure`]. Numbers are never reused.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u16)]
        pub enum FailureCode { $($(#[$doc])* $name = $number,)* }

        impl FailureCode {
            /// Every code, in the order of its numbers.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// Its name in output and logs.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

codes! {
    /// The producer's process ended, or left, before its end of data.
    ProducerGone = 1 => "producer gone",
    /// The consumer's process ended, or left, before it had everything.
    ConsumerGone = 2 => "consumer gone",
    /// The link between the two nodes broke.
    LinkLost = 3 => "link lost",
    /// The producing node has no such partition (any more).
    PartitionNotFound = 4 => "partition not found",
    /// This producer index is held by another producer.
    DuplicateProducer = 5 => "duplicate producer",
    /// This consumer index is held by another consumer.
    DuplicateConsumer = 6 => "duplicate consumer",
    /// The two ends disagree on parallelism, strategy, segment size or checksum.
    Mismatch = 7 => "mismatch",
    /// A producer or consumer index is not below its parallelism.
    IndexOutOfRange = 8 => "index out of range",
    /// The sender sent more than the receiver had granted.
    CreditViolation = 9 => "credit violation",
    /// A frame arrived out of sequence.
    SequenceGap = 10 => "sequence gap",
    /// A message that this channel cannot take in its state.
    Protocol = 11 => "protocol violation",
    /// What a client wrote into shared memory cannot be true.
    ClientFault = 12 => "client fault",
    /// A daemon on the path is stopping.
    Stopping = 13 => "daemon stopping",
    /// A record's checksum does not match its bytes.
    Checksum = 14 => "checksum mismatch",
    /// A record is longer than the limit.
    RecordTooLarge = 15 => "record too large",
    /// There is not enough memory for this.
    OverBudget = 16 => "over budget",
}

impl FailureCode {
    /// The code with this number.
    #[must_use]
    pub fn from_wire(number: u16) -> Option<Self> {
        Self::ALL.iter().copied().find(|code| *code as u16 == number)
    }
}

impl fmt::Display for FailureCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Longest text of a failure, in bytes; longer ones are cut at a character boundary.
pub const FAILURE_TEXT_BYTES_MAX: usize = 512;

/// A code for programs and a text for people: what happened, what was found, what is needed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The kind.
    pub code: FailureCode,
    /// One line, at most [`FAILURE_TEXT_BYTES_MAX`] bytes.
    pub text: String,
}

impl Failure {
    /// A failure with this text, cut to [`FAILURE_TEXT_BYTES_MAX`].
    #[must_use]
    pub fn new(code: FailureCode, text: impl Into<String>) -> Self {
        let mut text = text.into();
        if text.len() > FAILURE_TEXT_BYTES_MAX {
            text.truncate(text.floor_char_boundary(FAILURE_TEXT_BYTES_MAX));
        }
        Self { code, text }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.text)
    }
}

impl core::error::Error for Failure {}
