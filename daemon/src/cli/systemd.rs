//! What a daemon and systemd say to each other: the notification protocol (`Type=notify`), one datagram to the socket that
//! `NOTIFY_SOCKET` names; and the store of descriptors, in which listening sockets outlive a daemon.

use std::ffi::OsStr;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, sendmsg_addr};
use tokio::time::MissedTickBehavior;

use crate::io::passed;
use crate::node::NodeHandle;

/// The daemon is ready.
pub(super) const READY: &str = "READY=1";

/// The daemon reads its configuration anew, until it is [`READY`] again. With the time of the monotonic clock, by which the
/// manager tells this reload from others.
pub(super) fn reloading() -> String {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    format!("RELOADING=1\nMONOTONIC_USEC={}", now.tv_sec.saturating_mul(1_000_000) + now.tv_nsec / 1000)
}

/// The daemon has begun to stop.
pub(super) const STOPPING: &str = "STOPPING=1";

/// The daemon goes on.
const WATCHDOG: &str = "WATCHDOG=1";

/// Most descriptors that are taken from the service manager.
const PASSED_MAX: usize = 64;

/// Time between two looks at the node where no watchdog asks for shorter ones.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);

/// A state with a line for people behind it, as `systemctl status` shows it.
pub(super) fn with_status(state: &str, line: &str) -> String {
    format!("{state}\nSTATUS={}", line.replace(['\n', '\r'], " "))
}

/// Tells the service manager how the node is, until it ends: a line when it has changed, and, if there is a watchdog,
/// that the daemon goes on. The watchdog is fed only while every shard answers, and by the node's own answer: one that is
/// stuck, or the control thread, lets it starve.
pub(super) async fn keep_told(node: NodeHandle) {
    if std::env::var_os("NOTIFY_SOCKET").is_none_or(|name| name.is_empty()) {
        return;
    }
    let variable = |name| std::env::var(name).ok();
    let watchdog = watchdog(variable("WATCHDOG_USEC"), variable("WATCHDOG_PID"), std::process::id());
    let mut ticks = tokio::time::interval(watchdog.map_or(LOOK_INTERVAL, |limit| limit / 2));
    // After a pause one is enough.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut told = String::new();
    loop {
        ticks.tick().await;
        let Ok(beat) = node.beat().await else { return };
        let is_fed = watchdog.is_some() && beat.silent.is_empty();
        let state = if is_fed { WATCHDOG } else { "" };
        if beat.line != told {
            notify(with_status(state, &beat.line).trim_start());
            told = beat.line;
        } else if is_fed {
            notify(state);
        }
        if watchdog.is_some() && !beat.silent.is_empty() {
            tracing::warn!(shards = ?beat.silent, "the watchdog is not fed: shards do not answer");
        }
    }
}

/// How long the service manager waits for a sign of life from this process; none if it does not.
fn watchdog(microseconds: Option<String>, pid: Option<String>, own: u32) -> Option<Duration> {
    // Without a process named, whoever has the variable is meant.
    if pid.is_some_and(|pid| pid.parse() != Ok(own)) {
        return None;
    }
    let microseconds: u64 = microseconds?.parse().ok()?;
    (microseconds >= 2).then(|| Duration::from_micros(microseconds))
}

/// Tells the service manager about a change of state. Does nothing when there is none.
pub(super) fn notify(state: &str) {
    tell(state, &[]);
}

fn tell(state: &str, descriptors: &[BorrowedFd<'_>]) -> bool {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else {
        return false;
    };
    let sent = send(&socket, state, descriptors);
    if let Err(e) = &sent {
        tracing::warn!(error = %e, socket = %socket.display(), state, "service manager not told");
    }
    sent.is_ok()
}

fn send(socket: &OsStr, state: &str, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let address = match socket.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddrUnix::new_abstract_name(name)?,
        None => SocketAddrUnix::new(socket)?,
    };
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::other("more than one descriptor"));
    }
    let from = UnixDatagram::unbound()?;
    let parts = [IoSlice::new(state.as_bytes())];
    let sent = sendmsg_addr(&from, &address, &parts, &mut ancillary, SendFlags::empty())?;
    if sent == state.len() { Ok(()) } else { Err(io::Error::other(format!("{sent} bytes sent"))) }
}

