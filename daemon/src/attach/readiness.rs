//! Waiting for file descriptors that tokio has no type for: packet sockets and pidfds.

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::unix::AsyncFd;

/// Registers a descriptor, which must not block, with the runtime.
///
/// # Errors
/// When there is no tokio runtime with I/O, and when the kernel cannot poll the descriptor.
pub(super) fn registered(descriptor: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    #[expect(
        deprecated,
        reason = "what is unsound about it is a type whose descriptor changes; an OwnedFd has one for life"
    )]
    AsyncFd::new(descriptor)
}
