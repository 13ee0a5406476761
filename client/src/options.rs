//! What a caller may choose when it connects, makes a partition or makes a gate. Every field has a default.

use std::path::{Path, PathBuf};
use std::time::Duration;

use weir_flow::exchange::Strategy;
use weir_flow::flush;

/// The run directory of a daemon that was given none.
pub const RUN_DIR_DEFAULT: &str = "/run/weir";

/// How to reach the daemon.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    /// Run directory of the daemon; the attach socket is `attach.sock` in it.
    pub run_dir: PathBuf,
    /// Name under which the daemon lists this process; its command name when not given. The first 64 bytes count.
    pub process_name: Option<String>,
    /// Longest wait for the daemon's first answer, and later for it to take a message: 5 s when not chosen otherwise.
    pub timeout: Duration,
    /// Longest wait for the daemon's answer to a later request, for a task or a partition for instance: 30 s when not
    /// chosen otherwise. What a gate waits for is its producer: see [`GateOptions::timeout`].
    pub request_timeout: Duration,
    /// How long a call that makes a task, a partition or a gate waits for a daemon when the one that the client was
    /// attached to has ended: 30 s when not chosen otherwise. 0: not at all, the client stays without a daemon.
    pub reattach_timeout: Duration,
}

impl ConnectOptions {
    /// The defaults, for the daemon with this run directory.
    #[must_use]
    pub fn new(run_dir: impl AsRef<Path>) -> Self {
        Self {
            run_dir: run_dir.as_ref().to_path_buf(),
            process_name: None,
            timeout: Duration::from_secs(5),
            request_timeout: Duration::from_secs(30),
            reattach_timeout: Duration::from_secs(30),
        }
    }
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self::new(RUN_DIR_DEFAULT)
    }
}

/// When records that do not fill a segment are handed to the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufferTimeout {
    /// At the latest this long after the first of them was emitted. Shorter means less delay and more, smaller pieces. 0
    /// is the same as [`Self::EachRecord`].
    After(Duration),
    /// After each record.
    EachRecord,
    /// Only when a segment is full, or by `flush`, an event, or `finish`.
    Off,
}

impl Default for BufferTimeout {
    /// 100 ms.
    fn default() -> Self {
        Self::After(Duration::from_millis(100))
    }
}

impl From<Duration> for BufferTimeout {
    /// A duration of 0 means [`BufferTimeout::EachRecord`].
    fn from(duration: Duration) -> Self {
        if duration.is_zero() { Self::EachRecord } else { Self::After(duration) }
    }
}

impl BufferTimeout {
    /// As the flush clock wants it.
    pub(crate) fn to_flow(self) -> flush::BufferTimeout {
        match self {
            Self::After(duration) => {
                flush::BufferTimeout::from_ns(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
            }
            Self::EachRecord => flush::BufferTimeout::EachRecord,
            Self::Off => flush::BufferTimeout::Off,
        }
    }
}

/// What becomes of a partition when one of its consumers dies: when the consumer's process ends or lets its gate go
/// before the end, or when its node cannot be reached for longer than a link is waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConsumerDeath {
    /// The partition fails, for all its consumers.
    #[default]
    Fail,
    /// The partition goes on with the others, for as long as there is one. Only for [`Strategy::Rebalance`] and
    /// [`Strategy::Rescale`], whose consumers can stand in for each other.
    ///
    /// Records that had been emitted to the consumer that died, and that it had not taken, are lost; they are counted
    /// ([`crate::Partition::lost_records`]) and not emitted again, since some of them may have been read. A record
    /// that is being emitted goes to another consumer as a whole. Nothing is split, nothing is emitted twice.
    ContinueWithout,
}

