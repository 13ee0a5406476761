//! The notification protocol of systemd (`Type=notify`): one datagram to the socket that `NOTIFY_SOCKET` names.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The daemon is ready.
pub(super) const READY: &str = "READY=1";

/// The daemon has begun to stop.
pub(super) const STOPPING: &str = "STOPPING=1";

/// Tells the service manager about a change of state. Does nothing when there is none.
pub(super) fn notify(state: &str) {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else { return };
    if let Err(e) = send(&socket, state) {
        tracing::warn!(error = %e, socket = %socket.display(), state, "service manager not told");
    }
}

fn send(socket: &OsStr, state: &str) -> io::Result<()> {
    let address = match socket.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(socket)?,
    };
    let sent = UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address)?;
    if sent == state.len() { Ok(()) } else { Err(io::Error::other(format!("{sent} bytes sent"))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_arrives_at_a_socket_with_a_path_and_without() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let by_path = UnixDatagram::bind(&path).unwrap();
        send(path.as_os_str(), READY).unwrap();
        let name = format!("weir-notify-test-{}", std::process::id());
        let by_name = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        send(OsStr::new(&format!("@{name}")), STOPPING).unwrap();
        for (socket, expected) in [(by_path, READY), (by_name, STOPPING)] {
            let mut bytes = [0; 64];
            let received = socket.recv(&mut bytes).unwrap();
            assert_eq!(&bytes[..received], expected.as_bytes());
        }
        assert!(send(dir.path().join("missing").as_os_str(), READY).is_err());
    }
}
