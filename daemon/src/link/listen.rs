//! The socket that peers dial: where it may listen, and how many strangers it bears.
//!
//! A stranger is a connection whose handshake is not done. There are 64 places for them. One more makes room for
//! itself: of the address that holds the most places, the oldest connection is closed. So whoever fills the places
//! pushes out its own connections; and an honest peer, whose handshake takes two round trips, is pushed out only by
//! strangers of as many other addresses, or by 64 more connections of its own address within that time. Were newcomers
//! turned away instead, 64 connections that say nothing would keep every peer out.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::net::SocketType;
use tokio::net::{TcpListener, TcpStream};

use crate::inherited::check_listening;

/// Most connections whose handshake is not done.
pub const STRANGERS_MAX: usize = 64;

/// Connections that the kernel may hold ready to be accepted.
pub const ACCEPT_BACKLOG: u32 = 256;

/// How long accepting rests after the kernel refused it (no file descriptors left, for instance).
const ACCEPT_REST: Duration = Duration::from_millis(100);

/// Why the node cannot listen.
#[derive(Debug)]
pub enum ListenError {
    /// The address is reachable from other machines and nothing would authenticate them.
    NoKey {
        /// The address asked for.
        address: SocketAddr,
    },
    /// Another socket has the port.
    InUse {
        /// The address asked for.
        address: SocketAddr,
        /// Who has it, as far as /proc tells.
        owner: Option<String>,
    },
    /// Any other answer of the kernel.
    Os {
        /// The address asked for.
        address: SocketAddr,
        /// The kernel's answer.
        source: io::Error,
    },
}

impl fmt::Display for ListenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoKey { address } => write!(
                f,
                "listen = {address} is reachable from other machines and there is no cluster key; needed: \
                 a loopback address such as 127.0.0.1:{}, or --key-file with 32 random bytes \
                 (`head -c 32 /dev/urandom > KEY && chmod 600 KEY`)",
                address.port()
            ),
            Self::InUse { address, owner: Some(owner) } => {
                write!(
                    f,
                    "cannot listen on {address}: the port is taken by {owner}; stop it or set another --listen"
                )
            }
            Self::InUse { address, owner: None } => write!(
                f,
                "cannot listen on {address}: the port is taken (`ss -ltnp 'sport = :{}'` as root shows by whom); \
                 stop the owner or set another --listen",
                address.port()
            ),
            Self::Os { address, source } => write!(f, "cannot listen on {address}: {source}"),
        }
    }
}

impl std::error::Error for ListenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Os { source, .. } => Some(source),
            Self::NoKey { .. } | Self::InUse { .. } => None,
        }
    }
}

/// Whether this address may be listened on.
///
/// # Errors
/// It is not loopback and there is no cluster key.
pub fn check(address: SocketAddr, has_key: bool) -> Result<(), ListenError> {
    if !has_key && !address.ip().is_loopback() {
        return Err(ListenError::NoKey { address });
    }
    Ok(())
}

/// Opens the listening socket. Port 0 takes any free port.
///
/// # Errors
/// When the address is not loopback and there is no cluster key, when the port is taken, and what the kernel
/// answers beside.
pub fn bind(address: SocketAddr, has_key: bool) -> Result<TcpListener, ListenError> {
    check(address, has_key)?;
    let os = |source: io::Error| match source.kind() {
        io::ErrorKind::AddrInUse => {
            ListenError::InUse { address, owner: owner_of_port(address.port(), None) }
        }
        _ => ListenError::Os { address, source },
    };
    let socket = match address {
        SocketAddr::V4(_) => tokio::net::TcpSocket::new_v4(),
        SocketAddr::V6(_) => tokio::net::TcpSocket::new_v6(),
    }
    .map_err(os)?;
    // So that a restarted daemon need not wait for old connections to fade. It does not let two daemons listen.
    socket.set_reuseaddr(true).map_err(os)?;
    socket.bind(address).map_err(os)?;
    socket.listen(ACCEPT_BACKLOG).map_err(os)
}

