//! Listening sockets that outlive a daemon: the test is the service manager, which keeps them and gives them to the next one.
//! Whoever connects while no daemon runs is served by that.

mod common;
#[path = "common/manager.rs"]
mod manager;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::process::Stdio;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use common::{
    Daemon, DaemonOptions, Guarded, PATIENCE, eventually, free_address, recv, send, subsystem, weir,
};
use manager::Manager;
use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};
use tempfile::TempDir;
use weir_client::Client;

/// Least number of a descriptor that is kept: above those that it will have in the daemon.
const NUMBER_MIN: i32 = 100;

/// A daemon that starts inherits what may be inherited: no other may start at that moment.
static STARTING: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    STARTING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a service manager has of a service.
struct Service {
    directory: TempDir,
    manager: Manager,
    store: BTreeMap<String, Vec<OwnedFd>>,
    /// The names that the daemon had taken out of the store since the last start.
    removed: Vec<String>,
}

impl Service {
    fn new(config: &str) -> Self {
        let directory = TempDir::new().expect("a directory");
        let manager = Manager::listen(directory.path());
        let service = Self { directory, manager, store: BTreeMap::new(), removed: Vec::new() };
        service.configure(config);
        service
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    fn configure(&self, config: &str) {
        let text = format!("[observe]\nprobes = \"off\"\n{config}");
        std::fs::write(self.path().join("a.toml"), text).expect("a configuration");
    }

    /// Starts a daemon with what the store has, as systemd does, and waits until it is ready.
    fn start(&mut self, listen: &str) -> Daemon {
        self.removed.clear();
        let kept: Vec<(&String, &OwnedFd)> =
            self.store.iter().flat_map(|(name, all)| all.iter().map(move |socket| (name, socket))).collect();
        // The shell puts them where they belong: there is no safe way to do that between fork and exec.
        let places: Vec<String> = (3..)
            .zip(&kept)
            .map(|(number, (_, socket))| (number, socket.as_raw_fd()))
            .map(|(number, own)| format!("{number}<&{own} {own}<&-"))
            .collect();
        let names: Vec<&str> = kept.iter().map(|(name, _)| name.as_str()).collect();
        let script = format!(
            "export NOTIFY_SOCKET={} LISTEN_PID=$$ LISTEN_FDS={} LISTEN_FDNAMES={}; exec \"$@\" {}",
            self.path().join("notify").display(),
            kept.len(),
            names.join(":"),
            places.join(" "),
        );
        let prefix = ["bash", "-c", &script, "bash"];
        let guard = alone();
        for (_, socket) in &kept {
            fcntl_setfd(socket, FdFlags::empty()).expect("a flag");
        }
        let options = DaemonOptions { prefix: &prefix, ..DaemonOptions::new("a", listen) };
        let daemon = Daemon::spawn(self.directory.path(), &options);
        for (_, socket) in &kept {
            fcntl_setfd(socket, FdFlags::CLOEXEC).expect("a flag");
        }
        drop(guard);
        self.listen_until("READY=1", &daemon);
        daemon
    }

    /// Keeps and lets go of descriptors until something is said that begins like this.
    fn listen_until(&mut self, beginning: &str, daemon: &Daemon) {
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            let Some((said, sockets)) = self.manager.next_with_descriptors() else { break };
            let name = || said.split_once("FDNAME=").expect("a name").1.to_owned();
            if said.starts_with("FDSTOREREMOVE=1\n") {
                self.removed.push(name());
                self.store.remove(&name());
            } else if said.starts_with("FDSTORE=1\n") {
                assert_eq!(sockets.len(), 1, "{said}");
                let kept = self.store.entry(name()).or_default();
                // One that is there already is not kept twice.
                let id = |socket: &OwnedFd| rustix::fs::fstat(socket).expect("a socket").st_ino;
                for socket in sockets {
                    if kept.iter().all(|old| id(old) != id(&socket)) {
                        kept.push(fcntl_dupfd_cloexec(&socket, NUMBER_MIN).expect("a descriptor"));
                    }
                }
            } else if said.starts_with(beginning) {
                return;
            }
        }
        panic!("{beginning} was not said; the daemon printed:\n{}", daemon.printed());
    }

    fn names(&self) -> Vec<&str> {
        let all = self.store.iter().map(|(name, sockets)| (name.as_str(), sockets.len()));
        all.map(|(name, count)| if count == 1 { name } else { "twice" }).collect()
    }
}

/// Waits until `thread` has ended.
fn joined<T>(what: &str, thread: thread::JoinHandle<T>) -> T {
    eventually(what, || thread.is_finished().then_some(()));
    thread.join().expect(what)
}

fn has_link(daemon: &Daemon, peer: &str) -> bool {
    subsystem(daemon, &format!("peer/{peer}")).is_some_and(|line| line["state"] == "ok")
}

