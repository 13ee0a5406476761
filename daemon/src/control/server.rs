//! Accepting connections on the control socket. A client that is slow, silent or wrong costs one of a few places for
//! a few seconds and nothing else.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::{AbortHandle, JoinSet};

use super::routes;
use super::snapshot::SnapshotSource;

/// Longest time that the daemon takes to make one answer.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Most connections at a time. When there are as many, the oldest that has not asked yet is closed; if all have asked,
/// more wait in the listener's queue until one is answered.
const CONNECTIONS_MAX: usize = 32;

/// Longest life of a connection: it carries one request.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(15);

/// Longest time that a client takes for the head of its request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);

/// Pause after a connection could not be accepted, as when there are no file descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Who may ask: owner and group.
const SOCKET_MODE: u32 = 0o660;

/// The control socket, listening. Dropped: it is closed, its file stays for the owner of the run directory.
#[derive(Debug)]
pub struct ControlServer {
    listener: UnixListener,
    path: PathBuf,
}

impl ControlServer {
    /// Listens on `path` with mode 0660, in place of what a dead daemon left there. The caller holds the lock of the
    /// run directory. Must be called inside a tokio runtime with I/O.
    ///
    /// # Errors
    /// What the kernel answers when the socket is made.
    pub fn bind(path: &Path) -> io::Result<Self> {
        match std::fs::remove_file(path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let listener = UnixListener::bind(path)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(SOCKET_MODE))?;
        Ok(Self { listener, path: path.to_owned() })
    }