/// Listens on with the socket of an earlier daemon.
///
/// # Errors
/// There is no runtime with I/O.
pub fn resume(socket: OwnedFd) -> io::Result<TcpListener> {
    let listener = std::net::TcpListener::from(socket);
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

/// Whether the socket of an earlier daemon listens on this address. Of port 0, which takes any, any is right.
///
/// # Errors
/// What it is instead.
pub fn check_inherited(socket: &OwnedFd, address: SocketAddr) -> Result<(), String> {
    check_listening(socket, SocketType::STREAM)?;
    let found = rustix::net::getsockname(socket).ok().and_then(|found| SocketAddr::try_from(found).ok());
    match found {
        Some(found)
            if found.ip() == address.ip() && (address.port() == 0 || found.port() == address.port()) =>
        {
            Ok(())
        }
        Some(found) => Err(format!("it listens on {found}; needed: {address}")),
        None => Err("it has no IP address".to_owned()),
    }
}

/// The process that listens on a TCP port of this network namespace, if /proc lets us see it. Of several that hold the socket
/// it is `expected` if that is one of them, and the first process of the system only if nobody else is: a service manager
/// keeps sockets of its services.
pub(crate) fn owner_of_port(port: u16, expected: Option<u32>) -> Option<String> {
    let inode = ["/proc/self/net/tcp", "/proc/self/net/tcp6"].iter().find_map(|table| {
        let table = std::fs::read_to_string(table).ok()?;
        table.lines().skip(1).find_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let found = u16::from_str_radix(fields.get(1)?.rsplit(':').next()?, 16).ok()?;
            // State 0A is LISTEN; field 9 is the socket's inode.
            (found == port && *fields.get(3)? == "0A")
                .then(|| fields.get(9).map(|inode| (*inode).to_owned()))?
        })
    })?;
    let wanted = format!("socket:[{inode}]");
    let processes = std::fs::read_dir("/proc").ok()?.flatten();
    let all = processes.filter_map(|process| process.file_name().to_str()?.parse::<u32>().ok());
    let likely = all.filter(|pid| *pid != 1);
    let pid = expected.into_iter().chain(likely).chain([1]).find(|pid| holds(&process(*pid), &wanted))?;
    let name = std::fs::read_to_string(process(pid).join("comm")).unwrap_or_default();
    Some(format!("process {pid} ({})", name.trim()))
}

fn process(pid: u32) -> PathBuf {
    Path::new("/proc").join(pid.to_string())
}

/// Whether a process has a descriptor that leads to `wanted`.
fn holds(process: &Path, wanted: &str) -> bool {
    let Ok(descriptors) = std::fs::read_dir(process.join("fd")) else {
        return false;
    };
    descriptors.flatten().any(|entry| {
        std::fs::read_link(entry.path()).is_ok_and(|to| to.as_os_str().as_bytes() == wanted.as_bytes())
    })
}

/// Connections that were refused: the last one, for the status.
#[derive(Debug, Default)]
pub struct Refusals {
    last: Option<String>,
}

impl Refusals {
    /// The last one: where it came from, and why.
    #[must_use]
    pub fn last(&self) -> Option<String> {
        self.last.clone()
    }

    /// A connection was refused.
    pub fn note(&mut self, from: SocketAddr, why: &impl fmt::Display) {
        tracing::warn!(%from, error = %why, "a link was refused");
        self.last = Some(format!("{from}: {why}"));
    }
}

/// Where connections count as one: an IPv4 address, or the /64 of an IPv6 address, for a host may use all of it.
fn origin(from: IpAddr) -> IpAddr {
    match from.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
        address => address,
    }
}

/// Who is inside: `W` is what it takes to turn one out. Ages are in the order of the ids.
#[derive(Debug)]
struct Strangers<W> {
    places: BTreeMap<u64, (IpAddr, W)>,
    next: u64,
}

impl<W> Strangers<W> {
    const fn new() -> Self {
        Self { places: BTreeMap::new(), next: 0 }
    }

    /// Gives a newcomer a place; its id, and who is to be turned out for it.
    fn seat(&mut self, from: IpAddr, way_out: W) -> (u64, Option<W>) {
        let id = self.next;
        self.next = self.next.saturating_add(1);
        self.places.insert(id, (origin(from), way_out));
        let surplus = if self.places.len() > STRANGERS_MAX { self.oldest_of_the_most() } else { None };
        let turned_out = surplus.and_then(|id| self.places.remove(&id)).map(|(_, way_out)| way_out);
        (id, turned_out)
    }