/// Whoever comes while no daemon runs: a program, a command, a node, Prometheus. Each must find the next daemon.
fn whoever_comes_meanwhile_is_served(end: impl FnOnce(&mut Daemon)) {
    let metrics = free_address();
    let mut service = Service::new(&format!("[metrics]\nlisten = \"{metrics}\"\n"));
    let listen = free_address();
    let mut first = service.start(&listen);
    assert_eq!(service.names(), ["weir-attach", "weir-control", "weir-links", "weir-metrics"]);
    end(&mut first);

    // Nobody is there; nobody is refused.
    let run_dir = first.run_dir.clone();
    let program = thread::spawn({
        let run_dir = run_dir.clone();
        move || Client::connect(&run_dir).map(drop)
    });
    let mut command = weir(["status", "--output", "json"], &run_dir);
    let guard = alone();
    let command = Guarded::spawn(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()));
    drop(guard);
    let mut node = TcpStream::connect(&listen).expect("the link port is listened on");
    let mut prometheus = TcpStream::connect(&metrics).expect("the metrics port is listened on");
    prometheus
        .write_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        .expect("it is taken");

    let mut second = service.start(&listen);
    assert_ne!(second.pid(), first.pid());
    joined("attached", program).expect("by the second daemon");
    let answer = command.output();
    let status: serde_json::Value = serde_json::from_slice(&answer.stdout).expect("an answer");
    assert_eq!(status["pid"], second.pid());
    let mut page = String::new();
    prometheus.read_to_string(&mut page).expect("a page");
    assert!(page.starts_with("HTTP/1.1 200 OK"), "{page}");
    // A stranger that speaks no handshake is told so: it was accepted.
    node.write_all(&[0xff; 64]).expect("it is taken");
    node.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let mut word = Vec::new();
    node.read_to_end(&mut word).expect("the end of it");
    assert!(!word.is_empty(), "a last word");
    // They are the same sockets, and the store has them once.
    assert_eq!((service.removed.as_slice(), service.names().len()), (&[][..], 4));
    assert!(!second.printed().contains("is not used"), "{}", second.printed());
    assert_eq!(second.terminate(), Some(0));
    for socket in ["attach.sock", "control.sock"] {
        assert!(run_dir.join(socket).exists(), "{socket} is for the next one");
    }
}

#[test]
fn whoever_comes_between_two_daemons_is_served_by_the_second() {
    whoever_comes_meanwhile_is_served(|daemon| assert_eq!(daemon.terminate(), Some(0)));
}

#[test]
fn whoever_comes_after_a_crash_is_served_by_the_next_daemon() {
    whoever_comes_meanwhile_is_served(Daemon::kill);
}

#[test]
fn records_flow_again_after_a_restart_and_the_peer_is_linked_again() {
    let mut service = Service::new("");
    let (listen, other) = (free_address(), free_address());
    let mut first = service.start(&listen);
    let guard = alone();
    let peers = [("a", listen.as_str())];
    let peer =
        Daemon::start(service.path(), &DaemonOptions { peers: &peers, ..DaemonOptions::new("b", &other) });
    drop(guard);
    eventually("linked", || has_link(&first, "b").then_some(()));
    assert_eq!(first.terminate(), Some(0));
    let second = service.start(&listen);
    eventually("linked again", || (has_link(&second, "b") && has_link(&peer, "a")).then_some(()));
    let receiver = recv(&peer, "x", "0/1");
    let mut sender = send(&second, "x", &["--strategy", "forward", "--consumers", "1"]);
    sender.child.stdin.take().expect("an input").write_all(b"one\ntwo\n").expect("taken");
    assert!(sender.output().status.success());
    assert_eq!(receiver.output().stdout, b"one\ntwo\n");
}

#[test]
fn a_socket_that_does_not_fit_is_closed_taken_out_of_the_store_and_made_anew() {
    let metrics = free_address();
    let mut service = Service::new(&format!("[metrics]\nlisten = \"{metrics}\"\n"));
    // Where metrics were given, links are to be accepted.
    let (before, after) = (free_address(), metrics.clone());
    let mut first = service.start(&before);
    assert_eq!(first.terminate(), Some(0));
    // Another address for links, none for metrics; and what lies at the attach socket's path is not that socket.
    service.configure("");
    let attach = first.run_dir.join("attach.sock");
    std::fs::remove_file(&attach).expect("removed");
    let stranger = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let stranger = fcntl_dupfd_cloexec(&stranger, NUMBER_MIN).expect("a number");
    service.store.insert("nobody".to_owned(), vec![stranger]);
    let mut second = service.start(&after);
    service.removed.sort();
    assert_eq!(service.removed, ["nobody", "weir-attach", "weir-links", "weir-metrics"]);
    assert_eq!(service.names(), ["weir-attach", "weir-control", "weir-links"]);
    eventually("nobody listens there any more", || TcpStream::connect(&before).is_err().then_some(()));
    Client::connect(&second.run_dir).expect("at the new socket");
    TcpStream::connect(&after).expect("at the new address");
    assert_eq!(second.terminate(), Some(0));
    // The one with the same path of the same port is taken again, also by a daemon that takes any port.
    let (address, _) = after.rsplit_once(':').expect("a port");
    let mut third = service.start(&format!("{address}:0"));
    assert_eq!((third.ask("status")["listen"].as_str(), service.removed.len()), (Some(after.as_str()), 0));
    assert_eq!(third.terminate(), Some(0));
}

#[test]
fn descriptors_for_another_process_are_not_touched() {
    let directory = TempDir::new().expect("a directory");
    let (a, b) = (free_address(), free_address());
    for (name, listen, pid, count) in [("a", &a, "1", "3"), ("b", &b, "x", "99999999999999999999")] {
        let (pid, count) = (format!("LISTEN_PID={pid}"), format!("LISTEN_FDS={count}"));
        let prefix = ["env", &pid, &count];
        let guard = alone();
        let mut daemon = Daemon::start(
            directory.path(),
            &DaemonOptions { prefix: &prefix, ..DaemonOptions::new(name, listen) },
        );
        drop(guard);
        assert_eq!(daemon.terminate(), Some(0));
        // Without a service manager the sockets end with their daemon.
        assert!(!daemon.run_dir.join("attach.sock").exists());
    }
}