/// How a partition is made. The defaults do for most.
///
/// Its memory is (`exclusive` x subpartitions + `floating` + `retention` + `overdraft`) segments. A number of segments that
/// is not given is the daemon's setting; each field names what that is where nobody has changed it. The daemon refuses a
/// number that is out of its bounds, and memory that it has not ([`crate::Error::Refused`]).
#[derive(Clone, Debug)]
pub struct PartitionOptions {
    /// When part-filled segments are handed over.
    pub buffer_timeout: BufferTimeout,
    /// Whether each record carries a CRC32C, 4 bytes, that the consumer's client checks. All producers of an exchange must
    /// say the same; its consumers learn it from them.
    pub checksum: bool,
    /// Segments that each subpartition adds to the pool: 1 to 1,024, by default 2.
    pub exclusive: Option<u32>,
    /// Segments in the pool beside those: 0 to 65,536, by default 8.
    pub floating: Option<u32>,
    /// Most segments that one subpartition may have open or waiting to be sent: 1 to 65,536, by default 10. Records for one
    /// that has as many wait for it; records for others do not.
    pub quota: Option<u32>,
    /// Segments beyond pool and quota, which only a record that is already begun may use, so that it need not wait half
    /// written: 0 to 1,024, by default 5.
    pub overdraft: Option<u32>,
    /// Segments for what is sent and not acknowledged yet: 0 to 65,536, by default 32. At most so many are on their way at
    /// a time.
    pub retention: Option<u32>,
    /// Number of key groups of a `hash` exchange: the keys are divided into so many groups, and the groups among the
    /// consumers. From the number of consumers to 32,768; when not given 1.5 times the consumers, rounded up to a power of
    /// two, and at least 128. Flink does it alike, so that equal keys go to the same places there and here.
    pub max_parallelism: Option<u32>,
    /// With `hash`: the records of each key are spread over so many of the consumers, instead of going to one. For keys
    /// that are too much for one consumer ([`crate::Partition::heavy_keys`]). From 1 to the number of consumers; not given
    /// is the same as 1.
    ///
    /// **What the readers have to do then**: each of those consumers sees a part of a key's records, so what it makes of
    /// them (a count, a sum, a set) is a partial result. Keep it by the plain key, as it was given to `emit_keyed`; no
    /// salt is added to it. Then emit the partial results, by the same key, to a `hash` exchange without salt, whose
    /// consumer merges up to so many of them for each key and producer. What cannot be merged from parts, and what needs a
    /// key's records in their order, cannot be salted.
    pub salt: Option<u32>,
    /// The subpartition with which a `rebalance` or `rescale` producer starts its round, less than their number; random
    /// when not given.
    pub first_subpartition: Option<u32>,
    /// Whether a `rebalance` or `rescale` producer leaves out consumers that do not keep up, and waits only when none
    /// does. On when not chosen otherwise. Off: records go to all consumers strictly in turn, and the producer waits for
    /// the one whose turn it is, so that the slowest consumer sets the pace of all. Other strategies, whose consumers are
    /// not interchangeable, do not look at this.
    ///
    /// A record stays with the consumer for which it was begun. One that is longer than `quota` and `overdraft` together
    /// (480 KiB with the daemon's defaults) may have to wait for that one in its middle.
    pub adaptive: bool,
    /// What becomes of the partition when one of its consumers dies.
    pub on_consumer_death: ConsumerDeath,
}

impl Default for PartitionOptions {
    fn default() -> Self {
        Self {
            buffer_timeout: BufferTimeout::default(),
            checksum: false,
            exclusive: None,
            floating: None,
            quota: None,
            overdraft: None,
            retention: None,
            max_parallelism: None,
            salt: None,
            first_subpartition: None,
            adaptive: true,
            on_consumer_death: ConsumerDeath::default(),
        }
    }
}

/// Whether no more is kept in flight to a gate than its application consumes in a time, so that what it reads is not
/// older than that.
///
/// In flight is what its producers have emitted and it has not given back: in their segments, in sockets, and in its own
/// memory. Without it that is as much as there is room for, which a slow consumer takes long to read: a record that is
/// emitted now waits behind all of it. The daemon measures what the application consumes while it has something to consume,
/// grants its producers as much as that in the target, and tells their clients to emit no more. A record of any length
/// passes all the same, and every channel always has one segment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Debloat {
    /// As the daemon is configured: off where nobody has changed `debloat.mode`.
    #[default]
    Configured,
    /// It is not.
    Off,
    /// It is.
    On(DebloatOptions),
}

/// What is wanted in flight for a gate. A number that is not given is the daemon's setting; one that is out of its bounds is
/// refused when the gate is made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DebloatOptions {
    /// How old data may be when it is consumed: 1 ms to 60 s, by default 1 s.
    pub target: Option<Duration>,
    /// Least that is wanted in flight, in bytes, however slow the application is: by default 0.
    pub bytes_min: Option<u64>,
    /// Most that is wanted in flight, in bytes, however fast the application is; at least `bytes_min`, by default without
    /// bound.
    pub bytes_max: Option<u64>,
}

/// How a gate is made. The defaults do for most.
///
/// Its memory is (`exclusive` x channels + `floating`) segments. A number that is not given is the daemon's setting; each
/// field names what that is where nobody has changed it.
#[derive(Clone, Debug, Default)]
pub struct GateOptions {
    /// How many producers the exchange must have. What is not given of this, `strategy` and `checksum` is learnt from the
    /// first producer, and making the gate waits for it. What is given and not so is refused.
    pub producers: Option<u32>,
    /// The ship strategy that the exchange must have.
    pub strategy: Option<Strategy>,
    /// Whether its records must carry a CRC32C.
    pub checksum: Option<bool>,
    /// Segments that each channel has to itself: 1 to 1,024, by default 2.
    pub exclusive: Option<u32>,
    /// Segments that are lent to whichever channels have most to come: 0 to 65,536, by default 8.
    pub floating: Option<u32>,
    /// Whether what is in flight to it is kept to a time.
    pub debloat: Debloat,
    /// Most bytes of records that lie in more than one segment, which are put together in memory of this process: by
    /// default 64 MiB. A channel whose next record does not fit waits; one record may always exceed it.
    pub spanning_bytes_max: Option<u64>,
    /// Longest wait for the first producer; without bound when not given. 0: only if one is known already.
    pub timeout: Option<Duration>,
}