/// The descriptors that the service manager has kept for this process. To be called before anything is opened.
pub(super) fn passed() -> Vec<(String, OwnedFd)> {
    let variable = |name| std::env::var(name).ok();
    let own = std::process::id();
    let names = passed_names(variable("LISTEN_PID"), variable("LISTEN_FDS"), variable("LISTEN_FDNAMES"), own);
    let count = u32::try_from(names.len()).unwrap_or(u32::MAX);
    names.into_iter().zip(passed::take(count)).filter_map(|(name, socket)| Some((name, socket?))).collect()
}

/// The names of the descriptors that were passed to this process: one each, empty where it has none.
fn passed_names(pid: Option<String>, count: Option<String>, names: Option<String>, own: u32) -> Vec<String> {
    if pid.is_none_or(|pid| pid.parse() != Ok(own)) {
        return Vec::new();
    }
    let count: usize = count.and_then(|count| count.parse().ok()).unwrap_or(0).min(PASSED_MAX);
    let names = names.unwrap_or_default();
    let mut names = names.split(':').map(str::to_owned);
    (0..count).map(|_| names.next().unwrap_or_default()).collect()
}

/// Has the service manager keep a listening socket for the next daemon, under a name. Whether it was told so; it says
/// nothing when it keeps none.
pub(super) fn keep(name: &str, socket: BorrowedFd<'_>) -> bool {
    tell(&format!("FDSTORE=1\nFDNAME={name}"), &[socket])
}

/// Has the service manager let go of what it keeps under these names.
pub(super) fn forget(names: Vec<String>) {
    // A name that cannot be said is one that no daemon has given.
    for name in names.iter().filter(|name| !name.is_empty() && !name.contains(char::is_control)) {
        notify(&format!("FDSTOREREMOVE=1\nFDNAME={name}"));
    }
}

#[cfg(test)]
mod tests {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::SocketAddr;

    use super::*;

    #[test]
    fn a_watchdog_is_one_for_this_process() {
        let found = |microseconds: Option<&str>, pid: Option<&str>| {
            watchdog(microseconds.map(str::to_owned), pid.map(str::to_owned), 7)
        };
        assert_eq!(found(Some("10000000"), Some("7")), Some(Duration::from_secs(10)));
        assert_eq!(found(Some("400000"), None), Some(Duration::from_millis(400)));
        for (microseconds, pid) in
            [(Some("1"), None), (Some("x"), None), (Some("9"), Some("8")), (None, Some("7"))]
        {
            assert_eq!(found(microseconds, pid), None, "{microseconds:?} {pid:?}");
        }
    }

    #[test]
    fn descriptors_are_those_for_this_process_each_with_its_name() {
        let found = |pid: &str, count: &str, names: Option<&str>| {
            passed_names(Some(pid.to_owned()), Some(count.to_owned()), names.map(str::to_owned), 7)
        };
        assert_eq!(found("7", "3", Some("a:b")), ["a", "b", ""]);
        assert_eq!(found("7", "1", Some("a:b")), ["a"]);
        assert_eq!(found("7", "1", None), [""]);
        assert_eq!(found("7", "999999999", None).len(), PASSED_MAX);
        for (pid, count) in [("8", "1"), ("", "1"), ("7", "-1"), ("7", "")] {
            assert!(found(pid, count, Some("a")).is_empty(), "{pid} {count}");
        }
        assert!(passed_names(None, Some("1".to_owned()), None, 7).is_empty());
    }

    #[test]
    fn a_status_is_one_line() {
        assert_eq!(with_status(READY, "a\nb"), "READY=1\nSTATUS=a b");
    }

    #[test]
    fn a_state_arrives_at_a_socket_with_a_path_and_without() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let by_path = UnixDatagram::bind(&path).unwrap();
        send(path.as_os_str(), READY, &[]).unwrap();
        let name = format!("weir-notify-test-{}", std::process::id());
        let by_name = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        send(OsStr::new(&format!("@{name}")), STOPPING, &[]).unwrap();
        for (socket, expected) in [(by_path, READY), (by_name, STOPPING)] {
            let mut bytes = [0; 64];
            let received = socket.recv(&mut bytes).unwrap();
            assert_eq!(&bytes[..received], expected.as_bytes());
        }
        assert!(send(dir.path().join("missing").as_os_str(), READY, &[]).is_err());
    }
}
