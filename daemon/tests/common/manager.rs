//! The end of a service manager: what a daemon tells it, and the descriptors that it keeps.
#![allow(dead_code, reason = "each test file uses its own part")]

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use crate::common::{Daemon, DaemonOptions, PATIENCE, free_address};

/// Longer than a daemon lets a watchdog wait, even when the machine is loaded; and than a shard may be silent.
const SILENCE: Duration = Duration::from_secs(8);

/// The end of a service manager.
pub(crate) struct Manager(UnixDatagram);

impl Manager {
    pub(crate) fn listen(directory: &Path) -> Self {
        let socket = UnixDatagram::bind(directory.join("notify")).expect("a socket");
        socket.set_read_timeout(Some(SILENCE)).expect("a timeout");
        Self(socket)
    }

    /// What is said next; none if nothing is for a while.
    pub(crate) fn next(&self) -> Option<String> {
        self.next_with_descriptors().map(|(said, _)| said)
    }

    /// What is said next, with the descriptors that came with it.
    pub(crate) fn next_with_descriptors(&self) -> Option<(String, Vec<OwnedFd>)> {
        let mut bytes = [0; 4096];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let length = recvmsg(&self.0, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC).ok()?.bytes;
        let descriptors = ancillary.drain().flat_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => descriptors.collect::<Vec<OwnedFd>>(),
            _ => Vec::new(),
        });
        let descriptors = descriptors.collect();
        Some((String::from_utf8(bytes[..length].to_vec()).expect("UTF-8"), descriptors))
    }

    /// Waits until something is said that begins like this.
    pub(crate) fn expect(&self, beginning: &str) -> String {
        let began = Instant::now();
        loop {
            assert!(began.elapsed() < PATIENCE, "{beginning} was not said");
            match self.next() {
                Some(said) if said.starts_with(beginning) => return said,
                Some(_) => {}
                None => panic!("{beginning} was not said for {SILENCE:?}"),
            }
        }
    }
}

/// A daemon of this manager, whose watchdog waits for that long.
pub(crate) fn managed(directory: &Path, watchdog: Option<Duration>) -> Daemon {
    let socket = format!("NOTIFY_SOCKET={}", directory.join("notify").display());
    let limit = watchdog.map(|limit| format!("WATCHDOG_USEC={}", limit.as_micros()));
    let mut prefix = vec!["env", &socket];
    prefix.extend(limit.as_deref());
    let listen = free_address();
    Daemon::spawn(directory, &DaemonOptions { prefix: &prefix, ..DaemonOptions::new("a", &listen) })
}
