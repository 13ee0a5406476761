//! Where a daemon would live: its run directory, the sockets in it, and the addresses to listen on.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::io::Errno;
use rustix::net::SocketType;
use socket2::{Domain, Socket, Type};

use super::Row;
use crate::attach::run_dir::{ATTACH_SOCKET, CONTROL_SOCKET, LOCK_FILE, Occupant, RunDirError, occupant};
use crate::config::Config;
use crate::link::listen::{ListenError, owner_of_port};

/// What lies at the path of a socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SocketFacts {
    /// Nothing.
    Free,
    /// A socket on which nobody listens.
    Stale,
    /// A socket on which somebody listens.
    Live,
    /// Something else, or it cannot be looked at: what the daemon would say.
    InTheWay(String),
}

/// Whether an address can be listened on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AddressFacts {
    /// It can.
    Free,
    /// By this process, which holds it already, as far as can be seen.
    Taken {
        /// `process PID (NAME)`.
        owner: Option<String>,
        /// What the daemon would say.
        text: String,
    },
    /// It cannot: what the daemon would say.
    Refused(String),
}

/// Where a daemon would live.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlaceFacts {
    /// The daemon that has the run directory.
    pub daemon: Option<u32>,
    /// Why the run directory cannot be used, in the words of the daemon; none if it can.
    pub run_dir: Option<String>,
    /// Whether it is there already.
    pub run_dir_exists: bool,
    /// The sockets in it, by name.
    pub sockets: Vec<(&'static str, SocketFacts)>,
    /// `listen`.
    pub listen: AddressFacts,
    /// `metrics.listen`, if it is set.
    pub metrics: Option<AddressFacts>,
}

impl PlaceFacts {
    /// Looks. Nothing is made, and no lock is taken: a daemon that starts meanwhile does not notice.
    #[must_use]
    pub fn find(config: &Config, daemon: Option<u32>) -> Self {
        let path = &config.run_dir;
        let sockets = [(ATTACH_SOCKET, SocketType::SEQPACKET), (CONTROL_SOCKET, SocketType::STREAM)];
        Self {
            daemon,
            run_dir: unusable(path).map(|error| error.to_string()),
            run_dir_exists: path.is_dir(),
            sockets: sockets.into_iter().map(|(name, kind)| (name, socket(&path.join(name), kind))).collect(),
            listen: address(config.listen, daemon),
            metrics: config.metrics.listen.map(|of| address(of, daemon)),
        }
    }
}

/// Why a daemon of this user could not use a run directory.
fn unusable(path: &Path) -> Option<RunDirError> {
    let denied = |path: &Path| {
        let access = accessat(CWD, path, Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS);
        let denied = |errno: Errno| RunDirError::NotWritable { path: path.to_owned(), source: errno.into() };
        access.err().map(denied)
    };
    match std::fs::metadata(path) {
        Ok(found) if found.is_dir() => {
            let lock: PathBuf = path.join(LOCK_FILE);
            let has_lock = std::fs::metadata(&lock).map(|found| found.len() > 0);
            if has_lock.is_ok()
                && let Err(errno) = accessat(CWD, &lock, Access::WRITE_OK, AtFlags::EACCESS)
            {
                return Some(RunDirError::NotWritable { path: lock, source: errno.into() });
            }
            // What an earlier daemon has left has the room that it needs.
            denied(path).or_else(|| if matches!(has_lock, Ok(true)) { None } else { full(path) })
        }
        Ok(_) => Some(RunDirError::Foreign {
            path: path.to_owned(),
            found: "is no directory, which is needed there",
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => match path.parent() {
            Some(parent) if parent.is_dir() => denied(parent).or_else(|| full(parent)),
            _ => Some(RunDirError::NoParent { path: path.to_owned() }),
        },
        Err(source) => Some(RunDirError::NotWritable { path: path.to_owned(), source }),
    }
}

/// Whether the file system of a directory has no room for a daemon's files: not one block, or not one file more.
fn full(path: &Path) -> Option<RunDirError> {
    let found = rustix::fs::statvfs(path).ok()?;
    // What is kept for root is root's.
    let is_root = rustix::process::geteuid().is_root();
    let free = |total: u64, all: u64, others: u64| total == 0 || (if is_root { all } else { others }) > 0;
    // A file system without a number of either has no bound on it.
    let is_full = !free(found.f_blocks, found.f_bfree, found.f_bavail)
        || !free(found.f_files, found.f_ffree, found.f_favail);
    is_full.then(|| RunDirError::NotWritable { path: path.to_owned(), source: Errno::NOSPC.into() })
}

fn socket(path: &Path, kind: SocketType) -> SocketFacts {
    match occupant(path, kind) {
        Ok(Occupant::Nothing) => SocketFacts::Free,
        Ok(Occupant::Stale) => SocketFacts::Stale,
        Ok(Occupant::Live) => SocketFacts::Live,
        Err(error) => SocketFacts::InTheWay(error.to_string()),
    }
}

/// Binds, and lets go at once. Nothing is listened on, so that nobody can connect. Who holds it is the daemon if that is one of
/// those who do: where it runs under a service manager, that has the socket too.
fn address(address: SocketAddr, daemon: Option<u32>) -> AddressFacts {
    let bind = || -> io::Result<()> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
        // As the daemon: connections of an earlier one that fade are not in the way.
        socket.set_reuse_address(true)?;
        socket.bind(&address.into())
    };
    match bind() {
        Ok(()) => AddressFacts::Free,
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            let owner = owner_of_port(address.port(), daemon);
            let text = ListenError::InUse { address, owner: owner.clone() }.to_string();
            AddressFacts::Taken { owner, text }
        }
        Err(source) => AddressFacts::Refused(ListenError::Os { address, source }.to_string()),
    }
}

