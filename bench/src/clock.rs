//! One clock for all processes of a machine, so that a time taken in one can be compared in another; and that of a thread.

use rustix::time::{ClockId, Timespec, clock_gettime};

/// Nanoseconds on the machine's monotonic clock.
#[must_use]
pub fn now_ns() -> u64 {
    nanoseconds(clock_gettime(ClockId::Monotonic))
}

/// CPU time of the calling thread, in nanoseconds.
#[must_use]
pub fn thread_cpu_ns() -> u64 {
    nanoseconds(clock_gettime(ClockId::ThreadCPUTime))
}

fn nanoseconds(time: Timespec) -> u64 {
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
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
