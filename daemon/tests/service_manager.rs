//! What a daemon tells the service manager that has started it: that it is ready, that it goes on, that it stops.

mod common;
#[path = "common/manager.rs"]
mod manager;

use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::{Duration, Instant};

use common::{Daemon, DaemonOptions, PATIENCE, eventually, free_address};
use manager::{Manager, managed};
use nix::sys::ptrace::{self, Options};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use tempfile::TempDir;

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
    // Before it is ready it has its sockets kept.
    let ready = loop {
        match manager.next().expect("a word") {
            said if said.starts_with("FDSTORE=1\n") => {}
            said => break said,
        }
    };
    assert!(ready.starts_with("READY=1\nSTATUS=node a, links on 127."), "{ready:?}");
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

/// Where systemd says that standard error is the journal's, entries go there, and nothing to standard error. The journal is this
/// test, in a mount namespace in which its socket lies where that of the journal does.
#[test]
fn entries_of_the_journal_have_a_field_for_each_value() {
    let directory = TempDir::new().expect("a directory");
    let journal = directory.path().join("journal");
    std::fs::create_dir(&journal).expect("a directory");
    let socket = UnixDatagram::bind(journal.join("socket")).expect("a socket");
    socket.set_read_timeout(Some(Duration::from_millis(100))).expect("a timeout");
    let script = format!(
        "mount -t tmpfs none /run && mkdir -p /run/systemd/journal && mount --bind {} /run/systemd/journal && \
         export JOURNAL_STREAM=$(stat -L -c %d:%i /proc/self/fd/2) && exec \"$@\"",
        journal.display()
    );
    let prefix = ["unshare", "-m", "sh", "-c", &script, "sh"];
    let listen = free_address();
    let options = DaemonOptions { prefix: &prefix, ..DaemonOptions::new("a", &listen) };
    let mut daemon = Daemon::spawn(directory.path(), &options);
    let entry = eventually("an entry", || {
        let mut bytes = [0; 4096];
        if let Ok(length) = socket.recv(&mut bytes) {
            let text = String::from_utf8(bytes[..length].to_vec()).expect("UTF-8");
            return text.contains("MESSAGE=ready ").then_some(Some(text));
        }
        (!daemon.is_running()).then_some(None)
    });
    let Some(entry) = entry else {
        println!("not run here: entries of the journal (no mount namespace: {})", daemon.printed());
        return;
    };
    for line in ["PRIORITY=6", "SYSLOG_IDENTIFIER=weir", "WEIR_NODE=a", &format!("WEIR_LISTEN={listen}")] {
        assert!(entry.lines().any(|found| found == line), "{line} is not in {entry}");
    }
    assert_eq!(daemon.printed(), "", "nothing else is written");
    assert_eq!(daemon.terminate(), Some(0));
}

#[test]
fn a_journal_that_is_not_there_is_told_and_the_log_is_text() {
    if Path::new("/run/systemd/journal/socket").exists() {
        println!("not run here: a journal that is not there (it is)");
        return;
    }
    let directory = TempDir::new().expect("a directory");
    let config = "[observe]\nprobes = \"off\"\n[log]\nformat = \"journald\"\n";
    std::fs::write(directory.path().join("a.toml"), config).expect("a configuration");
    let listen = free_address();
    let mut daemon = Daemon::start(directory.path(), &DaemonOptions::new("a", &listen));
    let warning = "log.format is \"journald\", but nobody takes entries at /run/systemd/journal/socket";
    eventually("it is told", || daemon.printed().contains(warning).then_some(()));
    assert_eq!(daemon.terminate(), Some(0));
}
