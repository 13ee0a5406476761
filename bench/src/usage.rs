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
    text.lines().next().map_or(0, ticks) * tick_ns()
}

/// CPU time of this process and of every process that it has started, and these in turn, whether they live or have been
/// waited for, in nanoseconds.
#[must_use]
pub fn family_ns() -> u64 {
    let mut stats: Vec<Stat> = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let pid = entry.file_name().to_str().and_then(|name| name.parse().ok());
        stats.extend(pid.and_then(Stat::read));
    }
    let mut family = vec![std::process::id()];
    let mut at = 0;
    while let Some(parent) = family.get(at).copied() {
        family.extend(stats.iter().filter(|stat| stat.parent == parent).map(|stat| stat.pid));
        at += 1;
    }
    let ticks: u64 = stats.iter().filter(|stat| family.contains(&stat.pid)).map(|stat| stat.ticks).sum();
    ticks * tick_ns()
}

/// What `/proc/PID/stat` says of a process.
#[derive(Debug, PartialEq)]
struct Stat {
    pid: u32,
    parent: u32,
    /// CPU time, its own and that of its children that it has waited for.
    ticks: u64,
}

impl Stat {
    fn read(pid: u32) -> Option<Self> {
        Self::parse(pid, &fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    fn parse(pid: u32, text: &str) -> Option<Self> {
        // The name in parentheses may hold anything; the fields count from behind it.
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
        let number = |at: usize| fields.get(at).and_then(|field| field.parse::<u64>().ok());
        let ticks = (11..=14).map(number).sum::<Option<u64>>()?;
        Some(Self { pid, parent: u32::try_from(number(1)?).ok()?, ticks })
    }
}

fn tick_ns() -> u64 {
    1_000_000_000 / rustix::param::clock_ticks_per_second().max(1)
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
    fn what_the_kernel_says_of_a_process_is_read_from_behind_its_name() {
        let text = "42 (a (b) 7 c) S 41 42 42 0 -1 4194560 1 2 3 4 100 20 3 1 20 0 1 0 5 6 7";
        assert_eq!(Stat::parse(42, text), Some(Stat { pid: 42, parent: 41, ticks: 124 }));
        assert_eq!(Stat::parse(42, "42 (a"), None);
    }

    #[test]
    fn the_family_has_those_that_live_and_those_that_have_ended() {
        let burn = "i=0; while [ $i -lt 60000 ]; do i=$((i+1)); done";
        let before = family_ns();
        let live = format!("{burn}; echo done; read wait");
        let mut child = std::process::Command::new("sh")
            .args(["-c", &live])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .expect("sh");
        let mut line = String::new();
        let output = child.stdout.take().expect("a pipe");
        std::io::BufRead::read_line(&mut std::io::BufReader::new(output), &mut line).expect("a line");
        let while_it_lives = family_ns();
        assert!(while_it_lives >= before + tick_ns(), "{before} {while_it_lives}");
        drop(child.stdin.take());
        child.wait().expect("it ends");
        assert!(family_ns() >= while_it_lives, "its time stays when it has ended");
    }

    #[test]
    fn a_process_that_is_not_there_used_nothing() {
        assert_eq!(cpu_ns(u32::MAX), 0);
        assert_eq!(private_bytes(u32::MAX), 0);
    }
}
