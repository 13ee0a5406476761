//! What the processes of tasks do on processors: what tells a task that computes from one that waits for something outside.
//!
//! Both are busy by their cells, for neither waits for Weir. The kernel counts for each thread how long it ran and how long it
//! was ready and waited for a processor; a process that neither ran nor waited to run was waiting for something else.

use std::path::Path;

use weir_flow::wire::ProcessTimes;

/// Most threads of a process that are looked at one by one. Of a process with more only the sum of what they ran is known.
const THREADS_MAX: usize = 64;

/// Shortest time between two readings that a rate is made of.
const RATE_NS_MIN: u64 = 200_000_000;

/// Processor time of a process since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessorTime {
    /// Nanoseconds on processors, all threads together.
    pub ran_ns: u64,
    /// Nanoseconds ready to run and waiting for a processor; none if the kernel does not say, or there are too many threads.
    pub waited_ns: Option<u64>,
}

/// Reads the processor time of a process. `root` is `/proc`. `None`: it has ended, or must not be looked at.
#[must_use]
pub fn read(root: &Path, pid: u32) -> Option<ProcessorTime> {
    let directory = root.join(pid.to_string());
    by_threads(&directory).or_else(|| whole(&directory))
}

/// The processor time of each thread of this process whose name begins like this, by what follows in the name if that is a
/// number. `root` is `/proc`.
#[must_use]
pub fn read_threads(root: &Path, name: &str) -> Vec<(u16, ProcessorTime)> {
    let Ok(threads) = std::fs::read_dir(root.join("self/task")) else { return Vec::new() };
    let time = |thread: &Path| {
        let told = std::fs::read_to_string(thread.join("comm")).ok()?;
        let number = told.trim().strip_prefix(name)?.parse().ok()?;
        let text = std::fs::read_to_string(thread.join("schedstat")).ok()?;
        let mut numbers = text.split_whitespace().map_while(|word| word.parse::<u64>().ok());
        Some((number, ProcessorTime { ran_ns: numbers.next()?, waited_ns: Some(numbers.next()?) }))
    };
    threads.flatten().filter_map(|thread| time(&thread.path())).collect()
}

/// By thread: `schedstat` has nanoseconds on a processor, nanoseconds waiting for one, and a count.
fn by_threads(directory: &Path) -> Option<ProcessorTime> {
    let (mut ran_ns, mut waited_ns, mut threads) = (0_u64, 0_u64, 0);
    for thread in std::fs::read_dir(directory.join("task")).ok()? {
        threads += 1;
        if threads > THREADS_MAX {
            return None;
        }
        // One that has just ended is not counted any more.
        let Ok(text) = std::fs::read_to_string(thread.ok()?.path().join("schedstat")) else { continue };
        let mut numbers = text.split_whitespace().map_while(|word| word.parse::<u64>().ok());
        ran_ns = ran_ns.saturating_add(numbers.next()?);
        waited_ns = waited_ns.saturating_add(numbers.next()?);
    }
    (threads > 0 && ran_ns > 0).then_some(ProcessorTime { ran_ns, waited_ns: Some(waited_ns) })
}

/// As a whole: fields 14 and 15 of `stat`, in ticks. The name in field 2 may hold anything, so they are counted behind it.
fn whole(directory: &Path) -> Option<ProcessorTime> {
    let text = std::fs::read_to_string(directory.join("stat")).ok()?;
    let (_, fields) = text.rsplit_once(')')?;
    let mut ticks = fields.split_whitespace().skip(11).map_while(|word| word.parse::<u64>().ok());
    let ticks = ticks.next()?.saturating_add(ticks.next()?);
    let tick_ns = 1_000_000_000 / rustix::param::clock_ticks_per_second().max(1);
    Some(ProcessorTime { ran_ns: ticks.saturating_mul(tick_ns), waited_ns: None })
}

/// What one process did since it was last looked at.
#[derive(Clone, Debug, Default)]
pub struct ProcessMeter {
    last: Option<(u64, ProcessorTime)>,
    rate: Rate,
}

/// Milliseconds per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Rate {
    ran: Option<u32>,
    waited: Option<u32>,
}

impl ProcessMeter {
    /// Takes a reading at `now_ns` of the monotonic clock. Without one nothing is known until there are two again.
    pub fn observe(&mut self, now_ns: u64, read: Option<ProcessorTime>) {
        let Some(read) = read else {
            *self = Self::default();
            return;
        };
        let Some((last_ns, last)) = self.last else {
            self.last = Some((now_ns, read));
            return;
        };
        let elapsed_ns = now_ns.saturating_sub(last_ns);
        if elapsed_ns < RATE_NS_MIN {
            return;
        }
        // A thread that ended takes what it had with it: less than before is nothing.
        let rate = |now: u64, before: u64| {
            let spent = u128::from(now.saturating_sub(before));
            u32::try_from(spent * 1000 / u128::from(elapsed_ns)).unwrap_or(u32::MAX - 1)
        };
        let waited = read.waited_ns.zip(last.waited_ns).map(|(now, before)| rate(now, before));
        self.rate = Rate { ran: Some(rate(read.ran_ns, last.ran_ns)), waited };
        self.last = Some((now_ns, read));
    }

