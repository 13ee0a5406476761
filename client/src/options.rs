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
    /// Name under which the daemon lists this process; its command name when not given.
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
    /// At the latest this long after the first of them was emitted. Shorter means less delay and more, smaller slices.
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

/// How a partition is made. Sizes left out are the daemon's defaults.
#[derive(Clone, Debug)]
pub struct PartitionOptions {
    /// When part-filled segments are handed over.
    pub buffer_timeout: BufferTimeout,
    /// Whether each record carries a CRC32C that the consumer's client checks. Both ends must say the same.
    pub checksum: bool,
    /// Segments that each subpartition counts for (E).
    pub exclusive: Option<u32>,
    /// Segments shared by all subpartitions (F).
    pub floating: Option<u32>,
    /// Most open or queued segments of one subpartition.
    pub quota: Option<u32>,
    /// Segments beyond the pool that a record already begun may use.
    pub overdraft: Option<u32>,
    /// Segments for data that is sent and not acknowledged yet.
    pub retention: Option<u32>,
    /// Number of key groups of a `hash` exchange; from the number of consumers when not given, as Flink does it.
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
    /// Where a `rebalance` or `rescale` producer starts its round; random when not given.
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

/// How a gate is made. What is left out is what the producers say, or the daemon's default.
#[derive(Clone, Debug, Default)]
pub struct GateOptions {
    /// How many producers the exchange must have. When not given it is learnt from the first of them, and making the
    /// gate waits for it.
    pub producers: Option<u32>,
    /// The ship strategy that the exchange must have.
    pub strategy: Option<Strategy>,
    /// Whether its records must carry a CRC32C.
    pub checksum: Option<bool>,
    /// Segments that each channel counts for (E).
    pub exclusive: Option<u32>,
    /// Segments shared by all channels (F).
    pub floating: Option<u32>,
    /// Most bytes held in records that span segments. One record may always exceed it.
    pub spanning_bytes_max: Option<u64>,
    /// Longest wait for the first producer; without bound when not given. 0: only if one is known already.
    pub timeout: Option<Duration>,
}
