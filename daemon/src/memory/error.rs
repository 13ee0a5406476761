//! Why memory could not be made.

use std::fmt;

use rustix::io::Errno;

use weir_flow::limits::SEGMENT_SIZE_NEEDED;

/// Why a region could not be made. Nothing of it is left behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RegionError {
    /// The segment size is not one that a region can have.
    SegmentBytes {
        /// The size asked for.
        found: u32,
    },
    /// A region without any segment was asked for.
    NoSegments,
    /// Hugepages are required and too few are free.
    NoHugepages {
        /// Pages of 2 MiB that the region needs.
        wanted: u64,
        /// How many can be had, and why no more, as far as that is known.
        found: String,
        /// What provides them: a command to run, or what to look for.
        remedy: String,
    },
    /// The system has too little memory.
    NoMemory {
        /// Bytes that the region needs.
        wanted_bytes: u64,
        /// Bytes that the system has left, as far as it says so.
        available_bytes: u64,
    },
    /// A system call failed for another reason.
    Os {
        /// The call.
        call: &'static str,
        /// What the kernel answered.
        errno: Errno,
    },
}

impl fmt::Display for RegionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SegmentBytes { found } => {
                write!(f, "segment size is {found} bytes; needed: {SEGMENT_SIZE_NEEDED}")
            }
            Self::NoSegments => f.write_str("region of 0 segments; needed: at least 1"),
            Self::NoHugepages { wanted, found, remedy } => {
                write!(f, "{found}; needed: {wanted}; {remedy} or set memory.hugepages = \"auto\"")
            }
            Self::NoMemory { wanted_bytes, available_bytes } => write!(
                f,
                "{available_bytes} bytes of memory are left for a region; needed: {wanted_bytes}; lower memory.total or the number of segments"
            ),
            Self::Os { call, errno: Errno::FBIG } => write!(
                f,
                "{call} refused a region as too large for a file ({}); needed: no limit on the size of files \
                 (LimitFSIZE=infinity, ulimit -f unlimited)",
                Errno::FBIG
            ),
            Self::Os { call, errno } => write!(f, "{call} failed while making a region: {errno}"),
        }
    }
}

impl std::error::Error for RegionError {}
