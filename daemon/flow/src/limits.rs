//! The numbers that bound a shard: sizes, windows, times. Parsed from the configuration by the shell, checked here
//! once, read-only afterwards. Everything that grows in this crate grows up to one of these.

use core::fmt;

/// Smallest segment, in bytes.
pub const SEGMENT_BYTES_MIN: u32 = 4 << 10;
/// Largest segment, in bytes.
pub const SEGMENT_BYTES_MAX: u32 = (1 << 20) + RECORD_ROOM_BYTES;
/// What a segment has beside the size that the configuration names, in bytes: room for the length and the checksum of a
/// record of just that size, which so lies in one segment and need not be put together again. A cache line, so that no two
/// segments share one. No record is begun in so few or fewer.
pub const RECORD_ROOM_BYTES: u32 = 64;
/// Largest value of each count of segments in [`Limits`].
pub const SEGMENT_COUNT_MAX: u32 = 1 << 16;

/// Sizes, windows and times of one shard. The same on every shard of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Size of a segment in bytes, the room of [`RECORD_ROOM_BYTES`] included; see [`is_segment_size`].
    pub segment_bytes: u32,
    /// Exclusive segments of each channel of a gate; at least 1.
    pub exclusive: u32,
    /// Floating segments that the channels of a gate share; may be 0.
    pub floating: u32,
    /// Segments that a subpartition may hold open or queued; at least 1.
    pub quota: u32,
    /// Segments beyond pool and quota, only to finish a record that was begun; may be 0.
    pub overdraft: u32,
    /// Segments per partition that may be sent and not yet acknowledged, beside those of the pool; may be 0.
    pub retention: u32,
    /// Events of a channel that the consumer has not consumed, the end of data included; at least 2, so that one
    /// place is always left for the end.
    pub event_window: u32,
    /// Longest record, in bytes.
    pub record_bytes_max: u32,
    /// Bytes that a gate may hold in records that span segments.
    pub spanning_bytes_max: u64,
    /// Data frames in one batch of a link; at least 1.
    pub batch_slices_max: u32,
    /// Smallest size of a batch of a link, in bytes.
    pub batch_bytes_min: u32,
    /// Largest size of a batch of a link, in bytes; at least one segment and its header.
    pub batch_bytes_max: u32,
    /// A batch holds what the link carried in this many nanoseconds.
    pub batch_window_ns: u64,
    /// How long an acknowledgement without new credit may wait for company, in nanoseconds.
    pub limit_delay_ns: u64,
    /// What a gate wants in flight is looked at this often, in nanoseconds; at least 1.
    pub debloat_period_ns: u64,
    /// A link asks its peer for a sign of life this often, in nanoseconds.
    pub ping_interval_ns: u64,
    /// A link that heard nothing for this long is lost, in nanoseconds; more than [`Self::ping_interval_ns`].
    pub peer_timeout_ns: u64,
    /// How long after it was last heard a link without a socket waits for another one, in nanoseconds; 0: not at all.
    /// Else more than [`Self::peer_timeout_ns`], so that a silent link has a chance.
    pub link_grace_ns: u64,
}

/// Whether segments can have this size, in bytes: whole cache lines, from [`SEGMENT_BYTES_MIN`] to [`SEGMENT_BYTES_MAX`].
#[must_use]
pub const fn is_segment_size(bytes: u32) -> bool {
    bytes.is_multiple_of(RECORD_ROOM_BYTES) && bytes >= SEGMENT_BYTES_MIN && bytes <= SEGMENT_BYTES_MAX
}

/// What [`is_segment_size`] wants, in words.
pub const SEGMENT_SIZE_NEEDED: &str = "a multiple of 64 from 4096 to 1048640";

impl Default for Limits {
    fn default() -> Self {
        Self {
            segment_bytes: 32 << 10,
            exclusive: 2,
            floating: 8,
            quota: 10,
            overdraft: 5,
            retention: 32,
            event_window: 8,
            record_bytes_max: 1 << 20,
            spanning_bytes_max: 64 << 20,
            batch_slices_max: 16,
            batch_bytes_min: 64 << 10,
            batch_bytes_max: 512 << 10,
            batch_window_ns: 2_000_000,
            limit_delay_ns: 500_000,
            debloat_period_ns: 200_000_000,
            ping_interval_ns: 1_000_000_000,
            peer_timeout_ns: 5_000_000_000,
            link_grace_ns: 10_000_000_000,
        }
    }
}

/// A limit that cannot be: which one, what was found, what is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitsError {
    /// Name of the field of [`Limits`].
    pub field: &'static str,
    /// The value found.
    pub found: u64,
    /// The values allowed, as text.
    pub needed: &'static str,
}

impl fmt::Display for LimitsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is {}; needed: {}", self.field, self.found, self.needed)
    }
}

impl core::error::Error for LimitsError {}

impl Limits {
    /// The defaults with this segment size.
    ///
    /// # Errors
    /// [`LimitsError`] if segments cannot have this size: see [`is_segment_size`].
    pub fn new(segment_bytes: u32) -> Result<Self, LimitsError> {
        Self {
            segment_bytes,
            batch_bytes_min: Self::default().batch_bytes_min.max(segment_bytes),
            batch_bytes_max: Self::default().batch_bytes_max.max(segment_bytes.saturating_mul(2)),
            ..Self::default()
        }
        .validated()
    }

