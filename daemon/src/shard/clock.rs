//! The monotonic clock of a shard, read once per turn.

use rustix::time::{ClockId, clock_gettime};
use weir_flow::ids::Time;

/// Now, in nanoseconds of `CLOCK_MONOTONIC`: the clock that the kernel probes and the clients use too.
pub(super) fn now() -> Time {
    let time = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanoseconds = u64::try_from(time.tv_nsec).unwrap_or(0);
    Time(seconds.saturating_mul(1_000_000_000).saturating_add(nanoseconds))
}

#[cfg(test)]
mod tests {
    #[test]
    fn time_does_not_go_back() {
        let first = super::now();
        assert!(super::now() >= first && first.0 > 0);
    }
}