    /// The oldest of the origin that has the most places; of several such, the oldest of all of them. It is the
    /// newcomer only if there is nobody else.
    fn oldest_of_the_most(&self) -> Option<u64> {
        let mut counts: BTreeMap<IpAddr, usize> = BTreeMap::new();
        for (origin, _) in self.places.values() {
            *counts.entry(*origin).or_default() += 1;
        }
        let most = counts.values().copied().max()?;
        self.places.iter().find(|(_, (origin, _))| counts.get(origin) == Some(&most)).map(|(id, _)| *id)
    }

    fn leave(&mut self, id: u64) {
        self.places.remove(&id);
    }
}

/// The way out of a stranger is a second descriptor of its connection: shut down, it ends the handshake, whoever
/// waits in it.
type Table = Arc<Mutex<Strangers<OwnedFd>>>;

fn lock(table: &Table) -> MutexGuard<'_, Strangers<OwnedFd>> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A place among the strangers, free again when this is dropped.
#[derive(Debug)]
pub struct Place {
    id: u64,
    table: Table,
}

impl Drop for Place {
    fn drop(&mut self) {
        lock(&self.table).leave(self.id);
    }
}

/// A connection that nobody has authenticated. It may be shut down in favour of another until `permit` is dropped.
#[derive(Debug)]
pub struct Stranger {
    /// The connection.
    pub stream: TcpStream,
    /// Where it came from.
    pub from: SocketAddr,
    /// Its place among the strangers.
    pub permit: Place,
}

/// Accepts connections and bounds those that are not authenticated.
#[derive(Debug)]
pub struct Gatekeeper {
    listener: TcpListener,
    table: Table,
    turned_out: u64,
}

impl Gatekeeper {
    /// A gatekeeper for this socket, with [`STRANGERS_MAX`] free places.
    #[must_use]
    pub fn new(listener: TcpListener) -> Self {
        Self { listener, table: Arc::new(Mutex::new(Strangers::new())), turned_out: 0 }
    }

    /// The next connection, which has a place. Whoever had to make room is shut down.
    pub async fn next(&mut self) -> Stranger {
        loop {
            let accepted = match self.listener.accept().await {
                Ok((stream, from)) => {
                    stream.as_fd().try_clone_to_owned().map(|way_out| (stream, from, way_out))
                }
                Err(error) => Err(error),
            };
            match accepted {
                Ok((stream, from, way_out)) => {
                    let (id, turned_out) = lock(&self.table).seat(from.ip(), way_out);
                    if let Some(way_out) = turned_out {
                        self.turn_out(&way_out, from);
                    }
                    let permit = Place { id, table: Arc::clone(&self.table) };
                    return Stranger { stream, from, permit };
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a link");
                    tokio::time::sleep(ACCEPT_REST).await;
                }
            }
        }
    }

