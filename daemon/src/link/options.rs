//! Socket options of a link, set on both the dialled and the accepted end.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};

use crate::io::retransmit::set_retransmit_max;

/// Unsent bytes that the kernel may hold before a socket counts as not writable, in bytes. It bounds how long a
/// control frame waits behind data that was already handed over.
pub const NOTSENT_BYTES: u32 = 64 * 1024;

/// Longest wait between two transmissions of the same bytes, where the kernel can bound it (6.15). It doubles otherwise:
/// after an outage of 3 s a connection would be silent for up to 3 s more.
const RETRANSMIT_MAX: Duration = Duration::from_secs(1);

/// Idle time before the first keepalive probe.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(5);

/// Time between keepalive probes.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(1);

/// Unanswered keepalive probes until the kernel resets the connection.
const KEEPALIVE_PROBES: u32 = 5;

/// What an operator may set about the sockets of links.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkOptions {
    /// TCP congestion control (`link.congestion`). `None` leaves the system's default.
    pub congestion: Option<String>,
    /// How long sent bytes may stay unacknowledged until the kernel breaks the connection. At least 1 ms.
    pub user_timeout: Duration,
    /// Where this node listens, if that is one address and not all of the machine. What it dials leaves by the same: a peer
    /// that has no other address of it dials where its links come from.
    pub source: Option<IpAddr>,
}

impl Default for LinkOptions {
    fn default() -> Self {
        Self { congestion: None, user_timeout: Duration::from_secs(5), source: None }
    }
}

/// An option that the kernel did not take.
#[derive(Debug)]
pub enum OptionError {
    /// The congestion control is not loaded, or this process may not choose it.
    Congestion {
        /// What was asked for.
        wanted: String,
        /// What this process may choose, as the kernel lists it.
        allowed: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// Any other option.
    Os {
        /// Its name in tcp(7) or socket(7).
        option: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
}

impl fmt::Display for OptionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Congestion { wanted, allowed, source } => write!(
                f,
                "link.congestion = {wanted:?} was refused by the kernel ({source}); needed: one of {allowed}; \
                 load it with `modprobe tcp_{wanted}` and add it to sysctl net.ipv4.tcp_allowed_congestion_control"
            ),
            Self::Os { option, source } => {
                write!(f, "cannot set {option} on a link socket: {source}")
            }
        }
    }
}

impl std::error::Error for OptionError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Congestion { source, .. } | Self::Os { source, .. } => Some(source),
        }
    }
}

/// Sets every option of a link on `socket`.
///
/// # Errors
/// The first option that the kernel refuses. A refused congestion control is an operator's mistake: it is found
/// once at start by [`check`], so that no link breaks over it later.
pub fn apply(socket: &impl AsFd, options: &LinkOptions) -> Result<(), OptionError> {
    let os = |option| move |source| OptionError::Os { option, source };
    set_retransmit_max(socket.as_fd(), RETRANSMIT_MAX).map_err(os("TCP_RTO_MAX_MS"))?;
    let socket = SockRef::from(socket);
    socket.set_tcp_nodelay(true).map_err(os("TCP_NODELAY"))?;
    socket.set_tcp_notsent_lowat(NOTSENT_BYTES).map_err(os("TCP_NOTSENT_LOWAT"))?;
    socket.set_tcp_user_timeout(Some(options.user_timeout)).map_err(os("TCP_USER_TIMEOUT"))?;
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_IDLE)
        .with_interval(KEEPALIVE_INTERVAL)
        .with_retries(KEEPALIVE_PROBES);
    socket.set_tcp_keepalive(&keepalive).map_err(os("SO_KEEPALIVE"))?;
    if let Some(wanted) = &options.congestion {
        socket.set_tcp_congestion(wanted.as_bytes()).map_err(|source| OptionError::Congestion {
            wanted: wanted.clone(),
            allowed: allowed_congestion(),
            source,
        })?;
    }
    Ok(())
}

/// Tries the options on a socket that is never connected.
///
/// # Errors
/// As [`apply`]; also when no socket can be had.
pub fn check(options: &LinkOptions) -> Result<(), OptionError> {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)
        .map_err(|source| OptionError::Os { option: "socket(AF_INET, SOCK_STREAM)", source })?;
    apply(&socket, options)
}

/// What the kernel lets an unprivileged process choose, in the kernel's own words.
fn allowed_congestion() -> String {
    std::fs::read_to_string("/proc/sys/net/ipv4/tcp_allowed_congestion_control")
        .map_or_else(|_| "(unknown: /proc/sys is not readable)".to_owned(), |text| text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_reaches_the_socket() {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        apply(&socket, &LinkOptions { user_timeout: Duration::from_millis(1500), ..LinkOptions::default() })
            .unwrap();
        assert!(socket.tcp_nodelay().unwrap());
        assert_eq!(socket.tcp_notsent_lowat().unwrap(), NOTSENT_BYTES);
        assert_eq!(socket.tcp_user_timeout().unwrap(), Some(Duration::from_millis(1500)));
        assert!(socket.keepalive().unwrap());
        assert_eq!(socket.tcp_keepalive_retries().unwrap(), KEEPALIVE_PROBES);
        match crate::io::retransmit::retransmit_max(socket.as_fd()) {
            Some(max) => assert_eq!(max, RETRANSMIT_MAX),
            None => println!("not run here: the bound on retransmissions (needs kernel 6.15)"),
        }
    }

    #[test]
    fn an_allowed_congestion_control_is_set() {
        let allowed = allowed_congestion();
        let wanted = allowed.split_whitespace().next().unwrap().to_owned();
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        apply(&socket, &LinkOptions { congestion: Some(wanted.clone()), ..LinkOptions::default() }).unwrap();
        let found = socket.tcp_congestion().unwrap();
        assert!(found.starts_with(wanted.as_bytes()), "{found:?}");
    }

    #[test]
    fn an_unknown_congestion_control_names_the_allowed_ones() {
        let options = LinkOptions { congestion: Some("nonesuch".to_owned()), ..LinkOptions::default() };
        let error = check(&options).unwrap_err().to_string();
        assert!(error.contains("link.congestion = \"nonesuch\""), "{error}");
        assert!(error.contains(&allowed_congestion()), "{error}");
    }
}
