//! One clock for all processes of a machine, so that a time taken in one can be compared in another.

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds on the machine's monotonic clock.
#[must_use]
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_goes_forward() {
        let before = now_ns();
        assert!(before > 0 && now_ns() >= before);
    }
}