    /// Where it listens.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Answers requests until dropped.
    pub async fn serve<S: SnapshotSource>(self, source: S) {
        let mut connections = JoinSet::new();
        let mut silent = Silent::default();
        loop {
            while connections.try_join_next().is_some() {}
            let has_room = silent.make_room(connections.len());
            tokio::select! {
                accepted = self.listener.accept(), if has_room => match accepted {
                    Ok((stream, _)) => {
                        let has_asked = Arc::new(AtomicBool::new(false));
                        let serving = serve_connection(stream, source.clone(), Arc::clone(&has_asked));
                        silent.push(connections.spawn(serving), has_asked);
                        // Its turn to read: who asks at once is never the oldest that has not.
                        tokio::task::yield_now().await;
                    }
                    Err(e) => {
                        tracing::warn!(error = %e, path = %self.path.display(), "control connection not accepted");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
                Some(_) = connections.join_next() => {}
            }
        }
    }
}

/// Connections that had not asked when last looked at, the oldest first.
#[derive(Default)]
struct Silent {
    connections: VecDeque<(AbortHandle, Arc<AtomicBool>)>,
}

impl Silent {
    fn push(&mut self, connection: AbortHandle, has_asked: Arc<AtomicBool>) {
        self.connections.push_back((connection, has_asked));
    }

    /// Whether there is room for one more connection beside `open` ones. If there is none, the oldest that has not
    /// asked is closed, which makes room as soon as it has ended.
    fn make_room(&mut self, open: usize) -> bool {
        self.connections.retain(|(connection, has_asked)| {
            !connection.is_finished() && !has_asked.load(Ordering::Relaxed)
        });
        if open < CONNECTIONS_MAX {
            return true;
        }
        if let Some((oldest, _)) = self.connections.pop_front() {
            oldest.abort();
        }
        false
    }
}

async fn serve_connection<S: SnapshotSource>(stream: UnixStream, source: S, has_asked: Arc<AtomicBool>) {
    let service = service_fn(move |request: Request<Incoming>| {
        has_asked.store(true, Ordering::Relaxed);
        let source = source.clone();
        async move { Ok::<_, Infallible>(routes::answer(request.method(), request.uri().path(), &source).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    // A client that left or sent nonsense is no concern of the daemon's.
    match tokio::time::timeout(CONNECTION_TIMEOUT, connection).await {
        Ok(Err(e)) => tracing::debug!(error = %e, "control connection failed"),
        Err(_) => tracing::debug!("control connection took too long"),
        Ok(Ok(())) => {}
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::super::snapshot::{ChannelsReport, MemoryReport, SCHEMA_VERSION, StatusReport, Subsystem};
    use super::*;
    use crate::attach::run_dir::CONTROL_SOCKET;
    use crate::control::client;
    use crate::exit::{Exit, Problem};

    #[derive(Clone)]
    struct Fixed;

    impl SnapshotSource for Fixed {
        async fn status(&self) -> Result<StatusReport, Problem> {
            Ok(StatusReport {
                schema_version: SCHEMA_VERSION,
                node: "a".into(),
                version: "1".into(),
                pid: 1,
                uptime_seconds: 2,
                listen: "127.0.0.1:7070".into(),
                memory: MemoryReport::default(),
                links: Vec::new(),
                subsystems: vec![Subsystem::degraded("memory", "ordinary pages", "no hugepages", "sysctl")],
            })
        }

        async fn channels(&self) -> Result<ChannelsReport, Problem> {
            Err(Problem::new(Exit::Failed, "shard 0 ended"))
        }
    }

    /// Runs a server on a directory of its own while `ask` runs on this thread.
    fn with_server(ask: impl FnOnce(&Path)) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(CONTROL_SOCKET);
        // What a dead daemon leaves.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let (ready, is_ready) = std::sync::mpsc::channel();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let server_path = path.clone();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let server = ControlServer::bind(&server_path).unwrap();
                ready.send(()).unwrap();
                tokio::select! {
                    () = server.serve(Fixed) => {}
                    _ = stopped => {}
                }
            });
        });
        is_ready.recv().unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o660);
        ask(dir.path());
        drop(stop);
        thread.join().unwrap();
    }

    /// Sends `request` as it is and returns the whole answer.
    fn raw(run_dir: &Path, request: &str) -> String {
        let mut stream = std::os::unix::net::UnixStream::connect(run_dir.join(CONTROL_SOCKET)).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn a_report_arrives_and_a_problem_arrives_as_a_problem() {
        with_server(|run_dir| {
            let status: StatusReport = client::get(run_dir, "/v1/status").unwrap();
            assert!(status.is_degraded());
            assert_eq!(status.node, "a");
            let problem = client::get::<ChannelsReport>(run_dir, "/v1/channels").unwrap_err();
            assert_eq!((problem.exit, problem.what.as_str()), (Exit::Failed, "shard 0 ended"));
        });
    }

    #[test]
    fn unknown_paths_and_methods_and_nonsense_get_answers_and_the_server_goes_on() {
        with_server(|run_dir| {
            let missing = raw(run_dir, "GET /v2/status HTTP/1.1\r\nHost: x\r\n\r\n");
            assert!(missing.starts_with("HTTP/1.1 404"), "{missing}");
            assert!(
                missing
                    .contains(r#"{"schema_version":1,"error":{"what":"no such path","found":"/v2/status""#)
            );
            let posted = raw(run_dir, "POST /v1/status HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n");
            assert!(
                posted.starts_with("HTTP/1.1 405") && posted.to_lowercase().contains("allow: get"),
                "{posted}"
            );
            let nonsense = raw(run_dir, "\0\0\0\0\r\n\r\n");
            assert!(nonsense.starts_with("HTTP/1.1 400"), "{nonsense}");
            let _silent = std::os::unix::net::UnixStream::connect(run_dir.join(CONTROL_SOCKET)).unwrap();
            client::get::<StatusReport>(run_dir, "/v1/status").unwrap();
        });
    }

    #[test]
    fn whoever_asks_is_answered_beside_any_number_who_do_not() {
        with_server(|run_dir| {
            let connect = || std::os::unix::net::UnixStream::connect(run_dir.join(CONTROL_SOCKET)).unwrap();
            let silent: Vec<_> = (0..4 * CONNECTIONS_MAX).map(|_| connect()).collect();
            // The client gives up long before all of those would be closed for their silence.
            client::get::<StatusReport>(run_dir, "/v1/status").unwrap();
            // The oldest were closed for the others; the last are still there.
            let is_open = |stream: &std::os::unix::net::UnixStream| {
                stream.set_nonblocking(true).unwrap();
                let mut stream = stream;
                stream.read(&mut [0]).is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
            };
            assert!(!is_open(&silent[0]) && is_open(silent.last().unwrap()));
        });
    }

    #[test]
    fn schema_version_is_the_first_field() {
        with_server(|run_dir| {
            let answer = raw(run_dir, "GET /v1/status HTTP/1.1\r\nHost: x\r\n\r\n");
            let body = answer.split("\r\n\r\n").nth(1).unwrap();
            assert!(body.starts_with("{\"schema_version\":1,"), "{body}");
        });
    }
}
