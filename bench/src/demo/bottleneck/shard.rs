//! A shard that hardly gets a processor: its thread may use one only, and only when a busy neighbour there leaves it.

use std::fs;
use std::process::{Child, Command, Stdio};

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_setaffinity};

/// The busy neighbour; it ends with this, and the shard may run where it likes again.
pub(super) struct Neighbour {
    child: Child,
    shard: Pid,
    allowed: CpuSet,
}

impl Neighbour {
    /// Gives the first shard of this daemon a neighbour.
    ///
    /// # Errors
    /// One line: the thread is not found, or may not be moved.
    pub(super) fn of_shard(daemon: u32) -> Result<Self, String> {
        let shard = thread_of(daemon)?;
        let allowed = rustix::thread::sched_getaffinity(Some(shard))
            .map_err(|error| format!("cannot ask where a shard may run: {error}"))?;
        let cpu =
            (0..CpuSet::MAX_CPU).find(|cpu| allowed.is_set(*cpu)).ok_or("a shard that may run nowhere")?;
        let mut one = CpuSet::new();
        one.set(cpu);
        sched_setaffinity(Some(shard), &one).map_err(|error| format!("cannot move a shard: {error}"))?;
        // The scheduler's idle class: it runs when nobody else there wants to.
        lower(shard)?;
        let child = Command::new("taskset")
            .args(["--cpu-list", &cpu.to_string(), "sh", "-c", "while :; do :; done"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .map_err(|error| format!("cannot start a busy neighbour: {error}"))?;
        Ok(Self { child, shard, allowed })
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        // The daemon may have ended.
        let _ = sched_setaffinity(Some(self.shard), &self.allowed);
    }
}

fn lower(thread: Pid) -> Result<(), String> {
    let thread = thread.as_raw_nonzero().to_string();
    let status = Command::new("chrt")
        .args(["--idle", "--pid", "0", &thread])
        .status()
        .map_err(|error| format!("cannot run chrt: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("chrt cannot lower a shard ({status})")) }
}

/// The thread of the daemon's first shard.
fn thread_of(daemon: u32) -> Result<Pid, String> {
    let threads = fs::read_dir(format!("/proc/{daemon}/task"))
        .map_err(|error| format!("cannot list the threads of the daemon: {error}"))?;
    let mut names = Vec::new();
    for thread in threads.flatten() {
        let name = fs::read_to_string(thread.path().join("comm")).unwrap_or_default();
        if name.trim().contains("shard") {
            let number = thread.file_name().to_string_lossy().parse().ok();
            return number.and_then(Pid::from_raw).ok_or_else(|| "a thread without a number".to_owned());
        }
        names.push(name.trim().to_owned());
    }
    Err(format!("no thread of the daemon is a shard; there are {}", names.join(", ")))
}
