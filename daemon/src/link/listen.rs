//! The socket that peers dial: where it may listen, and how many strangers it bears.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Most connections whose handshake is not done.
pub const STRANGERS_MAX: usize = 64;

/// Connections that the kernel may hold ready to be accepted.
const ACCEPT_BACKLOG: u32 = 256;

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

/// Opens the listening socket. Port 0 takes any free port.
///
/// # Errors
/// When the address is not loopback and there is no cluster key, when the port is taken, and what the kernel
/// answers beside.
pub fn bind(address: SocketAddr, has_key: bool) -> Result<TcpListener, ListenError> {
    if !has_key && !address.ip().is_loopback() {
        return Err(ListenError::NoKey { address });
    }
    let os = |source: io::Error| match source.kind() {
        io::ErrorKind::AddrInUse => ListenError::InUse { address, owner: owner_of_port(address.port()) },
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

/// The process that listens on a TCP port of this network namespace, if /proc lets us see it.
fn owner_of_port(port: u16) -> Option<String> {
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
    for process in std::fs::read_dir("/proc").ok()?.flatten() {
        if !process.file_name().as_bytes().iter().all(u8::is_ascii_digit) {
            continue;
        }
        if holds(&process.path(), &wanted) {
            let name = std::fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            return Some(format!("process {} ({})", process.file_name().to_string_lossy(), name.trim()));
        }
    }
    None
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

/// A connection that nobody has authenticated. It counts against [`STRANGERS_MAX`] until `permit` is dropped.
#[derive(Debug)]
pub struct Stranger {
    /// The connection.
    pub stream: TcpStream,
    /// Where it came from.
    pub from: SocketAddr,
    /// Its place among the strangers.
    pub permit: OwnedSemaphorePermit,
}

/// Accepts connections and counts those that are not authenticated.
#[derive(Debug)]
pub struct Gatekeeper {
    listener: TcpListener,
    places: Arc<Semaphore>,
    turned_away: u64,
}

impl Gatekeeper {
    /// A gatekeeper for this socket, with [`STRANGERS_MAX`] free places.
    #[must_use]
    pub fn new(listener: TcpListener) -> Self {
        Self { listener, places: Arc::new(Semaphore::new(STRANGERS_MAX)), turned_away: 0 }
    }

    /// The next connection that found a place. One that finds none is closed at once: a waiting one would only keep
    /// an honest peer from knowing, which dials again by itself.
    pub async fn next(&mut self) -> Stranger {
        loop {
            match self.listener.accept().await {
                Ok((stream, from)) => match Arc::clone(&self.places).try_acquire_owned() {
                    Ok(permit) => {
                        return Stranger { stream, from, permit };
                    }
                    Err(_) => {
                        self.turned_away += 1;
                        // Powers of two only: a flood must not become a flood of log lines.
                        if self.turned_away.is_power_of_two() {
                            tracing::warn!(
                                %from,
                                turned_away = self.turned_away,
                                "connection closed: {STRANGERS_MAX} others have not finished their handshake"
                            );
                        }
                    }
                },
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a link");
                    tokio::time::sleep(ACCEPT_REST).await;
                }
            }
        }
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

    #[tokio::test]
    async fn the_sixty_fifth_stranger_is_turned_away_and_a_freed_place_is_used() {
        let mut keeper = Gatekeeper::new(bind("127.0.0.1:0".parse().unwrap(), false).unwrap());
        let address = keeper.listener.local_addr().unwrap();
        let mut dialled = Vec::new();
        let mut strangers = Vec::new();
        for _ in 0..STRANGERS_MAX {
            dialled.push(TcpStream::connect(address).await.unwrap());
            strangers.push(keeper.next().await);
        }
        let mut surplus = TcpStream::connect(address).await.unwrap();
        let mut byte = [0_u8; 1];
        tokio::select! {
            _ = keeper.next() => panic!("the 65th stranger got a place"),
            read = surplus.read(&mut byte) => assert!(matches!(read, Ok(0) | Err(_)), "{read:?}"),
        }
        strangers.pop();
        let _next = TcpStream::connect(address).await.unwrap();
        keeper.next().await;
    }
}
