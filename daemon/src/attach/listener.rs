//! Accepting clients, and who they are. One for whom there is no descriptor is told so.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::SocketFlags;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::io::unix::AsyncFd;
use weir_flow::failure::{Failure, FailureCode};
use weir_ipc::attach::socket::send_response;

use super::descriptors;
use super::readiness::registered;
use super::session::last_word;

/// How long accepting rests after the kernel refused it (no file descriptors left, for instance).
const ACCEPT_REST: Duration = Duration::from_millis(100);

/// A client process, as the kernel knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// Its pid, if it is one in the daemon's pid namespace.
    pub pid: Option<u32>,
    /// Its user.
    pub uid: u32,
}

/// A client that has connected and said nothing yet.
#[derive(Debug)]
pub struct Connected {
    /// Its socket, which does not block.
    pub socket: OwnedFd,
    /// Who it is.
    pub credentials: Credentials,
    /// Becomes readable when the process ends. `None` when the kernel gives none: then only the end of the socket
    /// tells, which a forked child of the client can delay.
    pub pidfd: Option<OwnedFd>,
}

/// The attach socket.
#[derive(Debug)]
pub struct AttachListener {
    socket: AsyncFd<OwnedFd>,
    /// Given up for a client that can be accepted by no other means than to be told that it cannot stay.
    spare: Option<OwnedFd>,
}

impl AttachListener {
    /// Wraps a listening socket that does not block.
    ///
    /// # Errors
    /// When there is no tokio runtime with I/O.
    pub fn new(socket: OwnedFd) -> io::Result<Self> {
        Ok(Self { socket: registered(socket)?, spare: spare() })
    }

    /// The next client.
    pub async fn next(&mut self) -> Connected {
        loop {
            let accepted = match self.socket.readable().await {
                Ok(mut guard) => match guard.try_io(accept) {
                    Ok(accepted) => accepted,
                    Err(_would_block) => continue,
                },
                Err(error) => Err(error),
            };
            let error = match accepted {
                Ok(socket) => match descriptors::scarce(&socket) {
                    Some(scarce) => {
                        refuse(&socket, &scarce.to_string());
                        continue;
                    }
                    None => match identify(socket) {
                        Ok(connected) => return connected,
                        Err(error) => error,
                    },
                },
                Err(error) => error,
            };
            tracing::warn!(%error, "cannot accept a client");
            let has_descriptors = !matches!(Errno::from_io_error(&error), Some(Errno::MFILE | Errno::NFILE));
            if has_descriptors || !self.refuse_next(&error) {
                tokio::time::sleep(ACCEPT_REST).await;
            }
        }
    }

    /// Refuses a client for whom there is no descriptor but the spare one. Whether there was one.
    fn refuse_next(&mut self, error: &io::Error) -> bool {
        let Some(given_up) = self.spare.take() else {
            self.spare = spare();
            return false;
        };
        drop(given_up);
        let accepted = accept(&self.socket);
        if let Ok(socket) = &accepted {
            let text = format!(
                "cannot accept a client: {error}; needed: a file descriptor; end some clients, or raise the daemon's \
                 limit of open files (LimitNOFILE, ulimit -n)"
            );
            refuse(socket, &text);
        }
        let was_accepted = accepted.is_ok();
        drop(accepted);
        self.spare = spare();
        was_accepted
    }
}

fn spare() -> Option<OwnedFd> {
    std::fs::File::open("/dev/null").ok().map(OwnedFd::from)
}

/// Says why a client cannot stay. One that does not hear it sees the end of its socket.
fn refuse(socket: &OwnedFd, text: &str) {
    tracing::warn!(text, "a client was refused");
    let _ = send_response(socket, &last_word(&Failure::new(FailureCode::OverBudget, text)), &[]);
}

fn accept(listener: &AsyncFd<OwnedFd>) -> io::Result<OwnedFd> {
    Ok(rustix::net::accept_with(listener.get_ref(), SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?)
}

fn identify(socket: OwnedFd) -> io::Result<Connected> {
    let credentials = credentials(&socket)?;
    let pidfd = credentials
        .pid
        .and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?))
        .and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    Ok(Connected { socket, credentials, pidfd })
}

/// SO_PEERCRED. By way of tokio's stream type, since rustix' answer cannot hold the pid 0 that a client in another pid
/// namespace has.
pub(super) fn credentials(socket: &impl AsFd) -> io::Result<Credentials> {
    let copy = socket.as_fd().try_clone_to_owned()?;
    let found = tokio::net::UnixStream::from_std(UnixStream::from(copy))?.peer_cred()?;
    let pid = found.pid().and_then(|pid| u32::try_from(pid).ok()).filter(|pid| *pid > 0);
    Ok(Credentials { pid, uid: found.uid() })
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};
    use weir_ipc::attach::message::{Response, ResponseBody};

    use super::*;
    use crate::attach::run_dir::{ATTACH_SOCKET, RunDir};

    #[tokio::test]
    async fn a_client_is_known_by_the_kernel() {
        let dir = tempfile::tempdir().unwrap();
        let mut run_dir = RunDir::lock(dir.path()).unwrap();
        let mut listener = AttachListener::new(run_dir.listen().unwrap()).unwrap();
        let client = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
        rustix::net::connect(&client, &SocketAddrUnix::new(dir.path().join(ATTACH_SOCKET)).unwrap()).unwrap();
        let connected = listener.next().await;
        let uid = rustix::process::getuid().as_raw();
        assert_eq!(connected.credentials, Credentials { pid: Some(std::process::id()), uid });
        assert!(connected.pidfd.is_some());
    }

    #[tokio::test]
    async fn the_spare_descriptor_lets_one_more_be_told_and_is_there_again() {
        let dir = tempfile::tempdir().unwrap();
        let mut run_dir = RunDir::lock(dir.path()).unwrap();
        let mut listener = AttachListener::new(run_dir.listen().unwrap()).unwrap();
        let path = dir.path().join(ATTACH_SOCKET);
        for _ in 0..2 {
            let client = weir_ipc::attach::socket::connect(&path).unwrap();
            assert!(listener.refuse_next(&Errno::MFILE.into()));
            let (Response { body, .. }, _) = weir_ipc::attach::socket::receive_response(&client).unwrap();
            let ResponseBody::Detached { code, text } = body else { panic!("{body:?}") };
            assert!(code == "over_budget" && text.contains("needed: a file descriptor"), "{code}: {text}");
        }
        assert!(!listener.refuse_next(&Errno::MFILE.into()), "nobody waits");
        listener.spare = None;
        let _client = weir_ipc::attach::socket::connect(&path).unwrap();
        assert!(!listener.refuse_next(&Errno::MFILE.into()), "there is no spare one");
        assert!(listener.refuse_next(&Errno::MFILE.into()), "it was opened again");
    }
}
