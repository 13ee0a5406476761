//! Where the shards of real daemons run, what is told of it, and what becomes of it when the CPUs that a daemon may use
//! change under it.

mod common;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use common::{Daemon, DaemonOptions, eventually, feed, free_address, recv, send, subsystem, weir};
use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};
use serde_json::{Value, json};
use tempfile::TempDir;

/// CPUs of this process.
fn cpus() -> Vec<usize> {
    let set = sched_getaffinity(None).expect("the CPUs of this process");
    (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()
}

fn set(cpus: &[usize]) -> CpuSet {
    let mut set = CpuSet::new();
    cpus.iter().for_each(|cpu| set.set(*cpu));
    set
}

/// The first two, or why that cannot be.
fn two_cpus(what: &str) -> Option<[usize; 2]> {
    match cpus().as_slice() {
        [first, second, ..] => Some([*first, *second]),
        few => {
            println!("not run here: {what} (needs two CPUs, and {} may be used)", few.len());
            None
        }
    }
}

/// Threads of a daemon, with their names.
fn threads(daemon: &Daemon) -> Vec<(Pid, String)> {
    let tasks = Path::new("/proc").join(daemon.pid().to_string()).join("task");
    let thread = |entry: fs::DirEntry| {
        let number = entry.file_name().to_str()?.parse().ok()?;
        let name = fs::read_to_string(entry.path().join("comm")).ok()?;
        Some((Pid::from_raw(number)?, name.trim().to_owned()))
    };
    fs::read_dir(tasks).expect("threads").flatten().filter_map(thread).collect()
}

/// What the kernel lets each shard use, by number.
fn bound_by_kernel(daemon: &Daemon) -> Vec<Vec<usize>> {
    let mut shards: Vec<(String, Pid)> = threads(daemon)
        .into_iter()
        .filter(|(_, name)| name.starts_with("weir-shard-"))
        .map(|(thread, name)| (name, thread))
        .collect();
    shards.sort_by(|a, b| a.0.cmp(&b.0));
    let of = |thread| {
        let set = sched_getaffinity(Some(thread)).expect("a thread");
        (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()
    };
    shards.into_iter().map(|(_, thread)| of(thread)).collect()
}

/// What `weir shards` says of each shard under this name.
fn told(daemon: &Daemon, key: &str) -> Vec<Value> {
    let rows = daemon.ask("shards")["shards"].as_array().cloned().expect("rows");
    rows.iter().map(|row| row[key].clone()).collect()
}

/// Waits until the kernel and the daemon agree on this.
fn await_places(daemon: &Daemon, state: &str, shards: &[Vec<usize>]) -> Value {
    eventually(&format!("shards on {shards:?}, and {state}"), || {
        let line = subsystem(daemon, "placement")?;
        (line["state"] == state && bound_by_kernel(daemon) == shards).then_some(line)
    })
}

/// How often the log has this.
fn logged(daemon: &Daemon, text: &str) -> usize {
    daemon.printed().lines().filter(|line| line.contains(text)).count()
}

/// Waits until the log, which another thread writes, has this at all. How often it has it then.
fn await_logged(daemon: &Daemon, text: &str) -> usize {
    eventually(&format!("{text:?} in the log"), || Some(logged(daemon, text)).filter(|count| *count > 0))
}

const FEWER: &str = "may not use all CPUs that it had at its start";
const AGAIN: &str = "may use all CPUs again that it had at its start";

/// `weir doctor` of a daemon: its row of this name.
fn doctor_row(daemon: &Daemon, name: &str) -> Value {
    let output =
        weir(["doctor", "--output", "json"], &daemon.run_dir).stdin(Stdio::null()).output().expect("weir");
    let report: Value = serde_json::from_slice(&output.stdout).expect("a report");
    let rows = report["rows"].as_array().cloned().expect("rows");
    rows.into_iter().find(|row| row["name"] == name).unwrap_or_else(|| panic!("no {name} in {report}"))
}

fn start(directory: &Path, pin: &str, options: DaemonOptions<'_>) -> Daemon {
    let config =
        format!("[observe]\nprobes = \"off\"\n[shard]\npin = \"{pin}\"\n[memory]\nhugepages = \"off\"\n");
    fs::write(directory.join(format!("{}.toml", options.name)), config).expect("a configuration file");
    Daemon::start(directory, &options)
}

#[test]
fn what_weir_shards_says_is_where_shards_and_their_memory_are() {
    let directory = TempDir::new().expect("a directory");
    let listen = free_address();
    let options = DaemonOptions { extra: &["--shards", "1"], ..DaemonOptions::new("a", &listen) };
    let daemon = start(directory.path(), "on", options);
    let first = cpus()[0];
    await_places(&daemon, "ok", &[vec![first]]);
    assert_eq!((told(&daemon, "cpu_wanted"), told(&daemon, "cpu")), (vec![json!(first)], vec![json!(first)]));
    assert_eq!((told(&daemon, "state"), told(&daemon, "reason")), (vec![json!("bound")], vec![Value::Null]));
    // A producer whose consumer never comes keeps its region.
    let mut sender = send(&daemon, "edge", &["--strategy", "forward"]);
    feed(&mut sender, b"one\n".to_vec()).join().expect("the feeder");
    let row = eventually("a partition", || {
        let row = daemon.ask("shards")["shards"][0].clone();
        (row["load"]["partitions"] == 1).then_some(row)
    });
    let regions = row["memory_bytes_by_node"].as_object().expect("bytes by node");
    let used = daemon.ask("status")["memory"]["used_bytes"].as_u64().expect("bytes");
    if Path::new("/sys/devices/system/node/node0").exists() {
        assert_eq!(regions.values().filter_map(Value::as_u64).sum::<u64>(), used, "{row}");
        if let Some(node) = row["memory_node"].as_u64() {
            assert_eq!(regions.get(&node.to_string()).and_then(Value::as_u64), Some(used), "{row}");
        }
    } else {
        println!("not run here: bytes by NUMA node (this kernel shows no nodes)");
    }
    // The table, the metrics and the doctor say the same.
    let output = weir(["shards"], &daemon.run_dir).output().expect("weir runs");
    let table = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(0), "{table}");
    assert!(table.contains(&format!("1 shard bound to CPUs {first} of ")), "{table}");
    let row = doctor_row(&daemon, "placement");
    let line = subsystem(&daemon, "placement").expect("the line");
    assert_eq!((&row["state"], &row["found"]), (&line["state"], &line["detail"]), "{row} {line}");
}

#[test]
fn a_daemon_that_loses_a_cpu_says_so_and_goes_back_when_it_has_it_again() {
    let Some([first, second]) = two_cpus("a daemon that loses a CPU") else { return };
    let directory = TempDir::new().expect("a directory");
    let listen = free_address();
    // It may use two, whatever this machine has: a process begins with what the thread has that starts it.
    sched_setaffinity(None, &set(&[first, second])).expect("this thread");
    let options = DaemonOptions { extra: &["--shards", "1"], ..DaemonOptions::new("a", &listen) };
    let daemon = start(directory.path(), "auto", options);
    await_places(&daemon, "ok", &[vec![first]]);
    let narrow = |cpus: &[usize]| {
        for (thread, name) in threads(&daemon) {
            sched_setaffinity(Some(thread), &set(cpus)).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
    };
    narrow(&[second]);
    let line = await_places(&daemon, "degraded", &[vec![second]]);
    let reason = line["reason"].as_str().expect("a reason");
    assert!(reason.starts_with(&format!("CPUs {second} may be used, of ")), "{reason}");
    assert!(
        line["fix"].as_str().is_some_and(|fix| fix.starts_with(&format!("CPUs {first} back by "))),
        "{line}"
    );
    let report = daemon.ask("shards");
    assert_eq!((&report["placement"], &report["shards"][0]["state"]), (&line, &json!("roaming")));
    let output = weir(["shards"], &daemon.run_dir).output().expect("weir runs");
    assert_eq!(output.status.code(), Some(3), "{}", String::from_utf8_lossy(&output.stdout));
    let row = doctor_row(&daemon, "placement");
    assert_eq!((&row["state"], &row["found"], &row["fix"]), (&line["state"], &line["reason"], &line["fix"]));
    // Meanwhile records flow.
    let receiver = recv(&daemon, "edge", "0/1");
    let mut sender = send(&daemon, "edge", &["--strategy", "forward"]);
    feed(&mut sender, b"one\n".to_vec()).join().expect("the feeder");
    assert_eq!((sender.output().status.code(), receiver.output().stdout), (Some(0), b"one\n".to_vec()));
    assert_eq!((await_logged(&daemon, FEWER), logged(&daemon, AGAIN)), (1, 0), "{}", daemon.printed());
    narrow(&[first, second]);
    await_places(&daemon, "ok", &[vec![first]]);
    assert_eq!((await_logged(&daemon, AGAIN), logged(&daemon, FEWER)), (1, 1), "{}", daemon.printed());
    // One thread alone, and nobody else: it is put back, and nothing is worth telling.
    let (shard, _) =
        threads(&daemon).into_iter().find(|(_, name)| name.starts_with("weir-shard-")).expect("a shard");
    sched_setaffinity(Some(shard), &set(&[second])).expect("a thread");
    await_places(&daemon, "ok", &[vec![first]]);
    assert_eq!((logged(&daemon, FEWER), logged(&daemon, AGAIN)), (1, 1), "{}", daemon.printed());
}

/// A control group with a cpuset of its own, which goes when it is dropped.
struct Cpuset(PathBuf);

impl Cpuset {
    /// Below that of this process, with these CPUs. None where the system lets it make none.
    fn with(cpus: &[usize]) -> Option<Self> {
        let own = fs::read_to_string("/proc/self/cgroup").ok()?;
        own.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':');
            let (hierarchy, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
            let mount = match hierarchy {
                "0" => "/sys/fs/cgroup",
                _ if controllers.split(',').any(|name| name == "cpuset") => "/sys/fs/cgroup/cpuset",
                _ => return None,
            };
            let parent = Path::new(mount).join(path.trim_start_matches('/'));
            let path = parent.join(format!("weir-test-{}", std::process::id()));
            fs::create_dir(&path).ok()?;
            let group = Self(path);
            // The first version gives a new group no memory to run in.
            let memories = fs::read_to_string(parent.join("cpuset.mems")).unwrap_or_default();
            if hierarchy != "0" {
                group.write("cpuset.mems", memories.trim()).ok()?;
            }
            group.give(cpus).ok()?;
            Some(group)
        })
    }

    /// Not made anew: where this is no file of the kernel's, there is no cpuset.
    fn write(&self, name: &str, text: &str) -> std::io::Result<()> {
        fs::File::options().write(true).open(self.0.join(name))?.write_all(text.as_bytes())
    }

    fn give(&self, cpus: &[usize]) -> std::io::Result<()> {
        let list: Vec<String> = cpus.iter().map(ToString::to_string).collect();
        self.write("cpuset.cpus", &list.join(","))
    }
}