/// Judges.
#[must_use]
pub fn rows(facts: &PlaceFacts, config: &Config) -> Vec<Row> {
    let mut rows = vec![run_dir(facts, config)];
    rows.extend(facts.sockets.iter().map(|(name, found)| socket_row(name, found, facts.daemon, config)));
    rows.push(address_row("listener", "listen", config.listen, &facts.listen, facts.daemon));
    if let (Some(address), Some(found)) = (config.metrics.listen, &facts.metrics) {
        rows.push(address_row("metrics", "metrics.listen", address, found, facts.daemon));
    }
    rows
}

fn run_dir(facts: &PlaceFacts, config: &Config) -> Row {
    let shown = config.run_dir.display();
    let row = |found: String| Row::new("run_dir", format!("{shown}, writable, with no other daemon"), found);
    match (&facts.daemon, &facts.run_dir) {
        (Some(pid), _) => row(format!("the daemon that runs there has pid {pid}")),
        (None, Some(text)) => row(text.clone()).failed(
            "the daemon does not start",
            "run_dir, or as the user of the daemon: RuntimeDirectory=weir in the unit, tmpfiles.d/weir.conf",
        ),
        (None, None) if facts.run_dir_exists => row("there, and no daemon has it".to_owned()),
        (None, None) => row("not there: the daemon makes it".to_owned()),
    }
}

fn socket_row(name: &str, found: &SocketFacts, daemon: Option<u32>, config: &Config) -> Row {
    let path = config.run_dir.join(name);
    let row = |found: &str| Row::new(name, "free, or held by the daemon", found);
    match (found, daemon) {
        (SocketFacts::Free, None) => row("free"),
        (SocketFacts::Free, Some(pid)) => row("removed")
            .degraded(format!("nobody finds the daemon there that has pid {pid}"), "restart the daemon"),
        (SocketFacts::Stale, None) => row("left by a daemon that has ended; the next one replaces it"),
        (SocketFacts::Stale, Some(_)) => row("a socket on which nobody listens")
            .degraded("nobody reaches the daemon by it", "restart the daemon"),
        (SocketFacts::Live, Some(pid)) => row(&format!("held by the daemon, pid {pid}")),
        (SocketFacts::Live, None) => row("held by a process that is not the daemon of this directory")
            .failed(
                "the daemon does not start",
                format!("ss -xlp names the process; stop it, or remove {}", path.display()),
            ),
        (SocketFacts::InTheWay(text), _) => {
            row(text).failed("the daemon does not start", format!("rm {}, or run_dir", path.display()))
        }
    }
}