    fn turn_out(&mut self, way_out: &OwnedFd, newest: SocketAddr) {
        // A connection that has ended by itself needs no end.
        let _ = rustix::net::shutdown(way_out, rustix::net::Shutdown::Both);
        self.turned_out += 1;
        tracing::warn!(
            %newest,
            turned_out = self.turned_out,
            "more than {STRANGERS_MAX} connections have not finished their handshake: the oldest of the \
             address with the most of them was closed"
        );
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;

    #[tokio::test]
    async fn without_a_key_only_loopback_is_allowed() {
        let error = bind("0.0.0.0:7070".parse().unwrap(), false).unwrap_err();
        assert!(matches!(error, ListenError::NoKey { .. }));
        assert!(error.to_string().contains("--key-file"), "{error}");
        bind("127.0.0.1:0".parse().unwrap(), false).unwrap();
        bind("0.0.0.0:0".parse().unwrap(), true).unwrap();
    }

    #[tokio::test]
    async fn a_taken_port_names_the_address_and_the_owner() {
        let first = bind("127.0.0.1:0".parse().unwrap(), false).unwrap();
        let address = first.local_addr().unwrap();
        let error = bind(address, false).unwrap_err().to_string();
        assert!(error.contains(&address.to_string()), "{error}");
        assert!(error.contains(&format!("process {} (", std::process::id())), "{error}");
    }

    #[test]
    fn the_last_refusal_is_kept() {
        let mut refusals = Refusals::default();
        refusals.note("127.0.0.1:7".parse().unwrap(), &"why");
        assert_eq!(refusals.last().as_deref(), Some("127.0.0.1:7: why"));
    }

    fn v4(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    /// Seats newcomers, whose way out is their number; who was turned out.
    fn seated(strangers: &mut Strangers<usize>, from: impl IntoIterator<Item = IpAddr>) -> Vec<usize> {
        let begin = strangers.next as usize;
        from.into_iter().enumerate().filter_map(|(n, from)| strangers.seat(from, begin + n).1).collect()
    }

    #[test]
    fn a_flood_of_one_address_turns_out_only_its_own() {
        let mut strangers = Strangers::new();
        assert!(seated(&mut strangers, (1..=4).map(v4)).is_empty());
        let turned_out = seated(&mut strangers, std::iter::repeat_n(v4(9), 1000));
        // Those of the first four stay; of the flood the latest stay, and the oldest went first.
        assert_eq!(turned_out, (4..1004 - 60).collect::<Vec<_>>());
        assert_eq!(strangers.places.len(), STRANGERS_MAX);
        assert_eq!(seated(&mut strangers, [v4(5)]), [1004 - 60]);
        // One that leaves makes room.
        strangers.leave(0);
        assert!(seated(&mut strangers, [v4(6)]).is_empty());
    }

    #[test]
    fn when_all_have_as_many_the_oldest_goes_and_never_the_newcomer() {
        let mut strangers = Strangers::new();
        let turned_out = seated(&mut strangers, (0..=255).map(v4));
        assert_eq!(turned_out, (0..256 - STRANGERS_MAX).collect::<Vec<_>>());
    }

    #[test]
    fn all_addresses_of_one_network_of_ipv6_count_as_one() {
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        assert_eq!(origin(address("2001:db8:1:2:3:4:5:6")), origin(address("2001:db8:1:2::1")));
        assert_ne!(origin(address("2001:db8:1:2::1")), origin(address("2001:db8:1:3::1")));
        assert_eq!(origin(address("::ffff:10.0.0.7")), v4(7));
        let mut strangers = Strangers::new();
        let host = |n: u16| IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, n]);
        seated(&mut strangers, [v4(1)]);
        assert!(!seated(&mut strangers, (0..500).map(host)).contains(&0));
    }

    /// Whether the connection has ended.
    async fn has_ended(stream: &mut TcpStream) -> bool {
        matches!(stream.read(&mut [0_u8; 1]).await, Ok(0) | Err(_))
    }

    #[tokio::test]
    async fn the_sixty_fifth_stranger_gets_in_and_the_first_is_shut_down() {
        let mut keeper = Gatekeeper::new(bind("127.0.0.1:0".parse().unwrap(), false).unwrap());
        let address = keeper.listener.local_addr().unwrap();
        let mut dialled = Vec::new();
        let mut strangers = Vec::new();
        for _ in 0..=STRANGERS_MAX {
            dialled.push(TcpStream::connect(address).await.unwrap());
            strangers.push(keeper.next().await);
        }
        // Both who dialled and who waits in its handshake see the end.
        assert!(has_ended(&mut dialled[0]).await);
        assert!(has_ended(&mut strangers[0].stream).await);
        assert_eq!(lock(&keeper.table).places.len(), STRANGERS_MAX);
        // Authenticated ones have left: they are not touched, and make room.
        for stranger in &mut strangers[1..3] {
            let table = Arc::clone(&keeper.table);
            drop(std::mem::replace(&mut stranger.permit, Place { id: u64::MAX, table }));
        }
        for _ in 0..2 {
            dialled.push(TcpStream::connect(address).await.unwrap());
            strangers.push(keeper.next().await);
        }
        for stream in &mut dialled[1..] {
            tokio::select! {
                biased;
                _ = has_ended(stream) => panic!("a connection ended that had a place"),
                () = tokio::task::yield_now() => {}
            }
        }
    }
}