    /// What it did, beside what its tasks say: together they were busy for `busy` milliseconds per second.
    #[must_use]
    pub const fn times(&self, busy: u32) -> ProcessTimes {
        ProcessTimes { ran: self.rate.ran, waited: self.rate.waited, busy }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_process_that_computes_and_one_that_sleeps_are_told_apart() {
        let before = read(Path::new("/proc"), std::process::id()).expect("this process");
        let began = Instant::now();
        let mut sum = 0_u64;
        // Until it has run for so long, however long others keep it from running.
        let ran = loop {
            (0..100_000_u64).for_each(|number| sum = std::hint::black_box(sum.wrapping_mul(31) ^ number));
            let now = read(Path::new("/proc"), std::process::id()).expect("this process");
            // The time of threads of other tests goes with them.
            let ran_ns = now.ran_ns.saturating_sub(before.ran_ns);
            if ran_ns > 50 * MS {
                break ran_ns;
            }
            assert!(began.elapsed() < Duration::from_secs(60), "it computes and is not counted: {sum}");
        };
        assert!(ran <= u64::try_from(began.elapsed().as_nanos()).unwrap().saturating_mul(256));

        let mut sleeper =
            std::process::Command::new("sleep").arg("60").spawn().expect("a process that sleeps");
        let slept = read(Path::new("/proc"), sleeper.id());
        std::thread::sleep(Duration::from_millis(100));
        let later = read(Path::new("/proc"), sleeper.id());
        sleeper.kill().expect("it runs");
        sleeper.wait().expect("it ends");
        let (slept, later) = (slept.expect("it runs"), later.expect("it runs"));
        assert!(later.ran_ns - slept.ran_ns < 50 * MS, "{slept:?} {later:?}");
        assert_eq!(read(Path::new("/proc"), sleeper.id()), None, "it has ended");
    }

    /// A `/proc` of our own, with the files of a kernel that has or lacks them.
    #[test]
    fn both_forms_are_read_and_nonsense_is_nothing() {
        let root = tempfile::tempdir().unwrap();
        let process = |pid: u32, stat: &str, threads: &[&str]| {
            let directory = root.path().join(pid.to_string());
            std::fs::create_dir_all(directory.join("task")).unwrap();
            std::fs::write(directory.join("stat"), stat).unwrap();
            for (number, text) in threads.iter().enumerate() {
                let thread = directory.join("task").join(number.to_string());
                std::fs::create_dir(&thread).unwrap();
                if !text.is_empty() {
                    std::fs::write(thread.join("schedstat"), text).unwrap();
                }
            }
            read(root.path(), pid)
        };
        let stat = "7 (a) b) (c) S 1 2 3 4 5 6 7 8 9 10 250 50 0 0 20 0 1";
        let tick_ns = 1_000_000_000 / rustix::param::clock_ticks_per_second();
        let ticks = Some(ProcessorTime { ran_ns: 300 * tick_ns, waited_ns: None });
        let threads = process(1, stat, &["100 20 3\n", "5 7 1\n", ""]);
        assert_eq!(threads, Some(ProcessorTime { ran_ns: 105, waited_ns: Some(27) }));
        assert_eq!(process(2, stat, &[""]), ticks, "no schedstat");
        assert_eq!(process(3, stat, &["soon\n"]), ticks, "nonsense in it");
        assert_eq!(process(4, stat, &["1 1 1"; THREADS_MAX + 1]), ticks, "too many threads");
        assert_eq!(process(5, "7 (a", &[]), None);
        assert_eq!(process(6, "7 (a) S 1 2", &[]), None);
        assert_eq!(read(root.path(), 7), None);
    }

    #[test]
    fn threads_are_found_by_their_names() {
        let (held, holding) = std::sync::mpsc::channel::<()>();
        let (started, starting) = std::sync::mpsc::channel();
        let body = move || {
            let _ = started.send(());
            let _ = holding.recv();
        };
        let thread = std::thread::Builder::new().name("watched-7".to_owned()).spawn(body).expect("a thread");
        starting.recv().expect("it runs");
        let found = read_threads(Path::new("/proc"), "watched-");
        if !Path::new("/proc/self/schedstat").exists() {
            println!("not run here: the kernel counts no scheduling");
        } else {
            assert_eq!(found.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [7]);
        }
        assert!(read_threads(Path::new("/proc"), "watched-x").is_empty());
        assert!(read_threads(Path::new("/nowhere"), "watched-").is_empty());
        drop(held);
        thread.join().expect("it ends");
    }

    #[test]
    fn a_rate_needs_two_readings_that_are_far_enough_apart() {
        let time = |ran, waited| Some(ProcessorTime { ran_ns: ran * MS, waited_ns: waited });
        let mut meter = ProcessMeter::default();
        assert_eq!(meter.times(7), ProcessTimes { ran: None, waited: None, busy: 7 });
        meter.observe(0, time(100, Some(0)));
        assert_eq!(meter.times(0).ran, None);
        meter.observe(10 * MS, time(110, Some(0)));
        assert_eq!(meter.times(0).ran, None, "too soon");
        meter.observe(1_000 * MS, time(600, Some(250 * MS)));
        assert_eq!(meter.times(0), ProcessTimes { ran: Some(500), waited: Some(250), busy: 0 });
        // A thread has ended, and what waiting there was is not known any more.
        meter.observe(2_000 * MS, time(400, None));
        assert_eq!(meter.times(0), ProcessTimes { ran: Some(0), waited: None, busy: 0 });
        meter.observe(3_000 * MS, None);
        assert_eq!(meter.times(0), ProcessTimes::default());
        // Numbers that no process has are bounded.
        meter.observe(4_000 * MS, time(0, Some(0)));
        meter.observe(5_000 * MS, Some(ProcessorTime { ran_ns: u64::MAX, waited_ns: Some(u64::MAX) }));
        assert_eq!(meter.times(0).ran, Some(u32::MAX - 1));
    }
}