    /// These limits, if each is within its bounds and they fit each other.
    ///
    /// # Errors
    /// [`LimitsError`] names the first that does not.
    pub fn validated(self) -> Result<Self, LimitsError> {
        let batch_needed = u64::from(self.segment_bytes) + 4096;
        let rules: [(&'static str, u64, bool, &'static str); 15] = [
            (
                "segment_bytes",
                self.segment_bytes.into(),
                is_segment_size(self.segment_bytes),
                SEGMENT_SIZE_NEEDED,
            ),
            count("exclusive", self.exclusive, 1),
            count("floating", self.floating, 0),
            count("quota", self.quota, 1),
            count("overdraft", self.overdraft, 0),
            count("retention", self.retention, 0),
            ("event_window", self.event_window.into(), (2..=64).contains(&self.event_window), "2 to 64"),
            ("record_bytes_max", self.record_bytes_max.into(), self.record_bytes_max >= 1, "at least 1"),
            (
                "spanning_bytes_max",
                self.spanning_bytes_max,
                self.spanning_bytes_max >= u64::from(self.record_bytes_max),
                "at least record_bytes_max",
            ),
            (
                "batch_slices_max",
                self.batch_slices_max.into(),
                (1..=512).contains(&self.batch_slices_max),
                "1 to 512",
            ),
            (
                "batch_bytes_max",
                self.batch_bytes_max.into(),
                u64::from(self.batch_bytes_max) >= batch_needed
                    && self.batch_bytes_max <= 16 << 20
                    && self.batch_bytes_max >= self.batch_bytes_min,
                "at least segment_bytes + 4096 and batch_bytes_min, at most 16777216",
            ),
            ("debloat_period_ns", self.debloat_period_ns, self.debloat_period_ns >= 1, "at least 1"),
            (
                "ping_interval_ns",
                self.ping_interval_ns,
                self.ping_interval_ns >= 1_000_000,
                "at least 1000000",
            ),
            (
                "peer_timeout_ns",
                self.peer_timeout_ns,
                self.peer_timeout_ns > self.ping_interval_ns,
                "more than ping_interval_ns",
            ),
            (
                "link_grace_ns",
                self.link_grace_ns,
                self.link_grace_ns == 0 || self.link_grace_ns > self.peer_timeout_ns,
                "0, or more than peer_timeout_ns",
            ),
        ];
        match rules.into_iter().find(|(_, _, holds, _)| !holds) {
            Some((field, found, _, needed)) => Err(LimitsError { field, found, needed }),
            None => Ok(self),
        }
    }
}

fn count(field: &'static str, found: u32, min: u32) -> (&'static str, u64, bool, &'static str) {
    let needed = if min == 0 { "0 to 65536" } else { "1 to 65536" };
    (field, found.into(), (min..=SEGMENT_COUNT_MAX).contains(&found), needed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(change: impl FnOnce(&mut Limits)) -> Option<&'static str> {
        let mut limits = Limits::default();
        change(&mut limits);
        limits.validated().err().map(|error| error.field)
    }

    #[test]
    fn defaults_hold() {
        assert!(Limits::default().validated().is_ok());
        for shift in 12..=20 {
            for bytes in [1 << shift, (1 << shift) + RECORD_ROOM_BYTES] {
                assert!(Limits::new(bytes).is_ok(), "segment of {bytes} bytes");
            }
        }
    }

    #[test]
    fn each_bound_is_kept_and_named() {
        assert_eq!(refused(|l| l.segment_bytes = 5000), Some("segment_bytes"));
        assert_eq!(refused(|l| l.segment_bytes = 2048), Some("segment_bytes"));
        assert_eq!(
            refused(|l| l.segment_bytes = SEGMENT_BYTES_MAX + RECORD_ROOM_BYTES),
            Some("segment_bytes")
        );
        assert_eq!(refused(|l| l.exclusive = 0), Some("exclusive"));
        assert_eq!(refused(|l| l.floating = 1 << 20), Some("floating"));
        assert_eq!(refused(|l| l.quota = 0), Some("quota"));
        assert_eq!(refused(|l| l.event_window = 1), Some("event_window"));
        assert_eq!(refused(|l| l.spanning_bytes_max = 1), Some("spanning_bytes_max"));
        assert_eq!(refused(|l| l.batch_slices_max = 0), Some("batch_slices_max"));
        assert_eq!(refused(|l| l.batch_bytes_max = 32 << 10), Some("batch_bytes_max"));
        assert_eq!(refused(|l| l.peer_timeout_ns = l.ping_interval_ns), Some("peer_timeout_ns"));
        assert_eq!(refused(|l| l.link_grace_ns = l.peer_timeout_ns), Some("link_grace_ns"));
        assert_eq!(refused(|l| l.link_grace_ns = 0), None);
        assert_eq!(refused(|l| l.debloat_period_ns = 0), Some("debloat_period_ns"));
    }
}