impl Drop for Cpuset {
    fn drop(&mut self) {
        // The kernel lets go of a process a moment after it was waited for.
        for _ in 0..100 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn a_cpuset_that_shrinks_and_grows_while_it_runs_is_followed() {
    let what = "a cpuset that shrinks while a daemon runs";
    let Some([first, second]) = two_cpus(what) else { return };
    let Some(group) = Cpuset::with(&[first, second]) else {
        println!("not run here: {what} (needs a control group with a cpuset that may be made)");
        return;
    };
    let enter = format!("echo $$ > {}/cgroup.procs && exec \"$0\" \"$@\"", group.0.display());
    let directory = TempDir::new().expect("a directory");
    let listen = free_address();
    let options = DaemonOptions { prefix: &["sh", "-c", &enter], ..DaemonOptions::new("a", &listen) };
    let daemon = start(directory.path(), "on", options);
    await_places(&daemon, "ok", &[vec![first], vec![second]]);
    let row = doctor_row(&daemon, "cpuset");
    assert!(row["found"].as_str().is_some_and(|found| found.contains(&*group.0.to_string_lossy())), "{row}");
    group.give(&[second]).expect("the kernel takes it");
    let line = await_places(&daemon, "degraded", &[vec![second], vec![second]]);
    let reason = line["reason"].as_str().expect("a reason");
    assert!(reason.starts_with(&format!("2 shards take turns on CPUs {second}, of ")), "{reason}");
    assert_eq!(told(&daemon, "shares_cpu_with"), [json!([1]), json!([0])]);
    // The row of processors of the doctor says it in its own way.
    assert_eq!(doctor_row(&daemon, "cpus")["state"], "degraded");
    // As a thread does that a shard starts meanwhile: it asks for what the main thread has.
    let beside: Vec<(Pid, String)> =
        threads(&daemon).into_iter().filter(|(_, name)| !name.starts_with("weir-shard-")).collect();
    for (thread, name) in
        beside.iter().filter(|(thread, _)| thread.as_raw_nonzero().get() as u32 != daemon.pid())
    {
        sched_setaffinity(Some(*thread), &set(&[second])).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    assert!(beside.len() > 1, "{beside:?}");
    group.give(&[first, second]).expect("the kernel takes it");
    await_places(&daemon, "ok", &[vec![first], vec![second]]);
    assert_eq!((await_logged(&daemon, AGAIN), logged(&daemon, FEWER)), (1, 1), "{}", daemon.printed());
    let has = |thread: Pid| {
        let set = sched_getaffinity(Some(thread)).expect("a thread");
        (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect::<Vec<usize>>()
    };
    for (thread, name) in beside {
        eventually(&format!("{name} on both"), || (has(thread) == [first, second]).then_some(()));
    }
    drop(daemon);
}