fn address_row(name: &str, key: &str, address: SocketAddr, found: &AddressFacts, daemon: Option<u32>) -> Row {
    let row = |found: &str| Row::new(name, format!("{address}, free or held by the daemon"), found);
    match found {
        AddressFacts::Free => row("free"),
        AddressFacts::Taken { owner, text } => {
            let is_daemons = match (owner, daemon) {
                (Some(owner), Some(pid)) => owner.starts_with(&format!("process {pid} ")),
                // Not to be seen from here: the daemon runs, and somebody listens.
                (None, Some(_)) => true,
                (_, None) => false,
            };
            if is_daemons {
                return row("held by the daemon");
            }
            row(text).failed(
                "the daemon does not start",
                format!("{key}, or stop the other: ss -ltnp 'sport = :{}'", address.port()),
            )
        }
        AddressFacts::Refused(text) => row(text).failed(
            "the daemon does not start",
            format!("{key}: an address of this machine (ip -br address)"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixListener;
    use std::process::{Command, Stdio};

    use super::super::State;
    use super::*;

    fn fine() -> PlaceFacts {
        PlaceFacts {
            daemon: None,
            run_dir: None,
            run_dir_exists: true,
            sockets: vec![(ATTACH_SOCKET, SocketFacts::Free), (CONTROL_SOCKET, SocketFacts::Free)],
            listen: AddressFacts::Free,
            metrics: Some(AddressFacts::Free),
        }
    }

    fn config() -> Config {
        let mut config = Config::default();
        config.metrics.listen = Some("127.0.0.1:9100".parse().unwrap());
        config
    }

    fn states(facts: &PlaceFacts) -> Vec<State> {
        rows(facts, &config()).iter().map(|row| row.state).collect()
    }

    fn taken(owner: Option<&str>) -> AddressFacts {
        AddressFacts::Taken { owner: owner.map(str::to_owned), text: "the port is taken".to_owned() }
    }

    #[test]
    fn free_places_are_fine_with_the_directory_and_without() {
        assert_eq!(states(&fine()), [State::Ok; 5]);
        assert_eq!(states(&PlaceFacts { run_dir_exists: false, ..fine() }), [State::Ok; 5]);
    }

    #[test]
    fn what_the_daemon_that_runs_holds_is_fine() {
        let held = PlaceFacts {
            daemon: Some(7),
            run_dir: Some("not writable".to_owned()),
            sockets: vec![(ATTACH_SOCKET, SocketFacts::Live), (CONTROL_SOCKET, SocketFacts::Live)],
            listen: taken(Some("process 7 (weir)")),
            metrics: Some(taken(None)),
            ..fine()
        };
        assert_eq!(states(&held), [State::Ok; 5]);
        let other = PlaceFacts { listen: taken(Some("process 77 (x)")), ..held };
        assert_eq!(states(&other)[3], State::Failed);
    }

    #[test]
    fn each_place_that_is_taken_or_refused_stops_the_daemon() {
        let bad = PlaceFacts {
            run_dir: Some("cannot write".to_owned()),
            sockets: vec![
                (ATTACH_SOCKET, SocketFacts::Live),
                (CONTROL_SOCKET, SocketFacts::InTheWay("is a directory".to_owned())),
            ],
            listen: taken(Some("process 7 (nginx)")),
            metrics: Some(AddressFacts::Refused("cannot listen".to_owned())),
            ..fine()
        };
        for row in rows(&bad, &config()) {
            assert_eq!((row.state, &*row.effect), (State::Failed, "the daemon does not start"), "{row:?}");
            assert!(!row.fix.is_empty(), "{row:?}");
        }
    }

    #[test]
    fn sockets_that_are_gone_from_a_daemon_are_told() {
        let gone = PlaceFacts {
            daemon: Some(7),
            sockets: vec![(ATTACH_SOCKET, SocketFacts::Free), (CONTROL_SOCKET, SocketFacts::Stale)],
            ..fine()
        };
        assert_eq!(states(&gone)[1..3], [State::Degraded; 2]);
        let left = PlaceFacts { daemon: None, sockets: vec![(ATTACH_SOCKET, SocketFacts::Stale)], ..fine() };
        assert_eq!(states(&left)[1], State::Ok);
    }

    #[test]
    fn a_directory_is_looked_at_and_left_as_it_was() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("run");
        let mut config = Config { run_dir: path.clone(), ..Config::default() };
        config.listen = "127.0.0.1:0".parse().unwrap();
        let found = PlaceFacts::find(&config, None);
        assert_eq!((found.run_dir, found.run_dir_exists, found.listen), (None, false, AddressFacts::Free));
        assert!(!path.exists());
        std::fs::create_dir(&path).unwrap();
        let control = UnixListener::bind(path.join(CONTROL_SOCKET)).unwrap();
        std::fs::write(path.join(ATTACH_SOCKET), "").unwrap();
        let found = PlaceFacts::find(&config, None);
        assert_eq!(found.sockets[1].1, SocketFacts::Live);
        assert!(
            matches!(&found.sockets[0].1, SocketFacts::InTheWay(text) if text.contains("is a regular file"))
        );
        drop(control);
        assert_eq!(PlaceFacts::find(&config, None).sockets[1].1, SocketFacts::Stale);
        assert_eq!(std::fs::read_dir(&path).unwrap().count(), 2);
        config.run_dir = path.join(ATTACH_SOCKET);
        assert!(PlaceFacts::find(&config, None).run_dir.unwrap().contains("is no directory"));
        config.run_dir = parent.path().join("a/b");
        assert!(PlaceFacts::find(&config, None).run_dir.unwrap().contains("does not exist"));
    }

    #[test]
    fn an_address_is_free_taken_or_not_of_this_machine() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        match address(at, None) {
            AddressFacts::Taken { owner: Some(owner), text } => {
                assert!(owner.starts_with(&format!("process {} ", std::process::id())), "{owner}");
                assert!(text.contains(&at.to_string()), "{text}");
            }
            other => panic!("{other:?}"),
        }
        // Another process has the same socket, as a service manager has those of its daemons.
        let socket = OwnedFd::from(listener.try_clone().unwrap());
        let mut other = Command::new("sleep").arg("600").stdin(Stdio::from(socket)).spawn().unwrap();
        let owner = |expected| owner_of_port(at.port(), Some(expected)).unwrap();
        for pid in [other.id(), std::process::id()] {
            assert!(owner(pid).starts_with(&format!("process {pid} ")), "{}", owner(pid));
        }
        other.kill().unwrap();
        other.wait().unwrap();
        drop(listener);
        assert_eq!(address(at, None), AddressFacts::Free);
        assert!(matches!(address("192.0.2.1:7070".parse().unwrap(), None), AddressFacts::Refused(_)));
    }
}
