//! Sending and receiving messages, with their descriptors.
//!
//! Every function works on a blocking and on a non-blocking socket: what would block is [`AttachError::WouldBlock`].

use std::fmt;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::message::{LentRegion, Request, Response};
use super::{DESCRIPTORS_MAX, MESSAGE_BYTES_MAX};

/// Most characters of what is wrong with a message.
const MALFORMED_CHARS_MAX: usize = 200;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// Why a message was not sent or received.
#[derive(Debug, PartialEq, Eq)]
pub enum AttachError {
    /// The other side is gone.
    Closed,
    /// Nothing there, or no room, right now.
    WouldBlock,
    /// The message has more bytes than [`MESSAGE_BYTES_MAX`].
    TooLong,
    /// The message has more descriptors than [`DESCRIPTORS_MAX`], or, at the daemon, any.
    TooManyDescriptors,
    /// The message is not one of ours; holds why.
    Malformed(String),
    /// The kernel refused.
    Os {
        /// The system call.
        call: &'static str,
        /// Its error.
        errno: Errno,
    },
}

impl fmt::Display for AttachError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("the other side of the attach socket is gone"),
            Self::WouldBlock => f.write_str("the attach socket is not ready"),
            Self::TooLong => {
                write!(f, "attach message is too long; needed: at most {MESSAGE_BYTES_MAX} bytes")
            }
            Self::TooManyDescriptors => {
                write!(
                    f,
                    "attach message has descriptors that nobody wants; needed: at most {DESCRIPTORS_MAX} from \
                     the daemon, none from a client"
                )
            }
            Self::Malformed(text) => write!(f, "attach message is malformed: {text}"),
            Self::Os { call, errno } => write!(f, "{call} on the attach socket: {errno}"),
        }
    }
}

impl std::error::Error for AttachError {}

impl AttachError {
    fn os(call: &'static str) -> impl Fn(Errno) -> Self {
        move |errno| match errno {
            Errno::AGAIN => Self::WouldBlock,
            Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN => Self::Closed,
            Errno::MSGSIZE => Self::TooLong,
            errno => Self::Os { call, errno },
        }
    }
}

/// Whose process is at the other end, as the kernel knew it when it connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Process.
    pub pid: i32,
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

fn socket(flags: SocketFlags) -> Result<OwnedFd, AttachError> {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .map_err(AttachError::os("socket"))
}

/// Listens at `path`, which must not exist, and which gets the permissions `mode` before anybody can connect. The
/// listener does not block.
///
/// # Errors
/// The kernel refuses.
pub fn listen(path: &Path, mode: u32) -> Result<OwnedFd, AttachError> {
    let address = SocketAddrUnix::new(path).map_err(AttachError::os("bind"))?;
    let listener = socket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
    rustix::net::bind(&listener, &address).map_err(AttachError::os("bind"))?;
    rustix::fs::chmod(path, Mode::from_raw_mode(mode)).map_err(AttachError::os("chmod"))?;
    rustix::net::listen(&listener, BACKLOG).map_err(AttachError::os("listen"))?;
    Ok(listener)
}

/// Accepts a connection, which does not block, and says whose it is.
///
/// # Errors
/// None waits, or the kernel refuses.
pub fn accept(listener: impl AsFd) -> Result<(OwnedFd, Peer), AttachError> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let connection = rustix::net::accept_with(listener, flags).map_err(AttachError::os("accept"))?;
    let peer = rustix::net::sockopt::socket_peercred(&connection).map_err(AttachError::os("getsockopt"))?;
    let (uid, gid) = (peer.uid.as_raw(), peer.gid.as_raw());
    Ok((connection, Peer { pid: peer.pid.as_raw_nonzero().get(), uid, gid }))
}

/// Connects to a daemon's socket. The connection blocks.
///
/// # Errors
/// The kernel refuses: no such path, nobody listens there, not allowed.
pub fn connect(path: &Path) -> Result<OwnedFd, AttachError> {
    let address = SocketAddrUnix::new(path).map_err(AttachError::os("connect"))?;
    let connection = socket(SocketFlags::CLOEXEC)?;
    rustix::net::connect(&connection, &address).map_err(AttachError::os("connect"))?;
    Ok(connection)
}

/// Sends a client's request.
///
/// # Errors
/// See [`AttachError`].
pub fn send_request(connection: impl AsFd, request: &Request) -> Result<(), AttachError> {
    send(connection.as_fd(), request, &[])
}

/// Receives a client's request. Descriptors that a client sends are refused without being taken in.
///
/// # Errors
/// See [`AttachError`].
pub fn receive_request(connection: impl AsFd) -> Result<Request, AttachError> {
    let mut control = RecvAncillaryBuffer::default();
    receive(connection.as_fd(), &mut control)
}

