//! What processes use: CPU time and memory, as the kernel counts them.

use std::fs;

/// CPU time of a process with all its threads that still live, in nanoseconds; 0 if it has ended.
///
/// Threads that end between two readings take their time with them, so measure while they live.
#[must_use]
pub fn cpu_ns(pid: u32) -> u64 {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return 0 };
    threads
        .flatten()
        .filter_map(|thread| fs::read_to_string(thread.path().join("schedstat")).ok())
        .map(|text| on_cpu_ns(&text))
        .sum()
}

fn on_cpu_ns(schedstat: &str) -> u64 {
    schedstat.split_whitespace().next().and_then(|field| field.parse().ok()).unwrap_or(0)
}

/// CPU time that the whole machine has spent not idle, in nanoseconds.
#[must_use]
pub fn machine_busy_ns() -> u64 {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    let ticks = |line: &str| -> u64 {
        let fields: Vec<u64> =
            line.split_whitespace().skip(1).filter_map(|field| field.parse().ok()).collect();
        // user nice system idle iowait irq softirq steal: all but idle and iowait.
        fields
            .iter()
            .enumerate()
            .filter(|(at, _)| !matches!(at, 3 | 4) && *at < 8)
            .map(|(_, ticks)| ticks)
            .sum()
    };
    let ticks_per_second = rustix::param::clock_ticks_per_second().max(1);
    text.lines().next().map_or(0, ticks) * (1_000_000_000 / ticks_per_second)
}

/// Private memory of a process, in bytes: what it holds beside mapped files and shared memory such as regions.
#[must_use]
pub fn private_bytes(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    line.and_then(|rest| rest.split_whitespace().next()).and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0)
        * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_of_this_process_grows_with_work() {
        let before = cpu_ns(std::process::id());
        let mut sum = 0_u64;
        while cpu_ns(std::process::id()) < before + 20_000_000 {
            for number in 0..1_000_000_u64 {
                sum = std::hint::black_box(sum.wrapping_add(number));
            }
        }
        assert!(machine_busy_ns() > 0);
        assert!(private_bytes(std::process::id()) > 0);
    }

    #[test]
    fn a_process_that_is_not_there_used_nothing() {
        assert_eq!(cpu_ns(u32::MAX), 0);
        assert_eq!(private_bytes(u32::MAX), 0);
    }
}
