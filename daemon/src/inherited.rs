//! Listening sockets that the service manager has kept from an earlier daemon, so that a restart refuses nobody: who
//! connects meanwhile waits in their queues.
//!
//! Each is looked at before it is used. One that does not fit the configuration is ended, for every process that has it,
//! so that its place is free: the manager still has a descriptor of it at that moment.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use rustix::net::sockopt::{socket_acceptconn, socket_type};
use rustix::net::{Shutdown, SocketType};

/// The socket for links from other nodes.
pub const LINKS: &str = "weir-links";

/// The socket that clients attach to.
pub const ATTACH: &str = "weir-attach";

/// The socket that commands ask.
pub const CONTROL: &str = "weir-control";

/// The address on which metrics are answered.
pub const METRICS: &str = "weir-metrics";

/// Every name.
const NAMES: [&str; 4] = [LINKS, ATTACH, CONTROL, METRICS];

/// Sockets of an earlier daemon that nobody has taken yet.
#[derive(Debug, Default)]
pub struct Inherited {
    sockets: BTreeMap<&'static str, OwnedFd>,
    unfit: Vec<String>,
}

impl Inherited {
    /// Those of these names. A name that no daemon gives, and a second socket of one name, are of no use.
    #[must_use]
    pub fn of(named: impl IntoIterator<Item = (String, OwnedFd)>) -> Self {
        let mut inherited = Self::default();
        for (name, socket) in named {
            match NAMES.into_iter().find(|known| *known == name) {
                Some(known) if !inherited.sockets.contains_key(known) => {
                    inherited.sockets.insert(known, socket);
                }
                known => {
                    let why =
                        if known.is_some() { "there are two of it" } else { "no daemon has named it so" };
                    // Not ended: it may be somebody's.
                    tracing::warn!(name, why, "a descriptor of the service manager is not used");
                    inherited.unfit.push(name);
                }
            }
        }
        inherited
    }

    /// The socket of this name, if there is one and `check` finds nothing wrong with it.
    pub fn take(
        &mut self,
        name: &'static str,
        check: impl FnOnce(&OwnedFd) -> Result<(), String>,
    ) -> Option<OwnedFd> {
        let socket = self.sockets.remove(name)?;
        match check(&socket) {
            Ok(()) => Some(socket),
            Err(why) => {
                tracing::warn!(name, why, "a listening socket of the earlier daemon is not used");
                self.end(name, &socket);
                None
            }
        }
    }

    /// Ends the socket of this name, if there is one, unless `check` finds nothing wrong with it: before what is to be made may
    /// need its place.
    pub fn retain(&mut self, name: &'static str, check: impl FnOnce(&OwnedFd) -> Result<(), String>) {
        if let Some(socket) = self.take(name, check) {
            self.sockets.insert(name, socket);
        }
    }

    /// Gives up what nobody has taken: of no use any more, as an address that the configuration does not have.
    pub fn give_up(&mut self) {
        for (name, socket) in std::mem::take(&mut self.sockets) {
            tracing::info!(name, "a listening socket of the earlier daemon is not needed any more");
            self.end(name, &socket);
        }
    }

    fn end(&mut self, name: &str, socket: &OwnedFd) {
        // Who is in its queue is refused now, and not when the manager lets go of it.
        let _ = rustix::net::shutdown(socket, Shutdown::Both);
        self.unfit.push(name.to_owned());
    }

    /// The names of what was of no use since the last call: the manager is to let go of them.
    pub fn unfit(&mut self) -> Vec<String> {
        std::mem::take(&mut self.unfit)
    }
}

/// Whether this is a listening socket of this kind.
///
/// # Errors
/// What it is instead.
pub fn check_listening(socket: &OwnedFd, kind: SocketType) -> Result<(), String> {
    match (socket_type(socket), socket_acceptconn(socket)) {
        (Ok(found), Ok(true)) if found == kind => Ok(()),
        (Ok(_), Ok(true)) => Err("it is a socket of another type".to_owned()),
        (Ok(_), Ok(false)) => Err("it does not listen".to_owned()),
        (Err(errno), _) | (_, Err(errno)) => Err(format!("it is no socket: {errno}")),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream, UdpSocket};

    use super::*;

    fn listening() -> (OwnedFd, OwnedFd, std::net::SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        (listener.try_clone().unwrap().into(), listener.into(), address)
    }

    #[test]
    fn a_socket_is_taken_by_its_name_once_and_what_does_not_fit_is_ended_for_all() {
        let ((links, _), (second, _), (metrics, kept, address)) = {
            let all = [listening(), listening(), listening()];
            let [(a, b, _), (c, d, _), (e, f, address)] = all;
            ((a, b), (c, d), (e, f, address))
        };
        let (stranger, _kept, _) = listening();
        let named = [(LINKS, links), (LINKS, second), ("sshd", stranger), (METRICS, metrics)];
        let mut inherited = Inherited::of(named.map(|(name, socket)| (name.to_owned(), socket)));
        assert_eq!(inherited.unfit(), [LINKS, "sshd"]);
        let check = |socket: &OwnedFd| check_listening(socket, SocketType::STREAM);
        assert!(inherited.take(LINKS, check).is_some());
        assert!(inherited.take(LINKS, check).is_none() && inherited.take(CONTROL, check).is_none());
        TcpStream::connect(address).unwrap();
        assert!(inherited.take(METRICS, |_| Err("another address".to_owned())).is_none());
        assert_eq!(inherited.unfit(), [METRICS]);
        // The manager has it open at this moment, and its place is free all the same.
        TcpStream::connect(address).unwrap_err();
        drop(kept);
        inherited.give_up();
        assert!(inherited.unfit().is_empty());
    }

    #[test]
    fn what_nobody_takes_is_given_up() {
        let (metrics, _kept, address) = listening();
        let mut inherited = Inherited::of([(METRICS.to_owned(), metrics)]);
        inherited.give_up();
        assert_eq!(inherited.unfit(), [METRICS]);
        TcpStream::connect(address).unwrap_err();
    }

    #[test]
    fn what_fits_is_left_to_be_taken_and_the_place_of_what_does_not_is_free_at_once() {
        let ((links, _links, _), (metrics, _metrics, address)) = (listening(), listening());
        let named = [(LINKS, links), (METRICS, metrics)];
        let mut inherited = Inherited::of(named.map(|(name, socket)| (name.to_owned(), socket)));
        inherited.retain(CONTROL, |_| Err("there is none".to_owned()));
        inherited.retain(LINKS, |_| Ok(()));
        inherited.retain(METRICS, |_| Err("another address".to_owned()));
        assert_eq!(inherited.unfit(), [METRICS]);
        // The manager still has a descriptor of it.
        TcpListener::bind(address).unwrap();
        assert!(inherited.take(LINKS, |_| Ok(())).is_some());
    }

    #[test]
    fn what_is_no_listening_socket_is_named() {
        let (listener, _kept, address) = listening();
        let stream: OwnedFd = TcpStream::connect(address).unwrap().into();
        let datagrams: OwnedFd = UdpSocket::bind("127.0.0.1:0").unwrap().into();
        let file: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
        let why = |socket: &OwnedFd| check_listening(socket, SocketType::STREAM).unwrap_err();
        assert_eq!(check_listening(&listener, SocketType::STREAM), Ok(()));
        assert!(check_listening(&listener, SocketType::SEQPACKET).unwrap_err().contains("another type"));
        assert!(why(&stream).contains("does not listen") && why(&datagrams).contains("does not listen"));
        assert!(why(&file).contains("no socket"));
    }
}
