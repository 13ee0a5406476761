//! Connecting to a peer: resolve, connect, and how long to wait before the next try.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::Semaphore;

use super::options::{self, LinkOptions, OptionError};
use crate::attach::descriptors;

/// The longest wait before the next try.
pub const BACKOFF_MAX: Duration = Duration::from_secs(1);

/// The longest first wait; it doubles with every failure up to [`BACKOFF_MAX`].
const BACKOFF_FIRST: Duration = Duration::from_millis(20);

/// How long one address may take to answer. Short, for the kernel sends a first packet again only after 1 and 3 seconds: a
/// new try finds a network that is back sooner than an old one.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// Most control links, and most data links, that are being dialled at a time, from the resolver to the end of the
/// handshake. Each holds a descriptor, for seconds when nobody answers: however many peers cannot be reached, clients keep
/// theirs.
pub const DIALS_MAX: usize = 32;

/// Places for those who dial. Data links have their own: one that is lost has only its grace to come back.
#[derive(Clone, Debug)]
pub struct Dials {
    /// [`DIALS_MAX`] for control links.
    pub control: Arc<Semaphore>,
    /// [`DIALS_MAX`] for data links.
    pub data: Arc<Semaphore>,
}

impl Default for Dials {
    fn default() -> Self {
        let places = || Arc::new(Semaphore::new(DIALS_MAX));
        Self { control: places(), data: places() }
    }
}

/// The wait between tries: drawn evenly between 0 and a ceiling that doubles (full jitter), so that two nodes that
/// lost each other do not dial in step.
#[derive(Debug)]
pub struct Backoff {
    ceiling: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { ceiling: BACKOFF_FIRST }
    }
}

impl Backoff {
    /// Begins anew after a success.
    pub fn reset(&mut self) {
        *self = Self::default();
    }

    /// The longest that the next wait can be.
    #[must_use]
    pub const fn ceiling(&self) -> Duration {
        self.ceiling
    }

    /// The wait before the next try, from `random`, any number.
    pub fn next_wait(&mut self, random: u64) -> Duration {
        let ceiling_us = u64::try_from(self.ceiling.as_micros()).unwrap_or(u64::MAX);
        self.ceiling = self.ceiling.saturating_mul(2).min(BACKOFF_MAX);
        Duration::from_micros(random % ceiling_us.saturating_add(1))
    }
}

/// Why no connection came about.
#[derive(Debug)]
pub enum DialError {
    /// The name has no address.
    Resolve {
        /// What was to be dialled.
        address: String,
        /// The resolver's answer.
        source: io::Error,
    },
    /// No address of the name answered; holds the last answer.
    Connect {
        /// What was to be dialled.
        address: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The socket refused an option.
    Options(OptionError),
}

impl fmt::Display for DialError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Resolve { address, source } => write!(f, "cannot resolve {address}: {source}"),
            Self::Connect { address, source } => write!(f, "cannot connect to {address}: {source}"),
            Self::Options(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for DialError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Resolve { source, .. } | Self::Connect { source, .. } => Some(source),
            Self::Options(error) => Some(error),
        }
    }
}

/// Connects to `address` (`host:port`), which is resolved anew each time, and sets the options of a link.
///
/// # Errors
/// When the name has no address, when none of them answers within a second, when the daemon has hardly a descriptor left,
/// or when the kernel refuses an option.
pub async fn dial(address: &str, link: &LinkOptions) -> Result<TcpStream, DialError> {
    let resolve = |source| DialError::Resolve { address: address.to_owned(), source };
    let candidates = tokio::net::lookup_host(address).await.map_err(resolve)?;
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for candidate in candidates {
        let socket = match socket_for(candidate) {
            Ok(socket) => socket,
            Err(error) => {
                last = error;
                continue;
            }
        };
        if let Some(scarce) = descriptors::scarce_for_dials(&socket) {
            last = io::Error::other(scarce.to_string());
            break;
        }
        if let Some(source) = link.source.filter(|source| can_leave_by(*source, candidate.ip()))
            && let Err(error) = socket.bind(SocketAddr::new(source, 0))
        {
            last = error;
            continue;
        }
        // Before it connects: a lost first packet is to be sent again as soon as any other.
        options::apply(&socket, link).map_err(DialError::Options)?;
        match tokio::time::timeout(CONNECT_TIMEOUT, socket.connect(candidate)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => last = error,
            Err(_) => {
                last = io::Error::new(io::ErrorKind::TimedOut, format!("no answer in {CONNECT_TIMEOUT:?}"))
            }
        }
    }
    Err(DialError::Connect { address: address.to_owned(), source: last })
}

fn socket_for(address: SocketAddr) -> io::Result<TcpSocket> {
    match address {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    }
}

/// Whether a connection to this address can have that source: both of one family, and both of this machine or neither.
fn can_leave_by(source: IpAddr, to: IpAddr) -> bool {
    source.is_ipv4() == to.is_ipv4() && source.is_loopback() == to.is_loopback()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_doubles_up_to_one_second_and_begins_anew() {
        let mut backoff = Backoff::default();
        // A number far above every ceiling draws an arbitrary part of it; ceiling_us itself draws the whole.
        let whole = |backoff: &mut Backoff| {
            let ceiling_us = u64::try_from(backoff.ceiling.as_micros()).unwrap();
            backoff.next_wait(ceiling_us)
        };
        let waits: Vec<u128> = (0..8).map(|_| whole(&mut backoff).as_millis()).collect();
        assert_eq!(waits, [20, 40, 80, 160, 320, 640, 1000, 1000]);
        assert_eq!(backoff.next_wait(0), Duration::ZERO);
        backoff.reset();
        assert_eq!(whole(&mut backoff), BACKOFF_FIRST);
    }

    #[tokio::test]
    async fn a_node_that_listens_at_one_address_leaves_by_it_where_it_can() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap().to_string();
        for (source, found) in [
            (None, "127.0.0.1"),
            (Some("127.0.0.2"), "127.0.0.2"),
            // It could not be reached from there, or not over this family: the kernel chooses.
            (Some("192.0.2.1"), "127.0.0.1"),
            (Some("::1"), "127.0.0.1"),
        ] {
            let source = source.map(|source| source.parse().unwrap());
            let stream = dial(&to, &LinkOptions { source, ..LinkOptions::default() }).await.unwrap();
            assert_eq!(stream.local_addr().unwrap().ip().to_string(), found, "{source:?}");
        }
        // An address that is not this machine's is an error with the kernel's word.
        let foreign = LinkOptions { source: Some("192.0.2.1".parse().unwrap()), ..LinkOptions::default() };
        let error = dial("192.0.2.2:1", &foreign).await.unwrap_err();
        assert!(error.to_string().contains("192.0.2.2:1"), "{error}");
    }

    #[tokio::test]
    async fn a_closed_port_and_an_unknown_name_say_what_was_dialled() {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let error = dial(&free.to_string(), &LinkOptions::default()).await.unwrap_err();
        assert!(matches!(&error, DialError::Connect { .. }), "{error:?}");
        assert!(error.to_string().contains(&free.to_string()), "{error}");
        let error = dial("not an address", &LinkOptions::default()).await.unwrap_err();
        assert!(matches!(error, DialError::Resolve { .. }), "{error:?}");
    }
}
