//! What a daemon tells the service manager that has started it: that it is ready, that it goes on, that it stops.

mod common;

use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::{Duration, Instant};

use common::{Daemon, DaemonOptions, PATIENCE, free_address};
use nix::sys::ptrace::{self, Options};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use tempfile::TempDir;

/// Longer than a daemon lets a watchdog wait, even when the machine is loaded; and than a shard may be silent.
const SILENCE: Duration = Duration::from_secs(8);

/// The end of a service manager.
struct Manager(UnixDatagram);

impl Manager {
    fn listen(directory: &Path) -> Self {
        let socket = UnixDatagram::bind(directory.join("notify")).expect("a socket");
        socket.set_read_timeout(Some(SILENCE)).expect("a timeout");
        Self(socket)
    }

    /// What is said next; none if nothing is for a while.
    fn next(&self) -> Option<String> {
        let mut bytes = [0; 4096];
        let length = self.0.recv(&mut bytes).ok()?;
        Some(String::from_utf8(bytes[..length].to_vec()).expect("UTF-8"))
    }

    /// Waits until something is said that begins like this.
    fn expect(&self, beginning: &str) -> String {
        let began = Instant::now();
        loop {
            assert!(began.elapsed() < PATIENCE, "{beginning} was not said");
            match self.next() {
                Some(said) if said.starts_with(beginning) => return said,
                Some(_) => {}
                None => panic!("{beginning} was not said for {SILENCE:?}"),
            }
        }
    }
}

/// A daemon of this manager, whose watchdog waits for that long.
fn managed(directory: &Path, watchdog: Option<Duration>) -> Daemon {
    let socket = format!("NOTIFY_SOCKET={}", directory.join("notify").display());
    let limit = watchdog.map(|limit| format!("WATCHDOG_USEC={}", limit.as_micros()));
    let mut prefix = vec!["env", &socket];
    prefix.extend(limit.as_deref());
    let listen = free_address();
    Daemon::spawn(directory, &DaemonOptions { prefix: &prefix, ..DaemonOptions::new("a", &listen) })
}

/// The thread of a shard.
fn shard_thread(daemon: &Daemon, shard: u16) -> Pid {
    let tasks = Path::new("/proc").join(daemon.pid().to_string()).join("task");
    let wanted = format!("weir-shard-{shard}");
    let thread = std::fs::read_dir(tasks).expect("threads").flatten().find(|thread| {
        std::fs::read_to_string(thread.path().join("comm")).is_ok_and(|name| name.trim() == wanted)
    });
    let name = thread.expect("the thread").file_name();
    Pid::from_raw(name.to_str().and_then(|name| name.parse().ok()).expect("its number"))
}

/// A thread that is stopped until this is dropped: a daemon of which one thread stays so cannot be ended either.
struct Stuck(Pid);

impl Stuck {
    fn stop(thread: Pid) -> Result<Self, nix::Error> {
        ptrace::seize(thread, Options::empty())?;
        let stuck = Self(thread);
        ptrace::interrupt(thread)?;
        waitpid(thread, Some(WaitPidFlag::__WALL))?;
        Ok(stuck)
    }
}

impl Drop for Stuck {
    fn drop(&mut self) {
        // One that has ended is not stopped any more.
        let _ = ptrace::detach(self.0, None);
    }
}

#[test]
fn it_says_when_it_is_ready_what_it_does_and_when_it_stops() {
    let directory = TempDir::new().expect("a directory");
    let manager = Manager::listen(directory.path());
    let mut daemon = managed(directory.path(), None);
    let ready = manager.next().expect("the first word");
    assert!(ready.starts_with("READY=1\nSTATUS=node a, links on 127.0.0.1:"), "{ready:?}");
    // Whoever is told may ask at once.
    assert_eq!(daemon.ask("status")["node"], "a");
    let line = manager.next().expect("the second");
    assert_eq!(line, "STATUS=node a, 0 of 0 peers linked, 0 clients");
    assert_eq!(daemon.terminate(), Some(0));
    let stopping = manager.next().expect("the last");
    assert_eq!(stopping, "STOPPING=1\nSTATUS=draining, for at most 10s");
}

#[test]
fn a_watchdog_starves_while_one_shard_is_stuck_and_only_then() {
    let directory = TempDir::new().expect("a directory");
    let manager = Manager::listen(directory.path());
    let mut daemon = managed(directory.path(), Some(Duration::from_millis(400)));
    manager.expect("READY=1");
    for _ in 0..5 {
        manager.expect("WATCHDOG=1");
    }
    let stuck = match Stuck::stop(shard_thread(&daemon, 1)) {
        Ok(stuck) => stuck,
        Err(error) => {
            println!("not run here: a watchdog and a shard that is stuck (ptrace: {error})");
            return;
        }
    };
    let began = Instant::now();
    while manager.next().is_some() {
        assert!(began.elapsed() < PATIENCE, "the watchdog is fed although a shard is stuck");
    }
    let log = daemon.printed();
    assert!(log.contains("the watchdog is not fed") && log.contains("shards=[1]"), "{log}");
    drop(stuck);
    manager.expect("WATCHDOG=1");
    assert_eq!(daemon.terminate(), Some(0));
    manager.expect("STOPPING=1");
}