/// Sends the daemon's response with its descriptors, at most [`DESCRIPTORS_MAX`].
///
/// # Errors
/// See [`AttachError`].
pub fn send_response(
    connection: impl AsFd,
    response: &Response,
    descriptors: &[BorrowedFd<'_>],
) -> Result<(), AttachError> {
    send(connection.as_fd(), response, descriptors)
}

/// Receives the daemon's response with its descriptors, in the order sent.
///
/// # Errors
/// See [`AttachError`].
pub fn receive_response(connection: impl AsFd) -> Result<(Response, Vec<OwnedFd>), AttachError> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let response = receive(connection.as_fd(), &mut control)?;
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = message {
            descriptors.extend(fds);
        }
    }
    Ok((response, descriptors))
}

/// The region socket of a gate: the daemon's end, and the client's. Neither blocks.
///
/// # Errors
/// The kernel refuses.
pub fn region_pair() -> Result<(OwnedFd, OwnedFd), AttachError> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .map_err(AttachError::os("socketpair"))
}

/// Sends a producer's region to the client of a gate, for reading.
///
/// # Errors
/// See [`AttachError`].
pub fn send_region(
    socket: impl AsFd,
    region: &LentRegion,
    descriptor: BorrowedFd<'_>,
) -> Result<(), AttachError> {
    send(socket.as_fd(), region, &[descriptor])
}

/// Receives the next region.
///
/// # Errors
/// See [`AttachError`]: [`AttachError::WouldBlock`] if there is none.
pub fn receive_region(socket: impl AsFd) -> Result<(LentRegion, OwnedFd), AttachError> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let region = receive(socket.as_fd(), &mut control)?;
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = message {
            descriptors.extend(fds);
        }
    }
    match <[OwnedFd; 1]>::try_from(descriptors) {
        Ok([descriptor]) => Ok((region, descriptor)),
        Err(found) => Err(AttachError::Malformed(format!("{} descriptors; needed: 1", found.len()))),
    }
}

fn send(
    connection: BorrowedFd<'_>,
    message: &impl Serialize,
    descriptors: &[BorrowedFd<'_>],
) -> Result<(), AttachError> {
    let bytes = serde_json::to_vec(message).map_err(|error| AttachError::Malformed(error.to_string()))?;
    if bytes.len() > MESSAGE_BYTES_MAX {
        return Err(AttachError::TooLong);
    }
    if descriptors.len() > DESCRIPTORS_MAX {
        return Err(AttachError::TooManyDescriptors);
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(AttachError::TooManyDescriptors);
    }
    // NOSIGNAL: a client that is gone is an error, not a signal. A packet goes whole or not at all.
    let parts = [IoSlice::new(&bytes)];
    loop {
        match rustix::net::sendmsg(connection, &parts, &mut control, SendFlags::NOSIGNAL) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(AttachError::os("sendmsg")(errno)),
        }
    }
}

fn receive<T: DeserializeOwned>(
    connection: BorrowedFd<'_>,
    control: &mut RecvAncillaryBuffer<'_>,
) -> Result<T, AttachError> {
    let mut bytes = vec![0; MESSAGE_BYTES_MAX];
    let mut was_reset = false;
    let received = loop {
        let mut parts = [IoSliceMut::new(&mut bytes)];
        match rustix::net::recvmsg(connection, &mut parts, control, RecvFlags::CMSG_CLOEXEC) {
            Ok(received) => break received,
            Err(Errno::INTR) => {}
            // The other side left with something unread. That is reported before what it had said, and once.
            Err(Errno::CONNRESET) if !was_reset => was_reset = true,
            Err(errno) => return Err(AttachError::os("recvmsg")(errno)),
        }
    };
    if received.flags.contains(ReturnFlags::CTRUNC) {
        return Err(AttachError::TooManyDescriptors);
    }
    if received.flags.contains(ReturnFlags::TRUNC) {
        return Err(AttachError::TooLong);
    }
    match bytes.get(..received.bytes) {
        None | Some([]) => Err(AttachError::Closed),
        Some(bytes) => serde_json::from_slice(bytes).map_err(|error| AttachError::Malformed(shown(&error))),
    }
}

/// What is wrong with a message, in one short line: it may quote the message.
fn shown(error: &serde_json::Error) -> String {
    let text: String = error
        .to_string()
        .chars()
        .take(MALFORMED_CHARS_MAX)
        .map(|character| if character.is_control() { '?' } else { character })
        .collect();
    text
}

#[cfg(test)]
mod tests;
