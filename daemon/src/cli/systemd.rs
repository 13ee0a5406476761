//! The notification protocol of systemd (`Type=notify`): one datagram to the socket that `NOTIFY_SOCKET` names.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use tokio::time::MissedTickBehavior;

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
    fn a_status_is_one_line() {
        assert_eq!(with_status(READY, "a\nb"), "READY=1\nSTATUS=a b");
    }

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
